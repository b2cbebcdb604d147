/*-------------------------------------------------------------------------
 *
 * nvm_storage_stats.h
 *	  How many row versions a storage holds (storage_stats.c).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_STORAGE_STATS_H
#define NVM_STORAGE_STATS_H

#include "postgres.h"

#include "pool/nvm_pool.h"
#include "utils/rel.h"

typedef struct NvmStorageEstimate
{
	uint64		live;			/* rows */
	uint64		dead;			/* versions that VACUUM or time takes away */
	uint64		suspect;		/* rows that there is room for in SUSPECT
								 * blocks */
} NvmStorageEstimate;

extern void nvm_storage_estimate(NvmRelState *state, NvmStorageEstimate *estimate);
extern void nvm_storage_tell_stats(Relation rel, NvmRelState *state);

#endif							/* NVM_STORAGE_STATS_H */
