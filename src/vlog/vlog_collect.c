/*-------------------------------------------------------------------------
 *
 * vlog_collect.c
 *	  Rows that records name are dealt to partitions.
 *
 * Each process adds what it comes by to lists of its own, one for each partition: a
 * partition has all rows of a block.  So no process waits for another one here, and
 * vlog_choose.c can look at one partition without the others.
 *
 * Files that belong to records or to the checkpoint may be large.  Their sections are
 * collected by the dozen, by any process.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"
#include "row/nvm_rebuild.h"
#include "verify/nvm_verify_block.h"
#include "verify/nvm_verify_calls.h"
#include "verify/nvm_verify_log.h"
#include "vlog/vlog_impl.h"

StaticAssertDecl(NVM_MAX_DIRS <= 1 << 20 && NVM_CELLS <= 256, "a place fits 60 bits");

/* bytes of a chunk, at least, but for the last one of its file */
#define CHUNK_SIZE		(UINT64CONST(4) * 1024 * 1024)

/* candidates of a partition from which on a process thins them out */
#define THIN_OUT		32768

/* a chunk of a file */
typedef struct ChunkTask
{
	int			file;
	NvmVlogChunk chunk;
} ChunkTask;

/* ---- tables ---- */

/*
 * Those that nvm_vlog_empty has closed, now or in an attempt before this one, and that have
 * not been opened since.  All of them are to be opened, also those that a death has emptied.
 */
static void
note_table(uint32 id, NvmDirEntry *entry, void *arg)
{
	NvmVlog    *vlog = (NvmVlog *) arg;

	if (entry->kind == NVM_DIR_KIND_TABLE && id <= vlog->shared->ndirs &&
		nvm_log_is_closed(id, entry->creation_id))
		((uint64 *) nvm_vlog_at(vlog, vlog->shared->creation))[id] = entry->creation_id;
}

/*
 * See vlog_impl.h: which tables are to be rebuilt.  A table that is made later has no rows
 * in these generations.
 */
void
nvm_vlog_note_tables(NvmVlog *vlog)
{
	vlog->shared->ndirs = *(volatile uint32 *) &NvmPool->ndirs;
	vlog->shared->creation = nvm_vlog_alloc(vlog, (vlog->shared->ndirs + 1) * sizeof(uint64));
	nvm_dir_walk(note_table, vlog);
}

/* ---- rows ---- */

static inline uint32
partition_of(uint32 dir, uint32 block)
{
	uint64		key = (uint64) dir << 32 | block / NVM_VLOG_GRANULE;

	key *= UINT64CONST(0x9E3779B97F4A7C15);
	return (uint32) (key >> 56);
}

StaticAssertDecl(NVM_VLOG_PARTITIONS == 256, "a partition is 8 bits of a hash");

/*
 * item: the row, or the first of its pieces.
 */
static void
add_candidate(NvmVlog *vlog, uint32 dir, const NvmLogRow *row, const NvmVlogCandidate *model,
			  uint64 item)
{
	uint32		partition = partition_of(dir, row->block);
	NvmVlogList *list = &vlog->output->candidate[partition];
	NvmVlogCandidate *candidate = nvm_vlog_list_add(vlog, list, sizeof(NvmVlogCandidate));

	*candidate = *model;
	candidate->place = NVM_VLOG_PLACE(dir, row->block, row->offset);
	candidate->item = item;
	if (list->n >= THIN_OUT && list->n >= vlog->output->limit[partition])
	{
		nvm_vlog_thin_out(vlog, (int) partition);
		vlog->output->limit[partition] = Max(THIN_OUT, list->n * 2);
	}
}

/*
 * See vlog_impl.h.  The walk stands before the first storage.  Pieces of a row may begin in
 * a section before its own.  Of a transaction that the snapshot of the checkpoint shows the
 * checkpoint has the rows of nvm_cmdlog tables, or newer ones, which may have no records.
 */
void
nvm_vlog_collect_rows(NvmVlog *vlog, int file, NvmLogWalk *storages, uint64 number,
					  uint32 generation, uint32 ask, bool is_shown)
{
	const char *base = vlog->base[file];
	NvmVlogCandidate model = {.number = number,.generation = generation,.ask = ask};
	NvmLogSection storage;
	const NvmLogRow *first = NULL;

	while (nvm_log_next_storage(storages, &storage))
	{
		const NvmLogRow *item;
		NvmLogWalk	items;

		/* the storage is gone, and its number may be another one's */
		if (storage.dir > vlog->shared->ndirs || storage.creation == 0 ||
			vlog->creation[storage.dir] != storage.creation)
			continue;
		if (is_shown && (nvm_dir_entry(storage.dir)->flags & NVM_DIR_COMMANDS) != 0)
			continue;
		nvm_log_walk_rows(&items, &storage);
		while (nvm_log_next_item(&items, &item))
		{
			const char *problem;

			/* what the row was before means nothing here */
			if (nvm_log_is_old(item))
				continue;
			if (first == NULL)
				first = item;
			if (nvm_log_is_piece(item))
				continue;
			problem = item->length == 0 ? NULL : nvm_rebuild_row_problem(first);
			if (problem != NULL)
				nvm_vlog_damaged(&vlog->file[file], problem);
			model.cells = item->length == 0 ? 0 : nvm_rebuild_row_cells(item);
			add_candidate(vlog, storage.dir, item, &model,
						  NVM_VLOG_ITEM(file, (const char *) first - base) |
						  (item->length == 0 ? NVM_VLOG_ITEM_GONE : 0) |
						  (first != item ? NVM_VLOG_ITEM_LARGE : 0));
			first = NULL;
		}
	}
}

/* ---- side files and data files ---- */

/*
 * May a chunk begin with this section?  Not if its first row may have pieces in a
 * section before it.  An old row there has nothing before it, and one before this section
 * belongs to pieces that begin it.
 */
static bool
may_begin_chunk(const NvmLogSection *storage)
{
	const NvmLogRow *first = (const NvmLogRow *) storage->rows;
	uint16		infomask;

	if (storage->length < NVM_LOG_ROW_HEADER || nvm_log_is_piece(first))
		return false;
	if (nvm_log_is_packed(first) || nvm_log_is_old(first))
		return true;
	if (first->length < 2 * sizeof(infomask) || storage->length < NVM_LOG_ROW_HEADER + (uint32) first->length)
		return first->length == 0;
	memcpy(&infomask, NVM_LOG_ROW_TUPLE(first) + sizeof(uint16), sizeof(infomask));
	return (infomask & NVM_TUPLE_HASEXTERNAL) == 0;
}

static void
add_chunk(NvmVlog *vlog, NvmVlogList *list, const char *base, const char *begin, const char *end)
{
	NvmVlogChunk *chunk = nvm_vlog_list_add(vlog, list, sizeof(NvmVlogChunk));

	chunk->begin = (uint64) (begin - base);
	chunk->end = (uint64) (end - base);
}

/*
 * The record of this side file is one of calls alone.
 */
static void
note_alone(NvmVlog *vlog, int file, const NvmLogWalk *storages)
{
	NvmLogWalk	sections = *storages;
	NvmLogSection calls;
	const char *problem = nvm_log_storages_problem(storages);

	if (problem == NULL)
		problem = nvm_log_alone_problem(&sections);
	if (problem != NULL)
		nvm_vlog_damaged(&vlog->file[file], problem);
	if (nvm_log_find_calls(storages, &calls))
		nvm_vlog_note_alone(vlog, &calls, vlog->file[file].ask);
}

/*
 * Verify a side file or data file, and list its chunks.
 */
void
nvm_vlog_check_side(NvmVlog *vlog, int file)
{
	NvmVlogFile *f = &vlog->file[file];
	NvmVlogList chunks = {0};
	NvmLogSection storage;
	NvmLogWalk	storages;
	const char *base;
	const char *begin;

	if (f->checkpoint == 0)
		nvm_vlog_find_side(f);
	base = nvm_vlog_map_side(vlog, file);
	nvm_log_walk_side(&storages, base, &f->side);
	if (f->is_alone && !f->is_shown)
		note_alone(vlog, file, &storages);
	begin = storages.at;
	while (nvm_log_next_storage(&storages, &storage))
	{
		if (storage.header - begin < (ptrdiff_t) CHUNK_SIZE || !may_begin_chunk(&storage))
			continue;
		add_chunk(vlog, &chunks, base, begin, storage.header);
		begin = storage.header;
	}
	if (storages.problem != NULL)
		nvm_vlog_damaged(f, storages.problem);
	add_chunk(vlog, &chunks, base, begin, storages.end);
	f->nchunks = (uint32) chunks.n;
	f->chunk = nvm_vlog_alloc(vlog, chunks.n * sizeof(NvmVlogChunk));
	nvm_vlog_list_copy(vlog, &chunks, sizeof(NvmVlogChunk), nvm_vlog_at(vlog, f->chunk));
	nvm_vlog_list_free(vlog, &chunks);
	pg_atomic_fetch_add_u64(&nvm_log_progress()->bytes, f->side.length);
}

/*
 * See vlog_impl.h: the chunks of all files.  Returns their number.
 */
uint64
nvm_vlog_list_chunks(NvmVlog *vlog)
{
	NvmVlogShared *shared = vlog->shared;
	uint64		n = 0;
	ChunkTask  *task;

	for (int i = shared->nblock_files; i < shared->nfiles; i++)
		n += vlog->file[i].nchunks;
	shared->chunk = nvm_vlog_alloc(vlog, n * sizeof(ChunkTask));
	task = nvm_vlog_at(vlog, shared->chunk);
	for (int i = shared->nblock_files; i < shared->nfiles; i++)
	{
		const NvmVlogChunk *chunk = nvm_vlog_at(vlog, vlog->file[i].chunk);

		for (uint32 j = 0; j < vlog->file[i].nchunks; j++)
		{
			task->file = i;
			task->chunk = chunk[j];
			task++;
		}
	}
	return n;
}

/*
 * See vlog_impl.h.  Rows of the checkpoint count as of number 0 and generation 0: they are
 * older than any record of the same row that is read.
 */
void
nvm_vlog_collect_chunk(NvmVlog *vlog, uint64 chunk)
{
	const ChunkTask *task = (ChunkTask *) nvm_vlog_at(vlog, vlog->shared->chunk) + chunk;
	NvmVlogFile *f = &vlog->file[task->file];
	const char *base = nvm_vlog_map(vlog, task->file);
	NvmLogWalk	storages = {base + task->chunk.begin, base + task->chunk.end, NULL};
	const char *problem = nvm_log_storages_problem(&storages);

	if (problem != NULL)
		nvm_vlog_damaged(f, problem);
	nvm_vlog_collect_rows(vlog, task->file, &storages, f->number, f->generation, f->ask, f->is_shown);
}
