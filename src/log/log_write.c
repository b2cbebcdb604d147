/*-------------------------------------------------------------------------
 *
 * log_write.c
 *	  Rounds: new bytes of the ring become blocks, written and synced.
 *
 * One process at a time writes; it holds the write lock.  Whoever waits for a
 * position comes here, writes a round if nobody does, and sleeps until the round
 * is over otherwise.  README.md, "Writing".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat/nvm_compat.h"
#include "log/log_impl.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "portability/instr_time.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"
#include "verify/nvm_verify_log.h"

/* how long a round of another process may take until we look again */
#define LOOK_AGAIN_MS			100
#define LONG_ROUND_USEC			5000
/* between two attempts to write a log that cannot be written */
#define RETRY_USEC				500000

/* a block, as it is written; of the process that holds the write lock */
static union
{
	NvmLogBlock header;
	char		bytes[TYPEALIGN(NVM_LOG_SECTOR, NVM_LOG_BLOCK_HEADER + NVM_LOG_BLOCK_MAX)];
}			block;

/*
 * The end of a round as it comes to be.  What is behind the last sync is in shared
 * memory.
 */
typedef struct Round
{
	NvmLogPosition position;	/* written up to here */
	uint64		offset;
	uint32		chain;
} Round;

/*
 * Bytes of the whole records from `position` on that fit a block.  `end` is the end
 * of a record.
 */
static uint32
block_length(NvmLogPosition position, NvmLogPosition end)
{
	uint32		length = 0;

	if (end - position <= NVM_LOG_BLOCK_MAX)
		return end - position;
	for (;;)
	{
		uint32		record;

		nvm_log_ring_read(position + length, &record, sizeof(record));
		if (length + record > NVM_LOG_BLOCK_MAX)
			return length;
		length += record;
	}
}

/*
 * Make the next block, of `length` bytes.  Returns the size in which it is written.
 */
static Size
make_block(const Round *round, uint32 length)
{
	Size		size = TYPEALIGN(NVM_LOG_SECTOR, NVM_LOG_BLOCK_HEADER + length);

	memset(&block.header, 0, NVM_LOG_BLOCK_HEADER);
	block.header.magic = NVM_LOG_BLOCK_MAGIC;
	block.header.generation = nvm_log_memory->generation;
	block.header.position = round->position;
	block.header.synced = nvm_log_persistent();
	block.header.length = length;
	block.header.chain = round->chain;
	nvm_log_ring_read(round->position, block.bytes + NVM_LOG_BLOCK_HEADER, length);
	memset(block.bytes + NVM_LOG_BLOCK_HEADER + length, 0, size - NVM_LOG_BLOCK_HEADER - length);
	block.header.crc = nvm_log_block_crc(NvmPool->uuid, &block.header);
	return size;
}

/*
 * is_first: of the file, which was made with success, and so its directory works.
 */
static void
count_round(NvmLogPosition position, bool is_first)
{
	NvmLogDirectory *d = &NvmLog->directory[nvm_log_memory->directory];

	pg_atomic_fetch_add_u64(&NvmLog->rounds, 1);
	pg_atomic_fetch_add_u64(&d->rounds, 1);
	pg_atomic_write_u64(&d->position, position);
	if (is_first)
		nvm_log_directory_works(nvm_log_memory->directory);
}

/*
 * Sync what the round has written; from then on it is persistent.
 */
static bool
end_round(const Round *round)
{
	bool		is_first = nvm_log_memory->first == nvm_log_persistent();

	if (round->position == nvm_log_persistent())
		return true;
	NVM_FAILPOINT("log-sync");
	if (!nvm_log_file_sync())
		return false;
	NVM_FAILPOINT("log-synced");
	nvm_log_memory->chain = round->chain;
	nvm_log_memory->offset = round->offset;
	pg_write_barrier();
	pg_atomic_write_u64(&nvm_log_memory->persistent, round->position);
	count_round(round->position, is_first);
	return true;
}

static void
begin_round(Round *round)
{
	round->position = nvm_log_persistent();
	round->offset = nvm_log_memory->offset;
	round->chain = nvm_log_memory->chain;
}

/*
 * Write all up to `end`, and sync it.  False if a file cannot be written, or made.
 * Then the next call makes another one, which begins at what is persistent.
 * Caller holds the write lock, or is alone.
 */
static bool
write_to(NvmLogPosition end)
{
	Round		round;

	if (nvm_log_memory->file_is_bad && !nvm_log_next_file())
		return false;
	begin_round(&round);
	while (round.position < end)
	{
		uint32		length = block_length(round.position, end);
		Size		size = make_block(&round, length);

		if (round.offset + size > NVM_LOG_FILE_SIZE)
		{
			if (!end_round(&round) || !nvm_log_next_file())
				return false;
			begin_round(&round);
			continue;
		}
		NVM_FAILPOINT("log-write");
		if (!nvm_log_file_write(block.bytes, size, round.offset))
			return false;
		pg_atomic_fetch_add_u64(&NvmLog->bytes, size);
		pg_atomic_fetch_add_u64(&NvmLog->directory[nvm_log_memory->directory].bytes, size);
		round.chain = block.header.crc;
		round.position += length;
		round.offset += size;
	}
	return end_round(&round);
}

/*
 * A file that has failed is not tried again: the kernel may have dropped its pages.  Each
 * directory may have one new file.
 */
static bool
write_all(NvmLogPosition end)
{
	bool		done;

	nvm_log_begin_attempt();
	done = write_to(end);
	for (int i = 0; i < nvm_log_ndirectories() && !done && nvm_log_memory->file_is_bad; i++)
		done = write_to(end);
	pg_atomic_write_u32(&NvmLog->broken, done ? 0 : 1);
	return done;
}

/*
 * Sync what no commit waits for, every wal_writer_delay.
 */
static void
sync_some(void)
{
	if (nvm_log_inserted() > nvm_log_persistent())
		(void) nvm_log_write_round(nvm_log_inserted(), true);
}

/*
 * See nvm_log.h.
 */
void
nvm_log_write_instead(void)
{
	if (nvm_log_is_on && nvm_log_has_begun() &&
		(nvm_log_rebuild_state() == NVM_LOG_REBUILDING ||
		 pg_atomic_read_u32(&NvmLog->recovery_pid) == 0))
		sync_some();
}

/*
 * The recovery worker's, when it has nothing to rebuild (any more).
 */
void
nvm_log_write_some(void)
{
	if (!nvm_log_is_on || !nvm_log_has_begun())
		return;
	sync_some();
	nvm_log_look_at_directories();
	nvm_log_watch();
	if (nvm_log_memory->offset > NVM_LOG_FILE_SIZE / 4)
		nvm_log_make_spare();
}

/*
 * In the postmaster, when nobody else is there.
 */
bool
nvm_log_write_rest(void)
{
	return write_all(nvm_log_inserted());
}

bool
nvm_log_write_once(void)
{
	nvm_log_begin_attempt();
	return write_to(nvm_log_inserted());
}

/*
 * Sleep until the round that another process is writing is over.  Called with
 * ConditionVariablePrepareToSleep done.  No interrupt is served, since a commit
 * may not fail here.
 */
static void
sleep_for_round(void)
{
	if (WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_POSTMASTER_DEATH,
				  LOOK_AGAIN_MS, PG_WAIT_EXTENSION) & WL_POSTMASTER_DEATH)
	{
		/* as in SyncRepWaitForLSN: nobody is to believe in the commit */
		whereToSendOutput = DestNone;
		ProcDiePending = true;
		InterruptPending = true;
	}
	ResetLatch(MyLatch);
}

/*
 * Another process holds the write lock.  Wait until it releases it, or get it.
 *
 * As a rule a round is over in a moment, and to wait for the lock costs the least.
 * But nothing ends that.  So a process that finds a round which takes long, since the
 * disk stands still, waits on a latch, which a cancel sets, too; and so does one that
 * still has its locks, whatever it finds.
 */
static bool
wait_for_round(NvmLogPosition wanted, bool has_locks)
{
	bool		mine;

	if (!has_locks &&
		GetCurrentTimestamp() - (TimestampTz) pg_atomic_read_u64(&NvmLog->round_began) < LONG_ROUND_USEC)
		return LWLockAcquireOrWait(NvmLog->write_lock, LW_EXCLUSIVE);

	/* who holds the lock after this wakes us when it is done */
	ConditionVariablePrepareToSleep(&NvmLog->written);
	mine = nvm_log_persistent() < wanted &&
		LWLockConditionalAcquire(NvmLog->write_lock, LW_EXCLUSIVE);
	if (!mine && nvm_log_persistent() < wanted)
		sleep_for_round();
	ConditionVariableCancelSleep();
	return mine;
}

/*
 * Has the log failed a moment ago?  Then nobody tries again before RETRY_USEC have
 * passed: each attempt fills a file, and others need the room.
 */
static bool
is_too_early(void)
{
	return pg_atomic_read_u32(&NvmLog->broken) != 0 &&
		GetCurrentTimestamp() < (TimestampTz) pg_atomic_read_u64(&NvmLog->next_try);
}

/*
 * A round, up to what has a place now.  Caller holds the write lock.
 */
static bool
write_timed(void)
{
	instr_time	start;
	instr_time	end;

	pg_atomic_write_u64(&NvmLog->round_began, (uint64) GetCurrentTimestamp());
	nvm_log_gather_close();
	INSTR_TIME_SET_CURRENT(start);
	if (!write_all(nvm_log_inserted()))
	{
		pg_atomic_write_u64(&NvmLog->next_try, (uint64) (GetCurrentTimestamp() + RETRY_USEC));
		return false;
	}
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, start);
	nvm_log_gather_synced(INSTR_TIME_GET_MICROSEC(end));
	return true;
}

/*
 * See log_impl.h.
 */
bool
nvm_log_write_round(NvmLogPosition wanted, bool has_locks)
{
	bool		done;

	if (!LWLockConditionalAcquire(NvmLog->write_lock, LW_EXCLUSIVE) &&
		!wait_for_round(wanted, has_locks))
		return nvm_log_persistent() >= wanted || pg_atomic_read_u32(&NvmLog->broken) == 0;
	/* a log that is broken may have nothing to write: is it, still? */
	if ((nvm_log_persistent() < wanted || pg_atomic_read_u32(&NvmLog->broken) != 0) &&
		!is_too_early())
	{
		if (!has_locks)
		{
			/* who comes now is expected, and may wait for the lock */
			pg_atomic_write_u64(&NvmLog->round_began, (uint64) GetCurrentTimestamp());
			nvm_log_gather();
		}
		(void) write_timed();
	}
	done = nvm_log_persistent() >= wanted;
	LWLockRelease(NvmLog->write_lock);
	ConditionVariableBroadcast(&NvmLog->written);
	return done;
}
