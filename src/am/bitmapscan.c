/*-------------------------------------------------------------------------
 *
 * bitmapscan.c
 *	  Bitmap scans.
 *
 * A bitmap names roots.  What the snapshot sees of a row may lie in another
 * block, or the root may be no more than a stub.  So a page of the bitmap,
 * exact or lossy, is a set of roots whose chains are searched.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "am/nvm_am.h"
#include "am/nvm_scan.h"
#include "compat/nvm_compat_am.h"
#include "executor/executor.h"
#include "nodes/nodeFuncs.h"
#include "pgstat.h"
#include "row/nvm_chain.h"
#include "row/nvm_relation.h"
#include "row/nvm_tuple_slot.h"

/*
 * A bitmap scan of an nvm table was begun since ExecutorStart began, or may
 * have been set up without being begun.
 */
static bool bitmap_scan_begun = false;

/*
 * Called for each scan descriptor of a bitmap scan.
 */
void
nvm_bitmap_scan_begin(NvmScanDesc scan)
{
	scan->hits = palloc(sizeof(NvmScanHit) * NVM_CELLS);
	bitmap_scan_begun = true;
}

/*
 * A slot for rows of an nvm table is wanted.  Where the executor begins bitmap
 * scans later than it sets them up, there may be one behind it.
 */
void
nvm_bitmap_slot_wanted(void)
{
	if (NVM_BITMAP_BEGINS_LATE)
		bitmap_scan_begun = true;
}

/*
 * Search the rows of one page of the bitmap.
 */
static void
nvm_bitmap_load(NvmScanDesc scan, const NvmBitmapPage *page)
{
	TableScanDesc base = &scan->base;
	int			i = 0;

	scan->nhits = 0;
	scan->next_hit = 0;

	/*
	 * Blocks that appeared after the scan began hold no row for its snapshot;
	 * a serializable transaction has to look at them nevertheless.
	 */
	if (page->blockno >= scan->nblocks &&
		(!IsolationIsSerializable() || page->blockno >= nvm_rel_nblocks(scan->state)))
		return;

	nvm_scan_enter_block(scan, page->blockno);
	for (;;)
	{
		uint32		off;
		NvmVersion *v;
		ItemPointerData tid;

		if (page->lossy)
		{
			if ((off = nvm_scan_next_cell(scan)) == 0)
				break;
		}
		else
		{
			if (i >= page->noffsets)
				break;
			off = page->offsets[i++];
		}

		v = nvm_chain_search(base->rs_rd, scan->state,
							 NVM_REF_MAKE(page->blockno, off, 0),
							 base->rs_snapshot, &tid, NULL);
		if (v != NULL && scan->nhits < NVM_CELLS)
		{
			scan->hits[scan->nhits].v = v;
			scan->hits[scan->nhits].tid = tid;
			scan->nhits++;
		}
	}
}

/*
 * The next hit of the current page, or false.
 */
static bool
nvm_bitmap_next_hit(NvmScanDesc scan, TupleTableSlot *slot)
{
	NvmScanHit *hit;

	if (scan->next_hit >= scan->nhits)
		return false;
	hit = &scan->hits[scan->next_hit++];

	pgstat_count_heap_fetch(scan->base.rs_rd);
	nvm_tts_set(slot, scan->state, scan->relid, hit->v,
				ItemPointerGetBlockNumber(&hit->tid),
				ItemPointerGetOffsetNumber(&hit->tid));
	return true;
}

#if NVM_BITMAP_IS_STREAM

/*
 * The whole of a bitmap scan: pages come from the descriptor's iterator.
 */
bool
nvm_scan_bitmap_next(TableScanDesc sscan, TupleTableSlot *slot, bool *recheck,
					 uint64 *lossy_pages, uint64 *exact_pages)
{
	NvmScanDesc scan = (NvmScanDesc) sscan;

	while (!nvm_bitmap_next_hit(scan, slot))
	{
		OffsetNumber offsets[NVM_BITMAP_OFFSETS];
		NvmBitmapPage page;

		if (!nvm_bitmap_iterate(sscan, offsets, &page))
		{
			ExecClearTuple(slot);
			return false;
		}
		*recheck = page.recheck;
		if (page.lossy)
			(*lossy_pages)++;
		else
			(*exact_pages)++;
		nvm_bitmap_load(scan, &page);
	}
	return true;
}

#else

bool
nvm_scan_bitmap_next_block(TableScanDesc sscan, struct TBMIterateResult *tbmres)
{
	NvmScanDesc scan = (NvmScanDesc) sscan;
	NvmBitmapPage page;

	nvm_bitmap_page(tbmres, &page);
	nvm_bitmap_load(scan, &page);
	return scan->nhits > 0;
}

bool
nvm_scan_bitmap_next_tuple(TableScanDesc sscan, struct TBMIterateResult *tbmres,
						   TupleTableSlot *slot)
{
	return nvm_bitmap_next_hit((NvmScanDesc) sscan, slot);
}

#endif

/*
 * The executor prefetches the pages of a bitmap from the relation's main
 * fork, and the main fork of an nvm table is as good as none.  At best that
 * is wasted, and beyond the first gigabyte it is an ERROR.  Tell the
 * executor's nodes not to.
 */
static bool
nvm_bitmap_no_prefetch(PlanState *planstate, void *context)
{
	if (planstate == NULL)
		return false;
	if (IsA(planstate, BitmapHeapScanState))
	{
		BitmapHeapScanState *node = (BitmapHeapScanState *) planstate;

		if (node->ss.ss_currentRelation != NULL &&
			nvm_relation_is_nvm(node->ss.ss_currentRelation))
			NvmBitmapNoPrefetch(node);
	}
	return planstate_tree_walker(planstate, nvm_bitmap_no_prefetch, context);
}

/*
 * ExecutorStart_hook: before the executor opens anything; returns what `end`
 * wants to know.  Queries nest.
 */
bool
nvm_bitmap_query_begin(void)
{
	bool		outer = bitmap_scan_begun;

	bitmap_scan_begun = false;
	return outer;
}

void
nvm_bitmap_query_end(QueryDesc *queryDesc, bool outer)
{
	if (unlikely(bitmap_scan_begun))
		nvm_bitmap_no_prefetch(queryDesc->planstate, NULL);
	bitmap_scan_begun = outer;
}
