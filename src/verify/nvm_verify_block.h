/*-------------------------------------------------------------------------
 *
 * nvm_verify_block.h
 *	  What can be wrong with blocks, row versions, chains and large values.
 *
 * Compiled into the server and into nvm_poolcheck.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_VERIFY_BLOCK_H
#define NVM_VERIFY_BLOCK_H

#include "media/media_block.h"
#include "media/media_pool.h"
#include "media/media_slot.h"
#include "media/media_word.h"

/* ---- reading versions ---- */

#define NvmVersionCells(v)		NVM_NEXT_CELLS(NVM_REF_HI((v)->next))

static inline uint64
nvm_version_root(const NvmVersion *v)
{
	return NVM_REF_MAKE(((uint32) v->tuple.root_blk_hi << 16) | v->tuple.root_blk_lo,
						v->tuple.root_offset, 0);
}

/*
 * Iterate over the cells of a block at which an area starts.  Reads the bitmap
 * word by word.  Areas that appear meanwhile may be missed; no snapshot needs
 * them. Returns the next start >= cell, or 0.
 */
static inline uint32
nvm_block_next_start(const NvmBlock *block, uint32 cell)
{
	while (cell < NVM_CELLS)
	{
		uint64		word = nvm_load(&block->starts[cell / 64]) >> (cell % 64);

		if (word != 0)
			return cell + __builtin_ctzll(word);
		cell = (cell / 64 + 1) * 64;
	}
	return 0;
}

/* is the begin stamp one that a reader may follow at all (not special, not 0)? */
static inline bool
nvm_begin_is_version(uint64 begin)
{
	return begin != 0 && !NVM_STAMP_IS_SPECIAL(begin);
}

static inline bool
nvm_begin_is(uint64 begin, uint32 kind)
{
	return begin != 0 && NVM_STAMP_SLOT(begin) == kind;
}

/* the checksum of the block at that offset, over its identity, for its header */
extern uint32 nvm_block_check_word(uint32 dir, uint32 blkno, uint64 offset);

extern uint32 nvm_version_crc(const NvmVersion *v);

/* infomask bits that are part of the stored tuple; the others are run-time.
 * Their values are HeapTupleHeaderData's; row/ asserts that */
#define NVM_TUPLE_HASNULL		0x0001
#define NVM_TUPLE_HASVARWIDTH	0x0002
#define NVM_TUPLE_HASEXTERNAL	0x0004
#define NVM_INFOMASK_FIXED \
	(NVM_TUPLE_HASNULL | NVM_TUPLE_HASVARWIDTH | NVM_TUPLE_HASEXTERNAL)
#define NVM_TUPLE_NATTS(infomask2)	((infomask2) & 0x07FF)
#define NVM_TUPLE_MIN			23	/* offsetof(NvmTupleHeader, bits) */

/*
 * Bytes at the end of a tuple with NVM_VF_LARGE, beyond its columns: a word
 * for each of the n values it has outside, and n in 2 bytes.  Not aligned.
 *
 * The word is the pool offset of the value, a multiple of NVM_UNIT_SIZE, plus
 * the place in the tuple where the value's stand-in holds that offset.  So a
 * copy of the tuple can be led to copies of its values without a catalog.
 */
#define NVM_LARGE_TRAILER(n)	((n) * sizeof(uint64) + sizeof(uint16))
#define NVM_LARGE_OFFSET(word)	((word) & ~(uint64) (NVM_UNIT_SIZE - 1))
#define NVM_LARGE_PLACE(word)	((uint32) ((word) & (NVM_UNIT_SIZE - 1)))

/*
 * `cell` is marked used although no area covers it.  Does it hold what looks
 * like a version or a stub? row/block_ready.c says what else it takes to be sure
 * that a starts bit was lost.
 */
static inline bool
nvm_cell_looks_taken(const NvmBlock *block, uint32 cell)
{
	uint64		begin = nvm_load(&((const NvmVersion *) ((const char *) block + cell * NVM_CELL_SIZE))->begin);

	return nvm_begin_is(begin, NVM_STAMP_STUB) ||
		(nvm_begin_is_version(begin) && NVM_STAMP_SLOT(begin) < NVM_SLOT_NUMBERS);
}

/* ---- checks ---- */

typedef struct NvmBlockCheck NvmBlockCheck;

/*
 * How the checks learn what is not in the block at hand.
 */
typedef struct NvmBlockCheckOps
{
	/* a block of the storage; NULL if it has none of that number */
	NvmBlock   *(*block) (NvmBlockCheck *check, uint32 blkno);
	/* did an incarnation end in a crash? */
	bool		(*crashed) (NvmBlockCheck *check, uint32 incarnation);
	/* may any stamp be in a gap; is this one? */
	bool		(*any_gap) (NvmBlockCheck *check);
	bool		(*in_gap) (NvmBlockCheck *check, uint64 stamp);

	/*
	 * the counter up to which a slot may have handed out stamps; false if it
	 * was never used
	 */
	bool		(*handed_out) (NvmBlockCheck *check, uint32 slot, uint64 *limit);
	/* is that full transaction id yet to be handed out?  NULL: nobody knows */
	bool		(*xid_to_come) (NvmBlockCheck *check, uint64 fxid);
	/* does the storage own an extent of a large value that begins there? */
	bool		(*owns_large) (NvmBlockCheck *check, uint64 unit);
	/* whatever else is to be said of a tuple with a right length and checksum */
	void		(*tuple) (NvmBlockCheck *check, NvmVersion *v, uint64 begin,
						  uint32 blk, uint32 off);
	/* a finding; off 0 means the block as a whole */
	void		(*report) (NvmBlockCheck *check, uint32 blk, uint32 off,
						   const char *fmt,...) pg_attribute_printf(4, 5);
} NvmBlockCheckOps;

/*
 * A check of the blocks of a storage.
 */
struct NvmBlockCheck
{
	const NvmBlockCheckOps *ops;
	const char *base;			/* start of the mapping */
	uint32		dir;
	uint32		incarnation;	/* the one that runs; or, if none does, the
								 * next */
	uint16		marks;			/* what its run-time marks carry; 0: it has
								 * none */
};

/* everything about one block but what its large values hold */
extern void nvm_verify_block(NvmBlockCheck *check, NvmBlock *block, uint32 blk);

/*
 * Check the frame of a tuple's attributes.  *limit becomes the end of these,
 * and *nlarge the number of words behind that.  False if that makes no sense.
 */
extern bool nvm_verify_tuple(NvmBlockCheck *check, const NvmVersion *v, uint32 blk,
							 uint32 off, uint32 *limit, uint16 *nlarge);

/* what is wrong with the large value at an offset that version (blk, off)
 * names, or NULL; `bytes`: look at its bytes, too */
extern const char *nvm_large_problem(NvmBlockCheck *check, uint64 offset,
									 uint32 blk, uint32 off, bool bytes);

#endif							/* NVM_VERIFY_BLOCK_H */
