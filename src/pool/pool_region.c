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

/* what goes with it */
static Size companion_size = 0;
static int	companion_fd = -1;
char	   *nvm_region_companion = NULL;

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
nvm_region_request_companion(Size size)
{
	companion_size = volatile_max > 0 ? size : 0;
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
	nvm_regions[NVM_REGION_VOLATILE].nchunks = 0;
	if (volatile_fd >= 0)
		close(volatile_fd);
	volatile_fd = -1;
	companion_size = 0;
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
 * The same for what goes with the region.  It stays where it is mapped.  False with
 * errno set.
 */
static bool
open_companion(void)
{
	if (companion_size == 0)
		return true;
	if (companion_fd < 0)
		companion_fd = memfd_create("pg_nvm companion", MFD_CLOEXEC);
	if (companion_fd < 0 ||
		(!bound && ftruncate(companion_fd, 0) != 0) ||
		ftruncate(companion_fd, (off_t) companion_size) != 0)
		return false;
	if (nvm_region_companion == NULL)
	{
		void	   *at = mmap(NULL, companion_size, PROT_READ | PROT_WRITE,
							  MAP_SHARED | MAP_NORESERVE, companion_fd, 0);

		if (at == MAP_FAILED)
			return false;
		nvm_region_companion = at;
#ifdef MADV_DONTDUMP
		(void) madvise(at, companion_size, MADV_DONTDUMP);
#endif
	}
	return true;
}

/*
 * Map the volatile region, with its contents or empty.  False with errno set.
 */
static bool
open_volatile(const NvmPoolHeader *h)
{
	NvmRegion  *region = &nvm_regions[NVM_REGION_VOLATILE];
	struct stat st;

	if (volatile_fd < 0)
		volatile_fd = memfd_create("pg_nvm volatile", MFD_CLOEXEC);
	if (volatile_fd < 0)
		return false;
	if (!is_of_pool(h))
	{
		bound = false;
		if (ftruncate(volatile_fd, 0) != 0)
			return false;
	}
	if (fstat(volatile_fd, &st) != 0 ||
		mmap(nvm_unit_address(region->first_unit), volatile_max, PROT_READ | PROT_WRITE,
			 MAP_FIXED | MAP_SHARED | MAP_NORESERVE, volatile_fd, 0) == MAP_FAILED)
		return false;
#ifdef MADV_DONTDUMP
	(void) madvise(nvm_unit_address(region->first_unit), volatile_max, MADV_DONTDUMP);
#endif
	region->nchunks = (uint64) st.st_size / NVM_CHUNK_SIZE;
	return true;
}

/*
 * Map the volatile region, if there is to be one.  If that fails there is none, and
 * the pool is served alone.  The pool is mapped.  Postmaster only.
 */
void
nvm_region_open(const NvmPoolHeader *h)
{
	if (volatile_max == 0 || (open_volatile(h) && open_companion()))
		return;
	ereport(WARNING,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("there is no memory for the volatile region, and nothing can be stored in it: %m"),
			 errhint("Raise the limits of the server's processes and restart the server.")));
	nvm_region_give_up();
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
				 errhint("Free memory, or free space in the region by TRUNCATE or DROP TABLE. A smaller nvm.memory_limit leaves more to others.")));
}

static void
has_largest_size(const NvmRegion *region)
{
	unsigned long long mb = region->nchunks * NVM_CHUNK_SIZE / (1024 * 1024);

	if (!region->durable)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not extend the volatile region: it has its maximum size"),
				 errdetail("Tables in memory and their indexes have %llu MB, nvm.memory_limit allows %llu MB.",
						   mb, (unsigned long long) (region->max_chunks * NVM_CHUNK_SIZE / (1024 * 1024))),
				 errhint("Increase nvm.memory_limit and restart the server, or free space by TRUNCATE or DROP TABLE. VACUUM makes room for new rows of the same table alone.")));
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
