/*-------------------------------------------------------------------------
 *
 * vlog_walk.c
 *	  The rows of tables are written to data files: of a checkpoint, or, at a clean stop,
 *	  of UNLOGGED tables.
 *
 * Storage by storage, block by block.  storage_lock is held for some blocks at a time, and
 * each time it is asked whether the storage is still the one that was listed: one that has
 * gone needs no more rows.  Between two holds nothing is remembered but a number of a
 * block, so a new snapshot is taken for each, and no old one keeps dead rows.
 *
 * But storages of nvm_cmdlog (NVM_DIR_COMMANDS) come first, and all by one snapshot, in one
 * transaction: README.md, "Which version".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/xact.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "port/pg_crc32c.h"
#include "row/nvm_capture.h"
#include "storage/fd.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "verify/nvm_verify_log.h"
#include "vlog/nvm_vlog_stream.h"
#include "vlog/vlog_impl.h"
#include "wbl/nvm_wbl.h"

/* blocks under one hold of storage_lock */
#define BLOCKS_PER_HOLD		16
#define BYTES_PER_HOLD		(16 * 1024 * 1024)

/* a sleep of the throttle, at most, in milliseconds */
#define LONGEST_SLEEP		200

/* a storage to be walked */
typedef struct Listed
{
	uint32		dir;
	uint64		creation;
	bool		by_snapshot;
} Listed;

typedef struct StorageList
{
	Listed	   *storage;
	uint32		n;
	uint32		room;
	uint32		nby_snapshot;
	uint64		nblocks;
} StorageList;

/* the data file that is being written; sections come without an argument */
static NvmVlogWalk *current = NULL;
static uint64 kept_table;		/* creation id; 0: for a checkpoint */
static bool is_undecided;		/* that table has a version of a transaction
								 * that is prepared */
static MemoryContext walk_context;	/* of what lives as long as the walk */
static Snapshot moment;			/* of the current transaction, which walks
								 * some storages; or NULL */
static int	data_fd = -1;
static int	data_directory;
static uint64 data_length;
static uint32 data_crc;
static bool data_amid_row;		/* it ends with pieces whose row comes next */

/* ---- data files ---- */

static void
data_path(char *path)
{
	if (kept_table != 0)
		nvm_vlog_kept_path(path, data_directory, NvmPool->incarnation, kept_table);
	else
		nvm_vlog_rows_path(path, data_directory, current->number, current->nfiles + 1);
}

static void
data_failed(const char *what)
{
	char		path[MAXPGPATH];
	int			save_errno = errno;

	data_path(path);
	errno = save_errno;
	nvm_log_directory_failed(data_directory, what, path);
	ereport(ERROR,
			(errcode_for_file_access(),
			 errmsg("could not %s file \"%s\": %m", what, path)));
}

static void
data_write(const char *data, Size length, uint64 offset)
{
	while (length > 0)
	{
		ssize_t		n;

		errno = 0;
		n = pg_pwrite(data_fd, data, length, (off_t) offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
		{
			if (errno == 0)
				errno = ENOSPC;
			data_failed("write");
		}
		data += n;
		length -= n;
		offset += n;
	}
}

/*
 * Make the file in the next directory that takes it, if it has room for a whole one.
 */
static void
data_create(void)
{
	char		path[MAXPGPATH];
	uint32		turn = (uint32) current->number + current->nfiles;
	uint32		tried = 0;
	int			next = nvm_log_deal_file(turn, 0, (uint64) nvm_checkpoint_file_size * 1024 * 1024);

	for (;;)
	{
		int			save_errno;

		data_directory = next;
		tried |= (uint32) 1 << next;
		data_path(path);
		data_fd = BasicOpenFile(path, O_RDWR | O_CREAT | O_TRUNC | PG_BINARY);
		if (data_fd >= 0)
			break;
		save_errno = errno;
		next = nvm_log_deal_file(turn, tried, 0);
		errno = save_errno;
		if (next < 0)
			data_failed("create");
		nvm_log_directory_failed(data_directory, "create", path);
	}
	current->directories |= (uint32) 1 << data_directory;
}

static void
data_begin(void)
{
	union
	{
		NvmLogFileHeader header;
		char		page[NVM_LOG_PAGE];
	}			first;

	data_create();
	memset(&first, 0, sizeof(first));
	nvm_log_fill_side_header(&first.header);
	data_write(first.page, sizeof(first.page), 0);
	data_length = 0;
	data_amid_row = false;
	data_crc = nvm_log_side_crc_begin(NvmPool->uuid);
}

static void *
more_room(void *array, Size size)
{
	return array == NULL ? MemoryContextAlloc(walk_context, size) : repalloc(array, size);
}

/*
 * Sync the file, and note what is to be said of it.
 */
static void
data_end(void)
{
	uint64		room = current->file_room;
	int			fd = data_fd;

	if (data_fd < 0)
		return;
	if (kept_table != 0)
		NVM_FAILPOINT("keep-data-sync");
	else
		NVM_FAILPOINT("ckpt-data-sync");
	if (pg_fsync(data_fd) != 0)
		data_failed("sync");
	data_fd = -1;
	if (close(fd) != 0)
		data_failed("close");
	if (current->nfiles == room)
	{
		current->file_room = Max(room * 2, 16);
		/* a file may end within one of the walk's transactions */
		current->side = more_room(current->side, current->file_room * sizeof(NvmLogSide));
		current->table = more_room(current->table, current->file_room * sizeof(uint64));
	}
	current->table[current->nfiles] = kept_table;
	current->side[current->nfiles].length = data_length;
	current->side[current->nfiles].crc = nvm_log_side_crc_end(data_crc);
	current->side[current->nfiles].reserved = 0;
	current->nfiles++;
}

/*
 * For nvm_log_sections_begin: whole sections.
 */
static void
write_sections(const void *data, Size length)
{
	if (data_fd < 0)
		data_begin();
	if (kept_table != 0)
		NVM_FAILPOINT("keep-data-write");
	else
		NVM_FAILPOINT("ckpt-data-write");
	data_write(data, length, NVM_LOG_PAGE + data_length);
	/* so that the sync at the end has not all of it to do */
	pg_flush_data(data_fd, (off_t) (NVM_LOG_PAGE + data_length), (off_t) length);
	data_crc = nvm_log_side_crc_add(data_crc, data, length);
	data_length += length;
	data_amid_row = nvm_log_amid_row();
	current->bytes += length;
}

/* ---- storages ---- */

static bool
needs_rows(const NvmDirEntry *entry)
{
	if (current->number == 0)
		return nvm_vlog_is_unlogged(entry);
	return entry->kind == NVM_DIR_KIND_TABLE && entry->begin != NVM_STAMP_NONE &&
		(entry->flags & NVM_DIR_LOGGED) != 0;
}

/*
 * For nvm_dir_walk.
 */
static void
list_storage(uint32 id, NvmDirEntry *entry, void *arg)
{
	StorageList *list = (StorageList *) arg;

	if (!needs_rows(entry))
		return;
	if (list->n == list->room)
	{
		list->room = Max(list->room * 2, 64);
		list->storage = list->storage == NULL ?
			palloc(list->room * sizeof(Listed)) :
			repalloc(list->storage, list->room * sizeof(Listed));
	}
	list->storage[list->n].dir = id;
	list->storage[list->n].creation = entry->creation_id;
	list->storage[list->n].by_snapshot = (entry->flags & NVM_DIR_COMMANDS) != 0;
	list->nby_snapshot += list->storage[list->n].by_snapshot;
	list->n++;
	list->nblocks += pg_atomic_read_u32(&nvm_relstates[id].nblocks);
}

static void
list_storages(StorageList *list)
{
	list->n = list->nby_snapshot = 0;
	list->nblocks = 0;
	nvm_dir_walk(list_storage, list);
	current->blocks_total = list->nblocks;
}

/* ---- walking ---- */

/*
 * Sleep until what has been written may have been, and look at signals.  No lock is held,
 * and no snapshot but that of storages that are walked by one.
 */
static void
throttle(void)
{
	for (;;)
	{
		double		seconds = (GetCurrentTimestamp() - current->started) / 1e6;
		double		wanted = nvm_checkpoint_rate == 0 || nvm_vlog_checkpoint_is_urgent() ? 0 :
		current->bytes / (nvm_checkpoint_rate * 1048576.0);
		long		ms = wanted <= seconds ? 0 :
		(long) Min((wanted - seconds) * 1000 + 1, LONGEST_SLEEP);

		nvm_vlog_tell_progress(current);
		nvm_vlog_pause();
		nvm_vlog_require_may_checkpoint();
		if (ms == 0)
			return;
		if (!nvm_worker_sleep(ms))
			nvm_worker_end();
	}
}

/*
 * Some blocks of a storage, from *next on; fewer where large values make them long to
 * write, since others may wait for storage_lock.  False: it has no more, or has gone.
 */
static bool
walk_some(const Listed *storage, uint32 *next)
{
	NvmDirEntry *entry = nvm_dir_entry(storage->dir);
	uint64		enough = current->bytes +
	Min(BYTES_PER_HOLD, (uint64) nvm_checkpoint_file_size * 1024 * 1024);
	bool		more = false;

	LWLockAcquire(NvmWbl->storage_lock, LW_SHARED);
	if (needs_rows(entry) && entry->creation_id == storage->creation)
	{
		NvmRelState *state = nvm_rel_open(storage->dir);
		uint32		nblocks = pg_atomic_read_u32(&state->nblocks);

		nvm_log_storage(storage->dir, storage->creation);
		for (int i = 0; i < BLOCKS_PER_HOLD && *next < nblocks && current->bytes < enough; i++)
		{
			if (kept_table != 0 && pg_atomic_read_u32(&NvmWbl->ntwophase) > 0 &&
				nvm_capture_is_undecided(state, *next))
				is_undecided = true;
			current->rows += nvm_capture_block(state, *next, moment != NULL ? moment : SnapshotSelf);
			current->blocks++;
			(*next)++;
		}
		more = *next < nblocks && !is_undecided;
	}
	LWLockRelease(NvmWbl->storage_lock);
	return more;
}

static void
walk_storage(const Listed *storage)
{
	uint32		next = 0;
	bool		more = true;

	while (more)
	{
		if (moment != NULL)
			more = walk_some(storage, &next);
		else
		{
			StartTransactionCommand();
			PushActiveSnapshot(GetTransactionSnapshot());
			more = walk_some(storage, &next);
			PopActiveSnapshot();
			CommitTransactionCommand();
			MemoryContextSwitchTo(walk_context);
		}
		nvm_log_sections_flush(false);
		if (kept_table != 0)
			continue;
		if (!data_amid_row && data_length > (uint64) nvm_checkpoint_file_size * 1024 * 1024)
			data_end();
		throttle();
		NVM_FAILPOINT("ckpt-walk");
	}
}

/* ---- storages of one moment ---- */

/*
 * Walk what is walked by one snapshot.  Listed again behind it, so that no storage is missing
 * of whose rows it shows any.
 */
static void
walk_by_snapshot(StorageList *list)
{
	uint64		creations = nvm_dir_next_creation();

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	moment = GetActiveSnapshot();
	MemoryContextSwitchTo(walk_context);
	current->snapshot = nvm_vlog_form_snapshot(moment, creations);
	list_storages(list);
	for (uint32 i = 0; i < list->n; i++)
	{
		if (list->storage[i].by_snapshot)
			walk_storage(&list->storage[i]);
	}
	moment = NULL;
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(walk_context);
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_walk(NvmVlogWalk *walk)
{
	StorageList list = {0};

	walk_context = CurrentMemoryContext;
	current = walk;
	kept_table = 0;
	is_undecided = false;
	moment = NULL;
	nvm_log_sections_begin(write_sections);
	list_storages(&list);
	if (list.nby_snapshot > 0)
		walk_by_snapshot(&list);
	for (uint32 i = 0; i < list.n; i++)
	{
		if (!list.storage[i].by_snapshot)
			walk_storage(&list.storage[i]);
	}
	nvm_log_sections_flush(true);
	nvm_log_sections_end();
	data_end();
	nvm_vlog_tell_progress(walk);
}

/*
 * No record says what the transaction did, so the next run could not end it: the table is
 * left out.
 */
static void
leave_out(uint32 dir)
{
	const NvmDirEntry *entry = nvm_dir_entry(dir);
	char		path[MAXPGPATH];

	if (data_fd >= 0)
	{
		data_path(path);
		(void) close(data_fd);
		data_fd = -1;
		(void) unlink(path);
	}
	/* sections that were not written yet go, too */
	nvm_log_sections_end();
	nvm_log_sections_begin(write_sections);
	ereport(LOG,
			(errmsg("nvm: UNLOGGED table in memory with file number %llu of database %u will be empty after the next start",
					(unsigned long long) entry->relnumber, entry->database),
			 errdetail("A prepared transaction has changed it.")));
}

/*
 * Write the rows of a table, if it has any.
 */
static void
keep_table(const Listed *storage)
{
	kept_table = storage->creation;
	is_undecided = false;
	walk_storage(storage);
	if (is_undecided)
		leave_out(storage->dir);
	else
	{
		nvm_log_sections_flush(true);
		data_end();
	}
}

/*
 * See vlog_impl.h.  Nobody writes rows any more.  Those of a table that is closed are where
 * they were.
 */
void
nvm_vlog_walk_unlogged(NvmVlogWalk *walk)
{
	StorageList list = {0};

	walk_context = CurrentMemoryContext;
	current = walk;
	moment = NULL;
	list_storages(&list);
	nvm_log_sections_begin(write_sections);
	for (uint32 i = 0; i < list.n; i++)
	{
		if (nvm_log_is_open(list.storage[i].dir, list.storage[i].creation))
			keep_table(&list.storage[i]);
	}
	nvm_log_sections_end();
	kept_table = 0;
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_walk_forget(void)
{
	moment = NULL;
	if (data_fd >= 0)
		(void) close(data_fd);
	data_fd = -1;
	nvm_log_sections_end();
}
