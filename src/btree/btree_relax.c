/*-------------------------------------------------------------------------
 *
 * btree_relax.c
 *	  Bulk loads: an index that is split again and again is relaxed.  Until
 *	  the load is over, no process sees to it that what it stores there is
 *	  durable.
 *
 * A split has to wait for six fences, which is nothing in persistent memory,
 * and six syncs where the pool lies on a disk.  A relaxed index needs none.
 * The directory says of it, durably and beforehand, that the next start is to
 * empty it.  Then it is rebuilt from its table, as with persistence = none.
 * When the transaction that has relaxed it is over, the rebuilder makes all of
 * the index durable at once, and takes back what the directory says.
 * README.md, "Relaxed", has the protocol.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_page.h"
#include "btree/nvm_btree_persist.h"
#include "btree/nvm_btree_state.h"
#include "compat/nvm_compat.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "wbl/nvm_wbl.h"

/*
 * A transaction relaxes an index when it has split it so often, and has split
 * at least one in so many of its pages.  Then the index costs about as much to
 * rebuild as was loaded.
 */
#define RELAX_SPLITS		4
#define RELAX_SHARE			16

/* of how many indexes a transaction counts splits, if they do not collide */
#define RELAX_COUNTS		16

/* pages made durable under one hold of storage_lock */
#define PAGES_PER_LOCK		16

/* how long the rebuilder waits for one page, in milliseconds, until it gives up */
#define PAGE_WAIT			5000

int			nvm_index_relax_setting = NVM_RELAX_AUTO;

typedef struct SplitCount
{
	uint32		dir;
	LocalTransactionId lxid;
	uint32		n;
} SplitCount;

/* ---- a transaction relaxes an index ---- */

/*
 * Not where nobody would end it.
 */
static bool
may_relax(const NvmIndexCache *cache)
{
	return cache->persistence == NVM_INDEX_FULL &&
		NvmIndexes->rebuilder != NULL &&
		(nvm_dir_entry(cache->dir)->flags & NVM_DIR_TEMP) == 0 &&
		(nvm_index_relax_setting == NVM_RELAX_ON ||
		 (nvm_index_relax_setting == NVM_RELAX_AUTO &&
		  nvm_persist_in_force == NVM_PERSIST_MSYNC));
}

/*
 * The start is to empty the index, durably; then nothing else needs to be.  Takes
 * the extend lock, under which both are changed.
 */
static void
relax(NvmIndexCache *cache)
{
	NvmRelState *state = cache->state;
	LWLock	   *lock = nvm_rel_extend_lock(state);
	struct Latch *rebuilder;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u32(&nvm_rel_index(state)->relaxed) == 0)
	{
		/* also if it is set: the rebuilder may be about to take it back */
		nvm_dir_set_relaxed(cache->dir, true);
		nvm_drain("index-relaxed");
		pg_atomic_write_u32(&nvm_rel_index(state)->relaxed, 1);
	}
	LWLockRelease(lock);
	NVM_FAILPOINT("index-is-relaxed");

	/* the rebuilder clears the hint before it looks, and is there before that */
	pg_memory_barrier();
	pg_atomic_write_u32(&NvmIndexes->relaxed, 1);
	pg_memory_barrier();
	rebuilder = NvmIndexes->rebuilder;
	if (rebuilder != NULL)
		SetLatch(rebuilder);
}

/*
 * See nvm_btree_persist.h.
 */
void
nvm_index_relax_by_split(NvmIndexCache *cache)
{
	static SplitCount counts[RELAX_COUNTS];
	SplitCount *count = &counts[cache->dir % RELAX_COUNTS];
	NvmRelState *state = cache->state;
	LocalTransactionId lxid = NvmProcLxid(MyProc);

	if (!may_relax(cache))
		return;
	if (count->dir != cache->dir || count->lxid != lxid)
	{
		count->dir = cache->dir;
		count->lxid = lxid;
		count->n = 0;
	}
	if (++count->n < Max(RELAX_SPLITS, pg_atomic_read_u32(&state->nblocks) / RELAX_SHARE))
		return;

	/* of several, the last one counts; the others notice by their next split */
	pg_atomic_write_u64(&nvm_rel_index(state)->relaxer,
						((uint64) NvmProcNumber() << 32) | lxid);
	if (pg_atomic_read_u32(&nvm_rel_index(state)->relaxed) == 0)
		relax(cache);
}

/* ---- the rebuilder makes it durable ---- */

/*
 * Is the transaction that has relaxed the index still there?  We look without a
 * lock: a transaction that is not seen relaxes the index once more.
 */
static bool
relaxer_is_there(NvmRelState *state)
{
	uint64		relaxer = pg_atomic_read_u64(&nvm_rel_index(state)->relaxer);
	uint32		procno = (uint32) (relaxer >> 32);
	LocalTransactionId lxid = (LocalTransactionId) relaxer;

	return lxid != InvalidLocalTransactionId && procno < ProcGlobal->allProcCount &&
		*(volatile LocalTransactionId *) &NvmProcLxid(&ProcGlobal->allProcs[procno]) == lxid;
}

/*
 * Lock the storages against being emptied or reclaimed.  False, and nothing
 * locked, if this one is not what it was.
 */
static bool
hold_storage(uint32 dir, uint64 creation)
{
	NvmDirEntry *entry = nvm_dir_entry(dir);

	LWLockAcquire(NvmWbl->storage_lock, LW_SHARED);
	if (nvm_relstates[dir].dir == dir && entry->begin != NVM_STAMP_NONE &&
		entry->creation_id == creation)
		return true;
	LWLockRelease(NvmWbl->storage_lock);
	return false;
}

/*
 * Flush a page.  False if another process has it locked, which may have found
 * the index relaxed, and has not stored yet.
 */
static bool
flush_page(NvmRelState *state, uint32 blkno)
{
	NvmIndexPage *page = nvm_index_page(state, blkno);

	/* block 0, the meta page, has no lock: its root word is under a page's */
	if (blkno > 0 && nvm_index_word_locked(nvm_index_load64(&page->lock)))
		return false;
	nvm_flush(page, NVM_INDEX_PAGE_SIZE);
	return true;
}

/*
 * Flush all pages that there are.  False if the storage has gone, or is relaxed
 * again, or a page stays locked for too long.
 */
static bool
flush_pages(uint32 dir, uint64 creation)
{
	NvmRelState *state = &nvm_relstates[dir];
	uint32		blkno = 1;
	int			waited = 0;

	for (;;)
	{
		uint32		first = blkno;
		uint32		nblocks;

		CHECK_FOR_INTERRUPTS();
		if (pg_atomic_read_u32(&nvm_rel_index(state)->relaxed) != 0 || !hold_storage(dir, creation))
			return false;
		nblocks = pg_atomic_read_u32(&state->nblocks);
		while (blkno < nblocks && blkno - first < PAGES_PER_LOCK && flush_page(state, blkno))
			blkno++;
		/* last: a process that has changed the root had a page locked */
		if (blkno >= nblocks && nblocks > 0)
			(void) flush_page(state, 0);
		LWLockRelease(NvmWbl->storage_lock);
		NVM_FAILPOINT("index-relaxed-pages");
		if (blkno >= nblocks)
			return true;

		/* not under storage_lock, which others wait for */
		if (blkno > first)
			waited = 0;
		else if (waited++ < PAGE_WAIT)
			pg_usleep(1000);
		else
			return false;
	}
}

/*
 * Has the index all that it should have?  One that is being emptied for a rebuild is
 * marked before it says so, under storage_lock (nvm_index_lost_with_region).
 */
static bool
is_whole(NvmRelState *state)
{
	uint32		index_state = pg_atomic_read_u32(&nvm_rel_index(state)->state);

	return index_state == NVM_INDEXSTATE_NEW || index_state == NVM_INDEXSTATE_READY;
}

/*
 * From here on changes are durable again; then have durable what others have
 * stored before; then say so.  False if that is to be tried again.
 */
static bool
end_relaxed(uint32 dir, uint64 creation)
{
	NvmRelState *state = &nvm_relstates[dir];

	if (!hold_storage(dir, creation))
		return true;
	/* it may have been emptied since it was found; the mark has to stay then */
	if (!is_whole(state))
	{
		LWLockRelease(NvmWbl->storage_lock);
		return false;
	}
	pg_atomic_write_u32(&nvm_rel_index(state)->relaxed, 0);
	LWLockRelease(NvmWbl->storage_lock);
	pg_memory_barrier();
	NVM_FAILPOINT("index-relaxed-ends");

	if (!flush_pages(dir, creation))
		return false;
	nvm_drain("index-relaxed-flushed");

	if (!hold_storage(dir, creation))
		return true;
	LWLockAcquire(nvm_rel_extend_lock(state), LW_EXCLUSIVE);
	/* a transaction may have relaxed it again */
	if (pg_atomic_read_u32(&nvm_rel_index(state)->relaxed) == 0)
	{
		nvm_dir_set_relaxed(dir, false);
		nvm_drain("index-relaxed-over");
	}
	LWLockRelease(nvm_rel_extend_lock(state));
	LWLockRelease(NvmWbl->storage_lock);
	NVM_FAILPOINT("index-is-kept");
	return true;
}

typedef struct RelaxedSearch
{
	bool		all;
	bool		left;			/* some have to wait */
	uint32		after;			/* a directory id */
	uint32		dir;			/* the first behind it, or 0 */
	uint64		creation;
} RelaxedSearch;

/*
 * For nvm_dir_walk.
 */
static void
find_relaxed(uint32 id, NvmDirEntry *entry, void *arg)
{
	RelaxedSearch *search = (RelaxedSearch *) arg;
	NvmRelState *state = &nvm_relstates[id];
	uint32		index_state = pg_atomic_read_u32(&nvm_rel_index(state)->state);

	if (entry->kind != NVM_DIR_KIND_INDEX ||
		(pg_atomic_read_u32(&nvm_rel_index(state)->relaxed) == 0 && entry->relaxed == 0))
		return;
	/* UNUSED stays so: an empty index must not be taken for a whole one */
	if (index_state == NVM_INDEXSTATE_UNUSED)
		return;
	if (!is_whole(state) || (!search->all && relaxer_is_there(state)))
	{
		search->left = true;
		return;
	}
	if (id > search->after && (search->dir == 0 || id < search->dir))
	{
		search->dir = id;
		search->creation = entry->creation_id;
	}
}

/*
 * See nvm_btree_persist.h.
 */
bool
nvm_index_end_relaxed(bool all)
{
	RelaxedSearch search = {.all = all};

	if (pg_atomic_read_u32(&NvmIndexes->relaxed) == 0)
		return false;
	/* a process that relaxes one sets it after that */
	pg_atomic_write_u32(&NvmIndexes->relaxed, 0);
	pg_memory_barrier();
	do
	{
		search.after = search.dir;
		search.dir = 0;
		nvm_dir_walk(find_relaxed, &search);
		if (search.dir != 0)
		{
			/* should it end in an ERROR */
			pg_atomic_write_u32(&NvmIndexes->relaxed, 1);
			if (!end_relaxed(search.dir, search.creation))
				search.left = true;
		}
	} while (search.dir != 0);
	if (search.left)
		pg_atomic_write_u32(&NvmIndexes->relaxed, 1);
	return search.left;
}
