/*-------------------------------------------------------------------------
 *
 * xact_storage.c
 *	  Storages of the current transaction: made, ended, found.
 *
 * A storage is a directory entry of the pool with begin and end stamps of its
 * own.  So the same rule as for rows decides CREATE, DROP, TRUNCATE and
 * rewrites, also across a crash.  The undo log takes them back on ROLLBACK.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "compat/nvm_compat.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"
#include "pool/nvm_region.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"
#include "xact/xact_impl.h"

/*
 * ERROR unless nvm storage can be used in this process now.
 */
void
nvm_table_require(void)
{
	if (NvmPool == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("nvm tables need shared_preload_libraries = 'pg_nvm'"),
				 errdetail("The library was loaded by this session only, so the persistent-memory pool is not mapped."),
				 errhint("Add pg_nvm to shared_preload_libraries in postgresql.conf and restart the server.")));

	nvm_pool_require();

	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("nvm tables cannot be used while the server is in recovery"),
				 errdetail("Their rows are not part of the WAL, so a standby does not have them."),
				 errhint("Connect to the primary server.")));

	nvm_wbl_resolve();
}

/*
 * The directory key of a storage.  Relation file numbers are unique in a
 * database and tablespace except for temporary relations, which several
 * backends may give the same number: for them the backend is part of the key.
 *
 * The database's default tablespace is 0, as in pg_class.  So it may change
 * without us, by ALTER DATABASE and in a copy of the database.
 */
void
nvm_storage_own_key(Relation rel, const NvmLocator *locator, NvmStorageKey *key)
{
	memset(key, 0, sizeof(*key));
	key->database = NvmLocatorDb(*locator);
	key->tablespace = NvmLocatorSpc(*locator) == MyDatabaseTableSpace ?
		InvalidOid : NvmLocatorSpc(*locator);
	key->relnumber = NvmLocatorRel(*locator);
	if (RelationUsesLocalBuffers(rel))
		key->relnumber |= (uint64) (uint32) (rel->rd_backend + 1) << 32;
}

void
nvm_storage_key(Relation rel, const NvmLocator *locator, NvmStorageKey *key)
{
	nvm_storage_own_key(rel, locator, key);
	if (unlikely(nvm_storage_redirected))
		nvm_storage_redirect_key(rel, key);
}

uint32
nvm_storage_find(Relation rel, NvmStorageKey *key)
{
	NvmLocator	locator = NvmRelLocator(rel);
	NvmStorageKey local;

	if (key == NULL)
		key = &local;
	nvm_storage_key(rel, &locator, key);
	return nvm_dir_lookup(key);
}

/* access methods whose tables lie in the volatile region */
static struct
{
	const struct TableAmRoutine *routine;
	bool		is_logged;
}			volatile_methods[4];
static int	nvolatile_methods = 0;

/*
 * See nvm_storage.h.
 */
void
nvm_storage_register_volatile(const struct TableAmRoutine *routine, bool is_logged)
{
	if (nvolatile_methods == lengthof(volatile_methods))
		elog(ERROR, "too many access methods");
	volatile_methods[nvolatile_methods].routine = routine;
	volatile_methods[nvolatile_methods++].is_logged = is_logged;
}

/* the one whose transactions may be replayed by their calls */
static const struct TableAmRoutine *commands_method = NULL;

/*
 * See nvm_storage.h.
 */
void
nvm_storage_register_commands(const struct TableAmRoutine *routine)
{
	commands_method = routine;
}

#define REGION_FLAGS	(NVM_DIR_VOLATILE | NVM_DIR_LOGGED)

/*
 * The flags that say in which region a storage is to be, and whether the log has the
 * rows.  An index follows the storage that its table has: that was made when the
 * access method may have returned another routine, and an index must not outlive the
 * rows, nor they it.
 */
static uint32
region_flags(Relation table, uint32 kind)
{
	if (kind == NVM_DIR_KIND_INDEX)
	{
		NvmLocator	locator = NvmRelLocator(table);
		NvmStorageKey key;
		uint32		dir;

		nvm_storage_key(table, &locator, &key);
		dir = nvm_dir_lookup(&key);
		if (dir != 0)
			return nvm_dir_entry(dir)->flags & REGION_FLAGS;
	}
	for (int i = 0; i < nvolatile_methods; i++)
	{
		if (table->rd_tableam != volatile_methods[i].routine)
			continue;
		if (!volatile_methods[i].is_logged)
			return NVM_DIR_VOLATILE;
		if (nvm_regions[NVM_REGION_VOLATILE].max_chunks == 0)
			nvm_region_is_missing();
		if (kind == NVM_DIR_KIND_TABLE && table->rd_tableam == commands_method)
			return REGION_FLAGS | NVM_DIR_COMMANDS;
		return REGION_FLAGS;
	}
	return 0;
}

/*
 * See nvm_storage.h.
 */
void
nvm_storage_form(Relation rel, Relation table, uint32 kind, char persistence,
				 NvmStorageForm *form)
{
	memset(form, 0, sizeof(*form));
	form->kind = kind;
	if (persistence == RELPERSISTENCE_UNLOGGED)
		form->flags = NVM_DIR_UNLOGGED;
	else if (persistence == RELPERSISTENCE_TEMP)
	{
		form->flags = NVM_DIR_TEMP;
		form->temp_owner = (uint32) rel->rd_backend;
	}
	form->flags |= region_flags(table, kind);
	if (persistence != RELPERSISTENCE_PERMANENT)
		form->flags &= ~(NVM_DIR_LOGGED | NVM_DIR_COMMANDS);
	if (kind == NVM_DIR_KIND_INDEX)
		form->relation = RelationGetRelid(rel);
}

/*
 * See nvm_storage.h.
 */
void
nvm_storage_require_rows(uint32 dir, const char *name)
{
	const NvmDirEntry *entry = nvm_dir_entry(dir);

	if ((entry->flags & NVM_DIR_VOLATILE) == 0)
		return;
	/* its rows are in the log, and nobody can bring them back */
	if ((entry->flags & NVM_DIR_LOGGED) != 0 && !nvm_log_is_on)
		nvm_region_is_missing();
	nvm_log_require_open(dir, entry->creation_id, name);
}

/*
 * See nvm_storage.h.
 */
void
nvm_storage_require_open(Relation rel)
{
	NvmLocator	locator = NvmRelLocator(rel);
	NvmStorageKey key;
	uint32		dir;

	if (likely(nvm_log_is_whole()))
		return;
	nvm_storage_key(rel, &locator, &key);
	dir = nvm_dir_lookup(&key);
	if (dir != 0)
		nvm_storage_require_rows(dir, RelationGetRelationName(rel));
}

/*
 * See nvm_storage.h.
 */
bool
nvm_storage_is_being_rebuilt(uint32 dir)
{
	const NvmDirEntry *entry = nvm_dir_entry(dir);

	return (entry->flags & NVM_DIR_VOLATILE) != 0 &&
		!nvm_log_is_open(dir, entry->creation_id) &&
		nvm_log_rebuild_state() != NVM_LOG_FAILED;
}

/*
 * See nvm_storage.h.
 */
bool
nvm_storage_is_open(uint32 dir)
{
	const NvmDirEntry *entry = nvm_dir_entry(dir);

	if ((entry->flags & NVM_DIR_VOLATILE) == 0)
		return true;
	return nvm_regions[NVM_REGION_VOLATILE].max_chunks > 0 &&
		((entry->flags & NVM_DIR_LOGGED) == 0 || nvm_log_is_on) &&
		nvm_log_is_open(dir, entry->creation_id);
}

/*
 * See nvm_storage.h.
 */
void
nvm_storage_require_region(uint32 flags)
{
	if ((flags & NVM_DIR_VOLATILE) == 0)
		return;
	if ((flags & NVM_DIR_LOGGED) != 0 && !nvm_log_is_on)
		nvm_region_is_missing();
	if (nvm_log_is_on)
		nvm_log_require_opening();
}

/*
 * See nvm_storage.h.
 */
const char *
nvm_storage_why_unavailable(void)
{
	if (nvm_regions[NVM_REGION_VOLATILE].max_chunks == 0)
		return nvm_memory_limit == 0 ? "nvm.memory_limit is 0." :
			"The server has no address space for them, or no memory. The server log says why.";
	if (nvm_log_is_on && nvm_log_rebuild_state() == NVM_LOG_FAILED)
		return "They could not be rebuilt from the log. nvm.log_recovery says why.";
	return NULL;
}

/*
 * End storage `dir` in the current transaction, unless that was done.  Nothing
 * is freed before the transaction is decided.
 *
 * An end may be there already, of a transaction that was rolled back after it
 * was prepared, or that is in a gap.  A process that clears that end leaves
 * ours alone.
 */
void
nvm_storage_end(uint32 dir)
{
	NvmStamp	stamp = nvm_xact_stamp(NVM_REGION_POOL);

	/* else a savepoint could take back what was done before it */
	if (nvm_dir_entry(dir)->end == stamp)
		return;

	/* first the undo entry: clearing an end that was not set does nothing */
	nvm_undo_add(NVM_UNDO_DIR_END, dir, 0, 0);
	nvm_dir_set_end(dir, stamp);
}

/*
 * Does a clean stop keep its rows?  The recovery worker does that, which there is once the log
 * has begun.
 */
static bool
is_kept(const NvmStorageForm *form)
{
	return form->kind == NVM_DIR_KIND_TABLE && (form->flags & NVM_DIR_VOLATILE) != 0 &&
		(form->flags & NVM_DIR_UNLOGGED) != 0 && nvm_log_is_on;
}

/*
 * Make a storage of the current transaction: an entry of the directory, and
 * the undo of it.
 */
uint32
nvm_storage_make(const NvmStorageKey *key, const NvmStorageForm *form)
{
	uint32		dir;

	if ((form->flags & NVM_DIR_LOGGED) != 0 || is_kept(form))
		nvm_log_require_begun();

	/*
	 * The first row may come in parallel mode, which makes no stamp.  Without
	 * memory for the region there will be none.
	 */
	if ((form->flags & NVM_DIR_VOLATILE) != 0 && nvm_regions[NVM_REGION_VOLATILE].max_chunks > 0)
		(void) nvm_xact_stamp(NVM_REGION_VOLATILE);
	dir = nvm_dir_create(key, form, nvm_xact_stamp(NVM_REGION_POOL));
	PG_TRY();
	{
		nvm_undo_add(NVM_UNDO_DIR_CREATE, dir, 0, 0);
	}
	PG_CATCH();
	{
		/*
		 * out of memory: no other process would know that the storage has to
		 * go
		 */
		nvm_storage_reclaim(dir);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return dir;
}

/*
 * See nvm_storage.h.  Takes storage_lock, which keeps the gap collector out.
 */
void
nvm_storage_empty(uint32 dir)
{
	LWLockAcquire(NvmWbl->storage_lock, LW_EXCLUSIVE);
	nvm_dir_empty(dir);
	nvm_dir_entry(dir)->all_visible = 0;
	LWLockRelease(NvmWbl->storage_lock);
}

bool
nvm_storage_is_table(Relation rel)
{
	return nvm_undo_ops->is_table(rel);
}
