/*-------------------------------------------------------------------------
 *
 * pool_file.c
 *	  The pool's directory and file: found, checked, created, locked, grown.
 *
 * The lock is flock() on the pool file.  All children of the postmaster share
 * its open file description.  So the pool stays locked while any of them
 * lives, however the postmaster died.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/file_perm.h"
#include "common/file_utils.h"	/* PG_TEMP_FILES_DIR of 17, 18 */
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/pool_impl.h"
#include "storage/fd.h"
#include "verify/nvm_verify.h"

int			nvm_pool_fd = -1;
char	   *nvm_pool_path = NULL;	/* of the file; its directory below */
char	   *nvm_pool_own_path = NULL;	/* what that is once it has been
										 * opened */

static char *pool_dir = NULL;
static char *pool_other_path = NULL;	/* what it may be before */

#define RESTORE_HINT \
	"Restore the pool and the data directory together from a backup taken while the server was stopped"
#define START_NEW_HINT \
	"To give up the rows of all nvm tables and start with an empty pool, call nvm.reset_pool() and restart the server"

/*
 * With room for either name; NULL if there is no memory.
 */
static char *
joined_path(const char *dir, const char *name)
{
	Size		size = strlen(dir) + sizeof("/" NVM_POOL_HIDDEN_FILE);
	char	   *path = malloc(size);

	if (path != NULL)
		snprintf(path, size, "%s/%s", dir, name);
	return path;
}

/*
 * Compute the names.  A relative directory is one in the data directory, and
 * inside of that the file has the name that base backups leave out.
 */
void
nvm_file_names(void)
{
	char		dir[MAXPGPATH];
	bool		hidden;

	nvm_pool_directory_name(dir, nvm_pool_directory, DataDir);
	hidden = strcmp(nvm_pool_file_name(dir, DataDir), NVM_POOL_HIDDEN_FILE) == 0;
	free(pool_dir);
	free(nvm_pool_path);
	free(nvm_pool_own_path);
	free(pool_other_path);
	pool_dir = strdup(dir);
	nvm_pool_path = joined_path(dir, hidden ? NVM_POOL_HIDDEN_FILE : NVM_POOL_FILE);
	nvm_pool_own_path = joined_path(dir, hidden ? NVM_POOL_HIDDEN_FILE : NVM_POOL_FILE);
	pool_other_path = joined_path(dir, hidden ? NVM_POOL_FILE : NVM_POOL_HIDDEN_FILE);
	if (pool_dir == NULL || nvm_pool_path == NULL || nvm_pool_own_path == NULL ||
		pool_other_path == NULL)
		ereport(FATAL,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
}

/*
 * Owner and mode of the directory or the file.  Returns false after refusing.
 */
static bool
check_owner_and_mode(const char *what, const char *path, const struct stat *st,
					 mode_t mode)
{
	if (st->st_uid != geteuid())
		return nvm_refuse(ERRCODE_INSUFFICIENT_PRIVILEGE,
						  psprintf("Give it to the server's user: chown %u \"%s\".",
								   (unsigned) geteuid(), path),
						  "NVM pool %s \"%s\" has wrong owner: user id %u instead of %u",
						  what, path, (unsigned) st->st_uid, (unsigned) geteuid());
	if ((st->st_mode & 07777) != mode)
		return nvm_refuse(ERRCODE_INSUFFICIENT_PRIVILEGE,
						  psprintf("Correct it: chmod %04o \"%s\".", (unsigned) mode, path),
						  "NVM pool %s \"%s\" has wrong permissions: %04o instead of %04o",
						  what, path, (unsigned) (st->st_mode & 07777), (unsigned) mode);
	return true;
}

/*
 * A hint for a pool that is not where it should be.
 */
static const char *
missing_hint(void)
{
	const char *last = NvmPool->last_directory;

	return psprintf("%sMount the device or correct nvm.pool_directory. " RESTORE_HINT
					" if it is lost. " START_NEW_HINT ".",
					last[0] == '\0' || strcmp(last, pool_dir) == 0 ? "" :
					psprintf("It was in directory \"%s\" when it was last opened. ", last));
}

/*
 * Note where the pool is.  It has been opened.
 */
void
nvm_file_note_place(void)
{
	nvm_incarnation_note_place(pool_dir);
}

/*
 * Check the directory, or make it when it is missing and no pool is known.
 */
static bool
prepare_directory(bool known)
{
	struct stat st;
	char		parent[MAXPGPATH];
	Size		len = strlen(pool_dir);
	Size		tmp = strlen("/" PG_TEMP_FILES_DIR);

	/*
	 * a start of the server removes files there whose names are those of
	 * temporary files
	 */
	if (len > tmp && strcmp(pool_dir + len - tmp, "/" PG_TEMP_FILES_DIR) == 0)
		return nvm_refuse(ERRCODE_INVALID_PARAMETER_VALUE, "Correct nvm.pool_directory.",
						  "NVM pool directory \"%s\" has the name of a directory of temporary files",
						  pool_dir);

	if (stat(pool_dir, &st) != 0)
	{
		if (errno != ENOENT)
			return nvm_refuse(ERRCODE_INSUFFICIENT_PRIVILEGE,
							  "Check nvm.pool_directory and the permissions of the directories above it.",
							  "could not access NVM pool directory \"%s\": %m", pool_dir);
		if (known)
			return nvm_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, missing_hint(),
							  "NVM pool is missing: directory \"%s\" does not exist", pool_dir);
		if (mkdir(pool_dir, S_IRWXU) != 0)
			return nvm_refuse(errno == ENOENT ? ERRCODE_UNDEFINED_FILE :
							  errno == ENOSPC ? ERRCODE_DISK_FULL :
							  ERRCODE_INSUFFICIENT_PRIVILEGE,
							  "Create it with mode 0700, owned by the server's user, or correct nvm.pool_directory.",
							  "could not create NVM pool directory \"%s\": %m", pool_dir);
		strlcpy(parent, pool_dir, sizeof(parent));
		get_parent_directory(parent);
		(void) fsync_fname_ext(parent[0] ? parent : ".", true, false, LOG);
		if (stat(pool_dir, &st) != 0)
			return nvm_refuse(ERRCODE_IO_ERROR, "Check the device that holds the pool.",
							  "could not access NVM pool directory \"%s\": %m", pool_dir);
	}
	if (!S_ISDIR(st.st_mode))
		return nvm_refuse(ERRCODE_WRONG_OBJECT_TYPE, "Correct nvm.pool_directory.",
						  "NVM pool directory \"%s\" is not a directory", pool_dir);
	if (!check_owner_and_mode("directory", pool_dir, &st, 0700))
		return false;
	if (access(pool_dir, R_OK | W_OK | X_OK) != 0)
		return nvm_refuse(ERRCODE_INSUFFICIENT_PRIVILEGE,
						  "The file system may be mounted read-only.",
						  "NVM pool directory \"%s\" is not writable: %m", pool_dir);
	return true;
}

/*
 * Take the lock on the pool, or on its directory.  A child of a server that
 * has just ended may hold the lock on the pool for a moment still.  Returns
 * false after refusing the pool.  A directory that cannot be locked at all is
 * no reason to refuse.
 */
static bool
lock_file(int fd, bool is_directory)
{
	if (nvm_lock_file(fd, LOCK_EX) || (errno != EWOULDBLOCK && is_directory))
		return true;
	if (errno != EWOULDBLOCK)
		return nvm_refuse(ERRCODE_IO_ERROR,
						  "Put the pool on a file system that supports flock().",
						  "could not lock NVM pool \"%s\": %m", nvm_pool_path);
	return nvm_refuse(ERRCODE_OBJECT_IN_USE,
					  "Stop that server, or set nvm.pool_directory to this server's own pool.",
					  "NVM pool \"%s\" is in use by another server", nvm_pool_path);
}

/*
 * Let nvm_pool_path be the name that the file has.  It may have that name from
 * an earlier version, or from where its directory was before.  Returns false
 * after refusing the pool: nobody knows which of two files it is.
 */
bool
nvm_file_find(void)
{
	struct stat st;

	if (lstat(pool_other_path, &st) != 0)
		return true;
	if (lstat(nvm_pool_path, &st) == 0)
		return nvm_refuse(ERRCODE_DUPLICATE_FILE,
						  "Move away the one that is not this server's and restart the server. Nothing was changed.",
						  "directory \"%s\" has two NVM pools, \"%s\" and \"%s\"", pool_dir,
						  last_dir_separator(nvm_pool_path) + 1,
						  last_dir_separator(pool_other_path) + 1);
	strcpy(nvm_pool_path, pool_other_path);
	return true;
}

/*
 * Give the file the name that it should have.  It is open, locked and ours.
 * Returns false after refusing the pool.
 */
bool
nvm_file_take_name(void)
{
	if (strcmp(nvm_pool_path, nvm_pool_own_path) == 0)
		return true;
	NVM_FAILPOINT("pool-hide");
	if (durable_rename(nvm_pool_path, nvm_pool_own_path, LOG) != 0)
		return nvm_refuse(ERRCODE_IO_ERROR, "Check the device that holds the pool.",
						  "could not rename NVM pool \"%s\": %m", nvm_pool_path);
	NVM_FAILPOINT("pool-hidden");
	ereport(LOG,
			(errmsg("NVM pool \"%s\" was renamed to \"%s\"", nvm_pool_path, nvm_pool_own_path)));
	strcpy(nvm_pool_path, nvm_pool_own_path);
	return true;
}

/*
 * Open and lock the file that is there, if that is not done.  Returns false
 * after refusing the pool.
 */
bool
nvm_file_lock_existing(void)
{
	if (nvm_pool_fd >= 0)
		return true;
	nvm_pool_fd = open(nvm_pool_path, O_RDWR | O_CLOEXEC);
	if (nvm_pool_fd < 0)
		return nvm_refuse(ERRCODE_INSUFFICIENT_PRIVILEGE,
						  "The file system may be mounted read-only.",
						  "could not open NVM pool \"%s\": %m", nvm_pool_path);
	if (!lock_file(nvm_pool_fd, false))
	{
		close(nvm_pool_fd);
		nvm_pool_fd = -1;
		return false;
	}
	return true;
}

/*
 * Make the file under a temporary name: one chunk of zeroes, both copies of
 * the header; it gets its name when it is complete.  Nobody else does the same.
 */
static bool
create_file(void)
{
	char	   *path = psprintf("%s.new", nvm_pool_path);
	ControlFileData control;
	NvmPoolHeader header;
	int			fd;
	int			rc;

	if (!nvm_control_read(&control))
		return false;
	nvm_header_init(&header, control.system_identifier);
	if (!pg_strong_random(header.uuid, sizeof(header.uuid)))
		return nvm_refuse(ERRCODE_INTERNAL_ERROR, "Restart the server.",
						  "could not generate the identifier of a new NVM pool");

	/* remains of an earlier attempt that crashed, under either name */
	unlink(path);
	unlink(psprintf("%s.new", pool_other_path));
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
	if (fd < 0)
		return nvm_refuse(errno == ENOSPC ? ERRCODE_DISK_FULL : ERRCODE_INSUFFICIENT_PRIVILEGE,
						  "Check permissions and free space of the device that holds the pool.",
						  "could not create NVM pool file \"%s\": %m", path);
	do
	{
		rc = fallocate(fd, 0, 0, (off_t) NVM_CHUNK_SIZE);
	} while (rc != 0 && errno == EINTR);

	for (int i = 0; rc == 0 && i < 2; i++)
	{
		header.sequence = i;
		header.crc = nvm_header_crc(&header);
		errno = ENOSPC;
		if (pwrite(fd, &header, sizeof(header), NVM_HEADER_OFFSET(i)) != sizeof(header))
			rc = -1;
	}
	if (rc == 0)
		rc = pg_fsync(fd);
	if (rc != 0)
	{
		int			save_errno = errno;

		close(fd);
		unlink(path);
		errno = save_errno;
		return nvm_refuse(save_errno == ENOSPC ? ERRCODE_DISK_FULL : ERRCODE_IO_ERROR,
						  psprintf("A pool needs at least %d MB on a file system that supports fallocate().",
								   (int) (NVM_CHUNK_SIZE / (1024 * 1024))),
						  "could not allocate NVM pool file \"%s\": %m", path);
	}
	close(fd);
	if (durable_rename(path, nvm_pool_path, LOG) != 0)
		return nvm_refuse(ERRCODE_IO_ERROR, "Check the device that holds the pool.",
						  "could not rename NVM pool file \"%s\": %m", path);
	return true;
}

/*
 * Make the file, unless another server that was told of the same directory is
 * faster.  Lock it.  For that server the directory may have another name, and
 * the file, too.  Returns false after refusing the pool.
 */
static bool
create_and_lock(bool *created)
{
	int			fd = open(pool_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat st;
	bool		ok;

	if (fd < 0)
		return nvm_refuse(ERRCODE_IO_ERROR, "Check the device that holds the pool.",
						  "could not open NVM pool directory \"%s\": %m", pool_dir);
	NVM_FAILPOINT("pool-create-lock");
	ok = lock_file(fd, true) && nvm_file_find();
	if (ok && lstat(nvm_pool_path, &st) != 0)
	{
		NVM_FAILPOINT("pool-create");
		ok = create_file() && nvm_file_lock_existing();
		*created = ok;
	}
	close(fd);
	return ok;
}

/*
 * Open and lock the pool file, creating it when there is none.  `known`: the
 * data directory has had a pool, so a missing one is lost and not new.  When
 * the postmaster reinitialises, the file that it holds is kept.  Returns false
 * after refusing the pool.
 */
bool
nvm_file_open(bool known, bool *created)
{
	struct stat st;

	*created = false;
	if (nvm_pool_fd >= 0)
		return true;

	nvm_file_names();
	if (!prepare_directory(known) || !nvm_file_find())
		return false;
	if (lstat(nvm_pool_path, &st) != 0)
	{
		if (errno != ENOENT)
			return nvm_refuse(ERRCODE_IO_ERROR, "Check the device that holds the pool.",
							  "could not access NVM pool \"%s\": %m", nvm_pool_path);
		if (known)
			return nvm_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, missing_hint(),
							  "NVM pool is missing: file \"%s\" does not exist", nvm_pool_path);
		if (!create_and_lock(created))
			return false;
		if (lstat(nvm_pool_path, &st) != 0)
			return nvm_refuse(ERRCODE_IO_ERROR, "Check the device that holds the pool.",
							  "could not access NVM pool \"%s\": %m", nvm_pool_path);
	}
	if (!S_ISREG(st.st_mode))
		return nvm_refuse(ERRCODE_WRONG_OBJECT_TYPE, "Correct nvm.pool_directory.",
						  "NVM pool \"%s\" is not a regular file", nvm_pool_path);
	if (!check_owner_and_mode("file", nvm_pool_path, &st, 0600))
		return false;

	return nvm_file_lock_existing();
}

/*
 * Release the lock for good, in all processes that share it.
 */
void
nvm_file_unlock(void)
{
	if (nvm_pool_fd >= 0)
	{
		flock(nvm_pool_fd, LOCK_UN);
		close(nvm_pool_fd);
		nvm_pool_fd = -1;
	}
}

/*
 * The marks that tell a file from a copy of it, and its size.  The birth time
 * is 0 where the file system does not have one.
 */
void
nvm_file_identity(int fd, uint64 *device, uint64 *inode, uint64 *birth,
				  uint64 *size)
{
	struct stat st;
	struct statx sx;

	*device = *inode = *birth = *size = 0;
	if (fstat(fd, &st) == 0)
	{
		*device = (uint64) st.st_dev;
		*inode = (uint64) st.st_ino;
		*size = (uint64) st.st_size;
	}
	if (statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &sx) == 0 &&
		(sx.stx_mask & STATX_BTIME) != 0)
		*birth = (uint64) sx.stx_btime.tv_sec * UINT64CONST(1000000000) +
			sx.stx_btime.tv_nsec;
}

/*
 * Have the file system allocate all of the first `size` bytes of the file.
 * Pools that we make are allocated.  A copy has holes where nothing was ever
 * written; cp makes them without being asked to.  An access to a hole is a
 * SIGBUS once the device is full.  Returns false after refusing the pool
 * because there is no room for all of it; then nothing is allocated.
 */
bool
nvm_file_fill_holes(uint64 size)
{
	struct stat st;
	struct statvfs fs;
	uint64		missing;
	int			rc = -1;

	if (fstat(nvm_pool_fd, &st) != 0 || (uint64) st.st_blocks * 512 >= size)
		return true;
	missing = size - (uint64) st.st_blocks * 512;
	errno = ENOSPC;
	if (fstatvfs(nvm_pool_fd, &fs) != 0 ||
		(uint64) fs.f_bavail * fs.f_frsize >= missing)
		do
		{
			rc = fallocate(nvm_pool_fd, 0, 0, (off_t) size);
		} while (rc != 0 && errno == EINTR);
	/* where it cannot be done at all, the pool could not have been made */
	if (rc == 0 || errno == EOPNOTSUPP)
		return true;
	missing = (missing + 1024 * 1024 - 1) / (1024 * 1024);
	return nvm_refuse(errno == ENOSPC ? ERRCODE_DISK_FULL : ERRCODE_IO_ERROR,
					  psprintf("%llu MB of the file are holes, as in a sparse copy. Free that much on the device that holds nvm.pool_directory and restart the server.",
							   (unsigned long long) missing),
					  "could not allocate the holes in NVM pool \"%s\": %m", nvm_pool_path);
}

/*
 * Write zeroes where the file has been allocated and reads as zeroes.  File
 * systems note which blocks were never written, and change that note with each
 * sync: for scattered blocks that takes twice as long as writing them.  The
 * zeroes are written in single pages.  Otherwise a store would make dirty as
 * much of the page cache as was written at once (pmem/README.md, "Pages").
 * Returns false with errno set.
 */
static bool
write_zeroes(uint64 from, uint64 to)
{
	static const char zeroes[4096];
	ssize_t		written;

	for (uint64 at = from; at < to; at += (uint64) written)
	{
		written = pwrite(nvm_pool_fd, zeroes, Min(sizeof(zeroes), to - at), (off_t) at);
		if (written < 0 && errno == EINTR)
			written = 0;
		if (written < 0)
			return false;
	}
	return true;
}

/*
 * Make the file newsize bytes long; the new part reads as zeroes.  The file
 * may be longer than oldsize, when an earlier growth did not complete.  Nobody
 * uses that part; it is cut off first.  Returns false with errno set and *what
 * naming the step; the file is then as long as it was.
 */
bool
nvm_file_extend(uint64 oldsize, uint64 newsize, const char **what)
{
	struct stat st;
	int			rc;

	*what = "examine";
	if (fstat(nvm_pool_fd, &st) != 0)
		return false;
	*what = "truncate";
	if ((uint64) st.st_size > oldsize &&
		ftruncate(nvm_pool_fd, (off_t) oldsize) != 0)
		return false;
	*what = "extend";
	do
	{
		rc = fallocate(nvm_pool_fd, 0, (off_t) oldsize, (off_t) (newsize - oldsize));
	} while (rc != 0 && errno == EINTR);
	if (rc == 0 && nvm_persist_in_force == NVM_PERSIST_MSYNC)
	{
		*what = "write";
		rc = write_zeroes(oldsize, newsize) ? 0 : -1;
	}
	if (rc == 0)
	{
		*what = "fsync";
		rc = nvm_pmem_fsync(nvm_pool_fd);
	}
	if (rc != 0)
	{
		int			save_errno = errno;

		if (ftruncate(nvm_pool_fd, (off_t) oldsize) != 0)
			ereport(LOG_SERVER_ONLY,
					(errcode_for_file_access(),
					 errmsg("could not truncate NVM pool \"%s\": %m", nvm_pool_path)));
		errno = save_errno;
		return false;
	}
	return true;
}
