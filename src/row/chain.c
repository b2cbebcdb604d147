/*-------------------------------------------------------------------------
 *
 * chain.c
 *	  Version chains: search, walk, prune.
 *
 * A chain is read without locks, oldest to newest by next or, from the root's
 * hint, newest to oldest by link.  Only next is trusted across a crash, and
 * only behind a committed end: a link carries the incarnation and is ignored
 * in any other.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_poison.h"
#include "pool/nvm_pool.h"
#include "row/nvm_chain.h"
#include "row/nvm_modify.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_serializable.h"
#include "row/nvm_space.h"
#include "row/nvm_version.h"
#include "row/nvm_visibility.h"
#include "storage/proc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_snapshot.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_xact.h"

/* is v, found through a chain, a version of the row with this root? */
static inline bool
same_row(NvmVersion *v, uint64 root)
{
	return nvm_version_root(v) == root;
}

/* TID of the next version of the same row, or 0 */
static inline uint64
next_in_row(NvmVersion *v)
{
	uint64		next = nvm_load(&v->next);

	if (!NVM_REF_IS_VALID(next) || (NVM_REF_HI(next) & NVM_NEXT_OTHER_ROOT))
		return 0;
	return NVM_REF_TID(next);
}

/* may next be followed?  Behind a gap's end stamp it may lead to garbage. */
static inline bool
end_allows_next(uint64 end)
{
	return end != 0 && !(nvm_stamp_is_frozen(end) && nvm_stamp_in_gap(end));
}

/*
 * Is the row's newest version ended by a frozen transaction, with nothing
 * after it?  Then the whole row is durably dead to everybody.  Of a temporary
 * table it need not be durable, and nobody else's snapshot counts.
 */
static bool
ended_for_all(Relation rel, NvmVersion *v)
{
	uint64		end = nvm_load(&v->end);
	TransactionId xid;

	if (end == 0)
		return false;
	if (nvm_stamp_is_frozen(end))
		return !nvm_stamp_in_gap(end);
	return RelationUsesLocalBuffers(rel) &&
		nvm_version_vacuum_state(v, GlobalVisTestFor(rel), &xid) == NVM_VAC_DEAD;
}

/*
 * Search backward from the root's hint.  Returns the version seen, or NULL;
 * *complete tells whether NULL means that the row has no version to see.
 */
static NvmVersion *
search_from_newest(NvmRelState *state, uint64 root, uint64 newest,
				   Snapshot snapshot, ItemPointer tid, bool *complete)
{
	uint64		cur = NVM_REF_TID(newest);
	uint16		inc = (uint16) NvmPool->incarnation;
	NvmChainGuard guard = {0};

	*complete = false;
	for (;;)
	{
		NvmVersion *v = nvm_ref_version(state, cur);
		uint64		link;
		NvmVersion *older;

		if (nvm_begin_is_version(nvm_load(&v->begin)) && same_row(v, root) &&
			nvm_version_visible(NULL, v, snapshot))
		{
			ItemPointerSet(tid, NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur));
			return v;
		}

		link = nvm_load(&v->link);
		if (NVM_REF_HI(link) != inc || !NVM_REF_IS_VALID(link))
			return NULL;
		older = nvm_ref_version(state, NVM_REF_TID(link));
		/* still its neighbour?  A stub skips, which the caller's walk handles */
		if (NVM_REF_TID(nvm_load(&older->next)) != cur)
			return NULL;
		cur = NVM_REF_TID(link);
		if (cur == root)
		{
			*complete = true;	/* the caller has looked at the root */
			return NULL;
		}
		nvm_chain_guard(state, &guard, cur);
	}
}

/*
 * Can a search begin at this root?  *all_dead as for nvm_chain_search.
 */
static bool
root_is_usable(NvmVersion *v, uint64 begin, bool *all_dead)
{
	if (begin == 0)
		return false;
	if (NVM_STAMP_IS_SPECIAL(begin))
	{
		if (NVM_STAMP_SLOT(begin) == NVM_STAMP_STUB)
			return true;
		if (all_dead)
			*all_dead = (NVM_STAMP_SLOT(begin) == NVM_STAMP_DEAD);
		return false;
	}
	/* else the cell may have been reused for a version no index leads to */
	return (v->flags & NVM_VF_ROOT) != 0;
}

/*
 * nvm_chain_search without what SSI wants.
 */
static pg_attribute_always_inline NvmVersion *
search_chain(Relation rel, NvmRelState *state, uint64 root, Snapshot snapshot,
			 ItemPointer tid, bool *all_dead)
{
	uint64		cur = root;
	uint64		begin;
	NvmChainGuard guard = {0};

	if (all_dead)
		*all_dead = false;
	/* an index entry that a crash kept may lead into any area */
	begin = nvm_tid_begin(state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
	if (begin == 0)
		return NULL;

	for (;; begin = nvm_load(&nvm_ref_version(state, cur)->begin))
	{
		NvmVersion *v = nvm_ref_version(state, cur);
		uint64		next;

		if (cur != root)
			NVM_ASSERT_CHAIN_NOT_FREE(v);
		if (cur == root ? !root_is_usable(v, begin, all_dead) : !same_row(v, root))
			return NULL;

		if (nvm_begin_is_version(begin))
		{
			if (nvm_version_visible(NULL, v, snapshot))
			{
				ItemPointerSet(tid, NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur));
				return v;
			}
			if (!end_allows_next(nvm_load(&v->end)) &&
				nvm_load(&v->begin) == begin)
				return NULL;
		}
		next = nvm_load(&v->next);

		if (cur == root && IsMVCCSnapshot(snapshot))
		{
			uint64		link = nvm_load(&v->link);

			if (NVM_REF_HI(link) == (uint16) NvmPool->incarnation &&
				NVM_REF_IS_VALID(link) && NVM_REF_TID(link) != root &&
				NVM_REF_TID(link) != NVM_REF_TID(next))
			{
				bool		complete;
				NvmVersion *found;

				found = search_from_newest(state, root, link, snapshot, tid, &complete);
				if (found || complete)
					return found;
			}
		}

		if (!NVM_REF_IS_VALID(next) || (NVM_REF_HI(next) & NVM_NEXT_OTHER_ROOT))
		{
			if (all_dead && nvm_begin_is_version(begin))
				*all_dead = ended_for_all(rel, v);
			return NULL;
		}
		cur = NVM_REF_TID(next);
		nvm_chain_guard(state, &guard, cur);
	}
}

NvmVersion *
nvm_chain_search(Relation rel, NvmRelState *state, uint64 root,
				 Snapshot snapshot, ItemPointer tid, bool *all_dead)
{
	NvmVersion *v;

	if (rel != NULL)
		nvm_block_prove(rel, state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
	nvm_read_enter();
	v = search_chain(rel, state, root, snapshot, tid, all_dead);
	nvm_read_leave();

	/*
	 * of a block that the row goes on in, its root's proof has seen the frame
	 * alone
	 */
	if (v != NULL && rel != NULL && ItemPointerGetBlockNumber(tid) != NVM_REF_BLOCK(root))
		nvm_block_prove(rel, state, ItemPointerGetBlockNumber(tid),
						ItemPointerGetOffsetNumber(tid));
	nvm_ssi_row(rel, state, root, v, tid, snapshot);
	return v;
}

NvmVersion *
nvm_chain_next(NvmRelState *state, uint64 root, NvmChainPos *pos)
{
	uint64		cur = pos->ref;
	NvmVersion *v;

	if (cur == 0)
	{
		uint64		begin;

		begin = nvm_tid_begin(state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
		if (begin == 0)
			return NULL;
		v = nvm_ref_version(state, root);
		if (!root_is_usable(v, begin, NULL))
			return NULL;
		if (nvm_begin_is_version(begin))
		{
			pos->ref = root;
			return v;
		}
	}
	else
		v = nvm_ref_version(state, cur);

	for (;;)
	{
		if (nvm_begin_is_version(nvm_load(&v->begin)) &&
			!end_allows_next(nvm_load(&v->end)))
			return NULL;
		cur = next_in_row(v);
		if (cur == 0)
			return NULL;
		v = nvm_ref_version(state, cur);
		NVM_ASSERT_CHAIN_NOT_FREE(v);
		if (!same_row(v, root))
			return NULL;
		nvm_chain_guard(state, &pos->guard, cur);
		if (nvm_begin_is_version(nvm_load(&v->begin)))
		{
			pos->ref = cur;
			return v;
		}
		/* RETIRED: unlinked meanwhile, or before a crash: go through it */
	}
}

/*
 * Retire one version of a row that is being pruned, now or with the batch.
 */
static inline void
retire_version(NvmRelState *state, uint64 ref, NvmStamp stamp, uint32 kind,
			   NvmRetireBatch *batch)
{
	if (batch != NULL)
		nvm_retire_add(batch, NVM_REF_BLOCK(ref), NVM_REF_OFFSET(ref), kind);
	else
		nvm_version_retire(state, nvm_ref_version(state, ref), NVM_REF_BLOCK(ref),
						   NVM_REF_OFFSET(ref), stamp, kind);
}

/*
 * Retire the versions of the row from ref up to, not including, stop (0: all).
 */
static int
retire_run(NvmRelState *state, uint64 root, uint64 ref, uint64 stop, NvmStamp stamp,
		   NvmRetireBatch *batch)
{
	NvmChainGuard guard = {0};
	int			n = 0;

	while (ref != 0 && ref != stop)
	{
		NvmVersion *v = nvm_ref_version(state, ref);
		uint64		after = next_in_row(v);

		nvm_chain_guard(state, &guard, ref);

		if (!same_row(v, root))
			break;
		if (nvm_begin_is_version(nvm_load(&v->begin)))
		{
			retire_version(state, ref, stamp, NVM_STAMP_RETIRED, batch);
			n++;
		}
		ref = after;
	}
	return n;
}

/*
 * Find the oldest version of a row that somebody may still need, from `first`
 * on: *needed, or 0 if there is none.  False if the chain leads astray.
 *
 * Caller holds the row lock.
 */
static bool
first_needed(NvmRelState *state, uint64 root, NvmVersion *rootv, uint64 first,
			 struct GlobalVisState *vistest, uint64 *needed)
{
	NvmChainGuard guard = {0};
	uint64		cur = first;

	while (cur != 0)
	{
		NvmVersion *v = nvm_ref_version(state, cur);
		NvmVacuumState vs;
		TransactionId xid;

		if (cur != root && !same_row(v, root))
			return false;		/* leave what the checker should see */
		vs = nvm_version_vacuum_state(v, vistest, &xid);
		if (vs == NVM_VAC_DEAD && !TransactionIdIsValid(xid))
			break;				/* never existed: its undoer's business */
		if (vs != NVM_VAC_DEAD && vs != NVM_VAC_RETIRED)
			break;

		/*
		 * A transaction that locks the row must find where the row went on,
		 * also after it was prepared and the server restarted.
		 */
		if ((NVM_REF_HI(nvm_load(&v->next)) & NVM_NEXT_OTHER_ROOT) &&
			nvm_row_is_locked(rootv))
			break;
		cur = next_in_row(v);
		nvm_chain_guard(state, &guard, cur);
	}
	*needed = cur;
	return true;
}

/*
 * Make the root lead to version `cur` of its row, past those before it.
 *
 * Caller holds the row lock.
 */
static void
lead_past(NvmRelState *state, uint64 root, NvmVersion *rootv, bool stub, uint64 cur)
{
	uint16		hi = NvmVersionCells(rootv);

	/*
	 * it is a version until it is a stub, and a process that dies between
	 * leaves it so
	 */
	if (!stub)
		hi |= NVM_NEXT_SKIPS | (NVM_REF_HI(nvm_load(&rootv->next)) & NVM_NEXT_KEYS);
	nvm_store(&rootv->next, NVM_REF_MAKE(NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur), hi));
	nvm_flush(&rootv->next, sizeof(uint64));
	NVM_FAILPOINT("prune-relinked");
	/* nor may a search from the newest version find them any more */
	nvm_store(&nvm_ref_version(state, cur)->link,
			  NVM_REF_MAKE(NVM_REF_BLOCK(root), NVM_REF_OFFSET(root),
						   (uint16) NvmPool->incarnation));
}

bool
nvm_chain_prune(NvmRelState *state, uint64 root, struct GlobalVisState *vistest,
				NvmRetireBatch *batch, int *nremoved)
{
	NvmStamp	stamp = nvm_xact_stamp_if_any(state->region);
	NvmVersion *rootv = nvm_ref_version(state, root);
	uint64		begin = nvm_load(&rootv->begin);
	bool		stub = nvm_begin_is(begin, NVM_STAMP_STUB);
	uint64		first;
	uint64		cur;
	uint64		ref;

	if (stamp == 0)
		return true;
	if (!stub && (!nvm_begin_is_version(begin) || !(rootv->flags & NVM_VF_ROOT)))
		return true;

	first = stub ? next_in_row(rootv) : root;
	if (!first_needed(state, root, rootv, first, vistest, &cur))
		return true;
	if (cur == first && first != 0)
		return true;

	/*
	 * Unlink: the root leads past them before any of them may be reused,
	 * which their retirement by our stamp sees to.
	 */
	ref = first == root ? next_in_row(rootv) : first;
	if (cur != 0)
	{
		lead_past(state, root, rootv, stub, cur);
		if (!stub)
		{
			retire_version(state, root, stamp, NVM_STAMP_STUB, batch);
			(*nremoved)++;
		}
	}
	else
	{
		NVM_FAILPOINT("prune-before-dead");

		/*
		 * The root leads nowhere before the others are retired, as above.
		 * DEAD even if the row was written when there was no index
		 * (NVM_VF_NOINDEX): one may have been built over it since.
		 */
		retire_version(state, root, stamp, NVM_STAMP_DEAD, batch);
		(*nremoved)++;
	}
	NVM_FAILPOINT("prune-after-unlink");
	*nremoved += retire_run(state, root, ref, cur, stamp, batch);
	return cur != 0;
}

/*
 * Prune the rows that have a dead version in the block, wherever their roots
 * are, as far as their row locks can be had at once.  Returns how many versions
 * were unlinked; their cells are free when we have committed and the horizon
 * has passed.
 *
 * Caller may hold one row lock, and has a stamp.
 */
int
nvm_block_prune(NvmRelState *state, uint32 blk, struct GlobalVisState *vistest)
{
	NvmBlock   *block = nvm_block(state, blk);
	uint32		off = NVM_FIRST_CELL - 1;
	int			nremoved = 0;

	block->ended = 0;
	while ((off = nvm_block_next_start(block, off + 1)) != 0)
	{
		NvmVersion *v = nvm_cell(state, blk, off);
		TransactionId xid;
		uint64		root;
		LWLock	   *lock;
		bool		mine;

		/*
		 * a retired area may be reused while we look at it: begin, then the
		 * bit
		 */
		if (!nvm_begin_is_version(nvm_load(&v->begin)) ||
			!nvm_tid_exists(state, blk, off) ||
			nvm_load(&v->end) == 0 ||
			nvm_version_vacuum_state(v, vistest, &xid) != NVM_VAC_DEAD ||
			!TransactionIdIsValid(xid))
			continue;
		root = nvm_version_root(v);
		if (!nvm_tid_exists(state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root)))
			continue;
		lock = nvm_row_lock(state->dir, NVM_REF_BLOCK(root));
		mine = LWLockHeldByMe(lock);
		if (!mine && !LWLockConditionalAcquire(lock, LW_EXCLUSIVE))
			continue;
		/* it cannot have been reused: we hold the horizon back */
		(void) nvm_chain_prune(state, root, vistest, NULL, &nremoved);
		if (!mine)
			LWLockRelease(lock);
	}
	return nremoved;
}
