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
#include "xact/nvm_xact.h"

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
/* blocks of a table in which rows keep their order (README.md, "The order of rows") */
#define ORDER_BLOCKS		1024
/* tables of which a process knows where its transaction has put its last row */
#define LAST_ROWS			256
/* blocks behind that one that are looked at for room */
#define AHEAD_LOOKS			64
/* blocks up to which a table grows rather than that rows lose their order, and up to
 * which it does so if more than half of it is in use */
#define ORDER_GROW			8
#define ORDER_GROW_MAX		64
/* blocks by which it is guessed how much of a table is in use */
#define ORDER_SAMPLE		16

/* what a new version needs, and how far the search for it has come */
typedef struct SpaceWanted
{
	Relation	rel;
	NvmRelState *state;
	pg_atomic_uint32 *target;	/* of this backend's slot: block + 1 */
	uint32		cells;
	uint32		limit;			/* cells of a block that may be in use before */
	bool		root;
	bool		in_order;		/* not the first row of its transaction */
	uint32		ahead;			/* look from this block on first, or
								 * InvalidBlockNumber */
	int			looks;			/* that were taken there */
	int			tries;			/* blocks that were tried from elsewhere */
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
 * Is there room in the block, or could there be some?  If not, the free map is
 * told.
 *
 * In a block that nobody has used since the start these are hints, too: what
 * a crash has left of them hides some room until VACUUM comes by.
 */
typedef enum BlockOffer
{
	OFFERS_NOTHING,
	OFFERS_RETIRED,				/* areas that may be too young */
	OFFERS_ROOM
} BlockOffer;

static BlockOffer
block_offer(const SpaceWanted *wanted, uint32 blk)
{
	NvmRelState *state = wanted->state;
	NvmBlock   *block = nvm_block(state, blk);

	if (block->magic != NVM_BLOCK_MAGIC)
		return OFFERS_ROOM;
	if (wanted->root && !block_takes_roots(block))
		return OFFERS_NOTHING;
	if (nvm_block_taken_cells(block) < wanted->limit && nvm_block_find_run(block, wanted->cells) != 0)
		return OFFERS_ROOM;
	if (nvm_block_has_retired(block))
		return OFFERS_RETIRED;
	nvm_freemap_disappointed(state, blk, wanted->cells);
	return OFFERS_NOTHING;
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
	NvmRowState *row = nvm_rel_row(state);
	uint32		nblocks = nvm_rel_nblocks(state);
	bool		wrapped = false;

	if (!search_is_due(state, nblocks))
		return false;
	for (int i = 0; i < SEARCH_LOOKS; i++)
	{
		uint32		from = pg_atomic_read_u32(&row->hint_next);
		uint32		window = Min(nblocks, from + SEARCH_WINDOW);
		uint32		b = nvm_freemap_next(state, from, window, wanted->cells);
		BlockOffer	offer;

		if (from >= nblocks)
		{
			/*
			 * Once round: whatever was promised has been offered.  What was
			 * too young at the front may have come of age meanwhile.
			 */
			pg_atomic_write_u32(&row->hint_next, 0);
			pg_atomic_write_u32(&row->hint_free_blocks, 0);
			if (wrapped)
				return false;
			wrapped = true;
			continue;
		}
		if (!pg_atomic_compare_exchange_u32(&row->hint_next, &from,
											b < window ? b + 1 : b) || b >= window)
			continue;

		if (nvm_clean_has(state, b))
		{
			/* that is for when there is nothing else */
			uint32		next = b + 1;

			pg_atomic_compare_exchange_u32(&row->hint_next, &next,
										   NVM_CLEAN_END(pg_atomic_read_u64(&state->clean)));
			continue;
		}
		offer = block_offer(wanted, b);
		/* a round for every so many blocks that the table grows by */
		if (offer == OFFERS_RETIRED && pg_atomic_read_u32(&row->hint_again) == 0)
			pg_atomic_write_u32(&row->hint_again, nblocks + nblocks / SEARCH_AGAIN + 1);
		if (offer == OFFERS_ROOM || (offer == OFFERS_RETIRED && reclaim))
		{
			*blk = b;
			return true;
		}
	}
	return false;
}

/*
 * Does a backend of another slot insert into the block?
 */
static bool
is_target_of_others(const SpaceWanted *wanted, uint32 blk)
{
	for (int i = 0; i < NVM_INSERT_TARGETS; i++)
	{
		pg_atomic_uint32 *target = &nvm_rel_row(wanted->state)->target[i];

		if (target != wanted->target && pg_atomic_read_u32(target) == blk + 1)
			return true;
	}
	return false;
}

/*
 * The next block from wanted->ahead on that may have room: for the order of
 * rows.  Takes no part in the rounds of search_free_block.
 */
static bool
next_ahead(SpaceWanted *wanted, bool reclaim, uint32 *blk)
{
	NvmRelState *state = wanted->state;
	uint32		nblocks = nvm_rel_nblocks(state);

	while (wanted->looks++ < AHEAD_LOOKS)
	{
		uint32		b = nvm_freemap_next(state, wanted->ahead, nblocks, wanted->cells);
		BlockOffer	offer;

		if (b >= nblocks)
			return false;
		wanted->ahead = b + 1;
		if (nvm_clean_has(state, b) || is_target_of_others(wanted, b))
			continue;
		offer = block_offer(wanted, b);
		if (offer == OFFERS_ROOM ||
			(offer == OFFERS_RETIRED && reclaim && wanted->looks <= SEARCH_BLOCKS))
		{
			*blk = b;
			return true;
		}
	}
	return false;
}

/*
 * Shall the table grow although there may be room in front of a transaction's
 * last row?  If it fills no extent; or it is small, and more than half of it is in
 * use.  What was retired counts as free.  A guess from a few blocks.
 */
static bool
growth_is_due(NvmRelState *state)
{
	uint32		nblocks = nvm_rel_nblocks(state);
	uint32		looks = Min(nblocks, ORDER_SAMPLE);
	uint32		taken = 0;

	if (nblocks < ORDER_GROW)
		return true;
	if (nblocks > ORDER_GROW_MAX)
		return false;
	/* then there is no search */
	if (pg_atomic_read_u32(&nvm_rel_row(state)->hint_free_blocks) == 0 &&
		pg_atomic_read_u32(&nvm_rel_row(state)->hint_again) == 0)
		return true;
	for (uint32 i = 0; i < looks; i++)
	{
		NvmBlock   *block = nvm_block(state, (uint32) ((uint64) i * nblocks / looks));

		if (block->magic == NVM_BLOCK_MAGIC && !nvm_block_has_retired(block))
			taken += nvm_block_taken_cells(block);
	}
	return taken > looks * NVM_BLOCK_CELLS / 2;
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
 * session goes on where the last one stopped.  A transaction that looks ahead
 * rather lets the table grow than go back, within limits.
 *
 * What is retired may be too young all over the front of the table, or may
 * not be used until the traces of a crash are removed.  Then free cells
 * further back are looked for all the same, before the table grows.
 */
static uint32
next_target(SpaceWanted *wanted, bool *fresh)
{
	uint32		blk;
	bool		reclaim = pg_atomic_read_u32(&NvmWbl->ntorn) == 0;
	bool		grow = false;
	ErrorContextCallback context;

	context.previous = error_context_stack;
	context.callback = nvm_extend_context;
	context.arg = wanted->rel;
	error_context_stack = &context;
	*fresh = false;
	if (wanted->ahead != InvalidBlockNumber)
	{
		if (next_ahead(wanted, reclaim, &blk))
			goto found;
		wanted->ahead = InvalidBlockNumber;
		grow = wanted->in_order && growth_is_due(wanted->state);
	}
	if (grow || wanted->tries >= 2 * SEARCH_BLOCKS ||
		!search_free_block(wanted, reclaim && wanted->tries < SEARCH_BLOCKS, &blk))
	{
		if (!next_clean(wanted->state, wanted->tries, &blk))
		{
			blk = nvm_storage_extend(wanted->state, nvm_blocks_make_ready, NULL);
			*fresh = true;
		}
	}
	wanted->tries++;
found:
	pg_atomic_write_u32(wanted->target, blk + 1);
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

/* where a transaction of this process has put its last row */
typedef struct LastRow
{
	NvmRelState *state;
	NvmStamp	xact;			/* nvm_xact_identity */
	uint32		blk;
	uint32		cell;			/* the first one behind it */
} LastRow;

static LastRow last_rows[LAST_ROWS];

/*
 * The last row that the current transaction has inserted into the table, if
 * that is known.  Else its `blk` is InvalidBlockNumber.
 */
static inline LastRow *
last_row(NvmRelState *state, uint32 nblocks)
{
	LastRow    *last = &last_rows[state->dir % LAST_ROWS];
	NvmStamp	xact = nvm_xact_identity();

	if (last->xact != xact || last->state != state || last->blk >= nblocks)
	{
		last->state = state;
		last->xact = xact;
		last->blk = InvalidBlockNumber;
	}
	return last;
}

/*
 * The block had no room for the version, or none behind the transaction's last
 * row.
 */
static void
note_no_room(const SpaceWanted *wanted, uint32 blk, uint32 from)
{
	NvmRelState *state = wanted->state;
	NvmBlock   *block = nvm_block(state, blk);

	if ((block->flags & NVM_BLOCK_SUSPECT) != 0)
		return;
	if (from > NVM_FIRST_CELL && nvm_block_taken_cells(block) < wanted->limit &&
		nvm_block_find_run(block, wanted->cells) != 0)
	{
		/* another transaction may use that */
		if (pg_atomic_read_u32(&nvm_rel_row(state)->hint_free_blocks) == 0)
			pg_atomic_write_u32(&nvm_rel_row(state)->hint_free_blocks, 1);
		return;
	}
	if (nvm_block_has_retired(block))
		return;
	nvm_freemap_disappointed(state, blk, wanted->cells);
}

/*
 * A place for a new version anywhere.  `last` is where the transaction's last
 * row is, if rows of the table keep their order (README.md, "The order of
 * rows"), else NULL.
 */
static void
alloc_row(SpaceWanted *wanted, LastRow *last, NvmNewVersion *nv)
{
	NvmRelState *state = wanted->state;
	uint32		blk = pg_atomic_read_u32(wanted->target);
	uint32		from = NVM_FIRST_CELL;
	bool		fresh = false;

	if (last != NULL && last->blk != InvalidBlockNumber)
	{
		wanted->in_order = true;
		wanted->ahead = blk = last->blk + 1;
		from = last->cell;
	}
	else if (last != NULL && blk == 0)
		wanted->ahead = 0;
	if (blk == 0)
		blk = next_target(wanted, &fresh);
	else
		blk--;
	for (;;)
	{
		space_prove(wanted->rel, state, blk);
		nv->v = block_is_filled(state, blk, wanted->limit, !fresh) ? NULL :
			nvm_space_alloc_in(state, blk, from, wanted->cells, wanted->root, !fresh,
							   &nv->off);
		if (nv->v != NULL)
			break;
		if (!fresh)
			note_no_room(wanted, blk, from);
		blk = next_target(wanted, &fresh);
		from = NVM_FIRST_CELL;
	}
	nv->blk = blk;
	if (last != NULL)
	{
		last->blk = blk;
		last->cell = nv->off + wanted->cells;
	}
}

void
nvm_space_alloc(Relation rel, NvmRelCache *cache, bool root, BlockNumber near,
				NvmNewVersion *nv)
{
	NvmRelState *state = cache->state;
	uint32		nblocks;
	LastRow    *last = NULL;
	SpaceWanted wanted = {
		.rel = rel,
		.state = state,
		.target = &nvm_rel_row(state)->target[NvmProcNumber() % NVM_INSERT_TARGETS],
		.cells = nv->cells,
		.limit = NVM_BLOCK_CELLS *
		RelationGetFillFactor(rel, HEAP_DEFAULT_FILLFACTOR) / 100,
		.root = root,
		.ahead = InvalidBlockNumber
	};

	Assert(nv->cells >= 2 && nv->cells <= NVM_BLOCK_CELLS);

	/*
	 * The tail that a root leaves when it becomes a stub is one cell shorter
	 * than the row.  A user who expects updates, and says so by a fillfactor,
	 * gets a cell more, so that a version of the row's size fits into the
	 * tail.
	 */
	if (root && nv->cells < NVM_BLOCK_CELLS && RelationGetFillFactor(rel, 100) < 100)
		wanted.cells++;

	if (near != InvalidBlockNumber)
	{
		space_prove(rel, state, near);
		nv->v = nvm_space_alloc_in(state, near, NVM_FIRST_CELL, wanted.cells, root, false,
								   &nv->off);
		if (nv->v != NULL)
		{
			nv->blk = near;
			return;
		}
	}
	else if (root && (nblocks = nvm_rel_nblocks(state)) <= ORDER_BLOCKS)
		last = last_row(state, nblocks);
	alloc_row(&wanted, last, nv);
}

/*
 * See nvm_space.h.
 */
void
nvm_space_taken_back(NvmRelState *state)
{
	pg_atomic_uint32 *target =
	&nvm_rel_row(state)->target[NvmProcNumber() % NVM_INSERT_TARGETS];

	if (pg_atomic_read_u32(target) != 0 && nvm_rel_nblocks(state) <= ORDER_BLOCKS)
		pg_atomic_write_u32(target, 0);
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
