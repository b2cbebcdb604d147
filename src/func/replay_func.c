/*-------------------------------------------------------------------------
 *
 * replay_func.c
 *	  nvm.rehearse(), nvm.replay_command_log() and nvm.replay_info().
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "fmgr.h"
#include "func/nvm_stat_row.h"
#include "funcapi.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "replay/nvm_replay.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "xact/nvm_storage.h"

PG_FUNCTION_INFO_V1(nvm_rehearse);
PG_FUNCTION_INFO_V1(nvm_replay_command_log);
PG_FUNCTION_INFO_V1(nvm_replay_info_sql);
PG_FUNCTION_INFO_V1(nvm_resume_replay);
PG_FUNCTION_INFO_V1(nvm_end_replay);
PG_FUNCTION_INFO_V1(nvm_replayed_databases);

static void
require_superuser(void)
{
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to replay the command log"),
				 errdetail("A replay reads all tables of nvm_cmdlog, and calls functions as those who have called them.")));
}

static double
seconds_between(uint64 from, uint64 to)
{
	return from == 0 || to < from ? 0 : (to - from) / 1e6;
}

/*
 * What came of a replay: the columns that both functions return.
 */
static Datum
put_result(FunctionCallInfo fcinfo, const NvmReplayInfo *info)
{
	NvmStatRow	row = {0};
	const NvmReplayFailure *failure = &info->failure;

	nvm_stat_datum(&row, BoolGetDatum(info->passed));
	nvm_stat_count(&row, NVM_REPLAY_COUNT_OF(info, tables));
	nvm_stat_count(&row, NVM_REPLAY_COUNT_OF(info, base_rows));
	nvm_stat_count(&row, NVM_REPLAY_COUNT_OF(info, records));
	nvm_stat_count(&row, NVM_REPLAY_COUNT_OF(info, calls));
	nvm_stat_count(&row, NVM_REPLAY_COUNT_OF(info, value_rows));
	nvm_stat_datum(&row, Float8GetDatum(seconds_between(NVM_REPLAY_COUNT_OF(info, play_started),
														NVM_REPLAY_COUNT_OF(info, play_ended))));
	nvm_stat_text(&row, info->request.keep && info->passed ? info->request.schema : NULL);
	nvm_stat_text(&row, info->failed ? failure->message : NULL);
	nvm_stat_text(&row, info->failed ? failure->detail : NULL);
	nvm_stat_text(&row, info->failed ? failure->call : NULL);
	nvm_stat_datum_if(&row, info->failed && failure->position != 0,
					  Int64GetDatum((int64) failure->position));
	return nvm_stat_result(fcinfo, &row);
}

static void
begin_request(NvmReplayRequest *request)
{
	require_superuser();
	nvm_table_require();
	memset(request, 0, sizeof(*request));
	request->database = MyDatabaseId;
}

static int
workers_argument(FunctionCallInfo fcinfo, int argument)
{
	int			workers = PG_ARGISNULL(argument) ? 0 : PG_GETARG_INT32(argument);

	if (workers < 0 || workers > NVM_REPLAY_MAX_PLAYERS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("number of workers must be between 0 and %d", NVM_REPLAY_MAX_PLAYERS)));
	return workers;
}

/*
 * nvm.rehearse(workers, keep)
 */
Datum
nvm_rehearse(PG_FUNCTION_ARGS)
{
	NvmReplayRequest request;
	NvmReplayInfo info;

	begin_request(&request);
	request.rehearse = true;
	request.nplayers = workers_argument(fcinfo, 0);
	request.keep = !PG_ARGISNULL(1) && PG_GETARG_BOOL(1);
	strlcpy(request.schema, NVM_REPLAY_SCHEMA, sizeof(request.schema));
	nvm_replay_run(&request, &info);
	return put_result(fcinfo, &info);
}

/*
 * nvm.replay_command_log(upto, schema, workers)
 */
Datum
nvm_replay_command_log(PG_FUNCTION_ARGS)
{
	NvmReplayRequest request;
	NvmReplayInfo info;

	begin_request(&request);
	request.keep = true;
	if (!PG_ARGISNULL(0) && TIMESTAMP_NOT_FINITE(PG_GETARG_TIMESTAMPTZ(0)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the moment up to which to replay must be finite"),
				 errhint("Leave it out to replay all.")));
	request.upto = PG_ARGISNULL(0) ? 0 : PG_GETARG_TIMESTAMPTZ(0);
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("the schema of the copy must not be null")));
	strlcpy(request.schema, NameStr(*PG_GETARG_NAME(1)), sizeof(request.schema));
	if (OidIsValid(get_namespace_oid(request.schema, true)))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_SCHEMA),
				 errmsg("schema \"%s\" already exists", request.schema),
				 errhint("Name another one, or drop it.")));
	request.nplayers = workers_argument(fcinfo, 2);
	nvm_replay_run(&request, &info);
	return put_result(fcinfo, &info);
}

/*
 * View nvm.replay: the replay that runs, or has run last.
 */
Datum
nvm_replay_info_sql(PG_FUNCTION_ARGS)
{
	NvmStatRow	row = {0};
	NvmReplayInfo info;
	uint64		ended;

	nvm_table_require();
	nvm_replay_info(&info);
	ended = NVM_REPLAY_COUNT_OF(&info, play_ended);
	nvm_stat_text(&row, nvm_replay_phase_name(info.phase));
	nvm_stat_datum_if(&row, info.phase != NVM_REPLAY_NONE, ObjectIdGetDatum(info.request.database));
	nvm_stat_datum_if(&row, info.phase == NVM_REPLAY_ENDED, BoolGetDatum(info.passed));
	nvm_stat_time(&row, (TimestampTz) NVM_REPLAY_COUNT_OF(&info, started));
	nvm_stat_time(&row, (TimestampTz) NVM_REPLAY_COUNT_OF(&info, ended));
	nvm_stat_count(&row, NVM_REPLAY_COUNT_OF(&info, players));
	nvm_stat_count(&row, NVM_REPLAY_COUNT_OF(&info, base_rows));
	nvm_stat_count(&row, NVM_REPLAY_COUNT_OF(&info, bytes));
	nvm_stat_count(&row, NVM_REPLAY_COUNT_OF(&info, bytes_total));
	nvm_stat_count(&row, NVM_REPLAY_COUNT_OF(&info, records));
	nvm_stat_count(&row, NVM_REPLAY_COUNT_OF(&info, calls));
	nvm_stat_count(&row, NVM_REPLAY_COUNT_OF(&info, value_rows));
	nvm_stat_count(&row, NVM_REPLAY_COUNT_OF(&info, many_lanes));
	nvm_stat_count(&row, NVM_REPLAY_COUNT_OF(&info, alone));
	nvm_stat_datum(&row, Float8GetDatum(seconds_between(NVM_REPLAY_COUNT_OF(&info, play_started),
														ended != 0 ? ended : (uint64) GetCurrentTimestamp())));
	nvm_stat_text(&row, info.failed ? info.failure.message : NULL);
	return nvm_stat_result(fcinfo, &row);
}

/* ---- what a recovery replays ---- */

/*
 * nvm.resume_replay(): how many transactions were replayed.
 */
Datum
nvm_resume_replay(PG_FUNCTION_ARGS)
{
	NvmLogReplayed what;

	require_superuser();
	nvm_table_require();
	nvm_replay_resume(&what);
	PG_RETURN_INT64((int64) what.played);
}

/*
 * nvm.end_replay()
 */
Datum
nvm_end_replay(PG_FUNCTION_ARGS)
{
	NvmStatRow	row = {0};
	NvmLogReplayed what;

	require_superuser();
	nvm_table_require();
	nvm_replay_give_up(&what);
	nvm_stat_count(&row, what.played);
	nvm_stat_datum_if(&row, what.left != NVM_LOG_LEFT_UNKNOWN, Int64GetDatum((int64) what.left));
	return nvm_stat_result(fcinfo, &row);
}

/*
 * View nvm.replayed_databases.
 */
Datum
nvm_replayed_databases(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	NvmLogReplayed d[NVM_LOG_REPLAYED];
	int			n;

	nvm_table_require();
	n = nvm_log_replay_list(d);
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < n; i++)
	{
		NvmStatRow	row = {0};
		bool		has_stopped = d[i].message[0] != '\0';

		nvm_stat_datum(&row, ObjectIdGetDatum(d[i].database));
		nvm_stat_text(&row, nvm_log_replay_name(d[i].state));
		nvm_stat_count(&row, d[i].played);
		nvm_stat_datum_if(&row, has_stopped && d[i].left != NVM_LOG_LEFT_UNKNOWN,
						  Int64GetDatum((int64) d[i].left));
		nvm_stat_datum_if(&row, has_stopped && d[i].position != 0,
						  Int64GetDatum((int64) d[i].position));
		nvm_stat_text(&row, d[i].call[0] != '\0' ? d[i].call : NULL);
		nvm_stat_text(&row, has_stopped ? d[i].message : NULL);
		nvm_stat_text(&row, d[i].detail[0] != '\0' ? d[i].detail : NULL);
		nvm_stat_put(result, &row);
	}
	return (Datum) 0;
}
