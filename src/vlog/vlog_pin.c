/*-------------------------------------------------------------------------
 *
 * vlog_pin.c
 *	  A checkpoint that a process reads stays, with the log behind it.
 *
 * Pins are shared memory, one for each process that has one, so they go with a death.
 * Nothing on disk knows of them: vlog_retire.c asks before it removes something.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/nvm_log.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_log.h"
#include "vlog/nvm_vlog.h"
#include "vlog/nvm_vlog_stream.h"
#include "vlog/vlog_impl.h"

typedef struct NvmVlogPins
{
	slock_t		mutex;			/* for what follows */
	NvmVlogNeeded pin[NVM_VLOG_PINS];	/* number 0: free */
} NvmVlogPins;

static NvmVlogPins *pins = NULL;

/* of this process: which one, and what the file of its checkpoint says */
static int	my_pin = -1;
static NvmLogCheckpoint *my_checkpoint = NULL;

/*
 * See vlog_impl.h.
 */
Size
nvm_vlog_pin_shmem_size(void)
{
	return MAXALIGN(sizeof(NvmVlogPins));
}

void
nvm_vlog_pin_shmem_startup(void)
{
	bool		found;

	pins = ShmemInitStruct("pg_nvm pins", nvm_vlog_pin_shmem_size(), &found);
	if (found)
		return;
	memset(pins, 0, sizeof(*pins));
	SpinLockInit(&pins->mutex);
}

/* ---- for who removes files ---- */

/*
 * See vlog_impl.h.
 */
int
nvm_vlog_pinned(NvmVlogNeeded *pinned)
{
	int			n = 0;

	SpinLockAcquire(&pins->mutex);
	for (int i = 0; i < NVM_VLOG_PINS; i++)
	{
		if (pins->pin[i].number != 0)
			pinned[n++] = pins->pin[i];
	}
	SpinLockRelease(&pins->mutex);
	return n;
}

void
nvm_vlog_needed(const NvmLogCheckpoint *checkpoint, NvmVlogNeeded *needed)
{
	NvmVlogNeeded pinned[NVM_VLOG_PINS];
	int			n = nvm_vlog_pinned(pinned);

	needed->number = checkpoint->number;
	needed->begin = checkpoint->begin;
	needed->generation = checkpoint->generation;
	needed->file = checkpoint->file;
	for (int i = 0; i < n; i++)
	{
		if (pinned[i].number < needed->number)
			*needed = pinned[i];
	}
}

/* ---- for who reads them ---- */

/*
 * See vlog_impl.h.
 */
const NvmLogCheckpoint *
nvm_vlog_my_pinned(void)
{
	return my_checkpoint;
}

static void
take_pin(void)
{
	my_pin = -1;
	SpinLockAcquire(&pins->mutex);
	for (int i = 0; i < NVM_VLOG_PINS && my_pin < 0; i++)
	{
		if (pins->pin[i].number == 0)
			my_pin = i;
	}
	if (my_pin >= 0)
	{
		pins->pin[my_pin].number = my_checkpoint->number;
		pins->pin[my_pin].begin = my_checkpoint->begin;
		pins->pin[my_pin].generation = my_checkpoint->generation;
		pins->pin[my_pin].file = my_checkpoint->file;
	}
	SpinLockRelease(&pins->mutex);
	if (my_pin < 0)
	{
		nvm_vlog_unpin();
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("%d processes read checkpoints of tables in memory already",
						NVM_VLOG_PINS)));
	}
}

static void
unpin_at_exit(int code, Datum arg)
{
	nvm_vlog_unpin();
}

/*
 * Read the file of the checkpoint, to be kept as long as the pin.  Of several directories a
 * look at one after the other may miss one that moves from one to another meanwhile.
 */
static void
read_checkpoint(void)
{
	const NvmLogCheckpoint *checkpoint = nvm_vlog_read_checkpoint();
	Size		size;

	if (checkpoint == NULL)
		checkpoint = nvm_vlog_read_checkpoint();
	if (checkpoint == NULL)
		nvm_vlog_no_checkpoint();
	size = NVM_LOG_CHECKPOINT_LENGTH(checkpoint->nfiles, checkpoint->snapshot);
	my_checkpoint = MemoryContextAllocHuge(TopMemoryContext, size);
	memcpy(my_checkpoint, checkpoint, size);
	pfree(unconstify(NvmLogCheckpoint *, checkpoint));
}

/*
 * See nvm_vlog_stream.h.
 *
 * What the file says may have been replaced before we have the pin.  The checkpointer says
 * that a checkpoint is usable before it looks at pins and removes what it replaces.  So if
 * no newer one is usable once we have the pin, whoever removes something sees it.
 */
void
nvm_vlog_pin(void)
{
	static bool at_exit = false;
	NvmCheckpointInfo usable;
	NvmCheckpointInfo last;

	if (my_checkpoint != NULL)
		elog(ERROR, "this process has pinned a checkpoint already");
	if (!nvm_log_has_begun())
		nvm_vlog_no_checkpoint();
	nvm_log_require_whole();
	if (!at_exit)
		before_shmem_exit(unpin_at_exit, (Datum) 0);
	at_exit = true;
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		read_checkpoint();
		take_pin();
		nvm_vlog_checkpoint_info(&usable, &last);
		if (usable.number <= my_checkpoint->number)
			return;
		nvm_vlog_unpin();
	}
}

/*
 * See nvm_vlog_stream.h.
 */
void
nvm_vlog_unpin(void)
{
	NvmLogCheckpoint *checkpoint = my_checkpoint;

	if (my_pin >= 0)
	{
		SpinLockAcquire(&pins->mutex);
		pins->pin[my_pin].number = 0;
		SpinLockRelease(&pins->mutex);
	}
	my_pin = -1;
	my_checkpoint = NULL;
	if (checkpoint != NULL)
		pfree(checkpoint);
}
