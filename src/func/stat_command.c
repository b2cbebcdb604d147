/*-------------------------------------------------------------------------
 *
 * stat_command.c
 *	  nvm.commands_info() and nvm.partition_info(): what is registered, and what came of it.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "command/nvm_command.h"
#include "fmgr.h"
#include "func/nvm_stat_row.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "xact/nvm_storage.h"

PG_FUNCTION_INFO_V1(nvm_commands_info);
PG_FUNCTION_INFO_V1(nvm_command_mode_info_of);
PG_FUNCTION_INFO_V1(nvm_command_reasons_info);
PG_FUNCTION_INFO_V1(nvm_partition_info);
PG_FUNCTION_INFO_V1(nvm_inspect_command);

/*
 * {"reason": count, ...}
 */
static Datum
reasons_json(const NvmCommandStat *stat)
{
	StringInfoData json;
	const char *separator = "";

	initStringInfo(&json);
	appendStringInfoChar(&json, '{');
	for (int i = NVM_REASON_NONE + 1; i < NVM_NUM_REASONS; i++)
	{
		if (stat->reasons[i] == 0)
			continue;
		appendStringInfo(&json, "%s\"%s\": " INT64_FORMAT, separator,
						 nvm_command_reason_name(i), stat->reasons[i]);
		separator = ", ";
	}
	appendStringInfoChar(&json, '}');
	return DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data));
}

static void
put_command(Oid function, void *arg)
{
	NvmStatRow	row = {0};
	const NvmCommand *command = nvm_command_find(function);
	const char *label = nvm_command_label(function);
	NvmCommandStat stat = {0};

	if (command == NULL || label == NULL)
		return;
	(void) nvm_command_stat_get(function, &stat);
	nvm_stat_datum(&row, ObjectIdGetDatum(function));
	nvm_stat_text(&row, nvm_command_label_lanes(label));
	nvm_stat_text(&row, command->problem ? "unsuitable" : command->promoted ? "promoted" :
				  command->was_promoted ? "changed" : "shadow");
	nvm_stat_text(&row, command->problem);
	nvm_stat_count(&row, stat.calls);
	nvm_stat_count(&row, stat.replayable);
	nvm_stat_count(&row, stat.by_values);
	nvm_stat_count(&row, stat.unlogged);
	nvm_stat_datum(&row, reasons_json(&stat));
	if (stat.last_reason != NVM_REASON_NONE)
	{
		nvm_stat_text(&row, nvm_command_reason_name(stat.last_reason));
		nvm_stat_text(&row, nvm_command_reason_object(stat.last_class, stat.last_object));
		nvm_stat_text(&row, stat.last_query);
		nvm_stat_time(&row, stat.last_time);
	}
	else
		nvm_stat_nulls(&row, 4);
	nvm_stat_datum_if(&row, stat.calls != 0,
					  Float8GetDatum(stat.calls == 0 ? 0 : (double) stat.usec / stat.calls / 1000.0));
	nvm_stat_count(&row, stat.call_bytes);
	nvm_stat_count(&row, stat.value_bytes);
	nvm_stat_time(&row, stat.rehearsed);
	nvm_stat_datum_if(&row, stat.replay_usec > 0,
					  Float8GetDatum(stat.replay_usec == 0 ? 0 : stat.replayed / (stat.replay_usec / 1e6)));
	nvm_stat_count(&row, stat.alone);
	nvm_stat_put((ReturnSetInfo *) arg, &row);
}

Datum
nvm_commands_info(PG_FUNCTION_ARGS)
{
	nvm_table_require();
	InitMaterializedSRF(fcinfo, 0);
	nvm_command_each(put_command, fcinfo->resultinfo);
	return (Datum) 0;
}

/*
 * The mode of a database; NULL: nothing is known of it.
 */
Datum
nvm_command_mode_info_of(PG_FUNCTION_ARGS)
{
	NvmModeInfo info;
	NvmStatRow	row = {0};

	nvm_table_require();
	if (PG_GETARG_OID(0) == MyDatabaseId)
		(void) nvm_command_find_mode();
	if (!nvm_command_mode_info(PG_GETARG_OID(0), &info))
		PG_RETURN_NULL();
	nvm_stat_text(&row, nvm_command_mode_name(info.mode));
	nvm_stat_datum(&row, BoolGetDatum(info.armed));
	nvm_stat_datum(&row, Int32GetDatum(info.nddl));
	nvm_stat_datum(&row, BoolGetDatum(info.covered));
	PG_RETURN_DATUM(nvm_stat_result(fcinfo, &row));
}

/*
 * Each reason of each function that is registered, with what and where it was last.
 */
Datum
nvm_command_reasons_info(PG_FUNCTION_ARGS)
{
	List	   *reasons;
	ListCell   *lc;

	nvm_table_require();
	InitMaterializedSRF(fcinfo, 0);
	reasons = nvm_command_reasons();
	foreach(lc, reasons)
	{
		NvmCommandReason *reason = lfirst(lc);
		NvmStatRow	row = {0};

		if (!nvm_command_is_registered(reason->function))
			continue;
		nvm_stat_datum(&row, ObjectIdGetDatum(reason->function));
		nvm_stat_text(&row, nvm_command_reason_name(reason->reason));
		nvm_stat_count(&row, reason->transactions);
		nvm_stat_text(&row, nvm_command_reason_object(reason->classid, reason->object));
		nvm_stat_datum_if(&row, OidIsValid(reason->place), ObjectIdGetDatum(reason->place));
		nvm_stat_datum_if(&row, reason->line > 0, Int32GetDatum(reason->line));
		nvm_stat_text(&row, reason->statement);
		nvm_stat_text(&row, reason->query);
		nvm_stat_time(&row, reason->time);
		nvm_stat_put((ReturnSetInfo *) fcinfo->resultinfo, &row);
	}
	return (Datum) 0;
}

/*
 * The column by which a table is partitioned, and why it is shared all the same.
 */
Datum
nvm_partition_info(PG_FUNCTION_ARGS)
{
	NvmStatRow	row = {0};
	Relation	rel;
	AttrNumber	column;
	const char *problem = NULL;

	nvm_table_require();
	rel = try_relation_open(PG_GETARG_OID(0), AccessShareLock);
	if (rel == NULL)
		PG_RETURN_NULL();
	column = nvm_command_labelled_column(RelationGetRelid(rel));
	if (column != InvalidAttrNumber)
	{
		nvm_stat_text(&row, NameStr(TupleDescAttr(RelationGetDescr(rel), column - 1)->attname));
		(void) nvm_command_partition_column(rel, &problem);
	}
	else
		nvm_stat_nulls(&row, 1);
	if (problem == NULL && !nvm_command_is_table(rel))
		problem = "it is not a permanent table of access method nvm_cmdlog";
	nvm_stat_text(&row, problem);
	relation_close(rel, AccessShareLock);
	PG_RETURN_DATUM(nvm_stat_result(fcinfo, &row));
}

/*
 * What calls of a function may do that a replay could not do again, by its text.
 */
Datum
nvm_inspect_command(PG_FUNCTION_ARGS)
{
	Oid			function = PG_GETARG_OID(0);
	ListCell   *lc;

	nvm_table_require();
	if (get_func_name(function) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function with OID %u does not exist", function)));
	InitMaterializedSRF(fcinfo, 0);
	foreach(lc, nvm_command_inspect(function))
	{
		const NvmCommandFinding *finding = lfirst(lc);
		NvmStatRow	row = {0};

		nvm_stat_datum(&row, ObjectIdGetDatum(finding->place));
		nvm_stat_datum_if(&row, finding->line > 0, Int32GetDatum(finding->line));
		nvm_stat_text(&row, finding->reason != NVM_REASON_NONE ? nvm_command_reason_name(finding->reason) :
					  finding->problem == NULL ? "not known before it runs" :
					  psprintf("not known before it runs: %s", finding->problem));
		nvm_stat_text(&row, nvm_command_reason_object(finding->classid, finding->object));
		nvm_stat_text(&row, finding->statement);
		nvm_stat_put((ReturnSetInfo *) fcinfo->resultinfo, &row);
	}
	return (Datum) 0;
}
