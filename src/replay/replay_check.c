/*-------------------------------------------------------------------------
 *
 * replay_check.c
 *	  Are the tables still those that the calls of the log have seen?
 *
 * A replay calls functions by today's catalogs.  What has changed a table since the
 * checkpoint, calls before that have not seen: they would write other rows, or fail.  So
 * that is found before anything is replayed: by the creation id of the table's storage, and
 * by the transactions that have written its rows of the catalogs.
 *
 * Functions are not looked at.  One that was replaced may do the same; if it does not, the
 * replay comes to other rows, and names the call.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/indexing.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_index.h"
#include "catalog/pg_trigger.h"
#include "media/media_pool.h"
#include "pool/nvm_pool.h"
#include "replay/nvm_replay_copy.h"
#include "replay/replay_impl.h"
#include "row/nvm_relation.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "vlog/nvm_vlog_stream.h"

/* catalogs that say what a table is, the index by its Oid, and the column that has it */
static const struct
{
	Oid			catalog;
	Oid			index;
	AttrNumber	column;
}			catalogs[] = {
	{AttributeRelationId, AttributeRelidNumIndexId, Anum_pg_attribute_attrelid},
	{IndexRelationId, IndexIndrelidIndexId, Anum_pg_index_indrelid},
	{ConstraintRelationId, ConstraintRelidTypidNameIndexId, Anum_pg_constraint_conrelid},
	{TriggerRelationId, TriggerRelidNameIndexId, Anum_pg_trigger_tgrelid}
};

static bool
is_newer(HeapTuple tuple, const NvmLogSnapshot *base, FullTransactionId next)
{
	TransactionId xmin = HeapTupleHeaderGetXmin(tuple->t_data);

	return TransactionIdIsNormal(xmin) &&
		!nvm_vlog_snapshot_shows(base, nvm_vlog_full_xid(xmin, next));
}

/*
 * Has the table been changed by somebody whom the base does not show?
 */
static bool
has_changed(Oid relid, const NvmLogSnapshot *base)
{
	FullTransactionId next = ReadNextFullTransactionId();
	bool		changed = false;

	for (int i = 0; i < (int) lengthof(catalogs) && !changed; i++)
	{
		Relation	catalog = table_open(catalogs[i].catalog, AccessShareLock);
		ScanKeyData key;
		SysScanDesc scan;
		HeapTuple	tuple;

		ScanKeyInit(&key, catalogs[i].column, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
		scan = systable_beginscan(catalog, catalogs[i].index, true, NULL, 1, &key);
		while (!changed && HeapTupleIsValid(tuple = systable_getnext(scan)))
			changed = is_newer(tuple, base, next);
		systable_endscan(scan);
		table_close(catalog, AccessShareLock);
	}
	return changed;
}

/*
 * See replay_impl.h.
 */
void
nvm_replay_check_tables(const NvmReplayMap *map, const NvmLogSnapshot *base)
{
	for (int i = 0; i < map->ntables; i++)
	{
		const NvmReplayTable *table = &map->tables[i];

		/*
		 * a version that knew no such flag made a table without it: the base
		 * has no one moment
		 */
		bool		has_moment = (nvm_dir_entry(table->dir)->flags & NVM_DIR_COMMANDS) != 0;

		if (has_moment && table->creation < base->creations && !has_changed(table->original, base))
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" was made or changed since the last checkpoint",
						get_rel_name(table->original)),
				 errdetail("Calls before that would be replayed in another table than they have seen."),
				 errhint("Call nvm.checkpoint(), let the application work, and try again.")));
	}
}

/*
 * See replay_impl.h.
 */
void
nvm_replay_check_storages(const NvmReplayMap *map)
{
	for (int i = 0; i < map->ntables; i++)
	{
		const NvmReplayTable *table = &map->tables[i];
		Relation	rel = table_open(table->original, AccessShareLock);
		uint32		dir = nvm_rel_cache(rel)->dir;

		if (dir != table->dir || nvm_dir_entry(dir)->creation_id != table->creation)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s\" was rewritten while the replay began",
							RelationGetRelationName(rel)),
					 errhint("Try again.")));
		table_close(rel, NoLock);
	}
}
