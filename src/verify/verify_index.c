/*-------------------------------------------------------------------------
 *
 * verify_index.c
 *	  Index pages: the bytes on which readers of entries rely; links; the meta
 *	  page.
 *
 * Compiled into the server, for nvm.check(), and into nvm_poolcheck.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef FRONTEND
#include "postgres.h"
#else
#include "postgres_fe.h"
#endif

#include "verify/nvm_verify.h"
#include "verify/nvm_verify_index.h"

#define CHECK_KNOWN_FLAGS \
	(NVM_INDEX_LEAF | NVM_INDEX_ROOT | NVM_INDEX_INCOMPLETE | \
	 NVM_INDEX_DELETED | NVM_INDEX_LIVE | NVM_INDEX_HAS_DEAD)

#define CHECK_KNOWN_META_FLAGS \
	(NVM_INDEX_META_EQUALIMAGE | NVM_INDEX_META_LEAVES | NVM_INDEX_META_NONE)

/* ---- check words ---- */

uint32
nvm_index_check_at(uint32 dir, uint32 blkno, uint64 offset)
{
	uint32		id[3] = {NVM_INDEX_MAGIC, dir, blkno};

	return nvm_pool_check(id, sizeof(id), offset, 32);
}

uint32
nvm_index_meta_check_at(const NvmIndexMeta *meta, uint64 offset)
{
	uint32		id[4] = {meta->magic, meta->dir, meta->version, meta->flags};

	return nvm_pool_check(id, sizeof(id), offset, 32);
}

/* ---- bytes ---- */

/* an image whose bytes are being looked at */
typedef struct CheckImage
{
	const char *data;
	const NvmIndexPage *header;
	uint8		begins[NVM_INDEX_PAGE_SIZE / 64];	/* a bit for each place
													 * where an entry begins */
} CheckImage;

static inline bool
image_begins(const CheckImage *image, uint32 off)
{
	return (image->begins[off / 64] >> (off / 8 % 8)) & 1;
}

/*
 * An entry of [from, till).  Returns the space that it takes.  0 if it is not
 * whole, or begins where another does.
 */
static uint32
image_entry(CheckImage *image, uint32 off, uint32 from, uint32 till)
{
	uint32		size;

	if (off < from || off + sizeof(NvmIndexEntry) > till || image_begins(image, off))
		return 0;
	size = NVM_ENTRY_SIZE((const NvmIndexEntry *) (image->data + off));
	if (size < sizeof(NvmIndexEntry) || off + size > till)
		return 0;
	image->begins[off / 64] |= 1 << (off / 8 % 8);
	return MAXALIGN(size);
}

/*
 * The entries that base[] names, and those of the tail.
 */
static bool
image_entries(NvmIndexVerify *verify, uint32 blkno, CheckImage *image)
{
	const NvmIndexPage *header = image->header;
	const uint16 *base = (const uint16 *) (image->data + NVM_INDEX_HEADER_SIZE);
	uint32		ntail = NVM_INDEX_NTAIL(nvm_index_tail_of(header, verify->marks));
	uint32		off = NVM_INDEX_UPPER(nvm_index_tail_of(header, verify->marks));
	uint32		settled = NVM_INDEX_SETTLED(header->commit);

	for (uint32 i = 0; i < ntail; i++)
	{
		uint32		space = image_entry(image, off, off, header->base_upper);

		if ((i == ntail - NVM_INDEX_NTAIL(settled)) != (off == NVM_INDEX_UPPER(settled)))
		{
			verify->report(verify, blkno, 0, "%u settled entries of the tail, from byte %u, which is not where the tail entry %u begins",
						   NVM_INDEX_NTAIL(settled), NVM_INDEX_UPPER(settled), ntail - i);
			return false;
		}

		if (space == 0)
		{
			verify->report(verify, blkno, 0, "tail entry at byte %u is not whole", off);
			return false;
		}
		off += space;
	}
	if (off != header->base_upper)
	{
		verify->report(verify, blkno, 0, "tail ends at byte %u, the base begins at %u",
					   off, header->base_upper);
		return false;
	}
	/* in the order of base[] and without gaps, as nvm_index_form leaves them */
	for (uint32 i = 0; i < header->nbase; i++)
	{
		uint32		space;

		if (NVM_INDEX_OFFSET(base[i]) != off)
		{
			verify->report(verify, blkno, i + 1, "entry of the base is at byte %u instead of %u",
						   NVM_INDEX_OFFSET(base[i]), off);
			return false;
		}
		space = image_entry(image, off, header->base_upper, NVM_INDEX_PAGE_SIZE);
		if (space == 0)
		{
			verify->report(verify, blkno, i + 1, "entry of the base at byte %u is not whole", off);
			return false;
		}
		off += space;
	}
	if (off != NVM_INDEX_PAGE_SIZE)
	{
		verify->report(verify, blkno, 0, "%u entries of the base end at byte %u of %u",
					   header->nbase, off, NVM_INDEX_PAGE_SIZE);
		return false;
	}
	return true;
}

/*
 * order[], where it means something: each entry once.
 */
static bool
image_order(NvmIndexVerify *verify, uint32 blkno, CheckImage *image)
{
	const NvmIndexPage *header = image->header;
	const uint16 *order = (const uint16 *) (image->data + NVM_INDEX_HEADER_SIZE) + header->nbase;
	uint32		ntail = NVM_INDEX_NTAIL(nvm_index_tail_of(header, verify->marks));
	uint32		n = header->nbase + ntail;

	if (ntail == 0 || verify->marks == 0 || header->order_inc != verify->marks)
		return true;
	if (header->norder != n)
	{
		verify->report(verify, blkno, 0, "%u entries in order, but there are %u",
					   header->norder, n);
		return false;
	}
	for (uint32 i = 0; i < n; i++)
	{
		uint32		off = NVM_INDEX_OFFSET(order[i]);

		if (!image_begins(image, off))
		{
			verify->report(verify, blkno, i + 1, "no entry at byte %u, or it is there twice", off);
			return false;
		}
		image->begins[off / 64] &= ~(1 << (off / 8 % 8));
	}
	return true;
}

bool
nvm_verify_index_image(NvmIndexVerify *verify, uint32 blkno, const char *copy, uint64 offset)
{
	CheckImage	image;
	const NvmIndexPage *header = (const NvmIndexPage *) copy;
	uint32		settled;
	uint32		upper;
	uint32		ntail;
	uint32		nwords;

	image.data = copy;
	image.header = header;
	memset(image.begins, 0, sizeof(image.begins));
	if (header->magic != NVM_INDEX_MAGIC || header->dir != verify->dir ||
		header->blkno != blkno)
	{
		verify->report(verify, blkno, 0, "page says that it is block %u of storage %u, magic number %08x",
					   header->blkno, header->dir, header->magic);
		return false;
	}
	if (header->check != nvm_index_check_at(header->dir, header->blkno, offset))
		verify->report(verify, blkno, 0, "wrong checksum in the page's header");
	if ((header->flags & ~CHECK_KNOWN_FLAGS) != 0)
		verify->report(verify, blkno, 0, "unknown flags %04x", header->flags);
	if (((header->flags & NVM_INDEX_LEAF) != 0) != (header->level == 0))
		verify->report(verify, blkno, 0, "level %u does not agree with flags %04x",
					   header->level, header->flags);

	settled = NVM_INDEX_SETTLED(header->commit);
	upper = NVM_INDEX_UPPER(nvm_index_tail_of(header, verify->marks));
	ntail = NVM_INDEX_NTAIL(nvm_index_tail_of(header, verify->marks));
	nwords = header->nbase;
	if (ntail > 0)
		nwords = 2 * nwords + ntail;
	if (upper % 8 != 0 || header->base_upper % 8 != 0 ||
		NVM_INDEX_HEADER_SIZE + nwords * sizeof(uint16) > upper ||
		upper > header->base_upper || header->base_upper > NVM_INDEX_PAGE_SIZE ||
		NVM_INDEX_UPPER(settled) < upper || NVM_INDEX_UPPER(settled) > header->base_upper ||
		NVM_INDEX_NTAIL(settled) > ntail ||
		(NVM_INDEX_NTAIL(settled) == 0) != (NVM_INDEX_UPPER(settled) == header->base_upper))
	{
		verify->report(verify, blkno, 0, "bounds do not fit: %u entries, %u more, %u, %u",
					   header->nbase, ntail, upper, header->base_upper);
		return false;
	}
	if (header->right != NVM_INDEX_NONE && header->nbase == 0)
	{
		verify->report(verify, blkno, 0, "page has a right sibling, and no high key");
		return false;
	}
	return image_entries(verify, blkno, &image) && image_order(verify, blkno, &image);
}

void
nvm_verify_index_meta(NvmIndexVerify *verify, const NvmIndexMeta *meta, uint64 offset)
{
	if (meta->magic != NVM_INDEX_META_MAGIC || meta->dir != verify->dir ||
		meta->check != nvm_index_meta_check_at(meta, offset))
		verify->report(verify, 0, 0, "meta page is not one of this index, or its checksum is wrong");
	if (meta->version != NVM_INDEX_VERSION)
		verify->report(verify, 0, 0, "meta page has version %u", meta->version);
	if ((meta->flags & ~CHECK_KNOWN_META_FLAGS) != 0)
		verify->report(verify, 0, 0, "unknown flags %08x in the meta page", meta->flags);
	if (meta->reserved != 0)
		verify->report(verify, 0, 0, "reserved bytes of the meta page are not zero");
	for (int i = 0; i < (int) sizeof(meta->reserved2); i++)
	{
		if (meta->reserved2[i] == 0)
			continue;
		verify->report(verify, 0, 0, "reserved bytes of the meta page are not zero");
		break;
	}
}

/* ---- the tree ---- */

void
nvm_verify_index_links(NvmIndexVerify *verify, const NvmIndexPage *page,
					   uint32 blkno, uint32 level, uint32 left)
{
	if (page->level != level)
		verify->report(verify, blkno, 0, "page is of level %u, reached on level %u",
					   page->level, level);
	if (page->left != left)
		verify->report(verify, blkno, 0, "left link leads to block %u, the page before is %u",
					   page->left, left);
	if ((page->flags & NVM_INDEX_LIVE) == 0)
		verify->report(verify, blkno, 0, "page of the tree is not marked as live");
	if ((page->flags & NVM_INDEX_INCOMPLETE) != 0 && page->right == NVM_INDEX_NONE)
		verify->report(verify, blkno, 0, "split is incomplete, but there is no page to the right");
	if ((page->flags & NVM_INDEX_DELETED) != 0)
		verify->report(verify, blkno, 0, "deleted page is still linked");
}

void
nvm_verify_index_unreached(NvmIndexVerify *verify, const NvmIndexPage *page,
						   uint32 blkno, uint64 offset, uint32 incarnation)
{
	if (page->magic == 0)
		return;					/* never used */
	if (page->magic != NVM_INDEX_MAGIC || page->dir != verify->dir ||
		page->blkno != blkno || page->check != nvm_index_check_at(page->dir, page->blkno, offset))
		verify->report(verify, blkno, 0, "block is not one of this index, or its checksum is wrong");
	else if ((page->flags & NVM_INDEX_LIVE) != 0 &&
			 (page->flags & NVM_INDEX_DELETED) == 0)
		verify->report(verify, blkno, 0, "page is live, but nothing leads to it");
	else if ((page->flags & NVM_INDEX_LIVE) == 0 && page->safexid == incarnation)
		verify->report(verify, blkno, 0, "block was taken in this run of the server, and nothing leads to it");
}
