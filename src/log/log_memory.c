/*-------------------------------------------------------------------------
 *
 * log_memory.c
 *	  The log: settings, shared memory, and the start.
 *
 * What must outlive the death of a process lies beside the volatile region, and
 * goes with it (NvmLogMemory).  A start that finds it goes on with the same
 * generation.  A start that finds it new begins another (log_generation.c), unless
 * the pool never had one.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/twophase.h"
#include "log/log_impl.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"
#include "pool/nvm_region.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/guc.h"

#define NVM_LOG_INSERT_LOCK		0
#define NVM_LOG_WRITE_LOCK		1
#define NVM_LOG_REPLAYED_LOCK	2
#define NVM_LOG_NUM_LOCKS		3

int			nvm_log_delay = -1;
bool		nvm_wait_for_recovery = true;

bool		nvm_log_is_on = false;
NvmLogMemory *nvm_log_memory = NULL;
NvmLogShared *NvmLog = NULL;

static bool log_requested = false;

/*
 * See nvm_log.h.
 */
void
nvm_log_request(void)
{
	log_requested = true;
	nvm_region_request_companion(sizeof(NvmLogMemory), offsetof(NvmLogMemory, buffer),
								 nvm_log_memory_layout(), nvm_log_check_kept,
								 nvm_log_check_begin);
}

void
nvm_log_define_settings(void)
{
	DefineCustomStringVariable("nvm.log_directories",
							   "Directories of the log that brings tables in memory back.",
							   "With commas between them. A relative path is taken from the data directory.",
							   &nvm_log_directories,
							   "pg_nvm_log",
							   PGC_POSTMASTER,
							   GUC_LIST_INPUT,
							   nvm_log_check_directories, NULL, NULL);
	DefineCustomIntVariable("nvm.log_retry_interval",
							"Time after which a directory of the log that has failed is tried again.",
							"Of several directories; one alone is tried by each commit that needs it.",
							&nvm_log_retry_interval,
							10, 1, 3600,
							PGC_SIGHUP, GUC_UNIT_S,
							NULL, NULL, NULL);
	DefineCustomBoolVariable("nvm.wait_for_recovery",
							 "Whether an access to a table in memory that is being rebuilt from the log waits for it.",
							 "off: it is an error at once.",
							 &nvm_wait_for_recovery,
							 true,
							 PGC_USERSET, 0,
							 NULL, NULL, NULL);
	DefineCustomIntVariable("nvm.log_delay",
							"Time for which a commit waits for others before it syncs the log.",
							"-1 waits for those who have committed a moment ago, while that pays.",
							&nvm_log_delay,
							-1, -1, 100000,
							PGC_SUSET,
							0,
							NULL, NULL, NULL);
	DefineCustomBoolVariable("nvm.log_compression",
							 "Compresses rows that are written to the log.",
							 "Not those of large transactions.",
							 &nvm_log_compression,
							 true,
							 PGC_SUSET,
							 0,
							 NULL, NULL, NULL);
	if (nvm_memory_limit > 0)
		nvm_log_request();
}

static int
number_of_processes(void)
{
	return MaxBackends + NUM_AUXILIARY_PROCS + max_prepared_xacts;
}

static Size
own_size(void)
{
	return MAXALIGN(add_size(offsetof(NvmLogShared, rests_on),
							 mul_size(number_of_processes(), sizeof(pg_atomic_uint64))));
}

Size
nvm_log_shmem_size(void)
{
	return add_size(own_size(), nvm_log_replayed_shmem_size());
}

int
nvm_log_num_lwlocks(void)
{
	return NVM_LOG_NUM_LOCKS;
}

static void
shared_init(void)
{
	LWLockPadded *locks = GetNamedLWLockTranche(NVM_LOG_TRANCHE);

	memset(NvmLog, 0, own_size());
	NvmLog->insert_lock = &locks[NVM_LOG_INSERT_LOCK].lock;
	NvmLog->write_lock = &locks[NVM_LOG_WRITE_LOCK].lock;
	ConditionVariableInit(&NvmLog->written);
	nvm_log_gather_init();
	nvm_log_directories_init();
	pg_atomic_init_u64(&NvmLog->round_began, 0);
	pg_atomic_init_u64(&NvmLog->next_try, 0);
	pg_atomic_init_u32(&NvmLog->broken, 0);
	pg_atomic_init_u64(&NvmLog->lost_before, 0);
	pg_atomic_init_u64(&NvmLog->records, 0);
	pg_atomic_init_u64(&NvmLog->rounds, 0);
	pg_atomic_init_u64(&NvmLog->bytes, 0);
	pg_atomic_init_u64(&NvmLog->side_bytes, 0);
	pg_atomic_init_u64(&NvmLog->waits, 0);
	pg_atomic_init_u64(&NvmLog->wait_usec, 0);
	pg_atomic_init_u32(&NvmLog->recovery_pid, 0);
	pg_atomic_init_u32(&NvmLog->refuses_writers, 0);
	for (int i = 0; i < number_of_processes(); i++)
		pg_atomic_init_u64(&NvmLog->rests_on[i], 0);
}

/*
 * A file that is damaged is not the last one any more, so that a checkpoint can do
 * without it.
 */
static bool
leave_damaged_file(void)
{
	if (!nvm_log_file_is_damaged || !nvm_log_memory->file_is_bad)
		return true;
	nvm_log_begin_attempt();
	return nvm_log_next_file();
}

/*
 * The list of directories may have changed.  A name that nothing has got is of no
 * directory; if there is one only, it does not matter.
 */
static void
find_current_file(void)
{
	NvmLogMemory *m = nvm_log_memory;

	m->directory = Max(nvm_log_find_file(m->generation, m->file), 0);
	m->tried_in = nvm_log_ndirectories() == 1 ? 0 : nvm_log_find_file(m->generation, m->tried);
}

/*
 * A log that is lost goes on in a new file; its directory may be lost, too.
 */
static bool
find_place(void)
{
	if (!nvm_log_file_is_damaged || nvm_log_make_directories() == NULL)
		return true;
	NvmLog->broken_errno = errno;
	return false;
}

/*
 * The memory is as the last process left it.  A death may have left what is decided
 * and not synced.  It must be synced before anybody reads the region: what the
 * start finds decided counts as frozen.
 */
static bool
go_on(void)
{
	const char *where;

	if (nvm_log_memory->rebuild != NVM_LOG_WHOLE)
	{
		nvm_log_memory->rebuild = NVM_LOG_TO_REBUILD;
		/* tables that are open leave room for the others; nobody is there yet */
		nvm_regions[NVM_REGION_VOLATILE].claim[NVM_REBUILT_ROWS] = NVM_CLAIM_ALL;
	}
	/* the dead may have written anything behind what is synced */
	nvm_log_memory->file_is_bad = true;
	find_current_file();
	nvm_log_reserve_asked();
	if (find_place() &&
		(nvm_log_inserted() == nvm_log_persistent() || nvm_log_write_rest()) &&
		leave_damaged_file())
		return nvm_log_settle_reset(false, nvm_log_file_is_damaged);
	where = nvm_log_where();
	errno = NvmLog->broken_errno;
	nvm_pool_refuse(ERRCODE_IO_ERROR, psprintf("could not write the log in %s: %m", where),
					"Free space on the device that holds the directory, or mend it, and restart the server.");
	return false;
}

/*
 * In the postmaster's exit, when all processes are gone: what nobody waited for.
 */
static void
sync_at_exit(int code, Datum arg)
{
	/* not in an immediate shutdown, nor ahead of a start that does it */
	if (MyProcPid != (int) DatumGetInt32(arg) || !nvm_pool_may_close(code) ||
		!nvm_log_is_on || !nvm_log_has_begun())
		return;
	if (!nvm_log_write_rest())
		ereport(LOG,
				(errmsg("nvm: the last transactions of tables in memory are lost, because the log could not be written")));
}

bool
nvm_log_has_begun(void)
{
	return pg_atomic_read_u32(&nvm_log_memory->begun) != 0;
}

/*
 * See nvm_log.h.
 */
void
nvm_log_require_begun(void)
{
	if (!nvm_log_is_on)
		nvm_region_is_missing();
	if (likely(nvm_log_has_begun()))
		return;
	LWLockAcquire(NvmLog->write_lock, LW_EXCLUSIVE);
	if (!nvm_log_has_begun())
		nvm_log_begin_first();
	LWLockRelease(NvmLog->write_lock);
}

/*
 * Go on with the generation that the memory is of, or begin another one.  A pool whose
 * log has never begun goes on without.  False after refusing the pool.
 */
static bool
open_log(void)
{
	if (nvm_log_has_begun())
		return go_on();
	return nvm_pool_log_generation() == 0 || nvm_log_begin_generation();
}

/*
 * Open the log, if there is to be one; at each start, and when a pool was given up for
 * a new one.  Refuses the pool if it cannot.  In the postmaster.
 */
void
nvm_log_shmem_init(void)
{
	shared_init();
	nvm_log_is_on = log_requested && NvmPool->status == NVM_POOL_OPEN &&
		nvm_regions[NVM_REGION_VOLATILE].max_chunks > 0 && nvm_region_companion != NULL;
	if (!nvm_log_is_on)
		return;
	nvm_log_memory = (NvmLogMemory *) nvm_region_companion;
	if (!open_log())
	{
		nvm_log_is_on = false;
		return;
	}
	NvmLog->start_inserted = nvm_log_inserted();
	NvmLog->start_number = pg_atomic_read_u64(&nvm_log_memory->number);
	on_shmem_exit(sync_at_exit, Int32GetDatum(MyProcPid));
}

/*
 * Attach to the shared memory, or make it.  Caller holds AddinShmemInitLock.
 */
void
nvm_log_shmem_startup(void)
{
	bool		found;

	nvm_log_replayed_shmem_startup(&GetNamedLWLockTranche(NVM_LOG_TRANCHE)[NVM_LOG_REPLAYED_LOCK].lock);
	NvmLog = ShmemInitStruct("pg_nvm log", own_size(), &found);
	if (!found)
		nvm_log_shmem_init();
}

uint32
nvm_log_generation(void)
{
	return nvm_log_memory->generation;
}

/*
 * See nvm_log.h.  A process that writes has its xid before it asks, and whoever refuses
 * looks at xids behind the store: one of the two sees the other.
 */
void
nvm_log_refuse_writers(void)
{
	pg_atomic_write_u32(&NvmLog->refuses_writers, 1);
	pg_memory_barrier();
}

bool
nvm_log_refuses_writers(void)
{
	return pg_atomic_read_u32(&NvmLog->refuses_writers) != 0;
}
