/*-------------------------------------------------------------------------
 *
 * command_plan.c
 *	  What the statements of a call do that a replay could not do again.
 *
 * The plan of each query that begins in a call is looked at: its tables, its functions.
 * Scans are judged where they begin, by what they look for (btree/).  Nothing is looked at
 * when the transaction is one of values anyway.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

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
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/portal.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/tuplestore.h"

/* a column of pg_cursor() */
#define CURSOR_NAME	1

typedef struct Walk
{
	Oid			function;		/* that is not admitted */
	bool		by_tid;			/* rows are found by their places */
} Walk;

/* ---- expressions ---- */

static void
walk_expression(Walk *walk, void *expr)
{
	if (expr == NULL)
		return;
	if (!OidIsValid(walk->function))
		walk->function = nvm_function_not_admitted(expr, false);
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
			walk_expression(walk, action->targetList);
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
			walk->by_tid = true;
			break;
		case T_TidRangeScan:
			walk->by_tid = true;
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
		walk_expression(walk, plan->targetlist);
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

	walk_plan(&walk, plan->planTree);
	walk_plans(&walk, plan->subplans);
	if (OidIsValid(walk.function))
		nvm_command_disqualify(NVM_REASON_FUNCTION, ProcedureRelationId, walk.function);
	if (walk.by_tid)
		nvm_command_disqualify(NVM_REASON_SYSTEM_COLUMN, InvalidOid, InvalidOid);
}

/* ---- tables ---- */

/*
 * That a statement reads, or writes.
 */
void
nvm_judge_table(Relation rel, bool written)
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
		nvm_judge_table(rel, list_member_int(plan->resultRelations, rti));
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
	if (nvm_plan_is_clean(plan))
		return;
	if (plan->parallelModeNeeded)
		nvm_command_disqualify(NVM_REASON_PARALLEL, InvalidOid, InvalidOid);
	if (depends_on_locks(plan))
		nvm_command_disqualify(NVM_REASON_LOCKED_ROWS, InvalidOid, InvalidOid);
	if (!nvm_verdict_by_values())
		judge_tables(plan);
	if (!nvm_verdict_by_values())
		judge_expressions(plan);
	if (!nvm_verdict_by_values())
		nvm_judge_order_of_plan(plan);
	if (!nvm_verdict_by_values())
		nvm_plan_set_clean(plan);
}

/*
 * A query has run, for now: judge the partitions that its rows were routed to.  The plan
 * names their parent alone.
 */
void
nvm_judge_routed_rows(QueryDesc *query)
{
	ListCell   *lc;

	foreach(lc, query->estate->es_tuple_routing_result_relations)
		nvm_judge_table(((ResultRelInfo *) lfirst(lc))->ri_RelationDesc, true);
}

/* ---- cursors ---- */

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

/*
 * What a call finds may have been made by the transaction itself: DDL and TRUNCATE, outside
 * of its calls.  SET CONSTRAINTS says whether a unique key is checked in the call or behind
 * it, and no record has that.
 */
static bool
changes_what_calls_find(Node *stmt)
{
	return IsA(stmt, TruncateStmt) || IsA(stmt, ConstraintsSetStmt) ||
		GetCommandLogLevel(stmt) == LOGSTMT_DDL;
}

/*
 * CALL is no utility command: its procedure does what it does.
 */
static void
judge_call_statement(CallStmt *stmt, const char *source)
{
	FuncExpr   *call = stmt->funcexpr;
	Oid			function = nvm_function_not_admitted((Node *) call->args, true);
	bool		has_clock = false;

	if (!OidIsValid(function) && !nvm_function_is_admitted(call->funcid))
		function = call->funcid;
	if (!OidIsValid(function))
		has_clock = nvm_mark_has_clock(nvm_judge_literals((Node *) call->args, source), &function);
	if (has_clock || OidIsValid(function))
		nvm_command_disqualify(NVM_REASON_FUNCTION, ProcedureRelationId, function);
}

/*
 * A utility command begins, with this text.
 */
void
nvm_command_utility(Node *stmt, const char *source)
{
	if (unlikely(nvm_replay_in_call))
		nvm_replay_check_utility(stmt);
	if (IsA(stmt, CreateFunctionStmt) && nvm_command_any())
		nvm_settings_note_compiled();
	if (nvm_verdict_by_values())
		return;
	if (likely(!nvm_command_in_call()))
	{
		if (changes_what_calls_find(stmt) && nvm_command_any())
			nvm_command_disqualify(NVM_REASON_UTILITY, InvalidOid, InvalidOid);
		return;
	}
	if (IsA(stmt, CallStmt))
		judge_call_statement((CallStmt *) stmt, source);
	else
		nvm_command_disqualify(NVM_REASON_UTILITY, InvalidOid, InvalidOid);
}
