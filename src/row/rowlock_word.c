/*-------------------------------------------------------------------------
 *
 * rowlock_word.c
 *	  The lock word of a row: who holds a lock on it, and one locker more.
 *
 * A lock word names one (sub)transaction and its mode, or a multixact of
 * lockers.  Updaters and deleters are never in it: their mark is the version's
 * end.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/xact.h"
#include "pool/nvm_pool.h"
#include "row/nvm_change.h"
#include "row/nvm_modify.h"
#include "row/nvm_row_word.h"
#include "row/nvm_space.h"
#include "storage/procarray.h"
#include "xact/nvm_xact.h"

/* the heavyweight lock that waiters for a row take, by strength */
const LOCKMODE nvm_tuplock_mode[] = {
	AccessShareLock,			/* LockTupleKeyShare */
	RowShareLock,				/* LockTupleShare */
	ExclusiveLock,				/* LockTupleNoKeyExclusive */
	AccessExclusiveLock			/* LockTupleExclusive */
};

MultiXactStatus
nvm_lock_status(LockTupleMode mode)
{
	switch (mode)
	{
		case LockTupleKeyShare:
			return MultiXactStatusForKeyShare;
		case LockTupleShare:
			return MultiXactStatusForShare;
		case LockTupleNoKeyExclusive:
			return MultiXactStatusForNoKeyUpdate;
		case LockTupleExclusive:
			return MultiXactStatusForUpdate;
	}
	return MultiXactStatusForUpdate;	/* keep compiler quiet */
}

/*
 * The lock word if it means anything, else 0.
 */
uint64
nvm_row_lock_word(NvmVersion *root)
{
	uint64		lock = *nvm_lock_word(root);
	uint16		inc = (uint16) NvmPool->incarnation;

	if (lock == 0 || inc == 0 || NVM_LOCK_INC(lock) != inc)
		return 0;
	if (NVM_LOCK_BITS(lock) & NVM_LOCK_MULTI)
	{
		/* all members of a multixact that old are gone */
		if (MultiXactIdPrecedes(NVM_LOCK_XID(lock), GetOldestMultiXactId()))
			return 0;
	}
	return lock;
}

/*
 * Does a locker other than ourselves keep us from taking `mode`?  Then *xwait
 * is its xid, or the multixact.
 *
 * Caller holds the row lock.
 */
bool
nvm_row_locked_against(NvmVersion *root, LockTupleMode mode, TransactionId *xwait,
					   bool *is_multi)
{
	uint64		lock = nvm_row_lock_word(root);
	TransactionId xid = NVM_LOCK_XID(lock);
	MultiXactMember *members;
	int			n;
	bool		conflict = false;

	*is_multi = false;
	if (lock == 0)
		return false;
	*xwait = xid;
	if (!(NVM_LOCK_BITS(lock) & NVM_LOCK_MULTI))
		return nvm_lock_modes_conflict(nvm_lock_word_mode(lock), mode) &&
			!TransactionIdIsCurrentTransactionId(xid) &&
			TransactionIdIsInProgress(xid);

	*is_multi = true;
	if (!nvm_lock_modes_conflict(nvm_lock_word_mode(lock), mode))
		return false;
	n = GetMultiXactIdMembers(xid, &members, false, true);
	for (int i = 0; i < n && !conflict; i++)
	{
		conflict = nvm_lock_modes_conflict((LockTupleMode) members[i].status, mode) &&
			!TransactionIdIsCurrentTransactionId(members[i].xid) &&
			TransactionIdIsInProgress(members[i].xid);
	}
	if (n > 0)
		pfree(members);
	return conflict;
}

/*
 * Do we hold a lock of any strength on the row already?  A transaction that
 * upgrades its lock must not queue for the tuple lock behind one that waits
 * for it.  Caller holds the row lock.
 */
bool
nvm_row_locked_by_me(NvmVersion *root)
{
	uint64		lock = nvm_row_lock_word(root);
	MultiXactMember *members;
	int			n;
	bool		mine = false;

	if (lock == 0)
		return false;
	if (!(NVM_LOCK_BITS(lock) & NVM_LOCK_MULTI))
		return TransactionIdIsCurrentTransactionId(NVM_LOCK_XID(lock));

	n = GetMultiXactIdMembers(NVM_LOCK_XID(lock), &members, false, true);
	for (int i = 0; i < n && !mine; i++)
		mine = TransactionIdIsCurrentTransactionId(members[i].xid);
	if (n > 0)
		pfree(members);
	return mine;
}

/*
 * Change the lock word for a lock of the current transaction, which is noted
 * for PREPARE TRANSACTION.  May ERROR before the change.
 */
static void
set_lock_word(NvmRelState *state, uint64 root, uint64 *word, uint64 lock)
{
	if (nvm_xact_notes_row_locks())
		nvm_row_change(NVM_UNDO_LOCK, state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
	*word = lock;
}

/*
 * Add ourselves to the lock word of a root, unless we already hold as much.
 *
 * Caller holds the row lock and has found no conflict.
 */
void
nvm_row_add_locker(NvmRelState *state, uint64 rootref, LockTupleMode mode, TransactionId xid)
{
	NvmVersion *root = nvm_cell(state, NVM_REF_BLOCK(rootref), NVM_REF_OFFSET(rootref));
	uint64	   *word = nvm_lock_word(root);
	uint64		lock = nvm_row_lock_word(root);
	TransactionId old = NVM_LOCK_XID(lock);
	LockTupleMode strongest = mode;
	uint16		inc = (uint16) NvmPool->incarnation;
	MultiXactId multi;

	if (lock == 0)
		;
	else if (NVM_LOCK_BITS(lock) & NVM_LOCK_MULTI)
	{
		MultiXactMember *members;
		int			n = GetMultiXactIdMembers(old, &members, false, true);
		bool		held = false;
		bool		alive = false;

		for (int i = 0; i < n; i++)
		{
			if (TransactionIdIsCurrentTransactionId(members[i].xid))
			{
				alive = true;
				held |= (LockTupleMode) members[i].status >= mode;
			}
			else if (TransactionIdIsInProgress(members[i].xid))
			{
				alive = true;
				strongest = Max(strongest, (LockTupleMode) members[i].status);
			}
		}
		if (n > 0)
			pfree(members);
		if (held)
			return;
		if (alive)
		{
			strongest = Max(strongest, nvm_lock_word_mode(lock));
			multi = MultiXactIdExpand(old, xid, nvm_lock_status(mode));
			set_lock_word(state, rootref, word, NVM_LOCK_MAKE(multi, inc, NVM_LOCK_MULTI | (strongest + 1)));
			return;
		}
	}
	else if (TransactionIdIsCurrentTransactionId(old) || TransactionIdIsInProgress(old))
	{
		LockTupleMode oldmode = nvm_lock_word_mode(lock);

		if (TransactionIdIsCurrentTransactionId(old) && oldmode >= mode)
			return;
		if (old != xid)
		{
			/* another locker, or a parent whose weaker lock outlives us */
			multi = MultiXactIdCreate(old, nvm_lock_status(oldmode), xid, nvm_lock_status(mode));
			strongest = Max(mode, oldmode);
			set_lock_word(state, rootref, word, NVM_LOCK_MAKE(multi, inc, NVM_LOCK_MULTI | (strongest + 1)));
			return;
		}
	}
	set_lock_word(state, rootref, word, NVM_LOCK_MAKE(xid, inc, mode + 1));
}
