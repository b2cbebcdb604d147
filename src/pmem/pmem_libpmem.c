/*-------------------------------------------------------------------------
 *
 * pmem_libpmem.c
 *	  User-space flush and fence by libpmem.
 *
 * The only file that includes libpmem.h.  The library chooses the instruction
 * (clwb, clflushopt, clflush) for the processor at hand.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <libpmem.h>
#include <unistd.h>

#include "pmem/pmem_backend.h"

#define PROBE_FILE_SIZE		4096

/*
 * Write back the cache lines of [addr, addr + len).
 */
void
nvm_libpmem_flush(const void *addr, Size len)
{
	pmem_flush(addr, len);
}

/*
 * Wait for this processor's outstanding write-backs.
 */
void
nvm_libpmem_drain(void)
{
	pmem_drain();
}

/*
 * Does nvm_libpmem_flush flush?  With PMEM_NO_FLUSH=1 the library does nothing
 * there. That is meant for platforms that flush their caches themselves at a
 * loss of power; the library finds out about these without being told.  0
 * forces flushes. Other values mean nothing to today's library, and are not
 * trusted.
 */
bool
nvm_libpmem_flushes(void)
{
	const char *value = getenv("PMEM_NO_FLUSH");

	return value == NULL || strcmp(value, "0") == 0;
}

/*
 * Is a small file in directory `dir` persistent memory by libpmem's own
 * judgement?  pmem_is_pmem answers for no mapping but the library's own, so
 * make one.  While PMEM_IS_PMEM_FORCE is set the library only repeats what it
 * was told: false.
 */
bool
nvm_libpmem_file_is_pmem(const char *dir)
{
	char		path[MAXPGPATH];
	size_t		mapped_len = 0;
	int			is_pmem = 0;
	void	   *addr;

	if (getenv("PMEM_IS_PMEM_FORCE") != NULL)
		return false;

	snprintf(path, sizeof(path), "%s/probe.%d", dir, (int) getpid());
	(void) unlink(path);
	addr = pmem_map_file(path, PROBE_FILE_SIZE,
						 PMEM_FILE_CREATE | PMEM_FILE_EXCL, 0600,
						 &mapped_len, &is_pmem);
	if (addr != NULL)
		(void) pmem_unmap(addr, mapped_len);
	(void) unlink(path);
	return addr != NULL && is_pmem != 0;
}
