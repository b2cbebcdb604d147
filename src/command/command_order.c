/*-------------------------------------------------------------------------
 *
 * command_order.c
 *	  Does what a query does depend on the order in which rows are found?
 *
 * A replay puts rows in other places, and may choose another plan.  So the order of a
 * query's rows is that of its ORDER BY, or none.  A query is looked at before it is
 * planned, if the database has registered functions, and what was found out goes into
 * its plan as a mark (command_running.c).
 *
 * Order may matter in three ways: within the query (LIMIT, a float sum); to who reads its
 * rows; and to what is done while it evaluates expressions over them (nextval, triggers
 * that write).  The first makes the call one of values, the others do if they happen.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "access/transam.h"
#include "catalog/pg_aggregate.h"
#include "catalog/pg_language_d.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "command/command_impl.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parsetree.h"
#include "rewrite/rewriteManip.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

/* a query and those around it */
typedef struct Level
{
	Query	   *query;
	struct Level *outer;
	Bitmapset  *single;			/* sources of one row at most */
	Bitmapset  *ordered;		/* whose rows come in an order of their own */
	Bitmapset  *one_row_ctes;	/* by their place in cteList */
	int		   *found;			/* NVM_ORDER_..., of all levels */
} Level;

/* the rows of a query */
typedef struct Shape
{
	bool		one;			/* there is one at most */
	bool		alike;			/* all are the same */
	bool		ordered;
} Shape;

static Shape judge_query(Query *query, Level *outer, int *found, bool existence);

/* ---- functions ---- */

/*
 * Is it a function that may do something, or give another result each time?  Nothing is
 * known here of what users' functions do, those of their aggregates, or CHECK constraints
 * of domains.  context: NULL, or what is STABLE does not count, nor do domains.
 */
static bool
is_call(Oid function, void *context)
{
	char		kind = func_volatile(function);

	return kind == PROVOLATILE_VOLATILE ||
		(kind == PROVOLATILE_STABLE && function >= FirstNormalObjectId && context == NULL);
}

static bool
walk_calls(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (check_functions_in_node(node, is_call, context) || IsA(node, NextValueExpr) ||
		(IsA(node, CoerceToDomain) && context == NULL))
		return true;
	if ((IsA(node, Aggref) && ((Aggref *) node)->aggfnoid >= FirstNormalObjectId) ||
		(IsA(node, WindowFunc) && ((WindowFunc *) node)->winfnoid >= FirstNormalObjectId))
		return true;
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, walk_calls, context, 0);
	return expression_tree_walker(node, walk_calls, context);
}

bool
nvm_expression_calls(Node *expr)
{
	return walk_calls(expr, NULL);
}

/*
 * What a function in FROM may be replaced by is not known yet.
 */
static bool
may_be_inlined(Node *expr)
{
	FuncExpr   *call = (FuncExpr *) expr;
	HeapTuple	tuple;
	Form_pg_proc proc;
	bool		may;

	if (!IsA(expr, FuncExpr) || call->funcid < FirstNormalObjectId)
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(call->funcid));
	if (!HeapTupleIsValid(tuple))
		return false;
	proc = (Form_pg_proc) GETSTRUCT(tuple);
	may = proc->prolang == SQLlanguageId && proc->proretset &&
		proc->provolatile != PROVOLATILE_VOLATILE;
	ReleaseSysCache(tuple);
	return may;
}

static bool
is_built_in(Node *expr)
{
	return IsA(expr, FuncExpr) && ((FuncExpr *) expr)->funcid < FirstNormalObjectId;
}

/* ---- values that rows are sorted or grouped by ---- */

static bool
is_in(const List *clauses, Index ref)
{
	ListCell   *lc;

	if (ref == 0)
		return false;
	foreach(lc, clauses)
	{
		if (lfirst_node(SortGroupClause, lc)->tleSortGroupRef == ref)
			return true;
	}
	return false;
}

static bool
value_is_same(Node *expr)
{
	return nvm_equal_is_same(exprType(expr), exprTypmod(expr), exprCollation(expr));
}

/*
 * The same in all rows of a query?
 */
static bool
is_constant(Node *expr)
{
	return !contain_vars_of_level(expr, 0) && !contain_aggs_of_level(expr, 0) &&
		!contain_windowfuncs(expr) && !contain_volatile_functions(expr) &&
		!expression_returns_set(expr);
}

/*
 * Are rows that tie in the values sorted by the same in all others?
 */
static bool
all_are_sorted(List *targets, List *sort)
{
	ListCell   *lc;

	foreach(lc, targets)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, lc);

		if (entry->resjunk || is_constant((Node *) entry->expr))
			continue;
		if (!is_in(sort, entry->ressortgroupref) || !value_is_same((Node *) entry->expr))
			return false;
	}
	return true;
}

static bool
covers(List *clauses, List *sort)
{
	ListCell   *lc;

	foreach(lc, clauses)
	{
		if (!is_in(sort, lfirst_node(SortGroupClause, lc)->tleSortGroupRef))
			return false;
	}
	return true;
}

/*
 * Are rows of the sources that tie in these values one row?
 */
static bool
sources_are_told_apart(Level *level, List *sort, List *targets)
{
	List	   *given = NIL;
	ListCell   *lc;

	foreach(lc, sort)
	{
		SortGroupClause *clause = lfirst_node(SortGroupClause, lc);
		Node	   *expr = get_sortgroupclause_expr(clause, targets);

		nvm_add_given(&given, expr, clause->eqop, exprCollation(expr));
	}
	return nvm_rows_are_told_apart(level->query, level->single, NULL, given, NULL);
}

/*
 * Does ORDER BY leave no two rows of the query in an unknown order?  is_distinct: those
 * that DISTINCT leaves.
 */
static bool
sort_is_total(Level *level, List *sort, bool is_distinct)
{
	Query	   *query = level->query;

	if (sort == NIL)
		return false;
	if (all_are_sorted(query->targetList, sort))
		return true;
	if (is_distinct && query->distinctClause != NIL && covers(query->distinctClause, sort))
		return true;
	if (query->groupingSets == NIL && query->groupClause != NIL && !query->hasTargetSRFs &&
		covers(query->groupClause, sort))
		return true;
	return nvm_query_is_plain(query) && sources_are_told_apart(level, sort, query->targetList);
}

/*
 * Is one of several values that are equal chosen, which are not the same?
 */
static bool
a_value_is_chosen(List *clauses, List *targets)
{
	ListCell   *lc;

	foreach(lc, clauses)
	{
		if (!value_is_same(get_sortgroupclause_expr(lfirst_node(SortGroupClause, lc), targets)))
			return true;
	}
	return false;
}

/* ---- aggregates and window functions ---- */

static bool
name_is(const char *name, const char *const *names)
{
	for (; *names != NULL; names++)
	{
		if (strcmp(name, *names) == 0)
			return true;
	}
	return false;
}

/*
 * Is the result of the aggregate the same in any order of its arguments?
 */
static bool
is_order_free(Oid function, Node *argument, Oid collation)
{
	static const char *const always[] = {"count", "bool_and", "bool_or", "every", "bit_and", "bit_or", "bit_xor", NULL};
	static const char *const exact[] = {"sum", "avg", "variance", "var_pop", "var_samp", "stddev", "stddev_pop", "stddev_samp", NULL};
	static const char *const choice[] = {"min", "max", NULL};
	char	   *name;
	Oid			type;

	if (function >= FirstGenbkiObjectId)
		return false;
	name = get_func_name(function);
	if (name == NULL)
		return false;
	if (name_is(name, always))
		return true;
	if (argument == NULL)
		return false;
	type = getBaseType(exprType(argument));
	if (name_is(name, exact))
		return type == INT2OID || type == INT4OID || type == INT8OID || type == NUMERICOID;
	return name_is(name, choice) &&
		nvm_equal_is_same(type, exprTypmod(argument), collation);
}

static bool
aggregate_depends(Level *level, Aggref *agg)
{
	TargetEntry *first = agg->args != NIL ? linitial_node(TargetEntry, agg->args) : NULL;

	if (agg->aggkind == AGGKIND_NORMAL && !a_value_is_chosen(agg->aggdistinct, agg->args) &&
		is_order_free(agg->aggfnoid, first ? (Node *) first->expr : NULL, agg->inputcollid))
		return false;
	if (agg->aggkind == AGGKIND_NORMAL && agg->aggorder != NIL &&
		all_are_sorted(agg->args, agg->aggorder))
		return false;
	return agg->agglevelsup != 0 ||
		!sources_are_told_apart(level, agg->aggkind == AGGKIND_NORMAL ? agg->aggorder : NIL, agg->args);
}

/*
 * Rank and its like are the same for rows that tie; an aggregate without ORDER BY is that
 * of all rows.
 */
static bool
window_depends(Level *level, WindowFunc *call)
{
	static const char *const ranks[] = {"rank", "dense_rank", "percent_rank", "cume_dist", NULL};
	WindowClause *window = list_nth_node(WindowClause, level->query->windowClause, call->winref - 1);
	List	   *sort = list_concat_copy(window->partitionClause, window->orderClause);
	Query	   *query = level->query;

	if (call->winagg && window->orderClause == NIL && !(window->frameOptions & FRAMEOPTION_NONDEFAULT) &&
		is_order_free(call->winfnoid, call->args != NIL ? linitial(call->args) : NULL, call->inputcollid))
		return false;
	if (!call->winagg && call->winfnoid < FirstGenbkiObjectId &&
		name_is(get_func_name(call->winfnoid), ranks))
		return false;
	if (query->groupClause != NIL)
		return query->groupingSets != NIL || !covers(query->groupClause, sort);
	return !sources_are_told_apart(level, sort, query->targetList);
}

/* ---- expressions ---- */

static bool
walk_expressions(Node *node, void *context)
{
	Level	   *level = context;

	if (node == NULL)
		return false;
	if (IsA(node, Var) && ((Var *) node)->varattno < 0 &&
		((Var *) node)->varattno != TableOidAttributeNumber)
		*level->found |= NVM_ORDER_SYSTEM_COLUMN;
	else if (IsA(node, Aggref) && aggregate_depends(level, (Aggref *) node))
		*level->found |= NVM_ORDER_DEPENDS;
	else if (IsA(node, WindowFunc) && window_depends(level, (WindowFunc *) node))
		*level->found |= NVM_ORDER_DEPENDS;
	else if (IsA(node, SubLink))
	{
		SubLink    *link = (SubLink *) node;
		Shape		rows = judge_query(castNode(Query, link->subselect), level, level->found,
									   link->subLinkType == EXISTS_SUBLINK);

		if (link->subLinkType == ARRAY_SUBLINK && !rows.one && !rows.alike && !rows.ordered)
			*level->found |= NVM_ORDER_DEPENDS;
		return walk_expressions(link->testexpr, context);
	}
	else if (IsA(node, Query))
		return false;			/* each is looked at where it stands */
	return expression_tree_walker(node, walk_expressions, context);
}

/* ---- sources ---- */

/*
 * A CTE by its name; NULL: it is the one that we are in.  *place: in the list of its level.
 */
static Level *
find_cte(Level *level, RangeTblEntry *rte, int *place)
{
	ListCell   *lc;

	for (int up = rte->ctelevelsup; up > 0 && level != NULL; up--)
		level = level->outer;
	if (level == NULL)
		return NULL;
	foreach(lc, level->query->cteList)
	{
		*place = foreach_current_index(lc);
		if (strcmp(lfirst_node(CommonTableExpr, lc)->ctename, rte->ctename) == 0)
			return level;
	}
	return NULL;
}

/*
 * Rows of functions that are numbered, or put side by side, are by their order; users'
 * functions return them in none.
 */
static bool
functions_are_ordered(Level *level, RangeTblEntry *rte)
{
	bool		by_place = rte->funcordinality || list_length(rte->functions) > 1;
	ListCell   *lc;

	foreach(lc, rte->functions)
	{
		Node	   *call = lfirst_node(RangeTblFunction, lc)->funcexpr;

		if (may_be_inlined(call))
			*level->found |= NVM_ORDER_DEPENDS;
		if (is_built_in(call))
			continue;
		if (by_place && expression_returns_set(call))
			*level->found |= NVM_ORDER_DEPENDS;
		return false;
	}
	return true;
}

/*
 * The same of functions in the target list: is there a set beside another?
 */
static bool
sets_are_by_place(Query *query)
{
	ListCell   *lc;
	int			sets = 0;

	if (!query->hasTargetSRFs || !walk_calls((Node *) query->targetList, NULL))
		return false;
	foreach(lc, query->targetList)
	{
		Node	   *expr = (Node *) lfirst_node(TargetEntry, lc)->expr;

		if (!expression_returns_set(expr))
			continue;
		if (!IsA(expr, FuncExpr) || expression_returns_set((Node *) ((FuncExpr *) expr)->args))
			return true;
		sets++;
	}
	return sets > 1;
}

static void
judge_source(Level *level, int rti, RangeTblEntry *rte)
{
	Shape		rows = {0};
	Level	   *with;
	int			place;

	switch (rte->rtekind)
	{
		case RTE_SUBQUERY:
			rows = judge_query(rte->subquery, level, level->found, false);
			break;
		case RTE_FUNCTION:
			rows.ordered = functions_are_ordered(level, rte);
			break;
		case RTE_VALUES:
		case RTE_TABLEFUNC:
			rows.ordered = true;
			break;
		case RTE_CTE:
			with = find_cte(level, rte, &place);
			rows.one = with != NULL && !rte->self_reference &&
				bms_is_member(place, with->one_row_ctes);
			break;
		default:
			break;
	}
	if (rows.one)
		level->single = bms_add_member(level->single, rti);
	if (rows.ordered)
		level->ordered = bms_add_member(level->ordered, rti);
}

static void
judge_sources(Level *level)
{
	ListCell   *lc;
	int			rti = 0;

	level->single = nvm_single_sources(level->query);
	foreach(lc, level->query->cteList)
	{
		CommonTableExpr *cte = lfirst_node(CommonTableExpr, lc);
		Shape		rows = judge_query(castNode(Query, cte->ctequery), level, level->found, false);

		if (rows.one && !cte->cterecursive)
			level->one_row_ctes = bms_add_member(level->one_row_ctes, foreach_current_index(lc));
	}
	foreach(lc, level->query->rtable)
		judge_source(level, ++rti, lfirst_node(RangeTblEntry, lc));
}

/*
 * Do the rows come in an order, before anything is sorted?
 */
static bool
sources_are_ordered(Level *level)
{
	Bitmapset  *sources = nvm_query_sources(level->query);
	Query	   *query = level->query;
	int			only;

	if (query->setOperations != NULL ||
		(query->hasTargetSRFs && walk_calls((Node *) query->targetList, NULL)))
		return false;
	if (nvm_rows_are_told_apart(query, level->single, NULL, NIL, NULL))
		return true;
	if (query->groupClause != NIL || query->groupingSets != NIL || query->hasWindowFuncs ||
		query->distinctClause != NIL)
		return false;
	return bms_get_singleton_member(sources, &only) && bms_is_member(only, level->ordered);
}

/* ---- what is written ---- */

/*
 * Rows that are updated or deleted, of which each may meet several of other tables: is it
 * seen which one?  (Of a MERGE that is always so.)
 */
static bool
match_is_chosen(Level *level)
{
	Query	   *query = level->query;
	Bitmapset  *loose = NULL;
	Bitmapset  *used;
	List	   *read = list_make1(query->returningList);

	if (query->commandType == CMD_MERGE)
	{
		Bitmapset  *sources = bms_del_member(nvm_query_sources(query), query->resultRelation);

		return !bms_is_subset(sources, level->single);
	}
	if (nvm_rows_are_told_apart(query, level->single, bms_make_singleton(query->resultRelation),
								NIL, &loose))
		return false;
	if (query->commandType == CMD_UPDATE)
		read = lappend(read, query->targetList);
	used = pull_varnos(NULL, (Node *) read);
	for (int rti = -1; (rti = bms_next_member(used, rti)) >= 0;)
	{
		if (bms_is_member(rti, loose) || rt_fetch(rti, query->rtable)->rtekind == RTE_JOIN)
			return true;
	}
	return false;
}

/*
 * Several rows are given new values of columns that have to be unique: whether a row is in
 * the way of another depends on which one is first.
 */
static bool
passes_through_duplicates(Query *query, List *set)
{
	Bitmapset  *columns = NULL;
	ListCell   *lc;

	foreach(lc, set)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, lc);

		if (!entry->resjunk)
			columns = bms_add_member(columns, entry->resno);
	}
	return nvm_columns_are_unique(rt_fetch(query->resultRelation, query->rtable)->relid, columns);
}

static bool
write_depends(Level *level, Shape rows)
{
	Query	   *query = level->query;
	OnConflictExpr *conflict = query->onConflict;

	switch (query->commandType)
	{
		case CMD_INSERT:
			if (conflict == NULL || rows.ordered || rows.one)
				return false;
			return conflict->action == ONCONFLICT_NOTHING ||
				passes_through_duplicates(query, conflict->onConflictSet);
		case CMD_UPDATE:
			return match_is_chosen(level) ||
				(!rows.one && passes_through_duplicates(query, query->targetList));
		case CMD_DELETE:
		case CMD_MERGE:
			return match_is_chosen(level);
		default:
			return false;
	}
}

/*
 * Do two parts of a query write the same table?  Which one meets a row first is not said.
 */
static bool
parts_meet(Query *query)
{
	List	   *written = NIL;
	ListCell   *lc;

	if (query->resultRelation > 0)
		written = list_make1_oid(rt_fetch(query->resultRelation, query->rtable)->relid);
	foreach(lc, query->cteList)
	{
		Query	   *part = castNode(Query, lfirst_node(CommonTableExpr, lc)->ctequery);
		Oid			relid;

		if (part->resultRelation <= 0)
			continue;
		relid = rt_fetch(part->resultRelation, part->rtable)->relid;
		if (list_member_oid(written, relid))
			return true;
		written = lappend_oid(written, relid);
	}
	return false;
}

/* ---- a query ---- */

static bool
all_are_constant(List *targets)
{
	ListCell   *lc;

	foreach(lc, targets)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, lc);

		if (!entry->resjunk && !is_constant((Node *) entry->expr))
			return false;
	}
	return true;
}

/*
 * Is anything called, or a row written, once for each row?  A function in FROM is called
 * once if it is the only source.
 */
static bool
calls_by_row(Query *query)
{
	ListCell   *lc;
	bool		several = bms_num_members(nvm_query_sources(query)) > 1;

	if (query->commandType != CMD_SELECT ||
		query_tree_walker(query, walk_calls, NULL, QTW_IGNORE_RANGE_TABLE | QTW_IGNORE_CTE_SUBQUERIES))
		return true;
	foreach(lc, query->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, lc);

		if (walk_calls((Node *) rte->securityQuals, NULL) ||
			(several && walk_calls((Node *) rte->functions, NULL)))
			return true;
	}
	return false;
}

/*
 * May something in it write, or draw from a sequence?
 */
static bool
may_write(Node *node)
{
	bool		volatile_alone = true;

	return walk_calls(node, &volatile_alone);
}

/*
 * Has a part of FROM calls, and how often these are made is a matter of the plan?  If it is
 * the only source, it is read to its end.
 */
static bool
sources_call(Query *query, bool several)
{
	ListCell   *lc;

	foreach(lc, query->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, lc);

		if (several && (may_write((Node *) rte->functions) ||
						may_write((Node *) rte->values_lists) ||
						may_write((Node *) rte->tablefunc) ||
						may_write((Node *) rte->subquery)))
			return true;
	}
	foreach(lc, query->cteList)
	{
		CommonTableExpr *cte = lfirst_node(CommonTableExpr, lc);
		Query	   *part = castNode(Query, cte->ctequery);

		if (cte->cterefcount > (several || part->commandType != CMD_SELECT ? 0 : 1) &&
			may_write((Node *) part))
			return true;
	}
	return false;
}

/*
 * Is anything called where it is the plan that says how often?  A condition may be tried
 * before or after another, for rows that the other one drops; a part of a join may be left
 * alone if another part has no row.  A replay may call what was not called before, so this
 * is not asked when something is.
 */
static bool
calls_by_plan(Query *query)
{
	Bitmapset  *sources = nvm_query_sources(query);
	bool		several = bms_num_members(sources) > 1;
	int			rti = -1;

	if (sources_call(query, several))
		return true;
	if (!may_write((Node *) query->jointree))
		return false;
	while (!several && (rti = bms_next_member(sources, rti)) >= 0)
	{
		RTEKind		kind = rt_fetch(rti, query->rtable)->rtekind;

		several = kind == RTE_RELATION || kind == RTE_SUBQUERY || kind == RTE_CTE;
	}
	return several;
}

/*
 * Is all that is called by row called when the rows have been sorted?
 */
static bool
calls_after_sort(Query *query)
{
	ListCell   *lc;

	if (walk_calls((Node *) query->jointree, NULL) ||
		!nvm_query_is_plain(query) || query->hasWindowFuncs || query->distinctClause != NIL)
		return false;
	foreach(lc, query->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, lc);

		/* a volatile one, that nothing is sorted by, waits for the sort */
		if (walk_calls((Node *) entry->expr, NULL) &&
			(entry->ressortgroupref != 0 || !contain_volatile_functions((Node *) entry->expr)))
			return false;
	}
	return true;
}

static bool
is_set(Node *limit)
{
	return limit != NULL && !(IsA(limit, Const) && ((Const *) limit)->constisnull);
}

/*
 * UNION, INTERSECT or EXCEPT of which one of two equal rows is chosen.
 */
static bool
chooses_rows(Node *node)
{
	SetOperationStmt *op = (SetOperationStmt *) node;
	ListCell   *type;
	ListCell   *typmod;
	ListCell   *collation;

	if (node == NULL || !IsA(node, SetOperationStmt))
		return false;
	if (chooses_rows(op->larg) || chooses_rows(op->rarg))
		return true;
	if (op->op == SETOP_UNION && op->all)
		return false;
	forthree(type, op->colTypes, typmod, op->colTypmods, collation, op->colCollations)
	{
		if (!nvm_equal_is_same(lfirst_oid(type), lfirst_int(typmod), lfirst_oid(collation)))
			return true;
	}
	return false;
}

static bool
rows_depend(Level *level, Shape rows, bool existence)
{
	Query	   *query = level->query;

	if (!existence && (is_set(query->limitCount) || is_set(query->limitOffset)) &&
		!rows.one && !rows.alike && !rows.ordered)
		return true;
	if (query->hasDistinctOn ? !sort_is_total(level, query->sortClause, false) :
		a_value_is_chosen(query->distinctClause, query->targetList))
		return true;
	return a_value_is_chosen(query->groupClause, query->targetList) ||
		sets_are_by_place(query) || chooses_rows(query->setOperations);
}

/*
 * existence: nobody asks of its rows but whether there is one.
 */
static Shape
judge_query(Query *query, Level *outer, int *found, bool existence)
{
	Level		level = {.query = query,.outer = outer,.found = found};
	List	   *targets = query->commandType == CMD_SELECT ? query->targetList : query->returningList;
	Shape		rows = {0};
	bool		in_order;

	check_stack_depth();
	judge_sources(&level);
	(void) query_tree_walker(query, walk_expressions, &level,
							 QTW_IGNORE_RT_SUBQUERIES | QTW_IGNORE_CTE_SUBQUERIES |
							 QTW_IGNORE_JOINALIASES);

	in_order = sources_are_ordered(&level);
	rows.one = nvm_query_has_one_row(query, level.single);
	rows.alike = all_are_constant(targets) && query->setOperations == NULL &&
		!query->hasTargetSRFs && query->groupingSets == NIL;
	rows.ordered = query->sortClause != NIL ? sort_is_total(&level, query->sortClause, true) :
		in_order && (query->commandType == CMD_SELECT || query->commandType == CMD_INSERT);
	if (rows_depend(&level, rows, existence) || write_depends(&level, rows) || parts_meet(query) ||
		calls_by_plan(query))
		*found |= NVM_ORDER_DEPENDS;
	if (!in_order && calls_by_row(query) && !(rows.ordered && calls_after_sort(query)))
		*found |= NVM_ORDER_UNKNOWN_INSIDE;
	rows.one |= nvm_query_has_limit_one(query);
	return rows;
}

/*
 * What order means to a query that is going to be planned.
 */
int
nvm_judge_order(Query *query)
{
	int			found = 0;
	Shape		rows;

	if (query->commandType == CMD_UTILITY)
		return 0;
	rows = judge_query(query, NULL, &found, false);
	if ((query->commandType == CMD_SELECT || query->returningList != NIL) &&
		!rows.one && !rows.alike && !rows.ordered)
		found |= NVM_ORDER_UNKNOWN_ROWS;
	if (walk_calls((Node *) query, NULL))
		found |= NVM_ORDER_CALLS;
	return found;
}
