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
	EPQState	epq;			/* zeroes: for triggers, of which there are
								 * none */
	TupleTableSlot *slot;		/* what is to be written */
	TupleTableSlot *found;		/* the row that is to go, or to change */
} NvmReplayTarget;

/* in a transaction, and closed in it; memory of the current context.  Takes RowExclusiveLock. */
extern NvmReplayTarget *nvm_replay_target_open(const NvmReplayTable *table);
extern void nvm_replay_target_close(NvmReplayTarget *target);

/*
 * Insert ->slot; change row ->found to what ->slot has; delete row ->found.  With an active
 * snapshot.  A row that another transaction has changed since is an ERROR.
 */
extern void nvm_replay_insert(NvmReplayTarget *target);
extern void nvm_replay_update(NvmReplayTarget *target);
extern void nvm_replay_delete(NvmReplayTarget *target);

#endif							/* REPLAY_WRITE_H */
