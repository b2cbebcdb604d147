/*-------------------------------------------------------------------------
 *
 * space_block.c
 *	  Areas of cells for versions: take them in a block.
 *
 * Cells are taken under the block's allocation lock.  What a crash may find of
 * it is in README.md, "Space".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "pool/nvm_allvisible.h"
#include "pool/nvm_poison.h"
#include "pool/nvm_sound.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_space.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_block.h"

/* areas up to which an update prefers free cells to what is retired */
#define APPEND_AREAS		64

/*
 * starts is read without lock while it changes.
 */
static inline void
set_start(NvmBlock *block, uint32 cell)
{
	__atomic_fetch_or(&block->starts[cell / 64], UINT64CONST(1) << (cell % 64),
					  __ATOMIC_RELEASE);
}

/*
 * See nvm_space.h.  Without the lock `used` changes meanwhile, so each word is
 * loaded once.
 */
uint32
nvm_block_find_run_behind(const NvmBlock *block, uint32 n, uint32 cell)
{
	while (cell + n <= NVM_CELLS)
	{
		uint64		word = ~__atomic_load_n(&block->used[cell / 64], __ATOMIC_RELAXED) >>
		(cell % 64);
		uint32		len;

		if (word == 0)
		{
			cell = (cell / 64 + 1) * 64;
			continue;
		}
		cell += __builtin_ctzll(word);
		for (len = 0; len < n && cell + len < NVM_CELLS; len++)
		{
			if (nvm_bit_is_set(block->used, cell + len))
				break;
		}
		if (len == n)
			return cell;
		cell += len + 1;
	}
	return 0;
}

/*
 * Take a retired area as it is, if the block's hints know one that fits and
 * that does not begin before cell `from`.
 *
 * Caller holds the block's allocation lock.
 */
static uint32
take_retired(NvmBlock *block, uint32 cells, uint32 from)
{
	struct GlobalVisState *vistest = NULL;

	if (!nvm_block_has_retired(block))
		return 0;
	for (int i = 0; i < NVM_RETIRED_HINTS; i++)
	{
		uint8		off = nvm_load_hint(block, i);
		NvmVersion *v;
		uint64		begin;

		if (off < from || !nvm_bit_is_set(block->starts, off))
			continue;
		v = nvm_block_cell(block, off);
		begin = nvm_load(&v->begin);
		if (!nvm_begin_is(begin, NVM_STAMP_RETIRED))
		{
			nvm_block_forget_retired(block, i, off);
			continue;
		}
		if (NvmVersionCells(v) < cells || NvmVersionCells(v) > cells + 2 ||
			(v->flags & NVM_VF_LARGE))
			continue;
		if (vistest == NULL)
			vistest = GlobalVisTestFor(NULL);
		if (!nvm_retired_is_free(v, begin, vistest))
			continue;
		nvm_block_forget_retired(block, i, off);
		/* RETIRED and 0 are both "no version" to a process that finds them */
		nvm_store(&v->begin, 0);
		return off;
	}
	return 0;
}

/*
 * Are there few areas in the block?
 */
static bool
block_is_sparse(const NvmBlock *block)
{
	uint32		n = 0;

	for (int i = 0; i < (int) lengthof(block->starts); i++)
		n += __builtin_popcountll(block->starts[i]);
	return n <= APPEND_AREAS;
}

/*
 * Try to allocate in one block, at cell `from` or behind it.
 *
 * The first free cells that suffice are taken.  So rows of a small table come
 * in the order in which they were written, and then VACUUM's holes are
 * filled, as in heap.  No more than that is promised.  Updates do it only in
 * a sparse block, so that a hot row does not spread over all of one.
 * Otherwise a retired area is taken as it is.  Neither needs a fence.  If
 * nothing is left, areas are freed first, provided that `reclaim` is set and
 * the block's hints promise something.
 */
NvmVersion *
nvm_space_alloc_in(NvmRelState *state, uint32 blk, uint32 from, uint32 cells,
				   bool root, bool reclaim, uint32 *off)
{
	NvmBlock   *block = nvm_block(state, blk);
	LWLock	   *lock = nvm_alloc_lock(state->dir, blk);
	NvmVersion *v;
	uint32		cell;
	uint32		retired;

	/* also one that is damaged, or it would be offered again and again */
	if (nvm_clean_has(state, blk))
		nvm_clean_take(state, blk);
	/* what was damaged must not be taken for free, nor sanitized */
	if (unlikely(!nvm_unit_is_sound(block)))
		return NULL;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (nvm_clean_has(state, blk))
	{
		/* VACUUM has just offered it */
		LWLockRelease(lock);
		return NULL;
	}
	if (!nvm_block_is_initialised(state, block, blk))
		nvm_blocks_make_ready(state, blk, 1, NULL);
	else if (block->alloc_inc != NvmPool->incarnation)
		nvm_block_sanitize(block);

	if (root && (block->flags & NVM_BLOCK_SUSPECT))
	{
		LWLockRelease(lock);
		return NULL;
	}

	cell = root || block_is_sparse(block) ?
		nvm_block_find_run_behind(block, cells, from) : 0;
	if (cell == 0 && (retired = take_retired(block, cells, from)) != 0)
	{
		cell = retired;
		v = nvm_block_cell(block, cell);
		cells = NvmVersionCells(v);
	}
	else
	{
		if (cell == 0)
			cell = nvm_block_find_run_behind(block, cells, from);
		if (cell == 0 && reclaim && nvm_block_has_retired(block) &&
			nvm_space_reclaim(state, block) >= cells)
			cell = nvm_block_find_run_behind(block, cells, from);
		if (cell == 0)
		{
			LWLockRelease(lock);
			return NULL;
		}
		v = nvm_block_cell(block, cell);
		nvm_poison_check_cells(block, cell, cell + cells);
		nvm_cells_set(block->used, cell, cells);
		set_start(block, cell);
	}
	if (root)
		nvm_allvisible_clear(state, blk);
	nvm_barren_clear(state, blk);
	v->next = NVM_REF_MAKE(0, 0, cells);
	LWLockRelease(lock);
	*off = cell;
	return v;
}
