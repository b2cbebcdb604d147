/*-------------------------------------------------------------------------
 *
 * vlog_worker.c
 *	  The worker that rebuilds the volatile region from the log.
 *
 * It has no database.  After a start that has lost the region it does its work, in
 * the order of README.md; then, or if there is nothing to do, it sleeps.  The keeper
 * starts it when the log has begun, and again when there is none.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "access/xact.h"
#include "btree/nvm_btree_persist.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "portability/instr_time.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "postmaster/walwriter.h"
#include "row/nvm_rebuild.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "vlog/nvm_vlog.h"
#include "vlog/vlog_impl.h"
#include "wbl/nvm_rebuild_stamp.h"
#include "wbl/nvm_wbl.h"

/* how often to look whether there is a checkpointer */
#define WATCH_MS		1000
#define REASON_SIZE		512

/* bytes of the log for which another process is started, unless it is said how many */
#define BYTES_PER_PROCESS	(UINT64CONST(32) * 1024 * 1024)

int			nvm_recovery_workers = 0;

/* this process is "nvm log recovery" */
static bool is_recovery = false;

/*
 * Say so once in the life of a process.
 */
static void
tell_no_worker(const char *name)
{
	static bool told = false;

	if (!told)
		ereport(LOG,
				(errmsg("nvm: worker \"%s\" cannot be started", name),
				 errdetail("All of max_worker_processes are in use. Without it there are no checkpoints of tables in memory, and tables that were lost are not rebuilt."),
				 errhint("Increase max_worker_processes and restart the server.")));
	told = true;
}

/*
 * Start a worker, unless the one that *handle says is there.
 */
static void
start_worker(const char *name, const char *function, BackgroundWorkerHandle **handle)
{
	MemoryContext context;
	BackgroundWorker worker;
	pid_t		pid;

	if (*handle != NULL)
	{
		if (GetBackgroundWorkerPid(*handle, &pid) != BGWH_STOPPED)
			return;
		pfree(*handle);
		*handle = NULL;
	}
	nvm_worker_describe(&worker, name, function, BGW_NEVER_RESTART);
	context = MemoryContextSwitchTo(TopMemoryContext);
	if (!RegisterDynamicBackgroundWorker(&worker, handle))
	{
		*handle = NULL;
		tell_no_worker(name);
	}
	MemoryContextSwitchTo(context);
}

/*
 * Called by the keeper while there is no such worker, until there is.
 */
static void
start_recovery(void)
{
	static BackgroundWorkerHandle *handle = NULL;

	start_worker("nvm log recovery", "nvm_vlog_main", &handle);
}

/*
 * See vlog_impl.h.  Called by the recovery, when it has done its work.
 */
void
nvm_vlog_start_checkpointer(void)
{
	static BackgroundWorkerHandle *handle = NULL;

	if (nvm_log_checkpoint_may_begin() && !nvm_vlog_has_checkpointer())
		start_worker("nvm checkpointer", "nvm_checkpointer_main", &handle);
}

/*
 * See nvm_vlog.h.
 */
void
nvm_vlog_register(void)
{
	nvm_log_register_recovery(start_recovery, nvm_vlog_keep);
	nvm_log_register_checkpointer(nvm_vlog_ask_checkpoint);
}

/*
 * End this process; others that rebuild with it before.  If it is the first of them, and the
 * server is being stopped, it has one more thing to do.
 */
static void
end_worker(void)
{
	if (is_recovery)
	{
		nvm_vlog_share_exit(1, (Datum) 0);
		nvm_vlog_keep();
	}
	nvm_worker_end();
}

/*
 * See vlog_impl.h.  The state stays REBUILDING; the next worker begins anew.
 */
void
nvm_vlog_pause(void)
{
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	if (ShutdownRequestPending)
		end_worker();
	if (nvm_vlog_is_stopped())
		proc_exit(0);
}

/* ---- progress, for the view ---- */

static void
tell_progress_begin(void)
{
	NvmLogProgress *progress = nvm_log_progress();

	pg_atomic_write_u64(&progress->files, 0);
	pg_atomic_write_u64(&progress->bytes, 0);
	pg_atomic_write_u64(&progress->rows, 0);
	pg_atomic_write_u64(&progress->tables, 0);
	pg_atomic_write_u64(&progress->bytes_total, 0);
	pg_atomic_write_u64(&progress->tables_total, 0);
	pg_atomic_write_u64(&progress->workers, 0);
	pg_atomic_write_u64(&progress->finished, 0);
	pg_atomic_write_u64(&progress->started, (uint64) GetCurrentTimestamp());
}

static void
tell_progress_end(void)
{
	pg_atomic_write_u64(&nvm_log_progress()->finished, (uint64) GetCurrentTimestamp());
}

/* ---- success ---- */

static uint64
bytes_of_files(const NvmVlog *vlog)
{
	uint64		bytes = 0;

	for (int i = 0; i < vlog->shared->nfiles; i++)
	{
		struct stat st;

		if (vlog->file[i].checkpoint != 0)
			bytes += vlog->file[i].side.length;
		else if (stat(psprintf("%s/%s", nvm_log_directory(vlog->file[i].directory),
							   nvm_vlog_file_name(&vlog->file[i])), &st) == 0)
			bytes += (uint64) st.st_size;
	}
	return bytes;
}

static void
tell_begin(const NvmVlog *vlog)
{
	if (vlog->shared->nblock_files == 0)
		return;
	ereport(LOG,
			(vlog->checkpoint != NULL ?
			 errmsg("nvm: rebuilding tables in memory from checkpoint %llu, and from the log from position %llu on",
					(unsigned long long) vlog->checkpoint->number,
					(unsigned long long) vlog->checkpoint->begin) :
			 errmsg("nvm: rebuilding tables in memory from the log"),
			 errdetail("%d files with %llu bytes in %s, generations %u to %u.",
					   vlog->shared->nfiles, (unsigned long long) bytes_of_files(vlog),
					   nvm_log_where(), vlog->file[0].name.generation,
					   vlog->shared->generation)));
}

static void
tell_end(const NvmVlog *vlog, instr_time start)
{
	uint64		bytes = pg_atomic_read_u64(&nvm_log_progress()->bytes);
	instr_time	duration;
	double		seconds;

	INSTR_TIME_SET_CURRENT(duration);
	INSTR_TIME_SUBTRACT(duration, start);
	seconds = INSTR_TIME_GET_DOUBLE(duration);
	ereport(LOG,
			(errmsg("nvm: rebuilt %llu rows of %llu tables from the log in %.3f s",
					(unsigned long long) pg_atomic_read_u64(&vlog->shared->nrows),
					(unsigned long long) pg_atomic_read_u64(&nvm_log_progress()->tables), seconds),
			 errdetail("Read %llu bytes of records from %d files in %s, %.0f MB/s with %d workers; %llu rows are longer than the room at their place.",
					   (unsigned long long) bytes, vlog->shared->nfiles, nvm_log_where(),
					   bytes / 1000000.0 / Max(seconds, 0.001), nvm_vlog_workers(vlog),
					   (unsigned long long) pg_atomic_read_u64(&vlog->shared->nmoved))));
}

/*
 * Row locks of prepared transactions.  In a transaction: multixacts want one.
 */
static void
restore_locks(NvmVlog *vlog)
{
	StartTransactionCommand();
	nvm_rebuild_row_locks();
	CommitTransactionCommand();
	MemoryContextSwitchTo(vlog->context);
}

/*
 * How many processes are worth their start?  If nobody has said, those alone that have
 * some megabytes to read each.
 */
static int
wanted_processes(void)
{
	NvmLogScan	scan;
	const char *name;
	uint64		bytes = 0;
	int			n = nvm_recovery_workers;

	if (n > 0)
		return n;
	n = (int) sysconf(_SC_NPROCESSORS_ONLN);
	nvm_log_scan_begin(&scan, LOG);
	while ((name = nvm_log_scan_next(&scan)) != NULL)
	{
		struct stat st;

		if (stat(psprintf("%s/%s", nvm_log_directory(scan.directory), name), &st) == 0)
			bytes += (uint64) st.st_size;
	}
	n = (int) Min((uint64) Max(n, 1), 1 + bytes / BYTES_PER_PROCESS);
	return Min(n, NVM_VLOG_MAX_PROCESSES);
}

/*
 * From here on tables open.  All rows that are placed have one stamp, which everybody sees:
 * that of the first attempt.  Later ones could not freeze another one, since others have
 * stamps by then.
 */
static void
begin_opening(NvmVlog *vlog)
{
	if (!nvm_log_is_opening())
	{
		NvmStamp	stamp = nvm_rebuild_stamp();

		nvm_rebuild_decide(stamp);
		NVM_FAILPOINT("rebuild-decided");
		nvm_log_begin_opening(stamp);
		NVM_FAILPOINT("rebuild-opening");
	}
	vlog->shared->stamp = nvm_log_rebuild_stamp();
}

/*
 * Rebuild the region.  README.md, "Steps".
 */
static void
rebuild(NvmVlog *vlog, int nothers)
{
	NvmVlogShared *shared;
	instr_time	start;
	bool		written;
	uint64		ntasks;

	INSTR_TIME_SET_CURRENT(start);
	tell_progress_begin();
	(void) nvm_region_use_reserve(NVM_REBUILT_ROWS);
	/* what is open may not grow before it is known what the others need */
	if (nvm_log_is_opening())
		nvm_region_claim(NVM_REBUILT_ROWS, NVM_CLAIM_ALL);
	nvm_vlog_share_begin(vlog, nothers);
	shared = vlog->shared;
	shared->generation = nvm_log_generation();
	shared->limit = nvm_log_rebuild_limit();
	if (shared->generation > NVM_VLOG_LAST_GENERATION)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the log has more than %d generations", NVM_VLOG_LAST_GENERATION)));
	nvm_vlog_stop_replay();
	nvm_vlog_empty();
	nvm_vlog_find_files(vlog);
	nvm_vlog_note_tables(vlog);
	tell_begin(vlog);
	nvm_vlog_run_step(vlog, NVM_VLOG_READ, (uint64) nvm_vlog_files_to_read(vlog));
	nvm_vlog_gather_asks(vlog);
	written = nvm_vlog_decide(vlog);
	nvm_vlog_gather_sides(vlog);
	nvm_vlog_run_step(vlog, NVM_VLOG_CHECK, (uint64) (shared->nfiles - shared->nblock_files));
	nvm_vlog_choose_databases(vlog);
	nvm_vlog_run_step(vlog, NVM_VLOG_COLLECT, nvm_vlog_list_chunks(vlog));
	nvm_vlog_run_step(vlog, NVM_VLOG_CHOOSE, NVM_VLOG_PARTITIONS);
	if (written)
		nvm_log_wait_for(nvm_log_inserted());
	(void) nvm_incarnation_log_is_decided();
	ntasks = nvm_vlog_list_tables(vlog);
	nvm_region_claim(NVM_REBUILT_ROWS, nvm_vlog_closed_units(vlog));
	nvm_index_claim_room();
	begin_opening(vlog);
	nvm_vlog_run_step(vlog, NVM_VLOG_PLACE, ntasks);
	NVM_FAILPOINT("rebuild-placed");
	restore_locks(vlog);
	nvm_vlog_open_held(vlog);
	nvm_region_claim(NVM_REBUILT_ROWS, 0);
	nvm_vlog_replay(vlog);
	tell_progress_end();
	nvm_log_set_rebuild_state(NVM_LOG_WHOLE, NULL);
	nvm_index_rebuilder_wake();
	tell_end(vlog, start);
	nvm_vlog_retire_sides(vlog);
	nvm_vlog_retire_kept(NULL);
}

/* ---- failure ---- */

/*
 * The reason, as a clause: the error's message, and its detail in parentheses.
 */
static void
form_reason(const ErrorData *error, char *reason)
{
	const char *message = error->message != NULL ? error->message : "unknown error";

	if (error->detail == NULL)
		strlcpy(reason, message, REASON_SIZE);
	else
	{
		int			len = (int) strlen(error->detail);

		if (len > 0 && error->detail[len - 1] == '.')
			len--;
		snprintf(reason, REASON_SIZE, "%s (%.*s)", message, len, error->detail);
	}
}

/*
 * Shared memory that there is not is not a reason to fail: a process alone needs none.
 * Where dynamic_shared_memory_type is mmap, a full device has any code.  One of the log's
 * own disk is another matter.
 */
static bool
is_lack_of_memory(const NvmVlog *vlog, int sqlerrcode)
{
	return vlog->allocating || sqlerrcode == ERRCODE_OUT_OF_MEMORY ||
		sqlerrcode == ERRCODE_INSUFFICIENT_RESOURCES;
}

/*
 * The rebuild has ended with the current ERROR.  The server goes on without the
 * tables that are not open.  Their memory is given back, before the gap collector may come
 * to them.  False: shared memory was short, and one process alone may do without.
 */
static bool
rebuild_failed(NvmVlog *vlog, bool alone)
{
	char		reason[REASON_SIZE];
	NvmVlogShared *shared = vlog->shared;
	bool		has_opened = shared != NULL && shared->stamp != NVM_STAMP_NONE;
	bool		lacks_memory;
	uint64		closed_units;
	ErrorData  *error;

	MemoryContextSwitchTo(vlog->context);
	error = CopyErrorData();
	/* others may wait for a lock of ours, that of shared memory for one */
	LWLockReleaseAll();
	lacks_memory = is_lack_of_memory(vlog, error->sqlerrcode);
	closed_units = has_opened ? nvm_vlog_closed_units(vlog) : NVM_CLAIM_ALL;
	/* nobody places rows any more */
	nvm_vlog_share_end(vlog);
	/* somebody has cancelled it, as if it were a query: once more */
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		PG_RE_THROW();
	EmitErrorReport();
	FlushErrorState();
	AbortCurrentTransaction();
	MemoryContextSwitchTo(vlog->context);

	/*
	 * all is there, and in use: it was about the line that says so, or about
	 * files
	 */
	if (nvm_log_is_whole())
		return true;
	if (!alone && !has_opened && lacks_memory)
		return false;

	form_reason(error, reason);
	tell_progress_end();
	nvm_vlog_stop_replay();
	nvm_vlog_leave_replay();
	nvm_vlog_empty();
	/* the next start needs room for them, with what is open */
	nvm_region_claim(NVM_REBUILT_ROWS, closed_units);
	nvm_log_set_rebuild_state(NVM_LOG_FAILED, reason);
	ereport(LOG,
			(errmsg("nvm: tables in memory could not be rebuilt from the log: %s", reason),
			 errdetail("The log is in %s.", nvm_log_where()),
			 errhint("Put back what is missing or damaged there, or remove the cause, and restart the server. Until then each access to these tables is an error. Of files whose name ends in .kept the one with the shorter name may be removed: UNLOGGED tables are empty then, and no others. If anything else is lost for good, call nvm.reset_log() before the restart.")));
	return true;
}

/*
 * One attempt; false if there is to be another one, without other processes.
 */
static bool
attempt(int nothers)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "nvm log recovery",
												  ALLOCSET_DEFAULT_SIZES);
	NvmVlog    *vlog;
	volatile bool is_over = true;

	MemoryContextSwitchTo(context);
	vlog = palloc0(sizeof(NvmVlog));
	vlog->context = context;
	vlog->uuid = NvmPool->uuid;
	vlog->fresh = true;
	PG_TRY();
	{
		rebuild(vlog, nothers);
	}
	PG_CATCH();
	{
		is_over = rebuild_failed(vlog, nothers == 0);
	}
	PG_END_TRY();
	(void) nvm_region_use_reserve(NVM_REBUILT_NOTHING);
	nvm_vlog_share_end(vlog);
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextDelete(context);
	return is_over;
}

static void
rebuild_or_fail(void)
{
	/* what was in doubt is settled, and it is known who had an xid before */
	StartTransactionCommand();
	nvm_wbl_resolve();
	CommitTransactionCommand();

	nvm_log_set_rebuild_state(NVM_LOG_REBUILDING, NULL);
	before_shmem_exit(nvm_vlog_share_exit, (Datum) 0);
	if (!attempt(wanted_processes() - 1))
	{
		ereport(LOG,
				(errmsg("nvm: tables in memory are rebuilt by one process, because shared memory for others is short")));
		(void) attempt(0);
	}
}

/*
 * The region was kept, and so was what its slots have in doubt: resolving has asked.
 */
static void
outcomes_are_known(void)
{
	if (!NvmPool->log_was_bypassed)
		return;
	StartTransactionCommand();
	nvm_wbl_resolve();
	CommitTransactionCommand();
	nvm_log_wait_for(nvm_log_inserted());
	(void) nvm_incarnation_log_is_decided();
}

/*
 * Entry point of the worker.
 */
void
nvm_vlog_main(Datum main_arg)
{
	NvmLogRebuild state;

	nvm_worker_start();
	if (!nvm_log_become_recovery())
		proc_exit(0);
	is_recovery = true;

	/* REBUILDING: the worker before this one was stopped half-way */
	state = nvm_log_rebuild_state();
	if (state == NVM_LOG_TO_REBUILD || state == NVM_LOG_REBUILDING)
		rebuild_or_fail();
	else if (state == NVM_LOG_WHOLE)
	{
		outcomes_are_known();
		nvm_vlog_retire_kept(NULL);
	}
	do
	{
		nvm_vlog_start_checkpointer();
		nvm_log_write_some();
	} while (nvm_worker_sleep(Min(WATCH_MS, WalWriterDelay)));
	end_worker();
}
