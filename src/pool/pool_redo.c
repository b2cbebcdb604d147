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

struct NvmRedo
{
	NvmRegion  *region;
	int			lane;
	int			npieces;
	uint64		bytes;
	NvmRedoPiece piece[NVM_REDO_PIECES];
	const void *data[NVM_REDO_PIECES];
};

/* of this process, which has one lane at most */
static NvmRedo my_redo;

static inline bool
has_lanes(NvmRegion *region)
{
	return pg_atomic_read_u32(&region->redo_unit) != 0;
}

static uint64
lane_unit(NvmRegion *region, int lane)
{
	return nvm_redo_lane_unit(pg_atomic_read_u32(&region->redo_unit), lane);
}

static NvmRedoLane *
lane_address(NvmRegion *region, int lane)
{
	return (NvmRedoLane *) nvm_unit_address(lane_unit(region, lane));
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
 * Make the extent of a region's lanes.  Takes dir_lock, then extent_lock.
 */
static void
make_lanes(NvmRegion *region)
{
	LWLockAcquire(NvmPool->dir_lock, LW_EXCLUSIVE);
	if (!has_lanes(region))
	{
		uint64		unit;

		NVM_FAILPOINT("pool-redo-make");
		unit = nvm_extent_alloc(region, NVM_EXT_REDO, 0, NVM_REDO_EXTENT_UNITS,
								NVM_REDO_EXTENT_UNITS);

		pg_atomic_write_u32(&region->redo_unit, (uint32) unit);
	}
	LWLockRelease(NvmPool->dir_lock);
}

/*
 * See nvm_redo.h.
 */
void
nvm_redo_prepare(NvmRegion *region)
{
	if (!has_lanes(region))
		make_lanes(region);
}

/*
 * See nvm_redo.h.
 */
NvmRedo *
nvm_redo_begin(NvmRegion *region)
{
	NvmRedo    *redo = &my_redo;
	int			first = NvmProcNumber() % NVM_REDO_LANES;
	int			lane = first;

	nvm_redo_prepare(region);

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
	redo->region = region;
	redo->lane = lane;
	redo->npieces = 0;
	redo->bytes = 0;
	Assert(lane_address(region, lane)->word == 0);
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
	NvmRedoLane *header = lane_address(redo->region, redo->lane);
	Size		used = sizeof(NvmRedoLane);
	bool		fenced = redo->region->durable;

	/*
	 * Between the two words only a restart can put things right.  Without
	 * fences the order of the stores is all that it goes by.
	 */
	START_CRIT_SECTION();
	header->npieces = redo->npieces;
	header->reserved = 0;
	memset(header->piece, 0, sizeof(header->piece));
	memcpy(header->piece, redo->piece, redo->npieces * sizeof(NvmRedoPiece));
	for (int i = 0; i < redo->npieces; i++)
	{
		uint64		length = redo->piece[i].length;

		/* the checksum covers the bytes up to the next piece, too */
		memset((char *) header + used + NVM_REDO_SPACE(length) - 8, 0, 8);
		memcpy((char *) header + used, redo->data[i], length);
		used += NVM_REDO_SPACE(length);
	}
	nvm_flush(header, used);
	if (fenced)
		nvm_drain("pool-redo-written");

	store_lane_word(header, nvm_redo_word(lane_unit(redo->region, redo->lane), header, used));
	pg_write_barrier();
	if (fenced)
		nvm_drain("pool-redo-logged");

	for (int i = 0; i < redo->npieces; i++)
	{
		store_piece(redo->piece[i].place, redo->data[i], redo->piece[i].length);
		NVM_FAILPOINT("redo-piece");
	}
	pg_write_barrier();
	if (fenced)
		nvm_drain("pool-redo-applied");

	store_lane_word(header, 0);
	pg_write_barrier();
	if (fenced)
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

static bool
scan_lanes(NvmRegion *region)
{
	NvmImage	image = nvm_region_image(region);

	for (int lane = 0; lane < NVM_REDO_LANES; lane++)
	{
		const char *problem = lane_address(region, lane)->word == 0 ? NULL :
		nvm_redo_lane_problem(&image, lane_unit(region, lane), storage_exists, NULL);

		if (problem)
			return nvm_refuse(ERRCODE_DATA_CORRUPTED, nvm_region_restore_hint(region),
							  "redo lane %d of NVM pool \"%s\" is damaged: %s",
							  lane, nvm_pool_path, problem);
	}
	return true;
}

/*
 * Can the lanes that count be applied?  Extents and directory are in DRAM.
 * Returns false after refusing the pool.  In the postmaster.
 */
bool
nvm_redo_scan(void)
{
	for (int i = 0; i < NVM_NUM_REGIONS; i++)
	{
		if (has_lanes(&nvm_regions[i]) && !scan_lanes(&nvm_regions[i]))
			return false;
	}
	return true;
}

/*
 * Flush the words of the pool's lanes as they were found.  A lane may have
 * been cleared, but not durably.  It must not come back after others have
 * written to its places.
 */
void
nvm_redo_flush(void)
{
	NvmRegion  *region = &nvm_regions[NVM_REGION_POOL];

	if (!has_lanes(region))
		return;
	for (int lane = 0; lane < NVM_REDO_LANES; lane++)
		nvm_flush(&lane_address(region, lane)->word, sizeof(uint64));
}

/*
 * Apply the lanes of a region that count, and return how many.
 */
static int
replay_lanes(NvmRegion *region)
{
	int			nlanes = 0;

	for (int lane = 0; lane < NVM_REDO_LANES; lane++)
	{
		NvmRedoLane *header = lane_address(region, lane);
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
		return 0;

	nvm_drain("pool-redo-replayed");
	for (int lane = 0; lane < NVM_REDO_LANES; lane++)
	{
		if (lane_address(region, lane)->word != 0)
			store_lane_word(lane_address(region, lane), 0);
	}
	nvm_drain("pool-redo-forgotten");
	return nlanes;
}

/*
 * Apply the changes that the last stop left undone or half done; nvm_redo_scan
 * found nothing wrong.  After a stop in the middle the next start repeats it.
 * In the postmaster.
 */
void
nvm_redo_replay(void)
{
	int			nlanes = 0;

	for (int i = 0; i < NVM_NUM_REGIONS; i++)
	{
		if (has_lanes(&nvm_regions[i]))
			nlanes += replay_lanes(&nvm_regions[i]);
	}
	if (nlanes > 0)
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
	for (int lane = 0; lane < NVM_REDO_LANES; lane++)
	{
		LWLock	   *lock = nvm_redo_lane_lock(lane);
		char		place[32];

		if (!LWLockConditionalAcquire(lock, LW_SHARED))
			continue;
		snprintf(place, sizeof(place), "redo lane %d", lane);
		for (int i = 0; i < NVM_NUM_REGIONS; i++)
		{
			if (has_lanes(&nvm_regions[i]) && lane_address(&nvm_regions[i], lane)->word != 0)
				emit(arg, place, "is not empty, though nobody uses it");
		}
		LWLockRelease(lock);
	}
}
