/*-------------------------------------------------------------------------
 *
 * pg_nvm.c
 *	  Loading the library: settings, hooks, shared memory, workers.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "am/nvm_am.h"
#include "btree/nvm_btree.h"
#include "ddl/nvm_ddl.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nvm_library.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_locks.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/nvm_allvisible_set.h"
#include "storage/nvm_storage_relation.h"
#include "utils/guc.h"
#include "wbl/nvm_snapshot.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_xact.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static void
nvm_shmem_request(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();

	RequestAddinShmemSpace(nvm_pmem_shmem_size());
	RequestAddinShmemSpace(nvm_pool_shmem_size());
	RequestAddinShmemSpace(nvm_wbl_shmem_size());
	RequestAddinShmemSpace(nvm_btree_shmem_size());
	RequestAddinShmemSpace(nvm_table_shmem_size());
	RequestNamedLWLockTranche(NVM_PMEM_TRANCHE, nvm_pmem_num_lwlocks());
	RequestNamedLWLockTranche(NVM_POOL_TRANCHE, nvm_pool_num_lwlocks());
	RequestNamedLWLockTranche(NVM_WBL_TRANCHE, nvm_wbl_num_lwlocks());
	RequestNamedLWLockTranche(NVM_TABLE_TRANCHE, nvm_table_num_lwlocks());
}

/*
 * Runs in the postmaster at start and again when it reinitialises after a
 * backend's death; from the bottom layer up.  Opening a bad pool does not fail
 * here: it is refused, and the server starts without it.
 */
static void
nvm_shmem_startup(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	nvm_pmem_shmem_startup();
	nvm_pool_shmem_startup();
	if (!IsUnderPostmaster)
		nvm_table_forget_old_marks();
	nvm_btree_shmem_startup();
	nvm_table_shmem_startup();
	nvm_wbl_shmem_startup();
	if (!IsUnderPostmaster && nvm_pool_settle_reset())
		nvm_wbl_shmem_init();
	LWLockRelease(AddinShmemInitLock);
}

void
_PG_init(void)
{
	/*
	 * Loaded by a session alone, the handler works just enough to say that the
	 * library must be preloaded: the pool is mapped by the postmaster.
	 */
	if (!process_shared_preload_libraries_in_progress)
	{
		nvm_storage_refuse_upgrade();
		return;
	}

	nvm_pmem_define_settings();
	nvm_pool_define_settings();
	nvm_wbl_define_settings();
	nvm_btree_define_settings();
	nvm_ddl_define_settings();
	nvm_warn_of_unknown_settings();
	MarkGUCPrefixReserved("nvm");

	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = nvm_shmem_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = nvm_shmem_startup;

	/* inherited by every process: nobody may commit without being asked */
	nvm_xact_register_callbacks();
	nvm_table_register();
	nvm_btree_register();
	nvm_btree_register_hooks();
	nvm_btree_register_planner();
	nvm_index_register_relpages();
	nvm_ddl_register_hooks();
	nvm_index_identity_register_hook();
	nvm_speculative_register_hook();
	nvm_bitmap_register_hook();
	nvm_allvisible_register_hook();
	nvm_block_readers_register_hooks();
	nvm_plan_register_hooks();
	nvm_snapshot_register_hook();
	nvm_wbl_register_workers();
	nvm_btree_register_workers();
}
