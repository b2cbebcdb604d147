/*-------------------------------------------------------------------------
 *
 * verify_slot.c
 *	  Commit slots: their words and checks; lists of row locks.
 *
 * Compiled into the server and into nvm_poolcheck.
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

#include "verify/nvm_verify.h"

StaticAssertDecl(sizeof(NvmSlot) == NVM_SLOT_SIZE, "a commit slot is two cache lines");
StaticAssertDecl(sizeof(NvmSlotCopy) == NVM_LINE_SIZE, "a copy is one cache line");
StaticAssertDecl(sizeof(NvmLockList) == NVM_LOCK_LIST_HEADER, "header of a list of locks");
StaticAssertDecl(sizeof(NvmLockItem) == NVM_LOCK_ITEM_SIZE, "item of a list of locks");

/* domains of nvm_pool_check's place */
#define NVM_PLACE_SLOT(slot, field) \
	((UINT64_C(1) << 61) | ((uint64) (slot) << 4) | (uint64) (field))
#define NVM_PLACE_LOCKS(unit)	((UINT64_C(1) << 60) | (uint64) (unit))

/* after so many blank slots no used one is looked for */
#define PREFIX_MARGIN			512

/* ---- words and fields ---- */

uint64
nvm_slot_word(uint32 slot, uint32 state, uint64 counter)
{
	uint64		word = (counter << 16) | ((uint64) state << 12);

	return word | nvm_pool_check(&word, sizeof(word),
								 NVM_PLACE_SLOT(slot, NVM_FIELD_WORD), 12);
}

bool
nvm_slot_word_valid(uint32 slot, uint64 word)
{
	if (word == 0)
		return true;
	return NVM_WORD_STATE(word) >= NVM_SLOT_IDLE &&
		NVM_WORD_STATE(word) <= NVM_SLOT_TWOPHASE &&
		word == nvm_slot_word(slot, NVM_WORD_STATE(word), NVM_WORD_COUNTER(word));
}

uint64
nvm_slot_field(uint32 slot, NvmSlotField field, uint64 value)
{
	if (value == 0)
		return 0;
	return (value << 16) | nvm_pool_check(&value, sizeof(value),
										  NVM_PLACE_SLOT(slot, field), 16);
}

bool
nvm_slot_field_valid(uint32 slot, NvmSlotField field, uint64 value)
{
	return value == 0 ||
		value == nvm_slot_field(slot, field, NVM_FIELD_VALUE(value));
}

const char *
nvm_slot_copy_problem(uint32 slot, const NvmSlotCopy *copy)
{
	if (!nvm_slot_word_valid(slot, copy->word))
		return "its commit word fails its check";
	if (!nvm_slot_field_valid(slot, NVM_FIELD_XID, copy->xid))
		return "its transaction id fails its check";
	for (int i = 0; i < NVM_SLOT_GAPS; i++)
	{
		if (!nvm_slot_field_valid(slot, NVM_FIELD_GAP + i, copy->gap[i]))
			return "a gap entry fails its check";
		if (copy->gap[i] != 0 &&
			NVM_FIELD_VALUE(copy->gap[i]) > NVM_WORD_COUNTER(copy->word) + 1)
			return "a gap entry lies beyond the commit word";
	}
	if (!nvm_slot_field_valid(slot, NVM_FIELD_STATEMENT, copy->statement))
		return "its statement counter fails its check";
	if (!nvm_slot_field_valid(slot, NVM_FIELD_LOCKS, copy->locks))
		return "the place of its row locks fails its check";
	if ((NVM_WORD_STATE(copy->word) == NVM_SLOT_PREPARED ||
		 NVM_WORD_STATE(copy->word) == NVM_SLOT_TWOPHASE) && copy->xid == 0)
		return "it is prepared without a transaction id";
	return NULL;
}

/* ---- slots ---- */

/*
 * Which of two valid words of a slot was stored last.  The copies differ only
 * if the stop came between a store and its drain.  With IDLE and DECIDED of
 * one counter nothing was in flight either way; DECIDED is the cautious
 * reading.
 */
static int
word_rank(uint64 word)
{
	switch (NVM_WORD_STATE(word))
	{
		case NVM_SLOT_UNUSED:
			return 0;
		case NVM_SLOT_PREPARED:
			return 1;
		case NVM_SLOT_TWOPHASE:
			return 2;
		case NVM_SLOT_IDLE:
			return 3;
		default:
			return 4;
	}
}

static bool
word_is_newer(uint64 a, uint64 b)
{
	if (NVM_WORD_COUNTER(a) != NVM_WORD_COUNTER(b))
		return NVM_WORD_COUNTER(a) > NVM_WORD_COUNTER(b);
	return word_rank(a) > word_rank(b);
}

bool
nvm_slot_join(uint32 slot, const NvmSlot *s, NvmSlotCopy *result, const char *problem[2])
{
	int			best;

	for (int i = 0; i < 2; i++)
		problem[i] = nvm_slot_copy_problem(slot, &s->copy[i]);

	/* a copy that was lost to zeroes verifies, but cannot be this far behind */
	for (int i = 0; i < 2; i++)
	{
		if (problem[i] == NULL && problem[1 - i] == NULL &&
			s->copy[i].word == 0 && NVM_WORD_COUNTER(s->copy[1 - i].word) > 0)
			problem[i] = "it is zero";
	}

	if (problem[0] != NULL && problem[1] != NULL)
		return false;
	if (problem[0] != NULL || problem[1] != NULL)
	{
		*result = s->copy[problem[0] != NULL ? 1 : 0];
		return true;
	}

	best = word_is_newer(s->copy[1].word, s->copy[0].word) ? 1 : 0;
	*result = s->copy[best];
	for (int i = 0; i < NVM_SLOT_GAPS; i++)
	{
		if (result->gap[i] == 0)
			result->gap[i] = s->copy[1 - best].gap[i];
	}
	return true;
}

bool
nvm_slots_prefix(const NvmImage *image, uint32 *count, uint32 *hole)
{
	uint32		used = 0;
	uint32		unused = 0;

	for (uint32 slot = 0; slot < NVM_MAX_SLOTS && unused < PREFIX_MARGIN; slot++)
	{
		NvmSlot    *s = nvm_image_slot(image, slot);

		if (s->copy[0].word == 0 && s->copy[1].word == 0)
		{
			unused++;
			continue;
		}
		if (unused > 0)
		{
			*hole = used;
			*count = slot;
			return false;
		}
		used = slot + 1;
	}
	*count = used;
	return true;
}

const char *
nvm_slot_blank_problem(const NvmSlot *s)
{
	static const NvmSlot blank;

	if (memcmp(s, &blank, sizeof(blank)) != 0)
		return "it is not blank, but no lower slot leads to it";
	return NULL;
}

/* ---- lists of row locks ---- */

uint32
nvm_image_locks_units(const NvmImage *image, uint32 unit, uint32 slot)
{
	uint64		word = 0;

	if (unit < image->nchunks * NVM_UNITS_PER_CHUNK)
		word = nvm_image_load_word(image, unit);
	if (NVM_EXT_KIND(word) != NVM_EXT_LOCKS || NVM_EXT_OWNER(word) != slot + 1)
		return 0;
	return NVM_EXT_ARG(word);
}

uint32
nvm_lock_list_crc(uint32 unit, const NvmLockList *header)
{
	NvmLockList copy = *header;
	uint32		crc[2];

	copy.crc = 0;
	crc[0] = nvm_pool_check(&copy, sizeof(copy), NVM_PLACE_LOCKS(unit), 32);
	crc[1] = nvm_pool_check(header + 1, (Size) header->count * NVM_LOCK_ITEM_SIZE,
							NVM_PLACE_LOCKS(unit), 32);
	return nvm_pool_check(crc, sizeof(crc), NVM_PLACE_LOCKS(unit), 32);
}

const char *
nvm_image_locks_problem(const NvmImage *image, uint32 slot, uint64 counter, uint32 unit)
{
	uint32		steps = 0;

	while (unit != 0)
	{
		uint32		units = nvm_image_locks_units(image, unit, slot);
		const NvmLockList *header;

		/* a word that is no extent's may claim more than there is */
		if (units == 0 || nvm_extent_problem(nvm_image_load_word(image, unit), unit) != NULL)
			return "it leads to an extent that is not its own";
		header = (const NvmLockList *) (image->base + (uint64) unit * NVM_UNIT_SIZE);
		if (header->stamp != NVM_STAMP_MAKE(slot, counter))
			return "it has the stamp of another transaction";
		if (header->count > NVM_LOCK_LIST_ROOM(units))
			return "its length does not fit the extent";
		if (header->crc != nvm_lock_list_crc(unit, header))
			return "wrong checksum";
		if (header->reserved[0] != 0 || header->reserved[1] != 0 || header->reserved[2] != 0)
			return "reserved bytes are set";
		if (++steps > image->nchunks * NVM_UNITS_PER_CHUNK)
			return "it leads back to itself";
		unit = header->next;
	}
	return NULL;
}
