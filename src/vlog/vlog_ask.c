/*-------------------------------------------------------------------------
 *
 * vlog_ask.c
 *	  What has become of the transactions that pg_xact has decided.
 *
 * An ASK record counts if the transaction has committed.  As a rule an OUTCOME
 * record says so.  Those of the last moments before a stop have none: pg_xact is
 * asked, and the answer goes into the log, so that nobody asks again.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "compat/nvm_compat.h"
#include "log/nvm_log.h"
#include "pool/nvm_pool.h"
#include "storage/lwlock.h"
#include "storage/procarray.h"
#include "utils/snapmgr.h"
#include "vlog/vlog_impl.h"
#include "wbl/nvm_rebuild_stamp.h"

/*
 * Ask pg_xact about an xid of an earlier run.  Nobody truncates pg_xact meanwhile.
 */
static bool
did_commit(uint64 fxid)
{
	FullTransactionId next;
	uint64		oldest;
	bool		committed;

	LWLockAcquire(XactTruncationLock, LW_SHARED);
	next = ReadNextFullTransactionId();
	oldest = U64FromFullTransactionId(next) -
		(uint32) (XidFromFullTransactionId(next) - NvmXidVars->oldestClogXid);
	if (fxid < oldest)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the log does not say whether transaction %llu has committed, and pg_xact does not know it any more",
						(unsigned long long) fxid)));
	committed = TransactionIdDidCommit((TransactionId) fxid);
	LWLockRelease(XactTruncationLock);
	return committed;
}

/*
 * Behind a crash a server without us may have handed this xid out again, to somebody who
 * has committed, or is prepared.  That it was not committed is true of both.
 */
static void
require_no_bypass(uint64 fxid, NvmVlogVerdict verdict)
{
	if (!NvmPool->log_was_bypassed)
		return;
	if (verdict == NVM_VLOG_COMMITTED ||
		(verdict == NVM_VLOG_PREPARED && !nvm_rebuild_knows_prepared(fxid)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("transaction %llu of the log was in doubt when the server was run without the NVM pool",
						(unsigned long long) fxid),
				 errdetail("Whether it committed cannot be told any more.")));
}

/*
 * What has become of the transaction of an ASK record without OUTCOME?  One that was
 * prepared when the server started counts as prepared, whatever it is now: there may be
 * snapshots that do not see it.
 *
 * An xid from first_xid on is not one of an earlier life of the region as far as
 * PostgreSQL's recovery knows: its commit record was lost, if there was one.  By now
 * somebody else may have it, and commit.
 */
static NvmVlogVerdict
ask(uint64 fxid)
{
	MemoryContext context = CurrentMemoryContext;
	NvmVlogVerdict verdict = NVM_VLOG_PREPARED;

	if (fxid >= nvm_log_first_xid())
		return NVM_VLOG_ABORTED;
	StartTransactionCommand();
	/* or TransactionIdIsInProgress does not know what is old */
	(void) GetTransactionSnapshot();
	if (!TransactionIdIsInProgress((TransactionId) fxid))
		verdict = !did_commit(fxid) ? NVM_VLOG_ABORTED :
			nvm_rebuild_was_prepared(fxid) ? NVM_VLOG_PREPARED : NVM_VLOG_COMMITTED;
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	require_no_bypass(fxid, verdict);
	return verdict;
}

/*
 * It waits for its end, and its rows are placed undecided.  From here on settling
 * says the outcome in the log.
 */
static void
take_over(NvmVlogAsk *a)
{
	a->by.stamp = nvm_rebuild_prepared_stamp(a->xid, a->position);
	a->by.xid = (TransactionId) a->xid;
	a->verdict = NVM_VLOG_PREPARED;
	if (a->outcome == 0)
		ereport(LOG,
				(errmsg("nvm: what prepared transaction %llu has changed in tables in memory is not decided yet",
						(unsigned long long) a->xid)));
}

/*
 * An attempt before this one has taken it over, and it has committed since.  A snapshot
 * that is older than that must not see its rows: they are placed as its own once more.
 */
static bool
has_ended_since(const NvmVlog *vlog, const NvmVlogAsk *a)
{
	return a->verdict == NVM_VLOG_COMMITTED && a->outcome >= vlog->shared->limit &&
		nvm_rebuild_was_prepared(a->xid);
}

/*
 * See vlog_impl.h.  What was in doubt in the pool is resolved.  Returns whether
 * something was written to the log, for which the caller has to wait.
 */
bool
nvm_vlog_decide(NvmVlog *vlog)
{
	NvmVlogAsk *ask_record = nvm_vlog_at(vlog, vlog->shared->ask);
	bool		written = false;

	for (uint64 i = 0; i < vlog->shared->nasks; i++)
	{
		NvmVlogAsk *a = &ask_record[i];

		if (has_ended_since(vlog, a))
			take_over(a);
		if (a->verdict != NVM_VLOG_UNKNOWN)
			continue;
		a->verdict = ask(a->xid);
		if (a->verdict == NVM_VLOG_PREPARED)
			take_over(a);
		else
		{
			nvm_log_note_outcome(a->xid, a->verdict == NVM_VLOG_COMMITTED);
			written = true;
		}
		nvm_vlog_pause();
	}
	return written;
}
