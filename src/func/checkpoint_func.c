/*-------------------------------------------------------------------------
 *
 * checkpoint_func.c
 *	  nvm.checkpoint(), and the function behind view nvm.checkpoints.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "func/nvm_stat_row.h"
#include "funcapi.h"
#include "log/nvm_log.h"
#include "utils/timestamp.h"
#include "vlog/nvm_vlog.h"
#include "xact/nvm_storage.h"

PG_FUNCTION_INFO_V1(nvm_checkpoint);
PG_FUNCTION_INFO_V1(nvm_checkpoints_info);

/*
 * nvm.checkpoint()
 */
Datum
nvm_checkpoint(PG_FUNCTION_ARGS)
{
	nvm_table_require();
	if (!nvm_log_is_on)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this server has no tables in memory that are logged")));
	nvm_vlog_checkpoint(false);
	PG_RETURN_VOID();
}

static const char *
state_name(NvmCheckpointState state)
{
	switch (state)
	{
		case NVM_CHECKPOINT_RUNNING:
			return "running";
		case NVM_CHECKPOINT_USABLE:
			return "usable";
		default:
			return "failed";
	}
}

static void
put_checkpoint(ReturnSetInfo *rsinfo, const NvmCheckpointInfo *info)
{
	NvmStatRow	row = {0};

	nvm_stat_count(&row, info->number);
	nvm_stat_text(&row, state_name(info->state));
	nvm_stat_datum(&row, TimestampTzGetDatum(info->started));
	nvm_stat_time(&row, info->finished);
	nvm_stat_count(&row, info->begin);
	nvm_stat_count(&row, info->rows);
	nvm_stat_count(&row, info->bytes);
	nvm_stat_count(&row, info->files);
	if (info->state == NVM_CHECKPOINT_RUNNING)
	{
		nvm_stat_count(&row, info->blocks);
		nvm_stat_count(&row, info->blocks_total);
	}
	else
		nvm_stat_nulls(&row, 2);
	nvm_stat_put(rsinfo, &row);
}

/*
 * nvm.checkpoints_info()
 */
Datum
nvm_checkpoints_info(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	NvmCheckpointInfo usable;
	NvmCheckpointInfo last;

	InitMaterializedSRF(fcinfo, 0);
	nvm_table_require();
	nvm_vlog_checkpoint_info(&usable, &last);
	if (usable.state != NVM_CHECKPOINT_NONE)
		put_checkpoint(rsinfo, &usable);
	if (last.state != NVM_CHECKPOINT_NONE && last.number > usable.number)
		put_checkpoint(rsinfo, &last);
	return (Datum) 0;
}
