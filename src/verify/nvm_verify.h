/*-------------------------------------------------------------------------
 *
 * nvm_verify.h
 *	  What can be wrong with the bytes of a pool: header, extent map,
 *	  directory, redo lanes, commit slots.
 *
 * Compiled into the server and into nvm_poolcheck, so nothing here knows of
 * shared memory, locks or ereport.  Includers have included postgres.h or
 * postgres_fe.h.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_VERIFY_H
#define NVM_VERIFY_H

#include "media/media_pool.h"
#include "media/media_slot.h"
#include "media/media_word.h"

/* a finding: where, and what; both are valid during the call only */
typedef void (*NvmCheckEmit) (void *arg, const char *place, const char *problem);

/*
 * The mapped bytes of a pool.  nvm_pool_set_uuid was told its uuid.  Others
 * may be changing the bytes.
 */
typedef struct NvmImage
{
	char	   *base;
	uint64		nchunks;
	uint64		first_chunk;	/* number of the first of these */
} NvmImage;

static inline uint64 *
nvm_image_map_word(const NvmImage *image, uint64 unit)
{
	return (uint64 *) (image->base + unit / NVM_UNITS_PER_CHUNK * NVM_CHUNK_SIZE) +
		unit % NVM_UNITS_PER_CHUNK;
}

static inline uint64
nvm_image_load_word(const NvmImage *image, uint64 unit)
{
	return nvm_load(nvm_image_map_word(image, unit));
}

/* ---- the file (verify_file.c) ---- */

/*
 * The pool's name.  Inside the data directory it has another name, which base
 * backups leave out and pg_rewind does not copy: a copy that is made while the
 * server runs is torn.
 */
#define NVM_POOL_FILE			"pool"
#define NVM_POOL_HIDDEN_FILE	"pgsql_tmp.nvm_pool.do_not_delete"

/* value of nvm.pool_directory where nobody has set it */
#define NVM_POOL_DIRECTORY		"pg_nvm"

/*
 * The pool's directory, made absolute, to dir, of MAXPGPATH bytes.  A relative
 * setting is taken from the data directory.
 */
extern void nvm_pool_directory_name(char *dir, const char *setting, const char *data_dir);

/*
 * The name that the file should have in directory dir, as
 * nvm_pool_directory_name made it.  Until the next start the file may still
 * have the other name.
 */
extern const char *nvm_pool_file_name(const char *dir, const char *data_dir);

/*
 * flock(fd, operation | LOCK_NB), but wait for a moment: a child of a server
 * that has just ended may still hold a lock.  False with errno; EWOULDBLOCK if
 * another process holds the lock.
 */
extern bool nvm_lock_file(int fd, int operation);

/* ---- checksums, header (verify_header.c) ---- */

/* salt of nvm_pool_check from now on */
extern void nvm_pool_set_uuid(const uint8 *uuid);

/* CRC salted with the pool's uuid and a place; width in bits <= 32 */
extern uint32 nvm_pool_check(const void *data, Size len, uint64 place, int bits);

/* CRC of a record that belongs to no known pool yet, without the field that
 * holds it */
extern uint32 nvm_record_crc(const void *record, Size len, const uint32 *field);
extern uint32 nvm_header_crc(const NvmPoolHeader *h);

/* what damage has done to a copy of the header, or NULL; whether we can use
 * the header is another question */
extern const char *nvm_header_problem(const NvmPoolHeader *h);

/* which of two copies with these problems counts; -1 if neither does */
extern int	nvm_header_choose(const NvmPoolHeader *copy, const char *const *problem);

typedef enum NvmHeaderUse
{
	NVM_HEADER_USABLE,
	NVM_HEADER_VERSION,			/* of a later version of the format */
	NVM_HEADER_FEATURES,		/* uses features that we do not know */
	NVM_HEADER_LAYOUT			/* made with other constants, or damaged */
} NvmHeaderUse;

extern NvmHeaderUse nvm_header_use(const NvmPoolHeader *h);

/* bytes between the header and the commit slots */
extern void nvm_verify_reserved(const NvmImage *image, NvmCheckEmit emit, void *arg);

/*
 * The incarnation that the next open begins.  And: did incarnation inc end in
 * a crash?  Answered for that next incarnation, by the list in the header.
 */
extern uint32 nvm_incarnation_after(uint32 incarnation);
extern void nvm_header_note_crashed(NvmPoolHeader *h, uint32 inc);
extern bool nvm_crashed_list_has(const uint32 *crashed, uint32 ncrashed,
								 uint32 crashed_floor, uint32 inc);

/* ---- extent map and directory (verify_map.c) ---- */

#define NVM_DIR_EXTENTS			(NVM_MAX_DIRS / NVM_DIRS_PER_EXTENT)

/* units of extent `index` of a storage */
static inline uint32
nvm_extent_units(uint32 index)
{
	uint32		k = index / NVM_EXT_PER_CLASS;

	return NVM_EXT_MIN_UNITS << Min(k, NVM_EXT_CLASSES - 1);
}

/* units of the first so many extents of a storage */
extern uint64 nvm_extents_units(uint32 nextents);

/*
 * The extent in which a block of a storage lies, and the extent's first block.
 */
static inline uint32
nvm_extent_of_block(uint32 blkno, uint32 *first)
{
	uint32		q = blkno / (NVM_EXT_PER_CLASS * NVM_EXT_MIN_UNITS) + 1;
	uint32		k = 31 - __builtin_clz(q);
	uint32		base;

	if (k > NVM_EXT_CLASSES - 1)
		k = NVM_EXT_CLASSES - 1;
	base = NVM_EXT_PER_CLASS * NVM_EXT_MIN_UNITS * ((1u << k) - 1);
	*first = base + (blkno - base) / (NVM_EXT_MIN_UNITS << k) * (NVM_EXT_MIN_UNITS << k);
	return NVM_EXT_PER_CLASS * k + (blkno - base) / (NVM_EXT_MIN_UNITS << k);
}

/* units of the extents of a storage that have so many blocks */
static inline uint64
nvm_extents_units_of_blocks(uint32 nblocks)
{
	uint32		first;

	return nblocks == 0 ? 0 : nvm_extents_units(nvm_extent_of_block(nblocks - 1, &first) + 1);
}

/* is the owner of the extent with this word a storage? */
static inline bool
nvm_extent_of_storage(uint64 word)
{
	return NVM_EXT_KIND(word) == NVM_EXT_TABLE || NVM_EXT_KIND(word) == NVM_EXT_LARGE;
}

/* the first unit of a chunk that can be allocated */
static inline uint32
nvm_chunk_first_unit(uint64 chunk)
{
	if (chunk == 0)
		return NVM_CHUNK0_FIRST_UNIT;
	return chunk == NVM_REGION_UNITS / NVM_UNITS_PER_CHUNK ? NVM_VOLATILE_FIRST_UNIT : NVM_MAP_UNITS;
}

extern uint64 nvm_extent_word(uint32 kind, uint32 owner, uint32 arg, uint64 unit);
extern uint32 nvm_extent_word_units(uint64 word);

/* what is wrong with the map word of this unit, which is not 0, or NULL */
extern const char *nvm_extent_problem(uint64 word, uint64 unit);

/* the word of the extent that unit is part of, 0 if it is free; *first becomes
 * the extent's first unit.  For units that can be allocated */
extern uint64 nvm_image_extent_of(const NvmImage *image, uint64 unit, uint64 *first);

/*
 * Walk one chunk's map: words, and what is inside of extents.  extent() is
 * called for each extent whose word makes sense.  Returns the units that are
 * not free.
 */
typedef void (*NvmVerifyExtent) (void *arg, uint64 unit, uint64 word, const char *place);
extern uint64 nvm_verify_chunk(const NvmImage *image, uint64 chunk,
							   NvmVerifyExtent extent, NvmCheckEmit emit, void *arg);

/* messages for an extent that is there twice, or not at all; return buf */
#define NVM_PROBLEM_SIZE		256
extern const char *nvm_extent_twice(char *buf, uint64 word, uint32 other, uint64 unit);
extern const char *nvm_extent_missing(char *buf, uint32 index, uint32 id,
									  const NvmDirEntry *entry);

extern uint32 nvm_dir_entry_crc(uint32 id, const NvmDirEntry *entry);

/*
 * Extents that the storage must have, or something is missing.  A table of the
 * volatile region counts those that it has had.
 */
static inline uint32
nvm_dir_needs_extents(const NvmDirEntry *entry)
{
	return (entry->flags & NVM_DIR_VOLATILE) != 0 ? 0 :
		NVM_DIR_COUNT(__atomic_load_n(&entry->counted, __ATOMIC_RELAXED));
}

/* NvmDirEntry.counted of entry id, for so many extents */
extern uint64 nvm_dir_counted(uint32 id, uint32 nextents);

/* NvmDirEntry.clean_check of entry id for a run, and the run that the entry has, 0 if none */
extern uint32 nvm_dir_clean_check(uint32 id, uint64 run);
extern uint64 nvm_dir_clean_run(uint32 id, const NvmDirEntry *entry);

/* what is wrong with entry id, which is in use, or NULL */
extern const char *nvm_dir_entry_problem(uint32 id, const NvmDirEntry *entry);

/* was the block at `unit` ever initialised, for a storage of this kind? */
extern bool nvm_block_was_used(uint32 kind, const char *unit);

/* ---- redo lanes (verify_redo.c) ---- */

/* what one lane has room for */
#define NVM_REDO_MAX_BYTES		(3 * NVM_UNIT_SIZE)

/* bytes that a piece of that length takes in a lane */
#define NVM_REDO_SPACE(length)	TYPEALIGN64(8, (length))

static inline uint64
nvm_redo_lane_unit(uint32 redo_unit, int lane)
{
	return redo_unit + (uint64) lane * NVM_REDO_LANE_UNITS;
}

/* what the word of the lane at `unit` has to be for its first `used` bytes to
 * count */
extern uint64 nvm_redo_word(uint64 unit, const NvmRedoLane *lane, Size used);

/* what is wrong with the lane at `unit`, or NULL.  Its word is not 0.  Reads
 * no more of the lane than there is */
typedef bool (*NvmStorageExists) (void *arg, uint32 owner);
extern const char *nvm_redo_lane_problem(const NvmImage *image, uint64 unit,
										 NvmStorageExists exists, void *arg);

/* ---- commit slots and lists of row locks (verify_slot.c) ---- */

/* fields of a slot copy, as they enter their checks */
typedef enum NvmSlotField
{
	NVM_FIELD_WORD,
	NVM_FIELD_XID,
	NVM_FIELD_STATEMENT,
	NVM_FIELD_GAP,				/* + index */
	NVM_FIELD_LOCKS = NVM_FIELD_GAP + NVM_SLOT_GAPS
} NvmSlotField;

static inline NvmSlot *
nvm_image_slot(const NvmImage *image, uint32 slot)
{
	return (NvmSlot *) (image->base + NVM_SLOTS_OFFSET) + slot;
}

/* a word, or another field, with its check; a field of 0 stays 0 */
extern uint64 nvm_slot_word(uint32 slot, uint32 state, uint64 counter);
extern bool nvm_slot_word_valid(uint32 slot, uint64 word);
extern uint64 nvm_slot_field(uint32 slot, NvmSlotField field, uint64 value);
extern bool nvm_slot_field_valid(uint32 slot, NvmSlotField field, uint64 value);

/* what is wrong with one copy of a slot, or NULL */
extern const char *nvm_slot_copy_problem(uint32 slot, const NvmSlotCopy *copy);

/*
 * Read the two copies of a slot into one, as a start finds them.  A damaged
 * copy is replaced by the other: what was acknowledged, and what anything
 * relies on, was drained in both.  problem[] becomes what is wrong with each.
 * False if both are damaged.
 */
extern bool nvm_slot_join(uint32 slot, const NvmSlot *s, NvmSlotCopy *result,
						  const char *problem[2]);

/*
 * The number of used slots: a prefix of the array.  Looks a little past its
 * end, to find a hole, which only damage can make.  Then false, and *hole is
 * the blank slot below slot *count, which is in use.
 */
extern bool nvm_slots_prefix(const NvmImage *image, uint32 *count, uint32 *hole);

/* what is wrong with a slot beyond the used ones, or NULL */
extern const char *nvm_slot_blank_problem(const NvmSlot *s);

/* how many items an extent of that many units has room for */
#define NVM_LOCK_LIST_ROOM(units) \
	(((Size) (units) * NVM_UNIT_SIZE - NVM_LOCK_LIST_HEADER) / NVM_LOCK_ITEM_SIZE)

/* size of the extent of row locks that begins at this unit; 0 if no extent of
 * this slot does */
extern uint32 nvm_image_locks_units(const NvmImage *image, uint32 unit, uint32 slot);
extern uint32 nvm_lock_list_crc(uint32 unit, const NvmLockList *header);

/* what is wrong with a list of row locks, or NULL */
extern const char *nvm_image_locks_problem(const NvmImage *image, uint32 slot,
										   uint64 counter, uint32 unit);

#endif							/* NVM_VERIFY_H */
