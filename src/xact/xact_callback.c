/*-------------------------------------------------------------------------
 *
 * xact_callback.c
 *	  PostgreSQL's transaction callbacks: each asks the participants in turn.
 *
 * CommitTransaction runs the pre-commit callback, then everything that can
 * still fail.  Then it writes the commit record, leaves the proc array (others
 * see the transaction now), runs the commit callback, and last releases its
 * locks.  xact/README.md says what happens at each event, and why there.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/twophase.h"
#include "access/xact.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "wbl/nvm_commit.h"
#include "wbl/nvm_snapshot.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_participant.h"
#include "xact/xact_impl.h"

NvmXactClass nvm_xact_class = NVM_XACT_OPEN;

/*
 * All of them, in the order in which they are asked: the WAL that the pool's data
 * rests on is flushed before the data's fence, and the log asks pg_xact before
 * the slot does.
 */
static const NvmParticipant *const participants[] = {
	&nvm_participant_wal,
	&nvm_participant_log,
	&nvm_participant_slot
};

#define NUM_PARTICIPANTS	((int) lengthof(participants))

static inline bool
nvm_pool_is_open(void)
{
	return NvmWbl != NULL && NvmPool != NULL && NvmPool->status == NVM_POOL_OPEN;
}

/*
 * The class, at PRE_COMMIT.  The WAL is asked last: the other participants'
 * looks may have written some.
 */
static NvmXactClass
nvm_xact_classify(void)
{
	bool		mixed = false;

	for (int i = NUM_PARTICIPANTS - 1; i >= 0; i--)
	{
		if (participants[i]->begin_commit != NULL)
			mixed |= participants[i]->begin_commit();
	}
	if (!nvm_xact_is_writer())
		return NVM_XACT_OPEN;
	return mixed ? NVM_XACT_MIXED : NVM_XACT_NVM_ONLY;
}

/*
 * PRE_COMMIT: no decision here, since the transaction may still fail.
 */
static void
nvm_xact_pre_commit(void)
{
	nvm_wbl_judge();
	nvm_twophase_before_commit();
	nvm_xact_class = nvm_xact_classify();
	for (int i = 0; i < NUM_PARTICIPANTS; i++)
		participants[i]->pre_commit(nvm_xact_class);
	/* a helper may decide a stamp that is taken from here on (README.md) */
	nvm_pmem_defer(false);
}

/*
 * COMMIT: others see the transaction as committed already, and depend on it
 * only after they have made it durable themselves.  Nothing here may fail.
 */
static void
nvm_xact_commit(void)
{
	for (int i = 0; i < NUM_PARTICIPANTS; i++)
	{
		if (participants[i]->decide != NULL)
			participants[i]->decide(nvm_xact_class);
	}
}

/*
 * PRE_PREPARE: as PRE_COMMIT of a mixed transaction.  A later step of
 * PrepareTransaction may fail, and then ABORT takes everything back.
 */
static void
nvm_xact_pre_prepare(void)
{
	nvm_wbl_judge();

	/* PostgreSQL is about to refuse it by itself */
	if (max_prepared_xacts == 0 || (MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE))
		return;

	for (int i = 0; i < NUM_PARTICIPANTS; i++)
	{
		if (participants[i]->pre_prepare != NULL)
			participants[i]->pre_prepare();
	}
	nvm_xact_class = NVM_XACT_TWOPHASE;
	NVM_FAILPOINT("prepare-after-asking");
}

/*
 * PREPARE: the transaction is prepared, durably, and nobody's.  Nothing here may
 * fail.
 */
static void
nvm_xact_prepare(void)
{
	for (int i = 0; i < NUM_PARTICIPANTS; i++)
	{
		if (participants[i]->prepare != NULL)
			participants[i]->prepare();
	}
}

/*
 * ABORT: others see the transaction as aborted already, and overwrite its row
 * locks and ends as they need to.
 */
static void
nvm_xact_abort(void)
{
	for (int i = 0; i < NUM_PARTICIPANTS; i++)
		participants[i]->abort();
}

/*
 * The next transaction starts from here.
 */
static void
nvm_xact_reset(void)
{
	nvm_undo_reset();
	nvm_xact_class = NVM_XACT_OPEN;
	for (int i = 0; i < NUM_PARTICIPANTS; i++)
		participants[i]->reset();
	nvm_pmem_defer(true);
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
			break;
		case XACT_EVENT_PRE_PREPARE:
			nvm_xact_pre_prepare();
			break;
		case XACT_EVENT_COMMIT:
			nvm_xact_commit();
			nvm_xact_reset();
			break;
		case XACT_EVENT_ABORT:
			nvm_xact_abort();
			nvm_xact_reset();
			break;
		case XACT_EVENT_PREPARE:
			nvm_xact_prepare();
			nvm_xact_reset();
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			/* workers write nothing; they made durable what they saw */
			break;
	}
}

static void
nvm_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
					 SubTransactionId parentSubid, void *arg)
{
	if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		for (int i = 0; i < NUM_PARTICIPANTS; i++)
		{
			if (participants[i]->sub_commit != NULL)
				participants[i]->sub_commit(GetCurrentTransactionNestLevel());
		}
	}
	else if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		NVM_FAILPOINT("abort-sub-begin");
		for (int i = 0; i < NUM_PARTICIPANTS; i++)
		{
			if (participants[i]->sub_abort != NULL)
				participants[i]->sub_abort(GetCurrentTransactionNestLevel());
		}
	}
}

/*
 * Register the callbacks.  In _PG_init, in the postmaster, so that every
 * process inherits them.  Processes that never touch an nvm table need them,
 * too: they settle what is in doubt before they commit.
 */
void
nvm_xact_register_callbacks(void)
{
	RegisterXactCallback(nvm_xact_callback, NULL);
	RegisterSubXactCallback(nvm_subxact_callback, NULL);
}
