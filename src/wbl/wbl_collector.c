/*-------------------------------------------------------------------------
 *
 * wbl_collector.c
 *	  The gap collector: removes what crashes left undecided, then the gap.
 *
 * A background worker.  While the gap list is not empty, it walks all blocks
 * of all storages.  The table layer removes the traces of stamps that are in
 * the list.  When a sweep is complete, the collector waits for every process
 * that could still hold such a stamp in a register.  Then it drops the entries
 * that were in the list when the sweep began.  Until then every reader
 * consults the list, so nothing waits for the collector.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "wbl/nvm_snapshot.h"
#include "wbl/wbl_impl.h"

/* blocks between two pauses: a megabyte */
#define BLOCKS_PER_PAUSE		128
/* blocks looked at under one hold of storage_lock */
#define BLOCKS_PER_LOCK			16
/* how often to look for something to do */
#define IDLE_MS					1000
/* how often to look, at least, whether space may be used again */
#define MENDED_MS				20
/* a sweep gives up after so long if only another one can free space */
#define LEAVE_MS				10000

/* what one sweep is about */
typedef struct NvmSweep
{
	NvmStamp   *gaps;			/* entries of the list when it began */
	uint32		ngaps;
	uint32	   *dirs;			/* storages there were when it began */
	uint32		ndirs;
	bool		whole;			/* the volatile region was, at the beginning:
								 * else the sweep is not about it */
	uint32		blocks_since_pause;

	/* when all blocks had been looked at, durably */
	TimestampTz passed;
	uint64		until;			/* the next xid */
	uint64	   *running;		/* the counter that each slot had handed out */
	NvmStanding *standing;		/* NULL: nothing was torn */
} NvmSweep;

/* how a sweep ended */
typedef enum NvmSweepResult
{
	NVM_SWEEP_STOPPED,			/* it is time to end */
	NVM_SWEEP_LEFT,				/* there is reason to begin anew */
	NVM_SWEEP_DONE
} NvmSweepResult;

static void
nvm_sweep_count_dir(uint32 id, NvmDirEntry *entry, void *arg)
{
	((NvmSweep *) arg)->ndirs++;
}

static void
nvm_sweep_add_dir(uint32 id, NvmDirEntry *entry, void *arg)
{
	NvmSweep   *sweep = (NvmSweep *) arg;

	if (sweep->ndirs > 0)
	{
		*sweep->dirs++ = id;
		sweep->ndirs--;
	}
}

/*
 * Note what is in the gap list, then which storages there are.  Storages and
 * rows made from here on cannot carry a stamp that is in the list.
 */
static void
nvm_sweep_begin(NvmSweep *sweep)
{
	uint32		room;
	uint32	   *dirs;

	memset(sweep, 0, sizeof(*sweep));

	/*
	 * after a failed rebuild nobody places rows, and closed storages are
	 * empty
	 */
	sweep->whole = nvm_log_is_whole() || nvm_log_rebuild_state() == NVM_LOG_FAILED;
	LWLockAcquire(NvmWbl->wbl_lock, LW_SHARED);
	sweep->gaps = palloc(sizeof(NvmStamp) * (pg_atomic_read_u32(&NvmWbl->ngaps) + 1));
	NvmForEachUsedSlot(slot)
	{
		if (nvm_region_of_slot(slot) == NVM_REGION_VOLATILE && !sweep->whole)
			break;
		for (int i = 0; i < NVM_SLOT_GAPS; i++)
		{
			if (nvm_slots[slot].gap[i] != 0)
				sweep->gaps[sweep->ngaps++] = NVM_STAMP_MAKE(slot, nvm_slots[slot].gap[i]);
		}
	}
	LWLockRelease(NvmWbl->wbl_lock);

	/*
	 * Storages made in between do not matter.  But they take the lowest
	 * numbers, so if there is no room for all, others fall out.
	 */
	do
	{
		sweep->ndirs = 0;
		nvm_dir_walk(nvm_sweep_count_dir, sweep);
		NVM_FAILPOINT("gap-storages-counted");
		room = sweep->ndirs + 64;
		dirs = palloc_extended(sizeof(uint32) * room, MCXT_ALLOC_HUGE);
		sweep->dirs = dirs;
		sweep->ndirs = room;
		nvm_dir_walk(nvm_sweep_add_dir, sweep);
	} while (sweep->ndirs == 0);
	sweep->ndirs = room - sweep->ndirs;
	sweep->dirs = dirs;
}

/*
 * Pause after each megabyte, and look at signals.  False when it is time to
 * end.
 */
static bool
nvm_sweep_pause(NvmSweep *sweep, uint32 blocks)
{
	sweep->blocks_since_pause += blocks;
	if (sweep->blocks_since_pause < BLOCKS_PER_PAUSE)
		return true;
	sweep->blocks_since_pause = 0;
	nvm_drain("gap-sweep");
	do
	{
		if (!nvm_worker_sleep(nvm_collect_gaps ? nvm_collector_delay : IDLE_MS))
			return false;
		pg_atomic_write_u32(&NvmWbl->collector_paused, nvm_collect_gaps ? 0 : 1);
	} while (!nvm_collect_gaps);
	return true;
}

/*
 * Is id still the storage that was there when the sweep began?  Caller holds
 * storage_lock, so the answer stays true.
 */
static bool
nvm_sweep_dir_exists(uint32 id, uint64 creation)
{
	NvmDirEntry *entry = nvm_dir_entry(id);

	return entry->begin != NVM_STAMP_NONE && entry->creation_id == creation;
}

/*
 * Sweep one storage.  False when it is time to end.
 */
static bool
nvm_sweep_storage(NvmSweep *sweep, uint32 id)
{
	uint64		creation = nvm_dir_entry(id)->creation_id;
	NvmRelState *rel = NULL;
	uint32		nblocks = 0;

	for (uint32 first = 0;; first += BLOCKS_PER_LOCK)
	{
		uint32		n = 0;

		LWLockAcquire(NvmWbl->storage_lock, LW_SHARED);
		if (!nvm_sweep_dir_exists(id, creation))
		{
			LWLockRelease(NvmWbl->storage_lock);
			return true;
		}

		/*
		 * nothing in an index carries a stamp; VACUUM removes entries that
		 * lead to no row
		 */
		if (nvm_dir_entry(id)->kind != NVM_DIR_KIND_TABLE ||
			(nvm_relstates[id].region == NVM_REGION_VOLATILE && !sweep->whole))
		{
			LWLockRelease(NvmWbl->storage_lock);
			return true;
		}
		if (rel == NULL)
		{
			rel = nvm_rel_open(id);
			nblocks = pg_atomic_read_u32(&rel->nblocks);
			pg_atomic_fetch_add_u64(&NvmWbl->collector_total, nblocks);
		}
		/* it may have become shorter meanwhile */
		nblocks = Min(nblocks, pg_atomic_read_u32(&rel->nblocks));
		for (; n < BLOCKS_PER_LOCK && first + n < nblocks; n++)
			(void) nvm_table_ops->collect_block(id, first + n);
		if (n < BLOCKS_PER_LOCK)
			nvm_table_ops->collect_large(id);
		LWLockRelease(NvmWbl->storage_lock);
		pg_atomic_fetch_add_u64(&NvmWbl->collector_blocks, n);

		if (!nvm_sweep_pause(sweep, Max(n, 1)))
			return false;
		if (n < BLOCKS_PER_LOCK)
			return true;
	}
}

/*
 * Settle the directory entry of a transaction whose abort could not be played
 * to its end.  Entries of transactions that a crash cut off are settled when
 * the server starts.
 */
static void
nvm_sweep_dir_entry(uint32 id)
{
	NvmDirEntry *entry = nvm_dir_entry(id);
	NvmStamp	end;

	LWLockAcquire(NvmWbl->storage_lock, LW_EXCLUSIVE);
	/* read once: a transaction may be about to end it, and must not be undone */
	end = nvm_load(&entry->end);
	if (entry->begin == NVM_STAMP_NONE)
		 /* freed meanwhile */ ;
	else if (nvm_stamp_in_gap(entry->begin))
		nvm_dir_reclaim(id);
	else if (end != NVM_STAMP_NONE && nvm_stamp_in_gap(end))
	{
		NVM_FAILPOINT("gap-end-seen");
		nvm_dir_clear_end(id, end);
	}
	LWLockRelease(NvmWbl->storage_lock);
}

/*
 * All blocks have been looked at.  Note the processes for which that may have
 * come too late.
 */
static void
nvm_sweep_passed(NvmSweep *sweep)
{
	nvm_drain("gap-swept");
	sweep->passed = GetCurrentTimestamp();
	sweep->until = U64FromFullTransactionId(ReadNextFullTransactionId());
	/* slots that are first used later count as having nothing running */
	sweep->running = palloc0(sizeof(uint64) * NVM_SLOT_NUMBERS);
	NvmForEachUsedSlot(slot)
		sweep->running[slot] = pg_atomic_read_u64(&nvm_slots[slot].running);
	if (pg_atomic_read_u32(&NvmWbl->ntorn) > 0)
		sweep->standing = nvm_standing_note();
}

/*
 * No link leads to a retired version any more, durably.  Wait until no process
 * can stand on one by a link that it loaded before.  Then space may be used
 * again.  The gaps stay in the list: for them other processes have to be
 * waited for.  False when it is time to end.
 */
static bool
nvm_sweep_mended(NvmSweep *sweep)
{
	if (sweep->standing == NULL)
		return true;
	while (!nvm_standing_gone(sweep->standing))
	{
		if (!nvm_worker_sleep(Min(nvm_horizon_naptime, MENDED_MS)))
			return false;
	}
	NVM_FAILPOINT("gap-before-mended");
	LWLockAcquire(NvmWbl->wbl_lock, LW_EXCLUSIVE);
	for (uint32 i = 0; i < sweep->ngaps; i++)
		nvm_slot_mend_gap(NVM_STAMP_SLOT(sweep->gaps[i]),
						  NVM_STAMP_COUNTER(sweep->gaps[i]));
	LWLockRelease(NvmWbl->wbl_lock);
	NVM_FAILPOINT("gap-mended");
	return true;
}

/*
 * Has an abort failed, so that only another sweep can make its torn gap good,
 * and has this sweep waited for long?  The other sweep has to wait for the
 * same processes.  But gaps must be dropped some time, so this one has its
 * chance first.
 */
static bool
nvm_sweep_is_futile(NvmSweep *sweep)
{
	return pg_atomic_read_u32(&NvmWbl->ntorn) > 0 &&
		TimestampDifferenceExceeds(sweep->passed, GetCurrentTimestamp(), LEAVE_MS);
}

/*
 * Wait until every process that could have loaded a stamp before the sweep
 * removed it has let go of it: it would take the stamp for committed if the
 * gap were gone.  The same argument as for frozen[].  That may take long: see
 * nvm_sweep_is_futile.
 */
static NvmSweepResult
nvm_sweep_wait_for_readers(NvmSweep *sweep)
{
	int			rounds = 0;

	while (nvm_horizon_oldest() <= sweep->until)
	{
		if (nvm_sweep_is_futile(sweep))
			return NVM_SWEEP_LEFT;
		if (!nvm_worker_sleep(nvm_horizon_naptime))
			return NVM_SWEEP_STOPPED;
		if (++rounds >= 3 &&
			nvm_horizon_oldest() == sweep->until &&
			U64FromFullTransactionId(ReadNextFullTransactionId()) == sweep->until)
			nvm_worker_consume_xid();
	}
	return NVM_SWEEP_DONE;
}

/*
 * Wait until every transaction that had a stamp when the sweep was over is
 * decided.  Such a transaction may have taken a row over from a lost one
 * before the sweep came by, so that the sweep found no trace.  Only the fence
 * of that transaction makes this durable.  A commit has passed its fence when
 * it leaves the proc array.  An abort still has to undo.  Until then the
 * medium may still hold the gap's stamp.
 */
static NvmSweepResult
nvm_sweep_wait_for_writers(NvmSweep *sweep)
{
	NvmForEachUsedSlot(slot)
	{
		while (pg_atomic_read_u64(&nvm_slots[slot].durable) < sweep->running[slot])
		{
			NVM_FAILPOINT("gap-undecided");
			if (nvm_sweep_is_futile(sweep))
				return NVM_SWEEP_LEFT;
			if (!nvm_worker_sleep(nvm_horizon_naptime))
				return NVM_SWEEP_STOPPED;
		}
	}
	return NVM_SWEEP_DONE;
}

/*
 * Drop the entries that the sweep was about.  A crash between its two steps
 * leaves traces that are gone and a gap that is there: one more sweep.
 */
static void
nvm_sweep_drop_gaps(NvmSweep *sweep)
{
	LWLockAcquire(NvmWbl->wbl_lock, LW_EXCLUSIVE);
	for (uint32 i = 0; i < sweep->ngaps; i++)
		nvm_slot_drop_gap(NVM_STAMP_SLOT(sweep->gaps[i]),
						  NVM_STAMP_COUNTER(sweep->gaps[i]));
	nvm_drain("gap-drop");
	for (uint32 i = 0; i < sweep->ngaps; i++)
		nvm_slot_forget_gap(NVM_STAMP_SLOT(sweep->gaps[i]),
							NVM_STAMP_COUNTER(sweep->gaps[i]));
	LWLockRelease(NvmWbl->wbl_lock);
	pg_atomic_fetch_add_u64(&NvmWbl->collected, sweep->ngaps);
}

/*
 * One sweep over everything.
 */
static NvmSweepResult
nvm_sweep(void)
{
	NvmSweep	sweep;
	NvmSweepResult result;

	nvm_sweep_begin(&sweep);
	if (sweep.ngaps == 0)
		return NVM_SWEEP_LEFT;
	pg_atomic_write_u64(&NvmWbl->collector_blocks, 0);
	pg_atomic_write_u64(&NvmWbl->collector_total, 0);
	NVM_FAILPOINT("gap-sweep-begin");

	for (uint32 i = 0; i < sweep.ndirs; i++)
	{
		nvm_sweep_dir_entry(sweep.dirs[i]);
		if (!nvm_sweep_storage(&sweep, sweep.dirs[i]))
			return NVM_SWEEP_STOPPED;
	}
	nvm_sweep_passed(&sweep);
	if (!nvm_sweep_mended(&sweep))
		return NVM_SWEEP_STOPPED;
	result = nvm_sweep_wait_for_readers(&sweep);
	if (result == NVM_SWEEP_DONE)
		result = nvm_sweep_wait_for_writers(&sweep);
	if (result != NVM_SWEEP_DONE)
		return result;
	NVM_FAILPOINT("gap-before-drop");
	nvm_sweep_drop_gaps(&sweep);
	pg_atomic_fetch_add_u64(&NvmWbl->collector_sweeps, 1);
	ereport(LOG,
			(errmsg("nvm: gap collector removed the traces of %u transactions from %llu blocks",
					sweep.ngaps,
					(unsigned long long) pg_atomic_read_u64(&NvmWbl->collector_blocks))));
	return NVM_SWEEP_DONE;
}

/*
 * Entry point of the collector.  An ERROR ends the process; the postmaster
 * starts it again after a moment, and the sweep starts from the beginning.
 */
void
nvm_collector_main(Datum main_arg)
{
	MemoryContext context;

	nvm_worker_start();
	context = AllocSetContextCreate(TopMemoryContext, "nvm gap collector",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);

	/* gaps are complete once all transactions in doubt are settled */
	StartTransactionCommand();
	nvm_wbl_resolve();
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);

	do
	{
		pg_atomic_write_u32(&NvmWbl->collector_paused, nvm_collect_gaps ? 0 : 1);
		if (!nvm_collect_gaps || nvm_table_ops == NULL ||
			pg_atomic_read_u32(&NvmWbl->ngaps) == 0)
			continue;
		if (nvm_sweep() == NVM_SWEEP_STOPPED)
			break;
		MemoryContextReset(context);
	} while (nvm_worker_sleep(IDLE_MS));

	nvm_worker_end();
}
