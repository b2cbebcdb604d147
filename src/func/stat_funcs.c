/*-------------------------------------------------------------------------
 *
 * stat_funcs.c
 *	  Functions behind the views of schema nvm, and nvm.check_pool().
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "func/nvm_stat_row.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_relation.h"
#include "row/nvm_storage_stats.h"
#include "utils/uuid.h"
#include "verify/nvm_verify.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"

PG_FUNCTION_INFO_V1(nvm_pool_info);
PG_FUNCTION_INFO_V1(nvm_recovery_info);
PG_FUNCTION_INFO_V1(nvm_gaps_info);
PG_FUNCTION_INFO_V1(nvm_relations_info);
PG_FUNCTION_INFO_V1(nvm_activity_info);
PG_FUNCTION_INFO_V1(nvm_check_pool);

/* columns of nvm_pool_info() that an open pool has */
#define POOL_SIZES		11

/*
 * nvm.pool_info(): answers whatever the state of the pool.
 */
Datum
nvm_pool_info(PG_FUNCTION_ARGS)
{
	NvmPoolStatus status = NvmPool == NULL ? NVM_POOL_CLOSED : NvmPool->status;
	uint64		total = 0;
	uint64		available = 0;
	uint64		nchunks = 0;
	char		directory[MAXPGPATH] = "";
	NvmStatRow	row = {0};

	if (NvmPool == NULL)
	{
		nvm_stat_text(&row, "not loaded");
		nvm_stat_text(&row, "library pg_nvm is not preloaded");
		nvm_stat_text(&row, "Set shared_preload_libraries = 'pg_nvm' and restart the server.");
	}
	else
	{
		nvm_stat_text(&row, status == NVM_POOL_OPEN ? "open" :
					  status == NVM_POOL_REFUSED ? "refused" : "closed");
		nvm_stat_text(&row, NvmPool->refusal);
		nvm_stat_text(&row, NvmPool->refusal_hint);
	}
	if (nvm_pool_directory != NULL)
		nvm_pool_directory_name(directory, nvm_pool_directory, DataDir);
	nvm_stat_text(&row, directory);

	if (status == NVM_POOL_OPEN)
	{
		nvm_pool_sizes(&total, &available, &nchunks);
		nvm_stat_text(&row, nvm_persist_method_name(nvm_persist_in_force));
		nvm_stat_datum(&row, BoolGetDatum(NvmPool->medium_is_volatile));
		nvm_stat_count(&row, total * NVM_UNIT_SIZE);
		nvm_stat_count(&row, (total - available) * NVM_UNIT_SIZE);
		nvm_stat_count(&row, available * NVM_UNIT_SIZE);
		nvm_stat_count(&row, (uint64) nvm_pool_max_size * 1024 * 1024);
		nvm_stat_count(&row, NvmPool->incarnation);
		nvm_stat_datum(&row, UUIDPGetDatum((const pg_uuid_t *) NvmPool->uuid));
		nvm_stat_datum(&row, BoolGetDatum(NvmPool->was_clean));
		nvm_stat_count(&row, NvmPool->open_usec);
		nvm_stat_text(&row, nvm_ignored_standbys());
	}
	else
		nvm_stat_nulls(&row, POOL_SIZES);
	nvm_stat_text(&row, NvmPool != NULL ? NvmPool->last_directory : NULL);
	PG_RETURN_DATUM(nvm_stat_result(fcinfo, &row));
}

/*
 * nvm.recovery_info()
 */
Datum
nvm_recovery_info(PG_FUNCTION_ARGS)
{
	NvmStatRow	row = {0};

	nvm_table_require();
	nvm_stat_count(&row, NvmWbl->losers_found);
	nvm_stat_count(&row, NvmWbl->indoubt_found);
	nvm_stat_datum(&row, BoolGetDatum(pg_atomic_read_u32(&NvmWbl->resolved) != 0));
	nvm_stat_count(&row, pg_atomic_read_u32(&NvmWbl->ngaps));
	nvm_stat_count(&row, NvmWbl->recovery_usec);
	nvm_stat_count(&row, NvmWbl->resolve_usec);
	PG_RETURN_DATUM(nvm_stat_result(fcinfo, &row));
}

/*
 * nvm.gaps_info()
 */
Datum
nvm_gaps_info(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	nvm_table_require();

	LWLockAcquire(NvmWbl->wbl_lock, LW_SHARED);
	NvmForEachUsedSlot(slot)
	{
		for (uint32 i = 0; i < NVM_SLOT_GAPS; i++)
		{
			NvmStatRow	row = {0};

			if (nvm_slots[slot].gap[i] == 0)
				continue;		/* entries do not move */
			nvm_stat_datum(&row, Int32GetDatum((int32) slot));
			nvm_stat_count(&row, nvm_slots[slot].gap[i]);
			nvm_stat_put(rsinfo, &row);
		}
	}
	LWLockRelease(NvmWbl->wbl_lock);
	return (Datum) 0;
}

/*
 * For nvm_dir_walk: a row of nvm.relations_info() for each storage.  Rows and
 * versions are estimated from some of its blocks.
 */
static void
stat_relation(uint32 id, NvmDirEntry *entry, void *arg)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) arg;
	NvmRelState *state = &nvm_relstates[id];
	NvmStorageEstimate estimate = {0};
	char		persistence = RELPERSISTENCE_PERMANENT;
	NvmStatRow	row = {0};

	CHECK_FOR_INTERRUPTS();

	/* nobody takes extents away while we look at its blocks */
	LWLockAcquire(NvmWbl->storage_lock, LW_SHARED);
	if (entry->begin == 0 || nvm_stamp_in_gap(entry->begin))
	{
		LWLockRelease(NvmWbl->storage_lock);
		return;
	}
	(void) nvm_rel_open(id);
	if (entry->kind == NVM_DIR_KIND_TABLE)
		nvm_storage_estimate(state, &estimate);
	if ((entry->flags & NVM_DIR_TEMP) != 0)
		persistence = RELPERSISTENCE_TEMP;
	else if ((entry->flags & NVM_DIR_UNLOGGED) != 0)
		persistence = RELPERSISTENCE_UNLOGGED;

	nvm_stat_datum(&row, Int32GetDatum((int32) id));
	nvm_stat_datum(&row, ObjectIdGetDatum(entry->database));
	nvm_stat_datum(&row, ObjectIdGetDatum(entry->tablespace));
	nvm_stat_datum(&row, ObjectIdGetDatum((Oid) entry->relnumber));
	nvm_stat_datum(&row, CharGetDatum(persistence));
	nvm_stat_datum(&row, BoolGetDatum(entry->end != 0 && !nvm_stamp_in_gap(entry->end)));
	nvm_stat_count(&row, nvm_rel_nblocks(state));
	nvm_stat_count(&row, pg_atomic_read_u32(&state->nextents));
	nvm_stat_count(&row, nvm_rel_bytes(state));
	nvm_stat_count(&row, pg_atomic_read_u32(&state->nlarge));
	if (entry->kind == NVM_DIR_KIND_TABLE)
	{
		nvm_stat_count(&row, estimate.live);
		nvm_stat_count(&row, estimate.dead);
	}
	else
		nvm_stat_nulls(&row, 2);
	nvm_stat_datum(&row, CharGetDatum(entry->kind == NVM_DIR_KIND_TABLE ? RELKIND_RELATION : RELKIND_INDEX));
	nvm_stat_count(&row, entry->creation_id);
	LWLockRelease(NvmWbl->storage_lock);

	nvm_stat_put(rsinfo, &row);
}

Datum
nvm_relations_info(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, 0);
	nvm_table_require();
	nvm_dir_walk(stat_relation, fcinfo->resultinfo);
	return (Datum) 0;
}

/*
 * nvm.activity_info()
 */
Datum
nvm_activity_info(PG_FUNCTION_ARGS)
{
	NvmStatRow	row = {0};

	nvm_table_require();
	nvm_stat_count(&row, pg_atomic_read_u64(&NvmWbl->commits));
	nvm_stat_count(&row, pg_atomic_read_u64(&NvmWbl->mixed_commits));
	nvm_stat_count(&row, pg_atomic_read_u64(&NvmWbl->aborts));
	nvm_stat_count(&row, pg_atomic_read_u64(&NvmWbl->helped));
	nvm_stat_count(&row, pg_atomic_read_u32(&NvmWbl->slots_used[NVM_REGION_POOL]) +
				   pg_atomic_read_u32(&NvmWbl->slots_used[NVM_REGION_VOLATILE]));
	nvm_stat_count(&row, pg_atomic_read_u32(&NvmWbl->ngaps));
	nvm_stat_count(&row, pg_atomic_read_u64(&NvmWbl->collector_sweeps));
	nvm_stat_count(&row, pg_atomic_read_u64(&NvmWbl->collector_blocks));
	nvm_stat_count(&row, pg_atomic_read_u64(&NvmWbl->collector_total));
	nvm_stat_count(&row, pg_atomic_read_u64(&NvmWbl->collected));
	nvm_stat_count(&row, pg_atomic_read_u32(&NvmWbl->commit_record_size));
	nvm_stat_count(&row, pg_atomic_read_u64(&NvmWbl->redo_checkpoints));
	PG_RETURN_DATUM(nvm_stat_result(fcinfo, &row));
}

/* ---- nvm.check_pool() ---- */

typedef struct PoolProblem
{
	char	   *place;
	char	   *problem;
} PoolProblem;

typedef struct PoolProblems
{
	MemoryContext cxt;
	List	   *list;			/* of PoolProblem */
	bool	   *known;			/* [ndirs + 1]: directory ids in use */
	uint32		ndirs;
} PoolProblems;

/*
 * Note a finding.  May be called under LWLocks, so rows are made later.
 */
static void
check_pool_emit(void *arg, const char *place, const char *problem)
{
	PoolProblems *found = (PoolProblems *) arg;
	MemoryContext oldcontext = MemoryContextSwitchTo(found->cxt);
	PoolProblem *p = (PoolProblem *) palloc(sizeof(PoolProblem));

	p->place = pstrdup(place);
	p->problem = pstrdup(problem);
	found->list = lappend(found->list, p);
	MemoryContextSwitchTo(oldcontext);
}

static void
check_pool_entry(uint32 id, NvmDirEntry *entry, void *arg)
{
	PoolProblems *found = (PoolProblems *) arg;

	if (id <= found->ndirs)
		found->known[id] = true;
}

static void
check_pool_extent(uint64 unit, uint64 word, void *arg)
{
	PoolProblems *found = (PoolProblems *) arg;
	uint32		owner = NVM_EXT_OWNER(word);
	char		place[64];

	if (!nvm_extent_of_storage(word) ||
		(owner <= found->ndirs && found->known[owner]) ||
		(owner <= NvmPool->ndirs && nvm_dir_entry(owner)->begin != 0))
		return;
	snprintf(place, sizeof(place), "unit " UINT64_FORMAT, unit);
	check_pool_emit(found, place,
					psprintf("extent belongs to storage %u, which does not exist",
							 owner));
}

Datum
nvm_check_pool(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	PoolProblems found = {0};
	ListCell   *lc;

	nvm_table_require();
	InitMaterializedSRF(fcinfo, 0);

	found.cxt = CurrentMemoryContext;
	nvm_pool_verify(check_pool_emit, &found);
	nvm_wbl_verify(check_pool_emit, &found);

	/* owners first: an extent that is allocated meanwhile has a newer one */
	found.ndirs = NvmPool->ndirs;
	found.known = (bool *) palloc0(sizeof(bool) * (found.ndirs + 1));
	nvm_dir_walk(check_pool_entry, &found);
	nvm_extents_walk(0, 0, check_pool_extent, &found);

	foreach(lc, found.list)
	{
		PoolProblem *p = (PoolProblem *) lfirst(lc);
		NvmStatRow	row = {0};

		nvm_stat_text(&row, p->place);
		nvm_stat_text(&row, p->problem);
		nvm_stat_put(rsinfo, &row);
	}
	return (Datum) 0;
}
