/*-------------------------------------------------------------------------
 *
 * xact_impl.h
 *	  What the files of xact/ share among themselves.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef XACT_IMPL_H
#define XACT_IMPL_H

#include "postgres.h"

#include "wbl/nvm_commit.h"
#include "xact/nvm_xact.h"

/* ---- xact_undo.c ---- */

/* what row/ registered */
extern const NvmUndoOps *nvm_undo_ops;

/* a subtransaction has ended at this nesting level */
extern void nvm_undo_subcommit(int level);
extern void nvm_undo_subabort(int level, const NvmXactStamps *stamps);

/*
 * End of the top-level transaction.  Abort: false if rows are left to the gap
 * collector.  Flushed, not drained.
 */
extern bool nvm_undo_abort(const NvmXactStamps *stamps);
extern void nvm_undo_commit(NvmStamp stamp);
extern void nvm_undo_check(void);

/*
 * PREPARE TRANSACTION.  save_locks: list the row locks that the transaction
 * holds in the pool, durably; returns the unit that the slot then leads to.
 * Has it made or ended storages?
 */
extern uint32 nvm_undo_save_locks(NvmStamp stamp);
extern bool nvm_undo_has_dirs(void);

/*
 * At PRE_COMMIT, or PRE_PREPARE: build the record of the log, of what the transaction
 * has changed in tables of the volatile region.  Returns whether there is one: see
 * nvm_log_end.  May take a stamp in that region, and ERROR.
 */
extern bool nvm_undo_capture(const NvmXactStamps *stamps);
extern void nvm_undo_reset(void);

/* ---- xact_rests.c ---- */

/* at PRE_COMMIT: all WAL of others that the transaction can have relied on */
extern void nvm_rests_flush_wal(void);

/* at PRE_COMMIT: has the transaction changed catalogs?  Looks at catalogs */
extern bool nvm_rests_changed_catalogs(void);

/* at PRE_COMMIT: are there listeners to be told of the transaction? */
extern bool nvm_rests_notifies(void);

/* ---- xact_sequence.c ---- */

extern void nvm_sequence_flush(bool is_writer);
extern void nvm_sequence_flush_at_abort(void);

#endif							/* XACT_IMPL_H */
