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

/*
 * Leaf blkno has no room for newitem: clean it, or split it.  nullkey: its key
 * is unique whatever it equals, because of a null; unchanged: the executor says
 * that the row had the same key before; equals: the insertion has met equal
 * keys in a unique index.  The caller starts again, whatever
 * became of it.
 */
extern void nvm_index_make_room(Relation index, NvmIndexCache *cache, Relation heap,
								uint32 blkno, IndexTuple newitem, bool nullkey,
								bool unchanged, bool equals);

/*
 * Merge entries, sorted by key and first TID, so that they are strictly
 * ordered by (key, TID): those of equal keys if `merge`, else those among
 * which there is a posting list.  Memory of the current context.
 */
extern int	nvm_index_merge(Relation index, NvmIndexCache *cache, IndexTuple *items,
							int nitems, bool merge, IndexTuple **merged);

/*
 * Split the leaf of a copy, which holds these data items from now on, strictly
 * ordered.  newpos: so many of them are below the entry for which room is
 * made (newitem), if there is one; a single item then has the other page to
 * itself.  False, and nothing done, if the page has changed.  Makes sure of the
 * downlink.
 */
extern bool nvm_index_split(Relation index, NvmIndexCache *cache, const NvmIndexCopy *copy,
							IndexTuple *items, int nitems, IndexTuple newitem, int newpos);

/*
 * How many of the items go to the left: 1 .. nitems - 1 (btree_splitpoint.c).
 * On an inner page item newpos is the one for which it is split.  ascending:
 * what comes next will be greater.
 */
extern int	nvm_index_choose_split(Relation index, const NvmIndexCopy *copy,
								   IndexTuple *items, int nitems,
								   IndexTuple newitem, int newpos, bool ascending);

#endif							/* NVM_BTREE_CHANGE_H */
