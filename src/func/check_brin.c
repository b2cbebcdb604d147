/*-------------------------------------------------------------------------
 *
 * check_brin.c
 *	  nvm.check(heapallindexed => true): rows held against summaries of BRIN.
 *
 * If the summary of a row's range does not cover the row, no query finds it
 * through the index.  The check asks as brininsert does: the operator class
 * adds the value to a copy of the summary, and says whether that made a
 * difference.  So this holds for every operator class.
 *
 * The snapshot is taken before any summary is read.  A row that it sees has
 * been through brininsert.  A range that is summarized anew in between has all
 * rows that a running snapshot sees.  A range without a summary, or with a
 * placeholder, is returned by every query.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/brin_internal.h"
#include "access/brin_tuple.h"
#include "access/genam.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "compat/nvm_compat_brin.h"
#include "func/nvm_check_brin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

typedef struct BrinCheck
{
	Relation	index;
	BrinDesc   *desc;
	BrinRevmap *revmap;
	BlockNumber pages_per_range;
	Buffer		buf;			/* pinned, not locked, between two calls */

	/* the range that the last row was in */
	bool		known;
	BlockNumber range;			/* its first block */
	BrinMemTuple *summary;		/* NULL: nothing to hold rows against */
	MemoryContext context;		/* of summary */

	NvmBrinCheckEmit emit;
	void	   *arg;
} BrinCheck;

/*
 * Read the summary of the range that begins with block `range`.
 */
static void
check_read_summary(BrinCheck *check, BlockNumber range)
{
	OffsetNumber off;
	BrinTuple  *tuple;
	MemoryContext oldcontext;

	MemoryContextReset(check->context);
	check->known = true;
	check->range = range;
	check->summary = NULL;
	tuple = NvmBrinRangeTuple(check->revmap, range, &check->buf, &off);
	if (tuple == NULL)
		return;
	oldcontext = MemoryContextSwitchTo(check->context);
	check->summary = brin_deform_tuple(check->desc, tuple, NULL);
	MemoryContextSwitchTo(oldcontext);
	LockBuffer(check->buf, BUFFER_LOCK_UNLOCK);
	if (check->summary->bt_placeholder)
		check->summary = NULL;
}

/*
 * Does the summary cover the row?  Changes the copy of the summary if it does not.
 */
static bool
check_is_covered(BrinCheck *check, Datum *values, bool *isnull)
{
	if (check->summary->bt_empty_range)
		return false;
	for (int i = 0; i < check->desc->bd_tupdesc->natts; i++)
	{
		BrinValues *column = &check->summary->bt_columns[i];

		if (isnull[i] && check->desc->bd_info[i]->oi_regular_nulls)
		{
			if (!column->bv_hasnulls && !column->bv_allnulls)
				return false;
			continue;
		}
		if (DatumGetBool(FunctionCall4Coll(index_getprocinfo(check->index, i + 1, BRIN_PROCNUM_ADDVALUE),
										   check->index->rd_indcollation[i],
										   PointerGetDatum(check->desc),
										   PointerGetDatum(column),
										   values[i], BoolGetDatum(isnull[i]))))
			return false;
	}
	return true;
}

static void
check_row_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
				   bool alive, void *arg)
{
	BrinCheck  *check = (BrinCheck *) arg;
	BlockNumber blk = ItemPointerGetBlockNumber(tid);
	BlockNumber range = blk - blk % check->pages_per_range;
	MemoryContext oldcontext;

	if (!check->known || check->range != range)
		check_read_summary(check, range);
	if (check->summary == NULL)
		return;
	oldcontext = MemoryContextSwitchTo(check->context);
	if (!check_is_covered(check, values, isnull))
	{
		MemoryContextSwitchTo(oldcontext);
		check->emit(check->arg, range,
					psprintf("row (%u,%u) is not within its summary", blk,
							 ItemPointerGetOffsetNumberNoCheck(tid)));
		check->summary = NULL;	/* once for each range */
		return;
	}
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Hold all rows that the newest snapshot sees against the summaries of a valid
 * BRIN index.  Calls emit for the first row of each range that is not covered.
 */
void
nvm_check_brin(Relation index, Relation heap, NvmBrinCheckEmit emit, void *arg)
{
	BrinCheck	check = {.index = index,.emit = emit,.arg = arg,.buf = InvalidBuffer};
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	IndexInfo  *info = BuildIndexInfo(index);

	info->ii_Concurrent = true; /* rows are taken by the snapshot */
	check.desc = brin_build_desc(index);
	check.revmap = NvmBrinRevmap(index, &check.pages_per_range);
	check.context = AllocSetContextCreate(CurrentMemoryContext, "nvm check of BRIN",
										  ALLOCSET_DEFAULT_SIZES);
	table_index_build_scan(heap, index, info, true, false, check_row_callback, &check,
						   table_beginscan_strat(heap, snapshot, 0, NULL, true, true));
	if (BufferIsValid(check.buf))
		ReleaseBuffer(check.buf);
	MemoryContextDelete(check.context);
	brinRevmapTerminate(check.revmap);
	brin_free_desc(check.desc);
	UnregisterSnapshot(snapshot);
}
