/*-------------------------------------------------------------------------
 *
 * nvm_compat_xact.h
 *	  What PostgreSQL lets nobody set of a transaction, in all major versions.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_COMPAT_XACT_H
#define NVM_COMPAT_XACT_H

#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"

/*
 * When the current transaction, or the next one, has begun, and its statement.  A parallel
 * worker alone may say so, and who begins a transaction takes over the statement's
 * timestamp.  So this is called before the start with twice the transaction's, and after it.
 */
static inline void
nvm_set_start_timestamps(TimestampTz transaction, TimestampTz statement)
{
	int			number = ParallelWorkerNumber;

	ParallelWorkerNumber = 0;
	SetParallelStartTimestamps(transaction, statement);
	ParallelWorkerNumber = number;
}

#endif							/* NVM_COMPAT_XACT_H */
