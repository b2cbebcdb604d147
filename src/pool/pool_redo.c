/*-------------------------------------------------------------------------
 *
 * pool_redo.c
 *	  Redo lanes: change several places of the pool, all or nothing.
 *
 * README.md, "Redo lanes", has the states and what a crash leaves in each.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat/nvm_compat.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_redo.h"
#include "pool/pool_impl.h"

#define RESTORE_HINT \
	"Restore the pool and the data directory together from a backup taken while the server was stopped."

/* where the bytes of a piece of that length are followed by the next ones */
#define PIECE_SPACE(length)		TYPEALIGN64(8, (length))

StaticAssertDecl(sizeof(NvmRedoLane) == NVM_REDO_HEADER_SIZE, "redo lane header");
StaticAssertDecl(NVM_REDO_HEADER_SIZE + NVM_REDO_MAX_BYTES + 8 * NVM_REDO_PIECES <=
				 NVM_REDO_LANE_UNITS * NVM_UNIT_SIZE, "a lane has room for its pieces");

struct NvmRedo
{
	int			lane;
	int			npieces;
	uint64		bytes;
	NvmRedoPiece piece[NVM_REDO_PIECES];
	const void *data[NVM_REDO_PIECES];
};

/* of this process, which has one lane at most */
static NvmRedo my_redo;

static uint64
lane_unit(int lane)
{
	return pg_atomic_read_u32(&NvmPool->redo_unit) + (uint64) lane * NVM_REDO_LANE_UNITS;
}

static NvmRedoLane *
lane_address(int lane)
{
	return NvmPoolPtr(lane_unit(lane) * NVM_UNIT_SIZE);
}

/*
 * What the word of a lane says when its first `used` bytes count.
 */
static uint64
lane_word(int lane, const NvmRedoLane *header, Size used)
{
	Size		skip = offsetof(NvmRedoLane, npieces);

	return NVM_REDO_WORD(nvm_pool_check((const char *) header + skip, used - skip,
										NVM_PLACE_REDO(lane_unit(lane)), 32));
}

static void
store_lane_word(NvmRedoLane *header, uint64 word)
{
	__atomic_store_n(&header->word, word, __ATOMIC_RELEASE);
	nvm_flush(&header->word, sizeof(header->word));
}

/*
 * Store a piece where it belongs, and flush it.
 */
static void
store_piece(uint64 place, const void *data, uint64 length)
{
	char	   *to = NvmPoolPtr(place);

	/* somebody may read a single word without a lock */
	if (length == sizeof(uint64) && place % sizeof(uint64) == 0)
	{
		uint64		word;

		memcpy(&word, data, sizeof(word));
		__atomic_store_n((uint64 *) to, word, __ATOMIC_RELEASE);
	}
	else
		memcpy(to, data, length);
	nvm_flush(to, length);
}

/* ---- use ---- */

/*
 * Make the extent of the lanes.  Takes dir_lock, then extent_lock.
 */
static void
make_lanes(void)
{
	LWLockAcquire(NvmPool->dir_lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u32(&NvmPool->redo_unit) == 0)
	{
		uint64		unit;

		NVM_FAILPOINT("pool-redo-make");
		unit = nvm_extent_alloc(NVM_EXT_REDO, 0, NVM_REDO_EXTENT_UNITS,
											NVM_REDO_EXTENT_UNITS);

		pg_atomic_write_u32(&NvmPool->redo_unit, (uint32) unit);
	}
	LWLockRelease(NvmPool->dir_lock);
}

/*
 * See nvm_redo.h.
 */
void
nvm_redo_prepare(void)
{
	if (pg_atomic_read_u32(&NvmPool->redo_unit) == 0)
		make_lanes();
}

/*
 * See nvm_redo.h.
 */
NvmRedo *
nvm_redo_begin(void)
{
	NvmRedo    *redo = &my_redo;
	int			first = NvmProcNumber() % NVM_REDO_LANES;
	int			lane = first;

	nvm_redo_prepare();

	/* an error has released what an earlier call took */
	Assert(!LWLockHeldByMe(nvm_redo_lane_lock(redo->lane)));
	while (!LWLockConditionalAcquire(nvm_redo_lane_lock(lane), LW_EXCLUSIVE))
	{
		lane = (lane + 1) % NVM_REDO_LANES;
		if (lane != first)
			continue;
		LWLockAcquire(nvm_redo_lane_lock(lane), LW_EXCLUSIVE);
		break;
	}
	redo->lane = lane;
	redo->npieces = 0;
	redo->bytes = 0;
	Assert(lane_address(lane)->word == 0);
	return redo;
}

void
nvm_redo_add(NvmRedo *redo, void *place, const void *data, Size len)
{
	NvmRedoPiece *piece = &redo->piece[redo->npieces];

	if (len == 0)
		return;
	if (redo->npieces >= NVM_REDO_MAX_PIECES || redo->bytes + len > NVM_REDO_MAX_BYTES)
		elog(PANIC, "more than a redo lane of the NVM pool has room for");
	piece->place = NvmPoolOff(place);
	piece->length = len;
	redo->data[redo->npieces++] = data;
	redo->bytes += len;
}

/*
 * See nvm_redo.h.
 */
void
nvm_redo_apply(NvmRedo *redo)
{
	NvmRedoLane *header = lane_address(redo->lane);
	Size		used = sizeof(NvmRedoLane);

	/* between the two words nothing but a restart can put things right */
	START_CRIT_SECTION();
	header->npieces = redo->npieces;
	header->reserved = 0;
	memset(header->piece, 0, sizeof(header->piece));
	memcpy(header->piece, redo->piece, redo->npieces * sizeof(NvmRedoPiece));
	for (int i = 0; i < redo->npieces; i++)
	{
		uint64		length = redo->piece[i].length;

		/* what fills up to the next piece is covered by the checksum too */
		memset((char *) header + used + PIECE_SPACE(length) - 8, 0, 8);
		memcpy((char *) header + used, redo->data[i], length);
		used += PIECE_SPACE(length);
	}
	nvm_flush(header, used);
	nvm_drain("pool-redo-written");

	store_lane_word(header, lane_word(redo->lane, header, used));
	nvm_drain("pool-redo-logged");

	for (int i = 0; i < redo->npieces; i++)
	{
		store_piece(redo->piece[i].place, redo->data[i], redo->piece[i].length);
		NVM_FAILPOINT("redo-piece");
	}
	nvm_drain("pool-redo-applied");

	store_lane_word(header, 0);
	nvm_drain("pool-redo-cleared");
	END_CRIT_SECTION();
	redo->npieces = 0;
	redo->bytes = 0;
}

void
nvm_redo_end(NvmRedo *redo)
{
	LWLockRelease(nvm_redo_lane_lock(redo->lane));
}

/* ---- start and check ---- */

/*
 * Does [place, place + length) lie in blocks of storages?
 */
static bool
target_is_owned(uint64 place, uint64 length)
{
	uint64		size = NvmPool->nchunks * NVM_CHUNK_SIZE;

	if (length == 0 || place >= size || length > size - place)
		return false;
	for (uint64 unit = place / NVM_UNIT_SIZE; unit <= (place + length - 1) / NVM_UNIT_SIZE; unit++)
	{
		uint64		first;
		uint64		word = nvm_extent_of_unit(unit, &first);

		if (NVM_EXT_KIND(word) != NVM_EXT_TABLE ||
			nvm_relstates[NVM_EXT_OWNER(word)].dir != NVM_EXT_OWNER(word))
			return false;
	}
	return true;
}

/*
 * What is wrong with a lane whose word is not 0, or NULL.  Reads no more of it
 * than there is.
 */
static const char *
lane_problem(int lane)
{
	NvmRedoLane *header = lane_address(lane);
	Size		used = sizeof(NvmRedoLane);
	uint64		bytes = 0;

	if (header->word >> 32 != NVM_REDO_MAGIC)
		return "wrong magic number";
	if (header->npieces > NVM_REDO_PIECES)
		return "impossible number of pieces";
	for (uint32 i = 0; i < header->npieces; i++)
	{
		if (header->piece[i].length > NVM_REDO_MAX_BYTES - bytes)
			return "impossible length of a piece";
		bytes += header->piece[i].length;
		used += PIECE_SPACE(header->piece[i].length);
	}
	if (header->word != lane_word(lane, header, used))
		return "wrong checksum";
	if (header->reserved != 0)
		return "reserved bytes are set";
	for (uint32 i = 0; i < header->npieces; i++)
	{
		if (!target_is_owned(header->piece[i].place, header->piece[i].length))
			return "a piece belongs where no table or index has a block";
	}
	return NULL;
}

/*
 * Can the lanes that count be applied?  Extents and directory are in DRAM.
 * Returns false after refusing the pool.  In the postmaster.
 */
bool
nvm_redo_scan(void)
{
	if (pg_atomic_read_u32(&NvmPool->redo_unit) == 0)
		return true;
	for (int lane = 0; lane < NVM_REDO_LANES; lane++)
	{
		const char *problem = lane_address(lane)->word == 0 ? NULL : lane_problem(lane);

		if (problem)
			return nvm_refuse(ERRCODE_DATA_CORRUPTED, RESTORE_HINT,
							  "redo lane %d of NVM pool \"%s\" is damaged: %s",
							  lane, nvm_pool_path, problem);
	}
	return true;
}

/*
 * Flush which lanes count, as it was found: one that was cleared, but not
 * durably, must not come back after its place was written by others.
 */
void
nvm_redo_flush(void)
{
	if (pg_atomic_read_u32(&NvmPool->redo_unit) == 0)
		return;
	for (int lane = 0; lane < NVM_REDO_LANES; lane++)
		nvm_flush(&lane_address(lane)->word, sizeof(uint64));
}

/*
 * Do what the last stop left undone or half done; nvm_redo_scan found nothing
 * wrong.  A stop in the middle of it has it done again.  In the postmaster.
 */
void
nvm_redo_replay(void)
{
	int			nlanes = 0;

	if (pg_atomic_read_u32(&NvmPool->redo_unit) == 0)
		return;
	for (int lane = 0; lane < NVM_REDO_LANES; lane++)
	{
		NvmRedoLane *header = lane_address(lane);
		const char *data = (const char *) (header + 1);

		if (header->word == 0)
			continue;
		for (uint32 i = 0; i < header->npieces; i++)
		{
			store_piece(header->piece[i].place, data, header->piece[i].length);
			data += PIECE_SPACE(header->piece[i].length);
			NVM_FAILPOINT("redo-replay-piece");
		}
		nlanes++;
	}
	if (nlanes == 0)
		return;

	nvm_drain("pool-redo-replayed");
	for (int lane = 0; lane < NVM_REDO_LANES; lane++)
	{
		if (lane_address(lane)->word != 0)
			store_lane_word(lane_address(lane), 0);
	}
	nvm_drain("pool-redo-forgotten");
	ereport(LOG,
			(errmsg("nvm: completed %d changes of structure that the last stop interrupted",
					nlanes)));
}

/*
 * For nvm_pool_verify: a lane that nobody has is empty.  Holds one lane at a
 * time, and no other lock.
 */
void
nvm_redo_verify(NvmCheckEmit emit, void *arg)
{
	if (pg_atomic_read_u32(&NvmPool->redo_unit) == 0)
		return;
	for (int lane = 0; lane < NVM_REDO_LANES; lane++)
	{
		LWLock	   *lock = nvm_redo_lane_lock(lane);
		char		place[32];

		if (!LWLockConditionalAcquire(lock, LW_SHARED))
			continue;
		snprintf(place, sizeof(place), "redo lane %d", lane);
		if (lane_address(lane)->word != 0)
			emit(arg, place, "is not empty, though nobody uses it");
		LWLockRelease(lock);
	}
}
