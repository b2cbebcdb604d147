/*-------------------------------------------------------------------------
 *
 * nvm_compat_vacuum.h
 *	  Differences between PostgreSQL major versions around VACUUM and CLUSTER.
 *
 * Beside nvm_compat.h, so that its includes reach the few files that need
 * them only.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_COMPAT_VACUUM_H
#define NVM_COMPAT_VACUUM_H

#include "compat/nvm_compat.h"

#include "access/genam.h"
#include "access/multixact.h"
#include "commands/progress.h"
#include "commands/vacuum.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "postmaster/autovacuum.h"
#include "utils/memutils.h"

/*
 * Horizons of a VACUUM; returns whether it is an aggressive one.
 */
static inline bool
nvm_vacuum_cutoffs(Relation rel, VacuumParams *params,
				   TransactionId *oldest_xmin, MultiXactId *oldest_mxact)
{
#if PG_VERSION_NUM >= 160000
	struct VacuumCutoffs cutoffs;
	bool		aggressive = vacuum_get_cutoffs(rel, params, &cutoffs);

	*oldest_xmin = cutoffs.OldestXmin;
	*oldest_mxact = cutoffs.OldestMxact;
	return aggressive;
#else
	TransactionId freeze_limit;
	MultiXactId multi_limit;

	return vacuum_set_xid_limits(rel, params->freeze_min_age,
								 params->freeze_table_age,
								 params->multixact_freeze_min_age,
								 params->multixact_freeze_table_age,
								 oldest_xmin, oldest_mxact,
								 &freeze_limit, &multi_limit);
#endif
}

/* pg_class of a table or index after VACUUM */
static inline void
nvm_update_relstats(Relation rel, BlockNumber pages, double tuples,
					BlockNumber all_visible, bool hasindex,
					TransactionId frozenxid, MultiXactId minmulti,
					bool *frozenxid_updated, bool *minmulti_updated)
{
#if PG_VERSION_NUM >= 180000
	vac_update_relstats(rel, pages, tuples, all_visible, all_visible, hasindex,
						frozenxid, minmulti, frozenxid_updated,
						minmulti_updated, false);
#else
	vac_update_relstats(rel, pages, tuples, all_visible, hasindex,
						frozenxid, minmulti, frozenxid_updated,
						minmulti_updated, false);
#endif
}

#if PG_VERSION_NUM >= 180000
#define nvm_report_vacuum(rel, live, dead, start) \
	pgstat_report_vacuum(RelationGetRelid(rel), (rel)->rd_rel->relisshared, \
						 live, dead, start)
#define nvm_vacuum_delay()		vacuum_delay_point(false)
#else
#define nvm_report_vacuum(rel, live, dead, start) \
	pgstat_report_vacuum(RelationGetRelid(rel), (rel)->rd_rel->relisshared, \
						 live, dead)
#define nvm_vacuum_delay()		vacuum_delay_point()
#endif

/*
 * A worker of ours begins and ends: cost-based delay, and its ring of buffers, as large
 * as the leader's.
 */
#if PG_VERSION_NUM >= 160000
#define nvm_ring_size(strategy)	GetAccessStrategyBufferCount(strategy)
#define nvm_ring(size)			GetAccessStrategyWithSize(BAS_VACUUM, (size) * (BLCKSZ / 1024))
#define nvm_update_costs()		VacuumUpdateCosts()
#else
#define nvm_ring_size(strategy)	0
#define nvm_ring(size)			GetAccessStrategy(BAS_VACUUM)
#define nvm_update_costs()		(VacuumCostActive = VacuumCostDelay > 0)
#endif

static inline void
nvm_report_worker_delay(void)
{
#if PG_VERSION_NUM >= 180000
	if (track_cost_delay_timing)
		pgstat_progress_parallel_incr_param(PROGRESS_VACUUM_DELAY_TIME,
											parallel_vacuum_worker_delay_ns);
#endif
}

/* progress of a pass over the indexes; how many are done is shown since 17 */
static inline void
nvm_progress_begin_indexes(int64 phase, int64 nindexes)
{
	pgstat_progress_update_param(PROGRESS_VACUUM_PHASE, phase);
#if PG_VERSION_NUM >= 170000
	pgstat_progress_update_param(PROGRESS_VACUUM_INDEXES_TOTAL, nindexes);
#endif
}

/* of a worker, too */
static inline void
nvm_progress_index_done(void)
{
#if PG_VERSION_NUM >= 170000
	pgstat_progress_parallel_incr_param(PROGRESS_VACUUM_INDEXES_PROCESSED, 1);
#endif
}

static inline void
nvm_progress_end_indexes(void)
{
#if PG_VERSION_NUM >= 170000
	pgstat_progress_update_param(PROGRESS_VACUUM_INDEXES_TOTAL, 0);
	pgstat_progress_update_param(PROGRESS_VACUUM_INDEXES_PROCESSED, 0);
#endif
}

#if PG_VERSION_NUM >= 160000
#define nvm_index_vacuum_heap(info, rel)	((info)->heaprel = (rel))
#else
#define nvm_index_vacuum_heap(info, rel)	((void) 0)
#endif

#if PG_VERSION_NUM >= 170000
#define NvmIsAutovacuum()		AmAutoVacuumWorkerProcess()
#else
#define NvmIsAutovacuum()		IsAutoVacuumWorkerProcess()
#endif

/* progress of dead TIDs: a number before 17, bytes since */
#if PG_VERSION_NUM >= 170000
#define NVM_PROGRESS_MAX_DEAD	PROGRESS_VACUUM_MAX_DEAD_TUPLE_BYTES
#define NVM_PROGRESS_NUM_DEAD	PROGRESS_VACUUM_DEAD_TUPLE_BYTES
#define NVM_PROGRESS_DEAD_UNIT	((int64) sizeof(ItemPointerData))
#else
#define NVM_PROGRESS_MAX_DEAD	PROGRESS_VACUUM_MAX_DEAD_TUPLES
#define NVM_PROGRESS_NUM_DEAD	PROGRESS_VACUUM_NUM_DEAD_TUPLES
#define NVM_PROGRESS_DEAD_UNIT	((int64) 1)
#endif

#if PG_VERSION_NUM >= 180000
#define nvm_index_scan_all(heap, index, snapshot) \
	index_beginscan(heap, index, snapshot, NULL, 0, 0)
#define nvm_index_scan_keys(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, NULL, nkeys, 0)
#else
#define nvm_index_scan_keys(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, nkeys, 0)
#define nvm_index_scan_all(heap, index, snapshot) \
	index_beginscan(heap, index, snapshot, 0, 0)
#endif

#endif							/* NVM_COMPAT_VACUUM_H */
