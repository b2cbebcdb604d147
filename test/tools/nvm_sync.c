/*-------------------------------------------------------------------------
 *
 * nvm_sync.c
 *	  Preloaded library (LD_PRELOAD) that stands between a server and the
 *	  fdatasync() and fsync() of its pool, for t/057_group_commit.pl.
 *
 * Files in directory $NVM_SYNC_DIR say what happens to a sync of a file whose
 * name ends in "/pool":
 *
 *	fail	it is removed, and this one call fails with EIO, as the kernel
 *			tells an error of write-back once
 *	image	when the sync has begun, the file is copied to "durable", which gets
 *			its name when the copy is complete and before the sync ends: the
 *			least that a medium has that keeps what was synced, and nothing else
 *
 *	hold	fsync(), which the pool asks for when its file grows, makes the file
 *			"held", waits until this one is removed, and fails likewise
 *
 * Each fdatasync() appends a byte to the file "calls" and lasts NVM_SYNC_USEC longer.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *dir;
static char path[2][PATH_MAX];

static const char *
name_of(int which, const char *name)
{
	snprintf(path[which], PATH_MAX, "%s/%s", dir, name);
	return path[which];
}

static int
is_pool(int fd)
{
	char		link[64];
	char		target[PATH_MAX];
	ssize_t		len;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, target, sizeof(target));
	return len >= 5 && memcmp(target + len - 5, "/pool", 5) == 0;
}

/*
 * Dies if it cannot be done: a test without its image would prove nothing.
 */
static void
make_image(int fd)
{
	int			out = open(name_of(0, "durable.new"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
	struct stat st;
	off_t		offset = 0;

	if (out < 0 || fstat(fd, &st) != 0)
		abort();
	while (offset < st.st_size)
	{
		if (sendfile(out, fd, &offset, (size_t) (st.st_size - offset)) <= 0)
			abort();
	}
	close(out);
	if (rename(name_of(0, "durable.new"), name_of(1, "durable")) != 0)
		abort();
}

int
fdatasync(int fd)
{
	static int	(*real) (int);
	int			calls;
	const char *usec = getenv("NVM_SYNC_USEC");

	if (real == NULL)
		real = (int (*) (int)) dlsym(RTLD_NEXT, "fdatasync");
	dir = getenv("NVM_SYNC_DIR");
	if (dir == NULL || !is_pool(fd))
		return real(fd);

	calls = open(name_of(0, "calls"), O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (calls < 0 || write(calls, ".", 1) != 1)
		abort();
	close(calls);
	if (unlink(name_of(0, "fail")) == 0)
	{
		errno = EIO;
		return -1;
	}
	if (access(name_of(0, "image"), F_OK) == 0)
		make_image(fd);
	if (usec != NULL)
		usleep((useconds_t) atoi(usec));
	return real(fd);
}

int
fsync(int fd)
{
	static int	(*real) (int);
	int			held;

	if (real == NULL)
		real = (int (*) (int)) dlsym(RTLD_NEXT, "fsync");
	dir = getenv("NVM_SYNC_DIR");
	if (dir == NULL || !is_pool(fd) || access(name_of(0, "hold"), F_OK) != 0)
		return real(fd);

	held = open(name_of(1, "held"), O_WRONLY | O_CREAT, 0600);
	if (held < 0)
		abort();
	close(held);
	while (access(name_of(0, "hold"), F_OK) == 0)
		usleep(10000);
	errno = EIO;
	return -1;
}
