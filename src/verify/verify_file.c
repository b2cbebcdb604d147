/*-------------------------------------------------------------------------
 *
 * verify_file.c
 *	  Where the pool is, and whether another process holds it.
 *
 * Compiled into the server and into nvm_poolcheck.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef FRONTEND
#include "postgres.h"
#else
#include "postgres_fe.h"
#endif

#include <sys/file.h>

#include "verify/nvm_verify.h"

/* how long a stopped server's last child may keep the lock */
#define LOCK_WAIT_MS			3000
#define LOCK_STEP_MS			20

void
nvm_pool_directory_name(char *dir, const char *setting, const char *data_dir)
{
	if (is_absolute_path(setting))
		strlcpy(dir, setting, MAXPGPATH);
	else
		snprintf(dir, MAXPGPATH, "%s/%s", data_dir, setting);
	canonicalize_path(dir);
}

const char *
nvm_pool_file_name(const char *dir, const char *data_dir)
{
	char		above[MAXPGPATH];

	strlcpy(above, data_dir, sizeof(above));
	canonicalize_path(above);
	return path_is_prefix_of_path(above, dir) ? NVM_POOL_HIDDEN_FILE : NVM_POOL_FILE;
}

bool
nvm_lock_file(int fd, int operation)
{
	for (int waited = 0;; waited += LOCK_STEP_MS)
	{
		if (flock(fd, operation | LOCK_NB) == 0)
			return true;
		if (errno == EINTR)
			continue;
		if (errno != EWOULDBLOCK || waited >= LOCK_WAIT_MS)
			return false;
		pg_usleep(LOCK_STEP_MS * 1000L);
	}
}
