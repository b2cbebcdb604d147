/*-------------------------------------------------------------------------
 *
 * replay_impl.h
 *	  What the files of this folder share: leader, players and who asks.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef REPLAY_IMPL_H
#define REPLAY_IMPL_H

#include "postgres.h"

#include "log/nvm_log.h"
#include "media/media_log.h"
#include "port/atomics.h"
#include "postmaster/bgworker.h"
#include "replay/nvm_replay.h"
#include "replay/nvm_replay_copy.h"
#include "storage/condition_variable.h"
#include "storage/dsm.h"
#include "storage/spin.h"
#include "verify/nvm_verify_calls.h"

/* ---- replay_order.c: what has to be done before a record ---- */

/* records that are done, or not, in a row behind which all are done */
#define NVM_REPLAY_RING		4096

#define NVM_REPLAY_MAX_WAITS	(NVM_LOG_MAX_LANES + 2)

typedef struct NvmReplayOrder NvmReplayOrder;

/* numbers of records, from 1 on, that one waits for */
typedef struct NvmReplayWaits
{
	bool		alone;			/* for all before it */
	int			n;
	uint64		record[NVM_REPLAY_MAX_WAITS];
} NvmReplayWaits;

extern NvmReplayOrder *nvm_replay_order_begin(void);

/*
 * Record `number` comes next, and has these lanes; NULL: nobody knows which.  waits (may be
 * NULL): for what.
 */
extern void nvm_replay_order_next(NvmReplayOrder *order, uint64 number, const NvmLogLanes *lanes,
								  NvmReplayWaits *waits);

/* ---- replay_shared.c ---- */

/*
 * The replay that runs, or has run last.  There is one at a time.  Processes of a run may
 * outlive it for a moment, so each names its run (request.run) when it comes here; of another
 * run it is told that all is over, and changes nothing.
 */
typedef struct NvmReplayShared
{
	slock_t		mutex;
	ConditionVariable changed;

	/* protected by mutex */
	NvmReplayRequest request;
	NvmReplayPhase phase;
	bool		cancel;			/* nobody wants it any more */
	bool		passed;
	bool		failed;
	NvmReplayFailure failure;
	uint64		done;			/* all records up to this number are done */
	bool		is_done[NVM_REPLAY_RING];	/* of those behind it, by number */
	uint64		next;			/* number of the record that is claimed next */
	int			nwaiting;		/* players that wait for others */
	int			nplaying;		/* players, of whatever run, that are there */
	bool		has_ended[NVM_REPLAY_MAX_PLAYERS];	/* by itself, each player */

	NvmReplayCounts counts;
} NvmReplayShared;

extern NvmReplayShared *NvmReplay;

/* the run that this process belongs to, set when it begins */
extern uint32 nvm_replay_run_number;

/* where the record begins that this process plays; 0: none */
extern NvmLogPosition nvm_replay_position;

/* the phase begins; ERROR if nobody wants the replay any more, as the second one has */
extern void nvm_replay_enter(NvmReplayPhase phase);
extern void nvm_replay_look(void);

/* note the current ERROR, or this failure, if it is the first; never fails */
extern void nvm_replay_note_error(void);
extern void nvm_replay_note_failure(const NvmReplayFailure *failure);

/* in PG_CATCH of leader or player: the ERROR is noted, and what it was in comes to its end */
extern void nvm_replay_failed(void);

/* all was done */
extern void nvm_replay_note_passed(void);

/* the run is at its end, if it is the one that runs */
extern void nvm_replay_end(uint32 run);

/* false: it is over already */
extern bool nvm_replay_player_begins(void);
extern void nvm_replay_player_ends(int player, bool by_itself);

/* is it to end? */
extern bool nvm_replay_is_over(void);

/* the number of the next record that nobody has claimed; 0: it is over */
extern uint64 nvm_replay_claim(void);

/* record number is done; wait until those before it are */
extern void nvm_replay_done(uint64 number);
extern bool nvm_replay_wait(uint64 number, const NvmReplayWaits *waits);

/* so many players are started; nplayers: 0: as the setting says */
extern int	nvm_replay_wanted_players(int nplayers);

/* limits and timeouts that somebody has set for users, or a database, do not hold here */
extern void nvm_replay_set_own(void);

/* register a worker of the current replay */
extern bool nvm_replay_start_worker(const char *name, const char *function, Oid database,
									Datum argument, BackgroundWorkerHandle **handle);

/* a recovery's replay that is interrupted so often, one time after the other, has stopped */
#define NVM_REPLAY_TRIES	5

/* ---- replay_check.c ---- */

/*
 * ERROR if a table was changed since the base, whose snapshot this is; if one has other storage
 * than the map says, the rows of which were hashed.  In a transaction.
 */
extern void nvm_replay_check_tables(const NvmReplayMap *map, const NvmLogSnapshot *base);
extern void nvm_replay_check_storages(const NvmReplayMap *map);

/* ---- replay_player.c ---- */

/* what the leader tells players, in a segment of its own */
typedef struct NvmReplayPlan
{
	uint32		run;
	Oid			database;
	NvmLogPosition begin;
	NvmLogPosition end;
	TimestampTz upto;			/* 0: all */
	bool		recover;
	Size		size;			/* of all */
	Size		base;			/* where S1 is, S2, and the tables; 0: none */
	Size		last;
	Size		map;
	Size		asked;			/* recover: NvmLogPosition, where ASK records
								 * begin that count, ascending */
	uint64		nasked;
} NvmReplayPlan;

/* records that the plan wants and that nobody has played, of how many in all */
extern uint64 nvm_replay_count_records(const NvmReplayPlan *plan);

/* ---- replay_shared.c ---- */

/* begin this run, if none runs; nvm_replay_run_number is its number then */
extern bool nvm_replay_begin(const NvmReplayRequest *request);

/* players, of whatever run, that are there */
extern int	nvm_replay_players(void);


#endif							/* REPLAY_IMPL_H */
