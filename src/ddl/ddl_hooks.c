/*-------------------------------------------------------------------------
 *
 * ddl_hooks.c
 *	  Where DDL reaches us although it does not ask the access method.
 *
 * Dropping a relation calls no access method, nor does CREATE DATABASE, hence
 * object_access_hook.  DROP DATABASE calls that too early (ddl_database.c), and
 * CREATE RULE not at all when it turns a table into a view, hence
 * ProcessUtility_hook.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "btree/nvm_btree.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_inherits.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "ddl/nvm_ddl.h"
#include "miscadmin.h"
#include "storage/nvm_storage_relation.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"

static object_access_hook_type prev_object_access_hook = NULL;
static ProcessUtility_hook_type prev_ProcessUtility_hook = NULL;

/* the template of the CREATE DATABASE that is running, or NULL */
static const char *createdb_template = NULL;

/* the database of the DROP DATABASE that is running */
static Oid	dropdb_database = InvalidOid;

/* a table is being attached to a partitioned one */
static bool attaching = false;

/* a table goes to another access method */
static bool moving = false;

/* by the running ALTER TABLE tables may have to be rewritten: nothing is built */
static bool rewriting = false;

/*
 * Access method of relation relid, which this command has made, if it is an
 * index; perhaps one of a partitioned table.  The catalogs do not show it yet,
 * the relcache does.
 */
static Oid
ddl_created_index_method(Oid relid, bool *partitioned)
{
	Relation	rel = RelationIdGetRelation(relid);
	Oid			am = InvalidOid;

	*partitioned = false;
	if (rel != NULL)
	{
		*partitioned = rel->rd_rel->relkind == RELKIND_PARTITIONED_INDEX;
		if (rel->rd_rel->relkind == RELKIND_INDEX || *partitioned)
			am = rel->rd_rel->relam;
		RelationClose(rel);
	}
	return am;
}

/*
 * object_access_hook: relations and databases come and go.
 */
static void
ddl_object_access(ObjectAccessType access, Oid classId, Oid objectId,
				  int subId, void *arg)
{
	if (prev_object_access_hook)
		prev_object_access_hook(access, classId, objectId, subId, arg);

	/* its template is locked by now: the name means what it meant to createdb */
	if (classId == DatabaseRelationId && access == OAT_POST_CREATE &&
		createdb_template != NULL)
		nvm_ddl_copy_database(createdb_template,
							  get_database_oid(createdb_template, false), objectId);
	if (classId == DatabaseRelationId && access == OAT_DROP)
		dropdb_database = objectId;

	if (classId == InheritsRelationId && access == OAT_POST_ALTER && attaching)
		nvm_ddl_attached_table(((ObjectAccessPostAlter *) arg)->auxiliary_id, objectId);

	if (classId != RelationRelationId || subId != 0)
		return;
	if (access == OAT_DROP)
	{
		/* also the transient table of a rewrite: it has the old storage */
		uint32		dir = nvm_storage_of(objectId);

		if (get_rel_relkind(objectId) == RELKIND_INDEX)
			nvm_ddl_drop_index(objectId, dir,
							   arg ? ((ObjectAccessDrop *) arg)->dropflags : 0);
		else if (dir != 0)
			nvm_storage_end(dir);
		return;
	}
	if (access == OAT_POST_CREATE || access == OAT_POST_ALTER)
		nvm_ddl_watch_relation(objectId);
	if (access == OAT_POST_ALTER && moving && arg != NULL &&
		((ObjectAccessPostAlter *) arg)->is_internal)
		nvm_ddl_swapped_table(objectId);
	if (access == OAT_POST_CREATE)
	{
		bool		partitioned;
		Oid			am = ddl_created_index_method(objectId, &partitioned);

		if (OidIsValid(am) && am == get_index_am_oid(NVM_BTREE_NAME, true))
			nvm_ddl_created_index(objectId);
		else if (partitioned && !rewriting)
			nvm_ddl_created_partitioned_index(objectId);
		else if (am == BTREE_AM_OID && !partitioned)
			nvm_ddl_created_btree(objectId);
		else if (arg != NULL && ((ObjectAccessPostCreate *) arg)->is_internal)
			nvm_ddl_created_relation(objectId);
	}
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
 * LOAD: pg_upgrade --check tries all libraries of the old cluster that way.
 */
static void
ddl_load(const char *filename)
{
	const char *base = last_dir_separator(filename);

	base = base ? base + 1 : filename;
	if (strcmp(base, "pg_nvm") == 0 || strcmp(base, "pg_nvm.so") == 0)
		nvm_storage_refuse_upgrade();
}

/*
 * The rest of the chain.
 */
static void
ddl_next_process_utility(PlannedStmt *pstmt, const char *queryString,
						 bool readOnlyTree, ProcessUtilityContext context,
						 ParamListInfo params, QueryEnvironment *queryEnv,
						 DestReceiver *dest, QueryCompletion *qc)
{
	if (prev_ProcessUtility_hook)
		prev_ProcessUtility_hook(pstmt, queryString, readOnlyTree, context,
								 params, queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context,
								params, queryEnv, dest, qc);
}

/*
 * Execute a statement, and do what it means to us.
 */
static void
ddl_execute(PlannedStmt *pstmt, const char *queryString,
			bool readOnlyTree, ProcessUtilityContext context,
			ParamListInfo params, QueryEnvironment *queryEnv,
			DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *stmt = pstmt->utilityStmt;
	NodeTag		tag = nodeTag(stmt);
	bool		settle = false;
	Oid			relid = InvalidOid;
	uint32		dir = 0;

	if (IsA(stmt, CreatedbStmt))
	{
		const char *template = ddl_option(((CreatedbStmt *) stmt)->options, "template");

		createdb_template = template ? template : "template1";
		PG_TRY();
		{
			ddl_next_process_utility(pstmt, queryString, readOnlyTree, context,
									 params, queryEnv, dest, qc);
		}
		PG_FINALLY();
		{
			createdb_template = NULL;
		}
		PG_END_TRY();
		return;
	}

	if (IsA(stmt, DropdbStmt))
	{
		nvm_ddl_before_drop_database();
		dropdb_database = InvalidOid;
	}
	else if (IsA(stmt, LoadStmt))
		ddl_load(((LoadStmt *) stmt)->filename);
	else if (IsA(stmt, RuleStmt) && ((RuleStmt *) stmt)->event == CMD_SELECT)
	{
		/* before 16, an ON SELECT rule may make a view of a table */
		relid = RangeVarGetRelid(((RuleStmt *) stmt)->relation,
								 AccessExclusiveLock, true);
		if (OidIsValid(relid))
			dir = nvm_storage_of(relid);
	}

	else if (IsA(stmt, TransactionStmt))
		settle = ((TransactionStmt *) stmt)->kind == TRANS_STMT_COMMIT_PREPARED ||
			((TransactionStmt *) stmt)->kind == TRANS_STMT_ROLLBACK_PREPARED;

	ddl_next_process_utility(pstmt, queryString, readOnlyTree, context,
							 params, queryEnv, dest, qc);

	/* what ends transactions may have freed the statement */
	if (tag != T_TransactionStmt && tag != T_CallStmt && tag != T_DoStmt)
		nvm_ddl_check_publication(stmt);
	if (tag == T_DropdbStmt && OidIsValid(dropdb_database))
		nvm_ddl_drop_database(dropdb_database);

	/* PostgreSQL has no callback for these; others wait for the keeper */
	if (settle)
		nvm_twophase_settle();
	if (dir != 0)
	{
		CommandCounterIncrement();
		if (get_rel_relkind(relid) == RELKIND_VIEW)
			nvm_storage_end(dir);
	}
}

/*
 * Is it ATTACH PARTITION?
 */
static bool
ddl_attaches(AlterTableStmt *stmt)
{
	return stmt->cmds != NIL &&
		linitial_node(AlterTableCmd, stmt->cmds)->subtype == AT_AttachPartition;
}

/*
 * Does it SET ACCESS METHOD?
 */
static bool
ddl_moves(AlterTableStmt *stmt)
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
 * May the transaction do anything else after this command?  What the extended
 * protocol brings is not known before the Sync, by which the transaction ends.
 */
static bool
ddl_goes_on(ProcessUtilityContext context, DestReceiver *dest)
{
	return context != PROCESS_UTILITY_TOPLEVEL || IsTransactionBlock() ||
		(dest->mydest != DestRemote && dest->mydest != DestDebug);
}

/*
 * The same for a command after which access methods and storages of indexes
 * may have to be put right.
 */
static void
ddl_execute_watched(PlannedStmt *pstmt, const char *queryString,
					bool readOnlyTree, ProcessUtilityContext context,
					ParamListInfo params, QueryEnvironment *queryEnv,
					DestReceiver *dest, QueryCompletion *qc)
{
	NvmIndexWatch w;
	int			outer_posing = nvm_ddl_posing();
	bool		outer_attaching = attaching;
	bool		outer_moving = moving;
	bool		outer_rewriting = rewriting;

	nvm_ddl_watch_begin(&w);
	PG_TRY();
	{
		attaching = moving = rewriting = false;
		nvm_ddl_lock_tables(pstmt->utilityStmt);
		if (IsA(pstmt->utilityStmt, AlterTableStmt))
		{
			AlterTableStmt *stmt = (AlterTableStmt *) pstmt->utilityStmt;

			nvm_ddl_attach_index(stmt);
			nvm_ddl_pose_as_btree(stmt);
			nvm_ddl_lay_aside(stmt, &w);
			attaching = ddl_attaches(stmt);
			moving = ddl_moves(stmt);
			rewriting = !attaching && !nvm_ddl_only_index_constraints(stmt);
		}
		ddl_execute(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	}
	PG_FINALLY();
	{
		attaching = outer_attaching;
		moving = outer_moving;
		rewriting = outer_rewriting;
		nvm_ddl_pose_end(outer_posing);
		nvm_ddl_watch_end(&w);
	}
	PG_END_TRY();
	nvm_ddl_settle_indexes(&w, ddl_goes_on(context, dest));
}

/*
 * A row is written by what the catalogs say at that moment: a column that was
 * added, a new label of an enum.  It is durable without the WAL, and under
 * synchronous_commit = off a crash could lose the command that it needs.  So
 * none commits like that where there may be nvm tables, but of temporary ones.
 */
static void
commit_in_time(Node *stmt)
{
	bool		temporary =
	(IsA(stmt, CreateStmt) && ((CreateStmt *) stmt)->relation->relpersistence == RELPERSISTENCE_TEMP) ||
	(IsA(stmt, CreateTableAsStmt) &&
	 ((CreateTableAsStmt *) stmt)->into->rel->relpersistence == RELPERSISTENCE_TEMP);

	if (!temporary && GetCommandLogLevel(stmt) == LOGSTMT_DDL && IsTransactionState() &&
		OidIsValid(get_table_am_oid("nvm", true)))
		ForceSyncCommit();
}

/*
 * ProcessUtility_hook
 */
static void
ddl_process_utility(PlannedStmt *pstmt, const char *queryString,
					bool readOnlyTree, ProcessUtilityContext context,
					ParamListInfo params, QueryEnvironment *queryEnv,
					DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *stmt = pstmt->utilityStmt;

	nvm_ddl_pose_settled();
	commit_in_time(stmt);
	pstmt = nvm_ddl_choose_index_method(nvm_ddl_clone_index(pstmt), queryString);
	nvm_ddl_prepare_index_method(pstmt);
	pstmt = nvm_ddl_name_opclasses(pstmt);
	if (IsA(stmt, AlterTableStmt) || IsA(stmt, AlterTableMoveAllStmt) || IsA(stmt, DropStmt))
		ddl_execute_watched(pstmt, queryString, readOnlyTree, context, params,
							queryEnv, dest, qc);
	else
		ddl_execute(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	nvm_index_settle_relpages();
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
	nvm_ddl_register_index_callbacks();
}
