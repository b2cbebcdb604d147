/*-------------------------------------------------------------------------
 *
 * vlog_play.c
 *	  Databases whose calls are replayed: which they are, and when their tables open.
 *
 * A record of calls alone has no rows.  So if the log has one that the checkpoint does not
 * show, the database's tables of nvm_cmdlog get the rows of the checkpoint alone, and stay
 * closed until somebody has replayed what came behind it.  That is replay/'s matter, which
 * registers a function here.
 *
 * README.md, "Databases that are replayed".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "pool/nvm_region.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "verify/nvm_verify_calls.h"
#include "vlog/nvm_vlog.h"
#include "vlog/nvm_vlog_stream.h"
#include "vlog/vlog_impl.h"
#include "wbl/nvm_wbl.h"

/* how often the worker looks whether somebody has said how to go on */
#define LOOK_MS			200

/* before a replay that was interrupted begins anew */
#define ANEW_MS			1000

/* processes that have died amid the replay of a database, until it counts as stopped */
#define MAX_DEATHS		5

/* before a checkpoint that has failed is tried again */
#define RETRY_SECONDS	30

static NvmVlogPlayer player = NULL;
static void (*stop_player) (void) = NULL;

/* of the current attempt */
static int	ndatabases = 0;
static Oid	databases[NVM_LOG_REPLAYED];

/* the database that is being replayed, and how often that was begun before */
static Oid	tried = InvalidOid;
static uint32 tries_before = 0;

void
nvm_vlog_register_player(NvmVlogPlayer function, void (*stop) (void))
{
	player = function;
	stop_player = stop;
}

/* ---- while the log is read ---- */

static const NvmLogSnapshot *
snapshot_of(const NvmVlog *vlog)
{
	return vlog->checkpoint == NULL || vlog->checkpoint->snapshot == 0 ? NULL :
		NVM_LOG_CHECKPOINT_SNAPSHOT(vlog->checkpoint);
}

/*
 * See vlog_impl.h.
 */
bool
nvm_vlog_is_shown(const NvmVlog *vlog, const NvmLogRecord *record)
{
	const NvmLogSnapshot *snapshot = snapshot_of(vlog);

	return snapshot != NULL && (record->flags & NVM_LOG_BRIEF) == 0 && record->xid != 0 &&
		nvm_vlog_snapshot_shows(snapshot, record->xid);
}

static void
too_many_databases(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("the log has calls of more than %d databases to be replayed", NVM_LOG_REPLAYED)));
}

/*
 * False: there is no room for another one.
 */
static bool
add_database(Oid *list, int *n, Oid database)
{
	for (int i = 0; i < *n; i++)
	{
		if (list[i] == database)
			return true;
	}
	if (*n == NVM_LOG_REPLAYED)
		return false;
	list[(*n)++] = database;
	return true;
}

static bool has_closed_tables(Oid database);

/*
 * Of many databases those do not count that were dropped.
 */
static void
add_or_fail(Oid *list, int *n, Oid database)
{
	int			left = 0;

	if (add_database(list, n, database))
		return;
	for (int i = 0; i < *n; i++)
	{
		if (has_closed_tables(list[i]))
			list[left++] = list[i];
	}
	*n = left;
	if (has_closed_tables(database) && !add_database(list, n, database))
		too_many_databases();
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_note_alone(NvmVlog *vlog, const NvmLogSection *calls, uint32 ask)
{
	NvmVlogOutput *output = vlog->output;
	NvmVlogAlone *alone;

	if (ask == 0)
	{
		add_or_fail(output->alone_in, &output->nalone, (Oid) calls->creation);
		return;
	}
	alone = nvm_vlog_list_add(vlog, &output->alone, sizeof(NvmVlogAlone));
	alone->database = (Oid) calls->creation;
	alone->ask = ask;
}

/* ---- which ---- */

/*
 * What all processes have noted.
 */
static void
gather(NvmVlog *vlog)
{
	NvmVlogOutput *output = nvm_vlog_at(vlog, vlog->shared->output);
	const NvmVlogAsk *ask = nvm_vlog_at(vlog, vlog->shared->ask);

	ndatabases = 0;
	for (int i = 0; i < vlog->shared->nprocesses; i++)
	{
		NvmVlogList *list = &output[i].alone;
		uint64		n = list->n;
		NvmVlogAlone *alone = MemoryContextAllocHuge(vlog->context, (n + 1) * sizeof(NvmVlogAlone));

		for (int j = 0; j < output[i].nalone; j++)
			add_or_fail(databases, &ndatabases, output[i].alone_in[j]);
		nvm_vlog_list_copy(vlog, list, sizeof(NvmVlogAlone), alone);
		nvm_vlog_list_free(vlog, list);
		for (uint64 j = 0; j < n; j++)
		{
			/* one that was prepared is refused when rows are chosen, too */
			if (ask[alone[j].ask - 1].verdict != NVM_VLOG_ABORTED)
				add_or_fail(databases, &ndatabases, alone[j].database);
		}
		pfree(alone);
	}
}

/* tables, and indexes, of a database that are closed */
typedef struct Closed
{
	Oid			database;
	NvmVlog    *vlog;			/* or NULL */
	bool	   *played;
	bool		open;			/* open them */
	uint32		n;				/* tables */
} Closed;

/*
 * Or an index, which the leader of a replay has closed.
 */
static bool
is_closed(const NvmDirEntry *entry, uint32 dir, Oid database)
{
	return entry->database == database &&
		(entry->kind == NVM_DIR_KIND_INDEX || (entry->flags & NVM_DIR_COMMANDS) != 0) &&
		nvm_log_is_closed(dir, entry->creation_id);
}

/*
 * For nvm_dir_walk.
 */
static void
look_at_table(uint32 dir, NvmDirEntry *entry, void *arg)
{
	Closed	   *closed = (Closed *) arg;

	if (!is_closed(entry, dir, closed->database))
		return;
	if (entry->kind == NVM_DIR_KIND_TABLE)
	{
		if (closed->vlog != NULL &&
			(dir > closed->vlog->shared->ndirs || closed->vlog->creation[dir] != entry->creation_id))
			return;
		closed->n++;
		if (closed->played != NULL)
			closed->played[dir] = true;
	}
	if (!closed->open)
		return;
	LWLockAcquire(NvmWbl->storage_lock, LW_SHARED);
	if (is_closed(entry, dir, closed->database))
		nvm_log_open(dir, entry->creation_id);
	LWLockRelease(NvmWbl->storage_lock);
	NVM_FAILPOINT("rebuild-played-open");
}

static bool
has_closed_tables(Oid database)
{
	Closed		closed = {.database = database};

	nvm_dir_walk(look_at_table, &closed);
	return closed.n > 0;
}

/*
 * See vlog_impl.h.  A database all of whose tables an attempt before this one has opened, or
 * that was dropped, is none.
 */
void
nvm_vlog_choose_databases(NvmVlog *vlog)
{
	int			n = 0;
	Closed		closed = {.vlog = vlog};

	gather(vlog);
	nvm_log_tell_alone(databases, ndatabases);
	nvm_log_forget_tries_but(databases, ndatabases);
	if (ndatabases == 0)
		return;
	vlog->shared->played = nvm_vlog_alloc(vlog, (vlog->shared->ndirs + 1) * sizeof(bool));
	closed.played = nvm_vlog_at(vlog, vlog->shared->played);
	for (int i = 0; i < ndatabases; i++)
	{
		closed.database = databases[i];
		closed.n = 0;
		nvm_dir_walk(look_at_table, &closed);
		if (closed.n == 0)
			continue;
		databases[n++] = databases[i];
		if (!nvm_log_replay_note(closed.database, NVM_LOG_REPLAY_WAITING))
			too_many_databases();
		pg_atomic_fetch_add_u64(&nvm_log_progress()->tables_total, closed.n);
	}
	ndatabases = n;
	if (ndatabases > 0 && (snapshot_of(vlog) == NULL || player == NULL))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the log has calls of database %u that are logged alone, and there is no checkpoint from which they could be replayed",
						databases[0])));
}

/* ---- tables open ---- */

/*
 * All tables of a database, or none: from the mark on whoever comes next goes on with it.
 */
static void
open_tables(Oid database)
{
	Closed		closed = {.database = database,.open = true};

	nvm_log_note_played(database);
	NVM_FAILPOINT("rebuild-played");
	nvm_dir_walk(look_at_table, &closed);
	nvm_log_note_played(InvalidOid);
	pg_atomic_fetch_add_u64(&nvm_log_progress()->tables, closed.n);
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_open_played(void)
{
	Oid			database = nvm_log_played();

	if (OidIsValid(database))
		open_tables(database);
}

/* ---- replaying ---- */

static void
pause_ms(long ms)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);

	do
	{
		nvm_log_write_some();
		nvm_vlog_pause();
		(void) nvm_worker_sleep(Min(ms, LOOK_MS));
		nvm_vlog_pause();
	} while (GetCurrentTimestamp() < end);
}

/*
 * Tables may have any of what was replayed.  The keeper starts another worker, as after the
 * end of this one by a signal.
 */
static void
begin_anew(const char *why, int tries)
{
	ereport(LOG,
			(errmsg("nvm: the recovery of tables in memory begins anew, because %s", why)));
	pause_ms(ANEW_MS * Max(tries, 1));
	nvm_vlog_share_exit(1, (Datum) 0);
	nvm_worker_end();
}

static int
compare_positions(const void *a, const void *b)
{
	NvmLogPosition x = *(const NvmLogPosition *) a;
	NvmLogPosition y = *(const NvmLogPosition *) b;

	return x < y ? -1 : x > y;
}

/*
 * What each database has to replay.
 */
static void
form_what(NvmVlog *vlog, NvmVlogToPlay *what)
{
	const NvmVlogAsk *ask = nvm_vlog_at(vlog, vlog->shared->ask);
	NvmLogPosition *asked = MemoryContextAllocHuge(vlog->context,
												   (vlog->shared->nasks + 1) * sizeof(NvmLogPosition));

	memset(what, 0, sizeof(*what));
	what->begin = vlog->checkpoint->begin;
	what->end = vlog->shared->limit;
	what->snapshot = snapshot_of(vlog);
	for (uint64 i = 0; i < vlog->shared->nasks; i++)
	{
		if (ask[i].verdict == NVM_VLOG_COMMITTED)
			asked[what->nasked++] = ask[i].position;
	}
	qsort(asked, what->nasked, sizeof(NvmLogPosition), compare_positions);
	what->asked = asked;
}

/*
 * The transactions that were not replayed, in words.
 */
static const char *
how_many_left(const NvmLogReplayed *d)
{
	return d->left == NVM_LOG_LEFT_UNKNOWN ? "all others" :
		psprintf("%llu", (unsigned long long) d->left);
}

static void
tell_stopped(Oid database)
{
	NvmLogReplayed d = {0};

	(void) nvm_log_replay_state(database, &d);
	ereport(LOG,
			(errcode(d.sqlerrcode),
			 errmsg("nvm: the replay of the calls of database %u has stopped at position %llu of the log: %s",
					database, (unsigned long long) d.position, d.message),
			 errdetail("%s%s%llu transactions were replayed, %s were not.%s%s",
					   d.call[0] != '\0' ? "Call " : "", d.call[0] != '\0' ? psprintf("%s. ", d.call) : "",
					   (unsigned long long) d.played, how_many_left(&d),
					   d.detail[0] != '\0' ? " " : "", d.detail),
			 errhint("Its tables of nvm_cmdlog stay closed. In that database a superuser may mend the function and call nvm.resume_replay(), or give up what was not replayed by nvm.end_replay().")));
}

/*
 * The try ends, and no process has died of it.
 */
static void
try_ends(void)
{
	if (OidIsValid(tried))
		nvm_log_note_tries(tried, tries_before);
	tried = InvalidOid;
}

static void
try_ends_at_exit(int code, Datum arg)
{
	try_ends();
}

/*
 * What was being replayed when a process died last: one of these is to blame, if any is.
 */
static void
tell_what_was_played(NvmLogReplayed *d)
{
	NvmLogPosition list[NVM_LOG_PLAYERS];
	int			n = nvm_log_list_playing(d->database, list);
	StringInfoData text;

	if (n == 0)
		return;
	qsort(list, n, sizeof(list[0]), compare_positions);
	d->position = list[0];
	initStringInfo(&text);
	for (int i = 0; i < n; i++)
		appendStringInfo(&text, "%s%llu", i == 0 ? "" : ", ", (unsigned long long) list[i]);
	snprintf(d->detail, sizeof(d->detail),
			 n == 1 ? "When it died last, the record at position %.300s of the log was being replayed; nvm_logdump --from=POSITION prints its call first." :
			 "When it died last, the records at positions %.300s of the log were being replayed; nvm_logdump --from=POSITION prints the calls of one first.",
			 text.data);
	pfree(text.data);
}

/*
 * A call may kill its process, and so each life of the server.  So it is noted for each database
 * how often it was tried.  One that has stopped for this reason keeps its number until somebody has
 * said how to go on, since another one may kill the server next.
 */
static NvmVlogPlayed
try(NvmVlogToPlay *what)
{
	static bool at_exit = false;
	uint32		tries = nvm_log_tries(what->database);
	NvmVlogPlayed result;

	if (tries >= MAX_DEATHS)
	{
		NvmLogReplayed d = {.database = what->database,.state = NVM_LOG_REPLAY_STOPPED,
		.left = NVM_LOG_LEFT_UNKNOWN,.sqlerrcode = ERRCODE_CRASH_SHUTDOWN};

		snprintf(d.message, sizeof(d.message), "a process has died amid the replay %u times", tries);
		tell_what_was_played(&d);
		nvm_log_replay_tell(&d);
		return NVM_VLOG_STOPPED;
	}
	if (!at_exit)
		before_shmem_exit(try_ends_at_exit, (Datum) 0);
	at_exit = true;
	tried = what->database;
	tries_before = tries;
	nvm_log_note_tries(what->database, tries + 1);
	result = player(what, pause_ms);
	if (result != NVM_VLOG_INTERRUPTED)
		tries_before = 0;
	try_ends();
	return result;
}

static void
replay_database(NvmVlogToPlay *what)
{
	NvmLogReplayed d = {0};

	NVM_FAILPOINT("rebuild-replay");
	nvm_log_replay_note(what->database, NVM_LOG_REPLAY_RUNNING);
	switch (try(what))
	{
		case NVM_VLOG_PLAYED:
			open_tables(what->database);
			nvm_log_replay_note(what->database, NVM_LOG_REPLAY_DONE);
			break;
		case NVM_VLOG_STOPPED:
			tell_stopped(what->database);
			break;
		case NVM_VLOG_INTERRUPTED:
			(void) nvm_log_replay_state(what->database, &d);
			begin_anew("a replay of calls was interrupted", d.tries);
			break;
	}
}

/*
 * See vlog_impl.h.  An earlier worker may have let a checkpoint begin.
 */
void
nvm_vlog_stop_replay(void)
{
	if (stop_player != NULL)
		stop_player();
	try_ends();
	nvm_log_let_checkpoint_begin(false);
	while (nvm_vlog_checkpoint_runs())
	{
		nvm_vlog_pause();
		(void) nvm_worker_sleep(LOOK_MS / 10);
	}
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_leave_replay(void)
{
	for (int i = 0; i < ndatabases; i++)
	{
		if (nvm_log_replay_state(databases[i], NULL) != NVM_LOG_REPLAY_DONE)
			(void) nvm_log_replay_note(databases[i], NVM_LOG_REPLAY_WAITING);
	}
}

/* ---- what came to something else ---- */

/*
 * Wait until somebody has said for each database how to go on.  Returns whether any is given
 * up.
 */
static bool
wait_for_word(void)
{
	for (;;)
	{
		bool		given_up = false;
		bool		stopped = false;

		for (int i = 0; i < ndatabases; i++)
		{
			NvmLogReplay state = nvm_log_replay_state(databases[i], NULL);

			if (state == NVM_LOG_REPLAY_DONE)
				continue;
			if (!has_closed_tables(databases[i]))
				nvm_log_replay_note(databases[i], NVM_LOG_REPLAY_DONE);
			else if (state == NVM_LOG_REPLAY_RESUMED)
			{
				nvm_log_note_tries(databases[i], 0);
				begin_anew("somebody has called nvm.resume_replay()", 0);
			}
			else if (state == NVM_LOG_REPLAY_GIVEN_UP)
				given_up = true;
			else
				stopped = true;
		}
		if (!stopped)
			return given_up;
		pause_ms(LOOK_MS);
	}
}

/*
 * What was replayed is all that there will be.  A checkpoint makes that last, before anybody
 * reads it: it has the tables, which are closed to sessions alone.
 */
static void
open_given_up(void)
{
	uint64		request;
	bool		failed;

	NVM_FAILPOINT("rebuild-given-up");
	nvm_log_let_checkpoint_begin(true);
	request = nvm_vlog_request_checkpoint(true);
	while (!nvm_vlog_has_checkpoint(request, &failed))
	{
		nvm_vlog_start_checkpointer();
		if (failed)
		{
			pause_ms(RETRY_SECONDS * 1000);
			request = nvm_vlog_request_checkpoint(true);
		}
		pause_ms(LOOK_MS);
	}
	NVM_FAILPOINT("rebuild-given-up-kept");
	for (int i = 0; i < ndatabases; i++)
	{
		NvmLogReplayed d;

		if (nvm_log_replay_state(databases[i], &d) != NVM_LOG_REPLAY_GIVEN_UP)
			continue;
		open_tables(databases[i]);
		nvm_log_note_tries(databases[i], 0);
		nvm_log_replay_note(databases[i], NVM_LOG_REPLAY_DONE);
		ereport(LOG,
				(errmsg("nvm: the replay of the calls of database %u was ended: %llu transactions were replayed, %s are given up",
						databases[i], (unsigned long long) d.played, how_many_left(&d))));
	}
}

/*
 * Tables that are open leave room for what a replay makes: about what the log has, since rows
 * are longer than calls and most of them replace others, and an eighth of the tables; but not
 * more than half of what is free.
 */
static void
claim_room(NvmVlog *vlog, const NvmVlogToPlay *what)
{
	const NvmRegion *region = &nvm_regions[NVM_REGION_VOLATILE];
	uint64		limit = region->limit_chunks * NVM_UNITS_PER_CHUNK;
	uint64		used = region->nchunks * NVM_UNITS_PER_CHUNK - region->free_units;
	uint64		claim = (what->end - what->begin) / NVM_UNIT_SIZE + nvm_vlog_closed_units(vlog) / 8;

	nvm_region_claim(NVM_REBUILT_ROWS, used < limit ? Min(claim, (limit - used) / 2) : 0);
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_replay(NvmVlog *vlog)
{
	NvmVlogToPlay what;

	if (ndatabases == 0)
		return;
	/* they would only wait, and others need their places */
	nvm_vlog_share_dismiss(vlog);
	form_what(vlog, &what);
	claim_room(vlog, &what);
	for (int i = 0; i < ndatabases; i++)
	{
		what.database = databases[i];
		if (has_closed_tables(databases[i]))
			replay_database(&what);
		else
			nvm_log_replay_note(databases[i], NVM_LOG_REPLAY_DONE);
	}
	nvm_region_claim(NVM_REBUILT_ROWS, 0);
	if (wait_for_word())
		open_given_up();
}
