/*-------------------------------------------------------------------------
 *
 * replay_recover.c
 *	  The recovery worker has a database replayed; a session says how to go on.
 *
 * The worker has no database.  It starts a leader, which has, and waits for its end, and for
 * that of all players: tables must be nobody's when they open, or are emptied.
 *
 * README.md, "After a loss".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "pmem/nvm_pmem.h"
#include "replay/nvm_replay.h"
#include "replay/replay_impl.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "verify/nvm_verify_log.h"
#include "vlog/nvm_vlog.h"

/* how often to look whether the leader is at its end, and for room to start one */
#define LOOK_MS		50
#define ROOM_MS		1000

/* ---- the worker ---- */

static BackgroundWorkerHandle *leader = NULL;

/* a run of ours has begun, and has not been ended */
static bool has_begun = false;

static void
cancel(void)
{
	SpinLockAcquire(&NvmReplay->mutex);
	if (NvmReplay->request.run == nvm_replay_run_number)
		NvmReplay->cancel = true;
	SpinLockRelease(&NvmReplay->mutex);
	ConditionVariableBroadcast(&NvmReplay->changed);
}

static bool
leader_has_ended(void)
{
	pid_t		pid;

	return leader == NULL || GetBackgroundWorkerPid(leader, &pid) == BGWH_STOPPED;
}

static void
end_run(void)
{
	nvm_replay_end(nvm_replay_run_number);
	has_begun = false;
	leader = NULL;
}

/*
 * Who replays ends, and then the worker, or what it does.  There may be no leader yet: without an
 * end of the run nobody could begin another one.
 */
static void
stop(void)
{
	if (!has_begun)
		return;
	cancel();
	if (leader != NULL)
		TerminateBackgroundWorker(leader);
	while ((!leader_has_ended() || nvm_replay_players() > 0) && PostmasterIsAlive())
		pg_usleep(10000L);
	end_run();
}

static void
stop_at_exit(int code, Datum arg)
{
	stop();
}

/*
 * What leader and players have to know but for the tables.
 */
static dsm_segment *
make_plan(const NvmVlogToPlay *what)
{
	Size		base = MAXALIGN(sizeof(NvmReplayPlan));
	Size		asked = MAXALIGN(base + NVM_LOG_SNAPSHOT_LENGTH(what->snapshot->nxip));
	Size		size = MAXALIGN(asked + what->nasked * sizeof(NvmLogPosition));
	dsm_segment *segment = dsm_create(size, 0);
	char	   *memory = dsm_segment_address(segment);
	NvmReplayPlan *plan = (NvmReplayPlan *) memory;

	dsm_pin_mapping(segment);
	memset(plan, 0, sizeof(*plan));
	plan->database = what->database;
	plan->begin = what->begin;
	plan->end = what->end;
	plan->recover = true;
	plan->size = size;
	plan->base = base;
	plan->asked = asked;
	plan->nasked = what->nasked;
	memcpy(memory + base, what->snapshot, NVM_LOG_SNAPSHOT_LENGTH(what->snapshot->nxip));
	memcpy(memory + asked, what->asked, what->nasked * sizeof(NvmLogPosition));
	return segment;
}

static void
start_leader(Oid database, void (*pause) (long ms))
{
	bool		told = false;
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	while (!nvm_replay_start_worker("nvm replay leader", "nvm_replay_leader_main", database,
									UInt32GetDatum(nvm_replay_run_number), &leader))
	{
		leader = NULL;
		if (!told)
			ereport(LOG,
					(errmsg("nvm: there is no room for the process that leads a replay"),
					 errdetail("Tables of nvm_cmdlog of database %u wait for it.", database),
					 errhint("Raise max_worker_processes, or end other workers.")));
		told = true;
		pause(ROOM_MS);
	}
	MemoryContextSwitchTo(old);
}

/*
 * What has interrupted it may do so each time: then it is told, and somebody has to say how to go
 * on.
 */
static NvmVlogPlayed
was_interrupted(Oid database, const NvmReplayInfo *info)
{
	NvmLogReplayed d = {.database = database};
	const char *message = info->failed ? info->failure.message :
	"a process that was to replay them could not connect to the database";

	(void) nvm_log_replay_state(database, &d);
	d.tries++;
	if (d.tries >= NVM_REPLAY_TRIES)
	{
		d.state = NVM_LOG_REPLAY_STOPPED;
		d.played = NVM_REPLAY_COUNT_OF(info, records);
		d.left = NVM_LOG_LEFT_UNKNOWN;
		d.sqlerrcode = info->failed ? info->failure.sqlerrcode : ERRCODE_CONNECTION_FAILURE;
		d.position = info->failure.position;
		snprintf(d.message, sizeof(d.message), "it was interrupted %d times, at last: %s", d.tries, message);
		strlcpy(d.detail, info->failure.detail, sizeof(d.detail));
		d.call[0] = '\0';
	}
	nvm_log_replay_tell(&d);
	return d.tries >= NVM_REPLAY_TRIES ? NVM_VLOG_STOPPED : NVM_VLOG_INTERRUPTED;
}

static NvmVlogPlayed
what_came_of_it(Oid database, const NvmReplayInfo *info)
{
	NvmLogReplayed done = {.database = database,.state = NVM_LOG_REPLAY_RUNNING,
	.played = NVM_REPLAY_COUNT_OF(info, records)};

	if (info->passed)
	{
		nvm_log_replay_tell(&done);
		return NVM_VLOG_PLAYED;
	}

	/*
	 * somebody may have said how to go on since the leader has told that it
	 * has stopped
	 */
	return nvm_log_replay_state(database, NULL) != NVM_LOG_REPLAY_RUNNING ? NVM_VLOG_STOPPED :
		was_interrupted(database, info);
}

/*
 * See nvm_vlog.h.
 */
static NvmVlogPlayed
play(const NvmVlogToPlay *what, void (*pause) (long ms))
{
	static bool at_exit = false;
	NvmReplayRequest request = {.database = what->database,.recover = true};
	NvmReplayInfo info;
	dsm_segment *segment;

	if (!at_exit)
		before_shmem_exit(stop_at_exit, (Datum) 0);
	at_exit = true;
	if (CurrentResourceOwner == NULL)
		CurrentResourceOwner = ResourceOwnerCreate(NULL, "nvm replay");
	segment = make_plan(what);
	request.what = dsm_segment_handle(segment);
	/* players of a worker that has been ended may still be there */
	while (!nvm_replay_begin(&request))
		pause(LOOK_MS);
	has_begun = true;
	start_leader(what->database, pause);
	while (!leader_has_ended())
	{
		NVM_FAILPOINT("recover-watch");
		pause(LOOK_MS);
	}
	cancel();
	while (nvm_replay_players() > 0)
		pause(LOOK_MS);
	nvm_replay_info(&info);
	pfree(leader);
	end_run();
	dsm_detach(segment);
	return what_came_of_it(what->database, &info);
}

/*
 * See nvm_replay.h.
 */
void
nvm_replay_register_player(void)
{
	nvm_vlog_register_player(play, stop);
}

/* ---- a session ---- */

static void
rebuild_has_failed(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("tables in memory could not be rebuilt from the log"),
			 errdetail("%s", nvm_log_rebuild_problem())));
}

/*
 * Say so, and wait for what comes of it.
 */
static void
ask(NvmLogReplay state, NvmLogReplayed *what)
{
	if (!nvm_log_replay_ask(MyDatabaseId, state))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("no replay of the calls of this database has stopped"),
				 errhint("View nvm.replayed_databases shows those that the last start has begun.")));
	for (;;)
	{
		NvmLogReplay now = nvm_log_replay_state(MyDatabaseId, what);

		if (now == NVM_LOG_REPLAY_DONE)
			return;
		if (now == NVM_LOG_REPLAY_STOPPED)
			ereport(ERROR,
					(errcode(what->sqlerrcode),
					 errmsg("the replay of the calls of this database has stopped at position %llu of the log: %s",
							(unsigned long long) what->position, what->message),
					 what->call[0] != '\0' ? errdetail("Call %s. %s", what->call, what->detail) :
					 what->detail[0] != '\0' ? errdetail_internal("%s", what->detail) : 0));
		if (nvm_log_rebuild_state() == NVM_LOG_FAILED)
			rebuild_has_failed();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, LOOK_MS,
						 PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * See nvm_replay.h.
 */
void
nvm_replay_resume(NvmLogReplayed *what)
{
	ask(NVM_LOG_REPLAY_RESUMED, what);
}

void
nvm_replay_give_up(NvmLogReplayed *what)
{
	ask(NVM_LOG_REPLAY_GIVEN_UP, what);
}
