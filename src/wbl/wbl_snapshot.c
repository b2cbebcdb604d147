/*-------------------------------------------------------------------------
 *
 * wbl_snapshot.c
 *	  Published snapshots: see nvm_snapshot.h and README.md.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "access/xlog.h"
#include "compat/nvm_compat.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#include "utils/snapmgr.h"
#include "wbl/nvm_snapshot.h"
#include "wbl/wbl_impl.h"

/* a published snapshot is old when so many xids were handed out since */
#define HELD_XIDS				256
/* how long to wait for a reader to leave */
#define BUSY_SPINS				200

/*
 * One process's entry, written by it alone but for `relied`.
 */
typedef struct NvmReader
{
	pg_atomic_uint64 published; /* xmax above xmin, or 0 */
	pg_atomic_uint32 busy;		/* odd: between nvm_read_enter and _leave */
	pg_atomic_uint32 relied;	/* newest xid whose ends another process
								 * removed relying on this publication, or 0 */
} NvmReader;

typedef union NvmReaderPadded
{
	NvmReader	reader;
	char		pad[PG_CACHE_LINE_SIZE];
} NvmReaderPadded;

typedef struct NvmReadersShared
{
	pg_atomic_uint32 held;		/* nvm_snapshots_held(), set by the keeper */
	char		pad[PG_CACHE_LINE_SIZE - sizeof(pg_atomic_uint32)];
	NvmReaderPadded readers[FLEXIBLE_ARRAY_MEMBER]; /* [MaxBackends] */
} NvmReadersShared;

static NvmReadersShared *shared = NULL;

bool		nvm_reader_published = false;
bool		nvm_reader_barred = false;

/* what this transaction published, even if it was taken back; or invalid */
static TransactionId own_xmin = InvalidTransactionId;
static TransactionId own_xmax = InvalidTransactionId;


#define READER(i)	(&shared->readers[i].reader)
#define MyReader	READER(NvmProcNumber())

Size
nvm_snapshot_shmem_size(void)
{
	return add_size(offsetof(NvmReadersShared, readers),
					mul_size(MaxBackends, sizeof(NvmReaderPadded)));
}

/*
 * Caller holds AddinShmemInitLock.
 */
void
nvm_snapshot_shmem_startup(void)
{
	bool		found;

	shared = ShmemInitStruct("pg_nvm readers", nvm_snapshot_shmem_size(), &found);
	if (found)
		return;
	pg_atomic_init_u32(&shared->held, 0);
	for (int i = 0; i < MaxBackends; i++)
	{
		pg_atomic_init_u64(&READER(i)->published, 0);
		pg_atomic_init_u32(&READER(i)->busy, 0);
		pg_atomic_init_u32(&READER(i)->relied, InvalidTransactionId);
	}
}

/* ---- the reader's side ---- */

/*
 * on_shmem_exit callback, before ProcKill.  If the last transaction's abort
 * failed half-way, nvm_snapshot_end was not called.  Then the next process
 * with this entry would be taken to have published our snapshot.
 */
static void
snapshot_exit(int code, Datum arg)
{
	pg_atomic_write_u64(&MyReader->published, 0);
}

/*
 * Publish the transaction's snapshot, if it has one and reads with it alone.
 *
 * A writer gains nothing: others do not heed it while it has an xid.  Nor does
 * SERIALIZABLE gain anything: it must see the versions between its snapshot
 * and now in order to know with whom it conflicts.
 */
static void
snapshot_publish(void)
{
	static bool exit_registered = false;
	Snapshot	snapshot;

	if (shared == NULL || XactIsoLevel != XACT_REPEATABLE_READ ||
		!FirstSnapshotSet || MyProc == NULL ||
		NvmProcNumber() >= MaxBackends || RecoveryInProgress() ||
		TransactionIdIsValid(MyProc->xid))
		return;
	snapshot = GetTransactionSnapshot();
	if (snapshot->snapshot_type != SNAPSHOT_MVCC)
		return;
	if (!exit_registered)
	{
		on_shmem_exit(snapshot_exit, (Datum) 0);
		exit_registered = true;
	}
	own_xmin = snapshot->xmin;
	own_xmax = snapshot->xmax;
	pg_atomic_write_u32(&MyReader->relied, InvalidTransactionId);
	nvm_reader_published = true;
	pg_write_barrier();
	pg_atomic_write_u64(&MyReader->published,
						((uint64) own_xmax << 32) | own_xmin);
}

/*
 * Take it back: from here on this process counts by its xmin alone.  Whatever
 * it reads afterwards, it reads behind the barrier.  A scan that is under way
 * goes on to be careful, since cells may have been cut anew before.
 */
static void
snapshot_withdraw(void)
{
	pg_atomic_write_u64(&MyReader->published, 0);
	pg_memory_barrier();
}

/*
 * See nvm_snapshot.h.  For good, since references may be held until the end of
 * the transaction.
 */
void
nvm_snapshot_bar_slow(void)
{
	nvm_reader_barred = true;
	if (nvm_reader_published)
		snapshot_withdraw();
}

/*
 * A snapshot that is not the published one is about to be used.  If it was
 * taken after all removals that relied on the published one, it sees nothing
 * of what they removed.  It was taken after them, unless a transaction that it
 * takes for running has ended meanwhile.  The core server takes such snapshots
 * in transactions that write, or under locks that exclude removals, and uses
 * them at once.
 */
static void
check_other_snapshot(Snapshot snapshot)
{
	TransactionId relied = pg_atomic_read_u32(&MyReader->relied);
	bool		passed;

	if (!TransactionIdIsValid(relied) || TransactionIdPrecedes(relied, snapshot->xmin))
		return;
	passed = TransactionIdFollowsOrEquals(relied, snapshot->xmax);
	for (uint32 i = 0; i < snapshot->xcnt && !passed; i++)
		passed = !TransactionIdIsInProgress(snapshot->xip[i]);
	if (passed)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access due to concurrent update"),
				 errdetail("Row versions that a second snapshot of the transaction may need have been removed."),
				 errhint("Retry the transaction.")));
}

static inline bool
is_own_snapshot(Snapshot snapshot)
{
	return snapshot->xmin == own_xmin && snapshot->xmax == own_xmax;
}

/*
 * See nvm_snapshot_use.
 */
void
nvm_snapshot_use_slow(Snapshot snapshot)
{
	if (snapshot == NULL || snapshot->snapshot_type != SNAPSHOT_MVCC)
	{
		/*
		 * The planner, looking for the end of an index, asks whether a row is
		 * there, and reads none.
		 */
		if (snapshot == NULL || snapshot->snapshot_type != SNAPSHOT_NON_VACUUMABLE)
			nvm_snapshot_bar();
		return;
	}
	if (!nvm_reader_published && !nvm_reader_barred)
		snapshot_publish();
	if (!TransactionIdIsValid(own_xmin) || is_own_snapshot(snapshot))
		return;
	nvm_snapshot_bar();
	check_other_snapshot(snapshot);
}

/*
 * From here on versions that were unlinked before are out of reach.
 */
void
nvm_snapshot_enter(void)
{
	pg_atomic_write_u32(&MyReader->busy, pg_atomic_read_u32(&MyReader->busy) | 1);
	pg_memory_barrier();
}

void
nvm_snapshot_leave(void)
{
	uint32		busy = pg_atomic_read_u32(&MyReader->busy);

	/* all that was read was read before */
	pg_memory_barrier();
	pg_atomic_write_u32(&MyReader->busy, (busy | 1) + 1);
}

/*
 * The transaction has left the proc array.  An ERROR may have come while it
 * was reading.
 */
void
nvm_snapshot_end(void)
{
	nvm_reader_barred = false;
	if (!TransactionIdIsValid(own_xmin))
		return;
	snapshot_withdraw();
	nvm_snapshot_leave();
	nvm_reader_published = false;
	own_xmin = own_xmax = InvalidTransactionId;
}

/*
 * A snapshot is published when the first query that uses it starts.  So a
 * transaction that has not touched nvm data yet holds nothing back either.
 * Workers may read a part of a query under another snapshot.  Such a query is
 * checked here, because they do not know what was published.
 */
void
nvm_snapshot_before_query(QueryDesc *query)
{
	if (unlikely(IsolationUsesXactSnapshot()) && query->snapshot != NULL &&
		query->snapshot->snapshot_type == SNAPSHOT_MVCC)
	{
		if (query->plannedstmt->parallelModeNeeded)
			nvm_snapshot_use_slow(query->snapshot);
		else if (!nvm_reader_published && !nvm_reader_barred)
			snapshot_publish();
	}
}

/* ---- the remover's side ---- */

bool
nvm_snapshots_held(void)
{
	return pg_atomic_read_u32(&shared->held) != 0;
}

/*
 * What the process published, if it counts: it has no xid.  Caller has read
 * its xmin before.  That order is needed: the publication read here is then no
 * earlier transaction's.  ProcArrayLock is held.
 */
static inline uint64
published_by(int i, PGPROC *proc)
{
	pg_read_barrier();
	if (i >= MaxBackends ||
		TransactionIdIsValid(*(volatile TransactionId *) &proc->xid))
		return 0;
	return pg_atomic_read_u64(&READER(i)->published);
}

/*
 * Look at all processes.  Takes the lock exclusively, so that no snapshot is
 * handed from one process to another meanwhile.  VACUUMs count as little as
 * they do for PostgreSQL's own horizons.
 */
void
nvm_obstacles_gather(NvmObstacles *obstacles)
{
	/* before the processes: see there */
	obstacles->limit = nvm_slots_oldest_xmin();
	obstacles->npublished = 0;

	LWLockAcquire(ProcArrayLock, LW_EXCLUSIVE);
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];
		TransactionId xmin = *(volatile TransactionId *) &proc->xmin;
		uint64		word;

		if (!TransactionIdIsNormal(xmin) ||
			(ProcGlobal->statusFlags[proc->pgxactoff] & PROC_IN_VACUUM) != 0)
			continue;
		word = published_by(i, proc);
		if (word != 0 && obstacles->npublished < NVM_MAX_SOFT_OBSTACLES)
		{
			int			n = obstacles->npublished++;

			obstacles->published[n].xmin = (TransactionId) word;
			obstacles->published[n].xmax = (TransactionId) (word >> 32);
			obstacles->published[n].proc = i;
		}
		else if (!TransactionIdIsValid(obstacles->limit) ||
				 TransactionIdPrecedes(xmin, obstacles->limit))
			obstacles->limit = xmin;
	}
	LWLockRelease(ProcArrayLock);
}

/*
 * May a version be removed that was begun by xbegin and ended by xend?  Either
 * is FrozenTransactionId if every snapshot sees it.  Caller knew that xend had
 * committed before it gathered the obstacles.
 */
bool
nvm_obstacles_permit(const NvmObstacles *obstacles, TransactionId xbegin,
					 TransactionId xend)
{
	if (xend == FrozenTransactionId)
		return true;
	if (TransactionIdIsValid(obstacles->limit) &&
		!TransactionIdPrecedes(xend, obstacles->limit))
		return false;
	for (int i = 0; i < obstacles->npublished; i++)
	{
		if (!TransactionIdPrecedes(xend, obstacles->published[i].xmin) &&
			(xbegin == FrozenTransactionId ||
			 TransactionIdPrecedes(xbegin, obstacles->published[i].xmax)))
			return false;
	}
	return true;
}

/*
 * The caller is about to remove versions that newest_xend and older
 * transactions ended.  Tell the processes whose publication permits it, in
 * case they use another snapshot after all.  False if one of them has
 * withdrawn: gather again.
 */
bool
nvm_obstacles_rely(const NvmObstacles *obstacles, TransactionId newest_xend)
{
	for (int i = 0; i < obstacles->npublished; i++)
	{
		NvmReader  *reader = READER(obstacles->published[i].proc);
		uint32		relied;

		if (TransactionIdPrecedes(newest_xend, obstacles->published[i].xmin))
			continue;
		relied = pg_atomic_read_u32(&reader->relied);
		while (!TransactionIdIsValid(relied) ||
			   TransactionIdPrecedes(relied, newest_xend))
		{
			if (pg_atomic_compare_exchange_u32(&reader->relied, &relied, newest_xend))
				break;
		}
		pg_memory_barrier();
		if (pg_atomic_read_u64(&reader->published) !=
			(((uint64) obstacles->published[i].xmax << 32) | obstacles->published[i].xmin))
			return false;
	}
	return true;
}

/*
 * Is the process not reading, or has it stopped since we were called?
 */
static bool
reader_was_outside(int i)
{
	uint32		busy;

	pg_memory_barrier();
	busy = pg_atomic_read_u32(&READER(i)->busy);
	if ((busy & 1) == 0)
		return true;
	for (int n = 0; n < BUSY_SPINS; n++)
	{
		pg_spin_delay();
		if (pg_atomic_read_u32(&READER(i)->busy) != busy)
			return true;
	}
	return false;
}

/*
 * Returns a full xid.  Take a version that was unlinked by a transaction with
 * an older xid, or when an older xid was the next one.  No process refers to
 * it, now and for ever.  For it was unlinked before we looked, and one of two
 * things holds for each process:
 *	- if it was running, or had a snapshot, from before that, it has ended, or
 *	- it has published the only snapshot it reads with, and was outside.
 */
uint64
nvm_reuse_limit(void)
{
	FullTransactionId next = ReadNextFullTransactionId();
	TransactionId oldest;

	LWLockAcquire(ProcArrayLock, LW_SHARED);
	oldest = XidFromFullTransactionId(NvmLatestCompletedXid());
	TransactionIdAdvance(oldest);
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];
		TransactionId xid = *(volatile TransactionId *) &proc->xid;
		TransactionId xmin = *(volatile TransactionId *) &proc->xmin;

		if ((ProcGlobal->statusFlags[proc->pgxactoff] & PROC_IN_VACUUM) != 0)
			continue;
		if (TransactionIdIsNormal(xid) && TransactionIdPrecedes(xid, oldest))
			oldest = xid;
		if (TransactionIdIsNormal(xmin) && TransactionIdPrecedes(xmin, oldest) &&
			!(published_by(i, proc) != 0 && reader_was_outside(i)))
			oldest = xmin;
	}
	LWLockRelease(ProcArrayLock);

	/* widen, as nvm_horizon_oldest */
	return U64FromFullTransactionId(next) +
		(int64) (int32) (oldest - XidFromFullTransactionId(next));
}

static inline bool
proc_is_prepared(const PGPROC *proc)
{
	return proc >= PreparedXactProcs && proc < PreparedXactProcs + max_prepared_xacts;
}

/*
 * Does the process stand on nothing that was unlinked before?  There are three
 * ways: it is in no transaction; or it has neither an xid nor a snapshot
 * there; or it has published the only snapshot that it reads with, and is
 * outside.  A VACUUM counts, too, since it looks again under locks.  The xmin
 * that a walsender has outside of transactions is its standby's.
 * ProcArrayLock is held.
 */
static bool
proc_stands_nowhere(uint32 i)
{
	PGPROC	   *proc = &ProcGlobal->allProcs[i];
	TransactionId xid = *(volatile TransactionId *) &proc->xid;
	TransactionId xmin = *(volatile TransactionId *) &proc->xmin;

	if (*(volatile LocalTransactionId *) &NvmProcLxid(proc) == InvalidLocalTransactionId ||
		(!TransactionIdIsValid(xid) && !TransactionIdIsValid(xmin)))
		return true;
	if ((ProcGlobal->statusFlags[proc->pgxactoff] & PROC_IN_VACUUM) != 0)
		return true;
	return published_by(i, proc) != 0 && reader_was_outside(i);
}

/*
 * Note which processes may stand now on versions that were unlinked without an
 * xid of one's own.  They are noted by process: while a transaction is
 * prepared, every new snapshot has an xmin that is as old.  A prepared
 * transaction stands nowhere.  Takes the lock exclusively, since a snapshot
 * may be on its way from one process to another.
 *
 * Allocated in the current context.
 */
NvmStanding *
nvm_standing_note(void)
{
	NvmStanding *standing;

	standing = palloc(offsetof(NvmStanding, procs) +
					  sizeof(standing->procs[0]) * ProcGlobal->allProcCount);
	standing->n = 0;
	LWLockAcquire(ProcArrayLock, LW_EXCLUSIVE);
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];

		if (proc_is_prepared(proc) || proc_stands_nowhere(i))
			continue;
		standing->procs[standing->n].proc = i;
		standing->procs[standing->n].pid = proc->pid;
		standing->procs[standing->n].lxid = NvmProcLxid(proc);
		standing->n++;
	}
	LWLockRelease(ProcArrayLock);
	return standing;
}

/*
 * Have all of them ended their transactions, or let go of everything?
 */
bool
nvm_standing_gone(NvmStanding *standing)
{
	int			n = 0;

	LWLockAcquire(ProcArrayLock, LW_SHARED);
	for (int i = 0; i < standing->n; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[standing->procs[i].proc];

		if (*(volatile int *) &proc->pid == standing->procs[i].pid &&
			*(volatile LocalTransactionId *) &NvmProcLxid(proc) == standing->procs[i].lxid &&
			!proc_stands_nowhere(standing->procs[i].proc))
			standing->procs[n++] = standing->procs[i];
	}
	LWLockRelease(ProcArrayLock);
	standing->n = n;
	return n == 0;
}

/*
 * Called by the keeper now and then: is it worth while for others to look?
 */
void
nvm_snapshot_watch(void)
{
	TransactionId next = ReadNextTransactionId();
	uint32		held = 0;

	for (int i = 0; i < MaxBackends; i++)
	{
		TransactionId xmin = (TransactionId) pg_atomic_read_u64(&READER(i)->published);

		if (TransactionIdIsValid(xmin) && (int32) (next - xmin) >= HELD_XIDS)
			held = 1;
	}
	if (pg_atomic_read_u32(&shared->held) != held)
		pg_atomic_write_u32(&shared->held, held);
}
