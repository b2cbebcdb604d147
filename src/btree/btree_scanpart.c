/*-------------------------------------------------------------------------
 *
 * btree_scanpart.c
 *	  One part of a scan's bound: the value of a column, and what compares it.
 *
 * A constant may be of another type than the column.  The operator family
 * compares the two, or the constant, an integer, is brought to the column's
 * width.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree_scan.h"
#include "catalog/pg_type.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

FmgrInfo *
nvm_scankeys_proc(NvmScanKeys *keys, int col, Oid left, Oid right)
{
	Relation	index = keys->low.index;
	Oid			opfamily = index->rd_opfamily[col];
	NvmScanProc *proc;
	RegProcedure function;

	if (left == right && left == index->rd_opcintype[col])
		return index_getprocinfo(index, col + 1, BTORDER_PROC);

	for (proc = keys->procs; proc != NULL; proc = proc->next)
	{
		if (proc->opfamily == opfamily && proc->left == left && proc->right == right)
			return proc->exists ? &proc->cmp : NULL;
	}
	function = get_opfamily_proc(opfamily, left, right, BTORDER_PROC);
	proc = MemoryContextAllocZero(keys->procs_context, sizeof(NvmScanProc));
	proc->opfamily = opfamily;
	proc->left = left;
	proc->right = right;
	proc->exists = RegProcedureIsValid(function);
	if (proc->exists)
		fmgr_info_cxt(function, &proc->cmp, keys->procs_context);
	proc->next = keys->procs;
	keys->procs = proc;
	return proc->exists ? &proc->cmp : NULL;
}

/*
 * Bring an integer of another width to the column's.  The column's own
 * comparison says of that number what the family's comparison of the two types
 * says.  False if it does not fit.
 */
static bool
take_width(Oid type, uint8 fast, Datum *value)
{
	int64		number;

	switch (type)
	{
		case INT2OID:
			number = DatumGetInt16(*value);
			break;
		case INT4OID:
			number = DatumGetInt32(*value);
			break;
		case INT8OID:
			number = DatumGetInt64(*value);
			break;
		default:
			return false;
	}
	switch (fast)
	{
		case NVM_FAST_INT2:
			*value = Int16GetDatum((int16) number);
			return number >= PG_INT16_MIN && number <= PG_INT16_MAX;
		case NVM_FAST_INT4:
			*value = Int32GetDatum((int32) number);
			return number >= PG_INT32_MIN && number <= PG_INT32_MAX;
		case NVM_FAST_INT8:
			*value = Int64GetDatum(number);
			return true;
		default:
			return false;
	}
}

/* the same of all elements of an array, or of none */
bool
nvm_elements_take_width(Oid type, uint8 fast, Datum *elems, int nelems)
{
	for (int i = 0; i < nelems; i++)
	{
		Datum		value = elems[i];

		if (!take_width(type, fast, &value))
			return false;
	}
	for (int i = 0; i < nelems; i++)
		(void) take_width(type, fast, &elems[i]);
	return true;
}

void
nvm_scankeys_add_part(NvmScanKeys *keys, NvmIndexKey *key, Oid type, Datum value, bool isnull)
{
	Relation	index = key->index;
	int			col = key->nparts++;
	NvmIndexKeyPart *part = &key->part[col];
	uint8		fast = nvm_index_cache(index)->fast[col];
	Oid			own = index->rd_opcintype[col];
	Datum		same = value;

	part->isnull = isnull;
	part->desc = NVM_COLUMN_DESC(index, col);
	part->nulls_first = NVM_COLUMN_NULLS_FIRST(index, col);
	part->collation = index->rd_indcollation[col];
	if (isnull || type == own || take_width(type, fast, &same))
	{
		part->value = same;
		part->fast = isnull ? NVM_FAST_NOT : fast;
		part->cmp = index_getprocinfo(index, col + 1, BTORDER_PROC);
	}
	else
	{
		part->value = value;
		part->fast = NVM_FAST_NOT;
		part->cmp = nvm_scankeys_proc(keys, col, own, type);
	}
}
