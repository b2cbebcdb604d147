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

/* ---- databases whose calls are replayed: vlog_play.c ---- */

/* what of the log is to be replayed in a database */
typedef struct NvmVlogToPlay
{
	Oid			database;
	NvmLogPosition begin;		/* of the checkpoint */
	NvmLogPosition end;
	const struct NvmLogSnapshot *snapshot;	/* which transactions it has */
	const NvmLogPosition *asked;	/* where ASK records begin whose
									 * transactions have committed; ascending */
	uint64		nasked;
} NvmVlogToPlay;

typedef enum NvmVlogPlayed
{
	NVM_VLOG_PLAYED,			/* all of it; no process is at it any more */
	NVM_VLOG_STOPPED,			/* it came to something else, which
								 * nvm_log_replay_tell has been told */
	NVM_VLOG_INTERRUPTED		/* a process was ended: to be begun anew */
} NvmVlogPlayed;

/*
 * Who replays says so in _PG_init: into the tables, which have the rows of the checkpoint, and
 * are closed to everybody else.  Called by the recovery worker, outside of any transaction;
 * calls `pause` all the time, which may end the process.
 */
typedef NvmVlogPlayed (*NvmVlogPlayer) (const NvmVlogToPlay *what, void (*pause) (long ms));

/* stop: after an ERROR in it, end what it has begun; cannot fail */
extern void nvm_vlog_register_player(NvmVlogPlayer player, void (*stop) (void));

/* ---- checkpoints: vlog_checkpoint.c ---- */

extern PGDLLEXPORT void nvm_checkpointer_main(Datum main_arg);

extern void nvm_vlog_define_settings(void);
extern Size nvm_vlog_shmem_size(void);
extern void nvm_vlog_shmem_startup(void);

/*
 * Have a checkpoint that begins from now on, and wait until it is usable.  ERROR if it
 * fails.
 */
extern void nvm_vlog_checkpoint(bool urgent);

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
