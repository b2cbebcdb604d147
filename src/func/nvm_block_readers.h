/*-------------------------------------------------------------------------
 *
 * nvm_block_readers.h
 *	  Functions of other extensions that read files: block_readers.c, for hooks.c.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_BLOCK_READERS_H
#define NVM_BLOCK_READERS_H

#include "fmgr.h"

/* of needs_fmgr_hook, and of FHET_START of fmgr_hook, by src/hooks.c */
extern bool nvm_is_block_reader(Oid fn_oid);
extern void nvm_block_reader_enter(FmgrInfo *flinfo);

/* check.c: ERROR at the first problem of an index of ours, as amcheck has it */
extern void nvm_check_index_or_fail(Relation index, Relation heap, bool heapallindexed);

#endif							/* NVM_BLOCK_READERS_H */
