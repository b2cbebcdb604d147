/*-------------------------------------------------------------------------
 *
 * nvm_btree_am.h
 *	  What the routine of the index access method is made of besides its work
 *	  on indexes: options, costs, operator classes.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_BTREE_AM_H
#define NVM_BTREE_AM_H

#include "compat/nvm_compat_am.h"
#include "compat/nvm_compat_indexam.h"
#include "executor/executor.h"
#include "nodes/pathnodes.h"
#include "optimizer/planner.h"

extern IndexAmRoutine *nvm_btree_routine(void);

/* ---- btree_cost.c ---- */

/* level of the root; 0 of an empty index */
extern int	nvm_btree_height(Relation index);

extern void nvm_btree_costestimate(PlannerInfo *root, IndexPath *path, double loop_count,
								   Cost *startup_cost, Cost *total_cost,
								   Selectivity *selectivity, double *index_correlation,
								   double *index_pages);

/* ---- btree_opclass.c ---- */

extern void nvm_btree_adjustmembers(Oid opfamily, Oid opclass,
									List *operators, List *functions);

/*
 * Give nvm_btree what operator families and classes btree has and it lacks.
 * Returns how many classes that were.  Runs as superuser, whoever calls.
 */
extern int	nvm_btree_mirror_opclasses(void);

/* ---- hook of the planner (btree_rebuild.c) ---- */

extern void nvm_btree_hide_absent_indexes(RelOptInfo *rel);

#endif							/* NVM_BTREE_AM_H */
