/*-------------------------------------------------------------------------
 *
 * space_reclaim.c
 *	  Free the areas that unlinked versions leave.
 *
 * All of this happens under the block's allocation lock.  What a crash may
 * find of it is in README.md, "Space".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_poison.h"
#include "pool/nvm_sound.h"
#include "row/nvm_large.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_row_state.h"
#include "row/nvm_space.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_snapshot.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_xact.h"

/* where a fence is a sync: blocks freed with one, and how far they are looked for */
#define RECLAIM_NEIGHBOURS	48
#define RECLAIM_LOOKS		64

static inline void
clear_bits(uint64 *bits, uint32 cell, uint32 n)
{
	for (uint32 i = cell; i < cell + n; i++)
		bits[i / 64] &= ~(UINT64CONST(1) << (i % 64));
}

/*
 * Has everybody let go of what was unlinked under this xid, old snapshots
 * notwithstanding?  Asks anew once in a transaction.
 */
static bool
nobody_refers(uint64 fxid)
{
	static uint64 limit = 0;
	static NvmStamp asked = NVM_STAMP_NONE;

	if (fxid >= limit && asked != nvm_xact_identity())
	{
		asked = nvm_xact_identity();
		limit = nvm_reuse_limit();
	}
	return fxid < limit;
}

/*
 * May the area of a retired version, or the tail of a stub, be reused?
 * Nobody stands on it, and what was unlinked to retire it is unlinked on
 * media.  After a crash links to retired versions may be left until the
 * collector has been everywhere: until then nothing is reused.
 *
 * Caller holds the block's allocation lock.
 */
bool
nvm_retired_is_free(NvmVersion *v, uint64 begin, struct GlobalVisState *vistest)
{
	FullTransactionId fxid = FullTransactionIdFromU64(NVM_STAMP_COUNTER(begin));

	if (pg_atomic_read_u32(&NvmWbl->ntorn) > 0)
		return false;

	/*
	 * An index entry that a process has read may lead to a root, so roots
	 * wait for every snapshot.  A single cell was a root, too.
	 */
	if (!GlobalVisTestIsRemovableFullXid(vistest, fxid) &&
		(!nvm_snapshots_held() || NvmVersionCells(v) == 1 ||
		 (nvm_begin_is(begin, NVM_STAMP_RETIRED) && (v->flags & NVM_VF_ROOT) != 0) ||
		 !nobody_refers(U64FromFullTransactionId(fxid))))
		return false;

	/*
	 * Only now read by which transaction.  A process that retires stores
	 * begin first; an xid that has passed, or that is below every running
	 * one, says that the process has come further than that
	 * (nvm_version_retire).  Read earlier, this word could be what the
	 * version had there.
	 */
	pg_read_barrier();
	if (NvmVersionCells(v) > 1)
	{
		uint64		by = nvm_load(NvmRetiredBy(v));

		if (by != 0 && NVM_STAMP_SLOT(by) < NVM_SLOT_NUMBERS &&
			NVM_STAMP_COUNTER(by) >
			pg_atomic_read_u64(&nvm_slots[NVM_STAMP_SLOT(by)].durable))
			return false;

		/*
		 * Until the collector's sweep is over, a version that it has not come
		 * to may still lead to what it has retired.
		 */
		if (nvm_stamp_in_gap(by))
			return false;
	}
	return true;
}

/*
 * Give the cells from `from` to the end of the area back, in their own words;
 * the caller drains before they may be used.
 *
 * Caller holds the block's allocation lock.
 */
static void
zero_cells(NvmBlock *block, uint32 from, uint32 to)
{
	for (uint32 cell = from; cell < to; cell++)
		nvm_store(&nvm_block_cell(block, cell)->begin, 0);
	nvm_flush(nvm_block_cell(block, from), (to - from) * NVM_CELL_SIZE);
}

/*
 * A block was sanitized for the sake of what is in it, and no cell of it has
 * been handed out in this incarnation.  Make the block say so, or a crash
 * would make it suspect (README.md, "Suspect blocks").  What was suspect
 * keeps that flag.  All else in the block is durable.  If this is not,
 * nothing is wrong.
 *
 * Caller holds the block's allocation lock since before it was sanitized.
 */
static void
not_handed_out(NvmBlock *block, uint32 alloc_inc)
{
	if (nvm_incarnation_crashed(alloc_inc))
		alloc_inc = nvm_incarnation_last_clean();
	if (alloc_inc != 0)
	{
		block->alloc_inc = alloc_inc;
		nvm_flush(block, NVM_BLOCK_HEADER_SIZE);
	}
}

/* a block of which areas are being freed */
typedef struct Reclaiming
{
	NvmBlock   *block;
	LWLock	   *lock;			/* allocation lock to be released, or NULL */
	LWLock	   *rowlock;		/* the same of row locks */
	uint32		alloc_inc;		/* as it was found */
	int			n;				/* areas: where each begins, how many cells */
	uint8		area[NVM_CELLS];
	uint8		ncells[NVM_CELLS];
} Reclaiming;

/*
 * First half of nvm_space_reclaim: zero what can be freed, flush that and the
 * header.  Stores to durable memory end here.
 *
 * In a neighbour no row lock is taken, because others would wait for it until
 * the fence is over.  So no stub is cut there.  Nor are large values given
 * back, because we would wait for each of them.
 *
 * Caller holds the block's allocation lock.  Returns with the block's row lock
 * held as well if r->rowlock is set.
 */
static void
reclaim_zero(NvmRelState *state, NvmBlock *block, struct GlobalVisState *vistest,
			 bool neighbour, Reclaiming *r)
{
	uint32		off = NVM_FIRST_CELL - 1;
	LWLock	   *rowlock = nvm_row_lock(state->dir, block->blkno);
	bool		mine = LWLockHeldByMe(rowlock);
	bool		locked = !neighbour &&
	(mine || LWLockConditionalAcquire(rowlock, LW_EXCLUSIVE));

	r->block = block;
	r->rowlock = locked && !mine ? rowlock : NULL;
	r->alloc_inc = block->alloc_inc;
	r->n = 0;
	if (r->alloc_inc != NvmPool->incarnation)
		nvm_block_sanitize(block);

	memset(block->retired, 0, sizeof(block->retired));
	while ((off = nvm_block_next_start(block, off + 1)) != 0)
	{
		NvmVersion *v = nvm_block_cell(block, off);
		uint64		begin = nvm_load(&v->begin);
		uint32		to = off + NvmVersionCells(v);
		uint32		from;

		if (nvm_begin_is(begin, NVM_STAMP_RETIRED))
			from = off;
		else if (nvm_begin_is(begin, NVM_STAMP_STUB) && to > off + 1)
			from = off + 1;
		else
			continue;
		if ((from > off && !locked) ||
			(neighbour && to > off + 1 && (v->flags & NVM_VF_LARGE) != 0) ||
			!nvm_retired_is_free(v, begin, vistest))
		{
			/* later, then: the hint keeps the block in the search */
			if (from == off)
				nvm_block_note_retired(block, off);
			else
				block->retired[NVM_RETIRED_MORE] = 1;
			continue;
		}

		if (to > off + 1)
			nvm_large_release(state, v);
		if (from > off)
		{
			/* the lock word moves into end, for good */
			uint64		lock = v->lock;

			nvm_store(&v->next, NVM_REF_MAKE(NVM_REF_BLOCK(v->next),
											 NVM_REF_OFFSET(v->next), 1));
			nvm_store(&v->end, lock);
			nvm_flush(v, NVM_CELL_SIZE);
		}
		zero_cells(block, from, to);
		if (from == off)
			nvm_start_clear(block, off);
		r->area[r->n] = from;
		r->ncells[r->n++] = to - from;
	}
	if (r->n > 0)
		nvm_flush(block, NVM_BLOCK_HEADER_SIZE);
}

/*
 * Second half, after a fence: the cells may be handed out.
 *
 * Caller holds the block's allocation lock.  Releases the locks that r names.
 */
static void
reclaim_free(NvmRelState *state, Reclaiming *r)
{
	NvmBlock   *block = r->block;

	for (int i = 0; i < r->n; i++)
	{
		nvm_poison_cells(block, r->area[i], r->area[i] + r->ncells[i]);
		clear_bits(block->used, r->area[i], r->ncells[i]);
	}
	if (r->n > 0)
		nvm_freemap_promising(state, block->blkno);
	if (r->rowlock != NULL)
		LWLockRelease(r->rowlock);
	if (r->alloc_inc != NvmPool->incarnation)
		not_handed_out(block, r->alloc_inc);
	if (r->lock != NULL)
		LWLockRelease(r->lock);
}

/*
 * If a fence is a sync: zero what can be freed in the next blocks, too, so
 * that one fence does for all.  Waits for nothing.  Returns how many there
 * are.
 */
static int
reclaim_neighbours(NvmRelState *state, uint32 blk, struct GlobalVisState *vistest,
				   Reclaiming *list)
{
	uint32		end = Min(blk + 1 + RECLAIM_LOOKS, pg_atomic_read_u32(&state->nblocks));
	int			n = 0;

	for (blk++; blk < end && n < RECLAIM_NEIGHBOURS; blk++)
	{
		NvmBlock   *block = nvm_block(state, blk);
		LWLock	   *lock = nvm_alloc_lock(state->dir, blk);

		/*
		 * what has to be verified or sanitized first costs more than this
		 * fence
		 */
		if (!nvm_unit_is_sound(block) || !nvm_block_has_retired(block) ||
			LWLockHeldByMe(lock) || !LWLockConditionalAcquire(lock, LW_EXCLUSIVE))
			continue;
		if (nvm_block_is_initialised(state, block, blk) &&
			block->alloc_inc == NvmPool->incarnation)
		{
			reclaim_zero(state, block, vistest, true, &list[n]);
			list[n].lock = lock;
			if (list[n].n > 0)
				n++;
			else
				reclaim_free(state, &list[n]);
		}
		else
			LWLockRelease(lock);
	}
	return n;
}

/*
 * Free the retired areas and stub tails of a block that nobody can be standing
 * on.  One fence for all of them: before their cells count as free, they are
 * zeroed durably, and durably no area starts in them.  Otherwise a crash could
 * show, as a version, the middle of a row that is being written over them.
 * Returns the number of free cells.
 *
 * Caller holds the block's allocation lock, and possibly its row lock.
 */
uint32
nvm_space_reclaim(NvmRelState *state, NvmBlock *block)
{
	static Reclaiming list[1 + RECLAIM_NEIGHBOURS];
	struct GlobalVisState *vistest = GlobalVisTestFor(NULL);
	int			n = 1;

	reclaim_zero(state, block, vistest, false, &list[0]);
	list[0].lock = NULL;
	if (list[0].n > 0)
	{
		if (nvm_persist_in_force != NVM_PERSIST_PMEM)
			n += reclaim_neighbours(state, block->blkno, vistest, &list[1]);
		if (nvm_rel_region(state)->durable)
			nvm_drain("space-reclaim");
	}
	for (int i = n - 1; i >= 0; i--)
		reclaim_free(state, &list[i]);

	/*
	 * meanwhile the neighbours looked full, and others may have passed them
	 * by
	 */
	if (n > 1 && pg_atomic_read_u32(&nvm_rel_row(state)->hint_next) > block->blkno + 1)
		pg_atomic_write_u32(&nvm_rel_row(state)->hint_next, block->blkno + 1);
	return nvm_block_free_cells(block);
}
