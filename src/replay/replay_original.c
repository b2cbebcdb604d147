/*-------------------------------------------------------------------------
 *
 * replay_original.c
 *	  The tables themselves: what a replay after a loss works on.
 *
 * They have the rows of the checkpoint, and are closed to everybody else.  The map says of each
 * that it is its own copy.  So all that is held about a copy holds here: a process of the
 * replay finds no other table of nvm_cmdlog, and writes no other rows.
 *
 * README.md, "After a loss".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/xact.h"
#include "btree/nvm_btree_persist.h"
#include "command/nvm_command.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"
#include "replay/nvm_replay_copy.h"
#include "replay/replay_copy_impl.h"
#include "row/nvm_relation.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"
#include "xact/nvm_storage.h"

/*
 * Who empties the table empties the index, too.
 */
static void
close_index(const NvmStorageKey *key)
{
	uint32		dir = nvm_dir_lookup(key);

	if (dir != 0)
		nvm_log_close(dir, nvm_dir_entry(dir)->creation_id);
}

/*
 * See replay_copy_impl.h.
 */
bool
nvm_replay_never_built(Relation index, const NvmStorageKey *key)
{
	return !index->rd_index->indisready && nvm_dir_lookup(key) == 0;
}

static List *
list_indexes(Relation rel)
{
	List	   *oids = RelationGetIndexList(rel);
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, oids)
	{
		NvmReplayIndex *pair = palloc0(sizeof(NvmReplayIndex));
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		pair->original = pair->copy = RelationGetRelid(index);
		nvm_replay_storage_of(index, &pair->from);
		pair->to = pair->from;
		if (!nvm_replay_never_built(index, &pair->from))
		{
			nvm_replay_require_btree(rel, index);
			close_index(&pair->from);
			result = lappend(result, pair);
		}
		index_close(index, NoLock);
	}
	list_free(oids);
	return result;
}

static NvmReplayTable *
make_entry(Relation rel, uint32 dir)
{
	NvmReplayTable *table = palloc0(sizeof(NvmReplayTable));

	table->original = table->copy = RelationGetRelid(rel);
	table->key_index = nvm_command_key_index(rel);
	table->dir = dir;
	table->creation = nvm_dir_entry(dir)->creation_id;
	nvm_replay_storage_of(rel, &table->from);
	table->to = table->from;
	return table;
}

/*
 * See nvm_replay_copy.h.  A table that is open was made, or has got another storage, since the
 * start.
 */
NvmReplayMap *
nvm_replay_originals(void)
{
	List	   *originals;
	List	   *indexes = NIL;
	NvmReplayTable **tables;
	int			n = 0;
	ListCell   *lc;

	Assert(nvm_log_replays);
	nvm_table_require();
	originals = nvm_replay_open_originals();
	tables = palloc(sizeof(NvmReplayTable *) * (list_length(originals) + 1));
	foreach(lc, originals)
	{
		Relation	rel = (Relation) lfirst(lc);
		LockRelId	id = rel->rd_lockInfo.lockRelId;
		uint32		dir;
		List	   *its_indexes;

		LockRelationIdForSession(&id, RowExclusiveLock);
		dir = nvm_rel_cache(rel)->dir;
		if (nvm_log_is_closed(dir, nvm_dir_entry(dir)->creation_id))
		{
			tables[n] = make_entry(rel, dir);
			its_indexes = list_indexes(rel);
			tables[n]->nindexes = list_length(its_indexes);
			tables[n++]->first_index = list_length(indexes);
			indexes = list_concat(indexes, its_indexes);
		}
		relation_close(rel, NoLock);
		CHECK_FOR_INTERRUPTS();
	}
	return nvm_replay_make_map(tables, n, indexes);
}

/*
 * See nvm_replay_copy.h.
 */
void
nvm_replay_build_indexes(const NvmReplayMap *map)
{
	for (int i = 0; i < map->nindexes; i++)
	{
		Relation	index;

		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		index = index_open(nvm_replay_indexes(map)[i].original, AccessShareLock);
		nvm_index_wait(index);
		index_close(index, NoLock);
		PopActiveSnapshot();
		CommitTransactionCommand();
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * See nvm_replay_copy.h.
 */
void
nvm_replay_stay(const NvmReplayMap *map)
{
	const NvmReplayIndex *indexes = nvm_replay_indexes(map);

	for (int i = 0; i < map->ntables; i++)
		nvm_storage_redirect(&map->tables[i].from, &map->tables[i].to);
	for (int i = 0; i < map->nindexes; i++)
		nvm_storage_redirect(&indexes[i].from, &indexes[i].to);
	nvm_storage_redirect_only(nvm_replay_must_be_redirected);
}
