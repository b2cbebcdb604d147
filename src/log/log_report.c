/*-------------------------------------------------------------------------
 *
 * log_report.c
 *	  What the views show of the log.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "log/log_impl.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"
#include "storage/fd.h"
#include "verify/nvm_verify_log.h"

/*
 * Count the files of this pool.  One may go while we look.
 */
static void
count_files(NvmLogReport *report)
{
	DIR		   *dir = AllocateDir(nvm_log_directory());
	struct dirent *de;
	NvmLogName	name;

	while ((de = ReadDirExtended(dir, nvm_log_directory(), LOG)) != NULL)
	{
		char		path[MAXPGPATH * 2];
		struct stat st;

		CHECK_FOR_INTERRUPTS();
		if (!nvm_log_parse_name(de->d_name, &name) || name.pool != nvm_log_pool_of(NvmPool->uuid))
			continue;
		snprintf(path, sizeof(path), "%s/%s", nvm_log_directory(), de->d_name);
		if (stat(path, &st) != 0)
			continue;
		report->files++;
		report->file_bytes += (uint64) st.st_size;
	}
	if (dir != NULL)
		FreeDir(dir);
}

/*
 * Positions first: `persistent` is not beyond `inserted` in what is shown.
 */
static void
report_begun(NvmLogReport *report)
{
	report->state = "on";
	if (pg_atomic_read_u32(&NvmLog->broken) != 0)
	{
		report->state = "failed";
		errno = NvmLog->broken_errno;
		report->reason = psprintf("%s (%m)", NvmLog->broken_what);
	}
	report->generation = nvm_log_memory->generation;
	report->persistent = nvm_log_persistent();
	pg_read_barrier();
	report->inserted = nvm_log_inserted();
	report->records = pg_atomic_read_u64(&NvmLog->records);
	report->bytes = pg_atomic_read_u64(&NvmLog->bytes);
	report->rounds = pg_atomic_read_u64(&NvmLog->rounds);
	report->waits = pg_atomic_read_u64(&NvmLog->waits);
	report->wait_usec = pg_atomic_read_u64(&NvmLog->wait_usec);
	count_files(report);
}

/*
 * See nvm_log.h.
 */
void
nvm_log_report(NvmLogReport *report)
{
	memset(report, 0, sizeof(*report));
	if (!nvm_log_is_on)
		report->state = "off";
	else if (!nvm_log_has_begun())
		report->state = "not begun";
	else
		report_begun(report);
}
