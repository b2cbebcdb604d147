/*-------------------------------------------------------------------------
 *
 * pool_extent.c
 *	  Allocation of extents: map words, free bitmap.
 *
 * On media an extent is one word (media_pool.h); in DRAM there is a bit for
 * each unit.  An allocation marks the units in DRAM, prepares their contents,
 * stores the word, and waits until it is durable.  If a start after a crash
 * finds the word, the extent belongs to its owner; if not, the units are free.
 * A release is the same in reverse.  The word of a unit that does not begin an
 * extent is zero at all times.  So a process that walks the map without a lock
 * always stands on the first unit of an extent or on a zero.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_poison.h"
#include "pool/nvm_sound.h"
#include "pool/pool_impl.h"
#include "storage/block.h"
#include "utils/rel.h"
#include "verify/nvm_verify.h"

/*
 * Where a fence is a sync, an allocation zeroes so many times the units that
 * are wanted.  It zeroes more than are wanted only up to this many units.
 */
#define ZERO_AHEAD		4
#define ZERO_AHEAD_MAX	256

uint64 *
nvm_map_word(uint64 unit)
{
	NvmImage	image = {.base = nvm_pool_base};

	return nvm_image_map_word(&image, unit);
}

/*
 * The bytes of a region, as it is now.
 */
NvmImage
nvm_region_image(const NvmRegion *region)
{
	NvmImage	image = {nvm_pool_base, region->nchunks,
	region->first_unit / NVM_UNITS_PER_CHUNK};

	return image;
}

/* ---- bits ---- */

void
nvm_bits_set(uint64 *bits, uint64 first, uint64 n)
{
	while (n > 0)
	{
		uint32		shift = first % 64;
		uint64		take = Min(n, 64 - shift);

		bits[first / 64] |= (take == 64 ? ~UINT64CONST(0) : (UINT64CONST(1) << take) - 1) << shift;
		first += take;
		n -= take;
	}
}

void
nvm_bits_clear(uint64 *bits, uint64 first, uint64 n)
{
	while (n > 0)
	{
		uint32		shift = first % 64;
		uint64		take = Min(n, 64 - shift);

		bits[first / 64] &= ~((take == 64 ? ~UINT64CONST(0) : (UINT64CONST(1) << take) - 1) << shift);
		first += take;
		n -= take;
	}
}

static bool
bits_all_set(const uint64 *bits, uint64 first, uint64 n)
{
	while (n > 0)
	{
		uint32		shift = first % 64;
		uint64		take = Min(n, 64 - shift);
		uint64		mask = (take == 64 ? ~UINT64CONST(0) : (UINT64CONST(1) << take) - 1) << shift;

		if ((bits[first / 64] & mask) != mask)
			return false;
		first += take;
		n -= take;
	}
	return true;
}

/*
 * First-fit search for n free units of a region in a row; 0 if there are none.  A run
 * never crosses chunks, because each chunk's map is marked used.  Caller holds
 * extent_lock.
 */
static uint64
find_run(NvmRegion *region, uint32 n)
{
	uint64		end = nvm_region_end(region);
	uint64		unit = region->search_unit;
	uint64		run = 0;
	bool		first = true;

	while (unit < end)
	{
		uint64		word = nvm_used_bits[unit / 64];

		if (unit % 64 == 0 && word == ~UINT64CONST(0))
		{
			run = 0;
			unit += 64;
			continue;
		}
		if ((word >> (unit % 64)) & 1)
			run = 0;
		else
		{
			uint64		step = unit % 64 == 0 && word == 0 ? 64 : 1;

			if (first)
			{
				region->search_unit = unit;
				first = false;
			}
			run += step;
			if (run >= n)
				return unit + step - run;
			unit += step;
			continue;
		}
		unit++;
	}
	if (first)
		region->search_unit = end;
	return 0;
}

/* ---- allocation and release ---- */

/*
 * How many units from `unit` on to zero: the caller's nunits, and behind them
 * those that are free and not known to be zero, as far as the first that is
 * not so, up to `most`.  Caller holds extent_lock.
 */
static uint32
dirty_run(uint64 unit, uint32 nunits, uint32 most)
{
	uint64		end = nvm_region_end(nvm_region_of_unit(unit));

	for (; nunits < most && unit + nunits < end; nunits++)
	{
		uint64		next = unit + nunits;

		if ((((nvm_used_bits[next / 64] | nvm_zero_bits[next / 64]) >> (next % 64)) & 1) != 0)
			break;
	}
	return nunits;
}

/*
 * Units that are taken for an extent.
 */
typedef struct NewUnits
{
	NvmRegion  *region;			/* of which they are to be */
	uint64		unit;
	uint32		nunits;			/* that are wanted */
	uint32		ntaken;			/* from `unit` on, wanted and zeroed along
								 * with those */
	bool		zero;			/* durably zero as they were found */
} NewUnits;

/*
 * Find nunits free units of new->region in a row, and mark them used.  Mark
 * some more where it pays to zero them together.  The contents of the extent
 * are zero, flushed and not fenced.  Returns in a critical section: an error
 * from here on would lose the units, or leave them with a storage that does
 * not know of them.  May ERROR before that.  Takes extent_lock.
 *
 * With pmem a fence costs nothing beside the zeroing, so nothing is zeroed
 * before it is wanted.  Behind an extent there is as a rule the next one of
 * the same storage.
 */
static void
take_units(uint32 kind, uint32 nunits, NewUnits *new)
{
	NvmRegion  *region = new->region;
	Size		len;
	uint64		wait_for;

	LWLockAcquire(NvmPool->extent_lock, LW_EXCLUSIVE);

	/*
	 * Some of the units that are being zeroed will be free again.  Wait for
	 * as many processes as are at it now, not for later ones: there may
	 * always be one.
	 */
	nvm_region_require_room(region, nunits);
	wait_for = region->nzeroed + region->nzeroing;
	while ((new->unit = find_run(region, nunits)) == 0)
	{
		if (region->nzeroing == 0 || region->nzeroed >= wait_for)
			nvm_region_grow(region, nunits);
		else
		{
			LWLockRelease(NvmPool->extent_lock);
			pg_usleep(1000L);
			LWLockAcquire(NvmPool->extent_lock, LW_EXCLUSIVE);
		}
	}
	new->nunits = nunits;
	new->ntaken = nunits;
	new->zero = bits_all_set(nvm_zero_bits, new->unit, nunits);
	if (!new->zero && kind == NVM_EXT_TABLE && region->durable &&
		nvm_persist_in_force != NVM_PERSIST_PMEM)
		new->ntaken = dirty_run(new->unit, nunits, Min(nunits * ZERO_AHEAD, ZERO_AHEAD_MAX));
	if (new->ntaken > nunits)
		region->nzeroing++;
	nvm_bits_set(nvm_used_bits, new->unit, new->ntaken);
	nvm_bits_clear(nvm_zero_bits, new->unit, new->ntaken);
	region->free_units -= new->ntaken;
	region->reserved_units += new->ntaken;
	nvm_region_note_taken(region, new->ntaken);
	LWLockRelease(NvmPool->extent_lock);

	/* this run writes whatever will be there */
	for (uint32 i = 0; i < (kind == NVM_EXT_TABLE ? nunits : 1); i++)
		nvm_unit_set_sound(nvm_unit_address(new->unit + i));

	START_CRIT_SECTION();
	if (new->zero)
		return;
	len = kind == NVM_EXT_LARGE || kind == NVM_EXT_LOCKS ?
		sizeof(NvmLargeHeader) : (Size) new->ntaken * NVM_UNIT_SIZE;
	memset(nvm_unit_address(new->unit), 0, len);
	nvm_flush(nvm_unit_address(new->unit), len);
}

/*
 * Give back the units that were zeroed besides, durably by now.  Caller holds
 * extent_lock.
 */
static void
give_back_zero(const NewUnits *new)
{
	NvmRegion  *region = new->region;
	uint64		unit = new->unit + new->nunits;
	uint32		n = new->ntaken - new->nunits;

	if (n == 0)
		return;
	nvm_bits_clear(nvm_used_bits, unit, n);
	nvm_bits_set(nvm_zero_bits, unit, n);
	region->free_units += n;
	region->reserved_units -= n;
	region->nzeroing--;
	region->nzeroed++;
	region->search_unit = Min(region->search_unit, unit);
}

/*
 * Wait until the contents are durable.  Then store and flush the map word;
 * extent_fence waits for it.  In the critical section of take_units; takes
 * extent_lock.
 */
static void
own_units(const NewUnits *new, uint32 kind, uint32 owner, uint32 arg)
{
	uint64	   *word = nvm_map_word(new->unit);

	if (!new->zero)
		nvm_drain("pool-extent-zero");
	LWLockAcquire(NvmPool->extent_lock, LW_EXCLUSIVE);
	give_back_zero(new);
	nvm_store(word, nvm_extent_word(kind, owner, arg, new->unit));
	new->region->reserved_units -= new->nunits;
	LWLockRelease(NvmPool->extent_lock);
	nvm_flush(word, sizeof(*word));
}

/*
 * The extent is its owner's, durably; ends the critical section.
 */
static void
extent_fence(void)
{
	nvm_drain("pool-extent-owner");
	END_CRIT_SECTION();
}

/*
 * Make an extent of a region: durably owned when this returns its first unit.
 * Its contents are durably zero; of a large value or a list of locks only the
 * first line is.  May ERROR before anything is done.
 */
uint64
nvm_extent_alloc(NvmRegion *region, uint32 kind, uint32 owner, uint32 arg, uint32 nunits)
{
	NewUnits	new = {.region = region};

	take_units(kind, nunits, &new);
	own_units(&new, kind, owner, arg);
	extent_fence();
	return new.unit;
}

/*
 * Free an extent whose word was stored as 0 and is durable.
 */
static void
units_freed(uint64 unit, uint32 nunits)
{
	NvmRegion  *region = nvm_region_of_unit(unit);

	LWLockAcquire(NvmPool->extent_lock, LW_EXCLUSIVE);
	nvm_bits_clear(nvm_used_bits, unit, nunits);
	region->free_units += nunits;
	region->reserved_units -= nunits;
	region->search_unit = Min(region->search_unit, unit);
	LWLockRelease(NvmPool->extent_lock);
}

/*
 * Release an extent; durable on return.  Cannot fail.
 */
void
nvm_extent_release(uint64 unit, uint32 nunits, const char *what)
{
	uint64	   *word = nvm_map_word(unit);
	bool		large = NVM_EXT_KIND(nvm_load(word)) == NVM_EXT_LARGE;

	if (nvm_load(word) == 0 || nvm_extent_word_units(nvm_load(word)) != nunits)
	{
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("%s at unit %llu of NVM pool is not what the extent map has",
						what, (unsigned long long) unit)));
		return;
	}

	/* no error may separate the media from the bitmap */
	START_CRIT_SECTION();
	LWLockAcquire(NvmPool->extent_lock, LW_EXCLUSIVE);
	nvm_store(word, 0);
	nvm_region_of_unit(unit)->reserved_units += nunits;
	LWLockRelease(NvmPool->extent_lock);
	nvm_flush(word, sizeof(*word));
	nvm_drain("pool-extent-free");
	if (large)
		nvm_poison_large(nvm_unit_address(unit), (Size) nunits * NVM_UNIT_SIZE);
	units_freed(unit, nunits);
	END_CRIT_SECTION();
}

/* ---- relation maps ---- */

/*
 * Make sure that the map has room for extent `index`.  Returns false when there
 * is no memory.  Caller holds extent_lock exclusively or is the postmaster.
 */
bool
nvm_relmap_make(NvmRelState *rel, uint32 index)
{
	uint32		k = 31 - __builtin_clz(index / 64 + 1);
	uint32	   *segment;

	if (k >= NVM_RELMAP_SEGS)
		return false;
	if (rel->map[k] != NULL)
		return true;
	segment = nvm_dram_alloc_locked(sizeof(uint32) * (Size) 64 << k);
	if (segment == NULL)
		return false;
	pg_write_barrier();			/* zeroes before the pointer */
	rel->map[k] = segment;
	return true;
}

/*
 * Enter the unit of an extent; nvm_relmap_make was called.
 */
void
nvm_relmap_put(NvmRelState *rel, uint32 index, uint32 unit)
{
	uint32		k = 31 - __builtin_clz(index / 64 + 1);

	rel->map[k][index - 64 * ((1u << k) - 1)] = unit;
}

/*
 * An extent that nobody owns would make the pool unusable at the next start.
 */
static void
require_storage(uint32 dir)
{
	if (dir == 0 || dir >= NVM_MAX_DIRS || nvm_relstates[dir].dir != dir ||
		nvm_relstates[dir].dir_state == NVM_DIRSTATE_RECLAIM)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("storage %u of the NVM pool does not exist", dir)));
}

/*
 * Make ready block blk of its extent, which ends before `end`, and blocks
 * behind it.  As many as the storage has, so that a small storage has few that
 * it does not use; where a fence is a sync, a quarter of that at least.
 * Caller holds the relation's extend lock.
 */
static void
make_ready(NvmRelState *rel, uint32 blk, uint32 end, NvmReadyCallback ready, void *arg)
{
	uint32		n = Min(NVM_READY_BLOCKS, Max(blk, 1));

	if (nvm_persist_in_force == NVM_PERSIST_MSYNC && nvm_rel_region(rel)->durable)
		n = Max(n, Min(NVM_READY_BLOCKS_MSYNC, blk / 4));
	n = Min(n, Min(end, MaxBlockNumber) - blk);
	n = nvm_dir_raise_blocks(rel, blk, n);
	for (uint32 i = 0; i < n; i++)
		nvm_unit_set_sound(nvm_block(rel, blk + i));
	ready(rel, blk, n, arg);
	rel->nready = blk + n;
}

/*
 * Append the next extent.  With `ready`, make its first blocks, from blk on,
 * ready.  README.md, "A new extent".  Caller holds the relation's extend lock.
 */
static void
add_extent(NvmRelState *rel, uint32 blk, NvmReadyCallback ready, void *arg)
{
	uint32		index = pg_atomic_read_u32(&rel->nextents);
	uint32		end = blk + nvm_extent_units(index);
	NewUnits	new;
	bool		ok;

	require_storage(rel - nvm_relstates);
	new.region = nvm_rel_region(rel);
	LWLockAcquire(NvmPool->extent_lock, LW_EXCLUSIVE);
	ok = nvm_relmap_make(rel, index);
	LWLockRelease(NvmPool->extent_lock);
	if (!ok)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory in the DRAM region of the NVM pool")));

	take_units(NVM_EXT_TABLE, nvm_extent_units(index), &new);
	nvm_relmap_put(rel, index, (uint32) new.unit);
	if (ready != NULL && !new.zero)
		make_ready(rel, blk, end, ready, arg);
	own_units(&new, NVM_EXT_TABLE, rel->dir, index);
	if (ready != NULL && new.zero)
		make_ready(rel, blk, end, ready, arg);
	extent_fence();

	/* readers look at the map below nextents only */
	pg_write_barrier();
	pg_atomic_write_u32(&rel->nextents, index + 1);

	/*
	 * fenced along with the rows that will be in it; the next start counts it
	 * if it has to
	 */
	NVM_FAILPOINT("pool-extent-count");
	nvm_dir_count(rel->dir, index + 1);
}

/*
 * See nvm_pool.h.
 */
void
nvm_rel_add_extent(NvmRelState *rel)
{
	add_extent(rel, 0, NULL, NULL);
}

uint32
nvm_storage_extend(NvmRelState *rel, NvmReadyCallback ready, void *arg)
{
	LWLock	   *lock = nvm_rel_extend_lock(rel);
	uint32		blk;
	uint32		first;
	uint32		extent;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	blk = pg_atomic_read_u32(&rel->nblocks);
	if (blk >= MaxBlockNumber)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("cannot extend nvm table or index beyond %u blocks", MaxBlockNumber)));
	extent = nvm_extent_of_block(blk, &first);
	if (extent >= pg_atomic_read_u32(&rel->nextents))
		add_extent(rel, blk, ready, arg);
	if (ready != NULL && blk >= rel->nready)
		make_ready(rel, blk, first + nvm_extent_units(extent), ready, arg);

	/*
	 * it may be one that a crash cut off: the caller that gets it writes it
	 * as a whole
	 */
	nvm_unit_set_sound(nvm_block(rel, blk));
	pg_write_barrier();
	pg_atomic_write_u32(&rel->nblocks, blk + 1);
	LWLockRelease(lock);
	return blk;
}

void
nvm_extend_context(void *arg)
{
	errcontext("extending nvm relation \"%s\"", RelationGetRelationName((Relation) arg));
}

uint64
nvm_rel_units(NvmRelState *rel)
{
	return nvm_extents_units(pg_atomic_read_u32(&rel->nextents));
}

uint64
nvm_rel_bytes(NvmRelState *rel)
{
	return (nvm_rel_units(rel) + pg_atomic_read_u64(&rel->large_units)) * NVM_UNIT_SIZE;
}

/*
 * See nvm_pool.h.
 */
uint64
nvm_large_alloc(uint32 dir, uint32 nunits)
{
	uint64		unit;

	if (nunits < 1 || nunits > NVM_LARGE_MAX_UNITS)
		elog(ERROR, "invalid size of a large value's run: %u units", nunits);
	require_storage(dir);
	unit = nvm_extent_alloc(nvm_rel_region(&nvm_relstates[dir]), NVM_EXT_LARGE,
							dir, nunits, nunits);
	pg_atomic_fetch_add_u32(&nvm_relstates[dir].nlarge, 1);
	pg_atomic_fetch_add_u64(&nvm_relstates[dir].large_units, nunits);
	return unit * NVM_UNIT_SIZE;
}

void
nvm_large_free(uint64 offset)
{
	uint64		unit = offset / NVM_UNIT_SIZE;
	uint64		word;

	if (offset % NVM_UNIT_SIZE != 0 || !nvm_unit_is_mapped(unit))
		word = 0;
	else
		word = nvm_load(nvm_map_word(unit));
	if (NVM_EXT_KIND(word) != NVM_EXT_LARGE)
	{
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("no large value at offset %llu of the NVM pool",
						(unsigned long long) offset)));
		return;
	}
	nvm_extent_release(unit, NVM_EXT_ARG(word), "large value");
	pg_atomic_fetch_sub_u32(&nvm_relstates[NVM_EXT_OWNER(word)].nlarge, 1);
	pg_atomic_fetch_sub_u64(&nvm_relstates[NVM_EXT_OWNER(word)].large_units, NVM_EXT_ARG(word));
}

/*
 * See nvm_pool.h.
 */
uint32
nvm_locks_alloc(uint32 slot, uint32 nunits)
{
	if (nunits < 1 || nunits > NVM_LOCKS_MAX_UNITS)
		elog(ERROR, "invalid size of a list of row locks: %u units", nunits);
	return (uint32) nvm_extent_alloc(&nvm_regions[NVM_REGION_POOL], NVM_EXT_LOCKS,
									 slot + 1, nunits, nunits);
}

uint32
nvm_locks_units(uint32 unit, uint32 slot)
{
	NvmImage	image = nvm_region_image(&nvm_regions[NVM_REGION_POOL]);

	return nvm_image_locks_units(&image, unit, slot);
}

void
nvm_locks_free(uint32 unit)
{
	nvm_extent_release(unit, nvm_extent_word_units(nvm_load(nvm_map_word(unit))),
					   "list of row locks");
}

static void
walk_region(const NvmRegion *region, uint32 kind, uint32 dir, NvmExtentCallback fn, void *arg)
{
	uint64		first = region->first_unit / NVM_UNITS_PER_CHUNK;
	uint64		nchunks = region->nchunks;

	for (uint64 chunk = first; chunk < first + nchunks; chunk++)
	{
		uint64		base = chunk * NVM_UNITS_PER_CHUNK;
		uint64	   *map = nvm_map_word(base);
		uint32		i = nvm_chunk_first_unit(chunk);

		while (i < NVM_UNITS_PER_CHUNK)
		{
			uint64		word = nvm_load(&map[i]);

			if (word == 0)
			{
				i++;
				continue;
			}
			if ((kind == 0 || NVM_EXT_KIND(word) == kind) &&
				(dir == 0 || NVM_EXT_OWNER(word) == dir))
				fn(base + i, word, arg);
			i += Max(1, nvm_extent_word_units(word));
		}
	}
}

/*
 * See nvm_pool.h.  Takes no lock, so fn may allocate and free; extents that
 * come or go meanwhile may be seen or not.
 */
void
nvm_extents_walk(uint32 kind, uint32 dir, NvmExtentCallback fn, void *arg)
{
	for (int i = 0; i < NVM_NUM_REGIONS; i++)
		walk_region(&nvm_regions[i], kind, dir, fn, arg);
}
