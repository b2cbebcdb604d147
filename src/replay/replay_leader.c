/*-------------------------------------------------------------------------
 *
 * replay_leader.c
 *	  The process that leads a replay: makes the copy, starts players, compares.
 *
 * README.md, "One rehearsal", has the steps.  Each is a transaction or some; nothing that
 * the leader does is undone by a later failure but the copy, which it drops.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "command/nvm_command.h"
#include "executor/tuptable.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "replay/nvm_replay_copy.h"
#include "replay/nvm_replay_rows.h"
#include "replay/replay_impl.h"
#include "row/nvm_large.h"
#include "row/nvm_relation.h"
#include "row/nvm_tuple_slot.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "verify/nvm_verify_log.h"
#include "vlog/nvm_vlog_stream.h"

/* milliseconds between looks at the players */
#define WATCH_MS	50

/* after a loss, at who waits for locks */
#define WATCH_LOCKS_MS	500

/* between looks for room for a player */
#define ROOM_MS		1000

/* how long to look for room that a replay for inspection does not have */
#define PATIENCE_MS	5000

/* rows before the leader looks whether anybody still wants the replay */
#define ROWS_PER_LOOK	1024

/* what a table has: rows, and the sum of their checksums */
typedef struct Digest
{
	uint64		rows;
	uint64		sum;
} Digest;

typedef struct Leader
{
	NvmReplayRequest request;
	NvmReplayMap *map;
	NvmVlogBase *base;
	NvmLogSnapshot *last;		/* S2 */
	NvmLogPosition end;
	Digest	   *original;		/* of each table of the map */
	dsm_segment *segment;
	int			nplayers;
	BackgroundWorkerHandle *player[NVM_REPLAY_MAX_PLAYERS];
} Leader;

static void
set_count(pg_atomic_uint64 *counter, uint64 n)
{
	pg_atomic_write_u64(counter, n);
}

/* ---- the copy and its base ---- */

static void
make_copy(Leader *leader)
{
	MemoryContext context = CurrentMemoryContext;

	nvm_replay_enter(NVM_REPLAY_COPY);
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) nvm_replay_copy_drop(leader->request.schema);
	MemoryContextSwitchTo(context);
	leader->map = nvm_replay_copy_make(leader->request.schema);
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	set_count(&NvmReplay->counts.tables, leader->map->ntables);
	if (leader->map->ntables == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("there is no table of nvm_cmdlog in this database")));
}

static void
check_tables(Leader *leader)
{
	MemoryContext context = CurrentMemoryContext;

	StartTransactionCommand();
	nvm_replay_check_tables(leader->map, leader->base->snapshot);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
}

typedef struct Loading
{
	const NvmReplayMap *map;
	NvmReplayLoad *load;
} Loading;

static bool
is_copied(void *arg, uint32 dir, uint64 creation)
{
	const NvmReplayTable *table = nvm_replay_find(((Loading *) arg)->map, dir);

	return table != NULL && table->creation == creation;
}

static void
load_row(void *arg, uint32 dir, uint64 creation, const NvmLogRow *first, const NvmLogRow *row)
{
	Loading    *loading = (Loading *) arg;

	nvm_replay_load_row(loading->load, nvm_replay_find(loading->map, dir), first);
	if (pg_atomic_fetch_add_u64(&NvmReplay->counts.base_rows, 1) % ROWS_PER_LOOK == 0)
		nvm_replay_look();
}

static void
load_base(Leader *leader)
{
	MemoryContext context = CurrentMemoryContext;
	Loading		loading = {.map = leader->map};
	uint64		rows;
	uint64		bytes;

	nvm_replay_enter(NVM_REPLAY_BASE);
	loading.load = nvm_replay_load_begin(leader->map, context);
	nvm_vlog_base_rows(leader->base, is_copied, load_row, &loading);
	nvm_replay_load_end(loading.load, &rows, &bytes);
	MemoryContextSwitchTo(context);
}

/* ---- what there is to compare with ---- */

/*
 * The checksums are those of the log: no code of users runs, and where the rows lie does not
 * matter.
 */
static Digest
digest_of(Oid relid, Oid original)
{
	Relation	rel = table_open(relid, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	NvmRelState *state = nvm_rel(rel);
	TableScanDesc scan = table_beginscan(rel, GetActiveSnapshot(), 0, NULL);
	Digest		digest = {0};

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		digest.sum += nvm_version_checksum(state, ((NvmTupleTableSlot *) slot)->version, original, false);
		if (++digest.rows % ROWS_PER_LOOK == 0)
			nvm_replay_look();
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, NoLock);
	return digest;
}

/*
 * Of each original, or copy, by the snapshot that is active.
 */
static Digest *
digest_tables(Leader *leader, bool copies)
{
	Digest	   *digest = MemoryContextAlloc(GetMemoryChunkContext(leader->map),
											leader->map->ntables * sizeof(Digest));

	for (int i = 0; i < leader->map->ntables; i++)
	{
		const NvmReplayTable *table = &leader->map->tables[i];

		digest[i] = digest_of(copies ? table->copy : table->original, table->original);
	}
	return digest;
}

/*
 * S2, the digests of the originals as it shows them, and the end of the log that has all of
 * it.  Rows are read first: that decides, and so places, what they are of.
 */
static void
read_originals(Leader *leader)
{
	MemoryContext context = CurrentMemoryContext;

	nvm_replay_enter(NVM_REPLAY_COUNT);
	StartTransactionCommand();
	XactIsoLevel = XACT_REPEATABLE_READ;
	PushActiveSnapshot(GetTransactionSnapshot());
	MemoryContextSwitchTo(context);
	leader->last = nvm_vlog_form_snapshot(GetActiveSnapshot(), 0);
	leader->original = digest_tables(leader, false);
	nvm_replay_check_storages(leader->map);
	leader->end = nvm_log_inserted();
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	nvm_log_wait_for(leader->end);
	set_count(&NvmReplay->counts.bytes_total, leader->end - leader->base->begin);
}

/* ---- players ---- */

/*
 * After a loss: the plan of the recovery worker, and the tables.
 */
static void
make_recovery_plan(Leader *leader, const NvmReplayPlan *from)
{
	NvmReplayPlan *plan;

	leader->segment = dsm_create(from->size + leader->map->size, 0);
	dsm_pin_mapping(leader->segment);
	plan = dsm_segment_address(leader->segment);
	memcpy(plan, from, from->size);
	plan->run = nvm_replay_run_number;
	plan->map = from->size;
	plan->size = from->size + leader->map->size;
	memcpy((char *) plan + plan->map, leader->map, leader->map->size);
	set_count(&NvmReplay->counts.bytes_total, plan->end - plan->begin);
}

static void
make_plan(Leader *leader)
{
	const NvmLogSnapshot *s1 = leader->base->snapshot;
	Size		base = MAXALIGN(sizeof(NvmReplayPlan));
	Size		last = base + NVM_LOG_SNAPSHOT_LENGTH(s1->nxip);
	Size		map = MAXALIGN(last + NVM_LOG_SNAPSHOT_LENGTH(leader->last->nxip));
	char	   *memory;
	NvmReplayPlan *plan;

	leader->segment = dsm_create(map + leader->map->size, 0);
	dsm_pin_mapping(leader->segment);
	memory = dsm_segment_address(leader->segment);
	plan = (NvmReplayPlan *) memory;
	plan->run = nvm_replay_run_number;
	plan->database = MyDatabaseId;
	plan->begin = leader->base->begin;
	plan->end = leader->end;
	plan->upto = leader->request.upto;
	plan->base = base;
	plan->last = last;
	plan->map = map;
	memcpy(memory + base, s1, last - base);
	memcpy(memory + last, leader->last, NVM_LOG_SNAPSHOT_LENGTH(leader->last->nxip));
	memcpy(memory + map, leader->map, leader->map->size);
}

static void
start_some(Leader *leader)
{
	for (int i = 0; i < leader->request.nplayers; i++)
	{
		Datum		argument = Int64GetDatum((int64) i << 32 | dsm_segment_handle(leader->segment));

		if (!nvm_replay_start_worker("nvm replay player", "nvm_replay_player_main", MyDatabaseId,
									 argument, &leader->player[leader->nplayers]))
			break;
		leader->nplayers++;
	}
	set_count(&NvmReplay->counts.players, leader->nplayers);
}

/*
 * A recovery waits until there is room for one.  Others wait a moment: the postmaster frees the
 * place of a worker some time after it has ended.
 */
static void
start_players(Leader *leader)
{
	TimestampTz began = GetCurrentTimestamp();

	start_some(leader);
	if (leader->nplayers == 0 && leader->request.recover)
		ereport(LOG,
				(errmsg("nvm: there is no room for a process that replays"),
				 errdetail("Tables of nvm_cmdlog of database %u wait for it.", MyDatabaseId),
				 errhint("Raise max_worker_processes, or end other workers.")));
	while (leader->nplayers == 0 &&
		   (leader->request.recover ||
			!TimestampDifferenceExceeds(began, GetCurrentTimestamp(), PATIENCE_MS)))
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 leader->request.recover ? ROOM_MS : WATCH_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		nvm_replay_look();
		start_some(leader);
	}
	if (leader->nplayers == 0)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("there is no room for a process that replays"),
				 errhint("Raise max_worker_processes.")));
}

/*
 * Are all players gone?  One that has ended without a word has left its record undone.
 */
static bool
players_have_ended(Leader *leader)
{
	int			nended = 0;
	pid_t		pid;

	for (int i = 0; i < leader->nplayers; i++)
	{
		if (GetBackgroundWorkerPid(leader->player[i], &pid) != BGWH_STOPPED)
			continue;
		nended++;
		if (!NvmReplay->has_ended[i])
		{
			NvmReplayFailure failure = {.sqlerrcode = ERRCODE_ADMIN_SHUTDOWN};

			strlcpy(failure.message, "a process that replays has been ended", sizeof(failure.message));
			nvm_replay_note_failure(&failure);
		}
	}
	return nended == leader->nplayers;
}

static bool
is_of_map(const NvmReplayMap *map, Oid relid)
{
	for (int i = 0; i < map->ntables; i++)
	{
		if (map->tables[i].original == relid)
			return true;
	}
	for (int i = 0; i < map->nindexes; i++)
	{
		if (nvm_replay_indexes(map)[i].original == relid)
			return true;
	}
	return false;
}

/*
 * After a loss: who wants a strong lock of a table waits for us, and players that come later wait
 * behind him.  No deadlock check sees that we wait for them.  So his statement is cancelled.
 */
static void
watch_locks(Leader *leader)
{
	static TimestampTz last = 0;
	TimestampTz now = GetCurrentTimestamp();
	LockData   *locks;

	if (!TimestampDifferenceExceeds(last, now, WATCH_LOCKS_MS))
		return;
	last = now;
	locks = GetLockStatusData();
	for (int i = 0; i < locks->nelements; i++)
	{
		const		LockInstanceData *lock = &locks->locks[i];

		if (lock->waitLockMode < ShareLock || lock->pid == 0 || lock->pid == MyProcPid ||
			lock->locktag.locktag_type != LOCKTAG_RELATION ||
			lock->locktag.locktag_field1 != MyDatabaseId ||
			!is_of_map(leader->map, lock->locktag.locktag_field2))
			continue;
		ereport(LOG,
				(errmsg("nvm: a statement of process %d is cancelled, because it waits for a lock of relation %u, whose calls are being replayed",
						lock->pid, lock->locktag.locktag_field2)));
		(void) kill(lock->pid, SIGINT);
	}
	pfree(locks->locks);
	pfree(locks);
}

static void
wait_for_players(Leader *leader)
{
	bool		told = false;

	while (!players_have_ended(leader))
	{
		/*
		 * after a loss they come to their end by themselves, and leave sound
		 * rows
		 */
		if (!told && nvm_replay_is_over() && !leader->request.recover)
		{
			for (int i = 0; i < leader->nplayers; i++)
				TerminateBackgroundWorker(leader->player[i]);
			told = true;
		}
		if (leader->request.recover)
			watch_locks(leader);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, WATCH_MS,
						 PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

static void
play(Leader *leader)
{
	nvm_replay_enter(NVM_REPLAY_PLAY);
	make_plan(leader);
	set_count(&NvmReplay->counts.play_started, GetCurrentTimestamp());
	start_players(leader);
	wait_for_players(leader);
	set_count(&NvmReplay->counts.play_ended, GetCurrentTimestamp());
}

/* ---- comparing ---- */

static void
compare(Leader *leader)
{
	MemoryContext context = CurrentMemoryContext;
	Digest	   *copy;

	nvm_replay_enter(NVM_REPLAY_COMPARE);
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	copy = digest_tables(leader, true);
	for (int i = 0; i < leader->map->ntables; i++)
	{
		NvmReplayFailure failure = {.sqlerrcode = ERRCODE_DATA_CORRUPTED,.differs = true};
		Oid			original = leader->map->tables[i].original;

		if (copy[i].rows == leader->original[i].rows && copy[i].sum == leader->original[i].sum)
			continue;
		snprintf(failure.message, sizeof(failure.message),
				 "rows of table \"%s\" differ from those of its replay", get_rel_name(original));
		snprintf(failure.detail, sizeof(failure.detail),
				 "It has %llu rows with checksum %016llx, the replay came to %llu rows with checksum %016llx.",
				 (unsigned long long) leader->original[i].rows,
				 (unsigned long long) leader->original[i].sum,
				 (unsigned long long) copy[i].rows, (unsigned long long) copy[i].sum);
		nvm_replay_note_failure(&failure);
		break;
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
}

/* ---- the process ---- */

static void
lead(Leader *leader)
{
	nvm_vlog_pin();
	leader->base = nvm_vlog_base_open();
	make_copy(leader);
	check_tables(leader);
	load_base(leader);
	read_originals(leader);
	play(leader);
	nvm_replay_look();
	if (leader->request.rehearse)
		compare(leader);
	nvm_replay_look();
	nvm_replay_note_passed();
	if (leader->request.rehearse)
		nvm_command_stat_rehearsed(pg_atomic_read_u64(&NvmReplay->counts.started));
}

static void
drop_copy(Leader *leader)
{
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) nvm_replay_copy_drop(leader->request.schema);
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/*
 * After an ERROR: players end before anything goes that they use.
 */
static void
lead_or_fail(Leader *leader)
{
	PG_TRY();
	{
		lead(leader);
	}
	PG_CATCH();
	{
		nvm_replay_failed();
		wait_for_players(leader);
	}
	PG_END_TRY();
	nvm_vlog_unpin();
	if (leader->request.keep && !nvm_replay_is_over())
		return;
	PG_TRY();
	{
		drop_copy(leader);
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		EmitErrorReport();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
}

/* ---- after a loss ---- */

/*
 * Into the tables themselves: README.md, "After a loss".
 */
static void
lead_recovery(Leader *leader, const NvmReplayPlan *from)
{
	MemoryContext context = CurrentMemoryContext;
	const NvmLogSnapshot *base = (const NvmLogSnapshot *) ((const char *) from + from->base);

	nvm_replay_enter(NVM_REPLAY_COPY);
	StartTransactionCommand();
	MemoryContextSwitchTo(context);
	leader->map = nvm_replay_originals();
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	set_count(&NvmReplay->counts.tables, leader->map->ntables);
	make_recovery_plan(leader, from);
	StartTransactionCommand();
	nvm_replay_check_tables(leader->map, base);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	nvm_replay_enter(NVM_REPLAY_BASE);
	nvm_replay_build_indexes(leader->map);
	MemoryContextSwitchTo(context);
	NVM_FAILPOINT("recover-indexes");
	nvm_replay_enter(NVM_REPLAY_PLAY);
	set_count(&NvmReplay->counts.play_started, GetCurrentTimestamp());
	start_players(leader);
	wait_for_players(leader);
	set_count(&NvmReplay->counts.play_ended, GetCurrentTimestamp());
	NVM_FAILPOINT("recover-played");
	nvm_replay_note_passed();
}

/*
 * Was the replay ended by somebody, or by a lack of something, and may begin anew?  Anything else
 * would come again.
 */
static bool
was_interrupted(const NvmReplayFailure *failure)
{
	switch (ERRCODE_TO_CATEGORY(failure->sqlerrcode))
	{
		case MAKE_SQLSTATE('5', '3', '0', '0', '0'):	/* resources */
		case MAKE_SQLSTATE('5', '7', '0', '0', '0'):	/* somebody's doing */
		case MAKE_SQLSTATE('5', '8', '0', '0', '0'):	/* files */
		case MAKE_SQLSTATE('4', '0', '0', '0', '0'):	/* deadlocks */
			return true;
		default:
			return failure->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE;
	}
}

/*
 * Records that were not played.
 */
static uint64
count_left(Leader *leader, const NvmReplayPlan *from, uint64 played)
{
	MemoryContext context = CurrentMemoryContext;
	volatile uint64 n = 0;

	/* without tables, of records that say the database */
	if (leader->segment == NULL)
	{
		leader->map = palloc0(offsetof(NvmReplayMap, tables));
		leader->map->size = offsetof(NvmReplayMap, tables);
	}
	PG_TRY();
	{
		if (leader->segment == NULL)
			make_recovery_plan(leader, from);
		n = nvm_replay_count_records(dsm_segment_address(leader->segment));
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		EmitErrorReport();
		FlushErrorState();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	return n > played ? n - played : 0;
}

/*
 * It has come to something else.  Nobody plays any more.
 */
static void
tell_stopped(Leader *leader, const NvmReplayPlan *from)
{
	NvmLogReplayed what = {.database = MyDatabaseId,.state = NVM_LOG_REPLAY_STOPPED};
	NvmLogReplayed before = {0};
	NvmReplayInfo info;

	nvm_replay_info(&info);
	if (info.passed || !info.failed)
		return;
	(void) nvm_log_replay_state(MyDatabaseId, &before);
	if (was_interrupted(&info.failure) && before.tries + 1 < NVM_REPLAY_TRIES)
		return;
	what.played = NVM_REPLAY_COUNT_OF(&info, records);
	what.left = count_left(leader, from, what.played);
	what.position = info.failure.position;
	what.function = info.failure.function;
	what.sqlerrcode = info.failure.sqlerrcode;
	strlcpy(what.message, info.failure.message, sizeof(what.message));
	strlcpy(what.detail, info.failure.detail, sizeof(what.detail));
	strlcpy(what.call, info.failure.call, sizeof(what.call));
	nvm_log_replay_tell(&what);
}

static void
recover_or_fail(Leader *leader)
{
	dsm_segment *segment = dsm_attach(leader->request.what);

	if (segment == NULL)
		return;					/* the worker has gone */
	dsm_pin_mapping(segment);
	PG_TRY();
	{
		lead_recovery(leader, dsm_segment_address(segment));
	}
	PG_CATCH();
	{
		nvm_replay_failed();
		wait_for_players(leader);
	}
	PG_END_TRY();
	tell_stopped(leader, dsm_segment_address(segment));
}

/*
 * However it ends, who asked is told, and players end.  PostgreSQL has aborted what was under
 * way.  Locks of the session are nobody's business but ours then: they would be left to the process
 * that gets our place, and whoever wants to alter such a table would wait for it.
 */
static void
leave(int code, Datum arg)
{
	Leader	   *leader = (Leader *) DatumGetPointer(arg);

	for (int i = 0; i < leader->nplayers; i++)
		TerminateBackgroundWorker(leader->player[i]);
	if (code != 0)
	{
		NvmReplayFailure failure = {.sqlerrcode = ERRCODE_ADMIN_SHUTDOWN};

		strlcpy(failure.message, "the process that leads the replay has been ended",
				sizeof(failure.message));
		nvm_replay_note_failure(&failure);
	}
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
	nvm_replay_end(nvm_replay_run_number);
}

/*
 * Entry point of the leader.
 */
void
nvm_replay_leader_main(Datum main_arg)
{
	static Leader leader = {0};

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	nvm_replay_run_number = DatumGetUInt32(main_arg);
	before_shmem_exit(leave, PointerGetDatum(&leader));
	SpinLockAcquire(&NvmReplay->mutex);
	leader.request = NvmReplay->request;
	SpinLockRelease(&NvmReplay->mutex);
	if (leader.request.run != nvm_replay_run_number)
		proc_exit(0);			/* who asked has gone */
	BackgroundWorkerInitializeConnectionByOid(leader.request.database, InvalidOid,
											  leader.request.recover ? BGWORKER_BYPASS_ALLOWCONN : 0);
	nvm_replay_set_own();
	/* a session that has locked a table may be the one that waits for us */
	if (!leader.request.recover)
		SetConfigOption("lock_timeout", "10s", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("synchronous_commit", "off", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_isolation", "read committed", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("search_path", "", PGC_SUSET, PGC_S_OVERRIDE);
	pgstat_report_activity(STATE_RUNNING, "replay of the command log");
	CurrentResourceOwner = ResourceOwnerCreate(NULL, "nvm replay");
	MemoryContextSwitchTo(AllocSetContextCreate(TopMemoryContext, "nvm replay",
												ALLOCSET_DEFAULT_SIZES));
	nvm_log_replays = leader.request.recover;
	if (leader.request.recover)
		recover_or_fail(&leader);
	else
		lead_or_fail(&leader);
	proc_exit(0);
}
