/*-------------------------------------------------------------------------
 *
 * vlog_choose.c
 *	  Which candidate of a row counts: the one with the highest generation and
 *	  number.
 *
 * One partition at a time.  The order in which files were read does not matter.
 *
 * Memory: 32 bytes for each candidate; then 16 bytes for each row that is there.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "row/nvm_large.h"
#include "utils/memutils.h"
#include "vlog/vlog_impl.h"

/*
 * By place; of one place the newest first.
 */
static inline int
compare_candidates(const NvmVlogCandidate *a, const NvmVlogCandidate *b)
{
	if (a->place != b->place)
		return a->place < b->place ? -1 : 1;
	if (a->generation != b->generation)
		return a->generation > b->generation ? -1 : 1;
	if (a->number != b->number)
		return a->number > b->number ? -1 : 1;
	return 0;
}

#define ST_SORT			sort_candidates
#define ST_ELEMENT_TYPE NvmVlogCandidate
#define ST_COMPARE(a, b) compare_candidates(a, b)
#define ST_CHECK_FOR_INTERRUPTS
#define ST_SCOPE		static
#define ST_DEFINE
#include "lib/sort_template.h"

/*
 * Does it not count, since its table is one that is replayed?  Rows of the checkpoint do.
 */
static inline bool
is_played(const NvmVlog *vlog, const NvmVlogCandidate *c)
{
	return vlog->played != NULL && c->generation > 0 && vlog->played[NVM_VLOG_PLACE_DIR(c->place)];
}

/* ---- in between ---- */

/*
 * See vlog_impl.h.  Of the candidates of one process for a row the newest stays, and those
 * that may not count.
 */
void
nvm_vlog_thin_out(NvmVlog *vlog, int partition)
{
	NvmVlogList *list = &vlog->output->candidate[partition];
	uint64		n = list->n;
	NvmVlogCandidate *c = MemoryContextAllocHuge(vlog->context, n * sizeof(NvmVlogCandidate));
	uint64		place = 0;		/* of the newest one that counts; no row has 0 */

	nvm_vlog_list_copy(vlog, list, sizeof(NvmVlogCandidate), c);
	nvm_vlog_list_free(vlog, list);
	sort_candidates(c, n);
	for (uint64 i = 0; i < n; i++)
	{
		if (c[i].place == place || (c[i].ask == 0 && is_played(vlog, &c[i])))
			continue;
		if (c[i].ask == 0)
			place = c[i].place;
		*(NvmVlogCandidate *) nvm_vlog_list_add(vlog, list, sizeof(NvmVlogCandidate)) = c[i];
	}
	pfree(c);
}

/* ---- a partition ---- */

typedef struct Choosing
{
	NvmVlog    *vlog;
	const NvmVlogAsk *ask;
	NvmVlogCandidate *c;
	uint64		n;
	NvmVlogRoot *root;
	uint64		nroots;
	uint8	   *cells;			/* of each root */
	NvmVlogPending *pending;
	uint64		npending;
} Choosing;

/*
 * Leave out what does not count.  A prepared transaction has no place in a replay: it is
 * refused where calls are logged alone.
 */
static void
leave_out_played(Choosing *choosing)
{
	uint64		n = 0;

	if (choosing->vlog->played == NULL)
		return;
	for (uint64 i = 0; i < choosing->n; i++)
	{
		const NvmVlogCandidate *c = &choosing->c[i];

		if (!is_played(choosing->vlog, c))
			choosing->c[n++] = *c;
		else if (c->ask != 0 && choosing->ask[c->ask - 1].verdict == NVM_VLOG_PREPARED)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("prepared transaction %llu has changed a table whose calls are to be replayed",
							(unsigned long long) choosing->ask[c->ask - 1].xid),
					 errdetail("The table is storage %u of the pool.", NVM_VLOG_PLACE_DIR(c->place))));
	}
	choosing->n = n;
}

/*
 * All processes' candidates, and no more lists.
 */
static void
take_candidates(Choosing *choosing, int partition)
{
	NvmVlog    *vlog = choosing->vlog;
	NvmVlogOutput *output = nvm_vlog_at(vlog, vlog->shared->output);
	NvmVlogCandidate *at;

	for (int i = 0; i < vlog->shared->nprocesses; i++)
		choosing->n += output[i].candidate[partition].n;
	at = choosing->c = MemoryContextAllocHuge(vlog->context,
											  (choosing->n + 1) * sizeof(NvmVlogCandidate));
	for (int i = 0; i < vlog->shared->nprocesses; i++)
	{
		NvmVlogList *list = &output[i].candidate[partition];

		nvm_vlog_list_copy(vlog, list, sizeof(NvmVlogCandidate), at);
		at += list->n;
		nvm_vlog_list_free(vlog, list);
	}
	leave_out_played(choosing);
	sort_candidates(choosing->c, choosing->n);
}

static NvmVlogVerdict
verdict_of(const Choosing *choosing, const NvmVlogCandidate *c)
{
	return c->ask == 0 ? NVM_VLOG_COMMITTED : choosing->ask[c->ask - 1].verdict;
}

/*
 * The candidates for one place.  A record may have a row twice, the same both times.  A
 * prepared transaction holds the rows that it has changed.  So no other record about
 * them is newer, and no other transaction has one that is undecided.  A row that it has
 * deleted is there.
 */
static void
choose_row(Choosing *choosing, const NvmVlogCandidate *c, uint64 n)
{
	const NvmVlogCandidate *newest = NULL;
	const NvmVlogCandidate *pending = NULL;
	bool		there;

	for (uint64 i = 0; i < n && newest == NULL; i++)
	{
		NvmVlogVerdict verdict = verdict_of(choosing, &c[i]);

		if (verdict == NVM_VLOG_COMMITTED)
			newest = &c[i];
		else if (verdict == NVM_VLOG_PREPARED && pending == NULL)
			pending = &c[i];
	}
	for (uint64 i = 0; i < n && pending == NULL && newest != NULL; i++)
	{
		if (verdict_of(choosing, &c[i]) == NVM_VLOG_PREPARED)
			pending = &c[i];
	}
	there = newest != NULL && (newest->item & NVM_VLOG_ITEM_GONE) == 0;
	if (there)
	{
		choosing->cells[choosing->nroots] = newest->cells;
		choosing->root[choosing->nroots].place = newest->place;
		choosing->root[choosing->nroots++].item = newest->item;
	}
	if (pending == NULL)
		return;
	if (!there)
	{
		if ((pending->item & NVM_VLOG_ITEM_GONE) != 0)
			return;
		unconstify(NvmVlogAsk *, &choosing->ask[pending->ask - 1])->by.makes_rows = true;
	}
	choosing->pending[choosing->npending].place = pending->place;
	choosing->pending[choosing->npending].item = pending->item;
	choosing->pending[choosing->npending++].ask = pending->ask;
}

/*
 * Units of the large values of a row.
 */
static uint64
large_units(NvmVlog *vlog, uint64 item)
{
	return (item & NVM_VLOG_ITEM_LARGE) == 0 ? 0 :
		nvm_large_pieces_units(nvm_vlog_item(vlog, item));
}

/*
 * Where the rows of each table are.
 */
static void
list_runs(Choosing *choosing, NvmVlogPartition *partition)
{
	NvmVlog    *vlog = choosing->vlog;
	NvmVlogList runs = {0};
	NvmVlogRun *run = NULL;
	uint64		root = 0;
	uint64		pending = 0;

	while (root < choosing->nroots || pending < choosing->npending)
	{
		bool		is_root = pending == choosing->npending ||
		(root < choosing->nroots && choosing->root[root].place <= choosing->pending[pending].place);
		uint64		place = is_root ? choosing->root[root].place : choosing->pending[pending].place;

		if (run == NULL || run->dir != NVM_VLOG_PLACE_DIR(place))
		{
			run = nvm_vlog_list_add(vlog, &runs, sizeof(NvmVlogRun));
			run->dir = NVM_VLOG_PLACE_DIR(place);
			run->root = root;
			run->pending = pending;
		}
		run->nblocks = NVM_VLOG_PLACE_BLOCK(place) + 1;
		if (is_root)
		{
			run->nroots++;
			run->ncells += choosing->cells[root];
			run->large_units += large_units(vlog, choosing->root[root].item);
			root++;
		}
		else
		{
			run->npending++;
			run->large_units += large_units(vlog, choosing->pending[pending].item);
			pending++;
		}
	}
	partition->nruns = runs.n;
	partition->run = nvm_vlog_alloc(vlog, runs.n * sizeof(NvmVlogRun));
	nvm_vlog_list_copy(vlog, &runs, sizeof(NvmVlogRun), nvm_vlog_at(vlog, partition->run));
	nvm_vlog_list_free(vlog, &runs);
}

/*
 * From memory of this process to that of all.
 */
static NvmVlogMemory
share(NvmVlog *vlog, const void *data, Size size)
{
	NvmVlogMemory memory = nvm_vlog_alloc(vlog, size);

	memcpy(nvm_vlog_at(vlog, memory), data, size);
	return memory;
}

/*
 * See vlog_impl.h.
 */
void
nvm_vlog_choose(NvmVlog *vlog, int number)
{
	NvmVlogPartition *partition = &vlog->shared->partition[number];
	Choosing	choosing = {
		.vlog = vlog,
		.ask = nvm_vlog_at(vlog, vlog->shared->ask)
	};
	uint64		same = 0;

	take_candidates(&choosing, number);
	choosing.root = MemoryContextAllocHuge(vlog->context, (choosing.n + 1) * sizeof(NvmVlogRoot));
	choosing.cells = MemoryContextAllocHuge(vlog->context, choosing.n + 1);
	choosing.pending = MemoryContextAllocHuge(vlog->context, (choosing.n + 1) * sizeof(NvmVlogPending));
	for (uint64 i = 0; i < choosing.n; i += same)
	{
		same = 1;
		while (i + same < choosing.n && choosing.c[i + same].place == choosing.c[i].place)
			same++;
		choose_row(&choosing, &choosing.c[i], same);
	}
	list_runs(&choosing, partition);
	partition->root = share(vlog, choosing.root, choosing.nroots * sizeof(NvmVlogRoot));
	partition->pending = share(vlog, choosing.pending, choosing.npending * sizeof(NvmVlogPending));
	pfree(choosing.c);
	pfree(choosing.root);
	pfree(choosing.cells);
	pfree(choosing.pending);
}
