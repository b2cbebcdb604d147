/*-------------------------------------------------------------------------
 *
 * media_describe.c
 *	  One-line descriptions of what is on the media.
 *
 * For messages, nvm.check and tools that run without a server.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include <inttypes.h>
#include <stdio.h>

#include "media/media_describe.h"

#define STAMP_SIZE		40

static void
uuid_text(char *out, const uint8_t *uuid)
{
	static const char hex[] = "0123456789abcdef";

	for (int i = 0; i < 16; i++)
	{
		*out++ = hex[uuid[i] >> 4];
		*out++ = hex[uuid[i] & 15];
	}
	*out = '\0';
}

/* slot:counter, or the name of a special stamp with its transaction id */
char *
nvm_describe_stamp(char *buf, uint32_t size, uint64_t stamp)
{
	uint32_t	slot = NVM_STAMP_SLOT(stamp);
	uint64_t	counter = NVM_STAMP_COUNTER(stamp);

	if (stamp == NVM_STAMP_NONE)
		snprintf(buf, size, "none");
	else if (slot == NVM_STAMP_DEAD)
		snprintf(buf, size, "dead@%" PRIu64, counter);
	else if (slot == NVM_STAMP_RETIRED)
		snprintf(buf, size, "retired@%" PRIu64, counter);
	else if (slot == NVM_STAMP_STUB)
		snprintf(buf, size, "stub@%" PRIu64, counter);
	else
		snprintf(buf, size, "%u:%" PRIu64, (unsigned) slot, counter);
	return buf;
}

char *
nvm_describe_header(char *buf, uint32_t size, const NvmPoolHeader *h)
{
	char		uuid[33];

	uuid_text(uuid, h->uuid);
	snprintf(buf, size,
			 "version %u (readable from %u), sequence %" PRIu64 ", system %" PRIu64
			 ", uuid %s, features %" PRIx64 "/%" PRIx64 ", chunks %" PRIu64
			 ", incarnation %u, %s, WAL %X/%X, server %u, crashed %u (all below %u), crc %08X%s",
			 h->version, h->min_version, h->sequence, h->system_identifier, uuid,
			 h->features_compat, h->features_incompat, h->nchunks, h->incarnation,
			 h->clean ? "clean" : "not clean", (unsigned) (h->wal_position >> 32),
			 (unsigned) h->wal_position, h->pg_major, h->ncrashed, h->crashed_floor, h->crc,
			 h->magic == NVM_POOL_MAGIC ? "" : ", wrong magic");
	return buf;
}

char *
nvm_describe_incarnation(char *buf, uint32_t size, const NvmIncarnationRecord *rec)
{
	char		uuid[33];

	uuid_text(uuid, rec->uuid);
	snprintf(buf, size,
			 "sequence %" PRIu64 ", system %" PRIu64 ", uuid %s, incarnation %u (%016" PRIx64
			 "), next %u (%016" PRIx64 "), severed %u%s%s",
			 rec->sequence, rec->system_identifier, uuid, rec->incarnation, rec->nonce,
			 rec->next_incarnation, rec->next_nonce, rec->severed,
			 rec->bypassed ? ", bypassed" : "",
			 rec->magic == NVM_INCARNATION_MAGIC ? "" : ", wrong magic");
	return buf;
}

char *
nvm_describe_extent(char *buf, uint32_t size, uint64_t word)
{
	unsigned	owner = NVM_EXT_OWNER(word);
	unsigned	arg = NVM_EXT_ARG(word);

	if (word == 0)
	{
		snprintf(buf, size, "free, or inside an extent");
		return buf;
	}
	switch (NVM_EXT_KIND(word))
	{
		case NVM_EXT_TABLE:
			snprintf(buf, size, "extent %u of storage %u", arg, owner);
			break;
		case NVM_EXT_LARGE:
			snprintf(buf, size, "large value of storage %u, %u units", owner, arg);
			break;
		case NVM_EXT_DIR:
			snprintf(buf, size, "directory extent %u", arg);
			break;
		case NVM_EXT_LOCKS:
			snprintf(buf, size, "row locks of commit slot %u, %u units", owner - 1, arg);
			break;
		case NVM_EXT_REDO:
			snprintf(buf, size, "redo lanes, %u units", arg);
			break;
		default:
			snprintf(buf, size, "unknown kind %u, word %016" PRIx64,
					 (unsigned) NVM_EXT_KIND(word), word);
			break;
	}
	return buf;
}

char *
nvm_describe_dir_entry(char *buf, uint32_t size, const NvmDirEntry *entry)
{
	char		begin[STAMP_SIZE];
	char		end[STAMP_SIZE];

	snprintf(buf, size,
			 "begin %s, end %s, database %u, tablespace %u, relation file %" PRIu64
			 ", creation %" PRIu64 ", kind %u%s%s%s, crc %08X",
			 nvm_describe_stamp(begin, sizeof(begin), entry->begin),
			 nvm_describe_stamp(end, sizeof(end), entry->end),
			 entry->database, entry->tablespace, entry->relnumber, entry->creation_id,
			 entry->kind, entry->flags & NVM_DIR_UNLOGGED ? ", unlogged" : "",
			 entry->flags & NVM_DIR_TEMP ? ", temporary" : "",
			 entry->flags & NVM_DIR_REBUILT ? ", rebuilt" : "", entry->crc);
	return buf;
}

char *
nvm_describe_slot(char *buf, uint32_t size, const NvmSlotCopy *copy)
{
	static const char *const states[] = {
		"unused", "idle", "decided", "prepared", "two-phase"
	};
	uint32_t	state = NVM_WORD_STATE(copy->word);
	int			n;

	n = snprintf(buf, size, "%s(%" PRIu64 "), xid %" PRIu64 ", locks at unit %" PRIu64 ", gaps",
				 state < sizeof(states) / sizeof(states[0]) ? states[state] : "unknown state",
				 NVM_WORD_COUNTER(copy->word), NVM_FIELD_VALUE(copy->xid),
				 NVM_FIELD_VALUE(copy->locks));
	for (int i = 0; i < NVM_SLOT_GAPS && n > 0 && (uint32_t) n < size; i++)
	{
		if (copy->gap[i] != 0)
			n += snprintf(buf + n, size - n, " %" PRIu64, NVM_FIELD_VALUE(copy->gap[i]));
	}
	return buf;
}

char *
nvm_describe_block(char *buf, uint32_t size, const NvmBlock *block)
{
	int			starts = 0;
	int			used = 0;

	for (int i = 0; i < 4; i++)
	{
		starts += __builtin_popcountll(block->starts[i]);
		used += __builtin_popcountll(block->used[i]);
	}
	snprintf(buf, size,
			 "block %u of storage %u, allocated in incarnation %u%s, %d areas, %d cells used, check %08X%s",
			 block->blkno, block->dir, block->alloc_inc,
			 block->flags & NVM_BLOCK_SUSPECT ? ", suspect" : "", starts, used,
			 block->check, block->magic == NVM_BLOCK_MAGIC ? "" : ", wrong magic");
	return buf;
}

char *
nvm_describe_version(char *buf, uint32_t size, const NvmVersion *v)
{
	char		begin[STAMP_SIZE];
	char		end[STAMP_SIZE];
	uint16_t	hi = NVM_REF_HI(v->next);

	snprintf(buf, size,
			 "begin %s, end %s, next (%u,%u)%s%s, %u cells, link (%u,%u), lock %016" PRIx64
			 ", length %u, flags %04X, xmin %u, xend %u, crc %08X",
			 nvm_describe_stamp(begin, sizeof(begin), v->begin),
			 nvm_describe_stamp(end, sizeof(end), v->end),
			 NVM_REF_BLOCK(v->next), NVM_REF_OFFSET(v->next),
			 hi & NVM_NEXT_OTHER_ROOT ? " another root" : "",
			 hi & NVM_NEXT_MOVED ? " moved" : hi & NVM_NEXT_KEYS ? " keys" : "",
			 (unsigned) NVM_NEXT_CELLS(hi),
			 NVM_REF_BLOCK(v->link), NVM_REF_OFFSET(v->link), v->lock, v->len, v->flags,
			 v->tuple.xmin, v->tuple.xend, v->crc);
	return buf;
}

char *
nvm_describe_large(char *buf, uint32_t size, const NvmLargeHeader *h)
{
	char		stamp[STAMP_SIZE];

	snprintf(buf, size,
			 "stamp %s, segment %u, %" PRIu64 " of %" PRIu64 " bytes, next at %" PRIu64
			 ", attribute %u of (%u,%u), crc %08X",
			 nvm_describe_stamp(stamp, sizeof(stamp), h->stamp), h->segment, h->length,
			 h->total, h->next, h->attribute, h->owner_block, h->owner_offset, h->crc);
	return buf;
}
