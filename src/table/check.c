/*-------------------------------------------------------------------------
 *
 * check.c
 *	  nvm.check(): is a table's storage sound?  And its indexes (btree_check.c)?
 *
 * Each block is read without locks first.  Only if something looks wrong it
 * is read again under the block's row lock and allocation lock, so that a
 * change in progress is not reported and a busy table is not held up.
 *
 * Versions whose begin stamp is in a gap are passed over: a crash may have
 * left anything of them, and the collector is on its way.
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
#include "catalog/pg_class.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "table/nvm_allvisible_set.h"
#include "table/nvm_am.h"
#include "table/nvm_check.h"
#include "table/nvm_space.h"
#include "table/nvm_table.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

PG_FUNCTION_INFO_V1(nvm_check);

/*
 * Note a problem; off 0 means the block as a whole.
 */
void
nvm_check_report(NvmCheck *check, uint32 blk, uint32 off, const char *fmt,...)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(check->cxt);
	NvmCheckProblem *p = (NvmCheckProblem *) palloc(sizeof(NvmCheckProblem));
	char		buf[512];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(buf, sizeof(buf), fmt, args);
	va_end(args);

	p->blk = blk;
	p->off = off;
	p->text = pstrdup(buf);
	check->problems = lappend(check->problems, p);
	MemoryContextSwitchTo(oldcontext);
}

static inline bool
check_bit(const uint64 *bits, uint32 cell)
{
	return (nvm_load(&bits[cell / 64]) >> (cell % 64)) & 1;
}

/*
 * Has this stamp been handed out?
 */
static bool
check_stamp(NvmCheck *check, uint32 blk, uint32 off, const char *which,
			uint64 stamp)
{
	uint32		slot = NVM_STAMP_SLOT(stamp);

	if (slot >= NVM_MAX_SLOTS || slot >= pg_atomic_read_u32(&NvmWbl->slots_used))
	{
		nvm_check_report(check, blk, off, "%s stamp names commit slot %u, which was never used",
						 which, slot);
		return false;
	}
	/* one transaction at a time runs in a slot */
	if (NVM_STAMP_COUNTER(stamp) >
		pg_atomic_read_u64(&nvm_slots[slot].durable) + 1)
	{
		nvm_check_report(check, blk, off,
						 "%s stamp " UINT64_FORMAT " of commit slot %u was never handed out",
						 which, (uint64) NVM_STAMP_COUNTER(stamp), slot);
		return false;
	}
	return true;
}

/*
 * Header of a block.  Returns false if the rest makes no sense.
 */
static bool
check_header(NvmCheck *check, NvmBlock *block, uint32 blk)
{
	if (block->magic == 0)
	{
		const char *bytes = (const char *) block;

		for (int i = 0; i < NVM_BLOCK_HEADER_SIZE; i++)
		{
			if (bytes[i] != 0)
			{
				nvm_check_report(check, blk, 0, "block has no magic number, but is not empty");
				break;
			}
		}
		return false;
	}
	if (block->magic != NVM_BLOCK_MAGIC)
	{
		nvm_check_report(check, blk, 0, "wrong magic number %08x", block->magic);
		return false;
	}
	if (block->dir != check->dir || block->blkno != blk)
	{
		nvm_check_report(check, blk, 0, "block says that it is block %u of storage %u",
						 block->blkno, block->dir);
		return false;
	}
	if (block->check != nvm_block_check(block, check->dir, blk))
		nvm_check_report(check, blk, 0, "wrong checksum in the block's header");
	if ((block->flags & ~NVM_BLOCK_SUSPECT) != 0)
		nvm_check_report(check, blk, 0, "unknown flags %04x", block->flags);
	if (block->alloc_inc == 0 || block->alloc_inc > NvmPool->incarnation)
		nvm_check_report(check, blk, 0, "incarnation %u is in the future",
						 block->alloc_inc);
	return true;
}

/*
 * What the used bits say beside the areas, which cover `covered`.  They are
 * exact while the incarnation runs that last handed out cells of the block.
 * Later they are the evidence for a starts bit that was lost; what a crash may
 * have left is passed over.
 */
static void
check_used(NvmCheck *check, NvmBlock *block, uint32 blk, const uint64 *covered)
{
	bool		exact = block->alloc_inc == NvmPool->incarnation;
	uint32		cell = NVM_FIRST_CELL;

	while (cell < NVM_CELLS)
	{
		bool		is_covered = check_bit(covered, cell);
		uint32		end = cell + 1;

		if (check_bit(block->used, cell) == is_covered)
		{
			cell++;
			continue;
		}
		while (end < NVM_CELLS && check_bit(covered, end) == is_covered &&
			   check_bit(block->used, end) != is_covered)
			end++;
		if (is_covered && exact)
			nvm_check_report(check, blk, cell, "cells %u to %u belong to a version, but are not marked as used",
							 cell, end - 1);
		else if (!is_covered && (exact || nvm_block_lost_area(block, cell)))
			nvm_check_report(check, blk, cell, "cells %u to %u are in use, but belong to no version",
							 cell, end - 1);
		cell = end;
	}
}

/*
 * Areas do not overlap, and the bitmaps agree with them.  Of a block that was
 * not yet used in this incarnation nothing is promised about free cells.
 */
static void
check_areas(NvmCheck *check, NvmBlock *block, uint32 blk)
{
	bool		sane = block->alloc_inc == NvmPool->incarnation;
	uint64		covered[4] = {0, 0, 0, 0};
	uint32		cell;
	uint32		last = 0;
	uint32		end = NVM_FIRST_CELL;

	for (cell = 0; cell < NVM_FIRST_CELL; cell++)
	{
		if (check_bit(block->starts, cell))
			nvm_check_report(check, blk, 0, "a version starts in the block's header");
	}

	for (cell = NVM_FIRST_CELL; cell < NVM_CELLS; cell++)
	{
		NvmVersion *v = nvm_cell(check->state, blk, cell);

		if (check_bit(block->starts, cell))
		{
			uint32		ncells = NvmVersionCells(v);
			uint64		begin = nvm_load(&v->begin);

			if (cell < end)
				nvm_check_report(check, blk, cell, "area overlaps the one before it, which begins at %u and ends at %u",
								 last, end - 1);

			/*
			 * Handed out when a crash came, and not written: its length is that
			 * of whatever was there before.  Sanitizing gives the cells back.
			 */
			if (begin == 0 && nvm_incarnation_crashed(block->alloc_inc))
				ncells = 1;
			else if (ncells == 0 || cell + ncells > NVM_CELLS)
				nvm_check_report(check, blk, cell, "area of %u cells does not fit", ncells);
			last = cell;
			end = Max(end, Min(cell + ncells, NVM_CELLS));
		}
		if (cell < end)
			covered[cell / 64] |= UINT64CONST(1) << (cell % 64);
		else if (sane && !check_bit(block->used, cell) && nvm_load(&v->begin) != 0)
			nvm_check_report(check, blk, cell, "free cell is not zero");
	}
	check_used(check, block, blk, covered);
}

/*
 * One version that exists.
 */
static void
check_version(NvmCheck *check, NvmVersion *v, uint64 begin, uint32 blk,
			  uint32 off)
{
	uint64		end = nvm_load(&v->end);
	uint64		next = nvm_load(&v->next);
	uint64		root = nvm_version_root(v);
	bool		is_root = (v->flags & NVM_VF_ROOT) != 0;

	if (!check_stamp(check, blk, off, "begin", begin))
		return;
	if (end != 0)
	{
		if (NVM_STAMP_IS_SPECIAL(end))
			nvm_check_report(check, blk, off, "end is not a stamp");
		else
			(void) check_stamp(check, blk, off, "end", end);
	}
	if ((v->flags & ~(NVM_VF_ROOT | NVM_VF_NOINDEX | NVM_VF_LARGE)) != 0)
		nvm_check_report(check, blk, off, "unknown flags %04x", v->flags);
	if (NvmVersionCells(v) < 2 || v->len < SizeofHeapTupleHeader ||
		NVM_VERSION_HEADER + v->len > NvmVersionCells(v) * NVM_CELL_SIZE)
	{
		nvm_check_report(check, blk, off, "length %u does not fit %u cells",
						 v->len, NvmVersionCells(v));
		return;
	}
	if (v->crc != nvm_version_crc(v))
	{
		nvm_check_report(check, blk, off, "wrong checksum");
		return;
	}
	if (is_root != (root == NVM_REF_MAKE(blk, off, 0)))
		nvm_check_report(check, blk, off, "version says that its root is (%u,%u)",
						 NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
	else if (!is_root &&
			 !nvm_tid_exists(check->state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root)))
		nvm_check_report(check, blk, off, "its root (%u,%u) does not exist",
						 NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
	if (NVM_REF_IS_VALID(next) &&
		(NVM_REF_BLOCK(next) >= check->nblocks || NVM_REF_OFFSET(next) >= NVM_CELLS) &&
		end != 0 && !nvm_stamp_in_gap(end) &&
		NVM_REF_BLOCK(next) >= nvm_rel_nblocks(check->state))
		nvm_check_report(check, blk, off, "next version (%u,%u) is beyond the end of the table",
						 NVM_REF_BLOCK(next), NVM_REF_OFFSET(next));

	nvm_check_tuple(check, v, begin, blk, off);
}

/* a step of check_chain: may next be followed? */
static bool
check_follows(uint64 begin, uint64 end)
{
	if (!nvm_begin_is_version(begin))
		return true;			/* a stub, or unlinked */
	return end != 0 && !nvm_stamp_in_gap(end);
}

/*
 * Is this the newest version of a row because a transaction made it that the
 * gap collector has yet to take back, or is about to?
 */
static bool
check_leads_to_gap(NvmCheck *check, uint64 ref)
{
	uint64		begin = nvm_tid_begin(check->state, NVM_REF_BLOCK(ref),
									  NVM_REF_OFFSET(ref));

	return pg_atomic_read_u32(&NvmWbl->ngaps) > 0 &&
		(!nvm_begin_is_version(begin) || nvm_stamp_in_gap(begin));
}

/*
 * The chain of the row with root (blk, off).
 */
static void
check_chain(NvmCheck *check, uint32 blk, uint32 off)
{
	uint64		root = NVM_REF_MAKE(blk, off, 0);
	NvmVersion *v = nvm_cell(check->state, blk, off);
	uint64		link = nvm_load(&v->link);
	uint64		hint = 0;
	uint64		tortoise = root;
	uint64		cur = root;
	uint64		steps = 0;
	uint64		limit = 1;

	if (NVM_REF_HI(link) == (uint16) NvmPool->incarnation && NVM_REF_IS_VALID(link))
		hint = NVM_REF_TID(link);

	for (;;)
	{
		uint64		begin = nvm_load(&v->begin);
		uint64		end = nvm_load(&v->end);
		uint64		next = nvm_load(&v->next);
		NvmVersion *w;

		if (cur == hint)
			hint = 0;
		if (!NVM_REF_IS_VALID(next) || (NVM_REF_HI(next) & NVM_NEXT_OTHER_ROOT) ||
			!check_follows(begin, end))
			break;

		cur = NVM_REF_TID(next);
		if (!nvm_tid_exists(check->state, NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur)))
		{
			nvm_check_report(check, blk, off, "chain leads to (%u,%u), which does not exist",
							 NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur));
			return;
		}
		w = nvm_cell(check->state, NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur));
		if (nvm_begin_is_version(nvm_load(&w->begin)))
		{
			if (nvm_version_root(w) != root)
				nvm_check_report(check, blk, off, "chain leads to (%u,%u), which is of another row",
								 NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur));
			else if (nvm_begin_is_version(begin) && nvm_load(&w->begin) != end &&
					 (NVM_REF_HI(next) & NVM_NEXT_SKIPS) == 0)
				nvm_check_report(check, blk, off, "version (%u,%u) does not begin where the one before it ends",
								 NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur));
		}
		if (nvm_version_root(w) != root)
			return;
		v = w;

		/* Brent's search for a cycle */
		if (cur == tortoise)
		{
			nvm_check_report(check, blk, off, "chain has a cycle through (%u,%u)",
							 NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur));
			return;
		}
		if (++steps == limit)
		{
			tortoise = cur;
			steps = 0;
			limit *= 2;
		}
	}

	if (hint != 0 && hint != root && !check_leads_to_gap(check, hint))
		nvm_check_report(check, blk, off, "newest version is said to be (%u,%u), which is not in the chain",
						 NVM_REF_BLOCK(hint), NVM_REF_OFFSET(hint));
}

/*
 * Everything about one block but what its large values hold.
 */
static void
check_block(NvmCheck *check, uint32 blk)
{
	NvmBlock   *block = nvm_block(check->state, blk);
	uint32		cell;

	if (!check_header(check, block, blk))
		return;
	check_areas(check, block, blk);

	for (cell = nvm_block_next_start(block, NVM_FIRST_CELL); cell != 0;
		 cell = nvm_block_next_start(block, cell + 1))
	{
		NvmVersion *v = nvm_cell(check->state, blk, cell);
		uint64		begin = nvm_load(&v->begin);

		if (begin == 0 || cell + NvmVersionCells(v) > NVM_CELLS)
			continue;
		if (NVM_STAMP_IS_SPECIAL(begin))
		{
			if (nvm_begin_is(begin, NVM_STAMP_STUB))
				check_chain(check, blk, cell);
			else if (!nvm_begin_is(begin, NVM_STAMP_DEAD) &&
					 !nvm_begin_is(begin, NVM_STAMP_RETIRED))
				nvm_check_report(check, blk, cell, "unknown state %04x",
								 NVM_STAMP_SLOT(begin));
			continue;
		}
		if (nvm_stamp_in_gap(begin))
			continue;
		check_version(check, v, begin, blk, cell);
		if ((v->flags & NVM_VF_ROOT) != 0)
			check_chain(check, blk, cell);
	}
}

/*
 * Index-only scans do not look at rows of a block that is noted as visible to
 * all.  Caller may hold its locks.
 */
static void
check_allvisible(NvmCheck *check, uint32 blk)
{
	if (nvm_allvisible(check->state, blk) &&
		!nvm_block_is_everybodys(check->state, blk, false))
		nvm_check_report(check, blk, 0, "block is noted as visible to all transactions, but is not");
}

/*
 * One block; again under locks if anything is found.
 */
static void
check_block_twice(NvmCheck *check, uint32 blk)
{
	ListCell   *lc;

	check_block(check, blk);
	check_allvisible(check, blk);
	if (check->problems != NIL)
	{
		LWLock	   *row_lock = nvm_row_lock(check->dir, blk);
		LWLock	   *alloc_lock = nvm_alloc_lock(check->dir, blk);

		MemoryContextReset(check->cxt);
		check->problems = NIL;
		check->large = NIL;
		LWLockAcquire(row_lock, LW_SHARED);
		LWLockAcquire(alloc_lock, LW_SHARED);
		check_block(check, blk);
		check_allvisible(check, blk);
		LWLockRelease(alloc_lock);
		LWLockRelease(row_lock);
	}
	foreach(lc, check->large)
	{
		CHECK_FOR_INTERRUPTS();
		nvm_check_large(check, (NvmCheckLarge *) lfirst(lc));
	}
}

/*
 * A row of the result.
 */
static void
check_put(ReturnSetInfo *rsinfo, bool has_blk, uint32 blk, uint32 off,
		  const char *problem)
{
	Datum		values[3];
	bool		nulls[3] = {0};

	values[0] = Int64GetDatum((int64) blk);
	nulls[0] = !has_blk;
	values[1] = Int32GetDatum((int32) off);
	nulls[1] = (off == 0);
	values[2] = CStringGetTextDatum(problem);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * Move what was found to the result.
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
 * Whoever was granted the function still needs to be allowed to read.
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

/*
 * One index that was asked about.
 */
static void
check_index(Oid indexid, bool heapallindexed, ReturnSetInfo *rsinfo)
{
	CheckIndexArg arg = {rsinfo, NULL};
	Oid			heapid = IndexGetRelation(indexid, false);
	Relation	heap = table_open(heapid, AccessShareLock);
	Relation	index = index_open(indexid, AccessShareLock);

	check_may_read(heap);
	if (!nvm_relation_is_btree(index))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not an index of access method nvm_btree",
						RelationGetRelationName(index))));
	if (!index->rd_index->indisready || (heapallindexed && !index->rd_index->indisvalid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is not valid", RelationGetRelationName(index)),
				 errhint("REINDEX or drop it.")));
	nvm_btree_check(index, heap, heapallindexed, check_index_emit, &arg);
	index_close(index, AccessShareLock);
	table_close(heap, AccessShareLock);
}

/*
 * The indexes of a table, as far as they are ours and finished.
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
	NvmCheck	check = {0};

	InitMaterializedSRF(fcinfo, 0);
	if (relkind == RELKIND_INDEX)
	{
		check_index(relid, heapallindexed, rsinfo);
		return (Datum) 0;
	}

	rel = check_open(relid);
	check.rel = rel;
	check.state = nvm_rel(rel);
	check.dir = check.state->dir;
	check.nblocks = nvm_rel_nblocks(check.state);
	check.cxt = AllocSetContextCreate(CurrentMemoryContext, "nvm check",
									  ALLOCSET_DEFAULT_SIZES);
	nvm_check_large_units(&check);

	for (uint32 blk = 0; blk < check.nblocks; blk++)
	{
		CHECK_FOR_INTERRUPTS();
		check_block_twice(&check, blk);
		if (check.problems != NIL || check.large != NIL)
			check_flush(&check, rsinfo);
	}
	nvm_check_large_orphans(&check);
	check_flush(&check, rsinfo);
	check_indexes(rel, heapallindexed, rsinfo);

	MemoryContextDelete(check.cxt);
	relation_close(rel, AccessShareLock);
	return (Datum) 0;
}
