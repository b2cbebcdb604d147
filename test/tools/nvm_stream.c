/*-------------------------------------------------------------------------
 *
 * nvm_stream.c
 *	  For tests of checkpoints: reads one, and the log behind it, as src/vlog/nvm_vlog_stream.h
 *	  has others do.
 *
 *	CREATE FUNCTION nvm_stream_pin() RETURNS void AS '.../nvm_stream' LANGUAGE C;
 *	CREATE FUNCTION nvm_stream_unpin() RETURNS void AS '.../nvm_stream' LANGUAGE C;
 *	CREATE FUNCTION nvm_stream_base(OUT number bigint, OUT "begin" bigint, OUT decided bigint,
 *		OUT "end" bigint, OUT xmin bigint, OUT xmax bigint, OUT xip bigint[])
 *		AS '.../nvm_stream' LANGUAGE C;
 *	CREATE FUNCTION nvm_stream_shows(bigint) RETURNS bool AS '.../nvm_stream' LANGUAGE C STRICT;
 *	CREATE FUNCTION nvm_stream_rows(which int, OUT storage int, OUT creation bigint, OUT block bigint,
 *		OUT cell int, OUT pieces int, OUT bytes bigint, OUT a int, OUT b int)
 *		RETURNS SETOF record AS '.../nvm_stream' LANGUAGE C STRICT;
 *	CREATE FUNCTION nvm_stream_records("from" bigint, upto bigint, bodies bool, OUT "begin" bigint,
 *		OUT "end" bigint, OUT generation int, OUT kind text, OUT side bool, OUT number bigint,
 *		OUT xid bigint, OUT storages int[], OUT "rows" int, OUT gone int, OUT bytes bigint)
 *		RETURNS SETOF record AS '.../nvm_stream' LANGUAGE C STRICT;
 *
 *	CREATE FUNCTION nvm_stream_changes("from" bigint, upto bigint, OUT "end" bigint,
 *		OUT generation int, OUT kind text, OUT number bigint, OUT xid bigint, OUT storage int,
 *		OUT block bigint, OUT cell int, OUT gone bool, OUT a int, OUT b int)
 *		RETURNS SETOF record AS '.../nvm_stream' LANGUAGE C STRICT;
 *
 * "which" is a storage, or 0: all.  `a` and `b` are the first two columns of a row, which are of
 * type int and not null.  "bytes" are those of the row's large values; of a record, of all it
 * has.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "verify/nvm_verify_log.h"
#include "vlog/nvm_vlog_stream.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(nvm_stream_pin);
PG_FUNCTION_INFO_V1(nvm_stream_unpin);
PG_FUNCTION_INFO_V1(nvm_stream_base);
PG_FUNCTION_INFO_V1(nvm_stream_shows);
PG_FUNCTION_INFO_V1(nvm_stream_rows);
PG_FUNCTION_INFO_V1(nvm_stream_records);
PG_FUNCTION_INFO_V1(nvm_stream_changes);

Datum
nvm_stream_pin(PG_FUNCTION_ARGS)
{
	nvm_vlog_pin();
	PG_RETURN_VOID();
}

Datum
nvm_stream_unpin(PG_FUNCTION_ARGS)
{
	nvm_vlog_unpin();
	PG_RETURN_VOID();
}

static Datum
form_array(Datum *value, int n, Oid type, int length)
{
	return PointerGetDatum(construct_array(value, n, type, length, true,
										   length == 8 ? TYPALIGN_DOUBLE : TYPALIGN_INT));
}

Datum
nvm_stream_base(PG_FUNCTION_ARGS)
{
	NvmVlogBase *base = nvm_vlog_base_open();
	Datum	   *xip = palloc((base->snapshot->nxip + 1) * sizeof(Datum));
	Datum		values[7];
	bool		nulls[7] = {0};
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "no record is wanted");
	for (uint32 i = 0; i < base->snapshot->nxip; i++)
		xip[i] = Int64GetDatum((int64) NVM_LOG_SNAPSHOT_XIP(base->snapshot)[i]);
	values[0] = Int64GetDatum((int64) base->number);
	values[1] = Int64GetDatum((int64) base->begin);
	values[2] = Int64GetDatum((int64) base->decided);
	values[3] = Int64GetDatum((int64) base->end);
	values[4] = Int64GetDatum((int64) base->snapshot->xmin);
	values[5] = Int64GetDatum((int64) base->snapshot->xmax);
	values[6] = form_array(xip, (int) base->snapshot->nxip, INT8OID, 8);
	nvm_vlog_base_close(base);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

Datum
nvm_stream_shows(PG_FUNCTION_ARGS)
{
	NvmVlogBase *base = nvm_vlog_base_open();
	bool		shows = nvm_vlog_snapshot_shows(base->snapshot, (uint64) PG_GETARG_INT64(0));

	nvm_vlog_base_close(base);
	PG_RETURN_BOOL(shows);
}

/* ---- rows ---- */

typedef struct Wanted
{
	ReturnSetInfo *result;
	uint32		only;
} Wanted;

static bool
is_wanted(void *arg, uint32 dir, uint64 creation)
{
	Wanted	   *wanted = arg;

	return wanted->only == 0 || wanted->only == dir;
}

/*
 * A column of a row, as many ints before it.
 */
static int32
int_of(const NvmLogRow *row, int column)
{
	const char *tuple = NVM_LOG_ROW_TUPLE(row);
	uint8		begin = ((const uint8 *) tuple)[4];
	int32		value;

	memcpy(&value, tuple + begin - NVM_LOG_TUPLE_SKIPS + column * sizeof(value), sizeof(value));
	return value;
}

static void
add_row(void *arg, uint32 dir, uint64 creation, const NvmLogRow *first, const NvmLogRow *row)
{
	Wanted	   *wanted = arg;
	NvmLogPieces pieces;
	const NvmLogRow *item;
	uint64		bytes = 0;
	int			npieces = 0;
	Datum		values[8];
	bool		nulls[8] = {0};

	nvm_log_pieces_begin(&pieces, first);
	while ((item = nvm_log_pieces_next(&pieces)) != row)
	{
		bytes += nvm_log_item_length(item);
		npieces++;
	}
	if (nvm_log_is_packed(row))
		elog(ERROR, "a row of a data file is packed");
	values[0] = Int32GetDatum((int32) dir);
	values[1] = Int64GetDatum((int64) creation);
	values[2] = Int64GetDatum((int64) row->block);
	values[3] = Int32GetDatum(row->offset);
	values[4] = Int32GetDatum(npieces);
	values[5] = Int64GetDatum((int64) bytes);
	values[6] = Int32GetDatum(int_of(row, 0));
	values[7] = Int32GetDatum(int_of(row, 1));
	tuplestore_putvalues(wanted->result->setResult, wanted->result->setDesc, values, nulls);
}

Datum
nvm_stream_rows(PG_FUNCTION_ARGS)
{
	Wanted		wanted = {.only = (uint32) PG_GETARG_INT32(0)};
	NvmVlogBase *base;

	InitMaterializedSRF(fcinfo, 0);
	wanted.result = (ReturnSetInfo *) fcinfo->resultinfo;
	base = nvm_vlog_base_open();
	nvm_vlog_base_rows(base, is_wanted, add_row, &wanted);
	nvm_vlog_base_close(base);
	return (Datum) 0;
}

/* ---- records ---- */

static const char *
kind_of(const NvmVlogStreamRecord *record)
{
	if (record->kind == NVM_LOG_OUTCOME)
		return (record->flags & NVM_LOG_COMMITTED) != 0 ? "OUTCOME committed" : "OUTCOME aborted";
	return record->kind == NVM_LOG_ASK ? "ASK" : "COMMIT";
}

static void
add_record(ReturnSetInfo *result, const NvmVlogStreamRecord *record)
{
	NvmLogWalk	storages = record->body;
	NvmLogSection storage;
	Datum	   *dir = palloc((Size) (storages.end - storages.at + 1) * sizeof(Datum));
	int			ndirs = 0;
	int32		nrows = 0;
	int32		ngone = 0;
	Datum		values[11];
	bool		nulls[11] = {0};

	while (nvm_log_next_storage(&storages, &storage))
	{
		const NvmLogRow *row;
		NvmLogWalk	rows;

		if (ndirs == 0 || DatumGetInt32(dir[ndirs - 1]) != (int32) storage.dir)
			dir[ndirs++] = Int32GetDatum((int32) storage.dir);
		nvm_log_walk_rows(&rows, &storage);
		while (nvm_log_next_row(&rows, &row))
		{
			if (row->length == 0)
				ngone++;
			else
				nrows++;
		}
	}
	values[0] = Int64GetDatum((int64) record->begin);
	values[1] = Int64GetDatum((int64) record->end);
	values[2] = Int32GetDatum((int32) record->generation);
	values[3] = CStringGetTextDatum(kind_of(record));
	values[4] = BoolGetDatum(record->kind != NVM_LOG_OUTCOME && (record->flags & NVM_LOG_SIDE) != 0);
	values[5] = Int64GetDatum((int64) record->number);
	values[6] = Int64GetDatum((int64) record->xid);
	values[7] = form_array(dir, ndirs, INT4OID, 4);
	values[8] = Int32GetDatum(nrows);
	values[9] = Int32GetDatum(ngone);
	values[10] = Int64GetDatum((int64) (record->body.end - record->body.at));
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	pfree(dir);
}

Datum
nvm_stream_records(PG_FUNCTION_ARGS)
{
	bool		bodies = PG_GETARG_BOOL(2);
	NvmVlogStream *stream;
	NvmVlogStreamRecord record;

	InitMaterializedSRF(fcinfo, 0);
	stream = nvm_vlog_stream_open((NvmLogPosition) PG_GETARG_INT64(0),
								  (NvmLogPosition) PG_GETARG_INT64(1));
	while (nvm_vlog_stream_next(stream, &record))
	{
		if (bodies)
			nvm_vlog_stream_body(stream, &record);
		add_record((ReturnSetInfo *) fcinfo->resultinfo, &record);
	}
	nvm_vlog_stream_close(stream);
	return (Datum) 0;
}

/* ---- the rows of records ---- */

static void
add_change(ReturnSetInfo *result, const NvmVlogStreamRecord *record, uint32 dir, const NvmLogRow *row)
{
	Datum		values[11];
	bool		nulls[11] = {0};

	if (nvm_log_is_packed(row))
		elog(ERROR, "a row is packed: nvm.log_compression is to be off");
	values[0] = Int64GetDatum((int64) record->end);
	values[1] = Int32GetDatum((int32) record->generation);
	values[2] = CStringGetTextDatum(kind_of(record));
	values[3] = Int64GetDatum((int64) record->number);
	values[4] = Int64GetDatum((int64) record->xid);
	values[5] = Int32GetDatum((int32) dir);
	values[6] = Int64GetDatum((int64) row->block);
	values[7] = Int32GetDatum(row->offset);
	values[8] = BoolGetDatum(row->length == 0);
	nulls[9] = nulls[10] = row->length == 0;
	if (row->length != 0)
	{
		values[9] = Int32GetDatum(int_of(row, 0));
		values[10] = Int32GetDatum(int_of(row, 1));
	}
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

Datum
nvm_stream_changes(PG_FUNCTION_ARGS)
{
	NvmVlogStream *stream;
	NvmVlogStreamRecord record;

	InitMaterializedSRF(fcinfo, 0);
	stream = nvm_vlog_stream_open((NvmLogPosition) PG_GETARG_INT64(0),
								  (NvmLogPosition) PG_GETARG_INT64(1));
	while (nvm_vlog_stream_next(stream, &record))
	{
		NvmLogSection storage;

		nvm_vlog_stream_body(stream, &record);
		while (nvm_log_next_storage(&record.body, &storage))
		{
			const NvmLogRow *row;
			NvmLogWalk	rows;

			nvm_log_walk_rows(&rows, &storage);
			while (nvm_log_next_row(&rows, &row))
				add_change((ReturnSetInfo *) fcinfo->resultinfo, &record, storage.dir, row);
		}
	}
	nvm_vlog_stream_close(stream);
	return (Datum) 0;
}
