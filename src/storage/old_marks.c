/*-------------------------------------------------------------------------
 *
 * old_marks.c
 *	  Marks that earlier runs of the server have left in rows and index pages.
 *
 * Lock words of rows, links to older versions, locks and order[] of index
 * pages mean something in one incarnation only.  They carry the low 16 bits of
 * its number.  These bits come round after 65535 starts.  A mark that nobody
 * has touched since would then be believed, though it may never have been
 * durable.  So the first start of each 65535 removes all marks.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "row/nvm_space.h"
#include "storage/nvm_storage_relation.h"
#include "verify/nvm_verify_block.h"

/*
 * Remove the marks in the areas of a block that may be a row's.  Other areas,
 * which are being written or were unlinked, are written before they are used
 * again.  A place without a mark is flushed, too: an earlier run, or a start
 * like this one that was killed, may have removed the mark without flushing
 * that.
 */
static void
forget_in_rows(NvmBlock *block)
{
	for (uint32 cell = nvm_block_next_start(block, NVM_FIRST_CELL); cell != 0;
		 cell = nvm_block_next_start(block, cell + 1))
	{
		NvmVersion *v = (NvmVersion *) ((char *) block + cell * NVM_CELL_SIZE);
		bool		stub = nvm_begin_is(v->begin, NVM_STAMP_STUB);
		bool		root;

		if (!stub && !nvm_begin_is_version(v->begin) && !nvm_begin_is(v->begin, NVM_STAMP_DEAD))
			continue;
		if (v->link != 0)
			v->link = 0;
		/* a stub of more than a cell has its lock where a version has it */
		root = stub || (nvm_begin_is_version(v->begin) && NvmVersionCells(v) > 1 &&
						(v->flags & NVM_VF_ROOT) != 0);
		if (root && *nvm_lock_word(v) != 0)
			*nvm_lock_word(v) = 0;
	}
	nvm_flush(block, NVM_UNIT_SIZE);
}

static void
forget_in_storage(uint32 id, NvmDirEntry *entry, void *arg)
{
	NvmRelState *state = &nvm_relstates[id];

	/* not opened yet: blocks that were never used have no magic number */
	uint32		nblocks = (uint32) Min(nvm_rel_units(state), MaxBlockNumber);

	for (uint32 blkno = 0; blkno < nblocks; blkno++)
	{
		NvmBlock   *block = nvm_block(state, blkno);

		if (entry->kind == NVM_DIR_KIND_INDEX)
			nvm_index_forget_marks(block);
		else if (block->magic == NVM_BLOCK_MAGIC)
			forget_in_rows(block);
		NVM_FAILPOINT("old-marks");
	}
}

/*
 * In the postmaster, when the pool has been opened.  After a crash in the
 * middle the next start does it again.
 */
void
nvm_table_forget_old_marks(void)
{
	if (NvmPool->status != NVM_POOL_OPEN || !nvm_pool_has_old_marks())
		return;
	ereport(LOG,
			(errmsg("nvm: removing what the last 65535 starts have left in the pool")));
	nvm_dir_walk(forget_in_storage, NULL);
	nvm_drain("old-marks-gone");
	nvm_pool_old_marks_gone();
}
