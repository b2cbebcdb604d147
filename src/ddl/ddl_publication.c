/*-------------------------------------------------------------------------
 *
 * ddl_publication.c
 *	  Publications and nvm tables do not go together.
 *
 * Logical decoding reads the WAL, and changes of nvm tables are not there: a
 * subscriber would get the initial copy and then silently nothing.  Naming an
 * nvm table (or a table with an nvm partition or child) in a publication is
 * refused.  For a table that only falls under FOR ALL TABLES or FOR TABLES IN
 * SCHEMA there is a warning.  The same when a table comes under a publication
 * that there is: as a new table, as a partition, by its schema, or by becoming
 * an nvm table.  That warning comes with the first nvm table of a publication:
 * where nvm is the default access method, each CREATE TABLE would repeat it.
 * All checks run after the command, so that PostgreSQL's own complaints come
 * first.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_publication.h"
#include "commands/defrem.h"
#include "ddl/nvm_ddl.h"
#include "nodes/parsenodes.h"
#include "row/nvm_relation.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

/* names that a warning lists */
#define MAX_NAMED			5

#define PUBLICATION_DETAIL	"Changes of nvm tables are not in the write-ahead log, and do not reach subscribers."

/*
 * Is it an nvm table?  Takes no lock: a publication may have all tables, and
 * another session may hold a lock on one of them.
 */
static bool
publication_is_nvm(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	result = nvm_access_method_is_ours(((Form_pg_class) GETSTRUCT(tuple))->relam) &&
		((Form_pg_class) GETSTRUCT(tuple))->relkind == RELKIND_RELATION;
	ReleaseSysCache(tuple);
	return result;
}

static void
publication_refuse(const char *pubname, Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			method = ((Form_pg_class) GETSTRUCT(tuple))->relam;

	ReleaseSysCache(tuple);
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot publish table \"%s\" in publication \"%s\", because its access method is %s",
					get_rel_name(relid), pubname, get_am_name(method)),
			 errdetail(PUBLICATION_DETAIL),
			 errhint("Publish tables of access method heap.")));
}

/*
 * Tables that the publication has by name, their children included.
 */
static void
publication_check_named(const char *pubname, Oid pubid)
{
	ListCell   *lc;

	foreach(lc, GetPublicationRelations(pubid, PUBLICATION_PART_LEAF))
	{
		if (publication_is_nvm(lfirst_oid(lc)))
			publication_refuse(pubname, lfirst_oid(lc));
	}
}

/*
 * The nvm tables that the publication has by their schema, or because it has
 * all tables.
 */
static List *
publication_others(Oid pubid)
{
	List	   *relids = GetPublication(pubid)->alltables ?
	GetAllTablesPublicationRelations(false) :
	GetAllSchemaPublicationRelations(pubid, PUBLICATION_PART_LEAF);
	List	   *result = NIL;
	ListCell   *lc;

	/* a partition of a table in the schema may be listed twice */
	list_sort(relids, list_oid_cmp);
	list_deduplicate_oid(relids);
	foreach(lc, relids)
	{
		if (publication_is_nvm(lfirst_oid(lc)))
			result = lappend_oid(result, lfirst_oid(lc));
	}
	list_free(relids);
	return result;
}

static void
publication_warn(const char *pubname, List *relids)
{
	StringInfoData names;
	int			n = 0;
	ListCell   *lc;

	initStringInfo(&names);
	foreach(lc, relids)
	{
		if (n < MAX_NAMED)
			appendStringInfo(&names, "%s%s", n > 0 ? ", " : "",
							 get_rel_name(lfirst_oid(lc)));
		else if (n == MAX_NAMED)
			appendStringInfoString(&names, ", ...");
		n++;
	}
	ereport(WARNING,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg_plural("publication \"%s\" does not publish changes of %d nvm table: %s",
						   "publication \"%s\" does not publish changes of %d nvm tables: %s",
						   n, pubname, n, names.data),
			 errdetail(PUBLICATION_DETAIL)));
	pfree(names.data);
}

/*
 * Add to *others the publications that nvm table relid comes under, as itself
 * or as a partition, by schema or because they have all.  A publication that
 * has it by name is an error.
 */
static void
publication_check_table(Oid relid, List **others)
{
	List	   *names = GetRelationPublications(relid);
	List	   *relids = list_make1_oid(relid);
	ListCell   *lc;

	*others = list_concat_unique_oid(*others, GetAllTablesPublications());
	if (get_rel_relispartition(relid))
		relids = list_concat(relids, get_partition_ancestors(relid));
	foreach(lc, relids)
	{
		names = list_concat_unique_oid(names, GetRelationPublications(lfirst_oid(lc)));
		*others = list_concat_unique_oid(*others,
										 GetSchemaPublications(get_rel_namespace(lfirst_oid(lc))));
	}
	if (names != NIL)
		publication_refuse(GetPublication(linitial_oid(names))->name, relid);
}

/*
 * A relation that the command has made, changed or moved, and its children.
 */
static void
publication_check_relation(Oid relid)
{
	List	   *came = NIL;		/* nvm tables */
	List	   *others = NIL;	/* publications */
	ListCell   *lc;

	if (!OidIsValid(relid))
		return;
	foreach(lc, find_all_inheritors(relid, NoLock, NULL))
	{
		Oid			child = lfirst_oid(lc);

		/* what is not permanent is never published */
		if (get_rel_persistence(child) != RELPERSISTENCE_PERMANENT ||
			!publication_is_nvm(child))
			continue;
		publication_check_table(child, &others);
		came = lappend_oid(came, child);
	}

	/* the first of a publication, and those that came with it */
	foreach(lc, others)
	{
		List	   *relids = publication_others(lfirst_oid(lc));

		if (relids != NIL && list_difference_oid(relids, came) == NIL)
			publication_warn(GetPublication(lfirst_oid(lc))->name, relids);
	}
}

static Oid
publication_created(RangeVar *relation)
{
	return get_relname_relid(relation->relname,
							 RangeVarGetCreationNamespace(relation));
}

/*
 * Check the tables that an ALTER TABLE may have brought under a publication.
 */
static void
publication_check_alter(AlterTableStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *cmd = lfirst_node(AlterTableCmd, lc);
		RangeVar   *relation = NULL;

		if (cmd->subtype == AT_SetAccessMethod || cmd->subtype == AT_SetLogged)
			relation = stmt->relation;
		else if (cmd->subtype == AT_AttachPartition)
			relation = castNode(PartitionCmd, cmd->def)->name;
		if (relation != NULL)
		{
			CommandCounterIncrement();
			publication_check_relation(RangeVarGetRelid(relation, NoLock, true));
		}
	}
}

/*
 * A publication that a command has made or changed.
 */
static void
publication_check(const char *pubname)
{
	Oid			pubid;
	List	   *relids;

	CommandCounterIncrement();
	pubid = get_publication_oid(pubname, true);
	if (!OidIsValid(pubid))
		return;
	publication_check_named(pubname, pubid);
	relids = publication_others(pubid);
	if (relids != NIL)
		publication_warn(pubname, relids);
}

/*
 * After utility command stmt.
 */
void
nvm_ddl_check_publication(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_CreatePublicationStmt:
			publication_check(((CreatePublicationStmt *) stmt)->pubname);
			break;
		case T_AlterPublicationStmt:
			if (((AlterPublicationStmt *) stmt)->options == NIL &&
				((AlterPublicationStmt *) stmt)->action != AP_DropObjects)
				publication_check(((AlterPublicationStmt *) stmt)->pubname);
			break;
		case T_AlterTableStmt:
			publication_check_alter((AlterTableStmt *) stmt);
			break;
		case T_CreateStmt:
			CommandCounterIncrement();
			publication_check_relation(publication_created(((CreateStmt *) stmt)->relation));
			break;
		case T_CreateTableAsStmt:
			CommandCounterIncrement();
			publication_check_relation(publication_created(((CreateTableAsStmt *) stmt)->into->rel));
			break;
		case T_AlterObjectSchemaStmt:
			if (((AlterObjectSchemaStmt *) stmt)->objectType == OBJECT_TABLE)
			{
				RangeVar   *moved = copyObject(((AlterObjectSchemaStmt *) stmt)->relation);

				CommandCounterIncrement();
				moved->schemaname = ((AlterObjectSchemaStmt *) stmt)->newschema;
				publication_check_relation(RangeVarGetRelid(moved, NoLock, true));
			}
			break;
		default:
			break;
	}
}
