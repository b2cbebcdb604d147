/*-------------------------------------------------------------------------
 *
 * nvm_btree_scan.h
 *	  What the files of a scan share: its conditions, its place, and its part
 *	  in a parallel scan.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_BTREE_SCAN_H
#define NVM_BTREE_SCAN_H

#include "access/relscan.h"
#include "access/skey.h"
#include "btree/nvm_btree.h"
#include "compat/nvm_compat_indexam.h"
#include "pool/nvm_pool.h"

/* ---- conditions (btree_scankey.c) ---- */

#define NVM_COLUMN_DESC(index, col) \
	(((index)->rd_indoption[col] & INDOPTION_DESC) != 0)
#define NVM_COLUMN_NULLS_FIRST(index, col) \
	(((index)->rd_indoption[col] & INDOPTION_NULLS_FIRST) != 0)

/* the result of a comparison, in the order of a column that may be descending */
static inline int
nvm_order_flip(int cmp, bool desc)
{
	return desc ? -((cmp > 0) - (cmp < 0)) : cmp;
}

/* a comparison function of an operator family, looked up once for a scan */
typedef struct NvmScanProc
{
	struct NvmScanProc *next;
	Oid			opfamily;
	Oid			left;
	Oid			right;
	bool		exists;
	FmgrInfo	cmp;
} NvmScanProc;

/*
 * A condition that each entry is tested for, because it does not follow from
 * the bounds.
 */
typedef struct NvmScanTest
{
	ScanKey		key;			/* in scan->keyData */
	Datum		value;			/* not its argument: of an array with <, the
								 * greatest element */
	bool		is_array;		/* one of these will do: */
	Datum	   *elems;
	int			nelems;
	FmgrInfo   *cmp;			/* (column, element): elems are in order.
								 * NULL: they are not */
	bool		desc;			/* in descending order */
	bool		is_row;			/* key is the header of a row comparison; none
								 * of the rest counts */
} NvmScanTest;

/* a column whose value is one of several, in the order of the index */
typedef struct NvmScanArray
{
	int			part;			/* of the bounds */
	Datum	   *elems;
	int			nelems;
	int			cur;
} NvmScanArray;

/*
 * Entries that match lie between low and high, in the order of the index; a
 * bound without parts is none.  With arrays there is such a stretch for each
 * combination of their elements.  The last array turns fastest, and the
 * stretches follow each other in the order of the index.
 */
typedef struct NvmScanKeys
{
	bool		impossible;		/* nothing can match */
	NvmIndexKey low;			/* nextkey: > instead of >= */
	NvmIndexKey high;			/* nextkey: <= instead of < */
	int			ntests;
	NvmScanTest *tests;
	int			narrays;
	NvmScanArray *arrays;
	struct NvmScanCondition *conds; /* workspace */
	int			max_keys;		/* room in these three */
	MemoryContext context;		/* elements; reset by each preparation */
	MemoryContext procs_context;	/* lives as long as the scan */
	NvmScanProc *procs;
} NvmScanKeys;

extern void nvm_scankeys_init(NvmScanKeys *keys, IndexScanDesc scan, int nkeys);
extern void nvm_scankeys_end(NvmScanKeys *keys);

/* from scan->keyData; to be started */
extern void nvm_scankeys_prepare(NvmScanKeys *keys, IndexScanDesc scan);

/* ---- parts of bounds (btree_scanpart.c) ---- */

/*
 * The family's comparison of two types for column col (from 0), or NULL.
 */
extern FmgrInfo *nvm_scankeys_proc(NvmScanKeys *keys, int col, Oid left, Oid right);

/*
 * One more part of a bound, for the next column.  type is that of the value,
 * or the column's.
 */
extern void nvm_scankeys_add_part(NvmScanKeys *keys, NvmIndexKey *key, Oid type,
								  Datum value, bool isnull);

/*
 * Bring the elements of an array, integers of that type, to the width of a
 * column of kind `fast`.  False, and nothing done, if one does not fit.
 */
extern bool nvm_elements_take_width(Oid type, uint8 fast, Datum *elems, int nelems);

/* ---- combinations of elements, tests of entries (btree_scantest.c) ---- */

/* the first combination in a direction; the next one, false if there is none */
extern void nvm_scankeys_start(NvmScanKeys *keys, ScanDirection dir);
extern bool nvm_scankeys_advance(NvmScanKeys *keys, ScanDirection dir);

/* elements that are current, one for each array; and back to them */
extern void nvm_scankeys_save(const NvmScanKeys *keys, int *cur);
extern void nvm_scankeys_restore(NvmScanKeys *keys, const int *cur);

/* is value, compared by cmp, one of sorted elements? */
extern bool nvm_element_search(FmgrInfo *cmp, Oid collation, bool desc, Datum value,
							   const Datum *elems, int nelems);

/* does an entry, a private copy of it, meet all tests? */
extern bool nvm_scankeys_test(NvmScanKeys *keys, Relation index, IndexTuple itup);

/* ---- row comparisons (btree_rowcompare.c) ---- */

/* what a key asks for in the order of its column */
extern StrategyNumber nvm_rowcompare_strategy(ScanKey key, bool desc);

/*
 * A bound ends with what a row comparison says of its first column.  Let it go
 * on with the columns that follow both in the row and in the index.
 */
extern void nvm_rowcompare_extend(NvmScanKeys *keys, NvmIndexKey *key, bool is_low,
								  ScanKey header);

/* is the comparison true of an entry, a private copy of it? */
extern bool nvm_rowcompare_test(ScanKey header, Relation index, IndexTuple itup);

/* ---- bounds of a scan ---- */

/* has a scan in this direction left the stretch when it meets itup? */
static inline bool
nvm_scankeys_beyond(const NvmScanKeys *keys, ScanDirection dir, IndexTuple itup)
{
	int			cmp;

	if (ScanDirectionIsForward(dir))
	{
		if (keys->high.nparts == 0)
			return false;
		cmp = nvm_index_compare(&keys->high, itup);
		return keys->high.nextkey ? cmp < 0 : cmp <= 0;
	}
	if (keys->low.nparts == 0)
		return false;
	cmp = nvm_index_compare(&keys->low, itup);
	return keys->low.nextkey ? cmp >= 0 : cmp > 0;
}

/* ---- place (btree_scan.c) ---- */

typedef struct NvmScanEntry
{
	uint16		word;			/* order word */
	uint16		nitems;			/* rows that it leads to */
	uint16		nkilled;		/* of those */
} NvmScanEntry;

typedef struct NvmScanItem
{
	ItemPointerData tid;
	uint16		entry;			/* in entries[] */
	uint16		tuple;			/* in tuples, in units of 8 bytes */
	bool		killed;
} NvmScanItem;

/* what was found on a leaf, in the order of the index */
typedef struct NvmScanLeaf
{
	uint32		blkno;			/* NVM_INDEX_NONE: there is no leaf */
	uint32		left;
	uint32		right;
	uint32		epoch;
	bool		more_left;		/* there may be matches to the left */
	bool		more_right;
	int			index;			/* of the item that was returned last */
	int			nitems;
	int			nentries;
	int			nkilled;
	int			tuples_used;
	int			max_items;
	int			max_entries;
	NvmScanItem *items;
	NvmScanEntry *entries;
	char	   *tuples;			/* index-only scans */
} NvmScanLeaf;

typedef enum NvmScanStep
{
	NVM_SCAN_NEW,				/* keys are not prepared */
	NVM_SCAN_READY,				/* they are; at neither end */
	NVM_SCAN_INSIDE,			/* a combination is current, leaf is its place */
	NVM_SCAN_BEFORE,			/* before the first entry */
	NVM_SCAN_AFTER				/* behind the last one */
} NvmScanStep;

/* what nbtree has at this place is no such number */
#define NVM_SCAN_MAGIC		UINT64CONST(0xA1B57C3D5E9F2468)

typedef struct NvmScan
{
	uint64		magic;
	NvmScanStep step;
	MemoryContext context;		/* of everything here */
	NvmScanKeys keys;
	NvmScanLeaf leaf;
	NvmIndexCopy *copy;			/* workspace */
	uint64		combination;	/* parallel scan: how many there were before */

	bool		marked;
	bool		mark_here;		/* it is on the current leaf */
	int			mark_index;
	int		   *mark_elems;
	NvmScanLeaf mark;			/* unless mark_here */
} NvmScan;

extern void nvm_scan_is_foreign(IndexScanDesc scan) __attribute__((noreturn));

/*
 * The state of a scan.  ERROR if PostgreSQL's btree has begun the scan, before the
 * index got our routine (btree_identity.c).
 */
static inline NvmScan *
nvm_scan_state(IndexScanDesc scan)
{
	NvmScan    *so = (NvmScan *) scan->opaque;

	if (unlikely(so->magic != NVM_SCAN_MAGIC))
		nvm_scan_is_foreign(scan);
	return so;
}

/* ---- lanes of a call (btree_pin.c) ---- */

extern void nvm_btree_note_read(IndexScanDesc scan);

/* ---- one leaf (btree_scanleaf.c) ---- */

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

/*
 * Set up a reader on a copy of a leaf.  Takes its predicate lock first.
 */
extern void nvm_leaf_reader_copy(IndexScanDesc scan, NvmLeafReader *reader, uint32 blkno);

/*
 * Set up a reader in place, but for nitems.  False if the leaf is not that of
 * version.
 */
extern bool nvm_leaf_reader_in_place(NvmLeafReader *reader, NvmRelState *state,
									 uint32 blkno, uint64 version);

/* place of the first entry >= key (nextkey: > key) on a copy */
extern int	nvm_leaf_locate(const NvmIndexCopy *copy, const NvmIndexKey *key);

/*
 * Make a leaf the scan's, whether or not anything on it matches.  at_start:
 * pos is where the stretch begins, otherwise it comes in from the side.
 * False if the leaf has changed.
 */
extern bool nvm_leaf_read(IndexScanDesc scan, NvmLeafReader *reader, int pos,
						  bool at_start, ScanDirection dir);

/* mark those entries of the page of which all rows were dead to everybody */
extern void nvm_leaf_kill(IndexScanDesc scan, NvmScanLeaf *leaf);

/* an empty leaf may go: lock its right sibling, too; false if it has changed */
extern bool nvm_leaf_lock_behind_empty(IndexScanDesc scan, uint32 blkno, uint32 right,
									   uint64 version);

/* ---- parallel scan (btree_parallel.c) ---- */

typedef enum NvmParallelTurn
{
	NVM_PARALLEL_OVER,			/* this combination is finished */
	NVM_PARALLEL_FIRST,			/* descend */
	NVM_PARALLEL_NEXT			/* go on from the leaf that is given */
} NvmParallelTurn;

extern Size nvm_btree_estimateparallelscan(NVM_ESTIMATE_PARALLEL_ARGS);

/*
 * Wait for the right to read the next leaf of a combination.  Having been told
 * FIRST or NEXT, one must release or finish it.  *place: what was released.
 */
extern NvmParallelTurn nvm_parallel_seize(IndexScanDesc scan, uint64 combination,
										  uint32 *place);
extern void nvm_parallel_release(IndexScanDesc scan, uint32 place);
extern void nvm_parallel_finish(IndexScanDesc scan, uint64 combination);

#endif							/* NVM_BTREE_SCAN_H */
