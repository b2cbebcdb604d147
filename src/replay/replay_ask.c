/*-------------------------------------------------------------------------
 *
 * replay_ask.c
 *	  A session asks for a replay, and waits for it.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replay/replay_impl.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

/* milliseconds between looks at the leader */
#define LOOK_MS		200

static int	replay_workers = 0;

void
nvm_replay_define_settings(void)
{
	DefineCustomIntVariable("nvm.replay_workers",
							"Processes that replay calls of the command log.",
							"0: as many as there are processors. They count against max_worker_processes.",
							&replay_workers,
							0, 0, NVM_REPLAY_MAX_PLAYERS,
							PGC_USERSET,
							0,
							NULL, NULL, NULL);
}

/*
 * See replay_impl.h.
 */
int
nvm_replay_wanted_players(int wanted)
{
	long		processors = sysconf(_SC_NPROCESSORS_ONLN);

	if (wanted == 0)
		wanted = replay_workers;
	if (wanted == 0)
		wanted = (int) Max(processors, 1);
	return Min(wanted, NVM_REPLAY_MAX_PLAYERS);
}

/*
 * Begin a run, if there is none.  A recovery has begun all of its own by then.
 */
static void
begin(const NvmReplayRequest *request)
{
	nvm_log_require_whole();
	if (!nvm_replay_begin(request))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("another replay of the command log is running"),
				 errhint("View nvm.replay shows how far it is.")));
}

/* the leader of the run that this session has begun; NULL: not registered */
static BackgroundWorkerHandle *leader = NULL;

/*
 * The session ends, or its statement: nobody waits for the run any more.  A leader that never
 * began would not say that it has ended.
 */
static void
cancel_at_exit(int code, Datum arg)
{
	pid_t		pid;

	ConditionVariableCancelSleep();
	SpinLockAcquire(&NvmReplay->mutex);
	if (NvmReplay->request.run == nvm_replay_run_number)
		NvmReplay->cancel = true;
	SpinLockRelease(&NvmReplay->mutex);
	ConditionVariableBroadcast(&NvmReplay->changed);
	if (leader == NULL || GetBackgroundWorkerPid(leader, &pid) == BGWH_STOPPED)
		nvm_replay_end(nvm_replay_run_number);
	else if (GetBackgroundWorkerPid(leader, &pid) == BGWH_NOT_YET_STARTED)
	{
		/*
		 * it may come all the same, and finds another run, or one that is
		 * cancelled
		 */
		TerminateBackgroundWorker(leader);
		nvm_replay_end(nvm_replay_run_number);
	}
}

static bool
has_ended(void)
{
	bool		ended;

	SpinLockAcquire(&NvmReplay->mutex);
	ended = NvmReplay->request.run != nvm_replay_run_number || NvmReplay->phase == NVM_REPLAY_ENDED;
	SpinLockRelease(&NvmReplay->mutex);
	return ended;
}

/*
 * Returns what came of the run, before anybody can begin another one.
 */
static void
wait_for_leader(NvmReplayInfo *info)
{
	pid_t		pid;

	ConditionVariablePrepareToSleep(&NvmReplay->changed);
	while (!has_ended())
	{
		if (GetBackgroundWorkerPid(leader, &pid) == BGWH_STOPPED && !has_ended())
			ereport(ERROR,
					(errcode(ERRCODE_ADMIN_SHUTDOWN),
					 errmsg("the process that leads the replay could not be started, or has died")));
		(void) ConditionVariableTimedSleep(&NvmReplay->changed, LOOK_MS, PG_WAIT_EXTENSION);
		CHECK_FOR_INTERRUPTS();
	}
	ConditionVariableCancelSleep();
	nvm_replay_info(info);
	if (info->request.run != nvm_replay_run_number)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("another replay of the command log has begun before this session could see what came of its own")));
}

static void
report_failure(const NvmReplayFailure *failure)
{
	ereport(ERROR,
			(errcode(failure->sqlerrcode),
			 errmsg_internal("%s", failure->message),
			 failure->detail[0] != '\0' ? errdetail_internal("%s", failure->detail) : 0,
			 failure->hint[0] != '\0' ? errhint("%s", failure->hint) : 0));
}

/*
 * See nvm_replay.h.
 */
void
nvm_replay_run(const NvmReplayRequest *request, NvmReplayInfo *info)
{
	begin(request);
	leader = NULL;
	PG_ENSURE_ERROR_CLEANUP(cancel_at_exit, (Datum) 0);
	{
		if (!nvm_replay_start_worker("nvm replay leader", "nvm_replay_leader_main",
									 request->database, UInt32GetDatum(nvm_replay_run_number),
									 &leader))
			ereport(ERROR,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("there is no room for the process that leads a replay"),
					 errhint("Raise max_worker_processes.")));
		wait_for_leader(info);

		/* its place is free for the leader of the next run */
		(void) WaitForBackgroundWorkerShutdown(leader);
	}
	PG_END_ENSURE_ERROR_CLEANUP(cancel_at_exit, (Datum) 0);
	if (info->failed && !info->failure.differs)
		report_failure(&info->failure);
	if (!info->passed && !info->failed)
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("the replay was ended")));
}
