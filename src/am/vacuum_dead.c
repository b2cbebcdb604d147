/*-------------------------------------------------------------------------
 *
 * vacuum_dead.c
 *	  The dead roots that VACUUM has found, and the question that indexes ask of
 *	  each entry: does it go?
 *
 * It is asked once for each entry of each index, in the order of keys.  So of
 * the list of TIDs, which is in order, we make a bitmap for each block with dead
 * roots: an answer costs two loads instead of twenty comparisons.  Where the
 * bitmaps would take more memory than maintenance_work_mem grants the list, the
 * list is searched.
 *
 * The participants of a parallel VACUUM share the bitmaps, or the list.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "am/nvm_vacuum.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_relation.h"
#include "row/nvm_version.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_block.h"

/* a bit for each cell of a block */
struct NvmDeadBits
{
	uint64		word[NVM_CELLS / 64];
};

/*
 * Keep a dead root for the index pass.  Roots come in order of their TIDs; the
 * caller made sure that there is room (dead_max).
 */
void
nvm_vacuum_remember_dead(NvmVacuum *vac, uint32 blkno, uint16 offset)
{
	if (vac->ndead == vac->dead_size)
	{
		int64		size = Min(vac->dead_max, Max(vac->dead_size * 2, 1024));

		if (vac->dead == NULL)
			vac->dead = (ItemPointerData *)
				MemoryContextAllocHuge(CurrentMemoryContext,
									   size * sizeof(ItemPointerData));
		else
			vac->dead = (ItemPointerData *)
				repalloc_huge(vac->dead, size * sizeof(ItemPointerData));
		vac->dead_size = size;
	}
	if (vac->ndead == 0 ||
		ItemPointerGetBlockNumber(&vac->dead[vac->ndead - 1]) != blkno)
		vac->ndead_blocks++;
	ItemPointerSet(&vac->dead[vac->ndead], blkno, offset);
	vac->ndead++;
}

/*
 * The roots are freed, or left for another VACUUM.
 */
void
nvm_vacuum_forget_dead(NvmVacuum *vac)
{
	vac->ndead = 0;
	vac->ndead_blocks = 0;
}

static Size
map_size(NvmVacuum *vac)
{
	return (Size) vac->ndead_blocks * sizeof(NvmDeadBits) +
		(Size) vac->nblocks * sizeof(uint32);
}

static void
place_map(NvmVacuum *vac, void *memory)
{
	vac->dead_bits = (NvmDeadBits *) memory;
	vac->dead_slot = (uint32 *) (vac->dead_bits + vac->ndead_blocks);
}

/*
 * Are there dead roots, and the bitmaps of them small enough?
 */
static bool
can_map(NvmVacuum *vac)
{
	return vac->ndead > 0 && !NVM_FAILPOINT_MISSES("vacuum-map") &&
		map_size(vac) <= (Size) vac->dead_max * sizeof(ItemPointerData);
}

/*
 * Make the bitmaps, in memory of map_size() that is all zeroes.
 */
static void
make_map(NvmVacuum *vac, void *memory)
{
	uint32		n = 0;

	Assert(vac->dead_slot == NULL);
	place_map(vac, memory);
	for (int64 i = 0; i < vac->ndead; i++)
	{
		uint32		blk = ItemPointerGetBlockNumber(&vac->dead[i]);
		uint32		cell = ItemPointerGetOffsetNumber(&vac->dead[i]);

		if (vac->dead_slot[blk] == 0)
			vac->dead_slot[blk] = ++n;
		vac->dead_bits[vac->dead_slot[blk] - 1].word[cell / 64] |=
			UINT64CONST(1) << (cell % 64);
	}
	Assert(n == vac->ndead_blocks);
}

/*
 * Make the bitmaps, if they are small enough.  Those of one index pass.
 */
void
nvm_vacuum_map_dead(NvmVacuum *vac)
{
	if (can_map(vac))
		make_map(vac, MemoryContextAllocExtended(CurrentMemoryContext, map_size(vac),
												 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
}

void
nvm_vacuum_unmap_dead(NvmVacuum *vac)
{
	if (vac->dead_slot == NULL)
		return;
	pfree(vac->dead_bits);
	vac->dead_slot = NULL;
	vac->dead_bits = NULL;
}

/* ---- what the participants of a parallel VACUUM share ---- */

Size
nvm_vacuum_share_size(NvmVacuum *vac)
{
	return can_map(vac) ? map_size(vac) : vac->ndead * sizeof(ItemPointerData);
}

/*
 * Fill shared memory of that size, and ask it from now on.
 */
void
nvm_vacuum_share_dead(NvmVacuum *vac, NvmSharedDead *shared, void *memory)
{
	shared->nblocks = vac->nblocks;
	shared->ndead_blocks = vac->ndead_blocks;
	shared->ndead = vac->ndead;
	shared->mapped = can_map(vac);
	if (!shared->mapped)
	{
		memcpy(memory, vac->dead, vac->ndead * sizeof(ItemPointerData));
		return;
	}
	memset(memory, 0, map_size(vac));
	make_map(vac, memory);
}

/*
 * In a worker.
 */
void
nvm_vacuum_attach_dead(NvmVacuum *vac, NvmSharedDead *shared, void *memory)
{
	vac->nblocks = shared->nblocks;
	vac->ndead_blocks = shared->ndead_blocks;
	vac->ndead = shared->ndead;
	if (shared->mapped)
		place_map(vac, memory);
	else
		vac->dead = (ItemPointerData *) memory;
}

/*
 * The shared memory is about to go.
 */
void
nvm_vacuum_detach_dead(NvmVacuum *vac)
{
	vac->dead_slot = NULL;
	vac->dead_bits = NULL;
}

static bool
dead_is_mapped(NvmVacuum *vac, uint32 blk, uint32 off)
{
	uint32		slot;

	/* what a crash or damage left in an index may be any TID */
	if (blk >= vac->nblocks || off >= NVM_CELLS || (slot = vac->dead_slot[blk]) == 0)
		return false;
	return (vac->dead_bits[slot - 1].word[off / 64] >> (off % 64)) & 1;
}

static bool
dead_is_listed(NvmVacuum *vac, ItemPointer tid)
{
	int64		low = 0;
	int64		high = vac->ndead;

	while (low < high)
	{
		int64		mid = (low + high) / 2;
		int32		cmp = ItemPointerCompare(&vac->dead[mid], tid);

		if (cmp == 0)
			return true;
		if (cmp < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return false;
}

/*
 * Is (blk, off) the root of a row?  Dead ones and stubs are.
 */
static bool
root_exists(NvmRelState *state, uint32 blk, uint32 off)
{
	NvmVersion *v;
	uint64		begin;

	if (!nvm_tid_exists(state, blk, off))
		return false;
	v = nvm_cell(state, blk, off);
	begin = nvm_load(&v->begin);
	if (begin == 0)
		return false;
	if (NVM_STAMP_IS_SPECIAL(begin))
		return !nvm_begin_is(begin, NVM_STAMP_RETIRED);
	return (v->flags & NVM_VF_ROOT) != 0;
}

/*
 * IndexBulkDeleteCallback: shall the entry go?
 */
bool
nvm_vacuum_tid_reaped(ItemPointer tid, void *arg)
{
	NvmVacuum  *vac = (NvmVacuum *) arg;
	uint32		blk = ItemPointerGetBlockNumberNoCheck(tid);
	uint32		off = ItemPointerGetOffsetNumberNoCheck(tid);

	if (vac->dead_slot != NULL ? dead_is_mapped(vac, blk, off) : dead_is_listed(vac, tid))
		return true;
	if (blk < vac->nblocks)
		return vac->nsuspect > 0 &&
			(vac->suspect[blk / 8] & (1 << (blk % 8))) != 0 &&
			!root_exists(vac->state, blk, off);

	/* beyond the end: the block was never durable */
	return blk >= nvm_rel_nblocks(vac->state);
}
