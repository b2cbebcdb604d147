/*-------------------------------------------------------------------------
 *
 * command_reason.c
 *	  What is kept of each reason of each registered function: how often, and where last.
 *
 * In shared memory, since the server started.  Who adds to an entry holds the lock shared
 * and the entry's spinlock; who makes or removes one, the lock exclusively.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "command/command_impl.h"
#include "command/nvm_command.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/hsearch.h"

/* entries for each function of nvm.max_commands; few have more than one or two */
#define REASONS_PER_COMMAND	3

typedef struct ReasonKey
{
	NvmCommandKey command;
	NvmReason	reason;
} ReasonKey;

typedef struct ReasonEntry
{
	ReasonKey	key;
	slock_t		mutex;			/* for the rest */
	NvmCommandReason stat;
} ReasonEntry;

static HTAB *entries = NULL;
static long max_entries = 0;
static LWLock *entries_lock = NULL;

Size
nvm_command_reasons_size(int max_commands)
{
	return hash_estimate_size(REASONS_PER_COMMAND * (Size) max_commands, sizeof(ReasonEntry));
}

void
nvm_command_reasons_startup(int max_commands, LWLock *lock)
{
	HASHCTL		ctl = {.keysize = sizeof(ReasonKey),.entrysize = sizeof(ReasonEntry)};

	max_entries = REASONS_PER_COMMAND * (long) max_commands;
	entries_lock = lock;
	entries = ShmemInitHash("nvm reasons of commands", max_entries, max_entries, &ctl,
							HASH_ELEM | HASH_BLOBS);
}

/*
 * The entry, made if it is not there; NULL: there is no room.  The lock is held, and
 * still is.
 */
static ReasonEntry *
find_or_make(const ReasonKey *key)
{
	ReasonEntry *entry = hash_search(entries, key, HASH_FIND, NULL);
	bool		found;

	if (entry != NULL)
		return entry;
	LWLockRelease(entries_lock);
	LWLockAcquire(entries_lock, LW_EXCLUSIVE);
	entry = hash_search(entries, key, hash_get_num_entries(entries) < max_entries ?
						HASH_ENTER_NULL : HASH_FIND, &found);
	if (entry != NULL && !found)
	{
		SpinLockInit(&entry->mutex);
		memset(&entry->stat, 0, sizeof(entry->stat));
	}
	return entry;
}

/*
 * A transaction that has called the function was committed, and is one of values.
 */
void
nvm_command_reason_add(Oid function, const NvmCommandReason *last)
{
	ReasonKey	key = {.command = {.database = MyDatabaseId,.function = function},.reason = last->reason};
	TimestampTz now = GetCurrentTransactionStopTimestamp();
	ReasonEntry *entry;

	LWLockAcquire(entries_lock, LW_SHARED);
	entry = find_or_make(&key);
	if (entry != NULL)
	{
		int64		transactions;

		SpinLockAcquire(&entry->mutex);
		transactions = entry->stat.transactions;
		entry->stat = *last;
		entry->stat.function = function;
		entry->stat.transactions = transactions + 1;
		entry->stat.time = now;
		SpinLockRelease(&entry->mutex);
	}
	LWLockRelease(entries_lock);
}

/*
 * Those of the current database: a palloc'd list.
 */
List *
nvm_command_reasons(void)
{
	List	   *list = NIL;
	HASH_SEQ_STATUS seq;
	ReasonEntry *entry;
	NvmCommandReason *copies;
	int			n = 0;

	LWLockAcquire(entries_lock, LW_SHARED);
	copies = palloc(sizeof(NvmCommandReason) * (hash_get_num_entries(entries) + 1));
	hash_seq_init(&seq, entries);
	while ((entry = hash_seq_search(&seq)) != NULL)
	{
		if (entry->key.command.database != MyDatabaseId)
			continue;
		SpinLockAcquire(&entry->mutex);
		copies[n] = entry->stat;
		SpinLockRelease(&entry->mutex);
		n++;
	}
	LWLockRelease(entries_lock);
	for (int i = 0; i < n; i++)
		list = lappend(list, &copies[i]);
	return list;
}

void
nvm_command_reasons_forget(Oid database, Oid function)
{
	LWLockAcquire(entries_lock, LW_EXCLUSIVE);
	nvm_command_forget_entries(entries, database, function);
	LWLockRelease(entries_lock);
}
