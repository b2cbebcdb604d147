/*-------------------------------------------------------------------------
 *
 * nvm_rebuild.h
 *	  Rows of a table that was lost are put back where their roots were
 *	  (rebuild.c).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_REBUILD_H
#define NVM_REBUILD_H

#include "postgres.h"

#include "media/media_block.h"
#include "media/media_log.h"
#include "pool/nvm_pool.h"
#include "wbl/nvm_wbl.h"

/*
 * Blocks of a storage that is being rebuilt, by one process; others may be at other
 * blocks.  No session comes to the storage.  The caller sees to it that it is not
 * reclaimed during a call (storage_lock), or not called any more.
 */
typedef struct NvmRebuild
{
	NvmRelState *state;			/* empty at the beginning */
	NvmStamp	begin;			/* what all versions get */
	pg_atomic_uint32 *next_overflow;	/* of all processes: block that nobody
										 * has taken yet for versions that do
										 * not fit where their root is; at the
										 * beginning the first one behind all
										 * roots */
	uint32		overflow;		/* the one that this process has taken, or
								 * InvalidBlockNumber */
	bool		is_short;		/* put off rows for which a new block would be
								 * made */
	int			nput_off;		/* by the last call of place: so many of its */
	uint8		put_off[NVM_CELLS]; /* rows, these */
	uint64		nrows;
	uint64		nmoved;			/* of these, that lie apart from their root */
	uint64		large_bytes;	/* of large values */
} NvmRebuild;

/*
 * A transaction that was prepared before the start, and has not ended, or had not when
 * the rebuild looked.
 */
typedef struct NvmRebuildBy
{
	NvmStamp	stamp;
	TransactionId xid;
	bool		makes_rows;		/* one that it has ended may go on as one of
								 * these */
} NvmRebuildBy;

/*
 * A row: as the last transaction that has committed left it, and what one that is
 * prepared makes of it.  At least one of them is there.  Each is what the log has: the
 * row, or the first piece of its large values (nvm_log_pieces_begin).
 */
typedef struct NvmRebuildRow
{
	const NvmLogRow *row;		/* or NULL; no tombstone */
	const NvmLogRow *pending;	/* or NULL; a tombstone only with `row` */
	const NvmRebuildBy *by;		/* of pending */
} NvmRebuildRow;

/*
 * What makes it impossible to put a row back, or NULL.  `first` is the row, or the first
 * piece of its large values (nvm_log_pieces_begin).  The row is not that of a
 * tombstone.
 */
extern const char *nvm_rebuild_row_problem(const NvmLogRow *first);

/*
 * Cells that a version of such a row takes.
 */
extern uint32 nvm_rebuild_row_cells(const NvmLogRow *first);

/*
 * Where to look for room for rows that were put off: before this block there is none for so
 * many cells.
 */
typedef struct NvmRebuildRoom
{
	uint32		from[NVM_CELLS];
} NvmRebuildRoom;

/*
 * In this order.  begin.  extend: make blocks `first` to `end` - 1, and those before them that
 * are not there, which others may get ready.  place: the rows of one block, by offset,
 * each once, and each as nvm_rebuild_row_problem takes it; all blocks up to that of the
 * last root are made.  place_late: one that was put off, when all others of the table are
 * placed, and no other process is at it; anywhere in the table, or in a block more.  end: all
 * are placed.  All but end may ERROR (no memory).
 */
extern void nvm_rebuild_begin(NvmRelState *state);
extern void nvm_rebuild_extend(NvmRelState *state, uint32 first, uint32 end);
extern void nvm_rebuild_place(NvmRebuild *rebuild, const NvmRebuildRow *row, int n);
extern void nvm_rebuild_place_late(NvmRebuild *rebuild, NvmRebuildRoom *room, const NvmLogRow *first);
extern void nvm_rebuild_end(NvmRelState *state);

/*
 * When the rows are there for everybody, and before anybody comes to them: row
 * locks of transactions that were prepared before the start (rowlock_prepared.c).
 * In a transaction.  May ERROR.
 */
extern void nvm_rebuild_row_locks(void);

/* the storages that they are about, perhaps more than once; in any state of these */
extern void nvm_rebuild_locked_storages(void (*note) (uint32 dir, void *arg), void *arg);

#endif							/* NVM_REBUILD_H */
