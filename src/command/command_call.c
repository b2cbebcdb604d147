/*-------------------------------------------------------------------------
 *
 * command_call.c
 *	  Capture of calls of registered functions.
 *
 * PostgreSQL asks needs_fmgr_hook when it looks up a function.  One that is registered
 * is then called through fmgr_security_definer, which calls fmgr_hook with its own
 * FmgrInfo of the function before it begins.  There we put call_shim in the place of
 * the function's address: so we have the arguments, and all that PostgreSQL does around
 * a call stays PostgreSQL's: STRICT, defaults, VARIADIC, permissions, SET, SECURITY
 * DEFINER, CALL, fast path.  A SQL function that is registered is not inlined.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_proc.h"
#include "command/command_impl.h"
#include "command/nvm_command.h"
#include "log/nvm_log.h"
#include "nodes/execnodes.h"
#include "nodes/parsenodes.h"
#include "portability/instr_time.h"
#include "utils/array.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/typcache.h"

/*
 * What we keep of a FmgrInfo whose address is ours.  It lives as long, in the place that
 * fmgr_hook's callers have for one hook's argument.
 */
typedef struct CallLink
{
	PGFunction	original;
	Datum		next_argument;	/* of the next hook */
	bool		goes_on;		/* it returns its rows one by one, and has
								 * more */
	uint64		settings;		/* of its last call; 0: none */
} CallLink;

/* the call that runs */
typedef struct CallFrame
{
	struct CallFrame *outer;
	Oid			function;		/* the outermost one */
	int			level;			/* of its subtransaction */
	instr_time	begin;
} CallFrame;

static CallFrame *frame = NULL; /* the outermost one, or NULL */

bool		nvm_command_replaying = false;

/*
 * The FmgrInfos that are to be called now.  There is one, but for other libraries'
 * hooks that call functions themselves before the call goes on.
 */
#define MAX_ENTERED	8

static struct
{
	FmgrInfo   *flinfo;
	CallLink   *link;
}			entered[MAX_ENTERED];
static int	last_entered = 0;

static Datum call_shim(PG_FUNCTION_ARGS);

/* ---- fmgr_hook ---- */

static inline bool
is_linked(FmgrInfo *flinfo)
{
	return flinfo->fn_addr == call_shim;
}

/*
 * The argument of the next hook in the chain.
 */
Datum *
nvm_command_hook_argument(FmgrInfo *flinfo, Datum *arg)
{
	return is_linked(flinfo) ? &((CallLink *) DatumGetPointer(*arg))->next_argument : arg;
}

/*
 * FHET_START: the function is called next, with this FmgrInfo.  Whether it is
 * registered is looked at each time, since a FmgrInfo may be older than its label.
 */
void
nvm_command_enter(FmgrInfo *flinfo, Datum *arg)
{
	if (!is_linked(flinfo))
	{
		CallLink   *link;

		if (likely(!nvm_command_is_registered(flinfo->fn_oid)))
		{
			nvm_watch_call(flinfo->fn_oid);
			return;
		}
		link = MemoryContextAllocZero(flinfo->fn_mcxt, sizeof(CallLink));
		link->original = flinfo->fn_addr;
		link->next_argument = *arg;
		flinfo->fn_addr = call_shim;
		*arg = PointerGetDatum(link);
	}
	last_entered = (last_entered + 1) % MAX_ENTERED;
	entered[last_entered].flinfo = flinfo;
	entered[last_entered].link = (CallLink *) DatumGetPointer(*arg);
}

/*
 * What we keep of a FmgrInfo that is called.  Of two that had one address the newer
 * one is found.
 */
static CallLink *
find_link(FmgrInfo *flinfo)
{
	for (int i = 0; i < MAX_ENTERED; i++)
	{
		int			at = (last_entered + MAX_ENTERED - i) % MAX_ENTERED;

		if (entered[at].flinfo == flinfo)
			return entered[at].link;
	}
	elog(ERROR, "function %u is called in an unknown way", flinfo->fn_oid);
}

/* ---- what runs ---- */

bool
nvm_command_in_call(void)
{
	return frame != NULL;
}

Oid
nvm_call_function(void)
{
	return frame ? frame->function : InvalidOid;
}

int
nvm_call_level(void)
{
	return frame ? frame->level : 0;
}

void
nvm_call_forget(void)
{
	frame = NULL;
}

/* ---- the lanes that arguments name ---- */

static void
add_elements(NvmCallLanes *lanes, Oid element, Oid collation, Datum value)
{
	ArrayType  *array = DatumGetArrayTypeP(value);
	int16		length;
	bool		byval;
	char		align;
	Datum	   *values;
	bool	   *nulls;
	int			n;

	get_typlenbyvalalign(element, &length, &byval, &align);
	deconstruct_array(array, element, length, byval, align, &values, &nulls, &n);
	for (int i = 0; i < n && !lanes->all; i++)
	{
		if (!nulls[i])
			nvm_lanes_add(lanes, nvm_lane_of(element, collation, values[i]));
	}
}

/*
 * A NULL names none, nor does a value that cannot be hashed any more.
 */
static void
compute_lanes(const NvmCommand *command, FunctionCallInfo fcinfo, NvmCallLanes *lanes)
{
	Oid			collation = OidIsValid(fcinfo->fncollation) ? fcinfo->fncollation : DEFAULT_COLLATION_OID;

	lanes->all = command->all_lanes;
	lanes->n = 0;
	for (int i = 0; i < command->nlane_args && !lanes->all; i++)
	{
		int			place = command->lane_arg[i];
		Oid			type = command->lane_type[i];
		Oid			element;

		if (place >= fcinfo->nargs || fcinfo->args[place].isnull)
			continue;
		element = get_base_element_type(type);

		/* a type can lose that: ALTER TYPE */
		if (!OidIsValid(lookup_type_cache(OidIsValid(element) ? element : type,
										  TYPECACHE_HASH_PROC)->hash_proc))
			continue;
		if (OidIsValid(element))
			add_elements(lanes, element, collation, fcinfo->args[place].value);
		else
			nvm_lanes_add(lanes, nvm_lane_of(type, collation, fcinfo->args[place].value));
	}
}

/* ---- a call ---- */

/*
 * A registered function called by one: it is part of that call, and its lanes must be.
 * They are not taken now: the outer call's snapshot is older.
 */
static void
begin_inner(const NvmCommand *command, FunctionCallInfo fcinfo)
{
	NvmCallLanes lanes;

	if (nvm_verdict_by_values())
		return;
	if (command->problem != NULL)
	{
		nvm_command_disqualify(NVM_REASON_UNSUITABLE, ProcedureRelationId, command->function);
		return;
	}
	/* for one with a SET clause: nvm_watch_call is not asked */
	if (!nvm_function_is_admitted(command->function))
	{
		nvm_command_disqualify(NVM_REASON_FUNCTION, ProcedureRelationId, command->function);
		return;
	}
	compute_lanes(command, fcinfo, &lanes);
	if (!nvm_lanes_are_held(&lanes))
		nvm_command_disqualify(NVM_REASON_OTHER_LANE, ProcedureRelationId, command->function);
}

/*
 * The call is to run what was parsed and planned under its settings.  What cannot be
 * forgotten is the text that was taken to pieces under others, and what a function keeps in
 * its FmgrInfo, when one is called with that under one setting and then another.
 */
static void
begin_settings(const NvmCommand *command, CallLink *link)
{
	uint64		number;

	if (!nvm_settings_call_begins(&number) || (link->settings != 0 && link->settings != number))
		nvm_command_disqualify(NVM_REASON_UNSUITABLE, ProcedureRelationId, command->function);
	link->settings = number;
}

/*
 * Take what an outermost call needs.  Returns true if a snapshot was pushed.
 *
 * A transaction that is one of values already takes no lanes here: what it reads does
 * not matter, and what it writes takes them.  Its function runs by a snapshot of its
 * own all the same, so that it sees the same in either case.
 */
static bool
begin_outermost(const NvmCommand *command, CallLink *link, FunctionCallInfo fcinfo)
{
	NvmCallLanes lanes;

	if (IsolationUsesXactSnapshot())
	{
		nvm_command_disqualify(NVM_REASON_ISOLATION, InvalidOid, InvalidOid);
		return false;
	}
	if (IsInParallelMode())
	{
		nvm_command_disqualify(NVM_REASON_PARALLEL, InvalidOid, InvalidOid);
		return false;
	}
	compute_lanes(command, fcinfo, &lanes);
	if ((!lanes.all && lanes.n == 0) || !nvm_functions_are_noted())
		nvm_command_disqualify(NVM_REASON_UNSUITABLE, ProcedureRelationId, command->function);
	if (!nvm_verdict_by_values() && nvm_stored_cursor_is_open())
		nvm_command_disqualify(NVM_REASON_OLD_CURSOR, InvalidOid, InvalidOid);
	if (!nvm_verdict_by_values() && nvm_log_is_on)
		begin_settings(command, link);
	if (!nvm_verdict_by_values())
	{
		nvm_lanes_take(&lanes);
		nvm_record_call(command->function, fcinfo);
	}

	/* what this transaction did before is part of what the call sees */
	CommandCounterIncrement();
	PushActiveSnapshot(GetTransactionSnapshot());
	return true;
}

/*
 * Run the function.  A procedure may not end the transaction, since that would let go
 * of the lanes; a set is returned as a whole, if the function can do that.
 */
static Datum
run_original(CallLink *link, FunctionCallInfo fcinfo)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	fmNodePtr	context = fcinfo->context;
	CallContext atomic;
	Datum		result;

	if (context != NULL && IsA(context, CallContext))
	{
		atomic = *(CallContext *) context;
		atomic.atomic = true;
		fcinfo->context = (fmNodePtr) &atomic;
	}
	if (rsinfo == NULL || !IsA(rsinfo, ReturnSetInfo) || !fcinfo->flinfo->fn_retset)
	{
		result = link->original(fcinfo);
		fcinfo->context = context;
		return result;
	}

	if (rsinfo->allowedModes & SFRM_Materialize)
		rsinfo->allowedModes |= SFRM_Materialize_Preferred;
	result = link->original(fcinfo);
	link->goes_on = rsinfo->returnMode == SFRM_ValuePerCall && rsinfo->isDone == ExprMultipleResult;

	/* others run between its rows */
	if (link->goes_on)
		nvm_command_disqualify(NVM_REASON_UNSUITABLE, ProcedureRelationId, fcinfo->flinfo->fn_oid);
	return result;
}

static Datum
call_outermost(const NvmCommand *command, CallLink *link, FunctionCallInfo fcinfo)
{
	CallFrame	own = {.function = command->function,.level = GetCurrentTransactionNestLevel()};
	bool		goes_on = link->goes_on;
	bool		pushed;
	instr_time	end;
	Datum		result;

	/* memory that command points to may be freed by what runs next */
	if (!goes_on)
		nvm_verdict_call_begins(own.function, command->promoted);
	nvm_place_call_begins();
	pushed = begin_outermost(command, link, fcinfo);
	INSTR_TIME_SET_CURRENT(own.begin);
	frame = &own;
	PG_TRY();
	{
		result = run_original(link, fcinfo);
	}
	PG_CATCH();
	{
		/* snapshot and lanes go with the subtransaction that is aborted now */
		frame = NULL;
		link->goes_on = false;
		nvm_queries_forget();
		PG_RE_THROW();
	}
	PG_END_TRY();
	frame = NULL;
	nvm_queries_forget();
	if (pushed)
		PopActiveSnapshot();
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, own.begin);
	nvm_verdict_call_ended(own.function, INSTR_TIME_GET_MICROSEC(end));
	return result;
}

/*
 * In the place of a registered function.
 */
static Datum
call_shim(PG_FUNCTION_ARGS)
{
	CallLink   *link = find_link(fcinfo->flinfo);
	const NvmCommand *found;
	NvmCommand	command;

	/* command_replay.c does what an outermost call wants */
	if (unlikely(nvm_command_replaying))
		return run_original(link, fcinfo);

	if (frame == NULL && !IsParallelWorker())
		nvm_mode_call_begins();

	/* in a parallel worker nothing is written */
	found = IsParallelWorker() || !nvm_lanes_exist() ? NULL : nvm_command_find(fcinfo->flinfo->fn_oid);
	if (found == NULL)
		return link->original(fcinfo);
	command = *found;
	if (frame == NULL && command.problem != NULL)
	{
		/*
		 * it runs as if it were not registered: a procedure may end
		 * transactions
		 */
		nvm_verdict_call_begins(command.function, false);
		nvm_command_disqualify(NVM_REASON_UNSUITABLE, ProcedureRelationId, command.function);
		nvm_verdict_call_ended(command.function, 0);
		return link->original(fcinfo);
	}
	if (frame == NULL)
		return call_outermost(&command, link, fcinfo);
	begin_inner(&command, fcinfo);
	return run_original(link, fcinfo);
}
