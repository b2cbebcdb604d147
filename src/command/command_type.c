/*-------------------------------------------------------------------------
 *
 * command_type.c
 *	  What types are made of: is there one among them that a replay has to be wary of?
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/tupdesc.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "command/command_impl.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

static Oid	find_in_columns(Oid type, bool (*is_it) (Oid type, Oid schema));

/*
 * The first that is_it among a type and what it is made of: elements, columns, what a domain
 * or a range is over.  Or InvalidOid.  No type contains itself.
 */
Oid
nvm_find_in_type(Oid type, bool (*is_it) (Oid type, Oid schema))
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	Form_pg_type form;
	Oid			inner = InvalidOid;
	Oid			schema;
	char		kind;

	check_stack_depth();
	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	form = (Form_pg_type) GETSTRUCT(tuple);
	schema = form->typnamespace;
	kind = form->typtype;
	if (kind == TYPTYPE_DOMAIN)
		inner = form->typbasetype;
	else if (IsTrueArrayType(form))
		inner = form->typelem;
	ReleaseSysCache(tuple);

	if (is_it(type, schema))
		return type;
	switch (kind)
	{
		case TYPTYPE_COMPOSITE:
			return find_in_columns(type, is_it);
		case TYPTYPE_RANGE:
			inner = get_range_subtype(type);
			break;
		case TYPTYPE_MULTIRANGE:
			inner = get_multirange_range(type);
			break;
		default:
			break;
	}
	return OidIsValid(inner) ? nvm_find_in_type(inner, is_it) : InvalidOid;
}

static Oid
find_in_columns(Oid type, bool (*is_it) (Oid type, Oid schema))
{
	TupleDesc	desc = lookup_rowtype_tupdesc_noerror(type, -1, true);
	Oid			found = InvalidOid;

	if (desc == NULL)
		return InvalidOid;
	for (int i = 0; i < desc->natts && !OidIsValid(found); i++)
	{
		if (!TupleDescAttr(desc, i)->attisdropped)
			found = nvm_find_in_type(TupleDescAttr(desc, i)->atttypid, is_it);
	}
	ReleaseTupleDesc(desc);
	return found;
}

/* ---- types that go with the session ---- */

static bool
is_temporary(Oid type, Oid schema)
{
	return type >= FirstNormalObjectId && isAnyTempNamespace(schema);
}

/*
 * Is it, or what it is made of, in a temporary schema?  In another session there is no such
 * type.
 */
bool
nvm_type_is_temporary(Oid type)
{
	return type >= FirstNormalObjectId && OidIsValid(nvm_find_in_type(type, is_temporary));
}
