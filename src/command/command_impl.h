/*-------------------------------------------------------------------------
 *
 * command_impl.h
 *	  What the files of this folder share.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef COMMAND_IMPL_H
#define COMMAND_IMPL_H

#include "command/nvm_command.h"
#include "nodes/bitmapset.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "utils/hsearch.h"
#include "verify/nvm_verify_calls.h"

/* ---- command_label.c ---- */

/* is any function of the database promoted, as it is now? */
extern bool nvm_command_any_promoted(void);

/* ---- command_mode.c ---- */

/*
 * Of a database.  README.md, "Modes", has what the fields mean.  nvm_modes_lock is held
 * exclusively by who changes anything; mode and epoch are read without it.
 */
typedef struct NvmDatabaseMode
{
	Oid			database;		/* key */
	Oid			root;			/* nvm.commands, whose lock is the root */
	pg_atomic_uint32 mode;		/* NvmMode */
	uint32		nddl;
	pg_atomic_uint64 epoch;
	uint64		begun;
	bool		armed;
	bool		arming;
	bool		told;			/* a start has found calls alone of it */
	bool		quiet;
	bool		was_quiet;		/* when the checkpoint began */
	bool		covered;
	bool		misfit;			/* tables do not fit calls alone */
} NvmDatabaseMode;

typedef struct NvmModesShared
{
	uint32		nshared;		/* transactions that change what all databases
								 * have in common */
	uint64		usable;			/* checkpoints since the start */
	bool		log_is_known;	/* others than those with `told` had no calls
								 * alone when the server started */
} NvmModesShared;

extern NvmModesShared *nvm_modes;
extern HTAB *nvm_mode_entries;
extern LWLock *nvm_modes_lock;

extern Size nvm_command_modes_size(int max_databases);
extern void nvm_command_modes_startup(int max_databases, LWLock *lock);
extern void nvm_modes_register(void);

/* of the session's database, made if `make`; NULL: there is none, or no room */
extern NvmDatabaseMode *nvm_my_mode(bool make);

/*
 * If nobody is amid DDL, switching may be armed, or be shadow again.  The lock is held
 * exclusively.
 */
extern void nvm_mode_settle(NvmDatabaseMode *m);

/* an outermost call begins */
extern void nvm_mode_call_begins(void);

/*
 * The record of a transaction of calls begins, of promoted functions alone or not.  False:
 * it is one of values.
 */
extern bool nvm_mode_of_record(bool all_promoted, bool *alone);

/* at the end of the transaction */
extern void nvm_mode_forget(void);

/* ---- command_mode_ddl.c ---- */

extern void nvm_mode_pre_commit(void);
extern void nvm_mode_pre_prepare(bool writes);
extern void nvm_mode_ddl_register(void);

/* ---- command_table.c ---- */

extern void nvm_command_register_tables(void);
extern void nvm_command_judge_writers(Relation table);

/* ---- command_lane.c ---- */

/*
 * The lanes of a call, for it to take at its start.  At most max_lanes: beyond, all.
 */
#define NVM_CALL_MAX_LANES	64

typedef struct NvmCallLanes
{
	bool		all;
	int			n;
	uint32		lane[NVM_CALL_MAX_LANES];	/* ascending, each once */
} NvmCallLanes;

extern void nvm_lanes_add(NvmCallLanes *lanes, uint32 lane);

/* of a call that begins; waits, may ERROR */
extern void nvm_lanes_take(const NvmCallLanes *lanes);

/* those that the transaction's calls hold */
extern void nvm_lanes_of_calls(NvmCallLanes *lanes);

/* those in which one of values may have written, as calls or by values; shared: lane 0 */
extern void nvm_lanes_of_values(NvmCallLanes *lanes, bool *shared);

/* are there lanes?  Not without the extension */
extern bool nvm_lanes_exist(void);
extern Oid	nvm_lanes_root(void);

/*
 * The transaction is one of values, and going to wait for calls of others: if it has made any
 * itself, they do not wait for it.
 */
extern void nvm_lanes_give_way(void);
extern void nvm_lanes_register(void);

/* are all of them held already, by the call that runs? */
extern bool nvm_lanes_are_held(const NvmCallLanes *lanes);

/* at the end of the (sub)transaction */
extern void nvm_lanes_forget(void);
extern void nvm_lanes_subxact_end(bool committed);

/* ---- command_call.c ---- */

/* the outermost registered function that runs, or InvalidOid */
extern Oid	nvm_call_function(void);

/* its subtransaction level, if one runs */
extern int	nvm_call_level(void);

/* at the end of the transaction */
extern void nvm_call_forget(void);

/* ---- command_verdict.c ---- */

/* a call begins, has ended after usec microseconds */
extern void nvm_verdict_call_begins(Oid function, bool promoted);
extern void nvm_verdict_call_ended(Oid function, uint64 usec);

/* is the transaction one of values?  Or of calls, which have written rows? */
extern bool nvm_verdict_by_values(void);
extern bool nvm_verdict_is_by_calls(void);

/* are all functions that it has called promoted? */
extern bool nvm_verdict_all_promoted(void);

/* reasons go there, while a function is inspected; NULL: no more */
extern void nvm_verdict_divert(void (*to) (NvmReason reason, Oid classid, Oid object));

/* has it written rows?  In a database that has registered functions, as it began to? */
extern bool nvm_verdict_writes(void);
extern bool nvm_verdict_has_functions(void);

/* ---- command_record.c ---- */

extern void nvm_record_register(void);

/* an outermost call begins; it has its lanes */
extern void nvm_record_call(Oid function, FunctionCallInfo fcinfo);

/* rows of this storage of an nvm_cmdlog table are written; has the table a key? */
extern void nvm_record_storage(uint32 dir, Oid table, bool has_key);

/*
 * The result of a function, in the call that runs.  May make the transaction one of
 * values.
 */
extern void nvm_record_tape(Oid function, Oid type, Datum value, bool isnull);

/* of the transaction that commits: bytes of its calls in the log, and of its rows */
extern void nvm_record_bytes(uint64 *calls, uint64 *values, bool *alone);
extern void nvm_record_forget(void);

/* ---- command_tape.c ---- */

/* of a call of nvm.tape() that we have put there, what it tapes, or NULL */
extern Node *nvm_tape_argument(Node *node);

/*
 * The node in nvm.tape(), or, in a replay, what reads its result, if it calls a function
 * for the tape.  put_all: in a replay, for all nodes of an expression.
 */
extern Node *nvm_tape_put(Node *node);
extern Node *nvm_tape_put_all(Node *expr);

/* the query, or a copy that tapes what is to be taped */
extern Query *nvm_tape_put_query(Query *query);

/* ---- command_setting.c ---- */

/*
 * The part of a record that has the settings of the call that has begun, and a number that
 * each other part has another of.  NULL: one is too long.
 */
extern const char *nvm_settings_part(int *length, uint64 *number);

/* is it one of them, other than search_path? */
extern bool nvm_setting_is_recorded(const char *name);

/*
 * A query is parsed or planned that may be cached; a function is compiled.  Those of clients
 * do not count: no call runs them.
 */
extern void nvm_settings_note_query(const char *text);
extern void nvm_settings_note_compiled(void);

/*
 * A call begins: what was parsed under other settings is forgotten.  False: there is what
 * cannot be.  *number: of the settings.
 */
extern bool nvm_settings_call_begins(uint64 *number);

/* the value of setting NVM_LOG_SETTING_... that a record of this database presumes */
extern const char *nvm_setting_presumed(int which);

/* ---- command_unique.c: which rows of a query there can be but one of ---- */

/* are equal values the same to the last bit? */
extern bool nvm_equal_is_same(Oid type, int32 typmod, Oid collation);

/* places of FROM's sources in the range table; of those of one row at most */
extern Bitmapset *nvm_query_sources(Query *query);
extern Bitmapset *nvm_single_sources(Query *query);

extern bool nvm_query_is_plain(Query *query);
extern bool nvm_query_has_one_row(Query *query, const Bitmapset *single);
extern bool nvm_query_has_limit_one(Query *query);

extern void nvm_add_given(List **list, Node *expr, Oid equality, Oid collation);
extern bool nvm_rows_are_told_apart(Query *query, const Bitmapset *single, const Bitmapset *fixed,
									List *given, Bitmapset **loose);
extern bool nvm_columns_are_unique(Oid relid, const Bitmapset *columns);

/* ---- command_order.c: what the order of rows means to a query ---- */

#define NVM_ORDER_DEPENDS			0x01	/* its result depends on it */
#define NVM_ORDER_UNKNOWN_ROWS		0x02	/* who reads its rows may */
#define NVM_ORDER_UNKNOWN_INSIDE	0x04	/* what its expressions do may */
#define NVM_ORDER_CALLS				0x08	/* they call functions that may do
											 * anything */
#define NVM_ORDER_SYSTEM_COLUMN		0x10	/* it names one */

/* of a query that was not looked at */
#define NVM_ORDER_NOT_JUDGED		0x0F

extern int	nvm_judge_order(Query *query);

/* may it do something, or give another result each time? */
extern bool nvm_expression_calls(Node *expr);

/* ---- command_running.c: queries that run in a call, and marks in plans ---- */

/* has the plan been looked at, and nothing been found? */
extern bool nvm_plan_is_clean(PlannedStmt *plan);
extern void nvm_plan_set_clean(PlannedStmt *plan);

extern int	nvm_plan_order(PlannedStmt *plan);
extern void nvm_judge_order_of_plan(PlannedStmt *plan);

/*
 * A function is evaluated whose results are kept in the order in which they come, as are
 * those of nextval().
 */
extern void nvm_judge_order_of_results(void);

/* the text of the query that runs or begins in the call, or NULL */
extern const char *nvm_running_statement(void);

extern void nvm_queries_forget(void);
extern void nvm_running_register(void);

/* ---- command_plan.c ---- */

extern void nvm_judge_plan(PlannedStmt *plan);
extern void nvm_judge_table(Relation rel, bool written);
extern void nvm_judge_routed_rows(QueryDesc *query);

/* at the start of a call, and when it has ended */
extern bool nvm_stored_cursor_is_open(void);

/* ---- command_function.c ---- */

/* the first function in an expression that a replay cannot call again, or InvalidOid */
extern Oid	nvm_function_not_admitted(Node *expr, bool before_planning);
extern bool nvm_function_is_admitted(Oid function);

/*
 * May a function in PL/pgSQL, of this entry of pg_proc, have GET DIAGNOSTICS ... = PG_CONTEXT?  That
 * says who has called whom, up to the client, in the language of lc_messages.
 */
extern bool nvm_function_reads_context(HeapTuple tuple);
extern bool nvm_trigger_is_admitted(Oid function);
extern bool nvm_is_foreign_key_trigger(Oid function);

/* one in SQL, which may be inlined: may its text have a literal that names the present? */
extern bool nvm_function_names_clock(Oid function);
extern void nvm_watch_call(Oid function);
extern void nvm_functions_register(void);

/* nvm.tape() and nvm.replayed(), or InvalidOid */
extern Oid	nvm_taping_function(void);
extern Oid	nvm_replaying_function(void);
extern bool nvm_functions_are_noted(void);

/* ---- command_type.c: what types are made of ---- */

/* the first of them that is_it, the type itself among them, or InvalidOid */
extern Oid	nvm_find_in_type(Oid type, bool (*is_it) (Oid type, Oid schema));

extern bool nvm_type_is_temporary(Oid type);

/* ---- command_literal.c: literals that name the present ---- */

/*
 * Of a query that is going to be planned, or arguments of CALL, with the text that they are
 * in: flags beside those of command_order.c.
 */
#define NVM_ORDER_CLOCK_SHIFT		5
#define NVM_ORDER_CLOCK				(7 << NVM_ORDER_CLOCK_SHIFT)

extern int	nvm_judge_literals(Node *node, const char *source);
extern bool nvm_mark_has_clock(int flags, Oid *input);

/* does the function read literals of a date or time? */
extern bool nvm_is_clock_input(Oid function);

/* may a function in SQL have such a literal in its text? */
extern bool nvm_source_names_clock(const char *source);

/* ---- command_place.c: where in PL/pgSQL we are ---- */

extern void nvm_place_call_begins(void);
extern bool nvm_place_find(Oid *function, int *line);
extern bool nvm_place_ignores_rows(void);

/* ---- command_replay.c: calls of a record, made again ---- */

/* is one running in this process? */
extern bool nvm_replay_in_call;

/* the next result on the tape; ERROR if it is another one's */
extern Datum nvm_replay_next_result(Oid function, Oid type, bool *isnull);

extern void nvm_replay_subtransaction_aborted(void);

/* ERROR if this is nothing that a call which is in the log can have done */
extern void nvm_replay_check_utility(Node *stmt);
extern void nvm_replay_check_plan(PlannedStmt *plan);
extern void nvm_replay_check_routed_rows(QueryDesc *query);

/* ---- command_replay_call.c ---- */

#define NVM_REPLAY_MAX_ARGS		NVM_LOG_CALL_MAX_ARGS

typedef struct NvmReplayCall
{
	Oid			function;
	Oid			collation;
	int			nargs;
	Oid			types[NVM_REPLAY_MAX_ARGS];
	NullableDatum args[NVM_REPLAY_MAX_ARGS];
} NvmReplayCall;

/* as PostgreSQL would; what it returns is dropped */
extern void nvm_replay_call(const NvmReplayCall *call);

/* after an ERROR: what is kept of functions may not be whole */
extern void nvm_replay_forget_functions(void);

/* ---- command_replay_value.c ---- */

/* in the current context; ERROR if its type is gone */
extern NullableDatum nvm_replay_value(const NvmLogValue *value);

/* a CALL as SQL, cut where it is too long; in a transaction */
extern char *nvm_replay_call_text(const NvmLogWalk *parts, const NvmLogPart *part);

/* what the keys of both tables of counters begin with */
typedef struct NvmCommandKey
{
	Oid			database;
	Oid			function;
} NvmCommandKey;

/* ---- command_reason.c ---- */

extern Size nvm_command_reasons_size(int max_commands);
extern void nvm_command_reasons_startup(int max_commands, LWLock *lock);

/* of a transaction of values that has called the function; never fails */
extern void nvm_command_reason_add(Oid function, const NvmCommandReason *last);
extern void nvm_command_reasons_forget(Oid database, Oid function);

/* ---- command_stat.c ---- */

/*
 * Remove the entries of a function, or all of a database: InvalidOid.  Caller holds the
 * table's lock exclusively.
 */
extern void nvm_command_forget_entries(HTAB *entries, Oid database, Oid function);

/* what a transaction has to say of a function that it has called */
typedef struct NvmCommandCount
{
	Oid			function;
	uint32		calls;
	uint64		usec;
	uint64		call_bytes;		/* of the transaction's calls in the log, and
								 * of its rows; 0: it has no calls there */
	uint64		value_bytes;
	bool		alone;			/* there are only the calls */
} NvmCommandCount;

/* add what a transaction has found out; never fails */
extern void nvm_command_stat_add(const NvmCommandCount *count, bool writes, NvmReason reason,
								 Oid reason_class, Oid object, const char *query);

#endif							/* COMMAND_IMPL_H */
