/*-------------------------------------------------------------------------
 *
 * wbl_locklist.c
 *	  The row locks of a transaction under PREPARE TRANSACTION, on media.
 *
 * The lock word of a row means nothing in another incarnation.  But the locks
 * of a prepared transaction must outlive a restart: without the FOR KEY SHARE
 * of a foreign key, COMMIT PREPARED would leave an orphan.  So PREPARE lists
 * them in extents of their own that hang on the transaction's slot.  Resolving
 * gives them back before anybody reads.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "utils/memutils.h"
#include "verify/nvm_verify.h"
#include "wbl/nvm_commit.h"
#include "wbl/wbl_impl.h"

#define LIST_SIZE(n)			(NVM_LOCK_LIST_HEADER + (Size) (n) * NVM_LOCK_ITEM_SIZE)
#define LIST_UNITS(n)			((LIST_SIZE(n) + NVM_UNIT_SIZE - 1) / NVM_UNIT_SIZE)
#define LIST_ROOM(units)		NVM_LOCK_LIST_ROOM(units)

/*
 * The list that this process is writing.  Extents are chained from the last
 * one written to the first.
 */
static struct
{
	NvmStamp	stamp;
	uint32		first;			/* of the chain on media, or 0 */
	NvmLockItem *items;			/* not yet on media; of TopTransactionContext */
	uint32		nitems;
	uint32		room;
}			list;

static NvmLockList *
lock_list(uint32 unit)
{
	return (NvmLockList *) nvm_unit_address(unit);
}

/*
 * Write the items in memory to an extent, flushed.  May ERROR before anything
 * is done.
 */
static void
lock_list_write(void)
{
	uint32		unit = nvm_locks_alloc(NVM_STAMP_SLOT(list.stamp), LIST_UNITS(list.nitems));
	NvmLockList *header = lock_list(unit);

	memcpy(header + 1, list.items, list.nitems * sizeof(NvmLockItem));
	header->stamp = list.stamp;
	header->next = list.first;
	header->count = list.nitems;
	header->crc = nvm_lock_list_crc(unit, header);
	nvm_flush(header, LIST_SIZE(list.nitems));
	list.first = unit;
	list.nitems = 0;
}

/*
 * Begin the list of the current transaction.
 */
void
nvm_lock_list_begin(NvmStamp stamp)
{
	Assert(list.first == 0);
	memset(&list, 0, sizeof(list));
	list.stamp = stamp;
}

/*
 * Add items to it.  May ERROR; nvm_lock_list_discard frees the extents that
 * were written until then.
 */
void
nvm_lock_list_add(const NvmLockItem *items, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (list.nitems == list.room)
		{
			uint32		units = list.room == 0 ? 1 : Min(LIST_UNITS(list.room) * 2, NVM_LOCKS_MAX_UNITS);

			if (list.nitems == LIST_ROOM(NVM_LOCKS_MAX_UNITS))
				lock_list_write();
			else if (list.items == NULL)
				list.items = MemoryContextAlloc(TopTransactionContext,
												LIST_ROOM(units) * sizeof(NvmLockItem));
			else
				list.items = repalloc(list.items, LIST_ROOM(units) * sizeof(NvmLockItem));
			list.room = LIST_ROOM(units);
		}
		list.items[list.nitems++] = items[i];
	}
}

/*
 * End of the list, durable on return.  Returns its first unit, 0 if nothing
 * was added.
 */
uint32
nvm_lock_list_end(void)
{
	if (list.nitems > 0)
		lock_list_write();
	if (list.first != 0)
		nvm_drain("prepare-locks");
	list.items = NULL;			/* goes with the transaction */
	list.room = 0;
	return list.first;
}

/*
 * The transaction has aborted: free its list, if there is any.  The slot does
 * not lead to it, durably.  Cannot fail.
 */
void
nvm_lock_list_discard(void)
{
	uint32		first = list.first;

	list.first = 0;
	if (first != 0)
		nvm_lock_list_free(NVM_STAMP_SLOT(list.stamp), first);
}

/*
 * The transaction has been prepared: the list belongs to its slot.
 */
void
nvm_lock_list_kept(void)
{
	list.first = 0;
}

/*
 * What is wrong with a list, or NULL.
 */
const char *
nvm_lock_list_problem(uint32 slot, uint64 counter, uint32 unit)
{
	NvmImage	image = {.base = nvm_pool_base,.nchunks = nvm_regions[NVM_REGION_POOL].nchunks};

	return nvm_image_locks_problem(&image, slot, counter, unit);
}

/*
 * Give the locks of a list to prepared transaction xid.  May ERROR; doing it
 * again changes nothing.
 */
void
nvm_lock_list_restore(uint32 slot, uint32 unit, TransactionId xid)
{
	while (unit != 0)
	{
		NvmLockList *header = lock_list(unit);
		NvmLockItem *items = (NvmLockItem *) (header + 1);

		for (uint32 i = 0; i < header->count; i++)
			nvm_table_ops->restore_lock(&items[i], xid);
		unit = header->next;
	}
}

/*
 * Free the extents of a list.  Cannot fail.  If a crash comes in between,
 * nvm_lock_list_free_orphans finds the rest.
 */
void
nvm_lock_list_free(uint32 slot, uint32 unit)
{
	while (unit != 0 && nvm_locks_units(unit, slot) != 0)
	{
		uint32		next = lock_list(unit)->next;

		NVM_FAILPOINT("twophase-free-locks");
		nvm_locks_free(unit);
		unit = next;
	}
}

static void
free_if_orphan(uint64 unit, uint64 word, void *arg)
{
	uint32		slot = NVM_EXT_OWNER(word) - 1;
	uint64		slot_word = nvm_slot_load_word(slot);

	if (NVM_WORD_STATE(slot_word) != NVM_SLOT_TWOPHASE ||
		lock_list((uint32) unit)->stamp != NVM_STAMP_MAKE(slot, NVM_WORD_COUNTER(slot_word)))
		nvm_locks_free((uint32) unit);
}

/*
 * After the slots were resolved: free the lists of transactions that are not
 * prepared.  A walk over the extent map, but only if the open has seen lists.
 */
void
nvm_lock_list_free_orphans(void)
{
	if (NvmPool->nlock_lists > 0)
		nvm_extents_walk(NVM_EXT_LOCKS, 0, free_if_orphan, NULL);
}
