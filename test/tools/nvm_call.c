/*-------------------------------------------------------------------------
 *
 * nvm_call.c
 *	  For tests of calls that are made again: the calls in the log of a running server,
 *	  and a process that plays them.
 *
 *	CREATE TABLE recorded (n serial, place bigint, section bytea);
 *	CREATE TABLE replayed (n int, failed bool, message text, detail text, call text,
 *		function oid, checksum_recorded text, checksum text, rows_recorded int, rows int,
 *		ncalls int, usec bigint);
 *	CREATE FUNCTION nvm_test_note_calls(bigint) RETURNS int AS '.../nvm_call' LANGUAGE C STRICT;
 *	CREATE FUNCTION nvm_test_play_calls(text) RETURNS void AS '.../nvm_call' LANGUAGE C STRICT;
 *
 * note_calls: into `recorded`, the sections of calls of this database in blocks of the log
 * from this position on.  play_calls: a background worker, whose library is at the path, plays
 * what `recorded` has, in its order, and says in `replayed` what has come of it; returns when
 * it has ended.  It plays on the original tables: there is no copy.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "command/nvm_command.h"
#include "command/nvm_command_replay.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "verify/nvm_verify_calls.h"

PG_MODULE_MAGIC;

#define LOG_DIRECTORY	"pg_nvm_log"

PG_FUNCTION_INFO_V1(nvm_test_note_calls);
PG_FUNCTION_INFO_V1(nvm_test_play_calls);

PGDLLEXPORT void nvm_test_play_main(Datum arg);

/* ---- calls in the log ---- */

/*
 * A file of the log, mapped.
 */
static const char *
map_file(const char *name, uint64 *size)
{
	char	   *path = psprintf("%s/%s", LOG_DIRECTORY, name);
	int			fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	void	   *base;

	if (fd < 0 || fstat(fd, &st) != 0)
		elog(ERROR, "could not open file \"%s\": %m", path);
	*size = (uint64) st.st_size;
	base = mmap(NULL, *size, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (base == MAP_FAILED)
		elog(ERROR, "could not map file \"%s\": %m", path);
	return base;
}

static void
note_section(uint64 place, const NvmLogSection *calls)
{
	Oid			types[2] = {INT8OID, BYTEAOID};
	Datum		values[2];
	bytea	   *bytes = palloc(VARHDRSZ + calls->length);

	if (nvm_log_calls_problem(calls) != NULL)
		elog(ERROR, "%s", nvm_log_calls_problem(calls));
	SET_VARSIZE(bytes, VARHDRSZ + calls->length);
	memcpy(VARDATA(bytes), calls->rows, calls->length);
	values[0] = Int64GetDatum((int64) place);
	values[1] = PointerGetDatum(bytes);
	if (SPI_execute_with_args("INSERT INTO recorded (place, section) VALUES ($1, $2)", 2, types,
							  values, NULL, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "no table recorded");
	pfree(bytes);
}

static bool
find_calls(const NvmLogFileHeader *header, const NvmLogRecord *record, NvmLogSection *calls)
{
	NvmLogWalk	walk;
	NvmLogLanes lanes;
	uint64		size;

	if ((record->flags & NVM_LOG_SIDE) != 0)
	{
		char	   *name = psprintf(NVM_LOG_SIDE_NAME, nvm_log_pool_of(header->uuid),
									header->generation, (unsigned long long) record->number);

		/* stays mapped: this is a test */
		nvm_log_walk_side(&walk, map_file(name, &size), NVM_LOG_RECORD_SIDE(record));
	}
	else
		nvm_log_walk_record(&walk, record);
	if (!nvm_log_find_calls(&walk, calls) || calls->creation != MyDatabaseId)
		return false;
	nvm_log_lanes_of(calls, &lanes);
	return !lanes.by_values;
}

static int
note_file(const char *name, uint64 from)
{
	uint64		size;
	const char *base = map_file(name, &size);
	const NvmLogFileHeader *header = (const NvmLogFileHeader *) base;
	NvmLogCursor cursor;
	const NvmLogBlock *block;
	const NvmLogRecord *record;
	NvmLogSection calls;
	NvmLogWalk	walk;
	int			n = 0;

	nvm_log_cursor_begin(&cursor, base, size, header->uuid, 0);
	while (nvm_log_next_block(&cursor, &block) == NVM_LOG_GOT_BLOCK)
	{
		if (block->position < from)
			continue;
		nvm_log_walk_block(&walk, block);
		while (nvm_log_next_record(&walk, &record))
		{
			if ((record->kind != NVM_LOG_COMMIT && record->kind != NVM_LOG_ASK) ||
				(record->flags & NVM_LOG_CALLS) == 0 || !find_calls(header, record, &calls))
				continue;
			note_section(block->position + ((const char *) record - (const char *) block), &calls);
			n++;
		}
	}
	munmap(unconstify(char *, base), size);
	return n;
}

static int
compare_names(const ListCell *a, const ListCell *b)
{
	return strcmp(lfirst(a), lfirst(b));
}

Datum
nvm_test_note_calls(PG_FUNCTION_ARGS)
{
	uint64		from = (uint64) PG_GETARG_INT64(0);
	DIR		   *dir = AllocateDir(LOG_DIRECTORY);
	struct dirent *entry;
	List	   *names = NIL;
	ListCell   *lc;
	NvmLogName	name;
	int			n = 0;

	while ((entry = ReadDir(dir, LOG_DIRECTORY)) != NULL)
	{
		if (nvm_log_parse_name(entry->d_name, &name) && name.number != 0)
			names = lappend(names, pstrdup(entry->d_name));
	}
	FreeDir(dir);
	list_sort(names, compare_names);
	SPI_connect();
	foreach(lc, names)
		n += note_file(lfirst(lc), from);
	SPI_finish();
	PG_RETURN_INT32(n);
}

/* ---- playing ---- */

Datum
nvm_test_play_calls(PG_FUNCTION_ARGS)
{
	char	   *library = text_to_cstring(PG_GETARG_TEXT_PP(0));
	BackgroundWorker worker = {
		.bgw_name = "nvm test player",
		.bgw_type = "nvm test player",
		.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_restart_time = BGW_NEVER_RESTART,
		.bgw_function_name = "nvm_test_play_main",
		.bgw_main_arg = ObjectIdGetDatum(MyDatabaseId),
		.bgw_notify_pid = MyProcPid
	};
	BackgroundWorkerHandle *handle;

	if (strlen(library) >= sizeof(worker.bgw_library_name))
		elog(ERROR, "path \"%s\" is too long", library);
	strlcpy(worker.bgw_library_name, library, sizeof(worker.bgw_library_name));
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		elog(ERROR, "no background worker is free");
	if (WaitForBackgroundWorkerShutdown(handle) != BGWH_STOPPED)
		elog(ERROR, "the player has not ended");
	PG_RETURN_VOID();
}

typedef struct Section
{
	int			n;
	NvmLogSection calls;
} Section;

/*
 * What `recorded` has, in TopMemoryContext.
 */
static List *
read_sections(void)
{
	List	   *sections = NIL;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	if (SPI_execute("SELECT n, section FROM recorded ORDER BY n", true, 0) != SPI_OK_SELECT)
		elog(ERROR, "no table recorded");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		MemoryContext outer = MemoryContextSwitchTo(TopMemoryContext);
		Section    *section = palloc0(sizeof(Section));
		bool		isnull;
		bytea	   *bytes;

		section->n = DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull));
		bytes = DatumGetByteaPCopy(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2, &isnull));
		section->calls.dir = NVM_LOG_CALLS_DIR;
		section->calls.creation = MyDatabaseId;
		section->calls.length = VARSIZE_ANY_EXHDR(bytes);
		/* aligned as it is in the log */
		section->calls.rows = memcpy(palloc(section->calls.length), VARDATA_ANY(bytes), section->calls.length);
		sections = lappend(sections, section);
		MemoryContextSwitchTo(outer);
	}
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
	return sections;
}

static Datum
text_of(const char *string, char *is_null)
{
	*is_null = string == NULL ? 'n' : ' ';
	return string == NULL ? (Datum) 0 : CStringGetTextDatum(string);
}

static void
report(int n, const NvmReplayed *r)
{
	Oid			types[12] = {INT4OID, BOOLOID, TEXTOID, TEXTOID, TEXTOID, OIDOID, TEXTOID, TEXTOID,
	INT4OID, INT4OID, INT4OID, INT8OID};
	Datum		values[12];
	char		nulls[12];

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	memset(nulls, ' ', sizeof(nulls));
	values[0] = Int32GetDatum(n);
	values[1] = BoolGetDatum(r->failed);
	values[2] = text_of(r->message, &nulls[2]);
	values[3] = text_of(r->detail, &nulls[3]);
	values[4] = text_of(r->call, &nulls[4]);
	values[5] = ObjectIdGetDatum(r->function);
	values[6] = CStringGetTextDatum(psprintf("%016llx", (unsigned long long) r->checksum_recorded));
	values[7] = CStringGetTextDatum(psprintf("%016llx", (unsigned long long) r->checksum));
	values[8] = Int32GetDatum((int32) r->rows_recorded);
	values[9] = Int32GetDatum((int32) r->rows);
	values[10] = Int32GetDatum(r->ncalls);
	values[11] = Int64GetDatum((int64) r->usec);
	if (SPI_execute_with_args("INSERT INTO public.replayed VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
							  12, types, values, nulls, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "no table replayed");
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
}

void
nvm_test_play_main(Datum arg)
{
	List	   *sections;
	ListCell   *lc;

	BackgroundWorkerUnblockSignals();
	nvm_command_replaying = true;
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid, 0);
	sections = read_sections();
	foreach(lc, sections)
	{
		Section    *section = lfirst(lc);
		Oid			user = GetUserId();
		NvmReplayed result;

		MemoryContextSwitchTo(TopMemoryContext);
		nvm_command_replay(&section->calls, &result);
		if (GetUserId() != user || CurrentMemoryContext != TopMemoryContext || IsTransactionState())
			elog(ERROR, "a replay has left something behind");
		report(section->n, &result);
	}
}
