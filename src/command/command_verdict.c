/*-------------------------------------------------------------------------
 *
 * command_verdict.c
 *	  Could the transaction be replayed by its calls?  If not, the first reason.
 *
 * A reason stands to the end of the transaction, also when the subtransaction that gave
 * it is rolled back.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/objectaddress.h"
#include "command/command_impl.h"
#include "command/nvm_command.h"
#include "mb/pg_wchar.h"
#include "tcop/tcopprot.h"

/* functions of one transaction that are counted; more are not */
#define MAX_FUNCTIONS	16

typedef struct Verdict
{
	bool		writes;			/* rows of nvm_cmdlog tables */
	bool		has_functions;	/* the database, as it wrote the first */
	NvmReason	reason;			/* the first one */
	Oid			classid;		/* what it is about */
	Oid			object;
	char		query[NVM_COMMAND_QUERY_SIZE];
	Oid			place;			/* where in the call */
	int			line;
	char		statement[NVM_COMMAND_QUERY_SIZE];
	int			call_level;		/* subtransaction of the last call; 0: none
								 * was made */
	bool		not_promoted;	/* one that was called is not */
	int			nfunctions;
	NvmCommandCount functions[MAX_FUNCTIONS];
} Verdict;

static Verdict verdict;

/* where reasons go while a function is inspected, or NULL */
static void (*diverted) (NvmReason reason, Oid classid, Oid object) = NULL;

static const char *const reason_names[NVM_NUM_REASONS] = {
	[NVM_REASON_NONE] = "none",
	[NVM_REASON_OUTSIDE] = "rows written outside of calls",
	[NVM_REASON_ISOLATION] = "isolation level",
	[NVM_REASON_OTHER_TABLE_READ] = "other table read",
	[NVM_REASON_OTHER_TABLE_WRITTEN] = "other table written",
	[NVM_REASON_SHARED_WRITTEN] = "shared table written",
	[NVM_REASON_NOT_PINNED] = "scan not within held lanes",
	[NVM_REASON_OTHER_LANE] = "lane not held",
	[NVM_REASON_UTILITY] = "utility command",
	[NVM_REASON_SUBTRANSACTION] = "subtransaction rolled back",
	[NVM_REASON_OLD_CURSOR] = "older cursor",
	[NVM_REASON_PREPARED] = "prepared transaction",
	[NVM_REASON_PARALLEL] = "parallel query",
	[NVM_REASON_FUNCTION] = "function",
	[NVM_REASON_DEFERRABLE] = "deferrable constraint",
	[NVM_REASON_SYSTEM_COLUMN] = "system column",
	[NVM_REASON_LOCKED_ROWS] = "NOWAIT or SKIP LOCKED",
	[NVM_REASON_ORDER] = "order of rows",
	[NVM_REASON_UNSUITABLE] = "unsuitable function or arguments",
	[NVM_REASON_TOO_LONG] = "too long a record"
};

const char *
nvm_command_reason_name(NvmReason reason)
{
	return reason_names[reason];
}

/*
 * What a reason is about, if it is there, or NULL.
 */
char *
nvm_command_reason_object(Oid classid, Oid object)
{
	ObjectAddress address;

	if (!OidIsValid(classid) || !OidIsValid(object))
		return NULL;
	ObjectAddressSet(address, classid, object);
	return getObjectDescription(&address, true);
}

/*
 * As much of a statement as there is room for.
 */
static void
note_text(char *place, const char *statement)
{
	int			length = 0;

	if (statement != NULL)
	{
		length = pg_mbcliplen(statement, (int) strnlen(statement, NVM_COMMAND_QUERY_SIZE),
							  NVM_COMMAND_QUERY_SIZE - 1);
		memcpy(place, statement, length);
	}
	place[length] = '\0';
}

/*
 * The client's statement, and the place in the call.  A subtransaction that is rolled back
 * has taken the queries along that ran in it.
 */
static void
note_place(void)
{
	bool		in_call = nvm_command_in_call();

	note_text(verdict.query, debug_query_string);
	note_text(verdict.statement, in_call && verdict.reason != NVM_REASON_SUBTRANSACTION ?
			  nvm_running_statement() : NULL);
	if (!in_call || !nvm_place_find(&verdict.place, &verdict.line))
	{
		verdict.place = InvalidOid;
		verdict.line = 0;
	}
}

/*
 * The current transaction cannot be replayed by its calls.
 */
void
nvm_command_disqualify(NvmReason reason, Oid classid, Oid object)
{
	if (unlikely(diverted != NULL))
	{
		diverted(reason, classid, object);
		return;
	}
	if (likely(verdict.reason != NVM_REASON_NONE) || nvm_command_replaying)
		return;
	verdict.reason = reason;
	verdict.classid = classid;
	verdict.object = object;
	note_place();
}

/*
 * Reasons are not of the current transaction, but of a function that is inspected.  NULL: they
 * are again.
 */
void
nvm_verdict_divert(void (*to) (NvmReason reason, Oid classid, Oid object))
{
	diverted = to;
}

/*
 * In a process that plays records nothing is judged: there it is so, too.
 */
bool
nvm_verdict_by_values(void)
{
	return verdict.reason != NVM_REASON_NONE || unlikely(nvm_command_replaying);
}

/*
 * Does it write rows, and would its calls alone bring them back?
 */
bool
nvm_verdict_is_by_calls(void)
{
	return verdict.writes && verdict.nfunctions > 0 && verdict.reason == NVM_REASON_NONE;
}

bool
nvm_verdict_all_promoted(void)
{
	return !verdict.not_promoted;
}

void
nvm_command_writes(uint32 dir, Oid table, bool has_key)
{
	if (unlikely(!verdict.writes))
	{
		verdict.has_functions = nvm_command_any();
		verdict.writes = true;
	}
	nvm_record_storage(dir, table, has_key);
}

bool
nvm_verdict_writes(void)
{
	return verdict.writes;
}

bool
nvm_verdict_has_functions(void)
{
	return verdict.has_functions;
}

/* ---- calls ---- */

static NvmCommandCount *
count_of(Oid function)
{
	for (int i = 0; i < verdict.nfunctions; i++)
	{
		if (verdict.functions[i].function == function)
			return &verdict.functions[i];
	}
	if (verdict.nfunctions == MAX_FUNCTIONS)
		return NULL;
	verdict.functions[verdict.nfunctions].function = function;
	verdict.functions[verdict.nfunctions].calls = 0;
	verdict.functions[verdict.nfunctions].usec = 0;
	return &verdict.functions[verdict.nfunctions++];
}

void
nvm_verdict_call_begins(Oid function, bool promoted)
{
	NvmCommandCount *count = count_of(function);

	if (count != NULL)
		count->calls++;
	verdict.not_promoted |= !promoted;
	verdict.call_level = GetCurrentTransactionNestLevel();
}

void
nvm_verdict_call_ended(Oid function, uint64 usec)
{
	NvmCommandCount *count = count_of(function);

	if (count != NULL)
		count->usec += usec;
}

/* ---- ends ---- */

/*
 * It is committed, or prepared.
 */
static void
report(void)
{
	NvmCommandReason last = {.reason = verdict.reason,.classid = verdict.classid,
		.object = verdict.object,.place = verdict.place,.line = verdict.line
	};

	strlcpy(last.statement, verdict.statement, sizeof(last.statement));
	strlcpy(last.query, verdict.query, sizeof(last.query));
	for (int i = 0; i < verdict.nfunctions; i++)
	{
		nvm_record_bytes(&verdict.functions[i].call_bytes, &verdict.functions[i].value_bytes,
						 &verdict.functions[i].alone);
		nvm_command_stat_add(&verdict.functions[i], verdict.writes, verdict.reason,
							 verdict.classid, verdict.object, verdict.query);
		if (verdict.reason != NVM_REASON_NONE)
			nvm_command_reason_add(verdict.functions[i].function, &last);
	}
}

static void
forget(void)
{
	verdict.writes = false;
	verdict.reason = NVM_REASON_NONE;
	verdict.call_level = 0;
	verdict.not_promoted = false;
	verdict.nfunctions = 0;
	nvm_lanes_forget();
	nvm_call_forget();
	nvm_record_forget();
	nvm_mode_forget();
}

static void
verdict_xact(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			nvm_mode_pre_commit();
			break;
		case XACT_EVENT_PRE_PREPARE:
			nvm_mode_pre_prepare(verdict.writes);
			nvm_command_disqualify(NVM_REASON_PREPARED, InvalidOid, InvalidOid);
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
			if (verdict.nfunctions > 0)
				report();
			forget();
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			forget();
			break;
		default:
			break;
	}
}

/*
 * A subtransaction that is rolled back counts if a call was made in it, or it was made
 * in a call: the function may have caught what a replay would not meet.
 */
static void
verdict_subxact(SubXactEvent event, SubTransactionId mySubid, SubTransactionId parentSubid,
				void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB)
		return;
	if (event == SUBXACT_EVENT_ABORT_SUB && unlikely(nvm_replay_in_call))
		nvm_replay_subtransaction_aborted();
	if (event == SUBXACT_EVENT_ABORT_SUB &&
		((nvm_command_in_call() && level > nvm_call_level()) ||
		 (verdict.call_level > 0 && level <= verdict.call_level)))
		nvm_command_disqualify(NVM_REASON_SUBTRANSACTION, InvalidOid, InvalidOid);
	if (verdict.call_level >= level)
		verdict.call_level = level - 1;
	nvm_lanes_subxact_end(event == SUBXACT_EVENT_COMMIT_SUB);
}

/*
 * In _PG_init.
 */
void
nvm_command_register_verdict(void)
{
	RegisterXactCallback(verdict_xact, NULL);
	RegisterSubXactCallback(verdict_subxact, NULL);
	nvm_functions_register();
	nvm_running_register();
	nvm_record_register();
	nvm_modes_register();
}
