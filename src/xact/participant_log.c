/*-------------------------------------------------------------------------
 *
 * participant_log.c
 *	  The log as a participant of a transaction: what brings the volatile region
 *	  back.
 *
 * PRE_COMMIT builds the record of what the transaction has changed there.  Its place
 * in the log is drawn with the decision on the stamp (participant_slot.c), or, of a
 * transaction that pg_xact decides, here.  And a transaction makes nothing durable
 * elsewhere before the log has, durably, what it rests on.  log/README.md has the
 * protocol.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "log/nvm_log.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_region.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_participant.h"
#include "xact/xact_impl.h"

/*
 * Of the current transaction: the stamp of its record, or 0; and whether pg_xact
 * decides that.
 */
static NvmStamp recorded = NVM_STAMP_NONE;
static bool asks = false;

/*
 * Is the transaction going to make anything durable that is not in the log?  Or to
 * tell others, who will not look at the log?
 */
static bool
makes_durable_elsewhere(NvmXactClass class)
{
	return class == NVM_XACT_MIXED || XactLastRecEnd != InvalidXLogRecPtr ||
		nvm_xact_stamp_if_any(NVM_REGION_POOL) != NVM_STAMP_NONE ||
		nvm_rests_notifies();
}

/*
 * Build the record, if the transaction has changed rows that the log brings back.
 * Of a storage that it has copied it may have had no stamp in the region before.  What
 * is replayed has its record.
 */
static bool
capture(void)
{
	NvmXactStamps stamps;

	if (!nvm_xact_is_writer() || unlikely(nvm_log_replays))
		return false;
	for (int i = 0; i < NVM_NUM_REGIONS; i++)
		stamps.in[i] = nvm_xact_stamp_if_any(i);
	NVM_FAILPOINT("log-capture");
	if (!nvm_undo_capture(&stamps))
		return false;
	NVM_FAILPOINT("log-captured");
	recorded = nvm_xact_stamp_if_any(NVM_REGION_VOLATILE);
	return true;
}

static void
log_pre_commit(NvmXactClass class)
{
	if (!nvm_log_is_on)
		return;
	if (nvm_log_rests_on_more() && makes_durable_elsewhere(class))
		nvm_log_wait_rests();
	if (capture() && class == NVM_XACT_MIXED)
	{
		asks = true;
		nvm_log_ask(recorded);
	}
}

/*
 * The outcome comes before the slot's word says DECIDED: as long as that asks
 * pg_xact, a start writes the outcome.
 */
static void
log_decide(NvmXactClass class)
{
	if (!nvm_log_is_on)
		return;
	if (asks)
		nvm_log_outcome(true);
	nvm_log_wait_after_locks(recorded != NVM_STAMP_NONE && !asks ? NVM_STAMP_SLOT(recorded) : 0);
}

static void
log_abort(void)
{
	if (!nvm_log_is_on)
		return;
	nvm_log_outcome(false);
	nvm_log_forget();
}

/*
 * As PRE_COMMIT of a mixed transaction: the ASK record is persistent before the WAL
 * record of PREPARE.
 */
static void
log_pre_prepare(void)
{
	if (!nvm_log_is_on)
		return;
	nvm_log_wait_rests();
	if (!capture())
		return;
	asks = true;
	nvm_log_ask(recorded);
}

/*
 * Who settles the transaction says its outcome.
 */
static void
log_prepare(void)
{
	if (asks)
		nvm_log_leave_asked();
}

static void
log_reset(void)
{
	asks = false;
	recorded = NVM_STAMP_NONE;
	if (nvm_log_is_on)
		nvm_log_decided();
}

const NvmParticipant nvm_participant_log = {
	.name = "log",
	.pre_commit = log_pre_commit,
	.decide = log_decide,
	.abort = log_abort,
	.pre_prepare = log_pre_prepare,
	.prepare = log_prepare,
	.reset = log_reset
};
