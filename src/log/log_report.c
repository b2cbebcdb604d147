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
 * Count the files of this pool, in all directories or in one.  One may go while we look.
 */
static void
count_files(int directory, uint64 *files, uint64 *bytes)
{
	NvmLogScan	scan;
	NvmLogName	name;
	const char *entry;

	nvm_log_scan_begin(&scan, LOG);
	while ((entry = nvm_log_scan_next(&scan)) != NULL)
	{
		char		path[MAXPGPATH];
		struct stat st;

		CHECK_FOR_INTERRUPTS();
		if ((directory >= 0 && scan.directory != directory) || !nvm_log_parse_name(entry, &name) ||
			name.pool != nvm_log_pool_of(NvmPool->uuid))
			continue;
		nvm_log_path_in(path, scan.directory, entry);
		if (stat(path, &st) != 0)
			continue;
		(*files)++;
		*bytes += (uint64) st.st_size;
	}
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
	count_files(-1, &report->files, &report->file_bytes);
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

/*
 * See nvm_log.h.
 */
void
nvm_log_report_directory(int which, NvmLogDirectoryReport *report)
{
	NvmLogDirectory *d = &NvmLog->directory[which];

	memset(report, 0, sizeof(*report));
	report->is_out = nvm_log_is_out(which);
	SpinLockAcquire(&d->mutex);
	errno = d->failed_errno;
	strlcpy(report->reason, d->failed_what, sizeof(report->reason));
	SpinLockRelease(&d->mutex);
	if (report->reason[0] != '\0')
		snprintf(report->reason + strlen(report->reason),
				 sizeof(report->reason) - strlen(report->reason), " (%s)", strerror(errno));
	if (!nvm_log_is_on || !nvm_log_has_begun())
		return;
	report->is_current = *(volatile int *) &nvm_log_memory->directory == which;
	report->position = pg_atomic_read_u64(&d->position);
	report->bytes = pg_atomic_read_u64(&d->bytes);
	report->rounds = pg_atomic_read_u64(&d->rounds);
	report->waits = pg_atomic_read_u64(&d->waits);
	report->wait_usec = pg_atomic_read_u64(&d->wait_usec);
	count_files(which, &report->files, &report->file_bytes);
}
