/*-------------------------------------------------------------------------
 *
 * nvm_btree_identity.h
 *	  Indexes that say btree and are ours: ddl/IDENTITY.md.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_BTREE_IDENTITY_H
#define NVM_BTREE_IDENTITY_H

#include "postgres.h"

#include "access/amapi.h"
#include "access/genam.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "executor/execdesc.h"
#include "executor/executor.h"
#include "nodes/execnodes.h"
#include "nodes/pathnodes.h"
#include "utils/rel.h"

typedef enum NvmIndexIdentity
{
	NVM_IDENTITY_NVM_BTREE,		/* an index of ours is of method nvm_btree */
	NVM_IDENTITY_BTREE			/* it says btree */
} NvmIndexIdentity;

extern int	nvm_index_identity;

/* nvm.default_index_method */
#define NVM_INDEX_METHOD_BTREE	0
#define NVM_INDEX_METHOD_NVM	1
#define NVM_DEFAULT_INDEX_METHOD NVM_INDEX_METHOD_NVM

extern int	nvm_default_index_method;	/* NVM_INDEX_METHOD_* */

/* ---- btree_identity.c ---- */

/*
 * Raised by each message that may take an entry out of the relcache: what was
 * exchanged before that may be PostgreSQL's again.
 */
extern uint64 nvm_index_generation;

extern void nvm_index_define_identity(void);

extern bool nvm_index_identity_applies(void);

/* whatever the settings: an index is made as another one is */
extern bool nvm_index_identity_forced;

/* the command is REINDEX CONCURRENTLY */
extern bool nvm_index_reindexes;

/* the storage of an index that says btree; 0: it has none, or is PostgreSQL's */
extern uint32 nvm_index_btree_storage(Relation index);

/* does the routine of an open index belong to us, and is the method btree's? */
extern bool nvm_index_says_btree(Relation index);

/* also of one that has no storage yet; just_made: the command that made the entry is under way */
extern void nvm_index_exchange(Relation index, bool just_made);

/* the same, if another transaction has ended its storage and has it locked */
extern bool nvm_index_exchange_ended(Relation index);

/*
 * ERROR if an index is ours and has nbtree's routine, which would say that it has no
 * entry.  A second look, for where nbtree does not come to an end of the file.
 */
extern void nvm_index_require_routine(Relation index);

/*
 * All indexes of a table of ours: after this they have our routine, or are not ours.
 * True if one that is ours may be checked at COMMIT.
 */
extern bool nvm_index_exchange_all(Relation table);

extern void nvm_index_hold_deferred(Relation table);

/* the planner's copies of what is known of the indexes of table relid */
extern void nvm_index_exchange_planned(Oid relid, RelOptInfo *rel);

/* ---- btree_routine.c ---- */

extern void nvm_index_set_routine(Relation index, Oid handler, const IndexAmRoutine *routine,
								  bool just_made);
extern void nvm_index_register_routines(void);

/* ---- btree_failsafe.c ---- */

/* the page that the file of such an index has, and nothing else */
extern void nvm_index_write_failsafe(Relation index, ForkNumber fork);
extern bool nvm_index_has_failsafe(Relation index);

/* ---- btree_takeover.c ---- */

/* the index that our build builds within one of nbtree's, which will write the file */
extern Oid	nvm_index_being_taken;

extern void nvm_index_created(Oid indexid, bool again);
extern bool nvm_index_take_over_build(Relation table, Relation index, IndexInfo *info,
									  TableScanDesc sscan, double *reltuples);
extern void nvm_index_take_over_validation(Relation table, Relation index, IndexInfo *info,
										   ValidateIndexState *state);
extern void nvm_index_hold_truncated(Relation table);
extern void nvm_index_release_truncated(Relation index);
extern void nvm_index_settle_builds(void);
extern void nvm_index_write_taken(void);
extern void nvm_index_register_takeover(void);

/* workers for the build of an index of ours: none of nbtree's */
extern void nvm_index_plan_no_workers(PlannerInfo *root, Oid relid, RelOptInfo *rel);
extern int	nvm_index_count_workers(Relation table, Relation index);

/* ---- btree_hold.c ---- */

extern void nvm_index_hold_and_start(QueryDesc *query, int eflags,
									 ExecutorStart_hook_type next);

#endif							/* NVM_BTREE_IDENTITY_H */
