/*-------------------------------------------------------------------------
 *
 * chain_middle.c
 *	  Unlinking versions that lie between what old snapshots see and now.
 *
 * nvm_chain_prune takes away what ended before the oldest snapshot.  While a
 * snapshot stays for long that is nothing, and a row that is updated all the
 * time grows by every version.  All but one of those have no reader: the old
 * snapshot sees the version of its time, and new ones see the newest.  Where
 * the old snapshot is published (wbl/nvm_snapshot.h) the rest is unlinked
 * here, wherever in the chain it is.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_space.h"
#include "row/nvm_visibility.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_snapshot.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_xact.h"

/* versions looked at in one go, from the oldest on */
#define MAX_MIDDLE				128

/* a version that has ended, for good and durably */
typedef struct EndedVersion
{
	uint64		ref;			/* its TID */
	NvmVersion *v;
	TransactionId xbegin;		/* FrozenTransactionId: every snapshot sees it */
	TransactionId xend;
	bool		unlink;
} EndedVersion;

/*
 * List the row's versions that have ended, oldest first.  Returns their
 * number.  *stop is the TID of the version that follows them; that one stays,
 * whatever it is.  *stop is 0 if the chain is not what we can work on.
 */
static int
list_ended(NvmRelState *state, uint64 root, EndedVersion *list, uint64 *stop)
{
	NvmVersion *rootv = nvm_cell(state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
	uint64		cur = root;
	int			n = 0;

	*stop = 0;
	if (nvm_begin_is(nvm_load(&rootv->begin), NVM_STAMP_STUB))
		cur = NVM_REF_TID(nvm_load(&rootv->next));

	for (; n < MAX_MIDDLE; n++)
	{
		NvmVersion *v = nvm_cell(state, NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur));
		uint64		begin = nvm_load(&v->begin);
		uint64		next = nvm_load(&v->next);
		TransactionId xend;

		/* what a crash left is the collector's, or the checker's */
		if (!nvm_begin_is_version(begin) || nvm_version_root(v) != root)
			return 0;
		if (nvm_stamp_is_frozen(begin) && nvm_stamp_in_gap(begin))
			break;
		if (nvm_version_end_state(v, &xend) != NVM_END_COMMITTED ||
			!NVM_REF_IS_VALID(next) || (NVM_REF_HI(next) & NVM_NEXT_OTHER_ROOT))
			break;				/* the last one, or as good as that */

		list[n].ref = cur;
		list[n].v = v;
		list[n].xbegin = nvm_stamp_is_frozen(begin) ? FrozenTransactionId :
			nvm_stamp_xid(begin, v->tuple.xmin);
		list[n].xend = TransactionIdIsValid(xend) ? xend : FrozenTransactionId;
		list[n].unlink = false;
		cur = NVM_REF_TID(next);
	}
	*stop = cur;
	return n;
}

/*
 * Mark what nobody sees.  False if that is nothing, or must wait.
 */
static bool
mark_unseen(EndedVersion *list, int n)
{
	NvmObstacles obstacles;
	TransactionId newest = InvalidTransactionId;
	bool		found = false;

	/* that they have ended was known before */
	nvm_obstacles_gather(&obstacles);
	for (int i = 0; i < n; i++)
	{
		list[i].unlink = nvm_obstacles_permit(&obstacles, list[i].xbegin, list[i].xend);
		if (!list[i].unlink)
			continue;
		found = true;
		if (list[i].xend != FrozenTransactionId &&
			(!TransactionIdIsValid(newest) || TransactionIdFollows(list[i].xend, newest)))
			newest = list[i].xend;
	}
	return found &&
		(!TransactionIdIsValid(newest) || nvm_obstacles_rely(&obstacles, newest));
}

/*
 * Unlink the n versions of a run, which follow `holder` and are followed by
 * `after`.  holder is the root itself where it is a stub, or about to be one.
 * Caller holds the row lock.
 */
static void
unlink_run(NvmRelState *state, uint64 root, uint64 holder, EndedVersion *run, int n,
		   uint64 after)
{
	NvmStamp	stamp = nvm_xact_stamp_if_any(state->region);
	NvmVersion *holderv = nvm_cell(state, NVM_REF_BLOCK(holder), NVM_REF_OFFSET(holder));
	NvmVersion *afterv = nvm_cell(state, NVM_REF_BLOCK(after), NVM_REF_OFFSET(after));
	uint16		hi = NvmVersionCells(holderv);

	/*
	 * A holder that stays a version must say that its neighbour is not its
	 * successor; so must the root until it is a stub.
	 */
	if (nvm_begin_is_version(nvm_load(&holderv->begin)))
		hi |= NVM_NEXT_SKIPS | (NVM_REF_HI(holderv->next) & NVM_NEXT_KEYS);
	nvm_store(&holderv->next, NVM_REF_MAKE(NVM_REF_BLOCK(after), NVM_REF_OFFSET(after), hi));
	nvm_flush(&holderv->next, sizeof(uint64));
	nvm_store(&afterv->link, NVM_REF_MAKE(NVM_REF_BLOCK(holder), NVM_REF_OFFSET(holder),
										  (uint16) NvmPool->incarnation));
	NVM_FAILPOINT("middle-after-unlink");
	for (int i = 0; i < n; i++)
		nvm_version_retire(state, run[i].v, NVM_REF_BLOCK(run[i].ref),
						   NVM_REF_OFFSET(run[i].ref), stamp,
						   run[i].ref == root ? NVM_STAMP_STUB : NVM_STAMP_RETIRED);
}

/*
 * See nvm_space.h.  Adds to *nlarge, if that is asked for, how many of the versions
 * keep large values until their cells are reused.
 */
int
nvm_chain_prune_middle(NvmRelState *state, uint64 root, int64 *nlarge)
{
	NvmVersion *rootv = nvm_cell(state, NVM_REF_BLOCK(root), NVM_REF_OFFSET(root));
	uint64		begin = nvm_load(&rootv->begin);
	EndedVersion list[MAX_MIDDLE];
	uint64		stop;
	uint64		holder = root;
	int			n;
	int			removed = 0;

	if (nvm_xact_stamp_if_any(state->region) == 0 || !nvm_snapshots_held())
		return 0;
	if (!nvm_begin_is(begin, NVM_STAMP_STUB) &&
		(!nvm_begin_is_version(begin) || !(rootv->flags & NVM_VF_ROOT)))
		return 0;
	n = list_ended(state, root, list, &stop);
	if (n == 0 || !mark_unseen(list, n))
		return 0;

	for (int from = 0; from < n;)
	{
		int			to = from;

		while (to < n && list[to].unlink)
			to++;
		for (int i = from; nlarge != NULL && i < to; i++)
			*nlarge += (list[i].v->flags & NVM_VF_LARGE) != 0;
		if (to > from)
			unlink_run(state, root, holder, &list[from], to - from,
					   to < n ? list[to].ref : stop);
		removed += to - from;
		if (to < n)
			holder = list[to].ref;
		from = to + 1;
	}
	return removed;
}
