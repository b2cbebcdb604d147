/*-------------------------------------------------------------------------
 *
 * vlog_checkpoint.c
 *	  The worker that makes checkpoints: when, in which steps, and who waits.
 *
 * README.md, "Checkpoints", has the protocol.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "postmaster/interrupt.h"
#include "storage/condition_variable.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"
#include "verify/nvm_verify_log.h"
#include "vlog/nvm_vlog.h"
#include "vlog/vlog_impl.h"
#include "wbl/nvm_wbl.h"

/* how often to look for something to do */
#define LOOK_MS				1000
/* the same while the region is not whole */
#define FIRST_LOOK_MS		50
/* how long after a failure it is tried again, unless somebody asks */
#define RETRY_SECONDS		30
/* how long a request may wait for a worker to be there, in seconds */
#define BEGIN_SECONDS		60

int			nvm_checkpoint_rate = 0;
int			nvm_checkpoint_file_size = 256;
static int	checkpoint_interval = 300;
static int	checkpoint_log_size = 1024;

typedef struct NvmCheckpointShared
{
	slock_t		mutex;			/* for all below */
	Latch	   *worker;			/* NULL: none runs */
	uint64		requested;		/* requests, counted */
	uint64		urgent;			/* up to this one nvm.checkpoint_rate does not
								 * count */
	uint64		served;			/* up to this one by a checkpoint that is
								 * usable */
	uint64		failed;			/* up to this one by one that has failed: */
	int			errcode;
	char		problem[256];
	NvmCheckpointInfo usable;
	NvmCheckpointInfo last;
	uint64		volume;			/* nvm_log_volume at the beginning of the last
								 * one that is usable */
	ConditionVariable ended;
} NvmCheckpointShared;

static NvmCheckpointShared *Shared = NULL;

/* which data files are needed is known, all others may go */
static bool rows_are_known = false;

/* the checkpoint that is being made is usable */
static bool became_usable = false;

/* ---- settings and shared memory ---- */

void
nvm_vlog_define_settings(void)
{
	DefineCustomIntVariable("nvm.checkpoint_interval",
							"Time between two checkpoints of tables in memory.",
							"0: only by the size of the log, and on request.",
							&checkpoint_interval,
							300, 0, 24 * 3600,
							PGC_SIGHUP, GUC_UNIT_S,
							NULL, NULL, NULL);
	DefineCustomIntVariable("nvm.checkpoint_log_size",
							"Size of the log since the last checkpoint of tables in memory that brings another one.",
							NULL,
							&checkpoint_log_size,
							1024, 1, 1024 * 1024 * 1024,
							PGC_SIGHUP, GUC_UNIT_MB,
							NULL, NULL, NULL);
	DefineCustomIntVariable("nvm.checkpoint_rate",
							"Megabytes that a checkpoint of tables in memory writes in a second, at most.",
							"0: as many as the disk takes.",
							&nvm_checkpoint_rate,
							0, 0, 1024 * 1024,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);
	DefineCustomIntVariable("nvm.checkpoint_file_size",
							"Size of a file of a checkpoint of tables in memory.",
							NULL,
							&nvm_checkpoint_file_size,
							256, 1, 64 * 1024,
							PGC_SIGHUP, GUC_UNIT_MB | GUC_NOT_IN_SAMPLE,
							NULL, NULL, NULL);
	DefineCustomIntVariable("nvm.recovery_workers",
							"Processes that rebuild tables in memory from the log after a start.",
							"0: as many as there are processors. All but one count against max_worker_processes; if there are not so many, fewer do it.",
							&nvm_recovery_workers,
							0, 0, NVM_VLOG_MAX_PROCESSES,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);
}

Size
nvm_vlog_shmem_size(void)
{
	return MAXALIGN(sizeof(NvmCheckpointShared)) + nvm_vlog_pin_shmem_size();
}

void
nvm_vlog_shmem_startup(void)
{
	bool		found;

	nvm_vlog_pin_shmem_startup();
	Shared = ShmemInitStruct("pg_nvm checkpoints", MAXALIGN(sizeof(NvmCheckpointShared)), &found);

	if (found)
		return;
	memset(Shared, 0, sizeof(*Shared));
	SpinLockInit(&Shared->mutex);
	ConditionVariableInit(&Shared->ended);
	if (!IsUnderPostmaster)
		on_shmem_exit(nvm_vlog_kept_at_exit, Int32GetDatum(MyProcPid));
}

void
nvm_vlog_checkpoint_info(NvmCheckpointInfo *usable, NvmCheckpointInfo *last)
{
	SpinLockAcquire(&Shared->mutex);
	*usable = Shared->usable;
	*last = Shared->last;
	SpinLockRelease(&Shared->mutex);
}

/* ---- who wants one ---- */

static void
no_worker(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("no checkpoint of tables in memory can be made"),
			 errdetail("The worker \"nvm checkpointer\" does not run."),
			 errhint("Look at the server log. If there are no free worker processes, increase max_worker_processes and restart the server.")));
}

/*
 * How is the request getting on?  True: it is served.  ERROR: it has failed.  *worker
 * tells whether there is one.
 */
static bool
request_is_served(uint64 request, bool *worker)
{
	char		problem[sizeof(Shared->problem)];
	bool		served;
	bool		failed;
	int			code;

	SpinLockAcquire(&Shared->mutex);
	served = Shared->served >= request;
	failed = Shared->failed >= request;
	code = Shared->errcode;
	memcpy(problem, Shared->problem, sizeof(problem));
	*worker = Shared->worker != NULL;
	SpinLockRelease(&Shared->mutex);
	if (!served && failed)
		ereport(ERROR,
				(errcode(code),
				 errmsg("the checkpoint of tables in memory has failed: %s", problem),
				 errdetail("The one before it still counts, and so does the log since then.")));
	return served;
}

/*
 * See nvm_log_register_checkpointer.  DDL waits for it, and others for DDL.
 */
void
nvm_vlog_ask_checkpoint(bool wait)
{
	if (wait)
		nvm_vlog_checkpoint(true);
	else
		(void) nvm_vlog_request_checkpoint(false);
}

/*
 * See vlog_impl.h.  One that is being made now has to come to its end first.
 */
uint64
nvm_vlog_request_checkpoint(bool urgent)
{
	uint64		request;
	Latch	   *worker;

	SpinLockAcquire(&Shared->mutex);
	request = ++Shared->requested;
	if (urgent)
		Shared->urgent = request;
	worker = Shared->worker;
	SpinLockRelease(&Shared->mutex);
	if (worker != NULL)
		SetLatch(worker);
	return request;
}

bool
nvm_vlog_checkpoint_is_urgent(void)
{
	bool		urgent;

	SpinLockAcquire(&Shared->mutex);
	urgent = Shared->urgent > Max(Shared->served, Shared->failed);
	SpinLockRelease(&Shared->mutex);
	return urgent;
}

bool
nvm_vlog_has_checkpoint(uint64 request, bool *failed)
{
	bool		served;

	SpinLockAcquire(&Shared->mutex);
	served = Shared->served >= request;
	*failed = Shared->failed >= request;
	SpinLockRelease(&Shared->mutex);
	return served;
}

/*
 * See vlog_impl.h.  Who makes one says so first, and then looks whether he may.
 */
bool
nvm_vlog_checkpoint_runs(void)
{
	bool		runs;

	SpinLockAcquire(&Shared->mutex);
	runs = Shared->last.state == NVM_CHECKPOINT_RUNNING && Shared->worker != NULL;
	SpinLockRelease(&Shared->mutex);
	return runs;
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_require_may_checkpoint(void)
{
	if (!nvm_log_checkpoint_may_begin())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("tables in memory are being rebuilt from the log")));
}

/*
 * See nvm_vlog.h.
 */
void
nvm_vlog_checkpoint(bool urgent)
{
	TimestampTz since = GetCurrentTimestamp();
	uint64		request;
	bool		there;

	/* without a log there are no tables either */
	if (!nvm_log_has_begun())
		return;
	nvm_log_require_whole();
	request = nvm_vlog_request_checkpoint(urgent);
	while (!request_is_served(request, &there))
	{
		if (there)
			since = GetCurrentTimestamp();
		else if (TimestampDifferenceExceeds(since, GetCurrentTimestamp(), BEGIN_SECONDS * 1000))
			no_worker();
		(void) ConditionVariableTimedSleep(&Shared->ended, LOOK_MS, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
}

/* ---- the worker: what others see of it ---- */

void
nvm_vlog_tell_progress(const NvmVlogWalk *walk)
{
	SpinLockAcquire(&Shared->mutex);
	Shared->last.rows = walk->rows;
	Shared->last.bytes = walk->bytes;
	Shared->last.files = walk->nfiles;
	Shared->last.blocks = walk->blocks;
	Shared->last.blocks_total = Max(walk->blocks, walk->blocks_total);
	SpinLockRelease(&Shared->mutex);
}

static void
tell_begin(const NvmVlogWalk *walk)
{
	SpinLockAcquire(&Shared->mutex);
	memset(&Shared->last, 0, sizeof(Shared->last));
	Shared->last.state = NVM_CHECKPOINT_RUNNING;
	Shared->last.number = walk->number;
	Shared->last.started = walk->started;
	Shared->last.begin = walk->begin.begin;
	Shared->last.decided = walk->begin.decided;
	SpinLockRelease(&Shared->mutex);
}

static void
tell_usable(const NvmLogCheckpoint *checkpoint, uint64 volume)
{
	SpinLockAcquire(&Shared->mutex);
	Shared->last.state = NVM_CHECKPOINT_USABLE;
	Shared->last.finished = checkpoint->finished;
	Shared->last.end = checkpoint->end;
	Shared->usable = Shared->last;
	Shared->volume = volume;
	SpinLockRelease(&Shared->mutex);
}

/*
 * Whoever has asked goes on, when what is superfluous is gone, too.
 */
static void
tell_served(uint64 request)
{
	SpinLockAcquire(&Shared->mutex);
	Shared->served = request;
	SpinLockRelease(&Shared->mutex);
	ConditionVariableBroadcast(&Shared->ended);
}

static void
tell_failed(const ErrorData *error, uint64 request)
{
	SpinLockAcquire(&Shared->mutex);
	Shared->last.state = NVM_CHECKPOINT_FAILED;
	Shared->last.finished = GetCurrentTimestamp();
	Shared->failed = request;
	Shared->errcode = error->sqlerrcode;
	strlcpy(Shared->problem, error->message != NULL ? error->message : "unknown error",
			sizeof(Shared->problem));
	SpinLockRelease(&Shared->mutex);
	ConditionVariableBroadcast(&Shared->ended);
}

/*
 * The checkpoint that counts cannot be read.  The region is whole, so another one may
 * take its place.  Until then its data files stay, whichever they are.
 */
static bool
is_damaged(const NvmLogCheckpoint **checkpoint)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool damaged = false;

	PG_TRY();
	{
		*checkpoint = nvm_vlog_read_checkpoint();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		AtEOXact_Files(false);
		ereport(LOG,
				(errcode(error->sqlerrcode),
				 errmsg("nvm: %s", error->message),
				 errdetail("A new checkpoint of tables in memory will replace it. If the server is stopped before, they are lost.")));
		*checkpoint = NULL;
		damaged = true;
	}
	PG_END_TRY();
	return damaged;
}

/*
 * See vlog_impl.h.  NULL: none.
 */
void
nvm_vlog_note_usable(const NvmLogCheckpoint *checkpoint)
{
	SpinLockAcquire(&Shared->mutex);
	memset(&Shared->usable, 0, sizeof(Shared->usable));
	if (checkpoint != NULL)
	{
		Shared->usable.state = NVM_CHECKPOINT_USABLE;
		Shared->usable.number = checkpoint->number;
		Shared->usable.started = checkpoint->started;
		Shared->usable.finished = checkpoint->finished;
		Shared->usable.begin = checkpoint->begin;
		Shared->usable.decided = checkpoint->decided;
		Shared->usable.end = checkpoint->end;
		Shared->usable.rows = checkpoint->rows;
		Shared->usable.bytes = checkpoint->bytes;
		Shared->usable.files = checkpoint->nfiles;
	}
	SpinLockRelease(&Shared->mutex);
}

/*
 * What an earlier run, or life of the worker, has left usable.
 */
static void
note_what_is_usable(void)
{
	const NvmLogCheckpoint *checkpoint;

	rows_are_known = !is_damaged(&checkpoint);
	nvm_vlog_note_usable(checkpoint);
}

/* ---- the steps of a checkpoint ---- */

static NvmLogCheckpoint *
form_checkpoint(const NvmVlogWalk *walk, NvmLogPosition end)
{
	Size		snapshot = walk->snapshot == NULL ? 0 :
	NVM_LOG_SNAPSHOT_LENGTH(walk->snapshot->nxip);
	NvmLogCheckpoint *checkpoint = palloc0(NVM_LOG_CHECKPOINT_LENGTH(walk->nfiles, snapshot));

	checkpoint->magic = NVM_LOG_CHECKPOINT_MAGIC;
	checkpoint->version = snapshot > 0 ? NVM_LOG_CHECKPOINT_VERSION : 1;
	checkpoint->generation = walk->begin.generation;
	memcpy(checkpoint->uuid, NvmPool->uuid, sizeof(checkpoint->uuid));
	checkpoint->number = walk->number;
	checkpoint->begin = walk->begin.begin;
	checkpoint->decided = walk->begin.decided;
	checkpoint->end = end;
	checkpoint->rows = walk->rows;
	checkpoint->bytes = walk->bytes;
	checkpoint->started = walk->started;
	checkpoint->finished = GetCurrentTimestamp();
	checkpoint->file = walk->begin.file;
	checkpoint->nfiles = walk->nfiles;
	memcpy((char *) checkpoint + NVM_LOG_CHECKPOINT_SIZE, walk->side,
		   walk->nfiles * sizeof(NvmLogSide));
	checkpoint->snapshot = (uint32) snapshot;
	if (snapshot > 0)
		memcpy(unconstify(NvmLogSnapshot *, NVM_LOG_CHECKPOINT_SNAPSHOT(checkpoint)),
			   walk->snapshot, snapshot);
	return checkpoint;
}

static void
tell_log(const NvmLogCheckpoint *checkpoint, const NvmVlogNeeded *needed,
		 const NvmVlogRetired *retired)
{
	double		seconds = Max(checkpoint->finished - checkpoint->started, 1) / 1e6;

	ereport(LOG,
			(errmsg("nvm: checkpoint %llu of tables in memory: %llu rows, %llu bytes in %u files, %.3f s, %.1f MB/s",
					(unsigned long long) checkpoint->number,
					(unsigned long long) checkpoint->rows,
					(unsigned long long) checkpoint->bytes, checkpoint->nfiles,
					seconds, checkpoint->bytes / seconds / 1048576.0),
			 errdetail("The log is needed from position %llu on; removed %u files of it, %u side files and %u files of earlier checkpoints.",
					   (unsigned long long) needed->begin, retired->nlogs, retired->nsides,
					   retired->nrows)));
}

/*
 * One checkpoint.  README.md, "Checkpoints".
 */
static void
make_checkpoint(uint64 request)
{
	NvmVlogWalk walk = {0};
	NvmVlogRetired retired = {0};
	NvmLogCheckpoint *checkpoint;
	NvmVlogNeeded needed;
	NvmLogPosition end;
	uint64		volume;

	became_usable = false;
	/* what one that came to no end has left takes room that this one wants */
	if (rows_are_known)
		nvm_vlog_retire_rows(Shared->usable.number, &retired);
	/* a directory that cannot be read may have files of one that was given up */
	walk.number = Max(Max(Shared->usable.number, Shared->last.number), nvm_vlog_highest_checkpoint()) + 1;
	walk.started = GetCurrentTimestamp();
	volume = nvm_log_volume();
	nvm_log_tell_checkpoint_begins();
	nvm_log_checkpoint_begin(&walk.begin);
	nvm_vlog_find_begin(&walk.begin);
	tell_begin(&walk);
	nvm_vlog_require_may_checkpoint();
	NVM_FAILPOINT("ckpt-begin");
	nvm_vlog_walk(&walk);
	NVM_FAILPOINT("ckpt-walked");
	end = nvm_log_inserted();
	nvm_log_wait_for(end);
	checkpoint = form_checkpoint(&walk, end);
	nvm_vlog_require_may_checkpoint();
	/* an ERROR may come when the switch is made: then either may count */
	rows_are_known = false;
	nvm_vlog_switch_checkpoint(checkpoint, walk.directories);
	tell_usable(checkpoint, volume);
	became_usable = rows_are_known = true;
	nvm_log_tell_checkpoint_usable();

	memset(&retired, 0, sizeof(retired));
	nvm_vlog_retire_rows(checkpoint->number, &retired);
	nvm_vlog_needed(checkpoint, &needed);
	nvm_vlog_retire_log(&needed, &retired);
	nvm_vlog_retire_orphans(&needed, &retired);
	tell_log(checkpoint, &needed, &retired);
	tell_served(request);
}

/*
 * The current ERROR has ended a checkpoint.  Commits go on, and the one before it
 * counts.  Returns unless somebody has cancelled the worker.
 */
static void
checkpoint_failed(MemoryContext context, uint64 request)
{
	ErrorData  *error;

	HOLD_INTERRUPTS();
	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	LWLockReleaseAll();
	ConditionVariableCancelSleep();
	AbortCurrentTransaction();
	AtEOXact_Files(false);
	MemoryContextSwitchTo(context);
	nvm_vlog_walk_forget();
	if (became_usable)
		tell_served(request);
	else
		tell_failed(error, request);
	ereport(LOG,
			(errcode(error->sqlerrcode),
			 became_usable ?
			 errmsg("nvm: not all that a checkpoint of tables in memory makes superfluous was removed: %s",
					error->message) :
			 errmsg("nvm: a checkpoint of tables in memory has failed: %s", error->message),
			 error->detail != NULL ? errdetail_internal("%s", error->detail) : 0,
			 became_usable ? 0 :
			 errhint("The one before it still counts, and so does the log since then.")));
	RESUME_INTERRUPTS();
}

static bool
checkpoint_or_fail(uint64 request)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "nvm checkpoint",
												  ALLOCSET_DEFAULT_SIZES);
	volatile bool done = false;

	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		make_checkpoint(request);
		done = true;
	}
	PG_CATCH();
	{
		checkpoint_failed(context, request);
	}
	PG_END_TRY();
	nvm_vlog_walk_forget();
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextDelete(context);
	return done;
}

/* ---- when ---- */

/*
 * Is there reason for a checkpoint?  *request: up to which it will serve.
 */
static bool
is_due(TimestampTz not_before, TimestampTz idle_since, uint64 *request)
{
	TimestampTz now = GetCurrentTimestamp();
	NvmLogPosition from;
	NvmLogPosition begin;
	uint64		volume;
	bool		asked;

	SpinLockAcquire(&Shared->mutex);
	*request = Shared->requested;
	asked = *request > Max(Shared->served, Shared->failed);
	from = Max(Shared->usable.decided, NVM_LOG_FIRST);
	begin = Shared->usable.begin;
	volume = Max(Shared->volume, from);
	idle_since = Max(idle_since, Shared->usable.finished);
	SpinLockRelease(&Shared->mutex);
	if (asked)
		return true;
	if (now < not_before)
		return false;
	/* a file of the log has vanished: see log/README.md */
	if (nvm_log_lost_before() > begin)
		return true;
	if (nvm_log_inserted() <= from)
		return false;
	return nvm_log_volume() - volume >= (uint64) checkpoint_log_size * 1024 * 1024 ||
		(checkpoint_interval > 0 &&
		 TimestampDifferenceExceeds(idle_since, now, checkpoint_interval * 1000));
}

bool
nvm_vlog_has_checkpointer(void)
{
	return *(Latch *volatile *) &Shared->worker != NULL;
}

/*
 * Be the one.  False if there is another.
 */
static bool
become_worker(void)
{
	bool		alone;

	SpinLockAcquire(&Shared->mutex);
	alone = Shared->worker == NULL;
	if (alone)
		Shared->worker = MyLatch;
	SpinLockRelease(&Shared->mutex);
	return alone;
}

static void
leave(int code, Datum arg)
{
	SpinLockAcquire(&Shared->mutex);
	Shared->worker = NULL;
	if (Shared->last.state == NVM_CHECKPOINT_RUNNING)
		Shared->last.state = NVM_CHECKPOINT_FAILED;
	SpinLockRelease(&Shared->mutex);
	ConditionVariableBroadcast(&Shared->ended);
}

/*
 * The process has no database, and looks at tables of all: what its snapshots show stays in
 * each of them.  PostgreSQL has this flag for walsenders.
 */
static void
affect_all_horizons(void)
{
	Assert(!TransactionIdIsValid(MyProc->xmin));
	LWLockAcquire(ProcArrayLock, LW_EXCLUSIVE);
	MyProc->statusFlags |= PROC_AFFECTS_ALL_HORIZONS;
	ProcGlobal->statusFlags[MyProc->pgxactoff] = MyProc->statusFlags;
	LWLockRelease(ProcArrayLock);
}

/*
 * Entry point of the worker.
 */
void
nvm_checkpointer_main(Datum main_arg)
{
	TimestampTz not_before = 0;
	TimestampTz since;
	bool		known = false;

	nvm_worker_start();
	if (!nvm_log_is_on || !nvm_log_has_begun() || !become_worker())
		proc_exit(0);
	on_shmem_exit(leave, (Datum) 0);
	affect_all_horizons();
	/* its transactions only look */
	SetConfigOption("synchronous_commit", "off", PGC_POSTMASTER, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_isolation", "read committed", PGC_POSTMASTER,
					PGC_S_OVERRIDE);
	since = GetCurrentTimestamp();

	do
	{
		uint64		request;

		if (!nvm_log_checkpoint_may_begin())
			continue;
		if (!known)
		{
			MemoryContextSwitchTo(TopMemoryContext);
			note_what_is_usable();
			known = true;
		}
		if (is_due(not_before, since, &request) && !checkpoint_or_fail(request))
			not_before = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), RETRY_SECONDS * 1000);
	} while (nvm_worker_sleep(known ? LOOK_MS : FIRST_LOOK_MS));
	nvm_worker_end();
}
