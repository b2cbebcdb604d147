/*-------------------------------------------------------------------------
 *
 * large_collect.c
 *	  Large values that a crash left without an owner, and their check.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pool/nvm_pool.h"
#include "port/pg_crc32c.h"
#include "row/nvm_large.h"
#include "row/nvm_large_run.h"
#include "row/nvm_modify.h"
#include "row/nvm_version.h"
#include "utils/memutils.h"
#include "wbl/nvm_wbl.h"

typedef struct LargeWalk
{
	uint64	   *units;
	int			n;
	int			max;
} LargeWalk;

static void
large_walk_note(uint64 unit, uint64 word, void *arg)
{
	LargeWalk  *walk = arg;

	if (walk->n < walk->max)
		walk->units[walk->n] = unit;
	walk->n++;
}

/*
 * Has the run no owner, and will it have none?  Caller holds the extend lock
 * exclusively, so that no backend is between allocation and stamp, nor between
 * the runs and the version in nvm_large_release.
 */
static bool
large_is_orphan(NvmRelState *state, uint64 offset)
{
	NvmLargeHeader *run = large_header(offset);
	uint64		stamp = nvm_load(&run->stamp);
	NvmVersion *v;
	uint64		begin;
	uint64		head;

	if (stamp == 0)
		return true;
	if (NVM_STAMP_IS_SPECIAL(stamp))
		return false;
	if (nvm_stamp_in_gap(stamp))
		return true;

	/* while its transaction may go on, the version may be yet to come */
	if (!nvm_stamp_is_frozen(stamp))
		return false;
	if (run->owner_offset == 0 ||
		!nvm_tid_exists(state, run->owner_block, run->owner_offset))
		return true;

	v = nvm_cell(state, run->owner_block, run->owner_offset);
	begin = nvm_load(&v->begin);
	if (begin == 0)
		return true;
	if (NVM_STAMP_SLOT(begin) == NVM_STAMP_STUB)
		return false;			/* its tail goes with its runs */
	if (!(v->flags & NVM_VF_LARGE))
		return true;
	if (run->segment > 0)
		return false;			/* found through the first run */
	for (int i = 0; (head = nvm_large_head(v, i)) != 0; i++)
	{
		if (head == offset)
			return false;
	}
	return true;
}

/*
 * The gap collector's sweep over the runs of a storage: free those that belong
 * to transactions in a gap, and those that a crash left without an owner.
 */
void
nvm_collect_large(uint32 dir)
{
	NvmRelState *state;
	LargeWalk	walk = {NULL, 0, 0};
	LWLock	   *lock;

	if (pg_atomic_read_u32(&nvm_relstates[dir].nlarge) == 0)
		return;
	state = nvm_rel_open(dir);
	lock = nvm_rel_extend_lock(state);

	/* size the list without the lock, with room for what comes meanwhile */
	for (;;)
	{
		walk.max = pg_atomic_read_u32(&state->nlarge) + 64;
		walk.units = MemoryContextAllocHuge(CurrentMemoryContext,
											walk.max * sizeof(uint64));
		walk.n = 0;
		LWLockAcquire(lock, LW_EXCLUSIVE);
		nvm_extents_walk(NVM_EXT_LARGE, dir, large_walk_note, &walk);
		if (walk.n <= walk.max)
			break;
		LWLockRelease(lock);
		pfree(walk.units);
	}

	for (int i = 0; i < walk.n; i++)
	{
		uint64		offset = walk.units[i] * NVM_UNIT_SIZE;

		if (large_is_orphan(state, offset))
			nvm_large_free(offset);
	}
	LWLockRelease(lock);
	pfree(walk.units);
}

/*
 * Check the runs of value i of a version; NULL if all is well, else what is
 * wrong, in static memory.  For nvm.check().
 */
const char *
nvm_large_verify(NvmRelState *state, const NvmVersion *v, uint32 blk, uint32 off,
				 int i)
{
	uint64		offset = nvm_large_head(v, i);
	uint64		total;
	uint64		done = 0;
	uint32		segment = 0;

	if (!nvm_large_is_of(offset, state->dir))
		return "the extent of a large value is not the table's";
	total = large_header(offset)->total;
	do
	{
		NvmLargeHeader *run = large_header(offset);
		pg_crc32c	crc;

		if (!large_run_is_owned(offset, state->dir, blk, off, segment))
			return "a run of a large value belongs to another row";
		if (run->length == 0 || !large_run_is_mapped(offset) ||
			run->total != total || run->length > total - done)
			return "the lengths of a large value's runs do not add up";
		INIT_CRC32C(crc);
		COMP_CRC32C(crc, large_data(offset), run->length);
		FIN_CRC32C(crc);
		if (crc != run->crc)
			return "wrong checksum of a large value";
		done += run->length;
		offset = run->next;
		segment++;
	} while (done < total);

	if (offset != 0)
		return "a large value has more runs than its length needs";
	return NULL;
}
