/*-------------------------------------------------------------------------
 *
 * ddl_index_lock.c
 *	  Locks tables before a command locks indexes that are built at its end.
 *
 * Everybody locks a table before its indexes.  ALTER INDEX locks the index
 * first, and ddl_index.c needs a lock on the table to build the index when the
 * command has ended.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "btree/nvm_btree.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "commands/defrem.h"
#include "commands/tablespace.h"
#include "commands/user.h"
#include "compat/nvm_compat_am.h"
#include "ddl/nvm_ddl.h"
#include "miscadmin.h"
#include "storage/lmgr.h"

/*
 * Is it a form of ALTER INDEX after which the index is built anew?
 */
static bool
rebuilds_index(AlterTableCmd *cmd)
{
	ListCell   *lc;

	if (cmd->subtype == AT_SetTableSpace)
		return true;
	if (cmd->subtype != AT_SetRelOptions && cmd->subtype != AT_ResetRelOptions)
		return false;
	foreach(lc, castNode(List, cmd->def))
	{
		if (strcmp(lfirst_node(DefElem, lc)->defname, "persistence") == 0)
			return true;
	}
	return false;
}

/*
 * ALTER INDEX ALL IN TABLESPACE: lock the tables of our indexes among those
 * that it is going to lock.
 */
static void
lock_tables_of_all(AlterTableMoveAllStmt *stmt)
{
	List	   *roles = roleSpecsToIds(stmt->roles);
	Oid			method = get_index_am_oid(NVM_BTREE_NAME, true);
	Oid			tablespace = get_tablespace_oid(stmt->orig_tablespacename, false);
	Relation	pg_class;
	TableScanDesc scan;
	HeapTuple	tuple;

	if (tablespace == MyDatabaseTableSpace)
		tablespace = InvalidOid;
	pg_class = table_open(RelationRelationId, AccessShareLock);
	scan = table_beginscan_catalog(pg_class, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_class index = (Form_pg_class) GETSTRUCT(tuple);
		Oid			table;

		if (index->relkind != RELKIND_INDEX ||
			(index->relam != method && index->relam != BTREE_AM_OID) ||
			index->reltablespace != tablespace ||
			index->relpersistence == RELPERSISTENCE_TEMP ||
			(roles != NIL && !list_member_oid(roles, index->relowner)) ||
			!NvmOwnsRelation(index->oid) || !nvm_index_is_ours(index->oid))
			continue;
		table = IndexGetRelation(index->oid, true);
		if (!OidIsValid(table))
			continue;
		if (!stmt->nowait)
			LockRelationOid(table, ShareLock);
		else if (!ConditionalLockRelationOid(table, ShareLock))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("aborting because lock on the table of index \"%s\" is not available",
							NameStr(index->relname))));
	}
	table_endscan(scan);
	table_close(pg_class, AccessShareLock);
}

/*
 * The command first locks the index that is going to be built anew at its end.
 * To build it takes a lock on the table.  Everybody takes that lock before the
 * index's: a transaction that has written to the table would wait for the
 * index, and we for that transaction.  So lock the table now, as REINDEX
 * would.
 */
void
nvm_ddl_lock_tables(Node *stmt)
{
	bool		rebuilds = false;
	Oid			indexid;
	Oid			table;
	ListCell   *lc;

	if (IsA(stmt, AlterTableMoveAllStmt) &&
		((AlterTableMoveAllStmt *) stmt)->objtype == OBJECT_INDEX)
		lock_tables_of_all((AlterTableMoveAllStmt *) stmt);
	if (!IsA(stmt, AlterTableStmt))
		return;
	foreach(lc, ((AlterTableStmt *) stmt)->cmds)
		rebuilds |= rebuilds_index(lfirst_node(AlterTableCmd, lc));
	if (!rebuilds)
		return;
	indexid = RangeVarGetRelid(((AlterTableStmt *) stmt)->relation, NoLock, true);
	if (!OidIsValid(indexid) || !nvm_index_is_ours(indexid) || !NvmOwnsRelation(indexid))
		return;
	table = IndexGetRelation(indexid, true);
	if (OidIsValid(table))
		LockRelationOid(table, ShareLock);
}
