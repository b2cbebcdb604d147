/*-------------------------------------------------------------------------
 *
 * unknown_settings.c
 *	  Settings of postgresql.conf that begin with "nvm." and are none of ours.
 *
 * PostgreSQL warns that it removes them, and not which one was meant.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat/nvm_compat_guc.h"
#include "nvm_library.h"
#include "utils/varlena.h"

#define PREFIX				"nvm."

/* a name that differs by more than this is another one */
#define NEAR				4

static bool
is_ours(const struct config_generic *setting)
{
	return strncmp(setting->name, PREFIX, strlen(PREFIX)) == 0 &&
		(setting->flags & GUC_CUSTOM_PLACEHOLDER) == 0;
}

/*
 * The setting whose name is nearest to `name`, or NULL if none is near.
 */
static const char *
nearest(struct config_generic **settings, int n, const char *name)
{
	const char *found = NULL;
	int			distance = NEAR + 1;

	for (int i = 0; i < n; i++)
	{
		int			d;

		if (!is_ours(settings[i]))
			continue;
		d = varstr_levenshtein_less_equal(name, strlen(name), settings[i]->name,
										  strlen(settings[i]->name), 1, 1, 1,
										  distance - 1, true);
		if (d < distance)
		{
			distance = d;
			found = settings[i]->name;
		}
	}
	return found;
}

/*
 * In _PG_init, when all settings are defined and before the prefix is reserved.
 */
void
nvm_warn_of_unknown_settings(void)
{
	int			n;
	struct config_generic **settings = nvm_all_settings(&n);

	for (int i = 0; i < n; i++)
	{
		const char *name = settings[i]->name;
		const char *meant;

		if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || is_ours(settings[i]))
			continue;
		meant = nearest(settings, n, name);
		ereport(WARNING,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("pg_nvm has no setting \"%s\"", name),
				 meant ? errhint("Perhaps you meant \"%s\".", meant) : 0));
	}
}
