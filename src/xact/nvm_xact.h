/*-------------------------------------------------------------------------
 *
 * nvm_xact.h
 *	  The current transaction as a writer: its stamp, its undo log, its class.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_XACT_H
#define NVM_XACT_H

#include "postgres.h"

#include "access/twophase.h"
#include "media/media_slot.h"
#include "pool/nvm_region.h"
#include "utils/rel.h"
#include "wbl/nvm_wbl.h"

/*
 * The stamps of a transaction: one for each region that it has written, or 0.
 */
typedef struct NvmXactStamps
{
	NvmStamp	in[NVM_NUM_REGIONS];
} NvmXactStamps;

/*
 * The stamp of the current top-level transaction in a region, made if it has
 * none: assigns an xid, a commit slot and a counter.  May ERROR (no slot,
 * recovery in progress, parallel mode, the transaction is ending).  Everything
 * that the transaction writes to the region carries it.
 */
extern NvmStamp nvm_xact_stamp(NvmRegionId region);

/*
 * GetCurrentTransactionId() for a writer of nvm data: the same, but WAL that
 * only announces the subtransaction's xid to standbys does not turn the
 * transaction into a mixed one.
 */
extern TransactionId nvm_xact_current_xid(void);

/*
 * The transaction has added entries to an index that is not nvm_btree's.  Such
 * an index may have had nothing to write, since others have written the same
 * already, in WAL that is not flushed.  PRE_COMMIT flushes that WAL
 * (xact_rests.c).
 */
extern void nvm_xact_rests_on_wal(void);

extern bool nvm_xact_is_writer(void);	/* has the transaction a stamp? */
extern NvmStamp nvm_xact_stamp_if_any(NvmRegionId region);	/* 0 if none; cheap */

/*
 * Is this stamp one of the current transaction's?  0 is not.
 */
extern bool nvm_xact_owns_stamp(NvmStamp stamp);

/*
 * What tells the current transaction from others of this process, from its first
 * stamp on; 0 before.  It is that stamp.
 */
extern NvmStamp nvm_xact_identity(void);

/*
 * Called before a row is locked, with no lock of ours held.  A transaction
 * that is going to be prepared must be able to tell which rows it has locked
 * (NVM_UNDO_LOCK).  May ERROR.
 */
extern void nvm_xact_before_row_lock(void);

/* is there a use in noting row locks? */
#define nvm_xact_notes_row_locks()	(max_prepared_xacts > 0)

/*
 * Undo log of the current transaction: what to take back on abort.  Kept in
 * backend memory, consecutive entries merged, spilled to a temporary file
 * beyond a bound.  Entries belong to the current subtransaction, whose xid
 * has been assigned.
 *
 * Called before the change is made: the call may ERROR, and a change that is
 * done but not noted would not be undone.  A change that is noted but was not
 * done is harmless, since undo_range acts only on versions that carry the
 * stamp and xid.  Rows of a storage made in the same subtransaction need no
 * entries (the storage itself goes); they are not stored.
 */
typedef enum NvmUndoKind
{
	NVM_UNDO_INSERT = 1,		/* a version was made at (dir, blk, off) */
	NVM_UNDO_END,				/* end was set on the version at (dir, blk,
								 * off) */
	NVM_UNDO_LOCK,				/* the row with root (dir, blk, off) was
								 * locked */
	NVM_UNDO_DIR_CREATE,		/* directory entry dir was made */
	NVM_UNDO_DIR_END			/* directory entry dir was ended */
} NvmUndoKind;

extern void nvm_undo_add(NvmUndoKind kind, uint32 dir, uint32 blk, uint16 off);

/*
 * Make room for some row entries of the current subtransaction: the next few
 * nvm_undo_add do not ERROR, nor write to a file.  Called before a row lock or
 * cells are taken.
 */
extern void nvm_undo_reserve(void);

/*
 * What a subtransaction did to cells of one block.
 */
typedef struct NvmUndoRange
{
	NvmUndoKind kind;
	uint32		dir;
	uint32		blk;
	uint16		off_first;
	uint16		off_last;
	TransactionId xid;			/* of the subtransaction */
} NvmUndoRange;

/*
 * How the upper layer undoes; registered by row/ at load.
 *
 * undo_range: take back what a subtransaction with stamp `stamp` did to a
 * range of cells; flush, do not fence; cannot ERROR.
 */
typedef struct NvmUndoOps
{
	void		(*undo_range) (const NvmUndoRange *range, NvmStamp stamp);

	/*
	 * Row locks that the current transaction holds on roots in cells
	 * off_first..off_last of a block, at most NVM_CELLS; returns their
	 * number. May ERROR.
	 */
	int			(*locks_held) (uint32 dir, uint32 blk, uint16 off_first,
							   uint16 off_last, NvmLockItem *items);

	/* is it a relation with rows in the pool? */
	bool		(*is_table) (Relation rel);

	/*
	 * At PRE_COMMIT, for the log: give it the rows that the transaction with
	 * this stamp has made or ended in a range; or all rows of a storage that
	 * the transaction has made.  Rows of a storage have one region's stamps.
	 * May ERROR.
	 */
	void		(*capture_range) (const NvmUndoRange *range, NvmStamp stamp);
	void		(*capture_storage) (uint32 dir);
} NvmUndoOps;

extern void nvm_xact_register_undo_ops(const NvmUndoOps *ops);

/*
 * Called when the current transaction is about to be made durable, or to give
 * storages back.  The indexes see to it that after the next drain everything
 * that the transaction has inserted is durable.  Returns whether there was
 * anything in the pool; does not fail where interrupts are held.
 */
typedef bool (*NvmSettleFunction) (void);

extern void nvm_xact_register_settle(NvmSettleFunction settle);

/*
 * The checksum of the rows that the current transaction has written until now, of those
 * storages that the calls in it have (nvm_log_table_of_rows), as a record of it would have
 * it: log/log_calls.c.  Whether they are logged does not matter.  May ERROR.
 */
extern void nvm_xact_checksum(uint64 *checksum, uint32 *rows);

/* transaction callbacks; in _PG_init */
extern void nvm_xact_register_callbacks(void);

#endif							/* NVM_XACT_H */
