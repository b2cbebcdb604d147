/*-------------------------------------------------------------------------
 *
 * btree_delete.c
 *	  Unlink an empty leaf.
 *
 * A redo lane takes it out of the tree: it becomes DELETED, its downlink in
 * the parent leads to the right sibling, the right sibling's own downlink is
 * dropped, and the siblings are linked to each other.  Its key range is the
 * right sibling's from then on.  An inner page that has no other child goes
 * with it.
 *
 * Predicate locks on the leaf are copied to the right sibling before that.  A
 * scan that locks the leaf later finds it empty, and then locks the sibling,
 * too (README, "Predicate locks").
 *
 * The page's own links stay for a process that stands on it or is on the way
 * to it.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "btree/nvm_btree.h"
#include "compat/nvm_compat.h"
#include "pmem/nvm_pmem.h"
#include "storage/predicate.h"
#include "utils/memutils.h"

/* levels that go at once: what a set of changes has room for */
#define DELETE_LEVELS	3
/* how often to start again because another process was faster */
#define DELETE_TRIES	10
/* pages that may be passed on the way to a parent */
#define DELETE_PASS		4

/* what is known of a page without its entries */
typedef struct DeletePeek
{
	uint32		blkno;
	uint64		version;
	NvmIndexPage header;
} DeletePeek;

/* one page that is to go, and its siblings */
typedef struct DeleteLevel
{
	DeletePeek	left;			/* blkno NVM_INDEX_NONE: there is none */
	DeletePeek	page;
	DeletePeek	right;
} DeleteLevel;

typedef struct DeletePlan
{
	int			nlevels;
	DeleteLevel level[DELETE_LEVELS];
	DeletePeek	top;			/* the page that loses a downlink */
	union
	{
		char		data[NVM_INDEX_PAGE_SIZE];
		uint64		force_align;
	}			image;			/* what it becomes */
} DeletePlan;

static void
delete_peek(Relation index, NvmIndexCache *cache, uint32 blkno, DeletePeek *peek)
{
	NvmIndexPage *page = nvm_index_page(cache->state, blkno);

	do
	{
		peek->blkno = blkno;
		peek->version = nvm_index_enter(index, cache, blkno);
		peek->header = *page;
	} while (!nvm_index_validate(page, peek->version));
}

/*
 * The siblings of a page.  False if they are not linked to it, or if its
 * downlink may not be there yet.
 */
static bool
delete_plan_siblings(Relation index, NvmIndexCache *cache, DeleteLevel *level)
{
	uint32		left = level->page.header.left;
	uint32		right = level->page.header.right;

	if (right == NVM_INDEX_NONE ||
		(level->page.header.flags & (NVM_INDEX_ROOT | NVM_INDEX_INCOMPLETE)) != 0)
		return false;
	delete_peek(index, cache, right, &level->right);
	if (level->right.header.left != level->page.blkno)
		return false;

	level->left.blkno = NVM_INDEX_NONE;
	if (left != NVM_INDEX_NONE)
	{
		delete_peek(index, cache, left, &level->left);
		if (level->left.header.right != level->page.blkno ||
			(level->left.header.flags & NVM_INDEX_INCOMPLETE) != 0)
			return false;
	}
	return true;
}

/*
 * Copy the parent of page `child`, of which this is the high key.  Returns
 * the place of its downlink, or -1 if it is not found.
 */
static int
delete_find_parent(Relation index, NvmIndexCache *cache, uint32 child,
				   uint32 level, IndexTuple highkey, NvmIndexCopy *parent)
{
	NvmIndexKey key;
	uint64		version;
	uint32		blkno;

	nvm_index_key_init(index, cache, highkey, &key);
	blkno = nvm_index_descend(index, cache, &key, level, &version, NULL);
	for (int pass = 0; pass < DELETE_PASS && blkno != NVM_INDEX_NONE; pass++)
	{
		nvm_index_copy(index, cache, blkno, parent);
		if (parent->level != level)
			break;
		for (int i = parent->first;
			 (parent->flags & NVM_INDEX_DELETED) == 0 && i < parent->nitems; i++)
		{
			if (BTreeTupleGetDownLink(NvmIndexCopyItem(parent, i)) == child)
				return i;
		}
		blkno = parent->right;
	}
	return -1;
}

/*
 * What the parent is to be: downlink number i leads to the right sibling.
 * False if that is not what its neighbour leads to.
 */
static bool
delete_form_parent(NvmIndexCache *cache, NvmIndexCopy *parent, int i, uint32 right,
				   DeletePlan *plan)
{
	IndexTuple *items = (IndexTuple *) palloc(parent->nitems * sizeof(IndexTuple));
	NvmIndexForm form;
	int			nitems = 0;

	if (BTreeTupleGetDownLink(NvmIndexCopyItem(parent, i + 1)) != right)
		return false;
	for (int k = 0; k < parent->nitems; k++)
	{
		if (k == i + 1)
			continue;
		items[nitems] = NvmIndexCopyItem(parent, k);
		if (k == i)
		{
			items[nitems] = CopyIndexTuple(items[nitems]);
			BTreeTupleSetDownLink(items[nitems], right);
		}
		nitems++;
	}
	plan->top.blkno = parent->blkno;
	plan->top.version = parent->version;
	form = (NvmIndexForm)
	{
		.blkno = parent->blkno,.left = parent->left,.right = parent->right,
			.level = parent->level,.flags = parent->flags,
			.items = items,.nitems = nitems
	};
	return nvm_index_form(plan->image.data, cache, &form);
}

/*
 * Find out what has to change for leaf to go.  False if it cannot go, or not
 * now.
 */
static bool
delete_plan(Relation index, NvmIndexCache *cache, NvmIndexCopy *leaf, DeletePlan *plan)
{
	NvmIndexCopy *child = leaf;

	plan->nlevels = 0;
	for (;;)
	{
		DeleteLevel *level = &plan->level[plan->nlevels];
		NvmIndexCopy *parent = (NvmIndexCopy *) palloc(sizeof(NvmIndexCopy));
		int			i;

		level->page.blkno = child->blkno;
		level->page.version = child->version;
		level->page.header = child->image.header;
		if (!delete_plan_siblings(index, cache, level))
			return false;
		plan->nlevels++;

		i = delete_find_parent(index, cache, child->blkno, child->level + 1,
							   NvmIndexCopyItem(child, 0), parent);
		if (i < 0)
			return false;
		if (i + 1 < parent->nitems)
			return delete_form_parent(cache, parent, i, child->right, plan);

		/*
		 * the last child takes the range's end with it, unless it is the only
		 * one
		 */
		if (i > parent->first || plan->nlevels == DELETE_LEVELS)
			return false;
		child = parent;
	}
}

/*
 * Lock all pages of the plan, children before parents, left before right.
 * Returns their number; 0, with none of them locked, if one has changed.
 */
static int
delete_lock(NvmIndexCache *cache, DeletePlan *plan, NvmIndexPage **locked)
{
	DeletePeek *want[3 * DELETE_LEVELS + 1];
	int			nwant = 0;
	int			n;

	for (int i = 0; i < plan->nlevels; i++)
	{
		if (plan->level[i].left.blkno != NVM_INDEX_NONE)
			want[nwant++] = &plan->level[i].left;
		want[nwant++] = &plan->level[i].page;
		want[nwant++] = &plan->level[i].right;
	}
	want[nwant++] = &plan->top;

	for (n = 0; n < nwant; n++)
	{
		locked[n] = nvm_index_page(cache->state, want[n]->blkno);
		if (nvm_index_lock(locked[n], want[n]->version))
			continue;
		while (n > 0)
			nvm_index_unlock(locked[--n], false);
		return 0;
	}
	return nwant;
}

/*
 * Do it.  False if any page has changed.
 */
static bool
delete_unlink(NvmIndexCache *cache, DeletePlan *plan)
{
	NvmIndexPage *locked[3 * DELETE_LEVELS + 1];
	NvmIndexChange change;
	uint64		safexid;
	int			nlocked;

	nvm_index_change_begin(&change, cache, 0);
	nlocked = delete_lock(cache, plan, locked);
	if (nlocked == 0 || !nvm_index_change_stands(&change))
	{
		while (nlocked > 0)
			nvm_index_unlock(locked[--nlocked], false);
		nvm_index_change_end(&change);
		return false;
	}

	/*
	 * A process that has read a link to the page did so before we locked the
	 * pages that have one.  So no snapshot of that process is newer than this
	 * xid.  Reading it without XidGenLock is fine where 64 bits are read at
	 * once.
	 */
	safexid = __atomic_load_n((uint64 *) &NvmXidVars->nextXid, __ATOMIC_SEQ_CST);

	for (int i = 0; i < plan->nlevels; i++)
	{
		DeleteLevel *level = &plan->level[i];
		NvmIndexPage *page = nvm_index_page(cache->state, level->page.blkno);
		NvmIndexPage *header = &level->page.header;

		header->safexid = safexid;
		header->flags |= NVM_INDEX_DELETED;
		nvm_index_change_add(&change, &page->safexid, &header->safexid,
							 offsetof(NvmIndexPage, nbase) - offsetof(NvmIndexPage, safexid));
		if (level->left.blkno != NVM_INDEX_NONE)
			nvm_index_change_add(&change,
								 &nvm_index_page(cache->state, level->left.blkno)->right,
								 &header->right, sizeof(uint32));
		nvm_index_change_add(&change,
							 &nvm_index_page(cache->state, level->right.blkno)->left,
							 &header->left, sizeof(uint32));
	}
	nvm_index_change_page(&change, nvm_index_page(cache->state, plan->top.blkno),
						  plan->image.data);
	nvm_index_change_apply(&change);
	while (nlocked > 0)
		nvm_index_unlock(locked[--nlocked], true);
	nvm_index_change_end(&change);
	NVM_FAILPOINT("btree-delete-unlinked");
	return true;
}

/*
 * May this page go, as far as it can tell itself?
 */
static bool
delete_wants(const NvmIndexCopy *leaf)
{
	return leaf->level == 0 && leaf->nitems == leaf->first &&
		leaf->right != NVM_INDEX_NONE &&
		(leaf->flags & NVM_INDEX_LIVE) != 0 &&
		(leaf->flags & (NVM_INDEX_ROOT | NVM_INDEX_INCOMPLETE | NVM_INDEX_DELETED)) == 0;
}

/*
 * See nvm_btree.h.  Called by VACUUM only, of which there is one at a time.
 */
bool
nvm_index_delete_page(Relation index, NvmIndexCache *cache, uint32 blkno)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "nvm_btree page deletion",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	NvmIndexCache own = *cache; /* descents may make an end of it */
	bool		done = false;

	for (int i = 0; i < DELETE_TRIES && !done; i++)
	{
		NvmIndexCopy *leaf = (NvmIndexCopy *) palloc(sizeof(NvmIndexCopy));
		DeletePlan *plan = (DeletePlan *) palloc(sizeof(DeletePlan));

		nvm_index_copy(index, &own, blkno, leaf);
		if (!delete_wants(leaf) || !delete_plan(index, &own, leaf, plan))
			break;
		PredicateLockPageSplit(index, blkno, leaf->right);
		NVM_FAILPOINT("btree-delete-planned");
		done = delete_unlink(&own, plan);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	return done;
}
