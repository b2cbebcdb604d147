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

/* it has locked tables, or rows of nvm_cmdlog tables */
static bool has_locks = false;

/* what it has counted in */
static NvmDatabaseMode *mine = NULL;

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
 * The database's part.  Returns whether a checkpoint leads on.  The lock is held.
 */
static bool
uncount_database(NvmDatabaseMode *m, bool committed)
{
	m->nddl--;
	raise_epoch(m);
	m->arming |= committed && promoting && !none_promoted;
	if (committed && none_promoted && m->nddl == 0 &&
		commit_epoch + 1 == pg_atomic_read_u64(&m->epoch))
		m->armed = false;
	/* it may fit now: the next one who needs the mode looks */
	if (committed && m->misfit && m->nddl == 0)
	{
		m->misfit = false;
		pg_atomic_write_u32(&m->mode, NVM_MODE_UNKNOWN);
	}
	nvm_mode_settle(m);
	return m->nddl == 0 && pg_atomic_read_u32(&m->mode) == NVM_MODE_SWITCHING;
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
		ask |= pg_atomic_read_u32(&m->mode) == NVM_MODE_SWITCHING;
	}
	return ask;
}

/*
 * Step d4 or p3: others see what it has done, and its locks have gone.  Cannot fail.
 */
static void
uncount(bool committed)
{
	bool		ask = false;

	has_ddl = has_locks = false;
	if (likely(!counted && !counted_shared))
		return;
	LWLockAcquire(nvm_modes_lock, LW_EXCLUSIVE);
	if (counted)
		ask |= uncount_database(mine, committed);
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
	/* others see what it has done, and have no message of it */
	if (phase == RESOURCE_RELEASE_BEFORE_LOCKS && isCommit && isTopLevel && counted)
		NVM_FAILPOINT("mode-ddl-decided");
	if (phase == RESOURCE_RELEASE_AFTER_LOCKS && isTopLevel && statements == 0)
		uncount(isCommit);
}

/*
 * At PRE_COMMIT: is any function still promoted?
 */
void
nvm_mode_pre_commit(void)
{
	if (likely(!counted) || pg_atomic_read_u32(&mine->mode) == NVM_MODE_SHADOW ||
		pg_atomic_read_u32(&mine->mode) == NVM_MODE_UNKNOWN)
		return;
	commit_epoch = pg_atomic_read_u64(&mine->epoch);
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

/*
 * Is there anything to be covered?  While a recovery has not read the log nothing is known of
 * it.  The lock is not held.
 */
static bool
is_uncovered(NvmDatabaseMode *m)
{
	bool		covered;

	LWLockAcquire(nvm_modes_lock, LW_SHARED);
	covered = m->covered;
	LWLockRelease(nvm_modes_lock);
	if (covered || nvm_log_is_whole())
		return !covered;
	nvm_log_require_opening();
	LWLockAcquire(nvm_modes_lock, LW_SHARED);
	covered = m->covered;
	LWLockRelease(nvm_modes_lock);
	return !covered;
}

/*
 * Also of one whose mode does not ask for it: a statement may go on when a function is
 * promoted.  An earlier statement may have counted, and waited in vain.
 */
static void
begin_database(bool mends)
{
	NvmMode		mode = nvm_command_find_mode();
	ToCover		own = {.database = MyDatabaseId,.root = nvm_lanes_root()};

	mine = nvm_my_mode(true);
	if (mine == NULL)
		return;
	LWLockAcquire(nvm_modes_lock, LW_EXCLUSIVE);
	mode = (NvmMode) pg_atomic_read_u32(&mine->mode);
	mine->root = own.root;
	if (!counted)
	{
		mine->nddl++;
		be_counted(&counted);
		leave_alone(mine);
	}
	LWLockRelease(nvm_modes_lock);
	if (mode == NVM_MODE_SHADOW || mode == NVM_MODE_UNKNOWN || mends || !is_uncovered(mine))
		return;
	nvm_lanes_give_way();
	cover(&own, 1);
}

/*
 * For nvm_dir_walk: is it a storage of a database of which nothing is known?
 */
static void
find_unknown(uint32 id, NvmDirEntry *entry, void *arg)
{
	NvmModeInfo info;

	if ((entry->flags & NVM_DIR_COMMANDS) != 0 && entry->begin != NVM_STAMP_NONE &&
		!nvm_command_mode_info(entry->database, &info))
		*(bool *) arg = true;
}

/*
 * Is it, since the start, not known of any database whether it had calls alone before that?
 */
static bool
is_any_unknown(void)
{
	bool		unknown = false;

	if (nvm_modes->usable == 0 && !nvm_modes->log_is_known)
		nvm_dir_walk(find_unknown, &unknown);
	return unknown;
}

/*
 * Roles, which calls of any database may look at.
 */
static void
begin_shared(void)
{
	HASH_SEQ_STATUS seq;
	NvmDatabaseMode *m;
	ToCover    *list;
	int			n = 0;

	LWLockAcquire(nvm_modes_lock, LW_EXCLUSIVE);
	list = palloc(sizeof(ToCover) * (hash_get_num_entries(nvm_mode_entries) + 1));
	hash_seq_init(&seq, nvm_mode_entries);
	while ((m = hash_seq_search(&seq)) != NULL)
	{
		NvmMode		mode = (NvmMode) pg_atomic_read_u32(&m->mode);

		if (!counted_shared)
			leave_alone(m);
		if (m->covered || mode == NVM_MODE_SHADOW || (mode == NVM_MODE_UNKNOWN && !m->told))
			continue;
		list[n].database = m->database;
		list[n++].root = m->root;
	}
	if (!counted_shared)
	{
		nvm_modes->nshared++;
		be_counted(&counted_shared);
	}
	LWLockRelease(nvm_modes_lock);
	if (n > 0 || is_any_unknown())
	{
		nvm_lanes_give_way();
		cover(list, n);
	}
	pfree(list);
}

/*
 * Without a log nobody can make a checkpoint, and calls alone may be in the one that a later
 * start has again.
 */
static void
refuse_without_log(void)
{
	if (nvm_lanes_exist() && nvm_command_any_promoted())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("definitions cannot be changed in a database with promoted functions while there is no log of tables in memory"),
				 errdetail("The log may have calls that a start replays, which would then meet other definitions."),
				 errhint("Start the server with nvm.memory_limit and the pool as they were. Or take promotions back by nvm.demote_command(): then such calls may fail to be replayed.")));
}

/*
 * See nvm_command.h.
 */
void
nvm_command_ddl_begins(NvmDdlScope scope)
{
	statements++;
	has_ddl = true;
	if (nvm_command_replaying || !IsTransactionState())
		return;
	if (!nvm_log_is_on)
	{
		if (scope != NVM_DDL_OF_LABELS)
			refuse_without_log();
		return;
	}
	if (scope == NVM_DDL_OF_ROLES)
		begin_shared();
	begin_database((scope == NVM_DDL_OF_FUNCTIONS &&
					nvm_log_replay_state(MyDatabaseId, NULL) == NVM_LOG_REPLAY_STOPPED) ||
				   (scope == NVM_DDL_OF_LABELS && !nvm_log_is_whole()));
}

/*
 * See nvm_command.h.
 */
void
nvm_command_ddl_comes(void)
{
	has_ddl = true;
	if (!nvm_command_replaying && nvm_log_is_on && IsTransactionState())
		begin_database(false);
}

void
nvm_command_locks(void)
{
	has_locks = true;
}

/*
 * See nvm_command.h.
 */
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
	m = mine = nvm_my_mode(true);
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
	{
		nvm_lanes_give_way();
		cover(&own, 1);
	}
	NVM_FAILPOINT("mode-promote-waited");
}

/* ---- PREPARE TRANSACTION ---- */

/*
 * Is any database amid, or before, calls alone?
 */
static bool
any_is_promoted(void)
{
	HASH_SEQ_STATUS seq;
	NvmDatabaseMode *m;
	bool		any = false;

	LWLockAcquire(nvm_modes_lock, LW_SHARED);
	hash_seq_init(&seq, nvm_mode_entries);
	while ((m = hash_seq_search(&seq)) != NULL)
		any |= (m->told && !m->covered) || pg_atomic_read_u32(&m->mode) == NVM_MODE_SWITCHING ||
			pg_atomic_read_u32(&m->mode) == NVM_MODE_ALONE;
	LWLockRelease(nvm_modes_lock);
	return any || is_any_unknown();
}

/*
 * A prepared transaction ends who knows when, and nobody could count it.  Its locks of rows are
 * of TIDs, which a replay hands out anew; those of tables keep a replay from them.
 */
void
nvm_mode_pre_prepare(bool writes)
{
	NvmMode		mode;

	if (!writes && !has_ddl && !has_locks)
		return;
	mode = nvm_command_find_mode();
	if ((mode == NVM_MODE_SHADOW || mode == NVM_MODE_UNKNOWN) && !(counted_shared && any_is_promoted()))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 writes ?
			 errmsg("cannot PREPARE a transaction that has written tables of nvm_cmdlog where a function is promoted") :
			 has_ddl ?
			 errmsg("cannot PREPARE a transaction that has changed definitions where a function is promoted") :
			 errmsg("cannot PREPARE a transaction that has locked tables or rows where a function is promoted"),
			 errdetail("Calls are logged alone, and a restart would not know when such a transaction has ended."),
			 errhint("Use COMMIT, or take promotions back by nvm.demote_command().")));
}

void
nvm_mode_ddl_register(void)
{
	RegisterResourceReleaseCallback(uncount_when_locks_are_gone, NULL);
}
