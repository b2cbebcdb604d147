/*-------------------------------------------------------------------------
 *
 * nvm_rebuild_stamp.h
 *	  The stamp of rows that are rebuilt from the log (wbl_rebuild.c).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_REBUILD_STAMP_H
#define NVM_REBUILD_STAMP_H

#include "postgres.h"

#include "log/nvm_log.h"
#include "wbl/nvm_wbl.h"

/*
 * A stamp of the volatile region.  What is in doubt is resolved, and nobody else has
 * had a stamp there.  May ERROR (no slot, no memory).
 */
extern NvmStamp nvm_rebuild_stamp(void);

/*
 * Is it fxid that the pool knows to be prepared, and not somebody who has the same xid?
 */
extern bool nvm_rebuild_knows_prepared(uint64 fxid);

/*
 * The stamp of what transaction fxid has changed, which was prepared before the start:
 * of a slot of the region that is the transaction's, as if it had been prepared there.
 * Settling says its outcome, also in the log.  The same one in the next attempt, unless
 * the transaction has ended.  position: where its ASK record begins.  May ERROR, likewise.
 */
extern NvmStamp nvm_rebuild_prepared_stamp(uint64 fxid, NvmLogPosition position);

/*
 * Has the start found this transaction prepared?  It may have ended since, and snapshots
 * that do not see it may be left.
 */
extern bool nvm_rebuild_was_prepared(uint64 fxid);

/*
 * All that has it is there for everybody, or nothing has it; cannot fail.  The
 * second call does nothing.
 */
extern void nvm_rebuild_decide(NvmStamp stamp);

/*
 * A process replays transactions of an earlier life of the region.  take: what it writes there
 * from now on has stamps of a slot that nobody else has had.  settle: in no transaction; all
 * that it has committed is there for everybody, also for snapshots that are older.  Nobody
 * else has come to the rows.  take may ERROR; settle cannot fail, and returns false if the
 * process has had another slot since: damage has taken the room of the first one's gaps.
 */
extern void nvm_rebuild_take_slot(void);
extern bool nvm_rebuild_settle_slot(void);

#endif							/* NVM_REBUILD_STAMP_H */
