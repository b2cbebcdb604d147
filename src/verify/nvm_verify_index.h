/*-------------------------------------------------------------------------
 *
 * nvm_verify_index.h
 *	  What can be wrong with the pages of an index, whatever its keys are.
 *
 * Compiled into the server and into nvm_poolcheck.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_VERIFY_INDEX_H
#define NVM_VERIFY_INDEX_H

#include "media/media_index.h"

/*
 * The header of an entry: PostgreSQL's IndexTupleData, with what its nbtree
 * says in it.  btree/ asserts that it is.
 */
typedef struct NvmIndexEntry
{
	uint16		block_hi;		/* pivots: the downlink */
	uint16		block_lo;
	uint16		offset;			/* NVM_ENTRY_ALT: number of columns, and flags */
	uint16		info;
} NvmIndexEntry;

#define NVM_ENTRY_SIZE(e)		((e)->info & 0x1FFF)
#define NVM_ENTRY_ALT			0x2000	/* in info: pivot or posting list */
#define NVM_ENTRY_POSTING		0x2000	/* in offset */
#define NVM_ENTRY_COLUMNS		0x0FFF	/* in offset */

static inline bool
nvm_entry_is_pivot(const NvmIndexEntry *e)
{
	return (e->info & NVM_ENTRY_ALT) != 0 && (e->offset & NVM_ENTRY_POSTING) == 0;
}

static inline uint32
nvm_entry_downlink(const NvmIndexEntry *e)
{
	return ((uint32) e->block_hi << 16) | e->block_lo;
}

/*
 * The tail of a page that nobody changes, or of a copy.  `marks` are those of
 * this incarnation, or 0.  Without a running tail no entry was appended in it.
 */
static inline uint32
nvm_index_tail_of(const NvmIndexPage *page, uint16 marks)
{
	if (NVM_INDEX_RUNNING(page->commit) != 0 && marks != 0 && page->order_inc == marks)
		return NVM_INDEX_RUNNING(page->commit);
	return NVM_INDEX_SETTLED(page->commit);
}

/* check words for what lies at that offset of the pool */
extern uint32 nvm_index_check_at(uint32 dir, uint32 blkno, uint64 offset);
extern uint32 nvm_index_meta_check_at(const NvmIndexMeta *meta, uint64 offset);

typedef struct NvmIndexVerify NvmIndexVerify;

/* a check of an index; item counts from 1, 0 is the page */
struct NvmIndexVerify
{
	void		(*report) (NvmIndexVerify *verify, uint32 blkno, int item,
						   const char *fmt,...) pg_attribute_printf(4, 5);
	uint32		dir;
	uint16		marks;			/* of the incarnation that runs, or 0 */
};

/* the meta page, at that offset */
extern void nvm_verify_index_meta(NvmIndexVerify *verify, const NvmIndexMeta *meta,
								  uint64 offset);

/* the bytes of a page, in a private copy of what lies at `offset`; false if they
 * make no sense */
extern bool nvm_verify_index_image(NvmIndexVerify *verify, uint32 blkno,
								   const char *copy, uint64 offset);

/* a page beside its neighbours: reached on that level, behind that page */
extern void nvm_verify_index_links(NvmIndexVerify *verify, const NvmIndexPage *page,
								   uint32 blkno, uint32 level, uint32 left);

/* a block that the tree does not reach; incarnation is the one that runs */
extern void nvm_verify_index_unreached(NvmIndexVerify *verify, const NvmIndexPage *page,
									   uint32 blkno, uint64 offset, uint32 incarnation);

#endif							/* NVM_VERIFY_INDEX_H */
