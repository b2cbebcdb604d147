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

#include "access/htup_details.h"
#include "catalog/pg_class.h"
#include "func/nvm_stat_row.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_relation.h"
#include "row/nvm_storage_stats.h"
#include "utils/builtins.h"
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

#define POOL_COLUMNS		16
#define RECOVERY_COLUMNS	6
#define RELATIONS_COLUMNS	14
#define ACTIVITY_COLUMNS	12

static Datum
stat_u64(uint64 value)
{
	return Int64GetDatum((int64) value);
}

static Datum
stat_text_or_null(const char *text, bool *isnull)
{
	*isnull = (text == NULL || text[0] == '\0');
	return *isnull ? (Datum) 0 : CStringGetTextDatum(text);
}

/*
 * See nvm_stat_row.h.
 */
Datum
nvm_stat_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

/*
 * nvm.pool_info(): answers whatever the state of the pool.
 */
Datum
nvm_pool_info(PG_FUNCTION_ARGS)
{
	Datum		values[POOL_COLUMNS] = {0};
	bool		nulls[POOL_COLUMNS] = {0};
	NvmPoolStatus status = NvmPool == NULL ? NVM_POOL_CLOSED : NvmPool->status;
	uint64		total = 0;
	uint64		available = 0;
	uint64		nchunks = 0;
	char		directory[MAXPGPATH] = "";

	if (NvmPool == NULL)
	{
		values[0] = CStringGetTextDatum("not loaded");
		values[1] = CStringGetTextDatum("library pg_nvm is not preloaded");
		values[2] = CStringGetTextDatum("Set shared_preload_libraries = 'pg_nvm' and restart the server.");
	}
	else
	{
		values[0] = CStringGetTextDatum(status == NVM_POOL_OPEN ? "open" :
										status == NVM_POOL_REFUSED ? "refused" : "closed");
		values[1] = stat_text_or_null(NvmPool->refusal, &nulls[1]);
		values[2] = stat_text_or_null(NvmPool->refusal_hint, &nulls[2]);
	}
	if (nvm_pool_directory != NULL)
		nvm_pool_directory_name(directory, nvm_pool_directory, DataDir);
	values[3] = stat_text_or_null(directory, &nulls[3]);

	if (status == NVM_POOL_OPEN)
	{
		nvm_pool_sizes(&total, &available, &nchunks);
		values[4] = CStringGetTextDatum(nvm_persist_method_name(nvm_persist_in_force));
		values[5] = BoolGetDatum(NvmPool->medium_is_volatile);
		values[6] = stat_u64(total * NVM_UNIT_SIZE);
		values[7] = stat_u64((total - available) * NVM_UNIT_SIZE);
		values[8] = stat_u64(available * NVM_UNIT_SIZE);
		values[9] = stat_u64((uint64) nvm_pool_max_size * 1024 * 1024);
		values[10] = stat_u64(NvmPool->incarnation);
		values[11] = UUIDPGetDatum((const pg_uuid_t *) NvmPool->uuid);
		values[12] = BoolGetDatum(NvmPool->was_clean);
		values[13] = stat_u64(NvmPool->open_usec);
		values[14] = stat_text_or_null(nvm_ignored_standbys(), &nulls[14]);
	}
	else
		memset(&nulls[4], true, sizeof(bool) * (POOL_COLUMNS - 4));
	if (NvmPool != NULL)
		values[15] = stat_text_or_null(NvmPool->last_directory, &nulls[15]);
	else
		nulls[15] = true;

	PG_RETURN_DATUM(nvm_stat_row(fcinfo, values, nulls));
}

/*
 * nvm.recovery_info()
 */
Datum
nvm_recovery_info(PG_FUNCTION_ARGS)
{
	Datum		values[RECOVERY_COLUMNS];
	bool		nulls[RECOVERY_COLUMNS] = {0};

	nvm_table_require();
	values[0] = stat_u64(NvmWbl->losers_found);
	values[1] = stat_u64(NvmWbl->indoubt_found);
	values[2] = BoolGetDatum(pg_atomic_read_u32(&NvmWbl->resolved) != 0);
	values[3] = stat_u64(pg_atomic_read_u32(&NvmWbl->ngaps));
	values[4] = stat_u64(NvmWbl->recovery_usec);
	values[5] = stat_u64(NvmWbl->resolve_usec);
	PG_RETURN_DATUM(nvm_stat_row(fcinfo, values, nulls));
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
			Datum		values[2];
			bool		nulls[2] = {0};

			if (nvm_slots[slot].gap[i] == 0)
				continue;		/* entries do not move */
			values[0] = Int32GetDatum((int32) slot);
			values[1] = stat_u64(nvm_slots[slot].gap[i]);
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
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
	Datum		values[RELATIONS_COLUMNS];
	bool		nulls[RELATIONS_COLUMNS] = {0};
	char		persistence = RELPERSISTENCE_PERMANENT;

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
	else
		nulls[10] = nulls[11] = true;
	if ((entry->flags & NVM_DIR_TEMP) != 0)
		persistence = RELPERSISTENCE_TEMP;
	else if ((entry->flags & NVM_DIR_UNLOGGED) != 0)
		persistence = RELPERSISTENCE_UNLOGGED;

	values[0] = Int32GetDatum((int32) id);
	values[1] = ObjectIdGetDatum(entry->database);
	values[2] = ObjectIdGetDatum(entry->tablespace);
	values[3] = ObjectIdGetDatum((Oid) entry->relnumber);
	values[4] = CharGetDatum(persistence);
	values[5] = BoolGetDatum(entry->end != 0 && !nvm_stamp_in_gap(entry->end));
	values[6] = stat_u64(nvm_rel_nblocks(state));
	values[7] = stat_u64(pg_atomic_read_u32(&state->nextents));
	values[8] = stat_u64(nvm_rel_bytes(state));
	values[9] = stat_u64(pg_atomic_read_u32(&state->nlarge));
	values[12] = CharGetDatum(entry->kind == NVM_DIR_KIND_TABLE ? RELKIND_RELATION : RELKIND_INDEX);
	values[13] = stat_u64(entry->creation_id);
	LWLockRelease(NvmWbl->storage_lock);

	values[10] = stat_u64(estimate.live);
	values[11] = stat_u64(estimate.dead);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
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
	Datum		values[ACTIVITY_COLUMNS];
	bool		nulls[ACTIVITY_COLUMNS] = {0};

	nvm_table_require();
	values[0] = stat_u64(pg_atomic_read_u64(&NvmWbl->commits));
	values[1] = stat_u64(pg_atomic_read_u64(&NvmWbl->mixed_commits));
	values[2] = stat_u64(pg_atomic_read_u64(&NvmWbl->aborts));
	values[3] = stat_u64(pg_atomic_read_u64(&NvmWbl->helped));
	values[4] = stat_u64(pg_atomic_read_u32(&NvmWbl->slots_used[NVM_REGION_POOL]) +
						 pg_atomic_read_u32(&NvmWbl->slots_used[NVM_REGION_VOLATILE]));
	values[5] = stat_u64(pg_atomic_read_u32(&NvmWbl->ngaps));
	values[6] = stat_u64(pg_atomic_read_u64(&NvmWbl->collector_sweeps));
	values[7] = stat_u64(pg_atomic_read_u64(&NvmWbl->collector_blocks));
	values[8] = stat_u64(pg_atomic_read_u64(&NvmWbl->collector_total));
	values[9] = stat_u64(pg_atomic_read_u64(&NvmWbl->collected));
	values[10] = stat_u64(pg_atomic_read_u32(&NvmWbl->commit_record_size));
	values[11] = stat_u64(pg_atomic_read_u64(&NvmWbl->redo_checkpoints));
	PG_RETURN_DATUM(nvm_stat_row(fcinfo, values, nulls));
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
		Datum		values[2];
		bool		nulls[2] = {0};

		values[0] = CStringGetTextDatum(p->place);
		values[1] = CStringGetTextDatum(p->problem);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
