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
 *	- NvmLogStorage.length, the bytes of the rows, is a multiple of 4;
 *	- the next section, or the end, is at the next multiple of 8, with zeroes
 *	  between;
 *	- a section has a row or a piece at least; a storage may have several sections;
 *	- the first piece of a row begins a section.
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

StaticAssertDecl(NVM_LOG_STORAGE_HEADER + NVM_LOG_ROW_HEADER +
				 Max(NVM_MAX_TUPLE, NVM_LOG_PIECE_MAX) <=
				 NVM_LOG_RECORD_MAX - NVM_LOG_RECORD_HEADER,
				 "a row may not fit an empty area");
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
	NvmLogStorage *section;		/* the open one, or NULL */
	void		(*write) (const void *data, Size length);	/* of
															 * nvm_log_sections_begin,
															 * or NULL */
	bool		amid_row;		/* pieces are there whose row is not */

	/* the storage of the next row */
	uint32		dir;
	uint64		creation;
} NvmLogCapture;

static NvmLogCapture capture;

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
	NvmLogRecord *record = (NvmLogRecord *) buffer->data;

	Assert(nvm_log_is_on && NVM_STAMP_SLOT(stamp) >= NVM_VOLATILE_SLOT);
	Assert(capture.buffer == NULL);
	memset(&capture, 0, sizeof(capture));
	capture.buffer = buffer;
	capture.counter = NVM_STAMP_COUNTER(stamp);
	capture.area = buffer->data + NVM_LOG_RECORD_HEADER;
	capture.size = NVM_LOG_RECORD_MAX - NVM_LOG_RECORD_HEADER;

	buffer_clear(buffer);
	memset(record, 0, sizeof(*record));
	record->kind = NVM_LOG_COMMIT;
	record->number = nvm_log_draw_number();
	record->xid = fxid;
}

/*
 * The rows that follow belong to this storage.  Its section begins with the
 * first of them.
 */
static void
section_begin(void)
{
	NvmLogStorage *section = (NvmLogStorage *) (capture.area + capture.used);

	Assert(capture.used % 8 == 0);
	section->dir = capture.dir;
	section->length = 0;
	section->creation = capture.creation;
	capture.used += NVM_LOG_STORAGE_HEADER;
	capture.section = section;
}

static void
section_end(void)
{
	uint32		end = TYPEALIGN(8, capture.used);

	if (capture.section == NULL)
		return;
	capture.section->length =
		capture.area + capture.used - (char *) (capture.section + 1);
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
		nvm_log_side_create(((NvmLogRecord *) capture.buffer->data)->number);
		capture.has_side = true;
		nvm_log_side_write(capture.area, capture.used);
		capture.area = MemoryContextAlloc(TopTransactionContext, SIDE_AREA);
		capture.size = SIDE_AREA;
	}
	else
		nvm_log_side_write(capture.area, capture.used);
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
}

/*
 * Append a row, or a piece of a value.
 */
static void
add_item(const NvmLogRow *item, const void *bytes)
{
	uint32		length = item->length;
	uint32		padded = TYPEALIGN(4, length);
	uint32		need = NVM_LOG_ROW_HEADER + padded;
	char	   *to;

	Assert((capture.buffer != NULL && !capture.complete) || capture.write != NULL);
	Assert(capture.dir != 0);
	if (capture.section == NULL)
		need += NVM_LOG_STORAGE_HEADER;
	if (need > capture.size - capture.used)
		area_flush();
	if (capture.section == NULL)
		section_begin();

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

/* ---- the end of a record ---- */

/*
 * See nvm_log.h.
 */
void
nvm_log_row(uint32 block, uint16 offset, uint32 xmin, const void *tuple, uint16 length)
{
	NvmLogRow	row = {.block = block,.offset = offset,.length = length,.xmin = xmin};

	add_item(&row, tuple);
	capture.amid_row = false;
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
	add_item(&piece, bytes);
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

/*
 * Write the rest to the side file, and have the record name it.
 */
static void
side_end(NvmLogRecord *record)
{
	NvmLogSide	side;

	nvm_log_side_write(capture.area, capture.used);
	nvm_log_side_finish(&side);
	pfree(capture.area);
	capture.area = NULL;
	record->flags |= NVM_LOG_SIDE;
	memcpy(record + 1, &side, sizeof(side));
}

/*
 * See nvm_log.h.
 */
bool
nvm_log_end(void)
{
	NvmLogBuffer *buffer = capture.buffer;
	NvmLogRecord *record;
	uint32		length;

	if (buffer == NULL || (capture.used == 0 && !capture.has_side))
	{
		nvm_log_forget();
		return false;
	}
	Assert(!capture.amid_row);
	record = (NvmLogRecord *) buffer->data;
	section_end();
	if (capture.has_side)
	{
		side_end(record);
		length = NVM_LOG_RECORD_HEADER + NVM_LOG_SIDE_SIZE;
	}
	else
		length = NVM_LOG_RECORD_HEADER + capture.used;
	record->length = length;

	nvm_log_reserve(length);
	capture.reserved = length;
	buffer->length = length;
	pg_write_barrier();
	nvm_store(&buffer->counter, capture.counter);
	capture.complete = true;
	return true;
}

/*
 * See log_impl.h.  What the record has reserved is given back first: who waits for room
 * has none.
 */
void
nvm_log_reserve_ask(void)
{
	uint32		reserved = capture.reserved;

	capture.reserved = 0;
	nvm_log_unreserve(reserved);
	nvm_log_reserve(reserved + NVM_LOG_RECORD_HEADER);
	capture.reserved = reserved;
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
	return capture.complete ? (NvmLogRecord *) capture.buffer->data : NULL;
}
