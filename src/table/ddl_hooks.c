/*-------------------------------------------------------------------------
 *
 * ddl_hooks.c
 *	  Where DDL reaches us although it does not ask the access method.
 *
 * Dropping a relation calls no access method, hence object_access_hook.
 * Commands that copy or remove the files of a whole database call nothing at
 * all, hence ProcessUtility_hook: the pool is not among those files.  Nor does
 * CREATE RULE when it turns a table into a view.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "table/nvm_am.h"
#include "table/nvm_table.h"
#include "tcop/utility.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

static object_access_hook_type prev_object_access_hook = NULL;
static ProcessUtility_hook_type prev_ProcessUtility_hook = NULL;

/*
 * object_access_hook: relations come and go.
 */
static void
ddl_object_access(ObjectAccessType access, Oid classId, Oid objectId,
				  int subId, void *arg)
{
	if (prev_object_access_hook)
		prev_object_access_hook(access, classId, objectId, subId, arg);

	if (classId != RelationRelationId || subId != 0)
		return;
	if (access == OAT_DROP)
	{
		/* also the transient table of a rewrite: it has the old storage */
		uint32		dir = nvm_ddl_storage(objectId);

		if (dir != 0)
			nvm_ddl_end_storage(dir);
	}
	else if (access == OAT_POST_CREATE && arg != NULL &&
			 ((ObjectAccessPostCreate *) arg)->is_internal)
		nvm_ddl_created_relation(objectId);
}

/*
 * Value of option `name` of a list of DefElem, or NULL.
 */
static const char *
ddl_option(List *options, const char *name)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *defel = lfirst_node(DefElem, lc);

		if (strcmp(defel->defname, name) == 0 && defel->arg != NULL)
			return defGetString(defel);
	}
	return NULL;
}

/*
 * Refuse a template whose rows are not in the files that are copied.
 */
static void
ddl_refuse_template(const char *dbname, Oid database)
{
	if (nvm_ddl_database_in_use(database, InvalidOid))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot copy database \"%s\", because it has nvm tables",
						dbname),
				 errdetail("The rows of nvm tables are in the persistent-memory pool, not in the files of the database."),
				 errhint("Create the database from another template and copy the tables with pg_dump.")));
}

/*
 * ALTER DATABASE ... SET TABLESPACE moves files by their names; the directory
 * of the pool would go on looking for the tables at the old place.
 */
static void
ddl_refuse_move(const char *dbname)
{
	HeapTuple	tuple;
	Oid			database = get_database_oid(dbname, true);
	Oid			tablespace;

	if (!OidIsValid(database))
		return;
	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	if (!HeapTupleIsValid(tuple))
		return;
	tablespace = ((Form_pg_database) GETSTRUCT(tuple))->dattablespace;
	ReleaseSysCache(tuple);

	if (nvm_ddl_database_in_use(database, tablespace))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot move database \"%s\" to another tablespace, because it has nvm tables",
						dbname),
				 errdetail("The rows of nvm tables are in the persistent-memory pool, whatever the tablespace."),
				 errhint("Create a database in the other tablespace and copy the tables with pg_dump.")));
}

/*
 * ProcessUtility_hook: commands on whole databases.
 */
static void
ddl_process_utility(PlannedStmt *pstmt, const char *queryString,
					bool readOnlyTree, ProcessUtilityContext context,
					ParamListInfo params, QueryEnvironment *queryEnv,
					DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *stmt = pstmt->utilityStmt;
	Oid			template = InvalidOid;
	const char *template_name = NULL;
	Oid			dropped = InvalidOid;
	Oid			relid = InvalidOid;
	uint32		dir = 0;

	switch (nodeTag(stmt))
	{
		case T_CreatedbStmt:
			template_name = ddl_option(((CreatedbStmt *) stmt)->options, "template");
			if (template_name == NULL)
				template_name = "template1";
			template = get_database_oid(template_name, true);
			if (OidIsValid(template))
				ddl_refuse_template(template_name, template);
			break;
		case T_AlterDatabaseStmt:
			if (ddl_option(((AlterDatabaseStmt *) stmt)->options, "tablespace") != NULL)
				ddl_refuse_move(((AlterDatabaseStmt *) stmt)->dbname);
			break;
		case T_DropdbStmt:
			dropped = get_database_oid(((DropdbStmt *) stmt)->dbname, true);
			break;
		case T_RuleStmt:
			/* before 16, an ON SELECT rule may make a view of a table */
			if (((RuleStmt *) stmt)->event == CMD_SELECT)
			{
				relid = RangeVarGetRelid(((RuleStmt *) stmt)->relation,
										 AccessExclusiveLock, true);
				if (OidIsValid(relid))
					dir = nvm_ddl_storage(relid);
			}
			break;
		default:
			break;
	}

	if (prev_ProcessUtility_hook)
		prev_ProcessUtility_hook(pstmt, queryString, readOnlyTree, context,
								 params, queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context,
								params, queryEnv, dest, qc);

	nvm_ddl_check_publication(stmt);

	/* a session that was still connected may have created one meanwhile */
	if (OidIsValid(template))
		ddl_refuse_template(template_name, template);
	if (OidIsValid(dropped))
		nvm_ddl_drop_database(dropped);
	if (dir != 0)
	{
		CommandCounterIncrement();
		if (get_rel_relkind(relid) == RELKIND_VIEW)
			nvm_ddl_end_storage(dir);
	}
}

/*
 * Install the hooks; called from _PG_init when the library is preloaded.
 */
void
nvm_ddl_register_hooks(void)
{
	prev_object_access_hook = object_access_hook;
	object_access_hook = ddl_object_access;
	prev_ProcessUtility_hook = ProcessUtility_hook;
	ProcessUtility_hook = ddl_process_utility;
}
