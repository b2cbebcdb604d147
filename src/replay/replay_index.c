/*-------------------------------------------------------------------------
 *
 * replay_index.c
 *	  Indexes of the copy.
 *
 * Each index of an original has one in the copy: its storage is what a redirected process finds
 * for the original's.  Columns, expressions, predicate, operator classes, and whether it
 * is unique, are the same.  What concerns those who write rows is left out, for these look at
 * the original: that it belongs to a constraint, is deferrable, or excludes.  A record of
 * values has what was there at COMMIT, so the copy's own unique indexes need not be deferrable.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/attmap.h"
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_identity.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "command/nvm_command.h"
#include "compat/nvm_compat_index.h"
#include "nodes/parsenodes.h"
#include "parser/parse_utilcmd.h"
#include "replay/nvm_replay_copy.h"
#include "replay/replay_copy_impl.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"

static AttrMap *
same_columns(int natts)
{
	AttrMap    *map = make_attrmap(natts);

	for (int i = 0; i < natts; i++)
		map->attnums[i] = i + 1;
	return map;
}

/*
 * Make an index that says btree, whatever this process has for settings.
 */
static Oid
define_as_ours(Relation copy, IndexStmt *stmt)
{
	volatile Oid index = InvalidOid;

	nvm_index_identity_forced = true;
	PG_TRY();
	{
		index = NvmDefineIndex(RelationGetRelid(copy), stmt).objectId;
	}
	PG_FINALLY();
	{
		nvm_index_identity_forced = false;
	}
	PG_END_TRY();
	return index;
}

/*
 * Rows of one that is not valid may not be unique.  DefineIndex becomes the owner of the copy
 * before it looks at expressions.
 */
static Oid
make_index(Relation original, Relation copy, Oid schema)
{
	AttrMap    *map = same_columns(RelationGetDescr(copy)->natts);
	Oid			constraint;
	IndexStmt  *stmt = generateClonedIndexStmt(NULL, original, map, &constraint);
	Oid			index;

	stmt->idxname = nvm_replay_choose_name(original, schema, false);
	stmt->unique &= original->rd_index->indisvalid;
	stmt->primary = stmt->isconstraint = stmt->deferrable = stmt->initdeferred = false;
	stmt->excludeOpNames = NIL;
	if (nvm_index_says_btree(original))
		index = define_as_ours(copy, stmt);
	else
	{
		nvm_btree_name_opclasses(stmt);
		index = NvmDefineIndex(RelationGetRelid(copy), stmt).objectId;
	}
	free_attrmap(map);
	CommandCounterIncrement();
	return index;
}

/*
 * See replay_copy_impl.h.
 */
void
nvm_replay_require_btree(Relation original, Relation index)
{
	if (index->rd_rel->relkind != RELKIND_INDEX || !nvm_relation_is_btree(index))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("table \"%s\" cannot be replayed: index \"%s\" is not in memory",
						RelationGetRelationName(original), RelationGetRelationName(index)),
				 errdetail("Entries of other indexes lie in files, where a replay cannot have others of its own."),
				 errhint("Use btree with nvm.default_index_method = nvm_btree, or drop the index for the time of the replay.")));
}

/*
 * See replay_copy_impl.h.
 */
List *
nvm_replay_make_indexes(Relation original, Relation copy, Oid schema, Oid *key_index)
{
	List	   *oids = RelationGetIndexList(original);
	List	   *result = NIL;
	Oid			key = nvm_command_key_index(original);
	ListCell   *lc;

	*key_index = InvalidOid;
	PushActiveSnapshot(GetTransactionSnapshot());
	foreach(lc, oids)
	{
		NvmReplayIndex *pair = palloc0(sizeof(NvmReplayIndex));
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		Relation	other;

		nvm_replay_storage_of(index, &pair->from);
		if (nvm_replay_never_built(index, &pair->from))
		{
			index_close(index, NoLock);
			continue;
		}
		nvm_replay_require_btree(original, index);
		pair->original = RelationGetRelid(index);
		pair->copy = make_index(index, copy, schema);
		other = index_open(pair->copy, AccessShareLock);
		nvm_replay_storage_of(other, &pair->to);
		index_close(other, NoLock);
		if (pair->original == key)
			*key_index = pair->copy;
		index_close(index, NoLock);
		result = lappend(result, pair);
	}
	PopActiveSnapshot();
	list_free(oids);
	return result;
}
