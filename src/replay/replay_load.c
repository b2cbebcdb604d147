/*-------------------------------------------------------------------------
 *
 * replay_load.c
 *	  The base: rows of a checkpoint into the copy.
 *
 * They come in the order of the data files.  The load has a table open as long as its rows
 * come, and commits every so many: what a transaction of any size has to remember for
 * its abort stays small, and others get on.  As long as a table is open the process is its owner.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "replay/nvm_replay_rows.h"
#include "replay/replay_write.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_log.h"

/* of a transaction */
#define LOAD_ROWS		10000
#define LOAD_BYTES		(16 * 1024 * 1024)

struct NvmReplayLoad
{
	const NvmReplayMap *map;
	MemoryContext context;
	NvmReplayTarget *target;	/* NULL: no transaction is open */
	uint32		batch_rows;
	Size		batch_bytes;
	uint64		rows;
	uint64		bytes;
};

/*
 * See nvm_replay_rows.h.
 */
NvmReplayLoad *
nvm_replay_load_begin(const NvmReplayMap *map, MemoryContext context)
{
	NvmReplayLoad *load = MemoryContextAllocZero(context, sizeof(NvmReplayLoad));

	load->map = map;
	load->context = context;
	return load;
}

static void
begin_batch(NvmReplayLoad *load, const NvmReplayTable *table)
{
	MemoryContext oldcontext;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	oldcontext = MemoryContextSwitchTo(TopTransactionContext);
	load->target = nvm_replay_target_open(table);
	MemoryContextSwitchTo(oldcontext);
	nvm_replay_target_enter(load->target);
	load->batch_rows = 0;
	load->batch_bytes = 0;
}

static void
end_batch(NvmReplayLoad *load)
{
	if (load->target == NULL)
		return;
	nvm_replay_target_leave(load->target);
	nvm_replay_target_close(load->target);
	load->target = NULL;
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(load->context);
}

static Size
bytes_of(const NvmLogRow *first)
{
	NvmLogPieces pieces;
	const NvmLogRow *item;
	Size		bytes = 0;

	nvm_log_pieces_begin(&pieces, first);
	while (nvm_log_is_piece(item = nvm_log_pieces_next(&pieces)))
		bytes += item->length;
	return bytes + nvm_log_tuple_length(item);
}

/*
 * See nvm_replay_rows.h.
 */
void
nvm_replay_load_row(NvmReplayLoad *load, const NvmReplayTable *table, const NvmLogRow *first)
{
	Size		bytes = bytes_of(first);

	CHECK_FOR_INTERRUPTS();
	if (load->target != NULL &&
		(load->target->table != table || load->batch_rows >= LOAD_ROWS ||
		 load->batch_bytes >= LOAD_BYTES))
		end_batch(load);
	if (load->target == NULL)
		begin_batch(load, table);
	nvm_replay_fill_slot(load->target->slot, first);
	nvm_replay_insert(load->target);
	ExecClearTuple(load->target->slot);
	load->batch_rows++;
	load->batch_bytes += bytes;
	load->rows++;
	load->bytes += bytes;
}

/*
 * See nvm_replay_rows.h.
 */
void
nvm_replay_load_end(NvmReplayLoad *load, uint64 *rows, uint64 *bytes)
{
	end_batch(load);
	*rows = load->rows;
	*bytes = load->bytes;
	pfree(load);
}
