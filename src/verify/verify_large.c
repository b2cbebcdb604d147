/*-------------------------------------------------------------------------
 *
 * verify_large.c
 *	  The frame of a tuple's attributes, and values outside the block.
 *
 * Compiled into the server, for nvm.check(), and into nvm_poolcheck.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef FRONTEND
#include "postgres.h"
#else
#include "postgres_fe.h"
#endif

#include "port/pg_crc32c.h"
#include "verify/nvm_verify_block.h"

bool
nvm_verify_tuple(NvmBlockCheck *check, const NvmVersion *v, uint32 blk, uint32 off,
				 uint32 *limit, uint16 *nlarge)
{
	const NvmTupleHeader *th = &v->tuple;
	int			natts = NVM_TUPLE_NATTS(th->infomask2);
	bool		hasnull = (th->infomask & NVM_TUPLE_HASNULL) != 0;
	bool		large = (v->flags & NVM_VF_LARGE) != 0;
	uint32		hoff = MAXALIGN(NVM_TUPLE_MIN + (hasnull ? (natts + 7) / 8 : 0));

	*limit = v->len;
	*nlarge = 0;
	if (th->hoff != hoff || hoff > v->len)
	{
		check->ops->report(check, blk, off, "data begins at byte %u, expected %u",
						   th->hoff, hoff);
		return false;
	}
	if (large != ((th->infomask & NVM_TUPLE_HASEXTERNAL) != 0))
		check->ops->report(check, blk, off, "flags disagree about values outside the block");
	if (!large)
		return true;
	if (*limit >= hoff + sizeof(*nlarge))
		memcpy(nlarge, (const char *) th + *limit - sizeof(*nlarge), sizeof(*nlarge));
	if (*limit < hoff + NVM_LARGE_TRAILER(*nlarge))
	{
		check->ops->report(check, blk, off, "list of large values does not fit");
		return false;
	}
	*limit -= NVM_LARGE_TRAILER(*nlarge);
	return true;
}

static bool
large_bytes_fit(const NvmLargeHeader *head, uint64 length)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, (const char *) head + sizeof(NvmLargeHeader), length);
	FIN_CRC32C(crc);
	return crc == head->crc;
}

const char *
nvm_large_problem(NvmBlockCheck *check, uint64 offset, uint32 blk, uint32 off, bool bytes)
{
	uint64		total = 0;
	uint64		done = 0;
	uint32		segment = 0;

	do
	{
		const NvmLargeHeader *head;
		uint64		length;

		if (offset == 0 || offset % NVM_UNIT_SIZE != 0)
			return "is at an impossible place";
		if (!check->ops->owns_large(check, offset / NVM_UNIT_SIZE))
			return "is not where the version says";
		head = (const NvmLargeHeader *) (check->base + offset);

		/*
		 * once: in a server the run may be freed, and given to another value,
		 * while we look
		 */
		length = *(volatile const uint64 *) &head->length;
		if (segment == 0)
			total = head->total;
		if (head->stamp == 0)
			return "has no stamp";
		if (head->owner_block != blk || head->owner_offset != off)
			return "belongs to another version";
		if (head->segment != segment || head->total != total ||
			length == 0 || length > total - done ||
			length > (uint64) NVM_LARGE_MAX_UNITS * NVM_UNIT_SIZE - sizeof(NvmLargeHeader) ||
			offset % NVM_CHUNK_SIZE + sizeof(NvmLargeHeader) + length > NVM_CHUNK_SIZE)
			return "has runs that do not fit together";
		for (size_t i = 0; i < lengthof(head->reserved); i++)
			if (head->reserved[i] != 0)
				return "has reserved bytes that are not zero";

		if (bytes && !large_bytes_fit(head, length))
			return "has a wrong checksum";

		done += length;
		offset = head->next;
		segment++;
	} while (offset != 0);

	return done == total ? NULL : "is not complete";
}
