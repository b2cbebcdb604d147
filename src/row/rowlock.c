/*-------------------------------------------------------------------------
 *
 * rowlock.c
 *	  Lock rows: SELECT FOR UPDATE and its kin.
 *
 * Lockers of a row are noted in its root, whatever version they locked, so a
 * lock follows the row through updates by itself.  Only an update that makes
 * a new root, because an indexed column changed, has to carry the lock word
 * over.  A locker that meets such an update in progress locks the new root
 * too.
 *
 * The lock word is in rowlock_word.c, and waiting in rowlock_wait.c.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/transam.h"
#include "access/xact.h"
#include "compat/nvm_compat.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_modify.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_row_word.h"
#include "row/nvm_tuple_slot.h"
#include "row/nvm_version.h"
#include "row/nvm_visibility.h"
#include "storage/procarray.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_block.h"
#include "xact/nvm_xact.h"

/*
 * May a row whose version v is the one to lock be locked as far as its newer
 * versions are concerned?  A transaction that updated v without excluding us
 * may have gone on to delete the row, or another after it.  As heap's
 * heap_lock_updated_tuple: TM_Ok, TM_BeingModified (wait for *xwait), or
 * TM_Updated (there is no such row any more).  *elsewhere is the root under
 * which the row goes on, or 0.
 *
 * Caller holds the row lock of v's root.
 */
static TM_Result
check_newer(NvmRelState *state, NvmVersion *v, LockTupleMode mode,
			TransactionId *xwait, uint64 *elsewhere)
{
	NvmChainGuard guard = {0};
	bool		first = true;

	*elsewhere = 0;
	for (;; first = false)
	{
		TransactionId xend;
		NvmEndState es = nvm_version_end_state(v, &xend);
		uint64		next = nvm_load(&v->next);

		if (es == NVM_END_NONE)
			return TM_Ok;
		if (!first && es != NVM_END_OWN &&
			nvm_lock_modes_conflict(nvm_version_end_mode(v), mode))
		{
			*xwait = xend;
			return es == NVM_END_IN_PROGRESS ? TM_BeingModified : TM_Updated;
		}
		if (!NVM_REF_IS_VALID(next))
			return TM_Ok;
		if (NVM_REF_HI(next) & NVM_NEXT_OTHER_ROOT)
		{
			*elsewhere = NVM_REF_TID(next);
			return TM_Ok;
		}
		nvm_chain_guard(state, &guard, next);
		v = nvm_ref_version(state, next);
	}
}

/* what a command that locks a row asks for */
typedef struct RowLockRequest
{
	Relation	rel;
	NvmRelState *state;
	CommandId	cid;
	LockTupleMode mode;
	LockWaitPolicy wait_policy;
	TransactionId xid;			/* ours */
	TM_FailureData *tmfd;
} RowLockRequest;

/* transactions that keep us from locking */
typedef struct RowLockHolder
{
	TransactionId xid;			/* or the multixact of lockers */
	bool		is_multi;
} RowLockHolder;

/*
 * Wait for the transactions that keep us from locking the version at tid, as
 * the policy says.  False: skip.
 */
static bool
wait_by_policy(const RowLockRequest *req, const RowLockHolder *holder,
			   ItemPointer tid, XLTW_Oper oper)
{
	if (req->wait_policy == LockWaitBlock)
		nvm_row_lock_wait(req->rel, holder->xid, holder->is_multi, req->mode,
						  tid, oper);
	else if (!nvm_row_lock_try_wait(holder->xid, holder->is_multi, req->mode))
	{
		if (req->wait_policy == LockWaitError)
			nvm_row_lock_not_available(req->rel);
		return false;
	}
	return true;
}

/*
 * Take the lock, unless somebody keeps us from it: then TM_BeingModified, and
 * *holder is to be waited for.  Other results are final.  *elsewhere is the
 * root under which the row goes on and that must be locked too, or 0.
 *
 * Caller holds the row lock.
 */
static TM_Result
try_lock_row(const RowLockRequest *req, const NvmRowTarget *row,
			 RowLockHolder *holder, uint64 *elsewhere)
{
	NvmVersion *v = row->v;
	TM_Result	result = nvm_version_satisfies_update(v, req->cid, &holder->xid);

	holder->is_multi = false;
	if (result == TM_Invisible || result == TM_SelfModified)
		return result;

	/* ended, or about to be: by a change that leaves the key alone? */
	if (result != TM_Ok)
	{
		if (nvm_lock_modes_conflict(nvm_version_end_mode(v), req->mode) ||
			!NVM_REF_IS_VALID(v->next))
			return result;
	}
	result = check_newer(row->state, v, req->mode, &holder->xid, elsewhere);
	if (result != TM_Ok)
		return result;
	if (nvm_row_locked_against(row->rootv, req->mode, &holder->xid, &holder->is_multi))
		return TM_BeingModified;
	nvm_row_add_locker(row->state, row->root, req->mode, req->xid);
	return TM_Ok;
}

/*
 * The row of the version at tid.  Takes no lock: what is found may change
 * before the row lock is held.
 */
static void
row_to_lock(const RowLockRequest *req, ItemPointer tid, NvmRowTarget *row)
{
	NvmRelState *state = req->state;

	row->rel = req->rel;
	row->state = state;
	row->v = nvm_cell(state, ItemPointerGetBlockNumber(tid),
					  ItemPointerGetOffsetNumber(tid));
	row->tid = *tid;
	row->root = nvm_version_root(row->v);
	row->rootv = nvm_cell(state, NVM_REF_BLOCK(row->root), NVM_REF_OFFSET(row->root));
	row->rlock = nvm_row_lock(state->dir, NVM_REF_BLOCK(row->root));
	ItemPointerSet(&row->roottid, NVM_REF_BLOCK(row->root), NVM_REF_OFFSET(row->root));
	row->have_tuplock = false;
}

/*
 * Lock the row of version tid, as heap_lock_tuple does.  *elsewhere: the root
 * under which the row goes on and that must be locked too, or 0.
 */
static TM_Result
lock_row(const RowLockRequest *req, ItemPointer tid, uint64 *elsewhere)
{
	NvmRowTarget row;
	RowLockHolder holder;
	TM_Result	result;

	row_to_lock(req, tid, &row);
	MultiXactIdSetOldestMember();
	*elsewhere = 0;

	for (;;)
	{
		bool		mine;

		if (nvm_xact_notes_row_locks())
			nvm_undo_reserve();
		LWLockAcquire(row.rlock, LW_EXCLUSIVE);
		result = try_lock_row(req, &row, &holder, elsewhere);
		if (result != TM_BeingModified)
			break;
		mine = nvm_row_locked_by_me(row.rootv);
		LWLockRelease(row.rlock);

		if (!mine &&
			!nvm_acquire_tuplock(req->rel, &row.roottid, req->mode, req->wait_policy,
								 &row.have_tuplock))
			return TM_WouldBlock;
		if (!wait_by_policy(req, &holder, tid, XLTW_Lock))
		{
			nvm_release_tuplock(req->rel, &row.roottid, req->mode, &row.have_tuplock);
			return TM_WouldBlock;
		}
	}
	if (result != TM_Ok && result != TM_Invisible)
		nvm_fill_failure(row.v, tid, result, req->tmfd);
	LWLockRelease(row.rlock);
	nvm_release_tuplock(req->rel, &row.roottid, req->mode, &row.have_tuplock);
	return result;
}

/*
 * Lock the new root of a row whose update we do not conflict with.  TM_Ok also
 * if there is no row here any more; TM_BeingModified: *holder is to be waited
 * for; TM_Updated.  *next is the root under which the row goes on, or 0.
 *
 * Caller holds the row lock.
 */
static TM_Result
try_lock_root(const RowLockRequest *req, uint64 root, RowLockHolder *holder,
			  uint64 *next)
{
	NvmRelState *state = req->state;
	NvmVersion *v = nvm_cell(state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
	uint64		begin = nvm_load(&v->begin);
	NvmVersion *newest = v;
	TransactionId xend;
	NvmEndState ended;
	TM_Result	result;

	*next = 0;
	holder->is_multi = false;
	if (!nvm_begin_is_version(begin) &&
		!(nvm_begin_is(begin, NVM_STAMP_STUB) && NVM_REF_IS_VALID(v->next)))
		return TM_Ok;

	/* a stub's own end is no stamp: begin with what it leads to */
	if (nvm_begin_is(begin, NVM_STAMP_STUB))
		newest = nvm_ref_version(state, v->next);

	/* asked once: the transaction that ended it may roll back at any moment */
	ended = nvm_version_end_state(newest, &xend);
	NVM_FAILPOINT("rowlock-elsewhere");
	if (ended != NVM_END_NONE && ended != NVM_END_OWN &&
		nvm_lock_modes_conflict(nvm_version_end_mode(newest), req->mode))
	{
		holder->xid = xend;
		return ended == NVM_END_IN_PROGRESS ? TM_BeingModified : TM_Updated;
	}
	result = check_newer(state, newest, req->mode, &holder->xid, next);
	if (result != TM_Ok)
		return result;
	if (nvm_row_locked_against(v, req->mode, &holder->xid, &holder->is_multi))
		return TM_BeingModified;
	nvm_row_add_locker(state, root, req->mode, req->xid);
	return TM_Ok;
}

/*
 * Lock the new root(s) of a row whose update we do not conflict with.
 */
static TM_Result
lock_elsewhere(const RowLockRequest *req, uint64 root)
{
	NvmRelState *state = req->state;
	NvmChainGuard guard = {0};

	while (root != 0)
	{
		LWLock	   *rlock = nvm_row_lock(state->dir, NVM_REF_BLOCK(root));
		RowLockHolder holder;
		TM_Result	result;
		uint64		next;

		if (nvm_xact_notes_row_locks())
			nvm_undo_reserve();
		LWLockAcquire(rlock, LW_EXCLUSIVE);
		result = try_lock_root(req, root, &holder, &next);
		LWLockRelease(rlock);

		if (result == TM_Updated)
			return result;
		if (result == TM_BeingModified)
		{
			ItemPointerData tid;

			ItemPointerSet(&tid, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
			if (!wait_by_policy(req, &holder, &tid, XLTW_LockUpdated))
				return TM_WouldBlock;
			/* meanwhile versions may have come where others were */
			memset(&guard, 0, sizeof(guard));
			continue;
		}
		root = next;
		nvm_chain_guard(state, &guard, root);
	}
	return TM_Ok;
}

/*
 * Has a later command of ours made the version, whose begin is `begin`?  It is
 * not to be touched then, and tmfd says so.
 */
static bool
made_by_later_command(const RowLockRequest *req, NvmVersion *v, uint64 begin)
{
	HeapTupleHeader tuple = NvmVersionTuple(v);

	if (!nvm_xact_owns_stamp(begin) ||
		!TransactionIdIsCurrentTransactionId(v->tuple.xmin) ||
		HeapTupleHeaderGetCmin(tuple) < req->cid)
		return false;
	req->tmfd->xmax = v->tuple.xmin;
	req->tmfd->cmax = HeapTupleHeaderGetCmin(tuple);
	return true;
}

/*
 * Find the version after one that was updated, as EvalPlanQual wants it: wait
 * for the transaction that is changing it.  tid is the successor's, `begin`
 * the stamp its predecessor ended with.  On TM_Ok tid is the version to lock.
 */
static TM_Result
find_latest(const RowLockRequest *req, ItemPointer tid, uint64 begin)
{
	NvmRelState *state = req->state;
	NvmChainGuard guard = {0};

	for (;;)
	{
		SnapshotData dirty;
		NvmVersion *v;
		uint64		end;

		if (ItemPointerIndicatesMovedPartitions(tid))
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("tuple to be locked was already moved to another partition due to concurrent update")));

		InitDirtySnapshot(dirty);
		/* else the update that led here was undone */
		if (nvm_tid_begin(state, ItemPointerGetBlockNumber(tid),
						  ItemPointerGetOffsetNumber(tid)) != begin)
			return TM_Deleted;
		v = nvm_cell(state, ItemPointerGetBlockNumber(tid),
					 ItemPointerGetOffsetNumber(tid));

		if (nvm_version_visible(NULL, v, &dirty))
		{
			if (TransactionIdIsValid(dirty.xmin))
				return TM_Deleted;	/* cannot be: its maker has committed */
			if (TransactionIdIsValid(dirty.xmax))
			{
				RowLockHolder holder = {.xid = dirty.xmax,.is_multi = false};

				if (!wait_by_policy(req, &holder, tid, XLTW_FetchUpdated))
					return TM_WouldBlock;
				/* meanwhile versions may have come where others were */
				memset(&guard, 0, sizeof(guard));
				continue;
			}
			return made_by_later_command(req, v, begin) ? TM_SelfModified : TM_Ok;
		}

		/*
		 * ended, by us or by a transaction that committed: what counts is the
		 * transaction that made the newest
		 */
		CHECK_FOR_INTERRUPTS();
		end = nvm_load(&v->end);
		if (end == 0)
			continue;			/* rolled back meanwhile: look again */
		begin = end;
		if (NVM_REF_HI(v->next) & NVM_NEXT_MOVED)
		{
			ItemPointerSetMovedPartitions(tid);
			continue;
		}
		if (!NVM_REF_IS_VALID(v->next))
			return TM_Deleted;
		ItemPointerSet(tid, NVM_REF_BLOCK(v->next), NVM_REF_OFFSET(v->next));
		nvm_chain_guard(state, &guard, v->next);
	}
}

/*
 * tmfd for a version whose successor turned out to be the one to look at.
 */
static void
fill_successor(Relation rel, ItemPointer tid, TM_FailureData *tmfd)
{
	NvmRelState *state = nvm_rel(rel);
	NvmVersion *v = nvm_cell(state, ItemPointerGetBlockNumber(tid),
							 ItemPointerGetOffsetNumber(tid));
	LWLock	   *rlock = nvm_row_lock(state->dir, NVM_REF_BLOCK(nvm_version_root(v)));

	LWLockAcquire(rlock, LW_EXCLUSIVE);
	nvm_fill_failure(v, tid, TM_Updated, tmfd);
	LWLockRelease(rlock);
}

TM_Result
nvm_tuple_lock(Relation rel, ItemPointer tid, Snapshot snapshot,
			   TupleTableSlot *slot, CommandId cid, LockTupleMode mode,
			   LockWaitPolicy wait_policy, uint8 flags, TM_FailureData *tmfd)
{
	TM_Result	result;
	uint64		elsewhere;
	NvmRelState *state = nvm_rel(rel);
	RowLockRequest req = {
		.rel = rel,
		.state = state,
		.cid = cid,
		.mode = mode,
		.wait_policy = wait_policy,
		.tmfd = tmfd
	};

	nvm_xact_before_row_lock();
	tmfd->traversed = false;
	for (;;)
	{
		NvmVersion *v;
		uint64		end;

		/* of a stub the root is not known, and there was no version for long */
		if (!nvm_begin_is_version(nvm_tid_begin(state, ItemPointerGetBlockNumber(tid),
												ItemPointerGetOffsetNumber(tid))))
			return TM_Deleted;
		req.xid = nvm_xact_current_xid();
		result = lock_row(&req, tid, &elsewhere);
		if (result == TM_Ok && elsewhere != 0 &&
			(flags & TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS))
		{
			result = lock_elsewhere(&req, elsewhere);
			if (result == TM_Updated)
				fill_successor(rel, tid, tmfd);
		}
		if (result != TM_Updated || !(flags & TUPLE_LOCK_FLAG_FIND_LAST_VERSION))
			break;

		v = nvm_cell(state, ItemPointerGetBlockNumber(tid),
					 ItemPointerGetOffsetNumber(tid));
		end = nvm_load(&v->end);
		tmfd->traversed = true;
		*tid = tmfd->ctid;
		result = find_latest(&req, tid, end);
		if (result != TM_Ok)
			return result;
	}

	if (nvm_tid_exists(state, ItemPointerGetBlockNumber(tid),
					   ItemPointerGetOffsetNumber(tid)))
		nvm_tts_store(slot, rel,
					  nvm_cell(state, ItemPointerGetBlockNumber(tid),
							   ItemPointerGetOffsetNumber(tid)),
					  ItemPointerGetBlockNumber(tid),
					  ItemPointerGetOffsetNumber(tid));
	return result;
}
