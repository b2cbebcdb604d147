/*-------------------------------------------------------------------------
 *
 * btree_opclass.c
 *	  Operator families and classes of nvm_btree: those of btree, once more.
 *
 * CREATE INDEX looks for an operator class of the index's own access method,
 * so each of btree's needs a namesake.  CREATE EXTENSION makes them, by the
 * commands that a user would give, from what the catalogs say of btree's.  For
 * operator classes that have come since they are made later.
 *
 * They live in pg_catalog: then every search path finds them, and pg_dump
 * leaves them alone.  The images of PostgreSQL's own models become part of the
 * extension, under the models' names.  Other models can be dropped while the
 * extension stays.  So their images depend on them, and on our access method,
 * but are no part of any extension.  Names are unique in a schema only, so
 * these images are called btree_OID.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/amvalidate.h"
#include "access/htup_details.h"
#include "access/transam.h"
#include "btree/nvm_btree.h"
#include "btree/nvm_btree_am.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_opclass.h"
#include "catalog/pg_opfamily.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "nodes/value.h"
#include "parser/parser.h"
#include "pool/nvm_pool.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(nvm_mirror_operator_classes);

#define METHOD		"nvm_btree"

/* what the image of x is called, FirstNormalObjectId being 16384 */
#define IMAGE_NAME(x, name) \
	"(CASE WHEN " x ".oid < 16384 THEN " x "." name \
	"      ELSE pg_catalog.format('btree_%s', " x ".oid)::pg_catalog.name END)"
#define FAMILY_NAME		IMAGE_NAME("f", "opfname")
#define CLASS_NAME		IMAGE_NAME("c", "opcname")

/* our family that stands for btree's family f */
#define OUR_FAMILY \
	"(SELECT o.oid FROM pg_catalog.pg_opfamily o" \
	"  WHERE o.opfnamespace = 'pg_catalog'::pg_catalog.regnamespace" \
	"    AND o.opfmethod = $1 AND o.opfname = " FAMILY_NAME ")"

/* families of btree without an image */
static const char *const missing_families =
"SELECT f.oid, pg_catalog.format('CREATE OPERATOR FAMILY pg_catalog.%I USING " METHOD "',"
"       " FAMILY_NAME "), 'pg_catalog', " FAMILY_NAME
"  FROM pg_catalog.pg_opfamily f"
" WHERE f.opfmethod = 403 AND " OUR_FAMILY " IS NULL"
" ORDER BY f.oid";

/*
 * Classes likewise.  A class is made without members: STORAGE says no more
 * than the type itself, but the syntax wants something.  Somebody may have
 * made a default class of ours for the type.
 */
static const char *const missing_classes =
"SELECT c.oid, pg_catalog.format('CREATE OPERATOR CLASS pg_catalog.%I %s FOR TYPE %s USING " METHOD
"       FAMILY %I.%I AS STORAGE %s', " CLASS_NAME ","
"       CASE WHEN c.opcdefault AND NOT EXISTS"
"              (SELECT FROM pg_catalog.pg_opclass d WHERE d.opcmethod = $1"
"                  AND d.opcintype = c.opcintype AND d.opcdefault)"
"            THEN 'DEFAULT' END,"
"       pg_catalog.format_type(c.opcintype, NULL), fn.nspname, o.opfname,"
"       pg_catalog.format_type(c.opcintype, NULL)), 'pg_catalog', " CLASS_NAME
"  FROM pg_catalog.pg_opclass c"
"  JOIN pg_catalog.pg_opfamily f ON f.oid = c.opcfamily"
"  JOIN pg_catalog.pg_opfamily o ON o.oid = " OUR_FAMILY
"  JOIN pg_catalog.pg_namespace fn ON fn.oid = o.opfnamespace"
" WHERE c.opcmethod = 403 AND NOT EXISTS"
"       (SELECT FROM pg_catalog.pg_opclass d WHERE d.opcmethod = $1"
"           AND d.opcnamespace = 'pg_catalog'::pg_catalog.regnamespace"
"           AND d.opcname = " CLASS_NAME ")"
" ORDER BY c.oid";

/* for each family of ours, one command that adds the members that it lacks */
static const char *const missing_members =
"SELECT f.oid, pg_catalog.format('ALTER OPERATOR FAMILY %I.%I USING " METHOD " ADD %s',"
"       fn.nspname, o.opfname, pg_catalog.string_agg(m.item, ', ' ORDER BY m.item)),"
"       NULL::pg_catalog.name, NULL::pg_catalog.name"
"  FROM pg_catalog.pg_opfamily f"
"  JOIN pg_catalog.pg_opfamily o ON o.oid = " OUR_FAMILY
"  JOIN pg_catalog.pg_namespace fn ON fn.oid = o.opfnamespace,"
"  LATERAL (SELECT pg_catalog.format('OPERATOR %s %s', a.amopstrategy,"
"                  a.amopopr::pg_catalog.regoperator) AS item"
"             FROM pg_catalog.pg_amop a WHERE a.amopfamily = f.oid AND NOT EXISTS"
"                  (SELECT FROM pg_catalog.pg_amop b WHERE b.amopfamily = o.oid"
"                      AND b.amoplefttype = a.amoplefttype"
"                      AND b.amoprighttype = a.amoprighttype"
"                      AND b.amopstrategy = a.amopstrategy)"
"            UNION ALL"
"           SELECT pg_catalog.format('FUNCTION %s (%s, %s) %s', a.amprocnum,"
"                  pg_catalog.format_type(a.amproclefttype, NULL),"
"                  pg_catalog.format_type(a.amprocrighttype, NULL),"
"                  a.amproc::pg_catalog.regprocedure)"
"             FROM pg_catalog.pg_amproc a WHERE a.amprocfamily = f.oid AND NOT EXISTS"
"                  (SELECT FROM pg_catalog.pg_amproc b WHERE b.amprocfamily = o.oid"
"                      AND b.amproclefttype = a.amproclefttype"
"                      AND b.amprocrighttype = a.amprocrighttype"
"                      AND b.amprocnum = a.amprocnum)) m"
" WHERE f.opfmethod = 403"
" GROUP BY f.oid, fn.nspname, o.opfname"
" ORDER BY f.oid";

/*
 * Columns of type name are stored as C strings by btree's class, which no
 * command can say.
 */
static const char *const store_likewise =
"UPDATE pg_catalog.pg_opclass d SET opckeytype = c.opckeytype"
"  FROM pg_catalog.pg_opclass c"
" WHERE d.opcmethod = $1 AND c.opcmethod = 403 AND d.opcname = c.opcname"
"   AND d.opcintype = c.opcintype AND d.opckeytype <> c.opckeytype";

/*
 * Bind a new object to the one it stands for, so that it goes with it.
 */
static void
depend_on_model(Oid classid, Oid image, Oid model)
{
	ObjectAddress from;
	ObjectAddress to;

	ObjectAddressSet(from, classid, image);
	ObjectAddressSet(to, classid, model);
	recordDependencyOn(&from, &to, DEPENDENCY_AUTO);
}

/*
 * Execute one command, without what ProcessUtility does around it.  We are
 * superuser in a user's session, so no event trigger may run now, least of all
 * one that finds that user's temporary table by an unqualified name.
 */
static void
execute_command(const char *command)
{
	List	   *parsed = raw_parser(command, RAW_PARSE_DEFAULT);
	Node	   *stmt = linitial_node(RawStmt, parsed)->stmt;

	if (IsA(stmt, CreateOpFamilyStmt))
		(void) DefineOpFamily((CreateOpFamilyStmt *) stmt);
	else if (IsA(stmt, CreateOpClassStmt))
		(void) DefineOpClass((CreateOpClassStmt *) stmt);
	else if (IsA(stmt, AlterOpFamilyStmt))
		(void) AlterOpFamily((AlterOpFamilyStmt *) stmt);
	else
		elog(ERROR, "could not execute: %s", command);
}

/*
 * Run the commands that a query makes; its columns are the model's OID, the
 * command, and schema and name of the image.  Returns how many there were.
 */
static int
run_commands(Oid method, const char *query, Oid classid)
{
	Oid			argtypes[1] = {OIDOID};
	Datum		args[1] = {ObjectIdGetDatum(method)};
	SPITupleTable *table;
	int			n;

	/* what others have committed counts, whatever our isolation level */
	PushActiveSnapshot(GetLatestSnapshot());
	if (SPI_execute_with_args(query, 1, argtypes, args, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read the operator classes of btree");
	PopActiveSnapshot();
	table = SPI_tuptable;
	n = (int) SPI_processed;

	for (int i = 0; i < n; i++)
	{
		HeapTuple	row = table->vals[i];
		bool		isnull;
		Oid			model = DatumGetObjectId(SPI_getbinval(row, table->tupdesc, 1, &isnull));
		char	   *command = SPI_getvalue(row, table->tupdesc, 2);
		char	   *schema = SPI_getvalue(row, table->tupdesc, 3);
		char	   *name = SPI_getvalue(row, table->tupdesc, 4);
		bool		in_extension = creating_extension;
		Oid			image;

		/* what can be dropped is nobody's member */
		if (model >= FirstNormalObjectId)
			creating_extension = false;
		PG_TRY();
		{
			execute_command(command);
		}
		PG_FINALLY();
		{
			creating_extension = in_extension;
		}
		PG_END_TRY();
		CommandCounterIncrement();

		if (name == NULL || model < FirstNormalObjectId)
			continue;
		image = GetSysCacheOid3(classid == OperatorClassRelationId ?
								CLAAMNAMENSP : OPFAMILYAMNAMENSP,
								classid == OperatorClassRelationId ?
								Anum_pg_opclass_oid : Anum_pg_opfamily_oid,
								ObjectIdGetDatum(method), CStringGetDatum(name),
								ObjectIdGetDatum(get_namespace_oid(schema, false)));
		depend_on_model(classid, image, model);
	}
	SPI_freetuptable(table);
	return n;
}

int
nvm_btree_mirror_opclasses(void)
{
	Oid			method = get_index_am_oid(METHOD, false);
	Oid			argtypes[1] = {OIDOID};
	Datum		args[1] = {ObjectIdGetDatum(method)};
	Oid			userid;
	int			sec_context;
	int			nestlevel;
	int			n;

	/* two sessions that make the same ones would get in each other's way */
	LockDatabaseObject(AccessMethodRelationId, method, 0, ShareUpdateExclusiveLock);

	GetUserIdAndSecContext(&userid, &sec_context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID,
						   sec_context | SECURITY_LOCAL_USERID_CHANGE);
	nestlevel = NewGUCNestLevel();
	/* names of other schemas are then written in full */
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	(void) run_commands(method, missing_families, OperatorFamilyRelationId);
	n = run_commands(method, missing_classes, OperatorClassRelationId);
	(void) run_commands(method, missing_members, InvalidOid);
	if (n > 0 &&
		SPI_execute_with_args(store_likewise, 1, argtypes, args, NULL, false, 0) != SPI_OK_UPDATE)
		elog(ERROR, "could not complete the operator classes of %s", METHOD);
	SPI_finish();

	AtEOXact_GUC(true, nestlevel);
	SetUserIdAndSecContext(userid, sec_context);
	CommandCounterIncrement();
	return n;
}

/*
 * See nvm_btree.h.
 */
Oid
nvm_btree_opclass_image(Oid model)
{
	Oid			method = get_index_am_oid(METHOD, true);
	HeapTuple	tuple;
	NameData	name;

	if (model >= FirstNormalObjectId)
		snprintf(NameStr(name), NAMEDATALEN, "btree_%u", model);
	else
	{
		tuple = SearchSysCache1(CLAOID, ObjectIdGetDatum(model));
		if (!HeapTupleIsValid(tuple))
			return InvalidOid;
		name = ((Form_pg_opclass) GETSTRUCT(tuple))->opcname;
		ReleaseSysCache(tuple);
	}
	return GetSysCacheOid3(CLAAMNAMENSP, Anum_pg_opclass_oid, ObjectIdGetDatum(method),
						   NameGetDatum(&name), ObjectIdGetDatum(PG_CATALOG_NAMESPACE));
}

List *
nvm_btree_opclass_name(Oid image)
{
	HeapTuple	tuple = SearchSysCache1(CLAOID, ObjectIdGetDatum(image));
	Form_pg_opclass form;
	List	   *name;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for operator class %u", image);
	form = (Form_pg_opclass) GETSTRUCT(tuple);
	name = list_make2(makeString(get_namespace_name(form->opcnamespace)),
					  makeString(pstrdup(NameStr(form->opcname))));
	ReleaseSysCache(tuple);
	return name;
}

/*
 * See nvm_btree.h.
 */
void
nvm_btree_name_opclasses(struct IndexStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->indexParams)
	{
		IndexElem  *elem = lfirst_node(IndexElem, lc);
		Oid			model = InvalidOid;
		Oid			image;

		if (list_length(elem->opclass) == 2)
			model = GetSysCacheOid3(CLAAMNAMENSP, Anum_pg_opclass_oid,
									ObjectIdGetDatum(BTREE_AM_OID),
									CStringGetDatum(strVal(lsecond(elem->opclass))),
									ObjectIdGetDatum(get_namespace_oid(strVal(linitial(elem->opclass)), true)));
		else if (list_length(elem->opclass) == 1)
			model = OpclassnameGetOpcid(BTREE_AM_OID, strVal(linitial(elem->opclass)));
		/* those of PostgreSQL itself have the same names */
		if (!OidIsValid(model) || model < FirstNormalObjectId)
			continue;
		image = nvm_btree_opclass_image(model);
		if (OidIsValid(image))
			elem->opclass = nvm_btree_opclass_name(image);
	}
}

/*
 * A class of nvm_btree that a user made by hand stands for btree's of its
 * name and schema.
 */
Oid
nvm_btree_opclass_model(Oid image)
{
	HeapTuple	tuple = SearchSysCache1(CLAOID, ObjectIdGetDatum(image));
	Form_pg_opclass form;
	Oid			model = InvalidOid;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for operator class %u", image);
	form = (Form_pg_opclass) GETSTRUCT(tuple);
	if (form->opcmethod == BTREE_AM_OID)
		model = image;
	else if (form->opcnamespace == PG_CATALOG_NAMESPACE &&
			 sscanf(NameStr(form->opcname), "btree_%u", &model) == 1)
	{
		if (!SearchSysCacheExists1(CLAOID, ObjectIdGetDatum(model)) ||
			nvm_btree_opclass_image(model) != image)
			model = InvalidOid;
	}
	else
		model = GetSysCacheOid3(CLAAMNAMENSP, Anum_pg_opclass_oid,
								ObjectIdGetDatum(BTREE_AM_OID),
								NameGetDatum(&form->opcname),
								ObjectIdGetDatum(form->opcnamespace));
	if (!OidIsValid(model))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("operator class \"%s\" does not exist for access method \"%s\"",
						NameStr(form->opcname), "btree"),
				 errdetail("Operator classes of access method \"%s\" stand for those of \"btree\" of the same name.",
						   METHOD)));
	ReleaseSysCache(tuple);
	return model;
}

/*
 * Before an index may be made: see to it that operator classes of btree that
 * came after the extension can be used.  They may be of other extensions.
 * Otherwise PostgreSQL would take a default one of a type that only resembles
 * the column's, and that compares otherwise.
 */
void
nvm_btree_complete_opclasses(void)
{
	CatCList   *models;
	bool		complete = true;

	if (!OidIsValid(get_index_am_oid(METHOD, true)))
		return;
	models = SearchSysCacheList1(CLAAMNAMENSP, ObjectIdGetDatum(BTREE_AM_OID));
	for (int i = 0; complete && i < models->n_members; i++)
	{
		Form_pg_opclass model = (Form_pg_opclass) GETSTRUCT(&models->members[i]->tuple);

		complete = OidIsValid(nvm_btree_opclass_image(model->oid));
	}
	ReleaseSysCacheList(models);
	if (!complete)
		nvm_btree_mirror_opclasses();
}

/*
 * nvm.mirror_operator_classes().  Called by CREATE EXTENSION too: without the
 * pool the extension is of no use, and the first CREATE TABLE may be far away.
 */
Datum
nvm_mirror_operator_classes(PG_FUNCTION_ARGS)
{
	if (creating_extension && NvmPool == NULL)
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("library pg_nvm is not preloaded: nvm tables cannot be created or used"),
				 errhint("Set shared_preload_libraries = 'pg_nvm' and restart the server.")));
	PG_RETURN_INT32(nvm_btree_mirror_opclasses());
}

/*
 * Operators and comparison functions of one type belong to the operator class
 * of that type; what is between types, or optional, belongs to the family.
 */
void
nvm_btree_adjustmembers(Oid opfamily, Oid opclass, List *operators, List *functions)
{
	HeapTuple	tuple;
	Oid			method;
	ListCell   *lc;

	/* to see a class, and a family, that this command makes */
	CommandCounterIncrement();

	tuple = SearchSysCache1(OPFAMILYOID, ObjectIdGetDatum(opfamily));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for operator family %u", opfamily);
	method = ((Form_pg_opfamily) GETSTRUCT(tuple))->opfmethod;
	ReleaseSysCache(tuple);
	foreach(lc, list_concat_copy(operators, functions))
	{
		OpFamilyMember *member = (OpFamilyMember *) lfirst(lc);
		Oid			owner = InvalidOid;

		if (member->lefttype == member->righttype &&
			(!member->is_func || member->number == BTORDER_PROC))
		{
			owner = OidIsValid(opclass) && get_opclass_input_type(opclass) == member->lefttype ?
				opclass :
				opclass_for_family_datatype(method, opfamily, member->lefttype);
		}
		member->ref_is_hard = OidIsValid(owner);
		member->ref_is_family = !OidIsValid(owner);
		member->refobjid = OidIsValid(owner) ? owner : opfamily;
	}
}
