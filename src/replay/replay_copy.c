/*-------------------------------------------------------------------------
 *
 * replay_copy.c
 *	  The copy: tables like those of nvm_cmdlog, in a schema of their own.
 *
 * A table of the copy has the columns of its original one by one, dropped ones included, since
 * the plans of the original read its rows.  It has the values of columns that were added
 * later, where rows do not have them.  It has no defaults, constraints, triggers or policies:
 * calls are made on the originals, whose columns and triggers are asked, and rows of value records
 * have been through them.
 *
 * The schema is told by its comment from one that somebody else has made.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/heap.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "command/nvm_command.h"
#include "commands/comment.h"
#include "commands/defrem.h"
#include "compat/nvm_compat.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "pool/nvm_pool.h"
#include "replay/nvm_replay_copy.h"
#include "replay/replay_copy_impl.h"
#include "row/nvm_relation.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "xact/nvm_storage.h"

/* the schema's comment */
#define COPY_COMMENT	"pg_nvm: copies of nvm_cmdlog tables, made by a replay of the command log"

/* ---- which tables ---- */

/*
 * See replay_copy_impl.h.
 */
List *
nvm_replay_open_originals(void)
{
	Relation	pg_class = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(pg_class, InvalidOid, false, NULL, 0, NULL);
	List	   *candidates = NIL;
	List	   *originals = NIL;
	ListCell   *lc;
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if ((form->relkind == RELKIND_RELATION || form->relkind == RELKIND_MATVIEW) &&
			form->relpersistence == RELPERSISTENCE_PERMANENT &&
			nvm_access_method_is_in_memory(form->relam))
			candidates = lappend_oid(candidates, form->oid);
	}
	systable_endscan(scan);
	table_close(pg_class, AccessShareLock);

	foreach(lc, candidates)
	{
		/* it may have been dropped meanwhile, or become another one */
		Relation	rel = try_relation_open(lfirst_oid(lc), AccessShareLock);

		if (rel == NULL)
			continue;
		if (nvm_command_is_table(rel))
			originals = lappend(originals, rel);
		else
			relation_close(rel, AccessShareLock);
	}
	list_free(candidates);
	return originals;
}

static bool
shares_name(List *originals, Relation rel)
{
	ListCell   *lc;

	foreach(lc, originals)
	{
		Relation	other = (Relation) lfirst(lc);

		if (other != rel &&
			strcmp(RelationGetRelationName(other), RelationGetRelationName(rel)) == 0)
			return true;
	}
	return false;
}

/*
 * See replay_copy_impl.h.
 */
char *
nvm_replay_choose_name(Relation original, Oid schema, bool is_taken)
{
	char	   *name = pstrdup(RelationGetRelationName(original));
	char		suffix[NAMEDATALEN];

	snprintf(suffix, sizeof(suffix), "%u", RelationGetRelid(original));
	if (is_taken || OidIsValid(get_relname_relid(name, schema)))
		name = makeObjectName(RelationGetRelationName(original), suffix, NULL);
	for (int i = 2; OidIsValid(get_relname_relid(name, schema)); i++)
	{
		snprintf(suffix, sizeof(suffix), "%u_%d", RelationGetRelid(original), i);
		name = makeObjectName(RelationGetRelationName(original), suffix, NULL);
	}
	return name;
}

/* ---- one table ---- */

/*
 * What a column has in rows that are older than it: as in the original.
 */
static void
copy_missing_values(Relation original, Oid copy)
{
	TupleDesc	desc = RelationGetDescr(original);
	Relation	pg_attribute = NULL;

	for (AttrNumber attnum = 1; attnum <= desc->natts; attnum++)
	{
		HeapTuple	from;
		HeapTuple	to;
		HeapTuple	changed;
		Datum		values[Natts_pg_attribute] = {0};
		bool		nulls[Natts_pg_attribute] = {0};
		bool		replaces[Natts_pg_attribute] = {0};
		bool		isnull;

		if (!TupleDescAttr(desc, attnum - 1)->atthasmissing)
			continue;
		if (pg_attribute == NULL)
			pg_attribute = table_open(AttributeRelationId, RowExclusiveLock);
		from = SearchSysCache2(ATTNUM, ObjectIdGetDatum(RelationGetRelid(original)),
							   Int16GetDatum(attnum));
		to = SearchSysCache2(ATTNUM, ObjectIdGetDatum(copy), Int16GetDatum(attnum));
		if (!HeapTupleIsValid(from) || !HeapTupleIsValid(to))
			elog(ERROR, "cache lookup failed for attribute %d of relation %u", attnum, copy);
		values[Anum_pg_attribute_attmissingval - 1] =
			SysCacheGetAttr(ATTNUM, from, Anum_pg_attribute_attmissingval, &isnull);
		nulls[Anum_pg_attribute_attmissingval - 1] = isnull;
		values[Anum_pg_attribute_atthasmissing - 1] = BoolGetDatum(true);
		replaces[Anum_pg_attribute_attmissingval - 1] = true;
		replaces[Anum_pg_attribute_atthasmissing - 1] = true;
		changed = heap_modify_tuple(to, RelationGetDescr(pg_attribute), values, nulls, replaces);
		CatalogTupleUpdate(pg_attribute, &changed->t_self, changed);
		heap_freetuple(changed);
		ReleaseSysCache(from);
		ReleaseSysCache(to);
	}
	if (pg_attribute != NULL)
		table_close(pg_attribute, RowExclusiveLock);
}

/*
 * The columns of the copy: CreateTupleDescCopy leaves dropped ones in their places, and leaves
 * out NOT NULL, defaults, and what is generated.  The owner is the original's: as that role
 * PostgreSQL runs the functions of the indexes when it makes and analyzes them, and so do we.
 */
static Oid
make_table(Relation original, Oid schema, const char *name)
{
	Oid			relid = RelationGetRelid(original);
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Datum		options;
	bool		isnull;
	Oid			copy;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	options = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_reloptions, &isnull);
	copy = heap_create_with_catalog(name, schema, original->rd_rel->reltablespace,
									InvalidOid, InvalidOid, InvalidOid,
									original->rd_rel->relowner, original->rd_rel->relam,
									CreateTupleDescCopy(RelationGetDescr(original)), NIL,
									RELKIND_RELATION, RELPERSISTENCE_UNLOGGED, false, false,
									ONCOMMIT_NOOP, isnull ? (Datum) 0 : options,
									false, true, true, InvalidOid, NULL);
	ReleaseSysCache(tuple);
	CommandCounterIncrement();
	copy_missing_values(original, copy);
	CommandCounterIncrement();
	return copy;
}

/*
 * See replay_copy_impl.h.
 */
void
nvm_replay_storage_of(Relation rel, NvmStorageKey *key)
{
	NvmLocator	locator = NvmRelLocator(rel);

	nvm_storage_key(rel, &locator, key);
}

/*
 * Make the copy of one table with its indexes, and note both.
 */
static NvmReplayTable *
make_copy(Relation original, Oid schema, bool is_taken, List **indexes)
{
	NvmReplayTable *table = palloc0(sizeof(NvmReplayTable));
	Relation	copy;

	table->original = RelationGetRelid(original);
	table->dir = nvm_rel_cache(original)->dir;
	table->creation = nvm_dir_entry(table->dir)->creation_id;
	nvm_replay_storage_of(original, &table->from);
	table->copy = make_table(original, schema,
							 nvm_replay_choose_name(original, schema, is_taken));
	copy = table_open(table->copy, AccessExclusiveLock);
	nvm_replay_storage_of(copy, &table->to);
	*indexes = nvm_replay_make_indexes(original, copy, schema, &table->key_index);
	table->nindexes = list_length(*indexes);
	table_close(copy, NoLock);
	return table;
}

/* ---- the map ---- */

static int
compare_tables(const void *a, const void *b)
{
	uint32		x = (*(NvmReplayTable *const *) a)->dir;
	uint32		y = (*(NvmReplayTable *const *) b)->dir;

	return x < y ? -1 : x > y;
}

/*
 * See replay_copy_impl.h.
 */
NvmReplayMap *
nvm_replay_make_map(NvmReplayTable **tables, int n, List *indexes)
{
	Size		size = offsetof(NvmReplayMap, tables) + n * sizeof(NvmReplayTable) +
	list_length(indexes) * sizeof(NvmReplayIndex);
	NvmReplayMap *map = palloc0(size);
	NvmReplayIndex *to = (NvmReplayIndex *) &map->tables[n];
	ListCell   *lc;

	map->size = size;
	map->ntables = n;
	map->nindexes = list_length(indexes);
	qsort(tables, n, sizeof(NvmReplayTable *), compare_tables);
	for (int i = 0; i < n; i++)
		map->tables[i] = *tables[i];
	foreach(lc, indexes)
		* to++ = *(NvmReplayIndex *) lfirst(lc);
	return map;
}

/*
 * See nvm_replay_copy.h.
 */
const NvmReplayTable *
nvm_replay_find(const NvmReplayMap *map, uint32 dir)
{
	int			from = 0;
	int			to = map->ntables;

	while (from < to)
	{
		int			middle = (from + to) / 2;

		if (map->tables[middle].dir == dir)
			return &map->tables[middle];
		if (map->tables[middle].dir < dir)
			from = middle + 1;
		else
			to = middle;
	}
	return NULL;
}

/* ---- the schema ---- */

static void
require_superuser(void)
{
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to make or drop a copy of nvm_cmdlog tables")));
}

/*
 * Default privileges are those of other schemas: this one is its owner's alone, a
 * superuser.
 */
static Oid
make_schema(const char *name)
{
	Oid			schema;

	if (OidIsValid(get_namespace_oid(name, true)))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_SCHEMA),
				 errmsg("schema \"%s\" already exists", name)));
	schema = NamespaceCreate(name, GetUserId(), true);
	CreateComments(schema, NamespaceRelationId, 0, COPY_COMMENT);
	CommandCounterIncrement();
	return schema;
}

/*
 * See nvm_replay_copy.h.
 */
NvmReplayMap *
nvm_replay_copy_make(const char *schema)
{
	List	   *originals;
	List	   *indexes = NIL;
	NvmReplayTable **tables;
	int			n = 0;
	ListCell   *lc;
	Oid			namespace;

	require_superuser();
	nvm_table_require();
	originals = nvm_replay_open_originals();
	namespace = make_schema(schema);
	tables = palloc(sizeof(NvmReplayTable *) * (list_length(originals) + 1));
	foreach(lc, originals)
	{
		Relation	original = (Relation) lfirst(lc);
		List	   *its_indexes;

		tables[n] = make_copy(original, namespace, shares_name(originals, original),
							  &its_indexes);
		tables[n++]->first_index = list_length(indexes);
		indexes = list_concat(indexes, its_indexes);
		CHECK_FOR_INTERRUPTS();
	}
	foreach(lc, originals)
		relation_close((Relation) lfirst(lc), NoLock);
	return nvm_replay_make_map(tables, n, indexes);
}

/*
 * See nvm_replay_copy.h.
 */
bool
nvm_replay_copy_drop(const char *schema)
{
	Oid			namespace = get_namespace_oid(schema, true);
	ObjectAddress object;
	char	   *comment;

	require_superuser();
	if (!OidIsValid(namespace))
		return false;
	comment = GetComment(namespace, NamespaceRelationId, 0);
	if (comment == NULL || strcmp(comment, COPY_COMMENT) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_SCHEMA),
				 errmsg("schema \"%s\" is not one that a replay has made", schema),
				 errhint("Rename it.")));
	ObjectAddressSet(object, NamespaceRelationId, namespace);
	performDeletion(&object, DROP_CASCADE, PERFORM_DELETION_INTERNAL | PERFORM_DELETION_QUIETLY);
	CommandCounterIncrement();
	return true;
}

/* ---- a process is led there ---- */

/*
 * See replay_copy_impl.h.
 */
bool
nvm_replay_must_be_redirected(Relation rel)
{
	Relation	table;
	bool		must;

	if (rel->rd_index == NULL)
		return nvm_command_is_table(rel);
	/* one that was never built is asked for its storage, and has none */
	if (!RelationIsPermanent(rel) || !rel->rd_index->indisready)
		return false;
	table = RelationIdGetRelation(rel->rd_index->indrelid);
	if (table == NULL)
		return true;
	must = nvm_command_is_table(table);
	RelationClose(table);
	return must;
}

/*
 * See nvm_replay_copy.h.
 */
void
nvm_replay_redirect(const NvmReplayMap *map)
{
	const NvmReplayIndex *indexes = nvm_replay_indexes(map);

	/* what is done to a copy is nothing that was done to its original */
	SetConfigOption("track_counts", "off", PGC_SUSET, PGC_S_SESSION);
	for (int i = 0; i < map->ntables; i++)
		nvm_storage_redirect(&map->tables[i].from, &map->tables[i].to);
	for (int i = 0; i < map->nindexes; i++)
		nvm_storage_redirect(&indexes[i].from, &indexes[i].to);
	nvm_storage_redirect_only(nvm_replay_must_be_redirected);
}
