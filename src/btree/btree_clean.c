/*-------------------------------------------------------------------------
 *
 * btree_clean.c
 *	  Make room on a full leaf: entries of dead rows, equal keys; or a split.
 *
 * These steps, in this order, until there is enough room to be worth writing
 * the page:
 *	1. entries that scans have marked DEAD;
 *	2. where an update has brought the same key again, entries whose rows the
 *	   table says are gone (bottom-up deletion);
 *	3. equal keys become posting lists;
 *	4. a split of what is left.
 *
 * All of it is planned on a private copy and done by a redo lane.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/tableam.h"
#include "btree/nvm_btree_change.h"
#include "btree/nvm_btree_page.h"
#include "pmem/nvm_pmem.h"
#include "utils/memutils.h"

/* a page that is written anew shall not be full again at once */
#define CLEAN_SLACK		(NVM_INDEX_PAGE_SIZE / 24)
/* bottom-up deletion is to find as much */
#define BOTTOMUP_SPACE	(NVM_INDEX_PAGE_SIZE / 16)

/* a leaf that is being cleaned */
typedef struct Cleaning
{
	Relation	index;
	NvmIndexCache *cache;
	Relation	heap;
	NvmIndexCopy *copy;
	const NvmIndexWanted *wanted;
	IndexTuple *items;			/* data entries that stay */
	int			nitems;
} Cleaning;

static inline int
entry_tids(IndexTuple itup, ItemPointer *tids)
{
	if (BTreeTupleIsPosting(itup))
	{
		*tids = BTreeTupleGetPosting(itup);
		return BTreeTupleGetNPosting(itup);
	}
	*tids = &itup->t_tid;
	return 1;
}

static int
compare_tids(const void *a, const void *b)
{
	return ItemPointerCompare((ItemPointer) a, (ItemPointer) b);
}

static inline bool
equal_keys(Relation index, IndexTuple a, IndexTuple b)
{
	return _bt_keep_natts_fast(index, a, b) > IndexRelationGetNumberOfKeyAttributes(index);
}

/* ---- posting lists ---- */

/*
 * Form entries of these TIDs, sorted, all with base's key.
 */
static int
form_postings(IndexTuple base, ItemPointer tids, int ntids, IndexTuple *out)
{
	Size		keysize = BTreeTupleIsPosting(base) ?
	BTreeTupleGetPostingOffset(base) : IndexTupleSize(base);
	int			most = 1;
	int			n = 0;

	if (keysize + 2 * sizeof(ItemPointerData) <= NVM_INDEX_MAX_POSTING)
		most = (NVM_INDEX_MAX_POSTING - keysize) / sizeof(ItemPointerData);
	for (int i = 0; i < ntids; i += most)
		out[n++] = _bt_form_posting(base, tids + i, Min(most, ntids - i));
	return n;
}

/*
 * Merge one run of equal keys.
 */
static int
merge_run(IndexTuple *items, int nitems, IndexTuple *out)
{
	ItemPointer tids;
	ItemPointer all;
	int			total = 0;
	int			ntids = 0;
	int			unique = 0;

	for (int i = 0; i < nitems; i++)
		total += entry_tids(items[i], &tids);
	all = palloc(total * sizeof(ItemPointerData));
	for (int i = 0; i < nitems; i++)
	{
		int			n = entry_tids(items[i], &tids);

		memcpy(all + ntids, tids, n * sizeof(ItemPointerData));
		ntids += n;
	}
	qsort(all, ntids, sizeof(ItemPointerData), compare_tids);
	for (int i = 0; i < ntids; i++)
	{
		if (i == 0 || !ItemPointerEquals(&all[unique - 1], &all[i]))
			all[unique++] = all[i];
	}
	return form_postings(items[0], all, unique, out);
}

int
nvm_index_merge(Relation index, NvmIndexCache *cache, IndexTuple *items, int nitems,
				bool merge, IndexTuple **merged)
{
	IndexTuple *out;
	int			total = 0;
	int			n = 0;
	bool		postings = false;

	for (int i = 0; i < nitems; i++)
	{
		ItemPointer tids;

		total += entry_tids(items[i], &tids);
		postings |= BTreeTupleIsPosting(items[i]);
	}
	*merged = items;
	if (!cache->allequalimage || (!merge && !postings))
		return nitems;

	out = palloc((total + 1) * sizeof(IndexTuple));
	for (int i = 0; i < nitems;)
	{
		int			end = i + 1;

		postings = BTreeTupleIsPosting(items[i]);
		while (end < nitems && equal_keys(index, items[i], items[end]))
			postings |= BTreeTupleIsPosting(items[end++]);
		if (end > i + 1 && (merge || postings))
			n += merge_run(items + i, end - i, out + n);
		else
		{
			for (int k = i; k < end; k++)
				out[n++] = items[k];
		}
		i = end;
	}
	*merged = out;
	return n;
}

/* ---- a new image ---- */

bool
nvm_index_rewrite(Relation index, NvmIndexCache *cache, const NvmIndexCopy *copy,
				  IndexTuple *items, int nitems)
{
	NvmIndexPage *page = nvm_index_page(cache->state, copy->blkno);
	IndexTuple *all = palloc((nitems + 1) * sizeof(IndexTuple));
	char	   *image = palloc(NVM_INDEX_PAGE_SIZE);
	NvmIndexForm form;
	NvmIndexChange change;
	bool		done = false;

	if (copy->first > 0)
		all[0] = NvmIndexCopyItem(copy, 0);
	memcpy(all + copy->first, items, nitems * sizeof(IndexTuple));
	form = (NvmIndexForm)
	{
		.blkno = copy->blkno,.left = copy->left,.right = copy->right,
			.level = copy->level,.flags = copy->flags & ~NVM_INDEX_HAS_DEAD,
			.items = all,.nitems = nitems + copy->first
	};
	if (nvm_index_form(image, cache, &form))
	{
		((NvmIndexPage *) image)->safexid = copy->image.header.safexid;
		nvm_index_change_begin(&change, cache, copy->level);
		if (nvm_index_lock(page, copy->version))
		{
			done = nvm_index_change_stands(&change);
			if (done)
			{
				nvm_index_change_page(&change, page, image);
				nvm_index_change_apply(&change);
			}
			nvm_index_unlock(page, done);
		}
		nvm_index_change_end(&change);
		NVM_FAILPOINT("btree-rewritten");
	}
	pfree(image);
	pfree(all);
	return done;
}

/*
 * Would the page, written anew with what stays, have room for the new entry
 * and some more?  An insertion needs an order word for each entry besides.
 */
static bool
is_enough(const Cleaning *clean, Size slack)
{
	Size		used = NVM_INDEX_HEADER_SIZE;
	int			n = clean->nitems + 1;

	if (clean->copy->first > 0)
	{
		used += NvmIndexEntrySpace(NvmIndexCopyItem(clean->copy, 0));
		n++;
	}
	for (int i = 0; i < clean->nitems; i++)
		used += NvmIndexEntrySpace(clean->items[i]);
	used += n * sizeof(uint16) + MAXALIGN(IndexTupleSize(clean->wanted->newitem));
	return used + slack <= NVM_INDEX_PAGE_SIZE;
}

/* ---- 1: what scans have marked ---- */

/*
 * Collect the data entries that are not marked.  Returns how many are.
 */
static int
drop_marked(Cleaning *clean)
{
	NvmIndexCopy *copy = clean->copy;
	int			marked = 0;

	clean->items = palloc((copy->nitems + 1) * sizeof(IndexTuple));
	clean->nitems = 0;
	for (int i = copy->first; i < copy->nitems; i++)
	{
		if (copy->word[i] & NVM_INDEX_DEAD)
			marked++;
		else
			clean->items[clean->nitems++] = NvmIndexCopyItem(copy, i);
	}
	return marked;
}

/* ---- 2: bottom-up deletion ---- */

/*
 * Tell the table of the TIDs of one entry.  The updates that have brought
 * equal keys are of one row, probably in the block that most of them are in.
 * So of a posting list among equal keys one TID is promising at most.
 */
static void
offer_entry(TM_IndexDeleteOp *op, IndexTuple itup, int item, bool duplicate)
{
	ItemPointer tids;
	int			ntids = entry_tids(itup, &tids);
	int			promising = ntids == 1 ? 0 : -1;

	if (ntids > 1)
	{
		BlockNumber middle = ItemPointerGetBlockNumber(&tids[ntids / 2]);

		if (ItemPointerGetBlockNumber(&tids[0]) == middle)
			promising = 0;
		else if (ItemPointerGetBlockNumber(&tids[ntids - 1]) == middle)
			promising = ntids - 1;
	}
	for (int i = 0; i < ntids; i++)
	{
		int			id = op->ndeltids++;

		op->deltids[id].tid = tids[i];
		op->deltids[id].id = id;
		op->status[id].idxoffnum = item;
		op->status[id].knowndeletable = false;
		op->status[id].promising = duplicate && i == promising;
		op->status[id].freespace = ntids == 1 ?
			IndexTupleSize(itup) + sizeof(uint16) : sizeof(ItemPointerData);
	}
}

/*
 * Take the TIDs that are dead out of the list of entries.  dead[] has one
 * element for each TID, in the order in which they were offered.
 */
static void
drop_dead(Cleaning *clean, const bool *dead)
{
	int			id = 0;
	int			n = 0;

	for (int i = 0; i < clean->nitems; i++)
	{
		IndexTuple	itup = clean->items[i];
		ItemPointer tids;
		int			ntids = entry_tids(itup, &tids);
		ItemPointer keep = palloc(ntids * sizeof(ItemPointerData));
		int			nkeep = 0;

		for (int k = 0; k < ntids; k++)
		{
			if (!dead[id++])
				keep[nkeep++] = tids[k];
		}
		if (nkeep == ntids)
			clean->items[n++] = itup;
		else if (nkeep > 0)
			clean->items[n++] = _bt_form_posting(itup, keep, nkeep);
		pfree(keep);
	}
	clean->nitems = n;
}

/*
 * Ask the table which rows of the page are gone.  It looks where many entries
 * have the same key.
 */
static void
delete_bottomup(Cleaning *clean)
{
	TM_IndexDeleteOp op;
	bool	   *dead;
	int			total = 0;

	for (int i = 0; i < clean->nitems; i++)
	{
		ItemPointer tids;

		total += entry_tids(clean->items[i], &tids);
	}
	if (total == 0)
		return;
	memset(&op, 0, sizeof(op));
	op.irel = clean->index;
	op.iblknum = clean->copy->blkno;
	op.bottomup = true;
	op.bottomupfreespace = Max(BOTTOMUP_SPACE,
							   MAXALIGN(IndexTupleSize(clean->wanted->newitem)) + sizeof(uint16));
	op.deltids = palloc(total * sizeof(TM_IndexDelete));
	op.status = palloc(total * sizeof(TM_IndexStatus));
	dead = palloc0(total * sizeof(bool));

	for (int i = 0; i < clean->nitems;)
	{
		int			end = i + 1;

		while (end < clean->nitems &&
			   equal_keys(clean->index, clean->items[i], clean->items[end]))
			end++;
		for (int k = i; k < end; k++)
			offer_entry(&op, clean->items[k], k, end > i + 1);
		i = end;
	}

	(void) table_index_delete_tuples(clean->heap, &op);

	/* the table has sorted them, and left those that it did not look at */
	for (int i = 0; i < op.ndeltids; i++)
	{
		if (op.status[op.deltids[i].id].knowndeletable)
			dead[op.deltids[i].id] = true;
	}
	drop_dead(clean, dead);
}

/* ---- all of it ---- */

/*
 * So many of the entries are below the new one.
 */
static int
place_of(Cleaning *clean)
{
	NvmIndexKey *key = palloc(sizeof(NvmIndexKey));
	int			low = 0;
	int			high = clean->nitems;

	nvm_index_key_init(clean->index, clean->cache, clean->wanted->newitem, key);
	while (low < high)
	{
		int			mid = (low + high) / 2;

		if (nvm_index_compare(key, clean->items[mid]) > 0)
			low = mid + 1;
		else
			high = mid;
	}
	pfree(key);
	return low;
}

/*
 * Does the new entry belong to the right of the page?  Another process may
 * have split the page since it was found to have no room.
 */
static bool
lies_beyond(Cleaning *clean)
{
	NvmIndexKey *key;
	bool		beyond;

	if (clean->copy->first == 0)
		return false;
	key = palloc(sizeof(NvmIndexKey));
	nvm_index_key_init(clean->index, clean->cache, clean->wanted->newitem, key);
	beyond = nvm_index_compare(key, NvmIndexCopyItem(clean->copy, 0)) > 0;
	pfree(key);
	return beyond;
}

static void
make_room(Cleaning *clean)
{
	const NvmIndexWanted *wanted = clean->wanted;
	NvmIndexCopy *copy = clean->copy;

	/*
	 * In a unique index equal keys are versions of one row, and these go
	 * soon.  Merging is worth it only where there are some.  Keys with nulls
	 * are of as many rows as in any other index.
	 */
	bool		merge = nvm_index_deduplicates(clean->index) &&
	(wanted->equals || wanted->nullkey || !clean->index->rd_index->indisunique);

	if (copy->flags & NVM_INDEX_DELETED)
		return;
	if (nvm_index_has_room(&copy->image.header, IndexTupleSize(clean->wanted->newitem)))
		return;
	if (copy->flags & NVM_INDEX_INCOMPLETE)
	{
		nvm_index_finish_split(clean->index, clean->cache, clean->heap, copy->blkno);
		return;
	}
	/* a page of one entry would be split between that and the new one */
	if (lies_beyond(clean))
		return;

	if (drop_marked(clean) == 0 || !is_enough(clean, CLEAN_SLACK))
	{
		if (wanted->unchanged || wanted->equals)
		{
			/*
			 * A posting list that loses its lowest TID must not come to stand
			 * before an entry that lay within it.
			 */
			clean->nitems = nvm_index_merge(clean->index, clean->cache, clean->items,
											clean->nitems, false, &clean->items);
			delete_bottomup(clean);
		}
		if (!is_enough(clean, CLEAN_SLACK))
			clean->nitems = nvm_index_merge(clean->index, clean->cache, clean->items,
											clean->nitems, merge, &clean->items);
	}

	/*
	 * There may not be room for two entries of the largest size, with their
	 * words, behind a high key of that size.  Then they get a page each.
	 */
	if (is_enough(clean, CLEAN_SLACK) ||
		(clean->nitems < 2 && is_enough(clean, 0)))
		(void) nvm_index_rewrite(clean->index, clean->cache, copy,
								 clean->items, clean->nitems);
	else
	{
		NvmIndexSplit split = {
			.copy = copy,.items = clean->items,.nitems = clean->nitems,
			.newitem = clean->wanted->newitem,.newpos = place_of(clean)
		};

		(void) nvm_index_split(clean->index, clean->cache, &split);
	}
}

void
nvm_index_make_room(Relation index, NvmIndexCache *cache, Relation heap, uint32 blkno,
					const NvmIndexWanted *wanted)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "nvm_btree full page",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	Cleaning	clean;

	memset(&clean, 0, sizeof(clean));
	clean.index = index;
	clean.cache = cache;
	clean.heap = heap;
	clean.wanted = wanted;
	clean.copy = palloc(sizeof(NvmIndexCopy));
	nvm_index_copy(index, cache, blkno, clean.copy);
	make_room(&clean);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
}
