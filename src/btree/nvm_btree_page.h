/*-------------------------------------------------------------------------
 *
 * nvm_btree_page.h
 *	  Reading an index page where it lies.
 *
 * For btree_page.c and btree_search.c.  Everything here may meet a page that
 * is being changed.  So each field is loaded once, and checked before it is
 * used.  Nothing that was found counts before nvm_index_validate() says so.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_BTREE_PAGE_H
#define NVM_BTREE_PAGE_H

#include "btree/nvm_btree.h"
#include "pool/nvm_pool.h"

#define nvm_index_load16(p)		(*(const volatile uint16 *) (p))
#define nvm_index_load32(p)		(*(const volatile uint32 *) (p))
#define nvm_index_load64(p)		(*(const volatile uint64 *) (p))

/* the low bits of the incarnation, as in order_inc */
#define NvmIndexOrderInc()		((uint16) NvmPool->incarnation)

/* the largest offset at which an entry may begin: it has a header */
#define NVM_INDEX_LAST_OFFSET	(NVM_INDEX_PAGE_SIZE - sizeof(IndexTupleData))

/*
 * The tail of a page, of which a version is current, or that is locked, or a
 * copy.  Without a running tail no entry was appended in this incarnation.
 */
static inline uint32
nvm_index_tail(const NvmIndexPage *page)
{
	uint64		commit = nvm_index_load64(&page->commit);

	if (NVM_INDEX_RUNNING(commit) != 0 &&
		nvm_index_load16(&page->order_inc) == NvmIndexOrderInc())
		return NVM_INDEX_RUNNING(commit);
	return NVM_INDEX_SETTLED(commit);
}

typedef enum NvmIndexViewState
{
	NVM_VIEW_OK,
	NVM_VIEW_STALE,				/* order[] is of another incarnation */
	NVM_VIEW_BAD				/* makes no sense: changing, or damaged */
} NvmIndexViewState;

typedef struct NvmIndexView
{
	const char *page;
	const uint16 *word;			/* offsets in key order */
	int			n;				/* of these */
	int			first;			/* the first data entry: 1 with a high key */
	uint32		right;
} NvmIndexView;

static inline NvmIndexViewState
nvm_index_view(const NvmIndexPage *page, NvmIndexView *view)
{
	uint32		nbase = nvm_index_load16(&page->nbase);
	uint32		words = nbase;

	view->page = (const char *) page;
	view->word = (const uint16 *) ((const char *) page + NVM_INDEX_HEADER_SIZE);
	view->right = nvm_index_load32(&page->right);
	view->first = view->right != NVM_INDEX_NONE;
	view->n = nbase;
	if (NVM_INDEX_NTAIL(nvm_index_tail(page)) > 0)
	{
		if (nvm_index_load16(&page->order_inc) != NvmIndexOrderInc())
			return NVM_VIEW_STALE;
		view->word += nbase;
		view->n = nvm_index_load16(&page->norder);
		words += view->n;
	}
	if (words > NVM_INDEX_ROOM / sizeof(uint16) || view->n < view->first)
		return NVM_VIEW_BAD;
	return NVM_VIEW_OK;
}

/* are the TIDs of a posting list within its size? */
static inline bool
nvm_index_posting_fits(IndexTuple itup)
{
	return BTreeTupleGetNPosting(itup) >= 2 &&
		BTreeTupleGetPostingOffset(itup) >= sizeof(IndexTupleData) &&
		BTreeTupleGetPostingOffset(itup) +
		BTreeTupleGetNPosting(itup) * sizeof(ItemPointerData) <= IndexTupleSize(itup);
}

/*
 * Copy the entry of an order word to private memory of NVM_INDEX_PAGE_SIZE
 * bytes.  False if it cannot be one.
 */
static inline bool
nvm_index_take(const char *page, uint16 word, char *buf)
{
	uint32		off = NVM_INDEX_OFFSET(word);
	uint32		size;

	if (off < NVM_INDEX_HEADER_SIZE || off > NVM_INDEX_LAST_OFFSET)
		return false;
	size = nvm_index_load16(page + off + offsetof(IndexTupleData, t_info)) & INDEX_SIZE_MASK;
	if (size < sizeof(IndexTupleData) || off + size > NVM_INDEX_PAGE_SIZE)
		return false;
	memcpy(buf, page + off, size);

	/* its size is what was checked, whatever was copied */
	((IndexTuple) buf)->t_info = (((IndexTuple) buf)->t_info & ~INDEX_SIZE_MASK) | size;
	return !BTreeTupleIsPosting((IndexTuple) buf) ||
		nvm_index_posting_fits((IndexTuple) buf);
}

/* is the page what it should be: the block of this index that was meant? */
static inline bool
nvm_index_is_page(const NvmIndexCache *cache, const NvmIndexPage *page, uint32 blkno)
{
	return page->magic == NVM_INDEX_MAGIC && page->dir == cache->dir &&
		page->blkno == blkno;
}

/*
 * The first look at a page in this run of the server (btree_prove.c): ERROR if
 * it is damaged.  `bytes` comes before anything of the page is used, `entries`
 * when order[] is up to date.  After that the page counts as verified.
 */
extern void nvm_index_prove_bytes(Relation index, NvmIndexCache *cache, uint32 blkno);
extern void nvm_index_prove_entries(Relation index, NvmIndexCache *cache, uint32 blkno);

/* NvmIndexPage.check of the page at `place` */
extern uint32 nvm_index_check_word(uint32 dir, uint32 blkno, const NvmIndexPage *place);

static inline bool
nvm_index_has_block(const NvmIndexCache *cache, uint32 blkno)
{
	return blkno != NVM_INDEX_NONE &&
		blkno < pg_atomic_read_u32(&cache->state->nblocks);
}

#endif							/* NVM_BTREE_PAGE_H */
