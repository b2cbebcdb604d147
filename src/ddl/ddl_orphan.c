/*-------------------------------------------------------------------------
 *
 * ddl_orphan.c
 *	  nvm.drop_orphans(): storages whose relation is gone.
 *
 * While the server runs without the library, or without its pool, tables and
 * databases can be dropped all the same.  Their storages in the pool then
 * belong to nobody.  The catalogs say which storage belongs to which relation.
 * So this compares the catalogs with the directory, for the current database
 * and for databases that are no more.
 *
 * Why no storage is taken that somebody has or will have:
 *	1. The directory is read first: storages whose begin stamp is frozen, that
 *	   is, made by a transaction that every snapshot sees, and that have no end
 *	   stamp.  Storages that are made later, or by a transaction that is not
 *	   over (also a prepared one), are not looked at.
 *	2.  Then the catalogs, with a snapshot taken after that.  It sees the row
 *	of the transaction that made the storage, or of a later one.  A
 *	   transaction that takes the storage from its relation (DROP, TRUNCATE,
 *	   rewrites, SET TABLESPACE, DROP DATABASE) sets the end stamp before it
 *	   commits.
 *	3. Then the end stamp again, of the same use of the entry: without one,
 *	   nobody has taken the storage away, so a relation that had it would be in
 *	   that snapshot.  Without a relation nobody but ourselves can end it, and
 *	   a lock keeps a second one of us away until we are over.
 * The current transaction ends the storages that are found, like the storage
 * of a DROP TABLE.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "commands/defrem.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"

PG_FUNCTION_INFO_V1(nvm_drop_orphans);

#define ORPHAN_COLUMNS		4

/* a storage that may turn out to be nobody's */
typedef struct OrphanCandidate
{
	uint32		dir;
	uint64		creation;		/* of this use of the entry */
	NvmStorageKey key;
} OrphanCandidate;

/* what a relation of the current database uses */
typedef struct OrphanFile
{
	Oid			tablespace;		/* as in pg_class */
	Oid			relnumber;
} OrphanFile;

static void
orphan_candidate(uint32 id, NvmDirEntry *entry, void *arg)
{
	List	  **candidates = (List **) arg;
	OrphanCandidate *c;

	if (entry->begin == 0 || entry->end != 0 ||
		!nvm_stamp_is_frozen(entry->begin) || nvm_stamp_in_gap(entry->begin) ||
		(entry->flags & NVM_DIR_TEMP))
		return;
	c = palloc(sizeof(OrphanCandidate));
	c->dir = id;
	c->creation = entry->creation_id;
	c->key.database = entry->database;
	c->key.tablespace = entry->tablespace;
	c->key.relnumber = entry->relnumber;
	*candidates = lappend(*candidates, c);
}

/*
 * The files of this database's relations of any access method but the built-in
 * ones: ours may be known under any name, and an index of ours may say btree.
 */
static HTAB *
orphan_files_in_use(void)
{
	HASHCTL		ctl = {.keysize = sizeof(OrphanFile),.entrysize = sizeof(OrphanFile)};
	HTAB	   *files = hash_create("relation files", 256, &ctl, HASH_ELEM | HASH_BLOBS);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	Relation	rel = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);
		OrphanFile	file = {form->reltablespace, form->relfilenode};

		if ((form->relkind == RELKIND_RELATION || form->relkind == RELKIND_MATVIEW ||
			 form->relkind == RELKIND_INDEX) &&
			(form->relam >= FirstNormalObjectId ||
			 (form->relkind == RELKIND_INDEX && form->relam == BTREE_AM_OID)))
			(void) hash_search(files, &file, HASH_ENTER, NULL);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	UnregisterSnapshot(snapshot);
	return files;
}

/*
 * Is the database of that number gone?  The lock keeps it so, and keeps other
 * sessions in this function away from its storages.
 */
static bool
orphan_database_is_gone(Oid database)
{
	bool		exists;

	if (SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(database)))
		return false;
	LockSharedObject(DatabaseRelationId, database, 0, AccessExclusiveLock);
	exists = SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(database));
	if (exists)
		UnlockSharedObject(DatabaseRelationId, database, 0, AccessExclusiveLock);
	return !exists;
}

/*
 * Is a storage that is nobody's, according to the catalogs, still the same?
 */
static bool
orphan_is_unchanged(const OrphanCandidate *c)
{
	NvmDirEntry *entry = nvm_dir_entry(c->dir);

	return nvm_load(&entry->begin) != 0 && entry->creation_id == c->creation &&
		nvm_load(&entry->end) == 0;
}

static void
orphan_report(ReturnSetInfo *rsinfo, const OrphanCandidate *c)
{
	NvmRelState *state = &nvm_relstates[c->dir];
	Datum		values[ORPHAN_COLUMNS];
	bool		nulls[ORPHAN_COLUMNS] = {0};

	values[0] = ObjectIdGetDatum(c->key.database);
	values[1] = ObjectIdGetDatum(c->key.tablespace);
	values[2] = ObjectIdGetDatum((Oid) c->key.relnumber);
	values[3] = Int64GetDatum((int64) nvm_rel_bytes(state));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * nvm.drop_orphans(): a row for each storage that is dropped.
 */
Datum
nvm_drop_orphans(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *candidates = NIL;
	HTAB	   *files;
	ListCell   *lc;

	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to drop storages without a relation")));
	nvm_table_require();
	InitMaterializedSRF(fcinfo, 0);

	/* one of us at a time, to the end of the transaction */
	LockDatabaseObject(AccessMethodRelationId, get_table_am_oid("nvm", false), 0,
					   ShareUpdateExclusiveLock);
	nvm_dir_walk(orphan_candidate, &candidates);
	NVM_FAILPOINT("orphan-candidates");
	files = orphan_files_in_use();

	foreach(lc, candidates)
	{
		OrphanCandidate *c = lfirst(lc);
		OrphanFile	file = {c->key.tablespace, (Oid) c->key.relnumber};

		CHECK_FOR_INTERRUPTS();
		if (c->key.database == MyDatabaseId ?
			hash_search(files, &file, HASH_FIND, NULL) != NULL :
			!orphan_database_is_gone(c->key.database))
			continue;
		if (!orphan_is_unchanged(c))
			continue;
		orphan_report(rsinfo, c);
		nvm_storage_end(c->dir);
		NVM_FAILPOINT("orphan-ended");
	}
	hash_destroy(files);
	return (Datum) 0;
}
