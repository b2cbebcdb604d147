/*-------------------------------------------------------------------------
 *
 * nvm_snapshot.h
 *	  Published snapshots: what old snapshots do not need although they are
 *	  old.
 *
 * An xmin tells how far back a process may look, but not from where: with it
 * alone everything that ended since the oldest snapshot has to be kept.  A
 * transaction that looks at data through one snapshot only publishes that
 * snapshot.  Others may then remove the versions that lie between it and now.
 * wbl/README.md, "Published snapshots", has the rules and why they hold.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_SNAPSHOT_H
#define NVM_SNAPSHOT_H

#include "postgres.h"

#include "access/xact.h"
#include "port/atomics.h"
#include "utils/snapshot.h"

/* ---- the reader's side ---- */

/* this transaction's snapshot is, or was, published: reads announce themselves */
extern bool nvm_reader_published;

/* it will not be, or not again */
extern bool nvm_reader_barred;

extern void nvm_snapshot_use_slow(Snapshot snapshot);
extern void nvm_snapshot_bar_slow(void);
extern void nvm_snapshot_enter(void);
extern void nvm_snapshot_leave(void);

/*
 * The caller is about to read rows with this snapshot.  From one
 * nvm_read_enter to the next it holds no reference to a version that the
 * snapshot does not see.  May ERROR (serialization failure): see
 * wbl/README.md.
 */
static inline void
nvm_snapshot_use(Snapshot snapshot)
{
	if (unlikely(IsolationUsesXactSnapshot()))
		nvm_snapshot_use_slow(snapshot);
}

/*
 * The caller is about to read rows in another way.
 */
static inline void
nvm_snapshot_bar(void)
{
	if (unlikely(IsolationUsesXactSnapshot()) && !nvm_reader_barred)
		nvm_snapshot_bar_slow();
}

/*
 * Around each look at versions that the snapshot may not see.  Not nested.
 */
static inline void
nvm_read_enter(void)
{
	if (unlikely(nvm_reader_published))
		nvm_snapshot_enter();
}

static inline void
nvm_read_leave(void)
{
	if (unlikely(nvm_reader_published))
		nvm_snapshot_leave();
}

/* the transaction has ended */
extern void nvm_snapshot_end(void);

/* ---- the remover's side ---- */

#define NVM_MAX_SOFT_OBSTACLES	32

/*
 * What stands in the way of removing versions that ended before this was
 * gathered: snapshots of which only the xmin is known, and published ones.
 */
typedef struct NvmObstacles
{
	TransactionId limit;		/* oldest xmin of the former, or invalid */
	int			npublished;
	struct
	{
		TransactionId xmin;
		TransactionId xmax;
		int			proc;
	}			published[NVM_MAX_SOFT_OBSTACLES];
} NvmObstacles;

/* is there a published snapshot that has become old?  Cheap. */
extern bool nvm_snapshots_held(void);

extern void nvm_obstacles_gather(NvmObstacles *obstacles);
extern bool nvm_obstacles_permit(const NvmObstacles *obstacles,
								 TransactionId xbegin, TransactionId xend);
extern bool nvm_obstacles_rely(const NvmObstacles *obstacles,
							   TransactionId newest_xend);

/* no process refers any more to versions unlinked under a full xid below this */
extern uint64 nvm_reuse_limit(void);

/* transactions that may stand on versions unlinked before they were noted */
typedef struct NvmStanding
{
	int			n;
	struct
	{
		uint32		proc;
		int			pid;
		LocalTransactionId lxid;
	}			procs[FLEXIBLE_ARRAY_MEMBER];
} NvmStanding;

extern NvmStanding *nvm_standing_note(void);
extern bool nvm_standing_gone(NvmStanding *standing);

/* ---- shared memory, hook, keeper ---- */

extern Size nvm_snapshot_shmem_size(void);
extern void nvm_snapshot_shmem_startup(void);
struct QueryDesc;

/* ExecutorStart_hook, before the executor opens anything */
extern void nvm_snapshot_before_query(struct QueryDesc *query);
extern void nvm_snapshot_watch(void);

#endif							/* NVM_SNAPSHOT_H */
