/*-------------------------------------------------------------------------
 *
 * check.c
 *	  nvm.check(): is a table's storage sound?  And its indexes (btree_check.c)?
 *
 * Each block is read without locks first.  Only if something looks wrong it is
 * read again under the block's row lock and allocation lock.  So a change in
 * progress is not reported, and a busy table is not held up.  The rules for a
 * block are in verify_block.c.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/table.h"
#include "btree/nvm_btree.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "commands/defrem.h"
#include "func/nvm_block_readers.h"
#include "func/nvm_check_brin.h"
#include "func/nvm_stat_row.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pool/nvm_allvisible.h"
#include "pool/nvm_pool.h"
#include "row/nvm_check.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_locks.h"
#include "storage/nvm_allvisible_set.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_block.h"

PG_FUNCTION_INFO_V1(nvm_check);

/*
 * Check the two bits of a block.  Index-only scans do not look at rows of a
 * block that is noted as visible to all; sequential scans look at no row of a
 * barren one.  Caller may hold the block's locks.  Damaged parts are not
 * looked at again: a stamp that nobody had is an error to a process that asks
 * for its fate.
 */
static void
check_allvisible(NvmCheck *check, uint32 blk)
{
	if (nvm_allvisible(check->state, blk) &&
		!nvm_block_is_everybodys(check->state, blk, false))
		nvm_check_report(check, blk, 0, "block is noted as visible to all transactions, but is not");
	if (check->problems == NIL && nvm_barren(check->state, blk) &&
		!nvm_block_is_barren(check->state, blk, GlobalVisTestFor(check->rel), false))
		nvm_check_report(check, blk, 0, "block is noted as one without visible rows, but has some");
}

/*
 * No index entry leads to the clean run of the directory: so no root is there.  Who puts one
 * there takes the block from the run first.  What VACUUM has offered is yet to be proved.
 */
static void
check_clean_run(NvmCheck *check, uint32 blk)
{
	NvmBlock   *block = nvm_block(check->state, blk);
	uint64		run = nvm_clean_durable(check->state->dir);
	uint32		off = NVM_FIRST_CELL - 1;

	if (blk < NVM_CLEAN_FIRST(run) || blk >= NVM_CLEAN_END(run) ||
		block->magic != NVM_BLOCK_MAGIC)
		return;
	while ((off = nvm_block_next_start(block, off + 1)) != 0)
	{
		NvmVersion *v = nvm_cell(check->state, blk, off);
		uint64		begin = nvm_load(&v->begin);

		if (nvm_begin_is(begin, NVM_STAMP_STUB) || nvm_begin_is(begin, NVM_STAMP_DEAD) ||
			(begin != 0 && !nvm_begin_is(begin, NVM_STAMP_RETIRED) &&
			 (v->flags & NVM_VF_ROOT) != 0))
		{
			nvm_check_report(check, blk, off, "a row is in a block of the clean run, which has none");
			return;
		}
	}
}

/*
 * One block; again under locks if anything is found.
 */
static void
check_block_twice(NvmCheck *check, uint32 blk)
{
	ListCell   *lc;

	nvm_verify_block(&check->block, nvm_block(check->state, blk), blk);
	nvm_check_unwritten(check, blk);
	check_allvisible(check, blk);
	check_clean_run(check, blk);
	if (check->problems != NIL)
	{
		LWLock	   *row_lock = nvm_row_lock(check->block.dir, blk);
		LWLock	   *alloc_lock = nvm_alloc_lock(check->block.dir, blk);

		MemoryContextReset(check->cxt);
		check->problems = NIL;
		check->large = NIL;
		LWLockAcquire(row_lock, LW_SHARED);
		LWLockAcquire(alloc_lock, LW_SHARED);
		nvm_verify_block(&check->block, nvm_block(check->state, blk), blk);
		nvm_check_unwritten(check, blk);
		check_allvisible(check, blk);
		check_clean_run(check, blk);
		LWLockRelease(alloc_lock);
		LWLockRelease(row_lock);
	}
	foreach(lc, check->large)
	{
		CHECK_FOR_INTERRUPTS();
		nvm_check_large(check, (NvmCheckLarge *) lfirst(lc), true);
	}
}

/*
 * A row of the result.
 */
static void
check_put(ReturnSetInfo *rsinfo, bool has_blk, uint32 blk, uint32 off,
		  const char *problem)
{
	NvmStatRow	row = {0};

	nvm_stat_datum_if(&row, has_blk, Int64GetDatum((int64) blk));
	nvm_stat_datum_if(&row, off != 0, Int32GetDatum((int32) off));
	nvm_stat_text(&row, problem);
	nvm_stat_put(rsinfo, &row);
}

/*
 * Move the findings to the result.
 */
static void
check_flush(NvmCheck *check, ReturnSetInfo *rsinfo)
{
	ListCell   *lc;

	foreach(lc, check->problems)
	{
		NvmCheckProblem *p = (NvmCheckProblem *) lfirst(lc);

		check_put(rsinfo, true, p->blk, p->off, p->text);
	}
	check->problems = NIL;
	check->large = NIL;
	MemoryContextReset(check->cxt);
}

/*
 * A user who was granted the function must be allowed to read the table, too.
 */
static void
check_may_read(Relation rel)
{
	if (pg_class_aclcheck(RelationGetRelid(rel), GetUserId(), ACL_SELECT) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV,
					   get_relkind_objtype(rel->rd_rel->relkind),
					   RelationGetRelationName(rel));
}

static Relation
check_open(Oid relid)
{
	Relation	rel = relation_open(relid, AccessShareLock);

	if (!nvm_relation_is_nvm(rel))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a table of access method nvm",
						RelationGetRelationName(rel)),
				 rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ?
				 errhint("Check its partitions.") : 0));
	check_may_read(rel);
	return rel;
}

/* where the findings of an index go */
typedef struct CheckIndexArg
{
	ReturnSetInfo *rsinfo;
	const char *name;			/* NULL: the index is what was asked about */
} CheckIndexArg;

static void
check_index_emit(void *arg, uint32 blkno, int item, const char *problem)
{
	CheckIndexArg *to = (CheckIndexArg *) arg;

	if (to->name == NULL)
		check_put(to->rsinfo, true, blkno, item, problem);
	else
		check_put(to->rsinfo, false, 0, 0,
				  item == 0 ? psprintf("index \"%s\", block %u: %s", to->name, blkno, problem) :
				  psprintf("index \"%s\", block %u, entry %d: %s", to->name, blkno, item, problem));
}

static void
check_brin_emit(void *arg, BlockNumber range, const char *problem)
{
	CheckIndexArg *to = (CheckIndexArg *) arg;

	if (to->name == NULL)
		check_put(to->rsinfo, true, range, 0, problem);
	else
		check_put(to->rsinfo, false, 0, 0,
				  psprintf("index \"%s\", range of block %u: %s", to->name, range, problem));
}

/*
 * Check the entries of a valid index of another method against the rows.  Only
 * BRIN's can be checked.  The others are named, so that nobody takes silence
 * for an answer.
 */
static void
check_others_index(Relation index, Relation heap, CheckIndexArg *arg)
{
	if (index->rd_rel->relam == BRIN_AM_OID)
		nvm_check_brin(index, heap, check_brin_emit, arg);
	else
		ereport(NOTICE,
				(errmsg("rows are not held against index \"%s\" of access method \"%s\"",
						arg->name, get_am_name(index->rd_rel->relam))));
}

/*
 * ERROR: the user asked about an index of a method that cannot be checked.  If
 * its table can be, the hint says so.
 */
static void
check_wrong_index(Relation index, Relation heap)
{
	bool		brin = nvm_relation_is_nvm(heap) && index->rd_rel->relam == BRIN_AM_OID;

	ereport(ERROR,
			(errcode(ERRCODE_WRONG_OBJECT_TYPE),
			 errmsg("\"%s\" is not an index in the NVM pool",
					RelationGetRelationName(index)),
			 brin ? errhint("Hold the rows of table \"%s\" against it: heapallindexed => true.",
							RelationGetRelationName(heap)) :
			 nvm_relation_is_nvm(heap) ? errhint("Check its table \"%s\".",
												 RelationGetRelationName(heap)) : 0));
}

/*
 * Check one index that the user asked about: one of ours, or with
 * heapallindexed one of BRIN's.  Of a BRIN index nothing else is checked.
 */
static void
check_index(Oid indexid, bool heapallindexed, ReturnSetInfo *rsinfo)
{
	CheckIndexArg arg = {rsinfo, NULL};
	Oid			heapid = IndexGetRelation(indexid, false);
	Relation	heap = table_open(heapid, AccessShareLock);
	Relation	index = index_open(indexid, AccessShareLock);
	bool		brin = index->rd_rel->relam == BRIN_AM_OID && nvm_relation_is_nvm(heap);

	check_may_read(heap);
	if (!nvm_relation_is_btree(index) && !(brin && heapallindexed))
		check_wrong_index(index, heap);
	if (!index->rd_index->indisready || (heapallindexed && !index->rd_index->indisvalid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is not valid", RelationGetRelationName(index)),
				 errhint("REINDEX or drop it.")));
	if (brin)
		nvm_check_brin(index, heap, check_brin_emit, &arg);
	else
		nvm_btree_check(index, heap, heapallindexed, check_index_emit, &arg);
	index_close(index, AccessShareLock);
	table_close(heap, AccessShareLock);
}

/* the first finding of an index; others are not kept */
static void
check_first_emit(void *arg, uint32 blkno, int item, const char *problem)
{
	char	  **first = (char **) arg;

	if (*first == NULL)
		*first = item == 0 ? psprintf("Block %u: %s.", blkno, problem) :
			psprintf("Block %u, entry %d: %s.", blkno, item, problem);
}

/*
 * See nvm_block_readers.h.  Caller has opened both and holds locks.
 */
void
nvm_check_index_or_fail(Relation index, Relation heap, bool heapallindexed)
{
	char	   *first = NULL;

	nvm_btree_check(index, heap, heapallindexed, check_first_emit, &first);
	if (first != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("index \"%s\" of an nvm table is damaged",
						RelationGetRelationName(index)),
				 errdetail_internal("%s", first),
				 errhint("nvm.check() shows all problems. REINDEX builds the index anew.")));
}

/*
 * The indexes of a table, as far as they are finished: ours, and with heapallindexed
 * BRIN's.
 */
static void
check_indexes(Relation rel, bool heapallindexed, ReturnSetInfo *rsinfo)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		CheckIndexArg arg = {rsinfo, RelationGetRelationName(index)};

		if (nvm_relation_is_btree(index) && index->rd_index->indisready)
			nvm_btree_check(index, rel, heapallindexed && index->rd_index->indisvalid,
							check_index_emit, &arg);
		else if (heapallindexed && index->rd_index->indisvalid && !nvm_relation_is_btree(index))
			check_others_index(index, rel, &arg);
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
}

Datum
nvm_check(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	bool		heapallindexed = PG_GETARG_BOOL(1);
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	char		relkind = get_rel_relkind(relid);
	Relation	rel;
	NvmCheck	check;
	bool		damaged = false;

	InitMaterializedSRF(fcinfo, 0);
	if (relkind == RELKIND_INDEX)
	{
		check_index(relid, heapallindexed, rsinfo);
		return (Datum) 0;
	}

	rel = check_open(relid);
	nvm_check_begin(&check, rel, nvm_rel(rel),
					AllocSetContextCreate(CurrentMemoryContext, "nvm check",
										  ALLOCSET_DEFAULT_SIZES));

	for (uint32 blk = 0; blk < check.nblocks; blk++)
	{
		CHECK_FOR_INTERRUPTS();
		check_block_twice(&check, blk);
		if (check.problems != NIL)
			damaged = true;
		if (check.problems != NIL || check.large != NIL)
			check_flush(&check, rsinfo);
	}
	nvm_check_large_orphans(&check);
	check_flush(&check, rsinfo);

	/* to read the rows of all blocks would end in an error */
	if (damaged && heapallindexed)
		check_put(rsinfo, false, 0, 0, "the rows are not held against the indexes, since blocks are damaged");
	check_indexes(rel, heapallindexed && !damaged, rsinfo);

	MemoryContextDelete(check.cxt);
	relation_close(rel, AccessShareLock);
	return (Datum) 0;
}
