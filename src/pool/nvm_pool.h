/*-------------------------------------------------------------------------
 *
 * nvm_pool.h
 *	  The pool: file, mapping, extents, directory, DRAM region.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_POOL_H
#define NVM_POOL_H

#include "postgres.h"

#include "media/media_block.h"
#include "media/media_pool.h"
#include "pool/nvm_region.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "verify/nvm_verify.h"

/* settings */
extern char *nvm_pool_directory;
extern int	nvm_pool_max_size;	/* MB */

extern void nvm_pool_define_settings(void);

typedef enum NvmPoolStatus
{
	NVM_POOL_CLOSED,			/* library not preloaded, or not yet opened */
	NVM_POOL_OPEN,
	NVM_POOL_REFUSED			/* reason in NvmPoolShared */
} NvmPoolStatus;

/*
 * DRAM state of the pool, in PostgreSQL's shared memory.  Set by the
 * postmaster in shmem_startup, under no lock; from then on protected as noted.
 */
typedef struct NvmPoolShared
{
	NvmPoolStatus status;
	char		refusal[512];	/* why, when REFUSED: primary message */
	char		refusal_hint[512 + MAXPGPATH];	/* what to do */
	char		last_directory[NVM_PLACE_LENGTH];	/* of the open before this
													 * one; or "" */
	int			refusal_errcode;

	uint32		incarnation;	/* constant while the server runs */
	uint32		ncrashed;		/* copy of the header's list */
	uint32		crashed_floor;
	uint32		crashed[NVM_CRASHED_LIST];
	bool		was_clean;		/* the last close was clean */
	bool		data_clean;		/* pg_control said so: shut down cleanly. With
								 * !was_clean: killed after the shutdown
								 * checkpoint, or run without the library
								 * since */
	uint64		last_nonce;		/* of the run before this one, if both were
								 * closed cleanly, and no recovery has emptied
								 * UNLOGGED relations since; else 0 */
	uint64		found_at;		/* if so, where the start found PostgreSQL's
								 * checkpoint; else 0 */
	bool		witness_armed;	/* and noted, see nvm_witness_arm; wbl_lock */
	bool		incarnation_lost;	/* a sync of the incarnation file has
									 * failed, and no later one tells */
	bool		was_bypassed;	/* the server is known to have run without it
								 * since */
	bool		log_was_bypassed;	/* the same, behind a crash after which
									 * the log has not asked pg_xact */
	bool		was_standby;	/* why it is refused */
	bool		log_is_lost;	/* likewise, and nvm.reset_log() answers that */
	bool		medium_is_volatile;
	uint8		uuid[16];		/* of the open pool */
	uint64		open_usec;		/* what opening took: map, validate, scan */
	pg_atomic_uint64 xid_promise;	/* the header's; raised under header_lock */
	bool		promise_kept;	/* the next xid has been moved up to it */
	uint32		nlock_lists;	/* extents of row locks that the open found */

	LWLock	   *header_lock;	/* header writes */
	LWLock	   *extent_lock;	/* extent map, free bitmap, growth */
	LWLock	   *dir_lock;		/* directory entries and their hash */

	/* protected by dir_lock */
	uint32		ndirs;			/* ids handed out: 1 .. ndirs */

	/*
	 * There has been a storage with NVM_DIR_BTREE since the start.  Set under
	 * dir_lock.  Who has locked the table of such an index sees it without.
	 */
	bool		has_btree;

	NvmRegion	region[NVM_NUM_REGIONS];
} NvmPoolShared;

extern NvmPoolShared *NvmPool;

/* the named tranche that startup.c requests for nvm_pool_num_lwlocks() locks */
#define NVM_POOL_TRANCHE	"nvm_pool"

/* shared memory and start (postmaster) */
extern Size nvm_pool_shmem_size(void);
extern int	nvm_pool_num_lwlocks(void);
extern void nvm_pool_shmem_startup(void);	/* attaches, and opens the pool in
											 * the postmaster; never throws
											 * for a bad pool: sets REFUSED
											 * and logs */
extern void nvm_pool_close_clean(void); /* at the postmaster's exit, which the
										 * pool arranges itself: see README */

/*
 * In the postmaster, before anybody uses the pool: may earlier incarnations
 * with the same low 16 bits have left run-time marks in it?  A caller that has
 * removed them, durably, says so.  README.md, "Marks of a run".
 */
extern bool nvm_pool_has_old_marks(void);
extern void nvm_pool_old_marks_gone(void);

/*
 * Refuse the pool from now on.  For layers above that find their part of it
 * damaged.  In the postmaster, or before another process can have used the
 * pool.  Logs; msg and hint are copied.
 */
extern void nvm_pool_refuse(int sqlerrcode, const char *msg, const char *hint);

/*
 * Ask for a new, empty pool at the next start.  The request is durable at
 * once, whatever becomes of the transaction.  Without force there are two
 * conditions: it is an ERROR if the pool is open, or could be opened once a
 * setting or a permission is corrected; and the pool is given up only if it
 * cannot be opened at that start.
 */
extern void nvm_pool_request_reset(bool force);

/*
 * What a session has asked the next start for.  A later request takes the place of
 * one before it.
 */
typedef enum NvmResetRequest
{
	NVM_RESET_NONE,
	NVM_RESET_LOST,				/* a new pool, if this one cannot be opened */
	NVM_RESET_FORCE,			/* a new pool */
	NVM_RESET_LOG,				/* to do without the log, if it is lost */
	NVM_RESET_ROWS				/* to give up what the log brings back */
} NvmResetRequest;

/*
 * Leave a request, durably; in a session.  And in the postmaster: what it is, and that
 * it is over, which is false, with a line in the log, if that cannot be noted.
 */
extern void nvm_reset_request(NvmResetRequest request);
extern NvmResetRequest nvm_reset_requested(void);
extern bool nvm_reset_forget(void);

/*
 * Free all storages that the log brings back.  Each access to their tables says from now
 * on that the rows are lost.  Returns how many tables there were.  In the postmaster.
 */
extern uint32 nvm_dir_reclaim_logged(void);

/*
 * In the postmaster, after all layers have looked at the pool.  Carries out or
 * forgets a request for a new pool, and notes whether the server runs without its pool.  True
 * if there is a new pool, which the layers have not seen.
 */
extern bool nvm_pool_settle_reset(void);

/*
 * Note, or take back, that the server runs without its pool.  False, with a
 * line in the log, if that cannot be written.
 */
extern bool nvm_incarnation_note_bypass(bool on);

/*
 * The log of the volatile region has nothing in doubt any more: take back what says that
 * this could not be decided.  By one process, when the pool is resolved.
 */
extern bool nvm_incarnation_log_is_decided(void);

/* sizes of the pool's region in units; lock-free, approximate */
extern void nvm_pool_sizes(uint64 *total, uint64 *free, uint64 *nchunks);

/* the nonce of this run: what it leaves is for the run that finds it in the header */
extern uint64 nvm_pool_nonce(void);

/*
 * In the postmaster's exit: it found all closed cleanly, and no transaction has come since.
 * PostgreSQL has not even begun to run.
 */
extern bool nvm_pool_is_as_found(void);

/* with this exit code: all that is to be kept may be, if pg_control says the same */
extern bool nvm_pool_may_close(int code);

/* ERROR with reason, detail and hint unless the pool is open */
extern void nvm_pool_require_slow(void) __attribute__((noreturn));

static inline void
nvm_pool_require(void)
{
	if (unlikely(NvmPool == NULL || NvmPool->status != NVM_POOL_OPEN))
		nvm_pool_require_slow();
}

/*
 * Make the header say that no full transaction id >= wanted is in a row,
 * durably, unless it promises more than `xid` already.  Returns what it says.
 * Takes header_lock.  Cannot fail.
 */
extern uint64 nvm_pool_promise_xids(uint64 xid, uint64 wanted);

/*
 * The generation of the log that the pool was last used with, or 0, and the last file
 * of it; and new ones, durably.  Takes header_lock.  Cannot fail.
 */
extern uint32 nvm_pool_log_generation(void);
extern uint32 nvm_pool_log_file(void);
extern void nvm_pool_note_log(uint32 generation, uint32 file);

/* did incarnation `inc` end in a crash (or is too old to tell)? */
extern bool nvm_incarnation_crashed(uint32 inc);
extern uint32 nvm_incarnation_last_clean(void);

/*
 * DRAM region: a memfd mapped by the postmaster before it forks, zeroed at
 * each (re)initialisation.  Carved at startup into the arrays below.
 */
typedef struct NvmRelState NvmRelState;

extern NvmRelState *nvm_relstates;	/* [NVM_MAX_DIRS], sparse */

/*
 * Run-time state of one storage, indexed by directory id.  Lives in the DRAM
 * region; zero means "no such storage".
 */
#define NVM_RELMAP_SEGS		24
#define NVM_ALLVISIBLE_SEGS		18
#define NVM_ALLVISIBLE_BLOCKS	32768	/* of the first segment */
#define NVM_ALLVISIBLE_SIZE(k)	((Size) NVM_ALLVISIBLE_BLOCKS / 4 << (k))	/* bytes */

#define NVM_DIRSTATE_LIVE		0
#define NVM_DIRSTATE_RECLAIM	1	/* nvm_dir_reclaim is at work */

/*
 * Bytes for the state of a storage that row/ (nvm_row_state.h) and btree/
 * (nvm_btree_state.h) keep.  Theirs alone; 0 when the storage is made.
 */
#define NVM_REL_ROW_SIZE		240
#define NVM_REL_INDEX_SIZE		56

struct NvmRelState
{
	pg_atomic_uint32 nblocks;	/* blocks handed out; grows under extend_lock */
	uint32		had;			/* extend_lock; of a table of the volatile
								 * region: blocks below it that are made ready
								 * are SUSPECT */
	uint32		raise;			/* extend_lock; of such a table: by how much
								 * its number of blocks was raised last, in
								 * this run */
	pg_atomic_uint64 clean;		/* changes under extend_lock; its clean run,
								 * NVM_CLEAN_RUN, 0: none */
	uint32		nready;			/* extend_lock; those below it that are not
								 * handed out yet are ready */
	uint32		dir;			/* own id; 0 = unused */
	pg_atomic_uint32 nextents;	/* extents in the map; grows under extend_lock */
	pg_atomic_uint32 opened;	/* nblocks was trimmed, see nvm_rel_open */
	pg_atomic_uint32 nlarge;	/* NVM_EXT_LARGE extents it owns */
	pg_atomic_uint64 large_units;	/* and their units */
	uint32		dir_next;		/* next id in the hash chain; dir_lock */
	uint32		dir_state;		/* NVM_DIRSTATE_*; dir_lock */
	NvmRegionId region;			/* as the directory entry's flags say */

	/*
	 * physical unit of each extent; segment k holds 64 << k of them.  Set
	 * once, under extend_lock; read without lock below nextents
	 */
	uint32	   *map[NVM_RELMAP_SEGS];

	uint64		row[NVM_REL_ROW_SIZE / sizeof(uint64)];
	uint64		index[NVM_REL_INDEX_SIZE / sizeof(uint64)];

	/*
	 * pool/nvm_allvisible.h: two bits per block; segment k covers
	 * NVM_ALLVISIBLE_BLOCKS << k of them
	 */
	uint64	   *allvisible[NVM_ALLVISIBLE_SEGS];
	pg_atomic_uint64 allvisible_after;	/* full xid; while a snapshot is as
										 * old no bit is set:
										 * storage/allvisible.c */
};

/*
 * Callbacks of row/ and btree/ for their part of NvmRelState, registered by
 * kind in _PG_init.  A callback is NULL where there is nothing to do; none may
 * ERROR.
 */
typedef struct NvmRelUser
{
	/* the storage is being emptied; nobody else uses it */
	void		(*emptied) (NvmRelState *rel);

	/* it is going: free memory; extent_lock is held, in a critical section */
	void		(*forgotten) (NvmRelState *rel);

	/* first use since the start of one that has blocks; extend lock held */
	void		(*opened) (NvmRelState *rel, uint32 nblocks);

	/*
	 * The start is going to empty the storage, though it is needed.  It has
	 * to be rebuilt, because that is its kind, or because it was relaxed.
	 */
	void		(*lost_by_start) (NvmRelState *rel, bool relaxed);
} NvmRelUser;

extern void nvm_rel_register_user(uint32 kind, const NvmRelUser *user);

static inline uint32
nvm_relmap_get(NvmRelState *rel, uint32 extent)
{
	uint32		q = extent / 64 + 1;
	uint32		k = 31 - __builtin_clz(q);

	return rel->map[k][extent - 64 * ((1u << k) - 1)];
}

/*
 * Physical address of a block.  Caller guarantees blkno < nblocks.
 */
static inline NvmBlock *
nvm_block(NvmRelState *rel, uint32 blkno)
{
	uint32		first;
	uint32		ext = nvm_extent_of_block(blkno, &first);

	return (NvmBlock *) nvm_unit_address((uint64) nvm_relmap_get(rel, ext) + (blkno - first));
}

static inline NvmVersion *
nvm_cell(NvmRelState *rel, uint32 blkno, uint32 cell)
{
	return (NvmVersion *) ((char *) nvm_block(rel, blkno) + cell * NVM_CELL_SIZE);
}

/* the region that a storage's extents are taken from */
static inline NvmRegion *
nvm_rel_region(const NvmRelState *rel)
{
	return &nvm_regions[rel->region];
}

/*
 * Extents.  All may ERROR with ERRCODE_DISK_FULL, detail and hint; none leaves
 * a half-done allocation, in memory or on media.
 *
 * nvm_rel_add_extent: append the next extent of a relation, zeroed and durably
 * owned when it returns; caller holds the relation's extend lock
 * (nvm_rel_extend_lock).  Does not change nblocks.
 */
extern void nvm_rel_add_extent(NvmRelState *rel);
extern LWLock *nvm_rel_extend_lock(NvmRelState *rel);

/*
 * Makes blocks blk .. blk + n - 1 of a storage ready, durably if the storage
 * is durable.  The blocks are nobody's yet, and their contents are as
 * nvm_storage_extend says.  May be called in a critical section.
 */
typedef void (*NvmReadyCallback) (NvmRelState *rel, uint32 blk, uint32 n, void *arg);

/* blocks that are made ready at a time, at most; and where a fence is a sync */
#define NVM_READY_BLOCKS		32
#define NVM_READY_BLOCKS_MSYNC	1024

/*
 * One block more for a storage: adds an extent if need be, raises nblocks.
 * Returns its number.  With `ready`, that callback has made the block ready,
 * mostly along with others in an earlier call.  Without, its contents may be
 * zero, those of a block that was made ready, or those of a block that a crash
 * cut off: the caller writes it as a whole.  A crash forgets the blocks behind
 * the last one whose magic number is durable.  It leaves blocks before that
 * one as they are.  Takes the extend lock, under which it calls `ready`.  May
 * ERROR.
 */
extern uint32 nvm_storage_extend(NvmRelState *rel, NvmReadyCallback ready, void *arg);

/*
 * Error context callback for callers of these functions: says which relation
 * there was no room for.  arg is the Relation.
 */
extern void nvm_extend_context(void *arg);

/* a run of units for a large value; returns pool offset, contents undefined
 * except that the first NvmLargeHeader is zero.  Durably owned on return. */
extern uint64 nvm_large_alloc(uint32 dir, uint32 nunits);
extern void nvm_large_free(uint64 offset);	/* fenced; cannot fail */

/*
 * Extents of row locks of the transaction in a commit slot.  alloc: first
 * unit, durably owned, its first line zero; may ERROR.  units: size of the
 * extent that begins at this unit, 0 if there is none of this slot.  free:
 * durable on return; cannot fail.
 */
extern uint32 nvm_locks_alloc(uint32 slot, uint32 nunits);
extern uint32 nvm_locks_units(uint32 unit, uint32 slot);
extern void nvm_locks_free(uint32 unit);

/* call fn for each extent of kind `kind` (0 = all) owned by dir (0 = all) */
typedef void (*NvmExtentCallback) (uint64 unit, uint64 word, void *arg);
extern void nvm_extents_walk(uint32 kind, uint32 dir, NvmExtentCallback fn, void *arg);

/* units that a storage owns: of table extents, without large values */
extern uint64 nvm_rel_units(NvmRelState *rel);

/* bytes that it owns in all, for people; takes no lock */
extern uint64 nvm_rel_bytes(NvmRelState *rel);

/*
 * Memory of the DRAM region, zeroed; size at most 1 GB.  Takes extent_lock.
 * nvm_dram_alloc may ERROR (out of memory), nvm_dram_try_alloc returns NULL.
 * Segments hung on NvmRelState are given back by nvm_dir_reclaim.
 */
extern void *nvm_dram_alloc(Size size);
extern void *nvm_dram_try_alloc(Size size);
extern void nvm_dram_free(void *ptr, Size size);
extern void nvm_dram_free_locked(void *ptr, Size size); /* extent_lock is held */

/*
 * Directory.  Lookups and changes take dir_lock themselves.
 */
typedef struct NvmStorageKey
{
	Oid			database;
	Oid			tablespace;
	uint64		relnumber;
} NvmStorageKey;

extern NvmDirEntry *nvm_dir_entry(uint32 id);	/* address, id in 1..ndirs */

/* the form in which a storage is made: constant for its life */
typedef struct NvmStorageForm
{
	uint32		kind;			/* NVM_DIR_KIND_* */
	uint32		flags;			/* NVM_DIR_* */
	uint32		temp_owner;
	Oid			relation;		/* of an index, or 0 */
} NvmStorageForm;

/* the creation id of the storage that is made next */
extern uint64 nvm_dir_next_creation(void);

/*
 * Make an entry with begin stamp `stamp`; durable on return.  An older entry
 * of the same key that is ended, or that a lost transaction made, does not
 * disturb.  Sets up the NvmRelState.  Returns the id.
 */
extern uint32 nvm_dir_create(const NvmStorageKey *key, const NvmStorageForm *form,
							 uint64 stamp);

/*
 * The newest entry of key that nobody has reclaimed, or 0.  An undecided
 * transaction may have made or ended it; the caller judges that.
 */
extern uint32 nvm_dir_lookup(const NvmStorageKey *key);

/*
 * Call fn for each entry in use, no lock held: fn may reclaim it.
 * For recovery, the collector and DROP DATABASE.
 */
typedef void (*NvmDirCallback) (uint32 id, NvmDirEntry *entry, void *arg);
extern void nvm_dir_walk(NvmDirCallback fn, void *arg);

/* store the end stamp, durable on return; undo of that */
extern void nvm_dir_set_end(uint32 id, uint64 stamp);
extern void nvm_dir_clear_end(uint32 id, uint64 stamp);

/* store NvmDirEntry.relaxed, flushed */
extern void nvm_dir_set_relaxed(uint32 id, bool relaxed);

/*
 * From now on a table of the volatile region counts its extents, those that it has and
 * those to come: durably, before an index that lies in files has an entry.  Nobody may
 * free the storage meanwhile.
 */
extern void nvm_dir_begin_count(NvmRelState *rel);

/*
 * The table `to`, which is empty, is to be a copy of `from`: entries that lead to the one lead
 * to the other, whether there are rows or not.
 */
extern void nvm_dir_copy_count(NvmRelState *from, NvmRelState *to);

/*
 * Up to which block an entry of an index in files may lead; 0 if there is no such index.
 */
extern uint32 nvm_dir_blocks_had(uint32 id);

/*
 * No entry of an index leads behind the last block any more: the next rebuild needs no block
 * behind it.  Durable on return.  Takes the extend lock.
 */
extern void nvm_dir_lower_count(NvmRelState *rel);

/*
 * The clean run of such a table: blocks to which no entry of an index leads, after any loss
 * of the region.  The rebuild does not make them SUSPECT (vlog/README.md, "The clean run").
 * All take the extend lock.
 *
 * nvm_clean_take: block blk leaves the run, durably, before a cell of it is handed out.
 * nvm_clean_offer: in memory, these blocks are the run from now on.  The caller then looks
 * at each under its allocation lock: it is empty, and index entries to it are durably gone.
 * If one is not, nvm_clean_take.  nvm_clean_settle: what is left of it is the run, durably.
 * Between the two a crash leaves no run.  One process at a time, VACUUM.
 * nvm_clean_found: the run that the directory has, in the postmaster.
 */
extern void nvm_clean_take(NvmRelState *rel, uint32 blk);
extern void nvm_clean_offer(NvmRelState *rel, uint32 first, uint32 end);
extern void nvm_clean_settle(NvmRelState *rel);
extern void nvm_clean_found(NvmRelState *rel);

/* the run that the directory has now; without the extend lock, a hint */
extern uint64 nvm_clean_durable(uint32 id);

/* does the table have a clean run, or can VACUUM find it one? */
extern bool nvm_dir_counts_blocks(uint32 id);

static inline bool
nvm_clean_has(NvmRelState *rel, uint32 blk)
{
	uint64		run = pg_atomic_read_u64(&rel->clean);

	return unlikely(blk < NVM_CLEAN_END(run)) && blk >= NVM_CLEAN_FIRST(run);
}

/*
 * The index is rebuilt: as many extents as it has are what the next rebuild will need.
 */
extern void nvm_dir_count_rebuilt(uint32 id);

/*
 * Units that an index of the volatile region had, and has not: those that its rebuild will
 * need, about.
 */
extern uint64 nvm_dir_claim_units(uint32 id);

/*
 * Free everything the entry owns, then the entry.  Idempotent across crashes:
 * extents go first, the entry last.  Cannot ERROR.  Nobody may be able to
 * reach the storage any more.
 */
extern void nvm_dir_reclaim(uint32 id);

/* remove all extents of a storage but keep the entry (reset of UNLOGGED) */
extern void nvm_dir_empty(uint32 id);

/*
 * Before the first use of a storage after a start: trims nblocks to the last
 * block that was ever initialised.  Returns the state.
 */
extern NvmRelState *nvm_rel_open(uint32 dir);

/*
 * From here on a recovery, with or without the pool, will leave a trace, and
 * the next open knows that there was nothing before it.  Called once in a run,
 * after everything in doubt is settled and before anybody writes nvm data.
 * The caller holds wbl_lock exclusively.  Logs what goes wrong.
 */
extern void nvm_witness_arm(void);

/* structural check of header, extent map and directory; emit() per finding */
extern void nvm_pool_verify(NvmCheckEmit emit, void *arg);

#endif							/* NVM_POOL_H */
