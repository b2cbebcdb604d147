/*-------------------------------------------------------------------------
 *
 * poolcheck_index.c
 *	  What the indexes of a pool hold, as far as no key has to be compared.
 *
 * Each page's bytes; each level from its first page on by the right links, with
 * the left links back; downlinks as a set: where entries of a page were
 * appended, only their keys tell in which order they are.  nvm.check() compares
 * keys.
 *
 * Of an index with persistence = leaves nothing but the leaves counts.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "poolcheck.h"

#include "verify/nvm_verify_index.h"

#define MAX_LEVEL			32

/* of each block */
#define SEEN				0x01	/* is on a level */
#define LED_TO				0x02	/* has a downlink */

typedef struct IndexWalk
{
	NvmIndexVerify verify;		/* first */
	Pool	   *pool;
	uint32		nblocks;
	uint8	   *mark;			/* [nblocks] */
	uint64		ndownlinks;		/* of the level above the one at hand */
	bool		broken;			/* some pages could not be read or reached */
} IndexWalk;

static void index_report(NvmIndexVerify *verify, uint32 blkno, int item,
						 const char *fmt,...) pg_attribute_printf(4, 5);

static void
index_report(NvmIndexVerify *verify, uint32 blkno, int item, const char *fmt,...)
{
	NvmDirEntry *entry = pool_dir_entry(((IndexWalk *) verify)->pool, verify->dir);
	char		place[128];
	char		problem[512];
	va_list		args;
	int			n;

	va_start(args, fmt);
	vsnprintf(problem, sizeof(problem), fmt, args);
	va_end(args);
	n = snprintf(place, sizeof(place), "storage %u (database %u, relation file " UINT64_FORMAT ", index of relation %u), block %u",
				 verify->dir, entry->database, (uint64) entry->relnumber, entry->relation, blkno);
	if (item != 0)
		snprintf(place + n, sizeof(place) - n, ", entry %d", item);
	found(place, "%s", problem);
}

static const NvmIndexPage *
index_page(IndexWalk *walk, uint32 blkno)
{
	return (const NvmIndexPage *) pool_block(walk->pool, walk->verify.dir, blkno);
}

static uint64
offset_of(IndexWalk *walk, const void *page)
{
	return (uint64) ((const char *) page - walk->pool->image.base);
}

/* ---- entries ---- */

/*
 * One entry of an inner page.  Returns the downlink without a key, or
 * NVM_INDEX_NONE if it is another one.
 */
static uint32
take_downlink(IndexWalk *walk, uint32 blkno, int item, const NvmIndexEntry *entry)
{
	uint32		leads = nvm_entry_downlink(entry);
	uint32		columns = entry->offset & NVM_ENTRY_COLUMNS;

	if (!nvm_entry_is_pivot(entry))
	{
		walk->verify.report(&walk->verify, blkno, item, "entry should be a pivot");
		return NVM_INDEX_NONE;
	}
	if (leads == NVM_INDEX_NONE || leads >= walk->nblocks)
	{
		walk->verify.report(&walk->verify, blkno, item, "downlink leads to block %u of %u",
							leads, walk->nblocks);
		return NVM_INDEX_NONE;
	}
	if (walk->mark[leads] & LED_TO)
		walk->verify.report(&walk->verify, blkno, item, "another downlink leads to block %u, too", leads);
	walk->mark[leads] |= LED_TO;
	walk->ndownlinks++;
	return columns == 0 ? leads : NVM_INDEX_NONE;
}

/*
 * The downlinks of a page whose bytes make sense.  Returns the one without a
 * key, or NVM_INDEX_NONE.
 */
static uint32
take_downlinks(IndexWalk *walk, const NvmIndexPage *page, uint32 blkno)
{
	const char *data = (const char *) page;
	const uint16 *base = (const uint16 *) (data + NVM_INDEX_HEADER_SIZE);
	uint32		tail = nvm_index_tail_of(page, walk->verify.marks);
	uint32		off = NVM_INDEX_UPPER(tail);
	uint32		first = NVM_INDEX_NONE;
	uint32		keyless;

	/* the first is the high key */
	for (uint32 i = page->right != NVM_INDEX_NONE; i < page->nbase; i++)
	{
		keyless = take_downlink(walk, blkno, (int) i + 1,
								(const NvmIndexEntry *) (data + NVM_INDEX_OFFSET(base[i])));
		if (keyless != NVM_INDEX_NONE)
			first = keyless;
	}
	for (uint32 i = 0; i < NVM_INDEX_NTAIL(tail); i++)
	{
		const NvmIndexEntry *entry = (const NvmIndexEntry *) (data + off);

		(void) take_downlink(walk, blkno, (int) (page->nbase + NVM_INDEX_NTAIL(tail) - i), entry);
		off += MAXALIGN(NVM_ENTRY_SIZE(entry));
	}
	if (first == NVM_INDEX_NONE)
		walk->verify.report(&walk->verify, blkno, 0, "no downlink of the page is without a key");
	return first;
}

/* ---- levels ---- */

/*
 * The page that a link leads to, if it can be read and was not met before.
 */
static const NvmIndexPage *
enter_page(IndexWalk *walk, uint32 blkno)
{
	const NvmIndexPage *page;

	if (blkno == NVM_INDEX_NONE || blkno >= walk->nblocks)
		walk->verify.report(&walk->verify, blkno, 0, "a link leads to block %u of %u",
							blkno, walk->nblocks);
	else if (walk->mark[blkno] & SEEN)
		walk->verify.report(&walk->verify, blkno, 0, "page is reached twice");
	else
	{
		walk->mark[blkno] |= SEEN;
		page = index_page(walk, blkno);
		if (nvm_verify_index_image(&walk->verify, blkno, (const char *) page, offset_of(walk, page)))
			return page;
	}
	walk->broken = true;
	return NULL;
}

/*
 * Walk a level from its first page.  Returns the first page of the level below.
 */
static uint32
walk_level(IndexWalk *walk, uint32 level, uint32 blkno, bool is_root)
{
	uint64		expected = walk->ndownlinks;
	uint64		met = 0;
	uint32		left = NVM_INDEX_NONE;
	uint32		below = NVM_INDEX_NONE;
	bool		incomplete = false;

	walk->ndownlinks = 0;
	while (blkno != NVM_INDEX_NONE)
	{
		const NvmIndexPage *page = enter_page(walk, blkno);

		if (page == NULL)
			break;
		nvm_verify_index_links(&walk->verify, page, blkno, level, left);
		if (page->level != level)
		{
			walk->broken = true;
			break;
		}
		if (walk->mark[blkno] & LED_TO)
			met++;
		else if (!incomplete && !walk->broken && !(is_root && left == NVM_INDEX_NONE))
			walk->verify.report(&walk->verify, blkno, 0, is_root ? "page beside the root" :
								"page has no downlink");
		/* a root that was split is one no more, once there is a new one */
		if (((page->flags & NVM_INDEX_ROOT) != 0) != (is_root && left == NVM_INDEX_NONE) &&
			(page->flags & NVM_INDEX_INCOMPLETE) == 0)
			walk->verify.report(&walk->verify, blkno, 0, is_root ? "root is not marked as such" :
								"page is marked as the root");
		if (level > 0)
		{
			/* each page's first downlink is without a key */
			uint32		first = take_downlinks(walk, page, blkno);

			if (left == NVM_INDEX_NONE)
				below = first;
		}
		incomplete = (page->flags & NVM_INDEX_INCOMPLETE) != 0;
		left = blkno;
		blkno = page->right;
		progress(1);
	}
	if (!is_root && !walk->broken && met != expected)
		walk->verify.report(&walk->verify, left, 0,
							UINT64_FORMAT " downlinks lead to level %u, but to only " UINT64_FORMAT " of its pages",
							expected, level, met);
	return below;
}

static void
check_tree(IndexWalk *walk, const NvmIndexMeta *meta)
{
	uint32		blkno = NVM_INDEX_ROOT_BLOCK(meta->root);
	uint32		top = NVM_INDEX_ROOT_LEVEL(meta->root);

	if (top > MAX_LEVEL || (meta->root != 0 && blkno == NVM_INDEX_NONE))
	{
		walk->verify.report(&walk->verify, 0, 0, "root is said to be block %u on level %u", blkno, top);
		return;
	}
	for (int level = (int) top; level >= 0 && blkno != NVM_INDEX_NONE; level--)
		blkno = walk_level(walk, (uint32) level, blkno, level == (int) top);
	if (walk->broken)
		return;
	for (blkno = 1; blkno < walk->nblocks; blkno++)
	{
		const NvmIndexPage *page = index_page(walk, blkno);

		if ((walk->mark[blkno] & SEEN) == 0)
			nvm_verify_index_unreached(&walk->verify, page, blkno, offset_of(walk, page),
									   walk->pool->incarnation);
	}
}

/* ---- leaves alone ---- */

static bool
is_leaf(const NvmIndexPage *page)
{
	return page->magic == NVM_INDEX_MAGIC &&
		(page->flags & (NVM_INDEX_LEAF | NVM_INDEX_LIVE | NVM_INDEX_DELETED)) ==
		(NVM_INDEX_LEAF | NVM_INDEX_LIVE);
}

/*
 * persistence = leaves: one chain of all live leaves (btree_persist.c).
 */
static void
check_leaves(IndexWalk *walk)
{
	uint32		first = NVM_INDEX_NONE;
	uint32		left = NVM_INDEX_NONE;
	uint32		blkno;

	for (blkno = 1; blkno < walk->nblocks && first == NVM_INDEX_NONE; blkno++)
	{
		const NvmIndexPage *page = index_page(walk, blkno);

		if (is_leaf(page) && page->left == NVM_INDEX_NONE)
			first = blkno;
	}
	for (blkno = first; blkno != NVM_INDEX_NONE;)
	{
		const NvmIndexPage *page = enter_page(walk, blkno);
		uint32		right;

		if (page == NULL)
			break;
		nvm_verify_index_links(&walk->verify, page, blkno, 0, left);
		right = page->right;
		left = blkno;
		blkno = right;
		progress(1);
	}
	for (blkno = 1; blkno < walk->nblocks && !walk->broken; blkno++)
	{
		const NvmIndexPage *page = index_page(walk, blkno);

		if ((walk->mark[blkno] & SEEN) == 0 && is_leaf(page))
			nvm_verify_index_unreached(&walk->verify, page, blkno, offset_of(walk, page),
									   walk->pool->incarnation);
	}
}

void
pool_check_index(Pool *pool, uint32 id, uint32 nblocks)
{
	IndexWalk	walk = {.pool = pool,.nblocks = nblocks};
	const NvmIndexMeta *meta;

	/* without a meta page, which who uses it first makes, it is empty */
	if (nblocks == 0)
		return;
	walk.verify.report = index_report;
	walk.verify.dir = id;
	walk.verify.marks = pool->marks;
	meta = (const NvmIndexMeta *) pool_block(pool, id, 0);
	if (nblocks == 1 && meta->magic == 0)
		return;
	nvm_verify_index_meta(&walk.verify, meta, offset_of(&walk, meta));
	if (meta->magic != NVM_INDEX_META_MAGIC || (meta->flags & NVM_INDEX_META_NONE))
		return;

	walk.mark = calloc(nblocks, 1);
	if (walk.mark == NULL)
		pg_fatal("out of memory");
	if (meta->flags & NVM_INDEX_META_LEAVES)
		check_leaves(&walk);
	else
		check_tree(&walk, meta);
	free(walk.mark);
}
