/*-------------------------------------------------------------------------
 *
 * command_mode_ddl.c
 *	  DDL and promotions: who leaves mode "alone", waits for what, and lets it come back.
 *
 * README.md, "Modes", has the protocol, and names the steps.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "command/command_impl.h"
#include "command/nvm_command.h"
#include "log/nvm_log.h"
#include "media/media_pool.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/resowner.h"

/*
 * What this process has counted, until its transaction ends, or, within a statement of
 * several transactions, the last of them.
 */
static bool counted = false;	/* in nddl of the database */
static bool counted_shared = false; /* in nshared */
static bool promoting = false;
static int	statements = 0;		/* of DDL, one in another, that run */

/* the transaction has done DDL, counted or not */
static bool has_ddl = false;

/* at PRE_COMMIT: no function of the database is promoted; the epoch before that was read */
static bool none_promoted = false;
static uint64 commit_epoch = 0;

static inline void
raise_epoch(NvmDatabaseMode *m)
{
	pg_atomic_fetch_add_u64(&m->epoch, 1);
}

/* ---- the end ---- */

/*
 * The database's part.  Returns whether a checkpoint leads back to "alone".  The lock is held.
 */
static bool
uncount_database(NvmDatabaseMode *m, bool committed)
{
	m->nddl--;
	raise_epoch(m);
	if (committed && promoting && !none_promoted)
		m->armed = true;
	if (m->nddl == 0 && pg_atomic_read_u32(&m->mode) == NVM_MODE_SWITCHING &&
		(!m->armed || (committed && none_promoted && m->covered &&
					   commit_epoch + 1 == pg_atomic_read_u64(&m->epoch))))
	{
		m->armed = false;
		pg_atomic_write_u32(&m->mode, NVM_MODE_SHADOW);
	}
	return m->armed && pg_atomic_read_u32(&m->mode) == NVM_MODE_SWITCHING;
}

/*
 * The same of all databases.
 */
static bool
uncount_shared(void)
{
	HASH_SEQ_STATUS seq;
	NvmDatabaseMode *m;
	bool		ask = false;

	nvm_modes->nshared--;
	hash_seq_init(&seq, nvm_mode_entries);
	while ((m = hash_seq_search(&seq)) != NULL)
	{
		raise_epoch(m);
		ask |= m->armed && pg_atomic_read_u32(&m->mode) == NVM_MODE_SWITCHING;
	}
	return ask;
}

/*
 * Step d4 or p3: others see what it has done, and its locks have gone.  Cannot fail.
 */
static void
uncount(bool committed)
{
	NvmDatabaseMode *m = nvm_my_mode(false);
	bool		ask = false;

	has_ddl = false;
	if (!counted && !counted_shared)
		return;
	LWLockAcquire(nvm_modes_lock, LW_EXCLUSIVE);
	if (counted)
		ask |= uncount_database(m, committed);
	if (counted_shared)
		ask |= uncount_shared();
	LWLockRelease(nvm_modes_lock);
	counted = counted_shared = promoting = none_promoted = false;
	if (ask)
		nvm_log_ask_checkpoint(false);
}

static void
uncount_at_exit(int code, Datum arg)
{
	uncount(false);
}

/*
 * ResourceReleaseCallback: see wait_when_locks_are_gone in log_wait.c.  By then messages of
 * what has changed have been sent, too.
 */
static void
uncount_when_locks_are_gone(ResourceReleasePhase phase, bool isCommit, bool isTopLevel, void *arg)
{
	if (phase == RESOURCE_RELEASE_AFTER_LOCKS && isTopLevel && statements == 0)
		uncount(isCommit);
}

/*
 * At PRE_COMMIT: is any function still promoted?
 */
void
nvm_mode_pre_commit(void)
{
	if (likely(!counted))
		return;
	commit_epoch = pg_atomic_read_u64(&nvm_my_mode(false)->epoch);
	pg_memory_barrier();
	AcceptInvalidationMessages();
	none_promoted = !nvm_lanes_exist() || !nvm_command_any_promoted();
}

/* ---- the beginning ---- */

static void
be_counted(bool *flag)
{
	static int	registered_by = 0;

	if (registered_by != MyProcPid)
		on_shmem_exit(uncount_at_exit, (Datum) 0);
	registered_by = MyProcPid;
	*flag = true;
}

/*
 * The database leaves mode "alone", if it was in it.  The lock is held.
 */
static void
leave_alone(NvmDatabaseMode *m)
{
	raise_epoch(m);
	if (pg_atomic_read_u32(&m->mode) == NVM_MODE_ALONE)
		pg_atomic_write_u32(&m->mode, NVM_MODE_SWITCHING);
}

/* a database that is to be covered */
typedef struct ToCover
{
	Oid			database;
	Oid			root;
} ToCover;

static void
note_of(const ToCover *list, int n, bool covered)
{
	LWLockAcquire(nvm_modes_lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		NvmDatabaseMode *m = hash_search(nvm_mode_entries, &list[i].database, HASH_FIND, NULL);

		if (m == NULL)
			continue;
		m->quiet = true;
		m->covered |= covered;
	}
	LWLockRelease(nvm_modes_lock);
}

/*
 * Steps d2 and d3: calls that may be logged alone end, and a checkpoint has what they did.  What
 * is counted keeps each database from going back to "alone".
 *
 * ShareLock conflicts with the root of callers, and not with that of value writers.
 */
static void
cover(const ToCover *list, int n)
{
	List	   *tags = NIL;

	NVM_FAILPOINT("mode-ddl-begun");
	for (int i = 0; i < n; i++)
	{
		LOCKTAG    *tag = palloc(sizeof(LOCKTAG));

		if (!OidIsValid(list[i].root))
			continue;
		SET_LOCKTAG_RELATION(*tag, list[i].database, list[i].root);
		tags = lappend(tags, tag);
	}
	WaitForLockersMultiple(tags, ShareLock, false);
	note_of(list, n, false);
	NVM_FAILPOINT("mode-ddl-quiet");
	nvm_log_ask_checkpoint(true);
	note_of(list, n, true);
	NVM_FAILPOINT("mode-ddl-covered");
}

static void
begin_database(void)
{
	NvmMode		mode = nvm_command_find_mode();
	NvmDatabaseMode *m = nvm_my_mode(false);
	ToCover		own;
	bool		covered = true;

	if (counted || m == NULL || mode == NVM_MODE_UNKNOWN)
		return;
	LWLockAcquire(nvm_modes_lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u32(&m->mode) != NVM_MODE_SHADOW)
	{
		m->nddl++;
		be_counted(&counted);
		leave_alone(m);
		own.database = MyDatabaseId;
		own.root = m->root;
		covered = m->covered;
	}
	LWLockRelease(nvm_modes_lock);
	if (!covered)
		cover(&own, 1);
}

/*
 * For nvm_dir_walk: is it a storage of a database of which nothing is known?  The lock is held.
 */
static void
find_unknown(uint32 id, NvmDirEntry *entry, void *arg)
{
	if ((entry->flags & NVM_DIR_COMMANDS) != 0 && entry->begin != NVM_STAMP_NONE &&
		hash_search(nvm_mode_entries, &entry->database, HASH_FIND, NULL) == NULL)
		*(bool *) arg = true;
}

/*
 * Roles, which calls of any database may look at.  One of which nothing is known, since the
 * start, may have had calls alone before that.
 */
static void
begin_shared(void)
{
	HASH_SEQ_STATUS seq;
	NvmDatabaseMode *m;
	ToCover    *list;
	int			n = 0;
	bool		unknown = false;

	if (counted_shared)
		return;
	list = palloc(sizeof(ToCover) * (hash_get_num_entries(nvm_mode_entries) + 64));
	LWLockAcquire(nvm_modes_lock, LW_EXCLUSIVE);
	nvm_modes->nshared++;
	be_counted(&counted_shared);
	hash_seq_init(&seq, nvm_mode_entries);
	while ((m = hash_seq_search(&seq)) != NULL)
	{
		if (pg_atomic_read_u32(&m->mode) == NVM_MODE_SHADOW)
			continue;
		leave_alone(m);
		if (m->covered)
			continue;
		list[n].database = m->database;
		list[n++].root = m->root;
	}
	if (nvm_modes->usable == 0)
		nvm_dir_walk(find_unknown, &unknown);
	LWLockRelease(nvm_modes_lock);
	if (n > 0 || unknown)
		cover(list, n);
	pfree(list);
}

/*
 * See nvm_command.h.
 */
void
nvm_command_ddl_begins(bool shared)
{
	statements++;
	has_ddl = true;
	if (!nvm_log_is_on || nvm_command_replaying || !IsTransactionState())
		return;
	if (shared)
		begin_shared();
	begin_database();
}

void
nvm_command_ddl_statement_ends(void)
{
	statements--;
}

/* ---- promotion ---- */

/*
 * Step p2: whatever runs in the database may have captured otherwise, or have done DDL that was
 * not counted.  VACUUM does neither.
 */
static void
wait_for_others(void)
{
	int			n;
	VirtualTransactionId *others = GetCurrentVirtualXIDs(InvalidTransactionId, false, false,
														 PROC_IS_AUTOVACUUM | PROC_IN_VACUUM, &n);

	for (int i = 0; i < n; i++)
		(void) VirtualXactLock(others[i], true);
	pfree(others);
}

/*
 * See nvm_command.h.
 */
void
nvm_command_promote_begins(void)
{
	NvmDatabaseMode *m;
	ToCover		own = {.database = MyDatabaseId,.root = nvm_lanes_root()};
	bool		armed;
	bool		covered;

	(void) nvm_command_find_mode();
	m = nvm_my_mode(true);
	if (m == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many databases have registered functions"),
				 errhint("Increase nvm.max_commands and restart the server.")));
	LWLockAcquire(nvm_modes_lock, LW_EXCLUSIVE);
	armed = m->armed;
	covered = m->covered;
	m->root = own.root;
	if (!counted)
	{
		m->nddl++;
		be_counted(&counted);
	}
	leave_alone(m);
	pg_atomic_write_u32(&m->mode, NVM_MODE_SWITCHING);
	LWLockRelease(nvm_modes_lock);
	promoting = true;
	NVM_FAILPOINT("mode-promote-begun");
	if (!armed)
		wait_for_others();
	else if (!covered)
		cover(&own, 1);
	NVM_FAILPOINT("mode-promote-waited");
}

/* ---- PREPARE TRANSACTION ---- */

/*
 * A prepared transaction ends who knows when, and nobody could count it.
 */
void
nvm_mode_pre_prepare(bool writes)
{
	NvmMode		mode;

	if (!writes && !has_ddl)
		return;
	mode = nvm_command_find_mode();
	if (mode == NVM_MODE_SHADOW || mode == NVM_MODE_UNKNOWN)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 writes ?
			 errmsg("cannot PREPARE a transaction that has written tables of nvm_cmdlog where a function is promoted") :
			 errmsg("cannot PREPARE a transaction that has changed definitions where a function is promoted"),
			 errdetail("Calls are logged alone in this database, and a restart would not know when such a transaction has ended."),
			 errhint("Use COMMIT, or take promotions back by nvm.demote_command().")));
}

void
nvm_mode_ddl_register(void)
{
	RegisterResourceReleaseCallback(uncount_when_locks_are_gone, NULL);
}
