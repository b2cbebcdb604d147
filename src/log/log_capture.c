/*-------------------------------------------------------------------------
 *
 * log_capture.c
 *	  The record that PRE_COMMIT builds: in the slot's buffer, or a side file.
 *
 * A record is a header and *sections*: NvmLogStorage, and rows of that storage.
 * Everything is where a reader can step to without looking at what it skips:
 *
 *	- a row is NvmLogRow and the tuple, with zeroes up to a multiple of 4, so the
 *	  next row is behind it; so is a piece of a large value, with its bytes;
 *	- the length of a section, the bytes of its rows, is a multiple of 4;
 *	- the next section, or the end, is at the next multiple of 8, with zeroes
 *	  between;
 *	- a section has a row or a piece at least; a storage may have several sections;
 *	- the first piece of a row begins a section;
 *	- an old row lies before its row, in the same section, or before its pieces, at the
 *	  end of the section before;
 *	- the last section may be one of calls (log_calls.c), which has no rows.
 *
 * The headers of a record and of a section are the brief ones where that is possible.
 * The record's own is written at its end, since only then it is known; room for
 * either is before the first section.
 *
 * Sections are written to an *area*, which is the rest of the slot's buffer.
 * When that is full it is written to a side file (log_side.c), and an area in
 * the process's memory takes its place, to be written each time it is full.  A
 * section's length is stored at its end.  So sections do not go on from one
 * area to the next: the storage gets a new one there.
 *
 * The buffer lies in memory that outlives the process, and others read it when
 * they decide the transaction.  Its `counter` says whose record it has.  It is 0
 * while the owner writes there, and stored last.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/log_impl.h"
#include "media/media_block.h"
#include "media/media_slot.h"
#include "media/media_word.h"
#include "pool/nvm_pool.h"
#include "verify/nvm_verify_log.h"
#include "utils/memutils.h"

StaticAssertDecl(sizeof(NvmLogRecord) == NVM_LOG_RECORD_HEADER, "NvmLogRecord has a hole");
StaticAssertDecl(sizeof(NvmLogStorage) == NVM_LOG_STORAGE_HEADER, "NvmLogStorage has a hole");
StaticAssertDecl(sizeof(NvmLogRow) == NVM_LOG_ROW_HEADER, "NvmLogRow has a hole");
StaticAssertDecl(NVM_LOG_RECORD_MAX % 8 == 0 && NVM_LOG_RECORD_HEADER % 8 == 0 &&
				 NVM_LOG_STORAGE_HEADER % 4 == 0 && NVM_LOG_ROW_HEADER % 4 == 0 &&
				 offsetof(NvmLogBuffer, data) % 8 == 0,
				 "parts of a record are not aligned");

/* memory for what goes to a side file: what is written at a time */
#define SIDE_AREA				(256 * 1024)
/* the same for nvm_log_sections_begin */
#define SECTIONS_AREA			(512 * 1024)

/* an old row may have to be in one section with its row */
#define OLD_ROW_MAX				(NVM_LOG_ROW_HEADER + NVM_LOG_OLD_HEADER + NVM_MAX_TUPLE)
#define ROW_MAX					(NVM_LOG_ROW_HEADER + NVM_MAX_TUPLE)

StaticAssertDecl(8 + NVM_LOG_STORAGE_HEADER +
				 Max(OLD_ROW_MAX + ROW_MAX, NVM_LOG_ROW_HEADER + NVM_LOG_PIECE_MAX) <=
				 NVM_LOG_RECORD_MAX - NVM_LOG_RECORD_HEADER,
				 "a row may not fit an empty area");
StaticAssertDecl(OLD_ROW_MAX + ROW_MAX < NVM_LOG_BRIEF_LENGTHS && ROW_MAX % 4 == 0,
				 "a row and its old one may not fit a section");
StaticAssertDecl(SIDE_AREA % 8 == 0 && SECTIONS_AREA % 8 == 0, "an area's end is not aligned");

/*
 * The record of the current transaction.
 */
typedef struct NvmLogCapture
{
	NvmLogBuffer *buffer;		/* of its slot; NULL: there is no record */
	uint64		counter;		/* of its stamp */
	bool		complete;		/* others may place it */
	bool		has_side;		/* its sections go to a side file */
	uint32		reserved;		/* bytes of the ring */

	/* where sections go */
	char	   *area;
	uint32		size;			/* a multiple of 8 */
	uint32		used;			/* so is this, unless a section is open */
	char	   *section;		/* header of the open one, or NULL */
	bool		section_is_brief;
	void		(*write) (const void *data, Size length);	/* of
															 * nvm_log_sections_begin,
															 * or NULL */
	bool		amid_row;		/* pieces are there whose row is not */

	/* the storage of the next row */
	uint32		dir;
	uint64		creation;

	uint64		number;
	uint64		xid;
	bool		says_xid;		/* the record may be played beside a snapshot */
	uint64		bytes;			/* in the side file */
} NvmLogCapture;

static NvmLogCapture capture;

/* a row that is packed */
static char packed[NVM_LOG_PACKED_ROOM];

/*
 * The buffer has no record.  A process that decides an earlier transaction of the
 * slot may come by late: the counter goes before what it stands for.
 */
static void
buffer_clear(NvmLogBuffer *buffer)
{
	nvm_store(&buffer->counter, 0);
	pg_write_barrier();
	buffer->length = 0;
}

/*
 * Begin the record of the current transaction, which has this stamp in the
 * volatile region.  Caller ends it by nvm_log_end or nvm_log_forget.
 */
void
nvm_log_begin(uint64 stamp, uint64 fxid)
{
	NvmLogBuffer *buffer = nvm_log_buffer(NVM_STAMP_SLOT(stamp));

	Assert(nvm_log_is_on && NVM_STAMP_SLOT(stamp) >= NVM_VOLATILE_SLOT);
	Assert(capture.buffer == NULL);
	memset(&capture, 0, sizeof(capture));
	capture.buffer = buffer;
	capture.counter = NVM_STAMP_COUNTER(stamp);
	capture.area = buffer->data + NVM_LOG_RECORD_HEADER;
	capture.size = NVM_LOG_RECORD_MAX - NVM_LOG_RECORD_HEADER;

	buffer_clear(buffer);
	capture.number = nvm_log_draw_number();
	capture.xid = fxid;
	nvm_log_calls_begin();
}

/*
 * The rows that follow belong to this storage.  Its section begins with the
 * first of them.
 */
static void
section_begin(bool wide)
{
	Assert(capture.used % 8 == 0);
	capture.section = capture.area + capture.used;
	capture.section_is_brief = !wide && capture.dir < NVM_LOG_BRIEF_DIRS &&
		capture.creation <= PG_UINT32_MAX;
	capture.used += capture.section_is_brief ? NVM_LOG_BRIEF_HEADER : NVM_LOG_STORAGE_HEADER;
}

/*
 * Its header is written when its length is known.
 */
static void
section_end(void)
{
	char	   *section = capture.section;
	uint32		end = TYPEALIGN(8, capture.used);
	uint32		bytes;

	if (section == NULL)
		return;
	bytes = capture.area + capture.used - section;
	if (capture.section_is_brief)
	{
		NvmLogBriefStorage *brief = (NvmLogBriefStorage *) section;

		brief->word = NVM_LOG_BRIEF_WORD(capture.dir, bytes - NVM_LOG_BRIEF_HEADER);
		brief->creation = (uint32) capture.creation;
	}
	else
	{
		NvmLogStorage *wide = (NvmLogStorage *) section;

		wide->dir = capture.dir;
		wide->length = bytes - NVM_LOG_STORAGE_HEADER;
		wide->creation = capture.creation;
	}
	memset(capture.area + capture.used, 0, end - capture.used);
	capture.used = end;
	capture.section = NULL;
}

/*
 * The area is full: write it to the side file, and go on with an empty one.
 */
static void
area_flush(void)
{
	section_end();
	if (capture.write != NULL)
		capture.write(capture.area, capture.used);
	else if (!capture.has_side)
	{
		nvm_log_side_create(capture.number);
		capture.has_side = true;
		nvm_log_side_write(capture.area, capture.used);
		capture.area = MemoryContextAlloc(TopTransactionContext, SIDE_AREA);
		capture.size = SIDE_AREA;
	}
	else
		nvm_log_side_write(capture.area, capture.used);
	capture.bytes += capture.used;
	capture.used = 0;
}

/*
 * See nvm_log.h.
 */
void
nvm_log_storage(uint32 dir, uint64 creation)
{
	if (capture.dir == dir && capture.creation == creation)
		return;
	Assert(!capture.amid_row);
	section_end();
	capture.dir = dir;
	capture.creation = creation;
	if (capture.buffer != NULL && (nvm_dir_entry(dir)->flags & NVM_DIR_COMMANDS) != 0)
		capture.says_xid = true;
}

/*
 * Have a section with room for so many bytes of items.  wide: one that begins has no
 * brief header.
 */
static void
section_with_room(uint32 need, bool wide)
{
	Assert((capture.buffer != NULL && !capture.complete) || capture.write != NULL);
	Assert(capture.dir != 0);
	if (capture.section != NULL && capture.section_is_brief &&
		capture.area + capture.used - capture.section + need >= NVM_LOG_BRIEF_LENGTHS)
		section_end();
	/* there may have to be another header, behind a padding */
	if (need + 8 + NVM_LOG_STORAGE_HEADER > capture.size - capture.used)
		area_flush();
	if (capture.section == NULL)
		section_begin(wide);
}

/*
 * Append a row, or a piece of a value, of `length` bytes.
 */
static void
add_item(const NvmLogRow *item, const void *bytes, uint32 length, bool wide)
{
	uint32		padded = TYPEALIGN(4, length);
	char	   *to;

	section_with_room(NVM_LOG_ROW_HEADER + padded, wide);
	to = capture.area + capture.used;
	memcpy(to, item, NVM_LOG_ROW_HEADER);
	to += NVM_LOG_ROW_HEADER;
	if (length > 0)
	{
		memcpy(to, bytes, length);
		memset(to + length, 0, padded - length);
	}
	capture.used += NVM_LOG_ROW_HEADER + padded;
}

/* ---- sections of no record ---- */

/*
 * See nvm_log.h.
 */
void
nvm_log_sections_begin(void (*write) (const void *data, Size length))
{
	Assert(capture.buffer == NULL);
	memset(&capture, 0, sizeof(capture));
	capture.area = palloc(SECTIONS_AREA);
	capture.size = SECTIONS_AREA;
	capture.write = write;
}

void
nvm_log_sections_flush(bool all)
{
	if (capture.used > 0 && (all || capture.used > capture.size / 2))
		area_flush();
}

void
nvm_log_sections_end(void)
{
	memset(&capture, 0, sizeof(capture));
}

/* ---- rows and pieces ---- */

/*
 * See nvm_log.h.
 */
void
nvm_log_row(uint32 block, uint16 offset, uint32 xmin, const void *tuple, uint16 length)
{
	NvmLogRow	row = {.block = block,.offset = offset,.length = length,.xmin = xmin};
	uint16		n = 0;

	if (capture.write == NULL && !capture.has_side && !capture.amid_row)
		n = nvm_log_pack(capture.dir, tuple, length, packed);
	if (n > 0)
	{
		row.length = n | NVM_LOG_PACKED;
		add_item(&row, packed, n, false);
	}
	else
		add_item(&row, tuple, length, false);
	capture.amid_row = false;
}

/*
 * See nvm_log.h.  Its row, if it has no pieces, finds room in the same section.
 */
void
nvm_log_old(uint32 block, uint16 offset, uint32 xmin, uint64 checksum,
			const void *tuple, uint16 length)
{
	NvmLogRow	old = {
		.block = block,
		.offset = offset | NVM_LOG_OLD,
		.length = NVM_LOG_OLD_HEADER + length,
		.xmin = xmin
	};
	uint32		padded = TYPEALIGN(4, length);
	char	   *to;

	StaticAssertStmt(sizeof(checksum) == NVM_LOG_OLD_HEADER, "checksum of an old row");
	Assert(!capture.amid_row);
	section_with_room(NVM_LOG_ROW_HEADER + NVM_LOG_OLD_HEADER + padded + ROW_MAX, false);
	to = capture.area + capture.used;
	memcpy(to, &old, NVM_LOG_ROW_HEADER);
	to += NVM_LOG_ROW_HEADER;
	memcpy(to, &checksum, NVM_LOG_OLD_HEADER);
	to += NVM_LOG_OLD_HEADER;
	if (length > 0)
		memcpy(to, tuple, length);
	memset(to + length, 0, padded - length);
	capture.used += NVM_LOG_ROW_HEADER + NVM_LOG_OLD_HEADER + padded;
}

/*
 * See nvm_log.h.
 */
void
nvm_log_piece(uint32 block, uint16 offset, uint32 attribute, uint32 number,
			  const void *bytes, uint16 length, bool first)
{
	NvmLogRow	piece = {
		.block = block,
		.offset = offset | NVM_LOG_PIECE,
		.length = length,
		.xmin = NVM_LOG_PIECE_WORD(attribute, number)
	};

	Assert(length > 0 && length <= NVM_LOG_PIECE_MAX);
	Assert(first == !capture.amid_row);
	if (first)
		section_end();
	add_item(&piece, bytes, length, first);
	capture.amid_row = true;
}

/*
 * See nvm_log.h.
 */
bool
nvm_log_amid_row(void)
{
	return capture.amid_row;
}

/* ---- the end of a record ---- */

/*
 * Append bytes to the area, or to the side file if they do not fit.
 */
static void
add_bytes(const void *bytes, uint32 length)
{
	if (length > capture.size - capture.used)
		area_flush();
	if (length > capture.size)
	{
		nvm_log_side_write(bytes, length);
		capture.bytes += length;
		return;
	}
	memcpy(capture.area + capture.used, bytes, length);
	capture.used += length;
}

/*
 * Append the section of calls, if there is one.  It is as long as it is: its header and
 * its bytes may come to lie in different areas, and so one behind the other in the side
 * file.  Returns whether there is one.
 */
static bool
add_calls(void)
{
	uint64		before = capture.bytes + capture.used;
	const char *bytes;
	uint32		length;
	uint32		database;
	static const char padding[8] = {0};

	if (!nvm_log_calls_section(&bytes, &length, &database))
		return false;
	if (length < NVM_LOG_BRIEF_LENGTHS)
	{
		NvmLogBriefStorage brief = {
			.word = NVM_LOG_BRIEF_WORD(NVM_LOG_CALLS_DIR, length),
			.creation = database
		};

		/* all of it stays together if it can */
		if (sizeof(brief) + TYPEALIGN(8, length) > capture.size - capture.used)
			area_flush();
		add_bytes(&brief, sizeof(brief));
	}
	else
	{
		NvmLogStorage wide = {
			.dir = NVM_LOG_CALLS_DIR,
			.length = length,
			.creation = database
		};

		add_bytes(&wide, sizeof(wide));
	}
	add_bytes(bytes, length);
	if (length % 8 != 0)
		add_bytes(padding, 8 - length % 8);
	nvm_log_calls_logged(before, capture.bytes + capture.used - before);
	return true;
}

/*
 * Write the header of the record before its body, which has `length` bytes.  Nobody
 * reads the buffer meanwhile.
 */
static void
make_header(uint16 kind, uint16 flags, uint32 length)
{
	NvmLogBuffer *buffer = capture.buffer;
	uint32		header = (flags & NVM_LOG_BRIEF) != 0 ? NVM_LOG_RECORD_BRIEF : NVM_LOG_RECORD_HEADER;
	NvmLogRecord record = {
		.length = header + length,
		.kind = kind,
		.flags = flags,
		.number = capture.number,
		.xid = capture.xid
	};

	buffer->begin = NVM_LOG_RECORD_HEADER - header;
	buffer->length = record.length;
	memcpy(buffer->data + buffer->begin, &record, header);
}

/*
 * Write the rest to the side file; the record is what names it.
 */
static void
side_end(void)
{
	NvmLogSide	side;

	nvm_log_side_write(capture.area, capture.used);
	nvm_log_side_finish(&side);
	pfree(capture.area);
	capture.area = NULL;
	memcpy(capture.buffer->data + NVM_LOG_RECORD_HEADER, &side, sizeof(side));
}

/*
 * See nvm_log.h.
 */
bool
nvm_log_end(void)
{
	NvmLogBuffer *buffer = capture.buffer;
	uint16		calls;
	uint16		brief;

	if (buffer == NULL || (capture.used == 0 && !capture.has_side && !nvm_log_calls_alone))
	{
		nvm_log_forget();
		return false;
	}
	Assert(!capture.amid_row);
	section_end();
	calls = add_calls() ? NVM_LOG_CALLS | (nvm_log_calls_alone ? NVM_LOG_ALONE : 0) : 0;
	/* of rows of nvm_cmdlog tables it has to be known who has written them */
	brief = calls == 0 && !capture.says_xid ? NVM_LOG_BRIEF : 0;
	if (capture.has_side)
	{
		side_end();
		make_header(NVM_LOG_COMMIT, NVM_LOG_SIDE | calls, NVM_LOG_SIDE_SIZE);
	}
	else
		make_header(NVM_LOG_COMMIT, calls | brief, capture.used);

	nvm_log_reserve(buffer->length);
	capture.reserved = buffer->length;
	pg_write_barrier();
	nvm_store(&buffer->counter, capture.counter);
	capture.complete = true;
	nvm_log_calls_end();
	return true;
}

/*
 * See log_impl.h.  What the record has reserved is given back first: who waits for room
 * has none.
 */
NvmLogRecord *
nvm_log_make_ask(void)
{
	NvmLogBuffer *buffer = capture.buffer;
	NvmLogRecord *record = nvm_log_current();
	uint32		reserved = capture.reserved;

	capture.reserved = 0;
	nvm_log_unreserve(reserved);

	/*
	 * nobody but us places a record of a transaction that is in the proc
	 * array
	 */
	make_header(NVM_LOG_COMMIT, record->flags & (NVM_LOG_SIDE | NVM_LOG_CALLS | NVM_LOG_ALONE),
				record->length - nvm_log_record_header(record));
	nvm_log_reserve(buffer->length + NVM_LOG_RECORD_HEADER);
	capture.reserved = buffer->length;
	record = nvm_log_current();
	record->kind = NVM_LOG_ASK;
	return record;
}

/*
 * Take back what was begun, or ended, of a transaction that aborts.  Cannot fail;
 * may be called at any time, also if nothing was begun.
 *
 * Nobody else has placed its record, since that is done for transactions that have
 * left the proc array committed.  The owner may have, if it is an ASK record:
 * nvm_log_ask places it once it has that kind, and nothing can fail between.  Then
 * the room is used up, and the file stays as long as the log names it.
 */
void
nvm_log_forget(void)
{
	NvmLogBuffer *buffer = capture.buffer;
	uint32		reserved = capture.reserved;

	if (nvm_log_current() != NULL && nvm_log_current()->kind == NVM_LOG_ASK)
	{
		nvm_log_side_keep();
		reserved = 0;
	}
	memset(&capture, 0, sizeof(capture));
	nvm_log_calls_end();
	nvm_log_side_discard();
	if (buffer == NULL)
		return;
	buffer_clear(buffer);
	if (reserved > 0)
		nvm_log_unreserve(reserved);
}

/*
 * The transaction is decided, or prepared, and its record, if it has one, the
 * log's.  The buffer keeps it until the slot's next transaction has one: those who
 * come late find that the stamp is decided.
 */
void
nvm_log_decided(void)
{
	if (capture.buffer == NULL)
		return;
	memset(&capture, 0, sizeof(capture));
	nvm_log_side_keep();
}

/*
 * See log_impl.h.
 */
NvmLogRecord *
nvm_log_current(void)
{
	if (!capture.complete)
		return NULL;
	return (NvmLogRecord *) (capture.buffer->data + capture.buffer->begin);
}
