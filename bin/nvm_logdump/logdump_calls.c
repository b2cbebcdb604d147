/*-------------------------------------------------------------------------
 *
 * logdump_calls.c
 *	  Calls in records, as SQL.
 *
 * Names are not in the log.  A file may give them (--names), else Oids are printed.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "logdump.h"

/* ---- names ---- */

typedef struct NameOfOid
{
	char	   *kind;
	uint32		oid;
	char	   *name;
} NameOfOid;

static NameOfOid *names = NULL;
static int	nnames = 0;

/*
 * Each line has a kind, an Oid, and the name up to its end.
 */
bool
log_names_read(const char *path)
{
	FILE	   *file = fopen(path, "r");
	char		line[1024];

	if (file == NULL)
	{
		pg_log_error("could not open file \"%s\": %m", path);
		return false;
	}
	while (fgets(line, sizeof(line), file) != NULL)
	{
		char		kind[64];
		uint32		oid;
		int			at;

		if (sscanf(line, "%63s %u %n", kind, &oid, &at) != 2)
			continue;
		line[strcspn(line, "\r\n")] = '\0';
		names = pg_realloc(names, sizeof(NameOfOid) * (nnames + 1));
		names[nnames].kind = pg_strdup(kind);
		names[nnames].oid = oid;
		names[nnames++].name = pg_strdup(line + at);
	}
	fclose(file);
	return true;
}

/*
 * Of what has no name, the Oid; good until the next but one is asked for.
 */
static const char *
name_of(const char *kind, uint32 oid)
{
	static char buf[2][16];
	static int	next = 0;

	for (int i = 0; i < nnames; i++)
	{
		if (names[i].oid == oid && strcmp(names[i].kind, kind) == 0)
			return names[i].name;
	}
	next = !next;
	snprintf(buf[next], sizeof(buf[next]), "%u", oid);
	return buf[next];
}

const char *
type_name(uint32 type)
{
	return name_of("type", type);
}

/* ---- parts ---- */

static void
put_lanes(StringInfo to, NvmLogWalk *list, const NvmLogPart *part)
{
	uint32		lane = 0;

	appendStringInfoString(to, part->n == 0 ? "all lanes" : "lanes");
	for (uint32 i = 0; i < part->n && nvm_log_next_lane(list, &lane); i++)
		appendStringInfo(to, "%s %u", i > 0 ? "," : "", lane);
}

static void
put_lanes_of_values(StringInfo to, NvmLogWalk *list, const NvmLogPart *part)
{
	appendStringInfoString(to, "values");
	if (part->n > 0 || (part->flags & NVM_LOG_LANES_ALL) != 0)
	{
		appendStringInfoString(to, ", ");
		put_lanes(to, list, part);
	}
	if ((part->flags & NVM_LOG_LANES_SHARED) != 0)
		appendStringInfoString(to, ", shared tables");
}

static void
put_settings(StringInfo to, NvmLogWalk *list, const NvmLogPart *part)
{
	uint32		setting;
	const char *text;
	uint32		length;

	appendStringInfo(to, "role %s", name_of("role", part->role));
	for (uint32 i = 0; i < part->n && nvm_log_next_setting(list, &setting, &text, &length); i++)
	{
		char	   *copy = pg_malloc(length + 1);

		memcpy(copy, text, length);
		copy[length] = '\0';
		appendStringInfo(to, ", %s = ", nvm_log_settings[setting].name);
		put_literal(to, copy);
		pg_free(copy);
	}
}

static void
put_values(StringInfo to, NvmLogWalk *list, const NvmLogPart *part)
{
	NvmLogValue value;

	for (uint32 i = 0; i < part->n && nvm_log_next_value(list, &value); i++)
	{
		if (i > 0)
			appendStringInfoString(to, ", ");
		put_value(to, &value);
	}
}

static void
put_part(StringInfo to, const NvmLogCalls *calls, NvmLogWalk *list, const NvmLogPart *part)
{
	switch (part->kind)
	{
		case NVM_LOG_PART_LANES:
			put_lanes(to, list, part);
			break;
		case NVM_LOG_PART_VALUES:
			put_lanes_of_values(to, list, part);
			break;
		case NVM_LOG_PART_SETTINGS:
			put_settings(to, list, part);
			break;
		case NVM_LOG_PART_CALL:
			appendStringInfo(to, "call %s(", name_of("function", part->function));
			put_values(to, list, part);
			appendStringInfoChar(to, ')');
			if (part->statement != 0)
			{
				appendStringInfoString(to, ", statement of ");
				put_timestamp(to, (int64) ((uint64) calls->timestamp + (uint64) part->statement), "+00");
			}
			break;
		default:
			appendStringInfo(to, "  tape of %s: ", name_of("function", part->function));
			put_values(to, list, part);
			break;
	}
}

/*
 * The calls of a record whose storages were printed, and are sound; or the lanes of its
 * values.
 */
void
log_calls_print(const NvmLogWalk *from, bool alone)
{
	NvmLogSection section;
	NvmLogLanes lanes;
	const NvmLogCalls *calls;
	NvmLogWalk	walk;
	NvmLogWalk	list;
	NvmLogPart	part;
	StringInfoData line;

	if (!nvm_log_find_calls(from, &section))
		return;
	calls = NVM_LOG_CALLS_OF(&section);
	initStringInfo(&line);
	put_timestamp(&line, calls->timestamp, "+00");
	nvm_log_lanes_of(&section, &lanes);
	printf("    %s of database %s, %s, %u bytes", lanes.by_values ? "values" : alone ? "calls alone" : "calls",
		   name_of("database", (uint32) section.creation), line.data, section.length);
	if (!lanes.by_values)
		printf(", checksum %016llx of %u rows", (unsigned long long) calls->checksum, calls->rows);
	printf("\n");
	nvm_log_walk_parts(&walk, &section);
	while (nvm_log_next_part(&walk, &part))
	{
		resetStringInfo(&line);
		nvm_log_walk_list(&list, &walk, &part);
		put_part(&line, calls, &list, &part);
		printf("      %s\n", line.data);
	}
	pfree(line.data);
}
