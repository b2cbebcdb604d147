/*-------------------------------------------------------------------------
 *
 * vlog_place.c
 *	  The region is emptied, and the rows that were collected are placed.
 *
 * Nobody else comes to a storage of the region, but DROP may free one at any time.
 * storage_lock is held for some blocks at a time, and each time it is asked whether
 * the storage is the one that was there at the beginning.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_state.h"
#include "log/nvm_log.h"
#include "media/media_block.h"
#include "pool/nvm_pool.h"
#include "row/nvm_rebuild.h"
#include "verify/nvm_verify.h"
#include "vlog/vlog_impl.h"
#include "wbl/nvm_wbl.h"

/* blocks under one hold of storage_lock */
#define BLOCKS_PER_LOCK		64

/* and bytes of large values, after which no further block comes */
#define LARGE_PER_LOCK		(UINT64CONST(16) * 1024 * 1024)

/* ---- emptying ---- */

/*
 * For nvm_dir_walk.  The walk holds no lock: look again under one that keeps the
 * entry.
 */
static void
empty_storage(uint32 id, NvmDirEntry *entry, void *arg)
{
	if ((entry->flags & NVM_DIR_VOLATILE) == 0)
		return;
	LWLockAcquire(NvmWbl->storage_lock, LW_EXCLUSIVE);
	if (nvm_relstates[id].dir == id && entry->begin != NVM_STAMP_NONE &&
		(entry->flags & NVM_DIR_VOLATILE) != 0)
	{
		if (entry->kind == NVM_DIR_KIND_INDEX)
			nvm_index_lost_with_region(&nvm_relstates[id]);
		nvm_dir_empty(id);
		entry->all_visible = 0;
	}
	LWLockRelease(NvmWbl->storage_lock);
}

/*
 * See vlog_impl.h.  Nobody makes a storage there meanwhile.  An attempt before this
 * one may have left rows, and half an index.
 */
void
nvm_vlog_empty(void)
{
	nvm_dir_walk(empty_storage, NULL);
}

/* ---- placing ---- */

/*
 * Keep storage `dir` as it is.  False, and nothing locked, if it is not the one that
 * the rows are of.
 */
static bool
hold_table(const NvmVlog *vlog, uint32 dir)
{
	NvmDirEntry *entry = nvm_dir_entry(dir);

	LWLockAcquire(NvmWbl->storage_lock, LW_SHARED);
	if (nvm_relstates[dir].dir == dir && entry->begin != NVM_STAMP_NONE &&
		entry->creation_id == vlog->creation[dir])
		return true;
	LWLockRelease(NvmWbl->storage_lock);
	return false;
}

/*
 * Make the blocks of a table.  False if it has gone.
 */
static bool
make_blocks(const NvmVlog *vlog, uint32 dir, NvmRebuild *rebuild, uint32 nblocks)
{
	uint32		done = 0;

	while (done < nblocks)
	{
		if (!hold_table(vlog, dir))
			return false;
		done += Min(nblocks - done, BLOCKS_PER_LOCK);
		nvm_rebuild_extend(rebuild, done);
		LWLockRelease(NvmWbl->storage_lock);
		nvm_vlog_pause();
	}
	return true;
}

/*
 * Rows that are yet to be placed, by place: of all tables, or of one.
 */
typedef struct Rows
{
	const NvmVlogRoot *root;
	uint64		nroots;
	const NvmVlogPending *pending;
	uint64		npending;
} Rows;

/* the place of the first row; there is one */
static uint64
first_place(const Rows *rows)
{
	uint64		place = rows->nroots > 0 ? rows->root->place : PG_UINT64_MAX;

	return rows->npending > 0 ? Min(place, rows->pending->place) : place;
}

static bool
is_empty(const Rows *rows)
{
	return rows->nroots == 0 && rows->npending == 0;
}

/*
 * Take the first row off.
 */
static void
take_row(Rows *rows, NvmRebuildRow *row)
{
	uint64		place = first_place(rows);

	memset(row, 0, sizeof(*row));
	if (rows->nroots > 0 && rows->root->place == place)
	{
		row->row = rows->root->first;
		rows->root++;
		rows->nroots--;
	}
	if (rows->npending > 0 && rows->pending->place == place)
	{
		row->pending = rows->pending->first;
		row->by = &rows->pending->ask->by;
		rows->pending++;
		rows->npending--;
	}
}

/*
 * Take the rows of table dir off, if it has some.  No table before it has any left.
 */
static void
take_table(Rows *rows, uint32 dir, Rows *table)
{
	*table = *rows;
	table->nroots = table->npending = 0;
	while (rows->nroots > 0 && NVM_VLOG_PLACE_DIR(rows->root->place) == dir)
	{
		rows->root++;
		rows->nroots--;
		table->nroots++;
	}
	while (rows->npending > 0 && NVM_VLOG_PLACE_DIR(rows->pending->place) == dir)
	{
		rows->pending++;
		rows->npending--;
		table->npending++;
	}
}

/*
 * Place the rows of the first block.
 */
static void
place_block(NvmRebuild *rebuild, Rows *rows)
{
	NvmRebuildRow row[NVM_CELLS];
	uint64		place = first_place(rows);
	int			nrows = 0;

	while (!is_empty(rows) && first_place(rows) >> 8 == place >> 8)
		take_row(rows, &row[nrows++]);
	nvm_rebuild_place(rebuild, row, nrows);
}

/*
 * The number of blocks that a table has up to its last root.
 */
static uint32
blocks_used(const Rows *rows)
{
	uint32		nblocks = 0;

	if (rows->nroots > 0)
		nblocks = NVM_VLOG_PLACE_BLOCK(rows->root[rows->nroots - 1].place) + 1;
	if (rows->npending > 0)
		nblocks = Max(nblocks, NVM_VLOG_PLACE_BLOCK(rows->pending[rows->npending - 1].place) + 1);
	return nblocks;
}

/*
 * Blocks that the table has had, as far as an entry of an index that has WAL may
 * lead.
 */
static uint32
blocks_had(uint32 dir)
{
	uint32		nextents = NVM_DIR_COUNT(nvm_dir_entry(dir)->counted);
	uint32		nblocks = 0;

	for (uint32 i = 0; i < nextents; i++)
		nblocks += nvm_extent_units(i);
	return nblocks;
}

/*
 * Place the rows of table dir.  All blocks that there were come back, with rows or
 * without: they are SUSPECT, which protects from such entries.
 */
static void
place_table(NvmVlog *vlog, uint32 dir, Rows *rows)
{
	NvmRebuild	rebuild = {
		.state = &nvm_relstates[dir],
		.begin = vlog->stamp,
		.overflow = blocks_used(rows)
	};

	if (!make_blocks(vlog, dir, &rebuild, Max(blocks_used(rows), blocks_had(dir))))
		return;
	do
	{
		uint64		enough = rebuild.large_bytes + LARGE_PER_LOCK;

		if (!hold_table(vlog, dir))
			return;
		for (int i = 0; i < BLOCKS_PER_LOCK && !is_empty(rows) && rebuild.large_bytes < enough; i++)
			place_block(&rebuild, rows);
		pg_atomic_write_u64(&nvm_log_progress()->rows, vlog->nrows + rebuild.nrows);
		if (is_empty(rows))
			nvm_rebuild_end(&rebuild);
		LWLockRelease(NvmWbl->storage_lock);
		nvm_vlog_pause();
	} while (!is_empty(rows));
	vlog->nrows += rebuild.nrows;
	vlog->nmoved += rebuild.nmoved;
	vlog->ntables++;
	pg_atomic_write_u64(&nvm_log_progress()->tables, vlog->ntables);
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_place(NvmVlog *vlog)
{
	Rows		rows = {vlog->root, vlog->nroots, vlog->pending, vlog->npending};
	Rows		table;

	for (uint32 dir = 1; dir <= vlog->ndirs; dir++)
	{
		take_table(&rows, dir, &table);
		if (vlog->creation[dir] != 0)
			place_table(vlog, dir, &table);
	}
}
