/*-------------------------------------------------------------------------
 *
 * wbl_twophase.c
 *	  PREPARE TRANSACTION: a slot that waits for its transaction's outcome.
 *
 * PREPARE leaves the slot to the transaction.  COMMIT PREPARED and ROLLBACK
 * PREPARED tell nobody.  So while the slot says TWOPHASE, its stamps follow
 * PostgreSQL's proc array and pg_xact, like those of any transaction of this
 * incarnation.  That is right for as long as it takes, but it keeps the slot,
 * and holds frozen[] back.  nvm_twophase_settle persists the outcome and frees
 * the slot.  The session calls it after the command, or the keeper does, or a
 * commit that might otherwise let pg_xact be truncated first (wbl/README.md).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xlog.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify.h"
#include "wbl/nvm_commit.h"
#include "wbl/wbl_impl.h"

/* a transaction that has been finished, for nvm_dir_walk */
typedef struct NvmOutcome
{
	NvmStamp	stamp;
	bool		committed;
} NvmOutcome;

/*
 * PRE_PREPARE: data, row locks and the question, durable before the WAL
 * record.  locks is durable already: a word must not lead to a torn list.
 */
void
nvm_twophase_prepare(NvmStamp stamp, uint64 fxid, uint32 locks)
{
	uint32		slot = NVM_STAMP_SLOT(stamp);

	nvm_slot_store_xid(slot, fxid);
	nvm_slot_store_locks(slot, locks);
	NVM_FAILPOINT("prepare-locks-named");
	nvm_slot_store_word(slot, nvm_slot_word(slot, NVM_SLOT_PREPARED,
											NVM_STAMP_COUNTER(stamp)));
	if (nvm_slot_is_fenced(slot))
		nvm_drain("prepare-asked");
}

/*
 * PREPARE failed after that.  The abort is going to store a word, which must
 * not have a list beside it.  Not flushed; the word is in the same lines.
 */
void
nvm_twophase_withdraw(NvmStamp stamp)
{
	nvm_slot_store_locks(NVM_STAMP_SLOT(stamp), 0);
}

/*
 * Count the slots of prepared transactions.  wbl_lock is held exclusively.
 */
static void
twophase_recount(void)
{
	uint32		n = 0;
	uint64		oldest = PG_UINT64_MAX;

	NvmForEachUsedSlot(slot)
	{
		if (pg_atomic_read_u32(&nvm_slots[slot].owner) != NVM_OWNER_PREPARED)
			continue;
		n++;
		oldest = Min(oldest, pg_atomic_read_u64(&nvm_slots[slot].xid));
	}
	pg_atomic_write_u64(&NvmWbl->oldest_twophase, oldest);
	pg_write_barrier();
	pg_atomic_write_u32(&NvmWbl->ntwophase, n);
}

/*
 * The WAL record of PREPARE is durable, the transaction is another process's
 * in the proc array, and nobody can finish it before we return.  dirs: it has
 * made or ended storages.  Too late for an ERROR.
 *
 * The word changes to TWOPHASE, so that the xid is never again taken for one
 * that may have been handed out twice.
 */
void
nvm_twophase_hand_over(NvmStamp stamp, bool dirs)
{
	uint32		slot = NVM_STAMP_SLOT(stamp);

	nvm_slot_store_word(slot, nvm_slot_word(slot, NVM_SLOT_TWOPHASE,
											NVM_STAMP_COUNTER(stamp)));
	if (nvm_slot_is_fenced(slot))
		nvm_drain("prepare-recorded");
	nvm_slots[slot].prepared_dirs = dirs;

	LWLockAcquire(NvmWbl->wbl_lock, LW_EXCLUSIVE);
	nvm_slot_hand_over(nvm_region_of_slot(slot));
	twophase_recount();
	LWLockRelease(NvmWbl->wbl_lock);
}

/* ---- the outcome ---- */

/*
 * Settle a storage that a finished transaction made or ended.  The collector,
 * or DDL of another session, may have been here before.  An entry that has our
 * stamp while storage_lock is held is the one we mean.
 */
static void
twophase_settle_dir(uint32 id, NvmDirEntry *entry, void *arg)
{
	NvmOutcome *outcome = (NvmOutcome *) arg;
	uint64		begin = nvm_load(&entry->begin);
	uint64		end = nvm_load(&entry->end);

	if (begin != outcome->stamp && end != outcome->stamp)
		return;
	if (!outcome->committed && begin != outcome->stamp)
	{
		nvm_dir_clear_end(id, outcome->stamp);
		return;
	}
	if (outcome->committed && end != outcome->stamp)
		return;

	LWLockAcquire(NvmWbl->storage_lock, LW_EXCLUSIVE);
	if ((outcome->committed ? entry->end : entry->begin) == outcome->stamp)
		nvm_dir_reclaim(id);
	LWLockRelease(NvmWbl->storage_lock);
}

/*
 * The transaction of a slot was rolled back.  If its rows have been rebuilt, a root of
 * it may be a stub, which leads to a version of its: the collector has to see to
 * that link, as after a crash (torn).
 */
static void
twophase_add_gap(uint32 slot, uint64 counter)
{
	bool		rebuilt = !nvm_slot_is_fenced(slot) && nvm_slots[slot].restored_counter == counter;

	if (!nvm_slot_add_gap(slot, counter, rebuilt))
		ereport(PANIC,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("gap list of commit slot %u is full", slot)));
	if (nvm_slot_is_fenced(slot))
		nvm_drain("twophase-gap");
}

/*
 * Persist the outcome of transaction fxid in this slot.  The transaction is no
 * longer in progress: pg_xact knows it, durably.  Cannot fail once it has
 * asked.
 *
 * Since the caller looked, another process may have settled the transaction.
 * A second transaction may have taken the slot since then; that one is
 * prepared as well, but not over.
 *
 * The slot is given back last: by then the process that decided is done with
 * the list of locks and the directory.
 */
static void
twophase_settle_slot(uint32 slot, uint64 fxid)
{
	NvmSlotState *state = &nvm_slots[slot];
	uint64		word;
	uint64		locks;
	bool		dirs;
	NvmOutcome	outcome;

	LWLockAcquire(NvmWbl->wbl_lock, LW_EXCLUSIVE);
	word = nvm_slot_load_word(slot);
	if (pg_atomic_read_u32(&state->owner) != NVM_OWNER_PREPARED ||
		pg_atomic_read_u64(&state->xid) != fxid ||
		NVM_WORD_STATE(word) != NVM_SLOT_TWOPHASE)
	{
		LWLockRelease(NvmWbl->wbl_lock);
		return;					/* somebody else was faster */
	}
	outcome.stamp = NVM_STAMP_MAKE(slot, NVM_WORD_COUNTER(word));
	outcome.committed = TransactionIdDidCommit((TransactionId) fxid);
	locks = NVM_FIELD_VALUE(nvm_slot(slot)->copy[0].locks);
	dirs = state->prepared_dirs;

	if (!outcome.committed)
		twophase_add_gap(slot, NVM_WORD_COUNTER(word));
	NVM_FAILPOINT("twophase-before-decision");
	/* as long as the word asks, a start says the outcome */
	if (nvm_log_is_on && !nvm_slot_is_fenced(slot) && nvm_log_asked(slot) != 0)
		nvm_log_place_outcome(slot, outcome.committed);
	NVM_FAILPOINT("twophase-logged");
	/* the list first: no word but one that asks may have one beside it */
	nvm_slot_store_locks(slot, 0);
	nvm_slot_store_word(slot, nvm_slot_word(slot, NVM_SLOT_IDLE, NVM_WORD_COUNTER(word)));
	if (nvm_slot_is_fenced(slot))
		nvm_drain("twophase-decided");
	nvm_slot_advance_durable(slot, NVM_WORD_COUNTER(word));
	LWLockRelease(NvmWbl->wbl_lock);

	nvm_lock_list_free(slot, (uint32) locks);
	if (dirs)
		nvm_dir_walk(twophase_settle_dir, &outcome);
	NVM_FAILPOINT("twophase-before-release");

	/* the transaction has one slot of the pool, and perhaps another */
	if (nvm_slot_is_fenced(slot))
		pg_atomic_fetch_add_u64(outcome.committed ? &NvmWbl->mixed_commits : &NvmWbl->aborts, 1);
	LWLockAcquire(NvmWbl->wbl_lock, LW_EXCLUSIVE);
	state->prepared_dirs = false;
	pg_atomic_write_u32(&state->owner, 0);
	twophase_recount();
	LWLockRelease(NvmWbl->wbl_lock);
}

/*
 * See nvm_wbl.h.
 *
 * PostgreSQL writes and flushes the outcome, then enters it in pg_xact, then
 * takes the transaction from the proc array.
 */
void
nvm_twophase_settle(void)
{
	if (NvmWbl == NULL || pg_atomic_read_u32(&NvmWbl->ntwophase) == 0 ||
		pg_atomic_read_u32(&NvmWbl->resolved) == 0)
		return;

	NvmForEachUsedSlot(slot)
	{
		NvmSlotState *state = &nvm_slots[slot];
		uint64		fxid;

		if (pg_atomic_read_u32(&state->owner) != NVM_OWNER_PREPARED)
			continue;
		pg_read_barrier();
		fxid = pg_atomic_read_u64(&state->xid);
		if (TransactionIdIsInProgress((TransactionId) fxid))
			continue;
		NVM_FAILPOINT("twophase-over");
		twophase_settle_slot(slot, fxid);
	}
}

/*
 * PRE_COMMIT while there are prepared transactions: may this one have raised a
 * relfrozenxid above the xid of one that is finished?  VACUUM takes its cutoff
 * from a proc array that is newer than its snapshot.  Other commands are bound
 * by their own xmin, which is no newer than RecentXmin.
 */
void
nvm_twophase_before_commit_slow(void)
{
	uint64		oldest = pg_atomic_read_u64(&NvmWbl->oldest_twophase);

	if ((MyProc->statusFlags & PROC_IN_VACUUM) ||
		TransactionIdPrecedes((TransactionId) oldest, RecentXmin))
		nvm_twophase_settle();
}

/* ---- after a restart ---- */

/*
 * Has PostgreSQL's recovery restored the transaction in this slot, and has
 * nobody finished it yet?  The xid of a lost transaction may have been handed
 * out again, also to a subtransaction.  But no transaction can have been
 * prepared in this incarnation before its slots are resolved.
 */
bool
nvm_twophase_is_prepared(uint32 slot)
{
	uint64		value = NVM_FIELD_VALUE(nvm_slot(slot)->copy[0].xid);
	TransactionId xid = (TransactionId) value;

	if (!FullTransactionIdPrecedes(FullTransactionIdFromU64(value),
								   ReadNextFullTransactionId()) ||
		!TransactionIdIsInProgress(xid))
		return false;
	for (int i = 0; i < max_prepared_xacts; i++)
	{
		if (*(volatile TransactionId *) &PreparedXactProcs[i].xid == xid)
			return true;
	}
	return false;
}

/*
 * Take a slot over for its prepared transaction.  wbl_lock is held
 * exclusively, and nobody uses nvm data.
 */
void
nvm_twophase_restore(uint32 slot)
{
	NvmSlotState *state = &nvm_slots[slot];

	state->restored_counter = NVM_WORD_COUNTER(nvm_slot_load_word(slot));
	state->restored_xid = (TransactionId) NVM_FIELD_VALUE(nvm_slot(slot)->copy[0].xid);
	state->prepared_dirs = false;	/* nvm_twophase_keep_dir will tell */
	pg_atomic_write_u64(&state->xid, NVM_FIELD_VALUE(nvm_slot(slot)->copy[0].xid));
	pg_atomic_write_u64(&state->running, state->restored_counter);
	pg_atomic_write_u32(&state->owner, NVM_OWNER_PREPARED);
	twophase_recount();
	NvmWbl->nrestored = Max(NvmWbl->nrestored, pg_atomic_read_u32(&NvmWbl->ntwophase));
}

static bool
stamp_is_prepared(NvmStamp stamp)
{
	uint32		slot = NVM_STAMP_SLOT(stamp);

	return stamp != NVM_STAMP_NONE && slot < NVM_SLOT_NUMBERS &&
		pg_atomic_read_u32(&nvm_slots[slot].owner) == NVM_OWNER_PREPARED &&
		nvm_slots[slot].restored_counter == NVM_STAMP_COUNTER(stamp);
}

/*
 * Is the fate of a storage in the hands of a prepared transaction?
 */
bool
nvm_twophase_keep_dir(NvmDirEntry *entry)
{
	bool		begin = stamp_is_prepared(entry->begin);
	bool		end = stamp_is_prepared(entry->end);

	if (begin)
		nvm_slots[NVM_STAMP_SLOT(entry->begin)].prepared_dirs = true;
	if (end)
		nvm_slots[NVM_STAMP_SLOT(entry->end)].prepared_dirs = true;
	return begin || end;
}

/*
 * Have a slot lead to another list of row locks, which is durable, or to none.
 * wbl_lock is held exclusively.
 *
 * With the copies apart a start takes the first one's list: both are whole.
 */
static void
replace_locks(uint32 slot, uint32 from, uint32 to)
{
	NvmSlot    *s = nvm_slot(slot);
	uint64		field = nvm_slot_field(slot, NVM_FIELD_LOCKS, to);

	/*
	 * after an error the next attempt would free `from` before this is
	 * durable
	 */
	START_CRIT_SECTION();
	nvm_store(&s->copy[0].locks, field);
	NVM_FAILPOINT("resolve-locks-first-copy");
	nvm_store(&s->copy[1].locks, field);
	nvm_flush(s, NVM_SLOT_SIZE);
	nvm_drain("resolve-locks-replaced");
	END_CRIT_SECTION();
	nvm_lock_list_free(slot, from);
}

/*
 * Give the restored transactions their row locks, and forget those whose rows are
 * gone.  May ERROR; then all is done again.  wbl_lock is held exclusively.
 */
void
nvm_twophase_restore_locks(void)
{

	NvmForEachUsedSlot(slot)
	{
		uint32		locks = (uint32) NVM_FIELD_VALUE(nvm_slot(slot)->copy[0].locks);
		uint32		kept;

		/* not of a transaction that this run has prepared: they are in force */
		if (pg_atomic_read_u32(&nvm_slots[slot].owner) != NVM_OWNER_PREPARED ||
			nvm_slots[slot].restored_counter != NVM_WORD_COUNTER(nvm_slot_load_word(slot)) ||
			locks == 0)
			continue;
		NVM_FAILPOINT("resolve-locks");
		kept = nvm_lock_list_restore(slot, locks, nvm_slots[slot].restored_xid);
		if (kept != locks)
			replace_locks(slot, locks, kept);
	}
}
