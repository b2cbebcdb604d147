/*-------------------------------------------------------------------------
 *
 * nvm_vlog.h
 *	  The volatile region: recovery from the log, and checkpoints.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_VLOG_H
#define NVM_VLOG_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "log/nvm_log.h"

/* in _PG_init: whoever asks for a log gets the workers, too */
extern void nvm_vlog_register(void);

extern PGDLLEXPORT void nvm_vlog_main(Datum main_arg);

/* ---- checkpoints: vlog_checkpoint.c ---- */

extern PGDLLEXPORT void nvm_checkpointer_main(Datum main_arg);

extern void nvm_vlog_define_settings(void);
extern Size nvm_vlog_shmem_size(void);
extern void nvm_vlog_shmem_startup(void);

/*
 * Have a checkpoint that begins from now on, and wait until it is usable.  ERROR if it
 * fails.
 */
extern void nvm_vlog_checkpoint(void);

typedef enum NvmCheckpointState
{
	NVM_CHECKPOINT_NONE,
	NVM_CHECKPOINT_RUNNING,
	NVM_CHECKPOINT_USABLE,
	NVM_CHECKPOINT_FAILED
} NvmCheckpointState;

typedef struct NvmCheckpointInfo
{
	NvmCheckpointState state;
	uint64		number;
	TimestampTz started;
	TimestampTz finished;		/* 0: not yet */
	NvmLogPosition begin;		/* the log is needed from there on */
	NvmLogPosition decided;
	NvmLogPosition end;
	uint64		rows;
	uint64		bytes;
	uint32		files;
	uint64		blocks;			/* looked at, of about so many; of the usable
								 * one 0 after a start */
	uint64		blocks_total;
} NvmCheckpointInfo;

/* the usable one; the last one that was begun in this run, if it is not that one */
extern void nvm_vlog_checkpoint_info(NvmCheckpointInfo *usable, NvmCheckpointInfo *last);

#endif							/* NVM_VLOG_H */
