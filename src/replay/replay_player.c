/*-------------------------------------------------------------------------
 *
 * replay_player.c
 *	  A process that plays records, with others.
 *
 * Each player reads all of the log, claims the number that comes next, waits until what has
 * to come before is done, and plays the record.  README.md, "Players".  Which records have
 * numbers depends on the log and on the plan alone, so all players count alike.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "command/nvm_command.h"
#include "command/nvm_command_replay.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_region.h"
#include "replay/nvm_replay_copy.h"
#include "replay/nvm_replay_rows.h"
#include "replay/replay_impl.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_calls.h"
#include "verify/nvm_verify_log.h"
#include "vlog/nvm_vlog_stream.h"
#include "wbl/nvm_rebuild_stamp.h"

typedef struct Player
{
	const NvmReplayPlan *plan;
	const NvmReplayMap *map;
	const NvmLogSnapshot *base; /* S1 */
	const NvmLogSnapshot *last; /* S2 */
	NvmReplayOrder *order;
	NvmVlogStream *stream;
	MemoryContext context;		/* of one record */
	uint64		number;			/* of the record that was read last */
	int			which;			/* among the players of this run */
} Player;

/* what a record has for us */
typedef struct Found
{
	NvmVlogStreamRecord record;
	bool		has_section;
	NvmLogSection section;
	NvmLogLanes lanes;			/* if it has a section */
} Found;

/* ---- which records ---- */

/*
 * Has the record rows of tables that are copied?
 */
static bool
has_our_rows(Player *player, const NvmLogWalk *body)
{
	NvmLogWalk	walk = *body;
	NvmLogSection section;

	while (nvm_log_next_storage(&walk, &section))
	{
		if (nvm_replay_find(player->map, section.dir) != NULL)
			return true;
	}
	return false;
}

static int
compare_positions(const void *a, const void *b)
{
	NvmLogPosition x = *(const NvmLogPosition *) a;
	NvmLogPosition y = *(const NvmLogPosition *) b;

	return x < y ? -1 : x > y;
}

/*
 * After a loss, of a record that S1 does not show.  Whether a transaction of an earlier life
 * has committed was asked once: its xid may be somebody else's by now.
 */
static bool
has_committed(Player *player, const NvmVlogStreamRecord *record)
{
	const NvmReplayPlan *plan = player->plan;

	return record->kind != NVM_LOG_ASK ||
		bsearch(&record->begin, (const char *) plan + plan->asked, plan->nasked,
				sizeof(NvmLogPosition), compare_positions) != NULL;
}

/*
 * Is the record of a transaction that S2 shows, and S1 does not?
 */
static bool
is_wanted(Player *player, const NvmVlogStreamRecord *record)
{
	if (record->kind == NVM_LOG_OUTCOME)
		return false;
	if (player->plan->recover)
		return (record->xid == 0 || !nvm_vlog_snapshot_shows(player->base, record->xid)) &&
			has_committed(player, record);
	if (record->xid == 0)
		return true;
	if (nvm_vlog_snapshot_shows(player->base, record->xid) ||
		!nvm_vlog_snapshot_shows(player->last, record->xid))
		return false;
	return record->kind != NVM_LOG_ASK ||
		TransactionIdDidCommit(XidFromFullTransactionId(FullTransactionIdFromU64(record->xid)));
}

/*
 * Read on to the next record that has a number.  False: there is none.
 */
static bool
read_next(Player *player, Found *found)
{
	const NvmReplayPlan *plan = player->plan;

	while (nvm_vlog_stream_next(player->stream, &found->record))
	{
		CHECK_FOR_INTERRUPTS();
		if (!is_wanted(player, &found->record))
			continue;
		nvm_vlog_stream_body(player->stream, &found->record);
		found->has_section = (found->record.flags & NVM_LOG_CALLS) != 0 &&
			nvm_log_find_calls(&found->record.body, &found->section);
		if (found->has_section && found->section.creation != plan->database)
			continue;
		if (!found->has_section && !has_our_rows(player, &found->record.body))
			continue;
		if (found->record.xid == 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the log has rows from before a function was registered"),
					 errdetail("The record at position %llu does not say of which transaction it is.",
							   (unsigned long long) found->record.begin),
					 errhint("Call nvm.checkpoint(), let the application work, and try again.")));
		if (found->has_section)
		{
			if (plan->upto != 0 && NVM_LOG_CALLS_OF(&found->section)->timestamp > plan->upto)
				return false;
			nvm_log_lanes_of(&found->section, &found->lanes);
		}
		player->number++;
		return true;
	}
	return false;
}

/* ---- playing ---- */

static void
count(pg_atomic_uint64 *counter, uint64 n)
{
	pg_atomic_fetch_add_u64(counter, n);
}

/*
 * Plans lock the originals.  So the copies are locked as long as the process lives: nobody
 * drops one that a call works on.
 */
static void
lock_copies(const NvmReplayMap *map)
{
	LockRelId	id = {.dbId = MyDatabaseId};

	for (int i = 0; i < map->ntables; i++)
	{
		id.relId = map->tables[i].copy;
		LockRelationIdForSession(&id, RowExclusiveLock);
	}
	for (int i = 0; i < map->nindexes; i++)
	{
		id.relId = nvm_replay_indexes(map)[i].copy;
		LockRelationIdForSession(&id, RowExclusiveLock);
	}
}

static void
differs(const Player *player, const Found *found, const NvmReplayed *played)
{
	NvmReplayFailure failure = {0};

	/* after a loss the leader asks whether it was for lack of something */
	failure.sqlerrcode = player->plan->recover ? played->sqlerrcode : ERRCODE_DATA_CORRUPTED;
	failure.differs = true;
	failure.position = found->record.begin;
	failure.function = played->function;
	strlcpy(failure.message, played->message, sizeof(failure.message));
	if (played->detail != NULL)
		strlcpy(failure.detail, played->detail, sizeof(failure.detail));
	if (played->call != NULL)
		strlcpy(failure.call, played->call, sizeof(failure.call));
	nvm_replay_note_failure(&failure);
}

static bool
play_calls(Player *player, const Found *found)
{
	NvmReplayed played = {0};

	/*
	 * calls without a common lane may lock rows of shared tables in another
	 * order
	 */
	for (;;)
	{
		nvm_command_replay(&found->section, &played);
		if (!played.failed || played.sqlerrcode != ERRCODE_T_R_DEADLOCK_DETECTED ||
			nvm_replay_is_over())
			break;
		/* the abort has released them */
		lock_copies(player->map);
	}
	if (played.failed)
	{
		differs(player, found, &played);
		return false;
	}
	count(&NvmReplay->counts.call_records, 1);
	count(&NvmReplay->counts.calls, played.ncalls);
	return true;
}

static void
play_values(Player *player, Found *found)
{
	NvmReplayCount rows = {0};

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	nvm_replay_values(player->map, &found->record.body, &rows);
	PopActiveSnapshot();
	CommitTransactionCommand();
	count(&NvmReplay->counts.value_rows, rows.inserted + rows.updated + rows.deleted);
}

/*
 * Are its calls made again?  A recovery makes those alone for which there are no rows: others
 * are of functions that nobody has promoted.
 */
static bool
is_called(Player *player, const Found *found)
{
	return found->has_section && !found->lanes.by_values &&
		(!player->plan->recover || (found->record.flags & NVM_LOG_ALONE) != 0);
}

/*
 * The record that was claimed has come.  False: the replay is to end.
 */
static bool
play(Player *player, Found *found, const NvmReplayWaits *waits)
{
	NvmReplayCounts *counts = &NvmReplay->counts;
	MemoryContext old;
	bool		done = true;

	if (!nvm_replay_wait(player->number, waits))
		return false;
	nvm_replay_position = found->record.begin;
	if (player->plan->recover)
		nvm_log_note_playing(MyDatabaseId, player->which, found->record.begin);
	old = MemoryContextSwitchTo(player->context);
	if (is_called(player, found))
		done = play_calls(player, found);
	else
		play_values(player, found);
	MemoryContextSwitchTo(old);
	MemoryContextReset(player->context);
	if (!done)
		return false;
	count(&counts->records, 1);
	if (waits->alone)
		count(&counts->alone, 1);
	else if (found->lanes.n > 1)
		count(&counts->many_lanes, 1);
	if (found->has_section)
		pg_atomic_write_u64(&counts->last_time,
							(uint64) NVM_LOG_CALLS_OF(&found->section)->timestamp);
	pg_atomic_write_u64(&counts->bytes, found->record.end - player->plan->begin);
	nvm_replay_position = 0;
	if (player->plan->recover)
		nvm_log_note_playing(MyDatabaseId, player->which, 0);
	nvm_replay_done(player->number);
	if (player->plan->recover)
		NVM_FAILPOINT("recover-record");
	return true;
}

static void
play_all(Player *player)
{
	for (;;)
	{
		uint64		mine = nvm_replay_claim();
		NvmReplayWaits waits;
		Found		found;

		if (mine == 0)
			return;
		do
		{
			if (!read_next(player, &found))
				return;
			nvm_replay_order_next(player->order, player->number,
								  found.has_section ? &found.lanes : NULL,
								  player->number == mine ? &waits : NULL);
		} while (player->number < mine);
		if (!play(player, &found, &waits))
			return;
	}
}

/* ---- the process ---- */

static void
open_log(Player *player, const NvmReplayPlan *plan)
{
	memset(player, 0, sizeof(*player));
	player->plan = plan;
	player->base = (const NvmLogSnapshot *) ((const char *) plan + plan->base);
	player->last = plan->last == 0 ? NULL : (const NvmLogSnapshot *) ((const char *) plan + plan->last);
	player->map = (const NvmReplayMap *) ((const char *) plan + plan->map);
	player->stream = nvm_vlog_stream_open(plan->begin, plan->end);
}

/*
 * See replay_impl.h.
 */
uint64
nvm_replay_count_records(const NvmReplayPlan *plan)
{
	Player		player;
	Found		found;

	open_log(&player, plan);
	while (read_next(&player, &found))
		;
	nvm_vlog_stream_close(player.stream);
	return player.number;
}

static void
prepare(Player *player, const NvmReplayPlan *plan)
{
	open_log(player, plan);
	player->order = nvm_replay_order_begin();
	player->context = AllocSetContextCreate(TopMemoryContext, "nvm replay record",
											ALLOCSET_DEFAULT_SIZES);
	lock_copies(player->map);
	if (plan->recover)
	{
		nvm_log_replays = true;
		/* what fitted the memory before the loss may take a little more now */
		(void) nvm_region_use_reserve(NVM_REBUILT_ROWS);
		nvm_rebuild_take_slot();
		nvm_replay_stay(player->map);
	}
	else
		nvm_replay_redirect(player->map);
	nvm_command_replaying = true;
	nvm_command_replay_number = pg_atomic_read_u64(&NvmReplay->counts.started);
}

/* has the player done what it could, or reported why not? */
static bool has_come_to_end = false;

/*
 * PostgreSQL has aborted what was under way.  What was replayed after a loss is there for
 * everybody from now on, however the process ends: somebody may be content with it.
 */
static void
leave(int code, Datum arg)
{
	ConditionVariableCancelSleep();
	if (nvm_log_replays)
	{
		nvm_log_note_playing(MyDatabaseId, DatumGetInt32(arg), 0);
		NVM_FAILPOINT("recover-settle");
	}
	has_come_to_end &= nvm_rebuild_settle_slot();
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
	nvm_replay_player_ends(DatumGetInt32(arg), has_come_to_end);
}

static void
play_or_fail(const NvmReplayPlan *plan, int which)
{
	Player		player;

	PG_TRY();
	{
		prepare(&player, plan);
		player.which = which;
		play_all(&player);
		nvm_vlog_stream_close(player.stream);
	}
	PG_CATCH();
	{
		nvm_replay_failed();
	}
	PG_END_TRY();
	has_come_to_end = true;
}

/*
 * Entry point of a player.
 */
void
nvm_replay_player_main(Datum main_arg)
{
	dsm_segment *segment;
	const NvmReplayPlan *plan;

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	CurrentResourceOwner = ResourceOwnerCreate(NULL, "nvm replay");
	segment = dsm_attach((dsm_handle) (uint64) DatumGetInt64(main_arg));
	if (segment == NULL)
		proc_exit(0);
	dsm_pin_mapping(segment);
	plan = dsm_segment_address(segment);
	nvm_replay_run_number = plan->run;
	if (!nvm_replay_player_begins())
		proc_exit(0);
	before_shmem_exit(leave, Int32GetDatum((int32) (DatumGetInt64(main_arg) >> 32)));
	BackgroundWorkerInitializeConnectionByOid(plan->database, InvalidOid,
											  plan->recover ? BGWORKER_BYPASS_ALLOWCONN : 0);

	/*
	 * what it plays is in the log already, and the copy does not outlive a
	 * crash
	 */
	nvm_replay_set_own();
	SetConfigOption("synchronous_commit", "off", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_isolation", "read committed", PGC_SUSET, PGC_S_OVERRIDE);
	pgstat_report_activity(STATE_RUNNING, "replay of the command log");
	play_or_fail(plan, (int) (DatumGetInt64(main_arg) >> 32));
	proc_exit(0);
}
