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
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "xact/nvm_storage.h"

PG_FUNCTION_INFO_V1(nvm_memory_info);
PG_FUNCTION_INFO_V1(nvm_log_info);
PG_FUNCTION_INFO_V1(nvm_log_directories_info);
PG_FUNCTION_INFO_V1(nvm_log_recovery_info);

#define MEMORY_COLUMNS			5
#define LOG_COLUMNS				13
#define LOG_DIRECTORY_COLUMNS	11
#define LOG_RECOVERY_COLUMNS	12

Datum
nvm_memory_info(PG_FUNCTION_ARGS)
{
	Datum		values[MEMORY_COLUMNS];
	bool		nulls[MEMORY_COLUMNS] = {0};
	NvmRegionSizes sizes;

	nvm_table_require();
	nvm_region_sizes(&sizes);
	values[0] = Int64GetDatum((int64) sizes.size);
	values[1] = Int64GetDatum((int64) sizes.used);
	values[2] = Int64GetDatum((int64) sizes.limit);
	values[3] = Int64GetDatum((int64) sizes.reserve);
	values[4] = Int64GetDatum((int64) sizes.claimed);
	PG_RETURN_DATUM(nvm_stat_row(fcinfo, values, nulls));
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
static Datum
directory_names(void)
{
	StringInfoData names;

	initStringInfo(&names);
	for (int i = 0; i < nvm_log_ndirectories(); i++)
		appendStringInfo(&names, "%s%s", i == 0 ? "" : ", ", absolute(i));
	return CStringGetTextDatum(names.data);
}

Datum
nvm_log_info(PG_FUNCTION_ARGS)
{
	Datum		values[LOG_COLUMNS] = {0};
	bool		nulls[LOG_COLUMNS] = {0};
	NvmLogReport report;

	nvm_table_require();
	nvm_log_report(&report);
	values[0] = CStringGetTextDatum(report.state);
	if (report.reason != NULL)
		values[1] = CStringGetTextDatum(report.reason);
	else
		nulls[1] = true;
	values[2] = directory_names();
	if (report.generation == 0)
		memset(&nulls[3], true, sizeof(bool) * (LOG_COLUMNS - 3));
	values[3] = Int64GetDatum((int64) report.generation);
	values[4] = Int64GetDatum((int64) report.inserted);
	values[5] = Int64GetDatum((int64) report.persistent);
	values[6] = Int64GetDatum((int64) report.files);
	values[7] = Int64GetDatum((int64) report.file_bytes);
	values[8] = Int64GetDatum((int64) report.records);
	values[9] = Int64GetDatum((int64) report.bytes);
	values[10] = Int64GetDatum((int64) report.rounds);
	values[11] = Int64GetDatum((int64) report.waits);
	values[12] = Int64GetDatum((int64) report.wait_usec);
	PG_RETURN_DATUM(nvm_stat_row(fcinfo, values, nulls));
}

/*
 * The row of a directory, numbered as in the list.
 */
static void
put_directory(ReturnSetInfo *rsinfo, int which)
{
	Datum		values[LOG_DIRECTORY_COLUMNS];
	bool		nulls[LOG_DIRECTORY_COLUMNS] = {0};
	NvmLogDirectoryReport report;

	nvm_log_report_directory(which, &report);
	values[0] = CStringGetTextDatum(absolute(which));
	values[1] = CStringGetTextDatum(report.is_out ? "failed" : "on");
	values[2] = CStringGetTextDatum(report.reason);
	nulls[2] = report.reason[0] == '\0';
	values[3] = BoolGetDatum(report.is_current);
	values[4] = Int64GetDatum((int64) report.position);
	nulls[4] = report.position == 0;
	values[5] = Int64GetDatum((int64) report.files);
	values[6] = Int64GetDatum((int64) report.file_bytes);
	values[7] = Int64GetDatum((int64) report.bytes);
	values[8] = Int64GetDatum((int64) report.rounds);
	values[9] = Int64GetDatum((int64) report.waits);
	values[10] = Int64GetDatum((int64) report.wait_usec);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
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

static Datum
time_or_null(pg_atomic_uint64 *time, bool *isnull)
{
	uint64		value = pg_atomic_read_u64(time);

	*isnull = value == 0;
	return TimestampTzGetDatum((TimestampTz) value);
}

static Datum
count_of(pg_atomic_uint64 *count)
{
	return Int64GetDatum((int64) pg_atomic_read_u64(count));
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
	Datum		values[LOG_RECOVERY_COLUMNS] = {0};
	bool		nulls[LOG_RECOVERY_COLUMNS] = {0};
	NvmLogProgress *progress;
	NvmLogRebuild state;

	nvm_table_require();
	progress = nvm_log_progress();
	state = nvm_log_rebuild_state();
	values[0] = CStringGetTextDatum(nvm_log_is_on ? rebuild_state_name(state) : "off");
	if (state == NVM_LOG_FAILED)
		values[1] = CStringGetTextDatum(nvm_log_rebuild_problem());
	else
		nulls[1] = true;
	values[2] = count_of(&progress->files);
	values[3] = count_of(&progress->bytes);
	values[4] = count_of(&progress->bytes_total);
	values[5] = count_of(&progress->rows);
	values[6] = count_of(&progress->tables);
	values[7] = count_of(&progress->tables_total);
	values[8] = count_of(&progress->workers);
	values[9] = time_or_null(&progress->started, &nulls[9]);
	values[10] = time_or_null(&progress->finished, &nulls[10]);
	nulls[11] = nulls[9];
	if (!nulls[11])
		values[11] = Float8GetDatum(rate_of(progress));
	PG_RETURN_DATUM(nvm_stat_row(fcinfo, values, nulls));
}
