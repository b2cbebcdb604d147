/*-------------------------------------------------------------------------
 *
 * analyze_scan.c
 *	  The scan of ANALYZE: all versions of the sampled blocks, counted as
 *	  live or dead by the rules of heap's.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "am/nvm_am.h"
#include "am/nvm_scan.h"
#include "compat/nvm_compat_am.h"
#include "pgstat.h"
#include "row/nvm_relation.h"
#include "row/nvm_tuple_slot.h"
#include "row/nvm_visibility.h"
#include "storage/bufmgr.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

/*
 * ANALYZE is perhaps about to read a table of nblocks blocks.
 *
 * It prefetches the blocks it has chosen from the main fork, which in our
 * case is empty: harmless in the first gigabyte, an ERROR beyond.  It asks
 * for the table's size just before it looks at how many blocks to prefetch.
 * By then it has a GUC nesting level of its own, so a setting made now ends
 * with it.  If track_activities is off, we cannot tell whether this is
 * ANALYZE.  Then the setting lasts until the transaction ends, and only slows
 * other tables' maintenance.
 */
void
nvm_analyze_size_asked(BlockNumber nblocks)
{
	if (!NVM_ANALYZE_PREFETCHES || nblocks <= RELSEG_SIZE ||
		maintenance_io_concurrency == 0 || IsInParallelMode() ||
		!IsTransactionState())
		return;
	if (pgstat_track_activities && MyBEEntry != NULL &&
		MyBEEntry->st_progress_command != PROGRESS_COMMAND_ANALYZE)
		return;

	(void) set_config_option("maintenance_io_concurrency", "0", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

bool
nvm_scan_analyze_next_block(TableScanDesc sscan, NVM_ANALYZE_BLOCK_ARGS)
{
	NvmScanDesc scan = (NvmScanDesc) sscan;
	BlockNumber blk = NVM_ANALYZE_BLOCK;

	if (blk == InvalidBlockNumber)
		return false;
	Assert(blk < nvm_rel_nblocks(scan->state));

	if (scan->vistest == NULL)
		scan->vistest = GlobalVisTestFor(sscan->rs_rd);
	nvm_scan_enter_block(scan, blk);
	return true;
}

bool
nvm_scan_analyze_next_tuple(TableScanDesc sscan, TransactionId OldestXmin,
							double *liverows, double *deadrows,
							TupleTableSlot *slot)
{
	NvmScanDesc scan = (NvmScanDesc) sscan;
	uint32		cell;

	while ((cell = nvm_scan_next_cell(scan)) != 0)
	{
		NvmVersion *v = nvm_scan_version(scan, cell);
		TransactionId xid;
		uint64		begin;
		bool		sample_it = false;

		if (!nvm_scan_is_area(scan, v, &begin))
			continue;
		switch (nvm_version_vacuum_state(v, scan->vistest, &xid))
		{
			case NVM_VAC_LIVE:
				sample_it = true;
				break;

			case NVM_VAC_DEAD:
			case NVM_VAC_RECENTLY_DEAD:
			case NVM_VAC_DEAD_ROOT:
				/* what VACUUM has to do with */
				*deadrows += 1;
				break;

			case NVM_VAC_INSERT_IN_PROGRESS:
				/* another transaction reports its rows when it ends */
				sample_it = TransactionIdIsCurrentTransactionId(xid);
				break;

			case NVM_VAC_DELETE_IN_PROGRESS:
				/* and its deletions; ours have happened */
				if (TransactionIdIsCurrentTransactionId(xid))
					*deadrows += 1;
				else
					sample_it = true;
				break;

			case NVM_VAC_STUB:
			case NVM_VAC_RETIRED:
			case NVM_VAC_FREE:
				break;
		}

		if (sample_it)
		{
			*liverows += 1;
			nvm_tts_set(slot, scan->state, scan->relid, v, scan->blk, cell);
			return true;
		}
	}

	ExecClearTuple(slot);
	return false;
}
