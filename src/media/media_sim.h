/*-------------------------------------------------------------------------
 *
 * media_sim.h
 *	  Layout of the files that stand beside a simulated pool.
 *
 * Only tests have such files (nvm.persist_method = simulate).  The pool file
 * itself is the working image, what the processor sees.  Beside it:
 *
 *	pool.durable	what the medium is known to hold; same size and offsets
 *	pool.lines		one word per line: which capture the durable image holds
 *	pool.captures	areas of captures: flushed, but not fenced yet
 *	pool.simctl		NvmSimControl: the headers of the areas, and counts of flushes
 *					and fences
 *
 * A word of pool.lines is the counter of the capture that was last published
 * to this line (0: none).  While a process copies a capture it is NVM_SIM_LOCK
 * and the place of that capture.  A process that finds such a word whose
 * writer is dead completes the copy.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef MEDIA_SIM_H
#define MEDIA_SIM_H

#include <stdint.h>

#define NVM_SIM_MAGIC			UINT64_C(0x314D49534D564E)	/* "NVMSIM1" */
#define NVM_SIM_VERSION			2

#define NVM_SIM_DURABLE			".durable"
#define NVM_SIM_LINES			".lines"
#define NVM_SIM_CAPTURES		".captures"
#define NVM_SIM_CONTROL			".simctl"

#define NVM_SIM_LINE			64
#define NVM_SIM_LINE_WORDS		8

#define NVM_SIM_AREAS			1024
#define NVM_SIM_ENTRIES			UINT64_C(262144)

/* rows of the two tables of counts */
#define NVM_SIM_STEPS			512
#define NVM_SIM_SITES			1024
#define NVM_SIM_STEP_NAME		48

/* words of pool.lines */
#define NVM_SIM_LOCK			(UINT64_C(1) << 63)
#define NVM_SIM_LOCK_MAKE(area, entry) \
	(NVM_SIM_LOCK | ((uint64_t) (area) << 32) | (uint64_t) (entry))
#define NVM_SIM_LOCK_AREA(w)	((uint32_t) (((w) >> 32) & 0x7FFFFFFF))
#define NVM_SIM_LOCK_ENTRY(w)	((uint32_t) ((w) & 0xFFFFFFFF))

/*
 * One line as it was when a process flushed it.
 */
typedef struct NvmSimCapture
{
	uint64_t	line;			/* offset in the pool / NVM_SIM_LINE */
	uint64_t	counter;		/* taken before the content was read */
	uint64_t	content[NVM_SIM_LINE_WORDS];
} NvmSimCapture;

/*
 * Captures of one process since its last fence: the first `count` entries of
 * its area in pool.captures.  The area of a dead process stays as it is until
 * somebody else takes it.
 */
typedef struct NvmSimArea
{
	uint64_t	owner;			/* process id, 0 = free */
	uint64_t	count;
	uint64_t	reserved[6];
} NvmSimArea;

/*
 * What was captured, of one fence or one place that flushes.  A line is clean
 * if, when it was flushed, the durable image held the same; it is repeated if
 * the same process had captured it since its last fence.
 */
typedef struct NvmSimCount
{
	uint64_t	calls;
	uint64_t	empty;			/* of a fence: nothing was captured before it */
	uint64_t	idle;			/* something was, but all of it clean */
	uint64_t	lines;
	uint64_t	clean;
	uint64_t	repeated;
} NvmSimCount;

/*
 * A fence, by its name.  The same name may have two rows, if two processes met
 * it at once.
 */
typedef struct NvmSimStep
{
	uint64_t	taken;
	char		name[NVM_SIM_STEP_NAME];
	NvmSimCount count;
} NvmSimStep;

/*
 * A call of nvm_flush, by the address it returns to, from the start of the
 * library; 0 = free.
 */
typedef struct NvmSimSite
{
	uint64_t	place;
	NvmSimCount count;
} NvmSimSite;

/*
 * The file pool.simctl
 */
typedef struct NvmSimControl
{
	uint64_t	magic;
	uint32_t	version;
	uint32_t	areas;
	uint64_t	entries;		/* of each area */
	uint64_t	pool_inode;		/* of the pool file all this belongs to */
	uint64_t	reserved[4];
	/* -- next line -- */
	uint64_t	counter;		/* last counter handed out */
	uint64_t	early;			/* captures published before their fence, for
								 * want of room */
	uint64_t	reserved2[6];
	NvmSimArea	area[NVM_SIM_AREAS];
	NvmSimStep	step[NVM_SIM_STEPS];
	NvmSimSite	site[NVM_SIM_SITES];
} NvmSimControl;

#endif							/* MEDIA_SIM_H */
