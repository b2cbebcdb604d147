/*-------------------------------------------------------------------------
 *
 * command_setting.c
 *	  The settings that a call rests on, as its record has them.
 *
 * Those are the role and what is listed in verify_calls.c: all that has a say in what the
 * admitted functions and statements do.  The record has the text of each that is not
 * as the list presumes; of some it presumes what never changes of the database.  It is
 * made when a setting has changed since the last call of this process; to find that out
 * the values are compared where PostgreSQL has them.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_database.h"
#include "command/command_impl.h"
#include "compat/nvm_compat_guc.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/syscache.h"
#include "verify/nvm_verify_calls.h"

/* a setting, and its value when the part was made */
typedef struct Known
{
	struct config_generic *setting; /* NULL: there is none, or not yet */
	int			number;			/* of a bool, int or enum */
	char	   *text;			/* of a string */
} Known;

static Known known[NVM_LOG_SETTINGS + 1];
static bool were_looked_up = false;
static Oid	known_role = InvalidOid;

/* the part, and a number that no other part of this process has; 0: none yet */
static StringInfoData part;
static uint64 part_number = 0;
static bool part_is_stale = true;
static bool part_is_too_long;

/*
 * What a query means is decided when it is parsed: constants are made of literals, and
 * planning makes constants of more.  So a call may run queries alone that were parsed and
 * planned under its settings.  values_number changes with each setting but search_path,
 * which plans are compared with by PostgreSQL itself.  Of all queries since the plans were
 * last forgotten: that under which they were parsed and planned; 0: there are none.
 */
static uint64 values_number = 1;
static uint64 queries_number = 0;
static bool queries_differ = false;

/*
 * What a text means that was taken to pieces, and a compiled function, is decided for the
 * session.
 */
static uint64 compiling_number = 1;
static uint64 compiled_number = 0;
static bool compiled_differ = false;

static int
which_is(const char *name)
{
	for (int i = 1; i <= NVM_LOG_SETTINGS; i++)
	{
		if (strcmp(name, nvm_log_settings[i].name) == 0)
			return i;
	}
	return 0;
}

/*
 * Is it one that the record has, and PostgreSQL itself does not compare with plans?
 */
bool
nvm_setting_is_recorded(const char *name)
{
	for (int i = 1; i <= NVM_LOG_SETTINGS; i++)
	{
		if (i != NVM_LOG_SETTING_SEARCH_PATH && pg_strcasecmp(name, nvm_log_settings[i].name) == 0)
			return true;
	}
	return false;
}

/*
 * Look them up.  Those of PL/pgSQL come with its library.  What stands in their place
 * before, and is freed then, is no setting.
 */
static void
look_up(void)
{
	int			n;
	struct config_generic **all = nvm_all_settings(&n);

	for (int i = 0; i < n; i++)
	{
		int			which = which_is(all[i]->name);

		if (which != 0 && (all[i]->flags & GUC_CUSTOM_PLACEHOLDER) == 0)
			known[which].setting = all[i];
	}
	were_looked_up = true;
	part_is_stale = true;
}

static inline int
number_of(const struct config_generic *setting)
{
	switch (setting->vartype)
	{
		case PGC_BOOL:
			return *((const struct config_bool *) setting)->variable;
		case PGC_INT:
			return *((const struct config_int *) setting)->variable;
		case PGC_ENUM:
			return *((const struct config_enum *) setting)->variable;
		default:
			return 0;
	}
}

static inline const char *
text_of(const struct config_generic *setting)
{
	const char *text = setting->vartype == PGC_STRING ?
	*((const struct config_string *) setting)->variable : NULL;

	return text ? text : "";
}

/*
 * Is it another value than when the part was made?  k->text is there.
 */
static inline bool
differs(const Known *k)
{
	return k->setting->vartype == PGC_STRING ? strcmp(text_of(k->setting), k->text) != 0 :
		number_of(k->setting) != k->number;
}

static bool
has_changed(void)
{
	if (part_is_stale || known_role != GetUserId())
		return true;
	for (int i = 1; i <= NVM_LOG_SETTINGS; i++)
	{
		const Known *k = &known[i];

		if (k->setting == NULL)
			continue;
		if (k->text == NULL || differs(k))
			return true;
	}
	return false;
}

/*
 * A setting has changed.
 */
static void
count_change(int which)
{
	if (which != NVM_LOG_SETTING_SEARCH_PATH)
		values_number++;
	if (which == NVM_LOG_SETTING_STANDARD_STRINGS || which == NVM_LOG_SETTING_BACKSLASH_QUOTE ||
		which == NVM_LOG_SETTING_PLPGSQL_CONFLICT)
		compiling_number++;
}

/*
 * LC_CTYPE of this process's database, of which nobody can change it.
 */
static const char *
database_ctype(void)
{
	static char *ctype = NULL;
	HeapTuple	tuple;
	Datum		value;
	bool		isnull;

	if (ctype != NULL)
		return ctype;
	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for database %u", MyDatabaseId);
	value = SysCacheGetAttr(DATABASEOID, tuple, Anum_pg_database_datctype, &isnull);
	if (isnull)
		elog(ERROR, "database %u has no LC_CTYPE", MyDatabaseId);
	ctype = MemoryContextStrdup(TopMemoryContext, TextDatumGetCString(value));
	ReleaseSysCache(tuple);
	return ctype;
}

/*
 * See command_impl.h.
 */
const char *
nvm_setting_presumed(int which)
{
	const char *presumed = nvm_log_settings[which].presumed;

	return presumed != NULL ? presumed : database_ctype();
}

static void
put_number(uint64 number)
{
	enlargeStringInfo(&part, NVM_LOG_NUMBER_MAX);
	part.len = (int) (nvm_log_put_number(part.data + part.len, number) - part.data);
}

/*
 * Make the part anew.  If there is no memory for it, the next call tries again.
 */
static void
make_part(void)
{
	const char *value[NVM_LOG_SETTINGS + 1] = {NULL};
	int			n = 0;

	if (part.data == NULL)
	{
		MemoryContext outer = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&part);
		MemoryContextSwitchTo(outer);
	}
	part_is_stale = true;
	part_is_too_long = false;
	for (int i = 1; i <= NVM_LOG_SETTINGS; i++)
	{
		Known	   *k = &known[i];

		if (k->setting == NULL)
			continue;
		if (k->text !=NULL && differs(k))
			count_change(i);
		if (k->text !=NULL)
			pfree(k->text);
		k->text = NULL;
		k->text = MemoryContextStrdup(TopMemoryContext, text_of(k->setting));
		k->number = number_of(k->setting);
		value[i] = GetConfigOption(k->setting->name, true, false);
		if (value[i] == NULL || strcmp(value[i], nvm_setting_presumed(i)) == 0)
			value[i] = NULL;
		else
		{
			value[i] = pstrdup(value[i]);
			part_is_too_long |= strlen(value[i]) > NVM_LOG_SETTING_MAX;
			n++;
		}
	}

	resetStringInfo(&part);
	appendStringInfoChar(&part, NVM_LOG_PART_SETTINGS);
	put_number(GetUserId());
	put_number(n);
	for (int i = 1; i <= NVM_LOG_SETTINGS; i++)
	{
		if (value[i] == NULL)
			continue;
		put_number(i);
		put_number(strlen(value[i]));
		appendBinaryStringInfo(&part, value[i], strlen(value[i]));
		pfree(unconstify(char *, value[i]));
	}
	known_role = GetUserId();
	part_is_stale = false;
	part_number++;
}

static void
refresh(void)
{
	if (!were_looked_up ||
		(known[NVM_LOG_SETTING_PLPGSQL_CONFLICT].setting == NULL &&
		 GetConfigOption(nvm_log_settings[NVM_LOG_SETTING_PLPGSQL_CONFLICT].name, true, false) != NULL))
		look_up();
	if (unlikely(has_changed()))
		make_part();
}

/*
 * The part of a record for the settings as nvm_settings_call_begins has found them; *number:
 * another one for each other part.  NULL: a setting is too long for it.
 */
const char *
nvm_settings_part(int *length, uint64 *number)
{
	*length = part.len;
	*number = part_number;
	return part_is_too_long ? NULL : part.data;
}

/* ---- queries that were parsed ---- */

/*
 * A function is compiled, in a database that has registered ones.
 */
void
nvm_settings_note_compiled(void)
{
	refresh();
	compiled_differ |= compiled_number != 0 && compiled_number != compiling_number;
	compiled_number = compiling_number;
}

/*
 * A query is parsed or planned there, of this text.  A client's text is debug_query_string.
 */
void
nvm_settings_note_query(const char *text)
{
	if (text == debug_query_string)
		return;
	nvm_settings_note_compiled();
	queries_differ |= queries_number != 0 && queries_number != values_number;
	queries_number = values_number;
}

/*
 * A call begins.
 */
bool
nvm_settings_call_begins(uint64 *number)
{
	nvm_settings_note_compiled();
	if (unlikely(queries_differ || (queries_number != 0 && queries_number != values_number)))
	{
		ResetPlanCache();
		queries_number = 0;
		queries_differ = false;
	}
	*number = values_number;
	return !compiled_differ;
}
