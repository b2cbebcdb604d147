/*-------------------------------------------------------------------------
 *
 * btree_scan.c
 *	  Index scans: plain, index-only and bitmap, in both directions.
 *
 * A scan takes what matches from a leaf, all at once, and returns it row by
 * row with nothing held on the leaf.  The leaf's version validates what was
 * read.  An entry that comes to the leaf later is younger than the snapshot.
 *
 * From a leaf to the next: entries move only to the right, to a new page that
 * a split puts between a page and its right sibling.  Only empty pages are
 * deleted.  So a scan to the right follows right links, also those of a
 * deleted page.  A scan to the left wants the page whose right link leads to
 * where the scan comes from.  It looks for that page from the left link to the
 * right.  A page may be deleted while a scan stands on it: its right sibling
 * has its range then, and takes its place.
 *
 * A block to which a scan may be on the way is not reused: reuse waits until
 * no snapshot is as old as the deletion.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_persist.h"
#include "btree/nvm_btree_scan.h"
#include "command/nvm_command.h"
#include "compat/nvm_compat_indexam.h"
#include "miscadmin.h"
#include "nodes/tidbitmap.h"
#include "pgstat.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_allvisible.h"

/* first read entry by entry, so often; then by copies of the leaf */
#define IN_PLACE_TRIES		3
/* pages to look at from a left link to the right before it is read again */
#define LEFT_STEPS			8
/* rows that are brought in before the executor asks for them */
#define ROWS_AHEAD			4
/* a left link that leads nowhere so often is no race */
#define LEFT_ROUNDS			10000

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

void
nvm_scan_is_foreign(IndexScanDesc scan)
{
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg("index \"%s\" was opened as a file, but is in the NVM pool",
					RelationGetRelationName(scan->indexRelation)),
			 errdetail("The scan began by a path that pg_nvm does not see."),
			 errhint("Please report the statement.")));
}

IndexScanDesc
nvm_btree_beginscan(Relation index, int nkeys, int norderbys)
{
	IndexScanDesc scan = RelationGetIndexScan(index, nkeys, norderbys);
	NvmScan    *so = palloc(sizeof(NvmScan));

	Assert(norderbys == 0);
	nvm_index_wait(index);
	nvm_index_count_use(nvm_index_cache(index));
	so->magic = NVM_SCAN_MAGIC;
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
 * The scan goes on elsewhere: keep the leaf if it is marked.
 */
static void
leave_leaf(IndexScanDesc scan)
{
	NvmScan    *so = (NvmScan *) scan->opaque;

	nvm_leaf_kill(scan, &so->leaf);
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
	NvmScan    *so = nvm_scan_state(scan);

	so->marked = so->mark_here = false;
	leave_leaf(scan);
	so->step = NVM_SCAN_NEW;
	so->combination = 0;
	if (keys != NULL && scan->numberOfKeys > 0)
		memmove(scan->keyData, keys, scan->numberOfKeys * sizeof(ScanKeyData));
	if (unlikely(nvm_command_in_call()))
		nvm_btree_note_read(scan);
}

void
nvm_btree_endscan(IndexScanDesc scan)
{
	NvmScan    *so = nvm_scan_state(scan);

	nvm_leaf_kill(scan, &so->leaf);
	leaf_free(&so->leaf);
	leaf_free(&so->mark);
	if (so->copy)
		pfree(so->copy);
	if (so->mark_elems)
		pfree(so->mark_elems);
	nvm_scankeys_end(&so->keys);
	pfree(so);
}

/* ---- the first leaf ---- */

/* the leaf to which a descent has led, and what version it had */
typedef struct NvmFoundLeaf
{
	uint32		blkno;
	uint64		version;
} NvmFoundLeaf;

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

		nvm_leaf_reader_copy(scan, reader, blkno);
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
		pos = nvm_leaf_locate(reader->copy, key) - (forward ? 0 : 1);
	(void) nvm_leaf_read(scan, reader, pos, true, dir);
}

/*
 * The same, entry by entry.  False if the leaf has changed.
 */
static bool
first_in_place(IndexScanDesc scan, NvmLeafReader *reader, NvmRelState *state,
			   const NvmFoundLeaf *found, const NvmIndexKey *key,
			   ScanDirection dir)
{
	int			pos;

	if (!nvm_leaf_reader_in_place(reader, state, found->blkno, found->version) ||
		(reader->flags & NVM_INDEX_DELETED) != 0)
		return false;
	pos = nvm_index_locate(state, found->blkno, found->version, key, &reader->nitems);
	if (pos < 0 ||
		(reader->nitems == reader->first && reader->right != NVM_INDEX_NONE &&
		 !nvm_leaf_lock_behind_empty(scan, found->blkno, reader->right, found->version)))
		return false;
	return nvm_leaf_read(scan, reader, ScanDirectionIsForward(dir) ? pos : pos - 1,
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
		NvmFoundLeaf found = {0};

		if (key->nparts > 0)
			found.blkno = nvm_index_descend(index, &cache, key, 0, &found.version,
											scan->xs_snapshot);
		else
			found.blkno = nvm_index_endpoint(index, &cache, 0, ScanDirectionIsBackward(dir),
											 scan->xs_snapshot);
		if (found.blkno == NVM_INDEX_NONE)
			return false;
		NVM_FAILPOINT("btree-scan-first");
		if (key->nparts > 0 && tries < IN_PLACE_TRIES)
		{
			if (first_in_place(scan, &reader, cache.state, &found, key, dir))
				return true;
			continue;
		}
		first_by_copy(scan, &reader, found.blkno, key, dir);
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
		nvm_leaf_reader_copy(scan, &reader, blkno);
		if ((reader.flags & NVM_INDEX_DELETED) == 0)
			return nvm_leaf_read(scan, &reader, reader.first, false, ForwardScanDirection);
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
			nvm_leaf_reader_copy(scan, &reader, blkno);
			if (reader.right == from && (reader.flags & NVM_INDEX_DELETED) == 0)
				return nvm_leaf_read(scan, &reader, reader.nitems - 1, false,
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

/*
 * Have the processor fetch the row that comes so many items later, and at the
 * first item of a leaf those until then.  The order of an index is seldom that
 * of the table, so each row is a cache miss.  In an index-only scan, too, but
 * for rows at which it need not look.
 */
static void
bring_in_rows(IndexScanDesc scan, const NvmScanLeaf *leaf, ScanDirection dir)
{
	NvmRelState *table = ((NvmIndexFetchBase *) scan->xs_heapfetch)->state;
	uint32		nblocks = pg_atomic_read_u32(&table->nblocks);
	bool		index_only = scan->xs_want_itup;
	int			step = ScanDirectionIsForward(dir) ? 1 : -1;
	int			last = leaf->index + step * ROWS_AHEAD;
	int			i = leaf->index == (step > 0 ? 0 : leaf->nitems - 1) ?
	leaf->index + step : last;

	for (;; i += step)
	{
		ItemPointer tid;

		if (i < 0 || i >= leaf->nitems)
			return;
		tid = &leaf->items[i].tid;
		if (ItemPointerGetBlockNumber(tid) < nblocks &&
			!(index_only && nvm_allvisible(table, ItemPointerGetBlockNumber(tid))))
		{
			char	   *row = (char *) nvm_cell(table, ItemPointerGetBlockNumber(tid),
												ItemPointerGetOffsetNumber(tid));

			__builtin_prefetch(row);
			if (!index_only)
				__builtin_prefetch(row + NVM_LINE_SIZE);
		}
		if (i == last)
			return;
	}
}

bool
nvm_btree_gettuple(IndexScanDesc scan, ScanDirection dir)
{
	NvmScan    *so = nvm_scan_state(scan);
	NvmScanItem *item;

	scan->xs_recheck = false;
	if (scan->kill_prior_tuple)
		remember_killed(so);
	if (!next_item(scan, dir))
		return false;
	if (so->leaf.nitems > 1 && scan->xs_heapfetch != NULL)
		bring_in_rows(scan, &so->leaf, dir);
	item = &so->leaf.items[so->leaf.index];
	scan->xs_heaptid = item->tid;
	if (scan->xs_want_itup)
		scan->xs_itup = (IndexTuple) (so->leaf.tuples + (Size) item->tuple * 8);
	return true;
}

int64
nvm_btree_getbitmap(IndexScanDesc scan, TIDBitmap *tbm)
{
	NvmScan    *so = nvm_scan_state(scan);
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
	NvmScan    *so = nvm_scan_state(scan);

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
	NvmScan    *so = nvm_scan_state(scan);
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
