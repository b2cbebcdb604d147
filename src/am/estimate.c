/*-------------------------------------------------------------------------
 *
 * estimate.c
 *	  Sizes of a table, for the planner and others that ask.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "am/nvm_am.h"
#include "catalog/pg_am_d.h"
#include "pool/nvm_pool.h"
#include "row/nvm_relation.h"
#include "storage/bufpage.h"
#include "utils/rel.h"
#include "verify/nvm_verify_block.h"

/* heap's figures */
#define HEAP_TUPLE_OVERHEAD \
	(MAXALIGN(SizeofHeapTupleHeader) + sizeof(ItemIdData))
#define HEAP_PAGE_BYTES			(BLCKSZ - SizeOfPageHeaderData)

/* blocks, and versions in each, that are looked at to learn how long rows are */
#define SIZE_SAMPLE_BLOCKS		4
#define SIZE_SAMPLE_VERSIONS	16

/* what a scan passes besides the rows of a table: so many old versions cost a
 * page, up to so many in all.  That is cpu_tuple_cost for each, as PostgreSQL
 * has it */
#define OLD_VERSIONS_PER_PAGE	100
#define OLD_VERSIONS_MAX		1000

/* what rows take */
typedef struct RowSizes
{
	int			n;
	uint64		cells;			/* of n rows here */
	uint64		heap_bytes;		/* of n rows in a page of heap's */
	bool		equal;			/* all of them the same */
} RowSizes;

/*
 * Size in bytes.  There is no fork but the main one.  Its size is what scans
 * have to read.  Values kept outside the blocks are not counted; they are not
 * in heap's main fork either.
 */
uint64
nvm_relation_size(Relation rel, ForkNumber forkNumber)
{
	BlockNumber nblocks;

	if (forkNumber != MAIN_FORKNUM && forkNumber != InvalidForkNumber)
		return 0;
	nblocks = nvm_rel_nblocks(nvm_rel_reader(rel));
	nvm_analyze_size_asked(nblocks);	/* a large table's ANALYZE needs it */
	return (uint64) nblocks * BLCKSZ;
}

/*
 * Look at some versions of block blk.  Nothing is locked.  A version that is
 * freed or written meanwhile may count with a length that it no longer has,
 * or has not yet.
 */
static void
sample_block(NvmRelState *state, uint32 blk, int max, RowSizes *sizes)
{
	NvmBlock   *block = nvm_block(state, blk);
	uint32		cell = NVM_FIRST_CELL - 1;

	if (block->magic != NVM_BLOCK_MAGIC)
		return;
	while (max > 0 && (cell = nvm_block_next_start(block, cell + 1)) != 0)
	{
		NvmVersion *v = nvm_cell(state, blk, cell);
		uint32		len = v->len;
		uint32		heap_bytes;

		if (!nvm_begin_is_version(nvm_load(&v->begin)) || len > NVM_MAX_TUPLE)
			continue;
		/* heap would move more than that into a TOAST table */
		heap_bytes = MAXALIGN(Min(len, TOAST_TUPLE_TARGET)) + sizeof(ItemIdData);
		if (sizes->n > 0 && heap_bytes * (uint64) sizes->n != sizes->heap_bytes)
			sizes->equal = false;
		sizes->n++;
		sizes->cells += Max(NvmVersionCells(v), 1);
		sizes->heap_bytes += heap_bytes;
		max--;
	}
}

/*
 * The pages that the rows of nblocks blocks would fill in a heap.  *room: the
 * number of rows that the blocks have room for, 0 if that is not known.
 *
 * How full the blocks are is taken for granted, but for the last one; rows that
 * are dead count, as they would there.
 */
static BlockNumber
pages_in_heap(Relation rel, NvmRelState *state, BlockNumber nblocks, double *room)
{
	int			fillfactor = RelationGetFillFactor(rel, HEAP_DEFAULT_FILLFACTOR);
	double		heap_bytes = HEAP_PAGE_BYTES -
	RelationGetTargetPageFreeSpace(rel, HEAP_DEFAULT_FILLFACTOR);
	double		cells = NVM_BLOCK_CELLS * fillfactor / 100.0;
	RowSizes	sizes = {.equal = true};
	double		per_block;
	double		per_page;
	NvmBlock   *last;
	uint32		in_last = 0;

	if (nblocks <= SIZE_SAMPLE_BLOCKS)
	{
		for (uint32 blk = 0; blk < nblocks; blk++)
			sample_block(state, blk, NVM_CELLS, &sizes);
	}
	else
	{
		for (uint32 i = 0; i < SIZE_SAMPLE_BLOCKS; i++)
			sample_block(state, (uint64) (nblocks - 1) * i / SIZE_SAMPLE_BLOCKS,
						 SIZE_SAMPLE_VERSIONS, &sizes);
	}
	*room = 0;
	if (sizes.n == 0)
		return nblocks;

	/* insertion stops at the row that passes the fillfactor: nvm_space_alloc */
	per_block = cells * sizes.n / sizes.cells;
	per_page = heap_bytes * sizes.n / sizes.heap_bytes;
	if (sizes.equal)
	{
		per_block = fillfactor < 100 ? ceil(per_block) : floor(per_block);
		per_page = floor(per_page);
	}
	per_block = Max(per_block, 1);
	per_page = Min(Max(per_page, 1), MaxHeapTuplesPerPage);
	*room = nblocks * per_block;

	last = nvm_block(state, nblocks - 1);
	if (last->magic == NVM_BLOCK_MAGIC)
	{
		for (int i = 0; i < (int) lengthof(last->starts); i++)
			in_last += __builtin_popcountll(nvm_load(&last->starts[i]));
	}
	return (BlockNumber)
		Max(ceil(((nblocks - 1) * per_block + Min(in_last, per_block)) / per_page), 1);
}

/*
 * What a scan passes besides the rows, in pages, where there is room for `room`
 * of them.
 *
 * A table of some rows that are updated all the time has blocks for as many
 * old versions as its updates need, and soon fills them again when VACUUM has
 * been there.  A scan looks at each of these versions, while a scan of heap
 * has little to do with them on as many pages.  If nothing were counted for
 * that, an update by key would scan such a table where one of heap has long
 * gone over to the index.  A table may well leave half of the room empty:
 * roots that are stubs take that, or deleted rows did.
 *
 * To a large table it is nothing.
 */
static BlockNumber
pages_of_old_versions(double room, double tuples)
{
	return (BlockNumber)
		(Min(Max(room - 2 * tuples, 0), OLD_VERSIONS_MAX) / OLD_VERSIONS_PER_PAGE);
}

/*
 * Planner's estimate, by the same rules as heap's, the minimum of ten pages
 * for a table never vacuumed included.
 *
 * The planner's unit is what it costs to get a page of heap's from the
 * buffers and look at the rows on it.  A row here has a longer header, but
 * reading it costs no more, since nothing is pinned, locked or copied.  So a
 * table is as big as the same rows would be in heap, and gets the same plans.
 * A table that keeps many old versions for few rows is somewhat bigger.
 * pg_class keeps the blocks that there are.
 */
void
nvm_relation_estimate_size(Relation rel, int32 *attr_widths,
						   BlockNumber *pages, double *tuples,
						   double *allvisfrac)
{
	NvmRelState *state = nvm_rel_reader(rel);
	BlockNumber nblocks = nvm_rel_nblocks(state);
	BlockNumber heap_pages = 0;
	double		room = 0;
	bool		guess = rel->rd_rel->reltuples < 0 || rel->rd_rel->relpages == 0;

	table_block_relation_estimate_size(rel, attr_widths, pages, tuples,
									   allvisfrac, HEAP_TUPLE_OVERHEAD,
									   HEAP_PAGE_BYTES);
	if (nblocks > 0)
		heap_pages = pages_in_heap(rel, state, nblocks, &room);
	if (heap_pages < 10 && rel->rd_rel->reltuples < 0 &&
		!rel->rd_rel->relhassubclass)
		heap_pages = 10;

	/* ANALYZE leaves no relallvisible: see vacuum_note_visible */
	if (nblocks > 0)
		*allvisfrac = Min((double) nvm_dir_entry(state->dir)->all_visible / nblocks, 1.0);

	/*
	 * rows by the page are a guess about heap's pages; else blocks were
	 * counted
	 */
	if (guess && *pages > 0)
		*tuples = rint(*tuples / *pages * heap_pages);
	/* where no row is known of, all that is there may have come since */
	else if (!guess && rel->rd_rel->reltuples > 0)
		heap_pages += pages_of_old_versions(room, *tuples);
	*pages = heap_pages;
}

/*
 * Values of any size live in the pool.
 */
bool
nvm_relation_needs_toast_table(Relation rel)
{
	return false;
}

/*
 * The access method of a TOAST table, if something made one all the same.
 */
Oid
nvm_relation_toast_am(Relation rel)
{
	return HEAP_TABLE_AM_OID;
}

/*
 * Only TOAST tables of this access method could get here; there are none.
 */
void
nvm_relation_fetch_toast_slice(Relation toastrel, Oid valueid, int32 attrsize,
							   int32 sliceoffset, int32 slicelength,
							   struct varlena *result)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("relation \"%s\" of access method nvm cannot be a TOAST table",
					RelationGetRelationName(toastrel)),
			 errhint("Values of any size are kept in the nvm table itself.")));
}
