/*-------------------------------------------------------------------------
 *
 * nvm_compat_index.h
 *	  Differences between PostgreSQL major versions in index builds.
 *
 * Beside nvm_compat.h, so that its includes reach the few files that need
 * them only.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_COMPAT_INDEX_H
#define NVM_COMPAT_INDEX_H

#include "compat/nvm_compat.h"

#include "utils/guc.h"

/* since 17 functions of an index run with a search_path that is safe */
#if PG_VERSION_NUM >= 170000
#define nvm_restrict_search_path()	RestrictSearchPath()
#else
#define nvm_restrict_search_path()	((void) 0)
#endif

/* build_attrmap_by_name takes missing_ok since 16 */
#include "access/attmap.h"
#if PG_VERSION_NUM >= 160000
#define NvmAttrMapByName(in, out)	build_attrmap_by_name((in), (out), false)
#else
#define NvmAttrMapByName(in, out)	build_attrmap_by_name((in), (out))
#endif

/*
 * Make an index of a table that nobody else sees, as a statement says, without looking at
 * privileges.  Partitions are counted since 16.
 */
#include "commands/defrem.h"
#if PG_VERSION_NUM >= 160000
#define NvmDefineIndex(relid, stmt) \
	DefineIndex((relid), (stmt), InvalidOid, InvalidOid, InvalidOid, -1, \
				false, false, false, false, true)
#else
#define NvmDefineIndex(relid, stmt) \
	DefineIndex((relid), (stmt), InvalidOid, InvalidOid, InvalidOid, \
				false, false, false, false, true)
#endif

#endif							/* NVM_COMPAT_INDEX_H */
