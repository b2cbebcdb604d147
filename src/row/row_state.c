/*-------------------------------------------------------------------------
 *
 * row_state.c
 *	  What becomes of the hints about a table's space when the pool empties,
 *	  opens or forgets its storage.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pool/nvm_pool.h"
#include "row/nvm_row_state.h"

/* blocks at the end of a table that are looked at for room after a start */
#define START_LOOKS		1024

/*
 * The storage is being emptied.  Nobody else uses it.
 */
static void
row_emptied(NvmRelState *rel)
{
	NvmRowState *row = nvm_rel_row(rel);

	pg_atomic_write_u32(&row->hint_next, 0);
	pg_atomic_write_u32(&row->hint_free_blocks, 0);
	pg_atomic_write_u32(&row->hint_again, 0);
	for (int i = 0; i < NVM_INSERT_TARGETS; i++)
		pg_atomic_write_u32(&row->target[i], 0);
	for (int k = 0; k < NVM_RELMAP_SEGS; k++)
	{
		if (row->fsm[k] != NULL)
			memset(row->fsm[k], 0, (Size) NVM_FREEMAP_BASE << k);
	}
}

/*
 * The storage is going.  The caller holds extent_lock, in a critical section.
 */
static void
row_forgotten(NvmRelState *rel)
{
	NvmRowState *row = nvm_rel_row(rel);

	for (int k = 0; k < NVM_RELMAP_SEGS; k++)
	{
		if (row->fsm[k] != NULL)
			nvm_dram_free_locked(row->fsm[k], (Size) NVM_FREEMAP_BASE << k);
	}
}

/*
 * See nvm_row_state.h.  Also for the pool, which holds the extend lock.
 */
void
nvm_row_state_opened(NvmRelState *rel, uint32 nblocks)
{
	NvmRowState *row = nvm_rel_row(rel);

	pg_atomic_write_u32(&row->hint_next,
						nblocks > START_LOOKS ? nblocks - START_LOOKS : 0);
	pg_atomic_write_u32(&row->hint_free_blocks, 1);
	if (nblocks > START_LOOKS)
		pg_atomic_write_u32(&row->hint_again, 1);
}

void
nvm_row_state_register(void)
{
	static const NvmRelUser user = {
		.emptied = row_emptied,
		.forgotten = row_forgotten,
		.opened = nvm_row_state_opened
	};

	nvm_rel_register_user(NVM_DIR_KIND_TABLE, &user);
}
