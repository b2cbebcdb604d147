/*-------------------------------------------------------------------------
 *
 * nvm_disk.c
 *	  Preloaded library (LD_PRELOAD): the disk of the log, as a loss of power
 *	  leaves it.
 *
 * What a server writes to files of the log ($NVM_DISK_LOG, its directories, with colons
 * between them) is on the medium when a sync of the file has come back; a name is, when
 * a sync of its directory has.  Directory $NVM_DISK_DIR, on the same file system, keeps
 * apart what is there:
 *
 *	F<inode>	the file, by another link: contents as the kernel has them
 *	I<inode>	what of it is on the medium for certain
 *	J<inode>	ranges that were written since: pairs of offset and length
 *	ops			what was done to the first directory, a line each; ops1 and so on
 *				are those of the others:
 *				create INODE NAME, rename INODE OLD NEW, unlink INODE NAME, and
 *				sync, behind which all of that is certain
 *
 * All processes of the server share this.  A range is noted before it is written;
 * J's lock, shared while a range is written and exclusive while a file is synced,
 * keeps a sync from forgetting one that is not there yet.  test/NvmLogDisk.pm
 * makes images of it.
 *
 * Dies of what it cannot do: a test without its medium would prove nothing.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE		4096
#define MOST_FDS	65536

typedef struct Range
{
	uint64_t	offset;
	uint64_t	length;
}			Range;

enum
{
	OTHER, FILE_OF_LOG, DIRECTORY
};								/* DIRECTORY + its number in the list */

#define MOST_DIRECTORIES	8

/* what each descriptor of this process is: a fork inherits it */
static unsigned char kind_of[MOST_FDS];

static void *
real(const char *name)
{
	void	   *function = dlsym(RTLD_NEXT, name);

	if (function == NULL)
		abort();
	return function;
}

typedef int (*FdFunction) (int);
typedef int (*UnlinkFunction) (const char *);
typedef int (*RenameFunction) (const char *, const char *);
typedef int (*OpenFunction) (const char *, int,...);
typedef ssize_t (*PwriteFunction) (int, const void *, size_t, off_t);
typedef ssize_t (*WriteFunction) (int, const void *, size_t);

#define REAL(type, name) \
	static type function; \
	if (function == NULL) \
		*(void **) &function = real(name)

static const char *
disk(void)
{
	static const char *dir;

	/* PostgreSQL writes titles of processes over the environment */
	if (dir == NULL && getenv("NVM_DISK_DIR") != NULL)
		dir = strdup(getenv("NVM_DISK_DIR"));
	return dir;
}

#define check(ok) \
	do { \
		if (!(ok)) \
		{ \
			fprintf(stderr, "nvm_disk: line %d: %s\n", __LINE__, strerror(errno)); \
			abort(); \
		} \
	} while (0)

/*
 * The directories of the log; the last one is NULL.
 */
static char **
log_directories(void)
{
	static char *directories[MOST_DIRECTORIES + 1];
	int			n = 0;

	if (directories[0] != NULL)
		return directories;
	check(getenv("NVM_DISK_LOG") != NULL);
	for (char *list = strdup(getenv("NVM_DISK_LOG")), *d = strtok(list, ":"); d != NULL;
		 d = strtok(NULL, ":"))
	{
		check(n < MOST_DIRECTORIES);
		directories[n++] = d;
	}
	return directories;
}

/*
 * In which directory of the log does a file lie, by its path?  All have a parent of their
 * own names; -1: in none.
 */
static int
directory_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	if (disk() == NULL || slash == NULL || strstr(path, "pg_nvm_log") == NULL)
		return -1;
	for (int i = 0; log_directories()[i] != NULL; i++)
	{
		const char *name = strrchr(log_directories()[i], '/') + 1;
		size_t		n = strlen(name);

		if ((size_t) (slash - path) >= n && memcmp(slash - n, name, n) == 0 &&
			(slash - n == path || slash[-(ptrdiff_t) n - 1] == '/'))
			return i;
	}
	return -1;
}

static int
is_log_name(const char *path)
{
	return directory_of(path) >= 0;
}

static const char *
base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash != NULL ? slash + 1 : path;
}

static int
kind(int fd)
{
	return fd >= 0 && fd < MOST_FDS ? kind_of[fd] : OTHER;
}

/* ---- what is kept beside ---- */

static const char *
beside(char *path, char which, uint64_t inode)
{
	snprintf(path, PATH_MAX, "%s/%c%llu", disk(), which, (unsigned long long) inode);
	return path;
}

/*
 * Note what is done to a directory.
 */
static void
note(int directory, const char *format,...)
{
	char		path[PATH_MAX];
	char		line[1024];
	va_list		args;
	int			n;
	int			fd;

	va_start(args, format);
	n = vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	if (directory == 0)
		snprintf(path, sizeof(path), "%s/ops", disk());
	else
		snprintf(path, sizeof(path), "%s/ops%d", disk(), directory);
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	check(fd >= 0 && n < (int) sizeof(line) && write(fd, line, n) == n);
	close(fd);
}

/*
 * The journal of a file, locked.
 */
static int
journal(int fd, int lock, struct stat *st)
{
	char		path[PATH_MAX];
	int			j;

	check(fstat(fd, st) == 0);
	j = open(beside(path, 'J', st->st_ino), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	check(j >= 0 && flock(j, lock) == 0);
	return j;
}

/*
 * Page by page, what was noted comes to the medium.  Zeroes behind its end need not be
 * stored.
 */
static void
write_back(int j, const struct stat *st)
{
	static const char zeroes[PAGE];
	char		path[PATH_MAX];
	char		page[PAGE];
	struct stat medium;
	Range		range;
	int			in = open(beside(path, 'F', st->st_ino), O_RDONLY | O_CLOEXEC);
	int			out = open(beside(path, 'I', st->st_ino), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	off_t		at = 0;

	check(in >= 0 && out >= 0 && fstat(out, &medium) == 0);
	while (pread(j, &range, sizeof(range), at) == (ssize_t) sizeof(range))
	{
		uint64_t	end = range.offset + range.length;

		for (uint64_t p = range.offset / PAGE * PAGE; p < end; p += PAGE)
		{
			ssize_t		n = pread(in, page, PAGE, (off_t) p);

			if (n <= 0 || ((off_t) p >= medium.st_size && memcmp(page, zeroes, n) == 0))
				continue;
			check(pwrite(out, page, n, (off_t) p) == n);
			if ((off_t) p + n > medium.st_size)
				medium.st_size = (off_t) p + n;
		}
		at += sizeof(range);
	}
	if (medium.st_size < st->st_size)
		check(ftruncate(out, st->st_size) == 0);
	check(ftruncate(j, 0) == 0);
	close(in);
	close(out);
}

/* ---- names ---- */

static void
opened(int fd, const char *path, int is_new)
{
	struct stat st;
	struct stat log_dir;
	char		link_path[PATH_MAX];

	if (fd < 0 || fd >= MOST_FDS)
		return;
	kind_of[fd] = OTHER;
	if (disk() == NULL)
		return;
	if (is_log_name(path))
	{
		kind_of[fd] = FILE_OF_LOG;
		if (!is_new)
			return;
		check(fstat(fd, &st) == 0);
		check(link(path, beside(link_path, 'F', st.st_ino)) == 0);
		note(directory_of(path), "create %llu %s\n", (unsigned long long) st.st_ino, base_name(path));
		return;
	}
	if (strncmp(base_name(path), "pg_nvm_log", 10) != 0 || fstat(fd, &st) != 0)
		return;
	for (int i = 0; log_directories()[i] != NULL; i++)
	{
		if (stat(log_directories()[i], &log_dir) == 0 && st.st_ino == log_dir.st_ino &&
			st.st_dev == log_dir.st_dev)
			kind_of[fd] = DIRECTORY + i;
	}
}

static int
do_open(OpenFunction function, const char *path, int flags, mode_t mode)
{
	int			is_new = (flags & O_CREAT) != 0 && is_log_name(path) && access(path, F_OK) != 0;
	int			fd = function(path, flags, mode);
	int			save_errno = errno;

	opened(fd, path, is_new);
	errno = save_errno;
	return fd;
}

#define MODE_OF(flags) \
	mode_t		mode = 0; \
	if (((flags) & (O_CREAT | O_TMPFILE)) != 0) \
	{ \
		va_list		args; \
		va_start(args, flags); \
		mode = va_arg(args, mode_t); \
		va_end(args); \
	}

int
open(const char *path, int flags,...)
{
	MODE_OF(flags);
	REAL(OpenFunction, "open");
	return do_open(function, path, flags, mode);
}

int
open64(const char *path, int flags,...)
{
	MODE_OF(flags);
	REAL(OpenFunction, "open64");
	return do_open(function, path, flags, mode);
}

int
close(int fd)
{
	REAL(FdFunction, "close");
	if (fd >= 0 && fd < MOST_FDS)
		kind_of[fd] = OTHER;
	return function(fd);
}

int
rename(const char *from, const char *to)
{
	struct stat st;

	REAL(RenameFunction, "rename");
	if ((is_log_name(from) || is_log_name(to)) && stat(from, &st) == 0)
		note(directory_of(from), "rename %llu %s %s\n", (unsigned long long) st.st_ino, base_name(from), base_name(to));
	return function(from, to);
}

int
unlink(const char *path)
{
	struct stat st;

	REAL(UnlinkFunction, "unlink");
	if (is_log_name(path) && stat(path, &st) == 0)
		note(directory_of(path), "unlink %llu %s\n", (unsigned long long) st.st_ino, base_name(path));
	return function(path);
}

/* ---- contents ---- */

static ssize_t
do_pwrite(PwriteFunction function, int fd, const void *buf, size_t len, off_t offset)
{
	Range		range = {(uint64_t) offset, len};
	struct stat st;
	ssize_t		n;
	int			save_errno;
	int			j;

	if (kind(fd) != FILE_OF_LOG)
		return function(fd, buf, len, offset);
	j = journal(fd, LOCK_SH, &st);
	check(write(j, &range, sizeof(range)) == (ssize_t) sizeof(range));
	n = function(fd, buf, len, offset);
	save_errno = errno;
	close(j);
	errno = save_errno;
	return n;
}

ssize_t
pwrite(int fd, const void *buf, size_t len, off_t offset)
{
	REAL(PwriteFunction, "pwrite");
	return do_pwrite(function, fd, buf, len, offset);
}

ssize_t
pwrite64(int fd, const void *buf, size_t len, off64_t offset)
{
	REAL(PwriteFunction, "pwrite64");
	return do_pwrite(function, fd, buf, len, (off_t) offset);
}

ssize_t
write(int fd, const void *buf, size_t len)
{
	off_t		at;
	ssize_t		n;

	REAL(WriteFunction, "write");
	if (kind(fd) != FILE_OF_LOG)
		return function(fd, buf, len);
	at = lseek(fd, 0, SEEK_CUR);
	n = pwrite(fd, buf, len, at);
	if (n > 0)
		check(lseek(fd, at + n, SEEK_SET) >= 0);
	return n;
}

static int
do_sync(FdFunction function, int fd)
{
	struct stat st;
	int			result;
	int			save_errno;
	int			j;

	if (kind(fd) == OTHER)
		return function(fd);
	if (kind(fd) >= DIRECTORY)
	{
		int			directory = kind(fd) - DIRECTORY;

		result = function(fd);
		if (result == 0)
			note(directory, "sync\n");
		return result;
	}
	j = journal(fd, LOCK_EX, &st);
	result = function(fd);
	save_errno = errno;
	if (result == 0)
		write_back(j, &st);
	close(j);
	errno = save_errno;
	return result;
}

int
fdatasync(int fd)
{
	REAL(FdFunction, "fdatasync");
	return do_sync(function, fd);
}

int
fsync(int fd)
{
	REAL(FdFunction, "fsync");
	return do_sync(function, fd);
}
