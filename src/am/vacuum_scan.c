/*-------------------------------------------------------------------------
 *
 * vacuum_scan.c
 *	  VACUUM's walk over the blocks of a table.
 *
 * In each block VACUUM prunes the chains of rows, and lists the roots of rows
 * that are wholly dead for the index pass.  It reclaims free space and notes
 * it, counts what is left, and removes row locks of transactions long gone.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/transam.h"
#include "am/nvm_vacuum.h"
#include "compat/nvm_compat_vacuum.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_allvisible.h"
#include "pool/nvm_pool.h"
#include "row/nvm_chain.h"
#include "row/nvm_large.h"
#include "row/nvm_relation.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_space.h"
#include "row/nvm_version.h"
#include "row/nvm_visibility.h"
#include "storage/nvm_allvisible_set.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_snapshot.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_xact.h"

#define MAX_STRAY		65536

/* what was found in one block */
typedef struct VacuumBlock
{
	bool		all_visible;
	int			live;
	int			recently_dead;
	int			missed_dead;
	uint32		retired_cells;	/* will be free soon */
	int			ndead;
	uint16		dead[NVM_CELLS];
} VacuumBlock;

/*
 * Is there nothing to do in the block?  Then all of it is counted.  Lock-free;
 * a version that appears meanwhile is the next VACUUM's.
 */
static bool
vacuum_block_is_quiet(NvmBlock *block, VacuumBlock *found)
{
	uint32		cell;

	memset(found, 0, offsetof(VacuumBlock, dead));
	for (cell = nvm_block_next_start(block, NVM_FIRST_CELL); cell != 0;
		 cell = nvm_block_next_start(block, cell + 1))
	{
		NvmVersion *v = (NvmVersion *) ((char *) block + cell * NVM_CELL_SIZE);
		uint64		begin = nvm_load(&v->begin);

		if (!nvm_begin_is_version(begin) || nvm_load(&v->end) != 0 ||
			!nvm_stamp_is_frozen(begin) || nvm_stamp_in_gap(begin))
			return false;
		if ((v->flags & NVM_VF_ROOT) != 0 && NvmVersionCells(v) > 1 &&
			v->lock != 0)
			return false;
		found->live++;
	}
	found->all_visible = true;
	return true;
}

/*
 * The lock word of a row: forget lockers that are gone.  If a process may ask
 * for the members of a multixact, see to it that they are kept.
 *
 * Caller holds the row lock.
 */
static void
vacuum_lock_word(NvmVacuum *vac, NvmVersion *root)
{
	uint64	   *word = nvm_lock_word(root);
	uint64		lock = *word;
	bool		gone;

	if (lock == 0)
		return;
	if (NVM_LOCK_INC(lock) != (uint16) NvmPool->incarnation)
		gone = true;
	else if ((NVM_LOCK_BITS(lock) & NVM_LOCK_MULTI) != 0)
	{
		gone = MultiXactIdPrecedes(NVM_LOCK_XID(lock), vac->oldest_mxact);
		if (!gone && MultiXactIdPrecedes(NVM_LOCK_XID(lock), vac->new_minmulti))
			vac->new_minmulti = NVM_LOCK_XID(lock);
	}
	else
		gone = TransactionIdPrecedes(NVM_LOCK_XID(lock), vac->oldest_xmin);

	if (gone)
		nvm_store(word, 0);
}

/*
 * The stamp of a version is not frozen, so its xid may have to be looked up.
 * That is so also if the stamp is in the gap list by now, because readers ask
 * that list about frozen stamps only.
 */
static void
vacuum_note_xid(NvmVacuum *vac, uint64 stamp, TransactionId xid)
{
	if (stamp == 0 || NVM_STAMP_IS_SPECIAL(stamp) || nvm_stamp_is_frozen(stamp))
		return;
	xid = nvm_stamp_xid(stamp, xid);
	if (TransactionIdIsNormal(xid) &&
		TransactionIdPrecedes(xid, vac->new_frozenxid))
		vac->new_frozenxid = xid;
}

/*
 * Is v the root, or the stub, of a row?  It stays that while the row lock is
 * held.  Other areas of the block may be freed and cut anew at any moment.
 * What we read of them means nothing, unless begin is the same afterwards and
 * an area still starts here.
 */
static bool
vacuum_is_root(NvmBlock *block, NvmVersion *v, uint32 cell)
{
	uint64		begin = nvm_load(&v->begin);
	uint16		flags = *(volatile uint16 *) &v->flags;

	pg_read_barrier();
	if (nvm_load(&v->begin) != begin ||
		!((nvm_load(&block->starts[cell / 64]) >> (cell % 64)) & 1))
		return false;
	if (nvm_begin_is_version(begin))
		return (flags & NVM_VF_ROOT) != 0;
	return nvm_begin_is(begin, NVM_STAMP_STUB);
}

/*
 * Prune the chains that begin in block blkno.  What is unlinked is retired
 * together at the end.  Caller holds the row lock.
 */
static void
vacuum_prune_block(NvmVacuum *vac, NvmBlock *block, uint32 blkno)
{
	NvmRetireBatch batch;
	bool		held = nvm_snapshots_held();
	uint32		cell;

	nvm_retire_begin(&batch, vac->state, nvm_xact_stamp_if_any(vac->state->region));
	batch.retired_large = nvm_vacuum_note_values;
	batch.arg = vac;
	block->ended = 0;
	for (cell = nvm_block_next_start(block, NVM_FIRST_CELL); cell != 0;
		 cell = nvm_block_next_start(block, cell + 1))
	{
		NvmVersion *v = (NvmVersion *) ((char *) block + cell * NVM_CELL_SIZE);
		int			nremoved = 0;

		if (!vacuum_is_root(block, v, cell))
			continue;
		if (nvm_chain_prune(vac->state, NVM_REF_MAKE(blkno, cell, 0),
							vac->vistest, &batch, &nremoved))
		{
			vacuum_lock_word(vac, v);
			if (held)
			{
				/* it must know a stub */
				nvm_retire_flush(&batch);
				nremoved += nvm_chain_prune_middle(vac->state,
												   NVM_REF_MAKE(blkno, cell, 0),
												   &vac->values_left);
			}
		}
		vac->removed += nremoved;
	}
	nvm_retire_flush(&batch);
}

/*
 * Have a second look at a version when all chains have been pruned.  More of
 * them than that wait for the next VACUUM.
 */
static void
vacuum_note_stray(NvmVacuum *vac, uint32 blkno, uint32 cell)
{
	ItemPointer tid;

	if (list_length(vac->stray) >= MAX_STRAY)
		return;
	tid = (ItemPointer) palloc(sizeof(ItemPointerData));
	ItemPointerSet(tid, blkno, (OffsetNumber) cell);
	vac->stray = lappend(vac->stray, tid);
}

/*
 * Does a retired version, or the tail of a stub, keep large values that somebody
 * else will free?  nvm_space_reclaim could not: what retired it is too young.
 */
static void
vacuum_note_kept_values(NvmVacuum *vac, NvmVersion *v)
{
	if (NvmVersionCells(v) > 1 && (v->flags & NVM_VF_LARGE) != 0 &&
		nvm_load(NvmRetiredBy(v)) != nvm_xact_stamp_if_any(vac->state->region) &&
		nvm_large_is_kept(vac->state, v))
		vac->values_left++;
}

/*
 * A version that everybody takes for dead: `xid` ended it, or it never
 * existed.  Caller holds the row lock and the allocation lock.
 */
static void
vacuum_found_dead(NvmVacuum *vac, NvmBlock *block, uint32 cell,
				  TransactionId xid, VacuumBlock *found)
{
	/*
	 * A later version goes when its root's block has its turn, or is
	 * nvm_vacuum_unreachable's; one that never existed is its undoer's.
	 */
	if (!TransactionIdIsValid(xid))
		return;
	if ((nvm_block_cell(block, cell)->flags & NVM_VF_ROOT) != 0)
		found->missed_dead++;
	else
		vacuum_note_stray(vac, block->blkno, cell);
}

/*
 * A root that waits for us.  Caller holds the row lock and the allocation
 * lock.
 */
static void
vacuum_found_dead_root(NvmVacuum *vac, NvmVersion *v, uint32 cell,
					   VacuumBlock *found)
{
	found->dead[found->ndead++] = (uint16) cell;

	/* a few roots are no matter, but one's value can be of any size */
	if (NvmVersionCells(v) > 1 && (v->flags & NVM_VF_LARGE) != 0)
		vac->may_bypass = false;
}

/*
 * Count what is in the block, and list the roots that wait for us.  Caller
 * holds the row lock and the allocation lock.
 */
static void
vacuum_count_block(NvmVacuum *vac, NvmBlock *block, VacuumBlock *found)
{
	uint32		cell;

	memset(found, 0, offsetof(VacuumBlock, dead));
	found->all_visible = true;
	for (cell = nvm_block_next_start(block, NVM_FIRST_CELL); cell != 0;
		 cell = nvm_block_next_start(block, cell + 1))
	{
		NvmVersion *v = (NvmVersion *) ((char *) block + cell * NVM_CELL_SIZE);
		TransactionId xid = InvalidTransactionId;
		NvmVacuumState state;

		state = nvm_version_vacuum_state(v, vac->vistest, &xid);
		switch (state)
		{
			case NVM_VAC_LIVE:
				found->live++;
				if (!nvm_stamp_is_frozen(nvm_load(&v->begin)) &&
					!TransactionIdPrecedes(v->tuple.xmin, vac->oldest_xmin))
					found->all_visible = false;
				break;
			case NVM_VAC_RECENTLY_DEAD:
				found->recently_dead++;
				found->all_visible = false;
				break;
			case NVM_VAC_DELETE_IN_PROGRESS:
				/* as heap counts them */
				found->live++;
				found->all_visible = false;
				break;
			case NVM_VAC_INSERT_IN_PROGRESS:
				found->all_visible = false;
				break;
			case NVM_VAC_DEAD:
				vacuum_found_dead(vac, block, cell, xid, found);
				found->all_visible = false;
				break;
			case NVM_VAC_DEAD_ROOT:
				vacuum_found_dead_root(vac, v, cell, found);
				found->all_visible = false;
				break;
			case NVM_VAC_RETIRED:
				found->retired_cells += NvmVersionCells(v);
				vacuum_note_kept_values(vac, v);
				break;
			case NVM_VAC_STUB:
				vacuum_note_kept_values(vac, v);
				break;
			case NVM_VAC_FREE:
				break;
		}
		if (state <= NVM_VAC_DELETE_IN_PROGRESS)
		{
			vacuum_note_xid(vac, nvm_load(&v->begin), v->tuple.xmin);
			vacuum_note_xid(vac, nvm_load(&v->end), v->tuple.xend);
		}
	}
}

/*
 * Free what can be freed in a block; `quiet`: there is nothing.  Returns the
 * number of free cells.
 *
 * This also sanitizes the block if that is due.  After a crashed incarnation
 * that is worth the writing: it finds the block suspect.
 */
static uint32
vacuum_block_space(NvmVacuum *vac, NvmBlock *block, uint32 blkno, bool quiet)
{
	uint32		free_cells = NVM_CELLS;

	if (!quiet || nvm_incarnation_crashed(block->alloc_inc))
	{
		LWLock	   *alloc_lock = nvm_alloc_lock(vac->dir, blkno);

		LWLockAcquire(alloc_lock, LW_EXCLUSIVE);
		free_cells = nvm_space_reclaim(vac->state, block);
		LWLockRelease(alloc_lock);
	}
	else
	{
		for (size_t i = 0; i < lengthof(block->used); i++)
			free_cells -= __builtin_popcountll(nvm_load(&block->used[i]));
	}
	return free_cells;
}

/*
 * Prune the rows of a block, and count what is left.
 */
static void
vacuum_block_rows(NvmVacuum *vac, NvmBlock *block, uint32 blkno,
				  VacuumBlock *found)
{
	LWLock	   *row_lock = nvm_row_lock(vac->dir, blkno);
	LWLock	   *alloc_lock = nvm_alloc_lock(vac->dir, blkno);

	LWLockAcquire(row_lock, LW_EXCLUSIVE);
	vacuum_prune_block(vac, block, blkno);

	/*
	 * No snapshot of ours keeps retired areas from being freed and cut anew.
	 * The allocation lock does; without it the bytes of a row could be taken
	 * for a version.
	 */
	LWLockAcquire(alloc_lock, LW_SHARED);
	vacuum_count_block(vac, block, found);
	if (found->live == 0 && found->recently_dead == 0)
		nvm_barren_try(vac->state, blkno, vac->vistest);
	LWLockRelease(alloc_lock);
	LWLockRelease(row_lock);
}

/*
 * Add what was found in a block to the figures of the table.
 */
static void
vacuum_add_found(NvmVacuum *vac, uint32 blkno, const VacuumBlock *found)
{
	vac->live += found->live;
	vac->recently_dead += found->recently_dead;
	vac->missed_dead += found->missed_dead;
	if (found->all_visible)
	{
		vac->all_visible++;
		(void) nvm_allvisible_try(vac->state, blkno, true);
	}
	if (found->ndead > 0)
	{
		vac->dead_blocks++;
		vac->dead_roots += found->ndead;
		for (int i = 0; i < found->ndead; i++)
			nvm_vacuum_remember_dead(vac, blkno, found->dead[i]);
	}
}

/*
 * One block.
 */
static void
vacuum_block(NvmVacuum *vac, uint32 blkno)
{
	NvmBlock   *block = nvm_block(vac->state, blkno);
	VacuumBlock found;
	bool		quiet;
	uint32		free_cells;

	vac->scanned++;
	nvm_block_prove(vac->rel, vac->state, blkno, 0);
	if (block->magic != NVM_BLOCK_MAGIC)
		return;					/* handed out, not used yet */

	/*
	 * Space first: what is unlinked below is not free before we have
	 * committed.
	 */
	quiet = vacuum_block_is_quiet(block, &found);
	free_cells = vacuum_block_space(vac, block, blkno, quiet);

	if ((block->flags & NVM_BLOCK_SUSPECT) != 0 && vac->index_vacuuming)
	{
		vac->suspect[blkno / 8] |= 1 << (blkno % 8);
		vac->nsuspect++;
	}

	if (!quiet)
		vacuum_block_rows(vac, block, blkno, &found);
	else if (found.live == 0 && !nvm_barren(vac->state, blkno))
	{
		LWLock	   *alloc_lock = nvm_alloc_lock(vac->dir, blkno);

		LWLockAcquire(alloc_lock, LW_SHARED);
		nvm_barren_try(vac->state, blkno, vac->vistest);
		LWLockRelease(alloc_lock);
	}
	nvm_space_note(vac->state, blkno, free_cells + found.retired_cells);
	vacuum_add_found(vac, blkno, &found);
}

/*
 * Walk all blocks that the table had at the start.  When memory for dead
 * roots runs short, they are worked off in between.
 */
void
nvm_vacuum_scan(NvmVacuum *vac)
{
	const int	index[] = {
		PROGRESS_VACUUM_PHASE,
		PROGRESS_VACUUM_TOTAL_HEAP_BLKS,
		NVM_PROGRESS_MAX_DEAD
	};
	int64		val[3];

	val[0] = PROGRESS_VACUUM_PHASE_SCAN_HEAP;
	val[1] = vac->nblocks;
	val[2] = vac->dead_max * NVM_PROGRESS_DEAD_UNIT;
	pgstat_progress_update_multi_param(3, index, val);

	nvm_space_note_reset(vac->state);
	for (uint32 blkno = 0; blkno < vac->nblocks; blkno++)
	{
		pgstat_progress_update_param(PROGRESS_VACUUM_HEAP_BLKS_SCANNED, blkno);
		vac->blkno = blkno;
		nvm_vacuum_delay();
		if (VacuumCostActive)
			VacuumCostBalance += VacuumCostPageHit;

		if (vac->dead_max - vac->ndead < NVM_CELLS)
		{
			vac->may_bypass = false;
			nvm_vacuum_dead(vac);
			pgstat_progress_update_param(PROGRESS_VACUUM_PHASE,
										 PROGRESS_VACUUM_PHASE_SCAN_HEAP);
		}
		vacuum_block(vac, blkno);
		nvm_vacuum_free_values(vac, false);
		NVM_FAILPOINT("vacuum-block-scanned");
		pgstat_progress_update_param(NVM_PROGRESS_NUM_DEAD,
									 vac->ndead * NVM_PROGRESS_DEAD_UNIT);
	}
	vac->blkno = InvalidBlockNumber;
	pgstat_progress_update_param(PROGRESS_VACUUM_HEAP_BLKS_SCANNED, vac->nblocks);
}

/*
 * Does the chain of the row with root `root` lead to version `ref`?  Caller
 * holds the row lock.
 */
static bool
vacuum_chain_has(NvmRelState *state, uint64 root, uint64 ref)
{
	uint64		cur = root;
	uint64		limit = (uint64) nvm_rel_nblocks(state) * NVM_CELLS;

	while (limit-- > 0 &&
		   nvm_tid_exists(state, NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur)))
	{
		NvmVersion *v = nvm_cell(state, NVM_REF_BLOCK(cur), NVM_REF_OFFSET(cur));
		uint64		begin = nvm_load(&v->begin);
		uint64		next = nvm_load(&v->next);

		if (cur == ref)
			return true;
		if (cur == root ?
			!(nvm_begin_is(begin, NVM_STAMP_STUB) ||
			  (nvm_begin_is_version(begin) && (v->flags & NVM_VF_ROOT) != 0)) :
			(nvm_begin_is_version(begin) && nvm_version_root(v) != root))
			return false;
		if (!NVM_REF_IS_VALID(next) || (NVM_REF_HI(next) & NVM_NEXT_OTHER_ROOT))
			return false;
		cur = NVM_REF_TID(next);
	}
	return false;
}

/*
 * Does an area start at (blk, off), with this begin and root?  If so it stays
 * while the caller holds the root's row lock.
 */
static bool
vacuum_is_version_of(NvmVacuum *vac, NvmVersion *v, uint32 blk, uint32 off,
					 uint64 begin, uint64 root)
{
	LWLock	   *lock = nvm_alloc_lock(vac->dir, blk);
	bool		result;

	LWLockAcquire(lock, LW_SHARED);
	result = nvm_tid_exists(vac->state, blk, off) &&
		nvm_load(&v->begin) == begin && nvm_version_root(v) == root;
	LWLockRelease(lock);
	return result;
}

/*
 * A crash in the middle of pruning leaves versions, ended and decided, to which
 * their root does not lead any more.  Nobody needs them; retire them.
 */
void
nvm_vacuum_unreachable(NvmVacuum *vac)
{
	ListCell   *lc;

	foreach(lc, vac->stray)
	{
		ItemPointer tid = (ItemPointer) lfirst(lc);
		uint32		blk = ItemPointerGetBlockNumber(tid);
		uint32		off = ItemPointerGetOffsetNumber(tid);
		NvmVersion *v = nvm_cell(vac->state, blk, off);
		uint64		begin = nvm_load(&v->begin);
		uint64		root = nvm_version_root(v);
		TransactionId xid;
		LWLock	   *lock;

		/*
		 * The root's row lock keeps its chain; the version is no one else's.
		 * Or it was merely not pruned yet when it was noted.  Others may have
		 * pruned it since, freed its cells and cut them anew; no snapshot of
		 * ours keeps them from that.  Then what we look at may be some row's
		 * data.
		 */
		if (!nvm_begin_is_version(begin))
			continue;
		lock = nvm_row_lock(vac->dir, NVM_REF_BLOCK(root));
		LWLockAcquire(lock, LW_EXCLUSIVE);
		if (vacuum_is_version_of(vac, v, blk, off, begin, root) &&
			(v->flags & NVM_VF_ROOT) == 0 &&
			nvm_version_vacuum_state(v, vac->vistest, &xid) == NVM_VAC_DEAD &&
			TransactionIdIsValid(xid) &&
			!vacuum_chain_has(vac->state, root, NVM_REF_MAKE(blk, off, 0)))
		{
			nvm_version_retire(vac->state, v, blk, off,
							   nvm_xact_stamp_if_any(vac->state->region), NVM_STAMP_RETIRED);
			if ((v->flags & NVM_VF_LARGE) != 0)
				nvm_vacuum_note_values(vac, blk, off);
			vac->removed++;
		}
		LWLockRelease(lock);
	}
	list_free_deep(vac->stray);
	vac->stray = NIL;
}
