/*-------------------------------------------------------------------------
 *
 * vlog_base.c
 *	  The rows of a checkpoint are read while the server runs.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/nvm_log.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_log.h"
#include "vlog/nvm_vlog_stream.h"
#include "vlog/vlog_impl.h"

struct NvmVlogBaseFiles
{
	NvmVlog    *vlog;			/* its files are the data files */
	int			nfiles;
};

/* where rows go, and from which storage they are */
typedef struct Rows
{
	bool		(*wanted) (void *arg, uint32 dir, uint64 creation);
	void		(*row) (void *arg, uint32 dir, uint64 creation,
						const NvmLogRow *first, const NvmLogRow *row);
	void	   *arg;
} Rows;

/* ---- open and close ---- */

static void
no_snapshot(const NvmLogCheckpoint *checkpoint)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("checkpoint %llu of tables in memory has no table of access method nvm_cmdlog",
					(unsigned long long) checkpoint->number),
			 errhint("Execute SELECT nvm.checkpoint() when there is such a table.")));
}

/*
 * What the file of the checkpoint says.
 */
static NvmVlogBase *
form_base(NvmVlog *vlog, const NvmLogCheckpoint *checkpoint)
{
	NvmVlogBase *base = MemoryContextAllocZero(vlog->context, sizeof(NvmVlogBase));

	base->number = checkpoint->number;
	base->begin = checkpoint->begin;
	base->decided = checkpoint->decided;
	base->end = checkpoint->end;
	base->started = checkpoint->started;
	base->finished = checkpoint->finished;
	base->rows = checkpoint->rows;
	base->bytes = checkpoint->bytes;
	base->snapshot = memcpy(MemoryContextAlloc(vlog->context, checkpoint->snapshot),
							NVM_LOG_CHECKPOINT_SNAPSHOT(checkpoint), checkpoint->snapshot);
	base->files = MemoryContextAllocZero(vlog->context, sizeof(NvmVlogBaseFiles));
	base->files->vlog = vlog;
	return base;
}

/*
 * See nvm_vlog_stream.h.
 */
NvmVlogBase *
nvm_vlog_base_open(void)
{
	const NvmLogCheckpoint *checkpoint = nvm_vlog_my_pinned();
	NvmVlog    *vlog;
	MemoryContext caller;
	NvmVlogBase *base;

	/* there may not even be a pool */
	if (!nvm_log_has_begun())
		nvm_vlog_no_checkpoint();
	vlog = nvm_vlog_reader_begin("base");
	caller = MemoryContextSwitchTo(vlog->context);
	if (checkpoint == NULL)
		checkpoint = nvm_vlog_read_checkpoint();
	if (checkpoint == NULL)
		nvm_vlog_no_checkpoint();
	if (checkpoint->snapshot == 0)
		no_snapshot(checkpoint);
	vlog->checkpoint = checkpoint;
	base = form_base(vlog, checkpoint);
	base->files->nfiles = nvm_vlog_find_data(vlog);
	/* the pin, and what it has, may end before the base does */
	vlog->checkpoint = NULL;
	MemoryContextSwitchTo(caller);
	return base;
}

void
nvm_vlog_base_close(NvmVlogBase *base)
{
	nvm_vlog_reader_end(base->files->vlog);
}

/* ---- rows ---- */

/*
 * The rows of a section.  *first is the first piece of a row whose other pieces, and the row,
 * lie in sections behind it; or NULL.
 */
static void
give_rows(const Rows *rows, const NvmLogSection *storage, const NvmLogRow **first)
{
	NvmLogWalk	items;
	const NvmLogRow *item;

	nvm_log_walk_rows(&items, storage);
	while (nvm_log_next_item(&items, &item))
	{
		if (*first == NULL)
			*first = item;
		if (nvm_log_is_piece(item))
			continue;
		CHECK_FOR_INTERRUPTS();
		rows->row(rows->arg, storage->dir, storage->creation, *first, item);
		*first = NULL;
	}
}

static void
read_file(NvmVlog *vlog, int file, const Rows *rows)
{
	const char *base = nvm_vlog_map_side(vlog, file);
	const NvmLogRow *first = NULL;
	NvmLogSection storage;
	NvmLogWalk	storages;
	const char *problem;

	nvm_log_walk_side(&storages, base, &vlog->file[file].side);
	problem = nvm_log_storages_problem(&storages);
	if (problem != NULL)
		nvm_vlog_damaged(&vlog->file[file], problem);
	while (nvm_log_next_storage(&storages, &storage))
	{
		CHECK_FOR_INTERRUPTS();
		if (rows->wanted(rows->arg, storage.dir, storage.creation))
			give_rows(rows, &storage, &first);
	}
	nvm_vlog_unmap_one(vlog, file);
}

/*
 * See nvm_vlog_stream.h.
 */
void
nvm_vlog_base_rows(NvmVlogBase *base, bool (*wanted) (void *arg, uint32 dir, uint64 creation),
				   void (*row) (void *arg, uint32 dir, uint64 creation,
								const NvmLogRow *first, const NvmLogRow *row),
				   void *arg)
{
	const Rows	rows = {wanted, row, arg};

	for (int i = 0; i < base->files->nfiles; i++)
		read_file(base->files->vlog, i, &rows);
}
