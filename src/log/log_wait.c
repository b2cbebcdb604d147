/*-------------------------------------------------------------------------
 *
 * log_wait.c
 *	  What a process rests on, and waiting until it is persistent.
 *
 * README.md, "Waiting".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/transam.h"
#include "access/xact.h"
#include "compat/nvm_compat.h"
#include "log/log_impl.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "pmem/nvm_pmem.h"
#include "portability/instr_time.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/resowner.h"
#include "utils/wait_event.h"

/* COMMIT has come by: wait when the locks are gone */
static bool commit_waits = false;
static uint32 commit_slot = 0;	/* whose last place is the transaction's own,
								 * or 0 */

/*
 * The process's own entry, or its leader's if it works for one.  The first use, at the
 * end of the transaction in which a process starts, forgets what the last owner of the
 * PGPROC has read.  There can be no workers yet.
 */
static pg_atomic_uint64 *
my_rests(void)
{
	static int	pid = 0;
	PGPROC	   *proc = MyProc->lockGroupLeader != NULL ? MyProc->lockGroupLeader : MyProc;
	pg_atomic_uint64 *rests = &NvmLog->rests_on[NvmProcNumberOf(proc)];

	if (unlikely(pid != MyProcPid) && proc == MyProc)
	{
		pid = MyProcPid;
		pg_atomic_write_u64(rests, 0);
	}
	return rests;
}

static void
rest_on(NvmLogPosition position)
{
	pg_atomic_uint64 *rests = my_rests();
	uint64		seen = pg_atomic_read_u64(rests);

	while (seen < position && !pg_atomic_compare_exchange_u64(rests, &seen, position))
		;
}

/*
 * See nvm_log.h.  The slot's last place may be that of a later transaction: then
 * the process waits for more than it has to.
 */
void
nvm_log_rest_on_slow(uint32 slot)
{
	NvmLogPosition position;

	pg_read_barrier();			/* the place was stored before what was seen */
	position = pg_atomic_read_u64(&nvm_log_memory->place[slot - NVM_VOLATILE_SLOT]);
	if (position > nvm_log_persistent())
		rest_on(position);
}

bool
nvm_log_has_slot(uint32 slot)
{
	pg_read_barrier();
	return pg_atomic_read_u64(&nvm_log_memory->place[slot - NVM_VOLATILE_SLOT]) <= nvm_log_persistent();
}

bool
nvm_log_rests_on_more(void)
{
	return nvm_log_is_on && pg_atomic_read_u64(my_rests()) > nvm_log_persistent();
}

/*
 * ERROR if the log cannot be written.  Tries again first.
 */
void
nvm_log_require_writable(void)
{
	if (likely(pg_atomic_read_u32(&NvmLog->broken) == 0))
		return;
	(void) nvm_log_write_round(nvm_log_inserted(), true);
	if (pg_atomic_read_u32(&NvmLog->broken) == 0)
		return;
	errno = NvmLog->broken_errno;
	ereport(ERROR,
			(errcode_for_file_access(),
			 errmsg("could not write the log of tables in memory: %m"),
			 errdetail_log("%s", NvmLog->broken_what),
			 errhint("Free space on the device that holds nvm.log_directories, or mend it. Tables can be read meanwhile.")));
}

/*
 * See nvm_log.h.
 */
void
nvm_log_wait_for(NvmLogPosition position)
{
	while (nvm_log_persistent() < position)
	{
		CHECK_FOR_INTERRUPTS();
		if (!nvm_log_write_round(position, true))
			nvm_log_require_writable();
	}
}

/*
 * See nvm_log.h.  Who is in between has left the proc array, and has its OUTCOME's place in
 * a moment.
 */
void
nvm_log_wait_outcomes(TransactionId xid)
{
	for (uint32 i = 0; i < NVM_MAX_SLOTS; i++)
	{
		uint64		asked;

		while ((asked = *(volatile uint64 *) &nvm_log_memory->asked[i]) != 0 &&
			   TransactionIdPrecedes((TransactionId) asked, xid))
		{
			CHECK_FOR_INTERRUPTS();
			pg_usleep(1000L);
		}
	}
	nvm_log_wait_for(nvm_log_inserted());
}

/*
 * See nvm_log.h.
 */
void
nvm_log_wait_rests(void)
{
	if (!nvm_log_rests_on_more())
		return;
	NVM_FAILPOINT("log-wait-rests");
	nvm_log_wait_for(pg_atomic_read_u64(my_rests()));
}

/*
 * The transaction is decided, and others see it.  So a cancel or a termination only
 * ends the wait, as in SyncRepWaitForLSN: an error could not be told from a
 * rollback.  Interrupts are held.
 */
static bool
wait_is_cancelled(void)
{
	if (ProcDiePending)
	{
		ereport(WARNING,
				(errcode(ERRCODE_ADMIN_SHUTDOWN),
				 errmsg("canceling the wait for the log and terminating connection"),
				 errdetail("The transaction has already committed, but a crash of the machine may still lose what it did to tables in memory.")));
		whereToSendOutput = DestNone;
		return true;
	}
	/* a worker's signal handler sets this alone */
	if (ShutdownRequestPending)
		return true;
	if (QueryCancelPending)
	{
		QueryCancelPending = false;
		ereport(WARNING,
				(errmsg("canceling wait for the log due to user request"),
				 errdetail("The transaction has already committed, but a crash of the machine may still lose what it did to tables in memory.")));
		return true;
	}
	return false;
}

/*
 * reads_only: the transaction has no record of its own.  Reading goes on while the
 * log cannot be written.
 */
static void
wait_committed(NvmLogPosition position, bool reads_only)
{
	instr_time	start;
	instr_time	end;
	NvmLogDirectory *d;

	if (nvm_log_persistent() >= position)
		return;
	nvm_log_gather_join();
	INSTR_TIME_SET_CURRENT(start);
	while (nvm_log_persistent() < position && !wait_is_cancelled())
	{
		if (nvm_log_write_round(position, false))
			continue;
		if (reads_only)
		{
			ereport(WARNING,
					(errmsg("what the transaction has read may be lost by a crash of the machine, because the log cannot be written")));
			break;
		}
		if (WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_POSTMASTER_DEATH, 1000L,
					  PG_WAIT_EXTENSION) & WL_POSTMASTER_DEATH)
		{
			whereToSendOutput = DestNone;
			break;
		}
		ResetLatch(MyLatch);
	}
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, start);
	pg_atomic_fetch_add_u64(&NvmLog->waits, 1);
	pg_atomic_fetch_add_u64(&NvmLog->wait_usec, INSTR_TIME_GET_MICROSEC(end));
	/* for the one that is written when the wait is over */
	d = &NvmLog->directory[*(volatile int *) &nvm_log_memory->directory];
	pg_atomic_fetch_add_u64(&d->waits, 1);
	pg_atomic_fetch_add_u64(&d->wait_usec, INSTR_TIME_GET_MICROSEC(end));
}

/*
 * See nvm_log.h.
 */
void
nvm_log_wait_after_locks(uint32 slot)
{
	commit_waits = true;
	commit_slot = slot;
}

/*
 * ResourceReleaseCallback.  It is called for each resource owner in each phase.
 * When the first one of the top level comes to AFTER_LOCKS the locks of all are
 * gone.
 */
static void
wait_when_locks_are_gone(ResourceReleasePhase phase, bool isCommit, bool isTopLevel, void *arg)
{
	NvmLogPosition position;

	if (likely(!commit_waits) || phase != RESOURCE_RELEASE_AFTER_LOCKS || !isCommit || !isTopLevel)
		return;
	commit_waits = false;

	/*
	 * its leader waits; this is a transaction of its start, and the leader
	 * stands still
	 */
	if (IsParallelWorker())
		return;
	position = pg_atomic_read_u64(my_rests());
	if (commit_slot != 0)
		position = Max(position, pg_atomic_read_u64(&nvm_log_memory->place[commit_slot - NVM_VOLATILE_SLOT]));
	if (position <= nvm_log_persistent())
		return;
	rest_on(position);
	NVM_FAILPOINT("log-wait-commit");
	if (synchronous_commit > SYNCHRONOUS_COMMIT_OFF)
		wait_committed(position, commit_slot == 0);
}

void
nvm_log_register_callbacks(void)
{
	RegisterResourceReleaseCallback(wait_when_locks_are_gone, NULL);
}
