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
#include "postmaster/autovacuum.h"
#include "table/nvm_modify.h"
#include "utils/rel.h"

/*
 * A version was written in the first cell of block blk: ask for the range
 * before it, of each BRIN index that wants it.  An index that learns of no
 * entry in the block, because the version is an update of a row elsewhere, is
 * asked for as well: later rows of the block would not come here.
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
			blk % BrinGetPagesPerRange(index) == 0 &&
			!AutoVacuumRequestWork(AVW_BRINSummarizeRange, RelationGetRelid(index), blk - 1))
			ereport(LOG,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("request for BRIN range summarization for index \"%s\" page %u was not recorded",
							RelationGetRelationName(index), blk - 1)));
		index_close(index, RowExclusiveLock);
	}
	list_free(indexes);
}
