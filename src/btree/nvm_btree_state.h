/*-------------------------------------------------------------------------
 *
 * nvm_btree_state.h
 *	  What nvm_btree keeps in DRAM about the storage of an index.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_BTREE_STATE_H
#define NVM_BTREE_STATE_H

#include "pool/nvm_pool.h"

/* NvmIndexState.state, btree_rebuild.c and btree_persist.c */
#define NVM_INDEXSTATE_NEW		0	/* whole, or, where no more than leaves
									 * outlive a restart, nobody knows yet */
#define NVM_INDEXSTATE_ABSENT	1	/* emptied by the start: entries of older
									 * rows are missing */
#define NVM_INDEXSTATE_BUILDING 2	/* a builder is at it */
#define NVM_INDEXSTATE_READY	3	/* has been rebuilt since the start */
#define NVM_INDEXSTATE_UNUSED	4	/* emptied by the start, and nobody enters
									 * or looks for rows in this storage any
									 * more */

/* NvmIndexState.failed */
#define NVM_INDEXFAILED_NOT		0
#define NVM_INDEXFAILED_ERROR	1	/* the last attempt did */
#define NVM_INDEXFAILED_LEFT	2	/* the process that was at it was
									 * cancelled: it is a worker's turn */

/*
 * 0 when the storage is made.
 */
typedef struct NvmIndexState
{
	pg_atomic_uint32 relaxed;	/* btree_relax.c: no process sees to it that
								 * what it stores is durable */

	/* free pages, btree_space.c; advisory */
	pg_atomic_uint32 hint_next; /* rotating start of the search */
	pg_atomic_uint32 hint_free_blocks;

	/* an index that a restart does not keep whole */
	pg_atomic_uint32 state;		/* NVM_INDEXSTATE_* */
	pg_atomic_uint32 failed;	/* NVM_INDEXFAILED_* */
	pg_atomic_uint32 done;		/* blocks of the table, or leaves */
	pg_atomic_uint32 total;
	pg_atomic_uint64 usec;		/* what it took */
	pg_atomic_uint64 xid;		/* older transactions' rows may have their
								 * entries by the rebuild */
	pg_atomic_uint64 relaxer;	/* the process that has relaxed it:
								 * btree_relax.c */
} NvmIndexState;

StaticAssertDecl(sizeof(NvmIndexState) == NVM_REL_INDEX_SIZE, "size of NvmIndexState");

static inline NvmIndexState *
nvm_rel_index(NvmRelState *rel)
{
	return (NvmIndexState *) rel->index;
}

/*
 * An index in the volatile region, which was lost: have it rebuilt, once its table
 * is.  The caller empties it after that, and nobody else uses it.
 */
extern void nvm_index_lost_with_region(NvmRelState *rel);

/* in _PG_init, before the pool is opened */
extern void nvm_index_state_register(void);

#endif							/* NVM_BTREE_STATE_H */
