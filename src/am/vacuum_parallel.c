/*-------------------------------------------------------------------------
 *
 * vacuum_parallel.c
 *	  VACUUM (PARALLEL): several processes remove entries from the indexes.
 *
 * PostgreSQL's parallel vacuum workers know the dead TIDs and nothing else.
 * So they serve where these are all that must go.  Entries that lead into
 * SUSPECT blocks are found by looking at the table, and the leader does that
 * alone (vacuum.c).
 *
 * A context is made for each pass over the indexes, with workers started as
 * for the first; there rarely is a second pass.  The last word of each index
 * stays with the leader.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "am/nvm_vacuum.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_identity.h"
#include "compat/nvm_compat_vacuum.h"
#include "miscadmin.h"
#include "optimizer/paths.h"
#include "storage/proc.h"
#include "utils/guc.h"

/*
 * Up to so many indexes VACUUM alone is done no later than with workers.
 * Those search a list for each entry, while VACUUM looks into bitmaps
 * (vacuum_dead.c).
 */
#define ALONE_INDEXES	3

/*
 * PostgreSQL asks an index's main fork whether a worker is worth its while, and
 * that of an nvm_btree index is empty.  Has one of these the size?
 */
static bool
vacuum_has_large_index(NvmVacuum *vac)
{
	for (int i = 0; i < vac->nindexes; i++)
	{
		if (nvm_relation_is_btree(vac->indrels[i]) && !nvm_index_says_btree(vac->indrels[i]) &&
			pg_atomic_read_u32(&nvm_index_cache(vac->indrels[i])->state->nblocks) >=
			(uint32) min_parallel_index_scan_size)
			return true;
	}
	return false;
}

/*
 * A parallel vacuum, or NULL if it is not worth it or there are no workers.
 */
static ParallelVacuumState *
vacuum_parallel_begin(NvmVacuum *vac)
{
	ParallelVacuumState *pvs;
	int			nestlevel = NewGUCNestLevel();

	if (vacuum_has_large_index(vac))
		(void) set_config_option("min_parallel_index_scan_size", "0",
								 PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	pvs = nvm_parallel_vacuum_begin(vac->rel, vac->indrels, vac->nindexes,
									vac->nworkers, vac->dead, vac->ndead,
									vac->verbose ? INFO : DEBUG2,
									vac->bstrategy);
	AtEOXact_GUC(false, nestlevel);
	return pvs;
}

/*
 * Remove entries with workers.  Each takes over what the leader's PGPROC says
 * of the leader, and is to be a VACUUM.  For horizons the proc array's copy
 * of that counts.  It says reader where the leader is one (vacuum.c), and its
 * xmin is no newer than a worker's.
 */
static void
vacuum_bulkdel_with_workers(NvmVacuum *vac, ParallelVacuumState *pvs)
{
	uint8		flags = MyProc->statusFlags;

	MyProc->statusFlags |= PROC_IN_VACUUM;
	parallel_vacuum_bulkdel_all_indexes(pvs, (long) Max(vac->rel->rd_rel->reltuples, 0), 0);
	MyProc->statusFlags = flags;	/* after an ERROR the abort sees to it */
}

/*
 * Remove the entries of vac->dead from all indexes, if workers were asked for, or
 * there are many indexes, and workers can do it.  Returns false if nothing was done.
 */
bool
nvm_vacuum_indexes_parallel(NvmVacuum *vac)
{
	IndexBulkDeleteResult **stats;
	ParallelVacuumState *pvs;

	if (vac->nworkers < 0 || vac->nindexes < 2 || vac->ndead == 0 ||
		vac->nsuspect > 0 || vac->state->had > 0 || RelationUsesLocalBuffers(vac->rel))
		return false;
	if (vac->nworkers == 0 && vac->nindexes <= ALONE_INDEXES && nvm_vacuum_can_map_dead(vac))
		return false;

	pvs = vacuum_parallel_begin(vac);
	if (pvs == NULL)
		return false;			/* too small, or no workers allowed */

	vacuum_bulkdel_with_workers(vac, pvs);
	stats = (IndexBulkDeleteResult **)
		palloc0(sizeof(IndexBulkDeleteResult *) * vac->nindexes);
	parallel_vacuum_end(pvs, stats);

	for (int i = 0; i < vac->nindexes; i++)
	{
		if (stats[i] == NULL)
			continue;
		if (vac->indstats[i] != NULL)
		{
			stats[i]->tuples_removed += vac->indstats[i]->tuples_removed;
			stats[i]->pages_newly_deleted += vac->indstats[i]->pages_newly_deleted;
		}
		vac->indstats[i] = stats[i];
	}
	pfree(stats);
	return true;
}
