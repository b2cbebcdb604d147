/*-------------------------------------------------------------------------
 *
 * wbl_settings.c
 *	  Write-behind logging: its settings and its shared memory.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pool/nvm_pool.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "wbl/nvm_snapshot.h"
#include "wbl/wbl_impl.h"

bool		nvm_collect_gaps = true;
int			nvm_collector_delay = 1;
int			nvm_redo_limit = 16 * 1024;
int			nvm_horizon_naptime = 200;

NvmWblShared *NvmWbl = NULL;
NvmSlotState *nvm_slots = NULL;
pg_atomic_uint64 *nvm_frozen = NULL;

const NvmTableOps *nvm_table_ops = NULL;

void
nvm_wbl_define_settings(void)
{
	DefineCustomBoolVariable("nvm.collect_gaps",
							 "Lets the gap collector remove what crashes left undecided.",
							 "Turned off, it pauses: nothing is wrong, but reads of nvm tables consult the list of gaps.",
							 &nvm_collect_gaps,
							 true,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);
	DefineCustomIntVariable("nvm.collector_delay",
							"Pause of the gap collector after each megabyte.",
							NULL,
							&nvm_collector_delay,
							1, 0, 10000,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);
	DefineCustomIntVariable("nvm.redo_limit",
							"Asks for a checkpoint when more WAL than this would have to be redone after a crash.",
							"Only while most of that WAL is commit records of transactions that wrote nvm tables alone. 0 never asks.",
							&nvm_redo_limit,
							16 * 1024, 0, MAX_KILOBYTES,
							PGC_SIGHUP,
							GUC_UNIT_KB,
							NULL, NULL, NULL);
	DefineCustomIntVariable("nvm.horizon_naptime",
							"Time between two attempts to advance the horizon below which every transaction is finished.",
							NULL,
							&nvm_horizon_naptime,
							200, 10, 60000,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);
}

Size
nvm_wbl_shmem_size(void)
{
	Size		size = MAXALIGN(sizeof(NvmWblShared));

	size = add_size(size, CACHELINEALIGN(mul_size(NVM_SLOT_NUMBERS, sizeof(NvmSlotState))));
	size = add_size(size, CACHELINEALIGN(mul_size(NVM_SLOT_NUMBERS, sizeof(pg_atomic_uint64))));
	size = add_size(size, CACHELINEALIGN(nvm_snapshot_shmem_size()));
	return add_size(size, 4 * PG_CACHE_LINE_SIZE);
}

int
nvm_wbl_num_lwlocks(void)
{
	return NVM_WBL_NUM_LOCKS;
}

/*
 * Attach to the shared memory, or make it.  Caller holds AddinShmemInitLock.
 */
void
nvm_wbl_shmem_startup(void)
{
	bool		found;

	NvmWbl = ShmemInitStruct("pg_nvm wbl", sizeof(NvmWblShared), &found);
	nvm_slots = ShmemInitStruct("pg_nvm commit slots",
								mul_size(NVM_SLOT_NUMBERS, sizeof(NvmSlotState)), &found);
	nvm_frozen = ShmemInitStruct("pg_nvm frozen",
								 mul_size(NVM_SLOT_NUMBERS, sizeof(pg_atomic_uint64)), &found);
	nvm_snapshot_shmem_startup();
	if (!found)
		nvm_wbl_shmem_init();
}

/*
 * Initialise the shared memory and, if the pool is open, find out what the
 * last stop left (nvm_recovery_analyse).  Runs in the postmaster at its start,
 * and again when it reinitialises after the crash of a child.  Runs also when
 * a pool that was given up has been replaced by a new one.
 */
void
nvm_wbl_shmem_init(void)
{
	LWLockPadded *locks;
	int			nslots;

	memset(NvmWbl, 0, sizeof(NvmWblShared));
	nvm_walwriter_init();
	locks = GetNamedLWLockTranche(NVM_WBL_TRANCHE);
	NvmWbl->wbl_lock = &locks[NVM_WBL_LOCK].lock;
	NvmWbl->horizon_lock = &locks[NVM_WBL_HORIZON_LOCK].lock;
	NvmWbl->storage_lock = &locks[NVM_WBL_STORAGE_LOCK].lock;
	pg_atomic_init_u32(&NvmWbl->resolved, 0);
	pg_atomic_init_u32(&NvmWbl->judged, 0);
	pg_atomic_init_u32(&NvmWbl->ngaps, 0);
	pg_atomic_init_u32(&NvmWbl->ntorn, 0);
	for (int i = 0; i < NVM_NUM_REGIONS; i++)
		pg_atomic_init_u32(&NvmWbl->slots_used[i], 0);
	pg_atomic_init_u64(&NvmWbl->commits, 0);
	pg_atomic_init_u64(&NvmWbl->mixed_commits, 0);
	pg_atomic_init_u64(&NvmWbl->prepared, 0);
	pg_atomic_init_u32(&NvmWbl->ntwophase, 0);
	pg_atomic_init_u64(&NvmWbl->oldest_twophase, PG_UINT64_MAX);
	pg_atomic_init_u64(&NvmWbl->aborts, 0);
	pg_atomic_init_u64(&NvmWbl->helped, 0);
	pg_atomic_init_u64(&NvmWbl->collector_blocks, 0);
	pg_atomic_init_u64(&NvmWbl->collector_total, 0);
	pg_atomic_init_u64(&NvmWbl->collector_sweeps, 0);
	pg_atomic_init_u32(&NvmWbl->collector_paused, 0);
	pg_atomic_init_u64(&NvmWbl->collected, 0);
	pg_atomic_init_u32(&NvmWbl->commit_record_size, 0);
	pg_atomic_init_u64(&NvmWbl->redo_checkpoints, 0);

	/* without a volatile region, the memory for its slots is never touched */
	nslots = nvm_regions[NVM_REGION_VOLATILE].max_chunks > 0 ? NVM_SLOT_NUMBERS : NVM_MAX_SLOTS;
	memset(nvm_slots, 0, sizeof(NvmSlotState) * nslots);
	for (int i = 0; i < nslots; i++)
	{
		pg_atomic_init_u64(&nvm_slots[i].durable, 0);
		pg_atomic_init_u32(&nvm_slots[i].owner, 0);
		pg_atomic_init_u64(&nvm_slots[i].running, 0);
		pg_atomic_init_u64(&nvm_slots[i].xid, 0);
		pg_atomic_init_u64(&nvm_frozen[i], 0);
	}

	if (NvmPool != NULL && NvmPool->status == NVM_POOL_OPEN)
		nvm_recovery_analyse();
}

void
nvm_wbl_register_table_ops(const NvmTableOps *ops)
{
	nvm_table_ops = ops;
}

/*
 * See nvm_wbl.h.  Nobody can reach the storage; the collector, which reaches
 * every storage, is locked out.
 */
void
nvm_storage_reclaim(uint32 dir)
{
	LWLockAcquire(NvmWbl->storage_lock, LW_EXCLUSIVE);
	nvm_dir_reclaim(dir);
	LWLockRelease(NvmWbl->storage_lock);
}

/*
 * See nvm_wbl.h.
 */
void
nvm_storage_reclaim_ended(uint32 dir, NvmStamp stamp)
{
	LWLockAcquire(NvmWbl->storage_lock, LW_EXCLUSIVE);
	if (nvm_dir_entry(dir)->begin != NVM_STAMP_NONE &&
		nvm_dir_entry(dir)->end == stamp)
		nvm_dir_reclaim(dir);
	LWLockRelease(NvmWbl->storage_lock);
}
