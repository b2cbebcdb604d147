/*-------------------------------------------------------------------------
 *
 * nvm_btree.h
 *	  The index access method: what its files share.
 *
 * README.md of this folder has the structure and the protocols.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_BTREE_H
#define NVM_BTREE_H

#include "postgres.h"

#include "access/amapi.h"
#include "access/genam.h"
#include "access/itup.h"
#include "access/nbtree.h"
#include "access/sdir.h"
#include "btree/nvm_btree_state.h"
#include "media/media_index.h"
#include "nodes/execnodes.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "pool/nvm_redo.h"
#include "utils/rel.h"

/* ---- relation (btree_relation.c) ---- */

typedef enum NvmIndexPersistence
{
	NVM_INDEX_FULL,				/* the whole tree outlives a restart */
	NVM_INDEX_LEAVES,			/* inner pages are rebuilt from the leaves */
	NVM_INDEX_NOTHING			/* rebuilt from the table */
} NvmIndexPersistence;

/* how a key column is compared without calling its support function */
typedef enum NvmIndexFast
{
	NVM_FAST_NOT,
	NVM_FAST_INT2,
	NVM_FAST_INT4,
	NVM_FAST_INT8
} NvmIndexFast;

/* roots of an index that says btree: in its file, and in our NvmIndexCache */
#define NVM_BTREE_FAR_ROOT		((BlockNumber) 131070)
#define NVM_BTREE_CACHE_ROOT	((BlockNumber) 131069)

/*
 * State of an index's storage, in rd_amcache.  PostgreSQL frees it at any
 * invalidation, so nobody keeps the pointer across a call that may process
 * one.  `state` and `meta` stay valid as long as the index is locked.
 *
 * Of an index that says btree the planner calls nbtree, which looks at what is
 * there, or puts its own meta page there.  So ours begins as that does, and is told
 * by a root that no meta page has.
 */
typedef struct NvmIndexCache
{
	BTMetaPageData base;
	NvmRelState *state;
	NvmIndexMeta *meta;
	uint32		dir;
	NvmIndexPersistence persistence;
	bool		rebuilt;		/* the start has emptied it */
	bool		allequalimage;
	bool		ascending;		/* of a private copy: entries come in order */
	uint32		uses;			/* scans, where they are counted */
	uint8		fast[INDEX_MAX_KEYS];	/* NvmIndexFast */
} NvmIndexCache;

/* ERROR if the pool is not available, or has no storage for the index */
extern NvmIndexCache *nvm_index_cache_slow(Relation index);

static inline NvmIndexCache *
nvm_index_cache(Relation index)
{
	NvmIndexCache *cache = (NvmIndexCache *) index->rd_amcache;

	if (likely(cache != NULL && cache->base.btm_root == NVM_BTREE_CACHE_ROOT))
		return cache;
	return nvm_index_cache_slow(index);
}

/* ---- storages (btree_storage.c) ---- */

/*
 * For ambuild.  Give index, whose file number is new, a storage of the current
 * transaction (UNLOGGED, TEMP as the relation is), and end the one that it had
 * before.  Block 0 is a durable meta page with these NVM_INDEX_META_* flags
 * and root 0, so that nvm_index_cache() works from then on.  Drops rd_amcache.
 * ERROR if the table is not ours.
 */
extern void nvm_index_make_storage(Relation index, uint32 meta_flags);

/*
 * Make the meta page of a storage without blocks, which a crash leaves of an
 * UNLOGGED index.  The process that uses the storage first does that.  If the
 * page is there by now nothing is done.
 */
extern uint32 nvm_index_meta_flags(Relation index);
extern NvmIndexMeta *nvm_index_make_meta(NvmRelState *state, uint32 flags);

/* CREATE DATABASE: fill storage `to` with the index in storage `from` */
extern void nvm_index_copy_storage(uint32 from, uint32 to);

/* check word of a meta page as it stands in memory (btree_page.c) */
extern uint32 nvm_index_meta_check(const NvmIndexMeta *meta);

/* the same of a page: magic, dir, blkno, uuid */
extern uint32 nvm_index_page_check(const NvmIndexPage *page);

#define NVM_BTREE_NAME			"nvm_btree"

/*
 * Is it an index of ours?  One that says btree has our routine after that
 * (btree_identity.c).  The caller has it open.
 */
extern bool nvm_relation_is_btree(Relation index);

/* the same by its number */
extern bool nvm_index_is_ours(Oid indexid);

/* ---- pg_class.relpages (btree_relpages.c) ---- */

extern Relation nvm_open_unlocked(Oid relid, bool *locked);
extern void nvm_index_note_relpages(Oid relid);
extern void nvm_index_settle_relpages(void);
extern void nvm_index_register_relpages(void);

/* ---- options (btree_am.c) ---- */

typedef struct NvmIndexOptions
{
	BTOptions	base;			/* also what an index has that says btree */
	int			persistence;	/* NvmIndexPersistence */
} NvmIndexOptions;

static inline int
nvm_index_fillfactor(Relation index)
{
	NvmIndexOptions *options = (NvmIndexOptions *) index->rd_options;

	return options ? options->base.fillfactor : BTREE_DEFAULT_FILLFACTOR;
}

/* are equal keys to be merged, where the meta page says that they can be? */
static inline bool
nvm_index_deduplicates(Relation index)
{
	NvmIndexOptions *options = (NvmIndexOptions *) index->rd_options;

	return options ? options->base.deduplicate_items : true;
}

/* what the index was defined with; its storage may still be of another kind */
static inline NvmIndexPersistence
nvm_index_option_persistence(Relation index)
{
	NvmIndexOptions *options = (NvmIndexOptions *) index->rd_options;

	return options && VARSIZE(options) >= sizeof(NvmIndexOptions) ?
		(NvmIndexPersistence) options->persistence : NVM_INDEX_FULL;
}

/* in _PG_init: the options must be known before ALTER INDEX chooses its lock */
extern void nvm_btree_register(void);

/* ---- operator classes (btree_opclass.c) ---- */

/* before an index may be made: give nvm_btree the classes that it lacks */
extern void nvm_btree_complete_opclasses(void);

/*
 * Our operator class that stands for one of btree, or InvalidOid.  The name of
 * ours as in a statement.  And back: the one of btree for which ours stands;
 * ERROR if there is none.
 */
extern Oid	nvm_btree_opclass_image(Oid model);
extern List *nvm_btree_opclass_name(Oid image);
extern Oid	nvm_btree_opclass_model(Oid image);

/*
 * CREATE INDEX names operator classes of btree, and so does a statement made of an index of
 * ours.  The one of ours that stands for such a class may have another name or schema:
 * put that into the statement, when the classes are made.
 */
struct IndexStmt;
extern void nvm_btree_name_opclasses(struct IndexStmt *stmt);


/* ---- start (btree_persist.c, btree_rebuild.c, btree_rebuild_worker.c) ---- */

extern Size nvm_btree_shmem_size(void);
extern void nvm_index_forget_marks(void *block);	/* see storage/old_marks.c */
extern void nvm_btree_shmem_startup(void);	/* after nvm_pool_shmem_startup */
extern void nvm_btree_define_settings(void);
extern void nvm_btree_register_settle(void);	/* in _PG_init */
extern void nvm_btree_register_workers(void);

/* ---- pages (btree_page.c) ---- */

static inline NvmIndexPage *
nvm_index_page(NvmRelState *state, uint32 blkno)
{
	return (NvmIndexPage *) nvm_block(state, blkno);
}

/*
 * NvmIndexPage.lock: low 16 bits of the incarnation, version, lock bit.  A
 * version is the whole word; that of another incarnation is nobody's lock.
 */
#define NVM_INDEX_LOCKED		UINT64CONST(1)

static inline uint64
nvm_index_lock_inc(void)
{
	return (uint64) (uint16) NvmPool->incarnation << 48;
}

static inline bool
nvm_index_word_locked(uint64 word)
{
	return (word & NVM_INDEX_LOCKED) != 0 &&
		(word & UINT64CONST(0xFFFF000000000000)) == nvm_index_lock_inc();
}

/*
 * A page's version.  begin waits for the process that holds the lock, and may
 * process interrupts.  What is read between begin and a validate that is true
 * was not changed meanwhile, DEAD hints aside.
 */
extern uint64 nvm_index_begin_slow(NvmIndexPage *page);

static inline uint64
nvm_index_begin(NvmIndexPage *page)
{
	uint64		word = nvm_load(&page->lock);

	if (unlikely(nvm_index_word_locked(word)))
		return nvm_index_begin_slow(page);
	return word;
}

static inline bool
nvm_index_validate(NvmIndexPage *page, uint64 version)
{
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return likely(__atomic_load_n(&page->lock, __ATOMIC_RELAXED) == version);
}

/*
 * Lock from a version; false if it is another one by now.  From lock to unlock
 * is a critical section: nothing may be called that can ERROR, allocate or
 * wait for an LWLock. unlock returns the version: raised if `changed`,
 * otherwise what it was.
 */
extern bool nvm_index_lock(NvmIndexPage *page, uint64 version);
extern uint64 nvm_index_unlock(NvmIndexPage *page, bool changed);

/* lock whatever the version is, waiting: for the second of two pages */
extern void nvm_index_lock_wait(NvmIndexPage *page);

/*
 * begin for a page of the tree that was reached by a link.  ERROR if it is not
 * a page of this index.  Brings order[] up to date if that is of another
 * incarnation.  A caller of nvm_index_locate or nvm_index_fetch begins with
 * this one.
 */
extern uint64 nvm_index_enter(Relation index, NvmIndexCache *cache, uint32 blkno);

/* ERROR: the page is damaged */
extern void nvm_index_damaged(Relation index, uint32 blkno, const char *what) __attribute__((noreturn));

/*
 * A private, validated copy of a page, in key order.  item[0 .. nitems - 1]
 * point into `image`; item[0] is the high key if right is not NVM_INDEX_NONE.
 * Made with MAXALIGN in the caller's memory (about 16 kB).
 */
typedef struct NvmIndexCopy
{
	uint32		blkno;
	uint32		left;
	uint32		right;
	uint16		level;
	uint16		flags;
	uint32		epoch;
	uint64		version;		/* that it was validated against */
	int			nitems;
	int			first;			/* of the data items: 1 with a high key, else
								 * 0 */
	uint16		word[NVM_INDEX_PAGE_SIZE / 16]; /* order words, with hints */
	union
	{
		NvmIndexPage header;
		char		data[NVM_INDEX_PAGE_SIZE];
		uint64		force_align;
	}			image;
} NvmIndexCopy;

#define NvmIndexCopyItem(copy, i) \
	((IndexTuple) ((copy)->image.data + NVM_INDEX_OFFSET((copy)->word[i])))

/*
 * Copy block blkno, waiting and trying again until it is consistent.  Brings
 * order[] up to date first if it is of another incarnation.  ERROR if the
 * page is damaged, or not one of this index.
 */
extern void nvm_index_copy(Relation index, NvmIndexCache *cache, uint32 blkno,
						   NvmIndexCopy *copy);

/* the same for the checker and for btree_prove.c.  The page is verified in no
 * other way, but its bytes make sense.  NULL, or what is wrong with its
 * entries */
extern const char *nvm_index_try_copy(Relation index, NvmIndexCache *cache, uint32 blkno,
									  NvmIndexCopy *copy);

/* what a page is to be */
typedef struct NvmIndexForm
{
	uint32		blkno;
	uint32		left;
	uint32		right;
	uint16		level;
	uint16		flags;
	IndexTuple *items;			/* sorted; the high key first, if there is a
								 * right page */
	int			nitems;
} NvmIndexForm;

/*
 * Form the image of a page in private memory: all entries base.  Sets all fields,
 * magic and check included; volatile ones become 0.  Returns false if the
 * entries do not fit.
 */
extern bool nvm_index_form(char *image, NvmIndexCache *cache, const NvmIndexForm *form);

/* bytes that one entry takes on a page formed anew, order word included */
#define NvmIndexEntrySpace(itup) (MAXALIGN(IndexTupleSize(itup)) + sizeof(uint16))
/* what the entries of a page may take in all */
#define NVM_INDEX_ROOM			(NVM_INDEX_PAGE_SIZE - NVM_INDEX_HEADER_SIZE)
/* the largest entry: three must fit beside order words, as nbtree demands */
#define NVM_INDEX_MAX_ENTRY		2704

/*
 * Places of locked pages that change together, by a redo lane.  Pages that do
 * not outlive a restart are simply changed.  begin takes the lane (an LWLock,
 * may ERROR), and so precedes the page locks; end follows them.
 */
#define NVM_INDEX_CHANGES	12
typedef struct NvmIndexChange
{
	struct NvmRedo *redo;		/* NULL: needs none */
	NvmRelState *state;
	bool		keeps;			/* is it to outlive a restart? */
	int			n;
	struct
	{
		void	   *place;
		const void *data;
		Size		len;
	}			piece[NVM_INDEX_CHANGES];
} NvmIndexChange;

extern void nvm_index_change_begin(NvmIndexChange *change, NvmIndexCache *cache, uint32 level);

/*
 * Store an image in a page that the change is to link, and that nobody can
 * reach but by an old link.  The lock word stays, and its version is raised.
 * The page is flushed if it is to be.
 */
extern void nvm_index_put_image(const NvmIndexChange *change, NvmIndexPage *page,
								const char *image);

/* under the locks of all its pages; false: nothing may be changed, begin again */
extern bool nvm_index_change_stands(const NvmIndexChange *change);
extern void nvm_index_change_add(NvmIndexChange *change, void *place, const void *data, Size len);

/* the whole page, but for the lock word; image gets the next epoch */
extern void nvm_index_change_page(NvmIndexChange *change, NvmIndexPage *page, char *image);
extern void nvm_index_change_apply(NvmIndexChange *change);
extern void nvm_index_change_end(NvmIndexChange *change);

/*
 * Is a page of this level to outlive a restart, by the index's persistence?
 */
#define NvmIndexKeeps(cache, level) \
	((cache)->persistence == NVM_INDEX_FULL || \
	 ((cache)->persistence == NVM_INDEX_LEAVES && (level) == 0))

/*
 * Is the index relaxed (btree_relax.c)?  The answer is not older than the lock of a
 * page that the caller holds: both are sequentially consistent, which costs a load
 * nothing.
 */
static inline bool
nvm_index_is_relaxed(NvmRelState *state)
{
	return __atomic_load_n(&nvm_rel_index(state)->relaxed.value, __ATOMIC_SEQ_CST) != 0;
}

/*
 * Is the memory behind this page to be flushed?  As above, but while the index
 * is relaxed.  A caller that asks once for several stores, and does not hold
 * the lock of each page from then on, asks nvm_index_change_stands.
 */
static inline bool
NvmIndexFlushes(const NvmIndexCache *cache, uint32 level)
{
	return NvmIndexKeeps(cache, level) && likely(!nvm_index_is_relaxed(cache->state));
}

/*
 * Append an entry to a locked page at place `pos` of its order (high key
 * included in the count).  The caller has made sure that it fits
 * (nvm_index_has_room) and that order[] is of this incarnation.  Returns the
 * tail that the page has then.  The entry outlives a crash when the commit
 * word says so durably.  On a leaf the caller notes it (nvm_index_unsettled).
 * On an inner page the word does say so, and the caller calls
 * nvm_index_flush_commit after it has unlocked the page, since a line that is
 * being flushed is slow to use.
 */
extern bool nvm_index_has_room(const NvmIndexPage *page, Size size);
extern uint32 nvm_index_append(NvmIndexCache *cache, NvmIndexPage *page, int pos, IndexTuple itup);

static inline void
nvm_index_flush_commit(NvmIndexCache *cache, NvmIndexPage *page, uint32 level)
{
	if (NvmIndexFlushes(cache, level))
		nvm_flush(&page->commit, sizeof(page->commit));
}

/*
 * The current transaction has appended the last entry of this tail to a leaf,
 * which had this epoch then, and this version afterwards; no page lock is held.
 * May settle what was noted before; may ERROR.
 */
extern void nvm_index_unsettled(NvmIndexPage *page, uint64 version, uint32 epoch,
								uint32 tail);

/*
 * Settle all leaves that were noted: after the caller's next drain the entries
 * outlive a crash.  False if there were none.  No page lock is held.  Can ERROR
 * only where interrupts are processed.
 */
extern bool nvm_index_settle(void);

/*
 * Mark entries DEAD.  word[]: their order words as they were read when the
 * page's epoch was `epoch`; does nothing if the page was rewritten since.
 */
extern void nvm_index_kill(NvmIndexCache *cache, uint32 blkno, uint32 epoch,
						   const uint16 *word, int n);

/* ---- blocks (btree_space.c) ---- */

/*
 * A block for a new page, not live yet; its header is durable.  May ERROR
 * (disk_full).  Takes LWLocks: not under a page lock.
 */
extern uint32 nvm_index_alloc(Relation index, NvmIndexCache *cache);

/*
 * Bulk load: one block more at the end of the storage, nothing written to it.
 * They come in order, without a gap, if nobody else extends.  May ERROR.
 */
extern uint32 nvm_index_extend(Relation index, NvmIndexCache *cache);

/* give back one that was not used after all */
extern void nvm_index_free(NvmIndexCache *cache, uint32 blkno);

/* VACUUM: look at all blocks for those that can be used again; counts for its report */
extern void nvm_index_find_free(Relation index, NvmIndexCache *cache, Relation heap,
								uint32 *ndeleted, uint32 *nfree);

/* ---- keys (btree_key.c) ---- */

/*
 * What is searched for: an insertion-type key.  Search lands on the first
 * entry >= key (nextkey: > key).  scantid, if not NULL, is the last column.
 */
typedef struct NvmIndexKeyPart
{
	Datum		value;
	bool		isnull;
	bool		desc;			/* of the column */
	bool		nulls_first;
	uint8		fast;			/* NvmIndexFast; of cmp */
	Oid			collation;
	FmgrInfo   *cmp;			/* (column's type, value's type) */
	FmgrInfo	cmp_data;		/* for cross-type comparisons */
} NvmIndexKeyPart;

typedef struct NvmIndexKey
{
	Relation	index;
	int			nparts;
	bool		nextkey;
	bool		anynull;		/* a part is null, and nulls are distinct */
	bool		pivot;			/* it is a pivot's: columns that it lacks are
								 * minus infinity, and compare is exact */
	bool		inserts;		/* descend finishes incomplete splits that it
								 * passes */
	ItemPointer scantid;
	NvmIndexKeyPart part[INDEX_MAX_KEYS];
} NvmIndexKey;

/*
 * A key of all key columns of itup, with its TID as scantid; it may be a pivot.
 * Values point into itup.  itup NULL: values are filled in by the caller.
 */
extern void nvm_index_key_init(Relation index, NvmIndexCache *cache,
							   IndexTuple itup, NvmIndexKey *key);

/*
 * < 0: key lies before itup; a private copy of an entry of a page.  A posting
 * list counts as its lowest TID.
 */
extern int	nvm_index_compare(const NvmIndexKey *key, IndexTuple itup);

/* ---- search (btree_search.c) ---- */

/*
 * Descend to the page of `level` (0: leaf) on which key belongs, moving right
 * where splits make that necessary.  Returns its number, NVM_INDEX_NONE if the
 * index is empty or not that high.  *version is the page's when its high key
 * was looked at, and its order[] is up to date.  lock_snapshot, if not NULL,
 * takes a predicate lock on each leaf that is looked at, or on the index if it
 * is empty: such a lock precedes the reading.
 */
extern uint32 nvm_index_descend(Relation index, NvmIndexCache *cache, const NvmIndexKey *key,
								uint32 level, uint64 *version,
								Snapshot lock_snapshot);

/*
 * Place of the first data entry >= key (nextkey: > key) in a page of that
 * version.  The high key is included in the count, and the place may be one
 * beyond the last.  -1 if the version has changed.  Reads the page where it
 * lies and compares with private copies.  *nitems, if not NULL: entries of the
 * page.
 */
extern int	nvm_index_locate(NvmRelState *state, uint32 blkno, uint64 version,
							 const NvmIndexKey *key, int *nitems);

/*
 * Copy entry number `pos` of a page into buf (NVM_INDEX_PAGE_SIZE bytes);
 * *word gets its order word.  False if the version has changed.
 */
extern bool nvm_index_fetch(NvmRelState *state, uint32 blkno, uint64 version, int pos,
							char *buf, uint16 *word);

/*
 * Does the key belong on leaf blkno, on which it may be?  Then *version is
 * what nvm_index_descend would have said.  False says nothing.
 */
extern bool nvm_index_belongs(Relation index, NvmIndexCache *cache, const NvmIndexKey *key,
							  uint32 blkno, uint64 *version);

/* leftmost or rightmost page of a level; NVM_INDEX_NONE if the index is empty */
extern uint32 nvm_index_endpoint(Relation index, NvmIndexCache *cache, uint32 level, bool rightmost,
								 Snapshot lock_snapshot);

/* ---- changes (btree_insert.c, btree_split.c, btree_clean.c) ---- */

extern bool nvm_index_insert(Relation index, Datum *values, bool *isnull, ItemPointer tid,
							 Relation heap, IndexUniqueCheck check, bool unchanged,
							 IndexInfo *info);

/*
 * For a rebuild: insert an entry, unless it is there.  They come in order;
 * *leaf is where the last one went, at first NVM_INDEX_NONE.
 */
extern void nvm_index_insert_next(Relation index, Relation heap, IndexTuple itup, uint32 *leaf);

/*
 * Replace the contents of the page of a copy by these data items (its high
 * key, links and flags stay), by a redo lane.  False, and nothing done, if
 * the page has changed since the copy, or they do not fit.
 */
extern bool nvm_index_rewrite(Relation index, NvmIndexCache *cache, const NvmIndexCopy *copy,
							  IndexTuple *items, int nitems);

/* make sure that the parent has the downlink of an INCOMPLETE page's sibling */
extern void nvm_index_finish_split(Relation index, NvmIndexCache *cache, Relation heap, uint32 blkno);

/*
 * Unlink the empty leaf blkno; false if it cannot be, or is not empty (any
 * more). A process that comes to it afterwards moves right.
 */
extern bool nvm_index_delete_page(Relation index, NvmIndexCache *cache, uint32 blkno);

/* ---- pivot between two entries, with as few columns as separate them ---- */
extern IndexTuple nvm_index_truncate(Relation index, NvmIndexCache *cache,
									 IndexTuple lastleft, IndexTuple firstright);

/* ---- bulk load (btree_load.c) ---- */

typedef struct NvmIndexLoad NvmIndexLoad;

/*
 * Fill an index whose meta page has no root: entries in order, no posting
 * lists.  What is loaded is durable when load_end returns.  May ERROR.
 */
extern NvmIndexLoad *nvm_index_load_begin(Relation heap, Relation index, bool deduplicate);
extern void nvm_index_load_add(NvmIndexLoad *load, IndexTuple itup);
extern void nvm_index_load_end(NvmIndexLoad *load);

/*
 * The inner levels alone, above leaves that are there: these in order, each
 * with the high key of the one before (the first: NULL), at least two.  Blocks
 * come from nvm_index_alloc.  The root is stored, but flushed by nobody.
 */
extern NvmIndexLoad *nvm_index_load_inner_begin(Relation index, NvmIndexCache *cache);
extern void nvm_index_load_inner_add(NvmIndexLoad *load, uint32 blkno, IndexTuple low);
extern void nvm_index_load_inner_end(NvmIndexLoad *load);

/* ERROR, with nbtree's words, if an entry is larger than NVM_INDEX_MAX_ENTRY */
extern void nvm_index_check_size(Relation index, Relation heap, IndexTuple itup);

/* ---- callbacks of the access method ---- */

/* btree_build.c; subphases are nbtree's: PROGRESS_BTREE_PHASE_* */
extern IndexBuildResult *nvm_btree_build(Relation heap, Relation index, IndexInfo *info);
extern void nvm_btree_buildempty(Relation index);

/* what tuplesort_begin_index_btree takes for the index */
extern Relation nvm_index_sort_relation(Relation index);

/* btree_scan.c */
/*
 * What index_fetch_begin of an nvm table returns begins like this
 * (am/indexfetch.c): a scan brings in rows before they are asked for.
 */
typedef struct NvmIndexFetchBase
{
	IndexFetchTableData base;
	NvmRelState *state;			/* of the table */
} NvmIndexFetchBase;

extern IndexScanDesc nvm_btree_beginscan(Relation index, int nkeys, int norderbys);
extern void nvm_btree_rescan(IndexScanDesc scan, ScanKey keys, int nkeys,
							 ScanKey orderbys, int norderbys);
extern bool nvm_btree_gettuple(IndexScanDesc scan, ScanDirection dir);
extern int64 nvm_btree_getbitmap(IndexScanDesc scan, TIDBitmap *tbm);
extern void nvm_btree_endscan(IndexScanDesc scan);
extern void nvm_btree_markpos(IndexScanDesc scan);
extern void nvm_btree_restrpos(IndexScanDesc scan);

/* btree_parallel.c */
extern void nvm_btree_initparallelscan(void *target);
extern void nvm_btree_parallelrescan(IndexScanDesc scan);

/* btree_vacuum.c */
extern IndexBulkDeleteResult *nvm_btree_bulkdelete(IndexVacuumInfo *info,
												   IndexBulkDeleteResult *stats,
												   IndexBulkDeleteCallback callback,
												   void *callback_state);
extern IndexBulkDeleteResult *nvm_btree_vacuumcleanup(IndexVacuumInfo *info,
													  IndexBulkDeleteResult *stats);

/* btree_check.c: structural problems of an index, and rows that it lacks */
typedef void (*NvmIndexEmit) (void *arg, uint32 blkno, int item, const char *problem);
extern void nvm_btree_check(Relation index, Relation heap, bool heapallindexed,
							NvmIndexEmit emit, void *arg);

#endif							/* NVM_BTREE_H */
