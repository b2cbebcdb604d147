/*-------------------------------------------------------------------------
 *
 * command_mode.c
 *	  The mode of a database: are calls logged beside rows, by values, or alone?
 *
 * README.md, "Modes", has the protocol.  Here is what sessions read, and what the checkpointer
 * does; DDL and promotions are in command_mode_ddl.c.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "command/command_impl.h"
#include "command/nvm_command.h"
#include "compat/nvm_compat.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"
#include "utils/inval.h"

NvmModesShared *nvm_modes = NULL;
HTAB	   *nvm_mode_entries = NULL;
LWLock	   *nvm_modes_lock = NULL;

/* of the session's database; NULL: not looked for, or there is none */
static NvmDatabaseMode *mine = NULL;

/* the epoch when the transaction's first call began; 0: it has called none */
static uint64 noted_epoch = 0;

/* ---- shared memory ---- */

Size
nvm_command_modes_size(int max_databases)
{
	return add_size(MAXALIGN(sizeof(NvmModesShared)),
					hash_estimate_size(max_databases, sizeof(NvmDatabaseMode)));
}

void
nvm_command_modes_startup(int max_databases, LWLock *lock)
{
	HASHCTL		ctl = {.keysize = sizeof(Oid),.entrysize = sizeof(NvmDatabaseMode)};
	bool		found;

	nvm_modes_lock = lock;
	nvm_modes = ShmemInitStruct("nvm command modes shared", sizeof(NvmModesShared), &found);
	if (!found)
		memset(nvm_modes, 0, sizeof(*nvm_modes));
	nvm_mode_entries = ShmemInitHash("nvm command modes", max_databases, max_databases, &ctl,
									 HASH_ELEM | HASH_BLOBS);
}

/*
 * Of a database that has none yet.  The lock is held.
 */
static void
reset_mode(NvmDatabaseMode *m)
{
	pg_atomic_init_u32(&m->mode, NVM_MODE_UNKNOWN);
	pg_atomic_init_u64(&m->epoch, 1);
	m->nddl = 0;
	m->armed = m->arming = m->told = m->misfit = false;
	/* nobody has read "alone" since the start */
	m->quiet = true;
	m->covered = nvm_modes->usable > 0 || nvm_modes->log_is_known;
	m->begun = 0;
	m->was_quiet = false;
	m->root = InvalidOid;
}

/*
 * See command_impl.h.
 */
NvmDatabaseMode *
nvm_my_mode(bool make)
{
	bool		found;

	if (likely(mine != NULL) || !OidIsValid(MyDatabaseId))
		return mine;
	LWLockAcquire(nvm_modes_lock, make ? LW_EXCLUSIVE : LW_SHARED);
	mine = hash_search(nvm_mode_entries, &MyDatabaseId, make ? HASH_ENTER_NULL : HASH_FIND, &found);
	if (mine != NULL && make && !found)
		reset_mode(mine);
	LWLockRelease(nvm_modes_lock);
	return mine;
}

/*
 * The database is dropped.
 */
void
nvm_command_mode_forget(Oid database)
{
	LWLockAcquire(nvm_modes_lock, LW_EXCLUSIVE);
	(void) hash_search(nvm_mode_entries, &database, HASH_REMOVE, NULL);
	LWLockRelease(nvm_modes_lock);
}

/* ---- what sessions ask ---- */

static bool (*tables_fit) (void) = NULL;

/*
 * See nvm_command.h.
 */
void
nvm_command_register_fit(bool (*function) (void))
{
	tables_fit = function;
}

/*
 * See nvm_command.h.
 */
NvmMode
nvm_command_mode(void)
{
	NvmDatabaseMode *m = nvm_my_mode(false);

	return m == NULL ? NVM_MODE_UNKNOWN : (NvmMode) pg_atomic_read_u32(&m->mode);
}

/*
 * See nvm_command.h.
 */
bool
nvm_command_mode_info(Oid database, NvmModeInfo *info)
{
	NvmDatabaseMode *m;
	bool		found;

	LWLockAcquire(nvm_modes_lock, LW_SHARED);
	m = hash_search(nvm_mode_entries, &database, HASH_FIND, NULL);
	found = m != NULL && pg_atomic_read_u32(&m->mode) != NVM_MODE_UNKNOWN;
	if (found)
	{
		info->mode = (NvmMode) pg_atomic_read_u32(&m->mode);
		info->armed = m->armed;
		info->nddl = m->nddl + nvm_modes->nshared;
		info->covered = m->covered;
	}
	LWLockRelease(nvm_modes_lock);
	return found;
}

const char *
nvm_command_mode_name(NvmMode mode)
{
	static const char *const names[] = {"unknown", "shadow", "switching", "alone"};

	return names[mode];
}

/*
 * See nvm_command.h.  With no function promoted any more there may still be calls alone that a
 * restart would need.  An earlier version may have run since functions were promoted, and have made
 * what does not fit.
 */
NvmMode
nvm_command_find_mode(void)
{
	NvmDatabaseMode *m;
	NvmMode		mode = nvm_command_mode();
	bool		promoted;
	bool		misfit;
	bool		ask = false;
	Oid			root;

	if (likely(mode != NVM_MODE_UNKNOWN) || !nvm_command_any() || !nvm_lanes_exist())
		return mode;
	promoted = nvm_command_any_promoted();
	m = nvm_my_mode(true);
	if (m == NULL)
		return mode;
	misfit = promoted && nvm_log_is_on && tables_fit != NULL && !tables_fit();
	root = nvm_lanes_root();
	LWLockAcquire(nvm_modes_lock, LW_EXCLUSIVE);
	m->root = root;
	if (pg_atomic_read_u32(&m->mode) == NVM_MODE_UNKNOWN)
	{
		ask = promoted || !m->covered;
		m->armed = promoted && !misfit;
		m->misfit = misfit;
		pg_atomic_write_u32(&m->mode, ask ? NVM_MODE_SWITCHING : NVM_MODE_SHADOW);
	}
	LWLockRelease(nvm_modes_lock);
	if (ask)
		nvm_log_ask_checkpoint(false);
	return nvm_command_mode();
}

/*
 * An outermost call begins, if it is that of a registered function.  The first one of a
 * transaction notes the epoch, and then sees all that has changed up to there.
 */
void
nvm_mode_call_begins(void)
{
	NvmMode		mode = nvm_command_find_mode();

	if (noted_epoch != 0 || mine == NULL)
		return;
	noted_epoch = pg_atomic_read_u64(&mine->epoch);
	pg_memory_barrier();
	if (mode != NVM_MODE_SHADOW)
		AcceptInvalidationMessages();
}

/*
 * See command_impl.h.  The transaction has the root.
 */
bool
nvm_mode_of_record(bool all_promoted, bool *alone)
{
	NvmMode		mode;

	pg_memory_barrier();
	mode = nvm_command_mode();
	*alone = mode == NVM_MODE_ALONE && all_promoted &&
		noted_epoch == pg_atomic_read_u64(&mine->epoch);
	return mode == NVM_MODE_SHADOW || *alone;
}

void
nvm_mode_forget(void)
{
	noted_epoch = 0;
}

/*
 * See command_impl.h.
 */
void
nvm_mode_settle(NvmDatabaseMode *m)
{
	if (m->nddl > 0 || pg_atomic_read_u32(&m->mode) != NVM_MODE_SWITCHING)
		return;
	m->armed |= m->arming;
	m->arming = false;
	if (!m->armed && m->covered && !m->misfit)
		pg_atomic_write_u32(&m->mode, NVM_MODE_SHADOW);
}

/* ---- the checkpointer ---- */

/*
 * See NvmCheckpointWatch.
 */
static void
checkpoint_begins(void)
{
	HASH_SEQ_STATUS seq;
	NvmDatabaseMode *m;

	LWLockAcquire(nvm_modes_lock, LW_EXCLUSIVE);
	hash_seq_init(&seq, nvm_mode_entries);
	while ((m = hash_seq_search(&seq)) != NULL)
	{
		bool		switching = pg_atomic_read_u32(&m->mode) == NVM_MODE_SWITCHING;

		m->was_quiet = m->quiet;
		m->begun = switching && m->armed && m->nddl == 0 && nvm_modes->nshared == 0 ?
			pg_atomic_read_u64(&m->epoch) : 0;
	}
	LWLockRelease(nvm_modes_lock);
}

/*
 * Functions and labels that calls need may lie in WAL that nobody has waited for.
 */
static void
checkpoint_usable(void)
{
	HASH_SEQ_STATUS seq;
	NvmDatabaseMode *m;

	NVM_FAILPOINT("mode-usable");
	XLogFlush(NvmWalEnd());
	NVM_FAILPOINT("mode-flushed");
	LWLockAcquire(nvm_modes_lock, LW_EXCLUSIVE);
	nvm_modes->usable++;
	hash_seq_init(&seq, nvm_mode_entries);
	while ((m = hash_seq_search(&seq)) != NULL)
	{
		/* nobody else goes over to "alone": so it was not in between either */
		m->covered |= m->was_quiet && pg_atomic_read_u32(&m->mode) != NVM_MODE_ALONE;
		nvm_mode_settle(m);
		if (m->begun == 0 || m->begun != pg_atomic_read_u64(&m->epoch) ||
			pg_atomic_read_u32(&m->mode) != NVM_MODE_SWITCHING)
			continue;
		m->quiet = m->covered = false;
		pg_atomic_write_u32(&m->mode, NVM_MODE_ALONE);
	}
	LWLockRelease(nvm_modes_lock);
}

/*
 * See NvmCheckpointWatch.
 */
static void
log_is_known(const uint32 *databases, int n)
{
	HASH_SEQ_STATUS seq;
	NvmDatabaseMode *m;
	bool		found;

	LWLockAcquire(nvm_modes_lock, LW_EXCLUSIVE);
	hash_seq_init(&seq, nvm_mode_entries);
	while ((m = hash_seq_search(&seq)) != NULL)
	{
		m->told = false;
		m->covered |= m->quiet;
	}
	for (int i = 0; i < n; i++)
	{
		Oid			database = databases[i];

		m = hash_search(nvm_mode_entries, &database, HASH_ENTER_NULL, &found);
		if (m == NULL)
			break;
		if (!found)
			reset_mode(m);
		m->told = true;
		m->covered = false;
	}
	nvm_modes->log_is_known = m != NULL || n == 0;
	hash_seq_init(&seq, nvm_mode_entries);
	while ((m = hash_seq_search(&seq)) != NULL)
		nvm_mode_settle(m);
	LWLockRelease(nvm_modes_lock);
}

/*
 * In _PG_init.
 */
void
nvm_modes_register(void)
{
	static const NvmCheckpointWatch watch = {
		.begins = checkpoint_begins,
		.usable = checkpoint_usable,
		.log_is_known = log_is_known
	};

	nvm_log_register_checkpoint_watch(&watch);
	nvm_mode_ddl_register();
}
