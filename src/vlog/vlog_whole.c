/*-------------------------------------------------------------------------
 *
 * vlog_whole.c
 *	  Small files that are replaced as a whole: that of the checkpoint, and the list of what
 *	  a clean stop has kept.
 *
 * Who replaces one writes it under another name, syncs it, has the names of the files that
 * it names synced, and renames it.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "log/nvm_log.h"
#include "storage/fd.h"
#include "vlog/vlog_impl.h"

/*
 * A step has failed: the directory is out, for the next attempt.
 */
static void
cannot_replace(const char *what, int directory, const char *path)
{
	nvm_log_directory_failed(directory, what, path);
	ereport(ERROR,
			(errcode_for_file_access(),
			 errmsg("could not %s file \"%s\": %m", what, path)));
}

/*
 * See vlog_impl.h.
 */
int
nvm_vlog_write_whole(int directory, const char *temporary, const void *data, Size size)
{
	int			fd = OpenTransientFile(temporary, O_RDWR | O_CREAT | O_TRUNC | PG_BINARY);

	if (fd < 0)
		cannot_replace("create", directory, temporary);
	errno = 0;
	if (write(fd, data, size) != (ssize_t) size)
	{
		if (errno == 0)
			errno = ENOSPC;
		cannot_replace("write", directory, temporary);
	}
	return fd;
}

void
nvm_vlog_sync_whole(int directory, const char *temporary, int fd)
{
	if (pg_fsync(fd) != 0)
		cannot_replace("sync", directory, temporary);
	if (CloseTransientFile(fd) != 0)
		cannot_replace("close", directory, temporary);
}

/*
 * See vlog_impl.h.  Not fsync_fname: that is a PANIC, unless data_sync_retry is on.  What needs
 * these names is given up, and the next attempt has others.
 */
void
nvm_vlog_sync_names(uint32 directories)
{
	for (int i = 0; i < nvm_log_ndirectories(); i++)
	{
		if ((directories & ((uint32) 1 << i)) != 0)
			(void) fsync_fname_ext(nvm_log_directory(i), true, false, ERROR);
	}
}
