/*-------------------------------------------------------------------------
 *
 * pmem_sim_counts.c
 *	  Counts of a simulated pool: what did each flush and each fence do?
 *
 * A flush of lines that the medium holds already has protected nothing that
 * time.  Nor has a fence after no flush, or after such flushes only.  A place
 * that protects nothing at all, whatever is run, may be redundant.
 * test/powerfail/run prints the tables.  They are in pool.simctl, so that they
 * outlive the processes.
 *
 * Counts of several processes are exact.  Rows are taken in the order in which
 * names come, and a table that is full counts no more names.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>

#include "media/media_sim.h"
#include "miscadmin.h"
#include "pmem/pmem_backend.h"
#include "port/atomics.h"

/* names that this process has found in the table */
#define KNOWN_STEPS			256

static NvmSimControl *counts;
static const char *library_start;

static struct
{
	const char *name;
	int			step;
}			known[KNOWN_STEPS];

/* since the last fence of process pending_pid, which may be our parent */
static int	pending_pid;
static uint64 pending_lines;
static uint64 pending_clean;
static uint64 pending_repeated;

static inline void
add(uint64_t *count, uint64 n)
{
	if (n > 0)
		pg_atomic_fetch_add_u64((pg_atomic_uint64 *) count, (int64) n);
}

static void
add_all(NvmSimCount *count, uint64 lines, uint64 clean, uint64 repeated)
{
	add(&count->calls, 1);
	add(&count->empty, lines == 0);
	add(&count->idle, lines > 0 && clean == lines);
	add(&count->lines, lines);
	add(&count->clean, clean);
	add(&count->repeated, repeated);
}

/*
 * Count into this control file from now on; NULL: into none.  In the postmaster.
 */
void
nvm_sim_counts_attach(NvmSimControl *control)
{
	Dl_info		info;

	counts = NULL;
	memset(known, 0, sizeof(known));
	if (control != NULL && dladdr(&library_start, &info) != 0)
	{
		library_start = info.dli_fbase;
		counts = control;
	}
}

/*
 * The row of a fence, or NULL if the table is full.
 */
static NvmSimStep *
find_step(const char *name)
{
	int			hash = (int) ((uintptr_t) name / 8 % KNOWN_STEPS);

	if (known[hash].name == name)
		return &counts->step[known[hash].step];
	for (int i = 0; i < NVM_SIM_STEPS; i++)
	{
		NvmSimStep *step = &counts->step[i];
		uint64		taken = 0;

		if (pg_atomic_compare_exchange_u64((pg_atomic_uint64 *) &step->taken, &taken, 1))
			snprintf(step->name, sizeof(step->name), "%s", name);
		if (strcmp(step->name, name) == 0)
		{
			known[hash].name = name;
			known[hash].step = i;
			return step;
		}
	}
	return NULL;
}

/*
 * The row of a place that calls nvm_flush, likewise.
 */
static NvmSimSite *
find_site(const void *caller)
{
	uint64		place = (uint64) ((const char *) caller - library_start);

	for (int i = 0; i < NVM_SIM_SITES; i++)
	{
		NvmSimSite *site = &counts->site[(place / 4 + i) % NVM_SIM_SITES];
		uint64		taken = 0;

		if (site->place == place ||
			pg_atomic_compare_exchange_u64((pg_atomic_uint64 *) &site->place, &taken, place) ||
			taken == place)
			return site;
	}
	return NULL;
}

/*
 * This process has captured so many lines.
 */
void
nvm_sim_count_flush(const void *caller, uint64 lines, uint64 clean, uint64 repeated)
{
	NvmSimSite *site = counts ? find_site(caller) : NULL;

	if (site != NULL)
		add_all(&site->count, lines, clean, repeated);
	if (pending_pid != MyProcPid)
	{
		pending_pid = MyProcPid;
		pending_lines = pending_clean = pending_repeated = 0;
	}
	pending_lines += lines;
	pending_clean += clean;
	pending_repeated += repeated;
}

/*
 * It has fenced them.
 */
void
nvm_sim_count_drain(const char *name)
{
	NvmSimStep *step = counts ? find_step(name) : NULL;
	bool		mine = pending_pid == MyProcPid;

	if (step != NULL)
		add_all(&step->count, mine ? pending_lines : 0, mine ? pending_clean : 0,
				mine ? pending_repeated : 0);
	pending_lines = pending_clean = pending_repeated = 0;
}
