/*-------------------------------------------------------------------------
 *
 * verify_redo.c
 *	  Redo lanes.
 *
 * Compiled into the server and into nvm_poolcheck.
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

#include "verify/nvm_verify.h"

StaticAssertDecl(sizeof(NvmRedoLane) == NVM_REDO_HEADER_SIZE, "redo lane header");
StaticAssertDecl(NVM_REDO_HEADER_SIZE + NVM_REDO_MAX_BYTES + 8 * NVM_REDO_PIECES <=
				 NVM_REDO_LANE_UNITS * NVM_UNIT_SIZE, "a lane has room for its pieces");

/* domain of nvm_pool_check's place */
#define NVM_PLACE_REDO(unit)	((UINT64_C(1) << 61) | (unit))

uint64
nvm_redo_word(uint64 unit, const NvmRedoLane *lane, Size used)
{
	Size		skip = offsetof(NvmRedoLane, npieces);

	return NVM_REDO_WORD(nvm_pool_check((const char *) lane + skip, used - skip,
										NVM_PLACE_REDO(unit), 32));
}

/*
 * Does [place, place + length) lie in blocks of storages?
 */
static bool
target_is_owned(const NvmImage *image, uint64 place, uint64 length,
				NvmStorageExists exists, void *arg)
{
	uint64		start = image->first_chunk * NVM_CHUNK_SIZE;
	uint64		size = image->nchunks * NVM_CHUNK_SIZE;

	if (length == 0 || place < start || place - start >= size ||
		length > size - (place - start))
		return false;
	for (uint64 unit = place / NVM_UNIT_SIZE; unit <= (place + length - 1) / NVM_UNIT_SIZE; unit++)
	{
		uint64		first;
		uint64		word = nvm_image_extent_of(image, unit, &first);

		if (NVM_EXT_KIND(word) != NVM_EXT_TABLE || !exists(arg, NVM_EXT_OWNER(word)))
			return false;
	}
	return true;
}

const char *
nvm_redo_lane_problem(const NvmImage *image, uint64 unit, NvmStorageExists exists, void *arg)
{
	const NvmRedoLane *lane = (const NvmRedoLane *) (image->base + unit * NVM_UNIT_SIZE);
	Size		used = sizeof(NvmRedoLane);
	uint64		bytes = 0;

	if (lane->word >> 32 != NVM_REDO_MAGIC)
		return "wrong magic number";
	if (lane->npieces > NVM_REDO_PIECES)
		return "impossible number of pieces";
	for (uint32 i = 0; i < lane->npieces; i++)
	{
		if (lane->piece[i].length > NVM_REDO_MAX_BYTES - bytes)
			return "impossible length of a piece";
		bytes += lane->piece[i].length;
		used += NVM_REDO_SPACE(lane->piece[i].length);
	}
	if (lane->word != nvm_redo_word(unit, lane, used))
		return "wrong checksum";
	if (lane->reserved != 0)
		return "reserved bytes are set";
	for (uint32 i = 0; i < lane->npieces; i++)
	{
		if (!target_is_owned(image, lane->piece[i].place, lane->piece[i].length, exists, arg))
			return "a piece belongs where no table or index has a block";
	}
	return NULL;
}
