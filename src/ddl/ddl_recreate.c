/*-------------------------------------------------------------------------
 *
 * ddl_recreate.c
 *	  ALTER COLUMN TYPE makes indexes anew from their definitions.
 *
 * It has the definitions of the column's indexes printed, drops the indexes,
 * and parses the printed definitions, all by itself.  Three things of an index
 * of ours get lost, or stand in its way:
 *
 * - A constraint's definition names no access method: its index is made as
 *	 btree's, and becomes ours before it is built (nvm_ddl_recreated_index).
 * - Index parameter persistence is an error for btree.  So it is taken from
 * the index of a constraint before the command, and given to the index that
 * takes its place. - An operator class is printed as btree's, since indclass
 * says so.  Then it is looked up among ours, where it may have another name,
 * or another schema.  So indclass names ours meanwhile.  Only the catalogs
 * change, since the printing reads them: a relcache entry of an index of the
 * same transaction would keep ours when the command fails and a subtransaction
 * ends.
 *
 * Indexes that the command leaves alone get everything back.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/reloptions.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "btree/nvm_btree.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/defrem.h"
#include "commands/tablecmds.h"
#include "compat/nvm_compat_am.h"
#include "ddl/nvm_ddl.h"
#include "nodes/makefuncs.h"
#include "optimizer/optimizer.h"
#include "row/nvm_relation.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

/* what was taken from an index */
typedef struct LaidAside
{
	Oid			index;
	Oid			table;
	char	   *name;
	char	   *persistence;	/* or NULL */
	oidvector  *classes;		/* or NULL */
} LaidAside;

/*
 * Set index parameter persistence of an index, or reset it (NULL).
 */
void
nvm_ddl_set_persistence(Oid indexid, const char *value)
{
	DefElem    *option = makeDefElem("persistence",
									 value ? (Node *) makeString(pstrdup(value)) : NULL, -1);
	Relation	pg_class = table_open(RelationRelationId, RowExclusiveLock);
	HeapTuple	tuple = SearchSysCacheCopy1(RELOID, ObjectIdGetDatum(indexid));
	Datum		values[Natts_pg_class] = {0};
	bool		nulls[Natts_pg_class] = {0};
	bool		replace[Natts_pg_class] = {0};
	Datum		options;
	bool		isnull;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", indexid);
	options = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_reloptions, &isnull);
	options = transformRelOptions(isnull ? (Datum) 0 : options, list_make1(option),
								  NULL, NULL, false, value == NULL);
	values[Anum_pg_class_reloptions - 1] = options;
	nulls[Anum_pg_class_reloptions - 1] = options == (Datum) 0;
	replace[Anum_pg_class_reloptions - 1] = true;
	tuple = heap_modify_tuple(tuple, RelationGetDescr(pg_class), values, nulls, replace);
	CatalogTupleUpdate(pg_class, &tuple->t_self, tuple);
	table_close(pg_class, RowExclusiveLock);
	CommandCounterIncrement();
}

/*
 * The value of parameter persistence of an index, or NULL.
 */
char *
nvm_ddl_get_persistence(Oid indexid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(indexid));
	char	   *value = NULL;
	Datum		options;
	bool		isnull;
	ListCell   *lc;

	if (!HeapTupleIsValid(tuple))
		return NULL;
	options = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_reloptions, &isnull);
	if (!isnull)
	{
		foreach(lc, untransformRelOptions(options))
		{
			DefElem    *def = lfirst_node(DefElem, lc);

			if (strcmp(def->defname, "persistence") == 0 && def->arg != NULL)
				value = pstrdup(defGetString(def));
		}
	}
	ReleaseSysCache(tuple);
	return value;
}

/*
 * Does the command change the type of a column of this index, so that it makes
 * the index anew?
 */
static bool
has_altered_column(AlterTableStmt *stmt, Relation index)
{
	Form_pg_index form = index->rd_index;
	Bitmapset  *columns = NULL;
	bool		result = false;
	ListCell   *lc;

	for (int i = 0; i < form->indnatts; i++)
		columns = bms_add_member(columns, form->indkey.values[i] -
								 FirstLowInvalidHeapAttributeNumber);
	pull_varattnos((Node *) RelationGetIndexExpressions(index), 1, &columns);
	pull_varattnos((Node *) RelationGetIndexPredicate(index), 1, &columns);

	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *cmd = lfirst_node(AlterTableCmd, lc);
		AttrNumber	attnum;

		if (!NvmRecreatesIndexes(cmd->subtype))
			continue;
		attnum = get_attnum(form->indrelid, cmd->name);
		if (attnum != InvalidAttrNumber &&
			bms_is_member(attnum - FirstLowInvalidHeapAttributeNumber, columns))
			result = true;
	}
	bms_free(columns);
	return result;
}

/*
 * The operator classes of an index as ours, if some of them have to be named
 * so; else NULL.  *theirs: the present ones.
 */
static oidvector *
our_classes(Relation index, oidvector **theirs)
{
	int			n = IndexRelationGetNumberOfKeyAttributes(index);
	Oid		   *ours = palloc(n * sizeof(Oid));
	Oid		   *now = palloc(n * sizeof(Oid));
	bool		changed = false;

	for (int i = 0; i < n; i++)
	{
		Oid			image = InvalidOid;

		now[i] = nvm_ddl_index_opclass(RelationGetRelid(index), i);
		if (now[i] >= FirstNormalObjectId)
			image = nvm_btree_opclass_image(now[i]);
		ours[i] = OidIsValid(image) ? image : now[i];
		changed |= ours[i] != now[i];
	}
	*theirs = buildoidvector(now, n);
	return changed ? buildoidvector(ours, n) : NULL;
}

/*
 * ERROR if this session uses the table.  ALTER TABLE would raise the same a
 * moment later, but entries that are open would not be read anew when the
 * catalogs are as before.
 */
static void
lay_aside(AlterTableStmt *stmt, NvmIndexWatch *w, Relation table, Relation index)
{
	Oid			indexid = RelationGetRelid(index);
	char	   *persistence = NULL;
	oidvector  *theirs;
	oidvector  *ours;
	MemoryContext oldcontext;
	LaidAside  *aside;

	/* a foreign key that is added may look for the classes of others */
	if (!has_altered_column(stmt, index))
		return;
	ours = our_classes(index, &theirs);
	/* an exclusion constraint names its access method */
	if (OidIsValid(get_index_constraint(indexid)) && !index->rd_index->indisexclusion)
		persistence = nvm_ddl_get_persistence(indexid);
	if (persistence == NULL && ours == NULL)
		return;
	CheckTableNotInUse(table, "ALTER TABLE");

	oldcontext = MemoryContextSwitchTo(w->context);
	aside = palloc0(sizeof(LaidAside));
	aside->index = indexid;
	aside->table = RelationGetRelid(table);
	aside->name = pstrdup(RelationGetRelationName(index));
	if (persistence != NULL)
		aside->persistence = pstrdup(persistence);
	if (ours != NULL)
		aside->classes = buildoidvector(theirs->values, theirs->dim1);
	w->aside = lappend(w->aside, aside);
	MemoryContextSwitchTo(oldcontext);

	if (persistence != NULL)
		nvm_ddl_set_persistence(indexid, NULL);
	if (ours != NULL)
		nvm_ddl_set_index_opclasses(indexid, ours);
}

/*
 * The tables OF a composite type, to which ALTER TYPE ... CASCADE comes.
 */
static List *
typed_tables(Oid relid)
{
	Oid			type = get_rel_type_id(relid);
	List	   *tables = NIL;
	Relation	pg_class;
	ScanKeyData key;
	TableScanDesc scan;
	HeapTuple	tuple;

	if (!OidIsValid(type))
		return NIL;
	pg_class = table_open(RelationRelationId, AccessShareLock);
	ScanKeyInit(&key, Anum_pg_class_reloftype, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(type));
	scan = table_beginscan_catalog(pg_class, 1, &key);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
		tables = lappend_oid(tables, ((Form_pg_class) GETSTRUCT(tuple))->oid);
	table_endscan(scan);
	table_close(pg_class, AccessShareLock);
	return tables;
}

static void
lay_aside_of_tables(AlterTableStmt *stmt, NvmIndexWatch *w, List *tables)
{
	ListCell   *lc;

	foreach(lc, tables)
	{
		Relation	table = try_relation_open(lfirst_oid(lc), NoLock);
		List	   *indexes;
		ListCell   *lc2;

		if (table == NULL)
			continue;
		indexes = nvm_relation_is_nvm(table) ? RelationGetIndexList(table) : NIL;
		foreach(lc2, indexes)
		{
			Relation	index = index_open(lfirst_oid(lc2), AccessExclusiveLock);

			if (index->rd_rel->relam != BTREE_AM_OID && nvm_relation_is_btree(index))
				lay_aside(stmt, w, table, index);
			index_close(index, NoLock);
		}
		list_free(indexes);
		relation_close(table, NoLock);
	}
}

/*
 * ALTER TABLE begins: lay aside the parts of indexes that its ALTER COLUMN
 * TYPE cannot handle.  Whether the user may alter the table is not decided
 * yet; if not, the command raises an ERROR, and this is undone.
 */
void
nvm_ddl_lay_aside(AlterTableStmt *stmt, NvmIndexWatch *w)
{
	bool		found = false;
	Oid			relid;
	List	   *roots;
	ListCell   *lc;

	foreach(lc, stmt->cmds)
		found |= NvmRecreatesIndexes(lfirst_node(AlterTableCmd, lc)->subtype);
	if (!found || (stmt->objtype != OBJECT_TABLE && stmt->objtype != OBJECT_TYPE &&
				   stmt->objtype != OBJECT_FOREIGN_TABLE))
		return;
	relid = RangeVarGetRelid(stmt->relation, NoLock, true);
	if (!OidIsValid(relid) || !NvmOwnsRelation(relid))
		return;

	roots = stmt->objtype == OBJECT_TYPE ? typed_tables(relid) : list_make1_oid(relid);
	foreach(lc, roots)
	{
		LockRelationOid(lfirst_oid(lc), AccessExclusiveLock);
		lay_aside_of_tables(stmt, w, stmt->relation->inh ?
							find_all_inheritors(lfirst_oid(lc), AccessExclusiveLock, NULL) :
							list_make1_oid(lfirst_oid(lc)));
	}
}

/*
 * The command has ended, or has made all indexes anew.  Give the indexes that
 * are still there their parts back.
 */
void
nvm_ddl_put_back(NvmIndexWatch *w)
{
	List	   *laid_aside = w->aside;
	ListCell   *lc;

	w->aside = NIL;
	foreach(lc, laid_aside)
	{
		LaidAside  *aside = lfirst(lc);
		MemoryContext oldcontext;

		if (get_rel_relkind(aside->index) != RELKIND_INDEX)
			continue;
		if (aside->classes != NULL)
			nvm_ddl_set_index_opclasses(aside->index, aside->classes);
		if (aside->persistence != NULL)
		{
			nvm_ddl_set_persistence(aside->index, aside->persistence);
			oldcontext = MemoryContextSwitchTo(w->context);
			w->touched = list_append_unique_oid(w->touched, aside->index);
			MemoryContextSwitchTo(oldcontext);
		}
	}
}

/*
 * An index of btree was made, and is not built yet (OAT_POST_CREATE): if it
 * takes the place of one of ours, it is ours.
 */
void
nvm_ddl_recreated_index(NvmIndexWatch *w, Oid indexid)
{
	Relation	index;
	Relation	table;
	bool		ours;
	ListCell   *lc;
	const char *persistence = NULL;

	/* the index's rows in the catalogs are of this command */
	CommandCounterIncrement();
	index = index_open(indexid, NoLock);
	table = table_open(index->rd_index->indrelid, NoLock);
	ours = nvm_relation_is_nvm(table) && nvm_ddl_replaces_ours(w, index);
	foreach(lc, w->aside)
	{
		LaidAside  *aside = lfirst(lc);

		if (aside->table == RelationGetRelid(table) &&
			strcmp(aside->name, RelationGetRelationName(index)) == 0)
			persistence = aside->persistence;
	}
	table_close(table, NoLock);
	index_close(index, NoLock);
	if (!ours)
		return;

	nvm_ddl_set_index_method(indexid, get_index_am_oid(NVM_BTREE_NAME, false), true);
	if (persistence != NULL)
		nvm_ddl_set_persistence(indexid, persistence);
}
