/*-------------------------------------------------------------------------
 *
 * log_file.c
 *	  Files of the log: names, making, writing.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "log/log_impl.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/fd.h"
#include "verify/nvm_verify_log.h"

/* the file that this process has open */
static int	my_fd = -1;
static uint32 my_file;			/* NvmLogMemory.files_made of it */

/* ---- names ---- */

void
nvm_log_file_path(char *path, uint32 generation, uint32 number)
{
	snprintf(path, MAXPGPATH, "%s/" NVM_LOG_NAME, nvm_log_directory(),
			 nvm_log_pool_of(NvmPool->uuid), generation, number);
}

void
nvm_log_side_path(char *path, uint32 generation, uint64 number)
{
	snprintf(path, MAXPGPATH, "%s/" NVM_LOG_SIDE_NAME, nvm_log_directory(),
			 nvm_log_pool_of(NvmPool->uuid), generation, (unsigned long long) number);
}

/*
 * The header of a file that begins behind what is synced; number 0: a side file.
 */
void
nvm_log_fill_header(NvmLogFileHeader *header, uint32 number)
{
	memset(header, 0, sizeof(*header));
	header->magic = NVM_LOG_MAGIC;
	header->version = NVM_LOG_VERSION;
	header->generation = nvm_log_memory->generation;
	memcpy(header->uuid, NvmPool->uuid, sizeof(header->uuid));
	header->start = nvm_log_memory->start;
	header->number = number;
	if (number > 0)
	{
		header->first = nvm_log_persistent();
		header->size = NVM_LOG_FILE_SIZE;
	}
	header->crc = nvm_log_file_header_crc(header);
}

/* ---- errors ---- */

/*
 * A file has failed: note what, for those who want to commit, and in the log once.
 */
static bool
failed(const char *step, const char *path)
{
	NvmLog->broken_errno = errno;
	snprintf(NvmLog->broken_what, sizeof(NvmLog->broken_what),
			 "Step \"%s\" on file \"%s\" failed.", step, path);
	if (pg_atomic_read_u32(&NvmLog->broken) == 0)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("nvm: could not write the log of tables in memory: %m"),
				 errdetail_internal("%s", NvmLog->broken_what)));
	return false;
}

static bool
current_failed(const char *step)
{
	char		path[MAXPGPATH];
	int			save_errno = errno;

	nvm_log_memory->file_is_bad = true;
	nvm_log_file_path(path, nvm_log_memory->generation, nvm_log_memory->file);
	errno = save_errno;
	return failed(step, path);
}

/* ---- the file that is written ---- */

/*
 * Have the file open.
 */
static bool
open_current(void)
{
	char		path[MAXPGPATH];

	if (my_fd >= 0 && my_file == nvm_log_memory->files_made)
		return true;
	if (my_fd >= 0)
		close(my_fd);
	my_file = nvm_log_memory->files_made;
	nvm_log_file_path(path, nvm_log_memory->generation, nvm_log_memory->file);
	my_fd = BasicOpenFile(path, O_RDWR | PG_BINARY);
	return my_fd >= 0 || current_failed("open");
}

/*
 * pwrite, to the end.  False with errno set.
 */
static bool
write_at(int fd, const char *from, Size size, uint64 offset)
{
	while (size > 0)
	{
		ssize_t		n;

		errno = 0;
		n = pg_pwrite(fd, from, size, (off_t) offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
		{
			if (errno == 0)
				errno = ENOSPC;
			return false;
		}
		from += n;
		size -= n;
		offset += n;
	}
	return true;
}

/*
 * Write a block at its place in the file.  False: the file is bad from now on.
 */
bool
nvm_log_file_write(const char *from, Size size, uint64 offset)
{
	if (!open_current())
		return false;
	return write_at(my_fd, from, size, offset) || current_failed("write");
}

bool
nvm_log_file_sync(void)
{
	if (!open_current())
		return false;
	return pg_fdatasync(my_fd) == 0 || current_failed("sync");
}

/*
 * Write zeroes over the whole file, and sync it.
 */
static bool
fill_file(int fd)
{
	static const char zeroes[64 * 1024] = {0};

	for (uint64 at = 0; at < NVM_LOG_FILE_SIZE; at += sizeof(zeroes))
	{
		if (!write_at(fd, zeroes, sizeof(zeroes), at))
			return false;
	}
	return pg_fsync(fd) == 0;
}

static bool
write_header(int fd, uint32 number)
{
	union
	{
		NvmLogFileHeader header;
		char		page[NVM_LOG_PAGE];
	}			first;

	memset(&first, 0, sizeof(first));
	nvm_log_fill_header(&first.header, number);
	return write_at(fd, first.page, sizeof(first.page), 0) && pg_fsync(fd) == 0;
}

/*
 * Give the file its name, durably.  As durable_rename, which may ERROR: a commit may
 * not fail here.
 */
static bool
rename_file(const char *temporary, const char *path)
{
	int			dir;
	bool		ok;

	if (rename(temporary, path) != 0)
		return false;
	dir = BasicOpenFile(nvm_log_directory(), O_RDONLY | PG_BINARY);
	if (dir < 0)
		return false;
	ok = pg_fsync(dir) == 0;
	close(dir);
	return ok;
}

/* ---- making a file ---- */

void
nvm_log_spare_path(char *path)
{
	snprintf(path, MAXPGPATH, "%s/%08x.spare", nvm_log_directory(), nvm_log_pool_of(NvmPool->uuid));
}

/*
 * Is there room for a file, and as much again?  To find out by filling one would leave
 * nothing to others for that time.
 */
static bool
has_room(void)
{
	struct statvfs fs;

	if (statvfs(nvm_log_directory(), &fs) != 0 ||
		(uint64) fs.f_bavail * fs.f_frsize >= 2 * NVM_LOG_FILE_SIZE)
		return true;
	errno = ENOSPC;
	return false;
}

/*
 * Make a file of zeroes under this name, synced; the name is not.  Returns it, open,
 * or -1.
 */
static int
make_zeroes(const char *path)
{
	int			fd;

	(void) unlink(path);
	if (!has_room())
		return -1;
	fd = BasicOpenFile(path, O_RDWR | O_CREAT | O_EXCL | PG_BINARY);
	if (fd >= 0 && !fill_file(fd))
	{
		int			save_errno = errno;

		close(fd);
		(void) unlink(path);
		errno = save_errno;
		return -1;
	}
	return fd;
}

/*
 * Take the spare file, if there is one, under this name.  Returns it, open, or -1.
 */
static int
take_spare(const char *path)
{
	char		spare[MAXPGPATH];
	uint32		ready = 1;

	if (!pg_atomic_compare_exchange_u32(&NvmLog->spare_is_ready, &ready, 0))
		return -1;
	nvm_log_spare_path(spare);
	return rename(spare, path) == 0 ? BasicOpenFile(path, O_RDWR | PG_BINARY) : -1;
}

/*
 * Have a spare file, so that a commit need not fill one.  What was there before the
 * start will do: what its blocks say of themselves is not what is expected there.
 * By one process at a time; not in a commit.
 */
void
nvm_log_make_spare(void)
{
	char		path[MAXPGPATH];
	char		temporary[MAXPGPATH + 8];
	struct stat st;
	int			fd;

	if (pg_atomic_read_u32(&NvmLog->spare_is_ready) != 0)
		return;
	nvm_log_spare_path(path);
	if (stat(path, &st) != 0 || st.st_size != (off_t) NVM_LOG_FILE_SIZE)
	{
		snprintf(temporary, sizeof(temporary), "%s.tmp", path);
		fd = make_zeroes(temporary);
		if (fd < 0)
			return;
		close(fd);
		if (rename(temporary, path) != 0)
			return;
	}
	pg_atomic_write_u32(&NvmLog->spare_is_ready, 1);
}

static void
temporary_path(char *path, uint32 number)
{
	char		final[MAXPGPATH];

	nvm_log_file_path(final, nvm_log_memory->generation, number);
	snprintf(path, MAXPGPATH, "%s.tmp", final);
}

/*
 * Make file `number` of the generation under another name, with its header.  Returns
 * it, open, or -1.
 */
static int
begin_file(uint32 number)
{
	char		temporary[MAXPGPATH];
	int			fd;

	temporary_path(temporary, number);
	NVM_FAILPOINT("log-file-make");
	fd = take_spare(temporary);
	if (fd < 0)
		fd = make_zeroes(temporary);
	if (fd >= 0 && write_header(fd, number))
		return fd;
	(void) failed("make", temporary);
	if (fd >= 0)
		close(fd);
	(void) unlink(temporary);
	return -1;
}

/*
 * Give it its name, durably.
 */
static bool
finish_file(uint32 number)
{
	char		path[MAXPGPATH];
	char		temporary[MAXPGPATH];
	bool		ok;

	nvm_log_file_path(path, nvm_log_memory->generation, number);
	temporary_path(temporary, number);
	NVM_FAILPOINT("log-file-rename");
	ok = rename_file(temporary, path) || failed("rename", temporary);
	(void) unlink(temporary);
	if (ok)
		NVM_FAILPOINT("log-file-made");
	return ok;
}

/*
 * What is written from now on goes to this file, which has a header and no more.
 */
static void
use_file(int fd, uint32 number)
{
	if (my_fd >= 0)
		close(my_fd);
	my_fd = fd;
	nvm_log_memory->file = number;
	nvm_log_memory->first = nvm_log_persistent();
	nvm_log_memory->chain = 0;
	nvm_log_memory->offset = NVM_LOG_PAGE;
	my_file = ++nvm_log_memory->files_made;
	nvm_log_memory->file_is_bad = false;
}

/*
 * Make the first file of a generation.  What the start has carried over is in it
 * before it has its name.  In the postmaster.
 */
bool
nvm_log_first_file(void)
{
	int			fd = begin_file(1);

	if (fd < 0)
		return false;
	use_file(fd, 1);
	return nvm_log_write_once() && finish_file(1);
}

/*
 * Go on in a new file, which begins behind what is synced.  It replaces the last one
 * if that has nothing that counts, so that a device which fails all the time is not
 * filled with such files.  Caller holds the write lock, and has synced what it has
 * written: a file must not be durable before the blocks in front of it.
 */
bool
nvm_log_next_file(void)
{
	bool		replaces = nvm_log_memory->file > 0 && nvm_log_memory->first == nvm_log_persistent();
	uint32		number = nvm_log_memory->file + (replaces ? 0 : 1);
	int			fd;

	fd = begin_file(number);
	if (fd < 0)
		return false;
	if (!finish_file(number))
	{
		close(fd);
		return false;
	}
	nvm_pool_note_log(nvm_log_memory->generation, number);
	NVM_FAILPOINT("log-file-noted");
	use_file(fd, number);
	return true;
}
