/*-------------------------------------------------------------------------
 *
 * btree_planner.c
 *	  Row comparisons as index conditions: planner and executor give them to
 *	  access method btree alone, so they are told that our indexes are btree's.
 *
 * IndexOptInfo, the planner's own copy of what is known of an index, gets
 * btree's OID as its access method when the catalogs have been read.  The
 * planner asks that copy for its access method in three places:
 *
 *	- for row comparisons (indxpath.c);
 *	- for equivalence classes, where the operator families must be btree's, as
 *	  ours are (ddl/ddl_index_method.c);
 *	- to look up the ends of an index for an estimate (selfuncs.c), which goes
 *	  through the index's own routine.
 *
 * Other fields say how an index is scanned, and for what costs.
 *
 * Before 18 the executor looks at the relcache entry when it makes scan keys
 * of a row comparison.  It does so in ExecutorStart, and when it makes the
 * state for rechecking a row that has changed (EvalPlanQual), which is later,
 * or never.  So for the time of ExecutorStart the entries of the indexes that
 * a plan searches by row comparisons say btree (they *pose*), and that state
 * is made then, too.  A stable function that decides which partitions are
 * scanned may call the planner meanwhile.  That planner sees what the indexes
 * are, for it would read the meta page of a btree index.  An invalidation in
 * between is answered by posing again.
 *
 * That state is made without a value of an InitPlan: those are computed when a
 * row is rechecked, as ever.  It lasts as long as the statement, but not where
 * LockRows is executed again, or within a recheck.  That is possible of a FOR
 * UPDATE in a sub-select alone.  State that is made then is for all
 * sub-selects of the statement.  So a statement that has such a FOR UPDATE
 * gets no row comparison as an index condition.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/xact.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_am.h"
#include "catalog/pg_am_d.h"
#include "compat/nvm_compat_am.h"
#include "executor/executor.h"
#include "nodes/nodeFuncs.h"
#include "nodes/plannodes.h"
#include "optimizer/plancat.h"
#include "optimizer/planner.h"
#include "parser/parsetree.h"
#include "storage/ipc.h"
#include "utils/inval.h"
#include "utils/rel.h"

/* ---- the planner ---- */


/*
 * Are the operator families of an index those that its order is named by, that is
 * btree's?
 */
static bool
has_btree_families(const IndexOptInfo *info)
{
	if (info->sortopfamily == NULL)
		return false;
	for (int i = 0; i < info->nkeycolumns; i++)
	{
		if (info->opfamily[i] != info->sortopfamily[i])
			return false;
	}
	return true;
}

#if NVM_ROW_COMPARE_WANTS_BTREE

/* the statement that is being planned locks rows in a sub-select */
static bool sublocks = false;

/*
 * Walker: is there a sub-select with FOR UPDATE or the like?  `top` is the query
 * itself, of which that is not asked.
 */
static bool
has_sublocks(Node *node, void *top)
{
	if (node == NULL)
		return false;
	if (IsA(node, Query))
	{
		if (node != top && ((Query *) node)->rowMarks != NIL)
			return true;
		return query_tree_walker((Query *) node, has_sublocks, top, 0);
	}
	return expression_tree_walker(node, has_sublocks, top);
}

/*
 * May an index be searched by a row comparison?  It may if the state for
 * rechecks that is made when the executor starts can serve to the end.  The
 * parents are asked, too: a function that was put in their place is not in the
 * statement as it was.
 */
static bool
rechecks_last(const PlannerInfo *root)
{
	if (sublocks)
		return false;
	for (; root->parent_root != NULL; root = root->parent_root)
	{
		if (root->parse->rowMarks != NIL)
			return false;
	}
	return true;
}

#else

#define rechecks_last(root) true

#endif

/*
 * get_relation_info_hook: in the planner's copy an index of ours is btree's.
 */
void
nvm_btree_present_indexes(PlannerInfo *root, RelOptInfo *rel)
{
	ListCell   *lc;

	if (!rechecks_last(root))
		return;
	foreach(lc, rel->indexlist)
	{
		IndexOptInfo *info = lfirst_node(IndexOptInfo, lc);

		/* partitioned ones have no cost function */
		if ((void *) info->amcostestimate == (void *) nvm_btree_costestimate &&
			has_btree_families(info))
			info->relam = BTREE_AM_OID;
	}
}

#if NVM_ROW_COMPARE_WANTS_BTREE

/* ---- which indexes a plan searches by row comparisons ---- */

typedef struct RowCompareIndexes
{
	PlannedStmt *stmt;
	List	   *indexids;
	List	   *lockmodes;		/* what ExecInitNode will take */
} RowCompareIndexes;

static void
note_index(RowCompareIndexes *found, Oid indexid, Index scanrelid, List *quals)
{
	ListCell   *lc;

	foreach(lc, quals)
	{
		if (!IsA(lfirst(lc), RowCompareExpr))
			continue;
		found->indexids = lappend_oid(found->indexids, indexid);
		found->lockmodes = lappend_int(found->lockmodes,
									   rt_fetch(scanrelid, found->stmt->rtable)->rellockmode);
		return;
	}
}

static void find_in_plan(RowCompareIndexes *found, Plan *plan);

static void
find_in_plans(RowCompareIndexes *found, List *plans)
{
	ListCell   *lc;

	foreach(lc, plans)
		find_in_plan(found, (Plan *) lfirst(lc));
}

static void
find_in_plan(RowCompareIndexes *found, Plan *plan)
{
	if (plan == NULL)
		return;
	check_stack_depth();
	switch (nodeTag(plan))
	{
		case T_IndexScan:
			note_index(found, ((IndexScan *) plan)->indexid,
					   ((IndexScan *) plan)->scan.scanrelid,
					   ((IndexScan *) plan)->indexqual);
			break;
		case T_IndexOnlyScan:
			note_index(found, ((IndexOnlyScan *) plan)->indexid,
					   ((IndexOnlyScan *) plan)->scan.scanrelid,
					   ((IndexOnlyScan *) plan)->indexqual);
			break;
		case T_BitmapIndexScan:
			note_index(found, ((BitmapIndexScan *) plan)->indexid,
					   ((BitmapIndexScan *) plan)->scan.scanrelid,
					   ((BitmapIndexScan *) plan)->indexqual);
			break;
		case T_Append:
			find_in_plans(found, ((Append *) plan)->appendplans);
			break;
		case T_MergeAppend:
			find_in_plans(found, ((MergeAppend *) plan)->mergeplans);
			break;
		case T_BitmapAnd:
			find_in_plans(found, ((BitmapAnd *) plan)->bitmapplans);
			break;
		case T_BitmapOr:
			find_in_plans(found, ((BitmapOr *) plan)->bitmapplans);
			break;
		case T_SubqueryScan:
			find_in_plan(found, ((SubqueryScan *) plan)->subplan);
			break;
		case T_CustomScan:
			find_in_plans(found, ((CustomScan *) plan)->custom_plans);
			break;
		default:
			break;
	}
	find_in_plan(found, plan->lefttree);
	find_in_plan(found, plan->righttree);
}

/* ---- posing ---- */

typedef struct NvmIndexPose
{
	Relation	index;
	Oid			method;			/* what it is */
	struct NvmIndexPose *next;
} NvmIndexPose;

/* of all ExecutorStarts that are under way */
static NvmIndexPose *posing = NULL;
static bool pose_suspended = false;

static void
set_posing(bool on)
{
	/* a FATAL error unwinds nothing, and has freed what `posing` was */
	if (proc_exit_inprogress)
		return;
	pose_suspended = !on;
	for (NvmIndexPose *pose = posing; pose != NULL; pose = pose->next)
		pose->index->rd_rel->relam = on ? BTREE_AM_OID : pose->method;
}

/*
 * Relcache callback: an entry that was read anew poses again.
 */
static void
pose_again(Datum arg, Oid relid)
{
	if (posing != NULL && !pose_suspended)
		set_posing(true);
}

/*
 * planner_hook, around the others'.
 */
PlannedStmt *
nvm_btree_plan_without_pose(Query *parse, const char *query_string, int cursorOptions,
							ParamListInfo boundParams, planner_hook_type next)
{
	PlannedStmt *volatile result = NULL;
	bool		suspend = posing != NULL && !pose_suspended;
	volatile bool outer_sublocks = sublocks;

	sublocks = has_sublocks((Node *) parse, parse);
	if (suspend)
		set_posing(false);
	PG_TRY();
	{
		result = next(parse, query_string, cursorOptions, boundParams);
	}
	PG_FINALLY();
	{
		sublocks = outer_sublocks;
		if (suspend)
			set_posing(true);
	}
	PG_END_TRY();
	return result;
}

/*
 * Open the indexes and let those of ours pose.  The locks are those that the
 * executor takes, and stay.
 */
static void
begin_posing(const RowCompareIndexes *found)
{
	ListCell   *lc;
	ListCell   *lc2;
	static bool registered = false;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(pose_again, (Datum) 0);
		registered = true;
	}
	forboth(lc, found->indexids, lc2, found->lockmodes)
	{
		Relation	index = index_open(lfirst_oid(lc), lfirst_int(lc2));

		if (nvm_relation_is_btree(index) && index->rd_rel->relam != BTREE_AM_OID)
		{
			NvmIndexPose *pose = palloc(sizeof(NvmIndexPose));

			pose->index = index;
			pose->method = index->rd_rel->relam;
			pose->next = posing;
			posing = pose;
			index->rd_rel->relam = BTREE_AM_OID;
		}
		else
			index_close(index, NoLock);
	}
}

/*
 * Down to the poses that there were before.  After an ERROR (`failed`) the
 * resource owner gives up the relations.
 */
static void
end_posing(NvmIndexPose *outer, bool failed)
{
	while (posing != outer)
	{
		NvmIndexPose *pose = posing;

		posing = pose->next;
		pose->index->rd_rel->relam = pose->method;
		if (!failed)
			index_close(pose->index, NoLock);
		pfree(pose);
	}
}

/*
 * Make the state for rechecking rows of all nodes that may need it.
 */
static bool
begin_rechecks(PlanState *planstate, void *context)
{
	if (planstate == NULL)
		return false;
	if (IsA(planstate, LockRowsState))
		EvalPlanQualBegin(&((LockRowsState *) planstate)->lr_epqstate);
	else if (IsA(planstate, ModifyTableState) &&
			 ((ModifyTableState *) planstate)->operation != CMD_INSERT)
		EvalPlanQualBegin(&((ModifyTableState *) planstate)->mt_epqstate);
	return planstate_tree_walker(planstate, begin_rechecks, context);
}

/*
 * The same for a query, but no InitPlan is run.  When PostgreSQL makes that
 * state, a row is at hand, so it computes all values that the recheck may
 * need.  It does so again for each recheck with state that is there already
 * (EvalPlanQualBegin).
 */
static void
begin_all_rechecks(QueryDesc *queryDesc)
{
	EState	   *estate = queryDesc->estate;
	int			nparams = list_length(estate->es_plannedstmt->paramExecTypes);
	void	  **plans;
	MemoryContext oldcontext = MemoryContextSwitchTo(estate->es_query_cxt);

	plans = palloc0((nparams + 1) * sizeof(void *));
	for (int i = 0; i < nparams; i++)
	{
		plans[i] = estate->es_param_exec_vals[i].execPlan;
		estate->es_param_exec_vals[i].execPlan = NULL;
	}
	begin_rechecks(queryDesc->planstate, NULL);
	/* an error ends the query, which leaves these to nobody */
	for (int i = 0; i < nparams; i++)
		estate->es_param_exec_vals[i].execPlan = plans[i];
	pfree(plans);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * ExecutorStart_hook, around the start of the executor.
 */
void
nvm_btree_start_query(QueryDesc *queryDesc, int eflags, ExecutorStart_hook_type next)
{
	RowCompareIndexes found = {.stmt = queryDesc->plannedstmt};
	NvmIndexPose *volatile outer = posing;
	bool		was_suspended = pose_suspended;
	volatile bool failed = true;

	if ((eflags & EXEC_FLAG_EXPLAIN_ONLY) == 0)
	{
		find_in_plan(&found, found.stmt->planTree);
		find_in_plans(&found, found.stmt->subplans);
	}
	if (found.indexids == NIL)
	{
		next(queryDesc, eflags);
		return;
	}

	PG_TRY();
	{
		pose_suspended = false;
		begin_posing(&found);
		next(queryDesc, eflags);
		if (!IsolationUsesXactSnapshot())
			begin_all_rechecks(queryDesc);
		failed = false;
	}
	PG_FINALLY();
	{
		end_posing(outer, failed);
		set_posing(!was_suspended);
	}
	PG_END_TRY();
}

#endif							/* NVM_ROW_COMPARE_WANTS_BTREE */
