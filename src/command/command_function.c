/*-------------------------------------------------------------------------
 *
 * command_function.c
 *	  Functions that a replay can call again, with the same result.
 *
 * Those are: IMMUTABLE ones; built-in ones that depend on what is the same in a replay,
 * listed here; those of SQL and PL/pgSQL, since what they do is looked at when they do
 * it; and registered ones.  STABLE alone says nothing: current_setting() is.
 *
 * PL/pgSQL evaluates simple expressions without the executor, where nobody would see
 * their functions.  So when such an expression is planned, in a database that has
 * registered functions, a function that is not admitted is given to
 * nvm.note_function(), which says so when it is evaluated.  The expression stays a simple
 * one: as a query it would set PL/pgSQL's ROW_COUNT, and cost ten times as much.
 *
 * PL/pgSQL also applies casts by itself.  So functions of users in other languages that are
 * not admitted are watched: their calls come by fmgr_hook, as those of registered ones do.
 * A function in SQL that is a cast is not inlined: then its query is seen.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/namespace.h"
#include "catalog/pg_aggregate.h"
#include "catalog/pg_cast.h"
#include "catalog/pg_language_d.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "command/command_impl.h"
#include "command/nvm_command.h"
#include "compat/nvm_compat_am.h"
#include "commands/proclang.h"
#include "fmgr.h"
#include "nodes/execnodes.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "nodes/plannodes.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

/*
 * Built-in, not IMMUTABLE, and determined by their arguments, the transaction's
 * timestamp, and the settings for language and time that a record of a call will have.
 * In order.
 */
static const char *const admitted_names[] = {
	"age", "any_in", "anyarray_in", "anyarray_out", "anycompatiblearray_out", "anytextcat",
	"array_agg_array_finalfn", "array_agg_finalfn", "array_in", "array_out", "array_recv",
	"array_send", "array_to_json", "array_to_string", "arraycontjoinsel", "bpcharin",
	"cash_in", "cash_out", "cash_words", "concat", "concat_ws", "date", "date_cmp_timestamptz",
	"date_eq_timestamptz", "date_ge_timestamptz", "date_gt_timestamptz", "date_in",
	"date_le_timestamptz", "date_lt_timestamptz", "date_ne_timestamptz", "date_out", "date_part",
	"date_trunc", "domain_in", "enum_in", "enum_out", "extract", "format", "generate_series", "interval_in",
	"json_agg_finalfn", "json_build_array", "json_build_object", "jsonb_build_array",
	"jsonb_build_object", "jsonb_populate_record", "jsonb_populate_recordset", "jsonb_to_record",
	"jsonb_to_recordset", "json_populate_record", "json_populate_recordset", "json_to_record",
	"json_to_recordset", "make_timestamptz", "money", "now", "numeric", "quote_literal",
	"quote_nullable", "range_in", "range_out", "multirange_in", "multirange_out", "record_in",
	"record_out", "row_to_json", "statement_timestamp", "textanycat", "time", "time_in", "time_out", "timestamp",
	"timestamp_cmp_timestamptz", "timestamp_eq_timestamptz", "timestamp_ge_timestamptz",
	"timestamp_gt_timestamptz", "timestamp_in", "timestamp_le_timestamptz",
	"timestamp_lt_timestamptz", "timestamp_ne_timestamptz", "timestamp_out", "timestamptz",
	"timestamptz_cmp_date", "timestamptz_cmp_timestamp", "timestamptz_eq_date",
	"timestamptz_eq_timestamp", "timestamptz_ge_date", "timestamptz_ge_timestamp",
	"timestamptz_gt_date", "timestamptz_gt_timestamp", "timestamptz_in", "timestamptz_le_date",
	"timestamptz_le_timestamp", "timestamptz_lt_date", "timestamptz_lt_timestamp",
	"timestamptz_mi_interval", "timestamptz_ne_date", "timestamptz_ne_timestamp",
	"timestamptz_out", "timestamptz_pl_interval", "interval_pl_timestamptz", "timetz",
	"timetz_in", "timetz_out", "timezone", "to_char", "to_date", "to_json", "to_jsonb",
	"to_timestamp", "transaction_timestamp"
};

typedef struct Admission
{
	Oid			function;		/* key */
	bool		admitted;
	bool		may_be_inlined; /* so only what it is replaced by is known */
	bool		is_watched;		/* it is seen when it is called */
	bool		names_clock;	/* its text may have a literal as 'today' */
} Admission;

typedef struct Search
{
	Oid			found;
	bool		before_planning;
}			Search;

static HTAB *admissions = NULL;
static bool admissions_are_known = false;

/* nvm.note_function(), nvm.tape() and nvm.replayed(), if they are there */
static Oid	noting = InvalidOid;
static Oid	tape = InvalidOid;
static Oid	replayed = InvalidOid;
static bool own_are_known = false;

PG_FUNCTION_INFO_V1(nvm_note_function);

static void
functions_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	admissions_are_known = false;
	own_are_known = false;
}

static bool
is_listed(const char *name)
{
	for (int i = 0; i < (int) lengthof(admitted_names); i++)
	{
		if (strcmp(admitted_names[i], name) == 0)
			return true;
	}
	return false;
}

static const Admission *look_up(Oid function);
static Oid	noting_function(void);

bool
nvm_function_is_admitted(Oid function)
{
	return look_up(function)->admitted;
}

bool
nvm_function_names_clock(Oid function)
{
	return function >= FirstNormalObjectId && look_up(function)->names_clock;
}

/*
 * An aggregate says IMMUTABLE whatever its functions are.
 */
static bool
aggregate_is_admitted(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(AGGFNOID, ObjectIdGetDatum(function));
	Form_pg_aggregate agg;
	bool		admitted;

	if (!HeapTupleIsValid(tuple))
		return false;
	agg = (Form_pg_aggregate) GETSTRUCT(tuple);
	admitted = nvm_function_is_admitted(agg->aggtransfn) &&
		(!OidIsValid(agg->aggfinalfn) || nvm_function_is_admitted(agg->aggfinalfn)) &&
		(!OidIsValid(agg->aggmtransfn) || nvm_function_is_admitted(agg->aggmtransfn)) &&
		(!OidIsValid(agg->aggminvtransfn) || nvm_function_is_admitted(agg->aggminvtransfn)) &&
		(!OidIsValid(agg->aggmfinalfn) || nvm_function_is_admitted(agg->aggmfinalfn));
	ReleaseSysCache(tuple);
	return admitted;
}

/*
 * Is it called by queries, rather than by PostgreSQL itself?
 */
static bool
is_for_queries(Form_pg_proc proc)
{
	for (int i = 0; i < proc->proargtypes.dim1; i++)
	{
		if (proc->proargtypes.values[i] == INTERNALOID)
			return false;
	}
	switch (proc->prorettype)
	{
		case INTERNALOID:
		case TRIGGEROID:
		case EVENT_TRIGGEROID:
		case LANGUAGE_HANDLEROID:
		case FDW_HANDLEROID:
		case TABLE_AM_HANDLEROID:
		case INDEX_AM_HANDLEROID:
		case TSM_HANDLEROID:
			return false;
		default:
			return proc->prokind == PROKIND_FUNCTION || proc->prokind == PROKIND_PROCEDURE;
	}
}

static bool
is_cast(Form_pg_proc proc)
{
	HeapTuple	tuple;
	bool		is;

	if (proc->proargtypes.dim1 < 1)
		return false;
	tuple = SearchSysCache2(CASTSOURCETARGET, ObjectIdGetDatum(proc->proargtypes.values[0]),
							ObjectIdGetDatum(proc->prorettype));
	if (!HeapTupleIsValid(tuple))
		return false;
	is = ((Form_pg_cast) GETSTRUCT(tuple))->castfunc == proc->oid;
	ReleaseSysCache(tuple);
	return is;
}

/*
 * Of one in SQL: may its text have a literal as 'today'?  A body that was parsed when the
 * function was made has none.
 */
static bool
may_name_clock(HeapTuple tuple)
{
	bool		isnull;
	Datum		value;
	char	   *source;
	bool		names;

	(void) SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosqlbody, &isnull);
	if (!isnull)
		return false;
	value = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &isnull);
	if (isnull)
		return false;
	source = TextDatumGetCString(value);
	names = nvm_source_names_clock(source);
	pfree(source);
	return names;
}

/*
 * Does it set something for itself that the record has for all of the call?  What it runs
 * would be parsed under these settings, or not, if it was parsed before.  Paths are looked
 * at by PostgreSQL itself.
 */
static bool
has_settings(HeapTuple tuple)
{
	bool		isnull;
	Datum		value = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_proconfig, &isnull);
	Datum	   *values;
	int			n;
	bool		found = false;

	if (isnull)
		return false;
	deconstruct_array(DatumGetArrayTypeP(value), TEXTOID, -1, false, TYPALIGN_INT, &values, NULL, &n);
	for (int i = 0; i < n && !found; i++)
	{
		char	   *setting = TextDatumGetCString(values[i]);
		char	   *end = strchr(setting, '=');

		if (end != NULL)
			*end = '\0';
		found = nvm_setting_is_recorded(setting);
		pfree(setting);
	}
	return found;
}

static bool
is_plpgsql(Form_pg_proc proc)
{
	static Oid	plpgsql = InvalidOid;

	/* its Oid is the same as long as its functions are there */
	if (!OidIsValid(plpgsql))
		plpgsql = get_language_oid("plpgsql", true);
	return OidIsValid(plpgsql) && proc->prolang == plpgsql;
}

/*
 * See command_impl.h.
 */
bool
nvm_function_reads_context(HeapTuple tuple)
{
	static const char word[] = "pg_context";
	bool		isnull;
	Datum		value = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &isnull);
	char	   *source;
	bool		found = false;

	if (isnull || !is_plpgsql((Form_pg_proc) GETSTRUCT(tuple)))
		return false;
	source = TextDatumGetCString(value);
	for (const char *at = source; *at != '\0' && !found; at++)
		found = pg_strncasecmp(at, word, sizeof(word) - 1) == 0;
	pfree(source);
	return found;
}

/*
 * In a temporary schema, which another session does not have?
 */
static bool
is_of_session(Form_pg_proc proc)
{
	return proc->oid >= FirstNormalObjectId && isAnyTempNamespace(proc->pronamespace);
}

static Admission
find_out(Oid function)
{
	HeapTuple	tuple;
	Form_pg_proc proc;
	Admission	a = {.function = function};

	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return a;
	proc = (Form_pg_proc) GETSTRUCT(tuple);
	if (proc->prokind == PROKIND_AGGREGATE)
		a.admitted = function < FirstGenbkiObjectId || aggregate_is_admitted(function);
	else
		a.admitted = function != F_AGE_XID &&	/* of the next xid; the others
												 * are listed */
			!is_of_session(proc) && !has_settings(tuple) &&
			!nvm_function_reads_context(tuple) &&
			(proc->provolatile == PROVOLATILE_IMMUTABLE ||
			 proc->prolang == SQLlanguageId ||
			 is_plpgsql(proc) ||
			 (function < FirstGenbkiObjectId && is_listed(NameStr(proc->proname))) ||
			 nvm_command_is_registered(function));
	a.may_be_inlined = proc->prolang == SQLlanguageId &&
		proc->provolatile != PROVOLATILE_IMMUTABLE;
	if (function >= FirstNormalObjectId && is_for_queries(proc))
		a.is_watched = proc->prolang == SQLlanguageId ? is_cast(proc) : !a.admitted;
	if (proc->prolang == SQLlanguageId && function >= FirstNormalObjectId)
		a.names_clock = may_name_clock(tuple);
	ReleaseSysCache(tuple);
	return a;
}

static const Admission *
look_up(Oid function)
{
	Admission  *a;
	Admission	fresh;
	bool		found;

	if (!admissions_are_known)
	{
		HASHCTL		ctl = {.keysize = sizeof(Oid),.entrysize = sizeof(Admission)};

		if (admissions != NULL)
			hash_destroy(admissions);
		admissions = NULL;
		admissions = hash_create("nvm admitted functions", 64, &ctl, HASH_ELEM | HASH_BLOBS);
		admissions_are_known = true;
	}
	a = hash_search(admissions, &function, HASH_FIND, NULL);
	if (a != NULL)
		return a;
	fresh = find_out(function);

	/* the table may be out of date by now: what is entered goes with it */
	a = hash_search(admissions, &function, HASH_ENTER, &found);
	*a = fresh;
	return a;
}

/*
 * Shall its calls come by fmgr_hook, in a database that has registered functions?
 */
bool
nvm_command_watches(Oid function)
{
	return function >= FirstNormalObjectId && nvm_command_any() &&
		function != noting_function() && function != nvm_taping_function() &&
		look_up(function)->is_watched;
}

/*
 * A function is called by fmgr_hook that is not registered.
 */
void
nvm_watch_call(Oid function)
{
	if (likely(!nvm_command_in_call()) || nvm_verdict_by_values() ||
		function < FirstNormalObjectId || !nvm_command_watches(function))
		return;
	if (!nvm_function_is_admitted(function))
		nvm_command_disqualify(NVM_REASON_FUNCTION, ProcedureRelationId, function);
}

/*
 * Is it one of those that PostgreSQL makes for a foreign key, or a deferrable unique key?
 */
bool
nvm_is_foreign_key_trigger(Oid function)
{
	switch (function)
	{
		case F_RI_FKEY_CHECK_INS:
		case F_RI_FKEY_CHECK_UPD:
		case F_RI_FKEY_CASCADE_DEL:
		case F_RI_FKEY_CASCADE_UPD:
		case F_RI_FKEY_RESTRICT_DEL:
		case F_RI_FKEY_RESTRICT_UPD:
		case F_RI_FKEY_SETNULL_DEL:
		case F_RI_FKEY_SETNULL_UPD:
		case F_RI_FKEY_SETDEFAULT_DEL:
		case F_RI_FKEY_SETDEFAULT_UPD:
		case F_RI_FKEY_NOACTION_DEL:
		case F_RI_FKEY_NOACTION_UPD:
		case F_UNIQUE_KEY_RECHECK:
			return true;
		default:
			return false;
	}
}

/*
 * Foreign keys' triggers are admitted: their queries are looked at.
 */
bool
nvm_trigger_is_admitted(Oid function)
{
	return nvm_is_foreign_key_trigger(function) || nvm_function_is_admitted(function);
}

static bool
note_function(Oid function, void *context)
{
	Search	   *search = context;
	const Admission *a;

	/* its argument is looked at */
	if (function >= FirstNormalObjectId && function == noting_function())
		return false;
	a = look_up(function);
	if (a->admitted && !(search->before_planning && a->may_be_inlined))
		return false;
	search->found = function;
	return true;
}

static bool walk_functions(Node *node, void *context);

/*
 * Do the domain's CHECK constraints call such a function?
 */
static bool
is_in_domain(Oid domain, Search * search)
{
	MemoryContext context;
	DomainConstraintRef constraints;
	ListCell   *lc;
	bool		found = false;

	if (!DomainHasConstraints(domain))
		return false;
	/* the reference goes with it */
	context = AllocSetContextCreate(CurrentMemoryContext, "nvm domain", ALLOCSET_SMALL_SIZES);
	InitDomainConstraintRef(domain, &constraints, context, false);
	foreach(lc, constraints.constraints)
	{
		DomainConstraintState *constraint = lfirst(lc);

		found |= walk_functions((Node *) constraint->check_expr, search);
	}
	MemoryContextDelete(context);
	return found;
}

/*
 * Does the node itself call such a function?
 */
static bool
is_not_admitted(Node *node, Search * search)
{
	if (check_functions_in_node(node, note_function, search))
		return true;
	if (IsA(node, NextValueExpr))
	{
		search->found = F_NEXTVAL;
		return true;
	}
	if (IsA(node, SQLValueFunction) && ((SQLValueFunction *) node)->op == SVFOP_SESSION_USER)
	{
		/* a replay has the role, not who connected */
		search->found = F_SESSION_USER;
		return true;
	}
	return IsA(node, CoerceToDomain) && is_in_domain(((CoerceToDomain *) node)->resulttype, search);
}

static bool
walk_functions(Node *node, void *context)
{
	if (node == NULL)
		return false;
	/* its result is taped, so its arguments alone count */
	if (nvm_tape_argument(node) != NULL)
		return expression_tree_walker(nvm_tape_argument(node), walk_functions, context);
	if (is_not_admitted(node, context))
		return true;
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, walk_functions, context, 0);
	return expression_tree_walker(node, walk_functions, context);
}

/*
 * The first function in an expression that a replay cannot call again, or InvalidOid.
 *
 * before_planning: it is still to be planned, and nobody will look at it then.  A
 * function of SQL may be replaced by its body there, so it is not admitted itself.
 */
Oid
nvm_function_not_admitted(Node *expr, bool before_planning)
{
	Search		search = {.before_planning = before_planning};

	(void) walk_functions(expr, &search);
	return search.found;
}

/* ---- expressions that PL/pgSQL evaluates by itself ---- */

/*
 * nvm.note_function(value, function): the value.  In a call, the transaction is one of
 * values, as nobody knows whether the function would give the same again.  Of those that
 * read dates and times: they have read a literal as 'today'.  InvalidOid: one in SQL has.
 */
Datum
nvm_note_function(PG_FUNCTION_ARGS)
{
	if (nvm_command_in_call() && !nvm_verdict_by_values() && !PG_ARGISNULL(1) &&
		(!OidIsValid(PG_GETARG_OID(1)) || nvm_is_clock_input(PG_GETARG_OID(1)) ||
		 !nvm_function_is_admitted(PG_GETARG_OID(1))))
		nvm_command_disqualify(NVM_REASON_FUNCTION, ProcedureRelationId, PG_GETARG_OID(1));
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	PG_RETURN_DATUM(PG_GETARG_DATUM(0));
}

/*
 * Look up our functions of planned expressions.  Without the extension, or with one that
 * does not have them, there are none.  Nor if somebody has revoked them from PUBLIC:
 * PostgreSQL would ask each user of nextval() for the right to execute them.
 */
static void
look_up_own(void)
{
	Oid			types[3] = {ANYELEMENTOID, OIDOID, ANYOID};
	oidvector  *arguments;
	oidvector  *more;
	Oid			schema;

	own_are_known = true;
	noting = tape = replayed = InvalidOid;
	PG_TRY();
	{
		/* whether the user may use the schema is not asked */
		schema = get_namespace_oid("nvm", true);
		arguments = buildoidvector(types, 2);
		more = buildoidvector(types, 3);
		if (OidIsValid(schema))
		{
			noting = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum("note_function"),
									 PointerGetDatum(arguments), ObjectIdGetDatum(schema));
			tape = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum("tape"),
								   PointerGetDatum(arguments), ObjectIdGetDatum(schema));
			replayed = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum("replayed"),
									   PointerGetDatum(more), ObjectIdGetDatum(schema));
		}
		if (OidIsValid(noting) && !NvmPublicMayExecute(noting))
			noting = InvalidOid;
		if (OidIsValid(tape) && !NvmPublicMayExecute(tape))
			tape = InvalidOid;
	}
	PG_CATCH();
	{
		own_are_known = false;
		PG_RE_THROW();
	}
	PG_END_TRY();
}

static Oid
noting_function(void)
{
	if (unlikely(!own_are_known))
		look_up_own();
	return noting;
}

/*
 * Are functions seen that PL/pgSQL evaluates by itself?
 */
bool
nvm_functions_are_noted(void)
{
	return OidIsValid(noting_function());
}

Oid
nvm_taping_function(void)
{
	if (unlikely(!own_are_known))
		look_up_own();
	return tape;
}

Oid
nvm_replaying_function(void)
{
	if (unlikely(!own_are_known))
		look_up_own();
	return replayed;
}

static FuncExpr *
note(Node *node, Oid function)
{
	return makeFuncExpr(noting_function(), exprType(node),
						list_make2(node, makeConst(OIDOID, -1, InvalidOid, sizeof(Oid),
												   ObjectIdGetDatum(function), false, true)),
						exprCollation(node), InvalidOid, COERCE_EXPLICIT_CALL);
}

/*
 * Functions for the tape are given to nvm.tape(), others that are not admitted to
 * nvm.note_function().
 */
static Node *
note_functions(Node *node, void *context)
{
	Search		search = {0};
	FuncExpr   *call;

	if (node == NULL)
		return NULL;
	if (nvm_tape_argument(node) != NULL)
	{
		/* nvm.tape() is there already */
		call = copyObject((FuncExpr *) node);
		linitial(call->args) = expression_tree_mutator(nvm_tape_argument(node), note_functions, context);
		return (Node *) call;
	}
	node = expression_tree_mutator(node, note_functions, context);
	if (nvm_tape_put(node) != node)
		return nvm_tape_put(node);
	if (!is_not_admitted(node, &search))
		return node;
	return (Node *) note(node, search.found);
}

/*
 * A query was planned.  If PL/pgSQL can evaluate it by itself, and it has a function that
 * is not admitted, this one's result goes through nvm.note_function(); all of it does, if
 * it has a literal as 'today', as a mark is not seen there.
 */
void
nvm_command_query_planned(PlannedStmt *stmt, int order)
{
	Plan	   *plan = stmt->planTree;
	TargetEntry *entry;
	PlanInvalItem *item;
	Oid			input;
	bool		has_clock;

	if (stmt->commandType != CMD_SELECT || plan == NULL || !IsA(plan, Result) ||
		plan->lefttree != NULL || stmt->subplans != NIL || list_length(plan->targetlist) != 1)
		return;
	if (unlikely(nvm_command_replaying))
	{
		entry = linitial_node(TargetEntry, plan->targetlist);
		entry->expr = (Expr *) nvm_tape_put_all((Node *) entry->expr);
		return;
	}
	if (likely(!nvm_command_any()) || !OidIsValid(noting_function()))
		return;
	entry = linitial_node(TargetEntry, plan->targetlist);
	has_clock = nvm_mark_has_clock(order, &input);
	if (!has_clock && !OidIsValid(nvm_function_not_admitted((Node *) entry->expr, false)))
		return;
	entry->expr = (Expr *) note_functions((Node *) entry->expr, NULL);
	if (has_clock)
		entry->expr = (Expr *) note((Node *) entry->expr, input);

	/* planned anew when the extension goes */
	item = makeNode(PlanInvalItem);
	item->cacheId = PROCOID;
	item->hashValue = GetSysCacheHashValue1(PROCOID, ObjectIdGetDatum(noting_function()));
	stmt->invalItems = lappend(stmt->invalItems, item);
}

void
nvm_functions_register(void)
{
	CacheRegisterSyscacheCallback(PROCOID, functions_changed, (Datum) 0);
}
