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

bool
is_checkpoint(const char *path)
{
	uint32		pool;

	return nvm_log_parse_checkpoint_name(log_name_in(path), &pool);
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
		read_size = Min((uint64) st.st_size, NVM_LOG_CHECKPOINT_LONGEST);
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
 * The position from which on the log is needed that a file is of: what the newest checkpoint
 * beside it says, or in another directory.
 */
uint64
log_needed_from(const LogFile *file)
{
	char		path[MAXPGPATH];
	char		name[MAXPGPATH];
	uint64		needed = 0;
	uint64		number = 0;
	bool		there;

	snprintf(name, sizeof(name), NVM_LOG_CHECKPOINT_NAME, nvm_log_pool_of(file->header.uuid));
	there = log_find(path, file->path, name);
	for (int i = 0; there; there = log_path_in(path, i++, name))
	{
		if (!read_checkpoint(path) || checkpoint->number <= number ||
			nvm_log_checkpoint_problem(checkpoint, read_size, file->header.uuid) != NULL)
			continue;
		number = checkpoint->number;
		needed = checkpoint->begin;
	}
	return needed;
}

/*
 * See logdump.h.
 */
void
data_file_print(const char *beside, const char *name, const NvmLogSide *side, const uint8 *uuid)
{
	char		path[MAXPGPATH];
	const char *problem;
	NvmLogWalk	walk;
	LogFile		file;

	(void) log_find(path, beside, name);
	if (!log_file_open(&file, path))
		return;
	if (file.size < NVM_LOG_PAGE)
	{
		damaged(&file, "the file is truncated");
		return;
	}
	if (!log_file_map(&file))
		return;
	printf("  file %s, " UINT64_FORMAT " bytes\n", name, (uint64) side->length);
	problem = nvm_log_side_problem(file.base, file.size, side, uuid, NULL);
	if (problem != NULL)
		damaged(&file, "%s", problem);
	else
	{
		nvm_log_walk_side(&walk, file.base, side);
		log_storages_print(&file, &walk);
	}
	log_file_unmap(&file);
}

/* ---- the list ---- */

typedef struct Added
{
	char	   *path;
	uint64		number;			/* 0: it is damaged, or cannot be read */
	uint8		uuid[16];
} Added;

static Added *added = NULL;
static int	nadded = 0;

void
checkpoint_add(const char *path)
{
	Added	   *a;

	added = pg_realloc(added, (nadded + 1) * sizeof(Added));
	a = &added[nadded++];
	memset(a, 0, sizeof(*a));
	a->path = pg_strdup(path);
	if (!read_checkpoint(path) || nvm_log_checkpoint_problem(checkpoint, read_size, NULL) != NULL)
		return;
	a->number = checkpoint->number;
	memcpy(a->uuid, checkpoint->uuid, sizeof(a->uuid));
}

/*
 * Does one of a higher number take its place?  A crash may leave both, in two directories.
 */
static bool
is_replaced(const Added *a)
{
	for (int i = 0; i < nadded; i++)
	{
		if (a->number != 0 && added[i].number > a->number &&
			memcmp(added[i].uuid, a->uuid, sizeof(a->uuid)) == 0)
			return true;
	}
	return false;
}

/*
 * As pg_snapshot has it.
 */
static void
snapshot_print(const NvmLogSnapshot *snapshot)
{
	const uint64 *xip = NVM_LOG_SNAPSHOT_XIP(snapshot);

	printf("  snapshot " UINT64_FORMAT ":" UINT64_FORMAT ":", (uint64) snapshot->xmin,
		   (uint64) snapshot->xmax);
	for (uint32 i = 0; i < snapshot->nxip; i++)
		printf("%s" UINT64_FORMAT, i == 0 ? "" : ",", xip[i]);
	printf("\n");
}

static void
checkpoint_print(const Added *a)
{
	const char *path = a->path;
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
	if (is_replaced(a))
	{
		printf("older checkpoint %s: number " UINT64_FORMAT ", does not count\n", path,
			   (uint64) checkpoint->number);
		return;
	}
	printf("checkpoint %s: number " UINT64_FORMAT ", begin " UINT64_FORMAT ", decided " UINT64_FORMAT
		   ", end " UINT64_FORMAT ", log from generation %u, number %u, " UINT64_FORMAT " rows, "
		   UINT64_FORMAT " bytes in %u files\n",
		   path, (uint64) checkpoint->number, (uint64) checkpoint->begin,
		   (uint64) checkpoint->decided, (uint64) checkpoint->end, checkpoint->generation,
		   checkpoint->file, (uint64) checkpoint->rows, (uint64) checkpoint->bytes,
		   checkpoint->nfiles);
	if (checkpoint->snapshot != 0)
		snapshot_print(NVM_LOG_CHECKPOINT_SNAPSHOT(checkpoint));
	for (uint32 part = 1; part <= checkpoint->nfiles; part++)
	{
		char		name[MAXPGPATH];

		snprintf(name, sizeof(name), NVM_LOG_ROWS_NAME, nvm_log_pool_of(checkpoint->uuid),
				 (unsigned long long) checkpoint->number, part);
		data_file_print(path, name, NVM_LOG_CHECKPOINT_DATA(checkpoint) + (part - 1),
						checkpoint->uuid);
	}
}

void
checkpoints_print(void)
{
	for (int i = 0; i < nadded; i++)
		checkpoint_print(&added[i]);
}
