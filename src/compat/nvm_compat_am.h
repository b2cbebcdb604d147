/*-------------------------------------------------------------------------
 *
 * nvm_compat_am.h
 *	  Differences between PostgreSQL major versions in the interfaces of
 *	  table access methods and tuple slots.
 *
 * Beside nvm_compat.h, so that its includes reach the few files that need
 * them only.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_COMPAT_AM_H
#define NVM_COMPAT_AM_H

#include "compat/nvm_compat.h"

#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/tableam.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "nodes/tidbitmap.h"
#include "utils/tuplesort.h"
#if PG_VERSION_NUM >= 170000
#include "storage/read_stream.h"
#endif

/* before 18 some places accept unique indexes of btree alone */
#define NVM_SPECULATIVE_WANTS_BTREE	(PG_VERSION_NUM < 180000)
#define NVM_MATVIEW_WANTS_BTREE		(PG_VERSION_NUM < 180000)

/* ExecutorRun_hook lost an argument in 18 */
#if PG_VERSION_NUM >= 180000
#define NVM_EXECUTOR_RUN_ARGS	QueryDesc *queryDesc, ScanDirection direction, uint64 count
#define NVM_EXECUTOR_RUN_PASS	queryDesc, direction, count
#else
#define NVM_EXECUTOR_RUN_ARGS \
	QueryDesc *queryDesc, ScanDirection direction, uint64 count, bool execute_once
#define NVM_EXECUTOR_RUN_PASS	queryDesc, direction, count, execute_once
#endif

/*
 * An apply worker looks rows up by an index. 16 and 17 assert that this index
 * is the replica identity, but ask the index for that and not its table.  Then
 * they assert that its access method is btree or hash.
 */
#if defined(USE_ASSERT_CHECKING) && PG_VERSION_NUM >= 160000 && PG_VERSION_NUM < 180000
#define NVM_APPLY_ASKS_INDEX	1
#else
#define NVM_APPLY_ASKS_INDEX	0
#endif

/* forms of ALTER TABLE that make the column's indexes anew from their definitions */
#if PG_VERSION_NUM >= 170000
#define NvmRecreatesIndexes(subtype) \
	((subtype) == AT_AlterColumnType || (subtype) == AT_SetExpression)
#else
#define NvmRecreatesIndexes(subtype)	((subtype) == AT_AlterColumnType)
#endif

/* between the swap of two tables' files and the CommandCounterIncrement after it */
#if PG_VERSION_NUM >= 170000
#define NvmCloseSmgrByOid(relid)	((void) (relid))
#else
#include "utils/relcache.h"
#define NvmCloseSmgrByOid(relid)	RelationCloseSmgrByOid(relid)
#endif

/* rebuild an index in the current transaction */
#include "catalog/index.h"
static inline void
nvm_reindex_index(Oid index, char persistence)
{
	ReindexParams params = {0};

#if PG_VERSION_NUM >= 170000
	reindex_index(NULL, index, false, persistence, &params);
#else
	reindex_index(index, false, persistence, &params);
#endif
}

#include "miscadmin.h"
#include "utils/acl.h"
#if PG_VERSION_NUM >= 160000
#include "catalog/pg_class.h"
#include "catalog/pg_proc.h"
#define NvmOwnsRelation(relid)	object_ownercheck(RelationRelationId, (relid), GetUserId())
#define NvmOwnsFunction(function)	object_ownercheck(ProcedureRelationId, (function), GetUserId())
#define NvmMayExecute(function) \
	(object_aclcheck(ProcedureRelationId, (function), GetUserId(), ACL_EXECUTE) == ACLCHECK_OK)
#define NvmPublicMayExecute(function) \
	(object_aclcheck(ProcedureRelationId, (function), ACL_ID_PUBLIC, ACL_EXECUTE) == ACLCHECK_OK)
#else
#define NvmOwnsRelation(relid)	pg_class_ownercheck((relid), GetUserId())
#define NvmOwnsFunction(function)	pg_proc_ownercheck((function), GetUserId())
#define NvmMayExecute(function) \
	(pg_proc_aclcheck((function), GetUserId(), ACL_EXECUTE) == ACLCHECK_OK)
#define NvmPublicMayExecute(function) \
	(pg_proc_aclcheck((function), ACL_ID_PUBLIC, ACL_EXECUTE) == ACLCHECK_OK)
#endif

/* slots: copy_minimal_tuple grew an argument in 18 */
#if PG_VERSION_NUM >= 180000
#define NVM_COPY_MINIMAL_ARGS	TupleTableSlot *slot, Size extra
#define NvmMinimalFromHeap(tuple)	minimal_tuple_from_heap_tuple((tuple), extra)
#define NvmFormMinimal(slot) \
	heap_form_minimal_tuple((slot)->tts_tupleDescriptor, (slot)->tts_values, (slot)->tts_isnull, extra)
#else
#define NVM_COPY_MINIMAL_ARGS	TupleTableSlot *slot
#define NvmMinimalFromHeap(tuple)	minimal_tuple_from_heap_tuple(tuple)
#define NvmFormMinimal(slot) \
	heap_form_minimal_tuple((slot)->tts_tupleDescriptor, (slot)->tts_values, (slot)->tts_isnull)
#endif

/* slots: is_current_xact_tuple exists since 17 */
#if PG_VERSION_NUM >= 170000
#define NVM_SLOT_OPS_IS_CURRENT(fn)	.is_current_xact_tuple = (fn),
#else
#define NVM_SLOT_OPS_IS_CURRENT(fn)
#endif

/* TID range of a scan */
#if PG_VERSION_NUM >= 180000
#define NvmScanMinTid(scan)		(&(scan)->st.tidrange.rs_mintid)
#define NvmScanMaxTid(scan)		(&(scan)->st.tidrange.rs_maxtid)
#else
#define NvmScanMinTid(scan)		(&(scan)->rs_mintid)
#define NvmScanMaxTid(scan)		(&(scan)->rs_maxtid)
#endif

/* ANALYZE: the next block is named by number, or by a read stream since 17 */
#if PG_VERSION_NUM >= 170000
#define NVM_ANALYZE_BLOCK_ARGS	ReadStream *stream
static inline BlockNumber
nvm_analyze_block(ReadStream * stream)
{
	BufferAccessStrategy strategy;

	return read_stream_next_block(stream, &strategy);
}
#define NVM_ANALYZE_BLOCK		nvm_analyze_block(stream)
#define NVM_ANALYZE_PREFETCHES	0	/* nothing is read before we take a block */
#else
#define NVM_ANALYZE_PREFETCHES	1	/* of the main fork, whatever the method */
#define NVM_ANALYZE_BLOCK_ARGS	BlockNumber blockno, BufferAccessStrategy bstrategy
#define NVM_ANALYZE_BLOCK		blockno
#endif

/*
 * Bitmap scans.  Until 17 the executor iterates over the bitmap and hands us
 * one page of it at a time; since 18 the scan descriptor holds the iterator
 * and one callback does everything.  NvmBitmapPage is what is common.
 */
typedef struct NvmBitmapPage
{
	BlockNumber blockno;
	bool		lossy;
	bool		recheck;
	int			noffsets;		/* exact pages only */
	const OffsetNumber *offsets;
} NvmBitmapPage;

#if PG_VERSION_NUM >= 180000
#define NVM_BITMAP_OFFSETS		TBM_MAX_TUPLES_PER_PAGE

/* the next page of the scan's own iterator; offsets is workspace */
static inline bool
nvm_bitmap_iterate(TableScanDesc scan, OffsetNumber *offsets, NvmBitmapPage *page)
{
	TBMIterateResult tbmres;

	if (!tbm_iterate(&scan->st.rs_tbmiterator, &tbmres))
		return false;
	page->blockno = tbmres.blockno;
	page->lossy = tbmres.lossy;
	page->recheck = tbmres.recheck;
	page->noffsets = tbmres.lossy ? 0 :
		tbm_extract_page_tuple(&tbmres, offsets, NVM_BITMAP_OFFSETS);
	page->offsets = offsets;
	return true;
}

#define NVM_BITMAP_IS_STREAM	1
#define NvmBitmapNoPrefetch(node)	((void) 0)
#else
#define NVM_BITMAP_OFFSETS		1

static inline void
nvm_bitmap_page(const TBMIterateResult *tbmres, NvmBitmapPage *page)
{
	page->blockno = tbmres->blockno;
	page->lossy = tbmres->ntuples < 0;
	page->recheck = tbmres->recheck;
	page->noffsets = Max(tbmres->ntuples, 0);
	page->offsets = tbmres->offsets;
}

#define NVM_BITMAP_IS_STREAM	0
#define NvmBitmapNoPrefetch(node)	((node)->prefetch_maximum = 0)
#endif

/* 17 begins the scan of a bitmap's table when it has the bitmap */
#define NVM_BITMAP_BEGINS_LATE \
	(PG_VERSION_NUM >= 170000 && PG_VERSION_NUM < 180000)

/* tuple_update says which indexes need new entries */
#if PG_VERSION_NUM >= 160000
typedef TU_UpdateIndexes NvmUpdateIndexes;
#define NVM_UPDATE_INDEXES(needed)	((needed) ? TU_All : TU_None)
#else
typedef bool NvmUpdateIndexes;
#define NVM_UPDATE_INDEXES(needed)	(needed)
#endif

#if PG_VERSION_NUM >= 160000
#define NVM_NEEDS_INDEXES(update)	((update) != TU_None)
#define NvmExecInsertIndexTuples(info, slot, estate, update) \
	ExecInsertIndexTuples(info, slot, estate, update, false, NULL, NIL, false)
#else
#define NVM_NEEDS_INDEXES(update)	(update)
#define NvmExecInsertIndexTuples(info, slot, estate, update) \
	ExecInsertIndexTuples(info, slot, estate, update, false, NULL, NIL)
#endif

/* renamed callback */
#if PG_VERSION_NUM >= 160000
#define NVM_SET_NEW_FILELOCATOR	.relation_set_new_filelocator
#else
#define NVM_SET_NEW_FILELOCATOR	.relation_set_new_filenode
#endif

/* next TID of the sorted index contents in a concurrent index build */
static inline bool
nvm_tuplesort_getdatum(Tuplesortstate *state, Datum *val, bool *isnull)
{
#if PG_VERSION_NUM >= 160000
	return tuplesort_getdatum(state, true, false, val, isnull, NULL);
#else
	return tuplesort_getdatum(state, true, val, isnull, NULL);
#endif
}

#endif							/* NVM_COMPAT_AM_H */
