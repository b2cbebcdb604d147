/*-------------------------------------------------------------------------
 *
 * wbl_recovery.c
 *	  Recovery by analysis of the commit slots alone, and what was in doubt.
 *
 * nvm_recovery_analyse runs in the postmaster before anybody else.  It reads
 * the used slots.  Each can have left one stamp undecided, which joins the
 * slot's gap list.  Its time depends on the number of slots, that is on the
 * largest number of sessions that ever wrote at once.
 *
 * Only pg_xact knows whether a mixed transaction that was prepared has
 * committed, and PostgreSQL's own recovery restores pg_xact after that.  The
 * slot stays in doubt until the first PRE_COMMIT or access to nvm data in any
 * process.  That process calls nvm_wbl_resolve_slow, while everybody else
 * waits.
 *
 * Both can be repeated: a gap entry is durable before the word that takes its
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
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "portability/instr_time.h"
#include "utils/timestamp.h"
#include "verify/nvm_verify.h"
#include "wbl/wbl_impl.h"

/* the pool is refused after so many failed attempts at settling; pause after each */
#define SETTLE_ATTEMPTS			20
#define SETTLE_PAUSE_MS			1000

/* what resolving found in the directory */
typedef struct NvmResolveCount
{
	uint32		prepared;		/* still */
	uint32		committed;
	uint32		rolled_back;
	uint32		storages_freed;
	uint32		ends_cleared;
} NvmResolveCount;

static uint64
elapsed_usec(instr_time start)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	return INSTR_TIME_GET_MICROSEC(now);
}

static inline bool
nvm_word_asks_pg_xact(uint64 word)
{
	return NVM_WORD_STATE(word) == NVM_SLOT_PREPARED ||
		NVM_WORD_STATE(word) == NVM_SLOT_TWOPHASE;
}

/*
 * Read the two copies of a slot into one.  False if the slot cannot be read;
 * the pool has been refused.
 */
static bool
nvm_slot_read(uint32 slot, NvmSlotCopy *result)
{
	const char *problem[2];

	if (!nvm_slot_join(slot, nvm_slot(slot), result, problem))
	{
		nvm_pool_refuse(ERRCODE_DATA_CORRUPTED,
						psprintf("both copies of commit slot %u of the pool are damaged: %s; %s",
								 slot, problem[0], problem[1]),
						"Restore the pool from a backup. Which transactions of this slot committed is not recorded anywhere else.");
		return false;
	}
	if (problem[0] != NULL || problem[1] != NULL)
	{
		int			bad = problem[0] != NULL ? 0 : 1;

		ereport(LOG,
				(errmsg("nvm: repaired copy %d of commit slot %u from the other copy",
						bad, slot),
				 errdetail("The damage: %s.", problem[bad])));
	}
	return true;
}

/*
 * Make both copies on media equal to the one that was read, word last.  In the
 * postmaster, before anybody uses the pool.
 */
static void
nvm_slot_write_back(uint32 slot, const NvmSlotCopy *want)
{
	NvmSlot    *s = nvm_slot(slot);

	for (int i = 0; i < 2; i++)
	{
		NvmSlotCopy *copy = &s->copy[i];

		if (memcmp(copy, want, sizeof(NvmSlotCopy)) == 0)
			continue;
		copy->xid = want->xid;
		memcpy(copy->gap, want->gap, sizeof(copy->gap));
		copy->statement = want->statement;
		copy->locks = want->locks;
		nvm_store(&copy->word, want->word);
		nvm_flush(copy, sizeof(NvmSlotCopy));
	}
}

/*
 * The number of used slots.  False if they make no sense; the pool has been
 * refused.
 */
static bool
nvm_slots_count(uint32 *count)
{
	NvmImage	image = {.base = nvm_pool_base,.nchunks = nvm_regions[NVM_REGION_POOL].nchunks};
	uint32		hole;

	if (nvm_slots_prefix(&image, count, &hole))
		return true;
	nvm_pool_refuse(ERRCODE_DATA_CORRUPTED,
					psprintf("commit slot %u of the pool is blank, but slot %u is in use",
							 hole, *count),
					"Restore the pool from a backup.");
	return false;
}

/*
 * Take the gap list of a slot into DRAM, as it was read.
 */
static void
nvm_slot_take_gaps(NvmSlotState *state, const NvmSlotCopy *copy)
{
	for (int i = 0; i < NVM_SLOT_GAPS; i++)
	{
		state->gap[i] = NVM_FIELD_VALUE(copy->gap[i]);
		if (state->gap[i] != 0)
		{
			state->ngaps++;
			state->gap_torn[i] = true;
			pg_atomic_fetch_add_u32(&NvmWbl->ntorn, 1);
			pg_atomic_fetch_add_u32(&NvmWbl->ngaps, 1);
		}
	}
}

/*
 * Can pg_xact tell whether the transaction of a slot that says PREPARED has
 * committed?  Not if the server was run without the pool: somebody else has
 * recovered then, and may have reused its xid.  If not, the pool has been
 * refused.
 */
static bool
nvm_slot_can_be_asked(uint32 slot)
{
	if (!(NvmPool->data_clean && !NvmPool->was_clean) && !NvmPool->was_bypassed)
		return true;
	nvm_pool_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
					psprintf("a transaction of commit slot %u was in doubt when the server was run without the NVM pool",
							 slot),
					"Whether it committed cannot be told any more. Restore the pool and the data directory together "
					"from a backup taken while the server was stopped. To give up the rows of all nvm tables and "
					"start with an empty pool, call nvm.reset_pool() and restart the server.");
	return false;
}

/*
 * Are the row locks of the transaction that a slot has in doubt intact, if it has
 * any?  If not, the pool has been refused.
 */
static bool
nvm_slot_locks_intact(uint32 slot, const NvmSlotCopy *copy)
{
	const char *problem;

	if (copy->locks == 0)
		return true;
	problem = nvm_lock_list_problem(slot, NVM_WORD_COUNTER(copy->word),
									(uint32) NVM_FIELD_VALUE(copy->locks));
	if (problem == NULL)
		return true;
	nvm_pool_refuse(ERRCODE_DATA_CORRUPTED,
					psprintf("the row locks of the prepared transaction in commit slot %u of the pool are damaged: %s",
							 slot, problem),
					"Restore the pool and the data directory together from a backup taken while the server was stopped.");
	return false;
}

/*
 * Find out up to which counter a slot is decided.  If it has a lost counter,
 * add that to its gap list, flushed.  *word is the word that the slot gets
 * once that is durable.  False if the pool was refused.
 */
static bool
nvm_slot_find_decided(uint32 slot, const NvmSlotCopy *copy, uint64 *decided, uint64 *word)
{
	NvmSlotState *state = &nvm_slots[slot];
	uint64		counter = NVM_WORD_COUNTER(copy->word);

	*decided = counter;
	*word = copy->word;
	switch (NVM_WORD_STATE(copy->word))
	{
		case NVM_SLOT_DECIDED:

			/*
			 * Without a free entry no further counter is handed out, so a
			 * full list means that the slot's process has just given up an
			 * abort.
			 */
			if (nvm_slot_add_gap(slot, counter + 1, true))
			{
				*decided = counter + 1;
				NvmWbl->losers_found++;
			}
			*word = nvm_slot_word(slot, NVM_SLOT_IDLE, *decided);
			return true;
		case NVM_SLOT_PREPARED:
			if (!nvm_slot_can_be_asked(slot))
				return false;
			break;
		case NVM_SLOT_TWOPHASE:

			/*
			 * its xid cannot have been reused, whichever process has
			 * recovered
			 */
			break;
		default:
			return true;
	}

	/* in doubt */
	*decided = counter - 1;
	NvmWbl->indoubt_found++;
	if (!nvm_slot_locks_intact(slot, copy))
		return false;
	pg_atomic_write_u64(&state->running, counter);
	pg_atomic_write_u64(&state->xid, NVM_FIELD_VALUE(copy->xid));
	return true;
}

/*
 * Take one slot into DRAM.  The counter that it may have left undecided joins
 * its gap list, flushed.  *word is the word that the slot gets once that is
 * durable.  False if the pool was refused.  In the postmaster, before anybody
 * uses the pool.
 */
static bool
nvm_slot_analyse(uint32 slot, uint64 *word)
{
	NvmSlotState *state = &nvm_slots[slot];
	NvmSlotCopy copy;
	uint64		decided;

	if (!nvm_slot_read(slot, &copy))
		return false;

	/*
	 * A stop between the stores of the locks and of the word, in either
	 * order, leaves locks beside a word that asks nothing.  They must not be
	 * there when a mixed commit says PREPARED.
	 */
	if (!nvm_word_asks_pg_xact(copy.word))
		copy.locks = 0;
	nvm_slot_write_back(slot, &copy);

	/*
	 * a process that died may not have flushed the copies that are believed
	 * here
	 */
	nvm_flush(nvm_slot(slot), NVM_SLOT_SIZE);

	nvm_slot_take_gaps(state, &copy);
	if (!nvm_slot_find_decided(slot, &copy, &decided, word))
		return false;
	pg_atomic_write_u64(&state->durable, decided);
	pg_atomic_write_u64(&nvm_frozen[slot], decided);
	state->sample_counter = decided;
	return true;
}

/*
 * Find out from the slots what the last stop left undecided.  Postmaster only;
 * refuses the pool if a slot cannot be read, does not throw.
 */
void
nvm_recovery_analyse(void)
{
	instr_time	start;
	uint32		nslots;
	uint64	   *words;
	bool		changed = false;

	INSTR_TIME_SET_CURRENT(start);
	if (!nvm_slots_count(&nslots))
		return;

	words = palloc(sizeof(uint64) * (nslots + 1));
	for (uint32 slot = 0; slot < nslots; slot++)
	{
		if (!nvm_slot_analyse(slot, &words[slot]))
			return;
	}
	nvm_drain("recovery-gaps");
	for (uint32 slot = 0; slot < nslots; slot++)
	{
		if (words[slot] == nvm_slot_load_word(slot))
			continue;
		nvm_slot_store_word(slot, words[slot]);
		changed = true;
	}
	if (changed)
		nvm_drain("recovery-words");
	pfree(words);
	pg_atomic_write_u32(&NvmWbl->slots_used, nslots);
	NvmWbl->recovery_usec = elapsed_usec(start);

	ereport(LOG,
			(errmsg("nvm: recovery found %u losers, %u in doubt, %u gaps in %lu us (pool opened in %lu us)",
					NvmWbl->losers_found, NvmWbl->indoubt_found,
					pg_atomic_read_u32(&NvmWbl->ngaps),
					(unsigned long) NvmWbl->recovery_usec,
					(unsigned long) NvmPool->open_usec)));
}

/*
 * Did the transaction in this slot commit?  It is not prepared (any more).  An
 * xid that is not below the next one was lost with the WAL that assigned it.
 * Such an xid may have been handed out a second time and run now.  It has not
 * committed then: every commit waits for us.
 */
static bool
nvm_slot_did_commit(uint32 slot)
{
	uint64		value = NVM_FIELD_VALUE(nvm_slot(slot)->copy[0].xid);
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
	uint32		nslots = pg_atomic_read_u32(&NvmWbl->slots_used);
	FullTransactionId next = ReadNextFullTransactionId();
	uint64		oldest = U64FromFullTransactionId(next) -
	(uint32) (XidFromFullTransactionId(next) - NvmXidVars->oldestClogXid);

	for (uint32 slot = 0; slot < nslots; slot++)
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
nvm_resolve_gaps(uint32 nslots, NvmResolveCount *count)
{
	for (uint32 slot = 0; slot < nslots; slot++)
	{
		uint64		word = nvm_slot_load_word(slot);

		if (!nvm_word_asks_pg_xact(word))
			continue;

		/*
		 * an attempt that failed has restored it; if it has ended since,
		 * settling will find out
		 */
		if (pg_atomic_read_u32(&nvm_slots[slot].owner) == NVM_OWNER_PREPARED)
			count->prepared++;
		else if (nvm_twophase_is_prepared(slot))
		{
			nvm_twophase_restore(slot);
			count->prepared++;
		}
		else if (nvm_slot_did_commit(slot))
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
nvm_resolve_words(uint32 nslots)
{
	for (uint32 slot = 0; slot < nslots; slot++)
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
nvm_resolve_frozen(uint32 nslots)
{
	for (uint32 slot = 0; slot < nslots; slot++)
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
	uint32		nslots = pg_atomic_read_u32(&NvmWbl->slots_used);

	nvm_resolve_gaps(nslots, count);
	if (count->committed + count->rolled_back + count->prepared == 0)
		return;
	nvm_drain("resolve-gaps");
	nvm_resolve_words(nslots);
	nvm_drain("resolve-words");
	nvm_resolve_frozen(nslots);
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
	nvm_resolve_slots(count);
	nvm_xid_keep_promise();		/* not earlier: the steps above compare with
								 * the next xid */
	NvmPool->promise_kept = true;
	pg_write_barrier();
	pg_atomic_write_u32(&NvmWbl->judged, 1);

	NVM_FAILPOINT("resolve-judged");
	nvm_dir_walk(nvm_resolve_dir, count);
	nvm_lock_list_free_orphans();
	nvm_twophase_restore_locks();
	NvmWbl->resolve_usec = elapsed_usec(start);
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
