/*-------------------------------------------------------------------------
 *
 * large_read.c
 *	  Read values that do not fit the block of their row.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pool/nvm_poison.h"
#include "pool/nvm_pool.h"
#include "pool/nvm_sound.h"
#include "port/pg_crc32c.h"
#include "row/nvm_large.h"
#include "row/nvm_large_run.h"
#include "utils/memutils.h"

/*
 * The first process that reads a run of units in this run of the server holds
 * its bytes against the checksum: see sound.c.  The bit is that of the first
 * unit.
 */
static void
large_prove_slow(uint64 offset)
{
	NvmLargeHeader *run = large_header(offset);
	pg_crc32c	crc;

	if (nvm_ignore_damage)
		return;
	INIT_CRC32C(crc);
	COMP_CRC32C(crc, large_data(offset), run->length);
	FIN_CRC32C(crc);
	if (crc != run->crc)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("large value at pool offset " UINT64_FORMAT " is damaged: wrong checksum", offset),
				 errdetail("It belongs to row version (%u,%u).", run->owner_block, run->owner_offset),
				 errhint("Run nvm.check() on the table.")));
	nvm_unit_set_sound(run);
}

static inline void
large_prove(uint64 offset)
{
	if (unlikely(!nvm_unit_is_sound(large_header(offset))))
		large_prove_slow(offset);
}

/*
 * Header of the value that a stand-in names; checked as far as it is cheap.
 */
static NvmLargeHeader *
large_head(Datum stored)
{
	void	   *ptr = DatumGetPointer(stored);
	uint64		offset;
	NvmLargeHeader *head;

	if (VARTAG_EXTERNAL(ptr) != VARTAG_INDIRECT)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("unexpected kind %d of an external value in an nvm table",
						(int) VARTAG_EXTERNAL(ptr)),
				 errhint("Run nvm.check() on the table.")));

	memcpy(&offset, VARDATA_EXTERNAL(ptr), sizeof(offset));
	head = large_header(offset);
	if (large_is_mapped(offset))
		NVM_ASSERT_LARGE_NOT_FREE(head);
	if (!large_is_mapped(offset) ||
		!large_run_is_mapped(offset) ||
		head->segment != 0 ||
		head->length < VARHDRSZ ||
		head->total < head->length ||
		head->total > MaxAllocSize ||
		VARATT_IS_1B(large_data(offset)) ||
		VARSIZE(large_data(offset)) != head->total)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("no large value at pool offset " UINT64_FORMAT, offset),
				 errhint("Run nvm.check() on the table.")));
	return head;
}

/*
 * Does the value lie in one piece?
 */
bool
nvm_large_is_single(Datum stored)
{
	NvmLargeHeader *head = large_head(stored);

	return head->length == head->total;
}

/*
 * The value that a stand-in names: a pointer into the pool, or memory of cxt
 * if the value is in several runs.
 */
Datum
nvm_large_datum(Datum stored, MemoryContext cxt)
{
	NvmLargeHeader *head = large_head(stored);
	uint64		offset = NvmPoolOff(head);
	uint64		total = head->total;
	uint64		done = 0;
	uint32		segment = 0;
	char	   *result;

	if (head->length == total)
	{
		large_prove(offset);
		return PointerGetDatum(large_data(offset));
	}

	result = MemoryContextAlloc(cxt, total);
	while (done < total)
	{
		NvmLargeHeader *run = large_header(offset);

		if (!large_is_mapped(offset) || !large_run_is_mapped(offset) ||
			run->segment != segment || run->length == 0 ||
			run->length > total - done)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("run %u of the large value at pool offset " UINT64_FORMAT " is missing",
							segment, NvmPoolOff(head)),
					 errhint("Run nvm.check() on the table.")));
		large_prove(offset);
		memcpy(result + done, large_data(offset), run->length);
		done += run->length;
		offset = run->next;
		segment++;
	}
	return PointerGetDatum(result);
}
