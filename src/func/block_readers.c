/*-------------------------------------------------------------------------
 *
 * block_readers.c
 *	  Functions of other extensions that read a relation's file by themselves.
 *
 * pg_prewarm, pageinspect and pg_visibility read a relation's blocks through the
 * buffer cache.  The file of a table of ours is empty: they would say "could not
 * read block 0 in file ...: read only 0 of 8192 bytes", which is what damage looks
 * like.  The file of an index that says btree and is ours has one page, whose root
 * lies beyond its end (ddl/IDENTITY.md): pageinspect and pgstattuple would show an
 * empty index, amcheck would find it damaged.
 *
 * fmgr_hook tells us when such a function is called, with the FmgrInfo that it is
 * called by.  We put our own function there, as command/command_call.c does.  It
 * looks at the relation that the first argument names, and
 *
 *	- for a table or an index of ours ends in an error that says what is the matter;
 *	- for amcheck of such an index checks it as nvm.check() does, since pg_amcheck
 *	  has amcheck go through each index that says btree;
 *	- else calls the function.
 *
 * Functions of theirs that read only a visibility or free space map find none and
 * say so.  Those that refuse other access methods than heap by themselves do.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/transam.h"
#include "btree/nvm_btree.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_language_d.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type_d.h"
#include "func/nvm_block_readers.h"
#include "row/nvm_relation.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

/* what a function reads that ours have not */
#define READS_TABLE		0x01
#define READS_INDEX		0x02
#define CHECKS_INDEX	0x04

/* what the C functions are called, whatever the SQL functions are */
static const struct
{
	const char *symbol;
	int			what;
}			block_readers[] =

{
	{"pg_prewarm", READS_TABLE},
	{"get_raw_page", READS_TABLE | READS_INDEX},
	{"get_raw_page_1_9", READS_TABLE | READS_INDEX},
	{"get_raw_page_fork", READS_TABLE | READS_INDEX},
	{"get_raw_page_fork_1_9", READS_TABLE | READS_INDEX},
	{"pg_visibility", READS_TABLE},
	{"pg_visibility_rel", READS_TABLE},
	{"bt_metap", READS_INDEX},
	{"bt_page_stats", READS_INDEX},
	{"bt_page_stats_1_9", READS_INDEX},
	{"bt_multi_page_stats", READS_INDEX},
	{"bt_page_items", READS_INDEX},
	{"bt_page_items_1_9", READS_INDEX},
	{"pgstattuple", READS_INDEX},
	{"pgstattuple_v1_5", READS_INDEX},
	{"pgstattuplebyid", READS_INDEX},
	{"pgstattuplebyid_v1_5", READS_INDEX},
	{"pgstatindex", READS_INDEX},
	{"pgstatindex_v1_5", READS_INDEX},
	{"pgstatindexbyid", READS_INDEX},
	{"pgstatindexbyid_v1_5", READS_INDEX},
	{"bt_index_check", CHECKS_INDEX},
	{"bt_index_parent_check", CHECKS_INDEX}
};

/* what is called by our function's address */
typedef struct BlockReader
{
	Oid			function;		/* hash key */
	int			what;
	bool		parent;			/* bt_index_parent_check */
	PGFunction	original;
} BlockReader;

static HTAB *readers = NULL;

static Datum block_reader_shim(PG_FUNCTION_ARGS);

/*
 * Which of them is it?  -1: none.
 */
static int
which_reader(Oid fn_oid)
{
	HeapTuple	tuple;
	int			which = -1;

	if (fn_oid < FirstNormalObjectId)
		return -1;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(fn_oid));
	if (!HeapTupleIsValid(tuple))
		return -1;
	if (((Form_pg_proc) GETSTRUCT(tuple))->prolang == ClanguageId)
	{
		bool		isnull;
		Datum		datum = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &isnull);
		char	   *symbol = isnull ? NULL : TextDatumGetCString(datum);

		for (int i = 0; symbol != NULL && which < 0 && i < (int) lengthof(block_readers); i++)
		{
			if (strcmp(symbol, block_readers[i].symbol) == 0)
				which = i;
		}
		if (symbol != NULL)
			pfree(symbol);
	}
	ReleaseSysCache(tuple);
	return which;
}

/*
 * needs_fmgr_hook: is it one of them?
 */
bool
nvm_is_block_reader(Oid fn_oid)
{
	return which_reader(fn_oid) >= 0;
}

/*
 * FHET_START: the function is called next, with this FmgrInfo.  It lives as long as
 * the expression, so it may have our address already.
 */
void
nvm_block_reader_enter(FmgrInfo *flinfo)
{
	int			which;
	BlockReader *reader;

	if (flinfo->fn_addr == block_reader_shim || (which = which_reader(flinfo->fn_oid)) < 0)
		return;
	if (readers == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(Oid),.entrysize = sizeof(BlockReader)};

		readers = hash_create("nvm functions that read files", 16, &ctl, HASH_ELEM | HASH_BLOBS);
	}
	reader = (BlockReader *) hash_search(readers, &flinfo->fn_oid, HASH_ENTER, NULL);
	reader->what = block_readers[which].what;
	reader->parent = strcmp(block_readers[which].symbol, "bt_index_parent_check") == 0;
	reader->original = flinfo->fn_addr;
	flinfo->fn_addr = block_reader_shim;
}

/*
 * The relation that the first argument names, by oid or by name.  InvalidOid: none,
 * and the function itself will say so.
 */
static Oid
named_relation(FunctionCallInfo fcinfo)
{
	Oid		   *types;
	int			ntypes;

	if (PG_NARGS() == 0 || PG_ARGISNULL(0))
		return InvalidOid;
	(void) get_func_signature(fcinfo->flinfo->fn_oid, &types, &ntypes);
	if (ntypes == 0)
		return InvalidOid;
	if (types[0] == OIDOID || types[0] == REGCLASSOID)
		return PG_GETARG_OID(0);
	if (types[0] != TEXTOID)
		return InvalidOid;
	return RangeVarGetRelid(makeRangeVarFromNameList(textToQualifiedNameList(PG_GETARG_TEXT_PP(0))),
							NoLock, true);
}

static void
refuse(Relation rel, Oid function, bool is_index)
{
	ereport(ERROR,
			(errcode(ERRCODE_WRONG_OBJECT_TYPE),
			 is_index ?
			 errmsg("function %s cannot read index \"%s\" of an nvm table",
					get_func_name(function), RelationGetRelationName(rel)) :
			 errmsg("function %s cannot read nvm table \"%s\"",
					get_func_name(function), RelationGetRelationName(rel)),
			 is_index ?
			 errdetail("Its entries are in the persistent-memory pool, not in files and buffers.") :
			 errdetail("The rows of nvm tables are in the persistent-memory pool, not in files and buffers."),
			 is_index ?
			 errhint("nvm.check() verifies it, and view nvm.relations shows what it takes.") :
			 errhint("They are in memory without being prewarmed; nvm.check() verifies them, and view nvm.relations shows what they take.")));
}

/*
 * amcheck of an index of ours, which is locked as amcheck locks it: the table first.
 * Returns false if it is none any more.
 */
static bool
check_instead(FunctionCallInfo fcinfo, const BlockReader *reader, Oid indexid, Oid heapid)
{
	LOCKMODE	lockmode = reader->parent ? ShareLock : AccessShareLock;
	int			unique_arg = reader->parent ? 3 : 2;
	bool		heapallindexed = PG_NARGS() > 1 && PG_GETARG_BOOL(1);
	bool		ours = false;
	Relation	heap = try_table_open(heapid, lockmode);
	Relation	index = heap == NULL ? NULL : try_relation_open(indexid, lockmode);

	/* uniqueness is looked at where rows are */
	if (PG_NARGS() > unique_arg && PG_GETARG_BOOL(unique_arg))
		heapallindexed = true;
	if (index != NULL && index->rd_rel->relkind == RELKIND_INDEX &&
		index->rd_index->indrelid == heapid && nvm_relation_is_nvm(heap) &&
		nvm_relation_is_btree(index) && index->rd_index->indisvalid &&
		!RELATION_IS_OTHER_TEMP(index))
	{
		ours = true;
		nvm_check_index_or_fail(index, heap, heapallindexed);
	}
	if (index != NULL)
		relation_close(index, lockmode);
	if (heap != NULL)
		table_close(heap, lockmode);
	return ours;
}

/*
 * Is it an index that says btree and is ours?  Then *heapid is its table.
 */
static bool
is_such_index(Relation rel, Oid *heapid)
{
	Relation	heap;
	bool		ours;

	if (rel->rd_rel->relkind != RELKIND_INDEX || rel->rd_rel->relam != BTREE_AM_OID)
		return false;
	*heapid = rel->rd_index->indrelid;
	heap = RelationIdGetRelation(*heapid);
	if (heap == NULL)
		return false;
	ours = nvm_relation_is_nvm(heap) && nvm_relation_is_btree(rel);
	RelationClose(heap);
	return ours;
}

/*
 * In the place of such a function.  The lock by which we look at the relation is
 * given up again: amcheck locks the table first.
 */
static Datum
block_reader_shim(PG_FUNCTION_ARGS)
{
	Oid			function = fcinfo->flinfo->fn_oid;
	BlockReader *reader = (BlockReader *) hash_search(readers, &function, HASH_FIND, NULL);
	Oid			relid = named_relation(fcinfo);
	Oid			heapid = InvalidOid;
	Relation	rel = OidIsValid(relid) ? try_relation_open(relid, AccessShareLock) : NULL;
	bool		check = false;

	if (rel != NULL)
	{
		if ((reader->what & READS_TABLE) != 0 && nvm_relation_is_nvm(rel))
			refuse(rel, function, false);
		if ((reader->what & (READS_INDEX | CHECKS_INDEX)) != 0 && is_such_index(rel, &heapid))
		{
			if ((reader->what & READS_INDEX) != 0)
				refuse(rel, function, true);
			check = true;
		}
		relation_close(rel, AccessShareLock);
	}
	if (check && check_instead(fcinfo, reader, relid, heapid))
		PG_RETURN_VOID();
	return reader->original(fcinfo);
}
