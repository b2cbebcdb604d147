/*-------------------------------------------------------------------------
 *
 * pool_reset.c
 *	  Giving up a lost pool: nvm.reset_pool() and what the next start does.
 *
 * Only the postmaster can map a pool, before it forks.  So a session only
 * leaves a request, a file in the data directory.  The next start carries it
 * out:
 *
 *	- "lost": the pool is not available, begin with a new one.  The start tries
 *	  the pool all the same; if it can be opened now (somebody has mounted the
 *	  device), the request is dropped.
 *	- "force": the pool is to be given up whatever its state.
 *	- "log", "rows": not about the pool, but about the log of tables in memory
 *	  (log/log_reset.c).
 *
 * Nothing is deleted: the file gets another name beside it.  The steps, each
 * durable before the next, and what a crash after it leads to:
 *
 *	0. request				the next start begins with 1
 *	1. pool renamed			the same; there is nothing to rename
 *	2. incarnation file		the same; nothing to remove.  Not before 1: a pool
 *	   removed				that is there without it is another one's
 *	3. request removed		a data directory that knows of no pool: one is made
 *	4. new pool
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
#include "common/file_perm.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/pool_impl.h"
#include "storage/fd.h"

#define NVM_RESET_FILE			"pg_nvm_reset"

/*
 * The request names the kind, and its own file by inode and time of birth.  A
 * copy of it in a copy of the data directory does not count: the request was
 * not meant for that directory.
 */
#define NVM_RESET_FORMAT		"pg_nvm reset 1 %s %llu %llu\n"
#define NVM_RESET_SCAN			"pg_nvm reset 1 %7s %llu %llu"

static const char *const reset_words[] = {
	[NVM_RESET_NONE] = "",
	[NVM_RESET_LOST] = "lost",
	[NVM_RESET_FORCE] = "force",
	[NVM_RESET_LOG] = "log",
	[NVM_RESET_ROWS] = "rows"
};

bool		nvm_reset_was_done = false;

/*
 * Is a refusal for this reason one that a new pool may answer?  Others are
 * settings and permissions that can be corrected, or another server's lock.
 */
static bool
reset_answers(int sqlerrcode)
{
	return sqlerrcode == ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE ||
		sqlerrcode == ERRCODE_DATA_CORRUPTED ||
		sqlerrcode == ERRCODE_FEATURE_NOT_SUPPORTED;
}

/*
 * See nvm_pool.h: the request in the data directory, if there is one.  Removes a
 * request that was copied.
 */
NvmResetRequest
nvm_reset_requested(void)
{
	char text[	96] = {0};
	char		word[8];
	unsigned long long noted_inode;
	unsigned long long noted_birth;
	uint64		device;
	uint64		inode;
	uint64		birth;
	uint64		size;
	int			fd = open(NVM_RESET_FILE, O_RDONLY | O_CLOEXEC);
	ssize_t		n;

	if (fd < 0)
		return NVM_RESET_NONE;
	n = read(fd, text, sizeof(text) - 1);
	nvm_file_identity(fd, &device, &inode, &birth, &size);
	close(fd);
	if (n > 0 && sscanf(text, NVM_RESET_SCAN, word, &noted_inode, &noted_birth) == 3)
	{
		if (noted_inode != inode ||
			(noted_birth != birth && noted_birth != 0 && birth != 0))
		{
			ereport(LOG,
					(errmsg("the request in file \"%s\" to give up the NVM pool, or the log, was dropped, because it was copied with the data directory",
							NVM_RESET_FILE)));
			(void) nvm_reset_forget();
			return NVM_RESET_NONE;
		}
		for (int i = NVM_RESET_LOST; i <= NVM_RESET_ROWS; i++)
		{
			if (strcmp(word, reset_words[i]) == 0)
				return i;
		}
	}
	ereport(LOG,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("file \"%s\" is not a request to give up the NVM pool or the log, and is ignored",
					NVM_RESET_FILE)));
	return NVM_RESET_NONE;
}

/*
 * See nvm_pool.h.  In a session.
 */
void
nvm_pool_request_reset(bool force)
{
	if (NvmPool == NULL)
		nvm_pool_require_slow();
	if (!force && NvmPool->status == NVM_POOL_OPEN)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("the NVM pool is open and in use"),
				 errhint("To lose the rows of all nvm tables of all databases, call nvm.reset_pool(force => true).")));
	if (!force && !reset_answers(NvmPool->refusal_errcode))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the NVM pool is not available, but not lost"),
				 errdetail("At server start: %s.", NvmPool->refusal),
				 errhint("%s To lose the rows of all nvm tables of all databases, call nvm.reset_pool(force => true).",
						 NvmPool->refusal_hint)));
	nvm_reset_request(force ? NVM_RESET_FORCE : NVM_RESET_LOST);
}

/*
 * See nvm_pool.h.
 */
void
nvm_reset_request(NvmResetRequest request)
{
	const char *temp = NVM_RESET_FILE ".new";
	char text[	96];
	uint64		device;
	uint64		inode;
	uint64		birth;
	uint64		size;
	int			fd;

	fd = OpenTransientFile(temp, O_RDWR | O_CREAT | O_TRUNC | PG_BINARY);
	if (fd < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not create file \"%s\": %m", temp)));
	nvm_file_identity(fd, &device, &inode, &birth, &size);
	snprintf(text, sizeof(text), NVM_RESET_FORMAT,
			 reset_words[request],
			 (unsigned long long) inode, (unsigned long long) birth);
	errno = ENOSPC;
	if (write(fd, text, strlen(text)) != (ssize_t) strlen(text))
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", temp)));
	if (CloseTransientFile(fd) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not close file \"%s\": %m", temp)));
	NVM_FAILPOINT("reset-request");
	(void) durable_rename(temp, NVM_RESET_FILE, ERROR);
	NVM_FAILPOINT("reset-requested");
}

/*
 * See nvm_pool.h: the request is not, or no longer, wanted.
 */
bool
nvm_reset_forget(void)
{
	return durable_unlink(NVM_RESET_FILE, LOG) == 0;
}

/*
 * Give the pool file another name.  It is locked, so no other running server
 * loses its pool.  But a server that is down may be the owner, if our data
 * directory is a copy of its own.  Returns false after refusing the pool.
 */
static bool
reset_move_pool(NvmResetRequest request)
{
	NvmPoolHeader header;
	struct stat st;
	char		aside[MAXPGPATH];

	if (nvm_pool_fd < 0 && !nvm_file_find())
		return false;
	if (lstat(nvm_pool_path, &st) != 0)
	{
		if (errno == ENOENT)
			return true;
		return nvm_refuse(ERRCODE_IO_ERROR, "Check the device that holds the pool.",
						  "could not access NVM pool \"%s\": %m", nvm_pool_path);
	}
	if (S_ISREG(st.st_mode))
	{
		if (!nvm_file_lock_existing())
			return false;
		if (request != NVM_RESET_FORCE && nvm_header_peek(&header) &&
			header.data_inode != 0 && !nvm_incarnation_same_data(&header))
			return nvm_refuse(ERRCODE_OBJECT_IN_USE,
							  "If it is another server's, set nvm.pool_directory to a directory of this server's own and restart it. "
							  "To give up the pool all the same, call nvm.reset_pool(force => true) and restart the server.",
							  "NVM pool \"%s\" was last used with another data directory, and is not given up",
							  nvm_pool_path);
	}
	for (int i = 1;; i++)
	{
		snprintf(aside, sizeof(aside), "%s.old.%d", nvm_pool_own_path, i);
		if (lstat(aside, &st) != 0)
			break;
	}
	if (durable_rename(nvm_pool_path, aside, LOG) != 0)
		return nvm_refuse(ERRCODE_IO_ERROR, "Check the device that holds the pool.",
						  "could not rename NVM pool \"%s\": %m", nvm_pool_path);
	ereport(LOG,
			(errmsg("NVM pool \"%s\" was given up by nvm.reset_pool()", nvm_pool_path),
			 errhint("The file was renamed to \"%s\". Remove it when it is not needed.",
					 aside)));
	return true;
}

/*
 * Carry a request out, up to where a new pool can be made.  The pool is not
 * open.  In the postmaster.  Returns false after refusing the pool; the
 * request stays.
 */
static bool
reset_execute(NvmResetRequest request)
{
	if (access("standby.signal", F_OK) == 0)
		return nvm_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						  "nvm tables are not replicated by physical replication. Query them on the primary.",
						  "this server is a standby");
	nvm_file_names();
	if (!reset_move_pool(request))
		return false;
	nvm_file_unlock();
	NVM_FAILPOINT("reset-moved");
	if (access(NVM_INCARNATION_FILE, F_OK) == 0 &&
		durable_unlink(NVM_INCARNATION_FILE, LOG) != 0)
		return nvm_refuse(ERRCODE_IO_ERROR, "Check the device that holds the data directory.",
						  "could not remove file \"%s\": %m", NVM_INCARNATION_FILE);
	NVM_FAILPOINT("reset-unbound");
	if (!nvm_reset_forget())
		return nvm_refuse(ERRCODE_IO_ERROR, "Check the device that holds the data directory.",
						  "could not remove file \"%s\": %m", NVM_RESET_FILE);
	NVM_FAILPOINT("reset-forgotten");
	nvm_reset_was_done = true;
	return true;
}

/*
 * Before the pool is opened: a forced request.  Returns false after refusing
 * the pool.
 */
bool
nvm_reset_before_open(void)
{
	/* a standby's pool is refused, and severed, like any that is a copy */
	return nvm_reset_requested() != NVM_RESET_FORCE ||
		access("standby.signal", F_OK) == 0 || reset_execute(NVM_RESET_FORCE);
}

/*
 * After this layer or one above has refused the pool: should it be given up
 * now?  If true, the unusable pool is out of the way.
 */
bool
nvm_reset_after_refusal(void)
{
	return nvm_reset_requested() == NVM_RESET_LOST &&
		reset_answers(NvmPool->refusal_errcode) && reset_execute(NVM_RESET_LOST);
}
