/*-------------------------------------------------------------------------
 *
 * nvm_large.h
 *	  Large values: what large.c and large_form.c share, and the checker.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_LARGE_H
#define NVM_LARGE_H

#include "table/nvm_table.h"

/*
 * Bytes at the end of a tuple with NVM_VF_LARGE, beyond its columns: the pool
 * offsets of the n values it has outside, and n in 2 bytes.  Not aligned.
 */
#define NVM_LARGE_TRAILER(n)	((n) * sizeof(uint64) + sizeof(uint16))

extern NvmLargeSet *nvm_large_set_make(NvmRelState *state);
extern uint64 nvm_large_write(NvmLargeSet *set, const char *value, Size total,
							  AttrNumber attnum);

/* does the value that a stand-in names lie in one piece? */
extern bool nvm_large_is_single(Datum stored);

/* pool offset of the version's i-th value outside, or 0 if there is none */
extern uint64 nvm_large_head(const NvmVersion *v, int i);

/* what is wrong with the version's i-th value outside, or NULL */
extern const char *nvm_large_verify(NvmRelState *state, const NvmVersion *v,
									uint32 blk, uint32 off, int i);

#endif							/* NVM_LARGE_H */
