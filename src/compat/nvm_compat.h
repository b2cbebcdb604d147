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

#if PG_VERSION_NUM >= 170000
#define NvmProcNumber()			MyProcNumber
#define NvmBackendId()			MyProcNumber
#else
#define NvmProcNumber()			((int) MyProc->pgprocno)
#define NvmBackendId()			MyBackendId
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

#endif							/* NVM_COMPAT_H */
