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
#include "access/htup_details.h"
#include "access/multixact.h"
#include "commands/progress.h"
#include "commands/vacuum.h"
#include "miscadmin.h"
#include "pgstat.h"
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
 * A parallel vacuum whose workers know dead[], which is in order; NULL if no
 * worker would be started.
 */
#if PG_VERSION_NUM >= 170000
static inline ParallelVacuumState *
nvm_parallel_vacuum_begin(Relation rel, Relation *indrels, int nindexes,
						  int nworkers, ItemPointerData *dead, int64 ndead,
						  int elevel, BufferAccessStrategy bstrategy)
{
	ParallelVacuumState *pvs =
	parallel_vacuum_init(rel, indrels, nindexes, nworkers,
						 maintenance_work_mem, elevel, bstrategy);
	VacDeadItemsInfo *info;
	TidStore   *store;
	OffsetNumber off[MaxHeapTuplesPerPage];

	if (pvs == NULL)
		return NULL;
	store = parallel_vacuum_get_dead_items(pvs, &info);
	for (int64 i = 0; i < ndead;)
	{
		BlockNumber blk = ItemPointerGetBlockNumber(&dead[i]);
		int			n = 0;

		while (i < ndead && n < (int) lengthof(off) &&
			   ItemPointerGetBlockNumber(&dead[i]) == blk)
			off[n++] = ItemPointerGetOffsetNumber(&dead[i++]);
		TidStoreSetBlockOffsets(store, blk, off, n);
		info->num_items += n;
	}
	return pvs;
}
#else
static inline ParallelVacuumState *
nvm_parallel_vacuum_begin(Relation rel, Relation *indrels, int nindexes,
						  int nworkers, ItemPointerData *dead, int64 ndead,
						  int elevel, BufferAccessStrategy bstrategy)
{
	ParallelVacuumState *pvs;
	VacDeadItems *items;

	/* the workers' array is one allocation; more than that goes without them */
	if (ndead > (int64) MAXDEADITEMS(MaxAllocSize))
		return NULL;
	pvs = parallel_vacuum_init(rel, indrels, nindexes, nworkers, (int) ndead,
							   elevel, bstrategy);
	if (pvs == NULL)
		return NULL;
	items = parallel_vacuum_get_dead_items(pvs);
	memcpy(items->items, dead, ndead * sizeof(ItemPointerData));
	items->num_items = (int) ndead;
	return pvs;
}
#endif

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
