/*-------------------------------------------------------------------------
 *
 * logdump_kept.c
 *	  What a clean stop has kept of UNLOGGED tables: the list, and the rows of its files.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "logdump.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static char **added = NULL;
static int	nadded = 0;

bool
is_kept_list(const char *path)
{
	uint32		pool;

	return nvm_log_parse_kept_name(log_name_in(path), &pool);
}

void
kept_list_add(const char *path)
{
	added = pg_realloc(added, (nadded + 1) * sizeof(char *));
	added[nadded++] = pg_strdup(path);
}

/*
 * NULL, with errno set, if it cannot be read.
 */
static NvmLogKept *
read_list(const char *path, uint64 *size)
{
	struct stat st;
	NvmLogKept *kept = NULL;
	ssize_t		n = -1;
	int			fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd >= 0 && fstat(fd, &st) == 0)
	{
		*size = Min((uint64) st.st_size, NVM_LOG_KEPT_LENGTH(NVM_LOG_KEPT_FILES));
		kept = pg_malloc0(*size + sizeof(NvmLogKept));
		n = pread(fd, kept, *size, 0);
	}
	if (fd >= 0)
		close(fd);
	if (n < 0)
		return NULL;
	*size = (uint64) n;
	return kept;
}

static void
print_list(const char *path)
{
	LogFile		file = {.asked_for = true};
	uint64		size = 0;
	NvmLogKept *kept = read_list(path, &size);
	const char *problem;

	strlcpy(file.path, path, sizeof(file.path));
	if (kept == NULL)
	{
		failed("could not read file \"%s\": %m", path);
		return;
	}
	problem = nvm_log_kept_problem(kept, size, NULL);
	if (problem != NULL)
	{
		damaged(&file, "%s", problem);
		return;
	}
	printf("UNLOGGED tables %s: incarnation %u, %u files\n", path, kept->incarnation, kept->nfiles);
	for (uint32 i = 0; i < kept->nfiles; i++)
	{
		const NvmLogKeptFile *from = &NVM_LOG_KEPT_DATA(kept)[i];
		char		name[MAXPGPATH];

		snprintf(name, sizeof(name), NVM_LOG_KEPT_ROWS_NAME, nvm_log_pool_of(kept->uuid),
				 from->incarnation, (unsigned long long) from->creation);
		data_file_print(path, name, &from->side, kept->uuid);
	}
	pg_free(kept);
}

void
kept_lists_print(void)
{
	for (int i = 0; i < nadded; i++)
		print_list(added[i]);
}
