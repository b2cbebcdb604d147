/*-------------------------------------------------------------------------
 *
 * update.c
 *	  UPDATE: a new version for a row.
 *
 * If no indexed column changes, the new version joins the row's chain and no
 * index hears of it.  Otherwise it is the root of a row of its own, with
 * entries in all indexes.  The old chain's last version leads to it, for the
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
 * Find the row of the version at tid.  False if there is no version; ERROR if it
 * is damaged.  Takes no lock: what is found may change before the row lock is held.
 */
bool
nvm_row_to_change(Relation rel, ItemPointer tid, NvmRowTarget *row)
{
	NvmRelState *state = nvm_rel(rel);

	row->v = nvm_version_to_change(rel, state, tid);
	if (row->v == NULL)
		return false;
	row->rel = rel;
	row->state = state;
	row->tid = *tid;
	row->root = nvm_version_root(row->v);
	row->rootv = nvm_ref_version(state, row->root);
	row->rlock = nvm_row_lock(state->dir, NVM_REF_BLOCK(row->root));
	ItemPointerSet(&row->roottid, NVM_REF_BLOCK(row->root), NVM_REF_OFFSET(row->root));
	row->have_tuplock = false;
	return true;
}

/*
 * Command id to store with the end of v: a combo id if we made v too.  An xid
 * of another incarnation may look like ours, hence the stamp.  May ERROR.
 */
void
nvm_adjust_cmax(NvmVersion *v, NvmRowChange *change)
{
	if (nvm_load(&v->begin) == change->stamp)
		HeapTupleHeaderAdjustCmax(NvmVersionTuple(v), &change->cmax, &change->iscombo);
}

void
nvm_version_end(NvmRelState *state, NvmVersion *v, uint64 next,
				const NvmRowChange *change)
{
	uint16		cells = NvmVersionCells(v);

	nvm_allvisible_clear(state, NVM_REF_BLOCK(nvm_version_root(v)));

	/*
	 * What an aborted or lost transaction left is taken over in two steps.
	 * The version that such a transaction made may be the one that the root
	 * calls the newest.  The process that undoes it, and finds that v is not
	 * its own any more, does not take that back.
	 */
	if (v->end != 0)
	{
		uint64		root = nvm_version_root(v);

		nvm_store(&v->end, 0);
		nvm_store(&nvm_cell(state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root))->link, 0);
		pg_write_barrier();
	}
	v->tuple.xend = change->xid;
	v->tuple.cid = change->cmax;
	if (change->iscombo)
		v->tuple.infomask |= HEAP_COMBOCID;
	else
		v->tuple.infomask &= ~HEAP_COMBOCID;
	if (change->key_changed)
		v->tuple.infomask2 |= HEAP_KEYS_UPDATED;
	else
		v->tuple.infomask2 &= ~HEAP_KEYS_UPDATED;
	if (change->key_changed)
		next |= (uint64) NVM_NEXT_KEYS << 48;
	nvm_store(&v->next, next | ((uint64) cells << 48));
	NVM_FAILPOINT("update-before-end");
	nvm_store(&v->end, change->stamp);
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
nvm_wait_for_row(NvmRowTarget *row, CommandId cid, LockTupleMode mode, bool wait,
				 XLTW_Oper oper)
{
	for (;;)
	{
		TransactionId xwait;
		bool		is_multi = false;
		bool		mine;
		TM_Result	result;

		LWLockAcquire(row->rlock, LW_EXCLUSIVE);
		result = nvm_version_satisfies_update(row->v, cid, &xwait);
		if (result == TM_Invisible)
		{
			LWLockRelease(row->rlock);
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 oper == XLTW_Delete ?
					 errmsg("attempted to delete invisible tuple") :
					 errmsg("attempted to update invisible tuple")));
		}
		if (result == TM_Ok)
		{
			if (!nvm_row_locked_against(row->rootv, mode, &xwait, &is_multi))
				return TM_Ok;
			result = TM_BeingModified;
		}
		if (result != TM_BeingModified || !wait)
			return result;
		mine = nvm_row_locked_by_me(row->rootv);
		LWLockRelease(row->rlock);

		if (!mine)
			(void) nvm_acquire_tuplock(row->rel, &row->roottid, mode, LockWaitBlock,
									   &row->have_tuplock);
		nvm_row_lock_wait(row->rel, xwait, is_multi, mode, &row->tid, oper);
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
		nv->v = nvm_space_alloc_in(state, oldblk, NVM_FIRST_CELL, nv->cells, root, true,
								   &nv->off);
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
link_version(const NvmRowTarget *row, NvmNewVersion *nv, const NvmRowChange *change,
			 bool new_root)
{
	NvmRelState *state = row->state;
	uint16		inc = (uint16) NvmPool->incarnation;
	uint32		oldblk = ItemPointerGetBlockNumber(&row->tid);
	uint64		next = NVM_REF_MAKE(nv->blk, nv->off, 0);

	if (new_root)
	{
		/* lockers that the update does not exclude go along */
		nv->lock = *nvm_lock_word(row->rootv);
		next |= (uint64) NVM_NEXT_OTHER_ROOT << 48;
	}
	else
	{
		nv->root = row->root;
		nv->link = NVM_REF_MAKE(oldblk, ItemPointerGetOffsetNumber(&row->tid), inc);
		if (NvmVersionCells(row->rootv) > 1)
			nv->flags = row->rootv->flags & NVM_VF_NOINDEX;
	}
	nvm_new_fill(nv, change);
	nvm_flush(nvm_block(state, nv->blk), NVM_BLOCK_HEADER_SIZE);
	nvm_version_end(state, row->v, next, change);
	/* a hint: needs no flush */
	if (!new_root)
		nvm_store(&row->rootv->link, NVM_REF_MAKE(nv->blk, nv->off, inc));
	nvm_block(state, oldblk)->ended++;
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
	uint32		oldblk = ItemPointerGetBlockNumber(otid);
	NvmRowTarget row;
	NvmRowChange change;
	NvmNewVersion nv;
	TM_Result	result;
	int			nremoved = 0;

	nvm_row_change_begin(&change, nvm_rel(rel), cid);
	nvm_indexes_prove(rel);
	if (!nvm_row_to_change(rel, otid, &row))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("attempted to update invisible tuple")));

	changed_attrs(rel, row.v, slot, new_root, &change.key_changed);
	if (*new_root)
		nvm_note_entries(rel);
	*lockmode = change.key_changed ? LockTupleExclusive : LockTupleNoKeyExclusive;
	nvm_new_form(rel, slot, &nv);
	nvm_undo_reserve();
	MultiXactIdSetOldestMember();

	result = nvm_wait_for_row(&row, cid, *lockmode, wait, XLTW_Update);
	if (result == TM_Ok && crosscheck != InvalidSnapshot &&
		!nvm_version_visible(NULL, row.v, crosscheck))
		result = TM_Updated;
	if (result != TM_Ok)
	{
		nvm_fill_failure(row.v, otid, result, tmfd);
		LWLockRelease(row.rlock);
		nvm_release_tuplock(rel, &row.roottid, *lockmode, &row.have_tuplock);
		nvm_new_discard(&nv);
		return result;
	}

	/* everything that can fail comes before the first store */
	nvm_adjust_cmax(row.v, &change);
	place_version(rel, nvm_rel_cache(rel), &nv, *new_root, oldblk);
	nvm_row_change(NVM_UNDO_END, row.state, oldblk, ItemPointerGetOffsetNumber(otid));
	link_version(&row, &nv, &change, *new_root);
	if (row.v != row.rootv)
	{
		(void) nvm_chain_prune(row.state, row.root, GlobalVisTestFor(rel), NULL,
							   &nremoved);
		if (unlikely(nvm_snapshots_held()) && nremoved == 0 &&
			++updates_held % MIDDLE_EVERY == 0)
			(void) nvm_chain_prune_middle(row.state, row.root, NULL);
	}
	LWLockRelease(row.rlock);
	nvm_release_tuplock(rel, &row.roottid, *lockmode, &row.have_tuplock);

	nvm_ssi_ended(rel, otid, &row.roottid);
	nvm_tts_written(slot, rel, nv.v, nv.blk, nv.off);
	nvm_new_announce(rel, &nv);
	NvmCountUpdate(rel, !*new_root);
	return TM_Ok;
}
