/*-------------------------------------------------------------------------
 *
 * nvm_verify_calls.h
 *	  Calls in records of the log: a walk over them, and what can be wrong.
 *
 * Compiled into the server and into nvm_logdump.  Includers have included postgres.h
 * or postgres_fe.h.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_VERIFY_CALLS_H
#define NVM_VERIFY_CALLS_H

#include "media/media_log.h"
#include "verify/nvm_verify_log.h"

/* ---- numbers ---- */

#define NVM_LOG_NUMBER_MAX		10	/* bytes of one */

/* write a number; returns the byte behind it */
extern char *nvm_log_put_number(char *to, uint64 number);
extern char *nvm_log_put_signed(char *to, int64 number);

/* ---- settings ---- */

typedef struct NvmLogSetting
{
	const char *name;
	const char *presumed;		/* its value where a record has none; NULL:
								 * the LC_CTYPE of the database */
} NvmLogSetting;

/* by their numbers, from 1 to NVM_LOG_SETTINGS; part of the format */
extern const NvmLogSetting nvm_log_settings[NVM_LOG_SETTINGS + 1];

/* ---- the section ---- */

/*
 * The section of calls, or of the lanes of values, of a record with NVM_LOG_CALLS.  `from`
 * stands before the first storage of its body, or side file.  False: there is none.
 */
extern bool nvm_log_find_calls(const NvmLogWalk *from, NvmLogSection *calls);

/* what is wrong with it, or NULL */
extern const char *nvm_log_calls_problem(const NvmLogSection *calls);

/*
 * What is wrong with a record that has NVM_LOG_ALONE, whose section has passed that, or NULL.
 * `from` as above.
 */
extern const char *nvm_log_alone_problem(const NvmLogWalk *from);

#define NVM_LOG_CALLS_OF(section)	((const NvmLogCalls *) (section)->rows)

/*
 * The lanes that the transaction held: of its calls, or in which it has written values.
 */
#define NVM_LOG_MAX_LANES	64

typedef struct NvmLogLanes
{
	bool		by_values;		/* it has no calls */
	bool		all;			/* all lanes; none is listed */
	bool		shared;			/* by values: it has written shared tables */
	int			n;
	uint32		lane[NVM_LOG_MAX_LANES];	/* ascending */
} NvmLogLanes;

/* of a section that nvm_log_calls_problem has passed; more than there is room for are all */
extern void nvm_log_lanes_of(const NvmLogSection *calls, NvmLogLanes *lanes);

typedef struct NvmLogValue
{
	uint32		type;
	bool		is_null;
	bool		is_packed;		/* an array: nvm_log_next_element */
	uint32		length;
	const char *bytes;
} NvmLogValue;

/*
 * A part.  What follows its fixed fields is read by nvm_log_next_...
 */
typedef struct NvmLogPart
{
	uint32		kind;			/* NVM_LOG_PART_... */
	uint32		function;		/* CALL, TAPE */
	uint32		role;			/* SETTINGS */
	int64		statement;		/* CALL: less the transaction's timestamp */
	uint32		collation;		/* CALL */
	uint32		flags;			/* VALUES: NVM_LOG_LANES_... */
	uint32		n;				/* lanes, settings, arguments, or 1 of TAPE */
	const char *rest;
} NvmLogPart;

/*
 * Walks as those in nvm_verify_log.h.  A list of n is read by n calls.
 */
extern void nvm_log_walk_parts(NvmLogWalk *walk, const NvmLogSection *calls);
extern bool nvm_log_next_part(NvmLogWalk *walk, NvmLogPart *part);

extern void nvm_log_walk_list(NvmLogWalk *walk, const NvmLogWalk *parts, const NvmLogPart *part);
extern bool nvm_log_next_lane(NvmLogWalk *walk, uint32 *lane);	/* *lane: the one
																 * before, from 0 on */
extern bool nvm_log_next_setting(NvmLogWalk *walk, uint32 *setting, const char **text,
								 uint32 *length);
extern bool nvm_log_next_value(NvmLogWalk *walk, NvmLogValue *value);

/* of a value of a type that is passed by value: its sign is extended */
extern int64 nvm_log_value_number(const NvmLogValue *value);

/* ---- arrays that may be packed ---- */

typedef struct NvmLogPackedType
{
	uint32		array;
	uint32		element;
	int			length;			/* of an element in bytes */
} NvmLogPackedType;

/* NULL: arrays of this type never are, or it is no array */
extern const NvmLogPackedType *nvm_log_packed_type(uint32 type);

/* bytes of a signed number */
extern uint32 nvm_log_signed_length(int64 number);

/* of a value that is packed: the number of its elements, and one after the other */
extern uint32 nvm_log_count_elements(const NvmLogValue *value);
extern void nvm_log_walk_elements(NvmLogWalk *walk, const NvmLogValue *value);
extern bool nvm_log_next_element(NvmLogWalk *walk, int64 *element);

#endif							/* NVM_VERIFY_CALLS_H */
