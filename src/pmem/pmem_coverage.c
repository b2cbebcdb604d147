/*-------------------------------------------------------------------------
 *
 * pmem_coverage.c
 *	  Line counts of processes that will not end by exit(): tests only.
 *
 * Compiled with -DNVM_COVERAGE and --coverage (scripts/coverage.sh), else
 * empty.  The compiler writes the counts of a process at its exit(); a process
 * that a crash test kills has none.  So they are written too
 *
 *	- at each failpoint that crashes, panics, stops or sleeps, just before, and
 *	- at the end of a transaction, if they were not for a while.
 *
 * What is lost then is what a process did since, and the counts of a file that
 * it was just writing.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pmem/pmem_backend.h"

#ifdef NVM_COVERAGE

#include <gcov.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "portability/instr_time.h"

#define COVERAGE_PAUSE_MS	200

static instr_time coverage_written;
static int	coverage_pid = 0;	/* the process that the time is of */

/*
 * Add the counts of this process to the files, and begin counting anew.
 * Allocates with malloc alone, so it may be called in a critical section.
 */
void
nvm_coverage_write(void)
{
	__gcov_dump();
	__gcov_reset();
	INSTR_TIME_SET_CURRENT(coverage_written);
}

static void
coverage_xact_callback(XactEvent event, void *arg)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	if (coverage_pid != MyProcPid)
	{
		coverage_written = now;
		coverage_pid = MyProcPid;
	}
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT &&
		event != XACT_EVENT_PREPARE)
		return;
	INSTR_TIME_SUBTRACT(now, coverage_written);
	if (INSTR_TIME_GET_MILLISEC(now) >= COVERAGE_PAUSE_MS)
		nvm_coverage_write();
}

void
nvm_coverage_register(void)
{
	RegisterXactCallback(coverage_xact_callback, NULL);
}

#endif							/* NVM_COVERAGE */
