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

static inline bool
nvm_begin_is(uint64 begin, uint32 kind)
{
	return begin != 0 && NVM_STAMP_SLOT(begin) == kind;
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
	uint32		id[3] = {NVM_BLOCK_MAGIC, dir, blkno};

	return nvm_pool_check(id, sizeof(id), NvmPoolOff(block), 32);
}

extern NvmVersion *nvm_space_alloc_in(NvmRelState *state, uint32 blk,
									  uint32 cells, bool root, bool reclaim,
									  uint32 *off);
extern void nvm_version_retire(NvmRelState *state, NvmVersion *v, uint32 blk,
							   uint32 off, NvmStamp stamp, uint32 kind);
extern bool nvm_block_lost_area(const NvmBlock *block, uint32 cell);
extern int	nvm_block_prune(NvmRelState *state, uint32 blk,
							struct GlobalVisState *vistest);

#endif							/* NVM_SPACE_H */
