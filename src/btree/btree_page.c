/*-------------------------------------------------------------------------
 *
 * btree_page.c
 *	  Index pages: lock, validated copy, image, append.
 *
 * README.md, "Pages" and "Page lock", has the rules.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_page.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_sound.h"
#include "portability/instr_time.h"
#include "storage/s_lock.h"
#include "verify/nvm_verify_index.h"

StaticAssertDecl(sizeof(NvmIndexEntry) == sizeof(IndexTupleData) &&
				 offsetof(NvmIndexEntry, offset) == offsetof(IndexTupleData, t_tid.ip_posid) &&
				 offsetof(NvmIndexEntry, info) == offsetof(IndexTupleData, t_info) &&
				 INDEX_SIZE_MASK == 0x1FFF && NVM_ENTRY_ALT == INDEX_ALT_TID_MASK &&
				 NVM_ENTRY_POSTING == BT_IS_POSTING && NVM_ENTRY_COLUMNS == BT_OFFSET_MASK,
				 "entries are not what verify/ takes them for");

/* a waiter looks so often before it sleeps, and then at most so long */
#define WAIT_SPINS			200
#define WAIT_USEC_MAX		1000
/* nobody holds the lock of a page as long as that */
#define WAIT_SECONDS_MAX	30

/* ---- check words ---- */

uint32
nvm_index_check_word(uint32 dir, uint32 blkno, const NvmIndexPage *place)
{
	return nvm_index_check_at(dir, blkno, NvmPoolOff(place));
}

uint32
nvm_index_page_check(const NvmIndexPage *page)
{
	return nvm_index_check_word(page->dir, page->blkno, page);
}

uint32
nvm_index_meta_check(const NvmIndexMeta *meta)
{
	return nvm_index_meta_check_at(meta, NvmPoolOff(meta));
}

void
nvm_index_damaged(Relation index, uint32 blkno, const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_INDEX_CORRUPTED),
			 errmsg("block %u of index \"%s\" is damaged: %s",
					blkno, RelationGetRelationName(index), what),
			 errhint("REINDEX the index.")));
}

/* ---- the lock ---- */

/*
 * Wait until nobody holds the page's lock.
 */
uint64
nvm_index_begin_slow(NvmIndexPage *page)
{
	long		usec = 10;
	instr_time	began;
	instr_time	now;

	INSTR_TIME_SET_ZERO(began);
	for (int i = 0;; i++)
	{
		uint64		word = nvm_load(&page->lock);

		if (!nvm_index_word_locked(word))
			return word;
		if (i < WAIT_SPINS)
			SPIN_DELAY();
		else
		{
			CHECK_FOR_INTERRUPTS();
			pg_usleep(usec);
			usec = Min(usec * 2, WAIT_USEC_MAX);
			if (INSTR_TIME_IS_ZERO(began))
				INSTR_TIME_SET_CURRENT(began);
			INSTR_TIME_SET_CURRENT(now);
			INSTR_TIME_SUBTRACT(now, began);

			/* damage may look like a lock of this run */
			if (usec == WAIT_USEC_MAX && CritSectionCount == 0 && !nvm_unit_is_sound(page) &&
				INSTR_TIME_GET_DOUBLE(now) > WAIT_SECONDS_MAX)
				ereport(ERROR,
						(errcode(ERRCODE_INDEX_CORRUPTED),
						 errmsg("block %u of the index in storage %u of the NVM pool is damaged: it is locked by nobody",
								page->blkno, page->dir),
						 errhint("REINDEX the index.")));
		}
	}
}

bool
nvm_index_lock(NvmIndexPage *page, uint64 version)
{
	uint64		locked = nvm_index_lock_inc() | NVM_INDEX_LOCKED;

	if ((version & UINT64CONST(0xFFFF000000000000)) == nvm_index_lock_inc())
		locked |= version;

	START_CRIT_SECTION();
	if (!__atomic_compare_exchange_n(&page->lock, &version, locked, false,
									 __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
	{
		END_CRIT_SECTION();
		return false;
	}
	/* what is stored from now on is not seen before the lock is */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	return true;
}

void
nvm_index_lock_wait(NvmIndexPage *page)
{
	while (!nvm_index_lock(page, nvm_index_begin(page)))
		;
}

uint64
nvm_index_unlock(NvmIndexPage *page, bool changed)
{
	uint64		word = __atomic_load_n(&page->lock, __ATOMIC_RELAXED);

	Assert(nvm_index_word_locked(word));
	word &= ~NVM_INDEX_LOCKED;
	if (changed)
		word = nvm_index_lock_inc() | ((word + 2) & UINT64CONST(0x0000FFFFFFFFFFFE));
	nvm_store(&page->lock, word);
	END_CRIT_SECTION();
	return word;
}

/*
 * A block of an index, before anybody uses the pool: its lock is free, and its
 * order[] and running tail mean nothing.  Flushes, and does not drain.
 */
void
nvm_index_forget_marks(void *block)
{
	NvmIndexPage *page = (NvmIndexPage *) block;

	if (page->magic != NVM_INDEX_MAGIC)
		return;
	if (page->lock != 0 || page->order_inc != 0)
	{
		page->lock = 0;
		page->order_inc = 0;
	}
	/* also if it was removed and not flushed */
	nvm_flush(page, NVM_INDEX_HEADER_SIZE);
}

/* ---- order[] ---- */

/*
 * Offsets of the tail entries of a private copy of a page, newest first.
 * NULL, or what is wrong with them.
 */
static const char *
walk_tail(const char *image, uint32 upper, uint32 base_upper, int ntail, uint16 *word)
{
	uint32		off = upper;

	for (int i = 0; i < ntail; i++)
	{
		uint32		size;

		if (off + sizeof(IndexTupleData) > base_upper)
			return "fewer tail entries than its commit word says";
		size = IndexTupleSize((IndexTuple) (image + off));
		if (size < sizeof(IndexTupleData) || off + size > base_upper)
			return "length of a tail entry";
		word[i] = NVM_INDEX_WORD(off);
		off += MAXALIGN(size);
	}
	return off == base_upper ? NULL : "more tail entries than its commit word says";
}

/*
 * Order of the entries of a private copy, which nobody has appended any to in
 * this incarnation.  Returns their number; word[] has room for as many as a page
 * can have.
 */
static int
sort_entries(Relation index, NvmIndexCache *cache, uint32 blkno, const char *image,
			 uint16 *word)
{
	const NvmIndexPage *header = (const NvmIndexPage *) image;
	uint32		upper = NVM_INDEX_UPPER(NVM_INDEX_SETTLED(header->commit));
	int			ntail = NVM_INDEX_NTAIL(NVM_INDEX_SETTLED(header->commit));
	int			n = header->nbase;
	int			first = header->right != NVM_INDEX_NONE;
	uint16	   *tail;
	NvmIndexKey *key;
	const char *problem;

	if (upper > header->base_upper || header->base_upper > NVM_INDEX_PAGE_SIZE ||
		upper % 8 != 0 || header->base_upper % 8 != 0 || n < first ||
		NVM_INDEX_HEADER_SIZE + (2 * n + ntail) * sizeof(uint16) > upper)
		nvm_index_damaged(index, blkno, "its header");
	memcpy(word, image + NVM_INDEX_HEADER_SIZE, n * sizeof(uint16));
	for (int i = 0; i < n; i++)
	{
		uint32		off = NVM_INDEX_OFFSET(word[i]);

		if (off < header->base_upper || off > NVM_INDEX_LAST_OFFSET ||
			off + IndexTupleSize((IndexTuple) (image + off)) > NVM_INDEX_PAGE_SIZE)
			nvm_index_damaged(index, blkno, "offset of an entry");
	}

	tail = palloc(ntail * sizeof(uint16));
	problem = walk_tail(image, upper, header->base_upper, ntail, tail);
	if (problem != NULL)
		nvm_index_damaged(index, blkno, problem);

	key = palloc(sizeof(NvmIndexKey));
	for (int i = ntail - 1; i >= 0; i--)
	{
		int			low = first;
		int			high = n;

		nvm_index_key_init(index, cache, (IndexTuple) (image + NVM_INDEX_OFFSET(tail[i])), key);
		while (low < high)
		{
			int			mid = (low + high) / 2;

			if (nvm_index_compare(key, (IndexTuple) (image + NVM_INDEX_OFFSET(word[mid]))) < 0)
				high = mid;
			else
				low = mid + 1;
		}
		memmove(&word[low + 1], &word[low], (n - low) * sizeof(uint16));
		word[low] = tail[i];
		n++;
	}
	pfree(key);
	pfree(tail);
	return n;
}

/*
 * Write order[] of a page whose entries were last sorted in another
 * incarnation.  The first process that comes does it, if the page's version is
 * still this one.
 */
static void
rebuild_order(Relation index, NvmIndexCache *cache, uint32 blkno, uint64 version)
{
	NvmIndexPage *page = nvm_index_page(cache->state, blkno);
	char	   *image = palloc(NVM_INDEX_PAGE_SIZE);
	uint16	   *word = palloc(NVM_INDEX_ROOM);
	NvmIndexPage *header = (NvmIndexPage *) image;

	memcpy(image, page, NVM_INDEX_PAGE_SIZE);
	if (nvm_index_validate(page, version))
	{
		int			n = sort_entries(index, cache, blkno, image, word);

		NVM_FAILPOINT("btree-order");
		if (nvm_index_lock(page, version))
		{
			memcpy((char *) page + NVM_INDEX_HEADER_SIZE + header->nbase * sizeof(uint16),
				   word, n * sizeof(uint16));
			page->norder = n;
			page->commit = NVM_INDEX_COMMIT(NVM_INDEX_SETTLED(header->commit),
											NVM_INDEX_SETTLED(header->commit));
			page->order_inc = NvmIndexOrderInc();
			nvm_index_unlock(page, true);
		}
	}
	pfree(word);
	pfree(image);
}

/*
 * Of a page whose bytes are known to make sense.
 */
static inline uint64
enter_proven(Relation index, NvmIndexCache *cache, uint32 blkno)
{
	NvmIndexPage *page = nvm_index_page(cache->state, blkno);

	for (;;)
	{
		uint64		version = nvm_index_begin(page);

		if (likely(nvm_index_is_page(cache, page, blkno) &&
				   (NVM_INDEX_NTAIL(nvm_index_tail(page)) == 0 ||
					page->order_inc == NvmIndexOrderInc())))
			return version;
		if (!nvm_index_validate(page, version))
			continue;
		if (!nvm_index_is_page(cache, page, blkno))
			nvm_index_damaged(index, blkno, "its identity");
		rebuild_order(index, cache, blkno, version);
	}
}

/*
 * The first look at a page in this run of the server: btree_prove.c.
 */
static void
prove_page(Relation index, NvmIndexCache *cache, uint32 blkno)
{
	nvm_index_prove_bytes(index, cache, blkno);
	(void) enter_proven(index, cache, blkno);	/* order[] */
	nvm_index_prove_entries(index, cache, blkno);
}

uint64
nvm_index_enter(Relation index, NvmIndexCache *cache, uint32 blkno)
{
	NvmIndexPage *page;

	if (!nvm_index_has_block(cache, blkno))
		nvm_index_damaged(index, blkno, "there is no such block, to which a link leads");
	page = nvm_index_page(cache->state, blkno);
	if (unlikely(!nvm_unit_is_sound(page)))
		prove_page(index, cache, blkno);
	return enter_proven(index, cache, blkno);
}

/* ---- private copies ---- */

/*
 * Fill in a copy from its image.  NULL, or what is wrong with it.
 */
static const char *
describe_copy(Relation index, NvmIndexCopy *copy)
{
	NvmIndexPage *header = &copy->image.header;
	NvmIndexView view;

	if (nvm_index_view(header, &view) != NVM_VIEW_OK)
		return "its header";
	copy->left = header->left;
	copy->right = header->right;
	copy->level = header->level;
	copy->flags = header->flags;
	copy->epoch = header->epoch;
	copy->first = view.first;
	copy->nitems = view.n;
	if (view.n > (int) lengthof(copy->word))
		return "number of entries";
	memcpy(copy->word, view.word, view.n * sizeof(uint16));

	for (int i = 0; i < view.n; i++)
	{
		uint32		off = NVM_INDEX_OFFSET(copy->word[i]);
		IndexTuple	itup = (IndexTuple) (copy->image.data + off);
		Size		size;

		if (off < NVM_INDEX_HEADER_SIZE || off > NVM_INDEX_LAST_OFFSET)
			return "offset of an entry";
		size = IndexTupleSize(itup);
		if (size < sizeof(IndexTupleData) || off + size > NVM_INDEX_PAGE_SIZE)
			return "length of an entry";
		if (BTreeTupleIsPosting(itup))
		{
			if (copy->level > 0 || i < view.first || !nvm_index_posting_fits(itup))
				return "a posting list";
		}
		else if (BTreeTupleIsPivot(itup) != (copy->level > 0 || i < view.first) ||
				 BTreeTupleGetNAtts(itup, index) > IndexRelationGetNumberOfAttributes(index))
			return "kind of an entry";
	}
	return NULL;
}

const char *
nvm_index_try_copy(Relation index, NvmIndexCache *cache, uint32 blkno, NvmIndexCopy *copy)
{
	NvmIndexPage *page;

	do
	{
		copy->version = enter_proven(index, cache, blkno);
		page = nvm_index_page(cache->state, blkno);
		memcpy(copy->image.data, page, NVM_INDEX_PAGE_SIZE);
	} while (!nvm_index_validate(page, copy->version));

	copy->blkno = blkno;
	return describe_copy(index, copy);
}

void
nvm_index_copy(Relation index, NvmIndexCache *cache, uint32 blkno, NvmIndexCopy *copy)
{
	const char *problem;

	(void) nvm_index_enter(index, cache, blkno);
	problem = nvm_index_try_copy(index, cache, blkno, copy);
	if (problem != NULL)
		nvm_index_damaged(index, blkno, problem);
}

/* ---- images ---- */

bool
nvm_index_form(char *image, NvmIndexCache *cache, const NvmIndexForm *form)
{
	NvmIndexPage *header = (NvmIndexPage *) image;
	NvmIndexPage *place = nvm_index_page(cache->state, form->blkno);
	IndexTuple *items = form->items;
	int			nitems = form->nitems;
	uint16	   *base = (uint16 *) (image + NVM_INDEX_HEADER_SIZE);
	Size		total = 0;
	uint32		off;

	for (int i = 0; i < nitems; i++)
		total += NvmIndexEntrySpace(items[i]);
	if (total > NVM_INDEX_ROOM)
		return false;

	memset(header, 0, NVM_INDEX_HEADER_SIZE);
	header->magic = NVM_INDEX_MAGIC;
	header->dir = cache->dir;
	header->blkno = form->blkno;
	header->check = nvm_index_check_word(cache->dir, form->blkno, place);
	header->left = form->left;
	header->right = form->right;
	header->level = form->level;
	header->flags = form->flags;
	header->nbase = nitems;

	off = NVM_INDEX_PAGE_SIZE - (total - nitems * sizeof(uint16));
	header->base_upper = off;
	header->commit = NVM_INDEX_COMMIT(NVM_INDEX_TAIL(off, 0), 0);
	memset(&base[nitems], 0, off - NVM_INDEX_HEADER_SIZE - nitems * sizeof(uint16));

	/* in the order of keys and without gaps: btree_search.c relies on that */
	for (int i = 0; i < nitems; i++)
	{
		Size		size = IndexTupleSize(items[i]);

		base[i] = NVM_INDEX_WORD(off);
		memcpy(image + off, items[i], size);
		memset(image + off + size, 0, MAXALIGN(size) - size);
		off += MAXALIGN(size);
	}
	Assert(off == NVM_INDEX_PAGE_SIZE);
	return true;
}

void
nvm_index_put_image(const NvmIndexChange *change, NvmIndexPage *page, const char *image)
{
	const NvmIndexPage *header = (const NvmIndexPage *) image;
	Size		lower = NVM_INDEX_HEADER_SIZE + header->nbase * sizeof(uint16);
	Size		upper = header->base_upper;
	Size		behind = offsetof(NvmIndexPage, safexid);
	uint32		epoch;

	nvm_index_lock_wait(page);
	epoch = page->epoch + 1;
	memcpy(page, image, offsetof(NvmIndexPage, lock));
	memcpy((char *) page + behind, image + behind, lower - behind);
	memcpy((char *) page + upper, image + upper, NVM_INDEX_PAGE_SIZE - upper);
	page->epoch = epoch;
	if (change->redo != NULL)
	{
		nvm_flush(page, lower);
		nvm_flush((char *) page + upper, NVM_INDEX_PAGE_SIZE - upper);
	}
	nvm_index_unlock(page, true);
}

/* ---- insertion of one entry ---- */

/*
 * Is there room for an entry, its order word, and if it is the first tail
 * entry, those of all others?
 */
bool
nvm_index_has_room(const NvmIndexPage *page, Size size)
{
	uint32		nbase = nvm_index_load16(&page->nbase);
	uint32		tail = nvm_index_tail(page);
	Size		lower = NVM_INDEX_HEADER_SIZE +
	(2 * nbase + NVM_INDEX_NTAIL(tail) + 1) * sizeof(uint16);

	return lower + MAXALIGN(size) <= NVM_INDEX_UPPER(tail);
}

uint32
nvm_index_append(NvmIndexCache *cache, NvmIndexPage *page, int pos, IndexTuple itup)
{
	Size		size = IndexTupleSize(itup);
	uint32		tail = nvm_index_tail(page);
	uint32		ntail = NVM_INDEX_NTAIL(tail);
	uint32		upper = NVM_INDEX_UPPER(tail) - MAXALIGN(size);
	uint32		settled = NVM_INDEX_SETTLED(page->commit);
	char	   *place = (char *) page + upper;
	uint16	   *base = (uint16 *) ((char *) page + NVM_INDEX_HEADER_SIZE);
	uint16	   *order = base + page->nbase;
	int			n = ntail > 0 ? page->norder : page->nbase;
	bool		flushes = NvmIndexFlushes(cache, page->level);

	Assert(nvm_index_has_room(page, size) && pos <= n);
	memcpy(place, itup, size);
	memset(place + size, 0, MAXALIGN(size) - size);
	if (flushes)
		nvm_flush(place, MAXALIGN(size));
	tail = NVM_INDEX_TAIL(upper, ntail + 1);
	if (page->level > 0 || !flushes)
	{
		/* not settled later: all before it are, or the index is not kept */
		if (flushes)
			nvm_drain("btree-entry");
		settled = tail;
	}
	nvm_store(&page->commit, NVM_INDEX_COMMIT(settled, tail));
	NVM_FAILPOINT("btree-committed");

	/* DRAM contents from here on */
	if (ntail == 0)
	{
		memcpy(order, base, pos * sizeof(uint16));
		memcpy(order + pos + 1, base + pos, (n - pos) * sizeof(uint16));
	}
	else
		memmove(order + pos + 1, order + pos, (n - pos) * sizeof(uint16));
	order[pos] = NVM_INDEX_WORD(upper);
	page->norder = n + 1;
	page->order_inc = NvmIndexOrderInc();
	return tail;
}

/* ---- hints ---- */

void
nvm_index_kill(NvmIndexCache *cache, uint32 blkno, uint32 epoch, const uint16 *word, int n)
{
	NvmIndexPage *page = nvm_index_page(cache->state, blkno);
	uint64		version = nvm_index_begin(page);
	NvmIndexView view;
	int			pos;

	if (page->epoch != epoch || nvm_index_view(page, &view) != NVM_VIEW_OK ||
		!nvm_index_lock(page, version))
		return;

	/* they come in the order of the page, or nearly so */
	pos = view.first;
	for (int i = 0; i < n; i++)
	{
		int			start = pos;

		while (pos < view.n && NVM_INDEX_OFFSET(view.word[pos]) != NVM_INDEX_OFFSET(word[i]))
			pos++;
		if (pos == view.n)
		{
			for (pos = view.first; pos < start; pos++)
			{
				if (NVM_INDEX_OFFSET(view.word[pos]) == NVM_INDEX_OFFSET(word[i]))
					break;
			}
			if (pos == start)
				continue;
		}
		((uint16 *) view.word)[pos] |= NVM_INDEX_DEAD;
		page->flags |= NVM_INDEX_HAS_DEAD;
	}
	nvm_index_unlock(page, false);
}
