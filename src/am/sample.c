/*-------------------------------------------------------------------------
 *
 * sample.c
 *	  TABLESAMPLE.
 *
 * The sampling method chooses blocks and numbers within them.  A number
 * counts the areas of the block, as line pointers number the tuples of a heap
 * page.  So a method that hashes the numbers (BERNOULLI) chooses the same
 * rows of a table that was filled in the same way.  Areas that hold no
 * visible version are like dead line pointers.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/tsmapi.h"
#include "am/nvm_am.h"
#include "am/nvm_scan.h"
#include "compat/nvm_compat_am.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "pgstat.h"
#include "row/nvm_tuple_slot.h"

bool
nvm_scan_sample_next_block(TableScanDesc sscan, struct SampleScanState *scanstate)
{
	NvmScanDesc scan = (NvmScanDesc) sscan;
	TsmRoutine *tsm = scanstate->tsmroutine;
	BlockNumber blk;

	CHECK_FOR_INTERRUPTS();

	if (scan->nblocks == 0)
		return false;

	if (tsm->NextSampleBlock != NULL)
		blk = tsm->NextSampleBlock(scanstate, scan->nblocks);
	else
	{
		blk = scan->inited ? scan->blk + 1 : 0;
		if (blk >= scan->nblocks)
			blk = InvalidBlockNumber;
	}

	if (!BlockNumberIsValid(blk))
	{
		scan->inited = false;
		return false;
	}

	nvm_scan_enter_block(scan, blk);
	scan->inited = true;
	return true;
}

/*
 * The cell at which the nth area of the scan's block starts; n counts from 1
 * and is not above their number.
 */
static uint32
sample_nth_area(NvmScanDesc scan, uint32 n)
{
	for (uint32 i = 0;; i++)
	{
		uint64		word = scan->starts[i];
		uint32		here = __builtin_popcountll(word);

		Assert(i < lengthof(scan->starts));
		if (n > here)
		{
			n -= here;
			continue;
		}
		while (--n > 0)
			word &= word - 1;
		return i * 64 + __builtin_ctzll(word);
	}
}

bool
nvm_scan_sample_next_tuple(TableScanDesc sscan, struct SampleScanState *scanstate,
						   TupleTableSlot *slot)
{
	NvmScanDesc scan = (NvmScanDesc) sscan;
	TsmRoutine *tsm = scanstate->tsmroutine;
	uint32		nareas = 0;

	for (int i = 0; i < (int) lengthof(scan->starts); i++)
		nareas += __builtin_popcountll(scan->starts[i]);

	for (;;)
	{
		OffsetNumber n;
		uint32		cell;
		NvmVersion *v;

		CHECK_FOR_INTERRUPTS();

		n = tsm->NextSampleTuple(scanstate, scan->blk, nareas);
		if (!OffsetNumberIsValid(n))
		{
			ExecClearTuple(slot);
			return false;
		}
		if (n > nareas)
			continue;

		cell = sample_nth_area(scan, n);
		v = nvm_scan_version(scan, cell);
		if (!nvm_scan_visible(scan, v))
			continue;

		nvm_tts_set(slot, scan->state, scan->relid, v, scan->blk, cell);
		pgstat_count_heap_getnext(sscan->rs_rd);
		return true;
	}
}
