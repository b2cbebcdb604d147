/*-------------------------------------------------------------------------
 *
 * log_directory.c
 *	  The directories of the log: the list, which of them are out, where a file is.
 *
 * README.md, "Several directories".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "lib/stringinfo.h"
#include "log/log_impl.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/fd.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

/* room for the name of a file behind a directory */
#define NAME_ROOM				80

char	   *nvm_log_directories = NULL;
int			nvm_log_retry_interval = 10;	/* seconds */

/* the list, parsed; constant after the start */
static char *directories[NVM_LOG_MAX_DIRECTORIES];
static int	ndirectories = 0;

/* ---- the setting ---- */

/*
 * The first two directories of a list that are the same one, or false.  What is not
 * there is nothing but its path.
 */
static bool
find_same(List *list, const char **a, const char **b)
{
	ListCell   *x;

	foreach(x, list)
	{
		struct stat st;
		bool		there = stat((char *) lfirst(x), &st) == 0;

		*a = (char *) lfirst(x);
		for (int i = foreach_current_index(x) + 1; i < list_length(list); i++)
		{
			struct stat other;

			*b = (char *) list_nth(list, i);
			if (strcmp(*a, *b) == 0 ||
				(there && stat(*b, &other) == 0 && st.st_dev == other.st_dev &&
				 st.st_ino == other.st_ino))
				return true;
		}
	}
	return false;
}

/*
 * Why the list cannot be one, or NULL.
 */
static const char *
list_problem(List *list)
{
	const char *a;
	const char *b;
	ListCell   *cell;

	if (list == NIL)
		return "No directory is named.";
	if (list_length(list) > NVM_LOG_MAX_DIRECTORIES)
		return psprintf("There are %d directories, and %d are allowed.",
						list_length(list), NVM_LOG_MAX_DIRECTORIES);
	foreach(cell, list)
	{
		const char *path = (char *) lfirst(cell);

		if (path[0] == '\0')
			return "A directory has no name.";
		if (strlen(path) >= MAXPGPATH - NAME_ROOM)
			return psprintf("The path \"%s\" is too long.", path);
	}
	if (find_same(list, &a, &b))
		return strcmp(a, b) == 0 ? psprintf("Directory \"%s\" is named twice.", a) :
			psprintf("\"%s\" and \"%s\" are the same directory.", a, b);
	return NULL;
}

static bool
parse_list(const char *value, List **list, const char **problem)
{
	char	   *copy = pstrdup(value);

	*list = NIL;
	*problem = SplitDirectoriesString(copy, ',', list) ? list_problem(*list) :
		"The list is not a list of paths with commas between them.";
	pfree(copy);
	return *problem == NULL;
}

/*
 * GUC check hook.  The server's own start takes the default for a value that is wrong,
 * with a WARNING.  That would be another log, so it ends instead.
 */
bool
nvm_log_check_directories(char **newval, void **extra, GucSource source)
{
	List	   *list;
	const char *problem;
	bool		ok = parse_list(*newval, &list, &problem);

	if (!ok && process_shared_preload_libraries_in_progress)
		ereport(FATAL,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for parameter \"%s\": \"%s\"", "nvm.log_directories", *newval),
				 errdetail_internal("%s", problem)));
	if (!ok)
		GUC_check_errdetail("%s", problem);
	list_free_deep(list);
	return ok;
}

/*
 * Take the list from the setting, which does not change any more.
 */
void
nvm_log_set_directories(void)
{
	List	   *list;
	ListCell   *cell;
	const char *problem;

	if (ndirectories > 0 || !parse_list(nvm_log_directories, &list, &problem))
		return;
	foreach(cell, list)
		directories[ndirectories++] = MemoryContextStrdup(TopMemoryContext, (char *) lfirst(cell));
	list_free_deep(list);
}

int
nvm_log_ndirectories(void)
{
	return ndirectories;
}

/*
 * A directory, as a path that the server can open: its working directory is the data
 * directory.
 */
const char *
nvm_log_directory(int which)
{
	return directories[which];
}

/*
 * See nvm_log.h.
 */
const char *
nvm_log_where(void)
{
	StringInfoData where;

	initStringInfo(&where);
	appendStringInfo(&where, "%s \"%s\"", ndirectories == 1 ? "directory" : "directories",
					 directories[0]);
	for (int i = 1; i < ndirectories; i++)
		appendStringInfo(&where, ", \"%s\"", directories[i]);
	return where.data;
}

/*
 * Is any directory not there, not writable, or another one by another path?  Returns the
 * problem, with errno if it has one, or NULL; *which is the directory.
 */
const char *
nvm_log_directories_problem(void)
{
	List	   *list = NIL;
	const char *a;
	const char *b;
	const char *problem = NULL;

	for (int i = 0; i < ndirectories && problem == NULL; i++)
	{
		DIR		   *dir = AllocateDir(directories[i]);

		if (dir == NULL)
			problem = psprintf("could not open log directory \"%s\": %m", directories[i]);
		else
			FreeDir(dir);
		/* with one, the first file tells */
		if (problem == NULL && ndirectories > 1 && access(directories[i], W_OK | X_OK) != 0)
			problem = psprintf("could not write to log directory \"%s\": %m", directories[i]);
		list = lappend(list, directories[i]);
	}
	if (problem == NULL && find_same(list, &a, &b))
		problem = psprintf("log directories \"%s\" and \"%s\" are the same one", a, b);
	list_free(list);
	return problem;
}

/* ---- where a file is ---- */

void
nvm_log_path_in(char *path, int which, const char *name)
{
	snprintf(path, MAXPGPATH, "%s/%s", directories[which], name);
}

/*
 * See nvm_log.h.
 */
int
nvm_log_find_after(const char *name, int after)
{
	char		path[MAXPGPATH];

	for (int i = after + 1; i < ndirectories; i++)
	{
		nvm_log_path_in(path, i, name);
		if (access(path, F_OK) == 0)
			return i;
	}
	return -1;
}

int
nvm_log_find(const char *name)
{
	return nvm_log_find_after(name, -1);
}

void
nvm_log_scan_begin(NvmLogScan *scan, int elevel)
{
	scan->directory = -1;
	scan->dir = NULL;
	scan->elevel = elevel;
}

/*
 * See nvm_log.h.  A directory that cannot be read is passed over, after a message.
 */
const char *
nvm_log_scan_next(NvmLogScan *scan)
{
	for (;;)
	{
		struct dirent *de;

		if (scan->dir == NULL)
		{
			if (scan->directory + 1 >= ndirectories)
				return NULL;
			scan->dir = AllocateDir(directories[++scan->directory]);
		}
		de = ReadDirExtended(scan->dir, directories[scan->directory], scan->elevel);
		if (de != NULL)
			return de->d_name;
		if (scan->dir != NULL)
			FreeDir(scan->dir);
		scan->dir = NULL;
	}
}

/* ---- which are out ---- */

bool
nvm_log_is_out(int which)
{
	return pg_atomic_read_u32(&NvmLog->directory[which].is_out) != 0;
}

/*
 * See log_impl.h.  One that is out is better than none: then all others are, or have
 * been tried.
 */
int
nvm_log_deal(int after, uint32 tried)
{
	int			best = -1;

	for (int i = 1; i <= ndirectories; i++)
	{
		int			which = (after + i) % ndirectories;

		if ((tried & ((uint32) 1 << which)) != 0)
			continue;
		if (!nvm_log_is_out(which))
			return which;
		if (best < 0)
			best = which;
	}
	return best;
}

/*
 * See nvm_log.h.
 */
int
nvm_log_deal_file(uint32 turn, uint32 tried, uint64 room)
{
	uint32		full = tried;
	int			which;

	while ((which = nvm_log_deal((int) (turn % ndirectories) + ndirectories - 1, full)) >= 0)
	{
		if (nvm_log_has_room(which, room))
			return which;
		full |= (uint32) 1 << which;
	}
	/* let the file system say so */
	return nvm_log_deal((int) (turn % ndirectories) + ndirectories - 1, tried);
}

static void
look_later(NvmLogDirectory *d)
{
	pg_atomic_write_u64(&d->next_look,
						(uint64) (GetCurrentTimestamp() + nvm_log_retry_interval * USECS_PER_SEC));
}

/*
 * A step on a file there has failed; errno says why.
 */
void
nvm_log_put_out(int which, const char *step, const char *path)
{
	NvmLogDirectory *d = &NvmLog->directory[which];
	int			save_errno = errno;

	SpinLockAcquire(&d->mutex);
	d->failed_errno = save_errno;
	snprintf(d->failed_what, sizeof(d->failed_what), "Step \"%s\" on file \"%s\" failed.", step, path);
	SpinLockRelease(&d->mutex);
	look_later(d);
	if (pg_atomic_exchange_u32(&d->is_out, 1) == 0)
	{
		errno = save_errno;
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("nvm: could not write the log of tables in memory: %m"),
				 ndirectories == 1 ?
				 errdetail_internal("%s", d->failed_what) :
				 errdetail_internal("%s Directory \"%s\" is left out until it can be written again.",
									d->failed_what, directories[which])));
	}
	errno = save_errno;
}

/*
 * See nvm_log.h.  Who had the file tells his client.  So with one directory there is
 * nothing to say, nor to change.
 */
void
nvm_log_directory_failed(int which, const char *step, const char *path)
{
	if (ndirectories > 1 && errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != EEXIST)
		nvm_log_put_out(which, step, path);
}

/*
 * Something was written to it, and synced.
 */
void
nvm_log_directory_works(int which)
{
	NvmLogDirectory *d = &NvmLog->directory[which];

	if (likely(pg_atomic_read_u32(&d->is_out) == 0))
		return;
	if (pg_atomic_exchange_u32(&d->is_out, 0) != 0)
		ereport(LOG,
				(errmsg("nvm: the log of tables in memory can be written again in directory \"%s\"",
						directories[which])));
}

/*
 * Is it time for another look at a directory that is out?  By one process at a time.
 */
bool
nvm_log_is_look_due(int which)
{
	NvmLogDirectory *d = &NvmLog->directory[which];

	if (likely(pg_atomic_read_u32(&d->is_out) == 0) ||
		GetCurrentTimestamp() < (TimestampTz) pg_atomic_read_u64(&d->next_look))
		return false;
	look_later(d);
	return true;
}

/*
 * Is there room for so many bytes?  errno says why not.  To find out by filling a file
 * would leave nothing to others for that time.
 */
bool
nvm_log_has_room(int which, uint64 bytes)
{
	struct statvfs fs;

	if (statvfs(directories[which], &fs) != 0 || (uint64) fs.f_bavail * fs.f_frsize >= bytes)
		return true;
	errno = ENOSPC;
	return false;
}

/*
 * fsync of a directory, which may not ERROR.
 */
bool
nvm_log_sync_directory(int which)
{
	int			fd = BasicOpenFile(directories[which], O_RDONLY | PG_BINARY);
	int			save_errno;
	bool		ok;

	if (fd < 0)
		return false;
	ok = pg_fsync(fd) == 0;
	save_errno = errno;
	close(fd);
	errno = save_errno;
	return ok;
}

void
nvm_log_directories_init(void)
{
	nvm_log_set_directories();
	pg_atomic_init_u32(&NvmLog->turn, 0);
	for (int i = 0; i < NVM_LOG_MAX_DIRECTORIES; i++)
	{
		NvmLogDirectory *d = &NvmLog->directory[i];

		SpinLockInit(&d->mutex);
		pg_atomic_init_u32(&d->is_out, 0);
		pg_atomic_init_u64(&d->next_look, 0);
		pg_atomic_init_u32(&d->spare_is_ready, 0);
		pg_atomic_init_u64(&d->position, 0);
		pg_atomic_init_u64(&d->rounds, 0);
		pg_atomic_init_u64(&d->bytes, 0);
		pg_atomic_init_u64(&d->waits, 0);
		pg_atomic_init_u64(&d->wait_usec, 0);
	}
}
