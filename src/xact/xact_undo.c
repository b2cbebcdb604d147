/*-------------------------------------------------------------------------
 *
 * xact_undo.c
 *	  Undo log of the current transaction, in this process's memory.
 *
 * What the transaction changed, so that an abort can take it back: ranges of
 * cells, 16 bytes each, and directory entries.  The ranges are a stack.  It
 * grows in memory up to a chunk.  Then it continues in a temporary file, whole
 * chunks at a time.  So a transaction of any size needs the memory of a chunk.
 * The first entry of a subtransaction sets a mark; its entries are those above
 * the mark.  Its commit leaves them to its parent by lowering the mark's
 * level.
 *
 * The log does not outlive the process: after a crash the stamp itself says
 * that its traces do not count.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/tablespace.h"
#include "log/nvm_log.h"
#include "media/media_word.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "storage/fd.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/wait_event.h"
#include "wbl/nvm_commit.h"
#include "wbl/nvm_wbl.h"
#include "xact/xact_impl.h"

typedef struct NvmUndoEntry
{
	uint32		kind_dir;		/* kind above the 20 bits of a directory id */
	uint32		blk;
	uint16		off_first;
	uint16		off_last;
	TransactionId xid;			/* of the subtransaction */
} NvmUndoEntry;

StaticAssertDecl(sizeof(NvmUndoEntry) == 16, "undo entries are packed");

#define UNDO_KIND(e)			((NvmUndoKind) ((e)->kind_dir >> 20))
#define UNDO_DIR(e)				((e)->kind_dir & (NVM_MAX_DIRS - 1))
#define UNDO_MAKE(kind, dir)	(((uint32) (kind) << 20) | (dir))

/* a megabyte of entries stays in memory */
#define UNDO_CHUNK				65536
#define UNDO_CHUNK_BYTES		(UNDO_CHUNK * sizeof(NvmUndoEntry))
#define UNDO_INITIAL			64
/* entries that nvm_undo_reserve makes room for */
#define UNDO_ROOM				8
#define UNDO_MAX				(UNDO_CHUNK + UNDO_ROOM)
/* kept from one transaction to the next */
#define UNDO_KEEP				4096
/* longer logs are not played by an abort: the gap collector takes over */
#define UNDO_PLAY_MAX			(64 * UINT64_C(65536))

typedef struct NvmUndoDir
{
	NvmUndoKind kind;
	uint32		dir;
	int			level;			/* nesting level that answers for it */
} NvmUndoDir;

const NvmUndoOps *nvm_undo_ops = NULL;

typedef struct NvmUndoMark
{
	int			level;
	uint64		nrows;			/* of the stack when the level's first entry
								 * came */
	int			ndirs;
} NvmUndoMark;

/*
 * The stack: nspilled entries in the file, then nentries in memory.
 */
static NvmUndoEntry *entries = NULL;
static int	nentries = 0;
static int	capacity = 0;
static uint64 nspilled = 0;		/* a multiple of UNDO_CHUNK */
static File spill = 0;			/* 0: there is none */

static NvmUndoDir *dirs = NULL;
static int	ndirs = 0;
static int	max_dirs = 0;

/* what undo_storage_is_new last said */
static struct
{
	bool		valid;
	bool		is_new;
	uint32		dir;
	int			level;
}			answer;

#define dirs_changed()			(answer.valid = false)

static NvmUndoMark *marks = NULL;
static int	nmarks = 0;
static int	max_marks = 0;

/* a subtransaction's entries could not be played: only abort is left */
static bool doomed = false;

/* some entries are of row locks */
static bool notes_locks = false;

/*
 * Make room for more elements, up to `limit`, in an array of TopMemoryContext.
 */
static void *
undo_grow(void *array, int *max, int initial, int limit, Size size)
{
	int			newmax = (*max == 0) ? initial : Min(*max * 2, limit);

	if (array == NULL)
		array = MemoryContextAlloc(TopMemoryContext, newmax * size);
	else
		array = repalloc(array, newmax * size);
	*max = newmax;
	return array;
}

/*
 * Set a mark if this nesting level has none.
 */
static void
undo_mark(int level)
{
	if (level <= 1 || (nmarks > 0 && marks[nmarks - 1].level >= level))
		return;
	if (nmarks == max_marks)
		marks = undo_grow(marks, &max_marks, 16, PG_INT32_MAX, sizeof(NvmUndoMark));
	marks[nmarks].level = level;
	marks[nmarks].nrows = nspilled + nentries;
	marks[nmarks].ndirs = ndirs;
	nmarks++;
}

/*
 * Was the storage made at this very nesting level?  Then whatever undoes its
 * rows frees the storage as well.
 *
 * The last answer is kept until `dirs` changes (dirs_changed): by an element
 * more or less, by a level, or by another transaction.
 */
static bool
undo_storage_is_new(uint32 dir, int level)
{
	if (likely(ndirs == 0))
		return false;
	if (answer.valid && dir == answer.dir && level == answer.level)
		return answer.is_new;

	answer.valid = true;
	answer.dir = dir;
	answer.level = level;
	answer.is_new = false;
	for (int i = ndirs - 1; i >= 0 && !answer.is_new; i--)
		answer.is_new = dirs[i].kind == NVM_UNDO_DIR_CREATE &&
			dirs[i].dir == dir && dirs[i].level == level;
	return answer.is_new;
}

/*
 * Read the chunk that begins with this entry from the spill file.
 */
static void
undo_read_chunk(uint64 entry, NvmUndoEntry *chunk)
{
	int			n;

	errno = 0;
	n = FileRead(spill, (char *) chunk, UNDO_CHUNK_BYTES,
				 (off_t) (entry * sizeof(NvmUndoEntry)), WAIT_EVENT_BUFFILE_READ);
	if (n != (int) UNDO_CHUNK_BYTES)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read undo file: %m")));
}

/*
 * Move the first entries in memory, a whole chunk, to the file.  The file
 * belongs to the top-level transaction, so that it is open while abort
 * callbacks run, also those of subtransactions.  It has no buffer.  If a write
 * fails (the disk is full, temp_file_limit) the entries are still in memory,
 * and closing the file does not try again.
 */
static void
undo_spill(void)
{
	ResourceOwner owner = CurrentResourceOwner;
	int			n;

	Assert(nentries >= UNDO_CHUNK);
	if (spill == 0)
	{
		PrepareTempTablespaces();
		CurrentResourceOwner = TopTransactionResourceOwner;
		PG_TRY();
		{
			spill = OpenTemporaryFile(false);
		}
		PG_FINALLY();
		{
			CurrentResourceOwner = owner;
		}
		PG_END_TRY();
	}
	errno = 0;
	n = FileWrite(spill, (char *) entries, UNDO_CHUNK_BYTES,
				  (off_t) (nspilled * sizeof(NvmUndoEntry)), WAIT_EVENT_BUFFILE_WRITE);
	if (n != (int) UNDO_CHUNK_BYTES)
	{
		if (errno == 0)
			errno = ENOSPC;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not write undo file: %m")));
	}
	nspilled += UNDO_CHUNK;
	nentries -= UNDO_CHUNK;
	memmove(entries, entries + UNDO_CHUNK, nentries * sizeof(NvmUndoEntry));
}

/*
 * See nvm_xact.h.
 */
void
nvm_undo_reserve(void)
{
	undo_mark(GetCurrentTransactionNestLevel());
	if (likely(capacity - nentries >= UNDO_ROOM))
		return;
	if (capacity < UNDO_MAX)
		entries = undo_grow(entries, &capacity, UNDO_INITIAL, UNDO_MAX,
							sizeof(NvmUndoEntry));
	else
		undo_spill();
}

/*
 * See nvm_xact.h.
 */
void
nvm_undo_add(NvmUndoKind kind, uint32 dir, uint32 blk, uint16 off)
{
	int			level = GetCurrentTransactionNestLevel();
	TransactionId xid = GetCurrentTransactionIdIfAny();
	NvmUndoEntry *last;

	Assert(nvm_xact_is_writer() || kind == NVM_UNDO_LOCK);

	undo_mark(level);
	if (kind == NVM_UNDO_DIR_CREATE || kind == NVM_UNDO_DIR_END)
	{
		/* the nesting level is enough: the subtransaction may have no xid yet */
		if (ndirs == max_dirs)
			dirs = undo_grow(dirs, &max_dirs, 16, PG_INT32_MAX, sizeof(NvmUndoDir));
		dirs[ndirs].kind = kind;
		dirs[ndirs].dir = dir;
		dirs[ndirs].level = level;
		ndirs++;
		dirs_changed();
		return;
	}

	Assert(TransactionIdIsValid(xid));

	/*
	 * Extend one of the last two entries: an update notes the end of one
	 * version and the making of another in turn.  Their order does not
	 * matter, as it does not for the gap collector.  The entries of two
	 * levels differ in xid, so none is extended across a mark.
	 */
	for (int i = nentries - 1; i >= 0 && i >= nentries - 2; i--)
	{
		last = &entries[i];
		if (last->blk == blk && last->kind_dir == UNDO_MAKE(kind, dir) &&
			last->xid == xid)
		{
			last->off_first = Min(last->off_first, off);
			last->off_last = Max(last->off_last, off);
			return;
		}
	}
	if (undo_storage_is_new(dir, level))
		return;
	if (kind == NVM_UNDO_LOCK)
		notes_locks = true;
	if (unlikely(nentries == capacity))
		nvm_undo_reserve();
	last = &entries[nentries];
	last->kind_dir = UNDO_MAKE(kind, dir);
	last->blk = blk;
	last->off_first = off;
	last->off_last = off;
	last->xid = xid;
	nentries++;
}

static NvmUndoRange
undo_range_of(const NvmUndoEntry *e)
{
	NvmUndoRange range = {
		.kind = UNDO_KIND(e),
		.dir = UNDO_DIR(e),
		.blk = e->blk,
		.off_first = e->off_first,
		.off_last = e->off_last,
		.xid = e->xid
	};

	return range;
}

/*
 * Take back the rows above height `to` of the stack, last first.
 */
static void
undo_pop_rows(uint64 to, const NvmXactStamps *stamps)
{
	for (;;)
	{
		uint64		low = (to > nspilled) ? to - nspilled : 0;

		while ((uint64) nentries > low)
		{
			NvmUndoEntry *e = &entries[nentries - 1];

			/* a lock goes with its xid */
			if (UNDO_KIND(e) != NVM_UNDO_LOCK)
			{
				NvmUndoRange range = undo_range_of(e);

				nvm_undo_ops->undo_range(&range,
										 stamps->in[nvm_relstates[range.dir].region]);
			}
			nentries--;
			NVM_FAILPOINT("abort-mid-undo");
		}
		if (nspilled <= to)
			break;

		undo_read_chunk(nspilled - UNDO_CHUNK, entries);
		nspilled -= UNDO_CHUNK;
		nentries = UNDO_CHUNK;
		nvm_drain("abort-undo-chunk");
	}
}

/*
 * The same in an abort callback, where no error may get out.  False if not
 * everything could be taken back.
 */
static bool
undo_try_pop_rows(uint64 to, const NvmXactStamps *stamps)
{
	MemoryContext context = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;
	volatile bool ok = true;

	if (nspilled + nentries <= to)
		return true;

	PG_TRY();
	{
		undo_pop_rows(to, stamps);
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		LWLockReleaseAll();
		InterruptHoldoffCount = holdoff;	/* the error has reset it */
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		FlushErrorState();
		ereport(LOG,
				(errmsg("nvm: could not undo an aborted transaction at once: %s",
						edata->message),
				 errdetail("The gap collector will remove what it wrote.")));
		FreeErrorData(edata);
		ok = false;
	}
	PG_END_TRY();
	return ok;
}

/*
 * Take back directory changes above height `to`, last first.
 */
static void
undo_pop_dirs(int to, NvmStamp stamp)
{
	dirs_changed();
	while (ndirs > to)
	{
		NvmUndoDir *d = &dirs[--ndirs];

		if (d->kind == NVM_UNDO_DIR_CREATE)
			nvm_storage_reclaim(d->dir);
		else
			nvm_dir_clear_end(d->dir, stamp);
		NVM_FAILPOINT("abort-mid-directory");
	}
}

/*
 * A subtransaction at this level has committed: its entries are its parent's.
 */
void
nvm_undo_subcommit(int level)
{
	for (int i = ndirs - 1; i >= 0 && dirs[i].level >= level; i--)
		dirs[i].level = level - 1;
	dirs_changed();

	if (nmarks == 0 || marks[nmarks - 1].level < level)
		return;
	if (level - 1 <= 1 || (nmarks > 1 && marks[nmarks - 2].level >= level - 1))
		nmarks--;
	else
		marks[nmarks - 1].level = level - 1;
}

/*
 * A subtransaction at this level has aborted: take back what it did.  Not
 * drained; the decision on the top-level transaction drains later.
 *
 * If the rows cannot be taken back, the whole transaction cannot commit any
 * more: the stamp is the same for all of it.
 */
void
nvm_undo_subabort(int level, const NvmXactStamps *stamps)
{
	NvmUndoMark mark;

	if (nmarks == 0 || marks[nmarks - 1].level < level)
		return;
	mark = marks[--nmarks];
	if (!undo_try_pop_rows(mark.nrows, stamps))
		doomed = true;
	undo_pop_dirs(mark.ndirs, stamps->in[NVM_REGION_POOL]);
}

/*
 * ERROR if the transaction cannot commit.
 */
void
nvm_undo_check(void)
{
	if (doomed)
		ereport(ERROR,
				(errcode(ERRCODE_IO_ERROR),
				 errmsg("the transaction cannot commit because one of its subtransactions could not be undone"),
				 errhint("The server log has the reason. Retry the transaction.")));
}

/*
 * The top-level transaction has aborted: take back what it did, flushed.
 * False if rows are left for the gap collector.
 */
bool
nvm_undo_abort(const NvmXactStamps *stamps)
{
	bool		ok = !doomed && nspilled <= UNDO_PLAY_MAX;

	if (ok)
		ok = undo_try_pop_rows(0, stamps);
	undo_pop_dirs(0, stamps->in[NVM_REGION_POOL]);
	return ok;
}

/*
 * The transaction has committed, durably: free the storages that it ended.
 * Nobody can reach them, since their relations are still locked and gone.
 */
void
nvm_undo_commit(NvmStamp stamp)
{
	for (int i = 0; i < ndirs; i++)
	{
		if (dirs[i].kind == NVM_UNDO_DIR_END)
			nvm_storage_reclaim_ended(dirs[i].dir, stamp);
	}
}

/*
 * Go through the entries of rows, oldest first; `visit` gets them in runs.
 */
static void
undo_walk(void (*visit) (const NvmUndoEntry *e, uint64 n, void *arg), void *arg)
{
	if (nspilled > 0)
	{
		NvmUndoEntry *chunk = MemoryContextAlloc(TopTransactionContext, UNDO_CHUNK_BYTES);

		for (uint64 at = 0; at < nspilled; at += UNDO_CHUNK)
		{
			undo_read_chunk(at, chunk);
			visit(chunk, UNDO_CHUNK, arg);
		}
		pfree(chunk);
	}
	visit(entries, nentries, arg);
}

/*
 * Add the locks that these entries led to, and that are still held, to the
 * list on media.  An entry is a range that may cover rows of others.
 */
static void
undo_save_locks(const NvmUndoEntry *e, uint64 n, void *arg)
{
	NvmLockItem items[NVM_CELLS];

	for (; n > 0; n--, e++)
	{
		if (UNDO_KIND(e) == NVM_UNDO_LOCK)
			nvm_lock_list_add(items,
							  nvm_undo_ops->locks_held(UNDO_DIR(e), e->blk,
													   e->off_first, e->off_last,
													   items));
		if ((n & 1023) == 0)
			CHECK_FOR_INTERRUPTS();
	}
}

/*
 * See xact_impl.h.  May ERROR; the abort then frees what was written.
 */
uint32
nvm_undo_save_locks(NvmStamp stamp)
{
	if (!notes_locks)
		return 0;
	nvm_lock_list_begin(stamp);
	undo_walk(undo_save_locks, NULL);
	return nvm_lock_list_end();
}

/*
 * What is captured, and whether nvm_log_begin has been called.
 */
typedef struct UndoCapture
{
	NvmXactStamps stamps;
	bool		begun;
} UndoCapture;

/*
 * Are the rows of a storage to be in the log?  Indexes are built again, and the
 * rows of UNLOGGED and temporary tables are no longer needed then.
 */
static bool
undo_is_logged(uint32 dir)
{
	const NvmDirEntry *entry;

	if (nvm_relstates[dir].dir != dir ||
		nvm_relstates[dir].region != NVM_REGION_VOLATILE)
		return false;
	entry = nvm_dir_entry(dir);
	return entry->kind == NVM_DIR_KIND_TABLE && (entry->flags & NVM_DIR_LOGGED) != 0;
}

/*
 * Begin the record with the first thing that concerns it.  The transaction may
 * have no stamp in the region: VACUUM FULL copies rows with the stamps of others.
 */
static void
capture_begin(UndoCapture *capture)
{
	NvmStamp   *stamp = &capture->stamps.in[NVM_REGION_VOLATILE];

	if (capture->begun)
		return;
	if (*stamp == NVM_STAMP_NONE)
		*stamp = nvm_xact_stamp(NVM_REGION_VOLATILE);
	nvm_log_begin(*stamp, U64FromFullTransactionId(GetTopFullTransactionId()));
	capture->begun = true;
}

/*
 * Capture the rows of these entries, which may be noted in several of them.
 *
 * A storage that the transaction has made is walked as a whole, because not all
 * of its rows are noted (nvm_undo_add).  One that it has ended goes, with its
 * rows.  The directory says which ones these are, by the pool's stamp.
 */
static void
capture_entries(const NvmUndoEntry *e, uint64 n, void *arg)
{
	UndoCapture *capture = arg;
	NvmStamp	pool_stamp = capture->stamps.in[NVM_REGION_POOL];

	for (; n > 0; n--, e++)
	{
		NvmUndoRange range = undo_range_of(e);
		const NvmDirEntry *entry;

		if ((n & 1023) == 0)
			CHECK_FOR_INTERRUPTS();
		if (range.kind == NVM_UNDO_LOCK || !undo_is_logged(range.dir))
			continue;
		entry = nvm_dir_entry(range.dir);
		if (pool_stamp != NVM_STAMP_NONE &&
			(nvm_load(&entry->begin) == pool_stamp || nvm_load(&entry->end) == pool_stamp))
			continue;
		capture_begin(capture);
		nvm_undo_ops->capture_range(&range, capture->stamps.in[NVM_REGION_VOLATILE]);
	}
}

/*
 * Capture the storages that the transaction has made, and not ended again.
 * Nobody else can have ended them.
 */
static void
capture_dirs(UndoCapture *capture)
{
	for (int i = 0; i < ndirs; i++)
	{
		uint32		dir = dirs[i].dir;

		if (dirs[i].kind != NVM_UNDO_DIR_CREATE || !undo_is_logged(dir) ||
			nvm_load(&nvm_dir_entry(dir)->end) != 0 ||
			pg_atomic_read_u32(&nvm_relstates[dir].nblocks) == 0)
			continue;
		capture_begin(capture);
		nvm_undo_ops->capture_storage(dir);
	}
}

/*
 * See xact_impl.h.
 */
bool
nvm_undo_capture(const NvmXactStamps *stamps)
{
	UndoCapture capture = {.stamps = *stamps,.begun = false};

	if (!nvm_log_is_on)
		return false;
	/* without a stamp in the region it has changed no row there */
	if (stamps->in[NVM_REGION_VOLATILE] != NVM_STAMP_NONE)
		undo_walk(capture_entries, &capture);
	capture_dirs(&capture);
	return capture.begun && nvm_log_end();
}

/*
 * Of the entries of rows, those of storages that calls have written.
 */
static void
checksum_entries(const NvmUndoEntry *e, uint64 n, void *arg)
{
	for (; n > 0; n--, e++)
	{
		NvmUndoRange range = undo_range_of(e);
		bool		has_key;

		if ((n & 1023) == 0)
			CHECK_FOR_INTERRUPTS();
		if (range.kind != NVM_UNDO_LOCK && OidIsValid(nvm_log_table_of_rows(range.dir, &has_key)))
			nvm_undo_ops->capture_range(&range,
										nvm_xact_stamp_if_any(nvm_relstates[range.dir].region));
	}
}

/*
 * See nvm_xact.h.
 */
void
nvm_xact_checksum(uint64 *checksum, uint32 *rows)
{
	nvm_log_sum_begin();
	undo_walk(checksum_entries, NULL);
	nvm_log_sum_end(checksum, rows);
}

bool
nvm_undo_has_dirs(void)
{
	return ndirs > 0;
}

/*
 * Forget the log.
 */
void
nvm_undo_reset(void)
{
	if (spill != 0)
		FileClose(spill);
	spill = 0;
	if (capacity > UNDO_KEEP)
	{
		pfree(entries);
		entries = NULL;
		capacity = 0;
	}
	nentries = 0;
	nspilled = 0;
	ndirs = 0;
	dirs_changed();
	nmarks = 0;
	doomed = false;
	notes_locks = false;
}

void
nvm_xact_register_undo_ops(const NvmUndoOps *ops)
{
	nvm_undo_ops = ops;
}
