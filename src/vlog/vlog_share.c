/*-------------------------------------------------------------------------
 *
 * vlog_share.c
 *	  The processes of a rebuild: what they share, and how they are given tasks.
 *
 * The worker "nvm log recovery" is the first process.  It makes all decisions, and
 * does tasks as the others do.  A rebuild is a sequence of steps; a step has tasks
 * that any process may do, in any order.  The next step begins when all are done.  If
 * there is no other process, or no shared memory for them, the first one does all.
 *
 * README.md, "Several processes".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/dsa.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"
#include "vlog/vlog_impl.h"
#include "wbl/nvm_wbl.h"

/* how long to sleep before looking whether the others are still there */
#define WATCH_MS		100

/* bytes of a list's batch: of the first one, and of the largest */
#define FIRST_BATCH		512
#define LARGEST_BATCH	(32 * 1024)

/* what another process is told at its start */
typedef struct Invitation
{
	dsa_handle	area;
	NvmVlogMemory shared;
	int			process;
} Invitation;

StaticAssertDecl(sizeof(Invitation) <= BGW_EXTRALEN, "an invitation fits");

/* the others; of the first process */
static struct
{
	BackgroundWorkerHandle *handle[NVM_VLOG_MAX_PROCESSES];
	int			n;
	NvmVlog    *vlog;
}			others;

/* ---- memory ---- */

NvmVlogMemory
nvm_vlog_alloc(NvmVlog *vlog, Size size)
{
	dsa_pointer p;

	if (vlog->area == NULL)
		return (NvmVlogMemory) (uintptr_t)
			MemoryContextAllocExtended(vlog->context, Max(size, 1), MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	vlog->allocating = true;
	NVM_FAILPOINT("rebuild-memory");
	p = dsa_allocate_extended(vlog->area, Max(size, 1), DSA_ALLOC_HUGE | DSA_ALLOC_ZERO | DSA_ALLOC_NO_OOM);
	vlog->allocating = false;
	if (!DsaPointerIsValid(p))
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("There is no shared memory for %zu bytes.", size)));
	return p;
}

void *
nvm_vlog_at(const NvmVlog *vlog, NvmVlogMemory memory)
{
	return vlog->area == NULL ? (void *) (uintptr_t) memory : dsa_get_address(vlog->area, memory);
}

void
nvm_vlog_free(NvmVlog *vlog, NvmVlogMemory memory)
{
	if (memory == 0)
		return;
	if (vlog->area == NULL)
		pfree((void *) (uintptr_t) memory);
	else
		dsa_free(vlog->area, memory);
}

/* ---- lists ---- */

static NvmVlogBatch *
add_batch(NvmVlog *vlog, NvmVlogList *list, Size size)
{
	Size		bytes = Min(Max(list->n * size, FIRST_BATCH), LARGEST_BATCH);
	NvmVlogMemory new = nvm_vlog_alloc(vlog, bytes);
	NvmVlogBatch *batch = nvm_vlog_at(vlog, new);

	batch->room = (uint32) ((bytes - MAXALIGN(sizeof(NvmVlogBatch))) / size);
	if (list->last != 0)
		((NvmVlogBatch *) nvm_vlog_at(vlog, list->last))->next = new;
	else
		list->first = new;
	list->last = new;
	return batch;
}

/*
 * Room for one element more at the end of a list.
 */
void *
nvm_vlog_list_add(NvmVlog *vlog, NvmVlogList *list, Size size)
{
	NvmVlogBatch *batch = list->last != 0 ? nvm_vlog_at(vlog, list->last) : NULL;

	if (batch == NULL || batch->n == batch->room)
		batch = add_batch(vlog, list, size);
	list->n++;
	return NVM_VLOG_BATCH_DATA(batch) + batch->n++ * size;
}

void
nvm_vlog_list_free(NvmVlog *vlog, NvmVlogList *list)
{
	while (list->first != 0)
	{
		NvmVlogMemory next = ((NvmVlogBatch *) nvm_vlog_at(vlog, list->first))->next;

		nvm_vlog_free(vlog, list->first);
		list->first = next;
	}
	list->last = 0;
	list->n = 0;
}

void
nvm_vlog_list_copy(const NvmVlog *vlog, const NvmVlogList *list, Size size, void *to)
{
	char	   *at = to;

	for (NvmVlogMemory next = list->first; next != 0;)
	{
		const NvmVlogBatch *batch = nvm_vlog_at(vlog, next);

		memcpy(at, NVM_VLOG_BATCH_DATA(batch), batch->n * size);
		at += batch->n * size;
		next = batch->next;
	}
}

/* ---- beginning and end ---- */

static void
init_shared(NvmVlogShared *shared)
{
	SpinLockInit(&shared->mutex);
	ConditionVariableInit(&shared->changed);
	pg_atomic_init_u32(&shared->next_ask, 0);
	pg_atomic_init_u64(&shared->nrows, 0);
	pg_atomic_init_u64(&shared->nmoved, 0);
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_share_begin(NvmVlog *vlog, int nothers)
{
	NvmVlogMemory memory;

	others.n = 0;
	others.vlog = vlog;
	if (nothers > 0)
	{
		vlog->allocating = true;
		vlog->area = dsa_create(LWTRANCHE_PARALLEL_QUERY_DSA);
		vlog->allocating = false;
		dsa_pin_mapping(vlog->area);
	}
	memory = nvm_vlog_alloc(vlog, sizeof(NvmVlogShared));
	vlog->shared = nvm_vlog_at(vlog, memory);
	init_shared(vlog->shared);
	vlog->shared->nprocesses = nothers + 1;
	vlog->shared->output = nvm_vlog_alloc(vlog, (nothers + 1) * sizeof(NvmVlogOutput));
	vlog->output = nvm_vlog_at(vlog, vlog->shared->output);

	/* they are told where this is */
	for (int i = 1; i <= nothers; i++)
	{
		BackgroundWorker worker;
		Invitation	invitation = {dsa_get_handle(vlog->area), memory, i};

		nvm_worker_describe(&worker, "nvm log recovery worker", "nvm_vlog_worker_main",
							BGW_NEVER_RESTART);
		worker.bgw_notify_pid = MyProcPid;
		memcpy(worker.bgw_extra, &invitation, sizeof(invitation));
		if (!RegisterDynamicBackgroundWorker(&worker, &others.handle[others.n]))
			break;
		others.n++;
	}
}

/*
 * See vlog_impl.h.  They look at `stop` as often as at signals.  After an ERROR they may
 * be in the middle of a task: they are waited for.
 */
void
nvm_vlog_share_dismiss(NvmVlog *vlog)
{
	HOLD_INTERRUPTS();
	ConditionVariableCancelSleep();
	SpinLockAcquire(&vlog->shared->mutex);
	vlog->shared->stop = true;
	SpinLockRelease(&vlog->shared->mutex);
	ConditionVariableBroadcast(&vlog->shared->changed);
	for (int i = 0; i < others.n; i++)
	{
		(void) WaitForBackgroundWorkerShutdown(others.handle[i]);
		pfree(others.handle[i]);
	}
	others.n = 0;
	RESUME_INTERRUPTS();
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_share_end(NvmVlog *vlog)
{
	others.vlog = NULL;
	if (vlog->shared == NULL)
	{
		if (vlog->area != NULL)
			dsa_detach(vlog->area);
		vlog->area = NULL;
		return;
	}
	HOLD_INTERRUPTS();
	nvm_vlog_share_dismiss(vlog);
	nvm_vlog_unmap(vlog);
	if (vlog->area != NULL)
		dsa_detach(vlog->area);
	vlog->area = NULL;
	vlog->shared = NULL;
	RESUME_INTERRUPTS();
}

/*
 * See vlog_impl.h: this process ends.
 */
void
nvm_vlog_share_exit(int code, Datum arg)
{
	LWLockReleaseAll();
	if (others.vlog != NULL)
		nvm_vlog_share_end(others.vlog);
}

/* ---- steps ---- */

/*
 * What the first process has made between two steps.
 */
static void
look_anew(NvmVlog *vlog)
{
	NvmVlogShared *shared = vlog->shared;

	vlog->checkpoint = shared->checkpoint == 0 ? NULL : nvm_vlog_at(vlog, shared->checkpoint);
	vlog->creation = shared->creation == 0 ? NULL : nvm_vlog_at(vlog, shared->creation);
	vlog->played = shared->played == 0 ? NULL : nvm_vlog_at(vlog, shared->played);
	vlog->file = shared->file == 0 ? NULL : nvm_vlog_at(vlog, shared->file);
	if (vlog->nbases < shared->nfiles)
	{
		int			n = shared->nfiles;
		const char **base = MemoryContextAllocZero(vlog->context, n * sizeof(char *));
		uint64	   *mapped = MemoryContextAllocZero(vlog->context, n * sizeof(uint64));

		if (vlog->nbases > 0)
		{
			memcpy(base, vlog->base, vlog->nbases * sizeof(char *));
			memcpy(mapped, vlog->mapped, vlog->nbases * sizeof(uint64));
		}
		vlog->base = base;
		vlog->mapped = mapped;
		vlog->nbases = n;
	}
}

static void
do_task(NvmVlog *vlog, NvmVlogStep step, uint64 task)
{
	switch (step)
	{
		case NVM_VLOG_IDLE:
			break;
		case NVM_VLOG_READ:
			NVM_FAILPOINT("rebuild-read");
			nvm_vlog_read(vlog, (int) task);
			break;
		case NVM_VLOG_CHECK:
			NVM_FAILPOINT("rebuild-check");
			nvm_vlog_check_side(vlog, vlog->shared->nblock_files + (int) task);
			break;
		case NVM_VLOG_COLLECT:
			NVM_FAILPOINT("rebuild-collect");
			nvm_vlog_collect_chunk(vlog, task);
			break;
		case NVM_VLOG_CHOOSE:
			NVM_FAILPOINT("rebuild-choose");
			nvm_vlog_choose(vlog, (int) task);
			break;
		case NVM_VLOG_PLACE:
			NVM_FAILPOINT("rebuild-place");
			nvm_vlog_place(vlog, task);
			break;
	}
}

/*
 * Do tasks of step number `sequence`, until there are none.
 */
static void
do_tasks(NvmVlog *vlog, uint64 sequence)
{
	NvmVlogShared *shared = vlog->shared;

	for (;;)
	{
		NvmVlogStep step = NVM_VLOG_IDLE;
		uint64		task = 0;
		bool		last;

		SpinLockAcquire(&shared->mutex);
		if (shared->sequence == sequence && shared->next < shared->ntasks &&
			!shared->stop && !shared->failed)
		{
			step = shared->step;
			task = shared->next++;
		}
		SpinLockRelease(&shared->mutex);
		if (step == NVM_VLOG_IDLE)
			return;
		do_task(vlog, step, task);
		nvm_vlog_pause();

		SpinLockAcquire(&shared->mutex);
		last = ++shared->done == shared->ntasks;
		SpinLockRelease(&shared->mutex);
		if (last)
			ConditionVariableBroadcast(&shared->changed);
	}
}

/*
 * ERROR if another process has failed, or has been ended: it may have left a task half
 * done.
 */
static void
look_at_others(NvmVlog *vlog)
{
	NvmVlogShared *shared = vlog->shared;
	bool		failed;

	SpinLockAcquire(&shared->mutex);
	failed = shared->failed;
	SpinLockRelease(&shared->mutex);
	if (failed)
		ereport(ERROR,
				(errcode(shared->sqlerrcode),
				 errmsg_internal("%s", shared->message),
				 shared->detail[0] != '\0' ? errdetail_internal("%s", shared->detail) : 0));
}

/*
 * Nobody tells us of a task that a process has left when it was ended.  One that could
 * not start has none.
 */
static void
require_others(NvmVlog *vlog)
{
	bool		dead = false;
	pid_t		pid;

	for (int i = 0; i < others.n; i++)
		dead |= vlog->shared->came[i + 1] && GetBackgroundWorkerPid(others.handle[i], &pid) == BGWH_STOPPED;
	look_at_others(vlog);
	if (dead)
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("a worker that was rebuilding tables in memory has ended"),
				 errdetail("The recovery begins anew.")));
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_run_step(NvmVlog *vlog, NvmVlogStep step, uint64 ntasks)
{
	NvmVlogShared *shared = vlog->shared;
	uint64		sequence;
	bool		done;

	look_anew(vlog);
	if (ntasks == 0)
		return;
	SpinLockAcquire(&shared->mutex);
	sequence = ++shared->sequence;
	shared->step = step;
	shared->next = 0;
	shared->done = 0;
	shared->ntasks = ntasks;
	SpinLockRelease(&shared->mutex);
	ConditionVariableBroadcast(&shared->changed);
	do_tasks(vlog, sequence);
	pg_atomic_write_u64(&nvm_log_progress()->workers, (uint64) nvm_vlog_workers(vlog));
	for (;;)
	{
		look_at_others(vlog);
		SpinLockAcquire(&shared->mutex);
		done = shared->done == shared->ntasks;
		SpinLockRelease(&shared->mutex);
		if (done)
			break;
		nvm_vlog_wait(vlog);
	}
	ConditionVariableCancelSleep();
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_wait(NvmVlog *vlog)
{
	NvmVlogShared *shared = vlog->shared;

	if (vlog->process == 0)
		require_others(vlog);
	(void) ConditionVariableTimedSleep(&shared->changed, WATCH_MS, PG_WAIT_EXTENSION);
	nvm_vlog_pause();
}

int
nvm_vlog_workers(const NvmVlog *vlog)
{
	int			n = 1;

	for (int i = 1; i < vlog->shared->nprocesses; i++)
		n += vlog->shared->came[i];
	return n;
}

/* ---- another process ---- */

/* the rebuild, if this process helps with one */
static NvmVlog *me = NULL;

/*
 * See vlog_impl.h.
 */
bool
nvm_vlog_is_stopped(void)
{
	return me != NULL && ((volatile NvmVlogShared *) me->shared)->stop;
}

/*
 * Tell the first process of the current ERROR, which it reports.
 */
static void
tell_error(NvmVlog *vlog)
{
	NvmVlogShared *shared = vlog->shared;
	ErrorData  *error;

	MemoryContextSwitchTo(vlog->context);
	error = CopyErrorData();
	FlushErrorState();
	SpinLockAcquire(&shared->mutex);
	if (!shared->failed)
	{
		shared->failed = true;
		shared->sqlerrcode = vlog->allocating ? ERRCODE_OUT_OF_MEMORY : error->sqlerrcode;
		strlcpy(shared->message, error->message != NULL ? error->message : "unknown error",
				sizeof(shared->message));
		strlcpy(shared->detail, error->detail != NULL ? error->detail : "", sizeof(shared->detail));
	}
	SpinLockRelease(&shared->mutex);
	ConditionVariableBroadcast(&shared->changed);
}

static void
serve(NvmVlog *vlog)
{
	NvmVlogShared *shared = vlog->shared;
	uint64		last = 0;

	for (;;)
	{
		uint64		sequence;

		SpinLockAcquire(&shared->mutex);
		sequence = shared->sequence;
		SpinLockRelease(&shared->mutex);
		if (nvm_vlog_is_stopped())
			break;
		if (sequence != last)
		{
			last = sequence;
			look_anew(vlog);
			do_tasks(vlog, sequence);
			continue;
		}
		(void) ConditionVariableTimedSleep(&shared->changed, WATCH_MS, PG_WAIT_EXTENSION);
		nvm_vlog_pause();
	}
	ConditionVariableCancelSleep();
}

/*
 * The process ends, perhaps while it sleeps: the memory goes before PostgreSQL would look at
 * that.
 */
static void
stop_sleeping(int code, Datum arg)
{
	ConditionVariableCancelSleep();
}

/*
 * Entry point of a process that helps with a rebuild.
 */
void
nvm_vlog_worker_main(Datum main_arg)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "nvm log recovery",
												  ALLOCSET_DEFAULT_SIZES);
	Invitation	invitation;
	NvmVlog    *vlog;

	nvm_worker_start();
	before_shmem_exit(stop_sleeping, (Datum) 0);
	memcpy(&invitation, MyBgworkerEntry->bgw_extra, sizeof(invitation));
	MemoryContextSwitchTo(context);
	vlog = palloc0(sizeof(NvmVlog));
	vlog->context = context;
	vlog->uuid = NvmPool->uuid;
	vlog->process = invitation.process;
	vlog->area = dsa_attach(invitation.area);
	dsa_pin_mapping(vlog->area);
	vlog->shared = nvm_vlog_at(vlog, invitation.shared);
	vlog->output = (NvmVlogOutput *) nvm_vlog_at(vlog, vlog->shared->output) + vlog->process;
	vlog->shared->came[vlog->process] = true;
	me = vlog;
	(void) nvm_region_use_reserve(NVM_REBUILT_ROWS);
	PG_TRY();
	{
		serve(vlog);
	}
	PG_CATCH();
	{
		tell_error(vlog);
		LWLockReleaseAll();
	}
	PG_END_TRY();
	proc_exit(0);
}
