/*-------------------------------------------------------------------------
 *
 * nvm_allvisible_set.h
 *	  Setting the bits of pool/nvm_allvisible.h: allvisible.c.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_ALLVISIBLE_SET_H
#define NVM_ALLVISIBLE_SET_H

#include "pool/nvm_allvisible.h"

/* may the block get its bit?  Without strict, for nvm.check(): may it have it? */
extern bool nvm_block_is_everybodys(NvmRelState *state, uint32 blk, bool strict);

/* set the bit if the block permits; true if it is set */
extern bool nvm_allvisible_try(NvmRelState *state, uint32 blk, bool wait);

/* the same of the other bit; from VACUUM, with the block's allocation lock */
extern bool nvm_block_is_barren(NvmRelState *state, uint32 blk,
								struct GlobalVisState *vistest, bool strict);
extern void nvm_barren_try(NvmRelState *state, uint32 blk, struct GlobalVisState *vistest);

/* no bit is set while a snapshot is as old as now; before SUSPECT is cleared */
extern void nvm_allvisible_hold(NvmRelState *state);

/* an index-only scan has looked at a row of the block and seen it */
extern void nvm_allvisible_consider_slow(NvmRelState *state, uint32 blk);

static inline void
nvm_allvisible_consider(NvmRelState *state, uint32 blk)
{
	if (!nvm_allvisible(state, blk))
		nvm_allvisible_consider_slow(state, blk);
}

extern void nvm_allvisible_slot_wanted(void);

/* ExecutorStart_hook, before and after: slots of index-only scans */
struct QueryDesc;
extern bool nvm_unread_slots_begin(void);
extern void nvm_unread_slots_end(struct QueryDesc *queryDesc, int eflags, bool outer);

#endif							/* NVM_ALLVISIBLE_SET_H */
