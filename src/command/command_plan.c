/*-------------------------------------------------------------------------
 *
 * command_plan.c
 *	  What the statements of a call do that a replay could not do again.
 *
 * The plan of each query that begins in a call is looked at: its tables, its functions,
 * system columns.  Scans are judged where they begin, by what they look for (btree/).
 * Nothing is looked at when the transaction is one of values anyway.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "catalog/pg_class.h"
#include "catalog/pg_proc.h"
#include "command/command_impl.h"
#include "command/nvm_command.h"
#include "executor/execdesc.h"
#include "executor/executor.h"
#include "nodes/execnodes.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/portal.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/tuplestore.h"

/* a column of pg_cursor() */
#define CURSOR_NAME	1

/* queries that were begun in this call and have not ended; more are not known */
#define MAX_QUERIES		64

static QueryDesc *queries[MAX_QUERIES];
static int	nqueries = 0;

typedef struct Walk
{
	Bitmapset  *by_ctid;		/* tables whose ctid the plan itself needs */
	Oid			function;		/* that is not admitted */
	bool		system_column;
} Walk;

/* ---- expressions ---- */

static bool
walk_columns(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Var))
	{
		AttrNumber	attno = ((Var *) node)->varattno;

		if (attno < 0 && attno != TableOidAttributeNumber)
			((Walk *) context)->system_column = true;
		return false;
	}
	return expression_tree_walker(node, walk_columns, context);
}

static void
walk_expression(Walk *walk, void *expr)
{
	if (expr == NULL)
		return;
	if (!OidIsValid(walk->function))
		walk->function = nvm_function_not_admitted(expr, false);
	if (!walk->system_column)
		(void) walk_columns(expr, walk);
}

/*
 * The ctid of a row that is to be changed or locked is there for that.
 */
static void
walk_targets(Walk *walk, List *targets)
{
	ListCell   *lc;

	foreach(lc, targets)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, lc);

		if (IsA(entry->expr, Var) && ((Var *) entry->expr)->varattno < 0 &&
			(entry->resjunk || bms_is_member(((Var *) entry->expr)->varno, walk->by_ctid)))
			continue;
		walk_expression(walk, entry->expr);
	}
}

/* ---- plans ---- */

static void walk_plan(Walk *walk, Plan *plan);

static void
walk_plans(Walk *walk, List *plans)
{
	ListCell   *lc;

	foreach(lc, plans)
		walk_plan(walk, lfirst(lc));
}

static void
walk_modify(Walk *walk, ModifyTable *modify)
{
	ListCell   *lc;

	walk_expression(walk, modify->withCheckOptionLists);
	walk_expression(walk, modify->returningLists);
	walk_expression(walk, modify->onConflictSet);
	walk_expression(walk, modify->onConflictWhere);
	foreach(lc, modify->mergeActionLists)
	{
		ListCell   *lc2;

		foreach(lc2, (List *) lfirst(lc))
		{
			MergeAction *action = lfirst_node(MergeAction, lc2);

			walk_expression(walk, action->qual);
			walk_targets(walk, action->targetList);
		}
	}
}

static void
walk_scan(Walk *walk, Plan *plan)
{
	switch (nodeTag(plan))
	{
		case T_SampleScan:
			/* it chooses by chance */
			walk->function = ((SampleScan *) plan)->tablesample->tsmhandler;
			break;
		case T_IndexScan:
			walk_expression(walk, ((IndexScan *) plan)->indexqualorig);
			walk_expression(walk, ((IndexScan *) plan)->indexorderbyorig);
			break;
		case T_IndexOnlyScan:
			walk_expression(walk, ((IndexOnlyScan *) plan)->indexqual);
			walk_expression(walk, ((IndexOnlyScan *) plan)->indexorderby);
			break;
		case T_BitmapIndexScan:
			walk_expression(walk, ((BitmapIndexScan *) plan)->indexqualorig);
			break;
		case T_BitmapHeapScan:
			walk_expression(walk, ((BitmapHeapScan *) plan)->bitmapqualorig);
			break;
		case T_TidScan:
			walk->system_column = true;
			break;
		case T_TidRangeScan:
			walk->system_column = true;
			break;
		case T_SubqueryScan:
			walk_plan(walk, ((SubqueryScan *) plan)->subplan);
			break;
		case T_FunctionScan:
			walk_expression(walk, ((FunctionScan *) plan)->functions);
			break;
		case T_ValuesScan:
			walk_expression(walk, ((ValuesScan *) plan)->values_lists);
			break;
		case T_TableFuncScan:
			walk_expression(walk, ((TableFuncScan *) plan)->tablefunc);
			break;
		default:
			break;
	}
}

static void
walk_node(Walk *walk, Plan *plan)
{
	switch (nodeTag(plan))
	{
		case T_Result:
			walk_expression(walk, ((Result *) plan)->resconstantqual);
			break;
		case T_ModifyTable:
			walk_modify(walk, (ModifyTable *) plan);
			break;
		case T_Append:
			walk_plans(walk, ((Append *) plan)->appendplans);
			break;
		case T_MergeAppend:
			walk_plans(walk, ((MergeAppend *) plan)->mergeplans);
			break;
		case T_BitmapAnd:
			walk_plans(walk, ((BitmapAnd *) plan)->bitmapplans);
			break;
		case T_BitmapOr:
			walk_plans(walk, ((BitmapOr *) plan)->bitmapplans);
			break;
		case T_NestLoop:
			walk_expression(walk, ((Join *) plan)->joinqual);
			break;
		case T_MergeJoin:
			walk_expression(walk, ((Join *) plan)->joinqual);
			walk_expression(walk, ((MergeJoin *) plan)->mergeclauses);
			break;
		case T_HashJoin:
			walk_expression(walk, ((Join *) plan)->joinqual);
			walk_expression(walk, ((HashJoin *) plan)->hashclauses);
			break;
		case T_WindowAgg:
			walk_expression(walk, ((WindowAgg *) plan)->startOffset);
			walk_expression(walk, ((WindowAgg *) plan)->endOffset);
			break;
		case T_Limit:
			walk_expression(walk, ((Limit *) plan)->limitOffset);
			walk_expression(walk, ((Limit *) plan)->limitCount);
			break;
		default:
			walk_scan(walk, plan);
			break;
	}
}

static void
walk_plan(Walk *walk, Plan *plan)
{
	if (plan == NULL)
		return;
	if (IsA(plan, ModifyTable))
		walk_expression(walk, ((ModifyTable *) plan)->plan.qual);
	else
	{
		walk_targets(walk, plan->targetlist);
		walk_expression(walk, plan->qual);
	}
	walk_expression(walk, plan->initPlan);
	walk_node(walk, plan);
	walk_plan(walk, plan->lefttree);
	walk_plan(walk, plan->righttree);
}

static void
judge_expressions(PlannedStmt *plan)
{
	Walk		walk = {0};
	ListCell   *lc;

	foreach(lc, plan->resultRelations)
		walk.by_ctid = bms_add_member(walk.by_ctid, lfirst_int(lc));
	foreach(lc, plan->rowMarks)
		walk.by_ctid = bms_add_member(walk.by_ctid, lfirst_node(PlanRowMark, lc)->rti);

	walk_plan(&walk, plan->planTree);
	walk_plans(&walk, plan->subplans);
	if (OidIsValid(walk.function))
		nvm_command_disqualify(NVM_REASON_FUNCTION, ProcedureRelationId, walk.function);
	if (walk.system_column)
		nvm_command_disqualify(NVM_REASON_SYSTEM_COLUMN, InvalidOid, InvalidOid);
	bms_free(walk.by_ctid);
}

/* ---- tables ---- */

static void
judge_table(Relation rel, bool written)
{
	const char *problem;

	/*
	 * Their partitions are judged, and what a view selects from; they may
	 * have triggers of their own
	 */
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE || rel->rd_rel->relkind == RELKIND_VIEW)
	{
		if (written)
			nvm_command_judge_writers(rel);
		return;
	}
	if (!nvm_command_is_table(rel))
	{
		nvm_command_disqualify(written ? NVM_REASON_OTHER_TABLE_WRITTEN : NVM_REASON_OTHER_TABLE_READ,
							   RelationRelationId, RelationGetRelid(rel));
		return;
	}

	/*
	 * One that has a label and does not keep it is shared, but others may not
	 * know that yet: an index can be made while they write by lanes
	 */
	(void) nvm_command_partition_column(rel, &problem);
	if (problem != NULL)
		nvm_command_disqualify(NVM_REASON_NOT_PINNED, RelationRelationId, RelationGetRelid(rel));
	if (written)
		nvm_command_judge_writers(rel);
}

static void
judge_tables(PlannedStmt *plan)
{
	ListCell   *lc;
	int			rti = 0;

	foreach(lc, plan->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, lc);
		Relation	rel;

		rti++;
		if (rte->rtekind != RTE_RELATION)
			continue;
		rel = RelationIdGetRelation(rte->relid);
		if (rel == NULL)
			continue;
		judge_table(rel, list_member_int(plan->resultRelations, rti));
		RelationClose(rel);
	}
}

/*
 * Others' locks decide what it finds.
 */
static bool
depends_on_locks(PlannedStmt *plan)
{
	ListCell   *lc;

	foreach(lc, plan->rowMarks)
	{
		PlanRowMark *mark = lfirst_node(PlanRowMark, lc);

		if (mark->waitPolicy != LockWaitBlock)
			return true;
	}
	return false;
}

void
nvm_judge_plan(PlannedStmt *plan)
{
	if (plan->parallelModeNeeded)
		nvm_command_disqualify(NVM_REASON_PARALLEL, InvalidOid, InvalidOid);
	if (depends_on_locks(plan))
		nvm_command_disqualify(NVM_REASON_LOCKED_ROWS, InvalidOid, InvalidOid);
	if (!nvm_verdict_by_values())
		judge_tables(plan);
	if (!nvm_verdict_by_values())
		judge_expressions(plan);
}

/* ---- the executor's hooks ---- */

void
nvm_command_query_starts(QueryDesc *query)
{
	if (likely(!nvm_command_in_call()) || nvm_verdict_by_values())
		return;
	if (nqueries < MAX_QUERIES)
		queries[nqueries++] = query;
	nvm_judge_plan(query->plannedstmt);
}

/*
 * A query that was not begun in this call has an older snapshot.
 */
void
nvm_command_query_runs(QueryDesc *query)
{
	if (likely(!nvm_command_in_call()) || nvm_verdict_by_values())
		return;
	for (int i = nqueries - 1; i >= 0; i--)
	{
		if (queries[i] == query)
			return;
	}
	nvm_command_disqualify(NVM_REASON_OLD_CURSOR, InvalidOid, InvalidOid);
}

/*
 * It has run, for now: judge the partitions that its rows were routed to.  The plan names
 * their parent alone.
 */
void
nvm_command_query_ran(QueryDesc *query)
{
	ListCell   *lc;

	if (likely(!nvm_command_in_call()) || nvm_verdict_by_values())
		return;
	foreach(lc, query->estate->es_tuple_routing_result_relations)
		judge_table(((ResultRelInfo *) lfirst(lc))->ri_RelationDesc, true);
}

void
nvm_command_query_ends(QueryDesc *query)
{
	for (int i = nqueries - 1; i >= 0; i--)
	{
		if (queries[i] == query)
		{
			queries[i] = queries[--nqueries];
			return;
		}
	}
}

/*
 * Would the rows of a cursor be read without the executor, so that nobody saw it?  Those
 * of one WITH HOLD that has outlived its transaction are, of one whose query writes and
 * returns rows, and of one for a utility command: they lie in a tuplestore.
 */
static bool
is_stored(Datum name)
{
	Portal		portal = GetPortalByName(TextDatumGetCString(name));

	if (!PortalIsValid(portal) || portal->status != PORTAL_READY)
		return false;
	return (portal->cursorOptions & CURSOR_OPT_HOLD) != 0 || portal->holdStore != NULL ||
		(portal->strategy != PORTAL_ONE_SELECT && portal->strategy != PORTAL_MULTI_QUERY);
}

/*
 * Is such a cursor open?  ThereAreNoReadyPortals() would be the quick answer; it leaves
 * a scan of a hash table open, of which a transaction can have but a hundred.
 */
bool
nvm_stored_cursor_is_open(void)
{
	LOCAL_FCINFO(fcinfo, 0);
	FmgrInfo	flinfo;
	ReturnSetInfo rsinfo = {.type = T_ReturnSetInfo};
	TupleTableSlot *slot;
	bool		found = false;

	fmgr_info(F_PG_CURSOR, &flinfo);
	InitFunctionCallInfoData(*fcinfo, &flinfo, 0, InvalidOid, NULL, (Node *) &rsinfo);
	rsinfo.econtext = CreateStandaloneExprContext();
	rsinfo.allowedModes = SFRM_Materialize;
	rsinfo.returnMode = SFRM_ValuePerCall;
	(void) FunctionCallInvoke(fcinfo);

	slot = MakeSingleTupleTableSlot(rsinfo.setDesc, &TTSOpsMinimalTuple);
	while (!found && tuplestore_gettupleslot(rsinfo.setResult, true, false, slot))
	{
		bool		isnull;

		found = is_stored(slot_getattr(slot, CURSOR_NAME, &isnull));
	}
	ExecDropSingleTupleTableSlot(slot);
	tuplestore_end(rsinfo.setResult);
	FreeExprContext(rsinfo.econtext, true);
	return found;
}

void
nvm_queries_forget(void)
{
	nqueries = 0;
}

/*
 * A utility command begins.  CALL is none: its procedure does what it does.
 */
void
nvm_command_utility(Node *stmt)
{
	FuncExpr   *call;
	Oid			function;

	if (likely(!nvm_command_in_call()) || nvm_verdict_by_values())
		return;
	if (!IsA(stmt, CallStmt))
	{
		nvm_command_disqualify(NVM_REASON_UTILITY, InvalidOid, InvalidOid);
		return;
	}
	call = ((CallStmt *) stmt)->funcexpr;
	function = nvm_function_not_admitted((Node *) call->args, true);
	if (!OidIsValid(function) && !nvm_function_is_admitted(call->funcid))
		function = call->funcid;
	if (OidIsValid(function))
		nvm_command_disqualify(NVM_REASON_FUNCTION, ProcedureRelationId, function);
}
