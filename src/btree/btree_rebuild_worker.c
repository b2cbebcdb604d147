/*-------------------------------------------------------------------------
 *
 * btree_rebuild_worker.c
 *	  Background workers that rebuild indexes after a restart, and the view.
 *
 * The rebuilder has no database.  It looks for absent indexes and starts, for
 * each database that has some, workers that are connected to it, up to
 * nvm.index_rebuild_workers in all.  A worker takes one index after the other,
 * the most-used one first.  When nothing is absent the rebuilder ends: no index
 * becomes so before the next start.
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
#include "catalog/index.h"
#include "catalog/pg_class.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(nvm_index_rebuilds);

/* how long after a failure it is tried again */
#define RETRY_SECONDS		30
#define MAX_REBUILD_WORKERS	64

int			nvm_index_rebuild_workers = 2;

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
}

void
nvm_btree_register_workers(void)
{
	nvm_register_worker("nvm index rebuilder", "nvm_rebuilder_main");
}

/* ---- what is absent ---- */

typedef struct AbsentSearch
{
	Oid			database;		/* 0: all */
	uint32		nabsent;		/* not READY */
	uint32		nidle;			/* of these, nobody is at them, nor have they failed */
	uint32		best;			/* most-used idle one, or 0 */
	uint32		uses;
	Oid			best_database;
} AbsentSearch;

/*
 * For nvm_dir_walk.
 */
static void
search_absent(uint32 id, NvmDirEntry *entry, void *arg)
{
	AbsentSearch *search = (AbsentSearch *) arg;
	NvmRelState *state = &nvm_relstates[id];
	uint32		index_state = pg_atomic_read_u32(&state->index_state);

	if ((entry->flags & NVM_DIR_REBUILT) == 0 ||
		(index_state != NVM_INDEXSTATE_ABSENT && index_state != NVM_INDEXSTATE_BUILDING) ||
		(OidIsValid(search->database) && entry->database != search->database))
		return;
	search->nabsent++;
	if (index_state != NVM_INDEXSTATE_ABSENT || entry->end != 0 ||
		pg_atomic_read_u32(&state->index_failed) != 0)
		return;
	search->nidle++;
	if (search->best == 0 || entry->uses > search->uses)
	{
		search->best = id;
		search->uses = entry->uses;
		search->best_database = entry->database;
	}
}

static AbsentSearch
find_absent(Oid database)
{
	AbsentSearch search = {.database = database};

	nvm_dir_walk(search_absent, &search);
	return search;
}

static void
forgive_failure(uint32 id, NvmDirEntry *entry, void *arg)
{
	if ((entry->flags & NVM_DIR_REBUILT) != 0)
		pg_atomic_write_u32(&nvm_relstates[id].index_failed, 0);
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
 * Entry point of the rebuilder.
 */
void
nvm_rebuilder_main(Datum main_arg)
{
	BackgroundWorkerHandle *handles[MAX_REBUILD_WORKERS] = {NULL};
	int			since_retry = 0;
	AbsentSearch search;

	nvm_worker_start();
	for (;;)
	{
		int			running = count_workers(handles);
		int			started = 0;

		search = find_absent(InvalidOid);
		pg_atomic_write_u32(&NvmIndexes->nabsent, search.nabsent);
		if (search.nabsent == 0)
			break;

		/* a worker takes what is idle by itself: one for each will do */
		while (search.nidle > (uint32) started &&
			   running + started < nvm_index_rebuild_workers &&
			   start_worker(search.best_database, handles))
			started++;
		if (++since_retry > RETRY_SECONDS)
		{
			nvm_dir_walk(forgive_failure, NULL);
			since_retry = 0;
		}
		if (!nvm_worker_sleep(1000))
			break;
	}
	proc_exit(0);
}

/* ---- a worker ---- */

/*
 * Open the index of storage `dir` and its table.  NULL if there is none that is
 * kept up to date, or not any more.
 */
static Relation
open_index_of(uint32 dir, Relation *heap)
{
	Oid			indexid = nvm_dir_entry(dir)->relation;
	Oid			relid = IndexGetRelation(indexid, true);
	Relation	index;

	if (!OidIsValid(relid))
		return NULL;
	*heap = try_relation_open(relid, AccessShareLock);
	if (*heap == NULL)
		return NULL;
	index = try_relation_open(indexid, AccessShareLock);
	if (index != NULL &&
		(index->rd_rel->relkind != RELKIND_INDEX || !nvm_relation_is_btree(index) ||
		 index->rd_index->indrelid != relid || !index->rd_index->indisready ||
		 RELATION_IS_OTHER_TEMP(index) || nvm_index_cache(index)->dir != dir))
	{
		relation_close(index, AccessShareLock);
		index = NULL;
	}
	if (index == NULL)
		relation_close(*heap, AccessShareLock);
	return index;
}

/*
 * Rebuild the index of one storage, in a transaction.
 */
static void
rebuild_storage(uint32 dir)
{
	Relation	index;
	Relation	heap;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	index = open_index_of(dir, &heap);
	if (index == NULL)
		pg_atomic_write_u32(&nvm_relstates[dir].index_failed, 1);
	else
	{
		char	   *activity = psprintf("rebuilding index %s after a restart",
										RelationGetRelationName(index));

		pgstat_report_activity(STATE_RUNNING, activity);
		nvm_index_wait(index);
		relation_close(index, AccessShareLock);
		relation_close(heap, AccessShareLock);
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_activity(STATE_IDLE, NULL);
}

/*
 * Entry point of a worker; its argument is the database.
 */
void
nvm_rebuild_worker_main(Datum main_arg)
{
	Oid			database = DatumGetObjectId(main_arg);
	MemoryContext context = CurrentMemoryContext;

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, BGWORKER_BYPASS_ALLOWCONN);

	for (;;)
	{
		AbsentSearch search = find_absent(database);
		bool		failed = false;

		CHECK_FOR_INTERRUPTS();
		if (search.best == 0)
			break;
		PG_TRY();
		{
			rebuild_storage(search.best);
		}
		PG_CATCH();
		{
			MemoryContextSwitchTo(context);
			HOLD_INTERRUPTS();
			EmitErrorReport();
			FlushErrorState();
			AbortCurrentTransaction();
			RESUME_INTERRUPTS();
			failed = true;
		}
		PG_END_TRY();
		MemoryContextSwitchTo(context);
		/* whatever it was, not again at once */
		if (failed)
			pg_atomic_write_u32(&nvm_relstates[search.best].index_failed, 1);
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
	uint32		index_state = pg_atomic_read_u32(&state->index_state);
	uint32		total = pg_atomic_read_u32(&state->index_total);
	bool		none = (entry->flags & NVM_DIR_REBUILT) != 0;
	Datum		values[6];
	bool		nulls[6] = {false};

	if (entry->kind != NVM_DIR_KIND_INDEX || entry->database != MyDatabaseId ||
		entry->end != 0 || index_state == NVM_INDEXSTATE_NEW ||
		(index_state == NVM_INDEXSTATE_READY && pg_atomic_read_u64(&state->index_usec) == 0))
		return;
	values[0] = ObjectIdGetDatum(entry->relation);
	values[1] = CStringGetTextDatum(none ? "none" : "leaves");
	values[2] = CStringGetTextDatum(index_state == NVM_INDEXSTATE_READY ? "ready" :
									index_state == NVM_INDEXSTATE_BUILDING ? "rebuilding" :
									pg_atomic_read_u32(&state->index_failed) ? "failed" : "waiting");
	values[3] = Int64GetDatum(pg_atomic_read_u32(&state->index_done));
	values[4] = Int64GetDatum(total);
	nulls[4] = index_state == NVM_INDEXSTATE_ABSENT;
	values[5] = Float8GetDatum(pg_atomic_read_u64(&state->index_usec) / 1000.0);
	nulls[5] = index_state != NVM_INDEXSTATE_READY;
	tuplestore_putvalues(list->store, list->desc, values, nulls);
}

Datum
nvm_index_rebuilds(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	RebuildList list;

	nvm_pool_require();
	InitMaterializedSRF(fcinfo, 0);
	list.store = rsinfo->setResult;
	list.desc = rsinfo->setDesc;
	nvm_dir_walk(list_rebuild, &list);
	return (Datum) 0;
}
