/*-------------------------------------------------------------------------
 *
 * wbl_xid.c
 *	  Transaction ids that rows carry are not handed out again after a crash.
 *
 * The commit record of a transaction that touched nvm tables alone is not
 * flushed: a crash can take it back, and with it PostgreSQL's knowledge that
 * its xid was used.  But the row is there, and shows that xid as its xmin.  If
 * another transaction got X again, a client that locks optimistically (WHERE
 * id = 1 AND xmin = X) would take a later version for the one that it has
 * read.
 *
 * So the pool's header holds a promise: no xid at or above it is in a row.  A
 * writer whose xid is not below the promise raises it durably, by many xids at
 * once, before it writes.  After a crash the next xid is moved up to it before
 * anybody can have got one: see README.md, "Transaction ids".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/clog.h"
#include "access/commit_ts.h"
#include "access/subtrans.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "compat/nvm_compat.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "utils/timestamp.h"
#include "wbl/wbl_impl.h"

/* xids promised at once: what a crash costs of the xid space, beside lost WAL */
#define XID_PROMISE_STEP	8192

/* more than any WAL that was not flushed can have used */
#define XID_SKIP_MAX		(UINT64_C(1) << 24)

/*
 * xids in one record of skipped ones.  A standby has room for this many of
 * each backend.  It takes all xids up to the latest that it heard of as
 * running until it is told otherwise.
 */
#define XIDS_IN_RECORD		64

/*
 * See nvm_wbl.h.
 */
TransactionId
nvm_xid_promise(FullTransactionId fxid)
{
	uint64		xid = U64FromFullTransactionId(fxid);
	uint64		promise = pg_atomic_read_u64(&NvmPool->xid_promise);

	if (unlikely(xid >= promise))
	{
		uint64		wanted = xid + XID_PROMISE_STEP;

		/* it is compared as a 32-bit xid, and must be a normal one for that */
		if (!TransactionIdIsNormal((TransactionId) wanted))
			wanted += FirstNormalTransactionId;
		NVM_FAILPOINT("xid-promise");
		promise = nvm_pool_promise_xids(xid, wanted);
	}
	return (TransactionId) promise;
}

/*
 * Tell standbys that these xids, which nobody has used, are over.  Without it
 * they would take all of them for running as soon as the next xid shows up,
 * and have no room for so many.  On our own side the record makes the skip as
 * lasting as any WAL.  The record is that of a prepared transaction, because
 * only such a one names its xid itself.
 */
static void
log_skipped(TransactionId *xids, int n)
{
	START_CRIT_SECTION();
	(void) XactLogAbortRecord(GetCurrentTimestamp(), n - 1, xids + 1, 0, NULL,
							  0, NULL, 0, xids[0], "pg_nvm");
	END_CRIT_SECTION();
}

/*
 * Move the next xid up to target, as if somebody had drawn each xid in
 * between.  Caller holds XidGenLock exclusively.  May ERROR half-way; the next
 * xid is then where it got to, and all is well up to there.
 */
static void
skip_xids(FullTransactionId target)
{
	FullTransactionId next = NvmXidVars->nextXid;

	while (FullTransactionIdPrecedes(next, target))
	{
		TransactionId xids[XIDS_IN_RECORD];
		int			n = 0;

		while (n < XIDS_IN_RECORD && FullTransactionIdPrecedes(next, target))
		{
			TransactionId xid = XidFromFullTransactionId(next);

			/* each does something at the first xid of its pages only */
			ExtendCLOG(xid);
			ExtendCommitTs(xid);
			ExtendSUBTRANS(xid);
			xids[n++] = xid;
			FullTransactionIdAdvance(&next);
		}
		NVM_FAILPOINT("resolve-skip-xids");
		if (XLogStandbyInfoActive())
			log_skipped(xids, n);
		NvmXidVars->nextXid = next;
	}
}

/*
 * The skipped xids have ended: snapshots begin above them, and a process that
 * asks is not told that one is in progress.
 */
static void
advance_latest_completed(FullTransactionId target)
{
	FullTransactionId last = target;

	FullTransactionIdRetreat(&last);
	LWLockAcquire(ProcArrayLock, LW_EXCLUSIVE);
	if (FullTransactionIdPrecedes(NvmXidVars->latestCompletedXid, last))
	{
		NvmXidVars->latestCompletedXid = last;
		NvmXidVars->xactCompletionCount++;
	}
	LWLockRelease(ProcArrayLock);
}

/*
 * After a crash, when everything in doubt is decided: keep the promise.  The
 * caller holds wbl_lock, and nobody has an xid of this run yet.  May ERROR;
 * the next call goes on.
 */
void
nvm_xid_keep_promise(void)
{
	uint64		promise = pg_atomic_read_u64(&NvmPool->xid_promise);
	FullTransactionId target = FullTransactionIdFromU64(promise);
	FullTransactionId next;
	uint64		distance;
	uint32		limit;

	LWLockAcquire(XidGenLock, LW_EXCLUSIVE);
	next = NvmXidVars->nextXid;
	if (!FullTransactionIdPrecedes(next, target))
	{
		LWLockRelease(XidGenLock);
		return;
	}

	/*
	 * from here to where PostgreSQL stops handing out xids, or has stopped
	 * already
	 */
	distance = promise - U64FromFullTransactionId(next);
	limit = NvmXidVars->xidStopLimit - XidFromFullTransactionId(next);
	if (distance > XID_SKIP_MAX || limit > PG_INT32_MAX || distance >= limit)
	{
		LWLockRelease(XidGenLock);
		ereport(LOG,
				(errmsg("nvm: transaction IDs of rows written before the crash may be used again"),
				 errdetail("The next transaction ID is %llu, such rows may carry IDs up to %llu, and this is too far or beyond the limit of wraparound.",
						   (unsigned long long) U64FromFullTransactionId(next),
						   (unsigned long long) promise - 1)));
		return;
	}
	skip_xids(target);
	LWLockRelease(XidGenLock);
	advance_latest_completed(target);

	ereport(LOG,
			(errmsg("nvm: skipped %llu transaction IDs, up to %llu, that rows written before the crash may carry",
					(unsigned long long) distance, (unsigned long long) promise - 1)));
}
