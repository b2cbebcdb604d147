/*-------------------------------------------------------------------------
 *
 * nvm_compat_indexam.h
 *	  Differences between PostgreSQL major versions in the interface of index
 *	  access methods.
 *
 * Beside nvm_compat.h, so that its includes reach the few files that need
 * them only.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_COMPAT_INDEXAM_H
#define NVM_COMPAT_INDEXAM_H

#include "compat/nvm_compat.h"

#include "access/amapi.h"
#include "access/nbtree.h"
#include "access/relscan.h"
#include "utils/selfuncs.h"

/*
 * The fields of an ordered index's routine that came after 15.  Nothing is
 * said of hashing, which is the table's and the operators' business.
 */
static inline void
nvm_compat_index_routine(IndexAmRoutine *am, int (*height) (Relation index))
{
#if PG_VERSION_NUM >= 160000
	am->amsummarizing = false;
#endif
#if PG_VERSION_NUM >= 170000
	/* the planner then counts workers for ambuild, as it does for btree in 15 */
	am->amcanbuildparallel = true;
	am->aminsertcleanup = NULL;
#endif
#if PG_VERSION_NUM >= 180000
	am->amcanhash = false;
	am->amconsistentequality = true;
	am->amconsistentordering = true;
	am->amgettreeheight = height;
	am->amtranslatestrategy = bttranslatestrategy;
	am->amtranslatecmptype = bttranslatecmptype;
#endif
}

/* parallel scans */
#if PG_VERSION_NUM >= 180000
#define NVM_ESTIMATE_PARALLEL_ARGS	Relation index, int nkeys, int norderbys
#define NvmParallelScanArea(scan) \
	OffsetToPointer((scan)->parallel_scan, (scan)->parallel_scan->ps_offset_am)
#else
#if PG_VERSION_NUM >= 170000
#define NVM_ESTIMATE_PARALLEL_ARGS	int nkeys, int norderbys
#else
#define NVM_ESTIMATE_PARALLEL_ARGS	void
#endif
#define NvmParallelScanArea(scan) \
	OffsetToPointer((scan)->parallel_scan, (scan)->parallel_scan->ps_offset)
#endif

/* EXPLAIN shows the number of descents since 18 */
#if PG_VERSION_NUM >= 180000
#define NvmCountDescent(scan) \
	do { \
		if ((scan)->instrument) \
			(scan)->instrument->nsearches++; \
	} while (0)
#else
#define NvmCountDescent(scan)	((void) 0)
#endif

/* planning */
#if PG_VERSION_NUM >= 170000
#define nvm_estimate_array_length(root, expr) \
	estimate_array_length(root, expr)
#else
#define nvm_estimate_array_length(root, expr) \
	((double) estimate_array_length(expr))
#endif

#endif							/* NVM_COMPAT_INDEXAM_H */
