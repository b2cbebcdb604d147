/*-------------------------------------------------------------------------
 *
 * storage_stats.c
 *	  How many row versions a storage holds, by looking at some of its blocks.
 *
 * This makes the figures of nvm.relations, and what the cumulative statistics
 * are told after a crash.  PostgreSQL discards its statistics then.
 * Autovacuum would not come to a table before as much has changed again as
 * makes it come.  That is so for a heap table too, but there nothing waits
 * for autovacuum.  In our tables the free cells of SUSPECT blocks do
 * (README.md, "Space").  So they are reported as the dead rows whose room
 * they are.
 *
 * What is read needs no transaction ids.  A stamp whose counter its slot has
 * durably decided is that of a committed transaction, or it is in a gap: a
 * transaction that aborts takes its stamps back before.  Any other stamp is
 * in progress.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat/nvm_compat_pgstat.h"
#include "pool/nvm_pool.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_state.h"
#include "row/nvm_storage_stats.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"

/* what is looked at: all blocks of a table that has no more */
#define SAMPLE_BLOCKS		64

typedef struct BlockStats
{
	uint32		live;
	uint32		dead;
	uint32		cells;			/* of all these versions */
	uint32		suspect;		/* free cells that wait for VACUUM */
} BlockStats;

/*
 * Is the stamp one of a transaction that committed, as far as is known without
 * asking for its xid?
 */
static bool
stats_is_decided(uint64 stamp)
{
	uint32		slot = NVM_STAMP_SLOT(stamp);

	return slot < NVM_SLOT_NUMBERS &&
		NVM_STAMP_COUNTER(stamp) <= pg_atomic_read_u64(&nvm_slots[slot].durable) &&
		!nvm_stamp_in_gap(stamp);
}

/*
 * Count one block.  Lock-free: areas may be freed and cut anew meanwhile, and
 * an estimate is all that is wanted.
 */
static void
stats_block(NvmBlock *block, BlockStats *stats)
{
	uint32		used = 0;

	if (block->magic != NVM_BLOCK_MAGIC)
		return;
	for (uint32 cell = nvm_block_next_start(block, NVM_FIRST_CELL); cell != 0;
		 cell = nvm_block_next_start(block, cell + 1))
	{
		NvmVersion *v = (NvmVersion *) ((char *) block + cell * NVM_CELL_SIZE);
		uint64		begin = nvm_load(&v->begin);
		uint64		end = nvm_load(&v->end);
		uint32		cells = Min(NvmVersionCells(v), NVM_CELLS - cell);

		if (begin == 0)
			continue;
		used += cells;
		if (nvm_begin_is(begin, NVM_STAMP_DEAD))
			stats->dead++;
		else if (NVM_STAMP_IS_SPECIAL(begin))
			continue;			/* no version any more */
		else if (stats_is_decided(begin))
		{
			if (end != 0 && !NVM_STAMP_IS_SPECIAL(end) && stats_is_decided(end))
				stats->dead++;
			else
				stats->live++;
		}
		else if (nvm_stamp_in_gap(begin))
			stats->dead++;
		else
			continue;			/* being inserted */
		stats->cells += cells;
	}

	if ((block->flags & NVM_BLOCK_SUSPECT) != 0 ||
		nvm_incarnation_crashed(block->alloc_inc))
		stats->suspect += NVM_BLOCK_CELLS - Min(used, NVM_BLOCK_CELLS);
}

/*
 * Estimate what is in a storage.  The result is exact for a storage of at
 * most SAMPLE_BLOCKS blocks in which nothing happens.  In a larger one every
 * n-th block is looked at.
 *
 * Nobody may take extents from the storage meanwhile: caller holds a lock on
 * the relation, or NvmWbl->storage_lock.
 */
void
nvm_storage_estimate(NvmRelState *state, NvmStorageEstimate *estimate)
{
	uint32		nblocks = nvm_rel_nblocks(state);
	uint32		nsampled = Min(nblocks, SAMPLE_BLOCKS);
	BlockStats	stats = {0};
	double		scale;

	memset(estimate, 0, sizeof(*estimate));
	if (nblocks == 0)
		return;
	for (uint32 i = 0; i < nsampled; i++)
		stats_block(nvm_block(state, (uint32) ((uint64) i * nblocks / nsampled)), &stats);

	scale = (double) nblocks / nsampled;
	estimate->live = (uint64) (stats.live * scale + 0.5);
	estimate->dead = (uint64) (stats.dead * scale + 0.5);
	if (stats.live + stats.dead > 0)
		estimate->suspect = (uint64) (scale * stats.suspect *
									  (stats.live + stats.dead) / stats.cells + 0.5);
	else
		estimate->suspect = (uint64) (scale * stats.suspect / 2 + 0.5);
}

/*
 * rel is opened for the first time in this process.  If it is the first time
 * in the whole run, and the run began with a crash, tell the statistics what
 * the table holds.
 */
void
nvm_storage_tell_stats(Relation rel, NvmRelState *state)
{
	NvmStorageEstimate estimate;

	if (NvmPool->data_clean || pg_atomic_read_u32(&nvm_rel_row(state)->told) != 0 ||
		!pgstat_should_count_relation(rel))
		return;
	if (pg_atomic_exchange_u32(&nvm_rel_row(state)->told, 1) != 0)
		return;
	nvm_storage_estimate(state, &estimate);
	nvm_count_found(rel, estimate.live, estimate.dead + estimate.suspect);
}
