/*-------------------------------------------------------------------------
 *
 * vacuum_parallel.c
 *	  VACUUM (PARALLEL): several processes remove entries from the indexes.
 *
 * The workers are ours.  PostgreSQL's open the indexes and ask their methods
 * with no call of ours between, and an index that says btree would be taken for
 * an empty file (ddl/IDENTITY.md).
 *
 * Workers know the dead roots, in bitmaps that all participants share, and
 * nothing else.  So they serve where these are all that must go.  Entries that
 * lead into SUSPECT blocks are found by looking at the table, and the leader
 * does that alone (vacuum.c).
 *
 * Each participant takes one index after the other; those that workers may not
 * do, or that are too small for them, the leader does first.  Whoever fails
 * takes the VACUUM with it, so nothing is freed whose entries stay.
 *
 * A context is made for each pass over the indexes, with workers started as
 * for the first; there rarely is a second pass.  The last word of each index
 * stays with the leader.
 *
 * A worker takes over from the leader's PGPROC whether it is a VACUUM, together with
 * the leader's xmin.  So it counts as a reader if the leader does (vacuum.c).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/parallel.h"
#include "access/table.h"
#include "access/xact.h"
#include "am/nvm_vacuum.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_identity.h"
#include "compat/nvm_compat_vacuum.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "optimizer/paths.h"
#include "pgstat.h"
#include "pmem/nvm_pmem.h"
#include "row/nvm_relation.h"
#include "storage/bufmgr.h"
#include "tcop/tcopprot.h"
#include "utils/lsyscache.h"

/*
 * To start workers takes as long as to go through one or two thousand pages of an
 * index (contrib_bench/README.md, "VACUUM of several indexes").  VACUUM that was not
 * told PARALLEL has them for indexes that are so many times
 * min_parallel_index_scan_size.
 */
#define UNASKED_TIMES	32

/* entries of the shared memory */
#define VACUUM_KEY_SHARED		UINT64CONST(0xBA00000000000001)
#define VACUUM_KEY_DEAD			UINT64CONST(0xBA00000000000002)
#define VACUUM_KEY_QUERY		UINT64CONST(0xBA00000000000003)
#define VACUUM_KEY_WAL_USAGE	UINT64CONST(0xBA00000000000004)
#define VACUUM_KEY_BUFFER_USAGE	UINT64CONST(0xBA00000000000005)

/* an index */
typedef struct VacuumSharedIndex
{
	/* constant */
	Oid			indexid;
	bool		for_workers;	/* what follows is of such ones alone */

	/* of the participant that took it; the leader reads when all have ended */
	bool		done;
	bool		has_stats;
	IndexBulkDeleteResult stats;
} VacuumSharedIndex;

/* what the participants share */
typedef struct VacuumShared
{
	/* constant */
	Oid			relid;
	uint64		query_id;
	int			work_mem;		/* of a worker, in kB */
	int			ring_size;
	NvmSharedDead dead;

	/* as VacuumSharedCostBalance and VacuumActiveNWorkers */
	pg_atomic_uint32 cost_balance;
	pg_atomic_uint32 nactive;

	pg_atomic_uint32 next;		/* index that nobody has looked at */
	uint32		nindexes;
	VacuumSharedIndex index[FLEXIBLE_ARRAY_MEMBER];
} VacuumShared;

/* a parallel pass as its leader knows it */
typedef struct VacuumLeader
{
	ParallelContext *pcxt;
	VacuumShared *shared;
	WalUsage   *wal_usage;
	BufferUsage *buffer_usage;
	bool	   *for_workers;	/* by index */
	int			nworkers;		/* to be launched */
} VacuumLeader;

PGDLLEXPORT void nvm_vacuum_worker_main(dsm_segment *seg, shm_toc *toc);

/* ---- what every participant does ---- */

/*
 * The cost-based delay goes by how many there are at work, if there are workers.
 */
static void
count_active(int by)
{
	if (VacuumActiveNWorkers != NULL)
		pg_atomic_fetch_add_u32(VacuumActiveNWorkers, by);
}

/*
 * The index as a worker sees it.  The lock is the leader's.
 */
static Relation
open_in_worker(Oid indexid)
{
	Relation	index = index_open(indexid, RowExclusiveLock);

	if (!NVM_FAILPOINT_MISSES("exchange-vacuum-worker"))
		(void) nvm_relation_is_btree(index);
	nvm_index_require_routine(index);
	return index;
}

/*
 * Remove the entries from an index.  The statistics are in local memory meanwhile:
 * each leaf counts, and another participant's are in the same cache line.
 */
static void
vacuum_taken(NvmVacuum *vac, VacuumSharedIndex *slot, Relation index)
{
	IndexBulkDeleteResult *stats = NULL;

	if (slot->has_stats)
	{
		stats = (IndexBulkDeleteResult *) palloc(sizeof(IndexBulkDeleteResult));
		*stats = slot->stats;
	}
	stats = nvm_vacuum_index(vac, index, stats);
	if (stats != NULL)
	{
		slot->stats = *stats;
		slot->has_stats = true;
		pfree(stats);
	}
	slot->done = true;
}

/*
 * Take indexes until there are none.
 */
static void
take_indexes(NvmVacuum *vac, VacuumShared *shared)
{
	uint32		i;

	while ((i = pg_atomic_fetch_add_u32(&shared->next, 1)) < shared->nindexes)
	{
		VacuumSharedIndex *slot = &shared->index[i];
		Relation	index;

		if (!slot->for_workers)
			continue;
		if (!IsParallelWorker())
		{
			vacuum_taken(vac, slot, vac->indrels[i]);
			continue;
		}
		index = open_in_worker(slot->indexid);
		NVM_FAILPOINT("vacuum-worker-index");
		vacuum_taken(vac, slot, index);
		NVM_FAILPOINT("vacuum-worker-done");
		index_close(index, RowExclusiveLock);
	}
}

/* ---- workers ---- */

static void
begin_costs(VacuumShared *shared)
{
	VacuumCostBalance = 0;
	VacuumCostBalanceLocal = 0;
	VacuumSharedCostBalance = &shared->cost_balance;
	VacuumActiveNWorkers = &shared->nactive;
}

/*
 * The VACUUM as a worker knows it.
 */
static void
begin_in_worker(NvmVacuum *vac, VacuumShared *shared, shm_toc *toc)
{
	memset(vac, 0, sizeof(NvmVacuum));
	vac->rel = table_open(shared->relid, ShareUpdateExclusiveLock);
	vac->relnamespace = get_namespace_name(RelationGetNamespace(vac->rel));
	vac->relname = pstrdup(RelationGetRelationName(vac->rel));
	vac->blkno = InvalidBlockNumber;
	vac->state = nvm_rel(vac->rel);
	vac->dir = vac->state->dir;
	vac->bstrategy = nvm_ring(shared->ring_size);
	nvm_vacuum_attach_dead(vac, &shared->dead,
						   shm_toc_lookup(toc, VACUUM_KEY_DEAD, false));

	/* SET is not allowed in a worker; it ends before anybody sees that */
	maintenance_work_mem = shared->work_mem;
	nvm_update_costs();
	begin_costs(shared);
}

/*
 * Entry point of a worker.
 */
void
nvm_vacuum_worker_main(dsm_segment *seg, shm_toc *toc)
{
	VacuumShared *shared = shm_toc_lookup(toc, VACUUM_KEY_SHARED, false);
	ErrorContextCallback errcallback;
	WalUsage   *wal_usage;
	BufferUsage *buffer_usage;
	NvmVacuum	vac;

	debug_query_string = shm_toc_lookup(toc, VACUUM_KEY_QUERY, true);
	pgstat_report_activity(STATE_RUNNING, debug_query_string);
	pgstat_report_query_id(shared->query_id, false);
	NVM_FAILPOINT("vacuum-worker-started");

	begin_in_worker(&vac, shared, toc);
	errcallback.callback = nvm_vacuum_error_context;
	errcallback.arg = &vac;
	errcallback.previous = error_context_stack;
	error_context_stack = &errcallback;

	InstrStartParallelQuery();
	count_active(1);
	take_indexes(&vac, shared);
	count_active(-1);
	wal_usage = shm_toc_lookup(toc, VACUUM_KEY_WAL_USAGE, false);
	buffer_usage = shm_toc_lookup(toc, VACUUM_KEY_BUFFER_USAGE, false);
	InstrEndParallelQuery(&buffer_usage[ParallelWorkerNumber],
						  &wal_usage[ParallelWorkerNumber]);
	nvm_report_worker_delay();

	error_context_stack = errcallback.previous;
	table_close(vac.rel, ShareUpdateExclusiveLock);
}

/* ---- the leader ---- */

/*
 * Is a worker worth its while?  The main fork of an index of ours is as good as
 * empty.
 */
static bool
index_is_large(NvmVacuum *vac, Relation index)
{
	int64		enough = (int64) min_parallel_index_scan_size *
	(vac->nworkers > 0 ? 1 : UNASKED_TIMES);
	BlockNumber pages = nvm_relation_is_btree(index) ?
	pg_atomic_read_u32(&nvm_index_cache(index)->state->nblocks) :
	RelationGetNumberOfBlocks(index);

	return pages >= enough;
}

/*
 * Which indexes may workers do, and how many workers shall there be?
 */
static int
plan_workers(NvmVacuum *vac, bool *for_workers)
{
	int			nworkers = -1;	/* the leader does one */

	if (!IsUnderPostmaster || max_parallel_maintenance_workers == 0)
		return 0;
	for (int i = 0; i < vac->nindexes; i++)
	{
		uint8		options = vac->indrels[i]->rd_indam->amparallelvacuumoptions;

		for_workers[i] = (options & VACUUM_OPTION_PARALLEL_BULKDEL) != 0 &&
			index_is_large(vac, vac->indrels[i]);
		if (for_workers[i])
			nworkers++;
	}
	if (vac->nworkers > 0)
		nworkers = Min(nworkers, vac->nworkers);
	return Min(nworkers, max_parallel_maintenance_workers);
}

/*
 * Memory of a worker: together they take no more than VACUUM alone would.
 */
static int
worker_mem(NvmVacuum *vac, VacuumLeader *leader)
{
	int			nusers = 0;

	for (int i = 0; i < vac->nindexes; i++)
	{
		if (leader->for_workers[i] && vac->indrels[i]->rd_indam->amusemaintenanceworkmem)
			nusers++;
	}
	return nusers > 0 ? maintenance_work_mem / Min(leader->nworkers, nusers) :
		maintenance_work_mem;
}

static Size
shared_size(NvmVacuum *vac)
{
	return add_size(offsetof(VacuumShared, index),
					mul_size(sizeof(VacuumSharedIndex), vac->nindexes));
}

/*
 * How much shared memory the pass needs.
 */
static void
estimate_shared(NvmVacuum *vac, VacuumLeader *leader)
{
	shm_toc_estimator *e = &leader->pcxt->estimator;

	shm_toc_estimate_chunk(e, shared_size(vac));
	shm_toc_estimate_chunk(e, nvm_vacuum_share_size(vac));
	shm_toc_estimate_chunk(e, mul_size(sizeof(WalUsage), leader->nworkers));
	shm_toc_estimate_chunk(e, mul_size(sizeof(BufferUsage), leader->nworkers));
	shm_toc_estimate_keys(e, 4);
	if (debug_query_string != NULL)
	{
		shm_toc_estimate_chunk(e, strlen(debug_query_string) + 1);
		shm_toc_estimate_keys(e, 1);
	}
}

static void *
fill_entry(VacuumLeader *leader, uint64 key, Size size)
{
	void	   *memory = shm_toc_allocate(leader->pcxt->toc, size);

	shm_toc_insert(leader->pcxt->toc, key, memory);
	return memory;
}

/*
 * Fill the shared memory.
 */
static void
fill_shared(NvmVacuum *vac, VacuumLeader *leader)
{
	VacuumShared *shared = fill_entry(leader, VACUUM_KEY_SHARED, shared_size(vac));

	memset(shared, 0, shared_size(vac));
	shared->relid = RelationGetRelid(vac->rel);
	shared->query_id = pgstat_get_my_query_id();
	shared->work_mem = worker_mem(vac, leader);
	shared->ring_size = nvm_ring_size(vac->bstrategy);
	pg_atomic_init_u32(&shared->cost_balance, VacuumCostBalance);
	pg_atomic_init_u32(&shared->nactive, 0);
	pg_atomic_init_u32(&shared->next, 0);
	shared->nindexes = vac->nindexes;
	for (int i = 0; i < vac->nindexes; i++)
	{
		VacuumSharedIndex *slot = &shared->index[i];

		slot->indexid = RelationGetRelid(vac->indrels[i]);
		slot->for_workers = leader->for_workers[i];
		if (!slot->for_workers || vac->indstats[i] == NULL)
			continue;
		slot->stats = *vac->indstats[i];
		slot->has_stats = true;
	}
	leader->shared = shared;

	nvm_vacuum_share_dead(vac, &shared->dead,
						  fill_entry(leader, VACUUM_KEY_DEAD, nvm_vacuum_share_size(vac)));
	leader->wal_usage = fill_entry(leader, VACUUM_KEY_WAL_USAGE,
								   mul_size(sizeof(WalUsage), leader->nworkers));
	leader->buffer_usage = fill_entry(leader, VACUUM_KEY_BUFFER_USAGE,
									  mul_size(sizeof(BufferUsage), leader->nworkers));
	if (debug_query_string != NULL)
	{
		Size		len = strlen(debug_query_string) + 1;

		memcpy(fill_entry(leader, VACUUM_KEY_QUERY, len), debug_query_string, len);
	}
}

/*
 * Start the workers.  False if there is no shared memory for them.
 */
static bool
begin_parallel(NvmVacuum *vac, VacuumLeader *leader)
{
	EnterParallelMode();
	leader->pcxt = CreateParallelContext("pg_nvm", "nvm_vacuum_worker_main",
										 leader->nworkers);

	/* what a worker says has its own index as its context, not ours */
	Assert(error_context_stack->callback == nvm_vacuum_error_context);
	leader->pcxt->error_context_stack = error_context_stack->previous;

	estimate_shared(vac, leader);
	InitializeParallelDSM(leader->pcxt);
	if (leader->pcxt->seg == NULL)
	{
		DestroyParallelContext(leader->pcxt);
		ExitParallelMode();
		return false;
	}
	fill_shared(vac, leader);
	NVM_FAILPOINT("vacuum-workers-shared");

	LaunchParallelWorkers(leader->pcxt);
	if (leader->pcxt->nworkers_launched > 0)
		begin_costs(leader->shared);
	ereport(vac->verbose ? INFO : DEBUG2,
			(errmsg_plural("launched %d parallel vacuum worker for index vacuuming (planned: %d)",
						   "launched %d parallel vacuum workers for index vacuuming (planned: %d)",
						   leader->pcxt->nworkers_launched,
						   leader->pcxt->nworkers_launched, leader->nworkers)));
	NVM_FAILPOINT("vacuum-workers-launched");
	return true;
}

/*
 * What came of the indexes that all have worked at.
 */
static void
take_over_stats(NvmVacuum *vac, VacuumShared *shared)
{
	for (int i = 0; i < vac->nindexes; i++)
	{
		VacuumSharedIndex *slot = &shared->index[i];

		if (!slot->for_workers)
			continue;
		if (!slot->done)
			elog(ERROR, "parallel vacuum has left out index \"%s\"",
				 RelationGetRelationName(vac->indrels[i]));
		if (!slot->has_stats)
			continue;
		if (vac->indstats[i] == NULL)
			vac->indstats[i] = (IndexBulkDeleteResult *)
				palloc(sizeof(IndexBulkDeleteResult));
		*vac->indstats[i] = slot->stats;
	}
}

static void
end_parallel(NvmVacuum *vac, VacuumLeader *leader)
{
	WaitForParallelWorkersToFinish(leader->pcxt);
	for (int i = 0; i < leader->pcxt->nworkers_launched; i++)
		InstrAccumParallelQuery(&leader->buffer_usage[i], &leader->wal_usage[i]);
	take_over_stats(vac, leader->shared);
	if (VacuumSharedCostBalance != NULL)
	{
		VacuumCostBalance = pg_atomic_read_u32(VacuumSharedCostBalance);
		VacuumSharedCostBalance = NULL;
		VacuumActiveNWorkers = NULL;
	}
	nvm_vacuum_detach_dead(vac);
	DestroyParallelContext(leader->pcxt);
	ExitParallelMode();
}

/*
 * Remove the entries of vac->dead from all indexes, if there are several of a size and
 * workers can do it.  Returns false if nothing was done.
 */
bool
nvm_vacuum_indexes_parallel(NvmVacuum *vac)
{
	VacuumLeader leader;

	if (vac->nworkers < 0 || vac->nindexes < 2 || vac->ndead == 0 ||
		vac->nsuspect > 0 || vac->state->had > 0 || RelationUsesLocalBuffers(vac->rel))
		return false;

	leader.for_workers = (bool *) palloc0(vac->nindexes * sizeof(bool));
	leader.nworkers = plan_workers(vac, leader.for_workers);
	if (leader.nworkers <= 0 || !begin_parallel(vac, &leader))
	{
		/* too small, or no workers to be had */
		pfree(leader.for_workers);
		return false;
	}

	count_active(1);
	for (int i = 0; i < vac->nindexes; i++)
	{
		if (!leader.for_workers[i])
			vac->indstats[i] = nvm_vacuum_index(vac, vac->indrels[i], vac->indstats[i]);
	}
	take_indexes(vac, leader.shared);
	count_active(-1);
	end_parallel(vac, &leader);
	pfree(leader.for_workers);
	return true;
}
