/*-------------------------------------------------------------------------
 *
 * vlog_keep_file.c
 *	  The list of what a clean stop has kept of UNLOGGED tables: read, replaced, passed on to
 *	  the next run, and removed.
 *
 * It counts for the run that finds its nonce in the pool's header, closed cleanly.  So one
 * that is left over means nothing, and is removed when the region is whole.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/fd.h"
#include "verify/nvm_verify_log.h"
#include "vlog/vlog_impl.h"

static void
list_path(char *path, int directory)
{
	snprintf(path, MAXPGPATH, "%s/" NVM_LOG_KEPT_NAME, nvm_log_directory(directory),
			 nvm_log_pool_of(NvmPool->uuid));
}

void
nvm_vlog_kept_path(char *path, int directory, uint32 incarnation, uint64 creation)
{
	snprintf(path, MAXPGPATH, "%s/" NVM_LOG_KEPT_ROWS_NAME, nvm_log_directory(directory),
			 nvm_log_pool_of(NvmPool->uuid), incarnation, (unsigned long long) creation);
}

/*
 * See vlog_impl.h.
 */
bool
nvm_vlog_has_kept(void)
{
	return NvmPool->last_nonce != 0;
}

/* ---- read ---- */

/*
 * The list in a directory, in memory of the current context, and its path.  NULL: there is
 * none, or *problem says what is wrong with it.  No ERROR: the postmaster may be about to end.
 */
static NvmLogKept *
read_in(int directory, char *path, const char **problem)
{
	NvmLogKept *kept;
	uint64		size;

	list_path(path, directory);
	kept = (NvmLogKept *)
		nvm_log_read_whole(path, NVM_LOG_KEPT_LENGTH(NVM_LOG_KEPT_FILES), &size);
	if (kept != NULL)
		*problem = nvm_log_kept_problem(kept, size, NvmPool->uuid);
	else
		*problem = errno == ENOENT ? NULL : psprintf("it cannot be read: %m");
	return *problem == NULL ? kept : NULL;
}

/*
 * The list that the run of this nonce has left, with its path, or NULL.  There may be lists of
 * other runs in other directories.  One that is damaged may be the one, unless that is found:
 * then elevel tells of it.
 */
static NvmLogKept *
find_list(uint64 nonce, char *path, int elevel)
{
	char		damaged[MAXPGPATH];
	const char *what = NULL;

	for (int i = 0; i < nvm_log_ndirectories(); i++)
	{
		const char *problem;
		NvmLogKept *kept = read_in(i, path, &problem);

		if (kept != NULL && kept->nonce == nonce)
			return kept;
		if (problem != NULL)
		{
			what = problem;
			strlcpy(damaged, path, sizeof(damaged));
		}
	}
	if (what != NULL)
		ereport(elevel,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("file \"%s\" of UNLOGGED tables: %s", damaged, what),
				 errdetail("If it is removed, UNLOGGED tables in memory are empty after the next start, and all others are there.")));
	return NULL;
}

/*
 * See vlog_impl.h.
 */
NvmLogKept *
nvm_vlog_read_kept(void)
{
	char		path[MAXPGPATH];

	return nvm_vlog_has_kept() ? find_list(NvmPool->last_nonce, path, ERROR) : NULL;
}

/*
 * For nvm_dir_walk.
 */
static void
count_unlogged(uint32 id, NvmDirEntry *entry, void *arg)
{
	if (nvm_vlog_is_unlogged(entry))
		(*(uint32 *) arg)++;
}

/*
 * See vlog_impl.h.
 */
uint32
nvm_vlog_count_unlogged(void)
{
	uint32		n = 0;

	nvm_dir_walk(count_unlogged, &n);
	return n;
}

/*
 * See vlog_impl.h.  Once: a second attempt has opened tables.
 */
void
nvm_vlog_tell_lost(const NvmLogKept *kept)
{
	if (kept == NULL && nvm_vlog_has_kept() && !nvm_log_is_opening() &&
		nvm_vlog_count_unlogged() > 0)
		ereport(LOG,
				(errmsg("nvm: UNLOGGED tables in memory are empty"),
				 errdetail("The last stop of the server has not kept their rows, or file \"" NVM_LOG_KEPT_NAME "\" is not in %s any more.",
						   nvm_log_pool_of(NvmPool->uuid), nvm_log_where())));
}

/* ---- replaced ---- */

/*
 * See vlog_impl.h.  The names of the files with rows become durable first.
 */
void
nvm_vlog_switch_kept(NvmLogKept *kept, uint32 directories)
{
	int			directory = nvm_log_deal_file(0, 0, 0);
	Size		size = NVM_LOG_KEPT_LENGTH(kept->nfiles);
	char		path[MAXPGPATH];
	char		temporary[MAXPGPATH + 8];
	int			fd;

	kept->crc = nvm_log_kept_crc(kept);
	Assert(nvm_log_kept_problem(kept, size, NvmPool->uuid) == NULL);
	list_path(path, directory);
	snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	fd = nvm_vlog_write_whole(directory, temporary, kept, size);
	NVM_FAILPOINT("keep-sync");
	nvm_vlog_sync_whole(directory, temporary, fd);
	nvm_vlog_sync_names(directories | (uint32) 1 << directory);
	NVM_FAILPOINT("keep-rename");
	(void) durable_rename(temporary, path, ERROR);
	NVM_FAILPOINT("keep-renamed");
}

/* ---- passed on ---- */

/*
 * The same list, of this run.
 */
static void
pass_on(const char *path, NvmLogKept *kept)
{
	char		temporary[MAXPGPATH + 8];
	Size		size = NVM_LOG_KEPT_LENGTH(kept->nfiles);
	bool		done = false;
	int			fd;

	kept->nonce = nvm_pool_nonce();
	kept->incarnation = NvmPool->incarnation;
	kept->crc = nvm_log_kept_crc(kept);
	snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	fd = BasicOpenFile(temporary, O_RDWR | O_CREAT | O_TRUNC | PG_BINARY);
	errno = 0;
	if (fd >= 0)
	{
		done = write(fd, kept, size) == (ssize_t) size;
		NVM_FAILPOINT("keep-pass-on");
		done = done && pg_fsync(fd) == 0;
		close(fd);
	}
	if (!done)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", temporary)));
	else if (durable_rename(temporary, path, LOG) == 0)
	{
		NVM_FAILPOINT("keep-passed-on");
		return;
	}
	ereport(LOG,
			(errmsg("nvm: UNLOGGED tables in memory will be empty after the next start")));
}

/*
 * May there be tables that nobody has come to in this run?
 */
static bool
some_are_closed(bool is_as_found)
{
	if (is_as_found || nvm_regions[NVM_REGION_VOLATILE].max_chunks == 0)
		return true;
	return nvm_log_is_on && nvm_log_has_begun() && !nvm_log_is_whole();
}

static bool
is_closed(uint64 creation)
{
	if (!nvm_log_is_on || !nvm_log_is_opening())
		return true;
	for (uint32 id = 1; id <= NvmPool->ndirs; id++)
	{
		if (nvm_log_is_closed(id, creation))
			return true;
	}
	return false;
}

/*
 * Those of a list that have been opened in this run have other rows by now.
 */
static void
drop_opened(NvmLogKept *kept)
{
	NvmLogKeptFile *file = NVM_LOG_KEPT_DATA(kept);
	uint32		n = 0;

	for (uint32 i = 0; i < kept->nfiles; i++)
	{
		if (is_closed(file[i].creation))
			file[n++] = file[i];
	}
	kept->nfiles = n;
}

/*
 * See vlog_impl.h.  The server is stopped before all tables were opened, or while they could
 * not be, or has no memory for them: of those that are closed, what the stop before has kept
 * is right still.  If the server could not even start (code 1), so is all of it, also where
 * nvm.memory_directory has the rows.  The worker has written a list of this run, if it was
 * there and has had no error.  What we write counts once the pool is closed cleanly, which
 * comes next.
 */
void
nvm_vlog_kept_at_exit(int code, Datum arg)
{
	NvmLogKept *before;
	bool		is_as_found;
	char		path[MAXPGPATH];

	if (MyProcPid != (int) DatumGetInt32(arg) || NvmPool->status != NVM_POOL_OPEN ||
		!nvm_vlog_has_kept())
		return;
	is_as_found = nvm_pool_is_as_found();
	if (!nvm_pool_may_close(code) || !some_are_closed(is_as_found) ||
		find_list(nvm_pool_nonce(), path, DEBUG1) != NULL)
		return;
	before = find_list(NvmPool->last_nonce, path, LOG);
	if (before == NULL)
		return;
	if (!is_as_found)
		drop_opened(before);
	pass_on(path, before);
}

/* ---- removed ---- */

static bool
is_named(const NvmLogKept *kept, const NvmLogKeptName *name)
{
	for (uint32 i = 0; kept != NULL && i < kept->nfiles; i++)
	{
		const NvmLogKeptFile *file = &NVM_LOG_KEPT_DATA(kept)[i];

		if (file->creation == name->creation && file->incarnation == name->incarnation)
			return true;
	}
	return false;
}

static void
remove_file(const char *path)
{
	NVM_FAILPOINT("keep-remove");
	if (unlink(path) != 0 && errno != ENOENT)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not remove file \"%s\": %m", path)));
}

/*
 * The list in a directory, and one that was not finished.
 */
static void
remove_list(int directory)
{
	char		path[MAXPGPATH];

	list_path(path, directory);
	if (access(path, F_OK) == 0)
		remove_file(path);
	strlcat(path, ".tmp", sizeof(path));
	if (access(path, F_OK) == 0)
		remove_file(path);
}

/*
 * See vlog_impl.h.  The list goes first, so what is left names nothing that is gone.  Lists of
 * earlier runs may be in other directories; nobody believes them.
 */
void
nvm_vlog_retire_kept(const NvmLogKept *kept)
{
	NvmLogScan	scan;
	NvmLogKeptName name;
	const char *entry;

	for (int i = 0; kept == NULL && i < nvm_log_ndirectories(); i++)
		remove_list(i);
	nvm_log_scan_begin(&scan, LOG);
	while ((entry = nvm_log_scan_next(&scan)) != NULL)
	{
		char		path[MAXPGPATH];

		if (!nvm_log_parse_kept_rows_name(entry, &name) ||
			name.pool != nvm_log_pool_of(NvmPool->uuid) || is_named(kept, &name))
			continue;
		nvm_log_path_in(path, scan.directory, entry);
		remove_file(path);
	}
}
