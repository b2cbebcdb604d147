/*-------------------------------------------------------------------------
 *
 * storage_copy.c
 *	  Copy a storage as it is: for SET TABLESPACE and CREATE DATABASE.
 *
 * Blocks are copied with their versions and stamps.  So TIDs, hence indexes,
 * stay the same, and old snapshots see the same rows.  In one pool a stamp
 * means the same everywhere.  Only three things are not copied but made anew:
 * the fields of a block's header that name the storage; the runs of large
 * values, with the places in tuples that lead to them; and changes of which a
 * gap says that they never happened.
 *
 * The copy belongs to a directory entry of the current transaction.  Nobody
 * looks at it until that transaction is decided.  So it needs no undo and no
 * fence of its own.  The gap collector knows all storages.  Up to its last
 * step the copy has no blocks for anybody, so the collector does not look at
 * half a block.  It may look at the runs of large values.  They carry our own
 * stamp, which is not frozen while we run; so the collector leaves them alone.
 *
 * A stamp in a gap may be copied.  The collector then finds it in the copy,
 * even if it has passed the source already: it drops no gap before all
 * transactions that ran during its sweep are over, ours among them.
 *
 * The caller makes sure that nobody changes the source.  The collector may.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_large.h"
#include "row/nvm_modify.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_row_state.h"
#include "row/nvm_space.h"
#include "row/nvm_version.h"
#include "storage/nvm_storage_relation.h"
#include "verify/nvm_verify.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_xact.h"

typedef struct CopyState
{
	NvmRelState *from;
	NvmRelState *to;
	NvmStamp	stamp;			/* our own */
} CopyState;

static void
			copy_damaged(CopyState *copy, uint32 blk, uint32 off, const char *problem) __attribute__((noreturn));

/*
 * The source may be another database's, so there is no name to give.
 */
static void
copy_damaged(CopyState *copy, uint32 blk, uint32 off, const char *problem)
{
	NvmDirEntry *entry = nvm_dir_entry(copy->from->dir);

	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("cannot copy damaged nvm relation file %u/%llu: %s",
					entry->database, (unsigned long long) entry->relnumber, problem),
			 errdetail("The damage is at (%u,%u).", blk, off),
			 errhint("Run nvm.check() on the table, copy the other rows to a new table, and restore this one from a backup.")));
}

/*
 * Copy the value whose first run is at `head`; returns the first run of the
 * copy.  All runs are allocated first, because each header names the next.  No
 * lock: the copy is ours until we commit.
 */
static uint64
copy_value(CopyState *copy, uint64 head)
{
	uint64		first = 0;
	uint64		last = 0;

	for (uint64 at = head; at != 0;)
	{
		NvmLargeHeader *run = NvmPoolPtr(at);
		Size		bytes = sizeof(NvmLargeHeader) + run->length;
		uint64		new = nvm_large_new_run(copy->to,
											(bytes + NVM_UNIT_SIZE - 1) / NVM_UNIT_SIZE,
											copy->stamp);
		NvmLargeHeader *copied = NvmPoolPtr(new);

		CHECK_FOR_INTERRUPTS();
		/* the stamp, the last word of the header, is there already */
		memcpy(copied, run, offsetof(NvmLargeHeader, stamp));
		copied->next = 0;
		memcpy(copied + 1, run + 1, run->length);
		nvm_flush(copied, bytes);
		if (last == 0)
			first = new;
		else
		{
			((NvmLargeHeader *) NvmPoolPtr(last))->next = new;
			nvm_flush(NvmPoolPtr(last), sizeof(NvmLargeHeader));
		}
		last = new;
		at = run->next;
		NVM_FAILPOINT("copy-large-run");
	}
	return first;
}

/*
 * Give version v of the copy values of its own.
 */
static void
copy_large_values(CopyState *copy, NvmVersion *v, uint32 blk, uint32 off)
{
	for (int i = 0; nvm_large_head(v, i) != 0; i++)
	{
		const char *problem = nvm_large_verify(copy->from, v, blk, off, i);

		if (problem != NULL)
			copy_damaged(copy, blk, off, problem);
		if (!nvm_large_repoint(v, i, copy_value(copy, nvm_large_head(v, i))))
			copy_damaged(copy, blk, off, "the stand-in of a large value is not in its place");
	}
	v->crc = nvm_version_crc(v);
}

/*
 * The bytes of a block, word by word as the collector changes them.
 */
static void
copy_words(uint64 *to, const uint64 *from)
{
	for (uint32 i = 0; i < NVM_UNIT_SIZE / sizeof(uint64); i++)
		to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

/*
 * Copy block blk, for which the copy has an extent.
 */
static void
copy_block(CopyState *copy, uint32 blk)
{
	NvmBlock   *block = nvm_block(copy->to, blk);
	LWLock	   *row_lock = nvm_row_lock(copy->from->dir, blk);
	LWLock	   *alloc_lock = nvm_alloc_lock(copy->from->dir, blk);
	NvmBlock   *from = nvm_block(copy->from, blk);
	bool		right;

	LWLockAcquire(row_lock, LW_SHARED);
	LWLockAcquire(alloc_lock, LW_SHARED);
	copy_words((uint64 *) block, (const uint64 *) from);
	LWLockRelease(alloc_lock);
	LWLockRelease(row_lock);

	right = block->magic == NVM_BLOCK_MAGIC &&
		block->check == nvm_block_check(from, copy->from->dir, blk);
	if (!right && (block->starts[0] | block->starts[1] |
				   block->starts[2] | block->starts[3]) != 0)
		copy_damaged(copy, blk, 0, "wrong magic number or checksum of a block");
	if (right)
	{
		uint32		off = NVM_FIRST_CELL - 1;

		block->dir = copy->to->dir;
		block->check = nvm_block_check(block, copy->to->dir, blk);
		while ((off = nvm_block_next_start(block, off + 1)) != 0)
		{
			NvmVersion *v = nvm_cell(copy->to, blk, off);

			if (!nvm_begin_is_version(v->begin) || nvm_stamp_in_gap(v->begin))
				continue;
			if (!nvm_version_is_sound(v))
				copy_damaged(copy, blk, off, "wrong length or checksum of a row version");
			if (v->flags & NVM_VF_LARGE)
				copy_large_values(copy, v, blk, off);
		}
	}
	else
	{
		/* extended, perhaps torn at its first use, and no cell handed out */
		memset(block, 0, NVM_UNIT_SIZE);
	}
	nvm_flush(block, NVM_UNIT_SIZE);
}

/*
 * Fill storage `to` with the contents of storage `from`.  The current
 * transaction has made `to`, which is empty.  Nobody uses `to`, nobody but the
 * collector changes `from`.  May ERROR (disk_full, damage, cancel); `to` goes
 * with the transaction then.  Takes locks of the classes row, allocation and
 * extend, one at a time of each.
 */
void
nvm_storage_copy(uint32 from, uint32 to)
{
	CopyState	copy = {nvm_rel_open(from), &nvm_relstates[to], NVM_STAMP_NONE};
	LWLock	   *lock = nvm_rel_extend_lock(copy.to);
	uint32		nblocks = nvm_rel_nblocks(copy.from);
	uint32		first;

	NVM_FAILPOINT("copy-begin");
	if (nvm_dir_entry(from)->kind == NVM_DIR_KIND_INDEX)
	{
		nvm_index_copy_storage(from, to);
		return;
	}
	/* files of indexes are copied, too, or stay */
	nvm_dir_copy_count(copy.from, copy.to);
	if (nblocks > 0)
		copy.stamp = nvm_xact_stamp(copy.to->region);
	for (uint32 blk = 0; blk < nblocks; blk++)
	{
		CHECK_FOR_INTERRUPTS();
		if (nvm_extent_of_block(blk, &first) >= pg_atomic_read_u32(&copy.to->nextents))
		{
			LWLockAcquire(lock, LW_EXCLUSIVE);
			nvm_rel_add_extent(copy.to);
			LWLockRelease(lock);
		}
		copy_block(&copy, blk);
		NVM_FAILPOINT("copy-block");
	}
	pg_write_barrier();
	pg_atomic_write_u32(&copy.to->nblocks, nblocks);

	/* a sweep of a gap that we do not see sees our blocks */
	pg_memory_barrier();
	for (uint32 blk = 0; blk < nblocks && pg_atomic_read_u32(&NvmWbl->ngaps) > 0; blk++)
		(void) nvm_collect_block(to, blk);

	pg_atomic_write_u32(&nvm_rel_row(copy.to)->hint_free_blocks,
						pg_atomic_read_u32(&nvm_rel_row(copy.from)->hint_free_blocks));
	NVM_FAILPOINT("copy-end");
}
