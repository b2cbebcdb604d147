/*-------------------------------------------------------------------------
 *
 * poolcheck_scan.c
 *	  Extent map, directory, redo lanes, commit slots: what the server scans
 *	  when it opens a pool, and what nvm.check_pool() looks at.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "poolcheck.h"

/*
 * Memory of n elements, zeroed; as a rule much more than is ever touched.
 */
static void *
sparse_array(size_t n, size_t size)
{
	void	   *result = calloc(n, size);

	if (result == NULL)
		pg_fatal("out of memory");
	return result;
}

/* ---- extents ---- */

static void
found_twice(const char *place, uint64 word, uint32 other, uint64 unit)
{
	char		buf[NVM_PROBLEM_SIZE];

	found(place, "%s", nvm_extent_twice(buf, word, other, unit));
}

/*
 * An extent of a storage's blocks.
 */
static void
take_storage_extent(PoolStorage *storage, uint64 unit, uint64 word, const char *place)
{
	uint32		index = NVM_EXT_ARG(word);

	if (index >= storage->room)
	{
		uint32		room = Max(64, Max(index + 1, 2 * storage->room));
		uint32	   *unit_of = realloc(storage->unit, (size_t) room * sizeof(uint32));

		if (unit_of == NULL)
			pg_fatal("out of memory");
		memset(unit_of + storage->room, 0, (size_t) (room - storage->room) * sizeof(uint32));
		storage->unit = unit_of;
		storage->room = room;
	}
	if (storage->unit[index] != 0)
	{
		found_twice(place, word, storage->unit[index], unit);
		return;
	}
	storage->unit[index] = (uint32) unit;
	storage->nextents++;
}

static void
take_extent(void *arg, uint64 unit, uint64 word, const char *place)
{
	Pool	   *pool = (Pool *) arg;
	uint32		owner = NVM_EXT_OWNER(word);

	switch (NVM_EXT_KIND(word))
	{
		case NVM_EXT_DIR:
			if (pool->dir_units[NVM_EXT_ARG(word)] != 0)
				found_twice(place, word, pool->dir_units[NVM_EXT_ARG(word)], unit);
			else
			{
				pool->dir_units[NVM_EXT_ARG(word)] = (uint32) unit;
				pool->ndir_extents++;
			}
			break;
		case NVM_EXT_REDO:
			if (pool->redo_unit != 0)
				found_twice(place, word, pool->redo_unit, unit);
			else
				pool->redo_unit = (uint32) unit;
			break;
		case NVM_EXT_TABLE:
			take_storage_extent(&pool->storage[owner], unit, word, place);
			break;
		default:
			break;
	}
}

/*
 * Does the owner of an extent exist?  Words were checked before.
 */
static void
check_owner(void *arg, uint64 unit, uint64 word, const char *place)
{
	Pool	   *pool = (Pool *) arg;
	uint32		owner = NVM_EXT_OWNER(word);
	char		unit_place[32];

	if (!nvm_extent_of_storage(word) || pool->storage[owner].exists)
		return;
	found(place, "owner of the extent does not exist");
	snprintf(unit_place, sizeof(unit_place), "unit " UINT64_FORMAT, unit);
	found(unit_place, "extent belongs to storage %u, which does not exist", owner);
}

static void
already_emitted(void *arg, const char *place, const char *problem)
{
}

/* ---- directory ---- */

NvmDirEntry *
pool_dir_entry(const Pool *pool, uint32 id)
{
	return (NvmDirEntry *) (pool->image.base +
							(uint64) pool->dir_units[id / NVM_DIRS_PER_EXTENT] * NVM_UNIT_SIZE) +
		id % NVM_DIRS_PER_EXTENT;
}

static void
scan_entry(Pool *pool, uint32 id)
{
	NvmDirEntry *entry = pool_dir_entry(pool, id);
	PoolStorage *storage = &pool->storage[id];
	const char *problem;
	char		place[64];
	char		buf[NVM_PROBLEM_SIZE];

	if (entry->begin == 0)
		return;
	problem = nvm_dir_entry_problem(id, entry);
	if (problem != NULL)
	{
		snprintf(place, sizeof(place), "directory entry %u", id);
		found(place, "%s", problem);

		/*
		 * its extents have an owner all the same; what they hold is not
		 * looked at
		 */
		storage->exists = true;
		return;
	}
	storage->exists = true;
	pool->last_storage = id;
	if (entry->kind == NVM_DIR_KIND_TABLE)
		pool->ntables++;
	else
		pool->nindexes++;

	/*
	 * as many as there are must be the first ones, and those that are counted
	 * among them
	 */
	for (uint32 i = 0; i < Max(storage->nextents, nvm_dir_needs_extents(entry)); i++)
	{
		if (i < storage->room && storage->unit[i] != 0)
			continue;
		found("extent map", "%s", nvm_extent_missing(buf, i, id, entry));
		storage->nextents = i;
		break;
	}
}

static void
scan_directory(Pool *pool)
{
	char		buf[NVM_PROBLEM_SIZE];

	for (uint32 i = 0; i < pool->ndir_extents; i++)
	{
		if (pool->dir_units[i] == 0)
		{
			found("extent map", "%s", nvm_extent_missing(buf, i, 0, NULL));
			pool->ndir_extents = i;
			break;
		}
		for (uint32 j = i == 0 ? 1 : 0; j < NVM_DIRS_PER_EXTENT; j++)
			scan_entry(pool, i * NVM_DIRS_PER_EXTENT + j);
	}
}

/* ---- redo lanes ---- */

static bool
storage_exists(void *arg, uint32 owner)
{
	return ((Pool *) arg)->storage[owner].exists;
}

/*
 * What the next start does before anybody reads: apply the lanes that count, to
 * our private copy of the pages.
 */
static void
scan_lanes(Pool *pool)
{
	if (pool->redo_unit == 0)
		return;
	for (int n = 0; n < NVM_REDO_LANES; n++)
	{
		uint64		unit = nvm_redo_lane_unit(pool->redo_unit, n);
		NvmRedoLane *lane = (NvmRedoLane *) (pool->image.base + unit * NVM_UNIT_SIZE);
		const char *data = (const char *) (lane + 1);
		const char *problem;
		char		place[32];

		if (lane->word == 0)
			continue;
		snprintf(place, sizeof(place), "redo lane %d", n);
		problem = nvm_redo_lane_problem(&pool->image, unit, storage_exists, pool);
		if (problem != NULL)
		{
			found(place, "%s", problem);
			continue;
		}
		will_be_repaired(place, "a change of structure was interrupted");
		for (uint32 i = 0; i < lane->npieces; i++)
		{
			NvmRedoPiece *piece = &lane->piece[i];

			pool_make_writable(pool, piece->place, piece->length, true);
			memcpy(pool->image.base + piece->place, data, piece->length);
			pool_make_writable(pool, piece->place, piece->length, false);
			data += NVM_REDO_SPACE(piece->length);
		}
	}
}

/* ---- commit slots ---- */

/*
 * What the next start makes of a slot: wbl_recovery.c.
 */
static void
take_slot(Pool *pool, uint32 n, const NvmSlotCopy *copy, const char *place)
{
	PoolSlot   *slot = &pool->slot[n];
	uint64		counter = NVM_WORD_COUNTER(copy->word);
	uint32		locks = (uint32) NVM_FIELD_VALUE(copy->locks);
	const char *problem;

	slot->last = counter;
	for (int i = 0; i < NVM_SLOT_GAPS; i++)
	{
		slot->gap[i] = NVM_FIELD_VALUE(copy->gap[i]);
		pool->gaps |= slot->gap[i] != 0;
	}
	switch (NVM_WORD_STATE(copy->word))
	{
		case NVM_SLOT_DECIDED:
			slot->last = slot->loser = counter + 1;
			pool->gaps = true;
			break;
		case NVM_SLOT_PREPARED:
			/* one fence is for the word and for the data, nvm_commit_prepare */
			slot->torn = !pool->clean;
			pool->gaps |= slot->torn;
			/* FALLTHROUGH */
		case NVM_SLOT_TWOPHASE:
			slot->doubt = counter;
			problem = nvm_image_locks_problem(&pool->image, n, counter, locks);
			if (problem != NULL)
				found(place, "the row locks of its transaction: %s", problem);
			break;
		default:
			break;
	}
}

static void
scan_slots(Pool *pool)
{
	uint32		hole;
	char		place[32];

	if (!nvm_slots_prefix(&pool->image, &pool->nslots, &hole))
	{
		snprintf(place, sizeof(place), "commit slot %u", hole);
		found(place, "it is blank, but slot %u is in use", pool->nslots);
		/* the blank ones before it are as good as unreadable */
		for (uint32 n = hole; n < pool->nslots; n++)
			pool->slot[n].unknown = true;
		pool->nslots++;
	}
	for (uint32 n = 0; n < NVM_MAX_SLOTS; n++)
	{
		NvmSlot    *s = nvm_image_slot(&pool->image, n);
		NvmSlotCopy copy;
		const char *problem[2];

		snprintf(place, sizeof(place), "commit slot %u", n);
		if (n >= pool->nslots)
		{
			problem[0] = nvm_slot_blank_problem(s);
			if (problem[0] != NULL)
				found(place, "%s", problem[0]);
			continue;
		}
		if (pool->slot[n].unknown)
			continue;
		if (!nvm_slot_join(n, s, &copy, problem))
		{
			found(place, "both copies are damaged: %s; %s", problem[0], problem[1]);
			pool->slot[n].unknown = true;
			pool->gaps = true;
			continue;
		}

		/*
		 * a crash leaves whole fields, so this is damage, though one copy is
		 * enough
		 */
		for (int i = 0; i < 2; i++)
		{
			if (problem[i] != NULL)
				found(place, "copy %d: %s", i, problem[i]);
		}
		if (problem[0] == NULL && problem[1] == NULL &&
			memcmp(&s->copy[0], &s->copy[1], sizeof(NvmSlotCopy)) != 0)
		{
			if (pool->clean)
				found(place, "its two copies differ");
			else
				will_be_repaired(place, "its two copies differ");
		}
		take_slot(pool, n, &copy, place);
	}
}

/*
 * A stamp whose transaction never happened; or nobody can tell.  Of one that pg_xact
 * decides any line may have been lost, unless it was committed, which is not known here.
 */
bool
pool_stamp_in_gap(const Pool *pool, uint64 stamp)
{
	uint32		n = NVM_STAMP_SLOT(stamp);
	uint64		counter = NVM_STAMP_COUNTER(stamp);
	const PoolSlot *slot;

	if (!pool->gaps || n >= pool->nslots || counter == 0)
		return false;
	slot = &pool->slot[n];
	if (slot->unknown || slot->loser == counter || (slot->torn && slot->doubt == counter))
		return true;
	for (int i = 0; i < NVM_SLOT_GAPS; i++)
	{
		if (slot->gap[i] == counter)
			return true;
	}
	return false;
}

bool
pool_stamp_in_doubt(const Pool *pool, uint64 stamp)
{
	uint32		n = NVM_STAMP_SLOT(stamp);

	return n < pool->nslots && stamp != NVM_STAMP_NONE &&
		pool->slot[n].doubt == NVM_STAMP_COUNTER(stamp);
}

/* ---- all of it ---- */

void
pool_scan(Pool *pool, const NvmPoolHeader *header, char *base)
{
	memset(pool, 0, sizeof(*pool));
	pool->image.base = base;
	pool->image.nchunks = header->nchunks;
	pool->header = *header;
	pool->clean = header->clean != 0;
	if (!pool->clean)
		nvm_header_note_crashed(&pool->header, header->incarnation);
	pool->incarnation = nvm_incarnation_after(header->incarnation);
	if (pool->incarnation >> 16 == header->marks_era)
		pool->marks = (uint16) pool->incarnation;
	pool->storage = sparse_array(NVM_MAX_DIRS, sizeof(PoolStorage));
	pool->slot = sparse_array(NVM_MAX_SLOTS, sizeof(PoolSlot));

	nvm_verify_reserved(&pool->image, found_emit, NULL);
	for (uint64 chunk = 0; chunk < header->nchunks; chunk++)
		pool->used_units += nvm_verify_chunk(&pool->image, chunk, take_extent, found_emit, pool);
	scan_directory(pool);
	for (uint64 chunk = 0; chunk < header->nchunks; chunk++)
		(void) nvm_verify_chunk(&pool->image, chunk, check_owner, already_emitted, pool);
	scan_lanes(pool);
	scan_slots(pool);
}
