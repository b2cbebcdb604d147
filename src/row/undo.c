/*-------------------------------------------------------------------------
 *
 * undo.c
 *	  Taking back: what an aborted transaction did, and what a crash left.
 *
 * Both leave the same state.  A version that never existed becomes RETIRED,
 * or DEAD where an index entry may lead to it; an end that never happened
 * becomes 0.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_change.h"
#include "row/nvm_modify.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_space.h"
#include "row/nvm_version.h"
#include "row/nvm_visibility.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_xact.h"

/*
 * Take back an end.  Caller holds the row lock.
 *
 * The root's hint is dropped rather than led back to v.  The same abort may
 * undo v, before or after this, since a range is not undone in the order of
 * the row's versions.  The next update sets it again.
 */
static void
clear_end(NvmRelState *state, NvmVersion *v)
{
	uint64		root = nvm_version_root(v);
	uint64		next = nvm_load(&v->next);

	nvm_store(&v->end, 0);
	nvm_store(&v->next, NVM_REF_MAKE(0, 0, NVM_NEXT_CELLS(NVM_REF_HI(next))));
	v->tuple.infomask2 &= ~HEAP_KEYS_UPDATED;
	nvm_flush(v, NVM_CELL_SIZE);
	if (NVM_REF_IS_VALID(next) && !(NVM_REF_HI(next) & NVM_NEXT_OTHER_ROOT))
		nvm_store(&nvm_cell(state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root))->link, 0);
}

/*
 * Undo one version of an aborted (sub)transaction, at cell `off` of the range.
 */
static void
undo_version(NvmRelState *state, const NvmUndoRange *range, uint32 off,
			 NvmStamp stamp)
{
	NvmUndoKind kind = range->kind;
	TransactionId xid = range->xid;
	NvmVersion *v = nvm_cell(state, range->blk, off);
	LWLock	   *lock;

	if (kind == NVM_UNDO_INSERT)
	{
		if (nvm_load(&v->begin) != stamp || v->tuple.xmin != xid)
			return;
	}
	else if (nvm_load(&v->end) != stamp || !nvm_begin_is_version(nvm_load(&v->begin)) ||
			 v->tuple.xend != xid)
	{
		/*
		 * Perhaps a process that saw our xid gone has taken the row over. Its
		 * fence is yet to come, our stamp is about to be decided, and the
		 * medium may still have our end.  That end goes with our fence.
		 */
		nvm_flush(v, NVM_CELL_SIZE);
		return;
	}

	lock = nvm_row_lock(state->dir, NVM_REF_BLOCK(nvm_version_root(v)));
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (kind == NVM_UNDO_INSERT)
	{
		bool		root = (v->flags & NVM_VF_ROOT) != 0;

		nvm_version_retire(state, v, range->blk, off, stamp,
						   root && !(v->flags & NVM_VF_NOINDEX) ?
						   NVM_STAMP_DEAD : NVM_STAMP_RETIRED);
		if (root)
			nvm_space_taken_back(state);
	}
	else if (nvm_load(&v->end) == stamp && v->tuple.xend == xid)
		clear_end(state, v);
	else
		nvm_flush(v, NVM_CELL_SIZE);	/* taken over just now */
	LWLockRelease(lock);
}

/*
 * NvmUndoOps.undo_range: see nvm_xact.h.
 */
void
nvm_undo_range(const NvmUndoRange *range, NvmStamp stamp)
{
	NvmRelState *state = &nvm_relstates[range->dir];
	NvmBlock   *block;
	uint32		off = range->off_first - 1;

	if (state->dir != range->dir || range->blk >= nvm_rel_nblocks(state))
		return;
	block = nvm_block(state, range->blk);
	while ((off = nvm_block_next_start(block, off + 1)) != 0 && off <= range->off_last)
		undo_version(state, range, off, stamp);
}

/*
 * Does an area start at (blk, off), with this begin?  The collector goes by
 * the starts bits without a lock.  What it looks at may have been freed, and
 * may be the middle of a row by now, whose data looks like anything.
 */
static bool
starts_area(NvmRelState *state, NvmVersion *v, uint32 blk, uint32 off, uint64 begin)
{
	LWLock	   *lock = nvm_alloc_lock(state->dir, blk);
	bool		result;

	LWLockAcquire(lock, LW_SHARED);
	result = nvm_tid_exists(state, blk, off) && nvm_load(&v->begin) == begin;
	LWLockRelease(lock);
	return result;
}

/*
 * Undo what a gap says never happened to one version.
 *
 * Whether the stamp is frozen does not matter.  The stamp of an abort that
 * could not be played joins the gap, and old snapshots may keep it from
 * freezing for long.  But once the sweep is over the gap is dropped.
 */
static bool
collect_version(NvmRelState *state, uint32 blk, uint32 off)
{
	NvmVersion *v = nvm_cell(state, blk, off);
	uint64		begin = nvm_load(&v->begin);
	uint64		root;
	uint64		end;
	LWLock	   *lock;
	bool		changed = false;

	if (!nvm_begin_is_version(begin))
		return false;
	if (nvm_stamp_in_gap(begin))
	{
		/*
		 * No process can stand on it but this incarnation's readers, and
		 * those skip it.  What it holds may be torn: unless it proves that no
		 * index leads here, VACUUM decides.
		 */
		bool		unindexed;

		/*
		 * Only collectors retire it.  A process that copies a storage is
		 * another collector, of the copy.  It may have made the version DEAD;
		 * then a VACUUM might free the cells, and an insertion use them,
		 * before we come to retire it.
		 */
		lock = nvm_row_lock(state->dir, blk);
		LWLockAcquire(lock, LW_EXCLUSIVE);
		if (starts_area(state, v, blk, off, begin))
		{
			unindexed = nvm_version_is_sound(v) &&
				(!(v->flags & NVM_VF_ROOT) || (v->flags & NVM_VF_NOINDEX));

			/*
			 * Its area is not used again as long as the stamp is in the gap.
			 * If it is DEAD, it is not used before VACUUM has been here.
			 */
			nvm_version_retire(state, v, blk, off, begin,
							   unindexed ? NVM_STAMP_RETIRED : NVM_STAMP_DEAD);
			changed = true;
		}
		LWLockRelease(lock);
		return changed;
	}

	end = nvm_load(&v->end);
	if (end == 0 || !nvm_stamp_in_gap(end))
		return false;
	root = nvm_version_root(v);
	lock = nvm_row_lock(state->dir, NVM_REF_BLOCK(root));
	LWLockAcquire(lock, LW_EXCLUSIVE);
	end = nvm_load(&v->end);
	if (starts_area(state, v, blk, off, begin) && nvm_version_root(v) == root &&
		end != 0 && nvm_stamp_in_gap(end))
	{
		clear_end(state, v);
		changed = true;
	}
	LWLockRelease(lock);
	return changed;
}

/*
 * Is this the begin of a version that a stub leads to, and that is about to be
 * retired?  It is all that there is of the row: its prepared transaction was rolled back
 * after a rebuild (rebuild.c).
 */
static inline bool
never_existed(uint64 begin)
{
	return nvm_begin_is_version(begin) && nvm_stamp_in_gap(begin);
}

/*
 * A crash may have kept the retirement of versions, but not the new link past
 * them in the root or in a version that was kept.  Make that link lead to
 * what is left.  If nothing is left, the whole row was being unlinked, and
 * the root, or its stub, was yet to become DEAD.  Then make it lead nowhere;
 * the next prune makes it DEAD.  Nothing retired is reused before this has
 * been done everywhere.
 */
static bool
relink(NvmRelState *state, uint32 blk, uint32 off)
{
	NvmVersion *v = nvm_cell(state, blk, off);
	uint64		begin = nvm_load(&v->begin);
	uint64		root = NVM_REF_MAKE(blk, off, 0);
	uint16		skips = 0;
	bool		changed = false;
	NvmChainGuard guard = {0};
	LWLock	   *lock;

	if (nvm_begin_is_version(begin))
	{
		if (nvm_load(&v->end) == 0)
			return false;
		root = nvm_version_root(v);
		skips = NVM_NEXT_SKIPS;
	}
	else if (!nvm_begin_is(begin, NVM_STAMP_STUB))
		return false;

	lock = nvm_row_lock(state->dir, NVM_REF_BLOCK(root));
	LWLockAcquire(lock, LW_EXCLUSIVE);
	while (starts_area(state, v, blk, off, begin))
	{
		uint64		next = nvm_load(&v->next);
		NvmVersion *w;
		uint64		after;

		if (!NVM_REF_IS_VALID(next) || (NVM_REF_HI(next) & NVM_NEXT_OTHER_ROOT) ||
			!nvm_tid_exists(state, NVM_REF_BLOCK(next), NVM_REF_OFFSET(next)))
			break;
		w = nvm_cell(state, NVM_REF_BLOCK(next), NVM_REF_OFFSET(next));
		if (!(nvm_begin_is(nvm_load(&w->begin), NVM_STAMP_RETIRED) ||
			  (skips == 0 && never_existed(nvm_load(&w->begin)))) ||
			nvm_version_root(w) != root ||
			nvm_chain_circles(&guard, next))	/* the checker's, not ours */
			break;
		after = nvm_load(&w->next);
		if (!NVM_REF_IS_VALID(after) || (NVM_REF_HI(after) & NVM_NEXT_OTHER_ROOT))
		{
			TransactionId xend;

			/*
			 * an abort retires the new version first, and then takes back the
			 * end
			 */
			if (skips != 0 && nvm_version_end_state(v, &xend) != NVM_END_COMMITTED)
				break;
			after = 0;
		}
		nvm_store(&v->next, NVM_REF_MAKE(NVM_REF_BLOCK(after), NVM_REF_OFFSET(after),
										 NvmVersionCells(v) | (after != 0 ? skips : 0) |
										 (skips ? NVM_REF_HI(next) & NVM_NEXT_KEYS : 0)));
		changed = true;
	}
	if (changed)
		nvm_flush(&v->next, sizeof(uint64));
	LWLockRelease(lock);
	return changed;
}

/*
 * Can the transaction that is said to have retired an area, *said, be none of
 * this or an earlier incarnation?
 */
static bool
retired_by_nobody(NvmVersion *v, uint64 *said)
{
	uint64		begin = nvm_load(&v->begin);
	uint64		by;

	if (NvmVersionCells(v) < 2 ||
		!(nvm_begin_is(begin, NVM_STAMP_RETIRED) || nvm_begin_is(begin, NVM_STAMP_STUB)))
		return false;
	*said = by = nvm_load(NvmRetiredBy(v));
	return by != 0 && NVM_STAMP_SLOT(by) < NVM_SLOT_NUMBERS &&
		NVM_STAMP_COUNTER(by) >
		pg_atomic_read_u64(&nvm_slots[NVM_STAMP_SLOT(by)].durable) + 1;
}

/*
 * Then forget it: the word is not flushed, may be anything after a crash, and
 * would keep the area from being reused for ever.
 */
static void
check_retired_by(NvmRelState *state, uint32 blk, uint32 off)
{
	NvmVersion *v = nvm_cell(state, blk, off);
	uint64		by;
	LWLock	   *lock;

	if (!retired_by_nobody(v, &by))
		return;

	/*
	 * a process that retires it in this moment may have stored begin, and not
	 * yet this
	 */
	lock = nvm_alloc_lock(state->dir, blk);
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (nvm_tid_exists(state, blk, off) && retired_by_nobody(v, &by))
		(void) __atomic_compare_exchange_n(NvmRetiredBy(v), &by, 0, false,
										   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	LWLockRelease(lock);
}

/*
 * NvmTableOps.collect_block: see nvm_wbl.h.
 */
uint32
nvm_collect_block(uint32 dir, uint32 blk)
{
	NvmRelState *state = &nvm_relstates[dir];
	NvmBlock   *block;
	uint32		off = NVM_FIRST_CELL - 1;
	uint32		n = 0;
	bool		torn = pg_atomic_read_u32(&NvmWbl->ntorn) > 0;

	if (state->dir != dir || blk >= nvm_rel_nblocks(state))
		return 0;
	block = nvm_block(state, blk);
	if (block->magic != NVM_BLOCK_MAGIC)
		return 0;
	while ((off = nvm_block_next_start(block, off + 1)) != 0)
	{
		n += collect_version(state, blk, off) ? 1 : 0;
		if (torn)
			n += relink(state, blk, off) ? 1 : 0;
		check_retired_by(state, blk, off);
	}

	/*
	 * If no trace was found, one of the processes that died may have removed
	 * it and not come to flush that.  Orderly stops since then, before a
	 * process came by here, have not flushed it either.
	 */
	nvm_flush(block, NVM_UNIT_SIZE);
	return n;
}

/*
 * Tell the layers below how rows are undone and collected.
 */
void
nvm_table_register(void)
{
	static const NvmUndoOps undo_ops = {
		.undo_range = nvm_undo_range,
		.locks_held = nvm_locks_held,
		.is_table = nvm_relation_is_nvm,
		.capture_range = nvm_capture_range,
		.capture_storage = nvm_capture_storage
	};
	static const NvmTableOps table_ops = {
		.collect_block = nvm_collect_block,
		.collect_large = nvm_collect_large,
		.restore_lock = nvm_restore_lock
	};

	nvm_xact_register_undo_ops(&undo_ops);
	nvm_wbl_register_table_ops(&table_ops);
}
