/*-------------------------------------------------------------------------
 *
 * command_replay.c
 *	  The calls of a record, made again.
 *
 * README.md, "How it is read", has the rules.  One record is one transaction here.  What
 * a call of a registered function does when it is the outermost one, command_call.c, is
 * done here for each: its own snapshot, an atomic procedure, a set that is returned whole.
 * Labels are not asked: the record says that the call could be replayed.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "command/command_impl.h"
#include "command/nvm_command_replay.h"
#include "compat/nvm_compat_xact.h"
#include "executor/execdesc.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "portability/instr_time.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "verify/nvm_verify_calls.h"
#include "verify/nvm_verify_log.h"
#include "xact/nvm_xact.h"

/* calls of one function */
typedef struct Made
{
	Oid			function;
	uint64		fingerprint;	/* 0: it is not registered */
	int64		calls;
	int64		usec;
} Made;

/* functions of one record that are counted; more are not */
#define MAX_MADE	16

uint64		nvm_command_replay_number = 0;

/* the calls that are made */
typedef struct Replay
{
	const NvmLogSection *calls;
	NvmReplayed *result;
	NvmLogWalk	walk;			/* behind the last part that was read */
	bool		rolled_back;	/* a subtransaction was */
	int			nmade;
	Made		made[MAX_MADE];
} Replay;

static Replay *replay = NULL;

bool		nvm_replay_in_call = false;

/* the part whose settings this process has, from its list on; stale: it may have others */
static StringInfoData applied;
static bool applied_is_stale = true;

/* of one call */
static MemoryContext call_context = NULL;

/* ---- settings ---- */

/*
 * What the process itself wants.  A copy has no business with timeouts of users, and a
 * parallel worker would not know of the replay.
 */
static const struct
{
	const char *name;
	const char *value;
}			own_settings[] = {
	{"statement_timeout", "0"},
	{"lock_timeout", "0"},
	{"idle_in_transaction_session_timeout", "0"},
	{"transaction_timeout", "0"},
	{"max_parallel_workers_per_gather", "0"},
	{"client_min_messages", "error"}
};

static void
set(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SET, true, 0, false);
}

static void
set_all(const NvmLogPart *part)
{
	const char *value[NVM_LOG_SETTINGS + 1] = {NULL};
	NvmLogWalk	list;
	uint32		number;
	uint32		length;
	const char *text;

	nvm_log_walk_list(&list, &replay->walk, part);
	for (uint32 i = 0; i < part->n; i++)
	{
		if (!nvm_log_next_setting(&list, &number, &text, &length))
			elog(ERROR, "%s", list.problem);
		value[number] = pnstrdup(text, length);
	}
	for (int i = 0; i < (int) lengthof(own_settings); i++)
	{
		/* not every version has all */
		if (GetConfigOption(own_settings[i].name, true, false) != NULL)
			set(own_settings[i].name, own_settings[i].value);
	}
	for (int i = 1; i <= NVM_LOG_SETTINGS; i++)
		set(nvm_log_settings[i].name, value[i] != NULL ? value[i] : nvm_setting_presumed(i));
}

/*
 * The role, as a SECURITY DEFINER function has its owner: so the function cannot become the
 * superuser who has started the process.
 */
static void
take_role(Oid role)
{
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("the role with OID %u, which has made the call, does not exist any more", role)));
	SetUserIdAndSecContext(role, SECURITY_LOCAL_USERID_CHANGE);
}

/*
 * The settings of the calls from here on.  They stay, also behind the transaction if it
 * commits, until a part says something else.
 */
static void
apply_settings(const NvmLogPart *part)
{
	int			length = (int) (replay->walk.at - part->rest);
	uint64		number;

	if (applied_is_stale || applied.len != length ||
		memcmp(applied.data, part->rest, length) != 0)
	{
		applied_is_stale = true;
		/* those of PL/pgSQL come with its library */
		load_file("$libdir/plpgsql", false);
		set_all(part);
		if (applied.data == NULL)
		{
			MemoryContext outer = MemoryContextSwitchTo(TopMemoryContext);

			initStringInfo(&applied);
			MemoryContextSwitchTo(outer);
		}
		resetStringInfo(&applied);
		appendBinaryStringInfo(&applied, part->rest, length);
		applied_is_stale = false;

		/* what they have kept was made under others */
		nvm_replay_forget_functions();
	}
	(void) nvm_settings_call_begins(&number);
	take_role(part->role);
}

/* ---- the tape ---- */

static char *
function_name(Oid function)
{
	char	   *name = get_func_name(function);

	return name != NULL ? psprintf("%s()", name) : psprintf("function %u", function);
}

/*
 * The next part, if that is a result of the call that runs.  The walk goes on behind it.
 */
static bool
next_on_tape(NvmLogPart *part)
{
	NvmLogWalk	walk = replay->walk;

	if (!nvm_log_next_part(&walk, part) || part->kind != NVM_LOG_PART_TAPE)
		return false;
	replay->walk = walk;
	return true;
}

/*
 * See command_impl.h.
 */
Datum
nvm_replay_next_result(Oid function, Oid type, bool *isnull)
{
	NvmLogPart	part;
	NvmLogWalk	list;
	NvmLogValue value;
	NullableDatum result;

	if (!next_on_tape(&part))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("the tape of the call has nothing left, and the call wants a result of %s",
						function_name(function))));
	nvm_log_walk_list(&list, &replay->walk, &part);
	if (!nvm_log_next_value(&list, &value))
		elog(ERROR, "%s", list.problem);
	if (part.function != function || value.type != type)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("the tape of the call has a result of %s, type %s, and the call wants one of %s, type %s",
						function_name(part.function), format_type_be(value.type),
						function_name(function), format_type_be(type))));
	result = nvm_replay_value(&value);
	*isnull = result.isnull;
	return result.value;
}

/*
 * A call has ended: it has read all that it had.
 */
static void
check_tape_is_read(void)
{
	NvmLogPart	part;

	if (next_on_tape(&part))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("the tape of the call has a result of %s left, which the call has not asked for",
						function_name(part.function))));
}

/* ---- what a call may not do ---- */

/*
 * A call in the log has rolled back none.  If it does so now it may have caught an error
 * of the replay's.
 */
void
nvm_replay_subtransaction_aborted(void)
{
	if (replay != NULL)
		replay->rolled_back = true;
}

void
nvm_replay_check_utility(Node *stmt)
{
	if (!IsA(stmt, CallStmt))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a replayed call executes a utility command"),
				 errdetail("No call that is in the log has done so.")));
}

static void
check_written(Oid relid)
{
	Relation	rel = RelationIdGetRelation(relid);
	bool		may = rel != NULL &&
	(rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE || rel->rd_rel->relkind == RELKIND_VIEW ||
	 nvm_command_is_table(rel));

	if (rel != NULL)
		RelationClose(rel);
	if (!may)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a replayed call writes table \"%s\", which is not a permanent one of nvm_cmdlog",
						get_rel_name(relid)),
				 errdetail("No call that is in the log has done so.")));
}

void
nvm_replay_check_plan(PlannedStmt *plan)
{
	ListCell   *lc;

	foreach(lc, plan->resultRelations)
	{
		RangeTblEntry *rte = list_nth_node(RangeTblEntry, plan->rtable, lfirst_int(lc) - 1);

		check_written(rte->relid);
	}
}

/*
 * The partitions that rows were routed to, which the plan does not name.
 */
void
nvm_replay_check_routed_rows(QueryDesc *query)
{
	ListCell   *lc;

	foreach(lc, query->estate->es_tuple_routing_result_relations)
		check_written(RelationGetRelid(((ResultRelInfo *) lfirst(lc))->ri_RelationDesc));
}

/* ---- calls ---- */

static void
read_call(const NvmLogPart *part, NvmReplayCall *call)
{
	NvmLogWalk	list;
	NvmLogValue value;

	call->function = part->function;
	call->collation = part->collation;
	call->nargs = (int) part->n;
	nvm_log_walk_list(&list, &replay->walk, part);
	for (uint32 i = 0; i < part->n; i++)
	{
		if (!nvm_log_next_value(&list, &value))
			elog(ERROR, "%s", list.problem);
		call->types[i] = value.type;
		call->args[i] = nvm_replay_value(&value);
	}
}

static void
count_call(Oid function, instr_time begin)
{
	instr_time	end;
	int			i = 0;

	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, begin);
	while (i < replay->nmade && replay->made[i].function != function)
		i++;
	if (i == MAX_MADE)
		return;
	if (i == replay->nmade)
	{
		const NvmCommand *command = nvm_command_find(function);

		replay->made[replay->nmade].fingerprint = command != NULL ? command->fingerprint : 0;
		replay->made[replay->nmade++].function = function;
	}
	replay->made[i].calls++;
	replay->made[i].usec += INSTR_TIME_GET_MICROSEC(end);
}

/*
 * The calls have come to what the record says.
 */
static void
tell_calls(void)
{
	for (int i = 0; i < replay->nmade; i++)
		nvm_command_stat_replayed(nvm_command_replay_number, replay->made[i].function,
								  replay->made[i].fingerprint, replay->made[i].calls, replay->made[i].usec);
}

static void
make_call(const NvmLogPart *part)
{
	int64		begin = NVM_LOG_CALLS_OF(replay->calls)->timestamp;
	MemoryContext outer = MemoryContextSwitchTo(call_context);
	NvmReplayCall *call = palloc(sizeof(NvmReplayCall));
	instr_time	started;

	CHECK_FOR_INTERRUPTS();
	INSTR_TIME_SET_CURRENT(started);
	read_call(part, call);
	nvm_set_start_timestamps(begin, begin + part->statement);
	CommandCounterIncrement();
	PushActiveSnapshot(GetTransactionSnapshot());
	nvm_replay_in_call = true;
	nvm_replay_call(call);
	nvm_replay_in_call = false;
	PopActiveSnapshot();
	CommandCounterIncrement();
	check_tape_is_read();
	count_call(part->function, started);

	/*
	 * The client may have closed what the call has left open, and called
	 * again. A call that is in the log has not read another one's cursor.
	 */
	PortalHashTableDeleteAll();
	MemoryContextSwitchTo(outer);
	MemoryContextReset(call_context);
}

/*
 * Make all calls.  *last: the one that was begun last, for who tells of an error.
 */
static void
make_calls(NvmLogPart *last)
{
	NvmLogPart	part;

	while (nvm_log_next_part(&replay->walk, &part))
	{
		if (part.kind == NVM_LOG_PART_SETTINGS)
			apply_settings(&part);
		if (part.kind != NVM_LOG_PART_CALL)
			continue;
		*last = part;
		if (replay->result->ncalls++ == 0)
			replay->result->function = part.function;
		make_call(&part);
	}
	if (replay->walk.problem != NULL)
		elog(ERROR, "%s", replay->walk.problem);
	memset(last, 0, sizeof(*last));
}

static void
check_rows(void)
{
	NvmReplayed *result = replay->result;

	if (replay->rolled_back)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("a replayed call has rolled back a subtransaction, as no call that is in the log has done")));
	nvm_xact_checksum(&result->checksum, &result->rows);
	if (result->checksum != result->checksum_recorded || result->rows != result->rows_recorded)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("replayed calls have not written what the calls in the log have"),
				 errdetail("The checksum is %016llx of %u rows, in the log %016llx of %u rows.",
						   (unsigned long long) result->checksum, result->rows,
						   (unsigned long long) result->checksum_recorded, result->rows_recorded)));
}

/*
 * One transaction.
 */
static void
play(NvmLogPart *last)
{
	TimestampTz begin = NVM_LOG_CALLS_OF(replay->calls)->timestamp;

	nvm_set_start_timestamps(begin, begin);
	StartTransactionCommand();
	XactIsoLevel = XACT_READ_COMMITTED;
	XactReadOnly = false;
	XactDeferrable = false;
	make_calls(last);
	check_rows();
	CommitTransactionCommand();
	tell_calls();
}

/* ---- failures ---- */

/*
 * The calls as SQL, the first ones of many, or the one that failed.
 */
#define MAX_TEXTS	3

static char *
calls_text(const NvmLogPart *failed)
{
	StringInfoData text;
	NvmLogWalk	walk;
	NvmLogPart	part;
	int			n = 0;

	initStringInfo(&text);
	nvm_log_walk_parts(&walk, replay->calls);
	if (failed->kind == NVM_LOG_PART_CALL)
		return nvm_replay_call_text(&walk, failed);
	while (nvm_log_next_part(&walk, &part))
	{
		if (part.kind != NVM_LOG_PART_CALL)
			continue;
		if (n++ < MAX_TEXTS)
			appendStringInfo(&text, "%s%s", n > 1 ? "; " : "", nvm_replay_call_text(&walk, &part));
	}
	if (n > MAX_TEXTS)
		appendStringInfo(&text, "; and %d more", n - MAX_TEXTS);
	return text.data;
}

/*
 * The transaction has failed, and is gone.  The text needs one of its own; types' output
 * functions may fail there, too.
 */
static char *
describe(const NvmLogPart *failed, MemoryContext caller)
{
	char	   *volatile described = NULL;

	PG_TRY();
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		described = MemoryContextStrdup(caller, calls_text(failed));
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		FlushErrorState();
		AbortOutOfAnyTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	if (described == NULL)
		described = psprintf("function %u", failed->kind == NVM_LOG_PART_CALL ? failed->function :
							 replay->result->function);
	return described;
}

static void
note_failure(const ErrorData *edata, const NvmLogPart *failed)
{
	NvmReplayed *result = replay->result;

	result->failed = true;
	result->sqlerrcode = edata->sqlerrcode;
	result->message = pstrdup(edata->message != NULL ? edata->message : "an error without a message");
	if (edata->detail != NULL && edata->context != NULL)
		result->detail = psprintf("%s\n%s", edata->detail, edata->context);
	else if (edata->detail != NULL || edata->context != NULL)
		result->detail = pstrdup(edata->detail != NULL ? edata->detail : edata->context);
	if (failed->kind == NVM_LOG_PART_CALL)
		result->function = failed->function;
}

/*
 * Was the process asked to end what it does?  A function may raise the same error by
 * itself, and then it is one like others.  Being told to exit is FATAL, and is not caught.
 */
static bool
was_cancelled(const ErrorData *edata)
{
	return edata->sqlerrcode == ERRCODE_QUERY_CANCELED && edata->funcname != NULL &&
		strcmp(edata->funcname, "ProcessInterrupts") == 0;
}

/*
 * Behind the transaction.
 */
static void
leave(Oid user, int security, MemoryContext caller, ResourceOwner owner)
{
	SetUserIdAndSecContext(user, security);
	if (call_context != NULL)
		MemoryContextReset(call_context);
	MemoryContextSwitchTo(caller);
	CurrentResourceOwner = owner;
}

/*
 * See nvm_command_replay.h.
 */
void
nvm_command_replay(const NvmLogSection *calls, NvmReplayed *result)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	Replay		own = {.calls = calls,.result = result};
	NvmLogPart	last = {0};
	ErrorData  *volatile edata = NULL;
	Oid			user;
	int			security;
	instr_time	begin;
	instr_time	end;

	Assert(nvm_command_replaying && !IsTransactionState());
	memset(result, 0, sizeof(*result));
	result->checksum_recorded = NVM_LOG_CALLS_OF(calls)->checksum;
	result->rows_recorded = NVM_LOG_CALLS_OF(calls)->rows;
	if (call_context == NULL)
		call_context = AllocSetContextCreate(TopMemoryContext, "nvm replayed call", ALLOCSET_DEFAULT_SIZES);
	GetUserIdAndSecContext(&user, &security);
	INSTR_TIME_SET_CURRENT(begin);
	nvm_log_walk_parts(&own.walk, calls);
	replay = &own;

	PG_TRY();
	{
		play(&last);
	}
	PG_CATCH();
	{
		nvm_replay_in_call = false;
		applied_is_stale = true;
		MemoryContextSwitchTo(caller);
		edata = CopyErrorData();
		FlushErrorState();
		AbortOutOfAnyTransaction();
	}
	PG_END_TRY();
	leave(user, security, caller, owner);
	if (edata != NULL)
	{
		nvm_replay_forget_functions();
		if (was_cancelled(edata))
		{
			replay = NULL;
			ReThrowError(edata);
		}
		note_failure(edata, &last);
		result->call = describe(&last, caller);
		FreeErrorData(edata);
		leave(user, security, caller, owner);
	}
	replay = NULL;
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, begin);
	result->usec = INSTR_TIME_GET_MICROSEC(end);
}
