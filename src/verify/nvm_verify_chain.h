/*-------------------------------------------------------------------------
 *
 * nvm_verify_chain.h
 *	  What verify_block.c and verify_chain.c share: places of versions, the
 *	  frame of a version, its end; and the checks of a row's chain.
 *
 * Compiled into the server and into nvm_poolcheck.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_VERIFY_CHAIN_H
#define NVM_VERIFY_CHAIN_H

#include "verify/nvm_verify_block.h"

static inline NvmVersion *
nvm_cell_of(NvmBlock *block, uint32 cell)
{
	return (NvmVersion *) ((char *) block + cell * NVM_CELL_SIZE);
}

/*
 * Is (blk, off) a cell of an initialised block?
 */
static inline bool
nvm_is_place(NvmBlockCheck *check, uint32 blk, uint32 off)
{
	NvmBlock   *block;

	if (off < NVM_FIRST_CELL || off >= NVM_CELLS)
		return false;
	block = check->ops->block(check, blk);
	return block != NULL && block->magic == NVM_BLOCK_MAGIC;
}

/*
 * Is (blk, off) the first cell of an area of an initialised block?
 */
static inline bool
nvm_area_exists(NvmBlockCheck *check, uint32 blk, uint32 off)
{
	NvmBlock   *block;

	if (!nvm_is_place(check, blk, off))
		return false;
	block = check->ops->block(check, blk);
	return (nvm_load(&block->starts[off / 64]) & (UINT64CONST(1) << (off % 64))) != 0;
}

/*
 * What is wrong with the lengths, or the checksum, of what is or was a
 * version; NULL if nothing is.
 */
static inline const char *
nvm_frame_problem(const NvmVersion *v, uint32 off)
{
	if (NvmVersionCells(v) < 2 || off + NvmVersionCells(v) > NVM_CELLS ||
		v->len < NVM_TUPLE_MIN ||
		NVM_VERSION_HEADER + v->len > NvmVersionCells(v) * NVM_CELL_SIZE)
		return "length";
	return v->crc == nvm_version_crc(v) ? NULL : "checksum";
}

/*
 * Has a transaction that is over, and was not lost, ended a version?  Then
 * nobody looks for the version any more, and its root may be gone.  A prune
 * that was cut short leaves the version to VACUUM, and VACUUM may be cut
 * short, too.
 */
static inline bool
nvm_ended_for_good(NvmBlockCheck *check, uint64 end)
{
	uint64		limit;

	return end != 0 && !check->ops->in_gap(check, end) &&
		check->ops->handed_out(check, NVM_STAMP_SLOT(end), &limit) &&
		NVM_STAMP_COUNTER(end) < limit;
}

/* ---- verify_chain.c ---- */

/*
 * Version v, at (blk, off), has not ended: its root must lead to it.  `begin`
 * is its begin word.
 */
extern void nvm_verify_reached(NvmBlockCheck *check, NvmVersion *v, uint64 begin,
							   uint64 root, uint32 blk, uint32 off);

/* an area at (blk, off) that is marked DEAD or RETIRED */
extern void nvm_verify_gone(NvmBlockCheck *check, NvmVersion *v, uint32 blk, uint32 off);

/* the chain of the row with root (blk, off) */
extern void nvm_verify_chain(NvmBlockCheck *check, NvmBlock *block, uint32 blk, uint32 off);

#endif							/* NVM_VERIFY_CHAIN_H */
