/*-------------------------------------------------------------------------
 *
 * nvm_compat.h
 *	  Differences between PostgreSQL major versions, bridged.
 *
 * The only place where PG_VERSION_NUM is tested.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_COMPAT_H
#define NVM_COMPAT_H

#include "postgres.h"

#include "access/transam.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/rel.h"

#if PG_VERSION_NUM >= 160000
#include "storage/relfilelocator.h"
typedef RelFileLocator NvmLocator;
#define NvmRelLocator(rel)		((rel)->rd_locator)
#define NvmLocatorDb(l)			((l).dbOid)
#define NvmLocatorSpc(l)		((l).spcOid)
#define NvmLocatorRel(l)		((l).relNumber)
#else
#include "storage/relfilenode.h"
typedef RelFileNode NvmLocator;
#define NvmRelLocator(rel)		((rel)->rd_node)
#define NvmLocatorDb(l)			((l).dbNode)
#define NvmLocatorSpc(l)		((l).spcNode)
#define NvmLocatorRel(l)		((l).relNode)
#endif

/* in which subtransaction did rel get its file, if in this transaction? */
#if PG_VERSION_NUM >= 160000
#define NvmRelNewFileSubid(rel)		((rel)->rd_newRelfilelocatorSubid)
#define NvmRelFirstFileSubid(rel)	((rel)->rd_firstRelfilelocatorSubid)
#define NvmRelidByFile(spc, file)	RelidByRelfilenumber((spc), (file))
#include "utils/relfilenumbermap.h"
#else
#include "utils/relfilenodemap.h"
#define NvmRelNewFileSubid(rel)		((rel)->rd_newRelfilenodeSubid)
#define NvmRelFirstFileSubid(rel)	((rel)->rd_firstRelfilenodeSubid)
#define NvmRelidByFile(spc, file)	RelidByRelfilenode((spc), (file))
#endif

#if PG_VERSION_NUM >= 170000
#define NvmProcNumber()			MyProcNumber
#define NvmBackendId()			MyProcNumber
#define NvmProcLxid(proc)		((proc)->vxid.lxid)
#define NvmProcNumberOf(proc)	GetNumberFromPGProc(proc)
#else
#define NvmProcNumberOf(proc)	((int) (proc)->pgprocno)
#define NvmProcLxid(proc)		((proc)->lxid)
#define NvmProcNumber()			((int) MyProc->pgprocno)
#define NvmBackendId()			MyBackendId
#endif

/* settings of group commit; in no header before 18 */
#if PG_VERSION_NUM < 180000
extern int	CommitDelay;
extern int	CommitSiblings;
#endif

/* memory that a check hook hands over as its "extra" */
#if PG_VERSION_NUM >= 160000
#include "utils/guc.h"
#define NvmGucAlloc(size)		guc_malloc(LOG, (size))
#define NvmGucFree(ptr)			guc_free(ptr)
#else
#define NvmGucAlloc(size)		malloc(size)
#define NvmGucFree(ptr)			free(ptr)
#endif

/* nextXid and what goes with it; varsup.c says which lock is for which */
#if PG_VERSION_NUM >= 170000
#define NvmXidVars				TransamVariables
#else
#define NvmXidVars				ShmemVariableCache
#endif

/* caller holds ProcArrayLock */
#define NvmLatestCompletedXid()	(NvmXidVars->latestCompletedXid)

/*
 * Fast-path relation locks of this process: slot n holds relation
 * NvmFastPathRel(n) in the modes of NvmFastPathModes(n), a mask with bit
 * (mode - 1).  MyProc->fpInfoLock is held.
 */
#if PG_VERSION_NUM >= 180000
#define NvmFastPathSlots()		((int) FastPathLockSlotsPerBackend())
#define NvmFastPathRel(n)		(MyProc->fpRelId[n])
#define NvmFastPathModes(n) \
	((uint32) (MyProc->fpLockBits[(n) / FP_LOCK_SLOTS_PER_GROUP] >> \
			   (3 * ((n) % FP_LOCK_SLOTS_PER_GROUP))) & 7)
#else
#define NvmFastPathSlots()		FP_LOCK_SLOTS_PER_BACKEND
#define NvmFastPathRel(n)		(MyProc->fpRelId[n])
#define NvmFastPathModes(n)		((uint32) (MyProc->fpLockBits >> (3 * (n))) & 7)
#endif

/*
 * This process's locks in one partition of the main lock table: the entry
 * after `prev`, or the first if prev is NULL; NULL at the end.  The
 * partition's lock is held.
 */
#if PG_VERSION_NUM >= 160000
#define NvmHasProcLocks(partition)	(!dlist_is_empty(&MyProc->myProcLocks[partition]))
static inline PROCLOCK *
nvm_next_proclock(int partition, PROCLOCK *prev)
{
	dlist_head *head = &MyProc->myProcLocks[partition];
	dlist_node *node = prev ? prev->procLink.next : head->head.next;

	if (node == NULL || node == &head->head)
		return NULL;
	return dlist_container(PROCLOCK, procLink, node);
}
#else
#define NvmHasProcLocks(partition)	(!SHMQueueEmpty(&MyProc->myProcLocks[partition]))
static inline PROCLOCK *
nvm_next_proclock(int partition, PROCLOCK *prev)
{
	SHM_QUEUE  *head = &MyProc->myProcLocks[partition];

	return (PROCLOCK *) SHMQueueNext(head, prev ? &prev->procLink : head,
									 offsetof(PROCLOCK, procLink));
}
#endif

/* columns whose change needs new index entries, BRIN's included */
#include "utils/relcache.h"
static inline Bitmapset *
nvm_index_attrs(Relation rel)
{
#if PG_VERSION_NUM >= 160000
	return bms_join(RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_HOT_BLOCKING),
					RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_SUMMARIZED));
#else
	return RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_ALL);
#endif
}

#include "pgstat.h"
#if PG_VERSION_NUM >= 160000
#define NvmCountUpdate(rel, hot)	pgstat_count_heap_update((rel), (hot), false)
#else
#define NvmCountUpdate(rel, hot)	pgstat_count_heap_update((rel), (hot))
#endif

/*
 * Before 17 each asynchronous commit wakes the WAL writer once a WAL page is
 * full and not flushed.  The WAL writer goes back to sleep without flushing it
 * unless wal_writer_flush_after is reached.
 */
#define NVM_COMMIT_KICKS_WALWRITER	(PG_VERSION_NUM < 170000)

/*
 * The end of the last WAL record, for XLogFlush.  GetXLogInsertRecPtr gives
 * that, except at the start of a page: there it is behind the page's header.
 */
#include "access/xlog.h"
#include "access/xlog_internal.h"
static inline XLogRecPtr
NvmWalEnd(void)
{
	XLogRecPtr	end = GetXLogInsertRecPtr();

	if (XLogSegmentOffset(end, wal_segment_size) == SizeOfXLogLongPHD ||
		end % XLOG_BLCKSZ == SizeOfXLogShortPHD)
		end -= end % XLOG_BLCKSZ;
	return end;
}

/* conditional waits can log their failure since 18 */
#if PG_VERSION_NUM >= 180000
#define NvmConditionalXactWait(xid)		ConditionalXactLockTableWait((xid), false)
#define NvmConditionalLockTuple(rel, tid, mode) \
	ConditionalLockTuple((rel), (tid), (mode), false)
#else
#define NvmConditionalXactWait(xid)		ConditionalXactLockTableWait(xid)
#define NvmConditionalLockTuple(rel, tid, mode) \
	ConditionalLockTuple((rel), (tid), (mode))
#endif

/* may the executor leave some of an Append's or MergeAppend's plans out? */
#if PG_VERSION_NUM >= 180000
#define NvmNodePrunes(node)		((node)->part_prune_index >= 0)
#else
#define NvmNodePrunes(node)		((node)->part_prune_info != NULL)
#endif

#endif							/* NVM_COMPAT_H */
