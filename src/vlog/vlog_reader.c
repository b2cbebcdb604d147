/*-------------------------------------------------------------------------
 *
 * vlog_reader.c
 *	  What a process needs that reads files of the log while the server runs.
 *
 * It is an NvmVlog of one process, without a rebuild.  Its files are mapped one by one,
 * and its memory is a context's: what is mapped goes with that.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/nvm_log.h"
#include "pool/nvm_pool.h"
#include "utils/memutils.h"
#include "vlog/vlog_impl.h"

static void
unmap(void *arg)
{
	nvm_vlog_unmap((NvmVlog *) arg);
}

/*
 * See vlog_impl.h.
 */
NvmVlog *
nvm_vlog_reader_begin(const char *name)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "nvm log reader",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContextCallback *callback = MemoryContextAllocZero(context, sizeof(*callback));
	NvmVlog    *vlog = MemoryContextAllocZero(context, sizeof(NvmVlog));

	MemoryContextSetIdentifier(context, name);
	vlog->context = context;
	vlog->uuid = NvmPool->uuid;
	vlog->shared = MemoryContextAllocZero(context, sizeof(NvmVlogShared));
	vlog->shared->generation = nvm_log_generation();
	vlog->shared->end = nvm_log_persistent();
	vlog->reads_only = true;
	callback->func = unmap;
	callback->arg = vlog;
	MemoryContextRegisterResetCallback(context, callback);
	return vlog;
}

void
nvm_vlog_reader_files(NvmVlog *vlog, NvmVlogFile *file, int n)
{
	vlog->file = file;
	vlog->nbases = n;
	vlog->base = MemoryContextAllocZero(vlog->context, n * sizeof(char *));
	vlog->mapped = MemoryContextAllocZero(vlog->context, n * sizeof(uint64));
}

void
nvm_vlog_reader_end(NvmVlog *vlog)
{
	MemoryContextDelete(vlog->context);
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_no_checkpoint(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("there is no checkpoint of tables in memory"),
			 errhint("Execute SELECT nvm.checkpoint().")));
}
