/*-------------------------------------------------------------------------
 *
 * log_pack.c
 *	  Rows of the log, made shorter by PostgreSQL's pglz.
 *
 * A record that the buffer of its slot holds has its short rows packed, where that makes
 * them a quarter shorter.  Large transactions and checkpoints do without: it would
 * cost them more than the disk does.  Rows of some tables do not get shorter.  So
 * that they are not tried in vain each time, a process remembers by storage how often
 * that was so, and leaves out as many tries.
 *
 * row/rebuild.c unpacks.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/pg_lzcompress.h"
#include "log/log_impl.h"

/*
 * What is shorter has nothing to give.  What is longer costs more processor time than its
 * commit: 1 kB some 3 microseconds, of 8.
 */
#define SHORTEST_TUPLE			40
#define LONGEST_TUPLE			256

#define REMEMBERED_STORAGES		64
#define MOST_FAILURES			7	/* 2^7 rows are left out then */

typedef struct PackingOf
{
	uint32		dir;
	uint8		failures;		/* in a row */
	uint8		left_out;		/* rows that are still to be left out */
} PackingOf;

static PackingOf packing_of[REMEMBERED_STORAGES];

bool		nvm_log_compression = true;

static PackingOf *
remembered(uint32 dir)
{
	PackingOf  *of = &packing_of[dir % REMEMBERED_STORAGES];

	if (of->dir != dir)
		*of = (PackingOf)
	{
		.dir = dir
	};
	return of;
}

/*
 * See log_impl.h.
 */
uint16
nvm_log_pack(uint32 dir, const void *tuple, uint16 length, char *packed)
{
	PackingOf  *of;
	int32		n;

	StaticAssertStmt(PGLZ_MAX_OUTPUT(LONGEST_TUPLE) <= NVM_LOG_PACKED_ROOM - NVM_LOG_PACKED_HEADER,
					 "a packed row may not fit");
	if (!nvm_log_compression || length < SHORTEST_TUPLE || length > LONGEST_TUPLE)
		return 0;
	of = remembered(dir);
	if (of->left_out > 0)
	{
		of->left_out--;
		return 0;
	}
	n = pglz_compress(tuple, length, packed + NVM_LOG_PACKED_HEADER, PGLZ_strategy_default);
	if (n < 0)
	{
		of->failures = Min(of->failures + 1, MOST_FAILURES);
		of->left_out = (1 << of->failures) - 1;
		return 0;
	}
	of->failures = 0;
	memcpy(packed, &length, NVM_LOG_PACKED_HEADER);
	return (uint16) (NVM_LOG_PACKED_HEADER + n);
}
