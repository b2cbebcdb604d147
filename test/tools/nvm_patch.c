/*-------------------------------------------------------------------------
 *
 * nvm_patch.c
 *	  Look into a pool file whose server is down, and damage it on purpose.
 *
 *	nvm_patch POOL header COPY				print the fields of a header copy
 *	nvm_patch POOL set COPY FIELD VALUE		set a field, recompute the checksum
 *	nvm_patch POOL detach					forget which file the pool was: a crash
 *											image is a new file of an unclean pool
 *	nvm_patch POOL flip OFFSET BIT			flip one bit of one byte
 *	nvm_patch POOL extents					mapoffset unitoffset units kind owner arg
 *	nvm_patch POOL blocks					offset dir blkno of each table block in use
 *	nvm_patch POOL slots					slot offset0 offset1 state counter
 *
 * COPY is 0, 1 or both.  Offsets are bytes from the start of the file.  Works
 * from the headers of src/media alone, so that it shows what the format says
 * and not what the server makes of it.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "media/media_block.h"
#include "media/media_pool.h"
#include "media/media_slot.h"

typedef struct HeaderField
{
	const char *name;
	size_t		offset;
	size_t		size;
} HeaderField;

#define FIELD(f) {#f, offsetof(NvmPoolHeader, f), sizeof(((NvmPoolHeader *) 0)->f)}

static const HeaderField header_fields[] = {
	FIELD(magic), FIELD(version), FIELD(min_version), FIELD(sequence),
	FIELD(system_identifier), FIELD(features_compat), FIELD(features_incompat),
	FIELD(nchunks), FIELD(incarnation), FIELD(clean), FIELD(wal_position),
	FIELD(unit_size), FIELD(chunk_units), FIELD(max_slots), FIELD(pg_major),
	FIELD(created), FIELD(device), FIELD(inode), FIELD(birth), FIELD(ncrashed),
	FIELD(crashed_floor), FIELD(reserved2), FIELD(crc)
};

static int	pool_fd;

static void
fail(const char *what)
{
	fprintf(stderr, "nvm_patch: %s: %s\n", what, errno ? strerror(errno) : "bad argument");
	exit(1);
}

static void
get(void *to, size_t len, uint64_t offset)
{
	errno = 0;
	if (pread(pool_fd, to, len, (off_t) offset) != (ssize_t) len)
		fail("read");
}

static void
put(const void *from, size_t len, uint64_t offset)
{
	errno = 0;
	if (pwrite(pool_fd, from, len, (off_t) offset) != (ssize_t) len)
		fail("write");
}

static uint64_t
number(const char *text)
{
	char	   *end;
	uint64_t	v;

	errno = 0;
	v = strtoull(text, &end, 0);
	if (errno || *end || end == text)
		fail(text);
	return v;
}

static uint32_t
crc32c(const void *data, size_t len)
{
	const uint8_t *p = data;
	uint32_t	crc = 0xFFFFFFFF;

	while (len-- > 0)
	{
		crc ^= *p++;
		for (int i = 0; i < 8; i++)
			crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78 : 0);
	}
	return ~crc;
}

static uint64_t
field_get(const NvmPoolHeader *h, const HeaderField *f)
{
	uint64_t	v = 0;

	memcpy(&v, (const char *) h + f->offset, f->size);	/* little endian */
	return v;
}

static void
show_header(int copy)
{
	NvmPoolHeader h;

	get(&h, sizeof(h), NVM_HEADER_OFFSET(copy));
	for (size_t i = 0; i < sizeof(header_fields) / sizeof(header_fields[0]); i++)
		printf("%s %" PRIu64 "\n", header_fields[i].name, field_get(&h, &header_fields[i]));
}

static void
set_field(int copy, const char *name, uint64_t value)
{
	NvmPoolHeader h;

	get(&h, sizeof(h), NVM_HEADER_OFFSET(copy));
	for (size_t i = 0; i < sizeof(header_fields) / sizeof(header_fields[0]); i++)
	{
		if (strcmp(header_fields[i].name, name) != 0)
			continue;
		memcpy((char *) &h + header_fields[i].offset, &value, header_fields[i].size);
		if (strcmp(name, "crc") != 0)
		{
			h.crc = 0;
			h.crc = crc32c(&h, sizeof(h));
		}
		put(&h, sizeof(h), NVM_HEADER_OFFSET(copy));
		return;
	}
	errno = 0;
	fail(name);
}

/*
 * Only in valid copies: a copy that the crash tore stays torn.
 */
static void
detach(void)
{
	for (int i = 0; i < 2; i++)
	{
		NvmPoolHeader h;
		uint32_t	crc;

		get(&h, sizeof(h), NVM_HEADER_OFFSET(i));
		crc = h.crc;
		h.crc = 0;
		if (h.magic != NVM_POOL_MAGIC || crc32c(&h, sizeof(h)) != crc)
			continue;
		h.device = h.inode = h.birth = 0;
		h.crc = crc32c(&h, sizeof(h));
		put(&h, sizeof(h), NVM_HEADER_OFFSET(i));
	}
}

static void
flip(uint64_t offset, uint64_t bit)
{
	uint8_t		b;

	get(&b, 1, offset);
	b ^= (uint8_t) (1 << (bit & 7));
	put(&b, 1, offset);
}

/* units of table extent number `index` of a relation: see the size schedule */
static uint32_t
table_extent_units(uint32_t index)
{
	uint32_t	k = index / NVM_EXT_PER_CLASS;

	return NVM_EXT_MIN_UNITS << (k < NVM_EXT_CLASSES - 1 ? k : NVM_EXT_CLASSES - 1);
}

static uint32_t
extent_units(uint64_t word)
{
	if (NVM_EXT_KIND(word) == NVM_EXT_TABLE)
		return table_extent_units(NVM_EXT_ARG(word));
	if (NVM_EXT_KIND(word) == NVM_EXT_LARGE)
		return NVM_EXT_ARG(word);
	return NVM_DIR_EXTENT_UNITS;
}

static void
show_blocks_of(uint64_t unit, uint32_t units)
{
	for (uint32_t i = 0; i < units; i++)
	{
		NvmBlock	b;
		uint64_t	offset = (unit + i) * NVM_UNIT_SIZE;

		get(&b, sizeof(b), offset);
		if (b.magic == NVM_BLOCK_MAGIC)
			printf("%" PRIu64 " %u %u\n", offset, b.dir, b.blkno);
	}
}

static void
walk_extents(int blocks)
{
	NvmPoolHeader h[2];
	uint64_t	nchunks;

	get(&h[0], sizeof(h[0]), NVM_HEADER_OFFSET(0));
	get(&h[1], sizeof(h[1]), NVM_HEADER_OFFSET(1));
	nchunks = h[0].nchunks > h[1].nchunks ? h[0].nchunks : h[1].nchunks;
	for (uint64_t c = 0; c < nchunks; c++)
	{
		static uint64_t map[NVM_CHUNK_SIZE / NVM_UNIT_SIZE];

		get(map, sizeof(map), c * NVM_CHUNK_SIZE);
		for (uint32_t u = 0; u < NVM_UNITS_PER_CHUNK;)
		{
			uint64_t	w = map[u];
			uint64_t	unit = c * NVM_UNITS_PER_CHUNK + u;
			uint32_t	n;

			if (w == 0)
			{
				u++;
				continue;
			}
			n = extent_units(w);
			if (blocks && NVM_EXT_KIND(w) == NVM_EXT_TABLE)
				show_blocks_of(unit, n);
			else if (!blocks)
				printf("%" PRIu64 " %" PRIu64 " %u %u %u %u\n",
					   c * NVM_CHUNK_SIZE + u * UINT64_C(8), unit * NVM_UNIT_SIZE, n,
					   NVM_EXT_KIND(w), NVM_EXT_OWNER(w), NVM_EXT_ARG(w));
			u += n ? n : 1;
		}
	}
}

static void
show_slots(void)
{
	for (uint32_t s = 0; s < NVM_MAX_SLOTS; s++)
	{
		NvmSlot		slot;
		uint64_t	offset = NVM_SLOTS_OFFSET + (uint64_t) s * NVM_SLOT_SIZE;

		get(&slot, sizeof(slot), offset);
		if (slot.copy[0].word == 0 && slot.copy[1].word == 0)
			continue;
		printf("%u %" PRIu64 " %" PRIu64 " %u %" PRIu64 "\n", s, offset,
			   offset + sizeof(NvmSlotCopy), NVM_WORD_STATE(slot.copy[0].word),
			   (uint64_t) NVM_WORD_COUNTER(slot.copy[0].word));
	}
}

int
main(int argc, char **argv)
{
	const char *command = argc > 2 ? argv[2] : "";

	if (argc < 3)
	{
		fprintf(stderr, "usage: nvm_patch POOL header|set|detach|flip|extents|blocks|slots ...\n");
		return 2;
	}
	if ((pool_fd = open(argv[1], O_RDWR)) < 0)
		fail(argv[1]);
	if (strcmp(command, "header") == 0 && argc == 4)
		show_header((int) number(argv[3]));
	else if (strcmp(command, "set") == 0 && argc == 6)
	{
		if (strcmp(argv[3], "1") != 0)
			set_field(0, argv[4], number(argv[5]));
		if (strcmp(argv[3], "0") != 0)
			set_field(1, argv[4], number(argv[5]));
	}
	else if (strcmp(command, "detach") == 0)
		detach();
	else if (strcmp(command, "flip") == 0 && argc == 5)
		flip(number(argv[3]), number(argv[4]));
	else if (strcmp(command, "extents") == 0)
		walk_extents(0);
	else if (strcmp(command, "blocks") == 0)
		walk_extents(1);
	else if (strcmp(command, "slots") == 0)
		show_slots();
	else
	{
		errno = 0;
		fail(command);
	}
	return close(pool_fd) == 0 ? 0 : 1;
}
