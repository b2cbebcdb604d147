/*-------------------------------------------------------------------------
 *
 * vacuum.c
 *	  VACUUM of a table.
 *
 * Most of the space of dead versions is reused without VACUUM.  Two things
 * remain for it: the roots of rows that are wholly dead, to which index
 * entries lead, and what the statistics want to know.  Phases, as in heap's:
 *
 *	1. scan the blocks, collect dead roots (vacuum_scan.c)
 *	2. remove their entries from all indexes
 *	3. flush the WAL of the indexes, then free the roots
 *	4. let the indexes clean up, update pg_class
 *
 * The order in 3 is invariant 8.  A crash may take back WAL that is not
 * flushed, and with it the removal of index entries.  Another row may have
 * the place of the root by then, and would be reached through them.
 *
 * The same pass heals SUSPECT blocks: a crash may have left index entries
 * that lead to cells of which nothing durable remains.  Since such cells are
 * not used for roots meanwhile, an entry that leads to a SUSPECT block, but to
 * no root, is one of those.
 *
 * The caller holds ShareUpdateExclusiveLock, so that nobody else vacuums, and
 * no index comes into being meanwhile.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/multixact.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "am/nvm_am.h"
#include "am/nvm_vacuum.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_identity.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "commands/dbcommands.h"
#include "compat/nvm_compat.h"
#include "compat/nvm_compat_vacuum.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "postmaster/autovacuum.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_space.h"
#include "storage/nvm_allvisible_set.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"
#include "xact/nvm_xact.h"

/* below this part of the blocks, dead roots may wait; as heap's */
#define BYPASS_THRESHOLD_BLOCKS 0.02
#define BYPASS_THRESHOLD_BYTES	(32 * 1024 * 1024)

static void
vacuum_index_info(NvmVacuum *vac, Relation indrel, IndexVacuumInfo *ivinfo,
				  double tuples, bool estimated)
{
	memset(ivinfo, 0, sizeof(*ivinfo));
	ivinfo->index = indrel;
	nvm_index_vacuum_heap(ivinfo, vac->rel);
	ivinfo->analyze_only = false;
	ivinfo->report_progress = false;
	ivinfo->estimated_count = estimated;
	ivinfo->message_level = DEBUG2;
	ivinfo->num_heap_tuples = tuples;
	ivinfo->strategy = vac->bstrategy;
}

/*
 * Remove the entries of the dead roots from one index; in a worker, too.  Returns
 * its statistics, of this and the former passes.
 */
IndexBulkDeleteResult *
nvm_vacuum_index(NvmVacuum *vac, Relation index, IndexBulkDeleteResult *stats)
{
	IndexVacuumInfo ivinfo;

	vac->indname = RelationGetRelationName(index);
	vacuum_index_info(vac, index, &ivinfo, Max(vac->rel->rd_rel->reltuples, 0), true);
	stats = index_bulk_delete(&ivinfo, stats, nvm_vacuum_tid_reaped, vac);
	vac->indname = NULL;
	nvm_progress_index_done();
	return stats;
}

/*
 * Remove the entries of the dead roots from all indexes.
 */
static void
vacuum_indexes(NvmVacuum *vac)
{
	bool		parallel;

	nvm_progress_begin_indexes(PROGRESS_VACUUM_PHASE_VACUUM_INDEX, vac->nindexes);
	parallel = nvm_vacuum_indexes_parallel(vac);
	if (!parallel)
		nvm_vacuum_map_dead(vac);
	for (int i = 0; i < vac->nindexes && !parallel; i++)
		vac->indstats[i] = nvm_vacuum_index(vac, vac->indrels[i], vac->indstats[i]);
	nvm_vacuum_unmap_dead(vac);
	vac->index_scans++;
	nvm_progress_end_indexes();
	pgstat_progress_update_param(PROGRESS_VACUUM_NUM_INDEX_VACUUMS,
								 vac->index_scans);

	NVM_FAILPOINT("vacuum-indexes-scanned");
	/* what any backend has done to the indexes so far */
	XLogFlush(NvmWalEnd());
	NVM_FAILPOINT("vacuum-indexes-flushed");
	/* with workers there was nothing beyond the end to look for */
	if (!parallel)
		nvm_dir_lower_count(vac->state);
}

/*
 * Make the dead roots of one block RETIRED, from vac->dead[from] on: no index
 * entry leads to them any more.  Returns the place of the first one behind them.
 */
static int64
vacuum_retire_roots(NvmVacuum *vac, int64 from)
{
	uint32		blkno = ItemPointerGetBlockNumber(&vac->dead[from]);
	LWLock	   *lock = nvm_row_lock(vac->dir, blkno);
	NvmRetireBatch batch;
	int64		i;

	nvm_retire_begin(&batch, vac->state, nvm_xact_stamp_if_any(vac->state->region));
	batch.retired_large = nvm_vacuum_note_values;
	batch.arg = vac;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (i = from; i < vac->ndead &&
		 ItemPointerGetBlockNumber(&vac->dead[i]) == blkno; i++)
	{
		uint32		off = ItemPointerGetOffsetNumber(&vac->dead[i]);

		if (nvm_begin_is(nvm_load(&nvm_cell(vac->state, blkno, off)->begin),
						 NVM_STAMP_DEAD))
			nvm_retire_add(&batch, blkno, off, NVM_STAMP_RETIRED);
	}
	nvm_retire_flush(&batch);
	LWLockRelease(lock);
	return i;
}

/*
 * Give the space of the dead roots back.
 */
static void
vacuum_free_roots(NvmVacuum *vac)
{
	int64		i = 0;

	pgstat_progress_update_param(PROGRESS_VACUUM_PHASE,
								 PROGRESS_VACUUM_PHASE_VACUUM_HEAP);
	while (i < vac->ndead)
	{
		uint32		blkno = ItemPointerGetBlockNumber(&vac->dead[i]);

		nvm_vacuum_delay();
		if (VacuumCostActive)
			VacuumCostBalance += VacuumCostPageDirty;
		vac->blkno = blkno;
		i = vacuum_retire_roots(vac, i);
		nvm_vacuum_free_values(vac, false);

		/* they become free when we have committed */
		nvm_space_note(vac->state, blkno, NVM_CELLS);
	}
	vac->blkno = InvalidBlockNumber;
	nvm_vacuum_forget_dead(vac);
	pgstat_progress_update_param(NVM_PROGRESS_NUM_DEAD, 0);
}

/*
 * SUSPECT blocks met so far are clean: no index leads to cells of theirs that
 * hold no root.
 */
static void
vacuum_clear_suspect(NvmVacuum *vac)
{
	nvm_allvisible_hold(vac->state);
	for (uint32 blkno = 0; blkno < vac->nblocks && vac->nsuspect > 0; blkno++)
	{
		NvmBlock   *block;
		LWLock	   *lock;

		if ((vac->suspect[blkno / 8] & (1 << (blkno % 8))) == 0)
			continue;
		block = nvm_block(vac->state, blkno);
		lock = nvm_alloc_lock(vac->dir, blkno);
		LWLockAcquire(lock, LW_EXCLUSIVE);
		block->flags &= ~NVM_BLOCK_SUSPECT;
		nvm_flush(block, NVM_BLOCK_HEADER_SIZE);
		LWLockRelease(lock);
		vac->suspect[blkno / 8] &= ~(1 << (blkno % 8));
		vac->nsuspect--;
		vac->suspect_cleaned++;
	}
	nvm_drain("vacuum-suspect-cleared");
}

/*
 * Work off what the scan has collected so far.
 */
void
nvm_vacuum_dead(NvmVacuum *vac)
{
	if (vac->ndead == 0 && vac->nsuspect == 0 && vac->state->had <= vac->nblocks)
		return;
	if (!vac->index_vacuuming)
	{
		nvm_vacuum_forget_dead(vac);
		return;
	}

	if (vac->nindexes > 0)
		vacuum_indexes(vac);
	if (vac->ndead > 0)
		vacuum_free_roots(vac);
	if (vac->nsuspect > 0)
		vacuum_clear_suspect(vac);
}

/*
 * The last time: a few dead roots are not worth a pass over all indexes.
 */
static void
vacuum_last_dead(NvmVacuum *vac)
{
	if (vac->may_bypass && vac->nindexes > 0 && vac->nsuspect == 0 &&
		vac->state->had <= vac->nblocks &&
		vac->ndead > 0 &&
		vac->dead_blocks < vac->nblocks * BYPASS_THRESHOLD_BLOCKS &&
		vac->ndead * (int64) sizeof(ItemPointerData) < BYPASS_THRESHOLD_BYTES)
	{
		vac->bypassed = true;
		nvm_vacuum_forget_dead(vac);
		return;
	}
	nvm_vacuum_dead(vac);
}

/*
 * Does the cleanup of an index read rows of the table?  BRIN's does, to
 * summarize what it has not; of methods we do not know it is to be feared.
 */
static bool
vacuum_indexes_read_rows(NvmVacuum *vac)
{
	for (int i = 0; i < vac->nindexes; i++)
	{
		switch (vac->indrels[i]->rd_rel->relam)
		{
			case BTREE_AM_OID:
			case HASH_AM_OID:
			case GIST_AM_OID:
			case GIN_AM_OID:
			case SPGIST_AM_OID:
				break;
			default:
				if (!nvm_relation_is_btree(vac->indrels[i]))
					return true;
		}
	}
	return false;
}

/*
 * Count as a reader from now on.  As VACUUM we keep nobody from reusing what
 * is dead.  Once we are no VACUUM any more, our snapshot's xmin does.  Not
 * with an xid: snapshots of others, which have passed over it, would find it
 * again.
 */
static void
vacuum_hold_horizon(void)
{
	LWLockAcquire(ProcArrayLock, LW_EXCLUSIVE);
	MyProc->statusFlags &= ~PROC_IN_VACUUM;
	ProcGlobal->statusFlags[MyProc->pgxactoff] = MyProc->statusFlags;
	LWLockRelease(ProcArrayLock);
}

/*
 * Last word of each index, and its statistics.
 */
static void
vacuum_cleanup_indexes(NvmVacuum *vac)
{
	double		tuples = (double) (vac->live + vac->recently_dead);

	nvm_progress_begin_indexes(PROGRESS_VACUUM_PHASE_INDEX_CLEANUP, vac->nindexes);
	for (int i = 0; i < vac->nindexes; i++)
	{
		IndexVacuumInfo ivinfo;
		IndexBulkDeleteResult *istat;

		vac->indname = RelationGetRelationName(vac->indrels[i]);
		vacuum_index_info(vac, vac->indrels[i], &ivinfo, tuples, false);
		istat = index_vacuum_cleanup(&ivinfo, vac->indstats[i]);
		vac->indstats[i] = istat;
		vac->indname = NULL;
		nvm_progress_index_done();

		if (istat != NULL && !istat->estimated_count)
			nvm_update_relstats(vac->indrels[i], istat->num_pages,
								istat->num_index_tuples, 0, false,
								InvalidTransactionId, InvalidMultiXactId,
								NULL, NULL);
	}
	nvm_progress_end_indexes();
}

static void
vacuum_set_options(NvmVacuum *vac, VacuumParams *params)
{
	vac->verbose = (params->options & VACOPT_VERBOSE) != 0;
	vac->index_vacuuming = params->index_cleanup != VACOPTVALUE_DISABLED;
	vac->index_cleanup = vac->index_vacuuming;
	vac->may_bypass = params->index_cleanup != VACOPTVALUE_ENABLED;
	vac->nworkers = params->nworkers;
}

/*
 * What is unlinked is unlinked in the name of a transaction.  An empty table in
 * memory needs no stamp: its region may have no room for slots.
 */
static void
vacuum_take_stamp(NvmRelState *state)
{
	if (nvm_rel_region(state)->durable || nvm_rel_nblocks(state) > 0)
		(void) nvm_xact_stamp(state->region);
}

/*
 * Fill in what is known before the scan.
 */
static void
vacuum_begin(NvmVacuum *vac, Relation rel, VacuumParams *params,
			 BufferAccessStrategy bstrategy)
{
	int			work_mem_kb;

	vac->rel = rel;
	vac->bstrategy = bstrategy;
	vac->relnamespace = get_namespace_name(RelationGetNamespace(rel));
	vac->relname = pstrdup(RelationGetRelationName(rel));
	vac->blkno = InvalidBlockNumber;
	vacuum_set_options(vac, params);

	vac_open_indexes(rel, RowExclusiveLock, &vac->nindexes, &vac->indrels);
	for (int i = 0; i < vac->nindexes; i++)
	{
		if (!NVM_FAILPOINT_MISSES("exchange-vacuumed"))
			(void) nvm_relation_is_btree(vac->indrels[i]);
		nvm_index_require_routine(vac->indrels[i]);
	}
	if (vacuum_indexes_read_rows(vac))
		vacuum_hold_horizon();

	vacuum_take_stamp(nvm_rel(rel));

	/* freeze what can be, so that little is left to pg_xact */
	nvm_wbl_advance_frozen();
	vac->aggressive = nvm_vacuum_cutoffs(rel, params, &vac->oldest_xmin,
										 &vac->oldest_mxact);
	vac->vistest = GlobalVisTestFor(rel);
	vac->old_frozenxid = rel->rd_rel->relfrozenxid;
	vac->old_minmulti = rel->rd_rel->relminmxid;
	vac->new_frozenxid = vac->oldest_xmin;
	vac->new_minmulti = vac->oldest_mxact;

	/* the horizon first: rows in blocks that are not scanned are younger */
	vac->state = nvm_rel(rel);
	vac->dir = vac->state->dir;
	vac->nblocks = nvm_rel_nblocks(vac->state);
	vacuum_take_stamp(vac->state);
	vac->suspect = (uint8 *)
		MemoryContextAllocExtended(CurrentMemoryContext, vac->nblocks / 8 + 1,
								   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);

	work_mem_kb = NvmIsAutovacuum() && autovacuum_work_mem != -1 ?
		autovacuum_work_mem : maintenance_work_mem;
	vac->dead_max = Max((int64) work_mem_kb * 1024 / (int64) sizeof(ItemPointerData),
						NVM_CELLS);
}

/*
 * Remember for the planner how much was visible to everybody.  pg_class does
 * not: autovacuum runs ANALYZE right after us, which counts the bits of a
 * visibility map there, and we have none.  Nothing depends on the note, so
 * nobody waits for it.
 */
static void
vacuum_note_visible(NvmVacuum *vac)
{
	NvmDirEntry *entry = nvm_dir_entry(vac->dir);

	entry->all_visible = vac->all_visible;
	nvm_flush(&entry->all_visible, sizeof(entry->all_visible));
}

/*
 * One broken pool shall not keep a database-wide VACUUM from its work.
 */
static bool
vacuum_is_possible(Relation rel)
{
	if (NvmPool != NULL && NvmPool->status == NVM_POOL_OPEN)
		return true;
	ereport(WARNING,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("skipping vacuum of \"%s\" --- the persistent-memory pool is not available",
					RelationGetRelationName(rel))));
	return false;
}

static void
vacuum_announce(NvmVacuum *vac)
{
	if (vac->verbose)
		ereport(INFO,
				(errmsg(vac->aggressive ?
						"aggressively vacuuming \"%s.%s.%s\"" :
						"vacuuming \"%s.%s.%s\"",
						get_database_name(MyDatabaseId),
						vac->relnamespace, vac->relname)));
}

/*
 * Make room for what is noted of each index.
 */
static void
vacuum_prepare_indexes(NvmVacuum *vac, VacuumParams *params)
{
	vac->indstats = (IndexBulkDeleteResult **)
		palloc0(sizeof(IndexBulkDeleteResult *) * (vac->nindexes + 1));
	vac->indnames = (char **) palloc0(sizeof(char *) * (vac->nindexes + 1));
	for (int i = 0; i < vac->nindexes; i++)
		vac->indnames[i] = pstrdup(RelationGetRelationName(vac->indrels[i]));
	if (vac->nindexes == 0)
		vac->index_vacuuming = true;	/* costs nothing */
	if (params->nworkers > 0 && vac->nindexes > 1 && vac->index_vacuuming &&
		RelationUsesLocalBuffers(vac->rel))
		ereport(WARNING,
				(errmsg("disabling parallel option of vacuum on \"%s\" --- cannot vacuum temporary tables in parallel",
						vac->relname)));
}

/*
 * Phases 1 to 4, but for pg_class.
 */
static void
vacuum_work(NvmVacuum *vac)
{
	nvm_vacuum_scan(vac);
	nvm_vacuum_unreachable(vac);
	vacuum_last_dead(vac);
	nvm_vacuum_free_values(vac, true);
	nvm_vacuum_find_clean(vac);
	if (vac->index_cleanup)
		vacuum_cleanup_indexes(vac);
	vac_close_indexes(vac->nindexes, vac->indrels, NoLock);
}

/*
 * Write down what was found: pg_class, the planner's note, cumulative
 * statistics.
 */
static void
vacuum_finish(NvmVacuum *vac, const NvmVacuumStart *start,
			  bool *frozenxid_updated, bool *minmulti_updated)
{
	pgstat_progress_update_param(PROGRESS_VACUUM_PHASE,
								 PROGRESS_VACUUM_PHASE_FINAL_CLEANUP);

	/*
	 * relfrozenxid may pass prepared transactions that were ended since, and
	 * is seen at once.  And we may no longer be marked as in VACUUM; of a
	 * process that is, the commit knows that.  And when pg_xact is cut off
	 * the log must have, durably, what it has answered.
	 */
	nvm_twophase_settle();
	if (nvm_log_is_on && nvm_rel(vac->rel)->region == NVM_REGION_VOLATILE)
		nvm_log_wait_outcomes(vac->new_frozenxid);
	nvm_update_relstats(vac->rel, vac->nblocks, (double) vac->live,
						vac->all_visible, vac->nindexes > 0,
						vac->new_frozenxid, vac->new_minmulti,
						frozenxid_updated, minmulti_updated);
	vacuum_note_visible(vac);

	/* autovacuum comes back for values, too, that it was too early to free */
	nvm_report_vacuum(vac->rel, vac->live,
					  vac->recently_dead + vac->missed_dead + vac->values_left,
					  start->time);
	pgstat_progress_end_command();
}

/*
 * A table that is yet to be rebuilt from the log is passed over: there is nothing to be
 * removed from it, and autovacuum has others to do.
 */
static bool
is_being_rebuilt(Relation rel)
{
	if (!nvm_table_is_being_rebuilt(rel))
		return false;
	ereport(NvmIsAutovacuum() ? DEBUG1 : WARNING,
			(errmsg("skipping vacuum of \"%s\" --- it is being rebuilt from the log",
					RelationGetRelationName(rel))));
	return true;
}

/*
 * relation_vacuum of the access method.
 */
void
nvm_relation_vacuum(Relation rel, struct VacuumParams *params,
					BufferAccessStrategy bstrategy)
{
	NvmVacuum  *vac;
	NvmVacuumStart start;
	ErrorContextCallback errcallback;
	bool		instrument;
	bool		frozenxid_updated;
	bool		minmulti_updated;

	if (!vacuum_is_possible(rel))
		return;
	nvm_table_require();
	if (is_being_rebuilt(rel))
		return;

	instrument = (params->options & VACOPT_VERBOSE) != 0 ||
		(NvmIsAutovacuum() && params->log_min_duration >= 0);
	nvm_vacuum_started(&start);
	pgstat_progress_start_command(PROGRESS_COMMAND_VACUUM,
								  RelationGetRelid(rel));

	vac = (NvmVacuum *) palloc0(sizeof(NvmVacuum));
	vacuum_begin(vac, rel, params, bstrategy);

	errcallback.callback = nvm_vacuum_error_context;
	errcallback.arg = vac;
	errcallback.previous = error_context_stack;
	error_context_stack = &errcallback;

	vacuum_announce(vac);
	vacuum_prepare_indexes(vac, params);
	vacuum_work(vac);

	error_context_stack = errcallback.previous;

	vacuum_finish(vac, &start, &frozenxid_updated, &minmulti_updated);
	if (instrument)
		nvm_vacuum_report(vac, params, &start, frozenxid_updated,
						  minmulti_updated);
}
