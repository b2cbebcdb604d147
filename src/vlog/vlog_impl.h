/*-------------------------------------------------------------------------
 *
 * vlog_impl.h
 *	  What the files of vlog/ share among themselves.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef VLOG_IMPL_H
#define VLOG_IMPL_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "log/nvm_log.h"
#include "port/atomics.h"
#include "row/nvm_rebuild.h"
#include "storage/condition_variable.h"
#include "storage/spin.h"
#include "verify/nvm_verify_log.h"
#include "wbl/nvm_wbl.h"

/* where memory that the processes of a rebuild share lies: nvm_vlog_at */
typedef uint64 NvmVlogMemory;	/* 0: none */

/* processes that rebuild, the first one among them */
#define NVM_VLOG_MAX_PROCESSES	64

/* rows are dealt to so many partitions, by table and NVM_VLOG_GRANULE blocks */
#define NVM_VLOG_PARTITIONS		256
#define NVM_VLOG_GRANULE		64

/* a file of the log */
typedef struct NvmVlogFile
{
	NvmLogName	name;
	uint64		checkpoint;		/* a data file: of this checkpoint, or 0 */
	uint32		part;			/* of it; 0: of an UNLOGGED table, whose
								 * creation id `checkpoint` is.  Then
								 * name.generation is an incarnation */
	int			directory;		/* that has it; -1: none */

	/* a file of blocks: of its header */
	NvmLogPosition start;
	NvmLogPosition first;

	/* a side file, or a data file */
	NvmLogSide	side;
	uint64		number;			/* of the record; 0: a data file */
	uint32		generation;		/* of the record */
	uint32		ask;			/* 1 + ASK record, or 0 */
	bool		is_shown;		/* of the record: the checkpoint has it */
	bool		is_alone;		/* its calls are logged alone */
	NvmVlogMemory chunk;		/* NvmVlogChunk: sections by the dozen */
	uint32		nchunks;

	uint64		size;			/* 0: nobody has looked */
} NvmVlogFile;

/* sections of a side file: rows of any of them have their pieces here */
typedef struct NvmVlogChunk
{
	uint64		begin;			/* bytes of the file */
	uint64		end;
} NvmVlogChunk;

typedef enum NvmVlogVerdict
{
	NVM_VLOG_UNKNOWN,			/* pg_xact has to be asked */
	NVM_VLOG_COMMITTED,
	NVM_VLOG_ABORTED,
	NVM_VLOG_PREPARED			/* not decided yet, or in this life: a slot
								 * stands for it */
} NvmVlogVerdict;

/* an ASK record */
typedef struct NvmVlogAsk
{
	uint64		xid;
	NvmLogPosition position;	/* where it begins */
	NvmLogPosition outcome;		/* where its OUTCOME begins, or 0 */
	NvmVlogVerdict verdict;
	NvmRebuildBy by;			/* if it is prepared */
} NvmVlogAsk;

/*
 * Where an item lies: is it of a row that is gone, or a piece of a large value, file, byte
 * of the file: 1, 1, 22 and 40 bits
 */
#define NVM_VLOG_ITEM(file, byte)	(((uint64) (file) << 40) | (uint64) (byte))
#define NVM_VLOG_ITEM_GONE			(UINT64CONST(1) << 63)
#define NVM_VLOG_ITEM_LARGE			(UINT64CONST(1) << 62)
#define NVM_VLOG_ITEM_FILE(item)	((int) ((item) >> 40 & 0x3FFFFF))
#define NVM_VLOG_ITEM_BYTE(item)	((item) & ((UINT64CONST(1) << 40) - 1))

/* a row that is there: where its root is, and its newest version */
typedef struct NvmVlogRoot
{
	uint64		place;			/* NVM_VLOG_PLACE */
	uint64		item;			/* the row, or the first piece of its large
								 * values */
} NvmVlogRoot;

/* what a prepared transaction makes of a row */
typedef struct NvmVlogPending
{
	uint64		place;
	uint64		item;
	uint32		ask;			/* 1 + ASK record */
} NvmVlogPending;

/* directory entry, block, cell: 20, 32 and 8 bits */
#define NVM_VLOG_PLACE(dir, blk, off) \
	(((uint64) (dir) << 40) | ((uint64) (uint32) (blk) << 8) | (uint8) (off))
#define NVM_VLOG_PLACE_DIR(place)		((uint32) ((place) >> 40))
#define NVM_VLOG_PLACE_BLOCK(place)		((uint32) ((place) >> 8))

/* rows of one table in one partition */
typedef struct NvmVlogRun
{
	uint32		dir;
	uint32		nblocks;		/* up to the last root */
	uint64		root;			/* the first one, and how many */
	uint64		nroots;
	uint64		pending;
	uint64		npending;
	uint64		ncells;			/* that all of them take */
	uint64		large_units;	/* of large values */
} NvmVlogRun;

/* what is collected of a partition: vlog_choose.c */
typedef struct NvmVlogPartition
{
	NvmVlogMemory root;			/* NvmVlogRoot, by place */
	NvmVlogMemory pending;		/* NvmVlogPending, by place, each once */
	NvmVlogMemory run;			/* NvmVlogRun, by directory id */
	uint64		nruns;
} NvmVlogPartition;

/* a table that is being placed: vlog_place.c */
typedef struct NvmVlogTable
{
	uint32		dir;
	uint32		nblocks;		/* to be made */
	uint64		nroots;
	uint64		nunits;			/* that it will take, about */
	pg_atomic_uint64 claim;		/* of these, not taken yet */
	uint32		nmake;			/* tasks that make blocks */
	pg_atomic_uint32 made;		/* of these, done */
	pg_atomic_uint32 left;		/* tasks that are not done */
	pg_atomic_uint32 overflow;	/* next block for what does not fit at its
								 * root */
	NvmVlogMemory late;			/* NvmVlogLate: rows that are placed when all
								 * others are; protected by mutex */
	bool		held;			/* opens when row locks are given back */
	bool		is_played;		/* opens when the calls of its database are
								 * replayed */
	bool		gone;
} NvmVlogTable;

/* rows of one block that were put off */
typedef struct NvmVlogLate
{
	NvmVlogMemory next;
	uint32		n;
	uint64		item[FLEXIBLE_ARRAY_MEMBER];
} NvmVlogLate;

typedef enum NvmVlogStep
{
	NVM_VLOG_IDLE,
	NVM_VLOG_READ,				/* a file of blocks */
	NVM_VLOG_CHECK,				/* a side file or a data file */
	NVM_VLOG_COLLECT,			/* a chunk of one */
	NVM_VLOG_CHOOSE,			/* a partition */
	NVM_VLOG_PLACE				/* blocks or rows of a table */
} NvmVlogStep;

/* a record of calls alone: vlog_play.c */
typedef struct NvmVlogAlone
{
	Oid			database;
	uint32		ask;			/* 1 + ASK record */
} NvmVlogAlone;

/* a list of equal elements that one process makes: vlog_share.c */
typedef struct NvmVlogList
{
	NvmVlogMemory first;		/* NvmVlogBatch */
	NvmVlogMemory last;
	uint64		n;
} NvmVlogList;

/* what a process has read: see vlog_read.c and vlog_collect.c */
typedef struct NvmVlogOutput
{
	NvmVlogList event;			/* ASK and OUTCOME records */
	NvmVlogList side;			/* records with side files */
	NvmVlogList alone;			/* NvmVlogAlone, of ASK records */
	int			nalone;			/* databases with other records of calls alone */
	Oid			alone_in[NVM_LOG_REPLAYED];
	NvmVlogList candidate[NVM_VLOG_PARTITIONS];
	uint64		limit[NVM_VLOG_PARTITIONS]; /* candidates from which on they
											 * are thinned out */
} NvmVlogOutput;

/*
 * What the processes of a rebuild share.
 */
typedef struct NvmVlogShared
{
	uint32		generation;		/* that is being written */
	NvmLogPosition end;			/* all before it is read */
	NvmLogPosition limit;		/* rows of records behind it are not placed */
	NvmVlogMemory checkpoint;	/* NvmLogCheckpoint, or 0 */
	NvmStamp	stamp;			/* of all rows; 0: none yet */

	/* made between two steps by the first process; else constant */
	NvmVlogMemory file;			/* NvmVlogFile: of blocks, in order; data
								 * files; side files */
	int			nfiles;
	int			nblock_files;
	NvmVlogMemory ask;			/* NvmVlogAsk, as they were numbered */
	uint64		nasks;
	uint32		ndirs;
	NvmVlogMemory creation;		/* uint64, of each table that is to be
								 * rebuilt, by directory id; 0: no such table */
	NvmVlogMemory played;		/* bool, by directory id: is it a table whose
								 * rows in the log do not count? */
	NvmVlogMemory chunk;		/* ChunkTask: vlog_collect.c */
	NvmVlogMemory run;			/* TableRun: vlog_place.c */
	NvmVlogMemory table;		/* NvmVlogTable */
	uint32		ntables;
	NvmVlogMemory task;			/* PlaceTask */
	uint64		nplace;
	NvmVlogMemory output;		/* NvmVlogOutput of each process */
	NvmVlogPartition partition[NVM_VLOG_PARTITIONS];
	pg_atomic_uint32 next_ask;
	pg_atomic_uint64 nrows;		/* placed */
	pg_atomic_uint64 nmoved;

	/* vlog_share.c */
	int			nprocesses;		/* at most */
	bool		came[NVM_VLOG_MAX_PROCESSES];
	slock_t		mutex;			/* for what follows */
	uint64		sequence;		/* of the step */
	NvmVlogStep step;
	uint64		next;			/* task */
	uint64		ntasks;
	uint64		done;
	bool		stop;
	bool		failed;			/* the first problem of any but the first
								 * process: */
	int			sqlerrcode;
	char		message[512];
	char		detail[512];
	ConditionVariable changed;
} NvmVlogShared;

/*
 * A rebuild, as one process sees it.
 */
typedef struct NvmVlog
{
	MemoryContext context;
	const uint8 *uuid;			/* of the pool */
	struct dsa_area *area;		/* NULL: this process is alone */
	NvmVlogShared *shared;
	int			process;		/* 0: the first */
	const NvmLogCheckpoint *checkpoint; /* or NULL */
	const uint64 *creation;
	const bool *played;			/* NULL: it is not known yet */
	NvmVlogFile *file;
	NvmVlogOutput *output;
	const char **base;			/* of each file; NULL: not mapped here */
	uint64	   *mapped;			/* its bytes */
	int			nbases;
	bool		fresh;			/* no rows have been placed yet */
	bool		allocating;		/* shared memory; an ERROR means that there is
								 * none, whatever its code */
	bool		reads_only;		/* vlog_reader.c: there is no rebuild */
} NvmVlog;

/* ---- vlog_share.c: processes, shared memory, steps ---- */

/*
 * Begin a rebuild with at most so many processes beside this one, which come when
 * they can; may ERROR.  End: nobody is left, and the memory is gone; cannot fail.
 */
extern void nvm_vlog_share_begin(NvmVlog *vlog, int nothers);
extern void nvm_vlog_share_dismiss(NvmVlog *vlog);	/* the others alone */
extern void nvm_vlog_share_end(NvmVlog *vlog);
extern void nvm_vlog_share_exit(int code, Datum arg);	/* this process ends */

/* shared memory; zeroed; may ERROR */
extern NvmVlogMemory nvm_vlog_alloc(NvmVlog *vlog, Size size);
extern void *nvm_vlog_at(const NvmVlog *vlog, NvmVlogMemory memory);
extern void nvm_vlog_free(NvmVlog *vlog, NvmVlogMemory memory);

/* elements of a list, in batches */
typedef struct NvmVlogBatch
{
	NvmVlogMemory next;
	uint32		n;
	uint32		room;
} NvmVlogBatch;

#define NVM_VLOG_BATCH_DATA(batch)	((char *) (batch) + MAXALIGN(sizeof(NvmVlogBatch)))

extern void *nvm_vlog_list_add(NvmVlog *vlog, NvmVlogList *list, Size size);
extern void nvm_vlog_list_free(NvmVlog *vlog, NvmVlogList *list);

/* all elements of a list, behind each other at `to` */
extern void nvm_vlog_list_copy(const NvmVlog *vlog, const NvmVlogList *list, Size size, void *to);

/* have tasks done, by all processes; ERROR if one of them fails */
extern void nvm_vlog_run_step(NvmVlog *vlog, NvmVlogStep step, uint64 ntasks);

/* does this process help with a rebuild that is over? */
extern bool nvm_vlog_is_stopped(void);

/* wait a moment, for another process to do a task */
extern void nvm_vlog_wait(NvmVlog *vlog);


/* processes at work, with this one */
extern int	nvm_vlog_workers(const NvmVlog *vlog);

/* the entry point of another process */
extern PGDLLEXPORT void nvm_vlog_worker_main(Datum main_arg);

/* ---- vlog_files.c ---- */

extern void nvm_vlog_find_files(NvmVlog *vlog);

/*
 * For a reader: the files of blocks from the one on that has this position, and room for one
 * side file behind them; the data files of its checkpoint, returns how many.
 */
extern void nvm_vlog_find_blocks(NvmVlog *vlog, NvmLogPosition begin);
extern int	nvm_vlog_find_data(NvmVlog *vlog);

/* bytes of a file; ERROR if it is not there, or cannot be read */
extern const char *nvm_vlog_map(NvmVlog *vlog, int file);
extern void nvm_vlog_unmap(NvmVlog *vlog);
extern void nvm_vlog_unmap_one(NvmVlog *vlog, int file);

/* of a side file or data file, whose header and checksum are right; or ERROR */
extern const char *nvm_vlog_map_side(NvmVlog *vlog, int file);

/* a side file that is there: its generation may be an earlier one */
extern void nvm_vlog_find_side(NvmVlogFile *file);

/* files of blocks that have something to be read */
extern int	nvm_vlog_files_to_read(const NvmVlog *vlog);

/* up to where a file of blocks counts */
extern NvmLogPosition nvm_vlog_limit_of(const NvmVlog *vlog, int file);

/* name of a file without its directory, in memory of the current context */
extern char *nvm_vlog_file_name(const NvmVlogFile *file);

/* ERROR: this is wrong with a file */
extern void nvm_vlog_damaged(const NvmVlogFile *file, const char *problem) __attribute__((noreturn));

static inline const NvmLogRow *
nvm_vlog_item(NvmVlog *vlog, uint64 item)
{
	int			file = NVM_VLOG_ITEM_FILE(item);
	const char *base = vlog->base[file];

	if (unlikely(base == NULL))
		base = nvm_vlog_map(vlog, file);
	return (const NvmLogRow *) (base + NVM_VLOG_ITEM_BYTE(item));
}

/* ---- vlog_read.c: a file of blocks ---- */

extern void nvm_vlog_read(NvmVlog *vlog, int file);

/* ERROR: the blocks of a file end before the limit of the cursor */
extern void nvm_vlog_range_is_missing(const NvmVlogFile *file, const NvmLogCursor *cursor)
			__attribute__((noreturn));

/*
 * When all are read: the ASK records, and side files, that count.  nvm_vlog_decide
 * (vlog_ask.c) comes between them.
 */
extern void nvm_vlog_gather_asks(NvmVlog *vlog);
extern void nvm_vlog_gather_sides(NvmVlog *vlog);

/* ---- vlog_ask.c ---- */

extern bool nvm_vlog_decide(NvmVlog *vlog);

/* ---- vlog_collect.c ---- */

extern void nvm_vlog_note_tables(NvmVlog *vlog);

/*
 * Rows of a record, or of a side file or data file, from a walk that has been looked at
 * (nvm_log_storages_problem).
 */
extern void nvm_vlog_collect_rows(NvmVlog *vlog, int file, NvmLogWalk *storages, uint64 number,
								  uint32 generation, uint32 ask, bool is_shown);
extern void nvm_vlog_check_side(NvmVlog *vlog, int file);
extern uint64 nvm_vlog_list_chunks(NvmVlog *vlog);
extern void nvm_vlog_collect_chunk(NvmVlog *vlog, uint64 chunk);

/* ---- vlog_play.c: databases whose calls are replayed ---- */

/* has the checkpoint all that the transaction of a record has done? */
extern bool nvm_vlog_is_shown(const NvmVlog *vlog, const NvmLogRecord *record);

/* `calls` is of a record of calls alone that is not shown */
extern void nvm_vlog_note_alone(NvmVlog *vlog, const NvmLogSection *calls, uint32 ask);

/* when all are read and checked: which databases, and tables, are to be replayed */
extern void nvm_vlog_choose_databases(NvmVlog *vlog);

/*
 * When rows are placed, and all other tables are open: replay what there is, and open these.
 * Does not return if that has to begin anew.
 */
extern void nvm_vlog_replay(NvmVlog *vlog);

/* a death has left some tables of one closed, with all of their rows */
extern void nvm_vlog_open_played(void);

/*
 * Before closed tables are emptied: nobody replays into them, or makes a checkpoint of them, any
 * more.
 */
extern void nvm_vlog_stop_replay(void);

/* the rebuild has failed: databases that are not replayed wait for the next start */
extern void nvm_vlog_leave_replay(void);

/* ---- vlog_choose.c: which candidate counts ---- */

/* one that a process has come by */
typedef struct NvmVlogCandidate
{
	uint64		place;
	uint64		item;
	uint64		number;			/* of the record's transaction */
	uint32		generation:24;	/* of the record */
	uint32		cells:8;		/* that the row takes; 0: it is gone */
	uint32		ask;			/* 1 + ASK record, or 0 */
} NvmVlogCandidate;

#define NVM_VLOG_LAST_GENERATION	((1 << 24) - 1)

extern void nvm_vlog_thin_out(NvmVlog *vlog, int partition);
extern void nvm_vlog_choose(NvmVlog *vlog, int partition);

/* ---- vlog_place.c ---- */

extern void nvm_vlog_empty(void);
extern uint64 nvm_vlog_list_tables(NvmVlog *vlog);

/* units that tables need which are not open */
extern uint64 nvm_vlog_closed_units(NvmVlog *vlog);
extern void nvm_vlog_place(NvmVlog *vlog, uint64 task);

/* tables of prepared transactions, when their row locks are back */
extern void nvm_vlog_open_held(NvmVlog *vlog);

/* ---- vlog_whole.c: small files, replaced as a whole ---- */

/*
 * Write it under a name for the time being, which lies in this directory: returns the open
 * file, which is to be synced.  sync_names: files in directories of this mask are found
 * under their names.  All may ERROR.
 */
extern int	nvm_vlog_write_whole(int directory, const char *temporary, const void *data, Size size);
extern void nvm_vlog_sync_whole(int directory, const char *temporary, int fd);
extern void nvm_vlog_sync_names(uint32 directories);

/* ---- vlog_checkpoint_file.c ---- */

/* the file of the checkpoint that counts, or NULL.  ERROR if it is damaged. */
extern const NvmLogCheckpoint *nvm_vlog_read_checkpoint(void);

/*
 * Make this one count, durably; it has its data files behind it, which lie in these
 * directories.
 */
extern void nvm_vlog_switch_checkpoint(NvmLogCheckpoint *checkpoint, uint32 directories);

extern void nvm_vlog_rows_path(char *path, int directory, uint64 checkpoint, uint32 part);

/* ---- vlog_walk.c: data files ---- */

/*
 * A checkpoint that is being made, or what is kept of UNLOGGED tables.
 */
typedef struct NvmVlogWalk
{
	uint64		number;			/* 0: no checkpoint */
	NvmLogBegin begin;
	TimestampTz started;
	NvmLogSide *side;			/* of each data file */
	uint64	   *table;			/* of each one of an UNLOGGED table: its
								 * creation id */
	uint32		nfiles;
	uint32		file_room;
	uint32		directories;	/* that have any: a mask */
	NvmLogSnapshot *snapshot;	/* of storages that are walked by one; NULL:
								 * there are none */
	uint64		rows;
	uint64		bytes;
	uint64		blocks;			/* looked at */
	uint64		blocks_total;	/* about so many */
} NvmVlogWalk;

/*
 * Write all rows that the log brings back; those of UNLOGGED tables that are open, a file for
 * each that has any.  Synced; may ERROR.  Then, or if nothing comes of it, forget: close what
 * is open.
 */
extern void nvm_vlog_walk(NvmVlogWalk *walk);
extern void nvm_vlog_walk_unlogged(NvmVlogWalk *walk);
extern void nvm_vlog_walk_forget(void);

/* ---- vlog_keep.c: UNLOGGED tables, at a clean stop ---- */

/* this process, which rebuilds, is to end: write them down if that is for a stop */
extern void nvm_vlog_keep(void);

/* ---- vlog_keep_file.c: the list of what was kept ---- */

/* is there anything that this start may believe? */
extern bool nvm_vlog_has_kept(void);

/*
 * The list that the stop before this run has left, or NULL.  ERROR if it is not found and one
 * is damaged, which may be that one.
 */
extern NvmLogKept *nvm_vlog_read_kept(void);

/* make this one count for the next run, durably; its files lie in these directories */
extern void nvm_vlog_switch_kept(NvmLogKept *kept, uint32 directories);

/* is it an UNLOGGED table of the region?  How many are there? */
static inline bool
nvm_vlog_is_unlogged(const NvmDirEntry *entry)
{
	return entry->kind == NVM_DIR_KIND_TABLE && entry->begin != 0 &&
		(entry->flags & NVM_DIR_VOLATILE) != 0 && (entry->flags & NVM_DIR_UNLOGGED) != 0;
}

extern uint32 nvm_vlog_count_unlogged(void);

/* remove all files that this list does not name; NULL: the list, and all files */
extern void nvm_vlog_retire_kept(const NvmLogKept *kept);

extern void nvm_vlog_kept_path(char *path, int directory, uint32 incarnation, uint64 creation);

/* tell of UNLOGGED tables whose rows a clean stop should have kept, and has not */
extern void nvm_vlog_tell_lost(const NvmLogKept *kept);

/* in the postmaster's exit: tables that nobody has come to keep what they had */
extern void nvm_vlog_kept_at_exit(int code, Datum arg);

/* ---- vlog_reader.c: reading while the server runs ---- */

/*
 * A reader, in a context of its own below the current one, without files; then its files,
 * which belong to that context.
 */
extern NvmVlog *nvm_vlog_reader_begin(const char *name);
extern void nvm_vlog_reader_files(NvmVlog *vlog, NvmVlogFile *file, int n);
extern void nvm_vlog_reader_end(NvmVlog *vlog);

/* ERROR: there is no checkpoint to be read */
extern void nvm_vlog_no_checkpoint(void) __attribute__((noreturn));

/* ---- vlog_pin.c: checkpoints that processes read ---- */

#define NVM_VLOG_PINS		8	/* processes, at most */

/* what a checkpoint needs: its data files, and the log from `begin` on */
typedef struct NvmVlogNeeded
{
	uint64		number;
	NvmLogPosition begin;
	uint32		generation;		/* of the log file that has `begin` */
	uint32		file;
} NvmVlogNeeded;

extern Size nvm_vlog_pin_shmem_size(void);
extern void nvm_vlog_pin_shmem_startup(void);

/* all pins, NVM_VLOG_PINS at most; what the oldest of this checkpoint and the pins needs */
extern int	nvm_vlog_pinned(NvmVlogNeeded *pinned);
extern void nvm_vlog_needed(const NvmLogCheckpoint *checkpoint, NvmVlogNeeded *needed);

/* what this process has pinned, or NULL */
extern const NvmLogCheckpoint *nvm_vlog_my_pinned(void);

/* ---- vlog_retire.c: files that nobody needs ---- */

typedef struct NvmVlogRetired
{
	uint32		nlogs;
	uint32		nsides;
	uint32		nrows;
} NvmVlogRetired;

/* the highest number of a checkpoint that has data files, or 0 */
extern uint64 nvm_vlog_highest_checkpoint(void);

/* data files of other checkpoints than this one, and those that are pinned */
extern void nvm_vlog_retire_rows(uint64 keep, NvmVlogRetired *retired);

/*
 * begin->file is the one that is being written: make it the one that has
 * begin->begin.  May ERROR.
 */
extern void nvm_vlog_find_begin(NvmLogBegin *begin);

/*
 * The log before what is needed: files, and side files that records name which come
 * before it.  May ERROR.
 */
extern void nvm_vlog_retire_log(const NvmVlogNeeded *needed, NvmVlogRetired *retired);

/* then: side files that no record names, of before the start */
extern void nvm_vlog_retire_orphans(const NvmVlogNeeded *needed, NvmVlogRetired *retired);

/* side files of lost generations that no record names which was placed */
extern void nvm_vlog_retire_sides(const NvmVlog *vlog);

/* ---- vlog_checkpoint.c ---- */

extern bool nvm_vlog_has_checkpointer(void);

/*
 * Have one that begins from now on; is it usable?  *failed: it has failed.  Until an urgent one is
 * made nvm.checkpoint_rate does not count.
 */
extern uint64 nvm_vlog_request_checkpoint(bool urgent);
extern bool nvm_vlog_checkpoint_is_urgent(void);
extern bool nvm_vlog_has_checkpoint(uint64 request, bool *failed);

/*
 * Is one being made?  Who makes it has an ERROR once it may not be any more, and does not
 * let it count.
 */
extern bool nvm_vlog_checkpoint_runs(void);
extern void nvm_vlog_require_may_checkpoint(void);

/* the checkpoint that counts, as its file was read: for the view */
extern void nvm_vlog_ask_checkpoint(bool wait);
extern void nvm_vlog_note_usable(const NvmLogCheckpoint *checkpoint);

extern int	nvm_checkpoint_rate;
extern int	nvm_checkpoint_file_size;

/* what the view says of the running checkpoint */
extern void nvm_vlog_tell_progress(const NvmVlogWalk *walk);

/* ---- vlog_worker.c ---- */

extern int	nvm_recovery_workers;

/* look at signals: ends the process if it is to end.  No lock is held. */
extern void nvm_vlog_pause(void);

/* start the checkpointer, if there is none, and a checkpoint may begin */
extern void nvm_vlog_start_checkpointer(void);

#endif							/* VLOG_IMPL_H */
