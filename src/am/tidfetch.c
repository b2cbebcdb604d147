/*-------------------------------------------------------------------------
 *
 * tidfetch.c
 *	  Versions by their TID: triggers, EvalPlanQual, TID scans, currtid.
 *
 * Every version has a TID of its own and is fetched by it alone.  No chain is
 * followed here, except by tuple_get_latest_tid: that walks towards newer
 * versions even where the row went on as another one.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "am/nvm_am.h"
#include "am/nvm_scan.h"
#include "compat/nvm_compat_am.h"
#include "pool/nvm_pool.h"
#include "row/nvm_relation.h"
#include "row/nvm_serializable.h"
#include "row/nvm_tuple_slot.h"
#include "row/nvm_version.h"
#include "row/nvm_visibility.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_snapshot.h"

/*
 * The version at a TID, or NULL if there is none.
 */
static NvmVersion *
nvm_version_at(NvmRelState *state, uint32 blk, uint32 off)
{
	return nvm_begin_is_version(nvm_tid_begin(state, blk, off)) ?
		nvm_cell(state, blk, off) : NULL;
}

bool
nvm_tuple_fetch_row_version(Relation rel, ItemPointer tid, Snapshot snapshot,
							TupleTableSlot *slot)
{
	NvmRelState *state = nvm_rel_reader(rel);
	uint32		blk = ItemPointerGetBlockNumber(tid);
	uint32		off = ItemPointerGetOffsetNumber(tid);
	NvmVersion *v;
	bool		visible;

	nvm_snapshot_use(snapshot);
	nvm_count_block(rel);
	nvm_block_prove(rel, state, blk, off);

	nvm_read_enter();
	v = nvm_version_at(state, blk, off);
	visible = v != NULL && nvm_version_visible(NULL, v, snapshot);
	nvm_read_leave();
	if (v == NULL)
		return false;
	nvm_ssi_version(rel, v, visible, tid, snapshot);
	if (!visible)
		return false;

	nvm_tts_set(slot, state, RelationGetRelid(rel), v, blk, off);
	return true;
}

bool
nvm_tuple_tid_valid(TableScanDesc sscan, ItemPointer tid)
{
	NvmScanDesc scan = (NvmScanDesc) sscan;

	return ItemPointerIsValid(tid) &&
		ItemPointerGetBlockNumber(tid) < scan->nblocks;
}

bool
nvm_tuple_satisfies_snapshot(Relation rel, TupleTableSlot *slot, Snapshot snapshot)
{
	NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;
	NvmVersion *v = nslot->version;

	Assert(TTS_IS_NVM(slot));

	nvm_snapshot_use(snapshot);
	/* a materialized slot still knows where its tuple came from */
	if (v == NULL && ItemPointerIsValid(&slot->tts_tid))
		v = nvm_version_at(nvm_rel(rel), ItemPointerGetBlockNumber(&slot->tts_tid),
						   ItemPointerGetOffsetNumber(&slot->tts_tid));
	return v != NULL && nvm_version_visible(rel, v, snapshot);
}

/*
 * Set *tid to the newest version of its row that the scan's snapshot sees; it
 * stays what it is if there is none.
 */
void
nvm_tuple_get_latest_tid(TableScanDesc sscan, ItemPointer tid)
{
	NvmScanDesc scan = (NvmScanDesc) sscan;
	uint32		blk = ItemPointerGetBlockNumber(tid);
	uint32		off = ItemPointerGetOffsetNumber(tid);
	uint64		prev_end = 0;
	NvmChainGuard guard = {0};

	/* stands on versions that the snapshot does not see */
	nvm_snapshot_bar();
	nvm_block_prove(sscan->rs_rd, scan->state, blk, off);

	/*
	 * A cursor on an index-only scan that has not looked at the row stands on
	 * the root (WHERE CURRENT OF).
	 */
	if (nvm_begin_is(nvm_tid_begin(scan->state, blk, off), NVM_STAMP_STUB))
	{
		uint64		next = nvm_load(&nvm_cell(scan->state, blk, off)->next);

		if (!NVM_REF_IS_VALID(next))
			return;
		blk = NVM_REF_BLOCK(next);
		off = NVM_REF_OFFSET(next);
	}
	for (;;)
	{
		NvmVersion *v = nvm_version_at(scan->state, blk, off);
		uint64		next;

		/* is it still the one that we were led to? */
		if (v == NULL || (prev_end != 0 && nvm_load(&v->begin) != prev_end))
			break;

		if (nvm_version_visible(sscan->rs_rd, v, sscan->rs_snapshot))
			ItemPointerSet(tid, blk, off);

		prev_end = nvm_load(&v->end);
		next = nvm_load(&v->next);
		nvm_chain_guard(scan->state, &guard, next);
		if (NVM_REF_HI(next) & NVM_NEXT_SKIPS)
		{
			/* it begins later, and is the same row's */
			uint64		root = nvm_version_root(v);

			blk = NVM_REF_BLOCK(next);
			off = NVM_REF_OFFSET(next);
			v = nvm_version_at(scan->state, blk, off);
			if (prev_end == 0 || v == NULL || nvm_version_root(v) != root)
				break;
			prev_end = nvm_load(&v->begin);
			continue;
		}
		if (prev_end == 0 || !NVM_REF_IS_VALID(next) ||
			(NVM_REF_HI(next) & NVM_NEXT_MOVED))
			break;
		blk = NVM_REF_BLOCK(next);
		off = NVM_REF_OFFSET(next);
	}
}
