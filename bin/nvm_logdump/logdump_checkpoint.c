/*-------------------------------------------------------------------------
 *
 * logdump_checkpoint.c
 *	  Checkpoints: what the file says, and the rows of its data files.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "logdump.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* the one that was read last */
static char read_path[MAXPGPATH];
static NvmLogCheckpoint *checkpoint = NULL;
static uint64 read_size;

static const char *
name_in(const char *path)
{
	return last_dir_separator(path) ? last_dir_separator(path) + 1 : path;
}

static int
dir_length(const char *path)
{
	return (int) (name_in(path) - path);
}

bool
is_checkpoint(const char *path)
{
	uint32		pool;

	return nvm_log_parse_checkpoint_name(name_in(path), &pool);
}

/*
 * Read it, unless it was the last one.  False, with errno set, if that is not possible.
 */
static bool
read_checkpoint(const char *path)
{
	struct stat st;
	ssize_t		n = -1;
	int			fd;

	if (checkpoint != NULL && strcmp(path, read_path) == 0)
		return true;
	pg_free(checkpoint);
	checkpoint = NULL;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && fstat(fd, &st) == 0)
	{
		read_size = Min((uint64) st.st_size, NVM_LOG_CHECKPOINT_LENGTH(NVM_LOG_CHECKPOINT_FILES));
		checkpoint = pg_malloc0(read_size + sizeof(NvmLogCheckpoint));
		n = pread(fd, checkpoint, read_size, 0);
	}
	if (fd >= 0)
		close(fd);
	if (n < 0)
		return false;
	read_size = (uint64) n;
	strlcpy(read_path, path, sizeof(read_path));
	return true;
}

/*
 * The position from which on the log is needed that a file is of.
 */
uint64
log_needed_from(const LogFile *file)
{
	char		path[MAXPGPATH];

	snprintf(path, sizeof(path), "%.*s" NVM_LOG_CHECKPOINT_NAME, dir_length(file->path), file->path,
			 nvm_log_pool_of(file->header.uuid));
	if (!read_checkpoint(path) ||
		nvm_log_checkpoint_problem(checkpoint, read_size, file->header.uuid) != NULL)
		return 0;
	return checkpoint->begin;
}

static void
print_data_file(const char *dir, int length, uint32 part)
{
	const NvmLogSide *side = NVM_LOG_CHECKPOINT_DATA(checkpoint) + (part - 1);
	char		path[MAXPGPATH];
	const char *problem;
	NvmLogWalk	walk;
	LogFile		file;

	snprintf(path, sizeof(path), "%.*s" NVM_LOG_ROWS_NAME, length, dir,
			 nvm_log_pool_of(checkpoint->uuid), (unsigned long long) checkpoint->number, part);
	if (!log_file_open(&file, path))
		return;
	if (file.size < NVM_LOG_PAGE)
	{
		damaged(&file, "the file is truncated");
		return;
	}
	if (!log_file_map(&file))
		return;
	printf("  file %s, " UINT64_FORMAT " bytes\n", path + length, (uint64) side->length);
	problem = nvm_log_side_problem(file.base, file.size, side, checkpoint->uuid, NULL);
	if (problem != NULL)
		damaged(&file, "%s", problem);
	else
	{
		nvm_log_walk_side(&walk, file.base, side);
		log_storages_print(&file, &walk);
	}
	log_file_unmap(&file);
}

void
checkpoint_print(const char *path)
{
	LogFile		file = {.asked_for = true};
	const char *problem;

	strlcpy(file.path, path, sizeof(file.path));
	if (!read_checkpoint(path))
	{
		failed("could not read file \"%s\": %m", path);
		return;
	}
	problem = nvm_log_checkpoint_problem(checkpoint, read_size, NULL);
	if (problem != NULL)
	{
		damaged(&file, "%s", problem);
		return;
	}
	printf("checkpoint %s: number " UINT64_FORMAT ", begin " UINT64_FORMAT ", decided " UINT64_FORMAT
		   ", end " UINT64_FORMAT ", log from generation %u, number %u, " UINT64_FORMAT " rows, "
		   UINT64_FORMAT " bytes in %u files\n",
		   path, (uint64) checkpoint->number, (uint64) checkpoint->begin,
		   (uint64) checkpoint->decided, (uint64) checkpoint->end, checkpoint->generation,
		   checkpoint->file, (uint64) checkpoint->rows, (uint64) checkpoint->bytes,
		   checkpoint->nfiles);
	for (uint32 part = 1; part <= checkpoint->nfiles; part++)
		print_data_file(path, dir_length(path), part);
}
