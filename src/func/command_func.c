/*-------------------------------------------------------------------------
 *
 * command_func.c
 *	  nvm.register_command(), promote_command() and partition_table(), and what takes them back.
 *
 * They set security labels, by SECURITY LABEL, which checks who may.  What they check
 * besides is what a restore cannot: when a dump sets a label, indexes may still be
 * missing.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_language_d.h"
#include "catalog/pg_proc.h"
#include "command/nvm_command.h"
#include "commands/proclang.h"
#include "compat/nvm_compat_am.h"
#include "ddl/nvm_ddl.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/regproc.h"
#include "utils/syscache.h"
#include "xact/nvm_storage.h"

/* that a registration says */
#define MAX_FINDINGS	10

PG_FUNCTION_INFO_V1(nvm_register_command);
PG_FUNCTION_INFO_V1(nvm_unregister_command);
PG_FUNCTION_INFO_V1(nvm_promote_command);
PG_FUNCTION_INFO_V1(nvm_demote_command);
PG_FUNCTION_INFO_V1(nvm_partition_table);
PG_FUNCTION_INFO_V1(nvm_unpartition_table);
PG_FUNCTION_INFO_V1(nvm_reset_commands);

/*
 * SECURITY LABEL for an object; NULL removes it.
 */
static void
set_label(const char *object, const char *label)
{
	StringInfoData command;

	initStringInfo(&command);
	appendStringInfo(&command, "SECURITY LABEL FOR %s ON %s IS %s", NVM_LABEL_PROVIDER,
					 object, label ? quote_literal_cstr(label) : "NULL");
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute(command.data, false, 0) != SPI_OK_UTILITY)
		elog(ERROR, "could not execute \"%s\"", command.data);
	SPI_finish();

	/* now it is there */
	CommandCounterIncrement();
}

/* ---- functions ---- */

/*
 * With the modes of its arguments: two procedures may differ by these alone.
 */
static char *
function_object(Oid function)
{
	Datum		arguments = DirectFunctionCall1(pg_get_function_identity_arguments,
												ObjectIdGetDatum(function));

	return psprintf("%s %s(%s)",
					get_func_prokind(function) == PROKIND_PROCEDURE ? "PROCEDURE" : "FUNCTION",
					quote_qualified_identifier(get_namespace_name(get_func_namespace(function)),
											   get_func_name(function)),
					TextDatumGetCString(arguments));
}

/*
 * Refuse what can never be a command.
 */
static void
require_command(Oid function)
{
	char		kind = get_func_prokind(function);
	Oid			result = get_func_rettype(function);

	if (function < FirstNormalObjectId)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("function %s is built in", format_procedure(function)),
				 errhint("Register a function that calls it.")));
	if (kind != PROKIND_FUNCTION && kind != PROKIND_PROCEDURE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is an aggregate or window function", format_procedure(function)),
				 errhint("Functions and procedures can be registered.")));
	if (result == TRIGGEROID || result == EVENT_TRIGGEROID)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is a trigger function", format_procedure(function)),
				 errdetail("What it does is part of the call that fires the trigger.")));
	if (kind == PROKIND_FUNCTION && func_volatile(function) != PROVOLATILE_VOLATILE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("function %s is not VOLATILE", format_procedure(function)),
				 errdetail("A function that is STABLE or IMMUTABLE sees by the snapshot of its caller, which is older than its lanes."),
				 errhint("ALTER FUNCTION %s VOLATILE.", format_procedure(function))));
}

/*
 * Of languages other than SQL and PL/pgSQL nothing is known.
 */
static void
warn_of_language(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Oid			language;

	if (!HeapTupleIsValid(tuple))
		return;
	language = ((Form_pg_proc) GETSTRUCT(tuple))->prolang;
	ReleaseSysCache(tuple);
	if (language != SQLlanguageId && language != get_language_oid("plpgsql", true))
		ereport(NOTICE,
				(errmsg("what function %s does beside its queries is not looked at",
						format_procedure(function)),
				 errdetail("It is written in language %s. That a call with the same arguments does the same is your word.",
						   get_language_name(language, false))));
}

/*
 * What its text says that a replay could not do again, before anything runs.
 */
static void
warn_of_findings(Oid function)
{
	StringInfoData found;
	ListCell   *lc;
	int			n = 0;

	initStringInfo(&found);
	foreach(lc, nvm_command_inspect(function))
	{
		const NvmCommandFinding *finding = lfirst(lc);
		char	   *object;

		if (finding->reason == NVM_REASON_NONE)
			continue;
		if (n++ >= MAX_FINDINGS)
			continue;
		appendStringInfo(&found, "%s%s", n > 1 ? "\n" : "", format_procedure(finding->place));
		if (finding->line > 0)
			appendStringInfo(&found, ", line %d", finding->line);
		appendStringInfo(&found, ": %s", nvm_command_reason_name(finding->reason));
		object = nvm_command_reason_object(finding->classid, finding->object);
		if (object != NULL)
			appendStringInfo(&found, ": %s", object);
	}
	if (n > MAX_FINDINGS)
		appendStringInfo(&found, "\nand %d more", n - MAX_FINDINGS);
	if (n > 0)
		ereport(NOTICE,
				(errmsg("calls of function %s will be logged by their values where they come to this",
						format_procedure(function)),
				 errdetail("%s", found.data),
				 errhint("nvm.inspect_command() shows the statements; doc/commands.md says what helps.")));
	pfree(found.data);
}

Datum
nvm_register_command(PG_FUNCTION_ARGS)
{
	Oid			function = PG_GETARG_OID(0);
	char	   *lanes = text_to_cstring(PG_GETARG_TEXT_PP(1));
	const NvmCommand *command;

	nvm_table_require();
	if (get_func_name(function) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function with OID %u does not exist", function)));
	require_command(function);
	set_label(function_object(function), nvm_command_form_label(lanes, function, false));

	command = nvm_command_find(function);
	if (command == NULL)
		elog(ERROR, "label of function %u is not found", function);
	if (command->problem != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("function %s cannot be registered", format_procedure(function)),
				 errdetail("Because %s.", command->problem),
				 errhint("Lanes are named by arguments of hashable types, or arrays of them, as in '{w_id}' or '{$1}'.")));
	nvm_command_stat_forget(MyDatabaseId, function);
	warn_of_language(function);
	warn_of_findings(function);
	PG_RETURN_VOID();
}

static void
not_registered(Oid function)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("function %s is not registered",
					get_func_name(function) ? format_procedure(function) : psprintf("%u", function))));
}

/*
 * Its label again, with the lanes that it has.
 */
static void
relabel(Oid function, bool promoted)
{
	char	   *lanes = nvm_command_label_lanes(nvm_command_label(function));

	set_label(function_object(function), nvm_command_form_label(lanes, function, promoted));
}

static const NvmCommand *
require_registered(Oid function)
{
	const NvmCommand *command = nvm_command_find(function);

	if (command == NULL)
		not_registered(function);
	return command;
}

Datum
nvm_unregister_command(PG_FUNCTION_ARGS)
{
	Oid			function = PG_GETARG_OID(0);

	nvm_table_require();
	if (!nvm_command_is_registered(function))
		not_registered(function);
	set_label(function_object(function), NULL);
	PG_RETURN_VOID();
}

/* ---- promotion ---- */

/*
 * Is the function fit to be promoted, as it is now?
 */
static void
require_promotable(Oid function)
{
	const NvmCommand *command = require_registered(function);
	NvmCommandStat stat;

	if (command->problem != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("function %s cannot be promoted", format_procedure(function)),
				 errdetail("Because %s.", command->problem)));
	if (!nvm_command_stat_get(function, &stat) || stat.rehearsed == 0 ||
		stat.rehearsed_as != command->fingerprint)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("function %s cannot be promoted", format_procedure(function)),
				 errdetail("No rehearsal with calls of the function as it is now has passed since the server started."),
				 errhint("Call nvm.checkpoint(), let the application work, and call nvm.rehearse().")));
}

/*
 * One promotion at a time, to the end of its transaction.
 */
static void
lock_promotions(void)
{
	Oid			modes = get_relname_relid("command_modes", get_namespace_oid("nvm", false));

	if (!OidIsValid(modes) || !ConditionalLockRelationOid(modes, ShareUpdateExclusiveLock))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("another session promotes a function of this database"),
				 errhint("Try again when its transaction has ended.")));
}

static void
require_none_prepared(void)
{
	uint64		n;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute("SELECT 1 FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database() "
					"UNION ALL SELECT 1 FROM pg_catalog.pg_locks WHERE pid IS NULL AND database = 0 AND mode <> 'AccessShareLock'",
					false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read pg_prepared_xacts");
	n = SPI_processed;
	SPI_finish();
	if (n > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("a function cannot be promoted while the database has prepared transactions, or one has changed roles"),
				 errhint("End those in pg_prepared_xacts, and try again.")));
}

/*
 * Calls of a registered function are to be logged alone.  command/README.md, "Modes".
 */
Datum
nvm_promote_command(PG_FUNCTION_ARGS)
{
	Oid			function = PG_GETARG_OID(0);
	const NvmCommand *command;

	nvm_table_require();
	command = require_registered(function);
	if (!NvmOwnsFunction(function))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_FUNCTION, get_func_name(function));
	if (command->promoted)
	{
		ereport(NOTICE,
				(errmsg("function %s is promoted already", format_procedure(function))));
		PG_RETURN_VOID();
	}
	require_promotable(function);
	lock_promotions();
	/* it would be waited for: so before, too */
	require_none_prepared();
	nvm_command_promote_begins();

	/*
	 * Others may have changed what was looked at.  One that has left the proc
	 * array was not waited for, and may not have sent its messages yet: so
	 * nothing that was read before is believed.
	 */
	InvalidateSystemCaches();
	require_promotable(function);
	require_none_prepared();
	nvm_ddl_require_fit();
	nvm_command_promotes = function;
	PG_TRY();
	{
		relabel(function, true);
	}
	PG_FINALLY();
	{
		nvm_command_promotes = InvalidOid;
	}
	PG_END_TRY();
	PG_RETURN_VOID();
}

Datum
nvm_demote_command(PG_FUNCTION_ARGS)
{
	Oid			function = PG_GETARG_OID(0);

	nvm_table_require();
	if (!require_registered(function)->was_promoted)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("function %s is not promoted", format_procedure(function))));
	relabel(function, false);
	PG_RETURN_VOID();
}

Datum
nvm_reset_commands(PG_FUNCTION_ARGS)
{
	nvm_table_require();
	nvm_command_stat_forget(MyDatabaseId, InvalidOid);
	PG_RETURN_VOID();
}

/* ---- tables ---- */

static char *
column_object(Relation rel, AttrNumber column)
{
	return psprintf("COLUMN %s.%s",
					quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
											   RelationGetRelationName(rel)),
					quote_identifier(NameStr(TupleDescAttr(RelationGetDescr(rel), column - 1)->attname)));
}

static Relation
open_owned_table(Oid relid)
{
	Relation	rel = relation_open(relid, AccessExclusiveLock);

	if (rel->rd_rel->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a table that has rows of its own",
						RelationGetRelationName(rel)),
				 errhint("Of a partitioned table name each partition.")));
	return rel;
}

static void
require_owner(Oid relid)
{
	char	   *name = get_rel_name(relid);

	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	if (!NvmOwnsRelation(relid))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of table %s", name)));
}

Datum
nvm_partition_table(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	char	   *name = NameStr(*PG_GETARG_NAME(1));
	Relation	rel;
	AttrNumber	column;
	AttrNumber	before;
	const char *problem;

	nvm_table_require();
	require_owner(relid);
	/* before the lock, which calls may wait for */
	nvm_command_ddl_comes();
	rel = open_owned_table(relid);
	column = get_attnum(relid, name);
	if (column <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of table \"%s\" does not exist", name,
						RelationGetRelationName(rel))));
	problem = nvm_command_column_problem(rel, column);

	if (problem != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" cannot be partitioned by column \"%s\"",
						RelationGetRelationName(rel), name),
				 errdetail("Because %s.", problem),
				 errhint("The column must be NOT NULL, of a hashable type, and a key of each unique index.")));
	before = nvm_command_labelled_column(relid);
	if (before != InvalidAttrNumber && before != column)
		set_label(column_object(rel, before), NULL);
	set_label(column_object(rel, column), NVM_PARTITION_LABEL);
	if (!nvm_command_is_table(rel))
		ereport(NOTICE,
				(errmsg("table \"%s\" is not a permanent table of access method nvm_cmdlog",
						RelationGetRelationName(rel)),
				 errdetail("That it is partitioned has no effect before it is.")));
	relation_close(rel, NoLock);
	PG_RETURN_VOID();
}

Datum
nvm_unpartition_table(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	Relation	rel;
	AttrNumber	column;

	nvm_table_require();
	require_owner(relid);
	/* before the lock, which calls may wait for */
	nvm_command_ddl_comes();
	rel = open_owned_table(relid);
	column = nvm_command_labelled_column(relid);
	if (column == InvalidAttrNumber)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table \"%s\" is not partitioned", RelationGetRelationName(rel))));
	set_label(column_object(rel, column), NULL);
	relation_close(rel, NoLock);
	PG_RETURN_VOID();
}
