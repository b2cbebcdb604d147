/*-------------------------------------------------------------------------
 *
 * pool_witness.c
 *	  Has PostgreSQL emptied its UNLOGGED relations?
 *
 * A recovery empties the indexes of UNLOGGED tables, and leaves no note of it.
 * If it ran without the pool, or if our mark of a clean close is missing, the
 * next open could not tell whether the rows that it finds still have their
 * index entries.  So there is a witness: two files like those of an UNLOGGED
 * relation, which a recovery treats as such, in a directory where every
 * recovery looks.  The init fork is empty, the main fork is not.  A recovery
 * replaces the main fork by a copy of the init fork, durably, before pg_control
 * says that it is over.
 *
 *	main fork has contents, init fork is there		no recovery since it was made
 *	anything else									not known
 *
 * The relation exists in no catalog.  Its number is of the range that releases
 * of PostgreSQL leave free, and is not handed out to relations of users either.
 * It lies in the first there is of the databases that initdb makes.  Base
 * backups leave its main fork out, as they do for all UNLOGGED relations.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pmem/nvm_pmem.h"
#include "pool/pool_impl.h"
#include "storage/fd.h"

/* template1, postgres, template0: any of them may have been dropped */
static const char *const witness_directories[] = {"base/1", "base/5", "base/4"};

#define WITNESS_MAIN	"9999"
#define WITNESS_INIT	"9999_init"

static bool
witness_intact_in(const char *directory)
{
	char		path[MAXPGPATH];
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", directory, WITNESS_INIT);
	if (stat(path, &st) != 0 || st.st_size != 0)
		return false;
	snprintf(path, sizeof(path), "%s/%s", directory, WITNESS_MAIN);
	return stat(path, &st) == 0 && st.st_size > 0;
}

/*
 * Are the indexes of UNLOGGED tables, in a data directory that was shut down
 * cleanly, what they were when the pool was last in use?  False if that is not
 * known.  In a process whose directory is the data directory.
 */
bool
nvm_witness_intact(void)
{
	for (size_t i = 0; i < lengthof(witness_directories); i++)
	{
		if (witness_intact_in(witness_directories[i]))
			return true;
	}
	return false;
}

/*
 * Make a file durable, with `size` bytes of zeroes: pg_checksums takes a page
 * of them for one that was never used.  Returns false after saying what went
 * wrong.
 */
static bool
witness_write(const char *directory, const char *name, Size size)
{
	PGAlignedBlock page;
	char		path[MAXPGPATH];
	int			fd;
	bool		ok = false;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	memset(page.data, 0, sizeof(page.data));
	fd = OpenTransientFile(path, O_WRONLY | O_CREAT | O_TRUNC | PG_BINARY);
	if (fd >= 0)
	{
		errno = ENOSPC;
		ok = write(fd, page.data, size) == (ssize_t) size && pg_fsync(fd) == 0;
		if (!ok)
		{
			int			save_errno = errno;

			(void) CloseTransientFile(fd);
			errno = save_errno;
		}
		else
			ok = CloseTransientFile(fd) == 0;
	}
	if (!ok)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", path),
				 errdetail("If the server then runs without the NVM pool, or is killed at the very end of its shutdown, the rows of UNLOGGED nvm tables will be lost.")));
	return ok && fsync_fname_ext(directory, true, false, LOG) == 0;
}

/*
 * See nvm_pool.h.
 */
void
nvm_witness_make(void)
{
	struct stat st;

	if (nvm_witness_intact())
		return;
	for (size_t i = 0; i < lengthof(witness_directories); i++)
	{
		const char *directory = witness_directories[i];

		if (stat(directory, &st) != 0)
			continue;
		/* a main fork without its init fork would outlive a recovery */
		NVM_FAILPOINT("witness-init");
		if (witness_write(directory, WITNESS_INIT, 0))
		{
			NVM_FAILPOINT("witness-main");
			(void) witness_write(directory, WITNESS_MAIN, BLCKSZ);
		}
		return;
	}
}
