/*-------------------------------------------------------------------------
 *
 * btree_load.c
 *	  Bulk load: the pages of a tree from entries that come in order.
 *
 * Pages of all levels grow at the right end only.  The entries of a page are
 * collected in private memory.  Once the page is full, the block of its right
 * sibling is known, and the page is formed and written as a whole.  Nobody can
 * reach any of it before the meta page names a root, which comes last.  The
 * storage is one that the current transaction has made, so a crash or an error
 * leaves nothing that anybody would have to repair.  Hence one fence is
 * enough.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"

/* the smallest entry is one without a key */
#define LOAD_MAX_ITEMS \
	(NVM_INDEX_ROOM / (MAXALIGN(sizeof(IndexTupleData)) + sizeof(uint16)))

/* a posting list of this size leaves pages as full as fillfactor wants them */
#define LOAD_MAX_POSTING	MAXALIGN_DOWN(NVM_INDEX_PAGE_SIZE / 10)

/* a page that is being filled, one for each level */
typedef struct LoadPage
{
	uint32		level;
	uint32		blkno;
	uint32		left;
	IndexTuple	downlink;		/* leads to it, with its low key */
	Size		full;			/* when its entries take as much it gets no
								 * more */
	Size		used;			/* what they do */
	int			nitems;
	IndexTuple	item[LOAD_MAX_ITEMS];
	int			which;			/* the buffer in which they lie */
	Size		fill;			/* bytes of it that are used */
	char	   *buffer[2];
	struct LoadPage *parent;
} LoadPage;

struct NvmIndexLoad
{
	Relation	heap;
	Relation	index;
	NvmIndexCache *cache;		/* a copy: the index's may go away */
	int			nkeys;
	LoadPage   *leaf;			/* NULL: no entry came yet */
	char	   *image;			/* of the page that is being written */
	bool		inner;			/* inner levels alone, in blocks that are
								 * there */

	/* a posting list that is being collected */
	bool		deduplicate;
	IndexTuple	base;
	ItemPointer tids;
	int			ntids;
};

/*
 * ERROR, as nbtree's, if an entry is too large for a third of a page.
 */
void
nvm_index_check_size(Relation index, Relation heap, IndexTuple itup)
{
	Size		size = MAXALIGN(IndexTupleSize(itup));

	if (likely(size <= NVM_INDEX_MAX_ENTRY))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("index row size %zu exceeds btree version %u maximum %zu for index \"%s\"",
					size, BTREE_VERSION, (Size) NVM_INDEX_MAX_ENTRY,
					RelationGetRelationName(index)),
			 errdetail("Index row references tuple (%u,%u) in relation \"%s\".",
					   ItemPointerGetBlockNumber(&itup->t_tid),
					   ItemPointerGetOffsetNumber(&itup->t_tid),
					   RelationGetRelationName(heap)),
			 errhint("Values larger than 1/3 of a buffer page cannot be indexed.\n"
					 "Consider a function index of an MD5 hash of the value, "
					 "or use full text indexing."),
			 errtableconstraint(heap, RelationGetRelationName(index))));
}

NvmIndexLoad *
nvm_index_load_begin(Relation heap, Relation index, bool deduplicate)
{
	NvmIndexLoad *load = (NvmIndexLoad *) palloc0(sizeof(NvmIndexLoad));

	load->heap = heap;
	load->index = index;
	load->cache = (NvmIndexCache *) palloc(sizeof(NvmIndexCache));
	*load->cache = *nvm_index_cache(index);
	load->nkeys = IndexRelationGetNumberOfKeyAttributes(index);
	load->image = palloc(NVM_INDEX_PAGE_SIZE);
	load->deduplicate = deduplicate && load->cache->allequalimage &&
		nvm_index_deduplicates(index);
	if (load->deduplicate)
	{
		load->base = (IndexTuple) palloc(NVM_INDEX_PAGE_SIZE);
		load->tids = (ItemPointer) palloc(LOAD_MAX_POSTING);
	}
	return load;
}

/* a pivot without a key, smaller than any other */
static IndexTuple
load_minus_infinity(uint32 blkno)
{
	IndexTuple	pivot = (IndexTuple) palloc0(sizeof(IndexTupleData));

	pivot->t_info = sizeof(IndexTupleData);
	BTreeTupleSetNAtts(pivot, 0, false);
	BTreeTupleSetDownLink(pivot, blkno);
	return pivot;
}

static IndexTuple
load_downlink(IndexTuple key, uint32 blkno)
{
	IndexTuple	downlink = CopyIndexTuple(key);

	BTreeTupleSetDownLink(downlink, blkno);
	return downlink;
}

static uint32
load_block(NvmIndexLoad *load)
{
	return load->inner ? nvm_index_alloc(load->index, load->cache) :
		nvm_index_extend(load->index, load->cache);
}

/*
 * The first page of a level.
 */
static LoadPage *
load_new_level(NvmIndexLoad *load, uint32 level)
{
	LoadPage   *page = (LoadPage *) palloc0(sizeof(LoadPage));
	int			fillfactor = level == 0 ? nvm_index_fillfactor(load->index) :
	BTREE_NONLEAF_FILLFACTOR;

	page->level = level;
	page->blkno = load_block(load);
	page->left = NVM_INDEX_NONE;
	page->downlink = load_minus_infinity(page->blkno);
	page->full = NVM_INDEX_ROOM - NVM_INDEX_PAGE_SIZE * (100 - fillfactor) / 100;
	page->buffer[0] = palloc(NVM_INDEX_PAGE_SIZE);
	page->buffer[1] = palloc(NVM_INDEX_PAGE_SIZE);
	return page;
}

/*
 * Write a page with its first n entries and a high key, if there is a page to
 * its right.  No lock: nobody else reads the index before it is loaded.
 */
static void
load_write(NvmIndexLoad *load, LoadPage *page, int n, IndexTuple highkey,
		   uint32 right, uint16 flags)
{
	NvmIndexPage *place = nvm_index_page(load->cache->state, page->blkno);
	IndexTuple	items[LOAD_MAX_ITEMS + 1];
	NvmIndexForm form;
	int			nitems = 0;

	if (highkey != NULL)
		items[nitems++] = highkey;
	memcpy(&items[nitems], page->item, n * sizeof(IndexTuple));
	nitems += n;
	if (page->level == 0)
		flags |= NVM_INDEX_LEAF;

	form = (NvmIndexForm)
	{
		.blkno = page->blkno,.left = page->left,.right = right,.level = page->level,
			.flags = flags | NVM_INDEX_LIVE,.items = items,.nitems = nitems
	};
	if (!nvm_index_form(load->image, load->cache, &form))
		elog(ERROR, "entries do not fit page %u of index \"%s\"",
			 page->blkno, RelationGetRelationName(load->index));
	memcpy(place, load->image, NVM_INDEX_PAGE_SIZE);
	if (NvmIndexKeeps(load->cache, page->level))
		nvm_flush(place, NVM_INDEX_PAGE_SIZE);
	else if (load->cache->persistence == NVM_INDEX_LEAVES)
		nvm_flush(place, NVM_INDEX_HEADER_SIZE);	/* what block it is */
	NVM_FAILPOINT("btree-load-page");
}

/*
 * Put an entry at the end of a page that has room.
 */
static void
load_push(LoadPage *page, IndexTuple itup)
{
	IndexTuple	copy = (IndexTuple) (page->buffer[page->which] + page->fill);
	Size		size;

	if (page->level > 0 && page->nitems == 0)
	{
		/* what begins an inner page needs no key: the page's low key is it */
		IndexTuple	first = load_minus_infinity(BTreeTupleGetDownLink(itup));

		size = IndexTupleSize(first);
		memcpy(copy, first, size);
		pfree(first);
	}
	else
	{
		size = IndexTupleSize(itup);
		memcpy(copy, itup, size);
	}
	page->fill += MAXALIGN(size);
	page->used += NvmIndexEntrySpace(copy);
	page->item[page->nitems++] = copy;
}

static void load_add(NvmIndexLoad *load, LoadPage *page, IndexTuple itup);

static void
load_add_to_parent(NvmIndexLoad *load, LoadPage *page)
{
	if (page->parent == NULL)
		page->parent = load_new_level(load, page->level + 1);
	load_add(load, page->parent, page->downlink);
	pfree(page->downlink);
}

/*
 * The page is full: write it, and begin the one to its right, in which `next`
 * will be an entry.  If the high key does not fit, the last entries go there, too.
 */
static void
load_finish(NvmIndexLoad *load, LoadPage *page, IndexTuple next)
{
	int			n = page->nitems;
	int			nitems = page->nitems;
	Size		used = page->used;
	IndexTuple	carried[LOAD_MAX_ITEMS];
	IndexTuple	highkey;
	uint32		right;

	for (;;)
	{
		IndexTuple	firstright = n < nitems ? page->item[n] : next;

		if (page->level == 0)
			highkey = nvm_index_truncate(load->index, load->cache,
										 page->item[n - 1], firstright);
		else
			highkey = CopyIndexTuple(firstright);
		if (n == 1 || used + NvmIndexEntrySpace(highkey) <= NVM_INDEX_ROOM)
			break;
		pfree(highkey);
		n--;
		used -= NvmIndexEntrySpace(page->item[n]);
	}

	right = load_block(load);
	load_write(load, page, n, highkey, right, 0);
	load_add_to_parent(load, page);

	page->left = page->blkno;
	page->blkno = right;
	page->downlink = load_downlink(highkey, right);
	pfree(highkey);

	memcpy(carried, page->item, nitems * sizeof(IndexTuple));
	page->which = 1 - page->which;
	page->fill = 0;
	page->used = 0;
	page->nitems = 0;
	for (; n < nitems; n++)
		load_push(page, carried[n]);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Add an entry of a level.  Two are kept on a page whatever the fillfactor.
 */
static void
load_add(NvmIndexLoad *load, LoadPage *page, IndexTuple itup)
{
	/*
	 * What the fillfactor leaves is for insertions, the first of which needs
	 * a second order word for each entry.
	 */
	Size		words = page->full < NVM_INDEX_ROOM ? page->nitems * sizeof(uint16) : 0;

	if (page->nitems > 0 &&
		(page->used + NvmIndexEntrySpace(itup) > NVM_INDEX_ROOM ||
		 (page->nitems > 1 && page->used + words > page->full)))
		load_finish(load, page, itup);
	load_push(page, itup);
}

static void
load_leaf(NvmIndexLoad *load, IndexTuple itup)
{
	nvm_index_check_size(load->index, load->heap, itup);
	if (load->leaf == NULL)
		load->leaf = load_new_level(load, 0);
	load_add(load, load->leaf, itup);
}

/*
 * The posting list is complete.
 */
static void
load_flush_posting(NvmIndexLoad *load)
{
	if (load->ntids == 1)
		load_leaf(load, load->base);
	else if (load->ntids > 1)
	{
		IndexTuple	posting = _bt_form_posting(load->base, load->tids, load->ntids);

		load_leaf(load, posting);
		pfree(posting);
	}
	load->ntids = 0;
}

/*
 * Add an entry of the leaf level, not less than the one before.
 */
void
nvm_index_load_add(NvmIndexLoad *load, IndexTuple itup)
{
	if (!load->deduplicate)
	{
		load_leaf(load, itup);
		return;
	}
	if (load->ntids > 0 &&
		(MAXALIGN(IndexTupleSize(load->base) +
				  (load->ntids + 1) * sizeof(ItemPointerData)) > LOAD_MAX_POSTING ||
		 _bt_keep_natts_fast(load->index, load->base, itup) <= load->nkeys))
		load_flush_posting(load);
	if (load->ntids == 0)
	{
		nvm_index_check_size(load->index, load->heap, itup);
		memcpy(load->base, itup, IndexTupleSize(itup));
	}
	load->tids[load->ntids++] = itup->t_tid;
}

/*
 * Write what is left, and let the meta page name the root.  What has been
 * loaded is durable when this returns.
 */
void
nvm_index_load_end(NvmIndexLoad *load)
{
	NvmIndexMeta *meta = load->cache->meta;
	LoadPage   *page;

	load_flush_posting(load);
	for (page = load->leaf; page != NULL; page = page->parent)
	{
		bool		root = page->parent == NULL;

		load_write(load, page, page->nitems, NULL, NVM_INDEX_NONE,
				   root ? NVM_INDEX_ROOT : 0);
		if (!root)
			load_add_to_parent(load, page);
		else
			nvm_store(&meta->root, NVM_INDEX_ROOT_MAKE(page->blkno, page->level));
	}
	nvm_flush(&meta->root, sizeof(meta->root));
	nvm_drain("btree-load-root");
}

/* ---- inner levels alone, above leaves that are there ---- */

/*
 * See nvm_btree.h.
 */
NvmIndexLoad *
nvm_index_load_inner_begin(Relation index, NvmIndexCache *cache)
{
	NvmIndexLoad *load = (NvmIndexLoad *) palloc0(sizeof(NvmIndexLoad));

	load->index = index;
	load->cache = cache;
	load->nkeys = IndexRelationGetNumberOfKeyAttributes(index);
	load->image = palloc(NVM_INDEX_PAGE_SIZE);
	load->inner = true;
	load->leaf = (LoadPage *) palloc0(sizeof(LoadPage));
	return load;
}

void
nvm_index_load_inner_add(NvmIndexLoad *load, uint32 blkno, IndexTuple low)
{
	load->leaf->blkno = blkno;
	load->leaf->downlink = low == NULL ? load_minus_infinity(blkno) :
		load_downlink(low, blkno);
	load_add_to_parent(load, load->leaf);
}

void
nvm_index_load_inner_end(NvmIndexLoad *load)
{
	NvmIndexMeta *meta = load->cache->meta;
	LoadPage   *page;

	for (page = load->leaf->parent; page != NULL; page = page->parent)
	{
		bool		root = page->parent == NULL;

		load_write(load, page, page->nitems, NULL, NVM_INDEX_NONE,
				   root ? NVM_INDEX_ROOT : 0);
		if (!root)
			load_add_to_parent(load, page);
		else
			nvm_store(&meta->root, NVM_INDEX_ROOT_MAKE(page->blkno, page->level));
	}
}
