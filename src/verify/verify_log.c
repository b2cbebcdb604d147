/*-------------------------------------------------------------------------
 *
 * verify_log.c
 *	  The log: headers of files, blocks, the end; walks over records.
 *
 * Compiled into the server and into nvm_logdump.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef FRONTEND
#include "postgres.h"
#else
#include "postgres_fe.h"
#endif

#include "media/media_block.h"
#include "media/media_pool.h"
#include "port/pg_crc32c.h"
#include "verify/nvm_verify.h"
#include "verify/nvm_verify_block.h"
#include "verify/nvm_verify_calls.h"
#include "verify/nvm_verify_log.h"

StaticAssertDecl(sizeof(NvmLogFileHeader) == NVM_LOG_FILE_HEADER_SIZE, "header of a log file");
StaticAssertDecl(sizeof(NvmLogBlock) == NVM_LOG_BLOCK_HEADER, "header of a block of the log");
StaticAssertDecl(sizeof(NvmLogRecord) == NVM_LOG_RECORD_HEADER, "header of a record");
StaticAssertDecl(sizeof(NvmLogStorage) == NVM_LOG_STORAGE_HEADER, "header of a storage's rows");
StaticAssertDecl(sizeof(NvmLogBriefStorage) == NVM_LOG_BRIEF_HEADER, "brief header of a storage's rows");
StaticAssertDecl(offsetof(NvmLogRecord, xid) == NVM_LOG_RECORD_BRIEF, "brief header of a record");
StaticAssertDecl(sizeof(NvmLogRow) == NVM_LOG_ROW_HEADER, "header of a row");
StaticAssertDecl(sizeof(NvmLogSide) == NVM_LOG_SIDE_SIZE, "reference to a side file");
StaticAssertDecl(offsetof(NvmTupleHeader, infomask2) == NVM_LOG_TUPLE_SKIPS &&
				 offsetof(NvmTupleHeader, infomask) == NVM_LOG_TUPLE_SKIPS + sizeof(uint16),
				 "tuple of a row");
StaticAssertDecl(NVM_CELLS <= NVM_LOG_PIECE && NVM_CELLS <= NVM_LOG_OLD,
				 "the flags of an item are none of an offset");
StaticAssertDecl(NVM_MAX_TUPLE < NVM_LOG_PACKED && NVM_LOG_PIECE_MAX < NVM_LOG_PACKED,
				 "the flag of what is packed is none of a length");
StaticAssertDecl(NVM_MAX_DIRS <= NVM_LOG_BRIEF_STORAGE,
				 "the flag of a brief header is none of a directory entry");

/* what a walk steps by */
#define RECORD_SPACE(length)	TYPEALIGN64(8, (uint64) (length))
#define ROW_SPACE(length)		TYPEALIGN64(4, (uint64) (length))

const char	nvm_log_zeroes[] = "zeroes";

/* ---- names ---- */

const char *
nvm_log_parse_hex(const char *text, int digits, const char *follows, uint64 *value)
{
	*value = 0;
	for (int i = 0; i < digits; i++)
	{
		char		c = *text ++;

		if (c >= '0' && c <= '9')
			*value = *value << 4 | (uint64) (c - '0');
		else if (c >= 'a' && c <= 'f')
			*value = *value << 4 | (uint64) (c - 'a' + 10);
		else
			return NULL;
	}
	return strncmp(text, follows, strlen(follows)) == 0 ? text +strlen(follows) : NULL;
}

bool
nvm_log_parse_name(const char *text, NvmLogName *name)
{
	uint64		pool;
	uint64		generation;
	uint64		number;
	const char *rest;

	text = nvm_log_parse_hex(text, 8, "-", &pool);

	if (text !=NULL)
		text = nvm_log_parse_hex(text, 8, "-", &generation);

	if (text == NULL)
		return false;
	name->pool = (uint32) pool;
	name->generation = (uint32) generation;
	rest = nvm_log_parse_hex(text, 8, ".log", &number);
	if (rest != NULL)
	{
		name->number = (uint32) number;
		name->transaction = 0;
		return *rest == '\0' && number != 0;
	}
	rest = nvm_log_parse_hex(text, 16, ".side", &number);
	name->number = 0;
	name->transaction = number;
	return rest != NULL && *rest == '\0';
}

/* ---- checksums ---- */

uint32
nvm_log_file_header_crc(const NvmLogFileHeader *h)
{
	return nvm_record_crc(h, sizeof(*h), &h->crc);
}

uint32
nvm_log_block_crc(const uint8 *uuid, const NvmLogBlock *block)
{
	const uint32 zero = 0;
	pg_crc32c	crc;

	StaticAssertStmt(offsetof(NvmLogBlock, crc) + sizeof(zero) == sizeof(NvmLogBlock),
					 "a block's checksum is the last of its header");
	INIT_CRC32C(crc);
	COMP_CRC32C(crc, uuid, 16);
	COMP_CRC32C(crc, block, offsetof(NvmLogBlock, crc));
	COMP_CRC32C(crc, &zero, sizeof(zero));
	COMP_CRC32C(crc, (const char *) block + NVM_LOG_BLOCK_HEADER, block->length);
	FIN_CRC32C(crc);
	return crc;
}

uint32
nvm_log_side_crc_begin(const uint8 *uuid)
{
	return nvm_log_side_crc_add(0xFFFFFFFF, uuid, 16);
}

uint32
nvm_log_side_crc_add(uint32 crc, const void *data, Size length)
{
	COMP_CRC32C(crc, data, length);
	return crc;
}

uint32
nvm_log_side_crc_end(uint32 crc)
{
	FIN_CRC32C(crc);
	return crc;
}

/* ---- files ---- */

/*
 * What only a file of blocks has.
 */
static const char *
blocks_header_problem(const NvmLogFileHeader *h, uint64 file_size)
{
	if (h->size % NVM_LOG_PAGE != 0 || h->size < 2 * NVM_LOG_PAGE)
		return "impossible size in the header";
	if (file_size != 0 && file_size < h->size)
		return "the file is truncated";
	if (file_size > h->size)
		return "the file is longer than its header says";
	if (h->start < NVM_LOG_FIRST || h->first < h->start ||
		(h->number == 1 && h->first != h->start))
		return "impossible position in the header";
	return NULL;
}

const char *
nvm_log_file_header_problem(const NvmLogFileHeader *h, uint64 file_size,
							const uint8 *uuid, const NvmLogName *name)
{
	if (file_size != 0 && file_size < sizeof(*h))
		return "the file is truncated";
	if (h->magic != NVM_LOG_MAGIC)
		return "wrong magic number";
	if (h->crc != nvm_log_file_header_crc(h))
		return "wrong checksum of the header";
	if (h->version == 0 || h->version > NVM_LOG_VERSION)
		return "unknown version of the format";
	if (uuid != NULL && memcmp(h->uuid, uuid, sizeof(h->uuid)) != 0)
		return "belongs to another pool";
	if (name != NULL && nvm_log_pool_of(h->uuid) != name->pool)
		return "is named after another pool than its header says";
	if (name != NULL && h->generation != name->generation)
		return "is named after another generation than its header says";
	if (name != NULL && h->number != name->number)
		return "is named after another number than its header says";
	if (h->generation == 0)
		return "impossible generation in the header";
	if (h->reserved != 0)
		return "reserved bytes of the header are set";
	return h->number != 0 ? blocks_header_problem(h, file_size) : NULL;
}

const char *
nvm_log_side_problem(const char *base, uint64 file_size, const NvmLogSide *side,
					 const uint8 *uuid, const NvmLogName *name)
{
	const NvmLogFileHeader *h = (const NvmLogFileHeader *) base;
	const char *problem;
	uint32		crc;

	if (file_size < NVM_LOG_PAGE || file_size - NVM_LOG_PAGE < side->length)
		return "the file is truncated";
	problem = nvm_log_file_header_problem(h, file_size, uuid, name);
	if (problem != NULL)
		return problem;
	if (h->number != 0)
		return "is no side file";
	crc = nvm_log_side_crc_begin(uuid);
	crc = nvm_log_side_crc_add(crc, base + NVM_LOG_PAGE, side->length);
	return nvm_log_side_crc_end(crc) == side->crc ? NULL : "wrong checksum";
}

/* ---- blocks ---- */

void
nvm_log_cursor_begin(NvmLogCursor *cursor, const char *base, uint64 size,
					 const uint8 *uuid, uint64 limit)
{
	const NvmLogFileHeader *h = (const NvmLogFileHeader *) base;

	memset(cursor, 0, sizeof(*cursor));
	cursor->base = base;
	cursor->size = Min(size, h->size);
	cursor->uuid = uuid;
	cursor->limit = limit;
	cursor->generation = h->generation;
	cursor->offset = NVM_LOG_PAGE;
	cursor->position = h->first;
}

static bool
sector_is_zero(const char *sector)
{
	const uint64 *word = (const uint64 *) sector;

	for (size_t i = 0; i < NVM_LOG_SECTOR / sizeof(*word); i++)
	{
		if (word[i] != 0)
			return false;
	}
	return true;
}

/*
 * What is wrong with the block at this offset by itself, or NULL.  A sector at
 * least lies there.
 */
static const char *
block_problem(const NvmLogCursor *cursor, uint64 offset)
{
	const NvmLogBlock *block = (const NvmLogBlock *) (cursor->base + offset);

	if (block->magic != NVM_LOG_BLOCK_MAGIC)
		return "wrong magic number";
	if (block->generation != cursor->generation)
		return "another generation";
	if (block->length == 0 || block->length % 8 != 0 || block->length > NVM_LOG_BLOCK_MAX ||
		block->length > cursor->size - offset - NVM_LOG_BLOCK_HEADER)
		return "impossible length";
	if (block->reserved != 0)
		return "reserved bytes are set";
	return block->crc == nvm_log_block_crc(cursor->uuid, block) ? NULL : "wrong checksum";
}

/*
 * What is wrong with it as the next one.
 */
static const char *
next_problem(const NvmLogCursor *cursor)
{
	const NvmLogBlock *block = (const NvmLogBlock *) (cursor->base + cursor->offset);
	const char *problem;

	if (sector_is_zero(cursor->base + cursor->offset))
		return nvm_log_zeroes;
	problem = block_problem(cursor, cursor->offset);
	if (problem != NULL)
		return problem;
	if (block->position != cursor->position)
		return "another position";
	if (block->synced > block->position)
		return "synced beyond its own position";
	if (block->chain != cursor->chain)
		return "does not follow the block before it";
	if (cursor->limit != 0 && block->length > cursor->limit - block->position)
		return "goes beyond where the next file begins";
	return NULL;
}

NvmLogNext
nvm_log_next_block(NvmLogCursor *cursor, const NvmLogBlock **block)
{
	*block = NULL;
	cursor->problem = NULL;
	if (cursor->limit != 0 && cursor->position >= cursor->limit)
		return NVM_LOG_AT_LIMIT;
	if (cursor->offset > cursor->size || cursor->size - cursor->offset < NVM_LOG_SECTOR)
		return NVM_LOG_FILE_FULL;
	cursor->problem = next_problem(cursor);
	if (cursor->problem != NULL)
		return NVM_LOG_NO_MORE;
	*block = (const NvmLogBlock *) (cursor->base + cursor->offset);
	cursor->offset += TYPEALIGN64(NVM_LOG_SECTOR, NVM_LOG_BLOCK_HEADER + (uint64) (*block)->length);
	cursor->position += (*block)->length;
	cursor->chain = (*block)->crc;
	return NVM_LOG_GOT_BLOCK;
}

/*
 * The checksums of blocks that come later say up to where everything was
 * synced.  Of a block that does not follow the hole in the chain nothing else is
 * believed.
 */
const char *
nvm_log_end_problem(const NvmLogCursor *cursor, char *buf)
{
	uint64		synced = cursor->limit;

	if (cursor->limit != 0 && cursor->position >= cursor->limit)
		return NULL;
	for (uint64 offset = cursor->offset;
		 synced == 0 && cursor->size >= NVM_LOG_SECTOR && offset <= cursor->size - NVM_LOG_SECTOR;
		 offset += NVM_LOG_SECTOR)
	{
		const NvmLogBlock *block = (const NvmLogBlock *) (cursor->base + offset);

		if (block->magic == NVM_LOG_BLOCK_MAGIC && block->synced > cursor->position &&
			block_problem(cursor, offset) == NULL)
			synced = block->synced;
	}
	if (synced == 0)
		return NULL;
	snprintf(buf, NVM_LOG_PROBLEM_SIZE,
			 "block at byte " UINT64_FORMAT " is damaged (%s): positions " UINT64_FORMAT
			 " to " UINT64_FORMAT " were on the medium",
			 cursor->offset, cursor->problem != NULL ? cursor->problem : "the file ends",
			 cursor->position, synced);
	return buf;
}

/* ---- records ---- */

static void
begin_walk(NvmLogWalk *walk, const char *at, uint64 length)
{
	walk->at = at;
	walk->end = at + length;
	walk->problem = NULL;
}

/*
 * Something impossible: the walk is over.
 */
static bool
stop_walk(NvmLogWalk *walk, const char *problem)
{
	walk->at = walk->end;
	walk->problem = problem;
	return false;
}

void
nvm_log_walk_block(NvmLogWalk *walk, const NvmLogBlock *block)
{
	begin_walk(walk, (const char *) block + NVM_LOG_BLOCK_HEADER, block->length);
}

/*
 * What is wrong with a record that lies in its block, or NULL.
 */
static const char *
record_problem(const NvmLogRecord *record)
{
	if (record->kind == NVM_LOG_OUTCOME)
	{
		if ((record->flags & ~NVM_LOG_COMMITTED) != 0)
			return "unknown flags of a record";
		return record->length == NVM_LOG_RECORD_HEADER ? NULL : "an OUTCOME record has a body";
	}
	if (record->kind != NVM_LOG_COMMIT && record->kind != NVM_LOG_ASK)
		return "unknown kind of a record";
	if ((record->flags & ~(NVM_LOG_SIDE | NVM_LOG_BRIEF | NVM_LOG_CALLS | NVM_LOG_ALONE)) != 0)
		return "unknown flags of a record";
	if ((record->flags & NVM_LOG_ALONE) != 0 && (record->flags & NVM_LOG_CALLS) == 0)
		return "a record of calls alone has none";
	if ((record->flags & NVM_LOG_BRIEF) != 0 &&
		(record->kind != NVM_LOG_COMMIT || (record->flags & (NVM_LOG_SIDE | NVM_LOG_CALLS)) != 0))
		return "a record that needs an xid has none";
	if (record->number == 0)
		return "a record has no number";
	if ((record->flags & NVM_LOG_SIDE) == 0)
		return NULL;
	if (record->length != NVM_LOG_RECORD_HEADER + NVM_LOG_SIDE_SIZE)
		return "impossible length of a record with a side file";
	return NVM_LOG_RECORD_SIDE(record)->reserved == 0 ? NULL : "reserved bytes are set";
}

bool
nvm_log_next_record(NvmLogWalk *walk, const NvmLogRecord **record)
{
	uint64		left = (uint64) (walk->end - walk->at);
	const NvmLogRecord *r = (const NvmLogRecord *) walk->at;
	const char *problem;

	*record = NULL;
	if (left == 0)
		return false;
	if (left < NVM_LOG_RECORD_BRIEF || r->length % 8 != 0 || r->length > left ||
		r->length < nvm_log_record_header(r))
		return stop_walk(walk, "impossible length of a record");
	problem = record_problem(r);
	if (problem != NULL)
		return stop_walk(walk, problem);
	walk->at += r->length;
	*record = r;
	return true;
}

void
nvm_log_walk_record(NvmLogWalk *walk, const NvmLogRecord *record)
{
	bool		rows = record->kind != NVM_LOG_OUTCOME && (record->flags & NVM_LOG_SIDE) == 0;

	begin_walk(walk, (const char *) record + nvm_log_record_header(record),
			   rows ? record->length - nvm_log_record_header(record) : 0);
}

void
nvm_log_walk_side(NvmLogWalk *walk, const char *base, const NvmLogSide *side)
{
	begin_walk(walk, base + NVM_LOG_PAGE, side->length);
}

/*
 * The section at `at`, with its header; the length is not held against anything.
 */
static void
read_section(const char *at, NvmLogSection *section)
{
	const NvmLogStorage *wide = (const NvmLogStorage *) at;
	const NvmLogBriefStorage *brief = (const NvmLogBriefStorage *) at;

	section->header = at;
	if (brief->word & NVM_LOG_BRIEF_STORAGE)
	{
		section->dir = NVM_LOG_BRIEF_DIR(brief->word);
		section->creation = brief->creation;
		section->length = NVM_LOG_BRIEF_LENGTH(brief->word);
		section->rows = at + NVM_LOG_BRIEF_HEADER;
	}
	else
	{
		section->dir = wide->dir;
		section->creation = wide->creation;
		section->length = wide->length;
		section->rows = at + NVM_LOG_STORAGE_HEADER;
	}
}

bool
nvm_log_next_section(NvmLogWalk *walk, NvmLogSection *storage)
{
	uint64		left = (uint64) (walk->end - walk->at);
	uint64		header;

	if (left == 0)
		return false;
	if (left < NVM_LOG_BRIEF_HEADER ||
		((*(const uint32 *) walk->at & NVM_LOG_BRIEF_STORAGE) == 0 && left < NVM_LOG_STORAGE_HEADER))
		return stop_walk(walk, "impossible length of a storage's rows");
	read_section(walk->at, storage);
	header = (uint64) (storage->rows - walk->at);
	if (storage->length % 4 != 0 || storage->length > left - header)
		return stop_walk(walk, "impossible length of a storage's rows");
	if (storage->dir >= NVM_MAX_DIRS)
		return stop_walk(walk, "impossible directory entry");
	/* the padding of the last one may be missing */
	walk->at += Min(left, RECORD_SPACE(header + storage->length));
	return true;
}

bool
nvm_log_next_storage(NvmLogWalk *walk, NvmLogSection *storage)
{
	while (nvm_log_next_section(walk, storage))
	{
		if (storage->dir != NVM_LOG_CALLS_DIR)
			return true;
	}
	return false;
}

void
nvm_log_walk_rows(NvmLogWalk *walk, const NvmLogSection *storage)
{
	begin_walk(walk, storage->rows, storage->length);
}

/*
 * Of an old row, whose bytes are there.
 */
static const char *
old_problem(const NvmLogRow *item)
{
	if (nvm_log_is_piece(item))
		return "an old row is a piece";
	if (item->length < NVM_LOG_OLD_HEADER ||
		(item->length > NVM_LOG_OLD_HEADER &&
		 NVM_LOG_OLD_LENGTH(item) < NVM_TUPLE_MIN - NVM_LOG_TUPLE_SKIPS))
		return "impossible length of an old row";
	return NULL;
}

/*
 * What is wrong with an item that has `left` bytes at most, or NULL.
 */
static const char *
item_problem(const NvmLogRow *item, uint64 left)
{
	uint32		offset = NVM_LOG_OFFSET(item);

	if (left < NVM_LOG_ROW_HEADER || ROW_SPACE(nvm_log_item_length(item)) > left - NVM_LOG_ROW_HEADER)
		return "impossible length of a row";
	if (nvm_log_is_packed(item) &&
		(nvm_log_is_piece(item) || nvm_log_is_old(item) ||
		 nvm_log_item_length(item) <= NVM_LOG_PACKED_HEADER))
		return "impossible length of a packed row";
	if (offset < NVM_FIRST_CELL || offset >= NVM_CELLS)
		return "impossible place of a row";
	if (nvm_log_is_old(item))
		return old_problem(item);
	if (!nvm_log_is_piece(item))
		return item->length != 0 && nvm_log_tuple_length(item) < NVM_TUPLE_MIN - NVM_LOG_TUPLE_SKIPS ?
			"impossible length of a row" : NULL;
	if (item->length == 0 || item->length > NVM_LOG_PIECE_MAX)
		return "impossible length of a piece";
	return NVM_LOG_PIECE_ATTRIBUTE(item->xmin) == 0 ? "impossible attribute of a piece" : NULL;
}

bool
nvm_log_next_item(NvmLogWalk *walk, const NvmLogRow **item)
{
	uint64		left = (uint64) (walk->end - walk->at);
	const NvmLogRow *r = (const NvmLogRow *) walk->at;
	const char *problem;

	*item = NULL;
	if (left == 0)
		return false;
	problem = item_problem(r, left);
	if (problem != NULL)
		return stop_walk(walk, problem);
	walk->at += NVM_LOG_ROW_HEADER + ROW_SPACE(nvm_log_item_length(r));
	*item = r;
	return true;
}

bool
nvm_log_next_row(NvmLogWalk *walk, const NvmLogRow **row)
{
	while (nvm_log_next_item(walk, row))
	{
		if (!nvm_log_is_piece(*row) && !nvm_log_is_old(*row))
			return true;
	}
	return false;
}

/* ---- pieces of large values, and old rows ---- */

/*
 * Does the tuple of a row have values outside of its block?
 */
static bool
row_has_values(const NvmLogRow *row)
{
	uint16		infomask;

	/* one that is packed has none: whoever unpacks it looks */
	if (row->length == 0 || nvm_log_is_packed(row))
		return false;
	memcpy(&infomask, NVM_LOG_ROW_TUPLE(row) + sizeof(uint16), sizeof(infomask));
	return (infomask & NVM_TUPLE_HASEXTERNAL) != 0;
}

/*
 * What `last` is, the piece or old row that no row has followed yet.
 */
static const char *
without_row(const NvmLogRow *last)
{
	return nvm_log_is_old(last) ? "an old row without its row" : "pieces without their row";
}

/*
 * What is wrong with an item behind `last`, the piece or old row before it that no row has
 * followed yet, or NULL.  begins: the item is the first of its section; wide: the header
 * of that is not brief.
 */
static const char *
order_problem(const NvmLogRow *last, const NvmLogRow *item, bool begins, bool wide)
{
	uint32		attribute;

	if (last != NULL && (item->block != last->block ||
						 NVM_LOG_OFFSET(item) != NVM_LOG_OFFSET(last)))
		return without_row(last);
	if (nvm_log_is_old(item))
		return last != NULL ? "an old row is not before its row" : NULL;
	if (last != NULL && nvm_log_is_old(last))
	{
		/* pieces begin a section, and nothing else comes between */
		if (begins && !nvm_log_is_piece(item))
			return "an old row in another section than its row";
		last = NULL;
	}
	if (!nvm_log_is_piece(item))
	{
		if (row_has_values(item))
			return last == NULL ? "a row without the pieces of its values" : NULL;
		return last != NULL ? "pieces of a row that has no large values" : NULL;
	}
	if (last == NULL && !(begins && wide))
		return "the first piece of a row does not begin a section";
	attribute = NVM_LOG_PIECE_ATTRIBUTE(item->xmin);
	if (last != NULL && item->xmin == last->xmin + 1 &&
		attribute == NVM_LOG_PIECE_ATTRIBUTE(last->xmin))
		return NULL;
	if (NVM_LOG_PIECE_NUMBER(item->xmin) != 0 ||
		(last != NULL && attribute <= NVM_LOG_PIECE_ATTRIBUTE(last->xmin)))
		return "pieces out of order";
	return NULL;
}

static const char *
storages_problem(const NvmLogWalk *walk, bool *has_calls)
{
	NvmLogWalk	storages = *walk;
	NvmLogWalk	items;
	NvmLogSection storage;
	NvmLogSection of_last = {0};
	const NvmLogRow *item;
	const NvmLogRow *last = NULL;

	*has_calls = false;
	while (nvm_log_next_section(&storages, &storage))
	{
		const char *first;

		if (*has_calls)
			return "something follows the calls of a record";

		if (last != NULL && (storage.dir != of_last.dir || storage.creation != of_last.creation))
			return without_row(last);
		if (storage.dir == NVM_LOG_CALLS_DIR)
		{
			const char *problem = nvm_log_calls_problem(&storage);

			if (problem != NULL)
				return problem;
			*has_calls = true;
			continue;
		}
		nvm_log_walk_rows(&items, &storage);
		first = items.at;
		while (nvm_log_next_item(&items, &item))
		{
			const char *problem = order_problem(last, item, (const char *) item == first,
												first - storage.header == NVM_LOG_STORAGE_HEADER);

			if (problem != NULL)
				return problem;
			last = nvm_log_is_piece(item) || nvm_log_is_old(item) ? item : NULL;
		}
		if (items.problem != NULL)
			return items.problem;
		of_last = storage;
	}
	if (storages.problem != NULL)
		return storages.problem;
	return last != NULL ? without_row(last) : NULL;
}

const char *
nvm_log_storages_problem(const NvmLogWalk *walk)
{
	bool		has_calls;

	return storages_problem(walk, &has_calls);
}

const char *
nvm_log_body_problem(const NvmLogRecord *record)
{
	NvmLogWalk	walk;
	const char *problem;
	bool		has_calls;

	nvm_log_walk_record(&walk, record);
	problem = storages_problem(&walk, &has_calls);
	if (problem == NULL && (record->flags & NVM_LOG_SIDE) == 0 &&
		has_calls != ((record->flags & NVM_LOG_CALLS) != 0))
		return has_calls ? "calls in a record that has none" : "a record without its calls";
	if (problem == NULL && has_calls && (record->flags & NVM_LOG_ALONE) != 0)
		return nvm_log_alone_problem(&walk);
	return problem;
}

/*
 * The items of the section whose header is at `at`.
 */
static void
enter_section(NvmLogPieces *pieces, const char *at)
{
	NvmLogSection section;

	read_section(at, &section);
	pieces->at = section.rows;
	pieces->end = section.rows + section.length;
}

void
nvm_log_pieces_begin(NvmLogPieces *pieces, const NvmLogRow *first)
{
	if (nvm_log_is_piece(first))
		enter_section(pieces, (const char *) first - NVM_LOG_STORAGE_HEADER);
	else
	{
		pieces->at = (const char *) first;
		pieces->end = NULL;
	}
}

/*
 * Sections begin at multiples of 8, in memory, too.
 */
const NvmLogRow *
nvm_log_pieces_next(NvmLogPieces *pieces)
{
	const NvmLogRow *item;

	while (pieces->at == pieces->end)
		enter_section(pieces, (const char *) TYPEALIGN64(8, (uintptr_t) pieces->end));
	item = (const NvmLogRow *) pieces->at;
	pieces->at += NVM_LOG_ROW_HEADER + ROW_SPACE(nvm_log_item_length(item));
	return item;
}

const NvmLogRow *
nvm_log_pieces_row(const NvmLogRow *first)
{
	NvmLogPieces pieces;
	const NvmLogRow *item;

	nvm_log_pieces_begin(&pieces, first);
	do
		item = nvm_log_pieces_next(&pieces);
	while (nvm_log_is_piece(item));
	return item;
}
