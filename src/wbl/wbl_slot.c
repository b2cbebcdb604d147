/*-------------------------------------------------------------------------
 *
 * wbl_slot.c
 *	  Commit slots: their words, their gap entries, their owners.
 *
 * A process that writes nvm data takes a slot with its first write and keeps
 * it until it exits.  The slot's word on media says DECIDED from before the
 * first stamp is handed out until the exit.  So after a crash a slot that says
 * IDLE had nothing in flight.
 *
 * Slots are used from number 0 up.  A process takes a new one, under wbl_lock,
 * only once its predecessor's first word is durable.  The used slots are
 * therefore a prefix of the array, on media too, and recovery reads no others.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/ipc.h"
#include "verify/nvm_verify.h"
#include "wbl/nvm_commit.h"
#include "wbl/wbl_impl.h"

/*
 * This process's slot in each region, or -1, and the last counter it has handed
 * out there
 */
static int	my_slot[NVM_NUM_REGIONS] = {-1, -1};
static uint64 my_counter[NVM_NUM_REGIONS];
static bool exit_registered = false;

/*
 * Address of a slot in the pool.
 */
NvmSlot *
nvm_slot(uint32 slot)
{
	return nvm_region_slot(slot);
}

/*
 * Store a word in both copies and flush.  A line is written back as it was at
 * some moment.  So, with release order, earlier stores into the same line
 * reach the media no later than the word.
 */
void
nvm_slot_store_word(uint32 slot, uint64 word)
{
	NvmSlot    *s = nvm_slot(slot);

	nvm_store(&s->copy[0].word, word);
	nvm_store(&s->copy[1].word, word);
	nvm_flush(s, NVM_SLOT_SIZE);
}

/*
 * Store the xid of a mixed transaction in both copies; the word that follows
 * is in the same lines and flushes it.
 */
void
nvm_slot_store_xid(uint32 slot, uint64 fxid)
{
	NvmSlot    *s = nvm_slot(slot);
	uint64		field = nvm_slot_field(slot, NVM_FIELD_XID, fxid);

	nvm_store(&s->copy[0].xid, field);
	nvm_store(&s->copy[1].xid, field);
}

/*
 * The same for the place of the row locks of a transaction that is being
 * prepared.
 */
void
nvm_slot_store_locks(uint32 slot, uint32 unit)
{
	NvmSlot    *s = nvm_slot(slot);
	uint64		field = nvm_slot_field(slot, NVM_FIELD_LOCKS, unit);

	nvm_store(&s->copy[0].locks, field);
	nvm_store(&s->copy[1].locks, field);
}

/*
 * Change both copies from one word to another and flush.  False if a copy held
 * neither: then the decision was for another transaction's counter.
 */
bool
nvm_slot_exchange_word(uint32 slot, uint64 from, uint64 to)
{
	NvmSlot    *s = nvm_slot(slot);
	bool		ok = true;

	for (int i = 0; i < 2; i++)
	{
		uint64		seen = from;

		if (!__atomic_compare_exchange_n(&s->copy[i].word, &seen, to, false,
										 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			ok = ok && seen == to;
		if (i == 0)
			NVM_FAILPOINT("slot-exchange");
	}
	nvm_flush(s, NVM_SLOT_SIZE);
	return ok;
}

void
nvm_slot_advance_durable(uint32 slot, uint64 counter)
{
	pg_atomic_uint64 *durable = &nvm_slots[slot].durable;
	uint64		seen = pg_atomic_read_u64(durable);

	while (seen < counter &&
		   !pg_atomic_compare_exchange_u64(durable, &seen, counter))
		;
}

/*
 * Is the counter of a stamp in its slot's gap list?  Without a lock: an entry
 * is set before its counter is frozen, and removed only when nobody can hold
 * such a stamp any more.  Entries do not move.
 */
bool
nvm_stamp_in_gap_slow(NvmStamp stamp)
{
	uint32		slot = NVM_STAMP_SLOT(stamp);
	uint64		counter = NVM_STAMP_COUNTER(stamp);
	volatile NvmSlotState *state;

	if (slot >= NVM_SLOT_NUMBERS || counter == 0)
		return false;
	state = &nvm_slots[slot];
	if (state->ngaps == 0)
		return false;
	for (int i = 0; i < NVM_SLOT_GAPS; i++)
	{
		if (state->gap[i] == counter)
			return true;
	}
	return false;
}

/*
 * Add a counter to a slot's gap list, in DRAM and in both copies; flushed, the
 * caller drains before it lets the counter count as decided.  False if the
 * list is full.  Adding a counter that is there repeats the store.  torn: see
 * NvmWblShared.ntorn.
 *
 * wbl_lock is held exclusively, or nobody else is there.
 */
bool
nvm_slot_add_gap(uint32 slot, uint64 counter, bool torn)
{
	NvmSlot    *s = nvm_slot(slot);
	NvmSlotState *state = &nvm_slots[slot];
	uint64		field;
	int			at = -1;

	for (int i = 0; i < NVM_SLOT_GAPS; i++)
	{
		if (state->gap[i] == counter)
		{
			at = i;
			break;
		}
		if (state->gap[i] == 0 && at < 0)
			at = i;
	}
	if (at < 0)
		return false;

	field = nvm_slot_field(slot, NVM_FIELD_GAP + at, counter);
	nvm_store(&s->copy[0].gap[at], field);
	nvm_store(&s->copy[1].gap[at], field);
	nvm_flush(s, NVM_SLOT_SIZE);

	if (state->gap[at] == 0)
	{
		state->gap_torn[at] = torn;
		state->gap[at] = counter;
		state->ngaps++;
		pg_write_barrier();
		if (torn)
			pg_atomic_fetch_add_u32(&NvmWbl->ntorn, 1);
		pg_atomic_fetch_add_u32(&NvmWbl->ngaps, 1);
	}
	return true;
}

/*
 * Remove a counter from a slot's gap list in both copies, flushed.  Media may
 * go ahead of DRAM: the collector has removed every trace, and a gap that
 * comes back in a crash only costs another sweep.
 *
 * DRAM follows when that is drained (nvm_slot_forget_gap): the owner looks
 * there for a free entry before it hands a counter out, and must have one on
 * media.  wbl_lock is held exclusively over both.
 */
void
nvm_slot_drop_gap(uint32 slot, uint64 counter)
{
	NvmSlot    *s = nvm_slot(slot);

	for (int i = 0; i < NVM_SLOT_GAPS; i++)
	{
		if (nvm_slots[slot].gap[i] != counter)
			continue;
		nvm_store(&s->copy[0].gap[i], 0);
		nvm_store(&s->copy[1].gap[i], 0);
		nvm_flush(s, NVM_SLOT_SIZE);
		return;
	}
}

void
nvm_slot_forget_gap(uint32 slot, uint64 counter)
{
	NvmSlotState *state = &nvm_slots[slot];

	for (int i = 0; i < NVM_SLOT_GAPS; i++)
	{
		if (state->gap[i] != counter)
			continue;
		state->gap[i] = 0;
		state->ngaps--;
		pg_atomic_fetch_sub_u32(&NvmWbl->ngaps, 1);
		if (state->gap_torn[i])
			pg_atomic_fetch_sub_u32(&NvmWbl->ntorn, 1);
		return;
	}
}

/*
 * The changes of blocks that the transaction may have left half done have been
 * made good.  Some of its stamps may be left.  In DRAM only: after the next
 * start the gap counts as torn again.  wbl_lock is held exclusively.
 */
void
nvm_slot_mend_gap(uint32 slot, uint64 counter)
{
	NvmSlotState *state = &nvm_slots[slot];

	for (int i = 0; i < NVM_SLOT_GAPS; i++)
	{
		if (state->gap[i] != counter || !state->gap_torn[i])
			continue;
		state->gap_torn[i] = false;
		pg_atomic_fetch_sub_u32(&NvmWbl->ntorn, 1);
		return;
	}
}

/*
 * Give the slot back.  The counter that it handed out last must be decided.
 */
void
nvm_slot_release(NvmRegionId region)
{
	uint32		slot = my_slot[region];

	nvm_slot_store_word(slot, nvm_slot_word(slot, NVM_SLOT_IDLE, my_counter[region]));
	if (nvm_slot_is_fenced(slot))
		nvm_drain("slot-release");
	my_slot[region] = -1;
	pg_atomic_write_u32(&nvm_slots[slot].owner, 0);
}

/*
 * on_shmem_exit callback.  It runs after all before_shmem_exit callbacks, so
 * ShutdownPostgres has aborted the open transaction.  It runs before ProcKill,
 * which was registered earlier.  If the abort has failed half-way, the stamp
 * goes to the gap list.
 */
static void
nvm_slot_exit(int code, Datum arg)
{
	LWLockReleaseAll();
	for (int i = 0; i < NVM_NUM_REGIONS; i++)
	{
		if (my_slot[i] < 0)
			continue;
		if (pg_atomic_read_u64(&nvm_slots[my_slot[i]].durable) < my_counter[i])
		{
			if (i == NVM_REGION_VOLATILE && nvm_log_is_on)
				nvm_log_forget();
			nvm_commit_abandon(NVM_STAMP_MAKE(my_slot[i], my_counter[i]));
		}
		nvm_slot_release(i);
	}
}

/*
 * Try to become the owner of a used slot.  Returns with DECIDED durable in its
 * word: from now on a crash counts the next counter as undecided.  A slot that
 * this process owned before an ERROR cut it short is taken up again.
 */
static bool
nvm_slot_try_take(uint32 slot)
{
	NvmSlotState *state = &nvm_slots[slot];
	uint32		owner = pg_atomic_read_u32(&state->owner);
	uint64		word;
	NvmRegionId region;

	if (state->ngaps >= NVM_SLOT_GAPS ||
		(owner != 0 && owner != (uint32) MyProcPid) ||
		!pg_atomic_compare_exchange_u32(&state->owner, &owner, MyProcPid))
		return false;

	word = nvm_slot_load_word(slot);
	if (state->ngaps >= NVM_SLOT_GAPS ||
		(NVM_WORD_STATE(word) != NVM_SLOT_IDLE &&
		 NVM_WORD_STATE(word) != NVM_SLOT_DECIDED))
	{
		pg_atomic_write_u32(&state->owner, 0);
		return false;
	}
	nvm_slot_store_word(slot, nvm_slot_word(slot, NVM_SLOT_DECIDED,
											NVM_WORD_COUNTER(word)));
	region = nvm_region_of_slot(slot);
	if (nvm_slot_is_fenced(slot))
		nvm_drain("slot-acquire");
	my_counter[region] = NVM_WORD_COUNTER(word);
	my_slot[region] = slot;
	return true;
}

/*
 * Take a slot that was never used.  ERROR if there is none.
 */
static void
nvm_slot_take_new(NvmRegionId region)
{
	pg_atomic_uint32 *used = &NvmWbl->slots_used[region];
	uint32		slot;

	if (region == NVM_REGION_VOLATILE)
		nvm_region_make_slots();
	LWLockAcquire(NvmWbl->wbl_lock, LW_EXCLUSIVE);
	slot = pg_atomic_read_u32(used);
	if (slot >= NVM_MAX_SLOTS)
	{
		LWLockRelease(NvmWbl->wbl_lock);
		ereport(ERROR,
				(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
				 errmsg("no commit slot is free for this session"),
				 errdetail("All %d slots are in use, or wait for the gap collector.",
						   NVM_MAX_SLOTS),
				 errhint("End prepared transactions and those with old snapshots, for which the collector waits, and check that nvm.collect_gaps is on.")));
	}
	slot += region * NVM_VOLATILE_SLOT;
	if (region == NVM_REGION_VOLATILE && nvm_log_is_on)
		nvm_log_reserve_buffer(slot);
	pg_atomic_write_u32(&nvm_slots[slot].owner, MyProcPid);
	nvm_slot_store_word(slot, nvm_slot_word(slot, NVM_SLOT_DECIDED, 0));
	if (nvm_slot_is_fenced(slot))
		nvm_drain("slot-first-use");
	my_counter[region] = 0;
	my_slot[region] = slot;
	pg_atomic_fetch_add_u32(used, 1);
	LWLockRelease(NvmWbl->wbl_lock);
}

static void
register_exit(void)
{
	if (exit_registered)
		return;
	on_shmem_exit(nvm_slot_exit, (Datum) 0);
	exit_registered = true;
}

/*
 * Become the owner of a slot of a region.  Low numbers first, so that few are ever
 * used.
 */
static void
nvm_slot_acquire(NvmRegionId region)
{
	uint32		first = region * NVM_VOLATILE_SLOT;
	uint32		end = first + pg_atomic_read_u32(&NvmWbl->slots_used[region]);
	bool		taken = false;

	register_exit();
	for (uint32 slot = first; slot < end && !taken; slot++)
		taken = nvm_slot_try_take(slot);
	if (!taken)
		nvm_slot_take_new(region);
}

/*
 * The stamp of a new transaction, in a region.  The transaction before it in this slot is
 * decided, durably: a counter that is handed out is never more than one above
 * the word on media.  A slot keeps room in its gap list for one more crash.
 */
NvmStamp
nvm_slot_next_stamp(NvmRegionId region, uint64 fxid)
{
	NvmSlotState *state;

	Assert(pg_atomic_read_u32(&NvmWbl->resolved) != 0);

	if (my_slot[region] >= 0 && nvm_slots[my_slot[region]].ngaps >= NVM_SLOT_GAPS)
		nvm_slot_release(region);
	if (my_slot[region] < 0)
		nvm_slot_acquire(region);

	state = &nvm_slots[my_slot[region]];
	Assert(pg_atomic_read_u64(&state->durable) == my_counter[region]);
	if (my_counter[region] >= NVM_STAMP_COUNTER_MASK - 1)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("commit slot %d has run out of numbers", my_slot[region])));
	my_counter[region]++;
	pg_atomic_write_u64(&state->xid, fxid);
	pg_atomic_write_u64(&state->running, my_counter[region]);
	return NVM_STAMP_MAKE(my_slot[region], my_counter[region]);
}

/*
 * See nvm_commit.h.
 */
uint32
nvm_slot_take_own(NvmRegionId region)
{
	Assert(pg_atomic_read_u32(&NvmWbl->resolved) != 0);
	register_exit();
	if (my_slot[region] >= 0)
		nvm_slot_release(region);
	nvm_slot_take_new(region);
	return (uint32) my_slot[region];
}

int
nvm_slot_of_process(NvmRegionId region)
{
	return my_slot[region];
}

/*
 * A stamp of a slot that was never used.
 */
NvmStamp
nvm_slot_new_stamp(NvmRegionId region)
{
	register_exit();
	if (my_slot[region] >= 0)
		nvm_slot_release(region);
	nvm_slot_take_new(region);
	return nvm_slot_next_stamp(region, 0);
}

/*
 * The slot stays with the transaction that was prepared in it.  The next one
 * of this process takes another.
 */
void
nvm_slot_hand_over(NvmRegionId region)
{
	uint32		slot = my_slot[region];

	Assert(my_slot[region] >= 0);
	my_slot[region] = -1;
	pg_atomic_write_u32(&nvm_slots[slot].owner, NVM_OWNER_PREPARED);
}

/*
 * Add the flushes and drains of this process since the last call.  Without a
 * slot, outside of transactions that write, they wait for the next one.
 */
void
nvm_slot_note_work(void)
{
	static uint64 flushes = 0;
	static uint64 drains = 0;
	static uint64 bytes = 0;
	NvmSlotState *state;
	NvmRegionId region = my_slot[NVM_REGION_POOL] >= 0 ? NVM_REGION_POOL : NVM_REGION_VOLATILE;

	if (my_slot[region] < 0)
		return;
	state = &nvm_slots[my_slot[region]];
	state->flushes += nvm_pmem_flushes - flushes;
	state->drains += nvm_pmem_drains - drains;
	state->bytes += nvm_pmem_bytes - bytes;
	flushes = nvm_pmem_flushes;
	drains = nvm_pmem_drains;
	bytes = nvm_pmem_bytes;
}
