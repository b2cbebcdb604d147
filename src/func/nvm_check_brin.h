/*-------------------------------------------------------------------------
 *
 * nvm_check_brin.h
 *	  Summaries of BRIN are verified: check_brin.c, for check.c.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_CHECK_BRIN_H
#define NVM_CHECK_BRIN_H


/* range is the first block of the range that the finding is about */
typedef void (*NvmBrinCheckEmit) (void *arg, BlockNumber range, const char *problem);

extern void nvm_check_brin(Relation index, Relation heap, NvmBrinCheckEmit emit, void *arg);

#endif							/* NVM_CHECK_BRIN_H */
