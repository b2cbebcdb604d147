/*-------------------------------------------------------------------------
 *
 * allvisible.c
 *	  Index-only scans that need not look at the row.
 *
 * A bit for each block says that a scan that comes from an index need not look
 * at the row (pool/nvm_allvisible.h).  README.md, "Blocks that are visible to
 * all", says what a set bit promises, and why a scan that relies on it is
 * right.
 *
 * PostgreSQL's executor asks a visibility map, which our tables do not have.
 * Then it has the row fetched into a slot, and empties that without looking at
 * it.  An ExecutorStart hook marks these slots.  Where the bit is set, the
 * fetch (indexfetch.c) leaves them as they are.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "executor/executor.h"
#include "nodes/nodeFuncs.h"
#include "pool/nvm_allvisible.h"
#include "pool/nvm_pool.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_tuple_slot.h"
#include "row/nvm_version.h"
#include "row/nvm_visibility.h"
#include "storage/nvm_allvisible_set.h"
#include "storage/proc.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"

/* look at so many versions of a row; a longer chain waits for its pruning */
#define MAX_CHAIN				4

/* for so many storages a process remembers how often looking was in vain */
#define PATIENCE_ENTRIES		64
#define PATIENCE_MAX			1024

/* ---- what a block must look like ---- */

static inline bool
stamp_is_everybodys(uint64 stamp)
{
	return nvm_stamp_is_frozen(stamp) && !nvm_stamp_in_gap(stamp);
}

/*
 * Does a search from the root v, a version or a stub, end at a version that
 * every snapshot sees?  Caller holds the row lock.
 */
static bool
row_is_everybodys(NvmRelState *state, NvmVersion *v, uint64 root)
{
	for (int i = 0; i < MAX_CHAIN; i++)
	{
		uint64		begin = nvm_load(&v->begin);
		uint64		next;

		if (nvm_begin_is_version(begin))
		{
			uint64		end = nvm_load(&v->end);

			if (!stamp_is_everybodys(begin) || nvm_version_root(v) != root)
				return false;
			if (end == 0)
				return true;
			if (!stamp_is_everybodys(end))
				return false;
		}
		else if (i > 0 || !nvm_begin_is(begin, NVM_STAMP_STUB))
			return false;

		next = nvm_load(&v->next);
		if (!NVM_REF_IS_VALID(next) || (NVM_REF_HI(next) & NVM_NEXT_OTHER_ROOT) ||
			!nvm_tid_exists(state, NVM_REF_BLOCK(next), NVM_REF_OFFSET(next)))
			return false;
		v = nvm_cell(state, NVM_REF_BLOCK(next), NVM_REF_OFFSET(next));
	}
	return false;
}

/*
 * May the area of v, which is retired, have been a root that a scan is about
 * to come to, by an entry that it has read and not yet followed?
 */
static bool
retired_root_is_remembered(NvmVersion *v, uint64 begin)
{
	FullTransactionId fxid = FullTransactionIdFromU64(NVM_STAMP_COUNTER(begin));

	/* a single cell is what is left of a root */
	if (NvmVersionCells(v) > 1 && (v->flags & NVM_VF_ROOT) == 0)
		return false;
	return !GlobalVisTestIsRemovableFullXid(GlobalVisTestFor(NULL), fxid);
}

/*
 * May the block get its bit, as far as its contents go?  Without strict: may
 * it have kept the bit?
 *
 * Caller holds its row lock and its allocation lock, or asks again with them.
 */
bool
nvm_block_is_everybodys(NvmRelState *state, uint32 blk, bool strict)
{
	NvmBlock   *block = nvm_block(state, blk);
	uint32		covered = NVM_FIRST_CELL;
	uint32		used = 0;
	uint32		cell;

	if (block->magic != NVM_BLOCK_MAGIC ||
		(block->flags & NVM_BLOCK_SUSPECT) != 0 ||
		nvm_incarnation_crashed(block->alloc_inc))
		return false;

	for (cell = nvm_block_next_start(block, NVM_FIRST_CELL); cell != 0;
		 cell = nvm_block_next_start(block, cell + 1))
	{
		NvmVersion *v = (NvmVersion *) ((char *) block + cell * NVM_CELL_SIZE);
		uint64		begin = nvm_load(&v->begin);

		covered += NvmVersionCells(v);
		if (begin == 0 && strict)
			return false;		/* being written, perhaps a root */
		if (begin == 0)
			continue;			/* no root: for that the bit would be cleared */
		if (nvm_begin_is_version(begin))
		{
			if ((v->flags & NVM_VF_ROOT) == 0)
				continue;
			if (nvm_load(&v->end) == 0 ? stamp_is_everybodys(begin) :
				row_is_everybodys(state, v, NVM_REF_MAKE(blk, cell, 0)))
				continue;
			return false;
		}
		if (nvm_begin_is(begin, NVM_STAMP_STUB) ?
			!row_is_everybodys(state, v, NVM_REF_MAKE(blk, cell, 0)) :
			!nvm_begin_is(begin, NVM_STAMP_RETIRED) ||
			(strict && retired_root_is_remembered(v, begin)))
			return false;
	}

	/* damage may have lost a starts bit: the row is not there for a search */
	for (int i = 0; i < (int) lengthof(block->used); i++)
		used += __builtin_popcountll(nvm_load(&block->used[i]));
	return covered == used;
}

/* ---- setting bits ---- */

/*
 * The segment of a block's bit, made if need be; NULL if there is no memory.
 */
static uint64 *
allvisible_make_segment(NvmRelState *state, uint32 k)
{
	Size		size = NVM_ALLVISIBLE_SIZE(k);
	uint64	   *segment = nvm_allvisible_segment(state, k);
	uint64	   *none = NULL;

	if (segment != NULL)
		return segment;
	segment = nvm_dram_try_alloc(size);
	if (segment != NULL &&
		!__atomic_compare_exchange_n(&state->allvisible[k], &none, segment, false,
									 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
	{
		nvm_dram_free(segment, size);
		segment = none;
	}
	return segment;
}

/*
 * Set the block's bit if the contents of the block permit.  True if it is set.
 *
 * Caller holds neither a row lock nor an allocation lock, and has a snapshot
 * or is VACUUM.  wait: wait for these locks; without it, give up if they are
 * held.
 */
bool
nvm_allvisible_try(NvmRelState *state, uint32 blk, bool wait)
{
	LWLock	   *row_lock = nvm_row_lock(state->dir, blk);
	LWLock	   *alloc_lock = nvm_alloc_lock(state->dir, blk);
	uint64	   *segment;
	uint64		mask;
	uint64		after;
	uint32		word;
	bool		result = false;

	if (nvm_allvisible(state, blk))
		return true;
	/* the traces of a crash are cleaned up first */
	if (pg_atomic_read_u32(&NvmWbl->ngaps) > 0)
		return false;
	segment = allvisible_make_segment(state, nvm_allvisible_place(blk, &word, &mask));
	if (segment == NULL)
		return false;

	if (wait)
		LWLockAcquire(row_lock, LW_SHARED);
	else if (!LWLockConditionalAcquire(row_lock, LW_SHARED))
		return false;
	if (wait)
		LWLockAcquire(alloc_lock, LW_SHARED);
	else if (!LWLockConditionalAcquire(alloc_lock, LW_SHARED))
	{
		LWLockRelease(row_lock);
		return false;
	}

	if (nvm_block_is_everybodys(state, blk, true))
	{
		/* after the look at the block, which says that it is not SUSPECT */
		pg_read_barrier();
		after = pg_atomic_read_u64(&state->allvisible_after);
		if (after == 0 ||
			GlobalVisTestIsRemovableFullXid(GlobalVisTestFor(NULL),
											FullTransactionIdFromU64(after)))
		{
			(void) __atomic_fetch_or(&segment[word], mask, __ATOMIC_SEQ_CST);
			result = true;
		}
	}
	LWLockRelease(alloc_lock);
	LWLockRelease(row_lock);
	return result;
}

/*
 * May the block have its bit of barren ones?  Without strict: may it have kept
 * that?  Horizons can go back.
 *
 * Caller holds its allocation lock, or asks again with it.
 */
bool
nvm_block_is_barren(NvmRelState *state, uint32 blk, struct GlobalVisState *vistest,
					bool strict)
{
	NvmBlock   *block = nvm_block(state, blk);
	uint32		cell;

	if (block->magic != NVM_BLOCK_MAGIC)
		return false;
	for (cell = nvm_block_next_start(block, NVM_FIRST_CELL); cell != 0;
		 cell = nvm_block_next_start(block, cell + 1))
	{
		NvmVersion *v = (NvmVersion *) ((char *) block + cell * NVM_CELL_SIZE);
		TransactionId xid;

		switch (nvm_version_vacuum_state(v, vistest, &xid))
		{
			case NVM_VAC_STUB:
			case NVM_VAC_DEAD_ROOT:
			case NVM_VAC_RETIRED:
			case NVM_VAC_DEAD:
				break;
			case NVM_VAC_RECENTLY_DEAD:
				if (!strict)
					break;
				return false;
			default:
				return false;
		}
	}
	return true;
}

/*
 * VACUUM has found nothing alive in the block: set its bit, if that is so.
 *
 * Caller holds its allocation lock, shared, and has had an xid or a snapshot
 * since before it looked at the block.  So no stamp that was undecided when we
 * began is frozen.  Nothing else protects the end of a version whose root is
 * elsewhere: the end could be taken back between our load and our question for
 * its fate, and be frozen by then.  We would take a live row for one that is
 * dead to everybody.
 */
void
nvm_barren_try(NvmRelState *state, uint32 blk, struct GlobalVisState *vistest)
{
	uint32		unused;
	uint64		mask;

	Assert(TransactionIdIsValid(MyProc->xid) || TransactionIdIsValid(MyProc->xmin));
	if (nvm_barren(state, blk) || !nvm_block_is_barren(state, blk, vistest, true) ||
		allvisible_make_segment(state, nvm_allvisible_place(blk, &unused, &mask)) == NULL)
		return;
	(void) __atomic_fetch_or(nvm_barren_word(state, blk, &mask), mask, __ATOMIC_SEQ_CST);
}

/*
 * Index entries that lead to cells without a root have just been removed from
 * all indexes.  Scans may have read some before.
 */
void
nvm_allvisible_hold(NvmRelState *state)
{
	pg_atomic_write_u64(&state->allvisible_after,
						U64FromFullTransactionId(ReadNextFullTransactionId()));
	pg_write_barrier();
}

/*
 * An index-only scan had to look at a row of the block, and saw it.  Is it
 * time for the bit?  Each look that is in vain makes the next one of this
 * process in the table come later.
 */
void
nvm_allvisible_consider_slow(NvmRelState *state, uint32 blk)
{
	static struct
	{
		uint32		dir;
		uint32		wait;		/* rows between two looks */
		uint32		rows;		/* since the last one */
	}			patience[PATIENCE_ENTRIES];
	int			i = state->dir % PATIENCE_ENTRIES;

	if (patience[i].dir != state->dir)
	{
		patience[i].dir = state->dir;
		patience[i].wait = 1;
		patience[i].rows = 0;
	}
	if (++patience[i].rows < patience[i].wait)
		return;
	patience[i].rows = 0;
	if (nvm_allvisible_try(state, blk, false))
		patience[i].wait = Max(patience[i].wait / 2, 1);
	else
		patience[i].wait = Min(patience[i].wait * 2, PATIENCE_MAX);
}

/* ---- slots that nobody reads ---- */

/* a slot for rows of an nvm table was made since ExecutorStart began */
static bool slot_made = false;

/*
 * A slot for rows of an nvm table is wanted.
 */
void
nvm_allvisible_slot_wanted(void)
{
	slot_made = true;
}

/*
 * nodeIndexonlyscan.c empties ioss_TableSlot when a row was found, and does not
 * look at it.
 */
static bool
mark_unread_slots(PlanState *planstate, void *context)
{
	if (planstate == NULL)
		return false;
	if (IsA(planstate, IndexOnlyScanState))
	{
		TupleTableSlot *slot = ((IndexOnlyScanState *) planstate)->ioss_TableSlot;

		if (slot != NULL && TTS_IS_NVM(slot))
			((NvmTupleTableSlot *) slot)->unread = true;
	}
	return planstate_tree_walker(planstate, mark_unread_slots, context);
}

/*
 * ExecutorStart_hook, before the executor opens anything.  Its result goes to
 * `end`.  Queries nest.
 */
bool
nvm_unread_slots_begin(void)
{
	bool		outer = slot_made;

	slot_made = false;
	return outer;
}

void
nvm_unread_slots_end(QueryDesc *queryDesc, int eflags, bool outer)
{
	if (slot_made && (eflags & EXEC_FLAG_EXPLAIN_ONLY) == 0)
		mark_unread_slots(queryDesc->planstate, NULL);
	slot_made = outer;
}
