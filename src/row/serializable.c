/*-------------------------------------------------------------------------
 *
 * serializable.c
 *	  Serializable transactions: which predicate locks a reader takes, and
 *	  what a writer and a reader tell each other.
 *
 * All is as in heap.  A scan of the whole table locks the relation.  A reader
 * that finds a row by its TID, by an index or by a bitmap locks the TID of
 * the version that it has read.  A transaction that ends a version looks for
 * locks on that version, its block and the relation.  README.md
 * ("Serializable transactions") says why no conflict is missed although
 * readers take no lock that a writer respects.  In short:
 *
 *	- a reader has its predicate lock before it looks, for the last time, at
 *	  what it tells SSI about: a version's end, or which versions there are;
 *	- a writer looks for predicate locks after its store;
 *	- so one of the two finds the other.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relscan.h"
#include "access/xact.h"
#include "compat/nvm_compat_am.h"
#include "pool/nvm_pool.h"
#include "row/nvm_chain.h"
#include "row/nvm_serializable.h"
#include "row/nvm_visibility.h"
#include "storage/predicate.h"
#include "utils/snapmgr.h"
#include "xact/nvm_xact.h"

/*
 * A version was looked at by its TID; the snapshot sees it or does not.
 *
 * No LWLock is held.  ERROR if the transaction cannot be serialized.
 */
void
nvm_ssi_version_slow(Relation rel, NvmVersion *v, bool visible, ItemPointer tid,
					 Snapshot snapshot)
{
	if (visible)
	{
		TransactionId xmin = InvalidTransactionId;

		/* its writer needs no lock; an xid of the past may look like ours */
		if (nvm_xact_owns_stamp(nvm_load(&v->begin)))
			xmin = v->tuple.xmin;
		PredicateLockTID(rel, tid, snapshot, xmin);
	}
	/* now that we have the lock: is there a concurrent writer? */
	if (CheckForSerializableConflictOutNeeded(rel, snapshot))
		(void) nvm_version_visible(rel, v, snapshot);
}

/*
 * The row with this root was looked for by an index or a bitmap; v is the
 * version that the snapshot sees, or NULL.
 *
 * The versions after v are of no interest: the transaction that made the next
 * one ended v.  If there is none to see, the row was made by a concurrent
 * transaction, or is gone for us.
 *
 * No LWLock is held.  ERROR if the transaction cannot be serialized.
 */
void
nvm_ssi_row_slow(Relation rel, NvmRelState *state, uint64 root, NvmVersion *v,
				 ItemPointer tid, Snapshot snapshot)
{
	NvmChainPos pos = {0};

	if (v != NULL)
		nvm_ssi_version_slow(rel, v, true, tid, snapshot);
	else if (CheckForSerializableConflictOutNeeded(rel, snapshot))
	{
		while ((v = nvm_chain_next(state, root, &pos)) != NULL)
			(void) nvm_version_visible(rel, v, snapshot);
	}
}

/*
 * We ended the version tid of the row with this root.
 *
 * The root's block is looked at, too: it stands for the row in an index-only
 * scan that does not visit the table.
 *
 * The store is done; no LWLock is held.  ERROR if the transaction cannot be
 * serialized.
 */
void
nvm_ssi_ended_slow(Relation rel, ItemPointer tid, ItemPointer root)
{
	BlockNumber blk = ItemPointerGetBlockNumber(tid);

	if (ItemPointerGetBlockNumber(root) != blk)
		CheckForSerializableConflictIn(rel, NULL, ItemPointerGetBlockNumber(root));
	CheckForSerializableConflictIn(rel, tid, blk);
}

/*
 * We made rows.
 *
 * As nvm_ssi_ended_slow.
 */
void
nvm_ssi_inserted_slow(Relation rel)
{
	CheckForSerializableConflictIn(rel, NULL, InvalidBlockNumber);
}

/*
 * Set up the shared part of a parallel scan.  The number of blocks to scan is
 * read here, and what lies beyond is not looked at.  So the lock comes first.
 */
Size
nvm_parallelscan_initialize(Relation rel, ParallelTableScanDesc pscan)
{
	if (IsolationIsSerializable() && ActiveSnapshotSet())
		PredicateLockRelation(rel, GetActiveSnapshot());
	return table_block_parallelscan_initialize(rel, pscan);
}
