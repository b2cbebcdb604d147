/*-------------------------------------------------------------------------
 *
 * pmem_msync.c
 *	  Persistence through the page cache: one fdatasync of the pool for the
 *	  drains of many processes.
 *
 * The pool's file is synced as a whole, one sync at a time; they are numbered.
 * A flush notes the number of the first sync that is yet to begin, its ticket:
 * that sync, or any later one, writes what was flushed.  A drain waits until a
 * sync with that number has ended.  Or it makes that sync, for all processes
 * that have come by the time it begins.  README.md, "Group commit", has the
 * invariants.
 *
 * After an error the process that made the sync PANICs, before any other is told
 * that the sync has ended.  The kernel has marked the pages clean, so trying
 * again proves nothing.  The next start reads the file from the device.
 *
 * No palloc and no ereport below PANIC, so it can be called in a critical
 * section; interrupts do not end the wait.
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

/* stands beside the pool file when a sync of it has failed */
#define FAILED_SUFFIX		".sync_failed"

/* how often an open tries to sync the file when that fails */
#define BELIEVE_ATTEMPTS	3

/* of the file, looked at at once by write_cached */
#define CACHED_WINDOW		((uint64) 64 * 1024 * 1024)

/* a window of nvm_msync_read_ahead */
#define READ_AHEAD			((uint64) 256 * 1024)

typedef struct MsyncShared
{
	LWLock	   *lock;			/* held while a sync is made; a leaf */
	pg_atomic_uint64 begun;		/* number of the last sync that has begun */
	pg_atomic_uint64 ended;		/* and of the last one that has succeeded */
	pg_atomic_uint64 drains;	/* drains that had something to wait for, */
	pg_atomic_uint64 joined;	/* and those of them that made no sync */
} MsyncShared;

static MsyncShared *msync_shared = NULL;

static char *msync_base;
static uint64 msync_max_size;
static int	msync_fd = -1;
static char msync_failed_path[MAXPGPATH];

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
 * makes larger folios as it goes on.  A scan that wants readahead asks for it.
 */
void
nvm_msync_attach(const char *path, char *base, uint64 max_size, int fd)
{
	snprintf(msync_failed_path, sizeof(msync_failed_path), "%s" FAILED_SUFFIX, path);
	msync_base = base;
	msync_max_size = max_size;
	msync_fd = fd;
	msync_pending = false;
	(void) madvise(base, max_size, MADV_RANDOM);
}

/*
 * Ask the kernel for the pages behind addr: when a scan enters a window, for
 * that window and the next one.  Pages in the page cache cost a look only.
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
 * The barrier orders the stores before the look at `begun`.  A sync with a
 * higher number than the one that is read begins after that look, and finds
 * the stores in the page cache.
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

static int
try_sync(int fd, bool whole)
{
	int			rc;

	do
	{
		rc = whole ? fsync(fd) : fdatasync(fd);
	} while (rc != 0 && errno == EINTR);
	return rc;
}

/*
 * Note, for the next start, that the page cache may have what the device lacks.
 * The note need not be durable: the page cache is not.  Keeps errno.
 */
static bool
note_failure(const char *path)
{
	int			save_errno = errno;
	int			fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);

	if (fd >= 0)
		close(fd);
	errno = save_errno;
	return fd >= 0;
}

/*
 * Write everything that is dirty in the file, and with `whole` the file's
 * metadata, too.  PANICs on an error.  The kernel tells it to one caller only,
 * since all processes share the open file description.
 */
static void
sync_file(int fd, bool whole)
{
	int			rc;

	pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_SYNC);
	rc = try_sync(fd, whole);
	pgstat_report_wait_end();

	if (rc != 0)
	{
		bool		noted = note_failure(msync_failed_path);

		ereport(PANIC,
				(errcode_for_file_access(),
				 errmsg("could not write back the persistent pool: %m"),
				 errdetail("What was written there may or may not be durable, and asking again would not tell."),
				 noted ?
				 errhint("Look at the kernel's log for errors of the device. The server recovers from what is on the device when it restarts.") :
				 errhint("Look at the kernel's log for errors of the device. Unmount the pool's file system before the server is used again: file \"%s\" could not be created.",
						 msync_failed_path)));
	}
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
 * A process that has no PGPROC cannot wait for a lock, and syncs for itself.
 * That is the postmaster, which is alone when it opens the pool, or a process
 * that is past ProcKill.
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
		/* its release wakes all waiters, and gives the lock to none of them */
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
 * fsync the file, which has grown; see nvm_pmem.h.  The lock is held, so that no
 * process makes a sync while an error that it should hear of is told here.
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

/*
 * Make dirty what the page cache has of the file, and sync it.  Returns false
 * with errno set.
 */
static bool
write_cached(int fd)
{
	static unsigned char resident[CACHED_WINDOW / 4096];
	uint64		page_size = (uint64) sysconf(_SC_PAGESIZE);
	struct stat st;

	if (fstat(fd, &st) != 0)
		return false;
	for (uint64 at = 0; at < (uint64) st.st_size; at += CACHED_WINDOW)
	{
		uint64		size = Min(CACHED_WINDOW, (uint64) st.st_size - at);
		char	   *window = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t) at);

		if (window == MAP_FAILED)
			return false;
		if (mincore(window, size, resident) != 0)
			memset(resident, 1, sizeof(resident));
		for (uint64 i = 0; i < size; i += page_size)
		{
			if ((resident[i / page_size] & 1) != 0)
				__atomic_fetch_or((uint8 *) window + i, 0, __ATOMIC_RELAXED);
		}
		(void) munmap(window, size);
	}
	return try_sync(fd, false) == 0;
}

/*
 * See nvm_pmem.h.  mine: the file is synced by this method.
 */
bool
nvm_msync_believe(const char *path, int fd, bool mine, bool *reread)
{
	char		mark[MAXPGPATH];
	bool		failed;

	snprintf(mark, sizeof(mark), "%s" FAILED_SUFFIX, path);
	failed = access(mark, F_OK) == 0;
	if (!failed && !mine)
		return true;

	for (int i = 0; i < BELIEVE_ATTEMPTS; i++)
	{
		/* the kernel's own write-back may have failed, and told nobody */
		if (try_sync(fd, false) != 0)
		{
			(void) note_failure(mark);
			failed = true;
			continue;
		}
		if (!failed)
			return true;

		/* pages that stay in spite of that are written */
		*reread = true;
		(void) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		if (!write_cached(fd))
			continue;
		(void) unlink(mark);
		ereport(LOG,
				(errmsg("a sync of NVM pool \"%s\" has failed, it is read from the device again",
						path)));
		return true;
	}
	return false;
}
