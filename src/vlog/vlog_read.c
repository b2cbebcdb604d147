/*-------------------------------------------------------------------------
 *
 * vlog_read.c
 *	  The stream of records is read, from its beginning to what was persistent when
 *	  the rebuild began, file by file.
 *
 * Nothing may be missing.  The position at which a file goes on after another, or a
 * generation after another, stands in its header.  The blocks before must lead
 * just there.
 *
 * Here everything is verified: blocks, lengths of records, storages and rows.  Files
 * are read in any order, by any process.  So what an ASK record says is not known yet
 * when it is read: its rows are collected with the number that it gets here, and side
 * files are listed.  When all files are read, the first process puts ASK and OUTCOME
 * records into their order.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/nvm_log.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_calls.h"
#include "verify/nvm_verify_log.h"
#include "vlog/vlog_impl.h"

/* an ASK or OUTCOME record */
typedef struct Event
{
	NvmLogPosition position;
	uint64		xid;
	uint32		ask;			/* 1 + ASK record; 0: an OUTCOME */
	bool		committed;
} Event;

/* a record with a side file */
typedef struct SideRecord
{
	NvmLogSide	side;
	uint64		number;
	uint32		generation;
	uint32		ask;			/* 1 + ASK record, or 0 */
	bool		is_shown;
	bool		is_alone;
} SideRecord;

/*
 * The ASK record with this xid that has no OUTCOME yet.  An OUTCOME is about the
 * record before it.  An xid that a crash has lost may be handed out again, and ask
 * again, but not before the first one has its OUTCOME.
 */
typedef struct OpenAsk
{
	uint64		xid;
	int64		ask;			/* -1: none */
	char		status;
} OpenAsk;

static inline uint32
hash_xid(uint64 xid)
{
	xid *= UINT64CONST(0x9E3779B97F4A7C15);
	return (uint32) (xid >> 32);
}

#define SH_PREFIX		openasks
#define SH_ELEMENT_TYPE OpenAsk
#define SH_KEY_TYPE		uint64
#define SH_KEY			xid
#define SH_HASH_KEY(tb, key) hash_xid(key)
#define SH_EQUAL(tb, a, b) ((a) == (b))
#define SH_SCOPE		static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* ---- records ---- */

static uint32
note_ask(NvmVlog *vlog, const NvmLogRecord *record, NvmLogPosition position)
{
	Event	   *event = nvm_vlog_list_add(vlog, &vlog->output->event, sizeof(Event));

	event->position = position;
	event->xid = record->xid;
	event->ask = 1 + pg_atomic_fetch_add_u32(&vlog->shared->next_ask, 1);
	event->committed = false;
	return event->ask;
}

static void
note_outcome(NvmVlog *vlog, const NvmLogRecord *record, NvmLogPosition position)
{
	Event	   *event = nvm_vlog_list_add(vlog, &vlog->output->event, sizeof(Event));

	event->position = position;
	event->xid = record->xid;
	event->ask = 0;
	event->committed = (record->flags & NVM_LOG_COMMITTED) != 0;
}

static void
note_side(NvmVlog *vlog, const NvmLogRecord *record, uint32 generation, uint32 ask, bool is_shown)
{
	SideRecord *side = nvm_vlog_list_add(vlog, &vlog->output->side, sizeof(SideRecord));

	side->side = *NVM_LOG_RECORD_SIDE(record);
	side->number = record->number;
	side->generation = generation;
	side->ask = ask;
	side->is_shown = is_shown;
	side->is_alone = (record->flags & NVM_LOG_ALONE) != 0;
}

/*
 * Side files of records that come before the checkpoint are gone.  Behind the limit
 * there are rows of tables alone that are not to be rebuilt.
 */
static void
read_record(NvmVlog *vlog, int file, const NvmLogBlock *block, const NvmLogRecord *record)
{
	NvmLogPosition position = block->position - NVM_LOG_BLOCK_HEADER +
	(uint64) ((const char *) record - (const char *) block);
	NvmLogWalk	storages;
	NvmLogSection calls;
	uint32		ask = 0;
	bool		is_shown;
	const char *problem;

	if (vlog->checkpoint != NULL && position + record->length <= vlog->checkpoint->begin)
		return;
	if (record->kind == NVM_LOG_OUTCOME)
	{
		note_outcome(vlog, record, position);
		return;
	}
	nvm_log_walk_record(&storages, record);
	problem = nvm_log_body_problem(record);
	if (problem != NULL)
		nvm_vlog_damaged(&vlog->file[file], problem);
	if (position >= vlog->shared->limit)
		return;
	if (record->kind == NVM_LOG_ASK)
		ask = note_ask(vlog, record, position);
	is_shown = nvm_vlog_is_shown(vlog, record);
	if ((record->flags & NVM_LOG_SIDE) != 0)
	{
		note_side(vlog, record, block->generation, ask, is_shown);
		return;
	}
	if (unlikely((record->flags & NVM_LOG_ALONE) != 0) && !is_shown &&
		nvm_log_find_calls(&storages, &calls))
		nvm_vlog_note_alone(vlog, &calls, ask);
	nvm_vlog_collect_rows(vlog, file, &storages, record->number, block->generation, ask, is_shown);
}

static void
read_block(NvmVlog *vlog, int file, const NvmLogBlock *block)
{
	NvmLogWalk	records;
	const NvmLogRecord *record;

	if (vlog->checkpoint != NULL && block->position + block->length <= vlog->checkpoint->begin)
		return;
	pg_atomic_fetch_add_u64(&nvm_log_progress()->bytes, block->length);
	nvm_log_walk_block(&records, block);
	while (nvm_log_next_record(&records, &record))
		read_record(vlog, file, block, record);
	if (records.problem != NULL)
		nvm_vlog_damaged(&vlog->file[file], records.problem);
}

/* ---- files ---- */

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_range_is_missing(const NvmVlogFile *file, const NvmLogCursor *cursor)
{
	if (cursor->position > cursor->limit)
		nvm_vlog_damaged(file, psprintf("it begins at position %llu, but what comes behind it at %llu",
										(unsigned long long) cursor->position,
										(unsigned long long) cursor->limit));
	nvm_vlog_damaged(file, psprintf("positions %llu to %llu are missing, from byte %llu on (%s)",
									(unsigned long long) cursor->position,
									(unsigned long long) cursor->limit,
									(unsigned long long) cursor->offset,
									cursor->problem != NULL ? cursor->problem : "the file ends"));
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_read(NvmVlog *vlog, int file)
{
	NvmLogPosition limit = nvm_vlog_limit_of(vlog, file);
	const char *base = nvm_vlog_map(vlog, file);
	NvmLogCursor cursor;
	const NvmLogBlock *block;

	nvm_log_cursor_begin(&cursor, base, vlog->file[file].size, vlog->uuid, limit);
	while (nvm_log_next_block(&cursor, &block) == NVM_LOG_GOT_BLOCK)
	{
		read_block(vlog, file, block);
		nvm_vlog_pause();
	}
	if (cursor.position != limit)
		nvm_vlog_range_is_missing(&vlog->file[file], &cursor);
}

/* ---- when all are read ---- */

/*
 * The elements of a list of each process, behind each other.
 */
static void *
gather(NvmVlog *vlog, Size offset, Size size, uint64 *n)
{
	NvmVlogOutput *output = nvm_vlog_at(vlog, vlog->shared->output);
	char	   *all;
	char	   *at;

	*n = 0;
	for (int i = 0; i < vlog->shared->nprocesses; i++)
		*n += ((NvmVlogList *) ((char *) &output[i] + offset))->n;
	at = all = MemoryContextAllocHuge(vlog->context, (*n + 1) * size);
	for (int i = 0; i < vlog->shared->nprocesses; i++)
	{
		NvmVlogList *list = (NvmVlogList *) ((char *) &output[i] + offset);

		nvm_vlog_list_copy(vlog, list, size, at);
		at += list->n * size;
		nvm_vlog_list_free(vlog, list);
	}
	return all;
}

static int
compare_events(const void *a, const void *b)
{
	const Event *x = a;
	const Event *y = b;

	return x->position < y->position ? -1 : x->position > y->position;
}

/*
 * See vlog_impl.h.  An OUTCOME without ASK record was said before.
 */
void
nvm_vlog_gather_asks(NvmVlog *vlog)
{
	NvmVlogShared *shared = vlog->shared;
	openasks_hash *asks = openasks_create(vlog->context, 256, NULL);
	uint64		nevents;
	Event	   *event = gather(vlog, offsetof(NvmVlogOutput, event), sizeof(Event), &nevents);
	NvmVlogAsk *ask;

	qsort(event, nevents, sizeof(Event), compare_events);
	shared->nasks = pg_atomic_read_u32(&shared->next_ask);
	shared->ask = nvm_vlog_alloc(vlog, shared->nasks * sizeof(NvmVlogAsk));
	ask = nvm_vlog_at(vlog, shared->ask);
	for (uint64 i = 0; i < nevents; i++)
	{
		OpenAsk    *open;
		bool		found;

		if (event[i].ask != 0)
		{
			open = openasks_insert(asks, event[i].xid, &found);
			open->ask = (int64) event[i].ask - 1;
			ask[open->ask].xid = event[i].xid;
			ask[open->ask].position = event[i].position;
			continue;
		}
		open = openasks_lookup(asks, event[i].xid);
		if (open == NULL || open->ask < 0)
			continue;
		ask[open->ask].outcome = event[i].position;
		ask[open->ask].verdict = event[i].committed ? NVM_VLOG_COMMITTED : NVM_VLOG_ABORTED;
		open->ask = -1;
	}
	openasks_destroy(asks);
	pfree(event);
}

/*
 * See vlog_impl.h.  They come behind the other files.
 */
void
nvm_vlog_gather_sides(NvmVlog *vlog)
{
	NvmVlogShared *shared = vlog->shared;
	NvmVlogMemory old = shared->file;
	const NvmVlogAsk *ask = nvm_vlog_at(vlog, shared->ask);
	uint64		nsides;
	SideRecord *side = gather(vlog, offsetof(NvmVlogOutput, side), sizeof(SideRecord), &nsides);
	uint64		bytes = 0;
	NvmVlogFile *file;

	shared->file = nvm_vlog_alloc(vlog, (shared->nfiles + nsides) * sizeof(NvmVlogFile));
	file = nvm_vlog_at(vlog, shared->file);
	memcpy(file, nvm_vlog_at(vlog, old), shared->nfiles * sizeof(NvmVlogFile));
	for (uint64 i = 0; i < nsides; i++)
	{
		NvmVlogVerdict verdict = side[i].ask != 0 ? ask[side[i].ask - 1].verdict : NVM_VLOG_COMMITTED;
		NvmVlogFile *f = &file[shared->nfiles];

		if (verdict != NVM_VLOG_COMMITTED && verdict != NVM_VLOG_PREPARED)
			continue;
		f->name.pool = nvm_log_pool_of(vlog->uuid);
		f->name.generation = side[i].generation;
		f->name.transaction = side[i].number;
		f->side = side[i].side;
		f->number = side[i].number;
		f->generation = side[i].generation;
		f->ask = side[i].ask;
		f->is_shown = side[i].is_shown;
		f->is_alone = side[i].is_alone;
		bytes += f->side.length;
		shared->nfiles++;
	}
	vlog->file = file;
	nvm_vlog_free(vlog, old);
	pfree(side);
	pg_atomic_write_u64(&nvm_log_progress()->files, (uint64) shared->nfiles);
	pg_atomic_fetch_add_u64(&nvm_log_progress()->bytes_total, bytes);
}
