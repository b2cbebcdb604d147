/*-------------------------------------------------------------------------
 *
 * pool_header.c
 *	  The pool's header: checks, reading, writing; checksums of the pool.
 *
 * The header has two copies.  A change writes one copy, waits until it is
 * durable, then writes the other.  So a crash damages one of them at most.
 * Outside of that moment both say the same, and damage to one copy loses
 * nothing.
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
#include "utils/timestamp.h"
#include "verify/nvm_verify.h"

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
	h->features_incompat = NVM_FEATURES_INCOMPAT;
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
	best = nvm_header_choose(copy, problem);
	if (best < 0)
		return nvm_refuse(ERRCODE_DATA_CORRUPTED,
						  "If this is not a pool, correct nvm.pool_directory. Otherwise restore "
						  "the pool and the data directory together from a backup taken while "
						  "the server was stopped.",
						  "header of NVM pool \"%s\" is damaged (copy 0: %s, copy 1: %s)",
						  nvm_pool_path, problem[0], problem[1]);
	*copy_damaged = problem[0] || problem[1];
	*h = copy[best];
	return true;
}

/*
 * Read the header of a file that is to be given up.  The file may be anything.
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
	switch (nvm_header_use(h))
	{
		case NVM_HEADER_VERSION:
			return nvm_refuse(ERRCODE_FEATURE_NOT_SUPPORTED,
							  "Install the pg_nvm release that last used the pool, or a later one.",
							  "NVM pool \"%s\" has format version %u, this pg_nvm knows versions up to %d",
							  nvm_pool_path, h->version, NVM_POOL_VERSION);
		case NVM_HEADER_FEATURES:
			return nvm_refuse(ERRCODE_FEATURE_NOT_SUPPORTED,
							  "Install the pg_nvm release that last used the pool, or a later one.",
							  "NVM pool \"%s\" uses features that this pg_nvm does not know (mask %llx)",
							  nvm_pool_path, (unsigned long long) h->features_incompat);
		case NVM_HEADER_LAYOUT:
			return nvm_refuse(ERRCODE_DATA_CORRUPTED,
							  "The pool was made by a pg_nvm built with other constants, or is damaged.",
							  "NVM pool \"%s\" has another layout: unit size %u, units in a chunk %u, commit slots %u, chunks %llu",
							  nvm_pool_path, h->unit_size, h->chunk_units, h->max_slots,
							  (unsigned long long) h->nchunks);
		case NVM_HEADER_USABLE:
			break;
	}
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

uint32
nvm_pool_log_generation(void)
{
	return nvm_dram->header.log_generation;
}

uint32
nvm_pool_log_file(void)
{
	return nvm_dram->header.log_file;
}

/*
 * See nvm_pool.h.
 */
void
nvm_pool_note_log(uint32 generation, uint32 file)
{
	if (nvm_dram->header.log_generation == generation && nvm_dram->header.log_file == file)
		return;
	LWLockAcquire(NvmPool->header_lock, LW_EXCLUSIVE);
	nvm_dram->header.log_generation = generation;
	nvm_dram->header.log_file = file;
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
