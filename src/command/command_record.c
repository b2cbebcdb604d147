/*-------------------------------------------------------------------------
 *
 * command_record.c
 *	  The record of a transaction's calls: what a replay would need to call again.
 *
 * Of a transaction of values it has the lanes alone.
 *
 * Each outermost call is noted when it has its lanes, before it runs, and so is each
 * result that it takes from the tape's functions (command_tape.c).  PRE_COMMIT puts that
 * into the transaction's record, behind its rows, if it can be replayed.  media_log.h has
 * the format, README.md the meaning.  Nothing is noted once the transaction is one of
 * values.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "command/command_impl.h"
#include "command/nvm_command.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "log/nvm_log.h"
#include "media/media_log.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"
#include "utils/array.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "verify/nvm_verify_calls.h"

/* what a transaction's calls take at most, and what stays allocated behind it */
#define PARTS_MAX		(16 * 1024 * 1024)
#define PARTS_KEEP		(64 * 1024)

/* storages of nvm_cmdlog tables that a transaction writes; for calls more are too many */
#define MAX_STORAGES	64

/* parts but that of the lanes, which comes first and is known at last */
static StringInfoData parts;
static bool has_calls = false;
static uint64 settings_number;	/* of the settings' part that came last */

typedef struct WrittenStorage
{
	uint32		dir;			/* key */
	Oid			table;
	bool		has_key;
} WrittenStorage;

static WrittenStorage storages[MAX_STORAGES];
static int	nstorages = 0;
static WrittenStorage *last_storage = NULL;
static HTAB *more_storages = NULL;	/* of the transaction's memory */

/* the section, and how long it and the rows are in the record */
static StringInfoData section;
static uint64 section_bytes = 0;
static uint64 row_bytes = 0;
static bool logged_alone = false;

/* ---- numbers and values ---- */

static void
put_number(StringInfo to, uint64 number)
{
	enlargeStringInfo(to, NVM_LOG_NUMBER_MAX);
	to->len = (int) (nvm_log_put_number(to->data + to->len, number) - to->data);
}

static void
put_signed(StringInfo to, int64 number)
{
	enlargeStringInfo(to, NVM_LOG_NUMBER_MAX);
	to->len = (int) (nvm_log_put_signed(to->data + to->len, number) - to->data);
}

static void
put_bytes(StringInfo to, const void *bytes, Size length)
{
	put_number(to, (uint64) length + 1);
	appendBinaryStringInfo(to, bytes, (int) length);
}

/*
 * Of a type that is passed by value: as many bytes as give it back.
 */
static void
put_by_value(StringInfo to, Datum value, int16 typlen)
{
	int64		number = typlen == 1 ? (int8) DatumGetChar(value) :
	typlen == 2 ? DatumGetInt16(value) :
	typlen == 4 ? DatumGetInt32(value) : DatumGetInt64(value);
	char		bytes[sizeof(int64)];
	int			n = 0;

	while (number != 0 && number != -1)
	{
		bytes[n++] = (char) number;
		number >>= 8;
	}
	/* the last one has the sign */
	if (number == 0 ? n > 0 && (bytes[n - 1] & 0x80) != 0 : n == 0 || (bytes[n - 1] & 0x80) == 0)
		bytes[n++] = (char) number;
	put_bytes(to, bytes, n);
}

/* what precedes the elements of an array of one dimension */
typedef struct ArrayHead
{
	int32		ndim;
	int32		nulls;			/* 0: there are none */
	Oid			element;
	int32		n;
	int32		lower;
} ArrayHead;

StaticAssertDecl(sizeof(ArrayHead) + VARHDRSZ == ARR_OVERHEAD_NONULLS(1), "header of an array");

/*
 * Element i; the bytes need not be aligned.
 */
static int64
element_of(const char *elements, int i, int length)
{
	int64		number;
	int32		four;
	int16		two;

	switch (length)
	{
		case 1:
			return (int8) elements[i];
		case 2:
			memcpy(&two, elements + (Size) 2 * i, 2);
			return two;
		case 4:
			memcpy(&four, elements + (Size) 4 * i, 4);
			return four;
		default:
			memcpy(&number, elements + (Size) 8 * i, 8);
			return number;
	}
}

/*
 * An array as its elements alone, if that gives back each of its bytes, and is shorter.
 */
static bool
put_packed(StringInfo to, const NvmLogPackedType *type, const char *bytes, Size length)
{
	const char *elements = bytes + sizeof(ArrayHead);
	ArrayHead	head = {0};
	uint64		packed = 0;

	memcpy(&head, bytes, Min(length, sizeof(head)));
	if (length < offsetof(ArrayHead, n) || head.nulls != 0 || head.element != type->element)
		return false;
	if (head.ndim == 0 ? length != offsetof(ArrayHead, n) :
		head.ndim != 1 || head.n <= 0 || head.lower != 1 ||
		length != sizeof(head) + (Size) head.n * type->length)
		return false;
	if (head.ndim == 0)
		head.n = 0;
	for (int i = 0; i < head.n; i++)
		packed += nvm_log_signed_length(element_of(elements, i, type->length));
	if (packed >= length)
		return false;
	put_number(to, 2 * packed + 1 + 1);
	for (int i = 0; i < head.n; i++)
		put_signed(to, element_of(elements, i, type->length));
	return true;
}

static void
put_array(StringInfo to, const NvmLogPackedType *type, const char *bytes, Size length)
{
	if (put_packed(to, type, bytes, length))
		return;
	put_number(to, 2 * (uint64) length + 1);
	appendBinaryStringInfo(to, bytes, (int) length);
}

static void
put_varlena(StringInfo to, Oid type, Datum value)
{
	const NvmLogPackedType *packed = nvm_log_packed_type(type);
	struct varlena *flat = PG_DETOAST_DATUM_PACKED(value);

	if ((Size) to->len + VARSIZE_ANY_EXHDR(flat) > PARTS_MAX)
		nvm_command_disqualify(NVM_REASON_TOO_LONG, InvalidOid, InvalidOid);
	else if (packed != NULL)
		put_array(to, packed, VARDATA_ANY(flat), VARSIZE_ANY_EXHDR(flat));
	else
		put_bytes(to, VARDATA_ANY(flat), VARSIZE_ANY_EXHDR(flat));
	if (DatumGetPointer(value) != (Pointer) flat)
		pfree(flat);
}

/*
 * A value: type, length, bytes.  False if its type says nothing about it in another
 * session.
 */
static bool
put_value(StringInfo to, Oid type, Datum value, bool isnull)
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	int16		typlen;
	bool		byval;
	bool		is_pseudo;

	if (!HeapTupleIsValid(tuple))
		return false;
	typlen = ((Form_pg_type) GETSTRUCT(tuple))->typlen;
	byval = ((Form_pg_type) GETSTRUCT(tuple))->typbyval;
	is_pseudo = ((Form_pg_type) GETSTRUCT(tuple))->typtype == TYPTYPE_PSEUDO;
	ReleaseSysCache(tuple);
	if (is_pseudo || nvm_type_is_temporary(type))
		return false;

	put_number(to, type);
	if (isnull)
		put_number(to, 0);
	else if (byval)
		put_by_value(to, value, typlen);
	else if (typlen == -1)
		put_varlena(to, type, value);
	else if (typlen == -2)
		put_bytes(to, DatumGetCString(value), strlen(DatumGetCString(value)));
	else
		put_bytes(to, DatumGetPointer(value), typlen);
	return true;
}

/* ---- calls ---- */

static void
begin_parts(void)
{
	if (parts.data == NULL)
	{
		MemoryContext outer = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&parts);
		MemoryContextSwitchTo(outer);
	}
	resetStringInfo(&parts);
	settings_number = 0;
	has_calls = true;
}

/*
 * The settings, if they are not those of the call before.
 */
static bool
put_settings(void)
{
	int			length;
	uint64		number;
	const char *part = nvm_settings_part(&length, &number);

	if (part == NULL)
		return false;
	if (number != settings_number)
		appendBinaryStringInfo(&parts, part, length);
	settings_number = number;
	return true;
}

/*
 * The type of an argument: as the expression of the call has it, where there is one, so
 * that of a polymorphic function it is what it is this time.
 */
static Oid
argument_type(FunctionCallInfo fcinfo, int i)
{
	Oid			type = get_fn_expr_argtype(fcinfo->flinfo, i);
	Oid		   *declared;
	int			n;

	if (OidIsValid(type))
		return type;
	(void) get_func_signature(fcinfo->flinfo->fn_oid, &declared, &n);
	return i < n ? declared[i] : InvalidOid;
}

/*
 * Does the call tell the function which columns its result has, as in FROM f() AS t(a int)?
 * The record would not say them.
 */
static bool
tells_columns(Oid function, FunctionCallInfo fcinfo)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Node	   *expr = fcinfo->flinfo->fn_expr;

	if (rsinfo == NULL || !IsA(rsinfo, ReturnSetInfo) || rsinfo->expectedDesc == NULL ||
		get_func_rettype(function) != RECORDOID)
		return false;
	return (expr != NULL ? get_expr_result_type(expr, NULL, NULL) :
			get_func_result_type(function, NULL, NULL)) == TYPEFUNC_RECORD;
}

/*
 * VARIADIC is written, and the function, VARIADIC "any", gets to know it.
 */
static bool
tells_variadic(Oid function, FunctionCallInfo fcinfo)
{
	return get_fn_expr_variadic(fcinfo->flinfo) && get_func_variadictype(function) == ANYOID;
}

static bool
put_call(Oid function, FunctionCallInfo fcinfo)
{
	if (fcinfo->nargs > NVM_LOG_CALL_MAX_ARGS || tells_columns(function, fcinfo) ||
		tells_variadic(function, fcinfo) || !put_settings())
		return false;
	appendStringInfoChar(&parts, NVM_LOG_PART_CALL);
	put_number(&parts, function);
	put_signed(&parts, GetCurrentStatementStartTimestamp() - GetCurrentTransactionStartTimestamp());
	put_number(&parts, fcinfo->fncollation);
	put_number(&parts, fcinfo->nargs);
	for (int i = 0; i < fcinfo->nargs; i++)
	{
		if (!put_value(&parts, argument_type(fcinfo, i), fcinfo->args[i].value, fcinfo->args[i].isnull))
			return false;
	}
	return true;
}

/*
 * An outermost call begins; it has its lanes.  May make the transaction one of values.
 */
void
nvm_record_call(Oid function, FunctionCallInfo fcinfo)
{
	if (nvm_verdict_by_values() || !nvm_log_is_on)
		return;
	if (!has_calls)
		begin_parts();
	if (parts.len > PARTS_MAX)
		nvm_command_disqualify(NVM_REASON_TOO_LONG, InvalidOid, InvalidOid);
	else if (!put_call(function, fcinfo))
		nvm_command_disqualify(NVM_REASON_UNSUITABLE, ProcedureRelationId, function);
}

/*
 * A result for the tape.
 */
void
nvm_record_tape(Oid function, Oid type, Datum value, bool isnull)
{
	if (nvm_verdict_by_values() || !has_calls)
		return;
	if (parts.len > PARTS_MAX)
	{
		nvm_command_disqualify(NVM_REASON_TOO_LONG, InvalidOid, InvalidOid);
		return;
	}
	appendStringInfoChar(&parts, NVM_LOG_PART_TAPE);
	put_number(&parts, function);
	if (!put_value(&parts, type, value, isnull))
		nvm_command_disqualify(NVM_REASON_FUNCTION, ProcedureRelationId, function);
}

static WrittenStorage *
find_storage(uint32 dir)
{
	if (last_storage != NULL && last_storage->dir == dir)
		return last_storage;
	for (int i = nstorages - 1; i >= 0; i--)
	{
		if (storages[i].dir == dir)
			return &storages[i];
	}
	return more_storages == NULL ? NULL : hash_search(more_storages, &dir, HASH_FIND, NULL);
}

static WrittenStorage *
add_storage(uint32 dir)
{
	HASHCTL		ctl = {.keysize = sizeof(uint32),.entrysize = sizeof(WrittenStorage)};

	if (nstorages < MAX_STORAGES)
	{
		storages[nstorages].dir = dir;
		return &storages[nstorages++];
	}
	nvm_command_disqualify(NVM_REASON_TOO_LONG, InvalidOid, InvalidOid);
	if (more_storages == NULL)
	{
		ctl.hcxt = TopTransactionContext;
		more_storages = hash_create("nvm_cmdlog storages written", 256, &ctl,
									HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	return hash_search(more_storages, &dir, HASH_ENTER, NULL);
}

/*
 * Rows of this storage are written; it is that of an nvm_cmdlog table.  If it had no key at
 * one of its writes it counts as one without.
 */
void
nvm_record_storage(uint32 dir, Oid table, bool has_key)
{
	WrittenStorage *s = find_storage(dir);

	if (unlikely(s == NULL))
	{
		s = add_storage(dir);
		s->table = table;
		s->has_key = true;
	}
	s->has_key &= has_key;
	last_storage = s;
}

/* ---- the section ---- */

/*
 * Does a checkpoint have the rows of the storages as of one moment?  A version that knew no
 * such flag may have made one without.
 */
static bool
have_moment(void)
{
	for (int i = 0; i < nstorages; i++)
	{
		if ((nvm_dir_entry(storages[i].dir)->flags & NVM_DIR_COMMANDS) == 0)
			return false;
	}
	return true;
}

/*
 * Is the transaction one of calls, at PRE_COMMIT?  What decides on the mode is read while its
 * lanes are held.
 *
 * Of functions that are not promoted, beside others that are: a rehearsal calls them again, and
 * a recovery goes by the rows.
 */
static NvmLogBy
written_by(bool *alone, bool *old)
{
	if (has_calls && nvm_verdict_is_by_calls())
	{
		bool		promoted = nvm_verdict_all_promoted();

		if (nvm_mode_of_record(promoted && have_moment(), alone))
			return NVM_LOG_BY_CALLS;
		*old = !promoted;
		if (!promoted)
			return NVM_LOG_BY_CALLS;
	}
	return nvm_verdict_writes() ? NVM_LOG_BY_VALUES : NVM_LOG_BY_NOTHING;
}

static Oid
noted_table(uint32 dir, bool *has_key)
{
	WrittenStorage *s = find_storage(dir);

	*has_key = s != NULL && s->has_key;
	return s != NULL ? s->table : InvalidOid;
}

static void
put_list_of_lanes(StringInfo to, const NvmCallLanes *lanes)
{
	uint32		before = 0;
	int			n = lanes->all ? 0 : lanes->n;

	put_number(to, n);
	for (int i = 0; i < n; i++)
	{
		put_number(to, lanes->lane[i] - before);
		before = lanes->lane[i];
	}
}

static void
put_lanes(StringInfo to)
{
	NvmCallLanes lanes;

	nvm_lanes_of_calls(&lanes);
	appendStringInfoChar(to, NVM_LOG_PART_LANES);
	put_list_of_lanes(to, &lanes);
}

static void
put_values(StringInfo to)
{
	NvmCallLanes lanes;
	bool		shared;

	nvm_lanes_of_values(&lanes, &shared);
	appendStringInfoChar(to, NVM_LOG_PART_VALUES);
	put_number(to, (lanes.all ? NVM_LOG_LANES_ALL : 0) | (shared ? NVM_LOG_LANES_SHARED : 0));
	put_list_of_lanes(to, &lanes);
}

/*
 * NvmLogCalls and parts, in memory of the transaction.  Of values there is none where
 * nobody could call anything.
 */
static const char *
make_section(uint64 checksum, uint32 rows, uint32 *length, uint32 *database)
{
	MemoryContext outer;
	NvmLogCalls header = {
		.checksum = checksum,
		.timestamp = GetCurrentTransactionStartTimestamp(),
		.rows = rows
	};

	if (nvm_log_by == NVM_LOG_BY_VALUES && !nvm_verdict_has_functions())
		return NULL;
	outer = MemoryContextSwitchTo(TopTransactionContext);
	initStringInfo(&section);
	MemoryContextSwitchTo(outer);
	appendBinaryStringInfo(&section, (char *) &header, sizeof(header));
	if (nvm_log_by == NVM_LOG_BY_VALUES)
		put_values(&section);
	else
	{
		put_lanes(&section);
		appendBinaryStringInfo(&section, parts.data, parts.len);
	}
	((NvmLogCalls *) section.data)->length = section.len - sizeof(header);
	while (section.len % 4 != 0)
		appendStringInfoChar(&section, '\0');
	*length = section.len;
	*database = MyDatabaseId;
	return section.data;
}

static void
note_lengths(uint64 rows, uint64 calls)
{
	if (nvm_log_by == NVM_LOG_BY_VALUES)
		return;
	row_bytes = rows;
	section_bytes = calls;
	logged_alone = nvm_log_calls_alone;
}

/*
 * How many bytes the calls have in the transaction's record, and rows; 0: none.
 */
void
nvm_record_bytes(uint64 *calls, uint64 *values, bool *alone)
{
	*alone = logged_alone;
	*calls = section_bytes;
	*values = row_bytes;
}

/*
 * At the end of the transaction.
 */
void
nvm_record_forget(void)
{
	has_calls = false;
	nstorages = 0;
	last_storage = NULL;
	more_storages = NULL;
	section_bytes = row_bytes = 0;
	logged_alone = false;
	if (unlikely(parts.maxlen > PARTS_KEEP))
	{
		pfree(parts.data);
		parts.data = NULL;
		parts.maxlen = 0;
	}
}

void
nvm_record_register(void)
{
	static const NvmLogCallOps ops = {
		.begin = written_by,
		.table = noted_table,
		.section = make_section,
		.logged = note_lengths
	};

	nvm_log_register_calls(&ops);
}
