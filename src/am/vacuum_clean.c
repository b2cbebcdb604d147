/*-------------------------------------------------------------------------
 *
 * vacuum_clean.c
 *	  VACUUM finds a table in memory its clean run (vlog/README.md).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "am/nvm_vacuum.h"
#include "compat/nvm_compat.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_space.h"

/*
 * The longest run of blocks in which there is nothing.  No lock is held: a hint.
 */
static uint32
longest_run(NvmVacuum *vac, uint32 *first)
{
	uint32		longest = 0;
	uint32		n = 0;

	for (uint32 blk = 0; blk < vac->nblocks; blk++)
	{
		CHECK_FOR_INTERRUPTS();
		n = nvm_block_is_clean(vac->state, blk) ? n + 1 : 0;
		if (n > longest)
		{
			longest = n;
			*first = blk + 1 - n;
		}
	}
	return longest;
}

/*
 * How many blocks of the run that the directory has does the table have?  A loss may have
 * left it shorter.  Who takes blocks meanwhile makes them fewer: a hint, too.
 */
static uint32
usable_run(NvmVacuum *vac)
{
	uint64		run = nvm_clean_durable(vac->dir);
	uint32		end = Min(NVM_CLEAN_END(run), vac->nblocks);

	return end - Min(end, NVM_CLEAN_FIRST(run));
}

/*
 * Look at the blocks of the run that was offered, now that nobody hands out cells of them
 * without taking them from it.  One that is not empty leaves.
 */
static void
prove_run(NvmVacuum *vac, uint32 first, uint32 end)
{
	for (uint32 blk = first; blk < end; blk++)
	{
		LWLock	   *lock = nvm_alloc_lock(vac->dir, blk);
		bool		clean;

		CHECK_FOR_INTERRUPTS();
		LWLockAcquire(lock, LW_SHARED);
		clean = nvm_block_is_clean(vac->state, blk);
		LWLockRelease(lock);
		if (!clean)
			nvm_clean_take(vac->state, blk);
	}
}

/*
 * A block in which there is nothing has no index entries: a cell is free when VACUUM has
 * removed those that led to it, or when there never was one.  That is durable when the WAL
 * is.  A longer run takes the place of the one that the directory has.  That in memory may
 * be larger, but a VACUUM that was cancelled has perhaps not proved it.
 */
void
nvm_vacuum_find_clean(NvmVacuum *vac)
{
	uint32		first = 0;
	uint32		n;

	if (!nvm_dir_counts_blocks(vac->dir))
		return;
	n = longest_run(vac, &first);
	if (n <= usable_run(vac))
		return;
	NVM_FAILPOINT("vacuum-clean-found");
	nvm_clean_offer(vac->state, first, first + n);
	NVM_FAILPOINT("vacuum-clean-offered");
	prove_run(vac, first, first + n);

	/*
	 * Nobody knows of a case in which this waits for what counts:
	 * vacuum_indexes() has flushed before a cell was free, and a catalog
	 * change that takes the last index away is flushed before it is seen
	 * (xact/README.md, "Changes of catalogs").  But the run is durable at
	 * once, so it does not rely on either.
	 */
	XLogFlush(NvmWalEnd());
	nvm_clean_settle(vac->state);
}
