/*-------------------------------------------------------------------------
 *
 * cmdlog.c
 *	  The routine of table access method `nvm_cmdlog`, and its handler.
 *
 * Its tables lie where those of nvm_vlog do, and are logged as those are.  The routine
 * is a copy of nvm's with an address of its own.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "am/nvm_am.h"
#include "fmgr.h"
#include "xact/nvm_storage.h"

PG_FUNCTION_INFO_V1(nvm_cmdlog_handler);

/* complete once anybody has asked for it */
static TableAmRoutine cmdlog_routine;

Datum
nvm_cmdlog_handler(PG_FUNCTION_ARGS)
{
	cmdlog_routine = nvm_tableam_routine;
	PG_RETURN_POINTER(&cmdlog_routine);
}

/*
 * In _PG_init: tables of nvm_cmdlog have their rows in memory, and in the log.
 */
void
nvm_cmdlog_method_register(void)
{
	nvm_storage_register_volatile(&cmdlog_routine, true);
}
