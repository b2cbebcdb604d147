/*-------------------------------------------------------------------------
 *
 * macros.c
 *	  The packed words of the media: what is put in comes out again.
 *
 * layout.py freezes offsets and constants; this freezes the bit fields, with
 * literal words, so that a changed shift or mask is noticed although it is
 * consistent with itself.  Needs no PostgreSQL.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

#include "media/media_block.h"
#include "media/media_pool.h"
#include "media/media_slot.h"

static int	failed = 0;

static void
expect(const char *what, uint64_t got, uint64_t want)
{
	if (got == want)
		return;
	printf("%s: %#" PRIx64 ", expected %#" PRIx64 "\n", what, got, want);
	failed = 1;
}

#define EXPECT(expr, want)	expect(#expr, (uint64_t) (expr), (uint64_t) (want))

static void
check_places(void)
{
	EXPECT(NVM_HEADER_OFFSET(0), 64 * 1024);
	EXPECT(NVM_HEADER_OFFSET(1), 68 * 1024);
	EXPECT(NVM_MAP_UNITS * NVM_UNIT_SIZE, 64 * 1024);
	EXPECT(NVM_SLOTS_OFFSET + (uint64_t) NVM_MAX_SLOTS * NVM_SLOT_SIZE,
		   (uint64_t) NVM_CHUNK0_FIRST_UNIT * NVM_UNIT_SIZE);
	EXPECT(NVM_MAP_UNITS + (uint64_t) NVM_MAX_SLOTS * NVM_SLOT_SIZE / NVM_UNIT_SIZE,
		   (uint64_t) NVM_VOLATILE_FIRST_UNIT);
	EXPECT(NVM_SLOT_NUMBERS <= NVM_STAMP_SPECIAL, 1);
	EXPECT(sizeof(NvmSlotCopy), NVM_LINE_SIZE);
	EXPECT(sizeof(NvmSlot), NVM_SLOT_SIZE);
	EXPECT(sizeof(NvmDirEntry), NVM_DIR_ENTRY_SIZE);
	EXPECT(NVM_DIRS_PER_EXTENT * sizeof(NvmDirEntry),
		   NVM_DIR_EXTENT_UNITS * NVM_UNIT_SIZE);
	EXPECT(sizeof(NvmBlock), NVM_BLOCK_HEADER_SIZE);
	EXPECT(NVM_FIRST_CELL * NVM_CELL_SIZE, NVM_BLOCK_HEADER_SIZE);
	EXPECT(NVM_CELLS * NVM_CELL_SIZE, NVM_UNIT_SIZE);
	EXPECT(offsetof(NvmVersion, tuple), NVM_VERSION_HEADER);
	EXPECT(NVM_EXT_MAX_UNITS <= NVM_UNITS_PER_CHUNK - NVM_MAP_UNITS, 1);
	EXPECT(NVM_LARGE_MAX_UNITS <= NVM_UNITS_PER_CHUNK - NVM_MAP_UNITS, 1);
	EXPECT(sizeof(NvmRedoLane), NVM_REDO_HEADER_SIZE);
	EXPECT(NVM_REDO_EXTENT_UNITS * NVM_UNIT_SIZE, 512 * 1024);
	EXPECT(NVM_REDO_WORD(0x12345678), UINT64_C(0x4F44455212345678));
}

static void
check_stamps(void)
{
	uint64_t	s = NVM_STAMP_MAKE(0x1234, UINT64_C(0x56789ABCDEF0));

	EXPECT(s, UINT64_C(0x123456789ABCDEF0));
	EXPECT(NVM_STAMP_SLOT(s), 0x1234);
	EXPECT(NVM_STAMP_COUNTER(s), UINT64_C(0x56789ABCDEF0));
	EXPECT(NVM_STAMP_IS_SPECIAL(s), 0);
	EXPECT(NVM_STAMP_IS_SPECIAL(NVM_STAMP_MAKE(NVM_STAMP_STUB, 1)), 1);
	EXPECT(NVM_STAMP_IS_SPECIAL(NVM_STAMP_MAKE(NVM_MAX_SLOTS - 1, 1)), 0);
	EXPECT(NVM_WORD_CHECK(UINT64_C(0x123456789ABCDEF0)), 0xEF0);
	EXPECT(NVM_WORD_STATE(UINT64_C(0x123456789ABCDEF0)), 0xD);
	EXPECT(NVM_WORD_COUNTER(UINT64_C(0x123456789ABCDEF0)), UINT64_C(0x123456789ABC));
	EXPECT(NVM_FIELD_CHECK(UINT64_C(0x123456789ABCDEF0)), 0xDEF0);
	EXPECT(NVM_FIELD_VALUE(UINT64_C(0x123456789ABCDEF0)), UINT64_C(0x123456789ABC));
}

static void
check_extent_words(void)
{
	uint64_t	w = UINT64_C(0x07FFFFFFFFFFFFFF);	/* all but the reserved
													 * bits */

	EXPECT(NVM_EXT_CHECK(w), 0xFFF);
	EXPECT(NVM_EXT_KIND(w), 7);
	EXPECT(NVM_EXT_OWNER(w), NVM_MAX_DIRS - 1);
	EXPECT(NVM_EXT_ARG(w), 0xFFFFFF);
	w = (UINT64_C(0xABCDEF) << 35) | (UINT64_C(0x54321) << 15) | (2 << 12) | 0x9A5;
	EXPECT(NVM_EXT_CHECK(w), 0x9A5);
	EXPECT(NVM_EXT_KIND(w), NVM_EXT_LARGE);
	EXPECT(NVM_EXT_OWNER(w), 0x54321);
	EXPECT(NVM_EXT_ARG(w), 0xABCDEF);
}

static void
check_references(void)
{
	uint64_t	r = NVM_REF_MAKE(0xFEDCBA98u, 253, 0xBEEF);
	uint64_t	l = NVM_LOCK_MAKE(0xFEDCBA98u, 0x1357, 0x2468);

	EXPECT(r, UINT64_C(0xBEEFFEDCBA9800FD));
	EXPECT(NVM_REF_BLOCK(r), 0xFEDCBA98u);
	EXPECT(NVM_REF_OFFSET(r), 253);
	EXPECT(NVM_REF_HI(r), 0xBEEF);
	EXPECT(NVM_REF_TID(r), UINT64_C(0xFEDCBA9800FD));
	EXPECT(NVM_REF_IS_VALID(r), 1);
	EXPECT(NVM_REF_IS_VALID(NVM_REF_MAKE(7, 0, 1)), 0);
	EXPECT(NVM_NEXT_CELLS(NVM_NEXT_OTHER_ROOT | NVM_NEXT_MOVED | 253), 253);
	EXPECT(l, UINT64_C(0x24681357FEDCBA98));
	EXPECT(NVM_LOCK_XID(l), 0xFEDCBA98u);
	EXPECT(NVM_LOCK_INC(l), 0x1357);
	EXPECT(NVM_LOCK_BITS(l), 0x2468);
}

int
main(void)
{
	check_places();
	check_stamps();
	check_extent_words();
	check_references();
	return failed;
}
