/*-------------------------------------------------------------------------
 *
 * pool_dir.c
 *	  The directory: an entry for each storage, and its run-time state.
 *
 * Entries lie in extents of 512, which are never given back.  An entry is one
 * cache line whose begin stamp is stored last, so it is there as a whole or
 * not at all.  In DRAM a hash table (heads in nvm_dir_buckets, links in
 * NvmRelState.dir_next) leads from the key to the entries, newest first.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "media/media_index.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/pool_impl.h"
#include "storage/block.h"
#include "verify/nvm_verify.h"

#define RESTORE_HINT \
	"Restore the pool and the data directory together from a backup taken while the server was stopped."

/*
 * Address of entry id, which must be one that was handed out.
 */
NvmDirEntry *
nvm_dir_entry(uint32 id)
{
	Assert(id > 0 && id < NVM_MAX_DIRS);
	return (NvmDirEntry *) nvm_unit_address(nvm_dir_units[id / NVM_DIRS_PER_EXTENT]) +
		id % NVM_DIRS_PER_EXTENT;
}

/* ---- hash table; callers hold dir_lock ---- */

static uint32 *
dir_bucket(Oid database, Oid tablespace, uint64 relnumber)
{
	uint32		hash = murmurhash32(database ^ murmurhash32(tablespace ^
															murmurhash32((uint32) relnumber)));

	return &nvm_dir_buckets[hash % NVM_DIR_BUCKETS];
}

static uint32 *
entry_bucket(uint32 id)
{
	NvmDirEntry *entry = nvm_dir_entry(id);

	return dir_bucket(entry->database, entry->tablespace, entry->relnumber);
}

void
nvm_dir_hash_insert(uint32 id)
{
	uint32	   *head = entry_bucket(id);

	nvm_relstates[id].dir_next = *head;
	*head = id;
}

void
nvm_dir_hash_remove(uint32 id)
{
	uint32	   *link = entry_bucket(id);

	while (*link != 0 && *link != id)
		link = &nvm_relstates[*link].dir_next;
	if (*link == id)
		*link = nvm_relstates[id].dir_next;
}

uint32
nvm_dir_lookup(const NvmStorageKey *key)
{
	uint32		found = 0;
	uint64		newest = 0;

	LWLockAcquire(NvmPool->dir_lock, LW_SHARED);
	for (uint32 id = *dir_bucket(key->database, key->tablespace, key->relnumber);
		 id != 0; id = nvm_relstates[id].dir_next)
	{
		NvmDirEntry *entry = nvm_dir_entry(id);

		if (entry->database == key->database && entry->tablespace == key->tablespace &&
			entry->relnumber == key->relnumber &&
			nvm_relstates[id].dir_state == NVM_DIRSTATE_LIVE &&
			entry->creation_id >= newest)
		{
			found = id;
			newest = entry->creation_id;
		}
	}
	LWLockRelease(NvmPool->dir_lock);
	return found;
}

/* ---- creation ---- */

/*
 * Is the id in use?  Also one that nobody has, but under which damage has left
 * extents: with others beside them the next open would find some twice.
 */
static bool
id_is_taken(uint32 id)
{
	NvmRelState *rel = &nvm_relstates[id];

	return rel->dir != 0 || pg_atomic_read_u32(&rel->nextents) != 0 ||
		pg_atomic_read_u32(&rel->nlarge) != 0;
}

static void
no_dram(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("out of memory in the DRAM region of the NVM pool")));
}

/*
 * A free id for an entry of this key, making a directory extent if need be.
 * May ERROR, before anything is done.  Caller holds dir_lock exclusively.
 */
static uint32
find_free_id(const NvmStorageKey *key)
{
	uint32		id = Max(nvm_dram->dir_search, 1);

	for (; id < NVM_MAX_DIRS; id++)
	{
		if (id > NvmPool->ndirs &&
			!nvm_dram_reserve(&nvm_relstates[id], sizeof(NvmRelState)))
			no_dram();
		if (!id_is_taken(id))
			break;
	}
	if (id >= NVM_MAX_DIRS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the NVM pool has no room for another table or index"),
				 errdetail("It can hold %d of them.", NVM_MAX_DIRS - 1),
				 errhint("Drop tables that are not needed.")));

	/* entry 0 is not used, so the first extent has one less */
	while (id / NVM_DIRS_PER_EXTENT >= nvm_dram->ndir_extents)
	{
		uint32		index = nvm_dram->ndir_extents;

		nvm_dir_units[index] = (uint32) nvm_extent_alloc(&nvm_regions[NVM_REGION_POOL],
														 NVM_EXT_DIR, 0, index,
														 NVM_DIR_EXTENT_UNITS);
		nvm_dram->ndir_extents++;
	}
	if (!nvm_dram_reserve(&nvm_relstates[id], sizeof(NvmRelState)) ||
		!nvm_dram_reserve(dir_bucket(key->database, key->tablespace, key->relnumber),
						  sizeof(uint32)))
		no_dram();
	nvm_dram->dir_search = id;
	return id;
}

/*
 * See nvm_pool.h.  Takes dir_lock, then extent_lock.
 */
uint32
nvm_dir_create(const NvmStorageKey *key, const NvmStorageForm *form, uint64 stamp)
{
	NvmDirEntry *entry;
	NvmDirEntry new;
	NvmRelState *rel;
	uint32		id;

	Assert(stamp != 0);
	LWLockAcquire(NvmPool->dir_lock, LW_EXCLUSIVE);
	id = find_free_id(key);
	entry = nvm_dir_entry(id);
	rel = &nvm_relstates[id];

	memset(&new, 0, sizeof(new));
	new.database = key->database;
	new.tablespace = key->tablespace;
	new.relnumber = key->relnumber;
	new.creation_id = nvm_dram->next_creation++;
	new.kind = form->kind;
	new.flags = form->flags;
	new.temp_owner = form->temp_owner;
	new.relation = form->relation;
	new.crc = nvm_dir_entry_crc(id, &new);

	/* before begin, by which those know it who do not ask for rel->dir */
	memset(rel, 0, sizeof(*rel));
	pg_atomic_init_u32(&rel->opened, 1);

	/* begin last; from there on the caller's transaction must know of it */
	START_CRIT_SECTION();
	memcpy(entry, &new, sizeof(new));
	nvm_flush(entry, sizeof(*entry));
	nvm_drain("pool-dir-fields");
	nvm_store(&entry->begin, stamp);
	nvm_flush(entry, sizeof(*entry));
	nvm_drain("pool-dir-begin");

	rel->dir = id;
	nvm_dir_hash_insert(id);
	NvmPool->ndirs = Max(NvmPool->ndirs, id);
	nvm_dram->dir_search = id + 1;
	END_CRIT_SECTION();
	LWLockRelease(NvmPool->dir_lock);
	return id;
}

/* ---- end, walk, forget ---- */

void
nvm_dir_set_end(uint32 id, uint64 stamp)
{
	NvmDirEntry *entry = nvm_dir_entry(id);

	LWLockAcquire(NvmPool->dir_lock, LW_EXCLUSIVE);
	nvm_store(&entry->end, stamp);
	LWLockRelease(NvmPool->dir_lock);
	nvm_persist(&entry->end, sizeof(entry->end), "pool-dir-end");
}

/*
 * Take back an end stamp, if it is the one that is there.
 */
void
nvm_dir_clear_end(uint32 id, uint64 stamp)
{
	NvmDirEntry *entry = nvm_dir_entry(id);
	bool		mine;

	LWLockAcquire(NvmPool->dir_lock, LW_EXCLUSIVE);
	mine = entry->end == stamp;
	if (mine)
		nvm_store(&entry->end, 0);
	LWLockRelease(NvmPool->dir_lock);
	if (mine)
		nvm_persist(&entry->end, sizeof(entry->end), "pool-dir-unend");
}

void
nvm_dir_walk(NvmDirCallback fn, void *arg)
{
	for (uint32 id = 1; id <= *(volatile uint32 *) &NvmPool->ndirs; id++)
	{
		bool		in_use;

		LWLockAcquire(NvmPool->dir_lock, LW_SHARED);
		in_use = nvm_relstates[id].dir == id &&
			nvm_relstates[id].dir_state != NVM_DIRSTATE_RECLAIM;
		LWLockRelease(NvmPool->dir_lock);
		if (in_use)
			fn(id, nvm_dir_entry(id), arg);
	}
}

/*
 * Say of an index that the next start is to empty it, or not any more; flushed,
 * not fenced.  The caller sees to it that the storage stays what it is.
 */
void
nvm_dir_set_relaxed(uint32 id, bool relaxed)
{
	NvmDirEntry *entry = nvm_dir_entry(id);

	Assert(entry->kind == NVM_DIR_KIND_INDEX);
	nvm_store32(&entry->relaxed, relaxed ? 1 : 0);
	nvm_flush(&entry->relaxed, sizeof(entry->relaxed));
}

/* ---- how many extents there are at least ---- */

/* flags of storages whose extents a start may find gone */
#define NOT_COUNTED		(NVM_DIR_TEMP | NVM_DIR_REBUILT | NVM_DIR_VOLATILE)

/*
 * Entry id counts that many extents; flushed, not fenced.  What no start keeps
 * is not counted.  A caller that raises it holds the extend lock, and the
 * extents are durable and known in DRAM.  One that lowers it holds extent_lock,
 * so that a check does not see fewer extents than are counted.
 */
void
nvm_dir_count(uint32 id, uint32 nextents)
{
	NvmDirEntry *entry = nvm_dir_entry(id);

	if ((entry->flags & NOT_COUNTED) != 0)
		return;
	nvm_store(&entry->counted, nvm_dir_counted(id, nextents));
	nvm_flush(&entry->counted, sizeof(entry->counted));
}

/*
 * Count what the start has found: after a crash, which may have come between
 * an extent and its count, and in a pool of before there were counts. The
 * process that was to flush them is gone.  In the postmaster.
 */
void
nvm_dir_count_found(void)
{
	bool		any = false;

	for (uint32 id = 1; id <= NvmPool->ndirs; id++)
	{
		NvmRelState *rel = &nvm_relstates[id];
		uint32		nextents = pg_atomic_read_u32(&rel->nextents);

		if (rel->dir != id || NVM_DIR_COUNT(nvm_dir_entry(id)->counted) >= nextents ||
			(nvm_dir_entry(id)->flags & NOT_COUNTED) != 0)
			continue;
		nvm_dir_count(id, nextents);
		any = true;
	}
	if (any)
		nvm_drain("pool-open-counted");
}

/* ---- emptying and reclaiming ---- */

/* what row/ and btree/ registered, by kind */
static const NvmRelUser no_user = {0};
static const NvmRelUser *rel_users[NVM_DIR_KIND_INDEX + 1];

void
nvm_rel_register_user(uint32 kind, const NvmRelUser *user)
{
	Assert(kind > 0 && kind < lengthof(rel_users));
	rel_users[kind] = user;
}

const NvmRelUser *
nvm_rel_user(uint32 id)
{
	uint32		kind = nvm_dir_entry(id)->kind;

	if (kind >= lengthof(rel_users) || rel_users[kind] == NULL)
		return &no_user;
	return rel_users[kind];
}

static void
empty_large(uint64 unit, uint64 word, void *arg)
{
	nvm_large_free(unit * NVM_UNIT_SIZE);
}

/*
 * See nvm_pool.h.  Nobody else may use the storage.  From the first extent that
 * goes none is counted.  Table extents go from the last to the first, each
 * durably before the next: what a crash leaves is a shorter storage, never one
 * with a hole.
 */
void
nvm_dir_empty(uint32 id)
{
	NvmRelState *rel = &nvm_relstates[id];
	const NvmRelUser *user = nvm_rel_user(id);
	uint32		nextents = pg_atomic_read_u32(&rel->nextents);

	pg_atomic_write_u32(&rel->nblocks, 0);
	rel->nready = 0;
	if (user->emptied != NULL)
		user->emptied(rel);
	pg_write_barrier();
	if (pg_atomic_read_u32(&rel->nlarge) > 0)
		nvm_extents_walk(NVM_EXT_LARGE, id, empty_large, NULL);
	if (nvm_dir_entry(id)->counted != 0)
	{
		LWLockAcquire(NvmPool->extent_lock, LW_EXCLUSIVE);
		nvm_dir_count(id, 0);
		LWLockRelease(NvmPool->extent_lock);
		nvm_drain("pool-empty-uncounted");
	}
	while (nextents > 0)
	{
		uint32		index = --nextents;

		NVM_FAILPOINT("pool-empty-extent");
		pg_atomic_write_u32(&rel->nextents, index);
		nvm_extent_release(nvm_relmap_get(rel, index), nvm_extent_units(index),
						   "table extent");
	}
	for (int k = 0; k < NVM_ALLVISIBLE_SEGS; k++)
	{
		if (rel->allvisible[k] != NULL)
			memset(rel->allvisible[k], 0, NVM_ALLVISIBLE_SIZE(k));
	}
	pg_atomic_write_u32(&rel->opened, 1);
}

/*
 * See nvm_pool.h.
 */
void
nvm_dir_reclaim(uint32 id)
{
	NvmRelState *rel = &nvm_relstates[id];
	NvmDirEntry *entry;

	LWLockAcquire(NvmPool->dir_lock, LW_EXCLUSIVE);
	if (rel->dir != id || rel->dir_state == NVM_DIRSTATE_RECLAIM)
	{
		LWLockRelease(NvmPool->dir_lock);
		return;
	}
	rel->dir_state = NVM_DIRSTATE_RECLAIM;
	LWLockRelease(NvmPool->dir_lock);

	entry = nvm_dir_entry(id);
	nvm_dir_empty(id);

	/* an error must not leave it half reclaimed for the rest of this run */
	START_CRIT_SECTION();
	LWLockAcquire(NvmPool->extent_lock, LW_EXCLUSIVE);
	for (int k = 0; k < NVM_RELMAP_SEGS; k++)
	{
		if (rel->map[k] != NULL)
			nvm_dram_free_locked(rel->map[k], sizeof(uint32) * (Size) 64 << k);
	}
	if (nvm_rel_user(id)->forgotten != NULL)
		nvm_rel_user(id)->forgotten(rel);
	for (int k = 0; k < NVM_ALLVISIBLE_SEGS; k++)
	{
		if (rel->allvisible[k] != NULL)
			nvm_dram_free_locked(rel->allvisible[k], NVM_ALLVISIBLE_SIZE(k));
	}
	LWLockRelease(NvmPool->extent_lock);

	LWLockAcquire(NvmPool->dir_lock, LW_EXCLUSIVE);
	nvm_dir_hash_remove(id);
	nvm_store(&entry->begin, 0);
	nvm_flush(&entry->begin, sizeof(entry->begin));
	nvm_drain("pool-dir-free");
	memset(rel, 0, sizeof(*rel));
	nvm_dram->dir_search = Min(nvm_dram->dir_search, id);
	LWLockRelease(NvmPool->dir_lock);
	END_CRIT_SECTION();
}

/* ---- use of a storage ---- */

static bool
is_zero(const char *from, const char *to)
{
	return from == to || (*from == 0 && memcmp(from, from + 1, to - from - 1) == 0);
}

/*
 * Was the block made ready and never used?  All behind its header is zero then, so
 * that damage does not look like it.  Not in a table if the incarnation that
 * made it ready crashed: a cell may have been handed out, and of that nothing be
 * left but the entry of an index that has WAL.
 */
static bool
block_is_spare(uint32 kind, const char *unit)
{
	if (kind == NVM_DIR_KIND_TABLE)
	{
		const NvmBlock *block = (const NvmBlock *) unit;

		return block->magic == NVM_BLOCK_MAGIC && block->flags == 0 &&
			block->alloc_inc != 0 && !nvm_incarnation_crashed(block->alloc_inc) &&
			is_zero((const char *) block->retired, (const char *) block->used) &&
			block->used[0] == (1 << NVM_FIRST_CELL) - 1 &&
			is_zero((const char *) &block->used[1], unit + NVM_UNIT_SIZE);
	}
	else
	{
		const NvmIndexPage *page = (const NvmIndexPage *) unit;

		return page->magic == NVM_INDEX_MAGIC && page->safexid != 0 &&
			page->left == NVM_INDEX_NONE && page->right == NVM_INDEX_NONE &&
			page->level == 0 && page->flags == 0 && page->nbase == 0 &&
			is_zero(unit + NVM_INDEX_HEADER_SIZE, unit + NVM_UNIT_SIZE);
	}
}

/*
 * See nvm_pool.h.  Takes the relation's extend lock the first time.
 */
NvmRelState *
nvm_rel_open(uint32 dir)
{
	NvmRelState *rel = &nvm_relstates[dir];

	if (pg_atomic_read_u32(&rel->opened) != 0)
		return rel;

	LWLockAcquire(nvm_rel_extend_lock(rel), LW_EXCLUSIVE);
	if (pg_atomic_read_u32(&rel->opened) == 0)
	{
		uint32		nextents = pg_atomic_read_u32(&rel->nextents);
		uint64		nblocks = nvm_rel_units(rel);
		uint32		kind = nvm_dir_entry(dir)->kind;

		while (nextents > 0)
		{
			uint32		units = nvm_extent_units(nextents - 1);
			char	   *start = nvm_unit_address(nvm_relmap_get(rel, nextents - 1));
			uint32		n = units;

			while (n > 0)
			{
				const char *unit = start + (Size) (n - 1) * NVM_UNIT_SIZE;

				if (nvm_block_was_used(kind, unit) && !block_is_spare(kind, unit))
					break;
				n--;
			}
			nblocks -= units - n;
			if (n > 0)
				break;
			nextents--;
		}
		/* the last extent may go beyond the last block that there can be */
		nblocks = Min(nblocks, MaxBlockNumber);
		if (nblocks > 0 && nvm_rel_user(dir)->opened != NULL)
			nvm_rel_user(dir)->opened(rel, (uint32) nblocks);
		pg_atomic_write_u32(&rel->nblocks, (uint32) nblocks);
		pg_write_barrier();
		pg_atomic_write_u32(&rel->opened, 1);
	}
	LWLockRelease(nvm_rel_extend_lock(rel));
	return rel;
}

/* ---- start ---- */

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

/*
 * Is an extent of a storage in another region than the storage's own?
 */
static bool
is_in_other_region(const NvmRelState *rel, const NvmDirEntry *entry, uint32 nextents)
{
	for (uint32 i = 0; i < nextents; i++)
	{
		if (nvm_region_of_unit(nvm_relmap_get((NvmRelState *) rel, i)) != nvm_region_of_dir(entry))
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
	 * as many as there are must be the first ones, and those that are counted
	 * among them
	 */
	for (uint32 i = 0; i < Max(nextents, NVM_DIR_COUNT(entry->counted)); i++)
	{
		uint32		k = 31 - __builtin_clz(i / 64 + 1);

		if (rel->map[k] == NULL || nvm_relmap_get(rel, i) == 0)
			return nvm_refuse(ERRCODE_DATA_CORRUPTED, RESTORE_HINT,
							  "extent map of NVM pool \"%s\" is damaged: %s",
							  nvm_pool_path, nvm_extent_missing(buf, i, id, entry));
	}
	if (is_in_other_region(rel, entry, nextents))
		return nvm_refuse(ERRCODE_DATA_CORRUPTED, RESTORE_HINT,
						  "extent map of NVM pool \"%s\" is damaged: an extent of storage %u is in the wrong region",
						  nvm_pool_path, id);
	*owned += nextents + pg_atomic_read_u32(&rel->nlarge);
	rel->dir = id;
	nvm_dir_hash_insert(id);
	NvmPool->ndirs = id;
	nvm_dram->next_creation = Max(nvm_dram->next_creation, entry->creation_id + 1);
	return true;
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

			if (entry->begin != 0 && !scan_entry(id, entry, &owned))
				return false;
		}
	}

	if (nowned == owned)
		return true;

	/*
	 * No table misses them, so all tables stay usable; nor are they free, in
	 * case somebody wants to look.
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
 * Empty an index that is to be rebuilt from its table, and any storage that is to
 * be empty.
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
 * What no restart keeps: temporary tables, whose sessions are gone, and after
 * a crash the contents of UNLOGGED tables, as PostgreSQL empties their
 * indexes.  If it is doubtful whether PostgreSQL did that, their storage goes
 * too: rows without index entries would be a wrong answer, and so would index
 * entries that lead to other rows; without a storage each access says that the
 * rows are lost.  One that has none is left: nothing was in it since it was
 * made or emptied, and then so were the indexes.  An nvm_btree index is emptied:
 * its table is lost, and says so before, or empty.  Where not even that
 * holds, all of them go.  Indexes that are rebuilt from their tables are emptied at
 * each start.  Repeats itself if interrupted.  In the postmaster.
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
