/*-------------------------------------------------------------------------
 *
 * indexfetch.c
 *	  From an index entry to the version of the row that a snapshot sees, and
 *	  the question of an index whether its entries may go.
 *
 * An index entry holds the TID of the row's root.  It may also lead nowhere.
 * If a crash kept the entry and not the row, it leads to a free cell.  Or it
 * leads to a root that is dead and waits for VACUUM.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relscan.h"
#include "access/transam.h"
#include "am/nvm_am.h"
#include "am/nvm_scan.h"
#include "btree/nvm_btree.h"
#include "compat/nvm_compat_am.h"
#include "pool/nvm_allvisible.h"
#include "pool/nvm_pool.h"
#include "port/pg_bitutils.h"
#include "row/nvm_chain.h"
#include "row/nvm_relation.h"
#include "row/nvm_tuple_slot.h"
#include "row/nvm_visibility.h"
#include "storage/nvm_allvisible_set.h"
#include "storage/predicate.h"
#include "utils/snapmgr.h"
#include "wbl/nvm_snapshot.h"

/* of a bottom-up deletion's blocks we visit at most so many */
#define NVM_BOTTOMUP_MAX_BLOCKS		6
/* blocks this near to each other count as neighbours */
#define NVM_BOTTOMUP_TOLERANCE		3

typedef struct NvmIndexFetch
{
	NvmIndexFetchBase head;
	Oid			relid;
	bool		recheck;		/* of a deferred constraint, perhaps */
	/* where call_again goes on */
	uint64		root;
	NvmChainPos pos;
} NvmIndexFetch;

IndexFetchTableData *
nvm_index_fetch_begin(Relation rel)
{
	NvmIndexFetch *fetch = palloc0(sizeof(NvmIndexFetch));

	fetch->head.base.rel = rel;
	fetch->head.state = nvm_rel_reader(rel);
	fetch->relid = RelationGetRelid(rel);
	return &fetch->head.base;
}

void
nvm_index_fetch_reset(IndexFetchTableData *scan)
{
}

void
nvm_index_fetch_end(IndexFetchTableData *scan)
{
	if (unlikely(((NvmIndexFetch *) scan)->recheck))
		nvm_indexes_fetched(scan->rel);
	pfree(scan);
}

/*
 * With a snapshot that is not MVCC, several versions of a row may be wanted:
 * each call returns the next one, oldest first.
 */
static NvmVersion *
nvm_index_fetch_any(NvmIndexFetch *fetch, ItemPointer tid, Snapshot snapshot,
					bool call_again, bool *all_dead)
{
	NvmVersion *v;

	if (!call_again)
	{
		fetch->root = NVM_REF_MAKE(ItemPointerGetBlockNumber(tid),
								   ItemPointerGetOffsetNumber(tid), 0);
		memset(&fetch->pos, 0, sizeof(fetch->pos));
	}

	nvm_block_prove(fetch->head.base.rel, fetch->head.state, NVM_REF_BLOCK(fetch->root),
					NVM_REF_OFFSET(fetch->root));
	nvm_read_enter();
	while ((v = nvm_chain_next(fetch->head.state, fetch->root, &fetch->pos)) != NULL)
	{
		if (!nvm_version_visible(fetch->head.base.rel, v, snapshot))
			continue;
		ItemPointerSet(tid, NVM_REF_BLOCK(fetch->pos.ref), NVM_REF_OFFSET(fetch->pos.ref));
		break;
	}
	nvm_read_leave();
	if (v != NULL)
	{
		nvm_block_prove(fetch->head.base.rel, fetch->head.state,
						ItemPointerGetBlockNumber(tid), ItemPointerGetOffsetNumber(tid));
		return v;
	}

	/* nothing for this snapshot; perhaps for nobody */
	if (!call_again && all_dead != NULL)
		v = nvm_chain_search(fetch->head.base.rel, fetch->head.state, fetch->root, snapshot,
							 tid, all_dead);
	return v;
}

/*
 * Nobody wants to look at the row (the slot is "unread"): is it known without
 * looking that the snapshot sees one?
 *
 * A serializable transaction locks the block instead of the version: see
 * row/README.md, "Serializable transactions".
 */
static inline bool
fetch_is_needless(NvmIndexFetch *fetch, ItemPointer tid, Snapshot snapshot)
{
	uint32		blk = ItemPointerGetBlockNumber(tid);

	if (snapshot->snapshot_type != SNAPSHOT_MVCC ||
		!nvm_allvisible(fetch->head.state, blk))
		return false;
	if (unlikely(IsolationIsSerializable()))
	{
		PredicateLockPage(fetch->head.base.rel, blk, snapshot);
		return nvm_allvisible(fetch->head.state, blk);
	}
	return true;
}

bool
nvm_index_fetch_tuple(IndexFetchTableData *scan, ItemPointer tid,
					  Snapshot snapshot, TupleTableSlot *slot, bool *call_again,
					  bool *all_dead)
{
	NvmIndexFetch *fetch = (NvmIndexFetch *) scan;
	bool		unread = TTS_IS_NVM(slot) && ((NvmTupleTableSlot *) slot)->unread;
	uint32		blk = ItemPointerGetBlockNumber(tid);
	NvmVersion *v;

	if (all_dead)
		*all_dead = false;
	nvm_snapshot_use(snapshot);
	if (unread && fetch_is_needless(fetch, tid, snapshot))
	{
		*call_again = false;
		return true;
	}

	if (likely(IsMVCCSnapshot(snapshot)))
	{
		v = nvm_chain_search(scan->rel, fetch->head.state,
							 NVM_REF_MAKE(ItemPointerGetBlockNumber(tid),
										  ItemPointerGetOffsetNumber(tid), 0),
							 snapshot, tid, all_dead);
		*call_again = false;
	}
	else
	{
		/* unique_key_recheck looks by SnapshotSelf */
		fetch->recheck |= snapshot->snapshot_type == SNAPSHOT_SELF;
		v = nvm_index_fetch_any(fetch, tid, snapshot, *call_again, all_dead);
		*call_again = v != NULL;
	}

	nvm_count_block(scan->rel);
	if (v == NULL)
		return false;

	if (unread)
		nvm_allvisible_consider(fetch->head.state, blk);
	nvm_tts_set(slot, fetch->head.state, fetch->relid, v,
				ItemPointerGetBlockNumber(tid), ItemPointerGetOffsetNumber(tid));
	return true;
}

/* ---- index_delete_tuples ---- */

typedef struct NvmDeleteGroup
{
	int			first;			/* in deltids */
	int			ntids;
	int			npromising;
} NvmDeleteGroup;

static int
nvm_deltid_cmp(const void *a, const void *b)
{
	ItemPointerData ta = ((const TM_IndexDelete *) a)->tid;
	ItemPointerData tb = ((const TM_IndexDelete *) b)->tid;

	return ItemPointerCompare(&ta, &tb);
}

/*
 * Blocks with many promising entries first, then those with many entries,
 * both in powers of two, then in the order of the table.
 */
static int
nvm_delete_group_cmp(const void *a, const void *b)
{
	const NvmDeleteGroup *ga = a;
	const NvmDeleteGroup *gb = b;

	if (ga->npromising != gb->npromising)
		return ga->npromising > gb->npromising ? -1 : 1;
	if (pg_nextpower2_32(ga->ntids) != pg_nextpower2_32(gb->ntids))
		return ga->ntids > gb->ntids ? -1 : 1;
	return ga->first < gb->first ? -1 : 1;
}

/*
 * Bottom-up deletion: keep the entries of the most promising blocks only, in
 * the order in which the blocks are to be visited.  Returns how many blocks
 * at the front lie next to each other.  deltids must be sorted by TID.
 */
static int
nvm_bottomup_shrink(TM_IndexDeleteOp *op)
{
	NvmDeleteGroup *groups = palloc(sizeof(NvmDeleteGroup) * op->ndeltids);
	TM_IndexDelete *kept = palloc(sizeof(TM_IndexDelete) * op->ndeltids);
	BlockNumber blk = InvalidBlockNumber;
	int			ngroups = 0;
	int			nkept = 0;
	int			nfavorable = 0;

	for (int i = 0; i < op->ndeltids; i++)
	{
		TM_IndexDelete *del = &op->deltids[i];

		if (ngroups == 0 || ItemPointerGetBlockNumber(&del->tid) != blk)
		{
			blk = ItemPointerGetBlockNumber(&del->tid);
			groups[ngroups].first = i;
			groups[ngroups].ntids = 0;
			groups[ngroups].npromising = 0;
			ngroups++;
		}
		groups[ngroups - 1].ntids++;
		if (op->status[del->id].promising)
			groups[ngroups - 1].npromising++;
	}

	/* small counts are not worth telling apart */
	for (int g = 0; g < ngroups; g++)
		groups[g].npromising = groups[g].npromising <= 4 ? 4 :
			pg_nextpower2_32(groups[g].npromising);
	qsort(groups, ngroups, sizeof(NvmDeleteGroup), nvm_delete_group_cmp);
	ngroups = Min(ngroups, NVM_BOTTOMUP_MAX_BLOCKS);

	for (int g = 0; g < ngroups; g++)
	{
		TM_IndexDelete *first = &op->deltids[groups[g].first];
		BlockNumber here = ItemPointerGetBlockNumber(&first->tid);

		if (nfavorable == g &&
			(g == 0 ||
			 ((int64) here >= (int64) blk - NVM_BOTTOMUP_TOLERANCE &&
			  (int64) here <= (int64) blk + NVM_BOTTOMUP_TOLERANCE)))
			nfavorable++;
		blk = here;
		memcpy(kept + nkept, first, sizeof(TM_IndexDelete) * groups[g].ntids);
		nkept += groups[g].ntids;
	}
	memcpy(op->deltids, kept, sizeof(TM_IndexDelete) * nkept);
	op->ndeltids = nkept;

	pfree(groups);
	pfree(kept);
	return nfavorable;
}

/*
 * The newest xid whose deletion made versions of the row dead, if it means
 * anything now: xids of an earlier incarnation do not.
 */
static void
nvm_advance_conflict_xid(Relation rel, NvmRelState *state, uint64 root,
						 TransactionId *conflict)
{
	struct GlobalVisState *vistest = GlobalVisTestFor(rel);
	NvmChainPos pos = {0};
	NvmVersion *v;

	while ((v = nvm_chain_next(state, root, &pos)) != NULL)
	{
		TransactionId xid = InvalidTransactionId;

		if (nvm_version_vacuum_state(v, vistest, &xid) == NVM_VAC_DEAD &&
			TransactionIdIsNormal(xid) &&
			TransactionIdPrecedes(xid, ReadNextTransactionId()) &&
			(!TransactionIdIsValid(*conflict) || TransactionIdFollows(xid, *conflict)))
			*conflict = xid;
	}
}

/*
 * Which of the index's entries lead to rows that are durably dead to
 * everybody?  Entries that the index knows to be deletable stay so; others
 * are looked up, for a bottom-up deletion until enough space was found or a
 * block disappoints.
 */
TransactionId
nvm_index_delete_tuples(Relation rel, TM_IndexDeleteOp *op)
{
	NvmRelState *state = nvm_rel(rel);
	TransactionId conflict = InvalidTransactionId;
	SnapshotData nonvacuumable;
	BlockNumber blk = InvalidBlockNumber;
	int			nfavorable = 0;
	int			nblocks = 0;
	int			ndeltids = 0;
	int			target = op->bottomupfreespace;
	int			found = 0;
	int			found_before = 0;

	InitNonVacuumableSnapshot(nonvacuumable, GlobalVisTestFor(rel));

	qsort(op->deltids, op->ndeltids, sizeof(TM_IndexDelete), nvm_deltid_cmp);
	if (op->bottomup)
		nfavorable = nvm_bottomup_shrink(op);

	for (int i = 0; i < op->ndeltids; i++)
	{
		TM_IndexDelete *del = &op->deltids[i];
		TM_IndexStatus *status = &op->status[del->id];
		uint64		root = NVM_REF_MAKE(ItemPointerGetBlockNumber(&del->tid),
										ItemPointerGetOffsetNumber(&del->tid), 0);

		if (op->bottomup && ItemPointerGetBlockNumber(&del->tid) != blk)
		{
			/* is another block worth it? */
			if (nblocks > 0)
			{
				if (found >= target || found == found_before)
					break;
				found_before = found;
			}
			if (nfavorable > 0)
				nfavorable--;
			else
				target /= 2;
			nblocks++;
			blk = ItemPointerGetBlockNumber(&del->tid);
		}

		if (!status->knowndeletable)
		{
			ItemPointerData tid = del->tid;
			bool		all_dead = false;

			if (nvm_chain_search(rel, state, root, &nonvacuumable, &tid,
								 &all_dead) != NULL || !all_dead)
				continue;
			status->knowndeletable = true;
			found += status->freespace;
		}
		nvm_advance_conflict_xid(rel, state, root, &conflict);
		ndeltids = i + 1;
	}

	/* entries behind the last deletable one are of no interest */
	op->ndeltids = ndeltids;
	return conflict;
}
