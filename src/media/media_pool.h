/*-------------------------------------------------------------------------
 *
 * media_pool.h
 *	  On-media layout of the pool file: header, extent map, directory.
 *
 * Only <stdint.h> is used here, so that standalone tools and the layout
 * freeze test compile it.  Everything that refers to a place in the pool is
 * an offset from the start of the file, never a pointer.
 *
 * The pool is one file, a sequence of chunks of NVM_CHUNK_SIZE bytes.  Each
 * chunk begins with the extent map of its own units, one 8-byte word a unit
 * of NVM_UNIT_SIZE bytes.  Chunk 0 carries in addition the two copies of the
 * pool header and the commit slots:
 *
 *	chunk 0:	 0 .. 64 kB		extent map of chunk 0
 *				64 .. 68 kB		pool header, copy 0
 *				68 .. 72 kB		pool header, copy 1
 *				72 .. 128 kB	zero, reserved
 *			   128 kB .. 2176 kB commit slots (media_slot.h)
 *				then units that can be allocated
 *	chunk n:	 0 .. 64 kB		extent map of chunk n
 *				then units that can be allocated
 *
 * An extent is a run of units inside one chunk.  It is described by the map
 * word of its first unit; the words of its other units are zero.  A word of
 * zero that no extent covers is a free unit.  Allocation is therefore the
 * store of one word, and release is the store of a zero: there is no state
 * between the two that a crash could leave.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef MEDIA_POOL_H
#define MEDIA_POOL_H

#include <stdint.h>

#define NVM_POOL_MAGIC			UINT64_C(0x314C4F4F504D564E)	/* "NVMPOOL1" */
#define NVM_POOL_VERSION		1	/* what this code writes */
#define NVM_POOL_MIN_VERSION	1	/* the oldest code that may open it */

#define NVM_LINE_SIZE			64
#define NVM_UNIT_SIZE			8192
#define NVM_CHUNK_SIZE			(UINT64_C(64) * 1024 * 1024)
#define NVM_UNITS_PER_CHUNK		((uint32_t) (NVM_CHUNK_SIZE / NVM_UNIT_SIZE))	/* 8192 */
#define NVM_MAP_UNITS			(NVM_UNITS_PER_CHUNK * 8 / NVM_UNIT_SIZE)	/* 8 */

#define NVM_HEADER_OFFSET(i)	(UINT64_C(65536) + (uint64_t) (i) * 4096)
#define NVM_SLOTS_OFFSET		UINT64_C(131072)
#define NVM_MAX_SLOTS			16384
#define NVM_SLOT_SIZE			128
/* first allocatable unit of chunk 0: (128 kB + 16384 * 128) / 8 kB */
#define NVM_CHUNK0_FIRST_UNIT	272

/*
 * The volatile region has no header.  Its unit numbers begin at a fixed one.  Its
 * first chunk has the extent map, then its commit slots, whose numbers follow
 * those of the pool.
 */
#define NVM_REGION_UNITS		(UINT64_C(1) << 31)
#define NVM_VOLATILE_SLOT		NVM_MAX_SLOTS	/* number of the first one */
#define NVM_SLOT_NUMBERS		(2 * NVM_MAX_SLOTS)
#define NVM_VOLATILE_FIRST_UNIT	264

/* Feature bits a pool may need; unknown ones in incompat refuse the open */
#define NVM_FEATURE_COUNTED		1	/* NvmDirEntry.counted is in use */
#define NVM_FEATURES_INCOMPAT	NVM_FEATURE_COUNTED /* what this code knows,
													 * and enters */

#define NVM_CRASHED_LIST		32

/*
 * Pool header.  Two copies are written in turn, each with sequence and
 * checksum; the valid one of the higher sequence counts.  The checksum is
 * CRC-32C over the whole struct with crc taken as 0.
 */
typedef struct NvmPoolHeader
{
	uint64_t	magic;
	uint32_t	version;
	uint32_t	min_version;
	uint64_t	sequence;		/* raised at each write of the header */
	uint64_t	system_identifier;	/* pg_control's */
	uint8_t		uuid[16];		/* made at creation; salts every check */
	uint64_t	features_compat;
	uint64_t	features_incompat;
	uint64_t	nchunks;		/* chunks in use; the file is at least this
								 * long */
	uint32_t	incarnation;	/* raised at each open for use, never 0 */
	uint32_t	clean;			/* 1: closed by a clean shutdown */
	uint64_t	wal_position;	/* insert position at the last clean close, or
								 * redo point known at open: binds pool and
								 * data dir */
	uint32_t	unit_size;
	uint32_t	chunk_units;
	uint32_t	max_slots;
	uint32_t	pg_major;		/* major version of the server that last
								 * opened */
	uint64_t	created;		/* PostgreSQL TimestampTz */
	uint64_t	device;			/* st_dev and st_ino of the pool file at the
								 * last */
	uint64_t	inode;			/* open: an unclean copy has others.  Inode 0:
								 * not recorded, not checked (crash images) */
	uint32_t	ncrashed;		/* entries of crashed[] in use */
	uint32_t	crashed_floor;	/* incarnations below this may all have
								 * crashed */
	uint32_t	crashed[NVM_CRASHED_LIST];	/* incarnations that ended in a
											 * crash */
	uint64_t	nonce;			/* drawn at each open; the incarnation file
								 * has the same */
	uint64_t	birth;			/* birth time of the file in ns, 0 if unknown */
	uint64_t	xid_promise;	/* full transaction ids from here on are in no
								 * row written since the last clean start */
	uint64_t	data_inode;		/* st_ino and birth time of the incarnation
								 * file at */
	uint64_t	data_birth;		/* the last open: a copy of the data directory
								 * has others.  0: not recorded */
	uint32_t	marks_era;		/* run-time marks in the pool, which carry the
								 * low 16 bits of an incarnation, are of
								 * incarnations with these high ones */
	uint32_t	log_generation; /* of the log that was begun last; 0: the pool
								 * has none (media_log.h) */
	uint32_t	log_file;		/* number of the file of that generation that
								 * was begun last */
	uint8_t		reserved[12];	/* zero, checked */
	uint32_t	reserved2;		/* zero, checked */
	uint32_t	crc;
} NvmPoolHeader;

/*
 * The incarnation file, NVM_INCARNATION_FILE in the data directory: what the
 * data directory knows of its pool.  Two records of NVM_INCARNATION_SIZE
 * bytes are written in turn; the valid one of the higher sequence counts.
 * next_* announce an open that has begun; they are 0 once it is complete.
 *
 * Behind them, at NVM_PLACE_OFFSET, it says where the pool was; files of earlier
 * versions end there.  That is told to users, and nothing depends on it.
 */
#define NVM_INCARNATION_FILE	"pg_nvm_incarnation"
#define NVM_INCARNATION_MAGIC	UINT64_C(0x31434E494D564E50)	/* "PNVMINC1" */
#define NVM_INCARNATION_SIZE	512

/* NvmIncarnationRecord.severed: why the data directory has no pool any more */
#define NVM_SEVERED_NOT			0
#define NVM_SEVERED_STANDBY		1	/* it was a standby's */
#define NVM_SEVERED_BACKUP		2	/* it was restored from a base backup */
#define NVM_SEVERED_OLDER		3	/* it was an older copy */

/* NvmIncarnationRecord.bypassed: the server has run without the pool since */
#define NVM_BYPASSED_POOL		1	/* what the pool has in doubt ... */
#define NVM_BYPASSED_LOG		2	/* ... what the log has in doubt cannot be
									 * decided */

typedef struct NvmIncarnationRecord
{
	uint64_t	magic;
	uint64_t	sequence;
	uint64_t	system_identifier;
	uint8_t		uuid[16];		/* of the pool */
	uint64_t	nonce;			/* of the last complete open */
	uint64_t	next_nonce;
	uint32_t	incarnation;	/* of the last complete open */
	uint32_t	next_incarnation;
	uint16_t	severed;		/* NVM_SEVERED_* */
	uint8_t		bypassed;		/* NVM_BYPASSED_* */
	uint8_t		armed;			/* 1: in this incarnation the witness was
								 * there */
	uint32_t	crc;			/* CRC-32C over the struct, crc taken as 0 */
} NvmIncarnationRecord;

#define NVM_PLACE_MAGIC			UINT64_C(0x31434C50564D564E)	/* "NVMVPLC1" */
#define NVM_PLACE_OFFSET		(2 * NVM_INCARNATION_SIZE)
#define NVM_PLACE_LENGTH		1024

typedef struct NvmPlaceRecord
{
	uint64_t	magic;
	char		directory[NVM_PLACE_LENGTH];	/* absolute, zeroes behind it */
	uint32_t	reserved;		/* zero */
	uint32_t	crc;			/* CRC-32C over the struct, crc taken as 0 */
} NvmPlaceRecord;

/*
 * Extent map word
 *
 *	bits  0..11		check: CRC over the rest, the unit number and the uuid
 *	bits 12..14		kind
 *	bits 15..34		owner: directory id (20 bits); for NVM_EXT_LOCKS the number of
 *					the commit slot plus 1; 0 for NVM_EXT_DIR and NVM_EXT_REDO
 *	bits 35..58		argument (24 bits): for NVM_EXT_TABLE the extent's index in
 *					its storage, which fixes its size; for NVM_EXT_LARGE,
 *					NVM_EXT_LOCKS and NVM_EXT_REDO the number of units; for
 *					NVM_EXT_DIR the index
 *	bits 59..63		zero, reserved
 */
#define NVM_EXT_FREE			0
#define NVM_EXT_TABLE			1	/* blocks of a storage of any kind */
#define NVM_EXT_LARGE			2
#define NVM_EXT_DIR				3
#define NVM_EXT_LOCKS			4	/* NvmLockList, media_slot.h */
#define NVM_EXT_REDO			5	/* NvmRedoLane; one in a pool */

#define NVM_EXT_CHECK(w)		((uint32_t) ((w) & 0xFFF))
#define NVM_EXT_KIND(w)			((uint32_t) (((w) >> 12) & 0x7))
#define NVM_EXT_OWNER(w)		((uint32_t) (((w) >> 15) & 0xFFFFF))
#define NVM_EXT_ARG(w)			((uint32_t) (((w) >> 35) & 0xFFFFFF))

#define NVM_MAX_DIRS			(1 << 20)

/* Size schedule of table extents: 8 of each size, from 8 units to 1024 */
#define NVM_EXT_CLASSES			8
#define NVM_EXT_PER_CLASS		8
#define NVM_EXT_MIN_UNITS		8
#define NVM_EXT_MAX_UNITS		(NVM_EXT_MIN_UNITS << (NVM_EXT_CLASSES - 1))	/* 1024 */

#define NVM_DIR_EXTENT_UNITS	8	/* 64 kB, 512 entries */
#define NVM_DIRS_PER_EXTENT		512

/*
 * A large value's run of units; longer values are chained.  Two of the longest
 * fill a chunk.
 */
#define NVM_LARGE_MAX_UNITS		((NVM_UNITS_PER_CHUNK - NVM_MAP_UNITS) / 2) /* 4092: 32 MB */

/* an extent of a list of row locks; longer lists are chained */
#define NVM_LOCKS_MAX_UNITS		128 /* 1 MB, 65534 locks */

/*
 * Directory entry: one for each storage (relfilenumber) ever created and not
 * yet reclaimed.  begin and end are stamps, decided like those of versions.
 * An entry with begin == 0 is free.  begin is stored last when an entry is
 * made.  crc covers the fields marked (i), which never change.
 *
 * counted says how many extents of blocks the storage has at least, in its low
 * half, with a check of that in the high one; 0: nothing is known.  The count
 * is raised when an extent's map word is durable.  It is durably 0 before the
 * first extent is released.  Of a table of the volatile region it says how many
 * extents entries of indexes may lead to, and `uses` up to which block of the
 * last of these; if it is not there, all of them.  Of an index of that region it
 * is a hint of how many it has had.
 */
#define NVM_DIR_KIND_TABLE		1
#define NVM_DIR_KIND_INDEX		2	/* media_index.h */

#define NVM_DIR_UNLOGGED		0x0001
#define NVM_DIR_TEMP			0x0002
#define NVM_DIR_REBUILT			0x0004	/* an index that no restart keeps */
#define NVM_DIR_VOLATILE		0x0008	/* its extents are not in the pool */
#define NVM_DIR_LOGGED			0x0010	/* a volatile one that the log brings
										 * back */
#define NVM_DIR_COMMANDS		0x0020	/* a logged table whose transactions
										 * may be calls: a checkpoint has it
										 * as of one moment */
#define NVM_DIR_BTREE			0x0040	/* an index that says btree in the
										 * catalogs */

typedef struct NvmDirEntry
{
	uint64_t	end;
	uint32_t	database;		/* (i) */
	uint32_t	tablespace;		/* (i) 0: the database's default */
	uint64_t	relnumber;		/* (i) */
	uint64_t	creation_id;	/* (i) distinguishes uses of one relnumber */
	uint32_t	kind;			/* (i) */
	uint32_t	flags;			/* (i) NVM_DIR_* */
	uint32_t	relaxed;		/* of an index: not 0 if its contents may not
								 * be durable: the next start empties it */
	uint32_t	crc;			/* CRC-32C over the (i) fields, id and uuid */
	uint32_t	temp_owner;		/* (i) backend id of a temporary table */
	uint32_t	all_visible;	/* blocks in which VACUUM last found nothing
								 * but rows visible to everybody: for the
								 * planner */
	uint64_t	begin;			/* stored last when the entry is made */
	uint32_t	relation;		/* (i) of an index, as it was made:
								 * pg_class.oid */
	uint32_t	uses;			/* of an index: scans, roughly; a hint of
								 * which one to rebuild first.  Of a table of
								 * the volatile region: see counted */
	uint64_t	counted;
	uint64_t	clean;			/* of a table of the volatile region: blocks
								 * to which no index entry leads,
								 * NVM_CLEAN_RUN */
	uint32_t	clean_check;	/* checksum of that; stored behind it.  If it
								 * is wrong there is no such run */
	uint8_t		reserved[36];	/* zero, checked */
} NvmDirEntry;

#define NVM_DIR_ENTRY_SIZE		128

/* NvmDirEntry.clean: from block `first` to before `end`; 0: none */
#define NVM_CLEAN_RUN(first, end)	((uint64_t) (first) | (uint64_t) (end) << 32)
#define NVM_CLEAN_FIRST(run)	((uint32_t) (run))
#define NVM_CLEAN_END(run)		((uint32_t) ((run) >> 32))

#define NVM_DIR_COUNT(w)		((uint32_t) (w))	/* of counted */
#define NvmDirIsRelaxed(entry) \
	((entry)->kind == NVM_DIR_KIND_INDEX && (entry)->relaxed != 0)

/*
 * A redo lane: NVM_REDO_LANE_UNITS units of the extent of kind NVM_EXT_REDO.
 * It has `npieces` pieces, each with the place where its bytes are to be
 * stored.  The pieces follow the header, each from a multiple of 8 bytes on.
 * The lane counts while `word` is not 0.  `word` is stored when the rest is
 * durable.  Its high half is then NVM_REDO_MAGIC, its low half CRC-32C over
 * everything behind `word`, to the last byte of the last piece.
 */
#define NVM_REDO_MAGIC			0x4F444552u /* "REDO" */
#define NVM_REDO_LANES			16
#define NVM_REDO_LANE_UNITS		4
#define NVM_REDO_EXTENT_UNITS	(NVM_REDO_LANES * NVM_REDO_LANE_UNITS)	/* 512 kB */
#define NVM_REDO_PIECES			16

typedef struct NvmRedoPiece
{
	uint64_t	place;			/* pool offset */
	uint64_t	length;			/* bytes */
} NvmRedoPiece;

typedef struct NvmRedoLane
{
	uint64_t	word;			/* stored last; 0: the lane is empty */
	uint32_t	npieces;
	uint32_t	reserved;		/* zero, checked */
	NvmRedoPiece piece[NVM_REDO_PIECES];
} NvmRedoLane;

#define NVM_REDO_HEADER_SIZE	272
#define NVM_REDO_WORD(crc)		(((uint64_t) NVM_REDO_MAGIC << 32) | (uint32_t) (crc))

/*
 * A large value: the first unit(s) of an NVM_EXT_LARGE extent begin with this
 * header; the bytes of the value follow at once.  stamp is stored last.
 */
typedef struct NvmLargeHeader
{
	uint64_t	next;			/* pool offset of the next run of the value,
								 * or 0 */
	uint64_t	length;			/* bytes of the value in this run */
	uint64_t	total;			/* bytes of the whole value */
	uint32_t	owner_block;	/* TID of the owning version */
	uint16_t	owner_offset;
	uint16_t	attribute;		/* attribute number of the value */
	uint32_t	segment;		/* 0 for the first run */
	uint32_t	crc;			/* CRC-32C of the bytes in this run */
	uint8_t		reserved[16];	/* zero, checked */
	uint64_t	stamp;			/* writer, as in the version that owns it;
								 * stored last */
} NvmLargeHeader;

#endif							/* MEDIA_POOL_H */
