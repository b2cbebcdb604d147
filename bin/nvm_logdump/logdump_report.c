/*-------------------------------------------------------------------------
 *
 * logdump_report.c
 *	  What nvm_logdump says on standard error, and its exit status.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "logdump.h"

static bool any_damaged = false;
static bool any_failed = false;

void
damaged(const LogFile *file, const char *fmt,...)
{
	char text[	NVM_LOG_PROBLEM_SIZE + MAXPGPATH];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	any_damaged = true;
	pg_log_error("file \"%s\": %s", file->path, text);
}

void
failed(const char *fmt,...)
{
	va_list		args;

	any_failed = true;
	va_start(args, fmt);
	pg_log_generic_v(PG_LOG_ERROR, PG_LOG_PRIMARY, fmt, args);
	va_end(args);
}

int
log_exit_status(void)
{
	return any_damaged ? LOGDUMP_DAMAGED : any_failed ? LOGDUMP_FAILED : LOGDUMP_SOUND;
}
