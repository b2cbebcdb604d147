/*-------------------------------------------------------------------------
 *
 * pmem_probe.c
 *	  Find out what kind of memory the pool file is.
 *
 * Runs once, in the postmaster, before the pool is mapped.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "pmem/pmem_backend.h"

/* from linux/magic.h, which not every libc passes on */
#ifndef TMPFS_MAGIC
#define TMPFS_MAGIC			0x01021994
#endif
#ifndef RAMFS_MAGIC
#define RAMFS_MAGIC			0x858458f6
#endif

/*
 * Does the file live in DRAM (tmpfs, ramfs)?  Then there is nothing to make
 * durable but the stores themselves, and nothing outlives a reboot.
 */
bool
nvm_probe_is_tmpfs(int fd)
{
	struct statfs fs;

	if (fstatfs(fd, &fs) != 0)
		return false;
	return (uint32) fs.f_type == TMPFS_MAGIC || (uint32) fs.f_type == RAMFS_MAGIC;
}

/*
 * Does the file accept a MAP_SYNC mapping?  With MAP_SHARED_VALIDATE an older
 * kernel, or another file system, refuses the flag instead of ignoring it.
 */
bool
nvm_probe_map_sync(int fd)
{
	Size		len = (Size) sysconf(_SC_PAGESIZE);
	void	   *addr;

	addr = mmap(NULL, len, PROT_READ | PROT_WRITE,
				MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
	if (addr == MAP_FAILED)
		return false;
	(void) munmap(addr, len);
	return true;
}

/*
 * What nvm.persist_method = auto means for this pool file.
 */
NvmPersistMethod
nvm_probe_method(const char *path, int fd)
{
	char		dir[MAXPGPATH];
	char	   *slash;

	if (nvm_probe_is_tmpfs(fd))
		return NVM_PERSIST_PMEM;

	strlcpy(dir, path, sizeof(dir));
	slash = strrchr(dir, '/');
	if (slash == NULL)
		strlcpy(dir, ".", sizeof(dir));
	else
		*slash = '\0';

	if (nvm_libpmem_file_is_pmem(dir) && nvm_probe_map_sync(fd))
		return NVM_PERSIST_PMEM;
	return NVM_PERSIST_MSYNC;
}
