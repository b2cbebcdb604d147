/*-------------------------------------------------------------------------
 *
 * replay_write.h
 *	  A table of the copy, open to be written row by row (replay_tuple.c).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef REPLAY_WRITE_H
#define REPLAY_WRITE_H

#include "postgres.h"

#include "executor/executor.h"
#include "nodes/execnodes.h"
#include "replay/nvm_replay_copy.h"
#include "utils/rel.h"

typedef struct NvmReplayTarget
{
	const NvmReplayTable *table;
	Relation	rel;
	EState	   *estate;
	ResultRelInfo info;
	TupleTableSlot *slot;		/* what is to be written */
	TupleTableSlot *found;		/* the row that is to go, or to change */

	/* while the process is the owner: what it was before */
	bool		is_entered;
	Oid			user;
	int			security;
	int			guc_level;
} NvmReplayTarget;

/* in a transaction, and closed in it; memory of the current context.  Takes RowExclusiveLock. */
extern NvmReplayTarget *nvm_replay_target_open(const NvmReplayTable *table);
extern void nvm_replay_target_close(NvmReplayTarget *target);

/*
 * Between these the process is the table's owner, as while an index is built: functions of the
 * indexes are his, and so are those that compare keys.  An abort leaves by itself.  Not nested.
 */
extern void nvm_replay_target_enter(NvmReplayTarget *target);
extern void nvm_replay_target_leave(NvmReplayTarget *target);

/*
 * Insert ->slot; change row ->found to what ->slot has; delete row ->found.  With an active
 * snapshot, and the target entered.  A row that another transaction has changed since is an ERROR.
 */
extern void nvm_replay_insert(NvmReplayTarget *target);
extern void nvm_replay_update(NvmReplayTarget *target);
extern void nvm_replay_delete(NvmReplayTarget *target);

#endif							/* REPLAY_WRITE_H */
