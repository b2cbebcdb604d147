/*-------------------------------------------------------------------------
 *
 * log_generation.c
 *	  The start of a generation: what the last one has left, and where it is cut.
 *
 * In the postmaster, but for the first generation.  README.md, "Beginning" and
 * "Generations".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "common/file_perm.h"
#include "log/log_impl.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/fd.h"
#include "verify/nvm_verify_log.h"

/*
 * The files of this pool: the last generation, and its last file.
 */
typedef struct Found
{
	uint32		generation;		/* 0: there are none */
	uint32		number;
	NvmLogPosition start;		/* of the generation */
	NvmLogPosition synced;		/* all before was synced */
	NvmLogPosition end;			/* where the file ends */
	uint64		last_number;	/* of a record in it */
} Found;

#define DIRECTORY_HINT \
	"Check nvm.log_directories. To use the other tables meanwhile, set nvm.memory_limit = 0 and restart the server. To give up the rows of all nvm tables and start with an empty pool, call nvm.reset_pool() and restart the server."

/* why a generation cannot begin */
static struct
{
	int			code;
	const char *msg;
	const char *hint;
}			problem;

/*
 * Note it.  Who has called for a generation tells it.
 */
static bool
refuse(int code, const char *msg, const char *hint)
{
	problem.code = code;
	problem.msg = msg;
	problem.hint = hint;
	return false;
}

static bool
find_files(Found *found)
{
	DIR		   *dir = AllocateDir(nvm_log_directory());
	struct dirent *de;
	NvmLogName	name;

	memset(found, 0, sizeof(*found));
	if (dir == NULL)
		return refuse(ERRCODE_IO_ERROR,
					  psprintf("could not open log directory \"%s\": %m", nvm_log_directory()),
					  DIRECTORY_HINT);
	while ((de = ReadDirExtended(dir, nvm_log_directory(), LOG)) != NULL)
	{
		if (!nvm_log_parse_name(de->d_name, &name) || name.number == 0 ||
			name.pool != nvm_log_pool_of(NvmPool->uuid))
			continue;
		if (name.generation > found->generation ||
			(name.generation == found->generation && name.number > found->number))
		{
			found->generation = name.generation;
			found->number = name.number;
		}
	}
	FreeDir(dir);
	return true;
}

/*
 * A block of the last file.  All of it fits the ring.
 */
static void
take_block(Found *found, const NvmLogBlock *block)
{
	const NvmLogRecord *record;
	NvmLogWalk	walk;

	found->synced = Max(found->synced, block->synced);
	nvm_log_ring_write(block->position, (const char *) block + NVM_LOG_BLOCK_HEADER, block->length);
	nvm_log_walk_block(&walk, block);
	while (nvm_log_next_record(&walk, &record))
		found->last_number = Max(found->last_number, record->number);
}

/*
 * Follow the blocks of the last file, mapped, to where they no longer prove themselves.
 */
static bool
find_end(Found *found, const char *base, uint64 size, const char *path)
{
	const NvmLogFileHeader *header = (const NvmLogFileHeader *) base;
	NvmLogName	name = {nvm_log_pool_of(NvmPool->uuid), found->generation, found->number, 0};
	NvmLogCursor cursor;
	const NvmLogBlock *next;
	char		buf[NVM_LOG_PROBLEM_SIZE];
	const char *damage;

	damage = size < NVM_LOG_PAGE ? "it is too short" :
		nvm_log_file_header_problem(header, size, NvmPool->uuid, &name);
	if (damage == NULL)
	{
		nvm_log_cursor_begin(&cursor, base, size, NvmPool->uuid, 0);
		found->start = header->start;
		found->synced = header->first;
		while (nvm_log_next_block(&cursor, &next) == NVM_LOG_GOT_BLOCK)
			take_block(found, next);
		found->end = cursor.position;
		damage = nvm_log_end_problem(&cursor, buf);
	}
	if (damage == NULL)
		return true;
	return refuse(ERRCODE_DATA_CORRUPTED,
				  psprintf("log file \"%s\" is damaged: %s", path, damage),
				  "Restore the file. To give up the rows of all nvm tables and start with an empty pool, call nvm.reset_pool() and restart the server.");
}

static bool
read_last_file(Found *found)
{
	char		path[MAXPGPATH];
	uint64		size;
	char	   *base;
	bool		ok;

	nvm_log_file_path(path, found->generation, found->number);
	base = nvm_log_read_whole(path, &size);
	if (base == NULL)
		return refuse(ERRCODE_IO_ERROR, psprintf("could not read log file \"%s\": %m", path),
					  DIRECTORY_HINT);
	ok = find_end(found, base, size, path);
	pfree(base);
	return ok;
}

/*
 * Do the files that were found go with the pool, which knows generation `known`?
 * There may be one generation more: a start was cut off between its file and the
 * pool's header.  Such a file has what that start had carried over, and no more.
 */
static bool
found_fits(const Found *found, uint32 known)
{
	if (found->generation < known)
		return refuse(ERRCODE_DATA_CORRUPTED,
					  psprintf("the log of generation %u is missing in directory \"%s\"",
							   known, nvm_log_directory()),
					  DIRECTORY_HINT);
	if (known > 0 && found->generation == known && found->number < nvm_pool_log_file())
		return refuse(ERRCODE_DATA_CORRUPTED,
					  psprintf("file %u of the log of generation %u is missing in directory \"%s\"",
							   nvm_pool_log_file(), known, nvm_log_directory()),
					  DIRECTORY_HINT);
	if (found->generation > known + 1 ||
		(found->generation > known && (found->number > 1 || found->synced > found->start)) ||
		(known == 0 && found->generation > 0 && found->end > found->start))
		return refuse(ERRCODE_DATA_CORRUPTED,
					  psprintf("the log in directory \"%s\" is of generation %u, but the pool knows of %u",
							   nvm_log_directory(), found->generation, known),
					  "The pool is older than its log. Restore the pool, the data directory and the log together.");
	return true;
}

/*
 * Set the memory up for the generation behind the one that the pool knows.  What was
 * found is cut where it is known to be synced.  What was found behind that may be in
 * the page cache alone, so it is written once more, as part of the new generation.
 *
 * If a start has begun this generation before, its file is replaced.  So however many
 * starts are cut off, there is one generation at most that the pool does not know.
 */
static void
set_up(const Found *found, uint32 known)
{
	nvm_log_memory->start = found->synced;
	pg_atomic_write_u64(&nvm_log_memory->inserted, found->end);
	pg_atomic_write_u64(&nvm_log_memory->persistent, found->synced);
	pg_atomic_write_u64(&nvm_log_memory->number, found->last_number);
	nvm_log_memory->file = 0;
	nvm_log_memory->generation = known + 1;
	nvm_log_memory->rebuild_limit = found->end;
}

/*
 * Make the directory, durably: the pool's header is going to say that it is there.
 */
static bool
make_directory(void)
{
	char		parent[MAXPGPATH];

	if (mkdir(nvm_log_directory(), S_IRWXU) != 0)
		return errno == EEXIST;
	NVM_FAILPOINT("log-directory-made");
	strlcpy(parent, nvm_log_directory(), sizeof(parent));
	get_parent_directory(parent);
	return fsync_fname_ext(parent[0] == '\0' ? "." : parent, true, false, LOG) == 0;
}

/*
 * Begin the generation behind the last one of which there are files, durably.  False
 * with `problem`, and nothing begun.
 */
static bool
begin_generation(Found *found)
{
	uint32		known = nvm_pool_log_generation();

	if (known == 0 && !make_directory())
		return refuse(ERRCODE_IO_ERROR,
					  psprintf("could not create log directory \"%s\": %m", nvm_log_directory()),
					  "Check nvm.log_directories.");
	if (!find_files(found))
		return false;
	found->synced = found->end = NVM_LOG_FIRST;
	if ((found->generation > 0 && !read_last_file(found)) || !found_fits(found, known))
		return false;

	set_up(found, known);
	if (nvm_log_first_file())
	{
		NVM_FAILPOINT("log-generation-begun");
		nvm_pool_note_log(nvm_log_memory->generation, 1);
		NVM_FAILPOINT("log-generation-noted");
		return true;
	}
	errno = NvmLog->broken_errno;
	return refuse(ERRCODE_IO_ERROR,
				  psprintf("could not begin the log in directory \"%s\": %m", nvm_log_directory()),
				  "Free space on the device that holds the directory, or correct nvm.log_directories.");
}

/*
 * The memory of the region is new, and so is all that is in the log's: begin another
 * generation.
 */
bool
nvm_log_begin_generation(void)
{
	Found		found;

	if (!begin_generation(&found))
	{
		nvm_pool_refuse(problem.code, problem.msg, problem.hint);
		return false;
	}
	nvm_log_memory->rebuild = found.generation > 0 ? NVM_LOG_TO_REBUILD : NVM_LOG_WHOLE;
	pg_write_barrier();
	pg_atomic_write_u32(&nvm_log_memory->begun, 1);
	return true;
}

/*
 * See log_impl.h.  The pool knows of no generation, so there are no rows in the log,
 * whatever files a start that was cut off has left.
 */
void
nvm_log_begin_first(void)
{
	Found		found;

	if (!begin_generation(&found))
		ereport(ERROR,
				(errcode(problem.code),
				 errmsg("the log of tables in memory cannot begin"),
				 errdetail_internal("%s.", problem.msg),
				 errhint("%s", problem.hint)));
	pg_write_barrier();
	pg_atomic_write_u32(&nvm_log_memory->begun, 1);
	ereport(LOG,
			(errmsg("nvm: the log of tables in memory begins in directory \"%s\"",
					nvm_log_directory())));
}
