/*-------------------------------------------------------------------------
 *
 * vlog_read.c
 *	  The stream of records is read, from its beginning to what was persistent when
 *	  the rebuild began.
 *
 * Nothing may be missing.  The position at which a file goes on after another, or a
 * generation after another, stands in its header.  The blocks before must lead
 * just there.
 *
 * Here everything is verified: blocks, lengths of records, storages and rows.  What
 * comes later walks without asking again.  ASK records are listed, and which
 * of them have an OUTCOME.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/nvm_log.h"
#include "verify/nvm_verify_log.h"
#include "vlog/vlog_impl.h"

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

typedef struct Reading
{
	NvmVlog    *vlog;
	openasks_hash *asks;
} Reading;

/* ---- records ---- */

static void
note_ask(Reading *reading, const NvmLogRecord *record, NvmLogPosition position)
{
	NvmVlog    *vlog = reading->vlog;
	OpenAsk    *open;
	bool		found;

	vlog->ask = nvm_vlog_make_room(vlog, vlog->ask, vlog->nasks, &vlog->ask_room,
								   sizeof(NvmVlogAsk));
	open = openasks_insert(reading->asks, record->xid, &found);
	open->ask = (int64) vlog->nasks;
	memset(&vlog->ask[vlog->nasks], 0, sizeof(NvmVlogAsk));
	vlog->ask[vlog->nasks].xid = record->xid;
	vlog->ask[vlog->nasks].position = position;
	vlog->ask[vlog->nasks].verdict = NVM_VLOG_UNKNOWN;
	vlog->nasks++;
}

static void
note_outcome(Reading *reading, const NvmLogRecord *record)
{
	OpenAsk    *open = openasks_lookup(reading->asks, record->xid);

	if (open == NULL || open->ask < 0)
		return;					/* one that was said before */
	reading->vlog->ask[open->ask].verdict =
		(record->flags & NVM_LOG_COMMITTED) != 0 ? NVM_VLOG_COMMITTED : NVM_VLOG_ABORTED;
	open->ask = -1;
}

/*
 * See vlog_impl.h.  Side files of records that come before the checkpoint are gone.
 */
bool
nvm_vlog_next_record(const NvmVlog *vlog, const NvmLogBlock *block, NvmLogWalk *walk,
					 const NvmLogRecord **record)
{
	const char *first = (const char *) block + NVM_LOG_BLOCK_HEADER;

	while (nvm_log_next_record(walk, record))
	{
		if (vlog->checkpoint == NULL ||
			block->position + (uint64) (walk->at - first) > vlog->checkpoint->begin)
			return true;
	}
	return false;
}

static void
read_block(Reading *reading, const NvmVlogFile *file, const NvmLogBlock *block)
{
	NvmVlog    *vlog = reading->vlog;
	NvmLogWalk	records;
	NvmLogWalk	storages;
	const NvmLogRecord *record;

	if (vlog->checkpoint != NULL && block->position + block->length <= vlog->checkpoint->begin)
		return;
	vlog->block = nvm_vlog_make_room(vlog, vlog->block, vlog->nblocks, &vlog->block_room,
									 sizeof(NvmLogBlock *));
	vlog->block[vlog->nblocks++] = block;
	vlog->bytes += block->length;
	nvm_log_count(&nvm_log_progress()->bytes, block->length);

	nvm_log_walk_block(&records, block);
	while (nvm_vlog_next_record(vlog, block, &records, &record))
	{
		const char *problem;

		nvm_log_walk_record(&storages, record);
		problem = nvm_log_storages_problem(&storages);
		if (problem != NULL)
			nvm_vlog_damaged(file, problem);
		if (record->kind == NVM_LOG_ASK)
			note_ask(reading, record,
					 block->position + (uint64) ((const char *) record - (const char *) block) -
					 NVM_LOG_BLOCK_HEADER);
		else if (record->kind == NVM_LOG_OUTCOME)
			note_outcome(reading, record);
	}
	if (records.problem != NULL)
		nvm_vlog_damaged(file, records.problem);
}

/* ---- files ---- */

static void
range_is_missing(const NvmVlogFile *file, const NvmLogCursor *cursor)
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
 * Read a file up to a position.
 */
static void
read_file(Reading *reading, const NvmVlogFile *file, NvmLogPosition limit)
{
	NvmLogCursor cursor;
	const NvmLogBlock *block;

	nvm_log_cursor_begin(&cursor, file->base, file->size, reading->vlog->uuid, limit);
	while (nvm_log_next_block(&cursor, &block) == NVM_LOG_GOT_BLOCK)
	{
		read_block(reading, file, block);
		nvm_vlog_pause();
	}
	if (cursor.position != limit)
		range_is_missing(file, &cursor);
}

/*
 * The position up to which a file counts: where the next file, or generation, goes on.
 * The generation that is being written may have more by now.
 */
static NvmLogPosition
limit_of(const NvmVlog *vlog, int i)
{
	const NvmVlogFile *file = &vlog->file[i];
	const NvmLogFileHeader *next;

	if (i + 1 == vlog->nblock_files)
		return vlog->end;
	next = (const NvmLogFileHeader *) file[1].base;
	if (next->generation != file->name.generation)
		return next->start;
	return file->name.generation == vlog->generation ? Min(next->first, vlog->end) : next->first;
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_read(NvmVlog *vlog)
{
	Reading		reading = {
		.vlog = vlog,
		.asks = openasks_create(vlog->context, 256, NULL)
	};

	for (int i = 0; i < vlog->nblock_files; i++)
	{
		NvmLogPosition limit = limit_of(vlog, i);

		read_file(&reading, &vlog->file[i], limit);
		if (vlog->file[i].name.generation == vlog->generation && limit == vlog->end)
			break;
	}
	openasks_destroy(reading.asks);
}
