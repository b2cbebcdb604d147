/*-------------------------------------------------------------------------
 *
 * nvm_large_run.h
 *	  The runs of large values: shared by the files large*.c.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_LARGE_RUN_H
#define NVM_LARGE_RUN_H

#include "pool/nvm_pool.h"
#include "row/nvm_large.h"

#define NVM_LARGE_RUN_BYTES \
	((Size) NVM_LARGE_MAX_UNITS * NVM_UNIT_SIZE - sizeof(NvmLargeHeader))

/* units of a run for so many bytes */
static inline uint32
large_run_units(uint64 bytes)
{
	return (uint32) ((bytes + sizeof(NvmLargeHeader) + NVM_UNIT_SIZE - 1) / NVM_UNIT_SIZE);
}

static inline NvmLargeHeader *
large_header(uint64 offset)
{
	return (NvmLargeHeader *) NvmPoolPtr(offset);
}

static inline char *
large_data(uint64 offset)
{
	return (char *) NvmPoolPtr(offset) + sizeof(NvmLargeHeader);
}

/*
 * May a header be looked at there, and the data that it announces?  Cheaper
 * than nvm_large_is_of, but no damaged offset leads beyond what is mapped.
 */
static inline bool
large_is_mapped(uint64 offset)
{
	return offset != 0 && offset % NVM_UNIT_SIZE == 0 &&
		nvm_unit_is_mapped(offset / NVM_UNIT_SIZE);
}

static inline bool
large_run_is_mapped(uint64 offset)
{
	uint64		length = large_header(offset)->length;

	return length <= NVM_LARGE_RUN_BYTES &&
		offset % NVM_CHUNK_SIZE + sizeof(NvmLargeHeader) + length <= NVM_CHUNK_SIZE;
}

/*
 * Does the run belong to the version at (blk, off), as this part of a value?
 */
static inline bool
large_run_is_owned(uint64 offset, uint32 dir, uint32 blk, uint32 off,
				   uint32 segment)
{
	NvmLargeHeader *run = large_header(offset);

	return nvm_large_is_of(offset, dir) && run->owner_block == blk &&
		run->owner_offset == off && run->segment == segment;
}

#endif							/* NVM_LARGE_RUN_H */
