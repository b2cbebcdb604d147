/*-------------------------------------------------------------------------
 *
 * nvm_table.h
 *	  The table access method: what its files share.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_TABLE_H
#define NVM_TABLE_H

#include "postgres.h"

#include "access/htup_details.h"
#include "access/tableam.h"
#include "executor/tuptable.h"
#include "pool/nvm_pool.h"
#include "pool/nvm_sound.h"
#include "utils/rel.h"
#include "utils/snapshot.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_snapshot.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"

/*
 * Lock classes, in the order in which they may be taken (row/README.md has
 * the whole list): row lock of a root's block, then allocation lock of a
 * block, then the relation's extend lock.  Never two of one class.
 */
#define NVM_LOCK_PARTITIONS		1024

typedef struct NvmTableShared
{
	LWLockPadded *row_locks;	/* [NVM_LOCK_PARTITIONS] */
	LWLockPadded *alloc_locks;	/* [NVM_LOCK_PARTITIONS] */
} NvmTableShared;

extern NvmTableShared *NvmTable;

/* the named tranche that pg_nvm.c requests for nvm_table_num_lwlocks() locks */
#define NVM_TABLE_TRANCHE		"nvm_table"

extern Size nvm_table_shmem_size(void);
extern int	nvm_table_num_lwlocks(void);
extern void nvm_table_shmem_startup(void);
extern void nvm_table_register(void);	/* table ops for wbl, hooks; in _PG_init */

static inline LWLock *
nvm_row_lock(uint32 dir, uint32 blkno)
{
	return &NvmTable->row_locks[(dir * 31 + blkno) % NVM_LOCK_PARTITIONS].lock;
}

static inline LWLock *
nvm_alloc_lock(uint32 dir, uint32 blkno)
{
	return &NvmTable->alloc_locks[(dir * 31 + blkno) % NVM_LOCK_PARTITIONS].lock;
}

/* ---- relation (relation.c) ---- */

/*
 * State of a relation's storage, cached in rd_amcache (dropped by the relcache
 * at any invalidation).  The one entry to nvm data: checks that the pool is
 * open, settles in-doubt transactions, refuses what is not supported with a
 * clear ERROR, and finds the directory entry of rel's current relfilenumber.
 */
typedef struct NvmRelCache
{
	NvmRelState *state;
	uint32		dir;
	bool		indexes_proven; /* see nvm_indexes_prove */
	/* indexed columns and those of keys, as bits of attribute numbers 1..63 */
	bool		attrs_known;
	bool		attrs_wide;		/* there are others: ask the relcache */
	uint64		index_attrs;
	uint64		key_attrs;
	/* where do the entries of new rows go? */
	enum
	{
		NVM_ENTRIES_UNKNOWN,
		NVM_ENTRIES_BEING_LEARNT,
		NVM_ENTRIES_OURS,		/* to nvm_btree alone, or nowhere that lasts */
		NVM_ENTRIES_OTHERS		/* also to others, whose pages WAL protects */
	}			entries;
} NvmRelCache;

extern NvmRelCache *nvm_rel_cache_slow(Relation rel);
extern void nvm_rel_cache_drop(Relation rel);

extern bool nvm_relation_is_nvm(Relation rel);

/*
 * For who is about to do anything but read with one MVCC snapshot: he may keep
 * references to versions, which ends what nvm_snapshot.h is about.
 */
static inline NvmRelCache *
nvm_rel_cache(Relation rel)
{
	nvm_snapshot_bar();
	if (likely(rel->rd_amcache != NULL))
		return (NvmRelCache *) rel->rd_amcache;
	return nvm_rel_cache_slow(rel);
}

/*
 * Index entries are about to be added for a new root of rel: see
 * nvm_xact_rests_on_wal.  May look at catalogs, and so invalidate the NvmRelCache;
 * no lock of ours is held.
 */
extern void nvm_note_entries_slow(Relation rel);

static inline void
nvm_note_entries(Relation rel)
{
	if (rel->rd_rel->relhasindex && nvm_rel_cache(rel)->entries != NVM_ENTRIES_OURS)
		nvm_note_entries_slow(rel);
}

/*
 * Before a row is written: ERROR if an index of rel is not what the pool says that
 * it is (index_identity.c).  May invalidate the relation's NvmRelCache.
 */
extern void nvm_indexes_prove_slow(Relation rel);
extern void nvm_index_identity_register_hook(void);	/* in _PG_init */

static inline void
nvm_indexes_prove(Relation rel)
{
	if (unlikely(!nvm_rel_cache(rel)->indexes_proven))
		nvm_indexes_prove_slow(rel);
}

static inline NvmRelState *
nvm_rel(Relation rel)
{
	return nvm_rel_cache(rel)->state;
}

/*
 * For who asks for sizes only, or reads by the rules of nvm_snapshot_use.
 */
static inline NvmRelState *
nvm_rel_reader(Relation rel)
{
	if (likely(rel->rd_amcache != NULL))
		return ((NvmRelCache *) rel->rd_amcache)->state;
	return nvm_rel_cache_slow(rel)->state;
}

static inline uint32
nvm_rel_nblocks(NvmRelState *state)
{
	return pg_atomic_read_u32(&state->nblocks);
}

/* ---- first look at a block (sound.c) ---- */

/*
 * Before anything of a block is believed: verify it, if nobody has in this run of
 * the server.  ERROR if the area at `off`, or, if that is 0, anything in the block, is
 * damaged.  Caller holds no lock, or may go on with what is not verified.
 */
extern void nvm_block_prove_slow(Relation rel, NvmRelState *state, uint32 blk, uint32 off);

static inline void
nvm_block_prove(Relation rel, NvmRelState *state, uint32 blk, uint32 off)
{
	if (likely(blk < nvm_rel_nblocks(state)) &&
		unlikely(!nvm_unit_is_sound(nvm_block(state, blk))))
		nvm_block_prove_slow(rel, state, blk, off);
}

/* the same for CLUSTER and VACUUM FULL, whose rows have the relation's columns */
extern void nvm_block_prove_for_copy(Relation rel, NvmRelState *state, uint32 blk, uint32 off);

/* the same before space is handed out: false, with a WARNING, if it must not be */
extern bool nvm_block_prove_for_space(Relation rel, NvmRelState *state, uint32 blk);

/* ---- versions (version.c) ---- */

extern void nvm_ref_damaged(NvmRelState *state, uint64 ref) __attribute__((noreturn));

/*
 * The version, or what was one, that a link leads to.  ERROR if it leads out of
 * the relation, as a damaged one may.
 */
static inline NvmVersion *
nvm_ref_version(NvmRelState *state, uint64 ref)
{
	if (unlikely(NVM_REF_BLOCK(ref) >= nvm_rel_nblocks(state) ||
				 NVM_REF_OFFSET(ref) >= NVM_CELLS))
		nvm_ref_damaged(state, ref);
	return nvm_cell(state, NVM_REF_BLOCK(ref), NVM_REF_OFFSET(ref));
}


/*
 * Guard of a walk along next or link, which may lead in a circle where they are
 * damaged: zeroed before the walk, and told of each step.  Chains are short,
 * mostly, so that the first steps are not looked at.
 */
#define NVM_CHAIN_UNGUARDED		1023

typedef struct NvmChainGuard
{
	uint64		steps;
	uint64		limit;			/* steps at which `met` is replaced */
	uint64		met;			/* a TID that the walk has come through, or 0 */
} NvmChainGuard;

extern bool nvm_chain_circles_slow(NvmChainGuard *guard, uint64 ref);
extern void nvm_chain_damaged(NvmRelState *state, uint64 ref) __attribute__((noreturn));

static inline bool
nvm_chain_circles(NvmChainGuard *guard, uint64 ref)
{
	return unlikely(++guard->steps > NVM_CHAIN_UNGUARDED) &&
		nvm_chain_circles_slow(guard, NVM_REF_TID(ref));
}

/* the same with an ERROR */
static inline void
nvm_chain_guard(NvmRelState *state, NvmChainGuard *guard, uint64 ref)
{
	if (unlikely(nvm_chain_circles(guard, ref)))
		nvm_chain_damaged(state, ref);
}

#define NvmVersionTuple(v)		((HeapTupleHeader) &(v)->tuple)
static inline void
nvm_store(uint64 *p, uint64 value)
{
	__atomic_store_n(p, value, __ATOMIC_RELEASE);
}

/* is (blk, off) the start of an area of an initialised block? */
extern bool nvm_tid_exists(NvmRelState *state, uint32 blk, uint32 off);

/* its begin word, or 0 if it is free or retired; needs no lock, but a snapshot */
extern uint64 nvm_tid_begin(NvmRelState *state, uint32 blk, uint32 off);


/* do length and checksum fit?  Only of what is a version: others are stubs, or
 * keep something else where a version has its xids */
extern bool nvm_version_is_sound(const NvmVersion *v);
extern void nvm_version_damaged(Relation rel, uint32 blk, uint32 off) __attribute__((noreturn));

/* of a stamp that cannot be */
extern bool nvm_version_stays(const NvmVersion *v);
extern void nvm_stamp_damaged(const NvmVersion *v, const char *which, uint64 stamp) __attribute__((noreturn));

/* ---- visibility (visibility.c) ---- */

/*
 * Does `snapshot` see the version?  Lock-free.  Serves MVCC, SELF, ANY, DIRTY
 * (fills snapshot->xmin/xmax/speculativeToken), TOAST and NON_VACUUMABLE
 * snapshots.  What it accepts on another transaction's word is durable when it
 * returns.  rel, if not NULL, is told to SSI.
 */
extern bool nvm_version_visible(Relation rel, NvmVersion *v, Snapshot snapshot);

/* as HeapTupleSatisfiesUpdate; caller holds the root's row lock.  On a result
 * other than TM_Ok / TM_Invisible *xwait is the xid to blame. */
extern TM_Result nvm_version_satisfies_update(NvmVersion *v, CommandId curcid,
											  TransactionId *xwait);

typedef enum NvmEndState
{
	NVM_END_NONE,				/* not ended, or by who aborted */
	NVM_END_OWN,
	NVM_END_IN_PROGRESS,
	NVM_END_COMMITTED
} NvmEndState;

extern NvmEndState nvm_version_end_state(NvmVersion *v, TransactionId *xend);

typedef enum NvmVacuumState
{
	NVM_VAC_DEAD,				/* dead to everybody, durably */
	NVM_VAC_RECENTLY_DEAD,
	NVM_VAC_LIVE,
	NVM_VAC_INSERT_IN_PROGRESS,
	NVM_VAC_DELETE_IN_PROGRESS,
	NVM_VAC_STUB,				/* root whose first versions are unlinked */
	NVM_VAC_DEAD_ROOT,			/* waits for VACUUM to clean the indexes */
	NVM_VAC_RETIRED,			/* waits for readers */
	NVM_VAC_FREE
} NvmVacuumState;

struct GlobalVisState;

/*
 * *xid: the inserter or deleter in progress, or the deleter of a dead one
 * (FrozenTransactionId if that is long past); Invalid with NVM_VAC_DEAD means
 * that the version never existed (aborted, or in a gap).
 */
extern NvmVacuumState nvm_version_vacuum_state(NvmVersion *v,
											   struct GlobalVisState *vistest,
											   TransactionId *xid);

/* ---- chains (chain.c) ---- */

/*
 * The version of the row with root `root` that snapshot sees, or NULL.  Lock-
 * free.  Sets *tid.  all_dead, if not NULL, is set when the whole row is
 * durably dead to everybody (the index may kill its entry).  rel, if not NULL,
 * is told to SSI, and the version found is locked.
 */
extern NvmVersion *nvm_chain_search(Relation rel, NvmRelState *state,
									uint64 root, Snapshot snapshot,
									ItemPointer tid, bool *all_dead);

/*
 * Walk every version of the row with root `root`, oldest first: *pos is zeroed
 * before the first call, and pos->ref becomes the TID (hi 0) of the version
 * returned; NULL at the end.  Skips a stub.  Lock-free.
 */
typedef struct NvmChainPos
{
	uint64		ref;
	NvmChainGuard guard;
} NvmChainPos;

extern NvmVersion *nvm_chain_next(NvmRelState *state, uint64 root, NvmChainPos *pos);

/*
 * Unlink what is dead to everybody; caller holds the root's row lock and has a
 * stamp (nvm_xact_stamp(); without one nothing is done): what is unlinked is
 * reusable only when that transaction's stores are durable.  Returns false if
 * the whole row is dead now (root became DEAD or RETIRED).
 *
 * With a batch (nvm_space.h) versions are unlinked now and retired when the
 * caller flushes it, which must be before the row lock is released.
 */
typedef struct NvmRetireBatch NvmRetireBatch;
extern bool nvm_chain_prune(NvmRelState *state, uint64 root,
							struct GlobalVisState *vistest,
							NvmRetireBatch *batch, int *nremoved);

/*
 * Does a running, or prepared, transaction hold a lock on the row?  Caller
 * holds the row lock.
 */
extern bool nvm_row_is_locked(NvmVersion *root);

/* ---- space (space.c) ---- */

/*
 * An area for a version of `cells` cells.  Prefers block `near` (InvalidBlock
 * Number: none).  Returns the address, sets *blk, *off; the area is marked
 * used, begin is 0 or a RETIRED stamp until the caller stores it last.
 * May ERROR (disk_full).
 */
extern NvmVersion *nvm_space_alloc(Relation rel, NvmRelCache *cache, uint32 cells,
								   bool root, BlockNumber near,
								   uint32 *blk, uint32 *off);

/* free reclaimable areas of a block (RETIRED beyond the horizon, stub tails);
 * caller holds the alloc lock.  Returns cells that are free now. */
extern uint32 nvm_space_reclaim(NvmRelState *state, NvmBlock *block);

/* VACUUM tells what it found: reset once at its start, then note each block */
extern void nvm_space_note_reset(NvmRelState *state);
extern void nvm_space_note(NvmRelState *state, uint32 blk, uint32 free_cells);

/* ---- estimates (storage_stats.c) ---- */

typedef struct NvmStorageEstimate
{
	uint64		live;			/* rows */
	uint64		dead;			/* versions that VACUUM or time takes away */
	uint64		suspect;		/* rows that there is room for in SUSPECT blocks */
} NvmStorageEstimate;

extern void nvm_storage_estimate(NvmRelState *state, NvmStorageEstimate *estimate);
extern void nvm_storage_tell_stats(Relation rel, NvmRelState *state);

/* ---- slots (slot.c) ---- */

extern const TupleTableSlotOps TTSOpsNvm;

/* store a version in a slot made with TTSOpsNvm: zero-copy, no pin: valid as
 * long as the snapshot that found it, or until the transaction ends */
extern void nvm_slot_store(TupleTableSlot *slot, Relation rel, NvmVersion *v,
						   uint32 blk, uint32 off);

/* the slot's contents were just written as v: sets tts_tid and tts_tableOid,
 * and gives it v's system columns */
extern void nvm_slot_written(TupleTableSlot *slot, Relation rel, NvmVersion *v,
							 uint32 blk, uint32 off);

/* ---- large values (large.c, large_form.c) ---- */

/*
 * Make a heap tuple from slot that fits a block: detoasts external values,
 * compresses and moves out the largest ones as needed.  Values moved out are
 * written already, in *large.  *tofree is set if the tuple was allocated here;
 * otherwise it is the slot's or even lies in the pool: do not write to it.
 */
typedef struct NvmLargeSet NvmLargeSet;
extern HeapTuple nvm_form_tuple(Relation rel, TupleTableSlot *slot,
								bool *tofree, NvmLargeSet **large);
/* now that the TID is known: name the owner in the large headers and flush
 * them; before the version's begin is stored.  Their stamp stays the writing
 * transaction's, also if begin is another one's (nvm_raw_insert): while it runs
 * the collector does not miss the version. */
extern void nvm_large_assign(NvmLargeSet *large, NvmVersion *v, uint32 blk, uint32 off);
/* give back the extents of a version that is being freed; caller holds
 * the alloc lock of the version's block */
extern void nvm_large_release(NvmRelState *state, NvmVersion *v);
extern bool nvm_large_is_kept(NvmRelState *state, const NvmVersion *v);
/* allocation failed after nvm_form_tuple */
extern void nvm_large_discard(NvmLargeSet *large);
/* detoasted values for a slot: see slot.c */
extern Datum nvm_large_datum(Datum stored, MemoryContext cxt);

/* ---- modification (insert.c, update.c, delete.c, rowlock.c, undo.c) ---- */

extern void nvm_tuple_insert(Relation rel, TupleTableSlot *slot, CommandId cid,
							 int options, struct BulkInsertStateData *bistate);
extern void nvm_tuple_insert_speculative(Relation rel, TupleTableSlot *slot,
										 CommandId cid, int options,
										 struct BulkInsertStateData *bistate,
										 uint32 specToken);
extern void nvm_tuple_complete_speculative(Relation rel, TupleTableSlot *slot,
										   uint32 specToken, bool succeeded);
extern void nvm_multi_insert(Relation rel, TupleTableSlot **slots, int nslots,
							 CommandId cid, int options,
							 struct BulkInsertStateData *bistate);
extern TM_Result nvm_tuple_delete(Relation rel, ItemPointer tid, CommandId cid,
								  Snapshot snapshot, Snapshot crosscheck, bool wait,
								  TM_FailureData *tmfd, bool changingPart);
extern TM_Result nvm_update(Relation rel, ItemPointer otid, TupleTableSlot *slot,
							CommandId cid, Snapshot snapshot, Snapshot crosscheck,
							bool wait, TM_FailureData *tmfd,
							LockTupleMode *lockmode, bool *new_root);
extern TM_Result nvm_tuple_lock(Relation rel, ItemPointer tid, Snapshot snapshot,
								TupleTableSlot *slot, CommandId cid,
								LockTupleMode mode, LockWaitPolicy wait_policy,
								uint8 flags, TM_FailureData *tmfd);
extern void nvm_undo_range(NvmUndoKind kind, uint32 dir, uint32 blk,
						   uint16 off_first, uint16 off_last,
						   NvmStamp stamp, TransactionId xid);
extern uint32 nvm_collect_block(uint32 dir, uint32 blk);
extern void nvm_collect_large(uint32 dir);

/*
 * Copy a version with its stamps and xids into rel as a row of its own, for
 * VACUUM FULL and CLUSTER, which must keep what old snapshots see.
 */
extern void nvm_raw_insert(Relation rel, HeapTuple tuple, NvmVersion *from);

/* ---- scans, index access, build (scan.c, sample.c, indexfetch.c, bitmap.c,
 * indexbuild.c), vacuum.c, estimate.c: callbacks are declared
 * in am/nvm_am.h for the routine in tableam.c ---- */

#endif							/* NVM_TABLE_H */
