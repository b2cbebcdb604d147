/*-------------------------------------------------------------------------
 *
 * media_block.h
 *	  On-media layout of a table block and of a row version.
 *
 * A block is one pool unit of 8 kB, cut into 256 cells of 32 bytes.  A
 * version occupies a run of cells and never moves; the offset number of its
 * TID is the number of its first cell, so a TID is an address.  Cells 0..2
 * hold the block header.
 *
 * Chains.  All versions of a row form a chain from the root, the row's first
 * version, to the newest.  Index entries hold the root's TID.  When the
 * versions at the old end are dead to everybody they are unlinked.  The root
 * remains as a stub, since index entries still lead to it.
 *
 *	 index -> root --next--> version --next--> newest version
 *			   ^---link------/  ^-----link-----/
 *			   \-----link (newest, a hint)---->
 *
 * When does a version exist?
 *	1. Its cell's bit is set in the block's starts bitmap.
 *	2. begin is not 0 and not RETIRED, DEAD or STUB.
 *	3. begin's stamp is decided committed, or is that of a running transaction
 *	   of this incarnation (then for that transaction's eyes alone).
 * next, end, link and begin are stored in this order, begin last, and lie in
 * this order in one cache line, so that nothing torn can show a begin stamp
 * with a wrong length.  The rest of the version is durable before its begin stamp is
 * decided.
 *
 * Invariant of free cells: within one incarnation (the block's alloc_inc) the
 * word where a version's begin would lie is durably zero in each cell that
 * belongs to no area.  So a starts bit that reaches the media before its
 * version shows "free".  The first allocation in a block in a later
 * incarnation re-establishes this ("sanitize", row/README.md).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef MEDIA_BLOCK_H
#define MEDIA_BLOCK_H

#include <stdint.h>

#define NVM_BLOCK_MAGIC			0x4B42564Eu /* "NVBK" */
#define NVM_CELL_SIZE			32
#define NVM_CELLS				256
#define NVM_FIRST_CELL			3
#define NVM_BLOCK_CELLS			(NVM_CELLS - NVM_FIRST_CELL)	/* 253 */

/*
 * NvmBlock.flags
 *
 * SUSPECT: a crashed incarnation may have handed out cells of this block.
 * Nothing durable remains of them, but a WAL-logged index may have kept
 * entries that lead to them.  Free cells are not used for roots until VACUUM
 * has removed such entries from every index.
 */
#define NVM_BLOCK_SUSPECT		0x0001

typedef struct NvmBlock
{
	uint32_t	magic;
	uint32_t	dir;			/* owning directory entry */
	uint32_t	blkno;			/* logical block number: identity of the block */
	uint32_t	alloc_inc;		/* incarnation in which cells were last handed
								 * out, or one that ended cleanly since */
	uint16_t	flags;
	uint16_t	ended;			/* volatile hint: versions ended since last
								 * pruned */
	uint32_t	check;			/* CRC-32C over magic, dir, blkno and uuid */
	uint8_t		retired[8];		/* volatile hints: cells of RETIRED areas, 0
								 * none; the last: there may be more */
	uint64_t	starts[4];		/* bit per cell: an area starts here */
	uint64_t	used[4];		/* bit per cell: belongs to an area.  A cache
								 * of starts + ncells, rebuilt by sanitize */
} NvmBlock;

#define NVM_BLOCK_HEADER_SIZE	96

/*
 * References to another version of the same relation, and 16 bits beside
 */
#define NVM_REF_MAKE(blk, off, hi) \
	(((uint64_t) (uint16_t) (hi) << 48) | ((uint64_t) (uint32_t) (blk) << 16) | (uint16_t) (off))
#define NVM_REF_BLOCK(r)		((uint32_t) (((r) >> 16) & 0xFFFFFFFF))
#define NVM_REF_OFFSET(r)		((uint16_t) ((r) & 0xFFFF))
#define NVM_REF_HI(r)			((uint16_t) ((r) >> 48))
#define NVM_REF_TID(r)			((r) & UINT64_C(0x0000FFFFFFFFFFFF))
#define NVM_REF_IS_VALID(r)		(NVM_REF_OFFSET(r) != 0)

/* the high 16 bits of NvmVersion.next */
#define NVM_NEXT_CELLS(hi)		((hi) & 0x01FF) /* cells of the area, 1..253 */
#define NVM_NEXT_OTHER_ROOT		0x0200	/* next is a row of its own: an
										 * indexed column changed; index
										 * readers stop here */
#define NVM_NEXT_MOVED			0x0400	/* row moved to another partition */
#define NVM_NEXT_KEYS			0x0800	/* it was ended by a change of key
										 * columns or a delete, which excludes
										 * FOR KEY SHARE; beside end, because
										 * it must outlive a restart with a
										 * prepared transaction */
#define NVM_NEXT_SKIPS			0x1000	/* versions between were unlinked:
										 * next does not begin where this one
										 * ends */

/* NvmVersion.flags: immutable once begin is set, covered by crc */
#define NVM_VF_ROOT				0x0001	/* index entries may lead here */
#define NVM_VF_NOINDEX			0x0002	/* no index existed when it was
										 * written */
#define NVM_VF_LARGE			0x0004	/* has attributes outside
										 * (HEAP_HASEXTERNAL) */

/*
 * The lock word of a row lives in its root: xid or multixact of the lockers in
 * the low 32 bits, low 16 bits of the incarnation, mode bits.  It means
 * nothing in another incarnation.  It is read and written only under the
 * root's row lock.  A stub keeps it in `end`.
 */
#define NVM_LOCK_XID(l)			((uint32_t) ((l) & 0xFFFFFFFF))
#define NVM_LOCK_INC(l)			((uint16_t) (((l) >> 32) & 0xFFFF))
#define NVM_LOCK_BITS(l)		((uint16_t) ((l) >> 48))
#define NVM_LOCK_MAKE(xid, inc, bits) \
	(((uint64_t) (uint16_t) (bits) << 48) | ((uint64_t) (uint16_t) (inc) << 32) | (uint32_t) (xid))
#define NVM_LOCK_MULTI			0x0010	/* xid is a multixact of lockers only */
#define NVM_LOCK_MODE_MASK		0x0007	/* LockTupleMode + 1 of a single
										 * locker, or the strongest of a multi */

/*
 * The tuple as PostgreSQL's heap_form_tuple makes it.  The fields for
 * transaction ids are used as follows: xmin, xmax and cid mean something only
 * in the incarnation that wrote them (the stamps tell which).  Its layout is
 * HeapTupleHeaderData's; row/ asserts that.
 */
typedef struct NvmTupleHeader
{
	uint32_t	xmin;			/* (sub)transaction that made the version */
	uint32_t	xend;			/* (sub)transaction that ended it; valid if
								 * end is */
	uint32_t	cid;			/* command id, or combo command id, of both */
	uint16_t	root_blk_hi;	/* TID of the root; its own when it is the
								 * root */
	uint16_t	root_blk_lo;
	uint16_t	root_offset;
	uint16_t	infomask2;
	uint16_t	infomask;
	uint8_t		hoff;
	uint8_t		bits[1];		/* null bitmap, then the data at hoff */
} NvmTupleHeader;

/*
 * A row version.  The first 32 bytes alone remain of a stub.
 */
typedef struct NvmVersion
{
	uint64_t	next;			/* newer version; cells and NVM_NEXT_* in hi */
	uint64_t	end;			/* stamp of the transaction that ended it, or
								 * 0 */
	uint64_t	link;			/* root: newest version, a hint, valid if hi
								 * is the low 16 bits of the incarnation;
								 * offset 0: its block number is the token of
								 * a speculative insertion. Otherwise: older
								 * version, hi likewise */
	uint64_t	begin;			/* stamp of the one that made it; stored last */
	/* -- second cell -- */
	uint64_t	lock;			/* root: the row's lock word */
	uint16_t	len;			/* bytes of the tuple */
	uint16_t	flags;			/* NVM_VF_* */
	uint32_t	crc;			/* CRC-32C over len, flags, and of the tuple
								 * what never changes: see row/README.md */
	NvmTupleHeader tuple;
} NvmVersion;

#define NVM_VERSION_HEADER		48	/* offsetof(NvmVersion, tuple) */
#define NVM_MAX_AREA			(NVM_BLOCK_CELLS * NVM_CELL_SIZE)	/* 8096 */
#define NVM_MAX_TUPLE			(NVM_MAX_AREA - NVM_VERSION_HEADER) /* 8048 */

#endif							/* MEDIA_BLOCK_H */
