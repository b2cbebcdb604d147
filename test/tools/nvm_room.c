/*-------------------------------------------------------------------------
 *
 * nvm_room.c
 *	  Preloaded library (LD_PRELOAD) for t/size/02_beyond_100gb.pl, whose pool is
 *	  larger than the device that it lies on: pretends that there is room for
 *	  all of it, and that the file system has allocated it.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#define A_LOT	((off_t) 16 * 1024 * 1024 * 1024)

static void *
next(const char *name)
{
	void	   *f = dlsym(RTLD_NEXT, name);

	if (f == NULL)
		abort();
	return f;
}

int
fallocate(int fd, int mode, off_t offset, off_t len)
{
	int			(*f) (int, int, off_t, off_t);

	if (len >= A_LOT)
		return 0;
	*(void **) &f = next("fallocate");
	return f(fd, mode, offset, len);
}

int
fstatvfs(int fd, struct statvfs *fs)
{
	int			(*f) (int, struct statvfs *);
	int			rc;

	*(void **) &f = next("fstatvfs");
	rc = f(fd, fs);
	fs->f_bavail = (fsblkcnt_t) 1 << 50;
	return rc;
}
