/*-------------------------------------------------------------------------
 *
 * retire.c
 *	  Marking unlinked versions as retired, one or many at a time.
 *
 * To retire a version alone costs its block's allocation lock.  A process
 * that takes a lock waits until the processor has written back the cache line
 * that the process flushed last.  VACUUM retires by the thousand, so it
 * collects what it has unlinked and does a block at a time: README.md,
 * "Retiring many versions".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_row_state.h"
#include "row/nvm_space.h"
#include "storage/proc.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"

/*
 * Begin retiring in block blk: the xid to leave in the versions, and in *lock the
 * block's allocation lock if it was taken, else NULL.
 *
 * A process that looks for space must not find a version that is retired and
 * does not yet say by which transaction.  It might take that for long durable
 * and reuse the version, and we would write into the new one.  While we hold
 * the horizon below the xid no process can.  In VACUUM we do not hold it, nor
 * in an abort, whose xid is gone.
 */
static uint64
retire_enter(NvmRelState *state, uint32 blk, LWLock **lock)
{
	FullTransactionId fxid;

	*lock = NULL;
	if (TransactionIdIsValid(MyProc->xid) &&
		(MyProc->statusFlags & (PROC_IN_VACUUM | PROC_IN_LOGICAL_DECODING)) == 0)
	{
		/*
		 * A snapshot taken before our xid was assigned has an xmin no newer
		 * than it, and one taken since has it among the running.  The next
		 * xid would be right as well, but passes later.
		 */
		return U64FromFullTransactionId(GetTopFullTransactionIdIfAny());
	}

	*lock = nvm_alloc_lock(state->dir, blk);
	LWLockAcquire(*lock, LW_EXCLUSIVE);
	fxid = ReadNextFullTransactionId();

	/* a crash may lose the xids below it, and no other row tells of those */
	(void) nvm_xid_promise(FullTransactionIdFromU64(U64FromFullTransactionId(fxid) - 1));
	return U64FromFullTransactionId(fxid);
}

/*
 * The stores that retire v.  Caller holds the block's allocation lock, by
 * retire_enter, and what nvm_version_retire asks for.
 */
static inline void
retire_store(NvmVersion *v, uint64 fxid, NvmStamp stamp, uint32 kind)
{
	/* begin goes first: a process that reads an xid checks begin afterwards */
	nvm_store(&v->begin, NVM_STAMP_MAKE(kind, fxid & NVM_STAMP_COUNTER_MASK));
	pg_write_barrier();
	if (NvmVersionCells(v) > 1)
		*NvmRetiredBy(v) = stamp;
}

/*
 * Note what there is to be reused in the block, or will be.
 */
static inline void
retire_note(NvmBlock *block, uint32 off, uint32 kind)
{
	if (kind == NVM_STAMP_RETIRED)
		nvm_block_note_retired(block, off);
	else if (kind != NVM_STAMP_DEAD)
		block->retired[NVM_RETIRED_MORE] = 1;	/* its tail */
}

static void
retire_promise(NvmRelState *state, uint32 blk)
{
	nvm_freemap_promising(state, blk);
	/* a backend that needs a block may search the table once more */
	if (pg_atomic_read_u32(&nvm_rel_row(state)->hint_free_blocks) == 0)
		pg_atomic_write_u32(&nvm_rel_row(state)->hint_free_blocks, 1);
}

/*
 * Mark what was a version as retired (or as STUB or DEAD): it is reused once
 * no process can be standing on it and `stamp` is durable.
 *
 * Caller holds the root's row lock, or is the only process that knows of the
 * version.  It holds no allocation lock.
 */
void
nvm_version_retire(NvmRelState *state, NvmVersion *v, uint32 blk, uint32 off,
				   NvmStamp stamp, uint32 kind)
{
	LWLock	   *lock;
	uint64		fxid = retire_enter(state, blk, &lock);

	retire_store(v, fxid, stamp, kind);
	if (lock != NULL)
		LWLockRelease(lock);
	nvm_flush(&v->begin, sizeof(uint64));
	if (kind != NVM_STAMP_DEAD)
	{
		retire_note(nvm_block(state, blk), off, kind);
		retire_promise(state, blk);
	}
}

/*
 * DEAD roots, then others, each by block.
 */
static int
compare_items(const void *a, const void *b)
{
	const NvmRetireItem *left = a;
	const NvmRetireItem *right = b;
	bool		dead = left->kind == NVM_STAMP_DEAD;

	if (dead != (right->kind == NVM_STAMP_DEAD))
		return dead ? -1 : 1;
	return left->blk < right->blk ? -1 : left->blk > right->blk;
}

/*
 * Retire items that are all of one block, and all of them DEAD roots or none.
 */
static void
retire_in_block(NvmRetireBatch *batch, const NvmRetireItem *item, int n)
{
	NvmBlock   *block = nvm_block(batch->state, item->blk);
	LWLock	   *lock;
	uint64		fxid = retire_enter(batch->state, item->blk, &lock);
	bool		room = false;

	for (int i = 0; i < n; i++)
		retire_store(nvm_cell(batch->state, item[i].blk, item[i].off), fxid,
					 batch->stamp, item[i].kind);
	NVM_FAILPOINT("retire-stored");
	for (int i = 0; i < n; i++)
	{
		NvmVersion *v = nvm_cell(batch->state, item[i].blk, item[i].off);

		nvm_flush(&v->begin, sizeof(uint64));
		retire_note(block, item[i].off, item[i].kind);
		room |= item[i].kind != NVM_STAMP_DEAD;
	}
	if (lock != NULL)
		LWLockRelease(lock);
	if (room)
		retire_promise(batch->state, item->blk);

	/* this may fail: by now an abort has all of them to write back */
	for (int i = 0; i < n && batch->retired_large != NULL; i++)
	{
		NvmVersion *v = nvm_cell(batch->state, item[i].blk, item[i].off);

		if (item[i].kind != NVM_STAMP_DEAD && NvmVersionCells(v) > 1 &&
			(v->flags & NVM_VF_LARGE) != 0)
			batch->retired_large(batch->arg, item[i].blk, item[i].off);
	}
}

/*
 * Retire what the batch has collected; it is empty then.  A root that becomes
 * DEAD does so before the next xid is read for the versions that it has led
 * to.  So a reader that finds them through it is in the way of their reuse.
 *
 * Caller holds the row locks of all their roots, and no allocation lock.
 */
void
nvm_retire_flush(NvmRetireBatch *batch)
{
	bool		sorted = true;
	int			to;

	if (batch->n == 0)
		return;
	NVM_FAILPOINT("retire-unlinked");
	for (int i = 1; i < batch->n && sorted; i++)
		sorted = compare_items(&batch->item[i - 1], &batch->item[i]) <= 0;
	if (!sorted)
		qsort(batch->item, batch->n, sizeof(NvmRetireItem), compare_items);
	for (int from = 0; from < batch->n; from = to)
	{
		for (to = from + 1; to < batch->n &&
			 compare_items(&batch->item[from], &batch->item[to]) == 0;)
			to++;
		retire_in_block(batch, batch->item + from, to - from);
	}
	batch->n = 0;
}
