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

#include "media/media_log.h"
#include "pool/nvm_pool.h"
#include "wbl/nvm_wbl.h"

/*
 * A storage that is being rebuilt.  Nobody else comes to it; the caller sees to it
 * that it is not reclaimed during a call (storage_lock), or not called any more.
 */
typedef struct NvmRebuild
{
	NvmRelState *state;			/* empty at the beginning */
	NvmStamp	begin;			/* what all versions get */
	uint32		overflow;		/* block for versions that do not fit where
								 * their root is; at the beginning the first
								 * one behind all roots */
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
 * In this order.  extend: make blocks up to `nblocks`, of which the last one has
 * rows; may be called for some at a time.  place: the rows of one block, by
 * offset, each once, and each as nvm_rebuild_row_problem takes it.  end: all are
 * placed.  extend and place may ERROR (no memory).
 */
extern void nvm_rebuild_extend(NvmRebuild *rebuild, uint32 nblocks);
extern void nvm_rebuild_place(NvmRebuild *rebuild, const NvmRebuildRow *row, int n);
extern void nvm_rebuild_end(NvmRebuild *rebuild);

/*
 * When the rows are there for everybody, and before anybody comes to them: row
 * locks of transactions that were prepared before the start (rowlock_prepared.c).
 * In a transaction.  May ERROR.
 */
extern void nvm_rebuild_row_locks(void);

#endif							/* NVM_REBUILD_H */
