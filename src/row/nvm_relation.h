/*-------------------------------------------------------------------------
 *
 * nvm_relation.h
 *	  A table's storage as its rows are reached through: relation.c, sound.c,
 *	  index_identity.c.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_RELATION_H
#define NVM_RELATION_H

#include "postgres.h"

#include "btree/nvm_btree_identity.h"
#include "pool/nvm_pool.h"
#include "pool/nvm_sound.h"
#include "utils/rel.h"
#include "wbl/nvm_snapshot.h"

/*
 * State of a relation's storage, cached in rd_amcache (dropped by the
 * relcache at any invalidation).  This is the one entry to nvm data.  It
 * checks that the pool is open, and settles in-doubt transactions.  It
 * refuses what is not supported, with a clear ERROR, and finds the directory
 * entry of rel's current relfilenumber.
 */
typedef struct NvmRelCache
{
	NvmRelState *state;
	uint32		dir;
	uint64		indexes_proven; /* see nvm_indexes_prove */
	uint64		indexes_exchanged;	/* see nvm_indexes_exchange */
	bool		indexes_deferred;	/* one of these may be checked at COMMIT */
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
		NVM_ENTRIES_OURS,		/* into the pool alone, or nowhere that lasts */
		NVM_ENTRIES_OTHERS		/* also to others, whose pages WAL protects */
	}			entries;
} NvmRelCache;

extern NvmRelCache *nvm_rel_cache_slow(Relation rel);
extern void nvm_rel_cache_drop(Relation rel);

extern bool nvm_relation_is_nvm(Relation rel);

/*
 * Do tables of this access method have their rows with us?  Whatever its name is;
 * calls no handler.
 */
extern bool nvm_access_method_is_ours(Oid am);

/* Is it nvm_vlog or nvm_cmdlog, by the same means? */
extern bool nvm_access_method_is_in_memory(Oid am);

/* is rel a table whose rows are yet to come from the log? */
extern bool nvm_table_is_being_rebuilt(Relation rel);

/*
 * Have it true of access methods with this handler, a function of this library,
 * too.  Names without directory and suffix, which are not copied.  In the
 * postmaster, by a test's library.
 */
extern PGDLLEXPORT void nvm_access_method_register(const char *library, const char *handler);

/*
 * For a backend that is about to do anything but read with one MVCC snapshot:
 * it may keep references to versions, which ends what nvm_snapshot.h is about.
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
struct RelOptInfo;
extern void nvm_indexes_prove_planned(Oid relid, struct RelOptInfo *rel);

extern bool nvm_indexes_exchange_slow(Relation rel);
extern void nvm_indexes_fetched_slow(Relation rel);

static inline void
nvm_indexes_prove(Relation rel)
{
	if (unlikely(nvm_rel_cache(rel)->indexes_proven != nvm_index_generation))
		nvm_indexes_prove_slow(rel);
}

/*
 * Whoever comes by indexes of rel after this has our routine in those that say btree
 * and are ours (btree/btree_identity.c), if they are open.
 */
static inline void
nvm_indexes_exchange(Relation rel)
{
	NvmRelCache *cache = (NvmRelCache *) rel->rd_amcache;

	if (unlikely(cache == NULL || cache->indexes_exchanged != nvm_index_generation))
		nvm_indexes_exchange_slow(rel);
}

/*
 * Before a look at a row for a deferred constraint gives up the table: see
 * nvm_index_hold_deferred.
 */
static inline void
nvm_indexes_fetched(Relation rel)
{
	NvmRelCache *cache = (NvmRelCache *) rel->rd_amcache;

	if (unlikely(cache == NULL || cache->indexes_exchanged != nvm_index_generation ||
				 cache->indexes_deferred))
		nvm_indexes_fetched_slow(rel);
}

static inline NvmRelState *
nvm_rel(Relation rel)
{
	return nvm_rel_cache(rel)->state;
}

/*
 * For a backend that asks for sizes only, or reads by the rules of
 * nvm_snapshot_use.
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

#endif							/* NVM_RELATION_H */
