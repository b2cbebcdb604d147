/*-------------------------------------------------------------------------
 *
 * block_ready.c
 *	  Blocks are made ready before a cell of them is handed out: new ones, and
 *	  those that the last run of the server has left.
 *
 * A new block is ready when its header is durable.  Blocks become so many at a
 * time, under one fence, before the relation grows by the first of them.
 * README.md, "Ready blocks", has what a crash leaves.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pmem/nvm_pmem.h"
#include "pool/nvm_poison.h"
#include "pool/nvm_pool.h"
#include "row/nvm_space.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"

/*
 * Initialise the headers of blocks blk .. blk + n - 1, and wait until they
 * are durable.  They are zero before, but for what a crash has left of such
 * headers.  A crash may keep an index entry into one of these blocks and
 * nothing else: then it finds a block of a crashed incarnation.
 *
 * Where a rebuilt table had a block before it was lost, such an entry may lead, too.
 *
 * Caller holds the relation's extend lock and the blocks are nobody's yet
 * (this is nvm_storage_extend's callback), or n is 1 and it holds the block's
 * allocation lock.
 */
void
nvm_blocks_make_ready(NvmRelState *state, uint32 blk, uint32 n, void *arg)
{
	for (uint32 i = 0; i < n; i++)
	{
		NvmBlock   *block = nvm_block(state, blk + i);

		block->dir = state->dir;
		block->blkno = blk + i;
		block->alloc_inc = NvmPool->incarnation;
		block->flags = blk + i < state->had && !nvm_clean_has(state, blk + i) ? NVM_BLOCK_SUSPECT : 0;
		block->used[0] = (1 << NVM_FIRST_CELL) - 1;
		block->check = nvm_block_check(block, state->dir, blk + i);

		/*
		 * Readers look at magic alone.  A header that a crash tears has none,
		 * because a line keeps its stores in their order.  The simulation
		 * learns that order by a flush before the last store.
		 */
		nvm_flush(block, NVM_BLOCK_HEADER_SIZE);
		nvm_store32(&block->magic, NVM_BLOCK_MAGIC);
		nvm_flush(block, NVM_BLOCK_HEADER_SIZE);
		NVM_FAILPOINT("space-block-ready");
	}
	if (nvm_rel_region(state)->durable)
		nvm_drain("space-init-block");
}

/*
 * A crash may have torn the very first writing of a header; nothing was handed
 * out then.  Caller holds the block's allocation lock.
 */
bool
nvm_block_is_initialised(NvmRelState *state, NvmBlock *block, uint32 blk)
{
	if (block->magic != NVM_BLOCK_MAGIC)
		return false;
	if (block->alloc_inc == NvmPool->incarnation)
		return true;
	return block->check == nvm_block_check(block, state->dir, blk) ||
		(block->starts[0] | block->starts[1] | block->starts[2] | block->starts[3]) != 0;
}

/*
 * Does `cell`, which is marked used although no area covers it, hold a
 * version or a stub whose starts bit was lost by damage?  That can be told of
 * the first cell of a run of such cells alone.  If the incarnation that last
 * handed out cells of the block ended cleanly, nothing legal looks like it:
 *	- an area is freed by zeroing its begin words, and they are durably 0 before
 *	  its cells are given to others;
 *	- a starts bit is durable before the stamp of its version is decided, and
 *	  all stamps of that incarnation are;
 *	- what an allocation that failed leaves has begin 0, RETIRED or DEAD; so
 *	  has what a crash while sanitizing leaves.
 * After a crash nothing can be said: bits and words that do not fit together
 * are legal then.  So is even a whole version of a loser without its starts
 * bit, which the gap collector did not see.
 *
 * Caller holds the block's allocation lock, or checks again under it.
 */
bool
nvm_block_lost_area(const NvmBlock *block, uint32 cell)
{
	const NvmVersion *v = (const NvmVersion *) ((const char *) block + cell * NVM_CELL_SIZE);

	return nvm_cell_looks_taken(block, cell) &&
		!nvm_incarnation_crashed(block->alloc_inc) && !nvm_stamp_in_gap(nvm_load(&v->begin));
}

/*
 * Look for areas whose starts bit was lost, and keep their cells as they are,
 * and used: `used` is what the areas cover.  Scans do not find the row, but
 * nvm.check() goes on reporting it, and an index still leads to its bytes.
 */
static void
keep_lost_areas(NvmBlock *block, uint64 *used)
{
	uint32		cell = NVM_FIRST_CELL;
	uint32		first = 0;
	int			n = 0;

	while (cell < NVM_CELLS)
	{
		uint32		end = cell;
		uint32		stop;

		while (end < NVM_CELLS && nvm_bit_is_set(block->used, end) && !nvm_bit_is_set(used, end))
			end++;
		for (; cell < end && nvm_block_lost_area(block, cell); cell = stop)
		{
			stop = Min(cell + Max(NvmVersionCells(nvm_block_cell(block, cell)), 1), end);
			nvm_cells_set(used, cell, stop - cell);
			if (n++ == 0)
				first = cell;
		}
		cell = end + 1;
	}
	if (n > 0)
	{
		NvmDirEntry *entry = nvm_dir_entry(block->dir);

		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("block %u of nvm relation file %u/%llu is damaged: %d row versions cannot be found by scans",
						block->blkno, entry->database,
						(unsigned long long) entry->relnumber, n),
				 errdetail("The first of them is at offset %u.", first),
				 errhint("Run nvm.check() on the table; compare with a backup.")));
	}
}

/*
 * First allocation in a block in this incarnation: re-establish the invariant
 * of free cells, whatever the last incarnation left behind.  Caller holds the
 * block's allocation lock.
 */
void
nvm_block_sanitize(NvmBlock *block)
{
	uint32		off = NVM_FIRST_CELL - 1;
	uint64		used[4] = {(1 << NVM_FIRST_CELL) - 1, 0, 0, 0};
	bool		more = false;

	while ((off = nvm_block_next_start(block, off + 1)) != 0)
	{
		NvmVersion *v = nvm_block_cell(block, off);
		uint32		ncells = Max(NvmVersionCells(v), 1);
		uint32		following;

		/* a loser's length may be torn: never beyond the next area */
		following = nvm_block_next_start(block, off + 1);
		ncells = Min(ncells, (following ? following : NVM_CELLS) - off);
		if (nvm_load(&v->begin) == 0)
			nvm_start_clear(block, off);
		else
			nvm_cells_set(used, off, ncells);
		if (nvm_begin_is(nvm_load(&v->begin), NVM_STAMP_RETIRED) ||
			(nvm_begin_is(nvm_load(&v->begin), NVM_STAMP_STUB) && ncells > 1))
			more = true;
	}
	keep_lost_areas(block, used);
	for (uint32 cell = NVM_FIRST_CELL; cell < NVM_CELLS; cell++)
	{
		if (!nvm_bit_is_set(used, cell))
			nvm_block_cell(block, cell)->begin = 0;
	}
	memcpy(block->used, used, sizeof(used));
	memset(block->retired, 0, sizeof(block->retired));
	block->retired[NVM_RETIRED_MORE] = more;
	block->ended = 0;
	if (nvm_incarnation_crashed(block->alloc_inc) &&
		!nvm_clean_has(&nvm_relstates[block->dir], block->blkno))
		block->flags |= NVM_BLOCK_SUSPECT;
	nvm_flush(block, NVM_UNIT_SIZE);
	nvm_drain("space-sanitize");
	for (uint32 cell = NVM_FIRST_CELL; cell < NVM_CELLS; cell++)
	{
		if (!nvm_bit_is_set(used, cell))
			nvm_poison_cells(block, cell, cell + 1);
	}

	/* only now may cells of this incarnation be handed out */
	block->alloc_inc = NvmPool->incarnation;
	nvm_flush(block, NVM_BLOCK_HEADER_SIZE);
	nvm_drain("space-sanitized");
}
