/*-------------------------------------------------------------------------
 *
 * sample.c
 *	  TABLESAMPLE.
 *
 * The sampling method chooses blocks and offsets; an offset at which no
 * version starts is like an unused line pointer of a heap page.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/tsmapi.h"
#include "compat/nvm_compat_am.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "pgstat.h"
#include "table/nvm_am.h"
#include "table/nvm_scan.h"

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

bool
nvm_scan_sample_next_tuple(TableScanDesc sscan, struct SampleScanState *scanstate,
						   TupleTableSlot *slot)
{
	NvmScanDesc scan = (NvmScanDesc) sscan;
	TsmRoutine *tsm = scanstate->tsmroutine;
	uint32		last;

	/* the highest offset of the block */
	scan->cell = NVM_CELLS;
	last = nvm_scan_prev_cell(scan);

	for (;;)
	{
		OffsetNumber off;
		NvmVersion *v;

		CHECK_FOR_INTERRUPTS();

		off = tsm->NextSampleTuple(scanstate, scan->blk, last);
		if (!OffsetNumberIsValid(off))
		{
			ExecClearTuple(slot);
			return false;
		}
		if (off > last || !(scan->starts[off / 64] & (UINT64_C(1) << (off % 64))))
			continue;

		v = nvm_scan_version(scan, off);
		if (!nvm_scan_visible(scan, v))
			continue;

		nvm_slot_set(slot, scan->state, scan->relid, v, scan->blk, off);
		pgstat_count_heap_getnext(sscan->rs_rd);
		return true;
	}
}
