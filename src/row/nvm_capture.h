/*-------------------------------------------------------------------------
 *
 * nvm_capture.h
 *	  Images of rows for checkpoints (capture_block.c).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_CAPTURE_H
#define NVM_CAPTURE_H

#include "postgres.h"

#include "pool/nvm_pool.h"
#include "utils/snapshot.h"

/*
 * Give the log (nvm_log_row) the image of each row that has its root in a block: of its
 * versions the one that an MVCC snapshot shows, or, by SnapshotSelf, that is committed and
 * not ended now.  Returns how many there are.  In a transaction with a snapshot; the storage
 * is not reclaimed meanwhile (storage_lock).  ERROR for a version that is damaged.
 */
extern uint32 nvm_capture_block(NvmRelState *state, uint32 blk, Snapshot snapshot);

/*
 * Has the block a version that a transaction has made or ended which is not decided?  While
 * nobody else writes there: one that is prepared.  The same conditions.
 */
extern bool nvm_capture_is_undecided(NvmRelState *state, uint32 blk);

#endif							/* NVM_CAPTURE_H */
