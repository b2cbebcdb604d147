/*-------------------------------------------------------------------------
 *
 * pool_redo.c
 *	  Redo lanes: change several places of the pool, all or nothing.
 *
 * README.md, "Redo lanes", has the states and what a crash leaves in each.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat/nvm_compat.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_redo.h"
#include "pool/pool_impl.h"
#include "verify/nvm_verify.h"

#define RESTORE_HINT \
	"Restore the pool and the data directory together from a backup taken while the server was stopped."

struct NvmRedo
{
	int			lane;
	int			npieces;
	uint64		bytes;
	NvmRedoPiece piece[NVM_REDO_PIECES];
	const void *data[NVM_REDO_PIECES];
};

/* of this process, which has one lane at most */
static NvmRedo my_redo;

static uint64
lane_unit(int lane)
{
	return nvm_redo_lane_unit(pg_atomic_read_u32(&NvmPool->redo_unit), lane);
}

static NvmRedoLane *
lane_address(int lane)
{
	return NvmPoolPtr(lane_unit(lane) * NVM_UNIT_SIZE);
}

/*
 * Say whether the pieces of a lane count, flushed.  Caller holds the lane's lock,
 * or is the postmaster at the start.
 */
static void
store_lane_word(NvmRedoLane *header, uint64 word)
{
	nvm_store(&header->word, word);
	nvm_flush(&header->word, sizeof(header->word));
}

/*
 * Store a piece where it belongs, and flush it.
 */
static void
store_piece(uint64 place, const void *data, uint64 length)
{
	char	   *to = NvmPoolPtr(place);

	/* somebody may read a single word without a lock */
	if (length == sizeof(uint64) && place % sizeof(uint64) == 0)
	{
		uint64		word;

		memcpy(&word, data, sizeof(word));
		nvm_store((uint64 *) to, word);
	}
	else
		memcpy(to, data, length);
	nvm_flush(to, length);
}

/* ---- use ---- */

/*
 * Make the extent of the lanes.  Takes dir_lock, then extent_lock.
 */
static void
make_lanes(void)
{
	LWLockAcquire(NvmPool->dir_lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u32(&NvmPool->redo_unit) == 0)
	{
		uint64		unit;

		NVM_FAILPOINT("pool-redo-make");
		unit = nvm_extent_alloc(NVM_EXT_REDO, 0, NVM_REDO_EXTENT_UNITS,
								NVM_REDO_EXTENT_UNITS);

		pg_atomic_write_u32(&NvmPool->redo_unit, (uint32) unit);
	}
	LWLockRelease(NvmPool->dir_lock);
}

/*
 * See nvm_redo.h.
 */
void
nvm_redo_prepare(void)
{
	if (pg_atomic_read_u32(&NvmPool->redo_unit) == 0)
		make_lanes();
}

/*
 * See nvm_redo.h.
 */
NvmRedo *
nvm_redo_begin(void)
{
	NvmRedo    *redo = &my_redo;
	int			first = NvmProcNumber() % NVM_REDO_LANES;
	int			lane = first;

	nvm_redo_prepare();

	/* an error has released what an earlier call took */
	Assert(!LWLockHeldByMe(nvm_redo_lane_lock(redo->lane)));
	while (!LWLockConditionalAcquire(nvm_redo_lane_lock(lane), LW_EXCLUSIVE))
	{
		lane = (lane + 1) % NVM_REDO_LANES;
		if (lane != first)
			continue;
		LWLockAcquire(nvm_redo_lane_lock(lane), LW_EXCLUSIVE);
		break;
	}
	redo->lane = lane;
	redo->npieces = 0;
	redo->bytes = 0;
	Assert(lane_address(lane)->word == 0);
	return redo;
}

void
nvm_redo_add(NvmRedo *redo, void *place, const void *data, Size len)
{
	NvmRedoPiece *piece = &redo->piece[redo->npieces];

	if (len == 0)
		return;
	if (redo->npieces >= NVM_REDO_MAX_PIECES || redo->bytes + len > NVM_REDO_MAX_BYTES)
		elog(PANIC, "more than a redo lane of the NVM pool has room for");
	piece->place = NvmPoolOff(place);
	piece->length = len;
	redo->data[redo->npieces++] = data;
	redo->bytes += len;
}

/*
 * See nvm_redo.h.
 */
void
nvm_redo_apply(NvmRedo *redo)
{
	NvmRedoLane *header = lane_address(redo->lane);
	Size		used = sizeof(NvmRedoLane);

	/* between the two words nothing but a restart can put things right */
	START_CRIT_SECTION();
	header->npieces = redo->npieces;
	header->reserved = 0;
	memset(header->piece, 0, sizeof(header->piece));
	memcpy(header->piece, redo->piece, redo->npieces * sizeof(NvmRedoPiece));
	for (int i = 0; i < redo->npieces; i++)
	{
		uint64		length = redo->piece[i].length;

		/* what fills up to the next piece is covered by the checksum too */
		memset((char *) header + used + NVM_REDO_SPACE(length) - 8, 0, 8);
		memcpy((char *) header + used, redo->data[i], length);
		used += NVM_REDO_SPACE(length);
	}
	nvm_flush(header, used);
	nvm_drain("pool-redo-written");

	store_lane_word(header, nvm_redo_word(lane_unit(redo->lane), header, used));
	nvm_drain("pool-redo-logged");

	for (int i = 0; i < redo->npieces; i++)
	{
		store_piece(redo->piece[i].place, redo->data[i], redo->piece[i].length);
		NVM_FAILPOINT("redo-piece");
	}
	nvm_drain("pool-redo-applied");

	store_lane_word(header, 0);
	nvm_drain("pool-redo-cleared");
	END_CRIT_SECTION();
	redo->npieces = 0;
	redo->bytes = 0;
}

void
nvm_redo_end(NvmRedo *redo)
{
	LWLockRelease(nvm_redo_lane_lock(redo->lane));
}

/* ---- start and check ---- */

static bool
storage_exists(void *arg, uint32 owner)
{
	return nvm_relstates[owner].dir == owner;
}

/*
 * Can the lanes that count be applied?  Extents and directory are in DRAM.
 * Returns false after refusing the pool.  In the postmaster.
 */
bool
nvm_redo_scan(void)
{
	NvmImage	image = nvm_pool_image();

	if (pg_atomic_read_u32(&NvmPool->redo_unit) == 0)
		return true;
	for (int lane = 0; lane < NVM_REDO_LANES; lane++)
	{
		const char *problem = lane_address(lane)->word == 0 ? NULL :
		nvm_redo_lane_problem(&image, lane_unit(lane), storage_exists, NULL);

		if (problem)
			return nvm_refuse(ERRCODE_DATA_CORRUPTED, RESTORE_HINT,
							  "redo lane %d of NVM pool \"%s\" is damaged: %s",
							  lane, nvm_pool_path, problem);
	}
	return true;
}

/*
 * Flush which lanes count, as it was found: one that was cleared, but not
 * durably, must not come back after its place was written by others.
 */
void
nvm_redo_flush(void)
{
	if (pg_atomic_read_u32(&NvmPool->redo_unit) == 0)
		return;
	for (int lane = 0; lane < NVM_REDO_LANES; lane++)
		nvm_flush(&lane_address(lane)->word, sizeof(uint64));
}

/*
 * Do what the last stop left undone or half done; nvm_redo_scan found nothing
 * wrong.  A stop in the middle of it has it done again.  In the postmaster.
 */
void
nvm_redo_replay(void)
{
	int			nlanes = 0;

	if (pg_atomic_read_u32(&NvmPool->redo_unit) == 0)
		return;
	for (int lane = 0; lane < NVM_REDO_LANES; lane++)
	{
		NvmRedoLane *header = lane_address(lane);
		const char *data = (const char *) (header + 1);

		if (header->word == 0)
			continue;
		for (uint32 i = 0; i < header->npieces; i++)
		{
			store_piece(header->piece[i].place, data, header->piece[i].length);
			data += NVM_REDO_SPACE(header->piece[i].length);
			NVM_FAILPOINT("redo-replay-piece");
		}
		nlanes++;
	}
	if (nlanes == 0)
		return;

	nvm_drain("pool-redo-replayed");
	for (int lane = 0; lane < NVM_REDO_LANES; lane++)
	{
		if (lane_address(lane)->word != 0)
			store_lane_word(lane_address(lane), 0);
	}
	nvm_drain("pool-redo-forgotten");
	ereport(LOG,
			(errmsg("nvm: completed %d changes of structure that the last stop interrupted",
					nlanes)));
}

/*
 * For nvm_pool_verify: a lane that nobody has is empty.  Holds one lane at a
 * time, and no other lock.
 */
void
nvm_redo_verify(NvmCheckEmit emit, void *arg)
{
	if (pg_atomic_read_u32(&NvmPool->redo_unit) == 0)
		return;
	for (int lane = 0; lane < NVM_REDO_LANES; lane++)
	{
		LWLock	   *lock = nvm_redo_lane_lock(lane);
		char		place[32];

		if (!LWLockConditionalAcquire(lock, LW_SHARED))
			continue;
		snprintf(place, sizeof(place), "redo lane %d", lane);
		if (lane_address(lane)->word != 0)
			emit(arg, place, "is not empty, though nobody uses it");
		LWLockRelease(lock);
	}
}
