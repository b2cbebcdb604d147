/*-------------------------------------------------------------------------
 *
 * command_setting.c
 *	  The settings that a call rests on, as its record has them.
 *
 * Those are the role and what is listed in verify_calls.c: all that has a say in what the
 * admitted functions and statements do.  The record has the text of each that is not
 * as the list presumes.  It is made when a setting has changed since the last call of this
 * process; to find that out the values are compared where PostgreSQL has them.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "command/command_impl.h"
#include "compat/nvm_compat_guc.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/memutils.h"
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

static int
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

static const char *
text_of(const struct config_generic *setting)
{
	const char *text = setting->vartype == PGC_STRING ?
	*((const struct config_string *) setting)->variable : NULL;

	return text ? text : "";
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
		if (k->text == NULL || number_of(k->setting) != k->number ||
			strcmp(text_of(k->setting), k->text) != 0)
			return true;
	}
	return false;
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
		if (k->text !=NULL)
			pfree(k->text);
		k->text = NULL;
		k->text = MemoryContextStrdup(TopMemoryContext, text_of(k->setting));
		k->number = number_of(k->setting);
		value[i] = GetConfigOption(k->setting->name, true, false);
		if (value[i] == NULL || strcmp(value[i], nvm_log_settings[i].presumed) == 0)
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

/*
 * The part of a record for the settings as they are; *number: another one for each other
 * part.  NULL: a setting is too long for it.
 */
const char *
nvm_settings_part(int *length, uint64 *number)
{
	if (!were_looked_up ||
		(known[NVM_LOG_SETTING_PLPGSQL_CONFLICT].setting == NULL &&
		 GetConfigOption(nvm_log_settings[NVM_LOG_SETTING_PLPGSQL_CONFLICT].name, true, false) != NULL))
		look_up();
	if (unlikely(has_changed()))
		make_part();
	*length = part.len;
	*number = part_number;
	return part_is_too_long ? NULL : part.data;
}
