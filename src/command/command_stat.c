/*-------------------------------------------------------------------------
 *
 * command_stat.c
 *	  Counters of registered functions, in shared memory, since the server started.
 *
 * A transaction adds to them when it is committed.  Who adds holds the lock shared and
 * the entry's spinlock; who makes or removes an entry, the lock exclusively.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/xact.h"
#include "command/command_impl.h"
#include "command/nvm_command.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"

typedef struct Entry
{
	NvmCommandKey key;
	slock_t		mutex;			/* for stat */
	NvmCommandStat stat;
} Entry;

static int	max_commands = 1000;	/* nvm.max_commands */
static HTAB *entries = NULL;
static LWLock *entries_lock = NULL;

void
nvm_command_define_settings(void)
{
	DefineCustomIntVariable("nvm.max_commands",
							"Registered functions, of all databases, whose calls are counted.",
							NULL,
							&max_commands,
							1000, 1, 1000 * 1000,
							PGC_POSTMASTER, 0,
							NULL, NULL, NULL);
}

Size
nvm_command_shmem_size(void)
{
	return add_size(hash_estimate_size(max_commands, sizeof(Entry)),
					add_size(nvm_command_reasons_size(max_commands),
							 nvm_command_modes_size(max_commands)));
}

int
nvm_command_num_lwlocks(void)
{
	return 3;
}

void
nvm_command_shmem_startup(void)
{
	HASHCTL		ctl = {.keysize = sizeof(NvmCommandKey),.entrysize = sizeof(Entry)};

	entries_lock = &GetNamedLWLockTranche(NVM_COMMAND_TRANCHE)[0].lock;
	entries = ShmemInitHash("nvm commands", max_commands, max_commands, &ctl,
							HASH_ELEM | HASH_BLOBS);
	nvm_command_reasons_startup(max_commands, &GetNamedLWLockTranche(NVM_COMMAND_TRANCHE)[1].lock);
	nvm_command_modes_startup(max_commands, &GetNamedLWLockTranche(NVM_COMMAND_TRANCHE)[2].lock);
}

static void
reset_stat(Entry *entry)
{
	memset(&entry->stat, 0, sizeof(entry->stat));
	entry->stat.database = entry->key.database;
	entry->stat.function = entry->key.function;
}

/*
 * The entry, made if it is not there; NULL: there is no room.  The lock is held, and
 * still is.
 */
static Entry *
find_or_make(const NvmCommandKey *key)
{
	Entry	   *entry = hash_search(entries, key, HASH_FIND, NULL);
	bool		found;

	if (entry != NULL)
		return entry;
	LWLockRelease(entries_lock);
	LWLockAcquire(entries_lock, LW_EXCLUSIVE);
	entry = hash_search(entries, key, HASH_FIND, NULL);
	if (entry == NULL && hash_get_num_entries(entries) < max_commands)
	{
		entry = hash_search(entries, key, HASH_ENTER_NULL, &found);
		if (entry != NULL)
		{
			SpinLockInit(&entry->mutex);
			reset_stat(entry);
		}
	}
	return entry;
}

/*
 * The counters of a function, to be added to: locked until counters_end.  NULL: there is no
 * room for them, and nothing to add.
 */
static Entry *
counters_begin(Oid function)
{
	NvmCommandKey key = {.database = MyDatabaseId,.function = function};
	Entry	   *entry;

	LWLockAcquire(entries_lock, LW_SHARED);
	entry = find_or_make(&key);
	if (entry != NULL)
		SpinLockAcquire(&entry->mutex);
	else
		LWLockRelease(entries_lock);
	return entry;
}

static void
counters_end(Entry *entry)
{
	SpinLockRelease(&entry->mutex);
	LWLockRelease(entries_lock);
}

/*
 * Add what a committed transaction has found out.
 */
void
nvm_command_stat_add(const NvmCommandCount *count, bool writes, NvmReason reason,
					 Oid reason_class, Oid object, const char *query)
{
	TimestampTz now = reason != NVM_REASON_NONE ? GetCurrentTransactionStopTimestamp() : 0;
	Entry	   *entry = counters_begin(count->function);
	NvmCommandStat *stat;

	if (entry == NULL)
		return;
	stat = &entry->stat;
	stat->calls += count->calls;
	stat->usec += count->usec;
	stat->call_bytes += count->call_bytes;
	stat->value_bytes += count->value_bytes;
	if (!writes)
		stat->unlogged++;
	else if (reason == NVM_REASON_NONE)
	{
		stat->replayable++;
		stat->alone += count->call_bytes > 0 && count->alone;
	}
	else
		stat->by_values++;
	if (reason != NVM_REASON_NONE)
	{
		stat->reasons[reason]++;
		stat->last_reason = reason;
		stat->last_class = reason_class;
		stat->last_object = object;
		stat->last_time = now;
		memcpy(stat->last_query, query, sizeof(stat->last_query));
	}
	counters_end(entry);
}

/*
 * See nvm_command.h.
 */
void
nvm_command_stat_replayed(uint64 replay, Oid function, uint64 fingerprint, int64 calls, int64 usec)
{
	Entry	   *entry = counters_begin(function);
	NvmCommandStat *stat;

	if (entry == NULL)
		return;
	stat = &entry->stat;
	if (stat->replay != replay)
	{
		stat->replayed = stat->replay_usec = 0;
		stat->replayed_as = fingerprint;
	}
	if (stat->replayed_as != fingerprint)
		stat->replayed_as = 0;
	stat->replay = replay;
	stat->replayed += calls;
	stat->replay_usec += usec;
	counters_end(entry);
}

/*
 * See nvm_command.h.
 */
void
nvm_command_stat_rehearsed(uint64 replay)
{
	TimestampTz now = GetCurrentTimestamp();
	HASH_SEQ_STATUS seq;
	Entry	   *entry;

	LWLockAcquire(entries_lock, LW_EXCLUSIVE);
	hash_seq_init(&seq, entries);
	while ((entry = hash_seq_search(&seq)) != NULL)
	{
		if (entry->key.database == MyDatabaseId && entry->stat.replay == replay)
		{
			entry->stat.rehearsed = now;
			entry->stat.rehearsed_as = entry->stat.replayed_as;
		}
	}
	LWLockRelease(entries_lock);
}

bool
nvm_command_stat_get(Oid function, NvmCommandStat *stat)
{
	NvmCommandKey key = {.database = MyDatabaseId,.function = function};
	Entry	   *entry;

	LWLockAcquire(entries_lock, LW_SHARED);
	entry = hash_search(entries, &key, HASH_FIND, NULL);
	if (entry != NULL)
	{
		SpinLockAcquire(&entry->mutex);
		*stat = entry->stat;
		SpinLockRelease(&entry->mutex);
	}
	LWLockRelease(entries_lock);
	return entry != NULL;
}

/*
 * See command_impl.h.  Both kinds of entries begin with such a key.
 */
void
nvm_command_forget_entries(HTAB *table, Oid database, Oid function)
{
	HASH_SEQ_STATUS seq;
	NvmCommandKey *key;

	hash_seq_init(&seq, table);
	while ((key = hash_seq_search(&seq)) != NULL)
	{
		if (key->database == database && (!OidIsValid(function) || key->function == function))
			(void) hash_search(table, key, HASH_REMOVE, NULL);
	}
}

/*
 * Forget a function, or all of a database: InvalidOid.
 */
void
nvm_command_stat_forget(Oid database, Oid function)
{
	LWLockAcquire(entries_lock, LW_EXCLUSIVE);
	nvm_command_forget_entries(entries, database, function);
	LWLockRelease(entries_lock);
	nvm_command_reasons_forget(database, function);
}
