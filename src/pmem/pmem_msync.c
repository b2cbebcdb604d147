/*-------------------------------------------------------------------------
 *
 * pmem_msync.c
 *	  Persistence through the page cache: msync of the pages touched.
 *
 * A flush notes the pages in a small process-local set of ranges; a drain
 * writes them.  When the set is full it is written at once, which a flush is
 * always allowed to do.  An error is a PANIC: the kernel may already have
 * dropped the pages and marked them clean, so trying again proves nothing.
 *
 * No palloc and no ereport below PANIC, so it can be called in a critical
 * section.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/mman.h>
#include <unistd.h>

#include "pmem/pmem_backend.h"

#define MSYNC_MAX_RANGES	64

/* pages [first, last], relative to the start of the mapping */
typedef struct MsyncRange
{
	uint64		first;
	uint64		last;
} MsyncRange;

static char *msync_base;
static uint64 msync_max_size;
static uint64 msync_page_size;

static MsyncRange msync_ranges[MSYNC_MAX_RANGES];
static int	msync_nranges;

/*
 * Called in the postmaster when the pool has been mapped.
 */
void
nvm_msync_attach(char *base, uint64 max_size)
{
	msync_base = base;
	msync_max_size = max_size;
	msync_page_size = (uint64) sysconf(_SC_PAGESIZE);
	msync_nranges = 0;
}

/*
 * Note the pages of [addr, addr + len).
 *
 * A range that touches or overlaps one already noted is merged into it; the
 * newest is looked at first because callers walk upwards.
 */
void
nvm_msync_flush(const void *addr, Size len)
{
	uint64		offset;
	uint64		first;
	uint64		last;
	int			i;

	if (len == 0 || (const char *) addr < msync_base ||
		(const char *) addr >= msync_base + msync_max_size)
		return;

	offset = (uint64) ((const char *) addr - msync_base);
	len = Min(len, msync_max_size - offset);
	first = offset / msync_page_size;
	last = (offset + len - 1) / msync_page_size;

	for (i = msync_nranges - 1; i >= 0; i--)
	{
		MsyncRange *r = &msync_ranges[i];

		if (first <= r->last + 1 && r->first <= last + 1)
		{
			r->first = Min(r->first, first);
			r->last = Max(r->last, last);
			return;
		}
	}

	if (msync_nranges == MSYNC_MAX_RANGES)
		nvm_msync_drain();
	msync_ranges[msync_nranges].first = first;
	msync_ranges[msync_nranges].last = last;
	msync_nranges++;
}

static void
msync_pages(uint64 first, uint64 last)
{
	char	   *start = msync_base + first * msync_page_size;
	Size		len = (last - first + 1) * msync_page_size;

	if (msync(start, len, MS_SYNC) != 0)
		ereport(PANIC,
				(errcode_for_file_access(),
				 errmsg("could not write back %zu bytes at offset " UINT64_FORMAT " of the persistent pool: %m",
						len, first * msync_page_size),
				 errdetail("What was written there may or may not be durable, and asking again would not tell."),
				 errhint("Look at the kernel's log for errors of the device. The server recovers from what is on the device when it restarts.")));
}

/*
 * Write all pages noted, neighbours together.  PANICs on an error.
 */
void
nvm_msync_drain(void)
{
	int			n = msync_nranges;
	int			i;

	/* insertion sort: n is small and the ranges mostly come in order */
	for (i = 1; i < n; i++)
	{
		MsyncRange	r = msync_ranges[i];
		int			j;

		for (j = i; j > 0 && msync_ranges[j - 1].first > r.first; j--)
			msync_ranges[j] = msync_ranges[j - 1];
		msync_ranges[j] = r;
	}

	for (i = 0; i < n;)
	{
		uint64		first = msync_ranges[i].first;
		uint64		last = msync_ranges[i].last;

		for (i++; i < n && msync_ranges[i].first <= last + 1; i++)
			last = Max(last, msync_ranges[i].last);
		msync_pages(first, last);
	}
	msync_nranges = 0;
}
