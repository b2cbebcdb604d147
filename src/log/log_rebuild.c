/*-------------------------------------------------------------------------
 *
 * log_rebuild.c
 *	  Has the volatile region everything?  Its state after a loss, and waiting.
 *
 * vlog/ rebuilds the region and says here how far it is.  Everybody else asks
 * before he comes to a storage of the region for the first time.  Once a storage is
 * open it stays so as long as this shared memory does.  So nobody asks twice.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat/nvm_compat_vacuum.h"
#include "log/log_impl.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"
#include "postmaster/autovacuum.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

/* pauses between two looks, in milliseconds: from one to the other, doubling */
#define FIRST_PAUSE				10
#define LONGEST_PAUSE			100

/* how long the worker may take to begin, in milliseconds */
#define BEGIN_TIMEOUT			60000

/* starts it, unless this process has */
static void (*recovery_worker) (void) = NULL;

/* what it does when the server is stopped */
static void (*recovery_at_stop) (void) = NULL;

NvmLogRebuild
nvm_log_rebuild_state(void)
{
	uint32		state;

	if (!nvm_log_is_on)
		return NVM_LOG_WHOLE;
	state = *(volatile uint32 *) &nvm_log_memory->rebuild;
	pg_read_barrier();			/* rows, and the reason, were stored before */
	return (NvmLogRebuild) state;
}

/*
 * See nvm_log.h.  problem: the reason if the state is FAILED, else NULL; a clause.
 */
void
nvm_log_set_rebuild_state(NvmLogRebuild state, const char *problem)
{
	if (problem != NULL)
		strlcpy(NvmLog->rebuild_problem, problem, sizeof(NvmLog->rebuild_problem));
	pg_memory_barrier();
	*(volatile uint32 *) &nvm_log_memory->rebuild = (uint32) state;
}

/* ---- the worker ---- */

void
nvm_log_register_recovery(void (*start_worker) (void), void (*at_stop) (void))
{
	recovery_worker = start_worker;
	recovery_at_stop = at_stop;
}

/*
 * See nvm_log.h.  A server that does not use the log has no such worker.
 */
void
nvm_log_watch_recovery(void)
{
	if (nvm_log_is_on && nvm_log_has_begun() &&
		pg_atomic_read_u32(&NvmLog->recovery_pid) == 0)
		recovery_worker();
}

static void
recovery_ends(int code, Datum arg)
{
	pg_atomic_write_u32(&NvmLog->recovery_pid, 0);
}

/*
 * See nvm_log.h.  The keeper that has started this worker may have ended, and the next
 * one have started another.
 */
bool
nvm_log_become_recovery(void)
{
	uint32		nobody = 0;

	if (!nvm_log_is_on ||
		!pg_atomic_compare_exchange_u32(&NvmLog->recovery_pid, &nobody, (uint32) MyProcPid))
		return false;
	on_shmem_exit(recovery_ends, (Datum) 0);
	return true;
}

/*
 * See nvm_log.h.  Who does it refuses writers first.
 */
bool
nvm_log_stop_instead(void)
{
	if (!nvm_log_is_on || !nvm_log_has_begun() || nvm_log_refuses_writers())
		return true;
	if (!nvm_log_become_recovery())
		return false;
	/* it may have done so, and ended, since we looked */
	if (!nvm_log_refuses_writers())
		recovery_at_stop();
	return true;
}

NvmLogProgress *
nvm_log_progress(void)
{
	return &NvmLog->progress;
}

const char *
nvm_log_rebuild_problem(void)
{
	return NvmLog->rebuild_problem;
}

/* ---- waiting ---- */

typedef struct Waiting
{
	TimestampTz since;
	long		pause;			/* the next one */
	bool		looked;			/* for nvm_log_replay_look */
} Waiting;

static void
rebuild_has_failed(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("tables in memory are not available"),
			 NvmLog->rebuild_problem[0] == '\0' ?
			 errdetail("They could not be rebuilt from the log. The server log says why.") :
			 errdetail("They could not be rebuilt from the log: %s.", NvmLog->rebuild_problem),
			 errhint("Put back what is missing or damaged in the directory of the log, or remove the cause, and restart the server. Other tables are not concerned. Of files whose name ends in .kept the one with the shorter name may be removed: UNLOGGED tables are empty then, and no others. If anything else is lost for good, call nvm.reset_log() before the restart: that gives up the rows of all tables in memory, and of no others.")));
}

static void
rebuild_has_not_begun(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("tables in memory are not available"),
			 errdetail("They are to be rebuilt from the log, and the worker \"nvm log recovery\" has not begun."),
			 errhint("Look at the server log. If there are no free worker processes, increase max_worker_processes and restart the server.")));
}

/*
 * The user does not want to wait.
 */
static void
is_being_rebuilt(const char *name)
{
	NvmLogProgress *progress = nvm_log_progress();

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_IN_USE),
			 name != NULL ?
			 errmsg("\"%s\" is being rebuilt from the log", name) :
			 errmsg("tables in memory are being rebuilt from the log"),
			 errdetail("%llu of %llu bytes are read, %llu of %llu tables are there.",
					   (unsigned long long) pg_atomic_read_u64(&progress->bytes),
					   (unsigned long long) pg_atomic_read_u64(&progress->bytes_total),
					   (unsigned long long) pg_atomic_read_u64(&progress->tables),
					   (unsigned long long) pg_atomic_read_u64(&progress->tables_total)),
			 errhint("Try again later, or set nvm.wait_for_recovery = on to wait. View nvm.log_recovery shows the progress.")));
}

/*
 * One look: ERROR if what is waited for cannot come about; else sleep.  database: whose
 * tables are waited for, or InvalidOid.
 */
static void
pause_for_rebuild(Waiting *w, Oid database, const char *name)
{
	NvmLogRebuild state = nvm_log_rebuild_state();

	if (state == NVM_LOG_FAILED)
		rebuild_has_failed();
	if (state == NVM_LOG_TO_REBUILD &&
		TimestampDifferenceExceeds(w->since, GetCurrentTimestamp(), BEGIN_TIMEOUT))
		rebuild_has_not_begun();
	nvm_log_replay_look(database, &w->looked);
	/* autovacuum comes back, and has other tables to analyze meanwhile */
	if (!nvm_wait_for_recovery || NvmIsAutovacuum())
		is_being_rebuilt(name);
	CHECK_FOR_INTERRUPTS();
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 w->pause, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	w->pause = Min(w->pause * 2, LONGEST_PAUSE);
}

/*
 * See nvm_log.h.  The wait may take as long as the log is large.  It can be
 * cancelled.  The worker takes no heavyweight lock, so ours do not harm.
 */
void
nvm_log_require_open_slow(uint32 dir, uint64 creation, const char *name)
{
	Waiting		w = {.since = GetCurrentTimestamp(),.pause = FIRST_PAUSE};

	while (!nvm_log_is_open(dir, creation))
		pause_for_rebuild(&w, nvm_dir_entry(dir)->database, name);
}

void
nvm_log_require_whole(void)
{
	Waiting		w = {.since = GetCurrentTimestamp(),.pause = FIRST_PAUSE};

	while (!nvm_log_is_whole())
		pause_for_rebuild(&w, InvalidOid, NULL);
}

void
nvm_log_require_opening(void)
{
	Waiting		w = {.since = GetCurrentTimestamp(),.pause = FIRST_PAUSE};

	while (!nvm_log_is_whole() && !nvm_log_is_opening())
		pause_for_rebuild(&w, MyDatabaseId, NULL);
}

/* ---- opening ---- */

/*
 * See nvm_log.h.  It does not end with the region being whole, nor with a death.
 */
bool
nvm_log_is_opening(void)
{
	bool		opening = *(volatile uint32 *) &nvm_log_memory->opening != 0;

	pg_read_barrier();
	return opening;
}

bool
nvm_log_is_closed(uint32 dir, uint64 creation)
{
	bool		closed = *(volatile uint64 *) &nvm_log_memory->closed[dir] == creation;

	pg_read_barrier();			/* rows were stored before */
	return closed;
}

void
nvm_log_close(uint32 dir, uint64 creation)
{
	nvm_log_memory->closed[dir] = creation;
	pg_memory_barrier();
}

void
nvm_log_begin_opening(uint64 stamp)
{
	nvm_log_memory->rebuild_stamp = stamp;
	pg_memory_barrier();
	*(volatile uint32 *) &nvm_log_memory->opening = 1;
}

void
nvm_log_open(uint32 dir, uint64 creation)
{
	pg_memory_barrier();
	if (nvm_log_memory->closed[dir] == creation)
		*(volatile uint64 *) &nvm_log_memory->closed[dir] = 0;
}

void
nvm_log_note_played(Oid database)
{
	pg_memory_barrier();
	*(volatile uint32 *) &nvm_log_memory->played = database;
	pg_memory_barrier();
}

/*
 * The database's word, Oid and tries, or one that is 0; NULL: there is none.
 */
static volatile uint64 *
tries_of(Oid database)
{
	volatile uint64 *words = nvm_log_memory->tries;
	volatile uint64 *unused = NULL;

	for (int i = 0; i < NVM_LOG_REPLAYED; i++)
	{
		if ((Oid) (words[i] >> 32) == database)
			return &words[i];
		if (words[i] == 0)
			unused = &words[i];
	}
	return unused;
}

void
nvm_log_note_tries(Oid database, uint32 tries)
{
	volatile uint64 *word = tries_of(database);

	if (word != NULL)
	{
		memset(nvm_log_memory->playing[word - nvm_log_memory->tries], 0, sizeof(nvm_log_memory->playing[0]));
		*word = tries == 0 ? 0 : (uint64) database << 32 | tries;
	}
	pg_memory_barrier();
}

uint32
nvm_log_tries(Oid database)
{
	volatile uint64 *word = tries_of(database);

	return word == NULL ? 0 : (uint32) *word;
}

void
nvm_log_forget_tries_but(const Oid *databases, int n)
{
	volatile uint64 *words = nvm_log_memory->tries;

	for (int i = 0; i < NVM_LOG_REPLAYED; i++)
	{
		bool		found = false;

		for (int j = 0; j < n && !found; j++)
			found = (Oid) (words[i] >> 32) == databases[j];
		if (!found)
			words[i] = 0;
	}
}

void
nvm_log_note_playing(Oid database, int player, NvmLogPosition position)
{
	volatile uint64 *word = tries_of(database);

	if (word != NULL && *word != 0)
		*(volatile NvmLogPosition *) &nvm_log_memory->playing[word - nvm_log_memory->tries][player] = position;
	pg_memory_barrier();
}

int
nvm_log_list_playing(Oid database, NvmLogPosition *list)
{
	volatile uint64 *word = tries_of(database);
	int			n = 0;

	if (word == NULL || *word == 0)
		return 0;
	for (int i = 0; i < NVM_LOG_PLAYERS; i++)
	{
		NvmLogPosition position = nvm_log_memory->playing[word - nvm_log_memory->tries][i];

		if (position != 0)
			list[n++] = position;
	}
	return n;
}

Oid
nvm_log_played(void)
{
	return *(volatile uint32 *) &nvm_log_memory->played;
}

uint64
nvm_log_rebuild_stamp(void)
{
	return nvm_log_is_opening() ? nvm_log_memory->rebuild_stamp : 0;
}

NvmLogPosition
nvm_log_rebuild_limit(void)
{
	return nvm_log_memory->rebuild_limit;
}

/*
 * See nvm_log.h.
 */
void
nvm_log_note_first_xid(uint64 fxid)
{
	if (nvm_log_is_on && nvm_log_memory->first_xid == 0)
		nvm_log_memory->first_xid = fxid;
}

uint64
nvm_log_first_xid(void)
{
	return nvm_log_memory->first_xid;
}
