/*-------------------------------------------------------------------------
 *
 * space.c
 *	  Areas of cells for versions: find a block with room.
 *
 * Cells are taken under the block's allocation lock (space_block.c).  The
 * search for a block reads headers without it, as hints.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "compat/nvm_compat.h"
#include "pool/nvm_allvisible.h"
#include "pool/nvm_sound.h"
#include "row/nvm_modify.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_row_state.h"
#include "row/nvm_space.h"
#include "utils/snapmgr.h"
#include "wbl/nvm_wbl.h"

/* headers looked at in one search for a block with room */
#define SEARCH_LOOKS		256
/* blocks that one look passes over at most, by the free map */
#define SEARCH_WINDOW		4096
/* blocks tried for what is retired in them, and then for free cells, before the
 * relation is extended */
#define SEARCH_BLOCKS		16
/* part of the table by which it grows before what was too young is looked at again */
#define SEARCH_AGAIN		32
/* free cells that make a block worth a note by VACUUM */
#define NOTE_CELLS			8

/* what a new version needs */
typedef struct SpaceWanted
{
	Relation	rel;
	NvmRelState *state;
	uint32		cells;
	uint32		limit;			/* cells of a block that may be in use before */
	bool		root;
} SpaceWanted;

/*
 * Is the block as full as the table's fillfactor allows?  What is beyond `limit`
 * cells is kept for updates of its rows.  The row that passes the limit still
 * goes in, so that each block takes one.
 */
static bool
block_is_filled(NvmRelState *state, uint32 blk, uint32 limit, bool reclaim)
{
	NvmBlock   *block = nvm_block(state, blk);

	if (limit >= NVM_BLOCK_CELLS || block->magic != NVM_BLOCK_MAGIC ||
		block->alloc_inc != NvmPool->incarnation || nvm_block_taken_cells(block) < limit)
		return false;
	if (reclaim && nvm_block_has_retired(block))
	{
		LWLock	   *lock = nvm_alloc_lock(state->dir, blk);

		LWLockAcquire(lock, LW_EXCLUSIVE);
		(void) nvm_space_reclaim(state, block);
		LWLockRelease(lock);
	}
	return nvm_block_taken_cells(block) >= limit;
}

/*
 * May roots go into the block?  Cells that a crashed run had handed out are
 * not for roots until VACUUM has come by (README.md, "Suspect blocks").  A
 * hint.
 */
static inline bool
block_takes_roots(const NvmBlock *block)
{
	return (block->flags & NVM_BLOCK_SUSPECT) == 0 &&
		(block->alloc_inc == NvmPool->incarnation ||
		 !nvm_incarnation_crashed(block->alloc_inc));
}

/*
 * See nvm_space.h.
 */
bool
nvm_block_is_clean(NvmRelState *state, uint32 blk)
{
	const NvmBlock *block = nvm_block(state, blk);

	return block->magic == NVM_BLOCK_MAGIC && block_takes_roots(block) &&
		nvm_block_free_cells(block) == NVM_BLOCK_CELLS;
}

/*
 * Is there a reason to look through the table?  After a round in which
 * nothing was retired there is none.  There is one again if the round has
 * passed over areas that may have come of age since, or over the front of the
 * table.
 */
static bool
search_is_due(NvmRelState *state, uint32 nblocks)
{
	uint32		again;

	if (pg_atomic_read_u32(&nvm_rel_row(state)->hint_free_blocks) > 0)
		return true;
	again = pg_atomic_read_u32(&nvm_rel_row(state)->hint_again);
	if (again == 0 || nblocks < again)
		return false;
	if (pg_atomic_compare_exchange_u32(&nvm_rel_row(state)->hint_again, &again, 0))
		pg_atomic_write_u32(&nvm_rel_row(state)->hint_free_blocks, 1);
	return true;
}

/*
 * A block that may have room, among those that the relation had a moment ago.
 * Searches begin where the last one stopped.  With `reclaim`, blocks count in
 * which there are retired areas, too, although those may be too young.
 */
static bool
search_free_block(const SpaceWanted *wanted, bool reclaim, uint32 *blk)
{
	NvmRelState *state = wanted->state;
	uint32		cells = wanted->cells;
	uint32		nblocks = nvm_rel_nblocks(state);
	bool		wrapped = false;

	if (!search_is_due(state, nblocks))
		return false;
	for (int i = 0; i < SEARCH_LOOKS; i++)
	{
		uint32		from = pg_atomic_read_u32(&nvm_rel_row(state)->hint_next);
		uint32		window = Min(nblocks, from + SEARCH_WINDOW);
		uint32		b = nvm_freemap_next(state, from, window, cells);
		NvmBlock   *block;
		bool		full;

		if (from >= nblocks)
		{
			/*
			 * Once round: whatever was promised has been offered.  What was
			 * too young at the front may have come of age meanwhile.
			 */
			pg_atomic_write_u32(&nvm_rel_row(state)->hint_next, 0);
			pg_atomic_write_u32(&nvm_rel_row(state)->hint_free_blocks, 0);
			if (wrapped)
				return false;
			wrapped = true;
			continue;
		}
		if (!pg_atomic_compare_exchange_u32(&nvm_rel_row(state)->hint_next, &from,
											b < window ? b + 1 : b) || b >= window)
			continue;

		/*
		 * In a block that nobody has used since the start these are hints,
		 * too: what a crash has left of them hides some room until VACUUM
		 * comes by.
		 */
		block = nvm_block(state, b);
		if (nvm_clean_has(state, b))
		{
			/* that is for when there is nothing else */
			uint32		next = b + 1;

			pg_atomic_compare_exchange_u32(&nvm_rel_row(state)->hint_next, &next,
										   NVM_CLEAN_END(pg_atomic_read_u64(&state->clean)));
			continue;
		}
		if (block->magic == NVM_BLOCK_MAGIC && wanted->root && !block_takes_roots(block))
			continue;
		full = nvm_block_taken_cells(block) >= wanted->limit || nvm_block_find_run(block, cells) == 0;
		if (block->magic != NVM_BLOCK_MAGIC || !full)
		{
			*blk = b;
			return true;
		}
		if (!nvm_block_has_retired(block))
		{
			nvm_freemap_disappointed(state, b, cells);
			continue;
		}
		/* a round for every so many blocks that the table grows by */
		if (pg_atomic_read_u32(&nvm_rel_row(state)->hint_again) == 0)
			pg_atomic_write_u32(&nvm_rel_row(state)->hint_again,
								nblocks + nblocks / SEARCH_AGAIN + 1);
		if (reclaim)
		{
			*blk = b;
			return true;
		}
	}
	return false;
}

/*
 * The first block of the clean run, rather than that the table grows.
 */
static bool
next_clean(NvmRelState *state, int tries, uint32 *blk)
{
	uint64		run = pg_atomic_read_u64(&state->clean);

	*blk = NVM_CLEAN_FIRST(run);
	return run != 0 && *blk < nvm_rel_nblocks(state) && tries < 4 * SEARCH_BLOCKS;
}

/*
 * The block to insert into.  Backends of one slot share it, so that a new
 * session goes on where the last one stopped.
 *
 * What is retired may be too young all over the front of the table, or may
 * not be used until the traces of a crash are removed.  Then free cells
 * further back are looked for all the same, before the table grows.
 */
static uint32
next_target(const SpaceWanted *wanted, pg_atomic_uint32 *target, int tries,
			bool *fresh)
{
	uint32		blk;
	bool		reclaim = tries < SEARCH_BLOCKS &&
	pg_atomic_read_u32(&NvmWbl->ntorn) == 0;
	ErrorContextCallback context;

	context.previous = error_context_stack;
	context.callback = nvm_extend_context;
	context.arg = wanted->rel;
	error_context_stack = &context;
	*fresh = false;
	if ((tries >= 2 * SEARCH_BLOCKS || !search_free_block(wanted, reclaim, &blk)) &&
		!next_clean(wanted->state, tries, &blk))
	{
		blk = nvm_storage_extend(wanted->state, nvm_blocks_make_ready, NULL);
		*fresh = true;
	}
	pg_atomic_write_u32(target, blk + 1);
	error_context_stack = context.previous;
	return blk;
}

/*
 * The first look at a block in this run of the server may be that for space.
 */
static inline void
space_prove(Relation rel, NvmRelState *state, uint32 blk)
{
	if (unlikely(!nvm_unit_is_sound(nvm_block(state, blk))))
		(void) nvm_block_prove_for_space(rel, state, blk);
}

void
nvm_space_alloc(Relation rel, NvmRelCache *cache, bool root, BlockNumber near,
				NvmNewVersion *nv)
{
	NvmRelState *state = cache->state;
	uint32		cells = nv->cells;
	uint32		blk;
	pg_atomic_uint32 *target = &nvm_rel_row(state)->target[NvmProcNumber() % NVM_INSERT_TARGETS];
	uint32		limit = NVM_BLOCK_CELLS *
	RelationGetFillFactor(rel, HEAP_DEFAULT_FILLFACTOR) / 100;
	bool		fresh = false;
	NvmVersion *v;

	Assert(cells >= 2 && cells <= NVM_BLOCK_CELLS);

	/*
	 * The tail that a root leaves when it becomes a stub is one cell shorter
	 * than the row.  A user who expects updates, and says so by a fillfactor,
	 * gets a cell more, so that a version of the row's size fits into the
	 * tail.
	 */
	if (root && cells < NVM_BLOCK_CELLS && RelationGetFillFactor(rel, 100) < 100)
		cells++;

	if (near != InvalidBlockNumber)
	{
		space_prove(rel, state, near);
		v = nvm_space_alloc_in(state, near, cells, root, false, &nv->off);
		if (v != NULL)
		{
			nv->v = v;
			nv->blk = near;
			return;
		}
	}
	blk = pg_atomic_read_u32(target);
	for (int tries = 0;; tries++)
	{
		if (blk == 0 || tries > 0)
		{
			SpaceWanted wanted = {
				.rel = rel,
				.state = state,
				.cells = cells,
				.limit = limit,
				.root = root
			};

			blk = next_target(&wanted, target, tries, &fresh);
		}
		else
			blk--;
		space_prove(rel, state, blk);
		v = block_is_filled(state, blk, limit, !fresh) ? NULL :
			nvm_space_alloc_in(state, blk, cells, root, !fresh, &nv->off);
		if (v != NULL)
		{
			nv->v = v;
			nv->blk = blk;
			return;
		}
		if (!fresh && !nvm_block_has_retired(nvm_block(state, blk)) &&
			(nvm_block(state, blk)->flags & NVM_BLOCK_SUSPECT) == 0)
			nvm_freemap_disappointed(state, blk, cells);
	}
}

void
nvm_space_note_reset(NvmRelState *state)
{
	pg_atomic_write_u32(&nvm_rel_row(state)->hint_free_blocks, 0);
	pg_atomic_write_u32(&nvm_rel_row(state)->hint_next, 0);
}

void
nvm_space_note(NvmRelState *state, uint32 blk, uint32 free)
{
	if (free >= NOTE_CELLS)
		pg_atomic_fetch_add_u32(&nvm_rel_row(state)->hint_free_blocks, 1);
}
