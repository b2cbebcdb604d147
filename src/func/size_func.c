/*-------------------------------------------------------------------------
 *
 * size_func.c
 *	  nvm.size(): what pg_relation_size() would say if the pool were files.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "btree/nvm_btree.h"
#include "compat/nvm_compat.h"
#include "fmgr.h"
#include "pool/nvm_pool.h"
#include "row/nvm_relation.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"

PG_FUNCTION_INFO_V1(nvm_size);

/*
 * Bytes of the extents of a relation's storage and of its large values. 0 if
 * the pool has no storage for it: its rows are lost.  Takes storage_lock, so
 * that nobody frees the storage meanwhile.  ERROR if the pool is not
 * available.
 */
static uint64
size_of_storage(Relation rel)
{
	NvmLocator	locator = NvmRelLocator(rel);
	NvmStorageKey key;
	uint64		bytes = 0;
	uint32		dir;

	nvm_table_require();
	nvm_storage_key(rel, &locator, &key);
	LWLockAcquire(NvmWbl->storage_lock, LW_SHARED);
	dir = nvm_dir_lookup(&key);
	if (dir != 0)
		bytes = nvm_rel_bytes(nvm_rel_open(dir));
	LWLockRelease(NvmWbl->storage_lock);
	return bytes;
}

/*
 * nvm.size(relation regclass): 0 for a relation that has no storage in the
 * pool of its own, NULL for one that does not exist, as pg_relation_size()
 * answers.
 */
Datum
nvm_size(PG_FUNCTION_ARGS)
{
	Relation	rel = try_relation_open(PG_GETARG_OID(0), AccessShareLock);
	uint64		size = 0;

	if (rel == NULL)
		PG_RETURN_NULL();
	if (nvm_relation_is_nvm(rel) ||
		(rel->rd_rel->relkind == RELKIND_INDEX && nvm_relation_is_btree(rel)))
		size = size_of_storage(rel);
	relation_close(rel, AccessShareLock);
	PG_RETURN_INT64((int64) size);
}
