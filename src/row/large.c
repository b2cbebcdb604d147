/*-------------------------------------------------------------------------
 *
 * large.c
 *	  Values that do not fit the block of their row: write and free them.
 *
 * The tuple keeps an external varlena of 10 bytes in the value's place, with
 * the tag of an indirect pointer but holding a pool offset.  The value lies
 * at that offset in runs of units of its own, each with an NvmLargeHeader.
 * It is a complete varlena, plain or compressed: where one run holds it, a
 * Datum can point straight to it.
 *
 * Beyond its last column the tuple ends with the pool offsets of all its
 * values, and with their number in 2 bytes.  So a version's values can be
 * freed without its table's description.
 *
 * What a crash leaves, and who repairs it.  A run is durably owned by the
 * table from its allocation on.  Its header gets the writer's stamp at once,
 * and the TID of the version when that is known, before the version's begin.
 *	- header without stamp: the crash came between the two.  No running
 *	  backend is there while the extend lock is held exclusively.
 *	- stamp in a gap: the version never existed.
 *	- version freed, run not: cannot be, since runs are freed first, the last
 *	  of a value first; but see large_is_orphan in large_collect.c.
 *	- run freed, version not: the version's begin is no stamp any more, so
 *	  nobody reads it; freeing it again finds that the run is not its own.
 * nvm_collect_large frees the first two, in the gap collector's sweep.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "pool/nvm_sound.h"
#include "port/pg_crc32c.h"
#include "row/nvm_large.h"
#include "row/nvm_large_run.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_xact.h"

StaticAssertDecl(sizeof(varatt_indirect) == sizeof(uint64),
				 "a pool offset takes the place of an indirect pointer");
StaticAssertDecl(sizeof(NvmLargeHeader) == NVM_LINE_SIZE,
				 "header of a large value is one cache line");

/*
 * The runs written for a tuple whose version is not there yet.  Lives in a
 * memory context of its own below the transaction's.  If the version never
 * comes to be, the end of that context gives the runs back.
 */
struct NvmLargeSet
{
	MemoryContext cxt;
	MemoryContextCallback callback;
	NvmRelState *state;
	NvmStamp	stamp;
	int			nruns;			/* 0 when there is nothing to give back */
	int			maxruns;
	uint64	   *runs;			/* pool offsets, in order of allocation */
};

/*
 * See nvm_large.h.
 */
bool
nvm_large_is_of(uint64 offset, uint32 dir)
{
	uint64		unit = offset / NVM_UNIT_SIZE;
	uint64		chunk = unit / NVM_UNITS_PER_CHUNK;
	uint64		word;

	if (offset == 0 || offset % NVM_UNIT_SIZE != 0 || !nvm_unit_is_mapped(unit))
		return false;
	word = nvm_load(NvmPoolPtr(chunk * NVM_CHUNK_SIZE +
							   unit % NVM_UNITS_PER_CHUNK * sizeof(uint64)));
	return NVM_EXT_KIND(word) == NVM_EXT_LARGE && NVM_EXT_OWNER(word) == dir;
}

/* ---- writing ---- */

/*
 * Give back what nobody owns.  As the context callback it runs in the cleanup
 * of an aborted transaction.  The collector takes such runs for leaks and may
 * have been there before; the stamp tells.
 */
static void
large_set_free(void *arg)
{
	NvmLargeSet *set = arg;
	LWLock	   *lock;

	if (set->nruns == 0)
		return;
	lock = nvm_rel_extend_lock(set->state);
	LWLockAcquire(lock, LW_SHARED);
	for (int i = set->nruns - 1; i >= 0; i--)
	{
		if (nvm_large_is_of(set->runs[i], set->state->dir) &&
			large_header(set->runs[i])->stamp == set->stamp)
			nvm_large_free(set->runs[i]);
	}
	set->nruns = 0;
	LWLockRelease(lock);
}

NvmLargeSet *
nvm_large_set_make(NvmRelState *state)
{
	MemoryContext cxt = AllocSetContextCreate(CurTransactionContext,
											  "nvm large values to write",
											  ALLOCSET_SMALL_SIZES);
	NvmLargeSet *set = MemoryContextAllocZero(cxt, sizeof(NvmLargeSet));

	set->cxt = cxt;
	set->state = state;
	set->stamp = nvm_xact_stamp(state->region);
	set->maxruns = 8;
	set->runs = MemoryContextAlloc(cxt, set->maxruns * sizeof(uint64));
	set->callback.func = large_set_free;
	set->callback.arg = set;
	MemoryContextRegisterResetCallback(cxt, &set->callback);
	return set;
}

/*
 * Allocate a run and put its header's stamp there, in the same hold of the
 * extend lock: without a stamp it would pass for a leak.
 */
uint64
nvm_large_new_run(NvmRelState *state, uint32 nunits, NvmStamp stamp)
{
	LWLock	   *lock = nvm_rel_extend_lock(state);
	uint64		offset;

	LWLockAcquire(lock, LW_SHARED);
	offset = nvm_large_alloc(state->dir, nunits);
	nvm_store(&large_header(offset)->stamp, stamp);
	nvm_flush(large_header(offset), sizeof(NvmLargeHeader));
	LWLockRelease(lock);
	return offset;
}

/*
 * A run for `bytes` bytes that the set gives back if no version comes of it.
 */
static uint64
large_new_run(NvmLargeSet *set, Size bytes)
{
	uint32		nunits = large_run_units(bytes);
	uint64		offset;

	if (set->nruns == set->maxruns)
	{
		set->runs = repalloc(set->runs, 2 * set->maxruns * sizeof(uint64));
		set->maxruns *= 2;
	}
	offset = nvm_large_new_run(set->state, nunits, set->stamp);
	set->runs[set->nruns++] = offset;
	return offset;
}

/*
 * Write a value; returns the pool offset of its first run.  Headers lack
 * their owner, which nvm_large_assign fills in.
 */
uint64
nvm_large_write(NvmLargeSet *set, const char *value, Size total, AttrNumber attnum)
{
	int			first = set->nruns;
	int			nruns = (total + NVM_LARGE_RUN_BYTES - 1) / NVM_LARGE_RUN_BYTES;
	Size		done = 0;

	for (int i = 0; i < nruns; i++)
	{
		Size		bytes = Min(total - done, NVM_LARGE_RUN_BYTES);

		large_new_run(set, bytes);
		done += bytes;
	}

	done = 0;
	for (int i = 0; i < nruns; i++)
	{
		uint64		offset = set->runs[first + i];
		NvmLargeHeader *run = large_header(offset);
		Size		bytes = Min(total - done, NVM_LARGE_RUN_BYTES);
		pg_crc32c	crc;

		memcpy(large_data(offset), value + done, bytes);
		INIT_CRC32C(crc);
		COMP_CRC32C(crc, value + done, bytes);
		FIN_CRC32C(crc);

		run->next = (i + 1 < nruns) ? set->runs[first + i + 1] : 0;
		run->length = bytes;
		run->total = total;
		run->attribute = attnum;
		run->segment = i;
		run->crc = crc;
		nvm_flush(run, sizeof(NvmLargeHeader) + bytes);
		done += bytes;
	}
	return set->runs[first];
}

void
nvm_large_assign(NvmLargeSet *large, NvmVersion *v, uint32 blk, uint32 off)
{
	for (int i = 0; i < large->nruns; i++)
	{
		NvmLargeHeader *run = large_header(large->runs[i]);

		run->owner_block = blk;
		run->owner_offset = off;
		nvm_flush(run, sizeof(NvmLargeHeader));
	}
	large->nruns = 0;
	MemoryContextDelete(large->cxt);
}

void
nvm_large_discard(NvmLargeSet *large)
{
	/* the context's callback gives the runs back */
	MemoryContextDelete(large->cxt);
}

/* ---- freeing ---- */

/*
 * Number of values that the version has outside, and where their pool offsets
 * are.  A version that a crash has torn may have any length.  So nothing
 * beyond the block is read, which may be the pool's last one.
 */
static uint16
large_trailer(const NvmVersion *v, const char **offsets)
{
	uint32		room = NVM_UNIT_SIZE - NvmPoolOff(v) % NVM_UNIT_SIZE;
	uint16		count;

	if (!(v->flags & NVM_VF_LARGE) ||
		(uint32) NVM_VERSION_HEADER + v->len > room ||
		v->len < SizeofHeapTupleHeader + NVM_LARGE_TRAILER(1))
		return 0;
	memcpy(&count, (const char *) &v->tuple + v->len - sizeof(count), sizeof(count));
	if (v->len < SizeofHeapTupleHeader + NVM_LARGE_TRAILER(count))
		return 0;
	*offsets = (const char *) &v->tuple + v->len - NVM_LARGE_TRAILER(count);
	return count;
}

/*
 * Word i of the list of values outside, or 0.
 */
static uint64
large_word(const NvmVersion *v, int i)
{
	const char *words = NULL;
	uint64		word;

	if (i >= large_trailer(v, &words))
		return 0;
	memcpy(&word, words + i * sizeof(uint64), sizeof(word));
	return word;
}

uint64
nvm_large_head(const NvmVersion *v, int i)
{
	return NVM_LARGE_OFFSET(large_word(v, i));
}

uint32
nvm_large_place(const NvmVersion *v, int i)
{
	return NVM_LARGE_PLACE(large_word(v, i));
}

/*
 * See nvm_large.h.
 */
bool
nvm_large_repoint(NvmVersion *v, int i, uint64 to)
{
	uint64		word = large_word(v, i);
	uint32		place = NVM_LARGE_PLACE(word);
	const char *words = NULL;
	char	   *standin;
	uint64		from;

	if (i >= large_trailer(v, &words) || place < v->tuple.hoff + VARHDRSZ_EXTERNAL ||
		(const char *) &v->tuple + place + sizeof(uint64) > words)
		return false;
	standin = (char *) &v->tuple + place;
	memcpy(&from, standin, sizeof(from));
	if (from != NVM_LARGE_OFFSET(word) ||
		!VARATT_IS_EXTERNAL(standin - VARHDRSZ_EXTERNAL))
		return false;
	memcpy(standin, &to, sizeof(to));
	word = to | place;
	memcpy(unconstify(char *, words) + i * sizeof(uint64), &word, sizeof(word));
	return true;
}

/*
 * Free the runs of the value at `head`, the last one first, so that a crash in
 * between leaves what can be found from the version.
 */
static void
large_free_value(uint64 head, uint32 dir, uint32 blk, uint32 off)
{
	uint32		nruns = 0;
	uint64		offset;

	for (offset = head; large_run_is_owned(offset, dir, blk, off, nruns);
		 offset = large_header(offset)->next)
		nruns++;

	while (nruns > 0)
	{
		nruns--;
		offset = head;
		for (uint32 i = 0; i < nruns; i++)
			offset = large_header(offset)->next;
		nvm_large_free(offset);
	}
}

/*
 * Has the version, which is none any more, large values that were not given back?
 * A hint: they may be given back meanwhile.
 */
bool
nvm_large_is_kept(NvmRelState *state, const NvmVersion *v)
{
	uint64		place = NvmPoolOff(v);
	const NvmBlock *block = NvmPoolPtr(place - place % NVM_UNIT_SIZE);
	uint64		head;

	for (int i = 0; (head = nvm_large_head(v, i)) != 0; i++)
	{
		if (large_run_is_owned(head, state->dir, block->blkno,
							   place % NVM_UNIT_SIZE / NVM_CELL_SIZE, 0))
			return true;
	}
	return false;
}

/*
 * Give back the runs of a version that is about to be freed, whose begin is no
 * stamp of a transaction any more.  Caller holds the alloc lock of its block.
 */
void
nvm_large_release(NvmRelState *state, NvmVersion *v)
{
	uint64		place = NvmPoolOff(v);
	NvmBlock   *block = NvmPoolPtr(place - place % NVM_UNIT_SIZE);
	uint32		off = place % NVM_UNIT_SIZE / NVM_CELL_SIZE;
	LWLock	   *lock;
	uint64		head;

	if (!(v->flags & NVM_VF_LARGE))
		return;

	/* keeps the collector out, which may have taken them for leaks */
	lock = nvm_rel_extend_lock(state);
	LWLockAcquire(lock, LW_SHARED);
	for (int i = 0; (head = nvm_large_head(v, i)) != 0; i++)
		large_free_value(head, state->dir, block->blkno, off);
	LWLockRelease(lock);
}
