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

#include "compat/nvm_compat.h"
#include "table/nvm_table.h"

/* ---- relation.c, ddl.c, estimate.c, rewrite.c, vacuum.c ---- */

/* ERROR unless nvm storage can be used in this process now */
extern void nvm_table_require(void);
extern bool nvm_relation_is_nvm(Relation rel);
extern void nvm_storage_key(Relation rel, const NvmLocator *locator,
							NvmStorageKey *key);
extern void nvm_rel_cache_drop(Relation rel);

extern void nvm_relation_set_new_filelocator(Relation rel,
											 const NvmLocator *newlocator,
											 char persistence,
											 TransactionId *freezeXid,
											 MultiXactId *minmulti);
extern void nvm_relation_nontransactional_truncate(Relation rel);
extern void nvm_relation_copy_data(Relation rel, const NvmLocator *newlocator);
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

/* ---- ddl.c for ddl_hooks.c ---- */

extern void nvm_ddl_drop_relation(Oid relid);
extern void nvm_ddl_created_relation(Oid relid);
extern void nvm_ddl_drop_database(Oid database);
extern bool nvm_ddl_database_in_use(Oid database, Oid tablespace);

#endif							/* NVM_AM_H */
