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
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "vlog/nvm_vlog.h"
#include "vlog/vlog_impl.h"
#include "wbl/nvm_rebuild_stamp.h"
#include "wbl/nvm_wbl.h"

/* how often to look whether there is a checkpointer */
#define WATCH_MS		1000
#define REASON_SIZE		512

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
	(void) RegisterDynamicBackgroundWorker(&worker, handle);
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
 * Called by the recovery, when it has done its work.
 */
static void
start_checkpointer(void)
{
	static BackgroundWorkerHandle *handle = NULL;

	if (nvm_log_is_whole() && !nvm_vlog_has_checkpointer())
		start_worker("nvm checkpointer", "nvm_checkpointer_main", &handle);
}

/*
 * See nvm_vlog.h.
 */
void
nvm_vlog_register(void)
{
	nvm_log_register_recovery(start_recovery);
}

/*
 * See vlog_impl.h.  The state stays REBUILDING; the next worker begins anew.
 */
void
nvm_vlog_pause(void)
{
	CHECK_FOR_INTERRUPTS();
	if (ShutdownRequestPending)
		nvm_worker_end();
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
	pg_atomic_write_u64(&progress->finished, 0);
	pg_atomic_write_u64(&progress->started, (uint64) GetCurrentTimestamp());
}

static void
tell_progress_end(void)
{
	pg_atomic_write_u64(&nvm_log_progress()->finished, (uint64) GetCurrentTimestamp());
}

/* ---- success ---- */

static void
tell_begin(const NvmVlog *vlog)
{
	uint64		bytes = 0;

	if (vlog->nblock_files == 0)
		return;
	for (int i = 0; i < vlog->nfiles; i++)
		bytes += vlog->file[i].size;
	ereport(LOG,
			(vlog->checkpoint != NULL ?
			 errmsg("nvm: rebuilding tables in memory from checkpoint %llu, and from the log from position %llu on",
					(unsigned long long) vlog->checkpoint->number,
					(unsigned long long) vlog->checkpoint->begin) :
			 errmsg("nvm: rebuilding tables in memory from the log"),
			 errdetail("%d files with %llu bytes in directory \"%s\", generations %u to %u.",
					   vlog->nfiles, (unsigned long long) bytes, nvm_log_directory(),
					   vlog->file[0].name.generation, vlog->generation)));
}

static void
tell_end(const NvmVlog *vlog, instr_time start)
{
	instr_time	duration;

	INSTR_TIME_SET_CURRENT(duration);
	INSTR_TIME_SUBTRACT(duration, start);
	ereport(LOG,
			(errmsg("nvm: rebuilt %llu rows of %u tables from the log in %.3f s",
					(unsigned long long) vlog->nrows, vlog->ntables,
					INSTR_TIME_GET_DOUBLE(duration)),
			 errdetail("Read %llu bytes of records from %d files in directory \"%s\"; %llu rows are longer than the room at their place.",
					   (unsigned long long) vlog->bytes, vlog->nfiles, nvm_log_directory(),
					   (unsigned long long) vlog->nmoved)));
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
 * Rebuild the region.  README.md, "Steps".
 */
static void
rebuild(NvmVlog *vlog)
{
	instr_time	start;
	bool		written;

	INSTR_TIME_SET_CURRENT(start);
	tell_progress_begin();
	nvm_vlog_empty();
	nvm_vlog_find_files(vlog);
	tell_begin(vlog);
	nvm_vlog_read(vlog);
	written = nvm_vlog_decide(vlog);
	nvm_vlog_collect(vlog);
	vlog->stamp = nvm_rebuild_stamp();
	nvm_vlog_place(vlog);
	NVM_FAILPOINT("rebuild-placed");
	if (written)
		nvm_log_wait_for(nvm_log_inserted());
	nvm_rebuild_decide(vlog->stamp);
	NVM_FAILPOINT("rebuild-decided");
	restore_locks(vlog);
	tell_progress_end();
	nvm_log_set_rebuild_state(NVM_LOG_WHOLE, NULL);
	nvm_index_rebuilder_wake();
	tell_end(vlog, start);
	nvm_vlog_retire_sides(vlog);
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
 * The rebuild has ended with the current ERROR.  The server goes on without the
 * region.  Its memory is given back.  Then nothing has the stamp any more, so that it
 * need not join the gap, where it would keep the pool's space from being reused.
 */
static void
rebuild_failed(NvmVlog *vlog)
{
	char		reason[REASON_SIZE];
	ErrorData  *error;

	MemoryContextSwitchTo(vlog->context);
	error = CopyErrorData();
	/* somebody has cancelled it, as if it were a query: once more */
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		PG_RE_THROW();
	EmitErrorReport();
	FlushErrorState();
	LWLockReleaseAll();
	AbortCurrentTransaction();
	MemoryContextSwitchTo(vlog->context);

	form_reason(error, reason);
	tell_progress_end();
	nvm_log_set_rebuild_state(NVM_LOG_FAILED, reason);
	ereport(LOG,
			(errmsg("nvm: tables in memory could not be rebuilt from the log: %s", reason),
			 errdetail("The log is in directory \"%s\".", nvm_log_directory()),
			 errhint("Put back what is missing or damaged there, or remove the cause, and restart the server. Until then each access to these tables is an error.")));
	nvm_vlog_empty();
	if (vlog->stamp != NVM_STAMP_NONE)
		nvm_rebuild_decide(vlog->stamp);
}

static void
rebuild_or_fail(MemoryContext context)
{
	NvmVlog    *vlog;

	/* what was in doubt is settled, and it is known who had an xid before */
	StartTransactionCommand();
	nvm_wbl_resolve();
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);

	vlog = palloc0(sizeof(NvmVlog));
	vlog->context = context;
	vlog->uuid = NvmPool->uuid;
	vlog->generation = nvm_log_generation();
	nvm_log_set_rebuild_state(NVM_LOG_REBUILDING, NULL);
	PG_TRY();
	{
		rebuild(vlog);
	}
	PG_CATCH();
	{
		rebuild_failed(vlog);
	}
	PG_END_TRY();
	nvm_vlog_unmap(vlog);
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

	/* REBUILDING: the worker before this one was stopped half-way */
	state = nvm_log_rebuild_state();
	if (state == NVM_LOG_TO_REBUILD || state == NVM_LOG_REBUILDING)
	{
		MemoryContext context = AllocSetContextCreate(TopMemoryContext, "nvm log recovery",
													  ALLOCSET_DEFAULT_SIZES);

		rebuild_or_fail(context);
		MemoryContextSwitchTo(TopMemoryContext);
		MemoryContextDelete(context);
	}
	do
	{
		start_checkpointer();
		nvm_log_write_some();
	} while (nvm_worker_sleep(Min(WATCH_MS, WalWriterDelay)));
	nvm_worker_end();
}
