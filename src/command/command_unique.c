/*-------------------------------------------------------------------------
 *
 * command_unique.c
 *	  Which rows of a query there can be but one of.
 *
 * A query's rows come from its sources: tables, subqueries, functions.  A source is
 * fixed if it has one row at most, once the rows of those that were fixed before are
 * chosen: a table whose unique index has each of its columns equal to something fixed.
 * If all are fixed, the query has one row at most.  If they are when the values are
 * given by which it is sorted, rows that tie in these are the same row.
 *
 * What is not proved is not so.  Queries are looked at before they are planned, as
 * another plan may be chosen in a replay.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/nbtree.h"
#include "access/stratnum.h"
#include "access/sysattr.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "command/command_impl.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parsetree.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/typcache.h"

/* a condition that rows of the query fulfil, and the sources that it may fix */
typedef struct Condition
{
	Node	   *clause;
	Bitmapset  *fixes;
} Condition;

/* a value that is given, since rows are sorted by it, or an outer query has chosen it */
typedef struct Given
{
	Node	   *expr;
	Oid			equality;
	Oid			collation;
} Given;

typedef struct Proof
{
	Query	   *query;
	const Bitmapset *single;	/* sources that have one row by themselves */
	List	   *conditions;		/* of Condition * */
	List	   *given;			/* of Given * */
	Bitmapset  *sources;		/* all of the query */
	Bitmapset  *fixed;
	bool		full_join;
} Proof;

static bool all_are_fixed(Proof *proof);

/* ---- types ---- */

/*
 * Are two values that are equal the same to the last bit?  Those of numeric are where a
 * column says how many digits they have.
 */
bool
nvm_equal_is_same(Oid type, int32 typmod, Oid collation)
{
	TypeCacheEntry *entry;
	Oid			proc;

	if (getBaseType(type) == NUMERICOID)
		return typmod >= 0;
	entry = lookup_type_cache(type, TYPECACHE_BTREE_OPFAMILY);
	if (!OidIsValid(entry->btree_opf))
		return false;
	proc = get_opfamily_proc(entry->btree_opf, entry->btree_opintype, entry->btree_opintype,
							 BTEQUALIMAGE_PROC);
	return OidIsValid(proc) &&
		DatumGetBool(OidFunctionCall1Coll(proc, collation, ObjectIdGetDatum(entry->btree_opintype)));
}

/* ---- sources and conditions ---- */

static void
add_condition(Proof *proof, Node *quals, Bitmapset *fixes)
{
	Condition  *condition;
	ListCell   *lc;

	if (quals == NULL)
		return;
	if (is_andclause(quals))
	{
		foreach(lc, ((BoolExpr *) quals)->args)
			add_condition(proof, lfirst(lc), fixes);
		return;
	}
	condition = palloc(sizeof(Condition));
	condition->clause = quals;
	condition->fixes = fixes;
	proof->conditions = lappend(proof->conditions, condition);
}

/*
 * The conditions of a part of FROM.  Returns its sources.
 *
 * That of an outer join holds where the nullable side has a row: so it fixes sources of
 * this side alone.  A full join of two rows may have both of them, each beside nulls.
 */
static Bitmapset *
collect(Proof *proof, Node *node)
{
	Bitmapset  *sources = NULL;

	if (node == NULL)
		return NULL;
	if (IsA(node, RangeTblRef))
		return bms_make_singleton(((RangeTblRef *) node)->rtindex);
	if (IsA(node, FromExpr))
	{
		ListCell   *lc;

		foreach(lc, ((FromExpr *) node)->fromlist)
			sources = bms_add_members(sources, collect(proof, lfirst(lc)));
		add_condition(proof, ((FromExpr *) node)->quals, sources);
	}
	else
	{
		JoinExpr   *join = castNode(JoinExpr, node);
		Bitmapset  *left = collect(proof, join->larg);
		Bitmapset  *right = collect(proof, join->rarg);

		sources = bms_union(left, right);
		if (join->jointype == JOIN_INNER)
			add_condition(proof, join->quals, sources);
		else if (join->jointype == JOIN_LEFT)
			add_condition(proof, join->quals, right);
		else if (join->jointype == JOIN_RIGHT)
			add_condition(proof, join->quals, left);
		else if (join->jointype == JOIN_FULL)
			proof->full_join = true;
	}
	return sources;
}

Bitmapset *
nvm_query_sources(Query *query)
{
	Proof		proof = {.query = query};

	return collect(&proof, (Node *) query->jointree);
}

/* ---- what is equal to a column ---- */

static Node *
strip(Node *node)
{
	while (node != NULL && IsA(node, RelabelType))
		node = (Node *) ((RelabelType *) node)->arg;
	return node;
}

static bool
is_column(Node *node, int rti, AttrNumber column)
{
	Var		   *var = (Var *) strip(node);

	return var != NULL && IsA(var, Var) && var->varlevelsup == 0 && var->varno == rti &&
		var->varattno == column;
}

static bool
collations_agree(Oid a, Oid b)
{
	return a == b ||
		(OidIsValid(a) && OidIsValid(b) && get_collation_isdeterministic(a) &&
		 get_collation_isdeterministic(b));
}

/*
 * Is the expression's value known when the fixed sources' rows are?
 */
static bool
is_fixed(const Proof *proof, Node *expr)
{
	return bms_is_subset(pull_varnos(NULL, expr), proof->fixed) &&
		!contain_volatile_functions(expr);
}

/*
 * What the condition says that a column of a source is equal to, or NULL.
 */
static Node *
equal_to(const Proof *proof, const Condition *condition, int rti, AttrNumber column)
{
	OpExpr	   *op = (OpExpr *) condition->clause;
	Node	   *other = NULL;

	if (!IsA(op, OpExpr) || list_length(op->args) != 2 || !bms_is_member(rti, condition->fixes))
		return NULL;
	if (is_column(linitial(op->args), rti, column))
		other = lsecond(op->args);
	else if (is_column(lsecond(op->args), rti, column))
		other = linitial(op->args);
	return other != NULL && is_fixed(proof, other) ? other : NULL;
}

/*
 * Rows for which this operator says "equal" are equal for the index.
 */
static bool
is_finer(Oid operator, Oid collation, Relation index, int key)
{
	return get_op_opfamily_strategy(operator, index->rd_opfamily[key]) == BTEqualStrategyNumber &&
		collations_agree(collation, index->rd_indcollation[key]);
}

/*
 * Is a column of a unique index fixed, by a condition or since its value is given?  The
 * index may have many nulls; a condition finds none of them.
 */
static bool
key_is_fixed(const Proof *proof, int rti, Relation table, Relation index, int key)
{
	AttrNumber	column = index->rd_index->indkey.values[key];
	ListCell   *lc;

	/* an expression */
	if (column <= 0)
		return false;
	foreach(lc, proof->conditions)
	{
		Condition  *condition = lfirst(lc);
		OpExpr	   *op = (OpExpr *) condition->clause;

		if (equal_to(proof, condition, rti, column) != NULL &&
			is_finer(op->opno, op->inputcollid, index, key))
			return true;
	}
	if (!TupleDescAttr(RelationGetDescr(table), column - 1)->attnotnull)
		return false;
	foreach(lc, proof->given)
	{
		Given	   *given = lfirst(lc);

		if (is_column(given->expr, rti, column) &&
			is_finer(given->equality, given->collation, index, key))
			return true;
	}
	return false;
}

static bool
index_fixes(const Proof *proof, int rti, Relation table, Relation index)
{
	Form_pg_index form = index->rd_index;

	if (!form->indisunique || !form->indimmediate || !form->indisvalid || form->indisexclusion ||
		RelationGetIndexPredicate(index) != NIL)
		return false;
	for (int key = 0; key < form->indnkeyatts; key++)
	{
		if (!key_is_fixed(proof, rti, table, index, key))
			return false;
	}
	return true;
}

/*
 * Of a parent of other tables an index says nothing, unless it is partitioned.
 */
static bool
table_is_fixed(const Proof *proof, int rti, RangeTblEntry *rte)
{
	Relation	table;
	List	   *indexes;
	ListCell   *lc;
	bool		fixed = false;

	if (rte->relkind != RELKIND_PARTITIONED_TABLE &&
		(rte->relkind != RELKIND_RELATION || (rte->inh && has_subclass(rte->relid))))
		return false;
	/* who asks has a lock */
	table = RelationIdGetRelation(rte->relid);
	if (table == NULL)
		return false;
	indexes = RelationGetIndexList(table);
	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		fixed = index_fixes(proof, rti, table, index);
		index_close(index, NoLock);
		if (fixed)
			break;
	}
	list_free(indexes);
	RelationClose(table);
	return fixed;
}

/*
 * Do output columns of the subquery that are fixed outside fix its rows?  So views have
 * the keys of their tables.
 */
static bool
subquery_is_fixed(const Proof *proof, int rti, Query *subquery)
{
	Proof		inner = {.query = subquery,.single = nvm_single_sources(subquery)};
	ListCell   *lc;
	ListCell   *lc2;

	if (nvm_query_has_limit_one(subquery) || nvm_query_has_one_row(subquery, inner.single))
		return true;
	if (!nvm_query_is_plain(subquery))
		return false;
	foreach(lc, subquery->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, lc);

		if (entry->resjunk)
			continue;
		foreach(lc2, proof->conditions)
		{
			Condition  *condition = lfirst(lc2);
			OpExpr	   *op = (OpExpr *) condition->clause;

			if (equal_to(proof, condition, rti, entry->resno) != NULL)
				nvm_add_given(&inner.given, (Node *) entry->expr, op->opno, op->inputcollid);
		}
		foreach(lc2, proof->given)
		{
			Given	   *given = lfirst(lc2);

			if (is_column(given->expr, rti, entry->resno))
				nvm_add_given(&inner.given, (Node *) entry->expr, given->equality, given->collation);
		}
	}
	return all_are_fixed(&inner);
}

/*
 * WITH ORDINALITY numbers the rows of a function.
 */
static bool
function_is_fixed(const Proof *proof, int rti, RangeTblEntry *rte)
{
	AttrNumber	number = list_length(rte->eref->colnames);
	ListCell   *lc;

	if (!rte->funcordinality)
		return false;
	foreach(lc, proof->given)
	{
		if (is_column(((Given *) lfirst(lc))->expr, rti, number))
			return true;
	}
	return false;
}

/*
 * The sources that a LATERAL one is computed from.
 */
static Bitmapset *
lateral_sources(RangeTblEntry *rte)
{
	switch (rte->rtekind)
	{
		case RTE_SUBQUERY:
			return pull_varnos_of_level(NULL, (Node *) rte->subquery, 1);
		case RTE_FUNCTION:
			return pull_varnos(NULL, (Node *) rte->functions);
		case RTE_TABLEFUNC:
			return pull_varnos(NULL, (Node *) rte->tablefunc);
		case RTE_VALUES:
			return pull_varnos(NULL, (Node *) rte->values_lists);
		default:
			return NULL;
	}
}

/*
 * One that has a row for each of another source's is not fixed before that is, or each
 * could be fixed by the other.
 */
static bool
source_is_fixed(const Proof *proof, int rti)
{
	RangeTblEntry *rte = rt_fetch(rti, proof->query->rtable);

	if (!bms_is_subset(lateral_sources(rte), proof->fixed))
		return false;
	if (bms_is_member(rti, proof->single))
		return true;
	if (rte->rtekind == RTE_RELATION)
		return table_is_fixed(proof, rti, rte);
	if (rte->rtekind == RTE_FUNCTION)
		return function_is_fixed(proof, rti, rte);
	return rte->rtekind == RTE_SUBQUERY && subquery_is_fixed(proof, rti, rte->subquery);
}

static bool
all_are_fixed(Proof *proof)
{
	bool		progress = true;

	proof->sources = collect(proof, (Node *) proof->query->jointree);
	while (progress && !bms_is_subset(proof->sources, proof->fixed))
	{
		int			rti = -1;

		progress = false;
		while ((rti = bms_next_member(proof->sources, rti)) >= 0)
		{
			if (bms_is_member(rti, proof->fixed) || !source_is_fixed(proof, rti))
				continue;
			proof->fixed = bms_add_member(proof->fixed, rti);
			progress = true;
		}
	}
	return bms_is_subset(proof->sources, proof->fixed) && !proof->full_join;
}

/* ---- what others ask ---- */

void
nvm_add_given(List **list, Node *expr, Oid equality, Oid collation)
{
	Given	   *given = palloc(sizeof(Given));

	given->expr = expr;
	given->equality = equality;
	given->collation = collation;
	*list = lappend(*list, given);
}

/*
 * Are all sources fixed, when these are: single, which have one row at most by themselves,
 * fixed, and the values of a list of nvm_add_given()?  *loose (may be NULL): those that
 * are not.
 */
bool
nvm_rows_are_told_apart(Query *query, const Bitmapset *single, const Bitmapset *fixed,
						List *given, Bitmapset **loose)
{
	Proof		proof = {.query = query,.single = single,.given = given,.fixed = bms_copy(fixed)};
	bool		all = all_are_fixed(&proof);

	if (loose != NULL)
		*loose = bms_difference(proof.sources, proof.fixed);
	return all;
}

/*
 * Sources that have one row at most by themselves.  Of CTEs that is not known here.
 */
Bitmapset *
nvm_single_sources(Query *query)
{
	Bitmapset  *single = NULL;
	ListCell   *lc;
	int			rti = 0;

	foreach(lc, query->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, lc);
		bool		is_single = rte->rtekind == RTE_RESULT;

		rti++;
		if (rte->rtekind == RTE_VALUES)
			is_single = list_length(rte->values_lists) == 1;
		else if (rte->rtekind == RTE_FUNCTION)
			is_single = !expression_returns_set((Node *) rte->functions);
		else if (rte->rtekind == RTE_SUBQUERY)
			is_single = nvm_query_has_limit_one(rte->subquery) ||
				nvm_query_has_one_row(rte->subquery, nvm_single_sources(rte->subquery));
		if (is_single)
			single = bms_add_member(single, rti);
	}
	return single;
}

/*
 * Is each row of the query one of its sources' rows, and each of those in it once?
 */
bool
nvm_query_is_plain(Query *query)
{
	return !query->hasAggs && query->groupClause == NIL && query->groupingSets == NIL &&
		query->havingQual == NULL && !query->hasTargetSRFs && query->setOperations == NULL;
}

/*
 * Does LIMIT leave one row at most?
 */
bool
nvm_query_has_limit_one(Query *query)
{
	Const	   *limit = (Const *) query->limitCount;

	return limit != NULL && IsA(limit, Const) && !limit->constisnull &&
		query->limitOption == LIMIT_OPTION_COUNT && DatumGetInt64(limit->constvalue) <= 1;
}

/*
 * Has the query one row at most, also without LIMIT?
 */
bool
nvm_query_has_one_row(Query *query, const Bitmapset *single)
{
	if (query->hasTargetSRFs || query->setOperations != NULL)
		return false;
	if ((query->hasAggs || query->havingQual != NULL) && query->groupClause == NIL &&
		query->groupingSets == NIL)
		return true;
	if (!nvm_query_is_plain(query))
		return false;
	return nvm_rows_are_told_apart(query, single, NULL, NIL, NULL);
}

/* ---- columns that have to be unique ---- */

static bool
index_has_column(Relation index, const Bitmapset *columns)
{
	Bitmapset  *used = NULL;
	int			column = -1;

	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
	{
		if (bms_is_member(index->rd_index->indkey.values[i], columns))
			return true;
	}
	pull_varattnos((Node *) RelationGetIndexExpressions(index), 1, &used);
	pull_varattnos((Node *) RelationGetIndexPredicate(index), 1, &used);
	while ((column = bms_next_member(used, column)) >= 0)
	{
		int			attno = column + FirstLowInvalidHeapAttributeNumber;

		if (attno == 0 || bms_is_member(attno, columns))
			return true;
	}
	return false;
}

/*
 * Is one of the columns in an index that must not have two equal rows at any moment?  Or
 * may others of the table be computed from them?
 */
bool
nvm_columns_are_unique(Oid relid, const Bitmapset *columns)
{
	Relation	table = RelationIdGetRelation(relid);
	List	   *indexes;
	ListCell   *lc;
	bool		unique;

	if (table == NULL)
		return true;
	unique = RelationGetDescr(table)->constr != NULL &&
		RelationGetDescr(table)->constr->has_generated_stored;
	indexes = RelationGetIndexList(table);
	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		if (index->rd_index->indisunique || index->rd_index->indisexclusion)
			unique |= index_has_column(index, columns);
		index_close(index, NoLock);
	}
	list_free(indexes);
	RelationClose(table);
	return unique;
}
