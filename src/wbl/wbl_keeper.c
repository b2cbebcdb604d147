/*-------------------------------------------------------------------------
 *
 * wbl_keeper.c
 *	  The background workers: what they share, and the keeper.
 *
 * The keeper settles what the last crash left in doubt, and persists the
 * outcome of prepared transactions, if nobody else has done so.  It advances
 * frozen[], watches nvm.redo_limit and wakes the WAL writer.  It warns of
 * standbys that nvm commits do not wait for.  The gap collector is in
 * wbl_collector.c.  Both have no database.  They end at SIGTERM at once, so
 * that they hold up no shutdown; but the keeper does what the log's worker does then, if
 * that is not there.  If the pool is not open they end for good.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "pool/nvm_pool.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "postmaster/walwriter.h"
#include "replication/syncrep.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"
#include "wbl/nvm_snapshot.h"
#include "wbl/wbl_impl.h"

/* rounds of silence before an xid is spent on the horizon */
#define SILENT_ROUNDS			3

/* between two looks at the worker of the log, when the server is stopped, in milliseconds */
#define STOP_PAUSE				10

/*
 * See nvm_wbl.h.
 */
void
nvm_worker_describe(BackgroundWorker *worker, const char *name, const char *function, int restart)
{
	memset(worker, 0, sizeof(*worker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = restart;
	strlcpy(worker->bgw_library_name, "pg_nvm", sizeof(worker->bgw_library_name));
	strlcpy(worker->bgw_function_name, function, sizeof(worker->bgw_function_name));
	strlcpy(worker->bgw_name, name, sizeof(worker->bgw_name));
	strlcpy(worker->bgw_type, name, sizeof(worker->bgw_type));
}

void
nvm_register_worker(const char *name, const char *function)
{
	BackgroundWorker worker;

	nvm_worker_describe(&worker, name, function, 2);
	RegisterBackgroundWorker(&worker);
}

/*
 * Register the workers; in _PG_init, in the postmaster.
 */
void
nvm_wbl_register_workers(void)
{
	nvm_register_worker("nvm keeper", "nvm_keeper_main");
	nvm_register_worker("nvm gap collector", "nvm_collector_main");
}

/* SIGTERM has come, and from the postmaster */
static volatile sig_atomic_t is_stop = false;

static void
told_to_end(int signo, siginfo_t * info, void *context)
{
	if (info->si_pid == PostmasterPid)
		is_stop = true;
	SignalHandlerForShutdownRequest(signo);
}

/*
 * See nvm_wbl.h.  The postmaster ends no worker of ours but for a stop.
 */
bool
nvm_worker_is_stopped_with_server(void)
{
	return is_stop;
}

/*
 * The first call of both.  Does not return if there is no pool to look after:
 * exit code 0 tells the postmaster not to start the worker again.
 */
void
nvm_worker_start(void)
{
	struct sigaction on_term = {
		.sa_sigaction = told_to_end,
		.sa_flags = SA_RESTART | SA_SIGINFO
	};

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	sigemptyset(&on_term.sa_mask);
	(void) sigaction(SIGTERM, &on_term, NULL);
	BackgroundWorkerUnblockSignals();

	if (NvmWbl == NULL || NvmPool == NULL || NvmPool->status != NVM_POOL_OPEN)
		proc_exit(0);
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	/*
	 * its commit has settled all transactions in doubt, or found that it
	 * cannot
	 */
	if (NvmPool->status != NVM_POOL_OPEN)
		proc_exit(0);
}

/*
 * Sleep, then look at signals.  False when it is time to end.
 */
bool
nvm_worker_sleep(long ms)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	return !ShutdownRequestPending;
}

/*
 * End because of SIGTERM.  If another process than the postmaster sent it
 * (pg_terminate_backend), the postmaster is to start the worker again.
 */
void
nvm_worker_end(void)
{
	proc_exit(1);
}

/*
 * See nvm_wbl.h.
 */
const char *
nvm_ignored_standbys(void)
{
	return SyncRepStandbyNames != NULL && SyncRepStandbyNames[0] != '\0' ?
		SyncRepStandbyNames : NULL;
}

/*
 * Use up one xid.
 */
void
nvm_worker_consume_xid(void)
{
	MemoryContext context = CurrentMemoryContext;

	StartTransactionCommand();
	(void) GetTopTransactionId();
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
}

/*
 * WARNING that transactions are acknowledged although no standby has them.  At
 * the start, and when the setting has changed.
 */
static void
warn_of_ignored_standbys(void)
{
	static char *warned = NULL;
	const char *names = nvm_ignored_standbys();

	if (names != NULL && (warned == NULL || strcmp(warned, names) != 0))
		ereport(WARNING,
				(errmsg("synchronous_standby_names (\"%s\") is ignored by transactions that write nvm tables alone",
						names),
				 errdetail("Their commits wait for no standby: the rows of nvm tables are not replicated by physical replication.")));
	if (warned != NULL)
		pfree(warned);
	warned = names ? MemoryContextStrdup(TopMemoryContext, names) : NULL;
}

/*
 * The server is being stopped, and the worker of the log may not be there: it was about to
 * start, or there was no room for it, or somebody has ended it.
 */
static void
stop_instead(void)
{
	while (!nvm_log_stop_instead())
		(void) nvm_worker_sleep(STOP_PAUSE);
}

/*
 * Entry point of the keeper.
 */
void
nvm_keeper_main(Datum main_arg)
{
	int			silent = 0;

	nvm_worker_start();

	/* settles, if nobody had to yet, so that the first user need not wait */
	StartTransactionCommand();
	nvm_wbl_resolve();
	CommitTransactionCommand();

	do
	{
		warn_of_ignored_standbys();
		nvm_twophase_settle();
		nvm_log_watch_recovery();
		nvm_log_write_instead();
		nvm_wbl_advance_frozen();
		silent = nvm_horizon_wants_xid() ? silent + 1 : 0;
		if (silent >= SILENT_ROUNDS)
		{
			nvm_worker_consume_xid();
			nvm_wbl_advance_frozen();
			silent = 0;
		}
		nvm_snapshot_watch();
		nvm_redo_limit_check();
		nvm_walwriter_round();
	} while (nvm_worker_sleep(Min(nvm_horizon_naptime, WalWriterDelay)));

	if (nvm_worker_is_stopped_with_server())
		stop_instead();
	nvm_worker_end();
}
