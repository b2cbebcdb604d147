/*-------------------------------------------------------------------------
 *
 * stat_row.c
 *	  Rows that the functions behind views return.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "func/nvm_stat_row.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

/* ---- columns, see nvm_stat_row.h ---- */

void
nvm_stat_datum_if(NvmStatRow *row, bool has_value, Datum value)
{
	Assert(row->n < NVM_STAT_COLUMNS);
	row->values[row->n] = value;
	row->nulls[row->n] = !has_value;
	row->n++;
}

void
nvm_stat_datum(NvmStatRow *row, Datum value)
{
	nvm_stat_datum_if(row, true, value);
}

void
nvm_stat_nulls(NvmStatRow *row, int n)
{
	while (n-- > 0)
		nvm_stat_datum_if(row, false, (Datum) 0);
}

void
nvm_stat_count(NvmStatRow *row, uint64 value)
{
	nvm_stat_datum(row, Int64GetDatum((int64) value));
}

void
nvm_stat_text(NvmStatRow *row, const char *text)
{
	if (text == NULL || text[0] == '\0')
		nvm_stat_nulls(row, 1);
	else
		nvm_stat_datum(row, CStringGetTextDatum(text));
}

void
nvm_stat_time(NvmStatRow *row, TimestampTz time)
{
	nvm_stat_datum_if(row, time != 0, TimestampTzGetDatum(time));
}

/* ---- rows ---- */

Datum
nvm_stat_result(FunctionCallInfo fcinfo, const NvmStatRow *row)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	Assert(row->n == desc->natts);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), (Datum *) row->values,
											 (bool *) row->nulls));
}

void
nvm_stat_put(ReturnSetInfo *rsinfo, const NvmStatRow *row)
{
	Assert(row->n == rsinfo->setDesc->natts);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, (Datum *) row->values,
						 (bool *) row->nulls);
}
