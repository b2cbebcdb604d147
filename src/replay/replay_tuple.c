/*-------------------------------------------------------------------------
 *
 * replay_tuple.c
 *	  From an item of the log to a row of the copy, and the executor's part of writing it.
 *
 * The table and its indexes are written, and nothing else: no trigger fires, no constraint is
 * checked and no column computed, as all that was done before the row came into the log.  (After
 * a loss the table is the original, which has these.)  The slot is an image (row/image.c), so what
 * is written is the row as it was.
 *
 * Expressions and predicates of indexes are code of the table's owner.  Whoever looks at them is
 * the owner for that time: README.md, "Who runs the code of owners".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "compat/nvm_compat_am.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "replay/nvm_replay_rows.h"
#include "replay/replay_write.h"
#include "row/nvm_image.h"
#include "storage/lockdefs.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

/*
 * See nvm_replay_rows.h.
 */
void
nvm_replay_fill_slot(TupleTableSlot *slot, const NvmLogRow *first)
{
	nvm_image_store(slot, first);
}

/*
 * See replay_write.h.
 *
 * The copy's owner is the original's.  The search_path is, on every version, the one that
 * PostgreSQL has for maintenance since 17: a player may have that of a user's call.
 */
void
nvm_replay_target_enter(NvmReplayTarget *target)
{
	Assert(!target->is_entered);
	GetUserIdAndSecContext(&target->user, &target->security);
	SetUserIdAndSecContext(target->rel->rd_rel->relowner,
						   target->security | SECURITY_RESTRICTED_OPERATION);
	target->guc_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	target->is_entered = true;
}

/*
 * See replay_write.h.
 */
void
nvm_replay_target_leave(NvmReplayTarget *target)
{
	Assert(target->is_entered);
	AtEOXact_GUC(false, target->guc_level);
	SetUserIdAndSecContext(target->user, target->security);
	target->is_entered = false;
}

/*
 * See replay_write.h.
 *
 * Opening an index evaluates what is constant in its expressions.
 */
NvmReplayTarget *
nvm_replay_target_open(const NvmReplayTable *table)
{
	NvmReplayTarget *target = palloc0(sizeof(NvmReplayTarget));

	target->table = table;
	target->rel = table_open(table->copy, RowExclusiveLock);
	target->estate = CreateExecutorState();
	InitResultRelInfo(&target->info, target->rel, 1, NULL, 0);
	nvm_replay_target_enter(target);
	ExecOpenIndices(&target->info, false);
	nvm_replay_target_leave(target);
	target->slot = table_slot_create(target->rel, NULL);
	target->found = table_slot_create(target->rel, NULL);
	return target;
}

/*
 * See replay_write.h.
 */
void
nvm_replay_target_close(NvmReplayTarget *target)
{
	ExecDropSingleTupleTableSlot(target->slot);
	ExecDropSingleTupleTableSlot(target->found);
	ExecCloseIndices(&target->info);
	ExecResetTupleTable(target->estate->es_tupleTable, false);
	FreeExecutorState(target->estate);
	table_close(target->rel, NoLock);
	pfree(target);
}

/*
 * Memory for what the executor makes of one row.
 */
static MemoryContext
begin_row(NvmReplayTarget *target)
{
	Assert(target->is_entered);
	target->estate->es_output_cid = GetCurrentCommandId(true);
	target->estate->es_snapshot = GetActiveSnapshot();
	return MemoryContextSwitchTo(GetPerTupleMemoryContext(target->estate));
}

static void
end_row(NvmReplayTarget *target, MemoryContext oldcontext)
{
	MemoryContextSwitchTo(oldcontext);
	ResetPerTupleExprContext(target->estate);
}

static void
insert_entries(NvmReplayTarget *target, bool update)
{
	if (target->info.ri_NumIndices > 0)
		list_free(NvmExecInsertIndexTuples(&target->info, target->slot, target->estate, update));
}

/*
 * See replay_write.h.
 */
void
nvm_replay_insert(NvmReplayTarget *target)
{
	MemoryContext oldcontext = begin_row(target);

	simple_table_tuple_insert(target->rel, target->slot);
	insert_entries(target, false);
	end_row(target, oldcontext);
}

void
nvm_replay_update(NvmReplayTarget *target)
{
	MemoryContext oldcontext = begin_row(target);
	NvmUpdateIndexes indexes;

	simple_table_tuple_update(target->rel, &target->found->tts_tid, target->slot,
							  target->estate->es_snapshot, &indexes);
	if (NVM_NEEDS_INDEXES(indexes))
		insert_entries(target, true);
	end_row(target, oldcontext);
}

void
nvm_replay_delete(NvmReplayTarget *target)
{
	MemoryContext oldcontext = begin_row(target);

	simple_table_tuple_delete(target->rel, &target->found->tts_tid, target->estate->es_snapshot);
	end_row(target, oldcontext);
}
