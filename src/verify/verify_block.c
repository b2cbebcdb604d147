/*-------------------------------------------------------------------------
 *
 * verify_block.c
 *	  Blocks of tables, and row versions.
 *
 * Compiled into the server, for nvm.check(), and into nvm_poolcheck.  In the
 * server others may be changing the block.  So a caller that finds something
 * looks again under the block's locks.
 *
 * Versions whose begin stamp is in a gap are passed over: a crash may have left
 * anything of them, and the gap collector will remove them.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef FRONTEND
#include "postgres.h"
#else
#include "postgres_fe.h"
#endif

#include "port/pg_crc32c.h"
#include "verify/nvm_verify.h"
#include "verify/nvm_verify_block.h"
#include "verify/nvm_verify_chain.h"

/* ---- reading ---- */

uint32
nvm_block_check_word(uint32 dir, uint32 blkno, uint64 offset)
{
	uint32		id[3] = {NVM_BLOCK_MAGIC, dir, blkno};

	return nvm_pool_check(id, sizeof(id), offset, 32);
}

/*
 * Checksum of what never changes in a version: its length and flags, the
 * root's TID, the number of attributes, t_hoff, the null bitmap and the data.
 * Left out are transaction and command ids and the bits that a running
 * incarnation sets beside them.
 */
uint32
nvm_version_crc(const NvmVersion *v)
{
	pg_crc32c	crc;
	uint16		head[7];

	head[0] = v->len;
	head[1] = v->flags;
	head[2] = v->tuple.root_blk_hi;
	head[3] = v->tuple.root_blk_lo;
	head[4] = v->tuple.root_offset;
	head[5] = NVM_TUPLE_NATTS(v->tuple.infomask2);
	head[6] = v->tuple.infomask & NVM_INFOMASK_FIXED;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, head, sizeof(head));
	if (v->len > offsetof(NvmTupleHeader, hoff) && v->len <= NVM_MAX_TUPLE)
		COMP_CRC32C(crc, (const char *) &v->tuple + offsetof(NvmTupleHeader, hoff),
					v->len - offsetof(NvmTupleHeader, hoff));
	FIN_CRC32C(crc);
	return crc;
}

/* ---- blocks ---- */

/*
 * Was a starts bit lost?  row/block_ready.c, nvm_block_lost_area.
 */
static bool
lost_area(NvmBlockCheck *check, const NvmBlock *block, uint32 cell)
{
	return nvm_cell_looks_taken(block, cell) &&
		!check->ops->crashed(check, block->alloc_inc) &&
		!check->ops->in_gap(check, nvm_load(&((const NvmVersion *) ((const char *) block +
																	cell * NVM_CELL_SIZE))->begin));
}

static inline bool
check_bit(const uint64 *bits, uint32 cell)
{
	return (nvm_load(&bits[cell / 64]) >> (cell % 64)) & 1;
}

/*
 * Has this stamp been handed out?
 */
static bool
check_stamp(NvmBlockCheck *check, uint32 blk, uint32 off, const char *which,
			uint64 stamp)
{
	uint32		slot = NVM_STAMP_SLOT(stamp);
	uint64		limit;

	if (slot >= NVM_SLOT_NUMBERS || !check->ops->handed_out(check, slot, &limit))
	{
		check->ops->report(check, blk, off, "%s stamp names commit slot %u, which was never used",
						   which, slot);
		return false;
	}
	if (NVM_STAMP_COUNTER(stamp) == 0 || NVM_STAMP_COUNTER(stamp) > limit)
	{
		check->ops->report(check, blk, off,
						   "%s stamp " UINT64_FORMAT " of commit slot %u was never handed out",
						   which, (uint64) NVM_STAMP_COUNTER(stamp), slot);
		return false;
	}
	return true;
}

/*
 * Header of a block.  Returns false if the rest makes no sense.
 */
static bool
check_header(NvmBlockCheck *check, NvmBlock *block, uint32 blk)
{
	if (block->magic == 0)
	{
		const char *bytes = (const char *) block;
		bool		torn = block->alloc_inc == 0 || check->ops->crashed(check, block->alloc_inc);

		/*
		 * a crash may have torn the header while it was made, before the
		 * first row
		 */
		for (size_t i = 0; i < lengthof(block->starts); i++)
			torn &= block->starts[i] == 0;
		for (int i = 0; i < NVM_BLOCK_HEADER_SIZE && !torn; i++)
		{
			if (bytes[i] != 0)
			{
				check->ops->report(check, blk, 0, "block has no magic number, but is not empty");
				break;
			}
		}
		return false;
	}
	if (block->magic != NVM_BLOCK_MAGIC)
	{
		check->ops->report(check, blk, 0, "wrong magic number %08x", block->magic);
		return false;
	}
	if (block->dir != check->dir || block->blkno != blk)
	{
		check->ops->report(check, blk, 0, "block says that it is block %u of storage %u",
						   block->blkno, block->dir);
		return false;
	}
	if (block->check != nvm_block_check_word(check->dir, blk, (const char *) block - check->base))
		check->ops->report(check, blk, 0, "wrong checksum in the block's header");
	if ((block->flags & ~NVM_BLOCK_SUSPECT) != 0)
		check->ops->report(check, blk, 0, "unknown flags %04x", block->flags);
	if (block->alloc_inc == 0 || block->alloc_inc > check->incarnation)
		check->ops->report(check, blk, 0, "incarnation %u is in the future",
						   block->alloc_inc);
	return true;
}

/*
 * What the used bits say beside the areas, which cover `covered`.  The bits
 * are exact in the incarnation that last handed out cells of the block.  Later
 * they are the evidence of a starts bit that was lost.  What a crash may have
 * left is passed over.
 */
static void
check_used(NvmBlockCheck *check, NvmBlock *block, uint32 blk, const uint64 *covered)
{
	bool		exact = block->alloc_inc == check->incarnation;
	uint32		cell = NVM_FIRST_CELL;

	while (cell < NVM_CELLS)
	{
		bool		is_covered = check_bit(covered, cell);
		uint32		end = cell + 1;

		if (check_bit(block->used, cell) == is_covered)
		{
			cell++;
			continue;
		}
		while (end < NVM_CELLS && check_bit(covered, end) == is_covered &&
			   check_bit(block->used, end) != is_covered)
			end++;
		if (is_covered && exact)
			check->ops->report(check, blk, cell, "cells %u to %u belong to a version, but are not marked as used",
							   cell, end - 1);
		else if (!is_covered && (exact || lost_area(check, block, cell)))
			check->ops->report(check, blk, cell, "cells %u to %u are in use, but belong to no version",
							   cell, end - 1);
		cell = end;
	}
}

/*
 * Areas do not overlap, and the bitmaps agree with them.  Nothing is promised
 * about free cells of a block that was not yet used in this incarnation.
 */
static void
check_areas(NvmBlockCheck *check, NvmBlock *block, uint32 blk)
{
	bool		sane = block->alloc_inc == check->incarnation;
	uint64		covered[4] = {0, 0, 0, 0};
	uint32		cell;
	uint32		last = 0;
	uint32		end = NVM_FIRST_CELL;

	for (cell = 0; cell < NVM_FIRST_CELL; cell++)
	{
		if (check_bit(block->starts, cell))
			check->ops->report(check, blk, 0, "a version starts in the block's header");
	}

	for (cell = NVM_FIRST_CELL; cell < NVM_CELLS; cell++)
	{
		NvmVersion *v = nvm_cell_of(block, cell);

		if (check_bit(block->starts, cell))
		{
			uint32		ncells = NvmVersionCells(v);
			uint64		begin = nvm_load(&v->begin);

			if (cell < end)
				check->ops->report(check, blk, cell, "area overlaps the one before it, which begins at %u and ends at %u",
								   last, end - 1);

			/*
			 * The area was handed out when a crash came, and not written: its
			 * length is that of whatever was there before.  Sanitizing gives
			 * the cells back.
			 */
			if (begin == 0 && check->ops->crashed(check, block->alloc_inc))
				ncells = 1;
			else if (begin == 0 && !sane && nvm_frame_problem(v, cell) == NULL)
				check->ops->report(check, blk, cell, "version has no begin stamp");
			else if (ncells == 0 || cell + ncells > NVM_CELLS)
				check->ops->report(check, blk, cell, "area of %u cells does not fit", ncells);
			last = cell;
			end = Max(end, Min(cell + ncells, NVM_CELLS));
		}
		if (cell < end)
			covered[cell / 64] |= UINT64CONST(1) << (cell % 64);
		else if (sane && !check_bit(block->used, cell) && nvm_load(&v->begin) != 0)
			check->ops->report(check, blk, cell, "free cell is not zero");
	}
	check_used(check, block, blk, covered);
}

/*
 * Is it known for certain that a version exists?  The version of a prepared
 * transaction may have columns that the table never gets.
 */
static bool
surely_exists(NvmBlockCheck *check, uint64 begin)
{
	uint64		limit;

	return check->ops->handed_out(check, NVM_STAMP_SLOT(begin), &limit) &&
		NVM_STAMP_COUNTER(begin) < limit;
}

/*
 * One version that exists.
 */
static void
check_version(NvmBlockCheck *check, NvmVersion *v, uint64 begin, uint32 blk,
			  uint32 off)
{
	uint64		end = nvm_load(&v->end);
	uint64		next = nvm_load(&v->next);
	uint64		root = nvm_version_root(v);
	bool		is_root = (v->flags & NVM_VF_ROOT) != 0;
	const char *problem;

	if (!check_stamp(check, blk, off, "begin", begin))
		return;
	if (end != 0)
	{
		if (NVM_STAMP_IS_SPECIAL(end))
			check->ops->report(check, blk, off, "end is not a stamp");
		else
			(void) check_stamp(check, blk, off, "end", end);
	}
	if ((v->flags & ~(NVM_VF_ROOT | NVM_VF_NOINDEX | NVM_VF_LARGE)) != 0)
		check->ops->report(check, blk, off, "unknown flags %04x", v->flags);
	problem = nvm_frame_problem(v, off);
	if (problem != NULL)
	{
		if (problem[0] == 'l')
			check->ops->report(check, blk, off, "length %u does not fit %u cells",
							   v->len, NvmVersionCells(v));
		else
			check->ops->report(check, blk, off, "wrong checksum");
		return;
	}
	if (is_root != (root == NVM_REF_MAKE(blk, off, 0)))
		check->ops->report(check, blk, off, "version says that its root is (%u,%u)",
						   NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
	else if (!is_root &&
			 !(nvm_ended_for_good(check, end) ?
			   nvm_is_place(check, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root)) :
			   nvm_area_exists(check, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root))))
		check->ops->report(check, blk, off, "its root (%u,%u) does not exist",
						   NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
	else if (!is_root && end == 0)
		nvm_verify_reached(check, v, begin, root, blk, off);
	if (NVM_REF_IS_VALID(next) &&
		end != 0 && !check->ops->in_gap(check, end) && nvm_load(&v->end) == end &&
		check->ops->block(check, NVM_REF_BLOCK(next)) == NULL)
		check->ops->report(check, blk, off, "next version (%u,%u) is beyond the end of the table",
						   NVM_REF_BLOCK(next), NVM_REF_OFFSET(next));

	if (surely_exists(check, begin))
		check->ops->tuple(check, v, begin, blk, off);
}

void
nvm_verify_block(NvmBlockCheck *check, NvmBlock *block, uint32 blk)
{
	uint32		cell;

	if (!check_header(check, block, blk))
		return;
	check_areas(check, block, blk);

	for (cell = nvm_block_next_start(block, NVM_FIRST_CELL); cell != 0;
		 cell = nvm_block_next_start(block, cell + 1))
	{
		NvmVersion *v = nvm_cell_of(block, cell);
		uint64		begin = nvm_load(&v->begin);

		if (begin == 0 || cell + NvmVersionCells(v) > NVM_CELLS)
			continue;
		if (NVM_STAMP_IS_SPECIAL(begin))
		{
			/* the mark says at which xid the area ceased to be a version */
			if (check->ops->xid_to_come != NULL &&
				check->ops->xid_to_come(check, NVM_STAMP_COUNTER(begin)))
				check->ops->report(check, blk, cell, "marked as %s by transaction id " UINT64_FORMAT ", which is in the future",
								   nvm_begin_is(begin, NVM_STAMP_DEAD) ? "dead" : "unlinked",
								   (uint64) NVM_STAMP_COUNTER(begin));
			if (nvm_begin_is(begin, NVM_STAMP_DEAD) || nvm_begin_is(begin, NVM_STAMP_RETIRED))
				nvm_verify_gone(check, v, blk, cell);
			if (nvm_begin_is(begin, NVM_STAMP_STUB))
				nvm_verify_chain(check, block, blk, cell);
			else if (!nvm_begin_is(begin, NVM_STAMP_DEAD) &&
					 !nvm_begin_is(begin, NVM_STAMP_RETIRED))
				check->ops->report(check, blk, cell, "unknown state %04x",
								   NVM_STAMP_SLOT(begin));
			continue;
		}
		if (check->ops->in_gap(check, begin))
			continue;
		check_version(check, v, begin, blk, cell);
		if ((v->flags & NVM_VF_ROOT) != 0)
			nvm_verify_chain(check, block, blk, cell);
	}
}
