/*-------------------------------------------------------------------------
 *
 * cmdlog.c
 *	  Access method `nvm_cmdlog`: the lanes of rows, before they are written.
 *
 * Its tables lie where those of nvm_vlog do, and are logged as those are.  The routine
 * is a copy of nvm's, but for the callbacks that write rows: before anything else they
 * take the lanes of the row that is to go and of the one that is to come
 * (command/README.md).  A lane is waited for with no lock of ours held.  So the row may
 * have changed by then, and the callback finds that out as if the wait had been for the
 * row: INSERT meets the key that has come, UPDATE and DELETE answer TM_Updated.
 *
 * Rows are also locked in order to be written: by FOR UPDATE, by ON CONFLICT DO UPDATE,
 * before a trigger.  The lane comes before that lock, too.  Else a call would get the
 * lane and wait for the row, while who has the row waits for the lane.  With NOWAIT and
 * SKIP LOCKED nothing is waited for, and rows of shared tables may be locked in calls.
 *
 * No lanes are taken for
 *
 *	- temporary and UNLOGGED tables: a replay does not bring them back.  To a call they
 *	  are what tables of other methods are;
 *	- a table that the transaction has made itself, so also the copy that ALTER TABLE
 *	  writes: nobody else sees it.  Its lock orders it with calls; a lane that is waited
 *	  for behind that lock could be held by a call that waits for it;
 *	- VACUUM FULL and CLUSTER, which write no row that was not there;
 *	- calls that are replayed: what they write is a copy (replay/README.md).
 *
 * In a call, a sequential scan, a sample and a search by TID read rows of any lane, so
 * for a partitioned table they are noted.  Scans of indexes in the pool are judged
 * when their conditions are known (btree/btree_pin.c), and those of other indexes when
 * the query is started.  So is the search of ON CONFLICT DO NOTHING, which may find a row of
 * another lane and write none.  Not judged, since no query reads by them:
 *
 *	- unique checks of an insertion: each unique index of a partitioned table has the
 *	  partition column, so they look at rows of the lane of the row that is to come, and
 *	  the insertion has needed that lane;
 *	- scans of index builds, VACUUM and ANALYZE: no call comes to them but by a utility
 *	  command, which is a reason by itself.  What ANALYZE finds has a say in plans, and
 *	  plans have none in what a call may do;
 *	- ranges that the planner looks up in an index, for the same reason.
 *
 * The queries of foreign keys are judged like any other: whether the row that they look
 * for is there depends on who has written its lane.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "am/nvm_am.h"
#include "btree/nvm_btree.h"
#include "catalog/pg_class.h"
#include "command/nvm_command.h"
#include "compat/nvm_compat_am.h"
#include "fmgr.h"
#include "nodes/execnodes.h"
#include "nodes/nodeFuncs.h"
#include "row/nvm_large.h"
#include "row/nvm_modify.h"
#include "row/nvm_relation.h"
#include "row/nvm_version.h"
#include "utils/rel.h"
#include "xact/nvm_storage.h"

PG_FUNCTION_INFO_V1(nvm_cmdlog_handler);

/* complete once anybody has asked for it */
static TableAmRoutine cmdlog_routine;

/* ---- lanes of rows ---- */

/* a lane of no row */
#define NO_LANE		NVM_LANES

static uint32
lane_of_value(Relation rel, AttrNumber column, Datum value, bool isnull)
{
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(rel), column - 1);

	/* from before NOT NULL: in no lane, so as of a shared table */
	if (isnull)
		return 0;
	return nvm_lane_of(att->atttypid, att->attcollation, value);
}

static uint32
lane_of_slot(Relation rel, AttrNumber column, TupleTableSlot *slot)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, column, &isnull);

	return lane_of_value(rel, column, value, isnull);
}

/*
 * The lane of the version at tid, which the command has found.  NO_LANE if there is
 * none: who changes it says so.
 */
static uint32
lane_of_version(Relation rel, AttrNumber column, ItemPointer tid)
{
	NvmVersion *v = nvm_version_to_change(rel, nvm_rel(rel), tid);
	HeapTupleData tuple;
	Datum		value;
	Datum		flat;
	bool		isnull;
	uint32		lane;

	if (v == NULL)
		return NO_LANE;
	tuple.t_len = v->len;
	tuple.t_self = *tid;
	tuple.t_tableOid = RelationGetRelid(rel);
	tuple.t_data = NvmVersionTuple(v);
	value = flat = heap_getattr(&tuple, column, RelationGetDescr(rel), &isnull);
	if (!isnull && TupleDescAttr(RelationGetDescr(rel), column - 1)->attlen == -1 &&
		VARATT_IS_EXTERNAL(DatumGetPointer(value)))
		flat = nvm_large_datum(value, CurrentMemoryContext);
	lane = lane_of_value(rel, column, flat, isnull);
	if (flat != value && !nvm_large_is_single(value))
		pfree(DatumGetPointer(flat));
	return lane;
}

/*
 * A row of this lane is going to be written.
 */
static void
take_lane(Relation rel, uint32 lane)
{
	bool		in_call = nvm_command_in_call();

	if (in_call && lane != 0 && nvm_lane_is_held(lane))
		return;
	if (in_call)
		nvm_command_disqualify(lane != 0 ? NVM_REASON_OTHER_LANE : NVM_REASON_SHARED_WRITTEN,
							   RelationRelationId, RelationGetRelid(rel));
	else
		nvm_command_disqualify(NVM_REASON_OUTSIDE, RelationRelationId, RelationGetRelid(rel));
	if (rel->rd_createSubid != InvalidSubTransactionId)
		return;
	if (lane != 0)
		nvm_lane_write_values(lane);
	else
		nvm_lane_write_shared();
}

/*
 * Rows of rel are going to be written.  False if they have no lanes; *column: of the
 * partition, or InvalidAttrNumber.
 */
static bool
has_lanes(Relation rel, AttrNumber *column)
{
	if (unlikely(nvm_command_replaying))
	{
		/* who replays sees to the order; the checksum is of these storages */
		if (nvm_command_is_table(rel))
			nvm_command_writes(nvm_rel(rel)->dir, RelationGetRelid(rel), false);
		return false;
	}
	if (!nvm_command_is_table(rel))
	{
		if (nvm_command_in_call())
			nvm_command_disqualify(NVM_REASON_OTHER_TABLE_WRITTEN,
								   RelationRelationId, RelationGetRelid(rel));
		return false;
	}
	nvm_command_writes(nvm_rel(rel)->dir, RelationGetRelid(rel),
					   OidIsValid(nvm_command_key_index(rel)));
	*column = nvm_command_partition_column(rel, NULL);
	return true;
}

/*
 * Before a row is written: `slot` is to come, or NULL; the one at `tid` is to go, or
 * NULL.  Two lanes are taken in their order.
 */
static void
before_write(Relation rel, TupleTableSlot *slot, ItemPointer tid)
{
	AttrNumber	column;
	uint32		to = NO_LANE;
	uint32		from = NO_LANE;

	if (!has_lanes(rel, &column))
		return;
	if (column == InvalidAttrNumber)
	{
		take_lane(rel, 0);
		return;
	}
	if (slot != NULL)
		to = lane_of_slot(rel, column, slot);
	if (tid != NULL)
		from = lane_of_version(rel, column, tid);
	if (Min(from, to) != NO_LANE)
		take_lane(rel, Min(from, to));
	if (Max(from, to) != NO_LANE && from != to)
		take_lane(rel, Max(from, to));
}

/* ---- callbacks that write rows, or lock them for that ---- */

static void
cmdlog_insert(Relation rel, TupleTableSlot *slot, CommandId cid, int options,
			  struct BulkInsertStateData *bistate)
{
	before_write(rel, slot, NULL);
	nvm_tuple_insert(rel, slot, cid, options, bistate);
}

static void
cmdlog_insert_speculative(Relation rel, TupleTableSlot *slot, CommandId cid, int options,
						  struct BulkInsertStateData *bistate, uint32 spec_token)
{
	before_write(rel, slot, NULL);
	nvm_tuple_insert_speculative(rel, slot, cid, options, bistate, spec_token);
}

static void
cmdlog_multi_insert(Relation rel, TupleTableSlot **slots, int nslots, CommandId cid,
					int options, struct BulkInsertStateData *bistate)
{
	AttrNumber	column;
	uint32		last = NO_LANE;

	if (has_lanes(rel, &column))
	{
		for (int i = 0; i < nslots; i++)
		{
			uint32		lane = column == InvalidAttrNumber ? 0 : lane_of_slot(rel, column, slots[i]);

			if (lane != last)
				take_lane(rel, lane);
			last = lane;
		}
	}
	nvm_multi_insert(rel, slots, nslots, cid, options, bistate);
}

static TM_Result
cmdlog_delete(Relation rel, ItemPointer tid, CommandId cid, Snapshot snapshot,
			  Snapshot crosscheck, bool wait, TM_FailureData *tmfd, bool changing_part)
{
	before_write(rel, NULL, tid);
	return nvm_tuple_delete(rel, tid, cid, snapshot, crosscheck, wait, tmfd, changing_part);
}

static TM_Result
cmdlog_update(Relation rel, ItemPointer otid, TupleTableSlot *slot, CommandId cid,
			  Snapshot snapshot, Snapshot crosscheck, bool wait, TM_FailureData *tmfd,
			  LockTupleMode *lockmode, NvmUpdateIndexes *update_indexes)
{
	before_write(rel, slot, otid);
	return nvm_tableam_routine.tuple_update(rel, otid, slot, cid, snapshot, crosscheck, wait,
											tmfd, lockmode, update_indexes);
}

static TM_Result
cmdlog_lock(Relation rel, ItemPointer tid, Snapshot snapshot, TupleTableSlot *slot,
			CommandId cid, LockTupleMode mode, LockWaitPolicy wait_policy, uint8 flags,
			TM_FailureData *tmfd)
{
	nvm_command_locks();
	if (mode >= LockTupleNoKeyExclusive && wait_policy == LockWaitBlock &&
		!nvm_command_replaying && nvm_command_is_table(rel))
	{
		AttrNumber	column = nvm_command_partition_column(rel, NULL);
		uint32		lane = column == InvalidAttrNumber ? NO_LANE : lane_of_version(rel, column, tid);

		if (lane != NO_LANE)
			take_lane(rel, lane);
	}
	return nvm_tuple_lock(rel, tid, snapshot, slot, cid, mode, wait_policy, flags, tmfd);
}

/* ---- reads of a call ---- */

/*
 * A call reads rows of rel of any lane, as it may if it holds all of them.
 */
static void
note_unpinned(Relation rel)
{
	if (!nvm_command_replaying && nvm_command_is_table(rel) &&
		nvm_command_partition_column(rel, NULL) != InvalidAttrNumber &&
		!nvm_lane_is_held(NVM_LANES))
		nvm_command_disqualify(NVM_REASON_NOT_PINNED, RelationRelationId, RelationGetRelid(rel));
}

/*
 * A bitmap is judged by the scans of indexes that make it.
 */
static TableScanDesc
cmdlog_scan_begin(Relation rel, Snapshot snapshot, int nkeys, struct ScanKeyData *key,
				  ParallelTableScanDesc pscan, uint32 flags)
{
	if (unlikely(nvm_command_in_call()) && snapshot != NULL && IsMVCCSnapshot(snapshot) &&
		(flags & (SO_TYPE_SEQSCAN | SO_TYPE_SAMPLESCAN | SO_TYPE_TIDSCAN | SO_TYPE_TIDRANGESCAN)) != 0)
		note_unpinned(rel);
	return nvm_scan_begin(rel, snapshot, nkeys, key, pscan, flags);
}

static bool
has_others_unique_index(Relation rel)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *lc;
	bool		has = false;

	foreach(lc, indexes)
	{
		Relation	index;

		if (nvm_index_is_ours(lfirst_oid(lc)))
			continue;
		index = index_open(lfirst_oid(lc), AccessShareLock);
		has |= index->rd_index->indisunique;
		index_close(index, NoLock);
	}
	list_free(indexes);
	return has;
}

/*
 * Note that ON CONFLICT DO NOTHING looks for rows by an index in a file, or may
 * do so in partitions that are not known yet.  DO UPDATE takes the lane of what it finds.
 */
static void
note_search(ModifyTableState *node)
{
	Relation	rel = node->resultRelInfo->ri_RelationDesc;

	if (((ModifyTable *) node->ps.plan)->onConflictAction != ONCONFLICT_NOTHING ||
		rel == NULL)
		return;
	if (node->mt_partition_tuple_routing != NULL)
	{
		if (!nvm_lane_is_held(NVM_LANES))
			nvm_command_disqualify(NVM_REASON_NOT_PINNED, RelationRelationId,
								   RelationGetRelid(rel));
	}
	else if (has_others_unique_index(rel))
		note_unpinned(rel);
}

/*
 * Note what a query reads of a partitioned table by an index that does not lie in the
 * pool.
 */
static bool
note_others_index(PlanState *node, void *context)
{
	Relation	index = NULL;
	Relation	table;

	if (node == NULL)
		return false;
	if (IsA(node, ModifyTableState))
		note_search((ModifyTableState *) node);
	if (IsA(node, IndexScanState))
		index = ((IndexScanState *) node)->iss_RelationDesc;
	else if (IsA(node, IndexOnlyScanState))
		index = ((IndexOnlyScanState *) node)->ioss_RelationDesc;
	else if (IsA(node, BitmapIndexScanState))
		index = ((BitmapIndexScanState *) node)->biss_RelationDesc;
	if (index != NULL && !nvm_relation_is_btree(index))
	{
		/* the executor has it open */
		table = RelationIdGetRelation(index->rd_index->indrelid);
		note_unpinned(table);
		RelationClose(table);
	}
	return planstate_tree_walker(node, note_others_index, context);
}

/*
 * ExecutorStart_hook, after the executor has started.
 */
void
nvm_cmdlog_query_started(QueryDesc *query)
{
	if (unlikely(nvm_command_in_call()))
		(void) note_others_index(query->planstate, NULL);
}

/* ---- the routine ---- */

Datum
nvm_cmdlog_handler(PG_FUNCTION_ARGS)
{
	cmdlog_routine = nvm_tableam_routine;
	cmdlog_routine.scan_begin = cmdlog_scan_begin;
	cmdlog_routine.tuple_insert = cmdlog_insert;
	cmdlog_routine.tuple_insert_speculative = cmdlog_insert_speculative;
	cmdlog_routine.multi_insert = cmdlog_multi_insert;
	cmdlog_routine.tuple_delete = cmdlog_delete;
	cmdlog_routine.tuple_update = cmdlog_update;
	cmdlog_routine.tuple_lock = cmdlog_lock;
	PG_RETURN_POINTER(&cmdlog_routine);
}

/*
 * In _PG_init: tables of nvm_cmdlog have their rows in memory, and in the log.
 */
void
nvm_cmdlog_method_register(void)
{
	nvm_storage_register_volatile(&cmdlog_routine, true);
	nvm_storage_register_commands(&cmdlog_routine);
	nvm_command_register_method(&cmdlog_routine, nvm_index_is_ours);
}
