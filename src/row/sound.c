/*-------------------------------------------------------------------------
 *
 * sound.c
 *	  The first reader of a block after a start verifies it.
 *
 * The process that comes to a block first in a run of the server looks for
 * what nvm.check() looks for there (verify_block.c, check_block.c,
 * check_tuple.c), once.  The start does not look, and so takes no longer.
 * From then on the answer is one bit in DRAM.  README.md, "Blocks are
 * verified by their first reader", has the rules.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pool/nvm_sound.h"
#include "row/nvm_check.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_locks.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_block.h"

#define DAMAGE_HINT \
	"Run nvm.check() on the table, copy the other rows to a new table, and restore this one from a backup. Set nvm.ignore_damage to read them."

/*
 * The first finding, or NULL, that concerns a process which wants the area at
 * `off`, or the whole block if `off` is 0.
 */
static NvmCheckProblem *
finding_for(NvmCheck *check, uint32 off)
{
	ListCell   *lc;

	foreach(lc, check->problems)
	{
		NvmCheckProblem *p = (NvmCheckProblem *) lfirst(lc);

		if (off == 0 || p->off == 0 || p->off == off)
			return p;
	}
	return NULL;
}

/*
 * The bytes of a large value are verified by the process that reads them
 * (large_read.c).  But whether the value is there is for the first process
 * that comes to find out: where the map has lost an extent, its units may
 * have been given to another value, or are in a moment.
 */
static void
verify_once(NvmCheck *check, uint32 blk)
{
	ListCell   *lc;

	check->problems = NIL;
	check->large = NIL;
	nvm_verify_block(&check->block, nvm_block(check->state, blk), blk);
	nvm_check_unwritten(check, blk);
	foreach(lc, check->large)
		nvm_check_large(check, (NvmCheckLarge *) lfirst(lc), false);
}

/*
 * Nobody need look any more, unless the columns were left out.
 */
static void
note_sound(NvmCheck *check, uint32 blk)
{
	if (!check->frames_only)
		nvm_unit_set_sound(nvm_block(check->state, blk));
}

/*
 * Verify the block.  NIL in check->problems: it is sound, or nothing can be
 * said for now.  The latter is so if the caller, or another process, holds a
 * lock that it takes to be sure.
 */
static void
verify(NvmCheck *check, uint32 blk)
{
	LWLock	   *row_lock = nvm_row_lock(check->block.dir, blk);
	LWLock	   *alloc_lock = nvm_alloc_lock(check->block.dir, blk);

	verify_once(check, blk);
	if (check->problems == NIL)
	{
		note_sound(check, blk);
		return;
	}

	/*
	 * a process that holds a lock of ours may be in the middle of a change,
	 * or want more of them
	 */
	if (InterruptHoldoffCount > 0 || CritSectionCount > 0)
	{
		check->problems = NIL;
		return;
	}
	LWLockAcquire(row_lock, LW_SHARED);
	LWLockAcquire(alloc_lock, LW_SHARED);
	verify_once(check, blk);
	LWLockRelease(alloc_lock);
	LWLockRelease(row_lock);
	if (check->problems == NIL)
		note_sound(check, blk);
	else if (nvm_unit_is_sound(nvm_block(check->state, blk)))
		check->problems = NIL;	/* somebody has, and others change it since */
}

static MemoryContext
sound_context(void)
{
	static MemoryContext context = NULL;

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "nvm first look at a block",
										ALLOCSET_SMALL_SIZES);
	return context;
}

static void
prove(Relation rel, NvmRelState *state, uint32 blk, uint32 off, bool frames_only)
{
	MemoryContext context = sound_context();
	NvmCheck	check;
	NvmCheckProblem *p;

	if (nvm_ignore_damage)
		return;
	/* what an error has left */
	MemoryContextReset(context);
	nvm_check_begin(&check, rel, state, context);
	if (blk >= check.nblocks)
		return;
	check.frames_only = frames_only;
	verify(&check, blk);
	p = finding_for(&check, off);
	if (p == NULL)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 p->off == 0 ?
			 errmsg("block %u of nvm table \"%s\" is damaged: %s",
					blk, RelationGetRelationName(rel), p->text) :
			 errmsg("row version (%u,%u) of nvm table \"%s\" is damaged: %s",
					blk, p->off, RelationGetRelationName(rel), p->text),
			 errhint(DAMAGE_HINT)));
}

void
nvm_block_prove_slow(Relation rel, NvmRelState *state, uint32 blk, uint32 off)
{
	/*
	 * ALTER TABLE reads the rows when the relation already has the columns
	 * that they will have.  A backend that holds that lock does without
	 * looking at columns, and the next one verifies the block.
	 */
	prove(rel, state, blk, off, CheckRelationLockedByMe(rel, AccessExclusiveLock, true));
}

void
nvm_block_prove_for_copy(Relation rel, NvmRelState *state, uint32 blk, uint32 off)
{
	if (blk < nvm_rel_nblocks(state) && !nvm_unit_is_sound(nvm_block(state, blk)))
		prove(rel, state, blk, off, false);
}

bool
nvm_block_prove_for_space(Relation rel, NvmRelState *state, uint32 blk)
{
	MemoryContext context = sound_context();
	NvmCheck	check;
	NvmCheckProblem *p;

	MemoryContextReset(context);
	nvm_check_begin(&check, rel, state, context);
	if (blk >= check.nblocks)
		return false;
	verify(&check, blk);
	p = finding_for(&check, 0);
	if (p != NULL)
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("block %u of nvm table \"%s\" is damaged and takes no rows: %s",
						blk, RelationGetRelationName(rel), p->text),
				 errhint(DAMAGE_HINT)));
	return nvm_unit_is_sound(nvm_block(state, blk));
}
