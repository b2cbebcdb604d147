/*-------------------------------------------------------------------------
 *
 * vlog_stream.c
 *	  The records of the log are read one by one, while the server runs.
 *
 * As vlog_read.c does, but in the order of their places, and by one process.  One file of
 * blocks is mapped at a time, and one side file.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/nvm_log.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_calls.h"
#include "verify/nvm_verify_log.h"
#include "vlog/nvm_vlog_stream.h"
#include "vlog/vlog_impl.h"

struct NvmVlogStream
{
	NvmVlog    *vlog;			/* its files are those of blocks, and one side
								 * file behind them */
	NvmLogPosition begin;
	NvmLogPosition end;
	int			file;			/* that is read */
	int			nfiles;			/* to be read */
	bool		is_open;		/* it is mapped, and `cursor` stands in it */
	NvmLogCursor cursor;
	const NvmLogBlock *block;	/* that is read; NULL: none */
	NvmLogWalk	records;
};

/*
 * See nvm_vlog_stream.h.
 */
NvmVlogStream *
nvm_vlog_stream_open(NvmLogPosition begin, NvmLogPosition end)
{
	NvmVlog    *vlog;
	MemoryContext caller;
	NvmVlogStream *stream;

	if (!nvm_log_has_begun() || end > nvm_log_persistent() || begin < NVM_LOG_FIRST)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the log has no positions from %llu to %llu", (unsigned long long) begin,
						(unsigned long long) end)));
	vlog = nvm_vlog_reader_begin("stream");
	caller = MemoryContextSwitchTo(vlog->context);
	stream = palloc0(sizeof(NvmVlogStream));
	stream->vlog = vlog;
	stream->begin = begin;
	stream->end = end;
	if (begin < end)
	{
		nvm_vlog_find_blocks(vlog, begin);
		stream->nfiles = nvm_vlog_files_to_read(vlog);
	}
	MemoryContextSwitchTo(caller);
	return stream;
}

void
nvm_vlog_stream_close(NvmVlogStream *stream)
{
	nvm_vlog_reader_end(stream->vlog);
}

/* ---- blocks ---- */

static void
open_file(NvmVlogStream *stream)
{
	NvmVlog    *vlog = stream->vlog;
	const char *base = nvm_vlog_map(vlog, stream->file);

	nvm_log_cursor_begin(&stream->cursor, base, vlog->file[stream->file].size, vlog->uuid,
						 nvm_vlog_limit_of(vlog, stream->file));
	stream->is_open = true;
}

/*
 * The file has been read, up to where it counts.
 */
static void
close_file(NvmVlogStream *stream)
{
	if (stream->cursor.position != stream->cursor.limit)
		nvm_vlog_range_is_missing(&stream->vlog->file[stream->file], &stream->cursor);
	nvm_vlog_unmap_one(stream->vlog, stream->file++);
	stream->is_open = false;
}

/*
 * Go on to the next block that has something.  False at the end.
 */
static bool
next_block(NvmVlogStream *stream)
{
	while (stream->file < stream->nfiles)
	{
		CHECK_FOR_INTERRUPTS();
		if (!stream->is_open)
			open_file(stream);
		if (nvm_log_next_block(&stream->cursor, &stream->block) != NVM_LOG_GOT_BLOCK)
			close_file(stream);
		else if (stream->block->position >= stream->end)
			break;
		else if (stream->block->position + stream->block->length > stream->begin)
		{
			nvm_log_walk_block(&stream->records, stream->block);
			return true;
		}
	}
	stream->block = NULL;
	return false;
}

/* ---- records ---- */

/*
 * The next record that ends behind `begin`; NULL at the end.
 */
static const NvmLogRecord *
next_record(NvmVlogStream *stream, NvmLogPosition *end)
{
	const NvmLogRecord *record;

	while (stream->block != NULL || next_block(stream))
	{
		while (nvm_log_next_record(&stream->records, &record))
		{
			*end = stream->block->position +
				(uint64) (stream->records.at - ((const char *) stream->block + NVM_LOG_BLOCK_HEADER));
			if (*end > stream->end)
				break;
			if (*end > stream->begin)
				return record;
		}
		if (stream->records.problem != NULL)
			nvm_vlog_damaged(&stream->vlog->file[stream->file], stream->records.problem);
		stream->block = NULL;
	}
	return NULL;
}

/*
 * See nvm_vlog_stream.h.
 */
bool
nvm_vlog_stream_next(NvmVlogStream *stream, NvmVlogStreamRecord *record)
{
	NvmVlog    *vlog = stream->vlog;
	MemoryContext caller = MemoryContextSwitchTo(vlog->context);
	const NvmLogRecord *r;
	const char *problem = NULL;

	if (stream->nfiles > 0)
		nvm_vlog_unmap_one(vlog, vlog->nbases - 1);
	memset(record, 0, sizeof(*record));
	r = next_record(stream, &record->end);
	if (r != NULL && r->kind != NVM_LOG_OUTCOME)
		problem = nvm_log_body_problem(r);
	if (problem != NULL)
		nvm_vlog_damaged(&vlog->file[stream->file], problem);
	MemoryContextSwitchTo(caller);
	if (r == NULL)
		return false;
	record->begin = record->end - r->length;
	record->generation = stream->block->generation;
	record->kind = r->kind;
	record->flags = r->flags;
	record->number = r->number;
	record->xid = (r->flags & NVM_LOG_BRIEF) != 0 ? 0 : r->xid;
	record->record = r;
	nvm_log_walk_record(&record->body, r);
	return true;
}

/* ---- side files ---- */

/*
 * What is wrong with what a side file contains, or NULL: its record says whether calls are
 * among it.
 */
static const char *
side_problem(const NvmVlogStreamRecord *record)
{
	NvmLogWalk	sections = record->body;
	const char *problem = nvm_log_storages_problem(&record->body);
	NvmLogSection section;
	bool		has_calls = false;

	if (problem != NULL)
		return problem;
	while (nvm_log_next_section(&sections, &section))
		has_calls = section.dir == NVM_LOG_CALLS_DIR;
	if (has_calls == ((record->flags & NVM_LOG_CALLS) != 0))
		return (record->flags & NVM_LOG_ALONE) != 0 ? nvm_log_alone_problem(&record->body) : NULL;
	return has_calls ? "calls in a record that has none" : "a record without its calls";
}

/*
 * See nvm_vlog_stream.h.
 */
void
nvm_vlog_stream_body(NvmVlogStream *stream, NvmVlogStreamRecord *record)
{
	NvmVlog    *vlog = stream->vlog;
	int			last = vlog->nbases - 1;
	NvmVlogFile *side = &vlog->file[last];
	MemoryContext caller;
	const char *base;
	const char *problem;

	if (record->kind == NVM_LOG_OUTCOME || (record->flags & NVM_LOG_SIDE) == 0)
		return;
	caller = MemoryContextSwitchTo(vlog->context);
	nvm_vlog_unmap_one(vlog, last);
	memset(side, 0, sizeof(*side));
	side->name.pool = nvm_log_pool_of(vlog->uuid);
	side->name.generation = side->generation = record->generation;
	side->name.transaction = side->number = record->number;
	side->side = *NVM_LOG_RECORD_SIDE(record->record);
	nvm_vlog_find_side(side);
	base = nvm_vlog_map_side(vlog, last);
	nvm_log_walk_side(&record->body, base, &side->side);
	problem = side_problem(record);
	if (problem != NULL)
		nvm_vlog_damaged(side, problem);
	MemoryContextSwitchTo(caller);
}
