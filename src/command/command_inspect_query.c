/*-------------------------------------------------------------------------
 *
 * command_inspect_query.c
 *	  What a query of a function would do that a replay could not do again, by its text.
 *
 * It is judged as it is when a call runs it (command_plan.c), as far as that is known: which
 * tables, functions, triggers, what its order means.  Which lanes a scan or a row is of
 * depends on values; so a scan is taken for pinned if its partition column is compared for
 * equality with anything.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/transam.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_language_d.h"
#include "catalog/pg_proc.h"
#include "command/command_impl.h"
#include "command/command_inspect.h"
#include "nodes/nodeFuncs.h"
#include "parser/parsetree.h"
#include "utils/rel.h"
#include "utils/reltrigger.h"

/* a column of a query that is equal to something */
typedef struct Fixed
{
	int			rti;
	AttrNumber	column;
} Fixed;

typedef struct Scope
{
	NvmInspection *in;
	Query	   *query;
	List	   *fixed;			/* of Fixed * */
} Scope;

static bool judge_subqueries(Node *node, void *context);

/* ---- which columns are compared for equality ---- */

/*
 * The column of a table or subquery behind those of joins, or NULL.
 */
static const Var *
base_column(const Query *query, Node *node)
{
	while (node != NULL && IsA(node, RelabelType))
		node = (Node *) ((RelabelType *) node)->arg;
	while (node != NULL && IsA(node, Var) && ((Var *) node)->varlevelsup == 0 &&
		   ((Var *) node)->varattno > 0)
	{
		const Var  *var = (const Var *) node;
		RangeTblEntry *rte = rt_fetch(var->varno, query->rtable);

		if (rte->rtekind != RTE_JOIN)
			return var;
		node = (Node *) list_nth(rte->joinaliasvars, var->varattno - 1);
	}
	return NULL;
}

static void
note_fixed(Scope *scope, Oid operator, Oid collation, Node *node)
{
	const Var  *var = base_column(scope->query, node);
	Fixed	   *fixed;

	if (var == NULL || !nvm_equality_keeps_lane(operator, collation, var->vartype, var->varcollid))
		return;
	fixed = palloc(sizeof(Fixed));
	fixed->rti = var->varno;
	fixed->column = var->varattno;
	scope->fixed = lappend(scope->fixed, fixed);
}

static bool
look_for_equalities(Node *node, void *context)
{
	if (node == NULL || IsA(node, Query))
		return false;
	if (IsA(node, OpExpr) && list_length(((OpExpr *) node)->args) == 2)
	{
		const OpExpr *op = (const OpExpr *) node;

		note_fixed(context, op->opno, op->inputcollid, linitial(op->args));
		note_fixed(context, op->opno, op->inputcollid, lsecond(op->args));
	}
	if (IsA(node, ScalarArrayOpExpr))
	{
		const ScalarArrayOpExpr *op = (const ScalarArrayOpExpr *) node;

		note_fixed(context, op->opno, op->inputcollid, linitial(op->args));
	}
	return expression_tree_walker(node, look_for_equalities, context);
}

static bool
is_fixed(const Scope *scope, int rti, AttrNumber column)
{
	ListCell   *lc;

	foreach(lc, scope->fixed)
	{
		const Fixed *fixed = lfirst(lc);

		if (fixed->rti == rti && fixed->column == column)
			return true;
	}
	return false;
}

/* ---- tables ---- */

/*
 * Triggers in SQL's languages run in the call: they are looked at, too.
 */
static void
note_triggers(NvmInspection *in, Relation rel)
{
	TriggerDesc *triggers = rel->trigdesc;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		if (!nvm_is_foreign_key_trigger(triggers->triggers[i].tgfoid))
			nvm_inspection_calls(in, triggers->triggers[i].tgfoid, RelationGetRelid(rel));
	}
}

static void
judge_one_table(Scope *scope, int rti, Oid relid, bool written)
{
	Relation	rel = table_open(relid, AccessShareLock);
	CmdType		command = scope->query->commandType;
	const char *problem = NULL;
	AttrNumber	column;

	nvm_judge_table(rel, written);
	if (written)
		note_triggers(scope->in, rel);
	if (nvm_command_is_table(rel))
	{
		column = nvm_command_partition_column(rel, &problem);
		if (written && column == InvalidAttrNumber)
			nvm_command_disqualify(NVM_REASON_SHARED_WRITTEN, RelationRelationId, relid);
		/* a column of a partition may have another number in the parent */
		if (column != InvalidAttrNumber && !scope->in->all_lanes &&
			rt_fetch(rti, scope->query->rtable)->relid == relid &&
			!(written && command == CMD_INSERT) && !is_fixed(scope, rti, column))
			nvm_command_disqualify(NVM_REASON_NOT_PINNED, RelationRelationId, relid);
	}
	table_close(rel, NoLock);
}

static void
judge_tables(Scope *scope)
{
	ListCell   *lc;
	int			rti = 0;

	foreach(lc, scope->query->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, lc);
		bool		written = ++rti == scope->query->resultRelation;
		List	   *parts;
		ListCell   *lc2;

		if (rte->rtekind != RTE_RELATION || (rte->relkind == RELKIND_VIEW && !written))
			continue;
		if (rte->tablesample != NULL)
			nvm_command_disqualify(NVM_REASON_FUNCTION, ProcedureRelationId,
								   rte->tablesample->tsmhandler);
		/* of INSERT it is not said; rows may go to any */
		parts = rte->inh || rte->relkind == RELKIND_PARTITIONED_TABLE ? find_all_inheritors(rte->relid, AccessShareLock, NULL) :
			list_make1_oid(rte->relid);
		foreach(lc2, parts)
			judge_one_table(scope, rti, lfirst_oid(lc2), written);
	}
}

/* ---- a query ---- */

/*
 * Does the subquery's column `resno` come from a column that is compared within, or is it
 * fixed by who reads it?
 */
static void
fix_outputs(Scope *scope, const List *outputs)
{
	ListCell   *lc;

	foreach(lc, outputs)
	{
		int			resno = lfirst_int(lc);
		TargetEntry *entry = get_tle_by_resno(scope->query->targetList, resno);
		const Var  *var;
		Fixed	   *fixed;

		if (entry == NULL || (var = base_column(scope->query, (Node *) entry->expr)) == NULL)
			continue;
		fixed = palloc(sizeof(Fixed));
		fixed->rti = var->varno;
		fixed->column = var->varattno;
		scope->fixed = lappend(scope->fixed, fixed);
	}
}

static void
judge_level(NvmInspection *in, Query *query, List *outputs)
{
	Scope		scope = {.in = in,.query = query};
	ListCell   *lc;
	int			rti = 0;

	if (query->setOperations == NULL)
	{
		(void) look_for_equalities((Node *) query->jointree, &scope);
		foreach(lc, query->mergeActionList)
			(void) look_for_equalities(((MergeAction *) lfirst(lc))->qual, &scope);
		fix_outputs(&scope, outputs);
	}
	judge_tables(&scope);
	foreach(lc, query->rowMarks)
	{
		if (lfirst_node(RowMarkClause, lc)->waitPolicy != LockWaitBlock)
			nvm_command_disqualify(NVM_REASON_LOCKED_ROWS, InvalidOid, InvalidOid);
	}

	/*
	 * who reads a subquery may fix its columns; parts of a UNION have those
	 * of all
	 */
	foreach(lc, query->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, lc);
		List	   *inner = query->setOperations != NULL ? outputs : NIL;
		ListCell   *lc2;

		rti++;
		if (rte->rtekind != RTE_SUBQUERY)
			continue;
		foreach(lc2, scope.fixed)
		{
			const Fixed *fixed = lfirst(lc2);

			if (fixed->rti == rti)
				inner = lappend_int(list_copy(inner), fixed->column);
		}
		judge_level(in, rte->subquery, inner);
	}
	(void) query_tree_walker(query, judge_subqueries, in, QTW_IGNORE_RT_SUBQUERIES);
}

/*
 * Of SubLinks and WITH.
 */
static bool
judge_subqueries(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Query))
	{
		judge_level(context, (Query *) node, NIL);
		return false;
	}
	return expression_tree_walker(node, judge_subqueries, context);
}

/* ---- functions ---- */

/*
 * One in SQL or PL/pgSQL is looked at by itself.
 */
static bool
note_call(Oid function, void *context)
{
	if (function >= FirstNormalObjectId)
		nvm_inspection_calls(context, function, InvalidOid);
	return false;
}

static bool
walk_calls(Node *node, void *context)
{
	if (node == NULL)
		return false;
	(void) check_functions_in_node(node, note_call, context);
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, walk_calls, context, 0);
	return expression_tree_walker(node, walk_calls, context);
}

static bool
walk_taped(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (nvm_tape_argument(node) != NULL)
		return true;
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, walk_taped, context, 0);
	return expression_tree_walker(node, walk_taped, context);
}

/*
 * Is it an expression that PL/pgSQL evaluates by itself?  There all is taped.
 */
static bool
is_expression(const Query *query)
{
	return query->commandType == CMD_SELECT && query->rtable == NIL && !query->hasSubLinks &&
		list_length(query->targetList) == 1;
}

static void
judge_functions(Query *query, const char *text)
{
	int			order = nvm_judge_order(query) | nvm_judge_literals((Node *) query, text);
	Query	   *taped = nvm_tape_put_query(query);
	Node	   *expr = (Node *) taped;
	Oid			function;

	if (is_expression(query))
		expr = nvm_tape_put_all((Node *) linitial_node(TargetEntry, query->targetList)->expr);
	function = nvm_function_not_admitted(expr, false);
	if (OidIsValid(function))
		nvm_command_disqualify(NVM_REASON_FUNCTION, ProcedureRelationId, function);
	if (nvm_mark_has_clock(order, &function))
		nvm_command_disqualify(NVM_REASON_FUNCTION, ProcedureRelationId, function);
	if (order & NVM_ORDER_SYSTEM_COLUMN)
		nvm_command_disqualify(NVM_REASON_SYSTEM_COLUMN, InvalidOid, InvalidOid);
	if ((order & NVM_ORDER_DEPENDS) ||
		((order & NVM_ORDER_UNKNOWN_INSIDE) && walk_taped((Node *) taped, NULL)))
		nvm_command_disqualify(NVM_REASON_ORDER, InvalidOid, InvalidOid);
}

static void
judge_call(NvmInspection *in, CallStmt *stmt, const char *text)
{
	Oid			function = nvm_function_not_admitted((Node *) stmt->funcexpr->args, true);

	nvm_inspection_calls(in, stmt->funcexpr->funcid, InvalidOid);
	(void) walk_calls((Node *) stmt->funcexpr->args, in);
	if (!OidIsValid(function) && !nvm_function_is_admitted(stmt->funcexpr->funcid))
		function = stmt->funcexpr->funcid;
	if (OidIsValid(function) ||
		nvm_mark_has_clock(nvm_judge_literals((Node *) stmt->funcexpr->args, text), &function))
		nvm_command_disqualify(NVM_REASON_FUNCTION, ProcedureRelationId, function);
}

/*
 * A query that was analyzed and rewritten.  What is found goes to nvm_inspection_note.
 */
void
nvm_inspect_query(NvmInspection *in, Query *query, const char *text, bool reads)
{
	if (query->commandType == CMD_UTILITY)
	{
		if (IsA(query->utilityStmt, CallStmt))
			judge_call(in, (CallStmt *) query->utilityStmt, text);
		else
			nvm_command_disqualify(NVM_REASON_UTILITY, InvalidOid, InvalidOid);
		return;
	}
	judge_level(in, query, NIL);
	judge_functions(query, text);
	if (reads && (nvm_judge_order(query) & NVM_ORDER_UNKNOWN_ROWS))
		nvm_command_disqualify(NVM_REASON_ORDER, InvalidOid, InvalidOid);
	(void) walk_calls((Node *) query, in);
}
