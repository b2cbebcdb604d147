/*-------------------------------------------------------------------------
 *
 * storage_redirect.c
 *	  A process that finds other storages than the catalogs say: those of a copy.
 *
 * A replay calls functions whose queries name the originals, and works on copies of these
 * (replay/README.md).  So a process of a replay has, for each storage that has a copy, a
 * redirection there.  It is followed where a Relation becomes a storage
 * (nvm_storage_key), once for each cached answer.  All that is beyond this is by storage:
 * rows, entries, locks of blocks, visibility, undo.  What goes by Relation is that of the
 * original: columns, indexes, triggers, the locks of the lock manager.
 *
 * The process must not change anything else.  That is held in two places: the storage of a
 * relation that should have a copy and has none is not found, and rows of a storage that is no
 * copy are not changed (nvm_row_change_begin).
 *
 * Parallel workers know nothing of redirections: such a process plans no parallel query.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pool/nvm_pool.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "xact/nvm_storage.h"

typedef struct Redirection
{
	NvmStorageKey from;			/* key */
	NvmStorageKey to;
} Redirection;

/* NULL as long as there is none */
static HTAB *redirections = NULL;

/* the storages to which they lead: keys alone */
static HTAB *targets = NULL;

bool		nvm_storage_redirected = false;

static bool (*must_be_redirected) (Relation rel) = NULL;

static HTAB *
make_table(const char *name, Size size)
{
	HASHCTL		ctl = {.keysize = sizeof(NvmStorageKey),.entrysize = size,.hcxt = TopMemoryContext};

	return hash_create(name, 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/*
 * See nvm_storage.h.
 */
void
nvm_storage_redirect(const NvmStorageKey *from, const NvmStorageKey *to)
{
	Redirection *redirection;

	if (redirections == NULL)
		redirections = make_table("nvm redirected storages", sizeof(Redirection));
	if (targets == NULL)
		targets = make_table("nvm storages of a copy", sizeof(NvmStorageKey));
	(void) hash_search(targets, to, HASH_ENTER, NULL);
	redirection = hash_search(redirections, from, HASH_ENTER, NULL);
	redirection->to = *to;
}

/*
 * See nvm_storage.h.
 */
void
nvm_storage_redirect_only(bool (*must_have) (Relation rel))
{
	must_be_redirected = must_have;
	nvm_storage_redirected = true;
	/* the relcache drops what rd_amcache knows of a storage */
	InvalidateSystemCaches();
}

/*
 * See nvm_storage.h.
 */
void
nvm_storage_redirect_key(Relation rel, NvmStorageKey *key)
{
	Redirection *redirection = redirections == NULL ? NULL :
	hash_search(redirections, key, HASH_FIND, NULL);

	if (redirection != NULL)
		*key = redirection->to;
	else if (must_be_redirected != NULL && must_be_redirected(rel))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("relation \"%s\" has no copy in this replay",
						RelationGetRelationName(rel)),
				 errdetail("It was made or rewritten since the replay has begun, or is not among what is replayed."),
				 errhint("Make a checkpoint with nvm.checkpoint(), let the application work, and begin the replay anew.")));
}

/*
 * See nvm_storage.h.
 */
void
nvm_storage_require_target(uint32 dir)
{
	const NvmDirEntry *entry = nvm_dir_entry(dir);
	NvmStorageKey key;

	if ((entry->flags & NVM_DIR_TEMP) != 0)
		return;
	memset(&key, 0, sizeof(key));
	key.database = entry->database;
	key.tablespace = entry->tablespace;
	key.relnumber = entry->relnumber;
	if (targets == NULL || hash_search(targets, &key, HASH_FIND, NULL) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a replay cannot write rows of storage %u of the pool", dir),
				 errdetail("The storage, file number %llu of database %u, is not one of the replay's copy.",
						   (unsigned long long) entry->relnumber, entry->database)));
}
