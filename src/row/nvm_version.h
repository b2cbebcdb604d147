/*-------------------------------------------------------------------------
 *
 * nvm_version.h
 *	  Row versions: existence, links, checksum (version.c).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_VERSION_H
#define NVM_VERSION_H

#include "postgres.h"

#include "access/htup_details.h"
#include "pool/nvm_pool.h"
#include "row/nvm_relation.h"
#include "utils/rel.h"

extern void nvm_ref_damaged(NvmRelState *state, uint64 ref) __attribute__((noreturn));

/*
 * The version, or what was one, that a link leads to.  ERROR if it leads out of
 * the relation, as a damaged one may.
 */
static inline NvmVersion *
nvm_ref_version(NvmRelState *state, uint64 ref)
{
	if (unlikely(NVM_REF_BLOCK(ref) >= nvm_rel_nblocks(state) ||
				 NVM_REF_OFFSET(ref) >= NVM_CELLS))
		nvm_ref_damaged(state, ref);
	return nvm_cell(state, NVM_REF_BLOCK(ref), NVM_REF_OFFSET(ref));
}


/*
 * Guard of a walk along next or link, which may lead in a circle where they are
 * damaged: zeroed before the walk, and told of each step.  Chains are short,
 * mostly, so that the first steps are not looked at.
 */
#define NVM_CHAIN_UNGUARDED		1023

typedef struct NvmChainGuard
{
	uint64		steps;
	uint64		limit;			/* steps at which `met` is replaced */
	uint64		met;			/* a TID that the walk has come through, or 0 */
} NvmChainGuard;

extern bool nvm_chain_circles_slow(NvmChainGuard *guard, uint64 ref);
extern void nvm_chain_damaged(NvmRelState *state, uint64 ref) __attribute__((noreturn));

static inline bool
nvm_chain_circles(NvmChainGuard *guard, uint64 ref)
{
	return unlikely(++guard->steps > NVM_CHAIN_UNGUARDED) &&
		nvm_chain_circles_slow(guard, NVM_REF_TID(ref));
}

/* the same with an ERROR */
static inline void
nvm_chain_guard(NvmRelState *state, NvmChainGuard *guard, uint64 ref)
{
	if (unlikely(nvm_chain_circles(guard, ref)))
		nvm_chain_damaged(state, ref);
}

#define NvmVersionTuple(v)		((HeapTupleHeader) &(v)->tuple)

/* is (blk, off) the start of an area of an initialised block? */
extern bool nvm_tid_exists(NvmRelState *state, uint32 blk, uint32 off);

/* its begin word, or 0 if it is free or retired; needs no lock, but a snapshot */
extern uint64 nvm_tid_begin(NvmRelState *state, uint32 blk, uint32 off);


/* do length and checksum fit?  Only of what is a version: others are stubs, or
 * keep something else where a version has its xids */
extern bool nvm_version_is_sound(const NvmVersion *v);
extern void nvm_version_damaged(Relation rel, uint32 blk, uint32 off) __attribute__((noreturn));

/* of a stamp that cannot be */
extern bool nvm_version_stays(const NvmVersion *v);
extern void nvm_stamp_damaged(const NvmVersion *v, const char *which, uint64 stamp) __attribute__((noreturn));

#endif							/* NVM_VERSION_H */
