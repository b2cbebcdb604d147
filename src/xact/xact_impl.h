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

#include "wbl/wbl_impl.h"

/* ---- xact_undo.c ---- */

/* a subtransaction has ended at this nesting level */
extern void nvm_undo_subcommit(int level);
extern void nvm_undo_subabort(int level, NvmStamp stamp);

/*
 * End of the top-level transaction.  Abort: false if rows are left to the gap
 * collector.  Flushed, not drained.
 */
extern bool nvm_undo_abort(NvmStamp stamp);
extern void nvm_undo_commit(void);
extern void nvm_undo_check(void);
extern void nvm_undo_reset(void);

/* ---- xact_sequence.c ---- */

extern void nvm_sequence_flush(bool is_writer);

#endif							/* XACT_IMPL_H */
