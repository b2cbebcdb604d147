/*-------------------------------------------------------------------------
 *
 * btree_rowcompare.c
 *	  Row comparisons, (a, b) > (5, 1), as conditions of a scan.
 *
 * The executor hands one over as a header.  The header's argument is an array
 * of keys, one for each column.  They have the comparison function of the
 * operator family in place of an operator, and SK_ISNULL marks nulls.  The
 * first column that differs decides; a null on either side up to there makes
 * the result null.
 *
 * As a bound of the scan a row is a prefix of the index's key.  The prefix
 * goes as far as the row's columns are consecutive ones of the index with the
 * same direction, and have a value.  If a part of the row is left over, the
 * comparison is taken as >= or <=.  Entries with a null lie within such bounds
 * as well, so the comparison is tested for each entry besides.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "btree/nvm_btree_scan.h"

static inline bool
column_desc(Relation index, AttrNumber attno)
{
	return (index->rd_indoption[attno - 1] & INDOPTION_DESC) != 0;
}

/*
 * What a key asks for in the order of its column.
 */
StrategyNumber
nvm_rowcompare_strategy(ScanKey key, bool desc)
{
	return desc ? BTCommuteStrategyNumber(key->sk_strategy) : key->sk_strategy;
}

/*
 * A bound ends with what a row comparison says of its first column.  Let it go
 * on with the columns that follow both in the row and in the index.
 */
void
nvm_rowcompare_extend(NvmScanKeys *keys, NvmIndexKey *key, bool is_low, ScanKey header)
{
	Relation	index = key->index;
	ScanKey		member = (ScanKey) DatumGetPointer(header->sk_argument);
	bool		desc = column_desc(index, member->sk_attno);

	Assert(member->sk_attno == key->nparts);
	while ((member->sk_flags & SK_ROW_END) == 0)
	{
		int			col = key->nparts;
		Oid			own;
		Oid			type;

		member++;
		if (member->sk_attno != col + 1 || (member->sk_flags & SK_ISNULL) != 0 ||
			column_desc(index, member->sk_attno) != desc)
			return;
		own = index->rd_opcintype[col];
		type = OidIsValid(member->sk_subtype) ? member->sk_subtype : own;
		if (nvm_scankeys_proc(keys, col, own, type) == NULL)
			return;
		nvm_scankeys_add_part(keys, key, type, member->sk_argument, false);
	}

	/* the bound has the whole row */
	if (member->sk_strategy == BTLessStrategyNumber ||
		member->sk_strategy == BTGreaterStrategyNumber)
		key->nextkey = is_low;
}

/*
 * Is the comparison true of an entry, a private copy of it?
 */
bool
nvm_rowcompare_test(ScanKey header, Relation index, IndexTuple itup)
{
	ScanKey		member = (ScanKey) DatumGetPointer(header->sk_argument);
	TupleDesc	desc = RelationGetDescr(index);
	int			cmp;

	for (;; member++)
	{
		bool		isnull;
		Datum		value = index_getattr(itup, member->sk_attno, desc, &isnull);

		if (isnull || (member->sk_flags & SK_ISNULL) != 0)
			return false;
		cmp = DatumGetInt32(FunctionCall2Coll(&member->sk_func, member->sk_collation,
											  value, member->sk_argument));
		if (cmp != 0 || (member->sk_flags & SK_ROW_END) != 0)
			break;
	}

	switch (member->sk_strategy)
	{
		case BTLessStrategyNumber:
			return cmp < 0;
		case BTLessEqualStrategyNumber:
			return cmp <= 0;
		case BTGreaterEqualStrategyNumber:
			return cmp >= 0;
		case BTGreaterStrategyNumber:
			return cmp > 0;
		default:
			elog(ERROR, "unrecognized strategy number of a row comparison: %d",
				 member->sk_strategy);
			return false;
	}
}
