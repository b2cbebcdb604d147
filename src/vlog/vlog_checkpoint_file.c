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

	checkpoint_path(path, directory);
	checkpoint = (NvmLogCheckpoint *)
		nvm_log_read_whole(path, NVM_LOG_CHECKPOINT_LONGEST, &size);
	if (checkpoint == NULL && errno == ENOENT)
		return NULL;
	if (checkpoint == NULL)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read file \"%s\": %m", path)));
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
	Size		size = NVM_LOG_CHECKPOINT_LENGTH(checkpoint->nfiles, checkpoint->snapshot);
	char		path[MAXPGPATH];
	char		temporary[MAXPGPATH + 8];
	int			fd;

	checkpoint->crc = nvm_log_checkpoint_crc(checkpoint);
	Assert(nvm_log_checkpoint_problem(checkpoint, size, NvmPool->uuid) == NULL);
	checkpoint_path(path, directory);
	snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	fd = nvm_vlog_write_whole(directory, temporary, checkpoint, size);
	NVM_FAILPOINT("ckpt-sync");
	nvm_vlog_sync_whole(directory, temporary, fd);
	nvm_vlog_sync_names(directories | (uint32) 1 << directory);
	NVM_FAILPOINT("ckpt-rename");
	(void) durable_rename(temporary, path, ERROR);
	NVM_FAILPOINT("ckpt-renamed");
	counts_in = directory;
	remove_others(directory);
}
