/*-------------------------------------------------------------------------
 *
 * nvm_stat_row.h
 *	  What functions behind views return: stat_funcs.c, for the others.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_STAT_ROW_H
#define NVM_STAT_ROW_H

#include "fmgr.h"

/* one row of the function's result type */
extern Datum nvm_stat_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls);

#endif							/* NVM_STAT_ROW_H */
