/*-------------------------------------------------------------------------
 *
 * btree_key.c
 *	  Keys of a search, and their comparison with entries.
 *
 * Columns that a pivot lacks are minus infinity, and so is its TID if it has
 * none.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree.h"

void
nvm_index_key_init(Relation index, NvmIndexCache *cache, IndexTuple itup, NvmIndexKey *key)
{
	TupleDesc	desc = RelationGetDescr(index);
	int			nkeys = IndexRelationGetNumberOfKeyAttributes(index);
	bool		anynull = false;

	key->index = index;
	key->nextkey = false;
	key->inserts = false;
	key->pivot = false;
	key->scantid = NULL;
	key->nparts = nkeys;
	if (itup != NULL)
	{
		key->pivot = BTreeTupleIsPivot(itup);
		key->nparts = Min(nkeys, (int) BTreeTupleGetNAtts(itup, index));
		key->scantid = BTreeTupleGetHeapTID(itup);
	}
	for (int i = 0; i < key->nparts; i++)
	{
		NvmIndexKeyPart *part = &key->part[i];
		int16		option = index->rd_indoption[i];

		part->desc = (option & INDOPTION_DESC) != 0;
		part->nulls_first = (option & INDOPTION_NULLS_FIRST) != 0;
		part->fast = cache->fast[i];
		part->collation = index->rd_indcollation[i];
		part->cmp = index_getprocinfo(index, i + 1, BTORDER_PROC);
		part->value = (Datum) 0;
		part->isnull = false;
		if (itup != NULL)
		{
			part->value = index_getattr(itup, i + 1, desc, &part->isnull);
			anynull |= part->isnull;
		}
	}
	key->anynull = anynull && !index->rd_index->indnullsnotdistinct;
}

static inline int
compare_int(int64 entry, int64 value)
{
	return (entry > value) - (entry < value);
}

/*
 * One column: the entry's value against the key's, ascending.
 */
static inline int
compare_values(const NvmIndexKeyPart *part, Datum datum)
{
	switch (part->fast)
	{
		case NVM_FAST_INT2:
			return compare_int(DatumGetInt16(datum), DatumGetInt16(part->value));
		case NVM_FAST_INT4:
			return compare_int(DatumGetInt32(datum), DatumGetInt32(part->value));
		case NVM_FAST_INT8:
			return compare_int(DatumGetInt64(datum), DatumGetInt64(part->value));
		default:
			return DatumGetInt32(FunctionCall2Coll(part->cmp, part->collation,
												   datum, part->value));
	}
}

int
nvm_index_compare(const NvmIndexKey *key, IndexTuple itup)
{
	TupleDesc	desc = RelationGetDescr(key->index);
	int			natts = BTreeTupleGetNAtts(itup, key->index);
	int			n = Min(key->nparts, natts);
	ItemPointer tid;

	for (int i = 0; i < n; i++)
	{
		const NvmIndexKeyPart *part = &key->part[i];
		bool		isnull;
		Datum		datum = index_getattr(itup, i + 1, desc, &isnull);

		if (isnull || part->isnull)
		{
			if (isnull && part->isnull)
				continue;
			return part->isnull == part->nulls_first ? -1 : 1;
		}
		else
		{
			int			cmp = compare_values(part, datum);

			if (cmp != 0)
				return (cmp < 0) != part->desc ? 1 : -1;
		}
	}

	/* what the entry lacks is below whatever the key has */
	if (key->nparts > natts)
		return 1;
	if (key->pivot)
	{
		/* and the other way round */
		if (natts > key->nparts)
			return -1;
	}

	tid = BTreeTupleGetHeapTID(itup);
	if (key->scantid != NULL)
		return tid == NULL ? 1 : ItemPointerCompare(key->scantid, tid);
	if (key->pivot)
		return tid == NULL ? 0 : -1;

	/*
	 * A search without TID: everything to the left of a pivot that ends with
	 * the key's last column is below the key.
	 */
	if (tid == NULL && key->nparts == natts)
		return 1;
	return 0;
}
