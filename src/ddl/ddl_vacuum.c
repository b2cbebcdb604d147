/*-------------------------------------------------------------------------
 *
 * ddl_vacuum.c
 *	  VACUUM and ANALYZE pass over tables in memory that are not available.
 *
 * A server without memory for these tables, or that could not rebuild them from
 * the log, serves all others, and has to vacuum them.  VACUUM of the whole
 * database would end at the first table with an ERROR, as vacuumdb would.  So
 * such tables are taken out of the list before the command begins, each with a
 * WARNING, as PostgreSQL does with tables that it cannot lock.  Autovacuum
 * works on one table after the other, and goes on after an ERROR.
 *
 * A table that is being rebuilt is passed over alone.  VACUUM finds that itself
 * (am/vacuum.c); ANALYZE would wait, so it is taken out of the list here.
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
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/defrem.h"
#include "ddl/nvm_ddl.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "pool/nvm_pool.h"
#include "row/nvm_relation.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "xact/nvm_storage.h"

/*
 * Has the statement this option, and is it on?
 */
static bool
has_option(VacuumStmt *stmt, const char *name)
{
	bool		result = false;
	ListCell   *lc;

	foreach(lc, stmt->options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, name) == 0)
			result = defGetBoolean(option);
	}
	return result;
}

/*
 * Does the command analyze tables?
 */
static bool
analyzes(VacuumStmt *stmt)
{
	return !stmt->is_vacuumcmd || has_option(stmt, "analyze");
}

/*
 * A rebuild that has failed leaves open what it had opened, and what is made later.  Of
 * what has no entry of its own, temporary tables for one, `otherwise` is true.
 */
static bool
is_open(Form_pg_class form, bool otherwise)
{
	NvmStorageKey key = {MyDatabaseId, form->reltablespace, form->relfilenode};
	uint32		dir = 0;

	if (form->relpersistence != RELPERSISTENCE_TEMP)
		dir = nvm_dir_lookup(&key);
	return dir != 0 ? nvm_storage_is_open(dir) : otherwise;
}

/*
 * A table in memory that is not available, while they are rebuilt, or where they cannot be?
 */
static bool
is_closed_table(Oid relid, bool rebuilding)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class form;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_class) GETSTRUCT(tuple);
	result = (form->relkind == RELKIND_RELATION || form->relkind == RELKIND_MATVIEW) &&
		nvm_access_method_is_in_memory(form->relam) && !is_open(form, rebuilding);
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Would the command fail, or wait, at this table?  ANALYZE of a table reads its children,
 * too.
 */
static bool
comes_to_closed_table(VacuumStmt *stmt, Oid relid, bool rebuilding)
{
	ListCell   *lc;

	if (is_closed_table(relid, rebuilding))
		return true;
	if (!analyzes(stmt) || !has_subclass(relid))
		return false;
	foreach(lc, find_all_inheritors(relid, NoLock, NULL))
	{
		if (is_closed_table(lfirst_oid(lc), rebuilding))
			return true;
	}
	return false;
}

static void
warn_of_skipped(const char *command, Oid relid, const char *reason)
{
	ereport(WARNING,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 reason != NULL ?
			 errmsg("skipping %s of \"%s\" --- tables in memory are not available",
					command, get_rel_name(relid)) :
			 errmsg("skipping %s of \"%s\" --- it is being rebuilt from the log",
					command, get_rel_name(relid)),
			 reason != NULL ? errdetail_internal("%s", reason) : 0));
}

/*
 * The tables of the database, as the command would list them: it checks itself
 * whether it may.
 */
static List *
tables_of_database(void)
{
	Relation	pg_class = table_open(RelationRelationId, AccessShareLock);
	TableScanDesc scan = table_beginscan_catalog(pg_class, 0, NULL);
	List	   *result = NIL;
	HeapTuple	tuple;

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (form->relkind == RELKIND_RELATION || form->relkind == RELKIND_MATVIEW ||
			form->relkind == RELKIND_PARTITIONED_TABLE)
			result = lappend(result, makeVacuumRelation(NULL, form->oid, NIL));
	}
	table_endscan(scan);
	table_close(pg_class, AccessShareLock);
	return result;
}

/*
 * The tables that the command named, with the partitions of those that are
 * partitioned, where one is not available.
 */
static List *
tables_named(VacuumStmt *stmt, bool rebuilding)
{
	List	   *result = NIL;
	ListCell   *lc;
	ListCell   *lc2;

	foreach(lc, stmt->rels)
	{
		VacuumRelation *named = lfirst_node(VacuumRelation, lc);
		Oid			relid = named->oid;
		List	   *members = NIL;
		bool		closed = false;

		if (named->relation != NULL)
			relid = RangeVarGetRelid(named->relation, NoLock, true);
		/* from 18 on there is ONLY */
		if (OidIsValid(relid) && get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE &&
			(named->relation == NULL || named->relation->inh))
			members = find_all_inheritors(relid, NoLock, NULL);
		foreach(lc2, members)
			closed |= is_closed_table(lfirst_oid(lc2), rebuilding);
		if (!closed)
		{
			result = lappend(result, named);
			continue;
		}
		foreach(lc2, members)
			result = lappend(result, makeVacuumRelation(NULL, lfirst_oid(lc2), named->va_cols));
	}
	return result;
}

/*
 * ProcessUtility_hook, before the statement.  Returns the statement, or a copy
 * without the tables that are not available, or NULL if no table is left.
 */
PlannedStmt *
nvm_ddl_vacuum_available(PlannedStmt *pstmt, bool top_level)
{
	VacuumStmt *stmt = (VacuumStmt *) pstmt->utilityStmt;
	const char *command;
	const char *reason;
	List	   *tables;
	List	   *kept = NIL;
	ListCell   *lc;

	if (!IsA(stmt, VacuumStmt) || has_option(stmt, "only_database_stats"))
		return pstmt;
	reason = nvm_storage_why_unavailable();
	if (reason == NULL && (nvm_log_is_whole() || !analyzes(stmt)))
		return pstmt;
	command = stmt->is_vacuumcmd ? "vacuum" : "analyze";
	tables = stmt->rels == NIL ? tables_of_database() : tables_named(stmt, reason == NULL);
	foreach(lc, tables)
	{
		VacuumRelation *table = lfirst_node(VacuumRelation, lc);
		Oid			relid = table->oid;

		if (!OidIsValid(relid))
			relid = RangeVarGetRelid(table->relation, NoLock, true);
		if (OidIsValid(relid) && comes_to_closed_table(stmt, relid, reason == NULL))
			warn_of_skipped(command, relid, reason);
		else
			kept = lappend(kept, table);
	}
	if (list_length(kept) == list_length(tables))
		return pstmt;
	if (kept == NIL)
	{
		/* as the command would have found out */
		if (stmt->is_vacuumcmd)
			PreventInTransactionBlock(top_level, "VACUUM");
		return NULL;
	}
	pstmt = copyObject(pstmt);
	((VacuumStmt *) pstmt->utilityStmt)->rels = kept;
	return pstmt;
}
