/*-------------------------------------------------------------------------
 *
 * nvm_modify.h
 *	  Shared by the files that write rows: insert.c, update.c, delete.c,
 *	  rowlock*.c.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_MODIFY_H
#define NVM_MODIFY_H

#include "access/multixact.h"
#include "access/tableam.h"
#include "executor/tuptable.h"
#include "nodes/lockoptions.h"
#include "pool/nvm_pool.h"
#include "row/nvm_large.h"
#include "row/nvm_relation.h"
#include "storage/lmgr.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"
#include "xact/nvm_xact.h"

/* what a new version is made of */
typedef struct NvmNewVersion
{
	HeapTuple	tuple;
	bool		free_tuple;
	NvmLargeSet *large;
	uint32		cells;
	NvmVersion *v;				/* set by nvm_space_alloc */
	uint32		blk;
	uint32		off;
	/* what nvm_new_fill writes beside the tuple: zeroes, unless it is set */
	uint64		root;			/* 0: it is the root of a new row */
	uint64		link;
	uint64		lock;
	uint16		flags;
} NvmNewVersion;

/*
 * space.c: an area for a new version, of nv->cells cells: sets nv->v, nv->blk and
 * nv->off.  Prefers block `near` (InvalidBlockNumber: none).  The area is
 * marked used, and begin is 0 or a RETIRED stamp until the caller stores it
 * last.  May ERROR (disk_full).
 */
extern void nvm_space_alloc(Relation rel, NvmRelCache *cache, bool root,
							BlockNumber near, NvmNewVersion *nv);

/* what a change of a row writes into the versions that it makes and ends */
typedef struct NvmRowChange
{
	NvmStamp	stamp;
	TransactionId xid;
	CommandId	cid;			/* of the command */
	/* only where a version ends */
	CommandId	cmax;			/* cid, or a combo id: nvm_adjust_cmax */
	bool		iscombo;
	bool		key_changed;	/* as far as foreign keys may refer to it */
} NvmRowChange;

/* a row that is to be changed */
typedef struct NvmRowTarget
{
	Relation	rel;
	NvmRelState *state;
	NvmVersion *v;				/* the version that the command found */
	ItemPointerData tid;
	NvmVersion *rootv;			/* the root of its row */
	uint64		root;
	ItemPointerData roottid;
	LWLock	   *rlock;			/* the row lock of the root's block */
	bool		have_tuplock;	/* is roottid locked for us in the lock
								 * manager? */
} NvmRowTarget;

extern void nvm_new_form(Relation rel, TupleTableSlot *slot, NvmNewVersion *nv);
extern void nvm_new_place(Relation rel, NvmRelCache *cache, NvmNewVersion *nv,
						  bool root, BlockNumber near);
extern void nvm_new_fill(NvmNewVersion *nv, const NvmRowChange *change);
extern void nvm_new_discard(NvmNewVersion *nv);

/* the block may be the first of a BRIN range: brin_request.c */
extern void nvm_brin_request(Relation rel, uint32 blk);

static inline void
nvm_new_announce(Relation rel, const NvmNewVersion *nv)
{
	if (unlikely(nv->off == NVM_FIRST_CELL))
		nvm_brin_request(rel, nv->blk);
}

/*
 * Mark version v ended by us.  Caller holds the row lock, has found TM_Ok, and
 * called nvm_adjust_cmax beforehand.
 */
extern void nvm_version_end(NvmRelState *state, NvmVersion *v, uint64 next,
							const NvmRowChange *change);

/* the version at tid, or NULL; ERROR if it is damaged */
extern NvmVersion *nvm_version_to_change(Relation rel, NvmRelState *state,
										 ItemPointer tid);

/*
 * Begin a change by this command: the transaction gets a stamp and an xid.
 */
static inline void
nvm_row_change_begin(NvmRowChange *change, const NvmRelState *state, CommandId cid)
{
	if (unlikely(nvm_storage_redirected))
		nvm_storage_require_target(state->dir);
	change->stamp = nvm_xact_stamp(state->region);
	change->xid = nvm_xact_current_xid();
	change->cid = change->cmax = cid;
	change->iscombo = change->key_changed = false;
}

/* the row of the version at tid; false if there is none */
extern bool nvm_row_to_change(Relation rel, ItemPointer tid, NvmRowTarget *row);

extern void nvm_adjust_cmax(NvmVersion *v, NvmRowChange *change);
extern void nvm_fill_failure(NvmVersion *v, ItemPointer tid, TM_Result result,
							 TM_FailureData *tmfd);

extern TM_Result nvm_wait_for_row(NvmRowTarget *row, CommandId cid,
								  LockTupleMode mode, bool wait, XLTW_Oper oper);

/* row locks: rowlock_word.c, rowlock_wait.c */

/*
 * Does a running, or prepared, transaction hold a lock on the row?  Caller
 * holds the row lock.
 */
extern bool nvm_row_is_locked(NvmVersion *root);
extern bool nvm_row_locked_against(NvmVersion *root, LockTupleMode mode,
								   TransactionId *xwait, bool *is_multi);
extern bool nvm_row_locked_by_me(NvmVersion *root);
extern void nvm_row_lock_wait(Relation rel, TransactionId xwait, bool is_multi,
							  LockTupleMode mode, ItemPointer tid, XLTW_Oper oper);
extern bool nvm_acquire_tuplock(Relation rel, ItemPointer tid, LockTupleMode mode,
								LockWaitPolicy wait_policy, bool *have);
extern void nvm_release_tuplock(Relation rel, ItemPointer tid, LockTupleMode mode,
								bool *have);

/*
 * Does the transaction that ended v exclude KEY SHARE lockers?  As next says,
 * which is as durable as end: the infomask, which says the same, may be lost.
 */
static inline LockTupleMode
nvm_version_end_mode(const NvmVersion *v)
{
	return (NVM_REF_HI(v->next) & NVM_NEXT_KEYS) ? LockTupleExclusive :
		LockTupleNoKeyExclusive;
}

/* the lock word if it means anything in this incarnation, else 0 */
extern uint64 nvm_row_lock_word(NvmVersion *root);
extern MultiXactStatus nvm_lock_status(LockTupleMode mode);

static inline LockTupleMode
nvm_lock_word_mode(uint64 lock)
{
	return (LockTupleMode) ((NVM_LOCK_BITS(lock) & NVM_LOCK_MODE_MASK) - 1);
}

/* rowlock_prepared.c, for NvmUndoOps and NvmTableOps */
extern int	nvm_locks_held(uint32 dir, uint32 blk, uint16 off_first,
						   uint16 off_last, NvmLockItem *items);
extern bool nvm_restore_lock(const NvmLockItem *item, TransactionId xid);

extern void nvm_tuple_insert(Relation rel, TupleTableSlot *slot, CommandId cid,
							 int options, struct BulkInsertStateData *bistate);
extern void nvm_tuple_insert_speculative(Relation rel, TupleTableSlot *slot,
										 CommandId cid, int options,
										 struct BulkInsertStateData *bistate,
										 uint32 specToken);
extern void nvm_tuple_complete_speculative(Relation rel, TupleTableSlot *slot,
										   uint32 specToken, bool succeeded);
extern void nvm_multi_insert(Relation rel, TupleTableSlot **slots, int nslots,
							 CommandId cid, int options,
							 struct BulkInsertStateData *bistate);
extern TM_Result nvm_tuple_delete(Relation rel, ItemPointer tid, CommandId cid,
								  Snapshot snapshot, Snapshot crosscheck, bool wait,
								  TM_FailureData *tmfd, bool changingPart);
extern TM_Result nvm_update(Relation rel, ItemPointer otid, TupleTableSlot *slot,
							CommandId cid, Snapshot snapshot, Snapshot crosscheck,
							bool wait, TM_FailureData *tmfd,
							LockTupleMode *lockmode, bool *new_root);
extern TM_Result nvm_tuple_lock(Relation rel, ItemPointer tid, Snapshot snapshot,
								TupleTableSlot *slot, CommandId cid,
								LockTupleMode mode, LockWaitPolicy wait_policy,
								uint8 flags, TM_FailureData *tmfd);
extern void nvm_undo_range(const NvmUndoRange *range, NvmStamp stamp);
extern uint32 nvm_collect_block(uint32 dir, uint32 blk);
extern void nvm_collect_large(uint32 dir);

/*
 * Copy a version with its stamps and xids into rel as a row of its own, for
 * VACUUM FULL and CLUSTER, which must keep what old snapshots see.
 */
extern void nvm_raw_insert(Relation rel, HeapTuple tuple, NvmVersion *from);

#endif							/* NVM_MODIFY_H */
