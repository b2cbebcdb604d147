/*-------------------------------------------------------------------------
 *
 * btree_check_page.c
 *	  nvm.check() of an index: one page.
 *
 * First the bytes, in a private copy of what lies in the pool: everything that
 * others take for granted when they read entries.  Then the entries: their
 * kinds and their order, whether each TID is there once, and whether they lie
 * strictly between the page's low key and its high key.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/tupmacs.h"
#include "btree/nvm_btree_check.h"
#include "btree/nvm_btree_page.h"
#include "pool/nvm_pool.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_index.h"

/* ---- bytes ---- */

bool
nvm_index_check_image(IndexCheck *check, uint32 blkno)
{
	NvmIndexPage *page = nvm_index_page(check->cache.state, blkno);
	union
	{
		char		data[NVM_INDEX_PAGE_SIZE];
		uint64		force_align;
	}			copy;
	uint64		version;

	do
	{
		version = nvm_index_begin(page);
		memcpy(copy.data, page, NVM_INDEX_PAGE_SIZE);
	} while (!nvm_index_validate(page, version));
	return nvm_verify_index_image(&check->verify, blkno, copy.data, NvmPoolOff(page));
}

/* ---- entries ---- */

/* a run of entries of one key on a leaf */
typedef struct CheckRun
{
	ItemPointer tids;
	int			ntids;
	bool		mixed;			/* a posting list overlaps with other entries */
} CheckRun;

/* a page whose entries are being checked, and how far that has come */
typedef struct CheckPage
{
	NvmIndexCopy *copy;
	IndexTuple	low;			/* high key of the page before, or NULL */
	IndexTuple	high;			/* its own high key, or NULL */
	IndexTuple	before;			/* the entry before the current one, or NULL */
	CheckRun	run;			/* that the current one may go on with */
} CheckPage;

bool
nvm_index_check_same_pivot(IndexCheck *check, IndexTuple a, IndexTuple b)
{
	NvmIndexKey key;

	if (BTreeTupleGetNAtts(a, check->index) != BTreeTupleGetNAtts(b, check->index))
		return false;
	nvm_index_key_init(check->index, &check->cache, a, &key);
	return nvm_index_compare(&key, b) == 0;
}

static int
check_compare_tids(const void *a, const void *b)
{
	return ItemPointerCompare((ItemPointer) a, (ItemPointer) b);
}

/*
 * A run of equal keys has ended.
 */
static void
check_run_end(IndexCheck *check, NvmIndexCopy *copy, int item, CheckRun *run)
{
	if (run->mixed)
		qsort(run->tids, run->ntids, sizeof(ItemPointerData), check_compare_tids);
	for (int i = 1; run->mixed && i < run->ntids; i++)
	{
		if (ItemPointerEquals(&run->tids[i - 1], &run->tids[i]))
			nvm_index_check_report(check, copy->blkno, item, "TID (%u,%u) is there twice under one key",
								   ItemPointerGetBlockNumberNoCheck(&run->tids[i]),
								   ItemPointerGetOffsetNumberNoCheck(&run->tids[i]));
	}
	run->ntids = 0;
	run->mixed = false;
}

/*
 * Do the entry's columns end where its size says, or before its TIDs?
 */
static bool
check_columns(IndexCheck *check, IndexTuple itup, int natts)
{
	TupleDesc	desc = RelationGetDescr(check->index);
	uint32		limit = IndexTupleSize(itup);
	uint32		pos = IndexInfoFindDataOffset(itup->t_info);
	bits8	   *nulls = (bits8 *) ((char *) itup + sizeof(IndexTupleData));

	if (BTreeTupleIsPosting(itup))
		limit = BTreeTupleGetPostingOffset(itup);
	else if (BTreeTupleIsPivot(itup) && BTreeTupleGetHeapTID(itup) != NULL)
		limit -= Min(limit, sizeof(ItemPointerData));
	if (pos > limit)
		return false;
	for (int i = 0; i < natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		const char *data = (const char *) itup;
		uint32		size;

		if (IndexTupleHasNulls(itup) && att_isnull(i, nulls))
			continue;
		if (att->attlen == -1)
		{
			if (pos >= limit)
				return false;
			pos = att_align_pointer(pos, att->attalign, -1, data + pos);
			if (pos >= limit || VARATT_IS_EXTERNAL(data + pos) ||
				(!VARATT_IS_1B(data + pos) && pos + VARHDRSZ > limit))
				return false;
			size = VARSIZE_ANY(data + pos);
			if (size < (VARATT_IS_1B(data + pos) ? VARHDRSZ_SHORT : VARHDRSZ))
				return false;
		}
		else
		{
			pos = att_align_nominal(pos, att->attalign);
			size = att->attlen;
			if (att->attlen == -2)
				size = pos < limit ? strnlen(data + pos, limit - pos) + 1 : 1;
		}
		if (pos + size > limit)
			return false;
		pos += size;
	}
	return true;
}

/*
 * May these be TIDs of rows?  A bitmap takes no others.
 */
static bool
check_tids(IndexCheck *check, NvmIndexCopy *copy, int i, IndexTuple itup)
{
	ItemPointer tids = BTreeTupleGetHeapTID(itup);
	int			ntids = BTreeTupleIsPosting(itup) ? BTreeTupleGetNPosting(itup) : 1;

	for (int k = 0; k < ntids; k++)
	{
		OffsetNumber off = ItemPointerGetOffsetNumberNoCheck(&tids[k]);

		if (off >= NVM_FIRST_CELL && off < NVM_CELLS)
			continue;
		nvm_index_check_report(check, copy->blkno, i + 1, "entry leads to (%u,%u), which is no place of a row",
							   ItemPointerGetBlockNumberNoCheck(&tids[k]), off);
		return false;
	}
	return true;
}

/*
 * Is this an entry that may be on such a page?
 */
static bool
check_kind(IndexCheck *check, NvmIndexCopy *copy, int i, IndexTuple itup)
{
	int			natts = BTreeTupleGetNAtts(itup, check->index);

	if (natts > check->natts || !check_columns(check, itup, natts))
	{
		nvm_index_check_report(check, copy->blkno, i + 1, "columns do not fit the entry's size");
		return false;
	}
	if (copy->level > 0 || i < copy->first)
	{
		bool		keyless = i == copy->first && copy->level > 0;

		if (!BTreeTupleIsPivot(itup) || (natts == 0) != keyless || natts > check->nkeys)
		{
			nvm_index_check_report(check, copy->blkno, i + 1, "entry should be a pivot, and has %d columns", natts);
			return false;
		}
		if (i >= copy->first &&
			(BTreeTupleGetDownLink(itup) == NVM_INDEX_NONE ||
			 BTreeTupleGetDownLink(itup) >= check->nblocks))
			nvm_index_check_report(check, copy->blkno, i + 1, "downlink leads to block %u of %u",
								   BTreeTupleGetDownLink(itup), check->nblocks);
		return true;
	}
	if (BTreeTupleIsPivot(itup) || natts != check->natts)
	{
		nvm_index_check_report(check, copy->blkno, i + 1, "entry of a leaf has %d columns", natts);
		return false;
	}
	if (!check_tids(check, copy, i, itup))
		return false;
	if (!BTreeTupleIsPosting(itup))
		return true;
	if (!check->cache.allequalimage)
		nvm_index_check_report(check, copy->blkno, i + 1, "posting list in an index that may have none");
	for (int k = 1; k < BTreeTupleGetNPosting(itup); k++)
	{
		if (ItemPointerCompare(BTreeTupleGetPostingN(itup, k - 1),
							   BTreeTupleGetPostingN(itup, k)) < 0)
			continue;
		nvm_index_check_report(check, copy->blkno, i + 1, "TIDs of a posting list are out of order");
		return false;
	}
	return true;
}

/*
 * The entry before this one on a leaf, and the TIDs of both.
 */
static void
check_leaf_order(IndexCheck *check, CheckPage *page, int i, NvmIndexKey *key)
{
	NvmIndexCopy *copy = page->copy;
	IndexTuple	before = page->before;
	CheckRun   *run = &page->run;
	IndexTuple	itup = NvmIndexCopyItem(copy, i);
	ItemPointer first = BTreeTupleGetHeapTID(itup);
	int			ntids = BTreeTupleIsPosting(itup) ? BTreeTupleGetNPosting(itup) : 1;
	int			order = 1;

	if (before != NULL)
	{
		key->scantid = NULL;
		order = nvm_index_compare(key, before);
		if (order < 0)
			nvm_index_check_report(check, copy->blkno, i + 1, "entry is less than the one before it");
		else if (order == 0 &&
				 ItemPointerCompare(first, BTreeTupleGetHeapTID(before)) <= 0)
			nvm_index_check_report(check, copy->blkno, i + 1, "TID is not greater than that of the equal key before it");
		if (order == 0 &&
			ItemPointerCompare(first, BTreeTupleGetMaxHeapTID(before)) <= 0)
			run->mixed = true;
	}
	if (order != 0)
		check_run_end(check, copy, i, run);
	if (run->ntids + ntids <= 2 * MaxTIDsPerBTreePage)
	{
		memcpy(&run->tids[run->ntids], first, ntids * sizeof(ItemPointerData));
		run->ntids += ntids;
	}
}

/*
 * Entry i against the one before it and the page's bounds.
 */
static void
check_item(IndexCheck *check, CheckPage *page, int i)
{
	NvmIndexCopy *copy = page->copy;
	IndexTuple	itup = NvmIndexCopyItem(copy, i);
	bool		leaf = copy->level == 0;
	NvmIndexKey key;

	if (!leaf && i == copy->first)
		return;					/* minus infinity */
	nvm_index_key_init(check->index, &check->cache, itup, &key);
	if (leaf)
		check_leaf_order(check, page, i, &key);
	else if (page->before != NULL && nvm_index_compare(&key, page->before) <= 0)
		nvm_index_check_report(check, copy->blkno, i + 1, "downlink's key is not greater than the one before it");

	if (leaf)
		key.scantid = BTreeTupleGetHeapTID(itup);
	if (page->low != NULL && nvm_index_compare(&key, page->low) <= 0)
		nvm_index_check_report(check, copy->blkno, i + 1, "entry is not greater than the high key of the page before");
	if (leaf)
		key.scantid = BTreeTupleGetMaxHeapTID(itup);
	if (page->high != NULL && nvm_index_compare(&key, page->high) > (leaf ? 0 : -1))
		nvm_index_check_report(check, copy->blkno, i + 1, "entry is greater than the page's high key");
}

void
nvm_index_check_items(IndexCheck *check, NvmIndexCopy *copy, IndexTuple low)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(check->item_context);
	IndexTuple	high = copy->first > 0 ? NvmIndexCopyItem(copy, 0) : NULL;
	CheckPage	page = {.copy = copy,.low = low};

	page.run.tids = (ItemPointer) palloc(2 * MaxTIDsPerBTreePage * sizeof(ItemPointerData));
	if (high != NULL && !check_kind(check, copy, 0, high))
		high = NULL;
	else if (high != NULL && low != NULL)
	{
		NvmIndexKey key;

		nvm_index_key_init(check->index, &check->cache, high, &key);
		if (nvm_index_compare(&key, low) <= 0)
			nvm_index_check_report(check, copy->blkno, 1, "high key is not greater than that of the page before");
	}
	page.high = high;
	if (copy->level > 0 && copy->nitems == copy->first)
		nvm_index_check_report(check, copy->blkno, 0, "inner page has no downlink");

	for (int i = copy->first; i < copy->nitems; i++)
	{
		if (!check_kind(check, copy, i, NvmIndexCopyItem(copy, i)))
			continue;
		check_item(check, &page, i);
		page.before = copy->level > 0 && i == copy->first ? NULL : NvmIndexCopyItem(copy, i);
		if (copy->level == 0 && check->filter != NULL)
			nvm_index_check_heap_entry(check, copy->blkno, i + 1, NvmIndexCopyItem(copy, i));
	}
	check_run_end(check, copy, copy->nitems, &page.run);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(check->item_context);
}
