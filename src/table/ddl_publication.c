/*-------------------------------------------------------------------------
 *
 * ddl_publication.c
 *	  Publications and nvm tables do not go together.
 *
 * Logical decoding reads the WAL, and changes of nvm tables are not there: a
 * subscriber would get the initial copy and then silently nothing.  Naming an
 * nvm table (or a table with an nvm partition or child) in a publication is
 * refused; one that only falls under FOR ALL TABLES or FOR TABLES IN SCHEMA is
 * warned of.  Both look at what the command has made, so that PostgreSQL's own
 * complaints come first.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_publication.h"
#include "nodes/parsenodes.h"
#include "table/nvm_am.h"
#include "table/nvm_table.h"
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
 * A table that has become nvm's and is in a publication by name.
 */
static void
publication_check_moved(RangeVar *relation)
{
	Oid			relid = RangeVarGetRelid(relation, NoLock, true);
	List	   *pubids;

	if (!OidIsValid(relid) || !publication_is_nvm(relid))
		return;
	pubids = GetRelationPublications(relid);
	if (pubids != NIL)
		publication_refuse(GetPublication(linitial_oid(pubids))->name, relid);
}

static bool
publication_sets_access_method(AlterTableStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		if (lfirst_node(AlterTableCmd, lc)->subtype == AT_SetAccessMethod)
			return true;
	}
	return false;
}

/*
 * After utility command stmt.
 */
void
nvm_ddl_check_publication(Node *stmt)
{
	const char *pubname = NULL;
	Oid			pubid;

	if (IsA(stmt, CreatePublicationStmt))
		pubname = ((CreatePublicationStmt *) stmt)->pubname;
	else if (IsA(stmt, AlterPublicationStmt))
	{
		AlterPublicationStmt *alter = (AlterPublicationStmt *) stmt;

		if (alter->options == NIL && alter->action != AP_DropObjects)
			pubname = alter->pubname;
	}
	else if (IsA(stmt, AlterTableStmt) &&
			 publication_sets_access_method((AlterTableStmt *) stmt))
	{
		CommandCounterIncrement();
		publication_check_moved(((AlterTableStmt *) stmt)->relation);
	}
	if (pubname == NULL)
		return;

	CommandCounterIncrement();
	pubid = get_publication_oid(pubname, true);
	if (!OidIsValid(pubid))
		return;
	publication_check_named(pubname, pubid);
	publication_check_others(pubname, pubid);
}
