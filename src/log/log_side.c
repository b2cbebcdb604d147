/*-------------------------------------------------------------------------
 *
 * log_side.c
 *	  Side files: what outgrows the buffer of its slot.
 *
 * A transaction that has changed many rows writes them to a file of its own,
 * at PRE_COMMIT, and syncs it.  The log then has a record of a few bytes that
 * names the file.  The file is NvmLogFileHeader in a page of its own, then
 * storages and rows as a record has them (log_capture.c).
 *
 * The file is on the medium, and so is its name, before there is a record that
 * could be placed.  So whoever finds the record finds the file.  If the
 * transaction aborts, the file goes.  If the process dies, a file may stay that
 * no record names; the next rebuild of the region removes it, or a checkpoint.
 *
 * A process writes one side file at a time.  What is known of it is in this
 * file's variables, since an abort has to find it.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file_perm.h"
#include "log/log_impl.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "utils/wait_event.h"

StaticAssertDecl(sizeof(NvmLogSide) == NVM_LOG_SIDE_SIZE, "NvmLogSide has a hole");
StaticAssertDecl(sizeof(NvmLogFileHeader) == NVM_LOG_FILE_HEADER_SIZE,
				 "NvmLogFileHeader has a hole");

static struct
{
	bool		exists;			/* there is a file, which an abort removes */
	int			fd;				/* -1: it is not open */
	uint32		generation;
	uint64		number;			/* these two name it */
	int			directory;
	uint64		length;			/* bytes of storages and rows */
	pg_crc32c	crc;			/* of the pool's uuid and these */
}			side = {.fd = -1};

/*
 * ERROR for a file that cannot be written.  errno says why.
 */
static void
side_failed(const char *step, const char *path)
{
	nvm_log_directory_failed(side.directory, step, path);
	ereport(ERROR,
			(errcode_for_file_access(),
			 errmsg("could not write file \"%s\": %m", path),
			 errdetail("The transaction has changed more rows of tables in memory than fit the buffer of its log record.")));
}

/*
 * Write bytes at this place in the file.
 */
static void
side_store(const char *data, Size length, uint64 offset)
{
	while (length > 0)
	{
		ssize_t		n;

		errno = 0;
		pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_WRITE);
		n = pg_pwrite(side.fd, data, length, (off_t) offset);
		pgstat_report_wait_end();
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
		{
			char		path[MAXPGPATH];

			if (errno == 0)
				errno = ENOSPC;
			nvm_log_side_path(path, side.directory, side.generation, side.number);
			side_failed("write", path);
		}
		data += n;
		length -= n;
		offset += n;
	}
}

/*
 * Make the file in the next directory that takes it.
 */
static void
open_somewhere(void)
{
	uint32		turn = pg_atomic_fetch_add_u32(&NvmLog->turn, 1);
	uint32		tried = 0;
	char		path[MAXPGPATH];
	int			next = nvm_log_deal_file(turn, 0, NVM_LOG_FILE_SIZE);
	int			save_errno;

	for (;;)
	{
		side.directory = next;
		tried |= (uint32) 1 << next;
		nvm_log_side_path(path, side.directory, side.generation, side.number);
		side.fd = OpenTransientFilePerm(path, O_RDWR | O_CREAT | O_EXCL | PG_BINARY,
										PG_FILE_MODE_OWNER);
		if (side.fd >= 0)
			break;
		save_errno = errno;
		next = nvm_log_deal_file(turn, tried, NVM_LOG_FILE_SIZE);
		errno = save_errno;
		if (next < 0)
			side_failed("create", path);
		nvm_log_directory_failed(side.directory, "create", path);
	}
	side.exists = true;
}

/*
 * Make the file of the transaction with this number.  There can be none of
 * that name, since a number is drawn once in a generation.
 */
void
nvm_log_side_create(uint64 number)
{
	NvmLogFileHeader header;
	char		page[NVM_LOG_PAGE];

	Assert(!side.exists && side.fd < 0);
	side.generation = nvm_log_generation();
	side.number = number;
	side.length = 0;
	INIT_CRC32C(side.crc);
	COMP_CRC32C(side.crc, NvmPool->uuid, sizeof(NvmPool->uuid));

	open_somewhere();

	nvm_log_fill_header(&header, 0);
	memset(page, 0, sizeof(page));
	memcpy(page, &header, sizeof(header));
	side_store(page, sizeof(page), 0);
}

/*
 * Append bytes: whole sections.
 */
void
nvm_log_side_write(const void *data, Size length)
{
	CHECK_FOR_INTERRUPTS();
	COMP_CRC32C(side.crc, data, length);
	side_store(data, length, NVM_LOG_PAGE + side.length);
	side.length += length;
}

/*
 * Everything is written: sync it, and say what the record is to say of it.
 *
 * If a sync fails, nothing is tried again: the transaction aborts, and the file
 * goes.  So this is no PANIC, whatever data_sync_retry says.
 */
void
nvm_log_side_finish(NvmLogSide *reference)
{
	char		path[MAXPGPATH];
	int			fd = side.fd;
	int			result;

	nvm_log_side_path(path, side.directory, side.generation, side.number);
	FIN_CRC32C(side.crc);
	memset(reference, 0, sizeof(*reference));
	reference->length = side.length;
	reference->crc = side.crc;
	pg_atomic_fetch_add_u64(&NvmLog->side_bytes, side.length);

	NVM_FAILPOINT("log-side-sync");
	pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_SYNC);
	result = pg_fsync(fd);
	pgstat_report_wait_end();
	if (result != 0)
		side_failed("sync", path);
	side.fd = -1;
	if (CloseTransientFile(fd) != 0)
		side_failed("close", path);
	if (!nvm_log_sync_directory(side.directory))
		side_failed("sync the name", path);
}

/*
 * The transaction aborts: remove its file, if it has one.  Cannot fail.
 *
 * That is not synced.  A file that a crash brings back is one that no record
 * names.
 */
void
nvm_log_side_discard(void)
{
	char		path[MAXPGPATH];

	if (side.fd >= 0)
		(void) CloseTransientFile(side.fd);
	side.fd = -1;
	if (!side.exists)
		return;
	side.exists = false;
	nvm_log_side_path(path, side.directory, side.generation, side.number);
	if (unlink(path) != 0 && errno != ENOENT)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not remove file \"%s\": %m", path),
				 errdetail("No record of the log names it. The next rebuild of the region will remove it.")));
}

/*
 * The transaction is decided: the file is the log's from now on.
 */
void
nvm_log_side_keep(void)
{
	Assert(side.fd < 0);
	side.exists = false;
}
