/*-------------------------------------------------------------------------
 *
 * nvm_btree_persist.h
 *	  Indexes of which a restart keeps the leaves, or nothing.
 *
 * README.md, "How much of an index is persistent".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_BTREE_PERSIST_H
#define NVM_BTREE_PERSIST_H

#include "btree/nvm_btree.h"
#include "btree/nvm_btree_state.h"
#include "pool/nvm_pool.h"
#include "storage/condition_variable.h"

typedef struct NvmIndexShared
{
	ConditionVariable rebuilt;	/* some index has left state BUILDING */
	pg_atomic_uint32 nabsent;	/* at most so many are not READY: a hint */
	pg_atomic_uint32 relaxed;	/* some index may be relaxed: a hint */
	struct Latch *rebuilder;	/* of the rebuilder; valid as long as the
								 * memory is */
} NvmIndexShared;

extern NvmIndexShared *NvmIndexes;

/* does the start empty the index, so that it has to be rebuilt? */
static inline bool
nvm_index_restarts_empty(uint32 dir, const NvmDirEntry *entry)
{
	return (entry->flags & NVM_DIR_REBUILT) != 0 ||
		pg_atomic_read_u32(&nvm_rel_index(&nvm_relstates[dir])->relaxed) != 0;
}

/* how many scans are counted at once in NvmDirEntry.uses */
#define NVM_INDEX_USES		16

/* ---- btree_persist.c ---- */

/*
 * Claim an index that is in state `from`.  False if it is in another one.  The
 * process that has claimed it calls done or abandon, the latter also when it
 * ends (PG_ENSURE_ERROR_CLEANUP).
 */
extern bool nvm_index_claim(NvmRelState *state, uint32 from);
extern void nvm_index_claim_done(NvmRelState *state);
extern void nvm_index_abandon(NvmRelState *state, uint32 to, uint32 failed);

/* persistence = none: an ABSENT index needs no rebuild, and never will */
extern void nvm_index_set_unused(NvmRelState *state);

/* wait until some index leaves state BUILDING, or a second; may ERROR */
extern void nvm_index_wait_changed(void);

/*
 * persistence = leaves: make the inner levels, unless another process has
 * since the start.  For nvm_index_cache_slow.  May ERROR: damaged, disk full.
 */
extern void nvm_index_walk_leaves(Relation index, NvmIndexCache *cache);

/* ---- btree_rebuild.c ---- */

/* are entries of older rows missing? */
static inline bool
nvm_index_is_absent(const NvmIndexCache *cache)
{
	uint32		state;

	if (likely(!cache->rebuilt))
		return false;
	state = pg_atomic_read_u32(&nvm_rel_index(cache->state)->state);
	pg_read_barrier();
	return state == NVM_INDEXSTATE_ABSENT || state == NVM_INDEXSTATE_BUILDING;
}

/*
 * Rebuild the index if it is ABSENT; nothing is done if another process was
 * faster.  The caller has locked it.  May ERROR.
 */
extern void nvm_index_rebuild(Relation index);

/*
 * Return when the index is whole; builds it if nobody does.  The caller has
 * locked it, and holds no LWLock.  May ERROR.
 */
extern void nvm_index_wait_slow(Relation index);

/*
 * For VACUUM.  It needs no whole index, but one into which no process enters
 * what it has read in the table before.  True: the index is absent, and nobody
 * begins to build it before release.  False: it is whole.
 */
extern bool nvm_index_hold_absent(Relation index);
extern void nvm_index_release_absent(uint32 dir);

static inline void
nvm_index_wait(Relation index)
{
	if (unlikely(nvm_index_is_absent(nvm_index_cache(index))))
		nvm_index_wait_slow(index);
}

/*
 * May another process have entered rows in the index that the current
 * transaction has just made?
 */
static inline bool
nvm_index_is_set(const NvmIndexCache *cache)
{
	uint32		state;

	if (likely(!cache->rebuilt))
		return false;
	state = pg_atomic_read_u32(&nvm_rel_index(cache->state)->state);
	pg_read_barrier();
	if (state == NVM_INDEXSTATE_NEW)
		return false;
	return state != NVM_INDEXSTATE_READY ||
		U64FromFullTransactionId(GetTopFullTransactionIdIfAny()) <
		pg_atomic_read_u64(&nvm_rel_index(cache->state)->xid);
}

/* one scan more */
extern void nvm_index_count_use(NvmIndexCache *cache);

/* ---- btree_relax.c ---- */

typedef enum NvmIndexRelax
{
	NVM_RELAX_AUTO,				/* where a fence is a sync */
	NVM_RELAX_ON,
	NVM_RELAX_OFF
} NvmIndexRelax;

extern int	nvm_index_relax_setting;

/*
 * The current transaction is about to split a leaf: relax the index if it has
 * done so often enough.  No lock is held but the relation's.
 */
extern void nvm_index_relax_by_split(NvmIndexCache *cache);

/*
 * For the rebuilder: have indexes durable again of which the transaction has
 * ended that had relaxed them.  True if some are left.  all: do not ask for that.
 */
extern bool nvm_index_end_relaxed(bool all);

/* ---- btree_rebuild_worker.c ---- */

extern int	nvm_index_rebuild_workers;

/* indexes have become absent since the start */
extern void nvm_index_rebuilder_wake(void);

/*
 * Keep room in the volatile region for its indexes that are absent.
 */
extern void nvm_index_claim_room(void);

extern PGDLLEXPORT void nvm_rebuilder_main(Datum main_arg);
extern PGDLLEXPORT void nvm_rebuild_worker_main(Datum main_arg);

#endif							/* NVM_BTREE_PERSIST_H */
