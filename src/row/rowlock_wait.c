/*-------------------------------------------------------------------------
 *
 * rowlock_wait.c
 *	  Wait for the transactions that hold a lock on a row.
 *
 * Waiting goes through heavyweight tuple locks as in heap, so that waiters
 * queue and deadlocks are found.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/xact.h"
#include "compat/nvm_compat.h"
#include "row/nvm_modify.h"
#include "row/nvm_row_word.h"

/*
 * Wait for the locker(s) found by nvm_row_locked_against.
 */
void
nvm_row_lock_wait(Relation rel, TransactionId xwait, bool is_multi,
				  LockTupleMode mode, ItemPointer tid, XLTW_Oper oper)
{
	MultiXactMember *members;
	int			n;

	if (!is_multi)
	{
		XactLockTableWait(xwait, rel, tid, oper);
		return;
	}
	n = GetMultiXactIdMembers(xwait, &members, false, true);
	for (int i = 0; i < n; i++)
	{
		if (nvm_lock_modes_conflict((LockTupleMode) members[i].status, mode) &&
			!TransactionIdIsCurrentTransactionId(members[i].xid))
			XactLockTableWait(members[i].xid, rel, tid, oper);
	}
	if (n > 0)
		pfree(members);
}

/*
 * Can all conflicting lockers be had without waiting?
 */
bool
nvm_row_lock_try_wait(TransactionId xwait, bool is_multi, LockTupleMode mode)
{
	MultiXactMember *members;
	int			n;
	bool		ok = true;

	if (!is_multi)
		return NvmConditionalXactWait(xwait);
	n = GetMultiXactIdMembers(xwait, &members, false, true);
	for (int i = 0; i < n && ok; i++)
	{
		if (nvm_lock_modes_conflict((LockTupleMode) members[i].status, mode) &&
			!TransactionIdIsCurrentTransactionId(members[i].xid))
			ok = NvmConditionalXactWait(members[i].xid);
	}
	if (n > 0)
		pfree(members);
	return ok;
}

void
nvm_row_lock_not_available(Relation rel)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not obtain lock on row in relation \"%s\"",
					RelationGetRelationName(rel))));
}

/*
 * Queue for a row: take its heavyweight lock, once.  Returns false if the
 * policy is to skip and somebody else has it.
 */
bool
nvm_acquire_tuplock(Relation rel, ItemPointer tid, LockTupleMode mode,
					LockWaitPolicy wait_policy, bool *have)
{
	if (*have)
		return true;
	switch (wait_policy)
	{
		case LockWaitBlock:
			LockTuple(rel, tid, nvm_tuplock_mode[mode]);
			break;
		case LockWaitSkip:
			if (!NvmConditionalLockTuple(rel, tid, nvm_tuplock_mode[mode]))
				return false;
			break;
		case LockWaitError:
			if (!NvmConditionalLockTuple(rel, tid, nvm_tuplock_mode[mode]))
				nvm_row_lock_not_available(rel);
			break;
	}
	*have = true;
	return true;
}

void
nvm_release_tuplock(Relation rel, ItemPointer tid, LockTupleMode mode, bool *have)
{
	if (*have)
		UnlockTuple(rel, tid, nvm_tuplock_mode[mode]);
	*have = false;
}
