/*-------------------------------------------------------------------------
 *
 * nvm_replay_rows.h
 *	  Rows of the log into the copy: those of the checkpoint, and those of records of
 *	  values (replay_load.c, replay_values.c).
 *
 * The tables of the copy are opened by themselves, so it makes no difference to these whether
 * the process is redirected.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_REPLAY_ROWS_H
#define NVM_REPLAY_ROWS_H

#include "postgres.h"

#include "executor/tuptable.h"
#include "replay/nvm_replay_copy.h"
#include "utils/rel.h"
#include "verify/nvm_verify_log.h"

/* ---- replay_tuple.c ---- */

/*
 * Put a row of the log into a slot that table_slot_create has made for the copy.  `first` is
 * the row or the first piece of its large values; neither is looked at afterwards.  The row
 * is stored byte by byte as it was: as many columns, values compressed as they were, and those
 * outside that were.  So its checksum is the same.  ERROR if the row does not go with the table.
 */
extern void nvm_replay_fill_slot(TupleTableSlot *slot, const NvmLogRow *first);

/* ---- replay_load.c: the base ---- */

typedef struct NvmReplayLoad NvmReplayLoad;

/*
 * begin; row, for each; end.  Outside of any transaction: the load has its own, of some thousand
 * rows each.  rows and bytes count what was loaded; a table's rows best come together.  After
 * an ERROR, in which the transaction is aborted as any other, there is nothing to give back
 * but `context`, in which all of it lies.
 */
extern PGDLLEXPORT NvmReplayLoad *nvm_replay_load_begin(const NvmReplayMap *map, MemoryContext context);
extern PGDLLEXPORT void nvm_replay_load_row(NvmReplayLoad *load, const NvmReplayTable *table,
											const NvmLogRow *first);
extern PGDLLEXPORT void nvm_replay_load_end(NvmReplayLoad *load, uint64 *rows, uint64 *bytes);

/* ---- replay_values.c: records of values ---- */

typedef struct NvmReplayCount
{
	uint64		inserted;
	uint64		updated;
	uint64		deleted;
} NvmReplayCount;

/*
 * Play the rows of a record into the copy, in the current transaction.  `body` stands before
 * the first storage of the record's body, which nvm_log_storages_problem has passed, and stays
 * as it is.  Rows of storages that the map does not have are passed over.  Adds to *count.
 *
 * ERROR if a row that is to go, or to change, is not there (ERRCODE_DATA_CORRUPTED), or if a
 * storage has come in the place of one of the map.
 */
extern PGDLLEXPORT void nvm_replay_values(const NvmReplayMap *map, const NvmLogWalk *body,
										  NvmReplayCount *count);

#endif							/* NVM_REPLAY_ROWS_H */
