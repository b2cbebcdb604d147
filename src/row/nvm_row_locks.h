/*-------------------------------------------------------------------------
 *
 * nvm_row_locks.h
 *	  LWLocks of rows and blocks, and the start of this folder.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_ROW_LOCKS_H
#define NVM_ROW_LOCKS_H

#include "postgres.h"

#include "storage/lwlock.h"

/*
 * Lock classes, in the order in which they may be taken: row lock of a root's
 * block, then allocation lock of a block, then the relation's extend lock.
 * row/README.md has the whole list.  Never two of one class.
 */
#define NVM_LOCK_PARTITIONS		1024

typedef struct NvmTableShared
{
	LWLockPadded *row_locks;	/* [NVM_LOCK_PARTITIONS] */
	LWLockPadded *alloc_locks;	/* [NVM_LOCK_PARTITIONS] */
} NvmTableShared;

extern NvmTableShared *NvmTable;

/* the named tranche that startup.c requests for nvm_table_num_lwlocks() locks */
#define NVM_TABLE_TRANCHE		"nvm_table"

extern Size nvm_table_shmem_size(void);
extern int	nvm_table_num_lwlocks(void);
extern void nvm_table_shmem_startup(void);
extern void nvm_table_register(void);	/* table ops for wbl, hooks; in
										 * _PG_init */

static inline LWLock *
nvm_row_lock(uint32 dir, uint32 blkno)
{
	return &NvmTable->row_locks[(dir * 31 + blkno) % NVM_LOCK_PARTITIONS].lock;
}

static inline LWLock *
nvm_alloc_lock(uint32 dir, uint32 blkno)
{
	return &NvmTable->alloc_locks[(dir * 31 + blkno) % NVM_LOCK_PARTITIONS].lock;
}

#endif							/* NVM_ROW_LOCKS_H */
