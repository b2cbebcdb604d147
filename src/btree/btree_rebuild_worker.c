/*-------------------------------------------------------------------------
 *
 * btree_rebuild_worker.c
 *	  Background workers that rebuild indexes after a restart, and the view.
 *
 * The rebuilder has no database.  It looks for absent indexes and starts, for
 * each database that has some, workers that are connected to it, up to
 * nvm.index_rebuild_workers in all.  A worker takes one index after the other,
 * the most-used one first.  It passes over those that another process is at,
 * and those whose table is locked: nobody waits for one index while there are
 * others to be done, in this database or in another one.  When nothing is
 * absent the rebuilder sleeps until the next start.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/xact.h"
#include "btree/nvm_btree_persist.h"
#include "btree/nvm_btree_state.h"
#include "catalog/index.h"
#include "catalog/pg_class.h"
#include "funcapi.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "pool/nvm_pool.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"

PG_FUNCTION_INFO_V1(nvm_index_rebuilds);

/* how long after a failure it is tried again */
#define RETRY_SECONDS		30
/* when there is nothing left to do */
#define IDLE_SECONDS		3600
#define MAX_REBUILD_WORKERS	64
/* indexes that a worker passes over because they are locked, and for how long */
#define MAX_LOCKED			64
#define LOCKED_SECONDS		10

int			nvm_index_rebuild_workers = 2;

static const struct config_enum_entry relax_options[] = {
	{"auto", NVM_RELAX_AUTO, false},
	{"on", NVM_RELAX_ON, false},
	{"off", NVM_RELAX_OFF, false},
	{NULL, 0, false}
};

void
nvm_btree_define_settings(void)
{
	DefineCustomIntVariable("nvm.index_rebuild_workers",
							"Workers that rebuild indexes with persistence = none after a restart.",
							"They count against max_worker_processes.",
							&nvm_index_rebuild_workers,
							2, 1, MAX_REBUILD_WORKERS,
							PGC_SIGHUP,
							0,
							NULL, NULL, NULL);

	DefineCustomEnumVariable("nvm.relax_indexes",
							 "Whether an index is not kept durable while a transaction splits it again and again.",
							 "A crash meanwhile has it rebuilt from its table. auto: where the pool is made durable by msync.",
							 &nvm_index_relax_setting,
							 NVM_RELAX_AUTO, relax_options,
							 PGC_SUSET, 0, NULL, NULL, NULL);
}

void
nvm_btree_register_workers(void)
{
	nvm_register_worker("nvm index rebuilder", "nvm_rebuilder_main");
}

/*
 * See nvm_btree_persist.h.
 */
void
nvm_index_rebuilder_wake(void)
{
	struct Latch *rebuilder;

	pg_atomic_write_u32(&NvmIndexes->nabsent, PG_UINT32_MAX);
	pg_atomic_write_u32(&NvmIndexes->relaxed, 1);
	/* it looks after it has entered its latch */
	pg_memory_barrier();
	rebuilder = NvmIndexes->rebuilder;
	if (rebuilder != NULL)
		SetLatch(rebuilder);
}

/* ---- what is absent ---- */

typedef struct AbsentSearch
{
	Oid			database;		/* 0: all */
	Oid			other_than;		/* a best one is looked for elsewhere first */
	const uint32 *locked;		/* is not looked for among these */
	int			nlocked;
	uint32		nabsent;		/* not READY */
	uint64		nunits;			/* of those in the volatile region: that they
								 * are going to need */
	uint32		nidle;			/* of these, nobody is at them, nor have they
								 * failed */
	uint32		best;			/* most-used idle one, or 0 */
	uint32		uses;
	Oid			best_database;
} AbsentSearch;

/*
 * Is this one better than the best one until now?
 */
static bool
is_better(AbsentSearch *search, uint32 id, NvmDirEntry *entry)
{
	for (int i = 0; i < search->nlocked; i++)
	{
		if (search->locked[i] == id)
			return false;
	}
	if (search->best == 0)
		return true;
	if (OidIsValid(search->other_than) &&
		(entry->database == search->other_than) != (search->best_database == search->other_than))
		return entry->database != search->other_than;
	return entry->uses > search->uses;
}

/*
 * For nvm_dir_walk.
 */
static void
search_absent(uint32 id, NvmDirEntry *entry, void *arg)
{
	AbsentSearch *search = (AbsentSearch *) arg;
	NvmRelState *state = &nvm_relstates[id];
	uint32		index_state = pg_atomic_read_u32(&nvm_rel_index(state)->state);

	if (!nvm_index_restarts_empty(id, entry) ||
		(index_state != NVM_INDEXSTATE_ABSENT && index_state != NVM_INDEXSTATE_BUILDING) ||
		(OidIsValid(search->database) && entry->database != search->database))
		return;
	search->nabsent++;
	if (state->region == NVM_REGION_VOLATILE && entry->end == 0 &&
		pg_atomic_read_u32(&nvm_rel_index(state)->failed) != NVM_INDEXFAILED_ERROR)
		search->nunits += nvm_dir_claim_units(id);
	/* a worker would wait for the table */
	if (state->region == NVM_REGION_VOLATILE && !nvm_log_is_whole())
		return;
	if (index_state != NVM_INDEXSTATE_ABSENT || entry->end != 0 ||
		pg_atomic_read_u32(&nvm_rel_index(state)->failed) == NVM_INDEXFAILED_ERROR)
		return;
	search->nidle++;
	if (is_better(search, id, entry))
	{
		search->best = id;
		search->uses = entry->uses;
		search->best_database = entry->database;
	}
}

/*
 * In all databases; of those in which something is idle, rather in another one
 * than this.
 */
static AbsentSearch
find_absent(Oid other_than)
{
	AbsentSearch search = {.other_than = other_than};

	nvm_dir_walk(search_absent, &search);
	return search;
}

/*
 * In one database, but not these storages.
 */
static AbsentSearch
find_absent_in(Oid database, const uint32 *locked, int nlocked)
{
	AbsentSearch search = {.database = database,.locked = locked,.nlocked = nlocked};

	nvm_dir_walk(search_absent, &search);
	return search;
}

/*
 * See nvm_btree_persist.h.
 */
void
nvm_index_claim_room(void)
{
	nvm_region_claim(NVM_REBUILT_INDEXES, find_absent(InvalidOid).nunits);
}

static void
forgive_failure(uint32 id, NvmDirEntry *entry, void *arg)
{
	if (nvm_index_restarts_empty(id, entry))
		pg_atomic_write_u32(&nvm_rel_index(&nvm_relstates[id])->failed, NVM_INDEXFAILED_NOT);
}

/* ---- the rebuilder ---- */

/*
 * How many of our workers are still there?  Forgets the others.
 */
static int
count_workers(BackgroundWorkerHandle **handles)
{
	int			n = 0;

	for (int i = 0; i < MAX_REBUILD_WORKERS; i++)
	{
		pid_t		pid;

		if (handles[i] == NULL)
			continue;
		if (GetBackgroundWorkerPid(handles[i], &pid) == BGWH_STOPPED)
		{
			pfree(handles[i]);
			handles[i] = NULL;
		}
		else
			n++;
	}
	return n;
}

/*
 * One worker more, for this database.  False if there cannot be one.
 */
static bool
start_worker(Oid database, BackgroundWorkerHandle **handles)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "pg_nvm", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "nvm_rebuild_worker_main",
			sizeof(worker.bgw_function_name));
	snprintf(worker.bgw_name, sizeof(worker.bgw_name),
			 "nvm index rebuild worker for database %u", database);
	strlcpy(worker.bgw_type, "nvm index rebuild worker", sizeof(worker.bgw_type));
	worker.bgw_main_arg = ObjectIdGetDatum(database);
	worker.bgw_notify_pid = MyProcPid;
	for (int i = 0; i < MAX_REBUILD_WORKERS; i++)
	{
		if (handles[i] == NULL)
			return RegisterDynamicBackgroundWorker(&worker, &handles[i]);
	}
	return false;
}

/*
 * Start workers for what is idle, as many as there may be.  Returns how many.
 */
static int
start_workers(AbsentSearch search, int running, BackgroundWorkerHandle **handles)
{
	static Oid	last = InvalidOid;
	int			started = 0;

	/* a worker takes what is idle by itself: one for each will do */
	while (search.nidle > (uint32) started &&
		   running + started < nvm_index_rebuild_workers)
	{
		search = find_absent(last);
		if (search.best == 0 || !start_worker(search.best_database, handles))
			break;
		last = search.best_database;
		started++;
	}
	return started;
}

/*
 * Entry point of the rebuilder.
 */
void
nvm_rebuilder_main(Datum main_arg)
{
	BackgroundWorkerHandle *handles[MAX_REBUILD_WORKERS] = {NULL};
	TimestampTz last_start = 0;
	TimestampTz last_retry = GetCurrentTimestamp();
	uint32		nabsent = 0;	/* at the last start */
	int			pause = 0;		/* seconds after it */
	int			tries = 0;

	nvm_worker_start();
	NvmIndexes->rebuilder = MyLatch;
	pg_memory_barrier();
	for (;;)
	{
		int			running = count_workers(handles);
		TimestampTz now = GetCurrentTimestamp();
		AbsentSearch search = find_absent(InvalidOid);

		pg_atomic_write_u32(&NvmIndexes->nabsent, search.nabsent);
		nvm_region_claim(NVM_REBUILT_INDEXES, search.nunits);
		if (search.nabsent == 0)
		{
			/*
			 * None becomes so before the next start.  But should the
			 * postmaster start the server anew after a crash, it would not
			 * start a worker that had ended for good.
			 */
			if (!nvm_worker_sleep((nvm_index_end_relaxed(false) ? 1 : IDLE_SECONDS) * 1000))
				break;
			continue;
		}

		/*
		 * We are woken up when a worker ends.  The workers before may have
		 * come to nothing, because their database is gone or all that is left
		 * is locked.  Then others are not started at once.
		 */
		if (TimestampDifferenceExceeds(last_start, now, pause * 1000) &&
			start_workers(search, running, handles) > 0)
		{
			pause = search.nabsent == nabsent ? Min(Max(pause * 2, 1), RETRY_SECONDS) : 0;
			nabsent = search.nabsent;
			last_start = now;
		}
		if (TimestampDifferenceExceeds(last_retry, now, RETRY_SECONDS * 1000))
		{
			nvm_dir_walk(forgive_failure, NULL);
			last_retry = now;
		}
		(void) nvm_index_end_relaxed(false);
		if (!nvm_worker_sleep(1000))
			break;
	}
	/* the next start need not rebuild what is whole */
	NvmIndexes->rebuilder = NULL;
	pg_memory_barrier();
	while (nvm_index_end_relaxed(true) && tries++ == 0)
		 /* a backend may have been about to relax one */ ;
	nvm_worker_end();
}

/* ---- a worker ---- */

/*
 * Is this an index that is not kept up to date?  DROP INDEX CONCURRENTLY
 * leaves one when it was cut short, and so does REINDEX CONCURRENTLY.  The
 * index is never kept up to date again in the same storage: REINDEX makes
 * another one.  A backend that has locked the table before may still enter
 * rows, but it needs none of the older ones: queries do not use the index, and
 * others are not held to its uniqueness any more.
 */
static bool
is_unused(Relation index, uint32 dir)
{
	if (index->rd_index->indisready || nvm_index_cache(index)->dir != dir)
		return false;
	nvm_index_set_unused(&nvm_relstates[dir]);
	return true;
}

/*
 * Open the index of storage `dir` and its table.  NULL if there is none that is
 * to be rebuilt, or not any more; or if one of them is locked.
 */
static Relation
open_index_of(uint32 dir, Relation *heap, bool *locked)
{
	Oid			indexid = nvm_dir_entry(dir)->relation;
	Oid			relid = IndexGetRelation(indexid, true);
	Relation	index;

	*locked = false;
	if (!OidIsValid(relid))
		return NULL;
	*heap = nvm_open_unlocked(relid, locked);
	if (*heap == NULL)
		return NULL;
	index = nvm_open_unlocked(indexid, locked);
	if (index != NULL &&
		(index->rd_rel->relkind != RELKIND_INDEX || !nvm_relation_is_btree(index) ||
		 index->rd_index->indrelid != relid || RELATION_IS_OTHER_TEMP(index) ||
		 is_unused(index, dir) || nvm_index_cache(index)->dir != dir))
	{
		relation_close(index, AccessShareLock);
		index = NULL;
	}
	if (index == NULL)
		relation_close(*heap, AccessShareLock);
	return index;
}

/*
 * Rebuild the index of one storage, in a transaction.  Nothing is done if the
 * index is locked (false), or if another process is at it (true).
 */
static bool
rebuild_storage(uint32 dir)
{
	Relation	index;
	Relation	heap;
	bool		locked;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	index = open_index_of(dir, &heap, &locked);
	if (index == NULL && !locked)
		pg_atomic_write_u32(&nvm_rel_index(&nvm_relstates[dir])->failed, NVM_INDEXFAILED_ERROR);
	else if (index != NULL)
	{
		char	   *activity = psprintf("rebuilding index %s after a restart",
										RelationGetRelationName(index));

		pgstat_report_activity(STATE_RUNNING, activity);
		nvm_index_rebuild(index);
		relation_close(index, AccessShareLock);
		relation_close(heap, AccessShareLock);
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_activity(STATE_IDLE, NULL);
	return !locked;
}

/*
 * The same; an error goes to the log, and the index is left alone for a while.
 */
static bool
rebuild_or_report(uint32 dir, MemoryContext context)
{
	volatile bool done = true;

	PG_TRY();
	{
		done = rebuild_storage(dir);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		HOLD_INTERRUPTS();
		EmitErrorReport();
		FlushErrorState();
		AbortCurrentTransaction();
		RESUME_INTERRUPTS();
		pg_atomic_write_u32(&nvm_rel_index(&nvm_relstates[dir])->failed, NVM_INDEXFAILED_ERROR);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	return done;
}

/*
 * Until locks may have been released.
 */
static void
pause_worker(void)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 1000, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
}

/*
 * Settings for sessions that would end a long transaction, or let it wait for
 * others.  Some versions have some of them.
 */
static void
ignore_settings(void)
{
	static const char *const setting[][2] = {
		{"transaction_timeout", "0"},
		{"lock_timeout", "0"},
		{"default_transaction_isolation", "read committed"}
	};

	for (int i = 0; i < (int) lengthof(setting); i++)
	{
		if (GetConfigOption(setting[i][0], true, false) != NULL)
			SetConfigOption(setting[i][0], setting[i][1], PGC_SUSET, PGC_S_OVERRIDE);
	}
}

/*
 * Entry point of a worker; its argument is the database.
 */
void
nvm_rebuild_worker_main(Datum main_arg)
{
	Oid			database = DatumGetObjectId(main_arg);
	MemoryContext context = CurrentMemoryContext;
	uint32		locked[MAX_LOCKED];
	int			nlocked = 0;
	int			pauses = 0;

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, BGWORKER_BYPASS_ALLOWCONN);
	ignore_settings();

	for (;;)
	{
		AbsentSearch search = find_absent_in(database, locked, nlocked);

		CHECK_FOR_INTERRUPTS();
		if (search.best != 0 && nlocked < MAX_LOCKED)
		{
			if (!rebuild_or_report(search.best, context))
				locked[nlocked++] = search.best;
			continue;
		}
		/* the rebuilder comes back to it, after other databases */
		if (nlocked == 0 || pauses++ == LOCKED_SECONDS)
			break;
		nlocked = 0;
		pause_worker();
	}
	proc_exit(0);
}

/* ---- the view ---- */

typedef struct RebuildList
{
	Tuplestorestate *store;
	TupleDesc	desc;
} RebuildList;

/*
 * For nvm_dir_walk: indexes of this database that were not whole when the
 * server started, as far as anybody knows by now.
 */
static void
list_rebuild(uint32 id, NvmDirEntry *entry, void *arg)
{
	RebuildList *list = (RebuildList *) arg;
	NvmRelState *state = &nvm_relstates[id];
	uint32		index_state = pg_atomic_read_u32(&nvm_rel_index(state)->state);
	uint32		total = pg_atomic_read_u32(&nvm_rel_index(state)->total);
	bool		none = (entry->flags & NVM_DIR_REBUILT) != 0;
	bool		relaxed = NvmDirIsRelaxed(entry) ||
	pg_atomic_read_u32(&nvm_rel_index(state)->relaxed) != 0;
	Datum		values[6];
	bool		nulls[6] = {false};

	if (entry->kind != NVM_DIR_KIND_INDEX || entry->database != MyDatabaseId ||
		entry->end != 0 || (index_state == NVM_INDEXSTATE_NEW && !relaxed) ||
		(index_state == NVM_INDEXSTATE_READY && pg_atomic_read_u64(&nvm_rel_index(state)->usec) == 0 && !relaxed))
		return;
	values[0] = ObjectIdGetDatum(entry->relation);
	values[1] = CStringGetTextDatum(none ? "none" :
									relaxed || pg_atomic_read_u64(&nvm_rel_index(state)->xid) != 0 ? "full" :
									"leaves");
	values[2] = CStringGetTextDatum(relaxed && (index_state == NVM_INDEXSTATE_NEW ||
												index_state == NVM_INDEXSTATE_READY) ? "relaxed" :
									index_state == NVM_INDEXSTATE_READY ? "ready" :
									index_state == NVM_INDEXSTATE_UNUSED ? "unused" :
									index_state == NVM_INDEXSTATE_BUILDING ? "rebuilding" :
									pg_atomic_read_u32(&nvm_rel_index(state)->failed) == NVM_INDEXFAILED_ERROR ?
									"failed" : "waiting");
	values[3] = Int64GetDatum(pg_atomic_read_u32(&nvm_rel_index(state)->done));
	values[4] = Int64GetDatum(total);
	nulls[4] = index_state == NVM_INDEXSTATE_ABSENT || index_state == NVM_INDEXSTATE_UNUSED ||
		index_state == NVM_INDEXSTATE_NEW;
	values[5] = Float8GetDatum(pg_atomic_read_u64(&nvm_rel_index(state)->usec) / 1000.0);
	nulls[5] = index_state != NVM_INDEXSTATE_READY;
	tuplestore_putvalues(list->store, list->desc, values, nulls);
}

Datum
nvm_index_rebuilds(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	RebuildList list;

	nvm_table_require();
	InitMaterializedSRF(fcinfo, 0);
	list.store = rsinfo->setResult;
	list.desc = rsinfo->setDesc;
	nvm_dir_walk(list_rebuild, &list);
	return (Datum) 0;
}
