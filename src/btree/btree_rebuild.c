/*-------------------------------------------------------------------------
 *
 * btree_rebuild.c
 *	  persistence = none: an index is rebuilt from its table after a restart.
 *
 * The builder scans the table, sorts the entries, and inserts them in this
 * order into the tree into which others insert meanwhile.  It sorts because
 * then each entry goes to the leaf of the one before.
 *
 * README.md, "How much of an index is persistent", says why no row is missed
 * and no entry leads to another row, while others insert, delete and vacuum.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "btree/nvm_btree_am.h"
#include "btree/nvm_btree_persist.h"
#include "btree/nvm_btree_state.h"
#include "catalog/index.h"
#include "commands/tablespace.h"
#include "compat/nvm_compat.h"
#include "compat/nvm_compat_index.h"
#include "miscadmin.h"
#include "optimizer/plancat.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "portability/instr_time.h"
#include "storage/bufmgr.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/sinval.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplesort.h"
#include "xact/nvm_storage.h"
#include "xact/nvm_xact.h"

/* how long functions of an index may wait for a lock, in milliseconds */
#define FUNCTION_LOCK_TIMEOUT	1000

/* ---- the build ---- */

typedef struct IndexRebuild
{
	Relation	heap;
	NvmRelState *state;
	Tuplesortstate *sort;
	uint64		nentries;		/* in the sort */
	ItemPointerData last;		/* the row that came last */
	MemoryContext context;		/* of one entry */
} IndexRebuild;

/*
 * For table_index_build_range_scan.  Several versions of a row come one after
 * another, with the same key; a sort takes no two entries that are the same.
 */
static void
rebuild_collect(Relation index, ItemPointer tid, Datum *values, bool *isnull,
				bool alive, void *arg)
{
	IndexRebuild *rebuild = (IndexRebuild *) arg;

	/* half of the work, as blocks of the table */
	pg_atomic_write_u32(&nvm_rel_index(rebuild->state)->done, ItemPointerGetBlockNumber(tid) / 2);
	if (ItemPointerCompare(tid, &rebuild->last) != 0)	/* last can be invalid */
	{
		tuplesort_putindextuplevalues(rebuild->sort, index, tid, values, isnull);
		rebuild->nentries++;
		rebuild->last = *tid;
	}
	else
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(rebuild->context);

		(void) nvm_index_insert(index, values, isnull, tid, rebuild->heap,
								UNIQUE_CHECK_NO, false, NULL);
		MemoryContextSwitchTo(oldcontext);
		MemoryContextReset(rebuild->context);
	}
}

/*
 * Insert what was collected, each entry unless it is there.
 */
static void
rebuild_insert(Relation index, IndexRebuild *rebuild)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(rebuild->context);
	uint32		half = pg_atomic_read_u32(&nvm_rel_index(rebuild->state)->total) / 2;
	uint32		leaf = NVM_INDEX_NONE;
	IndexTuple	itup;

	for (uint64 n = 0; (itup = tuplesort_getindextuple(rebuild->sort, true)) != NULL; n++)
	{
		nvm_index_insert_next(index, rebuild->heap, itup, &leaf);
		if ((n & 127) == 0)
		{
			pg_atomic_write_u32(&nvm_rel_index(rebuild->state)->done,
								half + (uint32) ((double) half * n / rebuild->nentries));
			MemoryContextReset(rebuild->context);
		}
		NVM_FAILPOINT("index-rebuild-entry");
	}
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Enter what the table has.  The index is claimed.  The snapshot stays until
 * all entries are there.
 */
static void
rebuild_scan(Relation index, Relation heap, NvmRelState *state)
{
	IndexInfo  *info = BuildIndexInfo(index);
	IndexRebuild rebuild;
	Oid			save_userid;
	int			save_sec_context;
	int			save_nestlevel;

	/* functions of expressions run as they do in CREATE INDEX */
	GetUserIdAndSecContext(&save_userid, &save_sec_context);
	SetUserIdAndSecContext(heap->rd_rel->relowner,
						   save_sec_context | SECURITY_RESTRICTED_OPERATION);
	save_nestlevel = NewGUCNestLevel();
	nvm_restrict_search_path();
	/* a backend that waits for the index has not asked for a sort */
	(void) set_config_option("temp_file_limit", "-1", PGC_SUSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);

	/*
	 * A function that reads tables may need a lock of a session that waits
	 * for the index.  No deadlock check sees that.
	 */
	if (LockTimeout == 0 || LockTimeout > FUNCTION_LOCK_TIMEOUT)
		(void) set_config_option("lock_timeout", CppAsString2(FUNCTION_LOCK_TIMEOUT),
								 PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	PushActiveSnapshot(GetLatestSnapshot());

	rebuild.heap = heap;
	rebuild.state = state;
	rebuild.context = AllocSetContextCreate(CurrentMemoryContext, "nvm_btree rebuild",
											ALLOCSET_DEFAULT_SIZES);
	rebuild.sort = tuplesort_begin_index_btree(heap, nvm_index_sort_relation(index),
											   false, false, maintenance_work_mem,
											   NULL, TUPLESORT_NONE);
	rebuild.nentries = 0;
	ItemPointerSetInvalid(&rebuild.last);
	pg_atomic_write_u32(&nvm_rel_index(state)->total, RelationGetNumberOfBlocks(heap));
	pg_atomic_write_u32(&nvm_rel_index(state)->done, 0);

	/* rows that are there are unique, or their transactions find it out */
	info->ii_Unique = false;
	info->ii_ExclusionOps = NULL;
	info->ii_Concurrent = false;
	(void) table_index_build_range_scan(heap, index, info, false, true, false,
										0, InvalidBlockNumber,
										rebuild_collect, &rebuild, NULL);
	NVM_FAILPOINT("index-rebuild-collected");
	tuplesort_performsort(rebuild.sort);
	rebuild_insert(index, &rebuild);
	tuplesort_end(rebuild.sort);

	MemoryContextDelete(rebuild.context);
	PopActiveSnapshot();
	AtEOXact_GUC(false, save_nestlevel);
	SetUserIdAndSecContext(save_userid, save_sec_context);
}

/*
 * An ERROR, or (code not 0) the end of the process.  A builder that had no
 * time, or was unwanted, says nothing of the index.  But others that wait may
 * have no more time than that builder had.
 */
static void
abandon_rebuild(int code, Datum arg)
{
	bool		left = code != 0 || geterrcode() == ERRCODE_QUERY_CANCELED;

	(void) nvm_region_use_reserve(NVM_REBUILT_NOTHING);
	nvm_index_abandon(&nvm_relstates[DatumGetUInt32(arg)], NVM_INDEXSTATE_ABSENT,
					  left ? NVM_INDEXFAILED_LEFT : NVM_INDEXFAILED_ERROR);
}

/*
 * Plans that were made while the index was absent are to be made anew, by
 * everybody and at once.
 */
static void
invalidate_plans(Oid relid)
{
	SharedInvalidationMessage msg;

	memset(&msg, 0, sizeof(msg));
	msg.rc.id = SHAREDINVALRELCACHE_ID;
	msg.rc.dbId = MyDatabaseId;
	msg.rc.relId = relid;
	SendSharedInvalidMessages(&msg, 1);
}

/*
 * See nvm_btree_persist.h.
 */
void
nvm_index_rebuild(Relation index)
{
	Oid			relid = index->rd_index->indrelid;
	Relation	heap = table_open(relid, AccessShareLock);
	NvmRelState *state = nvm_index_cache(index)->state;
	uint32		dir = state->dir;
	instr_time	start;
	instr_time	duration;

	/*
	 * who brings the rows of the table back may need its indexes before it
	 * opens
	 */
	nvm_storage_require_open(heap);

	/* the sort would look at catalogs for this */
	PrepareTempTablespaces();

	/* from here on we wait for nobody */
	if (!nvm_index_claim(state, NVM_INDEXSTATE_ABSENT))
	{
		table_close(heap, AccessShareLock);
		return;
	}
	INSTR_TIME_SET_CURRENT(start);
	PG_ENSURE_ERROR_CLEANUP(abandon_rebuild, UInt32GetDatum(dir));
	{
		NVM_FAILPOINT("index-rebuild-claimed");
		(void) nvm_region_use_reserve(NVM_REBUILT_INDEXES);
		rebuild_scan(index, heap, state);
		(void) nvm_region_use_reserve(NVM_REBUILT_NOTHING);
	}
	PG_END_ENSURE_ERROR_CLEANUP(abandon_rebuild, UInt32GetDatum(dir));

	INSTR_TIME_SET_CURRENT(duration);
	INSTR_TIME_SUBTRACT(duration, start);
	pg_atomic_write_u64(&nvm_rel_index(state)->usec, INSTR_TIME_GET_MICROSEC(duration));
	pg_atomic_write_u32(&nvm_rel_index(state)->done, pg_atomic_read_u32(&nvm_rel_index(state)->total));
	pg_atomic_write_u32(&nvm_rel_index(state)->failed, NVM_INDEXFAILED_NOT);

	/* whoever has made a row that we saw has an older one */
	pg_atomic_write_u64(&nvm_rel_index(state)->xid,
						U64FromFullTransactionId(ReadNextFullTransactionId()));
	nvm_index_claim_done(state);
	nvm_dir_count_rebuilt(dir);
	NVM_FAILPOINT("index-rebuild-done");
	invalidate_plans(relid);
	table_close(heap, AccessShareLock);
}

/*
 * May this process build?  Some snapshots do not keep versions from being taken
 * away under the scan.
 */
static bool
may_rebuild(void)
{
	return (MyProc->statusFlags & (PROC_IN_VACUUM | PROC_IN_SAFE_IC)) == 0 &&
		!IsInParallelMode();
}

/*
 * See nvm_btree_persist.h.
 */
void
nvm_index_wait_slow(Relation index)
{
	while (nvm_index_is_absent(nvm_index_cache(index)))
	{
		NvmRelState *state = nvm_index_cache(index)->state;
		uint32		failed = pg_atomic_read_u32(&nvm_rel_index(state)->failed);

		/* until the rebuilder forgives it, should no worker come */
		if (pg_atomic_read_u32(&nvm_rel_index(state)->state) != NVM_INDEXSTATE_ABSENT ||
			failed == NVM_INDEXFAILED_LEFT)
			nvm_index_wait_changed();
		else if (may_rebuild())
			nvm_index_rebuild(index);
		else if (failed != NVM_INDEXFAILED_NOT)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("index \"%s\" could not be rebuilt after the last restart",
							RelationGetRelationName(index)),
					 errhint("The server log has the reason. REINDEX the index.")));
		else
			nvm_index_wait_changed();
	}
	ConditionVariableCancelSleep();
}

bool
nvm_index_hold_absent(Relation index)
{
	bool		held = false;

	while (!held && nvm_index_is_absent(nvm_index_cache(index)))
	{
		held = nvm_index_claim(nvm_index_cache(index)->state, NVM_INDEXSTATE_ABSENT);
		if (!held)
			nvm_index_wait_changed();
	}
	ConditionVariableCancelSleep();
	return held;
}

void
nvm_index_release_absent(uint32 dir)
{
	pg_write_barrier();
	pg_atomic_write_u32(&nvm_rel_index(&nvm_relstates[dir])->state, NVM_INDEXSTATE_ABSENT);
	ConditionVariableBroadcast(&NvmIndexes->rebuilt);
}

void
nvm_index_count_use(NvmIndexCache *cache)
{
	NvmDirEntry *entry;

	if (cache->persistence != NVM_INDEX_NOTHING || ++cache->uses % NVM_INDEX_USES != 0)
		return;
	entry = nvm_dir_entry(cache->dir);
	(void) __atomic_fetch_add(&entry->uses, NVM_INDEX_USES, __ATOMIC_RELAXED);
	nvm_flush(&entry->uses, sizeof(entry->uses));
}

/* ---- the planner ---- */

/*
 * get_relation_info_hook: there is no index that is not whole.
 */
void
nvm_btree_hide_absent_indexes(RelOptInfo *rel)
{
	ListCell   *lc;

	if (NvmIndexes == NULL || pg_atomic_read_u32(&NvmIndexes->nabsent) == 0)
		return;
	foreach(lc, rel->indexlist)
	{
		IndexOptInfo *info = lfirst_node(IndexOptInfo, lc);
		Relation	index;

		/* of partitioned ones nothing is known but what they are */
		if (info->hypothetical ||
			(void *) info->amcostestimate != (void *) nvm_btree_costestimate)
			continue;
		index = index_open(info->indexoid, NoLock);
		if (nvm_index_is_absent(nvm_index_cache(index)))
			rel->indexlist = foreach_delete_current(rel->indexlist, lc);
		index_close(index, NoLock);
	}
}

/*
 * In _PG_init.
 */
void
nvm_btree_register_settle(void)
{
	nvm_xact_register_settle(nvm_index_settle);
}
