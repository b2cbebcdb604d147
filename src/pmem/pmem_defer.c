/*-------------------------------------------------------------------------
 *
 * pmem_defer.c
 *	  Deferred write-back: a flush notes cache lines, the next fence writes
 *	  them back.
 *
 * Between two fences a transaction stores to some lines again and again: the
 * header of the block that it fills, the root of a row, the commit word of a
 * leaf.  A line that is written back may leave the cache, and the next store to
 * it waits for memory.  So a flush notes its lines here, each once, and
 * nvm_drain has them written back before it waits.  README.md, "Deferred
 * write-back", says why no protocol above can tell the difference.
 *
 * Nothing here allocates or throws, so it can be called in a critical section.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pmem/pmem_backend.h"

/* Lines noted at once, a power of two.  It is 32 kB of the pool that we store to. */
#define NOTED_SLOTS			512
#define NOTED_SHIFT			(64 - 9)

/* A flush of more lines than this is of a whole page or block, just written once */
#define NOTED_LINES_AT_MOST	32

#define LINE_SIZE			NVM_PMEM_LINE

/*
 * Each slot holds the number of one line of the address space, or 0.  A line's
 * number gives its slot.  If the slot has another line already, all lines are
 * written back.  Once the array is full, writing back one at a time would cost
 * as much as no array: the processor overlaps many write-backs, but waits for
 * each that stands alone.
 * noted_used[0 .. nvm_noted_lines - 1] are the slots that are not 0.
 */
static uint64 noted[NOTED_SLOTS];
static uint16 noted_used[NOTED_SLOTS];

int			nvm_noted_lines = 0;

/* false between PRE_COMMIT and the end of a transaction: see nvm_pmem_defer */
static bool deferring = true;

static inline void
write_back(uint64 line, uint64 lines)
{
	const char *addr = (const char *) (line * LINE_SIZE);

	if (likely(nvm_persist_in_force == NVM_PERSIST_PMEM))
		nvm_libpmem_flush(addr, lines * LINE_SIZE);
	else
		nvm_simulate_write_back(addr, lines * LINE_SIZE);
}

/*
 * Note the lines of [addr, addr + len), which is within the pool and not empty.
 */
void
nvm_defer_flush(const void *addr, Size len)
{
	uint64		line = (uint64) (uintptr_t) addr / LINE_SIZE;
	uint64		last = ((uint64) (uintptr_t) addr + len - 1) / LINE_SIZE;

	if (unlikely(!deferring || last - line >= NOTED_LINES_AT_MOST))
	{
		write_back(line, last - line + 1);
		return;
	}
	for (; line <= last; line++)
	{
		uint32		slot = (uint32) ((line * UINT64CONST(0x9E3779B97F4A7C15)) >> NOTED_SHIFT);

		if (noted[slot] == line)
			continue;
		if (noted[slot] != 0)
			nvm_defer_write_back();
		noted_used[nvm_noted_lines++] = slot;
		noted[slot] = line;
	}
}

/*
 * Have everything that is noted written back; a fence is the caller's.
 */
void
nvm_defer_write_back(void)
{
	for (int i = 0; i < nvm_noted_lines; i++)
	{
		uint64	   *line = &noted[noted_used[i]];

		write_back(*line, 1);
		*line = 0;
	}
	nvm_noted_lines = 0;
}

/*
 * Forget everything: the mapping goes, or is about to come.
 */
void
nvm_defer_forget(void)
{
	memset(noted, 0, sizeof(noted));
	nvm_noted_lines = 0;
	deferring = true;
}

/*
 * See nvm_pmem.h.
 */
void
nvm_pmem_defer(bool defer)
{
	deferring = defer;
	if (nvm_noted_lines > 0)
		nvm_defer_write_back();
}
