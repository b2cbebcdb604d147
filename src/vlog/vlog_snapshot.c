/*-------------------------------------------------------------------------
 *
 * vlog_snapshot.c
 *	  Snapshots in full xids, as the file of a checkpoint has them.
 *
 * A snapshot of PostgreSQL's means something as long as its process has it.  In this form it
 * says of the transaction of a record whether it was there, whenever that is asked.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "media/media_log.h"
#include "verify/nvm_verify_log.h"
#include "vlog/nvm_vlog_stream.h"

static int
compare_fxids(const void *a, const void *b)
{
	uint64		x = *(const uint64 *) a;
	uint64		y = *(const uint64 *) b;

	return x < y ? -1 : x > y;
}

/*
 * See nvm_vlog_stream.h.
 */
uint64
nvm_vlog_full_xid(TransactionId xid, FullTransactionId next)
{
	return U64FromFullTransactionId(next) - (uint32) (XidFromFullTransactionId(next) - xid);
}

/*
 * See nvm_vlog_stream.h.  Its xids are not above the next one, which is read behind it.
 * Whether it knows all subtransactions does not matter: records have the xid of the
 * transaction, and as long as somebody holds the snapshot so does pg_subtrans.
 */
NvmLogSnapshot *
nvm_vlog_form_snapshot(Snapshot snapshot, uint64 creations)
{
	FullTransactionId next = ReadNextFullTransactionId();
	NvmLogSnapshot *s = palloc0(NVM_LOG_SNAPSHOT_LENGTH(snapshot->xcnt));
	uint64	   *xip = unconstify(uint64 *, NVM_LOG_SNAPSHOT_XIP(s));

	Assert(!snapshot->takenDuringRecovery);
	s->xmin = nvm_vlog_full_xid(snapshot->xmin, next);
	s->xmax = nvm_vlog_full_xid(snapshot->xmax, next);
	s->creations = creations;
	s->nxip = snapshot->xcnt;
	for (uint32 i = 0; i < s->nxip; i++)
		xip[i] = nvm_vlog_full_xid(snapshot->xip[i], next);
	qsort(xip, s->nxip, sizeof(uint64), compare_fxids);
	return s;
}

/*
 * See nvm_vlog_stream.h.
 */
bool
nvm_vlog_snapshot_shows(const NvmLogSnapshot *snapshot, uint64 fxid)
{
	if (fxid < snapshot->xmin)
		return true;
	if (fxid >= snapshot->xmax)
		return false;
	return bsearch(&fxid, NVM_LOG_SNAPSHOT_XIP(snapshot), snapshot->nxip, sizeof(uint64),
				   compare_fxids) == NULL;
}
