/*-------------------------------------------------------------------------
 *
 * wbl_horizon.c
 *	  frozen[]: counters that are decided, durable and visible to everybody.
 *
 * A sample of a slot is the counter up to which it is durable, then the next
 * xid S.  Once the oldest xid or snapshot of any process has passed S, every
 * process that looks at data has taken its snapshot after the sample.  Then
 * frozen[] may advance to the counter.  wbl/README.md has the argument.
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
#include "replication/slot.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/spin.h"
#include "wbl/wbl_impl.h"

/*
 * The oldest xid that the first snapshot of a logical replication slot that is
 * being created may treat as running, or invalid.
 *
 * That snapshot is of the place in the WAL where decoding became consistent.
 * The walsender has no xmin while it reads as far as that; the slot has one.
 * The walsender drops the slot's when it has exported the snapshot, or has
 * made it its own.  So call this before looking at processes.  The xmin of a
 * physical slot is about rows on a standby, where there are none of ours.
 */
TransactionId
nvm_slots_oldest_xmin(void)
{
	TransactionId oldest;

	ProcArrayGetReplicationSlotXmin(&oldest, NULL);
	if (likely(!TransactionIdIsValid(oldest)))
		return InvalidTransactionId;

	oldest = InvalidTransactionId;
	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];
		TransactionId xmin = InvalidTransactionId;

		SpinLockAcquire(&slot->mutex);
		if (slot->in_use && SlotIsLogical(slot))
			xmin = slot->effective_xmin;
		SpinLockRelease(&slot->mutex);
		if (TransactionIdIsNormal(xmin) &&
			(!TransactionIdIsValid(oldest) || TransactionIdPrecedes(xmin, oldest)))
			oldest = xmin;
	}
	LWLockRelease(ReplicationSlotControlLock);
	return oldest;
}

/*
 * The oldest xid that any process in any database runs under or still has in
 * a snapshot; if there is none, the one after the latest that has completed.
 *
 * GetOldestTransactionIdConsideredRunning would do, but it also stays behind
 * for any replication slot and for vacuum_defer_cleanup_age.  These protect
 * catalogs, and heap rows on standbys; here they would only keep stamps from
 * freezing.
 *
 * Takes the lock exclusively, since a snapshot may be on its way from one
 * process to another.  A process that imports a snapshot has the lock shared.
 * The process that exported it, without an xid, takes none to end.
 */
uint64
nvm_horizon_oldest(void)
{
	FullTransactionId next = ReadNextFullTransactionId();
	uint64		result;
	TransactionId slots = nvm_slots_oldest_xmin();
	TransactionId oldest;

	LWLockAcquire(ProcArrayLock, LW_EXCLUSIVE);
	oldest = XidFromFullTransactionId(NvmLatestCompletedXid());
	TransactionIdAdvance(oldest);
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];
		TransactionId xid = *(volatile TransactionId *) &proc->xid;
		TransactionId xmin = *(volatile TransactionId *) &proc->xmin;

		if (TransactionIdIsNormal(xid) && TransactionIdPrecedes(xid, oldest))
			oldest = xid;
		if (TransactionIdIsNormal(xmin) && TransactionIdPrecedes(xmin, oldest))
			oldest = xmin;
	}
	LWLockRelease(ProcArrayLock);
	if (TransactionIdIsValid(slots) && TransactionIdPrecedes(slots, oldest))
		oldest = slots;

	/*
	 * widen to 64 bits: not above the next xid by much, and less than 2^31
	 * below
	 */
	result = U64FromFullTransactionId(next) +
		(int64) (int32) (oldest - XidFromFullTransactionId(next));
	return result;
}

/*
 * Who finds a stamp frozen does not look at the log.  So of a slot of the volatile
 * region the log must have, durably, all that the sample counts.
 */
static bool
sample_is_persistent(uint32 slot)
{
	return nvm_slot_is_fenced(slot) || !nvm_log_is_on ||
		nvm_log_persistent() >= nvm_slots[slot].sample_position;
}

/*
 * Advance frozen[] as far as the samples allow, and take new samples of the
 * slots that have moved.  If another process is doing it, leave it at that.
 */
void
nvm_wbl_advance_frozen(void)
{
	uint64		oldest;
	uint64		next;

	if (pg_atomic_read_u32(&NvmWbl->resolved) == 0 || RecoveryInProgress())
		return;
	if (!LWLockConditionalAcquire(NvmWbl->horizon_lock, LW_EXCLUSIVE))
		return;

	oldest = nvm_horizon_oldest();

	NvmForEachUsedSlot(slot)
	{
		NvmSlotState *state = &nvm_slots[slot];

		if (state->sample_counter > pg_atomic_read_u64(&nvm_frozen[slot]) &&
			oldest > state->sample_next_xid && sample_is_persistent(slot))
			pg_atomic_write_u64(&nvm_frozen[slot], state->sample_counter);
	}

	/*
	 * Take new samples of the slots whose old one was used up.  Read the
	 * durable counters first, then the next xid: it is above every xid that
	 * they belong to.  sample_next_xid is unset meanwhile, under the lock.
	 */
	NvmForEachUsedSlot(slot)
	{
		NvmSlotState *state = &nvm_slots[slot];
		uint64		durable = pg_atomic_read_u64(&state->durable);

		if (state->sample_counter <= pg_atomic_read_u64(&nvm_frozen[slot]) &&
			durable > state->sample_counter)
		{
			state->sample_counter = durable;
			pg_read_barrier();
			if (nvm_log_is_on)
				state->sample_position = nvm_log_inserted();
			state->sample_next_xid = PG_UINT64_MAX;
		}
	}
	pg_memory_barrier();
	next = U64FromFullTransactionId(ReadNextFullTransactionId());
	NvmForEachUsedSlot(slot)
	{
		if (nvm_slots[slot].sample_next_xid == PG_UINT64_MAX)
			nvm_slots[slot].sample_next_xid = next;
	}
	LWLockRelease(NvmWbl->horizon_lock);
}

/*
 * Would frozen[] advance if only one more xid were used?  On a server that has
 * fallen silent after a burst of writes the next xid stays where it was
 * sampled.
 */
bool
nvm_horizon_wants_xid(void)
{
	uint64		next = U64FromFullTransactionId(ReadNextFullTransactionId());

	if (nvm_horizon_oldest() != next)
		return false;
	NvmForEachUsedSlot(slot)
	{
		NvmSlotState *state = &nvm_slots[slot];

		if (pg_atomic_read_u64(&state->durable) > pg_atomic_read_u64(&nvm_frozen[slot]) &&
			state->sample_next_xid == next)
			return true;
	}
	return false;
}
