/*-------------------------------------------------------------------------
 *
 * wbl_walwriter.c
 *	  The keeper wakes the WAL writer in the place of each commit.
 *
 * An nvm-only commit is an asynchronous one to PostgreSQL.  Before 17, each
 * such commit wakes the WAL writer as soon as a page of WAL is full and not
 * flushed.  The WAL writer goes back to sleep without flushing the page,
 * unless wal_writer_flush_after is reached or wal_writer_delay has passed.  So
 * nearly every commit costs a system call and a switch of processes.
 *
 * So commits find a latch there that is set already.  The keeper sets the WAL
 * writer's own latch, at least once in wal_writer_delay, if there is WAL to
 * flush.  Asynchronous commits of heap tables reach the disk as soon as they
 * did before.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "compat/nvm_compat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "wbl/wbl_impl.h"

#if NVM_COMMIT_KICKS_WALWRITER

/* the WAL writer's own latch; of the keeper alone */
static Latch *walwriter_latch = NULL;

/*
 * Give the commits their latch back.
 */
static void
walwriter_restore(int code, Datum arg)
{
	if (walwriter_latch != NULL && ProcGlobal->walwriterLatch == &NvmWbl->quiet_latch)
		ProcGlobal->walwriterLatch = walwriter_latch;
}

/*
 * One round of the keeper.  The WAL writer stores its latch when it starts,
 * also when it starts again.
 */
void
nvm_walwriter_round(void)
{
	Latch	   *latch = ProcGlobal->walwriterLatch;

	if (latch != NULL && latch != &NvmWbl->quiet_latch)
	{
		if (walwriter_latch == NULL)
			before_shmem_exit(walwriter_restore, (Datum) 0);
		walwriter_latch = latch;
		ProcGlobal->walwriterLatch = &NvmWbl->quiet_latch;
	}
	if (walwriter_latch != NULL && GetXLogInsertRecPtr() > GetFlushRecPtr(NULL))
		SetLatch(walwriter_latch);
}

#else

void
nvm_walwriter_round(void)
{
}

#endif

/*
 * The latch that commits find: set, so that setting it is nothing.
 */
void
nvm_walwriter_init(void)
{
	InitSharedLatch(&NvmWbl->quiet_latch);
	NvmWbl->quiet_latch.is_set = true;
}
