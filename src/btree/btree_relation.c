/*-------------------------------------------------------------------------
 *
 * btree_relation.c
 *	  From an index's Relation to its storage in the pool.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "btree/nvm_btree_persist.h"
#include "btree/nvm_btree_state.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "commands/defrem.h"
#include "compat/nvm_compat.h"
#include "log/nvm_log.h"
#include "pool/nvm_pool.h"
#include "storage/predicate.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "xact/nvm_storage.h"

StaticAssertDecl(sizeof(NvmIndexPage) == NVM_INDEX_HEADER_SIZE,
				 "NvmIndexPage is 64 bytes");
StaticAssertDecl(sizeof(IndexTupleData) == 8 && offsetof(IndexTupleData, t_info) == 6,
				 "entries on media have this header");
StaticAssertDecl(NVM_INDEX_PAGE_SIZE == NVM_UNIT_SIZE, "a page is a unit of the pool");
StaticAssertDecl(MAXIMUM_ALIGNOF == 8, "offsets of entries are in units of 8 bytes");

/*
 * Is it an index of ours?  It is not locked yet.
 */
bool
nvm_index_is_ours(Oid indexid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(indexid));
	Form_pg_class form;
	bool		ours;
	bool		says_btree;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_class) GETSTRUCT(tuple);
	ours = form->relkind == RELKIND_INDEX &&
		form->relam == get_index_am_oid(NVM_BTREE_NAME, true);
	says_btree = form->relkind == RELKIND_INDEX && form->relam == BTREE_AM_OID;
	ReleaseSysCache(tuple);
	if (says_btree)
	{
		Relation	index = RelationIdGetRelation(indexid);

		if (index != NULL)
		{
			ours = nvm_relation_is_btree(index);
			RelationClose(index);
		}
	}
	return ours;
}

/*
 * Columns whose comparison is that of integers as they lie in an entry.
 */
static NvmIndexFast
fast_kind(Oid cmp)
{
	switch (cmp)
	{
		case F_BTINT2CMP:
			return NVM_FAST_INT2;
		case F_BTINT4CMP:
		case F_DATE_CMP:
			return NVM_FAST_INT4;
		case F_BTINT8CMP:
		case F_TIMESTAMP_CMP:
		case F_TIMESTAMPTZ_CMP:
			return NVM_FAST_INT8;
		default:
			return NVM_FAST_NOT;
	}
}

static NvmIndexPersistence
persistence_of(const NvmIndexMeta *meta)
{
	if (meta->flags & NVM_INDEX_META_NONE)
		return NVM_INDEX_NOTHING;
	return (meta->flags & NVM_INDEX_META_LEAVES) ? NVM_INDEX_LEAVES : NVM_INDEX_FULL;
}

/*
 * Flags of the meta page of a storage that a start has emptied.  The storage
 * keeps the kind as which it was made, whatever becomes of the option.  In the
 * volatile region leaves are gone with the rest.
 */
static uint32
meta_flags_for(Relation index, uint32 dir)
{
	uint32		flags = nvm_index_meta_flags(index);

	if ((nvm_dir_entry(dir)->flags & NVM_DIR_REBUILT) != 0)
		return (flags & ~NVM_INDEX_META_LEAVES) | NVM_INDEX_META_NONE;
	if ((nvm_dir_entry(dir)->flags & NVM_DIR_VOLATILE) != 0)
		flags &= ~NVM_INDEX_META_LEAVES;
	return flags & ~NVM_INDEX_META_NONE;
}

/*
 * The storage of an index in the pool; ERROR if there is none.
 */
static uint32
find_storage(Relation index)
{
	NvmStorageKey key;
	uint32		dir = nvm_storage_find(index, &key);

	if (dir == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("entries of index \"%s\" are lost",
						RelationGetRelationName(index)),
				 errdetail("The persistent-memory pool has no storage for database %u, file number %u: it was made anew, or is not the one that the index was made in.",
						   key.database, (unsigned) key.relnumber),
				 errhint("REINDEX the index.")));
	return dir;
}

/*
 * The meta page of an index that a start has emptied: the first of what is rebuilt.
 */
static NvmIndexMeta *
make_meta_again(Relation index, uint32 dir, NvmRelState *state)
{
	NvmIndexMeta *volatile meta = NULL;
	NvmRebuilt	before = nvm_region_use_reserve(NVM_REBUILT_INDEXES);

	PG_TRY();
	{
		meta = nvm_index_make_meta(state, meta_flags_for(index, dir));
	}
	PG_FINALLY();
	{
		(void) nvm_region_use_reserve(before);
	}
	PG_END_TRY();
	return meta;
}

/*
 * The meta page of an index, made if a start has emptied the storage; ERROR if
 * it is not one that we can read.
 */
static NvmIndexMeta *
open_meta(Relation index, uint32 dir, NvmRelState *state)
{
	NvmIndexMeta *meta;

	if (pg_atomic_read_u32(&state->nblocks) == 0)
		meta = make_meta_again(index, dir, state);
	else
		meta = (NvmIndexMeta *) nvm_block(state, 0);
	if (meta->magic != NVM_INDEX_META_MAGIC || meta->dir != dir ||
		meta->check != nvm_index_meta_check(meta))
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("meta page of index \"%s\" is damaged",
						RelationGetRelationName(index)),
				 errhint("REINDEX the index.")));
	if (meta->version != NVM_INDEX_VERSION)
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("index \"%s\" has format %u, and this version of pg_nvm knows format %u",
						RelationGetRelationName(index), meta->version, NVM_INDEX_VERSION),
				 errhint("REINDEX the index.")));
	return meta;
}

/*
 * While the table of an index is closed, so is the index: whoever brings the rows back may
 * build it, and empty it again.
 */
static void
require_table(Relation index)
{
	Relation	table;

	if (likely(nvm_log_is_whole()))
		return;
	table = RelationIdGetRelation(index->rd_index->indrelid);
	if (table == NULL)
		return;
	nvm_storage_require_open(table);
	RelationClose(table);
}

/*
 * Find the storage of the index and remember it in rd_amcache.
 */
NvmIndexCache *
nvm_index_cache_slow(Relation index)
{
	NvmRelState *state;
	NvmIndexMeta *meta;
	NvmIndexCache *cache;
	uint32		dir;

	nvm_table_require();
	dir = find_storage(index);
	nvm_storage_require_rows(dir, RelationGetRelationName(index));
	require_table(index);
	state = nvm_rel_open(dir);
	meta = open_meta(index, dir, state);

	cache = (NvmIndexCache *) MemoryContextAllocZero(index->rd_indexcxt,
													 sizeof(NvmIndexCache));
	cache->base.btm_magic = BTREE_MAGIC;
	cache->base.btm_version = BTREE_VERSION;
	cache->base.btm_root = NVM_BTREE_CACHE_ROOT;
	cache->base.btm_fastroot = NVM_BTREE_FAR_ROOT;
	cache->base.btm_fastlevel = cache->base.btm_level =
		NVM_INDEX_ROOT_LEVEL(__atomic_load_n(&meta->root, __ATOMIC_RELAXED));
	cache->state = state;
	cache->meta = meta;
	cache->dir = dir;
	cache->persistence = persistence_of(meta);
	cache->rebuilt = cache->persistence == NVM_INDEX_NOTHING ||
		(cache->persistence == NVM_INDEX_FULL &&
		 pg_atomic_read_u32(&nvm_rel_index(state)->state) != NVM_INDEXSTATE_NEW);
	cache->allequalimage = (meta->flags & NVM_INDEX_META_EQUALIMAGE) != 0;
	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
		cache->fast[i] = fast_kind(index_getprocid(index, i + 1, BTORDER_PROC));

	if (cache->persistence == NVM_INDEX_LEAVES)
		nvm_index_walk_leaves(index, cache);
	else if (nvm_index_is_absent(cache))
		/* locks on pages that are gone, before we insert anything */
		TransferPredicateLocksToHeapRelation(index);

	if (index->rd_amcache != NULL)
		pfree(index->rd_amcache);
	index->rd_amcache = cache;
	return cache;
}
