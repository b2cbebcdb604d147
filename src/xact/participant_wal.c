/*-------------------------------------------------------------------------
 *
 * participant_wal.c
 *	  The WAL as a participant of a transaction: what pg_xact decides.
 *
 * PostgreSQL writes the commit record, flushes it and enters the decision in
 * pg_xact by itself.  This file finds out whether it has to.  It also sees to
 * it that a transaction which skips the wait rests on nothing that a crash
 * could lose (xact/README.md, "What an nvm-only transaction may rest on").
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"
#include "replication/origin.h"
#include "xact/nvm_participant.h"
#include "xact/xact_impl.h"

/*
 * State of the current top-level transaction.
 */
static bool rests_on_wal;		/* nvm_xact_rests_on_wal */

/*
 * WAL records of this process before the transaction, and those since that are no
 * change of data: aborts of subtransactions, assignments of xids.
 */
static int64 records_before;
static int64 records_harmless;

/*
 * See nvm_participant.h.
 */
void
nvm_wal_harmless(int64 records)
{
	records_harmless += records;
}

/*
 * See nvm_xact.h.
 */
void
nvm_xact_rests_on_wal(void)
{
	rests_on_wal = true;
}

/*
 * Does the commit record carry the progress of a replication origin?
 */
static bool
wal_has_origin(void)
{
	return replorigin_session_origin != InvalidRepOriginId &&
		replorigin_session_origin != DoNotReplicateId;
}

/*
 * Is all that the transaction put into the WAL of a kind that nothing depends on?
 */
static bool
wal_is_harmless(void)
{
	return records_harmless > 0 &&
		pgWalUsage.wal_records - records_before == records_harmless;
}

/*
 * A row is written as the catalogs say at that moment, and to the indexes that
 * they name.  It is durable without the WAL.  Under synchronous_commit = off a
 * crash could lose the change of the catalogs that it needs.  So where there
 * are nvm tables, no transaction that changed catalogs commits like that.
 * Each one sees to it itself: a command may consist of several (REINDEX
 * CONCURRENTLY).
 */
static void
wal_catalogs_in_time(void)
{
	if (XactLastRecEnd != InvalidXLogRecPtr &&
		synchronous_commit == SYNCHRONOUS_COMMIT_OFF && NvmPool->ndirs > 0 &&
		OidIsValid(MyDatabaseId) && nvm_rests_changed_catalogs())
		ForceSyncCommit();
}

/*
 * Has the transaction written WAL that must live or die with its nvm data?  Or is
 * anybody to hear of it before its decision is durable?
 *
 * A replication origin's progress is in the commit record, so that record
 * must be durable before the data counts.
 */
static bool
wal_needs_pg_xact(void)
{
	if (wal_has_origin())
		return true;
	if (XactLastRecEnd != InvalidXLogRecPtr && !wal_is_harmless())
		return true;
	return nvm_rests_notifies();
}

static bool
wal_begin_commit(void)
{
	wal_catalogs_in_time();
	return nvm_xact_is_writer() && wal_needs_pg_xact();
}

/*
 * If all WAL of the transaction is harmless, set XactLastRecEnd back: then
 * RecordTransactionCommit does not wait for it.
 */
static void
wal_pre_commit(NvmXactClass class)
{
	if (class != NVM_XACT_OPEN && !wal_has_origin() && wal_is_harmless())
		XactLastRecEnd = InvalidXLogRecPtr;

	switch (class)
	{
		case NVM_XACT_MIXED:
			ForceSyncCommit();
			break;
		case NVM_XACT_NVM_ONLY:
			if (rests_on_wal)
				nvm_rests_flush_wal();
			else
				nvm_sequence_flush(true);
			break;
		default:
			nvm_sequence_flush(false);
			break;
	}
}

static void
wal_abort(void)
{
	nvm_sequence_flush_at_abort();
}

/*
 * RecordTransactionAbort has written one record if the subtransaction has an xid.
 */
static void
wal_sub_abort(int level)
{
	if (TransactionIdIsValid(GetCurrentTransactionIdIfAny()))
		records_harmless++;
}

static void
wal_reset(void)
{
	rests_on_wal = false;
	records_before = pgWalUsage.wal_records;
	records_harmless = 0;
}

const NvmParticipant nvm_participant_wal = {
	.name = "wal",
	.begin_commit = wal_begin_commit,
	.pre_commit = wal_pre_commit,
	.abort = wal_abort,
	.sub_abort = wal_sub_abort,
	.reset = wal_reset
};
