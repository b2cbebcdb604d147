/*-------------------------------------------------------------------------
 *
 * nvm_space.h
 *	  Retired versions and the space they leave: shared by chain.c, space.c,
 *	  undo.c and the files that modify rows.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_SPACE_H
#define NVM_SPACE_H

#include "table/nvm_table.h"

/*
 * Where a retired version, or a stub that still has its tail, remembers who
 * retired it: over the xids, which nobody needs any more.  0 if that is long
 * durable.  Not there in an area of one cell.
 */
#define NvmRetiredBy(v)		((uint64 *) &(v)->tuple.xmin)

/*
 * NvmBlock.retired: the places of a few retired areas, so that a writer finds
 * one without looking through the block, and behind them whether there may be
 * more of them, or tails of stubs, that only nvm_space_reclaim finds.  Hints
 * are set under different row locks; each byte changes by an exchange, so that
 * none is lost without leaving MORE behind.
 */
#define NVM_RETIRED_HINTS	7
#define NVM_RETIRED_MORE	NVM_RETIRED_HINTS

static inline bool
nvm_block_has_retired(const NvmBlock *block)
{
	uint64		hints;

	memcpy(&hints, block->retired, sizeof(hints));
	return hints != 0;
}

static inline uint8
nvm_load_hint(const NvmBlock *block, int i)
{
	return __atomic_load_n(&block->retired[i], __ATOMIC_RELAXED);
}

static inline void
nvm_block_note_retired(NvmBlock *block, uint32 off)
{
	uint8		old = __atomic_exchange_n(&block->retired[off % NVM_RETIRED_HINTS],
										  (uint8) off, __ATOMIC_RELAXED);

	if (old != 0 && old != off)
		block->retired[NVM_RETIRED_MORE] = 1;
}

static inline void
nvm_block_forget_retired(NvmBlock *block, int i, uint8 off)
{
	uint8		old = __atomic_exchange_n(&block->retired[i], 0, __ATOMIC_RELAXED);

	if (old != 0 && old != off)
		block->retired[NVM_RETIRED_MORE] = 1;
}

/*
 * The lock word of a row, given its root: see media_block.h.  A stub that lost
 * its tail keeps it in end; it has a tail as long as its old end stamp may
 * still be needed by a crash.
 *
 * Caller holds the row lock.
 */
static inline uint64 *
nvm_lock_word(NvmVersion *root)
{
	return NvmVersionCells(root) == 1 ? &root->end : &root->lock;
}

static inline uint32
nvm_cells_for(uint32 tuple_len)
{
	return (NVM_VERSION_HEADER + tuple_len + NVM_CELL_SIZE - 1) / NVM_CELL_SIZE;
}

/* the checksum in a block's header, over its identity */
static inline uint32
nvm_block_check(const NvmBlock *block, uint32 dir, uint32 blkno)
{
	return nvm_block_check_word(dir, blkno, NvmPoolOff(block));
}

extern NvmVersion *nvm_space_alloc_in(NvmRelState *state, uint32 blk,
									  uint32 cells, bool root, bool reclaim,
									  uint32 *off);
extern void nvm_version_retire(NvmRelState *state, NvmVersion *v, uint32 blk,
							   uint32 off, NvmStamp stamp, uint32 kind);
extern int	nvm_chain_prune_middle(NvmRelState *state, uint64 root);
extern bool nvm_block_lost_area(const NvmBlock *block, uint32 cell);
extern int	nvm_block_prune(NvmRelState *state, uint32 blk,
							struct GlobalVisState *vistest);

/* freemap.c */
extern void nvm_freemap_disappointed(NvmRelState *state, uint32 blk, uint32 cells);
extern void nvm_freemap_promising(NvmRelState *state, uint32 blk);
extern uint32 nvm_freemap_next(NvmRelState *state, uint32 blk, uint32 end, uint32 cells);

#endif							/* NVM_SPACE_H */
