/*-------------------------------------------------------------------------
 *
 * reset_func.c
 *	  nvm.reset_pool(): what pool_reset.c does, for SQL.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"

PG_FUNCTION_INFO_V1(nvm_reset_pool);

/*
 * nvm.reset_pool(force bool)
 */
Datum
nvm_reset_pool(PG_FUNCTION_ARGS)
{
	bool		force = PG_GETARG_BOOL(0);

	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to give up the NVM pool")));
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("recovery is in progress"),
				 errhint("nvm.reset_pool() cannot be executed during recovery.")));
	nvm_pool_request_reset(force);
	ereport(WARNING,
			(errmsg("the next start of the server gives up the NVM pool and makes a new, empty one"),
			 force ?
			 errdetail("The rows of all nvm tables of all databases are lost then; the old pool file is kept under another name.") :
			 errdetail("The rows of all nvm tables of all databases are lost then, unless the pool can be opened at that start; the old pool file is kept under another name."),
			 errhint("Restart the server. To take this back before, remove file \"pg_nvm_reset\" from the data directory.")));
	PG_RETURN_VOID();
}
