/*-------------------------------------------------------------------------
 *
 * vlog_checkpoint_file.c
 *	  The file of a checkpoint: read, and replaced.
 *
 * There is one that counts, under a fixed name.  It is replaced by a rename, so a crash
 * leaves the old one or the new one.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log/nvm_log.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/fd.h"
#include "verify/nvm_verify_log.h"
#include "vlog/vlog_impl.h"

/* the directory of the one that counts, as far as this process knows; -1: none */
static int	counts_in = -1;

static void
checkpoint_path(char *path, int directory)
{
	snprintf(path, MAXPGPATH, "%s/" NVM_LOG_CHECKPOINT_NAME, nvm_log_directory(directory),
			 nvm_log_pool_of(NvmPool->uuid));
}

void
nvm_vlog_rows_path(char *path, int directory, uint64 checkpoint, uint32 part)
{
	snprintf(path, MAXPGPATH, "%s/" NVM_LOG_ROWS_NAME, nvm_log_directory(directory),
			 nvm_log_pool_of(NvmPool->uuid), (unsigned long long) checkpoint, part);
}

static void
cannot(const char *what, const char *path)
{
	ereport(ERROR,
			(errcode_for_file_access(),
			 errmsg("could not %s file \"%s\": %m", what, path)));
}

/*
 * All of a file, in memory of the current context.
 */
static void *
read_whole(const char *path, int fd, uint64 *size)
{
	struct stat st;
	char	   *data;

	if (fstat(fd, &st) != 0)
		cannot("read", path);
	*size = Min((uint64) st.st_size, NVM_LOG_CHECKPOINT_LENGTH(NVM_LOG_CHECKPOINT_FILES));
	data = palloc(*size + 1);
	for (uint64 done = 0; done < *size;)
	{
		ssize_t		n = pg_pread(fd, data + done, *size - done, (off_t) done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			cannot("read", path);
		if (n == 0)
			*size = done;		/* somebody has cut it off */
		done += n;
	}
	return data;
}

/*
 * The checkpoint in a directory, or NULL.
 */
static const NvmLogCheckpoint *
read_in(int directory)
{
	NvmLogCheckpoint *checkpoint;
	char		path[MAXPGPATH];
	const char *problem;
	uint64		size;
	int			fd;

	checkpoint_path(path, directory);
	fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	if (fd < 0 && errno == ENOENT)
		return NULL;
	if (fd < 0)
		cannot("open", path);
	checkpoint = read_whole(path, fd, &size);
	(void) CloseTransientFile(fd);
	problem = nvm_log_checkpoint_problem(checkpoint, size, NvmPool->uuid);
	if (problem != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("file \"%s\" of the checkpoint: %s", path, problem)));
	return checkpoint;
}

/*
 * See vlog_impl.h.  Of several the one with the highest number counts.  One that is damaged
 * may be that one.
 */
const NvmLogCheckpoint *
nvm_vlog_read_checkpoint(void)
{
	const NvmLogCheckpoint *newest = NULL;

	counts_in = -1;
	for (int i = 0; i < nvm_log_ndirectories(); i++)
	{
		const NvmLogCheckpoint *checkpoint = read_in(i);

		if (checkpoint == NULL || (newest != NULL && checkpoint->number <= newest->number))
			continue;
		newest = checkpoint;
		counts_in = i;
	}
	return newest;
}

/* ---- the switch ---- */

/*
 * A step has failed: the directory is out, for the next attempt.
 */
static void
cannot_switch(const char *what, int directory, const char *path)
{
	nvm_log_directory_failed(directory, what, path);
	cannot(what, path);
}

/*
 * Write it under another name, synced.
 */
static void
write_temporary(const NvmLogCheckpoint *checkpoint, int directory, const char *temporary)
{
	Size		size = NVM_LOG_CHECKPOINT_LENGTH(checkpoint->nfiles);
	int			fd = OpenTransientFile(temporary, O_RDWR | O_CREAT | O_TRUNC | PG_BINARY);

	if (fd < 0)
		cannot_switch("create", directory, temporary);
	errno = 0;
	if (write(fd, checkpoint, size) != (ssize_t) size)
	{
		if (errno == 0)
			errno = ENOSPC;
		cannot_switch("write", directory, temporary);
	}
	NVM_FAILPOINT("ckpt-sync");
	if (pg_fsync(fd) != 0)
		cannot_switch("sync", directory, temporary);
	if (CloseTransientFile(fd) != 0)
		cannot_switch("close", directory, temporary);
}

static void
sync_names(uint32 directories)
{
	for (int i = 0; i < nvm_log_ndirectories(); i++)
	{
		if ((directories & ((uint32) 1 << i)) != 0)
			fsync_fname(nvm_log_directory(i), true);
	}
}

/*
 * The new one is durable.  One in another directory has a lower number.
 */
static void
remove_others(int directory)
{
	char		path[MAXPGPATH];

	for (int i = 0; i < nvm_log_ndirectories(); i++)
	{
		checkpoint_path(path, i);
		if (i == directory || access(path, F_OK) != 0)
			continue;
		NVM_FAILPOINT("ckpt-remove-other");
		if (unlink(path) != 0)
			ereport(LOG,
					(errcode_for_file_access(),
					 errmsg("could not remove file \"%s\": %m", path)));
	}
}

/*
 * See vlog_impl.h.  The names of the data files become durable first.
 */
void
nvm_vlog_switch_checkpoint(NvmLogCheckpoint *checkpoint, uint32 directories)
{
	int			directory = nvm_log_deal_file(Max(counts_in, 0), 0, 0);
	char		path[MAXPGPATH];
	char		temporary[MAXPGPATH + 8];

	checkpoint->crc = nvm_log_checkpoint_crc(checkpoint);
	Assert(nvm_log_checkpoint_problem(checkpoint, NVM_LOG_CHECKPOINT_LENGTH(checkpoint->nfiles),
									  NvmPool->uuid) == NULL);
	checkpoint_path(path, directory);
	snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	write_temporary(checkpoint, directory, temporary);
	sync_names(directories | (uint32) 1 << directory);
	NVM_FAILPOINT("ckpt-rename");
	(void) durable_rename(temporary, path, ERROR);
	NVM_FAILPOINT("ckpt-renamed");
	counts_in = directory;
	remove_others(directory);
}
