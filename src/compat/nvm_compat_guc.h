/*-------------------------------------------------------------------------
 *
 * nvm_compat_guc.h
 *	  Differences between PostgreSQL major versions in settings.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_COMPAT_GUC_H
#define NVM_COMPAT_GUC_H

#include "postgres.h"

#include "utils/guc.h"
#include "utils/guc_tables.h"

/* all settings there are, and their number */
static inline struct config_generic **
nvm_all_settings(int *n)
{
#if PG_VERSION_NUM >= 160000
	return get_guc_variables(n);
#else
	*n = GetNumConfigOptions();
	return get_guc_variables();
#endif
}

#endif							/* NVM_COMPAT_GUC_H */
