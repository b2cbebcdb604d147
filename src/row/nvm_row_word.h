/*-------------------------------------------------------------------------
 *
 * nvm_row_word.h
 *	  Shared by rowlock.c, rowlock_word.c and rowlock_wait.c: which locks of a
 *	  row conflict, who holds one, and how to wait for it.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_ROW_WORD_H
#define NVM_ROW_WORD_H

#include "nodes/lockoptions.h"
#include "pool/nvm_pool.h"
#include "storage/lock.h"
#include "utils/rel.h"

/* rowlock_word.c */
extern const LOCKMODE nvm_tuplock_mode[];

static inline bool
nvm_lock_modes_conflict(LockTupleMode a, LockTupleMode b)
{
	return DoLockModesConflict(nvm_tuplock_mode[a], nvm_tuplock_mode[b]);
}

extern void nvm_row_add_locker(NvmRelState *state, uint64 rootref, LockTupleMode mode,
							   TransactionId xid);

/* rowlock_wait.c */
extern bool nvm_row_lock_try_wait(TransactionId xwait, bool is_multi, LockTupleMode mode);
extern void nvm_row_lock_not_available(Relation rel);

#endif							/* NVM_ROW_WORD_H */
