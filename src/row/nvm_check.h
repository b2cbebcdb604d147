/*-------------------------------------------------------------------------
 *
 * nvm_check.h
 *	  A block and its tuples are verified: for nvm.check() and for sound.c.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_CHECK_H
#define NVM_CHECK_H

#include "nodes/pg_list.h"
#include "pool/nvm_pool.h"
#include "utils/rel.h"
#include "verify/nvm_verify_block.h"

/* a large value that a version names, to be looked at without locks */
typedef struct NvmCheckLarge
{
	uint64		offset;			/* in the pool */
	NvmVersion *v;
	uint64		begin;			/* of v: if that changes, v is gone */
	uint32		blk;
	uint16		off;
	int			attnum;			/* 0: by the version's list */
} NvmCheckLarge;

typedef struct NvmCheck
{
	NvmBlockCheck block;		/* first: what verify/ knows of it */
	Relation	rel;
	NvmRelState *state;
	uint32		nblocks;
	bool		frames_only;	/* columns are not looked at */
	MemoryContext cxt;			/* of the lists below; reset for each block */
	List	   *problems;		/* of NvmCheckProblem */
	List	   *large;			/* of NvmCheckLarge */
	uint64	   *large_units;	/* units of the table's large extents */
	int64		nlarge_units;
	int64		large_size;		/* allocated */
} NvmCheck;

typedef struct NvmCheckProblem
{
	uint32		blk;
	uint32		off;			/* 0: the block */
	char	   *text;
} NvmCheckProblem;

/* check_block.c */

/* set up, for blocks; lists of large values are the caller's to make */
extern void nvm_check_begin(NvmCheck *check, Relation rel, NvmRelState *state,
							MemoryContext cxt);
extern void nvm_check_report(NvmCheck *check, uint32 blk, uint32 off,
							 const char *fmt,...) pg_attribute_printf(4, 5);

extern void nvm_check_unwritten(NvmCheck *check, uint32 blk);

/* check_tuple.c */
extern void nvm_check_tuple(NvmCheck *check, NvmVersion *v, uint64 begin,
							uint32 blk, uint32 off);
extern void nvm_check_listed_large(NvmCheck *check, NvmVersion *v, uint64 begin,
								   uint32 blk, uint32 off);
extern void nvm_check_large_units(NvmCheck *check);
extern void nvm_check_large(NvmCheck *check, const NvmCheckLarge *large, bool bytes);
extern void nvm_check_large_orphans(NvmCheck *check);

#endif							/* NVM_CHECK_H */
