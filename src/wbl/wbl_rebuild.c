/*-------------------------------------------------------------------------
 *
 * wbl_rebuild.c
 *	  The stamp of rows that are rebuilt from the log.
 *
 * A rebuilt row gets one stamp of the volatile region, like any other: with it
 * everything that looks at stamps goes on as it is.  But no transaction is behind
 * it.  It has no xid; nobody looks for one, since the stamp is frozen before
 * there are rows.
 *
 * If the process dies before the stamp is decided, the next start, or nvm_slot_exit,
 * puts it into the gap.  Nothing has it.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/nvm_log.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_region.h"
#include "verify/nvm_verify.h"
#include "wbl/nvm_commit.h"
#include "wbl/nvm_rebuild_stamp.h"
#include "wbl/wbl_impl.h"

/*
 * See nvm_rebuild_stamp.h.  Of a slot that nobody has had: nvm_rebuild_decide freezes all its
 * counters, and a prepared transaction may have ended in any other one.
 */
NvmStamp
nvm_rebuild_stamp(void)
{
	return nvm_slot_new_stamp(NVM_REGION_VOLATILE);
}

/*
 * See nvm_rebuild_stamp.h.  Each of them has a slot of the pool, which says so for as long as
 * sessions of this run may have a snapshot of the time before its end.
 */
bool
nvm_rebuild_was_prepared(uint64 fxid)
{
	NvmForEachUsedSlot(slot)
	{
		if (nvm_slots[slot].restored_counter != 0 &&
			nvm_slots[slot].restored_xid == (TransactionId) fxid)
			return true;
	}
	return false;
}

/*
 * The stamp that an earlier attempt has taken for a prepared transaction, or NONE.  Its
 * process may have died before it has noted that the log wants the outcome.
 */
static NvmStamp
find_prepared_stamp(uint64 fxid, NvmLogPosition position)
{
	NvmStamp	stamp = NVM_STAMP_NONE;

	LWLockAcquire(NvmWbl->wbl_lock, LW_EXCLUSIVE);
	NvmForEachUsedSlot(slot)
	{
		uint64		word = nvm_slot_load_word(slot);

		if (nvm_slot_is_fenced(slot) || NVM_WORD_STATE(word) != NVM_SLOT_TWOPHASE ||
			pg_atomic_read_u32(&nvm_slots[slot].owner) != NVM_OWNER_PREPARED ||
			pg_atomic_read_u64(&nvm_slots[slot].xid) != fxid)
			continue;
		nvm_log_note_asked(slot, fxid, position);
		stamp = NVM_STAMP_MAKE(slot, NVM_WORD_COUNTER(word));
		break;
	}
	LWLockRelease(NvmWbl->wbl_lock);
	return stamp;
}

/*
 * See nvm_rebuild_stamp.h.  Each prepared transaction that has written nvm data has a
 * slot of the pool.
 */
bool
nvm_rebuild_knows_prepared(uint64 fxid)
{
	bool		found = false;

	LWLockAcquire(NvmWbl->wbl_lock, LW_SHARED);
	NvmForEachUsedSlot(slot)
	{
		if (nvm_slot_is_fenced(slot) &&
			NVM_WORD_STATE(nvm_slot_load_word(slot)) == NVM_SLOT_TWOPHASE &&
			pg_atomic_read_u64(&nvm_slots[slot].xid) == fxid)
			found = true;
	}
	LWLockRelease(NvmWbl->wbl_lock);
	return found;
}

/*
 * See nvm_rebuild_stamp.h.
 *
 * The transaction may end at any moment, and be settled once the slot is its own.  Then
 * its stamp is decided, or in the gap, and its rows are what that says.  Nobody
 * comes to them before their table opens, nor does the collector drop the gap.
 *
 * A death leaves DECIDED, and so a gap; PREPARED or TWOPHASE, which resolving makes
 * the transaction's; the last step stores no word.
 */
NvmStamp
nvm_rebuild_prepared_stamp(uint64 fxid, NvmLogPosition position)
{
	NvmStamp	stamp;
	NvmSlotState *state;

	Assert(NvmWbl->nrestored > 0);
	nvm_log_reserve_outcome();
	stamp = find_prepared_stamp(fxid, position);
	if (stamp != NVM_STAMP_NONE)
		return stamp;

	stamp = nvm_slot_next_stamp(NVM_REGION_VOLATILE, fxid);
	state = &nvm_slots[NVM_STAMP_SLOT(stamp)];
	state->restored_counter = NVM_STAMP_COUNTER(stamp);
	state->restored_xid = (TransactionId) fxid;
	nvm_twophase_prepare(stamp, fxid, 0);
	NVM_FAILPOINT("rebuild-prepared");
	nvm_log_note_asked(NVM_STAMP_SLOT(stamp), fxid, position);
	nvm_twophase_hand_over(stamp, false);
	return stamp;
}

/*
 * See nvm_rebuild_stamp.h.
 *
 * frozen[] advances at once, although the horizon has not passed.  It means that
 * every snapshot sees what has such a stamp, or that it is in a gap.  The rows were
 * committed in an earlier run, so every snapshot of this one sees them.  The slot has
 * no counter below the stamp's.  And frozen[] may not pass what is not persistent in
 * the log (log/README.md): these rows come from there.
 */
void
nvm_rebuild_decide(NvmStamp stamp)
{
	uint32		slot = NVM_STAMP_SLOT(stamp);
	uint64		counter = NVM_STAMP_COUNTER(stamp);

	if (pg_atomic_read_u64(&nvm_slots[slot].durable) >= counter)
		return;
	pg_write_barrier();			/* after the rows */
	nvm_slot_store_word(slot, nvm_slot_word(slot, NVM_SLOT_DECIDED, counter));
	nvm_slot_advance_durable(slot, counter);
	LWLockAcquire(NvmWbl->horizon_lock, LW_EXCLUSIVE);
	pg_atomic_write_u64(&nvm_frozen[slot], counter);
	nvm_slots[slot].sample_counter = counter;
	LWLockRelease(NvmWbl->horizon_lock);
	nvm_slot_release(NVM_REGION_VOLATILE);
}

/* ---- transactions that are replayed ---- */

static int	replay_slot = -1;

/*
 * See nvm_rebuild_stamp.h.
 */
void
nvm_rebuild_take_slot(void)
{
	replay_slot = (int) nvm_slot_take_own(NVM_REGION_VOLATILE);
}

/*
 * See nvm_rebuild_stamp.h.  As above: each snapshot of this run sees what was committed in an
 * earlier one, and the log has it.  Aborted ones have taken back what they did, or are in
 * the gap.
 */
bool
nvm_rebuild_settle_slot(void)
{
	uint64		durable;

	if (replay_slot < 0)
		return true;
	if (nvm_slot_of_process(NVM_REGION_VOLATILE) != replay_slot)
		return false;
	durable = pg_atomic_read_u64(&nvm_slots[replay_slot].durable);
	LWLockAcquire(NvmWbl->horizon_lock, LW_EXCLUSIVE);
	pg_atomic_write_u64(&nvm_frozen[replay_slot], durable);
	nvm_slots[replay_slot].sample_counter = durable;
	LWLockRelease(NvmWbl->horizon_lock);
	return true;
}
