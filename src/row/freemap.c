/*-------------------------------------------------------------------------
 *
 * freemap.c
 *	  Which blocks of a table are not worth a look when space is wanted.
 *
 * A byte for each block, in DRAM.  0 means: look at the block.  n means: a
 * writer that wanted n cells found none, so no writer that wants as many need
 * look.  A byte goes back to 0 when something in the block is retired or
 * freed, and all are 0 after a start.  These are hints: a byte that is wrong
 * costs a look, or leaves space unused until something else happens in the
 * block or VACUUM comes by.
 *
 * Segments are made when the first block in them disappoints, so that tables
 * that only grow have none.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pool/nvm_pool.h"
#include "row/nvm_row_state.h"
#include "row/nvm_space.h"

/*
 * Segment and index in it of a block; *blocks: size of the segment.
 */
static inline uint32
freemap_segment(uint32 blk, uint32 *index, uint32 *blocks)
{
	uint32		k = 31 - __builtin_clz(blk / NVM_FREEMAP_BASE + 1);

	*index = blk - NVM_FREEMAP_BASE * ((UINT32_C(1) << k) - 1);
	*blocks = (uint32) NVM_FREEMAP_BASE << k;
	return k;
}

static inline uint8 *
freemap_load(NvmRelState *state, uint32 k)
{
	return __atomic_load_n(&nvm_rel_row(state)->fsm[k], __ATOMIC_ACQUIRE);
}

/*
 * A writer that wanted `cells` cells found none in the block.  May ERROR (out
 * of memory).
 */
void
nvm_freemap_disappointed(NvmRelState *state, uint32 blk, uint32 cells)
{
	uint32		index;
	uint32		blocks;
	uint32		k = freemap_segment(blk, &index, &blocks);
	uint8	   *segment = freemap_load(state, k);

	if (segment == NULL)
	{
		uint8	   *none = NULL;

		segment = nvm_dram_alloc(blocks);
		if (!__atomic_compare_exchange_n(&nvm_rel_row(state)->fsm[k], &none, segment, false,
										 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		{
			nvm_dram_free(segment, blocks);
			segment = none;
		}
	}
	segment[index] = (uint8) cells;
}

/*
 * Something was retired or freed in the block.
 */
void
nvm_freemap_promising(NvmRelState *state, uint32 blk)
{
	uint32		index;
	uint32		blocks;
	uint8	   *segment = freemap_load(state, freemap_segment(blk, &index, &blocks));

	if (segment != NULL && segment[index] != 0)
		segment[index] = 0;
}

/*
 * The first block from blk on, but below end, that may have `cells` cells, or
 * end.
 */
uint32
nvm_freemap_next(NvmRelState *state, uint32 blk, uint32 end, uint32 cells)
{
	while (blk < end)
	{
		uint32		index;
		uint32		blocks;
		uint8	   *segment = freemap_load(state, freemap_segment(blk, &index, &blocks));

		if (segment == NULL)
			return blk;
		for (; index < blocks && blk < end; index++, blk++)
		{
			if (segment[index] == 0 || cells < segment[index])
				return blk;
		}
	}
	return end;
}
