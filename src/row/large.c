/*-------------------------------------------------------------------------
 *
 * large.c
 *	  Values that do not fit the block of their row.
 *
 * The tuple keeps an external varlena of 10 bytes in the value's place, with
 * the tag of an indirect pointer but holding a pool offset.  The value lies
 * at that offset in runs of units of its own, each with an NvmLargeHeader: a
 * complete varlena, plain or compressed, so that where one run holds it a
 * Datum can point straight to it.
 *
 * So that a version's values can be freed without its table's description,
 * the tuple ends, beyond its last column, with the pool offsets of all its
 * values and their number in 2 bytes.
 *
 * What a crash leaves, and who repairs it.  A run is durably owned by the
 * table from its allocation on.  Its header gets the writer's stamp at once,
 * and the TID of the version when that is known, before the version's begin.
 *	- header without stamp: the crash came between the two.  No running
 *	  backend is there while the extend lock is held exclusively.
 *	- stamp in a gap: the version never existed.
 *	- version freed, run not: cannot be, since runs are freed first, the last
 *	  of a value first; but see large_is_orphan.
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
#include "pool/nvm_poison.h"
#include "pool/nvm_pool.h"
#include "pool/nvm_sound.h"
#include "port/pg_crc32c.h"
#include "row/nvm_large.h"
#include "row/nvm_modify.h"
#include "row/nvm_version.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_xact.h"

#define NVM_LARGE_RUN_BYTES \
	((Size) NVM_LARGE_MAX_UNITS * NVM_UNIT_SIZE - sizeof(NvmLargeHeader))

StaticAssertDecl(sizeof(varatt_indirect) == sizeof(uint64),
				 "a pool offset takes the place of an indirect pointer");
StaticAssertDecl(sizeof(NvmLargeHeader) == NVM_LINE_SIZE,
				 "header of a large value is one cache line");

/*
 * The runs written for a tuple whose version is not there yet.  Lives in a
 * memory context of its own below the transaction's, whose end, should the
 * version never come to be, gives the runs back.
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

static inline NvmLargeHeader *
large_header(uint64 offset)
{
	return (NvmLargeHeader *) NvmPoolPtr(offset);
}

static inline char *
large_data(uint64 offset)
{
	return (char *) NvmPoolPtr(offset) + sizeof(NvmLargeHeader);
}

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

/* ---- reading ---- */

/*
 * May a header be looked at there, and the data that it announces?  Cheaper
 * than nvm_large_is_of, but no damaged offset leads beyond what is mapped.
 */
static inline bool
large_is_mapped(uint64 offset)
{
	return offset != 0 && offset % NVM_UNIT_SIZE == 0 &&
		nvm_unit_is_mapped(offset / NVM_UNIT_SIZE);
}

static inline bool
large_run_is_mapped(uint64 offset)
{
	uint64		length = large_header(offset)->length;

	return length <= NVM_LARGE_RUN_BYTES &&
		offset % NVM_CHUNK_SIZE + sizeof(NvmLargeHeader) + length <= NVM_CHUNK_SIZE;
}

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
 * The value that a stand-in names: a pointer into the pool, or, of a value in
 * several runs, memory of cxt.
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
	set->stamp = nvm_xact_stamp();
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
	uint32		nunits = (bytes + sizeof(NvmLargeHeader) + NVM_UNIT_SIZE - 1) / NVM_UNIT_SIZE;
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
 * are.  Of a version that a crash has torn the length may be anything: nothing
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
 * Does the run belong to the version at (blk, off), as this part of a value?
 */
static bool
large_run_is_owned(uint64 offset, uint32 dir, uint32 blk, uint32 off,
				   uint32 segment)
{
	NvmLargeHeader *run = large_header(offset);

	return nvm_large_is_of(offset, dir) && run->owner_block == blk &&
		run->owner_offset == off && run->segment == segment;
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

/* ---- collecting ---- */

typedef struct LargeWalk
{
	uint64	   *units;
	int			n;
	int			max;
} LargeWalk;

static void
large_walk_note(uint64 unit, uint64 word, void *arg)
{
	LargeWalk  *walk = arg;

	if (walk->n < walk->max)
		walk->units[walk->n] = unit;
	walk->n++;
}

/*
 * Has the run no owner, and will it have none?  Caller holds the extend lock
 * exclusively, so that no backend is between allocation and stamp, nor between
 * the runs and the version in nvm_large_release.
 */
static bool
large_is_orphan(NvmRelState *state, uint64 offset)
{
	NvmLargeHeader *run = large_header(offset);
	uint64		stamp = nvm_load(&run->stamp);
	NvmVersion *v;
	uint64		begin;
	uint64		head;

	if (stamp == 0)
		return true;
	if (NVM_STAMP_IS_SPECIAL(stamp))
		return false;
	if (nvm_stamp_in_gap(stamp))
		return true;

	/* while its transaction may go on, the version may be yet to come */
	if (!nvm_stamp_is_frozen(stamp))
		return false;
	if (run->owner_offset == 0 ||
		!nvm_tid_exists(state, run->owner_block, run->owner_offset))
		return true;

	v = nvm_cell(state, run->owner_block, run->owner_offset);
	begin = nvm_load(&v->begin);
	if (begin == 0)
		return true;
	if (NVM_STAMP_SLOT(begin) == NVM_STAMP_STUB)
		return false;			/* its tail goes with its runs */
	if (!(v->flags & NVM_VF_LARGE))
		return true;
	if (run->segment > 0)
		return false;			/* found through the first run */
	for (int i = 0; (head = nvm_large_head(v, i)) != 0; i++)
	{
		if (head == offset)
			return false;
	}
	return true;
}

/*
 * The gap collector's sweep over the runs of a storage: free those that belong
 * to transactions in a gap, and those that a crash left without an owner.
 */
void
nvm_collect_large(uint32 dir)
{
	NvmRelState *state;
	LargeWalk	walk = {NULL, 0, 0};
	LWLock	   *lock;

	if (pg_atomic_read_u32(&nvm_relstates[dir].nlarge) == 0)
		return;
	state = nvm_rel_open(dir);
	lock = nvm_rel_extend_lock(state);

	/* size the list without the lock, with room for what comes meanwhile */
	for (;;)
	{
		walk.max = pg_atomic_read_u32(&state->nlarge) + 64;
		walk.units = MemoryContextAllocHuge(CurrentMemoryContext,
											walk.max * sizeof(uint64));
		walk.n = 0;
		LWLockAcquire(lock, LW_EXCLUSIVE);
		nvm_extents_walk(NVM_EXT_LARGE, dir, large_walk_note, &walk);
		if (walk.n <= walk.max)
			break;
		LWLockRelease(lock);
		pfree(walk.units);
	}

	for (int i = 0; i < walk.n; i++)
	{
		uint64		offset = walk.units[i] * NVM_UNIT_SIZE;

		if (large_is_orphan(state, offset))
			nvm_large_free(offset);
	}
	LWLockRelease(lock);
	pfree(walk.units);
}

/*
 * Check the runs of value i of a version; NULL if all is well, else what is
 * wrong, in static memory.  For nvm.check().
 */
const char *
nvm_large_verify(NvmRelState *state, const NvmVersion *v, uint32 blk, uint32 off,
				 int i)
{
	uint64		offset = nvm_large_head(v, i);
	uint64		total;
	uint64		done = 0;
	uint32		segment = 0;

	if (!nvm_large_is_of(offset, state->dir))
		return "the extent of a large value is not the table's";
	total = large_header(offset)->total;
	do
	{
		NvmLargeHeader *run = large_header(offset);
		pg_crc32c	crc;

		if (!large_run_is_owned(offset, state->dir, blk, off, segment))
			return "a run of a large value belongs to another row";
		if (run->length == 0 || !large_run_is_mapped(offset) ||
			run->total != total || run->length > total - done)
			return "the lengths of a large value's runs do not add up";
		INIT_CRC32C(crc);
		COMP_CRC32C(crc, large_data(offset), run->length);
		FIN_CRC32C(crc);
		if (crc != run->crc)
			return "wrong checksum of a large value";
		done += run->length;
		offset = run->next;
		segment++;
	} while (done < total);

	if (offset != 0)
		return "a large value has more runs than its length needs";
	return NULL;
}
