/*-------------------------------------------------------------------------
 *
 * space.c
 *	  Areas of cells for versions: allocation and reuse.
 *
 * All of this happens under the block's allocation lock.  What a crash may
 * find of it is in README.md, "Space".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "compat/nvm_compat.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_allvisible.h"
#include "pool/nvm_poison.h"
#include "pool/nvm_sound.h"
#include "row/nvm_large.h"
#include "row/nvm_modify.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_row_state.h"
#include "row/nvm_space.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_snapshot.h"
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
/* areas up to which an update prefers free cells to what is retired */
#define APPEND_AREAS		64
/* free cells that make a block worth a note by VACUUM */
#define NOTE_CELLS			8
/* where a fence is a sync: blocks freed with one, and how far they are looked for */
#define RECLAIM_NEIGHBOURS	48
#define RECLAIM_LOOKS		64

static inline void
clear_bits(uint64 *bits, uint32 cell, uint32 n)
{
	for (uint32 i = cell; i < cell + n; i++)
		bits[i / 64] &= ~(UINT64CONST(1) << (i % 64));
}

/*
 * starts is read without lock while it changes.
 */
static inline void
set_start(NvmBlock *block, uint32 cell)
{
	__atomic_fetch_or(&block->starts[cell / 64], UINT64CONST(1) << (cell % 64),
					  __ATOMIC_RELEASE);
}

static uint32
free_cells(const NvmBlock *block)
{
	uint32		n = NVM_CELLS;

	for (int i = 0; i < 4; i++)
		n -= __builtin_popcountll(block->used[i]);
	return n;
}

/*
 * First run of n free cells, or 0.  Cells of the header count as used.
 */
static uint32
find_run(const NvmBlock *block, uint32 n)
{
	uint32		cell = NVM_FIRST_CELL;

	while (cell + n <= NVM_CELLS)
	{
		uint64		word = ~block->used[cell / 64] >> (cell % 64);
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
 * Cells of the block that are in use.  Lock-free, and then a hint.
 */
static inline uint32
taken_cells(const NvmBlock *block)
{
	uint32		n = NVM_CELLS - free_cells(block);

	return n > NVM_FIRST_CELL ? n - NVM_FIRST_CELL : 0;
}

/*
 * Has everybody let go of what was unlinked under this xid, old snapshots
 * notwithstanding?  Asks anew once in a transaction.
 */
static bool
nobody_refers(uint64 fxid)
{
	static uint64 limit = 0;
	static NvmStamp asked = NVM_STAMP_NONE;

	if (fxid >= limit && asked != nvm_xact_stamp_if_any())
	{
		asked = nvm_xact_stamp_if_any();
		limit = nvm_reuse_limit();
	}
	return fxid < limit;
}

/*
 * May the area of a retired version, or the tail of a stub, be reused?
 * Nobody stands on it, and what was unlinked to retire it is unlinked on
 * media.  After a crash links to retired versions may be left until the
 * collector has been everywhere: until then nothing is reused.
 */
static bool
retired_is_free(NvmVersion *v, uint64 begin, struct GlobalVisState *vistest)
{
	FullTransactionId fxid = FullTransactionIdFromU64(NVM_STAMP_COUNTER(begin));

	if (pg_atomic_read_u32(&NvmWbl->ntorn) > 0)
		return false;

	/*
	 * An index entry that somebody has read may lead to a root: those wait
	 * for every snapshot.  A single cell was one, too.
	 */
	if (!GlobalVisTestIsRemovableFullXid(vistest, fxid) &&
		(!nvm_snapshots_held() || NvmVersionCells(v) == 1 ||
		 (nvm_begin_is(begin, NVM_STAMP_RETIRED) && (v->flags & NVM_VF_ROOT) != 0) ||
		 !nobody_refers(U64FromFullTransactionId(fxid))))
		return false;

	/*
	 * Only now by whom: a process that retires stores begin first, and an xid
	 * that has passed, or that is below every running one, says that it has
	 * come further than that (nvm_version_retire).  Read earlier, this could
	 * be what the version had there.
	 */
	pg_read_barrier();
	if (NvmVersionCells(v) > 1)
	{
		uint64		by = nvm_load(NvmRetiredBy(v));

		if (by != 0 && NVM_STAMP_SLOT(by) < NVM_MAX_SLOTS &&
			NVM_STAMP_COUNTER(by) >
			pg_atomic_read_u64(&nvm_slots[NVM_STAMP_SLOT(by)].durable))
			return false;

		/*
		 * What the collector has retired may still be linked to by a version
		 * that it has not come to, until its sweep is over.
		 */
		if (nvm_stamp_in_gap(by))
			return false;
	}
	return true;
}

/*
 * Give the cells from `from` to the end of the area back, in their own words;
 * the caller drains before they may be used.
 */
static void
zero_cells(NvmBlock *block, uint32 from, uint32 to)
{
	for (uint32 cell = from; cell < to; cell++)
		nvm_store(&nvm_block_cell(block, cell)->begin, 0);
	nvm_flush(nvm_block_cell(block, from), (to - from) * NVM_CELL_SIZE);
}

/*
 * A block was sanitized for the sake of what is in it, and nobody has been
 * handed a cell of it in this incarnation: have it say so, or a crash would make
 * it suspect (README.md, "Suspect blocks").  What was suspect keeps that flag.
 * All else in the block is durable.  If this is not, nothing is wrong.
 *
 * Caller holds the block's allocation lock since before it was sanitized.
 */
static void
not_handed_out(NvmBlock *block, uint32 alloc_inc)
{
	if (nvm_incarnation_crashed(alloc_inc))
		alloc_inc = nvm_incarnation_last_clean();
	if (alloc_inc != 0)
	{
		block->alloc_inc = alloc_inc;
		nvm_flush(block, NVM_BLOCK_HEADER_SIZE);
	}
}

/* a block of which areas are being freed */
typedef struct Reclaiming
{
	NvmBlock   *block;
	LWLock	   *lock;			/* allocation lock to be released, or NULL */
	LWLock	   *rowlock;		/* the same of row locks */
	uint32		alloc_inc;		/* as it was found */
	int			n;				/* areas: where each begins, how many cells */
	uint8		area[NVM_CELLS];
	uint8		ncells[NVM_CELLS];
} Reclaiming;

/*
 * First half of nvm_space_reclaim: zero what can be freed, flush that and the
 * header.  Stores to durable memory end here.
 *
 * In a neighbour no row lock is taken, and so no stub cut, as others would wait for
 * the lock until the fence is over; nor are large values given back, for each of
 * which we would wait.
 */
static void
reclaim_zero(NvmRelState *state, NvmBlock *block, struct GlobalVisState *vistest,
			 bool neighbour, Reclaiming *r)
{
	uint32		off = NVM_FIRST_CELL - 1;
	LWLock	   *rowlock = nvm_row_lock(state->dir, block->blkno);
	bool		mine = LWLockHeldByMe(rowlock);
	bool		locked = !neighbour &&
	(mine || LWLockConditionalAcquire(rowlock, LW_EXCLUSIVE));

	r->block = block;
	r->rowlock = locked && !mine ? rowlock : NULL;
	r->alloc_inc = block->alloc_inc;
	r->n = 0;
	if (r->alloc_inc != NvmPool->incarnation)
		nvm_block_sanitize(block);

	memset(block->retired, 0, sizeof(block->retired));
	while ((off = nvm_block_next_start(block, off + 1)) != 0)
	{
		NvmVersion *v = nvm_block_cell(block, off);
		uint64		begin = nvm_load(&v->begin);
		uint32		to = off + NvmVersionCells(v);
		uint32		from;

		if (nvm_begin_is(begin, NVM_STAMP_RETIRED))
			from = off;
		else if (nvm_begin_is(begin, NVM_STAMP_STUB) && to > off + 1)
			from = off + 1;
		else
			continue;
		if ((from > off && !locked) ||
			(neighbour && to > off + 1 && (v->flags & NVM_VF_LARGE) != 0) ||
			!retired_is_free(v, begin, vistest))
		{
			/* later, then: the hint keeps the block in the search */
			if (from == off)
				nvm_block_note_retired(block, off);
			else
				block->retired[NVM_RETIRED_MORE] = 1;
			continue;
		}

		if (to > off + 1)
			nvm_large_release(state, v);
		if (from > off)
		{
			/* the lock word moves into end, for good */
			uint64		lock = v->lock;

			nvm_store(&v->next, NVM_REF_MAKE(NVM_REF_BLOCK(v->next),
											 NVM_REF_OFFSET(v->next), 1));
			nvm_store(&v->end, lock);
			nvm_flush(v, NVM_CELL_SIZE);
		}
		zero_cells(block, from, to);
		if (from == off)
			nvm_start_clear(block, off);
		r->area[r->n] = from;
		r->ncells[r->n++] = to - from;
	}
	if (r->n > 0)
		nvm_flush(block, NVM_BLOCK_HEADER_SIZE);
}

/*
 * Second half, after a fence: the cells may be handed out.
 */
static void
reclaim_free(NvmRelState *state, Reclaiming *r)
{
	NvmBlock   *block = r->block;

	for (int i = 0; i < r->n; i++)
	{
		nvm_poison_cells(block, r->area[i], r->area[i] + r->ncells[i]);
		clear_bits(block->used, r->area[i], r->ncells[i]);
	}
	if (r->n > 0)
		nvm_freemap_promising(state, block->blkno);
	if (r->rowlock != NULL)
		LWLockRelease(r->rowlock);
	if (r->alloc_inc != NvmPool->incarnation)
		not_handed_out(block, r->alloc_inc);
	if (r->lock != NULL)
		LWLockRelease(r->lock);
}

/*
 * Where a fence is a sync: zero in the next blocks, too, what can be freed there, so
 * that one fence does for all.  Waits for nothing.  Returns how many there are.
 */
static int
reclaim_neighbours(NvmRelState *state, uint32 blk, struct GlobalVisState *vistest,
				   Reclaiming *list)
{
	uint32		end = Min(blk + 1 + RECLAIM_LOOKS, pg_atomic_read_u32(&state->nblocks));
	int			n = 0;

	for (blk++; blk < end && n < RECLAIM_NEIGHBOURS; blk++)
	{
		NvmBlock   *block = nvm_block(state, blk);
		LWLock	   *lock = nvm_alloc_lock(state->dir, blk);

		/*
		 * what has to be verified or sanitized first costs more than this
		 * fence
		 */
		if (!nvm_unit_is_sound(block) || !nvm_block_has_retired(block) ||
			LWLockHeldByMe(lock) || !LWLockConditionalAcquire(lock, LW_EXCLUSIVE))
			continue;
		if (nvm_block_is_initialised(state, block, blk) &&
			block->alloc_inc == NvmPool->incarnation)
		{
			reclaim_zero(state, block, vistest, true, &list[n]);
			list[n].lock = lock;
			if (list[n].n > 0)
				n++;
			else
				reclaim_free(state, &list[n]);
		}
		else
			LWLockRelease(lock);
	}
	return n;
}

/*
 * Free the retired areas and stub tails of a block that nobody can be standing
 * on.  One fence for all of them: before their cells count as free, they are
 * zeroed durably, and durably no area starts in them.  Otherwise a crash could
 * show, as a version, the middle of a row that is being written over them.
 * Returns the number of free cells.
 *
 * Caller holds the block's allocation lock, and possibly its row lock.
 */
uint32
nvm_space_reclaim(NvmRelState *state, NvmBlock *block)
{
	static Reclaiming list[1 + RECLAIM_NEIGHBOURS];
	struct GlobalVisState *vistest = GlobalVisTestFor(NULL);
	int			n = 1;

	reclaim_zero(state, block, vistest, false, &list[0]);
	list[0].lock = NULL;
	if (list[0].n > 0)
	{
		if (nvm_persist_in_force != NVM_PERSIST_PMEM)
			n += reclaim_neighbours(state, block->blkno, vistest, &list[1]);
		nvm_drain("space-reclaim");
	}
	for (int i = n - 1; i >= 0; i--)
		reclaim_free(state, &list[i]);

	/*
	 * meanwhile the neighbours looked full, and others may have passed them
	 * by
	 */
	if (n > 1 && pg_atomic_read_u32(&nvm_rel_row(state)->hint_next) > block->blkno + 1)
		pg_atomic_write_u32(&nvm_rel_row(state)->hint_next, block->blkno + 1);
	return free_cells(block);
}

/*
 * Take a retired area as it is, if the block's hints know one that fits.
 */
static uint32
take_retired(NvmBlock *block, uint32 cells)
{
	struct GlobalVisState *vistest = NULL;

	if (!nvm_block_has_retired(block))
		return 0;
	for (int i = 0; i < NVM_RETIRED_HINTS; i++)
	{
		uint8		off = nvm_load_hint(block, i);
		NvmVersion *v;
		uint64		begin;

		if (off < NVM_FIRST_CELL || !nvm_bit_is_set(block->starts, off))
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
		if (!retired_is_free(v, begin, vistest))
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
 * Try to allocate in one block.
 *
 * The first free cells that suffice are taken: as in heap, rows of a small table
 * come in the order in which they were written, and then VACUUM's holes are
 * filled.  No more than that is promised.  Updates do it only in a sparse block,
 * so that a hot row does not spread over all of one.  Otherwise a retired area
 * is taken as it is; neither needs a fence.  Where nothing is left, `reclaim` is
 * set and the block's hints promise something, areas are freed first.
 */
NvmVersion *
nvm_space_alloc_in(NvmRelState *state, uint32 blk, uint32 cells, bool root,
				   bool reclaim, uint32 *off)
{
	NvmBlock   *block = nvm_block(state, blk);
	LWLock	   *lock = nvm_alloc_lock(state->dir, blk);
	NvmVersion *v;
	uint32		cell;
	uint32		retired;

	/* what was damaged must not be taken for free, nor sanitized */
	if (unlikely(!nvm_unit_is_sound(block)))
		return NULL;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (!nvm_block_is_initialised(state, block, blk))
		nvm_blocks_make_ready(state, blk, 1, NULL);
	else if (block->alloc_inc != NvmPool->incarnation)
		nvm_block_sanitize(block);

	if (root && (block->flags & NVM_BLOCK_SUSPECT))
	{
		LWLockRelease(lock);
		return NULL;
	}

	cell = root || block_is_sparse(block) ? find_run(block, cells) : 0;
	if (cell == 0 && (retired = take_retired(block, cells)) != 0)
	{
		cell = retired;
		v = nvm_block_cell(block, cell);
		cells = NvmVersionCells(v);
	}
	else
	{
		if (cell == 0)
			cell = find_run(block, cells);
		if (cell == 0 && reclaim && nvm_block_has_retired(block) &&
			nvm_space_reclaim(state, block) >= cells)
			cell = find_run(block, cells);
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

/* what a new version needs */
typedef struct SpaceWanted
{
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
		block->alloc_inc != NvmPool->incarnation || taken_cells(block) < limit)
		return false;
	if (reclaim && nvm_block_has_retired(block))
	{
		LWLock	   *lock = nvm_alloc_lock(state->dir, blk);

		LWLockAcquire(lock, LW_EXCLUSIVE);
		(void) nvm_space_reclaim(state, block);
		LWLockRelease(lock);
	}
	return taken_cells(block) >= limit;
}

/*
 * May roots go into the block?  What a crashed run had handed out of it is not for
 * them until VACUUM has come by (README.md, "Suspect blocks").  A hint.
 */
static inline bool
block_takes_roots(const NvmBlock *block)
{
	return (block->flags & NVM_BLOCK_SUSPECT) == 0 &&
		(block->alloc_inc == NvmPool->incarnation ||
		 !nvm_incarnation_crashed(block->alloc_inc));
}

/*
 * Is there a reason to look through the table?  After a round in which nothing was
 * retired there is none, unless the round has passed over areas that may have come
 * of age since, or over the front of the table.
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
		 * Of a block that nobody has used since the start these are hints,
		 * too: what a crash has left of them hides some room until VACUUM
		 * comes by.
		 */
		block = nvm_block(state, b);
		if (block->magic == NVM_BLOCK_MAGIC && wanted->root && !block_takes_roots(block))
			continue;
		full = taken_cells(block) >= wanted->limit || find_run(block, cells) == 0;
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
 * The block to insert into.  Backends of one slot share it, so that a new
 * session goes on where the last one stopped.
 *
 * Where what is retired is too young all over the front of the table, or may not
 * be used until a crash is cleaned up after, free cells further back are looked
 * for all the same before the table grows.
 */
static uint32
next_target(const SpaceWanted *wanted, pg_atomic_uint32 *target, int tries,
			bool *fresh)
{
	uint32		blk;
	bool		reclaim = tries < SEARCH_BLOCKS &&
	pg_atomic_read_u32(&NvmWbl->ntorn) == 0;

	*fresh = false;
	if (tries >= 2 * SEARCH_BLOCKS ||
		!search_free_block(wanted, reclaim, &blk))
	{
		blk = nvm_storage_extend(wanted->state, nvm_blocks_make_ready, NULL);
		*fresh = true;
	}
	pg_atomic_write_u32(target, blk + 1);
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
	ErrorContextCallback context;

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
				.state = state,
				.cells = cells,
				.limit = limit,
				.root = root
			};

			context.previous = error_context_stack;
			context.callback = nvm_extend_context;
			context.arg = rel;
			error_context_stack = &context;
			blk = next_target(&wanted, target, tries, &fresh);
			error_context_stack = context.previous;
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
