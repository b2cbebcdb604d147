/*-------------------------------------------------------------------------
 *
 * btree_storage.c
 *	  Storages of indexes: made for ambuild, given a meta page, copied.
 *
 * PostgreSQL builds an index anew by giving it another file number and calling
 * ambuild, which sees the new number only (REINDEX, TRUNCATE, CLUSTER, VACUUM
 * FULL, whatever rewrites the table).  So the storage that the index leaves is
 * found by the index's oid, which its directory entry holds.  Where PostgreSQL
 * has truncated the file instead, the number is the old one, and the storage
 * is emptied in place.  ON COMMIT DELETE ROWS does that, and TRUNCATE of what
 * the same subtransaction has made.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_persist.h"
#include "btree/nvm_btree_state.h"
#include "catalog/pg_am.h"
#include "compat/nvm_compat.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "verify/nvm_verify.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"
#include "xact/nvm_xact.h"

/* ---- meta page ---- */

/*
 * What the meta page of an index has to say, by its definition.
 */
uint32
nvm_index_meta_flags(Relation index)
{
	uint32		flags = 0;

	if (_bt_allequalimage(index, false))
		flags |= NVM_INDEX_META_EQUALIMAGE;
	if (nvm_index_option_persistence(index) == NVM_INDEX_LEAVES)
		flags |= NVM_INDEX_META_LEAVES;
	else if (nvm_index_option_persistence(index) == NVM_INDEX_NOTHING)
		flags |= NVM_INDEX_META_NONE;
	return flags;
}

/*
 * Give an empty storage its meta page, unless it has one by now.  Durable on
 * return.  May ERROR (disk_full).  Takes the extend lock.
 */
NvmIndexMeta *
nvm_index_make_meta(NvmRelState *state, uint32 flags)
{
	LWLock	   *lock = nvm_rel_extend_lock(state);
	NvmIndexMeta *meta;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u32(&state->nblocks) == 0)
	{
		if (pg_atomic_read_u32(&state->nextents) == 0)
			nvm_rel_add_extent(state);
		meta = (NvmIndexMeta *) nvm_block(state, 0);

		/* the magic number, by which the block counts, last */
		memset(meta, 0, sizeof(NvmIndexMeta));
		meta->magic = NVM_INDEX_META_MAGIC;
		meta->dir = state->dir;
		meta->version = NVM_INDEX_VERSION;
		meta->flags = flags;
		meta->check = nvm_index_meta_check(meta);
		meta->magic = 0;
		nvm_persist(meta, sizeof(NvmIndexMeta), "btree-meta-fields");
		nvm_store32(&meta->magic, NVM_INDEX_META_MAGIC);
		nvm_persist(meta, sizeof(NvmIndexMeta), "btree-meta");
		pg_atomic_write_u32(&state->nblocks, 1);
	}
	meta = (NvmIndexMeta *) nvm_block(state, 0);
	LWLockRelease(lock);
	return meta;
}

/* ---- ambuild ---- */

typedef struct OlderStorages
{
	Oid			index;
	uint32		flags;
	uint32		temp_owner;
	List	   *dirs;
} OlderStorages;

/*
 * For nvm_dir_walk: the storages that the index has, by its oid.
 */
static void
add_older_storage(uint32 id, NvmDirEntry *entry, void *arg)
{
	OlderStorages *older = (OlderStorages *) arg;
	Oid			user;

	if (entry->kind != NVM_DIR_KIND_INDEX || entry->relation != older->index ||
		entry->database != MyDatabaseId ||
		(entry->flags & NVM_DIR_TEMP) != (older->flags & NVM_DIR_TEMP) ||
		entry->temp_owner != older->temp_owner ||
		entry->begin == 0 || nvm_stamp_in_gap(entry->begin) ||
		(entry->end != 0 && !nvm_stamp_in_gap(entry->end)))
		return;

	/* not one that another index uses now, should oids have come round */
	if ((entry->flags & NVM_DIR_TEMP) == 0)
	{
		user = NvmRelidByFile(entry->tablespace, (Oid) entry->relnumber);
		if (OidIsValid(user) && user != older->index)
			return;
	}
	older->dirs = lappend_int(older->dirs, (int) id);
}

/*
 * The index has got another file number: end what it had under others.  It is
 * locked exclusively, so nobody uses that.
 */
static void
end_older_storages(Relation index, const NvmStorageForm *form)
{
	OlderStorages older = {RelationGetRelid(index), form->flags, form->temp_owner, NIL};
	ListCell   *lc;

	/*
	 * What a prepared transaction that was rolled back has made or ended is
	 * in the gap after this, also if another process is still at it.
	 */
	nvm_twophase_settle();
	nvm_dir_walk(add_older_storage, &older);
	foreach(lc, older.dirs)
		nvm_storage_end((uint32) lfirst_int(lc));
	list_free(older.dirs);
}

/*
 * Can the storage that is there under the index's file number be emptied in
 * place?  It goes with what made it; of a temporary table no row outlives the
 * transaction.
 */
static bool
is_truncated_in_place(uint32 dir, uint32 meta_flags)
{
	NvmDirEntry *entry = nvm_dir_entry(dir);

	if (entry->kind != NVM_DIR_KIND_INDEX || entry->end != 0 ||
		((entry->flags & NVM_DIR_REBUILT) != 0) != ((meta_flags & NVM_INDEX_META_NONE) != 0))
		return false;
	return (entry->flags & NVM_DIR_TEMP) != 0 ||
		nvm_xact_owns_stamp(entry->begin);
}

/*
 * See nvm_btree.h.  The caller has locked the index exclusively.
 */
void
nvm_index_make_storage(Relation index, uint32 meta_flags)
{
	Relation	heap = table_open(index->rd_index->indrelid, NoLock);
	NvmLocator	locator = NvmRelLocator(index);
	NvmStorageKey key;
	NvmStorageForm form;
	uint32		dir;

	if (!nvm_storage_is_table(heap))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("access method \"nvm_btree\" is for indexes of nvm tables"),
				 errdetail("Table \"%s\" has another access method.",
						   RelationGetRelationName(heap)),
				 errhint("Use an index of access method btree, or ALTER TABLE ... SET ACCESS METHOD nvm.")));
	nvm_table_require();

	nvm_storage_key(index, &locator, &key);
	dir = nvm_dir_lookup(&key);
	if (dir != 0 && is_truncated_in_place(dir, meta_flags))
	{
		/* before its blocks belong to another storage */
		if (nvm_xact_is_writer())
			(void) nvm_index_settle();
		nvm_storage_empty(dir); /* needs no stamp: ON COMMIT has none to give */
	}
	else
	{
		nvm_storage_form(index, heap, NVM_DIR_KIND_INDEX, index->rd_rel->relpersistence, &form);
		if ((meta_flags & NVM_INDEX_META_NONE) != 0)
			form.flags |= NVM_DIR_REBUILT;
		if (index->rd_rel->relam == BTREE_AM_OID)
			form.flags |= NVM_DIR_BTREE;
		nvm_storage_require_region(form.flags);
		if (dir != 0 && nvm_dir_entry(dir)->end == 0)
			nvm_storage_end(dir);	/* nobody's, since the file number is ours */
		if (NvmRelNewFileSubid(index) != InvalidSubTransactionId)
			end_older_storages(index, &form);
		dir = nvm_storage_make(&key, &form);
	}
	table_close(heap, NoLock);

	if (index->rd_amcache != NULL)
		pfree(index->rd_amcache);
	index->rd_amcache = NULL;
	(void) nvm_index_make_meta(&nvm_relstates[dir], meta_flags);
}

/* ---- CREATE DATABASE ---- */

static void
			copy_damaged(uint32 dir, uint32 blkno) __attribute__((noreturn));

static void
copy_damaged(uint32 dir, uint32 blkno)
{
	NvmDirEntry *entry = nvm_dir_entry(dir);

	ereport(ERROR,
			(errcode(ERRCODE_INDEX_CORRUPTED),
			 errmsg("cannot copy damaged index relation file %u/%llu",
					entry->database, (unsigned long long) entry->relnumber),
			 errdetail("Block %u is not a page of this index.", blkno),
			 errhint("REINDEX index %u in database %u.", entry->relation, entry->database)));
}

/*
 * Copy one block; links are block numbers, so nothing but the header changes.
 * Its check holds for one place.
 */
static void
copy_page(NvmRelState *from, NvmRelState *to, uint32 blkno)
{
	NvmIndexPage *source = (NvmIndexPage *) nvm_block(from, blkno);
	NvmIndexPage *page = (NvmIndexPage *) nvm_block(to, blkno);

	memcpy(page, source, NVM_INDEX_PAGE_SIZE);
	if (source->magic == NVM_INDEX_META_MAGIC)
	{
		NvmIndexMeta *meta = (NvmIndexMeta *) page;

		if (blkno != 0 || meta->dir != from->dir ||
			meta->check != nvm_index_meta_check((NvmIndexMeta *) source))
			copy_damaged(from->dir, blkno);
		meta->dir = to->dir;
		meta->check = nvm_index_meta_check(meta);
	}
	else if (source->magic == NVM_INDEX_MAGIC)
	{
		if (page->dir != from->dir || page->blkno != blkno ||
			page->check != nvm_index_page_check(source))
			copy_damaged(from->dir, blkno);
		page->lock = 0;
		page->dir = to->dir;
		page->check = nvm_index_page_check(page);
	}
	else
		memset(page, 0, NVM_INDEX_PAGE_SIZE);	/* extended, and never used */
	nvm_flush(page, NVM_INDEX_PAGE_SIZE);
}

/*
 * Fill storage `to`, which the current transaction has made and which is
 * empty, with the index in storage `from`, which nobody changes.  It needs no
 * fence: the transaction has one.  May ERROR; `to` goes with the transaction.
 */
void
nvm_index_copy_storage(uint32 from, uint32 to)
{
	NvmRelState *source = nvm_rel_open(from);
	NvmRelState *target = &nvm_relstates[to];
	LWLock	   *lock = nvm_rel_extend_lock(target);
	uint32		nblocks = pg_atomic_read_u32(&source->nblocks);
	uint32		index_state = pg_atomic_read_u32(&nvm_rel_index(source)->state);
	uint32		first;

	if (nvm_index_restarts_empty(from, nvm_dir_entry(from)) &&
		(index_state == NVM_INDEXSTATE_ABSENT || index_state == NVM_INDEXSTATE_BUILDING))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("an index of the template database has not been rebuilt since the server started"),
				 errhint("Wait until view nvm.index_rebuilds of that database says \"ready\" or \"unused\" of all.")));
	for (uint32 blkno = 0; blkno < nblocks; blkno++)
	{
		CHECK_FOR_INTERRUPTS();
		if (nvm_extent_of_block(blkno, &first) >= pg_atomic_read_u32(&target->nextents))
		{
			LWLockAcquire(lock, LW_EXCLUSIVE);
			nvm_rel_add_extent(target);
			LWLockRelease(lock);
		}
		copy_page(source, target, blkno);
		NVM_FAILPOINT("copy-index-block");
	}
	pg_write_barrier();
	pg_atomic_write_u32(&target->nblocks, nblocks);
}
