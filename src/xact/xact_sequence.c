/*-------------------------------------------------------------------------
 *
 * xact_sequence.c
 *	  Sequence values that rest on another session's unflushed WAL.
 *
 * nextval() logs 32 values ahead.  A value that one session drew without
 * logging may rest on a record that another session wrote and has not flushed;
 * PostgreSQL relies on the drawing transaction's own commit record to flush it
 * along.  A transaction on nvm tables alone flushes nothing.  After a crash
 * the number could be handed out again beside a durable row that holds it.
 *
 * Every transaction that has drawn from a sequence still holds its
 * RowExclusiveLock on it at PRE_COMMIT.  Before it commits without flushing
 * WAL, the WAL is flushed up to the last change of that sequence's page.  A
 * transaction that is rolled back may have given the number to its client as
 * well.  At ABORT no page can be looked at, so there all WAL is flushed.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "compat/nvm_compat.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "xact/xact_impl.h"

#define ROW_EXCLUSIVE_BIT		(1 << (RowExclusiveLock - 1))

/* relations whose kind is remembered, direct-mapped by OID */
#define KIND_CACHE_SIZE			256

typedef struct NvmKindEntry
{
	Oid			relid;
	char		relkind;
} NvmKindEntry;

static NvmKindEntry kind_cache[KIND_CACHE_SIZE];

/* relations that an abort did not know the kind of, for the next commit */
static Oid	unknown[16];
static int	nunknown = 0;

/* an OID may come back as another kind of relation */
static void
nvm_kind_cache_inval(Datum arg, Oid relid)
{
	if (OidIsValid(relid))
		kind_cache[relid % KIND_CACHE_SIZE].relid = InvalidOid;
	else
		memset(kind_cache, 0, sizeof(kind_cache));
}

static bool
nvm_is_sequence(Oid relid)
{
	NvmKindEntry *entry = &kind_cache[relid % KIND_CACHE_SIZE];

	if (entry->relid != relid)
	{
		char		relkind = get_rel_relkind(relid);

		entry->relkind = relkind;
		entry->relid = relid;
	}
	return entry->relkind == RELKIND_SEQUENCE;
}

/*
 * The same without looking at catalogs, for an abort: true for a relation that
 * may be a sequence.  Its kind will be known at the next call.
 */
static bool
nvm_may_be_sequence(Oid relid)
{
	NvmKindEntry *entry = &kind_cache[relid % KIND_CACHE_SIZE];

	if (entry->relid == relid)
		return entry->relkind == RELKIND_SEQUENCE;
	if (nunknown < (int) lengthof(unknown))
		unknown[nunknown++] = relid;
	return true;
}

/*
 * Flush the WAL up to the last change of a sequence that this transaction
 * holds a lock on.
 */
static void
nvm_sequence_flush_one(Oid relid)
{
	Relation	rel = try_relation_open(relid, NoLock);
	Buffer		buf;
	XLogRecPtr	lsn;

	if (rel == NULL)
		return;					/* dropped in this transaction */
	if (rel->rd_rel->relkind == RELKIND_SEQUENCE && RelationNeedsWAL(rel))
	{
		buf = ReadBuffer(rel, 0);
		LockBuffer(buf, BUFFER_LOCK_SHARE);
		lsn = PageGetLSN(BufferGetPage(buf));
		UnlockReleaseBuffer(buf);
		relation_close(rel, NoLock);
		XLogFlush(lsn);
		return;
	}
	relation_close(rel, NoLock);
}

/*
 * The relations of this database that this process holds RowExclusiveLock on,
 * in one partition of the main lock table.  Stores up to max of them, returns
 * how many there are.
 */
static int
nvm_main_table_locks(int partition, Oid *relids, int max)
{
	LWLock	   *lock = LockHashPartitionLockByIndex(partition);
	PROCLOCK   *proclock = NULL;
	int			n = 0;

	if (!NvmHasProcLocks(partition))
		return 0;
	LWLockAcquire(lock, LW_SHARED);
	while ((proclock = nvm_next_proclock(partition, proclock)) != NULL)
	{
		LOCKTAG    *tag = &proclock->tag.myLock->tag;

		if (tag->locktag_lockmethodid != DEFAULT_LOCKMETHOD ||
			tag->locktag_type != LOCKTAG_RELATION ||
			tag->locktag_field1 != MyDatabaseId ||
			(proclock->holdMask & LOCKBIT_ON(RowExclusiveLock)) == 0)
			continue;
		if (n < max)
			relids[n] = tag->locktag_field2;
		n++;
	}
	LWLockRelease(lock);
	return n;
}

/*
 * Flush for all sequences that are locked in one partition of the main table.
 */
static void
nvm_sequence_flush_partition(int partition)
{
	Oid			some[32];
	Oid		   *relids = some;
	int			max = lengthof(some);
	int			n;

	n = nvm_main_table_locks(partition, relids, max);
	if (n > max)
	{
		/* nobody but us adds to them, save fast-path locks that move here */
		max = n + NvmFastPathSlots();
		relids = palloc(sizeof(Oid) * max);
		n = Min(nvm_main_table_locks(partition, relids, max), max);
	}
	for (int i = 0; i < n; i++)
	{
		if (nvm_is_sequence(relids[i]))
			nvm_sequence_flush_one(relids[i]);
	}
	if (relids != some)
		pfree(relids);
}

/*
 * At ABORT, with all locks still held: has the transaction drawn from a
 * sequence?  Its client may use the number in the next one.  Errs on the safe
 * side.
 */
static bool
nvm_may_have_drawn(void)
{
	Oid			some[32];
	bool		drawn = false;

	LWLockAcquire(&MyProc->fpInfoLock, LW_SHARED);
	for (int i = 0; i < NvmFastPathSlots(); i++)
	{
		if ((NvmFastPathModes(i) & ROW_EXCLUSIVE_BIT) != 0 &&
			nvm_may_be_sequence(NvmFastPathRel(i)))
			drawn = true;
	}
	LWLockRelease(&MyProc->fpInfoLock);
	for (int partition = 0; partition < NUM_LOCK_PARTITIONS; partition++)
	{
		int			n = nvm_main_table_locks(partition, some, lengthof(some));

		if (n > (int) lengthof(some))
			return true;
		for (int i = 0; i < n; i++)
		{
			if (nvm_may_be_sequence(some[i]))
				drawn = true;
		}
	}
	return drawn;
}

/*
 * At ABORT.  Neither looks at catalogs nor allocates memory.
 */
void
nvm_sequence_flush_at_abort(void)
{
	if (OidIsValid(MyDatabaseId) && !RecoveryInProgress() &&
		synchronous_commit != SYNCHRONOUS_COMMIT_OFF && NvmPool->ndirs > 0 &&
		nvm_may_have_drawn())
		XLogFlush(NvmWalEnd());
}

/*
 * At PRE_COMMIT of a transaction that does not flush its own commit record (if
 * it does, that covers the sequence).  Not only for writers of nvm data: a
 * transaction that merely draws a value may hand it, through its client, to
 * another one that stores it.  But a session that asked for asynchronous
 * commit and writes no nvm data has asked for this, too.
 *
 * Fast-path locks first, the main table after them: others may move locks from
 * there to here, but not back.
 */
void
nvm_sequence_flush(bool is_writer)
{
	static Oid *fast = NULL;
	int			nfast = 0;

	if (!OidIsValid(MyDatabaseId) || RecoveryInProgress())
		return;
	while (nunknown > 0)
		(void) nvm_is_sequence(unknown[--nunknown]);

	/*
	 * PostgreSQL flushes the commit record of a transaction with an xid only
	 */
	if (!is_writer &&
		((XactLastRecEnd != InvalidXLogRecPtr &&
		  TransactionIdIsValid(GetTopTransactionIdIfAny())) ||
		 synchronous_commit == SYNCHRONOUS_COMMIT_OFF ||
		 NvmPool->ndirs == 0))
		return;

	if (fast == NULL)
	{
		fast = MemoryContextAlloc(TopMemoryContext, sizeof(Oid) * NvmFastPathSlots());
		CacheRegisterRelcacheCallback(nvm_kind_cache_inval, (Datum) 0);
	}

	LWLockAcquire(&MyProc->fpInfoLock, LW_SHARED);
	for (int i = 0; i < NvmFastPathSlots(); i++)
	{
		if ((NvmFastPathModes(i) & ROW_EXCLUSIVE_BIT) != 0)
			fast[nfast++] = NvmFastPathRel(i);
	}
	LWLockRelease(&MyProc->fpInfoLock);

	for (int i = 0; i < nfast; i++)
	{
		if (nvm_is_sequence(fast[i]))
			nvm_sequence_flush_one(fast[i]);
	}
	for (int partition = 0; partition < NUM_LOCK_PARTITIONS; partition++)
		nvm_sequence_flush_partition(partition);
}
