/*-------------------------------------------------------------------------
 *
 * btree_check_heap.c
 *	  nvm.check(index, heapallindexed => true): the entries and the rows.
 *
 * A snapshot is taken first.  Every row that it sees has its entry by then,
 * and nobody takes the entry away.  As the leaves are walked each entry goes
 * into a Bloom filter.  If the snapshot sees a row behind the entry, the row
 * must have this very entry, and in a unique index the entry before of the same
 * key must lead to no such row.  Then the table is scanned as CREATE INDEX would.
 * A row whose entry is not in the filter has none.
 *
 * A few rows that lack their entry escape such a filter; each time they are
 * others.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/tupmacs.h"
#include "btree/nvm_btree_check.h"
#include "catalog/index.h"
#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "compat/nvm_compat_index.h"
#include "miscadmin.h"
#include "pool/nvm_allvisible.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

/*
 * What an entry is, in 64 bits.  Values may be stored in the table and in the
 * index in different ways: compressed, or with a header of one byte.
 */
static uint64
check_hash(IndexCheck *check, Datum *values, bool *isnull, ItemPointer tid)
{
	TupleDesc	desc = RelationGetDescr(check->index);
	uint64		hash = hash_bytes_extended((unsigned char *) tid, sizeof(ItemPointerData), 0);

	for (int i = 0; i < check->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		Datum		buffer = 0;
		const void *data;
		int			len = att->attlen;

		if (isnull[i])
		{
			hash = hash_bytes_uint32_extended(i, hash);
			continue;
		}
		if (att->attbyval)
		{
			store_att_byval(&buffer, values[i], len);
			data = &buffer;
		}
		else if (len == -1)
		{
			struct varlena *value = PG_DETOAST_DATUM_PACKED(values[i]);

			data = VARDATA_ANY(value);
			len = VARSIZE_ANY_EXHDR(value);
		}
		else
		{
			data = DatumGetPointer(values[i]);
			if (len == -2)
				len = strlen((const char *) data);
		}
		hash = hash_bytes_extended((const unsigned char *) data, len, hash);
	}
	return hash;
}

/*
 * Rows are taken by a snapshot, and nothing is said about uniqueness.
 */
static IndexInfo *
check_index_info(IndexCheck *check)
{
	IndexInfo  *info = BuildIndexInfo(check->index);

	info->ii_Concurrent = true;
	info->ii_Unique = false;
	info->ii_ExclusionOps = NULL;
	info->ii_ExclusionProcs = NULL;
	info->ii_ExclusionStrats = NULL;
	return info;
}

void
nvm_index_check_heap_begin(IndexCheck *check)
{
	check->snapshot = RegisterSnapshot(GetLatestSnapshot());
	check->info = check_index_info(check);
	/* one that is looked at later may be broken for our own transaction */
	check->unique = check->index->rd_index->indisunique &&
		check->index->rd_index->indimmediate && check->index->rd_index->indisvalid;
	check->estate = CreateExecutorState();
	check->slot = table_slot_create(check->heap, NULL);
	GetPerTupleExprContext(check->estate)->ecxt_scantuple = check->slot;
	check->predicate = ExecPrepareQual(check->info->ii_Predicate, check->estate);
	check->fetch = table_index_fetch_begin(check->heap);
	nvm_index_check_heap_pass(check);
}

/*
 * Before each pass.
 */
void
nvm_index_check_heap_pass(IndexCheck *check)
{
	int64		nrows = Max((int64) check->heap->rd_rel->reltuples,
							(int64) pg_atomic_read_u32(&check->cache.state->nblocks) *
							(MaxTIDsPerBTreePage / 3));

	if (check->visible != NULL)
		pfree(check->visible);
	check->visible = NULL;
	if (check->filter != NULL)
		bloom_free(check->filter);
	check->filter = bloom_create(nrows, maintenance_work_mem, pg_prng_uint64(&pg_global_prng_state));
}

/*
 * An entry of a unique index leads to a row that the snapshot sees.  Does one before
 * it with the same key?  Entries come in the order of their keys.
 */
static void
check_unique(IndexCheck *check, uint32 blkno, int item, IndexTuple itup, ItemPointer tid)
{
	NvmIndexKey key;

	nvm_index_key_init(check->index, &check->cache, itup, &key);
	key.scantid = NULL;
	if (check->visible != NULL)
	{
		if (!key.anynull && nvm_index_compare(&key, check->visible) == 0)
			nvm_index_check_report(check, blkno, item, "rows (%u,%u) and (%u,%u) have the same key in a unique index",
								   ItemPointerGetBlockNumberNoCheck(&check->visible_tid),
								   ItemPointerGetOffsetNumberNoCheck(&check->visible_tid),
								   ItemPointerGetBlockNumberNoCheck(tid),
								   ItemPointerGetOffsetNumberNoCheck(tid));
		pfree(check->visible);
	}
	check->visible = (IndexTuple) MemoryContextAlloc(GetMemoryChunkContext(check),
													 IndexTupleSize(itup));
	memcpy(check->visible, itup, IndexTupleSize(itup));
	check->visible_tid = *tid;
}

/*
 * The row to which an entry leads, if there is one: is it the entry's?  Where
 * the block is noted as visible to all, an index-only scan takes it for
 * granted that there is one.  For an entry that was read before, that holds
 * for our snapshot, too.  Returns whether there is a row.
 */
static bool
check_row(IndexCheck *check, uint32 blkno, int item, ItemPointer tid, uint64 hash)
{
	ItemPointerData at = *tid;
	bool		call_again = false;
	bool		all_dead;
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	ExprContext *econtext = GetPerTupleExprContext(check->estate);
	bool		everybodys = nvm_allvisible(((NvmIndexFetchBase *) check->fetch)->state,
											ItemPointerGetBlockNumberNoCheck(tid));

	if (!table_index_fetch_tuple(check->fetch, &at, check->snapshot, check->slot,
								 &call_again, &all_dead))
	{
		if (everybodys)
			nvm_index_check_report(check, blkno, item, "entry leads to (%u,%u), where there is no row, in a block that is noted as visible to all transactions",
								   ItemPointerGetBlockNumberNoCheck(tid),
								   ItemPointerGetOffsetNumberNoCheck(tid));
		return false;
	}
	ResetExprContext(econtext);
	if (check->predicate != NULL && !ExecQual(check->predicate, econtext))
		nvm_index_check_report(check, blkno, item, "entry leads to row (%u,%u), which the index's predicate excludes",
							   ItemPointerGetBlockNumberNoCheck(tid),
							   ItemPointerGetOffsetNumberNoCheck(tid));
	else
	{
		FormIndexDatum(check->info, check->slot, check->estate, values, isnull);
		if (check_hash(check, values, isnull, tid) != hash)
			nvm_index_check_report(check, blkno, item, "entry leads to row (%u,%u), which has another key",
								   ItemPointerGetBlockNumberNoCheck(tid),
								   ItemPointerGetOffsetNumberNoCheck(tid));
	}
	ExecClearTuple(check->slot);
	return true;
}

/*
 * An entry of a leaf.
 */
void
nvm_index_check_heap_entry(IndexCheck *check, uint32 blkno, int item, IndexTuple itup)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	ItemPointer tids = BTreeTupleGetHeapTID(itup);
	int			ntids = BTreeTupleIsPosting(itup) ? BTreeTupleGetNPosting(itup) : 1;

	index_deform_tuple(itup, RelationGetDescr(check->index), values, isnull);
	for (int i = 0; i < ntids; i++)
	{
		uint64		hash = check_hash(check, values, isnull, &tids[i]);

		bloom_add_element(check->filter, (unsigned char *) &hash, sizeof(hash));
		if (check_row(check, blkno, item, &tids[i], hash) && check->unique)
			check_unique(check, blkno, item, itup, &tids[i]);
	}
}

static void
check_row_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
				   bool alive, void *arg)
{
	IndexCheck *check = (IndexCheck *) arg;
	MemoryContext oldcontext = MemoryContextSwitchTo(check->item_context);
	uint64		hash = check_hash(check, values, isnull, tid);

	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(check->item_context);
	if (bloom_lacks_element(check->filter, (unsigned char *) &hash, sizeof(hash)))
		nvm_index_check_report(check, 0, 0, "row (%u,%u) has no entry",
							   ItemPointerGetBlockNumberNoCheck(tid),
							   ItemPointerGetOffsetNumberNoCheck(tid));
}

/*
 * All rows that the snapshot sees: do they have their entries?
 */
void
nvm_index_check_heap_rows(IndexCheck *check)
{
	TableScanDesc scan = table_beginscan_strat(check->heap, check->snapshot, 0, NULL,
											   true, true);

	table_index_build_scan(check->heap, check->index, check_index_info(check), true, false,
						   check_row_callback, check, scan);
}

void
nvm_index_check_heap_end(IndexCheck *check)
{
	table_index_fetch_end(check->fetch);
	ExecDropSingleTupleTableSlot(check->slot);
	FreeExecutorState(check->estate);
	bloom_free(check->filter);
	UnregisterSnapshot(check->snapshot);
}
