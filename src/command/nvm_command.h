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

#include "storage/lock.h"
#include "utils/relcache.h"

/* ---- command_label.c: what is registered, by labels ---- */

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
	const char *problem;		/* NULL: none; else why no call of it
								 * qualifies */
} NvmCommand;

/*
 * The registration of a function of the current database, or NULL.  Cheap if the
 * database has none.  Only within a transaction.
 */
extern const NvmCommand *nvm_command_find(Oid function);

/*
 * The partition column of a table, or InvalidAttrNumber: it is shared.  problem: why one
 * that has a label is shared all the same, or NULL.
 */
extern AttrNumber nvm_command_partition_column(Relation table, const char **problem);

/* ---- command_lane.c ---- */

#define NVM_LANES	65536		/* 0: shared tables */

/* of a value of this type; 0 is never returned */
extern uint32 nvm_lane_of(Oid type, Oid collation, Datum value);

/* is the lane held exclusively by the call that runs? */
extern bool nvm_lane_is_held(uint32 lane);

/*
 * Before a row is written outside of the call's lanes, or outside of any call; and
 * before one of a shared table.  May wait, may ERROR.  No LWLock is held.
 */
extern void nvm_lane_write_values(uint32 lane);
extern void nvm_lane_write_shared(void);

/* ---- command_call.c: the call that runs ---- */

/* in _PG_init */
extern void nvm_command_register_hooks(void);

/* is a registered function running in this process? */
extern bool nvm_command_in_call(void);

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
	NVM_REASON_OLD_CURSOR,
	NVM_REASON_PREPARED,
	NVM_REASON_PARALLEL,
	NVM_REASON_FUNCTION,		/* one whose result a replay may not get again */
	NVM_REASON_ORDER,			/* a result that depends on the order of rows */
	NVM_REASON_UNSUITABLE,		/* NvmCommand.problem */
	NVM_NUM_REASONS
} NvmReason;

/*
 * The current transaction cannot be replayed by its calls.  The first reason counts;
 * object: what it is about, or InvalidOid.  Cheap, never fails, from anywhere.
 */
extern void nvm_command_disqualify(NvmReason reason, Oid classid, Oid object);

/* rows of a cmdlog table are written by the current transaction */
extern void nvm_command_writes(void);

/* ---- command_stat.c ---- */

extern Size nvm_command_shmem_size(void);
extern int	nvm_command_num_lwlocks(void);
extern void nvm_command_shmem_startup(void);

#endif							/* NVM_COMMAND_H */
