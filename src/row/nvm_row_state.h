/*-------------------------------------------------------------------------
 *
 * nvm_row_state.h
 *	  What rows keep in DRAM about the storage of a table: hints about its space.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_ROW_STATE_H
#define NVM_ROW_STATE_H

#include "pool/nvm_pool.h"

#define NVM_INSERT_TARGETS	8

/* freemap.c: blocks of the first segment; segment k covers twice as many as k - 1 */
#define NVM_FREEMAP_BASE	8192

/*
 * All of it is advisory, and 0 when the storage is made.
 */
typedef struct NvmRowState
{
	/* block + 1 that backends insert into, by process number */
	pg_atomic_uint32 target[NVM_INSERT_TARGETS];
	pg_atomic_uint32 hint_next; /* rotating start of the search */
	pg_atomic_uint32 hint_free_blocks;	/* blocks VACUUM found with room */
	pg_atomic_uint32 hint_again;	/* 0, or the number of blocks from which
									 * on one more round of the search is due */
	pg_atomic_uint32 told;		/* statistics know what a crash left of it */
	uint8	   *fsm[NVM_RELMAP_SEGS];	/* freemap.c: a byte per block */
} NvmRowState;

StaticAssertDecl(sizeof(NvmRowState) == NVM_REL_ROW_SIZE, "size of NvmRowState");

static inline NvmRowState *
nvm_rel_row(NvmRelState *rel)
{
	return (NvmRowState *) rel->row;
}

/*
 * The storage has blocks from before the start.  There may be room where the last
 * rows went; then the others get their turn.
 */
extern void nvm_row_state_opened(NvmRelState *rel, uint32 nblocks);

/* in _PG_init, before the pool is opened */
extern void nvm_row_state_register(void);

#endif							/* NVM_ROW_STATE_H */
