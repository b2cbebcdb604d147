/*-------------------------------------------------------------------------
 *
 * poolcheck.h
 *	  What the files of nvm_poolcheck share.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef POOLCHECK_H
#define POOLCHECK_H

#include "postgres_fe.h"

#include "common/logging.h"
#include "verify/nvm_verify.h"

/* exit status, as pg_amcheck's */
#define POOLCHECK_SOUND		0
#define POOLCHECK_FAILED	1	/* could not be checked */
#define POOLCHECK_DAMAGED	2

/* the pool file; pool_file.c and pool_open.c are what the server does */
typedef struct PoolFile
{
	char		path[MAXPGPATH];
	int			fd;
	uint64		size;
	char	   *base;			/* mapping, NULL until then */
	NvmPoolHeader copy[2];
	const char *problem[2];		/* of the copies */
} PoolFile;

/* what the map has of a storage */
typedef struct PoolStorage
{
	uint32	   *unit;			/* of each extent, 0: missing */
	uint32		nextents;		/* how many there are */
	uint32		room;			/* of unit[] */
	bool		exists;			/* a directory entry says so */
} PoolStorage;

/* what a slot says, as the next start will understand it */
typedef struct PoolSlot
{
	uint64		last;			/* the counter handed out last, or more */
	uint64		loser;			/* that the stop has left undecided, or 0 */
	uint64		doubt;			/* that pg_xact decides, or 0 */
	bool		torn;			/* and its data may have been cut short */
	uint64		gap[NVM_SLOT_GAPS];
	bool		unknown;		/* neither copy can be read */
} PoolSlot;

/*
 * A pool, seen as the next start will see it: with the incarnation that it will
 * begin, the stamps that it will take for losers, and redo lanes applied.
 */
typedef struct Pool
{
	NvmImage	image;
	NvmPoolHeader header;		/* with the list of crashed incarnations as it
								 * will be */
	bool		clean;
	uint32		incarnation;
	uint16		marks;			/* of that incarnation's run-time marks; 0: it
								 * forgets all there are */

	PoolStorage *storage;		/* [NVM_MAX_DIRS] */
	uint32		last_storage;
	uint32		dir_units[NVM_DIR_EXTENTS];
	uint32		ndir_extents;
	uint32		redo_unit;
	uint64		used_units;
	PoolSlot   *slot;			/* [NVM_MAX_SLOTS] */
	uint32		nslots;
	bool		gaps;			/* is there any? */

	/* sums, for --describe */
	uint32		ntables;
	uint32		nindexes;
} Pool;

/* options */
extern bool verbose;
extern bool show_progress;

/* ---- poolcheck_report.c ---- */

/* findings, one a line on standard output */
extern void found(const char *place, const char *fmt,...) pg_attribute_printf(2, 3);
extern void found_emit(void *arg, const char *place, const char *problem);
extern uint64 findings(void);

/* what the next start repairs; said with --verbose */
extern void will_be_repaired(const char *place, const char *fmt,...) pg_attribute_printf(2, 3);

extern void progress_begin(uint64 units);
extern void progress(uint64 units);
extern void progress_end(void);

/* ---- poolcheck_file.c ---- */

/* ends the program if the pool cannot be read, or is in use */
extern void pool_file_open(PoolFile *file, const char *dir, const char *name);

/* false if there is nothing more to check */
extern bool pool_file_header(PoolFile *file, NvmPoolHeader *header);
extern void pool_file_map(PoolFile *file, uint64 bytes);
extern void pool_make_writable(const Pool *pool, uint64 place, uint64 length, bool on);

/* ---- poolcheck_scan.c ---- */

extern void pool_scan(Pool *pool, const NvmPoolHeader *header, char *base);
extern NvmDirEntry *pool_dir_entry(const Pool *pool, uint32 id);
extern bool pool_stamp_in_gap(const Pool *pool, uint64 stamp);
extern bool pool_stamp_in_doubt(const Pool *pool, uint64 stamp);

/* ---- poolcheck_storage.c ---- */

/* the blocks of the storages; unit_of a block that exists */
extern void pool_check_storages(Pool *pool);
extern char *pool_block(const Pool *pool, uint32 id, uint32 blkno);

/* ---- poolcheck_index.c ---- */

extern void pool_check_index(Pool *pool, uint32 id, uint32 nblocks);

#endif							/* POOLCHECK_H */
