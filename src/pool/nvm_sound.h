/*-------------------------------------------------------------------------
 *
 * nvm_sound.h
 *	  Blocks whose bytes need not be verified any more: a bit for each unit of
 *	  a region, in DRAM.
 *
 * The process that comes to a block first after a start verifies what the
 * medium holds; later ones do not.  The code is row/sound.c for blocks of
 * tables, btree/btree_prove.c for index pages, and row/large_read.c for large
 * values.  A large value has the bit of its run's first unit.  A set bit means
 * that this has been done, or that this run of the server has made the block.
 * All bits are 0 after a start.  An allocation sets the bits of its extent,
 * and adding a block sets the block's.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_SOUND_H
#define NVM_SOUND_H

#include "pool/nvm_pool.h"

extern uint64 *nvm_sound_bits;	/* atomic; of the chunks that there are */

extern bool nvm_ignore_damage;	/* setting: nothing is verified so */

/* block: where it is mapped */
static inline bool
nvm_unit_is_sound(const void *block)
{
	uint64		unit = nvm_unit_of(block);

	return ((__atomic_load_n(&nvm_sound_bits[unit / 64], __ATOMIC_RELAXED) >> (unit % 64)) & 1) != 0;
}

static inline void
nvm_unit_set_sound(const void *block)
{
	uint64		unit = nvm_unit_of(block);

	(void) __atomic_fetch_or(&nvm_sound_bits[unit / 64], UINT64CONST(1) << (unit % 64),
							 __ATOMIC_RELAXED);
}

#endif							/* NVM_SOUND_H */
