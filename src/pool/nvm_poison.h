/*-------------------------------------------------------------------------
 *
 * nvm_poison.h
 *	  Fills free space with a pattern, in builds with assertions.
 *
 * A reader that comes to a version, or a large value, asserts that it does not
 * have the pattern.  A process that hands cells out asserts that the pattern
 * is as it was left: then nobody has written there since.  Other builds have
 * nothing of this.
 *
 * Of each free cell three words are poisoned or guarded:
 *
 *	 next    stays as it was: lock-free readers of starts may still ask it how many
 *			 cells the area has
 *	 end     NVM_POISON: no stamp, no length of a tuple
 *	 link    a hash of next, so that a change of that is noticed, too; as a link it
 *			 leads nowhere
 *	 begin   0, as the invariant of free cells wants it (media_block.h)
 *
 * A crash may leave any part of the pattern, or none.  That does no harm: the
 * contents of such bytes mean nothing.  Cells are poisoned when it is durable
 * that no area has them and that their begin words are 0.  A large value is
 * poisoned when it is durable that its units belong to nobody.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_POISON_H
#define NVM_POISON_H

#include <string.h>

#include "media/media_block.h"

#ifdef USE_ASSERT_CHECKING

/* as a stamp its slot is none; as NvmVersion.len it is longer than a block */
#define NVM_POISON			UINT64CONST(0xDEADF1EECE105A5A)
#define NVM_POISON_BYTE		0x7E
#define NVM_POISON_BYTES	UINT64CONST(0x7E7E7E7E7E7E7E7E)

/* the words of a cell, by the names that they have in the first one of a version */
typedef struct NvmPoisonCell
{
	uint64		next;
	uint64		end;
	uint64		link;
	uint64		begin;
} NvmPoisonCell;

static inline NvmPoisonCell *
nvm_poison_cell(NvmBlock *block, uint32 cell)
{
	return (NvmPoisonCell *) ((char *) block + cell * NVM_CELL_SIZE);
}

/* never 0; its offset as a reference is, so that it leads nowhere */
static inline uint64
nvm_poison_hash(uint64 next)
{
	uint64		h = (next ^ (next >> 29) ^ NVM_POISON) * UINT64CONST(0x9E3779B97F4A7C15);

	return ((h >> 32) | 1) << 16;
}

/*
 * Cells [from, to) of a block have been given back: durably no area has them.
 * Caller holds the block's allocation lock, and has not handed them out.
 */
static inline void
nvm_poison_cells(NvmBlock *block, uint32 from, uint32 to)
{
	for (uint32 cell = from; cell < to; cell++)
	{
		NvmPoisonCell *c = nvm_poison_cell(block, cell);

		c->end = NVM_POISON;
		c->link = nvm_poison_hash(c->next);
	}
}

/*
 * Nobody has written to the free cells [from, to) since.  Cells that were
 * never in use are zero.  Caller holds the block's allocation lock.
 */
static inline void
nvm_poison_check_cells(NvmBlock *block, uint32 from, uint32 to)
{
	for (uint32 cell = from; cell < to; cell++)
	{
		NvmPoisonCell *c = nvm_poison_cell(block, cell);

		Assert(c->begin == 0);
		Assert((c->end == NVM_POISON) == (c->link == nvm_poison_hash(c->next)));
	}
}

/*
 * Is there the pattern in one of a version's first two cells?
 */
#define NVM_LOOKS_FREE(v) \
	(*(volatile uint64 *) &(v)->end == NVM_POISON || \
	 *(volatile uint64 *) &(v)->len == NVM_POISON)

/* a reader is about to read the tuple of v, which it sees */
#define NVM_ASSERT_NOT_FREE(v)	Assert(!NVM_LOOKS_FREE(v))
/* the same of a place in a chain, where a stub has no second cell */
#define NVM_ASSERT_CHAIN_NOT_FREE(v) \
	Assert(*(volatile uint64 *) &(v)->end != NVM_POISON)

/*
 * The units of a large value belong to nobody, durably.
 */
static inline void
nvm_poison_large(void *start, Size len)
{
	memset(start, NVM_POISON_BYTE, len);
}

#define NVM_ASSERT_LARGE_NOT_FREE(run)	Assert((run)->stamp != NVM_POISON_BYTES)

#else

#define nvm_poison_cells(block, from, to)		((void) 0)
#define nvm_poison_check_cells(block, from, to) ((void) 0)
#define NVM_ASSERT_NOT_FREE(v)					((void) 0)
#define NVM_ASSERT_CHAIN_NOT_FREE(v)			((void) 0)
#define nvm_poison_large(start, len)			((void) 0)
#define NVM_ASSERT_LARGE_NOT_FREE(run)			((void) 0)

#endif							/* USE_ASSERT_CHECKING */

#endif							/* NVM_POISON_H */
