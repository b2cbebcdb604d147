/*-------------------------------------------------------------------------
 *
 * rebuild.c
 *	  Rows of a table that was lost are put back where their roots were.
 *
 * The log names a row by the TID of its root, and has its newest version.  Index
 * entries, ctids that clients have kept and links between rows lead to the root, so
 * the row goes there.  The version may be longer than the one that the root was
 * made for.  If it does not fit before the next root, a stub of one cell goes
 * to the root and leads to the version elsewhere: just what pruning leaves of a
 * row that was updated.  README.md, "Rebuilt tables".
 *
 * No session comes to the storage, and no two processes rebuild the same block, so there
 * are no locks here.  It lies in memory alone, so there are no flushes.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "pool/nvm_pool.h"
#include "row/nvm_image.h"
#include "row/nvm_large.h"
#include "row/nvm_rebuild.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_state.h"
#include "row/nvm_space.h"
#include "storage/block.h"
#include "verify/nvm_verify_block.h"
#include "verify/nvm_verify_log.h"
#include "wbl/nvm_wbl.h"

StaticAssertDecl(offsetof(NvmTupleHeader, infomask2) == NVM_LOG_TUPLE_SKIPS,
				 "rows of the log are not cut where tuples are");

/*
 * Begin of a stub that was there before anybody's snapshot: no process stands on
 * what it has replaced.
 */
#define STUB_BEGIN		NVM_STAMP_MAKE(NVM_STAMP_STUB, FirstNormalTransactionId)

static inline uint32
row_cells(const NvmLogRow *row)
{
	return nvm_cells_for(NVM_LOG_TUPLE_SKIPS + nvm_log_tuple_length(row));
}

/*
 * See nvm_rebuild.h.
 */
const char *
nvm_rebuild_row_problem(const NvmLogRow *first)
{
	const NvmLogRow *row = nvm_log_pieces_row(first);

	if (row->block >= MaxBlockNumber || row->offset < NVM_FIRST_CELL || row->offset >= NVM_CELLS)
		return "impossible place of a row";
	if (NVM_LOG_TUPLE_SKIPS + nvm_log_tuple_length(row) < SizeofHeapTupleHeader ||
		NVM_LOG_TUPLE_SKIPS + nvm_log_tuple_length(row) > NVM_MAX_TUPLE)
		return "impossible length of a row";
	return nvm_large_pieces_problem(first);
}

/*
 * See nvm_rebuild.h.
 */
uint32
nvm_rebuild_row_cells(const NvmLogRow *first)
{
	return row_cells(nvm_log_pieces_row(first));
}

/*
 * A new block is SUSPECT if the table has an index that has WAL: that may have kept
 * entries that lead there to rows that are gone.  None leads into the clean run.
 */
static void
make_suspect(NvmRelState *state, uint32 blk)
{
	if (NVM_DIR_COUNT(nvm_dir_entry(state->dir)->counted) > 0 && !nvm_clean_has(state, blk))
		nvm_block(state, blk)->flags |= NVM_BLOCK_SUSPECT;
}

static void
add_block(NvmRelState *state)
{
	make_suspect(state, nvm_storage_extend(state, nvm_blocks_make_ready, NULL));
}

static void
make_ready(NvmRelState *state, uint32 first, uint32 end)
{
	nvm_blocks_make_ready(state, first, end - first, NULL);
	for (uint32 blk = first; blk < end; blk++)
		make_suspect(state, blk);
}

/*
 * See nvm_rebuild.h.
 */
void
nvm_rebuild_begin(NvmRelState *state)
{
	state->had = nvm_dir_blocks_had(state->dir);
}

/*
 * See nvm_rebuild.h.  The blocks get their headers here, so that several processes touch
 * the memory of one table for the first time.  Two that extend it at the same time may
 * go one block too far.  That one may be nobody's to make ready.  If it is somebody's,
 * both write the same, for no row is placed yet.
 */
void
nvm_rebuild_extend(NvmRelState *state, uint32 first, uint32 end)
{
	while (nvm_rel_nblocks(state) < end)
	{
		uint32		blk = nvm_storage_extend(state, NULL, NULL);

		if (blk >= end)
			make_ready(state, blk, blk + 1);
	}
	make_ready(state, first, end);
}

/*
 * Hand out cells that are free.
 */
static NvmVersion *
take_cells(NvmBlock *block, uint32 cell, uint32 ncells)
{
	NvmVersion *v = nvm_block_cell(block, cell);

	nvm_cells_set(block->used, cell, ncells);
	nvm_cells_set(block->starts, cell, 1);
	v->next = NVM_REF_MAKE(0, 0, ncells);
	return v;
}

/*
 * The tuple from infomask2 on, which v->len says the length of.
 */
static void
fill_tuple(NvmVersion *v, const NvmLogRow *row)
{
	if (!nvm_image_unpack(row, (char *) &v->tuple + NVM_LOG_TUPLE_SKIPS) ||
		(nvm_log_is_packed(row) && (v->tuple.infomask & HEAP_HASEXTERNAL) != 0))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the log has a row that cannot be unpacked"),
				 errdetail("Row (%u,%u).", row->block, row->offset)));
}

/*
 * Write a version of a row into its cells, and its large values.  link: of a version
 * that is no root.
 */
static void
fill_version(NvmRebuild *rebuild, NvmVersion *v, const NvmLogRow *first, uint16 flags, uint64 link,
			 NvmStamp begin)
{
	const NvmLogRow *row = nvm_log_pieces_row(first);

	/* v->next holds the cells */
	v->end = 0;
	v->link = link;
	v->lock = 0;
	v->len = (uint16) (NVM_LOG_TUPLE_SKIPS + nvm_log_tuple_length(row));
	v->flags = flags;
	fill_tuple(v, row);
	v->tuple.xmin = row->xmin;
	v->tuple.xend = InvalidTransactionId;
	v->tuple.cid = 0;
	v->tuple.root_blk_hi = (uint16) (row->block >> 16);
	v->tuple.root_blk_lo = (uint16) (row->block & 0xFFFF);
	v->tuple.root_offset = row->offset;
	v->tuple.infomask &= NVM_INFOMASK_FIXED;
	v->tuple.infomask2 &= HEAP_NATTS_MASK;
	if (first != row)
	{
		v->flags |= NVM_VF_LARGE;
		rebuild->large_bytes += nvm_large_rebuild(rebuild->state, v, begin, first);
	}
	v->crc = nvm_version_crc(v);
	nvm_store(&v->begin, begin);
}

/*
 * Cells for a version that does not fit where its root is: in the root's block, or
 * in a block behind all roots: those that the table has had, then new ones.  If it grew
 * each time, many rebuilds would fill the region.  No two processes take the same block.
 * Returns the block's number; InvalidBlockNumber if the row may be put off, and would need a
 * block more.  May ERROR.
 */
static uint32
find_other_place(NvmRebuild *rebuild, uint32 blk, uint32 ncells, bool may_put_off, uint32 *off)
{
	*off = nvm_block_find_run(nvm_block(rebuild->state, blk), ncells);
	if (*off != 0)
		return blk;
	for (;;)
	{
		if (rebuild->overflow != InvalidBlockNumber)
		{
			*off = nvm_block_find_run(nvm_block(rebuild->state, rebuild->overflow), ncells);
			if (*off != 0)
				return rebuild->overflow;
		}
		if (may_put_off && rebuild->is_short &&
			pg_atomic_read_u32(rebuild->next_overflow) >= nvm_rel_nblocks(rebuild->state))
			return InvalidBlockNumber;
		rebuild->overflow = pg_atomic_fetch_add_u32(rebuild->next_overflow, 1);
		while (rebuild->overflow >= nvm_rel_nblocks(rebuild->state))
			add_block(rebuild->state);
	}
}

/*
 * Write a version apart from its root, into free cells.  older: the TID of the one before it,
 * or of the root.  Returns its TID.
 */
static uint64
fill_cells(NvmRebuild *rebuild, uint32 blk, uint32 off, const NvmLogRow *first, uint64 older,
		   NvmStamp begin)
{
	uint32		ncells = nvm_rebuild_row_cells(first);

	fill_version(rebuild, take_cells(nvm_block(rebuild->state, blk), off, ncells), first, 0,
				 older | (uint64) (uint16) NvmPool->incarnation << 48, begin);
	rebuild->nmoved++;
	return NVM_REF_MAKE(blk, off, 0);
}

/*
 * A row whose version lies apart: its root becomes a stub.
 */
static void
fill_stub(NvmRebuild *rebuild, const NvmLogRow *row, uint64 at)
{
	NvmVersion *stub = nvm_cell(rebuild->state, row->block, row->offset);

	/* its lock word is in `end`; its link, a hint, leads nowhere */
	stub->end = 0;
	stub->link = 0;
	stub->next = NVM_REF_MAKE(NVM_REF_BLOCK(at), NVM_REF_OFFSET(at), 1);
	nvm_store(&stub->begin, STUB_BEGIN);
}

/* the version at a root: as it was, or else what is to become of it */
static inline const NvmLogRow *
first_image(const NvmRebuildRow *row)
{
	return row->row != NULL ? row->row : row->pending;
}

static inline const NvmLogRow *
image_row(const NvmRebuildRow *row)
{
	return nvm_log_pieces_row(first_image(row));
}

static inline NvmStamp
first_begin(const NvmRebuild *rebuild, const NvmRebuildRow *row)
{
	return row->row != NULL ? rebuild->begin : row->by->stamp;
}

/*
 * A version that lies apart from its root, whose stub has its cell already.  False if it was
 * put off.
 */
static bool
place_apart(NvmRebuild *rebuild, const NvmRebuildRow *row)
{
	const NvmLogRow *image = image_row(row);
	uint32		off;
	uint32		blk = find_other_place(rebuild, image->block, row_cells(image), row->pending == NULL,
									   &off);

	if (blk == InvalidBlockNumber)
		return false;
	fill_stub(rebuild, image,
			  fill_cells(rebuild, blk, off, first_image(row),
						 NVM_REF_MAKE(image->block, image->offset, 0), first_begin(rebuild, row)));
	return true;
}

/*
 * See nvm_rebuild.h.  What there is no room for today there is none for later on, nor for
 * more cells.
 */
void
nvm_rebuild_place_late(NvmRebuild *rebuild, NvmRebuildRoom *room, const NvmLogRow *first)
{
	const NvmLogRow *row = nvm_log_pieces_row(first);
	uint32		ncells = row_cells(row);
	uint32		blk = 0;
	uint32		off = 0;

	for (uint32 n = 0; n <= ncells; n++)
		blk = Max(blk, room->from[n]);
	for (; off == 0; blk++)
	{
		while (blk >= nvm_rel_nblocks(rebuild->state))
			add_block(rebuild->state);
		if (nvm_block_free_cells(nvm_block(rebuild->state, blk)) >= ncells)
			off = nvm_block_find_run(nvm_block(rebuild->state, blk), ncells);
	}
	room->from[ncells] = --blk;
	fill_stub(rebuild, row,
			  fill_cells(rebuild, blk, off, first, NVM_REF_MAKE(row->block, row->offset, 0),
						 rebuild->begin));
}

/*
 * End a version as nvm_version_end does, for a transaction that is prepared.
 */
static void
end_version(NvmVersion *v, uint64 next, bool key_changed, const NvmRebuildBy *by)
{
	uint16		cells = NvmVersionCells(v);

	v->tuple.xend = by->xid;
	if (key_changed)
	{
		v->tuple.infomask2 |= HEAP_KEYS_UPDATED;
		next |= (uint64) NVM_NEXT_KEYS << 48;
	}
	nvm_store(&v->next, next | ((uint64) cells << 48));
	nvm_store(&v->end, by->stamp);
}

/*
 * What a prepared transaction makes of a row whose version is placed.
 *
 * Behind a tombstone the row may go on under another root, or in another partition:
 * nothing says so.  If the transaction has made rows, who waits for it is told that
 * the row has moved.  That is an error where he would follow, and he may try again;
 * to take it for deleted would be wrong.
 */
static void
place_pending(NvmRebuild *rebuild, const NvmRebuildRow *row)
{
	const NvmLogRow *root = nvm_log_pieces_row(row->row);
	const NvmLogRow *pending = nvm_log_pieces_row(row->pending);
	uint64		at = NVM_REF_MAKE(root->block, root->offset, 0);
	NvmVersion *v = nvm_cell(rebuild->state, root->block, root->offset);
	uint64		next = row->by->makes_rows ? (uint64) NVM_NEXT_MOVED << 48 : 0;

	if (nvm_begin_is(v->begin, NVM_STAMP_STUB))
	{
		at = NVM_REF_TID(v->next);
		v = nvm_cell(rebuild->state, NVM_REF_BLOCK(at), NVM_REF_OFFSET(at));
	}
	if (pending->length > 0)
	{
		uint32		off;
		uint32		blk = find_other_place(rebuild, pending->block, row_cells(pending), false, &off);

		next = fill_cells(rebuild, blk, off, row->pending, at, row->by->stamp);
	}
	end_version(v, next, pending->length == 0, row->by);
	nvm_block(rebuild->state, NVM_REF_BLOCK(at))->ended++;
}

/*
 * See nvm_rebuild.h.  All roots get their cells before a version that lies apart
 * from its root gets some between them.
 */
void
nvm_rebuild_place(NvmRebuild *rebuild, const NvmRebuildRow *row, int n)
{
	const NvmLogRow *image = image_row(&row[0]);
	uint32		blk = image->block;
	NvmBlock   *block = nvm_block(rebuild->state, blk);
	const NvmRebuildRow *apart[NVM_CELLS];
	int			napart = 0;

	Assert(n > 0 && n <= NVM_BLOCK_CELLS);
	Assert(!nvm_clean_has(rebuild->state, blk));
	for (int i = 0; i < n; i++)
	{
		const NvmLogRow *following = i + 1 < n ? image_row(&row[i + 1]) : NULL;
		uint32		next = following != NULL ? following->offset : NVM_CELLS;
		uint32		ncells = row_cells(image);

		Assert(image->block == blk && image->offset < next);
		if (image->offset + ncells <= next)
			fill_version(rebuild, take_cells(block, image->offset, ncells), first_image(&row[i]),
						 NVM_VF_ROOT, 0, first_begin(rebuild, &row[i]));
		else
		{
			(void) take_cells(block, image->offset, 1);
			apart[napart++] = &row[i];
		}
		image = following;
	}
	rebuild->nput_off = 0;
	for (int i = 0; i < napart; i++)
	{
		if (!place_apart(rebuild, apart[i]))
			rebuild->put_off[rebuild->nput_off++] = (uint8) (apart[i] - row);
	}
	for (int i = 0; i < n; i++)
	{
		if (row[i].row != NULL && row[i].pending != NULL)
			place_pending(rebuild, &row[i]);
	}
	rebuild->nrows += n;
}

/*
 * See nvm_rebuild.h.
 */
void
nvm_rebuild_end(NvmRelState *state)
{
	uint32		nblocks = nvm_rel_nblocks(state);

	if (nblocks > 0)
		nvm_row_state_opened(state, nblocks);
}
