/*-------------------------------------------------------------------------
 *
 * nvm_pmem.h
 *	  Persistence primitives: the one choke point for flush and fence.
 *
 * Nothing outside src/pmem calls libpmem or msync.  Flush many, drain once.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_PMEM_H
#define NVM_PMEM_H

#include "postgres.h"

typedef enum NvmPersistMethod
{
	NVM_PERSIST_AUTO,
	NVM_PERSIST_PMEM,			/* clwb / clflushopt + sfence by libpmem */
	NVM_PERSIST_MSYNC,			/* write-back of pages by the kernel */
	NVM_PERSIST_SIMULATE		/* working and durable image, see README */
} NvmPersistMethod;

/* settings, defined in nvm_pmem.c, registered by nvm_pmem_define_settings */
extern int	nvm_persist_method; /* what the user asked for */
extern int	nvm_emulated_flush_delay;	/* nanoseconds a drain, 0 = none */
extern char *nvm_failpoint;		/* "name:action[:when]" list, see README */

/* the method in force; never AUTO once a pool is mapped */
extern NvmPersistMethod nvm_persist_in_force;
extern const char *nvm_persist_method_name(NvmPersistMethod method);

extern void nvm_pmem_define_settings(void);

/* shared memory, and the named tranche that startup.c requests for its locks */
#define NVM_PMEM_TRANCHE	"nvm_pmem"
extern Size nvm_pmem_shmem_size(void);
extern int	nvm_pmem_num_lwlocks(void);
extern void nvm_pmem_shmem_startup(void);

/*
 * Called before anything is read from pool file `path`, which is open as fd and
 * not mapped.  If a sync of it has failed, drops what the page cache has of it
 * and the device may lack.  Returns false, with errno set, if it still cannot be
 * written back.  *reread, also then: it did, so what was written to the file and not
 * synced may be gone.
 */
extern bool nvm_pmem_believe(const char *path, int fd, bool *reread);

/* a pool file that is to be mapped */
typedef struct NvmMapFile
{
	const char *path;
	int			fd;				/* open */
	uint64		size;			/* now */
	uint64		max_size;		/* address space; beyond the end of the file
								 * an access is SIGBUS until the file has been
								 * extended */
	uint64		reserve;		/* bytes of address space from the mapping's
								 * start on that are kept free of anything
								 * else; at least max_size */
} NvmMapFile;

/* why nvm_pmem_map failed: the detail ends without a period, the hint is a sentence */
typedef struct NvmMapFailure
{
	int			sqlerrcode;
	const char *detail;
	const char *hint;
} NvmMapFailure;

/*
 * Map a pool file.  Resolves AUTO.  In the simulate method also creates or
 * opens "<path>.durable" and its companions.  Called in the postmaster, before
 * it forks.  On failure returns NULL and sets *failure, of constant or static
 * messages; never throws.  *volatile_medium is set if the file does not
 * outlive a reboot (tmpfs).
 */
extern void *nvm_pmem_map(const NvmMapFile *file, bool *volatile_medium,
						  NvmMapFailure *failure);
extern void nvm_pmem_unmap(void);

/*
 * fsync the pool's file, which has grown.  Returns as fsync does.  But with
 * msync an error is a PANIC: it may concern pages for which others wait, and the
 * kernel tells it once only.
 */
extern int	nvm_pmem_fsync(int fd);

/*
 * Tell the layer that the file is now new_size bytes long (after a
 * successful fallocate + fsync of the file); in simulate also extends
 * the durable image.  Returns false with errno set on failure.
 */
extern bool nvm_pmem_grown(uint64 new_size);

/*
 * Have the cache lines of [addr, addr + len) written back, now or at the
 * caller's next nvm_drain.  Until that drain nothing is ordered or guaranteed,
 * and no other process's drain helps.  Never fails.  Addresses outside the pool
 * are ignored.
 */
extern void nvm_flush(const void *addr, Size len);

/*
 * Wait until everything this process has flushed is durable.  `name` is a
 * string literal, "layer-step", unique in the source tree.  It names the
 * failpoint that is hit just before the fence.  A script checks that each call
 * has one.  With msync, a failure is a PANIC.
 */
extern void nvm_drain(const char *name);

/*
 * Write back, without a fence, whatever is still noted.  From now on flushes are
 * noted (true), or write back at once (false).  For the end of a transaction.
 */
extern void nvm_pmem_defer(bool defer);

static inline void
nvm_persist(const void *addr, Size len, const char *name)
{
	nvm_flush(addr, len);
	nvm_drain(name);
}

/*
 * The caller reads on from addr towards higher addresses.  Only with msync is
 * this more than the test.
 */
extern void nvm_msync_read_ahead(const void *addr);

static inline void
nvm_read_ahead(const void *addr)
{
	if (unlikely(nvm_persist_in_force == NVM_PERSIST_MSYNC))
		nvm_msync_read_ahead(addr);
}

/* calls of this process, for statistics */
extern uint64 nvm_pmem_flushes;
extern uint64 nvm_pmem_drains;
extern uint64 nvm_pmem_bytes;	/* flushed */

/*
 * Counts of all processes, with msync: syncs of the file, drains that needed
 * one, and drains of these that another process's sync served.
 */
extern void nvm_pmem_sync_counts(uint64 *syncs, uint64 *drains, uint64 *joined);

/*
 * A failpoint that is not a fence.  Cheap when nvm.failpoint is empty.
 * Actions: crash (SIGKILL every process of the server at once, then
 * ourselves), power (the same, with all WAL), panic, error, sleep=MS, stop, off;
 * miss does nothing here.
 * nvm_failpoint_hit is called by a test's library, too.
 */
extern bool nvm_failpoint_armed;
extern PGDLLEXPORT void nvm_failpoint_hit(const char *name);

#define NVM_FAILPOINT(name) \
	do { \
		if (unlikely(nvm_failpoint_armed)) \
			nvm_failpoint_hit(name); \
	} while (0)

/*
 * Is the step that follows to be left out, by action miss?  Of a step for which
 * another one stands in, or without which there must be an ERROR.
 */
extern bool nvm_failpoint_misses(const char *name);

#define NVM_FAILPOINT_MISSES(name) \
	(unlikely(nvm_failpoint_armed) && nvm_failpoint_misses(name))

#endif							/* NVM_PMEM_H */
