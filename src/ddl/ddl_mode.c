/*-------------------------------------------------------------------------
 *
 * ddl_mode.c
 *	  Which statements are DDL to calls that are logged alone, and what does not fit these.
 *
 * command/README.md, "Modes".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_identity.h"
#include "command/nvm_command.h"
#include "commands/defrem.h"
#include "ddl/nvm_ddl.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "pool/nvm_pool.h"
#include "tcop/utility.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

/* ---- temporary objects ---- */

/*
 * One that is being made: what else has its name does not matter.
 */
static bool
becomes_temporary(const RangeVar *name)
{
	return name != NULL &&
		(name->relpersistence == RELPERSISTENCE_TEMP ||
		 (name->schemaname != NULL && strcmp(name->schemaname, "pg_temp") == 0));
}

static bool
is_temporary(const RangeVar *name)
{
	Oid			relid;

	if (name == NULL)
		return false;
	if (name->relpersistence == RELPERSISTENCE_TEMP)
		return true;
	relid = RangeVarGetRelid(name, NoLock, true);
	return OidIsValid(relid) && isTempOrTempToastNamespace(get_rel_namespace(relid));
}

static bool
drops_temporary(const DropStmt *stmt)
{
	ListCell   *lc;

	if (stmt->removeType != OBJECT_TABLE && stmt->removeType != OBJECT_INDEX &&
		stmt->removeType != OBJECT_VIEW && stmt->removeType != OBJECT_SEQUENCE)
		return false;
	foreach(lc, stmt->objects)
	{
		if (!is_temporary(makeRangeVarFromNameList((List *) lfirst(lc))))
			return false;
	}
	return true;
}

static bool
truncates_temporary(const TruncateStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->relations)
	{
		if (!is_temporary((const RangeVar *) lfirst(lc)))
			return false;
	}
	return true;
}

/*
 * Does the statement concern temporary relations alone?
 */
static bool
concerns_temporary(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_CreateStmt:
			return becomes_temporary(((CreateStmt *) stmt)->relation);
		case T_CreateTableAsStmt:
			return becomes_temporary(((CreateTableAsStmt *) stmt)->into->rel);
		case T_ViewStmt:
			return becomes_temporary(((ViewStmt *) stmt)->view);
		case T_CreateSeqStmt:
			return becomes_temporary(((CreateSeqStmt *) stmt)->sequence);
		case T_AlterSeqStmt:
			return is_temporary(((AlterSeqStmt *) stmt)->sequence);
		case T_IndexStmt:
			return is_temporary(((IndexStmt *) stmt)->relation);
		case T_AlterTableStmt:
			return is_temporary(((AlterTableStmt *) stmt)->relation);
		case T_RenameStmt:
			return is_temporary(((RenameStmt *) stmt)->relation);
		case T_RuleStmt:
			return is_temporary(((RuleStmt *) stmt)->relation);
		case T_CreateTrigStmt:
			return is_temporary(((CreateTrigStmt *) stmt)->relation);
		case T_ClusterStmt:
			return is_temporary(((ClusterStmt *) stmt)->relation);
		case T_DropStmt:
			return drops_temporary((DropStmt *) stmt);
		case T_TruncateStmt:
			return truncates_temporary((TruncateStmt *) stmt);
		default:
			return false;
	}
}

/* ---- which statement is DDL ---- */

static bool
has_option(List *options, const char *name)
{
	bool		has = false;
	ListCell   *lc;

	/* the last one counts */
	foreach(lc, options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, name) == 0)
			has = defGetBoolean(option);
	}
	return has;
}

/*
 * Does ALTER ROLE change what a call may see of the role?  Not if it is about logging in.
 */
static bool
changes_role(const AlterRoleStmt *stmt)
{
	static const char *const of_login[] = {"password", "canlogin", "connectionlimit", "validUntil"};
	ListCell   *lc;

	foreach(lc, stmt->options)
	{
		const char *name = lfirst_node(DefElem, lc)->defname;
		bool		is_of_login = false;

		for (int i = 0; i < (int) lengthof(of_login); i++)
			is_of_login |= strcmp(name, of_login[i]) == 0;
		if (!is_of_login)
			return true;
	}
	return false;
}

/*
 * DDL that the kind of statement does not tell.
 */
static bool
is_ddl(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_TruncateStmt:
			return true;
		case T_VacuumStmt:
			return ((VacuumStmt *) stmt)->is_vacuumcmd && has_option(((VacuumStmt *) stmt)->options, "full");
		case T_ReindexStmt:
			return nvm_ddl_reindexes_concurrently(stmt);
		case T_CommentStmt:
		case T_AlterSystemStmt:
		case T_CreateRoleStmt:
		case T_AlterRoleSetStmt:
		case T_CreatedbStmt:
		case T_DropdbStmt:
		case T_AlterDatabaseStmt:
		case T_AlterDatabaseSetStmt:
		case T_CreateTableSpaceStmt:
		case T_DropTableSpaceStmt:
		case T_AlterTableSpaceOptionsStmt:
			return false;
		case T_SecLabelStmt:
			return ((SecLabelStmt *) stmt)->provider == NULL ||
				strcmp(((SecLabelStmt *) stmt)->provider, NVM_LABEL_PROVIDER) == 0;
		case T_AlterRoleStmt:
			return changes_role((AlterRoleStmt *) stmt);
		default:
			return GetCommandLogLevel(stmt) == LOGSTMT_DDL;
	}
}

static NvmDdlScope
scope_of(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_AlterRoleStmt:
		case T_DropRoleStmt:
		case T_GrantRoleStmt:
			return NVM_DDL_OF_ROLES;
		case T_RenameStmt:
			return ((RenameStmt *) stmt)->renameType == OBJECT_ROLE ||
				((RenameStmt *) stmt)->renameType == OBJECT_DATABASE ? NVM_DDL_OF_ROLES : NVM_DDL_OF_DATABASE;
		case T_CreateFunctionStmt:
		case T_AlterFunctionStmt:
			return NVM_DDL_OF_FUNCTIONS;
		case T_GrantStmt:
			return ((GrantStmt *) stmt)->objtype == OBJECT_FUNCTION ||
				((GrantStmt *) stmt)->objtype == OBJECT_PROCEDURE ||
				((GrantStmt *) stmt)->objtype == OBJECT_ROUTINE ? NVM_DDL_OF_FUNCTIONS : NVM_DDL_OF_DATABASE;
		case T_SecLabelStmt:
			/* a function that is registered no more does matter */
			return ((SecLabelStmt *) stmt)->objtype == OBJECT_COLUMN || ((SecLabelStmt *) stmt)->label == NULL ?
				NVM_DDL_OF_DATABASE : NVM_DDL_OF_LABELS;
		default:
			return NVM_DDL_OF_DATABASE;
	}
}

/*
 * See nvm_ddl.h.
 */
bool
nvm_ddl_is_ddl(Node *stmt)
{
	if (IsA(stmt, LockStmt) || IsA(stmt, ReindexStmt))
		nvm_command_locks();
	return is_ddl(stmt) && !concerns_temporary(stmt);
}

void
nvm_ddl_mode_begins(Node *stmt)
{
	nvm_command_ddl_begins(scope_of(stmt));
}

/* ---- what does not fit a replay ---- */

/*
 * Is it a permanent table of nvm_cmdlog?  Looked up without a lock: others may have locked it,
 * and wait for us.
 */
static bool
is_command_table(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		is_one;

	if (!HeapTupleIsValid(tuple))
		return false;
	is_one = ((Form_pg_class) GETSTRUCT(tuple))->relpersistence == RELPERSISTENCE_PERMANENT &&
		nvm_command_is_method(((Form_pg_class) GETSTRUCT(tuple))->relam);
	ReleaseSysCache(tuple);
	return is_one;
}

/* what does not fit, and why */
typedef struct Misfit
{
	Oid			relid;
	const char *why;
	const char *hint;
} Misfit;

static void
require_none(bool found, const Misfit *misfit)
{
	if (found)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" does not fit calls that are logged alone",
						get_rel_name(misfit->relid)),
				 errdetail("Because %s.", misfit->why),
				 errhint("%s", misfit->hint)));
}

/*
 * Entries of indexes of other methods are TIDs, of which a replay hands out others.  An index
 * that was never built has none, and need not have a storage; but while it is built nobody
 * knows where it will lie (`promoting`).  relid: of this table, or this index, alone.
 */
static bool
find_index(Misfit *misfit, bool promoting, Oid relid)
{
	Relation	rel = table_open(IndexRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	bool		found = false;
	HeapTuple	tuple;

	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_index index = (Form_pg_index) GETSTRUCT(tuple);

		if (OidIsValid(relid) && index->indexrelid != relid && index->indrelid != relid)
			continue;
		if (!is_command_table(index->indrelid) || (!index->indisready && !promoting) ||
			nvm_command_index_is_ours(index->indexrelid))
			continue;
		found = true;
		misfit->relid = index->indrelid;
		misfit->why = psprintf("index \"%s\" is not in memory, so its entries say where rows are, and a replay puts them elsewhere",
							   get_rel_name(index->indexrelid));
		misfit->hint = "Drop the index, or build a btree index with nvm.default_index_method = nvm_btree.";
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

/*
 * As the catalog says it: to open the relation would take a lock, for which others may be asked
 * that wait for us.
 */
static uint32
storage_of(Form_pg_class class)
{
	NvmStorageKey key = {.database = MyDatabaseId,.tablespace = class->reltablespace,
	.relnumber = class->relfilenode};

	return OidIsValid(class->relfilenode) ? nvm_dir_lookup(&key) : 0;
}

static bool
find_table(Misfit *misfit)
{
	Relation	classes = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(classes, InvalidOid, false, NULL, 0, NULL);
	bool		found = false;
	HeapTuple	tuple;

	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class class = (Form_pg_class) GETSTRUCT(tuple);
		uint32		dir = is_command_table(class->oid) ? storage_of(class) : 0;

		if (dir == 0 || (nvm_dir_entry(dir)->flags & NVM_DIR_COMMANDS) != 0)
			continue;
		found = true;
		misfit->relid = class->oid;
		misfit->why = "an earlier version has made it, and a checkpoint has its rows not as of one moment (VACUUM FULL makes it anew)";
		misfit->hint = "Run VACUUM FULL of the table.";
	}
	systable_endscan(scan);
	table_close(classes, AccessShareLock);
	return found;
}

/*
 * See nvm_ddl.h.
 */
void
nvm_ddl_require_fit(void)
{
	Misfit		misfit;

	require_none(find_table(&misfit) || find_index(&misfit, true, InvalidOid), &misfit);
}

/*
 * For nvm_command_register_fit.
 */
static bool
tables_fit(void)
{
	Misfit		misfit;

	if (!find_table(&misfit) && !find_index(&misfit, false, InvalidOid))
		return true;
	ereport(LOG,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("nvm: calls of promoted functions of database %u are logged by values, because table \"%s\" does not fit calls that are logged alone",
					MyDatabaseId, get_rel_name(misfit.relid)),
			 errdetail("Because %s.", misfit.why),
			 errhint("When that is mended by a definition, as DROP INDEX or VACUUM FULL, they are logged alone from the next checkpoint on.")));
	return false;
}

static bool
is_promoted(void)
{
	NvmMode		mode = nvm_command_mode();

	return mode != NVM_MODE_SHADOW && mode != NVM_MODE_UNKNOWN;
}

/*
 * See nvm_ddl.h.
 */
void
nvm_ddl_mode_check(NodeTag tag)
{
	Misfit		misfit;

	if ((tag != T_IndexStmt && tag != T_ReindexStmt && tag != T_AlterTableStmt &&
		 tag != T_CreateStmt && tag != T_CreateTableAsStmt) || !is_promoted())
		return;
	CommandCounterIncrement();
	require_none(find_index(&misfit, false, InvalidOid), &misfit);
}

/*
 * See nvm_ddl.h.
 */
bool
nvm_ddl_reindexes_concurrently(Node *stmt)
{
	return IsA(stmt, ReindexStmt) && has_option(((ReindexStmt *) stmt)->params, "concurrently");
}

/*
 * REINDEX CONCURRENTLY: an index that was never built would come into a file.  The whole
 * database is looked at only if the statement names no single relation.
 */
static void
check_reindex(ReindexStmt *stmt)
{
	Oid			relid = InvalidOid;
	Misfit		misfit;

	if (nvm_index_identity_applies() || !is_promoted())
		return;
	if (stmt->relation != NULL)
	{
		relid = RangeVarGetRelid(stmt->relation, NoLock, true);
		if (get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE ||
			get_rel_relkind(relid) == RELKIND_PARTITIONED_INDEX)
			relid = InvalidOid;
	}
	require_none(find_index(&misfit, true, relid), &misfit);
}

/*
 * See nvm_ddl.h.  One that is made concurrently is there, though not valid, before anybody could
 * look at it.
 */
void
nvm_ddl_mode_check_concurrent(Node *stmt)
{
	IndexStmt  *index = (IndexStmt *) stmt;
	Relation	rel;
	bool		fits;

	if (nvm_ddl_reindexes_concurrently(stmt))
		check_reindex((ReindexStmt *) stmt);
	if (!IsA(stmt, IndexStmt) || !index->concurrent || !is_promoted() ||
		strcmp(index->accessMethod, NVM_BTREE_NAME) == 0 ||
		(strcmp(index->accessMethod, DEFAULT_INDEX_TYPE) == 0 && nvm_index_identity_applies()))
		return;
	rel = table_openrv(index->relation, AccessShareLock);
	fits = !nvm_command_is_table(rel);
	table_close(rel, AccessShareLock);
	if (!fits)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("an index of table \"%s\" cannot lie in files", index->relation->relname),
				 errdetail("Calls are logged alone in this database. A replay puts rows elsewhere, and entries of such an index say where they are."),
				 errhint("Set nvm.default_index_method to nvm_btree, and name no other access method than btree.")));
}

/*
 * In _PG_init.
 */
void
nvm_ddl_register_mode(void)
{
	nvm_command_register_fit(tables_fit);
}
