/*-------------------------------------------------------------------------
 *
 * nvm_replay.h
 *	  Replay of the command log into a copy.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_REPLAY_H
#define NVM_REPLAY_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "log/nvm_log.h"
#include "port/atomics.h"

#define NVM_REPLAY_SCHEMA		"nvm_rehearsal"
#define NVM_REPLAY_MAX_PLAYERS	NVM_LOG_PLAYERS

typedef enum NvmReplayPhase
{
	NVM_REPLAY_NONE,			/* there was none since the server has started */
	NVM_REPLAY_STARTING,
	NVM_REPLAY_COPY,			/* tables are made */
	NVM_REPLAY_BASE,			/* rows of the checkpoint are loaded */
	NVM_REPLAY_COUNT,			/* rows of the originals are hashed */
	NVM_REPLAY_PLAY,			/* records are played */
	NVM_REPLAY_COMPARE,			/* rows of the copy are hashed */
	NVM_REPLAY_ENDED
} NvmReplayPhase;

/* what is wanted */
typedef struct NvmReplayRequest
{
	uint32		run;			/* number of the replay, since the start */
	Oid			database;
	bool		rehearse;		/* compare with the originals */
	bool		keep;			/* the copy */
	bool		recover;		/* no copy: after a loss, into the tables */
	uint32		what;			/* then: dsm_handle of NvmReplayPlan */
	TimestampTz upto;			/* 0: all */
	int			nplayers;
	char		schema[NAMEDATALEN];	/* of the copy */
} NvmReplayRequest;

#define NVM_REPLAY_MESSAGE	512
#define NVM_REPLAY_CALL		1024

/* why it has failed */
typedef struct NvmReplayFailure
{
	int			sqlerrcode;
	bool		differs;		/* no ERROR of the replay itself: it came to
								 * something else */
	NvmLogPosition position;	/* of the record, or 0 */
	Oid			function;		/* of the call, or InvalidOid */
	char		message[NVM_REPLAY_MESSAGE];
	char		detail[NVM_REPLAY_MESSAGE];
	char		hint[NVM_REPLAY_MESSAGE];
	char		call[NVM_REPLAY_CALL];	/* as SQL, or "" */
} NvmReplayFailure;

/* how far it is, or what came of it */
typedef struct NvmReplayCounts
{
	pg_atomic_uint64 tables;
	pg_atomic_uint64 base_rows;
	pg_atomic_uint64 bytes;		/* of the log, read */
	pg_atomic_uint64 bytes_total;
	pg_atomic_uint64 records;	/* played, of all kinds */
	pg_atomic_uint64 call_records;
	pg_atomic_uint64 calls;
	pg_atomic_uint64 value_rows;	/* of other records */
	pg_atomic_uint64 many_lanes;	/* records with more than one lane */
	pg_atomic_uint64 alone;		/* that no other runs beside */
	pg_atomic_uint64 players;
	pg_atomic_uint64 started;	/* TimestampTz */
	pg_atomic_uint64 play_started;
	pg_atomic_uint64 play_ended;
	pg_atomic_uint64 ended;
	pg_atomic_uint64 last_time; /* timestamp of the last record that was
								 * played */
} NvmReplayCounts;

#define NVM_REPLAY_NCOUNTS	(sizeof(NvmReplayCounts) / sizeof(pg_atomic_uint64))

/* what a session is told */
typedef struct NvmReplayInfo
{
	NvmReplayPhase phase;
	NvmReplayRequest request;
	bool		passed;			/* all of it was done, and, in a rehearsal,
								 * compared */
	bool		failed;
	NvmReplayFailure failure;
	uint64		count[NVM_REPLAY_NCOUNTS];
} NvmReplayInfo;

#define NVM_REPLAY_COUNT_OF(info, which) \
	((info)->count[offsetof(NvmReplayCounts, which) / sizeof(pg_atomic_uint64)])

/*
 * Replay what the log has, and wait until that has ended.  ERROR if it cannot be done, or
 * another one runs; if it was done and something differs, info says so.
 */
extern void nvm_replay_run(const NvmReplayRequest *request, NvmReplayInfo *info);

extern void nvm_replay_info(NvmReplayInfo *info);
extern const char *nvm_replay_phase_name(NvmReplayPhase phase);

extern PGDLLEXPORT void nvm_replay_leader_main(Datum main_arg);
extern PGDLLEXPORT void nvm_replay_player_main(Datum main_arg);

/*
 * The replay of the database of this session, which a recovery has begun, has stopped: once
 * more, or end it with what was replayed.  Both wait until the tables are open; *what: what
 * was replayed, and given up.  ERROR if it has not stopped, or stops again.
 */
extern void nvm_replay_resume(struct NvmLogReplayed *what);
extern void nvm_replay_give_up(struct NvmLogReplayed *what);

/* startup.c */
extern void nvm_replay_register_player(void);
extern void nvm_replay_define_settings(void);
extern Size nvm_replay_shmem_size(void);
extern void nvm_replay_shmem_startup(void);

#endif							/* NVM_REPLAY_H */
