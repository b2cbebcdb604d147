/*-------------------------------------------------------------------------
 *
 * nvm_scan.h
 *	  Scan descriptor of nvm tables, shared by the files that walk blocks:
 *	  scan.c, sample.c, analyze_scan.c, bitmapscan.c, indexbuild.c.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_SCAN_H
#define NVM_SCAN_H

#include "access/relscan.h"
#include "pgstat.h"
#include "pool/nvm_pool.h"
#include "row/nvm_visibility.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_snapshot.h"
#include "wbl/nvm_wbl.h"

/* a version that a bitmap scan is going to return */
typedef struct NvmScanHit
{
	NvmVersion *v;
	ItemPointerData tid;
} NvmScanHit;

typedef struct NvmScanDescData
{
	TableScanDescData base;
	NvmRelState *state;
	Oid			relid;
	bool		plain_mvcc;		/* an MVCC snapshot: the fast path may be used */
	uint32		nblocks;		/* blocks at the start of the scan */
	uint32		first_block;	/* range that is scanned */
	uint32		num_blocks;
	ParallelBlockTableScanWorkerData *worker;	/* parallel scans only */

	/* where the scan is; blk and cell mean something if inited */
	bool		inited;
	uint32		blk;
	uint32		cell;			/* last one looked at */
	NvmBlock   *block;			/* NULL: not initialised, holds nothing */
	uint64		starts[NVM_CELLS / 64]; /* of the block, as read on arrival */

	/* ANALYZE */
	struct GlobalVisState *vistest;

	/* bitmap scans: what is visible of the current page of the bitmap */
	NvmScanHit *hits;
	int			nhits;
	int			next_hit;
} NvmScanDescData;

typedef struct NvmScanDescData *NvmScanDesc;

/*
 * pg_statio_*: a block that is looked at counts as one found in a buffer.
 */
static inline void
nvm_count_block(Relation rel)
{
	pgstat_count_buffer_read(rel);
	pgstat_count_buffer_hit(rel);
}

extern void nvm_scan_enter_block(NvmScanDesc scan, uint32 blk);
extern bool nvm_scan_next_block(NvmScanDesc scan, ScanDirection direction,
								bool pass_barren);
extern void nvm_scan_set_limits(NvmScanDesc scan, uint32 first, uint32 num);
extern bool nvm_scan_visible_published(NvmScanDesc scan, NvmVersion *v);
extern BlockNumber nvm_scan_blocks_done(NvmScanDesc scan);

/* next start in the current block, or 0 */
static inline uint32
nvm_scan_next_cell(NvmScanDesc scan)
{
	uint32		cell = scan->cell + 1;

	while (cell < NVM_CELLS)
	{
		uint64		word = scan->starts[cell / 64] >> (cell % 64);

		if (word != 0)
			return scan->cell = cell + __builtin_ctzll(word);
		cell = (cell / 64 + 1) * 64;
	}
	scan->cell = NVM_CELLS;
	return 0;
}

/* previous start in the current block, or 0 */
static inline uint32
nvm_scan_prev_cell(NvmScanDesc scan)
{
	uint32		cell = scan->cell;	/* look below this one */

	while (cell > 0)
	{
		uint32		w = (cell - 1) / 64;
		uint64		word = scan->starts[w];

		if (cell % 64 != 0)
			word &= (UINT64_C(1) << (cell % 64)) - 1;
		if (word != 0)
			return scan->cell = w * 64 + 63 - __builtin_clzll(word);
		cell = w * 64;
	}
	scan->cell = 0;
	return 0;
}

static inline NvmVersion *
nvm_scan_version(NvmScanDesc scan, uint32 cell)
{
	return (NvmVersion *) ((char *) scan->block + cell * NVM_CELL_SIZE);
}

/*
 * Is v, a start of the block as read on arrival, still the start of an area
 * that is not retired?  Retired areas are freed, and their cells handed out
 * anew, while the scan is in the block; its own statement may do so too.  So
 * v may be in the middle of a larger area now.  Therefore: begin first, then
 * the bit.  From then on the area stays, because a later retirement carries
 * an xid that the scan's snapshot holds back.  *begin is what was read.
 */
static inline bool
nvm_scan_is_area(NvmScanDesc scan, NvmVersion *v, uint64 *begin)
{
	uint32		cell = ((char *) v - (char *) scan->block) / NVM_CELL_SIZE;

	*begin = nvm_load(&v->begin);
	return *begin != 0 && !nvm_begin_is(*begin, NVM_STAMP_RETIRED) &&
		((nvm_load(&scan->block->starts[cell / 64]) >> (cell % 64)) & 1) != 0;
}

/*
 * Visibility.  Nearly all versions have a begin stamp that every snapshot
 * sees, no end, and no gap anywhere: that is decided on the spot.  Neither
 * durability nor SSI has anything to say about such a version.
 */
static inline bool
nvm_scan_visible(NvmScanDesc scan, NvmVersion *v)
{
	uint64		begin;

	if (unlikely(nvm_reader_published))
		return nvm_scan_visible_published(scan, v);
	if (!nvm_scan_is_area(scan, v, &begin) || !nvm_begin_is_version(begin))
		return false;
	if (likely(scan->plain_mvcc && nvm_load(&v->end) == 0 &&
			   nvm_stamp_is_frozen(begin) &&
			   pg_atomic_read_u32(&NvmWbl->ngaps) == 0))
		return true;
	return nvm_version_visible(scan->base.rs_rd, v, scan->base.rs_snapshot);
}

#endif							/* NVM_SCAN_H */
