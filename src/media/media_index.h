/*-------------------------------------------------------------------------
 *
 * media_index.h
 *	  On-media layout of the blocks of an index.
 *
 * A block is one pool unit of 8 kB.  Block 0 of the storage is the meta page,
 * all others are NvmIndexPages:
 *
 *	header | base[nbase] | order[] | free | tail entries, newest first | base
 *
 * An entry exists if base[] names it, or if the commit word covers it.  The
 * commit word says where the lowest tail entry begins and how many there are.
 * It says so twice: once for the entries that outlive a crash, and once for
 * those of this incarnation.  The former are all durable before the word is
 * stored.  btree/README.md has the protocol.
 *
 * Offsets of entries are in units of 8 bytes from the start of the block, so
 * that 10 bits suffice; the high bits of an order word are hints.
 *
 * Entries have the layout of PostgreSQL's IndexTupleData (btree/ asserts
 * that), pivot and posting tuples that of its nbtree.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef MEDIA_INDEX_H
#define MEDIA_INDEX_H

#include <stdint.h>

#define NVM_INDEX_MAGIC			0x5849564Eu /* "NVIX" */
#define NVM_INDEX_META_MAGIC	0x4D49564Eu /* "NVIM" */
#define NVM_INDEX_VERSION		1

#define NVM_INDEX_NONE			0	/* as a block number: no sibling, no root */

/* NvmIndexPage.flags */
#define NVM_INDEX_LEAF			0x0001
#define NVM_INDEX_ROOT			0x0002
#define NVM_INDEX_INCOMPLETE	0x0004	/* split: the parent may lack the
										 * downlink of the right sibling */
#define NVM_INDEX_DELETED		0x0008	/* unlinked; reusable beyond safexid */
#define NVM_INDEX_LIVE			0x0010	/* linked into the tree, or was */
#define NVM_INDEX_HAS_DEAD		0x0020	/* hint: some order words are DEAD */

/* words of base[] and order[] */
#define NVM_INDEX_OFFSET(w)		((uint32_t) ((w) & 0x03FF) * 8)
#define NVM_INDEX_WORD(off)		((uint16_t) ((off) / 8))
#define NVM_INDEX_DEAD			0x8000	/* hint: its rows are dead to
										 * everybody */

/*
 * The tail of a page
 *
 *	bits  0..15		upper: where the lowest entry begins, in bytes
 *	bits 16..31		ntail: entries appended since the page was written as a whole
 */
#define NVM_INDEX_TAIL(upper, ntail) \
	((uint32_t) (uint16_t) (upper) | ((uint32_t) (uint16_t) (ntail) << 16))
#define NVM_INDEX_UPPER(t)		((uint32_t) ((t) & 0xFFFF))
#define NVM_INDEX_NTAIL(t)		((uint32_t) (((t) >> 16) & 0xFFFF))

/*
 * Commit word
 *
 *	bits  0..31		the settled tail: durable before it is stored
 *	bits 32..63		the running one, if order_inc is this incarnation, and it is
 *					not zero; volatile.  Never shorter than the settled one
 */
#define NVM_INDEX_COMMIT(settled, running) \
	((uint64_t) (settled) | ((uint64_t) (running) << 32))
#define NVM_INDEX_SETTLED(c)	((uint32_t) (c))
#define NVM_INDEX_RUNNING(c)	((uint32_t) ((c) >> 32))

typedef struct NvmIndexPage
{
	uint32_t	magic;
	uint32_t	dir;			/* owning directory entry */
	uint32_t	blkno;
	uint32_t	check;			/* CRC-32C over magic, dir, blkno and uuid */
	uint64_t	lock;			/* volatile: incarnation, version, lock bit */
	uint64_t	safexid;		/* DELETED: next full xid at that time.  Until
								 * LIVE: the incarnation in which it was
								 * allocated */
	uint32_t	left;			/* siblings */
	uint32_t	right;
	uint16_t	level;			/* 0: leaf */
	uint16_t	flags;
	uint16_t	nbase;			/* entries of the base */
	uint16_t	base_upper;		/* bytes: where the lowest of them begins */
	uint16_t	norder;			/* volatile: words in order[] */
	uint16_t	order_inc;		/* volatile: order[] and the running tail mean
								 * something in this incarnation (low 16 bits) */
	uint32_t	epoch;			/* volatile: raised at each rewrite */
	uint64_t	commit;			/* which tail entries there are */
} NvmIndexPage;

#define NVM_INDEX_HEADER_SIZE	64
#define NVM_INDEX_PAGE_SIZE		8192

typedef struct NvmIndexMeta
{
	uint32_t	magic;
	uint32_t	dir;
	uint32_t	version;
	uint32_t	check;			/* CRC-32C over magic, dir, version, flags and
								 * uuid */
	uint32_t	flags;			/* NVM_INDEX_META_* */
	uint32_t	reserved;		/* zero, checked */
	uint64_t	root;			/* block number, level in the high 32 bits; 0:
								 * the index is empty.  The one word of the
								 * page that changes */
	uint8_t		reserved2[32];	/* zero, checked */
} NvmIndexMeta;

#define NVM_INDEX_META_EQUALIMAGE	0x0001	/* equal keys are equal bytes:
											 * posting lists may be made */
#define NVM_INDEX_META_LEAVES	0x0002	/* inner pages do not outlive a
										 * restart */
#define NVM_INDEX_META_NONE		0x0004	/* no page does */

#define NVM_INDEX_ROOT_MAKE(blkno, level) \
	(((uint64_t) (uint32_t) (level) << 32) | (uint32_t) (blkno))
#define NVM_INDEX_ROOT_BLOCK(r)	((uint32_t) ((r) & 0xFFFFFFFF))
#define NVM_INDEX_ROOT_LEVEL(r)	((uint32_t) ((r) >> 32))

#endif							/* MEDIA_INDEX_H */
