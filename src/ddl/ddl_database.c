/*-------------------------------------------------------------------------
 *
 * ddl_database.c
 *	  Whole databases: copied by CREATE DATABASE, dropped.
 *
 * Commands on databases work on files, and the pool is not among them.
 *
 * Copying.  CREATE DATABASE calls our hook when nobody else is connected to
 * the template, or can connect, and when the new database is in the catalog.
 * It has copied no file by then, so an error of ours leaves none behind.
 * Whatever the strategy, the new database's relations get the file numbers of
 * the template's.  The storages that are made belong to the transaction of
 * CREATE DATABASE, and go with it.
 *
 * ALTER DATABASE ... SET TABLESPACE has nothing to do here: the key of a
 * storage does not name the database's default tablespace (nvm_storage_key).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "ddl/nvm_ddl.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/nvm_storage_relation.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"
#include "xact/nvm_xact.h"

/*
 * For nvm_dir_walk: the live storages of a database, but those of temporary
 * tables if `permanent`.
 */
typedef struct DdlDatabaseWalk
{
	Oid			database;
	bool		permanent;
	List	   *ids;
} DdlDatabaseWalk;

static void
ddl_database_entry(uint32 id, NvmDirEntry *entry, void *arg)
{
	DdlDatabaseWalk *walk = (DdlDatabaseWalk *) arg;

	if (entry->begin == 0 || entry->database != walk->database ||
		nvm_stamp_in_gap(entry->begin) ||
		(entry->end != 0 && !nvm_stamp_in_gap(entry->end)) ||
		(walk->permanent && (entry->flags & NVM_DIR_TEMP)))
		return;
	walk->ids = lappend_int(walk->ids, (int) id);
}

static List *
ddl_database_storages(Oid database, bool permanent)
{
	DdlDatabaseWalk walk = {.database = database,.permanent = permanent};

	nvm_dir_walk(ddl_database_entry, &walk);
	return walk.ids;
}

/*
 * CREATE DATABASE is about to copy the files of `template` to `database`.
 * Every transaction that wrote in the template is over: the caller excludes
 * other sessions, PostgreSQL refuses a template with prepared transactions.
 * May ERROR, before any file is made.
 */
void
nvm_ddl_copy_database(const char *template_name, Oid template, Oid database)
{
	List	   *storages;
	ListCell   *lc;

	if (NvmPool == NULL || NvmPool->status != NVM_POOL_OPEN)
	{
		/* template0 has none */
		if (strcmp(template_name, "template0") != 0)
			ereport(WARNING,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("rows of nvm tables of database \"%s\", if it has any, are not copied",
							template_name),
					 errdetail("The persistent-memory pool is not available.")));
		return;
	}

	nvm_table_require();

	/*
	 * Settle prepared transactions that were finished.  After this, begins
	 * and ends that they rolled back are in the gap, whichever process goes
	 * on settling them.
	 */
	nvm_twophase_settle();
	storages = ddl_database_storages(template, true);
	if (storages == NIL)
		return;

	/* from here on no gap is dropped: see storage_copy.c */
	(void) nvm_xact_stamp(NVM_REGION_POOL);
	foreach(lc, storages)
	{
		uint32		from = (uint32) lfirst_int(lc);
		NvmDirEntry *entry = nvm_dir_entry(from);
		NvmStorageKey key = {template, entry->tablespace, entry->relnumber};
		NvmStorageForm form = {entry->kind, entry->flags, 0, entry->relation};

		CHECK_FOR_INTERRUPTS();
		nvm_storage_require_rows(from, NULL);
		/* an orphan must not become the newest of its key */
		if (nvm_dir_lookup(&key) != from)
			continue;
		key.database = database;
		nvm_storage_copy(from, nvm_storage_make(&key, &form));
		NVM_FAILPOINT("ddl-copied-storage");
	}
	list_free(storages);
}

/*
 * Called before DROP DATABASE, since the files will be gone when we look for
 * the storages.  ERROR if the storages cannot be dropped now, because what the
 * last stop left in doubt cannot be settled.
 */
void
nvm_ddl_before_drop_database(void)
{
	if (NvmPool != NULL && NvmPool->status == NVM_POOL_OPEN && !RecoveryInProgress())
		nvm_table_require();
}

/*
 * Database `database` was dropped by the current transaction: so are its
 * storages.
 *
 * This is called when dropdb has come to its end, not from its OAT_DROP.  That
 * event precedes the check that nobody is connected: a session could create
 * tables after it and leave.  A crash in between leaves a database that can
 * only be dropped again, and then we get here.
 */
void
nvm_ddl_drop_database(Oid database)
{
	List	   *storages;
	ListCell   *lc;

	if (NvmPool == NULL || NvmPool->status != NVM_POOL_OPEN)
		return;

	nvm_table_require();
	/* ends that a prepared transaction rolled back do not count */
	nvm_twophase_settle();
	storages = ddl_database_storages(database, false);
	foreach(lc, storages)
		nvm_storage_end((uint32) lfirst_int(lc));
	list_free(storages);
}
