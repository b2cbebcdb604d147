/*-------------------------------------------------------------------------
 *
 * nvm_tuple_slot.h
 *	  The tuple slot of nvm tables.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_TUPLE_SLOT_H
#define NVM_TUPLE_SLOT_H

#include "executor/tuptable.h"
#include "pool/nvm_poison.h"
#include "pool/nvm_pool.h"
#include "row/nvm_version.h"
#include "utils/rel.h"

extern const TupleTableSlotOps TTSOpsNvm;

/* store a version in a slot made with TTSOpsNvm: zero-copy, no pin: valid as
 * long as the snapshot that found it, or until the transaction ends */
extern void nvm_tts_store(TupleTableSlot *slot, Relation rel, NvmVersion *v,
						  uint32 blk, uint32 off);

/* the slot's contents were just written as v: sets tts_tid and tts_tableOid,
 * and gives it v's system columns */
extern void nvm_tts_written(TupleTableSlot *slot, Relation rel, NvmVersion *v,
							uint32 blk, uint32 off);

/*
 * States of the slot:
 *	- in the pool: base.tuple == &base.tupdata, which points to the version;
 *	- materialized: base.tuple was allocated in tts_mcxt, TTS_FLAG_SHOULDFREE;
 *	- virtual: base.tuple == NULL, tts_values and tts_isnull are all there is.
 *
 *	- an image: base.tuple was allocated in large_cxt, and is stored byte by byte
 *	  as it is (image.c).  Its stand-ins lead to values in memory.
 *
 * version says where system columns come from: the version in the pool, or,
 * with the other two, the version that was made of the slot's contents.
 */
typedef struct NvmTupleTableSlot
{
	HeapTupleTableSlot base;
	NvmVersion *version;
	NvmRelState *state;			/* relation of version; valid if that is set */
	MemoryContext large_cxt;	/* values assembled of several runs, or an
								 * image, or NULL */
	bool		image;			/* as said above */
	bool		unread;			/* of an index-only scan: what is stored is
								 * not looked at (allvisible.c) */
} NvmTupleTableSlot;

#define TTS_IS_NVM(slot)		((slot)->tts_ops == &TTSOpsNvm)

extern void nvm_tts_reset(TupleTableSlot *slot);

static inline bool
nvm_tts_in_pool(const NvmTupleTableSlot *nslot)
{
	return nslot->base.tuple == &nslot->base.tupdata;
}

/*
 * Store a version.  The work of nvm_tts_store, for callers that scan.
 */
static inline void
nvm_tts_set(TupleTableSlot *slot, NvmRelState *state, Oid relid, NvmVersion *v,
			uint32 blk, uint32 off)
{
	NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;
	HeapTuple	tuple = &nslot->base.tupdata;

	Assert(TTS_IS_NVM(slot));
	NVM_ASSERT_NOT_FREE(v);

	if (unlikely(TTS_SHOULDFREE(slot) || nslot->large_cxt != NULL))
		nvm_tts_reset(slot);

	slot->tts_flags &= ~TTS_FLAG_EMPTY;
	slot->tts_nvalid = 0;
	slot->tts_tableOid = relid;
	nslot->base.off = 0;
	nslot->base.tuple = tuple;
	tuple->t_len = v->len;
	tuple->t_tableOid = relid;
	tuple->t_data = NvmVersionTuple(v);
	ItemPointerSet(&tuple->t_self, blk, off);
	slot->tts_tid = tuple->t_self;
	nslot->version = v;
	nslot->state = state;
}

#endif							/* NVM_TUPLE_SLOT_H */
