/*-------------------------------------------------------------------------
 *
 * ddl.c
 *	  Creation, truncation and removal of a table's storage.
 *
 * A storage is a directory entry of the pool with begin and end stamps of its
 * own, so that CREATE, DROP, TRUNCATE and rewrites are decided by the same
 * rule as rows, also across a crash; the undo log takes them back on ROLLBACK.
 * Each storage also has an empty main fork, which costs nothing and gives us
 * PostgreSQL's own guarantees about relation file numbers: one is not handed
 * out again while its file exists, and pg_relation_filepath answers.
 *
 * An UNLOGGED storage needs no init fork: the main fork is empty anyway, and
 * the pool resets the storages marked NVM_DIR_UNLOGGED at the same moment, and
 * for the same reason, as PostgreSQL resets unlogged indexes.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/storage.h"
#include "catalog/toasting.h"
#include "compat/nvm_compat.h"
#include "miscadmin.h"
#include "storage/smgr.h"
#include "table/nvm_am.h"
#include "table/nvm_table.h"
#include "utils/lsyscache.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"

/*
 * End storage `dir` in the current transaction.  Nothing is freed before its
 * decision.
 */
void
nvm_ddl_end_storage(uint32 dir)
{
	NvmStamp	stamp = nvm_xact_stamp();

	/* first the undo entry: clearing an end that was not set does nothing */
	nvm_undo_add(NVM_UNDO_DIR_END, dir, 0, 0);
	nvm_dir_set_end(dir, stamp);
}

/*
 * Make a storage for rel at *newlocator, and end the one that rel leaves, if
 * any: TRUNCATE and the like come here with the old locator still in rel.
 */
void
nvm_relation_set_new_filelocator(Relation rel, const NvmLocator *newlocator,
								 char persistence, TransactionId *freezeXid,
								 MultiXactId *minmulti)
{
	NvmLocator	oldlocator = NvmRelLocator(rel);
	NvmStorageKey key;
	SMgrRelation srel;
	uint32		flags = 0;
	uint32		owner = 0;
	uint32		dir;

	nvm_table_require();

	/* as heap does: nobody older can put rows in here */
	*freezeXid = RecentXmin;
	*minmulti = GetOldestMultiXactId();

	if (NvmLocatorRel(oldlocator) != NvmLocatorRel(*newlocator) ||
		NvmLocatorSpc(oldlocator) != NvmLocatorSpc(*newlocator))
	{
		nvm_storage_key(rel, &oldlocator, &key);
		dir = nvm_dir_lookup(&key);
		if (dir != 0)
			nvm_ddl_end_storage(dir);
	}

	srel = RelationCreateStorage(*newlocator, persistence, true);
	smgrclose(srel);

	if (persistence == RELPERSISTENCE_UNLOGGED)
		flags |= NVM_DIR_UNLOGGED;
	else if (persistence == RELPERSISTENCE_TEMP)
	{
		flags |= NVM_DIR_TEMP;
		owner = (uint32) rel->rd_backend;
	}

	nvm_storage_key(rel, newlocator, &key);
	dir = nvm_dir_create(&key, flags, owner, nvm_xact_stamp());
	PG_TRY();
	{
		nvm_undo_add(NVM_UNDO_DIR_CREATE, dir, 0, 0);
	}
	PG_CATCH();
	{
		/* out of memory: nobody else would know that it has to go */
		nvm_storage_reclaim(dir);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * Remove all rows at once, for a storage made in the current subtransaction
 * (TRUNCATE after CREATE) and for ON COMMIT DELETE ROWS of temporary tables.
 *
 * The storage is emptied in place.  That needs no undo: what made the storage
 * is undone with it, and a temporary table has no rows that survive the
 * transaction, whatever its outcome.  It needs no protection from a crash
 * either, for the same reasons.  (An entry of its own, as TRUNCATE makes in
 * the general case, is not possible: ON COMMIT actions run after the
 * transaction has declared what it wrote.)  Undo entries of rows that were
 * here find no block and do nothing.
 */
void
nvm_relation_nontransactional_truncate(Relation rel)
{
	NvmRelCache *cache = nvm_rel_cache(rel);

	if (nvm_rel_nblocks(cache->state) == 0)
		return;
	LWLockAcquire(NvmWbl->storage_lock, LW_EXCLUSIVE);
	nvm_dir_empty(cache->dir);
	LWLockRelease(NvmWbl->storage_lock);
	nvm_rel_cache_drop(rel);
}

/*
 * ALTER TABLE ... SET TABLESPACE.
 */
void
nvm_relation_copy_data(Relation rel, const NvmLocator *newlocator)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot move nvm table \"%s\" to another tablespace",
					RelationGetRelationName(rel)),
			 errdetail("The rows of nvm tables are in the persistent-memory pool, whatever their tablespace."),
			 errhint("Create a table in the other tablespace and copy the rows with INSERT ... SELECT.")));
}

/*
 * The storage of relation relid, 0 if it has none of ours.  The caller holds a
 * lock on it.
 *
 * A pool that is not available does not stand in the way of DROP, or a lost
 * pool would leave tables that nobody can get rid of.
 */
uint32
nvm_ddl_storage(Oid relid)
{
	char		relkind = get_rel_relkind(relid);
	Relation	rel;
	NvmStorageKey key;
	NvmLocator	locator;
	uint32		dir = 0;

	if (relkind != RELKIND_RELATION && relkind != RELKIND_MATVIEW)
		return 0;
	rel = try_relation_open(relid, NoLock);
	if (rel == NULL)
		return 0;

	if (nvm_relation_is_nvm(rel))
	{
		if (NvmPool == NULL || NvmPool->status != NVM_POOL_OPEN)
			ereport(WARNING,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("storage of nvm table \"%s\" is not released",
							RelationGetRelationName(rel)),
					 errdetail("The persistent-memory pool is not available.")));
		else
		{
			nvm_table_require();
			locator = NvmRelLocator(rel);
			nvm_storage_key(rel, &locator, &key);

			/*
			 * None is no error: temporary tables of a crashed session, or of
			 * a pool that was replaced.
			 */
			dir = nvm_dir_lookup(&key);
		}
	}
	relation_close(rel, NoLock);
	return dir;
}

/*
 * Relation relid was created (OAT_POST_CREATE).  When SET ACCESS METHOD moves
 * rows from nvm to an access method that keeps wide values in a TOAST table,
 * the transient table needs one; core makes it only where the old table has
 * one.
 */
void
nvm_ddl_created_relation(Oid relid)
{
	Relation	rel;
	Relation	oldrel;
	Oid			rewritten = InvalidOid;
	bool		from_nvm;

	/*
	 * Nothing but the transient table of a rewrite is of interest.  The
	 * catalogs do not show the new relation yet, the relcache has it.
	 */
	rel = RelationIdGetRelation(relid);
	if (rel == NULL)
		return;
	if (rel->rd_tableam != NULL && !nvm_relation_is_nvm(rel) &&
		rel->rd_rel->relkind == RELKIND_RELATION)
		rewritten = rel->rd_rel->relrewrite;
	RelationClose(rel);
	if (!OidIsValid(rewritten))
		return;

	oldrel = try_relation_open(rewritten, NoLock);
	if (oldrel == NULL)
		return;
	from_nvm = nvm_relation_is_nvm(oldrel);
	relation_close(oldrel, NoLock);

	if (from_nvm)
	{
		CommandCounterIncrement();
		AlterTableCreateToastTable(relid, (Datum) 0, AccessExclusiveLock);
		CommandCounterIncrement();
	}
}

/*
 * For nvm_dir_walk: the live storages of a database (in a tablespace, unless
 * that is 0).  Collects ids if asked to, else counts those that outlive a
 * session.
 */
typedef struct DdlDatabaseWalk
{
	Oid			database;
	Oid			tablespace;
	bool		collect;
	List	   *ids;
	uint32		permanent;
} DdlDatabaseWalk;

static void
ddl_database_entry(uint32 id, NvmDirEntry *entry, void *arg)
{
	DdlDatabaseWalk *walk = (DdlDatabaseWalk *) arg;

	if (entry->begin == 0 || entry->end != 0 ||
		entry->database != walk->database ||
		(OidIsValid(walk->tablespace) && entry->tablespace != walk->tablespace) ||
		nvm_stamp_in_gap(entry->begin))
		return;
	if (walk->collect)
		walk->ids = lappend_int(walk->ids, (int) id);
	else if ((entry->flags & NVM_DIR_TEMP) == 0)
		walk->permanent++;
}

/*
 * Database `database` was dropped by the current transaction: so are its
 * storages.
 *
 * This is called when dropdb has come to its end, not from its OAT_DROP,
 * which precedes the check that nobody is connected: a session could create
 * tables after it and leave.  If we crash in between, the database is
 * one that can only be dropped again, and then we get here.
 */
void
nvm_ddl_drop_database(Oid database)
{
	DdlDatabaseWalk walk = {.database = database,.collect = true};
	ListCell   *lc;

	if (NvmPool == NULL || NvmPool->status != NVM_POOL_OPEN)
		return;

	nvm_table_require();
	nvm_dir_walk(ddl_database_entry, &walk);
	foreach(lc, walk.ids)
		nvm_ddl_end_storage((uint32) lfirst_int(lc));
	list_free(walk.ids);
}

/*
 * Has the database nvm tables (in that tablespace)?
 */
bool
nvm_ddl_database_in_use(Oid database, Oid tablespace)
{
	DdlDatabaseWalk walk = {.database = database,.tablespace = tablespace};

	if (NvmPool == NULL || NvmPool->status != NVM_POOL_OPEN)
		return false;
	nvm_dir_walk(ddl_database_entry, &walk);
	return walk.permanent > 0;
}
