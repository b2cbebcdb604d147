/*-------------------------------------------------------------------------
 *
 * btree_scankey.c
 *	  From the conditions of an index scan to a stretch of the index.
 *
 * The executor hands over conditions "column operator constant", IS [NOT]
 * NULL, and "column operator ANY (array)".  All of them must hold.  They
 * become this:
 *
 *	1. Leading columns with an equality (one value, one of several, or NULL)
 *	   are parts of both bounds.  Of several values one is current at a time.
 *	2. The first column without one ends that.  Conditions <, <=, >=, > and IS
 *	   NOT NULL on this column become a lower and an upper bound.
 *	3. Everything else is tested entry by entry.  A bound that includes its
 *	   value goes on with the next column's, for what it is worth.
 *
 * A row comparison, (a, b) > (5, 1), counts for its first column as a >= 5, and
 * is a test besides.  Where it makes a bound, that goes on with the row's next
 * columns (btree_rowcompare.c).
 *
 * A condition that follows from the bounds is not tested again.  Conditions of
 * one column are held against each other if the operator family can compare
 * their constants.  Then the looser ones are dropped, and contradictions end
 * the scan before it begins.
 *
 * An array behind the column of step 2 is a test, so that entries come in the
 * order of the index whatever the conditions.  The planner counts on that
 * since PostgreSQL 17.
 *
 * "Order of the index" is that of the column's DESC; low and high, < and >
 * mean that below, unless they say otherwise.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_scan.h"
#include "lib/qunique.h"
#include "utils/array.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

typedef enum NvmConditionKind
{
	NVM_COND_NULL,
	NVM_COND_NOT_NULL,
	NVM_COND_OPERATOR
} NvmConditionKind;

/* one scan key, looked into */
typedef struct NvmScanCondition
{
	ScanKey		key;
	NvmConditionKind kind;
	StrategyNumber strategy;	/* in the order of the index */
	Oid			type;			/* of value or elements */
	FmgrInfo   *cmp;			/* (column, type), or NULL */
	bool		is_array;
	bool		is_sorted;
	bool		is_row;			/* a row comparison, as what it says of its
								 * first column */
	Datum		value;
	Datum	   *elems;
	int			nelems;
} NvmScanCondition;

typedef struct NvmColumnBound
{
	bool		given;
	bool		isnull;			/* keeps nulls out */
	bool		strict;
	ScanKey		row;			/* a row comparison that goes on with others */
	Oid			type;
	Datum		value;
} NvmColumnBound;

/* the conditions of one column */
typedef struct NvmColumnConditions
{
	int			col;			/* from 0 */
	NvmScanCondition *conds;
	int			nconds;
	bool		keep_tests;		/* all of them are tests besides */
} NvmColumnConditions;

/* what they come to */
typedef struct NvmScanColumn
{
	bool		equal;			/* to NULL, or one of elems */
	bool		isnull;
	Oid			type;
	int			nelems;
	Datum	   *elems;
	Datum		single;			/* elems, if there is one */
	NvmColumnBound low;
	NvmColumnBound high;
} NvmScanColumn;

typedef struct NvmSortContext
{
	FmgrInfo   *cmp;
	Oid			collation;
	bool		desc;
} NvmSortContext;

/*
 * Memory for up to nkeys conditions; what is looked up is kept in the current
 * context.
 */
void
nvm_scankeys_init(NvmScanKeys *keys, IndexScanDesc scan, int nkeys)
{
	keys->procs_context = CurrentMemoryContext;
	keys->procs = NULL;
	keys->context = NULL;
	keys->max_keys = nkeys;
	keys->narrays = keys->ntests = 0;
	keys->tests = nkeys > 0 ? palloc(nkeys * sizeof(NvmScanTest)) : NULL;
	keys->arrays = nkeys > 0 ? palloc(nkeys * sizeof(NvmScanArray)) : NULL;
	keys->conds = nkeys > 0 ? palloc(nkeys * sizeof(NvmScanCondition)) : NULL;
	keys->low.index = keys->high.index = scan->indexRelation;
	keys->low.nparts = keys->high.nparts = 0;
	keys->low.scantid = keys->high.scantid = NULL;
	keys->low.anynull = keys->high.anynull = false;
	keys->low.pivot = keys->high.pivot = false;
	keys->low.inserts = keys->high.inserts = false;
}

void
nvm_scankeys_end(NvmScanKeys *keys)
{
	while (keys->procs != NULL)
	{
		NvmScanProc *proc = keys->procs;

		keys->procs = proc->next;
		pfree(proc);
	}
	if (keys->context != NULL)
		MemoryContextDelete(keys->context);
	if (keys->max_keys > 0)
	{
		pfree(keys->tests);
		pfree(keys->arrays);
		pfree(keys->conds);
	}
}

/* a against b in the order of column col */
static inline int
compare_values(NvmScanKeys *keys, int col, FmgrInfo *cmp, Datum a, Datum b)
{
	Relation	index = keys->low.index;

	return nvm_order_flip(DatumGetInt32(FunctionCall2Coll(cmp, index->rd_indcollation[col],
														  a, b)),
						  NVM_COLUMN_DESC(index, col));
}

static int
element_cmp(const void *a, const void *b, void *arg)
{
	NvmSortContext *sort = (NvmSortContext *) arg;

	return nvm_order_flip(DatumGetInt32(FunctionCall2Coll(sort->cmp, sort->collation,
														  *(const Datum *) a,
														  *(const Datum *) b)),
						  sort->desc);
}

static bool
strategy_holds(StrategyNumber strategy, int cmp)
{
	switch (strategy)
	{
		case BTLessStrategyNumber:
			return cmp < 0;
		case BTLessEqualStrategyNumber:
			return cmp <= 0;
		case BTEqualStrategyNumber:
			return cmp == 0;
		case BTGreaterEqualStrategyNumber:
			return cmp >= 0;
		case BTGreaterStrategyNumber:
			return cmp > 0;
		default:
			elog(ERROR, "unrecognized strategy number: %d", strategy);
			return false;
	}
}

/*
 * Take an array apart.  False if no element is left, so that nothing matches.
 */
static bool
read_array(NvmScanKeys *keys, int col, NvmScanCondition *cond)
{
	Relation	index = keys->low.index;
	MemoryContext oldcontext;
	ArrayType  *array;
	FmgrInfo   *cmp;
	NvmSortContext sort;
	bool	   *nulls;
	int			n;
	int16		len;
	bool		byval;
	char		align;

	if (keys->context == NULL)
		keys->context = AllocSetContextCreate(keys->procs_context,
											  "nvm_btree arrays",
											  ALLOCSET_SMALL_SIZES);
	oldcontext = MemoryContextSwitchTo(keys->context);
	array = DatumGetArrayTypeP(cond->key->sk_argument);
	get_typlenbyvalalign(ARR_ELEMTYPE(array), &len, &byval, &align);
	deconstruct_array(array, ARR_ELEMTYPE(array), len, byval, align,
					  &cond->elems, &nulls, &n);
	MemoryContextSwitchTo(oldcontext);

	/* all operators of an ordering are taken for strict */
	cond->nelems = 0;
	for (int i = 0; i < n; i++)
	{
		if (!nulls[i])
			cond->elems[cond->nelems++] = cond->elems[i];
	}
	if (cond->nelems == 0)
		return false;

	cond->is_array = true;
	cond->is_sorted = false;
	cmp = nvm_scankeys_proc(keys, col, cond->type, cond->type);
	if (cmp != NULL && cond->nelems > 1)
	{
		sort.cmp = cmp;
		sort.collation = index->rd_indcollation[col];
		sort.desc = NVM_COLUMN_DESC(index, col);
		qsort_arg(cond->elems, cond->nelems, sizeof(Datum), element_cmp, &sort);
		cond->nelems = qunique_arg(cond->elems, cond->nelems, sizeof(Datum),
								   element_cmp, &sort);
		cond->is_sorted = true;
	}
	if (cond->nelems == 1)
	{
		cond->value = cond->elems[0];
		cond->is_array = false;
	}
	else if (cond->is_sorted && cond->strategy != BTEqualStrategyNumber)
	{
		/* less than any: less than the greatest */
		cond->value = cond->strategy <= BTLessEqualStrategyNumber ?
			cond->elems[cond->nelems - 1] : cond->elems[0];
		cond->is_array = false;
	}
	return true;
}

/*
 * Look into one key.  False if nothing can match it.
 */
static bool
read_key(NvmScanKeys *keys, int col, ScanKey key, NvmScanCondition *cond)
{
	Relation	index = keys->low.index;

	memset(cond, 0, sizeof(*cond));
	cond->key = key;
	if (key->sk_flags & SK_ROW_HEADER)
	{
		/* nulls in its other columns are left to the test */
		cond->is_row = true;
		key = (ScanKey) DatumGetPointer(key->sk_argument);
	}
	if (key->sk_flags & SK_SEARCHNULL)
	{
		cond->kind = NVM_COND_NULL;
		return true;
	}
	if (key->sk_flags & SK_SEARCHNOTNULL)
	{
		cond->kind = NVM_COND_NOT_NULL;
		return true;
	}
	if (key->sk_flags & SK_ISNULL)
		return false;

	cond->kind = NVM_COND_OPERATOR;
	cond->strategy = nvm_rowcompare_strategy(key, NVM_COLUMN_DESC(index, col));
	if (cond->is_row && cond->strategy == BTLessStrategyNumber)
		cond->strategy = BTLessEqualStrategyNumber;
	else if (cond->is_row && cond->strategy == BTGreaterStrategyNumber)
		cond->strategy = BTGreaterEqualStrategyNumber;
	cond->type = OidIsValid(key->sk_subtype) ? key->sk_subtype : index->rd_opcintype[col];
	cond->cmp = nvm_scankeys_proc(keys, col, index->rd_opcintype[col], cond->type);
	cond->value = key->sk_argument;
	if (key->sk_flags & SK_SEARCHARRAY)
		return read_array(keys, col, cond);
	return true;
}

static void
add_test(NvmScanKeys *keys, int col, const NvmScanCondition *cond)
{
	NvmScanTest *test = &keys->tests[keys->ntests++];

	test->key = cond->key;
	test->is_array = false;
	test->is_row = cond->is_row;
	if (cond->kind != NVM_COND_OPERATOR)
		return;
	test->value = cond->value;
	test->is_array = cond->is_array;
	test->elems = cond->elems;
	test->nelems = cond->nelems;
	test->cmp = cond->is_sorted ? cond->cmp : NULL;
	test->desc = NVM_COLUMN_DESC(keys->low.index, col);
}

/*
 * Is a constant of the column's equality excluded by another condition?
 * Sets *known to false if the family cannot tell.
 */
static bool
value_holds(NvmScanKeys *keys, int col, Oid type, Datum value,
			const NvmScanCondition *cond, bool *known)
{
	Relation	index = keys->low.index;
	FmgrInfo   *cmp;

	if (cond->kind == NVM_COND_NULL)
		return false;
	if (cond->kind == NVM_COND_NOT_NULL)
		return true;
	cmp = nvm_scankeys_proc(keys, col, type, cond->type);
	if (cmp == NULL || (cond->is_array && !cond->is_sorted))
	{
		*known = false;
		return true;
	}
	if (cond->is_array)
		return nvm_element_search(cmp, index->rd_indcollation[col],
								  NVM_COLUMN_DESC(index, col), value,
								  cond->elems, cond->nelems);
	return strategy_holds(cond->strategy,
						  compare_values(keys, col, cmp, value, cond->value));
}

/*
 * The column is equal to what `lead` says; thin that out by its other
 * conditions.
 */
static void
merge_equality(NvmScanKeys *keys, const NvmColumnConditions *given,
			   const NvmScanCondition *lead, NvmScanColumn *column)
{
	column->equal = true;
	column->isnull = lead->kind == NVM_COND_NULL;
	column->type = lead->type;
	column->single = lead->value;
	column->elems = lead->is_array ? lead->elems : &column->single;
	column->nelems = column->isnull ? 0 : lead->is_array ? lead->nelems : 1;

	for (int i = 0; i < given->nconds; i++)
	{
		bool		known = true;
		int			n = 0;

		if (&given->conds[i] == lead)
			continue;
		if (column->isnull)
		{
			if (given->conds[i].kind != NVM_COND_NULL)
				keys->impossible = true;
			continue;
		}
		for (int e = 0; e < column->nelems; e++)
		{
			if (!value_holds(keys, given->col, column->type, column->elems[e],
							 &given->conds[i], &known))
				continue;
			/* a test goes on using the elements as they are */
			if (!given->keep_tests)
				column->elems[n] = column->elems[e];
			n++;
		}
		if (n == 0)
		{
			keys->impossible = true;
			return;
		}
		if (given->keep_tests)
			continue;
		column->nelems = n;
		if (!known || given->conds[i].is_row)
			add_test(keys, given->col, &given->conds[i]);
	}
}

/*
 * Tighten a bound by a condition.  False if the family cannot tell which of
 * the two is tighter, and the old one stays.
 */
static bool
merge_bound(NvmScanKeys *keys, int col, NvmColumnBound *bound, bool is_low,
			const NvmScanCondition *cond)
{
	bool		strict = cond->strategy == BTLessStrategyNumber ||
	cond->strategy == BTGreaterStrategyNumber;

	if (bound->given && !bound->isnull)
	{
		FmgrInfo   *cmp = nvm_scankeys_proc(keys, col, cond->type, bound->type);
		int			c;

		if (cmp == NULL)
			return false;
		c = compare_values(keys, col, cmp, cond->value, bound->value);
		if (is_low ? c < 0 : c > 0)
			return true;
		if (c == 0 && !strict && (bound->strict || !cond->is_row))
			return true;
	}
	bound->given = true;
	bound->isnull = false;
	bound->strict = strict;
	bound->row = cond->is_row ? cond->key : NULL;
	bound->type = cond->type;
	bound->value = cond->value;
	return true;
}

/*
 * The column has no equality to begin with; make bounds of what it has.
 */
static void
merge_bounds(NvmScanKeys *keys, const NvmColumnConditions *given, NvmScanColumn *column)
{
	NvmColumnBound *nulls;

	for (int i = 0; i < given->nconds; i++)
	{
		NvmScanCondition *cond = &given->conds[i];
		bool		is_low;

		if (cond->kind == NVM_COND_NOT_NULL)
			continue;
		is_low = cond->strategy >= BTGreaterEqualStrategyNumber;
		if (cond->strategy == BTEqualStrategyNumber || cond->is_array ||
			cond->cmp == NULL ||
			!merge_bound(keys, given->col, is_low ? &column->low : &column->high, is_low, cond) ||
			cond->is_row)
		{
			if (!given->keep_tests)
				add_test(keys, given->col, cond);
		}
	}

	/* every condition here keeps nulls out */
	nulls = NVM_COLUMN_NULLS_FIRST(keys->low.index, given->col) ? &column->low : &column->high;
	if (!nulls->given)
	{
		nulls->given = nulls->isnull = nulls->strict = true;
		nulls->row = NULL;
		nulls->type = InvalidOid;
		nulls->value = (Datum) 0;
	}

	if (column->low.given && !column->low.isnull &&
		column->high.given && !column->high.isnull)
	{
		FmgrInfo   *cmp = nvm_scankeys_proc(keys, given->col, column->low.type, column->high.type);
		int			c;

		if (cmp == NULL)
			return;
		c = compare_values(keys, given->col, cmp, column->low.value, column->high.value);
		if (c > 0 || (c == 0 && (column->low.strict || column->high.strict)))
			keys->impossible = true;
	}
}

/*
 * What all conditions of a column come to.  What does not follow from the
 * result becomes a test; all of it, if keep_tests.
 */
static void
merge_column(NvmScanKeys *keys, const NvmColumnConditions *given, NvmScanColumn *column)
{
	NvmScanCondition *conds = given->conds;
	NvmScanCondition *lead = NULL;

	column->equal = false;
	column->low.given = column->high.given = false;
	for (int i = 0; i < given->nconds; i++)
	{
		if (given->keep_tests)
			add_test(keys, given->col, &conds[i]);
		if (conds[i].kind == NVM_COND_NULL)
			lead = &conds[i];
		else if (conds[i].kind == NVM_COND_OPERATOR &&
				 conds[i].strategy == BTEqualStrategyNumber && conds[i].cmp != NULL &&
				 (!conds[i].is_array || conds[i].is_sorted) &&
				 (lead == NULL || (lead->kind != NVM_COND_NULL &&
								   lead->is_array && !conds[i].is_array)))
			lead = &conds[i];
	}
	if (lead != NULL)
		merge_equality(keys, given, lead, column);
	else
		merge_bounds(keys, given, column);
}

/* both bounds go on with the column's equality */
static void
add_equality(NvmScanKeys *keys, int col, NvmScanColumn *column)
{
	Relation	index = keys->low.index;
	Oid			own = index->rd_opcintype[col];
	Oid			type = column->type;
	uint8		fast = nvm_index_cache(index)->fast[col];
	NvmScanArray *array;

	if (column->isnull)
	{
		nvm_scankeys_add_part(keys, &keys->low, type, (Datum) 0, true);
		nvm_scankeys_add_part(keys, &keys->high, type, (Datum) 0, true);
		return;
	}

	/* the elements become current one after another: all of one kind */
	if (type != own && nvm_elements_take_width(type, fast, column->elems, column->nelems))
		type = own;
	nvm_scankeys_add_part(keys, &keys->low, type, column->elems[0], false);
	nvm_scankeys_add_part(keys, &keys->high, type, column->elems[0], false);
	if (column->nelems == 1)
		return;
	if (type != own)
	{
		keys->low.part[col].fast = keys->high.part[col].fast = NVM_FAST_NOT;
		keys->low.part[col].value = keys->high.part[col].value = column->elems[0];
		keys->low.part[col].cmp = keys->high.part[col].cmp = nvm_scankeys_proc(keys, col, own, type);
	}
	array = &keys->arrays[keys->narrays++];
	array->part = col;
	array->elems = column->elems;
	array->nelems = column->nelems;
	array->cur = 0;
}

/*
 * One bound goes on with what the column has.  Returns whether it can go on
 * with the next.
 */
static bool
extend_bound(NvmScanKeys *keys, NvmIndexKey *key, bool is_low, NvmScanColumn *column)
{
	NvmColumnBound *bound = is_low ? &column->low : &column->high;

	if (column->equal)
	{
		nvm_scankeys_add_part(keys, key, column->type,
							  column->isnull ? (Datum) 0 :
							  column->elems[is_low ? 0 : column->nelems - 1],
							  column->isnull);
		return true;
	}
	if (!bound->given)
		return false;
	nvm_scankeys_add_part(keys, key, bound->type, bound->value, bound->isnull);
	if (bound->row != NULL)
	{
		nvm_rowcompare_extend(keys, key, is_low, bound->row);
		return false;
	}
	if (bound->strict)
		key->nextkey = is_low;
	return !bound->strict;
}

/*
 * Make bounds, arrays and tests of scan->keyData.
 */
void
nvm_scankeys_prepare(NvmScanKeys *keys, IndexScanDesc scan)
{
	int			ncols = IndexRelationGetNumberOfKeyAttributes(scan->indexRelation);
	bool		leading = true;
	bool		low_open = true;
	bool		high_open = true;
	int			seen = 0;

	keys->impossible = false;
	keys->ntests = keys->narrays = 0;
	keys->low.nparts = keys->high.nparts = 0;
	keys->low.nextkey = false;
	keys->high.nextkey = true;
	if (keys->context != NULL)
		MemoryContextReset(keys->context);

	for (int col = 0; col < ncols && seen < scan->numberOfKeys; col++)
	{
		NvmColumnConditions given = {.col = col,.conds = keys->conds};
		NvmScanColumn column;

		for (int i = 0; i < scan->numberOfKeys; i++)
		{
			if (scan->keyData[i].sk_attno != col + 1)
				continue;
			if (!read_key(keys, col, &scan->keyData[i], &given.conds[given.nconds++]))
			{
				keys->impossible = true;
				return;
			}
		}
		seen += given.nconds;
		if (given.nconds == 0)
		{
			leading = low_open = high_open = false;
			continue;
		}

		given.keep_tests = !leading;
		merge_column(keys, &given, &column);
		if (keys->impossible)
			return;
		if (leading && column.equal)
		{
			add_equality(keys, col, &column);
			continue;
		}
		leading = false;
		if (low_open)
			low_open = extend_bound(keys, &keys->low, true, &column);
		if (high_open)
			high_open = extend_bound(keys, &keys->high, false, &column);
	}
	if (seen < scan->numberOfKeys)
		elog(ERROR, "scan key of nvm_btree index \"%s\" has an invalid column number",
			 RelationGetRelationName(scan->indexRelation));
}
