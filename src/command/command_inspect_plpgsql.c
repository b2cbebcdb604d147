/*-------------------------------------------------------------------------
 *
 * command_inspect_plpgsql.c
 *	  The statements of a function in PL/pgSQL, for the inspection.
 *
 * The library compiles the function, as it does when the function is made.  Its parser asks
 * for the variables' types in the state of a function that runs, so there is one here, with
 * copies of the records: what a query returns into one gives it its columns.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "command/command_impl.h"
#include "command/command_inspect.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "funcapi.h"
#include "plpgsql.h"
#include "utils/rel.h"

typedef PLpgSQL_function *(*CompileFunction) (FunctionCallInfo fcinfo, bool validator);
typedef void (*SetupFunction) (ParseState *pstate, PLpgSQL_expr * expr);

typedef struct Body
{
	NvmInspection *in;
	PLpgSQL_function *function;
	PLpgSQL_execstate estate;
} Body;

static CompileFunction compile = NULL;
static SetupFunction setup = NULL;

static void walk_statements(Body *body, List *statements);

/* ---- expressions and queries ---- */

/*
 * Returns its queries.  reads: somebody sees the order of their rows.
 */
static List *
look_at(Body *body, PLpgSQL_expr * expr, bool reads)
{
	if (expr == NULL)
		return NIL;
	expr->func = body->function;
	body->in->statement = expr->query;
	return nvm_inspection_parse(body->in, expr->query, expr->parseMode,
								(NvmParseSetup) setup, expr, reads);
}

static void
look_at_all(Body *body, List *exprs)
{
	ListCell   *lc;

	foreach(lc, exprs)
		(void) look_at(body, lfirst(lc), true);
}

/*
 * The text of a query is computed: what it will be is not known.
 */
static void
look_at_text(Body *body, PLpgSQL_expr * expr, List *params)
{
	if (expr == NULL)
		return;
	(void) look_at(body, expr, true);
	look_at_all(body, params);
	nvm_inspection_note(body->in, NVM_REASON_NONE, InvalidOid, InvalidOid);
}

/*
 * A record has the columns of rows that are read into it.
 */
static void
give_columns(Body *body, int dno, TupleDesc columns)
{
	PLpgSQL_rec *rec = (PLpgSQL_rec *) body->estate.datums[dno];

	if (rec->dtype == PLPGSQL_DTYPE_REC && rec->rectypeid == RECORDOID)
		rec->erh = make_expanded_record_from_tupdesc(BlessTupleDesc(columns), CurrentMemoryContext);
}

static void
read_into(Body *body, PLpgSQL_variable * target, List *queries)
{
	Query	   *query = queries != NIL ? linitial_node(Query, queries) : NULL;
	List	   *columns;

	if (target == NULL || target->dtype != PLPGSQL_DTYPE_REC || query == NULL)
		return;
	columns = query->commandType == CMD_SELECT ? query->targetList : query->returningList;
	if (columns != NIL)
		give_columns(body, target->dno, ExecCleanTypeFromTL(columns));
}

/*
 * The query of a cursor that is declared with it.
 */
static PLpgSQL_expr *
query_of_cursor(Body *body, int dno)
{
	return ((PLpgSQL_var *) body->function->datums[dno])->cursor_explicit_expr;
}

/* ---- statements ---- */

static void
walk_case(Body *body, PLpgSQL_stmt_case * stmt)
{
	ListCell   *lc;

	(void) look_at(body, stmt->t_expr, true);
	foreach(lc, stmt->case_when_list)
	{
		PLpgSQL_case_when *arm = lfirst(lc);

		/*
		 * with a value to compare, that is in a variable whose type is not
		 * known yet
		 */
		if (stmt->t_expr == NULL)
			(void) look_at(body, arm->expr, true);
		walk_statements(body, arm->stmts);
	}
	walk_statements(body, stmt->else_stmts);
}

static void
walk_if(Body *body, PLpgSQL_stmt_if * stmt)
{
	ListCell   *lc;

	(void) look_at(body, stmt->cond, true);
	walk_statements(body, stmt->then_body);
	foreach(lc, stmt->elsif_list)
	{
		PLpgSQL_if_elsif *arm = lfirst(lc);

		(void) look_at(body, arm->cond, true);
		walk_statements(body, arm->stmts);
	}
	walk_statements(body, stmt->else_body);
}

static void
walk_loop(Body *body, PLpgSQL_stmt *stmt)
{
	switch (stmt->cmd_type)
	{
		case PLPGSQL_STMT_LOOP:
			walk_statements(body, ((PLpgSQL_stmt_loop *) stmt)->body);
			break;
		case PLPGSQL_STMT_WHILE:
			(void) look_at(body, ((PLpgSQL_stmt_while *) stmt)->cond, true);
			walk_statements(body, ((PLpgSQL_stmt_while *) stmt)->body);
			break;
		case PLPGSQL_STMT_FORI:
			(void) look_at(body, ((PLpgSQL_stmt_fori *) stmt)->lower, true);
			(void) look_at(body, ((PLpgSQL_stmt_fori *) stmt)->upper, true);
			(void) look_at(body, ((PLpgSQL_stmt_fori *) stmt)->step, true);
			walk_statements(body, ((PLpgSQL_stmt_fori *) stmt)->body);
			break;
		case PLPGSQL_STMT_FORS:
			read_into(body, ((PLpgSQL_stmt_fors *) stmt)->var,
					  look_at(body, ((PLpgSQL_stmt_fors *) stmt)->query, true));
			walk_statements(body, ((PLpgSQL_stmt_fors *) stmt)->body);
			break;
		case PLPGSQL_STMT_FORC:
			(void) look_at(body, ((PLpgSQL_stmt_forc *) stmt)->argquery, true);
			read_into(body, ((PLpgSQL_stmt_forc *) stmt)->var,
					  look_at(body, query_of_cursor(body, ((PLpgSQL_stmt_forc *) stmt)->curvar), true));
			walk_statements(body, ((PLpgSQL_stmt_forc *) stmt)->body);
			break;
		case PLPGSQL_STMT_FOREACH_A:
			(void) look_at(body, ((PLpgSQL_stmt_foreach_a *) stmt)->expr, true);
			walk_statements(body, ((PLpgSQL_stmt_foreach_a *) stmt)->body);
			break;
		default:
			look_at_text(body, ((PLpgSQL_stmt_dynfors *) stmt)->query, ((PLpgSQL_stmt_dynfors *) stmt)->params);
			walk_statements(body, ((PLpgSQL_stmt_dynfors *) stmt)->body);
			break;
	}
}

/*
 * A block with EXCEPTION is a subtransaction: if it catches anything, that is rolled back.
 */
static void
walk_block(Body *body, PLpgSQL_stmt_block * stmt)
{
	ListCell   *lc;

	if (stmt->exceptions != NULL)
	{
		body->in->statement = NULL;
		nvm_inspection_note(body->in, NVM_REASON_SUBTRANSACTION, InvalidOid, InvalidOid);
	}
	walk_statements(body, stmt->body);
	if (stmt->exceptions == NULL)
		return;
	foreach(lc, stmt->exceptions->exc_list)
		walk_statements(body, ((PLpgSQL_exception *) lfirst(lc))->action);
}

static void
walk_raise(Body *body, PLpgSQL_stmt_raise * stmt)
{
	ListCell   *lc;

	look_at_all(body, stmt->params);
	foreach(lc, stmt->options)
		(void) look_at(body, ((PLpgSQL_raise_option *) lfirst(lc))->expr, true);
}

static void
walk_open(Body *body, PLpgSQL_stmt_open * stmt)
{
	(void) look_at(body, stmt->argquery, true);
	(void) look_at(body, stmt->query, true);
	look_at_text(body, stmt->dynquery, stmt->params);
	(void) look_at(body, query_of_cursor(body, stmt->curvar), true);
}

static void
walk_query(Body *body, PLpgSQL_stmt *stmt)
{
	switch (stmt->cmd_type)
	{
		case PLPGSQL_STMT_EXECSQL:
			read_into(body, ((PLpgSQL_stmt_execsql *) stmt)->target,
					  look_at(body, ((PLpgSQL_stmt_execsql *) stmt)->sqlstmt, ((PLpgSQL_stmt_execsql *) stmt)->into));
			break;
		case PLPGSQL_STMT_DYNEXECUTE:
			look_at_text(body, ((PLpgSQL_stmt_dynexecute *) stmt)->query, ((PLpgSQL_stmt_dynexecute *) stmt)->params);
			break;
		case PLPGSQL_STMT_OPEN:
			walk_open(body, (PLpgSQL_stmt_open *) stmt);
			break;
		case PLPGSQL_STMT_FETCH:
			(void) look_at(body, ((PLpgSQL_stmt_fetch *) stmt)->expr, true);
			break;
		case PLPGSQL_STMT_PERFORM:
			(void) look_at(body, ((PLpgSQL_stmt_perform *) stmt)->expr, false);
			break;
		case PLPGSQL_STMT_CALL:
			(void) look_at(body, ((PLpgSQL_stmt_call *) stmt)->expr, false);
			break;
		case PLPGSQL_STMT_RETURN_QUERY:
			(void) look_at(body, ((PLpgSQL_stmt_return_query *) stmt)->query, false);
			look_at_text(body, ((PLpgSQL_stmt_return_query *) stmt)->dynquery, ((PLpgSQL_stmt_return_query *) stmt)->params);
			break;
		default:
			break;
	}
}

static void
walk_statement(Body *body, PLpgSQL_stmt *stmt)
{
	body->in->line = stmt->lineno;
	switch (stmt->cmd_type)
	{
		case PLPGSQL_STMT_BLOCK:
			walk_block(body, (PLpgSQL_stmt_block *) stmt);
			break;
		case PLPGSQL_STMT_ASSIGN:
			(void) look_at(body, ((PLpgSQL_stmt_assign *) stmt)->expr, true);
			break;
		case PLPGSQL_STMT_IF:
			walk_if(body, (PLpgSQL_stmt_if *) stmt);
			break;
		case PLPGSQL_STMT_CASE:
			walk_case(body, (PLpgSQL_stmt_case *) stmt);
			break;
		case PLPGSQL_STMT_LOOP:
		case PLPGSQL_STMT_WHILE:
		case PLPGSQL_STMT_FORI:
		case PLPGSQL_STMT_FORS:
		case PLPGSQL_STMT_FORC:
		case PLPGSQL_STMT_FOREACH_A:
		case PLPGSQL_STMT_DYNFORS:
			walk_loop(body, stmt);
			break;
		case PLPGSQL_STMT_EXIT:
			(void) look_at(body, ((PLpgSQL_stmt_exit *) stmt)->cond, true);
			break;
		case PLPGSQL_STMT_RETURN:
			(void) look_at(body, ((PLpgSQL_stmt_return *) stmt)->expr, true);
			break;
		case PLPGSQL_STMT_RETURN_NEXT:
			(void) look_at(body, ((PLpgSQL_stmt_return_next *) stmt)->expr, true);
			break;
		case PLPGSQL_STMT_RAISE:
			walk_raise(body, (PLpgSQL_stmt_raise *) stmt);
			break;
		case PLPGSQL_STMT_ASSERT:
			(void) look_at(body, ((PLpgSQL_stmt_assert *) stmt)->cond, true);
			(void) look_at(body, ((PLpgSQL_stmt_assert *) stmt)->message, true);
			break;
		default:
			walk_query(body, stmt);
			break;
	}
}

static void
walk_statements(Body *body, List *statements)
{
	ListCell   *lc;

	foreach(lc, statements)
		walk_statement(body, lfirst(lc));
}

/* ---- the function ---- */

static PLpgSQL_function *
compile_function(NvmInspection *in)
{
	LOCAL_FCINFO(fcinfo, 0);
	FmgrInfo	flinfo = {.fn_oid = in->function,.fn_mcxt = CurrentMemoryContext};
	TriggerData trigger = {.type = T_TriggerData};

	if (compile == NULL)
	{
		setup = (SetupFunction) load_external_function("$libdir/plpgsql", "plpgsql_parser_setup", true, NULL);
		compile = (CompileFunction) load_external_function("$libdir/plpgsql", "plpgsql_compile", true, NULL);
	}
	MemSet(fcinfo, 0, SizeForFunctionCallInfo(0));
	fcinfo->flinfo = &flinfo;
	if (OidIsValid(in->table))
		fcinfo->context = (Node *) &trigger;
	return compile(fcinfo, true);
}

/*
 * Records have columns of their own while they are looked at; of a trigger, NEW and OLD
 * those of the table.
 */
static void
make_variables(Body *body)
{
	PLpgSQL_function *function = body->function;

	body->estate.func = function;
	body->estate.ndatums = function->ndatums;
	body->estate.datum_context = CurrentMemoryContext;
	body->estate.datums = palloc(function->ndatums * sizeof(PLpgSQL_datum *));
	for (int i = 0; i < function->ndatums; i++)
	{
		body->estate.datums[i] = function->datums[i];
		if (function->datums[i]->dtype == PLPGSQL_DTYPE_REC)
		{
			body->estate.datums[i] = palloc(sizeof(PLpgSQL_rec));
			memcpy(body->estate.datums[i], function->datums[i], sizeof(PLpgSQL_rec));
			((PLpgSQL_rec *) body->estate.datums[i])->erh = NULL;
		}
	}
	if (function->fn_is_trigger == PLPGSQL_DML_TRIGGER && OidIsValid(body->in->table))
	{
		Relation	rel = table_open(body->in->table, AccessShareLock);

		give_columns(body, function->new_varno, CreateTupleDescCopy(RelationGetDescr(rel)));
		give_columns(body, function->old_varno, CreateTupleDescCopy(RelationGetDescr(rel)));
		table_close(rel, NoLock);
	}
}

/*
 * What variables are when they are declared.
 */
static void
look_at_defaults(Body *body)
{
	for (int i = 0; i < body->function->ndatums; i++)
	{
		PLpgSQL_variable *variable = (PLpgSQL_variable *) body->function->datums[i];

		if (variable->dtype != PLPGSQL_DTYPE_VAR && variable->dtype != PLPGSQL_DTYPE_REC)
			continue;
		body->in->line = variable->lineno;
		(void) look_at(body, variable->default_val, true);
	}
}

void
nvm_inspect_plpgsql(NvmInspection *in)
{
	Body		body = {.in = in};
	PLpgSQL_execstate *outer;

	body.function = compile_function(in);
	make_variables(&body);
	outer = body.function->cur_estate;
	body.function->cur_estate = &body.estate;
	PG_TRY();
	{
		look_at_defaults(&body);
		walk_statement(&body, (PLpgSQL_stmt *) body.function->action);
	}
	PG_FINALLY();
	{
		body.function->cur_estate = outer;
	}
	PG_END_TRY();
}
