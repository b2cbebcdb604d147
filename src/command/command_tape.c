/*-------------------------------------------------------------------------
 *
 * command_tape.c
 *	  The tape: results of functions that a replay reads instead of calling them.
 *
 * Built-in functions that give another result each time, as nextval() and random(), are
 * called by the executor directly: no hook sees them.  So in a database that has registered
 * functions such a call is put into nvm.tape() in each query that is planned, and in each
 * expression that PL/pgSQL evaluates by itself.  nvm.tape() returns what it is given, and
 * in a call of a registered function notes it in the transaction's record.
 *
 * A replay plans its own queries, in its own processes.  It puts there nvm.replayed(), which
 * reads the next result from the record, in the place of all of it.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "command/command_impl.h"
#include "command/nvm_command.h"
#include "fmgr.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

PG_FUNCTION_INFO_V1(nvm_tape);
PG_FUNCTION_INFO_V1(nvm_replayed);

/*
 * Built-in ones, by name, since later versions have more of one name.  What they do besides
 * is not undone by a crash (sequences), or nothing.
 */
static const char *const taped_names[] = {
	"clock_timestamp", "currval", "gen_random_uuid", "lastval", "nextval", "pg_current_xact_id",
	"random", "random_normal", "timeofday", "txid_current", "uuidv4", "uuidv7"
};

static bool
is_taped(Oid function)
{
	char	   *name;
	bool		found = false;

	if (function >= FirstGenbkiObjectId)
		return false;
	name = get_func_name(function);
	for (int i = 0; name != NULL && i < (int) lengthof(taped_names) && !found; i++)
		found = strcmp(name, taped_names[i]) == 0;
	if (name != NULL)
		pfree(name);
	return found;
}

/*
 * The function that the node itself calls, if that is one for the tape, or InvalidOid.  An
 * identity column's number is that of nextval().
 */
static Oid
taped_function(Node *node)
{
	if (IsA(node, NextValueExpr))
		return F_NEXTVAL;
	if (IsA(node, FuncExpr) && !((FuncExpr *) node)->funcretset &&
		is_taped(((FuncExpr *) node)->funcid))
		return ((FuncExpr *) node)->funcid;
	return InvalidOid;
}

/*
 * nvm.tape(...) as we have put it there: what it is given, or NULL.  What a user may have
 * written with that name is another call.
 */
Node *
nvm_tape_argument(Node *node)
{
	FuncExpr   *call = (FuncExpr *) node;
	Node	   *inner;
	Const	   *function;

	if (!IsA(node, FuncExpr) || call->funcid < FirstNormalObjectId ||
		call->funcid != nvm_taping_function() || list_length(call->args) != 2 ||
		!IsA(lsecond(call->args), Const))
		return NULL;
	inner = linitial(call->args);
	function = lsecond_node(Const, call->args);
	return !function->constisnull && OidIsValid(taped_function(inner)) &&
		taped_function(inner) == DatumGetObjectId(function->constvalue) ? inner : NULL;
}

static Node *
oid_const(Oid oid)
{
	return (Node *) makeConst(OIDOID, -1, InvalidOid, sizeof(Oid), ObjectIdGetDatum(oid), false, true);
}

/*
 * The arguments of the function that do something when they are evaluated, as a row: a
 * replay evaluates these as the call has done.  Or NULL.
 */
static Node *
volatile_arguments(Node *node)
{
	List	   *arguments = IsA(node, FuncExpr) ? ((FuncExpr *) node)->args : NIL;
	RowExpr    *row = makeNode(RowExpr);
	ListCell   *lc;

	row->row_typeid = RECORDOID;
	row->row_format = COERCE_EXPLICIT_CALL;
	row->location = -1;
	foreach(lc, arguments)
	{
		if (contain_volatile_functions(lfirst(lc)))
			row->args = lappend(row->args, lfirst(lc));
	}
	if (row->args == NIL)
		return (Node *) makeNullConst(OIDOID, -1, InvalidOid);
	return (Node *) row;
}

/*
 * In a replay: what reads the result, in the place of a node that calls such a function.
 */
static Node *
put_replayed(Node *node, Oid function)
{
	Oid			type = exprType(node);
	Oid			collation = exprCollation(node);

	if (!OidIsValid(nvm_replaying_function()))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function nvm.replayed(anyelement, oid, \"any\") is not there"),
				 errhint("Extension pg_nvm is not whole. Create it anew.")));
	return (Node *) makeFuncExpr(nvm_replaying_function(), type,
								 list_make3(makeNullConst(type, -1, collation), oid_const(function),
											volatile_arguments(node)),
								 collation, InvalidOid, COERCE_EXPLICIT_CALL);
}

/*
 * A node that calls such a function, in nvm.tape(); others as they are.
 */
Node *
nvm_tape_put(Node *node)
{
	Oid			function = taped_function(node);

	if (OidIsValid(function) && unlikely(nvm_command_replaying))
		return put_replayed(node, function);
	if (!OidIsValid(function) || !OidIsValid(nvm_taping_function()))
		return node;
	return (Node *) makeFuncExpr(nvm_taping_function(), exprType(node),
								 list_make2(node, oid_const(function)), exprCollation(node), InvalidOid, COERCE_EXPLICIT_CALL);
}

static Node *
put_everywhere(Node *node, void *context)
{
	if (node == NULL)
		return NULL;
	return nvm_tape_put(expression_tree_mutator(node, put_everywhere, context));
}

/*
 * The same for all within an expression that PL/pgSQL evaluates by itself, in a replay.
 */
Node *
nvm_tape_put_all(Node *expr)
{
	return put_everywhere(expr, NULL);
}

/* ---- queries ---- */

/*
 * nvm.tape() is VOLATILE.  Around a STABLE function it would keep the planner from an index
 * and from pruning partitions, in all queries of the database.  So that stays as it is, and
 * is a reason if a call comes to it.
 */
static bool
is_taped_in_query(Node *node)
{
	Oid			function = taped_function(node);

	return OidIsValid(function) && func_volatile(function) == PROVOLATILE_VOLATILE;
}

static bool
walk_taped(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (is_taped_in_query(node))
		return true;
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, walk_taped, context, 0);
	return expression_tree_walker(node, walk_taped, context);
}

static Node *
put_all(Node *node, void *context)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Query))
		return (Node *) query_tree_mutator((Query *) node, put_all, context, 0);
	node = expression_tree_mutator(node, put_all, context);
	return is_taped_in_query(node) ? nvm_tape_put(node) : node;
}

Query *
nvm_tape_put_query(Query *query)
{
	if (query->commandType == CMD_UTILITY ||
		!(nvm_command_replaying || OidIsValid(nvm_taping_function())) ||
		!walk_taped((Node *) query, NULL))
		return query;
	return (Query *) put_all((Node *) query, NULL);
}

/*
 * Put all such calls of a query that is going to be planned into nvm.tape().
 */
Query *
nvm_command_tape_query(Query *query)
{
	if (likely(!nvm_command_any() && !nvm_command_replaying))
		return query;
	return nvm_tape_put_query(query);
}

/* ---- results ---- */

/*
 * nvm.tape(value, function): the value.
 */
Datum
nvm_tape(PG_FUNCTION_ARGS)
{
	if (nvm_command_in_call() && !nvm_verdict_by_values() && !PG_ARGISNULL(1))
	{
		nvm_judge_order_of_results();
		nvm_record_tape(PG_GETARG_OID(1), get_fn_expr_argtype(fcinfo->flinfo, 0),
						PG_GETARG_DATUM(0), PG_ARGISNULL(0));
	}
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	PG_RETURN_DATUM(PG_GETARG_DATUM(0));
}

/*
 * nvm.replayed(NULL::type, function, arguments): the result that the record of the call has
 * next.  What the arguments are worth does not matter.
 */
Datum
nvm_replayed(PG_FUNCTION_ARGS)
{
	Datum		value;
	bool		isnull;

	if (!nvm_replay_in_call || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("nvm.replayed() is called outside of a replay of calls")));
	value = nvm_replay_next_result(PG_GETARG_OID(1), get_fn_expr_argtype(fcinfo->flinfo, 0), &isnull);
	if (isnull)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(value);
}
