/*-------------------------------------------------------------------------
 *
 * media_memory.h
 *	  The header of what the volatile region lies in: a memfd, or a file in memory.
 *
 * No reboot keeps it.  But the next start may be one of other code, so the layout
 * has a version.  pool/README.md, "The backing".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef MEDIA_MEMORY_H
#define MEDIA_MEMORY_H

#include <stdint.h>

#define NVM_MEMORY_FILE			"pg_nvm_memory"
#define NVM_MEMORY_MAGIC		UINT64_C(0x314D454D4D564E50)	/* "PNVMMEM1" */
#define NVM_MEMORY_VERSION		1
#define NVM_MEMORY_PAGE			4096	/* the companion lies behind it */
#define NVM_MEMORY_ALIGNMENT	(UINT64_C(2) * 1024 * 1024)

/* NvmMemoryHeader.bound: the contents belong to the pool; all else: to nobody */
#define NVM_MEMORY_BOUND		UINT64_C(0x444E554F424D564E)	/* "NVMBOUND" */

typedef struct NvmMemoryHeader
{
	/* written once, when the region is empty */
	uint64_t	magic;
	uint32_t	version;
	uint32_t	pool_version;	/* format of the pool, hence of the chunks */
	uint8_t		uuid[16];		/* of the pool */
	uint8_t		boot[16];		/* boot id of the kernel */
	uint64_t	device;			/* of this file; all 0: a memfd */
	uint64_t	inode;
	uint64_t	birth;			/* time of birth in ns, 0 if unknown */
	uint64_t	companion_size;
	uint32_t	companion_layout;	/* checksum of where its fields lie */
	uint32_t	crc;			/* CRC-32C over what is before it */

	/* each a word of its own, stored at once */
	uint64_t	nchunks;		/* of 64 MB, with memory */
	uint64_t	bound;			/* NVM_MEMORY_BOUND, or not */
	uint64_t	nonce;			/* of the pool's header, after the last open */
	uint64_t	next_nonce;		/* after the open that is going on; 0: none */
} NvmMemoryHeader;

#endif							/* MEDIA_MEMORY_H */
