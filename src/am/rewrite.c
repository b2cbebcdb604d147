/*-------------------------------------------------------------------------
 *
 * rewrite.c
 *	  VACUUM FULL and CLUSTER: copy what anybody may still see.
 *
 * Live and recently dead versions are copied with their stamps, so that old
 * snapshots go on seeing what they saw.  Each becomes a row of its own.  A
 * process that wants to follow an update from an old version to a new one
 * needs a lock on the table, and the caller's AccessExclusiveLock excludes
 * that.
 *
 * Sorted copies (CLUSTER on a btree) sort only the columns of the index and
 * the TID; the row is read again by its TID when it is written.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/transam.h"
#include "access/xact.h"
#include "am/nvm_am.h"
#include "btree/nvm_btree.h"
#include "catalog/pg_index.h"
#include "commands/progress.h"
#include "compat/nvm_compat_vacuum.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "pgstat.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_chain.h"
#include "row/nvm_modify.h"
#include "row/nvm_relation.h"
#include "row/nvm_tuple_slot.h"
#include "row/nvm_version.h"
#include "row/nvm_visibility.h"
#include "utils/memutils.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"
#include "utils/tuplesort.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"

typedef struct RewriteState
{
	Relation	old;
	Relation	new;
	NvmRelState *state;			/* of old */
	struct GlobalVisState *vistest;
	TupleTableSlot *slot;
	MemoryContext row_context;	/* reset after each row */
	Datum	   *values;
	bool	   *isnull;

	Tuplesortstate *sort;		/* or NULL */
	Bitmapset  *sort_columns;	/* NULL: all */

	TransactionId oldest_unfrozen;	/* of the versions copied */
	double		num_tuples;
	double		vacuumed;
	double		recently_dead;
} RewriteState;

/*
 * Shall the version be copied?  Counts it.
 */
static bool
rewrite_wants(RewriteState *rw, NvmVersion *v)
{
	TransactionId xid = InvalidTransactionId;

	switch (nvm_version_vacuum_state(v, rw->vistest, &xid))
	{
		case NVM_VAC_DEAD:
			rw->vacuumed += 1;
			return false;
		case NVM_VAC_RECENTLY_DEAD:
			rw->recently_dead += 1;
			break;
		case NVM_VAC_LIVE:
			break;
		case NVM_VAC_INSERT_IN_PROGRESS:
			/* we hold an exclusive lock, so it can only be our own */
			if (!TransactionIdIsCurrentTransactionId(v->tuple.xmin))
				elog(WARNING, "concurrent insert in progress within table \"%s\"",
					 RelationGetRelationName(rw->old));
			break;
		case NVM_VAC_DELETE_IN_PROGRESS:
			if (!TransactionIdIsCurrentTransactionId(v->tuple.xend))
				elog(WARNING, "concurrent delete in progress within table \"%s\"",
					 RelationGetRelationName(rw->old));
			rw->recently_dead += 1;
			break;
		case NVM_VAC_STUB:
		case NVM_VAC_DEAD_ROOT:
		case NVM_VAC_RETIRED:
		case NVM_VAC_FREE:
			return false;
	}
	rw->num_tuples += 1;
	return true;
}

/*
 * An xid that will be looked up for the copy bounds relfrozenxid.
 */
static void
rewrite_note_xid(RewriteState *rw, uint64 stamp, TransactionId xid)
{
	if (stamp == 0 || nvm_stamp_is_frozen(stamp) || nvm_stamp_in_gap(stamp))
		return;
	xid = nvm_stamp_xid(stamp, xid);
	if (!TransactionIdIsNormal(xid))
		return;
	if (!TransactionIdIsValid(rw->oldest_unfrozen) ||
		TransactionIdPrecedes(xid, rw->oldest_unfrozen))
		rw->oldest_unfrozen = xid;
}

/*
 * The columns of v, in rw->values and rw->isnull; dropped ones are null.
 */
static void
rewrite_deform(RewriteState *rw, NvmVersion *v, uint32 blk, uint32 off)
{
	TupleDesc	desc = RelationGetDescr(rw->new);

	nvm_tts_store(rw->slot, rw->old, v, blk, off);
	slot_getallattrs(rw->slot);
	for (int i = 0; i < desc->natts; i++)
	{
		rw->values[i] = rw->slot->tts_values[i];
		rw->isnull[i] = rw->slot->tts_isnull[i] ||
			TupleDescAttr(desc, i)->attisdropped;
	}
}

/*
 * Write a copy of v to the new table.
 */
static void
rewrite_copy(RewriteState *rw, NvmVersion *v, uint32 blk, uint32 off)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(rw->row_context);
	HeapTuple	tuple;

	rewrite_deform(rw, v, blk, off);
	tuple = heap_form_tuple(RelationGetDescr(rw->new), rw->values, rw->isnull);
	rewrite_note_xid(rw, v->begin, v->tuple.xmin);
	rewrite_note_xid(rw, v->end, v->tuple.xend);
	nvm_raw_insert(rw->new, tuple, v);

	ExecClearTuple(rw->slot);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(rw->row_context);
}

/*
 * Give v to the sort: the columns it needs and the TID.
 */
static void
rewrite_put_sort(RewriteState *rw, NvmVersion *v, uint32 blk, uint32 off)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(rw->row_context);
	TupleDesc	desc = RelationGetDescr(rw->new);
	HeapTuple	tuple;

	rewrite_deform(rw, v, blk, off);
	if (rw->sort_columns != NULL)
	{
		for (int i = 0; i < desc->natts; i++)
			if (!bms_is_member(i + 1, rw->sort_columns))
				rw->isnull[i] = true;
	}
	tuple = heap_form_tuple(desc, rw->values, rw->isnull);
	ItemPointerSet(&tuple->t_self, blk, off);
	tuple->t_tableOid = RelationGetRelid(rw->old);
	tuplesort_putheaptuple(rw->sort, tuple);

	ExecClearTuple(rw->slot);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(rw->row_context);
}

/*
 * A version met by a scan.  One that is damaged is neither copied, for a wrong
 * length would lead anywhere, nor dropped in silence.
 */
static void
rewrite_version(RewriteState *rw, NvmVersion *v, uint32 blk, uint32 off)
{
	const int	index[] = {
		PROGRESS_CLUSTER_HEAP_TUPLES_SCANNED,
		PROGRESS_CLUSTER_HEAP_TUPLES_WRITTEN
	};
	int64		val[2];

	if (!rewrite_wants(rw, v))
		return;
	if (!nvm_version_is_sound(v))
		nvm_version_damaged(rw->old, blk, off);

	if (rw->sort != NULL)
	{
		rewrite_put_sort(rw, v, blk, off);
		pgstat_progress_update_param(PROGRESS_CLUSTER_HEAP_TUPLES_SCANNED,
									 (int64) rw->num_tuples);
		return;
	}

	rewrite_copy(rw, v, blk, off);
	val[0] = (int64) rw->num_tuples;
	val[1] = (int64) rw->num_tuples;
	pgstat_progress_update_multi_param(2, index, val);
}

/*
 * All versions, block by block.
 */
static void
rewrite_scan_blocks(RewriteState *rw)
{
	uint32		nblocks = nvm_rel_nblocks(rw->state);

	pgstat_progress_update_param(PROGRESS_CLUSTER_PHASE,
								 PROGRESS_CLUSTER_PHASE_SEQ_SCAN_HEAP);
	pgstat_progress_update_param(PROGRESS_CLUSTER_TOTAL_HEAP_BLKS, nblocks);

	for (uint32 blk = 0; blk < nblocks; blk++)
	{
		NvmBlock   *block = nvm_block(rw->state, blk);

		CHECK_FOR_INTERRUPTS();
		nvm_block_prove_for_copy(rw->old, rw->state, blk, 0);
		for (uint32 cell = nvm_block_next_start(block, NVM_FIRST_CELL);
			 cell != 0;
			 cell = nvm_block_next_start(block, cell + 1))
			rewrite_version(rw, nvm_cell(rw->state, blk, cell), blk, cell);
		pgstat_progress_update_param(PROGRESS_CLUSTER_HEAP_BLKS_SCANNED,
									 blk + 1);
	}
}

/*
 * All versions in the order of an index: entries lead to roots, a root to the
 * versions of its row.
 */
static void
rewrite_scan_index(RewriteState *rw, Relation index)
{
	const int	ci_index[] = {
		PROGRESS_CLUSTER_PHASE,
		PROGRESS_CLUSTER_INDEX_RELID
	};
	int64		ci_val[2];
	IndexScanDesc scan;
	ItemPointer tid;

	ci_val[0] = PROGRESS_CLUSTER_PHASE_INDEX_SCAN_HEAP;
	ci_val[1] = RelationGetRelid(index);
	pgstat_progress_update_multi_param(2, ci_index, ci_val);

	scan = nvm_index_scan_all(rw->old, index, SnapshotAny);
	index_rescan(scan, NULL, 0, NULL, 0);
	while ((tid = index_getnext_tid(scan, ForwardScanDirection)) != NULL)
	{
		uint64		root = NVM_REF_MAKE(ItemPointerGetBlockNumber(tid),
										ItemPointerGetOffsetNumber(tid), 0);
		NvmChainPos pos = {0};
		NvmVersion *v;

		CHECK_FOR_INTERRUPTS();
		if (scan->xs_recheck)
			elog(ERROR, "CLUSTER does not support lossy index conditions");
		nvm_block_prove_for_copy(rw->old, rw->state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
		while ((v = nvm_chain_next(rw->state, root, &pos)) != NULL)
		{
			nvm_block_prove_for_copy(rw->old, rw->state, NVM_REF_BLOCK(pos.ref),
									 NVM_REF_OFFSET(pos.ref));
			rewrite_version(rw, v, NVM_REF_BLOCK(pos.ref), NVM_REF_OFFSET(pos.ref));
		}
	}
	index_endscan(scan);
}

/*
 * Columns that a sort by `index` looks at; NULL if expressions make that all.
 */
static Bitmapset *
rewrite_sort_columns(Relation index)
{
	Bitmapset  *columns = NULL;

	if (RelationGetIndexExpressions(index) != NIL)
		return NULL;
	for (int i = 0; i < index->rd_index->indnatts; i++)
		columns = bms_add_member(columns, index->rd_index->indkey.values[i]);
	return columns;
}

/*
 * Sort, and write the rows in that order.
 */
static void
rewrite_sorted(RewriteState *rw)
{
	double		n = 0;
	HeapTuple	tuple;

	pgstat_progress_update_param(PROGRESS_CLUSTER_PHASE,
								 PROGRESS_CLUSTER_PHASE_SORT_TUPLES);
	tuplesort_performsort(rw->sort);

	pgstat_progress_update_param(PROGRESS_CLUSTER_PHASE,
								 PROGRESS_CLUSTER_PHASE_WRITE_NEW_HEAP);
	while ((tuple = tuplesort_getheaptuple(rw->sort, true)) != NULL)
	{
		uint32		blk = ItemPointerGetBlockNumber(&tuple->t_self);
		uint32		off = ItemPointerGetOffsetNumber(&tuple->t_self);

		CHECK_FOR_INTERRUPTS();
		rewrite_copy(rw, nvm_cell(rw->state, blk, off), blk, off);
		n += 1;
		pgstat_progress_update_param(PROGRESS_CLUSTER_HEAP_TUPLES_WRITTEN,
									 (int64) n);
	}
	tuplesort_end(rw->sort);
}

/*
 * relation_copy_for_cluster of the access method.
 */
void
nvm_relation_copy_for_cluster(Relation OldTable, Relation NewTable,
							  Relation OldIndex, bool use_sort,
							  TransactionId OldestXmin,
							  TransactionId *xid_cutoff,
							  MultiXactId *multi_cutoff,
							  double *num_tuples,
							  double *tups_vacuumed,
							  double *tups_recently_dead)
{
	RewriteState rw;
	int			natts = RelationGetDescr(NewTable)->natts;

	/* what a prepared transaction rolled back is in the gap: not copied */
	nvm_twophase_settle();
	nvm_wbl_advance_frozen();
	/* the caller has it open, and is going to scan it */
	if (OldIndex != NULL && !NVM_FAILPOINT_MISSES("exchange-clustered"))
		(void) nvm_relation_is_btree(OldIndex);

	memset(&rw, 0, sizeof(rw));
	rw.old = OldTable;
	rw.new = NewTable;
	rw.state = nvm_rel(OldTable);
	rw.vistest = GlobalVisTestFor(OldTable);
	rw.slot = MakeSingleTupleTableSlot(RelationGetDescr(OldTable), &TTSOpsNvm);
	rw.row_context = AllocSetContextCreate(CurrentMemoryContext,
										   "nvm rewrite row",
										   ALLOCSET_DEFAULT_SIZES);
	rw.values = (Datum *) palloc(natts * sizeof(Datum));
	rw.isnull = (bool *) palloc(natts * sizeof(bool));

	if (use_sort)
	{
		rw.sort = tuplesort_begin_cluster(RelationGetDescr(OldTable), OldIndex,
										  maintenance_work_mem, NULL,
										  TUPLESORT_NONE);
		rw.sort_columns = rewrite_sort_columns(OldIndex);
	}

	if (OldIndex != NULL && !use_sort)
		rewrite_scan_index(&rw, OldIndex);
	else
		rewrite_scan_blocks(&rw);
	if (rw.sort != NULL)
		rewrite_sorted(&rw);

	ExecDropSingleTupleTableSlot(rw.slot);
	MemoryContextDelete(rw.row_context);
	pfree(rw.values);
	pfree(rw.isnull);

	/* row locks are not copied, so the caller's multixact cutoff stands */
	if (TransactionIdIsValid(rw.oldest_unfrozen) &&
		TransactionIdPrecedes(rw.oldest_unfrozen, *xid_cutoff))
		*xid_cutoff = rw.oldest_unfrozen;
	*num_tuples += rw.num_tuples;
	*tups_vacuumed += rw.vacuumed;
	*tups_recently_dead += rw.recently_dead;
}
