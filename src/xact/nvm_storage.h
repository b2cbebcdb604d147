/*-------------------------------------------------------------------------
 *
 * nvm_storage.h
 *	  Storages of the current transaction, for tables and indexes.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_STORAGE_H
#define NVM_STORAGE_H

#include "compat/nvm_compat.h"
#include "pool/nvm_pool.h"
#include "utils/rel.h"

/*
 * ERROR unless nvm storage can be used in this process now: library
 * preloaded, pool open, no recovery.  Settles what the last crash left in doubt.
 */
extern void nvm_table_require(void);

/*
 * The directory key of rel's storage, if it is (or will be) at *locator.  In a process
 * with redirections it is where these lead.
 */
extern void nvm_storage_key(Relation rel, const NvmLocator *locator,
							NvmStorageKey *key);

/* the storage there, 0 if there is none; *key, unless it is NULL: what was looked for */
extern uint32 nvm_storage_find(Relation rel, NvmStorageKey *key);

/* the key, but where the catalogs say, in any process */
extern void nvm_storage_own_key(Relation rel, const NvmLocator *locator,
								NvmStorageKey *key);

/* ---- storage_redirect.c: a process that works on a copy ---- */

/*
 * From now on this process finds storage *to where the catalogs say *from.  `to` is no
 * storage of a permanent relation.  For the life of the process: there is no way back.
 */
extern void nvm_storage_redirect(const NvmStorageKey *from, const NvmStorageKey *to);

/*
 * The redirections are complete: forget what relations have cached of their storages.  From
 * now on
 *	- it is an ERROR to look for the storage of a relation that has no redirection and for
 *	  which must_have says true;
 *	- it is an ERROR to change rows of a storage that is neither one to which a redirection
 *	  leads nor a temporary one.
 * In a transaction, or outside of any; no relation of ours is open in a query.
 */
extern void nvm_storage_redirect_only(bool (*must_have) (Relation rel));

/* has nvm_storage_redirect_only been called in this process? */
extern bool nvm_storage_redirected;

/* before rows of storage `dir` are changed, in such a process */
extern void nvm_storage_require_target(uint32 dir);

/* of nvm_storage_key */
extern void nvm_storage_redirect_key(Relation rel, NvmStorageKey *key);

/*
 * The form of a new storage of rel.  `table` is rel, or the table of index
 * rel, which has its storage: both are in one region.
 */
extern void nvm_storage_form(Relation rel, Relation table, uint32 kind, char persistence,
							 NvmStorageForm *form);

/*
 * Tables whose access method returns this routine when their storage is made
 * have their rows, and their indexes' entries, in the volatile region.  is_logged: the
 * log brings those of permanent tables back.  In the postmaster; a test's library
 * calls it, too.
 */
extern PGDLLEXPORT void nvm_storage_register_volatile(const struct TableAmRoutine *routine,
													  bool is_logged);

/*
 * Transactions that write tables of this method, which was registered as logged, may be
 * replayed by their calls: their storages have NVM_DIR_COMMANDS.
 */
extern void nvm_storage_register_commands(const struct TableAmRoutine *routine);

/*
 * Before a process comes to a storage for the first time: ERROR if its rows cannot be
 * brought back; wait while they are.  The caller holds no LWLock.  name: of the
 * relation, or NULL.  require_region: the same before one with these flags is made.
 */
extern void nvm_storage_require_rows(uint32 dir, const char *name);

/* the same of the storage of a relation; without one it does nothing */
extern void nvm_storage_require_open(Relation rel);
extern void nvm_storage_require_region(uint32 flags);

/* would that wait?  would it do neither that nor fail? */
extern bool nvm_storage_is_being_rebuilt(uint32 dir);
extern bool nvm_storage_is_open(uint32 dir);

/*
 * Why no process comes to a storage of the volatile region that is not open, for a DETAIL;
 * NULL if any does, at once or when the rows have been brought back.
 */
extern const char *nvm_storage_why_unavailable(void);

/* both are taken back with the subtransaction */
extern uint32 nvm_storage_make(const NvmStorageKey *key, const NvmStorageForm *form);
extern void nvm_storage_end(uint32 dir);

/* is rel a relation with rows in the pool? */
extern bool nvm_storage_is_table(Relation rel);

/* take all blocks away from a storage that nobody else can use */
extern void nvm_storage_empty(uint32 dir);

#endif							/* NVM_STORAGE_H */
