/*-------------------------------------------------------------------------
 *
 * verify_header.c
 *	  The pool header and its two copies; checksums.
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

#include "port/pg_crc32c.h"
#include "verify/nvm_verify.h"

StaticAssertDecl(sizeof(NvmPoolHeader) % 8 == 0 && sizeof(NvmPoolHeader) <= 512,
				 "header size");

/* CRC state after the pool's uuid: constant once the pool is open */
static pg_crc32c uuid_crc;

void
nvm_pool_set_uuid(const uint8 *uuid)
{
	INIT_CRC32C(uuid_crc);
	COMP_CRC32C(uuid_crc, uuid, 16);
}

/*
 * CRC-32C over the pool's uuid, the place (8 bytes) and the data.  For fewer
 * than 32 bits its halves are folded together and cut.
 */
uint32
nvm_pool_check(const void *data, Size len, uint64 place, int bits)
{
	pg_crc32c	crc = uuid_crc;

	COMP_CRC32C(crc, &place, sizeof(place));
	COMP_CRC32C(crc, data, len);
	FIN_CRC32C(crc);
	if (bits >= 32)
		return crc;
	return (crc ^ (crc >> 16)) & ((UINT32_C(1) << bits) - 1);
}

/*
 * CRC-32C over a record of len bytes, with *field, which lies in it, taken as
 * 0.
 */
uint32
nvm_record_crc(const void *record, Size len, const uint32 *field)
{
	const uint32 zero = 0;
	const char *after = (const char *) (field + 1);
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, record, (const char *) field - (const char *) record);
	COMP_CRC32C(crc, &zero, sizeof(zero));
	COMP_CRC32C(crc, after, (const char *) record + len - after);
	FIN_CRC32C(crc);
	return crc;
}

uint32
nvm_header_crc(const NvmPoolHeader *h)
{
	return nvm_record_crc(h, sizeof(*h), &h->crc);
}

static bool
all_zero(const void *data, Size len)
{
	const char *p = data;

	while (len-- > 0)
	{
		if (*p++ != 0)
			return false;
	}
	return true;
}

const char *
nvm_header_problem(const NvmPoolHeader *h)
{
	if (h->magic != NVM_POOL_MAGIC)
		return "wrong magic number";
	if (h->crc != nvm_header_crc(h))
		return "wrong checksum";
	return NULL;
}

int
nvm_header_choose(const NvmPoolHeader *copy, const char *const *problem)
{
	if (problem[0] && problem[1])
		return -1;
	return problem[0] ? 1 : problem[1] ? 0 : copy[1].sequence > copy[0].sequence;
}

NvmHeaderUse
nvm_header_use(const NvmPoolHeader *h)
{
	if (h->min_version > NVM_POOL_VERSION)
		return NVM_HEADER_VERSION;
	if ((h->features_incompat & ~(uint64) NVM_FEATURES_INCOMPAT) != 0)
		return NVM_HEADER_FEATURES;
	if (h->unit_size != NVM_UNIT_SIZE || h->chunk_units != NVM_UNITS_PER_CHUNK ||
		h->max_slots != NVM_MAX_SLOTS ||
		h->nchunks == 0 || h->nchunks > PG_UINT32_MAX / NVM_UNITS_PER_CHUNK ||
		h->ncrashed > NVM_CRASHED_LIST ||
		!all_zero(h->reserved, sizeof(h->reserved)) || h->reserved2 != 0)
		return NVM_HEADER_LAYOUT;
	return NVM_HEADER_USABLE;
}

void
nvm_verify_reserved(const NvmImage *image, NvmCheckEmit emit, void *arg)
{
	/* from the end of the second copy to the commit slots */
	if (!all_zero(image->base + NVM_HEADER_OFFSET(2), NVM_SLOTS_OFFSET - NVM_HEADER_OFFSET(2)))
		emit(arg, "chunk 0", "reserved bytes after the header are set");
}

/* ---- incarnations ---- */

uint32
nvm_incarnation_after(uint32 incarnation)
{
	uint32		next = incarnation + 1;

	/* run-time marks carry the low 16 bits, of which 0 means none */
	return (next & 0xFFFF) == 0 ? next + 1 : next;
}

/*
 * Add incarnation inc to the list of those that ended in a crash.  When the
 * list is full, its oldest entry and everything older become doubtful.
 */
void
nvm_header_note_crashed(NvmPoolHeader *h, uint32 inc)
{
	if (h->ncrashed >= NVM_CRASHED_LIST)
	{
		h->crashed_floor = h->crashed[0] + 1;
		memmove(&h->crashed[0], &h->crashed[1],
				(NVM_CRASHED_LIST - 1) * sizeof(h->crashed[0]));
		h->ncrashed = NVM_CRASHED_LIST - 1;
	}
	h->crashed[h->ncrashed++] = inc;
}

bool
nvm_crashed_list_has(const uint32 *crashed, uint32 ncrashed, uint32 crashed_floor, uint32 inc)
{
	if (inc < crashed_floor)
		return true;
	for (uint32 i = 0; i < ncrashed; i++)
	{
		if (crashed[i] == inc)
			return true;
	}
	return false;
}
