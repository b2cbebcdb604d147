/*-------------------------------------------------------------------------
 *
 * vlog_files.c
 *	  Files of the log: found, mapped, and is any missing?
 *
 * Files are mapped, because a rebuild comes back to what it has read: rows are
 * chosen first and placed later, in another order.  Each is read through once
 * before that.  So a medium that cannot read is an ERROR; an access to a mapped
 * page would be a SIGBUS, and the server would start anew for ever.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log/nvm_log.h"
#include "storage/fd.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_log.h"
#include "vlog/vlog_impl.h"

#define READ_SIZE		(1024 * 1024)

/*
 * See vlog_impl.h.  Returns the array, which may have moved.
 */
void *
nvm_vlog_make_room(NvmVlog *vlog, void *array, uint64 n, uint64 *room, Size size)
{
	if (n < *room)
		return array;
	*room = Max(*room * 2, 256);
	if (array == NULL)
		return MemoryContextAllocHuge(vlog->context, *room * size);
	return repalloc_huge(array, *room * size);
}

char *
nvm_vlog_file_name(const NvmVlogFile *file)
{
	const NvmLogName *name = &file->name;

	if (file->checkpoint != 0)
		return psprintf(NVM_LOG_ROWS_NAME, name->pool, (unsigned long long) file->checkpoint,
						file->part);
	if (name->number == 0)
		return psprintf(NVM_LOG_SIDE_NAME, name->pool, name->generation,
						(unsigned long long) name->transaction);
	return psprintf(NVM_LOG_NAME, name->pool, name->generation, name->number);
}

void
nvm_vlog_damaged(const NvmVlogFile *file, const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("file \"%s\" of the log: %s", nvm_vlog_file_name(file), problem)));
}

const NvmVlogFile *
nvm_vlog_file_of(const NvmVlog *vlog, const void *address)
{
	const NvmVlogFile *found = NULL;

	for (int i = 0; i < vlog->nfiles && found == NULL; i++)
	{
		const NvmVlogFile *file = &vlog->file[i];

		if (file->base != NULL && (const char *) address >= file->base &&
			(const char *) address < file->base + file->size)
			found = file;
	}
	Assert(found != NULL);
	return found;
}

/* ---- mapping ---- */

/*
 * Read all of a file, to see whether that is possible.  False with errno set.
 */
static bool
read_through(int fd, uint64 size)
{
	char	   *buf = palloc(READ_SIZE);
	uint64		done = 0;

	while (done < size)
	{
		ssize_t		n = pread(fd, buf, READ_SIZE, (off_t) done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
		{
			if (n == 0)
				errno = EIO;
			break;
		}
		done += n;
		nvm_vlog_pause();
	}
	pfree(buf);
	return done >= size;
}

static char *
path_of(const NvmVlogFile *file)
{
	return psprintf("%s/%s", nvm_log_directory(), nvm_vlog_file_name(file));
}

static bool
is_there(const NvmVlogFile *file)
{
	return access(path_of(file), F_OK) == 0;
}

/*
 * Map a file; ERROR if it is not there, or cannot be read.
 */
static void
map_file(NvmVlogFile *file)
{
	char	   *name = nvm_vlog_file_name(file);
	int			fd = BasicOpenFile(path_of(file), O_RDONLY | PG_BINARY);
	void	   *base = MAP_FAILED;
	struct stat st;
	int			save_errno;

	if (fd >= 0 && fstat(fd, &st) == 0)
	{
		file->size = (uint64) st.st_size;
		if (file->size < NVM_LOG_PAGE)
		{
			close(fd);
			nvm_vlog_damaged(file, "the file is truncated");
		}
		if (read_through(fd, file->size))
			base = mmap(NULL, file->size, PROT_READ, MAP_SHARED, fd, 0);
	}
	save_errno = errno;
	if (fd >= 0)
		close(fd);
	errno = save_errno;
	if (base == MAP_FAILED)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("file \"%s\" of the log cannot be read: %m", name)));
	file->base = (const char *) base;
	pfree(name);
}

void
nvm_vlog_unmap(NvmVlog *vlog)
{
	for (int i = 0; i < vlog->nfiles; i++)
	{
		if (vlog->file[i].base != NULL)
			(void) munmap(unconstify(char *, vlog->file[i].base), vlog->file[i].size);
		vlog->file[i].base = NULL;
	}
}

/*
 * Note one more file.
 */
static NvmVlogFile *
add_file(NvmVlog *vlog, const NvmLogName *name)
{
	uint64		room = (uint64) vlog->file_room;
	NvmVlogFile *file;

	vlog->file = nvm_vlog_make_room(vlog, vlog->file, (uint64) vlog->nfiles, &room,
									sizeof(NvmVlogFile));
	vlog->file_room = (int) room;
	file = &vlog->file[vlog->nfiles++];
	memset(file, 0, sizeof(*file));
	file->name = *name;
	return file;
}

/*
 * The side file of a transaction whose record was read in this generation.  It may have
 * been carried over from the one before, by a start that did not know whether it was
 * synced; the side file keeps its name.  Numbers of a generation's own
 * transactions are above those.  May move the others in memory, not what they are
 * mapped to.
 */
const NvmVlogFile *
nvm_vlog_map_side(NvmVlog *vlog, uint32 generation, uint64 number)
{
	NvmLogName	name = {
		.pool = nvm_log_pool_of(vlog->uuid),
		.generation = generation,
		.transaction = number
	};
	NvmVlogFile *file = add_file(vlog, &name);

	while (!is_there(file) && file->name.generation > 1)
		file->name.generation--;
	if (!is_there(file))
		file->name.generation = generation;
	map_file(file);
	nvm_log_count(&nvm_log_progress()->files, 1);
	return file;
}

/* ---- the files of blocks ---- */

static int
compare_files(const void *a, const void *b)
{
	const NvmLogName *x = &((const NvmVlogFile *) a)->name;
	const NvmLogName *y = &((const NvmVlogFile *) b)->name;

	if (x->generation != y->generation)
		return x->generation < y->generation ? -1 : 1;
	return x->number < y->number ? -1 : x->number > y->number;
}

static void
file_is_missing(const NvmVlog *vlog, uint32 generation, uint32 number)
{
	NvmVlogFile file = {
		.name = {
			.pool = nvm_log_pool_of(vlog->uuid),
			.generation = generation,
			.number = number
		}
	};

	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("file \"%s\" of the log is missing", nvm_vlog_file_name(&file)),
			 vlog->checkpoint != NULL ? 0 :
			 errdetail("There is no checkpoint that would make up for it (file \"" NVM_LOG_CHECKPOINT_NAME "\").",
					   nvm_log_pool_of(vlog->uuid))));
}

/*
 * A file that the checkpoint has made superfluous.
 */
static bool
comes_before(const NvmLogName *name, const NvmLogCheckpoint *checkpoint)
{
	return name->generation < checkpoint->generation ||
		(name->generation == checkpoint->generation && name->number < checkpoint->file);
}

/*
 * Each generation has files from number 1 on, and there is one generation after the
 * other up to the one that is being written.  The first file is that of the checkpoint,
 * if there is one.
 */
static void
check_names(const NvmVlog *vlog)
{
	const NvmLogCheckpoint *checkpoint = vlog->checkpoint;
	uint32		generation = checkpoint != NULL ? checkpoint->generation : 0;
	uint32		number = checkpoint != NULL ? checkpoint->file - 1 : 0;

	for (int i = 0; i < vlog->nfiles; i++)
	{
		const NvmLogName *name = &vlog->file[i].name;

		if (name->generation != generation)
		{
			if (generation != 0 && name->generation != generation + 1)
				file_is_missing(vlog, generation + 1, 1);
			generation = name->generation;
			number = 0;
		}
		if (name->number != ++number)
			file_is_missing(vlog, generation, number);
	}
	if (generation != vlog->generation)
		file_is_missing(vlog, generation + 1, 1);
}

static void
check_header(const NvmVlog *vlog, const NvmVlogFile *file)
{
	const NvmLogFileHeader *h = (const NvmLogFileHeader *) file->base;
	NvmLogPosition needed = vlog->checkpoint != NULL ? vlog->checkpoint->begin : NVM_LOG_FIRST;
	const char *problem = nvm_log_file_header_problem(h, file->size, vlog->uuid, &file->name);

	if (problem != NULL)
		nvm_vlog_damaged(file, problem);
	if (file == vlog->file && h->first > needed)
		nvm_vlog_damaged(file, psprintf("positions %llu to %llu, which come before it, are missing%s",
										(unsigned long long) needed,
										(unsigned long long) h->first,
										vlog->checkpoint == NULL ? ", and there is no checkpoint" : ""));
	if (file > vlog->file && file->name.number > 1 && h->start != ((const NvmLogFileHeader *) (file - 1)->base)->start)
		nvm_vlog_damaged(file, "its generation does not begin where the file before it says");
}

/* ---- the files of the checkpoint ---- */

static void
map_data_file(NvmVlog *vlog, uint32 part)
{
	const NvmLogSide *side = NVM_LOG_CHECKPOINT_DATA(vlog->checkpoint) + (part - 1);
	NvmLogName	name = {.pool = nvm_log_pool_of(vlog->uuid)};
	NvmVlogFile *file = add_file(vlog, &name);
	const char *problem;

	file->checkpoint = vlog->checkpoint->number;
	file->part = part;
	map_file(file);
	problem = nvm_log_side_problem(file->base, file->size, side, vlog->uuid, NULL);
	if (problem != NULL)
		nvm_vlog_damaged(file, problem);
}

static void
map_checkpoint(NvmVlog *vlog)
{
	const NvmLogCheckpoint *checkpoint = vlog->checkpoint;

	vlog->first_data = vlog->nfiles;
	if (checkpoint == NULL)
		return;
	if (checkpoint->end > vlog->end)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the log ends at position %llu, but checkpoint %llu has rows up to %llu",
						(unsigned long long) vlog->end,
						(unsigned long long) checkpoint->number,
						(unsigned long long) checkpoint->end)));
	for (uint32 part = 1; part <= checkpoint->nfiles; part++)
		map_data_file(vlog, part);
}

/*
 * Find and map the files of blocks, and note up to where they are read.  A file that is
 * made meanwhile has nothing before that.  Then those of the checkpoint.
 */
void
nvm_vlog_find_files(NvmVlog *vlog)
{
	const char *path = nvm_log_directory();
	DIR		   *dir = AllocateDir(path);
	struct dirent *de;
	NvmLogName	name;

	vlog->checkpoint = nvm_vlog_read_checkpoint();
	vlog->end = nvm_log_persistent();
	while ((de = ReadDir(dir, path)) != NULL)
	{
		if (nvm_log_parse_name(de->d_name, &name) && name.number != 0 &&
			name.pool == nvm_log_pool_of(vlog->uuid) && name.generation <= vlog->generation &&
			(vlog->checkpoint == NULL || !comes_before(&name, vlog->checkpoint)))
			(void) add_file(vlog, &name);
	}
	FreeDir(dir);
	qsort(vlog->file, vlog->nfiles, sizeof(NvmVlogFile), compare_files);
	check_names(vlog);
	for (int i = 0; i < vlog->nfiles; i++)
	{
		map_file(&vlog->file[i]);
		check_header(vlog, &vlog->file[i]);
	}
	vlog->nblock_files = vlog->nfiles;
	map_checkpoint(vlog);
	nvm_log_count(&nvm_log_progress()->files, (uint64) vlog->nfiles);
}
