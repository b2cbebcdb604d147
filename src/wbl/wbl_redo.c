/*-------------------------------------------------------------------------
 *
 * wbl_redo.c
 *	  nvm.redo_limit: keep PostgreSQL's own redo short.
 *
 * Transactions on nvm tables leave nothing in the WAL but commit records, and
 * next to nothing for a checkpoint to write.  But at the next start PostgreSQL
 * redoes those records, millions of them if the last checkpoint is long ago.
 * So the keeper asks for a checkpoint when they add up to nvm.redo_limit.
 * They must be at least half of the WAL for that: a load on heap tables keeps
 * the checkpoints that its administrator has chosen.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "postmaster/bgwriter.h"
#include "utils/timestamp.h"
#include "wbl/wbl_impl.h"

/* WAL of a commit without subtransactions, until one has been measured */
#define COMMIT_RECORD_SIZE		40

/* give up on a checkpoint that was asked for and has not begun after this */
#define REQUEST_PATIENCE_MS		60000

/*
 * Called by the keeper every so often.
 */
void
nvm_redo_limit_check(void)
{
	static XLogRecPtr seen_redo = InvalidXLogRecPtr;
	static uint64 commits_at_redo = 0;
	static XLogRecPtr last_insert = InvalidXLogRecPtr;
	static uint64 last_commits = 0;
	static XLogRecPtr asked_at = InvalidXLogRecPtr;
	static TimestampTz asked_when = 0;

	XLogRecPtr	redo = GetRedoRecPtr();
	XLogRecPtr	insert = GetXLogInsertRecPtr();
	uint64		commits = pg_atomic_read_u64(&NvmWbl->commits);
	uint64		record = pg_atomic_read_u32(&NvmWbl->commit_record_size);
	uint64		distance;
	uint64		ours;

	if (redo != seen_redo)
	{
		/*
		 * A checkpoint began since we last looked, perhaps a naptime ago.  Of
		 * the commits since then, those after it count: their share is that
		 * of the WAL after it.
		 */
		seen_redo = redo;
		commits_at_redo = last_commits;
		if (redo > last_insert && insert > redo)
			commits_at_redo += (commits - last_commits) *
				((double) (redo - last_insert) / (insert - last_insert));
	}
	last_insert = insert;
	last_commits = commits;
	if (nvm_redo_limit == 0 || insert <= redo)
		return;

	distance = insert - redo;
	if (distance <= (uint64) nvm_redo_limit * 1024)
		return;
	ours = (commits - commits_at_redo) * (record > 0 ? record : COMMIT_RECORD_SIZE);
	if (ours < distance / 2)
		return;

	/* one request, until the checkpoint has moved the redo pointer */
	if (asked_at == redo &&
		!TimestampDifferenceExceeds(asked_when, GetCurrentTimestamp(), REQUEST_PATIENCE_MS))
		return;
	asked_at = redo;
	asked_when = GetCurrentTimestamp();
	pg_atomic_fetch_add_u64(&NvmWbl->redo_checkpoints, 1);
	ereport(DEBUG1,
			(errmsg_internal("nvm: %llu kB of WAL to redo, asking for a checkpoint",
							 (unsigned long long) (distance / 1024))));
	RequestCheckpoint(CHECKPOINT_IMMEDIATE);
}
