/*-------------------------------------------------------------------------
 *
 * btree_splitpoint.c
 *	  Where to split a page.
 *
 * The rules are those that PostgreSQL's nbtree has found worth having:
 *	- the rightmost page of a level keeps its fillfactor, since keys often come
 *	  in ascending order; other pages are split in the middle;
 *	- near the best place, the one whose pivot needs the fewest columns (on an
 *	  inner page: bytes) is taken;
 *	- a run of equal keys is not split if there is any other place; if there is
 *	  none, the left page is left almost full where more of the run is to come;
 *	- where entries are inserted in ascending order within a group of a
 *	  multi-column key, the split follows the new entry.
 *
 * A rebuild inserts in ascending order between what others have inserted, and
 * is not to leave half empty pages behind.  So there, too, the split follows
 * the new entry, or the left page keeps its fillfactor.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_change.h"

/* what an inner page keeps when it is the rightmost, in percent */
#define INNER_FILL			70
/* the left page, when the page has one key only */
#define SINGLE_FILL			96
/* so many places around the best one are looked at, of as many as there are */
#define NEAR_PART			18

typedef struct SplitSearch
{
	Relation	index;
	const NvmIndexCopy *copy;
	IndexTuple *items;
	int			nitems;
	bool		leaf;
	bool		rightmost;
	Size		right_high;		/* what the high key takes on the right page */
	Size		total;			/* what all entries take */
	Size	   *before;			/* [i]: what the entries before i take */
} SplitSearch;

/*
 * What the high key of the left page takes if items[at] is the first on the
 * right: a TID may have to be added.
 */
static Size
high_key_space(const SplitSearch *search, int at)
{
	IndexTuple	itup = search->items[at];
	Size		size = IndexTupleSize(itup);

	if (BTreeTupleIsPosting(itup))
		size = BTreeTupleGetPostingOffset(itup);
	if (search->leaf)
		size = MAXALIGN(size) + MAXALIGN(sizeof(ItemPointerData));
	return MAXALIGN(size) + sizeof(uint16);
}

static Size
left_space(const SplitSearch *search, int at)
{
	return search->before[at] + high_key_space(search, at);
}

static Size
right_space(const SplitSearch *search, int at)
{
	Size		space = search->total - search->before[at] + search->right_high;

	/* the first entry of an inner page has no key */
	if (!search->leaf)
		space -= NvmIndexEntrySpace(search->items[at]) -
			(sizeof(IndexTupleData) + sizeof(uint16));
	return space;
}

static bool
is_feasible(const SplitSearch *search, int at)
{
	return at >= 1 && at < search->nitems &&
		left_space(search, at) <= NVM_INDEX_ROOM &&
		right_space(search, at) <= NVM_INDEX_ROOM;
}

/*
 * How far a place is from what is wanted: the left page filled to `percent`, or
 * with 0, both pages equally.  What a fillfactor leaves is for insertions, the
 * first of which needs a second order word for each entry.
 */
static Size
distance(const SplitSearch *search, int at, int percent)
{
	Size		left = left_space(search, at);
	Size		want;

	if (percent > 0)
	{
		left += sizeof(uint16) * at;
		want = (Size) NVM_INDEX_ROOM * percent / 100;
	}
	else
		want = right_space(search, at);
	return left > want ? left - want : want - left;
}

/*
 * What a pivot there costs.
 */
static int
penalty(const SplitSearch *search, int at)
{
	if (!search->leaf)
		return IndexTupleSize(search->items[at]);
	return _bt_keep_natts_fast(search->index, search->items[at - 1], search->items[at]);
}

static inline int
key_columns(const SplitSearch *search)
{
	return IndexRelationGetNumberOfKeyAttributes(search->index);
}

/*
 * The feasible place nearest to what is wanted; with at_most > 0 only of those
 * whose penalty is no more.  0 if there is none.
 */
static int
nearest(const SplitSearch *search, int percent, int at_most)
{
	Size		best_distance = 0;
	int			best = 0;

	for (int at = 1; at < search->nitems; at++)
	{
		Size		d;

		if (!is_feasible(search, at))
			continue;
		d = distance(search, at, percent);
		if (best != 0 && d >= best_distance)
			continue;
		if (at_most > 0 && penalty(search, at) > at_most)
			continue;
		best = at;
		best_distance = d;
	}
	return best;
}

/*
 * Of the places around `best`, the one with the lowest penalty, and among
 * those the nearest.
 */
static int
cheapest_near(const SplitSearch *search, int best, int percent, int *lowest)
{
	int			reach = Max(search->nitems / NEAR_PART, 1);
	int			cheapest = best;

	*lowest = penalty(search, best);
	for (int step = 1; step <= reach; step++)
	{
		for (int side = -1; side <= 1; side += 2)
		{
			int			at = best + side * step;
			int			cost;

			if (!is_feasible(search, at))
				continue;
			cost = penalty(search, at);
			if (cost < *lowest)
			{
				*lowest = cost;
				cheapest = at;
			}
		}
		if (search->leaf && *lowest == 1)
			break;
	}
	return cheapest;
}

/*
 * Is the new entry one of a series that ascends within a group, of those with
 * the same first columns?  Then *percent is how full the left page is to be,
 * or the place that follows the new entry is returned.
 */
static int
follow_series(const SplitSearch *search, IndexTuple newitem, int newpos, int *percent)
{
	int			fillfactor = nvm_index_fillfactor(search->index);
	IndexTuple	last;
	int			keep;

	if (!search->leaf || search->rightmost || newitem == NULL || newpos == 0 ||
		key_columns(search) < 2)
		return 0;
	last = search->items[newpos - 1];
	if (BTreeTupleIsPosting(last))
		return 0;
	keep = _bt_keep_natts_fast(search->index, last, newitem);
	if (keep <= 1 || keep > key_columns(search))
		return 0;
	if (newpos == search->nitems)
	{
		*percent = fillfactor;
		return 0;
	}

	/*
	 * in the middle: its row must have been inserted just after the last
	 * one's
	 */
	if (ItemPointerCompare(&newitem->t_tid, &last->t_tid) < 0 ||
		ItemPointerGetBlockNumber(&newitem->t_tid) -
		ItemPointerGetBlockNumber(&last->t_tid) > 1 ||
		!is_feasible(search, newpos))
		return 0;
	if (left_space(search, newpos) > (Size) NVM_INDEX_ROOM * fillfactor / 100)
	{
		*percent = fillfactor;
		return 0;
	}
	return newpos;
}

/*
 * The same, where all entries come in ascending order.
 */
static int
follow_rebuild(const SplitSearch *search, int newpos, int *percent)
{
	int			fillfactor = nvm_index_fillfactor(search->index);

	if (newpos >= (search->leaf ? search->nitems : search->nitems - 1))
		*percent = search->leaf ? fillfactor : INNER_FILL;
	else if (search->leaf && newpos >= search->nitems / 2 && is_feasible(search, newpos))
	{
		if (left_space(search, newpos) <= (Size) NVM_INDEX_ROOM * fillfactor / 100)
			return newpos;
		*percent = fillfactor;
	}
	return 0;
}

/*
 * All keys are equal.  Is what comes next likely to belong to the end?
 */
static bool
run_ends_here(const SplitSearch *search)
{
	IndexTuple	high;

	if (search->rightmost)
		return true;
	high = NvmIndexCopyItem(search->copy, 0);
	if ((int) BTreeTupleGetNAtts(high, search->index) < key_columns(search))
		return true;
	return _bt_keep_natts_fast(search->index, high, search->items[search->nitems - 1])
		<= key_columns(search);
}

int
nvm_index_choose_split(Relation index, const NvmIndexSplit *split, bool ascending)
{
	const NvmIndexCopy *copy = split->copy;
	IndexTuple *items = split->items;
	int			nitems = split->nitems;
	int			newpos = split->newpos;
	SplitSearch search;
	int			percent = 0;
	int			best;
	int			lowest;
	int			other;

	search.index = index;
	search.copy = copy;
	search.items = items;
	search.nitems = nitems;
	search.leaf = copy->level == 0;
	search.rightmost = copy->right == NVM_INDEX_NONE;
	search.right_high = copy->first > 0 ? NvmIndexEntrySpace(NvmIndexCopyItem(copy, 0)) : 0;
	search.before = palloc(nitems * sizeof(Size));
	search.total = 0;
	for (int i = 0; i < nitems; i++)
	{
		search.before[i] = search.total;
		search.total += NvmIndexEntrySpace(items[i]);
	}

	/* of two children and a new one, no page is to be left with one again */
	if (!search.leaf && nitems == 3 && is_feasible(&search, newpos))
	{
		pfree(search.before);
		return newpos;
	}

	if (search.rightmost)
		percent = search.leaf ? nvm_index_fillfactor(index) : INNER_FILL;
	if (ascending)
		best = follow_rebuild(&search, newpos, &percent);
	else
		best = follow_series(&search, split->newitem, newpos, &percent);
	if (best == 0)
	{
		best = nearest(&search, percent, 0);
		if (best == 0)
			elog(ERROR, "could not find a feasible split point for index \"%s\"",
				 RelationGetRelationName(index));
		best = cheapest_near(&search, best, percent, &lowest);
		if (search.leaf && lowest > key_columns(&search))
		{
			other = nearest(&search, percent, key_columns(&search));
			if (other == 0 && run_ends_here(&search))
				other = nearest(&search, SINGLE_FILL, 0);
			if (other != 0)
				best = other;
		}
	}
	pfree(search.before);
	return best;
}
