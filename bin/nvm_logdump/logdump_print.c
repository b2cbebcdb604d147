/*-------------------------------------------------------------------------
 *
 * logdump_print.c
 *	  What a file of the log has: blocks, records, storages, rows, its end.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "logdump.h"

#include <unistd.h>

#define OFFSET_IN(file, at)		((uint64) ((const char *) (at) - (file)->base))

/* ---- storages and rows ---- */

static void
print_row(const NvmLogRow *row)
{
	printf("      (%u,%u) ", row->block, NVM_LOG_OFFSET(row));
	if (nvm_log_is_piece(row))
	{
		printf("attribute %u, piece %u: %u bytes\n", NVM_LOG_PIECE_ATTRIBUTE(row->xmin),
			   NVM_LOG_PIECE_NUMBER(row->xmin), row->length);
		return;
	}
	if (nvm_log_is_old(row))
	{
		printf("old row, xmin %u, checksum %016llx", row->xmin,
			   (unsigned long long) nvm_log_old_checksum(row));
		if (NVM_LOG_OLD_LENGTH(row) > 0)
			printf(", %u bytes", NVM_LOG_OLD_LENGTH(row));
		printf("\n");
		return;
	}
	printf("xmin %u ", row->xmin);
	if (row->length == 0)
		printf("gone\n");
	else
		printf("%u bytes%s\n", nvm_log_tuple_length(row), nvm_log_is_packed(row) ? ", packed" : "");
}

/*
 * Of one storage: counts come first, so its rows are passed twice.  False if lengths
 * are damaged.
 */
static bool
print_storage(const LogFile *file, const NvmLogSection *storage)
{
	const NvmLogRow *row;
	NvmLogWalk	walk;
	uint64		rows = 0;
	uint64		gone = 0;
	uint64		pieces = 0;
	uint64		old = 0;
	bool		sound;

	nvm_log_walk_rows(&walk, storage);
	while (nvm_log_next_item(&walk, &row))
	{
		if (nvm_log_is_piece(row))
			pieces++;
		else if (nvm_log_is_old(row))
			old++;
		else
			rows++;
		gone += row->length == 0;
	}
	printf("    storage %u, creation " UINT64_FORMAT ": " UINT64_FORMAT " rows, "
		   UINT64_FORMAT " of them gone",
		   storage->dir, (uint64) storage->creation, rows, gone);
	if (pieces > 0)
		printf(", " UINT64_FORMAT " pieces of large values", pieces);
	if (old > 0)
		printf(", " UINT64_FORMAT " old rows", old);
	printf("\n");
	sound = walk.problem == NULL;
	if (!sound)
		damaged(file, "row " UINT64_FORMAT " of the storage at byte " UINT64_FORMAT ": %s",
				rows + pieces + old + 1, OFFSET_IN(file, storage->header), walk.problem);
	if (!show_rows)
		return sound;
	nvm_log_walk_rows(&walk, storage);
	while (nvm_log_next_item(&walk, &row))
		print_row(row);
	return sound;
}

/*
 * What a record contains, of calls alone or not; with show it is printed, too.
 */
static void
print_storages(const LogFile *file, const NvmLogWalk *from, bool alone, bool show)
{
	NvmLogWalk	walk = *from;
	NvmLogSection storage;
	const char *at = walk.at;
	const char *problem;
	bool		sound = true;

	while (show && nvm_log_next_storage(&walk, &storage))
	{
		sound &= print_storage(file, &storage);
		at = walk.at;
	}
	if (walk.problem != NULL)
		damaged(file, "storage at byte " UINT64_FORMAT ": %s", OFFSET_IN(file, at), walk.problem);
	if (walk.problem != NULL || !sound)
		return;

	/* if lengths are right, it may still be the order of pieces and old rows */
	problem = nvm_log_storages_problem(from);
	if (problem != NULL)
		damaged(file, "storages at byte " UINT64_FORMAT ": %s", OFFSET_IN(file, from->at), problem);
	else if (show)
		log_calls_print(from, alone);
}

void
log_storages_print(const LogFile *file, const NvmLogWalk *from)
{
	print_storages(file, from, false, true);
}

/* ---- side files ---- */

/*
 * Where the side file of a record is.  One whose record was carried over into the next
 * generation keeps the name that it had.
 */
static void
find_side(char *path, const LogFile *file, uint64 number)
{
	char		name[MAXPGPATH];

	for (uint32 generation = file->header.generation; generation > 0; generation--)
	{
		snprintf(name, sizeof(name), NVM_LOG_SIDE_NAME, nvm_log_pool_of(file->header.uuid),
				 generation, (unsigned long long) number);
		if (log_find(path, file->path, name))
			return;
	}
	snprintf(name, sizeof(name), NVM_LOG_SIDE_NAME, nvm_log_pool_of(file->header.uuid),
			 file->header.generation, (unsigned long long) number);
	(void) log_find(path, file->path, name);
}

/*
 * The side file of a record.  An aborted transaction takes away the one that its ASK
 * record names.
 */
static void
print_side_of(const LogFile *file, const NvmLogRecord *record, uint64 place, bool show)
{
	const NvmLogSide *side = NVM_LOG_RECORD_SIDE(record);
	char		path[MAXPGPATH];
	const char *problem;
	LogFile		other;
	NvmLogWalk	walk;

	find_side(path, file, record->number);
	for (int i = 0; i < nlog_files; i++)
		log_files[i].told |= strcmp(log_files[i].path, path) == 0;
	if (show)
		printf("    side file %s, " UINT64_FORMAT " bytes\n", log_name_in(path), (uint64) side->length);
	if (access(path, F_OK) != 0 && errno == ENOENT)
	{
		if (place <= log_needed_from(file))
		{
			if (show)
				printf("      is missing, but the checkpoint has its rows\n");
		}
		else if (record->kind == NVM_LOG_COMMIT)
			damaged(file, "record at byte " UINT64_FORMAT ": its side file \"%s\" is missing",
					OFFSET_IN(file, record), log_name_in(path));
		else if (show)
			printf("      is missing, as after an abort\n");
		return;
	}
	if (!log_file_open(&other, path))
		return;
	if (other.size == 0)
		damaged(&other, "the file is truncated");
	if (other.size == 0 || !log_file_map(&other))
		return;
	problem = nvm_log_side_problem(other.base, other.size, side, file->header.uuid, &other.name);
	if (problem != NULL)
		damaged(&other, "%s", problem);
	else
	{
		nvm_log_walk_side(&walk, other.base, side);
		problem = (record->flags & NVM_LOG_ALONE) != 0 && nvm_log_storages_problem(&walk) == NULL ?
			nvm_log_alone_problem(&walk) : NULL;
		if (problem != NULL)
			damaged(&other, "%s", problem);
		print_storages(&other, &walk, (record->flags & NVM_LOG_ALONE) != 0, show);
	}
	log_file_unmap(&other);
}

/*
 * A side file by itself.  Its checksum stands in the record, so lengths alone
 * are checked.
 */
static void
print_side_file(LogFile *file)
{
	NvmLogSide	side = {0};
	NvmLogWalk	walk;

	printf("file %s: side file, generation %u", file->path, file->header.generation);
	if (file->has_name)
		printf(", of transaction " UINT64_FORMAT, file->name.transaction);
	printf("\n");
	if (file->size < NVM_LOG_PAGE)
	{
		damaged(file, "the file is truncated");
		return;
	}
	if (!log_file_map(file))
		return;
	side.length = file->size - NVM_LOG_PAGE;
	nvm_log_walk_side(&walk, file->base, &side);
	print_storages(file, &walk, false, true);
	log_file_unmap(file);
}

/* ---- records and blocks ---- */

static const char *
kind_of(const NvmLogRecord *record)
{
	switch (record->kind)
	{
		case NVM_LOG_COMMIT:
			return "COMMIT";
		case NVM_LOG_ASK:
			return "ASK";
		default:
			return (record->flags & NVM_LOG_COMMITTED) != 0 ? "OUTCOME committed" : "OUTCOME aborted";
	}
}

/*
 * place: where the record ends in the stream.
 */
static void
print_record(const LogFile *file, const NvmLogRecord *record, uint64 place)
{
	bool		show = place > from_position;
	NvmLogWalk	walk;

	if (show)
	{
		printf("  %s " UINT64_FORMAT, kind_of(record), (uint64) record->number);
		if ((record->flags & NVM_LOG_BRIEF) == 0)
			printf(", xid " UINT64_FORMAT, (uint64) record->xid);
		printf(", %u bytes, place " UINT64_FORMAT "\n", record->length, place);
	}
	if (record->kind != NVM_LOG_OUTCOME && (record->flags & NVM_LOG_SIDE) != 0)
	{
		print_side_of(file, record, place, show);
		return;
	}
	nvm_log_walk_record(&walk, record);
	print_storages(file, &walk, (record->flags & NVM_LOG_ALONE) != 0, show);
	if (nvm_log_storages_problem(&walk) == NULL && nvm_log_body_problem(record) != NULL)
		damaged(file, "record at byte " UINT64_FORMAT ": %s", OFFSET_IN(file, record),
				nvm_log_body_problem(record));
}

static void
print_block(const LogFile *file, const NvmLogBlock *block)
{
	const NvmLogRecord *record;
	NvmLogWalk	walk;
	const char *first;
	const char *at;

	if (block->position + block->length > from_position)
		printf("block at %llu: position " UINT64_FORMAT ", %u bytes, synced " UINT64_FORMAT "\n",
			   (unsigned long long) OFFSET_IN(file, block), (uint64) block->position,
			   block->length, (uint64) block->synced);
	nvm_log_walk_block(&walk, block);
	first = at = walk.at;
	while (nvm_log_next_record(&walk, &record))
	{
		print_record(file, record, block->position + (uint64) (walk.at - first));
		at = walk.at;
	}
	if (walk.problem != NULL)
		damaged(file, "record at byte " UINT64_FORMAT ": %s", OFFSET_IN(file, at), walk.problem);
}

/*
 * Why the file ends where the cursor is, and whether it may.
 */
static void
print_end(const LogFile *file, const NvmLogCursor *cursor, NvmLogNext end, const LogFile *after)
{
	char		buf[NVM_LOG_PROBLEM_SIZE];
	const char *problem = nvm_log_end_problem(cursor, buf);

	printf("end at %llu: position " UINT64_FORMAT ", ",
		   (unsigned long long) cursor->offset, cursor->position);
	if (end == NVM_LOG_FILE_FULL)
		printf("no room for another block\n");
	else if (end == NVM_LOG_NO_MORE && cursor->problem == NVM_LOG_ZEROES)
		printf("zeroes\n");
	else if (end == NVM_LOG_NO_MORE)
		printf("what is there does not prove itself: %s\n", cursor->problem);
	else if (after->header.generation == cursor->generation)
		printf("file %u goes on\n", after->header.number);
	else
		printf("generation %u begins\n", after->header.generation);

	/*
	 * files that a checkpoint makes superfluous go in any order, as a crash
	 * leaves it
	 */
	if (problem != NULL && cursor->limit != 0 && cursor->limit <= log_needed_from(file))
		printf("  up to position " UINT64_FORMAT " something is missing, but the checkpoint has it\n",
			   cursor->limit);
	else if (problem != NULL)
		damaged(file, "%s", problem);
}

static void
print_blocks(LogFile *file)
{
	const NvmLogFileHeader *h = &file->header;
	const LogFile *after = log_file_after(file);
	const NvmLogBlock *block;
	NvmLogCursor cursor;
	NvmLogNext	next;
	uint64		limit = 0;

	printf("file %s: generation %u, number %u, start " UINT64_FORMAT ", first " UINT64_FORMAT "\n",
		   file->path, h->generation, h->number, (uint64) h->start, (uint64) h->first);
	if (!log_file_map(file))
		return;
	if (after != NULL)
		limit = after->header.generation == h->generation ? after->header.first : after->header.start;
	nvm_log_cursor_begin(&cursor, file->base, file->size, h->uuid, limit);
	while ((next = nvm_log_next_block(&cursor, &block)) == NVM_LOG_GOT_BLOCK)
		print_block(file, block);
	print_end(file, &cursor, next, after);
	log_file_unmap(file);
}

bool
log_file_is_side(const LogFile *file)
{
	return file->has_name ? file->name.number == 0 : file->header.number == 0;
}

void
log_file_print(LogFile *file)
{
	bool		side = log_file_is_side(file);

	if (side && file->told)
		return;
	if (side && !file->asked_for)
		printf("file %s: side file that no record names\n", file->path);
	else if (file->problem != NULL && file->size >= sizeof(file->header) &&
			 file->header.magic == NVM_LOG_MAGIC && (file->header.version == 0 || file->header.version > NVM_LOG_VERSION) &&
			 file->header.crc == nvm_log_file_header_crc(&file->header))
		failed("file \"%s\" has format version %u, this nvm_logdump knows versions up to %d",
			   file->path, file->header.version, NVM_LOG_VERSION);
	else if (file->problem != NULL)
		damaged(file, "header: %s", file->problem);
	else if (side)
		print_side_file(file);
	else
		print_blocks(file);
}
