/*-------------------------------------------------------------------------
 *
 * wbl_commit.c
 *	  Decisions: how a stamp becomes committed or aborted on media.
 *
 * wbl/README.md has the protocol.  In short, for counter c of a slot:
 *
 *	nvm-only	data drained; [visible to others]; DECIDED(c-1) -> DECIDED(c) by
 *				compare-and-swap, drained, by the owner or by one that needs it
 *	mixed		data and PREPARED(c) with the xid drained; commit record
 *				flushed; [visible]; DECIDED(c)
 *	abort		[invisible]; undo drained; DECIDED(c)
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/nvm_log.h"
#include "pmem/nvm_pmem.h"
#include "verify/nvm_verify.h"
#include "wbl/nvm_commit.h"
#include "wbl/wbl_impl.h"

/*
 * Called before an nvm-only transaction may become visible.  Everything that
 * it wrote was flushed at that time; wait for it.
 */
void
nvm_commit_flush_data(void)
{
	nvm_drain("commit-data");
}

/*
 * Before a mixed transaction asks pg_xact: its data and the question, durable
 * together.  The xid is stored ahead of the word, in the same lines.  A
 * transaction that wrote both regions calls this for the volatile one first: the
 * pool's fence comes last.
 */
void
nvm_commit_prepare(NvmStamp stamp, uint64 fxid)
{
	uint32		slot = NVM_STAMP_SLOT(stamp);

	nvm_slot_store_xid(slot, fxid);
	nvm_slot_store_word(slot, nvm_slot_word(slot, NVM_SLOT_PREPARED,
											NVM_STAMP_COUNTER(stamp)));
	if (nvm_slot_is_fenced(slot))
		nvm_drain("commit-prepared");
}

/*
 * Does the log bring back what this slot's transactions have written?  Then a decision
 * and the place of the transaction's record are one step.
 */
static inline bool
is_logged(uint32 slot)
{
	return !nvm_slot_is_fenced(slot) && nvm_log_is_on;
}

static bool
is_decided(NvmStamp stamp)
{
	return NVM_WORD_COUNTER(nvm_slot_load_word(NVM_STAMP_SLOT(stamp))) >= NVM_STAMP_COUNTER(stamp);
}

static void
store_decided(NvmStamp stamp)
{
	nvm_slot_store_word(NVM_STAMP_SLOT(stamp),
						nvm_slot_word(NVM_STAMP_SLOT(stamp), NVM_SLOT_DECIDED,
									  NVM_STAMP_COUNTER(stamp)));
}

/*
 * Decide an nvm-only transaction that others already see as committed.  It is
 * too late for an ERROR.
 */
void
nvm_commit_decide(NvmStamp stamp)
{
	uint32		slot = NVM_STAMP_SLOT(stamp);
	uint64		counter = NVM_STAMP_COUNTER(stamp);

	if (pg_atomic_read_u64(&nvm_slots[slot].durable) >= counter)
		return;					/* a helper did it, drained */

	if (is_logged(slot))
		nvm_log_decide(stamp, is_decided, store_decided);
	else if (!nvm_slot_exchange_word(slot,
									 nvm_slot_word(slot, NVM_SLOT_DECIDED, counter - 1),
									 nvm_slot_word(slot, NVM_SLOT_DECIDED, counter)))
		ereport(PANIC,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("commit slot %u was changed by somebody else", slot),
				 errdetail("The decision on its transaction %llu cannot be stored.",
						   (unsigned long long) counter)));
	if (nvm_slot_is_fenced(slot))
		nvm_drain("commit-decided");
	nvm_slot_advance_durable(slot, counter);
}

/*
 * Replace PREPARED, which pg_xact has decided durably by now.  Nobody waits
 * for this, but it has to be durable soon for two reasons: the slot's next
 * counter may not be handed out above a word that says PREPARED, and pg_xact
 * must not be asked about an xid that it has long truncated.  So it is drained
 * here, once per transaction that has just waited for a WAL flush.
 */
void
nvm_commit_decide_mixed(NvmStamp stamp)
{
	uint32		slot = NVM_STAMP_SLOT(stamp);
	uint64		counter = NVM_STAMP_COUNTER(stamp);

	nvm_slot_store_word(slot, nvm_slot_word(slot, NVM_SLOT_DECIDED, counter));
	if (nvm_slot_is_fenced(slot))
		nvm_drain("commit-mixed-decided");
	nvm_slot_advance_durable(slot, counter);
}

/*
 * End of an abort.  This process has flushed the undo.  It must be durable
 * before the word: else a crash between the two would find a decided stamp on
 * rows that were to go.
 */
void
nvm_commit_finish_abort(NvmStamp stamp)
{
	uint32		slot = NVM_STAMP_SLOT(stamp);
	uint64		counter = NVM_STAMP_COUNTER(stamp);

	if (nvm_slot_is_fenced(slot))
		nvm_drain("abort-undone");
	nvm_slot_store_word(slot, nvm_slot_word(slot, NVM_SLOT_DECIDED, counter));
	if (nvm_slot_is_fenced(slot))
		nvm_drain("abort-decided");
	nvm_slot_advance_durable(slot, counter);
}

/*
 * End of an abort whose undo cannot be played, or not now.  The stamp joins
 * the gap list, and the collector removes its traces.  The slot has room for
 * the stamp.  The slot is not used again while its list is full.
 */
void
nvm_commit_abandon(NvmStamp stamp)
{
	uint32		slot = NVM_STAMP_SLOT(stamp);
	uint64		counter = NVM_STAMP_COUNTER(stamp);

	LWLockAcquire(NvmWbl->wbl_lock, LW_EXCLUSIVE);
	if (!nvm_slot_add_gap(slot, counter, true))
		ereport(PANIC,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("gap list of commit slot %u is full", slot)));
	if (nvm_slot_is_fenced(slot))
		nvm_drain("abort-gap");
	nvm_slot_store_word(slot, nvm_slot_word(slot, NVM_SLOT_DECIDED, counter));
	if (nvm_slot_is_fenced(slot))
		nvm_drain("abort-gap-decided");
	LWLockRelease(NvmWbl->wbl_lock);
	nvm_slot_advance_durable(slot, counter);
}

/*
 * Make a committed transaction durable if another process has not finished
 * that.  The word carries the counter, so a helper that is late changes
 * nothing:
 *
 *	DECIDED(c-1)	nvm-only; its data was drained before it became visible.
 *					Decide it.
 *	PREPARED(c)		mixed; its commit record was flushed before it became
 *					visible, and PREPARED(c) before that.
 *	TWOPHASE(c)		the same.  But `durable` stays below c, and so does
 *					frozen[], as long as pg_xact has to be asked after a crash:
 *					nvm_twophase_settle.
 *	c or above		decided, perhaps not drained yet: flush and drain.
 */
void
nvm_stamp_ensure_durable_slow(NvmStamp stamp)
{
	uint32		slot = NVM_STAMP_SLOT(stamp);
	uint64		counter = NVM_STAMP_COUNTER(stamp);
	uint64		word;
	uint64		decided;

	if (!nvm_slot_is_used(slot))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("stamp %u/%llu names a commit slot that was never used",
						slot, (unsigned long long) counter)));

	word = nvm_slot_load_word(slot);
	decided = NVM_WORD_COUNTER(word);
	if (decided == counter && NVM_WORD_STATE(word) == NVM_SLOT_PREPARED)
	{
		nvm_slot_advance_durable(slot, counter);
		return;
	}
	if (decided == counter && NVM_WORD_STATE(word) == NVM_SLOT_TWOPHASE)
		return;
	if (decided + 1 == counter)
	{
		NVM_FAILPOINT("commit-help");
		if (is_logged(slot))
			nvm_log_decide(stamp, is_decided, store_decided);
		else
			(void) nvm_slot_exchange_word(slot, word,
										  nvm_slot_word(slot, NVM_SLOT_DECIDED, counter));
	}
	else if (decided == counter && NVM_WORD_STATE(word) == NVM_SLOT_DECIDED)
	{
		/*
		 * Another helper may be between the two copies.  `durable` says that
		 * neither is behind: its owner goes on from there.
		 */
		(void) nvm_slot_exchange_word(slot,
									  nvm_slot_word(slot, NVM_SLOT_DECIDED, counter - 1),
									  word);
	}
	else if (decided >= counter)
		nvm_flush(nvm_slot(slot), NVM_SLOT_SIZE);
	else
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("stamp %u/%llu was never handed out",
						slot, (unsigned long long) counter),
				 errdetail("The slot's transactions are decided up to %llu.",
						   (unsigned long long) decided)));
	if (nvm_slot_is_fenced(slot))
		nvm_drain("commit-helped");
	nvm_slot_advance_durable(slot, counter);
	pg_atomic_fetch_add_u64(&NvmWbl->helped, 1);
}
