/*-------------------------------------------------------------------------
 *
 * update.c
 *	  UPDATE: a new version for a row.
 *
 * If no indexed column changes, the new version joins the row's chain and no
 * index hears of it.  Otherwise it is the root of a row of its own, with
 * entries in all indexes, and the old chain's last version leads to it for the
 * sake of EvalPlanQual alone.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/sysattr.h"
#include "access/xact.h"
#include "compat/nvm_compat.h"
#include "pgstat.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_allvisible.h"
#include "row/nvm_change.h"
#include "row/nvm_chain.h"
#include "row/nvm_large.h"
#include "row/nvm_modify.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_serializable.h"
#include "row/nvm_space.h"
#include "row/nvm_tuple_slot.h"
#include "row/nvm_version.h"
#include "row/nvm_visibility.h"
#include "storage/procarray.h"
#include "utils/datum.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_snapshot.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_xact.h"

/* versions of a block's rows that end before an update tidies the block up */
#define PRUNE_AFTER			8
/* while an old snapshot is held, one update in so many looks for versions that
 * lie between it and now */
#define MIDDLE_EVERY		4

static uint32 updates_held = 0;

/*
 * tmfd for a version that could not be changed.  Caller holds the row lock.
 */
void
nvm_fill_failure(NvmVersion *v, ItemPointer tid, TM_Result result,
				 TM_FailureData *tmfd)
{
	uint64		next = nvm_load(&v->next);

	if (NVM_REF_HI(next) & NVM_NEXT_MOVED)
		ItemPointerSetMovedPartitions(&tmfd->ctid);
	else if (NVM_REF_IS_VALID(next))
		ItemPointerSet(&tmfd->ctid, NVM_REF_BLOCK(next), NVM_REF_OFFSET(next));
	else
		tmfd->ctid = *tid;
	tmfd->xmax = nvm_stamp_xid(nvm_load(&v->end), v->tuple.xend);
	tmfd->cmax = (result == TM_SelfModified) ?
		HeapTupleHeaderGetCmax(NvmVersionTuple(v)) : InvalidCommandId;
}

/*
 * The version at tid, which is about to be changed, or NULL if there is none.
 * ERROR if it is damaged: its root and its columns are going to be followed.
 * The tuple is about to be read or copied whole anyway.
 */
NvmVersion *
nvm_version_to_change(Relation rel, NvmRelState *state, ItemPointer tid)
{
	uint32		blk = ItemPointerGetBlockNumber(tid);
	uint32		off = ItemPointerGetOffsetNumber(tid);
	NvmVersion *v;

	if (!nvm_begin_is_version(nvm_tid_begin(state, blk, off)))
		return NULL;
	v = nvm_cell(state, blk, off);
	if (unlikely(!nvm_version_is_sound(v)) && nvm_begin_is_version(nvm_load(&v->begin)))
		nvm_version_damaged(rel, blk, off);
	return v;
}

/*
 * Command id to store with the end of v: a combo id if we made v too.  An xid
 * of another incarnation may look like ours, hence the stamp.  May ERROR.
 */
void
nvm_adjust_cmax(NvmVersion *v, NvmStamp stamp, CommandId *cid, bool *iscombo)
{
	*iscombo = false;
	if (nvm_load(&v->begin) == stamp)
		HeapTupleHeaderAdjustCmax(NvmVersionTuple(v), cid, iscombo);
}

void
nvm_version_end(NvmRelState *state, NvmVersion *v, uint64 next, NvmStamp stamp,
				TransactionId xid, CommandId cmax, bool iscombo, bool key_changed)
{
	uint16		cells = NvmVersionCells(v);

	nvm_allvisible_clear(state, NVM_REF_BLOCK(nvm_version_root(v)));

	/*
	 * What an aborted or lost transaction left is taken over in two steps.
	 * The version that it made may be the one that the root calls the newest:
	 * the process that undoes it, and finds that v is not its own any more,
	 * does not take that back.
	 */
	if (v->end != 0)
	{
		uint64		root = nvm_version_root(v);

		nvm_store(&v->end, 0);
		nvm_store(&nvm_cell(state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root))->link, 0);
		pg_write_barrier();
	}
	v->tuple.xend = xid;
	v->tuple.cid = cmax;
	if (iscombo)
		v->tuple.infomask |= HEAP_COMBOCID;
	else
		v->tuple.infomask &= ~HEAP_COMBOCID;
	if (key_changed)
		v->tuple.infomask2 |= HEAP_KEYS_UPDATED;
	else
		v->tuple.infomask2 &= ~HEAP_KEYS_UPDATED;
	if (key_changed)
		next |= (uint64) NVM_NEXT_KEYS << 48;
	nvm_store(&v->next, next | ((uint64) cells << 48));
	NVM_FAILPOINT("update-before-end");
	nvm_store(&v->end, stamp);
	nvm_flush(v, NVM_CELL_SIZE);
}

/*
 * Learn which columns are indexed.
 */
static void
learn_attrs(Relation rel, NvmRelCache *cache, Bitmapset *index_attrs,
			Bitmapset *key_attrs)
{
	int			x = -1;

	cache->index_attrs = cache->key_attrs = 0;
	cache->attrs_wide = false;
	while ((x = bms_next_member(index_attrs, x)) >= 0)
	{
		int			attnum = x + FirstLowInvalidHeapAttributeNumber;

		if (attnum < 1 || attnum > 63)
			cache->attrs_wide = true;
		else
		{
			cache->index_attrs |= UINT64CONST(1) << attnum;
			if (bms_is_member(x, key_attrs))
				cache->key_attrs |= UINT64CONST(1) << attnum;
		}
	}
	cache->attrs_known = true;
}

/*
 * Has the attribute the same bytes in the old tuple and in the new slot?
 */
static bool
attr_unchanged(TupleDesc desc, HeapTuple old, TupleTableSlot *slot, int attnum)
{
	Form_pg_attribute att;
	Datum		oldval,
				newval;
	bool		oldnull,
				newnull;

	/* whole-row references change with anything; system columns are not data */
	if (attnum <= 0)
		return attnum == TableOidAttributeNumber;

	att = TupleDescAttr(desc, attnum - 1);
	oldval = heap_getattr(old, attnum, desc, &oldnull);
	newval = slot_getattr(slot, attnum, &newnull);
	if (oldnull || newnull)
		return oldnull && newnull;
	if (att->attlen == -1 && VARATT_IS_EXTERNAL(DatumGetPointer(oldval)))
	{
		bool		single = nvm_large_is_single(oldval);
		bool		equal;

		oldval = nvm_large_datum(oldval, CurrentMemoryContext);
		equal = oldval == newval ||
			datumIsEqual(oldval, newval, att->attbyval, att->attlen);
		if (!single)
			pfree(DatumGetPointer(oldval));
		return equal;
	}
	if (att->attlen == -1 &&
		!VARATT_IS_COMPRESSED(DatumGetPointer(oldval)) &&
		!VARATT_IS_COMPRESSED(DatumGetPointer(newval)) &&
		!VARATT_IS_EXTERNAL(DatumGetPointer(newval)))
	{
		/* the slot may not have been formed yet, which shortens headers */
		struct varlena *a = (struct varlena *) DatumGetPointer(oldval);
		struct varlena *b = (struct varlena *) DatumGetPointer(newval);

		return VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
			memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
	}
	return oldval == newval || datumIsEqual(oldval, newval, att->attbyval, att->attlen);
}

/*
 * Does the update change an indexed column, and one of a key that foreign keys
 * may refer to?
 */
static void
changed_attrs(Relation rel, NvmVersion *v, TupleTableSlot *slot,
			  bool *index_changed, bool *key_changed)
{
	NvmRelCache *cache = nvm_rel_cache(rel);
	TupleDesc	desc = RelationGetDescr(rel);
	HeapTupleData old;
	Bitmapset  *index_attrs = NULL;
	Bitmapset  *key_attrs = NULL;

	*index_changed = *key_changed = false;
	old.t_len = v->len;
	old.t_tableOid = RelationGetRelid(rel);
	ItemPointerSetInvalid(&old.t_self);
	old.t_data = NvmVersionTuple(v);

	if (!cache->attrs_known || cache->attrs_wide)
	{
		index_attrs = nvm_index_attrs(rel);
		key_attrs = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_KEY);
		cache = nvm_rel_cache(rel);
		learn_attrs(rel, cache, index_attrs, key_attrs);
	}
	if (!cache->attrs_wide)
	{
		uint64		attrs = cache->index_attrs;
		uint64		keys = cache->key_attrs;

		for (; attrs != 0; attrs &= attrs - 1)
		{
			int			attnum = __builtin_ctzll(attrs);

			if (*index_changed && !(keys & (UINT64CONST(1) << attnum)))
				continue;
			if (!attr_unchanged(desc, &old, slot, attnum))
			{
				*index_changed = true;
				*key_changed |= (keys & (UINT64CONST(1) << attnum)) != 0;
			}
		}
	}
	else
	{
		int			x = -1;

		while ((x = bms_next_member(index_attrs, x)) >= 0)
		{
			if (!attr_unchanged(desc, &old, slot, x + FirstLowInvalidHeapAttributeNumber))
			{
				*index_changed = true;
				*key_changed |= bms_is_member(x, key_attrs);
			}
		}
	}
	bms_free(index_attrs);
	bms_free(key_attrs);
}

/*
 * Wait until the row can be changed, or find out that it cannot.  Returns with
 * the row lock held.
 */
TM_Result
nvm_wait_for_row(Relation rel, NvmVersion *v, ItemPointer tid, NvmVersion *rootv,
				 ItemPointer roottid, LWLock *rlock, CommandId cid,
				 LockTupleMode mode, bool wait, XLTW_Oper oper,
				 bool *have_tuplock)
{
	for (;;)
	{
		TransactionId xwait;
		bool		is_multi = false;
		bool		mine;
		TM_Result	result;

		LWLockAcquire(rlock, LW_EXCLUSIVE);
		result = nvm_version_satisfies_update(v, cid, &xwait);
		if (result == TM_Invisible)
		{
			LWLockRelease(rlock);
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 oper == XLTW_Delete ?
					 errmsg("attempted to delete invisible tuple") :
					 errmsg("attempted to update invisible tuple")));
		}
		if (result == TM_Ok)
		{
			if (!nvm_row_locked_against(rootv, mode, &xwait, &is_multi))
				return TM_Ok;
			result = TM_BeingModified;
		}
		if (result != TM_BeingModified || !wait)
			return result;
		mine = nvm_row_locked_by_me(rootv);
		LWLockRelease(rlock);

		if (!mine)
			(void) nvm_acquire_tuplock(rel, roottid, mode, LockWaitBlock, have_tuplock);
		nvm_row_lock_wait(rel, xwait, is_multi, mode, tid, oper);
	}
}

/*
 * A place for the new version: near the old one if there is room, tidying up
 * that block now and then.  Caller holds the row lock.
 */
static void
place_version(Relation rel, NvmRelCache *cache, NvmNewVersion *nv, bool root,
			  uint32 oldblk)
{
	NvmRelState *state = cache->state;

	if (nvm_block(state, oldblk)->ended >= PRUNE_AFTER)
	{
		(void) nvm_block_prune(state, oldblk, GlobalVisTestFor(rel));
		nv->v = nvm_space_alloc_in(state, oldblk, nv->cells, root, true, &nv->off);
		if (nv->v != NULL)
		{
			nv->blk = oldblk;
			nvm_row_change(NVM_UNDO_INSERT, state, nv->blk, nv->off);
			return;
		}
	}
	nvm_new_place(rel, cache, nv, root, oldblk);
}

/*
 * Write the new version and end the old one.  Caller holds the row lock.
 */
static void
link_version(NvmRelCache *cache, NvmNewVersion *nv, NvmVersion *v,
			 ItemPointer otid, NvmVersion *rootv, uint64 root, bool new_root,
			 bool key_changed, CommandId cid, CommandId cmax, bool iscombo,
			 TransactionId xid, NvmStamp stamp)
{
	NvmRelState *state = cache->state;
	uint16		inc = (uint16) NvmPool->incarnation;
	uint64		self = NVM_REF_MAKE(nv->blk, nv->off, 0);
	uint64		older = NVM_REF_MAKE(ItemPointerGetBlockNumber(otid),
									 ItemPointerGetOffsetNumber(otid), inc);
	uint16		noindex = NvmVersionCells(rootv) > 1 ? rootv->flags & NVM_VF_NOINDEX : 0;

	if (new_root)
	{
		/* lockers that the update does not exclude go along */
		nvm_new_fill(cache, nv, 0, 0, *nvm_lock_word(rootv), 0, cid, xid, stamp);
		nvm_flush(nvm_block(state, nv->blk), NVM_BLOCK_HEADER_SIZE);
		nvm_version_end(state, v, self | ((uint64) NVM_NEXT_OTHER_ROOT << 48), stamp,
						xid, cmax, iscombo, key_changed);
	}
	else
	{
		nvm_new_fill(cache, nv, root, older, 0, noindex, cid, xid, stamp);
		nvm_flush(nvm_block(state, nv->blk), NVM_BLOCK_HEADER_SIZE);
		nvm_version_end(state, v, self, stamp, xid, cmax, iscombo, key_changed);
		/* a hint: needs no flush */
		nvm_store(&rootv->link, NVM_REF_MAKE(nv->blk, nv->off, inc));
	}
	nvm_block(state, ItemPointerGetBlockNumber(otid))->ended++;
}

/*
 * Update the row version otid to what slot holds.  *new_root: indexes need an
 * entry.  Contract as table_tuple_update; tmfd is filled on failure.
 */
TM_Result
nvm_update(Relation rel, ItemPointer otid, TupleTableSlot *slot, CommandId cid,
		   Snapshot snapshot, Snapshot crosscheck, bool wait,
		   TM_FailureData *tmfd, LockTupleMode *lockmode, bool *new_root)
{
	NvmStamp	stamp = nvm_xact_stamp();
	TransactionId xid = nvm_xact_current_xid();
	NvmRelCache *cache;
	NvmRelState *state = nvm_rel(rel);
	uint32		oldblk = ItemPointerGetBlockNumber(otid);
	NvmVersion *v;
	NvmVersion *rootv;
	NvmNewVersion nv;
	ItemPointerData roottid;
	uint64		root;
	LWLock	   *rlock;
	bool		have_tuplock = false;
	bool		key_changed;
	bool		iscombo;
	CommandId	cmax = cid;
	TM_Result	result;
	int			nremoved = 0;

	nvm_indexes_prove(rel);
	v = nvm_version_to_change(rel, state, otid);
	if (v == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("attempted to update invisible tuple")));
	root = nvm_version_root(v);
	rootv = nvm_cell(state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
	rlock = nvm_row_lock(state->dir, NVM_REF_BLOCK(root));
	ItemPointerSet(&roottid, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));

	changed_attrs(rel, v, slot, new_root, &key_changed);
	if (*new_root)
		nvm_note_entries(rel);
	*lockmode = key_changed ? LockTupleExclusive : LockTupleNoKeyExclusive;
	nvm_new_form(rel, slot, &nv);
	nvm_undo_reserve();
	MultiXactIdSetOldestMember();

	result = nvm_wait_for_row(rel, v, otid, rootv, &roottid, rlock, cid, *lockmode,
							  wait, XLTW_Update, &have_tuplock);
	if (result == TM_Ok && crosscheck != InvalidSnapshot &&
		!nvm_version_visible(NULL, v, crosscheck))
		result = TM_Updated;
	if (result != TM_Ok)
	{
		nvm_fill_failure(v, otid, result, tmfd);
		LWLockRelease(rlock);
		nvm_release_tuplock(rel, &roottid, *lockmode, &have_tuplock);
		nvm_new_discard(&nv);
		return result;
	}

	/* everything that can fail comes before the first store */
	nvm_adjust_cmax(v, stamp, &cmax, &iscombo);
	cache = nvm_rel_cache(rel);
	place_version(rel, cache, &nv, *new_root, oldblk);
	nvm_row_change(NVM_UNDO_END, state, oldblk, ItemPointerGetOffsetNumber(otid));
	link_version(cache, &nv, v, otid, rootv, root, *new_root, key_changed, cid,
				 cmax, iscombo, xid, stamp);
	if (v != rootv)
	{
		(void) nvm_chain_prune(state, root, GlobalVisTestFor(rel), NULL,
							   &nremoved);
		if (unlikely(nvm_snapshots_held()) && nremoved == 0 &&
			++updates_held % MIDDLE_EVERY == 0)
			(void) nvm_chain_prune_middle(state, root, NULL);
	}
	LWLockRelease(rlock);
	nvm_release_tuplock(rel, &roottid, *lockmode, &have_tuplock);

	nvm_ssi_ended(rel, otid, &roottid);
	nvm_tts_written(slot, rel, nv.v, nv.blk, nv.off);
	nvm_new_announce(rel, &nv);
	NvmCountUpdate(rel, !*new_root);
	return TM_Ok;
}
