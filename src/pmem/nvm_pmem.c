/*-------------------------------------------------------------------------
 *
 * nvm_pmem.c
 *	  Persistence primitives: settings, mapping, and dispatch.
 *
 * Flush and drain are the hottest calls of the engine: one predictable
 * branch, then libpmem.  Everything else is out of line.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "pmem/pmem_backend.h"
#include "storage/fd.h"
#include "storage/s_lock.h"
#include "utils/guc.h"

/* The mapping begins at a multiple of this, so that huge pages can serve it */
#define MAP_ALIGNMENT		((uint64) 2 * 1024 * 1024)

/* settings */
int			nvm_persist_method = NVM_PERSIST_AUTO;
int			nvm_emulated_flush_delay = 0;
static bool nvm_simulate_settle = true;

NvmPersistMethod nvm_persist_in_force = NVM_PERSIST_AUTO;

uint64		nvm_pmem_flushes = 0;
uint64		nvm_pmem_drains = 0;
uint64		nvm_pmem_bytes = 0;

/* the reservation of address space, and the pool's mapping inside it */
static char *map_reserved;
static uint64 map_reserved_size;
static char *map_base;
static uint64 map_size;

/*
 * Is a drain no more than a fence?  Not when a delay is set, or with another
 * method than PMEM.  Kept in a flag, so that the hot path tests one thing.
 */
static bool drain_is_simple = false;

static const struct config_enum_entry persist_method_options[] = {
	{"auto", NVM_PERSIST_AUTO, false},
	{"pmem", NVM_PERSIST_PMEM, false},
	{"msync", NVM_PERSIST_MSYNC, false},
	{"simulate", NVM_PERSIST_SIMULATE, false},
	{NULL, 0, false}
};

const char *
nvm_persist_method_name(NvmPersistMethod method)
{
	const struct config_enum_entry *entry;

	for (entry = persist_method_options; entry->name; entry++)
		if (entry->val == (int) method)
			return entry->name;
	return "unknown";
}

static void
recompute_drain_path(NvmPersistMethod method, int delay)
{
	drain_is_simple = (method == NVM_PERSIST_PMEM && delay == 0);
}

static void
assign_emulated_flush_delay(int newval, void *extra)
{
	recompute_drain_path(nvm_persist_in_force, newval);
}

/*
 * Register the settings of this layer.  Called once, from _PG_init.
 */
void
nvm_pmem_define_settings(void)
{
	DefineCustomEnumVariable("nvm.persist_method",
							 "How stores to the pool are made durable.",
							 "auto: user-space flush on persistent memory and on tmpfs, msync elsewhere.",
							 &nvm_persist_method,
							 NVM_PERSIST_AUTO, persist_method_options,
							 PGC_POSTMASTER, 0, NULL, NULL, NULL);

	DefineCustomIntVariable("nvm.emulated_flush_delay",
							"Nanoseconds that each drain waits in addition, to study slower media.",
							NULL,
							&nvm_emulated_flush_delay,
							0, 0, 1000000000,
							PGC_SUSET, GUC_NOT_IN_SAMPLE,
							NULL, assign_emulated_flush_delay, NULL);

	DefineCustomBoolVariable("nvm.simulate_settle",
							 "Whether opening a simulated pool makes everything in its working image durable.",
							 "Off: lines that a killed server had not made durable can still be lost by a later power failure.",
							 &nvm_simulate_settle,
							 true,
							 PGC_POSTMASTER, GUC_NOT_IN_SAMPLE,
							 NULL, NULL, NULL);

	nvm_failpoint_define_settings();
}

static bool
map_fails(NvmMapFailure *failure, int sqlerrcode, const char *detail, const char *hint)
{
	failure->sqlerrcode = sqlerrcode;
	failure->detail = detail;
	failure->hint = hint;
	return false;
}

/*
 * Find out which method this file gets.  Returns false, and says why, if there
 * is none.
 */
static bool
choose_method(const char *path, int fd, NvmPersistMethod *method,
			  NvmMapFailure *failure)
{
	*method = (NvmPersistMethod) nvm_persist_method;

	if (*method == NVM_PERSIST_AUTO)
		*method = nvm_probe_method(path, fd);
	else if (*method == NVM_PERSIST_PMEM &&
			 !nvm_probe_is_tmpfs(fd) && !nvm_probe_map_sync(fd))
		return map_fails(failure, ERRCODE_INVALID_PARAMETER_VALUE,
						 "nvm.persist_method is \"pmem\", but the file system of the pool directory is neither tmpfs nor one that supports MAP_SYNC (DAX), so flushing the processor's caches would make nothing durable",
						 "Set nvm.persist_method to \"auto\" or \"msync\" and restart the server.");
	if (*method == NVM_PERSIST_PMEM && !nvm_libpmem_flushes())
		return map_fails(failure, ERRCODE_INVALID_PARAMETER_VALUE,
						 "PMEM_NO_FLUSH in the server's environment turns flushes of the processor's caches into nothing",
						 "Start the server without PMEM_NO_FLUSH in its environment.");
	return true;
}

/*
 * Map fd over max_size bytes of aligned address space.  A reservation is made
 * first, so that the aligned part of it can be chosen.
 */
static char *
map_file(int fd, uint64 max_size, uint64 reserve, bool sync, bool huge)
{
	char	   *aligned;
	void	   *addr;

	map_reserved_size = reserve + MAP_ALIGNMENT;
	addr = mmap(NULL, map_reserved_size, PROT_NONE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (addr == MAP_FAILED)
		return NULL;
	map_reserved = addr;
	aligned = (char *) TYPEALIGN(MAP_ALIGNMENT, (uintptr_t) addr);

	addr = mmap(aligned, max_size, PROT_READ | PROT_WRITE,
				MAP_FIXED | (sync ? (MAP_SHARED_VALIDATE | MAP_SYNC) : MAP_SHARED),
				fd, 0);
	if (addr == MAP_FAILED)
	{
		int			save_errno = errno;

		(void) munmap(map_reserved, map_reserved_size);
		map_reserved = NULL;
		errno = save_errno;
		return NULL;
	}
#ifdef MADV_HUGEPAGE
	if (huge)
		(void) madvise(addr, max_size, MADV_HUGEPAGE);
#endif
	return addr;
}

int
nvm_pmem_fsync(int fd)
{
	if (nvm_persist_in_force != NVM_PERSIST_MSYNC)
		return pg_fsync(fd);
	nvm_msync_fsync(fd);
	return 0;
}

/*
 * See nvm_pmem.h.  With any other method than msync a sync would only take
 * time: on DAX it writes back each page that was ever stored to.
 */
bool
nvm_pmem_believe(const char *path, int fd, bool *reread)
{
	NvmPersistMethod method;
	NvmMapFailure failure;

	*reread = false;
	return !choose_method(path, fd, &method, &failure) ||
		nvm_msync_believe(path, fd, method == NVM_PERSIST_MSYNC, reread);
}

/*
 * Map the pool.  See nvm_pmem.h for the contract.
 */
void *
nvm_pmem_map(const NvmMapFile *file, bool *volatile_medium, NvmMapFailure *failure)
{
	static char message[256];
	NvmPersistMethod method;
	const char *detail = NULL;
	bool		sync;

	Assert(map_base == NULL);
	*volatile_medium = nvm_probe_is_tmpfs(file->fd);

	if (!choose_method(file->path, file->fd, &method, failure))
		return NULL;

	sync = (method == NVM_PERSIST_PMEM && !*volatile_medium);
	map_base = map_file(file->fd, file->max_size, file->reserve, sync, method != NVM_PERSIST_MSYNC);
	if (map_base == NULL)
	{
		snprintf(message, sizeof(message),
				 "mmap of " UINT64_FORMAT " MB of address space failed: %s",
				 file->reserve / (1024 * 1024), strerror(errno));
		(void) map_fails(failure, ERRCODE_OUT_OF_MEMORY, message,
						 "Lower nvm.pool_max_size, or raise the server's limit of address space (ulimit -v).");
		return NULL;
	}

	if (method == NVM_PERSIST_MSYNC)
		nvm_msync_attach(file->path, map_base, file->max_size, file->fd);

	/*
	 * Another method does not keep the durable image of a simulated pool up
	 * to date.  One left from an earlier run would be wrong from now on.
	 */
	if (method != NVM_PERSIST_SIMULATE)
		nvm_simulate_discard(file->path);
	else if (!nvm_simulate_attach(file, map_base, nvm_simulate_settle, &detail))
	{
		(void) map_fails(failure, ERRCODE_IO_ERROR, detail,
						 "Check the device that holds the pool.");
		nvm_pmem_unmap();
		return NULL;
	}

	map_size = file->max_size;
	nvm_defer_forget();
	nvm_persist_in_force = method;
	recompute_drain_path(method, nvm_emulated_flush_delay);
	return map_base;
}

/*
 * Undo nvm_pmem_map, even a partial one.  Called in the postmaster only, when
 * no child is left.
 */
void
nvm_pmem_unmap(void)
{
	if (map_base == NULL)
		return;
	nvm_simulate_detach();
	(void) munmap(map_reserved, map_reserved_size);
	map_base = NULL;
	map_reserved = NULL;
	map_size = 0;
	nvm_defer_forget();
	nvm_persist_in_force = NVM_PERSIST_AUTO;
	recompute_drain_path(nvm_persist_in_force, 0);
}

bool
nvm_pmem_grown(uint64 new_size)
{
	if (nvm_persist_in_force == NVM_PERSIST_SIMULATE)
		return nvm_simulate_grown(new_size);
	return true;
}

static pg_noinline void
flush_other(const void *addr, Size len, const void *caller)
{
	if (nvm_persist_in_force == NVM_PERSIST_MSYNC)
		nvm_msync_flush(addr, len);
	else if (nvm_persist_in_force == NVM_PERSIST_SIMULATE)
	{
		nvm_simulate_flush(addr, len, caller);
		nvm_defer_flush(addr, len);
	}
}

/*
 * Have the cache lines of [addr, addr + len) written back; no guarantee yet.
 */
void
nvm_flush(const void *addr, Size len)
{
	if (unlikely((uint64) ((const char *) addr - map_base) >= map_size || len == 0))
		return;
	nvm_pmem_flushes++;
	nvm_pmem_bytes += len;
	if (likely(nvm_persist_in_force == NVM_PERSIST_PMEM))
		nvm_defer_flush(addr, len);
	else
		flush_other(addr, len, __builtin_return_address(0));
}

/*
 * Keep the processor busy for the time that a slower medium would take.
 */
static void
emulate_delay(int nanoseconds)
{
	struct timespec start;
	struct timespec now;
	int64		passed;

	clock_gettime(CLOCK_MONOTONIC, &start);
	do
	{
		SPIN_DELAY();
		clock_gettime(CLOCK_MONOTONIC, &now);
		passed = ((int64) now.tv_sec - start.tv_sec) * INT64CONST(1000000000) +
			(now.tv_nsec - start.tv_nsec);
	} while (passed < nanoseconds);
}

static pg_noinline void
drain_other(const char *name)
{
	switch (nvm_persist_in_force)
	{
		case NVM_PERSIST_PMEM:
			nvm_libpmem_drain();
			break;
		case NVM_PERSIST_MSYNC:
			nvm_msync_drain();
			break;
		case NVM_PERSIST_SIMULATE:
			nvm_simulate_drain(name);
			break;
		case NVM_PERSIST_AUTO:
			return;				/* no pool */
	}
	if (nvm_emulated_flush_delay > 0)
		emulate_delay(nvm_emulated_flush_delay);
}

/*
 * Wait until everything this process has flushed is durable.
 */
void
nvm_drain(const char *name)
{
	if (unlikely(nvm_failpoint_armed))
		nvm_failpoint_hit(name);

	nvm_pmem_drains++;
	if (nvm_noted_lines > 0)
		nvm_defer_write_back();
	if (likely(drain_is_simple))
		nvm_libpmem_drain();
	else
		drain_other(name);
}
