/*-------------------------------------------------------------------------
 *
 * ddl_publication.c
 *	  Publications and nvm tables do not go together.
 *
 * Logical decoding reads the WAL, and changes of nvm tables are not there: a
 * subscriber would get the initial copy and then silently nothing.  Naming an
 * nvm table (or a table with an nvm partition or child) in a publication is
 * refused; one that only falls under FOR ALL TABLES or FOR TABLES IN SCHEMA is
 * warned of.  The same when a table comes under a publication that there is:
 * as a new table, as a partition, by its schema, or by becoming an nvm table.
 * All look at what the command has made, so that PostgreSQL's own complaints
 * come first.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_publication.h"
#include "nodes/parsenodes.h"
#include "table/nvm_am.h"
#include "table/nvm_ddl.h"
#include "utils/lsyscache.h"

/* names that a warning lists */
#define MAX_NAMED			5

#define PUBLICATION_DETAIL	"Changes of nvm tables are not in the write-ahead log, and do not reach subscribers."

static bool
publication_is_nvm(Oid relid)
{
	Relation	rel = try_relation_open(relid, AccessShareLock);
	bool		result = rel != NULL && nvm_relation_is_nvm(rel);

	if (rel != NULL)
		relation_close(rel, AccessShareLock);
	return result;
}

static void
publication_refuse(const char *pubname, Oid relid)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot publish table \"%s\" in publication \"%s\", because its access method is nvm",
					get_rel_name(relid), pubname),
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
 * Tables that it has by their schema or because it has all.
 */
static void
publication_check_others(const char *pubname, Oid pubid)
{
	Publication *pub = GetPublication(pubid);
	List	   *relids = pub->alltables ?
		GetAllTablesPublicationRelations(false) :
		GetAllSchemaPublicationRelations(pubid, PUBLICATION_PART_LEAF);
	StringInfoData names;
	int			n = 0;
	ListCell   *lc;

	/* a partition of a table in the schema may be listed twice */
	list_sort(relids, list_oid_cmp);
	list_deduplicate_oid(relids);
	initStringInfo(&names);
	foreach(lc, relids)
	{
		if (!publication_is_nvm(lfirst_oid(lc)))
			continue;
		if (n < MAX_NAMED)
			appendStringInfo(&names, "%s%s", n > 0 ? ", " : "",
							 get_rel_name(lfirst_oid(lc)));
		else if (n == MAX_NAMED)
			appendStringInfoString(&names, ", ...");
		n++;
	}
	if (n > 0)
		ereport(WARNING,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg_plural("publication \"%s\" does not publish changes of %d nvm table: %s",
							   "publication \"%s\" does not publish changes of %d nvm tables: %s",
							   n, pubname, n, names.data),
				 errdetail(PUBLICATION_DETAIL)));
	pfree(names.data);
}

/*
 * An nvm table and the publications that it comes under, as itself or as a
 * partition: by name, or else by schema or because they have all.
 */
static void
publication_check_table(Oid relid)
{
	List	   *names = GetRelationPublications(relid);
	List	   *others = GetAllTablesPublications();
	List	   *relids = list_make1_oid(relid);
	ListCell   *lc;

	if (get_rel_relispartition(relid))
		relids = list_concat(relids, get_partition_ancestors(relid));
	foreach(lc, relids)
	{
		names = list_concat_unique_oid(names, GetRelationPublications(lfirst_oid(lc)));
		others = list_concat_unique_oid(others,
										GetSchemaPublications(get_rel_namespace(lfirst_oid(lc))));
	}
	if (names != NIL)
		publication_refuse(GetPublication(linitial_oid(names))->name, relid);
	foreach(lc, others)
		ereport(WARNING,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("publication \"%s\" does not publish changes of nvm table \"%s\"",
						GetPublication(lfirst_oid(lc))->name, get_rel_name(relid)),
				 errdetail(PUBLICATION_DETAIL)));
}

/*
 * A relation that the command has made, changed or moved, and what is below
 * it.
 */
static void
publication_check_relation(Oid relid)
{
	ListCell   *lc;

	if (!OidIsValid(relid))
		return;
	foreach(lc, find_all_inheritors(relid, NoLock, NULL))
	{
		Oid			child = lfirst_oid(lc);

		/* what is not permanent is never published */
		if (get_rel_relkind(child) == RELKIND_RELATION &&
			get_rel_persistence(child) == RELPERSISTENCE_PERMANENT &&
			publication_is_nvm(child))
			publication_check_table(child);
	}
}

static Oid
publication_created(RangeVar *relation)
{
	return get_relname_relid(relation->relname,
							 RangeVarGetCreationNamespace(relation));
}

/*
 * What an ALTER TABLE may have brought under a publication.
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

	CommandCounterIncrement();
	pubid = get_publication_oid(pubname, true);
	if (!OidIsValid(pubid))
		return;
	publication_check_named(pubname, pubid);
	publication_check_others(pubname, pubid);
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
