/*-------------------------------------------------------------------------
 *
 * nvm_region.h
 *	  Regions: where a unit lies, what its stamps are decided by, where it grows.
 *
 * A region is a range of unit numbers with memory behind it.  The pool's file is
 * one, the volatile region another: see README.md, "Regions".  Both are mapped at
 * a fixed distance, so an address is computed without asking which one it is.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_REGION_H
#define NVM_REGION_H

#include "postgres.h"

#include "media/media_pool.h"
#include "media/media_slot.h"
#include "port/atomics.h"

typedef enum NvmRegionId
{
	NVM_REGION_POOL,			/* the pool's file */
	NVM_REGION_VOLATILE			/* memory that the postmaster holds */
} NvmRegionId;

#define NVM_NUM_REGIONS			2

/* what a process rebuilds in the volatile region, after it was lost */
typedef enum NvmRebuilt
{
	NVM_REBUILT_NOTHING,
	NVM_REBUILT_ROWS,
	NVM_REBUILT_INDEXES
} NvmRebuilt;

#define NVM_NUM_REBUILT			3

/*
 * Bytes of a region's unit numbers, used or not.  The number is fixed, because
 * places enter checksums: they must not depend on a setting.
 */
#define NVM_REGION_BYTES		(NVM_REGION_UNITS * NVM_UNIT_SIZE)	/* 16 TB */

typedef struct NvmRegion
{
	/* constant once the pool is open */
	uint64		first_unit;
	uint64		max_chunks;		/* up to which it may grow; 0: there is none */
	uint64		limit_chunks;	/* of the volatile one: without the reserve */
	bool		durable;		/* what is flushed there outlives the
								 * postmaster */

	/* protected by extent_lock */
	uint64		nchunks;		/* grows only; also read without the lock */
	uint64		free_units;
	uint64		search_unit;	/* where the next search begins */
	uint64		claim[NVM_NUM_REBUILT]; /* units that are yet to be taken for
										 * what is rebuilt */
	uint64		reserved_units; /* marked used, but with no map word yet, or
								 * none any more */
	uint32		nzeroing;		/* processes that zero more than they take */
	uint64		nzeroed;		/* how often one of them has given back the
								 * rest */

	/* unit of the redo lanes, 0 if there are none; set once, under dir_lock */
	pg_atomic_uint32 redo_unit;
} NvmRegion;

extern NvmRegion *nvm_regions;	/* [NVM_NUM_REGIONS], in shared memory */

/* ---- where it lies ---- */

/* Start of the pool's mapping; constant in all processes after the fork */
extern char *nvm_pool_base;

/*
 * From a place, which is a number of bytes, to an address and back.  A place in
 * the pool's region is an offset in its file.
 */
#define NvmPoolPtr(off)		((void *) (nvm_pool_base + (off)))
#define NvmPoolOff(ptr)		((uint64) ((const char *) (ptr) - nvm_pool_base))

static inline char *
nvm_unit_address(uint64 unit)
{
	return nvm_pool_base + unit * NVM_UNIT_SIZE;
}

/* the unit that an address in a region lies in */
static inline uint64
nvm_unit_of(const void *address)
{
	return NvmPoolOff(address) / NVM_UNIT_SIZE;
}

static inline NvmRegion *
nvm_region_of_unit(uint64 unit)
{
	return &nvm_regions[Min(unit / NVM_REGION_UNITS, NVM_NUM_REGIONS - 1)];
}

static inline uint64
nvm_region_end(const NvmRegion *region)
{
	return region->first_unit + region->nchunks * NVM_UNITS_PER_CHUNK;
}

/* is there memory behind this unit?  For numbers that damage may have made */
static inline bool
nvm_unit_is_mapped(uint64 unit)
{
	const NvmRegion *region = nvm_region_of_unit(unit);

	return unit - region->first_unit < region->nchunks * NVM_UNITS_PER_CHUNK;
}

/* ---- how it is flushed ---- */

/*
 * By nvm_flush, whatever the region: a flush of memory outside the pool does
 * nothing.  A process that has flushed nothing in the pool need not fence.
 */
static inline bool
nvm_is_in_pool(const void *address)
{
	return NvmPoolOff(address) < NVM_REGION_BYTES;
}

/* ---- which slots it is stamped from ---- */

/*
 * The commit slots that decide the stamps in a region lie in that region.  They
 * have a range of numbers of their own.  Those of the volatile region have memory
 * from its first chunk on.
 */
static inline NvmRegionId
nvm_region_of_slot(uint32 slot)
{
	return slot < NVM_VOLATILE_SLOT ? NVM_REGION_POOL : NVM_REGION_VOLATILE;
}

static inline NvmSlot *
nvm_region_slot(uint32 slot)
{
	if (slot < NVM_VOLATILE_SLOT)
		return (NvmSlot *) NvmPoolPtr(NVM_SLOTS_OFFSET) + slot;
	return (NvmSlot *) nvm_unit_address(NVM_REGION_UNITS + NVM_MAP_UNITS) +
		(slot - NVM_VOLATILE_SLOT);
}

/*
 * See to it that the volatile region has memory for its slots.  May ERROR: there
 * is no such region, or no memory.  Takes extent_lock.
 */
extern void nvm_region_make_slots(void);

/* ---- where it grows ---- */

/*
 * Add a chunk, for who wants so many units.  ERROR when the region has its largest size,
 * or there is nothing to make it of.  Caller holds extent_lock exclusively.
 */
extern void nvm_region_grow(NvmRegion *region, uint64 nunits);

/*
 * ERROR for who needs the volatile region where there is none.
 */
extern void nvm_region_is_missing(void) __attribute__((noreturn));

/* ---- the reserve (pool_reserve.c) ---- */

/*
 * Bytes above this limit, in chunks, that a rebuild of the volatile region may have.
 */
extern uint64 nvm_region_reserve_bytes(uint64 limit);

/*
 * This process rebuilds rows or indexes from now on, or, with NVM_REBUILT_NOTHING, does not
 * any more: may it have the reserve?  Returns what it rebuilt until now.
 */
extern NvmRebuilt nvm_region_use_reserve(NvmRebuilt what);

/*
 * So many units are yet to be taken for what is rebuilt.  Others do not get them.
 */
extern void nvm_region_claim(NvmRebuilt what, uint64 nunits);

/*
 * So many of them have been taken, or are not needed.
 */
extern void nvm_region_claim_less(NvmRebuilt what, uint64 nunits);

/* nobody but who rebuilds gets any */
#define NVM_CLAIM_ALL			(UINT64CONST(1) << 40)

/*
 * Would an extent more be one of the reserve, all claims counted?  A hint.
 */
extern bool nvm_region_is_short(const NvmRegion *region);

/* of the volatile region, in bytes */
typedef struct NvmRegionSizes
{
	uint64		limit;			/* for all */
	uint64		reserve;		/* above that, for a rebuild */
	uint64		size;			/* that it has grown to */
	uint64		used;
	uint64		claimed;		/* for what is yet to be rebuilt, about */
} NvmRegionSizes;

extern void nvm_region_sizes(NvmRegionSizes *sizes);

/* ---- nvm.memory_limit (pool_memory.c) ---- */

extern int	nvm_memory_limit;	/* megabytes; 0: there is no region */

extern void nvm_memory_define_settings(void);

/*
 * Have a volatile region, of up to so many megabytes.  Called while the postmaster
 * loads libraries, with nvm.memory_limit; a test's library calls it again.
 */
extern PGDLLEXPORT void nvm_region_request(int megabytes);

/*
 * Memory beside the volatile region that goes with its contents: it is zero when
 * they are gone, and as it was when they are kept.  Only what is touched is taken.
 * NULL if there is none.  Constant in all processes after the fork.
 */
extern char *nvm_region_companion;

/*
 * A start has found the region in a file, and all in the pool goes with it.  Is that
 * so elsewhere, too?  If not, *problem is a clause that says why, and the region is
 * emptied.  False after refusing the pool.
 */
typedef bool (*NvmCompanionCheck) (const char *companion, const NvmPoolHeader *h,
								   const char **problem);

/*
 * A start has no contents, or throws them away.  Can what lies elsewhere bring them back?
 * False after refusing the pool, which stays as it was found.
 */
typedef bool (*NvmCompanionBegin) (const NvmPoolHeader *h);

/*
 * Have so many bytes of it; called as nvm_region_request, after it.  The first
 * `fixed` bytes have memory where it could run out.  layout: a number that changes
 * with the layout.
 */
extern void nvm_region_request_companion(Size size, Size fixed, uint32 layout,
										 NvmCompanionCheck check, NvmCompanionBegin begin);

/*
 * A part of the rest is going to be touched: have memory for it.  May ERROR.
 */
extern void nvm_region_reserve_companion(const void *at, Size size);

#endif							/* NVM_REGION_H */
