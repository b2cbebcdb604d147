/*-------------------------------------------------------------------------
 *
 * btree_pin.c
 *	  Does a scan stay in the lanes of the call that runs?
 *
 * A call of a registered function holds the lanes that its arguments name.  What it
 * reads of a partitioned table has to lie in these (command/README.md), so a condition
 * of the scan must say that the partition column is equal to a value of such a lane, or
 * to one of several.
 *
 * A lane is a hash of the value.  "Equal" is that of an operator family of the index,
 * and has to imply "of equal hash", also where the value is of another type than the
 * column: true of the operators of the type's hash family alone.  Collations may differ
 * if texts are equal by both only where their bytes are.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/stratnum.h"
#include "btree/nvm_btree_scan.h"
#include "catalog/pg_class_d.h"
#include "catalog/pg_type.h"
#include "command/nvm_command.h"
#include "utils/array.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"

/*
 * Are the lanes of all elements held?  There is no row for a null.
 */
static bool
elements_are_held(Datum datum, Oid type, Oid collation)
{
	ArrayType  *array = DatumGetArrayTypeP(datum);
	Datum	   *elems;
	bool	   *nulls;
	int			n;
	int16		len;
	bool		byval;
	char		align;
	bool		held = true;

	get_typlenbyvalalign(ARR_ELEMTYPE(array), &len, &byval, &align);
	deconstruct_array(array, ARR_ELEMTYPE(array), len, byval, align, &elems, &nulls, &n);
	for (int i = 0; i < n && held; i++)
		held = nulls[i] || nvm_lane_is_held(nvm_lane_of(type, collation, elems[i]));
	pfree(elems);
	pfree(nulls);
	if ((Pointer) array != DatumGetPointer(datum))
		pfree(array);
	return held;
}

/*
 * Does this condition of the partition column keep the scan in lanes that are held?
 */
static bool
key_is_pinned(Relation index, ScanKey key, Form_pg_attribute column)
{
	int			col = key->sk_attno - 1;
	Oid			own = index->rd_opcintype[col];
	Oid			given = OidIsValid(key->sk_subtype) ? key->sk_subtype : own;
	Oid			type = given == own || IsPolymorphicType(given) ? column->atttypid : given;

	if ((key->sk_flags & (SK_ROW_HEADER | SK_SEARCHNULL | SK_SEARCHNOTNULL)) != 0 ||
		key->sk_strategy != BTEqualStrategyNumber ||
		!nvm_equality_keeps_lane(get_opfamily_member(index->rd_opfamily[col], own, given,
													 BTEqualStrategyNumber),
								 index->rd_indcollation[col], column->atttypid,
								 column->attcollation))
		return false;
	if (key->sk_flags & SK_ISNULL)
		return true;			/* finds nothing */
	if (key->sk_flags & SK_SEARCHARRAY)
		return elements_are_held(key->sk_argument, type, column->attcollation);
	return nvm_lane_is_held(nvm_lane_of(type, column->attcollation, key->sk_argument));
}

/*
 * In a call, a scan of a query is to begin with the conditions that it has now; or the
 * search of ON CONFLICT for a row that is in the way, by a dirty snapshot: if there is
 * one, DO NOTHING writes none, and no lane is taken for it.
 *
 * am/cmdlog.c says why others, by other snapshots, are not asked.
 */
void
nvm_btree_note_read(IndexScanDesc scan)
{
	Relation	index = scan->indexRelation;
	Relation	table;
	AttrNumber	partition = InvalidAttrNumber;
	bool		pinned = nvm_lane_is_held(NVM_LANES);

	if (scan->xs_snapshot == NULL ||
		(!IsMVCCSnapshot(scan->xs_snapshot) &&
		 scan->xs_snapshot->snapshot_type != SNAPSHOT_DIRTY))
		return;
	/* the executor has it open */
	table = RelationIdGetRelation(index->rd_index->indrelid);
	if (nvm_command_is_table(table))
		partition = nvm_command_partition_column(table, NULL);
	if (partition != InvalidAttrNumber)
	{
		Form_pg_attribute column = TupleDescAttr(RelationGetDescr(table), partition - 1);

		for (int i = 0; i < scan->numberOfKeys && !pinned; i++)
		{
			ScanKey		key = &scan->keyData[i];

			pinned = index->rd_index->indkey.values[key->sk_attno - 1] == partition &&
				key_is_pinned(index, key, column);
		}
		if (!pinned)
			nvm_command_disqualify(NVM_REASON_NOT_PINNED, RelationRelationId,
								   RelationGetRelid(table));
	}
	RelationClose(table);
}
