/*-------------------------------------------------------------------------
 *
 * verify_kept.c
 *	  The log: what can be wrong with the list of what a clean stop has kept.
 *
 * The files that it names are as side files are: verify_log.c.  Compiled into the server
 * and into nvm_logdump.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef FRONTEND
#include "postgres.h"
#else
#include "postgres_fe.h"
#endif

#include "port/pg_crc32c.h"
#include "verify/nvm_verify_log.h"

StaticAssertDecl(sizeof(NvmLogKept) == NVM_LOG_KEPT_SIZE, "list of what a stop has kept");
StaticAssertDecl(sizeof(NvmLogKeptFile) == NVM_LOG_KEPT_FILE_SIZE, "one file of that list");
StaticAssertDecl(offsetof(NvmLogKept, crc) + sizeof(uint32) == sizeof(NvmLogKept),
				 "its checksum is the last of the struct");

bool
nvm_log_parse_kept_name(const char *text, uint32 *pool)
{
	uint64		value;
	const char *rest = nvm_log_parse_hex(text, 8, ".kept", &value);

	*pool = (uint32) value;
	return rest != NULL && *rest == '\0';
}

bool
nvm_log_parse_kept_rows_name(const char *text, NvmLogKeptName *name)
{
	uint64		pool;
	uint64		incarnation = 0;
	const char *rest = nvm_log_parse_hex(text, 8, "-", &pool);

	if (rest != NULL)
		rest = nvm_log_parse_hex(rest, 8, "-", &incarnation);
	if (rest != NULL)
		rest = nvm_log_parse_hex(rest, 16, ".kept", &name->creation);
	name->pool = (uint32) pool;
	name->incarnation = (uint32) incarnation;
	return rest != NULL && *rest == '\0';
}

uint32
nvm_log_kept_crc(const NvmLogKept *kept)
{
	const uint32 zero = 0;
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, kept, offsetof(NvmLogKept, crc));
	COMP_CRC32C(crc, &zero, sizeof(zero));
	COMP_CRC32C(crc, NVM_LOG_KEPT_DATA(kept), (Size) kept->nfiles * NVM_LOG_KEPT_FILE_SIZE);
	FIN_CRC32C(crc);
	return crc;
}

static bool
is_possible(const NvmLogKeptFile *file)
{
	return file->creation != 0 && file->incarnation != 0 && file->reserved == 0 &&
		file->side.length != 0 && file->side.reserved == 0;
}

const char *
nvm_log_kept_problem(const NvmLogKept *kept, uint64 file_size, const uint8 *uuid)
{
	if (file_size < sizeof(*kept))
		return "the file is truncated";
	if (kept->magic != NVM_LOG_KEPT_MAGIC)
		return "wrong magic number";
	if (kept->version != NVM_LOG_KEPT_VERSION)
		return "unknown version of the format";
	if (kept->nfiles > NVM_LOG_KEPT_FILES)
		return "impossible number of files";
	if (file_size != NVM_LOG_KEPT_LENGTH(kept->nfiles))
		return "impossible length";
	if (kept->crc != nvm_log_kept_crc(kept))
		return "wrong checksum";
	if (uuid != NULL && memcmp(kept->uuid, uuid, sizeof(kept->uuid)) != 0)
		return "belongs to another pool";
	if (kept->incarnation == 0 || kept->nonce == 0)
		return "impossible contents";
	for (uint32 i = 0; i < kept->nfiles; i++)
	{
		if (!is_possible(&NVM_LOG_KEPT_DATA(kept)[i]))
			return "impossible contents";
	}
	return NULL;
}
