/*-------------------------------------------------------------------------
 *
 * nvm_btree_change.h
 *	  What insertion, cleaning, split and VACUUM want of each other.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_BTREE_CHANGE_H
#define NVM_BTREE_CHANGE_H

#include "btree/nvm_btree.h"

/* posting lists are not made larger: a page takes several */
#define NVM_INDEX_MAX_POSTING	(NVM_INDEX_MAX_ENTRY / 2 / 8 * 8)

/*
 * Give an empty index its root, a leaf.  May ERROR.
 */
extern void nvm_index_make_root(Relation index, NvmIndexCache *cache);

/* an entry for which there is no room on its leaf */
typedef struct NvmIndexWanted
{
	IndexTuple	newitem;
	bool		nullkey;		/* its key has a null, and nulls are distinct */
	bool		unchanged;		/* the executor says: the row had this key
								 * before */
	bool		equals;			/* the insertion has met equal keys in a
								 * unique index */
} NvmIndexWanted;

/*
 * Leaf blkno has no room for an entry: clean it, or split it.  The caller starts
 * again, whatever became of it.
 */
extern void nvm_index_make_room(Relation index, NvmIndexCache *cache, Relation heap,
								uint32 blkno, const NvmIndexWanted *wanted);

/*
 * Merge entries, sorted by key and first TID, so that they are strictly
 * ordered by (key, TID).  With `merge` those of equal keys are merged, else
 * those among which there is a posting list.  Memory of the current context.
 */
extern int	nvm_index_merge(Relation index, NvmIndexCache *cache, IndexTuple *items,
							int nitems, bool merge, IndexTuple **merged);

/* a page that is to be split */
typedef struct NvmIndexSplit
{
	const NvmIndexCopy *copy;
	IndexTuple *items;			/* the data entries it holds from now on,
								 * strictly ordered */
	int			nitems;
	IndexTuple	newitem;		/* of a leaf: the entry for which room is made */
	int			newpos;			/* so many items are below it; of an inner
								 * page: the item for which it is split */
} NvmIndexSplit;

/*
 * Split the leaf of a copy.  A single item has the other page to itself.  False,
 * and nothing done, if the page has changed.  Makes sure of the downlink.
 */
extern bool nvm_index_split(Relation index, NvmIndexCache *cache,
							const NvmIndexSplit *split);

/*
 * How many of the items go to the left: 1 .. nitems - 1 (btree_splitpoint.c).
 * ascending: what comes next will be greater.
 */
extern int	nvm_index_choose_split(Relation index, const NvmIndexSplit *split,
								   bool ascending);

#endif							/* NVM_BTREE_CHANGE_H */
