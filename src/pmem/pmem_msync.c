/*-------------------------------------------------------------------------
 *
 * pmem_msync.c
 *	  Persistence through the page cache: one fdatasync of the pool for the
 *	  drains of many processes.
 *
 * The pool's file is synced as a whole, one sync at a time; they are numbered.
 * A flush notes the number of the first sync that is yet to begin, its ticket:
 * that sync, or any later one, writes what was flushed.  A drain waits until a
 * sync with that number has ended, or makes it, for everybody who has come
 * until it begins.  README.md, "Group commit", has the invariants.
 *
 * An error is a PANIC of whoever made the sync, before anybody is told that it
 * has ended: the kernel may have dropped the pages and marked them clean, so
 * trying again proves nothing.
 *
 * No palloc and no ereport below PANIC, so it can be called in a critical
 * section; interrupts do not end the wait.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/mman.h>
#include <unistd.h>

#include "access/xlog.h"
#include "compat/nvm_compat.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "pmem/pmem_backend.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#include "utils/wait_event.h"

/* a window of nvm_msync_read_ahead */
#define READ_AHEAD			((uint64) 256 * 1024)

typedef struct MsyncShared
{
	LWLock	   *lock;			/* held by who makes a sync; a leaf */
	pg_atomic_uint64 begun;		/* number of the last sync that has begun */
	pg_atomic_uint64 ended;		/* and of the last one that has succeeded */
	pg_atomic_uint64 drains;	/* drains that had something to wait for, */
	pg_atomic_uint64 joined;	/* and those of them that made no sync */
} MsyncShared;

static MsyncShared *msync_shared = NULL;

static char *msync_base;
static uint64 msync_max_size;
static int	msync_fd = -1;

/* is anything flushed that is not known to be durable, and its ticket */
static bool msync_pending = false;
static uint64 msync_ticket;

Size
nvm_pmem_shmem_size(void)
{
	return MAXALIGN(sizeof(MsyncShared));
}

int
nvm_pmem_num_lwlocks(void)
{
	return 1;
}

/*
 * Attach to the shared memory, or make it; before the pool is opened.  Caller
 * holds AddinShmemInitLock.
 */
void
nvm_pmem_shmem_startup(void)
{
	bool		found;

	msync_shared = ShmemInitStruct("pg_nvm pmem", sizeof(MsyncShared), &found);
	if (found)
		return;
	msync_shared->lock = &GetNamedLWLockTranche(NVM_PMEM_TRANCHE)[0].lock;
	pg_atomic_init_u64(&msync_shared->begun, 0);
	pg_atomic_init_u64(&msync_shared->ended, 0);
	pg_atomic_init_u64(&msync_shared->drains, 0);
	pg_atomic_init_u64(&msync_shared->joined, 0);
	msync_pending = false;
}

void
nvm_pmem_sync_counts(uint64 *syncs, uint64 *drains, uint64 *joined)
{
	*syncs = pg_atomic_read_u64(&msync_shared->ended);
	*drains = pg_atomic_read_u64(&msync_shared->drains);
	*joined = pg_atomic_read_u64(&msync_shared->joined);
}

/*
 * Called in the postmaster when the pool has been mapped.
 *
 * A page of the file is the unit that a store makes dirty and a sync writes.
 * Where the page cache has it within a larger folio, all of that is dirty and
 * written, up to 2 MB for 8 bytes.  So no huge pages, and no readahead, which
 * makes larger folios as it goes on; who reads ahead says so.
 */
void
nvm_msync_attach(char *base, uint64 max_size, int fd)
{
	msync_base = base;
	msync_max_size = max_size;
	msync_fd = fd;
	msync_pending = false;
	(void) madvise(base, max_size, MADV_RANDOM);
}

/*
 * Ask the kernel for what comes behind addr, in pages: when a window is entered,
 * that and the next one.  What is in the page cache already costs a look.
 */
void
nvm_msync_read_ahead(const void *addr)
{
	static uint64 last = PG_UINT64_MAX;
	uint64		offset = (uint64) ((const char *) addr - msync_base);
	uint64		window = offset / READ_AHEAD;

	if (window == last || offset >= msync_max_size)
		return;
	last = window;
	(void) madvise(msync_base + window * READ_AHEAD,
				   Min(2 * READ_AHEAD, msync_max_size - window * READ_AHEAD),
				   MADV_WILLNEED);
}

/*
 * The caller has stored to [addr, addr + len), and maybe elsewhere before.
 *
 * The barrier orders the stores before the look at `begun`.  If a sync with
 * the number that is read plus one, or a higher one, begins, it does so after
 * that look, and finds the stores in the page cache.
 */
void
nvm_msync_flush(const void *addr, Size len)
{
	if (len == 0 || (const char *) addr < msync_base ||
		(const char *) addr >= msync_base + msync_max_size)
		return;

	pg_memory_barrier();
	msync_ticket = pg_atomic_read_u64(&msync_shared->begun) + 1;
	msync_pending = true;
}

/*
 * Write everything that is dirty in the file, and with `whole` what the file
 * system says of it.  PANICs on an error, which the kernel tells one caller: all
 * processes share the open file description.
 */
static void
sync_file(int fd, bool whole)
{
	int			rc;

	pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_SYNC);
	do
	{
		rc = whole ? fsync(fd) : fdatasync(fd);
	} while (rc != 0 && errno == EINTR);
	pgstat_report_wait_end();

	if (rc != 0)
		ereport(PANIC,
				(errcode_for_file_access(),
				 errmsg("could not write back the persistent pool: %m"),
				 errdetail("What was written there may or may not be durable, and asking again would not tell."),
				 errhint("Look at the kernel's log for errors of the device. The server recovers from what is on the device when it restarts.")));
}

/*
 * Make the next sync.  Caller holds the lock.
 */
static void
lead_sync(void)
{
	uint64		number;

	/* as XLogFlush: others may be about to come */
	if (CommitDelay > 0 && enableFsync && MinimumActiveBackends(CommitSiblings))
		pg_usleep(CommitDelay);

	NVM_FAILPOINT("msync-begin");
	number = pg_atomic_add_fetch_u64(&msync_shared->begun, 1);
	sync_file(msync_fd, false);
	NVM_FAILPOINT("msync-end");
	pg_memory_barrier();
	pg_atomic_write_u64(&msync_shared->ended, number);
}

/*
 * Wait until everything that this process has flushed is durable.
 *
 * A process that has no PGPROC (the postmaster, which is alone when it opens
 * the pool, or one that is past ProcKill) cannot wait for a lock, and syncs for
 * itself.
 */
void
nvm_msync_drain(void)
{
	bool		led = false;

	if (!msync_pending)
		return;
	if (MyProc == NULL)
	{
		sync_file(msync_fd, false);
		msync_pending = false;
		return;
	}

	while (pg_atomic_read_u64(&msync_shared->ended) < msync_ticket)
	{
		/* released, it wakes all who wait, without giving it to any of them */
		if (!LWLockAcquireOrWait(msync_shared->lock, LW_EXCLUSIVE))
			continue;
		if (pg_atomic_read_u64(&msync_shared->ended) < msync_ticket)
		{
			lead_sync();
			led = true;
		}
		LWLockRelease(msync_shared->lock);
	}
	pg_memory_barrier();
	msync_pending = false;
	pg_atomic_fetch_add_u64(&msync_shared->drains, 1);
	if (!led)
		pg_atomic_fetch_add_u64(&msync_shared->joined, 1);
}

/*
 * fsync the file, which has grown; see nvm_pmem.h.  With the lock, so that no
 * error that is told here is kept from who makes a sync.
 */
void
nvm_msync_fsync(int fd)
{
	if (MyProc != NULL)
		LWLockAcquire(msync_shared->lock, LW_EXCLUSIVE);
	sync_file(fd, true);
	if (MyProc != NULL)
		LWLockRelease(msync_shared->lock);
}
