/*-------------------------------------------------------------------------
 *
 * poolcheck_report.c
 *	  Findings and progress of nvm_poolcheck.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "poolcheck.h"

#include <time.h>
#include <unistd.h>

static uint64 nfindings = 0;
static uint64 units_total = 0;
static uint64 units_done = 0;
static time_t last_shown = 0;

void
found(const char *place, const char *fmt,...)
{
	va_list		args;

	nfindings++;
	printf("%s: ", place);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	printf("\n");
}

/*
 * For the checks that emit.
 */
void
found_emit(void *arg, const char *place, const char *problem)
{
	found(place, "%s", problem);
}

uint64
findings(void)
{
	return nfindings;
}

void
will_be_repaired(const char *place, const char *fmt,...)
{
	char		problem[NVM_PROBLEM_SIZE];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(problem, sizeof(problem), fmt, args);
	va_end(args);
	if (verbose)
		pg_log_info("%s: %s; the next start repairs that", place, problem);
}

/* ---- progress ---- */

#define UNITS_IN_MB			(1024 * 1024 / NVM_UNIT_SIZE)

static void
show(void)
{
	fprintf(stderr, UINT64_FORMAT "/" UINT64_FORMAT " MB (%d%%) checked%s",
			units_done / UNITS_IN_MB, units_total / UNITS_IN_MB,
			units_total == 0 ? 100 : (int) (units_done * 100 / units_total),
			isatty(fileno(stderr)) ? "\r" : "\n");
}

void
progress_begin(uint64 units)
{
	units_total = units;
}

void
progress(uint64 units)
{
	time_t		now;

	units_done += units;
	if (!show_progress || (now = time(NULL)) == last_shown)
		return;
	last_shown = now;
	show();
}

void
progress_end(void)
{
	if (!show_progress)
		return;
	units_done = units_total;
	show();
	if (isatty(fileno(stderr)))
		fprintf(stderr, "\n");
}
