/*-------------------------------------------------------------------------
 *
 * btree_insert.c
 *	  Insertion of an entry, and the check that its key is unique.
 *
 * The plan is made without any lock: which leaf, which place, and in a unique
 * index that nobody else has the key.  Then the leaf is locked at the version
 * on which the plan was made.  If the version has changed, everything begins
 * anew.  README.md, "Insertion", says why this keeps keys unique.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/transam.h"
#include "btree/nvm_btree_change.h"
#include "btree/nvm_btree_page.h"
#include "btree/nvm_btree_persist.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/lmgr.h"
#include "storage/predicate.h"
#include "utils/snapmgr.h"
#include "xact/nvm_xact.h"

/* one insertion; what is said of the place holds as of the versions */
typedef struct Insertion
{
	Relation	index;
	Relation	heap;
	NvmIndexCache cache;
	IndexTuple	itup;
	IndexUniqueCheck check;
	NvmIndexKey key;

	uint32		first;			/* first leaf on which the key could be, if it */
	uint64		first_version;	/* is checked; NVM_INDEX_NONE otherwise */
	bool		equals;			/* there may be equal keys, here or to the
								 * right */
	bool		unique;			/* what the check found */

	uint32		near;			/* leaf on which the place may be, or
								 * NVM_INDEX_NONE */
	uint32		blkno;			/* where the entry goes */
	uint64		version;
	int			pos;
	int			nitems;			/* of the page, by find_place */
	bool		set;			/* another process may have made the entry */
} Insertion;

typedef enum CheckResult
{
	CHECK_UNIQUE,				/* or, for UNIQUE_CHECK_PARTIAL, not */
	CHECK_CHANGED,				/* a page has changed: start again */
	CHECK_WAIT					/* for another transaction, then start again */
} CheckResult;

/* a walk over the entries with the key of an insertion, leaf by leaf */
typedef struct EqualWalk
{
	uint32		blkno;
	uint64		version;
	uint32		epoch;
	int			pos;
	int			nitems;
	bool		found;			/* UNIQUE_CHECK_EXISTING: the row itself */
	TransactionId xwait;
	uint32		token;			/* of xwait's speculative insertion, or 0 */
	union
	{
		char		data[NVM_INDEX_PAGE_SIZE];
		uint64		force_align;
	}			entry;
} EqualWalk;

/* ---- uniqueness ---- */

/*
 * Another row has the key, and will have it.
 */
static void
report_duplicate(Insertion *ins)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	char	   *key_desc;

	/* the insertion would have conflicted with one that looked for the key */
	CheckForSerializableConflictIn(ins->index, NULL, ins->first);

	index_deform_tuple(ins->itup, RelationGetDescr(ins->index), values, isnull);
	key_desc = BuildIndexValueDescription(ins->index, values, isnull);
	ereport(ERROR,
			(errcode(ERRCODE_UNIQUE_VIOLATION),
			 errmsg("duplicate key value violates unique constraint \"%s\"",
					RelationGetRelationName(ins->index)),
			 key_desc ? errdetail("Key %s already exists.", key_desc) : 0,
			 errtableconstraint(ins->heap, RelationGetRelationName(ins->index))));
}

typedef enum RowState
{
	ROW_NONE,					/* no row of the key's */
	ROW_CONFLICT,				/* one: for UNIQUE_CHECK_PARTIAL that is all */
	ROW_WAIT,
	ROW_OWN_DEAD				/* there is, but ours is dead itself */
} RowState;

/*
 * What is behind one TID of an equal entry?  *all_dead: nobody will ever see
 * anything there.  ERROR if it is a duplicate.
 */
static RowState
check_row(Insertion *ins, EqualWalk *walk, ItemPointerData tid, bool *all_dead)
{
	SnapshotData dirty;

	*all_dead = false;
	if ((ins->check == UNIQUE_CHECK_EXISTING || ins->set) &&
		ItemPointerEquals(&tid, &ins->itup->t_tid))
	{
		walk->found = true;
		return ROW_NONE;
	}

	InitDirtySnapshot(dirty);
	if (!table_index_fetch_tuple_check(ins->heap, &tid, &dirty, all_dead))
		return ROW_NONE;
	*all_dead = false;
	if (ins->check == UNIQUE_CHECK_PARTIAL)
		return ROW_CONFLICT;

	walk->xwait = TransactionIdIsValid(dirty.xmin) ? dirty.xmin : dirty.xmax;
	if (TransactionIdIsValid(walk->xwait))
	{
		walk->token = dirty.speculativeToken;
		return ROW_WAIT;
	}

	/*
	 * CREATE INDEX CONCURRENTLY may insert the entry of a row that has been
	 * deleted meanwhile.
	 */
	tid = ins->itup->t_tid;
	if (!table_index_fetch_tuple_check(ins->heap, &tid, SnapshotSelf, NULL))
		return ROW_OWN_DEAD;
	report_duplicate(ins);
	return ROW_NONE;			/* not reached */
}

/*
 * All TIDs of the walk's entry.
 */
static RowState
check_entry(Insertion *ins, EqualWalk *walk, uint16 word)
{
	IndexTuple	itup = (IndexTuple) walk->entry.data;
	ItemPointer tids = &itup->t_tid;
	int			ntids = 1;
	bool		dead = true;

	if (BTreeTupleIsPosting(itup))
	{
		tids = BTreeTupleGetPosting(itup);
		ntids = BTreeTupleGetNPosting(itup);
	}
	for (int i = 0; i < ntids; i++)
	{
		bool		all_dead;
		RowState	state = check_row(ins, walk, tids[i], &all_dead);

		if (state != ROW_NONE)
			return state;
		dead &= all_dead;
	}
	if (dead)
		nvm_index_kill(&ins->cache, walk->blkno, walk->epoch, &word, 1);
	return ROW_NONE;
}

/*
 * The first entry that is not below the key, on the walk's page.  False if the
 * page has changed.
 */
static bool
walk_begin(Insertion *ins, EqualWalk *walk)
{
	NvmIndexPage *page = nvm_index_page(ins->cache.state, walk->blkno);

	walk->epoch = nvm_index_load32(&page->epoch);
	walk->pos = nvm_index_locate(ins->cache.state, walk->blkno, walk->version,
								 &ins->key, &walk->nitems);
	return walk->pos >= 0;
}

typedef enum WalkStep
{
	WALK_GOES_ON,
	WALK_ENDS,
	WALK_CHANGED
} WalkStep;

/*
 * The walk has come to the end of a page: may there be more of the key on the
 * next one?  That is so if the high key has the same columns.
 */
static WalkStep
walk_right(Insertion *ins, EqualWalk *walk)
{
	for (;;)
	{
		NvmIndexPage *page = nvm_index_page(ins->cache.state, walk->blkno);
		uint32		right = nvm_index_load32(&page->right);
		uint16		flags = nvm_index_load16(&page->flags);
		uint16		word;

		if (!nvm_index_validate(page, walk->version))
			return WALK_CHANGED;
		if (right == NVM_INDEX_NONE)
			return WALK_ENDS;
		if ((flags & NVM_INDEX_DELETED) == 0)
		{
			if (!nvm_index_fetch(ins->cache.state, walk->blkno, walk->version, 0,
								 walk->entry.data, &word))
				return WALK_CHANGED;
			if (nvm_index_compare(&ins->key, (IndexTuple) walk->entry.data) != 0)
				return WALK_ENDS;
			ins->equals = true;
		}
		walk->blkno = right;
		walk->version = nvm_index_enter(ins->index, &ins->cache, right);
		if (!walk_begin(ins, walk))
			return WALK_CHANGED;

		/* nothing is left on a page that is deleted, but behind it may be */
		flags = nvm_index_load16(&nvm_index_page(ins->cache.state, right)->flags);
		if ((flags & NVM_INDEX_DELETED) == 0)
			return WALK_GOES_ON;
	}
}

/*
 * Look for rows with the key, from the first leaf on.  Leaves where the entry
 * goes if no key equals it.
 */
static CheckResult
check_unique(Insertion *ins, EqualWalk *walk)
{
	ins->unique = true;
	ins->equals = false;
	walk->blkno = ins->first;
	walk->version = ins->first_version;
	walk->found = false;
	if (!walk_begin(ins, walk))
		return CHECK_CHANGED;
	ins->blkno = walk->blkno;
	ins->version = walk->version;
	ins->pos = walk->pos;

	for (;;)
	{
		uint16		word;

		if (walk->pos >= walk->nitems)
		{
			WalkStep	step = walk_right(ins, walk);

			if (step == WALK_CHANGED)
				return CHECK_CHANGED;
			if (step == WALK_ENDS)
				break;
			continue;
		}
		if (!nvm_index_fetch(ins->cache.state, walk->blkno, walk->version, walk->pos,
							 walk->entry.data, &word))
			return CHECK_CHANGED;
		walk->pos++;
		if (nvm_index_compare(&ins->key, (IndexTuple) walk->entry.data) != 0)
			break;
		ins->equals = true;
		if ((word & NVM_INDEX_DEAD) != 0)
			continue;
		switch (check_entry(ins, walk, word))
		{
			case ROW_NONE:
				break;
			case ROW_CONFLICT:
				ins->unique = false;
				return CHECK_UNIQUE;
			case ROW_WAIT:
				return CHECK_WAIT;
			case ROW_OWN_DEAD:
				return CHECK_UNIQUE;
		}
	}

	if (ins->check == UNIQUE_CHECK_EXISTING && !walk->found)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("failed to re-find tuple within index \"%s\"",
						RelationGetRelationName(ins->index)),
				 errhint("This may be because of a non-immutable index expression."),
				 errtableconstraint(ins->heap, RelationGetRelationName(ins->index))));
	return CHECK_UNIQUE;
}

/*
 * Wait, with nothing held, until the other transaction has decided.
 */
static void
wait_for_other(Insertion *ins, EqualWalk *walk)
{
	if (walk->token != 0)
		SpeculativeInsertionWait(walk->xwait, walk->token);
	else
		XactLockTableWait(walk->xwait, ins->index, &ins->itup->t_tid, XLTW_InsertIndex);
}

/* ---- the place ---- */

/*
 * Find the leaf and place of (key, TID).  False: start again.
 */
static bool
find_place(Insertion *ins)
{
	ins->key.scantid = &ins->itup->t_tid;
	if (ins->near != NVM_INDEX_NONE &&
		nvm_index_belongs(ins->index, &ins->cache, &ins->key, ins->near, &ins->version))
		ins->blkno = ins->near;
	else
		ins->blkno = nvm_index_descend(ins->index, &ins->cache, &ins->key, 0,
									   &ins->version, NULL);
	if (ins->blkno == NVM_INDEX_NONE)
	{
		nvm_index_make_root(ins->index, &ins->cache);
		return false;
	}
	if (ins->blkno == ins->first && ins->version != ins->first_version)
		return false;
	ins->pos = nvm_index_locate(ins->cache.state, ins->blkno, ins->version,
								&ins->key, &ins->nitems);
	return ins->pos >= 0;
}

/*
 * Is this entry of a page anything else than one TID, or a list of TIDs that
 * are all lower?  The page may be changing.
 */
static bool
may_hold(const NvmIndexView *view, int pos, ItemPointer tid)
{
	uint32		off = NVM_INDEX_OFFSET(nvm_index_load16(&view->word[pos]));
	const char *itup = view->page + Min(off, NVM_INDEX_LAST_OFFSET);
	uint16		n = nvm_index_load16(itup + offsetof(ItemPointerData, ip_posid));
	ItemPointerData last;

	if ((nvm_index_load16(itup + offsetof(IndexTupleData, t_info)) & INDEX_ALT_TID_MASK) == 0 ||
		(n & BT_IS_POSTING) == 0)
		return false;
	off += ((uint32) nvm_index_load16(itup) << 16) + nvm_index_load16(itup + 2) +
		((n & BT_OFFSET_MASK) - 1) * sizeof(ItemPointerData);
	if (off > NVM_INDEX_PAGE_SIZE - sizeof(ItemPointerData))
		return true;
	memcpy(&last, view->page + off, sizeof(last));
	return ItemPointerCompare(&last, tid) >= 0;
}

/*
 * Is the entry at the place, or in a posting list before it, ours already?  -1
 * if the page has changed.  Where the answer is no, the page may have changed,
 * too.
 */
static int
is_there(Insertion *ins)
{
	NvmRelState *state = ins->cache.state;
	NvmIndexView view;
	int			found = 0;
	union
	{
		char		data[NVM_INDEX_PAGE_SIZE];
		uint64		force_align;
	}			entry;
	IndexTuple	itup = (IndexTuple) entry.data;

	if (nvm_index_view(nvm_index_page(state, ins->blkno), &view) != NVM_VIEW_OK ||
		view.n != ins->nitems)
		return -1;

	/* from the first entry with the TID or a higher one leftwards */
	ins->key.scantid = NULL;
	for (int pos = Min(ins->pos, view.n - 1); pos >= view.first && found == 0; pos--)
	{
		uint16		word;
		int			cmp;

		/* in most cases the key of the one before ends it */
		if (pos < ins->pos - 1 && !may_hold(&view, pos, &ins->itup->t_tid))
			continue;
		if (!nvm_index_fetch(state, ins->blkno, ins->version, pos, entry.data, &word))
			found = -1;
		else if ((cmp = nvm_index_compare(&ins->key, itup)) > 0)
			break;
		else if (cmp == 0 && BTreeTupleIsPosting(itup))
		{
			for (int i = 0; i < BTreeTupleGetNPosting(itup) && found == 0; i++)
				found = ItemPointerEquals(BTreeTupleGetPostingN(itup, i),
										  &ins->itup->t_tid);
		}
		else if (cmp == 0)
			found = ItemPointerEquals(&itup->t_tid, &ins->itup->t_tid);
	}
	ins->key.scantid = &ins->itup->t_tid;
	return found;
}

/*
 * Insert at the place that was found, if nothing has changed.
 *
 * All backends that insert the key have looked for it from the same first leaf
 * on.  If the entry goes to another leaf, the version of the first one is raised
 * all the same, so that they notice.
 */
static bool
insert_here(Insertion *ins)
{
	NvmIndexPage *page = nvm_index_page(ins->cache.state, ins->blkno);
	NvmIndexPage *first = NULL;
	uint64		version;
	uint32		epoch;
	uint32		tail;
	bool		unsettled;

	if (ins->first != NVM_INDEX_NONE && ins->first != ins->blkno)
	{
		first = nvm_index_page(ins->cache.state, ins->first);
		if (!nvm_index_lock(first, ins->first_version))
			return false;
	}
	if (!nvm_index_lock(page, ins->version))
	{
		if (first != NULL)
			nvm_index_unlock(first, false);
		return false;
	}
	tail = nvm_index_append(&ins->cache, page, ins->pos, ins->itup);
	unsettled = NVM_INDEX_SETTLED(page->commit) != tail;
	epoch = page->epoch;
	version = nvm_index_unlock(page, true);
	if (first != NULL)
		nvm_index_unlock(first, true);
	NVM_FAILPOINT("btree-inserted");
	if (unsettled)
		nvm_index_unsettled(page, version, epoch, tail);
	return true;
}

/*
 * The insertion's check, until it is decided.  False if it was no more than a
 * check.
 */
static bool
decide_unique(Insertion *ins)
{
	EqualWalk	walk;

	for (;;)
	{
		CheckResult result = CHECK_UNIQUE;

		CHECK_FOR_INTERRUPTS();
		ins->key.scantid = NULL;
		ins->first = nvm_index_descend(ins->index, &ins->cache, &ins->key, 0,
									   &ins->first_version, NULL);
		if (ins->first != NVM_INDEX_NONE)
		{
			walk.token = 0;
			result = check_unique(ins, &walk);
			NVM_FAILPOINT("btree-checked");
		}
		else if (ins->check != UNIQUE_CHECK_EXISTING)
		{
			nvm_index_make_root(ins->index, &ins->cache);
			continue;
		}
		if (result == CHECK_UNIQUE)
			return ins->check != UNIQUE_CHECK_EXISTING;
		if (result == CHECK_WAIT)
			wait_for_other(ins, &walk);
	}
}

/*
 * Begin an insertion.
 */
static inline void
begin_insertion(Insertion *ins, Relation index, Relation heap, IndexTuple itup,
				IndexUniqueCheck check)
{
	ins->index = index;
	ins->heap = heap;
	ins->check = check;
	ins->cache = *nvm_index_cache(index);
	ins->itup = itup;
	nvm_index_check_size(index, heap, itup);
	nvm_index_key_init(index, &ins->cache, itup, &ins->key);
	ins->key.inserts = true;
	ins->unique = true;
	ins->equals = false;
	ins->first = NVM_INDEX_NONE;
	ins->near = NVM_INDEX_NONE;
}

/*
 * Check and insert, until one of the plans is carried out.
 */
static inline void
do_insertion(Insertion *ins, bool unchanged)
{
	/* a key with a null is not equal to any other */
	bool		checking = ins->check != UNIQUE_CHECK_NO && !ins->key.anynull;

	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (checking && !decide_unique(ins))
			break;
		/* without equal keys the check has found the place, too */
		if ((!checking || ins->equals || ins->set) && !find_place(ins))
			continue;
		if (unlikely(ins->set))
		{
			int			there = is_there(ins);

			if (there > 0)
				break;
			if (there < 0)
				continue;
		}
		if (!nvm_index_has_room(nvm_index_page(ins->cache.state, ins->blkno),
								IndexTupleSize(ins->itup)))
		{
			NvmIndexWanted wanted = {
				.newitem = ins->itup,.nullkey = ins->key.anynull,
				.unchanged = unchanged,.equals = ins->equals
			};

			nvm_index_make_room(ins->index, &ins->cache, ins->heap, ins->blkno, &wanted);
			continue;
		}
		if (insert_here(ins))
			break;
	}
}

/*
 * See nvm_btree.h.
 */
void
nvm_index_insert_next(Relation index, Relation heap, IndexTuple itup, uint32 *leaf)
{
	Insertion	ins;

	begin_insertion(&ins, index, heap, itup, UNIQUE_CHECK_NO);
	ins.cache.ascending = true;
	ins.near = *leaf;
	ins.set = true;
	do_insertion(&ins, false);
	*leaf = ins.blkno;
}

/*
 * aminsert.  With UNIQUE_CHECK_PARTIAL the result says whether the key is
 * known to be unique; otherwise it is true.
 */
bool
nvm_index_insert(Relation index, Datum *values, bool *isnull, ItemPointer tid,
				 Relation heap, IndexUniqueCheck check, bool unchanged,
				 IndexInfo *info)
{
	Insertion	ins;
	IndexTuple	itup;

	if (check != UNIQUE_CHECK_NO)
		nvm_index_wait(index);
	itup = index_form_tuple(RelationGetDescr(index), values, isnull);
	itup->t_tid = *tid;
	begin_insertion(&ins, index, heap, itup, check);

	/* if a restart has emptied it, a builder may be entering our row as well */
	ins.set = nvm_index_is_set(&ins.cache);
	do_insertion(&ins, unchanged);
	pfree(itup);
	if (check == UNIQUE_CHECK_EXISTING)
		return true;

	/*
	 * A transaction that writes rows of this region settles its entries when
	 * it commits; others, such as CREATE INDEX CONCURRENTLY, do not.
	 */
	if (unlikely(nvm_xact_stamp_if_any(ins.cache.state->region) == NVM_STAMP_NONE) && nvm_index_settle())
		nvm_drain("btree-insert-alone");

	/* after the store: a reader of the page from before has locked it */
	CheckForSerializableConflictIn(index, NULL, ins.blkno);
	return ins.unique;
}
