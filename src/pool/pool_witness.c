/*-------------------------------------------------------------------------
 *
 * pool_witness.c
 *	  Has PostgreSQL emptied its UNLOGGED relations?
 *
 * A recovery empties the indexes of UNLOGGED tables, and leaves no note of it.
 * It may have run without the pool, or our mark of a clean close may be
 * missing.  Then the next open could not tell whether the rows that it finds
 * still have their index entries.  So there is a witness: two files like those
 * of an UNLOGGED relation, which a recovery treats as such, in a directory
 * where every recovery looks.  The init fork is empty, the main fork is not.
 * A recovery replaces the main fork by a copy of the init fork, durably,
 * before pg_control says that it is over.
 *
 *	main fork has contents, init fork is there		no recovery since it was made
 *	anything else									not known
 *
 * Each run that has recovered arms the witness: makes it if need be, and notes
 * that in the incarnation file.  If the note is of the pool's last incarnation,
 * which ended in a crash, and the main fork is empty, somebody else has recovered.
 *
 * pg_resetwal turns a crash into what looks like a clean shutdown, and nothing
 * in such a data directory can be believed.  So where there are its traces,
 * not even an empty witness is believed.  A start without the pool wipes the
 * traces; indexes have to be rebuilt after pg_resetwal in any case.
 *
 * The relation exists in no catalog.  Its number is from the range that
 * releases of PostgreSQL leave free.  Relations of users do not get it either.
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

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/pool_impl.h"
#include "storage/fd.h"

/* template1, postgres, template0: any of them may have been dropped */
static const char *const witness_directories[] = {"base/1", "base/5", "base/4"};

#define WITNESS_MAIN	"9999"
#define WITNESS_INIT	"9999_init"

/*
 * The size of a file, or -1 if there is none.
 */
static off_t
witness_size(const char *directory, const char *name)
{
	char		path[MAXPGPATH];
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	return stat(path, &st) == 0 ? st.st_size : -1;
}

/*
 * Did pg_resetwal write this?  It says "shut down cleanly" of a server that
 * may have crashed, with no recovery after it.  Its checkpoint is the first
 * record of a segment and begins at itself, and it knows no settings.  A real
 * checkpoint is like that in one case: the last thing before a shutdown was a
 * switch to the next segment, for an archive.  These settings exclude that.
 */
static bool
control_was_reset(const ControlFileData *control)
{
	return control->wal_level == WAL_LEVEL_MINIMAL &&
		control->checkPoint == control->checkPointCopy.redo &&
		control->checkPoint % control->xlog_seg_size == SizeOfXLogLongPHD;
}

static bool
witness_intact(void)
{
	for (size_t i = 0; i < lengthof(witness_directories); i++)
	{
		if (witness_size(witness_directories[i], WITNESS_INIT) == 0 &&
			witness_size(witness_directories[i], WITNESS_MAIN) > 0)
			return true;
	}
	return false;
}

/*
 * Has a recovery emptied the witness?  A recovery that has not come to its end
 * leaves no main fork.  Where the database was dropped or moved, there is
 * nothing.
 */
bool
nvm_witness_was_emptied(void)
{
	if (witness_intact())
		return false;
	for (size_t i = 0; i < lengthof(witness_directories); i++)
	{
		if (witness_size(witness_directories[i], WITNESS_INIT) == 0 &&
			witness_size(witness_directories[i], WITNESS_MAIN) == 0)
			return true;
	}
	return false;
}

/*
 * Has there been a recovery since the pool was last in use?  For a data
 * directory that was shut down cleanly, which must be the process's current
 * directory.
 */
NvmWitness
nvm_witness_asked(const ControlFileData *control)
{
	if (control_was_reset(control))
		return NVM_WITNESS_DISTURBED;
	return witness_intact() ? NVM_WITNESS_NO_RECOVERY : NVM_WITNESS_UNKNOWN;
}

/*
 * Does another relation use the name?  Our file is empty, or a page of zeroes
 * whose init fork was lost.  A fork of PostgreSQL might number relations so.
 */
static bool
witness_is_foreign(const char *directory)
{
	off_t		size = witness_size(directory, WITNESS_MAIN);
	PGAlignedBlock page;
	char		path[MAXPGPATH];
	int			fd;
	bool		zeroes;

	if (size <= 0)
		return false;
	snprintf(path, sizeof(path), "%s/%s", directory, WITNESS_MAIN);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return true;
	zeroes = size == BLCKSZ && read(fd, page.data, BLCKSZ) == BLCKSZ &&
		page.data[0] == 0 && memcmp(page.data, page.data + 1, BLCKSZ - 1) == 0;
	close(fd);
	return !zeroes;
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

			/* pg_checksums does not read a part of a page */
			if (ftruncate(fd, 0) != 0)
				elog(DEBUG1, "could not truncate file \"%s\": %m", path);
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

static void
witness_make(void)
{
	for (size_t i = 0; i < lengthof(witness_directories); i++)
	{
		const char *directory = witness_directories[i];

		/*
		 * where it is no database's own directory, it could not be moved
		 * there
		 */
		if (witness_size(directory, "PG_VERSION") < 0)
			continue;
		if (witness_is_foreign(directory))
			return;
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

/*
 * See nvm_pool.h.
 */
void
nvm_witness_arm(void)
{
	/* pg_upgrade makes databases anew under the server */
	if (NvmPool->witness_armed || IsBinaryUpgrade)
		return;
	if (!witness_intact())
		witness_make();
	/* made durable when it was made, before a record says so */
	if (witness_intact())
		NvmPool->witness_armed = nvm_incarnation_note_armed();
}
