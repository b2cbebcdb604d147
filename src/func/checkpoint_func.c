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
#include "funcapi.h"
#include "log/nvm_log.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "vlog/nvm_vlog.h"
#include "xact/nvm_storage.h"

PG_FUNCTION_INFO_V1(nvm_checkpoint);
PG_FUNCTION_INFO_V1(nvm_checkpoints_info);

#define CHECKPOINTS_COLUMNS		10

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
	nvm_vlog_checkpoint();
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
	Datum		values[CHECKPOINTS_COLUMNS] = {0};
	bool		nulls[CHECKPOINTS_COLUMNS] = {0};

	values[0] = Int64GetDatum((int64) info->number);
	values[1] = CStringGetTextDatum(state_name(info->state));
	values[2] = TimestampTzGetDatum(info->started);
	values[3] = TimestampTzGetDatum(info->finished);
	nulls[3] = info->finished == 0;
	values[4] = Int64GetDatum((int64) info->begin);
	values[5] = Int64GetDatum((int64) info->rows);
	values[6] = Int64GetDatum((int64) info->bytes);
	values[7] = Int64GetDatum((int64) info->files);
	values[8] = Int64GetDatum((int64) info->blocks);
	values[9] = Int64GetDatum((int64) info->blocks_total);
	nulls[8] = nulls[9] = info->state != NVM_CHECKPOINT_RUNNING;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
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
