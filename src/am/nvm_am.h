/*-------------------------------------------------------------------------
 *
 * nvm_am.h
 *	  Callbacks of the table access method, for the routine in tableam.c.
 *
 * Signatures that differ between major versions are bridged in compat/.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_AM_H
#define NVM_AM_H

#include "am/nvm_scan.h"
#include "compat/nvm_compat_am.h"
#include "executor/executor.h"
#include "optimizer/paths.h"
#include "optimizer/planner.h"

struct NvmScanDescData;

/* ---- tableam.c ---- */

extern const TableAmRoutine nvm_tableam_routine;

extern void nvm_vlog_method_register(void);
extern bool nvm_relation_is_vlog(Relation rel);

/* ---- cmdlog.c ---- */

extern void nvm_cmdlog_method_register(void);
extern void nvm_cmdlog_query_started(QueryDesc *query);

/* ---- plan_pin.c ---- */

extern Cost nvm_plan_other_way(const IndexPath *path);
extern void nvm_plan_pin_lanes(PlannerInfo *root, RelOptInfo *rel, RangeTblEntry *rte);

/* ---- scan.c ---- */

extern TableScanDesc nvm_scan_begin(Relation rel, Snapshot snapshot, int nkeys,
									struct ScanKeyData *key,
									ParallelTableScanDesc pscan, uint32 flags);
extern void nvm_scan_end(TableScanDesc sscan);
extern void nvm_scan_rescan(TableScanDesc sscan, struct ScanKeyData *key,
							bool set_params, bool allow_strat, bool allow_sync,
							bool allow_pagemode);
extern bool nvm_scan_getnextslot(TableScanDesc sscan, ScanDirection direction,
								 TupleTableSlot *slot);
extern void nvm_scan_set_tidrange(TableScanDesc sscan, ItemPointer mintid,
								  ItemPointer maxtid);
extern bool nvm_scan_getnextslot_tidrange(TableScanDesc sscan,
										  ScanDirection direction,
										  TupleTableSlot *slot);

/* ---- sample.c, analyze_scan.c ---- */

extern bool nvm_scan_sample_next_block(TableScanDesc sscan,
									   struct SampleScanState *scanstate);
extern bool nvm_scan_sample_next_tuple(TableScanDesc sscan,
									   struct SampleScanState *scanstate,
									   TupleTableSlot *slot);
extern void nvm_analyze_size_asked(BlockNumber nblocks);
extern bool nvm_scan_analyze_next_block(TableScanDesc sscan, NVM_ANALYZE_BLOCK_ARGS);
extern bool nvm_scan_analyze_next_tuple(TableScanDesc sscan,
										TransactionId OldestXmin,
										double *liverows, double *deadrows,
										TupleTableSlot *slot);

/* ---- bitmapscan.c ---- */

extern void nvm_bitmap_scan_begin(struct NvmScanDescData *scan);
extern void nvm_bitmap_slot_wanted(void);
extern bool nvm_bitmap_query_begin(void);
extern void nvm_bitmap_query_end(QueryDesc *queryDesc, bool outer);
#if NVM_BITMAP_IS_STREAM
extern bool nvm_scan_bitmap_next(TableScanDesc sscan, TupleTableSlot *slot,
								 bool *recheck, uint64 *lossy_pages,
								 uint64 *exact_pages);
#else
extern bool nvm_scan_bitmap_next_block(TableScanDesc sscan,
									   struct TBMIterateResult *tbmres);
extern bool nvm_scan_bitmap_next_tuple(TableScanDesc sscan,
									   struct TBMIterateResult *tbmres,
									   TupleTableSlot *slot);
#endif

/* ---- indexfetch.c, tidfetch.c ---- */

extern struct IndexFetchTableData *nvm_index_fetch_begin(Relation rel);
extern void nvm_index_fetch_reset(struct IndexFetchTableData *scan);
extern void nvm_index_fetch_end(struct IndexFetchTableData *scan);
extern bool nvm_index_fetch_tuple(struct IndexFetchTableData *scan,
								  ItemPointer tid, Snapshot snapshot,
								  TupleTableSlot *slot, bool *call_again,
								  bool *all_dead);
extern TransactionId nvm_index_delete_tuples(Relation rel, TM_IndexDeleteOp *op);
extern bool nvm_tuple_fetch_row_version(Relation rel, ItemPointer tid,
										Snapshot snapshot, TupleTableSlot *slot);
extern bool nvm_tuple_tid_valid(TableScanDesc sscan, ItemPointer tid);
extern void nvm_tuple_get_latest_tid(TableScanDesc sscan, ItemPointer tid);
extern bool nvm_tuple_satisfies_snapshot(Relation rel, TupleTableSlot *slot,
										 Snapshot snapshot);

/* ---- indexbuild.c ---- */

extern double nvm_index_build_range_scan(Relation rel, Relation index,
										 struct IndexInfo *info,
										 bool allow_sync, bool anyvisible,
										 bool progress,
										 BlockNumber start_blockno,
										 BlockNumber numblocks,
										 IndexBuildCallback callback,
										 void *callback_state,
										 TableScanDesc sscan);
extern void nvm_index_validate_scan(Relation rel, Relation index,
									struct IndexInfo *info, Snapshot snapshot,
									struct ValidateIndexState *state);

/* ---- estimate.c, rewrite.c, vacuum.c ---- */

extern void nvm_relation_copy_for_cluster(Relation OldTable, Relation NewTable,
										  Relation OldIndex, bool use_sort,
										  TransactionId OldestXmin,
										  TransactionId *xid_cutoff,
										  MultiXactId *multi_cutoff,
										  double *num_tuples,
										  double *tups_vacuumed,
										  double *tups_recently_dead);
extern void nvm_relation_vacuum(Relation rel, struct VacuumParams *params,
								BufferAccessStrategy bstrategy);
extern uint64 nvm_relation_size(Relation rel, ForkNumber forkNumber);
extern bool nvm_relation_needs_toast_table(Relation rel);
extern Oid	nvm_relation_toast_am(Relation rel);
extern void nvm_relation_fetch_toast_slice(Relation toastrel, Oid valueid,
										   int32 attrsize, int32 sliceoffset,
										   int32 slicelength,
										   struct varlena *result);
extern void nvm_relation_estimate_size(Relation rel, int32 *attr_widths,
									   BlockNumber *pages, double *tuples,
									   double *allvisfrac);

/* ---- plan_cost.c ---- */

extern void nvm_plan_choose_cost_functions(Oid relid, bool inhparent, RelOptInfo *rel);
extern void nvm_plan_paths_made(PlannerInfo *root, RelOptInfo *rel, Index rti,
								RangeTblEntry *rte, set_rel_pathlist_hook_type next);
extern PlannedStmt *nvm_plan_with_page_costs(Query *parse, const char *query_string,
											 int cursorOptions, ParamListInfo boundParams,
											 planner_hook_type next);

/* ---- speculative.c ---- */

#if NVM_SPECULATIVE_WANTS_BTREE
extern void nvm_speculative_query_started(QueryDesc *queryDesc, int eflags);
extern void nvm_speculative_run(QueryDesc *queryDesc, ScanDirection direction, uint64 count,
								bool execute_once, ExecutorRun_hook_type next);
#endif

#endif							/* NVM_AM_H */
