/*-------------------------------------------------------------------------
 *
 * btree_state.c
 *	  What becomes of the DRAM state of an index when the pool empties its
 *	  storage.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_state.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"

/*
 * The storage is being emptied.  Nobody else uses it.
 */
static void
index_emptied(NvmRelState *rel)
{
	NvmIndexState *index = nvm_rel_index(rel);

	pg_atomic_write_u32(&index->hint_next, 0);
	pg_atomic_write_u32(&index->hint_free_blocks, 0);
}

/*
 * The start is going to empty the index, which is to be rebuilt from its table.
 * In the postmaster.
 */
static void
index_lost_by_start(NvmRelState *rel, bool relaxed)
{
	NvmIndexState *index = nvm_rel_index(rel);

	if (relaxed)
		pg_atomic_write_u32(&index->relaxed, 1);
	/* who was at it, and left, has built another one */
	pg_atomic_write_u32(&index->failed, NVM_INDEXFAILED_NOT);
	pg_atomic_write_u32(&index->state, NVM_INDEXSTATE_ABSENT);
}

/*
 * See nvm_btree_state.h.
 *
 * The mark in the directory is for the death of a process while the index is not
 * rebuilt: memory is kept then, and half an index must not pass for a whole one.
 * A stored word is there for that start; where power fails, all of the region goes.
 * So nobody fences.  The rebuilder takes the mark back, as with a relaxed index, but not
 * between the two steps: it looks again under storage_lock, which the caller holds.
 */
void
nvm_index_lost_with_region(NvmRelState *rel)
{
	nvm_dir_set_relaxed(rel->dir, true);
	NVM_FAILPOINT("rebuild-index-lost");
	index_lost_by_start(rel, true);
}

void
nvm_index_state_register(void)
{
	static const NvmRelUser user = {
		.emptied = index_emptied,
		.lost_by_start = index_lost_by_start
	};

	nvm_rel_register_user(NVM_DIR_KIND_INDEX, &user);
}
