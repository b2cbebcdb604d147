/*-------------------------------------------------------------------------
 *
 * vlog_impl.h
 *	  What the files of vlog/ share among themselves.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef VLOG_IMPL_H
#define VLOG_IMPL_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "log/nvm_log.h"
#include "row/nvm_rebuild.h"
#include "verify/nvm_verify_log.h"
#include "wbl/nvm_wbl.h"

/* a file of the log; mapped as long as the rebuild goes on */
typedef struct NvmVlogFile
{
	NvmLogName	name;
	uint64		checkpoint;		/* a data file: of this checkpoint, or 0 */
	uint32		part;
	const char *base;			/* NULL: not mapped */
	uint64		size;
} NvmVlogFile;

typedef enum NvmVlogVerdict
{
	NVM_VLOG_UNKNOWN,			/* pg_xact has to be asked */
	NVM_VLOG_COMMITTED,
	NVM_VLOG_ABORTED,
	NVM_VLOG_PREPARED			/* not decided yet */
} NvmVlogVerdict;

/* an ASK record */
typedef struct NvmVlogAsk
{
	uint64		xid;
	NvmLogPosition position;	/* where it begins */
	NvmVlogVerdict verdict;
	NvmRebuildBy by;			/* if it is prepared */
} NvmVlogAsk;

/* a row that is there: where its root is, and its newest version */
typedef struct NvmVlogRoot
{
	uint64		place;			/* NVM_VLOG_PLACE */
	const NvmLogRow *first;		/* in a file; or the first piece of its large
								 * values */
} NvmVlogRoot;

/* what a prepared transaction makes of a row */
typedef struct NvmVlogPending
{
	uint64		place;
	const NvmLogRow *first;		/* of its pieces, or the row itself */
	NvmVlogAsk *ask;
} NvmVlogPending;

/* directory entry, block, cell: 20, 32 and 8 bits */
#define NVM_VLOG_PLACE(dir, blk, off) \
	(((uint64) (dir) << 40) | ((uint64) (uint32) (blk) << 8) | (uint8) (off))
#define NVM_VLOG_PLACE_DIR(place)		((uint32) ((place) >> 40))
#define NVM_VLOG_PLACE_BLOCK(place)		((uint32) ((place) >> 8))

/*
 * A rebuild.  All arrays may exceed 1 GB.
 */
typedef struct NvmVlog
{
	MemoryContext context;
	const uint8 *uuid;			/* of the pool */
	uint32		generation;		/* that is being written */
	NvmLogPosition end;			/* all before it is read */
	const NvmLogCheckpoint *checkpoint; /* or NULL */

	/* vlog_files.c */
	NvmVlogFile *file;			/* of blocks, in order; then side files */
	int			nfiles;
	int			file_room;
	int			nblock_files;
	int			first_data;		/* data files of the checkpoint, in order */

	/* vlog_read.c */
	const NvmLogBlock **block;	/* all that count, in order */
	uint64		nblocks;
	uint64		block_room;
	NvmVlogAsk *ask;			/* in the order of the stream */
	uint64		nasks;
	uint64		ask_room;
	uint64		bytes;			/* of the stream and of side files */

	/* vlog_collect.c */
	uint64	   *creation;		/* of each table of the region, by directory
								 * id; 0: no such table */
	uint32		ndirs;
	NvmVlogRoot *root;			/* by place */
	uint64		nroots;
	NvmVlogPending *pending;	/* by place, each once */
	uint64		npending;
	uint64		pending_room;

	/* vlog_place.c */
	NvmStamp	stamp;			/* of all rows; 0: none yet */
	uint64		nrows;
	uint64		nmoved;
	uint32		ntables;
} NvmVlog;

/* ---- vlog_files.c ---- */

extern void nvm_vlog_find_files(NvmVlog *vlog);
extern const NvmVlogFile *nvm_vlog_map_side(NvmVlog *vlog, uint32 generation, uint64 number);
extern void nvm_vlog_unmap(NvmVlog *vlog);

/* name of a file without its directory, in memory of the current context */
extern char *nvm_vlog_file_name(const NvmVlogFile *file);

/* the file that an address lies in */
extern const NvmVlogFile *nvm_vlog_file_of(const NvmVlog *vlog, const void *address);

/* ERROR: this is wrong with a file */
extern void nvm_vlog_damaged(const NvmVlogFile *file, const char *problem) __attribute__((noreturn));

/* room for one more element in an array */
extern void *nvm_vlog_make_room(NvmVlog *vlog, void *array, uint64 n, uint64 *room, Size size);

/* ---- vlog_read.c, vlog_ask.c, vlog_collect.c, vlog_place.c: in this order ---- */

extern void nvm_vlog_read(NvmVlog *vlog);

/* the next record of a block that does not come before the checkpoint */
extern bool nvm_vlog_next_record(const NvmVlog *vlog, const NvmLogBlock *block, NvmLogWalk *walk,
								 const NvmLogRecord **record);
extern bool nvm_vlog_decide(NvmVlog *vlog);
extern void nvm_vlog_collect(NvmVlog *vlog);
extern void nvm_vlog_empty(void);
extern void nvm_vlog_place(NvmVlog *vlog);

/* ---- vlog_checkpoint_file.c ---- */

/* the file of the checkpoint that counts, or NULL.  ERROR if it is damaged. */
extern const NvmLogCheckpoint *nvm_vlog_read_checkpoint(void);

/* make this one count, durably; it has its data files behind it */
extern void nvm_vlog_switch_checkpoint(NvmLogCheckpoint *checkpoint);

extern void nvm_vlog_rows_path(char *path, uint64 checkpoint, uint32 part);

/* ---- vlog_walk.c: the data files of a checkpoint ---- */

/*
 * A checkpoint that is being made.
 */
typedef struct NvmVlogWalk
{
	uint64		number;
	NvmLogBegin begin;
	TimestampTz started;
	NvmLogSide *side;			/* of each data file */
	uint32		nfiles;
	uint32		file_room;
	uint64		rows;
	uint64		bytes;
	uint64		blocks;			/* looked at */
	uint64		blocks_total;	/* about so many */
} NvmVlogWalk;

/*
 * Write all rows, synced; may ERROR.  Then, or if the checkpoint is not made after
 * all, forget: close what is open.
 */
extern void nvm_vlog_walk(NvmVlogWalk *walk);
extern void nvm_vlog_walk_forget(void);

/* ---- vlog_retire.c: files that nobody needs ---- */

typedef struct NvmVlogRetired
{
	uint32		nlogs;
	uint32		nsides;
	uint32		nrows;
} NvmVlogRetired;

/* the highest number of a checkpoint that has data files, or 0 */
extern uint64 nvm_vlog_highest_checkpoint(void);

/* data files of other checkpoints than this one */
extern void nvm_vlog_retire_rows(uint64 keep, NvmVlogRetired *retired);

/*
 * begin->file is the one that is being written: make it the one that has
 * begin->begin.  May ERROR.
 */
extern void nvm_vlog_find_begin(NvmLogBegin *begin);

/*
 * The log before a checkpoint: files, and side files that records name which come
 * before it.  May ERROR.
 */
extern void nvm_vlog_retire_log(const NvmLogCheckpoint *checkpoint, NvmVlogRetired *retired);

/* side files of lost generations that no record names which was placed */
extern void nvm_vlog_retire_sides(const NvmVlog *vlog);

/* ---- vlog_checkpoint.c ---- */

extern bool nvm_vlog_has_checkpointer(void);

extern int	nvm_checkpoint_rate;
extern int	nvm_checkpoint_file_size;

/* what the view says of the running checkpoint */
extern void nvm_vlog_tell_progress(const NvmVlogWalk *walk);

/* ---- vlog_worker.c ---- */

/* look at signals: ends the process if it is to end.  No lock is held. */
extern void nvm_vlog_pause(void);

#endif							/* VLOG_IMPL_H */
