/*-------------------------------------------------------------------------
 *
 * nvm_storage_relation.h
 *	  A relation's storage as a whole: made, emptied, copied, found.
 *
 * xact/nvm_storage.h has storages as transactions make and end them.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_STORAGE_RELATION_H
#define NVM_STORAGE_RELATION_H

#include "compat/nvm_compat.h"


/* ---- storage_relation.c ---- */

extern void nvm_relation_set_new_filelocator(Relation rel,
											 const NvmLocator *newlocator,
											 char persistence,
											 TransactionId *freezeXid,
											 MultiXactId *minmulti);
extern void nvm_relation_nontransactional_truncate(Relation rel);
extern void nvm_relation_copy_data(Relation rel, const NvmLocator *newlocator);

extern uint32 nvm_storage_of(Oid relid);

/* ERROR in a server that pg_upgrade has started */
extern void nvm_storage_refuse_upgrade(void);

/* told of each table that SET TABLESPACE has given another storage */
typedef void (*NvmMovedFunction) (Oid relid);

extern void nvm_storage_register_moved(NvmMovedFunction moved);

/* ---- storage_copy.c ---- */

extern void nvm_storage_copy(uint32 from, uint32 to);

/* ---- old_marks.c ---- */

extern void nvm_table_forget_old_marks(void);

#endif							/* NVM_STORAGE_RELATION_H */
