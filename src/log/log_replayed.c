/*-------------------------------------------------------------------------
 *
 * log_replayed.c
 *	  Databases whose tables a recovery brings back by calls: how far each is.
 *
 * vlog/ says which they are, replay/ what came of it; sessions that come to their tables
 * learn here why these are closed, and ask how to go on.  It is about this run: a death
 * forgets it, and the next recovery finds the same databases in the log.
 *
 * vlog/README.md, "Databases that are replayed".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "commands/dbcommands.h"
#include "log/log_impl.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

bool		nvm_log_replays = false;

/* protected by the lock: an entry is too long to be copied under a spinlock */
typedef struct NvmLogReplayedShared
{
	LWLock	   *lock;
	bool		checkpoint_may_begin;
	int			n;
	NvmLogReplayed database[NVM_LOG_REPLAYED];
} NvmLogReplayedShared;

static NvmLogReplayedShared *shared = NULL;

static const char *const state_names[] = {
	[NVM_LOG_REPLAY_NONE] = "none",
	[NVM_LOG_REPLAY_WAITING] = "waiting",
	[NVM_LOG_REPLAY_RUNNING] = "replaying",
	[NVM_LOG_REPLAY_STOPPED] = "stopped",
	[NVM_LOG_REPLAY_RESUMED] = "resumed",
	[NVM_LOG_REPLAY_GIVEN_UP] = "given up",
	[NVM_LOG_REPLAY_DONE] = "done"
};

/*
 * See log_impl.h.
 */
Size
nvm_log_replayed_shmem_size(void)
{
	return MAXALIGN(sizeof(NvmLogReplayedShared));
}

void
nvm_log_replayed_shmem_startup(LWLock *lock)
{
	bool		found;

	shared = ShmemInitStruct("pg_nvm replayed databases", sizeof(NvmLogReplayedShared), &found);
	if (found)
		return;
	memset(shared, 0, sizeof(NvmLogReplayedShared));
	shared->lock = lock;
}

const char *
nvm_log_replay_name(NvmLogReplay state)
{
	return state_names[state];
}

/* ---- states ---- */

/*
 * Caller holds the lock.
 */
static NvmLogReplayed *
find(Oid database)
{
	for (int i = 0; i < shared->n; i++)
	{
		if (shared->database[i].database == database)
			return &shared->database[i];
	}
	return NULL;
}

/*
 * Room for another one, perhaps in the place of one that is done; NULL: there is none.  Caller
 * holds the lock.
 */
static NvmLogReplayed *
make(void)
{
	if (shared->n < NVM_LOG_REPLAYED)
		return &shared->database[shared->n++];
	for (int i = 0; i < shared->n; i++)
	{
		if (shared->database[i].state == NVM_LOG_REPLAY_DONE)
			return &shared->database[i];
	}
	return NULL;
}

/*
 * See nvm_log.h.
 */
bool
nvm_log_replay_note(Oid database, NvmLogReplay state)
{
	NvmLogReplayed *d;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	d = find(database);
	if (d == NULL)
	{
		d = make();
		if (d != NULL)
		{
			memset(d, 0, sizeof(*d));
			d->database = database;
		}
	}
	if (d != NULL)
		d->state = state;
	LWLockRelease(shared->lock);
	return d != NULL;
}

/*
 * See nvm_log.h.
 */
void
nvm_log_replay_tell(const NvmLogReplayed *what)
{
	NvmLogReplayed *d;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	d = find(what->database);
	if (d != NULL)
		*d = *what;
	LWLockRelease(shared->lock);
}

/*
 * See nvm_log.h.
 */
NvmLogReplay
nvm_log_replay_state(Oid database, NvmLogReplayed *what)
{
	NvmLogReplay state = NVM_LOG_REPLAY_NONE;
	NvmLogReplayed *d;

	LWLockAcquire(shared->lock, LW_SHARED);
	d = find(database);
	if (d != NULL)
	{
		state = d->state;
		if (what != NULL)
			*what = *d;
	}
	LWLockRelease(shared->lock);
	return state;
}

/*
 * See nvm_log.h.
 */
int
nvm_log_replay_list(NvmLogReplayed *list)
{
	int			n;

	LWLockAcquire(shared->lock, LW_SHARED);
	n = shared->n;
	memcpy(list, shared->database, n * sizeof(NvmLogReplayed));
	LWLockRelease(shared->lock);
	return n;
}

/*
 * See nvm_log.h.
 */
bool
nvm_log_replay_ask(Oid database, NvmLogReplay state)
{
	NvmLogReplayed *d;
	bool		was_stopped;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	d = find(database);
	was_stopped = d != NULL && d->state == NVM_LOG_REPLAY_STOPPED;
	if (was_stopped)
	{
		d->state = state;
		d->tries = 0;
	}
	LWLockRelease(shared->lock);
	return was_stopped;
}

/* ---- checkpoints ---- */

/*
 * See nvm_log.h.
 */
void
nvm_log_let_checkpoint_begin(bool may)
{
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	shared->checkpoint_may_begin = may;
	LWLockRelease(shared->lock);
}

bool
nvm_log_checkpoint_may_begin(void)
{
	bool		may;

	if (nvm_log_is_whole())
		return true;
	LWLockAcquire(shared->lock, LW_SHARED);
	may = shared->checkpoint_may_begin;
	LWLockRelease(shared->lock);
	return may && nvm_log_rebuild_state() == NVM_LOG_REBUILDING;
}

/* ---- who waits ---- */

static void
has_stopped(const NvmLogReplayed *d, bool whole)
{
	char	   *name = IsTransactionState() ? get_database_name(d->database) : NULL;

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 whole ? errmsg("tables in memory are not all available") :
			 errmsg("tables of nvm_cmdlog of this database are not available"),
			 errdetail("After the restart the calls of database \"%s\" were replayed up to position %llu of the log. There %s%s%s.",
					   name != NULL ? name : psprintf("%u", d->database),
					   (unsigned long long) d->position, d->call[0] != '\0' ? d->call : "the replay",
					   d->call[0] != '\0' ? " came to something else: " : " ended: ", d->message),
			 errhint("In that database a superuser may mend the function and call nvm.resume_replay(), or call nvm.end_replay() to go on with what was replayed, and give up the rest. View nvm.replayed_databases has the details.")));
}

/*
 * Has this process a lock on a table or index of its database that players may wait for?
 */
static bool
has_strong_lock(void)
{
	LockData   *locks = GetLockStatusData();
	bool		found = false;

	for (int i = 0; i < locks->nelements && !found; i++)
	{
		const		LockInstanceData *lock = &locks->locks[i];

		found = lock->pid == MyProcPid &&
			lock->locktag.locktag_type == LOCKTAG_RELATION &&
			lock->locktag.locktag_field1 == MyDatabaseId &&
			lock->locktag.locktag_field2 >= FirstNormalObjectId &&
			(lock->holdMask & (LOCKBIT_ON(ShareLock) | LOCKBIT_ON(ShareRowExclusiveLock) |
							   LOCKBIT_ON(ExclusiveLock) | LOCKBIT_ON(AccessExclusiveLock))) != 0;
	}
	pfree(locks->locks);
	pfree(locks);
	return found;
}

/*
 * See log_impl.h.  Who waits here waits for players, which deadlock detection does not know.
 */
void
nvm_log_replay_look(Oid database, bool *looked)
{
	NvmLogReplayed d[NVM_LOG_REPLAYED];
	int			n;

	if (*(volatile int *) &shared->n == 0)
		return;
	n = nvm_log_replay_list(d);
	for (int i = 0; i < n; i++)
	{
		if (d[i].state == NVM_LOG_REPLAY_STOPPED && (!OidIsValid(database) || d[i].database == database))
			has_stopped(&d[i], !OidIsValid(database));
		if (d[i].state == NVM_LOG_REPLAY_DONE)
			continue;

		/*
		 * of a template: the leader waits for a lock of the session's to
		 * connect
		 */
		if (d[i].database == database && database != MyDatabaseId)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("calls of database %u are being replayed", database),
					 errhint("Try again when view nvm.replayed_databases says that it is done.")));
		if (d[i].database != MyDatabaseId || *looked)
			continue;
		*looked = true;
		if (has_strong_lock())
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("calls of this database are being replayed"),
					 errdetail("The transaction holds locks of tables that the replay may wait for."),
					 errhint("Try again when view nvm.replayed_databases says that it is done.")));
	}
}
