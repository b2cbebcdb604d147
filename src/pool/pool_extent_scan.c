/*-------------------------------------------------------------------------
 *
 * pool_extent_scan.c
 *	  At a start: extents are read from the map into DRAM.
 *
 * Each word of the map is checked before it is believed.  The words give the
 * bitmap of used units, the map of each storage, the units of the directory
 * and of the redo lanes, and the number of free units.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pool/nvm_sound.h"
#include "pool/pool_impl.h"
#include "verify/nvm_verify.h"

/*
 * Refuse the pool: the extent with this word is known already.
 */
static bool
refuse_twice(uint64 word, uint32 other, uint64 unit)
{
	char		buf[NVM_PROBLEM_SIZE];

	return nvm_refuse(ERRCODE_DATA_CORRUPTED,
					  nvm_region_restore_hint(nvm_region_of_unit(unit)),
					  "extent map of NVM pool \"%s\" is damaged: %s",
					  nvm_pool_path, nvm_extent_twice(buf, word, other, unit));
}

/*
 * Enter an extent found at start in DRAM.
 */
static bool
scan_extent(uint64 unit, uint64 word)
{
	uint32		arg = NVM_EXT_ARG(word);
	NvmRelState *rel;
	uint32		k;

	if (NVM_EXT_KIND(word) == NVM_EXT_DIR)
	{
		if (nvm_dir_units[arg] != 0)
			return refuse_twice(word, nvm_dir_units[arg], unit);
		nvm_dir_units[arg] = (uint32) unit;
		nvm_dram->ndir_extents++;
		return true;
	}

	if (NVM_EXT_KIND(word) == NVM_EXT_LOCKS)
	{
		NvmPool->nlock_lists++;
		return true;
	}
	if (NVM_EXT_KIND(word) == NVM_EXT_REDO)
	{
		NvmRegion  *region = nvm_region_of_unit(unit);
		uint32		other = pg_atomic_read_u32(&region->redo_unit);

		if (other != 0)
			return refuse_twice(word, other, unit);
		pg_atomic_write_u32(&region->redo_unit, (uint32) unit);
		return true;
	}

	rel = &nvm_relstates[NVM_EXT_OWNER(word)];
	if (NVM_EXT_KIND(word) == NVM_EXT_LARGE)
	{
		pg_atomic_write_u32(&rel->nlarge, pg_atomic_read_u32(&rel->nlarge) + 1);
		pg_atomic_write_u64(&rel->large_units, pg_atomic_read_u64(&rel->large_units) + arg);
		return true;
	}
	if (!nvm_relmap_make(rel, arg))
		return nvm_refuse(ERRCODE_OUT_OF_MEMORY, "Free memory and restart the server.",
						  "could not rebuild the extent map of storage %u of NVM pool \"%s\"",
						  NVM_EXT_OWNER(word), nvm_pool_path);
	k = 31 - __builtin_clz(arg / 64 + 1);
	if (rel->map[k][arg - 64 * ((1u << k) - 1)] != 0)
		return refuse_twice(word, nvm_relmap_get(rel, arg), unit);
	nvm_relmap_put(rel, arg, (uint32) unit);
	pg_atomic_write_u32(&rel->nextents, pg_atomic_read_u32(&rel->nextents) + 1);
	return true;
}

/*
 * Why the word of a unit cannot be one of this region, or NULL.  The
 * directory, and the locks of prepared transactions, are the pool's.
 */
static const char *
region_extent_problem(const NvmRegion *region, uint64 word, uint64 unit)
{
	if (!region->durable &&
		(NVM_EXT_KIND(word) == NVM_EXT_DIR || NVM_EXT_KIND(word) == NVM_EXT_LOCKS))
		return "impossible kind of extent";
	return nvm_extent_problem(word, unit);
}

/*
 * Enter the extents of one chunk.  Adds its units that are not free to *used,
 * and its extents that storages own to *nowned.
 */
static bool
scan_chunk(const NvmRegion *region, uint64 chunk, uint64 *used, uint64 *nowned)
{
	uint64		base = chunk * NVM_UNITS_PER_CHUNK;
	uint64	   *map = nvm_map_word(base);
	uint32		i = nvm_chunk_first_unit(chunk);

	nvm_bits_set(nvm_used_bits, base, i);
	*used += i;
	while (i < NVM_UNITS_PER_CHUNK)
	{
		uint64		word = map[i];
		const char *problem;
		uint32		units;

		if (word == 0)
		{
			i++;
			continue;
		}
		problem = region_extent_problem(region, word, base + i);
		if (problem)
			return nvm_refuse(ERRCODE_DATA_CORRUPTED, nvm_region_restore_hint(region),
							  "extent map of NVM pool \"%s\" is damaged at chunk %llu, unit %u: %s (word %016llx)",
							  nvm_pool_path, (unsigned long long) chunk, i, problem,
							  (unsigned long long) word);
		if (!scan_extent(base + i, word))
			return false;
		if (nvm_extent_of_storage(word))
			++* nowned;
		units = nvm_extent_word_units(word);
		nvm_bits_set(nvm_used_bits, base + i, units);
		*used += units;
		i += units;
	}
	return true;
}

static bool
scan_region(NvmRegion *region, uint64 *nowned)
{
	uint64		first = region->first_unit / NVM_UNITS_PER_CHUNK;
	uint64		word = region->first_unit / 64;
	Size		bytes = region->nchunks * (NVM_UNITS_PER_CHUNK / 8);
	uint64		used = 0;

	region->search_unit = region->first_unit + nvm_chunk_first_unit(first);
	if (bytes == 0)
		return true;
	if (!nvm_dram_reserve(nvm_used_bits + word, bytes) ||
		!nvm_dram_reserve(nvm_zero_bits + word, bytes) ||
		!nvm_dram_reserve(nvm_sound_bits + word, bytes))
		return nvm_refuse(ERRCODE_OUT_OF_MEMORY, "Free memory and restart the server.",
						  "could not reserve memory for the free-space map of NVM pool \"%s\": %m",
						  nvm_pool_path);
	for (uint64 chunk = first; chunk < first + region->nchunks; chunk++)
	{
		if (!scan_chunk(region, chunk, &used, nowned))
			return false;
	}
	region->free_units = region->nchunks * NVM_UNITS_PER_CHUNK - used;
	return true;
}

/*
 * Rebuild bitmap and relation maps from the extent maps: extent to extent, and
 * word by word where nothing is allocated.  *nowned becomes the number of
 * extents that storages own.  Returns false after refusing the pool.
 */
bool
nvm_extent_scan(uint64 *nowned)
{
	*nowned = 0;
	for (int i = 0; i < NVM_NUM_REGIONS; i++)
	{
		if (!scan_region(&nvm_regions[i], nowned))
			return false;
	}
	return true;
}

/*
 * The pool is new: no incarnation has begun, so nobody has written where no extent is.
 * What its file has there is zero, as it is in a chunk that was added (nvm_region_grow).
 */
void
nvm_extent_note_new(void)
{
	const NvmRegion *region = &nvm_regions[NVM_REGION_POOL];
	uint64		word = region->first_unit / 64;
	uint64		nwords = region->nchunks * (NVM_UNITS_PER_CHUNK / 64);

	for (uint64 i = word; i < word + nwords; i++)
		nvm_zero_bits[i] = ~nvm_used_bits[i];
}
