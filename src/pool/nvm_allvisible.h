/*-------------------------------------------------------------------------
 *
 * nvm_allvisible.h
 *	  What is known of whole blocks of a table: that an index's TID need not be
 *	  followed, that a scan need not go there.  A bit for each, in DRAM.
 *
 * "Visible to all": the bit is about each TID of this block that an index
 * entry has led any scan to.  Every snapshot sees the row whose root is there.
 * Why that holds, and which processes may set a bit, is in
 * storage/allvisible.c; indexes look.
 *
 * "Barren": no version in this block is visible to any MVCC snapshot.  VACUUM
 * finds that out (storage/README.md, "Barren blocks"); sequential scans look.
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
 * Is the bit set?  The TID must have been read before.  The caller's snapshot
 * must be one that was taken as PostgreSQL takes MVCC snapshots.
 */
static inline bool
nvm_allvisible(NvmRelState *rel, uint32 blk)
{
	uint32		word;
	uint64		mask;
	uint64	   *segment = nvm_allvisible_segment(rel, nvm_allvisible_place(blk, &word, &mask));

	return segment != NULL &&
		(nvm_load(&segment[word]) & mask) != 0;
}

/*
 * A row of the block is about to change, or to be made.
 *
 * Caller holds the row lock of the block, or its allocation lock, exclusively;
 * a process that sets a bit holds both of them.  The change is stored after
 * that.
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

/*
 * The second half of a segment has the other bit.
 */
static inline uint64 *
nvm_barren_word(NvmRelState *rel, uint32 blk, uint64 *mask)
{
	uint32		word;
	uint32		k = nvm_allvisible_place(blk, &word, mask);
	uint64	   *segment = nvm_allvisible_segment(rel, k);

	return segment == NULL ? NULL :
		&segment[word + ((uint32) NVM_ALLVISIBLE_BLOCKS / 64 << k)];
}

/*
 * May a scan pass the block over?  Its snapshot must be an MVCC snapshot.
 */
static inline bool
nvm_barren(NvmRelState *rel, uint32 blk)
{
	uint64		mask;
	uint64	   *word = nvm_barren_word(rel, blk, &mask);

	return word != NULL && (nvm_load(word) & mask) != 0;
}

/*
 * A version is about to be made in the block.
 *
 * Caller holds its allocation lock exclusively; a process that sets the bit
 * holds it, too.
 */
static inline void
nvm_barren_clear(NvmRelState *rel, uint32 blk)
{
	uint64		mask;
	uint64	   *word = nvm_barren_word(rel, blk, &mask);

	if (word != NULL && (__atomic_load_n(word, __ATOMIC_RELAXED) & mask) != 0)
		(void) __atomic_fetch_and(word, ~mask, __ATOMIC_SEQ_CST);
}

#endif							/* NVM_ALLVISIBLE_H */
