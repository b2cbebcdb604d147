/*-------------------------------------------------------------------------
 *
 * capture_block.c
 *	  The rows of a block as they are now, for a checkpoint.
 *
 * An MVCC snapshot says which version counts, or none does.  Then it is the one whose
 * beginning is committed at the moment we look, and whose end is not: SnapshotSelf, for
 * a process that writes nothing.  A chain is walked from the oldest version on, and each
 * version's end is looked at before its successor's beginning, which has the same
 * transaction.  So a commit meanwhile takes us to the successor, and none makes us
 * miss both.
 *
 * What we accept as committed is decided when we have accepted it, hence has its
 * place in the log.
 *
 * Our snapshot keeps what we stand on.  Nothing of it is kept beyond the block.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pool/nvm_pool.h"
#include "row/nvm_capture.h"
#include "row/nvm_chain.h"
#include "row/nvm_change.h"
#include "row/nvm_version.h"
#include "row/nvm_visibility.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_block.h"

/*
 * May a row have its root there?  If not it has none: what comes later is of a
 * transaction that is not decided yet.
 */
static bool
may_be_root(NvmRelState *state, uint32 blk, uint32 off)
{
	uint64		begin = nvm_tid_begin(state, blk, off);

	if (nvm_begin_is_version(begin))
		return (nvm_cell(state, blk, off)->flags & NVM_VF_ROOT) != 0;
	return nvm_begin_is(begin, NVM_STAMP_STUB);
}

/*
 * See nvm_capture.h.
 */
uint32
nvm_capture_block(NvmRelState *state, uint32 blk, Snapshot snapshot)
{
	NvmBlock   *block = nvm_block(state, blk);
	uint32		off = NVM_FIRST_CELL - 1;
	uint32		nrows = 0;

	if (block->magic != NVM_BLOCK_MAGIC)
		return 0;
	while ((off = nvm_block_next_start(block, off + 1)) != 0)
	{
		uint64		root = NVM_REF_MAKE(blk, off, 0);
		ItemPointerData tid;
		NvmVersion *v;

		if (!may_be_root(state, blk, off))
			continue;
		v = nvm_chain_search(NULL, state, root, snapshot, &tid, NULL);
		if (v == NULL)
			continue;
		if (!nvm_version_is_sound(v) || nvm_version_root(v) != root)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("row version (%u,%u) of storage %u is damaged",
							ItemPointerGetBlockNumber(&tid), ItemPointerGetOffsetNumber(&tid),
							state->dir)));
		nvm_capture_version(state, v);
		nrows++;
	}
	return nrows;
}

/*
 * See nvm_capture.h.
 */
bool
nvm_capture_is_undecided(NvmRelState *state, uint32 blk)
{
	NvmBlock   *block = nvm_block(state, blk);
	uint32		off = NVM_FIRST_CELL - 1;

	if (block->magic != NVM_BLOCK_MAGIC)
		return false;
	while ((off = nvm_block_next_start(block, off + 1)) != 0)
	{
		TransactionId xid;

		if (!nvm_begin_is_version(nvm_tid_begin(state, blk, off)))
			continue;
		switch (nvm_version_vacuum_state(nvm_cell(state, blk, off), NULL, &xid))
		{
			case NVM_VAC_INSERT_IN_PROGRESS:
			case NVM_VAC_DELETE_IN_PROGRESS:
				return true;
			default:
				break;
		}
	}
	return false;
}
