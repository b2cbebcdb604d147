/*-------------------------------------------------------------------------
 *
 * ddl_access_method.c
 *	  SET ACCESS METHOD of a table takes its indexes along.
 *
 * It rewrites the table into a transient one of the other access method, swaps
 * the files of the two, and builds the table's indexes anew.  In between, when
 * the swap is reported (OAT_POST_ALTER), the indexes get the access method
 * that they need.  Where the table is not ours any more, our indexes become
 * btree's.  Where the table has come to us, the build takes btree's over
 * (btree/btree_takeover.c); with nvm.index_identity = nvm_btree they become of that
 * method, as far as CREATE TABLE would have made them so.  Until
 * then a reader of the table, an event trigger or a USING expression, finds
 * table and indexes as they were.  After that nobody reads them before the
 * indexes are built.
 *
 * It is the same index still, with its number, constraint, comment, statistics
 * targets and marks.  Whether somebody once said USING btree or USING
 * nvm_btree is not known any more.  So on the way in an index that was asked
 * for and one by default are treated alike.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_identity.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/toasting.h"
#include "commands/defrem.h"
#include "compat/nvm_compat_am.h"
#include "ddl/nvm_ddl.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_relation.h"
#include "storage/lmgr.h"
#include "storage/nvm_storage_relation.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "xact/nvm_storage.h"

/*
 * Do the indexes of a table that is ours now have to be looked at?  Of one that was
 * ours before, what was said of an index, USING btree, stands.  But if the rows
 * have come to the volatile region, a restart takes them, and a btree index would
 * keep its entries.
 */
static bool
indexes_follow(Relation table, Oid old_method)
{
	uint32		dir;

	if (nvm_default_index_method != NVM_INDEX_METHOD_NVM || nvm_index_identity_applies())
		return false;
	if (!nvm_access_method_is_ours(old_method))
		return true;
	dir = nvm_storage_of(RelationGetRelid(table));
	return dir != 0 && (nvm_dir_entry(dir)->flags & NVM_DIR_VOLATILE) != 0;
}

/*
 * Should such an index become one of nvm_btree?  One that is ours keeps saying
 * btree.  An index that belongs to the index of a partitioned table has to be as
 * that one is.  Exclusion constraints are not for us.
 */
static bool
comes_along(Relation table, Relation index)
{
	return index->rd_rel->relkind == RELKIND_INDEX &&
		index->rd_rel->relam == BTREE_AM_OID &&
		!nvm_relation_is_btree(index) &&
		!index->rd_rel->relispartition &&
		!index->rd_index->indisexclusion &&
		nvm_ddl_takes_ours(table->rd_rel, index->rd_index->indisunique);
}

/*
 * Does an index of a table that is not ours any more have to change?  ERROR if
 * it has to and must not: an index that belongs to the index of a partitioned
 * table is as that one is.
 */
static bool
goes_along(Relation table, Relation index)
{
	if (!nvm_relation_is_btree(index))
		return false;
	if (index->rd_rel->relispartition && index->rd_rel->relam != BTREE_AM_OID)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("access method \"%s\" is for indexes of nvm tables", NVM_BTREE_NAME),
				 errdetail("Index \"%s\" of table \"%s\" belongs to an index of a partitioned table, which has this access method.",
						   RelationGetRelationName(index), RelationGetRelationName(table)),
				 errhint("Make the index of the partitioned table with USING btree, or detach the partition first.")));
	return true;
}

/*
 * Give one index the access method that it needs.  The caller has locked it
 * exclusively, and it is going to be built.
 */
static void
change_index(Oid indexid, bool to_ours)
{
	uint32		dir;

	if (to_ours)
	{
		nvm_ddl_set_index_method(indexid, get_index_am_oid(NVM_BTREE_NAME, false), false);
		return;
	}
	dir = nvm_storage_of(indexid);
	nvm_ddl_set_index_method(indexid, BTREE_AM_OID, false);
	if (dir != 0)
		nvm_storage_end(dir);
}

/*
 * Relation relid was altered by SET ACCESS METHOD, internally.  If it is the
 * transient table of the rewrite, its file and access method have been swapped
 * with those of the table.  The relcache does not show that yet.  The table is
 * locked exclusively.
 */
void
nvm_ddl_swapped_table(Oid relid)
{
	Relation	rel = RelationIdGetRelation(relid);
	Oid			table;
	Oid			new_method;
	Oid			old_method = InvalidOid;
	List	   *indexes;
	ListCell   *lc;
	bool		here;
	bool		follow;

	if (rel == NULL)
		return;
	table = rel->rd_rel->relrewrite;
	new_method = rel->rd_rel->relam;
	RelationClose(rel);
	if (OidIsValid(table) && (rel = RelationIdGetRelation(table)) != NULL)
	{
		old_method = rel->rd_rel->relam;
		RelationClose(rel);
	}
	/* functions that the rewrite calls may rewrite others as they are */
	if (!OidIsValid(old_method) || old_method == new_method)
		return;

	/*
	 * indexes that the command has left alone get back their parameters and
	 * classes
	 */
	NvmCloseSmgrByOid(table);
	NvmCloseSmgrByOid(relid);
	CommandCounterIncrement();
	nvm_ddl_put_back(nvm_ddl_current_watch());

	rel = table_open(table, NoLock);
	here = nvm_relation_is_nvm(rel);
	follow = here && indexes_follow(rel, old_method);
	indexes = RelationGetIndexList(rel);
	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessExclusiveLock);
		bool		change;

		change = here ? follow && comes_along(rel, index) : goes_along(rel, index);
		index_close(index, NoLock);
		if (change)
			change_index(lfirst_oid(lc), here);
	}
	list_free(indexes);
	table_close(rel, NoLock);
	NVM_FAILPOINT("ddl-swapped-table");
}

/*
 * Relation relid was created (OAT_POST_CREATE).  SET ACCESS METHOD may move
 * rows from nvm to an access method that keeps wide values in a TOAST table.
 * Then the transient table needs one; core makes it only where the old table
 * has one.
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
