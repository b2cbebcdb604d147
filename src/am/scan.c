/*-------------------------------------------------------------------------
 *
 * scan.c
 *	  Sequential scans: serial, parallel, backward, and over a range of TIDs.
 *
 * A sequential scan walks versions, in the order of block and cell, which is
 * the order in which rows were appended.  It takes no lock and pins nothing.
 * It reads the starts bitmap of a block once, when it arrives there.
 * Versions that appear later belong to transactions that its snapshot does
 * not see.  Areas that were retired when the scan arrived may be gone since:
 * see nvm_scan_is_area.  The extent of the scan is the number of blocks at
 * its start.  Blocks that VACUUM has found barren are passed over
 * (storage/README.md, "Barren blocks").
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/skey.h"
#include "am/nvm_am.h"
#include "am/nvm_scan.h"
#include "btree/nvm_btree.h"
#include "compat/nvm_compat_am.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_allvisible.h"
#include "pool/nvm_sound.h"
#include "row/nvm_relation.h"
#include "row/nvm_tuple_slot.h"
#include "row/nvm_visibility.h"
#include "storage/predicate.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_snapshot.h"

static void
nvm_scan_init(NvmScanDesc scan, struct ScanKeyData *key)
{
	TableScanDesc base = &scan->base;

	scan->nblocks = nvm_rel_nblocks(scan->state);
	scan->first_block = 0;
	scan->num_blocks = scan->nblocks;
	scan->inited = false;
	scan->blk = InvalidBlockNumber;
	scan->cell = 0;
	scan->block = NULL;
	memset(scan->starts, 0, sizeof(scan->starts));
	scan->nhits = scan->next_hit = 0;

	if (key != NULL && base->rs_nkeys > 0)
		memcpy(base->rs_key, key, base->rs_nkeys * sizeof(ScanKeyData));

	if (base->rs_flags & SO_TYPE_SEQSCAN)
		pgstat_count_heap_scan(base->rs_rd);
}

TableScanDesc
nvm_scan_begin(Relation rel, Snapshot snapshot, int nkeys,
			   struct ScanKeyData *key, ParallelTableScanDesc pscan,
			   uint32 flags)
{
	NvmRelState *state = nvm_rel_reader(rel);
	NvmScanDesc scan;

	nvm_snapshot_use(snapshot);

	/* keep the relcache entry while the descriptor points to it */
	RelationIncrementReferenceCount(rel);

	scan = (NvmScanDesc) palloc0(sizeof(NvmScanDescData));
	scan->base.rs_rd = rel;
	scan->base.rs_snapshot = snapshot;
	scan->base.rs_nkeys = nkeys;
	scan->base.rs_flags = flags;
	scan->base.rs_parallel = pscan;
	scan->state = state;
	scan->relid = RelationGetRelid(rel);
	scan->plain_mvcc = snapshot != NULL && snapshot->snapshot_type == SNAPSHOT_MVCC;
	if (pscan != NULL)
		scan->worker = palloc(sizeof(ParallelBlockTableScanWorkerData));
	if (nkeys > 0)
		scan->base.rs_key = (ScanKey) palloc(sizeof(ScanKeyData) * nkeys);

	/* before the blocks are counted; others lock what they find, row by row */
	if (snapshot != NULL &&
		(flags & (SO_TYPE_SEQSCAN | SO_TYPE_SAMPLESCAN | SO_TYPE_TIDRANGESCAN)) != 0)
		PredicateLockRelation(rel, snapshot);

	nvm_scan_init(scan, key);
	if (flags & SO_TYPE_BITMAPSCAN)
		nvm_bitmap_scan_begin(scan);
	if (flags & SO_TYPE_ANALYZE)
		nvm_index_note_relpages(scan->relid);
	return &scan->base;
}

void
nvm_scan_rescan(TableScanDesc sscan, struct ScanKeyData *key, bool set_params,
				bool allow_strat, bool allow_sync, bool allow_pagemode)
{
	NvmScanDesc scan = (NvmScanDesc) sscan;

	/* strategies, synchronization and page mode mean nothing here */
	nvm_scan_init(scan, key);
}

void
nvm_scan_end(TableScanDesc sscan)
{
	NvmScanDesc scan = (NvmScanDesc) sscan;

	RelationDecrementReferenceCount(sscan->rs_rd);

	if (sscan->rs_key != NULL)
		pfree(sscan->rs_key);
	if (scan->worker != NULL)
		pfree(scan->worker);
	if (scan->hits != NULL)
		pfree(scan->hits);
	if (sscan->rs_flags & SO_TEMP_SNAPSHOT)
		UnregisterSnapshot(sscan->rs_snapshot);
	pfree(scan);
}

/*
 * Restrict the scan to num blocks from `first` on; before it has begun.
 */
void
nvm_scan_set_limits(NvmScanDesc scan, uint32 first, uint32 num)
{
	Assert(!scan->inited);
	Assert(scan->base.rs_parallel == NULL);

	if (first >= scan->nblocks)
		num = 0;
	scan->first_block = first;
	scan->num_blocks = Min(num, scan->nblocks - Min(first, scan->nblocks));
}

/*
 * Stand before the first cell of a block.
 */
void
nvm_scan_enter_block(NvmScanDesc scan, uint32 blk)
{
	NvmBlock   *block = nvm_block(scan->state, blk);

	scan->blk = blk;
	scan->cell = 0;
	nvm_count_block(scan->base.rs_rd);
	nvm_read_ahead(block);
	if (unlikely(!nvm_unit_is_sound(block)))
		nvm_block_prove_slow(scan->base.rs_rd, scan->state, blk, 0);
	if (unlikely(block->magic != NVM_BLOCK_MAGIC))
	{
		/* handed out, and not written by the time of the crash, or yet */
		scan->block = NULL;
		memset(scan->starts, 0, sizeof(scan->starts));
		return;
	}
	scan->block = block;
	for (int i = 0; i < (int) lengthof(scan->starts); i++)
		scan->starts[i] = nvm_load(&block->starts[i]);

	/* bring in what the scan will look at next while it works on this */
	__builtin_prefetch((char *) block + NVM_UNIT_SIZE);
	__builtin_prefetch((char *) block + NVM_UNIT_SIZE + NVM_LINE_SIZE);
}

/*
 * The number of the next block of the scan; false at its end.
 */
static bool
scan_step(NvmScanDesc scan, ScanDirection direction, uint32 *blk)
{
	TableScanDesc base = &scan->base;

	if (base->rs_parallel != NULL)
	{
		ParallelBlockTableScanDesc pbscan = (ParallelBlockTableScanDesc) base->rs_parallel;

		Assert(ScanDirectionIsForward(direction));
		if (!scan->inited)
			table_block_parallelscan_startblock_init(base->rs_rd, scan->worker, pbscan);
		*blk = table_block_parallelscan_nextpage(base->rs_rd, scan->worker, pbscan);

		/* the leader counted blocks before us, with the same storage */
		return *blk != InvalidBlockNumber && *blk < nvm_rel_nblocks(scan->state);
	}
	if (scan->num_blocks == 0)
		return false;
	if (ScanDirectionIsForward(direction))
	{
		*blk = scan->inited ? scan->blk + 1 : scan->first_block;
		return *blk < scan->first_block + scan->num_blocks;
	}
	if (scan->inited && scan->blk == scan->first_block)
		return false;
	*blk = scan->inited ? scan->blk - 1 : scan->first_block + scan->num_blocks - 1;
	return true;
}

/*
 * Go to the next block of the scan; false at the end, after which the scan
 * may begin again.  pass_barren: pass over blocks in which an MVCC snapshot
 * sees nothing.
 */
bool
nvm_scan_next_block(NvmScanDesc scan, ScanDirection direction, bool pass_barren)
{
	uint32		blk;

	while (scan_step(scan, direction, &blk))
	{
		CHECK_FOR_INTERRUPTS();
		scan->inited = true;
		scan->blk = blk;
		if (pass_barren && nvm_barren(scan->state, blk))
			continue;
		nvm_scan_enter_block(scan, blk);
		if (ScanDirectionIsBackward(direction))
			scan->cell = NVM_CELLS;
		return true;
	}
	scan->inited = false;
	scan->block = NULL;
	scan->cell = 0;
	memset(scan->starts, 0, sizeof(scan->starts));
	return false;
}

/*
 * Blocks that lie behind the scan, for progress reports.
 */
BlockNumber
nvm_scan_blocks_done(NvmScanDesc scan)
{
	uint32		start;
	uint32		total;

	if (!scan->inited)
		return 0;
	if (scan->base.rs_parallel != NULL)
	{
		ParallelBlockTableScanDesc pbscan =
		(ParallelBlockTableScanDesc) scan->base.rs_parallel;

		start = pbscan->phs_startblock;
		total = pbscan->phs_nblocks;
	}
	else
	{
		start = scan->first_block;
		total = scan->nblocks;
	}
	return scan->blk >= start ? scan->blk - start : total - start + scan->blk;
}

/*
 * Does the tuple in the slot satisfy the scan keys?
 */
static bool
nvm_scan_keys_match(TableScanDesc sscan, TupleTableSlot *slot)
{
	for (int i = 0; i < sscan->rs_nkeys; i++)
	{
		ScanKey		key = &sscan->rs_key[i];
		bool		isnull;
		Datum		value;

		if (key->sk_flags & SK_ISNULL)
			return false;
		value = slot_getattr(slot, key->sk_attno, &isnull);
		if (isnull ||
			!DatumGetBool(FunctionCall2Coll(&key->sk_func, key->sk_collation,
											value, key->sk_argument)))
			return false;
	}
	return true;
}

/*
 * nvm_scan_visible for a backend that has published its snapshot.  The bit is
 * looked at before begin as well.  Areas are freed and cut anew before our
 * eyes, but no area that we found whole on our way is freed once more before
 * we leave.
 */
bool
nvm_scan_visible_published(NvmScanDesc scan, NvmVersion *v)
{
	uint32		cell = ((char *) v - (char *) scan->block) / NVM_CELL_SIZE;
	uint64		begin;
	bool		visible;

	nvm_read_enter();
	visible = ((nvm_load(&scan->block->starts[cell / 64]) >> (cell % 64)) & 1) != 0 &&
		nvm_scan_is_area(scan, v, &begin) && nvm_begin_is_version(begin) &&
		nvm_version_visible(scan->base.rs_rd, v, scan->base.rs_snapshot);
	nvm_read_leave();
	return visible;
}

/*
 * Find the next version that the snapshot sees, and store it in the slot.
 */
static pg_attribute_always_inline bool
nvm_scan_getnext(NvmScanDesc scan, ScanDirection direction, TupleTableSlot *slot)
{
	for (;;)
	{
		uint32		cell;
		NvmVersion *v;

		/* before the first block the bitmap is empty, which leads us there */
		if (likely(ScanDirectionIsForward(direction)))
			cell = nvm_scan_next_cell(scan);
		else
			cell = nvm_scan_prev_cell(scan);

		if (cell == 0)
		{
			if (!nvm_scan_next_block(scan, direction, scan->plain_mvcc))
			{
				ExecClearTuple(slot);
				return false;
			}
			continue;
		}

		v = nvm_scan_version(scan, cell);
		if (!nvm_scan_visible(scan, v))
			continue;

		nvm_tts_set(slot, scan->state, scan->relid, v, scan->blk, cell);
		if (unlikely(scan->base.rs_nkeys > 0) &&
			!nvm_scan_keys_match(&scan->base, slot))
			continue;
		return true;
	}
}

bool
nvm_scan_getnextslot(TableScanDesc sscan, ScanDirection direction,
					 TupleTableSlot *slot)
{
	NvmScanDesc scan = (NvmScanDesc) sscan;

	if (!nvm_scan_getnext(scan, direction, slot))
		return false;

	pgstat_count_heap_getnext(sscan->rs_rd);
	return true;
}

/*
 * Restrict the scan to TIDs from mintid to maxtid, both inclusive.
 */
void
nvm_scan_set_tidrange(TableScanDesc sscan, ItemPointer mintid, ItemPointer maxtid)
{
	NvmScanDesc scan = (NvmScanDesc) sscan;
	uint32		minblk = ItemPointerGetBlockNumberNoCheck(mintid);
	uint32		maxblk = ItemPointerGetBlockNumberNoCheck(maxtid);

	if (ItemPointerCompare(mintid, maxtid) > 0 || minblk >= scan->nblocks)
		nvm_scan_set_limits(scan, 0, 0);
	else
	{
		maxblk = Min(maxblk, scan->nblocks - 1);
		nvm_scan_set_limits(scan, minblk, maxblk - minblk + 1);
	}
	ItemPointerCopy(mintid, NvmScanMinTid(sscan));
	ItemPointerCopy(maxtid, NvmScanMaxTid(sscan));
}

bool
nvm_scan_getnextslot_tidrange(TableScanDesc sscan, ScanDirection direction,
							  TupleTableSlot *slot)
{
	NvmScanDesc scan = (NvmScanDesc) sscan;

	for (;;)
	{
		bool		below;
		bool		above;

		if (!nvm_scan_getnext(scan, direction, slot))
			return false;

		/* the blocks are right; the first and the last hold others, too */
		below = ItemPointerCompare(&slot->tts_tid, NvmScanMinTid(sscan)) < 0;
		above = ItemPointerCompare(&slot->tts_tid, NvmScanMaxTid(sscan)) > 0;
		if (!below && !above)
			break;
		if ((below && ScanDirectionIsBackward(direction)) ||
			(above && ScanDirectionIsForward(direction)))
		{
			ExecClearTuple(slot);
			return false;
		}
	}

	pgstat_count_heap_getnext(sscan->rs_rd);
	return true;
}
