/*-------------------------------------------------------------------------
 *
 * nvm_visibility.h
 *	  Which snapshot sees which version (visibility.c).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_VISIBILITY_H
#define NVM_VISIBILITY_H

#include "postgres.h"

#include "access/tableam.h"
#include "media/media_block.h"
#include "utils/rel.h"
#include "utils/snapshot.h"

/*
 * Does `snapshot` see the version?  Lock-free.  Serves MVCC, SELF, ANY, DIRTY
 * (fills snapshot->xmin/xmax/speculativeToken), TOAST and NON_VACUUMABLE
 * snapshots.  What it accepts on another transaction's word is durable when it
 * returns.  rel, if not NULL, is told to SSI.
 */
extern bool nvm_version_visible(Relation rel, NvmVersion *v, Snapshot snapshot);

/* as HeapTupleSatisfiesUpdate; caller holds the root's row lock.  On a result
 * other than TM_Ok / TM_Invisible *xwait is the xid to blame. */
extern TM_Result nvm_version_satisfies_update(NvmVersion *v, CommandId curcid,
											  TransactionId *xwait);

typedef enum NvmEndState
{
	NVM_END_NONE,				/* not ended, or by one that aborted */
	NVM_END_OWN,
	NVM_END_IN_PROGRESS,
	NVM_END_COMMITTED
} NvmEndState;

extern NvmEndState nvm_version_end_state(NvmVersion *v, TransactionId *xend);

typedef enum NvmVacuumState
{
	NVM_VAC_DEAD,				/* dead to everybody, durably */
	NVM_VAC_RECENTLY_DEAD,
	NVM_VAC_LIVE,
	NVM_VAC_INSERT_IN_PROGRESS,
	NVM_VAC_DELETE_IN_PROGRESS,
	NVM_VAC_STUB,				/* root whose first versions are unlinked */
	NVM_VAC_DEAD_ROOT,			/* waits for VACUUM to clean the indexes */
	NVM_VAC_RETIRED,			/* waits for readers */
	NVM_VAC_FREE
} NvmVacuumState;

struct GlobalVisState;

/*
 * *xid: the inserter or deleter in progress, or the deleter of a dead version
 * (FrozenTransactionId if that is long past).  If it is Invalid with
 * NVM_VAC_DEAD, the version never existed: its inserter has aborted, or is in
 * a gap.
 */
extern NvmVacuumState nvm_version_vacuum_state(NvmVersion *v,
											   struct GlobalVisState *vistest,
											   TransactionId *xid);

#endif							/* NVM_VISIBILITY_H */
