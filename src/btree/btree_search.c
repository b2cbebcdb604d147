/*-------------------------------------------------------------------------
 *
 * btree_search.c
 *	  Finding a key: descent, place in a page, one entry.
 *
 * A descent stores nothing.  It reads pages where they lie, and goes on to a
 * child when the version says that what led there was not changed meanwhile.
 * Keys that are integers are compared in place.  For all others the entry is
 * copied and validated first, since a comparison function must not see bytes
 * that change.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_page.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"
#include "storage/predicate.h"

/* from the root down so often, before the tree is called damaged */
#define MAX_RESTARTS		10000

/* results of search_page and compare_at, besides places and comparisons */
#define PAGE_CHANGED		(-1000000)
#define PAGE_BAD			(-1000001)

typedef union EntryBuffer
{
	char		data[NVM_INDEX_PAGE_SIZE];
	uint64		force_align;
} EntryBuffer;

/*
 * Where the entries of a page are.  Those of a page that was written as a
 * whole lie in key order without gaps.  Their number may say that all are of
 * the least size that there is.  Then no order word needs to be read.  The
 * entry of an int has 16 bytes; only the first one of an inner page has 8,
 * since it has no key.
 */
typedef struct EntryMap
{
	const char *page;
	const uint16 *word;			/* NULL: they are computed */
	uint32		start;
	int			keyless;		/* entries behind this one lie 8 bytes lower */
} EntryMap;

#define PLAIN_ENTRY		(2 * sizeof(IndexTupleData))

static inline void
map_entries(const NvmIndexView *view, EntryMap *map)
{
	const NvmIndexPage *page = (const NvmIndexPage *) view->page;
	uint32		upper = nvm_index_load16(&page->base_upper);
	bool		inner = nvm_index_load16(&page->level) > 0;
	uint32		size = view->n * PLAIN_ENTRY - (inner ? sizeof(IndexTupleData) : 0);

	map->page = view->page;
	map->word = view->word;
	map->start = upper;
	map->keyless = inner ? view->first : view->n;
	if (NVM_INDEX_NTAIL(nvm_index_tail(page)) == 0 &&
		upper + size == NVM_INDEX_PAGE_SIZE)
		map->word = NULL;
}

static inline uint32
entry_offset(const EntryMap *map, int i)
{
	if (map->word != NULL)
		return NVM_INDEX_OFFSET(nvm_index_load16(&map->word[i]));
	return map->start + i * PLAIN_ENTRY - (i > map->keyless ? sizeof(IndexTupleData) : 0);
}

/*
 * The key against one entry, by way of a private copy.
 */
static int
compare_copied(const char *page, uint64 version, const NvmIndexKey *key, uint32 off)
{
	EntryBuffer buf;

	if (!nvm_index_take(page, NVM_INDEX_WORD(off), buf.data))
		return PAGE_BAD;
	if (!nvm_index_validate((NvmIndexPage *) page, version))
		return PAGE_CHANGED;
	return nvm_index_compare(key, (IndexTuple) buf.data);
}

/*
 * The key against one entry, whose first column is an integer `value` of the
 * key.  The result means something only if the page has not changed.
 */
static inline __attribute__((always_inline))
int
compare_at(const char *page, uint64 version, const NvmIndexKey *key,
		   NvmIndexFast fast, int64 value, uint32 off)
{
	const char *itup = page + off;
	uint16		info;
	int64		entry;

	if (fast == NVM_FAST_NOT || unlikely(off > NVM_INDEX_PAGE_SIZE - PLAIN_ENTRY))
		return compare_copied(page, version, key, off);
	info = nvm_index_load16(itup + offsetof(IndexTupleData, t_info));
	if (unlikely((info & INDEX_NULL_MASK) != 0 ||
				 (info & INDEX_SIZE_MASK) < PLAIN_ENTRY))
		return compare_copied(page, version, key, off);

	itup += sizeof(IndexTupleData);
	if (fast == NVM_FAST_INT2)
		entry = *(const volatile int16 *) itup;
	else if (fast == NVM_FAST_INT4)
		entry = *(const volatile int32 *) itup;
	else
		entry = *(const volatile int64 *) itup;

	if (value != entry)
		return (value < entry) != key->part[0].desc ? -1 : 1;
	if (key->nparts == 1 && key->scantid == NULL && (info & INDEX_ALT_TID_MASK) == 0)
		return 0;
	return compare_copied(page, version, key, off);
}

/*
 * The integer of the key's first column, for compare_at.
 */
static inline __attribute__((always_inline))
int64
integer_of(const NvmIndexKey *key, NvmIndexFast fast)
{
	Datum		value = key->part[0].value;

	switch (fast)
	{
		case NVM_FAST_INT2:
			return DatumGetInt16(value);
		case NVM_FAST_INT4:
			return DatumGetInt32(value);
		case NVM_FAST_INT8:
			return DatumGetInt64(value);
		default:
			return 0;
	}
}

/*
 * Binary search between low and high: the first place whose entry is >= key
 * (nextkey: >), or PAGE_*.  Cache misses take its time.  So it asks for both
 * entries that may come next while it compares one.  Those that are not
 * integers may well lie across two lines.
 */
static inline __attribute__((always_inline))
int
search_kind(const EntryMap *map, uint64 version, const NvmIndexKey *key,
			NvmIndexFast fast, int low, int high)
{
	int64		value = integer_of(key, fast);
	int			beyond = key->nextkey ? 0 : 1;

	while (low < high)
	{
		int			mid = (low + high) / 2;
		int			cmp;

		if (high - low > (fast != NVM_FAST_NOT ? 8 : 1))
		{
			const char *left = map->page + entry_offset(map, (low + mid) / 2);
			const char *right = map->page + entry_offset(map, Min((mid + 1 + high) / 2, high - 1));

			__builtin_prefetch(left);
			__builtin_prefetch(right);
			if (fast == NVM_FAST_NOT)
			{
				__builtin_prefetch(left + 40);
				__builtin_prefetch(right + 40);
			}
		}
		cmp = compare_at(map->page, version, key, fast, value, entry_offset(map, mid));
		if (unlikely(cmp <= PAGE_CHANGED))
			return cmp;
		if (cmp >= beyond)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static inline NvmIndexFast
fast_of(const NvmIndexKey *key)
{
	return key->part[0].isnull ? NVM_FAST_NOT : (NvmIndexFast) key->part[0].fast;
}

static int
search_page(const NvmIndexView *view, uint64 version, const NvmIndexKey *key,
			int low, int high)
{
	EntryMap	map;

	map_entries(view, &map);
	switch (fast_of(key))
	{
		case NVM_FAST_INT2:
			return search_kind(&map, version, key, NVM_FAST_INT2, low, high);
		case NVM_FAST_INT4:
			return search_kind(&map, version, key, NVM_FAST_INT4, low, high);
		case NVM_FAST_INT8:
			return search_kind(&map, version, key, NVM_FAST_INT8, low, high);
		default:
			return search_kind(&map, version, key, NVM_FAST_NOT, low, high);
	}
}

/*
 * Does the key belong to the right of the page's high key?  1, 0 or PAGE_*.
 */
static inline int
beyond_high_key(const NvmIndexView *view, uint64 version, const NvmIndexKey *key)
{
	return view->first == 0 ? 0 : search_page(view, version, key, 0, 1);
}

/*
 * The block that an inner page's entry before `pos` leads to.
 */
static inline uint32
downlink_before(const NvmIndexView *view, int pos)
{
	uint32		off = NVM_INDEX_OFFSET(nvm_index_load16(&view->word[pos - 1]));
	const char *itup = view->page + Min(off, NVM_INDEX_LAST_OFFSET);

	return ((uint32) nvm_index_load16(itup) << 16) | nvm_index_load16(itup + 2);
}

/*
 * A page made no sense: ERROR, unless it has changed meanwhile.
 */
static void
not_found(Relation index, NvmIndexCache *cache, uint32 blkno, uint64 version)
{
	if (nvm_index_validate(nvm_index_page(cache->state, blkno), version))
		nvm_index_damaged(index, blkno, "an entry that a search came upon");
}

typedef enum StepResult
{
	STEP_AGAIN,					/* the page has changed */
	STEP_HERE,
	STEP_RIGHT,
	STEP_DOWN,
	STEP_WRONG_LEVEL
} StepResult;

/* how far a descent has come */
typedef struct Descent
{
	Relation	index;
	NvmIndexCache *cache;
	uint32		blkno;			/* the page */
	uint32		level;			/* of it, as its link says */
	uint64		version;		/* of the page */
	/* what a step has found out */
	uint32		next;			/* to this page */
	uint16		flags;			/* of the one that was left */
} Descent;

/*
 * One step of a descent, which holds no lock: where to from the page?  stop: it
 * ends on this level.
 */
static inline StepResult
descend_step(Descent *at, const NvmIndexKey *key, bool stop)
{
	NvmIndexPage *page = nvm_index_page(at->cache->state, at->blkno);
	uint64		version = at->version;
	NvmIndexView view;
	int			pos;

	at->flags = nvm_index_load16(&page->flags);
	if (unlikely(nvm_index_load16(&page->level) != at->level))
		return nvm_index_validate(page, version) ? STEP_WRONG_LEVEL : STEP_AGAIN;
	if (unlikely(nvm_index_view(page, &view) != NVM_VIEW_OK))
	{
		not_found(at->index, at->cache, at->blkno, version);
		return STEP_AGAIN;
	}

	if (unlikely((at->flags & NVM_INDEX_DELETED) != 0))
	{
		at->next = view.right;
		return nvm_index_validate(page, version) ? STEP_RIGHT : STEP_AGAIN;
	}
	if (stop)
		pos = view.n;
	else
	{
		/* the first entry of an inner page is minus infinity */
		if (unlikely(view.n <= view.first))
			pos = PAGE_BAD;
		else
			pos = search_page(&view, version, key, view.first + 1, view.n);
	}

	/* an entry beyond the key is one that the high key is not below */
	if (pos == view.n)
	{
		int			beyond = beyond_high_key(&view, version, key);

		if (beyond == 1)
		{
			at->next = view.right;
			return nvm_index_validate(page, version) ? STEP_RIGHT : STEP_AGAIN;
		}
		if (beyond < 0)
			pos = beyond;
	}
	if (unlikely(pos < 0))
	{
		if (pos == PAGE_BAD)
			not_found(at->index, at->cache, at->blkno, version);
		return STEP_AGAIN;
	}
	if (!stop)
		at->next = downlink_before(&view, pos);
	if (!nvm_index_validate(page, version))
		return STEP_AGAIN;
	return stop ? STEP_HERE : STEP_DOWN;
}

/*
 * The root, and its level; false if the index has none.
 */
static inline bool
read_root(NvmIndexCache *cache, uint32 *blkno, uint32 *level)
{
	uint64		root = nvm_load(&cache->meta->root);

	*blkno = NVM_INDEX_ROOT_BLOCK(root);
	*level = NVM_INDEX_ROOT_LEVEL(root);
	return *blkno != NVM_INDEX_NONE;
}

/*
 * read_root for a reader that locks what it reads.
 */
static bool
find_root(Relation index, NvmIndexCache *cache, uint32 *blkno, uint32 *level,
		  Snapshot lock_snapshot)
{
	if (likely(read_root(cache, blkno, level)))
		return true;
	if (lock_snapshot == NULL)
		return false;
	PredicateLockRelation(index, lock_snapshot);
	return read_root(cache, blkno, level);
}

/*
 * A page has another level than expected.  Either the root's level and block
 * were read in the middle of a change, or the page to which a link led is
 * another one by now.  From the top, then; but not for ever.
 */
static void
start_over(Relation index, uint32 blkno, int *restarts)
{
	CHECK_FOR_INTERRUPTS();
	if (++*restarts > MAX_RESTARTS)
		nvm_index_damaged(index, blkno, "its level is not that of the link to it");
}

uint32
nvm_index_descend(Relation index, NvmIndexCache *cache, const NvmIndexKey *key,
				  uint32 level, uint64 *version, Snapshot lock_snapshot)
{
	Descent		at = {.index = index,.cache = cache};
	int			restarts = 0;

restart:
	if (!find_root(index, cache, &at.blkno, &at.level, lock_snapshot) || at.level < level)
		return NVM_INDEX_NONE;
	for (;;)
	{
		if (lock_snapshot != NULL && at.level == 0)
			PredicateLockPage(index, at.blkno, lock_snapshot);
		at.version = nvm_index_enter(index, cache, at.blkno);
		switch (descend_step(&at, key, at.level == level))
		{
			case STEP_HERE:
				*version = at.version;
				return at.blkno;
			case STEP_AGAIN:
				break;
			case STEP_DOWN:
				at.blkno = at.next;
				at.level--;
				break;
			case STEP_RIGHT:
				CHECK_FOR_INTERRUPTS();
				/* for predicate locks, too: README, "Predicate locks" */
				if (key->inserts &&
					(at.flags & (NVM_INDEX_DELETED | NVM_INDEX_INCOMPLETE)) == NVM_INDEX_INCOMPLETE)
					nvm_index_finish_split(index, cache, NULL, at.blkno);
				at.blkno = at.next;
				break;
			case STEP_WRONG_LEVEL:
				start_over(index, at.blkno, &restarts);
				goto restart;
		}
	}
}

/*
 * A key beyond the first entry is beyond the page's low key, too.
 */
bool
nvm_index_belongs(Relation index, NvmIndexCache *cache, const NvmIndexKey *key,
				  uint32 blkno, uint64 *version)
{
	NvmIndexPage *page = nvm_index_page(cache->state, blkno);
	uint16		flags;
	NvmIndexView view;

	*version = nvm_index_enter(index, cache, blkno);
	flags = nvm_index_load16(&page->flags) &
		(NVM_INDEX_LIVE | NVM_INDEX_LEAF | NVM_INDEX_DELETED | NVM_INDEX_INCOMPLETE);
	return flags == (NVM_INDEX_LIVE | NVM_INDEX_LEAF) &&
		nvm_index_view(page, &view) == NVM_VIEW_OK &&
		view.n > view.first &&
		search_page(&view, *version, key, view.first, view.first + 1) == view.first + 1 &&
		beyond_high_key(&view, *version, key) == 0 &&
		nvm_index_validate(page, *version);
}

int
nvm_index_locate(NvmRelState *state, uint32 blkno, uint64 version,
				 const NvmIndexKey *key, int *nitems)
{
	NvmIndexPage *page = nvm_index_page(state, blkno);
	NvmIndexView view;
	int			low;
	int			pos = PAGE_BAD;

	if (likely(nvm_index_view(page, &view) == NVM_VIEW_OK))
	{
		low = view.first;
		if (nvm_index_load16(&page->level) > 0)
			low = Min(low + 1, view.n);
		pos = search_page(&view, version, key, low, view.n);
	}
	/* a lock that changes nothing comes and goes, and the version is the same */
	if (!nvm_index_validate(page, version) || pos == PAGE_CHANGED)
		return -1;
	if (unlikely(pos < 0))
		nvm_index_damaged(key->index, blkno, "an entry that a search came upon");
	if (nitems != NULL)
		*nitems = view.n;
	return pos;
}

bool
nvm_index_fetch(NvmRelState *state, uint32 blkno, uint64 version, int pos,
				char *buf, uint16 *word)
{
	NvmIndexPage *page = nvm_index_page(state, blkno);
	NvmIndexView view;
	bool		taken = false;

	if (likely(nvm_index_view(page, &view) == NVM_VIEW_OK && pos < view.n))
	{
		*word = nvm_index_load16(&view.word[pos]);
		taken = nvm_index_take(view.page, *word, buf);
	}
	if (!nvm_index_validate(page, version))
		return false;
	if (unlikely(!taken))
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("block %u of an index is damaged: entry %d",
						blkno, pos),
				 errhint("nvm.check() finds the index; REINDEX it.")));
	return true;
}

/*
 * The last entry's child of an inner page, or the first one's.  False if the
 * page has changed.
 */
static bool
end_child(Relation index, NvmIndexCache *cache, uint32 blkno, uint64 version,
		  bool rightmost, uint32 *child)
{
	NvmIndexPage *page = nvm_index_page(cache->state, blkno);
	NvmIndexView view;

	if (nvm_index_view(page, &view) != NVM_VIEW_OK || view.n <= view.first)
	{
		not_found(index, cache, blkno, version);
		return false;
	}
	*child = downlink_before(&view, rightmost ? view.n : view.first + 1);
	return nvm_index_validate(page, version);
}

uint32
nvm_index_endpoint(Relation index, NvmIndexCache *cache, uint32 level, bool rightmost,
				   Snapshot lock_snapshot)
{
	uint32		blkno;
	uint32		here;
	int			restarts = 0;

restart:
	if (!find_root(index, cache, &blkno, &here, lock_snapshot) || here < level)
		return NVM_INDEX_NONE;
	for (;;)
	{
		NvmIndexPage *page;
		uint64		version;
		uint16		page_level;
		uint16		flags;
		uint32		right;
		uint32		child;

		if (lock_snapshot != NULL && here == 0)
			PredicateLockPage(index, blkno, lock_snapshot);
		version = nvm_index_enter(index, cache, blkno);
		page = nvm_index_page(cache->state, blkno);
		page_level = nvm_index_load16(&page->level);
		flags = nvm_index_load16(&page->flags);
		right = nvm_index_load32(&page->right);
		if (!nvm_index_validate(page, version))
			continue;
		if (page_level != here)
		{
			start_over(index, blkno, &restarts);
			goto restart;
		}
		if ((flags & NVM_INDEX_DELETED) || (rightmost && right != NVM_INDEX_NONE))
		{
			CHECK_FOR_INTERRUPTS();
			blkno = right;
		}
		else if (here == level)
			return blkno;
		else if (end_child(index, cache, blkno, version, rightmost, &child))
		{
			blkno = child;
			here--;
		}
	}
}
