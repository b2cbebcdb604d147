/*-------------------------------------------------------------------------
 *
 * command_replay_call.c
 *	  A call as PostgreSQL's executor, or CALL, would make it.
 *
 * A function may ask which types its arguments have, what it is to return, and whether it
 * was called with VARIADIC.  So the FmgrInfo has an expression that says it.  Arguments
 * are parameters there, since what is constant a function may keep.
 *
 * Many records call the same few functions: the FmgrInfo of each is kept, until some
 * function or type changes.  Those of functions that return sets are not, as they have
 * what is left of the set.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "command/command_impl.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "funcapi.h"
#include "nodes/execnodes.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "parser/parse_coerce.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"

/* a function, as it is called with arguments of these types */
typedef struct Known
{
	Oid			function;
	Oid			collation;
	int			nargs;
	Oid		   *types;
	bool		is_procedure;
	FmgrInfo	flinfo;
} Known;

/* beyond, all are looked up anew */
#define MAX_KNOWN	100

static MemoryContext known_context = NULL;
static List *known = NIL;
static bool known_is_stale = false;

static void
something_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	known_is_stale = true;
}

void
nvm_replay_forget_functions(void)
{
	known_is_stale = true;
}

/*
 * Not while one of them runs: calls of a replay are not nested.
 */
static void
begin_known(void)
{
	if (known_context == NULL)
	{
		known_context = AllocSetContextCreate(TopMemoryContext, "nvm replayed functions",
											  ALLOCSET_DEFAULT_SIZES);
		CacheRegisterSyscacheCallback(PROCOID, something_changed, (Datum) 0);
		CacheRegisterSyscacheCallback(TYPEOID, something_changed, (Datum) 0);
	}
	if (known_is_stale || list_length(known) >= MAX_KNOWN)
	{
		known = NIL;
		MemoryContextReset(known_context);
		known_is_stale = false;
	}
}

static Known *
find_known(const NvmReplayCall *call)
{
	ListCell   *lc;

	foreach(lc, known)
	{
		Known	   *k = lfirst(lc);

		if (k->function == call->function && k->collation == call->collation &&
			k->nargs == call->nargs &&
			memcmp(k->types, call->types, sizeof(Oid) * call->nargs) == 0)
			return k;
	}
	return NULL;
}

/* ---- the expression ---- */

static void
check_arguments(Form_pg_proc proc, const NvmReplayCall *call)
{
	bool		takes_any = proc->provariadic == ANYOID;

	if (takes_any ? call->nargs < proc->pronargs : call->nargs != proc->pronargs)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function %s has %d arguments, and its call in the log %d",
						format_procedure(call->function), proc->pronargs, call->nargs)));
}

/*
 * What a polymorphic function returns depends on its arguments.
 */
static Oid
result_type(Form_pg_proc proc, const NvmReplayCall *call)
{
	Oid			declared[NVM_REPLAY_MAX_ARGS];

	for (int i = 0; i < call->nargs; i++)
		declared[i] = i < proc->pronargs ? proc->proargtypes.values[i] : ANYOID;
	return enforce_generic_type_consistency(call->types, declared, call->nargs, proc->prorettype, false);
}

static FuncExpr *
make_expression(Form_pg_proc proc, const NvmReplayCall *call)
{
	Oid			type = result_type(proc, call);
	List	   *args = NIL;
	FuncExpr   *expr;

	for (int i = 0; i < call->nargs; i++)
	{
		Param	   *param = makeNode(Param);

		param->paramkind = PARAM_EXEC;
		param->paramid = i;
		param->paramtype = call->types[i];
		param->paramtypmod = -1;
		param->paramcollid = get_typcollation(call->types[i]);
		param->location = -1;
		args = lappend(args, param);
	}
	expr = makeFuncExpr(call->function, type, args,
						OidIsValid(get_typcollation(type)) ? call->collation : InvalidOid,
						call->collation, COERCE_EXPLICIT_CALL);
	expr->funcretset = proc->proretset;
	/* the array is made already; "any" has its arguments one by one */
	expr->funcvariadic = OidIsValid(proc->provariadic) && proc->provariadic != ANYOID;
	return expr;
}

/*
 * In the current memory context.
 */
static Known *
look_up(const NvmReplayCall *call)
{
	HeapTuple	tuple = SearchSysCacheCopy1(PROCOID, ObjectIdGetDatum(call->function));
	Form_pg_proc proc;
	Known	   *k;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", call->function);
	proc = (Form_pg_proc) GETSTRUCT(tuple);
	if (proc->prokind != PROKIND_FUNCTION && proc->prokind != PROKIND_PROCEDURE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("%s is neither a function nor a procedure", format_procedure(call->function))));
	check_arguments(proc, call);
	k = palloc0(sizeof(Known));
	k->function = call->function;
	k->collation = call->collation;
	k->nargs = call->nargs;
	k->types = palloc(sizeof(Oid) * Max(call->nargs, 1));
	memcpy(k->types, call->types, sizeof(Oid) * call->nargs);
	k->is_procedure = proc->prokind == PROKIND_PROCEDURE;
	fmgr_info(call->function, &k->flinfo);
	fmgr_info_set_expr((Node *) make_expression(proc, call), &k->flinfo);
	heap_freetuple(tuple);
	return k;
}

static Known *
get_known(const NvmReplayCall *call)
{
	MemoryContext outer;
	Known	   *k;

	begin_known();
	k = find_known(call);
	if (k != NULL)
		return k;
	if (!SearchSysCacheExists1(PROCOID, ObjectIdGetDatum(call->function)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("the function with OID %u does not exist any more", call->function)));
	if (get_func_retset(call->function))
		return look_up(call);
	outer = MemoryContextSwitchTo(known_context);
	k = look_up(call);
	known = lappend(known, k);
	MemoryContextSwitchTo(outer);
	return k;
}

/* ---- the call ---- */

/*
 * What FROM would tell a function that returns rows; NULL: it cannot be said.
 */
static TupleDesc
result_columns(FmgrInfo *flinfo)
{
	TupleDesc	desc;
	Oid			type;

	switch (get_expr_result_type(flinfo->fn_expr, &type, &desc))
	{
		case TYPEFUNC_COMPOSITE:
		case TYPEFUNC_COMPOSITE_DOMAIN:
			return desc;
		case TYPEFUNC_SCALAR:
			desc = CreateTemplateTupleDesc(1);
			TupleDescInitEntry(desc, (AttrNumber) 1, "result", type, -1, 0);
			return desc;
		default:
			return NULL;
	}
}

/*
 * All rows of a set.
 */
static void
call_set(FunctionCallInfo fcinfo)
{
	ReturnSetInfo rsinfo = {
		.type = T_ReturnSetInfo,
		.econtext = CreateStandaloneExprContext(),
		.expectedDesc = result_columns(fcinfo->flinfo),
		.allowedModes = SFRM_ValuePerCall | SFRM_Materialize | SFRM_Materialize_Preferred,
		.returnMode = SFRM_ValuePerCall
	};

	fcinfo->resultinfo = (fmNodePtr) &rsinfo;
	do
	{
		fcinfo->isnull = false;
		rsinfo.isDone = ExprSingleResult;
		(void) FunctionCallInvoke(fcinfo);
	} while (rsinfo.returnMode == SFRM_ValuePerCall && rsinfo.isDone == ExprMultipleResult);
	if (rsinfo.setResult != NULL)
		tuplestore_end(rsinfo.setResult);
	FreeExprContext(rsinfo.econtext, true);
}

/*
 * See command_impl.h.
 */
void
nvm_replay_call(const NvmReplayCall *call)
{
	LOCAL_FCINFO(fcinfo, NVM_REPLAY_MAX_ARGS);
	CallContext atomic = {.type = T_CallContext,.atomic = true};
	Known	   *k = get_known(call);

	InitFunctionCallInfoData(*fcinfo, &k->flinfo, call->nargs, call->collation, NULL, NULL);
	for (int i = 0; i < call->nargs; i++)
	{
		/* the executor does not call it then */
		if (k->flinfo.fn_strict && call->args[i].isnull)
			return;
		fcinfo->args[i] = call->args[i];
	}
	if (k->is_procedure)
		fcinfo->context = (fmNodePtr) &atomic;
	if (k->flinfo.fn_retset)
		call_set(fcinfo);
	else
		(void) FunctionCallInvoke(fcinfo);
}
