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
#include <unistd.h>

#include "log/log_impl.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/fd.h"
#include "verify/nvm_verify_log.h"

/* the file that this process has open */
static int	my_fd = -1;
static uint32 my_file;			/* NvmLogMemory.files_made of it */

/* directories that this attempt to write has had a file in */
static uint32 tried_directories = 0;

/* ---- names ---- */

void
nvm_log_file_path(char *path, int directory, uint32 generation, uint32 number)
{
	snprintf(path, MAXPGPATH, "%s/" NVM_LOG_NAME, nvm_log_directory(directory),
			 nvm_log_pool_of(NvmPool->uuid), generation, number);
}

void
nvm_log_side_path(char *path, int directory, uint32 generation, uint64 number)
{
	snprintf(path, MAXPGPATH, "%s/" NVM_LOG_SIDE_NAME, nvm_log_directory(directory),
			 nvm_log_pool_of(NvmPool->uuid), generation, (unsigned long long) number);
}

int
nvm_log_find_file(uint32 generation, uint32 number)
{
	char		name[NVM_LOG_NAME_LENGTH + 1];

	snprintf(name, sizeof(name), NVM_LOG_NAME, nvm_log_pool_of(NvmPool->uuid), generation, number);
	return nvm_log_find(name);
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
 * A file has failed: its directory is out.  Note what, for those who want to commit.
 */
static bool
failed(int directory, const char *step, const char *path)
{
	NvmLog->broken_errno = errno;
	snprintf(NvmLog->broken_what, sizeof(NvmLog->broken_what),
			 "Step \"%s\" on file \"%s\" failed.", step, path);
	nvm_log_put_out(directory, step, path);
	return false;
}

static bool
current_failed(const char *step)
{
	char		path[MAXPGPATH];
	int			save_errno = errno;

	nvm_log_memory->file_is_bad = true;
	nvm_log_file_path(path, nvm_log_memory->directory, nvm_log_memory->generation,
					  nvm_log_memory->file);
	errno = save_errno;
	return failed(nvm_log_memory->directory, step, path);
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
	nvm_log_file_path(path, nvm_log_memory->directory, nvm_log_memory->generation,
					  nvm_log_memory->file);
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
	if (pg_fdatasync(my_fd) != 0)
		return current_failed("sync");
	if (!nvm_log_is_removed(my_fd))
		return true;
	nvm_log_file_has_gone();
	return false;
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

/* ---- making a file ---- */

void
nvm_log_spare_path(char *path, int directory)
{
	snprintf(path, MAXPGPATH, "%s/%08x.spare", nvm_log_directory(directory),
			 nvm_log_pool_of(NvmPool->uuid));
}

/*
 * Make a file of zeroes under this name, synced; the name is not.  Returns it, open,
 * or -1.  There must be room for as much again.
 */
static int
make_zeroes(const char *path, int directory)
{
	int			fd;

	(void) unlink(path);
	if (!nvm_log_has_room(directory, 2 * NVM_LOG_FILE_SIZE))
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
take_spare(const char *path, int directory)
{
	char		spare[MAXPGPATH];
	uint32		ready = 1;

	if (!pg_atomic_compare_exchange_u32(&NvmLog->directory[directory].spare_is_ready, &ready, 0))
		return -1;
	nvm_log_spare_path(spare, directory);
	return rename(spare, path) == 0 ? BasicOpenFile(path, O_RDWR | PG_BINARY) : -1;
}

/*
 * Have a spare file in a directory; fresh: one that was written just now.  False: that is
 * not possible.
 */
static bool
make_spare(int directory, bool fresh)
{
	char		path[MAXPGPATH];
	char		temporary[MAXPGPATH + 8];
	struct stat st;
	int			fd;

	nvm_log_spare_path(path, directory);
	if (fresh || stat(path, &st) != 0 || st.st_size != (off_t) NVM_LOG_FILE_SIZE)
	{
		snprintf(temporary, sizeof(temporary), "%s.tmp", path);
		fd = make_zeroes(temporary, directory);
		if (fd < 0)
			return false;
		close(fd);
		if (rename(temporary, path) != 0)
			return false;
	}
	pg_atomic_write_u32(&NvmLog->directory[directory].spare_is_ready, 1);
	return true;
}

/*
 * Have a spare file where the next file will be, so that a commit need not fill one.
 * What was there before the start will do: what its blocks say of themselves is not
 * what is expected there.  By one process at a time; not in a commit.
 */
void
nvm_log_make_spare(void)
{
	int			directory = nvm_log_deal(nvm_log_memory->directory, 0);

	if (pg_atomic_read_u32(&NvmLog->directory[directory].spare_is_ready) == 0)
		(void) make_spare(directory, false);
}

/*
 * Do directories that are out work again?  A commit need not find out.  With one, it must.
 */
void
nvm_log_look_at_directories(void)
{
	for (int i = 0; i < nvm_log_ndirectories(); i++)
	{
		if (!nvm_log_is_look_due(i) || nvm_log_ndirectories() == 1)
			continue;
		/* a commit is to find none that is half made */
		pg_atomic_write_u32(&NvmLog->directory[i].spare_is_ready, 0);
		if (make_spare(i, true) && nvm_log_sync_directory(i))
			nvm_log_directory_works(i);
	}
}

static void
temporary_path(char *path, int directory, uint32 number)
{
	char		final[MAXPGPATH];

	nvm_log_file_path(final, directory, nvm_log_memory->generation, number);
	snprintf(path, MAXPGPATH, "%s.tmp", final);
}

/*
 * Make file `number` of the generation under another name, with its header.  Returns
 * it, open, or -1.
 */
static int
begin_file(int directory, uint32 number)
{
	char		temporary[MAXPGPATH];
	int			fd;

	temporary_path(temporary, directory, number);
	NVM_FAILPOINT("log-file-make");
	fd = take_spare(temporary, directory);
	if (fd < 0)
		fd = make_zeroes(temporary, directory);
	if (fd >= 0 && write_header(fd, number))
		return fd;
	(void) failed(directory, "make", temporary);
	if (fd >= 0)
		close(fd);
	(void) unlink(temporary);
	return -1;
}

/*
 * Give it its name, durably.  As durable_rename, which may ERROR: a commit may not fail
 * here.  The number is noted before: README.md, "One name, one directory".
 */
static bool
finish_file(int directory, uint32 number)
{
	char		path[MAXPGPATH];
	char		temporary[MAXPGPATH];
	bool		ok;

	nvm_log_file_path(path, directory, nvm_log_memory->generation, number);
	temporary_path(temporary, directory, number);
	NVM_FAILPOINT("log-file-rename");
	nvm_log_memory->tried = number;
	nvm_log_memory->tried_in = directory;
	pg_write_barrier();
	ok = (rename(temporary, path) == 0 && nvm_log_sync_directory(directory)) ||
		failed(directory, "rename", temporary);
	(void) unlink(temporary);
	if (ok)
		NVM_FAILPOINT("log-file-made");
	return ok;
}

/*
 * What is written from now on goes to this file, which has a header and no more.
 */
static void
use_file(int fd, int directory, uint32 number)
{
	if (my_fd >= 0)
		close(my_fd);
	my_fd = fd;
	nvm_log_memory->file = number;
	nvm_log_memory->directory = directory;
	nvm_log_memory->first = nvm_log_persistent();
	nvm_log_memory->chain = 0;
	nvm_log_memory->offset = NVM_LOG_PAGE;
	my_file = ++nvm_log_memory->files_made;
	nvm_log_memory->file_is_bad = false;
	nvm_log_watch_file(fd);
}

/* ---- the first file of a generation ---- */

/*
 * It is in this directory, durably.  Remove what an earlier start, or an attempt in
 * another directory, has left under its name elsewhere, before the pool knows of it.
 */
static bool
remove_others(int directory, uint32 attempts)
{
	char		path[MAXPGPATH];

	for (int i = 0; i < nvm_log_ndirectories(); i++)
	{
		nvm_log_file_path(path, i, nvm_log_memory->generation, 1);
		if (i == directory ||
			((attempts & ((uint32) 1 << i)) == 0 && access(path, F_OK) != 0))
			continue;
		NVM_FAILPOINT("log-first-elsewhere");
		if ((unlink(path) != 0 && errno != ENOENT) || !nvm_log_sync_directory(i))
			return failed(i, "remove", path);
	}
	return true;
}

/*
 * What the start has carried over is in the file before it has its name.
 */
static bool
first_file_in(int directory)
{
	int			fd = begin_file(directory, 1);
	char		temporary[MAXPGPATH];

	if (fd < 0)
		return false;
	use_file(fd, directory, 1);
	if (nvm_log_write_once())
		return finish_file(directory, 1);
	temporary_path(temporary, directory, 1);
	(void) unlink(temporary);
	return false;
}

/*
 * Make the first file of a generation, in this directory or, if that is not possible,
 * in another one.  Nobody else writes.
 */
bool
nvm_log_first_file(int prefer)
{
	uint32		attempts = 0;
	int			directory = prefer;

	while (directory >= 0)
	{
		attempts |= (uint32) 1 << directory;
		/* what it begins with, if another directory had it and failed */
		pg_atomic_write_u64(&nvm_log_memory->persistent, nvm_log_memory->start);
		if (first_file_in(directory))
			return remove_others(directory, attempts);
		directory = nvm_log_deal(prefer, attempts);
	}
	return false;
}

/* ---- the next file ---- */

void
nvm_log_begin_attempt(void)
{
	tried_directories = 0;
}

/* has the file that is written nothing that counts? */
static bool
current_is_empty(void)
{
	return nvm_log_memory->file > 0 && nvm_log_memory->first == nvm_log_persistent();
}

/*
 * The number of the next file if it is in this directory.  One that has nothing that
 * counts is replaced, so that a device which fails all the time is not filled with such
 * files.  But no number is used in two directories.
 */
static uint32
number_in(int directory)
{
	bool		replaces = nvm_log_memory->tried > nvm_log_memory->file || current_is_empty();

	return nvm_log_memory->tried +
		(replaces && nvm_log_memory->tried_in == directory ? 0 : 1);
}

/*
 * A file that has nothing was left behind in another directory, and the log has gone on.
 * It does not harm, so nothing is synced, and nobody is told that it stays.  Who rebuilds
 * may have listed it.
 */
static void
remove_empty(int directory, uint32 number)
{
	char		path[MAXPGPATH];

	if (number <= 1 || directory < 0 || !nvm_log_is_whole())
		return;
	NVM_FAILPOINT("log-file-left");
	nvm_log_file_path(path, directory, nvm_log_memory->generation, number);
	(void) unlink(path);
}

static bool
next_file_in(int directory)
{
	uint32		number = number_in(directory);
	bool		leaves = current_is_empty();
	uint32		left = nvm_log_memory->file;
	int			left_in = nvm_log_memory->directory;
	int			fd;

	fd = begin_file(directory, number);
	if (fd < 0)
		return false;
	if (!finish_file(directory, number))
	{
		close(fd);
		if (nvm_log_ndirectories() > 1)
			remove_empty(directory, number);
		return false;
	}
	nvm_pool_note_log(nvm_log_memory->generation, number);
	NVM_FAILPOINT("log-file-noted");
	use_file(fd, directory, number);
	if (leaves && left != number)
		remove_empty(left_in, left);
	return true;
}

/*
 * Go on in a new file, which begins behind what is synced, in the next directory that has
 * not been tried.  Caller holds the write lock, and has synced what it has written: a
 * file must not be durable before the blocks in front of it.
 */
bool
nvm_log_next_file(void)
{
	int			directory;

	while ((directory = nvm_log_deal(nvm_log_memory->directory, tried_directories)) >= 0)
	{
		tried_directories |= (uint32) 1 << directory;
		if (next_file_in(directory))
			return true;
	}
	return false;
}
