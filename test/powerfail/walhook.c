/*-------------------------------------------------------------------------
 *
 * walhook.c
 *	  Failpoints around PostgreSQL's own writes of WAL.
 *
 * A server that runs with wal_sync_method = open_datasync makes WAL durable by
 * pwrite() alone.  Loaded before everything else (LD_PRELOAD), this library
 * comes between: nvm.failpoint knows two more names then,
 *
 *	wal-write		before a write of WAL
 *	wal-written		after it, before the server knows that it is durable
 *
 * What was to be written may have reached the disk up to any place when power
 * fails: that is for who takes the image (NvmPowerFail.pm) to cut.
 *
 * Build: make -C test/powerfail
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WAL_BLOCK		8192
#define WAL_NAME_LENGTH 24

typedef ssize_t (*PwriteFunction) (int, const void *, size_t, off_t);
typedef void (*HitFunction) (const char *);

/*
 * Is it a segment of WAL that is being written?  One that is being made has
 * another name.
 */
static bool
is_wal(int fd, size_t len, off_t offset)
{
	char		link[64];
	char		path[PATH_MAX];
	const char *name;
	ssize_t		n;

	if (len == 0 || len % WAL_BLOCK != 0 || offset % WAL_BLOCK != 0)
		return false;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n <= 0)
		return false;
	path[n] = '\0';
	name = strrchr(path, '/');
	if (name == NULL || strlen(name + 1) != WAL_NAME_LENGTH ||
		strspn(name + 1, "0123456789ABCDEF") != WAL_NAME_LENGTH)
		return false;
	return name - path >= 7 && strncmp(name - 7, "/pg_wal", 7) == 0;
}

/*
 * Tell the extension, if it is loaded.
 */
static void
hit(const char *name)
{
	static HitFunction function;

	if (function == NULL)
		*(void **) &function = dlsym(RTLD_DEFAULT, "nvm_failpoint_hit");
	if (function != NULL)
		function(name);
}

static ssize_t
write_wal(PwriteFunction real, int fd, const void *buf, size_t len, off_t offset)
{
	ssize_t		written;

	if (!is_wal(fd, len, offset))
		return real(fd, buf, len, offset);
	hit("wal-write");
	written = real(fd, buf, len, offset);
	hit("wal-written");
	return written;
}

ssize_t
pwrite(int fd, const void *buf, size_t len, off_t offset)
{
	static PwriteFunction real;

	if (real == NULL)
		*(void **) &real = dlsym(RTLD_NEXT, "pwrite");
	return write_wal(real, fd, buf, len, offset);
}

ssize_t
pwrite64(int fd, const void *buf, size_t len, off64_t offset)
{
	static PwriteFunction real;

	if (real == NULL)
		*(void **) &real = dlsym(RTLD_NEXT, "pwrite64");
	return write_wal(real, fd, buf, len, (off_t) offset);
}
