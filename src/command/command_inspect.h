/*-------------------------------------------------------------------------
 *
 * command_inspect.h
 *	  What the files of the inspection share.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef COMMAND_INSPECT_H
#define COMMAND_INSPECT_H

#include "command/nvm_command.h"
#include "nodes/parsenodes.h"
#include "nodes/pg_list.h"
#include "parser/parse_node.h"
#include "parser/parser.h"

typedef void (*NvmParseSetup) (ParseState *pstate, void *arg);

/* the function that is looked at, and what was found of all */
typedef struct NvmInspection
{
	Oid			function;		/* in SQL or PL/pgSQL */
	Oid			table;			/* of a trigger function: the table that fires
								 * it */
	bool		all_lanes;		/* the call holds them */
	int			line;			/* of the statement that is looked at */
	const char *statement;
	List	   *findings;		/* of NvmCommandFinding * */
	List	   *functions;		/* that it calls, or fires: Oids, those that
								 * were looked at among them */
	List	   *tables;			/* for each of these: as above */
} NvmInspection;

/* ---- command_inspect.c ---- */

extern void nvm_inspection_note(NvmInspection *in, NvmReason reason, Oid classid, Oid object);
extern void nvm_inspection_calls(NvmInspection *in, Oid function, Oid table);

/*
 * Parse text, and judge its queries; reads: somebody sees in which order their rows come.
 * NIL if that ends in an ERROR, which is noted: it will be seen when it runs.  Else the
 * queries, as they are rewritten.
 */
extern List *nvm_inspection_parse(NvmInspection *in, const char *source, RawParseMode mode,
								  NvmParseSetup setup, void *arg, bool reads);

/* ---- command_inspect_query.c ---- */

extern void nvm_inspect_query(NvmInspection *in, Query *query, const char *text, bool reads);

/* ---- command_inspect_plpgsql.c ---- */

extern void nvm_inspect_plpgsql(NvmInspection *in);

#endif							/* COMMAND_INSPECT_H */
