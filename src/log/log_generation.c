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
	int			directory;		/* of the file */
} Found;

#define GIVE_UP_HINT \
	"To give up the rows of all tables in memory, and of no others, call nvm.reset_log() and restart the server."
#define DIRECTORY_HINT \
	"Check nvm.log_directories. To use the other tables meanwhile, set nvm.memory_limit = 0 and restart the server. " \
	GIVE_UP_HINT

#define DIRECTORIES_HINT \
	"Put the directory back, or create it if it is new. Take it out of nvm.log_directories if nothing of the log was in it: a file that is missing then is named. To use the other tables meanwhile, set nvm.memory_limit = 0 and restart the server. " \
	GIVE_UP_HINT

#define NO_FILE_HINT \
	"Free space on the device that holds the directory, or correct nvm.log_directories."

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

/*
 * The file of the pool with the highest generation and number.
 */
static void
find_last_file(Found *found)
{
	NvmLogScan	scan;
	NvmLogName	name;
	const char *entry;

	nvm_log_scan_begin(&scan, LOG);
	while ((entry = nvm_log_scan_next(&scan)) != NULL)
	{
		if (!nvm_log_parse_name(entry, &name) || name.number == 0 ||
			name.pool != nvm_log_pool_of(NvmPool->uuid))
			continue;
		if (name.generation > found->generation ||
			(name.generation == found->generation && name.number > found->number))
		{
			found->generation = name.generation;
			found->number = name.number;
			found->directory = scan.directory;
		}
	}
}

/*
 * A file of a generation that the pool does not know may be there twice, with the same
 * contents.  Any other was copied, and nobody can tell which is the log's.
 */
static bool
is_unique(const Found *found, uint32 known)
{
	char		name[NVM_LOG_NAME_LENGTH + 1];
	int			other;

	if (found->generation == 0 || found->generation > known)
		return true;
	snprintf(name, sizeof(name), NVM_LOG_NAME, nvm_log_pool_of(NvmPool->uuid),
			 found->generation, found->number);
	other = nvm_log_find_after(name, found->directory);
	if (other < 0)
		return true;
	return refuse(ERRCODE_DATA_CORRUPTED,
				  psprintf("log file \"%s\" is in directory \"%s\" and in directory \"%s\"", name,
						   nvm_log_directory(found->directory), nvm_log_directory(other)),
				  "Take the copy out of the directories in nvm.log_directories, and restart the server.");
}

/*
 * Are all directories there?  False with `problem`.
 */
static bool
look_at_directories(void)
{
	const char *unusable = nvm_log_directories_problem();

	return unusable == NULL ||
		refuse(ERRCODE_IO_ERROR, unusable,
			   nvm_log_ndirectories() == 1 ? DIRECTORY_HINT : DIRECTORIES_HINT);
}

static bool
find_files(Found *found, uint32 known)
{
	memset(found, 0, sizeof(*found));
	if (!look_at_directories())
		return false;
	find_last_file(found);
	return is_unique(found, known);
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
				  "Restore the file. To use the other tables meanwhile, set nvm.memory_limit = 0 and restart the server. " GIVE_UP_HINT);
}

static bool
read_last_file(Found *found)
{
	char		path[MAXPGPATH];
	uint64		size;
	char	   *base;
	bool		ok;

	nvm_log_file_path(path, found->directory, found->generation, found->number);
	base = nvm_log_read_whole(path, NVM_LOG_FILE_SIZE + NVM_LOG_PAGE, &size);
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
					  psprintf("the log of generation %u is missing in %s", known, nvm_log_where()),
					  DIRECTORY_HINT);
	if (known > 0 && found->generation == known && found->number < nvm_pool_log_file())
		return refuse(ERRCODE_DATA_CORRUPTED,
					  psprintf("file %u of the log of generation %u is missing in %s",
							   nvm_pool_log_file(), known, nvm_log_where()),
					  DIRECTORY_HINT);
	if (found->generation > known + 1 ||
		(found->generation > known && (found->number > 1 || found->synced > found->start)) ||
		(known == 0 && found->generation > 0 && found->end > found->start))
		return refuse(ERRCODE_DATA_CORRUPTED,
					  psprintf("the log in %s is of generation %u, but the pool knows of %u",
							   nvm_log_where(), found->generation, known),
					  "The pool is older than its log. Restore the pool, the data directory and the log together. " GIVE_UP_HINT);
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
	nvm_log_memory->file = nvm_log_memory->tried = 0;
	nvm_log_memory->tried_in = -1;
	nvm_log_memory->generation = known + 1;
	nvm_log_memory->rebuild_limit = found->end;
}

static bool
sync_parent(const char *path)
{
	char		parent[MAXPGPATH];

	strlcpy(parent, path, sizeof(parent));
	get_parent_directory(parent);
	return fsync_fname_ext(parent[0] == '\0' ? "." : parent, true, false, LOG) == 0;
}

/*
 * Make a directory, durably: the pool's header is going to say that it is there.
 */
static bool
make_directory(const char *path)
{
	if (mkdir(path, S_IRWXU) != 0)
		return errno == EEXIST;
	NVM_FAILPOINT("log-directory-made");
	return sync_parent(path);
}

/*
 * See log_impl.h.
 */
const char *
nvm_log_make_directories(void)
{
	for (int i = 0; i < nvm_log_ndirectories(); i++)
	{
		if (!make_directory(nvm_log_directory(i)))
			return nvm_log_directory(i);
	}
	return NULL;
}

/*
 * Somebody may just have made one that is new in the list.
 */
static bool
sync_names(void)
{
	for (int i = 0; i < nvm_log_ndirectories(); i++)
	{
		if (nvm_log_ndirectories() > 1 && !sync_parent(nvm_log_directory(i)))
			return refuse(ERRCODE_IO_ERROR,
						  psprintf("could not sync the name of log directory \"%s\": %m",
								   nvm_log_directory(i)),
						  DIRECTORIES_HINT);
	}
	return true;
}

/*
 * The directory of the first file of the generation: behind that of the last one, or
 * where a start that was cut off has it.
 */
static int
first_directory(const Found *found, uint32 known)
{
	if (found->generation == 0)
		return 0;
	return found->generation > known ? found->directory : nvm_log_deal(found->directory, 0);
}

/*
 * Find where the log ends.  False with `problem`.
 */
static bool
find_last(Found *found, uint32 known)
{
	if (!find_files(found, known) || !sync_names())
		return false;
	found->synced = found->end = NVM_LOG_FIRST;
	return (found->generation == 0 || read_last_file(found)) && found_fits(found, known);
}

static bool
cannot_begin(int code)
{
	const char *where = nvm_log_where();

	errno = code;
	return refuse(ERRCODE_IO_ERROR, psprintf("could not begin the log in %s: %m", where),
				  NO_FILE_HINT);
}

/*
 * Begin the generation behind `known`, durably.  False with `problem`, and nothing begun.
 */
static bool
begin_behind(const Found *found, uint32 known)
{
	set_up(found, known);
	if (nvm_log_first_file(first_directory(found, known)))
	{
		NVM_FAILPOINT("log-generation-begun");
		nvm_pool_note_log(nvm_log_memory->generation, 1);
		NVM_FAILPOINT("log-generation-noted");
		return true;
	}
	return cannot_begin(NvmLog->broken_errno);
}

/*
 * The memory of the region is new, and so is all that is in the log's: begin another
 * generation.
 */
bool
nvm_log_begin_generation(void)
{
	Found		found;
	uint32		known = nvm_pool_log_generation();
	NvmResetRequest request = nvm_reset_requested();
	bool		lost = !find_last(&found, known);
	bool		give_up = request == NVM_RESET_ROWS || (lost && request == NVM_RESET_LOG);

	if (give_up)
	{
		if (!nvm_log_give_up(&known))
			return false;
		memset(&found, 0, sizeof(found));
		found.synced = found.end = NVM_LOG_FIRST;
	}
	if ((lost && !give_up) || !begin_behind(&found, known))
	{
		nvm_pool_refuse(problem.code, problem.msg, problem.hint);
		NvmPool->log_is_lost = lost && !give_up;
		return false;
	}
	if (!nvm_log_settle_reset(give_up, give_up))
		return false;
	nvm_log_memory->rebuild = NVM_LOG_TO_REBUILD;
	pg_write_barrier();
	pg_atomic_write_u32(&nvm_log_memory->begun, 1);
	return true;
}

/*
 * Is there a directory that can have the first file of a generation?  False with `problem`.
 */
static bool
has_place(void)
{
	int			code = 0;

	for (int i = 0; i < nvm_log_ndirectories(); i++)
	{
		if (access(nvm_log_directory(i), W_OK | X_OK) == 0 &&
			nvm_log_has_room(i, 2 * NVM_LOG_FILE_SIZE))
			return true;
		code = errno;
	}
	return cannot_begin(code);
}

/*
 * See nvm_region.h: NvmCompanionBegin.  What this finds out would refuse the pool later, too,
 * but the pool would be one that was opened and not closed.
 */
bool
nvm_log_check_begin(const NvmPoolHeader *h)
{
	NvmResetRequest request = nvm_reset_requested();
	bool		lost;

	if (h->log_generation == 0 || request == NVM_RESET_LOG || request == NVM_RESET_ROWS)
		return true;
	nvm_log_set_directories();
	lost = !look_at_directories();
	if (!lost && has_place())
		return true;
	nvm_pool_refuse(problem.code, problem.msg, problem.hint);
	NvmPool->log_is_lost = lost;
	return false;
}

static bool
begin_anew(void)
{
	Found		found;
	const char *path = nvm_log_make_directories();

	if (path != NULL)
		return refuse(ERRCODE_IO_ERROR,
					  psprintf("could not create log directory \"%s\": %m", path),
					  "Check nvm.log_directories.");
	return find_last(&found, 0) && begin_behind(&found, 0);
}

/*
 * See log_impl.h.  The pool knows of no generation, so there are no rows in the log,
 * whatever files a start that was cut off has left.
 */
void
nvm_log_begin_first(void)
{
	if (!begin_anew())
		ereport(ERROR,
				(errcode(problem.code),
				 errmsg("the log of tables in memory cannot begin"),
				 errdetail_internal("%s.", problem.msg),
				 errhint("%s", problem.hint)));
	pg_write_barrier();
	nvm_log_tell_alone(NULL, 0);
	pg_atomic_write_u32(&nvm_log_memory->begun, 1);
	ereport(LOG,
			(errmsg("nvm: the log of tables in memory begins in %s", nvm_log_where())));
}
