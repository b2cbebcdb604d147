/*-------------------------------------------------------------------------
 *
 * nvm_sync.c
 *	  Preloaded library (LD_PRELOAD) that stands between a server and the
 *	  fdatasync() and fsync() of its pool and its log, for t/commit/09_group_commit.pl,
 *	  t/commit/10_failed_sync.pl, t/power/06_unsynced_control.pl and those named below.
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
 *	device	a medium beside the page cache: "durable" is what was written back,
 *			"cached" the file as of the last sync.  A sync writes the pages that
 *			have changed since, one that fails ("fail") has marked them clean
 *			as well, and posix_fadvise(POSIX_FADV_DONTNEED) reads everything
 *			from the medium; all this of the first DEVICE_SIZE bytes
 *
 *	control	fsync() of a file whose name ends in "/pg_control" copies it to
 *			"pg_control"
 *	killed	and before it has done anything kills the process
 *
 *	incarnation
 *			holds a number n: the nth sync from now of a file whose name ends in
 *			"/pg_nvm_incarnation" removes it, and fails with EIO
 *
 * Each fdatasync() appends a byte to the file "calls" and lasts NVM_SYNC_USEC longer.
 *
 * Files of the log (src/log), for t/log/03_waiting.pl and t/log/11_failures.pl:
 *
 *	log-slow	fdatasync() lasts NVM_SYNC_USEC longer
 *	log-hold	fdatasync() makes the file "log-held", and waits until this one is
 *				removed
 *	log-sync	it is removed, and one fdatasync() fails with EIO
 *	log-write	it is removed, and one pwrite() fails with ENOSPC
 *	log-dead	each pwrite(), fdatasync() and fsync() fails with EIO
 *
 * Each fdatasync() that succeeds appends a byte to the file "log-calls".
 *
 * Directories pg_nvm_log* and all files in them, those of checkpoints and of large transactions
 * too, for the soak (NvmSoakLog.pm):
 *
 *	log-full	write() and pwrite() fail with ENOSPC, statvfs() finds no room
 *	log-broken	write(), pwrite(), fdatasync() and fsync() fail with EIO
 *
 * or those alone that match what the file has, if it is not empty: a pattern, as of
 * fnmatch(), for the path; for t/log/14_directories.pl.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define DEVICE_SIZE		((off_t) 8 * 1024 * 1024)

static const char *dir;
static char path[2][PATH_MAX];

static const char *
name_of(int which, const char *name)
{
	snprintf(path[which], PATH_MAX, "%s/%s", dir, name);
	return path[which];
}

static int
has_name(int fd, const char *name)
{
	char		link[64];
	char		target[PATH_MAX];
	ssize_t		len;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, target, sizeof(target));
	return len >= (ssize_t) strlen(name) &&
		memcmp(target + len - strlen(name), name, strlen(name)) == 0;
}

static int
is_pool(int fd)
{
	return has_name(fd, "/pool");
}

/*
 * A file of the log, also one that is being made.
 */
static int
is_log(int fd)
{
	return has_name(fd, ".log") || has_name(fd, ".log.tmp");
}

static int
exists(const char *name)
{
	return access(name_of(0, name), F_OK) == 0;
}

/*
 * A file that says or counts something is made, or one byte longer.
 */
static void
append_byte(const char *name)
{
	int			fd = open(name_of(1, name), O_WRONLY | O_CREAT | O_APPEND, 0600);

	if (fd < 0 || write(fd, ".", 1) != 1)
		abort();
	close(fd);
}

static int
sync_log(int fd, int (*real) (int))
{
	const char *usec = getenv("NVM_SYNC_USEC");

	if (exists("log-hold"))
	{
		append_byte("log-held");
		while (exists("log-hold"))
			usleep(5000);
	}
	if (exists("log-slow") && usec != NULL)
		usleep((useconds_t) atoi(usec));
	if (unlink(name_of(0, "log-sync")) == 0 || exists("log-dead"))
	{
		errno = EIO;
		return -1;
	}
	append_byte("log-calls");
	return real(fd);
}

/*
 * Is this the sync of the incarnation file that is to fail?  Dies if it cannot count.
 */
static int
incarnation_fails(int fd)
{
	FILE	   *count;
	int			n;

	if (!has_name(fd, "/pg_nvm_incarnation") ||
		(count = fopen(name_of(0, "incarnation"), "r+")) == NULL)
		return 0;
	if (fscanf(count, "%d", &n) != 1)
		abort();
	rewind(count);
	if (fprintf(count, "%d\n", n - 1) < 0 || fclose(count) != 0)
		abort();
	return n == 1 && unlink(name_of(0, "incarnation")) == 0;
}

/*
 * Dies if it cannot be done: a test without its image would prove nothing.
 */
static void
make_image(int fd, const char *name, off_t most)
{
	int			out = open(name_of(0, "image.new"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
	struct stat st;
	off_t		offset = 0;

	if (out < 0 || fstat(fd, &st) != 0)
		abort();
	if (st.st_size < most)
		most = st.st_size;
	while (offset < most)
	{
		if (sendfile(out, fd, &offset, (size_t) (most - offset)) <= 0)
			abort();
	}
	close(out);
	if (rename(name_of(0, "image.new"), name_of(1, name)) != 0)
		abort();
}

static char *
map(int fd)
{
	char	   *p = mmap(NULL, (size_t) DEVICE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		abort();
	return p;
}

/*
 * What a sync, one that fails, or the dropping of the page cache does.
 */
static void
use_device(int fd, int write_back, int drop)
{
	int			durable = open(name_of(0, "durable"), O_RDWR);
	int			cached = open(name_of(1, "cached"), O_RDWR);
	char	   *file;
	char	   *medium;
	char	   *last;

	if (durable < 0 || cached < 0)
	{
		make_image(fd, "durable", DEVICE_SIZE);
		make_image(fd, "cached", DEVICE_SIZE);
		return;
	}
	file = map(fd);
	medium = map(durable);
	last = map(cached);
	for (off_t page = 0; page < DEVICE_SIZE; page += 4096)
	{
		char		now[4096];

		memcpy(now, file + page, sizeof(now));
		if (memcmp(now, last + page, sizeof(now)) != 0)
		{
			if (write_back)
				memcpy(medium + page, now, sizeof(now));
			if (!drop)
				memcpy(last + page, now, sizeof(now));
		}
		else if (drop && memcmp(now, medium + page, sizeof(now)) != 0)
		{
			memcpy(file + page, medium + page, sizeof(now));
			memcpy(last + page, medium + page, sizeof(now));
		}
	}
	munmap(file, (size_t) DEVICE_SIZE);
	munmap(medium, (size_t) DEVICE_SIZE);
	munmap(last, (size_t) DEVICE_SIZE);
	close(durable);
	close(cached);
}

int
posix_fadvise(int fd, off_t offset, off_t len, int advice)
{
	static int	(*real) (int, off_t, off_t, int);

	if (real == NULL)
		real = (int (*) (int, off_t, off_t, int)) dlsym(RTLD_NEXT, "posix_fadvise");
	dir = getenv("NVM_SYNC_DIR");
	if (dir != NULL && is_pool(fd) && advice == POSIX_FADV_DONTNEED &&
		access(name_of(0, "device"), F_OK) == 0)
		use_device(fd, 0, 1);
	return real(fd, offset, len, advice);
}

/*
 * Is there such a file, and is it about this path?
 */
static int
is_meant(const char *name, const char *target)
{
	char		pattern[PATH_MAX] = "";
	int			fd = open(name_of(0, name), O_RDONLY);
	ssize_t		n;

	if (fd < 0)
		return 0;
	n = read(fd, pattern, sizeof(pattern) - 1);
	close(fd);
	return n <= 0 || fnmatch(pattern, target, 0) == 0;
}

/*
 * Does the device of the log fail this call?  With errno set.
 */
static int
device_fails(int fd, int is_write)
{
	int			full;
	int			broken;
	char		link[64];
	char		target[PATH_MAX];
	ssize_t		len;

	dir = getenv("NVM_SYNC_DIR");
	if (dir == NULL)
		return 0;
	full = is_write && exists("log-full");
	broken = exists("log-broken");
	if (!full && !broken)
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, target, sizeof(target) - 1);
	target[len < 0 ? 0 : len] = '\0';
	if (strstr(target, "/pg_nvm_log") == NULL)
		return 0;
	full = full && is_meant("log-full", target);
	broken = broken && is_meant("log-broken", target);
	errno = full ? ENOSPC : EIO;
	return full || broken;
}

static int
write_fails(int fd)
{
	if (device_fails(fd, 1))
		return 1;
	if (dir == NULL || !is_log(fd))
		return 0;
	errno = ENOSPC;
	if (unlink(name_of(0, "log-write")) == 0)
		return 1;
	errno = EIO;
	return exists("log-dead");
}

ssize_t
pwrite(int fd, const void *buf, size_t size, off_t offset)
{
	static ssize_t (*real) (int, const void *, size_t, off_t);

	if (real == NULL)
		real = (ssize_t (*) (int, const void *, size_t, off_t)) dlsym(RTLD_NEXT, "pwrite");
	return write_fails(fd) ? -1 : real(fd, buf, size, offset);
}

ssize_t
pwrite64(int fd, const void *buf, size_t size, off64_t offset)
{
	static ssize_t (*real) (int, const void *, size_t, off64_t);

	if (real == NULL)
		real = (ssize_t (*) (int, const void *, size_t, off64_t)) dlsym(RTLD_NEXT, "pwrite64");
	return write_fails(fd) ? -1 : real(fd, buf, size, offset);
}

ssize_t
write(int fd, const void *buf, size_t size)
{
	static ssize_t (*real) (int, const void *, size_t);

	if (real == NULL)
		real = (ssize_t (*) (int, const void *, size_t)) dlsym(RTLD_NEXT, "write");
	return device_fails(fd, 1) ? -1 : real(fd, buf, size);
}

int
statvfs(const char *file, struct statvfs *fs)
{
	static int	(*real) (const char *, struct statvfs *);
	int			result;

	if (real == NULL)
		real = (int (*) (const char *, struct statvfs *)) dlsym(RTLD_NEXT, "statvfs");
	result = real(file, fs);
	dir = getenv("NVM_SYNC_DIR");
	if (dir != NULL && strstr(file, "pg_nvm_log") != NULL && is_meant("log-full", file))
		fs->f_bavail = 0;
	return result;
}

int
fdatasync(int fd)
{
	static int	(*real) (int);
	int			calls;
	const char *usec = getenv("NVM_SYNC_USEC");

	if (real == NULL)
		real = (int (*) (int)) dlsym(RTLD_NEXT, "fdatasync");
	if (device_fails(fd, 0))
		return -1;
	if (dir != NULL && incarnation_fails(fd))
	{
		errno = EIO;
		return -1;
	}
	if (dir != NULL && is_log(fd))
		return sync_log(fd, real);
	if (dir == NULL || !is_pool(fd))
		return real(fd);

	calls = open(name_of(0, "calls"), O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (calls < 0 || write(calls, ".", 1) != 1)
		abort();
	close(calls);
	if (unlink(name_of(0, "fail")) == 0)
	{
		if (access(name_of(0, "device"), F_OK) == 0)
			use_device(fd, 0, 0);
		errno = EIO;
		return -1;
	}
	if (access(name_of(0, "device"), F_OK) == 0)
		use_device(fd, 1, 0);
	if (access(name_of(0, "image"), F_OK) == 0)
		make_image(fd, "durable", LONG_MAX);
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
	if (device_fails(fd, 0))
		return -1;
	if (dir != NULL && incarnation_fails(fd))
	{
		errno = EIO;
		return -1;
	}
	if (dir != NULL && has_name(fd, "/pg_control"))
	{
		if (access(name_of(0, "killed"), F_OK) == 0)
			raise(SIGKILL);
		if (access(name_of(0, "control"), F_OK) == 0)
			make_image(fd, "pg_control", LONG_MAX);
	}
	if (dir != NULL && is_log(fd) && exists("log-dead"))
	{
		errno = EIO;
		return -1;
	}
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
