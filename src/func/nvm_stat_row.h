/*-------------------------------------------------------------------------
 *
 * nvm_stat_row.h
 *	  Rows that the functions behind views return (stat_row.c).
 *
 * A row gets its columns one by one, from the left:
 *
 *		NvmStatRow	row = {0};
 *
 *		nvm_stat_text(&row, "open");
 *		nvm_stat_count(&row, 42);
 *		PG_RETURN_DATUM(nvm_stat_result(fcinfo, &row));
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_STAT_ROW_H
#define NVM_STAT_ROW_H

#include "datatype/timestamp.h"
#include "fmgr.h"
#include "nodes/execnodes.h"

#define NVM_STAT_COLUMNS	20	/* at most */

typedef struct NvmStatRow
{
	int			n;				/* columns that it has */
	Datum		values[NVM_STAT_COLUMNS];
	bool		nulls[NVM_STAT_COLUMNS];
} NvmStatRow;

/* the next column; null unless it has a value; so many that are null */
extern void nvm_stat_datum(NvmStatRow *row, Datum value);
extern void nvm_stat_datum_if(NvmStatRow *row, bool has_value, Datum value);
extern void nvm_stat_nulls(NvmStatRow *row, int n);

/* bigint */
extern void nvm_stat_count(NvmStatRow *row, uint64 value);

/* null if there is none, or if it is empty */
extern void nvm_stat_text(NvmStatRow *row, const char *text);

/* null if it is 0 */
extern void nvm_stat_time(NvmStatRow *row, TimestampTz time);

/* the one row of the function's result */
extern Datum nvm_stat_result(FunctionCallInfo fcinfo, const NvmStatRow *row);

/* one of several */
extern void nvm_stat_put(ReturnSetInfo *rsinfo, const NvmStatRow *row);

#endif							/* NVM_STAT_ROW_H */
