/*-------------------------------------------------------------------------
 *
 * nvm_large.h
 *	  Large values: what large*.c share, and the checker.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_LARGE_H
#define NVM_LARGE_H

#include "access/htup.h"
#include "executor/tuptable.h"
#include "media/media_log.h"
#include "pool/nvm_pool.h"
#include "wbl/nvm_wbl.h"


/*
 * Make a heap tuple from slot that fits a block: detoasts external values,
 * compresses and moves out the largest ones as needed.  Values moved out are
 * written already, in *large.  *tofree is set if the tuple was allocated here;
 * otherwise it is the slot's or even lies in the pool: do not write to it.
 */
typedef struct NvmLargeSet NvmLargeSet;
extern HeapTuple nvm_form_tuple(Relation rel, TupleTableSlot *slot,
								bool *tofree, NvmLargeSet **large);

/* now that the TID is known: name the owner in the large headers and flush
 * them; before the version's begin is stored.  Their stamp stays the writing
 * transaction's, also if begin is another one's (nvm_raw_insert): while it runs
 * the collector does not miss the version. */
extern void nvm_large_assign(NvmLargeSet *large, NvmVersion *v, uint32 blk, uint32 off);

/* give back the extents of a version that is being freed; caller holds
 * the alloc lock of the version's block */
extern void nvm_large_release(NvmRelState *state, NvmVersion *v);
extern bool nvm_large_is_kept(NvmRelState *state, const NvmVersion *v);

/* allocation failed after nvm_form_tuple */
extern void nvm_large_discard(NvmLargeSet *large);

/* detoasted values for a slot: see tuple_slot.c */
extern Datum nvm_large_datum(Datum stored, MemoryContext cxt);

extern NvmLargeSet *nvm_large_set_make(NvmRelState *state);
extern uint64 nvm_large_write(NvmLargeSet *set, const char *value, Size total,
							  AttrNumber attnum);

/* is there an extent at the offset that belongs to storage dir? */
extern bool nvm_large_is_of(uint64 offset, uint32 dir);

/* does the value that a stand-in names lie in one piece? */
extern bool nvm_large_is_single(Datum stored);

/* pool offset of the version's i-th value outside, or 0 if there is none */
extern uint64 nvm_large_head(const NvmVersion *v, int i);

/* where the stand-in of that value has this offset, in bytes of the tuple */
extern uint32 nvm_large_place(const NvmVersion *v, int i);

/* lead the version's i-th value to pool offset `to`; false if its stand-in is
 * not where it should be.  The version's checksum is the caller's. */
extern bool nvm_large_repoint(NvmVersion *v, int i, uint64 to);

/* a run of n units for storage `state`, whose header has the stamp already */
extern uint64 nvm_large_new_run(NvmRelState *state, uint32 nunits, NvmStamp stamp);

/* what is wrong with the version's i-th value outside, or NULL */
extern const char *nvm_large_verify(NvmRelState *state, const NvmVersion *v,
									uint32 blk, uint32 off, int i);

/* ---- large_log.c ---- */

/*
 * Tell the log the values that the version has outside, in pieces; its row is to
 * follow.  They do not change meanwhile.  May ERROR.
 */
extern void nvm_large_capture(NvmRelState *state, const NvmVersion *v);

/* ---- capture_checksum.c ---- */

/*
 * A checksum of what the version contains, wherever it lies, large values included, and of
 * the table's Oid; of one that is gone another than of the same that is there.  May ERROR.
 */
extern PGDLLEXPORT uint64 nvm_version_checksum(NvmRelState *state, const NvmVersion *v, Oid table,
											   bool gone);

/* what is wrong with the pieces that lead to a row of the log, or NULL */
extern const char *nvm_large_pieces_problem(const NvmLogRow *first);

/*
 * Units that nvm_large_rebuild will take for pieces without a problem.
 */
extern uint64 nvm_large_pieces_units(const NvmLogRow *first);

/*
 * Write the values of a version that is being rebuilt, and lead it there.  Its tuple
 * is in place, its checksum is not made yet; its begin comes later.  `first` has
 * passed nvm_large_pieces_problem.  Returns how many bytes they have.  May ERROR.
 */
extern uint64 nvm_large_rebuild(NvmRelState *state, NvmVersion *v, NvmStamp stamp,
								const NvmLogRow *first);

#endif							/* NVM_LARGE_H */
