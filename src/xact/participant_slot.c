/*-------------------------------------------------------------------------
 *
 * participant_slot.c
 *	  The pool as a participant of a transaction: the word of its commit slot.
 *
 * Everything that the transaction writes to the pool carries its stamp.  This
 * file says what becomes of the stamp at each event.  How a word is stored is
 * wbl/'s matter.
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
#include "wbl/nvm_commit.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_participant.h"
#include "xact/xact_impl.h"

/* of commands/tablespace.c; in no header before 18 */
extern char *temp_tablespaces;

/* the WAL size of a commit record is measured once in so many commits */
#define MEASURE_EVERY			64

/*
 * State of the current top-level transaction.
 */
typedef struct NvmXactSlot
{
	NvmStamp	stamp;			/* 0: it has written no nvm data */
	NvmStamp	prepared;		/* of class TWOPHASE: its stamp, or 0 */
	TransactionId promised;		/* xids below it may be in rows: wbl_xid.c */
	bool		locked_rows;	/* it has locked rows, and perhaps written
								 * nothing */
} NvmXactSlot;

static NvmXactSlot xact;

static bool
settle_nothing(void)
{
	return false;
}

/* what btree/ registered */
static NvmSettleFunction settle_indexes = settle_nothing;

/*
 * See nvm_xact.h.
 */
void
nvm_xact_register_settle(NvmSettleFunction settle)
{
	settle_indexes = settle;
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
	if (nvm_xact_class == NVM_XACT_TWOPHASE)
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
	if (likely(xact.locked_rows) && likely(nvm_xact_class != NVM_XACT_TWOPHASE))
		return;
	if (nvm_xact_class == NVM_XACT_TWOPHASE)
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
	nvm_wal_harmless(pgWalUsage.wal_records - before);
	xact.promised = nvm_xid_promise(GetCurrentFullTransactionId());
	return xid;
}

/*
 * First round of PRE_COMMIT.  Nothing in the pool needs pg_xact.  But problems
 * that show late are found here (nvm_undo_check), and the indexes' pages are
 * settled.
 */
static bool
slot_begin_commit(void)
{
	if (xact.stamp != NVM_STAMP_NONE)
	{
		NVM_FAILPOINT("commit-begin");
		nvm_undo_check();
		(void) settle_indexes();
	}
	return false;
}

/*
 * Make the data durable, and for a mixed transaction the question that pg_xact
 * will answer.
 */
static void
slot_pre_commit(NvmXactClass class)
{
	if (xact.stamp == NVM_STAMP_NONE)
		return;

	if (class == NVM_XACT_MIXED)
		nvm_commit_prepare(xact.stamp,
						   U64FromFullTransactionId(GetTopFullTransactionId()));
	else
		nvm_commit_flush_data();
	NVM_FAILPOINT("commit-after-prepare");
}

/*
 * The stamp may have been taken after PRE_COMMIT, by an ON COMMIT action, or
 * by another library's pre-commit callback that ran after ours.  Such a
 * transaction had written no nvm data before, and nobody has waited for its
 * data.
 */
static void
slot_decide(NvmXactClass class)
{
	bool		late;

	if (xact.stamp == NVM_STAMP_NONE)
		return;

	NVM_FAILPOINT("commit-before-decision");
	late = settle_indexes();
	if (late || class == NVM_XACT_OPEN)
		nvm_drain("commit-late-data");
	if (class == NVM_XACT_MIXED)
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
 * Row locks alone make a transaction a writer: their list hangs on a slot.
 */
static void
slot_pre_prepare(void)
{
	uint32		locks;

	NVM_FAILPOINT("prepare-begin");
	nvm_undo_check();
	if (xact.stamp == NVM_STAMP_NONE && xact.locked_rows)
		(void) nvm_xact_stamp();
	if (xact.stamp == NVM_STAMP_NONE)
		return;

	(void) settle_indexes();
	locks = nvm_undo_save_locks(xact.stamp);
	xact.prepared = xact.stamp;
	xact.stamp = NVM_STAMP_NONE;
	nvm_twophase_prepare(xact.prepared,
						 U64FromFullTransactionId(GetTopFullTransactionId()), locks);
}

static void
slot_prepare(void)
{
	if (xact.prepared == NVM_STAMP_NONE)
		return;

	NVM_FAILPOINT("prepare-before-hand-over");
	nvm_slot_note_work();
	nvm_twophase_hand_over(xact.prepared, nvm_undo_has_dirs());
	NVM_FAILPOINT("prepare-end");
}

/*
 * The transaction's traces must be gone, durably, before its counter counts as
 * decided.
 */
static void
slot_abort(void)
{
	NvmStamp	stamp = xact.stamp;

	if (xact.prepared != NVM_STAMP_NONE)
	{
		stamp = xact.prepared;
		nvm_twophase_withdraw(stamp);
	}
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

/*
 * The subtransaction's storages are about to go, with pages that are to be
 * settled.  Its locks go, too; they have kept others from dropping indexes.
 */
static void
slot_sub_abort(int level)
{
	if (xact.stamp != NVM_STAMP_NONE)
		(void) settle_indexes();
	nvm_undo_subabort(level, xact.stamp);
}

static void
slot_reset(void)
{
	xact.stamp = NVM_STAMP_NONE;
	xact.prepared = NVM_STAMP_NONE;
	xact.promised = InvalidTransactionId;
	xact.locked_rows = false;
}

const NvmParticipant nvm_participant_slot = {
	.name = "slot",
	.begin_commit = slot_begin_commit,
	.pre_commit = slot_pre_commit,
	.decide = slot_decide,
	.abort = slot_abort,
	.pre_prepare = slot_pre_prepare,
	.prepare = slot_prepare,
	.sub_commit = nvm_undo_subcommit,
	.sub_abort = slot_sub_abort,
	.reset = slot_reset
};
