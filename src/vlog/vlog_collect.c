/*-------------------------------------------------------------------------
 *
 * vlog_collect.c
 *	  Which record of a row counts: the one with the highest generation and
 *	  number.
 *
 * The order of the stream is not asked for.  So files could be collected in any
 * order, and by several processes.
 *
 * Memory: 32 bytes for each row that any record names, at a fill of a third to nine
 * tenths; then 16 bytes for each row that is there.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pool/nvm_pool.h"
#include "row/nvm_rebuild.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_log.h"
#include "vlog/vlog_impl.h"

StaticAssertDecl(NVM_MAX_DIRS <= 1 << 20 && NVM_CELLS <= 256, "a place fits 60 bits");

typedef struct Candidate
{
	uint64		place;
	const NvmLogRow *first;		/* the row, or the first piece of its values */
	uint64		number;			/* of the record's transaction */
	uint32		generation;
	char		status;
} Candidate;

static inline uint32
hash_place(uint64 place)
{
	place ^= place >> 33;
	place *= UINT64CONST(0xFF51AFD7ED558CCD);
	place ^= place >> 33;
	return (uint32) place;
}

#define SH_PREFIX		candidates
#define SH_ELEMENT_TYPE Candidate
#define SH_KEY_TYPE		uint64
#define SH_KEY			place
#define SH_HASH_KEY(tb, key) hash_place(key)
#define SH_EQUAL(tb, a, b) ((a) == (b))
#define SH_SCOPE		static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

#define ST_SORT			sort_pending
#define ST_ELEMENT_TYPE NvmVlogPending
#define ST_COMPARE(a, b) ((a)->place < (b)->place ? -1 : (a)->place > (b)->place)
#define ST_CHECK_FOR_INTERRUPTS
#define ST_SCOPE		static
#define ST_DEFINE
#include "lib/sort_template.h"

#define ST_SORT			sort_roots
#define ST_ELEMENT_TYPE NvmVlogRoot
#define ST_COMPARE(a, b) ((a)->place < (b)->place ? -1 : (a)->place > (b)->place)
#define ST_CHECK_FOR_INTERRUPTS
#define ST_SCOPE		static
#define ST_DEFINE
#include "lib/sort_template.h"

typedef struct Collecting
{
	NvmVlog    *vlog;
	candidates_hash *rows;
	uint64		nasks;			/* ASK records met */
	NvmVlogAsk *undecided;		/* the record is this one, or NULL */
} Collecting;

/* ---- tables ---- */

/*
 * UNLOGGED tables have no records, and come back without rows.
 */
static void
note_table(uint32 id, NvmDirEntry *entry, void *arg)
{
	NvmVlog    *vlog = (NvmVlog *) arg;

	if (entry->kind == NVM_DIR_KIND_TABLE && id <= vlog->ndirs &&
		(entry->flags & NVM_DIR_VOLATILE) != 0 &&
		(entry->flags & (NVM_DIR_LOGGED | NVM_DIR_UNLOGGED)) != 0)
		vlog->creation[id] = entry->creation_id;
}

/*
 * Which tables there are.  A table that is made later has no rows in these
 * generations.
 */
static void
note_tables(NvmVlog *vlog)
{
	vlog->ndirs = *(volatile uint32 *) &NvmPool->ndirs;
	vlog->creation = (uint64 *)
		MemoryContextAllocExtended(vlog->context, (vlog->ndirs + 1) * sizeof(uint64),
								   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	nvm_dir_walk(note_table, vlog);
}

/* ---- rows ---- */

/*
 * A row of a record that is undecided.
 */
static void
add_pending(Collecting *collecting, uint64 place, const NvmLogRow *first)
{
	NvmVlog    *vlog = collecting->vlog;
	NvmVlogPending *pending;

	vlog->pending = nvm_vlog_make_room(vlog, vlog->pending, vlog->npending, &vlog->pending_room,
									   sizeof(NvmVlogPending));
	pending = &vlog->pending[vlog->npending++];
	pending->place = place;
	pending->first = first;
	pending->ask = collecting->undecided;
}

/*
 * first: the first of its pieces, or the row itself.
 */
static void
collect_row(Collecting *collecting, uint32 dir, const NvmLogRecord *record, uint32 generation,
			const NvmLogRow *first, const NvmLogRow *row)
{
	Candidate  *c;
	bool		found;

	if (collecting->undecided != NULL)
	{
		add_pending(collecting, NVM_VLOG_PLACE(dir, row->block, row->offset), first);
		return;
	}
	c = candidates_insert(collecting->rows, NVM_VLOG_PLACE(dir, row->block, row->offset), &found);
	if (found && (c->generation > generation ||
				  (c->generation == generation && c->number > record->number)))
		return;
	c->first = first;
	c->number = record->number;
	c->generation = generation;
}

/*
 * The rows of a record, from a walk that stands before its first storage.  Pieces of a
 * row may begin in a section before its own.
 */
static void
collect_storages(Collecting *collecting, NvmLogWalk *storages, const NvmLogRecord *record,
				 uint32 generation)
{
	NvmVlog    *vlog = collecting->vlog;
	NvmLogSection storage;
	const NvmLogRow *first = NULL;

	while (nvm_log_next_storage(storages, &storage))
	{
		const NvmLogRow *item;
		NvmLogWalk	items;

		/* the storage is gone, and its number may be another one's */
		if (storage.dir > vlog->ndirs || vlog->creation[storage.dir] != storage.creation ||
			storage.creation == 0)
			continue;
		nvm_log_walk_rows(&items, &storage);
		while (nvm_log_next_item(&items, &item))
		{
			const char *problem;

			if (first == NULL)
				first = item;
			if (nvm_log_is_piece(item))
				continue;
			problem = item->length == 0 ? NULL : nvm_rebuild_row_problem(first);
			if (problem != NULL)
				nvm_vlog_damaged(nvm_vlog_file_of(vlog, item), problem);
			collect_row(collecting, storage.dir, record, generation, first, item);
			first = NULL;
		}
	}
}

static void
collect_side(Collecting *collecting, const NvmLogRecord *record, uint32 generation)
{
	NvmVlog    *vlog = collecting->vlog;
	const NvmLogSide *side = NVM_LOG_RECORD_SIDE(record);
	const NvmVlogFile *file = nvm_vlog_map_side(vlog, generation, record->number);
	NvmLogWalk	storages;
	const char *problem;

	problem = nvm_log_side_problem(file->base, file->size, side, vlog->uuid, &file->name);
	if (problem != NULL)
		nvm_vlog_damaged(file, problem);
	nvm_log_walk_side(&storages, file->base, side);
	problem = nvm_log_storages_problem(&storages);
	if (problem != NULL)
		nvm_vlog_damaged(file, problem);
	vlog->bytes += side->length;
	collect_storages(collecting, &storages, record, generation);
}

/*
 * The rows of the checkpoint are older than any record of the same row that is
 * read.
 */
static void
collect_checkpoint(Collecting *collecting)
{
	static const NvmLogRecord oldest = {0};
	NvmVlog    *vlog = collecting->vlog;
	uint32		nfiles = vlog->checkpoint != NULL ? vlog->checkpoint->nfiles : 0;

	for (uint32 i = 0; i < nfiles; i++)
	{
		const NvmVlogFile *file = &vlog->file[vlog->first_data + (int) i];
		const NvmLogSide *side = NVM_LOG_CHECKPOINT_DATA(vlog->checkpoint) + i;
		NvmLogWalk	storages;
		const char *problem;

		nvm_log_walk_side(&storages, file->base, side);
		problem = nvm_log_storages_problem(&storages);
		if (problem != NULL)
			nvm_vlog_damaged(file, problem);
		vlog->bytes += side->length;
		collect_storages(collecting, &storages, &oldest, 0);
		nvm_vlog_pause();
	}
}

static void
collect_block(Collecting *collecting, const NvmLogBlock *block)
{
	NvmLogWalk	records;
	const NvmLogRecord *record;

	nvm_log_walk_block(&records, block);
	while (nvm_vlog_next_record(collecting->vlog, block, &records, &record))
	{
		NvmLogWalk	storages;

		if (record->kind == NVM_LOG_OUTCOME)
			continue;
		collecting->undecided = NULL;
		if (record->kind == NVM_LOG_ASK)
		{
			NvmVlogAsk *ask = &collecting->vlog->ask[collecting->nasks++];

			if (ask->verdict == NVM_VLOG_PREPARED)
				collecting->undecided = ask;
			else if (ask->verdict != NVM_VLOG_COMMITTED)
				continue;
		}
		if ((record->flags & NVM_LOG_SIDE) != 0)
		{
			collect_side(collecting, record, block->generation);
			continue;
		}
		nvm_log_walk_record(&storages, record);
		collect_storages(collecting, &storages, record, block->generation);
	}
}

/*
 * From the table of candidates to a list of the rows that are there, by place.
 */
static void
list_roots(NvmVlog *vlog, candidates_hash *rows)
{
	candidates_iterator it;
	Candidate  *c;

	vlog->root = (NvmVlogRoot *)
		MemoryContextAllocHuge(vlog->context, (rows->members + 1) * sizeof(NvmVlogRoot));
	candidates_start_iterate(rows, &it);
	while ((c = candidates_iterate(rows, &it)) != NULL)
	{
		if (c->first->length == 0)
			continue;
		vlog->root[vlog->nroots].place = c->place;
		vlog->root[vlog->nroots].first = c->first;
		vlog->nroots++;
	}
	candidates_destroy(rows);
	sort_roots(vlog->root, vlog->nroots);
}

/*
 * What is undecided, by place.  A record may have a row twice, the same both times.  A
 * prepared transaction holds the rows that it has changed.  So no other record about
 * them is newer, and no other transaction has one that is undecided.  A row that it has
 * deleted is there.
 */
static void
list_pending(NvmVlog *vlog)
{
	uint64		n = 0;
	uint64		root = 0;

	if (vlog->npending == 0)
		return;
	sort_pending(vlog->pending, vlog->npending);
	for (uint64 i = 0; i < vlog->npending; i++)
	{
		NvmVlogPending *p = &vlog->pending[i];
		bool		there;

		if (n > 0 && vlog->pending[n - 1].place == p->place)
			continue;
		while (root < vlog->nroots && vlog->root[root].place < p->place)
			root++;
		there = root < vlog->nroots && vlog->root[root].place == p->place;
		if (!there && nvm_log_pieces_row(p->first)->length == 0)
			continue;
		if (!there)
			p->ask->by.makes_rows = true;
		vlog->pending[n++] = *p;
	}
	vlog->npending = n;
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_collect(NvmVlog *vlog)
{
	Collecting	collecting = {
		.vlog = vlog,
		.rows = candidates_create(vlog->context, 1024, NULL)
	};

	note_tables(vlog);
	collect_checkpoint(&collecting);
	for (uint64 i = 0; i < vlog->nblocks; i++)
	{
		collect_block(&collecting, vlog->block[i]);
		nvm_vlog_pause();
	}
	list_roots(vlog, collecting.rows);
	list_pending(vlog);
}
