/*-------------------------------------------------------------------------
 *
 * btree_build.c
 *	  CREATE INDEX and REINDEX: scan the table, by several processes if that
 *	  pays, sort the entries, and give them to the bulk load.
 *
 * The sort is PostgreSQL's for btree indexes, which also finds duplicates in
 * unique ones.  A row that is dead to the newest snapshots may have to be in
 * the index all the same, but it is no duplicate of anything.  Such rows are
 * sorted apart, and merged while loading.
 *
 * Each participant of a parallel build sorts what it gets of the shared scan;
 * the leader merges.  Workers write no data of ours, so they need no stamp.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_identity.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "commands/progress.h"
#include "compat/nvm_compat_index.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/condition_variable.h"
#include "storage/spin.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplesort.h"

/* entries of the shared memory of a parallel build */
#define BUILD_KEY_SHARED		UINT64CONST(0xB000000000000001)
#define BUILD_KEY_SORT			UINT64CONST(0xB000000000000002)
#define BUILD_KEY_SORT_DEAD		UINT64CONST(0xB000000000000003)
#define BUILD_KEY_QUERY			UINT64CONST(0xB000000000000004)
#define BUILD_KEY_WAL_USAGE		UINT64CONST(0xB000000000000005)
#define BUILD_KEY_BUFFER_USAGE	UINT64CONST(0xB000000000000006)

/*
 * What the participants of a parallel build share.  The state of the parallel
 * table scan follows.
 */
typedef struct BuildShared
{
	/* constant */
	Oid			heapid;
	Oid			indexid;
	bool		unique;
	bool		nulls_not_distinct;
	bool		concurrent;
	int			nparticipants;	/* that were asked for, the leader included */
	uint64		query_id;

	ConditionVariable done_cv;	/* a participant is done */

	/* protected by mutex */
	slock_t		mutex;
	int			ndone;
	double		heap_tuples;
	double		index_tuples;
	bool		have_dead;
	bool		broken_chain;
} BuildShared;

#define BuildSharedScan(shared) \
	((ParallelTableScanDesc) ((char *) (shared) + BUFFERALIGN(sizeof(BuildShared))))

/* a parallel build as its leader knows it */
typedef struct BuildLeader
{
	ParallelContext *pcxt;
	BuildShared *shared;
	Sharedsort *sort;
	Sharedsort *sort_dead;		/* NULL unless unique */
	Snapshot	snapshot;
	WalUsage   *wal_usage;
	BufferUsage *buffer_usage;
	int			nparticipants;	/* that there are */
} BuildLeader;

/* a build, or one participant's share of it */
typedef struct Build
{
	Relation	heap;
	Relation	index;
	Relation	sort_index;		/* what the sort takes for the index */
	bool		unique;
	bool		nulls_not_distinct;
	Tuplesortstate *sort;
	Tuplesortstate *sort_dead;	/* NULL unless unique */
	bool		have_dead;
	double		heap_tuples;
	double		index_tuples;
	BuildLeader *leader;		/* NULL unless it is a parallel one */
} Build;

PGDLLEXPORT void nvm_btree_build_worker(dsm_segment *seg, shm_toc *toc);

/*
 * Before 18 PostgreSQL's sort insists that an index is of access method btree.
 * It looks at the index's columns, operator families, support functions and
 * name, and ours has all of them, too.  So it gets a copy that says btree.
 */
Relation
nvm_index_sort_relation(Relation index)
{
	Relation	copy = (Relation) palloc(sizeof(RelationData));

	*copy = *index;
	copy->rd_rel = (Form_pg_class) palloc(CLASS_TUPLE_SIZE);
	memcpy(copy->rd_rel, index->rd_rel, CLASS_TUPLE_SIZE);
	copy->rd_rel->relam = BTREE_AM_OID;
	return copy;
}

static void
build_init(Build *build, Relation heap, Relation index, bool unique,
		   bool nulls_not_distinct)
{
	memset(build, 0, sizeof(Build));
	build->heap = heap;
	build->index = index;
	build->sort_index = nvm_index_sort_relation(index);
	build->unique = unique;
	build->nulls_not_distinct = nulls_not_distinct;
}

/*
 * Begin the sorts; of dead rows there should be few.
 */
static void
build_begin_sorts(Build *build, int memory, SortCoordinate coordinate,
				  SortCoordinate coordinate_dead)
{
	build->sort = tuplesort_begin_index_btree(build->heap, build->sort_index,
											  build->unique, build->nulls_not_distinct,
											  memory, coordinate, TUPLESORT_NONE);
	if (build->unique)
		build->sort_dead = tuplesort_begin_index_btree(build->heap, build->sort_index,
													   false, false,
													   Min(memory, work_mem),
													   coordinate_dead, TUPLESORT_NONE);
}

static SortCoordinate
build_coordinate(bool is_worker, int nparticipants, Sharedsort *sharedsort)
{
	SortCoordinate coordinate = (SortCoordinate) palloc0(sizeof(SortCoordinateData));

	coordinate->isWorker = is_worker;
	coordinate->nParticipants = nparticipants;
	coordinate->sharedsort = sharedsort;
	return coordinate;
}

static void
build_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
			   bool alive, void *arg)
{
	Build	   *build = (Build *) arg;
	Tuplesortstate *sort = build->sort;

	if (!alive && build->sort_dead != NULL)
	{
		sort = build->sort_dead;
		build->have_dead = true;
	}
	tuplesort_putindextuplevalues(sort, build->sort_index, tid, values, isnull);
	build->index_tuples += 1;
}

static void
build_perform_sorts(Build *build, bool progress)
{
	if (progress)
		pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
									 PROGRESS_BTREE_PHASE_PERFORMSORT_1);
	tuplesort_performsort(build->sort);
	if (build->sort_dead != NULL)
	{
		if (progress)
			pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
										 PROGRESS_BTREE_PHASE_PERFORMSORT_2);
		tuplesort_performsort(build->sort_dead);
	}
}

static void
build_end_sorts(Build *build)
{
	tuplesort_end(build->sort);
	if (build->sort_dead != NULL)
		tuplesort_end(build->sort_dead);
}

/*
 * A participant's share: take part in the scan, sort, and tell what came of it.
 */
static void
build_participate(Build *build, BuildShared *shared, Sharedsort *sort,
				  Sharedsort *sort_dead, int memory, bool progress)
{
	IndexInfo  *info = BuildIndexInfo(build->index);

	info->ii_Concurrent = shared->concurrent;
	build_begin_sorts(build, memory, build_coordinate(true, -1, sort),
					  build->unique ? build_coordinate(true, -1, sort_dead) : NULL);
	build->heap_tuples =
		table_index_build_scan(build->heap, build->index, info, true, progress,
							   build_callback, build,
							   table_beginscan_parallel(build->heap, BuildSharedScan(shared)));
	build_perform_sorts(build, progress);

	SpinLockAcquire(&shared->mutex);
	shared->ndone++;
	shared->heap_tuples += build->heap_tuples;
	shared->index_tuples += build->index_tuples;
	shared->have_dead |= build->have_dead;
	shared->broken_chain |= info->ii_BrokenHotChain;
	SpinLockRelease(&shared->mutex);
	ConditionVariableSignal(&shared->done_cv);

	build_end_sorts(build);
}

/*
 * Entry point of a worker.
 */
void
nvm_btree_build_worker(dsm_segment *seg, shm_toc *toc)
{
	BuildShared *shared = shm_toc_lookup(toc, BUILD_KEY_SHARED, false);
	Sharedsort *sort = shm_toc_lookup(toc, BUILD_KEY_SORT, false);
	Sharedsort *sort_dead = NULL;
	WalUsage   *wal_usage;
	BufferUsage *buffer_usage;
	LOCKMODE	heap_lock = shared->concurrent ? ShareUpdateExclusiveLock : ShareLock;
	LOCKMODE	index_lock = shared->concurrent ? RowExclusiveLock : AccessExclusiveLock;
	Relation	heap;
	Relation	index;
	Build		build;

	debug_query_string = shm_toc_lookup(toc, BUILD_KEY_QUERY, true);
	pgstat_report_activity(STATE_RUNNING, debug_query_string);
	pgstat_report_query_id(shared->query_id, false);

	/* the locks are the leader's */
	heap = table_open(shared->heapid, heap_lock);
	index = index_open(shared->indexid, index_lock);

	if (index->rd_rel->relam == BTREE_AM_OID)
		nvm_index_exchange(index, false);

	tuplesort_attach_shared(sort, seg);
	if (shared->unique)
	{
		sort_dead = shm_toc_lookup(toc, BUILD_KEY_SORT_DEAD, false);
		tuplesort_attach_shared(sort_dead, seg);
	}

	InstrStartParallelQuery();
	build_init(&build, heap, index, shared->unique, shared->nulls_not_distinct);
	build_participate(&build, shared, sort, sort_dead,
					  maintenance_work_mem / shared->nparticipants, false);
	wal_usage = shm_toc_lookup(toc, BUILD_KEY_WAL_USAGE, false);
	buffer_usage = shm_toc_lookup(toc, BUILD_KEY_BUFFER_USAGE, false);
	InstrEndParallelQuery(&buffer_usage[ParallelWorkerNumber],
						  &wal_usage[ParallelWorkerNumber]);

	index_close(index, index_lock);
	table_close(heap, heap_lock);
}

/*
 * End of the parallel part, once the leader has read the last entry.
 */
static void
build_end_parallel(BuildLeader *leader)
{
	WaitForParallelWorkersToFinish(leader->pcxt);
	for (int i = 0; i < leader->pcxt->nworkers_launched; i++)
		InstrAccumParallelQuery(&leader->buffer_usage[i], &leader->wal_usage[i]);
	if (IsMVCCSnapshot(leader->snapshot))
		UnregisterSnapshot(leader->snapshot);
	DestroyParallelContext(leader->pcxt);
	ExitParallelMode();
}

/*
 * How much shared memory a parallel build needs.
 */
static void
build_estimate(BuildLeader *leader, Build *build, int nparticipants)
{
	shm_toc_estimator *e = &leader->pcxt->estimator;
	int			nworkers = leader->pcxt->nworkers;
	Size		sort = tuplesort_estimate_shared(nparticipants);

	shm_toc_estimate_chunk(e, add_size(BUFFERALIGN(sizeof(BuildShared)),
									   table_parallelscan_estimate(build->heap,
																   leader->snapshot)));
	shm_toc_estimate_chunk(e, sort);
	shm_toc_estimate_chunk(e, mul_size(sizeof(WalUsage), nworkers));
	shm_toc_estimate_chunk(e, mul_size(sizeof(BufferUsage), nworkers));
	shm_toc_estimate_keys(e, 4);
	if (build->unique)
	{
		shm_toc_estimate_chunk(e, sort);
		shm_toc_estimate_keys(e, 1);
	}
	if (debug_query_string != NULL)
	{
		shm_toc_estimate_chunk(e, strlen(debug_query_string) + 1);
		shm_toc_estimate_keys(e, 1);
	}
}

static Sharedsort *
build_shared_sort(ParallelContext *pcxt, uint64 key, int nparticipants)
{
	Sharedsort *sort = (Sharedsort *)
	shm_toc_allocate(pcxt->toc, tuplesort_estimate_shared(nparticipants));

	tuplesort_initialize_shared(sort, nparticipants, pcxt->seg);
	shm_toc_insert(pcxt->toc, key, sort);
	return sort;
}

/*
 * Fill the shared memory.
 */
static void
build_fill_shared(BuildLeader *leader, Build *build, bool concurrent,
				  int nparticipants)
{
	ParallelContext *pcxt = leader->pcxt;
	BuildShared *shared = (BuildShared *)
	shm_toc_allocate(pcxt->toc,
					 add_size(BUFFERALIGN(sizeof(BuildShared)),
							  table_parallelscan_estimate(build->heap,
														  leader->snapshot)));

	memset(shared, 0, sizeof(BuildShared));
	shared->heapid = RelationGetRelid(build->heap);
	shared->indexid = RelationGetRelid(build->index);
	shared->unique = build->unique;
	shared->nulls_not_distinct = build->nulls_not_distinct;
	shared->concurrent = concurrent;
	shared->nparticipants = nparticipants;
	shared->query_id = pgstat_get_my_query_id();
	ConditionVariableInit(&shared->done_cv);
	SpinLockInit(&shared->mutex);
	table_parallelscan_initialize(build->heap, BuildSharedScan(shared),
								  leader->snapshot);
	shm_toc_insert(pcxt->toc, BUILD_KEY_SHARED, shared);
	leader->shared = shared;

	leader->sort = build_shared_sort(pcxt, BUILD_KEY_SORT, nparticipants);
	if (build->unique)
		leader->sort_dead = build_shared_sort(pcxt, BUILD_KEY_SORT_DEAD, nparticipants);

	leader->wal_usage = shm_toc_allocate(pcxt->toc,
										 mul_size(sizeof(WalUsage), pcxt->nworkers));
	shm_toc_insert(pcxt->toc, BUILD_KEY_WAL_USAGE, leader->wal_usage);
	leader->buffer_usage = shm_toc_allocate(pcxt->toc,
											mul_size(sizeof(BufferUsage), pcxt->nworkers));
	shm_toc_insert(pcxt->toc, BUILD_KEY_BUFFER_USAGE, leader->buffer_usage);

	if (debug_query_string != NULL)
	{
		Size		len = strlen(debug_query_string) + 1;
		char	   *query = shm_toc_allocate(pcxt->toc, len);

		memcpy(query, debug_query_string, len);
		shm_toc_insert(pcxt->toc, BUILD_KEY_QUERY, query);
	}
}

/*
 * Start workers for the scan.  Sets build->leader unless there are none to be
 * had; then the build is done by this process alone.
 */
static void
build_begin_parallel(Build *build, bool concurrent, int request)
{
	BuildLeader *leader = (BuildLeader *) palloc0(sizeof(BuildLeader));
	int			nparticipants = request + 1;

	EnterParallelMode();
	leader->pcxt = CreateParallelContext("pg_nvm", "nvm_btree_build_worker", request);
	leader->snapshot = concurrent ? RegisterSnapshot(GetTransactionSnapshot()) :
		SnapshotAny;
	build_estimate(leader, build, nparticipants);
	InitializeParallelDSM(leader->pcxt);
	if (leader->pcxt->seg == NULL)
	{
		if (IsMVCCSnapshot(leader->snapshot))
			UnregisterSnapshot(leader->snapshot);
		DestroyParallelContext(leader->pcxt);
		ExitParallelMode();
		return;
	}
	build_fill_shared(leader, build, concurrent, nparticipants);

	LaunchParallelWorkers(leader->pcxt);
	leader->nparticipants = leader->pcxt->nworkers_launched + 1;
	if (leader->pcxt->nworkers_launched == 0)
	{
		build_end_parallel(leader);
		return;
	}
	build->leader = leader;
}

/*
 * The leader's own share of the scan, and those of the others.  The sorts of
 * `build` are the merge of all.
 */
static void
build_scan_parallel(Build *build, IndexInfo *info)
{
	BuildLeader *leader = build->leader;
	BuildShared *shared = leader->shared;
	Build		own;

	build_init(&own, build->heap, build->index, build->unique, build->nulls_not_distinct);
	build_participate(&own, shared, leader->sort, leader->sort_dead,
					  maintenance_work_mem / leader->nparticipants, true);
	/* a worker that could not start must not be waited for */
	WaitForParallelWorkersToAttach(leader->pcxt);

	for (;;)
	{
		int			ndone;

		SpinLockAcquire(&shared->mutex);
		ndone = shared->ndone;
		SpinLockRelease(&shared->mutex);
		if (ndone == leader->nparticipants)
			break;
		ConditionVariableSleep(&shared->done_cv, WAIT_EVENT_PARALLEL_CREATE_INDEX_SCAN);
	}
	ConditionVariableCancelSleep();

	build->heap_tuples = shared->heap_tuples;
	build->index_tuples = shared->index_tuples;
	build->have_dead = shared->have_dead;
	if (shared->broken_chain)
		info->ii_BrokenHotChain = true;
}

/*
 * Scan the table into the sorts.
 */
static void
build_scan(Build *build, IndexInfo *info)
{
	int			nworkers = nvm_index_count_workers(build->heap, build->index);
	SortCoordinate coordinate = NULL;
	SortCoordinate coordinate_dead = NULL;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 PROGRESS_BTREE_PHASE_INDEXBUILD_TABLESCAN);
	if (nworkers > 0)
		build_begin_parallel(build, info->ii_Concurrent, nworkers);
	if (build->leader != NULL)
	{
		BuildLeader *leader = build->leader;

		build_scan_parallel(build, info);
		coordinate = build_coordinate(false, leader->nparticipants, leader->sort);
		if (build->unique)
			coordinate_dead = build_coordinate(false, leader->nparticipants,
											   leader->sort_dead);
		build_begin_sorts(build, maintenance_work_mem, coordinate, coordinate_dead);
	}
	else
	{
		build_begin_sorts(build, maintenance_work_mem, NULL, NULL);
		build->heap_tuples =
			table_index_build_scan(build->heap, build->index, info, true, true,
								   build_callback, build, NULL);
	}
	pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_TOTAL,
								 (int64) build->index_tuples);
	pgstat_progress_update_param(PROGRESS_SCAN_BLOCKS_TOTAL, 0);
	pgstat_progress_update_param(PROGRESS_SCAN_BLOCKS_DONE, 0);
}

/*
 * Load two sorted sequences as one.
 */
static int64
build_load_merged(Build *build, NvmIndexLoad *load)
{
	NvmIndexCache cache = *nvm_index_cache(build->index);
	IndexTuple	alive = tuplesort_getindextuple(build->sort, true);
	IndexTuple	dead = tuplesort_getindextuple(build->sort_dead, true);
	NvmIndexKey key;
	int64		done = 0;

	if (dead != NULL)
		nvm_index_key_init(build->index, &cache, dead, &key);
	while (alive != NULL || dead != NULL)
	{
		if (dead == NULL ||
			(alive != NULL && nvm_index_compare(&key, alive) > 0))
		{
			nvm_index_load_add(load, alive);
			alive = tuplesort_getindextuple(build->sort, true);
		}
		else
		{
			nvm_index_load_add(load, dead);
			dead = tuplesort_getindextuple(build->sort_dead, true);
			if (dead != NULL)
				nvm_index_key_init(build->index, &cache, dead, &key);
		}
		pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_DONE, ++done);
	}
	return done;
}

/*
 * Sort and load.
 */
static void
build_load(Build *build)
{
	NvmIndexLoad *load;
	IndexTuple	itup;
	int64		done = 0;

	if (build->sort_dead != NULL && !build->have_dead)
	{
		tuplesort_end(build->sort_dead);
		build->sort_dead = NULL;
	}
	build_perform_sorts(build, true);

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 PROGRESS_BTREE_PHASE_LEAF_LOAD);
	/* of a unique index there is next to nothing to merge */
	load = nvm_index_load_begin(build->heap, build->index, !build->unique);
	if (build->sort_dead != NULL)
		done = build_load_merged(build, load);
	else
	{
		while ((itup = tuplesort_getindextuple(build->sort, true)) != NULL)
		{
			nvm_index_load_add(load, itup);
			pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_DONE, ++done);
		}
	}
	if (done > 0)
		nvm_index_load_end(load);
}

/*
 * ambuild.
 */
IndexBuildResult *
nvm_btree_build(Relation heap, Relation index, IndexInfo *info)
{
	IndexBuildResult *result;
	Build		build;

	/* first of all, since it needs a stamp, which none gets in parallel mode */
	nvm_index_make_storage(index, nvm_index_meta_flags(index));
	nvm_index_note_relpages(RelationGetRelid(index));
	/* unless nbtree is going to write its own page: btree_takeover.c */
	if (nvm_index_says_btree(index) && nvm_index_being_taken != RelationGetRelid(index))
		nvm_index_write_failsafe(index, MAIN_FORKNUM);

	build_init(&build, heap, index, info->ii_Unique, info->ii_NullsNotDistinct);
	build_scan(&build, info);
	build_load(&build);
	build_end_sorts(&build);
	if (build.leader != NULL)
		build_end_parallel(build.leader);

	nvm_index_release_truncated(index);
	result = (IndexBuildResult *) palloc(sizeof(IndexBuildResult));
	result->heap_tuples = build.heap_tuples;
	result->index_tuples = build.index_tuples;
	return result;
}

/*
 * ambuildempty: what an UNLOGGED index is after a crash.  PostgreSQL has made
 * an init fork, which is to have what the main fork has.  The pool empties the
 * storage, and the process that next uses it makes its meta page anew.
 */
void
nvm_btree_buildempty(Relation index)
{
	Assert(index->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED);
	if (nvm_index_says_btree(index))
		nvm_index_write_failsafe(index, INIT_FORKNUM);
}
