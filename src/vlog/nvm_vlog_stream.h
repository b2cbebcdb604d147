/*-------------------------------------------------------------------------
 *
 * nvm_vlog_stream.h
 *	  Reading a checkpoint and the log behind it, in any process, while the server
 *	  runs: README.md, "Reading while the server runs".
 *
 * What is read is verified as a recovery does.  What is damaged or missing is an ERROR
 * (ERRCODE_DATA_CORRUPTED) that names the file.  All memory, and what is mapped, belongs
 * to a context that is a child of the current one at the time of open: it goes with that
 * one, or by close.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_VLOG_STREAM_H
#define NVM_VLOG_STREAM_H

#include "postgres.h"

#include "access/transam.h"
#include "datatype/timestamp.h"
#include "log/nvm_log.h"
#include "media/media_log.h"
#include "utils/snapshot.h"
#include "verify/nvm_verify_log.h"

/* ---- vlog_pin.c: files stay ---- */

/*
 * Pin the usable checkpoint: its data files, and the log with its side files from its
 * `begin` on, stay until this process unpins, or ends, and the next checkpoint after that
 * becomes usable.  Waits until the region is whole.  ERROR if there is no checkpoint, or
 * the process has pinned already.  Unpin without a pin does nothing.  A pin is nobody's
 * transaction's: who pins takes care of ERRORs.
 *
 * Others may read what one process has pinned, from `begin` on, as long as it has it.
 */
extern PGDLLEXPORT void nvm_vlog_pin(void);
extern PGDLLEXPORT void nvm_vlog_unpin(void);

/* ---- vlog_snapshot.c: snapshots that outlive their process ---- */

/* of a transaction below `next`, and not older than 2^31 */
extern uint64 nvm_vlog_full_xid(TransactionId xid, FullTransactionId next);

/* of one that the caller holds; palloc'd, NVM_LOG_SNAPSHOT_LENGTH(nxip) bytes */
extern NvmLogSnapshot *nvm_vlog_form_snapshot(Snapshot snapshot, uint64 creations);

/* does it show what the transaction with this full xid, which has committed, has done? */
extern PGDLLEXPORT bool nvm_vlog_snapshot_shows(const NvmLogSnapshot *snapshot, uint64 fxid);

/* ---- vlog_base.c: the rows of a checkpoint ---- */

typedef struct NvmVlogBaseFiles NvmVlogBaseFiles;

typedef struct NvmVlogBase
{
	uint64		number;			/* of the checkpoint */
	NvmLogPosition begin;		/* of the log that belongs to it */
	NvmLogPosition decided;
	NvmLogPosition end;
	TimestampTz started;
	TimestampTz finished;
	uint64		rows;			/* of all storages */
	uint64		bytes;

	/*
	 * S1: the snapshot by which storages with NVM_DIR_COMMANDS were walked
	 */
	const NvmLogSnapshot *snapshot;

	NvmVlogBaseFiles *files;
} NvmVlogBase;

/*
 * The checkpoint that this process has pinned; without a pin the usable one, whose files
 * may go at any time: for a look at what the struct has.  ERROR if there is none, or if it
 * has no snapshot.
 */
extern PGDLLEXPORT NvmVlogBase *nvm_vlog_base_open(void);
extern PGDLLEXPORT void nvm_vlog_base_close(NvmVlogBase *base);

/*
 * The rows of the storages that are wanted, in the order of the files: a storage may come
 * several times, a row once.  `first` is the first piece of its large values, or the row
 * itself (nvm_log_pieces_begin), `row` the row; both are valid during the call.  All of a
 * file is verified before its first row.
 */
extern PGDLLEXPORT void nvm_vlog_base_rows(NvmVlogBase *base,
										   bool (*wanted) (void *arg, uint32 dir, uint64 creation),
										   void (*row) (void *arg, uint32 dir, uint64 creation,
														const NvmLogRow *first, const NvmLogRow *row),
										   void *arg);

/* ---- vlog_stream.c: the records ---- */

typedef struct NvmVlogStream NvmVlogStream;

typedef struct NvmVlogStreamRecord
{
	NvmLogPosition begin;
	NvmLogPosition end;			/* its place, of COMMIT */
	uint32		generation;		/* in which it counts */
	uint16		kind;			/* NVM_LOG_COMMIT, _ASK or _OUTCOME */
	uint16		flags;			/* NVM_LOG_SIDE, _COMMITTED, _CALLS */
	uint64		number;
	uint64		xid;			/* full xid of the transaction; 0: a COMMIT
								 * record without rows of storages with
								 * NVM_DIR_COMMANDS, which needs none */
	NvmLogWalk	body;			/* of its sections, verified; empty if it is
								 * in a side file: nvm_vlog_stream_body */
	const NvmLogRecord *record; /* as it lies in the log */
} NvmVlogStreamRecord;

/*
 * All records that end behind `begin`, and up to `end`, in the order of their places; what a
 * start has carried over comes once.  Somebody has pinned what begins at `begin` or before.
 * `end` is persistent.
 */
extern PGDLLEXPORT NvmVlogStream *nvm_vlog_stream_open(NvmLogPosition begin, NvmLogPosition end);
extern PGDLLEXPORT void nvm_vlog_stream_close(NvmVlogStream *stream);

/*
 * The next record; false at the end.  It is valid until the next call.  An ASK record may be
 * of a transaction that has not committed: then its side file may be gone.  Its OUTCOME comes
 * behind it, if it is decided by `end`, and may come twice: the first one counts.  One without
 * ASK record was said before.
 */
extern PGDLLEXPORT bool nvm_vlog_stream_next(NvmVlogStream *stream, NvmVlogStreamRecord *record);

/*
 * Have record->body be that of the side file, of a record with NVM_LOG_SIDE: the one that was
 * returned last.  Does nothing to others.
 */
extern PGDLLEXPORT void nvm_vlog_stream_body(NvmVlogStream *stream, NvmVlogStreamRecord *record);

#endif							/* NVM_VLOG_STREAM_H */
