/*-------------------------------------------------------------------------
 *
 * large_form.c
 *	  Form the tuple that is stored: compress, and move out what does not fit.
 *
 * As with heap's TOAST, a tuple beyond about 2 kB has its values compressed,
 * the largest first.  Unlike there, values are moved out only where the tuple
 * would not fit a block otherwise: reading a value that is inline costs
 * nothing here.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/toast_internals.h"
#include "pool/nvm_pool.h"
#include "row/nvm_image.h"
#include "row/nvm_large.h"
#include "row/nvm_relation.h"
#include "row/nvm_tuple_slot.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_block.h"

/* bytes of the stand-in for a value in its tuple */
#define NVM_LARGE_POINTER	(VARHDRSZ_EXTERNAL + sizeof(varatt_indirect))

typedef struct NvmFormAttr
{
	Size		size;			/* bytes that the value takes in the tuple now */
	bool		incompressible; /* or compressed already */
	bool		out;			/* will be moved out */
} NvmFormAttr;

/* a tuple that is being formed; arrays by column */
typedef struct BigTuple
{
	Relation	rel;
	TupleDesc	desc;
	Datum	   *values;			/* as they are stored in the tuple */
	bool	   *isnull;
	NvmFormAttr *attrs;
	struct varlena **out;		/* what is written outside, or NULL */
	int			nout;			/* values outside */
} BigTuple;

/*
 * Bytes of the tuple that heap_form_tuple would make, with its trailer.
 */
static Size
large_tuple_size(const BigTuple *big)
{
	TupleDesc	desc = big->desc;
	Size		size = SizeofHeapTupleHeader;

	for (int i = 0; i < desc->natts; i++)
	{
		if (big->isnull[i])
		{
			size += BITMAPLEN(desc->natts);
			break;
		}
	}
	size = MAXALIGN(size) + heap_compute_data_size(desc, big->values, big->isnull);
	if (big->nout > 0)
		size += NVM_LARGE_TRAILER(big->nout);
	return size;
}

/* how readily is a column's value moved out?  0 is never */
static int
large_move_class(Form_pg_attribute att)
{
	if (att->attlen != -1)
		return 0;
	switch (att->attstorage)
	{
		case TYPSTORAGE_EXTENDED:
		case TYPSTORAGE_EXTERNAL:
			return 3;
		case TYPSTORAGE_MAIN:
			return 2;
		default:
			return 1;
	}
}

/*
 * Compress values, the largest first, until the tuple is below target.
 */
static void
large_compress(BigTuple *big, Size target)
{
	TupleDesc	desc = big->desc;
	NvmFormAttr *attrs = big->attrs;
	static const char storages[] = {TYPSTORAGE_EXTENDED, TYPSTORAGE_MAIN};

	for (int pass = 0; pass < (int) lengthof(storages); pass++)
	{
		while (large_tuple_size(big) > target)
		{
			int			best = -1;
			Form_pg_attribute att;
			Datum		compressed;

			for (int i = 0; i < desc->natts; i++)
			{
				if (attrs[i].size > TOAST_POINTER_SIZE && !attrs[i].incompressible &&
					TupleDescAttr(desc, i)->attstorage == storages[pass] &&
					(best < 0 || attrs[i].size > attrs[best].size))
					best = i;
			}
			if (best < 0)
				break;

			att = TupleDescAttr(desc, best);
			attrs[best].incompressible = true;
			compressed = toast_compress_datum(big->values[best], att->attcompression);
			if (DatumGetPointer(compressed) != NULL)
			{
				big->values[best] = compressed;
				attrs[best].size = VARSIZE_ANY(DatumGetPointer(compressed));
			}
		}
	}
}

/*
 * Choose what is moved out so that the tuple fits a block, and put stand-ins
 * in the place of values; big->out[i] becomes what column i has to write.
 * ERROR if nothing helps.
 */
static void
large_choose(BigTuple *big)
{
	TupleDesc	desc = big->desc;
	NvmFormAttr *attrs = big->attrs;
	struct varlena **out = big->out;
	Size		size;

	while ((size = large_tuple_size(big)) > NVM_MAX_TUPLE)
	{
		int			best = -1;
		int			best_class = 0;
		char	   *standin;

		for (int i = 0; i < desc->natts; i++)
		{
			int			class = large_move_class(TupleDescAttr(desc, i));

			if (attrs[i].out || attrs[i].size <= NVM_LARGE_POINTER + sizeof(uint64))
				continue;
			if (class > best_class ||
				(class == best_class && best >= 0 && attrs[i].size > attrs[best].size))
			{
				best = i;
				best_class = class;
			}
		}
		if (best < 0)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("row is too big: size %zu, maximum size %zu",
							size, (Size) NVM_MAX_TUPLE)));

		/* a header of one byte belongs in tuples only */
		out[best] = (struct varlena *) DatumGetPointer(big->values[best]);
		if (VARATT_IS_SHORT(out[best]))
			out[best] = detoast_attr(out[best]);

		standin = palloc0(NVM_LARGE_POINTER);
		SET_VARTAG_EXTERNAL(standin, VARTAG_INDIRECT);
		big->values[best] = PointerGetDatum(standin);
		attrs[best].out = true;
		attrs[best].size = NVM_LARGE_POINTER;
		big->nout++;
	}
}

/*
 * Write the values chosen, and form the tuple around the stand-ins, in cxt.
 */
static HeapTuple
large_form_out(BigTuple *big, MemoryContext cxt, NvmLargeSet **large)
{
	TupleDesc	desc = big->desc;
	struct varlena **out = big->out;
	int			nout = big->nout;
	NvmLargeSet *set = nvm_large_set_make(nvm_rel(big->rel));
	uint64	   *heads = palloc(sizeof(uint64) * nout);
	int			n = 0;
	bool		null;
	HeapTuple	formed;
	HeapTuple	tuple;
	char	   *trailer;
	uint16		count = nout;
	ErrorContextCallback context;

	context.previous = error_context_stack;
	context.callback = nvm_extend_context;
	context.arg = big->rel;
	error_context_stack = &context;
	for (int i = 0; i < desc->natts; i++)
	{
		if (out[i] == NULL)
			continue;
		heads[n] = nvm_large_write(set, (char *) out[i], VARSIZE_ANY(out[i]), i + 1);
		memcpy(VARDATA_EXTERNAL(DatumGetPointer(big->values[i])), &heads[n], sizeof(uint64));
		n++;
	}
	error_context_stack = context.previous;
	Assert(n == nout);

	formed = heap_form_tuple(desc, big->values, big->isnull);
	Assert(HeapTupleHasExternal(formed));

	tuple = MemoryContextAlloc(cxt, HEAPTUPLESIZE + formed->t_len + NVM_LARGE_TRAILER(nout));
	*tuple = *formed;
	tuple->t_data = (HeapTupleHeader) ((char *) tuple + HEAPTUPLESIZE);
	tuple->t_len = formed->t_len + NVM_LARGE_TRAILER(nout);
	memcpy(tuple->t_data, formed->t_data, formed->t_len);

	/* where in the tuple each stand-in holds its offset */
	n = 0;
	for (int i = 0; i < desc->natts; i++)
	{
		if (out[i] != NULL)
			heads[n++] |= VARDATA_EXTERNAL(DatumGetPointer(heap_getattr(formed, i + 1, desc, &null))) -
				(char *) formed->t_data;
	}
	trailer = (char *) tuple->t_data + formed->t_len;
	memcpy(trailer, heads, sizeof(uint64) * nout);
	memcpy(trailer + sizeof(uint64) * nout, &count, sizeof(count));

	*large = set;
	return tuple;
}

/*
 * The tuple of a slot that is too big to be stored as it is, or has external
 * values.
 */
static pg_noinline HeapTuple
nvm_form_big(Relation rel, TupleTableSlot *slot, NvmLargeSet **large)
{
	TupleDesc	desc = RelationGetDescr(rel);
	MemoryContext work;
	MemoryContext oldcontext;
	BigTuple	big = {.rel = rel,.desc = desc};
	HeapTuple	tuple;

	slot_getallattrs(slot);

	work = AllocSetContextCreate(CurrentMemoryContext, "nvm tuple formation",
								 ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(work);

	big.values = palloc(sizeof(Datum) * desc->natts);
	memcpy(big.values, slot->tts_values, sizeof(Datum) * desc->natts);
	big.isnull = slot->tts_isnull;
	big.attrs = palloc0(sizeof(NvmFormAttr) * desc->natts);
	big.out = palloc0(sizeof(struct varlena *) * desc->natts);

	for (int i = 0; i < desc->natts; i++)
	{
		struct varlena *value;

		if (slot->tts_isnull[i] || TupleDescAttr(desc, i)->attlen != -1)
			continue;
		value = (struct varlena *) DatumGetPointer(big.values[i]);
		if (VARATT_IS_EXTERNAL(value))
			value = detoast_external_attr(value);
		if (TupleDescAttr(desc, i)->attstorage == TYPSTORAGE_PLAIN &&
			VARATT_IS_COMPRESSED(value))
			value = detoast_attr(value);
		big.values[i] = PointerGetDatum(value);
		big.attrs[i].size = VARSIZE_ANY(value);
		big.attrs[i].incompressible = VARATT_IS_COMPRESSED(value);
	}

	if (large_tuple_size(&big) > TOAST_TUPLE_THRESHOLD)
		large_compress(&big, RelationGetToastTupleTarget(rel, (int) TOAST_TUPLE_TARGET));

	large_choose(&big);
	if (big.nout > 0)
		tuple = large_form_out(&big, oldcontext, large);
	else
	{
		MemoryContextSwitchTo(oldcontext);
		tuple = heap_form_tuple(desc, big.values, slot->tts_isnull);
	}

	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(work);
	return tuple;
}

/*
 * The tuple of values that are all inline and small, or NULL.
 */
static HeapTuple
nvm_form_small(TupleDesc desc, Datum *values, bool *isnull)
{
	HeapTuple	tuple;
	HeapTupleHeader th;
	Size		data_len;
	Size		len;
	int			hoff = SizeofHeapTupleHeader;
	bool		hasnull = false;

	for (int i = 0; i < desc->natts; i++)
	{
		if (isnull[i])
		{
			hasnull = true;
			hoff += BITMAPLEN(desc->natts);
			break;
		}
	}
	hoff = MAXALIGN(hoff);
	data_len = heap_compute_data_size(desc, values, isnull);
	len = hoff + data_len;
	if (unlikely(len > TOAST_TUPLE_THRESHOLD))
		return NULL;

	tuple = palloc0(HEAPTUPLESIZE + len);
	tuple->t_len = len;
	ItemPointerSetInvalid(&tuple->t_self);
	tuple->t_tableOid = InvalidOid;
	tuple->t_data = th = (HeapTupleHeader) ((char *) tuple + HEAPTUPLESIZE);
	HeapTupleHeaderSetNatts(th, desc->natts);
	th->t_hoff = hoff;
	heap_fill_tuple(desc, values, isnull, (char *) th + hoff, data_len,
					&th->t_infomask, hasnull ? th->t_bits : NULL);
	if (unlikely(HeapTupleHasExternal(tuple)))
	{
		pfree(tuple);
		return NULL;
	}
	return tuple;
}

/*
 * Make a tuple of the slot that fits a block.  It may be the slot's own, or
 * even lie in the pool, and must not be written to unless *tofree is set.
 * Values moved out are written, in *large, for nvm_large_assign.
 */
HeapTuple
nvm_form_tuple(Relation rel, TupleTableSlot *slot, bool *tofree,
			   NvmLargeSet **large)
{
	TupleDesc	desc = RelationGetDescr(rel);
	HeapTuple	tuple = NULL;

	*large = NULL;
	if (unlikely(TTS_IS_NVM(slot) && ((NvmTupleTableSlot *) slot)->image))
		return nvm_image_form(rel, slot, tofree, large);

	/* a tuple that is there already will do if it has all columns inline */
	if (TTS_IS_NVM(slot) || TTS_IS_HEAPTUPLE(slot) || TTS_IS_BUFFERTUPLE(slot))
		tuple = ((HeapTupleTableSlot *) slot)->tuple;
	if (tuple != NULL && tuple->t_len <= TOAST_TUPLE_THRESHOLD &&
		!HeapTupleHasExternal(tuple) &&
		HeapTupleHeaderGetNatts(tuple->t_data) == desc->natts)
	{
		*tofree = false;
		return tuple;
	}

	*tofree = true;
	slot_getallattrs(slot);
	tuple = nvm_form_small(desc, slot->tts_values, slot->tts_isnull);
	if (unlikely(tuple == NULL))
		tuple = nvm_form_big(rel, slot, large);
	return tuple;
}
