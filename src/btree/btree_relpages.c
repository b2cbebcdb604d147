/*-------------------------------------------------------------------------
 *
 * btree_relpages.c
 *	  pg_class.relpages of our indexes.
 *
 * ANALYZE and CREATE INDEX enter the blocks of the main fork, which is empty or
 * has one, and ask no access method.  So the index, or the table that is analyzed, is
 * noted, and its blocks are entered when that is over.  That is at the end of
 * the command, or of the transaction: VACUUM ANALYZE has a transaction for
 * each table, and autovacuum is no command.  VACUUM itself enters what
 * amvacuumcleanup has told it.
 *
 * A row of pg_class is changed in place only with a lock on the table that keeps DDL
 * away.  ANALYZE of a parent reads its children without one, and says nothing of
 * their indexes.
 *
 * That serves a reader of pg_class alone: btree_cost.c takes what the planner
 * needs from the storage.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/parallel.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "btree/nvm_btree.h"
#include "catalog/indexing.h"
#include "catalog/pg_class.h"
#include "compat/nvm_compat_vacuum.h"
#include "log/nvm_log.h"
#include "pool/nvm_pool.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"

/* tables and indexes, in TopTransactionContext */
static List *noted = NIL;

/*
 * Table or index relid is analyzed or built in this command.
 */
void
nvm_index_note_relpages(Oid relid)
{
	MemoryContext oldcontext;

	if (IsParallelWorker())
		return;
	oldcontext = MemoryContextSwitchTo(TopTransactionContext);
	noted = list_append_unique_oid(noted, relid);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Blocks of an index's storage; false if it has none, or there is no pool.
 */
static bool
blocks_of(Relation index, BlockNumber *nblocks)
{
	uint32		dir;

	if (NvmPool == NULL || NvmPool->status != NVM_POOL_OPEN ||
		pg_atomic_read_u32(&NvmWbl->resolved) == 0)
		return false;
	dir = nvm_storage_find(index, NULL);
	if (dir == 0 ||
		(nvm_relstates[dir].region == NVM_REGION_VOLATILE && !nvm_log_is_whole()))
		return false;
	*nblocks = pg_atomic_read_u32(&nvm_rel_open(dir)->nblocks);
	return true;
}

/*
 * What is in pg_class now.  A system cache may show what was there before the
 * update in place that this is about.
 */
static bool
stored_stats(Oid indexid, BlockNumber *pages, double *tuples)
{
	Relation	pg_class = table_open(RelationRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_class_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(indexid));
	scan = systable_beginscan(pg_class, ClassOidIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		*pages = (BlockNumber) ((Form_pg_class) GETSTRUCT(tuple))->relpages;
		*tuples = ((Form_pg_class) GETSTRUCT(tuple))->reltuples;
	}
	systable_endscan(scan);
	table_close(pg_class, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

/*
 * Open a relation.  NULL if it is gone, or if we would have to wait for its
 * lock; *locked tells whether we would.
 */
Relation
nvm_open_unlocked(Oid relid, bool *locked)
{
	Relation	rel;

	*locked = !ConditionalLockRelationOid(relid, AccessShareLock);
	if (*locked)
		return NULL;
	rel = try_relation_open(relid, NoLock);
	if (rel == NULL)
		UnlockRelationOid(relid, AccessShareLock);
	return rel;
}

/*
 * Have we locked the index's table as VACUUM, ANALYZE and CREATE INDEX do?
 */
static bool
table_is_locked(Relation index)
{
	Relation	table = RelationIdGetRelation(index->rd_index->indrelid);
	bool		locked = false;

	if (table != NULL)
	{
		locked = CheckRelationLockedByMe(table, ShareUpdateExclusiveLock, true);
		RelationClose(table);
	}
	return locked;
}

/*
 * Enter the blocks of an index, if it is ours; no command needs an exact number.
 */
static void
enter_blocks(Oid indexid)
{
	bool		locked;
	Relation	index = nvm_open_unlocked(indexid, &locked);
	BlockNumber nblocks;
	BlockNumber pages;
	double		tuples;

	if (index == NULL)
		return;
	if (index->rd_rel->relkind == RELKIND_INDEX && nvm_relation_is_btree(index) &&
		table_is_locked(index) && blocks_of(index, &nblocks) && stored_stats(indexid, &pages, &tuples) &&
		tuples >= 0 && pages != nblocks)
		nvm_update_relstats(index, nblocks, tuples, 0, false, InvalidTransactionId,
							InvalidMultiXactId, NULL, NULL);
	relation_close(index, AccessShareLock);
}

/*
 * What was noted is over: the end of a command, or of the transaction.
 */
void
nvm_index_settle_relpages(void)
{
	List	   *list = noted;
	ListCell   *lc;

	/* not after ROLLBACK TO, as long as what it does is still to come */
	if (list == NIL || !IsTransactionState())
		return;
	noted = NIL;
	CommandCounterIncrement();
	foreach(lc, list)
	{
		Oid			relid = lfirst_oid(lc);
		bool		locked;
		Relation	rel = nvm_open_unlocked(relid, &locked);

		if (rel == NULL)
			continue;
		if (rel->rd_rel->relkind == RELKIND_INDEX)
		{
			relation_close(rel, AccessShareLock);
			enter_blocks(relid);
		}
		else
		{
			List	   *indexes = RelationGetIndexList(rel);
			ListCell   *lc2;

			foreach(lc2, indexes)
				enter_blocks(lfirst_oid(lc2));
			list_free(indexes);
			relation_close(rel, AccessShareLock);
		}
	}
	list_free(list);
}

static void
relpages_xact(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			nvm_index_settle_relpages();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			noted = NIL;
			break;
		default:
			break;
	}
}

/*
 * In _PG_init.
 */
void
nvm_index_register_relpages(void)
{
	RegisterXactCallback(relpages_xact, NULL);
}
