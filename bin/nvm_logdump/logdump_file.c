/*-------------------------------------------------------------------------
 *
 * logdump_file.c
 *	  Files of the log: found, put in order, mapped for reading only.
 *
 * A server may be writing: then the last block that is printed is some block
 * that was the last one at some time.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "logdump.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

LogFile    *log_files = NULL;
int			nlog_files = 0;

/* directories that were named, or have a file that was, with the slash */
static char **log_dirs = NULL;
static int	nlog_dirs = 0;

/* for bus_error: the file that was mapped last is the one that is read */
static const LogFile *mapped[2];
static int	nmapped = 0;

/* ---- directories ---- */

const char *
log_name_in(const char *path)
{
	return last_dir_separator(path) ? last_dir_separator(path) + 1 : path;
}

static void
add_directory(const char *path, int length, const char *slash)
{
	char	   *dir = psprintf("%.*s%s", length, path, slash);

	for (int i = 0; i < nlog_dirs; i++)
	{
		if (strcmp(log_dirs[i], dir) == 0)
			return;
	}
	log_dirs = pg_realloc(log_dirs, (nlog_dirs + 1) * sizeof(char *));
	log_dirs[nlog_dirs++] = dir;
}

bool
log_path_in(char *path, int directory, const char *name)
{
	if (directory >= nlog_dirs)
		return false;
	snprintf(path, MAXPGPATH, "%s%s", log_dirs[directory], name);
	return true;
}

bool
log_find(char *path, const char *beside, const char *name)
{
	snprintf(path, MAXPGPATH, "%.*s%s", (int) (log_name_in(beside) - beside), beside, name);
	if (access(path, F_OK) == 0)
		return true;
	for (int i = 0; log_path_in(path, i, name); i++)
	{
		if (access(path, F_OK) == 0)
			return true;
	}
	snprintf(path, MAXPGPATH, "%.*s%s", (int) (log_name_in(beside) - beside), beside, name);
	return false;
}

/* ---- opening ---- */

/*
 * The header is read here, the rest when the file is mapped.
 */
bool
log_file_open(LogFile *file, const char *path)
{
	struct stat st;
	ssize_t		n;
	int			fd;

	memset(file, 0, sizeof(*file));
	strlcpy(file->path, path, sizeof(file->path));
	file->has_name = nvm_log_parse_name(log_name_in(path), &file->name);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &st) != 0)
	{
		failed("could not open file \"%s\": %m", path);
		if (fd >= 0)
			close(fd);
		return false;
	}
	if (!S_ISREG(st.st_mode))
	{
		failed("\"%s\" is not a regular file", path);
		close(fd);
		return false;
	}
	file->size = (uint64) st.st_size;
	n = pread(fd, &file->header, sizeof(file->header), 0);
	if (n < 0)
		failed("could not read file \"%s\": %m", path);
	close(fd);
	if (n < 0)
		return false;
	file->problem = n < (ssize_t) sizeof(file->header) ? "the file is truncated" :
		nvm_log_file_header_problem(&file->header, file->size, NULL,
									file->has_name ? &file->name : NULL);
	return true;
}

/* ---- mapping ---- */

/*
 * The medium, or somebody who cut off the file, has taken a page from us.
 */
static void
bus_error(int signo, siginfo_t * info, void *context)
{
	const LogFile *file = mapped[nmapped - 1];
	char text[	MAXPGPATH + 100];
	int			n;

	n = snprintf(text, sizeof(text), "nvm_logdump: error: could not read file \"%s\" at offset %llu\n",
				 file->path, (unsigned long long) ((char *) info->si_addr - file->base));
	if (write(STDERR_FILENO, text, n) != n)
		_exit(LOGDUMP_FAILED);
	_exit(LOGDUMP_FAILED);
}

bool
log_file_map(LogFile *file)
{
	struct sigaction action;
	int			fd = open(file->path, O_RDONLY | O_CLOEXEC);
	void	   *base = MAP_FAILED;

	if (fd >= 0)
		base = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (base == MAP_FAILED)
		failed("could not map file \"%s\": %m", file->path);
	if (fd >= 0)
		close(fd);
	if (base == MAP_FAILED)
		return false;
	file->base = base;

	Assert(nmapped < (int) lengthof(mapped));
	mapped[nmapped++] = file;
	memset(&action, 0, sizeof(action));
	action.sa_sigaction = bus_error;
	action.sa_flags = SA_SIGINFO;
	sigemptyset(&action.sa_mask);
	if (sigaction(SIGBUS, &action, NULL) != 0)
		pg_fatal("could not set a signal handler: %m");
	return true;
}

void
log_file_unmap(LogFile *file)
{
	nmapped--;
	if (munmap(unconstify(char *, file->base), file->size) != 0)
		pg_fatal("could not unmap file \"%s\": %m", file->path);
	file->base = NULL;
}

/* ---- the list ---- */

static void
add_file(const char *path, bool asked_for)
{
	LogFile		file;

	if (!log_file_open(&file, path))
		return;
	file.asked_for = asked_for;
	log_files = pg_realloc(log_files, (nlog_files + 1) * sizeof(LogFile));
	log_files[nlog_files++] = file;
}

/*
 * By pool and generation; in one, side files come behind the files of blocks.
 */
static int
compare_files(const void *a, const void *b)
{
	const NvmLogName *x = &((const LogFile *) a)->name;
	const NvmLogName *y = &((const LogFile *) b)->name;

	if (x->pool != y->pool)
		return x->pool < y->pool ? -1 : 1;
	if (x->generation != y->generation)
		return x->generation < y->generation ? -1 : 1;
	if (x->number != y->number)
		return x->number - 1 < y->number - 1 ? -1 : 1;
	if (x->transaction != y->transaction)
		return x->transaction < y->transaction ? -1 : 1;
	return 0;
}

void
log_files_add(const char *path)
{
	struct stat st;
	struct dirent *entry;
	DIR		   *dir;

	if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
	{
		add_directory(path, (int) (log_name_in(path) - path), "");
		if (is_checkpoint(path))
			checkpoint_add(path);
		else if (is_kept_list(path))
			kept_list_add(path);
		else
			add_file(path, true);
		return;
	}
	dir = opendir(path);
	if (dir == NULL)
	{
		failed("could not open directory \"%s\": %m", path);
		return;
	}
	add_directory(path, (int) strlen(path), "/");
	while (errno = 0, (entry = readdir(dir)) != NULL)
	{
		char		file[MAXPGPATH];
		NvmLogName	name;

		snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
		if (is_checkpoint(file))
			checkpoint_add(file);
		if (is_kept_list(file))
			kept_list_add(file);
		if (!nvm_log_parse_name(entry->d_name, &name))
			continue;
		add_file(file, false);
	}
	if (errno != 0)
		failed("could not read directory \"%s\": %m", path);
	closedir(dir);
}

/*
 * Files that were named stay where they are.
 */
void
log_files_sort(void)
{
	for (int first = 0; first < nlog_files;)
	{
		int			end = first + 1;

		while (!log_files[first].asked_for && end < nlog_files && !log_files[end].asked_for)
			end++;
		qsort(&log_files[first], end - first, sizeof(LogFile), compare_files);
		for (int i = first + 1; i < end; i++)
		{
			if (log_files[i].name.number != 0 &&
				compare_files(&log_files[i - 1], &log_files[i]) == 0)
				damaged(&log_files[i], "the same file is there as \"%s\"", log_files[i - 1].path);
		}
		first = end;
	}
}

const LogFile *
log_file_after(const LogFile *file)
{
	const NvmLogFileHeader *h = &file->header;
	const LogFile *after = NULL;

	for (int i = 0; i < nlog_files; i++)
	{
		const NvmLogFileHeader *o = &log_files[i].header;

		if (log_files[i].problem != NULL || o->number == 0 ||
			memcmp(o->uuid, h->uuid, sizeof(h->uuid)) != 0 ||
			!((o->generation == h->generation && o->number > h->number) ||
			  o->generation == h->generation + 1))
			continue;
		if (after == NULL || o->generation < after->header.generation ||
			(o->generation == after->header.generation && o->number < after->header.number))
			after = &log_files[i];
	}
	return after;
}
