/*-------------------------------------------------------------------------
 *
 * pool_check.c
 *	  Structural check of the pool, for nvm.check_pool().
 *
 * Looks at everything that an open looks at, and at the parts that an open
 * passes over: both copies of the header, the words inside extents, reserved
 * areas, free entries.  It also compares the media with DRAM.  Checks of the
 * media alone are verify/'s, which nvm_poolcheck has too.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pool/pool_impl.h"
#include "verify/nvm_verify.h"

#define PLACE_LEN		128

typedef struct CheckState
{
	NvmCheckEmit emit;
	void	   *arg;
} CheckState;

static void
check_header(CheckState *state)
{
	const NvmPoolHeader *copy[2];
	NvmImage	image = nvm_region_image(&nvm_regions[NVM_REGION_POOL]);

	LWLockAcquire(NvmPool->header_lock, LW_SHARED);
	for (int i = 0; i < 2; i++)
	{
		char		place[PLACE_LEN];
		const char *problem;

		copy[i] = NvmPoolPtr(NVM_HEADER_OFFSET(i));
		problem = nvm_header_problem(copy[i]);
		snprintf(place, sizeof(place), "header, copy %d", i);
		if (problem)
			state->emit(state->arg, place, problem);
		else if (copy[i]->nchunks != nvm_dram->header.nchunks ||
				 copy[i]->incarnation != nvm_dram->header.incarnation)
			state->emit(state->arg, place, "is not what the server wrote last");
	}
	LWLockRelease(NvmPool->header_lock);

	nvm_verify_reserved(&image, state->emit, state->arg);
}

/* the callback of nvm_verify_chunk has the same argument as emit() */
static void
check_emit(void *arg, const char *place, const char *problem)
{
	CheckState *state = (CheckState *) arg;

	state->emit(state->arg, place, problem);
}

/*
 * One extent: does its owner know it, are its units marked used?  dir_lock and
 * extent_lock are held.
 */
static void
check_extent(void *to, uint64 unit, uint64 word, const char *place)
{
	CheckState *state = (CheckState *) to;
	uint32		units = nvm_extent_word_units(word);
	uint32		owner = NVM_EXT_OWNER(word);
	uint32		arg = NVM_EXT_ARG(word);
	NvmRelState *rel = &nvm_relstates[owner];

	for (uint32 i = 0; i < units; i++)
	{
		if ((nvm_used_bits[(unit + i) / 64] >> ((unit + i) % 64) & 1) == 0)
		{
			state->emit(state->arg, place, "extent is marked free in memory");
			break;
		}
	}
	if (NVM_EXT_KIND(word) == NVM_EXT_DIR)
	{
		if (arg >= nvm_dram->ndir_extents || nvm_dir_units[arg] != unit)
			state->emit(state->arg, place, "directory extent is not known in memory");
		return;
	}
	if (NVM_EXT_KIND(word) == NVM_EXT_LOCKS)
		return;					/* nvm_wbl_verify knows their owners */
	if (NVM_EXT_KIND(word) == NVM_EXT_REDO)
	{
		uint32		known = pg_atomic_read_u32(&nvm_region_of_unit(unit)->redo_unit);

		/* the unit of a new directory extent is set last, under dir_lock */
		if (known != unit)
			state->emit(state->arg, place, "redo lanes are not known in memory");
		return;
	}
	if (rel->dir != owner)
		state->emit(state->arg, place, "owner of the extent does not exist");
	else if (NVM_EXT_KIND(word) == NVM_EXT_TABLE)
	{
		uint32		nextents = pg_atomic_read_u32(&rel->nextents);

		/* number nextents may be on its way */
		if (arg > nextents || (arg < nextents && nvm_relmap_get(rel, arg) != unit))
			state->emit(state->arg, place, "extent is not the one its owner uses");
	}
}

/*
 * Are there as many extents as the entry counts?  The count is raised last,
 * and lowered first, under extent_lock, which is held.
 */
static void
check_count(CheckState *state, uint32 id, const NvmDirEntry *entry)
{
	uint32		counted = nvm_dir_needs_extents(entry);
	uint32		nextents = pg_atomic_read_u32(&nvm_relstates[id].nextents);
	char		buf[NVM_PROBLEM_SIZE];

	if (nextents < counted)
		state->emit(state->arg, "extent map", nvm_extent_missing(buf, nextents, id, entry));
}

/*
 * All entries of the directory.  dir_lock and extent_lock are held.
 */
static void
check_directory(CheckState *state)
{
	for (uint32 id = 1; id < nvm_dram->ndir_extents * NVM_DIRS_PER_EXTENT; id++)
	{
		NvmDirEntry *entry = nvm_dir_entry(id);
		NvmRelState *rel = &nvm_relstates[id];
		char		place[PLACE_LEN];
		const char *problem;

		snprintf(place, sizeof(place), "directory entry %u", id);
		if (entry->begin == 0)
		{
			if (id <= NvmPool->ndirs && rel->dir != 0)
				state->emit(state->arg, place, "entry is free, but in use in memory");
			continue;
		}
		problem = nvm_dir_entry_problem(id, entry);
		if (problem)
			state->emit(state->arg, place, problem);
		if (id > NvmPool->ndirs || rel->dir != id)
			state->emit(state->arg, place, "entry is not known in memory");
		else if (problem == NULL)
			check_count(state, id, entry);
	}
}

/*
 * One region's extents, and the free-space map of it.  dir_lock and
 * extent_lock are held.
 */
static void
check_region(CheckState *state, const NvmRegion *region)
{
	NvmImage	image = nvm_region_image(region);
	uint64		units = region->nchunks * NVM_UNITS_PER_CHUNK;
	uint64		covered = 0;	/* units that belong to an extent, or are no
								 * extent's */
	uint64		used = 0;

	for (uint64 i = 0; i < image.nchunks; i++)
		covered += nvm_verify_chunk(&image, image.first_chunk + i, check_extent,
									check_emit, state);
	for (uint64 i = 0; i < units / 64; i++)
		used += __builtin_popcountll(nvm_used_bits[region->first_unit / 64 + i]);
	if (used != covered + region->reserved_units)
		state->emit(state->arg, "free-space map", "units are marked used that belong to no extent");
	if (region->free_units + used != units)
		state->emit(state->arg, "free-space map", "the count of free units is wrong");
}

/*
 * See nvm_pool.h.  Takes header_lock, then dir_lock and extent_lock, all
 * shared; nothing can be created, grown or dropped meanwhile.  Findings are
 * emitted under these locks: emit() must not use nvm tables.
 */
void
nvm_pool_verify(NvmCheckEmit emit, void *arg)
{
	CheckState	state = {.emit = emit,.arg = arg};

	nvm_pool_require();
	nvm_redo_verify(emit, arg);
	check_header(&state);

	LWLockAcquire(NvmPool->dir_lock, LW_SHARED);
	LWLockAcquire(NvmPool->extent_lock, LW_SHARED);
	check_directory(&state);
	for (int i = 0; i < NVM_NUM_REGIONS; i++)
		check_region(&state, &nvm_regions[i]);
	LWLockRelease(NvmPool->extent_lock);
	LWLockRelease(NvmPool->dir_lock);
}
