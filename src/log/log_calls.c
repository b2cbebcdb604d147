/*-------------------------------------------------------------------------
 *
 * log_calls.c
 *	  Calls in the record of a transaction, and the checksum of what they have made.
 *
 * If the transaction is one of values, the section has the lanes that it held.
 *
 * What a call is command/ knows, and what a row contains, row/.  They meet here: the
 * one says, before rows are captured, that there are calls, the other notes the checksum
 * of each row, and the section that the first one makes has their sum.  A sum, since a
 * replay may write the rows in another order, to other places.  A row may be captured
 * several times (xact_undo.c), so the places are there to tell.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/log_impl.h"
#include "log/nvm_log.h"
#include "media/media_block.h"
#include "utils/memutils.h"

static const NvmLogCallOps *ops = NULL;

/* of the record that is being built */
NvmLogBy	nvm_log_by = NVM_LOG_BY_NOTHING;
bool		nvm_log_calls_alone = false;
bool		nvm_log_old_rows = false;
static bool has_table_rows = false; /* of nvm_cmdlog tables */

/* there is no record, but a replay that wants the checksum of what it has written */
bool		nvm_log_sums_alone = false;

typedef struct NotedRow
{
	uint64		place;
	uint64		checksum;
} NotedRow;

#define FIRST_NOTED		32

static NotedRow *noted = NULL;	/* of the transaction's memory */
static Size nnoted = 0;
static Size room = 0;

void
nvm_log_register_calls(const NvmLogCallOps *call_ops)
{
	ops = call_ops;
}

void
nvm_log_calls_begin(void)
{
	nvm_log_calls_alone = false;
	nvm_log_old_rows = false;
	nvm_log_by = ops != NULL ? ops->begin(&nvm_log_calls_alone, &nvm_log_old_rows) : NVM_LOG_BY_NOTHING;
	nvm_log_old_rows |= nvm_log_by == NVM_LOG_BY_VALUES;
	Assert(!nvm_log_calls_alone || (nvm_log_by == NVM_LOG_BY_CALLS && !nvm_log_old_rows));
	nvm_log_sums_alone = false;
	has_table_rows = false;
	noted = NULL;
	nnoted = room = 0;
}

void
nvm_log_calls_end(void)
{
	nvm_log_by = NVM_LOG_BY_NOTHING;
	nvm_log_calls_alone = nvm_log_old_rows = false;
	nvm_log_sums_alone = false;
}

Oid
nvm_log_table_of_rows(uint32 dir, bool *has_key)
{
	Oid			table = ops->table(dir, has_key);

	has_table_rows |= OidIsValid(table);
	return table;
}

void
nvm_log_note_checksum(uint32 dir, uint32 block, uint16 offset, uint64 checksum)
{
	StaticAssertStmt(NVM_MAX_DIRS <= 1 << 20 && NVM_CELLS <= 256, "a place fits 60 bits");
	if (nnoted == room)
	{
		room = Max(2 * room, FIRST_NOTED);
		noted = noted == NULL ? MemoryContextAlloc(TopTransactionContext, room * sizeof(NotedRow)) :
			repalloc_huge(noted, room * sizeof(NotedRow));
	}
	noted[nnoted].place = (uint64) dir << 40 | (uint64) block << 8 | offset;
	noted[nnoted].checksum = checksum;
	nnoted++;
}

static int
compare_places(const void *a, const void *b)
{
	uint64		left = ((const NotedRow *) a)->place;
	uint64		right = ((const NotedRow *) b)->place;

	return left < right ? -1 : left > right;
}

static void
add_up(uint64 *checksum, uint32 *rows)
{
	*checksum = 0;
	*rows = 0;
	if (nnoted > 1)
		qsort(noted, nnoted, sizeof(NotedRow), compare_places);
	for (Size i = 0; i < nnoted; i++)
	{
		if (i > 0 && noted[i].place == noted[i - 1].place)
			continue;
		*checksum += noted[i].checksum;
		(*rows)++;
	}
}

bool
nvm_log_calls_section(const char **bytes, uint32 *length, uint32 *database)
{
	uint64		checksum;
	uint32		rows;

	if (nvm_log_by != NVM_LOG_BY_CALLS && !(nvm_log_by == NVM_LOG_BY_VALUES && has_table_rows))
		return false;
	add_up(&checksum, &rows);
	*bytes = ops->section(checksum, rows, length, database);
	Assert(*bytes == NULL || *length % 4 == 0);
	return *bytes != NULL;
}

void
nvm_log_calls_logged(uint64 values, uint64 calls)
{
	ops->logged(values, calls);
}

/* ---- without a record ---- */

void
nvm_log_sum_begin(void)
{
	noted = NULL;
	nnoted = room = 0;
	nvm_log_by = NVM_LOG_BY_CALLS;
	nvm_log_sums_alone = true;
}

void
nvm_log_sum_end(uint64 *checksum, uint32 *rows)
{
	nvm_log_by = NVM_LOG_BY_NOTHING;
	nvm_log_sums_alone = false;
	add_up(checksum, rows);
	if (noted != NULL)
		pfree(noted);
	noted = NULL;
	nnoted = room = 0;
}
