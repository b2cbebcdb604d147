/*-------------------------------------------------------------------------
 *
 * startup.c
 *	  The phases of a start, in their order, and why it is that one.
 *
 * 1. _PG_init, in the postmaster, before there is shared memory: settings, hooks
 *	  and callbacks, which every process inherits; workers are announced.
 * 2. nvm_shmem_request: each layer says what shared memory and locks it needs.
 * 3. nvm_shmem_startup, in the postmaster: the pool is opened, and each layer,
 *	  from the bottom up, looks at its part of it.  Again when the postmaster
 *	  starts anew after a backend's death.
 * 4. PostgreSQL's own recovery, if it needs one.  Nobody uses nvm data meanwhile.
 * 5. The first access to nvm data, or the first commit, settles what the last
 *	  crash left in doubt (wbl/wbl_resolve.c): only now pg_xact can be asked.
 * 6. Workers, in the background: the keeper, the gap collector, the recovery of the
 *	  volatile region, for which its tables wait, and the rebuild of indexes.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "am/nvm_am.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_identity.h"
#include "btree/nvm_btree_state.h"
#include "command/nvm_command.h"
#include "ddl/nvm_ddl.h"
#include "fmgr.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "nvm_library.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "replay/nvm_replay.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_row_state.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/nvm_storage_relation.h"
#include "utils/guc.h"
#include "vlog/nvm_vlog.h"
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
	RequestAddinShmemSpace(nvm_log_shmem_size());
	RequestAddinShmemSpace(nvm_wbl_shmem_size());
	RequestAddinShmemSpace(nvm_btree_shmem_size());
	RequestAddinShmemSpace(nvm_table_shmem_size());
	RequestAddinShmemSpace(nvm_vlog_shmem_size());
	RequestAddinShmemSpace(nvm_command_shmem_size());
	RequestAddinShmemSpace(nvm_replay_shmem_size());
	RequestNamedLWLockTranche(NVM_PMEM_TRANCHE, nvm_pmem_num_lwlocks());
	RequestNamedLWLockTranche(NVM_POOL_TRANCHE, nvm_pool_num_lwlocks());
	RequestNamedLWLockTranche(NVM_LOG_TRANCHE, nvm_log_num_lwlocks());
	RequestNamedLWLockTranche(NVM_WBL_TRANCHE, nvm_wbl_num_lwlocks());
	RequestNamedLWLockTranche(NVM_TABLE_TRANCHE, nvm_table_num_lwlocks());
	RequestNamedLWLockTranche(NVM_COMMAND_TRANCHE, nvm_command_num_lwlocks());
}

/*
 * Runs in the postmaster at start and again when it reinitialises after a
 * backend's death; from the bottom layer up.  Opening a bad pool does not fail
 * here: it is refused, and the server starts without it.
 *
 * Old marks go before anybody can believe them, when the pool is open and its
 * redo lanes are replayed.  The commit slots are read last: from then on there is
 * something to settle.  A reset that was asked for replaces the pool when all
 * layers had a chance to refuse it; then the slots are read anew.
 */
static void
nvm_shmem_startup(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	nvm_pmem_shmem_startup();
	nvm_pool_shmem_startup();
	nvm_log_shmem_startup();
	nvm_command_shmem_startup();
	if (!IsUnderPostmaster)
		nvm_table_forget_old_marks();
	nvm_btree_shmem_startup();
	nvm_table_shmem_startup();
	nvm_wbl_shmem_startup();
	nvm_vlog_shmem_startup();
	nvm_replay_shmem_startup();
	if (!IsUnderPostmaster && nvm_pool_settle_reset())
	{
		nvm_log_shmem_init();
		nvm_wbl_shmem_init();
	}
	LWLockRelease(AddinShmemInitLock);
}

void
_PG_init(void)
{
	/*
	 * Loaded by a session alone, the handler works just enough to say that
	 * the library must be preloaded: the pool is mapped by the postmaster.
	 */
	if (!process_shared_preload_libraries_in_progress)
	{
		nvm_storage_refuse_upgrade();
		return;
	}

	/*
	 * Settings, all of them before the unknown ones are warned of, and before
	 * the prefix is reserved.
	 */
	nvm_pmem_define_settings();
	nvm_pool_define_settings();
	nvm_memory_define_settings();
	nvm_log_define_settings();
	nvm_wbl_define_settings();
	nvm_command_define_settings();
	nvm_btree_define_settings();
	nvm_index_define_identity();
	nvm_ddl_define_settings();
	nvm_vlog_define_settings();
	nvm_replay_define_settings();
	nvm_warn_of_unknown_settings();
	MarkGUCPrefixReserved("nvm");

	/* the phases that follow */
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = nvm_shmem_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = nvm_shmem_startup;

	/*
	 * What PostgreSQL calls at the end of a transaction; inherited by every
	 * process: nobody may commit without being asked.  Callbacks run in the
	 * reverse order of their registration, so what other parts have
	 * registered has run when this one decides.
	 */
	nvm_xact_register_callbacks();
	nvm_log_register_callbacks();
	nvm_command_register_verdict();

	/* what lower layers call of higher ones */
	nvm_row_state_register();
	nvm_index_state_register();
	nvm_table_register();
	nvm_vlog_method_register();
	nvm_cmdlog_method_register();
	nvm_btree_register();
	nvm_btree_register_settle();
	nvm_index_register_relpages();
	nvm_index_register_takeover();
	nvm_index_register_routines();
	nvm_vlog_register();
	nvm_replay_register_player();

	/* PostgreSQL's hooks: those of one part, then those of several */
	nvm_command_register_labels();
	nvm_ddl_register_hooks();
	nvm_install_hooks();

	nvm_wbl_register_workers();
	nvm_btree_register_workers();
}
