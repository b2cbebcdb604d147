/*-------------------------------------------------------------------------
 *
 * btree_routine.c
 *	  The routine in the relcache entry of an index is replaced, with undo.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "btree/nvm_btree_identity.h"
#include "compat/nvm_compat.h"
#include "utils/memutils.h"

/*
 * An entry of the relcache that belongs to the current transaction is kept
 * when the index changes.  It would keep the old access method's routine, so
 * the routine is replaced in it.  If the subtransaction aborts, the old one
 * has to be put back.
 */
typedef struct ReplacedRoutine
{
	Relation	index;			/* stays where it is, see
								 * nvm_index_set_routine */
	Oid			handler;
	IndexAmRoutine routine;
	int			level;			/* nesting level that answers for it */
} ReplacedRoutine;

static List *replaced = NIL;	/* in TopTransactionContext, last first */

/*
 * Let the entry of an open index have another routine.  If the subtransaction
 * aborts, an entry of this transaction gets back what it had; one that was just
 * made goes away then.
 */
void
nvm_index_set_routine(Relation index, Oid handler, const IndexAmRoutine *routine,
					  bool just_made)
{
	if (!just_made &&
		(index->rd_createSubid != InvalidSubTransactionId ||
		 NvmRelFirstFileSubid(index) != InvalidSubTransactionId))
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(TopTransactionContext);
		ReplacedRoutine *r = palloc(sizeof(ReplacedRoutine));

		r->index = index;
		r->handler = index->rd_amhandler;
		memcpy(&r->routine, index->rd_indam, sizeof(IndexAmRoutine));
		r->level = GetCurrentTransactionNestLevel();
		replaced = lcons(r, replaced);
		MemoryContextSwitchTo(oldcontext);
	}
	memcpy(index->rd_indam, routine, sizeof(IndexAmRoutine));
	index->rd_amhandler = handler;
	if (index->rd_amcache != NULL)
		pfree(index->rd_amcache);
	index->rd_amcache = NULL;
}

static void
replaced_subxact(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();
	ListCell   *lc;

	if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		foreach(lc, replaced)
		{
			ReplacedRoutine *r = lfirst(lc);

			/* made and dropped within: the entry is about to go */
			if (r->index->rd_createSubid == mySubid &&
				r->index->rd_droppedSubid != InvalidSubTransactionId)
				replaced = foreach_delete_current(replaced, lc);
			else
				r->level = Min(r->level, level - 1);
		}
	}
	else if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		/* the index's entry is still there, whatever becomes of it */
		while (replaced != NIL && ((ReplacedRoutine *) linitial(replaced))->level >= level)
		{
			ReplacedRoutine *r = linitial(replaced);

			memcpy(r->index->rd_indam, &r->routine, sizeof(IndexAmRoutine));
			r->index->rd_amhandler = r->handler;
			replaced = list_delete_first(replaced);
		}
	}
}

static void
replaced_xact(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT ||
		event == XACT_EVENT_PREPARE)
		replaced = NIL;
}

/*
 * In _PG_init.
 */
void
nvm_index_register_routines(void)
{
	RegisterXactCallback(replaced_xact, NULL);
	RegisterSubXactCallback(replaced_subxact, NULL);
}
