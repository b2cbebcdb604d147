/*-------------------------------------------------------------------------
 *
 * verify_calls.c
 *	  Calls in records of the log: a walk over them, and what can be wrong.
 *
 * Compiled into the server and into nvm_logdump.  media_log.h has the format.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef FRONTEND
#include "postgres.h"
#else
#include "postgres_fe.h"
#endif

#include "catalog/pg_type_d.h"
#include "verify/nvm_verify_calls.h"
#include "verify/nvm_verify_log.h"

StaticAssertDecl(sizeof(NvmLogCalls) == NVM_LOG_CALLS_HEADER, "header of calls");

static inline bool
has_lanes(const NvmLogPart *part)
{
	return part->kind == NVM_LOG_PART_LANES || part->kind == NVM_LOG_PART_VALUES;
}

/* in the order of NVM_LOG_SETTING_... */
const NvmLogSetting nvm_log_settings[NVM_LOG_SETTINGS + 1] = {
	{NULL, NULL},
	{"search_path", "\"$user\", public"},
	{"TimeZone", "Etc/UTC"},
	{"DateStyle", "ISO, MDY"},
	{"IntervalStyle", "postgres"},
	{"lc_monetary", NULL},
	{"lc_numeric", NULL},
	{"lc_time", NULL},
	{"extra_float_digits", "1"},
	{"bytea_output", "hex"},
	{"xmlbinary", "base64"},
	{"xmloption", "content"},
	{"standard_conforming_strings", "on"},
	{"backslash_quote", "safe_encoding"},
	{"array_nulls", "on"},
	{"transform_null_equals", "off"},
	{"quote_all_identifiers", "off"},
	{"session_replication_role", "origin"},
	{"row_security", "on"},
	{"default_toast_compression", "pglz"},
	{"gin_fuzzy_search_limit", "0"},
	{"timezone_abbreviations", "Default"},
	{"plpgsql.variable_conflict", "error"},
	{"plpgsql.check_asserts", "on"},
	{"plpgsql.extra_warnings", "none"},
	{"plpgsql.extra_errors", "none"}
};

/* part of the format */
static const NvmLogPackedType packed_types[] = {
	{INT4ARRAYOID, INT4OID, 4},
	{INT8ARRAYOID, INT8OID, 8},
	{INT2ARRAYOID, INT2OID, 2},
	{OIDARRAYOID, OIDOID, 4},
	{DATEARRAYOID, DATEOID, 4},
	{BOOLARRAYOID, BOOLOID, 1}
};

const NvmLogPackedType *
nvm_log_packed_type(uint32 type)
{
	for (size_t i = 0; i < lengthof(packed_types); i++)
	{
		if (packed_types[i].array == type)
			return &packed_types[i];
	}
	return NULL;
}

/* ---- numbers ---- */

char *
nvm_log_put_number(char *to, uint64 number)
{
	while (number >= 0x80)
	{
		*to++ = (char) (number | 0x80);
		number >>= 7;
	}
	*to++ = (char) number;
	return to;
}

char *
nvm_log_put_signed(char *to, int64 number)
{
	return nvm_log_put_number(to, ((uint64) number << 1) ^ (uint64) (number >> 63));
}

uint32
nvm_log_signed_length(int64 number)
{
	uint64		bits = ((uint64) number << 1) ^ (uint64) (number >> 63);
	uint32		n = 1;

	while ((bits >>= 7) != 0)
		n++;
	return n;
}

/*
 * Something impossible: the walk is over.
 */
static bool
stop(NvmLogWalk *walk, const char *problem)
{
	walk->at = walk->end;
	walk->problem = problem;
	return false;
}

static bool
get_number(NvmLogWalk *walk, uint64 *number)
{
	const char *at = walk->at;

	*number = 0;
	for (int shift = 0; shift < 64 && at < walk->end; shift += 7)
	{
		uint8		byte = (uint8) *at++;

		if (shift == 63 && byte > 1)
			break;
		*number |= (uint64) (byte & 0x7F) << shift;
		if ((byte & 0x80) != 0)
			continue;
		walk->at = at;
		return true;
	}
	return stop(walk, "impossible number in a call");
}

/*
 * A number that must be below a limit.
 */
static bool
get_below(NvmLogWalk *walk, uint64 limit, uint32 *number)
{
	uint64		n;

	if (!get_number(walk, &n))
		return false;
	*number = (uint32) n;
	return n < limit || stop(walk, "impossible number in a call");
}

static bool
get_signed(NvmLogWalk *walk, int64 *number)
{
	uint64		n;

	if (!get_number(walk, &n))
		return false;
	*number = (int64) (n >> 1) ^ -(int64) (n & 1);
	return true;
}

#define ANY_OID		UINT64CONST(0x100000000)

/* ---- lists ---- */

bool
nvm_log_next_lane(NvmLogWalk *walk, uint32 *lane)
{
	uint32		more;

	if (!get_below(walk, NVM_LOG_LANES, &more))
		return false;
	*lane += more;
	return (more > 0 && *lane < NVM_LOG_LANES) || stop(walk, "impossible lane of a call");
}

bool
nvm_log_next_setting(NvmLogWalk *walk, uint32 *setting, const char **text, uint32 *length)
{
	if (!get_below(walk, NVM_LOG_SETTINGS + 1, setting) ||
		!get_below(walk, NVM_LOG_SETTING_MAX + 1, length))
		return false;
	if (*setting == 0 || *length > (uint64) (walk->end - walk->at))
		return stop(walk, "impossible setting of a call");
	*text = walk->at;
	walk->at += *length;
	return true;
}

/*
 * Are the bytes of a packed value whole elements, each as long as its type allows?
 */
static bool
elements_are_sound(const NvmLogValue *value, int length)
{
	int64		max = (int64) (PG_UINT64_MAX >> (65 - 8 * length));
	int64		element;
	NvmLogWalk	walk;

	nvm_log_walk_elements(&walk, value);
	while (nvm_log_next_element(&walk, &element))
	{
		if (element > max || element < -max - 1)
			return false;
	}
	return walk.problem == NULL;
}

bool
nvm_log_next_value(NvmLogWalk *walk, NvmLogValue *value)
{
	const NvmLogPackedType *packed;

	if (!get_below(walk, ANY_OID, &value->type) ||
		!get_below(walk, PG_UINT32_MAX, &value->length))
		return false;
	value->is_null = value->length == 0;
	value->length -= value->length > 0;
	packed = nvm_log_packed_type(value->type);
	value->is_packed = packed != NULL && (value->length & 1) != 0;
	if (packed != NULL)
		value->length /= 2;
	if (value->type == 0 || value->length > (uint64) (walk->end - walk->at))
		return stop(walk, "impossible value in a call");
	value->bytes = walk->at;
	walk->at += value->length;
	if (value->is_packed && !elements_are_sound(value, packed->length))
		return stop(walk, "impossible array in a call");
	return true;
}

/*
 * The last byte of each element is the only one without 0x80.
 */
uint32
nvm_log_count_elements(const NvmLogValue *value)
{
	uint32		n = 0;

	for (uint32 i = 0; i < value->length; i++)
		n += (value->bytes[i] & 0x80) == 0;
	return n;
}

void
nvm_log_walk_elements(NvmLogWalk *walk, const NvmLogValue *value)
{
	walk->at = value->bytes;
	walk->end = value->bytes + value->length;
	walk->problem = NULL;
}

bool
nvm_log_next_element(NvmLogWalk *walk, int64 *element)
{
	return walk->at < walk->end && get_signed(walk, element);
}

int64
nvm_log_value_number(const NvmLogValue *value)
{
	uint32		n = Min(value->length, sizeof(uint64));
	uint64		bits = n > 0 && (value->bytes[n - 1] & 0x80) != 0 ? PG_UINT64_MAX : 0;

	for (uint32 i = 0; i < n; i++)
		bits = (bits & ~(UINT64CONST(0xFF) << (8 * i))) | (uint64) (uint8) value->bytes[i] << (8 * i);
	return (int64) bits;
}

/*
 * Step over the list of a part.
 */
static bool
skip_list(NvmLogWalk *walk, const NvmLogPart *part)
{
	uint32		number = 0;
	uint32		length;
	const char *text;
	NvmLogValue value;

	for (uint32 i = 0; i < part->n; i++)
	{
		if (!(has_lanes(part) ? nvm_log_next_lane(walk, &number) :
			  part->kind == NVM_LOG_PART_SETTINGS ? nvm_log_next_setting(walk, &number, &text, &length) :
			  nvm_log_next_value(walk, &value)))
			return false;
	}
	return true;
}

/* ---- parts ---- */

void
nvm_log_walk_parts(NvmLogWalk *walk, const NvmLogSection *calls)
{
	walk->at = calls->rows + NVM_LOG_CALLS_HEADER;
	walk->end = walk->at + NVM_LOG_CALLS_OF(calls)->length;
	walk->problem = NULL;
}

bool
nvm_log_next_part(NvmLogWalk *walk, NvmLogPart *part)
{
	memset(part, 0, sizeof(*part));
	if (walk->at == walk->end)
		return false;
	part->kind = (uint8) *walk->at++;
	switch (part->kind)
	{
		case NVM_LOG_PART_LANES:
			if (!get_below(walk, NVM_LOG_LANES, &part->n))
				return false;
			break;
		case NVM_LOG_PART_SETTINGS:
			if (!get_below(walk, ANY_OID, &part->role) ||
				!get_below(walk, NVM_LOG_SETTINGS + 1, &part->n))
				return false;
			break;
		case NVM_LOG_PART_CALL:
			if (!get_below(walk, ANY_OID, &part->function) || !get_signed(walk, &part->statement) ||
				!get_below(walk, ANY_OID, &part->collation) ||
				!get_below(walk, NVM_LOG_CALL_MAX_ARGS + 1, &part->n))
				return false;
			break;
		case NVM_LOG_PART_TAPE:
			if (!get_below(walk, ANY_OID, &part->function))
				return false;
			part->n = 1;
			break;
		case NVM_LOG_PART_VALUES:
			if (!get_below(walk, (NVM_LOG_LANES_ALL | NVM_LOG_LANES_SHARED) + 1, &part->flags) ||
				!get_below(walk, NVM_LOG_LANES, &part->n))
				return false;
			if ((part->flags & NVM_LOG_LANES_ALL) != 0 ? part->n > 0 : part->n == 0 && part->flags == 0)
				return stop(walk, "impossible lanes of values");
			break;
		default:
			return stop(walk, "unknown part of a call");
	}
	part->rest = walk->at;
	return skip_list(walk, part);
}

void
nvm_log_walk_list(NvmLogWalk *walk, const NvmLogWalk *parts, const NvmLogPart *part)
{
	walk->at = part->rest;
	walk->end = parts->end;
	walk->problem = NULL;
}

/*
 * What is wrong with the order of parts, `after` being the last one's kind, or NULL.
 */
static const char *
order_problem(uint32 after, bool has_settings, bool has_call, uint32 kind)
{
	if ((kind == NVM_LOG_PART_LANES || kind == NVM_LOG_PART_VALUES) != (after == 0))
		return "lanes of calls are not their first part";
	if (after == NVM_LOG_PART_VALUES)
		return "something follows the lanes of values";
	if (kind == NVM_LOG_PART_CALL && !has_settings)
		return "a call without settings";
	if (kind == NVM_LOG_PART_TAPE && (!has_call || after == NVM_LOG_PART_SETTINGS))
		return "a tape without its call";
	return NULL;
}

const char *
nvm_log_calls_problem(const NvmLogSection *calls)
{
	NvmLogWalk	walk;
	NvmLogPart	part;
	uint32		after = 0;
	bool		has_settings = false;
	bool		has_call = false;

	if (calls->creation == 0 || calls->creation > PG_UINT32_MAX)
		return "calls of no database";
	if (calls->length < NVM_LOG_CALLS_HEADER ||
		NVM_LOG_CALLS_OF(calls)->length > calls->length - NVM_LOG_CALLS_HEADER ||
		TYPEALIGN64(4, (uint64) NVM_LOG_CALLS_OF(calls)->length) != calls->length - NVM_LOG_CALLS_HEADER)
		return "impossible length of calls";
	nvm_log_walk_parts(&walk, calls);
	while (nvm_log_next_part(&walk, &part))
	{
		const char *problem = order_problem(after, has_settings, has_call, part.kind);

		if (problem != NULL)
			return problem;
		after = part.kind;
		has_settings |= part.kind == NVM_LOG_PART_SETTINGS;
		has_call |= part.kind == NVM_LOG_PART_CALL;
	}
	if (walk.problem != NULL)
		return walk.problem;
	if (after == NVM_LOG_PART_VALUES)
		return NVM_LOG_CALLS_OF(calls)->checksum == 0 && NVM_LOG_CALLS_OF(calls)->rows == 0 ? NULL :
			"values have a checksum of calls";
	return has_call ? NULL : "a section of calls has none";
}

void
nvm_log_lanes_of(const NvmLogSection *calls, NvmLogLanes *lanes)
{
	NvmLogWalk	walk;
	NvmLogWalk	list;
	NvmLogPart	part;
	uint32		lane = 0;

	memset(lanes, 0, sizeof(*lanes));
	nvm_log_walk_parts(&walk, calls);
	if (!nvm_log_next_part(&walk, &part))
		return;
	lanes->by_values = part.kind == NVM_LOG_PART_VALUES;
	lanes->shared = (part.flags & NVM_LOG_LANES_SHARED) != 0;
	lanes->all = lanes->by_values ? (part.flags & NVM_LOG_LANES_ALL) != 0 : part.n == 0;
	if (part.n > NVM_LOG_MAX_LANES)
	{
		lanes->all = true;
		return;
	}
	nvm_log_walk_list(&list, &walk, &part);
	while (lanes->n < (int) part.n && nvm_log_next_lane(&list, &lane))
		lanes->lane[lanes->n++] = lane;
}

const char *
nvm_log_alone_problem(const NvmLogWalk *from)
{
	NvmLogSection section;
	NvmLogWalk	walk;
	NvmLogPart	part;

	if (!nvm_log_find_calls(from, &section))
		return "a record of calls alone has none";
	nvm_log_walk_parts(&walk, &section);
	return nvm_log_next_part(&walk, &part) && part.kind == NVM_LOG_PART_LANES ? NULL :
		"a record of calls alone is one of values";
}

bool
nvm_log_find_calls(const NvmLogWalk *from, NvmLogSection *calls)
{
	NvmLogWalk	walk = *from;

	while (nvm_log_next_section(&walk, calls))
	{
		if (calls->dir == NVM_LOG_CALLS_DIR)
			return true;
	}
	return false;
}
