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
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/pool_impl.h"
#include "storage/block.h"
#include "verify/nvm_verify.h"

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
	if ((nvm_dir_entry(id)->flags & NVM_DIR_BTREE) != 0)
		NvmPool->has_btree = true;
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
 * Is the id in use?  An id that nobody has counts as in use, too, if damage
 * has left extents under it: with others beside them the next open would find
 * some twice.  Caller holds dir_lock.
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
 * See nvm_pool.h.
 */
uint64
nvm_dir_next_creation(void)
{
	uint64		next;

	LWLockAcquire(NvmPool->dir_lock, LW_SHARED);
	next = nvm_dram->next_creation;
	LWLockRelease(NvmPool->dir_lock);
	return next;
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

	/* before begin: some processes look at begin and not at rel->dir */
	memset(rel, 0, sizeof(*rel));
	pg_atomic_init_u32(&rel->opened, 1);
	rel->region = nvm_region_of_dir(&new);

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
 * Note of an index that the next start has to empty it, or not any more;
 * flushed, not fenced.  The caller sees to it that nobody frees the storage
 * meanwhile.
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

/* the number of blocks is raised by at most this part of it and so many more */
#define RAISE_PART		32
#define RAISE_LEAST		32

/* flags of storages whose extents a start may find gone */
#define NOT_COUNTED		(NVM_DIR_TEMP | NVM_DIR_REBUILT | NVM_DIR_VOLATILE)

static void
store_volatile_count(uint32 id, NvmDirEntry *entry, uint32 nextents)
{
	nvm_store(&entry->counted, nvm_dir_counted(id, nextents));
	nvm_flush(&entry->counted, sizeof(entry->counted));
	nvm_drain("pool-count-volatile");
}

/*
 * A table of the volatile region with an index that lies in files counts the extents that it
 * has ever had, from its first such index on (nvm_dir_begin_count).  They are gone after a
 * loss of the region.  But entries of such indexes may lead to blocks in all of them, so
 * no row is put there before VACUUM.  The count is durable before there is such an entry.
 * VACUUM lowers it.
 */
static void
raise_volatile_count(uint32 id, NvmDirEntry *entry, uint32 nextents)
{
	uint32		counted = NVM_DIR_COUNT(entry->counted);

	if (entry->kind != NVM_DIR_KIND_TABLE || counted == 0 || nextents <= counted)
		return;
	store_volatile_count(id, entry, nextents);
}

/*
 * An index of the volatile region counts the extents that it has had, too, but only so that
 * its rebuild has a claim to as much (nvm_dir_claim_units).  Nobody fences.
 */
static void
count_index(uint32 id, NvmDirEntry *entry, uint32 nextents)
{
	nvm_store(&entry->counted, nvm_dir_counted(id, nextents));
	nvm_flush(&entry->counted, sizeof(entry->counted));
}

/*
 * See nvm_pool.h.
 */
void
nvm_dir_count_rebuilt(uint32 id)
{
	NvmDirEntry *entry = nvm_dir_entry(id);
	NvmRelState *rel = &nvm_relstates[id];

	if (rel->region != NVM_REGION_VOLATILE || (entry->flags & NVM_DIR_TEMP) != 0)
		return;
	LWLockAcquire(nvm_rel_extend_lock(rel), LW_EXCLUSIVE);
	count_index(id, entry, pg_atomic_read_u32(&rel->nextents));
	LWLockRelease(nvm_rel_extend_lock(rel));
}

/*
 * See nvm_pool.h.
 */
uint64
nvm_dir_claim_units(uint32 id)
{
	uint32		counted = NVM_DIR_COUNT(nvm_dir_entry(id)->counted);
	uint32		nextents = pg_atomic_read_u32(&nvm_relstates[id].nextents);

	return nvm_extents_units(Max(counted, nextents)) - nvm_extents_units(nextents);
}

/* ---- and how many blocks, of such a table ---- */

static bool
counts_blocks(const NvmDirEntry *entry)
{
	return (entry->flags & NVM_DIR_VOLATILE) != 0 && entry->kind == NVM_DIR_KIND_TABLE &&
		NVM_DIR_COUNT(entry->counted) > 0;
}

/*
 * See nvm_pool.h.  The number of blocks lies in the last extent that is counted.  Where it
 * does not, it is damaged, or from before there was one: all of these extents count.
 */
uint32
nvm_dir_blocks_had(uint32 id)
{
	const NvmDirEntry *entry = nvm_dir_entry(id);
	uint32		nextents = NVM_DIR_COUNT(entry->counted);
	uint64		most;

	if (!counts_blocks(entry))
		return 0;
	most = Min(nvm_extents_units(nextents), MaxBlockNumber);
	if (entry->uses > nvm_extents_units(nextents - 1) && entry->uses <= most)
		return entry->uses;
	return (uint32) most;
}

static void
store_blocks(NvmDirEntry *entry, uint32 nblocks)
{
	nvm_store32(&entry->uses, nblocks);
	nvm_flush(&entry->uses, sizeof(entry->uses));
	nvm_drain("pool-count-blocks");
}

/*
 * See pool_impl.h.  One block, then two, four, up to a part of the table.  Caller holds the
 * extend lock.
 */
uint32
nvm_dir_next_raise(NvmRelState *rel, uint32 blk)
{
	rel->raise = Min(Max(1, 2 * rel->raise), blk / RAISE_PART + RAISE_LEAST);
	return rel->raise;
}

/*
 * See nvm_pool.h.
 */
bool
nvm_dir_counts_blocks(uint32 id)
{
	return counts_blocks(nvm_dir_entry(id));
}

/*
 * See pool_impl.h.  The number is durable before a block of these can be used.  Each time
 * may be a sync, so it is raised by more than is needed.  Rows of the next run go behind the
 * number, if the region is lost and VACUUM has not come.  So a run that adds few blocks may
 * leave it few too high.
 *
 * If the extent is not counted yet, the number does not go with the count until it is: all
 * extents count meanwhile, and this one has nothing.
 */
uint32
nvm_dir_raise_blocks(NvmRelState *rel, uint32 blk, uint32 n)
{
	NvmDirEntry *entry = nvm_dir_entry(rel->dir);
	uint32		extent;
	uint32		first;

	if (!counts_blocks(entry))
		return n;
	if (blk < entry->uses)
		return Min(n, entry->uses - blk);
	extent = nvm_extent_of_block(blk, &first);
	store_blocks(entry, (uint32) Min((uint64) blk + nvm_dir_next_raise(rel, blk),
									 (uint64) first + nvm_extent_units(extent)));
	return Min(n, entry->uses - blk);
}

/*
 * See nvm_pool.h.
 */
void
nvm_dir_begin_count(NvmRelState *rel)
{
	NvmDirEntry *entry = nvm_dir_entry(rel->dir);
	uint32		nextents;
	uint32		nblocks;

	LWLockAcquire(nvm_rel_extend_lock(rel), LW_EXCLUSIVE);
	nextents = Max(1, pg_atomic_read_u32(&rel->nextents));
	if (nextents > NVM_DIR_COUNT(entry->counted))
		store_volatile_count(rel->dir, entry, nextents);
	nblocks = Max(rel->nready, pg_atomic_read_u32(&rel->nblocks));
	if (nblocks > entry->uses)
		store_blocks(entry, nblocks);
	LWLockRelease(nvm_rel_extend_lock(rel));
}

/*
 * See nvm_pool.h.  The copy has no clean run.
 */
void
nvm_dir_copy_count(NvmRelState *from, NvmRelState *to)
{
	NvmDirEntry *entry = nvm_dir_entry(from->dir);

	if (!counts_blocks(entry) || to->region != NVM_REGION_VOLATILE)
		return;
	LWLockAcquire(nvm_rel_extend_lock(to), LW_EXCLUSIVE);
	store_volatile_count(to->dir, nvm_dir_entry(to->dir), NVM_DIR_COUNT(entry->counted));
	store_blocks(nvm_dir_entry(to->dir), entry->uses);
	to->had = from->had;
	LWLockRelease(nvm_rel_extend_lock(to));
}

/*
 * See nvm_pool.h.  Blocks that are ready may be used without another look at the number.
 * A crash between the two leaves a number that does not go with the count, or both as they
 * are now.
 */
void
nvm_dir_lower_count(NvmRelState *rel)
{
	NvmDirEntry *entry = nvm_dir_entry(rel->dir);

	LWLockAcquire(nvm_rel_extend_lock(rel), LW_EXCLUSIVE);
	if (counts_blocks(entry) && rel->had > 0)
	{
		uint32		nextents = Max(1, pg_atomic_read_u32(&rel->nextents));

		if (nextents < NVM_DIR_COUNT(entry->counted))
			store_volatile_count(rel->dir, entry, nextents);
		NVM_FAILPOINT("vacuum-count-lowered");
		store_blocks(entry, Max(rel->nready, pg_atomic_read_u32(&rel->nblocks)));
		rel->had = 0;
	}
	LWLockRelease(nvm_rel_extend_lock(rel));
}

/*
 * Have entry id count that many extents; flushed, not fenced.  Storages that
 * no start keeps have no count.  A caller that raises the count holds the
 * extend lock, and the extents are durable and known in DRAM.  A caller that
 * lowers it holds extent_lock, so that a check does not see fewer extents than
 * are counted.
 */
void
nvm_dir_count(uint32 id, uint32 nextents)
{
	NvmDirEntry *entry = nvm_dir_entry(id);

	if ((entry->flags & NVM_DIR_VOLATILE) != 0)
	{
		if (entry->kind == NVM_DIR_KIND_INDEX && (entry->flags & NVM_DIR_TEMP) == 0 &&
			nextents > NVM_DIR_COUNT(entry->counted))
			count_index(id, entry, nextents);
		raise_volatile_count(id, entry, nextents);
	}
	if ((entry->flags & NOT_COUNTED) != 0)
		return;
	nvm_store(&entry->counted, nvm_dir_counted(id, nextents));
	nvm_flush(&entry->counted, sizeof(entry->counted));
}

/*
 * Count the extents that the start has found.  A crash may have come between
 * an extent and its count, or the pool is from before there were counts.  The
 * process that was to flush a count is gone.  In the postmaster.
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
