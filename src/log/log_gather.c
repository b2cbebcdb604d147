/*-------------------------------------------------------------------------
 *
 * log_gather.c
 *	  How long a round waits for others to join it.
 *
 * Clients that commit one transaction after the other fall into two groups if
 * nobody waits: one is served by a sync while the other executes, and each commit
 * takes the time of two syncs.  So the process that is about to write a round first
 * waits a moment for those who were in one of the last two rounds and are not in
 * this one yet: as long as that pays.  README.md, "Gathering".
 *
 * All of this is a guess about time.  Nothing depends on it being right.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat/nvm_compat.h"
#include "log/log_impl.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/procarray.h"

/* a shorter sync is over before anybody could have been waited for */
#define SHORTEST_SYNC_USEC		150
/* nobody waits for others longer than this, nor longer than half a sync */
#define LONGEST_WAIT_USEC		5000
#define LOOK_USEC				50
/* rounds that do not wait after it was found not to pay: first, and at most */
#define FIRST_PAUSE				32
#define LONGEST_PAUSE			1024

/* the last round that this process has joined */
static uint64 my_round = 0;

static pg_atomic_uint32 *
members_of(uint64 round)
{
	return &NvmLog->gather.members[round % NVM_LOG_GATHER_ROUNDS];
}

/*
 * Processes whose last round this is.  Counts of processes that joined while a round
 * ended may be off.
 */
static int32
count_members(uint64 round)
{
	return Max((int32) pg_atomic_read_u32(members_of(round)), 0);
}

/*
 * See log_impl.h.
 */
void
nvm_log_gather_join(void)
{
	uint64		round = pg_atomic_read_u64(&NvmLog->gather.round);

	if (my_round == round)
		return;
	if (my_round != 0 && round - my_round <= 2)
		pg_atomic_fetch_sub_u32(members_of(my_round), 1);
	pg_atomic_fetch_add_u32(members_of(round), 1);
	my_round = round;
}

/*
 * Who was in one of the two rounds before, and has not come yet.
 */
static int32
count_missing(uint64 round)
{
	return count_members(round - 1) + count_members(round - 2);
}

/*
 * Wait until nobody is missing, or `usec` have passed.  Returns the time in microseconds.
 */
static int64
wait_for_members(uint64 round, int64 usec)
{
	instr_time	start;
	int64		waited;

	INSTR_TIME_SET_CURRENT(start);
	do
	{
		instr_time	now;

		pg_usleep(LOOK_USEC);
		INSTR_TIME_SET_CURRENT(now);
		INSTR_TIME_SUBTRACT(now, start);
		waited = INSTR_TIME_GET_MICROSEC(now);
	} while (waited < usec && count_missing(round) > 0);
	return waited;
}

/*
 * Did the wait pay?  Each of `before` who were there has waited `waited` for nothing.
 * Each of `came` was saved the rest of a sync.
 */
static void
learn(NvmLogGather *gather, int32 before, int32 came, int64 waited)
{
	double		gain = (double) came * (gather->sync_usec - waited) - (double) before * waited;

	gather->gain += (gain - gather->gain) / 8;
	if (gather->gain >= 0)
	{
		gather->pause = 0;
		return;
	}
	gather->pause = gather->pause == 0 ? FIRST_PAUSE : Min(2 * gather->pause, LONGEST_PAUSE);
	gather->paused_until = pg_atomic_read_u64(&gather->round) + gather->pause;
	gather->gain = 0;
}

static void
wait_while_it_pays(void)
{
	NvmLogGather *gather = &NvmLog->gather;
	uint64		round = pg_atomic_read_u64(&gather->round);
	int32		before;
	int64		waited;

	if (gather->sync_usec < SHORTEST_SYNC_USEC || round < gather->paused_until ||
		count_missing(round) == 0)
		return;
	before = count_members(round);
	waited = wait_for_members(round, Min((int64) gather->sync_usec / 2, LONGEST_WAIT_USEC));
	learn(gather, before, count_members(round) - before, waited);
}

/*
 * See log_impl.h.
 */
void
nvm_log_gather(void)
{
	if (nvm_log_delay < 0)
		wait_while_it_pays();
	else if (nvm_log_delay > 0 && enableFsync && MinimumActiveBackends(CommitSiblings))
		pg_usleep(nvm_log_delay);
}

/*
 * See log_impl.h.
 */
void
nvm_log_gather_close(void)
{
	uint64		round = pg_atomic_read_u64(&NvmLog->gather.round);

	pg_atomic_write_u32(members_of(round + 1), 0);
	pg_atomic_write_u64(&NvmLog->gather.round, round + 1);
}

/*
 * See log_impl.h.  A sync that took much longer than usual counts for twice the usual.
 */
void
nvm_log_gather_synced(int64 usec)
{
	NvmLogGather *gather = &NvmLog->gather;

	if (gather->sync_usec == 0)
		gather->sync_usec = usec;
	else
		gather->sync_usec += (Min((double) usec, 2 * gather->sync_usec + 10) - gather->sync_usec) / 16;
}

/*
 * See log_impl.h.
 */
void
nvm_log_gather_init(void)
{
	NvmLogGather *gather = &NvmLog->gather;

	pg_atomic_init_u64(&gather->round, NVM_LOG_GATHER_ROUNDS);
	for (int i = 0; i < NVM_LOG_GATHER_ROUNDS; i++)
		pg_atomic_init_u32(&gather->members[i], 0);
	gather->sync_usec = 0;
	gather->gain = 0;
	gather->pause = 0;
	gather->paused_until = 0;
}
