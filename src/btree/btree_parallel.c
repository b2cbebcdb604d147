/*-------------------------------------------------------------------------
 *
 * btree_parallel.c
 *	  Several processes that share one scan.
 *
 * They take leaves in turn.  The process that has the turn reads a leaf,
 * learns from it where the next one is, and passes the turn on before it
 * returns a row.  With the turn it passes on a block number.  A scan forward
 * passes on that of the next leaf.  A scan backward passes on that of the leaf
 * just read, because the leaf to its left may be split in between.
 *
 * Each process goes through the combinations of array elements on its own;
 * their number says whether the shared state is still about the same one.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_scan.h"
#include "compat/nvm_compat_indexam.h"
#include "pgstat.h"
#include "storage/condition_variable.h"
#include "storage/spin.h"

typedef enum NvmParallelState
{
	NVM_PARALLEL_START,			/* the combination's first leaf is to be found */
	NVM_PARALLEL_BUSY,			/* another process reads a leaf */
	NVM_PARALLEL_IDLE,			/* place is valid */
	NVM_PARALLEL_DONE			/* the combination has no more leaves */
} NvmParallelState;

typedef struct NvmParallelScan
{
	uint64		magic;			/* see parallel_area */
	slock_t		mutex;			/* protects all of this but cv */
	NvmParallelState state;
	uint32		place;
	uint64		combination;
	ConditionVariable cv;		/* state has changed */
} NvmParallelScan;

#define PARALLEL_MAGIC		UINT64CONST(0x5CA9A1B57C3D5E9F)

/*
 * The area begins with that of nbtree.  A process that has missed that the index is
 * ours then comes to the end of an empty file, not to our state.  It touches no more
 * than the fixed part of nbtree's before that.
 */
#define BTREE_AREA			1024

static NvmParallelScan *
parallel_area(IndexScanDesc scan)
{
	NvmParallelScan *shared = (NvmParallelScan *)
	((char *) NvmParallelScanArea(scan) + BTREE_AREA);

	if (shared->magic != PARALLEL_MAGIC)
		nvm_scan_is_foreign(scan);
	return shared;
}

Size
nvm_btree_estimateparallelscan(NVM_ESTIMATE_PARALLEL_ARGS)
{
	return BTREE_AREA + sizeof(NvmParallelScan);
}

static void
start_over(NvmParallelScan *shared)
{
	shared->state = NVM_PARALLEL_START;
	shared->place = NVM_INDEX_NONE;
	shared->combination = 0;
}

void
nvm_btree_initparallelscan(void *target)
{
	NvmParallelScan *shared = (NvmParallelScan *) ((char *) target + BTREE_AREA);

	btinitparallelscan(target);
	shared->magic = PARALLEL_MAGIC;
	SpinLockInit(&shared->mutex);
	start_over(shared);
	ConditionVariableInit(&shared->cv);
}

/* no process is in the scan */
void
nvm_btree_parallelrescan(IndexScanDesc scan)
{
	NvmParallelScan *shared = parallel_area(scan);

	SpinLockAcquire(&shared->mutex);
	start_over(shared);
	SpinLockRelease(&shared->mutex);
}

NvmParallelTurn
nvm_parallel_seize(IndexScanDesc scan, uint64 combination, uint32 *place)
{
	NvmParallelScan *shared = parallel_area(scan);
	NvmParallelTurn turn = NVM_PARALLEL_OVER;
	bool		wait;

	do
	{
		wait = false;
		SpinLockAcquire(&shared->mutex);
		if (combination > shared->combination && shared->state == NVM_PARALLEL_DONE)
		{
			/* the first to arrive at this combination */
			shared->combination = combination;
			shared->state = NVM_PARALLEL_START;
		}
		if (combination != shared->combination || shared->state == NVM_PARALLEL_DONE)
			turn = NVM_PARALLEL_OVER;
		else if (shared->state == NVM_PARALLEL_BUSY)
			wait = true;
		else
		{
			turn = shared->state == NVM_PARALLEL_START ?
				NVM_PARALLEL_FIRST : NVM_PARALLEL_NEXT;
			*place = shared->place;
			shared->state = NVM_PARALLEL_BUSY;
		}
		SpinLockRelease(&shared->mutex);
		if (wait)
			ConditionVariableSleep(&shared->cv, WAIT_EVENT_BTREE_PAGE);
	} while (wait);
	ConditionVariableCancelSleep();
	return turn;
}

void
nvm_parallel_release(IndexScanDesc scan, uint32 place)
{
	NvmParallelScan *shared = parallel_area(scan);

	SpinLockAcquire(&shared->mutex);
	shared->place = place;
	shared->state = NVM_PARALLEL_IDLE;
	SpinLockRelease(&shared->mutex);
	ConditionVariableSignal(&shared->cv);
}

/* the combination has no more leaves */
void
nvm_parallel_finish(IndexScanDesc scan, uint64 combination)
{
	NvmParallelScan *shared = parallel_area(scan);

	SpinLockAcquire(&shared->mutex);
	if (combination == shared->combination)
		shared->state = NVM_PARALLEL_DONE;
	SpinLockRelease(&shared->mutex);
	ConditionVariableBroadcast(&shared->cv);
}
