/*-------------------------------------------------------------------------
 *
 * btree_prove.c
 *	  The first process that comes to an index page after a start verifies
 *	  it.
 *
 * That process asks what nvm.check() asks of one page (verify_index.c,
 * btree_check_page.c).  It does so once in each run of the server: for the
 * bytes before anybody relies on them, then for the entries and the links to
 * neighbours and children.  A bit for each block of the pool
 * (pool/nvm_sound.h) says that it has been done.  README.md, "Pages are
 * verified by their first reader", has the rules.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/tupmacs.h"
#include "btree/nvm_btree_check.h"
#include "btree/nvm_btree_page.h"
#include "miscadmin.h"
#include "pool/nvm_sound.h"
#include "utils/memutils.h"
#include "verify/nvm_verify.h"
#include "verify/nvm_verify_index.h"

/* a page that others change is looked at again, at most so often */
#define PROVE_TRIES			1000
#define PROVE_USEC			100

/* what verify_index.c reports of one page */
typedef struct ProveVerify
{
	NvmIndexVerify verify;		/* first */
	char		problem[NVM_PROBLEM_SIZE];	/* empty: none */
} ProveVerify;

static void prove_report(NvmIndexVerify *verify, uint32 blkno, int item,
						 const char *fmt,...) pg_attribute_printf(4, 5);

static void
prove_report(NvmIndexVerify *verify, uint32 blkno, int item, const char *fmt,...)
{
	ProveVerify *prove = (ProveVerify *) verify;
	va_list		args;
	int			len = 0;

	if (prove->problem[0] != '\0')
		return;
	if (item > 0)
		len = snprintf(prove->problem, sizeof(prove->problem), "entry %d: ", item);
	va_start(args, fmt);
	vsnprintf(prove->problem + len, sizeof(prove->problem) - len, fmt, args);
	va_end(args);
}

/* ---- bytes ---- */

/*
 * A private copy of a page as it lies there, and the version that it is of.
 */
static uint64
copy_bytes(NvmIndexPage *page, char *image)
{
	uint64		version;

	do
	{
		version = nvm_index_begin(page);
		memcpy(image, page, NVM_INDEX_PAGE_SIZE);
	} while (!nvm_index_validate(page, version));
	return version;
}

void
nvm_index_prove_bytes(Relation index, NvmIndexCache *cache, uint32 blkno)
{
	NvmIndexPage *page = nvm_index_page(cache->state, blkno);
	char	   *image;
	ProveVerify prove;

	if (nvm_ignore_damage)
		return;
	image = palloc(NVM_INDEX_PAGE_SIZE);
	prove.verify.report = prove_report;
	prove.verify.dir = cache->dir;
	prove.verify.marks = NvmIndexOrderInc();
	prove.problem[0] = '\0';
	(void) copy_bytes(page, image);
	(void) nvm_verify_index_image(&prove.verify, blkno, image, NvmPoolOff(page));
	if (prove.problem[0] != '\0')
		nvm_index_damaged(index, blkno, pstrdup(prove.problem));
	pfree(image);
}

/* ---- links ---- */

/*
 * The header of a page, as it was at one moment.  NULL, or what is wrong with it.
 */
static const char *
read_header(NvmIndexCache *cache, uint32 blkno, NvmIndexPage *header)
{
	NvmIndexPage *page;
	uint64		version;

	if (!nvm_index_has_block(cache, blkno))
		return "does not exist";
	page = nvm_index_page(cache->state, blkno);
	do
	{
		version = nvm_index_begin(page);
		memcpy(header, page, NVM_INDEX_HEADER_SIZE);
	} while (!nvm_index_validate(page, version));
	return nvm_index_is_page(cache, header, blkno) ? NULL : "is not a page of the index";
}

/*
 * A page that a link leads to.  NULL, or what is wrong with it.
 */
static const char *
linked_problem(NvmIndexCache *cache, uint32 blkno, uint32 level, NvmIndexPage *header)
{
	const char *problem = read_header(cache, blkno, header);

	if (problem != NULL)
		return problem;
	if (header->level != level)
		return "is of another level";
	if ((header->flags & NVM_INDEX_DELETED) != 0)
		return "is deleted";
	if ((header->flags & NVM_INDEX_LIVE) == 0)
		return "is not in use";
	return NULL;
}

/*
 * The siblings lead back.
 */
static void
prove_siblings(NvmIndexCache *cache, NvmIndexCopy *copy, ProveVerify *prove)
{
	NvmIndexPage header;
	const char *problem;

	if (copy->right != NVM_INDEX_NONE)
	{
		problem = linked_problem(cache, copy->right, copy->level, &header);
		if (problem == NULL && header.left != copy->blkno)
			problem = "does not lead back";
		if (problem != NULL)
			prove_report(&prove->verify, copy->blkno, 0, "right link leads to block %u, which %s", copy->right, problem);
	}
	if (copy->left != NVM_INDEX_NONE)
	{
		problem = linked_problem(cache, copy->left, copy->level, &header);
		if (problem == NULL && header.right != copy->blkno)
			problem = "does not lead back";
		if (problem != NULL)
			prove_report(&prove->verify, copy->blkno, 0, "left link leads to block %u, which %s", copy->left, problem);
	}
}

/*
 * The children of an inner page follow each other, but for those whose downlink a split
 * has yet to bring.
 */
static void
prove_children(NvmIndexCache *cache, NvmIndexCopy *copy, ProveVerify *prove)
{
	NvmIndexPage header;
	uint32		before = NVM_INDEX_NONE;
	uint16		before_flags = 0;

	for (int i = copy->first; i < copy->nitems; i++)
	{
		uint32		child = BTreeTupleGetDownLink(NvmIndexCopyItem(copy, i));
		const char *problem = linked_problem(cache, child, copy->level - 1, &header);

		/* before says where it goes on */
		if (problem == NULL && i > copy->first && before != child &&
			(before_flags & NVM_INDEX_INCOMPLETE) == 0)
			problem = "does not follow the one before";
		if (problem != NULL)
		{
			prove_report(&prove->verify, copy->blkno, i + 1, "downlink leads to block %u, which %s", child, problem);
			return;
		}
		before = header.right;
		before_flags = header.flags;
	}
}

/* ---- entries ---- */

/*
 * Forget DEAD marks of an earlier run.  They are hints: nothing says whether
 * they are right, and this run finds them again.  False if the page has
 * changed.
 */
static bool
forget_dead(NvmIndexPage *page, NvmIndexCopy *copy)
{
	uint16	   *word = (uint16 *) ((char *) page + NVM_INDEX_HEADER_SIZE);
	uint32		n;
	bool		any = (copy->flags & NVM_INDEX_HAS_DEAD) != 0;

	for (int i = 0; i < copy->nitems && !any; i++)
		any = (copy->word[i] & NVM_INDEX_DEAD) != 0;
	if (!any)
		return true;
	if (!nvm_index_lock(page, copy->version))
		return false;
	n = page->nbase;
	if (NVM_INDEX_NTAIL(nvm_index_tail(page)) > 0)
		n += page->norder;
	for (uint32 i = 0; i < n; i++)
		word[i] &= ~NVM_INDEX_DEAD;
	page->flags &= ~NVM_INDEX_HAS_DEAD;
	nvm_index_unlock(page, false);
	return true;
}

/*
 * What is wrong with the entries of a copy, in the caller's memory; NULL: nothing.
 */
static const char *
entries_problem(Relation index, NvmIndexCache *cache, NvmIndexCopy *copy)
{
	IndexCheck *check = (IndexCheck *) palloc0(sizeof(IndexCheck));
	IndexFinding *finding;

	check->index = index;
	check->cache = *cache;
	check->natts = IndexRelationGetNumberOfAttributes(index);
	check->nkeys = IndexRelationGetNumberOfKeyAttributes(index);
	check->nblocks = pg_atomic_read_u32(&cache->state->nblocks);
	check->item_context = AllocSetContextCreate(CurrentMemoryContext, "nvm entries of a page",
												ALLOCSET_DEFAULT_SIZES);
	nvm_index_check_items(check, copy, NULL);
	if (check->findings == NIL)
		return NULL;
	finding = (IndexFinding *) linitial(check->findings);
	return finding->item == 0 ? finding->problem :
		psprintf("entry %d: %s", finding->item, finding->problem);
}

/*
 * One look at a page: entries, links.  False if it has changed meanwhile.
 */
static bool
prove_once(Relation index, NvmIndexCache *cache, uint32 blkno, ProveVerify *prove)
{
	NvmIndexPage *page = nvm_index_page(cache->state, blkno);
	NvmIndexCopy *copy = (NvmIndexCopy *) palloc(sizeof(NvmIndexCopy));
	const char *problem;

	prove->problem[0] = '\0';
	problem = nvm_index_try_copy(index, cache, blkno, copy);
	if (problem == NULL && (copy->flags & NVM_INDEX_DELETED) == 0)
	{
		problem = entries_problem(index, cache, copy);
		if (problem == NULL)
			prove_siblings(cache, copy, prove);
		if (problem == NULL && copy->level > 0 && prove->problem[0] == '\0')
			prove_children(cache, copy, prove);
	}
	if (problem != NULL)
		prove_report(&prove->verify, blkno, 0, "%s", problem);
	return nvm_index_validate(page, copy->version) &&
		(prove->problem[0] != '\0' || forget_dead(page, copy));
}

void
nvm_index_prove_entries(Relation index, NvmIndexCache *cache, uint32 blkno)
{
	MemoryContext context;
	MemoryContext oldcontext;
	NvmIndexCache copy = *cache;	/* a comparison may process invalidations */
	ProveVerify prove;
	bool		done = false;

	if (nvm_ignore_damage)
		return;
	context = AllocSetContextCreate(CurrentMemoryContext, "nvm first look at a page",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	prove.verify.report = prove_report;
	for (int i = 0; i < PROVE_TRIES && !done; i++)
	{
		if (i > 0)
		{
			CHECK_FOR_INTERRUPTS();
			pg_usleep(PROVE_USEC);
			MemoryContextReset(context);
		}
		done = prove_once(index, &copy, blkno, &prove);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	if (!done)
		return;					/* too busy: the next one */
	if (prove.problem[0] != '\0')
		nvm_index_damaged(index, blkno, pstrdup(prove.problem));
	nvm_unit_set_sound(nvm_index_page(copy.state, blkno));
}
