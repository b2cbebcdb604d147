/*-------------------------------------------------------------------------
 *
 * log_impl.h
 *	  What the files of log/ share among themselves.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_IMPL_H
#define LOG_IMPL_H

#include "postgres.h"

#include "log/nvm_log.h"
#include "media/media_log.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/guc.h"

/*
 * The record of a slot's transaction from its PRE_COMMIT to its decision.
 * Written by the slot's owner; read by whoever decides, under the insert lock.
 */
#define NVM_LOG_BUFFER_SIZE		65536

typedef struct NvmLogBuffer
{
	uint64		counter;		/* of the transaction whose record it is;
								 * stored last */
	uint32		length;			/* of the record; 0: it has none */
	uint32		begin;			/* where in `data` it begins */
	char		data[NVM_LOG_BUFFER_SIZE - 16];
} NvmLogBuffer;

#define NVM_LOG_RECORD_MAX		(NVM_LOG_BUFFER_SIZE - 16)

StaticAssertDecl(NVM_LOG_RECORD_MAX <= NVM_LOG_BLOCK_MAX, "a record fits a block");

#define NVM_LOG_RING			(UINT64CONST(16) * 1024 * 1024)

/*
 * What outlives a process: memory that goes with the volatile region.
 */
typedef struct NvmLogMemory
{
	/* 0: the log has not begun; set once, and stored last */
	pg_atomic_uint32 begun;

	/* constant in a generation */
	uint32		generation;
	NvmLogPosition start;

	pg_atomic_uint64 number;	/* the last one drawn */
	pg_atomic_uint64 inserted;	/* insert lock */
	pg_atomic_uint64 persistent;	/* write lock */

	/* a decision that is being made; insert lock */
	pg_atomic_uint64 placing_stamp;
	pg_atomic_uint64 placing_end;

	/* behind what is synced; write lock */
	uint32		file;			/* number of the file */
	uint32		files_made;		/* counts, so that a file that was replaced is
								 * opened anew */
	NvmLogPosition first;		/* of the file */
	uint32		chain;
	uint64		offset;			/* in the file */
	bool		file_is_bad;	/* nothing is written to it any more */
	int			directory;		/* in which it lies */
	uint32		tried;			/* the highest number under which a file may
								 * have got a name */
	int			tried_in;		/* and where; -1: not known */

	/* whether the region has everything: see NvmLogRebuild */
	uint32		rebuild;

	/* tables open one by one: vlog/README.md, "Opening" */
	uint32		opening;		/* set once, and stored last */
	uint64		rebuild_stamp;	/* of all rows that are rebuilt; 0: none yet */
	uint64		first_xid;		/* see nvm_log_note_first_xid; 0: none yet */
	NvmLogPosition rebuild_limit;	/* no record behind it is about a row that
									 * is to be rebuilt */
	uint32		played;			/* a database that is replayed, and whose
								 * tables are being opened; or 0 */
	uint64		tries[NVM_LOG_REPLAYED];	/* see nvm_log_note_tries */
	NvmLogPosition playing[NVM_LOG_REPLAYED][NVM_LOG_PLAYERS];	/* of the same one, see
																 * nvm_log_note_playing */
	pg_atomic_uint32 buffers;	/* so many of buffer[] have memory */

	pg_atomic_uint64 place[NVM_MAX_SLOTS];	/* of each volatile slot's last
											 * decision */

	/*
	 * xid of the slot's ASK record that has no OUTCOME yet, or 0; insert lock
	 */
	uint64		asked[NVM_MAX_SLOTS];
	NvmLogPosition asked_at[NVM_MAX_SLOTS]; /* where that record begins */
	uint64		closed[NVM_MAX_DIRS];	/* creation id of a storage whose rows
										 * are yet to be rebuilt; by directory
										 * id */
	char		ring[NVM_LOG_RING];
	NvmLogBuffer buffer[NVM_MAX_SLOTS];
} NvmLogMemory;

extern NvmLogMemory *nvm_log_memory;

/*
 * Who joins a round, and whether it pays to wait for them (log_gather.c).  Written by
 * whoever holds the write lock, but for `members`.
 */
#define NVM_LOG_GATHER_ROUNDS	8

typedef struct NvmLogGather
{
	pg_atomic_uint64 round;		/* that is to be written next */
	pg_atomic_uint32 members[NVM_LOG_GATHER_ROUNDS];	/* processes whose last
														 * round it is, by round */
	double		sync_usec;		/* what a round's write and sync take */
	double		gain;			/* microseconds, of the last waits */
	uint64		pause;			/* rounds */
	uint64		paused_until;	/* round */
} NvmLogGather;

/*
 * A directory of the log, in this run (log_directory.c).
 */
typedef struct NvmLogDirectory
{
	pg_atomic_uint32 is_out;	/* it has failed: nothing goes there */
	pg_atomic_uint64 next_look; /* TimestampTz; whether it still is so */
	slock_t		mutex;			/* why it was out the last time: */
	int			failed_errno;
	char		failed_what[MAXPGPATH + 64];

	pg_atomic_uint32 spare_is_ready;	/* see nvm_log_make_spare */

	/* counts, of this run; see those in NvmLogShared */
	pg_atomic_uint64 position;	/* up to which it has had a part synced */
	pg_atomic_uint64 rounds;
	pg_atomic_uint64 bytes;
	pg_atomic_uint64 waits;
	pg_atomic_uint64 wait_usec;
} NvmLogDirectory;

/*
 * In PostgreSQL's shared memory: made anew by each start.
 */
typedef struct NvmLogShared
{
	LWLock	   *insert_lock;
	LWLock	   *write_lock;
	ConditionVariable written;	/* a round is over */
	pg_atomic_uint64 round_began;	/* TimestampTz; write lock, read without */
	pg_atomic_uint64 next_try;	/* likewise, of a log that is broken */
	uint64		reserved;		/* bytes; insert lock */
	NvmLogGather gather;

	/* the log cannot be written: why; write lock, read without */
	pg_atomic_uint32 broken;
	int			broken_errno;
	char		broken_what[MAXPGPATH + 64];

	/* the file that is written; write lock */
	uint64		file_device;
	uint64		file_inode;
	pg_atomic_uint64 lost_before;	/* a file that ended here has vanished */

	/* what there was at the start; constant */
	NvmLogPosition start_inserted;
	uint64		start_number;

	char		rebuild_problem[512];
	pg_atomic_uint32 recovery_pid;	/* of the worker that rebuilds; 0: none */
	pg_atomic_uint32 refuses_writers;	/* see nvm_log_refuse_writers */
	NvmLogProgress progress;

	NvmLogDirectory directory[NVM_LOG_MAX_DIRECTORIES];
	pg_atomic_uint32 turn;		/* of side files: which directory is the next */

	/* counts, of this run */
	pg_atomic_uint64 records;
	pg_atomic_uint64 rounds;	/* syncs */
	pg_atomic_uint64 bytes;		/* written, with headers and padding */
	pg_atomic_uint64 side_bytes;	/* in side files */
	pg_atomic_uint64 waits;		/* of commits */
	pg_atomic_uint64 wait_usec;

	pg_atomic_uint64 rests_on[FLEXIBLE_ARRAY_MEMBER];	/* of each PGPROC */
} NvmLogShared;

extern NvmLogShared *NvmLog;

/* settings (log_memory.c) */
extern char *nvm_log_directories;
extern int	nvm_log_retry_interval; /* seconds */
extern int	nvm_log_delay;		/* microseconds; -1: as long as it pays */
extern bool nvm_wait_for_recovery;

static inline NvmLogBuffer *
nvm_log_buffer(uint32 slot)
{
	return &nvm_log_memory->buffer[slot - NVM_VOLATILE_SLOT];
}

/* ---- log_insert.c ---- */

extern uint64 nvm_log_draw_number(void);

/*
 * Room in the ring for so many bytes, from PRE_COMMIT to the decision.  May wait
 * for the disk, and ERROR.
 */
extern void nvm_log_reserve(uint32 bytes);
extern void nvm_log_unreserve(uint32 bytes);

/* a start that finds the memory: room for the OUTCOME of each ASK record without one */
extern void nvm_log_reserve_asked(void);

/* copy `length` bytes of the stream from the ring, and into it */
extern void nvm_log_ring_read(NvmLogPosition position, void *to, Size length);
extern void nvm_log_ring_write(NvmLogPosition position, const void *from, Size length);

/* ---- log_capture.c ---- */

/* the record of the current transaction: NULL if it has none */
extern NvmLogRecord *nvm_log_current(void);

/*
 * Make an ASK record of it, and room for its OUTCOME, too.  May wait for the disk, and
 * ERROR.  The record must be placed at once: from then on an abort gives nothing back.
 */
extern NvmLogRecord *nvm_log_make_ask(void);

/* ---- log_calls.c ---- */

extern void nvm_log_calls_begin(void);
extern bool nvm_log_calls_section(const char **bytes, uint32 *length, uint32 *database);
extern void nvm_log_calls_logged(uint64 values, uint64 calls);
extern void nvm_log_calls_end(void);

/* ---- log_pack.c ---- */

#define NVM_LOG_PACKED_ROOM		512

extern bool nvm_log_compression;	/* setting */

/*
 * Pack a tuple of a storage; `packed` has NVM_LOG_PACKED_ROOM bytes.  Returns how many
 * it takes, or 0 if it stays as it is.
 */
extern uint16 nvm_log_pack(uint32 dir, const void *tuple, uint16 length, char *packed);

/* ---- log_side.c: the side file of the current transaction ---- */

/*
 * create: an empty one.  write: more bytes of storages and rows.  finish: all of it
 * is durable, and *reference is what the record says of it.  These may ERROR.
 * discard: remove it, if there is one.  keep: it is the log's.
 */
extern void nvm_log_side_create(uint64 number);
extern void nvm_log_side_write(const void *data, Size length);
extern void nvm_log_side_finish(NvmLogSide *reference);
extern void nvm_log_side_discard(void);
extern void nvm_log_side_keep(void);

/* ---- log_write.c ---- */

/*
 * Bring `wanted` nearer: write and sync a round, or sleep until another process's
 * round is over, a tenth of a second at most.  False if the log cannot be written.
 * Serves no interrupt.  has_locks: an interrupt ends the waiting for another process's
 * round, whatever the disk does.
 */
extern bool nvm_log_write_round(NvmLogPosition wanted, bool has_locks);

/* in the postmaster, alone; once: without another file if this one fails */
extern bool nvm_log_write_rest(void);
extern bool nvm_log_write_once(void);

/* ---- log_gather.c ---- */

/*
 * join: this process is going to wait for what it has placed; nothing is held.  The
 * others are for the holder of the write lock.  gather: wait for others; it holds no
 * heavyweight lock.  close: who joins from now on is in the next round.  synced: what
 * the round's write and sync took.
 */
extern void nvm_log_gather_init(void);
extern void nvm_log_gather_join(void);
extern void nvm_log_gather(void);
extern void nvm_log_gather_close(void);
extern void nvm_log_gather_synced(int64 usec);

/* ---- log_wait.c ---- */

extern void nvm_log_require_writable(void);

/* ---- log_generation.c ---- */

/* at a start, in the postmaster: false after refusing the pool */
extern bool nvm_log_begin_generation(void);

/* the first one; ERROR.  Caller holds the write lock. */
extern void nvm_log_begin_first(void);

/*
 * Durably make the directories that are not there: the pool's header is going to say that
 * they are.  Returns the first one for which that fails, with errno set, or NULL.
 */
extern const char *nvm_log_make_directories(void);

/* ---- log_reset.c: nvm.reset_log() ---- */

/*
 * Move all files of the log away, and give up what they would bring back.  *generation:
 * that of the pool's header on entry; the highest one that there are files of on return,
 * if that is higher.  False after refusing the pool.
 */
extern bool nvm_log_give_up(uint32 *generation);

/*
 * The log goes on.  What was asked for is over, unless it was to give up rows and they are
 * still there.  False after refusing the pool.
 */
extern bool nvm_log_settle_reset(bool rows_are_gone, bool log_is_new);

/* ---- log_kept.c: memory that a start has found in a file ---- */

extern bool nvm_log_file_is_damaged;
extern uint32 nvm_log_memory_layout(void);
extern bool nvm_log_check_kept(const char *companion, const NvmPoolHeader *h,
							   const char **problem);

/* log_generation.c: memory is new */
extern bool nvm_log_check_begin(const NvmPoolHeader *h);

/* ---- log_directory.c ---- */

extern bool nvm_log_check_directories(char **newval, void **extra, GucSource source);
extern void nvm_log_set_directories(void);
extern void nvm_log_directories_init(void);

/* why the directories cannot be used at a start, or NULL */
extern const char *nvm_log_directories_problem(void);

extern bool nvm_log_is_out(int which);
extern void nvm_log_put_out(int which, const char *step, const char *path);

/*
 * The directory for a file, behind `after`; none of those in the mask.  -1: that were
 * all.
 */
extern int	nvm_log_deal(int after, uint32 tried);
extern void nvm_log_directory_works(int which);
extern bool nvm_log_is_look_due(int which);
extern bool nvm_log_sync_directory(int which);

/* ---- log_watch.c ---- */

extern void nvm_log_watch_file(int fd);
extern bool nvm_log_is_removed(int fd);

/* caller holds the write lock */
extern void nvm_log_file_has_gone(void);

/* look for the file that is written, every second; takes the write lock */
extern void nvm_log_watch(void);

/* ---- log_file.c ---- */

/* of the directory that comes next; and of those that are out, from time to time */
extern void nvm_log_make_spare(void);
extern void nvm_log_look_at_directories(void);
extern void nvm_log_spare_path(char *path, int directory);

/* an attempt begins: each directory may be tried once */
extern void nvm_log_begin_attempt(void);

/* prefer: the directory for it; problem: why it is false, if broken_what does not say so */
extern bool nvm_log_first_file(int prefer);
extern bool nvm_log_next_file(void);
extern bool nvm_log_file_write(const char *from, Size size, uint64 offset);
extern bool nvm_log_file_sync(void);

extern void nvm_log_fill_header(NvmLogFileHeader *header, uint32 number);
extern void nvm_log_file_path(char *path, int directory, uint32 generation, uint32 number);
extern void nvm_log_side_path(char *path, int directory, uint32 generation, uint64 number);

/* the directory of a file of blocks, or -1 */
extern int	nvm_log_find_file(uint32 generation, uint32 number);

/* ---- log_replayed.c ---- */

extern Size nvm_log_replayed_shmem_size(void);
extern void nvm_log_replayed_shmem_startup(LWLock *lock);

/*
 * Somebody waits for closed tables of a database, or, InvalidOid, for all of the region: ERROR
 * if what he waits for will not come by itself, or does not come before he has ended.  *looked:
 * false at first.  No LWLock is held.
 */
extern void nvm_log_replay_look(Oid database, bool *looked);

#endif							/* LOG_IMPL_H */
