/*-------------------------------------------------------------------------
 *
 * btree_am.c
 *	  The routine of index access method `nvm_btree`, its handler and options.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/reloptions.h"
#include "btree/nvm_btree_am.h"
#include "btree/nvm_btree_scan.h"
#include "commands/vacuum.h"
#include "compat/nvm_compat_indexam.h"
#include "fmgr.h"
#include "storage/lockdefs.h"

PG_FUNCTION_INFO_V1(nvm_btree_handler);

/* ---- options ---- */

static relopt_kind btree_relopt_kind = 0;

static relopt_enum_elt_def persistence_values[] = {
	{"full", NVM_INDEX_FULL},
	{"leaves", NVM_INDEX_LEAVES},
	{"none", NVM_INDEX_NOTHING},
	{(const char *) NULL}
};

void
nvm_btree_register(void)
{
	if (btree_relopt_kind != 0)
		return;
	btree_relopt_kind = add_reloption_kind();
	add_int_reloption(btree_relopt_kind, "fillfactor",
					  "Packs index pages only to this percentage",
					  BTREE_DEFAULT_FILLFACTOR, BTREE_MIN_FILLFACTOR, 100,
					  ShareUpdateExclusiveLock);
	add_bool_reloption(btree_relopt_kind, "deduplicate_items",
					   "Stores the rows of equal keys together",
					   true, ShareUpdateExclusiveLock);
	add_enum_reloption(btree_relopt_kind, "persistence",
					   "How much of the index outlives a restart",
					   persistence_values, NVM_INDEX_FULL,
					   "Valid values are \"full\", \"leaves\", and \"none\".",
					   AccessExclusiveLock);
}

static bytea *
nvm_btree_options(Datum reloptions, bool validate)
{
	static const relopt_parse_elt elements[] = {
		{.optname = "fillfactor",.opttype = RELOPT_TYPE_INT,
		.offset = offsetof(NvmIndexOptions, base.fillfactor)},
		{.optname = "deduplicate_items",.opttype = RELOPT_TYPE_BOOL,
		.offset = offsetof(NvmIndexOptions, base.deduplicate_items)},
		{.optname = "persistence",.opttype = RELOPT_TYPE_ENUM,
		.offset = offsetof(NvmIndexOptions, persistence)}
	};

	/* a session that has loaded the library itself */
	nvm_btree_register();
	return (bytea *) build_reloptions(reloptions, validate, btree_relopt_kind,
									  sizeof(NvmIndexOptions),
									  elements, lengthof(elements));
}

/* ---- the routine ---- */

/* all columns, those of INCLUDE as well */
static bool
nvm_btree_canreturn(Relation index, int attno)
{
	return true;
}

/*
 * amvalidate, amproperty and the names of the phases of a build are btree's.
 * They ask for nothing but the catalogs, and there our operator families have
 * the same contents.
 */
IndexAmRoutine *
nvm_btree_routine(void)
{
	IndexAmRoutine *am = makeNode(IndexAmRoutine);

	am->amstrategies = BTMaxStrategyNumber;
	am->amsupport = BTNProcs;
	am->amoptsprocnum = BTOPTIONS_PROC;
	am->amcanorder = true;
	am->amcanorderbyop = false;
	am->amcanbackward = true;
	am->amcanunique = true;
	am->amcanmulticol = true;
	am->amoptionalkey = true;
	am->amsearcharray = true;
	am->amsearchnulls = true;
	am->amstorage = false;
	am->amclusterable = true;
	am->ampredlocks = true;
	am->amcanparallel = true;
	am->amcaninclude = true;
	am->amusemaintenanceworkmem = false;
	am->amparallelvacuumoptions =
		VACUUM_OPTION_PARALLEL_BULKDEL | VACUUM_OPTION_PARALLEL_COND_CLEANUP;
	am->amkeytype = InvalidOid;

	am->ambuild = nvm_btree_build;
	am->ambuildempty = nvm_btree_buildempty;
	am->aminsert = nvm_index_insert;
	am->ambulkdelete = nvm_btree_bulkdelete;
	am->amvacuumcleanup = nvm_btree_vacuumcleanup;
	am->amcanreturn = nvm_btree_canreturn;
	am->amcostestimate = nvm_btree_costestimate;
	am->amoptions = nvm_btree_options;
	am->amproperty = btproperty;
	am->ambuildphasename = btbuildphasename;
	am->amvalidate = btvalidate;
	am->amadjustmembers = nvm_btree_adjustmembers;
	am->ambeginscan = nvm_btree_beginscan;
	am->amrescan = nvm_btree_rescan;
	am->amgettuple = nvm_btree_gettuple;
	am->amgetbitmap = nvm_btree_getbitmap;
	am->amendscan = nvm_btree_endscan;
	am->ammarkpos = nvm_btree_markpos;
	am->amrestrpos = nvm_btree_restrpos;
	am->amestimateparallelscan = nvm_btree_estimateparallelscan;
	am->aminitparallelscan = nvm_btree_initparallelscan;
	am->amparallelrescan = nvm_btree_parallelrescan;
	nvm_compat_index_routine(am, nvm_btree_height);

	return am;
}

Datum
nvm_btree_handler(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(nvm_btree_routine());
}
