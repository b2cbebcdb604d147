/*-------------------------------------------------------------------------
 *
 * insert.c
 *	  New versions: single, multiple and speculative insertion.
 *
 * A version is written, its cache lines are written back, and nothing waits:
 * the transaction's one fence at commit makes all of them durable.  Its begin
 * stamp is stored last, so that until then it is no version for anybody, and
 * after a crash it is none unless its transaction was decided.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "pgstat.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_allvisible.h"
#include "row/nvm_change.h"
#include "row/nvm_large.h"
#include "row/nvm_modify.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_serializable.h"
#include "row/nvm_space.h"
#include "row/nvm_tuple_slot.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_xact.h"

/*
 * Form the tuple of a slot as it will be stored.  May ERROR; nvm_new_discard
 * gives back what was taken if the version is then not made.  May look at
 * catalogs, and so invalidate the relation's NvmRelCache.
 */
void
nvm_new_form(Relation rel, TupleTableSlot *slot, NvmNewVersion *nv)
{
	nv->large = NULL;
	nv->tuple = nvm_form_tuple(rel, slot, &nv->free_tuple, &nv->large);
	nv->cells = nvm_cells_for(nv->tuple->t_len);
	nv->v = NULL;
	nv->root = nv->link = nv->lock = 0;
	nv->flags = 0;
	Assert(nv->tuple->t_len <= NVM_MAX_TUPLE);
}

/*
 * Find a place, and write down that it must be given back if we abort.  Room
 * for that first: cells that nobody knows of would stay used until a restart.
 */
void
nvm_new_place(Relation rel, NvmRelCache *cache, NvmNewVersion *nv, bool root,
			  BlockNumber near)
{
	nvm_undo_reserve();
	nvm_space_alloc(rel, cache, root, near, nv);
	nvm_row_change(NVM_UNDO_INSERT, cache->state, nv->blk, nv->off);
}

/*
 * Write the version.  Cannot ERROR.
 */
void
nvm_new_fill(NvmNewVersion *nv, const NvmRowChange *change)
{
	NvmVersion *v = nv->v;
	uint64		root = nv->root;
	uint16		flags = nv->flags;

	if (root == 0)
	{
		root = NVM_REF_MAKE(nv->blk, nv->off, 0);
		flags |= NVM_VF_ROOT;
	}
	/* v->next holds the cells, set by the allocation */
	v->end = 0;
	v->link = nv->link;
	v->lock = nv->lock;
	v->len = nv->tuple->t_len;
	memcpy(&v->tuple, nv->tuple->t_data, nv->tuple->t_len);
	v->tuple.xmin = change->xid;
	v->tuple.xend = InvalidTransactionId;
	v->tuple.cid = change->cid;
	v->tuple.root_blk_hi = NVM_REF_BLOCK(root) >> 16;
	v->tuple.root_blk_lo = NVM_REF_BLOCK(root) & 0xFFFF;
	v->tuple.root_offset = NVM_REF_OFFSET(root);
	v->tuple.infomask &= NVM_INFOMASK_FIXED;
	v->tuple.infomask2 &= HEAP_NATTS_MASK;
	if (nv->large)
		flags |= NVM_VF_LARGE;
	v->flags = flags;
	v->crc = nvm_version_crc(v);
	if (nv->large)
		nvm_large_assign(nv->large, v, nv->blk, nv->off);
	NVM_FAILPOINT("insert-before-begin");
	nvm_store(&v->begin, change->stamp);
	nvm_flush(v, NVM_VERSION_HEADER + v->len);
	if (nv->free_tuple)
		heap_freetuple(nv->tuple);
}

void
nvm_new_discard(NvmNewVersion *nv)
{
	if (nv->large)
		nvm_large_discard(nv->large);
	if (nv->free_tuple)
		heap_freetuple(nv->tuple);
}

static inline uint16
insert_flags(Relation rel)
{
	return rel->rd_rel->relhasindex ? 0 : NVM_VF_NOINDEX;
}

/*
 * Insert one row.  spec_token is 0 except for a speculative insertion.
 */
static void
insert_row(Relation rel, TupleTableSlot *slot, uint32 spec_token,
		   const NvmRowChange *change)
{
	NvmRelCache *cache;
	NvmNewVersion nv;

	nvm_note_entries(rel);
	nvm_new_form(rel, slot, &nv);
	cache = nvm_rel_cache(rel);
	nvm_new_place(rel, cache, &nv, true, InvalidBlockNumber);
	if (spec_token != 0)
		nv.link = NVM_REF_MAKE(spec_token, 0, NvmPool->incarnation);
	nv.flags = insert_flags(rel);
	nvm_new_fill(&nv, change);
	nvm_flush(nvm_block(cache->state, nv.blk), NVM_BLOCK_HEADER_SIZE);

	nvm_tts_written(slot, rel, nv.v, nv.blk, nv.off);
	nvm_new_announce(rel, &nv);
}

void
nvm_tuple_insert(Relation rel, TupleTableSlot *slot, CommandId cid, int options,
				 struct BulkInsertStateData *bistate)
{
	NvmRowChange change;

	nvm_row_change_begin(&change, nvm_rel(rel), cid);
	nvm_indexes_prove(rel);
	insert_row(rel, slot, 0, &change);
	nvm_ssi_inserted(rel);
	pgstat_count_heap_insert(rel, 1);
}

/*
 * Insert a row that others may see as a token only, until we know that it
 * violates no unique constraint (ON CONFLICT).
 */
void
nvm_tuple_insert_speculative(Relation rel, TupleTableSlot *slot, CommandId cid,
							 int options, struct BulkInsertStateData *bistate,
							 uint32 specToken)
{
	NvmRowChange change;

	Assert(specToken != 0);
	nvm_row_change_begin(&change, nvm_rel(rel), cid);
	nvm_indexes_prove(rel);
	insert_row(rel, slot, specToken, &change);
	nvm_ssi_inserted(rel);
	pgstat_count_heap_insert(rel, 1);
}

void
nvm_tuple_complete_speculative(Relation rel, TupleTableSlot *slot,
							   uint32 specToken, bool succeeded)
{
	NvmRelState *state = nvm_rel(rel);
	uint32		blk = ItemPointerGetBlockNumber(&slot->tts_tid);
	uint32		off = ItemPointerGetOffsetNumber(&slot->tts_tid);
	NvmVersion *v = nvm_cell(state, blk, off);
	LWLock	   *lock = nvm_row_lock(state->dir, blk);

	LWLockAcquire(lock, LW_EXCLUSIVE);
	Assert(nvm_xact_owns_stamp(nvm_load(&v->begin)));
	if (succeeded)
		nvm_store(&v->link, 0);
	else
		nvm_version_retire(state, v, blk, off, nvm_xact_stamp_if_any(state->region),
						   (v->flags & NVM_VF_NOINDEX) ? NVM_STAMP_RETIRED : NVM_STAMP_DEAD);
	LWLockRelease(lock);
	if (!succeeded)
		pgstat_count_heap_delete(rel);
}

void
nvm_multi_insert(Relation rel, TupleTableSlot **slots, int nslots, CommandId cid,
				 int options, struct BulkInsertStateData *bistate)
{
	NvmRelState *state = nvm_rel(rel);
	NvmRowChange change;
	uint16		flags = insert_flags(rel);
	uint32		last_blk = InvalidBlockNumber;

	nvm_row_change_begin(&change, state, cid);
	nvm_indexes_prove(rel);
	nvm_note_entries(rel);
	for (int i = 0; i < nslots; i++)
	{
		NvmNewVersion nv;

		NvmRelCache *cache;

		nvm_new_form(rel, slots[i], &nv);
		cache = nvm_rel_cache(rel);
		nvm_new_place(rel, cache, &nv, true, InvalidBlockNumber);
		nv.flags = flags;
		nvm_new_fill(&nv, &change);
		if (nv.blk != last_blk && last_blk != InvalidBlockNumber)
			nvm_flush(nvm_block(state, last_blk), NVM_BLOCK_HEADER_SIZE);
		last_blk = nv.blk;
		nvm_tts_written(slots[i], rel, nv.v, nv.blk, nv.off);
		nvm_new_announce(rel, &nv);
	}
	if (last_blk != InvalidBlockNumber)
		nvm_flush(nvm_block(state, last_blk), NVM_BLOCK_HEADER_SIZE);
	nvm_ssi_inserted(rel);
	pgstat_count_heap_insert(rel, nslots);
}

/*
 * Copy a version into rel as a row of its own, with the stamps and xids it
 * has: for VACUUM FULL and CLUSTER.  tuple is the version's tuple, formed for
 * rel (flattened where it had large values).
 *
 * The copy hangs on rel's new storage, whose directory entry our transaction
 * decides, so it needs no undo entry of its own.
 */
void
nvm_raw_insert(Relation rel, HeapTuple tuple, NvmVersion *from)
{
	NvmRelCache *cache;
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);
	NvmNewVersion nv;
	NvmVersion *v;
	uint64		end = nvm_load(&from->end);
	NvmRowChange change = {
		.stamp = nvm_load(&from->begin),
		.xid = from->tuple.xmin,
		.cid = from->tuple.cid
	};

	ExecStoreHeapTuple(tuple, slot, false);
	nvm_new_form(rel, slot, &nv);
	cache = nvm_rel_cache(rel);
	nvm_space_alloc(rel, cache, true, InvalidBlockNumber, &nv);
	v = nv.v;
	nv.flags = insert_flags(rel);
	nvm_new_fill(&nv, &change);
	/* also where what ended it was rolled back: cid is a combo id for good */
	if (from->tuple.infomask & HEAP_COMBOCID)
	{
		v->tuple.infomask |= HEAP_COMBOCID;
		nvm_flush(&v->tuple.infomask, sizeof(v->tuple.infomask));
	}
	if (end != 0 && !nvm_stamp_in_gap(end))
	{
		v->tuple.infomask2 |= from->tuple.infomask2 & HEAP_KEYS_UPDATED;
		v->tuple.xend = from->tuple.xend;
		nvm_store(&v->next, nvm_load(&v->next) |
				  (nvm_load(&from->next) & ((uint64) NVM_NEXT_KEYS << 48)));
		nvm_store(&v->end, end);
		nvm_flush(v, NVM_VERSION_HEADER);
		/* begin, which may be everybody's, was there first */
		nvm_allvisible_clear(cache->state, nv.blk);
	}
	nvm_flush(nvm_block(cache->state, nv.blk), NVM_BLOCK_HEADER_SIZE);
	ExecDropSingleTupleTableSlot(slot);
}
