/*-------------------------------------------------------------------------
 *
 * nvm_command.h
 *	  Calls of registered functions, their lanes, and what a replay could do again.
 *
 * src/command/README.md has the protocol, the proof, and our words.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_COMMAND_H
#define NVM_COMMAND_H

#include "postgres.h"

#include "access/attnum.h"
#include "datatype/timestamp.h"
#include "executor/execdesc.h"
#include "fmgr.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"
#include "utils/relcache.h"

/* ---- command_label.c: what is registered, by labels ---- */

#define NVM_LABEL_PROVIDER		"nvm"
#define NVM_PARTITION_LABEL		"partition"

/* in _PG_init: the label provider, and what invalidates the session's cache */
extern void nvm_command_register_labels(void);

#define NVM_COMMAND_MAX_LANE_ARGS	16

/* a registered function */
typedef struct NvmCommand
{
	Oid			function;		/* key */
	bool		all_lanes;
	int			nlane_args;
	int16		lane_arg[NVM_COMMAND_MAX_LANE_ARGS];	/* from 0, of fcinfo */
	Oid			lane_type[NVM_COMMAND_MAX_LANE_ARGS];	/* perhaps an array */
	const char *problem;		/* NULL: none; else why no call of it
								 * qualifies */
	bool		was_promoted;	/* the label says so */
	bool		promoted;		/* and it is as it was then */
	uint64		fingerprint;	/* as it is now */
} NvmCommand;

/*
 * The registration of a function of the current database, or NULL.  Cheap if the
 * database has none.  Only within a transaction.  What is returned is good until the
 * next call.
 */
extern const NvmCommand *nvm_command_find(Oid function);

/* has any function a label, has this one, and which */
extern bool nvm_command_any(void);
extern bool nvm_command_is_registered(Oid function);
extern const char *nvm_command_label(Oid function);

/* those of all functions: calls back with each */
extern void nvm_command_each(void (*callback) (Oid function, void *arg), void *arg);

/*
 * The label of a function that is registered with these lanes, and, if promoted, as it is
 * now.  In the current context.
 */
extern char *nvm_command_form_label(const char *lanes, Oid function, bool promoted);

/* the function that is being promoted: its label may say so */
extern Oid	nvm_command_promotes;

/* the lanes that a label has, as nvm_command_form_label takes them */
extern char *nvm_command_label_lanes(const char *label);

/* ---- command_mode.c: are calls logged beside rows, by values, or alone? ---- */

typedef enum NvmMode
{
	NVM_MODE_UNKNOWN,			/* since the start; as switching */
	NVM_MODE_SHADOW,			/* no function is promoted */
	NVM_MODE_SWITCHING,			/* all is logged by values */
	NVM_MODE_ALONE
} NvmMode;

/* of the current database */
extern NvmMode nvm_command_mode(void);

/*
 * The same, found out by labels if it is not known.  Unknown: the database has no registered
 * function, or there is no room.  In a transaction; may ERROR.
 */
extern NvmMode nvm_command_find_mode(void);

extern const char *nvm_command_mode_name(NvmMode mode);

/* for the view; false: nothing is known of the database */
typedef struct NvmModeInfo
{
	NvmMode		mode;
	bool		armed;
	uint32		nddl;			/* transactions with DDL, of roles too */
	bool		covered;		/* a restart would call nothing again */
} NvmModeInfo;

extern bool nvm_command_mode_info(Oid database, NvmModeInfo *info);
extern void nvm_command_mode_forget(Oid database);

/* ---- command_mode_ddl.c ---- */

/* what DDL changes, as far as it matters to calls */
typedef enum NvmDdlScope
{
	NVM_DDL_OF_DATABASE,
	NVM_DDL_OF_FUNCTIONS,		/* a function is made or replaced: it may mend
								 * a replay that has stopped */
	NVM_DDL_OF_LABELS,			/* ours, which keep a function registered: a
								 * replay does not look at them */
	NVM_DDL_OF_ROLES			/* which all databases have in common */
} NvmDdlScope;

/*
 * A statement of DDL begins, perhaps one in another, and has ended, also by an ERROR.  The first
 * one of a transaction may wait: for calls, and for a checkpoint.  May ERROR.
 */
extern void nvm_command_ddl_begins(NvmDdlScope scope);
extern void nvm_command_ddl_statement_ends(void);

/* the same for what is no statement: a storage of nvm_cmdlog comes or goes, a lock is next */
extern void nvm_command_ddl_comes(void);

/* the transaction locks tables, or rows of nvm_cmdlog tables, perhaps without writing them */
extern void nvm_command_locks(void);

/*
 * A function of the database is being promoted: the first step, and those that wait.  May
 * ERROR.  The caller sees to it that nobody else does so.
 */
extern void nvm_command_promote_begins(void);

/* ---- command_table.c: which tables are partitioned ---- */

/*
 * The partition column of a table, or InvalidAttrNumber: it is shared.  problem (may be
 * NULL): why one that has a label is shared all the same, or NULL.
 */
extern AttrNumber nvm_command_partition_column(Relation table, const char **problem);

/* why a column cannot be that, or NULL; the column with the label, whatever it is worth */
extern const char *nvm_command_column_problem(Relation table, AttrNumber column);
extern AttrNumber nvm_command_labelled_column(Oid relid);

/*
 * The key by which a row of the table is found in a replay: the index of REPLICA IDENTITY,
 * else the primary key, if it is an index in the pool over columns.  Or InvalidOid.
 */
extern PGDLLEXPORT Oid nvm_command_key_index(Relation table);

/* in _PG_init, by ddl/: do all tables of the database fit calls alone?  If not, it has told why */
extern void nvm_command_register_fit(bool (*tables_fit) (void));

/* ---- command_method.c: which tables these are ---- */

struct TableAmRoutine;

/*
 * In _PG_init, by am/: tables whose access method returns this routine.  index_is_ours: is
 * the index one of nvm_btree?
 */
extern void nvm_command_register_method(const struct TableAmRoutine *routine,
										bool (*index_is_ours) (Oid index));

/*
 * Is rel a table of nvm_cmdlog with rows that a replay would find again?  A temporary
 * or UNLOGGED one is to a call what any other table is.
 */
extern bool nvm_command_is_table(Relation rel);

/* is it the access method of such tables, permanent or not? */
extern bool nvm_command_is_method(Oid am);

/* is it an index of nvm_btree? */
extern bool nvm_command_index_is_ours(Oid index);

/* ---- command_lane.c ---- */

#define NVM_LANES	65536		/* 0: shared tables */

/* of their advisory locks, objsubid in pg_locks: pg_advisory_lock's are 1 and 2 */
#define NVM_LANE_LOCK_CLASS		19798

/* of a value of this type; 0 is never returned */
extern uint32 nvm_lane_of(Oid type, Oid collation, Datum value);

/*
 * Are values that this operator calls equal, by this collation, always in one lane?  One of
 * them is of a column of this type and collation.
 */
extern bool nvm_equality_keeps_lane(Oid operator, Oid collation, Oid type, Oid own_collation);

/* is the lane held exclusively by the call that runs?  NVM_LANES: are all of them? */
extern bool nvm_lane_is_held(uint32 lane);

/*
 * Before a row is written outside of the call's lanes, or outside of any call; and
 * before one of a shared table.  The transaction is one of values from now on.  May
 * wait, may ERROR.  No LWLock is held.
 */
extern void nvm_lane_write_values(uint32 lane);
extern void nvm_lane_write_shared(void);

/* ---- command_call.c: the call that runs ---- */

/*
 * Does this process play records (nvm_command_replay.h)?  Set when it starts, before it has
 * planned anything, and never reset.  Nothing is then captured or judged, no lanes are taken.
 */
extern PGDLLEXPORT bool nvm_command_replaying;

/* is a registered function running in this process? */
extern bool nvm_command_in_call(void);

/* src/hooks.c, of needs_fmgr_hook and fmgr_hook */
extern Datum *nvm_command_hook_argument(FmgrInfo *flinfo, Datum *arg);
extern void nvm_command_enter(FmgrInfo *flinfo, Datum *arg);

/* ---- command_verdict.c: can the transaction be replayed by its calls? ---- */

typedef enum NvmReason
{
	NVM_REASON_NONE,
	NVM_REASON_OUTSIDE,			/* rows were written outside of calls */
	NVM_REASON_ISOLATION,		/* not READ COMMITTED */
	NVM_REASON_OTHER_TABLE_READ,	/* heap, nvm, nvm_vlog, foreign, catalog */
	NVM_REASON_OTHER_TABLE_WRITTEN,
	NVM_REASON_SHARED_WRITTEN,
	NVM_REASON_NOT_PINNED,		/* a scan that names no held lane */
	NVM_REASON_OTHER_LANE,		/* a row of a lane that is not held */
	NVM_REASON_UTILITY,
	NVM_REASON_SUBTRANSACTION,	/* one was rolled back */
	NVM_REASON_OLD_CURSOR,		/* a query that was begun before the call */
	NVM_REASON_PREPARED,
	NVM_REASON_PARALLEL,
	NVM_REASON_FUNCTION,		/* one whose result a replay may not get again */
	NVM_REASON_DEFERRABLE,		/* a trigger that may run behind the call */
	NVM_REASON_SYSTEM_COLUMN,	/* ctid and its like */
	NVM_REASON_LOCKED_ROWS,		/* NOWAIT, SKIP LOCKED */
	NVM_REASON_ORDER,			/* a result that depends on the order of rows */
	NVM_REASON_UNSUITABLE,		/* NvmCommand.problem */
	NVM_REASON_TOO_LONG,		/* a record of the calls would be */
	NVM_NUM_REASONS
} NvmReason;

/*
 * The current transaction cannot be replayed by its calls.  The first reason counts;
 * object: what it is about, or InvalidOid.  Cheap, never fails, from anywhere.
 */
extern void nvm_command_disqualify(NvmReason reason, Oid classid, Oid object);

/*
 * Rows of a cmdlog table are written by the current transaction; the table's storage.
 * has_key: nvm_command_key_index has one.
 */
extern void nvm_command_writes(uint32 dir, Oid table, bool has_key);

extern const char *nvm_command_reason_name(NvmReason reason);
extern char *nvm_command_reason_object(Oid classid, Oid object);

/* in _PG_init */
extern void nvm_command_register_verdict(void);

/* ---- command_inspect.c: what a function does, before it runs ---- */

typedef struct NvmCommandFinding
{
	Oid			place;			/* the function with the statement */
	int			line;			/* in it; 0: not known */
	NvmReason	reason;			/* NVM_REASON_NONE: the statement is only seen
								 * when it runs */
	Oid			classid;		/* what it is about, as in NvmCommandReason */
	Oid			object;
	const char *statement;		/* or NULL */
	const char *problem;		/* of NVM_REASON_NONE: what an ERROR said, or
								 * NULL */
} NvmCommandFinding;

/*
 * What a call of the function may do that a replay could not do again, by its text: a list
 * of NvmCommandFinding *.  Locks the tables that it names.  May ERROR.
 */
extern List *nvm_command_inspect(Oid function);

/* ---- command_plan.c: what a call's utility commands do; ddl/ ---- */

extern void nvm_command_utility(Node *stmt, const char *source);

/* ---- command_running.c: the statements of a call; of the hooks in src/hooks.c ---- */

extern void nvm_command_query_starts(QueryDesc *query);
extern void nvm_command_query_started(QueryDesc *query);
extern void nvm_command_query_ends(QueryDesc *query);

/* what the first two return is for the third, which is not called if there is an error */
extern int	nvm_command_query_runs(QueryDesc *query);
extern int	nvm_command_query_finishes(QueryDesc *query);
extern void nvm_command_query_ran(QueryDesc *query, int outer);

/* of post_parse_analyze_hook */
extern void nvm_command_query_analyzed(Query *query, const char *text);

/* before it is planned; what is returned is for the other, with the plan */
extern int	nvm_command_query_parsed(Query *query, const char *text);
extern void nvm_command_mark_plan(PlannedStmt *stmt, int order);

/* ---- command_function.c; of planner_hook and needs_fmgr_hook ---- */

extern void nvm_command_query_planned(PlannedStmt *stmt, int order);
extern bool nvm_command_watches(Oid function);

/* ---- command_tape.c; of planner_hook ---- */

/* the query, or a copy that tapes what is to be taped */
extern Query *nvm_command_tape_query(Query *query);

/* ---- command_stat.c ---- */

#define NVM_COMMAND_TRANCHE		"nvm_command"

#define NVM_COMMAND_QUERY_SIZE	128

/* of a function, since the server has started or it was registered */
typedef struct NvmCommandStat
{
	Oid			database;		/* both are the key */
	Oid			function;
	int64		calls;
	int64		usec;			/* in them */
	int64		replayable;		/* transactions that could be replayed */
	int64		by_values;		/* that could not */
	int64		unlogged;		/* that wrote no row of nvm_cmdlog tables */
	int64		call_bytes;		/* of calls in the log, and of rows beside
								 * them */
	int64		value_bytes;
	int64		reasons[NVM_NUM_REASONS];	/* of by_values and unlogged */
	NvmReason	last_reason;
	Oid			last_class;
	Oid			last_object;
	TimestampTz last_time;
	char		last_query[NVM_COMMAND_QUERY_SIZE];

	/* of the last replay that has made such calls */
	uint64		replay;			/* which it was */
	int64		replayed;		/* calls */
	int64		replay_usec;	/* in them */
	uint64		replayed_as;	/* the function's fingerprint in it; 0: it was
								 * not one and the same */
	TimestampTz rehearsed;		/* when the last rehearsal with such calls has
								 * passed; 0: none has */
	uint64		rehearsed_as;
	int64		alone;			/* of replayable: calls were logged alone */
} NvmCommandStat;

/* false: there is nothing of it */
extern bool nvm_command_stat_get(Oid function, NvmCommandStat *stat);

/* calls that a replay has made again; it is told apart from others by a number */
extern void nvm_command_stat_replayed(uint64 replay, Oid function, uint64 fingerprint,
									  int64 calls, int64 usec);

/* all that it has called in this database was rehearsed, and has passed */
extern void nvm_command_stat_rehearsed(uint64 replay);

/* ---- command_reason.c ---- */

/* of one reason of a function; all but the number are of the last transaction */
typedef struct NvmCommandReason
{
	Oid			function;		/* that was registered */
	NvmReason	reason;
	int64		transactions;
	Oid			classid;		/* what it is about */
	Oid			object;
	Oid			place;			/* the function in PL/pgSQL where it came up,
								 * or InvalidOid */
	int			line;			/* there; 0: not known */
	TimestampTz time;
	char		statement[NVM_COMMAND_QUERY_SIZE];	/* the query in the call */
	char		query[NVM_COMMAND_QUERY_SIZE];	/* the client's */
} NvmCommandReason;

/* of the current database: a list of NvmCommandReason * */
extern List *nvm_command_reasons(void);

/* ---- command_stat.c ---- */

/* forget what is known of a function, or of all of the database: InvalidOid */
extern void nvm_command_stat_forget(Oid database, Oid function);

extern void nvm_command_define_settings(void);

extern Size nvm_command_shmem_size(void);
extern int	nvm_command_num_lwlocks(void);
extern void nvm_command_shmem_startup(void);

#endif							/* NVM_COMMAND_H */
