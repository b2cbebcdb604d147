/*-------------------------------------------------------------------------
 *
 * check_block.c
 *	  What verify_block.c asks about a block, answered by a server that runs.
 *
 * For nvm.check() and for the first reader of a block (sound.c).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "pool/nvm_pool.h"
#include "pool/nvm_sound.h"
#include "row/nvm_check.h"
#include "row/nvm_large.h"
#include "row/nvm_relation.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"

/* of a pool that was opened more often than that it is taken for granted that it crashed */
#define MAX_RUNS_ASKED			10000

static void note_problem(NvmCheck *check, uint32 blk, uint32 off, const char *fmt,
						 va_list args) pg_attribute_printf(4, 0);

static void
note_problem(NvmCheck *check, uint32 blk, uint32 off, const char *fmt, va_list args)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(check->cxt);
	NvmCheckProblem *p = (NvmCheckProblem *) palloc(sizeof(NvmCheckProblem));
	char		buf[512];

	vsnprintf(buf, sizeof(buf), fmt, args);
	p->blk = blk;
	p->off = off;
	p->text = pstrdup(buf);
	check->problems = lappend(check->problems, p);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Note a problem; off 0 means the block as a whole.
 */
void
nvm_check_report(NvmCheck *check, uint32 blk, uint32 off, const char *fmt,...)
{
	va_list		args;

	va_start(args, fmt);
	note_problem(check, blk, off, fmt, args);
	va_end(args);
}

/* ---- what verify_block.c asks ---- */

static NvmBlock *
check_find_block(NvmBlockCheck *block, uint32 blkno)
{
	NvmRelState *state = ((NvmCheck *) block)->state;

	return blkno < nvm_rel_nblocks(state) ? nvm_block(state, blkno) : NULL;
}

static bool
check_crashed(NvmBlockCheck *block, uint32 incarnation)
{
	return nvm_incarnation_crashed(incarnation);
}

static bool
check_any_gap(NvmBlockCheck *block)
{
	return pg_atomic_read_u32(&NvmWbl->ngaps) > 0;
}

static bool
check_in_gap(NvmBlockCheck *block, uint64 stamp)
{
	return nvm_stamp_in_gap(stamp);
}

static bool
check_handed_out(NvmBlockCheck *block, uint32 slot, uint64 *limit)
{
	NvmRegionId region = ((NvmCheck *) block)->state->region;

	/* a stamp is one of the block's own region; others are beyond its slots */
	if (slot - region * NVM_VOLATILE_SLOT >= pg_atomic_read_u32(&NvmWbl->slots_used[region]))
		return false;
	/* one transaction at a time runs in a slot */
	*limit = pg_atomic_read_u64(&nvm_slots[slot].durable) + 1;
	return true;
}

static bool
check_xid_to_come(NvmBlockCheck *block, uint64 fxid)
{
	/*
	 * what a crash has lost of them may be promised, and not skipped for a
	 * reason
	 */
	return fxid > Max(U64FromFullTransactionId(ReadNextFullTransactionId()),
					  pg_atomic_read_u64(&NvmPool->xid_promise));
}

static bool
check_owns_large(NvmBlockCheck *block, uint64 unit)
{
	return nvm_large_is_of(unit * NVM_UNIT_SIZE, block->dir);
}

static void
check_tuple(NvmBlockCheck *block, NvmVersion *v, uint64 begin, uint32 blk, uint32 off)
{
	NvmCheck   *check = (NvmCheck *) block;

	if (check->frames_only)
		nvm_check_listed_large(check, v, begin, blk, off);
	else
		nvm_check_tuple(check, v, begin, blk, off);
}

static void check_note(NvmBlockCheck *block, uint32 blk, uint32 off, const char *fmt,...) pg_attribute_printf(4, 5);

static void
check_note(NvmBlockCheck *block, uint32 blk, uint32 off, const char *fmt,...)
{
	va_list		args;

	va_start(args, fmt);
	note_problem((NvmCheck *) block, blk, off, fmt, args);
	va_end(args);
}

static const NvmBlockCheckOps check_ops = {
	.block = check_find_block,
	.crashed = check_crashed,
	.any_gap = check_any_gap,
	.in_gap = check_in_gap,
	.handed_out = check_handed_out,
	.xid_to_come = check_xid_to_come,
	.owns_large = check_owns_large,
	.tuple = check_tuple,
	.report = check_note
};

void
nvm_check_begin(NvmCheck *check, Relation rel, NvmRelState *state, MemoryContext cxt)
{
	memset(check, 0, sizeof(*check));
	check->rel = rel;
	check->state = state;
	check->block.ops = &check_ops;
	check->block.base = nvm_pool_base;
	check->block.dir = state->dir;
	check->block.incarnation = NvmPool->incarnation;
	check->block.marks = (uint16) NvmPool->incarnation;
	check->nblocks = nvm_rel_nblocks(state);
	check->cxt = cxt;
}

/*
 * A block in the middle that is all zero: handed out, and not written by the time of a
 * crash, or yet.  If it is of an earlier run, and no run has crashed, its rows are lost.
 */
void
nvm_check_unwritten(NvmCheck *check, uint32 blk)
{
	static uint32 asked = 0;
	static bool none_crashed = false;
	NvmBlock   *block = nvm_block(check->state, blk);

	if (block->magic != 0 || nvm_unit_is_sound(block))
		return;
	if (asked != NvmPool->incarnation)
	{
		asked = NvmPool->incarnation;
		none_crashed = asked < MAX_RUNS_ASKED;
		for (uint32 inc = 1; inc < asked && none_crashed; inc++)
			none_crashed = !nvm_incarnation_crashed(inc);
	}
	if (none_crashed)
		nvm_check_report(check, blk, 0, "block is empty, although no run of the server has crashed");
}
