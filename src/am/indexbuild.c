/*-------------------------------------------------------------------------
 *
 * indexbuild.c
 *	  The scans that fill an index: CREATE INDEX, REINDEX, BRIN's ranges, and
 *	  the second phase of CREATE INDEX CONCURRENTLY.
 *
 * Both walk roots in the order of their TIDs and follow each row's chain
 * wherever it leads.  An entry is made of the version that counts, and holds
 * the root's TID.  As with heap's HOT chains, an index built so may not serve
 * snapshots that see an older version of a row: ii_BrokenHotChain.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "am/nvm_am.h"
#include "am/nvm_scan.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_identity.h"
#include "catalog/catalog.h"
#include "catalog/index.h"
#include "commands/progress.h"
#include "compat/nvm_compat_am.h"
#include "executor/executor.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "pgstat.h"
#include "pool/nvm_pool.h"
#include "row/nvm_chain.h"
#include "row/nvm_tuple_slot.h"
#include "row/nvm_version.h"
#include "row/nvm_visibility.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_block.h"

/* what both scans need to make index entries */
typedef struct NvmIndexBuild
{
	Relation	rel;
	Relation	index;
	IndexInfo  *info;
	NvmScanDesc scan;
	EState	   *estate;
	ExprContext *econtext;
	ExprState  *predicate;
	TupleTableSlot *slot;
	struct GlobalVisState *vistest;
	bool		anyvisible;
	bool		unique;			/* verifying uniqueness or exclusion */
	double		reltuples;
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
} NvmIndexBuild;

static void
nvm_build_init(NvmIndexBuild *build, Relation rel, Relation index, IndexInfo *info)
{
	memset(build, 0, sizeof(NvmIndexBuild));
	build->rel = rel;
	build->index = index;
	build->info = info;
	build->unique = info->ii_Unique || info->ii_ExclusionOps != NULL;
	build->estate = CreateExecutorState();
	build->econtext = GetPerTupleExprContext(build->estate);
	build->slot = table_slot_create(rel, NULL);
	build->econtext->ecxt_scantuple = build->slot;
	build->predicate = ExecPrepareQual(info->ii_Predicate, build->estate);
}

static void
nvm_build_end(NvmIndexBuild *build)
{
	ExecDropSingleTupleTableSlot(build->slot);
	FreeExecutorState(build->estate);

	/* they may point into the executor state */
	build->info->ii_ExpressionsState = NIL;
	build->info->ii_PredicateState = NULL;
}

/*
 * Put the version in the slot and compute the index's columns.  False if the
 * index's predicate does not want it.
 */
static bool
nvm_build_form(NvmIndexBuild *build, NvmVersion *v, uint64 ref)
{
	MemoryContextReset(build->econtext->ecxt_per_tuple_memory);
	nvm_tts_set(build->slot, build->scan->state, build->scan->relid, v,
				NVM_REF_BLOCK(ref), NVM_REF_OFFSET(ref));

	if (build->predicate != NULL && !ExecQual(build->predicate, build->econtext))
		return false;
	FormIndexDatum(build->info, build->slot, build->estate, build->values,
				   build->isnull);
	return true;
}

/*
 * Does the row go on behind this version, under the same root?
 */
static bool
nvm_version_has_successor(NvmVersion *v)
{
	uint64		next = nvm_load(&v->next);

	return NVM_REF_IS_VALID(next) &&
		!(NVM_REF_HI(next) & (NVM_NEXT_OTHER_ROOT | NVM_NEXT_MOVED));
}

/*
 * Wait for the transaction that makes up its mind about a version.
 */
static void
nvm_build_wait(NvmIndexBuild *build, TransactionId xid, uint64 ref)
{
	ItemPointerData tid;

	ItemPointerSet(&tid, NVM_REF_BLOCK(ref), NVM_REF_OFFSET(ref));
	XactLockTableWait(xid, build->rel, &tid, XLTW_InsertIndexUnique);
	CHECK_FOR_INTERRUPTS();
}

/* does a version go into the index? */
typedef enum BuildAnswer
{
	BUILD_TAKE,
	BUILD_LEAVE,
	BUILD_ASK_AGAIN				/* its transaction has ended meanwhile */
} BuildAnswer;

/*
 * A version that is dead to us, but that somebody may still see through this
 * index.  Its successor, if there is one, takes its place.
 */
static BuildAnswer
nvm_build_wants_old(NvmIndexBuild *build, NvmVersion *v)
{
	if (!nvm_version_has_successor(v))
		return BUILD_TAKE;
	build->info->ii_BrokenHotChain = true;
	return BUILD_LEAVE;
}

/*
 * A version whose transaction, xid, is in progress.
 */
static BuildAnswer
nvm_build_wants_new(NvmIndexBuild *build, TransactionId xid, uint64 ref)
{
	if (build->anyvisible || TransactionIdIsCurrentTransactionId(xid))
	{
		build->reltuples += 1;
		return BUILD_TAKE;
	}
	elog(WARNING, "concurrent insert in progress within table \"%s\"",
		 RelationGetRelationName(build->rel));
	if (build->unique)
	{
		nvm_build_wait(build, xid, ref);
		return BUILD_ASK_AGAIN;
	}
	return BUILD_TAKE;
}

/*
 * A version that xid, which is in progress, has ended.
 */
static BuildAnswer
nvm_build_wants_ending(NvmIndexBuild *build, NvmVersion *v, TransactionId xid,
					   uint64 ref)
{
	if (build->anyvisible)
	{
		build->reltuples += 1;
		return BUILD_TAKE;
	}

	/* ours; should we abort, the index goes, too */
	if (TransactionIdIsCurrentTransactionId(xid))
		return nvm_build_wants_old(build, v);

	elog(WARNING, "concurrent delete in progress within table \"%s\"",
		 RelationGetRelationName(build->rel));

	/* whether it or its successor counts is not yet known */
	if (build->unique || nvm_version_has_successor(v))
	{
		nvm_build_wait(build, xid, ref);
		return BUILD_ASK_AGAIN;
	}
	build->reltuples += 1;
	return BUILD_TAKE;
}

/*
 * Does a version go into the index, and does it count as alive there?  The
 * rules are heap's: what ANALYZE counts, reltuples counts.
 */
static bool
nvm_build_wants(NvmIndexBuild *build, NvmVersion *v, uint64 ref, bool *alive)
{
	BuildAnswer answer;

	do
	{
		TransactionId xid;

		*alive = false;
		answer = BUILD_LEAVE;
		switch (nvm_version_vacuum_state(v, build->vistest, &xid))
		{
			case NVM_VAC_LIVE:
				*alive = true;
				build->reltuples += 1;
				answer = BUILD_TAKE;
				break;
			case NVM_VAC_RECENTLY_DEAD:
				answer = nvm_build_wants_old(build, v);
				break;
			case NVM_VAC_INSERT_IN_PROGRESS:
				*alive = true;
				answer = nvm_build_wants_new(build, xid, ref);
				break;
			case NVM_VAC_DELETE_IN_PROGRESS:
				answer = nvm_build_wants_ending(build, v, xid, ref);
				break;
			case NVM_VAC_DEAD:
			case NVM_VAC_STUB:
			case NVM_VAC_DEAD_ROOT:
			case NVM_VAC_RETIRED:
			case NVM_VAC_FREE:
				break;
		}
	} while (answer == BUILD_ASK_AGAIN);
	return answer == BUILD_TAKE;
}

/*
 * Call back for what the index needs of one row.
 */
static void
nvm_build_row(NvmIndexBuild *build, uint64 root, IndexBuildCallback callback,
			  void *callback_state)
{
	NvmScanDesc scan = build->scan;
	Snapshot	snapshot = scan->base.rs_snapshot;
	ItemPointerData roottid;
	NvmVersion *v;

	ItemPointerSet(&roottid, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));

	if (snapshot == SnapshotAny)
	{
		NvmChainPos pos = {0};

		while ((v = nvm_chain_next(scan->state, root, &pos)) != NULL)
		{
			bool		alive;

			if (!nvm_build_wants(build, v, pos.ref, &alive))
				continue;

			/*
			 * An index that each start rebuilds: a wrong length must not end
			 * the server each time.
			 */
			if (build->anyvisible && !nvm_version_is_sound(v))
				nvm_version_damaged(build->rel, NVM_REF_BLOCK(pos.ref), NVM_REF_OFFSET(pos.ref));
			if (nvm_build_form(build, v, pos.ref))
				callback(build->index, &roottid, build->values, build->isnull,
						 alive, callback_state);
		}
	}
	else
	{
		ItemPointerData tid;

		v = nvm_chain_search(NULL, scan->state, root, snapshot, &tid, NULL);
		if (v == NULL)
			return;
		build->reltuples += 1;
		if (nvm_build_form(build, v, NVM_REF_MAKE(ItemPointerGetBlockNumber(&tid),
												  ItemPointerGetOffsetNumber(&tid), 0)))
			callback(build->index, &roottid, build->values, build->isnull, true,
					 callback_state);
	}
}

static BlockNumber
nvm_build_total_blocks(NvmScanDesc scan)
{
	if (scan->base.rs_parallel != NULL)
		return ((ParallelBlockTableScanDesc) scan->base.rs_parallel)->phs_nblocks;
	return scan->nblocks;
}

/*
 * Is there a root, or what remains of one, at a start of the current block?
 * A cheap guess; the chain functions know for certain.
 */
static inline bool
nvm_build_is_root(NvmVersion *v)
{
	uint64		begin = nvm_load(&v->begin);

	return NVM_STAMP_SLOT(begin) == NVM_STAMP_STUB ||
		(nvm_begin_is_version(begin) && (v->flags & NVM_VF_ROOT));
}

/*
 * Begin the scan of a build, unless it is a parallel one, which comes with its
 * scan.  True if a snapshot was registered for it.
 */
static bool
nvm_build_begin_scan(NvmIndexBuild *build, bool allow_sync, TableScanDesc sscan)
{
	Snapshot	snapshot;
	bool		registered = false;

	/*
	 * A normal build looks at all versions and judges by itself what has to
	 * be in the index; a concurrent one takes what a snapshot sees.
	 */
	if (sscan == NULL)
	{
		if (build->info->ii_Concurrent)
		{
			snapshot = RegisterSnapshot(GetTransactionSnapshot());
			registered = true;
		}
		else
			snapshot = SnapshotAny;
		sscan = table_beginscan_strat(build->rel, snapshot, 0, NULL, true, allow_sync);
	}
	else
		snapshot = sscan->rs_snapshot;	/* parallel build */
	build->scan = (NvmScanDesc) sscan;

	if (snapshot == SnapshotAny)
	{
		/* makes the horizon of vistest as recent as heap's OldestXmin */
		(void) GetOldestNonRemovableTransactionId(build->rel);
		build->vistest = GlobalVisTestFor(build->rel);
	}
	return registered;
}

/*
 * A stop takes the rows of a table in memory, and leaves the files of indexes of
 * PostgreSQL's own.  That their entries lead to no other rows is seen to by the
 * recovery worker (vlog/vlog_place.c), which there is once the log has begun.
 */
static void
expect_left_entries(Relation rel, Relation index)
{
	NvmRelState *state = nvm_rel(rel);

	if (state->region != NVM_REGION_VOLATILE || nvm_relation_is_btree(index) ||
		rel->rd_rel->relpersistence == RELPERSISTENCE_TEMP || !nvm_log_is_on)
		return;
	nvm_log_require_begun();
	nvm_dir_begin_count(state);
}

/*
 * The rows whose roots are in the current block of the scan.
 */
static void
nvm_build_block(NvmIndexBuild *build, IndexBuildCallback callback,
				void *callback_state)
{
	NvmScanDesc scan = build->scan;
	uint32		cell;

	while ((cell = nvm_scan_next_cell(scan)) != 0)
	{
		uint64		begin;

		if (!nvm_scan_is_area(scan, nvm_scan_version(scan, cell), &begin) ||
			!nvm_build_is_root(nvm_scan_version(scan, cell)))
			continue;
		CHECK_FOR_INTERRUPTS();
		nvm_build_row(build, NVM_REF_MAKE(scan->blk, cell, 0), callback,
					  callback_state);
	}
}

double
nvm_index_build_range_scan(Relation rel, Relation index, struct IndexInfo *info,
						   bool allow_sync, bool anyvisible, bool progress,
						   BlockNumber start_blockno, BlockNumber numblocks,
						   IndexBuildCallback callback, void *callback_state,
						   TableScanDesc sscan)
{
	NvmIndexBuild build;
	NvmScanDesc scan;
	Snapshot	snapshot;
	bool		registered;

	if (nvm_index_take_over_build(rel, index, info, sscan, &build.reltuples))
		return build.reltuples;
	expect_left_entries(rel, index);
	nvm_build_init(&build, rel, index, info);
	build.anyvisible = anyvisible;
	Assert(!(anyvisible && build.unique));

	registered = nvm_build_begin_scan(&build, allow_sync, sscan);
	scan = build.scan;
	snapshot = scan->base.rs_snapshot;

	if (progress)
		pgstat_progress_update_param(PROGRESS_SCAN_BLOCKS_TOTAL,
									 nvm_build_total_blocks(scan));
	if (!allow_sync)
		nvm_scan_set_limits(scan, start_blockno,
							numblocks == InvalidBlockNumber ? scan->nblocks : numblocks);

	while (nvm_scan_next_block(scan, ForwardScanDirection, false))
	{
		if (progress)
			pgstat_progress_update_param(PROGRESS_SCAN_BLOCKS_DONE,
										 nvm_scan_blocks_done(scan));
		nvm_build_block(&build, callback, callback_state);
	}

	if (progress)
		pgstat_progress_update_param(PROGRESS_SCAN_BLOCKS_DONE,
									 nvm_build_total_blocks(scan));
	table_endscan(&scan->base);
	if (registered)
		UnregisterSnapshot(snapshot);
	nvm_build_end(&build);
	return build.reltuples;
}

/*
 * Advance the sorted contents of the index to the first TID that is not below
 * root.  False if there is none.
 */
static bool
nvm_validate_advance(struct ValidateIndexState *state, ItemPointer cursor,
					 bool *started, bool *exhausted, ItemPointer root)
{
	while (!*exhausted &&
		   (!*started || ItemPointerCompare(cursor, root) < 0))
	{
		Datum		value;
		bool		isnull;

		if (!nvm_tuplesort_getdatum(state->tuplesort, &value, &isnull))
		{
			*exhausted = true;
			break;
		}
		Assert(!isnull);
		itemptr_decode(cursor, DatumGetInt64(value));
		*started = true;
#ifndef USE_FLOAT8_BYVAL
		pfree(DatumGetPointer(value));
#endif
	}
	return !*exhausted;
}

/*
 * Insert entries for rows that the snapshot sees and the index lacks.  Roots
 * come in the order of their TIDs, as do the TIDs of the index.
 */
void
nvm_index_validate_scan(Relation rel, Relation index, struct IndexInfo *info,
						Snapshot snapshot, struct ValidateIndexState *state)
{
	NvmIndexBuild build;
	NvmScanDesc scan;
	TableScanDesc sscan;
	ItemPointerData cursor;
	bool		started = false;
	bool		exhausted = false;

	nvm_index_take_over_validation(rel, index, info, state);
	nvm_index_require_routine(index);
	nvm_build_init(&build, rel, index, info);
	sscan = table_beginscan_strat(rel, snapshot, 0, NULL, true, false);
	build.scan = scan = (NvmScanDesc) sscan;

	pgstat_progress_update_param(PROGRESS_SCAN_BLOCKS_TOTAL, scan->nblocks);

	while (nvm_scan_next_block(scan, ForwardScanDirection, false))
	{
		uint32		cell;

		pgstat_progress_update_param(PROGRESS_SCAN_BLOCKS_DONE, scan->blk);
		while ((cell = nvm_scan_next_cell(scan)) != 0)
		{
			ItemPointerData root;
			ItemPointerData tid;
			NvmVersion *v;
			uint64		begin;

			if (!nvm_scan_is_area(scan, nvm_scan_version(scan, cell), &begin) ||
				!nvm_build_is_root(nvm_scan_version(scan, cell)))
				continue;
			CHECK_FOR_INTERRUPTS();

			v = nvm_chain_search(NULL, scan->state, NVM_REF_MAKE(scan->blk, cell, 0),
								 snapshot, &tid, NULL);
			if (v == NULL)
				continue;
			state->htups += 1;

			ItemPointerSet(&root, scan->blk, cell);
			if (nvm_validate_advance(state, &cursor, &started, &exhausted, &root) &&
				ItemPointerEquals(&cursor, &root))
				continue;		/* the index has it */

			if (!nvm_build_form(&build, v,
								NVM_REF_MAKE(ItemPointerGetBlockNumber(&tid),
											 ItemPointerGetOffsetNumber(&tid), 0)))
				continue;

			/*
			 * The version may be dead by now.  That is no reason to skip the
			 * uniqueness check: it stands for the whole row.
			 */
			index_insert(index, build.values, build.isnull, &root, rel,
						 info->ii_Unique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO,
						 false, info);
			state->tups_inserted += 1;
		}
	}

	table_endscan(sscan);
	nvm_build_end(&build);
}
