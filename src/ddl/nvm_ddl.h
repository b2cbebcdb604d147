/*-------------------------------------------------------------------------
 *
 * nvm_ddl.h
 *	  DDL: what ddl*.c share.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_DDL_H
#define NVM_DDL_H

#include "catalog/pg_class.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"
#include "utils/relcache.h"

/* ---- ddl_hooks.c ---- */

extern void nvm_ddl_register_hooks(void);	/* object access, utility; in
											 * _PG_init */

/* ---- ddl_database.c ---- */

extern void nvm_ddl_copy_database(const char *template_name, Oid template, Oid database);
extern void nvm_ddl_before_drop_database(void);
extern void nvm_ddl_drop_database(Oid database);

/* ---- ddl_publication.c ---- */

extern void nvm_ddl_check_publication(Node *stmt);

/* ---- ddl_index_method.c ---- */

extern void nvm_ddl_define_settings(void);
extern bool nvm_ddl_takes_ours(Form_pg_class table, bool unique);
extern PlannedStmt *nvm_ddl_choose_index_method(PlannedStmt *pstmt, const char *queryString);
extern void nvm_ddl_prepare_index_method(PlannedStmt *pstmt);
extern PlannedStmt *nvm_ddl_name_opclasses(PlannedStmt *pstmt);
extern void nvm_ddl_created_index(Oid indexid);
extern Oid	nvm_ddl_index_opclass(Oid indexid, int i);
extern void nvm_ddl_set_index_opclasses(Oid indexid, const oidvector *classes);

/* ---- ddl_index.c ---- */

/* what is noted of the indexes that a command makes, alters and drops */
typedef struct NvmIndexWatch
{
	struct NvmIndexWatch *outer;
	MemoryContext context;
	List	   *touched;		/* Oids of relations */
	List	   *dropped;
	List	   *moved;			/* Oids of tables, by SET TABLESPACE */
	List	   *storages;		/* to be ended when it is over */
	List	   *aside;			/* ddl_recreate.c */
} NvmIndexWatch;

extern void nvm_ddl_watch_begin(NvmIndexWatch *w);
extern void nvm_ddl_watch_end(NvmIndexWatch *w);
extern NvmIndexWatch *nvm_ddl_current_watch(void);
extern void nvm_ddl_settle_indexes(NvmIndexWatch *w, bool goes_on);
extern void nvm_ddl_watch_relation(Oid relid);
extern void nvm_ddl_drop_index(Oid relid, uint32 dir, int dropflags);
extern PlannedStmt *nvm_ddl_clone_index(PlannedStmt *pstmt);
extern void nvm_ddl_created_btree(Oid indexid);
extern bool nvm_ddl_replaces_ours(NvmIndexWatch *w, Relation index);
extern void nvm_ddl_register_index_callbacks(void);

/* ---- ddl_index_change.c ---- */

extern void nvm_ddl_set_index_method(Oid indexid, Oid am, bool just_made);

/* ---- ddl_index_lock.c ---- */

extern void nvm_ddl_lock_tables(Node *stmt);

/* ---- ddl_vacuum.c ---- */

extern PlannedStmt *nvm_ddl_vacuum_available(PlannedStmt *pstmt, bool top_level);

/* ---- ddl_access_method.c ---- */

extern void nvm_ddl_swapped_table(Oid relid);
extern void nvm_ddl_created_relation(Oid relid);

/* ---- ddl_recreate.c ---- */

extern char *nvm_ddl_get_persistence(Oid indexid);
extern void nvm_ddl_set_persistence(Oid indexid, const char *value);
extern void nvm_ddl_lay_aside(AlterTableStmt *stmt, NvmIndexWatch *w);
extern void nvm_ddl_put_back(NvmIndexWatch *w);
extern void nvm_ddl_recreated_index(NvmIndexWatch *w, Oid indexid);

/* ---- ddl_mode.c: DDL and calls that are logged alone ---- */

/*
 * Is the statement DDL to them?  Then it begins, and may wait; and when it has run it is held
 * against what such calls need.  Both may ERROR.  nvm_command_ddl_statement_ends follows in any
 * case.
 */
extern bool nvm_ddl_is_ddl(Node *stmt);
extern void nvm_ddl_mode_begins(Node *stmt);
extern void nvm_ddl_mode_check(NodeTag tag);

extern bool nvm_ddl_reindexes_concurrently(Node *stmt);

/* CREATE INDEX or REINDEX CONCURRENTLY, before it runs; its method is chosen.  May ERROR */
extern void nvm_ddl_mode_check_concurrent(Node *stmt);

/* ERROR if a table of the database does not fit calls that are logged alone */
extern void nvm_ddl_require_fit(void);
extern void nvm_ddl_register_mode(void);

#endif							/* NVM_DDL_H */
