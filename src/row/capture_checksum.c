/*-------------------------------------------------------------------------
 *
 * capture_checksum.c
 *	  The checksum of what a row contains, wherever it lies.
 *
 * The log has it beside the calls that have made the row (command/README.md): a replay
 * that calls again must come to the same.  It covers the table's Oid, the number of columns, which
 * of them are null, and their bytes as they are stored, large values included.  Where these lie,
 * stamps and xids, and bits that are set at run time have no part in it.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "pool/nvm_pool.h"
#include "row/nvm_large.h"
#include "row/nvm_large_run.h"
#include "verify/nvm_verify_block.h"

#define SEED_THERE		UINT64CONST(0x6E766D2D726F7773)
#define SEED_GONE		UINT64CONST(0x6E766D2D676F6E65)

static uint64
add_bytes(uint64 checksum, const void *bytes, Size length)
{
	if (length == 0)
		return checksum;
	return hash_bytes_extended(bytes, (int) length, checksum);
}

/*
 * The value at `head`: its runs' bytes follow each other.  Of one that is not there any
 * more there is nothing to add.
 */
static uint64
add_value(uint64 checksum, const NvmRelState *state, uint64 head)
{
	uint64		offset = head;
	uint32		segment = 0;

	while (offset != 0 && nvm_large_is_of(offset, state->dir) && large_run_is_mapped(offset) &&
		   large_header(offset)->segment == segment)
	{
		const NvmLargeHeader *run = large_header(offset);

		/* all but the last one have the same length */
		checksum = add_bytes(checksum, large_data(offset), run->length);
		offset = run->next;
		segment++;
	}
	return checksum;
}

/*
 * See nvm_large.h.
 */
uint64
nvm_version_checksum(NvmRelState *state, const NvmVersion *v, Oid table, bool gone)
{
	const char *tuple = (const char *) &v->tuple;
	bool		has_nulls = (v->tuple.infomask & NVM_TUPLE_HASNULL) != 0;
	uint32		at = has_nulls ? offsetof(NvmTupleHeader, bits) : v->tuple.hoff;
	uint32		end = v->len;
	uint16		natts = NVM_TUPLE_NATTS(v->tuple.infomask2);
	uint64		checksum = add_bytes(gone ? SEED_GONE : SEED_THERE, &table, sizeof(table));
	uint64		head;
	int			n = 0;

	checksum = add_bytes(checksum, &natts, sizeof(natts));
	if (v->flags & NVM_VF_LARGE)
	{
		/* the stand-in of a value says where it is */
		for (; (head = nvm_large_head(v, n)) != 0; n++)
		{
			uint32		place = nvm_large_place(v, n);

			if (place < at || place + sizeof(uint64) > end)
				break;
			checksum = add_bytes(checksum, tuple + at, place - at);
			checksum = add_value(checksum, state, head);
			at = place + sizeof(uint64);
		}
		end -= NVM_LARGE_TRAILER(n);
	}
	return add_bytes(checksum, tuple + at, end - at);
}
