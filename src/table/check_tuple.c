/*-------------------------------------------------------------------------
 *
 * check_tuple.c
 *	  nvm.check(): the tuple of a version, and values outside of it.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/tupmacs.h"
#include "table/nvm_check.h"
#include "table/nvm_table.h"
#include "utils/memutils.h"

/*
 * Remember a large value for later: reading it may take long.
 */
static void
check_note_large(NvmCheck *check, NvmVersion *v, uint64 begin, uint32 blk,
				 uint32 off, int attnum, const char *standin)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(check->cxt);
	NvmCheckLarge *large = (NvmCheckLarge *) palloc(sizeof(NvmCheckLarge));

	memcpy(&large->offset, VARDATA_EXTERNAL(standin), sizeof(uint64));
	large->v = v;
	large->begin = begin;
	large->blk = blk;
	large->off = (uint16) off;
	large->attnum = attnum;
	check->large = lappend(check->large, large);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * One attribute at data + *pos of at most limit bytes.  Advances *pos;
 * returns false if the next one cannot be found.
 */
static bool
check_attribute(NvmCheck *check, NvmVersion *v, uint64 begin, uint32 blk,
				uint32 off, int attnum, const char *data, uint32 *pos,
				uint32 limit, int *nlarge)
{
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(check->rel), attnum - 1);
	uint32		at = *pos;
	uint32		size;

	if (att->attlen == -1)
	{
		if (at >= limit)
			goto beyond;
		at = att_align_pointer(at, att->attalign, -1, data + at);
		if (at >= limit)
			goto beyond;
		if (VARATT_IS_EXTERNAL(data + at))
		{
			size = VARHDRSZ_EXTERNAL + sizeof(uint64);
			if (at + size > limit)
				goto beyond;
			if (VARTAG_EXTERNAL(data + at) != VARTAG_INDIRECT)
			{
				nvm_check_report(check, blk, off, "attribute %d is external in an unknown way", attnum);
				return false;
			}
			check_note_large(check, v, begin, blk, off, attnum, data + at);
			(*nlarge)++;
		}
		else
		{
			if (!VARATT_IS_1B(data + at) && at + VARHDRSZ > limit)
				goto beyond;
			size = VARSIZE_ANY(data + at);
			if (size < (VARATT_IS_1B(data + at) ? VARHDRSZ_SHORT : VARHDRSZ))
			{
				nvm_check_report(check, blk, off, "attribute %d has an impossible length", attnum);
				return false;
			}
		}
	}
	else
	{
		at = att_align_nominal(at, att->attalign);
		if (att->attlen > 0)
			size = att->attlen;
		else
		{
			if (at >= limit)
				goto beyond;
			for (size = 1; at + size <= limit && data[at + size - 1] != '\0'; size++)
				;
		}
	}
	if (at + size > limit)
		goto beyond;
	*pos = at + size;
	return true;

beyond:
	nvm_check_report(check, blk, off, "attribute %d ends beyond the tuple's length", attnum);
	return false;
}

/*
 * The tuple of a version whose length and checksum are right.
 */
void
nvm_check_tuple(NvmCheck *check, NvmVersion *v, uint64 begin, uint32 blk,
				uint32 off)
{
	HeapTupleHeader th = NvmVersionTuple(v);
	int			natts = HeapTupleHeaderGetNatts(th);
	bool		hasnull = (th->t_infomask & HEAP_HASNULL) != 0;
	uint32		limit;
	uint32		pos = 0;
	int			nlarge = 0;
	uint16		count;

	if (natts > RelationGetDescr(check->rel)->natts)
	{
		nvm_check_report(check, blk, off, "%d attributes, but the table has %d",
						 natts, RelationGetDescr(check->rel)->natts);
		return;
	}
	if (!nvm_verify_tuple(&check->block, v, blk, off, &limit, &count))
		return;

	for (int i = 0; i < natts; i++)
	{
		if (hasnull && att_isnull(i, th->t_bits))
			continue;
		if (!check_attribute(check, v, begin, blk, off, i + 1,
							 (char *) th + th->t_hoff, &pos, limit - th->t_hoff, &nlarge))
			return;
	}
	if (nlarge != count)
		nvm_check_report(check, blk, off, "%d large values, but %u listed",
						 nlarge, count);
}

/* ---- values outside the blocks ---- */

static void
check_large_extent(uint64 unit, uint64 word, void *arg)
{
	NvmCheck   *check = (NvmCheck *) arg;

	if (check->nlarge_units == check->large_size)
	{
		check->large_size *= 2;
		check->large_units = (uint64 *)
			repalloc_huge(check->large_units, check->large_size * sizeof(uint64));
	}
	check->large_units[check->nlarge_units++] = unit;
}

static int
check_unit_cmp(const void *a, const void *b)
{
	uint64		x = *(const uint64 *) a;
	uint64		y = *(const uint64 *) b;

	return x < y ? -1 : x > y;
}

/*
 * List the extents of large values that the table owns now.
 */
void
nvm_check_large_units(NvmCheck *check)
{
	if (check->large_units == NULL)
	{
		check->large_size = 256;
		check->large_units = (uint64 *)
			MemoryContextAllocHuge(CurrentMemoryContext,
								   check->large_size * sizeof(uint64));
	}
	check->nlarge_units = 0;
	if (pg_atomic_read_u32(&check->state->nlarge) == 0)
		return;
	nvm_extents_walk(NVM_EXT_LARGE, check->block.dir, check_large_extent, check);
	qsort(check->large_units, check->nlarge_units, sizeof(uint64), check_unit_cmp);
}

static bool
large_is_listed(NvmCheck *check, uint64 unit)
{
	return bsearch(&unit, check->large_units, check->nlarge_units,
				   sizeof(uint64), check_unit_cmp) != NULL;
}

bool
nvm_check_owns_large(NvmCheck *check, uint64 unit)
{
	if (large_is_listed(check, unit))
		return true;
	/* newer than our list? */
	nvm_check_large_units(check);
	return large_is_listed(check, unit);
}

/*
 * Read a large value.  No locks: our snapshot keeps what it could see, and
 * what was rolled back meanwhile shows that in its begin.
 */
void
nvm_check_large(NvmCheck *check, const NvmCheckLarge *large)
{
	const char *problem = nvm_large_problem(&check->block, large->offset, large->blk, large->off);

	if (problem != NULL && nvm_load(&large->v->begin) == large->begin)
		nvm_check_report(check, large->blk, large->off,
						 "large value of attribute %d at pool offset " UINT64_FORMAT " %s",
						 large->attnum, large->offset, problem);
}

/*
 * Extents of large values that no version can lead to.
 */
void
nvm_check_large_orphans(NvmCheck *check)
{
	nvm_check_large_units(check);	/* those freed meanwhile are gone */
	for (int64 i = 0; i < check->nlarge_units; i++)
	{
		NvmLargeHeader *head = (NvmLargeHeader *)
			NvmPoolPtr(check->large_units[i] * NVM_UNIT_SIZE);
		uint64		stamp = nvm_load(&head->stamp);
		NvmVersion *v;

		/* running transactions and gaps have their own ways */
		if (stamp == 0 || NVM_STAMP_SLOT(stamp) >= NVM_MAX_SLOTS ||
			!nvm_stamp_is_frozen(stamp) || nvm_stamp_in_gap(stamp))
			continue;
		if (nvm_tid_exists(check->state, head->owner_block, head->owner_offset))
		{
			v = nvm_cell(check->state, head->owner_block, head->owner_offset);
			if (nvm_load(&v->begin) == 0 || NvmVersionCells(v) < 2 ||
				(v->flags & NVM_VF_LARGE) != 0)
				continue;
		}
		if (nvm_load(&head->stamp) != stamp)
			continue;
		nvm_check_report(check, head->owner_block, head->owner_offset,
						 "large value at pool offset " UINT64_FORMAT " has no version",
						 check->large_units[i] * NVM_UNIT_SIZE);
	}
}
