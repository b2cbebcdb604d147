/*-------------------------------------------------------------------------
 *
 * btree_scantest.c
 *	  A scan's conditions at work: the next combination of elements, and tests
 *	  of entries.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_scan.h"

/* ---- arrays ---- */

static inline void
set_element(NvmScanKeys *keys, NvmScanArray *array, int cur)
{
	array->cur = cur;
	keys->low.part[array->part].value = array->elems[cur];
	keys->high.part[array->part].value = array->elems[cur];
}

void
nvm_scankeys_start(NvmScanKeys *keys, ScanDirection dir)
{
	for (int i = 0; i < keys->narrays; i++)
	{
		NvmScanArray *array = &keys->arrays[i];

		set_element(keys, array, ScanDirectionIsForward(dir) ? 0 : array->nelems - 1);
	}
}

bool
nvm_scankeys_advance(NvmScanKeys *keys, ScanDirection dir)
{
	for (int i = keys->narrays - 1; i >= 0; i--)
	{
		NvmScanArray *array = &keys->arrays[i];
		int			next = array->cur + (ScanDirectionIsForward(dir) ? 1 : -1);

		if (next >= 0 && next < array->nelems)
		{
			set_element(keys, array, next);
			return true;
		}
		set_element(keys, array, next < 0 ? array->nelems - 1 : 0);
	}
	return false;
}

void
nvm_scankeys_save(const NvmScanKeys *keys, int *cur)
{
	for (int i = 0; i < keys->narrays; i++)
		cur[i] = keys->arrays[i].cur;
}

void
nvm_scankeys_restore(NvmScanKeys *keys, const int *cur)
{
	for (int i = 0; i < keys->narrays; i++)
		set_element(keys, &keys->arrays[i], cur[i]);
}

/* ---- tests ---- */

/* is value, compared by cmp, one of sorted elements? */
bool
nvm_element_search(FmgrInfo *cmp, Oid collation, bool desc, Datum value,
				   const Datum *elems, int nelems)
{
	int			low = 0;
	int			high = nelems;

	while (low < high)
	{
		int			mid = (low + high) / 2;
		int			c = nvm_order_flip(DatumGetInt32(FunctionCall2Coll(cmp, collation,
																	   value, elems[mid])),
									   desc);

		if (c == 0)
			return true;
		if (c < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return false;
}

static bool
test_value(const NvmScanTest *test, Datum value)
{
	ScanKey		key = test->key;

	if (!test->is_array)
		return DatumGetBool(FunctionCall2Coll(&key->sk_func, key->sk_collation,
											  value, test->value));
	if (test->cmp != NULL)
		return nvm_element_search(test->cmp, key->sk_collation, test->desc, value,
								  test->elems, test->nelems);
	for (int i = 0; i < test->nelems; i++)
	{
		if (DatumGetBool(FunctionCall2Coll(&key->sk_func, key->sk_collation,
										   value, test->elems[i])))
			return true;
	}
	return false;
}

bool
nvm_scankeys_test(NvmScanKeys *keys, Relation index, IndexTuple itup)
{
	TupleDesc	desc = RelationGetDescr(index);

	for (int i = 0; i < keys->ntests; i++)
	{
		NvmScanTest *test = &keys->tests[i];
		bool		isnull;
		Datum		value;

		if (test->is_row)
		{
			if (!nvm_rowcompare_test(test->key, index, itup))
				return false;
			continue;
		}
		value = index_getattr(itup, test->key->sk_attno, desc, &isnull);

		if (test->key->sk_flags & SK_SEARCHNULL)
		{
			if (!isnull)
				return false;
		}
		else if (isnull)
			return false;
		else if (!(test->key->sk_flags & SK_SEARCHNOTNULL) && !test_value(test, value))
			return false;
	}
	return true;
}
