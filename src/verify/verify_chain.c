/*-------------------------------------------------------------------------
 *
 * verify_chain.c
 *	  Chains of row versions: does the row's chain hold together, and does its
 *	  root lead to its newest version?
 *
 * Compiled into the server, for nvm.check(), and into nvm_poolcheck.  In the
 * server others may be changing the chain.  So a caller that finds something
 * looks again under the block's locks.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef FRONTEND
#include "postgres.h"
#else
#include "postgres_fe.h"
#endif

#include "verify/nvm_verify_block.h"
#include "verify/nvm_verify_chain.h"

/*
 * The begin word of the area that starts at (blk, off).  0 if no area starts
 * there, or if it is free or retired.  The word is read before the bit, see
 * nvm_tid_begin.
 */
static uint64
begin_at(NvmBlockCheck *check, uint32 blk, uint32 off)
{
	NvmBlock   *block;
	uint64		begin;

	if (off < NVM_FIRST_CELL || off >= NVM_CELLS)
		return 0;
	block = check->ops->block(check, blk);
	if (block == NULL || block->magic != NVM_BLOCK_MAGIC)
		return 0;
	begin = nvm_load(&nvm_cell_of(block, off)->begin);
	if (nvm_begin_is(begin, NVM_STAMP_RETIRED) || !nvm_area_exists(check, blk, off))
		return 0;
	return begin;
}

/* a chain that does not end within so many steps has a cycle, which
 * nvm_verify_chain finds */
#define REACH_STEPS			100000

/*
 * Does the chain of the row with this root come to (blk, off)?
 */
static bool
is_reached(NvmBlockCheck *check, uint64 root, uint32 blk, uint32 off)
{
	uint64		cur = root;

	for (int i = 0; i < REACH_STEPS; i++)
	{
		const NvmVersion *v;
		uint64		begin;
		uint64		next;

		if (cur == NVM_REF_MAKE(blk, off, 0))
			return true;
		if (!nvm_area_exists(check, NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur)))
			return false;
		v = nvm_cell_of(check->ops->block(check, NVM_REF_BLOCK(cur)), NVM_REF_OFFSET(cur));
		begin = nvm_load(&v->begin);
		next = nvm_load(&v->next);
		if (!NVM_REF_IS_VALID(next) || (NVM_REF_HI(next) & NVM_NEXT_OTHER_ROOT) ||
			(nvm_begin_is_version(begin) && nvm_load(&v->end) == 0))
			return false;
		/* no search begins at a dead root */
		if (cur == root && !nvm_begin_is_version(begin) && !nvm_begin_is(begin, NVM_STAMP_STUB))
			return false;
		cur = NVM_REF_TID(next);
	}
	return true;
}

/*
 * A version that has not ended is the newest of its row, and its root leads to
 * it.  Otherwise a search that comes from an index would not find it.  Nothing
 * is said of a transaction that may be running or that aborted.  Others may be
 * pruning the row, so there are three looks.
 */
void
nvm_verify_reached(NvmBlockCheck *check, NvmVersion *v, uint64 begin, uint64 root,
				   uint32 blk, uint32 off)
{
	uint64		limit;

	for (int i = 0; i < 3; i++)
	{
		if (!check->ops->handed_out(check, NVM_STAMP_SLOT(begin), &limit) ||
			NVM_STAMP_COUNTER(begin) >= limit || check->ops->in_gap(check, begin) ||
			nvm_load(&v->end) != 0 || nvm_load(&v->begin) != begin ||
			is_reached(check, root, blk, off))
			return;
	}
	check->ops->report(check, blk, off, "its root (%u,%u) does not lead to it",
					   NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
}

/* versions of a row whose root is dead that are looked at */
#define GONE_STEPS			16

/*
 * An area at (blk, off) that is marked DEAD or RETIRED: no row can go on from
 * there. What its link leads to may be another row's by now, with another
 * root.
 */
void
nvm_verify_gone(NvmBlockCheck *check, NvmVersion *v, uint32 blk, uint32 off)
{
	uint64		root = NVM_REF_MAKE(blk, off, 0);
	uint64		mark = nvm_load(&v->begin);
	NvmVersion *w = v;

	for (int i = 0; i < GONE_STEPS; i++)
	{
		uint64		next = nvm_load(&w->next);
		uint64		begin;
		uint64		limit;

		if (!NVM_REF_IS_VALID(next) || (NVM_REF_HI(next) & NVM_NEXT_OTHER_ROOT) ||
			!nvm_area_exists(check, NVM_REF_BLOCK(next), NVM_REF_OFFSET(next)))
			return;
		w = nvm_cell_of(check->ops->block(check, NVM_REF_BLOCK(next)), NVM_REF_OFFSET(next));
		begin = nvm_load(&w->begin);
		if (!nvm_begin_is_version(begin))
			continue;
		if (nvm_version_root(w) != root || nvm_frame_problem(w, NVM_REF_OFFSET(next)) != NULL)
			return;
		if (nvm_load(&w->end) != 0)
			continue;
		if (!check->ops->in_gap(check, begin) &&
			check->ops->handed_out(check, NVM_STAMP_SLOT(begin), &limit) &&
			NVM_STAMP_COUNTER(begin) < limit &&
			nvm_load(&v->begin) == mark && nvm_load(&w->begin) == begin && nvm_load(&w->end) == 0)
			check->ops->report(check, blk, off, "marked as dead, but the row goes on at (%u,%u)",
							   NVM_REF_BLOCK(next), NVM_REF_OFFSET(next));
		return;
	}
}

/*
 * A version that has not ended, with a link to another one.  The other one was
 * made by a transaction that aborted, or was lost, or is running and has yet
 * to store the end.
 */
static void
check_unended(NvmBlockCheck *check, NvmVersion *v, uint64 root, uint32 blk, uint32 off)
{
	uint64		next = nvm_load(&v->next);
	uint64		begin;
	uint64		limit;
	NvmVersion *w;

	if (!NVM_REF_IS_VALID(next) || (NVM_REF_HI(next) & NVM_NEXT_OTHER_ROOT) ||
		!nvm_area_exists(check, NVM_REF_BLOCK(next), NVM_REF_OFFSET(next)))
		return;
	w = nvm_cell_of(check->ops->block(check, NVM_REF_BLOCK(next)), NVM_REF_OFFSET(next));
	begin = nvm_load(&w->begin);
	if (nvm_begin_is_version(begin) && nvm_version_root(w) == root &&
		!check->ops->in_gap(check, begin) &&
		check->ops->handed_out(check, NVM_STAMP_SLOT(begin), &limit) &&
		NVM_STAMP_COUNTER(begin) < limit &&
		nvm_load(&v->end) == 0 && nvm_load(&v->next) == next)
		check->ops->report(check, blk, off, "version (%u,%u) follows one that has not ended",
						   NVM_REF_BLOCK(next), NVM_REF_OFFSET(next));
}

/* a version on the way along a chain, and its words as they were loaded */
typedef struct ChainStep
{
	const NvmVersion *v;
	uint64		begin;
	uint64		end;
	uint64		next;
} ChainStep;

/* does the row go on from there? */
static bool
check_follows(NvmBlockCheck *check, const ChainStep *step)
{
	if (!NVM_REF_IS_VALID(step->next) || (NVM_REF_HI(step->next) & NVM_NEXT_OTHER_ROOT))
		return false;
	if (!nvm_begin_is_version(step->begin))
		return true;			/* a stub, or unlinked */
	return step->end != 0 && !check->ops->in_gap(check, step->end);
}

/*
 * The row with root (blk, off) goes on from v to an area that has no begin
 * stamp: it was handed out and not written.  A transaction that ended v for
 * good wrote the next version before that.  Neither an allocation nor a crash
 * makes an area be used again before the row leads past it, and what is before
 * it there is retired, too.  So the next version was lost, unless v has
 * changed meanwhile.
 */
static void
check_next_written(NvmBlockCheck *check, const ChainStep *step, uint32 blk, uint32 off)
{
	const NvmVersion *v = step->v;

	if (!(nvm_begin_is_version(step->begin) ? nvm_ended_for_good(check, step->end) :
		  nvm_begin_is(step->begin, NVM_STAMP_STUB)))
		return;
	if (nvm_load(&v->begin) == step->begin && nvm_load(&v->end) == step->end &&
		nvm_load(&v->next) == step->next)
		check->ops->report(check, blk, off, "version (%u,%u), where the row goes on, has no begin stamp",
						   NVM_REF_BLOCK(step->next), NVM_REF_OFFSET(step->next));
}

/*
 * The row with root (blk, off) goes on from a version to w.  Do they fit?
 */
static void
check_next(NvmBlockCheck *check, const ChainStep *step, const NvmVersion *w,
		   uint32 blk, uint32 off)
{
	uint64		cur = NVM_REF_TID(step->next);

	if (!nvm_begin_is_version(nvm_load(&w->begin)))
	{
		if (nvm_load(&w->begin) == 0)
			check_next_written(check, step, blk, off);
		return;
	}
	if (nvm_version_root(w) != NVM_REF_MAKE(blk, off, 0))
		check->ops->report(check, blk, off, "chain leads to (%u,%u), which is of another row",
						   NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur));
	else if (nvm_begin_is_version(step->begin) && nvm_load(&w->begin) != step->end &&
			 (NVM_REF_HI(step->next) & NVM_NEXT_SKIPS) == 0)
		check->ops->report(check, blk, off, "version (%u,%u) does not begin where the one before it ends",
						   NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur));
	else if (NVM_REF_BLOCK(cur) != blk && !check->ops->in_gap(check, nvm_load(&w->begin)))
	{
		/* a reader that comes along the chain does not verify that block */
		const char *problem = nvm_frame_problem(w, NVM_REF_OFFSET(cur));

		if (problem != NULL && nvm_begin_is_version(nvm_load(&w->begin)))
			check->ops->report(check, blk, off, "version (%u,%u) of the row has a wrong %s",
							   NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur), problem);
	}
}

/*
 * Is this the newest version of a row because of a transaction that the gap
 * collector has yet to take back, or is about to?
 */
static bool
check_leads_to_gap(NvmBlockCheck *check, uint64 ref)
{
	uint64		begin = begin_at(check, NVM_REF_BLOCK(ref), NVM_REF_OFFSET(ref));

	return check->ops->any_gap(check) &&
		(!nvm_begin_is_version(begin) || check->ops->in_gap(check, begin));
}

/* Brent's search for a cycle in a chain */
typedef struct CycleSearch
{
	uint64		tortoise;
	uint64		steps;
	uint64		limit;
} CycleSearch;

/* has the walk come to a place where it was before? */
static inline bool
cycle_closes(CycleSearch *search, uint64 cur)
{
	if (cur == search->tortoise)
		return true;
	if (++search->steps == search->limit)
	{
		search->tortoise = cur;
		search->steps = 0;
		search->limit *= 2;
	}
	return false;
}

/*
 * The chain of the row with root (blk, off).
 */
void
nvm_verify_chain(NvmBlockCheck *check, NvmBlock *block, uint32 blk, uint32 off)
{
	uint64		root = NVM_REF_MAKE(blk, off, 0);
	NvmVersion *v = nvm_cell_of(block, off);
	uint64		link = nvm_load(&v->link);
	uint64		hint = 0;
	uint64		cur = root;
	CycleSearch cycle = {root, 0, 1};

	if (check->marks != 0 && NVM_REF_HI(link) == check->marks && NVM_REF_IS_VALID(link))
		hint = NVM_REF_TID(link);

	for (;;)
	{
		ChainStep	step;

		step.v = v;
		step.begin = nvm_load(&v->begin);
		step.end = nvm_load(&v->end);
		step.next = nvm_load(&v->next);
		if (cur == hint)
			hint = 0;
		if (!check_follows(check, &step))
		{
			if (nvm_begin_is_version(step.begin) && step.end == 0)
				check_unended(check, v, root, blk, off);
			break;
		}

		cur = NVM_REF_TID(step.next);
		if (!nvm_area_exists(check, NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur)))
		{
			check->ops->report(check, blk, off, "chain leads to (%u,%u), which does not exist",
							   NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur));
			return;
		}
		v = nvm_cell_of(check->ops->block(check, NVM_REF_BLOCK(cur)), NVM_REF_OFFSET(cur));
		check_next(check, &step, v, blk, off);
		if (nvm_version_root(v) != root)
			return;
		if (cycle_closes(&cycle, cur))
		{
			check->ops->report(check, blk, off, "chain has a cycle through (%u,%u)",
							   NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur));
			return;
		}
	}

	if (hint != 0 && hint != root && !check_leads_to_gap(check, hint))
		check->ops->report(check, blk, off, "newest version is said to be (%u,%u), which is not in the chain",
						   NVM_REF_BLOCK(hint), NVM_REF_OFFSET(hint));
}
