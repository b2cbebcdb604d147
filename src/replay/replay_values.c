/*-------------------------------------------------------------------------
 *
 * replay_values.c
 *	  Records of values: their rows into the copy.
 *
 * A record names a row by the TID of its root, which says nothing in the copy.  README.md,
 * "Which rows a value record means", says what does: the key, or the checksum of what the
 * row contained.
 *
 * Rows that are found by checksum are looked for first, all those of a table by one
 * sequential scan: nothing of the record has been done then.  Next come the rows that go,
 * and then those that are there.  Each change is a command of its own, so a row that a record has
 * twice is found as the first of them has left it.
 *
 * In memory are rows that go, and those of tables without a key, each once.  Rows of tables with a
 * key are read again, and done one by one.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "compat/nvm_compat_vacuum.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"
#include "replay/nvm_replay_rows.h"
#include "replay/replay_write.h"
#include "row/nvm_image.h"
#include "row/nvm_large.h"
#include "row/nvm_relation.h"
#include "row/nvm_tuple_slot.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_log.h"

/* a row of a record */
typedef struct RowKey
{
	uint32		dir;
	uint32		block;
	uint32		offset;
} RowKey;

typedef struct Row
{
	RowKey		key;
	struct Row *next;			/* of the same table, and of the same checksum */
	struct Row *next_wanted;
	const NvmLogRow *old;		/* or NULL */
	const NvmLogRow *first;		/* it, or the first of its pieces */
	bool		is_gone;
	bool		by_checksum;	/* it is to be found by its checksum */
	bool		is_found;
	ItemPointerData tid;		/* then */
} Row;

/* rows with this checksum that are to be found */
typedef struct Wanted
{
	uint64		checksum;		/* key */
	Row		   *rows;
} Wanted;

/* a table of the record */
typedef struct Table
{
	uint32		dir;			/* key */
	NvmReplayTarget *target;
	Relation	key;			/* the index, or NULL */
	Row		   *rows;			/* what is remembered of it */
	uint32		nwanted;		/* of these, by checksum */
	HTAB	   *wanted;
} Table;

typedef struct Values
{
	const NvmReplayMap *map;
	NvmReplayCount *count;
	MemoryContext context;
	HTAB	   *tables;
	HTAB	   *rows;
} Values;

static HTAB *
make_hash(Values *values, const char *name, Size key, Size entry)
{
	HASHCTL		ctl = {.keysize = key,.entrysize = entry,.hcxt = values->context};

	return hash_create(name, 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* ---- what the record has ---- */

/*
 * The table of a section; NULL if it is none of the map.
 */
static Table *
find_table(Values *values, const NvmLogSection *section)
{
	const NvmReplayTable *mapped = nvm_replay_find(values->map, section->dir);
	Table	   *table;
	bool		found;

	if (mapped == NULL)
		return NULL;
	if (mapped->creation != section->creation)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" was made or rewritten since the checkpoint",
						get_rel_name(mapped->original)),
				 errhint("Make a checkpoint with nvm.checkpoint(), let the application work, and begin the replay anew.")));
	table = hash_search(values->tables, &section->dir, HASH_ENTER, &found);
	if (!found)
	{
		memset(table, 0, sizeof(*table));
		table->dir = section->dir;
		table->target = nvm_replay_target_open(mapped);
		if (OidIsValid(mapped->key_index))
			table->key = index_open(mapped->key_index, RowExclusiveLock);
	}
	return table;
}

/*
 * The columns of the key in the tuple of an old row.  False if they do not suffice: one lies
 * outside of the block, or is null.
 */
static bool
old_key(Table *table, HeapTuple tuple, Datum *values, bool *isnull)
{
	TupleDesc	desc = RelationGetDescr(table->target->rel);

	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(table->key); i++)
	{
		AttrNumber	attnum = table->key->rd_index->indkey.values[i];

		values[i] = heap_getattr(tuple, attnum, desc, &isnull[i]);
		if (isnull[i] || (TupleDescAttr(desc, attnum - 1)->attlen == -1 &&
						  VARATT_IS_EXTERNAL(DatumGetPointer(values[i]))))
			return false;
	}
	return true;
}

static HeapTuple
old_tuple(const NvmLogRow *old)
{
	HeapTuple	tuple = nvm_image_tuple(NVM_LOG_OLD_TUPLE(old), NVM_LOG_OLD_LENGTH(old));

	if (tuple == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the log has an old row that cannot be read"),
				 errdetail("Row (%u,%u).", old->block, NVM_LOG_OFFSET(old))));
	return tuple;
}

static bool
is_by_key(Table *table, const NvmLogRow *old)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	HeapTuple	tuple;
	bool		result;

	if (table->key == NULL || NVM_LOG_OLD_LENGTH(old) == 0)
		return false;
	tuple = old_tuple(old);
	result = old_key(table, tuple, values, isnull);
	heap_freetuple(tuple);
	return result;
}

/*
 * It is to be found by its checksum, which several rows may have.
 */
static void
want(Values *values, Table *table, Row *row)
{
	uint64		checksum = nvm_log_old_checksum(row->old);
	Wanted	   *wanted;
	bool		found;

	if (table->wanted == NULL)
		table->wanted = make_hash(values, "nvm rows to be found", sizeof(uint64), sizeof(Wanted));
	wanted = hash_search(table->wanted, &checksum, HASH_ENTER, &found);
	if (!found)
		wanted->rows = NULL;
	row->by_checksum = true;
	row->next_wanted = wanted->rows;
	wanted->rows = row;
	table->nwanted++;
}

/*
 * Remember a row.  What comes again says the same.
 */
static void
remember(Values *values, Table *table, const NvmLogRow *item, const NvmLogRow *first,
		 const NvmLogRow *old)
{
	RowKey		key = {.dir = table->dir,.block = item->block,.offset = item->offset};
	bool		found;
	Row		   *row = hash_search(values->rows, &key, HASH_ENTER, &found);

	if (found)
		return;
	row->next = table->rows;
	table->rows = row;
	row->next_wanted = NULL;
	row->old = old;
	row->first = first;
	row->is_gone = item->length == 0;
	row->by_checksum = row->is_found = false;
	if (old != NULL && !is_by_key(table, old))
		want(values, table, row);
	else if (old == NULL && row->is_gone)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the log does not say which row of table \"%s\" was deleted",
						get_rel_name(table->target->table->original)),
				 errdetail("The record was written before version 4 of the log, or by a transaction that did not know the table for one of nvm_cmdlog."),
				 errhint("Make a checkpoint with nvm.checkpoint(), let the application work, and begin the replay anew.")));
}

/*
 * Go through the rows of the record, those of each table as its owner.  `each` is
 * called with those that are there and are named by their key; without it, all
 * others are remembered.
 */
static void
walk_rows(Values *values, const NvmLogWalk *body,
		  void (*each) (Values *values, Table *table, const NvmLogRow *first))
{
	NvmLogWalk	storages = *body;
	NvmLogSection section;
	const NvmLogRow *first = NULL;
	const NvmLogRow *old = NULL;

	while (nvm_log_next_storage(&storages, &section))
	{
		Table	   *table = find_table(values, &section);
		NvmLogWalk	items;
		const NvmLogRow *item;

		if (table == NULL)
			continue;
		nvm_replay_target_enter(table->target);
		nvm_log_walk_rows(&items, &section);
		while (nvm_log_next_item(&items, &item))
		{
			CHECK_FOR_INTERRUPTS();
			if (nvm_log_is_old(item))
			{
				old = item;
				continue;
			}
			if (first == NULL)
				first = item;
			if (nvm_log_is_piece(item))
				continue;
			if (item->length != 0 && old == NULL && table->key != NULL)
			{
				if (each != NULL)
					each(values, table, first);
			}
			else if (each == NULL)
				remember(values, table, item, first, old);
			first = old = NULL;
		}
		nvm_replay_target_leave(table->target);
	}
}

/* ---- rows of the copy ---- */

/*
 * Rows that follow see what was changed.
 */
static void
changed(uint64 *count)
{
	(*count)++;
	CommandCounterIncrement();
	UpdateActiveSnapshotCommandId();
}

/*
 * Find rows by their checksums.  Of those with the same one any will do.
 */
static void
find_by_checksum(Table *table)
{
	NvmReplayTarget *target = table->target;
	NvmRelState *state = nvm_rel(target->rel);
	TupleTableSlot *slot = target->found;
	TableScanDesc scan;
	uint32		nmissing = table->nwanted;

	if (nmissing == 0)
		return;
	scan = table_beginscan(target->rel, GetActiveSnapshot(), 0, NULL);
	while (nmissing > 0 && table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		uint64		checksum = nvm_version_checksum(state, ((NvmTupleTableSlot *) slot)->version,
													target->table->original, false);
		Wanted	   *wanted = hash_search(table->wanted, &checksum, HASH_FIND, NULL);

		CHECK_FOR_INTERRUPTS();
		if (wanted == NULL || wanted->rows == NULL)
			continue;
		wanted->rows->tid = slot->tts_tid;
		wanted->rows->is_found = true;
		wanted->rows = wanted->rows->next_wanted;
		nmissing--;
	}
	ExecClearTuple(slot);
	table_endscan(scan);
	if (nmissing > 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the copy of table \"%s\" does not have %u of the rows that the log says were deleted or changed",
						get_rel_name(target->table->original), nmissing),
				 errdetail("The table has no key: these rows were looked for by the checksums of what they contained.")));
}

/*
 * Find a row by the columns of the key, into ->found.
 */
static bool
find_by_key(Table *table, Datum *values)
{
	NvmReplayTarget *target = table->target;
	int			nkeys = IndexRelationGetNumberOfKeyAttributes(table->key);
	ScanKeyData keys[INDEX_MAX_KEYS];
	IndexScanDesc scan;
	bool		found;

	for (int i = 0; i < nkeys; i++)
	{
		Oid			type = table->key->rd_opcintype[i];
		Oid			equal = get_opfamily_member(table->key->rd_opfamily[i], type, type,
												BTEqualStrategyNumber);

		if (!OidIsValid(equal))
			elog(ERROR, "missing operator %d(%u,%u) in opfamily %u",
				 BTEqualStrategyNumber, type, type, table->key->rd_opfamily[i]);
		ScanKeyEntryInitialize(&keys[i], 0, i + 1, BTEqualStrategyNumber, InvalidOid,
							   table->key->rd_indcollation[i], get_opcode(equal), values[i]);
	}
	scan = nvm_index_scan_keys(target->rel, table->key, GetActiveSnapshot(), nkeys);
	index_rescan(scan, keys, nkeys, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, target->found);
	index_endscan(scan);
	return found;
}

/*
 * Find the row that a remembered one is about, into ->found.
 */
static void
fetch(Table *table, const Row *row)
{
	NvmReplayTarget *target = table->target;
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	HeapTuple	tuple;

	if (row->by_checksum)
	{
		if (!table_tuple_fetch_row_version(target->rel, unconstify(ItemPointerData *, &row->tid),
										   GetActiveSnapshot(), target->found))
			elog(ERROR, "row (%u,%u) of table \"%s\" has gone meanwhile",
				 ItemPointerGetBlockNumber(&row->tid), ItemPointerGetOffsetNumber(&row->tid),
				 RelationGetRelationName(target->rel));
		return;
	}
	tuple = old_tuple(row->old);
	if (!old_key(table, tuple, values, isnull))
		elog(ERROR, "an old row has no key");
	if (!find_by_key(table, values))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the copy of table \"%s\" does not have a row that the log says was %s",
						get_rel_name(target->table->original),
						row->is_gone ? "deleted" : "changed"),
				 errdetail("Key %s.", BuildIndexValueDescription(table->key, values, isnull))));
	heap_freetuple(tuple);
}

/* ---- what is done ---- */

static void
delete_rows(Values *values, Table *table)
{
	for (Row *row = table->rows; row != NULL; row = row->next)
	{
		if (!row->is_gone)
			continue;
		CHECK_FOR_INTERRUPTS();
		fetch(table, row);
		nvm_replay_delete(table->target);
		changed(&values->count->deleted);
	}
}

static void
write_row(Values *values, Table *table, bool found)
{
	if (found)
		nvm_replay_update(table->target);
	else
		nvm_replay_insert(table->target);
	changed(found ? &values->count->updated : &values->count->inserted);
	ExecClearTuple(table->target->slot);
	ExecClearTuple(table->target->found);
}

/*
 * Rows that are remembered and there.
 */
static void
write_rows(Values *values, Table *table)
{
	for (Row *row = table->rows; row != NULL; row = row->next)
	{
		if (row->is_gone)
			continue;
		CHECK_FOR_INTERRUPTS();
		if (row->old != NULL)
			fetch(table, row);
		nvm_replay_fill_slot(table->target->slot, row->first);
		write_row(values, table, row->old != NULL);
	}
}

/*
 * A row that its key names.
 */
static void
write_by_key(Values *values, Table *table, const NvmLogRow *first)
{
	TupleTableSlot *slot = table->target->slot;
	Datum		key[INDEX_MAX_KEYS];
	bool		isnull;

	nvm_replay_fill_slot(slot, first);
	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(table->key); i++)
	{
		key[i] = slot_getattr(slot, table->key->rd_index->indkey.values[i], &isnull);
		if (isnull)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("the log has a row of table \"%s\" whose key is null",
							get_rel_name(table->target->table->original))));
	}
	write_row(values, table, find_by_key(table, key));
}

/*
 * Of tables that have rows to be remembered: as the owner of each.
 */
static void
each_table(Values *values, void (*act) (Values *values, Table *table))
{
	HASH_SEQ_STATUS seq;
	Table	   *table;

	hash_seq_init(&seq, values->tables);
	while ((table = hash_seq_search(&seq)) != NULL)
	{
		if (table->rows == NULL)
			continue;
		nvm_replay_target_enter(table->target);
		act(values, table);
		nvm_replay_target_leave(table->target);
	}
}

static void
find_rows(Values *values, Table *table)
{
	find_by_checksum(table);
}

static void
close_tables(Values *values)
{
	HASH_SEQ_STATUS seq;
	Table	   *table;

	hash_seq_init(&seq, values->tables);
	while ((table = hash_seq_search(&seq)) != NULL)
	{
		if (table->key != NULL)
			index_close(table->key, NoLock);
		nvm_replay_target_close(table->target);
	}
}

/*
 * See nvm_replay_rows.h.
 */
void
nvm_replay_values(const NvmReplayMap *map, const NvmLogWalk *body, NvmReplayCount *count)
{
	Values		values = {.map = map,.count = count};
	MemoryContext oldcontext;

	values.context = AllocSetContextCreate(CurrentMemoryContext, "nvm rows of a record",
										   ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(values.context);
	values.tables = make_hash(&values, "nvm tables of a record", sizeof(uint32), sizeof(Table));
	values.rows = make_hash(&values, "nvm rows of a record", sizeof(RowKey), sizeof(Row));
	CommandCounterIncrement();
	PushCopiedSnapshot(GetLatestSnapshot());
	walk_rows(&values, body, NULL);
	each_table(&values, find_rows);
	each_table(&values, delete_rows);
	each_table(&values, write_rows);
	walk_rows(&values, body, write_by_key);
	close_tables(&values);
	PopActiveSnapshot();
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(values.context);
}
