/*-------------------------------------------------------------------------
 *
 * delete.c
 *	  DELETE: the end of a row.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/xact.h"
#include "pgstat.h"
#include "pool/nvm_pool.h"
#include "row/nvm_change.h"
#include "row/nvm_modify.h"
#include "row/nvm_serializable.h"
#include "row/nvm_visibility.h"
#include "xact/nvm_xact.h"

/*
 * Delete the row version tid.  changingPart: the row moves to another
 * partition, and a transaction that waits for it must not take it for deleted.
 * Contract as table_tuple_delete.
 */
TM_Result
nvm_tuple_delete(Relation rel, ItemPointer tid, CommandId cid, Snapshot snapshot,
				 Snapshot crosscheck, bool wait, TM_FailureData *tmfd,
				 bool changingPart)
{
	NvmRowTarget row;
	NvmRowChange change;
	uint32		blk = ItemPointerGetBlockNumber(tid);
	TM_Result	result;

	nvm_row_change_begin(&change, nvm_rel(rel), cid);
	change.key_changed = true;
	if (!nvm_row_to_change(rel, tid, &row))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("attempted to delete invisible tuple")));

	nvm_undo_reserve();
	MultiXactIdSetOldestMember();
	result = nvm_wait_for_row(&row, cid, LockTupleExclusive, wait, XLTW_Delete);
	if (result == TM_Ok && crosscheck != InvalidSnapshot &&
		!nvm_version_visible(NULL, row.v, crosscheck))
		result = TM_Updated;
	if (result != TM_Ok)
	{
		nvm_fill_failure(row.v, tid, result, tmfd);
		LWLockRelease(row.rlock);
		nvm_release_tuplock(rel, &row.roottid, LockTupleExclusive, &row.have_tuplock);
		return result;
	}

	/* everything that can fail comes before the first store */
	nvm_adjust_cmax(row.v, &change);
	nvm_row_change(NVM_UNDO_END, row.state, blk, ItemPointerGetOffsetNumber(tid));
	nvm_version_end(row.state, row.v, changingPart ? (uint64) NVM_NEXT_MOVED << 48 : 0,
					&change);
	nvm_block(row.state, blk)->ended++;
	LWLockRelease(row.rlock);
	nvm_release_tuplock(rel, &row.roottid, LockTupleExclusive, &row.have_tuplock);

	nvm_ssi_ended(rel, tid, &row.roottid);
	pgstat_count_heap_delete(rel);
	return TM_Ok;
}
