/*-------------------------------------------------------------------------
 *
 * btree_space.c
 *	  Blocks for pages of an index.
 *
 * A block is free if
 *	- it was never initialised (magic 0): a crash left it before others;
 *	- it is not LIVE, and was allocated in another incarnation, or given back
 *	  (safexid 0);
 *	- it is DELETED, unlinked, and nobody's snapshot is as old as safexid.
 * A process that wants it locks it and looks again.  How many VACUUM has
 * found, and where the next search begins, are hints in the storage's
 * NvmRelState.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "btree/nvm_btree_page.h"
#include "btree/nvm_btree_state.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_redo.h"
#include "pool/nvm_sound.h"
#include "utils/snapmgr.h"

/* headers looked at in one search */
#define SEARCH_LOOKS	64

/*
 * Lock-free, and then a hint.  heap: whose horizon counts, or NULL.
 */
static bool
block_is_free(const NvmIndexCache *cache, const NvmIndexPage *page, uint32 blkno,
			  Relation heap)
{
	uint16		flags = nvm_index_load16(&page->flags);
	uint64		safexid = nvm_index_load64(&page->safexid);

	if (!nvm_index_is_page(cache, page, blkno))
		return page->magic == 0;
	if ((flags & NVM_INDEX_LIVE) == 0)
		return safexid != NvmPool->incarnation;
	if ((flags & NVM_INDEX_DELETED) == 0)
		return false;
	return GlobalVisCheckRemovableFullXid(heap, FullTransactionIdFromU64(safexid));
}

/*
 * Make the locked page a new one: not live, allocated in this incarnation.
 */
static void
init_page(NvmIndexCache *cache, NvmIndexPage *page, uint32 blkno)
{
	page->dir = cache->dir;
	page->blkno = blkno;
	page->safexid = NvmPool->incarnation;
	page->left = NVM_INDEX_NONE;
	page->right = NVM_INDEX_NONE;
	page->level = 0;
	page->flags = 0;
	page->nbase = 0;
	page->base_upper = NVM_INDEX_PAGE_SIZE;
	page->norder = 0;
	page->order_inc = 0;
	page->epoch++;
	page->commit = NVM_INDEX_COMMIT(NVM_INDEX_TAIL(NVM_INDEX_PAGE_SIZE, 0), 0);
	page->check = nvm_index_check_word(cache->dir, blkno, page);

	/* a header that a crash tears has no magic number: as of a table's block */
	if (cache->persistence != NVM_INDEX_NOTHING)
		nvm_flush(page, NVM_INDEX_HEADER_SIZE);
	nvm_store32(&page->magic, NVM_INDEX_MAGIC);
	if (cache->persistence != NVM_INDEX_NOTHING)
		nvm_flush(page, NVM_INDEX_HEADER_SIZE);
}

/*
 * Take a free block, if it is still one.
 */
static bool
claim_block(NvmIndexCache *cache, uint32 blkno)
{
	NvmIndexPage *page = nvm_index_page(cache->state, blkno);
	uint64		version = nvm_index_begin(page);

	if (!block_is_free(cache, page, blkno, NULL) || !nvm_index_lock(page, version))
		return false;
	init_page(cache, page, blkno);

	/*
	 * it is ours from the first byte on, and nobody comes here before it is
	 * linked
	 */
	nvm_unit_set_sound(page);
	nvm_index_unlock(page, true);
	return true;
}

/*
 * A free block, or NVM_INDEX_NONE.  A search goes on where the last one
 * stopped.  When one has reached the end, there are no more searches until
 * VACUUM finds more blocks.
 */
static uint32
search_free(NvmIndexCache *cache)
{
	NvmRelState *state = cache->state;

	for (int i = 0; i < SEARCH_LOOKS; i++)
	{
		uint32		blkno;

		if (pg_atomic_read_u32(&nvm_rel_index(state)->hint_free_blocks) == 0)
			break;
		blkno = pg_atomic_fetch_add_u32(&nvm_rel_index(state)->hint_next, 1);
		if (blkno == 0)
			continue;
		if (blkno >= pg_atomic_read_u32(&state->nblocks))
		{
			pg_atomic_write_u32(&nvm_rel_index(state)->hint_free_blocks, 0);
			pg_atomic_write_u32(&nvm_rel_index(state)->hint_next, 0);
			break;
		}
		if (claim_block(cache, blkno))
			return blkno;
	}
	return NVM_INDEX_NONE;
}

/*
 * What was made of free blocks is allocated, durably: before a lane makes them
 * live.
 */
static void
drain_alloc(void)
{
	nvm_drain("btree-alloc");
}

/*
 * Make new blocks pages that are allocated and not live, so that no search takes
 * them for free: see nvm_storage_extend.
 */
static void
make_ready(NvmRelState *state, uint32 blk, uint32 n, void *arg)
{
	NvmIndexCache *cache = (NvmIndexCache *) arg;

	for (uint32 i = 0; i < n; i++)
	{
		NvmIndexPage *page = nvm_index_page(state, blk + i);

		nvm_index_lock_wait(page);
		init_page(cache, page, blk + i);
		nvm_index_unlock(page, true);
	}
	if (cache->persistence != NVM_INDEX_NOTHING)
		drain_alloc();
}

/*
 * One block more for the index, made ready or not: see nvm_storage_extend.
 */
static uint32
extend_index(Relation index, NvmIndexCache *cache, NvmReadyCallback ready)
{
	ErrorContextCallback context;
	uint32		blkno;

	context.previous = error_context_stack;
	context.callback = nvm_extend_context;
	context.arg = index;
	error_context_stack = &context;
	blkno = nvm_storage_extend(cache->state, ready, cache);
	error_context_stack = context.previous;
	return blkno;
}

uint32
nvm_index_alloc(Relation index, NvmIndexCache *cache)
{
	uint32		blkno;

	/* the lane that will link it: an error after this would lose the block */
	if (cache->persistence != NVM_INDEX_NOTHING)
		nvm_redo_prepare(nvm_rel_region(cache->state));
	blkno = search_free(cache);

	/*
	 * the process that makes the inner pages anew has given back as many, far
	 * from each other
	 */
	while (blkno == NVM_INDEX_NONE && cache->persistence == NVM_INDEX_LEAVES &&
		   pg_atomic_read_u32(&nvm_rel_index(cache->state)->state) == NVM_INDEXSTATE_BUILDING &&
		   pg_atomic_read_u32(&nvm_rel_index(cache->state)->hint_free_blocks) > 0)
	{
		CHECK_FOR_INTERRUPTS();
		blkno = search_free(cache);
	}
	if (blkno == NVM_INDEX_NONE)
		return extend_index(index, cache, make_ready);
	if (cache->persistence != NVM_INDEX_NOTHING &&
		!nvm_index_is_relaxed(cache->state))
		drain_alloc();
	return blkno;
}

uint32
nvm_index_extend(Relation index, NvmIndexCache *cache)
{
	return extend_index(index, cache, NULL);
}

void
nvm_index_free(NvmIndexCache *cache, uint32 blkno)
{
	NvmIndexPage *page = nvm_index_page(cache->state, blkno);

	nvm_index_lock_wait(page);
	Assert((page->flags & NVM_INDEX_LIVE) == 0);
	page->safexid = 0;
	nvm_index_unlock(page, true);

	/* a search finds it if it has not passed it */
	if (pg_atomic_read_u32(&nvm_rel_index(cache->state)->hint_next) > blkno)
		pg_atomic_write_u32(&nvm_rel_index(cache->state)->hint_next, blkno);
	pg_atomic_fetch_add_u32(&nvm_rel_index(cache->state)->hint_free_blocks, 1);
}

void
nvm_index_find_free(Relation index, NvmIndexCache *cache, Relation heap,
					uint32 *ndeleted, uint32 *nfree)
{
	NvmRelState *state = cache->state;
	uint32		nblocks = pg_atomic_read_u32(&state->nblocks);
	uint32		first = 0;

	*ndeleted = 0;
	*nfree = 0;
	for (uint32 blkno = 1; blkno < nblocks; blkno++)
	{
		NvmIndexPage *page = nvm_index_page(state, blkno);

		if ((blkno & 1023) == 0)
			CHECK_FOR_INTERRUPTS();
		if (block_is_free(cache, page, blkno, heap))
		{
			if (first == 0)
				first = blkno;
			(*nfree)++;
		}
		if (nvm_index_load16(&page->flags) & NVM_INDEX_DELETED)
			(*ndeleted)++;
	}
	pg_atomic_write_u32(&nvm_rel_index(state)->hint_next, first);
	pg_atomic_write_u32(&nvm_rel_index(state)->hint_free_blocks, *nfree);
}
