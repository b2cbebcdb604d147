/*-------------------------------------------------------------------------
 *
 * vlog_place.c
 *	  The region is emptied, and the rows that were collected are placed.
 *
 * No session comes to a storage before it is rebuilt, but DROP may free one at any time.
 * storage_lock is held for some blocks at a time, and each time it is asked whether
 * the storage is the one that was there at the beginning.
 *
 * A small table is one task.  Of a larger one, tasks first make its blocks, some each; then
 * others place its rows, those of one partition each.  Tasks are handed out in this
 * order, so who has rows to place waits for those alone who make blocks now.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_state.h"
#include "log/nvm_log.h"
#include "media/media_block.h"
#include "nodes/bitmapset.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_rebuild.h"
#include "verify/nvm_verify.h"
#include "vlog/vlog_impl.h"
#include "wbl/nvm_wbl.h"

/* blocks that a task makes */
#define BLOCKS_PER_TASK		1024

/* a table with fewer rows is one task */
#define SMALL_TABLE			4096

/* blocks under one hold of storage_lock */
#define BLOCKS_PER_LOCK		64

/* and bytes of large values, after which no further block comes */
#define LARGE_PER_LOCK		(UINT64CONST(16) * 1024 * 1024)

/* cells of a block that rows fill, as a rule: the last ones are too few for one */
#define CELLS_FILLED		(NVM_BLOCK_CELLS - 4)

/* rows that were put off, under one hold of storage_lock */
#define LATE_PER_LOCK		4096

/* ---- emptying ---- */

/*
 * Is there something to be done for a table before it opens?  UNLOGGED tables have no
 * records: there is if a clean stop may have kept their rows, or if they have a count of the
 * blocks that they had.
 */
static bool
comes_back(const NvmDirEntry *entry)
{
	return entry->kind == NVM_DIR_KIND_TABLE && (entry->flags & NVM_DIR_VOLATILE) != 0 &&
		((entry->flags & NVM_DIR_LOGGED) != 0 || NVM_DIR_COUNT(entry->counted) > 0 ||
		 ((entry->flags & NVM_DIR_UNLOGGED) != 0 && nvm_vlog_has_kept()));
}

/*
 * For nvm_dir_walk.  The walk holds no lock: look again under one that keeps the
 * entry.
 */
static void
empty_storage(uint32 id, NvmDirEntry *entry, void *arg)
{
	bool		opening = nvm_log_is_opening();

	if ((entry->flags & NVM_DIR_VOLATILE) == 0)
		return;
	LWLockAcquire(NvmWbl->storage_lock, LW_EXCLUSIVE);
	if (nvm_relstates[id].dir == id && entry->begin != NVM_STAMP_NONE &&
		(entry->flags & NVM_DIR_VOLATILE) != 0 &&
		(!opening || nvm_log_is_closed(id, entry->creation_id)))
	{
		if (!opening && comes_back(entry))
			nvm_log_close(id, entry->creation_id);
		if (entry->kind == NVM_DIR_KIND_INDEX)
			nvm_index_lost_with_region(&nvm_relstates[id]);
		nvm_dir_empty(id);
		entry->all_visible = 0;
	}
	LWLockRelease(NvmWbl->storage_lock);
}

/*
 * See vlog_impl.h.  An attempt before this one may have left rows.  Before opening has begun,
 * nobody else makes a storage: empty all, and close those whose rows the log has, or whose
 * blocks are made again.  UNLOGGED tables have rows then if a clean stop has kept them.
 * Indexes are rebuilt from their tables.
 *
 * Afterwards, empty those that are closed.
 */
void
nvm_vlog_empty(void)
{
	nvm_vlog_open_played();
	nvm_dir_walk(empty_storage, NULL);
}

/* ---- placing ---- */

/*
 * Keep storage `dir` as it is.  False, and nothing locked, if it is not the one that
 * the rows are of.
 */
static bool
hold_table(const NvmVlog *vlog, uint32 dir)
{
	NvmDirEntry *entry = nvm_dir_entry(dir);

	LWLockAcquire(NvmWbl->storage_lock, LW_SHARED);
	if (nvm_relstates[dir].dir == dir && entry->begin != NVM_STAMP_NONE &&
		entry->creation_id == vlog->creation[dir])
		return true;
	LWLockRelease(NvmWbl->storage_lock);
	return false;
}

/* what is to be done for a table */
typedef struct PlaceTask
{
	uint32		table;
	uint32		first;			/* blocks to be made, from here on: */
	uint32		end;
	uint32		run;			/* runs to be placed, and how many */
	uint32		nruns;
} PlaceTask;

/* a run, and in which partition it is */
typedef struct TableRun
{
	uint32		partition;
	NvmVlogRun	run;
} TableRun;

/*
 * So many units of those that the table has a claim to are taken.
 */
static void
claim_less(NvmVlogTable *table, uint64 nunits)
{
	uint64		claim = pg_atomic_read_u64(&table->claim);

	while (!pg_atomic_compare_exchange_u64(&table->claim, &claim, claim - Min(claim, nunits)))
		;
	nvm_region_claim_less(NVM_REBUILT_ROWS, Min(claim, nunits));
}

/*
 * Make blocks of a table.  False if it has gone.
 */
static bool
make_blocks(const NvmVlog *vlog, NvmVlogTable *table, uint32 first, uint32 end)
{
	uint32		dir = table->dir;

	while (first < end)
	{
		uint32		n = Min(end - first, BLOCKS_PER_LOCK);

		if (!hold_table(vlog, dir))
			return false;
		nvm_rebuild_extend(&nvm_relstates[dir], first, first + n);
		LWLockRelease(NvmWbl->storage_lock);
		claim_less(table, n);
		first += n;
		nvm_vlog_pause();
	}
	return true;
}

/*
 * Rows that are yet to be placed, by place.
 */
typedef struct Rows
{
	NvmVlog    *vlog;
	const NvmVlogRoot *root;
	uint64		nroots;
	const NvmVlogPending *pending;
	uint64		npending;
} Rows;

/* the place of the first row; there is one */
static uint64
first_place(const Rows *rows)
{
	uint64		place = rows->nroots > 0 ? rows->root->place : PG_UINT64_MAX;

	return rows->npending > 0 ? Min(place, rows->pending->place) : place;
}

static bool
is_empty(const Rows *rows)
{
	return rows->nroots == 0 && rows->npending == 0;
}

/*
 * Take the first row off.
 */
static void
take_row(Rows *rows, NvmRebuildRow *row, uint64 *item)
{
	uint64		place = first_place(rows);

	memset(row, 0, sizeof(*row));
	*item = rows->nroots > 0 ? rows->root->item : 0;
	if (rows->nroots > 0 && rows->root->place == place)
	{
		row->row = nvm_vlog_item(rows->vlog, rows->root->item);
		rows->root++;
		rows->nroots--;
	}
	if (rows->npending > 0 && rows->pending->place == place)
	{
		NvmVlogAsk *ask = nvm_vlog_at(rows->vlog, rows->vlog->shared->ask);

		row->pending = nvm_vlog_item(rows->vlog, rows->pending->item);
		row->by = &ask[rows->pending->ask - 1].by;
		rows->pending++;
		rows->npending--;
	}
}

/*
 * Rows of a block lie anywhere in the log: have the next ones' memory on its way.
 */
static void
foresee(const Rows *rows)
{
#define AHEAD	12
	if (rows->nroots > AHEAD)
	{
		uint64		item = rows->root[AHEAD].item;
		const char *base = rows->vlog->base[NVM_VLOG_ITEM_FILE(item)];

		if (base != NULL)
			__builtin_prefetch(base + NVM_VLOG_ITEM_BYTE(item));
	}
}

/*
 * Remember the rows of a block that were put off.
 */
static void
note_late(NvmVlog *vlog, NvmVlogTable *table, const NvmRebuild *rebuild, const uint64 *item)
{
	NvmVlogMemory memory = nvm_vlog_alloc(vlog, offsetof(NvmVlogLate, item) +
										  rebuild->nput_off * sizeof(uint64));
	NvmVlogLate *late = nvm_vlog_at(vlog, memory);

	late->n = (uint32) rebuild->nput_off;
	for (int i = 0; i < rebuild->nput_off; i++)
		late->item[i] = item[rebuild->put_off[i]];
	SpinLockAcquire(&vlog->shared->mutex);
	late->next = table->late;
	table->late = memory;
	SpinLockRelease(&vlog->shared->mutex);
}

/*
 * Place the rows of the first block.
 */
static void
place_block(NvmVlogTable *table, NvmRebuild *rebuild, Rows *rows)
{
	NvmRebuildRow row[NVM_CELLS];
	uint64		item[NVM_CELLS];
	uint64		place = first_place(rows);
	int			nrows = 0;

	while (!is_empty(rows) && first_place(rows) >> 8 == place >> 8)
	{
		foresee(rows);
		take_row(rows, &row[nrows], &item[nrows]);
		nrows++;
	}
	nvm_rebuild_place(rebuild, row, nrows);
	if (rebuild->nput_off > 0)
		note_late(rows->vlog, table, rebuild, item);
}

/*
 * Place the rows of a run.  False if the table has gone.
 */
static bool
place_run(NvmVlog *vlog, NvmVlogTable *table, const TableRun *from, NvmRebuild *rebuild)
{
	const NvmVlogPartition *partition = &vlog->shared->partition[from->partition];
	Rows		rows = {
		.vlog = vlog,
		.root = (NvmVlogRoot *) nvm_vlog_at(vlog, partition->root) + from->run.root,
		.nroots = from->run.nroots,
		.pending = (NvmVlogPending *) nvm_vlog_at(vlog, partition->pending) + from->run.pending,
		.npending = from->run.npending
	};

	while (!is_empty(&rows))
	{
		uint64		enough = rebuild->large_bytes + LARGE_PER_LOCK;
		uint64		before = rebuild->nrows;
		uint64		large_before = rebuild->large_bytes;

		if (!hold_table(vlog, from->run.dir))
			return false;
		rebuild->is_short = nvm_region_is_short(nvm_rel_region(rebuild->state));
		for (int i = 0; i < BLOCKS_PER_LOCK && !is_empty(&rows) && rebuild->large_bytes < enough; i++)
			place_block(table, rebuild, &rows);
		LWLockRelease(NvmWbl->storage_lock);
		if (rebuild->large_bytes > large_before)
			claim_less(table, (rebuild->large_bytes - large_before) / NVM_UNIT_SIZE);
		pg_atomic_fetch_add_u64(&nvm_log_progress()->rows, rebuild->nrows - before);
		nvm_vlog_pause();
	}
	return true;
}

/*
 * Place rows of a table.  The block that this process has taken for versions that lie
 * apart is used again for the next rows of the same table.
 */
static void
place_runs(NvmVlog *vlog, NvmVlogTable *table, const TableRun *run, uint32 nruns)
{
	static uint64 last_creation = 0;
	static uint32 last_overflow = InvalidBlockNumber;
	uint64		creation = vlog->creation[table->dir];
	NvmRebuild	rebuild = {
		.state = &nvm_relstates[table->dir],
		.begin = vlog->shared->stamp,
		.next_overflow = &table->overflow,
		.overflow = last_creation == creation && !vlog->fresh ? last_overflow : InvalidBlockNumber
	};

	for (uint32 i = 0; i < nruns && !table->gone; i++)
	{
		if (!place_run(vlog, table, &run[i], &rebuild))
			table->gone = true;
	}
	vlog->fresh = false;
	last_creation = creation;
	last_overflow = rebuild.overflow;
	pg_atomic_fetch_add_u64(&vlog->shared->nrows, rebuild.nrows);
	pg_atomic_fetch_add_u64(&vlog->shared->nmoved, rebuild.nmoved);
}

/*
 * Place the rows of a table that were put off, where the others have left room.  Nobody
 * else is at it.
 */
static void
place_late(NvmVlog *vlog, NvmVlogTable *table)
{
	NvmRebuildRoom *room = palloc0(sizeof(NvmRebuildRoom));
	NvmRebuild	rebuild = {
		.state = &nvm_relstates[table->dir],
		.begin = vlog->shared->stamp
	};
	uint32		n = 0;

	NVM_FAILPOINT("rebuild-late");
	for (NvmVlogMemory next = table->late; next != 0 && !table->gone;)
	{
		const NvmVlogLate *late = nvm_vlog_at(vlog, next);

		if (n == 0 && !hold_table(vlog, table->dir))
		{
			table->gone = true;
			break;
		}
		for (uint32 i = 0; i < late->n; i++)
			nvm_rebuild_place_late(&rebuild, room, nvm_vlog_item(vlog, late->item[i]));
		n += late->n;
		next = late->next;
		if (n < LATE_PER_LOCK && next != 0)
			continue;
		LWLockRelease(NvmWbl->storage_lock);
		nvm_vlog_pause();
		n = 0;
	}
	pfree(room);
	pg_atomic_fetch_add_u64(&vlog->shared->nmoved, rebuild.nmoved);
}

/*
 * All rows of a table are placed: it opens, unless a prepared transaction has something to
 * do with it.
 */
static void
end_table(NvmVlog *vlog, NvmVlogTable *table)
{
	if (table->gone || !hold_table(vlog, table->dir))
	{
		table->gone = true;
		claim_less(table, PG_UINT64_MAX);
		return;
	}
	claim_less(table, PG_UINT64_MAX);
	nvm_rebuild_end(&nvm_relstates[table->dir]);
	if (table->held || table->is_played)
	{
		LWLockRelease(NvmWbl->storage_lock);
		return;
	}
	NVM_FAILPOINT("rebuild-open");
	nvm_log_open(table->dir, vlog->creation[table->dir]);
	LWLockRelease(NvmWbl->storage_lock);
	NVM_FAILPOINT("rebuild-opened");
	pg_atomic_fetch_add_u64(&nvm_log_progress()->tables, 1);
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_open_held(NvmVlog *vlog)
{
	NvmVlogTable *table = nvm_vlog_at(vlog, vlog->shared->table);

	for (uint32 i = 0; i < vlog->shared->ntables; i++)
	{
		if (!table[i].held || table[i].is_played || !hold_table(vlog, table[i].dir))
			continue;
		nvm_log_open(table[i].dir, vlog->creation[table[i].dir]);
		LWLockRelease(NvmWbl->storage_lock);
		pg_atomic_fetch_add_u64(&nvm_log_progress()->tables, 1);
	}
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_place(NvmVlog *vlog, uint64 number)
{
	const PlaceTask *task = (PlaceTask *) nvm_vlog_at(vlog, vlog->shared->task) + number;
	NvmVlogTable *table = (NvmVlogTable *) nvm_vlog_at(vlog, vlog->shared->table) + task->table;

	if (task->first < task->end || task->nruns == 0)
	{
		if (task->nruns == 0 && table->nroots > 0)
			NVM_FAILPOINT("rebuild-blocks");
		if (!table->gone && !make_blocks(vlog, table, task->first, task->end))
			table->gone = true;
		if (pg_atomic_add_fetch_u32(&table->made, 1) == table->nmake)
			ConditionVariableBroadcast(&vlog->shared->changed);
	}
	if (task->nruns > 0)
	{
		while (pg_atomic_read_u32(&table->made) < table->nmake)
			nvm_vlog_wait(vlog);
		ConditionVariableCancelSleep();
		place_runs(vlog, table, (TableRun *) nvm_vlog_at(vlog, vlog->shared->run) + task->run,
				   task->nruns);
	}
	if (pg_atomic_sub_fetch_u32(&table->left, 1) > 0)
		return;
	if (table->late != 0 && !table->gone)
		place_late(vlog, table);
	end_table(vlog, table);
}

/* ---- what is to be placed ---- */

static int
compare_runs(const void *a, const void *b)
{
	const TableRun *x = a;
	const TableRun *y = b;

	if (x->run.dir != y->run.dir)
		return x->run.dir < y->run.dir ? -1 : 1;
	return x->partition < y->partition ? -1 : x->partition > y->partition;
}

/*
 * The runs of all partitions, by table.
 */
static TableRun *
list_runs(NvmVlog *vlog, uint64 *n)
{
	TableRun   *run;

	*n = 0;
	for (int i = 0; i < NVM_VLOG_PARTITIONS; i++)
		*n += vlog->shared->partition[i].nruns;
	vlog->shared->run = nvm_vlog_alloc(vlog, *n * sizeof(TableRun));
	run = nvm_vlog_at(vlog, vlog->shared->run);
	*n = 0;
	for (int i = 0; i < NVM_VLOG_PARTITIONS; i++)
	{
		const NvmVlogRun *from = nvm_vlog_at(vlog, vlog->shared->partition[i].run);

		for (uint64 j = 0; j < vlog->shared->partition[i].nruns; j++)
		{
			run[*n].partition = (uint32) i;
			run[(*n)++].run = from[j];
		}
	}
	qsort(run, *n, sizeof(TableRun), compare_runs);
	return run;
}

/* a table, and where its runs are */
typedef struct TableRuns
{
	uint32		dir;
	uint32		first;
	uint32		n;
	uint32		nroots_blocks;	/* blocks up to the last root */
	uint64		nroots;
	uint64		ncells;
	uint64		large_units;
	bool		held;			/* of a prepared transaction */
} TableRuns;

static int
compare_tables(const void *a, const void *b)
{
	const TableRuns *x = a;
	const TableRuns *y = b;

	if (x->nroots != y->nroots)
		return x->nroots < y->nroots ? -1 : 1;
	return x->dir < y->dir ? -1 : x->dir > y->dir;
}

/*
 * The tables that are to be rebuilt, with rows or without, small ones first.
 */
static TableRuns *
list_tables(NvmVlog *vlog, uint32 *ntables)
{
	TableRuns  *table = MemoryContextAllocHuge(vlog->context,
											   (vlog->shared->ndirs + 1) * sizeof(TableRuns));
	uint64		nruns;
	TableRun   *run = list_runs(vlog, &nruns);
	uint64		next = 0;

	*ntables = 0;
	for (uint32 dir = 1; dir <= vlog->shared->ndirs; dir++)
	{
		TableRuns  *t = &table[*ntables];

		if (vlog->creation[dir] == 0)
			continue;
		memset(t, 0, sizeof(*t));
		t->dir = dir;
		t->first = (uint32) next;
		for (; next < nruns && run[next].run.dir == dir; next++)
		{
			t->n++;
			t->nroots += run[next].run.nroots + run[next].run.npending;
			t->ncells += run[next].run.ncells;
			t->large_units += run[next].run.large_units;
			t->held |= run[next].run.npending > 0;
			t->nroots_blocks = Max(t->nroots_blocks, run[next].run.nblocks);
		}
		(*ntables)++;
	}
	qsort(table, *ntables, sizeof(TableRuns), compare_tables);
	return table;
}

/*
 * Tasks of one table.
 */
static void
add_tasks(NvmVlog *vlog, NvmVlogList *tasks, uint32 number, NvmVlogTable *table,
		  const TableRuns *runs)
{
	PlaceTask  *task;

	if (table->nroots < SMALL_TABLE && table->nblocks <= BLOCKS_PER_TASK)
	{
		task = nvm_vlog_list_add(vlog, tasks, sizeof(PlaceTask));
		*task = (PlaceTask)
		{
			number, 0, table->nblocks, runs->first, runs->n
		};
		table->nmake = table->nblocks > 0 || runs->n == 0;
		pg_atomic_init_u32(&table->left, 1);
		return;
	}
	for (uint32 first = 0; first < table->nblocks; first += BLOCKS_PER_TASK)
	{
		task = nvm_vlog_list_add(vlog, tasks, sizeof(PlaceTask));
		*task = (PlaceTask)
		{
			number, first, Min(first + BLOCKS_PER_TASK, table->nblocks), 0, 0
		};
		table->nmake++;
	}
	for (uint32 i = 0; i < runs->n; i++)
	{
		task = nvm_vlog_list_add(vlog, tasks, sizeof(PlaceTask));
		*task = (PlaceTask)
		{
			number, 0, 0, runs->first + i, 1
		};
	}
	pg_atomic_init_u32(&table->left, table->nmake + runs->n);
}

static void
note_locked(uint32 dir, void *arg)
{
	Bitmapset **locked = arg;

	*locked = bms_add_member(*locked, (int) dir);
}

/*
 * See vlog_impl.h.
 */
uint64
nvm_vlog_closed_units(NvmVlog *vlog)
{
	NvmVlogTable *table = nvm_vlog_at(vlog, vlog->shared->table);
	uint64		units = 0;

	for (uint32 i = 0; i < vlog->shared->ntables; i++)
	{
		if (nvm_log_is_closed(table[i].dir, vlog->creation[table[i].dir]))
			units += table[i].nunits;
	}
	return units;
}

/*
 * See vlog_impl.h.  Blocks up to that of the last root come back.  Those that there were
 * behind it are made when somebody wants them, and are SUSPECT then (NvmRelState.had).  Returns the
 * number of tasks.
 */
uint64
nvm_vlog_list_tables(NvmVlog *vlog)
{
	NvmVlogShared *shared = vlog->shared;
	NvmVlogList tasks = {0};
	uint32		ntables;
	TableRuns  *runs = list_tables(vlog, &ntables);
	Bitmapset  *locked = NULL;
	NvmVlogTable *table;

	nvm_rebuild_locked_storages(note_locked, &locked);
	shared->table = nvm_vlog_alloc(vlog, ntables * sizeof(NvmVlogTable));
	table = nvm_vlog_at(vlog, shared->table);
	for (uint32 i = 0; i < ntables; i++)
	{
		table[i].dir = runs[i].dir;
		if (hold_table(vlog, table[i].dir))
		{
			nvm_rebuild_begin(&nvm_relstates[table[i].dir]);
			LWLockRelease(NvmWbl->storage_lock);
		}
		table[i].nroots = runs[i].nroots;
		table[i].nblocks = runs[i].nroots_blocks;
		table[i].nunits = nvm_extents_units_of_blocks(Max(table[i].nblocks, runs[i].ncells / CELLS_FILLED)) +
			runs[i].large_units;
		pg_atomic_init_u64(&table[i].claim, table[i].nunits);
		table[i].held = runs[i].held || bms_is_member((int) runs[i].dir, locked);
		table[i].is_played = vlog->played != NULL && vlog->played[runs[i].dir];
		pg_atomic_init_u32(&table[i].made, 0);
		pg_atomic_init_u32(&table[i].overflow, runs[i].nroots_blocks);
		add_tasks(vlog, &tasks, i, &table[i], &runs[i]);
	}
	shared->ntables = ntables;
	shared->task = nvm_vlog_alloc(vlog, tasks.n * sizeof(PlaceTask));
	nvm_vlog_list_copy(vlog, &tasks, sizeof(PlaceTask), nvm_vlog_at(vlog, shared->task));
	shared->nplace = tasks.n;
	nvm_vlog_list_free(vlog, &tasks);
	pfree(runs);
	pg_atomic_write_u64(&nvm_log_progress()->tables_total, ntables);
	return shared->nplace;
}
