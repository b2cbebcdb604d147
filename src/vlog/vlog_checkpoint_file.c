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

static void
checkpoint_path(char *path)
{
	snprintf(path, MAXPGPATH, "%s/" NVM_LOG_CHECKPOINT_NAME, nvm_log_directory(),
			 nvm_log_pool_of(NvmPool->uuid));
}

void
nvm_vlog_rows_path(char *path, uint64 checkpoint, uint32 part)
{
	snprintf(path, MAXPGPATH, "%s/" NVM_LOG_ROWS_NAME, nvm_log_directory(),
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
 * See vlog_impl.h.
 */
const NvmLogCheckpoint *
nvm_vlog_read_checkpoint(void)
{
	NvmLogCheckpoint *checkpoint;
	char		path[MAXPGPATH];
	const char *problem;
	uint64		size;
	int			fd;

	checkpoint_path(path);
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
 * See vlog_impl.h.  The names of the data files become durable first.
 */
void
nvm_vlog_switch_checkpoint(NvmLogCheckpoint *checkpoint)
{
	Size		size = NVM_LOG_CHECKPOINT_LENGTH(checkpoint->nfiles);
	char		path[MAXPGPATH];
	char		temporary[MAXPGPATH + 8];
	int			fd;

	checkpoint->crc = nvm_log_checkpoint_crc(checkpoint);
	Assert(nvm_log_checkpoint_problem(checkpoint, size, NvmPool->uuid) == NULL);
	checkpoint_path(path);
	snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	fd = OpenTransientFile(temporary, O_RDWR | O_CREAT | O_TRUNC | PG_BINARY);
	if (fd < 0)
		cannot("create", temporary);
	errno = 0;
	if (write(fd, checkpoint, size) != (ssize_t) size)
	{
		if (errno == 0)
			errno = ENOSPC;
		cannot("write", temporary);
	}
	NVM_FAILPOINT("ckpt-sync");
	if (pg_fsync(fd) != 0)
		cannot("sync", temporary);
	if (CloseTransientFile(fd) != 0)
		cannot("close", temporary);
	fsync_fname(nvm_log_directory(), true);
	NVM_FAILPOINT("ckpt-rename");
	(void) durable_rename(temporary, path, ERROR);
	NVM_FAILPOINT("ckpt-renamed");
}
