/*-------------------------------------------------------------------------
 *
 * tuple_slot.c
 *	  TTSOpsNvm: tuple slots whose tuple lies in the pool.
 *
 * A slot points to the version itself.  There is no pin.  A version that a
 * snapshot sees stays where it is, and as it is, for as long as the snapshot
 * does.  A version that was unlinked is not reused before the horizon has
 * passed.  Under a reader's eyes the words in the version's first cell
 * change, and the lock word, and xend and cid in the tuple's header; data
 * never does.
 *
 * Columns are deformed by PostgreSQL's own code for heap tuples.  An external
 * varlena that holds a pool offset stands in for a value that is stored
 * outside the tuple (large.c).  When the column is asked for, it is replaced:
 * by a pointer into the pool if the value is in one piece.  No such varlena
 * leaves the slot: every tuple given out is flattened.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "access/xact.h"
#include "compat/nvm_compat_am.h"
#include "pool/nvm_pool.h"
#include "row/nvm_large.h"
#include "row/nvm_relation.h"
#include "row/nvm_space.h"
#include "row/nvm_tuple_slot.h"
#include "row/nvm_version.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_snapshot.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_xact.h"

static void
tts_nvm_init(TupleTableSlot *slot)
{
	NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;

	nslot->version = NULL;
	nslot->state = NULL;
	nslot->large_cxt = NULL;
	nslot->image = false;
	nslot->unread = false;
}

static void
tts_nvm_release(TupleTableSlot *slot)
{
}

/*
 * Give back what the slot owns; leaves its fields for the caller to set.
 */
void
nvm_tts_reset(TupleTableSlot *slot)
{
	NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;

	if (TTS_SHOULDFREE(slot))
	{
		heap_freetuple(nslot->base.tuple);
		slot->tts_flags &= ~TTS_FLAG_SHOULDFREE;
	}
	if (nslot->large_cxt != NULL)
	{
		MemoryContextDelete(nslot->large_cxt);
		nslot->large_cxt = NULL;
	}
	nslot->image = false;
}

static void
tts_nvm_clear(TupleTableSlot *slot)
{
	NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;

	if (unlikely(TTS_SHOULDFREE(slot) || nslot->large_cxt != NULL))
		nvm_tts_reset(slot);

	slot->tts_nvalid = 0;
	slot->tts_flags |= TTS_FLAG_EMPTY;
	ItemPointerSetInvalid(&slot->tts_tid);
	nslot->base.off = 0;
	nslot->base.tuple = NULL;
	nslot->version = NULL;
}

/*
 * Replace the columns from `first` on that are stored outside the tuple.
 */
static pg_noinline void
nvm_tts_resolve(TupleTableSlot *slot, int first)
{
	NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;

	for (int i = first; i < slot->tts_nvalid; i++)
	{
		if (slot->tts_isnull[i] ||
			TupleDescAttr(slot->tts_tupleDescriptor, i)->attlen != -1 ||
			!VARATT_IS_EXTERNAL(DatumGetPointer(slot->tts_values[i])))
			continue;

		if (nslot->large_cxt == NULL && !nvm_large_is_single(slot->tts_values[i]))
			nslot->large_cxt = AllocSetContextCreate(slot->tts_mcxt,
													 "nvm large values",
													 ALLOCSET_SMALL_SIZES);
		slot->tts_values[i] = nvm_large_datum(slot->tts_values[i], nslot->large_cxt);
	}
}

static void
tts_nvm_getsomeattrs(TupleTableSlot *slot, int natts)
{
	NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;
	int			first = slot->tts_nvalid;

	TTSOpsHeapTuple.getsomeattrs(slot, natts);
	if (unlikely((nslot->base.tuple->t_data->t_infomask & HEAP_HASEXTERNAL) &&
				 nvm_tts_in_pool(nslot)))
		nvm_tts_resolve(slot, first);
}

/*
 * xmax as heap would show it: the transaction that ended the version, or that
 * locks its row.  A locker that has finished is not shown any more: the lock
 * word stays with the row when it is updated, and a new version must not look
 * locked by it.
 */
static TransactionId
nvm_tts_xmax(NvmTupleTableSlot *nslot)
{
	NvmVersion *v = nslot->version;
	uint64		end = nvm_load(&v->end);
	uint64		lock;
	uint64		rootref;

	if (end != 0)
		return nvm_stamp_in_gap(end) ? InvalidTransactionId :
			nvm_stamp_xid(end, v->tuple.xend);

	/* only the newest version of a row is locked; the word is in its root */
	rootref = nvm_version_root(v);
	if (!nvm_tid_exists(nslot->state, NVM_REF_BLOCK(rootref), NVM_REF_OFFSET(rootref)))
		return InvalidTransactionId;
	nvm_read_enter();
	lock = nvm_load(nvm_lock_word(nvm_cell(nslot->state, NVM_REF_BLOCK(rootref),
										   NVM_REF_OFFSET(rootref))));
	nvm_read_leave();
	if (lock == 0 || NVM_LOCK_INC(lock) != (uint16) NvmPool->incarnation)
		return InvalidTransactionId;
	if (!(NVM_LOCK_BITS(lock) & NVM_LOCK_MULTI) &&
		!TransactionIdIsCurrentTransactionId(NVM_LOCK_XID(lock)) &&
		!TransactionIdIsInProgress(NVM_LOCK_XID(lock)))
		return InvalidTransactionId;
	return NVM_LOCK_XID(lock);
}

static Datum
tts_nvm_getsysattr(TupleTableSlot *slot, int attnum, bool *isnull)
{
	NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;

	Assert(!TTS_EMPTY(slot));

	if (nslot->version == NULL)
		return TTSOpsHeapTuple.getsysattr(slot, attnum, isnull);

	*isnull = false;
	switch (attnum)
	{
		case SelfItemPointerAttributeNumber:
			return PointerGetDatum(&slot->tts_tid);
		case MinTransactionIdAttributeNumber:
			return TransactionIdGetDatum(nslot->version->tuple.xmin);
		case MaxTransactionIdAttributeNumber:
			return TransactionIdGetDatum(nvm_tts_xmax(nslot));
		case MinCommandIdAttributeNumber:
		case MaxCommandIdAttributeNumber:
			return CommandIdGetDatum(nslot->version->tuple.cid);
		case TableOidAttributeNumber:
			return ObjectIdGetDatum(slot->tts_tableOid);
		default:
			elog(ERROR, "invalid attnum: %d", attnum);
			return 0;			/* keep compiler quiet */
	}
}

/*
 * Was the tuple made by the current transaction?  The xid alone does not tell:
 * another incarnation may have used it.
 */
pg_attribute_unused() static bool
tts_nvm_is_current_xact_tuple(TupleTableSlot *slot)
{
	NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;

	Assert(!TTS_EMPTY(slot));

	if (nslot->version == NULL)
	{
		if (nslot->base.tuple == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("don't have transaction information for this type of tuple")));
		return !HeapTupleHeaderXminFrozen(nslot->base.tuple->t_data) &&
			TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmin(nslot->base.tuple->t_data));
	}
	return nvm_xact_owns_stamp(nvm_load(&nslot->version->begin)) &&
		TransactionIdIsCurrentTransactionId(nslot->version->tuple.xmin);
}

/*
 * Has the slot a tuple, and one that may be handed out as it is?
 */
static inline bool
nvm_tts_has_plain_tuple(NvmTupleTableSlot *nslot)
{
	return nslot->base.tuple != NULL &&
		!((nvm_tts_in_pool(nslot) || nslot->image) && HeapTupleHasExternal(nslot->base.tuple));
}

/*
 * A copy of the slot's tuple in the current memory context that needs nothing
 * of the pool, and whose header shows what the system columns show.
 */
static HeapTuple
nvm_tts_form_copy(TupleTableSlot *slot)
{
	NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;
	HeapTuple	tuple = nslot->base.tuple;
	HeapTuple	copy;
	NvmVersion *v = nslot->version;

	if (nvm_tts_has_plain_tuple(nslot))
		copy = heap_copytuple(tuple);
	else
	{
		if (tuple != NULL)
			slot_getallattrs(slot);
		copy = heap_form_tuple(slot->tts_tupleDescriptor, slot->tts_values,
							   slot->tts_isnull);
		copy->t_self = slot->tts_tid;
		copy->t_tableOid = slot->tts_tableOid;
	}

	if (v != NULL)
	{
		HeapTupleHeader th = copy->t_data;
		TransactionId xmax = nvm_tts_xmax(nslot);
		uint64		begin = nvm_load(&v->begin);

		copy->t_self = slot->tts_tid;
		th->t_infomask &= ~HEAP_XACT_MASK;
		th->t_infomask2 &= HEAP_NATTS_MASK;
		th->t_choice.t_heap.t_xmin = v->tuple.xmin;
		th->t_choice.t_heap.t_xmax = xmax;
		th->t_choice.t_heap.t_field3.t_cid = v->tuple.cid;
		th->t_ctid = copy->t_self;
		if (!TransactionIdIsValid(xmax))
			th->t_infomask |= HEAP_XMAX_INVALID;
		if (nvm_begin_is_version(begin) && nvm_stamp_is_frozen(begin))
			th->t_infomask |= HEAP_XMIN_FROZEN;
	}
	return copy;
}

/*
 * Give the slot a tuple of its own.  What was assembled of several runs stays
 * until the slot is cleared: values of its columns may have been handed out.
 */
static void
nvm_tts_own_tuple(TupleTableSlot *slot)
{
	NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;
	MemoryContext oldcontext = MemoryContextSwitchTo(slot->tts_mcxt);

	nslot->base.tuple = nvm_tts_form_copy(slot);
	MemoryContextSwitchTo(oldcontext);
	nslot->version = NULL;
	nslot->image = false;

	/* values may point into what the tuple was made of */
	slot->tts_nvalid = 0;
	nslot->base.off = 0;
	slot->tts_flags |= TTS_FLAG_SHOULDFREE;
}

static void
tts_nvm_materialize(TupleTableSlot *slot)
{
	NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;

	Assert(!TTS_EMPTY(slot));

	if (TTS_SHOULDFREE(slot))
		return;

	nvm_tts_own_tuple(slot);
	if (nslot->large_cxt != NULL)
	{
		MemoryContextDelete(nslot->large_cxt);
		nslot->large_cxt = NULL;
	}
}

static void
tts_nvm_copyslot(TupleTableSlot *dstslot, TupleTableSlot *srcslot)
{
	NvmTupleTableSlot *ndst = (NvmTupleTableSlot *) dstslot;
	NvmTupleTableSlot *nsrc = (NvmTupleTableSlot *) srcslot;
	MemoryContext oldcontext;
	HeapTuple	tuple;

	if (TTS_IS_NVM(srcslot) && nvm_tts_in_pool(nsrc))
	{
		nvm_tts_set(dstslot, nsrc->state, srcslot->tts_tableOid, nsrc->version,
					ItemPointerGetBlockNumber(&srcslot->tts_tid),
					ItemPointerGetOffsetNumber(&srcslot->tts_tid));
		return;
	}

	tts_nvm_clear(dstslot);
	oldcontext = MemoryContextSwitchTo(dstslot->tts_mcxt);
	tuple = ExecCopySlotHeapTuple(srcslot);
	MemoryContextSwitchTo(oldcontext);

	ndst->base.tuple = tuple;
	dstslot->tts_flags &= ~TTS_FLAG_EMPTY;
	dstslot->tts_flags |= TTS_FLAG_SHOULDFREE;
	dstslot->tts_tid = tuple->t_self;
	dstslot->tts_tableOid = srcslot->tts_tableOid;
}

static HeapTuple
tts_nvm_get_heap_tuple(TupleTableSlot *slot)
{
	NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;

	Assert(!TTS_EMPTY(slot));
	if (!nvm_tts_has_plain_tuple(nslot))
		nvm_tts_own_tuple(slot);

	return nslot->base.tuple;
}

static HeapTuple
tts_nvm_copy_heap_tuple(TupleTableSlot *slot)
{
	Assert(!TTS_EMPTY(slot));
	return nvm_tts_form_copy(slot);
}

/* the slot stays as it is, and what it holds outside its tuple is copied once */
static MinimalTuple
tts_nvm_copy_minimal_tuple(NVM_COPY_MINIMAL_ARGS)
{
	NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;

	Assert(!TTS_EMPTY(slot));
	if (nvm_tts_has_plain_tuple(nslot))
		return NvmMinimalFromHeap(nslot->base.tuple);
	slot_getallattrs(slot);
	return NvmFormMinimal(slot);
}

const TupleTableSlotOps TTSOpsNvm = {
	.base_slot_size = sizeof(NvmTupleTableSlot),
	.init = tts_nvm_init,
	.release = tts_nvm_release,
	.clear = tts_nvm_clear,
	.getsomeattrs = tts_nvm_getsomeattrs,
	.getsysattr = tts_nvm_getsysattr,
	NVM_SLOT_OPS_IS_CURRENT(tts_nvm_is_current_xact_tuple)
	.materialize = tts_nvm_materialize,
	.copyslot = tts_nvm_copyslot,

	/* a heap tuple can be had without a copy, a minimal tuple cannot */
	.get_heap_tuple = tts_nvm_get_heap_tuple,
	.get_minimal_tuple = NULL,
	.copy_heap_tuple = tts_nvm_copy_heap_tuple,
	.copy_minimal_tuple = tts_nvm_copy_minimal_tuple
};

/*
 * Store a version in a slot made with TTSOpsNvm: zero-copy, no pin.  Valid as
 * long as the snapshot that found it, or until the transaction ends.
 */
void
nvm_tts_store(TupleTableSlot *slot, Relation rel, NvmVersion *v, uint32 blk,
			  uint32 off)
{
	nvm_tts_set(slot, nvm_rel(rel), RelationGetRelid(rel), v, blk, off);
}

/*
 * The contents of the slot were just written as version v at (blk, off): its
 * system columns are v's from now on, its contents remain.  For RETURNING.
 */
void
nvm_tts_written(TupleTableSlot *slot, Relation rel, NvmVersion *v, uint32 blk,
				uint32 off)
{
	ItemPointerSet(&slot->tts_tid, blk, off);
	slot->tts_tableOid = RelationGetRelid(rel);
	if (TTS_IS_NVM(slot))
	{
		NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;

		nslot->version = v;
		nslot->state = nvm_rel(rel);
		if (nslot->base.tuple != NULL)
			nslot->base.tuple->t_self = slot->tts_tid;
	}
}
