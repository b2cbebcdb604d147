/*-------------------------------------------------------------------------
 *
 * wbl_check.c
 *	  Consistency of the commit slots, for nvm.check_pool().
 *
 * The server may be at work: a slot is only complained about if it looks the
 * same wrong way twice.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pool/nvm_pool.h"
#include "verify/nvm_verify.h"
#include "wbl/wbl_impl.h"

/* between two looks at a slot that seems wrong */
#define RECHECK_USEC			1000
#define RECHECK_LOOKS			20

/*
 * What is wrong with a used slot, or NULL.
 */
static const char *
nvm_used_slot_problem(uint32 slot)
{
	NvmSlotState *state = &nvm_slots[slot];
	NvmSlotCopy copy[2];
	uint64		durable;
	uint64		frozen;
	uint64		counter;

	frozen = pg_atomic_read_u64(&nvm_frozen[slot]);
	pg_read_barrier();
	durable = pg_atomic_read_u64(&state->durable);
	pg_read_barrier();
	memcpy(copy, nvm_slot(slot)->copy, sizeof(copy));

	for (int i = 0; i < 2; i++)
	{
		const char *problem = nvm_slot_copy_problem(slot, &copy[i]);

		if (problem != NULL)
			return problem;
	}
	if (memcmp(&copy[0], &copy[1], sizeof(NvmSlotCopy)) != 0)
		return "its two copies differ";
	if (copy[0].word == 0)
		return "it is blank, but counted as used";
	counter = NVM_WORD_COUNTER(copy[0].word);
	if (durable > counter)
		return "more is taken for durable than its commit word says";
	if (frozen > durable)
		return "more is taken for frozen than is durable";
	if (pg_atomic_read_u32(&state->owner) == 0 &&
		pg_atomic_read_u32(&NvmWbl->resolved) != 0 &&
		NVM_WORD_STATE(copy[0].word) != NVM_SLOT_IDLE)
		return "it has no owner, but is not idle";
	if (pg_atomic_read_u32(&NvmWbl->resolved) != 0)
	{
		const char *problem;

		if (NVM_WORD_STATE(copy[0].word) == NVM_SLOT_TWOPHASE)
		{
			if (pg_atomic_read_u32(&state->owner) == 0)
				return "its transaction is prepared, but it is not kept for it";
			if (NVM_FIELD_VALUE(copy[0].xid) != pg_atomic_read_u64(&state->xid))
				return "its transaction id differs from the one in memory";
			problem = nvm_lock_list_problem(slot, counter,
											(uint32) NVM_FIELD_VALUE(copy[0].locks));
			if (problem != NULL)
				return psprintf("the row locks of its transaction: %s", problem);
		}
		else if (copy[0].locks != 0 && NVM_WORD_STATE(copy[0].word) != NVM_SLOT_PREPARED)
			return "it leads to row locks, but no transaction is prepared";
	}
	for (int i = 0; i < NVM_SLOT_GAPS; i++)
	{
		if (NVM_FIELD_VALUE(copy[0].gap[i]) != state->gap[i])
			return "its gap list differs from the one in memory";
	}
	return NULL;
}

/*
 * What is wrong with a slot beyond the used ones, or NULL.
 */
static const char *
nvm_unused_slot_problem(uint32 slot)
{
	if (nvm_slot_is_used(slot))
		return NULL;			/* taken meanwhile */
	return nvm_slot_blank_problem(nvm_slot(slot));
}

typedef struct NvmCheckLists
{
	NvmCheckEmit emit;
	void	   *arg;
} NvmCheckLists;

/*
 * A list of row locks belongs to a slot that is somebody's.
 */
static void
nvm_check_lock_list(uint64 unit, uint64 word, void *arg)
{
	NvmCheckLists *lists = (NvmCheckLists *) arg;
	uint32		slot = NVM_EXT_OWNER(word) - 1;

	for (int look = 0; look < RECHECK_LOOKS; look++)
	{
		if (nvm_slot_is_used(slot) &&
			pg_atomic_read_u32(&nvm_slots[slot].owner) != 0)
			return;
		if (nvm_locks_units((uint32) unit, slot) == 0)
			return;				/* freed meanwhile */
		pg_usleep(RECHECK_USEC);
	}
	lists->emit(lists->arg, psprintf("unit " UINT64_FORMAT, unit),
				psprintf("row locks of commit slot %u, which has no transaction", slot));
}

/*
 * Report what is wrong with the commit slots.
 */
void
nvm_wbl_verify(NvmCheckEmit emit, void *arg)
{
	uint32		nslots;
	uint32		ngaps = 0;
	uint32		ntorn = 0;
	NvmCheckLists lists = {emit, arg};

	if (pg_atomic_read_u32(&NvmWbl->resolved) != 0)
		nvm_extents_walk(NVM_EXT_LOCKS, 0, nvm_check_lock_list, &lists);

	/* the volatile region's may have no memory yet */
	nslots = nvm_regions[NVM_REGION_VOLATILE].nchunks > 0 ? NVM_SLOT_NUMBERS : NVM_MAX_SLOTS;
	for (uint32 slot = 0; slot < nslots; slot++)
	{
		const char *problem = NULL;

		for (int look = 0; look < RECHECK_LOOKS; look++)
		{
			problem = nvm_slot_is_used(slot) ? nvm_used_slot_problem(slot) :
				nvm_unused_slot_problem(slot);
			if (problem == NULL)
				break;
			pg_usleep(RECHECK_USEC);
		}
		if (problem != NULL)
			emit(arg, psprintf("commit slot %u", slot), problem);
		if ((slot & 1023) == 0)
			CHECK_FOR_INTERRUPTS();
	}

	LWLockAcquire(NvmWbl->wbl_lock, LW_SHARED);
	NvmForEachUsedSlot(slot)
	{
		ngaps += nvm_slots[slot].ngaps;
		for (int i = 0; i < NVM_SLOT_GAPS; i++)
			ntorn += nvm_slots[slot].gap[i] != 0 && nvm_slots[slot].gap_torn[i];
	}
	if (ngaps != pg_atomic_read_u32(&NvmWbl->ngaps) ||
		ntorn != pg_atomic_read_u32(&NvmWbl->ntorn))
	{
		LWLockRelease(NvmWbl->wbl_lock);
		emit(arg, "gap list", "the slots do not add up to the number of gaps");
		return;
	}
	LWLockRelease(NvmWbl->wbl_lock);
}
