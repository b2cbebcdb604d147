/*-------------------------------------------------------------------------
 *
 * slow_sync.c
 *	  Preloaded library (LD_PRELOAD): a disk of ordinary latency.
 *
 * Each fsync(), each fdatasync() and each msync() that is synchronous lasts
 * NVM_SLOW_SYNC_US microseconds longer.  Processes sleep at the same time, as
 * they would wait for a disk that takes many requests.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static long delay_us;

typedef int (*FdFunction) (int);
typedef int (*MsyncFunction) (void *, size_t, int);

#define REAL(type, name) \
	static type function; \
	if (function == NULL) \
		*(void **) &function = dlsym(RTLD_NEXT, name); \
	if (function == NULL) \
		abort()

/*
 * PostgreSQL writes titles of processes over the environment: it is read at once.
 */
__attribute__((constructor))
static void
read_delay(void)
{
	const char *value = getenv("NVM_SLOW_SYNC_US");

	delay_us = value != NULL ? atol(value) : 0;
}

static void
wait_for_disk(void)
{
	struct timespec rest = {delay_us / 1000000, delay_us % 1000000 * 1000};
	int			save_errno = errno;

	/* a signal does not make a disk faster */
	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, &rest) == EINTR)
		;
	errno = save_errno;
}

int
fsync(int fd)
{
	int			result;

	REAL(FdFunction, "fsync");
	result = function(fd);
	wait_for_disk();
	return result;
}

int
fdatasync(int fd)
{
	int			result;

	REAL(FdFunction, "fdatasync");
	result = function(fd);
	wait_for_disk();
	return result;
}

int
msync(void *addr, size_t length, int flags)
{
	int			result;

	REAL(MsyncFunction, "msync");
	result = function(addr, length, flags);
	if ((flags & MS_SYNC) != 0)
		wait_for_disk();
	return result;
}
