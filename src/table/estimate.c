/*-------------------------------------------------------------------------
 *
 * estimate.c
 *	  Sizes of a table, for the planner and for everybody who asks.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_am_d.h"
#include "storage/bufpage.h"
#include "table/nvm_am.h"
#include "table/nvm_table.h"

/*
 * What a row costs beside its data: the version header, the tuple header, and
 * on average half a cell that is lost to rounding.
 */
#define NVM_TUPLE_OVERHEAD \
	(NVM_VERSION_HEADER + MAXALIGN(SizeofHeapTupleHeader) + NVM_CELL_SIZE / 2)

/* heap's figures */
#define HEAP_TUPLE_OVERHEAD \
	(MAXALIGN(SizeofHeapTupleHeader) + sizeof(ItemIdData))
#define HEAP_PAGE_BYTES			(BLCKSZ - SizeOfPageHeaderData)

/*
 * Size in bytes.  There is no fork but the main one; its size is what scans
 * have to read, values kept outside the blocks not counted (they are not in
 * heap's main fork either).
 */
uint64
nvm_relation_size(Relation rel, ForkNumber forkNumber)
{
	BlockNumber nblocks;

	if (forkNumber != MAIN_FORKNUM && forkNumber != InvalidForkNumber)
		return 0;
	nvm_block_readers_refuse(rel);
	nblocks = nvm_rel_nblocks(nvm_rel_reader(rel));
	nvm_analyze_size_asked(nblocks);	/* a large table's ANALYZE needs it */
	return (uint64) nblocks * BLCKSZ;
}

/*
 * Planner's estimate, by the same rules as heap's, the minimum of ten pages
 * for a table never vacuumed included.
 *
 * Where those ten pages are what counts, their rows are a pure guess about the
 * table's future.  We make the same one as heap, so that a new table does not
 * get other plans because of its access method.
 */
void
nvm_relation_estimate_size(Relation rel, int32 *attr_widths,
						   BlockNumber *pages, double *tuples,
						   double *allvisfrac)
{
	bool		guess = rel->rd_rel->reltuples < 0 &&
		!rel->rd_rel->relhassubclass && nvm_rel_nblocks(nvm_rel_reader(rel)) < 10;

	table_block_relation_estimate_size(rel, attr_widths, pages, tuples,
									   allvisfrac,
									   guess ? HEAP_TUPLE_OVERHEAD : NVM_TUPLE_OVERHEAD,
									   guess ? HEAP_PAGE_BYTES : NVM_MAX_AREA);
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
