/*-------------------------------------------------------------------------
 *
 * large_log.c
 *	  Large values to the log, and back from it.
 *
 * The log has a value as it is stored, in pieces (media_log.h).  They are read from
 * its runs one by one, and written to new runs one by one: a value is nowhere in
 * memory as a whole.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "log/nvm_log.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "port/pg_crc32c.h"
#include "row/nvm_large.h"
#include "row/nvm_large_run.h"
#include "utils/memutils.h"
#include "verify/nvm_verify_block.h"
#include "verify/nvm_verify_log.h"
#include "wbl/nvm_wbl.h"

StaticAssertDecl(MaxHeapAttributeNumber <= NVM_LOG_PIECE_ATTRIBUTE(0xFFFFFFFF),
				 "the attribute of a piece does not fit");
/* a run ends with a piece, so that each may have one more */
StaticAssertDecl(MaxAllocSize / NVM_LOG_PIECE_MAX + MaxAllocSize / NVM_LARGE_RUN_BYTES + 2 <=
				 NVM_LOG_PIECE_NUMBER(0xFFFFFFFF),
				 "the number of a piece does not fit");

/* ---- to the log ---- */

/*
 * The pieces of the value at `head`, of the row with this root.
 */
static void
capture_value(NvmRelState *state, uint64 head, uint64 root, bool first)
{
	uint64		total = large_is_mapped(head) ? large_header(head)->total : 0;
	uint64		done = 0;
	uint32		segment = 0;
	uint32		number = 0;

	for (uint64 offset = head; done < total || number == 0; segment++)
	{
		const NvmLargeHeader *run;
		uint64		at = 0;

		if (!nvm_large_is_of(offset, state->dir) || !large_run_is_mapped(offset) ||
			large_header(offset)->segment != segment || large_header(offset)->length == 0 ||
			large_header(offset)->length > total - done)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("run %u of the large value at pool offset " UINT64_FORMAT " is missing",
							segment, head),
					 errhint("Run nvm.check() on the table.")));
		run = large_header(offset);
		while (at < run->length)
		{
			uint16		length = (uint16) Min(run->length - at, NVM_LOG_PIECE_MAX);

			nvm_log_piece(NVM_REF_BLOCK(root), NVM_REF_OFFSET(root), run->attribute, number,
						  large_data(offset) + at, length, first);
			first = false;
			number++;
			at += length;
		}
		done += run->length;
		offset = run->next;
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * See nvm_large.h.
 */
void
nvm_large_capture(NvmRelState *state, const NvmVersion *v)
{
	uint64		root = nvm_version_root(v);
	uint64		head;

	/* the log would have a row that cannot be brought back */
	if (nvm_large_head(v, 0) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("a version of row (%u,%u) of storage %u does not say where its large values are",
						NVM_REF_BLOCK(root), NVM_REF_OFFSET(root), state->dir),
				 errhint("Run nvm.check() on the table.")));
	for (int i = 0; (head = nvm_large_head(v, i)) != 0; i++)
		capture_value(state, head, root, i == 0);
}

/* ---- what the log has ---- */

/*
 * Is the first piece of a value what a value begins with?  Sets how many bytes it
 * has.
 */
static bool
begins_value(const NvmLogRow *piece, uint64 *total)
{
	struct varlena *value = (struct varlena *) unconstify(char *, NVM_LOG_PIECE_BYTES(piece));

	if (piece->length < VARHDRSZ || VARATT_IS_1B(value))
		return false;
	*total = VARSIZE(value);
	return *total >= VARHDRSZ && *total <= MaxAllocSize;
}

/*
 * See nvm_large.h.
 */
const char *
nvm_large_pieces_problem(const NvmLogRow *first)
{
	NvmLogPieces pieces;
	const NvmLogRow *item;
	uint32		count = 0;
	uint64		left = 0;
	uint16		listed;

	nvm_log_pieces_begin(&pieces, first);
	while (nvm_log_is_piece(item = nvm_log_pieces_next(&pieces)))
	{
		if (NVM_LOG_PIECE_NUMBER(item->xmin) == 0)
		{
			if (left != 0 || !begins_value(item, &left))
				return "a large value is not as long as it says";
			count++;
		}
		if (item->length > left)
			return "a large value is not as long as it says";
		left -= item->length;
	}
	if (left != 0)
		return "a large value is not as long as it says";
	if (count == 0)
		return NULL;
	if (nvm_log_is_packed(item))
		return "a row with large values is packed";
	if (item->length < SizeofHeapTupleHeader - NVM_LOG_TUPLE_SKIPS + NVM_LARGE_TRAILER(count))
		return "the list of a row's large values does not fit";
	memcpy(&listed, NVM_LOG_ROW_TUPLE(item) + item->length - sizeof(listed), sizeof(listed));
	return listed == count ? NULL : "a row has not as many large values as its pieces";
}

/*
 * See nvm_large.h.
 */
uint64
nvm_large_pieces_units(const NvmLogRow *first)
{
	NvmLogPieces pieces;
	const NvmLogRow *item;
	uint64		units = 0;
	uint64		total;

	nvm_log_pieces_begin(&pieces, first);
	while (nvm_log_is_piece(item = nvm_log_pieces_next(&pieces)))
	{
		if (NVM_LOG_PIECE_NUMBER(item->xmin) != 0 || !begins_value(item, &total))
			continue;
		units += total / NVM_LARGE_RUN_BYTES * large_run_units(NVM_LARGE_RUN_BYTES);
		if (total % NVM_LARGE_RUN_BYTES != 0)
			units += large_run_units(total % NVM_LARGE_RUN_BYTES);
	}
	return units;
}

/* ---- back from the log ---- */

/*
 * A value that is being written, run by run.
 */
typedef struct NewValue
{
	NvmRelState *state;
	NvmStamp	stamp;
	uint32		blk;			/* TID of the version */
	uint16		off;
	uint64		total;			/* bytes */
	uint64		left;			/* of these, for which there is no run yet */
	uint64		first;			/* pool offset of its first run, or 0 */
	uint64		current;		/* of the run that is being filled, or 0 */
	uint64		filled;			/* bytes in that */
	uint32		segment;		/* number of the next run */
} NewValue;

/*
 * The current run is full, and this is the next one.
 */
static void
run_end(NewValue *value, uint64 next)
{
	NvmLargeHeader *run = large_header(value->current);
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, large_data(value->current), run->length);
	FIN_CRC32C(crc);
	run->crc = crc;
	run->next = next;
	nvm_flush(run, sizeof(NvmLargeHeader) + run->length);
}

/*
 * One run more.  May ERROR.
 */
static void
run_begin(NewValue *value, uint32 attribute)
{
	uint64		bytes = Min(value->left, NVM_LARGE_RUN_BYTES);
	uint64		offset = nvm_large_new_run(value->state, large_run_units(bytes), value->stamp);
	NvmLargeHeader *run = large_header(offset);

	run->length = bytes;
	run->total = value->total;
	run->owner_block = value->blk;
	run->owner_offset = value->off;
	run->attribute = (uint16) attribute;
	run->segment = value->segment++;
	if (value->current != 0)
		run_end(value, offset);
	else
		value->first = offset;
	value->current = offset;
	value->filled = 0;
	value->left -= bytes;
}

static void
append_piece(NewValue *value, const NvmLogRow *piece)
{
	const char *from = NVM_LOG_PIECE_BYTES(piece);
	uint64		left = piece->length;

	while (left > 0)
	{
		uint64		n;

		if (value->current == 0 || value->filled == large_header(value->current)->length)
			run_begin(value, NVM_LOG_PIECE_ATTRIBUTE(piece->xmin));
		n = Min(left, large_header(value->current)->length - value->filled);
		memcpy(large_data(value->current) + value->filled, from, n);
		value->filled += n;
		from += n;
		left -= n;
	}
}

/*
 * The value is written: lead the version's i-th one there.
 */
static void
end_value(NewValue *value, NvmVersion *v, int i)
{
	run_end(value, 0);
	if (!nvm_large_repoint(v, i, value->first))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the log has a row whose large values are not where its tuple says"),
				 errdetail("Storage %u, row (%u,%u).", value->state->dir,
						   NVM_REF_BLOCK(nvm_version_root(v)),
						   NVM_REF_OFFSET(nvm_version_root(v)))));
}

/*
 * See nvm_large.h.
 */
uint64
nvm_large_rebuild(NvmRelState *state, NvmVersion *v, NvmStamp stamp, const NvmLogRow *first)
{
	uint64		place = NvmPoolOff(v);
	const NvmBlock *block = NvmPoolPtr(place - place % NVM_UNIT_SIZE);
	NewValue	value;
	NvmLogPieces pieces;
	const NvmLogRow *item;
	uint64		bytes = 0;
	int			i = -1;

	nvm_log_pieces_begin(&pieces, first);
	while (nvm_log_is_piece(item = nvm_log_pieces_next(&pieces)))
	{
		if (NVM_LOG_PIECE_NUMBER(item->xmin) == 0)
		{
			if (i >= 0)
				end_value(&value, v, i);
			i++;
			value = (NewValue)
			{
				.state = state,
					.stamp = stamp,
					.blk = block->blkno,
					.off = place % NVM_UNIT_SIZE / NVM_CELL_SIZE
			};
			(void) begins_value(item, &value.total);
			value.left = value.total;
		}
		append_piece(&value, item);
		bytes += item->length;
	}
	if (i >= 0)
		end_value(&value, v, i);
	return bytes;
}
