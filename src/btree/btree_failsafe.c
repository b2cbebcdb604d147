/*-------------------------------------------------------------------------
 *
 * btree_failsafe.c
 *	  The file of an index that says btree and is ours: one page, by which
 *	  PostgreSQL's own code finds nothing and fails.
 *
 * It is a meta page as nbtree writes it, but its root, and its fast root, lie
 * beyond the end of the file.  nbtree then cannot read the root, which is an
 * ERROR, and never comes to think that the index is empty.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "access/xloginsert.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_identity.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/smgr.h"

/*
 * The caller has locked the index exclusively, or it is his.
 */
void
nvm_index_write_failsafe(Relation index, ForkNumber fork)
{
	Buffer		buffer;
	Page		page;

	if (RelationGetNumberOfBlocksInFork(index, fork) == 0)
	{
		LockRelationForExtension(index, ExclusiveLock);
		buffer = ReadBufferExtended(index, fork, P_NEW, RBM_NORMAL, NULL);
		UnlockRelationForExtension(index, ExclusiveLock);
	}
	else
		buffer = ReadBufferExtended(index, fork, BTREE_METAPAGE, RBM_NORMAL, NULL);
	Assert(BufferGetBlockNumber(buffer) == BTREE_METAPAGE);
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	page = BufferGetPage(buffer);
	NVM_FAILPOINT("btree-failsafe");

	START_CRIT_SECTION();
	_bt_initmetapage(page, NVM_BTREE_FAR_ROOT, 0, false);
	MarkBufferDirty(buffer);
	if (RelationNeedsWAL(index) || fork == INIT_FORKNUM)
		log_newpage_buffer(buffer, true);
	END_CRIT_SECTION();
	UnlockReleaseBuffer(buffer);
}

/*
 * Does the file of an index, which the caller has locked, have that page?
 */
bool
nvm_index_has_failsafe(Relation index)
{
	Buffer		buffer;
	Page		page;
	bool		has = false;

	if (RELATION_IS_OTHER_TEMP(index) || !smgrexists(RelationGetSmgr(index), MAIN_FORKNUM) ||
		RelationGetNumberOfBlocks(index) != 1)
		return false;
	buffer = ReadBuffer(index, BTREE_METAPAGE);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	if (!PageIsNew(page) && PageGetSpecialSize(page) == MAXALIGN(sizeof(BTPageOpaqueData)))
		has = BTPageGetMeta(page)->btm_magic == BTREE_MAGIC &&
			BTPageGetMeta(page)->btm_root == NVM_BTREE_FAR_ROOT;
	UnlockReleaseBuffer(buffer);
	return has;
}
