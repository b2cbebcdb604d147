/*-------------------------------------------------------------------------
 *
 * pool_dram.c
 *	  The DRAM region: what is rebuilt at each start, shared by all backends.
 *
 * A memfd that the postmaster maps before it forks.  Its address space is
 * generous and its memory is taken page by page, so no setting has to give a
 * size:
 *
 *		control block | used bits | zero bits | sound bits |
 *		directory extents | hash buckets | NvmRelState[NVM_MAX_DIRS] | heap
 *
 * Memory is reserved with fallocate before it is touched.  If the kernel has
 * no page at the first access the process gets a SIGBUS; a failing fallocate
 * is an ordinary error.
 *
 * The heap is a bump allocator with a free list for each power of two.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "miscadmin.h"
#include "pool/nvm_sound.h"
#include "pool/pool_impl.h"
#include "port/pg_bitutils.h"
#include "verify/nvm_verify.h"

/* address space of the heap, beside what grows with the pool */
#define DRAM_HEAP_BASE			(UINT64_C(8) << 30)
#define DRAM_HEAP_STEP			(UINT64_C(256) * 1024)
#define DRAM_PAGE				UINT64_C(4096)

NvmDramControl *nvm_dram = NULL;
uint64	   *nvm_used_bits = NULL;
uint64	   *nvm_zero_bits = NULL;
uint64	   *nvm_sound_bits = NULL;
uint32	   *nvm_dir_units = NULL;
uint32	   *nvm_dir_buckets = NULL;
NvmRelState *nvm_relstates = NULL;

static int	dram_fd = -1;
static char *dram_base = NULL;
static uint64 dram_size = 0;

/*
 * Reserve the memory of [ptr, ptr + size).  Returns false with errno set when
 * there is none.  No lock needed; existing contents stay.
 */
bool
nvm_dram_reserve(const void *ptr, Size size)
{
	uint64		first = (uint64) ((const char *) ptr - dram_base) & ~(DRAM_PAGE - 1);
	uint64		end = (uint64) ((const char *) ptr - dram_base) + size;
	int			rc;

	do
	{
		rc = fallocate(dram_fd, 0, (off_t) first, (off_t) (end - first));
	} while (rc != 0 && errno == EINTR);
	return rc == 0;
}

static char *
carve(uint64 *position, uint64 size)
{
	char	   *result = dram_base + *position;

	*position += TYPEALIGN64(DRAM_PAGE, size);
	return result;
}

/*
 * Sizes of the parts of the region that have their size from the start.
 */
typedef struct DramSizes
{
	uint64		bits;			/* of a bit for each unit */
	uint64		relstates;
	uint64		fixed;			/* all parts before the heap */
} DramSizes;

static void
dram_sizes(DramSizes *sizes)
{
	sizes->bits = TYPEALIGN64(DRAM_PAGE, nvm_region_address_space() / NVM_UNIT_SIZE / 8);
	sizes->relstates = TYPEALIGN64(DRAM_PAGE, (uint64) NVM_MAX_DIRS * sizeof(NvmRelState));
	sizes->fixed = TYPEALIGN64(DRAM_PAGE, sizeof(NvmDramControl)) + 3 * sizes->bits +
		TYPEALIGN64(DRAM_PAGE, NVM_DIR_EXTENTS * sizeof(uint32)) +
		TYPEALIGN64(DRAM_PAGE, NVM_DIR_BUCKETS * sizeof(uint32)) + sizes->relstates;
}

/*
 * Make the region and map it.  Returns false after refusing the pool.
 */
static bool
dram_create(uint64 size)
{
	void	   *map;

	dram_size = size;
	dram_fd = memfd_create("pg_nvm", MFD_CLOEXEC);
	if (dram_fd < 0 || ftruncate(dram_fd, (off_t) dram_size) != 0)
		return nvm_refuse(ERRCODE_OUT_OF_MEMORY,
						  "Free memory or raise the limits of the server's processes.",
						  "could not create the DRAM region of the NVM pool: %m");
	map = mmap(NULL, dram_size, PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_NORESERVE, dram_fd, 0);
	if (map == MAP_FAILED)
	{
		int			save_errno = errno;

		close(dram_fd);
		dram_fd = -1;
		errno = save_errno;
		return nvm_refuse(ERRCODE_OUT_OF_MEMORY,
						  "Reduce nvm.pool_max_size or raise the limit of address space (ulimit -v).",
						  "could not map the DRAM region of the NVM pool: %m");
	}
	dram_base = map;
#ifdef MADV_DONTDUMP
	/* it would be in the core of each process */
	(void) madvise(map, dram_size, MADV_DONTDUMP);
#endif
	return true;
}

/*
 * Empty the region that the last run had.  Returns false after refusing the pool.
 */
static bool
dram_clear(void)
{
	if (ftruncate(dram_fd, 0) == 0 && ftruncate(dram_fd, (off_t) dram_size) == 0)
		return true;
	return nvm_refuse(ERRCODE_OUT_OF_MEMORY,
					  "Restart the server.",
					  "could not clear the DRAM region of the NVM pool: %m");
}

/*
 * Make the region, or empty it when it exists (the postmaster reinitialises
 * after a backend's death), for all units that the regions may have.  Postmaster
 * only.
 * Returns false after refusing the pool.
 */
bool
nvm_dram_setup(void)
{
	uint64		may_use = 0;
	DramSizes	sizes;
	uint64		position = 0;

	for (int i = 0; i < NVM_NUM_REGIONS; i++)
		may_use += nvm_regions[i].max_chunks * NVM_UNITS_PER_CHUNK;
	dram_sizes(&sizes);
	if (!(dram_fd < 0 ? dram_create(sizes.fixed + DRAM_HEAP_BASE + may_use * 16) : dram_clear()))
		return false;

	nvm_dram = (NvmDramControl *) carve(&position, sizeof(NvmDramControl));
	nvm_used_bits = (uint64 *) carve(&position, sizes.bits);
	nvm_zero_bits = (uint64 *) carve(&position, sizes.bits);
	nvm_sound_bits = (uint64 *) carve(&position, sizes.bits);
	nvm_dir_units = (uint32 *) carve(&position, NVM_DIR_EXTENTS * sizeof(uint32));
	nvm_dir_buckets = (uint32 *) carve(&position, NVM_DIR_BUCKETS * sizeof(uint32));
	nvm_relstates = (NvmRelState *) carve(&position, sizes.relstates);
	Assert(position == sizes.fixed);

	if (!nvm_dram_reserve(nvm_dram, sizeof(NvmDramControl)) ||
		!nvm_dram_reserve(nvm_dir_units, NVM_DIR_EXTENTS * sizeof(uint32)))
		return nvm_refuse(ERRCODE_OUT_OF_MEMORY, "Free memory.",
						  "could not reserve the DRAM region of the NVM pool: %m");
	nvm_dram->heap_next = nvm_dram->heap_ready = position;
	nvm_dram->heap_end = dram_size;
	return true;
}

static int
dram_class(Size size)
{
	return size <= NVM_DRAM_MIN ? 0 :
		pg_leftmost_one_pos64((uint64) size - 1) + 1 - pg_leftmost_one_pos32(NVM_DRAM_MIN);
}

/*
 * Zeroed memory of at least `size` bytes, or NULL when there is none.  Caller
 * holds extent_lock exclusively, or is the postmaster at start.
 */
void *
nvm_dram_alloc_locked(Size size)
{
	int			class = dram_class(size);
	uint64		bytes = (uint64) NVM_DRAM_MIN << class;
	uint64		offset;

	if (class >= NVM_DRAM_CLASSES)
		return NULL;
	offset = nvm_dram->heap_free[class];
	if (offset != 0)
	{
		char	   *ptr = dram_base + offset;

		memcpy(&nvm_dram->heap_free[class], ptr, sizeof(uint64));
		memset(ptr, 0, bytes);
		return ptr;
	}

	if (bytes > nvm_dram->heap_end - nvm_dram->heap_next)
		return NULL;
	if (nvm_dram->heap_next + bytes > nvm_dram->heap_ready)
	{
		uint64		ready = TYPEALIGN64(DRAM_HEAP_STEP, nvm_dram->heap_next + bytes);

		ready = Min(ready, nvm_dram->heap_end);
		if (!nvm_dram_reserve(dram_base + nvm_dram->heap_ready,
							  ready - nvm_dram->heap_ready))
			return NULL;
		nvm_dram->heap_ready = ready;
	}
	offset = nvm_dram->heap_next;
	nvm_dram->heap_next += bytes;
	return dram_base + offset;
}

/*
 * Give memory back.  Caller holds extent_lock exclusively.
 */
void
nvm_dram_free_locked(void *ptr, Size size)
{
	int			class = dram_class(size);

	memcpy(ptr, &nvm_dram->heap_free[class], sizeof(uint64));
	nvm_dram->heap_free[class] = (uint64) ((char *) ptr - dram_base);
}

/*
 * The same for other layers: takes extent_lock.
 */
void *
nvm_dram_try_alloc(Size size)
{
	void	   *result;

	LWLockAcquire(NvmPool->extent_lock, LW_EXCLUSIVE);
	result = nvm_dram_alloc_locked(size);
	LWLockRelease(NvmPool->extent_lock);
	return result;
}

/*
 * ERROR when there is no memory.
 */
void *
nvm_dram_alloc(Size size)
{
	void	   *result = nvm_dram_try_alloc(size);

	if (result == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory in the DRAM region of the NVM pool"),
				 errdetail("Failed on request of size %zu.", size)));
	return result;
}

void
nvm_dram_free(void *ptr, Size size)
{
	LWLockAcquire(NvmPool->extent_lock, LW_EXCLUSIVE);
	nvm_dram_free_locked(ptr, size);
	LWLockRelease(NvmPool->extent_lock);
}
