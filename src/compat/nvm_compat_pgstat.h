/*-------------------------------------------------------------------------
 *
 * nvm_compat_pgstat.h
 *	  Differences between PostgreSQL major versions in cumulative statistics.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_COMPAT_PGSTAT_H
#define NVM_COMPAT_PGSTAT_H

#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "utils/pgstat_internal.h"
#include "utils/rel.h"

/*
 * Count rows in a table that nobody was told of when they were made.  At once,
 * so that what VACUUM or ANALYZE report later takes its place.  Caller has
 * asked pgstat_should_count_relation().
 */
static inline void
nvm_count_found(Relation rel, int64 live, int64 dead)
{
	PgStat_EntryRef *ref =
	pgstat_get_entry_ref_locked(PGSTAT_KIND_RELATION,
								rel->rd_rel->relisshared ? InvalidOid : MyDatabaseId,
								RelationGetRelid(rel), false);
	PgStat_StatTabEntry *entry = &((PgStatShared_Relation *) ref->shared_stats)->stats;

#if PG_VERSION_NUM >= 160000
	entry->live_tuples += live;
	entry->dead_tuples += dead;
#else
	entry->n_live_tuples += live;
	entry->n_dead_tuples += dead;
#endif
	pgstat_unlock_entry(ref);
}

#endif							/* NVM_COMPAT_PGSTAT_H */
