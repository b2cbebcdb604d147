/*-------------------------------------------------------------------------
 *
 * ddl_index_change.c
 *	  Changes the access method of an index, in pg_class and in the relcache.
 *
 * README.md, "How an access method is changed", says why no other catalog has
 * to change.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/reloptions.h"
#include "access/table.h"
#include "btree/nvm_btree_identity.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_opclass.h"
#include "commands/tablecmds.h"
#include "compat/nvm_compat_am.h"
#include "ddl/nvm_ddl.h"
#include "nodes/makefuncs.h"
#include "storage/lmgr.h"
#include "utils/syscache.h"

/*
 * Let the relcache entry of an open index have the routine of access method
 * am, before the row of pg_class is read into it.  Operator classes and
 * support functions are the same (ddl_index_method.c), so nothing else
 * changes.
 *
 * An entry of this transaction stays where it is until the transaction ends,
 * or until the subtransaction that made it aborts.  Other entries are read
 * anew once the index has been built.  An entry that was just made goes away
 * if our change does.
 */
static void
replace_routine(Relation index, Oid am, bool just_made)
{
	HeapTuple	tuple = SearchSysCache1(AMOID, ObjectIdGetDatum(am));
	Oid			handler;
	IndexAmRoutine *routine;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for access method %u", am);
	handler = ((Form_pg_am) GETSTRUCT(tuple))->amhandler;
	ReleaseSysCache(tuple);
	routine = GetIndexAmRoutine(handler);
	if (routine->amsupport != index->rd_indam->amsupport)
		elog(ERROR, "access methods of index \"%s\" differ in their support functions",
			 RelationGetRelationName(index));

	nvm_index_set_routine(index, handler, routine, just_made);
}

/*
 * The options of an index of ours, as btree has them.
 */
static Datum
options_for_btree(Datum options)
{
	DefElem    *reset = makeDefElem("persistence", NULL, -1);

	return transformRelOptions(options, list_make1(reset), NULL, NULL, false, true);
}

/*
 * Enter access method am, ours or btree, for an index.  The index is locked
 * exclusively and has to be built after that.  just_made: this very command
 * made it.  ERROR if this session has it open: its scans would go on with the
 * other routine.
 */
void
nvm_ddl_set_index_method(Oid indexid, Oid am, bool just_made)
{
	Relation	index = index_open(indexid, NoLock);
	Relation	pg_class = table_open(RelationRelationId, RowExclusiveLock);
	HeapTuple	tuple = SearchSysCacheCopy1(RELOID, ObjectIdGetDatum(indexid));
	HeapTuple	changed;
	Datum		values[Natts_pg_class] = {0};
	bool		nulls[Natts_pg_class] = {0};
	bool		replace[Natts_pg_class] = {0};
	bool		isnull;
	Datum		options;
	ObjectAddress address;
	ObjectAddress method;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", indexid);
	if (!just_made)
		CheckTableNotInUse(index, "ALTER TABLE");
	values[Anum_pg_class_relam - 1] = ObjectIdGetDatum(am);
	replace[Anum_pg_class_relam - 1] = true;
	options = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_reloptions, &isnull);
	if (!isnull && am == BTREE_AM_OID)
	{
		values[Anum_pg_class_reloptions - 1] = options_for_btree(options);
		nulls[Anum_pg_class_reloptions - 1] = values[Anum_pg_class_reloptions - 1] == (Datum) 0;
		replace[Anum_pg_class_reloptions - 1] = true;
	}
	changed = heap_modify_tuple(tuple, RelationGetDescr(pg_class), values, nulls, replace);
	/* as is the rule with rows that others update in place */
	LockTuple(pg_class, &changed->t_self, ExclusiveLock);
	CatalogTupleUpdate(pg_class, &changed->t_self, changed);
	UnlockTuple(pg_class, &tuple->t_self, ExclusiveLock);
	table_close(pg_class, RowExclusiveLock);

	/* DROP EXTENSION takes what is ours along, and nothing else */
	ObjectAddressSet(address, RelationRelationId, indexid);
	if (am == BTREE_AM_OID)
	{
		deleteDependencyRecordsForClass(RelationRelationId, indexid,
										AccessMethodRelationId, DEPENDENCY_NORMAL);
		deleteDependencyRecordsForClass(RelationRelationId, indexid,
										OperatorClassRelationId, DEPENDENCY_NORMAL);
		for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
		{
			ObjectAddressSet(method, OperatorClassRelationId, nvm_ddl_index_opclass(indexid, i));
			recordDependencyOn(&address, &method, DEPENDENCY_NORMAL);
		}
	}
	else
	{
		ObjectAddressSet(method, AccessMethodRelationId, am);
		recordDependencyOn(&address, &method, DEPENDENCY_NORMAL);
	}

	replace_routine(index, am, just_made);
	index_close(index, NoLock);
	CommandCounterIncrement();
}
