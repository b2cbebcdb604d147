/*-------------------------------------------------------------------------
 *
 * nvm_redo.h
 *	  Redo lanes: change several places of the pool, all or nothing.
 *
 * A lane is a piece of the pool in which a process writes down which bytes it
 * is about to store where.  Once that is durable, the change is durable: the
 * next open applies it, before anybody reads.  Lanes are for changes of
 * structure that no single 8-byte store can decide, such as the split of an
 * index page.  They are not for steps that each transaction takes.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_REDO_H
#define NVM_REDO_H

#include "pool/nvm_region.h"


/* how many pieces one lane has room for; together of NVM_REDO_MAX_BYTES */
#define NVM_REDO_MAX_PIECES NVM_REDO_PIECES

typedef struct NvmRedo NvmRedo;

/*
 * Make sure that there are lanes.  For a caller that must not fail once it has
 * begun the change that it takes a lane for.  ERROR if the region has no room:
 * the first call in a region allocates the lanes.
 */
extern void nvm_redo_prepare(NvmRegion *region);

/*
 * Take a lane.  May wait for one (an LWLock, which an error releases).  May
 * ERROR: the first call in a region allocates the lanes.  A process has one
 * lane at a time.  All places that it changes lie in that region.
 */
extern NvmRedo *nvm_redo_begin(NvmRegion *region);

/*
 * Note "store len bytes from data at place".  The place lies in the pool, in
 * blocks of a storage that will not be freed before the lane is done.  Only
 * notes the pointers; cannot fail within the limits above.  Pieces are stored
 * in the order in which they were added, a piece of 8 aligned bytes by a
 * single store.  Words that other processes may change meanwhile (lock words)
 * must not be part of a piece.
 */
extern void nvm_redo_add(NvmRedo *redo, void *place, const void *data, Size len);

/*
 * Write the pieces to the lane, drain; make the lane valid, drain; store and
 * flush them where they belong, drain; clear the lane, drain.  Whatever the
 * caller flushed before is durable with the first drain, before the lane can
 * count.  Cannot fail.  The lane is still the caller's, and empty.
 */
extern void nvm_redo_apply(NvmRedo *redo);

/* give the lane back, applied or not */
extern void nvm_redo_end(NvmRedo *redo);

#endif							/* NVM_REDO_H */
