/*-------------------------------------------------------------------------
 *
 * command_label.c
 *	  Which functions are registered: security labels, and a session's cache of them.
 *
 * The label of a function is
 *
 * 	command lanes={NAME, ...}	or	command lanes=all
 *
 * NAME is one of its arguments, or $1, $2, ... counted over its input arguments.  A function
 * that is promoted has " promoted=" behind that, and its fingerprint: 16 hexadecimal digits,
 * a hash of the function as it was promoted.  With another one it is not promoted any more,
 * as after a restore of a dump.  All
 * labels are read when the first function is looked up, and again after a change of any
 * function.  What a label means is found out when its function is first called: that
 * may look up types, whose functions come by here.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "parser/parse_func.h"
#include "nodes/value.h"
#include "nodes/makefuncs.h"
#include "compat/nvm_compat_am.h"
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_seclabel.h"
#include "catalog/pg_type.h"
#include "command/command_impl.h"
#include "command/nvm_command.h"
#include "commands/seclabel.h"
#include "common/hashfn.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/syscache.h"
#include "utils/typcache.h"
#include "utils/varlena.h"

#define FUNCTION_PREFIX "command lanes="
#define PROMOTED		" promoted="
#define FINGERPRINT_LENGTH	16

typedef struct Registration
{
	NvmCommand	command;		/* its function is the key */
	bool		resolved;		/* is all the rest of it there? */
	char	   *label;
} Registration;

Oid			nvm_command_promotes = InvalidOid;

static HTAB *registrations = NULL;	/* NULL: there are none */
static MemoryContext label_context = NULL;
static bool labels_are_known = false;

/* ---- the text of a label ---- */

/*
 * The fingerprint that ends a label, or NULL: its function is not promoted.
 */
static const char *
label_fingerprint(const char *label)
{
	size_t		length = strlen(label);
	size_t		tail = strlen(PROMOTED) + FINGERPRINT_LENGTH;
	const char *digits = label + length - FINGERPRINT_LENGTH;

	if (length < tail || strncmp(label + length - tail, PROMOTED, strlen(PROMOTED)) != 0 ||
		strspn(digits, "0123456789abcdef") != FINGERPRINT_LENGTH)
		return NULL;
	return digits;
}

/*
 * See nvm_command.h.
 */
char *
nvm_command_label_lanes(const char *label)
{
	size_t		prefix = strlen(FUNCTION_PREFIX);
	size_t		length = strlen(label);

	if (label_fingerprint(label) != NULL)
		length -= strlen(PROMOTED) + FINGERPRINT_LENGTH;
	return length < prefix ? pnstrdup(label, length) : pnstrdup(label + prefix, length - prefix);
}

/*
 * The arguments that a label names: a list of strings, or NIL and *all.  False: it is
 * no label of a function.  The strings lie in *copy.
 */
static bool
parse_label(const char *label, bool *all, List **names, char **copy)
{
	size_t		length;

	*all = false;
	*names = NIL;
	*copy = NULL;
	if (strncmp(label, FUNCTION_PREFIX, strlen(FUNCTION_PREFIX)) != 0)
		return false;
	label = nvm_command_label_lanes(label);
	if (strcmp(label, "all") == 0)
	{
		*all = true;
		return true;
	}
	length = strlen(label);
	if (length < 3 || label[0] != '{' || label[length - 1] != '}')
		return false;
	*copy = pnstrdup(label + 1, length - 2);
	return SplitIdentifierString(*copy, ',', names) && *names != NIL &&
		list_length(*names) <= NVM_COMMAND_MAX_LANE_ARGS;
}

/*
 * Sessions drop what they know of the object when the label is there.  For a function
 * they drop plans, too, that have it inlined.
 */
static void
invalidate_object(const ObjectAddress *object)
{
	if (object->classId == ProcedureRelationId)
	{
		Relation	rel = table_open(ProcedureRelationId, RowExclusiveLock);
		HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(object->objectId));

		if (HeapTupleIsValid(tuple))
		{
			CacheInvalidateHeapTuple(rel, tuple, NULL);
			ReleaseSysCache(tuple);
		}
		table_close(rel, RowExclusiveLock);
	}
	else
		CacheInvalidateRelcacheByRelid(object->objectId);
}

/*
 * Who calls a registered function may stop others that write: not everybody may register
 * one, nor does one that its own session alone can see need it.
 */
static void
require_may_register(Oid function)
{
	Oid			arguments[] = {REGPROCEDUREOID, TEXTOID};
	Oid			registers = LookupFuncName(list_make2(makeString("nvm"), makeString("register_command")),
										   2, arguments, true);

	if (isAnyTempNamespace(get_func_namespace(function)))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a function in a temporary schema cannot be registered")));
	if (!superuser() && (!OidIsValid(registers) || !NvmMayExecute(registers)))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to register functions"),
				 errhint("GRANT EXECUTE ON FUNCTION nvm.register_command(regprocedure, text) to those who may.")));
}

/* ---- fingerprints ---- */

/* columns of pg_proc that say what a call of the function does */
static const AttrNumber fingerprint_columns[] = {
	Anum_pg_proc_prolang, Anum_pg_proc_provariadic, Anum_pg_proc_prokind, Anum_pg_proc_prosecdef,
	Anum_pg_proc_proisstrict, Anum_pg_proc_proretset, Anum_pg_proc_provolatile,
	Anum_pg_proc_proparallel, Anum_pg_proc_prorettype, Anum_pg_proc_proargtypes,
	Anum_pg_proc_proallargtypes, Anum_pg_proc_proargmodes, Anum_pg_proc_proargnames,
	Anum_pg_proc_prosrc, Anum_pg_proc_probin, Anum_pg_proc_prosqlbody, Anum_pg_proc_proconfig
};

/*
 * A hash of the function as it is now, in this database.
 */
static uint64
fingerprint(HeapTuple tuple)
{
	Relation	rel = table_open(ProcedureRelationId, AccessShareLock);
	Form_pg_proc proc = (Form_pg_proc) GETSTRUCT(tuple);
	Oid			ids[3] = {MyDatabaseId, proc->oid, proc->prosecdef ? proc->proowner : InvalidOid};
	uint64		hash = DatumGetUInt64(hash_any_extended((unsigned char *) ids, sizeof(ids), 0));
	Oid			output;
	bool		is_varlena;

	for (int i = 0; i < (int) lengthof(fingerprint_columns); i++)
	{
		bool		isnull;
		Datum		value = heap_getattr(tuple, fingerprint_columns[i], RelationGetDescr(rel), &isnull);
		char	   *text = NULL;

		if (!isnull)
		{
			getTypeOutputInfo(TupleDescAttr(RelationGetDescr(rel), fingerprint_columns[i] - 1)->atttypid,
							  &output, &is_varlena);
			text = OidOutputFunctionCall(output, value);
		}
		hash = DatumGetUInt64(hash_any_extended((unsigned char *) (text ? text : ""),
												text ? (int) strlen(text) : 0, hash + (text == NULL)));
	}
	table_close(rel, AccessShareLock);
	return hash;
}

/*
 * Has the label, of a function that is promoted, this fingerprint?
 */
static bool
has_fingerprint(const char *label, uint64 hash)
{
	char		digits[FINGERPRINT_LENGTH + 1];

	snprintf(digits, sizeof(digits), "%016llx", (unsigned long long) hash);
	return strcmp(label_fingerprint(label), digits) == 0;
}

/*
 * See nvm_command.h.
 */
char *
nvm_command_form_label(const char *lanes, Oid function, bool promoted)
{
	HeapTuple	tuple;
	char	   *label = psprintf("%s%s", FUNCTION_PREFIX, lanes);

	if (!promoted)
		return label;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function with OID %u does not exist", function)));
	label = psprintf("%s" PROMOTED "%016llx", label, (unsigned long long) fingerprint(tuple));
	ReleaseSysCache(tuple);
	return label;
}

/* ---- labels are set ---- */

/*
 * A label with the fingerprint that the function has would promote it, without anything that
 * nvm.promote_command() does before.  One with another is what a dump has.
 */
static void
require_may_promote(Oid function, const char *label)
{
	HeapTuple	tuple;
	bool		promotes;

	if (label_fingerprint(label) == NULL || nvm_command_promotes == function)
		return;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	promotes = HeapTupleIsValid(tuple) && has_fingerprint(label, fingerprint(tuple));
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	if (promotes)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a function is not promoted by its label"),
				 errhint("Use nvm.promote_command().")));
}

/*
 * A label is about to be set, or removed (NULL).  PostgreSQL has checked that the user
 * owns the object.
 *
 * Whether a table is partitioned may not change under a transaction that uses it: a
 * call would read it as a whole while another session writes by lanes (README.md).
 */
static void
check_label(const ObjectAddress *object, const char *label)
{
	bool		is_function = object->classId == ProcedureRelationId;
	bool		is_column = object->classId == RelationRelationId && object->objectSubId > 0;

	if (label != NULL && is_function)
	{
		bool		all;
		List	   *names;
		char	   *copy;

		if (!parse_label(label, &all, &names, &copy))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid security label \"%s\" of provider nvm for a function", label),
					 errhint("It is \"%s{argument, ...}\", with at most %d arguments, or \"%sall\"; nvm.register_command() sets it.",
							 FUNCTION_PREFIX, NVM_COMMAND_MAX_LANE_ARGS, FUNCTION_PREFIX)));
		require_may_register(object->objectId);
		require_may_promote(object->objectId, label);
	}
	else if (label != NULL && is_column)
	{
		if (strcmp(label, NVM_PARTITION_LABEL) != 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid security label \"%s\" of provider nvm for a column", label),
					 errhint("It is \"%s\"; nvm.partition_table() sets it.", NVM_PARTITION_LABEL)));
		if (get_rel_relkind(object->objectId) != RELKIND_RELATION)
			ereport(ERROR,
					(errcode(ERRCODE_WRONG_OBJECT_TYPE),
					 errmsg("\"%s\" is not a table that has rows of its own",
							get_rel_name(object->objectId)),
					 errhint("Of a partitioned table label the column of each partition.")));
	}
	else if (label != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("security labels of provider nvm are for functions, procedures and columns of tables")));

	if (is_function && label == NULL)
		nvm_command_stat_forget(MyDatabaseId, object->objectId);
	if (is_column)
		LockRelationOid(object->objectId, AccessExclusiveLock);
	if (is_function || is_column)
		invalidate_object(object);
}

/* ---- the cache ---- */

static void
function_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	labels_are_known = false;
}

static void
add_registration(Oid function, const char *label)
{
	Registration *r;
	bool		found;

	if (registrations == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(Oid),.entrysize = sizeof(Registration),
		.hcxt = label_context};

		registrations = hash_create("nvm commands", 32, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	r = hash_search(registrations, &function, HASH_ENTER, &found);
	r->resolved = false;
	r->label = MemoryContextStrdup(label_context, label);
}

/*
 * Read the labels of all functions of the database.  A change that comes meanwhile has
 * them read again the next time.
 *
 * Expressions that were parsed before there were any, or before a function has changed,
 * are parsed anew: they may not be marked (command_function.c).
 */
static void
read_labels(void)
{
	Relation	rel;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	registrations = NULL;
	if (label_context == NULL)
		label_context = AllocSetContextCreate(CacheMemoryContext, "nvm commands",
											  ALLOCSET_SMALL_SIZES);
	else
		MemoryContextReset(label_context);
	labels_are_known = true;

	PG_TRY();
	{
		rel = table_open(SecLabelRelationId, AccessShareLock);
		ScanKeyInit(&key, Anum_pg_seclabel_provider, BTEqualStrategyNumber, F_TEXTEQ,
					CStringGetTextDatum(NVM_LABEL_PROVIDER));
		scan = systable_beginscan(rel, InvalidOid, false, NULL, 1, &key);
		while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		{
			FormData_pg_seclabel *label = (FormData_pg_seclabel *) GETSTRUCT(tuple);
			bool		isnull;
			Datum		value = heap_getattr(tuple, Anum_pg_seclabel_label,
											 RelationGetDescr(rel), &isnull);

			if (label->classoid == ProcedureRelationId && !isnull)
				add_registration(label->objoid, TextDatumGetCString(value));
		}
		systable_endscan(scan);
		table_close(rel, AccessShareLock);
	}
	PG_CATCH();
	{
		labels_are_known = false;
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (registrations != NULL)
		ResetPlanCache();
}

/*
 * Has any function of the database a label?
 */
bool
nvm_command_any(void)
{
	if (unlikely(!labels_are_known))
	{
		if (!IsTransactionState() || !OidIsValid(MyDatabaseId))
			return false;
		read_labels();
	}
	return registrations != NULL;
}

static Registration *
find_registration(Oid function)
{
	if (function < FirstNormalObjectId || !nvm_command_any())
		return NULL;
	return hash_search(registrations, &function, HASH_FIND, NULL);
}

/*
 * Has the function a label?  What it says is not looked at.
 */
bool
nvm_command_is_registered(Oid function)
{
	return find_registration(function) != NULL;
}

const char *
nvm_command_label(Oid function)
{
	Registration *r = find_registration(function);

	return r ? r->label : NULL;
}

void
nvm_command_each(void (*callback) (Oid function, void *arg), void *arg)
{
	List	   *functions = NIL;
	ListCell   *lc;
	HASH_SEQ_STATUS seq;
	Registration *r;

	if (!nvm_command_any())
		return;
	/* a callback may have labels read anew */
	hash_seq_init(&seq, registrations);
	while ((r = hash_seq_search(&seq)) != NULL)
		functions = lappend_oid(functions, r->command.function);
	foreach(lc, functions)
		callback(lfirst_oid(lc), arg);
	list_free(functions);
}

/* ---- what a label means ---- */

/*
 * Can values of the type, or elements of that array, name a lane?
 */
static bool
names_lanes(Oid type)
{
	Oid			element = get_base_element_type(type);

	if (OidIsValid(element))
		type = element;
	if (get_typtype(getBaseType(type)) == TYPTYPE_PSEUDO)
		return false;
	return OidIsValid(lookup_type_cache(type, TYPECACHE_HASH_PROC)->hash_proc);
}

/*
 * The place of an argument among the input arguments, from 0; -1: there is none.
 */
static int
find_argument(const char *name, int nargs, char **names, const char *modes, int *type_at)
{
	int			input = 0;
	int			number = name[0] == '$' ? atoi(name + 1) : 0;

	for (int i = 0; i < nargs; i++)
	{
		char		mode = modes ? modes[i] : PROARGMODE_IN;

		if (mode != PROARGMODE_IN && mode != PROARGMODE_INOUT && mode != PROARGMODE_VARIADIC)
			continue;
		if (number > 0 ? input == number - 1 : names != NULL && strcmp(names[i], name) == 0)
		{
			*type_at = i;
			return input;
		}
		input++;
	}
	return -1;
}

static const char *
resolve_arguments(NvmCommand *c, HeapTuple tuple, List *names)
{
	Oid		   *types;
	char	  **argnames;
	char	   *modes;
	int			nargs = get_func_arg_info(tuple, &types, &argnames, &modes);
	ListCell   *lc;

	foreach(lc, names)
	{
		char	   *name = lfirst(lc);
		int			type_at = 0;
		int			place = find_argument(name, nargs, argnames, modes, &type_at);

		if (place < 0)
			return psprintf("it has no argument \"%s\"", name);
		if (!names_lanes(types[type_at]))
			return psprintf("values of type %s of argument \"%s\" cannot be hashed",
							format_type_be(types[type_at]), name);
		c->lane_arg[c->nlane_args] = (int16) place;
		c->lane_type[c->nlane_args] = types[type_at];
		c->nlane_args++;
	}
	return NULL;
}

/*
 * Why no call of the function can be replayed, or NULL.
 */
static const char *
resolve(NvmCommand *c, HeapTuple tuple, const char *label)
{
	Form_pg_proc proc = (Form_pg_proc) GETSTRUCT(tuple);
	List	   *names;
	char	   *copy;

	if (!parse_label(label, &c->all_lanes, &names, &copy))
		return "its label is not valid";
	if (proc->prokind != PROKIND_FUNCTION && proc->prokind != PROKIND_PROCEDURE)
		return "it is neither a function nor a procedure";
	if (proc->prorettype == TRIGGEROID || proc->prorettype == EVENT_TRIGGEROID)
		return "it is a trigger function";
	if (proc->prokind == PROKIND_FUNCTION && proc->provolatile != PROVOLATILE_VOLATILE)
		return "it is not VOLATILE, so it sees by the snapshot of its caller";
	if (proc->proparallel == PROPARALLEL_SAFE)
		return "it is PARALLEL SAFE, so it may run in a parallel worker";
	if (nvm_function_reads_context(tuple))
		return "its text has PG_CONTEXT, which says who has called it";
	return resolve_arguments(c, tuple, names);
}

/*
 * The registration of a function of the current database, or NULL.  It is there until the
 * next look-up of anything.
 *
 * Looking up types may call functions, and have the labels read anew: what was found
 * before is looked for again.
 */
const NvmCommand *
nvm_command_find(Oid function)
{
	Registration *r = find_registration(function);
	NvmCommand	c = {0};
	HeapTuple	tuple;
	const char *problem;
	char	   *label;

	if (r == NULL)
		return NULL;
	if (r->resolved)
		return &r->command;

	c.function = function;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return NULL;
	label = pstrdup(r->label);
	problem = resolve(&c, tuple, label);
	c.was_promoted = label_fingerprint(label) != NULL;
	c.fingerprint = fingerprint(tuple);
	c.promoted = problem == NULL && c.was_promoted && has_fingerprint(label, c.fingerprint);
	ReleaseSysCache(tuple);
	r = find_registration(function);
	if (r == NULL)
		return NULL;
	if (problem != NULL)
		c.problem = MemoryContextStrdup(label_context, problem);
	r->command = c;
	r->resolved = true;
	return &r->command;
}

static void
note_if_promoted(Oid function, void *arg)
{
	const NvmCommand *c = nvm_command_find(function);

	*(bool *) arg |= c != NULL && c->promoted;
}

/*
 * See command_impl.h.
 */
bool
nvm_command_any_promoted(void)
{
	bool		any = false;

	nvm_command_each(note_if_promoted, &any);
	return any;
}

/*
 * In _PG_init.
 */
void
nvm_command_register_labels(void)
{
	register_label_provider(NVM_LABEL_PROVIDER, check_label);
	CacheRegisterSyscacheCallback(PROCOID, function_changed, (Datum) 0);
	nvm_command_register_tables();
	nvm_lanes_register();
}
