/*-------------------------------------------------------------------------
 *
 * options.c
 *	  Options of UndefinedBehaviorSanitizer for the programs of a server.
 *
 * Its library reads UBSAN_OPTIONS when it has something to report, from where the
 * process had its environment when it began; a server's processes have then
 * overwritten that to show their status.  So it asks here, as it does in PostgreSQL
 * 16 and later.
 *
 * Nor does its log_path work beside AddressSanitizer, which has the functions of
 * the same names, and they are taken: what sets the path of reports is that of the
 * other library.  NVM_UBSAN_REPORTS is what log_path should be.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

const char *__ubsan_default_options(void) __attribute__((weak));

const char *
__ubsan_default_options(void)
{
	const char *options = getenv("UBSAN_OPTIONS");

	return options ? options : "";
}

static void
__attribute__((constructor))
set_report_path(void)
{
	const char *path = getenv("NVM_UBSAN_REPORTS");
	void	   *library;
	void		(*set) (const char *);

	if (path == NULL)
		return;
	library = dlopen("libubsan.so.1", RTLD_LAZY | RTLD_NOLOAD);
	if (library == NULL)
		return;
	set = (void (*) (const char *)) dlsym(library, "__sanitizer_set_report_path");
	if (set != NULL)
		set(path);
}
