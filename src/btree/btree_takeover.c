/*-------------------------------------------------------------------------
 *
 * btree_takeover.c
 *	  Indexes that say btree and are ours are built by us, whatever command
 *	  builds them.
 *
 * CREATE INDEX shows us an index before it is built (OAT_POST_CREATE); its entry
 * gets our routine there and keeps it, for it is of this transaction.  Other
 * commands open the index and build it with nothing between that we see, so
 * nbtree's ambuild may run.  It asks our table for the rows
 * (index_build_range_scan), with the index open.  There the entry gets our
 * routine, our build runs, and nbtree gets no row.  nbtree then leaves an empty
 * tree in the file, where a path that misses the exchange would find no rows
 * without a word.  So the file is put right when the next query begins, when the
 * command ends, and before the transaction commits.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/attmap.h"
#include "access/genam.h"
#include "access/nbtree.h"
#include "access/table.h"
#include "access/xact.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_identity.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "catalog/pg_operator_d.h"
#include "catalog/pg_type_d.h"
#include "compat/nvm_compat.h"
#include "compat/nvm_compat_index.h"
#include "compat/nvm_compat_vacuum.h"
#include "miscadmin.h"
#include "optimizer/optimizer.h"
#include "optimizer/planner.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/tuplesort.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"

/* a build that was taken over: the file is to be put right */
typedef struct TakenBuild
{
	Oid			index;
	NvmLocator	locator;
	double		tuples;
	bool		written;		/* the file is */
	int			level;			/* nesting level that answers for it */
} TakenBuild;

Oid			nvm_index_being_taken = InvalidOid;

static List *taken = NIL;		/* in TopTransactionContext */

/* PRE_COMMIT is over: what is taken over now is not put right any more */
static bool too_late = false;

/* indexes of tables that are truncated, open */
typedef struct HeldIndex
{
	Relation	index;
	ResourceOwner owner;
} HeldIndex;

static List *held = NIL;		/* in TopTransactionContext */

/*
 * For nvm_dir_walk: has the index a storage that goes on, under whatever file number?
 */
static void
find_by_oid(uint32 id, NvmDirEntry *entry, void *arg)
{
	Oid		   *index = (Oid *) arg;

	if (entry->kind == NVM_DIR_KIND_INDEX && (entry->flags & NVM_DIR_BTREE) != 0 &&
		entry->relation == *index && entry->database == MyDatabaseId && entry->begin != 0 &&
		!nvm_stamp_in_gap(entry->begin) &&
		(entry->end == 0 || nvm_stamp_in_gap(entry->end)))
		*index = InvalidOid;
}

static bool
has_storage(Oid indexid)
{
	if (NvmPool == NULL || NvmPool->status != NVM_POOL_OPEN)
		return false;
	nvm_dir_walk(find_by_oid, &indexid);
	return !OidIsValid(indexid);
}

/*
 * Is there an index of ours that says btree and has the same definition?
 */
static bool
has_model(Relation table, Relation index, IndexInfo *info)
{
	List	   *indexes = RelationGetIndexList(table);
	AttrMap    *map = NvmAttrMapByName(RelationGetDescr(table), RelationGetDescr(table));
	bool		found = false;
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Relation	other;

		if (found || lfirst_oid(lc) == RelationGetRelid(index))
			continue;
		other = index_open(lfirst_oid(lc), AccessShareLock);
		if (other->rd_rel->relam == BTREE_AM_OID && nvm_relation_is_btree(other))
			found = CompareIndexInfo(info, BuildIndexInfo(other),
									 index->rd_indcollation, other->rd_indcollation,
									 index->rd_opfamily, other->rd_opfamily, map);
		index_close(other, AccessShareLock);
	}
	free_attrmap(map);
	list_free(indexes);
	return found;
}

/*
 * Is an index that says btree, and that is going to be built, to be ours?  It stays
 * ours if it was.  REINDEX CONCURRENTLY builds a new index, which is as the one is
 * whose place it takes.  At ON COMMIT an index stays whose it is.
 */
static bool
becomes_ours(Relation table, Relation index, IndexInfo *info)
{
	return (nvm_index_identity_applies() && !too_late) ||
		has_storage(RelationGetRelid(index)) ||
		(nvm_index_reindexes && info->ii_Concurrent && has_model(table, index, info));
}

/*
 * An index of method btree was made and is not built yet (OAT_POST_CREATE).  again: it
 * takes the place of one of ours, whatever the setting.
 */
void
nvm_index_created(Oid indexid, bool again)
{
	Relation	index;
	Relation	table;

	if (!(again || nvm_index_identity_applies()) || NVM_FAILPOINT_MISSES("exchange-created"))
		return;
	CommandCounterIncrement();
	index = index_open(indexid, NoLock);
	table = table_open(index->rd_index->indrelid, NoLock);

	/*
	 * ALTER COLUMN TYPE may give it the file of one that it drops, and build
	 * nothing
	 */
	if (nvm_storage_is_table(table) && index->rd_indam->ambuild == btbuild &&
		(RelationGetNumberOfBlocks(index) == 0 || nvm_index_btree_storage(index) != 0))
		nvm_index_exchange(index, true);
	table_close(table, NoLock);
	index_close(index, NoLock);
}

/*
 * Our table is scanned for the build of an index.  True if the build is done.
 */
bool
nvm_index_take_over_build(Relation table, Relation index, IndexInfo *info,
						  TableScanDesc sscan, double *reltuples)
{
	Oid			outer = nvm_index_being_taken;
	IndexBuildResult *volatile result = NULL;
	TakenBuild *build;
	MemoryContext oldcontext;

	/* amcheck scans a table for an index that there is */
	if (index->rd_indam->ambuild != btbuild || RelationGetNumberOfBlocks(index) != 0 ||
		!becomes_ours(table, index, info))
		return false;
	if (too_late)
		elog(ERROR, "index \"%s\" is built after the transaction has settled what it built",
			 RelationGetRelationName(index));
	if (info->ii_ParallelWorkers > 0 || sscan != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("index \"%s\" cannot be built by workers of btree",
						RelationGetRelationName(index)),
				 errhint("Set max_parallel_maintenance_workers to 0.")));
	nvm_index_exchange(index, false);
	if (index->rd_indam->ambuild != nvm_btree_build)
		elog(ERROR, "index \"%s\" did not get the routine that is to build it",
			 RelationGetRelationName(index));
	nvm_index_being_taken = RelationGetRelid(index);
	PG_TRY();
	{
		result = nvm_btree_build(table, index, info);
	}
	PG_FINALLY();
	{
		nvm_index_being_taken = outer;
	}
	PG_END_TRY();
	*reltuples = result->heap_tuples;
	NVM_FAILPOINT("btree-taken-over");

	oldcontext = MemoryContextSwitchTo(TopTransactionContext);
	build = palloc0(sizeof(TakenBuild));
	build->level = GetCurrentTransactionNestLevel();
	build->index = RelationGetRelid(index);
	build->locator = NvmRelLocator(index);
	build->tuples = result->index_tuples;
	taken = lappend(taken, build);
	MemoryContextSwitchTo(oldcontext);
	pfree(result);
	return true;
}

/* we ask PostgreSQL how many workers a build should have */
static bool counting = false;

/*
 * Is an index of table being built, by nbtree, that will be ours?  It is open: whoever
 * asks for its workers has it.
 */
static bool
builds_ours(Relation table)
{
	List	   *indexes = RelationGetIndexList(table);
	ListCell   *lc;
	bool		builds = false;

	foreach(lc, indexes)
	{
		Relation	index = RelationIdGetRelation(lfirst_oid(lc));

		if (index == NULL)
			continue;
		if (!builds && index->rd_rel->relam == BTREE_AM_OID && index->rd_refcnt > 1 &&
			index->rd_indam->ambuild == btbuild && RelationGetNumberOfBlocks(index) == 0)
		{
			IndexInfo  *info = BuildIndexInfo(index);

			info->ii_Concurrent = true;
			builds = becomes_ours(table, index, info);
		}
		RelationClose(index);
	}
	list_free(indexes);
	return builds;
}

/*
 * get_relation_info_hook.  PostgreSQL asks for the table of an index that it is going
 * to build, by a query without FROM.  A build that we take over must not have workers
 * of nbtree.
 */
void
nvm_index_plan_no_workers(PlannerInfo *root, Oid relid, RelOptInfo *rel)
{
	Relation	table;

	if (root->parse->jointree != NULL || counting)
		return;
	table = RelationIdGetRelation(relid);
	if (table == NULL)
		return;
	if (nvm_storage_is_table(table) && builds_ours(table))
		rel->rel_parallel_workers = 0;
	RelationClose(table);
}

int
nvm_index_count_workers(Relation table, Relation index)
{
	volatile int nworkers = 0;

	/* TRUNCATE builds, too */
	if (!IsNormalProcessingMode() || RelationGetNumberOfBlocks(table) == 0)
		return 0;
	counting = true;
	PG_TRY();
	{
		nworkers = plan_create_index_workers(RelationGetRelid(table), RelationGetRelid(index));
	}
	PG_FINALLY();
	{
		counting = false;
	}
	PG_END_TRY();
	return nworkers;
}

static bool
collect_tid(ItemPointer tid, void *arg)
{
	ValidateIndexState *state = (ValidateIndexState *) arg;

	tuplesort_putdatum(state->tuplesort, Int64GetDatum(itemptr_encode(tid)), false);
	state->itups += 1;
	return false;
}

/*
 * The second phase of CREATE INDEX CONCURRENTLY.  nbtree was asked for the TIDs
 * that the index has, and has told none: ask the index itself.
 */
void
nvm_index_take_over_validation(Relation table, Relation index, IndexInfo *info,
							   ValidateIndexState *state)
{
	IndexVacuumInfo ivinfo = {0};

	if (index->rd_indam->ambuild != btbuild || NVM_FAILPOINT_MISSES("exchange-validated") ||
		!nvm_relation_is_btree(index))
		return;
	ivinfo.index = index;
	nvm_index_vacuum_heap(&ivinfo, table);
	ivinfo.estimated_count = true;
	ivinfo.message_level = DEBUG2;
	ivinfo.num_heap_tuples = table->rd_rel->reltuples;

	tuplesort_end(state->tuplesort);
	state->tuplesort = tuplesort_begin_datum(INT8OID, Int8LessOperator, InvalidOid, false,
											 maintenance_work_mem, NULL, TUPLESORT_NONE);
	state->itups = 0;
	(void) index_bulk_delete(&ivinfo, NULL, collect_tid, state);
	tuplesort_performsort(state->tuplesort);
}

static bool
is_same_file(NvmLocator a, NvmLocator b)
{
	return NvmLocatorRel(a) == NvmLocatorRel(b) && NvmLocatorSpc(a) == NvmLocatorSpc(b);
}

/*
 * The index of a build, opened, if it still has the file that was built; or NULL.  The
 * transaction has locked it.
 */
static Relation
open_taken(const TakenBuild *build)
{
	Relation	index = RelationIdGetRelation(build->index);

	if (index != NULL && !is_same_file(NvmRelLocator(index), build->locator))
	{
		RelationClose(index);
		index = NULL;
	}
	return index;
}

/*
 * A query begins, perhaps of a trigger of the command that has built: the files that
 * nbtree has left are put right.
 */
void
nvm_index_write_taken(void)
{
	ListCell   *lc;

	foreach(lc, taken)
	{
		TakenBuild *build = lfirst(lc);
		Relation	index = build->written ? NULL : open_taken(build);

		if (index == NULL)
			continue;
		nvm_index_write_failsafe(index, MAIN_FORKNUM);
		build->written = true;
		RelationClose(index);
	}
}

/*
 * The end of a command, or of the transaction.  nbtree has also told pg_class that the
 * index has no entries.
 */
void
nvm_index_settle_builds(void)
{
	if (taken == NIL || !IsTransactionState())
		return;
	NVM_FAILPOINT("btree-settle-builds");
	CommandCounterIncrement();
	nvm_index_write_taken();
	while (taken != NIL)
	{
		TakenBuild *build = linitial(taken);
		Relation	index = open_taken(build);

		taken = list_delete_first(taken);
		if (index == NULL)
			continue;
		nvm_update_relstats(index, RelationGetNumberOfBlocks(index), build->tuples, 0,
							false, InvalidTransactionId, InvalidMultiXactId, NULL, NULL);
		RelationClose(index);
	}
}

/*
 * A table is truncated in place, with its indexes, which are then built: in a command,
 * or at ON COMMIT, which is after PRE_COMMIT.  In the latter case they have our routine
 * until they are built, whatever message comes.
 */
void
nvm_index_hold_truncated(Relation table)
{
	List	   *indexes = RelationGetIndexList(table);
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessExclusiveLock);

		if (nvm_relation_is_btree(index) && index->rd_rel->relam == BTREE_AM_OID && too_late)
		{
			MemoryContext oldcontext = MemoryContextSwitchTo(TopTransactionContext);
			HeldIndex  *hold = palloc(sizeof(HeldIndex));

			hold->index = index;
			hold->owner = CurrentResourceOwner;
			held = lappend(held, hold);
			MemoryContextSwitchTo(oldcontext);
		}
		else
			index_close(index, NoLock);
	}
	list_free(indexes);
}

/*
 * Such an index is built.  Others may drop it now.  After an ERROR resource owners give
 * up those that are held.
 */
void
nvm_index_release_truncated(Relation index)
{
	ResourceOwner owner = CurrentResourceOwner;
	ListCell   *lc;

	foreach(lc, held)
	{
		HeldIndex  *hold = lfirst(lc);

		if (hold->index != index)
			continue;
		held = foreach_delete_current(held, lc);
		CurrentResourceOwner = hold->owner;
		RelationClose(index);
		CurrentResourceOwner = owner;
	}
}

static void
takeover_subxact(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();
	ListCell   *lc;

	foreach(lc, taken)
	{
		TakenBuild *build = lfirst(lc);

		if (build->level < level)
			continue;
		if (event == SUBXACT_EVENT_COMMIT_SUB)
			build->level = level - 1;
		else if (event == SUBXACT_EVENT_ABORT_SUB)
			taken = foreach_delete_current(taken, lc);	/* the file goes, too */
	}
}

static void
takeover_xact(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			nvm_index_settle_builds();
			too_late = true;
			break;
		case XACT_EVENT_ABORT:
			nvm_index_reindexes = false;
			/* FALLTHROUGH */
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
			taken = held = NIL;
			too_late = false;
			break;
		default:
			break;
	}
}

/*
 * In _PG_init.
 */
void
nvm_index_register_takeover(void)
{
	RegisterXactCallback(takeover_xact, NULL);
	RegisterSubXactCallback(takeover_subxact, NULL);
}
