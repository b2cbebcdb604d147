/*-------------------------------------------------------------------------
 *
 * nvm_late.c
 *	  For tests of power failure: a library that writes when a transaction has
 *	  passed its pre-commit callbacks, but for this one.
 *
 *	shared_preload_libraries = '.../nvm_late,pg_nvm'
 *	BEGIN; SET LOCAL nvm_late.sql = 'INSERT ...'; COMMIT;
 *
 * Callbacks are called last registered first, so it must be loaded before pg_nvm.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static char *late_sql;

static void
late_callback(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_PRE_COMMIT || late_sql == NULL || late_sql[0] == '\0')
		return;
	PushActiveSnapshot(GetTransactionSnapshot());
	if (SPI_connect() != SPI_OK_CONNECT || SPI_execute(late_sql, false, 0) < 0 ||
		SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "nvm_late.sql failed");
	PopActiveSnapshot();
}

void
_PG_init(void)
{
	DefineCustomStringVariable("nvm_late.sql", "What to do in a pre-commit callback.",
							   NULL, &late_sql, "", PGC_USERSET, 0,
							   NULL, NULL, NULL);
	RegisterXactCallback(late_callback, NULL);
}
