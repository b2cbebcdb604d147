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
#include "pool/nvm_pool.h"
#include "row/nvm_check.h"
#include "row/nvm_large.h"
#include "row/nvm_version.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_block.h"
#include "wbl/nvm_wbl.h"

/* a version whose tuple is checked, and how far the check has come */
typedef struct TupleCheck
{
	NvmCheck   *check;
	NvmVersion *v;
	uint64		begin;
	uint32		blk;
	uint32		off;
	const char *data;			/* of the columns */
	uint32		limit;			/* bytes of it */
	uint32		pos;			/* where the next column begins, before
								 * alignment */
	int			nlarge;			/* large values met */
} TupleCheck;

/*
 * Remember a large value for later: reading it may take long.
 */
static void
check_note_large(const TupleCheck *tuple, int attnum, uint64 offset)
{
	NvmCheck   *check = tuple->check;
	MemoryContext oldcontext = MemoryContextSwitchTo(check->cxt);
	NvmCheckLarge *large = (NvmCheckLarge *) palloc(sizeof(NvmCheckLarge));

	large->offset = offset;
	large->v = tuple->v;
	large->begin = tuple->begin;
	large->blk = tuple->blk;
	large->off = (uint16) tuple->off;
	large->attnum = attnum;
	check->large = lappend(check->large, large);
	MemoryContextSwitchTo(oldcontext);
}

static bool
report_beyond(const TupleCheck *tuple, int attnum)
{
	nvm_check_report(tuple->check, tuple->blk, tuple->off, "attribute %d ends beyond the tuple's length", attnum);
	return false;
}

/*
 * A varlena at *at, before alignment: sets where it begins, and its size as it
 * says.  False if something is wrong with it, which is reported.
 */
static bool
check_varlena(TupleCheck *tuple, Form_pg_attribute att, uint32 *at, uint32 *size)
{
	NvmCheck   *check = tuple->check;
	const char *data = tuple->data;
	uint32		limit = tuple->limit;
	int			attnum = att->attnum;
	const char *value;
	uint64		offset;

	if (*at >= limit)
		return report_beyond(tuple, attnum);
	*at = att_align_pointer(*at, att->attalign, -1, data + *at);
	if (*at >= limit)
		return report_beyond(tuple, attnum);
	value = data + *at;
	if (!VARATT_IS_EXTERNAL(value))
	{
		if (!VARATT_IS_1B(value) && *at + VARHDRSZ > limit)
			return report_beyond(tuple, attnum);
		*size = VARSIZE_ANY(value);
		if (*size >= (VARATT_IS_1B(value) ? VARHDRSZ_SHORT : VARHDRSZ))
			return true;
		nvm_check_report(check, tuple->blk, tuple->off, "attribute %d has an impossible length", attnum);
		return false;
	}

	*size = VARHDRSZ_EXTERNAL + sizeof(uint64);
	if (*at + *size > limit)
		return report_beyond(tuple, attnum);
	if (VARTAG_EXTERNAL(value) != VARTAG_INDIRECT)
	{
		nvm_check_report(check, tuple->blk, tuple->off, "attribute %d is external in an unknown way", attnum);
		return false;
	}
	memcpy(&offset, VARDATA_EXTERNAL(value), sizeof(offset));
	check_note_large(tuple, attnum, offset);
	tuple->nlarge++;
	return true;
}

/*
 * The next attribute, which is not null.  Advances pos; returns false if the one
 * after it cannot be found.
 */
static bool
check_attribute(TupleCheck *tuple, int attnum)
{
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(tuple->check->rel), attnum - 1);
	const char *data = tuple->data;
	uint32		limit = tuple->limit;
	uint32		at = tuple->pos;
	uint32		size;

	if (att->attlen == -1)
	{
		if (!check_varlena(tuple, att, &at, &size))
			return false;
	}
	else
	{
		at = att_align_nominal(at, att->attalign);
		if (att->attlen > 0)
			size = att->attlen;
		else
		{
			if (at >= limit)
				return report_beyond(tuple, attnum);
			for (size = 1; at + size <= limit && data[at + size - 1] != '\0'; size++)
				;
		}
	}
	if (at + size > limit)
		return report_beyond(tuple, attnum);
	tuple->pos = at + size;
	return true;
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
	TupleCheck	tuple = {.check = check,.v = v,.begin = begin,.blk = blk,.off = off};
	uint32		limit;
	uint16		count;

	if (natts > RelationGetDescr(check->rel)->natts)
	{
		nvm_check_report(check, blk, off, "%d attributes, but the table has %d",
						 natts, RelationGetDescr(check->rel)->natts);
		return;
	}
	if (!nvm_verify_tuple(&check->block, v, blk, off, &limit, &count))
		return;

	tuple.data = (char *) th + th->t_hoff;
	tuple.limit = limit - th->t_hoff;
	for (int i = 0; i < natts; i++)
	{
		if (hasnull && att_isnull(i, th->t_bits))
			continue;
		if (!check_attribute(&tuple, i + 1))
			return;
	}
	if (tuple.nlarge != count)
		nvm_check_report(check, blk, off, "%d large values, but %u listed",
						 tuple.nlarge, count);
}

/*
 * The same where columns are not looked at: its large values are listed.
 */
void
nvm_check_listed_large(NvmCheck *check, NvmVersion *v, uint64 begin, uint32 blk,
					   uint32 off)
{
	TupleCheck	tuple = {.check = check,.v = v,.begin = begin,.blk = blk,.off = off};
	uint64		offset;

	for (int i = 0; (offset = nvm_large_head(v, i)) != 0; i++)
		check_note_large(&tuple, 0, offset);
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
}

/*
 * Look for a large value, and read it if `bytes`.  No locks: our snapshot
 * keeps what it could see.  A version that was rolled back meanwhile, or is
 * dead to all, shows that in its begin before its values go.
 */
void
nvm_check_large(NvmCheck *check, const NvmCheckLarge *large, bool bytes)
{
	const char *problem = nvm_large_problem(&check->block, large->offset, large->blk,
											large->off, bytes);

	if (problem == NULL)
		return;
	pg_read_barrier();
	if (nvm_load(&large->v->begin) != large->begin)
		return;
	if (large->attnum == 0)
		nvm_check_report(check, large->blk, large->off,
						 "large value at pool offset " UINT64_FORMAT " %s",
						 large->offset, problem);
	else
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
		nvm_unit_address(check->large_units[i]);
		uint64		stamp = nvm_load(&head->stamp);
		NvmVersion *v;

		/* running transactions and gaps have their own ways */
		if (stamp == 0 || NVM_STAMP_SLOT(stamp) >= NVM_SLOT_NUMBERS ||
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
