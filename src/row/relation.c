/*-------------------------------------------------------------------------
 *
 * relation.c
 *	  From a Relation to its storage in the pool.
 *
 * The one entry to nvm data: before a backend touches a table's rows it goes
 * through nvm_rel_cache_slow.  That refuses what cannot be served, and
 * settles what the last crash left in doubt.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/tableam.h"
#include "btree/nvm_btree.h"
#include "catalog/pg_am.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "compat/nvm_compat.h"
#include "log/nvm_log.h"
#include "pool/nvm_pool.h"
#include "row/nvm_modify.h"
#include "row/nvm_relation.h"
#include "row/nvm_storage_stats.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "xact/nvm_storage.h"
#include "xact/nvm_xact.h"

/*
 * Is rel a relation with rows of ours?  Each access method of ours has the same
 * function here, whatever comes before it writes a row.
 */
bool
nvm_relation_is_nvm(Relation rel)
{
	return rel->rd_tableam != NULL &&
		rel->rd_tableam->tuple_complete_speculative == nvm_tuple_complete_speculative;
}

/* a test's library and the handler in it, which returns a routine of ours */
static const char *other_library = NULL;
static const char *other_handler = NULL;

/*
 * See nvm_relation.h.
 */
void
nvm_access_method_register(const char *library, const char *handler)
{
	other_library = library;
	other_handler = handler;
}

/*
 * Is text column `attr` of a pg_proc row this name?  Without directory and
 * suffix, should it be the name of a file.
 */
static bool
proc_has_name(HeapTuple proc, AttrNumber attr, const char *name)
{
	bool		isnull;
	Datum		value = SysCacheGetAttr(PROCOID, proc, attr, &isnull);
	char	   *string;
	const char *file;
	Size		len = strlen(name);
	bool		result;

	if (isnull)
		return false;
	string = TextDatumGetCString(value);
	file = last_dir_separator(string) != NULL ? last_dir_separator(string) + 1 : string;

	result = strncmp(file, name, len) == 0 &&
		(file[len] == '\0' || (attr == Anum_pg_proc_probin && strcmp(file + len, DLSUFFIX) == 0));
	pfree(string);
	return result;
}

static bool
proc_is(HeapTuple proc, const char *name, const char *library)
{
	return name != NULL &&
		proc_has_name(proc, Anum_pg_proc_prosrc, name) &&
		proc_has_name(proc, Anum_pg_proc_probin, library);
}

/*
 * Is this function the handler of nvm_vlog or nvm_cmdlog; or, if any will do, another
 * one of the library, or the one that was registered?
 */
static bool
handler_is_ours(Oid handler, bool any)
{
	HeapTuple	proc = SearchSysCache1(PROCOID, ObjectIdGetDatum(handler));
	bool		result;

	if (!HeapTupleIsValid(proc))
		return false;
	result = ((Form_pg_proc) GETSTRUCT(proc))->prolang == ClanguageId &&
		(proc_is(proc, "nvm_vlog_handler", "pg_nvm") ||
		 proc_is(proc, "nvm_cmdlog_handler", "pg_nvm") ||
		 (any && (proc_is(proc, "nvm_tableam_handler", "pg_nvm") ||
				  proc_is(proc, other_handler, other_library))));
	ReleaseSysCache(proc);
	return result;
}

/*
 * By the catalogs.  To ask the handler would load the libraries of others, one
 * of which may be missing or broken, in a command that does not open its tables.
 */
static bool
access_method_is_ours(Oid am, bool any)
{
	HeapTuple	tuple;
	Form_pg_am	form;
	bool		result;

	if (am == HEAP_TABLE_AM_OID)
		return false;
	tuple = SearchSysCache1(AMOID, ObjectIdGetDatum(am));
	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_am) GETSTRUCT(tuple);
	result = form->amtype == AMTYPE_TABLE && handler_is_ours(form->amhandler, any);
	ReleaseSysCache(tuple);
	return result;
}

/*
 * See nvm_relation.h.
 */
bool
nvm_access_method_is_ours(Oid am)
{
	return access_method_is_ours(am, true);
}

/*
 * See nvm_relation.h.
 */
bool
nvm_access_method_is_in_memory(Oid am)
{
	return access_method_is_ours(am, false);
}

/*
 * See nvm_relation.h.
 */
bool
nvm_table_is_being_rebuilt(Relation rel)
{
	uint32		dir;

	if (nvm_log_is_whole())
		return false;
	dir = nvm_storage_find(rel, NULL);
	return dir != 0 && nvm_storage_is_being_rebuilt(dir);
}

/*
 * Find rel's storage and remember it in rd_amcache, which the relcache frees
 * as one chunk at any invalidation.  See nvm_rel_cache.
 */
NvmRelCache *
nvm_rel_cache_slow(Relation rel)
{
	NvmLocator	locator = NvmRelLocator(rel);
	NvmStorageKey key;
	NvmRelState *state;
	NvmRelCache *cache;
	uint32		dir;

	nvm_table_require();

	dir = nvm_storage_find(rel, &key);
	if (dir == 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("rows of nvm table \"%s\" are lost",
						RelationGetRelationName(rel)),
				 errdetail("The persistent-memory pool has no storage for database %u, tablespace %u, file number %u: it was made anew, or is not the one that the table was made in%s.",
						   key.database, NvmLocatorSpc(locator), (unsigned) key.relnumber,
						   rel->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED ?
						   ", or the server has run without it, which may have emptied the indexes of UNLOGGED tables" : ""),
				 errhint("TRUNCATE the table to use it again, empty, or DROP it; or restore the pool and the data directory together from a backup taken while the server was stopped.")));

	nvm_storage_require_rows(dir, RelationGetRelationName(rel));
	state = nvm_rel_open(dir);

	cache = (NvmRelCache *) MemoryContextAllocZero(CacheMemoryContext,
												   sizeof(NvmRelCache));
	cache->state = state;
	cache->dir = dir;
	nvm_rel_cache_drop(rel);
	rel->rd_amcache = cache;
	nvm_storage_tell_stats(rel, state);
	return cache;
}

/*
 * Has rel an index that does not lie in the pool?  Also one that is not ready
 * yet, or not any more, to be on the safe side.
 */
static bool
relation_has_others_index(Relation rel)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *lc;
	bool		others = false;

	foreach(lc, indexes)
		others |= !nvm_index_is_ours(lfirst_oid(lc));
	list_free(indexes);
	return others;
}

/*
 * See nvm_relation.h.
 *
 * What is learnt is kept only if no invalidation has come by meanwhile: that
 * would have taken BEING_LEARNT away.  A statement has listed the indexes
 * that it adds entries to before it comes here, and nobody drops an index on
 * which it holds a lock.
 */
void
nvm_note_entries_slow(Relation rel)
{
	bool		others;

	if (nvm_rel_cache(rel)->entries != NVM_ENTRIES_OTHERS)
	{
		nvm_rel_cache(rel)->entries = NVM_ENTRIES_BEING_LEARNT;
		/* indexes of other tables are emptied by a crash, as these tables are */
		others = RelationIsPermanent(rel) && relation_has_others_index(rel);
		if (nvm_rel_cache(rel)->entries == NVM_ENTRIES_BEING_LEARNT)
			nvm_rel_cache(rel)->entries = others ? NVM_ENTRIES_OTHERS : NVM_ENTRIES_OURS;
		if (!others)
			return;
	}
	nvm_xact_rests_on_wal();
}

/*
 * Forget what rd_amcache says about rel's storage.
 */
void
nvm_rel_cache_drop(Relation rel)
{
	if (rel->rd_amcache != NULL)
	{
		pfree(rel->rd_amcache);
		rel->rd_amcache = NULL;
	}
}
