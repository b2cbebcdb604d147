/*-------------------------------------------------------------------------
 *
 * btree_vacuum.c
 *	  VACUUM: remove the entries of rows that are gone, unlink leaves that have
 *	  become empty, look for blocks that can be used again.
 *
 * The leaves are walked by their right links, each from a copy.  An entry
 * moves by splits only, and to the right.  So no entry that was there at the
 * start is missed.  CREATE INDEX CONCURRENTLY relies on that, too, when it
 * asks for all TIDs.  An entry that comes while we walk is of a row that is
 * not dead.
 *
 * A leaf that loses entries is written anew by a redo lane; so what has been
 * removed is durable when bulkdelete returns, and TIDs may be used again.
 * None of that is done in the name of a transaction: workers of a parallel
 * VACUUM do the same.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "btree/nvm_btree_change.h"
#include "btree/nvm_btree_persist.h"
#include "catalog/index.h"
#include "commands/progress.h"
#include "compat/nvm_compat_vacuum.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"

/* to lock a page that does not change */
#define VACUUM_TRIES	1000

typedef struct IndexVacuum
{
	Relation	index;
	Relation	heap;
	NvmIndexCache cache;		/* a copy: the index's may go away */
	IndexBulkDeleteResult *stats;
	IndexBulkDeleteCallback callback;
	void	   *callback_state;
	MemoryContext context;		/* of one page */
	NvmIndexCopy *copy;
	IndexTuple *items;			/* of the page, what stays */
	int			nitems;
	bool		postings;		/* it had posting lists */
} IndexVacuum;

static void
vacuum_init(IndexVacuum *vac, IndexVacuumInfo *info, IndexBulkDeleteResult *stats)
{
	memset(vac, 0, sizeof(IndexVacuum));
	vac->index = info->index;

	/* the caller has locked the table */
	vac->heap = table_open(IndexGetRelation(RelationGetRelid(info->index), false), NoLock);
	vac->cache = *nvm_index_cache(info->index);
	vac->stats = stats != NULL ? stats :
		(IndexBulkDeleteResult *) palloc0(sizeof(IndexBulkDeleteResult));
	vac->context = AllocSetContextCreate(CurrentMemoryContext, "nvm_btree vacuum",
										 ALLOCSET_DEFAULT_SIZES);
}

static void
vacuum_end(IndexVacuum *vac)
{
	MemoryContextDelete(vac->context);
	table_close(vac->heap, NoLock);
}

/*
 * Ask about the TIDs of an entry.  Returns the entry itself if all stay, one of
 * those that do, or NULL.  *nstay and *ngo count them.
 */
static IndexTuple
vacuum_entry(IndexVacuum *vac, IndexTuple itup, int *nstay, int *ngo)
{
	ItemPointerData keep[MaxTIDsPerBTreePage];
	ItemPointer tids = &itup->t_tid;
	int			ntids = 1;
	int			nkeep = 0;

	if (BTreeTupleIsPosting(itup))
	{
		tids = BTreeTupleGetPosting(itup);
		ntids = BTreeTupleGetNPosting(itup);
	}
	for (int i = 0; i < ntids; i++)
	{
		if (!vac->callback(&tids[i], vac->callback_state))
			keep[nkeep++] = tids[i];
	}
	*nstay += nkeep;
	*ngo += ntids - nkeep;
	if (nkeep == ntids)
		return itup;
	return nkeep > 0 ? _bt_form_posting(itup, keep, nkeep) : NULL;
}

/*
 * Ask about all TIDs on the page that was copied, each once.  VACUUM spends
 * most of its time on that.  Collects what stays in items[].
 */
static void
vacuum_ask(IndexVacuum *vac, int *nstay, int *ngo)
{
	*nstay = *ngo = 0;
	vac->nitems = 0;
	vac->postings = false;
	for (int i = vac->copy->first; i < vac->copy->nitems; i++)
	{
		IndexTuple	itup = NvmIndexCopyItem(vac->copy, i);

		vac->postings |= BTreeTupleIsPosting(itup);
		itup = vacuum_entry(vac, itup, nstay, ngo);
		if (itup != NULL)
			vac->items[vac->nitems++] = itup;
	}
}

/*
 * Write the page that was copied with what stays alone.  False if it has changed.
 *
 * Where there are posting lists all equal keys are merged: a list that loses its
 * lowest TID must not stand before an entry that lay within it.
 */
static bool
vacuum_rewrite(IndexVacuum *vac)
{
	bool		merge = nvm_index_deduplicates(vac->index) &&
	!vac->index->rd_index->indisunique;
	IndexTuple *items;
	int			n = nvm_index_merge(vac->index, &vac->cache, vac->items, vac->nitems,
									merge || vac->postings, &items);

	return nvm_index_rewrite(vac->index, &vac->cache, vac->copy, items, n);
}

/*
 * Finish a split that a crash or an error has left incomplete: until it is done
 * neither page can go.  If there is no free block for that, another process
 * will finish it later, since VACUUM makes room.
 */
static void
vacuum_finish_split(IndexVacuum *vac, uint32 blkno)
{
	MemoryContext context = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;

	PG_TRY();
	{
		nvm_index_finish_split(vac->index, &vac->cache, vac->heap, blkno);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		if (geterrcode() != ERRCODE_DISK_FULL)
			PG_RE_THROW();

		/* those of the extension that failed; we hold none ourselves */
		LWLockReleaseAll();
		InterruptHoldoffCount = holdoff;	/* the error has reset it */
		FlushErrorState();
	}
	PG_END_TRY();
}

/*
 * One leaf.  Returns the number of the next one.
 */
static uint32
vacuum_leaf(IndexVacuum *vac, uint32 blkno)
{
	MemoryContext oldcontext;
	uint64		version = 0;
	int			tries = 0;
	uint32		right;
	int			nstay;
	int			ngo;

	MemoryContextReset(vac->context);
	oldcontext = MemoryContextSwitchTo(vac->context);
	vac->copy = (NvmIndexCopy *) palloc(sizeof(NvmIndexCopy));
	for (;;)
	{
		nvm_index_copy(vac->index, &vac->cache, blkno, vac->copy);
		right = vac->copy->right;

		if ((vac->copy->flags & NVM_INDEX_INCOMPLETE) != 0)
		{
			vacuum_finish_split(vac, blkno);
			nvm_index_copy(vac->index, &vac->cache, blkno, vac->copy);
			right = vac->copy->right;
		}
		vac->items = (IndexTuple *) palloc((vac->copy->nitems + 1) * sizeof(IndexTuple));
		vacuum_ask(vac, &nstay, &ngo);
		if (ngo == 0 || vacuum_rewrite(vac))
			break;

		/*
		 * We take entries away: there is room if nobody has put some in.  The
		 * version may be the same if a process had the lock for a hint.
		 */
		if (version != vac->copy->version)
			tries = 0;
		else if (++tries > VACUUM_TRIES)
			elog(ERROR, "page %u of index \"%s\" cannot be written anew",
				 blkno, RelationGetRelationName(vac->index));
		version = vac->copy->version;
		CHECK_FOR_INTERRUPTS();
	}
	if (ngo > 0)
		NVM_FAILPOINT("btree-vacuum-leaf");

	vac->stats->num_index_tuples += nstay;
	vac->stats->tuples_removed += ngo;
	if (nstay == 0 && right != NVM_INDEX_NONE &&
		nvm_index_delete_page(vac->index, &vac->cache, blkno))
		vac->stats->pages_newly_deleted++;
	MemoryContextSwitchTo(oldcontext);
	return right;
}

static IndexBulkDeleteResult *
vacuum_walk(IndexVacuumInfo *info, IndexBulkDeleteResult *stats,
			IndexBulkDeleteCallback callback, void *callback_state)
{
	IndexVacuum vac;
	uint32		blkno;
	int64		done = 0;

	vacuum_init(&vac, info, stats);
	vac.callback = callback;
	vac.callback_state = callback_state;
	/* TIDs that are left, not their sum over several passes */
	vac.stats->num_index_tuples = 0;
	vac.stats->estimated_count = false;
	if (info->report_progress)
		pgstat_progress_update_param(PROGRESS_SCAN_BLOCKS_TOTAL,
									 pg_atomic_read_u32(&vac.cache.state->nblocks));

	for (blkno = nvm_index_endpoint(info->index, &vac.cache, 0, false, NULL);
		 blkno != NVM_INDEX_NONE;
		 blkno = vacuum_leaf(&vac, blkno))
	{
		nvm_vacuum_delay();
		if (VacuumCostActive)
			VacuumCostBalance += VacuumCostPageHit;
		if (info->report_progress)
			pgstat_progress_update_param(PROGRESS_SCAN_BLOCKS_DONE, ++done);
	}
	vac.stats->num_pages = pg_atomic_read_u32(&vac.cache.state->nblocks);
	vacuum_end(&vac);
	return vac.stats;
}

static void
vacuum_release(int code, Datum arg)
{
	nvm_index_release_absent(DatumGetUInt32(arg));
}

/*
 * ambulkdelete.
 */
IndexBulkDeleteResult *
nvm_btree_bulkdelete(IndexVacuumInfo *info, IndexBulkDeleteResult *stats,
					 IndexBulkDeleteCallback callback, void *callback_state)
{
	uint32		dir = nvm_index_cache(info->index)->dir;

	/* no process enters rows that it has seen before, while we remove entries */
	if (!nvm_index_hold_absent(info->index))
		return vacuum_walk(info, stats, callback, callback_state);
	PG_ENSURE_ERROR_CLEANUP(vacuum_release, UInt32GetDatum(dir));
	{
		stats = vacuum_walk(info, stats, callback, callback_state);
	}
	PG_END_ENSURE_ERROR_CLEANUP(vacuum_release, UInt32GetDatum(dir));
	nvm_index_release_absent(dir);
	return stats;
}

/*
 * amvacuumcleanup.  Without a bulkdelete before it the number of entries is
 * the caller's guess.
 */
IndexBulkDeleteResult *
nvm_btree_vacuumcleanup(IndexVacuumInfo *info, IndexBulkDeleteResult *stats)
{
	IndexVacuum vac;
	uint32		ndeleted;
	uint32		nfree;

	if (info->analyze_only)
		return stats;

	vacuum_init(&vac, info, stats);
	if (stats == NULL)
	{
		vac.stats->estimated_count = true;
		vac.stats->num_index_tuples = info->num_heap_tuples;
	}
	nvm_index_find_free(info->index, &vac.cache, vac.heap, &ndeleted, &nfree);
	vac.stats->num_pages = pg_atomic_read_u32(&vac.cache.state->nblocks);
	vac.stats->pages_deleted = ndeleted;
	vac.stats->pages_free = nfree;

	/* several pages may have been looked at twice while others were split */
	if (!info->estimated_count && vac.stats->num_index_tuples > info->num_heap_tuples)
		vac.stats->num_index_tuples = info->num_heap_tuples;
	vacuum_end(&vac);
	return vac.stats;
}
