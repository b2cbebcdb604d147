/*-------------------------------------------------------------------------
 *
 * stat_log.c
 *	  nvm.memory_info(), nvm.log_info() and nvm.log_recovery_info(): tables in memory
 *	  and their log.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "func/nvm_stat_row.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pool/nvm_region.h"
#include "utils/timestamp.h"
#include "xact/nvm_storage.h"

PG_FUNCTION_INFO_V1(nvm_memory_info);
PG_FUNCTION_INFO_V1(nvm_log_info);
PG_FUNCTION_INFO_V1(nvm_log_directories_info);
PG_FUNCTION_INFO_V1(nvm_log_recovery_info);

/* columns of nvm_log_info() that a log has which has begun */
#define LOG_COUNTS		10

Datum
nvm_memory_info(PG_FUNCTION_ARGS)
{
	NvmRegionSizes sizes;
	NvmStatRow	row = {0};

	nvm_table_require();
	nvm_region_sizes(&sizes);
	nvm_stat_count(&row, sizes.size);
	nvm_stat_count(&row, sizes.used);
	nvm_stat_count(&row, sizes.limit);
	nvm_stat_count(&row, sizes.reserve);
	nvm_stat_count(&row, sizes.claimed);
	PG_RETURN_DATUM(nvm_stat_result(fcinfo, &row));
}

/*
 * A directory, absolute.
 */
static const char *
absolute(int which)
{
	const char *dir = nvm_log_directory(which);

	return is_absolute_path(dir) ? dir : psprintf("%s/%s", DataDir, dir);
}

/*
 * Where the log is, as nvm.log_directories has it.
 */
static const char *
directory_names(void)
{
	StringInfoData names;

	initStringInfo(&names);
	for (int i = 0; i < nvm_log_ndirectories(); i++)
		appendStringInfo(&names, "%s%s", i == 0 ? "" : ", ", absolute(i));
	return names.data;
}

Datum
nvm_log_info(PG_FUNCTION_ARGS)
{
	NvmLogReport report;
	NvmStatRow	row = {0};

	nvm_table_require();
	nvm_log_report(&report);
	nvm_stat_text(&row, report.state);
	nvm_stat_text(&row, report.reason);
	nvm_stat_text(&row, directory_names());
	if (report.generation != 0)
	{
		nvm_stat_count(&row, report.generation);
		nvm_stat_count(&row, report.inserted);
		nvm_stat_count(&row, report.persistent);
		nvm_stat_count(&row, report.files);
		nvm_stat_count(&row, report.file_bytes);
		nvm_stat_count(&row, report.records);
		nvm_stat_count(&row, report.bytes);
		nvm_stat_count(&row, report.rounds);
		nvm_stat_count(&row, report.waits);
		nvm_stat_count(&row, report.wait_usec);
	}
	else
		nvm_stat_nulls(&row, LOG_COUNTS);
	PG_RETURN_DATUM(nvm_stat_result(fcinfo, &row));
}

/*
 * The row of a directory, numbered as in the list.
 */
static void
put_directory(ReturnSetInfo *rsinfo, int which)
{
	NvmLogDirectoryReport report;
	NvmStatRow	row = {0};

	nvm_log_report_directory(which, &report);
	nvm_stat_text(&row, absolute(which));
	nvm_stat_text(&row, report.is_out ? "failed" : "on");
	nvm_stat_text(&row, report.reason);
	nvm_stat_datum(&row, BoolGetDatum(report.is_current));
	nvm_stat_datum_if(&row, report.position != 0, Int64GetDatum((int64) report.position));
	nvm_stat_count(&row, report.files);
	nvm_stat_count(&row, report.file_bytes);
	nvm_stat_count(&row, report.bytes);
	nvm_stat_count(&row, report.rounds);
	nvm_stat_count(&row, report.waits);
	nvm_stat_count(&row, report.wait_usec);
	nvm_stat_put(rsinfo, &row);
}

Datum
nvm_log_directories_info(PG_FUNCTION_ARGS)
{
	nvm_table_require();
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < nvm_log_ndirectories(); i++)
		put_directory((ReturnSetInfo *) fcinfo->resultinfo, i);
	return (Datum) 0;
}

static const char *
rebuild_state_name(NvmLogRebuild state)
{
	switch (state)
	{
		case NVM_LOG_WHOLE:
			return "whole";
		case NVM_LOG_TO_REBUILD:
			return "waiting";
		case NVM_LOG_REBUILDING:
			return "rebuilding";
		case NVM_LOG_FAILED:
			return "failed";
	}
	return "unknown";
}

/*
 * Megabytes a second, over all of the rebuild, or until now.
 */
static double
rate_of(NvmLogProgress *progress)
{
	TimestampTz started = (TimestampTz) pg_atomic_read_u64(&progress->started);
	TimestampTz until = (TimestampTz) pg_atomic_read_u64(&progress->finished);

	if (until == 0)
		until = GetCurrentTimestamp();
	/* bytes in a microsecond */
	return (double) pg_atomic_read_u64(&progress->bytes) / (double) Max(until - started, 1);
}

Datum
nvm_log_recovery_info(PG_FUNCTION_ARGS)
{
	NvmLogProgress *progress;
	NvmLogRebuild state;
	TimestampTz started;
	NvmStatRow	row = {0};

	nvm_table_require();
	progress = nvm_log_progress();
	state = nvm_log_rebuild_state();
	nvm_stat_text(&row, nvm_log_is_on ? rebuild_state_name(state) : "off");
	nvm_stat_text(&row, state == NVM_LOG_FAILED ? nvm_log_rebuild_problem() : NULL);
	nvm_stat_count(&row, pg_atomic_read_u64(&progress->files));
	nvm_stat_count(&row, pg_atomic_read_u64(&progress->bytes));
	nvm_stat_count(&row, pg_atomic_read_u64(&progress->bytes_total));
	nvm_stat_count(&row, pg_atomic_read_u64(&progress->rows));
	nvm_stat_count(&row, pg_atomic_read_u64(&progress->tables));
	nvm_stat_count(&row, pg_atomic_read_u64(&progress->tables_total));
	nvm_stat_count(&row, pg_atomic_read_u64(&progress->workers));
	started = (TimestampTz) pg_atomic_read_u64(&progress->started);
	nvm_stat_time(&row, started);
	nvm_stat_time(&row, (TimestampTz) pg_atomic_read_u64(&progress->finished));
	nvm_stat_datum_if(&row, started != 0, Float8GetDatum(rate_of(progress)));
	PG_RETURN_DATUM(nvm_stat_result(fcinfo, &row));
}
