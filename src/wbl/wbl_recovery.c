/*-------------------------------------------------------------------------
 *
 * wbl_recovery.c
 *	  Recovery by analysis of the commit slots alone.
 *
 * nvm_recovery_analyse runs in the postmaster before anybody else.  It reads
 * the used slots.  Each can have left one stamp undecided, which joins the
 * slot's gap list.  Its time depends on the number of slots, that is on the
 * largest number of sessions that ever wrote at once.  A slot whose transaction
 * asks pg_xact stays in doubt: wbl_resolve.c.
 *
 * It can be repeated: a gap entry is durable before the word that takes its
 * counter for decided.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/nvm_log.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "verify/nvm_verify.h"
#include "wbl/wbl_impl.h"

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
						nvm_slot_is_fenced(slot) ?
						"Restore the pool from a backup. Which transactions of this slot committed is not recorded anywhere else." :
						"Stop the server and start it again: then what is in memory alone is empty.");
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
 * The number of used slots of the volatile region.  No power has failed while it
 * has contents, so the first blank slot is the end.
 */
static uint32
nvm_volatile_slots_count(void)
{
	uint32		count = 0;

	if (nvm_regions[NVM_REGION_VOLATILE].nchunks == 0)
		return 0;
	while (count < NVM_MAX_SLOTS)
	{
		NvmSlot    *s = nvm_slot(NVM_VOLATILE_SLOT + count);

		if (s->copy[0].word == 0 && s->copy[1].word == 0)
			break;
		count++;
	}
	return count;
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
 * A death may have come between a place in the log, which decides, and the word.
 */
static void
finish_decision(void)
{
	NvmStamp	stamp;

	if (!nvm_log_is_on)
		return;
	stamp = nvm_log_unfinished_decision();
	if (stamp != NVM_STAMP_NONE)
	{
		NVM_FAILPOINT("log-decision-found");
		nvm_slot_store_word(NVM_STAMP_SLOT(stamp),
							nvm_slot_word(NVM_STAMP_SLOT(stamp), NVM_SLOT_DECIDED,
										  NVM_STAMP_COUNTER(stamp)));
		NVM_FAILPOINT("log-decision-stored");
	}
	nvm_log_decision_finished();
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
	uint64	   *word;
	bool		changed = false;

	INSTR_TIME_SET_CURRENT(start);
	if (!nvm_slots_count(&nslots))
		return;

	/* nobody else is there yet who could believe that they are analysed */
	pg_atomic_write_u32(&NvmWbl->slots_used[NVM_REGION_POOL], nslots);
	pg_atomic_write_u32(&NvmWbl->slots_used[NVM_REGION_VOLATILE], nvm_volatile_slots_count());
	nslots += pg_atomic_read_u32(&NvmWbl->slots_used[NVM_REGION_VOLATILE]);

	finish_decision();
	word = words = palloc(sizeof(uint64) * (nslots + 1));
	NvmForEachUsedSlot(slot)
	{
		if (!nvm_slot_analyse(slot, word++))
			return;
	}
	nvm_drain("recovery-gaps");
	word = words;
	NvmForEachUsedSlot(slot)
	{
		if (*word != nvm_slot_load_word(slot))
		{
			nvm_slot_store_word(slot, *word);
			changed = true;
		}
		word++;
	}
	if (changed)
		nvm_drain("recovery-words");
	pfree(words);
	NvmWbl->recovery_usec = nvm_elapsed_usec(start);

	ereport(LOG,
			(errmsg("nvm: recovery found %u losers, %u in doubt, %u gaps in %lu us (pool opened in %lu us)",
					NvmWbl->losers_found, NvmWbl->indoubt_found,
					pg_atomic_read_u32(&NvmWbl->ngaps),
					(unsigned long) NvmWbl->recovery_usec,
					(unsigned long) NvmPool->open_usec)));
}
