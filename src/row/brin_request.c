/*-------------------------------------------------------------------------
 *
 * brin_request.c
 *	  Autosummarize: ask autovacuum to summarize the BRIN range that is full.
 *
 * BRIN itself asks when it is given the first TID of a range's first block,
 * which it knows by its offset number, 1.  Ours begin at NVM_FIRST_CELL, so
 * that it never would.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/brin.h"
#include "access/genam.h"
#include "catalog/pg_am_d.h"
#include "compat/nvm_compat_brin.h"
#include "postmaster/autovacuum.h"
#include "row/nvm_modify.h"
#include "utils/rel.h"

/*
 * Has the range that block blk is in a summary, or is it about to get one?
 */
static bool
range_is_summarized(Relation index, BlockNumber blk)
{
	BlockNumber pages_per_range;
	BrinRevmap *revmap = NvmBrinRevmap(index, &pages_per_range);
	Buffer		buf = InvalidBuffer;
	OffsetNumber off;
	bool		found = NvmBrinRangeTuple(revmap, blk, &buf, &off) != NULL;

	if (found)
		LockBuffer(buf, BUFFER_LOCK_UNLOCK);
	if (BufferIsValid(buf))
		ReleaseBuffer(buf);
	brinRevmapTerminate(revmap);
	return found;
}

/*
 * A version was written in the first cell of block blk: ask for the range
 * before it, of each BRIN index that wants it, unless it is summarized.  The
 * version may be an update of a row elsewhere, so that an index learns of no
 * entry in the block.  Its range is asked for as well, because later rows of
 * the block would not come here.  An index that is not built yet has no
 * ranges.
 *
 * Opens indexes, so that no NvmRelCache survives it, and no lock may be held.
 * A request that finds no room in autovacuum's list is lost, as in heap.
 */
void
nvm_brin_request(Relation rel, uint32 blk)
{
	List	   *indexes;
	ListCell   *cell;

	if (blk == 0 || !rel->rd_rel->relhasindex || RelationUsesLocalBuffers(rel))
		return;

	indexes = RelationGetIndexList(rel);
	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), RowExclusiveLock);

		if (index->rd_rel->relam == BRIN_AM_OID && BrinGetAutoSummarize(index) &&
			index->rd_index->indisready &&
			blk % BrinGetPagesPerRange(index) == 0 &&
			!range_is_summarized(index, blk - 1) &&
			!AutoVacuumRequestWork(AVW_BRINSummarizeRange, RelationGetRelid(index), blk - 1))
			ereport(LOG,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("request for BRIN range summarization for index \"%s\" page %u was not recorded",
							RelationGetRelationName(index), blk - 1)));
		index_close(index, RowExclusiveLock);
	}
	list_free(indexes);
}
