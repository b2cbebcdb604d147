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
#include "row/nvm_relation.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_serializable.h"
#include "row/nvm_visibility.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"
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
	NvmStamp	stamp = nvm_xact_stamp();
	TransactionId xid = nvm_xact_current_xid();
	NvmRelState *state = nvm_rel(rel);
	uint32		blk = ItemPointerGetBlockNumber(tid);
	NvmVersion *v;
	NvmVersion *rootv;
	ItemPointerData roottid;
	uint64		root;
	LWLock	   *rlock;
	bool		have_tuplock = false;
	bool		iscombo;
	CommandId	cmax = cid;
	TM_Result	result;

	v = nvm_version_to_change(rel, state, tid);
	if (v == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("attempted to delete invisible tuple")));
	root = nvm_version_root(v);
	rootv = nvm_cell(state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
	rlock = nvm_row_lock(state->dir, NVM_REF_BLOCK(root));
	ItemPointerSet(&roottid, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));

	nvm_undo_reserve();
	MultiXactIdSetOldestMember();
	result = nvm_wait_for_row(rel, v, tid, rootv, &roottid, rlock, cid,
							  LockTupleExclusive, wait, XLTW_Delete, &have_tuplock);
	if (result == TM_Ok && crosscheck != InvalidSnapshot &&
		!nvm_version_visible(NULL, v, crosscheck))
		result = TM_Updated;
	if (result != TM_Ok)
	{
		nvm_fill_failure(v, tid, result, tmfd);
		LWLockRelease(rlock);
		nvm_release_tuplock(rel, &roottid, LockTupleExclusive, &have_tuplock);
		return result;
	}

	/* everything that can fail comes before the first store */
	nvm_adjust_cmax(v, stamp, &cmax, &iscombo);
	nvm_row_change(NVM_UNDO_END, state, blk, ItemPointerGetOffsetNumber(tid));
	nvm_version_end(state, v, changingPart ? (uint64) NVM_NEXT_MOVED << 48 : 0, stamp,
					xid, cmax, iscombo, true);
	nvm_block(state, blk)->ended++;
	LWLockRelease(rlock);
	nvm_release_tuplock(rel, &roottid, LockTupleExclusive, &have_tuplock);

	nvm_ssi_ended(rel, tid, &roottid);
	pgstat_count_heap_delete(rel);
	return TM_Ok;
}
