/*-------------------------------------------------------------------------
 *
 * command_inspect.c
 *	  What a function does that a replay could not do again, before it runs.
 *
 * The text of a function in SQL or PL/pgSQL is parsed, statement by statement, and so are
 * the functions that it calls and the triggers that it fires.  What is found are reasons as
 * a call would have them (command_verdict.c).  A call judges by itself, so nothing depends
 * on having found all: values and lanes are not known here, nor is the text of EXECUTE.
 *
 * Each statement is looked at in a subtransaction, since parsing may end in an ERROR.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_language_d.h"
#include "catalog/pg_proc.h"
#include "command/command_impl.h"
#include "command/command_inspect.h"
#include "commands/proclang.h"
#include "executor/functions.h"
#include "miscadmin.h"
#include "rewrite/rewriteHandler.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/syscache.h"

/* functions that are looked at for one */
#define MAX_FUNCTIONS	200

/* where nvm_command_disqualify's reasons go meanwhile */
static NvmInspection *current = NULL;

/* ---- what is found ---- */

/*
 * Each reason once for a statement.
 */
static void
note(NvmInspection *in, NvmReason reason, Oid classid, Oid object, const char *problem)
{
	NvmCommandFinding *finding;
	ListCell   *lc;

	foreach(lc, in->findings)
	{
		finding = lfirst(lc);
		if (finding->place == in->function && finding->line == in->line &&
			finding->reason == reason && finding->object == object)
			return;
	}
	finding = palloc0(sizeof(NvmCommandFinding));
	finding->place = in->function;
	finding->line = in->line;
	finding->reason = reason;
	finding->classid = classid;
	finding->object = object;
	finding->statement = in->statement ? pstrdup(in->statement) : NULL;
	finding->problem = problem;
	in->findings = lappend(in->findings, finding);
}

void
nvm_inspection_note(NvmInspection *in, NvmReason reason, Oid classid, Oid object)
{
	note(in, reason, classid, object, NULL);
}

static void
note_reason(NvmReason reason, Oid classid, Oid object)
{
	nvm_inspection_note(current, reason, classid, object);
}

/*
 * A function of a user is called, or fired by a table.
 */
void
nvm_inspection_calls(NvmInspection *in, Oid function, Oid table)
{
	ListCell   *lc;
	ListCell   *lc2;

	forboth(lc, in->functions, lc2, in->tables)
	{
		if (lfirst_oid(lc) == function && lfirst_oid(lc2) == table)
			return;
	}
	if (function < FirstNormalObjectId || list_length(in->functions) >= MAX_FUNCTIONS)
		return;
	in->functions = lappend_oid(in->functions, function);
	in->tables = lappend_oid(in->tables, table);
}

/* ---- parsing ---- */

typedef struct Text
{
	const char *text;
	RawParseMode mode;
	NvmParseSetup setup;
	void	   *arg;
	bool		reads;
} Text;

typedef List *(*Step) (NvmInspection *in, const Text *text);

static List *
parse(NvmInspection *in, const Text *text)
{
	List	   *queries = NIL;
	ListCell   *lc;
	ListCell   *lc2;

	foreach(lc, raw_parser(text->text, text->mode))
	{
		List	   *rewritten = pg_analyze_and_rewrite_withcb(lfirst_node(RawStmt, lc), text->text,
															  text->setup, text->arg, NULL);

		foreach(lc2, rewritten)
			nvm_inspect_query(in, lfirst_node(Query, lc2), text->text, text->reads);
		queries = list_concat(queries, rewritten);
	}
	return queries;
}

/*
 * Is it an error of the text, or of what it names?
 */
static bool
is_of_text(int sqlerrcode)
{
	switch (ERRCODE_TO_CATEGORY(sqlerrcode))
	{
		case ERRCODE_TRANSACTION_ROLLBACK:
		case ERRCODE_INSUFFICIENT_RESOURCES:
		case ERRCODE_OPERATOR_INTERVENTION:
		case ERRCODE_SYSTEM_ERROR:
			return false;
		default:
			return sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE;
	}
}

/*
 * What is done in a subtransaction may fail: then that is what is known of it.
 */
static List *
attempt(NvmInspection *in, Step step, const Text *text)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	List	   *result = NIL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		result = step(in, text);
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (!is_of_text(error->sqlerrcode))
			ReThrowError(error);
		note(in, NVM_REASON_NONE, InvalidOid, InvalidOid,
			 error->message != NULL ? pstrdup(error->message) : NULL);
		FreeErrorData(error);
		result = NIL;
	}
	PG_END_TRY();
	return result;
}

List *
nvm_inspection_parse(NvmInspection *in, const char *source, RawParseMode mode,
					 NvmParseSetup setup, void *arg, bool reads)
{
	Text		what = {source, mode, setup, arg, reads};

	return attempt(in, parse, &what);
}

/* ---- a function ---- */

/*
 * In SQL.  The last query's rows are its result, of which the first one is taken if it
 * returns no set.
 */
static List *
inspect_sql(NvmInspection *in, const Text *what)
{
	HeapTuple	tuple = (HeapTuple) what->arg;
	Form_pg_proc proc = (Form_pg_proc) GETSTRUCT(tuple);
	bool		isnull;
	Datum		value = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosqlbody, &isnull);
	List	   *stored = NIL;
	ListCell   *lc;
	ListCell   *lc2;

	if (isnull)
	{
		List	   *statements = raw_parser(what->text, RAW_PARSE_DEFAULT);
		SQLFunctionParseInfoPtr info = prepare_sql_fn_parse_info(tuple, NULL, InvalidOid);

		foreach(lc, statements)
		{
			List	   *rewritten = pg_analyze_and_rewrite_withcb(lfirst_node(RawStmt, lc), what->text,
																  (ParserSetupHook) sql_fn_parser_setup, info, NULL);

			foreach(lc2, rewritten)
				nvm_inspect_query(in, lfirst_node(Query, lc2), what->text,
								  lc == list_tail(statements) && !proc->proretset && proc->prorettype != VOIDOID);
		}
		return NIL;
	}
	stored = (List *) stringToNode(TextDatumGetCString(value));
	if (IsA(stored, List))
		stored = linitial_node(List, stored);
	else
		stored = list_make1(stored);
	foreach(lc, stored)
	{
		Query	   *query = lfirst_node(Query, lc);
		List	   *rewritten;

		AcquireRewriteLocks(query, true, false);
		rewritten = pg_rewrite_query(query);
		foreach(lc2, rewritten)
			nvm_inspect_query(in, lfirst_node(Query, lc2), NULL,
							  lc == list_tail(stored) && !proc->proretset && proc->prorettype != VOIDOID);
	}
	return NIL;
}

static List *
inspect_plpgsql(NvmInspection *in, const Text *what)
{
	nvm_inspect_plpgsql(in);
	return NIL;
}

/*
 * With the settings that it has for itself, search_path among them.
 */
static void
inspect_body(NvmInspection *in, HeapTuple tuple)
{
	Form_pg_proc proc = (Form_pg_proc) GETSTRUCT(tuple);
	bool		isnull;
	Datum		value = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &isnull);
	Text		what = {.arg = tuple};
	int			level = NewGUCNestLevel();

	if (!isnull)
		what.text = TextDatumGetCString(value);
	value = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_proconfig, &isnull);
	if (!isnull)
		ProcessGUCArray(DatumGetArrayTypeP(value), superuser() ? PGC_SUSET : PGC_USERSET,
						PGC_S_SESSION, GUC_ACTION_SAVE);
	in->line = 0;
	in->statement = NULL;
	(void) attempt(in, proc->prolang == SQLlanguageId ? inspect_sql : inspect_plpgsql, &what);
	AtEOXact_GUC(true, level);
}

static void
inspect_function(NvmInspection *in)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(in->function));
	HeapTuple	copy;
	Oid			language;

	if (!HeapTupleIsValid(tuple))
		return;
	copy = heap_copytuple(tuple);
	ReleaseSysCache(tuple);
	language = ((Form_pg_proc) GETSTRUCT(copy))->prolang;
	if (language == SQLlanguageId || language == get_language_oid("plpgsql", true))
		inspect_body(in, copy);
}

/*
 * See nvm_command.h.
 */
List *
nvm_command_inspect(Oid function)
{
	NvmInspection in = {0};
	const NvmCommand *command = nvm_command_find(function);

	in.all_lanes = command != NULL && command->all_lanes;
	in.functions = list_make1_oid(function);
	in.tables = list_make1_oid(InvalidOid);
	current = &in;
	nvm_verdict_divert(note_reason);
	PG_TRY();
	{
		/* the lists become longer meanwhile */
		for (int i = 0; i < list_length(in.functions); i++)
		{
			in.function = list_nth_oid(in.functions, i);
			in.table = list_nth_oid(in.tables, i);
			inspect_function(&in);
		}
	}
	PG_FINALLY();
	{
		nvm_verdict_divert(NULL);
		current = NULL;
	}
	PG_END_TRY();
	return in.findings;
}
