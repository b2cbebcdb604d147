/*-------------------------------------------------------------------------
 *
 * capture.c
 *	  What the log is told of rows: the images that bring them back.
 *
 * At PRE_COMMIT, for tables of the volatile region.  The undo log says where the
 * transaction has changed something; the versions there say what.  For each row
 * that it has changed the log gets the newest version, or that the row is gone,
 * by the TID of the root.  README.md, "Capture", has the rules.
 *
 * No lock is taken.  Every version that is captured is our own, made or ended,
 * or lies in a storage that nobody else can reach, and we are in PRE_COMMIT: we
 * change nothing any more.
 *	- What we have made and not ended, others neither end nor lock, for they do
 *	  not see it.  They may lock the row, which stores the lock word.  That is no
 *	  part of the image.
 *	- The end, next and xend of what we have ended stay: nobody else ends it
 *	  again, or unlinks it, before we have committed.
 *	- No area that we may come to is handed out anew.  It would have to be
 *	  retired first, and the horizon does not pass us.
 *	- So do the large values of what we have made and not ended: they go with
 *	  their version.
 *
 * Bits of the infomasks that are set at run time (NVM_INFOMASK_FIXED are the
 * others) come along, and mean nothing in the log.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "log/nvm_log.h"
#include "media/media_log.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"
#include "row/nvm_change.h"
#include "row/nvm_large.h"
#include "row/nvm_relation.h"
#include "row/nvm_version.h"
#include "row/nvm_visibility.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_xact.h"

StaticAssertDecl(offsetof(NvmTupleHeader, infomask2) == NVM_LOG_TUPLE_SKIPS,
				 "rows of the log begin with infomask2");

/*
 * Are rows of the storage written to the log?  Of calls that are logged alone nothing is but
 * the checksum of what they have made.
 */
static inline bool
is_written(uint32 dir)
{
	if (unlikely(nvm_log_sums_alone))
		return false;
	return likely(!nvm_log_calls_alone) || (nvm_dir_entry(dir)->flags & NVM_DIR_COMMANDS) == 0;
}

static inline void
capture_storage_begin(uint32 dir)
{
	if (is_written(dir))
		nvm_log_storage(dir, nvm_dir_entry(dir)->creation_id);
}

/*
 * What the row contains counts for the checksum of the transaction's calls, if it has
 * any that have made the row.
 */
static inline void
note_checksum(NvmRelState *state, const NvmVersion *v, bool gone)
{
	uint64		root = nvm_version_root(v);
	bool		has_key;
	Oid			table = InvalidOid;

	if (unlikely(nvm_log_by == NVM_LOG_BY_CALLS))
		table = nvm_log_table_of_rows(state->dir, &has_key);
	if (OidIsValid(table))
		nvm_log_note_checksum(state->dir, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root),
							  nvm_version_checksum(state, v, table, gone));
}

/*
 * See nvm_change.h.
 */
void
nvm_capture_version(NvmRelState *state, const NvmVersion *v)
{
	uint64		root = nvm_version_root(v);

	Assert(v->len >= NVM_TUPLE_MIN);
	capture_storage_begin(state->dir);
	note_checksum(state, v, false);
	if (!is_written(state->dir))
		return;
	if (v->flags & NVM_VF_LARGE)
		nvm_large_capture(state, v);
	nvm_log_row(NVM_REF_BLOCK(root), NVM_REF_OFFSET(root), v->tuple.xmin,
				(const char *) &v->tuple + NVM_LOG_TUPLE_SKIPS,
				v->len - NVM_LOG_TUPLE_SKIPS);
}

/* ---- what rows were before ---- */

/*
 * A storage whose old rows the record needs: that of an nvm_cmdlog table, and it may be by them
 * that a replay finds its rows.
 */
typedef struct OldRows
{
	NvmRelState *state;
	NvmStamp	stamp;
	Oid			table;			/* InvalidOid: it needs none */
	bool		has_key;
} OldRows;

static inline OldRows
old_rows_of(NvmRelState *state, NvmStamp stamp)
{
	OldRows		of = {.state = state,.stamp = stamp,.table = InvalidOid};

	if (unlikely(nvm_log_old_rows))
		of.table = nvm_log_table_of_rows(state->dir, &of.has_key);
	return of;
}

/*
 * The version of v's row that was there before us, who have made or ended v.  The row's root
 * is not ours.  Each version of ours leads back to the one that it has ended: nobody
 * unlinks that one before we have committed.
 */
static NvmVersion *
version_before(const OldRows *of, NvmVersion *v)
{
	NvmChainGuard guard = {0};

	while (nvm_load(&v->begin) == of->stamp)
	{
		uint64		link = nvm_load(&v->link);

		if (NVM_REF_HI(link) != (uint16) NvmPool->incarnation || !NVM_REF_IS_VALID(link))
			nvm_ref_damaged(of->state, link);
		nvm_chain_guard(of->state, &guard, link);
		v = nvm_ref_version(of->state, NVM_REF_TID(link));
	}
	if (nvm_load(&v->end) != of->stamp)
		nvm_ref_damaged(of->state, nvm_load(&v->next));
	return v;
}

/*
 * Before the row of v, unless it is ours altogether.
 */
static void
capture_old(const OldRows *of, NvmVersion *v)
{
	uint64		root = nvm_version_root(v);
	NvmVersion *old;

	if (nvm_load(&nvm_ref_version(of->state, root)->begin) == of->stamp)
		return;
	old = version_before(of, v);
	nvm_log_old(NVM_REF_BLOCK(root), NVM_REF_OFFSET(root), old->tuple.xmin,
				nvm_version_checksum(of->state, old, of->table, false),
				(const char *) &old->tuple + NVM_LOG_TUPLE_SKIPS,
				of->has_key ? old->len - NVM_LOG_TUPLE_SKIPS : 0);
}

/* ---- ranges of the undo log ---- */

/*
 * A version that we have ended.  Its row is gone if no other version of it
 * follows: it was deleted, or went on under another root, or in another
 * partition.  If we have made the row, too, the log need not hear of it.
 */
static void
capture_end(const OldRows *of, NvmVersion *v)
{
	NvmRelState *state = of->state;
	uint64		next = nvm_load(&v->next);
	uint64		root = nvm_version_root(v);

	if (NVM_REF_IS_VALID(next) && !(NVM_REF_HI(next) & NVM_NEXT_OTHER_ROOT))
		return;
	if (nvm_load(&nvm_ref_version(state, root)->begin) == of->stamp)
		return;
	/* what has become another row counts as that one */
	if (!NVM_REF_IS_VALID(next))
		note_checksum(state, v, true);
	if (OidIsValid(of->table))
		capture_old(of, v);
	if (is_written(state->dir))
		nvm_log_row(NVM_REF_BLOCK(root), NVM_REF_OFFSET(root), InvalidTransactionId, NULL, 0);
}

/*
 * NvmUndoOps.capture_range: see nvm_xact.h.
 *
 * The range covers cells of others, and of other subtransactions of ours.  Each
 * version that a subtransaction made or ended is in a range of that one.
 */
void
nvm_capture_range(const NvmUndoRange *range, NvmStamp stamp)
{
	NvmRelState *state = &nvm_relstates[range->dir];
	uint32		off = range->off_first - 1;
	NvmBlock   *block;
	OldRows		of;

	if (state->dir != range->dir || range->blk >= nvm_rel_nblocks(state))
		return;
	capture_storage_begin(range->dir);
	of = old_rows_of(state, stamp);
	block = nvm_block(state, range->blk);
	while ((off = nvm_block_next_start(block, off + 1)) != 0 && off <= range->off_last)
	{
		NvmVersion *v = nvm_cell(state, range->blk, off);
		uint64		begin = nvm_tid_begin(state, range->blk, off);
		bool		ended;

		/* a stub has something else there */
		if (!nvm_begin_is_version(begin))
			continue;
		ended = nvm_load(&v->end) == stamp;
		if (range->kind == NVM_UNDO_INSERT)
		{
			if (begin != stamp || v->tuple.xmin != range->xid || ended)
				continue;
			if (OidIsValid(of.table) && !of.has_key)
				capture_old(&of, v);
			nvm_capture_version(state, v);
		}
		else if (ended && v->tuple.xend == range->xid)
			capture_end(&of, v);
	}
}

/*
 * Is v, of a storage that we have made, the version that its row has once we have
 * committed?
 *
 * Its stamps may be those of others, whose rows we have copied.  Our lock on the
 * table has let them all end.
 */
static bool
is_there(NvmVersion *v)
{
	TransactionId xid;

	switch (nvm_version_vacuum_state(v, NULL, &xid))
	{
		case NVM_VAC_LIVE:
			return true;
		case NVM_VAC_INSERT_IN_PROGRESS:
			/* our own, and we have not ended it */
			Assert(TransactionIdIsCurrentTransactionId(xid));
			return true;
		case NVM_VAC_DELETE_IN_PROGRESS:
			Assert(TransactionIdIsCurrentTransactionId(xid));
			return false;
		case NVM_VAC_RECENTLY_DEAD:
			/* after a loss there are no snapshots that see it */
		case NVM_VAC_DEAD:
		case NVM_VAC_STUB:
		case NVM_VAC_DEAD_ROOT:
		case NVM_VAC_RETIRED:
		case NVM_VAC_FREE:
			break;
	}
	return false;
}

/*
 * NvmUndoOps.capture_storage: see nvm_xact.h.
 */
void
nvm_capture_storage(uint32 dir)
{
	NvmRelState *state = &nvm_relstates[dir];
	uint32		nblocks = nvm_rel_nblocks(state);

	/* its rows were not there before us; the record has them */
	(void) old_rows_of(state, NVM_STAMP_NONE);
	for (uint32 blk = 0; blk < nblocks; blk++)
	{
		NvmBlock   *block = nvm_block(state, blk);
		uint32		off = NVM_FIRST_CELL - 1;

		CHECK_FOR_INTERRUPTS();
		if (block->magic != NVM_BLOCK_MAGIC)
			continue;
		while ((off = nvm_block_next_start(block, off + 1)) != 0)
		{
			NvmVersion *v = nvm_cell(state, blk, off);

			if (is_there(v))
				nvm_capture_version(state, v);
		}
	}
}
