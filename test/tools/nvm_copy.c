/*-------------------------------------------------------------------------
 *
 * nvm_copy.c
 *	  For tests of replays: makes a copy of the tables of nvm_cmdlog, leads a session there,
 *	  and brings rows of a checkpoint and of the log into it, as src/replay has others do.
 *
 *	CREATE FUNCTION nvm_copy_make(schema text) RETURNS bytea AS '.../nvm_copy' LANGUAGE C STRICT;
 *	CREATE FUNCTION nvm_copy_drop(schema text) RETURNS bool AS '.../nvm_copy' LANGUAGE C STRICT;
 *	CREATE FUNCTION nvm_copy_tables(map bytea, OUT original regclass, OUT copy regclass,
 *		OUT key regclass, OUT indexes int) RETURNS SETOF record
 *		AS '.../nvm_copy' LANGUAGE C STRICT;
 *	CREATE FUNCTION nvm_copy_redirect(map bytea) RETURNS void AS '.../nvm_copy' LANGUAGE C STRICT;
 *	CREATE FUNCTION nvm_copy_checksums(what regclass, as_table oid) RETURNS SETOF bigint
 *		AS '.../nvm_copy' LANGUAGE C STRICT;
 *	CREATE FUNCTION nvm_copy_replay(schema text, OUT error text, OUT loaded bigint,
 *		OUT records bigint, OUT inserted bigint, OUT updated bigint, OUT deleted bigint,
 *		OUT map bytea) AS '.../nvm_copy' LANGUAGE C STRICT;
 *
 *	CREATE FUNCTION nvm_copy_play(map bytea, OUT records bigint, OUT inserted bigint,
 *		OUT updated bigint, OUT deleted bigint) AS '.../nvm_copy' LANGUAGE C STRICT;
 *
 * A map is what nvm_replay_copy_make returns.  redirect is for the rest of the session.
 * checksums are those of the rows of `what`, were they of table as_table.  replay has a
 * background worker make a copy, load the rows of the last checkpoint, and play all
 * records of values behind it, one in a transaction; the transaction that calls it holds no lock.
 * play does the last of these alone, in the current transaction.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>

#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_index.h"
#include "command/nvm_command.h"
#include "fmgr.h"
#include "funcapi.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "replay/nvm_replay_copy.h"
#include "replay/nvm_replay_rows.h"
#include "row/nvm_large.h"
#include "row/nvm_tuple_slot.h"
#include "storage/dsm.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "verify/nvm_verify_log.h"
#include "vlog/nvm_vlog_stream.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(nvm_copy_make);
PG_FUNCTION_INFO_V1(nvm_copy_drop);
PG_FUNCTION_INFO_V1(nvm_copy_tables);
PG_FUNCTION_INFO_V1(nvm_copy_redirect);
PG_FUNCTION_INFO_V1(nvm_copy_checksums);
PG_FUNCTION_INFO_V1(nvm_copy_replay);
PG_FUNCTION_INFO_V1(nvm_copy_play);

PGDLLEXPORT void nvm_copy_main(Datum main_arg);

static bytea *
to_bytea(const NvmReplayMap *map)
{
	bytea	   *result = palloc(VARHDRSZ + map->size);

	SET_VARSIZE(result, VARHDRSZ + map->size);
	memcpy(VARDATA(result), map, map->size);
	return result;
}

static NvmReplayMap *
from_bytea(bytea *bytes)
{
	NvmReplayMap *map = palloc(VARSIZE_ANY_EXHDR(bytes));

	memcpy(map, VARDATA_ANY(bytes), VARSIZE_ANY_EXHDR(bytes));
	if (map->size != VARSIZE_ANY_EXHDR(bytes))
		elog(ERROR, "this is no map");
	return map;
}

Datum
nvm_copy_make(PG_FUNCTION_ARGS)
{
	PG_RETURN_BYTEA_P(to_bytea(nvm_replay_copy_make(text_to_cstring(PG_GETARG_TEXT_PP(0)))));
}

Datum
nvm_copy_drop(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(nvm_replay_copy_drop(text_to_cstring(PG_GETARG_TEXT_PP(0))));
}

Datum
nvm_copy_tables(PG_FUNCTION_ARGS)
{
	NvmReplayMap *map = from_bytea(PG_GETARG_BYTEA_PP(0));
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < map->ntables; i++)
	{
		const NvmReplayTable *table = &map->tables[i];
		Datum		values[4];
		bool		nulls[4] = {0};

		if (nvm_replay_find(map, table->dir) != table)
			elog(ERROR, "table %u is not found", table->original);
		for (int n = 0; n < table->nindexes; n++)
		{
			const NvmReplayIndex *index = &nvm_replay_indexes(map)[table->first_index + n];
			HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index->original));

			if (!HeapTupleIsValid(tuple) ||
				((Form_pg_index) GETSTRUCT(tuple))->indrelid != table->original)
				elog(ERROR, "index %u is not the table's", index->original);
			ReleaseSysCache(tuple);
		}
		values[0] = ObjectIdGetDatum(table->original);
		values[1] = ObjectIdGetDatum(table->copy);
		values[2] = ObjectIdGetDatum(table->key_index);
		nulls[2] = !OidIsValid(table->key_index);
		values[3] = Int32GetDatum(table->nindexes);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

Datum
nvm_copy_redirect(PG_FUNCTION_ARGS)
{
	NvmReplayMap *map = from_bytea(PG_GETARG_BYTEA_PP(0));

	nvm_command_replaying = true;
	nvm_replay_redirect(map);
	pfree(map);
	PG_RETURN_VOID();
}

Datum
nvm_copy_checksums(PG_FUNCTION_ARGS)
{
	Relation	rel = table_open(PG_GETARG_OID(0), AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	TableScanDesc scan;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	scan = table_beginscan(rel, GetActiveSnapshot(), 0, NULL);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		const NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;
		Datum		value = Int64GetDatum((int64) nvm_version_checksum(nslot->state, nslot->version,
																	   PG_GETARG_OID(1), false));
		bool		isnull = false;

		tuplestore_putvalues(result->setResult, result->setDesc, &value, &isnull);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}

/* ---- a worker that does what a replay does, without calls ---- */

#define MAX_MAP		(256 * 1024)

typedef struct Told
{
	Oid			database;
	char		schema[NAMEDATALEN];
	bool		done;
	char		error[1024];
	uint64		loaded;
	uint64		records;
	NvmReplayCount count;
	char		map[MAX_MAP];
} Told;

typedef struct Base
{
	const NvmReplayMap *map;
	NvmReplayLoad *load;
} Base;

static bool
is_wanted(void *arg, uint32 dir, uint64 creation)
{
	const NvmReplayTable *table = nvm_replay_find(((Base *) arg)->map, dir);

	return table != NULL && table->creation == creation;
}

static void
load_row(void *arg, uint32 dir, uint64 creation, const NvmLogRow *first, const NvmLogRow *row)
{
	Base	   *base = arg;

	nvm_replay_load_row(base->load, nvm_replay_find(base->map, dir), first);
}

static void
play(Told *shared, const NvmReplayMap *map, NvmVlogBase *base, NvmLogPosition end,
	 bool transactions)
{
	NvmVlogStream *stream = nvm_vlog_stream_open(base->begin, end);
	NvmVlogStreamRecord record;

	while (nvm_vlog_stream_next(stream, &record))
	{
		if (record.kind == NVM_LOG_OUTCOME || record.xid == 0 ||
			nvm_vlog_snapshot_shows(base->snapshot, record.xid))
			continue;
		if (transactions)
			StartTransactionCommand();
		if (record.kind == NVM_LOG_COMMIT || TransactionIdDidCommit((TransactionId) record.xid))
		{
			nvm_vlog_stream_body(stream, &record);
			nvm_replay_values(map, &record.body, &shared->count);
			shared->records++;
		}
		if (transactions)
			CommitTransactionCommand();
	}
	nvm_vlog_stream_close(stream);
}

static void
replay(Told *shared, MemoryContext context)
{
	NvmReplayMap *map;
	NvmReplayMap *made;
	NvmVlogBase *base;
	Base		arg;
	uint64		bytes;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) nvm_replay_copy_drop(shared->schema);
	made = nvm_replay_copy_make(shared->schema);
	if (made->size > MAX_MAP)
		elog(ERROR, "the map is too large for this test");
	map = MemoryContextAlloc(context, made->size);
	memcpy(map, made, made->size);
	memcpy(shared->map, made, made->size);
	PopActiveSnapshot();
	CommitTransactionCommand();

	MemoryContextSwitchTo(context);
	nvm_vlog_pin();
	base = nvm_vlog_base_open();
	arg.map = map;
	arg.load = nvm_replay_load_begin(map, context);
	nvm_vlog_base_rows(base, is_wanted, load_row, &arg);
	nvm_replay_load_end(arg.load, &shared->loaded, &bytes);

	/* what is played may write to the copy alone */
	nvm_command_replaying = true;
	nvm_replay_redirect(map);
	MemoryContextSwitchTo(context);
	play(shared, map, base, nvm_log_persistent(), true);
	nvm_vlog_base_close(base);
	nvm_vlog_unpin();
}

void
nvm_copy_main(Datum main_arg)
{
	dsm_segment *segment;
	Told	   *shared;
	MemoryContext context;

	BackgroundWorkerUnblockSignals();
	CurrentResourceOwner = ResourceOwnerCreate(NULL, "nvm_copy");
	segment = dsm_attach(DatumGetUInt32(main_arg));
	if (segment == NULL)
		return;
	dsm_pin_mapping(segment);
	shared = dsm_segment_address(segment);
	CurrentResourceOwner = NULL;
	BackgroundWorkerInitializeConnectionByOid(shared->database, InvalidOid, 0);
	context = AllocSetContextCreate(TopMemoryContext, "nvm_copy", ALLOCSET_DEFAULT_SIZES);
	PG_TRY();
	{
		replay(shared, context);
		shared->done = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		snprintf(shared->error, sizeof(shared->error), "%s\n%s\n%s", error->message,
				 error->detail ? error->detail : "", error->hint ? error->hint : "");
		PG_RE_THROW();
	}
	PG_END_TRY();
}

static void
run_worker(dsm_segment *segment)
{
	BackgroundWorker worker = {
		.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_restart_time = BGW_NEVER_RESTART,
		.bgw_main_arg = UInt32GetDatum(dsm_segment_handle(segment)),
		.bgw_notify_pid = MyProcPid
	};
	BackgroundWorkerHandle *handle;
	Dl_info		info;

	if (dladdr((void *) run_worker, &info) == 0 ||
		strlen(info.dli_fname) >= sizeof(worker.bgw_library_name))
		elog(ERROR, "the path of this library is too long for a background worker");
	strlcpy(worker.bgw_library_name, info.dli_fname, sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "nvm_copy_main", sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "nvm_copy", sizeof(worker.bgw_name));
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		elog(ERROR, "no background worker is free");
	if (WaitForBackgroundWorkerShutdown(handle) != BGWH_STOPPED)
		elog(ERROR, "the background worker has not ended");
}

Datum
nvm_copy_replay(PG_FUNCTION_ARGS)
{
	dsm_segment *segment = dsm_create(sizeof(Told), 0);
	Told	   *shared = dsm_segment_address(segment);
	TupleDesc	desc;
	Datum		values[7];
	bool		nulls[7] = {0};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "no record is wanted");
	memset(shared, 0, sizeof(Told));
	shared->database = MyDatabaseId;
	text_to_cstring_buffer(PG_GETARG_TEXT_PP(0), shared->schema, NAMEDATALEN);
	run_worker(segment);
	values[0] = CStringGetTextDatum(shared->error[0] == '\0' ? "the worker has died" : shared->error);
	nulls[0] = shared->done;
	values[1] = Int64GetDatum((int64) shared->loaded);
	values[2] = Int64GetDatum((int64) shared->records);
	values[3] = Int64GetDatum((int64) shared->count.inserted);
	values[4] = Int64GetDatum((int64) shared->count.updated);
	values[5] = Int64GetDatum((int64) shared->count.deleted);
	values[6] = PointerGetDatum(to_bytea((NvmReplayMap *) shared->map));
	dsm_detach(segment);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

Datum
nvm_copy_play(PG_FUNCTION_ARGS)
{
	NvmReplayMap *map = from_bytea(PG_GETARG_BYTEA_PP(0));
	Told	   *shared = palloc0(sizeof(Told));
	NvmVlogBase *base;
	TupleDesc	desc;
	Datum		values[4];
	bool		nulls[4] = {0};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "no record is wanted");
	nvm_vlog_pin();
	PG_TRY();
	{
		base = nvm_vlog_base_open();
		play(shared, map, base, nvm_log_persistent(), false);
		nvm_vlog_base_close(base);
	}
	PG_FINALLY();
	{
		nvm_vlog_unpin();
	}
	PG_END_TRY();
	values[0] = Int64GetDatum((int64) shared->records);
	values[1] = Int64GetDatum((int64) shared->count.inserted);
	values[2] = Int64GetDatum((int64) shared->count.updated);
	values[3] = Int64GetDatum((int64) shared->count.deleted);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
