/*-------------------------------------------------------------------------
 *
 * reset_func.c
 *	  nvm.reset_pool(), nvm.reset_log(): what pool_reset.c and log_reset.c do, for SQL.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "fmgr.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"

PG_FUNCTION_INFO_V1(nvm_reset_pool);

PG_FUNCTION_INFO_V1(nvm_reset_log);

#define TAKE_BACK_HINT \
	"Restart the server. To take this back before, remove file \"pg_nvm_reset\" from the data directory."

/*
 * ERROR unless the user may give up what others have stored.
 */
static void
require_superuser(const char *what, const char *function)
{
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to give up %s", what)));
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("recovery is in progress"),
				 errhint("%s() cannot be executed during recovery.", function)));
}

/*
 * nvm.reset_log(force bool)
 */
Datum
nvm_reset_log(PG_FUNCTION_ARGS)
{
	bool		always;

	require_superuser("the log of tables in memory", "nvm.reset_log");
	always = nvm_log_request_reset(PG_GETARG_BOOL(0));
	ereport(WARNING,
			(errmsg("the next start of the server gives up the log of tables in memory and begins a new one"),
			 always ?
			 errdetail("The rows of all tables in memory of all databases are lost then, those of other tables are not; the old files of the log are kept in a directory of their own.") :
			 errdetail("The rows of all tables in memory of all databases are lost then, unless the log can be read at that start or nvm.memory_directory has them; those of other tables are not. The old files of the log are kept in a directory of their own."),
			 errhint(TAKE_BACK_HINT)));
	PG_RETURN_VOID();
}

/*
 * nvm.reset_pool(force bool)
 */
Datum
nvm_reset_pool(PG_FUNCTION_ARGS)
{
	bool		force = PG_GETARG_BOOL(0);

	require_superuser("the NVM pool", "nvm.reset_pool");
	nvm_pool_request_reset(force);
	ereport(WARNING,
			(errmsg("the next start of the server gives up the NVM pool and makes a new, empty one"),
			 force ?
			 errdetail("The rows of all nvm tables of all databases are lost then; the old pool file is kept under another name.") :
			 errdetail("The rows of all nvm tables of all databases are lost then, unless the pool can be opened at that start; the old pool file is kept under another name."),
			 errhint(TAKE_BACK_HINT)));
	PG_RETURN_VOID();
}
