/*-------------------------------------------------------------------------
 *
 * pool_storage.c
 *	  A storage in use: opened for the first time, emptied, reclaimed.
 *
 * The storage belongs to a higher layer.  That layer has registered callbacks
 * for these steps (NvmRelUser).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "media/media_index.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/pool_impl.h"
#include "storage/block.h"
#include "verify/nvm_verify.h"

/* callbacks that row/ and btree/ registered, by kind */
static const NvmRelUser no_user = {0};
static const NvmRelUser *rel_users[NVM_DIR_KIND_INDEX + 1];

void
nvm_rel_register_user(uint32 kind, const NvmRelUser *user)
{
	Assert(kind > 0 && kind < lengthof(rel_users));
	rel_users[kind] = user;
}

const NvmRelUser *
nvm_rel_user(uint32 id)
{
	uint32		kind = nvm_dir_entry(id)->kind;

	if (kind >= lengthof(rel_users) || rel_users[kind] == NULL)
		return &no_user;
	return rel_users[kind];
}

/* ---- the first use ---- */

static bool
is_zero(const char *from, const char *to)
{
	return from == to || (*from == 0 && memcmp(from, from + 1, to - from - 1) == 0);
}

/*
 * Was the block made ready and never used?  Everything behind its header is
 * zero then, so that damage does not look like it.  For a table the answer is
 * no if the incarnation that made the block ready crashed: a cell may have
 * been handed out, of which nothing is left but an entry in an index that has
 * WAL.
 */
static bool
block_is_spare(uint32 kind, const char *unit)
{
	if (kind == NVM_DIR_KIND_TABLE)
	{
		const NvmBlock *block = (const NvmBlock *) unit;

		return block->magic == NVM_BLOCK_MAGIC && block->flags == 0 &&
			block->alloc_inc != 0 && !nvm_incarnation_crashed(block->alloc_inc) &&
			is_zero((const char *) block->retired, (const char *) block->used) &&
			block->used[0] == (1 << NVM_FIRST_CELL) - 1 &&
			is_zero((const char *) &block->used[1], unit + NVM_UNIT_SIZE);
	}
	else
	{
		const NvmIndexPage *page = (const NvmIndexPage *) unit;

		return page->magic == NVM_INDEX_MAGIC && page->safexid != 0 &&
			page->left == NVM_INDEX_NONE && page->right == NVM_INDEX_NONE &&
			page->level == 0 && page->flags == 0 && page->nbase == 0 &&
			is_zero(unit + NVM_INDEX_HEADER_SIZE, unit + NVM_UNIT_SIZE);
	}
}

/*
 * See nvm_pool.h.  Takes the relation's extend lock the first time in a run.
 */
NvmRelState *
nvm_rel_open(uint32 dir)
{
	NvmRelState *rel = &nvm_relstates[dir];

	if (pg_atomic_read_u32(&rel->opened) != 0)
		return rel;

	LWLockAcquire(nvm_rel_extend_lock(rel), LW_EXCLUSIVE);
	if (pg_atomic_read_u32(&rel->opened) == 0)
	{
		uint32		nextents = pg_atomic_read_u32(&rel->nextents);
		uint64		nblocks = nvm_rel_units(rel);
		uint32		kind = nvm_dir_entry(dir)->kind;

		while (nextents > 0)
		{
			uint32		units = nvm_extent_units(nextents - 1);
			char	   *start = nvm_unit_address(nvm_relmap_get(rel, nextents - 1));
			uint32		n = units;

			while (n > 0)
			{
				const char *unit = start + (Size) (n - 1) * NVM_UNIT_SIZE;

				if (nvm_block_was_used(kind, unit) && !block_is_spare(kind, unit))
					break;
				n--;
			}
			nblocks -= units - n;
			if (n > 0)
				break;
			nextents--;
		}
		/* the last extent may go beyond the last block that there can be */
		nblocks = Min(nblocks, MaxBlockNumber);
		if (nblocks > 0 && nvm_rel_user(dir)->opened != NULL)
			nvm_rel_user(dir)->opened(rel, (uint32) nblocks);
		pg_atomic_write_u32(&rel->nblocks, (uint32) nblocks);
		rel->had = nvm_dir_blocks_had(dir);
		pg_write_barrier();
		pg_atomic_write_u32(&rel->opened, 1);
	}
	LWLockRelease(nvm_rel_extend_lock(rel));
	return rel;
}

/* ---- emptying and reclaiming ---- */

static void
empty_large(uint64 unit, uint64 word, void *arg)
{
	nvm_large_free(unit * NVM_UNIT_SIZE);
}

/*
 * See nvm_pool.h.  Nobody else may use the storage.  The count is 0, durably,
 * before the first extent goes.  Table extents go from the last to the first,
 * each durably before the next.  So a crash leaves a shorter storage, never
 * one with a hole.
 */
void
nvm_dir_empty(uint32 id)
{
	NvmRelState *rel = &nvm_relstates[id];
	const NvmRelUser *user = nvm_rel_user(id);
	uint32		nextents = pg_atomic_read_u32(&rel->nextents);

	pg_atomic_write_u32(&rel->nblocks, 0);
	rel->nready = 0;
	rel->raise = 0;
	if (user->emptied != NULL)
		user->emptied(rel);
	pg_write_barrier();
	if (pg_atomic_read_u32(&rel->nlarge) > 0)
		nvm_extents_walk(NVM_EXT_LARGE, id, empty_large, NULL);
	if (nvm_dir_entry(id)->counted != 0)
	{
		LWLockAcquire(NvmPool->extent_lock, LW_EXCLUSIVE);
		nvm_dir_count(id, 0);
		LWLockRelease(NvmPool->extent_lock);
		nvm_drain("pool-empty-uncounted");
	}
	while (nextents > 0)
	{
		uint32		index = --nextents;

		NVM_FAILPOINT("pool-empty-extent");
		pg_atomic_write_u32(&rel->nextents, index);
		nvm_extent_release(nvm_relmap_get(rel, index), nvm_extent_units(index),
						   "table extent");
	}
	for (int k = 0; k < NVM_ALLVISIBLE_SEGS; k++)
	{
		if (rel->allvisible[k] != NULL)
			memset(rel->allvisible[k], 0, NVM_ALLVISIBLE_SIZE(k));
	}
	pg_atomic_write_u32(&rel->opened, 1);
}

/*
 * See nvm_pool.h.
 */
void
nvm_dir_reclaim(uint32 id)
{
	NvmRelState *rel = &nvm_relstates[id];
	NvmDirEntry *entry;

	LWLockAcquire(NvmPool->dir_lock, LW_EXCLUSIVE);
	if (rel->dir != id || rel->dir_state == NVM_DIRSTATE_RECLAIM)
	{
		LWLockRelease(NvmPool->dir_lock);
		return;
	}
	rel->dir_state = NVM_DIRSTATE_RECLAIM;
	LWLockRelease(NvmPool->dir_lock);

	entry = nvm_dir_entry(id);
	nvm_dir_empty(id);

	/* an error must not leave it half reclaimed for the rest of this run */
	START_CRIT_SECTION();
	LWLockAcquire(NvmPool->extent_lock, LW_EXCLUSIVE);
	for (int k = 0; k < NVM_RELMAP_SEGS; k++)
	{
		if (rel->map[k] != NULL)
			nvm_dram_free_locked(rel->map[k], sizeof(uint32) * (Size) 64 << k);
	}
	if (nvm_rel_user(id)->forgotten != NULL)
		nvm_rel_user(id)->forgotten(rel);
	for (int k = 0; k < NVM_ALLVISIBLE_SEGS; k++)
	{
		if (rel->allvisible[k] != NULL)
			nvm_dram_free_locked(rel->allvisible[k], NVM_ALLVISIBLE_SIZE(k));
	}
	LWLockRelease(NvmPool->extent_lock);

	LWLockAcquire(NvmPool->dir_lock, LW_EXCLUSIVE);
	nvm_dir_hash_remove(id);
	nvm_store(&entry->begin, 0);
	nvm_flush(&entry->begin, sizeof(entry->begin));
	nvm_drain("pool-dir-free");
	memset(rel, 0, sizeof(*rel));
	nvm_dram->dir_search = Min(nvm_dram->dir_search, id);
	LWLockRelease(NvmPool->dir_lock);
	END_CRIT_SECTION();
}
