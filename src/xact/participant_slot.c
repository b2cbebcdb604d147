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
#include "log/nvm_log.h"
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
	NvmXactStamps stamps;		/* all 0: it has written no nvm data */
	NvmXactStamps prepared;		/* of class TWOPHASE: its stamps, or 0 */
	bool		closing;		/* PRE_COMMIT has come by */
	NvmStamp	closed;			/* from then on its stamp in the volatile
								 * region: nothing is written there any more */
	NvmStamp	identity;		/* the first stamp */
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
 * The rows of UNLOGGED tables are being written down (vlog/vlog_keep.c): a walsender alone is
 * still there, whose SQL may come now.  The transaction has its xid, which the proc array
 * shows: nvm_log_refuse_writers.
 */
static void
require_no_stop(void)
{
	if (unlikely(nvm_log_refuses_writers()))
		ereport(ERROR,
				(errcode(ERRCODE_CANNOT_CONNECT_NOW),
				 errmsg("cannot change nvm tables in memory while the server is being stopped")));
}

/*
 * The first write of the current transaction to a region.  May ERROR.
 */
static void
make_stamp(NvmRegionId region)
{
	FullTransactionId fxid;

	nvm_pool_require();
	if (nvm_xact_class == NVM_XACT_TWOPHASE)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("cannot change nvm tables while the transaction is being prepared")));
	if (xact.closing && (region == NVM_REGION_VOLATILE || xact.closed != NVM_STAMP_NONE))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("cannot change nvm tables in memory while the transaction is being committed"),
				 errhint("List pg_nvm first in shared_preload_libraries, so that its part of a commit comes last.")));
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
	fxid = GetTopFullTransactionId();
	if (region == NVM_REGION_VOLATILE)
		require_no_stop();
	xact.promised = nvm_xid_promise(fxid);
	xact.stamps.in[region] = nvm_slot_next_stamp(region, U64FromFullTransactionId(fxid));
	if (xact.identity == NVM_STAMP_NONE)
		xact.identity = xact.stamps.in[region];
}

/*
 * See nvm_xact.h.
 */
NvmStamp
nvm_xact_stamp(NvmRegionId region)
{
	if (likely(xact.stamps.in[region] != NVM_STAMP_NONE))
		return xact.stamps.in[region];
	make_stamp(region);
	return xact.stamps.in[region];
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
	return xact.identity != NVM_STAMP_NONE;
}

NvmStamp
nvm_xact_stamp_if_any(NvmRegionId region)
{
	return xact.stamps.in[region];
}

bool
nvm_xact_owns_stamp(NvmStamp stamp)
{
	return stamp != NVM_STAMP_NONE &&
		(stamp == xact.stamps.in[NVM_REGION_POOL] ||
		 stamp == xact.stamps.in[NVM_REGION_VOLATILE] ||
		 stamp == xact.closed);
}

NvmStamp
nvm_xact_identity(void)
{
	return xact.identity;
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

static inline bool
has_stamp(const NvmXactStamps *stamps, NvmRegionId region)
{
	return stamps->in[region] != NVM_STAMP_NONE;
}

/*
 * First round of PRE_COMMIT.  Problems that show late are found here
 * (nvm_undo_check), and the indexes' pages are settled.  A transaction that has
 * written both regions needs pg_xact: two words cannot be stored at once.
 */
static bool
slot_begin_commit(void)
{
	if (!nvm_xact_is_writer())
		return false;
	NVM_FAILPOINT("commit-begin");
	nvm_undo_check();
	(void) settle_indexes();
	return has_stamp(&xact.stamps, NVM_REGION_POOL) &&
		has_stamp(&xact.stamps, NVM_REGION_VOLATILE);
}

/*
 * Make the data durable, and for a mixed transaction the question that pg_xact
 * will answer.  The volatile region comes first, since the pool's fence follows.
 * Nobody fences for a transaction of the volatile region alone.
 */
static void
slot_pre_commit(NvmXactClass class)
{
	xact.closing = true;
	if (!nvm_xact_is_writer())
		return;

	if (class == NVM_XACT_MIXED)
	{
		for (int i = NVM_NUM_REGIONS - 1; i >= 0; i--)
			if (has_stamp(&xact.stamps, i))
				nvm_commit_prepare(xact.stamps.in[i],
								   U64FromFullTransactionId(GetTopFullTransactionId()));
	}
	else if (has_stamp(&xact.stamps, NVM_REGION_POOL))
		nvm_commit_flush_data();
	xact.closed = xact.stamps.in[NVM_REGION_VOLATILE];
	xact.stamps.in[NVM_REGION_VOLATILE] = NVM_STAMP_NONE;
	NVM_FAILPOINT("commit-after-prepare");
}

/*
 * PRE_COMMIT may have come by: the stamps again as they were before.
 */
static void
reopen(void)
{
	if (xact.closed != NVM_STAMP_NONE)
		xact.stamps.in[NVM_REGION_VOLATILE] = xact.closed;
}

/*
 * The pool's stamp may have been taken after PRE_COMMIT, by an ON COMMIT action,
 * or by another library's pre-commit callback that ran after ours.  Nobody has
 * waited for what such a transaction wrote there.
 */
static void
slot_decide(NvmXactClass class)
{
	bool		late;

	if (!nvm_xact_is_writer())
		return;

	reopen();
	NVM_FAILPOINT("commit-before-decision");
	late = settle_indexes();
	if (late || class == NVM_XACT_OPEN)
		nvm_drain("commit-late-data");
	for (int i = NVM_NUM_REGIONS - 1; i >= 0; i--)
	{
		if (!has_stamp(&xact.stamps, i))
			continue;
		if (class == NVM_XACT_MIXED)
			nvm_commit_decide_mixed(xact.stamps.in[i]);
		else
			nvm_commit_decide(xact.stamps.in[i]);
	}
	if (class == NVM_XACT_MIXED)
		pg_atomic_fetch_add_u64(&NvmWbl->mixed_commits, 1);
	else
	{
		uint64		commits = pg_atomic_fetch_add_u64(&NvmWbl->commits, 1);

		if (commits % MEASURE_EVERY == 0 && XactLastCommitEnd > ProcLastRecPtr)
			pg_atomic_write_u32(&NvmWbl->commit_record_size,
								Min(XactLastCommitEnd - ProcLastRecPtr, 8192));
	}
	NVM_FAILPOINT("commit-after-decision");
	nvm_undo_commit(xact.stamps.in[NVM_REGION_POOL]);
	nvm_slot_note_work();
	NVM_FAILPOINT("commit-end");
}

/*
 * The pool has a slot for every prepared transaction: the list of row locks hangs
 * on it, and row locks alone make a transaction a writer.
 */
static void
slot_pre_prepare(void)
{
	uint64		fxid;
	uint32		locks;

	NVM_FAILPOINT("prepare-begin");
	nvm_undo_check();
	if (nvm_xact_is_writer() || xact.locked_rows)
		(void) nvm_xact_stamp(NVM_REGION_POOL);
	else
		return;

	(void) settle_indexes();
	locks = nvm_undo_save_locks(xact.stamps.in[NVM_REGION_POOL]);
	xact.prepared = xact.stamps;
	memset(&xact.stamps, 0, sizeof(xact.stamps));
	fxid = U64FromFullTransactionId(GetTopFullTransactionId());
	if (has_stamp(&xact.prepared, NVM_REGION_VOLATILE))
		nvm_twophase_prepare(xact.prepared.in[NVM_REGION_VOLATILE], fxid, 0);
	nvm_twophase_prepare(xact.prepared.in[NVM_REGION_POOL], fxid, locks);
}

static void
slot_prepare(void)
{
	if (!has_stamp(&xact.prepared, NVM_REGION_POOL))
		return;

	NVM_FAILPOINT("prepare-before-hand-over");
	nvm_slot_note_work();
	if (has_stamp(&xact.prepared, NVM_REGION_VOLATILE))
		nvm_twophase_hand_over(xact.prepared.in[NVM_REGION_VOLATILE], false);
	nvm_twophase_hand_over(xact.prepared.in[NVM_REGION_POOL], nvm_undo_has_dirs());
	nvm_lock_list_kept();
	pg_atomic_fetch_add_u64(&NvmWbl->prepared, 1);
	NVM_FAILPOINT("prepare-end");
}

/*
 * The transaction's traces must be gone, durably, before its counter counts as
 * decided.
 */
static void
slot_abort(void)
{
	NvmXactStamps stamps;
	bool		undone;

	reopen();
	stamps = xact.stamps;
	if (has_stamp(&xact.prepared, NVM_REGION_POOL))
	{
		stamps = xact.prepared;
		nvm_twophase_withdraw(stamps.in[NVM_REGION_POOL]);
	}
	if (!has_stamp(&stamps, NVM_REGION_POOL) && !has_stamp(&stamps, NVM_REGION_VOLATILE))
		return;

	NVM_FAILPOINT("abort-begin");
	undone = nvm_undo_abort(&stamps);
	for (int i = NVM_NUM_REGIONS - 1; i >= 0; i--)
	{
		if (!has_stamp(&stamps, i))
			continue;
		if (undone)
			nvm_commit_finish_abort(stamps.in[i]);
		else
			nvm_commit_abandon(stamps.in[i]);
	}
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
	if (nvm_xact_is_writer())
		(void) settle_indexes();
	nvm_undo_subabort(level, &xact.stamps);
}

static void
slot_reset(void)
{
	memset(&xact, 0, sizeof(xact));
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
