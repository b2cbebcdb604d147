/*-------------------------------------------------------------------------
 *
 * btree_check.c
 *	  nvm.check() of an index: is the tree one, and does it lead to the rows?
 *
 * Each level is walked by its right links, from the root's down.  The level
 * above is walked beside it: its downlinks must lead to these very pages in
 * this order.  The key of a downlink must be the high key of the page before.
 * A page without a downlink is right only behind an INCOMPLETE one.  Every
 * page is met once, and a block that is not met must not claim to be part of
 * the tree.
 *
 * The first pass holds nobody up.  If anything looks wrong, a page may merely
 * have been split while we looked.  So there is a second pass with the index
 * locked against changes, and its findings count.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_check.h"
#include "btree/nvm_btree_persist.h"
#include "compat/nvm_compat_index.h"
#include "miscadmin.h"
#include "pool/nvm_pool.h"
#include "storage/lmgr.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_index.h"

#define CHECK_MAX_LEVEL		32

/* how long others may keep us from locking the index */
#define LOCK_TRIES			20
#define LOCK_USEC			100000

/* goes over the downlinks of a level while the one below is walked */
typedef struct CheckCursor
{
	NvmIndexCopy *copy;			/* NULL: at the end */
	int			item;
	IndexTuple	low;			/* high key of the page before */
} CheckCursor;

static void note_finding(IndexCheck *check, uint32 blkno, int item, const char *fmt,
						 va_list args) pg_attribute_printf(4, 0);

static void
note_finding(IndexCheck *check, uint32 blkno, int item, const char *fmt, va_list args)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(GetMemoryChunkContext(check));
	IndexFinding *finding = (IndexFinding *) palloc(sizeof(IndexFinding));
	char		buf[512];

	vsnprintf(buf, sizeof(buf), fmt, args);
	finding->blkno = blkno;
	finding->item = item;
	finding->problem = pstrdup(buf);
	check->findings = lappend(check->findings, finding);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Note a problem; item 0 means the page as a whole.
 */
void
nvm_index_check_report(IndexCheck *check, uint32 blkno, int item, const char *fmt,...)
{
	va_list		args;

	va_start(args, fmt);
	note_finding(check, blkno, item, fmt, args);
	va_end(args);
}

/* the same for verify_index.c */
static void verify_report(NvmIndexVerify *verify, uint32 blkno, int item,
						  const char *fmt,...) pg_attribute_printf(4, 5);

static void
verify_report(NvmIndexVerify *verify, uint32 blkno, int item, const char *fmt,...)
{
	va_list		args;

	va_start(args, fmt);
	note_finding((IndexCheck *) verify, blkno, item, fmt, args);
	va_end(args);
}

/*
 * Copy a page whose bytes make sense.  NULL, and reported, if they do not.
 */
static NvmIndexCopy *
check_copy(IndexCheck *check, uint32 blkno)
{
	NvmIndexCopy *copy;
	const char *problem;

	if (blkno == NVM_INDEX_NONE || blkno >= check->nblocks)
	{
		nvm_index_check_report(check, blkno, 0, "a link leads to block %u of %u",
							   blkno, check->nblocks);
		return NULL;
	}
	if (!nvm_index_check_image(check, blkno))
		return NULL;
	copy = (NvmIndexCopy *) palloc(sizeof(NvmIndexCopy));
	problem = nvm_index_try_copy(check->index, &check->cache, blkno, copy);
	if (problem == NULL)
		return copy;
	nvm_index_check_report(check, blkno, 0, "page cannot be read: %s", problem);
	pfree(copy);
	return NULL;
}

/* ---- the level above ---- */

/*
 * Go to page blkno of the parents' level.  It has been checked when its own
 * level was walked; that it can be copied at all may have changed.
 */
static void
cursor_enter(IndexCheck *check, CheckCursor *cursor, uint32 blkno, uint32 level)
{
	NvmIndexCopy *copy = NULL;

	if (blkno != NVM_INDEX_NONE)
	{
		copy = check_copy(check, blkno);
		if (copy != NULL && copy->level != level)
			copy = NULL;
		if (copy == NULL)
			check->broken = true;
	}
	cursor->copy = copy;
	if (copy != NULL)
		cursor->item = copy->first;
}

/*
 * Pass on to the next downlink.
 */
static void
cursor_step(IndexCheck *check, CheckCursor *cursor)
{
	cursor->item++;
	while (cursor->copy != NULL && cursor->item >= cursor->copy->nitems)
	{
		NvmIndexCopy *copy = cursor->copy;

		if (cursor->low != NULL)
			pfree(cursor->low);
		cursor->low = copy->first > 0 ? CopyIndexTuple(NvmIndexCopyItem(copy, 0)) : NULL;
		cursor_enter(check, cursor, copy->right, copy->level);
		pfree(copy);
	}
}

/*
 * The downlink of the page at hand, whose low key is `low`.
 */
static void
check_downlink(IndexCheck *check, CheckCursor *cursor, NvmIndexCopy *copy,
			   IndexTuple low, bool after_incomplete)
{
	IndexTuple	downlink;
	IndexTuple	key;
	uint32		leads;

	if (cursor->copy == NULL)
	{
		if (!after_incomplete && !check->broken)
			nvm_index_check_report(check, copy->blkno, 0, "page has no downlink");
		return;
	}
	downlink = NvmIndexCopyItem(cursor->copy, cursor->item);
	leads = BTreeTupleGetDownLink(downlink);
	if (leads != copy->blkno)
	{
		if (!after_incomplete)
			nvm_index_check_report(check, cursor->copy->blkno, cursor->item + 1,
								   "downlink leads to block %u, the next page of level %u is %u",
								   leads, copy->level, copy->blkno);
		return;
	}
	key = cursor->item == cursor->copy->first ? cursor->low : downlink;
	if ((key == NULL) != (low == NULL) ||
		(key != NULL && !nvm_index_check_same_pivot(check, key, low)))
		nvm_index_check_report(check, cursor->copy->blkno, cursor->item + 1,
							   "key of the downlink to block %u is not the high key of the page before",
							   leads);
	cursor_step(check, cursor);
}

/* ---- a level ---- */

/* a level that is being walked by its right links */
typedef struct CheckLevel
{
	uint32		level;
	bool		is_root;		/* nothing is above */
	CheckCursor above;			/* unless is_root */
	/* of the page before; the leftmost page has none */
	uint32		left;
	IndexTuple	low;			/* its high key: strict lower bound */
	bool		incomplete;		/* its flag */
} CheckLevel;

/*
 * Copy the next page of a level, which must not have been met before.  NULL,
 * and reported, if that cannot be.
 */
static NvmIndexCopy *
check_take(IndexCheck *check, uint32 blkno)
{
	NvmIndexCopy *copy = NULL;

	if (blkno < check->nblocks && (check->seen[blkno / 8] & (1 << (blkno % 8))) != 0)
		nvm_index_check_report(check, blkno, 0, "page is reached twice");
	else
	{
		if (blkno < check->nblocks)
			check->seen[blkno / 8] |= 1 << (blkno % 8);
		copy = check_copy(check, blkno);
	}
	if (copy == NULL)
		check->broken = true;
	return copy;
}

/*
 * Is a page where its neighbours, the level above and its own flags say?
 */
static void
check_place(IndexCheck *check, CheckLevel *walk, NvmIndexCopy *copy)
{
	bool		leftmost = walk->left == NVM_INDEX_NONE;
	NvmIndexPage links;

	memset(&links, 0, sizeof(links));
	links.level = copy->level;
	links.left = copy->left;
	links.right = copy->right;
	links.flags = copy->flags;
	nvm_verify_index_links(&check->verify, &links, copy->blkno, walk->level, walk->left);
	if (!walk->is_root)
		check_downlink(check, &walk->above, copy, walk->low, walk->incomplete);
	else if (!leftmost && !walk->incomplete)
		nvm_index_check_report(check, copy->blkno, 0, "page beside the root");

	/* a root that was split loses the flag when there is a new root */
	if (((copy->flags & NVM_INDEX_ROOT) != 0) != (walk->is_root && leftmost) &&
		(copy->flags & NVM_INDEX_INCOMPLETE) == 0)
		nvm_index_check_report(check, copy->blkno, 0,
							   walk->is_root ? "root is not marked as such" :
							   "page is marked as the root");
}

/*
 * Walk a level from its first page, beside the one above, whose first page is
 * `parent` (NVM_INDEX_NONE above the root's).  Returns the first page of the
 * level below.
 */
static uint32
check_level(IndexCheck *check, uint32 level, uint32 blkno, uint32 parent)
{
	CheckLevel	walk = {
		.level = level,.is_root = parent == NVM_INDEX_NONE,.left = NVM_INDEX_NONE
	};
	CheckCursor *above = &walk.above;
	uint32		below = NVM_INDEX_NONE;

	if (!walk.is_root)
		cursor_enter(check, above, parent, level + 1);

	while (blkno != NVM_INDEX_NONE)
	{
		NvmIndexCopy *copy;

		CHECK_FOR_INTERRUPTS();
		copy = check_take(check, blkno);
		if (copy == NULL)
			break;
		check_place(check, &walk, copy);
		nvm_index_check_items(check, copy, walk.low);
		if (walk.left == NVM_INDEX_NONE && level > 0 && copy->nitems > copy->first)
			below = BTreeTupleGetDownLink(NvmIndexCopyItem(copy, copy->first));

		if (walk.low != NULL)
			pfree(walk.low);
		walk.low = copy->first > 0 ? CopyIndexTuple(NvmIndexCopyItem(copy, 0)) : NULL;
		walk.incomplete = (copy->flags & NVM_INDEX_INCOMPLETE) != 0;
		walk.left = blkno;
		blkno = copy->right;
		pfree(copy);
	}
	if (above->copy != NULL && !check->broken)
		nvm_index_check_report(check, above->copy->blkno, above->item + 1,
							   "downlink leads to block %u, which is not on level %u",
							   BTreeTupleGetDownLink(NvmIndexCopyItem(above->copy, above->item)),
							   level);
	return below;
}

/*
 * Blocks that the tree does not reach.
 */
static void
check_unreached(IndexCheck *check)
{
	for (uint32 blkno = 1; blkno < check->nblocks; blkno++)
	{
		NvmIndexPage *page = nvm_index_page(check->cache.state, blkno);

		if (check->seen[blkno / 8] & (1 << (blkno % 8)))
			continue;
		if (blkno % 1024 == 0)
			CHECK_FOR_INTERRUPTS();
		nvm_verify_index_unreached(&check->verify, page, blkno, NvmPoolOff(page),
								   NvmPool->incarnation);
	}
}

/*
 * Everything once.
 */
static void
check_pass(IndexCheck *check)
{
	uint64		root;
	uint32		blkno;
	uint32		parent = NVM_INDEX_NONE;

	check->findings = NIL;
	check->broken = false;
	root = nvm_load(&check->cache.meta->root);
	check->nblocks = pg_atomic_read_u32(&check->cache.state->nblocks);
	check->seen = (uint8 *) MemoryContextAllocExtended(CurrentMemoryContext,
													   check->nblocks / 8 + 1,
													   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	if (check->filter != NULL)
		nvm_index_check_heap_pass(check);
	nvm_verify_index_meta(&check->verify, check->cache.meta, NvmPoolOff(check->cache.meta));

	blkno = NVM_INDEX_ROOT_BLOCK(root);
	if (NVM_INDEX_ROOT_LEVEL(root) > CHECK_MAX_LEVEL || (root != 0 && blkno == NVM_INDEX_NONE))
	{
		nvm_index_check_report(check, 0, 0, "root is said to be block %u on level %u",
							   blkno, NVM_INDEX_ROOT_LEVEL(root));
		return;
	}
	for (int level = NVM_INDEX_ROOT_LEVEL(root);
		 level >= 0 && blkno != NVM_INDEX_NONE; level--)
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(check->page_context);
		uint32		below = check_level(check, level, blkno, parent);

		MemoryContextSwitchTo(oldcontext);
		MemoryContextReset(check->page_context);
		parent = blkno;
		blkno = below;
		if (level > 0 && blkno == NVM_INDEX_NONE && !check->broken)
			nvm_index_check_report(check, parent, 0, "first page of level %d leads nowhere", level);
	}
	if (!check->broken)
		check_unreached(check);
	if (check->filter != NULL && !check->broken)
		nvm_index_check_heap_rows(check);
	pfree(check->seen);
}

/*
 * For the second pass: keep everybody from changing the index.  A backend that
 * rebuilds the index concurrently has locked it, and is going to wait for our
 * snapshot.  So we do not wait for that backend.
 */
static void
lock_against_changes(Relation index)
{
	for (int i = 0; !ConditionalLockRelation(index, ShareUpdateExclusiveLock); i++)
	{
		if (i >= LOCK_TRIES)
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not make sure of what seems to be wrong with index \"%s\"",
							RelationGetRelationName(index)),
					 errdetail("Another session holds a lock on it, as REINDEX CONCURRENTLY does."),
					 errhint("Check it again when that is over.")));
		CHECK_FOR_INTERRUPTS();
		pg_usleep(LOCK_USEC);
	}
	LockRelation(index, ShareLock);
}

/*
 * See nvm_btree.h.  The caller has opened both, and holds a lock.  Functions of
 * the index run as the table's owner.
 */
void
nvm_btree_check(Relation index, Relation heap, bool heapallindexed,
				NvmIndexEmit emit, void *arg)
{
	IndexCheck *check = (IndexCheck *) palloc0(sizeof(IndexCheck));
	Oid			save_userid;
	int			save_sec_context;
	int			save_nestlevel;
	ListCell   *lc;

	GetUserIdAndSecContext(&save_userid, &save_sec_context);
	SetUserIdAndSecContext(heap->rd_rel->relowner,
						   save_sec_context | SECURITY_RESTRICTED_OPERATION);
	save_nestlevel = NewGUCNestLevel();
	nvm_restrict_search_path();

	check->index = index;
	check->heap = heap;
	nvm_index_wait(index);
	check->cache = *nvm_index_cache(index);
	check->verify.report = verify_report;
	check->verify.dir = check->cache.dir;
	check->verify.marks = (uint16) NvmPool->incarnation;
	check->natts = IndexRelationGetNumberOfAttributes(index);
	check->nkeys = IndexRelationGetNumberOfKeyAttributes(index);
	check->page_context = AllocSetContextCreate(CurrentMemoryContext, "nvm index check",
												ALLOCSET_DEFAULT_SIZES);
	check->item_context = AllocSetContextCreate(CurrentMemoryContext, "nvm index check, one page",
												ALLOCSET_DEFAULT_SIZES);
	if (heapallindexed)
		nvm_index_check_heap_begin(check);

	check_pass(check);
	if (check->findings != NIL)
	{
		lock_against_changes(index);
		check->locked = true;
		check_pass(check);
		UnlockRelation(index, ShareLock);
		UnlockRelation(index, ShareUpdateExclusiveLock);
	}

	if (heapallindexed)
		nvm_index_check_heap_end(check);
	AtEOXact_GUC(false, save_nestlevel);
	SetUserIdAndSecContext(save_userid, save_sec_context);

	foreach(lc, check->findings)
	{
		IndexFinding *finding = (IndexFinding *) lfirst(lc);

		emit(arg, finding->blkno, finding->item, finding->problem);
	}
	MemoryContextDelete(check->page_context);
	MemoryContextDelete(check->item_context);
}
