/*-------------------------------------------------------------------------
 *
 * pool_open.c
 *	  Opening the pool at server start, and closing it.
 *
 * Runs in the postmaster, in shmem_startup_hook: at server start, and again
 * when the postmaster reinitialises after a backend's death.  A pool that
 * cannot be used is refused with a reason and a remedy.  Both are logged, and
 * each access shows them; PostgreSQL itself starts in any case.  Nothing in
 * the pool or in the data directory is changed before everything is validated.
 * The one exception is that some refusals are noted in the data directory.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>
#include <unistd.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/pool_impl.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "verify/nvm_verify.h"

NvmPoolShared *NvmPool = NULL;
char	   *nvm_pool_base = NULL;

static LWLockPadded *pool_locks = NULL;
static bool pool_mapped = false;

/*
 * What a start has read of the pool and of the data directory.
 */
typedef struct PoolOpening
{
	ControlFileData control;
	NvmIncarnationRecord rec;
	bool		known;			/* there is such a record */
	NvmPoolHeader header;
	bool		ran_without;	/* the server was used since the pool was
								 * closed */
} PoolOpening;

static uint64
now_usec(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

Size
nvm_pool_shmem_size(void)
{
	return MAXALIGN(sizeof(NvmPoolShared));
}

int
nvm_pool_num_lwlocks(void)
{
	return NVM_POOL_NUM_LOCKS;
}

/*
 * The lock that serialises the growth of a relation.  Partitions are shared
 * by relations: never hold two of them.
 */
LWLock *
nvm_rel_extend_lock(NvmRelState *rel)
{
	return &pool_locks[NVM_POOL_LOCK_EXTEND + rel->dir % NVM_EXTEND_LOCKS].lock;
}

LWLock *
nvm_redo_lane_lock(int lane)
{
	return &pool_locks[NVM_POOL_LOCK_REDO + lane].lock;
}

bool
nvm_incarnation_crashed(uint32 inc)
{
	return nvm_crashed_list_has(NvmPool->crashed, NvmPool->ncrashed,
								NvmPool->crashed_floor, inc);
}

/*
 * The youngest incarnation before this one that is known to have ended cleanly;
 * 0 if there is none.
 */
uint32
nvm_incarnation_last_clean(void)
{
	for (uint32 inc = NvmPool->incarnation - 1; inc > 0 && inc >= NvmPool->crashed_floor; inc--)
	{
		if (!nvm_incarnation_crashed(inc))
			return inc;
	}
	return 0;
}

/*
 * See nvm_pool.h.
 */
uint64
nvm_pool_nonce(void)
{
	return nvm_dram->header.nonce;
}

void
nvm_pool_sizes(uint64 *total, uint64 *free, uint64 *nchunks)
{
	*nchunks = nvm_regions[NVM_REGION_POOL].nchunks;
	*total = *nchunks * NVM_UNITS_PER_CHUNK;
	*free = nvm_regions[NVM_REGION_POOL].free_units;
}

/*
 * Let go of the mapping of the last run, if there is one.  Make sure that
 * everything that is read from the file from now on is on the device.  Some
 * earlier writes may be lost.
 */
static bool
believe_file(void)
{
	bool		reread;
	bool		ok;

	if (pool_mapped)
	{
		nvm_pmem_unmap();
		pool_mapped = false;
	}
	ok = nvm_pmem_believe(nvm_pool_path, nvm_pool_fd, &reread);
	if (reread)
		nvm_region_unbind();
	if (ok)
		return true;
	return nvm_refuse(ERRCODE_IO_ERROR,
					  "Look at the kernel's log for errors of the device.",
					  "could not write back NVM pool \"%s\": %m", nvm_pool_path);
}

/*
 * Can the pool be this data directory's own?  A server that replays WAL of
 * another server, or of another time, goes a way on which the pool does not
 * come along.  That stays so when the files that show it are gone.  And a base
 * backup copies a pool in the data directory while it changes.  Called before
 * anything looks at the pool, which may be missing, or another server's.
 * Returns false after refusing the pool.
 */
static bool
check_data_directory(NvmIncarnationRecord *rec, bool known)
{
	if (access("standby.signal", F_OK) == 0)
	{
		if (known && rec->severed == NVM_SEVERED_NOT)
			nvm_incarnation_sever(rec, NVM_SEVERED_STANDBY);
		NvmPool->was_standby = true;
		return nvm_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						  "nvm tables are not replicated by physical replication. Query them on the primary.",
						  "this server is a standby");
	}
	if (!known)
		return true;
	if (access("backup_label", F_OK) == 0 || access("recovery.signal", F_OK) == 0)
	{
		if (rec->severed == NVM_SEVERED_NOT)
			nvm_incarnation_sever(rec, NVM_SEVERED_BACKUP);
		return nvm_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, NVM_SEVERED_HINT,
						  "the server starts from a base backup, which has no usable copy of the NVM pool");
	}
	return nvm_incarnation_bound(rec);
}

/*
 * The data directory may be a copy of the one that the pool belongs to.  The
 * incarnation file does not show that.  After a clean shutdown of both a copy
 * is harmless as long as neither was used since.
 */
static bool
check_data_copy(NvmIncarnationRecord *rec, const NvmPoolHeader *h,
				const ControlFileData *control)
{
	if (h->wal_position > control->checkPoint)
	{
		nvm_incarnation_sever(rec, NVM_SEVERED_OLDER);
		return nvm_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						  "Restore the pool and the data directory together from a backup taken while the server was stopped.",
						  "data directory is older than NVM pool \"%s\" (checkpoint at %X/%X, the pool has seen %X/%X)",
						  nvm_pool_path, LSN_FORMAT_ARGS(control->checkPoint),
						  LSN_FORMAT_ARGS(h->wal_position));
	}
	if (h->clean && h->wal_position == control->checkPoint)
		return true;
	/* images of a simulated power failure come with copies of it */
	if (nvm_persist_method == NVM_PERSIST_SIMULATE || nvm_incarnation_same_data(h))
		return true;
	return nvm_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
					  "Use the original data directory, or restore the pool and the data directory "
					  "together from a backup taken while the server was stopped.",
					  "the data directory is a copy of the one that NVM pool \"%s\" was used with, made while it was in use or used since",
					  nvm_pool_path);
}

/*
 * An unclean pool must be the very file that was in use; a copy of it is torn.
 */
static bool
check_identity(const NvmPoolHeader *h, uint64 *size)
{
	uint64		device;
	uint64		inode;
	uint64		birth;
	bool		same;

	nvm_file_identity(nvm_pool_fd, &device, &inode, &birth, size);
	if (*size < h->nchunks * NVM_CHUNK_SIZE)
		return nvm_refuse(ERRCODE_DATA_CORRUPTED,
						  "Restore the pool and the data directory together from a backup taken while the server was stopped.",
						  "NVM pool \"%s\" is truncated: %llu bytes instead of %llu",
						  nvm_pool_path, (unsigned long long) *size,
						  (unsigned long long) (h->nchunks * NVM_CHUNK_SIZE));
	/* images of a simulated power failure are copies, and not torn */
	if (h->clean || h->inode == 0 || nvm_persist_method == NVM_PERSIST_SIMULATE)
		return true;
	/* device numbers may change at a reboot; prefer the time of birth */
	same = h->inode == inode &&
		(h->birth != 0 && birth != 0 ? h->birth == birth : h->device == device);
	if (same)
		return true;
	return nvm_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
					  "A copy made while the server runs, or after a crash, is not usable. Put back the "
					  "original file, or restore the pool and the data directory together from a "
					  "backup taken while the server was stopped.",
					  "NVM pool \"%s\" is a copy of a pool that was not shut down cleanly",
					  nvm_pool_path);
}

/*
 * Map the pool, with address space for the volatile region behind it.  If there is
 * none for that, the pool alone.  NULL with *failure on failure.
 */
static char *
map_regions(NvmMapFile *file, bool *medium_is_volatile, NvmMapFailure *failure)
{
	char	   *base;

	file->reserve = nvm_region_address_space();
	base = nvm_pmem_map(file, medium_is_volatile, failure);
	if (base != NULL || failure->sqlerrcode != ERRCODE_OUT_OF_MEMORY ||
		file->reserve == file->max_size)
		return base;
	nvm_region_give_up();
	file->reserve = nvm_region_address_space();
	base = nvm_pmem_map(file, medium_is_volatile, failure);
	if (base != NULL)
		ereport(WARNING,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("there is no address space for the volatile region, and nothing can be stored in it"),
				 errhint("Raise the limit of address space (ulimit -v) and restart the server, or set nvm.memory_limit = 0 if there are no tables of access method nvm_vlog.")));
	return base;
}

/*
 * Check the settings against the pool, map it, and rebuild what is in DRAM.
 */
static bool
map_and_scan(const NvmPoolHeader *h)
{
	uint64		max_bytes = nvm_pool_max_bytes();
	uint64		bytes = h->nchunks * NVM_CHUNK_SIZE;
	NvmMapFile	file;
	NvmMapFailure failure;
	bool		medium_is_volatile = false;
	uint64		nowned;

	if (bytes > max_bytes)
		return nvm_refuse(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
						  psprintf("Set nvm.pool_max_size to at least %llu MB and restart the server.",
								   (unsigned long long) (bytes / (1024 * 1024))),
						  "NVM pool \"%s\" has %llu MB, more than nvm.pool_max_size (%d MB)",
						  nvm_pool_path, (unsigned long long) (bytes / (1024 * 1024)),
						  nvm_pool_max_size);
	file = (NvmMapFile)
	{
		.path = nvm_pool_path,.fd = nvm_pool_fd,.size = bytes,.max_size = max_bytes
	};
	nvm_pool_base = map_regions(&file, &medium_is_volatile, &failure);
	if (nvm_pool_base == NULL)
		return nvm_refuse(failure.sqlerrcode, failure.hint,
						  "could not map NVM pool \"%s\": %s",
						  nvm_pool_path, failure.detail);
	pool_mapped = true;
	NvmPool->medium_is_volatile = medium_is_volatile;

	nvm_regions[NVM_REGION_POOL].nchunks = h->nchunks;
	if (!nvm_region_open(h) || !nvm_dram_setup())
		return false;
	if (!nvm_extent_scan(&nowned))
		return false;
	if (h->incarnation == 0)
		nvm_extent_note_new();
	return nvm_dir_scan(nowned) && nvm_redo_scan();
}

/*
 * Flush everything that was read at this start.  A process that died may have
 * stored words that it has not flushed.  They are in the processor's caches,
 * and have just been believed.  From here on we build on them, so a later
 * power failure must not take them.  The commit slots are flushed by wbl/,
 * blocks by the gap collector.
 */
static void
flush_found(void)
{
	for (uint64 chunk = 0; chunk < nvm_regions[NVM_REGION_POOL].nchunks; chunk++)
	{
		uint64		first = chunk == 0 ? NVM_CHUNK0_FIRST_UNIT : NVM_MAP_UNITS;

		nvm_flush(nvm_map_word(chunk * NVM_UNITS_PER_CHUNK + first),
				  (NVM_UNITS_PER_CHUNK - first) * sizeof(uint64));
	}
	for (uint32 i = 0; i < nvm_dram->ndir_extents; i++)
		nvm_flush(nvm_unit_address(nvm_dir_units[i]),
				  (Size) NVM_DIR_EXTENT_UNITS * NVM_UNIT_SIZE);
	nvm_redo_flush();
	nvm_drain("pool-open-found");
}

/*
 * WARNING if the pool, which is mapped, is not on persistent memory.
 */
static void
warn_of_medium(void)
{
	if (NvmPool->medium_is_volatile)
		ereport(WARNING,
				(errmsg("NVM pool \"%s\" lies in memory and does not outlive a reboot",
						nvm_pool_path),
				 errhint("Set nvm.pool_directory to a directory on persistent memory to keep it.")));
	else if (nvm_persist_in_force == NVM_PERSIST_MSYNC)
		ereport(WARNING,
				(errmsg("NVM pool \"%s\" is not on persistent memory: each commit waits for a sync of the file",
						nvm_pool_path),
				 errhint("Set nvm.pool_directory to a directory on persistent memory (a DAX file system) for commits without one. Without persistent memory, heap tables are faster.")));
}

/*
 * Say that there is a new pool.
 */
static void
tell_of_new_pool(void)
{
	const char *how = NvmPool->medium_is_volatile ? "not at all: it lies in memory" :
	nvm_persist_in_force == NVM_PERSIST_PMEM ? "flushes of the processor's caches" :
	nvm_persist_in_force == NVM_PERSIST_MSYNC ? "syncs of the file" : "a simulation";

	if (nvm_reset_was_done)
		ereport(LOG,
				(errmsg("a new NVM pool \"%s\" was made, as nvm.reset_pool() asked",
						nvm_pool_path),
				 errdetail("What is written to it is made durable by: %s.", how)));
	else
		ereport(LOG,
				(errmsg("a new NVM pool \"%s\" was made", nvm_pool_path),
				 errdetail("What is written to it is made durable by: %s.", how)));
	nvm_reset_was_done = false;
}

/*
 * Read and check everything, and map the pool.  False after refusing it.
 */
static bool
validate(PoolOpening *o)
{
	bool		created;
	bool		copy_damaged;
	uint64		size;

	if (!nvm_control_read(&o->control) ||
		!nvm_incarnation_read(&o->rec, &o->known) ||
		!check_data_directory(&o->rec, o->known) ||
		!nvm_file_open(o->known, &created) ||
		!nvm_region_find() ||
		!believe_file() ||
		!nvm_header_read(&o->header, &copy_damaged) ||
		!nvm_header_acceptable(&o->header, &o->control) ||
		!nvm_incarnation_matches(&o->rec, o->known, &o->header) ||
		!check_identity(&o->header, &size) ||
		!check_data_copy(&o->rec, &o->header, &o->control) ||
		!nvm_file_take_name())
		return false;

	/* before the first access to the mapping; simulate has one of its own */
	if (nvm_persist_method != NVM_PERSIST_SIMULATE &&
		!nvm_file_fill_holes(o->header.nchunks * NVM_CHUNK_SIZE))
		return false;
	nvm_pool_set_uuid(o->header.uuid);
	if (!map_and_scan(&o->header))
		return false;
	if (!o->header.clean)
		flush_found();
	if (copy_damaged)
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("one copy of the header of NVM pool \"%s\" was incomplete or damaged and is rewritten",
						nvm_pool_path)));
	return true;
}

/*
 * Has a server run without the pool behind a crash?  It may have handed out again xids
 * about which the log of the volatile region is going to ask.  A pool that was closed
 * cleanly knows of no crash: PostgreSQL has all xids from before.
 */
static bool
log_was_bypassed(const PoolOpening *o)
{
	if (NvmPool->was_clean || o->header.log_generation == 0)
		return false;
	if ((o->rec.bypassed & NVM_BYPASSED_POOL) != 0)
		return true;
	return NvmPool->data_clean && nvm_witness_asked(&o->control) != NVM_WITNESS_NO_RECOVERY;
}

/*
 * How this start has to treat UNLOGGED storages.  The server may have run,
 * crashed and started again without us.  Then it may have emptied the indexes
 * of UNLOGGED tables, or not, and the witness does not always know.
 */
static NvmDirReset
reset_of_unlogged(const PoolOpening *o)
{
	if (!NvmPool->data_clean)
		return NVM_DIR_RESET_EMPTY;
	if (NvmPool->was_clean && !o->ran_without)
		return NVM_DIR_RESET_NONE;
	switch (nvm_witness_asked(&o->control))
	{
		case NVM_WITNESS_NO_RECOVERY:
			return NVM_DIR_RESET_NONE;
		case NVM_WITNESS_UNKNOWN:
			return NVM_DIR_RESET_DOUBTFUL;
		default:
			return NVM_DIR_RESET_ALL;
	}
}

/*
 * Find out how the pool and the server were stopped, and whether the server was
 * run without the pool since then.  The record in `o` takes note of that.
 */
static void
find_how_it_stopped(PoolOpening *o)
{
	NvmPool->was_clean = o->header.clean != 0;
	NvmPool->data_clean = o->control.state == DB_SHUTDOWNED;
	o->ran_without = NvmPool->was_clean && o->known && o->header.incarnation != 0 &&
		o->header.wal_position != o->control.checkPoint;
	if (NvmPool->was_clean && reset_of_unlogged(o) == NVM_DIR_RESET_NONE)
	{
		NvmPool->last_nonce = o->header.nonce;
		NvmPool->found_at = o->control.checkPoint;
	}
	/* noted with the incarnation, or this open would be the last that knows */
	if (!NvmPool->was_clean && !NvmPool->data_clean && o->rec.armed != 0 &&
		o->rec.incarnation == o->header.incarnation && nvm_witness_was_emptied())
	{
		o->rec.bypassed |= NVM_BYPASSED_POOL;
		ereport(LOG,
				(errmsg("the server recovered from a crash without NVM pool \"%s\" since the pool was last used",
						nvm_pool_path)));
	}
	NvmPool->was_bypassed = o->ran_without || (o->rec.bypassed & NVM_BYPASSED_POOL) != 0;
	if (log_was_bypassed(o))
		o->rec.bypassed |= NVM_BYPASSED_LOG;
	NvmPool->log_was_bypassed = (o->rec.bypassed & NVM_BYPASSED_LOG) != 0;
	if (o->ran_without)
		ereport(LOG,
				(errmsg("the server was used without NVM pool \"%s\" since the pool was closed",
						nvm_pool_path)));
}

/*
 * Begin a new incarnation, durably; from then on the pool is open.  False after
 * refusing it.
 */
static bool
begin_incarnation(PoolOpening *o)
{
	NvmPoolHeader *header = &o->header;

	if (!nvm_incarnation_raise(header, &o->rec, &o->control))
		return false;
	nvm_dram->header = *header;
	NvmPool->incarnation = header->incarnation;
	memcpy(NvmPool->uuid, header->uuid, sizeof(NvmPool->uuid));
	NvmPool->ncrashed = header->ncrashed;
	NvmPool->crashed_floor = header->crashed_floor;
	memcpy(NvmPool->crashed, header->crashed, sizeof(NvmPool->crashed));
	pg_atomic_write_u64(&NvmPool->xid_promise, header->xid_promise);
	nvm_contents_bind(header);
	nvm_file_note_place();
	NvmPool->status = NVM_POOL_OPEN;
	return true;
}

/*
 * Validate everything, then begin a new incarnation.  Returns false after
 * refusing the pool.
 */
static bool
open_pool(void)
{
	static char last_place[NVM_PLACE_LENGTH];
	static bool last_place_known = false;
	PoolOpening o;
	bool		header_is_new;

	/* a restart after the crash of a process is no start of the server */
	if (!last_place_known)
		nvm_incarnation_last_place(last_place);
	last_place_known = true;
	strcpy(NvmPool->last_directory, last_place);

	if (!validate(&o))
		return false;
	header_is_new = o.header.incarnation == 0;
	warn_of_medium();
	find_how_it_stopped(&o);
	if (!begin_incarnation(&o))
		return false;
	nvm_redo_replay();
	nvm_dir_reset_after_start(reset_of_unlogged(&o));
	nvm_dir_count_found();
	if (header_is_new)
		tell_of_new_pool();
	return true;
}

/*
 * See nvm_pool.h.  A server that comes to run says so in pg_control, before any process may
 * write rows; and the next shutdown is another checkpoint.
 */
bool
nvm_pool_is_as_found(void)
{
	ControlFileData control;

	return NvmPool->status == NVM_POOL_OPEN && NvmPool->found_at != 0 &&
		nvm_control_read(&control) && control.state == DB_SHUTDOWNED &&
		control.checkPoint == NvmPool->found_at;
}

/*
 * See nvm_pool.h.  A server of a single user ends with code 1 at a FATAL error, or SIGTERM,
 * but has aborted its transaction, and made the shutdown checkpoint.  A postmaster does
 * because it could not start, after us (pg_hba.conf is damaged, for one): a pool that was
 * closed cleanly is closed so again.
 */
bool
nvm_pool_may_close(int code)
{
	return code == 0 || !IsPostmasterEnvironment || nvm_pool_is_as_found();
}

/*
 * At the postmaster's exit, and before it reinitialises (code 1).
 */
static void
pool_at_exit(int code, Datum arg)
{
	if (MyProcPid != (int) DatumGetInt32(arg))
		return;
	if (nvm_pool_may_close(code))
	{
		nvm_pool_close_clean();
		nvm_file_unlock();
	}
}

static void
pool_init(void)
{
	memset(NvmPool, 0, sizeof(NvmPoolShared));
	pg_atomic_init_u64(&NvmPool->xid_promise, 0);
	nvm_region_init();
	NvmPool->header_lock = &pool_locks[0].lock;
	NvmPool->extent_lock = &pool_locks[1].lock;
	NvmPool->dir_lock = &pool_locks[2].lock;
}

/*
 * Open the pool, or refuse it.
 */
static void
pool_start(uint64 start)
{
	if (!open_pool())
		return;
	on_shmem_exit(pool_at_exit, Int32GetDatum(MyProcPid));
	NvmPool->open_usec = now_usec() - start;
}

/*
 * Let go of a pool that was refused.
 */
static void
pool_leave(void)
{
	if (pool_mapped)
	{
		nvm_pmem_unmap();
		pool_mapped = false;
	}
	nvm_pool_base = NULL;
	nvm_backing_unlock();
	nvm_file_unlock();
}

/*
 * Attach to, or in the postmaster make and open, the pool.  Called by the
 * shmem_startup hook, which holds AddinShmemInitLock.
 */
void
nvm_pool_shmem_startup(void)
{
	bool		found;
	uint64		start = now_usec();

	NvmPool = ShmemInitStruct("pg_nvm pool", nvm_pool_shmem_size(), &found);
	pool_locks = GetNamedLWLockTranche(NVM_POOL_TRANCHE);
	if (found)
	{
		nvm_regions = NvmPool->region;
		return;
	}

	pool_init();
	if (nvm_reset_before_open())
		pool_start(start);
	if (NvmPool->status != NVM_POOL_OPEN)
		pool_leave();
}

/*
 * See nvm_pool.h.  A request that did not ask for force is over once the pool
 * could be opened.
 */
bool
nvm_pool_settle_reset(void)
{
	uint64		start = now_usec();

	if (NvmPool->status == NVM_POOL_OPEN)
	{
		NvmResetRequest request = nvm_reset_requested();

		if ((request == NVM_RESET_LOST || request == NVM_RESET_FORCE) && nvm_reset_forget())
			ereport(LOG,
					(errmsg("the request to give up NVM pool \"%s\" was dropped, because it could be opened",
							nvm_pool_path)));
		/* nothing was found in doubt */
		if (NvmPool->was_bypassed)
			(void) nvm_incarnation_note_bypass(false);
		return false;
	}
	pool_leave();
	if (nvm_reset_after_refusal())
	{
		pool_init();
		pool_start(start);
		if (NvmPool->status == NVM_POOL_OPEN)
			return true;
	}
	pool_leave();
	/* from here on transaction ids are handed out; a standby hands out none */
	if (!NvmPool->was_standby)
		(void) nvm_incarnation_note_bypass(true);
	return false;
}

/*
 * Mark the pool clean if this is the end of an orderly shutdown: no backend is
 * left, and pg_control says that the shutdown checkpoint is complete.
 * Everything that backends did is durable then, and nothing is undecided.
 */
void
nvm_pool_close_clean(void)
{
	ControlFileData control;
	NvmPoolHeader header;

	if (NvmPool == NULL || NvmPool->status != NVM_POOL_OPEN)
		return;
	if (!nvm_control_read(&control) || control.state != DB_SHUTDOWNED)
		return;
	if (!nvm_incarnation_sync())
		return;
	header = nvm_dram->header;
	header.clean = 1;
	header.wal_position = control.checkPoint;
	if (NvmPool->promise_kept)
		header.xid_promise = 0; /* the shutdown checkpoint knows all xids used */
	NVM_FAILPOINT("pool-close");
	nvm_header_write(&header);
	nvm_dram->header = header;
	NvmPool->status = NVM_POOL_CLOSED;
}
