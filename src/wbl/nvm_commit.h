/*-------------------------------------------------------------------------
 *
 * nvm_commit.h
 *	  Steps of a commit, a prepare and an abort in a commit slot, for xact/.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_COMMIT_H
#define NVM_COMMIT_H

#include "pool/nvm_region.h"
#include "wbl/nvm_wbl.h"

/* ---- wbl_slot.c ---- */

/* the stamp, in a region, of a new transaction of this process with xid fxid */
extern NvmStamp nvm_slot_next_stamp(NvmRegionId region, uint64 fxid);
extern NvmStamp nvm_slot_new_stamp(NvmRegionId region);

/* take a slot that was never used, from which stamps come; the one that the process has, or -1 */
extern uint32 nvm_slot_take_own(NvmRegionId region);
extern int	nvm_slot_of_process(NvmRegionId region);

/* add what this process has flushed to the sums of its slot */
extern void nvm_slot_note_work(void);

/* ---- wbl_commit.c ---- */

extern void nvm_commit_flush_data(void);
extern void nvm_commit_prepare(NvmStamp stamp, uint64 fxid);
extern void nvm_commit_decide(NvmStamp stamp);
extern void nvm_commit_decide_mixed(NvmStamp stamp);
extern void nvm_commit_finish_abort(NvmStamp stamp);
extern void nvm_commit_abandon(NvmStamp stamp);

/* ---- wbl_twophase.c ---- */

extern void nvm_twophase_prepare(NvmStamp stamp, uint64 fxid, uint32 locks);
extern void nvm_twophase_hand_over(NvmStamp stamp, bool dirs);
extern void nvm_twophase_withdraw(NvmStamp stamp);
extern void nvm_twophase_before_commit_slow(void);

static inline void
nvm_twophase_before_commit(void)
{
	if (unlikely(pg_atomic_read_u32(&NvmWbl->ntwophase) > 0))
		nvm_twophase_before_commit_slow();
}

/* ---- wbl_locklist.c ---- */

extern void nvm_lock_list_begin(NvmStamp stamp);
extern void nvm_lock_list_add(const NvmLockItem *items, int n);
extern uint32 nvm_lock_list_end(void);
extern void nvm_lock_list_kept(void);
extern void nvm_lock_list_discard(void);

#endif							/* NVM_COMMIT_H */
