/*-------------------------------------------------------------------------
 *
 * btree_scan.c
 *	  Index scans: plain, index-only and bitmap, in both directions.
 *
 * A scan takes from a leaf, all at once, what matches, and returns it row by
 * row with nothing held on the leaf.  What a leaf was when it was read is
 * validated by its version; what comes to it later is younger than the
 * snapshot.
 *
 * From a leaf to the next: entries move only to the right, to a new page that
 * a split puts between a page and its right sibling, and only empty pages are
 * deleted.  So going right one follows right links, also those of a deleted
 * page.  Going left one wants the page whose right link leads to where one
 * comes from: it is looked for from the left link to the right.  A page that
 * was deleted while one stood on it has left its range to its right sibling,
 * which takes its place.
 *
 * A block that one may be on the way to is not reused, since that waits until
 * no snapshot is as old as the deletion.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_persist.h"
#include "btree/nvm_btree_scan.h"
#include "miscadmin.h"
#include "nodes/tidbitmap.h"
#include "pgstat.h"
#include "storage/predicate.h"

/* first read entry by entry, so often; then by copies of the leaf */
#define IN_PLACE_TRIES		3
/* pages to look at from a left link to the right before it is read again */
#define LEFT_STEPS			8
/* a left link that leads nowhere so often is no race */
#define LEFT_ROUNDS			10000

/*
 * A leaf that is being read: in place if copy is NULL, and then every access
 * may find that its version has changed.
 */
typedef struct NvmLeafReader
{
	NvmRelState *state;
	uint32		blkno;
	uint64		version;
	uint32		left;
	uint32		right;
	uint32		epoch;
	uint16		flags;
	int			first;			/* data entry */
	int			nitems;
	NvmIndexCopy *copy;
	union
	{
		char		data[NVM_INDEX_PAGE_SIZE];
		uint64		force_align;
	}			buf;
} NvmLeafReader;

/* ---- begin and end ---- */

static void
leaf_init(NvmScanLeaf *leaf)
{
	memset(leaf, 0, sizeof(NvmScanLeaf));
}

static void
leaf_free(NvmScanLeaf *leaf)
{
	if (leaf->items)
		pfree(leaf->items);
	if (leaf->entries)
		pfree(leaf->entries);
	if (leaf->tuples)
		pfree(leaf->tuples);
}

IndexScanDesc
nvm_btree_beginscan(Relation index, int nkeys, int norderbys)
{
	IndexScanDesc scan = RelationGetIndexScan(index, nkeys, norderbys);
	NvmScan    *so = palloc(sizeof(NvmScan));

	Assert(norderbys == 0);
	nvm_index_wait(index);
	nvm_index_count_use(nvm_index_cache(index));
	so->step = NVM_SCAN_NEW;
	so->context = CurrentMemoryContext;
	nvm_scankeys_init(&so->keys, scan, nkeys);
	leaf_init(&so->leaf);
	so->copy = NULL;
	so->combination = 0;
	so->marked = so->mark_here = false;
	so->mark_elems = nkeys > 0 ? palloc(nkeys * sizeof(int)) : NULL;
	leaf_init(&so->mark);

	scan->opaque = so;
	scan->xs_itupdesc = RelationGetDescr(index);
	return scan;
}

/*
 * Tell the page of the entries whose rows, all of them, were found dead to
 * everybody.
 */
static void
kill_entries(IndexScanDesc scan, NvmScanLeaf *leaf)
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

/*
 * The scan goes on elsewhere: keep the leaf if it is marked.
 */
static void
leave_leaf(IndexScanDesc scan)
{
	NvmScan    *so = (NvmScan *) scan->opaque;

	kill_entries(scan, &so->leaf);
	if (so->mark_here)
	{
		NvmScanLeaf spare = so->mark;

		so->mark = so->leaf;
		so->leaf = spare;
		so->mark_here = false;
	}
	so->leaf.blkno = NVM_INDEX_NONE;
	so->leaf.nitems = 0;
}

void
nvm_btree_rescan(IndexScanDesc scan, ScanKey keys, int nkeys,
				 ScanKey orderbys, int norderbys)
{
	NvmScan    *so = (NvmScan *) scan->opaque;

	so->marked = so->mark_here = false;
	leave_leaf(scan);
	so->step = NVM_SCAN_NEW;
	so->combination = 0;
	if (keys != NULL && scan->numberOfKeys > 0)
		memmove(scan->keyData, keys, scan->numberOfKeys * sizeof(ScanKeyData));
}

void
nvm_btree_endscan(IndexScanDesc scan)
{
	NvmScan    *so = (NvmScan *) scan->opaque;

	kill_entries(scan, &so->leaf);
	leaf_free(&so->leaf);
	leaf_free(&so->mark);
	if (so->copy)
		pfree(so->copy);
	if (so->mark_elems)
		pfree(so->mark_elems);
	nvm_scankeys_end(&so->keys);
	pfree(so);
}

/* ---- reading a leaf ---- */

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
	int			step = forward ? 1 : -1;
	bool		inside = false;
	uint16		word;
	IndexTuple	itup;

	*more = forward ? reader->right != NVM_INDEX_NONE : reader->left != NVM_INDEX_NONE;

	/* on a leaf in the middle of the stretch the last entry speaks for all */
	if (inner && reader->nitems > reader->first)
	{
		itup = reader_item(reader, forward ? reader->nitems - 1 : reader->first, &word);
		if (itup == NULL)
			return false;
		inside = !nvm_scankeys_beyond(&so->keys, dir, itup);
	}

	for (; pos >= reader->first && pos < reader->nitems; pos += step)
	{
		if ((itup = reader_item(reader, pos, &word)) == NULL)
			return false;
		if (!inside && nvm_scankeys_beyond(&so->keys, dir, itup))
		{
			*more = false;
			return true;
		}
		if ((word & NVM_INDEX_DEAD) && scan->ignore_killed_tuples)
			continue;
		if (so->keys.ntests == 0 ||
			nvm_scankeys_test(&so->keys, scan->indexRelation, itup))
			take_entry(scan, itup, word, dir);
	}

	if (forward && *more)
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
static bool
read_leaf(IndexScanDesc scan, NvmLeafReader *reader, int pos, bool at_start,
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
 * An empty leaf may be unlinked, and what it stands for will then be inserted
 * into its right sibling: a predicate lock on that, too.  False if the leaf
 * has changed before we had it.
 */
static bool
lock_behind_empty(IndexScanDesc scan, uint32 blkno, uint32 right, uint64 version)
{
	PredicateLockPage(scan->indexRelation, right, scan->xs_snapshot);
	return nvm_index_validate(nvm_index_page(nvm_index_cache(scan->indexRelation)->state,
											 blkno), version);
}

/*
 * Set up a reader on a copy of a leaf that is read as a whole.  Takes its
 * predicate lock first.
 */
static void
reader_copy(IndexScanDesc scan, NvmLeafReader *reader, uint32 blkno)
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
			 !lock_behind_empty(scan, blkno, copy->right, copy->version));

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
static bool
reader_in_place(NvmLeafReader *reader, NvmRelState *state, uint32 blkno, uint64 version)
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

/* ---- the first leaf ---- */

/* place of the first entry >= key (nextkey: > key) on a copy */
static int
locate_on_copy(const NvmIndexCopy *copy, const NvmIndexKey *key)
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
 * Go to the leaf where the current stretch begins and read it, as a copy.
 * The leaf that the descent found may have been split or deleted since.
 */
static void
first_by_copy(IndexScanDesc scan, NvmLeafReader *reader, uint32 blkno,
			  const NvmIndexKey *key, ScanDirection dir)
{
	bool		forward = ScanDirectionIsForward(dir);
	int			pos;

	for (;;)
	{
		NvmIndexCopy *copy;
		bool		move;

		reader_copy(scan, reader, blkno);
		copy = reader->copy;
		move = (copy->flags & NVM_INDEX_DELETED) != 0;
		if (!move && copy->right != NVM_INDEX_NONE)
		{
			if (key->nparts == 0)
				move = !forward;
			else
			{
				int			cmp = nvm_index_compare(key, NvmIndexCopyItem(copy, 0));

				move = key->nextkey ? cmp >= 0 : cmp > 0;
			}
		}
		if (!move)
			break;
		if (copy->right == NVM_INDEX_NONE)
			nvm_index_damaged(scan->indexRelation, blkno, "a deleted page without right sibling");
		blkno = copy->right;
	}

	if (key->nparts == 0)
		pos = forward ? reader->first : reader->nitems - 1;
	else
		pos = locate_on_copy(reader->copy, key) - (forward ? 0 : 1);
	(void) read_leaf(scan, reader, pos, true, dir);
}

/*
 * The same, entry by entry.  False if the leaf has changed.
 */
static bool
first_in_place(IndexScanDesc scan, NvmLeafReader *reader, NvmRelState *state,
			   uint32 blkno, uint64 version, const NvmIndexKey *key,
			   ScanDirection dir)
{
	int			pos;

	if (!reader_in_place(reader, state, blkno, version) ||
		(reader->flags & NVM_INDEX_DELETED) != 0)
		return false;
	pos = nvm_index_locate(state, blkno, version, key, &reader->nitems);
	if (pos < 0 ||
		(reader->nitems == reader->first && reader->right != NVM_INDEX_NONE &&
		 !lock_behind_empty(scan, blkno, reader->right, version)))
		return false;
	return read_leaf(scan, reader, ScanDirectionIsForward(dir) ? pos : pos - 1,
					 true, dir);
}

/*
 * Descend to where the current stretch begins, and read that leaf.  False if
 * the index is empty.
 */
static bool
read_first_leaf(IndexScanDesc scan, ScanDirection dir)
{
	NvmScan    *so = (NvmScan *) scan->opaque;
	Relation	index = scan->indexRelation;
	NvmIndexCache cache = *nvm_index_cache(index);
	const NvmIndexKey *key = ScanDirectionIsForward(dir) ? &so->keys.low : &so->keys.high;
	NvmLeafReader reader;

	pgstat_count_index_scan(index);
	NvmCountDescent(scan);

	for (int tries = 0;; tries++)
	{
		uint64		version = 0;
		uint32		blkno;

		if (key->nparts > 0)
			blkno = nvm_index_descend(index, &cache, key, 0, &version, scan->xs_snapshot);
		else
			blkno = nvm_index_endpoint(index, &cache, 0, ScanDirectionIsBackward(dir),
									   scan->xs_snapshot);
		if (blkno == NVM_INDEX_NONE)
			return false;
		NVM_FAILPOINT("btree-scan-first");
		if (key->nparts > 0 && tries < IN_PLACE_TRIES)
		{
			if (first_in_place(scan, &reader, cache.state, blkno, version, key, dir))
				return true;
			continue;
		}
		first_by_copy(scan, &reader, blkno, key, dir);
		return true;
	}
}

/* ---- neighbours ---- */

/*
 * Read leaf blkno, or the next one to its right that is not deleted.  False if
 * there is none.
 */
static bool
read_right_leaf(IndexScanDesc scan, uint32 blkno)
{
	NvmLeafReader reader;

	while (blkno != NVM_INDEX_NONE)
	{
		CHECK_FOR_INTERRUPTS();
		NVM_FAILPOINT("btree-scan-right");
		reader_copy(scan, &reader, blkno);
		if ((reader.flags & NVM_INDEX_DELETED) == 0)
			return read_leaf(scan, &reader, reader.first, false, ForwardScanDirection);
		blkno = reader.right;
	}
	return false;
}

typedef struct NvmPageLinks
{
	uint32		left;
	uint32		right;
	bool		deleted;
} NvmPageLinks;

static NvmPageLinks
page_links(Relation index, uint32 blkno)
{
	NvmIndexCache cache = *nvm_index_cache(index);
	NvmIndexPage *page;
	NvmPageLinks links;
	uint64		version;

	do
	{
		version = nvm_index_enter(index, &cache, blkno);
		page = nvm_index_page(cache.state, blkno);
		links.left = page->left;
		links.right = page->right;
		links.deleted = (page->flags & NVM_INDEX_DELETED) != 0;
	} while (!nvm_index_validate(page, version));
	return links;
}

/*
 * Read the leaf to the left of `from`.  False if there is none.
 */
static bool
read_left_leaf(IndexScanDesc scan, uint32 from)
{
	Relation	index = scan->indexRelation;
	NvmLeafReader reader;

	for (int round = 0; round < LEFT_ROUNDS; round++)
	{
		NvmPageLinks links;
		uint32		blkno;

		CHECK_FOR_INTERRUPTS();
		for (;;)
		{
			links = page_links(index, from);
			if (!links.deleted)
				break;
			if (links.right == NVM_INDEX_NONE)
				nvm_index_damaged(index, from, "a deleted page without right sibling");
			from = links.right;
		}
		if (links.left == NVM_INDEX_NONE)
			return false;

		blkno = links.left;
		for (int i = 0; i < LEFT_STEPS && blkno != NVM_INDEX_NONE; i++)
		{
			links = page_links(index, blkno);
			if (links.right != from)
			{
				blkno = links.right;
				continue;
			}
			NVM_FAILPOINT("btree-scan-left");
			reader_copy(scan, &reader, blkno);
			if (reader.right == from && (reader.flags & NVM_INDEX_DELETED) == 0)
				return read_leaf(scan, &reader, reader.nitems - 1, false,
								 BackwardScanDirection);
			break;
		}
	}
	nvm_index_damaged(index, from, "no left sibling leads to it");
}

/* ---- from leaf to leaf, and from one combination to the next ---- */

/*
 * The next leaf of the current combination.  False if there is none.
 */
static bool
next_leaf(IndexScanDesc scan, ScanDirection dir)
{
	NvmScan    *so = (NvmScan *) scan->opaque;
	NvmScanLeaf *leaf = &so->leaf;
	uint32		from = leaf->blkno;

	if (from == NVM_INDEX_NONE)
		return read_first_leaf(scan, dir);
	if (ScanDirectionIsForward(dir))
	{
		uint32		right = leaf->right;

		if (!leaf->more_right)
			return false;
		leave_leaf(scan);
		return read_right_leaf(scan, right);
	}
	if (!leaf->more_left)
		return false;
	leave_leaf(scan);
	return read_left_leaf(scan, from);
}

/*
 * The same of a scan that several processes share.
 */
static bool
next_shared_leaf(IndexScanDesc scan, ScanDirection dir)
{
	NvmScan    *so = (NvmScan *) scan->opaque;
	NvmScanLeaf *leaf = &so->leaf;
	bool		forward = ScanDirectionIsForward(dir);
	uint32		place;
	bool		found;

	leave_leaf(scan);
	switch (nvm_parallel_seize(scan, so->combination, &place))
	{
		case NVM_PARALLEL_FIRST:
			found = read_first_leaf(scan, dir);
			break;
		case NVM_PARALLEL_NEXT:
			found = forward ? read_right_leaf(scan, place) : read_left_leaf(scan, place);
			break;
		default:
			return false;
	}
	if (found && forward && leaf->more_right)
		nvm_parallel_release(scan, leaf->right);
	else if (found && !forward && leaf->more_left)
		nvm_parallel_release(scan, leaf->blkno);
	else
		nvm_parallel_finish(scan, so->combination);
	return found;
}

/*
 * Step to the next item, whatever it takes.  False at the end.
 */
static bool
next_item(IndexScanDesc scan, ScanDirection dir)
{
	NvmScan    *so = (NvmScan *) scan->opaque;
	bool		forward = ScanDirectionIsForward(dir);
	bool		shared = scan->parallel_scan != NULL;

	if (so->step == NVM_SCAN_NEW)
	{
		nvm_scankeys_prepare(&so->keys, scan);
		so->step = NVM_SCAN_READY;
	}
	if (so->keys.impossible || so->step == (forward ? NVM_SCAN_AFTER : NVM_SCAN_BEFORE))
		return false;
	if (so->step != NVM_SCAN_INSIDE)
	{
		nvm_scankeys_start(&so->keys, dir);
		so->step = NVM_SCAN_INSIDE;
	}

	for (;;)
	{
		NvmScanLeaf *leaf = &so->leaf;

		if (leaf->blkno != NVM_INDEX_NONE)
		{
			leaf->index += forward ? 1 : -1;
			if (leaf->index >= 0 && leaf->index < leaf->nitems)
				return true;
		}
		if (shared ? next_shared_leaf(scan, dir) : next_leaf(scan, dir))
			continue;

		leave_leaf(scan);
		so->combination++;
		if (!nvm_scankeys_advance(&so->keys, dir))
		{
			so->step = forward ? NVM_SCAN_AFTER : NVM_SCAN_BEFORE;
			return false;
		}
		CHECK_FOR_INTERRUPTS();
	}
}

/* the row that was returned last is dead to everybody */
static void
remember_killed(NvmScan *so)
{
	NvmScanLeaf *leaf = &so->leaf;
	NvmScanItem *item;

	if (so->step != NVM_SCAN_INSIDE || leaf->blkno == NVM_INDEX_NONE ||
		leaf->index < 0 || leaf->index >= leaf->nitems)
		return;
	item = &leaf->items[leaf->index];
	if (!item->killed)
	{
		item->killed = true;
		leaf->entries[item->entry].nkilled++;
		leaf->nkilled++;
	}
}

bool
nvm_btree_gettuple(IndexScanDesc scan, ScanDirection dir)
{
	NvmScan    *so = (NvmScan *) scan->opaque;
	NvmScanItem *item;

	scan->xs_recheck = false;
	if (scan->kill_prior_tuple)
		remember_killed(so);
	if (!next_item(scan, dir))
		return false;
	item = &so->leaf.items[so->leaf.index];
	scan->xs_heaptid = item->tid;
	if (scan->xs_want_itup)
		scan->xs_itup = (IndexTuple) (so->leaf.tuples + (Size) item->tuple * 8);
	return true;
}

int64
nvm_btree_getbitmap(IndexScanDesc scan, TIDBitmap *tbm)
{
	NvmScan    *so = (NvmScan *) scan->opaque;
	int64		n = 0;

	while (next_item(scan, ForwardScanDirection))
	{
		tbm_add_tuples(tbm, &so->leaf.items[so->leaf.index].tid, 1, false);
		n++;
	}
	return n;
}

/* ---- mark and restore ---- */

void
nvm_btree_markpos(IndexScanDesc scan)
{
	NvmScan    *so = (NvmScan *) scan->opaque;

	so->marked = so->mark_here =
		so->step == NVM_SCAN_INSIDE && so->leaf.blkno != NVM_INDEX_NONE;
	so->mark_index = so->leaf.index;
	nvm_scankeys_save(&so->keys, so->mark_elems);
}

/*
 * Without a mark, that is a mark before the first row: start again.
 */
void
nvm_btree_restrpos(IndexScanDesc scan)
{
	NvmScan    *so = (NvmScan *) scan->opaque;
	NvmScanLeaf spare;

	if (so->mark_here)
	{
		so->leaf.index = so->mark_index;
		return;
	}
	leave_leaf(scan);
	if (!so->marked)
	{
		so->step = NVM_SCAN_NEW;
		return;
	}
	spare = so->leaf;
	so->leaf = so->mark;
	so->mark = spare;
	so->mark_here = true;
	so->leaf.index = so->mark_index;
	so->step = NVM_SCAN_INSIDE;
	nvm_scankeys_restore(&so->keys, so->mark_elems);
}
