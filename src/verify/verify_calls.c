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
	{"lc_monetary", "C"},
	{"lc_numeric", "C"},
	{"lc_time", "C"},
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
	{"plpgsql.check_asserts", "on"}
};

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

bool
nvm_log_next_value(NvmLogWalk *walk, NvmLogValue *value)
{
	if (!get_below(walk, ANY_OID, &value->type) ||
		!get_below(walk, PG_UINT32_MAX, &value->length))
		return false;
	value->is_null = value->length == 0;
	value->length -= value->length > 0;
	if (value->type == 0 || value->length > (uint64) (walk->end - walk->at))
		return stop(walk, "impossible value in a call");
	value->bytes = walk->at;
	walk->at += value->length;
	return true;
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
	uint64		number = 0;

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
			if (!get_below(walk, ANY_OID, &part->function) || !get_number(walk, &number) ||
				!get_below(walk, ANY_OID, &part->collation) ||
				!get_below(walk, NVM_LOG_CALL_MAX_ARGS + 1, &part->n))
				return false;
			part->statement = (int64) (number >> 1) ^ -(int64) (number & 1);
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
