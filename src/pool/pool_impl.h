/*-------------------------------------------------------------------------
 *
 * pool_impl.h
 *	  What the files of the pool share among themselves.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef POOL_IMPL_H
#define POOL_IMPL_H

#include "pool/nvm_pool.h"

#include "access/xlogdefs.h"
#include "catalog/pg_control.h"
#include "media/media_memory.h"
#include "storage/pg_shmem.h"
#include "verify/nvm_verify.h"

/* locks of the tranche: header, extents, directory, extend locks, lanes */
#define NVM_EXTEND_LOCKS		253
#define NVM_POOL_LOCK_EXTEND	3
#define NVM_POOL_LOCK_REDO		(NVM_POOL_LOCK_EXTEND + NVM_EXTEND_LOCKS)
#define NVM_POOL_NUM_LOCKS		(NVM_POOL_LOCK_REDO + NVM_REDO_LANES)

#define NVM_DRAM_CLASSES		24	/* 256 bytes << class */
#define NVM_DRAM_MIN			256
#define NVM_DIR_BUCKETS			(1 << 18)

/*
 * Control block of the DRAM region.
 */
typedef struct NvmDramControl
{
	/* protected by extent_lock: the region's heap, offsets from its base */
	uint64		heap_next;
	uint64		heap_ready;		/* memory behind it is reserved up to here */
	uint64		heap_end;
	uint64		heap_free[NVM_DRAM_CLASSES];

	/* protected by dir_lock */
	uint64		next_creation;
	uint32		dir_search;		/* no free id below this one */
	uint32		ndir_extents;

	/* protected by header_lock: what the media holds */
	NvmPoolHeader header;
} NvmDramControl;

extern NvmDramControl *nvm_dram;
extern uint64 *nvm_used_bits;	/* bit a unit, extent_lock */
extern uint64 *nvm_zero_bits;	/* bit a unit: known to be durably zero;
								 * extent_lock */
extern uint32 *nvm_dir_units;	/* unit of each directory extent, dir_lock */
extern uint32 *nvm_dir_buckets; /* head id of each hash chain, dir_lock */

/* pool_settings.c */
extern uint64 nvm_pool_max_bytes(void);

/* pool_dram.c */
extern bool nvm_dram_setup(void);
extern bool nvm_dram_reserve(const void *ptr, Size size);
extern void *nvm_dram_alloc_locked(Size size);

/* pool_file.c */
extern int	nvm_pool_fd;
extern char *nvm_pool_path;
extern char *nvm_pool_own_path;
extern void nvm_file_names(void);
extern bool nvm_file_find(void);
extern bool nvm_file_take_name(void);
extern void nvm_file_note_place(void);
extern bool nvm_file_lock_existing(void);
extern bool nvm_file_open(bool known, bool *created);
extern void nvm_file_unlock(void);
extern bool nvm_file_fill_holes(uint64 size);
extern bool nvm_file_extend(uint64 oldsize, uint64 newsize, const char **what);
extern void nvm_file_identity(int fd, uint64 *device, uint64 *inode,
							  uint64 *birth, uint64 *size);

/* pool_header.c */
extern void nvm_header_init(NvmPoolHeader *h, uint64 system_identifier);
extern bool nvm_header_read(NvmPoolHeader *h, bool *copy_damaged);
extern bool nvm_header_peek(NvmPoolHeader *h);
extern bool nvm_header_acceptable(const NvmPoolHeader *h,
								  const ControlFileData *control);
extern void nvm_header_write(NvmPoolHeader *h);

/* pool_incarnation.c */
#define NVM_SEVERED_HINT \
	"Restore the pool and the data directory together from a backup taken while the server was stopped. " \
	"To give up the rows of all nvm tables and start with an empty pool, call nvm.reset_pool() and restart the server."
extern bool nvm_control_read(ControlFileData *control);
extern bool nvm_incarnation_read(NvmIncarnationRecord *rec, bool *exists);
extern bool nvm_incarnation_matches(const NvmIncarnationRecord *rec, bool exists,
									const NvmPoolHeader *h);
extern bool nvm_incarnation_bound(NvmIncarnationRecord *rec);
extern void nvm_incarnation_sever(NvmIncarnationRecord *rec, uint32 why);
extern bool nvm_incarnation_note_armed(void);
extern void nvm_incarnation_last_place(char *directory);
extern void nvm_incarnation_note_place(const char *directory);
extern bool nvm_incarnation_same_data(const NvmPoolHeader *h);
extern bool nvm_incarnation_sync(void);
extern bool nvm_incarnation_raise(NvmPoolHeader *h, const NvmIncarnationRecord *rec,
								  const ControlFileData *control);

/* pool_reset.c */

/* a pool was given up by this start, in the postmaster */
extern bool nvm_reset_was_done;

extern bool nvm_reset_before_open(void);
extern bool nvm_reset_after_refusal(void);

/* pool_witness.c */
typedef enum NvmWitness
{
	NVM_WITNESS_NO_RECOVERY,
	NVM_WITNESS_UNKNOWN,
	NVM_WITNESS_DISTURBED		/* it is not even known that there was none */
} NvmWitness;

extern NvmWitness nvm_witness_asked(const ControlFileData *control);
extern bool nvm_witness_was_emptied(void);

/* pool_open.c */
extern LWLock *nvm_redo_lane_lock(int lane);

/* pool_refuse.c; returns false, so that callers can "return nvm_refuse(...)" */
extern bool nvm_refuse(int sqlerrcode, const char *hint, const char *fmt,...) pg_attribute_printf(3, 4);

/* pool_region.c */
extern uint64 nvm_region_address_space(void);
extern void nvm_region_init(void);
extern bool nvm_region_find(void);
extern bool nvm_region_open(const NvmPoolHeader *h);
extern void nvm_region_unbind(void);
extern void nvm_region_give_up(void);

/* pool_contents.c: whose contents the volatile region has */

/*
 * Why they are not what the pool with this header goes on with, or NULL: a clause that
 * follows a colon.  begin: the region is empty, and is going to be that pool's.
 */
extern const char *nvm_contents_problem(const NvmPoolHeader *h);
extern uint64 nvm_contents_size(void);
extern void nvm_contents_begin(const NvmPoolHeader *h);
extern void nvm_contents_announce(uint64 current, uint64 nonce);
extern void nvm_contents_bind(const NvmPoolHeader *h);
extern void nvm_contents_unbind(void);

/*
 * pool_dir.c: n blocks from blk on, which lie in one extent, are to be made ready.  Returns
 * how many of them may be, one at least.  Caller holds the extend lock.
 */
extern uint32 nvm_dir_raise_blocks(NvmRelState *rel, uint32 blk, uint32 n);

/* by how much to change a number of blocks this time, at block blk; at least 1 */
extern uint32 nvm_dir_next_raise(NvmRelState *rel, uint32 blk);

/* pool_reserve.c */
extern uint64 nvm_region_used_units(const NvmRegion *region);
extern void nvm_region_require_room(const NvmRegion *region, uint64 nunits);
extern void nvm_region_note_taken(NvmRegion *region, uint64 nunits);
extern uint64 nvm_region_may_have_chunks(const NvmRegion *region);
extern void nvm_region_is_full(const NvmRegion *region, uint64 nunits) __attribute__((noreturn));

/* pool_backing.c: what the volatile region lies in */
typedef enum NvmBackingResult
{
	NVM_BACKING_OPEN,
	NVM_BACKING_NONE,			/* errno says why */
	NVM_BACKING_REFUSED			/* the pool was refused */
} NvmBackingResult;

extern int	nvm_backing_fd;
extern NvmBackingResult nvm_backing_open(uint64 max_size);
extern void nvm_backing_close(void);
extern void nvm_backing_unlock(void);
extern bool nvm_backing_refuse_memory(void);
extern void nvm_backing_request_companion(Size size, Size fixed, uint32 layout);

/* NULL if there is no backing */
extern NvmMemoryHeader *nvm_backing_header(void);
extern bool nvm_backing_is_file(void);
extern bool nvm_backing_is_new(void);	/* a file that had nothing */
extern const char *nvm_backing_path(void);
extern uint64 nvm_backing_lead(void);
extern uint64 nvm_backing_fixed(void);
extern Size nvm_backing_companion_size(void);
extern uint32 nvm_backing_companion_layout(void);
extern bool nvm_backing_reserve(uint64 offset, uint64 size);
extern bool nvm_backing_empty(void);

/* pool_memory.c */
extern char *nvm_memory_directory;
extern int	nvm_huge_pages;		/* HugePagesType */
extern uint64 nvm_number_in(const char *path);

static inline NvmRegionId
nvm_region_of_dir(const NvmDirEntry *entry)
{
	return (entry->flags & NVM_DIR_VOLATILE) != 0 ? NVM_REGION_VOLATILE : NVM_REGION_POOL;
}

/* what to do about damage that a start finds in a region */
extern const char *nvm_region_restore_hint(const NvmRegion *region);

/* pool_extent.c */
extern NvmImage nvm_region_image(const NvmRegion *region);
extern uint64 *nvm_map_word(uint64 unit);
extern uint64 nvm_extent_alloc(NvmRegion *region, uint32 kind, uint32 owner,
							   uint32 arg, uint32 nunits);
extern void nvm_extent_release(uint64 unit, uint32 nunits, const char *what);
extern void nvm_relmap_put(NvmRelState *rel, uint32 index, uint32 unit);
extern bool nvm_relmap_make(NvmRelState *rel, uint32 index);
extern void nvm_bits_set(uint64 *bits, uint64 first, uint64 n);
extern void nvm_bits_clear(uint64 *bits, uint64 first, uint64 n);

/* pool_extent_scan.c */
extern bool nvm_extent_scan(uint64 *nowned);
extern void nvm_extent_note_new(void);

/* pool_redo.c */
extern bool nvm_redo_scan(void);
extern void nvm_redo_flush(void);
extern void nvm_redo_replay(void);
extern void nvm_redo_verify(NvmCheckEmit emit, void *arg);

/* pool_dir.c */

/* the hash from key to entry id; dir_lock held exclusively, or at the start */
extern void nvm_dir_hash_insert(uint32 id);
extern void nvm_dir_hash_remove(uint32 id);
extern void nvm_dir_count_found(void);
extern void nvm_dir_count(uint32 id, uint32 nextents);

/* pool_storage.c */

/* the layer that uses storage id, which must exist; never NULL */
extern const NvmRelUser *nvm_rel_user(uint32 id);

/* pool_dir_start.c */
extern bool nvm_dir_scan(uint64 nowned);

/* what a start makes of UNLOGGED storages */
typedef enum NvmDirReset
{
	NVM_DIR_RESET_NONE,			/* they are intact */
	NVM_DIR_RESET_EMPTY,		/* PostgreSQL empties its part */
	NVM_DIR_RESET_DOUBTFUL,		/* PostgreSQL has emptied its part, or not */
	NVM_DIR_RESET_ALL			/* its part may be anything */
} NvmDirReset;

extern void nvm_dir_reset_after_start(NvmDirReset reset);

#endif							/* POOL_IMPL_H */
