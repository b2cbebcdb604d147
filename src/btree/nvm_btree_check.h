/*-------------------------------------------------------------------------
 *
 * nvm_btree_check.h
 *	  What the files of the index checker share.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_BTREE_CHECK_H
#define NVM_BTREE_CHECK_H

#include "btree/nvm_btree.h"
#include "executor/executor.h"
#include "lib/bloomfilter.h"
#include "nodes/pg_list.h"
#include "verify/nvm_verify_index.h"

typedef struct IndexCheck
{
	NvmIndexVerify verify;		/* first: what verify/ knows of it */
	Relation	index;
	Relation	heap;
	NvmIndexCache cache;		/* a copy: the index's may go away */
	int			natts;
	int			nkeys;
	bool		locked;			/* nobody changes the index */
	List	   *findings;		/* of IndexFinding */

	/* of one pass over the pages */
	uint32		nblocks;
	uint8	   *seen;			/* a bit for each block */
	bool		broken;			/* some pages could not be read or reached */
	MemoryContext page_context; /* of one level: copies of pages */
	MemoryContext item_context; /* of the entries of one page */

	/* heapallindexed; filter is NULL if not wanted */
	Snapshot	snapshot;
	bloom_filter *filter;
	IndexInfo  *info;
	EState	   *estate;
	ExprState  *predicate;
	TupleTableSlot *slot;
	IndexFetchTableData *fetch;

	/*
	 * of a unique index: the last entry that leads to a visible row, and the
	 * row
	 */
	bool		unique;
	IndexTuple	visible;
	ItemPointerData visible_tid;
} IndexCheck;

typedef struct IndexFinding
{
	uint32		blkno;
	int			item;			/* from 1; 0: the page */
	char	   *problem;
} IndexFinding;

/* btree_check.c */
extern void nvm_index_check_report(IndexCheck *check, uint32 blkno, int item,
								   const char *fmt,...) pg_attribute_printf(4, 5);

/* btree_check_page.c */

/* the bytes of a page, before anybody relies on them; false if they make no sense */
extern bool nvm_index_check_image(IndexCheck *check, uint32 blkno);

/* entries of a page in its place: kinds, order, bounds; low is its strict lower
 * bound, or NULL */
extern void nvm_index_check_items(IndexCheck *check, NvmIndexCopy *copy, IndexTuple low);

/* do two pivots separate at the same place? */
extern bool nvm_index_check_same_pivot(IndexCheck *check, IndexTuple a, IndexTuple b);

/* btree_check_heap.c */
extern void nvm_index_check_heap_begin(IndexCheck *check);
extern void nvm_index_check_heap_pass(IndexCheck *check);
extern void nvm_index_check_heap_entry(IndexCheck *check, uint32 blkno, int item, IndexTuple itup);
extern void nvm_index_check_heap_rows(IndexCheck *check);
extern void nvm_index_check_heap_end(IndexCheck *check);

#endif							/* NVM_BTREE_CHECK_H */
