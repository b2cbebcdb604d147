/*-------------------------------------------------------------------------
 *
 * log_watch.c
 *	  Is the file that is written still there?
 *
 * A process goes on writing to a file that it has open, whatever becomes of its name.
 * A start would not find it.  So it is looked for: at each round by the number of its
 * names, and by the recovery worker every second under its own.  README.md, "Files
 * that vanish".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log/log_impl.h"
#include "utils/timestamp.h"

#define WATCH_USEC		1000000

/*
 * This is the file from now on.  Caller holds the write lock, or is alone.
 */
void
nvm_log_watch_file(int fd)
{
	struct stat st;

	if (fstat(fd, &st) != 0)
		memset(&st, 0, sizeof(st));
	NvmLog->file_device = (uint64) st.st_dev;
	NvmLog->file_inode = (uint64) st.st_ino;
}

/*
 * Has the file that this process has open lost its last name?  Asked with each sync, so not
 * by fstat: that looks at the file's times, and since Linux 6.13 the next write then changes
 * its inode, and the next sync has that to write, too.
 */
bool
nvm_log_is_removed(int fd)
{
	struct statx st;

	return statx(fd, "", AT_EMPTY_PATH, STATX_NLINK, &st) == 0 && st.stx_nlink == 0;
}

/*
 * The file is not under its name.  What it has is in memory alone.  It counts as one that
 * has failed, and a checkpoint is due that needs nothing before the next file.
 */
void
nvm_log_file_has_gone(void)
{
	char		path[MAXPGPATH];

	nvm_log_file_path(path, nvm_log_memory->directory, nvm_log_memory->generation,
					  nvm_log_memory->file);
	nvm_log_memory->file_is_bad = true;
	if (nvm_log_persistent() > nvm_log_memory->first)
		pg_atomic_write_u64(&NvmLog->lost_before, nvm_log_persistent());
	ereport(LOG,
			(errcode(ERRCODE_UNDEFINED_FILE),
			 errmsg("nvm: file \"%s\" of the log was removed or renamed while the server runs", path),
			 errdetail("What it has is in memory alone, until the next checkpoint of tables in memory. It is made at once, if a new file can be."),
			 errhint("Put the file back, or its directory. If the server is stopped before the checkpoint is there, the log cannot bring tables in memory back without it.")));
}

static bool
is_under_its_name(void)
{
	char		path[MAXPGPATH];
	struct stat st;

	nvm_log_file_path(path, nvm_log_memory->directory, nvm_log_memory->generation,
					  nvm_log_memory->file);
	if (stat(path, &st) != 0)
		return errno != ENOENT && errno != ENOTDIR;
	return (uint64) st.st_dev == NvmLog->file_device && (uint64) st.st_ino == NvmLog->file_inode;
}

/*
 * See log_impl.h.
 */
void
nvm_log_watch(void)
{
	static TimestampTz looked_at = 0;
	TimestampTz now = GetCurrentTimestamp();

	if (now - looked_at < WATCH_USEC)
		return;
	looked_at = now;
	LWLockAcquire(NvmLog->write_lock, LW_EXCLUSIVE);
	if (!nvm_log_memory->file_is_bad && NvmLog->file_inode != 0 && !is_under_its_name())
	{
		nvm_log_file_has_gone();
		/* who wants to commit is told now if there is no place for a new file */
		(void) nvm_log_write_rest();
	}
	LWLockRelease(NvmLog->write_lock);
	ConditionVariableBroadcast(&NvmLog->written);
}

/*
 * See nvm_log.h.
 */
NvmLogPosition
nvm_log_lost_before(void)
{
	return pg_atomic_read_u32(&NvmLog->broken) != 0 ? 0 :
		pg_atomic_read_u64(&NvmLog->lost_before);
}
