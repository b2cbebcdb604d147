/*-------------------------------------------------------------------------
 *
 * btree_split.c
 *	  Splits: of a page, of the root; the downlink; a split left incomplete.
 *
 * README.md, "Split", has the protocol and what a crash leaves.  Between the
 * two steps of a split, the page and its downlink, the left page says
 * INCOMPLETE.  An insertion that meets the flag takes the second step first.
 * So no page with the flag is ever split, and predicate locks are where they
 * belong before anything is inserted into the right page.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_change.h"
#include "btree/nvm_btree_page.h"
#include "btree/nvm_btree_persist.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/predicate.h"
#include "utils/memutils.h"

/* the first step of a split whose second one is being taken */
typedef struct SplitGuard
{
	NvmIndexPage *left;
	uint32		child;			/* its right sibling, which lacks a downlink */
} SplitGuard;

static bool split_page(Relation index, NvmIndexCache *cache, const NvmIndexSplit *split,
					   const SplitGuard *guard);

/* ---- pivots ---- */

/*
 * The first entry of an inner page: a downlink without key.
 */
static IndexTuple
minus_infinity(uint32 child)
{
	IndexTuple	itup = palloc0(sizeof(IndexTupleData));

	itup->t_info = sizeof(IndexTupleData);
	BTreeTupleSetNAtts(itup, 0, false);
	BTreeTupleSetDownLink(itup, child);
	return itup;
}

/*
 * How many columns are needed to tell these two apart; one more than there are
 * key columns if it takes the TID.
 */
static int
columns_needed(Relation index, NvmIndexCache *cache, IndexTuple lastleft,
			   IndexTuple firstright)
{
	TupleDesc	desc = RelationGetDescr(index);
	int			nkeys = IndexRelationGetNumberOfKeyAttributes(index);

	for (int i = 1; i <= nkeys; i++)
	{
		bool		null1;
		bool		null2;
		Datum		datum1 = index_getattr(lastleft, i, desc, &null1);
		Datum		datum2 = index_getattr(firstright, i, desc, &null2);

		if (null1 != null2)
			return i;
		if (!null1 &&
			DatumGetInt32(FunctionCall2Coll(index_getprocinfo(index, i, BTORDER_PROC),
											index->rd_indcollation[i - 1],
											datum1, datum2)) != 0)
			return i;
	}
	return nkeys + 1;
}

/*
 * See nvm_btree.h.  The pivot is >= lastleft and < firstright.  It has
 * firstright's columns as far as they are needed.  If all of them are,
 * lastleft's highest TID follows.
 */
IndexTuple
nvm_index_truncate(Relation index, NvmIndexCache *cache, IndexTuple lastleft,
				   IndexTuple firstright)
{
	int			nkeys = IndexRelationGetNumberOfKeyAttributes(index);
	int			keep = columns_needed(index, cache, lastleft, firstright);
	IndexTuple	plain = firstright;
	IndexTuple	pivot;
	IndexTuple	result;
	Size		size;

	if (BTreeTupleIsPosting(firstright))
		plain = _bt_form_posting(firstright, BTreeTupleGetPosting(firstright), 1);
	pivot = index_truncate_tuple(RelationGetDescr(index), plain, Min(keep, nkeys));
	if (plain != firstright)
		pfree(plain);
	size = MAXALIGN(IndexTupleSize(pivot));
	if (keep <= nkeys)
	{
		BTreeTupleSetNAtts(pivot, keep, false);
		return pivot;
	}

	result = palloc0(size + MAXALIGN(sizeof(ItemPointerData)));
	memcpy(result, pivot, IndexTupleSize(pivot));
	pfree(pivot);
	size += MAXALIGN(sizeof(ItemPointerData));
	result->t_info = (result->t_info & ~INDEX_SIZE_MASK) | size;
	BTreeTupleSetNAtts(result, nkeys, true);
	ItemPointerCopy(BTreeTupleGetMaxHeapTID(lastleft), BTreeTupleGetHeapTID(result));
	return result;
}

/* ---- the root ---- */

void
nvm_index_make_root(Relation index, NvmIndexCache *cache)
{
	NvmRelState *state = cache->state;
	uint32		blkno = nvm_index_alloc(index, cache);
	NvmIndexPage *page = nvm_index_page(state, blkno);
	uint64		root = NVM_INDEX_ROOT_MAKE(blkno, 0);
	uint16		flags = NVM_INDEX_LEAF | NVM_INDEX_ROOT | NVM_INDEX_LIVE;
	char	   *image = palloc(NVM_INDEX_PAGE_SIZE);
	NvmIndexForm form;
	NvmIndexChange change;
	bool		mine;

	form = (NvmIndexForm)
	{
		.blkno = blkno,.left = NVM_INDEX_NONE,.right = NVM_INDEX_NONE,
			.flags = NVM_INDEX_LEAF | NVM_INDEX_ROOT
	};
	(void) nvm_index_form(image, cache, &form);
	((NvmIndexPage *) image)->safexid = NvmPool->incarnation;
	nvm_index_change_begin(&change, cache, 0);
	nvm_index_put_image(&change, page, image);
	pfree(image);
	NVM_FAILPOINT("btree-root-written");

	LWLockAcquire(nvm_rel_extend_lock(state), LW_EXCLUSIVE);
	mine = cache->meta->root == 0;
	if (mine)
	{
		nvm_index_lock_wait(page);
		mine = nvm_index_change_stands(&change);
		if (mine)
		{
			nvm_index_change_add(&change, &page->flags, &flags, sizeof(flags));
			nvm_index_change_add(&change, &cache->meta->root, &root, sizeof(root));
			nvm_index_change_apply(&change);
		}
		nvm_index_unlock(page, true);
	}
	LWLockRelease(nvm_rel_extend_lock(state));
	nvm_index_change_end(&change);
	if (!mine)
		nvm_index_free(cache, blkno);
	NVM_FAILPOINT("btree-root-made");
}

/*
 * Put a new root above the old one, the page of the copy, and its new right
 * sibling.  That is the second step of its split.  False, and nothing done,
 * if the page has changed.
 */
static bool
grow_root(Relation index, NvmIndexCache *cache, const NvmIndexCopy *copy)
{
	NvmIndexPage *left = nvm_index_page(cache->state, copy->blkno);
	uint32		blkno = nvm_index_alloc(index, cache);
	NvmIndexPage *page = nvm_index_page(cache->state, blkno);
	uint16		level = copy->level + 1;
	uint64		root = NVM_INDEX_ROOT_MAKE(blkno, level);
	uint16		flags = NVM_INDEX_ROOT | NVM_INDEX_LIVE;
	uint16		left_flags = copy->flags & ~(NVM_INDEX_ROOT | NVM_INDEX_INCOMPLETE);
	char	   *image = palloc(NVM_INDEX_PAGE_SIZE);
	IndexTuple	items[2];
	NvmIndexForm form;
	NvmIndexChange change;

	items[0] = minus_infinity(copy->blkno);
	items[1] = CopyIndexTuple(NvmIndexCopyItem(copy, 0));
	BTreeTupleSetDownLink(items[1], copy->right);
	form = (NvmIndexForm)
	{
		.blkno = blkno,.left = NVM_INDEX_NONE,.right = NVM_INDEX_NONE,
			.level = level,.flags = NVM_INDEX_ROOT,.items = items,.nitems = 2
	};
	(void) nvm_index_form(image, cache, &form);
	((NvmIndexPage *) image)->safexid = NvmPool->incarnation;
	nvm_index_change_begin(&change, cache, 0);
	nvm_index_put_image(&change, page, image);
	NVM_FAILPOINT("btree-newroot-written");

	if (!nvm_index_lock(left, copy->version))
	{
		nvm_index_change_end(&change);
		nvm_index_free(cache, blkno);
		return false;
	}
	nvm_index_lock_wait(page);
	if (!nvm_index_change_stands(&change))
	{
		nvm_index_unlock(page, false);
		nvm_index_unlock(left, false);
		nvm_index_change_end(&change);
		nvm_index_free(cache, blkno);
		return false;
	}
	nvm_index_change_add(&change, &page->flags, &flags, sizeof(flags));
	nvm_index_change_add(&change, &left->flags, &left_flags, sizeof(left_flags));
	nvm_index_change_add(&change, &cache->meta->root, &root, sizeof(root));
	nvm_index_change_apply(&change);
	nvm_index_unlock(page, true);
	nvm_index_unlock(left, true);
	nvm_index_change_end(&change);
	NVM_FAILPOINT("btree-newroot-made");
	return true;
}

/* ---- the second step ---- */

/*
 * Lock the left page of a split, if the second step is still to be taken.  As
 * long as INCOMPLETE stands, it is, and the right page is the one of that
 * split: neither page is split or deleted meanwhile.  Returns with the lock
 * held if true, without it if false.
 */
static bool
lock_incomplete(const SplitGuard *guard)
{
	NvmIndexPage *left = guard->left;

	nvm_index_lock_wait(left);
	if ((left->flags & (NVM_INDEX_INCOMPLETE | NVM_INDEX_ROOT | NVM_INDEX_DELETED)) ==
		NVM_INDEX_INCOMPLETE && left->right == guard->child)
		return true;
	nvm_index_unlock(left, false);
	return false;
}

/*
 * The same question without the lock: true may be out of date, false is for good.
 */
static bool
is_incomplete(const SplitGuard *guard)
{
	return (nvm_index_load16(&guard->left->flags) &
			(NVM_INDEX_INCOMPLETE | NVM_INDEX_DELETED)) == NVM_INDEX_INCOMPLETE &&
		nvm_index_load32(&guard->left->right) == guard->child;
}

/* a downlink on its way to the level above */
typedef struct Downlink
{
	SplitGuard	guard;			/* the split that lacks it */
	uint32		level;			/* where it goes */
	NvmIndexKey *key;			/* finds its place there */
	IndexTuple	tuple;
	/* its place, as of version: before item pos of the page */
	uint32		blkno;
	uint64		version;
	int			pos;
} Downlink;

typedef enum DownlinkState
{
	DOWNLINK_AGAIN,				/* something has changed: look for its place
								 * again */
	DOWNLINK_MISSING,			/* its place is known, and it is not there */
	DOWNLINK_THERE,				/* it is there; not yet durable, maybe */
	DOWNLINK_DURABLE,			/* it is there, and durable */
	DOWNLINK_NEEDLESS			/* no level above, or the split is complete */
} DownlinkState;

/*
 * Insert a downlink by a split of its page, on which there is no room.  A
 * split that makes room first would not do: where the keys are of the largest
 * size, a page has two children, and one after such a split.
 *
 * False, and nothing done, if the page has not this version any more, or the
 * split of the guard is complete.
 */
static bool
split_with_downlink(Relation index, NvmIndexCache *cache, const Downlink *downlink)
{
	NvmIndexCopy *copy = palloc(sizeof(NvmIndexCopy));
	IndexTuple *items;
	NvmIndexSplit split;
	bool		done = false;
	int			n = 0;

	nvm_index_copy(index, cache, downlink->blkno, copy);
	if (copy->flags & NVM_INDEX_INCOMPLETE)
		nvm_index_finish_split(index, cache, NULL, downlink->blkno);
	else if (copy->version == downlink->version && (copy->flags & NVM_INDEX_DELETED) == 0)
	{
		items = palloc((copy->nitems + 1) * sizeof(IndexTuple));
		for (int i = copy->first; i < copy->nitems; i++)
		{
			if (i == downlink->pos)
				items[n++] = downlink->tuple;
			items[n++] = NvmIndexCopyItem(copy, i);
		}
		if (downlink->pos == copy->nitems)
			items[n++] = downlink->tuple;
		split = (NvmIndexSplit)
		{
			.copy = copy,.items = items,.nitems = n,.newpos = downlink->pos - copy->first
		};
		done = split_page(index, cache, &split, &downlink->guard);
		pfree(items);
	}
	pfree(copy);
	return done;
}

/*
 * Find the place of a downlink on its level, without a lock: MISSING, THERE,
 * AGAIN or NEEDLESS.  buf has room for an entry.
 */
static DownlinkState
locate_downlink(Relation index, NvmIndexCache *cache, Downlink *downlink, char *buf)
{
	uint16		word;

	downlink->blkno = nvm_index_descend(index, cache, downlink->key, downlink->level,
										&downlink->version, NULL);
	CHECK_FOR_INTERRUPTS();
	if (downlink->blkno == NVM_INDEX_NONE)
		return DOWNLINK_NEEDLESS;
	downlink->pos = nvm_index_locate(cache->state, downlink->blkno, downlink->version,
									 downlink->key, NULL);
	if (downlink->pos < 0)
		return DOWNLINK_AGAIN;
	if (downlink->pos == 0)
		return DOWNLINK_MISSING;

	/* the last one that is not beyond the key: is it ours already? */
	if (!nvm_index_fetch(cache->state, downlink->blkno, downlink->version,
						 downlink->pos - 1, buf, &word))
		return DOWNLINK_AGAIN;
	return BTreeTupleGetDownLink((IndexTuple) buf) == downlink->guard.child ?
		DOWNLINK_THERE : DOWNLINK_MISSING;
}

/*
 * Put a downlink in the place that was found.  Takes the locks of the left
 * page of its split and of the parent, and gives them back: THERE, DURABLE,
 * AGAIN or NEEDLESS.
 */
static DownlinkState
place_downlink(Relation index, NvmIndexCache *cache, const Downlink *downlink)
{
	NvmIndexPage *page = nvm_index_page(cache->state, downlink->blkno);
	NvmIndexPage *left = downlink->guard.left;

	if (!nvm_index_has_room(page, IndexTupleSize(downlink->tuple)))
	{
		if (split_with_downlink(index, cache, downlink))
			return DOWNLINK_DURABLE;

		/*
		 * a full parent stays so if the downlink has come and gone meanwhile
		 */
		return is_incomplete(&downlink->guard) ? DOWNLINK_AGAIN : DOWNLINK_NEEDLESS;
	}
	if (!lock_incomplete(&downlink->guard))
		return DOWNLINK_NEEDLESS;
	if (!nvm_index_lock(page, downlink->version))
	{
		nvm_index_unlock(left, false);
		return DOWNLINK_AGAIN;
	}
	(void) nvm_index_append(cache, page, downlink->pos, downlink->tuple);
	nvm_index_unlock(page, true);
	nvm_index_unlock(left, false);
	NVM_FAILPOINT("btree-downlink-inserted");
	return DOWNLINK_THERE;
}

/*
 * See to it that the level above has a durable downlink to `child`, whose left
 * sibling is `left` and has this high key.  False if there is no such level,
 * or if the split is complete by now.  Then the caller's copy is out of date:
 * the right page may even have been deleted since.
 */
static bool
insert_downlink(Relation index, NvmIndexCache *cache, uint32 level,
				NvmIndexPage *left, IndexTuple highkey, uint32 child)
{
	Downlink	downlink = {.guard = {left, child},.level = level};
	char	   *buf = palloc(NVM_INDEX_PAGE_SIZE);
	DownlinkState state;

	downlink.tuple = CopyIndexTuple(highkey);
	BTreeTupleSetDownLink(downlink.tuple, child);
	downlink.key = palloc(sizeof(NvmIndexKey));
	nvm_index_key_init(index, cache, downlink.tuple, downlink.key);
	downlink.key->nextkey = true;
	downlink.key->inserts = true;
	do
	{
		state = locate_downlink(index, cache, &downlink, buf);
		if (state == DOWNLINK_MISSING)
			state = place_downlink(index, cache, &downlink);
	} while (state == DOWNLINK_AGAIN);

	/*
	 * before the left page says that it is there, whichever process has
	 * inserted it
	 */
	if (state == DOWNLINK_THERE && NvmIndexFlushes(cache, level))
	{
		nvm_index_flush_commit(cache, nvm_index_page(cache->state, downlink.blkno), level);
		nvm_drain("btree-downlink");
	}
	pfree(downlink.tuple);
	pfree(downlink.key);
	pfree(buf);
	return state != DOWNLINK_NEEDLESS;
}

/*
 * The second step, from a copy.  False if the page has changed.
 */
static bool
finish_copied(Relation index, NvmIndexCache *cache, const NvmIndexCopy *copy)
{
	NvmIndexPage *page = nvm_index_page(cache->state, copy->blkno);
	SplitGuard	guard = {page, copy->right};

	/*
	 * A reader that read the page before it was split has its predicate lock
	 * by now. Nothing was inserted into the right page yet, since every
	 * insertion there has to come through here first.
	 */
	if (copy->level == 0)
		PredicateLockPageSplit(index, copy->blkno, copy->right);
	NVM_FAILPOINT("btree-split-locks");

	if (copy->flags & NVM_INDEX_ROOT)
		return grow_root(index, cache, copy);
	if (!insert_downlink(index, cache, copy->level + 1, page, NvmIndexCopyItem(copy, 0),
						 copy->right))
		return false;
	/* entries may have come to the page meanwhile: that does not matter */
	if (!lock_incomplete(&guard))
		return false;
	page->flags &= ~NVM_INDEX_INCOMPLETE;
	if (NvmIndexFlushes(cache, copy->level))
		nvm_flush(&page->flags, sizeof(page->flags));
	nvm_index_unlock(page, true);
	NVM_FAILPOINT("btree-split-complete");
	return true;
}

void
nvm_index_finish_split(Relation index, NvmIndexCache *cache, Relation heap, uint32 blkno)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "nvm_btree split",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);

	for (;;)
	{
		NvmIndexCopy *copy = palloc(sizeof(NvmIndexCopy));

		nvm_index_copy(index, cache, blkno, copy);
		if ((copy->flags & NVM_INDEX_INCOMPLETE) == 0 ||
			(copy->flags & NVM_INDEX_DELETED) != 0 ||
			finish_copied(index, cache, copy))
			break;
		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
}

/* ---- the first step ---- */

/* what the two pages are to be */
typedef struct SplitPlan
{
	uint32		right;			/* number of the new page */
	uint16		right_flags;	/* once it is live */
	union
	{
		NvmIndexPage header;
		char		data[NVM_INDEX_PAGE_SIZE];
		uint64		force_align;
	}			left_image,
				right_image;
} SplitPlan;

/*
 * Form both images, but for the number of the right page, instead of which they
 * have the left one's.  `at` items go to the left.  One half of a leaf may be
 * empty: what is about to be inserted there is `newitem`.
 */
static void
form_halves(Relation index, NvmIndexCache *cache, const NvmIndexSplit *split, int at,
			SplitPlan *plan)
{
	const NvmIndexCopy *copy = split->copy;
	IndexTuple *items = split->items;
	int			nitems = split->nitems;
	NvmIndexForm form;
	IndexTuple *list = palloc((nitems + 2) * sizeof(IndexTuple));
	uint16		flags = copy->flags & ~NVM_INDEX_HAS_DEAD;
	int			n = 0;

	list[n++] = copy->level == 0 ?
		nvm_index_truncate(index, cache, at > 0 ? items[at - 1] : split->newitem,
						   at < nitems ? items[at] : split->newitem) :
		CopyIndexTuple(items[at]);
	memcpy(list + n, items, at * sizeof(IndexTuple));
	n += at;
	form = (NvmIndexForm)
	{
		.blkno = copy->blkno,.left = copy->left,.right = copy->blkno,
			.level = copy->level,.flags = flags | NVM_INDEX_INCOMPLETE,
			.items = list,.nitems = n
	};
	if (!nvm_index_form(plan->left_image.data, cache, &form))
		elog(ERROR, "left half of block %u of index \"%s\" does not fit",
			 copy->blkno, RelationGetRelationName(index));

	n = 0;
	if (copy->first > 0)
		list[n++] = NvmIndexCopyItem(copy, 0);
	memcpy(list + n, items + at, (nitems - at) * sizeof(IndexTuple));
	if (copy->level > 0)
		list[n] = minus_infinity(BTreeTupleGetDownLink(items[at]));
	n += nitems - at;
	plan->right_flags = (copy->flags & NVM_INDEX_LEAF) | NVM_INDEX_LIVE;
	form = (NvmIndexForm)
	{
		.blkno = copy->blkno,.left = copy->blkno,.right = copy->right,
			.level = copy->level,.flags = copy->flags & NVM_INDEX_LEAF,
			.items = list,.nitems = n
	};
	if (!nvm_index_form(plan->right_image.data, cache, &form))
		elog(ERROR, "right half of block %u of index \"%s\" does not fit",
			 copy->blkno, RelationGetRelationName(index));
	plan->right_image.header.safexid = NvmPool->incarnation;
	pfree(list);
}

/*
 * Make the split that was planned.  False, and nothing done, if the page has
 * changed since, if the split that the guard names is complete, or if the
 * index is no longer relaxed.
 */
static bool
apply_split(NvmIndexCache *cache, const NvmIndexCopy *copy, SplitPlan *plan,
			const SplitGuard *guard)
{
	NvmIndexPage *left = nvm_index_page(cache->state, copy->blkno);
	NvmIndexPage *right = nvm_index_page(cache->state, plan->right);
	NvmIndexPage *sibling = NULL;
	NvmIndexChange change;
	bool		stands;

	nvm_index_change_begin(&change, cache, copy->level);
	nvm_index_put_image(&change, right, plan->right_image.data);
	NVM_FAILPOINT("btree-split-written");

	if (guard != NULL && !lock_incomplete(guard))
	{
		nvm_index_change_end(&change);
		return false;
	}
	if (!nvm_index_lock(left, copy->version))
	{
		if (guard != NULL)
			nvm_index_unlock(guard->left, false);
		nvm_index_change_end(&change);
		return false;
	}
	nvm_index_lock_wait(right);
	if (copy->right != NVM_INDEX_NONE)
	{
		sibling = nvm_index_page(cache->state, copy->right);
		nvm_index_lock_wait(sibling);
	}

	stands = nvm_index_change_stands(&change);
	if (stands)
	{
		nvm_index_change_add(&change, &right->flags, &plan->right_flags,
							 sizeof(plan->right_flags));
		nvm_index_change_page(&change, left, plan->left_image.data);
		if (sibling != NULL)
			nvm_index_change_add(&change, &sibling->left, &plan->right, sizeof(plan->right));
		nvm_index_change_apply(&change);
	}

	if (sibling != NULL)
		nvm_index_unlock(sibling, stands);
	nvm_index_unlock(right, stands);
	nvm_index_unlock(left, stands);
	if (guard != NULL)
		nvm_index_unlock(guard->left, false);
	nvm_index_change_end(&change);
	if (stands)
		NVM_FAILPOINT("btree-split-applied");
	return stands;
}

/*
 * Form both images, and take a block for the right page.  What can fail comes
 * before that, also by the session's end, after which nobody would give it back.
 */
static void
plan_split(Relation index, NvmIndexCache *cache, const NvmIndexSplit *split, int at,
		   SplitPlan *plan)
{
	NvmIndexPage *left = &plan->left_image.header;
	NvmIndexPage *right = &plan->right_image.header;

	form_halves(index, cache, split, at, plan);
	plan->right = nvm_index_alloc(index, cache);
	left->right = plan->right;
	right->blkno = plan->right;
	right->check = nvm_index_check_word(cache->dir, plan->right,
										nvm_index_page(cache->state, plan->right));
}

/*
 * See nvm_index_split.  guard: the items contain the downlink, number newpos,
 * that its split lacks.
 */
static bool
split_page(Relation index, NvmIndexCache *cache, const NvmIndexSplit *split,
		   const SplitGuard *guard)
{
	const NvmIndexCopy *copy = split->copy;
	SplitPlan  *plan = palloc(sizeof(SplitPlan));
	int			at = split->newpos;
	bool		done;

	Assert((copy->flags & (NVM_INDEX_INCOMPLETE | NVM_INDEX_DELETED)) == 0);
	if (split->nitems > 1)
		at = nvm_index_choose_split(index, split, cache->ascending);
	/* a link that leads nowhere must not be found out under locks */
	if (copy->right != NVM_INDEX_NONE)
		(void) nvm_index_enter(index, cache, copy->right);
	plan_split(index, cache, split, at, plan);
	done = apply_split(cache, copy, plan, guard);
	if (!done)
		nvm_index_free(cache, plan->right);
	pfree(plan);
	if (done)
		nvm_index_finish_split(index, cache, NULL, copy->blkno);
	return done;
}

bool
nvm_index_split(Relation index, NvmIndexCache *cache, const NvmIndexSplit *split)
{
	nvm_index_relax_by_split(cache);
	return split_page(index, cache, split, NULL);
}
