/*-------------------------------------------------------------------------
 *
 * vacuum_values.c
 *	  VACUUM gives back the large values of the versions that it retires.
 *
 * The cells of a retired version wait until VACUUM has committed and every
 * older snapshot is gone.  A reader may be on its way through them, and a
 * link to them may come back with a crash.  The version's large values need
 * not wait.  Only a reader that sees the version reads them, and no snapshot
 * sees it.  Once its begin word is durably RETIRED or STUB, a crash shows no
 * version that leads to them.  A table that nobody touches again would keep
 * them for ever, and a value can be of any size.
 *
 * One reader goes without a snapshot, and no lock keeps it out: a process that
 * rebuilds an index with persistence = none.  While one of the table's indexes
 * is absent the values wait as the cells do.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "am/nvm_vacuum.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_persist.h"
#include "compat/nvm_compat_vacuum.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_large.h"
#include "row/nvm_row_locks.h"
#include "row/nvm_version.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_block.h"

/* versions whose values wait for one fence */
#define VALUES_MAX		4096

/*
 * A version with large values was retired by us, dead to everybody before.
 * NvmRetireBatch.retired_large.
 */
void
nvm_vacuum_note_values(void *arg, uint32 blk, uint32 off)
{
	NvmVacuum  *vac = (NvmVacuum *) arg;

	if (vac->nvalues == vac->values_size)
	{
		vac->values_size = Max(vac->values_size * 2, 64);
		vac->values = vac->values == NULL ?
			(ItemPointerData *) palloc(vac->values_size * sizeof(ItemPointerData)) :
			(ItemPointerData *) repalloc_huge(vac->values,
											  vac->values_size * sizeof(ItemPointerData));
	}
	ItemPointerSet(&vac->values[vac->nvalues], blk, (OffsetNumber) off);
	vac->nvalues++;
}

/*
 * Is an index of the table being rebuilt, or will be?  A rebuild that begins after
 * this was asked finds all that we have retired retired.
 */
static bool
index_is_absent(NvmVacuum *vac)
{
	for (int i = 0; i < vac->nindexes; i++)
	{
		if (nvm_relation_is_btree(vac->indrels[i]) &&
			nvm_index_is_absent(nvm_index_cache(vac->indrels[i])))
			return true;
	}
	return false;
}

/*
 * Give back the values noted so far, if they are many or `all`.  No lock is held.
 */
void
nvm_vacuum_free_values(NvmVacuum *vac, bool all)
{
	if (vac->nvalues == 0 || (!all && vac->nvalues < VALUES_MAX))
		return;

	/* no crash may show a version whose values are somebody else's */
	nvm_drain("vacuum-values");
	if (index_is_absent(vac))
	{
		vac->values_left += vac->nvalues;
		vac->nvalues = 0;
		return;
	}
	for (int i = 0; i < vac->nvalues; i++)
	{
		uint32		blk = ItemPointerGetBlockNumber(&vac->values[i]);
		uint32		off = ItemPointerGetOffsetNumber(&vac->values[i]);
		NvmVersion *v = nvm_cell(vac->state, blk, off);
		LWLock	   *lock = nvm_alloc_lock(vac->dir, blk);
		uint64		begin;

		/* each run of a value is a fence */
		nvm_vacuum_delay();
		LWLockAcquire(lock, LW_EXCLUSIVE);
		begin = nvm_load(&v->begin);
		/* it is ours until we have committed: nobody can have freed the area */
		Assert(nvm_tid_exists(vac->state, blk, off));
		if (nvm_begin_is(begin, NVM_STAMP_RETIRED) || nvm_begin_is(begin, NVM_STAMP_STUB))
			nvm_large_release(vac->state, v);
		LWLockRelease(lock);
		NVM_FAILPOINT("vacuum-value-freed");
	}
	vac->nvalues = 0;
}
