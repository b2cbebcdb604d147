/*-------------------------------------------------------------------------
 *
 * ddl_index.c
 *	  Access method and storage of an index agree, whatever ALTER TABLE does.
 *
 * Most commands make and drop the storage of an index by ambuild and OAT_DROP.
 * The following do not.  Their indexes are put right in the same transaction,
 * when the command has come to its end:
 *
 *	ALTER COLUMN TYPE
 *		drops the indexes of the column and makes them anew from their
 *		definitions (ddl_recreate.c).  Where the type's bytes stay the same,
 *		the index of a constraint takes over the file of the old one and is not
 *		built.  Its storage would be the old one's, which ends with the
 *		command.  So it is built at the end.
 *	SET (persistence = ...) of an index
 *		changes the option only.  The index is built anew into a storage of that
 *		kind.
 *	SET TABLESPACE of an index
 *		gives it another file and copies the old one.  An index of ours that
 *		has another file and no storage is built anew.
 *	SET TABLESPACE of a table
 *		copies its rows under the TIDs that they have, and keeps the indexes.
 *		Rows that are inserted after that get TIDs that are free in the old
 *		storage, too.  If the transaction aborts, other rows get these TIDs,
 *		and the entries would lead there.  (Heap tables have the same problem.)
 *		So where the transaction goes on, or may do so (extended protocol), the
 *		indexes are built anew, whatever their method: an abort takes them away
 *		with the entries.
 *	DROP INDEX CONCURRENTLY
 *		calls OAT_DROP in its first transaction, when the index is still used.
 *		The storage is ended in its last one.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_identity.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "compat/nvm_compat_am.h"
#include "ddl/nvm_ddl.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_relation.h"
#include "storage/lmgr.h"
#include "storage/nvm_storage_relation.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "xact/nvm_storage.h"
#include "xact/nvm_xact.h"

/* a use of a directory entry */
typedef struct WatchedStorage
{
	uint32		dir;
	uint64		creation;
} WatchedStorage;

/* an index of ours that the command has dropped */
typedef struct WatchedDrop
{
	Oid			table;
	char	   *name;
	bool		says_btree;		/* it was btree's for the catalogs, too */
} WatchedDrop;

/* the innermost command that is being watched */
static NvmIndexWatch *watch = NULL;

/* ---- events ---- */

static WatchedStorage *
watched_storage(uint32 dir)
{
	WatchedStorage *s = palloc(sizeof(WatchedStorage));

	s->dir = dir;
	s->creation = nvm_dir_entry(dir)->creation_id;
	return s;
}

/*
 * A relation was made or altered (OAT_POST_CREATE, OAT_POST_ALTER).
 */
void
nvm_ddl_watch_relation(Oid relid)
{
	MemoryContext oldcontext;

	if (watch == NULL)
		return;
	oldcontext = MemoryContextSwitchTo(watch->context);
	watch->touched = list_append_unique_oid(watch->touched, relid);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * SET TABLESPACE has given table relid a copy of its storage.
 */
static void
watch_move(Oid relid)
{
	MemoryContext oldcontext;

	if (watch == NULL)
		return;
	oldcontext = MemoryContextSwitchTo(watch->context);
	watch->moved = lappend_oid(watch->moved, relid);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Was an index of ours of this name dropped from the table?  says_btree: one that was of
 * method btree.
 */
static WatchedDrop *
watched_drop(NvmIndexWatch *w, Relation index, bool says_btree)
{
	ListCell   *lc;

	foreach(lc, w->dropped)
	{
		WatchedDrop *drop = lfirst(lc);

		if (drop->says_btree == says_btree && drop->table == index->rd_index->indrelid &&
			strcmp(drop->name, RelationGetRelationName(index)) == 0)
			return drop;
	}
	return NULL;
}

/*
 * An index of btree was made (OAT_POST_CREATE).
 */
void
nvm_ddl_created_btree(Oid indexid)
{
	bool		again = false;
	Relation	index;

	if (watch != NULL && watch->dropped != NIL)
	{
		CommandCounterIncrement();
		index = index_open(indexid, NoLock);
		again = watched_drop(watch, index, true) != NULL;
		index_close(index, NoLock);
		if (!again)
			nvm_ddl_recreated_index(watch, indexid);
	}
	nvm_index_created(indexid, again);
}

/*
 * Index relid, whose storage is dir (0: it has none), is being dropped
 * (OAT_DROP).
 */
void
nvm_ddl_drop_index(Oid relid, uint32 dir, int dropflags)
{
	MemoryContext oldcontext;
	Relation	index;

	if ((dropflags & PERFORM_DELETION_CONCURRENTLY) != 0)
	{
		/* unknown to a command that we do not see: an orphan then */
		if (watch == NULL || dir == 0)
			return;
		oldcontext = MemoryContextSwitchTo(watch->context);
		watch->storages = lappend(watch->storages, watched_storage(dir));
		MemoryContextSwitchTo(oldcontext);
		return;
	}
	if (dir != 0)
		nvm_storage_end(dir);
	if (watch == NULL)
		return;

	index = relation_open(relid, NoLock);
	if (index->rd_index != NULL &&
		(index->rd_rel->relam == BTREE_AM_OID ? dir != 0 : nvm_relation_is_btree(index)))
	{
		WatchedDrop *drop;

		oldcontext = MemoryContextSwitchTo(watch->context);
		drop = palloc0(sizeof(WatchedDrop));
		drop->table = index->rd_index->indrelid;
		drop->name = pstrdup(RelationGetRelationName(index));
		drop->says_btree = index->rd_rel->relam == BTREE_AM_OID;
		watch->dropped = lappend(watch->dropped, drop);
		MemoryContextSwitchTo(oldcontext);
	}
	relation_close(index, NoLock);
}

/* ---- indexes that become btree's ---- */

/*
 * LIKE ... INCLUDING INDEXES may have cloned an index of ours for a table that
 * is not ours.  Or a dump of nvm tables is restored with tables of another
 * access method.  Such an index becomes btree's.  Returns the statement or a
 * changed copy.
 */
PlannedStmt *
nvm_ddl_clone_index(PlannedStmt *pstmt)
{
	IndexStmt  *stmt = (IndexStmt *) pstmt->utilityStmt;
	Oid			relid;
	Oid			relam;
	char		relkind;
	HeapTuple	tuple;
	ListCell   *lc;

	if (!IsA(stmt, IndexStmt) || stmt->relation == NULL ||
		strcmp(stmt->accessMethod, NVM_BTREE_NAME) != 0)
		return pstmt;
	relid = RangeVarGetRelid(stmt->relation, NoLock, true);
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	if (!HeapTupleIsValid(tuple))
		return pstmt;
	relam = ((Form_pg_class) GETSTRUCT(tuple))->relam;
	relkind = ((Form_pg_class) GETSTRUCT(tuple))->relkind;
	ReleaseSysCache(tuple);
	if ((relkind != RELKIND_RELATION && relkind != RELKIND_MATVIEW) ||
		nvm_access_method_is_ours(relam))
		return pstmt;
	if (!stmt->transformed)
		ereport(WARNING,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("index on \"%s\" is made with access method \"%s\"",
						stmt->relation->relname, DEFAULT_INDEX_TYPE),
				 errdetail("Access method \"%s\" is for indexes of nvm tables.",
						   NVM_BTREE_NAME)));

	pstmt = copyObject(pstmt);
	stmt = (IndexStmt *) pstmt->utilityStmt;
	stmt->accessMethod = pstrdup(DEFAULT_INDEX_TYPE);
	foreach(lc, stmt->options)
	{
		if (strcmp(lfirst_node(DefElem, lc)->defname, "persistence") == 0)
			stmt->options = foreach_delete_current(stmt->options, lc);
	}
	return pstmt;
}

/* ---- the end of a command ---- */

/*
 * Does an index that was just made take the place of one of ours?
 */
bool
nvm_ddl_replaces_ours(NvmIndexWatch *w, Relation index)
{
	return watched_drop(w, index, false) != NULL;
}

/*
 * Is there a storage of an index under the file number of `index`?  Without a
 * pool there is none; an index that has to be built then is an error.
 */
static uint32
storage_of_index(Relation index)
{
	uint32		dir;

	if (NvmPool->status != NVM_POOL_OPEN)
		return 0;
	nvm_table_require();
	dir = nvm_storage_find(index, NULL);
	return dir != 0 && nvm_dir_entry(dir)->kind == NVM_DIR_KIND_INDEX ? dir : 0;
}

/*
 * Make access method and storage of index relid agree, if it is an index, and
 * they do not.
 */
static void
settle_index(Oid relid)
{
	Relation	index;
	char		persistence;
	bool		build = false;
	uint32		dir;

	if (get_rel_relkind(relid) != RELKIND_INDEX)
		return;
	index = try_relation_open(relid, AccessShareLock);
	if (index == NULL)
		return;
	dir = storage_of_index(index);
	persistence = index->rd_rel->relpersistence;
	/* SET TABLESPACE copies the file of one that says btree */
	if (dir == 0 && index->rd_rel->relam == BTREE_AM_OID && index->rd_index->indisready &&
		nvm_index_has_failsafe(index))
		nvm_index_exchange(index, false);
	if (nvm_relation_is_btree(index))
	{
		bool		new_file = index->rd_createSubid != InvalidSubTransactionId ||
		NvmRelFirstFileSubid(index) != InvalidSubTransactionId;

		/*
		 * no storage: SET TABLESPACE.  An ended one: taken over from an index
		 * that is dropped
		 */
		build = index->rd_index->indisready &&
			((dir == 0 && new_file) ||
			 (dir != 0 && nvm_xact_owns_stamp(nvm_dir_entry(dir)->end)) ||
			 (dir != 0 && nvm_dir_entry(dir)->end == 0 &&
			  nvm_index_cache(index)->persistence != nvm_index_option_persistence(index)));
	}
	else
		build = dir != 0 && index->rd_rel->relam == BTREE_AM_OID;
	relation_close(index, NoLock);

	if (!build)
		return;
	NVM_FAILPOINT("ddl-settle-index");
	LockRelationOid(relid, AccessExclusiveLock);
	nvm_reindex_index(relid, persistence);
	CommandCounterIncrement();
}

/*
 * Build the indexes of a table anew.
 */
static void
rebuild_indexes(Oid relid)
{
	Relation	rel = table_open(relid, AccessExclusiveLock);
	List	   *indexes = RelationGetIndexList(rel);
	char		persistence = rel->rd_rel->relpersistence;
	ListCell   *lc;

	table_close(rel, NoLock);
	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessExclusiveLock);
		bool		ready = index->rd_index->indisready;

		index_close(index, NoLock);
		if (ready)
			nvm_reindex_index(lfirst_oid(lc), persistence);
		CommandCounterIncrement();
	}
	list_free(indexes);
}

/*
 * A command begins whose indexes are watched.  Its memory is the caller's
 * current context, which outlives the transactions of the command.
 */
void
nvm_ddl_watch_begin(NvmIndexWatch *w)
{
	memset(w, 0, sizeof(*w));
	w->outer = watch;
	w->context = CurrentMemoryContext;
	watch = w;
}

/* the command that is being watched, or NULL */
NvmIndexWatch *
nvm_ddl_current_watch(void)
{
	return watch;
}

/* it has ended, with an error or not */
void
nvm_ddl_watch_end(NvmIndexWatch *w)
{
	watch = w->outer;
}

/*
 * It has ended without an error, in the current transaction.  goes_on: that
 * transaction may do more after it.
 */
void
nvm_ddl_settle_indexes(NvmIndexWatch *w, bool goes_on)
{
	ListCell   *lc;

	if (w->touched != NIL || w->storages != NIL)
		CommandCounterIncrement();
	nvm_ddl_put_back(w);
	if (goes_on)
	{
		foreach(lc, w->moved)
			rebuild_indexes(lfirst_oid(lc));
	}
	foreach(lc, w->touched)
		settle_index(lfirst_oid(lc));
	foreach(lc, w->storages)
	{
		WatchedStorage *s = lfirst(lc);
		NvmDirEntry *entry = nvm_dir_entry(s->dir);

		if (entry->begin != 0 && entry->creation_id == s->creation && entry->end == 0)
			nvm_storage_end(s->dir);
	}
}

/*
 * In _PG_init.
 */
void
nvm_ddl_register_index_callbacks(void)
{
	nvm_storage_register_moved(watch_move);
}
