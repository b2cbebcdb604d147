/*-------------------------------------------------------------------------
 *
 * storage_relation.c
 *	  Creation, truncation and removal of a table's storage.
 *
 * xact_storage.c makes storages part of the transaction.  Each storage also
 * has an empty main fork.  It costs nothing and gives us PostgreSQL's own
 * guarantees about relation file numbers: a number is not handed out again
 * while its file exists, and pg_relation_filepath answers.
 *
 * An UNLOGGED storage needs no init fork: the main fork is empty anyway.  The
 * pool resets the storages marked NVM_DIR_UNLOGGED at the same moment as
 * PostgreSQL resets unlogged indexes, and for the same reason.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/relation.h"
#include "access/xact.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_identity.h"
#include "catalog/pg_class.h"
#include "catalog/storage.h"
#include "command/nvm_command.h"
#include "compat/nvm_compat.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"
#include "row/nvm_relation.h"
#include "storage/nvm_storage_relation.h"
#include "storage/smgr.h"
#include "utils/lsyscache.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"

/* what ddl/ registered */
static NvmMovedFunction tell_moved = NULL;

void
nvm_storage_register_moved(NvmMovedFunction moved)
{
	tell_moved = moved;
}

/*
 * See nvm_storage_relation.h.  The old cluster's pool is of no use to the new
 * one: pg_upgrade carries over relation files only.
 */
void
nvm_storage_refuse_upgrade(void)
{
	if (IsBinaryUpgrade)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("pg_upgrade does not carry nvm tables over"),
				 errdetail("Their rows are in the persistent-memory pool, not in files of the old cluster."),
				 errhint("Save the nvm tables with pg_dump, DROP EXTENSION pg_nvm in each database of the old cluster, and restore the tables after the upgrade.")));
}

/*
 * Make a storage for rel at *newlocator, with its empty main fork.
 */
static uint32
ddl_make_relation_storage(Relation rel, const NvmLocator *newlocator,
						  char persistence)
{
	NvmStorageKey key;
	NvmStorageForm form;
	SMgrRelation srel;

	nvm_storage_form(rel, rel, NVM_DIR_KIND_TABLE, persistence, &form);
	nvm_storage_require_region(form.flags);
	/* nobody may have said so: TRUNCATE by a subscription is no statement */
	if ((form.flags & NVM_DIR_COMMANDS) != 0)
		nvm_command_ddl_comes();

	srel = RelationCreateStorage(*newlocator, persistence, true);
	smgrclose(srel);

	nvm_storage_key(rel, newlocator, &key);
	return nvm_storage_make(&key, &form);
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
	uint32		dir;

	nvm_storage_refuse_upgrade();
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
			nvm_storage_end(dir);
	}
	(void) ddl_make_relation_storage(rel, newlocator, persistence);
}

/*
 * Remove all rows at once, for a storage made in the current subtransaction
 * (TRUNCATE after CREATE) and for ON COMMIT DELETE ROWS of temporary tables.
 *
 * The storage is emptied in place.  That needs no undo: in the first case an
 * abort undoes the making of the storage, too; in the second the temporary
 * table has no rows that survive the transaction, whatever its outcome.  It
 * needs no protection from a crash either, for the same reasons.  (A new
 * directory entry, as TRUNCATE makes in the general case, is not possible: ON
 * COMMIT actions run after the transaction has declared what it wrote.) Undo
 * entries of rows that were here find no block and do nothing.
 */
void
nvm_relation_nontransactional_truncate(Relation rel)
{
	NvmRelCache *cache;

	nvm_index_hold_truncated(rel);
	cache = nvm_rel_cache(rel);
	if (nvm_rel_nblocks(cache->state) == 0)
		return;
	nvm_storage_empty(cache->dir);
	nvm_rel_cache_drop(rel);
}

/*
 * ALTER TABLE ... SET TABLESPACE: the relation gets a file number in the other
 * tablespace.  Indexes and open snapshots rely on the present TIDs.  So the
 * storage is copied as it is, within the pool.
 */
void
nvm_relation_copy_data(Relation rel, const NvmLocator *newlocator)
{
	uint32		from = nvm_rel_cache(rel)->dir;
	uint32		to;

	/*
	 * changes that a prepared transaction rolled back are in the gap: not
	 * copied
	 */
	nvm_twophase_settle();
	to = ddl_make_relation_storage(rel, newlocator, rel->rd_rel->relpersistence);
	nvm_storage_copy(from, to);
	nvm_storage_end(from);
	RelationDropStorage(rel);
	nvm_rel_cache_drop(rel);
	tell_moved(RelationGetRelid(rel));

	ereport(NOTICE,
			(errmsg("rows of nvm table \"%s\" stay in the persistent-memory pool",
					RelationGetRelationName(rel)),
			 errdetail("The tablespace is recorded in the catalogs; no row is moved to it.")));
}

/*
 * While the pool is not at hand, the page in the file tells whose an index is.  It is not
 * read if the table is not ours: DROP of what is PostgreSQL's must not need it.
 */
static bool
file_is_of_pool(Relation index)
{
	Relation	table = RelationIdGetRelation(index->rd_index->indrelid);
	bool		ours;

	if (table == NULL)
		return false;
	ours = nvm_relation_is_nvm(table) && nvm_index_has_failsafe(index);
	RelationClose(table);
	return ours;
}

/*
 * Is it a table or an index whose rows or entries lie in the pool?
 */
static bool
is_of_pool(Relation rel)
{
	if (rel->rd_rel->relkind != RELKIND_INDEX)
		return nvm_relation_is_nvm(rel);
	if (rel->rd_rel->relam != BTREE_AM_OID)
		return nvm_relation_is_btree(rel);
	if (NvmPool != NULL && NvmPool->status == NVM_POOL_OPEN &&
		pg_atomic_read_u32(&NvmWbl->resolved) != 0)
		return nvm_index_btree_storage(rel) != 0;
	return file_is_of_pool(rel);
}

/*
 * The storage of relation relid, 0 if it has none of ours.  The caller holds a
 * lock on it.
 *
 * A pool that is not available does not stand in the way of DROP: otherwise a
 * lost pool would leave tables that nobody can get rid of.
 */
uint32
nvm_storage_of(Oid relid)
{
	char		relkind = get_rel_relkind(relid);
	Relation	rel;
	uint32		dir = 0;

	if (relkind != RELKIND_RELATION && relkind != RELKIND_MATVIEW &&
		relkind != RELKIND_INDEX)
		return 0;
	rel = try_relation_open(relid, NoLock);
	if (rel == NULL)
		return 0;

	if (is_of_pool(rel))
	{
		bool		says_btree = rel->rd_rel->relam == BTREE_AM_OID;

		if (NvmPool == NULL || NvmPool->status != NVM_POOL_OPEN)
			ereport(WARNING,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg(relkind == RELKIND_INDEX ?
							"storage of index \"%s\" is not released" :
							"storage of nvm table \"%s\" is not released",
							RelationGetRelationName(rel)),
					 errdetail("The persistent-memory pool is not available.")));
		else
		{
			nvm_table_require();

			/*
			 * None is no error: temporary tables of a crashed session, or of
			 * a pool that was replaced.
			 */
			dir = says_btree ? nvm_index_btree_storage(rel) : nvm_storage_find(rel, NULL);
		}
	}
	relation_close(rel, NoLock);
	return dir;
}
