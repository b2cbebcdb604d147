/*-------------------------------------------------------------------------
 *
 * pool_reserve.c
 *	  The volatile region above nvm.memory_limit: a reserve for its own rebuild.
 *
 * Rows that the log brings back, and indexes that are built of them, may take
 * more than they took before.  So the processes of a rebuild may go beyond the
 * limit, by a reserve.  All others end at the limit, and before it while what
 * is to be rebuilt has a claim to the rest.  README.md, "The reserve".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pool/pool_impl.h"

#define MEGABYTE		(UINT64CONST(1024) * 1024)

/* the least that a rebuild may have besides */
#define LEAST_RESERVE	(2 * NVM_CHUNK_SIZE)

/* what this process rebuilds */
static NvmRebuilt rebuilt = NVM_REBUILT_NOTHING;

/*
 * See nvm_region.h.
 */
uint64
nvm_region_reserve_bytes(uint64 limit)
{
	return Max(LEAST_RESERVE, TYPEALIGN64(NVM_CHUNK_SIZE, limit / 8));
}

/*
 * See nvm_region.h.
 */
NvmRebuilt
nvm_region_use_reserve(NvmRebuilt what)
{
	NvmRebuilt	before = rebuilt;

	rebuilt = what;
	return before;
}

uint64
nvm_region_used_units(const NvmRegion *region)
{
	return region->nchunks * NVM_UNITS_PER_CHUNK - region->free_units;
}

static uint64
claimed_units(const NvmRegion *region)
{
	return region->claim[NVM_REBUILT_ROWS] + region->claim[NVM_REBUILT_INDEXES];
}

/*
 * The same, as far as it is known.
 */
static uint64
known_claim(const NvmRegion *region)
{
	return claimed_units(region) < NVM_CLAIM_ALL ? claimed_units(region) : 0;
}

/*
 * See nvm_region.h.
 */
void
nvm_region_claim(NvmRebuilt what, uint64 nunits)
{
	LWLockAcquire(NvmPool->extent_lock, LW_EXCLUSIVE);
	nvm_regions[NVM_REGION_VOLATILE].claim[what] = nunits;
	LWLockRelease(NvmPool->extent_lock);
}

/*
 * See nvm_region.h.
 */
void
nvm_region_claim_less(NvmRebuilt what, uint64 nunits)
{
	NvmRegion  *region = &nvm_regions[NVM_REGION_VOLATILE];

	LWLockAcquire(NvmPool->extent_lock, LW_EXCLUSIVE);
	region->claim[what] -= Min(region->claim[what], nunits);
	LWLockRelease(NvmPool->extent_lock);
}

/*
 * See nvm_region.h.
 */
bool
nvm_region_is_short(const NvmRegion *region)
{
	bool		is_short;

	if (region->durable)
		return false;
	LWLockAcquire(NvmPool->extent_lock, LW_SHARED);
	is_short = nvm_region_used_units(region) + claimed_units(region) + NVM_EXT_MAX_UNITS >
		region->limit_chunks * NVM_UNITS_PER_CHUNK;
	LWLockRelease(NvmPool->extent_lock);
	return is_short;
}

/*
 * See nvm_region.h.
 */
void
nvm_region_sizes(NvmRegionSizes *sizes)
{
	const NvmRegion *region = &nvm_regions[NVM_REGION_VOLATILE];

	LWLockAcquire(NvmPool->extent_lock, LW_SHARED);
	sizes->limit = region->limit_chunks * NVM_CHUNK_SIZE;
	sizes->reserve = (region->max_chunks - region->limit_chunks) * NVM_CHUNK_SIZE;
	sizes->size = region->nchunks * NVM_CHUNK_SIZE;
	sizes->used = nvm_region_used_units(region) * NVM_UNIT_SIZE;
	sizes->claimed = known_claim(region) * NVM_UNIT_SIZE;
	LWLockRelease(NvmPool->extent_lock);
}

/* ---- allocation ---- */

static unsigned long long
in_mb(uint64 bytes)
{
	return (unsigned long long) ((bytes + MEGABYTE - 1) / MEGABYTE);
}

/*
 * What the tables would take if all of them were there: for nvm.memory_limit, which comes
 * in chunks.
 */
static unsigned long long
wanted_mb(const NvmRegion *region, uint64 nunits)
{
	uint64		bytes = (nvm_region_used_units(region) + known_claim(region) + nunits) * NVM_UNIT_SIZE;

	/* chunks have some units that are nobody's */
	bytes = Max(bytes + bytes / 512, (region->nchunks + 1) * NVM_CHUNK_SIZE);
	return in_mb(TYPEALIGN64(NVM_CHUNK_SIZE, bytes));
}

/*
 * ERROR: the volatile region may not grow for this process, which wants so many units.
 */
void
nvm_region_is_full(const NvmRegion *region, uint64 nunits)
{
	uint64		limit = region->limit_chunks * NVM_CHUNK_SIZE;
	uint64		used = nvm_region_used_units(region) * NVM_UNIT_SIZE;

	if (rebuilt != NVM_REBUILT_NOTHING)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not extend the volatile region: what is being rebuilt has no room"),
				 errdetail("nvm.memory_limit allows %llu MB, and %llu MB more for a rebuild. Set it to %llu MB at least.",
						   in_mb(limit),
						   in_mb((region->max_chunks - region->limit_chunks) * NVM_CHUNK_SIZE),
						   wanted_mb(region, nunits))));
	if (claimed_units(region) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not extend the volatile region: the rest is for tables and indexes that are not rebuilt yet"),
				 known_claim(region) == 0 ?
				 errdetail("How much these need is not known yet.") :
				 errdetail("Tables in memory and their indexes have %llu MB, those that are not rebuilt yet need about %llu MB, nvm.memory_limit allows %llu MB.",
						   in_mb(used), in_mb(known_claim(region) * NVM_UNIT_SIZE), in_mb(limit)),
				 errhint("Try again when they are there (nvm.log_recovery, nvm.index_rebuilds). If nvm.log_recovery has failed, remove the cause and restart the server. Or increase nvm.memory_limit and restart the server.")));

	/*
	 * where all chunks are there, but none has so much in one piece, it is
	 * full, too
	 */
	if (region->nchunks <= region->limit_chunks)
		used = region->nchunks * NVM_CHUNK_SIZE;
	ereport(ERROR,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("could not extend the volatile region: it has its maximum size"),
			 errdetail("Tables in memory and their indexes have %llu MB, nvm.memory_limit allows %llu MB.",
					   in_mb(used), in_mb(limit)),
			 errhint("Increase nvm.memory_limit and restart the server, or free space by TRUNCATE or DROP TABLE. VACUUM makes room for new rows of the same table alone.")));
}

/*
 * May this process have so many units more?  ERROR if not.  Units that are free count
 * for nothing: a rebuild may have left some beyond the limit.  Caller holds
 * extent_lock.
 */
void
nvm_region_require_room(const NvmRegion *region, uint64 nunits)
{
	if (!region->durable && rebuilt == NVM_REBUILT_NOTHING &&
		nvm_region_used_units(region) + claimed_units(region) + nunits >
		region->limit_chunks * NVM_UNITS_PER_CHUNK)
		nvm_region_is_full(region, nunits);
}

/*
 * This process has taken so many units: an index that it rebuilds needs less from now on.
 * Of rows vlog/ says so itself.  Caller holds extent_lock exclusively.
 */
void
nvm_region_note_taken(NvmRegion *region, uint64 nunits)
{
	if (!region->durable && rebuilt == NVM_REBUILT_INDEXES)
		region->claim[rebuilt] -= Min(region->claim[rebuilt], nunits);
}

/*
 * Up to how many chunks this process may have the region grow.
 */
uint64
nvm_region_may_have_chunks(const NvmRegion *region)
{
	return region->durable || rebuilt != NVM_REBUILT_NOTHING ?
		region->max_chunks : Min(region->limit_chunks, region->max_chunks);
}
