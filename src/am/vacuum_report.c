/*-------------------------------------------------------------------------
 *
 * vacuum_report.c
 *	  What VACUUM VERBOSE and the log of autovacuum say, in heap's words.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "am/nvm_vacuum.h"
#include "commands/dbcommands.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"

/*
 * Take the figures that the report subtracts.
 */
void
nvm_vacuum_started(NvmVacuumStart *start)
{
	pg_rusage_init(&start->rusage);
	start->time = GetCurrentTimestamp();
	start->wal = pgWalUsage;
	start->buffers = pgBufferUsage;
}

/*
 * Error context: where VACUUM was.
 */
void
nvm_vacuum_error_context(void *arg)
{
	NvmVacuum  *vac = (NvmVacuum *) arg;

	if (vac->indname != NULL)
		errcontext("while vacuuming index \"%s\" of relation \"%s.%s\"",
				   vac->indname, vac->relnamespace, vac->relname);
	else if (BlockNumberIsValid(vac->blkno))
		errcontext("while scanning block %u of relation \"%s.%s\"",
				   vac->blkno, vac->relnamespace, vac->relname);
	else
		errcontext("while vacuuming relation \"%s.%s\"",
				   vac->relnamespace, vac->relname);
}

static void
report_title(StringInfo buf, NvmVacuum *vac, VacuumParams *params)
{
	const char *fmt;

	if (vac->verbose)
		fmt = "finished vacuuming \"%s.%s.%s\": index scans: %d\n";
	else if (params->is_wraparound && vac->aggressive)
		fmt = "automatic aggressive vacuum to prevent wraparound of table \"%s.%s.%s\": index scans: %d\n";
	else if (params->is_wraparound)
		fmt = "automatic vacuum to prevent wraparound of table \"%s.%s.%s\": index scans: %d\n";
	else if (vac->aggressive)
		fmt = "automatic aggressive vacuum of table \"%s.%s.%s\": index scans: %d\n";
	else
		fmt = "automatic vacuum of table \"%s.%s.%s\": index scans: %d\n";
	appendStringInfo(buf, fmt, get_database_name(MyDatabaseId),
					 vac->relnamespace, vac->relname, vac->index_scans);
}

static double
report_percent(double part, double whole)
{
	return whole == 0 ? 100.0 : 100.0 * part / whole;
}

static void
report_table(StringInfo buf, NvmVacuum *vac, bool frozenxid_updated,
			 bool minmulti_updated)
{
	appendStringInfo(buf, "pages: %u removed, %u remain, %u scanned (%.2f%% of total)\n",
					 0, vac->nblocks, vac->scanned,
					 report_percent(vac->scanned, vac->nblocks));
	appendStringInfo(buf, "tuples: %lld removed, %lld remain, %lld are dead but not yet removable\n",
					 (long long) vac->removed,
					 (long long) (vac->live + vac->recently_dead),
					 (long long) vac->recently_dead);
	if (vac->missed_dead > 0)
		appendStringInfo(buf, "tuples missed: %lld dead in chains that were in use\n",
						 (long long) vac->missed_dead);
	appendStringInfo(buf, "removable cutoff: %u, which was %d XIDs old when operation ended\n",
					 vac->oldest_xmin,
					 (int32) (ReadNextTransactionId() - vac->oldest_xmin));
	if (frozenxid_updated)
		appendStringInfo(buf, "new relfrozenxid: %u, which is %d XIDs ahead of previous value\n",
						 vac->new_frozenxid,
						 (int32) (vac->new_frozenxid - vac->old_frozenxid));
	if (minmulti_updated)
		appendStringInfo(buf, "new relminmxid: %u, which is %d MXIDs ahead of previous value\n",
						 vac->new_minmulti,
						 (int32) (vac->new_minmulti - vac->old_minmulti));
}

static void
report_indexes(StringInfo buf, NvmVacuum *vac)
{
	bool		done = vac->index_vacuuming && !vac->bypassed;

	if (!done)
		appendStringInfoString(buf, "index scan bypassed: ");
	else if (vac->index_scans == 0)
		appendStringInfoString(buf, "index scan not needed: ");
	else
		appendStringInfoString(buf, "index scan needed: ");
	appendStringInfo(buf, done ?
					 "%u pages from table (%.2f%% of total) had %lld dead row roots removed\n" :
					 "%u pages from table (%.2f%% of total) have %lld dead row roots\n",
					 vac->dead_blocks,
					 report_percent(vac->dead_blocks, vac->nblocks),
					 (long long) vac->dead_roots);
	if (vac->suspect_cleaned > 0)
		appendStringInfo(buf, "after a crash: %u pages checked for index entries without a row\n",
						 vac->suspect_cleaned);
	for (int i = 0; i < vac->nindexes; i++)
	{
		IndexBulkDeleteResult *istat = vac->indstats[i];

		if (istat != NULL)
			appendStringInfo(buf, "index \"%s\": pages: %u in total, %u newly deleted, %u currently deleted, %u reusable\n",
							 vac->indnames[i], istat->num_pages,
							 istat->pages_newly_deleted,
							 istat->pages_deleted, istat->pages_free);
	}
}

static void
report_usage(StringInfo buf, NvmVacuumStart *start)
{
	WalUsage	wal;
	BufferUsage buffers;
	long		secs;
	int			usecs;
	double		elapsed;
	double		read_rate = 0;
	double		write_rate = 0;

	memset(&wal, 0, sizeof(wal));
	WalUsageAccumDiff(&wal, &pgWalUsage, &start->wal);
	memset(&buffers, 0, sizeof(buffers));
	BufferUsageAccumDiff(&buffers, &pgBufferUsage, &start->buffers);
	TimestampDifference(start->time, GetCurrentTimestamp(), &secs, &usecs);
	elapsed = secs + usecs / 1000000.0;
	if (elapsed > 0)
	{
		read_rate = (double) BLCKSZ *
			(buffers.shared_blks_read + buffers.local_blks_read) /
			(1024 * 1024) / elapsed;
		write_rate = (double) BLCKSZ *
			(buffers.shared_blks_dirtied + buffers.local_blks_dirtied) /
			(1024 * 1024) / elapsed;
	}
	appendStringInfo(buf, "avg read rate: %.3f MB/s, avg write rate: %.3f MB/s\n",
					 read_rate, write_rate);
	appendStringInfo(buf, "buffer usage: %lld hits, %lld misses, %lld dirtied\n",
					 (long long) (buffers.shared_blks_hit + buffers.local_blks_hit),
					 (long long) (buffers.shared_blks_read + buffers.local_blks_read),
					 (long long) (buffers.shared_blks_dirtied + buffers.local_blks_dirtied));
	appendStringInfo(buf, "WAL usage: %lld records, %lld full page images, %llu bytes\n",
					 (long long) wal.wal_records,
					 (long long) wal.wal_fpi,
					 (unsigned long long) wal.wal_bytes);
	appendStringInfo(buf, "system usage: %s", pg_rusage_show(&start->rusage));
}

/*
 * VERBOSE output, or the entry in the log if autovacuum took long enough.
 */
void
nvm_vacuum_report(NvmVacuum *vac, VacuumParams *params, NvmVacuumStart *start,
				  bool frozenxid_updated, bool minmulti_updated)
{
	StringInfoData buf;

	if (!vac->verbose && params->log_min_duration != 0 &&
		!TimestampDifferenceExceeds(start->time, GetCurrentTimestamp(),
									params->log_min_duration))
		return;

	initStringInfo(&buf);
	report_title(&buf, vac, params);
	report_table(&buf, vac, frozenxid_updated, minmulti_updated);
	report_indexes(&buf, vac);
	report_usage(&buf, start);
	ereport(vac->verbose ? INFO : LOG, (errmsg_internal("%s", buf.data)));
	pfree(buf.data);
}
