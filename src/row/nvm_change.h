/*-------------------------------------------------------------------------
 *
 * nvm_change.h
 *	  Change capture: what the current transaction does to rows passes here.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_CHANGE_H
#define NVM_CHANGE_H

#include "pool/nvm_pool.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_xact.h"

/*
 * The current transaction is about to make, end or lock the version at (blk,
 * off). Called before the change is made, since it may ERROR; after
 * nvm_undo_reserve it does not.  All code that changes a row calls this and
 * not the undo log (lint), so what is done here sees every change.
 *
 * What does not pass here was not done to rows by the transaction.  Copies of
 * whole storages (storage_copy.c, rewrite.c) carry the stamps of others, and
 * belong to a storage that the transaction made.  Undo, pruning and the gap
 * collector take away what no transaction sees.
 */
static inline void
nvm_row_change(NvmUndoKind kind, NvmRelState *state, uint32 blk, uint32 off)
{
	nvm_undo_add(kind, state->dir, blk, off);
}

/* capture.c, for NvmUndoOps: what the log is told of that at PRE_COMMIT */
extern void nvm_capture_range(const NvmUndoRange *range, NvmStamp stamp);
extern void nvm_capture_storage(uint32 dir);

/*
 * Tell the log a version as the newest of its row: the pieces of its large values, and
 * its tuple.  Between nvm_log_begin and nvm_log_end; names the storage itself.  The
 * caller sees to it that the version, and its values, stay meanwhile.  May ERROR.
 */
extern void nvm_capture_version(NvmRelState *state, const NvmVersion *v);

#endif							/* NVM_CHANGE_H */
