/*-------------------------------------------------------------------------
 *
 * nvm_image.h
 *	  Rows of the log as tuples in memory, to be written again as they were (image.c).
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_IMAGE_H
#define NVM_IMAGE_H

#include "postgres.h"

#include "access/htup.h"
#include "executor/tuptable.h"
#include "media/media_log.h"
#include "row/nvm_large.h"
#include "utils/rel.h"

/*
 * The tuple of a row, unpacked: from infomask2 on, nvm_log_tuple_length(row) bytes, to `to`.
 * False: it cannot be unpacked.
 */
extern bool nvm_image_unpack(const NvmLogRow *row, char *to);

/*
 * Put a row into a slot of TTSOpsNvm as an image: who inserts the slot, or updates a row to what it
 * has, into a table with the same columns, writes the same bytes, but for where large values
 * are.  `first` is the row or the first piece of its large values; neither is looked at
 * afterwards.  ERROR if the row is damaged or has other columns.  A tombstone is none.
 */
extern void nvm_image_store(TupleTableSlot *slot, const NvmLogRow *first);

/* of nvm_form_tuple: the tuple of a slot that is an image, its values written to rel */
extern HeapTuple nvm_image_form(Relation rel, TupleTableSlot *slot, bool *tofree,
								NvmLargeSet **large);

/*
 * A tuple of these bytes, from infomask2 on, in the current memory context.  Its stand-ins lead
 * nowhere.  NULL if that is none.
 */
extern HeapTuple nvm_image_tuple(const char *bytes, uint32 length);

#endif							/* NVM_IMAGE_H */
