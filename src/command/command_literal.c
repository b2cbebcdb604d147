/*-------------------------------------------------------------------------
 *
 * command_literal.c
 *	  Literals that mean another moment in another session: 'today', 'now'.
 *
 * A literal of a known type becomes a constant when its query is parsed.  A cached query is
 * parsed once in a session, in a replay once in a process, so a date that was 'today' is
 * another one there.  Nothing in the constant tells: what was written does, and where that
 * begins in the text of the query, the constant knows.  A constant out of a view, a rule
 * or a default does not, and has been the same since that was made.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_type.h"
#include "command/command_impl.h"
#include "lib/stringinfo.h"
#include "nodes/nodeFuncs.h"
#include "nodes/primnodes.h"
#include "parser/scansup.h"
#include "utils/fmgroids.h"

/* types whose literals may name the present, and what reads these */
static const struct
{
	Oid			type;
	Oid			input;
}			clock_types[] = {
	{InvalidOid, InvalidOid},	/* none: a function in SQL */
	{DATEOID, F_DATE_IN},
	{TIMEOID, F_TIME_IN},
	{TIMETZOID, F_TIMETZ_IN},
	{TIMESTAMPOID, F_TIMESTAMP_IN},
	{TIMESTAMPTZOID, F_TIMESTAMPTZ_IN}
};

static const char *const clock_words[] = {"now", "today", "tomorrow", "yesterday"};

static bool
is_clock(Oid type, Oid schema)
{
	for (int i = 1; i < (int) lengthof(clock_types); i++)
	{
		if (clock_types[i].type == type)
			return true;
	}
	return false;
}

bool
nvm_is_clock_input(Oid function)
{
	for (int i = 1; i < (int) lengthof(clock_types); i++)
	{
		if (clock_types[i].input == function)
			return true;
	}
	return false;
}

/* ---- words ---- */

static bool
is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/*
 * The end of the next such word in the text, or NULL.
 */
static const char *
find_clock_word(const char *at)
{
	while (*at != '\0')
	{
		const char *begin = at;

		while (is_letter(*at))
			at++;
		for (int i = 0; i < (int) lengthof(clock_words); i++)
		{
			if (at - begin == (ptrdiff_t) strlen(clock_words[i]) &&
				pg_strncasecmp(begin, clock_words[i], at - begin) == 0)
				return at;
		}
		if (at == begin)
			at++;
	}
	return NULL;
}

/*
 * Does a function in SQL, which may be put into the query that calls it, write such a word,
 * and not as that of a function, in a text that has literals at all?  It may be a column's.
 */
bool
nvm_source_names_clock(const char *source)
{
	if (strchr(source, '\'') == NULL && strchr(source, '$') == NULL)
		return false;
	while ((source = find_clock_word(source)) != NULL)
	{
		const char *behind = source;

		while (scanner_isspace(*behind))
			behind++;
		if (*behind != '(')
			return true;
	}
	return false;
}

/* ---- the literal ---- */

/*
 * Behind white space and comments; *newline: there was a line's end in it.
 */
static const char *
skip_blank(const char *at, bool *newline)
{
	*newline = false;
	for (;;)
	{
		if (at[0] == '-' && at[1] == '-')
			at += strcspn(at, "\n\r");
		if (!scanner_isspace(*at))
			return at;
		*newline |= *at == '\n' || *at == '\r';
		at++;
	}
}

/*
 * What stands between quotes, where lines between two parts put them together.  False: it is
 * not known, as there is a backslash, or no end.
 */
static bool
read_quoted(const char *at, StringInfo to)
{
	bool		newline;

	while (*at != '\0' && *at != '\\')
	{
		if (*at != '\'')
		{
			appendStringInfoChar(to, *at++);
			continue;
		}
		if (at[1] == '\'')
		{
			appendStringInfoChar(to, '\'');
			at += 2;
			continue;
		}
		at = skip_blank(at + 1, &newline);
		if (!newline || *at != '\'')
			return true;
		at++;
	}
	return false;
}

static bool
read_dollar_quoted(const char *at, StringInfo to)
{
	const char *body = strchr(at + 1, '$');
	const char *end;
	char	   *tag;

	if (body == NULL)
		return false;
	body++;
	tag = pnstrdup(at, body - at);
	end = strstr(body, tag);
	pfree(tag);
	if (end == NULL)
		return false;
	appendBinaryStringInfo(to, body, (int) (end - body));
	return true;
}

/*
 * The literal that begins there.  False: it is not known.
 */
static bool
read_literal(const char *at, StringInfo to)
{
	if (*at == '$')
		return read_dollar_quoted(at, to);
	if (*at == 'e' || *at == 'E')
		at++;
	return *at == '\'' && read_quoted(at + 1, to);
}

/*
 * Does what is written there depend on when it is read?  One of type timetz does also if it
 * has no zone as a number: which offset a zone has is a matter of the day.
 */
static bool
depends_on_clock(const char *at, Oid type)
{
	StringInfoData text;
	bool		depends;

	initStringInfo(&text);
	depends = !read_literal(at, &text) || find_clock_word(text.data) != NULL ||
		(type == TIMETZOID && strpbrk(text.data, "+-") == NULL);
	pfree(text.data);
	return depends;
}

/* ---- queries ---- */

typedef struct Walk
{
	const char *source;			/* text of the query, or NULL */
	int			length;
	Oid			type;			/* of a literal that was found; InvalidOid: it
								 * may be in a function */
} Walk;

/*
 * Of types that have nothing to do with it the most frequent ones are not looked up.
 */
static bool
walk_constant(Const *constant, Walk *walk)
{
	Oid			type;

	if (constant->location < 0 || constant->constisnull)
		return false;
	switch (constant->consttype)
	{
		case BOOLOID:
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case FLOAT8OID:
		case NUMERICOID:
		case TEXTOID:
		case BPCHAROID:
		case VARCHAROID:
		case UNKNOWNOID:
			return false;
		default:
			break;
	}
	type = nvm_find_in_type(constant->consttype, is_clock);
	if (!OidIsValid(type))
		return false;
	if (walk->source != NULL && constant->location < walk->length &&
		!depends_on_clock(walk->source + constant->location, type))
		return false;
	walk->type = type;
	return true;
}

static bool
names_clock(Oid function, void *context)
{
	return nvm_function_names_clock(function);
}

static bool
walk_literals(Node *node, void *context)
{
	Walk	   *walk = context;

	if (node == NULL)
		return false;
	if (IsA(node, Const))
		return walk_constant((Const *) node, walk);
	if (check_functions_in_node(node, names_clock, NULL))
		return true;
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, walk_literals, context, 0);
	return expression_tree_walker(node, walk_literals, context);
}

/*
 * Has the query, which is going to be planned, such a literal, or have the arguments of CALL?
 * Flags for a mark.
 */
int
nvm_judge_literals(Node *node, const char *source)
{
	Walk		walk = {.source = source};

	if (source != NULL)
		walk.length = (int) strlen(source);
	if (!walk_literals(node, &walk))
		return 0;
	for (int i = 1; i < (int) lengthof(clock_types); i++)
	{
		if (clock_types[i].type == walk.type)
			return (i + 1) << NVM_ORDER_CLOCK_SHIFT;
	}
	return 1 << NVM_ORDER_CLOCK_SHIFT;
}

/*
 * Of the flags of a mark: what has read the literal, InvalidOid: not known.  False: there is
 * none.
 */
bool
nvm_mark_has_clock(int flags, Oid *input)
{
	int			which = (flags & NVM_ORDER_CLOCK) >> NVM_ORDER_CLOCK_SHIFT;

	*input = which > 0 && which <= (int) lengthof(clock_types) ? clock_types[which - 1].input : InvalidOid;
	return which > 0;
}
