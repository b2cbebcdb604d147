/*-------------------------------------------------------------------------
 *
 * log_kept.c
 *	  Memory that a start has found in a file: does the log end where it says?
 *
 * Pool and memory go together, says the pool.  All the same the memory may be older
 * than the log, if somebody has put back what the file had before.  README.md, "A
 * memory that was found".  In the postmaster, before anything is believed.
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
#include "pool/nvm_pool.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "verify/nvm_verify_log.h"

#define KEPT_HINT \
	"Tables in memory are there, and are kept for the next start. Check nvm.log_directories, and put the files of the log back. If they are lost, call nvm.reset_log() and restart the server: the log begins anew, and nothing else is lost."

/* the last file cannot be read up to its end; the memory has what it had */
bool		nvm_log_file_is_damaged = false;

/*
 * A number that changes when a field of NvmLogMemory is elsewhere, or means something
 * else (the first one: raise it).
 */
uint32
nvm_log_memory_layout(void)
{
	static const Size fields[] = {
		1,
		offsetof(NvmLogMemory, begun),
		offsetof(NvmLogMemory, generation),
		offsetof(NvmLogMemory, start),
		offsetof(NvmLogMemory, number),
		offsetof(NvmLogMemory, inserted),
		offsetof(NvmLogMemory, persistent),
		offsetof(NvmLogMemory, placing_stamp),
		offsetof(NvmLogMemory, placing_end),
		offsetof(NvmLogMemory, file),
		offsetof(NvmLogMemory, files_made),
		offsetof(NvmLogMemory, first),
		offsetof(NvmLogMemory, chain),
		offsetof(NvmLogMemory, offset),
		offsetof(NvmLogMemory, file_is_bad),
		offsetof(NvmLogMemory, directory),
		offsetof(NvmLogMemory, tried),
		offsetof(NvmLogMemory, tried_in),
		offsetof(NvmLogMemory, rebuild),
		offsetof(NvmLogMemory, opening),
		offsetof(NvmLogMemory, rebuild_stamp),
		offsetof(NvmLogMemory, first_xid),
		offsetof(NvmLogMemory, rebuild_limit),
		offsetof(NvmLogMemory, played),
		offsetof(NvmLogMemory, tries),
		offsetof(NvmLogMemory, playing),
		offsetof(NvmLogMemory, buffers),
		offsetof(NvmLogMemory, place),
		offsetof(NvmLogMemory, asked),
		offsetof(NvmLogMemory, asked_at),
		offsetof(NvmLogMemory, closed),
		offsetof(NvmLogMemory, ring),
		offsetof(NvmLogMemory, buffer),
		NVM_LOG_VERSION,		/* of the records in ring and buffers */
		offsetof(NvmLogBuffer, counter),
		offsetof(NvmLogBuffer, length),
		offsetof(NvmLogBuffer, begin),
		offsetof(NvmLogBuffer, data),
		sizeof(NvmLogMemory)
	};
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, fields, sizeof(fields));
	FIN_CRC32C(crc);
	return crc;
}

/*
 * See nvm_log.h.
 */
char *
nvm_log_read_whole(const char *path, uint64 limit, uint64 *size)
{
	struct stat st;
	char	   *base = NULL;
	uint64		done = 0;
	int			fd = BasicOpenFile(path, O_RDONLY | PG_BINARY);

	if (fd < 0)
		return NULL;
	if (fstat(fd, &st) == 0)
	{
		*size = Min((uint64) st.st_size, limit);
		errno = ENOMEM;
		base = palloc_extended(*size + 1, MCXT_ALLOC_NO_OOM);
	}
	while (base != NULL && done < *size)
	{
		ssize_t		n;

		errno = 0;
		n = pg_pread(fd, base + done, *size - done, (off_t) done);
		if (n > 0)
			done += n;
		else if (errno != EINTR)
		{
			int			save_errno = errno != 0 ? errno : EIO;

			pfree(base);
			base = NULL;
			errno = save_errno;
		}
	}
	close(fd);
	return base;
}

/*
 * The end of a file that was read, as a position.  *damage: why it may be no end that a
 * crash leaves, or NULL; then the position says nothing.
 */
static NvmLogPosition
end_of(const char *base, uint64 size, const NvmPoolHeader *h, const char **damage)
{
	static char buf[NVM_LOG_PROBLEM_SIZE];
	NvmLogName	name = {nvm_log_pool_of(h->uuid), h->log_generation, h->log_file, 0};
	NvmLogCursor cursor;
	const NvmLogBlock *block;

	*damage = size < NVM_LOG_PAGE ? "it is too short" :
		nvm_log_file_header_problem((const NvmLogFileHeader *) base, size, h->uuid, &name);
	if (*damage != NULL)
		return 0;
	nvm_log_cursor_begin(&cursor, base, size, h->uuid, 0);
	while (nvm_log_next_block(&cursor, &block) == NVM_LOG_GOT_BLOCK)
		;
	*damage = nvm_log_end_problem(&cursor, buf);
	return cursor.position;
}

/*
 * The last file that the pool knows of is damaged: a block behind the damage says that all
 * was there.  Memory has it, so nothing is lost yet.
 */
static void
warn_of_file(const char *path, const char *damage)
{
	ereport(WARNING,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("log file \"%s\" is damaged: %s", path, damage),
			 errdetail("Tables in memory are there, and have everything. If their memory is lost, the log cannot bring them back."),
			 errhint("Call nvm.checkpoint(): with a new checkpoint the file is not needed any more.")));
}

/*
 * The last file lacks what memory says is synced there.  The last block may be damaged;
 * or pool, data directory and log are all of an earlier time, where memory would be
 * wrong.  Nobody can tell, so nothing is changed.
 */
static void
refuse_short_file(const char *path, NvmLogPosition end, NvmLogPosition persistent)
{
	nvm_pool_refuse(ERRCODE_DATA_CORRUPTED,
					psprintf("log file \"%s\" ends at position %llu, but was synced up to %llu, as tables in memory have it",
							 path, (unsigned long long) end, (unsigned long long) persistent),
					"Put the file back if it is damaged. If pool, data directory and log were set back to an earlier time, remove the file in nvm.memory_directory: the log brings back what it has, and what came behind its end is lost.");
}

/*
 * The last file is not there, and nvm.reset_log() has asked for going on: as with a file
 * that is damaged.
 */
static void
go_on_without(const char *path)
{
	nvm_log_file_is_damaged = true;
	ereport(WARNING,
			(errcode_for_file_access(),
			 errmsg("could not read log file \"%s\": %m", path),
			 errdetail("Tables in memory are there, and have everything. The log goes on without this file, as nvm.reset_log() asked. If their memory is lost before the next checkpoint, the log cannot bring them back."),
			 errhint("Call nvm.checkpoint(): with a new checkpoint the files are not needed any more.")));
}

/*
 * Does the last file end where memory can have left it?  It may have a block more than
 * memory calls persistent, whose records are in the ring.  *problem: why not.  False
 * after refusing the pool.
 */
static bool
check_file(NvmLogMemory *m, const NvmPoolHeader *h, const char **problem)
{
	NvmLogPosition inserted = pg_atomic_read_u64(&m->inserted);
	NvmLogPosition persistent = pg_atomic_read_u64(&m->persistent);
	char		path[MAXPGPATH];
	char		name[NVM_LOG_NAME_LENGTH + 1];
	NvmLogPosition end;
	const char *damage;
	uint64		size;
	char	   *base;

	nvm_log_set_directories();
	damage = nvm_log_ndirectories() > 1 ? nvm_log_directories_problem() : NULL;
	if (damage != NULL && nvm_reset_requested() != NVM_RESET_LOG)
	{
		NvmPool->log_is_lost = true;
		nvm_pool_refuse(ERRCODE_IO_ERROR, damage, KEPT_HINT);
		return false;
	}
	snprintf(name, sizeof(name), NVM_LOG_NAME, nvm_log_pool_of(h->uuid), h->log_generation, h->log_file);
	nvm_log_path_in(path, Max(nvm_log_find(name), 0), name);
	base = nvm_log_read_whole(path, NVM_LOG_FILE_SIZE + NVM_LOG_PAGE, &size);
	if (base == NULL && nvm_reset_requested() == NVM_RESET_LOG)
	{
		if (m->rebuild == NVM_LOG_WHOLE)
			go_on_without(path);
		else
			*problem = "not all rows are back, and the log is given up";
		return true;
	}
	if (base == NULL)
	{
		NvmPool->log_is_lost = true;
		nvm_pool_refuse(ERRCODE_IO_ERROR,
						psprintf("could not read log file \"%s\": %m", path), KEPT_HINT);
		return false;
	}
	end = end_of(base, size, h, &damage);
	pfree(base);
	nvm_log_file_is_damaged = damage != NULL;
	if (damage != NULL)
		warn_of_file(path, damage);
	else if (end > inserted)
		*problem = psprintf("log file \"%s\" goes on up to position %llu, and memory ends at %llu",
							path, (unsigned long long) end, (unsigned long long) inserted);
	else if (end < persistent)
	{
		refuse_short_file(path, end, persistent);
		return false;
	}
	return true;
}

/*
 * See nvm_region.h: NvmCompanionCheck.
 */
bool
nvm_log_check_kept(const char *companion, const NvmPoolHeader *h, const char **problem)
{
	NvmLogMemory *m = (NvmLogMemory *) companion;

	if (pg_atomic_read_u32(&m->begun) == 0)
	{
		/* nothing logged is in the region, or it was about to be rebuilt */
		if (h->log_generation != 0)
			*problem = "the log has begun since";
		return true;
	}
	if (nvm_reset_requested() == NVM_RESET_ROWS)
		*problem = "nvm.reset_log() gives it up";
	else if (m->generation != h->log_generation)
		*problem = psprintf("it is of generation %u of the log, and the NVM pool knows of %u",
							m->generation, h->log_generation);
	else if (h->log_file < m->file || h->log_file > Max(m->tried, m->file))
		*problem = psprintf("the log has gone on to file %u, and memory ends in file %u",
							h->log_file, m->file);
	if (*problem != NULL)
		return true;
	return check_file(m, h, problem);
}

/* ---- buffers ---- */

/* so many are given memory at once: a huge page */
#define BUFFERS_AT_ONCE			32

/*
 * See nvm_log.h.  Whoever is here at the same time does the same.
 */
void
nvm_log_reserve_buffer(uint32 slot)
{
	uint32		wanted = slot - NVM_VOLATILE_SLOT + 1;
	uint32		ready = pg_atomic_read_u32(&nvm_log_memory->buffers);

	if (wanted <= ready)
		return;
	wanted = Min(TYPEALIGN(BUFFERS_AT_ONCE, wanted), NVM_MAX_SLOTS);
	nvm_region_reserve_companion(&nvm_log_memory->buffer[ready],
								 (wanted - ready) * sizeof(NvmLogBuffer));
	while (ready < wanted &&
		   !pg_atomic_compare_exchange_u32(&nvm_log_memory->buffers, &ready, wanted))
		;
}
