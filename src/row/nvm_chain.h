/*-------------------------------------------------------------------------
 *
 * nvm_chain.h
 *	  Version chains: search, walk, prune (chain.c).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_CHAIN_H
#define NVM_CHAIN_H

#include "postgres.h"

#include "pool/nvm_pool.h"
#include "row/nvm_space.h"
#include "row/nvm_version.h"
#include "storage/itemptr.h"
#include "utils/rel.h"
#include "utils/snapshot.h"

/*
 * The version of the row with root `root` that snapshot sees, or NULL.  Lock-
 * free.  Sets *tid.  all_dead, if not NULL, is set when the whole row is
 * durably dead to everybody: the index may kill its entry.  If rel is not
 * NULL, SSI is told of it, and the version found is locked.
 */
extern NvmVersion *nvm_chain_search(Relation rel, NvmRelState *state,
									uint64 root, Snapshot snapshot,
									ItemPointer tid, bool *all_dead);

/*
 * Walk every version of the row with root `root`, oldest first.  The caller
 * zeroes *pos before the first call.  pos->ref becomes the TID (hi 0) of the
 * version returned; NULL at the end.  Skips a stub.  Lock-free.
 */
typedef struct NvmChainPos
{
	uint64		ref;
	NvmChainGuard guard;
} NvmChainPos;

extern NvmVersion *nvm_chain_next(NvmRelState *state, uint64 root, NvmChainPos *pos);

/*
 * Unlink what is dead to everybody.  Caller holds the root's row lock and has
 * a stamp (nvm_xact_stamp()); without a stamp nothing is done.  What is
 * unlinked is reusable only when that transaction's stores are durable.
 * Returns false if the whole row is dead now (root became DEAD or RETIRED).
 *
 * With a batch (nvm_space.h) versions are unlinked now and retired when the
 * caller flushes it, which must be before the row lock is released.
 */
struct NvmRetireBatch;

extern bool nvm_chain_prune(NvmRelState *state, uint64 root,
							struct GlobalVisState *vistest,
							struct NvmRetireBatch *batch, int *nremoved);

#endif							/* NVM_CHAIN_H */
