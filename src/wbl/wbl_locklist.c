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
#include "miscadmin.h"
#include "nodes/bitmapset.h"
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
 * A list that is being written.  Extents are chained from the last one written to
 * the first.
 */
typedef struct NvmLockWriter
{
	NvmStamp	stamp;
	MemoryContext context;		/* of the items */
	uint32		first;			/* of the chain on media, or 0 */
	NvmLockItem *items;			/* not yet on media */
	uint32		nitems;
	uint32		room;
} NvmLockWriter;

/* of the transaction that this process is preparing */
static NvmLockWriter list;

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
lock_list_write(NvmLockWriter *w)
{
	uint32		unit = nvm_locks_alloc(NVM_STAMP_SLOT(w->stamp), LIST_UNITS(w->nitems));
	NvmLockList *header = lock_list(unit);

	memcpy(header + 1, w->items, w->nitems * sizeof(NvmLockItem));
	header->stamp = w->stamp;
	header->next = w->first;
	header->count = w->nitems;
	header->crc = nvm_lock_list_crc(unit, header);
	nvm_flush(header, LIST_SIZE(w->nitems));
	w->first = unit;
	w->nitems = 0;
}

/*
 * Add an item.  May ERROR.
 */
static void
lock_list_add(NvmLockWriter *w, const NvmLockItem *item)
{
	if (w->nitems == w->room)
	{
		uint32		units = w->room == 0 ? 1 : Min(LIST_UNITS(w->room) * 2, NVM_LOCKS_MAX_UNITS);

		if (w->nitems == LIST_ROOM(NVM_LOCKS_MAX_UNITS))
			lock_list_write(w);
		else if (w->items == NULL)
			w->items = MemoryContextAlloc(w->context, LIST_ROOM(units) * sizeof(NvmLockItem));
		else
			w->items = repalloc(w->items, LIST_ROOM(units) * sizeof(NvmLockItem));
		w->room = LIST_ROOM(units);
	}
	w->items[w->nitems++] = *item;
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
	list.context = TopTransactionContext;
}

/*
 * Add items to it.  May ERROR; nvm_lock_list_discard frees the extents that
 * were written until then.
 */
void
nvm_lock_list_add(const NvmLockItem *items, int n)
{
	for (int i = 0; i < n; i++)
		lock_list_add(&list, &items[i]);
}

/*
 * End of the list, durable on return.  Returns its first unit, 0 if nothing
 * was added.
 */
uint32
nvm_lock_list_end(void)
{
	if (list.nitems > 0)
		lock_list_write(&list);
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
 * Give the locks of a list to prepared transaction xid.  Returns the numbers of
 * the items whose rows are gone.  May ERROR; doing it again changes nothing.
 */
static Bitmapset *
lock_list_give(uint32 unit, TransactionId xid)
{
	Bitmapset  *gone = NULL;
	int			n = 0;

	while (unit != 0)
	{
		NvmLockList *header = lock_list(unit);
		NvmLockItem *items = (NvmLockItem *) (header + 1);

		for (uint32 i = 0; i < header->count; i++, n++)
		{
			if (!nvm_table_ops->restore_lock(&items[i], xid))
				gone = bms_add_member(gone, n);
		}
		unit = header->next;
	}
	return gone;
}

/*
 * Write a list anew without the items that are gone, flushed.  ERROR if there is
 * no room.
 */
static void
lock_list_copy(NvmLockWriter *w, uint32 unit, const Bitmapset *gone)
{
	int			n = 0;

	while (unit != 0)
	{
		NvmLockList *header = lock_list(unit);
		NvmLockItem *items = (NvmLockItem *) (header + 1);

		for (uint32 i = 0; i < header->count; i++, n++)
		{
			if (!bms_is_member(n, gone))
				lock_list_add(w, &items[i]);
		}
		unit = header->next;
	}
	if (w->nitems > 0)
		lock_list_write(w);
}

/*
 * An attempt to write a list anew has ended with the current ERROR.  Go on if
 * there was no room, since a restart needs none: the list stays as it is then.
 */
static void
lock_list_no_room(uint32 slot, const NvmLockWriter *w, MemoryContext context,
				  uint32 interrupt_holdoff)
{
	ErrorData  *error;

	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	if (ERRCODE_TO_CATEGORY(error->sqlerrcode) != ERRCODE_INSUFFICIENT_RESOURCES)
		PG_RE_THROW();
	FlushErrorState();
	InterruptHoldoffCount = interrupt_holdoff;
	if (LWLockHeldByMe(NvmPool->extent_lock))
	{
		HOLD_INTERRUPTS();		/* the error has forgotten the lock's own */
		LWLockRelease(NvmPool->extent_lock);
	}
	nvm_lock_list_free(slot, w->first);
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("prepared transaction of commit slot %u keeps row locks whose rows are gone: %s",
					slot, error->message),
			 errhint("End the transaction before the server is started again. Else it may lock rows that have taken their place.")));
	FreeErrorData(error);
}

/*
 * Write a list anew without the items that are gone.  Returns its first unit, 0 if
 * nothing is left of it; durable.  The same list if there is no room.
 */
static uint32
lock_list_rewrite(uint32 slot, uint32 unit, const Bitmapset *gone)
{
	MemoryContext context = CurrentMemoryContext;
	uint32		interrupt_holdoff = InterruptHoldoffCount;
	NvmLockWriter *w = palloc0(sizeof(NvmLockWriter));
	volatile uint32 result = unit;

	w->stamp = lock_list(unit)->stamp;
	w->context = context;
	PG_TRY();
	{
		lock_list_copy(w, unit, gone);
		if (w->first != 0)
			nvm_drain("resolve-locks-written");
		result = w->first;
	}
	PG_CATCH();
	{
		lock_list_no_room(slot, w, context, interrupt_holdoff);
	}
	PG_END_TRY();
	if (w->items != NULL)
		pfree(w->items);
	pfree(w);
	return result;
}

/*
 * Give the locks of a list to the prepared transaction in a slot.  Returns the
 * list that the slot is to lead to instead: without the rows that are gone, and
 * as durable as this one; 0 if nothing is left.
 *
 * A row is gone if the start has emptied its table.  Other rows may be put in its
 * place, and the next start must not take them for it.  May ERROR; doing it again
 * changes nothing, and frees what was written but is not in the slot.
 */
uint32
nvm_lock_list_restore(uint32 slot, uint32 unit, TransactionId xid)
{
	Bitmapset  *gone = lock_list_give(unit, xid);

	if (gone != NULL)
		unit = lock_list_rewrite(slot, unit, gone);
	bms_free(gone);
	return unit;
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

/*
 * Does the slot of a prepared transaction lead to this extent?  A list with the
 * transaction's stamp may be one that was to take the place of another, or whose
 * place was taken.
 */
static bool
slot_leads_to(uint32 slot, uint32 unit)
{
	uint64		word = nvm_slot_load_word(slot);
	uint32		u = (uint32) NVM_FIELD_VALUE(nvm_slot(slot)->copy[0].locks);

	if (NVM_WORD_STATE(word) != NVM_SLOT_TWOPHASE)
		return false;
	while (u != 0 && u != unit)
		u = lock_list(u)->next;
	return u != 0;
}

static void
free_if_orphan(uint64 unit, uint64 word, void *arg)
{
	if (!slot_leads_to(NVM_EXT_OWNER(word) - 1, (uint32) unit))
		nvm_locks_free((uint32) unit);
}

/*
 * After the slots were resolved: free the lists to which no slot of a prepared
 * transaction leads.  A walk over the extent map, but only if the open has seen
 * lists.
 */
void
nvm_lock_list_free_orphans(void)
{
	if (NvmPool->nlock_lists > 0)
		nvm_extents_walk(NVM_EXT_LOCKS, 0, free_if_orphan, NULL);
}
