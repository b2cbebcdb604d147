/*-------------------------------------------------------------------------
 *
 * tableam.c
 *	  The routines of table access methods `nvm` and `nvm_vlog`, and their handlers.
 *
 * The two do the same.  Where a storage lies says its directory entry, which is made
 * by the routine that the table has then (xact/xact_storage.c).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "am/nvm_am.h"
#include "compat/nvm_compat_am.h"
#include "fmgr.h"
#include "pmem/nvm_pmem.h"
#include "replication/logicalworker.h"
#include "row/nvm_modify.h"
#include "row/nvm_serializable.h"
#include "row/nvm_tuple_slot.h"
#include "storage/lockdefs.h"
#include "storage/nvm_allvisible_set.h"
#include "storage/nvm_storage_relation.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "xact/nvm_storage.h"

PG_FUNCTION_INFO_V1(nvm_tableam_handler);
PG_FUNCTION_INFO_V1(nvm_vlog_handler);

#if NVM_APPLY_ASKS_INDEX
/*
 * An apply worker makes a slot for the row that it is going to look up, and then
 * asserts what is said at NVM_APPLY_ASKS_INDEX.  An index has no replica identity, so
 * in its relcache entry there is room for the answer.
 */
static void
apply_wants_slot(Relation rel)
{
	Oid			indexid = RelationGetReplicaIndex(rel);
	Relation	index;

	if (!OidIsValid(indexid))
		indexid = rel->rd_pkindex;
	if (!OidIsValid(indexid))
		return;
	index = index_open(indexid, AccessShareLock);
	index->rd_replidindex = indexid;
	index->rd_indexvalid = true;
	index_close(index, NoLock);
}
#endif

static const TupleTableSlotOps *
nvm_slot_callbacks(Relation rel)
{
#if NVM_APPLY_ASKS_INDEX
	if (IsLogicalWorker())
		apply_wants_slot(rel);
#endif
	if (!NVM_FAILPOINT_MISSES("exchange-slot"))
		nvm_indexes_exchange(rel);
	nvm_bitmap_slot_wanted();
	nvm_allvisible_slot_wanted();
	return &TTSOpsNvm;
}

/*
 * An updated row is a new entry in every index, or in none.
 */
static TM_Result
nvm_tuple_update(Relation rel, ItemPointer otid, TupleTableSlot *slot,
				 CommandId cid, Snapshot snapshot, Snapshot crosscheck,
				 bool wait, TM_FailureData *tmfd, LockTupleMode *lockmode,
				 NvmUpdateIndexes *update_indexes)
{
	bool		new_root = false;
	TM_Result	result;

	result = nvm_update(rel, otid, slot, cid, snapshot, crosscheck, wait, tmfd,
						lockmode, &new_root);
	*update_indexes = NVM_UPDATE_INDEXES(result == TM_Ok && new_root);
	return result;
}

const TableAmRoutine nvm_tableam_routine = {
	.type = T_TableAmRoutine,

	.slot_callbacks = nvm_slot_callbacks,

	.scan_begin = nvm_scan_begin,
	.scan_end = nvm_scan_end,
	.scan_rescan = nvm_scan_rescan,
	.scan_getnextslot = nvm_scan_getnextslot,

	.scan_set_tidrange = nvm_scan_set_tidrange,
	.scan_getnextslot_tidrange = nvm_scan_getnextslot_tidrange,

	.parallelscan_estimate = table_block_parallelscan_estimate,
	.parallelscan_initialize = nvm_parallelscan_initialize,
	.parallelscan_reinitialize = table_block_parallelscan_reinitialize,

	.index_fetch_begin = nvm_index_fetch_begin,
	.index_fetch_reset = nvm_index_fetch_reset,
	.index_fetch_end = nvm_index_fetch_end,
	.index_fetch_tuple = nvm_index_fetch_tuple,

	.tuple_fetch_row_version = nvm_tuple_fetch_row_version,
	.tuple_tid_valid = nvm_tuple_tid_valid,
	.tuple_get_latest_tid = nvm_tuple_get_latest_tid,
	.tuple_satisfies_snapshot = nvm_tuple_satisfies_snapshot,
	.index_delete_tuples = nvm_index_delete_tuples,

	.tuple_insert = nvm_tuple_insert,
	.tuple_insert_speculative = nvm_tuple_insert_speculative,
	.tuple_complete_speculative = nvm_tuple_complete_speculative,
	.multi_insert = nvm_multi_insert,
	.tuple_delete = nvm_tuple_delete,
	.tuple_update = nvm_tuple_update,
	.tuple_lock = nvm_tuple_lock,

	NVM_SET_NEW_FILELOCATOR = nvm_relation_set_new_filelocator,
	.relation_nontransactional_truncate = nvm_relation_nontransactional_truncate,
	.relation_copy_data = nvm_relation_copy_data,
	.relation_copy_for_cluster = nvm_relation_copy_for_cluster,
	.relation_vacuum = nvm_relation_vacuum,
	.scan_analyze_next_block = nvm_scan_analyze_next_block,
	.scan_analyze_next_tuple = nvm_scan_analyze_next_tuple,
	.index_build_range_scan = nvm_index_build_range_scan,
	.index_validate_scan = nvm_index_validate_scan,

	.relation_size = nvm_relation_size,
	.relation_needs_toast_table = nvm_relation_needs_toast_table,
	.relation_toast_am = nvm_relation_toast_am,
	.relation_fetch_toast_slice = nvm_relation_fetch_toast_slice,

	.relation_estimate_size = nvm_relation_estimate_size,

#if NVM_BITMAP_IS_STREAM
	.scan_bitmap_next_tuple = nvm_scan_bitmap_next,
#else
	.scan_bitmap_next_block = nvm_scan_bitmap_next_block,
	.scan_bitmap_next_tuple = nvm_scan_bitmap_next_tuple,
#endif
	.scan_sample_next_block = nvm_scan_sample_next_block,
	.scan_sample_next_tuple = nvm_scan_sample_next_tuple
};

Datum
nvm_tableam_handler(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(&nvm_tableam_routine);
}

/* a copy with an address of its own; complete once anybody has asked for it */
static TableAmRoutine vlog_routine;

Datum
nvm_vlog_handler(PG_FUNCTION_ARGS)
{
	vlog_routine = nvm_tableam_routine;
	PG_RETURN_POINTER(&vlog_routine);
}

/*
 * In _PG_init: tables of nvm_vlog have their rows in memory, and in the log.
 */
void
nvm_vlog_method_register(void)
{
	nvm_storage_register_volatile(&vlog_routine, true);
}

/*
 * Is rel a table of nvm_vlog?
 */
bool
nvm_relation_is_vlog(Relation rel)
{
	return rel->rd_tableam == &vlog_routine;
}
