/*-------------------------------------------------------------------------
 *
 * poolcheck_storage.c
 *	  What the storages of a pool hold: blocks of tables, and large values.
 *
 * Passed over is what the next start throws away (temporary tables; what
 * belongs to transactions that never happened, or was dropped by ones that
 * did; after a crash UNLOGGED tables; indexes that are built anew) and whatever
 * depends on a commit slot that cannot be read.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "poolcheck.h"

#include "verify/nvm_verify_block.h"

/* somebody who checks a table */
typedef struct TableCheck
{
	NvmBlockCheck check;		/* first */
	Pool	   *pool;
	uint32		nblocks;
} TableCheck;

/*
 * A block that the storage has.
 */
char *
pool_block(const Pool *pool, uint32 id, uint32 blkno)
{
	uint32		first;
	uint32		extent = nvm_extent_of_block(blkno, &first);

	return pool->image.base +
		((uint64) pool->storage[id].unit[extent] + (blkno - first)) * NVM_UNIT_SIZE;
}

/*
 * Blocks of a storage: to the last one that was ever initialised.
 */
static uint32
count_blocks(const Pool *pool, uint32 id, uint32 kind)
{
	const PoolStorage *storage = &pool->storage[id];
	uint64		nblocks = 0;

	for (uint32 i = 0; i < storage->nextents; i++)
		nblocks += nvm_extent_units(i);
	nblocks = Min(nblocks, PG_UINT32_MAX - 1);
	while (nblocks > 0 && !nvm_block_was_used(kind, pool_block(pool, id, (uint32) nblocks - 1)))
		nblocks--;
	return (uint32) nblocks;
}

/* ---- what verify_block.c asks ---- */

static NvmBlock *
table_block(NvmBlockCheck *check, uint32 blkno)
{
	TableCheck *table = (TableCheck *) check;

	return blkno >= table->nblocks ? NULL :
		(NvmBlock *) pool_block(table->pool, check->dir, blkno);
}

static bool
table_crashed(NvmBlockCheck *check, uint32 incarnation)
{
	const NvmPoolHeader *h = &((TableCheck *) check)->pool->header;

	return nvm_crashed_list_has(h->crashed, h->ncrashed, h->crashed_floor, incarnation);
}

static bool
table_any_gap(NvmBlockCheck *check)
{
	return ((TableCheck *) check)->pool->gaps;
}

static bool
table_in_gap(NvmBlockCheck *check, uint64 stamp)
{
	return pool_stamp_in_gap(((TableCheck *) check)->pool, stamp);
}

static bool
table_handed_out(NvmBlockCheck *check, uint32 slot, uint64 *limit)
{
	Pool	   *pool = ((TableCheck *) check)->pool;

	if (slot >= pool->nslots)
		return false;
	*limit = pool->slot[slot].unknown ? PG_UINT64_MAX : pool->slot[slot].last;
	return true;
}

static bool
table_owns_large(NvmBlockCheck *check, uint64 unit)
{
	Pool	   *pool = ((TableCheck *) check)->pool;
	uint64		word;

	if (unit >= pool->image.nchunks * NVM_UNITS_PER_CHUNK ||
		unit % NVM_UNITS_PER_CHUNK < nvm_chunk_first_unit(unit / NVM_UNITS_PER_CHUNK))
		return false;
	word = nvm_image_load_word(&pool->image, unit);
	return NVM_EXT_KIND(word) == NVM_EXT_LARGE && NVM_EXT_OWNER(word) == check->dir &&
		nvm_extent_problem(word, unit) == NULL;
}

static void table_report(NvmBlockCheck *check, uint32 blk, uint32 off,
						 const char *fmt,...) pg_attribute_printf(4, 5);

static void
table_report(NvmBlockCheck *check, uint32 blk, uint32 off, const char *fmt,...)
{
	TableCheck *table = (TableCheck *) check;
	NvmDirEntry *entry = pool_dir_entry(table->pool, check->dir);
	char		place[128];
	char		problem[512];
	va_list		args;
	int			n;

	va_start(args, fmt);
	vsnprintf(problem, sizeof(problem), fmt, args);
	va_end(args);
	n = snprintf(place, sizeof(place), "storage %u (database %u, relation file " UINT64_FORMAT "), block %u",
				 check->dir, entry->database, (uint64) entry->relnumber, blk);
	if (off != 0)
		snprintf(place + n, sizeof(place) - n, ", offset %u", off);
	found(place, "%s", problem);
}

/*
 * Attributes are the catalog's; but the large values are listed.
 */
static void
table_tuple(NvmBlockCheck *check, NvmVersion *v, uint64 begin, uint32 blk, uint32 off)
{
	uint32		limit;
	uint16		nlarge;

	if (!nvm_verify_tuple(check, v, blk, off, &limit, &nlarge))
		return;
	for (int i = 0; i < nlarge; i++)
	{
		uint64		word;
		uint64		offset;
		const char *problem;

		memcpy(&word, (const char *) &v->tuple + limit + i * sizeof(word), sizeof(word));
		offset = NVM_LARGE_OFFSET(word);
		problem = nvm_large_problem(check, offset, blk, off, true);
		if (problem != NULL)
			check->ops->report(check, blk, off, "large value at pool offset " UINT64_FORMAT " %s",
							   offset, problem);
	}
}

static const NvmBlockCheckOps table_ops = {
	.block = table_block,
	.crashed = table_crashed,
	.any_gap = table_any_gap,
	.in_gap = table_in_gap,
	.handed_out = table_handed_out,
	.owns_large = table_owns_large,
	.tuple = table_tuple,
	.report = table_report
};

static void
check_table(Pool *pool, uint32 id, uint32 nblocks)
{
	TableCheck	table = {0};

	table.check.ops = &table_ops;
	table.check.base = pool->image.base;
	table.check.dir = id;
	table.check.incarnation = pool->incarnation;
	table.check.marks = pool->marks;
	table.pool = pool;
	table.nblocks = nblocks;
	for (uint32 blk = 0; blk < nblocks; blk++)
	{
		nvm_verify_block(&table.check, table_block(&table.check, blk), blk);
		progress(1);
	}
}

/* ---- storages ---- */

/*
 * Will the next start keep what the storage holds?
 */
static bool
is_kept(const Pool *pool, const NvmDirEntry *entry)
{
	if ((entry->flags & (NVM_DIR_TEMP | NVM_DIR_REBUILT)) != 0 || NvmDirIsRelaxed(entry))
		return false;
	if ((entry->flags & NVM_DIR_UNLOGGED) && !pool->clean)
		return false;
	if (pool_stamp_in_gap(pool, entry->begin))
		return false;
	return entry->end == NVM_STAMP_NONE || pool_stamp_in_gap(pool, entry->end) ||
		pool_stamp_in_doubt(pool, entry->end);
}

/*
 * A stamp of an entry, as one of a row.
 */
static void
check_entry_stamp(const Pool *pool, uint32 id, const char *which, uint64 stamp)
{
	uint32		slot = NVM_STAMP_SLOT(stamp);
	char		place[32];

	if (stamp == NVM_STAMP_NONE)
		return;
	snprintf(place, sizeof(place), "directory entry %u", id);
	if (slot >= pool->nslots)
		found(place, "%s stamp names commit slot %u, which was never used", which, slot);
	else if (!pool->slot[slot].unknown && NVM_STAMP_COUNTER(stamp) > pool->slot[slot].last)
		found(place, "%s stamp " UINT64_FORMAT " of commit slot %u was never handed out",
			  which, (uint64) NVM_STAMP_COUNTER(stamp), slot);
}

void
pool_check_storages(Pool *pool)
{
	uint64		units = 0;

	for (uint32 id = 1; id <= pool->last_storage; id++)
	{
		for (uint32 i = 0; i < pool->storage[id].nextents; i++)
			units += nvm_extent_units(i);
	}
	progress_begin(units);
	for (uint32 id = 1; id <= pool->last_storage; id++)
	{
		NvmDirEntry *entry;
		uint32		nblocks;

		if (!pool->storage[id].exists)
			continue;
		entry = pool_dir_entry(pool, id);
		if (nvm_dir_entry_problem(id, entry) != NULL)
			continue;			/* said already */
		check_entry_stamp(pool, id, "begin", entry->begin);
		check_entry_stamp(pool, id, "end", entry->end);
		if (!is_kept(pool, entry))
			continue;
		nblocks = count_blocks(pool, id, entry->kind);
		if (verbose)
			pg_log_info("storage %u (database %u, relation file " UINT64_FORMAT "): %s of %u blocks",
						id, entry->database, (uint64) entry->relnumber,
						entry->kind == NVM_DIR_KIND_TABLE ? "table" : "index", nblocks);
		if (entry->kind == NVM_DIR_KIND_TABLE)
			check_table(pool, id, nblocks);
		else
			pool_check_index(pool, id, nblocks);
	}
	progress_end();
}
