/*-------------------------------------------------------------------------
 *
 * replay_copy_impl.h
 *	  What replay_copy.c, replay_index.c and replay_original.c share.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef REPLAY_COPY_IMPL_H
#define REPLAY_COPY_IMPL_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "pool/nvm_pool.h"
#include "replay/nvm_replay_copy.h"
#include "utils/rel.h"

/*
 * The tables of nvm_cmdlog of the database that the log brings back, opened.
 * Materialized views are tables, too.
 */
extern List *nvm_replay_open_originals(void);

/* the map of `n` tables, whose first_index is that in the list of NvmReplayIndex * */
extern NvmReplayMap *nvm_replay_make_map(NvmReplayTable **tables, int n, List *indexes);

/* must rel, a table or an index, have a redirection? */
extern bool nvm_replay_must_be_redirected(Relation rel);

/*
 * Was the index never built?  `key` is that of its storage, if it has one.  CREATE INDEX
 * CONCURRENTLY, and REINDEX, have an index in the catalogs before it has a storage, and leave it
 * so when they are interrupted.  Nobody puts entries there.
 */
extern bool nvm_replay_never_built(Relation index, const NvmStorageKey *key);

/* ERROR unless the index lies in memory */
extern void nvm_replay_require_btree(Relation original, Relation index);

/* a name in the copy's schema for what is like original; is_taken: by another one */
extern char *nvm_replay_choose_name(Relation original, Oid schema, bool is_taken);

/* the key of the storage that rel has */
extern void nvm_replay_storage_of(Relation rel, NvmStorageKey *key);

/*
 * Make indexes of `copy` like those of `original`: a list of NvmReplayIndex *, by the originals'
 * Oids.  *key_index: that of the copy by which value records name rows, or InvalidOid.
 */
extern List *nvm_replay_make_indexes(Relation original, Relation copy, Oid schema,
									 Oid *key_index);

#endif							/* REPLAY_COPY_IMPL_H */
