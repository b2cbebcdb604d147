/*-------------------------------------------------------------------------
 *
 * btree_scanleaf.c
 *	  What a scan does with one leaf: take from it what matches, and tell it
 *	  which of that turned out to be dead.
 *
 * A leaf is read in place, entry by entry, each of them validated by the leaf's
 * version, or from a copy.  Either way comparison functions see private memory.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_scan.h"
#include "pool/nvm_pool.h"
#include "storage/predicate.h"

/* of so many entries each is compared with the bound; then it is looked for */
#define ASK_EACH			6

/*
 * Entry number pos, a private copy; NULL if the leaf has changed.
 */
static IndexTuple
reader_item(NvmLeafReader *reader, int pos, uint16 *word)
{
	if (reader->copy != NULL)
	{
		*word = reader->copy->word[pos];
		return NvmIndexCopyItem(reader->copy, pos);
	}
	if (!nvm_index_fetch(reader->state, reader->blkno, reader->version, pos,
						 reader->buf.data, word))
		return NULL;
	return (IndexTuple) reader->buf.data;
}

/* room for n more */
static void
reserve_items(NvmScan *so, int n)
{
	NvmScanLeaf *leaf = &so->leaf;

	if (leaf->nitems + n > leaf->max_items)
	{
		leaf->max_items = Max(leaf->nitems + n, Max(16, leaf->max_items * 2));
		leaf->items = leaf->items ?
			repalloc(leaf->items, leaf->max_items * sizeof(NvmScanItem)) :
			MemoryContextAlloc(so->context, leaf->max_items * sizeof(NvmScanItem));
	}
	if (leaf->nentries == leaf->max_entries)
	{
		leaf->max_entries = Max(16, leaf->max_entries * 2);
		leaf->entries = leaf->entries ?
			repalloc(leaf->entries, leaf->max_entries * sizeof(NvmScanEntry)) :
			MemoryContextAlloc(so->context, leaf->max_entries * sizeof(NvmScanEntry));
	}
}

/*
 * Keep the columns of an entry, for an index-only scan.  They fit: entries
 * take no more room here than on their page.
 */
static uint16
keep_tuple(NvmScan *so, IndexTuple itup)
{
	NvmScanLeaf *leaf = &so->leaf;
	Size		size = BTreeTupleIsPosting(itup) ?
	BTreeTupleGetPostingOffset(itup) : IndexTupleSize(itup);
	int			place = leaf->tuples_used;
	IndexTuple	kept;

	if (leaf->tuples == NULL)
		leaf->tuples = MemoryContextAlloc(so->context, NVM_INDEX_PAGE_SIZE);
	Assert(place + MAXALIGN(size) <= NVM_INDEX_PAGE_SIZE);
	kept = (IndexTuple) (leaf->tuples + place);
	memcpy(kept, itup, size);
	kept->t_info = (kept->t_info & ~INDEX_SIZE_MASK) | size;
	leaf->tuples_used += MAXALIGN(size);
	return place / 8;
}

/*
 * Take an entry.  A scan to the left is turned round at the end, so it takes
 * the rows of a posting list in reverse.
 */
static void
take_entry(IndexScanDesc scan, IndexTuple itup, uint16 word, ScanDirection dir)
{
	NvmScan    *so = (NvmScan *) scan->opaque;
	NvmScanLeaf *leaf = &so->leaf;
	bool		posting = BTreeTupleIsPosting(itup);
	int			n = posting ? BTreeTupleGetNPosting(itup) : 1;
	uint16		tuple = 0;

	reserve_items(so, n);
	if (scan->xs_want_itup)
		tuple = keep_tuple(so, itup);
	for (int i = 0; i < n; i++)
	{
		NvmScanItem *item = &leaf->items[leaf->nitems++];

		if (!posting)
			item->tid = itup->t_tid;
		else
			item->tid = *BTreeTupleGetPostingN(itup, ScanDirectionIsForward(dir) ?
											   i : n - 1 - i);
		item->entry = leaf->nentries;
		item->tuple = tuple;
		item->killed = false;
	}
	leaf->entries[leaf->nentries].word = word;
	leaf->entries[leaf->nentries].nitems = n;
	leaf->entries[leaf->nentries].nkilled = 0;
	leaf->nentries++;
}

/* place of the first entry >= key (nextkey: > key) on a copy */
int
nvm_leaf_locate(const NvmIndexCopy *copy, const NvmIndexKey *key)
{
	int			low = copy->first;
	int			high = copy->nitems;

	while (low < high)
	{
		int			mid = (low + high) / 2;
		int			cmp = nvm_index_compare(key, NvmIndexCopyItem(copy, mid));

		if (key->nextkey ? cmp >= 0 : cmp > 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/*
 * Where the stretch ends on a leaf, in the direction of the scan: the first
 * place that is not inside, which may be one off the leaf's end.  False if the
 * leaf has changed.
 */
static bool
find_end(NvmScan *so, NvmLeafReader *reader, ScanDirection dir, int *end)
{
	bool		forward = ScanDirectionIsForward(dir);
	const NvmIndexKey *key = forward ? &so->keys.high : &so->keys.low;
	int			pos;

	if (reader->copy != NULL)
		pos = nvm_leaf_locate(reader->copy, key);
	else
		pos = nvm_index_locate(reader->state, reader->blkno, reader->version, key, NULL);
	*end = forward ? pos : pos - 1;
	return pos >= 0;
}

/*
 * Take what matches, from entry pos on.  *more: the next leaf in this
 * direction may have some, too.  False if the leaf has changed.
 */
static bool
take_entries(IndexScanDesc scan, NvmLeafReader *reader, int pos, bool inner,
			 ScanDirection dir, bool *more)
{
	NvmScan    *so = (NvmScan *) scan->opaque;
	bool		forward = ScanDirectionIsForward(dir);
	int			edge = forward ? reader->nitems : reader->first - 1;
	int			end = edge;
	int			ask;			/* so many are asked whether they are inside */
	uint16		word;
	IndexTuple	itup;

	*more = forward ? reader->right != NVM_INDEX_NONE : reader->left != NVM_INDEX_NONE;
	ask = (forward ? so->keys.high.nparts : so->keys.low.nparts) > 0 ? ASK_EACH : 0;

	/* on a leaf in the middle of the stretch the last entry speaks for all */
	if (ask > 0 && inner && reader->nitems > reader->first)
	{
		itup = reader_item(reader, forward ? reader->nitems - 1 : reader->first, &word);
		if (itup == NULL)
			return false;
		if (nvm_scankeys_beyond(&so->keys, dir, itup) &&
			!find_end(so, reader, dir, &end))
			return false;
		ask = 0;
	}

	for (; forward ? pos < end : pos > end; pos += forward ? 1 : -1)
	{
		if ((itup = reader_item(reader, pos, &word)) == NULL)
			return false;
		if (ask > 0)
		{
			if (nvm_scankeys_beyond(&so->keys, dir, itup))
			{
				end = pos;
				break;
			}
			if (--ask == 0 && !find_end(so, reader, dir, &end))
				return false;
		}
		if ((word & NVM_INDEX_DEAD) && scan->ignore_killed_tuples)
			continue;
		if (so->keys.ntests == 0 ||
			nvm_scankeys_test(&so->keys, scan->indexRelation, itup))
			take_entry(scan, itup, word, dir);
	}

	if (end != edge)
		*more = false;
	else if (forward && *more)
	{
		if ((itup = reader_item(reader, 0, &word)) == NULL)
			return false;
		*more = !nvm_scankeys_beyond(&so->keys, dir, itup);
	}
	return true;
}

static void
turn_round(NvmScanLeaf *leaf)
{
	for (int i = 0, j = leaf->nitems - 1; i < j; i++, j--)
	{
		NvmScanItem item = leaf->items[i];

		leaf->items[i] = leaf->items[j];
		leaf->items[j] = item;
	}
}

/*
 * Make a leaf the scan's, whether or not anything on it matches.  at_start:
 * pos is where the stretch begins, otherwise it comes in from the side.
 * False if the leaf has changed.
 */
bool
nvm_leaf_read(IndexScanDesc scan, NvmLeafReader *reader, int pos, bool at_start,
			  ScanDirection dir)
{
	NvmScan    *so = (NvmScan *) scan->opaque;
	NvmScanLeaf *leaf = &so->leaf;
	bool		more;

	leaf->nitems = leaf->nentries = leaf->nkilled = leaf->tuples_used = 0;
	if (!take_entries(scan, reader, pos, !at_start, dir, &more))
		return false;

	leaf->blkno = reader->blkno;
	leaf->left = reader->left;
	leaf->right = reader->right;
	leaf->epoch = reader->epoch;
	if (ScanDirectionIsForward(dir))
	{
		leaf->more_right = more;
		leaf->more_left = !at_start;
		leaf->index = -1;
	}
	else
	{
		turn_round(leaf);
		leaf->more_left = more;
		leaf->more_right = !at_start;
		leaf->index = leaf->nitems;
	}
	return true;
}

/*
 * An empty leaf may be unlinked, and entries of its range will then be
 * inserted into its right sibling.  So the sibling gets a predicate lock, too.
 * False if the leaf has changed before we had it.
 */
bool
nvm_leaf_lock_behind_empty(IndexScanDesc scan, uint32 blkno, uint32 right, uint64 version)
{
	PredicateLockPage(scan->indexRelation, right, scan->xs_snapshot);
	return nvm_index_validate(nvm_index_page(nvm_index_cache(scan->indexRelation)->state,
											 blkno), version);
}

/*
 * The leaf is one that is read as a whole.
 */
void
nvm_leaf_reader_copy(IndexScanDesc scan, NvmLeafReader *reader, uint32 blkno)
{
	NvmScan    *so = (NvmScan *) scan->opaque;
	NvmIndexCache cache = *nvm_index_cache(scan->indexRelation);
	NvmIndexCopy *copy;

	if (so->copy == NULL)
		so->copy = MemoryContextAlloc(so->context, sizeof(NvmIndexCopy));
	copy = so->copy;
	PredicateLockPage(scan->indexRelation, blkno, scan->xs_snapshot);
	do
	{
		nvm_index_copy(scan->indexRelation, &cache, blkno, copy);
		if (copy->level != 0)
			nvm_index_damaged(scan->indexRelation, blkno, "it is not a leaf");
	} while (copy->nitems == copy->first && copy->right != NVM_INDEX_NONE &&
			 !nvm_leaf_lock_behind_empty(scan, blkno, copy->right, copy->version));

	reader->copy = copy;
	reader->blkno = blkno;
	reader->version = copy->version;
	reader->left = copy->left;
	reader->right = copy->right;
	reader->epoch = copy->epoch;
	reader->flags = copy->flags;
	reader->first = copy->first;
	reader->nitems = copy->nitems;
}

/*
 * Set up a reader in place.  False if the leaf is not that of version.
 */
bool
nvm_leaf_reader_in_place(NvmLeafReader *reader, NvmRelState *state, uint32 blkno, uint64 version)
{
	NvmIndexPage *page = nvm_index_page(state, blkno);

	reader->copy = NULL;
	reader->state = state;
	reader->blkno = blkno;
	reader->version = version;
	reader->left = page->left;
	reader->right = page->right;
	reader->epoch = page->epoch;
	reader->flags = page->flags;
	reader->first = reader->right != NVM_INDEX_NONE ? 1 : 0;
	return nvm_index_validate(page, version);
}

/*
 * Mark those entries of the page of which all rows were found dead to everybody.
 */
void
nvm_leaf_kill(IndexScanDesc scan, NvmScanLeaf *leaf)
{
	uint16	   *words;
	int			n = 0;

	if (leaf->nkilled == 0)
		return;
	words = palloc(leaf->nentries * sizeof(uint16));
	for (int i = 0; i < leaf->nentries; i++)
	{
		NvmScanEntry *entry = &leaf->entries[i];

		if (entry->nkilled == entry->nitems)
			words[n++] = entry->word;
		entry->nkilled = 0;
	}
	leaf->nkilled = 0;
	if (n > 0)
		nvm_index_kill(nvm_index_cache(scan->indexRelation), leaf->blkno,
					   leaf->epoch, words, n);
	pfree(words);
}
