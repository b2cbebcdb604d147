/*-------------------------------------------------------------------------
 *
 * ddl_hooks.c
 *	  Where DDL reaches us although it does not ask the access method.
 *
 * Dropping a relation calls no access method, nor does CREATE DATABASE; hence
 * object_access_hook.  DROP DATABASE calls that hook too early
 * (ddl_database.c).  CREATE RULE does not call it at all when it turns a table
 * into a view.  Hence ProcessUtility_hook.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_identity.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_proc.h"
#include "command/nvm_command.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "ddl/nvm_ddl.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"
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

/*
 * A utility statement.  Statements that object_access_hook has to know of form
 * a stack, as a statement can execute others.  Each is on the stack while it
 * runs.
 */
typedef struct DdlCommand
{
	struct DdlCommand *outer;

	/* what ProcessUtility was called with */
	PlannedStmt *pstmt;
	const char *queryString;
	bool		readOnlyTree;
	ProcessUtilityContext context;
	ParamListInfo params;
	QueryEnvironment *queryEnv;
	DestReceiver *dest;
	QueryCompletion *qc;

	/* of CREATE DATABASE */
	const char *template;
	/* of DROP DATABASE: what it has dropped */
	Oid			dropped;
	/* of ALTER TABLE */
	bool		moving;			/* a table goes to another access method */
} DdlCommand;

static DdlCommand *ddl_command = NULL;	/* the innermost, or NULL */

static void
ddl_push(DdlCommand *command)
{
	command->outer = ddl_command;
	ddl_command = command;
}

/*
 * Also after an ERROR: the caller has a PG_FINALLY.
 */
static void
ddl_pop(DdlCommand *command)
{
	Assert(ddl_command == command);
	ddl_command = command->outer;
}

/*
 * Access method of relation relid, which this command has made, if it is an
 * index; *partitioned if it is one of a partitioned table.  The catalogs do not
 * show it yet, the relcache does.
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
	static const DdlCommand none = {0};
	const DdlCommand *command = ddl_command ? ddl_command : &none;

	if (prev_object_access_hook)
		prev_object_access_hook(access, classId, objectId, subId, arg);

	/* its template is locked by now: the name means what it meant to createdb */
	if (classId == DatabaseRelationId && access == OAT_POST_CREATE &&
		command->template != NULL)
		nvm_ddl_copy_database(command->template,
							  get_database_oid(command->template, false), objectId);
	if (classId == DatabaseRelationId && access == OAT_DROP && ddl_command != NULL)
		ddl_command->dropped = objectId;
	if (classId == ProcedureRelationId && access == OAT_DROP && nvm_command_is_registered(objectId))
		nvm_command_stat_forget(MyDatabaseId, objectId);

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
		{
			if ((nvm_dir_entry(dir)->flags & NVM_DIR_COMMANDS) != 0)
				nvm_command_ddl_comes();
			nvm_storage_end(dir);
		}
		return;
	}
	if (access == OAT_POST_CREATE || access == OAT_POST_ALTER)
		nvm_ddl_watch_relation(objectId);
	if (access == OAT_POST_ALTER && command->moving && arg != NULL &&
		((ObjectAccessPostAlter *) arg)->is_internal)
		nvm_ddl_swapped_table(objectId);
	if (access == OAT_POST_CREATE)
	{
		bool		partitioned;
		Oid			am = ddl_created_index_method(objectId, &partitioned);

		if (OidIsValid(am) && am == get_index_am_oid(NVM_BTREE_NAME, true))
			nvm_ddl_created_index(objectId);
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
ddl_next(DdlCommand *c)
{
	ProcessUtility_hook_type next =
	prev_ProcessUtility_hook ? prev_ProcessUtility_hook : standard_ProcessUtility;

	next(c->pstmt, c->queryString, c->readOnlyTree, c->context, c->params, c->queryEnv,
		 c->dest, c->qc);
}

/*
 * CREATE DATABASE and DROP DATABASE, which object_access_hook has to know of.
 */
static void
ddl_execute_database(DdlCommand *command)
{
	ddl_push(command);
	PG_TRY();
	{
		ddl_next(command);
	}
	PG_CATCH();					/* gcc warns of PG_FINALLY of 18 here */
	{
		ddl_pop(command);
		PG_RE_THROW();
	}
	PG_END_TRY();
	ddl_pop(command);
}

/*
 * Execute a statement, and take the steps that follow from it for us.
 */
static void
ddl_execute(DdlCommand *command)
{
	Node	   *stmt = command->pstmt->utilityStmt;
	NodeTag		tag = nodeTag(stmt);
	bool		settle = false;
	Oid			relid = InvalidOid;
	uint32		dir = 0;

	if (IsA(stmt, CreatedbStmt))
	{
		const char *template = ddl_option(((CreatedbStmt *) stmt)->options, "template");

		command->template = template ? template : "template1";
		ddl_execute_database(command);
		return;
	}
	if (IsA(stmt, DropdbStmt))
	{
		nvm_ddl_before_drop_database();
		ddl_execute_database(command);
		nvm_ddl_check_publication(stmt);
		if (OidIsValid(command->dropped))
		{
			nvm_ddl_drop_database(command->dropped);
			nvm_command_stat_forget(command->dropped, InvalidOid);
			nvm_command_mode_forget(command->dropped);
		}
		return;
	}

	if (IsA(stmt, LoadStmt))
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
	/* its record is flushed inside the statement, ahead of PRE_COMMIT */
	if (settle && nvm_log_is_on)
		nvm_log_wait_rests();

	ddl_next(command);

	/* a statement that ends transactions may have been freed by that */
	if (tag != T_TransactionStmt && tag != T_CallStmt && tag != T_DoStmt)
		nvm_ddl_check_publication(stmt);

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
 * May the transaction do anything else after this command?  With the extended
 * protocol that is not known before the Sync, which ends the transaction.
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
ddl_execute_watched(DdlCommand *command)
{
	Node	   *stmt = command->pstmt->utilityStmt;
	NvmIndexWatch w;

	ddl_push(command);
	nvm_ddl_watch_begin(&w);
	PG_TRY();
	{
		nvm_ddl_lock_tables(stmt);
		if (IsA(stmt, AlterTableStmt))
		{
			AlterTableStmt *alter = (AlterTableStmt *) stmt;

			nvm_ddl_lay_aside(alter, &w);
			command->moving = ddl_moves(alter);
		}
		ddl_execute(command);
	}
	PG_FINALLY();
	{
		ddl_pop(command);
		nvm_ddl_watch_end(&w);
	}
	PG_END_TRY();
	nvm_ddl_settle_indexes(&w, ddl_goes_on(command->context, command->dest));
}

/*
 * A row is written as the catalogs say at that moment, with a column that was
 * added, or a new label of an enum.  The row is durable without the WAL.
 * Under synchronous_commit = off a crash could lose the command that the row
 * needs.  So where there may be nvm tables no such command commits like that,
 * except one on temporary tables.
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
 * All but what is said of DDL to calls that are logged alone.
 */
static void
ddl_process(PlannedStmt *pstmt, DdlCommand *command)
{
	Node	   *stmt = pstmt->utilityStmt;
	bool		reindexes = nvm_index_reindexes;

	/* an ERROR ends it, too (btree_takeover.c) */
	nvm_index_reindexes = nvm_ddl_reindexes_concurrently(stmt);
	commit_in_time(stmt);
	pstmt = nvm_ddl_vacuum_available(pstmt, command->context == PROCESS_UTILITY_TOPLEVEL);
	if (pstmt == NULL)
		return;
	pstmt = nvm_ddl_choose_index_method(nvm_ddl_clone_index(pstmt), command->queryString);
	nvm_ddl_prepare_index_method(pstmt);
	command->pstmt = nvm_ddl_name_opclasses(pstmt);
	nvm_ddl_mode_check_concurrent(command->pstmt->utilityStmt);
	if (IsA(stmt, AlterTableStmt) || IsA(stmt, AlterTableMoveAllStmt) || IsA(stmt, DropStmt))
		ddl_execute_watched(command);
	else
		ddl_execute(command);
	nvm_index_reindexes = reindexes;
	nvm_index_settle_builds();
	nvm_index_settle_relpages();
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
	NodeTag		tag = nodeTag(stmt);
	DdlCommand	command = {
		.queryString = queryString,.readOnlyTree = readOnlyTree,.context = context,
		.params = params,.queryEnv = queryEnv,.dest = dest,.qc = qc
	};

	nvm_command_utility(stmt, queryString);
	if (likely(!nvm_ddl_is_ddl(stmt)))
	{
		ddl_process(pstmt, &command);
		/* it may have built what was never built, into a file */
		if (tag == T_ReindexStmt)
			nvm_ddl_mode_check(tag);
		return;
	}
	PG_TRY();
	{
		nvm_ddl_mode_begins(stmt);
		ddl_process(pstmt, &command);
		nvm_ddl_mode_check(tag);
	}
	PG_FINALLY();
	{
		nvm_command_ddl_statement_ends();
	}
	PG_END_TRY();
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
	nvm_ddl_register_mode();
}
