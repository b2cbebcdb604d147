/*-------------------------------------------------------------------------
 *
 * btree_settle.c
 *	  Entries that a transaction has appended to leaves become lasting.
 *
 * An entry that is appended counts at once, in the running tail.  It outlives
 * a crash when the settled tail covers it.  The settled tail is stored when
 * the entry is durable, and all that were appended before it, by whichever
 * process.  A fence for each entry would be one too many.  So a transaction
 * does it for all of its leaves together, before it commits.  README.md,
 * "Settling".
 *
 * A bounded number of leaves is noted in process memory.  When there are more
 * they are settled in between.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_page.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_region.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_xact.h"

#define SETTLE_PAGES	64
#define SETTLE_SLOTS	(2 * SETTLE_PAGES)

/* a leaf to which the transaction has appended entries */
typedef struct UnsettledPage
{
	NvmIndexPage *page;
	uint32		dir;			/* what the page must still be */
	uint32		blkno;
	uint32		epoch;
	uint64		version;		/* one that it had with this epoch */
	uint32		tail;			/* behind its last entry */
	uint32		first;			/* so many entries were there when it began to
								 * append without anybody else in between */
	bool		same;			/* it has been that epoch's since */
} UnsettledPage;

/* those of the transaction with this stamp */
static NvmStamp unsettled_stamp;
static int	nunsettled;
static UnsettledPage unsettled[SETTLE_PAGES];
static uint8 unsettled_slot[SETTLE_SLOTS];	/* hash table: number + 1, or 0 */

static void
unsettled_forget(void)
{
	if (nunsettled > 0)
		memset(unsettled_slot, 0, sizeof(unsettled_slot));
	nunsettled = 0;
}

/*
 * The slot where a page is, or where it would be.
 */
static uint8 *
unsettled_find(const NvmIndexPage *page)
{
	uint32		i = murmurhash32((uint32) ((uintptr_t) page / NVM_INDEX_PAGE_SIZE));

	for (;; i++)
	{
		uint8	   *slot = &unsettled_slot[i % SETTLE_SLOTS];

		if (*slot == 0 || unsettled[*slot - 1].page == page)
			return slot;
	}
}

void
nvm_index_unsettled(NvmIndexPage *page, uint64 version, uint32 epoch, uint32 tail)
{
	NvmStamp	stamp = nvm_xact_identity();
	UnsettledPage *noted;
	uint8	   *slot;

	if (unsettled_stamp != stamp || stamp == NVM_STAMP_NONE)
	{
		/* those that are left were of a transaction that has aborted */
		unsettled_forget();
		unsettled_stamp = stamp;
	}
	slot = unsettled_find(page);
	if (*slot == 0)
	{
		if (nunsettled == SETTLE_PAGES)
		{
			(void) nvm_index_settle();
			slot = unsettled_find(page);
		}
		noted = &unsettled[nunsettled++];
		noted->page = page;
		noted->dir = page->dir;
		noted->blkno = page->blkno;
		noted->epoch = epoch - 1;	/* none of ours yet */
		*slot = nunsettled;
	}
	else
		noted = &unsettled[*slot - 1];

	if (noted->epoch != epoch || NVM_INDEX_NTAIL(noted->tail) + 1 != NVM_INDEX_NTAIL(tail))
		noted->first = NVM_INDEX_NTAIL(tail) - 1;
	noted->epoch = epoch;
	noted->version = version;
	noted->tail = tail;
	noted->same = true;
}

/*
 * The page's commit word, and its current version.  False if the page is not
 * what it was when it was noted.  Then a redo lane has rewritten it, and has
 * made all that was on it durable.  It stays so, also if settling ends in an
 * ERROR and is begun again.
 */
static bool
look_again(UnsettledPage *noted, uint64 *commit)
{
	NvmIndexPage *page = noted->page;
	uint64		version;
	bool		same;

	/* mostly nobody has been here since */
	*commit = nvm_index_load64(&page->commit);
	if (likely(nvm_index_validate(page, noted->version)))
		return true;
	do
	{
		version = nvm_index_begin(page);	/* may ERROR */
		same = page->magic == NVM_INDEX_MAGIC && page->dir == noted->dir &&
			page->blkno == noted->blkno && page->epoch == noted->epoch;
		*commit = nvm_index_load64(&page->commit);
	} while (!nvm_index_validate(page, version));
	noted->version = version;
	noted->same = same;
	return same;
}

/*
 * See to it that the next drain makes all entries up to the transaction's last
 * one durable.  Those that the transaction has appended itself were flushed
 * then, so that there is less to wait for now.  Others may have been appended
 * by a process that has not come to wait for them.  True if a drain is needed.
 * Takes no page lock: what it flushes was appended before, and is not changed.
 */
static bool
flush_entries(UnsettledPage *noted)
{
	uint64		commit;
	uint32		settled;

	if (!noted->same || !look_again(noted, &commit))
		return false;
	settled = NVM_INDEX_SETTLED(commit);
	if (NVM_INDEX_NTAIL(settled) >= NVM_INDEX_NTAIL(noted->tail))
		return false;
	if (NVM_INDEX_NTAIL(settled) < noted->first)
		nvm_flush((char *) noted->page + NVM_INDEX_UPPER(noted->tail),
				  NVM_INDEX_UPPER(settled) - NVM_INDEX_UPPER(noted->tail));
	return true;
}

/*
 * The entries are durable: say so, unless another process has.
 */
static void
store_settled(UnsettledPage *noted)
{
	NvmIndexPage *page = noted->page;
	uint64		commit;

	while (noted->same)
	{
		if (nvm_index_lock(page, noted->version))
		{
			commit = nvm_index_load64(&page->commit);
			if (NVM_INDEX_NTAIL(NVM_INDEX_SETTLED(commit)) < NVM_INDEX_NTAIL(noted->tail))
				nvm_store(&page->commit, NVM_INDEX_COMMIT(noted->tail, NVM_INDEX_RUNNING(commit)));
			/* no reader is concerned, and no plan of a writer */
			(void) nvm_index_unlock(page, false);
			return;
		}
		(void) look_again(noted, &commit);
	}
}

bool
nvm_index_settle(void)
{
	bool		drain = false;
	bool		in_pool = false;

	if (nunsettled == 0)
		return false;
	if (unsettled_stamp != nvm_xact_identity())
	{
		unsettled_forget();
		return false;
	}
	for (int i = 0; i < nunsettled; i++)
	{
		if (flush_entries(&unsettled[i]))
			drain |= nvm_is_in_pool(unsettled[i].page);
		in_pool |= nvm_is_in_pool(unsettled[i].page);
	}
	if (drain)
		nvm_drain("btree-settle");
	for (int i = 0; i < nunsettled; i++)
		store_settled(&unsettled[i]);

	/*
	 * Also where another process has said so, which may not have waited for
	 * it yet. Not while locks are being taken, each of which would wait for
	 * the flush before it.
	 */
	for (int i = 0; i < nunsettled; i++)
	{
		if (unsettled[i].same)
			nvm_flush(&unsettled[i].page->commit, sizeof(unsettled[i].page->commit));
	}
	unsettled_forget();
	NVM_FAILPOINT("btree-settled");
	return in_pool;
}
