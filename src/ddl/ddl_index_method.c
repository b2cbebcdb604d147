/*-------------------------------------------------------------------------
 *
 * ddl_index_method.c
 *	  Which indexes of nvm tables are of access method nvm_btree though nobody
 *	  names it: those with parameter persistence, and with nvm.index_identity =
 *	  nvm_btree all for which none is named.
 *
 * PostgreSQL's default is a constant of its grammar.  So a statement that says
 * nothing looks like one that says USING btree, and the text of the statement
 * decides.  An index of a constraint, or one that LIKE clones, has no text of
 * its own and takes the default.
 *
 * Foreign keys, merge joins, min() and max(), and equivalence classes want
 * operator classes of btree.  nvm_btree has some of the same names, so that
 * PostgreSQL finds them when it makes an index.  Then pg_index.indclass gets
 * btree's in their place: indclass says how keys compare, relam which access
 * method keeps them.  Since btree's support functions have the same numbers,
 * nothing else differs.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_identity.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_opclass.h"
#include "commands/defrem.h"
#include "compat/nvm_compat_am.h"
#include "ddl/nvm_ddl.h"
#include "nodes/parsenodes.h"
#include "nodes/value.h"
#include "parser/parser.h"
#include "parser/scanner.h"
#include "row/nvm_relation.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

/* what nvm_default_index_method may be */
static const struct config_enum_entry index_methods[] = {
	{NVM_BTREE_NAME, NVM_INDEX_METHOD_NVM, false},
	{"btree", NVM_INDEX_METHOD_BTREE, false},
	{NULL, 0, false}
};

/*
 * In _PG_init.
 */
void
nvm_ddl_define_settings(void)
{
	DefineCustomEnumVariable("nvm.default_index_method",
							 "Where new btree indexes of nvm tables lie: in the pool, or with btree in files.",
							 "nvm.index_identity says what the catalogs call those in the pool.",
							 &nvm_default_index_method,
							 NVM_DEFAULT_INDEX_METHOD,
							 index_methods,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);
}

/*
 * Is it a table whose indexes we choose?  Before 18 unique indexes must be
 * btree's for REFRESH MATERIALIZED VIEW CONCURRENTLY, and for ON CONFLICT where
 * rows are routed to a partition (speculative.c).
 */
bool
nvm_ddl_takes_ours(Form_pg_class table, bool unique)
{
	if ((table->relkind == RELKIND_RELATION &&
		 !(table->relispartition && unique && NVM_SPECULATIVE_WANTS_BTREE)) ||
		(table->relkind == RELKIND_MATVIEW &&
		 !(unique && NVM_MATVIEW_WANTS_BTREE)))
		return nvm_access_method_is_ours(table->relam);
	return false;
}

/*
 * The same of a table that need not exist.
 */
static bool
method_is_ours(RangeVar *name, bool unique)
{
	Oid			relid = RangeVarGetRelid(name, NoLock, true);
	HeapTuple	tuple;
	bool		ours;

	if (!OidIsValid(relid))
		return false;
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	if (!HeapTupleIsValid(tuple))
		return false;
	ours = nvm_ddl_takes_ours((Form_pg_class) GETSTRUCT(tuple), unique);
	ReleaseSysCache(tuple);
	return ours;
}

/* the scanner's token of a keyword */
static int
keyword_token(const char *word)
{
	int			n = ScanKeywordLookup(word, &ScanKeywords);

	return n >= 0 ? (int) ScanKeywordTokens[n] : -1;
}

/*
 * Does the text of CREATE INDEX name an access method?  Between ON and the
 * list of columns there are a name, perhaps qualified, and USING.  (If one of
 * several CREATE INDEX in one CREATE SCHEMA does, it speaks for all.)
 */
static bool
text_has_using(PlannedStmt *pstmt, const char *queryString)
{
	char	   *text;
	core_yyscan_t scanner;
	core_yy_extra_type extra;
	core_YYSTYPE value;
	YYLTYPE		location;
	int			token;
	int			token_index = keyword_token("index");
	int			token_on = keyword_token("on");
	int			token_using = keyword_token("using");
	enum
	{
		OUTSIDE, AFTER_INDEX, AFTER_ON
	}			state = OUTSIDE;
	bool		found = false;

	if (queryString == NULL)
		return true;
	if (pstmt->stmt_location >= 0 && pstmt->stmt_len > 0)
		text = pnstrdup(queryString + pstmt->stmt_location, pstmt->stmt_len);

	else
		text = pstrdup(queryString + Max(pstmt->stmt_location, 0));

	scanner = scanner_init(text, &extra, &ScanKeywords, ScanKeywordTokens);
	while (!found && (token = core_yylex(&value, &location, scanner)) != 0)
	{
		if (token == token_index)
			state = AFTER_INDEX;
		else if (state == AFTER_INDEX && token == token_on)
			state = AFTER_ON;
		else if (state == AFTER_ON && token == token_using)
			found = true;
		else if (state == AFTER_ON && token == '(')
			state = OUTSIDE;
	}
	scanner_finish(scanner);
	pfree(text);
	return found;
}

/*
 * Is there an index parameter that btree does not know?
 */
static bool
wants_persistence(List *options)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		if (strcmp(lfirst_node(DefElem, lc)->defname, "persistence") == 0)
			return true;
	}
	return false;
}

/*
 * Let the PRIMARY KEYs and UNIQUEs in a list of constraints take ours.
 */
static bool
constraint_take_ours(Constraint *con)
{
	if ((con->contype != CONSTR_PRIMARY && con->contype != CONSTR_UNIQUE) ||
		con->access_method != NULL)
		return false;
	if (con->indexname != NULL)
		return false;			/* USING INDEX */
	if (nvm_index_identity_applies() && !wants_persistence(con->options))
		return false;
	con->access_method = pstrdup(NVM_BTREE_NAME);
	return true;
}

/*
 * ALTER TABLE ... ADD PRIMARY KEY and the like never come by as statements of
 * their own.
 */
static bool
alter_table_take_ours(AlterTableStmt *stmt)
{
	bool		changed = false;
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *cmd = lfirst_node(AlterTableCmd, lc);
		ListCell   *lc2;

		if (cmd->def == NULL)
			continue;
		if (IsA(cmd->def, Constraint))
			changed |= constraint_take_ours((Constraint *) cmd->def);
		else if (IsA(cmd->def, ColumnDef))
		{
			foreach(lc2, ((ColumnDef *) cmd->def)->constraints)
			{
				if (IsA(lfirst(lc2), Constraint))
					changed |= constraint_take_ours((Constraint *) lfirst(lc2));
			}
		}
	}
	return changed;
}

/*
 * ProcessUtility_hook, before the statement: if it may make an index of ours,
 * make sure of the operator classes.
 */
void
nvm_ddl_prepare_index_method(PlannedStmt *pstmt)
{
	Node	   *node = pstmt->utilityStmt;

	if (!IsA(node, AlterTableStmt) &&
		!(IsA(node, IndexStmt) &&
		  strcmp(((IndexStmt *) node)->accessMethod, NVM_BTREE_NAME) == 0))
		return;
	if (IsTransactionState() && !RecoveryInProgress() && !XactReadOnly)
		nvm_btree_complete_opclasses();
}

/*
 * ProcessUtility_hook, before the statement.  Returns the statement, or a copy
 * with the access method that it did not name.
 */
PlannedStmt *
nvm_ddl_choose_index_method(PlannedStmt *pstmt, const char *queryString)
{
	Node	   *node = pstmt->utilityStmt;

	if (nvm_default_index_method != NVM_INDEX_METHOD_NVM)
		return pstmt;

	if (IsA(node, IndexStmt))
	{
		IndexStmt  *stmt = (IndexStmt *) node;

		if (strcmp(stmt->accessMethod, DEFAULT_INDEX_TYPE) != 0 ||
			stmt->excludeOpNames != NIL || stmt->relation == NULL ||
			OidIsValid(stmt->indexOid) ||
			(nvm_index_identity_applies() && !wants_persistence(stmt->options)) ||
			!method_is_ours(stmt->relation, stmt->unique))
			return pstmt;
		if (!stmt->isconstraint && !stmt->transformed &&
			text_has_using(pstmt, queryString))
			return pstmt;
		pstmt = copyObject(pstmt);
		((IndexStmt *) pstmt->utilityStmt)->accessMethod = pstrdup(NVM_BTREE_NAME);
	}
	else if (IsA(node, AlterTableStmt) &&
			 ((AlterTableStmt *) node)->objtype == OBJECT_TABLE &&
			 method_is_ours(((AlterTableStmt *) node)->relation, true))
	{
		PlannedStmt *copy = copyObject(pstmt);

		if (alter_table_take_ours((AlterTableStmt *) copy->utilityStmt))
			pstmt = copy;
	}
	return pstmt;
}

/*
 * ProcessUtility_hook, when the operator classes are made.  Returns the statement or a
 * changed copy.
 */
PlannedStmt *
nvm_ddl_name_opclasses(PlannedStmt *pstmt)
{
	IndexStmt  *stmt = (IndexStmt *) pstmt->utilityStmt;

	if (!IsA(stmt, IndexStmt) || strcmp(stmt->accessMethod, NVM_BTREE_NAME) != 0 ||
		!OidIsValid(get_index_am_oid(NVM_BTREE_NAME, true)))
		return pstmt;
	pstmt = copyObject(pstmt);
	nvm_btree_name_opclasses((IndexStmt *) pstmt->utilityStmt);
	return pstmt;
}

/*
 * The operator class of key column i of an index.  The relcache's copy of the
 * row in pg_index may be older.
 */
Oid
nvm_ddl_index_opclass(Oid indexid, int i)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(indexid));
	Datum		datum;
	bool		isnull;
	Oid			result;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", indexid);
	datum = SysCacheGetAttr(INDEXRELID, tuple, Anum_pg_index_indclass, &isnull);
	Assert(!isnull);
	result = ((oidvector *) DatumGetPointer(datum))->values[i];
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Give the relcache entry of an index the operator classes, and their
 * families, that pg_index got after the entry was built.  The index was just
 * made and is not built yet.  An entry of the current transaction is never
 * read anew.  If the command that made the index aborts the entry goes away,
 * so there is nothing to undo.
 */
static void
renew_entry(Oid indexid, const oidvector *classes)
{
	Relation	index = index_open(indexid, NoLock);
	Datum		datum;
	bool		isnull;

	datum = SysCacheGetAttr(INDEXRELID, index->rd_indextuple,
							Anum_pg_index_indclass, &isnull);
	Assert(!isnull);
	for (int i = 0; i < classes->dim1; i++)
	{
		((oidvector *) DatumGetPointer(datum))->values[i] = classes->values[i];
		index->rd_opfamily[i] = get_opclass_family(classes->values[i]);
	}
	index_close(index, NoLock);
}

/*
 * The pattern operator classes compare bytes.  By some collations strings are
 * equal whose bytes differ, and these classes do not know that.  PostgreSQL
 * refuses them there by their numbers.  Ours have other numbers.
 */
static void
check_pattern_opclass(Oid opclass, Oid collation)
{
	HeapTuple	tuple;

	if ((opclass != TEXT_BTREE_PATTERN_OPS_OID &&
		 opclass != VARCHAR_BTREE_PATTERN_OPS_OID &&
		 opclass != BPCHAR_BTREE_PATTERN_OPS_OID) ||
		!OidIsValid(collation) || get_collation_isdeterministic(collation))
		return;
	tuple = SearchSysCache1(CLAOID, ObjectIdGetDatum(opclass));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for operator class %u", opclass);
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("nondeterministic collations are not supported for operator class \"%s\"",
					NameStr(((Form_pg_opclass) GETSTRUCT(tuple))->opcname))));
}

/*
 * Set pg_index.indclass of an index.  Relcache entries that are open, or of
 * the current transaction, do not show it (renew_entry).
 */
void
nvm_ddl_set_index_opclasses(Oid indexid, const oidvector *classes)
{
	Relation	pg_index = table_open(IndexRelationId, RowExclusiveLock);
	HeapTuple	tuple = SearchSysCacheCopy1(INDEXRELID, ObjectIdGetDatum(indexid));
	Datum		values[Natts_pg_index] = {0};
	bool		nulls[Natts_pg_index] = {0};
	bool		replace[Natts_pg_index] = {0};

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", indexid);
	values[Anum_pg_index_indclass - 1] = PointerGetDatum(classes);
	replace[Anum_pg_index_indclass - 1] = true;
	tuple = heap_modify_tuple(tuple, RelationGetDescr(pg_index), values, nulls, replace);
	CatalogTupleUpdate(pg_index, &tuple->t_self, tuple);
	CommandCounterIncrement();
	table_close(pg_index, RowExclusiveLock);
}

/*
 * Index indexid was made, and is not built yet (OAT_POST_CREATE): it is ours,
 * and gets the operator classes of btree.
 */
void
nvm_ddl_created_index(Oid indexid)
{
	HeapTuple	tuple;
	Datum		datum;
	bool		isnull;
	oidvector  *classes;
	oidvector  *collations;
	ObjectAddress index;
	bool		changed = false;

	/* the index's rows in the catalogs are of this command */
	CommandCounterIncrement();

	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(indexid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", indexid);
	datum = SysCacheGetAttr(INDEXRELID, tuple, Anum_pg_index_indclass, &isnull);
	Assert(!isnull);
	classes = (oidvector *) PG_DETOAST_DATUM_COPY(datum);
	datum = SysCacheGetAttr(INDEXRELID, tuple, Anum_pg_index_indcollation, &isnull);
	Assert(!isnull);
	collations = (oidvector *) PG_DETOAST_DATUM_COPY(datum);
	ReleaseSysCache(tuple);

	ObjectAddressSet(index, RelationRelationId, indexid);
	for (int i = 0; i < classes->dim1; i++)
	{
		Oid			theirs = nvm_btree_opclass_model(classes->values[i]);
		ObjectAddress opclass;

		if (theirs == classes->values[i])
			continue;
		check_pattern_opclass(theirs, collations->values[i]);
		classes->values[i] = theirs;
		ObjectAddressSet(opclass, OperatorClassRelationId, theirs);
		recordDependencyOn(&index, &opclass, DEPENDENCY_NORMAL);
		changed = true;
	}
	if (changed)
	{
		nvm_ddl_set_index_opclasses(indexid, classes);
		renew_entry(indexid, classes);
	}
}
