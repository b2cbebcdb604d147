/*-------------------------------------------------------------------------
 *
 * vlog_retire.c
 *	  Files that nobody needs any more go.
 *
 * Of a file of the log that goes, the side files that its records name go first.  So as
 * long as one is left, something names it.  What a crash leaves half-done is done again by
 * the next checkpoint, and side files by the next recovery.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "log/nvm_log.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/fd.h"
#include "verify/nvm_verify_log.h"
#include "vlog/vlog_impl.h"

/* what comes before this position has no side files any more, as this process knows */
static NvmLogPosition retired_to = 0;

static char *
path_in(int directory, const char *name)
{
	return psprintf("%s/%s", nvm_log_directory(directory), name);
}

/*
 * What is to be said of a file that cannot be removed, or read, or of a directory.  A
 * checkpoint that would not end for one of several directories would keep the log in the
 * others.
 */
static int
level_of_failure(void)
{
	return nvm_log_ndirectories() == 1 ? ERROR : LOG;
}

/*
 * Remove a file.  Returns whether it was there.
 */
static bool
remove_file(const char *path)
{
	if (unlink(path) == 0)
		return true;
	if (errno != ENOENT)
		ereport(level_of_failure(),
				(errcode_for_file_access(),
				 errmsg("could not remove file \"%s\": %m", path)));
	return false;
}

/* ---- checkpoints ---- */

/*
 * See vlog_impl.h.
 */
uint64
nvm_vlog_highest_checkpoint(void)
{
	NvmLogScan	scan;
	NvmLogRowsName name;
	const char *entry;
	uint64		highest = 0;

	nvm_log_scan_begin(&scan, level_of_failure());
	while ((entry = nvm_log_scan_next(&scan)) != NULL)
	{
		if (nvm_log_parse_rows_name(entry, &name) &&
			name.pool == nvm_log_pool_of(NvmPool->uuid))
			highest = Max(highest, name.checkpoint);
	}
	return highest;
}

static bool
is_pinned(const NvmVlogNeeded *pinned, int n, uint64 checkpoint)
{
	while (n > 0)
	{
		if (pinned[--n].number == checkpoint)
			return true;
	}
	return false;
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_retire_rows(uint64 keep, NvmVlogRetired *retired)
{
	NvmVlogNeeded pinned[NVM_VLOG_PINS];
	int			npinned = nvm_vlog_pinned(pinned);
	NvmLogScan	scan;
	NvmLogRowsName name;
	const char *entry;

	nvm_log_scan_begin(&scan, level_of_failure());
	while ((entry = nvm_log_scan_next(&scan)) != NULL)
	{
		if (!nvm_log_parse_rows_name(entry, &name) ||
			name.pool != nvm_log_pool_of(NvmPool->uuid) || name.checkpoint == keep ||
			is_pinned(pinned, npinned, name.checkpoint))
			continue;
		NVM_FAILPOINT("ckpt-remove-rows");
		if (remove_file(path_in(scan.directory, entry)))
			retired->nrows++;
	}
}

/* ---- the log ---- */

/*
 * The side file of a record in this generation.  A start may have carried the record
 * over: then the file has an older one.  If it is gone already an older file of that
 * number may be taken for it.  That one is not needed either: whatever names it
 * comes before.
 */
static void
remove_side(uint32 generation, uint64 number, NvmVlogRetired *retired)
{
	for (; generation > 0; generation--)
	{
		char	   *name = psprintf(NVM_LOG_SIDE_NAME, nvm_log_pool_of(NvmPool->uuid),
									generation, (unsigned long long) number);
		int			directory = nvm_log_find(name);

		if (directory >= 0 && remove_file(path_in(directory, name)))
		{
			NVM_FAILPOINT("ckpt-removed-side");
			retired->nsides++;
			return;
		}
	}
}

/*
 * Of the records of a block that end up to `limit`, but not those that were seen by
 * the checkpoint before this one.
 */
static void
remove_sides_of(const NvmLogBlock *block, NvmLogPosition limit, NvmVlogRetired *retired)
{
	NvmLogWalk	records;
	const NvmLogRecord *record;

	nvm_log_walk_block(&records, block);
	while (nvm_log_next_record(&records, &record))
	{
		NvmLogPosition end = block->position +
		(uint64) (records.at - ((const char *) block + NVM_LOG_BLOCK_HEADER));

		if (end > retired_to && end <= limit &&
			(record->kind == NVM_LOG_COMMIT || record->kind == NVM_LOG_ASK) &&
			(record->flags & NVM_LOG_SIDE) != 0)
			remove_side(block->generation, record->number, retired);
	}
}

/*
 * The first page of a file, which is its header; NULL if it is none.  In memory of the
 * current context.
 */
static NvmLogFileHeader *
read_header(const char *path, const NvmLogName *name)
{
	NvmLogFileHeader *header = palloc0(sizeof(*header));
	int			fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	ssize_t		n = fd >= 0 ? pg_pread(fd, header, sizeof(*header), 0) : -1;

	if (fd >= 0)
		(void) CloseTransientFile(fd);
	if (n != (ssize_t) sizeof(*header) ||
		nvm_log_file_header_problem(header, 0, NvmPool->uuid, name) != NULL)
		return NULL;
	return header;
}

/*
 * All of a file of blocks, in memory of the current context.  Zeroes where it cannot be
 * read, of several directories: what it names stays until the next recovery.
 */
static char *
read_blocks(const char *path, const NvmLogFileHeader *header)
{
	char	   *bytes = palloc0(header->size);
	int			fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);

	if (fd < 0 || pg_pread(fd, bytes, header->size, 0) != (ssize_t) header->size)
		ereport(level_of_failure(),
				(errcode_for_file_access(),
				 errmsg("could not read log file \"%s\": %m", path)));
	if (fd >= 0)
		(void) CloseTransientFile(fd);
	return bytes;
}

/*
 * The side files that the blocks of a file name, up to `limit`: what lies behind that
 * does not count, and may have been carried over.  A file that is not what its name says
 * has become another one, whose old name a crash has brought back.
 */
static void
remove_sides_in(const char *path, const NvmLogName *name, NvmLogPosition limit,
				NvmVlogRetired *retired)
{
	const NvmLogFileHeader *header = read_header(path, name);
	NvmLogCursor cursor;
	const NvmLogBlock *block;
	char	   *bytes;

	if (limit <= retired_to || header == NULL || header->size > NVM_LOG_FILE_SIZE)
		return;
	bytes = read_blocks(path, header);
	nvm_log_cursor_begin(&cursor, bytes, header->size, NvmPool->uuid, 0);
	while (nvm_log_next_block(&cursor, &block) == NVM_LOG_GOT_BLOCK && block->position < limit)
		remove_sides_of(block, limit, retired);
	pfree(bytes);
}

/* a file of blocks */
typedef struct LogFile
{
	NvmLogName	name;
	int			directory;
} LogFile;

typedef struct LogNames
{
	LogFile    *file;
	uint32		n;
	uint32		room;
} LogNames;

static int
compare_names(const void *a, const void *b)
{
	const NvmLogName *x = &((const LogFile *) a)->name;
	const NvmLogName *y = &((const LogFile *) b)->name;

	if (x->generation != y->generation)
		return x->generation < y->generation ? -1 : 1;
	return x->number < y->number ? -1 : x->number > y->number;
}

/*
 * Files of blocks up to this one, in order.
 */
static void
list_logs(uint32 generation, uint32 number, LogNames *logs)
{
	NvmLogScan	scan;
	NvmLogName	name;
	const char *entry;

	logs->room = 64;
	logs->file = palloc(logs->room * sizeof(LogFile));
	nvm_log_scan_begin(&scan, level_of_failure());
	while ((entry = nvm_log_scan_next(&scan)) != NULL)
	{
		if (!nvm_log_parse_name(entry, &name) || name.number == 0 ||
			name.pool != nvm_log_pool_of(NvmPool->uuid) ||
			name.generation > generation ||
			(name.generation == generation && name.number > number))
			continue;
		if (logs->n == logs->room)
		{
			logs->room *= 2;
			logs->file = repalloc(logs->file, logs->room * sizeof(LogFile));
		}
		logs->file[logs->n].name = name;
		logs->file[logs->n++].directory = scan.directory;
	}
	qsort(logs->file, logs->n, sizeof(LogFile), compare_names);
}

static char *
log_path(const LogFile *file)
{
	const NvmLogName *name = &file->name;

	return path_in(file->directory,
				   psprintf(NVM_LOG_NAME, name->pool, name->generation, name->number));
}

/*
 * Up to where a file counts: the next one that is what its name says tells it.
 */
static NvmLogPosition
limit_of(const LogNames *logs, uint32 i)
{
	for (uint32 next = i + 1; next < logs->n; next++)
	{
		const NvmLogFileHeader *h = read_header(log_path(&logs->file[next]), &logs->file[next].name);

		if (h != NULL)
			return h->generation == logs->file[i].name.generation ? h->first : h->start;
	}
	return 0;
}

/*
 * Do the blocks of a file go up to this position?
 */
static bool
leads_to(const char *path, const NvmLogFileHeader *header, NvmLogPosition position)
{
	char	   *bytes;
	NvmLogCursor cursor;
	const NvmLogBlock *block;

	if (header->size > NVM_LOG_FILE_SIZE)
		return false;
	bytes = read_blocks(path, header);
	nvm_log_cursor_begin(&cursor, bytes, header->size, NvmPool->uuid, 0);
	while (cursor.position < position && nvm_log_next_block(&cursor, &block) == NVM_LOG_GOT_BLOCK)
		;
	pfree(bytes);
	return cursor.position >= position;
}

/*
 * Is there no file between this one and the next, which begins at `first`?  One may have
 * been removed under the server.  Of several directories a number may belong to a file
 * that had nothing (log/README.md, "One name, one directory").  How many files a
 * generation has had is not known here.
 */
static bool
is_followed(const LogFile *file, const NvmLogFileHeader *header, NvmLogPosition first)
{
	const NvmLogName *name = &file->name;
	const NvmLogName *after = &(file + 1)->name;

	if (after->number == 1)
		return name->generation == after->generation - 1;
	return name->generation == after->generation &&
		(name->number == after->number - 1 || leads_to(log_path(file), header, first));
}

/*
 * See vlog_impl.h.  The question of a prepared transaction may be of an earlier
 * generation.  Each file begins where the ones before it end, or are cut.
 */
void
nvm_vlog_find_begin(NvmLogBegin *begin)
{
	LogNames	logs = {0};
	NvmLogPosition first = 0;	/* of the file behind */

	list_logs(begin->generation, begin->file, &logs);
	for (uint32 i = logs.n; i > 0; i--)
	{
		const LogFile *file = &logs.file[i - 1];
		const NvmLogName *name = &file->name;
		const NvmLogFileHeader *h = read_header(log_path(file), name);

		if (h == NULL ||
			(i < logs.n ? !is_followed(file, h, first) :
			 name->generation != begin->generation || name->number != begin->file))
			break;
		first = h->first;
		if (h->first <= begin->begin)
		{
			begin->generation = name->generation;
			begin->file = name->number;
			return;
		}
	}
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("the file of the log that has position %llu is missing or damaged",
					(unsigned long long) begin->begin)));
}

/*
 * See vlog_impl.h.  The first ones go first.  So what is left has no hole.  The file
 * that the checkpoint begins in stays, but it may name any number of side files.
 */
void
nvm_vlog_retire_log(const NvmVlogNeeded *needed, NvmVlogRetired *retired)
{
	LogNames	logs = {0};

	/* the file may be gone, if it had nothing and the log went on elsewhere */
	list_logs(needed->generation, PG_UINT32_MAX, &logs);
	for (uint32 i = 0; i < logs.n; i++)
	{
		const NvmLogName *name = &logs.file[i].name;
		NvmLogPosition limit;
		char	   *path = log_path(&logs.file[i]);

		if (name->generation == needed->generation && name->number > needed->file)
			break;

		if (name->generation == needed->generation && name->number == needed->file)
		{
			remove_sides_in(path, name, needed->begin, retired);
			break;
		}
		limit = limit_of(&logs, i);
		if (limit == 0)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("file %u of generation %u of the log, with which it goes on behind checkpoint %llu, is missing or damaged",
							needed->file, needed->generation,
							(unsigned long long) needed->number)));
		remove_sides_in(path, name, limit, retired);
		NVM_FAILPOINT("ckpt-remove-log");
		nvm_log_recycle(logs.file[i].directory, path);
		retired->nlogs++;
		nvm_vlog_pause();
	}
	retired_to = needed->begin;
	NVM_FAILPOINT("ckpt-removed");
}

/*
 * See vlog_impl.h.  One that begins behind the start has seen to all that was named before
 * it.  What is left was of transactions that have died with their processes.  Once a life
 * of the worker is enough.
 */
void
nvm_vlog_retire_orphans(const NvmVlogNeeded *needed, NvmVlogRetired *retired)
{
	static bool done = false;
	NvmLogScan	scan;
	NvmLogName	name;
	const char *entry;

	if (done || needed->begin < nvm_log_start_position())
		return;
	nvm_log_scan_begin(&scan, level_of_failure());
	while ((entry = nvm_log_scan_next(&scan)) != NULL)
	{
		if (!nvm_log_parse_name(entry, &name) || name.number != 0 ||
			name.pool != nvm_log_pool_of(NvmPool->uuid) ||
			!nvm_log_side_is_old(name.generation, name.transaction))
			continue;
		NVM_FAILPOINT("ckpt-remove-orphan");
		if (remove_file(path_in(scan.directory, entry)))
			retired->nsides++;
	}
	done = true;
}

/* ---- after a recovery ---- */

static int
compare_sides(const void *a, const void *b)
{
	const NvmLogName *x = (const NvmLogName *) a;
	const NvmLogName *y = (const NvmLogName *) b;

	if (x->generation != y->generation)
		return x->generation < y->generation ? -1 : 1;
	return x->transaction < y->transaction ? -1 : x->transaction > y->transaction;
}

/*
 * Is that a file of the log that an earlier generation was making when it died?
 */
static bool
is_unfinished(const char *text, const NvmVlog *vlog)
{
	const char *end = strstr(text, ".tmp");
	char	   *final;
	NvmLogName	name;

	if (end == NULL || end[4] != '\0')
		return false;
	final = pnstrdup(text, end - text);
	return nvm_log_parse_name(final, &name) && name.number != 0 &&
		name.pool == nvm_log_pool_of(vlog->uuid) && name.generation < vlog->shared->generation;
}

static void
remove_left(int directory, const char *name)
{
	char	   *path = path_in(directory, name);

	if (unlink(path) != 0 && errno != ENOENT)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not remove file \"%s\": %m", path)));
	pfree(path);
}

/*
 * See vlog_impl.h.  Transactions of the current generation may be writing some.  What
 * goes wrong here is told, and no more: the region is whole.
 */
void
nvm_vlog_retire_sides(const NvmVlog *vlog)
{
	uint32		nsides = 0;
	NvmLogName *side = MemoryContextAllocHuge(CurrentMemoryContext,
											  (vlog->shared->nfiles + 1) * sizeof(NvmLogName));
	NvmLogScan	scan;
	NvmLogName	name;
	const char *entry;

	for (int i = vlog->shared->nblock_files; i < vlog->shared->nfiles; i++)
	{
		if (vlog->file[i].checkpoint == 0)
			side[nsides++] = vlog->file[i].name;
	}
	qsort(side, nsides, sizeof(NvmLogName), compare_sides);
	nvm_log_scan_begin(&scan, LOG);
	while ((entry = nvm_log_scan_next(&scan)) != NULL)
	{
		if (is_unfinished(entry, vlog))
		{
			remove_left(scan.directory, entry);
			continue;
		}
		if (!nvm_log_parse_name(entry, &name) || name.number != 0 ||
			name.pool != nvm_log_pool_of(vlog->uuid) || name.generation >= vlog->shared->generation ||
			bsearch(&name, side, nsides, sizeof(NvmLogName), compare_sides) != NULL)
			continue;
		NVM_FAILPOINT("rebuild-remove-side");
		remove_left(scan.directory, entry);
	}
	pfree(side);
}
