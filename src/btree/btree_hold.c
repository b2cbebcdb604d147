/*-------------------------------------------------------------------------
 *
 * btree_hold.c
 *	  The indexes of a plan have our routine when the executor opens them.
 *
 * An entry of the relcache keeps its routine as long as somebody has it open.
 * The executor's own lock on an index may be the one that takes messages, which
 * take entries away.  So the indexes of a plan are opened here, and stay open until
 * the executor has opened them, too.  Mostly no lock is taken: that on the table keeps
 * an index, and the executor locks no indexes of partitions that it prunes.
 *
 * But an entry may be older than a REINDEX of another session, which needs no lock that
 * conflicts with that on the table.  So where an index of a table of ours is not ours by
 * its entry, we look once more, with the executor's lock on it.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_identity.h"
#include "catalog/pg_am.h"
#include "compat/nvm_compat.h"
#include "miscadmin.h"
#include "nodes/plannodes.h"
#include "parser/parsetree.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "xact/nvm_storage.h"

/* most plans have no more indexes */
#define FEW_INDEXES		8

typedef struct Held
{
	PlannedStmt *stmt;
	bool		prunes;			/* what is walked may be pruned */
	int			nfew;
	Relation	few[FEW_INDEXES];
	List	   *more;
} Held;

/*
 * Indexes that are none to be held, by their numbers: a plan may have hundreds of
 * partitions, and prunes most.  Their tables are not ours, or their method is not btree.
 * That is known until the next relcache message.
 */
#define STRANGERS		1024	/* a power of 2 */

static struct
{
	Oid			indexid;
	uint64		generation;
}			strangers[STRANGERS];

static inline bool
is_stranger(Oid indexid)
{
	uint32		i = indexid & (STRANGERS - 1);

	return strangers[i].indexid == indexid && strangers[i].generation == nvm_index_generation;
}

/*
 * generation: before the index was looked at.
 */
static void
note_stranger(Oid indexid, uint64 generation)
{
	uint32		i = indexid & (STRANGERS - 1);

	strangers[i].indexid = indexid;
	strangers[i].generation = generation;
}

static bool
is_of_ours(Oid relid)
{
	Relation	table = RelationIdGetRelation(relid);
	bool		ours;

	if (table == NULL)
		return false;
	ours = nvm_storage_is_table(table);
	RelationClose(table);
	return ours;
}

/*
 * Is an open index, of a table of ours, ours after all?  If not, the lock stays as long
 * as the executor's, so that nobody brings it into the pool before that opens it.
 *
 * An index of a partition that may be pruned is neither waited for nor kept locked, as the
 * executor would not do that.  If it moves into the pool just then, the executor's
 * search ends with an ERROR.
 */
static bool
is_ours_with_lock(Relation index, bool prunes)
{
	Oid			indexid = RelationGetRelid(index);
	bool		ours;

	if (!ConditionalLockRelationOid(indexid, AccessShareLock))
	{
		/* it is being built anew, and is ours whatever becomes of that */
		if (nvm_index_exchange_ended(index))
			return true;
		AcceptInvalidationMessages();
		ours = nvm_relation_is_btree(index) || nvm_index_exchange_ended(index);
		if (ours || prunes)
			return ours;
		LockRelationOid(indexid, AccessShareLock);
	}
	ours = nvm_relation_is_btree(index);
	if (ours || prunes)
		UnlockRelationOid(indexid, AccessShareLock);
	return ours;
}

static void
hold_index(Held *held, Oid indexid, Index scanrelid)
{
	uint64		generation = nvm_index_generation;
	Relation	index;

	if (is_stranger(indexid))
		return;
	index = RelationIdGetRelation(indexid);
	if (index == NULL)
		return;
	if (index->rd_rel->relam != BTREE_AM_OID ||
		(unlikely(!nvm_index_says_btree(index)) &&
		 !is_of_ours(rt_fetch(scanrelid, held->stmt->rtable)->relid)))
	{
		RelationClose(index);
		note_stranger(indexid, generation);
	}
	else if (!nvm_relation_is_btree(index) && !is_ours_with_lock(index, held->prunes))
		RelationClose(index);
	else if (held->nfew < FEW_INDEXES)
		held->few[held->nfew++] = index;
	else
		held->more = lappend(held->more, index);
}

static void hold_plan(Held *held, Plan *plan);

static void
hold_plans(Held *held, List *plans)
{
	ListCell   *lc;

	foreach(lc, plans)
		hold_plan(held, (Plan *) lfirst(lc));
}

/*
 * Of an Append or MergeAppend.
 */
static void
hold_partitions(Held *held, List *plans, bool prunes)
{
	bool		above = held->prunes;

	held->prunes |= prunes;
	hold_plans(held, plans);
	held->prunes = above;
}

static void
hold_plan(Held *held, Plan *plan)
{
	if (plan == NULL)
		return;
	check_stack_depth();
	switch (nodeTag(plan))
	{
		case T_IndexScan:
			hold_index(held, ((IndexScan *) plan)->indexid,
					   ((IndexScan *) plan)->scan.scanrelid);
			break;
		case T_IndexOnlyScan:
			hold_index(held, ((IndexOnlyScan *) plan)->indexid,
					   ((IndexOnlyScan *) plan)->scan.scanrelid);
			break;
		case T_BitmapIndexScan:
			hold_index(held, ((BitmapIndexScan *) plan)->indexid,
					   ((BitmapIndexScan *) plan)->scan.scanrelid);
			break;
		case T_Append:
			hold_partitions(held, ((Append *) plan)->appendplans,
							NvmNodePrunes((Append *) plan));
			break;
		case T_MergeAppend:
			hold_partitions(held, ((MergeAppend *) plan)->mergeplans,
							NvmNodePrunes((MergeAppend *) plan));
			break;
		case T_BitmapAnd:
			hold_plans(held, ((BitmapAnd *) plan)->bitmapplans);
			break;
		case T_BitmapOr:
			hold_plans(held, ((BitmapOr *) plan)->bitmapplans);
			break;
		case T_SubqueryScan:
			hold_plan(held, ((SubqueryScan *) plan)->subplan);
			break;
		case T_CustomScan:
			hold_plans(held, ((CustomScan *) plan)->custom_plans);
			break;
		default:
			break;
	}
	hold_plan(held, plan->lefttree);
	hold_plan(held, plan->righttree);
}

/*
 * ExecutorStart_hook, around the start.  After an ERROR the resource owner gives
 * up the relations.
 */
void
nvm_index_hold_and_start(QueryDesc *query, int eflags, ExecutorStart_hook_type next)
{
	Held		held;
	ListCell   *lc;

	if ((eflags & EXEC_FLAG_EXPLAIN_ONLY) != 0 || NvmPool == NULL || !NvmPool->has_btree ||
		NVM_FAILPOINT_MISSES("exchange-start"))
	{
		next(query, eflags);
		return;
	}
	held.stmt = query->plannedstmt;
	held.prunes = false;
	held.nfew = 0;
	held.more = NIL;
	hold_plan(&held, held.stmt->planTree);
	hold_plans(&held, held.stmt->subplans);
	next(query, eflags);
	for (int i = 0; i < held.nfew; i++)
		RelationClose(held.few[i]);
	foreach(lc, held.more)
		RelationClose((Relation) lfirst(lc));
	list_free(held.more);
}
