/*-------------------------------------------------------------------------
 *
 * plan_pin.c
 *	  In a call, partitioned tables of nvm_cmdlog are read by their lanes.
 *
 * A call can be replayed if what it reads lies in the lanes that it holds, and that is
 * known only of scans by an index with the partition column equal to a value
 * (btree/btree_pin.c).  A table of ten rows is cheaper to scan.  So when a query is
 * planned in a call, and an index with such a condition is there, the other ways are
 * not: all of them, if the value is known when the scan begins; else, where it comes
 * from another table of the query, they cost so much more that a nested loop wins.
 *
 * The planner has dropped paths that seemed dearer than others.  So those of indexes
 * that have the column are made once more, by themselves, and cost more if they do not
 * use it.  Plans that are made outside of calls are as they would be.  A function that is
 * registered plans its queries in its calls, so a cached plan is one of these.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "am/nvm_am.h"
#include "btree/nvm_btree.h"
#include "command/nvm_command.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "utils/rel.h"

/* what another way costs besides, also if it is dropped afterwards */
#define OTHER_WAY		1000.0
#define OTHER_WAY_ROW	1.0

/* the partition column of the table */
typedef struct PlanPin
{
	AttrNumber	column;
	Oid			type;
	Oid			collation;
} PlanPin;

/* while paths of indexes are made for it, and are to use the column */
static const PlanPin *wanted = NULL;

/*
 * Has the condition of an index the form that btree_pin.c wants?
 */
static bool
clause_pins(const IndexClause *clause, Oid collation, const PlanPin *pin)
{
	RestrictInfo *info = linitial_node(RestrictInfo, clause->indexquals);
	Oid			operator = InvalidOid;

	if (clause->lossy)
		return false;
	if (IsA(info->clause, OpExpr))
		operator = ((OpExpr *) info->clause)->opno;
	else if (IsA(info->clause, ScalarArrayOpExpr) && ((ScalarArrayOpExpr *) info->clause)->useOr)
		operator = ((ScalarArrayOpExpr *) info->clause)->opno;
	return nvm_equality_keeps_lane(operator, collation, pin->type, pin->collation);
}

static bool
index_path_pins(const IndexPath *path, const PlanPin *pin)
{
	const IndexOptInfo *index = path->indexinfo;
	ListCell   *lc;

	if (!nvm_index_is_ours(index->indexoid))
		return false;
	foreach(lc, path->indexclauses)
	{
		IndexClause *clause = lfirst_node(IndexClause, lc);

		if (index->indexkeys[clause->indexcol] == pin->column &&
			clause_pins(clause, index->indexcollations[clause->indexcol], pin))
			return true;
	}
	return false;
}

/*
 * Does the path read rows of named lanes alone?
 */
static bool
path_pins(const Path *path, const PlanPin *pin)
{
	List	   *parts;
	ListCell   *lc;

	if (IsA(path, BitmapHeapPath))
		return path_pins(((const BitmapHeapPath *) path)->bitmapqual, pin);
	if (IsA(path, IndexPath))
		return index_path_pins((const IndexPath *) path, pin);
	if (IsA(path, BitmapAndPath))
		parts = ((const BitmapAndPath *) path)->bitmapquals;
	else if (IsA(path, BitmapOrPath))
		parts = ((const BitmapOrPath *) path)->bitmapquals;
	else
		return false;
	foreach(lc, parts)
	{
		if (!path_pins(lfirst(lc), pin))
			return false;
	}
	return true;
}

/*
 * What an index scan costs besides, for it does not use the column.
 */
Cost
nvm_plan_other_way(const IndexPath *path)
{
	if (likely(wanted == NULL) || index_path_pins(path, wanted))
		return 0;
	return OTHER_WAY + OTHER_WAY_ROW * path->indexinfo->rel->tuples;
}

/*
 * The paths of rel, chosen among those that pin and, if all of these need values of
 * other tables, the other ones.
 */
static void
choose_paths(RelOptInfo *rel, List *by_index, List *all_ways, const PlanPin *pin)
{
	bool		any = false;
	bool		alone = false;
	ListCell   *lc;

	rel->pathlist = NIL;
	foreach(lc, by_index)
	{
		Path	   *path = lfirst(lc);

		if (!path_pins(path, pin))
			continue;
		any = true;
		alone |= path->param_info == NULL;
		add_path(rel, path);
	}
	if (!any)
	{
		rel->pathlist = all_ways;
		return;
	}
	/* workers hold no lanes */
	rel->partial_pathlist = NIL;
	rel->consider_parallel = false;
	if (alone)
		return;
	foreach(lc, all_ways)
	{
		Path	   *path = lfirst(lc);

		if (path->param_info != NULL)
			continue;
		path->total_cost += OTHER_WAY + OTHER_WAY_ROW * rel->tuples;
		add_path(rel, path);
	}
}

/*
 * The indexes of rel that may serve: others' paths would be in the way.
 */
static List *
indexes_with_column(RelOptInfo *rel, AttrNumber column)
{
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, rel->indexlist)
	{
		IndexOptInfo *index = lfirst_node(IndexOptInfo, lc);
		bool		has = false;

		for (int i = 0; i < index->nkeycolumns; i++)
			has |= index->indexkeys[i] == column;
		if (has && nvm_index_is_ours(index->indexoid))
			result = lappend(result, index);
	}
	return result;
}

/*
 * set_rel_pathlist_hook, before the others, and before page costs are put back: all
 * paths of rel are made.
 */
void
nvm_plan_pin_lanes(PlannerInfo *root, RelOptInfo *rel, RangeTblEntry *rte)
{
	PlanPin		pin = {InvalidAttrNumber};
	Relation	table;
	List	   *all_ways;
	List	   *partial;
	List	   *indexes;

	if (likely(!nvm_command_in_call()))
		return;
	if (rte->rtekind != RTE_RELATION || rte->inh || rte->tablesample != NULL ||
		rel->indexlist == NIL || IS_DUMMY_REL(rel))
		return;
	/* the planner has it open */
	table = table_open(rte->relid, NoLock);
	if (nvm_command_is_table(table))
		pin.column = nvm_command_partition_column(table, NULL);
	if (pin.column != InvalidAttrNumber)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(table), pin.column - 1);

		pin.type = att->atttypid;
		pin.collation = att->attcollation;
	}
	table_close(table, NoLock);
	if (pin.column == InvalidAttrNumber)
		return;

	all_ways = rel->pathlist;
	partial = rel->partial_pathlist;
	indexes = rel->indexlist;
	rel->pathlist = rel->partial_pathlist = NIL;
	rel->indexlist = indexes_with_column(rel, pin.column);
	PG_TRY();
	{
		wanted = &pin;
		create_index_paths(root, rel);
	}
	PG_FINALLY();
	{
		wanted = NULL;
	}
	PG_END_TRY();
	rel->partial_pathlist = partial;
	rel->indexlist = indexes;
	choose_paths(rel, rel->pathlist, all_ways, &pin);
}
