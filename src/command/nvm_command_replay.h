/*-------------------------------------------------------------------------
 *
 * nvm_command_replay.h
 *	  Call again what a record says.
 *
 * src/command/README.md, "How it is read", has the rules.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_COMMAND_REPLAY_H
#define NVM_COMMAND_REPLAY_H

#include "postgres.h"

#include "verify/nvm_verify_log.h"

/*
 * What has come of a record's calls.  If `failed`, nothing of them is there; message
 * says why, and the other strings (NULL: nothing to say) are in the caller's memory, as
 * it is.
 */
typedef struct NvmReplayed
{
	bool		failed;
	int			sqlerrcode;		/* of the ERROR */
	char	   *message;
	char	   *detail;
	char	   *call;			/* the one that failed, or all, as SQL:
								 * public.take(7, 42, 3) */
	Oid			function;		/* of the call that failed, or the first one */
	uint64		checksum_recorded;	/* of the rows */
	uint64		checksum;		/* 0 if a call failed */
	uint32		rows_recorded;
	uint32		rows;
	int			ncalls;			/* that were made, the failed one too */
	uint64		usec;
} NvmReplayed;

/* which replay this process belongs to, for nvm_command_stat_replayed */
extern PGDLLEXPORT uint64 nvm_command_replay_number;

/*
 * Call what a section of calls says, which nvm_log_calls_problem has passed, in a
 * transaction of its own: none is open.  In a process in which nvm_command_replaying is
 * true, and was before anything was planned there; its user is a superuser.  Settings
 * that the record has stay set behind it.
 *
 * Whatever fails makes the transaction roll back, and is said in *result.  Only an
 * ERROR that cancels, or ends the process, comes out.
 */
extern PGDLLEXPORT void nvm_command_replay(const NvmLogSection *calls, NvmReplayed *result);

#endif							/* NVM_COMMAND_REPLAY_H */
