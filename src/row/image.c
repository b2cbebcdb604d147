/*-------------------------------------------------------------------------
 *
 * image.c
 *	  Rows of the log as tuples in memory, to be written again as they were.
 *
 * A replay brings rows of the log into a copy of their table (replay/README.md).  The copy must
 * not differ from the table in what a checksum covers: how many columns a row has, which of its
 * values are compressed, which lie outside of the block.  nvm_form_tuple would decide that anew,
 * by today's settings of the columns.  So a slot can be an *image*: its tuple is stored as
 * it is.
 *
 * The stand-ins of large values have pool offsets in a table.  In an image they lead to the
 * values in memory, which the pieces were put together to: that is what PostgreSQL takes such
 * a varlena for.  The list of them at the tuple's end goes along, and is corrected when the
 * values are written.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "common/pg_lzcompress.h"
#include "pool/nvm_pool.h"
#include "row/nvm_image.h"
#include "row/nvm_large.h"
#include "row/nvm_rebuild.h"
#include "row/nvm_relation.h"
#include "row/nvm_tuple_slot.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_block.h"
#include "verify/nvm_verify_log.h"

/*
 * See nvm_image.h.
 */
bool
nvm_image_unpack(const NvmLogRow *row, char *to)
{
	int32		length = (int32) nvm_log_tuple_length(row);

	if (!nvm_log_is_packed(row))
	{
		memcpy(to, NVM_LOG_ROW_TUPLE(row), length);
		return true;
	}
	return pglz_decompress(NVM_LOG_ROW_TUPLE(row) + NVM_LOG_PACKED_HEADER,
						   nvm_log_item_length(row) - NVM_LOG_PACKED_HEADER,
						   to, length, true) == length;
}

static void
damaged(const NvmLogRow *row, const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("the log has a row that cannot be read: %s", problem),
			 errdetail("Row (%u,%u).", row->block, row->offset)));
}

/*
 * A tuple with room for so many bytes from infomask2 on, which the caller fills in.
 */
static HeapTuple
make_tuple(uint32 length)
{
	HeapTuple	tuple = palloc0(HEAPTUPLESIZE + NVM_LOG_TUPLE_SKIPS + length);

	tuple->t_len = NVM_LOG_TUPLE_SKIPS + length;
	tuple->t_data = (HeapTupleHeader) ((char *) tuple + HEAPTUPLESIZE);
	ItemPointerSetInvalid(&tuple->t_self);
	tuple->t_tableOid = InvalidOid;
	return tuple;
}

/*
 * The bytes are there: of the infomasks what describes the columns.
 */
static bool
is_tuple(HeapTuple tuple)
{
	HeapTupleHeader header = tuple->t_data;

	header->t_infomask &= NVM_INFOMASK_FIXED;
	header->t_infomask2 &= HEAP_NATTS_MASK;
	return header->t_hoff >= SizeofHeapTupleHeader && header->t_hoff <= tuple->t_len &&
		header->t_hoff == MAXALIGN(header->t_hoff) &&
		(!HeapTupleHasNulls(tuple) ||
		 SizeofHeapTupleHeader + BITMAPLEN(HeapTupleHeaderGetNatts(header)) <= header->t_hoff);
}

/*
 * See nvm_image.h.
 */
HeapTuple
nvm_image_tuple(const char *bytes, uint32 length)
{
	HeapTuple	tuple;

	if (NVM_LOG_TUPLE_SKIPS + length < SizeofHeapTupleHeader ||
		NVM_LOG_TUPLE_SKIPS + length > NVM_MAX_TUPLE)
		return NULL;
	tuple = make_tuple(length);
	memcpy((char *) tuple->t_data + NVM_LOG_TUPLE_SKIPS, bytes, length);
	return is_tuple(tuple) ? tuple : NULL;
}

/* ---- large values ---- */

/*
 * The i-th entry of the list at the end of a tuple that has `count`: where its stand-in has
 * eight bytes, or NULL.  Sets where the entry itself lies.
 */
static char *
standin_of(HeapTuple tuple, int count, int i, char **entry)
{
	char	   *data = (char *) tuple->t_data;
	char	   *list = data + tuple->t_len - NVM_LARGE_TRAILER(count);
	uint64		word;
	uint32		place;

	*entry = list + i * sizeof(uint64);
	memcpy(&word, *entry, sizeof(word));
	place = NVM_LARGE_PLACE(word);
	if (place < tuple->t_data->t_hoff + VARHDRSZ_EXTERNAL ||
		data + place + sizeof(uint64) > list ||
		!VARATT_IS_EXTERNAL_INDIRECT(data + place - VARHDRSZ_EXTERNAL))
		return NULL;
	return data + place;
}

static uint16
count_of(HeapTuple tuple)
{
	uint16		count;

	if (!HeapTupleHasExternal(tuple))
		return 0;
	memcpy(&count, (char *) tuple->t_data + tuple->t_len - sizeof(count), sizeof(count));
	return count;
}

/*
 * Put the values together that the pieces have, and lead the stand-ins there.  The pieces have
 * passed nvm_rebuild_row_problem, so there is one value for each entry of the list.
 */
static void
collect_values(HeapTuple tuple, const NvmLogRow *first)
{
	uint16		count = count_of(tuple);
	NvmLogPieces pieces;
	const NvmLogRow *item;
	char	   *to = NULL;
	int			i = -1;

	nvm_log_pieces_begin(&pieces, first);
	while (nvm_log_is_piece(item = nvm_log_pieces_next(&pieces)))
	{
		const char *bytes = NVM_LOG_PIECE_BYTES(item);

		if (NVM_LOG_PIECE_NUMBER(item->xmin) == 0)
		{
			char	   *value = palloc(VARSIZE(bytes));
			char	   *entry;
			char	   *standin;

			i++;
			standin = i < count ? standin_of(tuple, count, i, &entry) : NULL;
			if (standin == NULL)
				damaged(nvm_log_pieces_row(first),
						"its large values are not where its tuple says");
			StaticAssertStmt(sizeof(value) == sizeof(uint64),
							 "a pointer takes the place of a pool offset");
			memcpy(standin, &value, sizeof(value));
			to = value;
		}
		memcpy(to, bytes, item->length);
		to += item->length;
	}
	if (i + 1 != count)
		damaged(item, "it has not as many large values as its pieces");
}

/*
 * The value of a column that an image has outside.
 */
static Datum
value_behind(Datum standin)
{
	varatt_indirect indirect;

	memcpy(&indirect, VARDATA_EXTERNAL(DatumGetPointer(standin)), sizeof(indirect));
	return PointerGetDatum(indirect.pointer);
}

static inline bool
is_outside(TupleDesc desc, int i, Datum value, bool isnull)
{
	return !isnull && TupleDescAttr(desc, i)->attlen == -1 &&
		VARATT_IS_EXTERNAL(DatumGetPointer(value));
}

/*
 * See nvm_image.h.  All of the image lies in large_cxt.
 */
void
nvm_image_store(TupleTableSlot *slot, const NvmLogRow *first)
{
	NvmTupleTableSlot *nslot = (NvmTupleTableSlot *) slot;
	TupleDesc	desc = slot->tts_tupleDescriptor;
	const NvmLogRow *row = nvm_log_pieces_row(first);
	const char *problem = nvm_rebuild_row_problem(first);
	MemoryContext oldcontext;
	HeapTuple	tuple;
	int			noutside = 0;

	Assert(TTS_IS_NVM(slot));
	if (problem != NULL)
		damaged(row, problem);
	ExecClearTuple(slot);
	nslot->large_cxt = AllocSetContextCreate(slot->tts_mcxt, "nvm image of a row",
											 ALLOCSET_SMALL_SIZES);
	oldcontext = MemoryContextSwitchTo(nslot->large_cxt);
	tuple = make_tuple(nvm_log_tuple_length(row));
	if (!nvm_image_unpack(row, (char *) tuple->t_data + NVM_LOG_TUPLE_SKIPS) ||
		!is_tuple(tuple))
		damaged(row, "its tuple is impossible");
	if (HeapTupleHeaderGetNatts(tuple->t_data) > desc->natts)
		damaged(row, "it has more columns than the table");
	collect_values(tuple, first);
	MemoryContextSwitchTo(oldcontext);

	slot->tts_flags &= ~TTS_FLAG_EMPTY;
	nslot->base.tuple = tuple;
	nslot->image = true;
	slot_getallattrs(slot);
	for (int i = 0; i < desc->natts; i++)
	{
		if (is_outside(desc, i, slot->tts_values[i], slot->tts_isnull[i]))
		{
			slot->tts_values[i] = value_behind(slot->tts_values[i]);
			noutside++;
		}
	}
	if (noutside != count_of(tuple))
		damaged(row, "its columns have not as many large values as its list");
}

/*
 * See nvm_image.h.  The stand-ins are in the order of their columns, as those of any
 * tuple.
 */
HeapTuple
nvm_image_form(Relation rel, TupleTableSlot *slot, bool *tofree, NvmLargeSet **large)
{
	TupleDesc	desc = RelationGetDescr(rel);
	HeapTuple	image = ((NvmTupleTableSlot *) slot)->base.tuple;
	uint16		count = count_of(image);
	ErrorContextCallback context;
	HeapTuple	tuple;
	Datum	   *values;
	bool	   *isnull;
	int			n = 0;

	*tofree = count > 0;
	if (count == 0)
		return image;
	tuple = heap_copytuple(image);
	values = palloc(sizeof(Datum) * desc->natts);
	isnull = palloc(sizeof(bool) * desc->natts);
	heap_deform_tuple(image, desc, values, isnull);
	*large = nvm_large_set_make(nvm_rel(rel));
	context.previous = error_context_stack;
	context.callback = nvm_extend_context;
	context.arg = rel;
	error_context_stack = &context;
	for (int i = 0; i < desc->natts; i++)
	{
		char	   *value;
		char	   *standin;
		char	   *entry;
		uint64		word;

		if (!is_outside(desc, i, values[i], isnull[i]))
			continue;
		value = DatumGetPointer(value_behind(values[i]));
		word = nvm_large_write(*large, value, VARSIZE(value), i + 1);
		standin = standin_of(tuple, count, n++, &entry);
		Assert(standin != NULL);
		memcpy(standin, &word, sizeof(word));
		word |= (uint64) (standin - (char *) tuple->t_data);
		memcpy(entry, &word, sizeof(word));
	}
	error_context_stack = context.previous;
	Assert(n == count);
	pfree(values);
	pfree(isnull);
	return tuple;
}
