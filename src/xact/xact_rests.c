/*-------------------------------------------------------------------------
 *
 * xact_rests.c
 *	  What a transaction rests on that is not durable yet.
 *
 * A transaction that is nvm-only waits for no WAL, its own or other sessions'.
 * For that, everything that it has relied on has to be durable by itself.
 * xact/README.md, "What an nvm-only transaction may rest on", has the list and
 * the proofs.  This file has the questions that are asked at PRE_COMMIT.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "commands/async.h"
#include "compat/nvm_compat.h"
#include "miscadmin.h"
#include "storage/sinval.h"
#include "utils/syscache.h"
#include "xact/xact_impl.h"

/*
 * An index may have written no entry because it said so much already: BRIN's
 * summary covers the value, or the range has none.  Whoever changed the page
 * where that was read wrote a WAL record, which lies before the end of the
 * WAL.  So a flush up to here covers it.
 */
void
nvm_rests_flush_wal(void)
{
	XLogFlush(NvmWalEnd());
}

/*
 * Is it a relation of this session alone, that is there?
 */
static bool
is_temporary(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		temporary;

	if (!HeapTupleIsValid(tuple))
		return false;
	temporary = ((Form_pg_class) GETSTRUCT(tuple))->relpersistence == RELPERSISTENCE_TEMP;
	ReleaseSysCache(tuple);
	return temporary;
}

/*
 * May an invalidation message be about a temporary table?  Such tables have
 * rows of pg_class, pg_attribute, pg_type, pg_index, pg_constraint and
 * pg_statistic, and of catalogs that have no cache.
 */
static bool
may_be_temporary(const SharedInvalidationMessage *msg)
{
	switch (msg->id)
	{
		case SHAREDINVALRELCACHE_ID:
			return is_temporary(msg->rc.relId);
		case SHAREDINVALSNAPSHOT_ID:
		case RELOID:
		case RELNAMENSP:
		case ATTNUM:
		case ATTNAME:
		case TYPEOID:
		case TYPENAMENSP:
		case INDEXRELID:
		case CONSTROID:
		case STATRELATTINH:
			return true;
		default:
			return false;
	}
}

/*
 * At PRE_COMMIT: has the transaction changed catalogs, for others to see?  The
 * messages that it is going to send them tell.  A transaction that made
 * temporary tables and changed nothing but them has not.  It has a message for
 * at least one relation; without one, the change is one of pg_type by hand.
 */
bool
nvm_rests_changed_catalogs(void)
{
	SharedInvalidationMessage *msgs;
	bool		init_file;
	int			nmsgs = xactGetCommittedInvalidationMessages(&msgs, &init_file);
	bool		changed = false;
	bool		temporary = false;

	for (int i = 0; i < nmsgs && !changed; i++)
	{
		temporary |= msgs[i].id == SHAREDINVALRELCACHE_ID;
		changed = !may_be_temporary(&msgs[i]);
	}
	changed |= nmsgs > 0 && !temporary;
	if (nmsgs > 0)
		pfree(msgs);
	return changed;
}

/*
 * At PRE_COMMIT: is the transaction going to notify anybody?  Listeners hear
 * of it once it has left the proc array, if another notifier wakes them up.
 * To hear of it they read nothing of ours, so they do not make it durable.
 *
 * PostgreSQL keeps the list to itself.  But PREPARE TRANSACTION has to refuse
 * a transaction with something on the list, and calls a function that does
 * nothing but raise that ERROR.  LISTEN and UNLISTEN count as well, which is
 * needless, but right.
 */
bool
nvm_rests_notifies(void)
{
	MemoryContext context = CurrentMemoryContext;
	uint32		interrupt_holdoff = InterruptHoldoffCount;
	uint32		cancel_holdoff = QueryCancelHoldoffCount;
	bool		exit_on_error = ExitOnAnyError;
	volatile bool notifies = false;

	ExitOnAnyError = false;
	PG_TRY();
	{
		error_context_stack = NULL;
		AtPrepare_Notify();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
		InterruptHoldoffCount = interrupt_holdoff;
		QueryCancelHoldoffCount = cancel_holdoff;
		notifies = true;
	}
	PG_END_TRY();
	ExitOnAnyError = exit_on_error;
	return notifies;
}
