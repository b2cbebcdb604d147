/*-------------------------------------------------------------------------
 *
 * media_log.h
 *	  Layout of the log: files, blocks, records.
 *
 * The log is a stream of records in one order.  A record's place in it is a
 * position: a number of bytes that never goes back, over all files and
 * generations.  A generation is what one life of the volatile region has written.
 * Its stream begins where the one before it was cut, and that position stands in
 * the header of each of its files.
 *
 * A file is named by pool, generation and number (NVM_LOG_NAME).  Its first page
 * is its header; blocks follow, each from a sector on:
 *
 *	header | block | block | ... | zeroes
 *
 * A block is written once, as a whole: a header, records, zeroes up to the next
 * sector.  It has whole records.  It proves itself: by generation, position, the
 * chain to the block before it in the file, and its checksum.  What does not prove itself ends
 * the file.  src/log/README.md has the protocol.
 *
 * Only <stdint.h> is used here.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef MEDIA_LOG_H
#define MEDIA_LOG_H

#include <stdint.h>

#define NVM_LOG_MAGIC			UINT64_C(0x31474F4C4D564E50)	/* "PNVMLOG1" */
#define NVM_LOG_VERSION			5	/* 1: nothing brief, nothing packed; 2: no
									 * calls; 3: no old rows, no lanes of
									 * values; 4: no calls alone */
#define NVM_LOG_PAGE			4096	/* a file's header */
#define NVM_LOG_SECTOR			512 /* where blocks begin: what a disk writes
									 * as a whole */
#define NVM_LOG_FILE_SIZE		(UINT64_C(16) * 1024 * 1024)

/* first 4 bytes of the pool's uuid, generation, number from 1 on */
#define NVM_LOG_NAME			"%08x-%08x-%08x.log"
#define NVM_LOG_NAME_LENGTH		30

/* the first position of the first generation; 0 is none */
#define NVM_LOG_FIRST			4096

typedef struct NvmLogFileHeader
{
	uint64_t	magic;
	uint32_t	version;
	uint32_t	generation;
	uint8_t		uuid[16];		/* of the pool */
	uint64_t	start;			/* position at which the generation begins:
								 * the one before it counts up to here */
	uint64_t	first;			/* position of the file's first block */
	uint32_t	reserved;		/* zero, checked */
	uint32_t	number;			/* of the file in its generation, from 1 on */
	uint32_t	size;			/* of the file in bytes */
	uint32_t	crc;			/* CRC-32C over the struct, crc taken as 0 */
} NvmLogFileHeader;

#define NVM_LOG_FILE_HEADER_SIZE	64

#define NVM_LOG_BLOCK_MAGIC		0x4B424C4Eu /* "NLBK" */

typedef struct NvmLogBlock
{
	uint32_t	magic;
	uint32_t	generation;
	uint64_t	position;		/* of its first record */
	uint64_t	synced;			/* all before this position was on the medium
								 * when the block was written: a hole before
								 * it is damage */
	uint32_t	length;			/* of its records in bytes */
	uint32_t	chain;			/* checksum of the block before it in the
								 * file, or 0 */
	uint32_t	reserved;		/* zero, checked */
	uint32_t	crc;			/* CRC-32C over the pool's uuid, the struct,
								 * crc taken as 0, and the records */
} NvmLogBlock;

#define NVM_LOG_BLOCK_HEADER	40

/* records of one block, at most */
#define NVM_LOG_BLOCK_MAX		(256 * 1024)

/*
 * Records.  Lengths are multiples of 8.
 *
 *	COMMIT		the transaction has committed
 *	ASK			it has committed if an OUTCOME says so; without one, if pg_xact
 *				does
 *	OUTCOME		what became of the transaction of an ASK record with this xid
 *
 * A COMMIT or ASK record has the rows that the transaction has changed, by
 * storage: NvmLogStorage and its rows, over and over.  With NVM_LOG_SIDE they lie
 * in a file of their own, which NvmLogSide names.
 */
#define NVM_LOG_COMMIT			1
#define NVM_LOG_ASK				2
#define NVM_LOG_OUTCOME			3

/* NvmLogRecord.flags */
#define NVM_LOG_SIDE			0x0001	/* of COMMIT and ASK */
#define NVM_LOG_COMMITTED		0x0002	/* of OUTCOME; without it: aborted */
#define NVM_LOG_BRIEF			0x0004	/* of COMMIT without NVM_LOG_SIDE:
										 * there is no xid, the rest follows
										 * in its place */
#define NVM_LOG_CALLS			0x0008	/* of COMMIT and ASK, not brief: the
										 * last section is one of calls, or
										 * has the lanes of values */
#define NVM_LOG_ALONE			0x0010	/* with NVM_LOG_CALLS: there are
										 * calls, and nothing else says what
										 * became of rows of storages with
										 * NVM_DIR_COMMANDS */

typedef struct NvmLogRecord
{
	uint32_t	length;			/* with this header */
	uint16_t	kind;
	uint16_t	flags;
	uint64_t	number;			/* of the transaction, from 1 on in each
								 * generation: of two that changed a row the
								 * later has the higher one */
	uint64_t	xid;			/* full transaction id */
} NvmLogRecord;

#define NVM_LOG_RECORD_HEADER	24
#define NVM_LOG_RECORD_BRIEF	16	/* the same with NVM_LOG_BRIEF */

/*
 * The next storage, or the end, is at the next multiple of 8 behind its rows, with
 * zeroes between.  One storage may come several times.
 */
typedef struct NvmLogStorage
{
	uint32_t	dir;			/* directory entry */
	uint32_t	length;			/* of its rows in bytes, without this header:
								 * a multiple of 4 */
	uint64_t	creation;		/* the entry's creation_id */
} NvmLogStorage;

#define NVM_LOG_STORAGE_HEADER	16

/*
 * Or shorter, if all of it fits: one word in place of `dir` and `length`, then the
 * creation id.  The word has NVM_LOG_BRIEF_STORAGE, which no `dir` has.
 */
typedef struct NvmLogBriefStorage
{
	uint32_t	word;
	uint32_t	creation;
} NvmLogBriefStorage;

#define NVM_LOG_BRIEF_HEADER	8
#define NVM_LOG_BRIEF_STORAGE	0x80000000u
#define NVM_LOG_BRIEF_DIRS		(1u << 18)
#define NVM_LOG_BRIEF_LENGTHS	(1u << 15)	/* bytes of rows, below this */
#define NVM_LOG_BRIEF_WORD(dir, length) \
	(NVM_LOG_BRIEF_STORAGE | (uint32_t) (length) / 4 << 18 | (uint32_t) (dir))
#define NVM_LOG_BRIEF_DIR(word)		((uint32_t) (word) & (NVM_LOG_BRIEF_DIRS - 1))
#define NVM_LOG_BRIEF_LENGTH(word)	(((uint32_t) (word) & ~NVM_LOG_BRIEF_STORAGE) >> 18 << 2)

/*
 * One row, by the TID of its root: its newest version, or that it is gone.  The
 * tuple follows from its infomask2 on (NvmTupleHeader), padded to 4 bytes.  If it has
 * values outside of the block (HEAP_HASEXTERNAL), the offsets in it mean nothing here:
 * the values are in the pieces before the row.
 */
typedef struct NvmLogRow
{
	uint32_t	block;
	uint16_t	offset;
	uint16_t	length;			/* of what follows, unpadded; 0: the row is
								 * gone */
	uint32_t	xmin;			/* of the version */
} NvmLogRow;

#define NVM_LOG_ROW_HEADER		12

/*
 * In NvmLogRow.length: what follows is packed.  It is the length of the tuple, in two
 * bytes, and the tuple as PostgreSQL's pglz has compressed it.  Only a row without
 * large values is.
 */
#define NVM_LOG_PACKED			0x8000
#define NVM_LOG_PACKED_HEADER	2
/* the part of a tuple that a row has not: up to infomask2 */
#define NVM_LOG_TUPLE_SKIPS		18

/*
 * A piece of a large value: an item with the form of a row, and NVM_LOG_PIECE in its
 * offset.  Block and offset name the root of the row that it belongs to.  `xmin` says
 * of which attribute it is, and which piece of that value, from 0 on.  `length` bytes
 * follow, padded to 4.  What the pieces of a value have, one behind the other, is the
 * value as it is stored: a varlena with a header of 4 bytes.
 *
 * The pieces of all values of a row come just before the row: attributes in their
 * order, nothing between but the header of another section of the same storage.
 * The first of them is the first item of its section, whose header is not the brief
 * one.  So who knows where that is finds the others, and the row.
 */
#define NVM_LOG_PIECE			0x8000	/* in NvmLogRow.offset */
#define NVM_LOG_PIECE_MAX		16384	/* bytes of a piece */

/* xmin of a piece */
#define NVM_LOG_PIECE_WORD(attribute, number) \
	(((uint32_t) (attribute) << 20) | (uint32_t) (number))
#define NVM_LOG_PIECE_ATTRIBUTE(xmin)	((uint32_t) (xmin) >> 20)
#define NVM_LOG_PIECE_NUMBER(xmin)		((uint32_t) (xmin) & 0xFFFFF)

/*
 * An old row: an item with the form of a row, and NVM_LOG_OLD in its offset.  Block and
 * offset name the root of the row that it belongs to.  It says what that row was before
 * the transaction, for who finds it elsewhere than under this root: its checksum in 8
 * bytes (nvm_version_checksum with the table's Oid, as of a row that is there), then the
 * tuple as a row has it, or nothing if the table has no key.  `length` is that of both; it
 * is never packed.  The offsets of values outside of the block mean nothing, and there
 * are no pieces of them: the checksum covers them.
 *
 * Records without calls have them, for rows of nvm_cmdlog tables that were there before the
 * transaction: for one that is gone (length 0) always, for one that is there only if the table
 * has no key.  No other record has any, nor has a data file.  What a table's key was
 * counts as the transaction wrote: if it had none at one of its writes, it has none.
 *
 * It comes just before the first item of its row.  If that is the row, both lie in one
 * section; if it is a piece, which begins a section, the old row is the last item of the
 * section before, of the same storage.  A row that comes several times has its old row each time.
 */
#define NVM_LOG_OLD				0x4000	/* in NvmLogRow.offset */

#define NVM_LOG_OLD_HEADER		8	/* bytes of the checksum */

/*
 * The calls that have made what the record says of rows of nvm_cmdlog tables, or, with
 * NVM_LOG_ALONE, what it does not say: a section that is no storage's.  Its `dir` is NVM_LOG_CALLS_DIR, its creation id the database.
 * NvmLogCalls comes first, then `length` bytes of *parts*, then zeroes.
 *
 * A part is a byte that says its kind, and numbers and bytes as listed.  A number has 7
 * bits in each byte, the lowest first, and 0x80 in each byte but its last; a signed one
 * is doubled, or, if it is negative, its complement is, plus 1.
 *
 *	LANES		how many, and each as the difference to the one before it, ascending; none:
 *				the calls hold all lanes.  The first part, once
 *	SETTINGS	of the calls from here on: role; how many, and of each its number
 *				(NVM_LOG_SETTING_...), its length, its text.  One that is not there has the
 *				value that verify_calls.c lists, or that of the database's LC_CTYPE.  Before
 *				the first call
 *	CALL		function; statement's timestamp, signed, less the transaction's; collation;
 *				how many arguments, and each as a value
 *	TAPE		of the call before it: function, and its result as a value
 *	VALUES		NVM_LOG_LANES_... as a number; how many lanes, and each as those of LANES.
 *				There are no calls: the transaction has written rows of nvm_cmdlog tables by
 *				values, and these are the lanes that it held to do so.  The only part;
 *				`checksum` and `rows` are 0
 *
 * A value is its type; its length plus 1, or 0: it is NULL; its bytes.  They are the Datum
 * as PostgreSQL has it in memory: of a type that is passed by value its lowest bytes, as
 * many as give it back when the sign is extended; of a varlena what follows its header,
 * not compressed; of a cstring what comes before its end.
 *
 * Arrays of six types (verify_calls.c has their Oids) may be packed.  Of these the length
 * is doubled, before 1 is added to it, and is 1 more if the value is packed.  Its bytes
 * are then its elements, each as a signed number.  It has none of them, or one dimension
 * that begins at 1; no NULL.
 */
#define NVM_LOG_CALLS_DIR		0	/* no directory entry has this number */

typedef struct NvmLogCalls
{
	uint64_t	checksum;		/* sum of the checksums of the rows, which
								 * depend on the table and what they contain
								 * alone */
	int64_t		timestamp;		/* of the transaction: microseconds since
								 * 2000-01-01 */
	uint32_t	rows;			/* that were made, changed or deleted */
	uint32_t	length;			/* of the parts in bytes */
} NvmLogCalls;

#define NVM_LOG_CALLS_HEADER	24

#define NVM_LOG_PART_LANES		1
#define NVM_LOG_PART_SETTINGS	2
#define NVM_LOG_PART_CALL		3
#define NVM_LOG_PART_TAPE		4
#define NVM_LOG_PART_VALUES		5

/* of VALUES */
#define NVM_LOG_LANES_ALL		0x01	/* all of them; none is listed */
#define NVM_LOG_LANES_SHARED	0x02	/* lane 0: it has written shared
										 * tables */

#define NVM_LOG_CALL_MAX_ARGS	100
#define NVM_LOG_LANES			65536	/* lanes are below this, and not 0 */

#define NVM_LOG_SETTING_SEARCH_PATH			1
#define NVM_LOG_SETTING_TIMEZONE			2
#define NVM_LOG_SETTING_DATESTYLE			3
#define NVM_LOG_SETTING_INTERVALSTYLE		4
#define NVM_LOG_SETTING_LC_MONETARY			5
#define NVM_LOG_SETTING_LC_NUMERIC			6
#define NVM_LOG_SETTING_LC_TIME				7
#define NVM_LOG_SETTING_FLOAT_DIGITS		8
#define NVM_LOG_SETTING_BYTEA_OUTPUT		9
#define NVM_LOG_SETTING_XMLBINARY			10
#define NVM_LOG_SETTING_XMLOPTION			11
#define NVM_LOG_SETTING_STANDARD_STRINGS	12
#define NVM_LOG_SETTING_BACKSLASH_QUOTE		13
#define NVM_LOG_SETTING_ARRAY_NULLS			14
#define NVM_LOG_SETTING_NULL_EQUALS			15
#define NVM_LOG_SETTING_QUOTE_ALL			16
#define NVM_LOG_SETTING_REPLICATION_ROLE	17
#define NVM_LOG_SETTING_ROW_SECURITY		18
#define NVM_LOG_SETTING_TOAST_COMPRESSION	19
#define NVM_LOG_SETTING_GIN_LIMIT			20
#define NVM_LOG_SETTING_ABBREVIATIONS		21
#define NVM_LOG_SETTING_PLPGSQL_CONFLICT	22
#define NVM_LOG_SETTING_PLPGSQL_ASSERTS		23
#define NVM_LOG_SETTING_PLPGSQL_WARNINGS	24
#define NVM_LOG_SETTING_PLPGSQL_ERRORS		25
#define NVM_LOG_SETTINGS					25	/* the last one */
#define NVM_LOG_SETTING_MAX					8192	/* bytes of one's text */

/*
 * A side file, named by the number of its transaction (NVM_LOG_SIDE_NAME): a
 * page with NvmLogFileHeader, whose `number` is 0, then `length` bytes of storages
 * and rows.
 */
#define NVM_LOG_SIDE_NAME		"%08x-%08x-%016llx.side"

typedef struct NvmLogSide
{
	uint64_t	length;
	uint32_t	crc;			/* CRC-32C over the pool's uuid and the bytes */
	uint32_t	reserved;		/* zero, checked */
} NvmLogSide;

#define NVM_LOG_SIDE_SIZE		16

/*
 * A checkpoint: the rows of all tables, in data files, and a small file that says
 * which and from where on the log is needed.  That one has the same name always
 * (NVM_LOG_CHECKPOINT_NAME) and is replaced as a whole: NvmLogCheckpoint, then an
 * NvmLogSide for each data file, then an NvmLogSnapshot if storages with
 * NVM_DIR_COMMANDS were walked: their rows are what this snapshot shows.
 *
 * A data file (NVM_LOG_ROWS_NAME: pool, checkpoint, part from 1 on) is as a side
 * file: a page with NvmLogFileHeader, whose `number` is 0, then storages and rows.  A
 * storage may come several times, a row once.  No row is gone.
 */
#define NVM_LOG_CHECKPOINT_NAME		"%08x.checkpoint"
#define NVM_LOG_ROWS_NAME			"%08x-%016llx-%08x.rows"
#define NVM_LOG_CHECKPOINT_MAGIC	UINT64_C(0x31504B434D564E50)	/* "PNVMCKP1" */
#define NVM_LOG_CHECKPOINT_VERSION	2	/* 1: without snapshot; so is what has
										 * none */

typedef struct NvmLogCheckpoint
{
	uint64_t	magic;
	uint32_t	version;
	uint32_t	generation;		/* of the log file that has `begin` */
	uint8_t		uuid[16];		/* of the pool */
	uint64_t	number;			/* from 1 on, each one higher */
	uint64_t	begin;			/* the log is needed from this position on */
	uint64_t	decided;		/* position up to which everything was decided
								 * before the first row was looked at, but for
								 * ASK records behind `begin` */
	uint64_t	end;			/* no row is newer than this position */
	uint64_t	rows;
	uint64_t	bytes;			/* of storages and rows */
	int64_t		started;		/* microseconds since 2000-01-01 */
	int64_t		finished;
	uint32_t	file;			/* number of the log file that has `begin` */
	uint32_t	nfiles;			/* data files */
	uint32_t	snapshot;		/* bytes of NvmLogSnapshot, with its xids; 0:
								 * there is none */
	uint32_t	crc;			/* CRC-32C over the struct, crc taken as 0,
								 * and what follows */
} NvmLogCheckpoint;

#define NVM_LOG_CHECKPOINT_SIZE	112
#define NVM_LOG_CHECKPOINT_FILES	(1024 * 1024)	/* at most */

/*
 * A snapshot, in full xids of transactions, subtransactions not among them: it shows
 * those below xmin, and those below xmax that are none of the `nxip` ones that follow,
 * ascending.
 */
typedef struct NvmLogSnapshot
{
	uint64_t	xmin;
	uint64_t	xmax;
	uint64_t	creations;		/* storages with this creation id, or a higher
								 * one, were made later */
	uint32_t	nxip;
	uint32_t	reserved;		/* zero, checked */
} NvmLogSnapshot;

#define NVM_LOG_SNAPSHOT_SIZE	32
#define NVM_LOG_SNAPSHOT_XIDS	(1024 * 1024)	/* at most */

/*
 * What a clean stop keeps of UNLOGGED tables, which have no records: a data file for each
 * that has rows (NVM_LOG_KEPT_ROWS_NAME: pool, incarnation that has written it, creation id),
 * as those of a checkpoint, and a small file that says which, NVM_LOG_KEPT_NAME: NvmLogKept,
 * then an NvmLogKeptFile for each.  It counts for the run that follows the one of this nonce.
 */
#define NVM_LOG_KEPT_NAME			"%08x.kept"
#define NVM_LOG_KEPT_ROWS_NAME		"%08x-%08x-%016llx.kept"
#define NVM_LOG_KEPT_MAGIC			UINT64_C(0x3150454B4D564E50)	/* "PNVMKEP1" */
#define NVM_LOG_KEPT_VERSION		1

typedef struct NvmLogKept
{
	uint64_t	magic;
	uint32_t	version;
	uint32_t	incarnation;	/* of the pool, when it was written */
	uint8_t		uuid[16];		/* of the pool */
	uint64_t	nonce;			/* of the pool, in that incarnation */
	uint32_t	nfiles;
	uint32_t	crc;			/* CRC-32C over the struct, crc taken as 0,
								 * and what follows */
} NvmLogKept;

#define NVM_LOG_KEPT_SIZE		48

typedef struct NvmLogKeptFile
{
	uint64_t	creation;		/* of the storage whose rows it has */
	uint32_t	incarnation;	/* in its name: an earlier stop may have
								 * written it */
	uint32_t	reserved;		/* zero, checked */
	NvmLogSide	side;
} NvmLogKeptFile;

#define NVM_LOG_KEPT_FILE_SIZE	32
#define NVM_LOG_KEPT_FILES		(1024 * 1024)	/* at most */

#endif							/* MEDIA_LOG_H */
