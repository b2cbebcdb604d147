/*-------------------------------------------------------------------------
 *
 * nvm_xids.c
 *	  For tests of wraparound: moves the next transaction id of a running
 *	  server.
 *
 *	CREATE FUNCTION nvm_test_next_xid(bigint) RETURNS void
 *		AS '.../nvm_xids' LANGUAGE C STRICT;
 *
 * The argument is a full transaction id, the first one of a segment of pg_xact
 * (a multiple of 2^20), so that whoever draws it makes the pages that it needs.
 * None are made for the ids in between, and nobody asks for these.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "compat/nvm_compat.h"
#include "fmgr.h"
#include "storage/lwlock.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(nvm_test_next_xid);

Datum
nvm_test_next_xid(PG_FUNCTION_ARGS)
{
	FullTransactionId target = FullTransactionIdFromU64((uint64) PG_GETARG_INT64(0));
	FullTransactionId last = target;
	uint32		limit;

	if (XidFromFullTransactionId(target) % (1 << 20) != 0 ||
		XidFromFullTransactionId(target) == 0 ||
		TransactionIdIsValid(GetTopTransactionIdIfAny()))
		elog(ERROR, "not a place to move to");

	FullTransactionIdRetreat(&last);
	LWLockAcquire(XidGenLock, LW_EXCLUSIVE);
	limit = NvmXidVars->xidStopLimit - XidFromFullTransactionId(NvmXidVars->nextXid);
	if (FullTransactionIdPrecedes(target, NvmXidVars->nextXid) ||
		U64FromFullTransactionId(target) -
		U64FromFullTransactionId(NvmXidVars->nextXid) >= limit)
		elog(ERROR, "beyond the limits");
	NvmXidVars->nextXid = target;
	LWLockRelease(XidGenLock);

	LWLockAcquire(ProcArrayLock, LW_EXCLUSIVE);
	NvmXidVars->latestCompletedXid = last;
	NvmXidVars->xactCompletionCount++;
	LWLockRelease(ProcArrayLock);
	PG_RETURN_VOID();
}
