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
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_log.h"
#include "vlog/vlog_impl.h"

#define READ_SIZE		(1024 * 1024)

/* names that are tried, at most, where numbers have holes */
#define MOST_HOLES		1000

/*
 * Has it the rows of an UNLOGGED table?
 */
static bool
is_kept(const NvmVlogFile *file)
{
	return file->checkpoint != 0 && file->part == 0;
}

char *
nvm_vlog_file_name(const NvmVlogFile *file)
{
	const NvmLogName *name = &file->name;

	if (is_kept(file))
		return psprintf(NVM_LOG_KEPT_ROWS_NAME, name->pool, name->generation,
						(unsigned long long) file->checkpoint);
	if (file->checkpoint != 0)
		return psprintf(NVM_LOG_ROWS_NAME, name->pool, (unsigned long long) file->checkpoint,
						file->part);
	if (name->number == 0)
		return psprintf(NVM_LOG_SIDE_NAME, name->pool, name->generation,
						(unsigned long long) name->transaction);
	return psprintf(NVM_LOG_NAME, name->pool, name->generation, name->number);
}

/*
 * For errdetail: what it is, and what can be done without it.
 */
static char *
kept_detail(const NvmVlogFile *file)
{
	return psprintf("It has the rows of an UNLOGGED table. If file \"" NVM_LOG_KEPT_NAME "\" is removed, UNLOGGED tables in memory are empty after the next start, and all others are there.",
					file->name.pool);
}

void
nvm_vlog_damaged(const NvmVlogFile *file, const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("file \"%s\" of the log: %s", nvm_vlog_file_name(file), problem),
			 is_kept(file) ? errdetail_internal("%s", kept_detail(file)) : 0));
}

/* ---- mapping ---- */

/*
 * Read all of a file, to see whether that is possible.  False with errno set.
 */
static bool
read_through(const NvmVlog *vlog, int fd, uint64 size)
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
		if (vlog->reads_only)
			CHECK_FOR_INTERRUPTS();
		else
			nvm_vlog_pause();
	}
	pfree(buf);
	return done >= size;
}

/*
 * Where it is.  One that is nowhere is not in the first directory.
 */
static char *
path_of(const NvmVlogFile *file)
{
	return psprintf("%s/%s", nvm_log_directory(Max(file->directory, 0)), nvm_vlog_file_name(file));
}

static bool
is_there(NvmVlogFile *file)
{
	char	   *name = nvm_vlog_file_name(file);

	file->directory = nvm_log_find(name);
	pfree(name);
	return file->directory >= 0;
}

/*
 * A side file or data file is not right, or cannot be read.  Is there another of this name
 * in a later directory?  Somebody has copied it, or a checkpoint that was given up has
 * left a file in a directory that was not there for a while.
 */
static bool
take_copy(NvmVlogFile *file)
{
	int			other = file->name.number != 0 || file->directory < 0 ? -1 :
	nvm_log_find_after(nvm_vlog_file_name(file), file->directory);

	if (other < 0)
		return false;
	file->directory = other;
	file->size = 0;
	return true;
}

/*
 * See vlog_impl.h.  Each process maps what it needs.  Who is the first to do so reads all
 * of the file before.
 */
const char *
nvm_vlog_map(NvmVlog *vlog, int file)
{
	NvmVlogFile *f = &vlog->file[file];
	char	   *name;
	int			fd;
	void	   *base = MAP_FAILED;
	struct stat st;
	int			save_errno;

	if (vlog->base[file] != NULL)
		return vlog->base[file];
	name = nvm_vlog_file_name(f);
	fd = OpenTransientFile(path_of(f), O_RDONLY | PG_BINARY);
	if (fd >= 0 && fstat(fd, &st) == 0)
	{
		if ((uint64) st.st_size < NVM_LOG_PAGE || (uint64) st.st_size < f->size)
		{
			(void) CloseTransientFile(fd);
			if (take_copy(f))
				return nvm_vlog_map(vlog, file);
			nvm_vlog_damaged(f, "the file is truncated");
		}
		if (f->size != 0 || read_through(vlog, fd, (uint64) st.st_size))
		{
			f->size = (uint64) st.st_size;
			base = mmap(NULL, f->size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
		}
	}
	save_errno = errno;
	if (fd >= 0)
		(void) CloseTransientFile(fd);
	if (base == MAP_FAILED && take_copy(f))
		return nvm_vlog_map(vlog, file);
	errno = save_errno;
	if (base == MAP_FAILED)
		ereport(ERROR,
				(save_errno == ENOENT ? errcode(ERRCODE_DATA_CORRUPTED) : errcode_for_file_access(),
				 errmsg("file \"%s\" of the log cannot be read: %m", name),
				 is_kept(f) ? errdetail_internal("%s", kept_detail(f)) :
				 f->directory >= 0 ? 0 : errdetail("It was looked for in %s.", nvm_log_where())));
	vlog->base[file] = (const char *) base;
	vlog->mapped[file] = f->size;
	pfree(name);
	return vlog->base[file];
}

void
nvm_vlog_unmap_one(NvmVlog *vlog, int file)
{
	if (vlog->base[file] != NULL)
		(void) munmap(unconstify(char *, vlog->base[file]), vlog->mapped[file]);
	vlog->base[file] = NULL;
}

void
nvm_vlog_unmap(NvmVlog *vlog)
{
	for (int i = 0; i < vlog->nbases; i++)
		nvm_vlog_unmap_one(vlog, i);
}

/*
 * See vlog_impl.h.  Its record may have been carried over from the generation before, by a
 * start that did not know whether it was synced; the side file keeps its name.  Numbers
 * of a generation's own transactions are above those.
 */
void
nvm_vlog_find_side(NvmVlogFile *file)
{
	while (!is_there(file) && file->name.generation > 1)
		file->name.generation--;
	if (!is_there(file))
		file->name.generation = file->generation;
}

/*
 * See vlog_impl.h.
 */
const char *
nvm_vlog_map_side(NvmVlog *vlog, int file)
{
	NvmVlogFile *f = &vlog->file[file];
	const NvmLogName *name = f->checkpoint != 0 ? NULL : &f->name;

	for (;;)
	{
		const char *base = nvm_vlog_map(vlog, file);
		const char *problem = nvm_log_side_problem(base, f->size, &f->side, vlog->uuid, name);

		if (problem == NULL)
			return base;
		if (!take_copy(f))
			nvm_vlog_damaged(f, problem);
		nvm_vlog_unmap_one(vlog, file);
	}
}

/* ---- the files of blocks ---- */

/* the files that are found, in memory of this process */
typedef struct FileList
{
	NvmVlogFile *file;
	int			n;
	int			room;
} FileList;

static NvmVlogFile *
add_file(FileList *list, const NvmLogName *name, int directory)
{
	if (list->n == list->room)
	{
		list->room = Max(list->room * 2, 64);
		list->file = list->file == NULL ? palloc(list->room * sizeof(NvmVlogFile)) :
			repalloc(list->file, list->room * sizeof(NvmVlogFile));
	}
	memset(&list->file[list->n], 0, sizeof(NvmVlogFile));
	list->file[list->n].name = *name;
	list->file[list->n].directory = directory;
	return &list->file[list->n++];
}

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
	const char *where = nvm_log_ndirectories() == 1 ? "" :
	psprintf("It was looked for in %s.", nvm_log_where());

	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("file \"%s\" of the log is missing", nvm_vlog_file_name(&file)),
			 vlog->checkpoint != NULL ? (where[0] == '\0' ? 0 : errdetail_internal("%s", where)) :
			 errdetail("There is no checkpoint that would make up for it (file \"" NVM_LOG_CHECKPOINT_NAME "\").%s%s",
					   nvm_log_pool_of(vlog->uuid), where[0] == '\0' ? "" : " ", where)));
}

/*
 * Somebody has copied it, and nobody can tell which is the log's.
 */
static void
file_is_there_twice(const NvmVlogFile *a, const NvmVlogFile *b)
{
	int			first = Min(a->directory, b->directory);
	int			second = Max(a->directory, b->directory);

	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("file \"%s\" of the log is in directory \"%s\" and in directory \"%s\"",
					nvm_vlog_file_name(a), nvm_log_directory(first), nvm_log_directory(second))));
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
 * if there is one.  Numbers may have holes: see check_holes.
 */
static void
check_names(const NvmVlog *vlog, const FileList *list)
{
	const NvmLogCheckpoint *checkpoint = vlog->checkpoint;
	uint32		generation = checkpoint != NULL ? checkpoint->generation : 0;

	if (list->n > 0 && checkpoint != NULL && list->file[0].name.generation != generation)
		file_is_missing(vlog, generation, checkpoint->file);
	for (int i = 0; i < list->n; i++)
	{
		const NvmLogName *name = &list->file[i].name;

		if (i > 0 && compare_files(&list->file[i - 1], &list->file[i]) == 0)
			file_is_there_twice(&list->file[i - 1], &list->file[i]);
		if (name->generation == generation)
			continue;
		if (generation != 0 && name->generation != generation + 1)
			file_is_missing(vlog, generation + 1, 1);
		generation = name->generation;
		if (name->number != 1)
			file_is_missing(vlog, generation, 1);
	}
	if (generation != vlog->shared->generation)
		file_is_missing(vlog, generation + 1, 1);
}

/*
 * Sessions at open tables make files meanwhile.  A directory that is being read may show
 * one of them, and not the one before it.
 */
static void
add_overlooked(FileList *list)
{
	int			n = list->n;
	int			holes = 0;

	for (int i = 1; i < n; i++)
	{
		NvmLogName	name = list->file[i - 1].name;

		if (name.generation != list->file[i].name.generation)
			continue;
		while (++name.number < list->file[i].name.number && holes < MOST_HOLES)
		{
			NvmVlogFile *file = add_file(list, &name, -1);

			if (is_there(file))
				continue;
			list->n--;
			holes++;
		}
	}
	qsort(list->file, list->n, sizeof(NvmVlogFile), compare_files);
}

/*
 * The header of a file: bytes read, and the size of the file.
 */
static void
read_header(const NvmVlogFile *file, NvmLogFileHeader *header, uint64 *size)
{
	int			fd = BasicOpenFile(path_of(file), O_RDONLY | PG_BINARY);
	struct stat st;
	ssize_t		n = -1;
	int			save_errno;

	memset(&st, 0, sizeof(st));
	if (fd >= 0 && fstat(fd, &st) == 0)
		n = pg_pread(fd, header, sizeof(*header), 0);
	save_errno = errno;
	if (fd >= 0)
		close(fd);
	errno = save_errno;
	if (n < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("file \"%s\" of the log cannot be read: %m", nvm_vlog_file_name(file))));
	*size = (uint64) st.st_size;
	if (*size < NVM_LOG_PAGE || n < (ssize_t) sizeof(*header))
		nvm_vlog_damaged(file, "the file is truncated");
}

static void
check_header(const NvmVlog *vlog, const FileList *list, NvmVlogFile *file)
{
	NvmLogPosition needed = vlog->checkpoint != NULL ? vlog->checkpoint->begin : NVM_LOG_FIRST;
	NvmLogFileHeader h;
	uint64		size;
	const char *problem;

	read_header(file, &h, &size);
	problem = nvm_log_file_header_problem(&h, size, vlog->uuid, &file->name);
	if (problem != NULL)
		nvm_vlog_damaged(file, problem);
	if (file == list->file && h.first > needed)
	{
		if (vlog->checkpoint != NULL && file->name.number != vlog->checkpoint->file)
			file_is_missing(vlog, vlog->checkpoint->generation, vlog->checkpoint->file);
		nvm_vlog_damaged(file, psprintf("positions %llu to %llu, which come before it, are missing%s",
										(unsigned long long) needed,
										(unsigned long long) h.first,
										vlog->checkpoint == NULL ? ", and there is no checkpoint" : ""));
	}
	if (file > list->file && file->name.number > 1 && h.start != (file - 1)->start)
		nvm_vlog_damaged(file, "its generation does not begin where the file before it says");
	file->start = h.start;
	file->first = h.first;
}

/*
 * Do the blocks of a file lead to this position?
 */
static bool
leads_to(const NvmVlog *vlog, const NvmVlogFile *file, NvmLogPosition position)
{
	NvmLogCursor cursor;
	const NvmLogBlock *block;
	NvmLogNext	next = NVM_LOG_NO_MORE;
	char	   *bytes = palloc(NVM_LOG_FILE_SIZE);
	int			fd = BasicOpenFile(path_of(file), O_RDONLY | PG_BINARY);
	ssize_t		n = fd >= 0 ? pg_pread(fd, bytes, NVM_LOG_FILE_SIZE, 0) : -1;

	if (fd >= 0)
		close(fd);
	if (n >= NVM_LOG_PAGE)
	{
		nvm_log_cursor_begin(&cursor, bytes, (uint64) n, vlog->uuid, position);
		while ((next = nvm_log_next_block(&cursor, &block)) == NVM_LOG_GOT_BLOCK)
			;
	}
	pfree(bytes);
	return next == NVM_LOG_AT_LIMIT;
}

/*
 * A file that had nothing may have gone (log/README.md, "One name, one directory").  Then
 * the file before it leads to the one behind.  Else one is missing.
 */
static void
check_holes(const NvmVlog *vlog, const FileList *list)
{
	for (int i = 1; i < list->n; i++)
	{
		const NvmVlogFile *before = &list->file[i - 1];
		const NvmVlogFile *file = &list->file[i];

		if (file->name.generation == before->name.generation &&
			file->name.number > before->name.number + 1 &&
			!leads_to(vlog, before, file->first))
			file_is_missing(vlog, before->name.generation, before->name.number + 1);
	}
}

/*
 * See vlog_impl.h: where the next file, or generation, goes on.  The generation that is
 * being written may have more by now.
 */
NvmLogPosition
nvm_vlog_limit_of(const NvmVlog *vlog, int file)
{
	const NvmVlogFile *f = &vlog->file[file];

	if (file + 1 == vlog->shared->nblock_files)
		return vlog->shared->end;
	if (f[1].name.generation != f->name.generation)
		return f[1].start;
	return f->name.generation == vlog->shared->generation ? Min(f[1].first, vlog->shared->end) :
		f[1].first;
}

/*
 * See vlog_impl.h.
 */
int
nvm_vlog_files_to_read(const NvmVlog *vlog)
{
	int			n = 0;

	while (n < vlog->shared->nblock_files)
	{
		NvmLogPosition limit = nvm_vlog_limit_of(vlog, n);

		if (vlog->file[n++].name.generation == vlog->shared->generation && limit == vlog->shared->end)
			break;
	}
	return n;
}

/*
 * All files of blocks that may be needed, in order.
 */
static void
list_blocks(const NvmVlog *vlog, FileList *list)
{
	NvmLogScan	scan;
	const char *entry;
	NvmLogName	name;

	nvm_log_scan_begin(&scan, ERROR);
	while ((entry = nvm_log_scan_next(&scan)) != NULL)
	{
		if (nvm_log_parse_name(entry, &name) && name.number != 0 &&
			name.pool == nvm_log_pool_of(vlog->uuid) && name.generation <= vlog->shared->generation &&
			(vlog->checkpoint == NULL || !comes_before(&name, vlog->checkpoint)))
			(void) add_file(list, &name, scan.directory);
	}
	qsort(list->file, list->n, sizeof(NvmVlogFile), compare_files);
	add_overlooked(list);
}

/*
 * Is any missing?  Then they are those of blocks.
 */
static void
check_blocks(const NvmVlog *vlog, const FileList *list)
{
	check_names(vlog, list);
	for (int i = 0; i < list->n; i++)
		check_header(vlog, list, &list->file[i]);
	check_holes(vlog, list);
	vlog->shared->nblock_files = list->n;
}

/* ---- for a reader ---- */

/*
 * Begins the file there, or before?  What is damaged does not.
 */
static bool
begins_by(const NvmVlog *vlog, const NvmVlogFile *file, NvmLogPosition position)
{
	NvmLogFileHeader h;
	uint64		size;

	read_header(file, &h, &size);
	return nvm_log_file_header_problem(&h, size, vlog->uuid, &file->name) == NULL &&
		h.first <= position;
}

/*
 * See vlog_impl.h.  The log may be needed from an earlier position on than the checkpoint
 * that counts says, so the file is looked for: of those that begin there or before it is the
 * last one.  Files before it may go at any time, and are not looked at.
 */
void
nvm_vlog_find_blocks(NvmVlog *vlog, NvmLogPosition begin)
{
	FileList	list = {0};
	NvmLogName	side = {0};
	NvmLogCheckpoint from = {.begin = begin,.generation = vlog->shared->generation,.file = 1};
	int			first;

	list_blocks(vlog, &list);
	for (first = list.n - 1; first > 0 && !begins_by(vlog, &list.file[first], begin); first--)
		;
	if (first < 0)
		file_is_missing(vlog, from.generation, from.file);
	list.n -= first;
	memmove(list.file, list.file + first, list.n * sizeof(NvmVlogFile));
	from.generation = list.file[0].name.generation;
	from.file = list.file[0].name.number;
	vlog->checkpoint = &from;
	check_blocks(vlog, &list);
	vlog->checkpoint = NULL;
	(void) add_file(&list, &side, -1);
	nvm_vlog_reader_files(vlog, list.file, list.n);
}

/* ---- the files of the checkpoint ---- */

static void
add_data_files(const NvmVlog *vlog, FileList *list)
{
	const NvmLogCheckpoint *checkpoint = vlog->checkpoint;
	NvmLogName	name = {.pool = nvm_log_pool_of(vlog->uuid)};

	if (checkpoint == NULL)
		return;
	if (checkpoint->end > vlog->shared->end)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the log ends at position %llu, but checkpoint %llu has rows up to %llu",
						(unsigned long long) vlog->shared->end,
						(unsigned long long) checkpoint->number,
						(unsigned long long) checkpoint->end)));
	for (uint32 part = 1; part <= checkpoint->nfiles; part++)
	{
		NvmVlogFile *file = add_file(list, &name, -1);

		file->checkpoint = checkpoint->number;
		file->part = part;
		file->side = NVM_LOG_CHECKPOINT_DATA(checkpoint)[part - 1];
		(void) is_there(file);
	}
}

/*
 * See vlog_impl.h.
 */
int
nvm_vlog_find_data(NvmVlog *vlog)
{
	FileList	list = {0};

	add_data_files(vlog, &list);
	nvm_vlog_reader_files(vlog, list.file, list.n);
	return list.n;
}

/*
 * Those that the last stop has kept of UNLOGGED tables.
 */
static void
add_kept_files(const NvmVlog *vlog, FileList *list)
{
	NvmLogKept *kept = nvm_vlog_read_kept();

	nvm_vlog_tell_lost(kept);
	for (uint32 i = 0; kept != NULL && i < kept->nfiles; i++)
	{
		const NvmLogKeptFile *from = &NVM_LOG_KEPT_DATA(kept)[i];
		NvmLogName	name = {
			.pool = nvm_log_pool_of(vlog->uuid),
			.generation = from->incarnation
		};
		NvmVlogFile *file = add_file(list, &name, -1);

		file->checkpoint = from->creation;
		file->side = from->side;
		(void) is_there(file);
	}
}

/*
 * Let all processes know the checkpoint.
 */
static void
share_checkpoint(NvmVlog *vlog)
{
	const NvmLogCheckpoint *checkpoint = nvm_vlog_read_checkpoint();
	Size		size;

	nvm_vlog_note_usable(checkpoint);
	if (checkpoint == NULL)
		return;
	size = NVM_LOG_CHECKPOINT_LENGTH(checkpoint->nfiles, checkpoint->snapshot);
	vlog->shared->checkpoint = nvm_vlog_alloc(vlog, size);
	vlog->checkpoint = nvm_vlog_at(vlog, vlog->shared->checkpoint);
	memcpy(unconstify(NvmLogCheckpoint *, vlog->checkpoint), checkpoint, size);
}

/*
 * Bytes of records, and of data files, as far as is known before side files are.
 */
static uint64
bytes_to_read(const NvmVlog *vlog)
{
	NvmLogPosition begin = vlog->checkpoint != NULL ? vlog->checkpoint->begin : NVM_LOG_FIRST;
	uint64		bytes = vlog->shared->end - Min(begin, vlog->shared->end);

	for (int i = vlog->shared->nblock_files; i < vlog->shared->nfiles; i++)
		bytes += vlog->file[i].side.length;
	return bytes;
}

/*
 * See vlog_impl.h: find the files of blocks, and note up to where they are read.  A file
 * that is made meanwhile has nothing before that.  Then those of the checkpoint, and of
 * UNLOGGED tables.
 */
void
nvm_vlog_find_files(NvmVlog *vlog)
{
	FileList	list = {0};

	share_checkpoint(vlog);
	vlog->shared->end = nvm_log_persistent();
	list_blocks(vlog, &list);
	check_blocks(vlog, &list);
	add_data_files(vlog, &list);
	add_kept_files(vlog, &list);
	vlog->shared->nfiles = list.n;
	vlog->shared->file = nvm_vlog_alloc(vlog, list.n * sizeof(NvmVlogFile));
	memcpy(nvm_vlog_at(vlog, vlog->shared->file), list.file, list.n * sizeof(NvmVlogFile));
	vlog->file = nvm_vlog_at(vlog, vlog->shared->file);
	pg_atomic_write_u64(&nvm_log_progress()->files, (uint64) list.n);
	pg_atomic_write_u64(&nvm_log_progress()->bytes_total, bytes_to_read(vlog));
}
