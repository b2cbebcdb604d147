/*-------------------------------------------------------------------------
 *
 * media_describe.h
 *	  One-line descriptions of what is on the media.
 *
 * Each writes at most size bytes, terminated, and returns buf.  They trust
 * nothing in what they describe: it may be damaged.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef MEDIA_DESCRIBE_H
#define MEDIA_DESCRIBE_H

#include "media/media_block.h"
#include "media/media_pool.h"
#include "media/media_slot.h"

/* room enough for any description */
enum
{
	NVM_DESCRIBE_SIZE = 512
};

extern char *nvm_describe_stamp(char *buf, uint32_t size, uint64_t stamp);
extern char *nvm_describe_header(char *buf, uint32_t size, const NvmPoolHeader *h);
extern char *nvm_describe_incarnation(char *buf, uint32_t size,
									  const NvmIncarnationRecord *rec);
extern char *nvm_describe_extent(char *buf, uint32_t size, uint64_t word);
extern char *nvm_describe_dir_entry(char *buf, uint32_t size, const NvmDirEntry *entry);
extern char *nvm_describe_slot(char *buf, uint32_t size, const NvmSlotCopy *copy);
extern char *nvm_describe_block(char *buf, uint32_t size, const NvmBlock *block);
extern char *nvm_describe_version(char *buf, uint32_t size, const NvmVersion *v);
extern char *nvm_describe_large(char *buf, uint32_t size, const NvmLargeHeader *h);

#endif							/* MEDIA_DESCRIBE_H */
