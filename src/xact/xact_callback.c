/*-------------------------------------------------------------------------
 *
 * xact_callback.c
 *	  PostgreSQL's transaction callbacks: class, stamp, commit and abort.
 *
 * CommitTransaction runs the pre-commit callback, then everything that can
 * still fail, then it writes the commit record, leaves the proc array (others
 * see the transaction now), runs the commit callback, and last releases its
 * locks.  xact/README.md says what is done at each and why there.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "commands/tablespace.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "replication/origin.h"
#include "wbl/nvm_commit.h"
#include "wbl/nvm_snapshot.h"
#include "wbl/nvm_wbl.h"
#include "xact/xact_impl.h"

/* of commands/tablespace.c; in no header before 18 */
extern char *temp_tablespaces;

/* the WAL size of a commit record is measured once in so many commits */
#define MEASURE_EVERY			64

typedef enum NvmXactClass
{
	NVM_XACT_OPEN,				/* PRE_COMMIT has not come by */
	NVM_XACT_NVM_ONLY,
	NVM_XACT_MIXED,
	NVM_XACT_TWOPHASE			/* PRE_PREPARE has come by: nothing is written any
								 * more, and there is no stamp to write it with */
} NvmXactClass;

/*
 * State of the current top-level transaction.
 */
typedef struct NvmXact
{
	NvmStamp	stamp;			/* 0: it has written no nvm data */
	NvmStamp	prepared;		/* of class TWOPHASE: its stamp, or 0 */
	NvmXactClass class;
	TransactionId promised;		/* xids below it may be in rows: wbl_xid.c */
	bool		rests_on_wal;	/* nvm_xact_rests_on_wal */
	bool		locked_rows;	/* it has locked rows, and perhaps written nothing */
	/* WAL records of this process before the transaction, and those since that
	 * are no change of data: aborts of subtransactions, assignments of xids */
	int64		records_before;
	int64		records_harmless;
} NvmXact;

static NvmXact xact;

static bool
settle_nothing(void)
{
	return false;
}

/* what btree/ registered */
static NvmSettleFunction settle_indexes = settle_nothing;

static inline bool
nvm_pool_is_open(void)
{
	return NvmWbl != NULL && NvmPool != NULL && NvmPool->status == NVM_POOL_OPEN;
}

/*
 * See nvm_xact.h.
 */
NvmStamp
nvm_xact_stamp(void)
{
	if (likely(xact.stamp != NVM_STAMP_NONE))
		return xact.stamp;

	nvm_pool_require();
	if (xact.class == NVM_XACT_TWOPHASE)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("cannot change nvm tables while the transaction is being prepared")));
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot change nvm tables during recovery")));
	if (IsInParallelMode())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_STATE),
				 errmsg("cannot change nvm tables during a parallel operation")));
	nvm_wbl_resolve();
	/* it reads catalogs; when the undo log spills, that would be too late */
	if (temp_tablespaces != NULL && temp_tablespaces[0] != '\0')
		PrepareTempTablespaces();
	xact.promised = nvm_xid_promise(GetTopFullTransactionId());
	xact.stamp = nvm_slot_next_stamp(U64FromFullTransactionId(GetTopFullTransactionId()));
	return xact.stamp;
}

/*
 * See nvm_xact.h.
 */
void
nvm_xact_before_row_lock(void)
{
	if (likely(xact.locked_rows) && likely(xact.class != NVM_XACT_TWOPHASE))
		return;
	if (xact.class == NVM_XACT_TWOPHASE)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("cannot lock rows of nvm tables while the transaction is being prepared")));
	/* as nvm_xact_stamp: the notes may spill */
	if (nvm_xact_notes_row_locks() &&
		temp_tablespaces != NULL && temp_tablespaces[0] != '\0')
		PrepareTempTablespaces();
	xact.locked_rows = true;
}

bool
nvm_xact_is_writer(void)
{
	return xact.stamp != NVM_STAMP_NONE;
}

NvmStamp
nvm_xact_stamp_if_any(void)
{
	return xact.stamp;
}

/*
 * See nvm_xact.h.
 */
TransactionId
nvm_xact_current_xid(void)
{
	TransactionId xid = GetCurrentTransactionIdIfAny();
	int64		before;

	if (likely(TransactionIdIsValid(xid) &&
			   TransactionIdPrecedes(xid, xact.promised)))
		return xid;
	before = pgWalUsage.wal_records;
	xid = GetCurrentTransactionId();
	xact.records_harmless += pgWalUsage.wal_records - before;
	xact.promised = nvm_xid_promise(GetCurrentFullTransactionId());
	return xid;
}

/*
 * See nvm_xact.h.
 */
void
nvm_xact_rests_on_wal(void)
{
	xact.rests_on_wal = true;
}

/*
 * Has the transaction written WAL that must live or die with its nvm data?  Or is
 * anybody to hear of it before its decision is durable?
 *
 * A replication origin's progress is in the commit record, so that record
 * must be durable before the data counts.
 *
 * If all that the transaction put into the WAL is aborts of subtransactions
 * and assignments of xids, nothing depends on those; XactLastRecEnd is set
 * back so that RecordTransactionCommit does not wait for them either.
 */
static bool
nvm_xact_is_mixed(void)
{
	if (replorigin_session_origin != InvalidRepOriginId &&
		replorigin_session_origin != DoNotReplicateId)
		return true;
	if (XactLastRecEnd == InvalidXLogRecPtr)
		return nvm_rests_notifies();
	if (xact.records_harmless > 0 &&
		pgWalUsage.wal_records - xact.records_before == xact.records_harmless)
	{
		XactLastRecEnd = InvalidXLogRecPtr;
		return nvm_rests_notifies();
	}
	return true;
}

/*
 * The next transaction starts from here.
 */
static void
nvm_xact_reset(void)
{
	xact.stamp = NVM_STAMP_NONE;
	xact.promised = InvalidTransactionId;
	xact.prepared = NVM_STAMP_NONE;
	xact.class = NVM_XACT_OPEN;
	xact.rests_on_wal = false;
	xact.locked_rows = false;
	xact.records_before = pgWalUsage.wal_records;
	xact.records_harmless = 0;
}

/*
 * A row is written by what the catalogs say at that moment, and to the indexes that
 * they name.  It is durable without the WAL, and under synchronous_commit = off a
 * crash could lose the change of the catalogs that it needs.  So no transaction that
 * changed them commits like that where there are nvm tables.  Each one sees to it
 * itself: a command may consist of several (REINDEX CONCURRENTLY).
 */
static void
nvm_xact_catalogs_in_time(void)
{
	if (XactLastRecEnd != InvalidXLogRecPtr &&
		synchronous_commit == SYNCHRONOUS_COMMIT_OFF && NvmPool->ndirs > 0 &&
		OidIsValid(MyDatabaseId) && nvm_rests_changed_catalogs())
		ForceSyncCommit();
}

/*
 * PRE_COMMIT: no decision here, since the transaction may still fail.  The
 * data is made durable, and for a mixed transaction the question that pg_xact
 * will answer.
 */
static void
nvm_xact_pre_commit(void)
{
	nvm_wbl_judge();
	nvm_twophase_before_commit();
	nvm_xact_catalogs_in_time();
	if (xact.stamp == NVM_STAMP_NONE)
	{
		nvm_sequence_flush(false);
		return;
	}

	NVM_FAILPOINT("commit-begin");
	nvm_undo_check();
	(void) settle_indexes();
	if (nvm_xact_is_mixed())
	{
		xact.class = NVM_XACT_MIXED;
		nvm_commit_prepare(xact.stamp,
						   U64FromFullTransactionId(GetTopFullTransactionId()));
		ForceSyncCommit();
	}
	else
	{
		xact.class = NVM_XACT_NVM_ONLY;
		if (xact.rests_on_wal)
			nvm_rests_flush_wal();
		else
			nvm_sequence_flush(true);
		nvm_commit_flush_data();
	}
	NVM_FAILPOINT("commit-after-prepare");
}

/*
 * COMMIT: others see the transaction as committed already, and depend on it
 * only after they have made it durable themselves.  Nothing here may fail.
 *
 * A stamp that was taken after PRE_COMMIT (an ON COMMIT action, a pre-commit
 * callback of somebody else that ran after ours) belongs to a transaction that
 * had written no nvm data before; its data has not been waited for.
 */
static void
nvm_xact_commit(void)
{
	bool		late;

	if (xact.stamp == NVM_STAMP_NONE)
		return;

	NVM_FAILPOINT("commit-before-decision");
	late = settle_indexes();
	if (late || xact.class == NVM_XACT_OPEN)
		nvm_drain("commit-late-data");
	if (xact.class == NVM_XACT_MIXED)
	{
		nvm_commit_decide_mixed(xact.stamp);
		pg_atomic_fetch_add_u64(&NvmWbl->mixed_commits, 1);
	}
	else
	{
		uint64		commits;

		nvm_commit_decide(xact.stamp);
		commits = pg_atomic_fetch_add_u64(&NvmWbl->commits, 1);
		if (commits % MEASURE_EVERY == 0 && XactLastCommitEnd > ProcLastRecPtr)
			pg_atomic_write_u32(&NvmWbl->commit_record_size,
								Min(XactLastCommitEnd - ProcLastRecPtr, 8192));
	}
	NVM_FAILPOINT("commit-after-decision");
	nvm_undo_commit(xact.stamp);
	nvm_slot_note_work();
	NVM_FAILPOINT("commit-end");
}

/*
 * PRE_PREPARE: as PRE_COMMIT of a mixed transaction.  What comes after it in
 * PrepareTransaction may fail, and then ABORT takes everything back.
 *
 * Row locks alone make a transaction a writer: their list hangs on a slot.
 * Sequences need no rule of their own: PREPARE flushes the WAL.
 */
static void
nvm_xact_pre_prepare(void)
{
	uint32		locks;

	nvm_wbl_judge();

	/* PostgreSQL is about to refuse it by itself */
	if (max_prepared_xacts == 0 || (MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE))
		return;

	NVM_FAILPOINT("prepare-begin");
	nvm_undo_check();
	if (xact.stamp == NVM_STAMP_NONE && xact.locked_rows)
		(void) nvm_xact_stamp();
	if (xact.stamp != NVM_STAMP_NONE)
	{
		(void) settle_indexes();
		locks = nvm_undo_save_locks(xact.stamp);
		xact.prepared = xact.stamp;
		xact.stamp = NVM_STAMP_NONE;
		nvm_twophase_prepare(xact.prepared,
							 U64FromFullTransactionId(GetTopFullTransactionId()), locks);
	}
	xact.class = NVM_XACT_TWOPHASE;
	NVM_FAILPOINT("prepare-after-asking");
}

/*
 * PREPARE: the transaction is prepared, durably, and nobody's.  Nothing here
 * may fail.
 */
static void
nvm_xact_prepare(void)
{
	if (xact.prepared == NVM_STAMP_NONE)
		return;

	NVM_FAILPOINT("prepare-before-hand-over");
	nvm_slot_note_work();
	nvm_twophase_hand_over(xact.prepared, nvm_undo_has_dirs());
	NVM_FAILPOINT("prepare-end");
}

/*
 * ABORT: others see the transaction as aborted already, and overwrite its row
 * locks and ends as they need to.  Its traces must be gone, durably, before
 * its counter counts as decided.
 */
static void
nvm_xact_abort(void)
{
	NvmStamp	stamp = xact.stamp;

	if (xact.prepared != NVM_STAMP_NONE)
	{
		stamp = xact.prepared;
		nvm_twophase_withdraw(stamp);
	}
	nvm_sequence_flush_at_abort();
	if (stamp == NVM_STAMP_NONE)
		return;

	NVM_FAILPOINT("abort-begin");
	if (nvm_undo_abort(stamp))
		nvm_commit_finish_abort(stamp);
	else
		nvm_commit_abandon(stamp);
	nvm_lock_list_discard();
	nvm_slot_note_work();
	pg_atomic_fetch_add_u64(&NvmWbl->aborts, 1);
	NVM_FAILPOINT("abort-end");
}

static void
nvm_xact_callback(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_PRE_COMMIT && event != XACT_EVENT_PRE_PREPARE &&
		event != XACT_EVENT_PARALLEL_PRE_COMMIT)
		nvm_snapshot_end();
	if (!nvm_pool_is_open())
		return;

	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			nvm_xact_pre_commit();
			/* a helper may decide a stamp that is taken from here on (README.md) */
			nvm_pmem_defer(false);
			break;
		case XACT_EVENT_PRE_PREPARE:
			nvm_xact_pre_prepare();
			break;
		case XACT_EVENT_COMMIT:
			nvm_xact_commit();
			nvm_undo_reset();
			nvm_xact_reset();
			nvm_pmem_defer(true);
			break;
		case XACT_EVENT_ABORT:
			nvm_xact_abort();
			nvm_undo_reset();
			nvm_xact_reset();
			nvm_pmem_defer(true);
			break;
		case XACT_EVENT_PREPARE:
			nvm_xact_prepare();
			nvm_undo_reset();
			nvm_xact_reset();
			nvm_pmem_defer(true);
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			/* workers write nothing; what they saw they made durable */
			break;
	}
}

static void
nvm_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
					 SubTransactionId parentSubid, void *arg)
{
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		nvm_undo_subcommit(GetCurrentTransactionNestLevel());
	else if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		NVM_FAILPOINT("abort-sub-begin");
		/* RecordTransactionAbort has written one record if it has an xid */
		if (TransactionIdIsValid(GetCurrentTransactionIdIfAny()))
			xact.records_harmless++;
		/*
		 * Its storages, with pages that are to be settled, are about to go, and so
		 * are its locks, which have kept others from dropping indexes.
		 */
		if (xact.stamp != NVM_STAMP_NONE)
			(void) settle_indexes();
		nvm_undo_subabort(GetCurrentTransactionNestLevel(), xact.stamp);
	}
}

/*
 * Register the callbacks; in _PG_init, in the postmaster, so that every
 * process inherits them: also those that never touch an nvm table settle what
 * is in doubt before they commit.
 */
void
nvm_xact_register_callbacks(void)
{
	RegisterXactCallback(nvm_xact_callback, NULL);
	RegisterSubXactCallback(nvm_subxact_callback, NULL);
}

void
nvm_xact_register_settle(NvmSettleFunction settle)
{
	settle_indexes = settle;
}
