/*-------------------------------------------------------------------------
 *
 * speculative.c
 *	  ON CONFLICT over unique indexes of nvm_btree, before PostgreSQL 18.
 *
 * INSERT ... ON CONFLICT asks each unique index how its keys are compared,
 * and before 18 the code that does so raises an ERROR for any access method
 * but btree.  It is run when the indexes of the target are opened for the
 * first row, unless they are open already.  So an ExecutorStart hook opens
 * them, as for an ordinary INSERT, and adds what speculative insertion needs.
 * The operator classes are btree's (ddl_index_method.c), and so are the
 * equality operators.
 *
 * The hook does not reach the partitions that rows are routed to, because
 * their indexes are opened as rows come.  So a unique index of a partition is
 * one of nvm_btree only if USING says so, and then the ERROR is said in other
 * words.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "am/nvm_am.h"
#include "btree/nvm_btree.h"
#include "catalog/index.h"
#include "compat/nvm_compat_am.h"
#include "executor/executor.h"
#include "row/nvm_relation.h"
#include "utils/lsyscache.h"

#if NVM_SPECULATIVE_WANTS_BTREE

/*
 * What BuildSpeculativeIndexInfo does for an index of btree.
 */
static void
speculative_index_info(Relation index, IndexInfo *info)
{
	int			nkeys = IndexRelationGetNumberOfKeyAttributes(index);

	info->ii_UniqueOps = (Oid *) palloc(sizeof(Oid) * nkeys);
	info->ii_UniqueProcs = (Oid *) palloc(sizeof(Oid) * nkeys);
	info->ii_UniqueStrats = (uint16 *) palloc(sizeof(uint16) * nkeys);

	for (int i = 0; i < nkeys; i++)
	{
		info->ii_UniqueStrats[i] = BTEqualStrategyNumber;
		info->ii_UniqueOps[i] = get_opfamily_member(index->rd_opfamily[i],
													index->rd_opcintype[i],
													index->rd_opcintype[i],
													BTEqualStrategyNumber);
		if (!OidIsValid(info->ii_UniqueOps[i]))
			elog(ERROR, "missing operator %d(%u,%u) in opfamily %u",
				 BTEqualStrategyNumber, index->rd_opcintype[i],
				 index->rd_opcintype[i], index->rd_opfamily[i]);
		info->ii_UniqueProcs[i] = get_opcode(info->ii_UniqueOps[i]);
	}
}

/*
 * Open the indexes of the target of a ModifyTable node that may meet a
 * conflict, if it is one of ours.
 */
static void
speculative_open_indexes(PlanState *planstate)
{
	ModifyTableState *node;
	ResultRelInfo *target;
	MemoryContext oldcxt;

	if (planstate == NULL || !IsA(planstate, ModifyTableState))
		return;
	node = (ModifyTableState *) planstate;
	if (((ModifyTable *) node->ps.plan)->onConflictAction == ONCONFLICT_NONE)
		return;
	target = node->resultRelInfo;
	if (target->ri_RelationDesc == NULL || target->ri_IndexRelationDescs != NULL ||
		!nvm_relation_is_nvm(target->ri_RelationDesc))
		return;

	oldcxt = MemoryContextSwitchTo(node->ps.state->es_query_cxt);
	ExecOpenIndices(target, false);
	for (int i = 0; i < target->ri_NumIndices; i++)
	{
		Relation	index = target->ri_IndexRelationDescs[i];
		IndexInfo  *info = target->ri_IndexRelationInfo[i];

		if (!info->ii_Unique)
			continue;
		if (index->rd_rel->relam != BTREE_AM_OID && nvm_relation_is_btree(index))
			speculative_index_info(index, info);
		else
			BuildSpeculativeIndexInfo(index, info);
	}
	MemoryContextSwitchTo(oldcxt);
}

/*
 * ExecutorStart_hook, after the executor has started.
 */
void
nvm_speculative_query_started(QueryDesc *queryDesc, int eflags)
{
	ListCell   *lc;

	if (eflags & EXEC_FLAG_EXPLAIN_ONLY)
		return;
	if (queryDesc->operation == CMD_INSERT)
		speculative_open_indexes(queryDesc->planstate);
	foreach(lc, queryDesc->estate->es_auxmodifytables)
		speculative_open_indexes((PlanState *) lfirst(lc));
}

/*
 * May rows of this statement be routed to partitions and meet a conflict there?
 */
static bool
routes_conflicts(PlanState *planstate)
{
	ModifyTableState *node = (ModifyTableState *) planstate;

	return planstate != NULL && IsA(planstate, ModifyTableState) &&
		((ModifyTable *) node->ps.plan)->onConflictAction != ONCONFLICT_NONE &&
		node->mt_partition_tuple_routing != NULL;
}

/*
 * The current ERROR again; if it is BuildSpeculativeIndexInfo's, as what it is.
 */
static void
rethrow_for_user(MemoryContext context)
{
	MemoryContext error_context = MemoryContextSwitchTo(context);
	ErrorData  *error = CopyErrorData();

	if (error->sqlerrcode != ERRCODE_INTERNAL_ERROR || error->message == NULL ||
		strcmp(error->message, "unexpected non-btree speculative unique index") != 0)
	{
		FreeErrorData(error);
		MemoryContextSwitchTo(error_context);
		PG_RE_THROW();
	}
	FlushErrorState();
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("ON CONFLICT does not reach a partition that has a unique index of access method \"%s\"",
					NVM_BTREE_NAME),
			 errdetail("Before version 18 PostgreSQL accepts only \"btree\" where it routes rows to partitions."),
			 errhint("Make that index with USING btree, or insert into the partition itself.")));
}

/*
 * ExecutorRun_hook, around the others'.
 */
void
nvm_speculative_run(QueryDesc *queryDesc, ScanDirection direction, uint64 count,
					bool execute_once, ExecutorRun_hook_type next)
{
	MemoryContext context = CurrentMemoryContext;
	bool		routes = queryDesc->operation == CMD_INSERT &&
	routes_conflicts(queryDesc->planstate);
	ListCell   *lc;

	foreach(lc, queryDesc->estate->es_auxmodifytables)
		routes |= routes_conflicts((PlanState *) lfirst(lc));
	if (!routes)
	{
		next(queryDesc, direction, count, execute_once);
		return;
	}
	PG_TRY();
	{
		next(queryDesc, direction, count, execute_once);
	}
	PG_CATCH();
	{
		rethrow_for_user(context);
	}
	PG_END_TRY();
}

#endif							/* NVM_SPECULATIVE_WANTS_BTREE */
