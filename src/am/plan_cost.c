/*-------------------------------------------------------------------------
 *
 * plan_cost.c
 *	  The cost of index scans of nvm tables, for the planner.
 *
 * PostgreSQL takes it that a row to which an index leads lies on a page that
 * has to be fetched.  It charges random_page_cost, 4.0, for that: as much as
 * for looking at some hundred rows in a sequential scan.  Rows of nvm tables
 * are in memory.  What remains is that their cache lines are not where the
 * processor is.  That costs some ten times the work on a row that a scan
 * comes by.
 *
 * The planner adds the cost of the table's pages itself, when the index's own
 * function, amcostestimate, has returned (cost_index), and once more when it
 * puts bitmaps together.  It takes what a page costs from the settings.  So
 * the functions of all indexes of nvm tables leave behind settings that are a
 * fortieth of the user's, which keeps the proportion of random to sequential.
 * set_rel_pathlist_hook follows when all paths of a table are made, and puts
 * the user's settings back.  What tablespaces say of themselves stays as it
 * is.
 *
 * A planner within the planner, called by a function of the query, begins
 * with the user's settings.  They are there again whatever ends the planner.
 * Such a function may set them itself.  Then PostgreSQL brings back the
 * settings that it found, the lowered ones.  If it does so when the function
 * returns, that is in time.  If it does so when a transaction ends, it is
 * not: then they are replaced.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "am/nvm_am.h"
#include "btree/nvm_btree_am.h"
#include "compat/nvm_compat_am.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "optimizer/plancat.h"
#include "optimizer/planner.h"
#include "row/nvm_relation.h"
#include "utils/index_selfuncs.h"
#include "utils/memutils.h"
#include "utils/spccache.h"

/* a page of a table in memory, as a part of one that has to be fetched */
#define MEMORY_PAGE			(1.0 / 40)
/* a row that an index leads to, in units of cpu_tuple_cost, besides what it costs in a scan */
#define ROW_ACCESS			10.0

typedef struct PageCosts
{
	double		random;
	double		seq;
} PageCosts;

/* planners that are under way: none of them, nobody puts the settings back */
static int	planner_depth = 0;

/* paths of an nvm table are being made, and these are the settings for that */
static bool page_costs_lowered = false;
static PageCosts users_costs;
static PageCosts lowered_costs;

/* its paths are made; if another hook makes them anew, nobody comes to restore */
static const RelOptInfo *finished_rel = NULL;

/* what an end of a transaction may bring back, and what it is to be then */
typedef struct StaleCosts
{
	MemoryContextCallback callback;
	PageCosts	users;
	PageCosts	lowered;
} StaleCosts;

/* ---- settings ---- */

static void
exchange_page_costs(const PageCosts *from, const PageCosts *to)
{
	if (random_page_cost == from->random)
		random_page_cost = to->random;
	if (seq_page_cost == from->seq)
		seq_page_cost = to->seq;
}

static void
replace_stale_costs(void *arg)
{
	const StaleCosts *stale = arg;

	exchange_page_costs(&stale->lowered, &stale->users);
}

/*
 * A function of the query, or one that failed, has set page costs meanwhile.
 * The lowered values that it found were noted for the end of its transaction
 * or of an outer one.  The memory of a transaction goes after its settings.
 */
static void
expect_stale_costs(void)
{
	StaleCosts *stale = MemoryContextAlloc(CurTransactionContext, sizeof(StaleCosts));

	stale->users = users_costs;
	stale->lowered = lowered_costs;
	stale->callback.func = replace_stale_costs;
	stale->callback.arg = stale;
	MemoryContextRegisterResetCallback(CurTransactionContext, &stale->callback);
}

/*
 * The user's page costs, as they are to be when the cost of an index is
 * estimated.
 */
static void
restore_page_costs(void)
{
	bool		set_meanwhile;

	if (!page_costs_lowered)
		return;
	page_costs_lowered = false;
	set_meanwhile = random_page_cost != lowered_costs.random ||
		seq_page_cost != lowered_costs.seq;
	exchange_page_costs(&lowered_costs, &users_costs);
	if (set_meanwhile)
		expect_stale_costs();
}

static void
lower_page_costs(void)
{
	if (page_costs_lowered || planner_depth == 0)
		return;
	users_costs.random = random_page_cost;
	users_costs.seq = seq_page_cost;
	random_page_cost *= MEMORY_PAGE;
	seq_page_cost *= MEMORY_PAGE;
	lowered_costs.random = random_page_cost;
	lowered_costs.seq = seq_page_cost;
	page_costs_lowered = true;
}

/*
 * The cost of an index of `rel` has been estimated: make the planner take the
 * pages of the table for what they are.  But not when all paths of it are
 * made (reparameterize_path, or a hook's own paths): then nothing would put
 * the settings back soon.
 */
static void
lower_for(const RelOptInfo *rel)
{
	if (rel != finished_rel && rel->cheapest_total_path == NULL)
		lower_page_costs();
}

/*
 * The cost of an index of an nvm table has been estimated: add what the rows
 * cost, and make the planner take their pages for what they are.
 */
static void
add_rows(IndexPath *path, Selectivity selectivity, Cost *total_cost)
{
	RelOptInfo *rel = path->indexinfo->rel;
	double		tuples = clamp_row_est(selectivity * rel->tuples);

	if (path->path.pathtype == T_IndexOnlyScan)
		tuples *= 1.0 - rel->allvisfrac;
	*total_cost += tuples * ROW_ACCESS * cpu_tuple_cost + nvm_plan_other_way(path);
	lower_for(rel);
}

/* ---- indexes ---- */

#define IN_MEMORY(name, estimate) \
static void \
name(PlannerInfo *root, IndexPath *path, double loop_count, \
	 Cost *startup_cost, Cost *total_cost, Selectivity *selectivity, \
	 double *correlation, double *pages) \
{ \
	restore_page_costs(); \
	estimate(root, path, loop_count, startup_cost, total_cost, selectivity, \
			 correlation, pages); \
	add_rows(path, *selectivity, total_cost); \
}

IN_MEMORY(nvm_btree_cost, nvm_btree_costestimate)
IN_MEMORY(btree_cost, btcostestimate)
IN_MEMORY(hash_cost, hashcostestimate)
IN_MEMORY(gist_cost, gistcostestimate)
IN_MEMORY(spgist_cost, spgcostestimate)
IN_MEMORY(gin_cost, gincostestimate)

/*
 * BRIN: blocks are read as in a scan.  The planner is going to charge less
 * for them; the difference is added here, so that it does not matter which
 * index is asked last.
 */
static void
brin_cost(PlannerInfo *root, IndexPath *path, double loop_count,
		  Cost *startup_cost, Cost *total_cost, Selectivity *selectivity,
		  double *correlation, double *pages)
{
	RelOptInfo *rel = path->indexinfo->rel;
	double		users_seq;
	double		lowered_seq;

	restore_page_costs();
	brincostestimate(root, path, loop_count, startup_cost, total_cost, selectivity,
					 correlation, pages);
	get_tablespace_page_costs(rel->reltablespace, NULL, &users_seq);
	lower_for(rel);
	get_tablespace_page_costs(rel->reltablespace, NULL, &lowered_seq);
	*total_cost += *selectivity * rel->pages * (users_seq - lowered_seq);
}

typedef void (*cost_function) (PlannerInfo *root, IndexPath *path, double loop_count,
							   Cost *startup_cost, Cost *total_cost,
							   Selectivity *selectivity, double *correlation,
							   double *pages);

static const struct
{
	cost_function own;
	cost_function here;
}			cost_functions[] =

{
	{nvm_btree_costestimate, nvm_btree_cost},
	{btcostestimate, btree_cost},
	{hashcostestimate, hash_cost},
	{gistcostestimate, gist_cost},
	{spgcostestimate, spgist_cost},
	{gincostestimate, gin_cost},
	{brincostestimate, brin_cost}
};

/*
 * get_relation_info_hook: the indexes of an nvm table get the functions above.
 */
void
nvm_plan_choose_cost_functions(Oid relid, bool inhparent, RelOptInfo *rel)
{
	Relation	table;
	bool		ours;
	ListCell   *lc;

	if (inhparent || rel->indexlist == NIL)
		return;
	/* the planner has it open */
	table = table_open(relid, NoLock);
	ours = nvm_relation_is_nvm(table);
	table_close(table, NoLock);
	if (!ours)
		return;
	foreach(lc, rel->indexlist)
	{
		IndexOptInfo *info = lfirst_node(IndexOptInfo, lc);

		for (int i = 0; i < (int) lengthof(cost_functions); i++)
		{
			if ((void *) info->amcostestimate == (void *) cost_functions[i].own)
				info->amcostestimate = (void *) cost_functions[i].here;
		}
	}
}

/* ---- hooks ---- */

/*
 * set_rel_pathlist_hook: all paths of a table are made.
 */
void
nvm_plan_paths_made(PlannerInfo *root, RelOptInfo *rel, Index rti, RangeTblEntry *rte,
					set_rel_pathlist_hook_type next)
{
	restore_page_costs();
	finished_rel = rel;
	if (next)
		next(root, rel, rti, rte);
	restore_page_costs();
}

/*
 * planner_hook, around the others'.
 */
PlannedStmt *
nvm_plan_with_page_costs(Query *parse, const char *query_string, int cursorOptions,
						 ParamListInfo boundParams, planner_hook_type next)
{
	PlannedStmt *volatile result = NULL;
	bool		lowered = page_costs_lowered;
	PageCosts	outer_users = users_costs;
	PageCosts	outer_lowered = lowered_costs;
	const RelOptInfo *outer_finished = finished_rel;

	restore_page_costs();
	finished_rel = NULL;
	planner_depth++;
	PG_TRY();
	{
		result = next(parse, query_string, cursorOptions, boundParams);
	}
	PG_FINALLY();
	{
		restore_page_costs();
		planner_depth--;
		finished_rel = outer_finished;
		if (lowered)
		{
			/* what the function that planned has set remains till it returns */
			users_costs = outer_users;
			lowered_costs = outer_lowered;
			page_costs_lowered = true;
			exchange_page_costs(&users_costs, &lowered_costs);
		}
	}
	PG_END_TRY();
	return result;
}
