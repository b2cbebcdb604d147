/*-------------------------------------------------------------------------
 *
 * command_place.c
 *	  Where in PL/pgSQL the backend is: the function, the line, the kind of statement.
 *
 * PL/pgSQL puts each of its functions that runs onto error_context_stack, so that errors
 * tell the line.  There we find its state, once we know which function of the library
 * says so.  The library tells that to a plugin, so we are one until the next function of
 * PL/pgSQL begins, unless there is another: that one has been told, too.
 *
 * The stack has what is alive at any moment, also after an error was caught.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "command/command_impl.h"
#include "fmgr.h"
#include "plpgsql.h"

static PLpgSQL_plugin **slot = NULL;
static PLpgSQL_plugin plugin;
static void (*in_plpgsql) (void *arg) = NULL;

/* of error_context_stack, what was there when the call began */
static ErrorContextCallback *outside = NULL;

/*
 * The library has filled in what it offers to a plugin.
 */
static void
learn(PLpgSQL_execstate *estate, PLpgSQL_function *func)
{
	in_plpgsql = plugin.error_callback;
	if (*slot == &plugin)
		*slot = NULL;
}

/*
 * A call begins.
 */
void
nvm_place_call_begins(void)
{
	outside = error_context_stack;
	if (likely(in_plpgsql != NULL))
		return;
	if (slot == NULL)
		slot = (PLpgSQL_plugin **) find_rendezvous_variable("PLpgSQL_plugin");
	plugin.func_setup = learn;
	if (*slot == NULL)
		*slot = &plugin;
	else
		in_plpgsql = (*slot)->error_callback;
}

/*
 * The innermost function of PL/pgSQL in the call, and its line; false: there is none.
 */
bool
nvm_place_find(Oid *function, int *line)
{
	ErrorContextCallback *context = error_context_stack;

	while (context != NULL && context != outside)
	{
		if (in_plpgsql != NULL && context->callback == in_plpgsql)
		{
			PLpgSQL_execstate *estate = context->arg;

			*function = estate->func->fn_oid;
			*line = estate->err_stmt ? estate->err_stmt->lineno : 0;
			return true;
		}
		context = context->previous;
	}
	return false;
}

/*
 * The query that runs now was given to SPI: by PERFORM, which does not look at the rows?
 * Between both is SPI's entry.  (EXECUTE without INTO does not look at them either, but may
 * be computing the text of its query now.)
 */
bool
nvm_place_ignores_rows(void)
{
	ErrorContextCallback *context = error_context_stack;
	PLpgSQL_stmt *stmt;

	if (in_plpgsql == NULL || context == NULL || context == outside ||
		context->callback == in_plpgsql)
		return false;
	context = context->previous;
	if (context == NULL || context == outside || context->callback != in_plpgsql)
		return false;
	stmt = ((PLpgSQL_execstate *) context->arg)->err_stmt;
	return stmt != NULL && stmt->cmd_type == PLPGSQL_STMT_PERFORM;
}
