/*-------------------------------------------------------------------------
 *
 * version.c
 *	  Row versions: existence, checksum, and the table layer's shared memory.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pool/nvm_pool.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_version.h"
#include "storage/shmem.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_snapshot.h"

StaticAssertDecl(offsetof(NvmVersion, tuple) == NVM_VERSION_HEADER,
				 "NvmVersion header has a hole");
StaticAssertDecl(offsetof(NvmTupleHeader, infomask2) == offsetof(HeapTupleHeaderData, t_infomask2) &&
				 offsetof(NvmTupleHeader, infomask) == offsetof(HeapTupleHeaderData, t_infomask) &&
				 offsetof(NvmTupleHeader, hoff) == offsetof(HeapTupleHeaderData, t_hoff) &&
				 offsetof(NvmTupleHeader, bits) == offsetof(HeapTupleHeaderData, t_bits) &&
				 offsetof(NvmTupleHeader, root_blk_hi) == offsetof(HeapTupleHeaderData, t_ctid),
				 "NvmTupleHeader is not laid out like HeapTupleHeaderData");
StaticAssertDecl(NVM_TUPLE_HASNULL == HEAP_HASNULL && NVM_TUPLE_HASVARWIDTH == HEAP_HASVARWIDTH &&
				 NVM_TUPLE_HASEXTERNAL == HEAP_HASEXTERNAL && NVM_TUPLE_NATTS(0xFFFF) == HEAP_NATTS_MASK &&
				 NVM_TUPLE_MIN == SizeofHeapTupleHeader,
				 "tuples are not what verify/ takes them for");
StaticAssertDecl(NVM_CELLS - 1 <= MaxHeapTuplesPerPage,
				 "offset numbers exceed what a TID bitmap takes");
StaticAssertDecl(NVM_UNIT_SIZE == BLCKSZ, "a block is one pool unit");
StaticAssertDecl(sizeof(NvmBlock) == NVM_BLOCK_HEADER_SIZE &&
				 NVM_BLOCK_HEADER_SIZE == NVM_FIRST_CELL * NVM_CELL_SIZE,
				 "block header does not fill its cells");

NvmTableShared *NvmTable = NULL;

Size
nvm_table_shmem_size(void)
{
	return MAXALIGN(sizeof(NvmTableShared));
}

int
nvm_table_num_lwlocks(void)
{
	return 2 * NVM_LOCK_PARTITIONS;
}

/*
 * Attach to, or set up, the table layer's shared memory.
 *
 * Caller holds AddinShmemInitLock.
 */
void
nvm_table_shmem_startup(void)
{
	bool		found;

	NvmTable = ShmemInitStruct("nvm table", nvm_table_shmem_size(), &found);
	if (!found)
	{
		LWLockPadded *locks = GetNamedLWLockTranche(NVM_TABLE_TRANCHE);

		NvmTable->row_locks = locks;
		NvmTable->alloc_locks = locks + NVM_LOCK_PARTITIONS;
	}
}

/*
 * Is (blk, off) the first cell of an area of an initialised block?
 */
bool
nvm_tid_exists(NvmRelState *state, uint32 blk, uint32 off)
{
	NvmBlock   *block;

	if (off < NVM_FIRST_CELL || off >= NVM_CELLS || blk >= nvm_rel_nblocks(state))
		return false;
	block = nvm_block(state, blk);
	return block->magic == NVM_BLOCK_MAGIC &&
		(nvm_load(&block->starts[off / 64]) & (UINT64CONST(1) << (off % 64))) != 0;
}

/*
 * The begin word of the area that starts at (blk, off); 0 if there is none, or
 * if it is free or retired.
 *
 * A retired area can be freed at any moment and its cells handed out anew, so
 * that (blk, off) is in the middle of a larger area.  Hence begin is read
 * first, then the bit.  An area that is not retired when the bit is read
 * stays as long as our snapshot, because a later retirement carries an xid
 * that the snapshot holds back.
 *
 * A published snapshot holds back no more than what is found here, until the
 * caller leaves.  So for such a snapshot the bit is looked at before begin as
 * well.
 */
uint64
nvm_tid_begin(NvmRelState *state, uint32 blk, uint32 off)
{
	NvmBlock   *block;
	uint64		begin;

	if (off < NVM_FIRST_CELL || off >= NVM_CELLS || blk >= nvm_rel_nblocks(state))
		return 0;
	block = nvm_block(state, blk);
	if (block->magic != NVM_BLOCK_MAGIC)
		return 0;
	if (unlikely(nvm_reader_published) &&
		(nvm_load(&block->starts[off / 64]) & (UINT64CONST(1) << (off % 64))) == 0)
		return 0;
	begin = nvm_load(&nvm_cell(state, blk, off)->begin);
	if (begin == 0 ||
		(NVM_STAMP_IS_SPECIAL(begin) && NVM_STAMP_SLOT(begin) == NVM_STAMP_RETIRED) ||
		(nvm_load(&block->starts[off / 64]) & (UINT64CONST(1) << (off % 64))) == 0)
		return 0;
	return begin;
}

/*
 * Do the lengths fit the block, and the checksum what it covers?  Nothing
 * beyond the block is read, whatever the version holds.
 */
bool
nvm_version_is_sound(const NvmVersion *v)
{
	uint32		off = NvmPoolOff(v) % NVM_UNIT_SIZE / NVM_CELL_SIZE;
	uint32		cells = NvmVersionCells(v);

	return cells >= 2 && off + cells <= NVM_CELLS &&
		v->len >= SizeofHeapTupleHeader &&
		(uint32) NVM_VERSION_HEADER + v->len <= cells * NVM_CELL_SIZE &&
		v->crc == nvm_version_crc(v);
}

/*
 * ERROR for a link that leads nowhere.
 */
void
nvm_ref_damaged(NvmRelState *state, uint64 ref)
{
	NvmDirEntry *entry = nvm_dir_entry(state->dir);

	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("nvm relation file %u/%llu is damaged: a row version leads to (%u,%u), which does not exist",
					entry->database, (unsigned long long) entry->relnumber,
					NVM_REF_BLOCK(ref), NVM_REF_OFFSET(ref)),
			 errhint("Run nvm.check() on the table, copy the other rows to a new table, and restore this one from a backup.")));
}

/*
 * A reader has found a stamp in begin or end of v that no transaction has.
 * Is v still an area, so that it is damaged?  If not its cells have been
 * handed out anew, and it was something else's contents.
 */
bool
nvm_version_stays(const NvmVersion *v)
{
	uint64		at = NvmPoolOff(v);
	uint32		off = at % NVM_UNIT_SIZE / NVM_CELL_SIZE;
	const NvmBlock *block = NvmPoolPtr(at - at % NVM_UNIT_SIZE);

	return (nvm_load(&block->starts[off / 64]) & (UINT64CONST(1) << (off % 64))) != 0;
}

/*
 * ERROR for such a version.  which: "begin" or "end".
 */
void
nvm_stamp_damaged(const NvmVersion *v, const char *which, uint64 stamp)
{
	uint64		at = NvmPoolOff(v);
	const NvmBlock *block = NvmPoolPtr(at - at % NVM_UNIT_SIZE);
	NvmDirEntry *entry = block->dir < NVM_MAX_DIRS ? nvm_dir_entry(block->dir) : NULL;

	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("nvm relation file %u/%llu is damaged: the %s stamp of row version (%u,%u), %u/%llu, is no transaction's",
					entry ? entry->database : 0,
					entry ? (unsigned long long) entry->relnumber : 0,
					which, block->blkno, (uint32) (at % NVM_UNIT_SIZE / NVM_CELL_SIZE),
					(uint32) NVM_STAMP_SLOT(stamp), (unsigned long long) NVM_STAMP_COUNTER(stamp)),
			 errhint("Run nvm.check() on the table, copy the other rows to a new table, and restore this one from a backup.")));
}

/*
 * A walk along a chain has come far: see nvm_version.h.  Brent's search: the TID to
 * compare with is replaced after twice as many steps as the one before.
 */
bool
nvm_chain_circles_slow(NvmChainGuard *guard, uint64 ref)
{
	if (guard->steps == NVM_CHAIN_UNGUARDED + 1)
	{
		guard->met = 0;
		guard->limit = guard->steps;
	}
	if (ref == guard->met)
		return true;
	if (guard->steps == guard->limit)
	{
		guard->met = ref;
		guard->limit *= 2;
	}
	return false;
}

void
nvm_chain_damaged(NvmRelState *state, uint64 ref)
{
	NvmDirEntry *entry = nvm_dir_entry(state->dir);

	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("nvm relation file %u/%llu is damaged: the versions of a row lead in a circle through (%u,%u)",
					entry->database, (unsigned long long) entry->relnumber,
					NVM_REF_BLOCK(ref), NVM_REF_OFFSET(ref)),
			 errhint("Run nvm.check() on the table, copy the other rows to a new table, and restore this one from a backup.")));
}

/*
 * ERROR for a version that is not sound.
 */
void
nvm_version_damaged(Relation rel, uint32 blk, uint32 off)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("row version (%u,%u) of nvm table \"%s\" is damaged: wrong length or checksum",
					blk, off, RelationGetRelationName(rel)),
			 errhint("Run nvm.check() on the table, copy the other rows to a new table, and restore this one from a backup.")));
}
