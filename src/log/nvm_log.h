/*-------------------------------------------------------------------------
 *
 * nvm_log.h
 *	  The log: what brings the volatile region back when its memory is lost.
 *
 * src/log/README.md has the protocol, and our words.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_LOG_H
#define NVM_LOG_H

#include "postgres.h"

#include <dirent.h>

#include "media/media_pool.h"
#include "port/atomics.h"

typedef uint64 NvmLogPosition;	/* 0: none */

/* ---- log_memory.c: settings, shared memory, start ---- */

/*
 * Is there memory for the log?  Of the postmaster's life; false without
 * nvm_log_request or a region.  It may not have begun: README.md, "Beginning".
 */
extern bool nvm_log_is_on;

/*
 * Have a log.  Called while the postmaster loads libraries, after
 * nvm_region_request.
 */
extern PGDLLEXPORT void nvm_log_request(void);

extern void nvm_log_define_settings(void);
#define NVM_LOG_TRANCHE	"nvm_log"
extern Size nvm_log_shmem_size(void);
extern int	nvm_log_num_lwlocks(void);
extern void nvm_log_shmem_startup(void);	/* after nvm_pool_shmem_startup */
extern void nvm_log_shmem_init(void);	/* again, for another pool */
extern void nvm_log_register_callbacks(void);

/*
 * In the postmaster, between the open and the analysis of the slots: the stamp of a
 * volatile slot whose decision a death has cut short after it was made, or 0.  The
 * caller stores its word, and then says that this is done: it may die in between.
 */
extern uint64 nvm_log_unfinished_decision(void);
extern void nvm_log_decision_finished(void);

/* does the log have a generation, and files?  Once it does it stays so */
extern bool nvm_log_has_begun(void);

/*
 * Before the first storage is made that the log is to bring back: begin it, if nobody
 * has.  May ERROR.  The caller holds no LWLock.
 */
extern void nvm_log_require_begun(void);

/*
 * The server is being stopped, and rows of the region are being written down: whoever has
 * no transaction that writes there begins none any more.
 */
extern void nvm_log_refuse_writers(void);
extern bool nvm_log_refuses_writers(void);

/*
 * A volatile slot is used for the first time: memory for its buffer.  May ERROR.
 */
extern void nvm_log_reserve_buffer(uint32 slot);

/* ---- what a loss left, for vlog/ ---- */

typedef enum NvmLogRebuild
{
	NVM_LOG_WHOLE,				/* the region has everything */
	NVM_LOG_TO_REBUILD,			/* the region was lost; the log has rows */
	NVM_LOG_REBUILDING,
	NVM_LOG_FAILED				/* reason: nvm_log_rebuild_problem */
} NvmLogRebuild;

/* ---- log_rebuild.c ---- */

extern NvmLogRebuild nvm_log_rebuild_state(void);
extern void nvm_log_set_rebuild_state(NvmLogRebuild state, const char *problem);

static inline bool
nvm_log_is_whole(void)
{
	return likely(!nvm_log_is_on) || nvm_log_rebuild_state() == NVM_LOG_WHOLE;
}

/*
 * Storages open one by one.  While the region is not whole, a storage is open if
 * opening has begun, and it is not closed.
 */
extern bool nvm_log_is_opening(void);
extern bool nvm_log_is_closed(uint32 dir, uint64 creation);

/* does this process replay calls into closed tables?  They are open to it (log_replayed.c) */
extern PGDLLEXPORT bool nvm_log_replays;

static inline bool
nvm_log_is_open(uint32 dir, uint64 creation)
{
	return nvm_log_is_whole() || nvm_log_replays ||
		(nvm_log_is_opening() && !nvm_log_is_closed(dir, creation));
}

/*
 * For who rebuilds.  close: before opening begins, or of an index that is built before its
 * table opens.  begin_opening: there is a stamp of all
 * rebuilt rows, which is frozen, and all storages with rows to be rebuilt are closed.
 * open: all rows are there; storage_lock is held.
 */
extern void nvm_log_close(uint32 dir, uint64 creation);
extern void nvm_log_begin_opening(uint64 stamp);
extern void nvm_log_open(uint32 dir, uint64 creation);
extern uint64 nvm_log_rebuild_stamp(void);
extern NvmLogPosition nvm_log_rebuild_limit(void);

/*
 * Full xids from here on were not handed out in an earlier life of the region, as far
 * as pg_xact knows.  Each start says its own, before anybody can have committed; that of
 * the first one counts.
 */
extern void nvm_log_note_first_xid(uint64 fxid);
extern uint64 nvm_log_first_xid(void);

/*
 * Wait until the region has everything; until a storage is open, before a process comes to
 * it for the first time; until opening has begun, before one makes a storage.  ERROR if
 * that cannot be, or nvm.wait_for_recovery is off.  The caller holds no LWLock.  name: of
 * the relation, or NULL.
 */
extern void nvm_log_require_whole(void);
extern void nvm_log_require_open_slow(uint32 dir, uint64 creation, const char *name);
extern void nvm_log_require_opening(void);

static inline void
nvm_log_require_open(uint32 dir, uint64 creation, const char *name)
{
	if (unlikely(!nvm_log_is_whole()))
		nvm_log_require_open_slow(dir, creation, name);
}

/*
 * Who starts the worker that rebuilds the region: vlog/ says so in _PG_init.  The keeper
 * has it done, once the log has begun, and again whenever there is none.  The worker
 * says that it is there: false if another one is.
 */
extern void nvm_log_register_recovery(void (*start_worker) (void), void (*at_stop) (void));
extern void nvm_log_watch_recovery(void);
extern bool nvm_log_become_recovery(void);

/*
 * The server is being stopped.  The keeper does what that worker does then (vlog_keep.c), if
 * there is none.  False: there is one, which has not begun with that; it may end without.
 */
extern bool nvm_log_stop_instead(void);

/* how far it is, for the view: counts of the rebuild that began last */
typedef struct NvmLogProgress
{
	pg_atomic_uint64 files;
	pg_atomic_uint64 bytes;		/* read */
	pg_atomic_uint64 bytes_total;
	pg_atomic_uint64 rows;		/* placed */
	pg_atomic_uint64 tables;	/* open */
	pg_atomic_uint64 tables_total;
	pg_atomic_uint64 workers;
	pg_atomic_uint64 started;	/* TimestampTz; 0: not yet */
	pg_atomic_uint64 finished;
} NvmLogProgress;

extern NvmLogProgress *nvm_log_progress(void);

/* ---- log_replayed.c: databases whose calls a recovery replays ---- */

typedef enum NvmLogReplay
{
	NVM_LOG_REPLAY_NONE,		/* not such a database */
	NVM_LOG_REPLAY_WAITING,
	NVM_LOG_REPLAY_RUNNING,
	NVM_LOG_REPLAY_STOPPED,		/* a call came to something else; somebody has
								 * to say how to go on: */
	NVM_LOG_REPLAY_RESUMED,		/* once more */
	NVM_LOG_REPLAY_GIVEN_UP,	/* with what was replayed */
	NVM_LOG_REPLAY_DONE
} NvmLogReplay;

#define NVM_LOG_REPLAYED	32	/* databases at most */
#define NVM_LOG_PLAYERS		64	/* processes that replay one, at most */

/* nobody has counted them, as one that would have died before */
#define NVM_LOG_LEFT_UNKNOWN	PG_UINT64_MAX

typedef struct NvmLogReplayed
{
	Oid			database;
	NvmLogReplay state;
	uint64		played;			/* transactions */
	uint64		left;			/* STOPPED: that were not, or
								 * NVM_LOG_LEFT_UNKNOWN */
	uint64		position;		/* STOPPED: of the record that came to
								 * something else */
	Oid			function;		/* of its call */
	int			sqlerrcode;
	int			tries;			/* that were interrupted, one after the other */
	char		message[512];
	char		detail[512];
	char		call[1024];		/* as SQL, or "" */
} NvmLogReplayed;

/*
 * note: a database is in this state; false: there is no room for it.  tell: all about one
 * that was noted.  state: *what (may be NULL) is left alone if it is none.  list: all, into
 * NVM_LOG_REPLAYED; returns how many.
 */
extern bool nvm_log_replay_note(Oid database, NvmLogReplay state);
extern void nvm_log_replay_tell(const NvmLogReplayed *what);
extern NvmLogReplay nvm_log_replay_state(Oid database, NvmLogReplayed *what);
extern int	nvm_log_replay_list(NvmLogReplayed *list);
extern const char *nvm_log_replay_name(NvmLogReplay state);

/* from STOPPED to RESUMED or GIVEN_UP; false: it was not STOPPED */
extern bool nvm_log_replay_ask(Oid database, NvmLogReplay state);

/*
 * May a checkpoint begin?  When the region is whole; or when all that is missing is one, behind
 * which tables open whose replay was given up.
 */
extern void nvm_log_let_checkpoint_begin(bool may);
extern bool nvm_log_checkpoint_may_begin(void);

/*
 * All that a database is to be replayed for is there, and its tables open one by one: a death
 * meanwhile leaves that to who comes next.  0: they are open, or have not begun to.
 */
extern void nvm_log_note_played(Oid database);
extern Oid	nvm_log_played(void);

/*
 * A replay of a database begins, for so many times since the last one that has come to its end: its
 * calls may be what processes die of.  0: forget it.  Outlives a death.  Of databases that are not
 * in a list all is forgotten.  By the recovery alone.
 */
extern void nvm_log_note_tries(Oid database, uint32 tries);
extern uint32 nvm_log_tries(Oid database);
extern void nvm_log_forget_tries_but(const Oid *databases, int n);

/*
 * Player `player` of this database begins with the record at that position; 0: has none, or is
 * through with it.  What was under way when a process died outlives that, until the database is
 * tried again.  list: into NVM_LOG_PLAYERS positions; returns how many.
 */
extern void nvm_log_note_playing(Oid database, int player, NvmLogPosition position);
extern int	nvm_log_list_playing(Oid database, NvmLogPosition *list);

/* ---- log_report.c: for views ---- */

typedef struct NvmLogReport
{
	const char *state;
	const char *reason;			/* NULL: none */
	uint32		generation;		/* the rest counts if that is not 0 */
	uint64		inserted;
	uint64		persistent;
	uint64		files;			/* of this pool, in the directory */
	uint64		file_bytes;
	uint64		records;
	uint64		bytes;			/* written */
	uint64		rounds;			/* syncs */
	uint64		waits;
	uint64		wait_usec;
} NvmLogReport;

extern void nvm_log_report(NvmLogReport *report);

/* the same of a directory */
typedef struct NvmLogDirectoryReport
{
	bool		is_out;
	bool		is_current;
	char		reason[MAXPGPATH + 256];	/* of the last failure; "": none */
	uint64		position;
	uint64		files;
	uint64		file_bytes;
	uint64		bytes;
	uint64		rounds;
	uint64		waits;
	uint64		wait_usec;
} NvmLogDirectoryReport;

extern void nvm_log_report_directory(int which, NvmLogDirectoryReport *report);

/* the reason why the state is NVM_LOG_FAILED, "" if there is none */
extern const char *nvm_log_rebuild_problem(void);

/*
 * The generation that is being written.  To be read are those below it, and of this
 * one what was persistent when the rebuild begins: it starts with the last records of
 * the one before.
 */
extern uint32 nvm_log_generation(void);

/*
 * Is that the side file of a transaction that had its end before the server's start?
 * Then nothing names it if a checkpoint begins at nvm_log_start_position() or behind.
 */
extern bool nvm_log_side_is_old(uint32 generation, uint64 number);
extern NvmLogPosition nvm_log_start_position(void);

/*
 * A file of the log that ended here has vanished, so a checkpoint is due that begins here
 * or later; 0: none, or no new file could be made.
 */
extern NvmLogPosition nvm_log_lost_before(void);

/* ---- log_directory.c: nvm.log_directories ---- */

#define NVM_LOG_MAX_DIRECTORIES	32

/* the list; each absolute or below the data directory */
extern int	nvm_log_ndirectories(void);
extern const char *nvm_log_directory(int which);

/* for messages: the word "directory" or "directories", and which */
extern const char *nvm_log_where(void);

/* the directory that has a file of this name, the first one, or the next; -1: none */
extern int	nvm_log_find(const char *name);
extern int	nvm_log_find_after(const char *name, int after);

/*
 * All of a file, but `limit` bytes at most, in memory of the current context.  NULL with errno
 * set; what cannot be read is an error here, where a mapping would end the process.
 */
extern char *nvm_log_read_whole(const char *path, uint64 limit, uint64 *size);
extern void nvm_log_path_in(char *path, int which, const char *name);

/*
 * All names of all directories.  What cannot be read is told with elevel, and passed
 * over.
 */
typedef struct NvmLogScan
{
	int			directory;		/* of the name */
	DIR		   *dir;
	int			elevel;
} NvmLogScan;

extern void nvm_log_scan_begin(NvmLogScan *scan, int elevel);
extern const char *nvm_log_scan_next(NvmLogScan *scan);

/*
 * A directory for a file of so many bytes, or more: round robin by `turn`, none of those
 * in the mask.  -1: that were all.
 */
extern int	nvm_log_deal_file(uint32 turn, uint32 tried, uint64 room);

/* is there room for so many bytes?  errno says why not */
extern bool nvm_log_has_room(int which, uint64 bytes);

/*
 * A step on a side file, or on one of a checkpoint, has failed, errno says how: the
 * directory is out.  Does not change errno.
 */
extern void nvm_log_directory_failed(int which, const char *step, const char *path);

/*
 * Ask for a new log at the next start, and for giving up what the old one would bring
 * back.  Durable at once, whatever becomes of the transaction.  Without force it is an
 * ERROR if the log is not lost.  Returns whether the rows are given up in any case:
 * not if the log is found at that start.
 */
extern bool nvm_log_request_reset(bool force);

/* ---- log_capture.c: the record of the current transaction ---- */

/*
 * begin: at PRE_COMMIT, of a transaction with this stamp in the region; the caller
 * holds no lock of ours.  storage: the rows that follow belong to it.  row: `tuple`
 * has `length` bytes, from infomask2 on; length 0: the row is gone.  old: what the row
 * that comes next was before, length 0: its checksum alone.  piece: of a large
 * value of the row that comes next (media_log.h), at most NVM_LOG_PIECE_MAX bytes;
 * `first` with the first piece of a row.  end: true if
 * there is a record; it is complete then, and room for it is reserved.  All may
 * ERROR; nvm_log_forget takes everything back, and cannot fail.  decided: the
 * record is the log's; the process forgets it.
 */
extern void nvm_log_begin(uint64 stamp, uint64 fxid);
extern void nvm_log_storage(uint32 dir, uint64 creation);
extern void nvm_log_row(uint32 block, uint16 offset, uint32 xmin,
						const void *tuple, uint16 length);
extern void nvm_log_old(uint32 block, uint16 offset, uint32 xmin, uint64 checksum,
						const void *tuple, uint16 length);
extern void nvm_log_piece(uint32 block, uint16 offset, uint32 attribute, uint32 number,
						  const void *bytes, uint16 length, bool first);

/* pieces of a row were written, and the row was not: both belong into one file */
extern bool nvm_log_amid_row(void);

extern bool nvm_log_end(void);
extern void nvm_log_forget(void);
extern void nvm_log_decided(void);

/*
 * Storages and rows that belong to no record, by a process that has none: between
 * begin and end, nvm_log_storage and nvm_log_row hand whole sections to `write`, which
 * may ERROR.  An area of the current context's memory gathers them; flush writes it
 * if it is half full, or all of it.
 */
extern void nvm_log_sections_begin(void (*write) (const void *data, Size length));
extern void nvm_log_sections_flush(bool all);
extern void nvm_log_sections_end(void);

/* ---- log_calls.c: calls in the record of the current transaction ---- */

/*
 * What becomes of the rows of nvm_cmdlog tables that the current transaction has written.
 */
typedef enum NvmLogBy
{
	NVM_LOG_BY_NOTHING,			/* it has written none */
	NVM_LOG_BY_CALLS,			/* its calls make them again */
	NVM_LOG_BY_VALUES
} NvmLogBy;

/*
 * Who knows of calls (command/) says so in _PG_init.  begin: the record of a transaction
 * begins; *alone, if it is by calls: it has no rows of theirs; *old: it has old rows, as by
 * values.  Both are false before.  table: whose storage is this, if it is a nvm_cmdlog table's
 * that the transaction has written, or InvalidOid, and has it a key?  section: NvmLogCalls and parts, padded to a
 * multiple of 4; checksum and rows are those that were noted.  NULL: none is needed, which
 * can be by values alone.  logged: the section is there, and bytes of rows beside it.  The
 * first three may ERROR.
 */
typedef struct NvmLogCallOps
{
	NvmLogBy	(*begin) (bool *alone, bool *old);
	Oid			(*table) (uint32 dir, bool *has_key);
	const char *(*section) (uint64 checksum, uint32 rows, uint32 *length, uint32 *database);
	void		(*logged) (uint64 values, uint64 calls);
} NvmLogCallOps;

extern void nvm_log_register_calls(const NvmLogCallOps *ops);

/*
 * Between nvm_log_begin and nvm_log_end, for who captures rows: what nvm_cmdlog tables need,
 * the table of this storage if it is one of these, and a row's checksum, by calls.  A
 * row may be noted several times, and counts once.  May ERROR.
 */
extern NvmLogBy nvm_log_by;
extern bool nvm_log_old_rows;	/* rows of nvm_cmdlog tables need old ones */
extern bool nvm_log_calls_alone;	/* rows of storages with NVM_DIR_COMMANDS
									 * are noted, and not logged */
extern Oid	nvm_log_table_of_rows(uint32 dir, bool *has_key);
extern void nvm_log_note_checksum(uint32 dir, uint32 block, uint16 offset, uint64 checksum);

/*
 * The same without a record: between begin and end checksums are noted, and nothing else is
 * done with what is captured.  An ERROR between ends it with the transaction.
 */
extern bool nvm_log_sums_alone;
extern void nvm_log_sum_begin(void);
extern void nvm_log_sum_end(uint64 *checksum, uint32 *rows);

/* ---- log_checkpoint.c ---- */

typedef struct NvmLogBegin
{
	NvmLogPosition decided;		/* everything before is decided, but for ASK
								 * records from `begin` on */
	NvmLogPosition begin;
	uint32		generation;		/* file of the log that is being written;
								 * `begin` lies in it, or behind or before it */
	uint32		file;
} NvmLogBegin;

/* a checkpoint begins; cannot fail */
extern void nvm_log_checkpoint_begin(NvmLogBegin *begin);

/*
 * Who wants to know of checkpoints (command/) says so in _PG_init.  begins: before
 * nvm_log_checkpoint_begin; cannot fail.  usable: it counts from now on; nobody who has asked for
 * it goes on before that returns.
 */
typedef struct NvmCheckpointWatch
{
	void		(*begins) (void);
	void		(*usable) (void);

	/*
	 * A recovery has read the log, or it is new: these databases have calls
	 * alone in it that the checkpoint does not show, and no others.  Cannot
	 * fail.
	 */
	void		(*log_is_known) (const uint32 *databases, int n);
} NvmCheckpointWatch;

extern void nvm_log_register_checkpoint_watch(const NvmCheckpointWatch *watch);
extern void nvm_log_tell_checkpoint_begins(void);
extern void nvm_log_tell_checkpoint_usable(void);
extern void nvm_log_tell_alone(const uint32 *databases, int n);

/*
 * Who makes checkpoints (vlog/) says so in _PG_init.  ask: for one that begins from now on;
 * wait: until it is usable, ERROR if it fails; else cannot fail.
 */
extern void nvm_log_register_checkpointer(void (*ask) (bool wait));
extern void nvm_log_ask_checkpoint(bool wait);

/* inserted, and the bytes of side files of this run: a measure of what is written */
extern uint64 nvm_log_volume(void);

/* the header of a data file, which is that of a side file */
struct NvmLogFileHeader;
extern void nvm_log_fill_side_header(struct NvmLogFileHeader *header);

/* a file of blocks that nobody needs: the spare file if there is none, else it goes */
extern void nvm_log_recycle(int directory, const char *path);

/* ---- log_insert.c: places ---- */

/*
 * Decide the transaction of `stamp`, which has left the proc array committed, if
 * nobody has: its record, if it has one, gets its place, and decide(stamp) stores
 * its word.  Cannot fail.  decide is called with the insert lock held, and returns
 * false if somebody had stored it.
 */
extern void nvm_log_decide(uint64 stamp, bool (*is_decided) (uint64 stamp),
						   void (*decide) (uint64 stamp));

/*
 * A transaction that pg_xact decides: place its ASK record, and wait for it.  May
 * ERROR.  Later, when it is decided, its outcome; cannot fail.
 */
extern void nvm_log_ask(uint64 stamp);
extern void nvm_log_outcome(bool committed);

/* it is prepared: its outcome is no longer this process's matter */
extern void nvm_log_leave_asked(void);

/*
 * An ASK record of an earlier generation has no OUTCOME, and its transaction is
 * prepared: this slot stands for it.  reserve: room for the outcome; may ERROR.
 * note: uses what was reserved, cannot fail; once more changes nothing.  position: where
 * the record begins.
 */
extern void nvm_log_reserve_outcome(void);
extern void nvm_log_note_asked(uint32 slot, uint64 fxid, NvmLogPosition position);

/* the outcome of a transaction that a start has found in doubt; may ERROR */
extern void nvm_log_note_outcome(uint64 fxid, bool committed);

/*
 * The xid of a volatile slot's ASK record that has no OUTCOME yet, or 0: also after
 * the process has died, or left the slot to a prepared transaction.  Who resolves, or
 * settles, says the outcome.  That cannot fail.
 */
extern uint64 nvm_log_asked(uint32 slot);
extern void nvm_log_place_outcome(uint32 slot, bool committed);

/* ---- log_write.c: sync what nobody waits for ---- */
extern void nvm_log_write_some(void);

/* the same, by the keeper, while the recovery worker has no time for it, or is not there */
extern void nvm_log_write_instead(void);

/* the position up to which places are drawn, and up to which all is synced */
extern NvmLogPosition nvm_log_inserted(void);
extern PGDLLEXPORT NvmLogPosition nvm_log_persistent(void);

/* ---- log_wait.c ---- */

extern void nvm_log_rest_on_slow(uint32 slot);

/*
 * The current process has accepted the stamp of a volatile slot as committed; it is
 * decided.
 */
static inline void
nvm_log_rest_on(uint32 slot)
{
	if (unlikely(slot >= NVM_VOLATILE_SLOT) && nvm_log_is_on)
		nvm_log_rest_on_slow(slot);
}

/* is everything persistent that is decided in this slot? */
extern bool nvm_log_has_slot(uint32 slot);

/*
 * Wait for what the process rests on.  nvm_log_wait_rests: at PRE_COMMIT, may ERROR
 * (cancel).  nvm_log_wait_after_locks: COMMIT has come by, wait when the locks are
 * gone; also for the last place of `slot`, if that is not 0.
 */
extern bool nvm_log_rests_on_more(void);

/*
 * Wait until the log has, durably, what pg_xact has answered about all xids below this
 * one: pg_xact may be cut off there.  May ERROR (cancel).
 */
extern void nvm_log_wait_outcomes(TransactionId xid);
extern void nvm_log_wait_rests(void);
extern void nvm_log_wait_after_locks(uint32 slot);

/* wait for this position; may ERROR (cancel, termination, a log that cannot be written) */
extern void nvm_log_wait_for(NvmLogPosition position);

#endif							/* NVM_LOG_H */
