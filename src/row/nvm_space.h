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

#include "pool/nvm_pool.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"

struct GlobalVisState;

/* ---- freeing areas (space_reclaim.c) ---- */

/* may a retired area, or the tail of a stub, be reused?  begin is v's */
extern bool nvm_retired_is_free(NvmVersion *v, uint64 begin,
								struct GlobalVisState *vistest);

/* free reclaimable areas of a block (RETIRED beyond the horizon, stub tails);
 * caller holds the alloc lock.  Returns cells that are free now. */
extern uint32 nvm_space_reclaim(NvmRelState *state, NvmBlock *block);

/* ---- taking areas (space.c, space_block.c) ---- */

/*
 * Is there nothing in the block, and may roots be put there?  Caller holds its allocation
 * lock, or it is a hint.
 */
extern bool nvm_block_is_clean(NvmRelState *state, uint32 blk);

/*
 * First run of n free cells that begins at `cell` or behind it, or 0; cells of the header
 * count as used.
 */
extern uint32 nvm_block_find_run_behind(const NvmBlock *block, uint32 n, uint32 cell);

static inline uint32
nvm_block_find_run(const NvmBlock *block, uint32 n)
{
	return nvm_block_find_run_behind(block, n, NVM_FIRST_CELL);
}

/*
 * An abort has taken back a root: the next transaction of this backend's slot begins at
 * the front of the table.
 */
extern void nvm_space_taken_back(NvmRelState *state);

/* VACUUM tells what it found: reset once at its start, then note each block */
extern void nvm_space_note_reset(NvmRelState *state);
extern void nvm_space_note(NvmRelState *state, uint32 blk, uint32 free_cells);

/*
 * Where a retired version, or a stub that still has its tail, remembers the
 * transaction that retired it: over the xids, which nobody needs any more.  0
 * if that is long durable.  Not there in an area of one cell.
 */
#define NvmRetiredBy(v)		((uint64 *) &(v)->tuple.xmin)

/*
 * NvmBlock.retired: the places of a few retired areas, so that a writer finds
 * one without looking through the block.  The byte behind them says whether
 * there may be more retired areas, or tails of stubs; only nvm_space_reclaim
 * finds those.  Hints are set under different row locks.  Each byte changes
 * by an exchange, so that none is lost without leaving MORE behind.
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

/* cells of a block, and bits of its `starts` and `used` */
static inline NvmVersion *
nvm_block_cell(NvmBlock *block, uint32 cell)
{
	return (NvmVersion *) ((char *) block + cell * NVM_CELL_SIZE);
}

static inline bool
nvm_bit_is_set(const uint64 *bits, uint32 cell)
{
	return (bits[cell / 64] >> (cell % 64)) & 1;
}

static inline uint32
nvm_block_free_cells(const NvmBlock *block)
{
	uint32		n = NVM_CELLS;

	for (int i = 0; i < 4; i++)
		n -= __builtin_popcountll(block->used[i]);
	return n;
}

/*
 * Cells of the block that are in use.  Without the lock it is a hint.
 */
static inline uint32
nvm_block_taken_cells(const NvmBlock *block)
{
	uint32		n = NVM_CELLS - nvm_block_free_cells(block);

	return n > NVM_FIRST_CELL ? n - NVM_FIRST_CELL : 0;
}

static inline void
nvm_cells_set(uint64 *bits, uint32 cell, uint32 n)
{
	for (uint32 i = cell; i < cell + n; i++)
		bits[i / 64] |= UINT64CONST(1) << (i % 64);
}

/*
 * starts is read without lock while it changes.
 */
static inline void
nvm_start_clear(NvmBlock *block, uint32 cell)
{
	__atomic_fetch_and(&block->starts[cell / 64], ~(UINT64CONST(1) << (cell % 64)),
					   __ATOMIC_RELEASE);
}

extern NvmVersion *nvm_space_alloc_in(NvmRelState *state, uint32 blk, uint32 from,
									  uint32 cells, bool root, bool reclaim,
									  uint32 *off);
extern int	nvm_chain_prune_middle(NvmRelState *state, uint64 root, int64 *nlarge);
extern int	nvm_block_prune(NvmRelState *state, uint32 blk,
							struct GlobalVisState *vistest);

/* ---- retiring versions (retire.c) ---- */

/*
 * Versions, unlinked already, that are to be retired together: see README.md,
 * "Retiring many versions".
 */
typedef struct NvmRetireItem
{
	uint32		blk;
	uint16		off;
	uint16		kind;			/* NVM_STAMP_RETIRED, _STUB or _DEAD */
} NvmRetireItem;

#define NVM_RETIRE_BATCH		NVM_CELLS

typedef struct NvmRetireBatch
{
	NvmRelState *state;
	NvmStamp	stamp;			/* of the transaction that unlinked them */

	/*
	 * told of each with large values, under the locks, unless it becomes
	 * DEAD; or NULL
	 */
	void		(*retired_large) (void *arg, uint32 blk, uint32 off);
	void	   *arg;

	int			n;
	NvmRetireItem item[NVM_RETIRE_BATCH];
} NvmRetireBatch;

extern void nvm_version_retire(NvmRelState *state, NvmVersion *v, uint32 blk,
							   uint32 off, NvmStamp stamp, uint32 kind);

static inline void
nvm_retire_begin(NvmRetireBatch *batch, NvmRelState *state, NvmStamp stamp)
{
	batch->state = state;
	batch->stamp = stamp;
	batch->retired_large = NULL;
	batch->arg = NULL;
	batch->n = 0;
}

extern void nvm_retire_flush(NvmRetireBatch *batch);

/*
 * One more.  Caller holds its root's row lock, until the batch is flushed; a
 * full batch is flushed here.
 */
static inline void
nvm_retire_add(NvmRetireBatch *batch, uint32 blk, uint32 off, uint32 kind)
{
	NvmRetireItem *item;

	if (batch->n == NVM_RETIRE_BATCH)
		nvm_retire_flush(batch);
	item = &batch->item[batch->n++];
	item->blk = blk;
	item->off = (uint16) off;
	item->kind = (uint16) kind;
}

/* block_ready.c */
extern void nvm_blocks_make_ready(NvmRelState *state, uint32 blk, uint32 n, void *arg);
extern bool nvm_block_is_initialised(NvmRelState *state, NvmBlock *block, uint32 blk);
extern void nvm_block_sanitize(NvmBlock *block);
extern bool nvm_block_lost_area(const NvmBlock *block, uint32 cell);

/* freemap.c */
extern void nvm_freemap_disappointed(NvmRelState *state, uint32 blk, uint32 cells);
extern void nvm_freemap_promising(NvmRelState *state, uint32 blk);
extern uint32 nvm_freemap_next(NvmRelState *state, uint32 blk, uint32 end, uint32 cells);

#endif							/* NVM_SPACE_H */
