/*-------------------------------------------------------------------------
 *
 * command_method.c
 *	  Which tables are those of nvm_cmdlog.
 *
 * The access method lies in a layer above, and tells its routine.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/tableam.h"
#include "catalog/pg_am.h"
#include "command/nvm_command.h"
#include "utils/rel.h"
#include "utils/syscache.h"

static const struct TableAmRoutine *method = NULL;
static bool (*is_ours) (Oid index) = NULL;

/*
 * See nvm_command.h.
 */
void
nvm_command_register_method(const struct TableAmRoutine *routine,
							bool (*index_is_ours) (Oid index))
{
	method = routine;
	is_ours = index_is_ours;
}

/*
 * See nvm_command.h.
 */
bool
nvm_command_is_method(Oid am)
{
	HeapTuple	tuple;
	bool		is_it;

	if (method == NULL || am == HEAP_TABLE_AM_OID || !OidIsValid(am))
		return false;
	tuple = SearchSysCache1(AMOID, ObjectIdGetDatum(am));
	is_it = HeapTupleIsValid(tuple) && ((Form_pg_am) GETSTRUCT(tuple))->amtype == AMTYPE_TABLE &&
		GetTableAmRoutine(((Form_pg_am) GETSTRUCT(tuple))->amhandler) == method;
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return is_it;
}

/*
 * See nvm_command.h.
 */
bool
nvm_command_index_is_ours(Oid index)
{
	return is_ours != NULL && is_ours(index);
}

/*
 * See nvm_command.h.
 */
bool
nvm_command_is_table(Relation rel)
{
	return rel->rd_tableam != NULL && rel->rd_tableam == method &&
		RelationIsPermanent(rel);
}
