/*-------------------------------------------------------------------------
 *
 * rowlock_prepared.c
 *	  Row locks that outlive their session: PREPARE TRANSACTION.
 *
 * While the server runs, the lock word of a prepared transaction's row names
 * its xid, which is in the proc array as before.  For a restart its locks are
 * listed (wbl_locklist.c); here they are read from the lock words and put back.
 *
 * A row may have gone on under another root since it was locked, by an update
 * that does not exclude FOR KEY SHARE.  While a transaction holds the lock,
 * the root that it was taken on is not pruned away (nvm_chain_prune).  So the
 * way from there can be followed.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "log/nvm_log.h"
#include "pool/nvm_pool.h"
#include "row/nvm_modify.h"
#include "row/nvm_rebuild.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_space.h"
#include "row/nvm_version.h"
#include "row/nvm_visibility.h"
#include "storage/procarray.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"

/*
 * See nvm_modify.h.
 */
bool
nvm_row_is_locked(NvmVersion *root)
{
	uint64		lock = nvm_row_lock_word(root);
	MultiXactMember *members;
	int			n;
	bool		locked = false;

	if (lock == 0)
		return false;
	if (!(NVM_LOCK_BITS(lock) & NVM_LOCK_MULTI))
		return TransactionIdIsInProgress(NVM_LOCK_XID(lock));
	n = GetMultiXactIdMembers(NVM_LOCK_XID(lock), &members, false, true);
	for (int i = 0; i < n && !locked; i++)
		locked = TransactionIdIsInProgress(members[i].xid);
	if (n > 0)
		pfree(members);
	return locked;
}

/*
 * The strongest lock of the current transaction in a lock word.  False if it
 * has none.
 */
static bool
lock_of_mine(uint64 lock, LockTupleMode *mode)
{
	MultiXactMember *members;
	int			n;
	bool		mine = false;

	if (lock == 0)
		return false;
	if (!(NVM_LOCK_BITS(lock) & NVM_LOCK_MULTI))
	{
		*mode = nvm_lock_word_mode(lock);
		return TransactionIdIsCurrentTransactionId(NVM_LOCK_XID(lock));
	}
	n = GetMultiXactIdMembers(NVM_LOCK_XID(lock), &members, false, true);
	for (int i = 0; i < n; i++)
	{
		LockTupleMode m = (LockTupleMode) members[i].status;

		if (!TransactionIdIsCurrentTransactionId(members[i].xid))
			continue;
		*mode = mine ? Max(*mode, m) : m;
		mine = true;
	}
	if (n > 0)
		pfree(members);
	return mine;
}

/*
 * Is v, whose cell begins an area, the root of a row, or its stub?
 */
static bool
is_root(NvmVersion *v)
{
	uint64		begin = nvm_load(&v->begin);

	return nvm_begin_is(begin, NVM_STAMP_STUB) ||
		(nvm_begin_is_version(begin) && (v->flags & NVM_VF_ROOT) != 0);
}

/*
 * NvmUndoOps.locks_held: see nvm_xact.h.
 */
int
nvm_locks_held(uint32 dir, uint32 blk, uint16 off_first, uint16 off_last,
			   NvmLockItem *items)
{
	NvmRelState *state = &nvm_relstates[dir];
	uint32		off = off_first - 1;
	int			n = 0;
	NvmBlock   *block;
	LWLock	   *rlock;

	if (state->dir != dir || blk >= nvm_rel_nblocks(state))
		return 0;
	block = nvm_block(state, blk);
	rlock = nvm_row_lock(dir, blk);
	LWLockAcquire(rlock, LW_EXCLUSIVE);
	while ((off = nvm_block_next_start(block, off + 1)) != 0 && off <= off_last)
	{
		NvmVersion *v = nvm_cell(state, blk, off);
		LockTupleMode mode;

		if (!is_root(v) || !lock_of_mine(nvm_row_lock_word(v), &mode))
			continue;
		memset(&items[n], 0, sizeof(NvmLockItem));
		items[n].dir = dir;
		items[n].block = blk;
		items[n].offset = (uint16) off;
		items[n].mode = (uint16) mode;
		n++;
	}
	LWLockRelease(rlock);
	return n;
}

/*
 * Put a prepared transaction's lock into a lock word.  All lockers there are
 * prepared ones; putting it there twice changes nothing.  May ERROR before
 * the change.  Caller holds the row lock.
 */
static void
restore_locker(NvmVersion *root, LockTupleMode mode, TransactionId xid)
{
	uint64	   *word = nvm_lock_word(root);
	uint64		lock = nvm_row_lock_word(root);
	uint16		inc = (uint16) NvmPool->incarnation;
	LockTupleMode strongest = mode;
	MultiXactId multi;

	if (lock == 0)
	{
		*word = NVM_LOCK_MAKE(xid, inc, mode + 1);
		return;
	}
	strongest = Max(mode, nvm_lock_word_mode(lock));
	if (NVM_LOCK_BITS(lock) & NVM_LOCK_MULTI)
		multi = MultiXactIdExpand(NVM_LOCK_XID(lock), xid, nvm_lock_status(mode));
	else if (NVM_LOCK_XID(lock) == xid)
	{
		*word = NVM_LOCK_MAKE(xid, inc, strongest + 1);
		return;
	}
	else
		multi = MultiXactIdCreate(NVM_LOCK_XID(lock),
								  nvm_lock_status(nvm_lock_word_mode(lock)),
								  xid, nvm_lock_status(mode));
	*word = NVM_LOCK_MAKE(multi, inc, NVM_LOCK_MULTI | (strongest + 1));
}

/*
 * This runs before anybody can do anything: damage to one row must not be an
 * error here. The first look at its block tells a backend that comes to the
 * row.
 */
static void
warn_damaged(NvmRelState *state, uint64 ref)
{
	NvmDirEntry *entry = nvm_dir_entry(state->dir);

	ereport(WARNING,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("nvm relation file %u/%llu is damaged: cannot lock the row at (%u,%u) for a prepared transaction",
					entry->database, (unsigned long long) entry->relnumber,
					NVM_REF_BLOCK(ref), NVM_REF_OFFSET(ref)),
			 errhint("Run nvm.check() on the table.")));
}

/*
 * May lengths and end of a version be believed?
 */
static bool
is_believable(NvmVersion *v)
{
	uint64		end = nvm_load(&v->end);

	return nvm_version_is_sound(v) &&
		(end == 0 || nvm_stamp_is_frozen(end) || nvm_stamp_handed_out(end));
}

/*
 * The root under which a row has gone on, or 0.  Caller holds the row lock.
 */
static uint64
next_root(NvmRelState *state, uint64 root)
{
	uint64		cur = root;
	NvmChainGuard guard = {0};

	for (;;)
	{
		NvmVersion *v = nvm_cell(state, NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur));
		uint64		begin = nvm_load(&v->begin);
		uint64		next = nvm_load(&v->next);
		TransactionId xend;

		if (cur != root && nvm_version_root(v) != root)
			return 0;
		if (nvm_begin_is_version(begin) && !is_believable(v))
		{
			warn_damaged(state, cur);
			return 0;
		}
		/* next is to be trusted behind an end that counts, and in a stub */
		if (nvm_begin_is_version(begin) &&
			nvm_version_end_state(v, &xend) == NVM_END_NONE)
			return 0;
		if (!NVM_REF_IS_VALID(next) ||
			!nvm_tid_exists(state, NVM_REF_BLOCK(next), NVM_REF_OFFSET(next)))
			return 0;
		cur = NVM_REF_TID(next);
		if (NVM_REF_HI(next) & NVM_NEXT_OTHER_ROOT)
			return cur;
		if (nvm_chain_circles(&guard, cur))
		{
			warn_damaged(state, cur);
			return 0;
		}
	}
}

/* are locks being given back on rows that have been rebuilt? */
static bool rebuilt = false;

/*
 * Is the lock another time's business?  Rows of storages that are not open yet get theirs
 * before these open; then the others have theirs already.
 */
static bool
is_not_due(const NvmRelState *state)
{
	bool		open;

	if (state->region != NVM_REGION_VOLATILE)
		return rebuilt;
	open = nvm_log_is_open(state->dir, nvm_dir_entry(state->dir)->creation_id);
	return rebuilt ? open : !open;
}

/* who asks for the storages alone, or NULL */
static void (*note_storage) (uint32 dir, void *arg) = NULL;
static void *note_arg;

/*
 * See nvm_rebuild.h.
 */
void
nvm_rebuild_locked_storages(void (*note) (uint32 dir, void *arg), void *arg)
{
	LWLockAcquire(NvmWbl->wbl_lock, LW_EXCLUSIVE);
	note_storage = note;
	note_arg = arg;
	nvm_twophase_restore_locks();
	note_storage = NULL;
	LWLockRelease(NvmWbl->wbl_lock);
}

/*
 * See nvm_rebuild.h.
 */
void
nvm_rebuild_row_locks(void)
{
	LWLockAcquire(NvmWbl->wbl_lock, LW_EXCLUSIVE);
	rebuilt = true;
	nvm_twophase_restore_locks();
	rebuilt = false;
	LWLockRelease(NvmWbl->wbl_lock);
}

/*
 * NvmTableOps.restore_lock: see nvm_wbl.h.
 *
 * A row that is not there was in a table that the start has emptied: UNLOGGED, or
 * in memory alone.
 */
bool
nvm_restore_lock(const NvmLockItem *item, TransactionId xid)
{
	NvmRelState *state = &nvm_relstates[item->dir];
	uint64		root = NVM_REF_MAKE(item->block, item->offset, 0);
	NvmChainGuard guard = {0};
	bool		found = false;

	if (note_storage != NULL)
	{
		if (item->dir < NVM_MAX_DIRS)
			note_storage(item->dir, note_arg);
		return true;
	}
	if (item->dir == 0 || item->dir >= NVM_MAX_DIRS || state->dir != item->dir)
		return false;
	if (is_not_due(state))
		return true;
	(void) nvm_rel_open(item->dir);
	MultiXactIdSetOldestMember();
	while (root != 0 &&
		   nvm_tid_exists(state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root)))
	{
		NvmVersion *rootv = nvm_cell(state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
		LWLock	   *rlock = nvm_row_lock(item->dir, NVM_REF_BLOCK(root));
		uint64		next = 0;

		LWLockAcquire(rlock, LW_EXCLUSIVE);
		if (is_root(rootv))
		{
			found = true;
			restore_locker(rootv, (LockTupleMode) item->mode, xid);
			next = next_root(state, root);
		}
		LWLockRelease(rlock);
		root = next;
		if (nvm_chain_circles(&guard, root))
		{
			warn_damaged(state, root);
			break;
		}
	}
	return found;
}
