/*-------------------------------------------------------------------------
 *
 * verify_map.c
 *	  The extent map and the directory.
 *
 * Compiled into the server and into nvm_poolcheck.
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

#include "media/media_block.h"
#include "verify/nvm_verify.h"

StaticAssertDecl(sizeof(NvmDirEntry) == NVM_DIR_ENTRY_SIZE, "directory entry size");
StaticAssertDecl(sizeof(NvmLargeHeader) == NVM_LINE_SIZE, "large header size");
StaticAssertDecl(sizeof(NvmSlot) == NVM_SLOT_SIZE, "slot size");
StaticAssertDecl(NVM_CHUNK0_FIRST_UNIT * NVM_UNIT_SIZE ==
				 NVM_SLOTS_OFFSET + NVM_MAX_SLOTS * NVM_SLOT_SIZE, "chunk 0 layout");
StaticAssertDecl(NVM_DIR_EXTENT_UNITS * NVM_UNIT_SIZE ==
				 NVM_DIRS_PER_EXTENT * NVM_DIR_ENTRY_SIZE, "directory extent size");

/* domain of nvm_pool_check's place */
#define NVM_PLACE_DIR(id)		((UINT64_C(1) << 62) | (id))

/* ---- sizes ---- */

uint64
nvm_extents_units(uint32 nextents)
{
	uint64		units = 0;

	/* eight of a size, up to the largest size */
	for (uint32 i = 0; i < nextents; i += NVM_EXT_PER_CLASS)
	{
		if (i >= NVM_EXT_PER_CLASS * (NVM_EXT_CLASSES - 1))
			return units + (uint64) (nextents - i) * NVM_EXT_MAX_UNITS;
		units += (uint64) nvm_extent_units(i) * Min(NVM_EXT_PER_CLASS, nextents - i);
	}
	return units;
}

/* ---- words ---- */

uint64
nvm_extent_word(uint32 kind, uint32 owner, uint32 arg, uint64 unit)
{
	uint64		word = ((uint64) kind << 12) | ((uint64) owner << 15) | ((uint64) arg << 35);

	return word | nvm_pool_check(&word, sizeof(word), unit, 12);
}

uint32
nvm_extent_word_units(uint64 word)
{
	switch (NVM_EXT_KIND(word))
	{
		case NVM_EXT_TABLE:
			return nvm_extent_units(NVM_EXT_ARG(word));
		case NVM_EXT_LARGE:
		case NVM_EXT_LOCKS:
		case NVM_EXT_REDO:
			return NVM_EXT_ARG(word);
		case NVM_EXT_DIR:
			return NVM_DIR_EXTENT_UNITS;
		default:
			return 1;
	}
}

const char *
nvm_extent_problem(uint64 word, uint64 unit)
{
	uint64		rest = word & ~UINT64CONST(0xFFF);
	uint32		kind = NVM_EXT_KIND(word);
	uint32		units;

	if (NVM_EXT_CHECK(word) != nvm_pool_check(&rest, sizeof(rest), unit, 12))
		return "wrong checksum";
	if (word >> 59 != 0)
		return "reserved bits are set";
	if (kind < NVM_EXT_TABLE || kind > NVM_EXT_REDO)
		return "unknown kind of extent";
	units = nvm_extent_word_units(word);
	if (units == 0 || (kind == NVM_EXT_LARGE && units > NVM_LARGE_MAX_UNITS) ||
		(kind == NVM_EXT_LOCKS && units > NVM_LOCKS_MAX_UNITS) ||
		(kind == NVM_EXT_REDO && units != NVM_REDO_EXTENT_UNITS))
		return "impossible size";
	if (unit % NVM_UNITS_PER_CHUNK + units > NVM_UNITS_PER_CHUNK)
		return "extent crosses the end of its chunk";
	if ((kind == NVM_EXT_DIR || kind == NVM_EXT_REDO) != (NVM_EXT_OWNER(word) == 0) ||
		(kind == NVM_EXT_LOCKS && NVM_EXT_OWNER(word) > NVM_MAX_SLOTS))
		return "impossible owner";
	if (kind == NVM_EXT_DIR && NVM_EXT_ARG(word) >= NVM_DIR_EXTENTS)
		return "impossible index";
	return NULL;
}

uint64
nvm_image_extent_of(const NvmImage *image, uint64 unit, uint64 *first)
{
	uint64		lowest = unit - unit % NVM_UNITS_PER_CHUNK +
	nvm_chunk_first_unit(unit / NVM_UNITS_PER_CHUNK);

	for (uint64 i = unit; i >= lowest; i--)
	{
		uint64		word = nvm_image_load_word(image, i);

		if (word == 0)
			continue;
		*first = i;
		return unit < i + nvm_extent_word_units(word) ? word : 0;
	}
	return 0;
}

/* ---- maps ---- */

uint64
nvm_verify_chunk(const NvmImage *image, uint64 chunk, NvmVerifyExtent extent,
				 NvmCheckEmit emit, void *arg)
{
	uint64		base = chunk * NVM_UNITS_PER_CHUNK;
	uint32		first = nvm_chunk_first_unit(chunk);
	uint64		covered = first;
	uint32		i = 0;

	while (i < NVM_UNITS_PER_CHUNK)
	{
		uint64		word = nvm_image_load_word(image, base + i);
		char		place[64];
		const char *problem;
		uint32		units;

		if (word == 0)
		{
			i++;
			continue;
		}
		snprintf(place, sizeof(place), "extent map, chunk " UINT64_FORMAT ", unit %u", chunk, i);
		problem = i < first ? "word of a unit that cannot be allocated is set" :
			nvm_extent_problem(word, base + i);
		if (problem)
		{
			emit(arg, place, problem);
			i++;
			continue;
		}
		units = nvm_extent_word_units(word);
		for (uint32 k = 1; k < units; k++)
		{
			if (nvm_image_load_word(image, base + i + k) != 0)
				emit(arg, place, "map word inside an extent is not zero");
		}
		extent(arg, base + i, word, place);
		covered += units;
		i += units;
	}
	return covered;
}

const char *
nvm_extent_twice(char *buf, uint64 word, uint32 other, uint64 unit)
{
	if (NVM_EXT_KIND(word) == NVM_EXT_DIR)
		snprintf(buf, NVM_PROBLEM_SIZE, "directory extent %u is there twice, at units %u and " UINT64_FORMAT,
				 NVM_EXT_ARG(word), other, unit);
	else if (NVM_EXT_KIND(word) == NVM_EXT_REDO)
		snprintf(buf, NVM_PROBLEM_SIZE, "the redo lanes are there twice, at units %u and " UINT64_FORMAT,
				 other, unit);
	else
		snprintf(buf, NVM_PROBLEM_SIZE, "extent %u of storage %u is there twice",
				 NVM_EXT_ARG(word), NVM_EXT_OWNER(word));
	return buf;
}

const char *
nvm_extent_missing(char *buf, uint32 index, uint32 id, const NvmDirEntry *entry)
{
	if (entry == NULL)
		snprintf(buf, NVM_PROBLEM_SIZE, "directory extent %u is missing", index);
	else
		snprintf(buf, NVM_PROBLEM_SIZE, "extent %u of storage %u (database %u, relation file " UINT64_FORMAT ") is missing",
				 index, id, entry->database, (uint64) entry->relnumber);
	return buf;
}

/* ---- directory ---- */

/*
 * Checksum over what never changes in an entry.
 */
uint32
nvm_dir_entry_crc(uint32 id, const NvmDirEntry *entry)
{
	NvmDirEntry copy = *entry;

	copy.begin = 0;
	copy.end = 0;
	copy.relaxed = 0;
	copy.all_visible = 0;
	copy.uses = 0;
	copy.counted = 0;
	copy.clean = 0;
	copy.clean_check = 0;
	copy.crc = 0;
	return nvm_pool_check(&copy, sizeof(copy), NVM_PLACE_DIR(id), 32);
}

uint64
nvm_dir_counted(uint32 id, uint32 nextents)
{
	if (nextents == 0)
		return 0;
	return nextents |
		(uint64) nvm_pool_check(&nextents, sizeof(nextents), NVM_PLACE_DIR(id), 32) << 32;
}

uint32
nvm_dir_clean_check(uint32 id, uint64 run)
{
	return run == 0 ? 0 : nvm_pool_check(&run, sizeof(run), NVM_PLACE_DIR(id), 32);
}

uint64
nvm_dir_clean_run(uint32 id, const NvmDirEntry *entry)
{
	uint64		run = entry->clean;

	return NVM_CLEAN_FIRST(run) < NVM_CLEAN_END(run) &&
		entry->clean_check == nvm_dir_clean_check(id, run) ? run : 0;
}

const char *
nvm_dir_entry_problem(uint32 id, const NvmDirEntry *entry)
{
	uint64		counted;

	/* the checksum covers the reserved bytes too */
	if (entry->crc != nvm_dir_entry_crc(id, entry))
		return "wrong checksum";
	for (int i = 0; i < (int) sizeof(entry->reserved); i++)
	{
		if (entry->reserved[i] != 0)
			return "reserved bytes are set";
	}
	/* another process may be raising it */
	counted = __atomic_load_n(&entry->counted, __ATOMIC_RELAXED);
	if (counted != nvm_dir_counted(id, NVM_DIR_COUNT(counted)))
		return "wrong checksum of the number of extents";
	if (entry->kind != NVM_DIR_KIND_TABLE && entry->kind != NVM_DIR_KIND_INDEX)
		return "unknown kind of storage";
	if (NVM_STAMP_SLOT(entry->begin) >= NVM_MAX_SLOTS ||
		(entry->end != 0 && NVM_STAMP_SLOT(entry->end) >= NVM_MAX_SLOTS))
		return "impossible stamp";
	return NULL;
}

bool
nvm_block_was_used(uint32 kind, const char *unit)
{
	uint32		magic;

	/*
	 * Damage must not make a block look like one that was never used: all
	 * rows behind it would disappear.  Units are zero when an extent is
	 * allocated. The magic number is stored last of a header, and is durable
	 * before the first row.
	 */
	memcpy(&magic, unit, sizeof(magic));
	if (magic != 0)
		return true;
	if (kind == NVM_DIR_KIND_TABLE)
	{
		const NvmBlock *block = (const NvmBlock *) unit;

		for (size_t i = 0; i < lengthof(block->starts); i++)
			if (block->starts[i] != 0)
				return true;
	}
	return false;
}
