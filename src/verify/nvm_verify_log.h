/*-------------------------------------------------------------------------
 *
 * nvm_verify_log.h
 *	  What can be wrong with the bytes of the log: files, blocks, records.
 *
 * Files are read in memory as a whole, mapped or copied to an aligned address.
 * Nobody changes them meanwhile.
 *
 * Compiled into the server and into nvm_logdump.  Includers have included
 * postgres.h or postgres_fe.h.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_VERIFY_LOG_H
#define NVM_VERIFY_LOG_H

#include "media/media_log.h"

/* ---- names ---- */

typedef struct NvmLogName
{
	uint32		pool;			/* first 4 bytes of its uuid */
	uint32		generation;
	uint32		number;			/* of a file of blocks; 0: a side file */
	uint64		transaction;	/* of a side file: its number */
} NvmLogName;

/* the first 4 bytes of a uuid, as the names have them */
static inline uint32
nvm_log_pool_of(const uint8 *uuid)
{
	return (uint32) uuid[0] << 24 | (uint32) uuid[1] << 16 | (uint32) uuid[2] << 8 | uuid[3];
}

/*
 * So many hexadecimal digits as our formats print them, and what follows them.
 * NULL if something else is there.
 */
extern const char *nvm_log_parse_hex(const char *text, int digits, const char *follows,
									 uint64 *value);

/* false if this is no name of a file of the log; without directory */
extern bool nvm_log_parse_name(const char *text, NvmLogName *name);

/* ---- checksums: of what is written, too ---- */

extern uint32 nvm_log_file_header_crc(const NvmLogFileHeader *h);

/* over uuid, struct and the records behind it; `length` is right */
extern uint32 nvm_log_block_crc(const uint8 *uuid, const NvmLogBlock *block);

/* the bytes of a side file, piece by piece */
extern uint32 nvm_log_side_crc_begin(const uint8 *uuid);
extern uint32 nvm_log_side_crc_add(uint32 crc, const void *data, Size length);
extern uint32 nvm_log_side_crc_end(uint32 crc);

/* ---- files ---- */

/*
 * What is wrong with a header, or NULL.  file_size: in bytes, 0 if not known.
 * uuid: of the pool, or NULL.  name: what the file's name says, or NULL.  Of a
 * side file (number 0) size and first mean nothing.
 */
extern const char *nvm_log_file_header_problem(const NvmLogFileHeader *h, uint64 file_size,
											   const uint8 *uuid, const NvmLogName *name);

/*
 * What is wrong with a side file that a record names, or NULL.  `side` is the
 * record's; base has file_size bytes.
 */
extern const char *nvm_log_side_problem(const char *base, uint64 file_size,
										const NvmLogSide *side, const uint8 *uuid,
										const NvmLogName *name);

/* ---- checkpoints (verify_checkpoint.c) ---- */

/* false if this is no name of the file of a checkpoint, or of a data file */
extern bool nvm_log_parse_checkpoint_name(const char *text, uint32 *pool);

typedef struct NvmLogRowsName
{
	uint32		pool;
	uint64		checkpoint;
	uint32		part;
} NvmLogRowsName;

extern bool nvm_log_parse_rows_name(const char *text, NvmLogRowsName *name);

/* over struct and what is behind it; nfiles and snapshot are right */
extern uint32 nvm_log_checkpoint_crc(const NvmLogCheckpoint *c);

/* what is wrong with the file of a checkpoint, or NULL.  uuid: of the pool, or NULL */
extern const char *nvm_log_checkpoint_problem(const NvmLogCheckpoint *c, uint64 file_size,
											  const uint8 *uuid);

/* the data files of a checkpoint, as nvm_log_side_problem wants them */
#define NVM_LOG_CHECKPOINT_DATA(c) \
	((const NvmLogSide *) ((const char *) (c) + NVM_LOG_CHECKPOINT_SIZE))

/* bytes of the file of a checkpoint with so many data files, and bytes of a snapshot */
#define NVM_LOG_CHECKPOINT_LENGTH(nfiles, snapshot) \
	(NVM_LOG_CHECKPOINT_SIZE + (uint64) (nfiles) * NVM_LOG_SIDE_SIZE + (snapshot))
#define NVM_LOG_CHECKPOINT_LONGEST \
	NVM_LOG_CHECKPOINT_LENGTH(NVM_LOG_CHECKPOINT_FILES, NVM_LOG_SNAPSHOT_LENGTH(NVM_LOG_SNAPSHOT_XIDS))

/* the snapshot of a checkpoint that has one */
#define NVM_LOG_CHECKPOINT_SNAPSHOT(c) \
	((const NvmLogSnapshot *) (NVM_LOG_CHECKPOINT_DATA(c) + (c)->nfiles))

#define NVM_LOG_SNAPSHOT_LENGTH(nxip) \
	(NVM_LOG_SNAPSHOT_SIZE + (uint64) (nxip) * sizeof(uint64))

/* its xids */
#define NVM_LOG_SNAPSHOT_XIP(snapshot) \
	((const uint64 *) ((const char *) (snapshot) + NVM_LOG_SNAPSHOT_SIZE))

/* ---- what a clean stop keeps of UNLOGGED tables (verify_kept.c) ---- */

/* false if this is no name of the file that lists them, or of a file that has rows */
extern bool nvm_log_parse_kept_name(const char *text, uint32 *pool);

typedef struct NvmLogKeptName
{
	uint32		pool;
	uint32		incarnation;
	uint64		creation;
} NvmLogKeptName;

extern bool nvm_log_parse_kept_rows_name(const char *text, NvmLogKeptName *name);

/* over struct and list behind it; nfiles is right */
extern uint32 nvm_log_kept_crc(const NvmLogKept *kept);

/* what is wrong with the list, or NULL.  uuid: of the pool, or NULL */
extern const char *nvm_log_kept_problem(const NvmLogKept *kept, uint64 file_size,
										const uint8 *uuid);

#define NVM_LOG_KEPT_DATA(kept) \
	((NvmLogKeptFile *) ((char *) (kept) + NVM_LOG_KEPT_SIZE))

/* bytes of a list of so many files */
#define NVM_LOG_KEPT_LENGTH(nfiles) \
	(NVM_LOG_KEPT_SIZE + (uint64) (nfiles) * NVM_LOG_KEPT_FILE_SIZE)

/* ---- blocks of a file ---- */

typedef enum NvmLogNext
{
	NVM_LOG_GOT_BLOCK,
	NVM_LOG_NO_MORE,			/* what is there does not prove itself */
	NVM_LOG_FILE_FULL,			/* no room for another block */
	NVM_LOG_AT_LIMIT			/* the next file, or generation, goes on */
} NvmLogNext;

/*
 * The place behind the last block that has proved itself.
 */
typedef struct NvmLogCursor
{
	const char *base;			/* the file, from its header on */
	uint64		size;			/* in bytes */
	const uint8 *uuid;			/* of the pool */
	uint64		limit;			/* blocks from this position on do not count;
								 * 0: none */
	uint32		generation;
	uint64		offset;			/* where the next block is expected */
	uint64		position;		/* of that block's first record */
	uint32		chain;			/* checksum of the block before it, or 0 */
	const char *problem;		/* after NVM_LOG_NO_MORE: which check failed;
								 * NVM_LOG_ZEROES: nothing is there */
} NvmLogCursor;

extern const char nvm_log_zeroes[];
#define NVM_LOG_ZEROES			nvm_log_zeroes

/*
 * Begin with the first block.  nvm_log_file_header_problem has passed the file's
 * header.  limit: `first` of the next file of this generation, or else `start` of
 * the next generation, or 0.
 */
extern void nvm_log_cursor_begin(NvmLogCursor *cursor, const char *base, uint64 size,
								 const uint8 *uuid, uint64 limit);

/*
 * The next block, whole and with a right checksum.  What its records contain is
 * not looked at.  With any other answer the cursor stays where it is.
 */
extern NvmLogNext nvm_log_next_block(NvmLogCursor *cursor, const NvmLogBlock **block);

/*
 * nvm_log_next_block has found no more: is that an end that a crash may leave?
 * NULL, or which bytes are damaged; written to buf, of NVM_LOG_PROBLEM_SIZE bytes.
 * The caller names the file.
 */
#define NVM_LOG_PROBLEM_SIZE	256
extern const char *nvm_log_end_problem(const NvmLogCursor *cursor, char *buf);

/* ---- records ---- */

/*
 * A walk over the records of a block, the storages of a record, or the rows of a
 * storage.  No length leads out of what contains it.  The nvm_log_next_...
 * return false at the end, and at something impossible: then `problem` says what.
 * What a checksum protects has that only by a fault of ours, or on purpose.
 */
typedef struct NvmLogWalk
{
	const char *at;
	const char *end;
	const char *problem;
} NvmLogWalk;

extern void nvm_log_walk_block(NvmLogWalk *walk, const NvmLogBlock *block);
extern bool nvm_log_next_record(NvmLogWalk *walk, const NvmLogRecord **record);

/*
 * What a record that nvm_log_next_record has returned contains.  walk_record: of
 * OUTCOME and of NVM_LOG_SIDE nothing.  walk_side: the side file, which
 * nvm_log_side_problem has passed.
 */
extern void nvm_log_walk_record(NvmLogWalk *walk, const NvmLogRecord *record);
extern void nvm_log_walk_side(NvmLogWalk *walk, const char *base, const NvmLogSide *side);

/* the rows of a storage that follow each other, or calls, whichever header they have */
typedef struct NvmLogSection
{
	uint32		dir;
	uint64		creation;
	const char *rows;
	uint32		length;			/* of these in bytes */
	const char *header;			/* NvmLogStorage, or NvmLogBriefStorage */
} NvmLogSection;

/*
 * next_storage passes over a section of calls (nvm_verify_calls.h); next_section returns
 * it, too: its dir is NVM_LOG_CALLS_DIR.
 */
extern bool nvm_log_next_storage(NvmLogWalk *walk, NvmLogSection *storage);
extern bool nvm_log_next_section(NvmLogWalk *walk, NvmLogSection *section);

/*
 * next_row passes over pieces of large values and old rows; next_item returns them, too.
 */
extern void nvm_log_walk_rows(NvmLogWalk *walk, const NvmLogSection *storage);
extern bool nvm_log_next_row(NvmLogWalk *walk, const NvmLogRow **row);
extern bool nvm_log_next_item(NvmLogWalk *walk, const NvmLogRow **item);

static inline bool
nvm_log_is_piece(const NvmLogRow *item)
{
	return (item->offset & NVM_LOG_PIECE) != 0;
}

static inline bool
nvm_log_is_old(const NvmLogRow *item)
{
	return (item->offset & NVM_LOG_OLD) != 0;
}

/* the offset of the root, whatever the item is */
#define NVM_LOG_OFFSET(item)	((item)->offset & ~(NVM_LOG_PIECE | NVM_LOG_OLD))

/* bytes behind the header of an item */
static inline uint32
nvm_log_item_length(const NvmLogRow *item)
{
	return item->length & ~NVM_LOG_PACKED;
}

static inline bool
nvm_log_is_packed(const NvmLogRow *item)
{
	return (item->length & NVM_LOG_PACKED) != 0;
}

/* the tuple of a row, from infomask2 on, or what it is packed as */
#define NVM_LOG_ROW_TUPLE(row)	((const char *) (row) + NVM_LOG_ROW_HEADER)

/* bytes of the tuple; 0: the row is gone */
static inline uint32
nvm_log_tuple_length(const NvmLogRow *row)
{
	uint16		length = row->length;

	if (nvm_log_is_packed(row))
		memcpy(&length, NVM_LOG_ROW_TUPLE(row), sizeof(length));
	return length;
}

/* of a COMMIT or ASK record, what it has behind its header */
static inline uint32
nvm_log_record_header(const NvmLogRecord *record)
{
	return (record->flags & NVM_LOG_BRIEF) != 0 ? NVM_LOG_RECORD_BRIEF : NVM_LOG_RECORD_HEADER;
}

/* of a record with NVM_LOG_SIDE */
#define NVM_LOG_RECORD_SIDE(record) \
	((const NvmLogSide *) ((const char *) (record) + NVM_LOG_RECORD_HEADER))

/* the bytes of a piece; has piece->length of them */
#define NVM_LOG_PIECE_BYTES(piece)	NVM_LOG_ROW_TUPLE(piece)

/* of an old row: the checksum, and the tuple with its length; 0: it has none */
static inline uint64
nvm_log_old_checksum(const NvmLogRow *old)
{
	uint64		checksum;

	memcpy(&checksum, NVM_LOG_ROW_TUPLE(old), sizeof(checksum));
	return checksum;
}

#define NVM_LOG_OLD_TUPLE(old)		(NVM_LOG_ROW_TUPLE(old) + NVM_LOG_OLD_HEADER)
#define NVM_LOG_OLD_LENGTH(old)		((uint32) (old)->length - NVM_LOG_OLD_HEADER)

/*
 * The same over all storages and rows of a walk that stands before the first
 * storage: what is wrong with any, or NULL.  So that one is told before the first
 * row is believed.  Pieces and old rows are held against the order that media_log.h
 * says, and against the row behind them.  Calls come last, if at all.
 */
extern const char *nvm_log_storages_problem(const NvmLogWalk *walk);

/* the same of what a record that nvm_log_next_record has returned contains */
extern const char *nvm_log_body_problem(const NvmLogRecord *record);

/*
 * A walk over the pieces of one row, and the row behind them; of a record that
 * nvm_log_storages_problem has passed.  `first` is the first piece, or the row if
 * it has none.  Each call returns the next item; the last one is the row, after
 * which there are no more calls.
 */
typedef struct NvmLogPieces
{
	const char *at;				/* the next item, or `end` */
	const char *end;			/* of the items of its section */
} NvmLogPieces;

extern void nvm_log_pieces_begin(NvmLogPieces *pieces, const NvmLogRow *first);
extern const NvmLogRow *nvm_log_pieces_next(NvmLogPieces *pieces);

/* the row that `first` leads to */
extern const NvmLogRow *nvm_log_pieces_row(const NvmLogRow *first);

#endif							/* NVM_VERIFY_LOG_H */
