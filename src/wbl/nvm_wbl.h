/*-------------------------------------------------------------------------
 *
 * nvm_wbl.h
 *	  Write-behind logging: commit slots, stamps, recovery, gap collector.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_WBL_H
#define NVM_WBL_H

#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "datatype/timestamp.h"
#include "log/nvm_log.h"
#include "pool/nvm_pool.h"
#include "postmaster/bgworker.h"
#include "storage/latch.h"
#include "utils/relcache.h"
#include "verify/nvm_verify.h"

typedef uint64 NvmStamp;

/*
 * DRAM state of one commit slot.  Arrays indexed by slot, in shared memory.
 */
typedef struct NvmSlotState
{
	pg_atomic_uint64 durable;	/* counters up to here are decided on media */
	pg_atomic_uint32 owner;		/* pid of the owning backend, or 0, or
								 * NVM_OWNER_PREPARED */
	uint32		ngaps;			/* changed under wbl_lock; read without */
	uint64		gap[NVM_SLOT_GAPS];
	bool		gap_torn[NVM_SLOT_GAPS];	/* see NvmWblShared.ntorn */
	/* sampling for the horizon, by nvm_wbl_advance_frozen alone */
	uint64		sample_counter;
	uint64		sample_next_xid;
	uint64		sample_position;	/* of the log: what is decided up to the
									 * counter lies before it */

	/*
	 * the counter handed out last, and its transaction's full xid; open while
	 * it is above durable.  Stored by the owner.
	 */
	pg_atomic_uint64 running;
	pg_atomic_uint64 xid;
	bool		prepared_dirs;	/* the prepared transaction made or ended
								 * storages */

	/*
	 * The counter of a transaction that was prepared before the last start,
	 * or 0, and its xid: the xids beside its stamps may not have reached the
	 * media.  Set by resolving, constant from then on.
	 */
	uint64		restored_counter;
	TransactionId restored_xid;
	/* what transactions in this slot did, in sum; stored by the owner */
	uint64		flushes;
	uint64		drains;
	uint64		bytes;
} NvmSlotState;

typedef struct NvmWblShared
{
	LWLock	   *wbl_lock;		/* first use of slots, gaps, resolving */
	LWLock	   *horizon_lock;	/* one at a time advances frozen[] */

	/*
	 * Shared: the collector looks at the blocks of a storage.  Exclusive:
	 * extents are being taken away from a storage (nvm_storage_reclaim).
	 * Taken with no other lock of ours held, except wbl_lock by resolving.
	 */
	LWLock	   *storage_lock;
	pg_atomic_uint32 resolved;	/* in-doubt transactions of earlier
								 * incarnations were settled */
	pg_atomic_uint32 judged;	/* the part of it that all commits wait for is
								 * done */

	/* attempts at it that failed, and the last of them: under wbl_lock */
	uint32		settle_failures;
	TimestampTz settle_failed_at;
	int			settle_errcode;
	char		settle_problem[256];

	pg_atomic_uint32 ngaps;		/* gap entries in all slots */

	/*
	 * Those gaps whose transaction may have left a change of a block half
	 * done.  Two kinds do not count: gaps of prepared transactions that were
	 * rolled back in this run, for these had finished their changes; and gaps
	 * for which the collector has been through all blocks.
	 */
	pg_atomic_uint32 ntorn;
	pg_atomic_uint32 slots_used[NVM_NUM_REGIONS];	/* slots ever used: the
													 * first ones of each */
	uint32		losers_found;	/* by recovery at this start */
	uint32		indoubt_found;
	uint64		recovery_usec;	/* analysis, without the pool's open */
	uint64		resolve_usec;
	pg_atomic_uint64 commits;	/* nvm-only commits in this run */
	pg_atomic_uint64 mixed_commits;
	pg_atomic_uint64 prepared;	/* PREPARE TRANSACTIONs in this run */
	pg_atomic_uint32 ntwophase; /* slots of prepared transactions */
	pg_atomic_uint64 oldest_twophase;	/* smallest full xid of these */
	uint32		nrestored;		/* prepared transactions found at the start;
								 * constant once resolved */
	pg_atomic_uint64 aborts;
	pg_atomic_uint64 helped;	/* decisions made durable by another backend */
	pg_atomic_uint64 collector_blocks;	/* progress of the running sweep */
	pg_atomic_uint64 collector_total;
	pg_atomic_uint64 collector_sweeps;
	pg_atomic_uint32 collector_paused;	/* nvm.collect_gaps off, or tests */
	pg_atomic_uint64 collected; /* gap entries dropped in this run */
	pg_atomic_uint32 commit_record_size;	/* WAL bytes of a nvm-only commit,
											 * last measured */
	Latch		quiet_latch;	/* see wbl_walwriter.c */
	pg_atomic_uint64 redo_checkpoints;	/* asked for because of nvm.redo_limit */
} NvmWblShared;

/* the named tranche that startup.c requests for nvm_wbl_num_lwlocks() locks */
#define NVM_WBL_TRANCHE	"nvm_wbl"

extern NvmWblShared *NvmWbl;
extern NvmSlotState *nvm_slots; /* [NVM_SLOT_NUMBERS] */

/*
 * frozen[slot]: every counter up to it is decided, durable, and visible to
 * every snapshot that is or will be taken (unless it is in a gap: then it
 * never happened).  The fast path of every visibility check.
 */
extern pg_atomic_uint64 *nvm_frozen;	/* [NVM_SLOT_NUMBERS] */

/*
 * The first slot in use whose number is at least `slot`, or NVM_SLOT_NUMBERS.
 * The pool's slots in use are one run of numbers, the volatile region's another.
 */
static inline uint32
nvm_next_used_slot(uint32 slot)
{
	if (slot < NVM_VOLATILE_SLOT)
	{
		if (slot < pg_atomic_read_u32(&NvmWbl->slots_used[NVM_REGION_POOL]))
			return slot;
		slot = NVM_VOLATILE_SLOT;
	}
	if (slot - NVM_VOLATILE_SLOT < pg_atomic_read_u32(&NvmWbl->slots_used[NVM_REGION_VOLATILE]))
		return slot;
	return NVM_SLOT_NUMBERS;
}

#define NvmForEachUsedSlot(slot) \
	for (uint32 slot = nvm_next_used_slot(0); slot < NVM_SLOT_NUMBERS; \
		 slot = nvm_next_used_slot(slot + 1))

/* any number, such as one that damage has made */
static inline bool
nvm_slot_is_used(uint32 slot)
{
	return slot < NVM_SLOT_NUMBERS && nvm_next_used_slot(slot) == slot;
}

static inline bool
nvm_stamp_is_frozen(NvmStamp stamp)
{
	/* caller has excluded 0 and the special stamps */
	uint32		slot = NVM_STAMP_SLOT(stamp);

	return slot < NVM_SLOT_NUMBERS &&
		NVM_STAMP_COUNTER(stamp) <= pg_atomic_read_u64(&nvm_frozen[slot]);
}

/*
 * The xid of the transaction of a stamp that is not frozen.  It is `xid`,
 * which stands beside the stamp.  If the transaction was prepared before the
 * last start it is the top-level xid.
 */
static inline TransactionId
nvm_stamp_xid(NvmStamp stamp, TransactionId xid)
{
	if (unlikely(NvmWbl->nrestored > 0) &&
		NVM_STAMP_SLOT(stamp) < NVM_SLOT_NUMBERS &&
		nvm_slots[NVM_STAMP_SLOT(stamp)].restored_counter == NVM_STAMP_COUNTER(stamp))
		return nvm_slots[NVM_STAMP_SLOT(stamp)].restored_xid;
	return xid;
}

/*
 * Has this stamp, which is not frozen, been handed out?  One transaction at a
 * time runs in a slot.
 */
static inline bool
nvm_stamp_handed_out(NvmStamp stamp)
{
	uint32		slot = NVM_STAMP_SLOT(stamp);

	return nvm_slot_is_used(slot) &&
		NVM_STAMP_COUNTER(stamp) <= pg_atomic_read_u64(&nvm_slots[slot].durable) + 1;
}

extern bool nvm_stamp_in_gap_slow(NvmStamp stamp);

static inline bool
nvm_stamp_in_gap(NvmStamp stamp)
{
	return unlikely(pg_atomic_read_u32(&NvmWbl->ngaps) > 0) &&
		nvm_stamp_in_gap_slow(stamp);
}

/*
 * Make the committed transaction `stamp` durable if it is not.  Caller knows
 * from the proc array and pg_xact that it committed.  A process that has seen
 * a transaction's effects calls this before it acts on them.  So nothing
 * durable rests on something that is not (invariant 2).  Cannot fail.
 */
extern void nvm_stamp_ensure_durable_slow(NvmStamp stamp);

static inline void
nvm_stamp_ensure_durable(NvmStamp stamp)
{
	if (unlikely(NVM_STAMP_COUNTER(stamp) >
				 pg_atomic_read_u64(&nvm_slots[NVM_STAMP_SLOT(stamp)].durable)))
		nvm_stamp_ensure_durable_slow(stamp);
	nvm_log_rest_on(NVM_STAMP_SLOT(stamp));
}

/*
 * Has the log, durably, what a committed transaction did in the volatile region?  If
 * it is not frozen, an answer of no may come late.  Of the pool's stamps: yes.
 */
static inline bool
nvm_stamp_is_persistent(NvmStamp stamp)
{
	return likely(NVM_STAMP_SLOT(stamp) < NVM_VOLATILE_SLOT) || !nvm_log_is_on ||
		nvm_log_has_slot(NVM_STAMP_SLOT(stamp));
}

/*
 * First use of nvm data in a transaction: settle what the last crash left in
 * doubt.  ERROR as long as that fails, with the reason.
 */
extern void nvm_wbl_resolve_slow(void);

static inline void
nvm_wbl_resolve(void)
{
	if (unlikely(pg_atomic_read_u32(&NvmWbl->resolved) == 0))
	{
		nvm_wbl_resolve_slow();
		nvm_pool_require();
	}
}

/*
 * synchronous_standby_names, or NULL if it is not set: standbys that commits of
 * nvm tables alone do not wait for (wbl_keeper.c).
 */
extern const char *nvm_ignored_standbys(void);

/*
 * Every PRE_COMMIT and PRE_PREPARE: the same before anyone can commit.  ERROR
 * only as long as it is not judged which transactions in doubt have committed.
 * If a later step fails, only nvm tables are concerned.
 */
extern void nvm_wbl_judge_slow(void);

static inline void
nvm_wbl_judge(void)
{
	if (unlikely(pg_atomic_read_u32(&NvmWbl->judged) == 0))
		nvm_wbl_judge_slow();
}

/*
 * Free a storage that nobody can reach any more: nvm_dir_reclaim, kept apart
 * from the gap collector.  Other code also takes extents away from a storage
 * that may hold rows of an earlier incarnation (nvm_dir_empty, truncation by
 * VACUUM).  It holds NvmWbl->storage_lock exclusively meanwhile.
 */
extern void nvm_storage_reclaim(uint32 dir);

/*
 * The same for a storage that `stamp` has ended.  Does nothing if somebody has
 * freed it; its entry may be another storage's by now.
 */
extern void nvm_storage_reclaim_ended(uint32 dir, NvmStamp stamp);

/* settings, shared memory, start: called from startup.c in this order */
extern void nvm_wbl_define_settings(void);
extern Size nvm_wbl_shmem_size(void);
extern int	nvm_wbl_num_lwlocks(void);
extern void nvm_wbl_shmem_startup(void);	/* after nvm_pool_shmem_startup */
extern void nvm_wbl_shmem_init(void);	/* again, for another pool */
extern void nvm_wbl_register_workers(void);

/*
 * The first call of every worker without a database.  The worker ends there if
 * there is no pool.  sleep: false when it is time to end.
 */
extern void nvm_register_worker(const char *name, const char *function);

/* the same for one that a process starts; restart: as bgw_restart_time */
extern void nvm_worker_describe(BackgroundWorker *worker, const char *name,
								const char *function, int restart);
extern void nvm_worker_start(void);
extern bool nvm_worker_sleep(long ms);
extern void nvm_worker_end(void) __attribute__((noreturn));

/* it is time to end since the server is being stopped, not by pg_terminate_backend */
extern bool nvm_worker_is_stopped_with_server(void);

/*
 * Make sure, durably, that the next run hands out no xid up to this one.
 * Called before the xid goes into a row.  Returns the low 32 bits of the
 * promise: for an xid below it nobody need ask again.  Takes header_lock;
 * cannot ERROR.
 */
extern TransactionId nvm_xid_promise(FullTransactionId fxid);

/*
 * Prepared transactions that have been finished: persist their outcome.  Cheap
 * if there are none; holds no lock of ours when called.
 */
extern void nvm_twophase_settle(void);

/*
 * Row locks of transactions that were prepared before the start: given back by
 * resolving, and once more by what rebuilds rows.  May ERROR.  The caller holds
 * wbl_lock exclusively.
 */
extern void nvm_twophase_restore_locks(void);

/*
 * How the upper layer collects; registered by row/ at load.
 *
 * collect_block: remove the traces of gap stamps from a block: begin in a gap
 * becomes DEAD (or RETIRED where no index can lead there), end in a gap
 * becomes 0.  Flushes, does not fence.  Returns the number of changes.
 */
typedef struct NvmTableOps
{
	uint32		(*collect_block) (uint32 dir, uint32 blk);
	/* large values whose stamp is in a gap: free them; whole storage */
	void		(*collect_large) (uint32 dir);

	/*
	 * restore_lock: give a row lock to a prepared transaction; nobody else
	 * uses nvm data.  False if the row is not there.  May ERROR.
	 */
	bool		(*restore_lock) (const NvmLockItem *item, TransactionId xid);
} NvmTableOps;

extern void nvm_wbl_register_table_ops(const NvmTableOps *ops);

/*
 * Advance frozen[] as far as the oldest snapshot allows.  Cheap; called by
 * the worker, by VACUUM and now and then by writers.
 */
extern void nvm_wbl_advance_frozen(void);

/* consistency of the commit slots, for nvm.check_pool() */
extern void nvm_wbl_verify(NvmCheckEmit emit, void *arg);

#endif							/* NVM_WBL_H */
