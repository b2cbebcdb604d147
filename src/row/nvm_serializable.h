/*-------------------------------------------------------------------------
 *
 * nvm_serializable.h
 *	  Predicate locks and conflicts of serializable transactions.
 *
 * A transaction that is not serializable pays for one comparison.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_SERIALIZABLE_H
#define NVM_SERIALIZABLE_H

#include "access/relscan.h"
#include "access/xact.h"
#include "pool/nvm_pool.h"

extern Size nvm_parallelscan_initialize(Relation rel, ParallelTableScanDesc pscan);

extern void nvm_ssi_version_slow(Relation rel, NvmVersion *v, bool visible,
								 ItemPointer tid, Snapshot snapshot);
extern void nvm_ssi_row_slow(Relation rel, NvmRelState *state, uint64 root,
							 NvmVersion *v, ItemPointer tid, Snapshot snapshot);
extern void nvm_ssi_ended_slow(Relation rel, ItemPointer tid, ItemPointer root);
extern void nvm_ssi_inserted_slow(Relation rel);

static inline void
nvm_ssi_version(Relation rel, NvmVersion *v, bool visible, ItemPointer tid,
				Snapshot snapshot)
{
	if (unlikely(IsolationIsSerializable()))
		nvm_ssi_version_slow(rel, v, visible, tid, snapshot);
}

static inline void
nvm_ssi_row(Relation rel, NvmRelState *state, uint64 root, NvmVersion *v,
			ItemPointer tid, Snapshot snapshot)
{
	if (unlikely(IsolationIsSerializable()) && rel != NULL)
		nvm_ssi_row_slow(rel, state, root, v, tid, snapshot);
}

static inline void
nvm_ssi_ended(Relation rel, ItemPointer tid, ItemPointer root)
{
	if (unlikely(IsolationIsSerializable()))
		nvm_ssi_ended_slow(rel, tid, root);
}

static inline void
nvm_ssi_inserted(Relation rel)
{
	if (unlikely(IsolationIsSerializable()))
		nvm_ssi_inserted_slow(rel);
}

#endif							/* NVM_SERIALIZABLE_H */
