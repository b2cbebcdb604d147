/*-------------------------------------------------------------------------
 *
 * hooks.c
 *	  Hooks of PostgreSQL that several parts want: one for each, and the order.
 *
 * A hook is installed once.  Its function here calls the parts in the order in
 * which they stand, and the next library's hook, or PostgreSQL's own function,
 * at its place among them.  Hooks that one part alone wants are that part's:
 * object_access_hook and ProcessUtility_hook (ddl/ddl_hooks.c).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "am/nvm_am.h"
#include "btree/nvm_btree_am.h"
#include "btree/nvm_btree_identity.h"
#include "command/nvm_command.h"
#include "compat/nvm_compat_am.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "func/nvm_block_readers.h"
#include "nvm_library.h"
#include "optimizer/paths.h"
#include "optimizer/plancat.h"
#include "optimizer/planner.h"
#include "parser/analyze.h"
#include "row/nvm_relation.h"
#include "storage/nvm_allvisible_set.h"
#include "wbl/nvm_snapshot.h"

static get_relation_info_hook_type prev_get_relation_info = NULL;
static set_rel_pathlist_hook_type prev_set_rel_pathlist = NULL;
static post_parse_analyze_hook_type prev_post_parse_analyze = NULL;
static planner_hook_type prev_planner = NULL;
static ExecutorStart_hook_type prev_ExecutorStart = NULL;
static ExecutorRun_hook_type prev_ExecutorRun = NULL;
static ExecutorFinish_hook_type prev_ExecutorFinish = NULL;
static ExecutorEnd_hook_type prev_ExecutorEnd = NULL;
static needs_fmgr_hook_type prev_needs_fmgr = NULL;
static fmgr_hook_type prev_fmgr = NULL;

/* ---- functions ---- */

static bool
nvm_needs_fmgr(Oid fn_oid)
{
	if (prev_needs_fmgr && prev_needs_fmgr(fn_oid))
		return true;
	return nvm_command_is_registered(fn_oid) || nvm_is_block_reader(fn_oid) ||
		nvm_command_watches(fn_oid);
}

/*
 * fmgr_hook.  Others' functions come here too, and those with SET or SECURITY DEFINER.
 */
static void
nvm_fmgr(FmgrHookEventType event, FmgrInfo *flinfo, Datum *arg)
{
	Datum	   *next_arg = nvm_command_hook_argument(flinfo, arg);

	if (prev_fmgr)
		prev_fmgr(event, flinfo, next_arg);
	if (event == FHET_START)
	{
		/* a registered one has the address of command/, with ours behind it */
		if (next_arg == arg)
			nvm_block_reader_enter(flinfo);
		nvm_command_enter(flinfo, arg);
	}
}

/* ---- the parser ---- */

static void
nvm_post_parse_analyze(ParseState *pstate, Query *query, JumbleState *jstate)
{
	if (prev_post_parse_analyze)
		prev_post_parse_analyze(pstate, query, jstate);
	nvm_command_query_analyzed(query, pstate->p_sourcetext);
}

/* ---- the planner ---- */

/*
 * The indexes that the planner may use.
 *
 * Others come first: what they add is looked at here, too.  Indexes that are not
 * whole go before anything is said of the rest.  Whether an index is ours is told
 * by its cost function, which is why those are replaced last.
 */
static void
nvm_get_relation_info(PlannerInfo *root, Oid relid, bool inhparent, RelOptInfo *rel)
{
	if (prev_get_relation_info)
		prev_get_relation_info(root, relid, inhparent, rel);
	nvm_index_exchange_planned(relid, rel);
	nvm_index_plan_no_workers(root, relid, rel);
	nvm_btree_hide_absent_indexes(rel);
	nvm_indexes_prove_planned(relid, rel);
	nvm_plan_choose_cost_functions(relid, inhparent, rel);
}

static void
nvm_set_rel_pathlist(PlannerInfo *root, RelOptInfo *rel, Index rti, RangeTblEntry *rte)
{
	nvm_plan_pin_lanes(root, rel, rte);
	nvm_plan_paths_made(root, rel, rti, rte, prev_set_rel_pathlist);
}

/*
 * planner_hook: page costs are set for the planner, and taken back.  Expressions that
 * PL/pgSQL will evaluate by itself are marked in the plan, as is what the order of
 * rows means to the query.
 */
static PlannedStmt *
nvm_planner(Query *parse, const char *query_string, int cursorOptions,
			ParamListInfo boundParams)
{
	int			order = nvm_command_query_parsed(parse, query_string);
	PlannedStmt *stmt;

	/*
	 * parallel workers know nothing of a replay, nor of what it is redirected
	 * to
	 */
	if (unlikely(nvm_command_replaying))
		cursorOptions &= ~CURSOR_OPT_PARALLEL_OK;
	stmt = nvm_plan_with_page_costs(nvm_command_tape_query(parse), query_string,
									cursorOptions, boundParams,
									prev_planner ? prev_planner : standard_planner);

	nvm_command_query_planned(stmt, order);
	nvm_command_mark_plan(stmt, order);
	return stmt;
}

/* ---- the executor ---- */

/*
 * ExecutorStart_hook.
 *
 * Indexes that were built in this command are right before anybody reads them.  The
 * snapshot is published before the executor opens tables by it.  Indexes that say btree
 * are held while the executor opens them.  The rest looks at the plan's nodes when they
 * are there: unique indexes of an INSERT, bitmap scans, slots of index-only scans, what a
 * call reads; none of these depends on another.
 *
 * What a plan does in a call of a registered function is judged before it runs.
 */
static void
nvm_ExecutorStart(QueryDesc *query, int eflags)
{
	bool		outer_slots;
	bool		outer_bitmap;

	nvm_command_query_starts(query);
	nvm_index_write_taken();
	nvm_snapshot_before_query(query);
	outer_slots = nvm_unread_slots_begin();
	outer_bitmap = nvm_bitmap_query_begin();
	nvm_index_hold_and_start(query, eflags,
							 prev_ExecutorStart ? prev_ExecutorStart : standard_ExecutorStart);
#if NVM_SPECULATIVE_WANTS_BTREE
	nvm_speculative_query_started(query, eflags);
#endif
	nvm_cmdlog_query_started(query);
	nvm_bitmap_query_end(query, outer_bitmap);
	nvm_unread_slots_end(query, eflags, outer_slots);
	nvm_command_query_started(query);
}

/*
 * ExecutorRun_hook
 */
static void
nvm_ExecutorRun(NVM_EXECUTOR_RUN_ARGS)
{
	ExecutorRun_hook_type next = prev_ExecutorRun ? prev_ExecutorRun : standard_ExecutorRun;
	int			outer;

	outer = nvm_command_query_runs(queryDesc);
#if NVM_SPECULATIVE_WANTS_BTREE
	nvm_speculative_run(queryDesc, direction, count, execute_once, next);
#else
	next(NVM_EXECUTOR_RUN_PASS);
#endif
	nvm_command_query_ran(queryDesc, outer);
}

/*
 * ExecutorFinish_hook: AFTER triggers run.
 */
static void
nvm_ExecutorFinish(QueryDesc *query)
{
	int			outer = nvm_command_query_finishes(query);

	if (prev_ExecutorFinish)
		prev_ExecutorFinish(query);
	else
		standard_ExecutorFinish(query);
	nvm_command_query_ran(query, outer);
}

static void
nvm_ExecutorEnd(QueryDesc *query)
{
	nvm_command_query_ends(query);
	if (prev_ExecutorEnd)
		prev_ExecutorEnd(query);
	else
		standard_ExecutorEnd(query);
}

/*
 * Install them; in _PG_init.
 */
void
nvm_install_hooks(void)
{
	prev_get_relation_info = get_relation_info_hook;
	get_relation_info_hook = nvm_get_relation_info;
	prev_set_rel_pathlist = set_rel_pathlist_hook;
	set_rel_pathlist_hook = nvm_set_rel_pathlist;
	prev_post_parse_analyze = post_parse_analyze_hook;
	post_parse_analyze_hook = nvm_post_parse_analyze;
	prev_planner = planner_hook;
	planner_hook = nvm_planner;
	prev_ExecutorStart = ExecutorStart_hook;
	ExecutorStart_hook = nvm_ExecutorStart;
	prev_ExecutorRun = ExecutorRun_hook;
	ExecutorRun_hook = nvm_ExecutorRun;
	prev_ExecutorFinish = ExecutorFinish_hook;
	ExecutorFinish_hook = nvm_ExecutorFinish;
	prev_ExecutorEnd = ExecutorEnd_hook;
	ExecutorEnd_hook = nvm_ExecutorEnd;
	prev_needs_fmgr = needs_fmgr_hook;
	needs_fmgr_hook = nvm_needs_fmgr;
	prev_fmgr = fmgr_hook;
	fmgr_hook = nvm_fmgr;
}
