/*-------------------------------------------------------------------------
 *
 * nvm_allvisible.h
 *	  Blocks of a table of which it is known that an index's TID need not be
 *	  followed: a bit for each, in DRAM.
 *
 * A set bit means: whatever TID an index entry has led any scan to in this
 * block, the row that it is the root of is visible to every snapshot.  What
 * makes that so, and who may set a bit, is table/allvisible.c's; indexes look.
 *
 * Segments are made when the first bit in them is to be set, and go with the
 * storage.  All bits are 0 after a start.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_ALLVISIBLE_H
#define NVM_ALLVISIBLE_H

#include "pool/nvm_pool.h"

/*
 * Segment, word in it and bit of a block.
 */
static inline uint32
nvm_allvisible_place(uint32 blk, uint32 *word, uint64 *mask)
{
	uint32		k = 31 - __builtin_clz(blk / NVM_ALLVISIBLE_BLOCKS + 1);
	uint32		i = blk - NVM_ALLVISIBLE_BLOCKS * ((UINT32_C(1) << k) - 1);

	*word = i / 64;
	*mask = UINT64CONST(1) << (i % 64);
	return k;
}

static inline uint64 *
nvm_allvisible_segment(NvmRelState *rel, uint32 k)
{
	return __atomic_load_n(&rel->allvisible[k], __ATOMIC_ACQUIRE);
}

/*
 * Is the bit set?  The TID must have been read before, and the caller's
 * snapshot be one that was taken as PostgreSQL takes MVCC snapshots.
 */
static inline bool
nvm_allvisible(NvmRelState *rel, uint32 blk)
{
	uint32		word;
	uint64		mask;
	uint64	   *segment = nvm_allvisible_segment(rel, nvm_allvisible_place(blk, &word, &mask));

	return segment != NULL &&
		(__atomic_load_n(&segment[word], __ATOMIC_ACQUIRE) & mask) != 0;
}

/*
 * A row of the block is about to change, or to be made.
 *
 * Caller holds the row lock of the block, or its allocation lock, exclusively;
 * who sets a bit holds both of them.  The change is stored after that.
 */
static inline void
nvm_allvisible_clear(NvmRelState *rel, uint32 blk)
{
	uint32		word;
	uint64		mask;
	uint64	   *segment = nvm_allvisible_segment(rel, nvm_allvisible_place(blk, &word, &mask));

	if (segment != NULL &&
		(__atomic_load_n(&segment[word], __ATOMIC_RELAXED) & mask) != 0)
		(void) __atomic_fetch_and(&segment[word], ~mask, __ATOMIC_SEQ_CST);
}

#endif							/* NVM_ALLVISIBLE_H */
