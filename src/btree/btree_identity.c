/*-------------------------------------------------------------------------
 *
 * btree_identity.c
 *	  Indexes of method btree whose storage is ours: the exchange of their routine.
 *
 * The catalogs say btree of such an index, so its relcache entry comes with
 * PostgreSQL's routine.  The entry has a copy of that routine of its own, and
 * here it gets ours.  ddl/IDENTITY.md says where, and what a place that was
 * missed comes to.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "access/transam.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_am.h"
#include "btree/nvm_btree_identity.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "compat/nvm_compat.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/lmgr.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"
#include "xact/nvm_xact.h"

int			nvm_default_index_method = NVM_DEFAULT_INDEX_METHOD;
int			nvm_index_identity = NVM_IDENTITY_BTREE;
bool		nvm_index_identity_forced = false;
bool		nvm_index_reindexes = false;
uint64		nvm_index_generation = 1;

static const struct config_enum_entry identities[] = {
	{NVM_BTREE_NAME, NVM_IDENTITY_NVM_BTREE, false},
	{"btree", NVM_IDENTITY_BTREE, false},
	{NULL, 0, false}
};

/* what such an entry gets */
static IndexAmRoutine exchanged;

/*
 * Relcache callback.
 */
static void
generation_ends(Datum arg, Oid relid)
{
	nvm_index_generation++;
}

/*
 * In _PG_init.
 */
void
nvm_index_define_identity(void)
{
	DefineCustomEnumVariable("nvm.index_identity",
							 "Access method that the catalogs name of new indexes in the NVM pool.",
							 "With btree, clients, partitions and dumps see the index that they know. With nvm_btree, an index can have parameter persistence.",
							 &nvm_index_identity,
							 NVM_IDENTITY_BTREE,
							 identities,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);
	CacheRegisterRelcacheCallback(generation_ends, (Datum) 0);
}

/*
 * Our routine, with the options of btree.
 */
static const IndexAmRoutine *
exchanged_routine(void)
{
	if (exchanged.type != T_IndexAmRoutine)
	{
		IndexAmRoutine *am = nvm_btree_routine();

		memcpy(&exchanged, am, sizeof(IndexAmRoutine));
		exchanged.amoptions = btoptions;
		pfree(am);
	}
	return &exchanged;
}

/*
 * Give an open index of method btree our routine.
 */
void
nvm_index_exchange(Relation index, bool just_made)
{
	if (NVM_FAILPOINT_MISSES("exchange"))
		return;
	nvm_index_set_routine(index, index->rd_amhandler, exchanged_routine(), just_made);
}

/*
 * Is an index that is new, and of a table of ours, to be ours if it says btree?
 */
bool
nvm_index_identity_applies(void)
{
	return nvm_index_identity_forced ||
		(nvm_index_identity == NVM_IDENTITY_BTREE &&
		 nvm_default_index_method == NVM_INDEX_METHOD_NVM);
}

bool
nvm_index_says_btree(Relation index)
{
	return index->rd_rel->relam == BTREE_AM_OID && index->rd_indam != NULL &&
		index->rd_indam->ambuild == nvm_btree_build;
}

/*
 * The storage that has the file number of an index of method btree, 0 if there is none.
 * What is in the file does not count: it is put right later than the storage is made.
 */
static uint32
storage_by_number(Relation index)
{
	NvmLocator	locator = NvmRelLocator(index);
	NvmStorageKey key;
	NvmDirEntry *entry;
	uint32		dir;

	if (NvmPool == NULL || NvmPool->status != NVM_POOL_OPEN || !NvmPool->has_btree)
		return 0;
	if (unlikely(pg_atomic_read_u32(&NvmWbl->resolved) == 0))
		nvm_table_require();
	nvm_storage_own_key(index, &locator, &key);
	dir = nvm_dir_lookup(&key);
	if (dir == 0)
		return 0;
	entry = nvm_dir_entry(dir);
	return entry->kind == NVM_DIR_KIND_INDEX && (entry->flags & NVM_DIR_BTREE) != 0 &&
		!nvm_stamp_in_gap(nvm_load(&entry->begin)) ? dir : 0;
}

/*
 * The storage of an index of method btree, 0 if it has none.
 *
 * A storage that another transaction has dropped is not the index's: it waits for the
 * collector, and its file number has come round.  One that this transaction has
 * dropped is: ALTER COLUMN TYPE gives the file to the index that takes its place.
 */
uint32
nvm_index_btree_storage(Relation index)
{
	uint32		dir = storage_by_number(index);
	uint64		end;

	if (dir == 0)
		return 0;
	end = nvm_load(&nvm_dir_entry(dir)->end);
	return end == 0 || nvm_stamp_in_gap(end) || nvm_xact_owns_stamp(end) ? dir : 0;
}

/*
 * Another transaction has an open index of method btree locked, and may build it anew.  If
 * it has ended the storage, the index was ours, and will be: an index in the pool stays
 * there.  Then give it our routine, which an open entry keeps.
 */
bool
nvm_index_exchange_ended(Relation index)
{
	uint32		dir = storage_by_number(index);

	if (dir == 0 || nvm_load(&nvm_dir_entry(dir)->end) == 0)
		return false;
	nvm_index_exchange(index, false);
	return nvm_index_says_btree(index);
}

static bool
is_btrees(Relation index)
{
	return index->rd_indam != NULL && index->rd_indam->ambuild == btbuild &&
		index->rd_rel->relkind == RELKIND_INDEX && index->rd_id >= FirstNormalObjectId;
}

bool
nvm_relation_is_btree(Relation index)
{
	if (index->rd_indam == NULL)
		return false;
	if (index->rd_indam->ambuild == nvm_btree_build)
		return true;
	if (!is_btrees(index) || nvm_index_btree_storage(index) == 0)
		return false;
	nvm_index_exchange(index, false);
	return index->rd_indam->ambuild == nvm_btree_build;
}

void
nvm_index_require_routine(Relation index)
{
	if (is_btrees(index) && nvm_index_btree_storage(index) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("cannot read index \"%s\" as a file, since it is in the NVM pool",
						RelationGetRelationName(index)),
				 errdetail("The command came to it by a path that pg_nvm does not see."),
				 errhint("Please report the statement.")));
}

static bool
is_deferrable(Relation index)
{
	return (index->rd_index->indisunique || index->rd_index->indisexclusion) &&
		!index->rd_index->indimmediate;
}

/*
 * The caller has the table locked.
 */
bool
nvm_index_exchange_all(Relation table)
{
	List	   *indexes;
	ListCell   *lc;
	bool		deferred = false;

	if (!table->rd_rel->relhasindex || NvmPool == NULL || !NvmPool->has_btree)
		return false;
	indexes = RelationGetIndexList(table);
	foreach(lc, indexes)
	{
		Relation	index = RelationIdGetRelation(lfirst_oid(lc));

		if (index == NULL)
			continue;
		if (nvm_relation_is_btree(index) && index->rd_rel->relam == BTREE_AM_OID)
			deferred |= is_deferrable(index);
		RelationClose(index);
	}
	list_free(indexes);
	return deferred;
}

/*
 * A row was looked up through a table whose constraints may be deferred.  The check
 * of such a constraint does that, and then opens its index (unique_key_recheck).  We
 * take the lock that it will take, so that it takes no messages, and then exchange.  To
 * load one entry may take messages that are about another one; then we begin again.
 */
void
nvm_index_hold_deferred(Relation table)
{
	List	   *indexes = RelationGetIndexList(table);
	uint64		generation;
	int			tries = 4;
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Relation	index = RelationIdGetRelation(lfirst_oid(lc));
		bool		deferrable = index != NULL && index->rd_rel->relam == BTREE_AM_OID &&
		is_deferrable(index);

		if (index != NULL)
			RelationClose(index);
		if (!deferrable)
			indexes = foreach_delete_current(indexes, lc);
	}
	foreach(lc, indexes)
		LockRelationOid(lfirst_oid(lc), RowExclusiveLock);
	do
	{
		generation = nvm_index_generation;
		foreach(lc, indexes)
		{
			Relation	index = RelationIdGetRelation(lfirst_oid(lc));

			if (index == NULL)
				continue;
			(void) nvm_relation_is_btree(index);
			RelationClose(index);
		}
	} while (generation != nvm_index_generation && --tries > 0);
	list_free(indexes);
}

/*
 * The planner has measured the file.  The index itself is measured when a path is
 * costed (btree_cost.c).
 */
static void
measure_again(IndexOptInfo *info)
{
	info->pages = 0;
	info->tree_height = -1;
}

/*
 * get_relation_info_hook: indexes of ours among those that the planner took for
 * btree's.
 */
void
nvm_index_exchange_planned(Oid relid, RelOptInfo *rel)
{
	Relation	table = NULL;
	ListCell   *lc;

	if (NvmPool == NULL || !NvmPool->has_btree || NVM_FAILPOINT_MISSES("exchange-planned"))
		return;
	foreach(lc, rel->indexlist)
	{
		IndexOptInfo *info = lfirst_node(IndexOptInfo, lc);
		Relation	index;

		/* partitioned ones have no cost function */
		if (info->relam != BTREE_AM_OID || info->hypothetical || info->amcostestimate == NULL)
			continue;
		if ((void *) info->amcostestimate == (void *) nvm_btree_costestimate)
		{
			measure_again(info);
			continue;
		}
		if (table == NULL)
			table = RelationIdGetRelation(relid);
		if (table == NULL || !nvm_storage_is_table(table))
			break;
		index = RelationIdGetRelation(info->indexoid);
		if (index == NULL)
			continue;
		if (nvm_relation_is_btree(index))
		{
			info->amcostestimate = (void *) nvm_btree_costestimate;
			measure_again(info);
		}
		RelationClose(index);
	}
	if (table != NULL)
		RelationClose(table);
}
