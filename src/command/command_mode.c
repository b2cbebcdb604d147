/*-------------------------------------------------------------------------
 *
 * command_mode.c
 *	  The mode of a database: are calls logged beside rows, by values, or alone?
 *
 * README.md, "Modes", has the protocol.  A mode lies in shared memory, and begins as unknown
 * with each start.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "command/command_impl.h"
#include "command/nvm_command.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"

typedef struct DatabaseMode
{
	Oid			database;		/* key */
	pg_atomic_uint32 mode;		/* NvmMode */
} DatabaseMode;

static HTAB *modes = NULL;
static LWLock *modes_lock = NULL;

/* of the session's database; NULL: not looked for, or it has none */
static DatabaseMode *mine = NULL;

/* ---- shared memory ---- */

Size
nvm_command_modes_size(int max_databases)
{
	return hash_estimate_size(max_databases, sizeof(DatabaseMode));
}

void
nvm_command_modes_startup(int max_databases, LWLock *lock)
{
	HASHCTL		ctl = {.keysize = sizeof(Oid),.entrysize = sizeof(DatabaseMode)};

	modes_lock = lock;
	modes = ShmemInitHash("nvm command modes", max_databases, max_databases, &ctl,
						  HASH_ELEM | HASH_BLOBS);
}

/*
 * That of the session's database; made if `make`.  NULL: there is none, or no room.
 */
static DatabaseMode *
my_mode(bool make)
{
	bool		found;

	if (likely(mine != NULL) || !OidIsValid(MyDatabaseId))
		return mine;
	LWLockAcquire(modes_lock, make ? LW_EXCLUSIVE : LW_SHARED);
	mine = hash_search(modes, &MyDatabaseId, make ? HASH_ENTER_NULL : HASH_FIND, &found);
	if (mine != NULL && make && !found)
		pg_atomic_init_u32(&mine->mode, NVM_MODE_UNKNOWN);
	LWLockRelease(modes_lock);
	return mine;
}

/* ---- what sessions ask ---- */

NvmMode
nvm_command_mode(void)
{
	DatabaseMode	   *m = my_mode(false);

	return m == NULL ? NVM_MODE_UNKNOWN : (NvmMode) pg_atomic_read_u32(&m->mode);
}

/*
 * A call of a registered function begins in a database of which nothing is known yet.
 */
void
nvm_mode_call_begins(void)
{
	uint32		unknown = NVM_MODE_UNKNOWN;

	if (likely(nvm_command_mode() != NVM_MODE_UNKNOWN))
		return;
	if (my_mode(true) != NULL)
		pg_atomic_compare_exchange_u32(&mine->mode, &unknown,
									   nvm_command_any_promoted() ? NVM_MODE_ALONE : NVM_MODE_SHADOW);
}

/*
 * The record of a transaction of calls begins.  False: it is one of values.
 */
bool
nvm_mode_of_record(bool all_promoted, bool *alone)
{
	NvmMode		mode = nvm_command_mode();

	*alone = mode == NVM_MODE_ALONE && all_promoted;
	return mode == NVM_MODE_SHADOW || *alone;
}

/*
 * A function of the database is being promoted.
 */
void
nvm_command_promote(void)
{
	if (my_mode(true) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many databases have registered functions"),
				 errhint("Increase nvm.max_commands and restart the server.")));
	pg_atomic_write_u32(&mine->mode, NVM_MODE_ALONE);
}
