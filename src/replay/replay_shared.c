/*-------------------------------------------------------------------------
 *
 * replay_shared.c
 *	  What the processes of a replay share: phases, what is done, failures.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "compat/nvm_compat.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replay/replay_impl.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* players look at this interval whether somebody has died */
#define LOOK_MS		1000

/* of the stack, where the system has no limit: what recurses without end takes no more */
#define MOST_STACK_KB	(1024 * 1024)

NvmReplayShared *NvmReplay = NULL;
uint32		nvm_replay_run_number = 0;
NvmLogPosition nvm_replay_position = 0;

static const char *const phase_names[] = {
	[NVM_REPLAY_NONE] = "none",
	[NVM_REPLAY_STARTING] = "starting",
	[NVM_REPLAY_COPY] = "making tables",
	[NVM_REPLAY_BASE] = "loading checkpoint",
	[NVM_REPLAY_COUNT] = "reading originals",
	[NVM_REPLAY_PLAY] = "replaying",
	[NVM_REPLAY_COMPARE] = "comparing",
	[NVM_REPLAY_ENDED] = "ended"
};

Size
nvm_replay_shmem_size(void)
{
	return MAXALIGN(sizeof(NvmReplayShared));
}

void
nvm_replay_shmem_startup(void)
{
	bool		found;

	NvmReplay = ShmemInitStruct("nvm_replay", sizeof(NvmReplayShared), &found);
	if (found)
		return;
	memset(NvmReplay, 0, sizeof(NvmReplayShared));
	SpinLockInit(&NvmReplay->mutex);
	ConditionVariableInit(&NvmReplay->changed);
	for (Size i = 0; i < NVM_REPLAY_NCOUNTS; i++)
		pg_atomic_init_u64((pg_atomic_uint64 *) &NvmReplay->counts + i, 0);
}

const char *
nvm_replay_phase_name(NvmReplayPhase phase)
{
	return phase_names[phase];
}

/* ---- a run begins ---- */

/*
 * Caller holds the mutex.
 */
static bool
may_begin(void)
{
	return (NvmReplay->phase == NVM_REPLAY_NONE || NvmReplay->phase == NVM_REPLAY_ENDED) &&
		NvmReplay->nplaying == 0;
}

/*
 * See replay_impl.h.
 */
bool
nvm_replay_begin(const NvmReplayRequest *request)
{
	int			nplayers = nvm_replay_wanted_players(request->nplayers);
	bool		may;

	SpinLockAcquire(&NvmReplay->mutex);
	may = may_begin();
	if (may)
	{
		uint32		run = NvmReplay->request.run + 1;

		NvmReplay->phase = NVM_REPLAY_STARTING;
		NvmReplay->request = *request;
		NvmReplay->request.nplayers = nplayers;
		NvmReplay->request.run = nvm_replay_run_number = run;
		NvmReplay->cancel = NvmReplay->failed = NvmReplay->passed = false;
		NvmReplay->next = 1;
		NvmReplay->done = 0;
		NvmReplay->nwaiting = 0;
		memset(NvmReplay->is_done, 0, sizeof(NvmReplay->is_done));
		memset(NvmReplay->has_ended, 0, sizeof(NvmReplay->has_ended));
		for (Size i = 0; i < NVM_REPLAY_NCOUNTS; i++)
			pg_atomic_write_u64((pg_atomic_uint64 *) &NvmReplay->counts + i, 0);
	}
	SpinLockRelease(&NvmReplay->mutex);
	if (may)
		pg_atomic_write_u64(&NvmReplay->counts.started, (uint64) GetCurrentTimestamp());
	return may;
}

/*
 * See replay_impl.h.
 */
int
nvm_replay_players(void)
{
	int			n;

	SpinLockAcquire(&NvmReplay->mutex);
	n = NvmReplay->nplaying;
	SpinLockRelease(&NvmReplay->mutex);
	return n;
}

/* ---- phases and failures ---- */

/*
 * Has the run of this process come to its end?  Caller holds the mutex.
 */
static bool
is_over(void)
{
	return NvmReplay->request.run != nvm_replay_run_number || NvmReplay->failed || NvmReplay->cancel;
}

bool
nvm_replay_is_over(void)
{
	bool		over;

	SpinLockAcquire(&NvmReplay->mutex);
	over = is_over();
	SpinLockRelease(&NvmReplay->mutex);
	return over;
}

/*
 * See replay_impl.h.
 */
void
nvm_replay_look(void)
{
	CHECK_FOR_INTERRUPTS();
	if (nvm_replay_is_over())
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("nobody waits for the replay any more")));
}

/*
 * See replay_impl.h.
 */
void
nvm_replay_enter(NvmReplayPhase phase)
{
	SpinLockAcquire(&NvmReplay->mutex);
	if (!is_over())
		NvmReplay->phase = phase;
	SpinLockRelease(&NvmReplay->mutex);
	nvm_replay_look();
}

/*
 * See replay_impl.h.
 */
void
nvm_replay_note_failure(const NvmReplayFailure *failure)
{
	SpinLockAcquire(&NvmReplay->mutex);
	if (NvmReplay->request.run == nvm_replay_run_number && !NvmReplay->failed)
	{
		NvmReplay->failed = true;
		NvmReplay->failure = *failure;
	}
	SpinLockRelease(&NvmReplay->mutex);
	ConditionVariableBroadcast(&NvmReplay->changed);
}

void
nvm_replay_note_passed(void)
{
	SpinLockAcquire(&NvmReplay->mutex);
	NvmReplay->passed = !is_over();
	SpinLockRelease(&NvmReplay->mutex);
}

/*
 * See replay_impl.h.  Caller has caught it.
 */
void
nvm_replay_note_error(void)
{
	NvmReplayFailure failure = {0};
	ErrorData  *error;

	MemoryContextSwitchTo(TopMemoryContext);
	error = CopyErrorData();
	FlushErrorState();
	failure.sqlerrcode = error->sqlerrcode;
	failure.position = nvm_replay_position;
	strlcpy(failure.message, error->message != NULL ? error->message : "unknown error",
			sizeof(failure.message));
	if (error->detail != NULL)
		strlcpy(failure.detail, error->detail, sizeof(failure.detail));
	if (error->hint != NULL)
		strlcpy(failure.hint, error->hint, sizeof(failure.hint));
	FreeErrorData(error);
	nvm_replay_note_failure(&failure);
}

/*
 * See replay_impl.h.
 */
void
nvm_replay_failed(void)
{
	HOLD_INTERRUPTS();
	/* outside of a transaction nobody else lets go of them */
	LWLockReleaseAll();
	nvm_replay_note_error();
	ConditionVariableCancelSleep();
	AbortOutOfAnyTransaction();
	RESUME_INTERRUPTS();
}

void
nvm_replay_info(NvmReplayInfo *info)
{
	memset(info, 0, sizeof(*info));
	SpinLockAcquire(&NvmReplay->mutex);
	info->phase = NvmReplay->phase;
	info->request = NvmReplay->request;
	info->passed = NvmReplay->passed && !NvmReplay->failed;
	info->failed = NvmReplay->failed;
	info->failure = NvmReplay->failure;
	SpinLockRelease(&NvmReplay->mutex);
	for (Size i = 0; i < NVM_REPLAY_NCOUNTS; i++)
		info->count[i] = pg_atomic_read_u64((pg_atomic_uint64 *) &NvmReplay->counts + i);
}

/*
 * See replay_impl.h.
 */
void
nvm_replay_end(uint32 run)
{
	SpinLockAcquire(&NvmReplay->mutex);
	if (NvmReplay->request.run == run)
	{
		NvmReplay->phase = NVM_REPLAY_ENDED;
		pg_atomic_write_u64(&NvmReplay->counts.ended, (uint64) GetCurrentTimestamp());
	}
	SpinLockRelease(&NvmReplay->mutex);
	ConditionVariableBroadcast(&NvmReplay->changed);
}

/*
 * A player begins, or ends.
 */
bool
nvm_replay_player_begins(void)
{
	bool		over;

	SpinLockAcquire(&NvmReplay->mutex);
	over = is_over();
	if (!over)
		NvmReplay->nplaying++;
	SpinLockRelease(&NvmReplay->mutex);
	return !over;
}

void
nvm_replay_player_ends(int player, bool by_itself)
{
	SpinLockAcquire(&NvmReplay->mutex);
	NvmReplay->nplaying--;
	if (NvmReplay->request.run == nvm_replay_run_number && by_itself)
		NvmReplay->has_ended[player] = true;
	SpinLockRelease(&NvmReplay->mutex);
}

/* ---- what is done ---- */

/*
 * See replay_impl.h.
 */
uint64
nvm_replay_claim(void)
{
	uint64		number;

	SpinLockAcquire(&NvmReplay->mutex);
	number = is_over() ? 0 : NvmReplay->next++;
	SpinLockRelease(&NvmReplay->mutex);
	return number;
}

/*
 * Caller holds the mutex.
 */
static bool
is_done(uint64 number)
{
	return number <= NvmReplay->done || NvmReplay->is_done[number % NVM_REPLAY_RING];
}

/*
 * See replay_impl.h.
 */
void
nvm_replay_done(uint64 number)
{
	bool		wake = false;

	SpinLockAcquire(&NvmReplay->mutex);
	if (NvmReplay->request.run == nvm_replay_run_number)
	{
		NvmReplay->is_done[number % NVM_REPLAY_RING] = true;
		while (NvmReplay->is_done[(NvmReplay->done + 1) % NVM_REPLAY_RING])
		{
			NvmReplay->done++;
			NvmReplay->is_done[NvmReplay->done % NVM_REPLAY_RING] = false;
		}
		wake = NvmReplay->nwaiting > 0;
	}
	SpinLockRelease(&NvmReplay->mutex);
	if (wake)
		ConditionVariableBroadcast(&NvmReplay->changed);
}

/*
 * May record `number` be played?  Not before there is room in the ring for its flag.
 */
static bool
may_be_played(uint64 number, const NvmReplayWaits *waits)
{
	if (number >= NvmReplay->done + NVM_REPLAY_RING)
		return false;
	if (waits->alone)
		return NvmReplay->done == number - 1;
	for (int i = 0; i < waits->n; i++)
	{
		if (!is_done(waits->record[i]))
			return false;
	}
	return true;
}

static bool
look(uint64 number, const NvmReplayWaits *waits, int nwaiting, bool *may)
{
	bool		over;

	SpinLockAcquire(&NvmReplay->mutex);
	over = is_over();
	if (NvmReplay->request.run == nvm_replay_run_number)
		NvmReplay->nwaiting += nwaiting;
	*may = !over && may_be_played(number, waits);
	SpinLockRelease(&NvmReplay->mutex);
	return over || *may;
}

/*
 * See replay_impl.h.  False: the replay is to end.
 */
bool
nvm_replay_wait(uint64 number, const NvmReplayWaits *waits)
{
	bool		may;

	if (look(number, waits, 0, &may))
		return may;
	(void) look(number, waits, 1, &may);
	ConditionVariablePrepareToSleep(&NvmReplay->changed);
	while (!look(number, waits, 0, &may))
		(void) ConditionVariableTimedSleep(&NvmReplay->changed, LOOK_MS, PG_WAIT_EXTENSION);
	ConditionVariableCancelSleep();
	(void) look(number, waits, -1, &may);
	return may;
}

/* ---- workers ---- */

/*
 * A call may have had a session's max_stack_depth.  So here it is what the system admits, up to a
 * limit of ours, where it admits anything.
 */
static void
set_stack_depth(void)
{
	long		room = (long) get_stack_depth_rlimit() - STACK_DEPTH_SLOP;
	int			kb = (int) Min(room / 1024, MOST_STACK_KB);

	if (kb > max_stack_depth)
		SetConfigOption("max_stack_depth", psprintf("%d", kb), PGC_SUSET, PGC_S_OVERRIDE);
}

/*
 * See replay_impl.h.
 */
void
nvm_replay_set_own(void)
{
	static const char *const own[][2] = {
		{"statement_timeout", "0"},
		{"lock_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"transaction_timeout", "0"},
		{"temp_file_limit", "-1"},
		{"default_transaction_read_only", "off"},
		{"exit_on_error", "off"},
		{"restrict_nonsystem_relation_kind", ""}
	};

	for (int i = 0; i < (int) lengthof(own); i++)
	{
		/* not every version has all */
		if (GetConfigOption(own[i][0], true, false) != NULL)
			SetConfigOption(own[i][0], own[i][1], PGC_SUSET, PGC_S_OVERRIDE);
	}
	set_stack_depth();
}

/*
 * See replay_impl.h.
 */
bool
nvm_replay_start_worker(const char *name, const char *function, Oid database, Datum argument,
						BackgroundWorkerHandle **handle)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "pg_nvm", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, function, sizeof(worker.bgw_function_name));
	snprintf(worker.bgw_name, sizeof(worker.bgw_name), "%s for database %u", name, database);
	strlcpy(worker.bgw_type, name, sizeof(worker.bgw_type));
	worker.bgw_main_arg = argument;
	worker.bgw_notify_pid = MyProcPid;
	return RegisterDynamicBackgroundWorker(&worker, handle);
}
