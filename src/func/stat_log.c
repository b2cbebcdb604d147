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
#include "func/nvm_stat_row.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pool/nvm_region.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "xact/nvm_storage.h"

PG_FUNCTION_INFO_V1(nvm_memory_info);
PG_FUNCTION_INFO_V1(nvm_log_info);
PG_FUNCTION_INFO_V1(nvm_log_recovery_info);

#define MEMORY_COLUMNS			5
#define LOG_COLUMNS				13
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
 * Where the log is, absolute.
 */
static Datum
directory_name(void)
{
	const char *dir = nvm_log_directory();

	return CStringGetTextDatum(is_absolute_path(dir) ? dir : psprintf("%s/%s", DataDir, dir));
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
	values[2] = directory_name();
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
