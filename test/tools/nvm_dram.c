/*-------------------------------------------------------------------------
 *
 * nvm_dram.c
 *	  For tests of regions: an access method whose rows lie in memory alone.
 *
 * Preloaded behind pg_nvm.  It asks for a volatile region, and has tables of one
 * access method lie there, with their nvm_btree indexes.
 *
 *	nvm_dram.size			of the region, at most; 0: there is none
 *	nvm_dram.log = on		the log brings the rows back after a start without them
 *	nvm_dram.all = on		access method nvm itself: all suites run over the region
 *	nvm_dram.all = off		one beside it:
 *
 *	CREATE FUNCTION nvm_dram_handler(internal) RETURNS table_am_handler
 *		AS '.../nvm_dram' LANGUAGE C STRICT;
 *	CREATE ACCESS METHOD nvm_dram TYPE TABLE HANDLER nvm_dram_handler;
 *
 * Without the log the rows go with the postmaster.  Entries of an index that is not nvm_btree's stay
 * then, so a test that restarts the server makes none.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>

#include "access/tableam.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/guc.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(nvm_dram_handler);

extern PGDLLEXPORT void _PG_init(void);

static TableAmRoutine routine;
static bool all_tables = false;
static bool logged = false;
static int	region_size = 16384;

Datum
nvm_dram_handler(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(&routine);
}

/*
 * A function of pg_nvm, which is loaded.
 */
static void *
engine_function(const char *name)
{
	void	   *result = dlsym(RTLD_DEFAULT, name);

	if (result == NULL)
		elog(ERROR, "pg_nvm has no function %s", name);
	return result;
}

void
_PG_init(void)
{
	PGFunction	handler;
	void		(*request) (int megabytes);
	void		(*log_request) (void);
	void		(*register_volatile) (const TableAmRoutine *which, bool is_logged);
	void		(*register_method) (const char *library, const char *handler);
	const TableAmRoutine *engine;

	LOCAL_FCINFO(fcinfo, 1);

	if (!process_shared_preload_libraries_in_progress)
		return;
	DefineCustomBoolVariable("nvm_dram.all", "Whether all nvm tables lie in memory alone.", NULL,
							 &all_tables, false, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("nvm_dram.log", "Whether a log brings these tables back.", NULL,
							 &logged, false, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("nvm_dram.size", "Size up to which the volatile region may grow.", NULL,
							&region_size, 16384, 0, 1024 * 1024, PGC_POSTMASTER, GUC_UNIT_MB,
							NULL, NULL, NULL);
	*(void **) &handler = engine_function("nvm_tableam_handler");
	*(void **) &request = engine_function("nvm_region_request");
	*(void **) &register_volatile = engine_function("nvm_storage_register_volatile");
	*(void **) &register_method = engine_function("nvm_access_method_register");

	InitFunctionCallInfoData(*fcinfo, NULL, 0, InvalidOid, NULL, NULL);
	engine = (const TableAmRoutine *) DatumGetPointer(handler(fcinfo));
	routine = *engine;
	request(region_size);
	if (logged)
	{
		*(void **) &log_request = engine_function("nvm_log_request");
		log_request();
	}
	register_method("nvm_dram", "nvm_dram_handler");
	register_volatile(all_tables ? engine : &routine, logged);
	if (all_tables)
		ereport(LOG, (errmsg("nvm_dram: all tables lie in memory")));
}
