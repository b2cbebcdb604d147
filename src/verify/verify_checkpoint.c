/*-------------------------------------------------------------------------
 *
 * verify_checkpoint.c
 *	  The log: what can be wrong with the file of a checkpoint.
 *
 * Its data files are as side files are: verify_log.c.  Compiled into the server and
 * into nvm_logdump.
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

StaticAssertDecl(sizeof(NvmLogCheckpoint) == NVM_LOG_CHECKPOINT_SIZE, "file of a checkpoint");
StaticAssertDecl(sizeof(NvmLogSnapshot) == NVM_LOG_SNAPSHOT_SIZE, "snapshot of a checkpoint");
StaticAssertDecl(offsetof(NvmLogCheckpoint, crc) + sizeof(uint32) == sizeof(NvmLogCheckpoint),
				 "its checksum is the last of the struct");

bool
nvm_log_parse_checkpoint_name(const char *text, uint32 *pool)
{
	uint64		value;
	const char *rest = nvm_log_parse_hex(text, 8, ".checkpoint", &value);

	*pool = (uint32) value;
	return rest != NULL && *rest == '\0';
}

bool
nvm_log_parse_rows_name(const char *text, NvmLogRowsName *name)
{
	uint64		pool;
	uint64		part = 0;

	text = nvm_log_parse_hex(text, 8, "-", &pool);

	if (text !=NULL)
		text = nvm_log_parse_hex(text, 16, "-", &name->checkpoint);

	if (text !=NULL)
		text = nvm_log_parse_hex(text, 8, ".rows", &part);

	name->pool = (uint32) pool;
	name->part = (uint32) part;
	return text !=NULL && *text == '\0';
}

uint32
nvm_log_checkpoint_crc(const NvmLogCheckpoint *c)
{
	const uint32 zero = 0;
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, c, offsetof(NvmLogCheckpoint, crc));
	COMP_CRC32C(crc, &zero, sizeof(zero));
	COMP_CRC32C(crc, NVM_LOG_CHECKPOINT_DATA(c),
				(Size) (NVM_LOG_CHECKPOINT_LENGTH(c->nfiles, c->snapshot) - NVM_LOG_CHECKPOINT_SIZE));
	FIN_CRC32C(crc);
	return crc;
}

/*
 * Is that a snapshot, of so many bytes?
 */
static bool
snapshot_is_possible(const NvmLogSnapshot *s, uint32 length)
{
	const uint64 *xip = NVM_LOG_SNAPSHOT_XIP(s);

	if (length < sizeof(*s) || s->nxip > NVM_LOG_SNAPSHOT_XIDS ||
		length != NVM_LOG_SNAPSHOT_LENGTH(s->nxip) || s->reserved != 0 ||
		s->xmin == 0 || s->xmin > s->xmax)
		return false;
	for (uint32 i = 0; i < s->nxip; i++)
	{
		if (xip[i] < s->xmin || xip[i] >= s->xmax || (i > 0 && xip[i] <= xip[i - 1]))
			return false;
	}
	return true;
}

const char *
nvm_log_checkpoint_problem(const NvmLogCheckpoint *c, uint64 file_size, const uint8 *uuid)
{
	if (file_size < sizeof(*c))
		return "the file is truncated";
	if (c->magic != NVM_LOG_CHECKPOINT_MAGIC)
		return "wrong magic number";
	if (c->version == 0 || c->version > NVM_LOG_CHECKPOINT_VERSION)
		return "unknown version of the format";
	if (c->nfiles > NVM_LOG_CHECKPOINT_FILES)
		return "impossible number of data files";
	if (file_size != NVM_LOG_CHECKPOINT_LENGTH(c->nfiles, c->snapshot))
		return "impossible length";
	if (c->crc != nvm_log_checkpoint_crc(c))
		return "wrong checksum";
	if (uuid != NULL && memcmp(c->uuid, uuid, sizeof(c->uuid)) != 0)
		return "belongs to another pool";
	if (c->generation == 0 || c->file == 0 || c->number == 0 ||
		c->begin < NVM_LOG_FIRST || c->begin > c->decided || c->decided > c->end)
		return "impossible contents";
	if ((c->version == 1) != (c->snapshot == 0) ||
		(c->snapshot != 0 && !snapshot_is_possible(NVM_LOG_CHECKPOINT_SNAPSHOT(c), c->snapshot)))
		return "impossible snapshot";
	return NULL;
}
