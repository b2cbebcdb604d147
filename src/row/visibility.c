/*-------------------------------------------------------------------------
 *
 * visibility.c
 *	  Which snapshot sees which version.
 *
 * Two rules meet here: at run time PostgreSQL's snapshots rule, after a
 * restart the gap record rules.  A stamp at or below its slot's frozen
 * counter is decided and visible to every snapshot, unless a gap says that it
 * never happened.  That takes no xid and no pg_xact.  Any other stamp is of
 * the running incarnation; the version's 32-bit xid beside it is looked up as
 * heap would.
 *
 * Readers hold no lock.  What makes that sound:
 *	- begin is stored last when a version is made, and a version is not reused
 *	  while a snapshot that could have found it is registered;
 *	- xend is stored before end, and an end that is taken over is first set to
 *	  0.  So an xend read between two equal reads of end belongs to it, as
 *	  long as begin is still the same: a version that is unlinked keeps other
 *	  things there;
 *	- end, once frozen, is not touched before everybody is past the version.
 *
 * What is accepted on the word of another transaction of this incarnation is
 * made durable first (invariant 2), so nothing here needs to be remembered
 * until commit.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "access/transam.h"
#include "access/xact.h"
#include "pool/nvm_poison.h"
#include "pool/nvm_pool.h"
#include "row/nvm_version.h"
#include "row/nvm_visibility.h"
#include "storage/predicate.h"
#include "storage/procarray.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"

/*
 * Committed stamps of this incarnation that this process has looked up: spares
 * pg_xact for rows of recent, not yet frozen transactions.  A stamp is never
 * reused, and what an aborted subtransaction wrote under it is undone before
 * the stamp commits, so an entry cannot become wrong.
 */
#define NVM_COMMITTED_CACHE		256
static NvmStamp committed_cache[NVM_COMMITTED_CACHE];

static inline uint32
committed_hash(NvmStamp stamp)
{
	return (uint32) ((stamp * UINT64CONST(0x9E3779B97F4A7C15)) >> 56);
}

/*
 * Can an unfrozen stamp of v be a transaction's?  ERROR if it is damaged;
 * false if v is no area any more.  A process asks before it waits for the
 * transaction, or believes that it has committed: else it could wait in vain.
 */
static bool
stamp_is_known(NvmVersion *v, const char *which, NvmStamp stamp)
{
	if (likely(nvm_stamp_handed_out(stamp)))
		return true;
	if (nvm_version_stays(v))
		nvm_stamp_damaged(v, which, stamp);
	return false;
}

/*
 * Did the transaction of an unfrozen stamp of v commit?  Caller knows that xid is
 * not (or no longer) in progress from its point of view.
 */
static bool
stamp_did_commit(NvmVersion *v, const char *which, NvmStamp stamp, TransactionId xid)
{
	uint32		h = committed_hash(stamp);

	if (committed_cache[h] == stamp)
		return true;

	/* pg_xact is asked only of what can be there: its error names no place */
	if (!stamp_is_known(v, which, stamp))
		return false;
	if (TransactionIdIsNormal(xid) && !TransactionIdPrecedes(xid, ReadNextTransactionId()))
	{
		if (nvm_version_stays(v))
			nvm_stamp_damaged(v, which, stamp);
		return false;
	}
	if (!TransactionIdDidCommit(xid))
		return false;
	nvm_stamp_ensure_durable(stamp);
	committed_cache[h] = stamp;
	return true;
}

static inline bool
stamp_is_running(NvmVersion *v, const char *which, NvmStamp stamp, TransactionId xid)
{
	return TransactionIdIsInProgress(xid) && stamp_is_known(v, which, stamp);
}

/*
 * The xid of an end stamp, or Invalid if the pair changed under us: *gone if
 * that is no version any more, else the caller reads `end` again.  ERROR if
 * there is none: the caller would read for ever.
 */
static inline TransactionId
read_xend(NvmVersion *v, uint64 end, uint64 begin, bool *gone)
{
	TransactionId xend = *(volatile uint32 *) &v->tuple.xend;

	pg_read_barrier();
	*gone = nvm_load(&v->begin) != begin;
	if (*gone || nvm_load(&v->end) != end)
		return InvalidTransactionId;
	xend = nvm_stamp_xid(end, xend);
	if (unlikely(!TransactionIdIsValid(xend)))
	{
		if (nvm_version_stays(v))
			nvm_stamp_damaged(v, "end", end);
		*gone = true;
	}
	return xend;
}

/*
 * Likewise the xid of a begin stamp: Invalid if the version was unlinked.
 */
static inline TransactionId
read_xmin(NvmVersion *v, uint64 begin)
{
	TransactionId xmin = *(volatile uint32 *) &v->tuple.xmin;

	pg_read_barrier();
	return nvm_load(&v->begin) == begin ? nvm_stamp_xid(begin, xmin) : InvalidTransactionId;
}

/* tell SSI of a version that the snapshot reads past */
static void
conflict_out(Relation rel, TransactionId xid, Snapshot snapshot)
{
	if (rel == NULL || !CheckForSerializableConflictOutNeeded(rel, snapshot))
		return;
	if (TransactionIdEquals(xid, GetTopTransactionIdIfAny()))
		return;
	if (TransactionIdPrecedes(xid, TransactionXmin))
		return;
	xid = SubTransGetTopmostTransaction(xid);
	if (TransactionIdPrecedes(xid, TransactionXmin))
		return;
	CheckForSerializableConflictOut(rel, xid, snapshot);
}

/*
 * MVCC: is the end of a version, whose begin the snapshot sees, not (yet) seen?
 */
static bool
mvcc_not_ended(Relation rel, NvmVersion *v, uint64 begin, Snapshot snapshot)
{
	for (;;)
	{
		uint64		end = nvm_load(&v->end);
		TransactionId xend;
		bool		gone;

		if (end == 0)
			return true;
		if (nvm_stamp_is_frozen(end))
			return nvm_stamp_in_gap(end);

		xend = read_xend(v, end, begin, &gone);
		if (!TransactionIdIsValid(xend))
		{
			if (gone)
				return false;	/* it was dead to everybody: unlinked */
			continue;
		}
		if (TransactionIdIsCurrentTransactionId(xend))
			return HeapTupleHeaderGetCmax(NvmVersionTuple(v)) >= snapshot->curcid;
		if (XidInMVCCSnapshot(xend, snapshot))
		{
			conflict_out(rel, xend, snapshot);
			return true;
		}
		return !stamp_did_commit(v, "end", end, xend);
	}
}

static bool
visible_mvcc(Relation rel, NvmVersion *v, Snapshot snapshot)
{
	uint64		begin = nvm_load(&v->begin);

	if (!nvm_begin_is_version(begin))
		return false;
	if (likely(nvm_stamp_is_frozen(begin)))
	{
		if (nvm_stamp_in_gap(begin))
			return false;
	}
	else
	{
		TransactionId xmin = read_xmin(v, begin);

		if (!TransactionIdIsValid(xmin))
			return false;
		if (TransactionIdIsCurrentTransactionId(xmin))
		{
			if (HeapTupleHeaderGetCmin(NvmVersionTuple(v)) >= snapshot->curcid)
				return false;
		}
		else if (XidInMVCCSnapshot(xmin, snapshot))
		{
			conflict_out(rel, xmin, snapshot);
			return false;
		}
		else if (!stamp_did_commit(v, "begin", begin, xmin))
			return false;
	}
	return mvcc_not_ended(rel, v, begin, snapshot);
}

/*
 * What is true right now: is the end of a version, which has begun, still to
 * come?  dirty (or NULL) learns of a transaction in progress.
 */
static bool
now_not_ended(NvmVersion *v, uint64 begin, Snapshot dirty)
{
	for (;;)
	{
		uint64		end = nvm_load(&v->end);
		TransactionId xend;
		bool		gone;

		if (end == 0)
			return true;
		if (nvm_stamp_is_frozen(end))
			return nvm_stamp_in_gap(end);
		xend = read_xend(v, end, begin, &gone);
		if (!TransactionIdIsValid(xend))
		{
			if (gone)
				return false;
			continue;
		}
		if (TransactionIdIsCurrentTransactionId(xend))
			return false;
		if (stamp_is_running(v, "end", end, xend))
		{
			if (dirty)
				dirty->xmax = xend;
			return true;
		}
		return !stamp_did_commit(v, "end", end, xend);
	}
}

/*
 * SnapshotSelf and SnapshotDirty: what is true right now, own changes
 * included.  dirty (or NULL) learns of transactions in progress.
 */
static bool
visible_now(NvmVersion *v, Snapshot dirty)
{
	uint64		begin = nvm_load(&v->begin);

	if (dirty)
	{
		dirty->xmin = dirty->xmax = InvalidTransactionId;
		dirty->speculativeToken = 0;
	}
	if (!nvm_begin_is_version(begin))
		return false;
	if (nvm_stamp_is_frozen(begin))
	{
		if (nvm_stamp_in_gap(begin))
			return false;
	}
	else
	{
		TransactionId xmin = read_xmin(v, begin);

		if (!TransactionIdIsValid(xmin))
			return false;
		if (TransactionIdIsCurrentTransactionId(xmin))
			;					/* ours: look at the end */
		else if (stamp_is_running(v, "begin", begin, xmin))
		{
			uint64		link = nvm_load(&v->link);

			if (dirty == NULL)
				return false;
			if ((v->flags & NVM_VF_ROOT) && NVM_REF_OFFSET(link) == 0 &&
				NVM_REF_HI(link) == (uint16) NvmPool->incarnation)
				dirty->speculativeToken = NVM_REF_BLOCK(link);
			dirty->xmin = xmin;
			return true;
		}
		else if (!stamp_did_commit(v, "begin", begin, xmin))
			return false;
	}
	return now_not_ended(v, begin, dirty);
}

#ifdef USE_ASSERT_CHECKING
/*
 * Does a reader stand at a version, and not at free cells?  A loss of power
 * may leave the first cell of a version whose transaction it ended.  The
 * second cell may lie in the next cache line, and have the pattern that was
 * there before.  Its begin is in a gap until the collector takes it away.
 */
static bool
stands_at_version(NvmVersion *v)
{
	uint64		begin = nvm_load(&v->begin);

	return !nvm_begin_is_version(begin) || !NVM_LOOKS_FREE(v) ||
		nvm_stamp_in_gap(begin) || nvm_load(&v->begin) != begin;
}
#endif

bool
nvm_version_visible(Relation rel, NvmVersion *v, Snapshot snapshot)
{
	Assert(stands_at_version(v));
	switch (snapshot->snapshot_type)
	{
		case SNAPSHOT_MVCC:
			return visible_mvcc(rel, v, snapshot);
		case SNAPSHOT_SELF:
			return visible_now(v, NULL);
		case SNAPSHOT_DIRTY:
			return visible_now(v, snapshot);
		case SNAPSHOT_ANY:
			return nvm_begin_is_version(nvm_load(&v->begin));
		case SNAPSHOT_TOAST:
			return visible_now(v, NULL);
		case SNAPSHOT_NON_VACUUMABLE:
			{
				TransactionId xid;

				switch (nvm_version_vacuum_state(v, snapshot->vistest, &xid))
				{
					case NVM_VAC_RECENTLY_DEAD:
					case NVM_VAC_LIVE:
					case NVM_VAC_INSERT_IN_PROGRESS:
					case NVM_VAC_DELETE_IN_PROGRESS:
						return true;
					default:
						return false;
				}
			}
		case SNAPSHOT_HISTORIC_MVCC:
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("nvm tables cannot be read by logical decoding"),
					 errhint("Their changes are not in the write-ahead log.")));
	}
	return false;				/* keep compiler quiet */
}

/*
 * May the current command update or delete the version?  As
 * HeapTupleSatisfiesUpdate, but row locks are looked at by the caller.
 *
 * Caller holds the row lock of the version's root.
 */
TM_Result
nvm_version_satisfies_update(NvmVersion *v, CommandId curcid, TransactionId *xwait)
{
	uint64		begin = nvm_load(&v->begin);
	uint64		end;
	TransactionId xend;

	*xwait = InvalidTransactionId;
	if (!nvm_begin_is_version(begin))
		return TM_Invisible;
	if (nvm_stamp_is_frozen(begin))
	{
		if (nvm_stamp_in_gap(begin))
			return TM_Invisible;
	}
	else
	{
		TransactionId xmin = nvm_stamp_xid(begin, v->tuple.xmin);

		if (TransactionIdIsCurrentTransactionId(xmin))
		{
			if (HeapTupleHeaderGetCmin(NvmVersionTuple(v)) >= curcid)
				return TM_Invisible;
		}
		else if (TransactionIdIsInProgress(xmin) || !stamp_did_commit(v, "begin", begin, xmin))
			return TM_Invisible;
	}

	end = nvm_load(&v->end);
	if (end == 0)
		return TM_Ok;
	if (nvm_stamp_is_frozen(end))
	{
		if (nvm_stamp_in_gap(end))
			return TM_Ok;
	}
	else
	{
		xend = nvm_stamp_xid(end, v->tuple.xend);
		*xwait = xend;
		if (TransactionIdIsCurrentTransactionId(xend))
			return HeapTupleHeaderGetCmax(NvmVersionTuple(v)) >= curcid ?
				TM_SelfModified : TM_Invisible;
		if (stamp_is_running(v, "end", end, xend))
			return TM_BeingModified;
		if (!stamp_did_commit(v, "end", end, xend))
			return TM_Ok;
	}
	if (NVM_REF_IS_VALID(v->next) || (NVM_REF_HI(v->next) & NVM_NEXT_MOVED))
		return TM_Updated;
	return TM_Deleted;
}

/*
 * Which transaction is behind the begin stamp, for VACUUM: LIVE stands for
 * "committed".
 */
static NvmVacuumState
begin_vacuum_state(NvmVersion *v, uint64 begin, TransactionId *xid)
{
	TransactionId xmin;

	if (begin == 0)
		return NVM_VAC_FREE;
	if (NVM_STAMP_IS_SPECIAL(begin))
	{
		switch (NVM_STAMP_SLOT(begin))
		{
			case NVM_STAMP_STUB:
				return NVM_VAC_STUB;
			case NVM_STAMP_DEAD:
				return NVM_VAC_DEAD_ROOT;
			default:
				return NVM_VAC_RETIRED;
		}
	}
	if (nvm_stamp_is_frozen(begin))
		return nvm_stamp_in_gap(begin) ? NVM_VAC_DEAD : NVM_VAC_LIVE;

	xmin = read_xmin(v, begin);
	if (!TransactionIdIsValid(xmin))
		return NVM_VAC_RETIRED;
	if (TransactionIdIsCurrentTransactionId(xmin) || TransactionIdIsInProgress(xmin))
	{
		*xid = xmin;
		if (TransactionIdIsCurrentTransactionId(xmin) && nvm_load(&v->end) != 0 &&
			TransactionIdIsCurrentTransactionId(nvm_stamp_xid(nvm_load(&v->end),
															  v->tuple.xend)))
			return NVM_VAC_DELETE_IN_PROGRESS;
		return NVM_VAC_INSERT_IN_PROGRESS;
	}
	return stamp_did_commit(v, "begin", begin, xmin) ? NVM_VAC_LIVE : NVM_VAC_DEAD;
}

/*
 * What VACUUM, ANALYZE and index builds make of a version.  "Dead" means dead
 * to everybody and durably so (invariant 8).  In the volatile region that is when
 * the log has it: entries of other index methods go by WAL, and may not go before.
 */
NvmVacuumState
nvm_version_vacuum_state(NvmVersion *v, struct GlobalVisState *vistest,
						 TransactionId *xid)
{
	uint64		begin = nvm_load(&v->begin);
	NvmVacuumState state;

	*xid = InvalidTransactionId;
	state = begin_vacuum_state(v, begin, xid);
	if (state != NVM_VAC_LIVE)
		return state;

	for (;;)
	{
		uint64		end = nvm_load(&v->end);
		TransactionId xend;
		bool		gone;

		if (end == 0)
			return NVM_VAC_LIVE;
		if (nvm_stamp_is_frozen(end))
		{
			if (nvm_stamp_in_gap(end))
				return NVM_VAC_LIVE;
			*xid = FrozenTransactionId;
			return NVM_VAC_DEAD;
		}
		xend = read_xend(v, end, begin, &gone);
		if (!TransactionIdIsValid(xend))
		{
			if (gone)
				return NVM_VAC_RETIRED;
			continue;
		}
		*xid = xend;
		if (TransactionIdIsCurrentTransactionId(xend) || TransactionIdIsInProgress(xend))
			return NVM_VAC_DELETE_IN_PROGRESS;
		if (!stamp_did_commit(v, "end", end, xend))
			return NVM_VAC_LIVE;
		if (vistest != NULL && GlobalVisTestIsRemovableXid(vistest, xend) &&
			nvm_stamp_is_persistent(end))
			return NVM_VAC_DEAD;
		return NVM_VAC_RECENTLY_DEAD;
	}
}

/*
 * Which transaction, if any, ended the version, whatever any snapshot makes of
 * it.
 *
 * Caller holds the row lock of the version's root.
 */
NvmEndState
nvm_version_end_state(NvmVersion *v, TransactionId *xend)
{
	uint64		end = nvm_load(&v->end);

	*xend = InvalidTransactionId;
	if (end == 0)
		return NVM_END_NONE;
	if (nvm_stamp_is_frozen(end))
		return nvm_stamp_in_gap(end) ? NVM_END_NONE : NVM_END_COMMITTED;
	*xend = nvm_stamp_xid(end, v->tuple.xend);
	if (TransactionIdIsCurrentTransactionId(*xend))
		return NVM_END_OWN;
	if (stamp_is_running(v, "end", end, *xend))
		return NVM_END_IN_PROGRESS;
	return stamp_did_commit(v, "end", end, *xend) ? NVM_END_COMMITTED : NVM_END_NONE;
}
