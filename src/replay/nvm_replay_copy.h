/*-------------------------------------------------------------------------
 *
 * nvm_replay_copy.h
 *	  The copy: which tables and indexes it has, and how a process is led to them
 *	  (replay_copy.c, replay_index.c).
 *
 * src/replay/README.md has the protocol.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_REPLAY_COPY_H
#define NVM_REPLAY_COPY_H

#include "postgres.h"

#include "pool/nvm_pool.h"

/* an index of the copy, and that of the original */
typedef struct NvmReplayIndex
{
	Oid			original;
	Oid			copy;
	NvmStorageKey from;			/* the original's storage */
	NvmStorageKey to;			/* the copy's */
} NvmReplayIndex;

/* a table of the copy */
typedef struct NvmReplayTable
{
	Oid			original;
	Oid			copy;
	Oid			key_index;		/* index of the copy by which value records
								 * name rows, or InvalidOid */
	uint32		dir;			/* of the original's storage: what records
								 * call it */
	uint64		creation;		/* of that directory entry */
	NvmStorageKey from;
	NvmStorageKey to;
	int			first_index;	/* its indexes in NvmReplayMap, by original's
								 * Oid */
	int			nindexes;
} NvmReplayTable;

/*
 * All of it: one piece of memory without pointers.  The tables, by dir, come first, then
 * the indexes.
 */
typedef struct NvmReplayMap
{
	Size		size;			/* bytes of all */
	int			ntables;
	int			nindexes;
	NvmReplayTable tables[FLEXIBLE_ARRAY_MEMBER];
} NvmReplayMap;

static inline const NvmReplayIndex *
nvm_replay_indexes(const NvmReplayMap *map)
{
	return (const NvmReplayIndex *) &map->tables[map->ntables];
}

/*
 * Make schema `schema` with an empty UNLOGGED table for each permanent table of nvm_cmdlog in
 * the database, partitions by themselves, in the current transaction.  AccessShareLocks on
 * the originals stay until its end.  ERROR if one has an index that does not lie in
 * memory, and if the schema is there.  The map is palloc'd.  Names: that of the table, or,
 * if two have it, with the original's Oid.
 *
 * Caller: a superuser; READ COMMITTED; a snapshot is not needed.
 */
extern PGDLLEXPORT NvmReplayMap *nvm_replay_copy_make(const char *schema);

/*
 * Drop the schema with all that is in it, if it is there.  ERROR if nvm_replay_copy_make has not
 * made it.  True if there was one.
 */
extern PGDLLEXPORT bool nvm_replay_copy_drop(const char *schema);

/* the table whose original has this storage, or NULL */
extern PGDLLEXPORT const NvmReplayTable *nvm_replay_find(const NvmReplayMap *map, uint32 dir);

/*
 * Lead this process to the copy, for good: see nvm_storage_redirect_only.  In a transaction,
 * or outside of any.  It tells the cumulative statistics nothing any more.  Its transactions
 * plan no parallel queries if nvm_command_replaying is set, which is the caller's to do.
 */
extern PGDLLEXPORT void nvm_replay_redirect(const NvmReplayMap *map);

/* ---- replay_original.c: without a copy, after a loss ---- */

/*
 * The map of the database's tables that are closed: each is its own copy.  RowExclusiveLocks on
 * them are the session's, and stay.  In a transaction; may wait for whoever has a stronger lock.
 */
extern NvmReplayMap *nvm_replay_originals(void);

/* build the indexes that are absent, as the owners of their tables; in no transaction */
extern void nvm_replay_build_indexes(const NvmReplayMap *map);

/* this process may write these tables, and no others, for good */
extern void nvm_replay_stay(const NvmReplayMap *map);

#endif							/* NVM_REPLAY_COPY_H */
