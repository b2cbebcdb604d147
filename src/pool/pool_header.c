/*-------------------------------------------------------------------------
 *
 * pool_header.c
 *	  The pool's header: checks, reading, writing; checksums of the pool.
 *
 * The header has two copies.  A change writes one copy, waits until it is
 * durable, then the other: a crash damages one of them at most, and outside
 * of that moment both say the same, so that damage to one copy at any later
 * time loses nothing.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/pool_impl.h"
#include "port/pg_crc32c.h"
#include "utils/timestamp.h"

StaticAssertDecl(sizeof(NvmPoolHeader) % 8 == 0 && sizeof(NvmPoolHeader) <= 512,
				 "header size");

/* CRC state after the pool's uuid: constant once the pool is open */
static pg_crc32c uuid_crc;

/*
 * Salt of nvm_pool_check from now on.
 */
void
nvm_pool_set_uuid(const uint8 *uuid)
{
	INIT_CRC32C(uuid_crc);
	COMP_CRC32C(uuid_crc, uuid, 16);
}

/*
 * CRC-32C over the pool's uuid, the place (8 bytes) and the data; for fewer
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
 * CRC-32C over the header, its crc field taken as 0.
 */
uint32
nvm_header_crc(const NvmPoolHeader *h)
{
	NvmPoolHeader copy = *h;
	pg_crc32c	crc;

	copy.crc = 0;
	INIT_CRC32C(crc);
	COMP_CRC32C(crc, &copy, sizeof(copy));
	FIN_CRC32C(crc);
	return crc;
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

/*
 * What is wrong with a copy of the header, or NULL.  Only what damage can
 * bring about; whether it is a header that we can use is another question.
 */
const char *
nvm_header_problem(const NvmPoolHeader *h)
{
	if (h->magic != NVM_POOL_MAGIC)
		return "wrong magic number";
	if (h->crc != nvm_header_crc(h))
		return "wrong checksum";
	return NULL;
}

/*
 * Contents for a new pool.
 */
void
nvm_header_init(NvmPoolHeader *h, uint64 system_identifier)
{
	memset(h, 0, sizeof(*h));
	h->magic = NVM_POOL_MAGIC;
	h->version = NVM_POOL_VERSION;
	h->min_version = NVM_POOL_MIN_VERSION;
	h->system_identifier = system_identifier;
	h->nchunks = 1;
	h->clean = 1;
	h->unit_size = NVM_UNIT_SIZE;
	h->chunk_units = NVM_UNITS_PER_CHUNK;
	h->max_slots = NVM_MAX_SLOTS;
	h->pg_major = PG_MAJORVERSION_NUM;
	h->created = (uint64) GetCurrentTimestamp();
}

/*
 * Read the header with pread and take the better copy.  Returns false after
 * refusing the pool: nothing in it can be believed.
 */
bool
nvm_header_read(NvmPoolHeader *h, bool *copy_damaged)
{
	NvmPoolHeader copy[2];
	const char *problem[2];
	int			best;

	for (int i = 0; i < 2; i++)
	{
		ssize_t		n = pread(nvm_pool_fd, &copy[i], sizeof(copy[i]), NVM_HEADER_OFFSET(i));

		if (n < 0)
			return nvm_refuse(ERRCODE_IO_ERROR,
							  "Check the device that holds the pool.",
							  "could not read the header of NVM pool \"%s\": %m",
							  nvm_pool_path);
		problem[i] = n < (ssize_t) sizeof(copy[i]) ? "file too short" :
			nvm_header_problem(&copy[i]);
	}
	if (problem[0] && problem[1])
		return nvm_refuse(ERRCODE_DATA_CORRUPTED,
						  "If this is not a pool, correct nvm.pool_directory. Otherwise restore "
						  "the pool and the data directory together from a backup taken while "
						  "the server was stopped.",
						  "header of NVM pool \"%s\" is damaged (copy 0: %s, copy 1: %s)",
						  nvm_pool_path, problem[0], problem[1]);
	*copy_damaged = problem[0] || problem[1];
	best = problem[0] ? 1 : problem[1] ? 0 : copy[1].sequence > copy[0].sequence;
	*h = copy[best];
	return true;
}

/*
 * Read the header of a file that is to be given up, and may be anything.
 * False if no copy is valid; does not refuse the pool.
 */
bool
nvm_header_peek(NvmPoolHeader *h)
{
	bool		valid = false;

	for (int i = 0; i < 2; i++)
	{
		NvmPoolHeader copy;

		if (pread(nvm_pool_fd, &copy, sizeof(copy), NVM_HEADER_OFFSET(i)) != sizeof(copy) ||
			nvm_header_problem(&copy) != NULL)
			continue;
		if (!valid || copy.sequence > h->sequence)
			*h = copy;
		valid = true;
	}
	return valid;
}

/*
 * Is the pool one that this server, with its settings, may use?  Returns false
 * after refusing it.
 */
bool
nvm_header_acceptable(const NvmPoolHeader *h, const ControlFileData *control)
{
	if (h->min_version > NVM_POOL_VERSION)
		return nvm_refuse(ERRCODE_FEATURE_NOT_SUPPORTED,
						  "Install the pg_nvm release that last used the pool, or a later one.",
						  "NVM pool \"%s\" has format version %u, this pg_nvm knows versions up to %d",
						  nvm_pool_path, h->version, NVM_POOL_VERSION);
	if ((h->features_incompat & ~(uint64) NVM_FEATURE_NONE) != 0)
		return nvm_refuse(ERRCODE_FEATURE_NOT_SUPPORTED,
						  "Install the pg_nvm release that last used the pool, or a later one.",
						  "NVM pool \"%s\" uses features that this pg_nvm does not know (mask %llx)",
						  nvm_pool_path, (unsigned long long) h->features_incompat);
	if (h->unit_size != NVM_UNIT_SIZE || h->chunk_units != NVM_UNITS_PER_CHUNK ||
		h->max_slots != NVM_MAX_SLOTS ||
		h->nchunks == 0 || h->nchunks > PG_UINT32_MAX / NVM_UNITS_PER_CHUNK ||
		!all_zero(h->reserved, sizeof(h->reserved)) || h->reserved2 != 0)
		return nvm_refuse(ERRCODE_DATA_CORRUPTED,
						  "The pool was made by a pg_nvm built with other constants, or is damaged.",
						  "NVM pool \"%s\" has another layout: unit size %u, units in a chunk %u, commit slots %u, chunks %llu",
						  nvm_pool_path, h->unit_size, h->chunk_units, h->max_slots,
						  (unsigned long long) h->nchunks);
	if (h->system_identifier != control->system_identifier)
		return nvm_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						  "Set nvm.pool_directory to this cluster's own pool.",
						  "NVM pool \"%s\" belongs to another database cluster (system identifier %llu, this one has %llu)",
						  nvm_pool_path, (unsigned long long) h->system_identifier,
						  (unsigned long long) control->system_identifier);
	return true;
}

/*
 * Make *h the pool's header, durably: raises the sequence, computes the crc,
 * writes both copies in turn.  Caller holds header_lock exclusively or is the
 * postmaster at start or exit.  Cannot fail.
 */
void
nvm_header_write(NvmPoolHeader *h)
{
	NvmPoolHeader *copy;

	/* no error may leave the media ahead of what we believe it holds */
	START_CRIT_SECTION();
	h->sequence++;
	h->crc = nvm_header_crc(h);
	copy = NvmPoolPtr(NVM_HEADER_OFFSET(h->sequence & 1));
	memcpy(copy, h, sizeof(*h));
	nvm_flush(copy, sizeof(*copy));
	nvm_drain("pool-header-first");

	h->sequence++;
	h->crc = nvm_header_crc(h);
	copy = NvmPoolPtr(NVM_HEADER_OFFSET(h->sequence & 1));
	memcpy(copy, h, sizeof(*h));
	nvm_flush(copy, sizeof(*copy));
	nvm_drain("pool-header-second");
	END_CRIT_SECTION();
}

bool
nvm_pool_has_old_marks(void)
{
	return nvm_dram->header.marks_era != NvmPool->incarnation >> 16;
}

void
nvm_pool_old_marks_gone(void)
{
	LWLockAcquire(NvmPool->header_lock, LW_EXCLUSIVE);
	nvm_dram->header.marks_era = NvmPool->incarnation >> 16;
	nvm_header_write(&nvm_dram->header);
	LWLockRelease(NvmPool->header_lock);
}

/*
 * See nvm_pool.h.
 */
uint64
nvm_pool_promise_xids(uint64 xid, uint64 wanted)
{
	uint64		promise;

	LWLockAcquire(NvmPool->header_lock, LW_EXCLUSIVE);
	promise = nvm_dram->header.xid_promise;
	if (xid >= promise)
	{
		promise = nvm_dram->header.xid_promise = wanted;
		nvm_header_write(&nvm_dram->header);
		pg_atomic_write_u64(&NvmPool->xid_promise, promise);
	}
	LWLockRelease(NvmPool->header_lock);
	return promise;
}
