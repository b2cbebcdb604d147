/*-------------------------------------------------------------------------
 *
 * pool_region.c
 *	  Regions: the pool's file and memory that the postmaster holds, and how each
 *	  of them grows.
 *
 * The volatile region is a memfd.  It belongs to the postmaster.  The
 * postmaster keeps it when it reinitialises after a backend's death:
 * README.md, "Regions".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_sound.h"
#include "pool/pool_impl.h"
#include "verify/nvm_verify.h"

NvmRegion  *nvm_regions = NULL;

/* of the volatile region, in the postmaster: its size at most, its memory */
static uint64 volatile_max = 0;
static int	volatile_fd = -1;

/* the pool that its contents go with, as that pool's header was after the open */
static bool bound = false;
static uint8 bound_uuid[16];
static uint64 bound_nonce;

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
	volatile_max = Min((uint64) megabytes * 1024 * 1024 / NVM_CHUNK_SIZE * NVM_CHUNK_SIZE,
					   NVM_REGION_BYTES);
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
	nvm_regions[NVM_REGION_VOLATILE].max_chunks = volatile_max / NVM_CHUNK_SIZE;
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
	volatile_max = 0;
	nvm_regions[NVM_REGION_VOLATILE].max_chunks = 0;
	if (volatile_fd >= 0)
		close(volatile_fd);
	volatile_fd = -1;
	bound = false;
}

/*
 * Do the contents of the volatile region go with the pool that has this
 * header?  The pool's slots decide the rows there.  But that pool may have
 * been given up for another one.
 */
static bool
is_of_pool(const NvmPoolHeader *h)
{
	return bound && bound_nonce == h->nonce &&
		memcmp(bound_uuid, h->uuid, sizeof(bound_uuid)) == 0;
}

/*
 * Map the volatile region, if there is to be one, with its contents or empty.
 * The pool is mapped.  Returns false after refusing the pool.  Postmaster only.
 */
bool
nvm_region_open(const NvmPoolHeader *h)
{
	NvmRegion  *region = &nvm_regions[NVM_REGION_VOLATILE];
	struct stat st;

	if (volatile_max == 0)
		return true;
	if (volatile_fd < 0)
		volatile_fd = memfd_create("pg_nvm volatile", MFD_CLOEXEC);
	if (volatile_fd < 0)
		return nvm_refuse(ERRCODE_OUT_OF_MEMORY,
						  "Free memory or raise the limits of the server's processes.",
						  "could not create the volatile region: %m");
	if (!is_of_pool(h))
	{
		bound = false;
		if (ftruncate(volatile_fd, 0) != 0)
			return nvm_refuse(ERRCODE_OUT_OF_MEMORY, "Restart the server.",
							  "could not clear the volatile region: %m");
	}
	if (fstat(volatile_fd, &st) != 0 ||
		mmap(nvm_unit_address(region->first_unit), volatile_max, PROT_READ | PROT_WRITE,
			 MAP_FIXED | MAP_SHARED | MAP_NORESERVE, volatile_fd, 0) == MAP_FAILED)
		return nvm_refuse(ERRCODE_OUT_OF_MEMORY,
						  "Raise the limit of address space (ulimit -v).",
						  "could not map the volatile region: %m");
#ifdef MADV_DONTDUMP
	(void) madvise(nvm_unit_address(region->first_unit), volatile_max, MADV_DONTDUMP);
#endif
	region->nchunks = (uint64) st.st_size / NVM_CHUNK_SIZE;
	return true;
}

/*
 * The pool is open, with this header: from now on the contents go with it.
 */
void
nvm_region_bind(const NvmPoolHeader *h)
{
	memcpy(bound_uuid, h->uuid, sizeof(bound_uuid));
	bound_nonce = h->nonce;
	bound = volatile_fd >= 0;
}

/*
 * The pool is read anew, without the writes that a failed sync lost: its slots may
 * be older than the stamps in the region.  Whatever becomes of this open, no later
 * one may keep the contents.
 */
void
nvm_region_unbind(void)
{
	bound = false;
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
 * leaves a chunk of zeroes, which the next open finds.  Caller holds
 * extent_lock exclusively.
 */
static void
grow_volatile(NvmRegion *region)
{
	int			rc;

	do
	{
		rc = fallocate(volatile_fd, 0, (off_t) (region->nchunks * NVM_CHUNK_SIZE),
					   (off_t) NVM_CHUNK_SIZE);
	} while (rc != 0 && errno == EINTR);
	if (rc != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not extend the volatile region: %m"),
				 errdetail("It has %llu MB.",
						   (unsigned long long) (region->nchunks * NVM_CHUNK_SIZE / (1024 * 1024))),
				 errhint("Free memory, or free space in the region by TRUNCATE or DROP TABLE.")));
}

static void
has_largest_size(const NvmRegion *region)
{
	unsigned long long mb = region->nchunks * NVM_CHUNK_SIZE / (1024 * 1024);

	if (!region->durable)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not extend the volatile region: it has its maximum size"),
				 errdetail("It has %llu MB.", mb),
				 errhint("Free space in it by TRUNCATE or DROP TABLE.")));
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
nvm_region_grow(NvmRegion *region)
{
	uint64		first = nvm_region_end(region);
	uint32		lead = nvm_chunk_first_unit(first / NVM_UNITS_PER_CHUNK);

	if (region->nchunks >= region->max_chunks)
		has_largest_size(region);
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
		nvm_region_grow(region);
	LWLockRelease(NvmPool->extent_lock);
}
