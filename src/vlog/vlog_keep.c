/*-------------------------------------------------------------------------
 *
 * vlog_keep.c
 *	  A clean stop keeps the rows of UNLOGGED tables.
 *
 * They have no records.  So the worker that rebuilds tables writes them down when the server is
 * stopped: after all who could write rows have ended, and before the postmaster has the
 * shutdown checkpoint made, for which it waits for this worker, too.  README.md, "UNLOGGED
 * tables over a clean stop", has the protocol.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"
#include "verify/nvm_verify_log.h"
#include "vlog/vlog_impl.h"
#include "wbl/nvm_wbl.h"

/* between two looks at other processes, in milliseconds: from one to the other, doubling */
#define FIRST_PAUSE			1
#define LONGEST_PAUSE		50

/* how long a walsender may go on with its transaction, in milliseconds */
#define WALSENDER_TIMEOUT	10000

/* ---- waiting for others ---- */

/*
 * The postmaster ends walsenders after the shutdown checkpoint, for which it waits for us.
 */
static bool
is_walsender(int pid)
{
	for (int i = 0; i < max_wal_senders; i++)
	{
		if (((volatile WalSnd *) &WalSndCtl->walsnds[i])->pid == pid)
			return true;
	}
	return false;
}

/*
 * Who may write rows: processes with a database, and of walsenders those that have a
 * transaction with an xid.
 */
static void
look_at_others(bool *others, bool *walsenders)
{
	*others = *walsenders = false;
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		volatile PGPROC *proc = &ProcGlobal->allProcs[i];
		int			pid = proc->pid;

		if (pid == 0 || pid == MyProcPid || !OidIsValid(proc->databaseId) ||
			BackendPidGetProc(pid) != (PGPROC *) proc)
			continue;
		if (!is_walsender(pid))
			*others = true;
		else if (TransactionIdIsValid(proc->xid))
			*walsenders = true;
	}
}

/*
 * Wait until nobody can write rows any more.  Those who come later are refused.  False: a
 * walsender goes on.
 */
static bool
wait_for_others(void)
{
	TimestampTz since = 0;
	long		pause = FIRST_PAUSE;

	nvm_log_refuse_writers();
	for (;;)
	{
		bool		others;
		bool		walsenders;

		look_at_others(&others, &walsenders);
		if (!others && !walsenders)
			return true;
		if (others || since == 0)
			since = GetCurrentTimestamp();
		if (TimestampDifferenceExceeds(since, GetCurrentTimestamp(), WALSENDER_TIMEOUT))
			return false;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 pause, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		pause = Min(pause * 2, LONGEST_PAUSE);
	}
}

/* ---- what is kept ---- */

/* tables that are closed, and where their rows are */
typedef struct Closed
{
	const NvmLogKept *before;	/* of the stop before, or NULL */
	NvmLogKeptFile *file;		/* has room for all of these */
	uint32		n;
} Closed;

/*
 * For nvm_dir_walk: a table that was not opened in this run has the rows that it had.
 */
static void
carry_over(uint32 id, NvmDirEntry *entry, void *arg)
{
	Closed	   *closed = (Closed *) arg;

	if (!nvm_vlog_is_unlogged(entry) || nvm_log_is_open(id, entry->creation_id))
		return;
	for (uint32 i = 0; i < closed->before->nfiles; i++)
	{
		if (NVM_LOG_KEPT_DATA(closed->before)[i].creation == entry->creation_id)
			closed->file[closed->n++] = NVM_LOG_KEPT_DATA(closed->before)[i];
	}
}

static NvmLogKept *
form_list(const NvmVlogWalk *walk, const NvmLogKept *before)
{
	uint32		most = walk->nfiles + (before != NULL ? before->nfiles : 0);
	NvmLogKept *kept = palloc0(NVM_LOG_KEPT_LENGTH(most));
	Closed		closed = {.before = before,.file = NVM_LOG_KEPT_DATA(kept)};

	kept->magic = NVM_LOG_KEPT_MAGIC;
	kept->version = NVM_LOG_KEPT_VERSION;
	kept->incarnation = NvmPool->incarnation;
	memcpy(kept->uuid, NvmPool->uuid, sizeof(kept->uuid));
	kept->nonce = nvm_pool_nonce();
	if (before != NULL)
		nvm_dir_walk(carry_over, &closed);
	for (uint32 i = 0; i < walk->nfiles; i++)
	{
		NvmLogKeptFile *file = &closed.file[closed.n++];

		file->creation = walk->table[i];
		file->incarnation = NvmPool->incarnation;
		file->side = walk->side[i];
	}
	kept->nfiles = closed.n;
	if (kept->nfiles > NVM_LOG_KEPT_FILES)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("there are more than %d UNLOGGED tables", NVM_LOG_KEPT_FILES)));
	return kept;
}

static void
keep_rows(void)
{
	NvmVlogWalk walk = {.started = GetCurrentTimestamp()};
	NvmLogKept *before = nvm_log_is_whole() ? NULL : nvm_vlog_read_kept();
	NvmLogKept *kept;

	nvm_vlog_walk_unlogged(&walk);
	kept = form_list(&walk, before);
	NVM_FAILPOINT("keep-walked");
	nvm_vlog_switch_kept(kept, walk.directories);
	nvm_vlog_retire_kept(kept);
	ereport(LOG,
			(errmsg("nvm: kept %llu rows of UNLOGGED tables in memory, %llu bytes in %u files, %.3f s",
					(unsigned long long) walk.rows, (unsigned long long) walk.bytes, walk.nfiles,
					(GetCurrentTimestamp() - walk.started) / 1e6),
			 kept->nfiles == walk.nfiles ? 0 :
			 errdetail("Those of %u tables that were not rebuilt yet stay as the stop before has kept them.",
					   kept->nfiles - walk.nfiles)));
}

static void
keep(void)
{
	if (!wait_for_others())
	{
		ereport(LOG,
				(errmsg("nvm: UNLOGGED tables in memory will be empty after the next start"),
				 errdetail("A walsender goes on with a transaction, whose rows they may have.")));
		return;
	}
	/* nobody has come to them: the postmaster passes on what there is */
	if (!nvm_log_is_whole() && !nvm_log_is_opening())
		return;
	if (nvm_vlog_count_unlogged() == 0)
	{
		nvm_vlog_retire_kept(NULL);
		return;
	}
	/* transactions that only look */
	SetConfigOption("synchronous_commit", "off", PGC_POSTMASTER, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_isolation", "read committed", PGC_POSTMASTER,
					PGC_S_OVERRIDE);
	keep_rows();
}

/*
 * The current ERROR has ended it.  The stop goes on.
 */
static void
keep_failed(MemoryContext context)
{
	ErrorData  *error;

	HOLD_INTERRUPTS();
	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	LWLockReleaseAll();
	AbortCurrentTransaction();
	AtEOXact_Files(false);
	MemoryContextSwitchTo(context);
	nvm_vlog_walk_forget();
	ereport(LOG,
			(errcode(error->sqlerrcode),
			 errmsg("nvm: UNLOGGED tables in memory will be empty after the next start: %s",
					error->message),
			 error->detail != NULL ? errdetail_internal("%s", error->detail) : 0));
	RESUME_INTERRUPTS();
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_keep(void)
{
	MemoryContext context;

	if (!nvm_worker_is_stopped_with_server() || !nvm_log_is_on || !nvm_log_has_begun())
		return;
	if (IsTransactionState())
		AbortCurrentTransaction();
	context = AllocSetContextCreate(TopMemoryContext, "nvm UNLOGGED tables",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		keep();
	}
	PG_CATCH();
	{
		keep_failed(context);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextDelete(context);
}
