/*-------------------------------------------------------------------------
 *
 * command_table.c
 *	  Which tables are partitioned by lanes, and by what column.
 *
 * A session keeps what it has found out of a table until the relation changes.
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
#include "catalog/indexing.h"
#include "catalog/pg_am.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_index.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_seclabel.h"
#include "catalog/pg_trigger.h"
#include "command/command_impl.h"
#include "command/nvm_command.h"
#include "commands/trigger.h"
#include "nodes/nodes.h"
#include "storage/lockdefs.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

typedef struct Table
{
	Oid			relid;			/* key */
	bool		is_known;
	AttrNumber	column;			/* InvalidAttrNumber: shared */
	char	   *problem;		/* of its own context's memory, or NULL */
	bool		key_is_known;
	Oid			key;			/* index, or InvalidOid */
	/* what its writers call besides that a replay could not */
	bool		writers_known;
	NvmReason	writers_reason; /* NONE: there is no such thing */
	Oid			writers_class;
	Oid			writers_object;
} Table;

static HTAB *tables = NULL;
static Table *last_found = NULL;
static MemoryContext table_context = NULL;

/*
 * The column with the label, or InvalidAttrNumber.
 */
AttrNumber
nvm_command_labelled_column(Oid relid)
{
	Relation	rel = table_open(SecLabelRelationId, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	AttrNumber	column = InvalidAttrNumber;

	ScanKeyInit(&keys[0], Anum_pg_seclabel_objoid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	ScanKeyInit(&keys[1], Anum_pg_seclabel_classoid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationRelationId));
	scan = systable_beginscan(rel, SecLabelObjectIndexId, true, NULL, 2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		Datum		provider = heap_getattr(tuple, Anum_pg_seclabel_provider,
											RelationGetDescr(rel), &isnull);
		int32		subid = ((FormData_pg_seclabel *) GETSTRUCT(tuple))->objsubid;

		if (subid > 0 && strcmp(TextDatumGetCString(provider), NVM_LABEL_PROVIDER) == 0 &&
			(column == InvalidAttrNumber || subid < column))
			column = (AttrNumber) subid;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return column;
}

/*
 * Two rows that the index takes for equal lie in one lane: the column is one of its
 * keys, and its equality there is that by which lanes are hashed.
 */
static bool
index_keeps_lanes(Form_pg_index form, HeapTuple tuple, Form_pg_attribute att, Oid equality)
{
	bool		isnull;
	Datum		datum = SysCacheGetAttr(INDEXRELID, tuple, Anum_pg_index_indclass, &isnull);
	oidvector  *classes = (oidvector *) DatumGetPointer(datum);
	oidvector  *collations;

	datum = SysCacheGetAttr(INDEXRELID, tuple, Anum_pg_index_indcollation, &isnull);
	collations = (oidvector *) DatumGetPointer(datum);
	for (int i = 0; i < form->indnkeyatts; i++)
	{
		Oid			opclass = classes->values[i];
		Oid			intype = get_opclass_input_type(opclass);
		Oid			collation = collations->values[i];

		if (form->indkey.values[i] == att->attnum &&
			(!OidIsValid(collation) || collation == att->attcollation ||
			 (get_collation_isdeterministic(collation) &&
			  get_collation_isdeterministic(att->attcollation))) &&
			get_opfamily_member(get_opclass_family(opclass), intype, intype,
								BTEqualStrategyNumber) == equality)
			return true;
	}
	return false;
}

/*
 * Does an index compare rows of several lanes?  One that is not valid yet may do so
 * already, and what an exclusion constraint compares is not looked into.
 */
static const char *
index_problem(Relation table, Form_pg_attribute att, Oid equality)
{
	const char *problem = NULL;
	ListCell   *lc;
	List	   *indexes = RelationGetIndexList(table);

	foreach(lc, indexes)
	{
		HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(lfirst_oid(lc)));
		Form_pg_index form;

		if (!HeapTupleIsValid(tuple))
			continue;
		form = (Form_pg_index) GETSTRUCT(tuple);
		if (form->indisexclusion)
			problem = psprintf("exclusion constraint \"%s\" may compare rows of several lanes",
							   get_rel_name(form->indexrelid));

		else if (form->indisunique && !index_keeps_lanes(form, tuple, att, equality))
			problem = psprintf("unique index \"%s\" does not have column \"%s\" as a key, compared by its type's equality",
							   get_rel_name(form->indexrelid), NameStr(att->attname));

		ReleaseSysCache(tuple);
		if (problem != NULL)
			break;
	}
	list_free(indexes);
	return problem;
}

/*
 * Why the column does not divide the table's rows into lanes, or NULL.
 */
const char *
nvm_command_column_problem(Relation table, AttrNumber column)
{
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(table), column - 1);
	TypeCacheEntry *type;

	if (!att->attnotnull)
		return psprintf("column \"%s\" is not NOT NULL", NameStr(att->attname));
	if (att->attgenerated != '\0' && att->attgenerated != ATTRIBUTE_GENERATED_STORED)
		return psprintf("column \"%s\" is not stored", NameStr(att->attname));
	type = lookup_type_cache(att->atttypid, TYPECACHE_HASH_PROC | TYPECACHE_EQ_OPR);
	if (!OidIsValid(type->hash_proc) || !OidIsValid(type->eq_opr))
		return psprintf("values of type %s of column \"%s\" cannot be hashed",
						format_type_be(att->atttypid), NameStr(att->attname));
	return index_problem(table, att, type->eq_opr);
}

static void
forget_table(Table *t)
{
	t->is_known = false;
	t->key_is_known = false;
	t->writers_known = false;
}

static void
relation_changed(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS seq;
	Table	   *t;

	if (tables == NULL)
		return;
	if (OidIsValid(relid))
	{
		t = hash_search(tables, &relid, HASH_FIND, NULL);
		if (t != NULL)
			forget_table(t);
		return;
	}
	hash_seq_init(&seq, tables);
	while ((t = hash_seq_search(&seq)) != NULL)
		forget_table(t);
}

/*
 * Functions have changed: those in CHECK constraints and triggers, perhaps.
 */
static void
functions_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	HASH_SEQ_STATUS seq;
	Table	   *t;

	if (tables == NULL)
		return;
	hash_seq_init(&seq, tables);
	while ((t = hash_seq_search(&seq)) != NULL)
		t->writers_known = false;
}

static Table *
find_table(Oid relid)
{
	Table	   *t;
	bool		found;

	/* entries stay */
	if (last_found != NULL && last_found->relid == relid)
		return last_found;
	if (tables == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(Oid),.entrysize = sizeof(Table)};

		if (table_context == NULL)
			table_context = AllocSetContextCreate(CacheMemoryContext, "nvm partitioned tables",
												  ALLOCSET_SMALL_SIZES);
		ctl.hcxt = table_context;
		tables = hash_create("nvm partitioned tables", 64, &ctl,
							 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	t = hash_search(tables, &relid, HASH_ENTER, &found);
	if (!found)
		memset((char *) t + sizeof(Oid), 0, sizeof(Table) - sizeof(Oid));
	last_found = t;
	return t;
}

/*
 * The partition column of a table, or InvalidAttrNumber: it is shared.
 */
AttrNumber
nvm_command_partition_column(Relation table, const char **problem)
{
	Table	   *t = find_table(RelationGetRelid(table));

	if (unlikely(!t->is_known))
	{
		AttrNumber	column;
		const char *why = NULL;

		/* a change that comes meanwhile stands */
		t->is_known = true;
		PG_TRY();
		{
			column = nvm_command_labelled_column(RelationGetRelid(table));
			if (column != InvalidAttrNumber)
				why = nvm_command_column_problem(table, column);
		}
		PG_CATCH();
		{
			t->is_known = false;
			PG_RE_THROW();
		}
		PG_END_TRY();
		if (t->problem != NULL)
			pfree(t->problem);
		t->problem = why ? MemoryContextStrdup(table_context, why) : NULL;
		t->column = why ? InvalidAttrNumber : column;
	}
	if (problem != NULL)
		*problem = t->problem;
	return t->column;
}

/* ---- the key ---- */

/*
 * Can rows be told apart by it, in the copy of a replay too?
 */
static bool
index_is_key(HeapTuple tuple)
{
	Form_pg_index form = (Form_pg_index) GETSTRUCT(tuple);

	return form->indisvalid && form->indisunique && !form->indisexclusion &&
		heap_attisnull(tuple, Anum_pg_index_indpred, NULL) &&
		heap_attisnull(tuple, Anum_pg_index_indexprs, NULL) &&
		nvm_command_index_is_ours(form->indexrelid);
}

static Oid
look_for_key(Relation table)
{
	bool		by_identity = table->rd_rel->relreplident == REPLICA_IDENTITY_INDEX;
	Oid			primary = InvalidOid;
	Oid			identity = InvalidOid;
	ListCell   *lc;
	List	   *indexes = RelationGetIndexList(table);

	foreach(lc, indexes)
	{
		HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(lfirst_oid(lc)));
		Form_pg_index form;

		if (!HeapTupleIsValid(tuple))
			continue;
		form = (Form_pg_index) GETSTRUCT(tuple);
		if ((form->indisprimary || (by_identity && form->indisreplident)) && index_is_key(tuple))
		{
			if (by_identity && form->indisreplident)
				identity = form->indexrelid;
			else
				primary = form->indexrelid;
		}
		ReleaseSysCache(tuple);
	}
	list_free(indexes);
	return OidIsValid(identity) ? identity : primary;
}

/*
 * See nvm_command.h.
 */
Oid
nvm_command_key_index(Relation table)
{
	Table	   *t = find_table(RelationGetRelid(table));

	if (unlikely(!t->key_is_known))
	{
		/* a change that comes meanwhile stands */
		t->key_is_known = true;
		PG_TRY();
		{
			t->key = look_for_key(table);
		}
		PG_CATCH();
		{
			t->key_is_known = false;
			PG_RE_THROW();
		}
		PG_END_TRY();
	}
	return t->key;
}

/* ---- what writers call ---- */

static void
note_writers(Table *t, NvmReason reason, Oid classid, Oid object)
{
	t->writers_reason = reason;
	t->writers_class = classid;
	t->writers_object = object;
}

/*
 * Look for the first.  Triggers that may be deferred run at COMMIT, behind all calls,
 * where nobody looks at what they read.  The recheck of a unique key reads but rows of
 * the lane.
 */
static void
look_for_writers(Relation table, Table *t)
{
	TupleConstr *constr = RelationGetDescr(table)->constr;
	TriggerDesc *triggers = table->trigdesc;

	note_writers(t, NVM_REASON_NONE, InvalidOid, InvalidOid);
	for (int i = 0; constr != NULL && i < constr->num_check; i++)
	{
		Oid			function = nvm_function_not_admitted(stringToNode(constr->check[i].ccbin),
														 true);

		if (OidIsValid(function))
			note_writers(t, NVM_REASON_FUNCTION, ProcedureRelationId, function);
	}
	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		Trigger    *trigger = &triggers->triggers[i];

		Oid			function = InvalidOid;

		if (trigger->tgenabled == TRIGGER_DISABLED)
			continue;
		if (trigger->tgqual != NULL)
			function = nvm_function_not_admitted(stringToNode(trigger->tgqual), true);
		if (trigger->tgdeferrable && trigger->tgfoid != F_UNIQUE_KEY_RECHECK)
			note_writers(t, NVM_REASON_DEFERRABLE, ConstraintRelationId, trigger->tgconstraint);
		else if (OidIsValid(function) || !nvm_trigger_is_admitted(trigger->tgfoid))
			note_writers(t, NVM_REASON_FUNCTION, ProcedureRelationId,
						 OidIsValid(function) ? function : trigger->tgfoid);
	}
}

/*
 * A call writes the table: what of its CHECK constraints and triggers a replay could
 * not do again makes the transaction one of values.
 */
void
nvm_command_judge_writers(Relation table)
{
	Table	   *t = find_table(RelationGetRelid(table));

	if (unlikely(!t->writers_known))
	{
		t->writers_known = true;
		PG_TRY();
		{
			look_for_writers(table, t);
		}
		PG_CATCH();
		{
			t->writers_known = false;
			PG_RE_THROW();
		}
		PG_END_TRY();
	}
	if (t->writers_reason != NVM_REASON_NONE)
		nvm_command_disqualify(t->writers_reason, t->writers_class, t->writers_object);
}

void
nvm_command_register_tables(void)
{
	CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(PROCOID, functions_changed, (Datum) 0);
}
