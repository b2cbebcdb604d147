/*-------------------------------------------------------------------------
 *
 * logdump_value.c
 *	  Values in calls, as SQL.
 *
 * There is no catalog here.  Types that PostgreSQL brings, of which many arguments are, are
 * known by their Oids, and printed as literals; of others the bytes are.  A value's bytes
 * are held against its type: what does not go with it is printed as bytes, too.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "logdump.h"

#include "catalog/pg_type_d.h"
#include "common/shortest_dec.h"
#include "datatype/timestamp.h"

#define USECS_A_DAY		INT64CONST(86400000000)

/* of types that are printed as literals */
typedef struct KnownType
{
	Oid			oid;
	Oid			array;
	const char *name;
	int			length;			/* -1: varlena */
	char		align;
	bool		is_number;		/* a literal without quotes */
} KnownType;

static const KnownType known_types[] = {
	{BOOLOID, BOOLARRAYOID, "boolean", 1, 'c', true},
	{INT2OID, INT2ARRAYOID, "smallint", 2, 's', false},
	{INT4OID, INT4ARRAYOID, "integer", 4, 'i', true},
	{INT8OID, INT8ARRAYOID, "bigint", 8, 'd', false},
	{OIDOID, OIDARRAYOID, "oid", 4, 'i', false},
	{REGCLASSOID, REGCLASSARRAYOID, "regclass", 4, 'i', false},
	{FLOAT4OID, FLOAT4ARRAYOID, "real", 4, 'i', false},
	{FLOAT8OID, FLOAT8ARRAYOID, "double precision", 8, 'd', false},
	{NUMERICOID, NUMERICARRAYOID, "numeric", -1, 'i', true},
	{TEXTOID, TEXTARRAYOID, "text", -1, 'i', false},
	{VARCHAROID, VARCHARARRAYOID, "varchar", -1, 'i', false},
	{BPCHAROID, BPCHARARRAYOID, "bpchar", -1, 'i', false},
	{NAMEOID, NAMEARRAYOID, "name", 64, 'c', false},
	{CSTRINGOID, InvalidOid, "cstring", -2, 'c', false},
	{JSONOID, JSONARRAYOID, "json", -1, 'i', false},
	{BYTEAOID, BYTEAARRAYOID, "bytea", -1, 'i', false},
	{UUIDOID, UUIDARRAYOID, "uuid", 16, 'c', false},
	{DATEOID, DATEARRAYOID, "date", 4, 'i', false},
	{TIMESTAMPOID, TIMESTAMPARRAYOID, "timestamp", 8, 'd', false},
	{TIMESTAMPTZOID, TIMESTAMPTZARRAYOID, "timestamptz", 8, 'd', false}
};

static const KnownType *
find_type(Oid oid, bool *is_array)
{
	for (size_t i = 0; i < lengthof(known_types); i++)
	{
		*is_array = oid == known_types[i].array;
		if (oid == known_types[i].oid || (*is_array && oid != InvalidOid))
			return &known_types[i];
	}
	return NULL;
}

/* ---- texts of values ---- */

/*
 * A day as a date; it is counted from 2000-01-01 on.  Returns what goes behind the time.
 */
static const char *
put_date(StringInfo to, int64 day)
{
	int64		julian = day + POSTGRES_EPOCH_JDATE;
	int64		a = julian + 32044;
	int64		b = (4 * a + 3) / 146097;
	int64		c = a - 146097 * b / 4;
	int64		d = (4 * c + 3) / 1461;
	int64		e = c - 1461 * d / 4;
	int64		m = (5 * e + 2) / 153;
	int64		year = 100 * b + d - 4800 + m / 10;

	appendStringInfo(to, "%04d-%02d-%02d", (int) (year > 0 ? year : 1 - year),
					 (int) (m + 3 - 12 * (m / 10)), (int) (e - (153 * m + 2) / 5 + 1));
	return year > 0 ? "" : " BC";
}

/*
 * Microseconds since 2000-01-01; zone: what to put behind the time.
 */
void
put_timestamp(StringInfo to, int64 usec, const char *zone)
{
	const char *era;
	int64		day = usec / USECS_A_DAY - (usec % USECS_A_DAY < 0);
	int64		rest = usec - day * USECS_A_DAY;

	if (!IS_VALID_TIMESTAMP(usec))
	{
		appendStringInfoString(to, usec == PG_INT64_MAX ? "infinity" : "-infinity");
		return;
	}
	era = put_date(to, day);
	appendStringInfo(to, " %02d:%02d:%02d", (int) (rest / INT64CONST(3600000000)),
					 (int) (rest / 60000000 % 60), (int) (rest / 1000000 % 60));
	if (rest % 1000000 != 0)
		appendStringInfo(to, ".%06d", (int) (rest % 1000000));
	appendStringInfo(to, "%s%s", zone, era);
}

static void
put_hex(StringInfo to, const char *bytes, uint32 length)
{
	for (uint32 i = 0; i < length; i++)
		appendStringInfo(to, "%02x", (uint8) bytes[i]);
}

/*
 * Digit i of a numeric to the base 10,000; beyond those that it has there are zeroes.
 */
static int
numeric_digit(const char *digits, int n, int i)
{
	int16		digit = 0;

	if (i >= 0 && i < n)
		memcpy(&digit, digits + 2 * i, sizeof(digit));
	return digit;
}

/*
 * PostgreSQL's numeric: a header that says sign, scale and weight, in 2 or 4 bytes, and
 * digits.
 */
static bool
put_numeric(StringInfo to, const char *bytes, uint32 length)
{
	uint16		header;
	int16		weight;
	bool		is_short;
	int			scale;
	int			n;

	if (length < 2 || length % 2 != 0)
		return false;
	memcpy(&header, bytes, sizeof(header));
	if ((header & 0xC000) == 0xC000)
	{
		appendStringInfoString(to, (header & 0xF000) == 0xC000 ? "NaN" :
							   (header & 0x2000) != 0 ? "-Infinity" : "Infinity");
		return true;
	}
	is_short = (header & 0x8000) != 0;
	if (!is_short && length < 4)
		return false;
	weight = (int16) ((header & 0x3F) - ((header & 0x40) != 0 ? 64 : 0));
	scale = (header & 0x1F80) >> 7;
	if (!is_short)
	{
		memcpy(&weight, bytes + 2, sizeof(weight));
		scale = header & 0x3FFF;
	}
	bytes += is_short ? 2 : 4;
	n = (int) (length - (is_short ? 2 : 4)) / 2;

	if ((header & (is_short ? 0x2000 : 0x4000)) != 0)
		appendStringInfoChar(to, '-');
	appendStringInfo(to, "%d", numeric_digit(bytes, n, weight < 0 ? -1 : 0));
	for (int i = 1; i <= weight; i++)
		appendStringInfo(to, "%04d", numeric_digit(bytes, n, i));
	if (scale > 0)
		appendStringInfoChar(to, '.');
	for (int i = weight + 1; scale > 0; i++, scale -= 4)
	{
		char		four[8];

		snprintf(four, sizeof(four), "%04d", numeric_digit(bytes, n, i));
		appendStringInfo(to, "%.*s", Min(scale, 4), four);
	}
	return true;
}

/*
 * A value of a known type, without quotes.  False: it does not go with its type.
 */
static bool
put_text(StringInfo to, const KnownType *type, const char *bytes, uint32 length)
{
	char		buf[64];
	int64		number = 0;

	if (type->length > 0 && length != (uint32) type->length)
		return false;
	if (type->length == 8)
		memcpy(&number, bytes, 8);
	else if (type->length == 4)
	{
		int32		n;

		memcpy(&n, bytes, sizeof(n));
		number = n;
	}
	switch (type->oid)
	{
		case BOOLOID:
			appendStringInfoString(to, bytes[0] ? "true" : "false");
			break;
		case INT2OID:
			{
				int16		n;

				memcpy(&n, bytes, sizeof(n));
				appendStringInfo(to, "%d", n);
				break;
			}
		case INT4OID:
		case INT8OID:
			appendStringInfo(to, INT64_FORMAT, number);
			break;
		case OIDOID:
		case REGCLASSOID:
			appendStringInfo(to, "%u", (uint32) number);
			break;
		case FLOAT4OID:
			{
				float		f;

				memcpy(&f, bytes, sizeof(f));
				float_to_shortest_decimal_buf(f, buf);
				appendStringInfoString(to, buf);
				break;
			}
		case FLOAT8OID:
			{
				double		d;

				memcpy(&d, bytes, sizeof(d));
				double_to_shortest_decimal_buf(d, buf);
				appendStringInfoString(to, buf);
				break;
			}
		case NUMERICOID:
			return put_numeric(to, bytes, length);
		case DATEOID:
			if (number == PG_INT32_MAX || number == PG_INT32_MIN)
				appendStringInfoString(to, number > 0 ? "infinity" : "-infinity");
			else
				appendStringInfoString(to, put_date(to, number));
			break;
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			put_timestamp(to, number, type->oid == TIMESTAMPTZOID ? "+00" : "");
			break;
		case UUIDOID:
			for (int i = 0; i < 16; i++)
				appendStringInfo(to, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
								 (uint8) bytes[i]);
			break;
		case BYTEAOID:
			appendStringInfoString(to, "\\x");
			put_hex(to, bytes, length);
			break;
		case NAMEOID:
			appendBinaryStringInfo(to, bytes, strnlen(bytes, length));
			break;
		default:
			appendBinaryStringInfo(to, bytes, length);
			break;
	}
	return true;
}

/* ---- arrays ---- */

/* what an array has behind the header of its varlena */
typedef struct ArrayHead
{
	int32		ndim;
	int32		data;			/* offset of elements, with the varlena's
								 * header; 0: no nulls */
	Oid			element;
} ArrayHead;

#define ARRAY_MAX_DIM	6

/*
 * The next element at offset *at of an array; offsets count from the varlena's header.
 * One that is a varlena has a header of 1 or 4 bytes, as a little-endian machine has it.
 */
static bool
next_element(const KnownType *type, const char *bytes, uint32 length, uint32 *at,
			 const char **element, uint32 *element_length)
{
	uint32		align = type->align == 'd' ? 8 : type->align == 'i' ? 4 : type->align == 's' ? 2 : 1;
	uint32		left;
	uint32		header;
	uint32		size;

#define BYTE_AT(offset)		((uint8) bytes[(offset) - VARHDRSZ])
	if (type->length != -1)
		*at = TYPEALIGN(align, *at);
	/* a short varlena is not aligned; padding before another one is zero */
	else if (*at - VARHDRSZ < length && BYTE_AT(*at) == 0)
		*at = TYPEALIGN(align, *at);
	if (*at - VARHDRSZ >= length)
		return false;
	left = length - (*at - VARHDRSZ);
	if (type->length > 0)
	{
		*element = bytes + *at - VARHDRSZ;
		*element_length = (uint32) type->length;
		*at += *element_length;
		return *element_length <= left;
	}
	if ((BYTE_AT(*at) & 1) != 0)
	{
		header = 1;
		size = BYTE_AT(*at) >> 1;
	}
	else
	{
		uint32		word;

		if (left < VARHDRSZ)
			return false;
		memcpy(&word, bytes + *at - VARHDRSZ, sizeof(word));
		header = VARHDRSZ;
		size = (word & 3) == 0 ? word >> 2 : 0;
	}
#undef BYTE_AT
	if (size < header || size > left)
		return false;
	*element = bytes + *at - VARHDRSZ + header;
	*element_length = size - header;
	*at += size;
	return true;
}

static void
put_element(StringInfo to, const char *text)
{
	appendStringInfoChar(to, '"');
	for (; *text !='\0'; text ++)
	{
		if (*text == '"' || *text == '\\')
			appendStringInfoChar(to, '\\');
		appendStringInfoChar(to, *text);
	}
	appendStringInfoChar(to, '"');
}

/*
 * An array of one dimension.  False: it has others, or does not go with its type.
 */
static bool
put_array(StringInfo to, const KnownType *type, const char *bytes, uint32 length)
{
	bool		is_plain = type->length > 0 && type->oid != NAMEOID;
	ArrayHead	head;
	int32		dim;
	int32		lower;
	uint32		at;
	StringInfoData one;
	bool		sound = true;

	if (length < sizeof(head))
		return false;
	memcpy(&head, bytes, sizeof(head));
	appendStringInfoChar(to, '{');
	if (head.ndim == 0)
	{
		appendStringInfoChar(to, '}');
		return true;
	}
	if (head.ndim != 1 || head.data != 0 || head.element != type->oid ||
		length < sizeof(head) + sizeof(dim) + sizeof(lower))
		return false;
	memcpy(&dim, bytes + sizeof(head), sizeof(dim));
	memcpy(&lower, bytes + sizeof(head) + sizeof(dim), sizeof(lower));
	if (lower != 1)
		return false;
	at = MAXALIGN(VARHDRSZ + sizeof(head) + sizeof(dim) + sizeof(lower));
	initStringInfo(&one);
	for (int32 i = 0; i < dim && sound; i++)
	{
		const char *element;
		uint32		element_length;

		resetStringInfo(&one);
		sound = next_element(type, bytes, length, &at, &element, &element_length) &&
			put_text(&one, type, element, element_length);
		if (!sound)
			break;
		if (i > 0)
			appendStringInfoChar(to, ',');
		if (is_plain || type->oid == NUMERICOID)
			appendStringInfoString(to, one.data);
		else
			put_element(to, one.data);
	}
	pfree(one.data);
	appendStringInfoChar(to, '}');
	return sound;
}

/*
 * The bytes of a number as a type has them that is passed by value: the lowest come first.
 */
static bool
put_number(StringInfo to, const KnownType *type, int64 number)
{
	char		bytes[sizeof(int64)];

	memcpy(bytes, &number, sizeof(number));
	return put_text(to, type, bytes, (uint32) type->length);
}

/*
 * An array that is packed.
 */
static bool
put_packed(StringInfo to, const KnownType *type, const NvmLogValue *value)
{
	NvmLogWalk	walk;
	int64		element;
	bool		sound = true;

	nvm_log_walk_elements(&walk, value);
	appendStringInfoChar(to, '{');
	for (bool first = true; sound && nvm_log_next_element(&walk, &element); first = false)
	{
		if (!first)
			appendStringInfoChar(to, ',');
		sound = put_number(to, type, element);
	}
	appendStringInfoChar(to, '}');
	return sound;
}

/* ---- SQL ---- */

/*
 * Text as a literal, on one line.
 */
void
put_literal(StringInfo to, const char *text)
{
	bool		escape = false;

	for (const char *at = text; *at != '\0'; at++)
		escape |= *at == '\\' || (uint8) *at < ' ';
	appendStringInfoString(to, escape ? "E'" : "'");
	for (; *text !='\0'; text ++)
	{
		if ((uint8) *text <' ')
			appendStringInfo(to, "\\x%02x", (uint8) *text);
		else
		{
			if (*text == '\'' || *text == '\\')
				appendStringInfoChar(to, *text);
			appendStringInfoChar(to, *text);
		}
	}
	appendStringInfoChar(to, '\'');
}

/*
 * A value of a known type, not an array.  Of one that is passed by value the bytes were made
 * fewer.
 */
static bool
put_scalar(StringInfo to, const KnownType *type, const NvmLogValue *value)
{
	bool		by_value = type->length == 1 || type->length == 2 || type->length == 4 || type->length == 8;

	if (by_value && value->length <= (uint32) type->length)
		return put_number(to, type, nvm_log_value_number(value));
	return put_text(to, type, value->bytes, value->length);
}

/*
 * A value of a call as SQL.
 */
void
put_value(StringInfo to, const NvmLogValue *value)
{
	bool		is_array;
	const KnownType *type = find_type(value->type, &is_array);
	const char *array = is_array ? "[]" : "";
	StringInfoData text;
	bool		known;

	if (value->is_null)
	{
		appendStringInfo(to, "NULL::%s%s", type ? type->name : type_name(value->type), array);
		return;
	}
	initStringInfo(&text);
	known = type != NULL;
	if (known && is_array)
		known = value->is_packed ? put_packed(&text, type, value) :
			put_array(&text, type, value->bytes, value->length);
	else if (known)
		known = put_scalar(&text, type, value);
	if (!known)
	{
		resetStringInfo(&text);
		appendStringInfoString(&text, "\\x");
		put_hex(&text, value->bytes, value->length);
	}
	if (known && type->is_number && !is_array &&
		(type->oid == BOOLOID || strspn(text.data, "-0123456789.") == (size_t) text.len))
		appendStringInfoString(to, text.data);
	else
	{
		put_literal(to, text.data);
		appendStringInfo(to, "::%s%s", type ? type->name : type_name(value->type), array);
	}
	pfree(text.data);
}
