/*-------------------------------------------------------------------------
 *
 * command_replay_value.c
 *	  Values of a record of calls, as Datums and as text.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/tupmacs.h"
#include "catalog/pg_type.h"
#include "command/command_impl.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "verify/nvm_verify_calls.h"
#include "verify/nvm_verify_log.h"

/* an argument in a text is cut behind so many bytes, and so is all of it */
#define ARGUMENT_MAX	200
#define CALL_MAX		2000

/* ---- Datums ---- */

/*
 * Of a type that is passed by value.
 */
static Datum
number_datum(int64 number, int typlen)
{
	switch (typlen)
	{
		case 1:
			return CharGetDatum((char) number);
		case 2:
			return Int16GetDatum((int16) number);
		case 4:
			return Int32GetDatum((int32) number);
		default:
			return Int64GetDatum(number);
	}
}

/*
 * An array that was packed: as it was, byte by byte.
 */
static Datum
array_datum(const NvmLogValue *value)
{
	const NvmLogPackedType *type = nvm_log_packed_type(value->type);
	uint32		n = nvm_log_count_elements(value);
	Size		size = ARR_OVERHEAD_NONULLS(1) + (Size) n * type->length;
	NvmLogWalk	walk;
	int64		element;
	ArrayType  *array;
	char	   *at;

	if (n == 0)
		return PointerGetDatum(construct_empty_array(type->element));
	if (size > MaxAllocSize)
		elog(ERROR, "impossible length of an array in a call");
	array = palloc0(size);
	SET_VARSIZE(array, size);
	array->ndim = 1;
	array->elemtype = type->element;
	ARR_DIMS(array)[0] = (int) n;
	ARR_LBOUND(array)[0] = 1;
	at = (char *) array + ARR_OVERHEAD_NONULLS(1);
	nvm_log_walk_elements(&walk, value);
	for (; nvm_log_next_element(&walk, &element); at += type->length)
		store_att_byval(at, number_datum(element, type->length), type->length);
	return PointerGetDatum(array);
}

/*
 * Of any other: a copy, since what the log has is neither aligned nor has a header.
 */
static Datum
bytes_datum(const NvmLogValue *value, int16 typlen)
{
	char	   *copy;

	if (typlen == -1)
	{
		if ((Size) value->length + VARHDRSZ > MaxAllocSize)
			elog(ERROR, "impossible length of a value in a call");
		copy = palloc(value->length + VARHDRSZ);
		SET_VARSIZE(copy, value->length + VARHDRSZ);
		memcpy(VARDATA(copy), value->bytes, value->length);
	}
	else if (typlen == -2)
		copy = pnstrdup(value->bytes, value->length);
	else
	{
		copy = palloc(value->length);
		memcpy(copy, value->bytes, value->length);
	}
	return PointerGetDatum(copy);
}

/*
 * See command_impl.h.
 */
NullableDatum
nvm_replay_value(const NvmLogValue *value)
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(value->type));
	NullableDatum result = {.isnull = value->is_null};
	int16		typlen;
	bool		byval;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("the type with OID %u, of a value of the call, does not exist any more",
						value->type)));
	typlen = ((Form_pg_type) GETSTRUCT(tuple))->typlen;
	byval = ((Form_pg_type) GETSTRUCT(tuple))->typbyval;
	ReleaseSysCache(tuple);
	if (value->is_null)
		return result;
	if (byval ? value->length > (uint32) typlen : typlen > 0 && value->length != (uint32) typlen)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("a value of the call has %u bytes, which is not what type %s has",
						value->length, format_type_be(value->type))));
	result.value = byval ? number_datum(nvm_log_value_number(value), typlen) :
		value->is_packed ? array_datum(value) : bytes_datum(value, typlen);
	return result;
}

/* ---- text ---- */

static void
cut(StringInfo to, int from, int max)
{
	if (to->len - from <= max)
		return;
	to->len = from + pg_mbcliplen(to->data + from, to->len - from, max);
	to->data[to->len] = '\0';
	appendStringInfoString(to, "...");
}

/*
 * A literal; numbers and booleans as they are.
 */
static void
put_argument(StringInfo to, const NvmLogValue *value)
{
	NullableDatum datum = nvm_replay_value(value);
	int			from;
	Oid			output;
	bool		is_varlena;
	char	   *out;

	if (datum.isnull)
	{
		appendStringInfoString(to, "NULL");
		return;
	}
	getTypeOutputInfo(value->type, &output, &is_varlena);
	out = OidOutputFunctionCall(output, datum.value);
	switch (value->type)
	{
		case INT2OID:
		case INT4OID:
		case INT8OID:
			appendStringInfoString(to, out);
			break;
		case BOOLOID:
			appendStringInfoString(to, out[0] == 't' ? "true" : "false");
			break;
		default:
			from = to->len;
			appendStringInfoString(to, quote_literal_cstr(out));
			if (to->len - from > ARGUMENT_MAX)
			{
				cut(to, from, ARGUMENT_MAX);
				appendStringInfoChar(to, '\'');
			}
			if (value->type != TEXTOID)
				appendStringInfo(to, "::%s", format_type_be(value->type));
			break;
	}
	pfree(out);
}

/*
 * See command_impl.h.  `parts` is a walk over the parts, wherever it stands.
 */
char *
nvm_replay_call_text(const NvmLogWalk *parts, const NvmLogPart *part)
{
	char	   *name = get_func_name(part->function);
	char	   *schema = name != NULL ? get_namespace_name(get_func_namespace(part->function)) : NULL;
	NvmLogWalk	list;
	NvmLogValue value;
	StringInfoData to;

	initStringInfo(&to);
	if (name == NULL)
		appendStringInfo(&to, "function %u(", part->function);
	else
		appendStringInfo(&to, "%s(", quote_qualified_identifier(schema, name));
	nvm_log_walk_list(&list, parts, part);
	for (uint32 i = 0; i < part->n && to.len <= CALL_MAX; i++)
	{
		if (!nvm_log_next_value(&list, &value))
			break;
		if (i > 0)
			appendStringInfoString(&to, ", ");
		put_argument(&to, &value);
	}
	cut(&to, 0, CALL_MAX);
	appendStringInfoChar(&to, ')');
	return to.data;
}
