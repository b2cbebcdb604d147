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

#include "row/nvm_table.h"

extern NvmLargeSet *nvm_large_set_make(NvmRelState *state);
extern uint64 nvm_large_write(NvmLargeSet *set, const char *value, Size total,
							  AttrNumber attnum);

/* is there an extent at the offset that belongs to storage dir? */
extern bool nvm_large_is_of(uint64 offset, uint32 dir);

/* does the value that a stand-in names lie in one piece? */
extern bool nvm_large_is_single(Datum stored);

/* pool offset of the version's i-th value outside, or 0 if there is none */
extern uint64 nvm_large_head(const NvmVersion *v, int i);

/* lead the version's i-th value to pool offset `to`; false if its stand-in is
 * not where it should be.  The version's checksum is the caller's. */
extern bool nvm_large_repoint(NvmVersion *v, int i, uint64 to);

/* a run of n units for storage `state`, whose header has the stamp already */
extern uint64 nvm_large_new_run(NvmRelState *state, uint32 nunits, NvmStamp stamp);

/* what is wrong with the version's i-th value outside, or NULL */
extern const char *nvm_large_verify(NvmRelState *state, const NvmVersion *v,
									uint32 blk, uint32 off, int i);

#endif							/* NVM_LARGE_H */
