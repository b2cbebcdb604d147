/*-------------------------------------------------------------------------
 *
 * pool_dir_start.c
 *	  At a start: reads the directory, and empties what no restart keeps.
 *
 * nvm_dir_scan checks each entry and takes it into DRAM, before anything in the
 * pool is changed.  nvm_dir_reset_after_start comes later, when the pool is open.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pmem/nvm_pmem.h"
#include "pool/pool_impl.h"
#include "verify/nvm_verify.h"

#define RESTORE_HINT \
	"Restore the pool and the data directory together from a backup taken while the server was stopped."

typedef struct OrphanSearch
{
	uint64		unit;
	uint32		owner;
} OrphanSearch;

static void
find_orphan(uint64 unit, uint64 word, void *arg)
{
	OrphanSearch *search = arg;

	if (search->unit == 0 && nvm_extent_of_storage(word) &&
		nvm_relstates[NVM_EXT_OWNER(word)].dir == 0)
	{
		search->unit = unit;
		search->owner = NVM_EXT_OWNER(word);
	}
}

/* no pool has had as many storages */
#define NVM_CREATION_LIMIT		(UINT64CONST(1) << 62)

/*
 * Is an extent of a storage in another region than the storage's own?
 */
static bool
is_in_other_region(const NvmRelState *rel, uint32 nextents)
{
	for (uint32 i = 0; i < nextents; i++)
	{
		if (nvm_region_of_unit(nvm_relmap_get((NvmRelState *) rel, i)) != nvm_rel_region(rel))
			return true;
	}
	return false;
}

/*
 * Take entry id, which is in use, into DRAM.  *owned counts its extents.
 */
static bool
scan_entry(uint32 id, NvmDirEntry *entry, uint64 *owned)
{
	NvmRelState *rel = &nvm_relstates[id];
	const char *problem = nvm_dir_entry_problem(id, entry);
	uint32		nextents = pg_atomic_read_u32(&rel->nextents);
	char		buf[NVM_PROBLEM_SIZE];

	if (problem)
		return nvm_refuse(ERRCODE_DATA_CORRUPTED, RESTORE_HINT,
						  "directory entry %u of NVM pool \"%s\" is damaged: %s",
						  id, nvm_pool_path, problem);

	/*
	 * the extents that there are must be the first ones, and all that are
	 * counted must be there
	 */
	for (uint32 i = 0; i < Max(nextents, nvm_dir_needs_extents(entry)); i++)
	{
		uint32		k = 31 - __builtin_clz(i / 64 + 1);

		if (rel->map[k] == NULL || nvm_relmap_get(rel, i) == 0)
			return nvm_refuse(ERRCODE_DATA_CORRUPTED, RESTORE_HINT,
							  "extent map of NVM pool \"%s\" is damaged: %s",
							  nvm_pool_path, nvm_extent_missing(buf, i, id, entry));
	}
	rel->region = nvm_region_of_dir(entry);
	if (is_in_other_region(rel, nextents))
		return nvm_refuse(ERRCODE_DATA_CORRUPTED, RESTORE_HINT,
						  "extent map of NVM pool \"%s\" is damaged: an extent of storage %u is in the wrong region",
						  nvm_pool_path, id);
	*owned += nextents + pg_atomic_read_u32(&rel->nlarge);
	rel->dir = id;
	nvm_clean_found(rel);
	nvm_dir_hash_insert(id);
	NvmPool->ndirs = id;
	return true;
}

/*
 * No creation id recurs.  A free entry keeps that of its last use, which may be
 * the newest of all.  It is a word, so no crash tears it; a value that damage has
 * made is left out, since the ids must not run out.
 */
static void
note_creation(const NvmDirEntry *entry)
{
	if (entry->creation_id < NVM_CREATION_LIMIT)
		nvm_dram->next_creation = Max(nvm_dram->next_creation, entry->creation_id + 1);
}

/*
 * Read the directory; nvm_extent_scan has found its extents and the
 * `nowned` extents of storages.  Returns false after refusing the pool.
 */
bool
nvm_dir_scan(uint64 nowned)
{
	OrphanSearch orphan = {0, 0};
	uint64		owned = 0;
	char		buf[NVM_PROBLEM_SIZE];

	nvm_dram->next_creation = 1;
	nvm_dram->dir_search = 1;
	for (uint32 i = 0; i < nvm_dram->ndir_extents; i++)
	{
		if (nvm_dir_units[i] == 0)
			return nvm_refuse(ERRCODE_DATA_CORRUPTED, RESTORE_HINT,
							  "extent map of NVM pool \"%s\" is damaged: %s",
							  nvm_pool_path, nvm_extent_missing(buf, i, 0, NULL));
		for (uint32 j = i == 0 ? 1 : 0; j < NVM_DIRS_PER_EXTENT; j++)
		{
			uint32		id = i * NVM_DIRS_PER_EXTENT + j;
			NvmDirEntry *entry = nvm_dir_entry(id);

			note_creation(entry);
			if (entry->begin != 0 && !scan_entry(id, entry, &owned))
				return false;
		}
	}

	if (nowned == owned)
		return true;

	/*
	 * No table misses these extents, so all tables stay usable.  They are not
	 * freed, in case somebody wants to look.
	 */
	nvm_extents_walk(0, 0, find_orphan, &orphan);
	ereport(WARNING,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("an extent of NVM pool \"%s\" at chunk %llu, unit %llu belongs to storage %u, which does not exist",
					nvm_pool_path,
					(unsigned long long) (orphan.unit / NVM_UNITS_PER_CHUNK),
					(unsigned long long) (orphan.unit % NVM_UNITS_PER_CHUNK), orphan.owner),
			 errdetail("%llu extents are owned, %llu of them by storages that exist.",
					   (unsigned long long) nowned, (unsigned long long) owned),
			 errhint("nvm.check_pool() lists them. Their space is not used until the pool is made anew.")));
	return true;
}

/*
 * Empty an index that has to be rebuilt from its table, and with `always` any
 * storage.
 */
static void
empty_after_start(uint32 id, bool always)
{
	NvmDirEntry *entry = nvm_dir_entry(id);
	bool		relaxed = NvmDirIsRelaxed(entry);

	if ((entry->flags & NVM_DIR_REBUILT) != 0 || relaxed)
	{
		if (nvm_rel_user(id)->lost_by_start != NULL)
			nvm_rel_user(id)->lost_by_start(&nvm_relstates[id], relaxed);
	}
	else if (!always)
		return;
	nvm_dir_empty(id);
}

/*
 * Empty or reclaim what no restart keeps.  Temporary tables go, since their
 * sessions are gone.  After a crash the contents of UNLOGGED tables go, as
 * PostgreSQL empties their indexes.  If it is doubtful whether PostgreSQL did
 * that, their storages go too: rows without index entries would be a wrong
 * answer, and so would index entries that lead to other rows.  Without a
 * storage each access says that the rows are lost.  Two kinds are not
 * reclaimed in that case.  A storage that has no extent is left: nothing was
 * in it since it was made or emptied, and then the indexes were empty, too.
 * An index is emptied: its table is lost, which an access finds out
 * first, or empty.  Where not even that holds (NVM_DIR_RESET_ALL), all of them
 * go.  Indexes that are rebuilt from their tables are emptied at each start.
 * Repeats itself if interrupted.  In the postmaster.
 */
void
nvm_dir_reset_after_start(NvmDirReset reset)
{
	for (uint32 id = 1; id <= NvmPool->ndirs; id++)
	{
		uint32		flags;
		NvmDirReset what = NVM_DIR_RESET_NONE;

		if (nvm_relstates[id].dir != id)
			continue;
		flags = nvm_dir_entry(id)->flags;
		if (flags & NVM_DIR_UNLOGGED)
			what = reset;
		if (what == NVM_DIR_RESET_DOUBTFUL &&
			(nvm_dir_entry(id)->kind == NVM_DIR_KIND_INDEX ||
			 pg_atomic_read_u32(&nvm_relstates[id].nextents) == 0))
			what = NVM_DIR_RESET_EMPTY;
		if ((flags & NVM_DIR_TEMP) || what > NVM_DIR_RESET_EMPTY)
			nvm_dir_reclaim(id);
		else
			empty_after_start(id, what == NVM_DIR_RESET_EMPTY);
	}
}

/*
 * See nvm_pool.h.  Repeats itself if interrupted.
 */
uint32
nvm_dir_reclaim_logged(void)
{
	uint32		ntables = 0;

	for (uint32 id = 1; id <= NvmPool->ndirs; id++)
	{
		if (nvm_relstates[id].dir != id || (nvm_dir_entry(id)->flags & NVM_DIR_LOGGED) == 0)
			continue;
		if (nvm_dir_entry(id)->kind == NVM_DIR_KIND_TABLE)
			ntables++;
		NVM_FAILPOINT("log-reset-reclaim");
		nvm_dir_reclaim(id);
	}
	return ntables;
}
