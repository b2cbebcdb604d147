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
#include "nodes/plannodes.h"

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

/* are there lanes?  Not without the extension */
extern bool nvm_lanes_exist(void);
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
extern void nvm_verdict_call_begins(Oid function);
extern void nvm_verdict_call_ended(Oid function, uint64 usec);

/* is the transaction one of values? */
extern bool nvm_verdict_by_values(void);

/* ---- command_plan.c ---- */

extern void nvm_judge_plan(PlannedStmt *plan);

/* at the start of a call, and when it has ended */
extern bool nvm_stored_cursor_is_open(void);
extern void nvm_queries_forget(void);

/* ---- command_function.c ---- */

/* the first function in an expression that a replay cannot call again, or InvalidOid */
extern Oid	nvm_function_not_admitted(Node *expr, bool before_planning);
extern bool nvm_function_is_admitted(Oid function);
extern bool nvm_trigger_is_admitted(Oid function);
extern void nvm_functions_register(void);

/* ---- command_stat.c ---- */

/* what a transaction has to say of a function that it has called */
typedef struct NvmCommandCount
{
	Oid			function;
	uint32		calls;
	uint64		usec;
} NvmCommandCount;

/* add what a transaction has found out; never fails */
extern void nvm_command_stat_add(const NvmCommandCount *count, bool writes, NvmReason reason,
								 Oid reason_class, Oid object, const char *query);

#endif							/* COMMAND_IMPL_H */
