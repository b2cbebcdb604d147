/*-------------------------------------------------------------------------
 *
 * btree_cost.c
 *	  What an index scan costs.
 *
 * The model is that of btree, in the same units, so that plans are those that
 * one knows.  It is not btree's function, for two reasons.  That counts on
 * what our scans do not do: skip over values of a leading column (18), or read
 * on where the next element of an array is near (17).  And PostgreSQL measures
 * an index by its main fork, where ours has nothing.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/genam.h"
#include "access/stratnum.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_am.h"
#include "catalog/pg_statistic.h"
#include "compat/nvm_compat_indexam.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "parser/parsetree.h"
#include "utils/lsyscache.h"
#include "utils/spccache.h"
#include "utils/syscache.h"

/* the page to which a descent leads, as a part of one that has to be fetched */
#define FIRST_PAGE			(1.0 / 40)
/* work on a page of the tree, in units of cpu_operator_cost, as for btree */
#define PAGE_WORK			50.0
/* entries of a block, of an index of which nobody has counted any */
#define ENTRIES_PER_BLOCK	150

int
nvm_btree_height(Relation index)
{
	uint64		root = __atomic_load_n(&nvm_index_cache(index)->meta->root, __ATOMIC_RELAXED);

	return NVM_INDEX_ROOT_LEVEL(root);
}

/*
 * Complete what the planner knows of the index.
 */
static void
measure(IndexOptInfo *index)
{
	Relation	rel;
	double		tuples;

	if (index->hypothetical || (index->pages > 0 && index->tree_height >= 0))
		return;

	/* the planner has locked it */
	rel = index_open(index->indexoid, NoLock);
	index->tree_height = nvm_btree_height(rel);
	index->pages = pg_atomic_read_u32(&nvm_index_cache(rel)->state->nblocks);
	if (index->indpred != NIL)
	{
		tuples = rel->rd_rel->reltuples;
		if (tuples <= 0)
			tuples = (double) index->pages * ENTRIES_PER_BLOCK;
		index->tuples = Min(tuples, index->rel->tuples);
	}
	index_close(rel, NoLock);
}

/* what determines how much of the index is read */
typedef struct NvmBoundQuals
{
	List	   *quals;
	double		nscans;			/* combinations of array elements */
	bool		one_row;		/* a unique key is given whole */
} NvmBoundQuals;

/*
 * Does an index condition say that its column equals something?  If it is one
 * of several, *nelems is their number.
 */
static bool
is_equality(PlannerInfo *root, Expr *clause, Oid opfamily, double *nelems, bool *isnull)
{
	Oid			operator;

	*nelems = 1;
	*isnull = false;
	if (IsA(clause, NullTest))
		return *isnull = ((NullTest *) clause)->nulltesttype == IS_NULL;
	if (IsA(clause, OpExpr))
		operator = ((OpExpr *) clause)->opno;
	else if (IsA(clause, ScalarArrayOpExpr))
	{
		ScalarArrayOpExpr *any = (ScalarArrayOpExpr *) clause;

		operator = any->opno;
		*nelems = Max(1, nvm_estimate_array_length(root, (Node *) lsecond(any->args)));
	}
	else
		return false;
	return get_op_opfamily_strategy(operator, opfamily) == BTEqualStrategyNumber;
}

/*
 * The conditions that btree_scankey.c makes bounds of: equalities of leading
 * columns, and all of the first column that has none.
 */
static void
find_bounds(PlannerInfo *root, IndexPath *path, NvmBoundQuals *bound)
{
	IndexOptInfo *index = path->indexinfo;
	int			col = 0;
	bool		equal = false;
	bool		several = false;
	double		column_scans = 1;
	ListCell   *lc;

	bound->quals = NIL;
	bound->nscans = 1;
	foreach(lc, path->indexclauses)
	{
		IndexClause *clause = lfirst_node(IndexClause, lc);
		ListCell   *lc2;

		if (clause->indexcol != col)
		{
			if (!equal || clause->indexcol != col + 1)
				break;
			bound->nscans *= column_scans;
			col++;
			equal = false;
			column_scans = 1;
		}
		foreach(lc2, clause->indexquals)
		{
			RestrictInfo *rinfo = lfirst_node(RestrictInfo, lc2);
			double		nelems;
			bool		isnull;

			bound->quals = lappend(bound->quals, rinfo);
			if (!is_equality(root, rinfo->clause, index->opfamily[col], &nelems, &isnull))
				continue;

			/*
			 * of two equalities of a column the one with fewer elements
			 * counts
			 */
			column_scans = equal ? Min(column_scans, nelems) : nelems;
			several |= isnull || IsA(rinfo->clause, ScalarArrayOpExpr);
			equal = true;
		}
	}
	bound->nscans *= column_scans;
	bound->one_row = index->unique && equal && !several && col == index->nkeycolumns - 1;
}

/*
 * How the order of the table's rows goes with the first column's, from its
 * statistics.
 */
static double
correlation(PlannerInfo *root, IndexOptInfo *index)
{
	VariableStatData vardata;
	AttStatsSlot slot;
	double		result = 0;
	Oid			relid;
	AttrNumber	attno;
	bool		inherited = false;
	bool		hooked;
	Oid			operator;

	memset(&vardata, 0, sizeof(vardata));
	if (index->indexkeys[0] != 0)
	{
		RangeTblEntry *rte = planner_rt_fetch(index->rel->relid, root);

		relid = rte->relid;
		attno = index->indexkeys[0];
		inherited = rte->inh;
		hooked = get_relation_stats_hook != NULL &&
			get_relation_stats_hook(root, rte, attno, &vardata);
	}
	else
	{
		relid = index->indexoid;
		attno = 1;
		hooked = get_index_stats_hook != NULL &&
			get_index_stats_hook(root, relid, attno, &vardata);
	}
	if (!hooked)
	{
		vardata.statsTuple = SearchSysCache3(STATRELATTINH, ObjectIdGetDatum(relid),
											 Int16GetDatum(attno), BoolGetDatum(inherited));
		vardata.freefunc = ReleaseSysCache;
	}
	if (!HeapTupleIsValid(vardata.statsTuple))
		return 0;

	operator = get_opfamily_member(index->opfamily[0], index->opcintype[0],
								   index->opcintype[0], BTLessStrategyNumber);
	if (OidIsValid(operator) &&
		get_attstatsslot(&slot, vardata.statsTuple, STATISTIC_KIND_CORRELATION,
						 operator, ATTSTATSSLOT_NUMBERS))
	{
		if (slot.nnumbers == 1)
			result = slot.numbers[0];
		free_attstatsslot(&slot);
	}
	ReleaseVariableStats(vardata);

	if (index->reverse_sort != NULL && index->reverse_sort[0])
		result = -result;
	/* further columns dilute it */
	return index->nkeycolumns > 1 ? result * 0.75 : result;
}

void
nvm_btree_costestimate(PlannerInfo *root, IndexPath *path, double loop_count,
					   Cost *startup_cost, Cost *total_cost,
					   Selectivity *selectivity, double *index_correlation,
					   double *index_pages)
{
	IndexOptInfo *index = path->indexinfo;
	List	   *quals = get_quals_from_indexclauses(path->indexclauses);
	NvmBoundQuals bound;
	double		tuples = 1;		/* read by one descent, as are pages */
	double		pages = 1;
	double		page_cost;
	double		descent;
	Cost		args;
	Cost		total;

	measure(index);
	find_bounds(root, path, &bound);

	*selectivity = clauselist_selectivity(root, add_predicate_to_index_quals(index, quals),
										  index->rel->relid, JOIN_INNER, NULL);
	if (!bound.one_row)
		tuples = clauselist_selectivity(root, add_predicate_to_index_quals(index, bound.quals),
										index->rel->relid, JOIN_INNER, NULL) *
			index->rel->tuples / bound.nscans;
	tuples = Max(1, Min(rint(tuples), index->tuples));
	if (index->pages > 1 && index->tuples > 1)
		pages = ceil(tuples * index->pages / index->tuples);

	/* a lookup costs no page; what a scan reads besides counts as for btree */
	get_tablespace_page_costs(index->reltablespace, &page_cost, NULL);
	total = bound.nscans * page_cost * FIRST_PAGE;
	if (bound.nscans * loop_count > 1)
		total += index_pages_fetched((pages - 1) * bound.nscans * loop_count, index->pages,
									 (double) index->pages, root) * page_cost / loop_count;
	else
		total += (pages - 1) * page_cost;

	args = index_other_operands_eval_cost(root, quals);
	total += args;
	total += tuples * bound.nscans *
		(cpu_index_tuple_cost + cpu_operator_cost * list_length(quals));

	/* the way down: comparisons, and something for each page */
	descent = (Max(index->tree_height, 0) + 1) * PAGE_WORK * cpu_operator_cost;
	if (index->tuples > 1)
		descent += ceil(log(index->tuples) / log(2.0)) * cpu_operator_cost;
	total += descent * bound.nscans;

	*startup_cost = args + descent;
	*total_cost = total;
	/* one row is on one page, in whatever order */
	*index_correlation = bound.one_row ? 0 : correlation(root, index);
	*index_pages = pages;
}
