/*-------------------------------------------------------------------------
 *
 * log_insert.c
 *	  Numbers, reservations and places: how a record gets into the stream.
 *
 * A record's place is drawn when its transaction is decided, in one step that no
 * reader can see between.  The room for it is reserved before, where there may
 * still be an error.  README.md, "The ring, the buffers and what a process's death
 * leaves".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/log_impl.h"
#include "media/media_slot.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"

/* the slot in which an ASK record of the current transaction has no OUTCOME, or 0 */
static uint32 asked_slot = 0;

NvmLogPosition
nvm_log_inserted(void)
{
	return pg_atomic_read_u64(&nvm_log_memory->inserted);
}

NvmLogPosition
nvm_log_persistent(void)
{
	return pg_atomic_read_u64(&nvm_log_memory->persistent);
}

uint64
nvm_log_draw_number(void)
{
	return pg_atomic_add_fetch_u64(&nvm_log_memory->number, 1);
}

/* ---- the ring ---- */

void
nvm_log_ring_write(NvmLogPosition position, const void *from, Size length)
{
	Size		at = position % NVM_LOG_RING;
	Size		first = Min(length, NVM_LOG_RING - at);

	memcpy(nvm_log_memory->ring + at, from, first);
	memcpy(nvm_log_memory->ring, (const char *) from + first, length - first);
}

void
nvm_log_ring_read(NvmLogPosition position, void *to, Size length)
{
	Size		at = position % NVM_LOG_RING;
	Size		first = Min(length, NVM_LOG_RING - at);

	memcpy(to, nvm_log_memory->ring + at, first);
	memcpy((char *) to + first, nvm_log_memory->ring, length - first);
}

/* ---- reservations ---- */

static bool
try_reserve(uint32 bytes)
{
	bool		fits;

	LWLockAcquire(NvmLog->insert_lock, LW_EXCLUSIVE);
	fits = nvm_log_inserted() + NvmLog->reserved + bytes - nvm_log_persistent() <= NVM_LOG_RING;
	if (fits)
		NvmLog->reserved += bytes;
	LWLockRelease(NvmLog->insert_lock);
	return fits;
}

/*
 * See log_impl.h.  Who has reserved decides soon, or aborts, without waiting for
 * anybody who reserves.  So there is always an end to the waiting.
 */
void
nvm_log_reserve(uint32 bytes)
{
	nvm_log_require_writable();
	while (!try_reserve(bytes))
	{
		if (nvm_log_inserted() > nvm_log_persistent())
			nvm_log_wait_for(nvm_log_inserted());
		else
			pg_usleep(1000L);
		CHECK_FOR_INTERRUPTS();
	}
}

void
nvm_log_unreserve(uint32 bytes)
{
	LWLockAcquire(NvmLog->insert_lock, LW_EXCLUSIVE);
	NvmLog->reserved -= bytes;
	LWLockRelease(NvmLog->insert_lock);
}

/* ---- places ---- */

/*
 * Give a record, whose room is reserved, the next place.  `stamp`: that is the
 * decision on this transaction; 0: it decides nothing.  Caller holds the insert
 * lock.  A death at any step leaves what the README's table says.
 */
static NvmLogPosition
place(const void *record, uint32 length, uint64 stamp)
{
	NvmLogPosition begin = nvm_log_inserted();
	NvmLogPosition end = begin + length;

	nvm_log_ring_write(begin, record, length);
	if (stamp != 0)
	{
		pg_atomic_write_u64(&nvm_log_memory->placing_end, end);
		pg_write_barrier();
		pg_atomic_write_u64(&nvm_log_memory->placing_stamp, stamp);
		NVM_FAILPOINT("log-placing");
	}
	pg_write_barrier();
	pg_atomic_write_u64(&nvm_log_memory->inserted, end);
	NvmLog->reserved -= length;
	pg_atomic_fetch_add_u64(&NvmLog->records, 1);
	NVM_FAILPOINT("log-placed");
	return end;
}

/*
 * See nvm_log.h.
 */
void
nvm_log_decide(uint64 stamp, bool (*is_decided) (uint64 stamp), void (*decide) (uint64 stamp))
{
	uint32		slot = NVM_STAMP_SLOT(stamp);
	NvmLogBuffer *buffer = nvm_log_buffer(slot);

	LWLockAcquire(NvmLog->insert_lock, LW_EXCLUSIVE);
	if (!is_decided(stamp))
	{
		bool		has_record = buffer->counter == NVM_STAMP_COUNTER(stamp) && buffer->length > 0;

		if (has_record)
			pg_atomic_write_u64(&nvm_log_memory->place[slot - NVM_VOLATILE_SLOT],
								place(buffer->data + buffer->begin, buffer->length, stamp));
		decide(stamp);
		if (has_record)
			pg_atomic_write_u64(&nvm_log_memory->placing_stamp, 0);
	}
	LWLockRelease(NvmLog->insert_lock);
}

/*
 * See nvm_log.h.
 */
uint64
nvm_log_unfinished_decision(void)
{
	uint64		stamp = pg_atomic_read_u64(&nvm_log_memory->placing_stamp);

	if (stamp == 0 || nvm_log_inserted() < pg_atomic_read_u64(&nvm_log_memory->placing_end))
		return 0;
	return stamp;
}

void
nvm_log_decision_finished(void)
{
	pg_write_barrier();
	pg_atomic_write_u64(&nvm_log_memory->placing_stamp, 0);
}

/* ---- what pg_xact decides ---- */

/*
 * See nvm_log.h.  The room for the outcome is reserved here, too: it must not fail.
 */
void
nvm_log_ask(uint64 stamp)
{
	NvmLogRecord *record = nvm_log_make_ask();
	NvmLogPosition end;

	LWLockAcquire(NvmLog->insert_lock, LW_EXCLUSIVE);
	asked_slot = NVM_STAMP_SLOT(stamp);
	nvm_log_memory->asked_at[asked_slot - NVM_VOLATILE_SLOT] = nvm_log_inserted();
	nvm_log_memory->asked[asked_slot - NVM_VOLATILE_SLOT] = record->xid;
	end = place(record, record->length, 0);
	LWLockRelease(NvmLog->insert_lock);
	NVM_FAILPOINT("log-asked");
	nvm_log_wait_for(end);
}

/*
 * See nvm_log.h.
 */
uint64
nvm_log_asked(uint32 slot)
{
	return *(volatile uint64 *) &nvm_log_memory->asked[slot - NVM_VOLATILE_SLOT];
}

/*
 * See nvm_log.h.  The room was reserved with that for the ASK record, or by the start.
 */
void
nvm_log_place_outcome(uint32 slot, bool committed)
{
	NvmLogRecord outcome = {
		.length = NVM_LOG_RECORD_HEADER,
		.kind = NVM_LOG_OUTCOME,
		.flags = committed ? NVM_LOG_COMMITTED : 0,
		.xid = nvm_log_asked(slot)
	};

	LWLockAcquire(NvmLog->insert_lock, LW_EXCLUSIVE);
	(void) place(&outcome, sizeof(outcome), 0);
	nvm_log_memory->asked[slot - NVM_VOLATILE_SLOT] = 0;
	LWLockRelease(NvmLog->insert_lock);
}

/*
 * See log_impl.h.
 */
void
nvm_log_reserve_asked(void)
{
	for (uint32 slot = NVM_VOLATILE_SLOT; slot < NVM_SLOT_NUMBERS; slot++)
	{
		if (nvm_log_asked(slot) != 0)
			NvmLog->reserved += NVM_LOG_RECORD_HEADER;
	}
}

/*
 * See nvm_log.h.
 */
void
nvm_log_outcome(bool committed)
{
	if (asked_slot == 0)
		return;
	nvm_log_place_outcome(asked_slot, committed);
	asked_slot = 0;
}

/*
 * See nvm_log.h.
 */
void
nvm_log_leave_asked(void)
{
	asked_slot = 0;
}

/*
 * See nvm_log.h.
 */
void
nvm_log_reserve_outcome(void)
{
	nvm_log_reserve(NVM_LOG_RECORD_HEADER);
}

/*
 * See nvm_log.h.
 */
void
nvm_log_note_asked(uint32 slot, uint64 fxid, NvmLogPosition position)
{
	uint64	   *asked = &nvm_log_memory->asked[slot - NVM_VOLATILE_SLOT];

	LWLockAcquire(NvmLog->insert_lock, LW_EXCLUSIVE);
	if (*asked != 0)
		NvmLog->reserved -= NVM_LOG_RECORD_HEADER;
	nvm_log_memory->asked_at[slot - NVM_VOLATILE_SLOT] = position;
	*asked = fxid;
	LWLockRelease(NvmLog->insert_lock);
}

/*
 * See nvm_log.h.
 */
void
nvm_log_note_outcome(uint64 fxid, bool committed)
{
	NvmLogRecord outcome = {
		.length = NVM_LOG_RECORD_HEADER,
		.kind = NVM_LOG_OUTCOME,
		.flags = committed ? NVM_LOG_COMMITTED : 0,
		.xid = fxid
	};

	nvm_log_reserve(NVM_LOG_RECORD_HEADER);
	LWLockAcquire(NvmLog->insert_lock, LW_EXCLUSIVE);
	(void) place(&outcome, sizeof(outcome), 0);
	LWLockRelease(NvmLog->insert_lock);
}
