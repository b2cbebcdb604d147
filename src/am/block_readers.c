/*-------------------------------------------------------------------------
 *
 * block_readers.c
 *	  Functions of other extensions that read a table's blocks by themselves.
 *
 * pg_prewarm, pageinspect's get_raw_page and pg_visibility ask a relation for
 * its number of blocks and then read its main fork through the buffer cache.
 * Ours is empty: they would say "could not read block 0 in file ...: read
 * only 0 of 8192 bytes", which is what damage looks like.  Nothing but the
 * number of blocks passes through the access method, and others ask for that
 * too.  fmgr_hook tells us when one of these functions runs.  Meanwhile the
 * question is answered with an error that says what is the matter.
 *
 * Their functions that read only a visibility or free space map find none and
 * say so.  The functions of pgstattuple, amcheck, pgrowlocks and pg_surgery
 * refuse other access methods than heap by themselves.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "am/nvm_am.h"
#include "catalog/pg_language_d.h"
#include "catalog/pg_proc.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

/* what the C functions are called, whatever the SQL functions are */
static const char *const block_readers[] = {
	"pg_prewarm",
	"get_raw_page", "get_raw_page_1_9",
	"get_raw_page_fork", "get_raw_page_fork_1_9",
	"pg_visibility", "pg_visibility_rel"
};

/* the one that runs, or InvalidOid; they do not call each other */
static Oid	running = InvalidOid;

/*
 * needs_fmgr_hook: is it one of them?
 */
bool
nvm_is_block_reader(Oid fn_oid)
{
	HeapTuple	tuple;
	bool		found = false;

	if (fn_oid < FirstNormalObjectId)
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(fn_oid));
	if (!HeapTupleIsValid(tuple))
		return false;
	if (((Form_pg_proc) GETSTRUCT(tuple))->prolang == ClanguageId)
	{
		bool		isnull;
		Datum		datum = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &isnull);
		char	   *symbol = isnull ? NULL : TextDatumGetCString(datum);

		for (int i = 0; symbol != NULL && !found && i < (int) lengthof(block_readers); i++)
			found = strcmp(symbol, block_readers[i]) == 0;
		if (symbol != NULL)
			pfree(symbol);
	}
	ReleaseSysCache(tuple);
	return found;
}

/*
 * fmgr_hook: such a function begins, or a function is over.
 */
void
nvm_block_readers_begin(Oid function)
{
	if (nvm_is_block_reader(function))
		running = function;
}

void
nvm_block_readers_end(Oid function)
{
	if (running == function)
		running = InvalidOid;
}

/*
 * rel is asked for its size: ERROR if that is in order to read its blocks.
 */
void
nvm_block_readers_refuse(Relation rel)
{
	if (likely(!OidIsValid(running)))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_WRONG_OBJECT_TYPE),
			 errmsg("function %s cannot read nvm table \"%s\"",
					get_func_name(running), RelationGetRelationName(rel)),
			 errdetail("The rows of nvm tables are in the persistent-memory pool, not in files and buffers."),
			 errhint("They are in memory without being prewarmed; nvm.check() verifies them, and view nvm.relations shows what they take.")));
}
