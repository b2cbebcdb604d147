/*-------------------------------------------------------------------------
 *
 * index_identity.c
 *	  A backstop: an index in a file is not one whose entries lie in the pool.
 *
 * The catalog says of what method an index is; the pool says which file
 * numbers have an index storage.  The two disagree if a crash has set the
 * catalog back, or if somebody has changed it by hand.  Then the file holds
 * what it held before the index moved into the pool.  Entries of rows since
 * are missing, and queries would give wrong answers without a word.
 *
 * A backend looks at this when it plans a statement that may read a built-in
 * index of an nvm table, and before it writes a row; again after each message to
 * the relcache.  Indexes get our routine before that, if they are ours.  REINDEX,
 * DROP and the reading of rows by a sequential scan do not ask, so that the index
 * can be built anew.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_am.h"
#include "btree/nvm_btree_identity.h"
#include "compat/nvm_compat.h"
#include "optimizer/plancat.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_relation.h"
#include "utils/rel.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"

/*
 * Does an index storage of the pool have the file number of `index`?  One that
 * is dropped, or whose maker a crash has lost, waits for nothing but the
 * collector.
 */
static bool
owns_storage(Relation index)
{
	uint32		dir = nvm_storage_find(index, NULL);
	NvmDirEntry *entry;

	if (dir == 0)
		return false;
	entry = nvm_dir_entry(dir);
	return entry->kind == NVM_DIR_KIND_INDEX && nvm_load(&entry->end) == 0 &&
		!nvm_stamp_in_gap(nvm_load(&entry->begin));
}

/*
 * ERROR if index indexid, of an nvm table that the caller has locked, says to be
 * in a file and has a storage in the pool.
 */
static void
check_identity(Oid indexid)
{
	Relation	index = RelationIdGetRelation(indexid);

	if (index == NULL)
		return;
	if (index->rd_rel->relkind == RELKIND_INDEX && !nvm_relation_is_btree(index) &&
		owns_storage(index))
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("index \"%s\" is not in the NVM pool by its catalog, but the pool has its entries",
						RelationGetRelationName(index)),
				 errdetail("Catalog and pool disagree about file number %u of database %u. Rows may be missing in the file.",
						   (unsigned) NvmLocatorRel(NvmRelLocator(index)), MyDatabaseId),
				 errhint("REINDEX the index.")));
	RelationClose(index);
}

/*
 * Rows of rel are about to be written, whose entries the executor then inserts.
 * See nvm_indexes_prove.  May invalidate the relation's NvmRelCache.
 */
void
nvm_indexes_prove_slow(Relation rel)
{
	uint64		generation = nvm_index_generation;
	List	   *indexes = NIL;
	ListCell   *lc;

	if (!NVM_FAILPOINT_MISSES("exchange-written"))
		indexes = RelationGetIndexList(rel);
	foreach(lc, indexes)
		check_identity(lfirst_oid(lc));
	list_free(indexes);
	nvm_rel_cache(rel)->indexes_proven = generation;
}

/*
 * See nvm_indexes_exchange.  True if an index of ours may be checked at COMMIT.
 */
bool
nvm_indexes_exchange_slow(Relation rel)
{
	uint64		generation = nvm_index_generation;
	bool		deferred = nvm_index_exchange_all(rel);
	NvmRelCache *cache = (NvmRelCache *) rel->rd_amcache;

	if (cache != NULL)
	{
		cache->indexes_exchanged = generation;
		cache->indexes_deferred = deferred;
	}
	return deferred;
}

void
nvm_indexes_fetched_slow(Relation rel)
{
	if (nvm_indexes_exchange_slow(rel) && !NVM_FAILPOINT_MISSES("exchange-fetched"))
		nvm_index_hold_deferred(rel);
}

/*
 * get_relation_info_hook: of what is planned.
 */
void
nvm_indexes_prove_planned(Oid relid, RelOptInfo *rel)
{
	Relation	table = NULL;
	ListCell   *lc;

	if (NvmPool == NULL || NvmPool->status != NVM_POOL_OPEN)
		return;
	foreach(lc, rel->indexlist)
	{
		IndexOptInfo *info = lfirst_node(IndexOptInfo, lc);

		if (info->hypothetical ||
			(void *) info->amcostestimate == (void *) nvm_btree_costestimate)
			continue;
		if (table == NULL)
			table = RelationIdGetRelation(relid);
		if (table == NULL || !nvm_relation_is_nvm(table))
			break;
		check_identity(info->indexoid);
	}
	if (table != NULL)
		RelationClose(table);
}
