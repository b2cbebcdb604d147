/*-------------------------------------------------------------------------
 *
 * pool_region.c
 *	  Regions: the pool's file and memory that the postmaster holds, and how each
 *	  of them grows.
 *
 * What the volatile region lies in is pool_backing.c's matter, and whose contents
 * that has pool_contents.c's: README.md, "Regions".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/mman.h>

#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_sound.h"
#include "pool/pool_impl.h"
#include "verify/nvm_verify.h"

NvmRegion  *nvm_regions = NULL;

/*
 * Of the volatile region, in the postmaster: up to where it may grow without the
 * reserve, and with it, and the size that is mapped.  That is larger if it was found
 * larger.
 */
static uint64 volatile_limit = 0;
static uint64 volatile_size = 0;
static uint64 volatile_max = 0;

/* what goes with it */
char	   *nvm_region_companion = NULL;
static NvmCompanionCheck companion_check = NULL;
static NvmCompanionBegin companion_begin = NULL;

/* this postmaster has looked at what it has found */
static bool companion_is_checked = false;

/*
 * See nvm_region.h.
 */
void
nvm_region_request(int megabytes)
{
	if (!process_shared_preload_libraries_in_progress)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the volatile region can be requested by shared_preload_libraries only")));
	volatile_limit = Min((uint64) megabytes * 1024 * 1024 / NVM_CHUNK_SIZE * NVM_CHUNK_SIZE,
						 NVM_REGION_BYTES);
	/* a server without the region has no reserve, either */
	volatile_size = volatile_limit == 0 ? 0 :
		Min(volatile_limit + nvm_region_reserve_bytes(volatile_limit), NVM_REGION_BYTES);
	volatile_max = volatile_size;
}

/*
 * See nvm_region.h.
 */
void
nvm_region_is_missing(void)
{
	bool		is_off = nvm_memory_limit == 0;

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("tables in memory are not available"),
			 is_off ? errdetail("nvm.memory_limit is 0.") :
			 errdetail("The server has no address space for them, or no memory. The server log says why."),
			 is_off ? errhint("Set nvm.memory_limit and restart the server. What the log has of these tables is there again then.") :
			 errhint("Raise the limit of address space (ulimit -v) and restart the server. What the log has of these tables is there again then.")));
}

/*
 * See nvm_region.h.
 */
void
nvm_region_request_companion(Size size, Size fixed, uint32 layout, NvmCompanionCheck check,
							 NvmCompanionBegin begin)
{
	if (volatile_max == 0)
		return;
	nvm_backing_request_companion(size, fixed, layout);
	companion_check = check;
	companion_begin = begin;
}

/*
 * Address space that the regions take, from the start of the pool's mapping.
 */
uint64
nvm_region_address_space(void)
{
	return volatile_max > 0 ? NVM_REGION_BYTES + volatile_max : nvm_pool_max_bytes();
}

/*
 * Set the constants of the regions, in shared memory that is zero.
 */
void
nvm_region_init(void)
{
	nvm_regions = NvmPool->region;
	for (int i = 0; i < NVM_NUM_REGIONS; i++)
	{
		NvmRegion  *region = &nvm_regions[i];

		region->first_unit = i * NVM_REGION_UNITS;
		pg_atomic_init_u32(&region->redo_unit, 0);
	}
	nvm_regions[NVM_REGION_POOL].durable = true;
	nvm_regions[NVM_REGION_POOL].max_chunks = nvm_pool_max_bytes() / NVM_CHUNK_SIZE;
	nvm_regions[NVM_REGION_VOLATILE].max_chunks = volatile_size / NVM_CHUNK_SIZE;
	nvm_regions[NVM_REGION_VOLATILE].limit_chunks = volatile_limit / NVM_CHUNK_SIZE;
}

const char *
nvm_region_restore_hint(const NvmRegion *region)
{
	return region->durable ?
		"Restore the pool and the data directory together from a backup taken while the server was stopped." :
		"Stop the server and start it again: then what is in memory alone is empty.";
}

/* ---- start ---- */

/*
 * There is no address space for the volatile region: have none, as long as this
 * postmaster lives.  What is rebuilt at each start has no room for it later on.
 */
void
nvm_region_give_up(void)
{
	volatile_limit = volatile_size = volatile_max = 0;
	nvm_regions[NVM_REGION_VOLATILE].max_chunks = 0;
	nvm_regions[NVM_REGION_VOLATILE].limit_chunks = 0;
	nvm_regions[NVM_REGION_VOLATILE].nchunks = 0;
	nvm_backing_close();
}

static void
warn_and_give_up(void)
{
	ereport(WARNING,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("there is no memory for the volatile region, and nothing can be stored in it: %m"),
			 errhint("Raise the limits of the server's processes and restart the server.")));
	nvm_region_give_up();
}

/*
 * Find what the region lies in, if there is to be one: a file is ours from now on.
 * Called before the pool is believed.  False after refusing the pool.  Postmaster
 * only.
 */
bool
nvm_region_find(void)
{
	if (volatile_max == 0)
		return true;
	switch (nvm_backing_open(volatile_max))
	{
		case NVM_BACKING_OPEN:
			volatile_max = Max(volatile_size, nvm_contents_size());
			return true;
		case NVM_BACKING_REFUSED:
			return false;
		case NVM_BACKING_NONE:
			break;
	}
	warn_and_give_up();
	return true;
}

/*
 * Are the contents those that this open must go on with?  If not, *problem says why;
 * a clause.  False after refusing the pool.
 */
static bool
judge_contents(const NvmPoolHeader *h, const char **problem)
{
	*problem = nvm_contents_problem(h);
	if (*problem != NULL || !nvm_backing_is_file() || companion_is_checked ||
		companion_check == NULL)
		return true;
	return companion_check(nvm_region_companion, h, problem);
}

/*
 * Say what was found in a file, once in the life of the postmaster or when it is
 * thrown away.
 */
static void
tell_of_file(const char *problem, uint64 nchunks, bool is_new)
{
	unsigned long long mb = nchunks * NVM_CHUNK_SIZE / (1024 * 1024);

	if (problem == NULL && !companion_is_checked)
		ereport(LOG,
				(errmsg("nvm: tables in memory are there: %llu MB in file \"%s\"",
						mb, nvm_backing_path()),
				 nchunks * NVM_CHUNK_SIZE <= volatile_limit ? 0 :
				 errdetail("nvm.memory_limit allows %llu MB: they cannot grow before they need less.",
						   (unsigned long long) (volatile_limit / (1024 * 1024)))));
	else if (is_new)
		ereport(LOG,
				(errmsg("nvm: tables in memory lie in file \"%s\", which is new",
						nvm_backing_path())));
	else if (problem != NULL)
		ereport(LOG,
				(errmsg("nvm: the contents of file \"%s\" are not used: %s",
						nvm_backing_path(), problem),
				 errdetail("The log brings tables in memory back. UNLOGGED ones are empty.")));
}

/*
 * Have the contents, or nothing, and map the chunks.  False with errno set.
 */
static bool
map_volatile(const NvmPoolHeader *h, bool keep)
{
	NvmRegion  *region = &nvm_regions[NVM_REGION_VOLATILE];
	char	   *at = nvm_unit_address(region->first_unit);

	if (!keep)
	{
		nvm_contents_unbind();
		if (!nvm_backing_empty())
			return false;
		nvm_contents_begin(h);
	}
	if (mmap(at, volatile_max, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED | MAP_NORESERVE,
			 nvm_backing_fd, (off_t) nvm_backing_lead()) == MAP_FAILED)
		return false;
#ifdef MADV_HUGEPAGE
	if (nvm_huge_pages != HUGE_PAGES_OFF)
		(void) madvise(at, volatile_max, MADV_HUGEPAGE);
#endif
#ifdef MADV_DONTDUMP
	(void) madvise(at, volatile_max, MADV_DONTDUMP);
#endif
	region->nchunks = nvm_backing_header()->nchunks;
	region->max_chunks = Max(volatile_size / NVM_CHUNK_SIZE, region->nchunks);
	return true;
}

/*
 * Map the volatile region, if there is to be one.  If a memfd cannot be mapped there is
 * none, and the pool is served alone.  The pool is mapped.  False after refusing the
 * pool.  Postmaster only.
 */
bool
nvm_region_open(const NvmPoolHeader *h)
{
	const char *problem;
	bool		is_new;

	if (volatile_max == 0)
		return true;
	if (!judge_contents(h, &problem) ||
		(problem != NULL && companion_begin != NULL && !companion_begin(h)))
		return false;
	is_new = nvm_backing_is_new();
	if (map_volatile(h, problem == NULL))
	{
		if (nvm_backing_is_file())
			tell_of_file(problem, nvm_regions[NVM_REGION_VOLATILE].nchunks, is_new);
		companion_is_checked = true;
		return true;
	}
	if (nvm_backing_is_file())
	{
		(void) nvm_backing_refuse_memory();
		nvm_backing_close();
		return false;
	}
	warn_and_give_up();
	return true;
}

/*
 * The pool is read anew, without the writes that a failed sync lost: its slots may
 * be older than the stamps in the region.  Whatever becomes of this open, no later
 * one may keep the contents.
 */
void
nvm_region_unbind(void)
{
	nvm_contents_unbind();
}

/* ---- growth ---- */

/*
 * Make the pool's file longer, durably.  May ERROR.  Caller holds extent_lock
 * exclusively; takes header_lock.
 */
static void
grow_pool(NvmRegion *region)
{
	uint64		oldsize = region->nchunks * NVM_CHUNK_SIZE;
	uint64		newsize = oldsize + NVM_CHUNK_SIZE;
	const char *what = NULL;
	bool		ok;

	NVM_FAILPOINT("pool-grow-file");
	ok = nvm_file_extend(oldsize, newsize, &what);
	if (ok && !nvm_pmem_grown(newsize))
	{
		what = "map";
		ok = false;
	}
	if (!ok)
	{
		int			save_errno = errno;

		ereport(ERROR,
				(errcode(save_errno == ENOSPC || save_errno == EDQUOT || save_errno == EFBIG ?
						 ERRCODE_DISK_FULL : ERRCODE_IO_ERROR),
				 errmsg("could not extend NVM pool: %m"),
				 errdetail("Step \"%s\" of growing it from %llu MB to %llu MB failed.", what,
						   (unsigned long long) (oldsize / (1024 * 1024)),
						   (unsigned long long) (newsize / (1024 * 1024))),
				 errdetail_log("Step \"%s\" of growing \"%s\" from %llu MB to %llu MB failed.",
							   what, nvm_pool_path,
							   (unsigned long long) (oldsize / (1024 * 1024)),
							   (unsigned long long) (newsize / (1024 * 1024))),
				 errhint("Free space on the device that holds nvm.pool_directory, or free space in the pool by TRUNCATE or DROP TABLE. VACUUM makes room for new rows of the same table alone.")));
	}

	NVM_FAILPOINT("pool-grow-header");
	LWLockAcquire(NvmPool->header_lock, LW_EXCLUSIVE);
	nvm_dram->header.nchunks++;
	nvm_header_write(&nvm_dram->header);
	LWLockRelease(NvmPool->header_lock);
}

/*
 * Take memory for another chunk.  May ERROR.  A process that dies after that
 * leaves a chunk of zeroes, which the next open finds, or the next growth.  Caller
 * holds extent_lock exclusively.
 */
static void
grow_volatile(NvmRegion *region)
{
	unsigned long long mb = region->nchunks * NVM_CHUNK_SIZE / (1024 * 1024);

	if (!nvm_backing_reserve(nvm_backing_lead() + region->nchunks * NVM_CHUNK_SIZE,
							 NVM_CHUNK_SIZE))
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not extend the volatile region: %m"),
				 errdetail("It has %llu MB.", mb),
				 nvm_backing_is_file() ?
				 errhint("Make the file system of nvm.memory_directory larger, free memory there, or free space in the region by TRUNCATE or DROP TABLE.") :
				 errhint("Free memory, or free space in the region by TRUNCATE or DROP TABLE. A smaller nvm.memory_limit leaves more to others.")));
	NVM_FAILPOINT("memory-grown");
	if (region->nchunks >= region->limit_chunks)
		NVM_FAILPOINT("memory-grown-reserve");
	nvm_backing_header()->nchunks = region->nchunks + 1;
}

static void
has_largest_size(const NvmRegion *region, uint64 nunits)
{
	unsigned long long mb = region->nchunks * NVM_CHUNK_SIZE / (1024 * 1024);

	if (!region->durable)
		nvm_region_is_full(region, nunits);
	ereport(ERROR,
			(errcode(ERRCODE_DISK_FULL),
			 errmsg("could not extend NVM pool: it has its maximum size"),
			 errdetail("The pool has %llu MB, nvm.pool_max_size is %d MB.",
					   mb, nvm_pool_max_size),
			 errhint("Increase nvm.pool_max_size and restart the server, or free space by TRUNCATE or DROP TABLE. VACUUM makes room for new rows of the same table alone.")));
}

/*
 * See nvm_region.h.
 */
void
nvm_region_grow(NvmRegion *region, uint64 nunits)
{
	uint64		first = nvm_region_end(region);
	uint32		lead = nvm_chunk_first_unit(first / NVM_UNITS_PER_CHUNK);

	if (region->nchunks >= nvm_region_may_have_chunks(region))
		has_largest_size(region, nunits);
	if (!nvm_dram_reserve(nvm_used_bits + first / 64, NVM_UNITS_PER_CHUNK / 8) ||
		!nvm_dram_reserve(nvm_zero_bits + first / 64, NVM_UNITS_PER_CHUNK / 8) ||
		!nvm_dram_reserve(nvm_sound_bits + first / 64, NVM_UNITS_PER_CHUNK / 8))
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory in the DRAM region of the NVM pool")));
	if (region->durable)
		grow_pool(region);
	else
		grow_volatile(region);

	/*
	 * The memory is new there.  So everything but the map, and the slots in
	 * the volatile region's first chunk, is free and zero.
	 */
	nvm_bits_clear(nvm_used_bits, first, NVM_UNITS_PER_CHUNK);
	nvm_bits_set(nvm_used_bits, first, lead);
	nvm_bits_set(nvm_zero_bits, first, NVM_UNITS_PER_CHUNK);
	region->free_units += NVM_UNITS_PER_CHUNK - lead;
	region->nchunks++;
}

/*
 * See nvm_region.h.
 */
void
nvm_region_make_slots(void)
{
	NvmRegion  *region = &nvm_regions[NVM_REGION_VOLATILE];

	LWLockAcquire(NvmPool->extent_lock, LW_EXCLUSIVE);
	if (region->nchunks == 0)
		nvm_region_grow(region, 1);
	LWLockRelease(NvmPool->extent_lock);
}
