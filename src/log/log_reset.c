/*-------------------------------------------------------------------------
 *
 * log_reset.c
 *	  Giving up a lost log: nvm.reset_log() and what the next start does.
 *
 * The log can begin anew at a start alone, before anybody uses the region.  So a
 * session only leaves a request (pool/pool_reset.c has the file), of two kinds:
 *
 *	- "log": the log is lost, do without it.  A start that finds it drops the request.
 *	- "rows": give up all that the log brings back, whatever its state.
 *
 * README.md, "Giving up the log", has the steps and what a crash after each leaves.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "log/log_impl.h"
#include "log/nvm_log.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/fd.h"
#include "verify/nvm_verify_log.h"

/* where the files go, in each directory of the log: pool, generation */
#define OLD_NAME	"%08x-%08x.old"

/* ---- the request, in a session ---- */

/*
 * ERROR if there is no log that could be given up.
 */
static void
require_log(void)
{
	if (NvmPool == NULL)
		nvm_pool_require_slow();
	if (NvmPool->status != NVM_POOL_OPEN && !NvmPool->log_is_lost)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("nvm tables are not available, but not because of the log of tables in memory"),
				 errdetail("At server start: %s.", NvmPool->refusal),
				 errhint("%s", NvmPool->refusal_hint)));
	if (NvmPool->status == NVM_POOL_OPEN && nvm_pool_log_generation() == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("there is no log of tables in memory"),
				 errdetail("It begins with the first table of access method nvm_vlog.")));
}

/*
 * See nvm_log.h.
 */
bool
nvm_log_request_reset(bool force)
{
	bool		failed;

	require_log();
	failed = nvm_log_is_on && nvm_log_rebuild_state() == NVM_LOG_FAILED;
	if (!force && nvm_log_is_on && !failed)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("the log of tables in memory is in use"),
				 errhint("To lose the rows of all tables in memory of all databases, call nvm.reset_log(force => true).")));
	nvm_reset_request(force || failed ? NVM_RESET_ROWS : NVM_RESET_LOG);
	return force || failed;
}

/* ---- a start ---- */

static bool
step_failed(const char *step, const char *path)
{
	nvm_pool_refuse(ERRCODE_IO_ERROR,
					psprintf("could not give up the log, as nvm.reset_log() asked: could not %s \"%s\": %m",
							 step, path),
					"Check the directory and its device, or set nvm.log_directories to another directory, and restart the server. To take the request back, remove file \"pg_nvm_reset\" from the data directory.");
	return false;
}

/*
 * Is it a file of this pool's log, of any kind?  Not what a clean stop has kept of UNLOGGED
 * tables: that is whole without the log.
 */
static bool
is_ours(const char *name)
{
	char		prefix[16];
	NvmLogKeptName kept;
	uint32		pool;
	size_t		length;

	if (nvm_log_parse_kept_name(name, &pool) || nvm_log_parse_kept_rows_name(name, &kept))
		return false;
	snprintf(prefix, sizeof(prefix), "%08x", nvm_log_pool_of(NvmPool->uuid));
	length = strlen(name);
	return strncmp(name, prefix, 8) == 0 && (name[8] == '-' || name[8] == '.') &&
		(length < 4 || strcmp(name + length - 4, ".old") != 0);
}

static char *
old_directory(int which, uint32 generation)
{
	return psprintf("%s/" OLD_NAME, nvm_log_directory(which), nvm_log_pool_of(NvmPool->uuid),
					generation);
}

/*
 * Move those of a directory of the log to directory `old` in it.
 */
static bool
move_files(const char *path, const char *old)
{
	DIR		   *dir;
	struct dirent *de;

	if (mkdir(old, S_IRWXU) != 0 && errno != EEXIST)
		return step_failed("create directory", old);
	dir = AllocateDir(path);
	if (dir == NULL)
		return step_failed("open directory", path);
	while ((de = ReadDirExtended(dir, path, LOG)) != NULL)
	{
		char	   *from;
		char	   *to;

		if (!is_ours(de->d_name))
			continue;
		from = psprintf("%s/%s", path, de->d_name);
		to = psprintf("%s/%s", old, de->d_name);
		NVM_FAILPOINT("log-reset-move");
		if (rename(from, to) != 0)
		{
			FreeDir(dir);
			return step_failed("move file", from);
		}
	}
	FreeDir(dir);
	return (fsync_fname_ext(old, true, false, LOG) == 0 &&
			fsync_fname_ext(path, true, false, LOG) == 0) ||
		step_failed("sync directory", path);
}

/*
 * No generation that was ever written comes again.
 */
static void
find_highest(const char *old, uint32 *generation)
{
	DIR		   *dir = AllocateDir(old);
	struct dirent *de;
	NvmLogName	name;

	while (dir != NULL && (de = ReadDirExtended(dir, old, LOG)) != NULL)
	{
		if (nvm_log_parse_name(de->d_name, &name) &&
			name.pool == nvm_log_pool_of(NvmPool->uuid))
			*generation = Max(*generation, name.generation);
	}
	if (dir != NULL)
		FreeDir(dir);
}

/*
 * See log_impl.h.
 */
bool
nvm_log_give_up(uint32 *generation)
{
	const char *path = nvm_log_make_directories();
	uint32		known = *generation;
	uint32		ntables;

	if (path != NULL)
		return step_failed("create directory", path);
	for (int i = 0; i < nvm_log_ndirectories(); i++)
	{
		if (!move_files(nvm_log_directory(i), old_directory(i, known)))
			return false;
	}
	NVM_FAILPOINT("log-reset-moved");
	for (int i = 0; i < nvm_log_ndirectories(); i++)
		find_highest(old_directory(i, known), generation);
	ntables = nvm_dir_reclaim_logged();
	NVM_FAILPOINT("log-reset-reclaimed");
	ereport(WARNING,
			(errmsg("the log of tables in memory was given up, as nvm.reset_log() asked"),
			 errdetail("The rows of %u tables in memory are lost, those of all other tables are not.",
					   ntables),
			 errhint("TRUNCATE makes such a table usable again, empty. The files of the log are in subdirectory \"" OLD_NAME "\" of %s. Remove it when it is not needed.",
					 nvm_log_pool_of(NvmPool->uuid), known, nvm_log_where())));
	return true;
}

/*
 * See log_impl.h.  Before anything can be written: another start would give that up.
 */
bool
nvm_log_settle_reset(bool rows_are_gone, bool log_is_new)
{
	NvmResetRequest request = nvm_reset_requested();

	if (request != NVM_RESET_LOG && !(request == NVM_RESET_ROWS && rows_are_gone))
		return true;
	if (!nvm_reset_forget())
		return step_failed("remove file", "pg_nvm_reset");
	NVM_FAILPOINT("log-reset-forgotten");
	if (!log_is_new)
		ereport(LOG,
				(errmsg("the request to give up the log of tables in memory was dropped, because the log is there")));
	return true;
}
