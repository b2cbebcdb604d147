/*-------------------------------------------------------------------------
 *
 * nvm_compat_brin.h
 *	  Differences between PostgreSQL major versions in BRIN's range map.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_COMPAT_BRIN_H
#define NVM_COMPAT_BRIN_H

#include "compat/nvm_compat.h"

#include "access/brin_revmap.h"
#include "storage/bufmgr.h"

/* a snapshot was an argument before 17 */
#if PG_VERSION_NUM >= 170000
#define NvmBrinRevmap(index, pages_per_range) \
	brinRevmapInitialize((index), (pages_per_range))
#define NvmBrinRangeTuple(revmap, blk, buf, off) \
	brinGetTupleForHeapBlock((revmap), (blk), (buf), (off), NULL, BUFFER_LOCK_SHARE)
#else
#define NvmBrinRevmap(index, pages_per_range) \
	brinRevmapInitialize((index), (pages_per_range), NULL)
#define NvmBrinRangeTuple(revmap, blk, buf, off) \
	brinGetTupleForHeapBlock((revmap), (blk), (buf), (off), NULL, BUFFER_LOCK_SHARE, NULL)
#endif

#endif							/* NVM_COMPAT_BRIN_H */
