/*-------------------------------------------------------------------------
 *
 * wbl_resolve.c
 *	  Resolving: settle what the last stop left in doubt.
 *
 * Only pg_xact knows whether a mixed transaction that was prepared has
 * committed, and PostgreSQL's own recovery restores pg_xact after
 * wbl_recovery.c has read the slots.  The slot stays in doubt until the first
 * PRE_COMMIT or access to nvm data in any process.  That process calls
 * nvm_wbl_resolve_slow, while everybody else waits.
 *
 * It can be repeated: a gap entry is durable before the word that takes its
 * counter for decided.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xlog.h"
#include "compat/nvm_compat.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/proc.h"
#include "utils/timestamp.h"
#include "verify/nvm_verify.h"
#include "wbl/wbl_impl.h"

/* the pool is refused after so many failed attempts at settling; pause after each */
#define SETTLE_ATTEMPTS			20
#define SETTLE_PAUSE_MS			1000

/* what resolving found in the directory */
typedef struct NvmResolveCount
{
	uint32		prepared;		/* still; each has one slot of the pool */
	uint32		committed;
	uint32		rolled_back;
	uint32		storages_freed;
	uint32		ends_cleared;
} NvmResolveCount;

/*
 * Did the transaction with this full xid commit?  It is not prepared (any more).  An
 * xid that is not below the next one was lost with the WAL that assigned it.
 * Such an xid may have been handed out a second time and run now.  It has not
 * committed then: every commit waits for us.
 */
static bool
nvm_xid_did_commit(uint64 value)
{
	FullTransactionId fxid = FullTransactionIdFromU64(value);

	if (!FullTransactionIdPrecedes(fxid, ReadNextFullTransactionId()))
		return false;
	return TransactionIdDidCommit(XidFromFullTransactionId(fxid));
}

/*
 * Does pg_xact still know of every transaction that we have to ask about?
 *
 * PostgreSQL cuts pg_xact off behind the oldest xid that any table may hold.
 * While pg_nvm is loaded, that xid does not pass one that we might ask about
 * (README.md, "Nobody asks pg_xact too late").  Nor does it pass one without
 * pg_nvm while there are nvm tables: their relfrozenxid stays.  But a server
 * that ran without pg_nvm can have dropped them, ended a prepared transaction,
 * and gone on for a million xids.  Asking would be an ERROR then, in the first
 * commit of every session.
 *
 * Nobody cuts it off while we look: a process that does has committed before,
 * and a commit comes by here.  Refuses the pool if not.  wbl_lock is held
 * exclusively.
 */
static bool
nvm_resolve_is_possible(void)
{
	FullTransactionId next = ReadNextFullTransactionId();
	uint64		oldest = U64FromFullTransactionId(next) -
	(uint32) (XidFromFullTransactionId(next) - NvmXidVars->oldestClogXid);

	NvmForEachUsedSlot(slot)
	{
		uint64		xid = NVM_FIELD_VALUE(nvm_slot(slot)->copy[0].xid);

		if (!nvm_word_asks_pg_xact(nvm_slot_load_word(slot)) || xid >= oldest)
			continue;
		nvm_pool_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						psprintf("whether transaction %llu of commit slot %u, which was prepared, has committed is not known any more",
								 (unsigned long long) xid, slot),
						"It was ended while the server ran without pg_nvm, long ago. Restore the pool and the data directory together from a backup taken while the server was stopped, or give up what the pool holds: nvm.reset_pool(force => true).");
		return false;
	}
	return true;
}

/*
 * Ask pg_xact about the transaction of each slot in doubt.  Those that have
 * not committed join the gap lists, flushed.  A transaction that PostgreSQL's
 * recovery has restored as prepared stays in progress.  wbl_lock is held
 * exclusively.
 */
static void
nvm_resolve_gaps(NvmResolveCount *count)
{
	NvmForEachUsedSlot(slot)
	{
		uint64		word = nvm_slot_load_word(slot);

		if (!nvm_word_asks_pg_xact(word))
			continue;

		/*
		 * an attempt that failed has restored it; if it has ended since,
		 * settling will find out
		 */
		if (pg_atomic_read_u32(&nvm_slots[slot].owner) == NVM_OWNER_PREPARED)
			count->prepared += nvm_slot_is_fenced(slot);
		else if (nvm_twophase_is_prepared(slot))
		{
			nvm_twophase_restore(slot);
			count->prepared += nvm_slot_is_fenced(slot);
		}
		else if (nvm_xid_did_commit(NVM_FIELD_VALUE(nvm_slot(slot)->copy[0].xid)))
			count->committed++;
		else
		{
			count->rolled_back++;
			if (!nvm_slot_add_gap(slot, NVM_WORD_COUNTER(word), true))
				ereport(ERROR,
						(errcode(ERRCODE_DATA_CORRUPTED),
						 errmsg("gap list of commit slot %u is full", slot)));
		}
	}
}

/*
 * Store words that are not in doubt, or TWOPHASE for prepared transactions;
 * flushed.  The gaps are durable.  wbl_lock is held exclusively.
 */
static void
nvm_resolve_words(void)
{
	NvmForEachUsedSlot(slot)
	{
		uint64		word = nvm_slot_load_word(slot);
		bool		prepared = pg_atomic_read_u32(&nvm_slots[slot].owner) == NVM_OWNER_PREPARED;

		if (!nvm_word_asks_pg_xact(word))
			continue;
		if (!prepared)
			nvm_slot_store_locks(slot, 0);
		nvm_slot_store_word(slot, nvm_slot_word(slot,
												prepared ? NVM_SLOT_TWOPHASE : NVM_SLOT_IDLE,
												NVM_WORD_COUNTER(word)));
	}
}

/*
 * Note in DRAM which counters are durable and frozen.  The words are durable.
 * wbl_lock is held exclusively.
 */
static void
nvm_resolve_frozen(void)
{
	NvmForEachUsedSlot(slot)
	{
		uint64		word = nvm_slot_load_word(slot);
		uint64		counter = NVM_WORD_COUNTER(word);

		if (NVM_WORD_STATE(word) == NVM_SLOT_TWOPHASE)
			continue;
		nvm_slot_advance_durable(slot, counter);
		pg_atomic_write_u64(&nvm_frozen[slot], counter);
		nvm_slots[slot].sample_counter = counter;
	}
}

/*
 * Settle the slots that ask pg_xact: first the gaps, durably, then the words.
 * wbl_lock is held exclusively.
 */
static void
nvm_resolve_slots(NvmResolveCount *count)
{
	nvm_resolve_gaps(count);
	if (count->committed + count->rolled_back + count->prepared == 0)
		return;
	nvm_drain("resolve-gaps");
	nvm_resolve_words();
	nvm_drain("resolve-words");
	nvm_resolve_frozen();
}

/*
 * Say in the log what has become of those whose process died between ASK and
 * OUTCOME.  That may be before or after their slot's word asked, or when it no
 * longer did.  Prepared transactions are left to settling.  wbl_lock is held
 * exclusively, and nobody can have committed: see nvm_xid_did_commit.
 */
static void
nvm_resolve_log(void)
{
	if (!nvm_log_is_on)
		return;
	NvmForEachUsedSlot(slot)
	{
		uint64		fxid = slot < NVM_VOLATILE_SLOT ? 0 : nvm_log_asked(slot);

		if (fxid == 0 || pg_atomic_read_u32(&nvm_slots[slot].owner) == NVM_OWNER_PREPARED)
			continue;
		nvm_log_place_outcome(slot, nvm_xid_did_commit(fxid));
		NVM_FAILPOINT("resolve-log");
	}
}

/*
 * Resolve a directory entry as the last stop left it.  No transaction of this
 * run has touched any.  Its stamps are decided now, except those of prepared
 * transactions.  If its begin is in a gap it never existed.  If its end is in
 * a gap it never ended.  If it has ended, its owner was stopped before it
 * freed the storage.
 */
static void
nvm_resolve_dir(uint32 id, NvmDirEntry *entry, void *arg)
{
	NvmResolveCount *count = (NvmResolveCount *) arg;

	if (nvm_twophase_keep_dir(entry))
		return;
	if (nvm_stamp_in_gap(entry->begin))
	{
		nvm_storage_reclaim(id);
		count->storages_freed++;
	}
	else if (entry->end != NVM_STAMP_NONE && nvm_stamp_in_gap(entry->end))
	{
		nvm_dir_clear_end(id, entry->end);
		count->ends_cleared++;
	}
	else if (entry->end != NVM_STAMP_NONE)
	{
		nvm_storage_reclaim(id);
		count->storages_freed++;
	}
}

/*
 * A bound between the xids of earlier incarnations and those of this one, as
 * PostgreSQL's recovery has found them.  What was handed out below it in this run has
 * aborted: nobody has committed yet, and nobody runs who has an older one.
 * Prepared transactions are not among these processes.  wbl_lock is held
 * exclusively, and nothing is judged.
 */
static uint64
first_xid_of_run(void)
{
	FullTransactionId next = ReadNextFullTransactionId();
	uint64		first = U64FromFullTransactionId(next);

	LWLockAcquire(ProcArrayLock, LW_SHARED);
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		TransactionId xid = *(volatile TransactionId *) &ProcGlobal->allProcs[i].xid;

		if (TransactionIdIsNormal(xid))
			first = Min(first, U64FromFullTransactionId(next) +
						(int64) (int32) (xid - XidFromFullTransactionId(next)));
	}
	LWLockRelease(ProcArrayLock);
	return first;
}

/*
 * Settle what the last stop left in doubt.  wbl_lock is held exclusively.  May
 * ERROR; the next attempt repeats a half-done one.  False if the pool was
 * refused.
 *
 * Commits need not wait for all of it.  They wait until it is judged, durably,
 * which transactions have committed, and until the xids that rows may carry
 * are skipped.
 */
static bool
nvm_resolve_locked(NvmResolveCount *count)
{
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	NVM_FAILPOINT("resolve-begin");
	if (!nvm_resolve_is_possible())
		return false;
	if (pg_atomic_read_u32(&NvmWbl->judged) == 0)
		nvm_log_note_first_xid(first_xid_of_run());
	nvm_resolve_slots(count);
	nvm_resolve_log();
	nvm_xid_keep_promise();		/* not earlier: the steps above compare with
								 * the next xid */
	NvmPool->promise_kept = true;
	pg_write_barrier();
	pg_atomic_write_u32(&NvmWbl->judged, 1);

	NVM_FAILPOINT("resolve-judged");
	nvm_dir_walk(nvm_resolve_dir, count);
	nvm_lock_list_free_orphans();
	nvm_twophase_restore_locks();
	NvmWbl->resolve_usec = nvm_elapsed_usec(start);
	nvm_witness_arm();			/* before there can be anything new in doubt */
	pg_write_barrier();
	pg_atomic_write_u32(&NvmWbl->resolved, 1);
	return true;
}

/*
 * An attempt has failed with the current ERROR, in `context`.  Note why:
 * processes that come soon after do not try again.  After many attempts the
 * pool is refused, once it is noted in the incarnation file that others go on
 * without it.  Without that note the pool is refused only if it is judged
 * which transactions have committed: before that, their xids may be handed out
 * again.
 *
 * Releases the locks that the attempt held, and LWLocks of PostgreSQL: a
 * caller that does not abort has none of its own.  So another process may have
 * settled everything before we come to note anything.  Then the pool is in use
 * and must not be refused.
 */
static void
nvm_resolve_failed(MemoryContext context)
{
	MemoryContext error_context = MemoryContextSwitchTo(context);
	ErrorData  *error = CopyErrorData();

	LWLockReleaseAll();
	LWLockAcquire(NvmWbl->wbl_lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u32(&NvmWbl->resolved) == 0)
		NvmWbl->settle_failures++;
	NvmWbl->settle_failed_at = GetCurrentTimestamp();
	NvmWbl->settle_errcode = error->sqlerrcode;
	strlcpy(NvmWbl->settle_problem, error->message ? error->message : "unknown error",
			sizeof(NvmWbl->settle_problem));
	if (NvmWbl->settle_failures >= SETTLE_ATTEMPTS && NvmPool->status == NVM_POOL_OPEN &&
		pg_atomic_read_u32(&NvmWbl->resolved) == 0 &&
		(nvm_incarnation_note_bypass(true) || pg_atomic_read_u32(&NvmWbl->judged) != 0))
		nvm_pool_refuse(error->sqlerrcode,
						psprintf("what the last stop left in doubt could not be settled in %u attempts: %s",
								 NvmWbl->settle_failures, NvmWbl->settle_problem),
						"Remove the cause and restart the server.");
	LWLockRelease(NvmWbl->wbl_lock);
	ereport(LOG,
			(errmsg("nvm: what the last stop left in doubt could not be settled: %s",
					error->message ? error->message : "unknown error")));
	FreeErrorData(error);
	MemoryContextSwitchTo(error_context);
}

/*
 * ERROR, since a process has failed a moment ago.  The caller holds wbl_lock,
 * which this releases.
 */
static void
nvm_resolve_not_again(void)
{
	int			sqlerrcode = NvmWbl->settle_errcode;
	char	   *problem = pstrdup(NvmWbl->settle_problem);
	bool		judged = pg_atomic_read_u32(&NvmWbl->judged) != 0;

	LWLockRelease(NvmWbl->wbl_lock);
	ereport(ERROR,
			(errcode(sqlerrcode),
			 judged ? errmsg("nvm tables are not available") :
			 errmsg("cannot commit yet: which transactions of nvm tables the last stop left committed is not known"),
			 errdetail("What the last stop left in doubt could not be settled: %s.", problem),
			 errhint("It will be tried again. After %d attempts the server goes on without nvm tables.",
					 SETTLE_ATTEMPTS)));
}

/*
 * Settle what the last stop left in doubt.  The first process that comes does
 * it, all others wait for it here.  If it cannot be settled the pool is
 * refused from then on.  That is no ERROR: other tables are not concerned.  An
 * ERROR on the way goes to the caller, unless the caller is only a commit and
 * all steps that commits wait for are done.
 */
static void
nvm_resolve(bool commit)
{
	NvmResolveCount count = {0};
	MemoryContext context = CurrentMemoryContext;
	uint32		interrupt_holdoff = InterruptHoldoffCount;
	volatile bool done = false;
	TimestampTz now;

	LWLockAcquire(NvmWbl->wbl_lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u32(commit ? &NvmWbl->judged : &NvmWbl->resolved) != 0 ||
		NvmPool->status != NVM_POOL_OPEN)
	{
		LWLockRelease(NvmWbl->wbl_lock);
		return;
	}
	now = GetCurrentTimestamp();
	if (NvmWbl->settle_failures > 0 && now >= NvmWbl->settle_failed_at &&
		!TimestampDifferenceExceeds(NvmWbl->settle_failed_at, now, SETTLE_PAUSE_MS))
		nvm_resolve_not_again();

	PG_TRY();
	{
		done = nvm_resolve_locked(&count);
		LWLockRelease(NvmWbl->wbl_lock);
	}
	PG_CATCH();
	{
		nvm_resolve_failed(context);
		if (!commit || pg_atomic_read_u32(&NvmWbl->judged) == 0)
			PG_RE_THROW();

		/*
		 * the next process that comes to nvm data tries again, and gets the
		 * error
		 */
		MemoryContextSwitchTo(context);
		FlushErrorState();
		InterruptHoldoffCount = interrupt_holdoff;
	}
	PG_END_TRY();
	if (!done)
		return;

	if (count.prepared > 0)
		ereport(LOG,
				(errmsg("nvm: %u transactions are prepared", count.prepared)));
	if (count.committed + count.rolled_back + count.storages_freed + count.ends_cleared > 0)
		ereport(LOG,
				(errmsg("nvm: resolved %u transactions in doubt (%u committed), freed %u storages, kept %u that a lost transaction had dropped, in %lu us",
						count.committed + count.rolled_back, count.committed,
						count.storages_freed, count.ends_cleared,
						(unsigned long) NvmWbl->resolve_usec)));
}

/*
 * See nvm_wbl.h.
 */
void
nvm_wbl_resolve_slow(void)
{
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("nvm tables cannot be used during recovery")));
	nvm_resolve(false);
}

/*
 * See nvm_wbl.h.
 */
void
nvm_wbl_judge_slow(void)
{
	if (!RecoveryInProgress())
		nvm_resolve(true);
}
