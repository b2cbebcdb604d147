/*-------------------------------------------------------------------------
 *
 * pool_clean.c
 *	  The clean run of a table: blocks to which no index entry leads, durably.
 *
 * A table of the volatile region that has an index in files cannot put new
 * rows, after the region was lost, where an entry may lead that has no row any
 * more.  Without a clean run it could put them behind all blocks that it had,
 * and would grow by each loss.  vlog/README.md, "The clean run", has the
 * protocol.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pmem/nvm_pmem.h"
#include "pool/pool_impl.h"
#include "verify/nvm_verify.h"

/*
 * Store the run that the entry has, durably.  The checksum is stored last: without it, or
 * with a wrong one, there is no run.  Caller holds the extend lock.
 */
static void
store_run(NvmRelState *rel, uint64 run)
{
	NvmDirEntry *entry = nvm_dir_entry(rel->dir);

	nvm_store(&entry->clean, run);
	nvm_store32(&entry->clean_check, nvm_dir_clean_check(rel->dir, run));
	nvm_flush(&entry->clean, sizeof(entry->clean) + sizeof(entry->clean_check));
	nvm_drain("pool-clean-run");
}

/* the blocks that are in the run, of those from `first` to before `end` */
static uint64
run_part(uint64 run, uint32 first, uint32 end)
{
	first = Max(first, NVM_CLEAN_FIRST(run));
	end = Min(end, NVM_CLEAN_END(run));
	return first < end ? NVM_CLEAN_RUN(first, end) : 0;
}

/*
 * See nvm_pool.h.
 */
void
nvm_clean_found(NvmRelState *rel)
{
	pg_atomic_write_u64(&rel->clean, nvm_clean_durable(rel->dir));
}

/*
 * See nvm_pool.h.
 */
uint64
nvm_clean_durable(uint32 id)
{
	return nvm_dir_clean_run(id, nvm_dir_entry(id));
}

/*
 * See nvm_pool.h.  What is in front of the block goes, too, or what is behind it, which is
 * less.  The run on media is no larger than that in memory, and loses more blocks at a time:
 * each time may be a sync.
 */
void
nvm_clean_take(NvmRelState *rel, uint32 blk)
{
	LWLock	   *lock = nvm_rel_extend_lock(rel);
	uint64		run;
	uint64		durable;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	run = pg_atomic_read_u64(&rel->clean);
	if (nvm_clean_has(rel, blk))
	{
		bool		front = blk - NVM_CLEAN_FIRST(run) > NVM_CLEAN_END(run) - blk;

		run = front ? run_part(run, 0, blk) : run_part(run, blk + 1, PG_UINT32_MAX);
		durable = nvm_dir_entry(rel->dir)->clean;
		if (run_part(durable, NVM_CLEAN_FIRST(run), NVM_CLEAN_END(run)) != durable)
		{
			uint32		n = front ? 0 : nvm_dir_next_raise(rel, blk) - 1;

			store_run(rel, run_part(durable, NVM_CLEAN_FIRST(run) + n, NVM_CLEAN_END(run)));
		}
		pg_atomic_write_u64(&rel->clean, run);
	}
	LWLockRelease(lock);
}

/*
 * See nvm_pool.h.
 */
void
nvm_clean_offer(NvmRelState *rel, uint32 first, uint32 end)
{
	LWLock	   *lock = nvm_rel_extend_lock(rel);

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (nvm_dir_entry(rel->dir)->clean != 0)
		store_run(rel, 0);
	pg_atomic_write_u64(&rel->clean, NVM_CLEAN_RUN(first, end));
	LWLockRelease(lock);
}

/*
 * See nvm_pool.h.
 */
void
nvm_clean_settle(NvmRelState *rel)
{
	LWLock	   *lock = nvm_rel_extend_lock(rel);
	uint64		run;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	run = pg_atomic_read_u64(&rel->clean);
	if (run != 0)
		store_run(rel, run);
	LWLockRelease(lock);
}
