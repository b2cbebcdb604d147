/*-------------------------------------------------------------------------
 *
 * btree_persist.c
 *	  Indexes that are not whole after a restart: which process rebuilds
 *	  them; inner levels made from the leaves.
 *
 * README.md, "How much of an index is persistent".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_page.h"
#include "btree/nvm_btree_persist.h"
#include "btree/nvm_btree_state.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "portability/instr_time.h"
#include "storage/ipc.h"
#include "storage/predicate.h"
#include "storage/shmem.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

/* headers are asked for so many blocks ahead */
#define PREFETCH_BLOCKS		16

NvmIndexShared *NvmIndexes = NULL;

Size
nvm_btree_shmem_size(void)
{
	return MAXALIGN(sizeof(NvmIndexShared));
}

/*
 * In the postmaster, after the pool was opened.
 */
void
nvm_btree_shmem_startup(void)
{
	bool		found;

	NvmIndexes = ShmemInitStruct("nvm indexes", nvm_btree_shmem_size(), &found);
	if (found)
		return;
	ConditionVariableInit(&NvmIndexes->rebuilt);
	/* the rebuilder counts them */
	pg_atomic_init_u32(&NvmIndexes->nabsent, PG_UINT32_MAX);
	pg_atomic_init_u32(&NvmIndexes->relaxed, 1);
	NvmIndexes->rebuilder = NULL;
}

/* ---- claims ---- */

bool
nvm_index_claim(NvmRelState *state, uint32 from)
{
	return pg_atomic_compare_exchange_u32(&nvm_rel_index(state)->state, &from,
										  NVM_INDEXSTATE_BUILDING);
}

void
nvm_index_claim_done(NvmRelState *state)
{
	pg_write_barrier();
	pg_atomic_write_u32(&nvm_rel_index(state)->state, NVM_INDEXSTATE_READY);
	ConditionVariableBroadcast(&NvmIndexes->rebuilt);
}

/*
 * Back to the state that it was claimed in; failed: NVM_INDEXFAILED_*.
 */
void
nvm_index_abandon(NvmRelState *state, uint32 to, uint32 failed)
{
	pg_atomic_write_u32(&nvm_rel_index(state)->failed, failed);
	pg_write_barrier();
	pg_atomic_write_u32(&nvm_rel_index(state)->state, to);
	ConditionVariableBroadcast(&NvmIndexes->rebuilt);
}

void
nvm_index_set_unused(NvmRelState *state)
{
	uint32		from = NVM_INDEXSTATE_ABSENT;

	if (pg_atomic_compare_exchange_u32(&nvm_rel_index(state)->state, &from, NVM_INDEXSTATE_UNUSED))
		ConditionVariableBroadcast(&NvmIndexes->rebuilt);
}

void
nvm_index_wait_changed(void)
{
	(void) ConditionVariableTimedSleep(&NvmIndexes->rebuilt, 1000, PG_WAIT_EXTENSION);
}

/* ---- the leaves ---- */

typedef struct LeafLinks
{
	uint32		left;
	uint32		right;
	bool		leaf;			/* in use, and not unlinked */
} LeafLinks;

typedef struct LeafWalk
{
	Relation	index;
	NvmIndexCache *cache;
	uint32		nblocks;
	LeafLinks  *links;			/* of each block */
	uint32		first;
	uint32		nleaves;
} LeafWalk;

/*
 * Look at all blocks.  Nobody else uses the index, so pages are changed
 * without their locks.
 */
static void
look_at_blocks(LeafWalk *walk)
{
	NvmIndexCache *cache = walk->cache;
	uint32		first_free = 0;
	uint32		nfree = 0;

	for (uint32 blkno = 1; blkno < walk->nblocks; blkno++)
	{
		NvmIndexPage *page = nvm_index_page(cache->state, blkno);
		LeafLinks  *links = &walk->links[blkno];

		if ((blkno & 1023) == 0)
			CHECK_FOR_INTERRUPTS();
		if (blkno + PREFETCH_BLOCKS < walk->nblocks)
			__builtin_prefetch(nvm_index_page(cache->state, blkno + PREFETCH_BLOCKS));
		if (!nvm_index_is_page(cache, page, blkno))
			continue;
		if ((page->flags & NVM_INDEX_LIVE) == 0 || (page->flags & NVM_INDEX_LEAF) == 0)
		{
			page->flags = 0;
			page->safexid = 0;
			if (nfree++ == 0)
				first_free = blkno;
			continue;
		}
		if ((page->flags & NVM_INDEX_DELETED) != 0)
			continue;
		links->left = page->left;
		links->right = page->right;
		links->leaf = true;
		walk->nleaves++;
		if (page->left != NVM_INDEX_NONE)
			continue;
		if (walk->first != NVM_INDEX_NONE)
			nvm_index_damaged(walk->index, blkno, "a second leftmost leaf");
		walk->first = blkno;
	}
	if (walk->first == NVM_INDEX_NONE)
		nvm_index_damaged(walk->index, NVM_INDEX_ROOT_BLOCK(cache->meta->root),
						  "there is no leftmost leaf");
	pg_atomic_write_u32(&nvm_rel_index(cache->state)->hint_next, first_free);
	pg_atomic_write_u32(&nvm_rel_index(cache->state)->hint_free_blocks, nfree);
}

/*
 * A copy of the high key of a leaf: the first word of its base.
 */
static IndexTuple
leaf_high_key(LeafWalk *walk, uint32 blkno)
{
	NvmIndexPage *page = nvm_index_page(walk->cache->state, blkno);
	const uint16 *base = (const uint16 *) ((char *) page + NVM_INDEX_HEADER_SIZE);
	union
	{
		char		data[NVM_INDEX_PAGE_SIZE];
		uint64		force_align;
	}			buf;

	if (page->nbase < 1 || !nvm_index_take((char *) page, base[0], buf.data) ||
		!BTreeTupleIsPivot((IndexTuple) buf.data))
		nvm_index_damaged(walk->index, blkno, "its high key");
	return CopyIndexTuple((IndexTuple) buf.data);
}

/*
 * The leaf has, or lacks, no downlink that its flags tell of.  No lock: we
 * have claimed the index, and no other process enters it meanwhile.
 */
static void
settle_leaf_flags(LeafWalk *walk, uint32 blkno)
{
	NvmIndexPage *page = nvm_index_page(walk->cache->state, blkno);
	uint16		flags = page->flags & ~(NVM_INDEX_INCOMPLETE | NVM_INDEX_ROOT);

	if (walk->nleaves == 1)
		flags |= NVM_INDEX_ROOT;
	if (flags == page->flags)
		return;

	/* the other half of what the split's second step would have done */
	if ((page->flags & NVM_INDEX_INCOMPLETE) != 0 && page->right != NVM_INDEX_NONE)
		PredicateLockPageSplit(walk->index, blkno, page->right);
	page->flags = flags;
	nvm_flush(&page->flags, sizeof(page->flags));
	NVM_FAILPOINT("index-leaf-flags");
}

/*
 * Follow the right links.  No lock, as above.
 */
static void
follow_leaves(LeafWalk *walk)
{
	NvmIndexLoad *load = NULL;
	IndexTuple	low = NULL;
	uint32		left = NVM_INDEX_NONE;
	uint32		met = 0;

	if (walk->nleaves > 1)
		load = nvm_index_load_inner_begin(walk->index, walk->cache);
	for (uint32 blkno = walk->first; blkno != NVM_INDEX_NONE;)
	{
		LeafLinks  *links = &walk->links[blkno];

		CHECK_FOR_INTERRUPTS();
		if (blkno >= walk->nblocks || !links->leaf || links->left != left ||
			met++ == walk->nleaves)
			nvm_index_damaged(walk->index, left, "its right link");
		if (load != NULL)
			nvm_index_load_inner_add(load, blkno, low);
		settle_leaf_flags(walk, blkno);
		pg_atomic_write_u32(&nvm_rel_index(walk->cache->state)->done, met);

		if (low != NULL)
			pfree(low);
		low = links->right == NVM_INDEX_NONE ? NULL : leaf_high_key(walk, blkno);
		left = blkno;
		blkno = links->right;
	}
	if (met != walk->nleaves)
		nvm_index_damaged(walk->index, left, "leaves behind it are missing");
	if (load != NULL)
		nvm_index_load_inner_end(load);
	else
		nvm_store(&walk->cache->meta->root, NVM_INDEX_ROOT_MAKE(walk->first, 0));
	nvm_drain("index-leaves");
}

static void
walk_claimed(Relation index, NvmIndexCache *cache)
{
	NvmRelState *state = cache->state;
	MemoryContext context;
	MemoryContext oldcontext;
	instr_time	start;
	instr_time	duration;
	LeafWalk	walk;

	INSTR_TIME_SET_CURRENT(start);
	context = AllocSetContextCreate(CurrentMemoryContext, "nvm_btree leaves",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	memset(&walk, 0, sizeof(walk));
	walk.index = index;
	walk.cache = cache;
	walk.nblocks = pg_atomic_read_u32(&state->nblocks);
	walk.links = (LeafLinks *)
		MemoryContextAllocExtended(context, walk.nblocks * sizeof(LeafLinks),
								   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	look_at_blocks(&walk);
	pg_atomic_write_u32(&nvm_rel_index(state)->total, walk.nleaves);
	NVM_FAILPOINT("index-leaves-known");
	follow_leaves(&walk);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);

	INSTR_TIME_SET_CURRENT(duration);
	INSTR_TIME_SUBTRACT(duration, start);
	pg_atomic_write_u64(&nvm_rel_index(state)->usec, INSTR_TIME_GET_MICROSEC(duration));
	ereport(DEBUG1,
			(errmsg_internal("inner pages of index \"%s\" made from %u leaves in %.3f ms",
							 RelationGetRelationName(index), walk.nleaves,
							 INSTR_TIME_GET_MILLISEC(duration))));
}

static void
abandon_leaves(int code, Datum arg)
{
	nvm_index_abandon(&nvm_relstates[DatumGetUInt32(arg)], NVM_INDEXSTATE_NEW,
					  NVM_INDEXFAILED_ERROR);
}

/*
 * See nvm_btree_persist.h.
 */
void
nvm_index_walk_leaves(Relation index, NvmIndexCache *cache)
{
	NvmRelState *state = cache->state;

	while (pg_atomic_read_u32(&nvm_rel_index(state)->state) != NVM_INDEXSTATE_READY)
	{
		if (!nvm_index_claim(state, NVM_INDEXSTATE_NEW))
		{
			nvm_index_wait_changed();
			continue;
		}
		PG_ENSURE_ERROR_CLEANUP(abandon_leaves, UInt32GetDatum(cache->dir));
		{
			/* an index without root has no leaves */
			if (cache->meta->root != 0)
				walk_claimed(index, cache);
		}
		PG_END_ENSURE_ERROR_CLEANUP(abandon_leaves, UInt32GetDatum(cache->dir));
		nvm_index_claim_done(state);
	}
	ConditionVariableCancelSleep();
	pg_read_barrier();
}
