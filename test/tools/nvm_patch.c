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
 *	nvm_patch FILE incarnation NUMBER		set the last incarnation in an incarnation
 *											file, whose server was stopped cleanly
 *	nvm_patch POOL grow DIR NBLOCKS			give storage DIR that many blocks, all but
 *											the last one never used, and that one empty
 *											since a row in it was freed, in chunks
 *											appended to the (sparse) file; the server
 *											must have been stopped cleanly
 *	nvm_patch POOL lane N PLACE BYTE LENGTH	make redo lane N say that LENGTH bytes of
 *											that value belong at PLACE; more such pieces
 *											may follow.  The lanes are made if there are
 *											none.  Prints the lane's offset
 *	nvm_patch POOL lanes					offset word pieces of each lane
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
	FIELD(created), FIELD(device), FIELD(inode), FIELD(birth),
	FIELD(data_inode), FIELD(data_birth), FIELD(ncrashed),
	FIELD(crashed_floor), FIELD(xid_promise), FIELD(marks_era), FIELD(reserved2), FIELD(crc)
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
crc32c_more(uint32_t crc, const void *data, size_t len)
{
	const uint8_t *p = data;

	while (len-- > 0)
	{
		crc ^= *p++;
		for (int i = 0; i < 8; i++)
			crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78 : 0);
	}
	return crc;
}

static uint32_t
crc32c(const void *data, size_t len)
{
	return ~crc32c_more(0xFFFFFFFF, data, len);
}

/* the checks of the pool: over uuid, place and data; fewer bits are folded */
static uint32_t
check(const NvmPoolHeader *h, uint64_t place, const void *data, size_t len, int bits)
{
	uint32_t	crc = crc32c_more(0xFFFFFFFF, h->uuid, 16);

	crc = crc32c_more(crc, &place, 8);
	crc = ~crc32c_more(crc, data, len);
	return bits >= 32 ? crc : (crc ^ (crc >> 16)) & ((UINT32_C(1) << bits) - 1);
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
 * A copy that the crash tore stays torn, and differs by what tore it alone.
 */
static void
detach(void)
{
	for (int i = 0; i < 2; i++)
	{
		NvmPoolHeader h;
		uint32_t	crc;
		int			valid;

		get(&h, sizeof(h), NVM_HEADER_OFFSET(i));
		crc = h.crc;
		h.crc = 0;
		valid = h.magic == NVM_POOL_MAGIC && crc32c(&h, sizeof(h)) == crc;
		h.device = h.inode = h.birth = h.data_inode = h.data_birth = 0;
		h.crc = valid ? crc32c(&h, sizeof(h)) : crc;
		put(&h, sizeof(h), NVM_HEADER_OFFSET(i));
	}
}

/*
 * In both records that are valid; nothing is announced after a clean stop.
 */
static void
set_incarnation(uint32_t incarnation)
{
	for (int i = 0; i < 2; i++)
	{
		NvmIncarnationRecord r;
		uint32_t	crc;

		get(&r, sizeof(r), (uint64_t) i * NVM_INCARNATION_SIZE);
		crc = r.crc;
		r.crc = 0;
		if (r.magic != NVM_INCARNATION_MAGIC || crc32c(&r, sizeof(r)) != crc)
			continue;
		r.incarnation = incarnation;
		r.crc = crc32c(&r, sizeof(r));
		put(&r, sizeof(r), (uint64_t) i * NVM_INCARNATION_SIZE);
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
	if (NVM_EXT_KIND(word) == NVM_EXT_LARGE || NVM_EXT_KIND(word) == NVM_EXT_LOCKS ||
		NVM_EXT_KIND(word) == NVM_EXT_REDO)
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

/*
 * See above.  Extents are laid one behind the other in new chunks.
 */
static void
grow(uint32_t dir, uint64_t nblocks)
{
	NvmPoolHeader h;
	NvmBlock	block = {0};
	uint64_t	freed = NVM_REF_MAKE(0, 0, 3);
	uint64_t	covered = 0;
	uint64_t	unit = 0;
	uint32_t	index = 0;
	uint32_t	id[3];

	get(&h, sizeof(h), NVM_HEADER_OFFSET(0));
	/* what it has */
	for (uint64_t c = 0; c < h.nchunks; c++)
	{
		static uint64_t map[NVM_CHUNK_SIZE / NVM_UNIT_SIZE];

		get(map, sizeof(map), c * NVM_CHUNK_SIZE);
		for (uint32_t u = c == 0 ? NVM_CHUNK0_FIRST_UNIT : NVM_MAP_UNITS; u < NVM_UNITS_PER_CHUNK;)
		{
			if (NVM_EXT_KIND(map[u]) == NVM_EXT_TABLE && NVM_EXT_OWNER(map[u]) == dir)
			{
				covered += extent_units(map[u]);
				index++;
			}
			u += map[u] == 0 ? 1 : extent_units(map[u]);
		}
	}

	for (uint64_t end = h.nchunks * NVM_UNITS_PER_CHUNK, next = end; covered < nblocks; index++)
	{
		uint32_t	n = table_extent_units(index);
		uint64_t	word = ((uint64_t) NVM_EXT_TABLE << 12) | ((uint64_t) dir << 15) |
		((uint64_t) index << 35);

		if (next + n > end)
		{
			next = end + NVM_MAP_UNITS;
			end += NVM_UNITS_PER_CHUNK;
			h.nchunks++;
		}
		unit = next;
		next += n;
		word |= check(&h, unit, &word, sizeof(word), 12);
		put(&word, sizeof(word), (end - NVM_UNITS_PER_CHUNK) * NVM_UNIT_SIZE +
			unit % NVM_UNITS_PER_CHUNK * sizeof(word));
		covered += n;
		/* the last block is in this extent */
		if (covered >= nblocks)
			unit += nblocks - 1 - (covered - n);
	}
	errno = 0;
	if (unit == 0 || ftruncate(pool_fd, (off_t) (h.nchunks * NVM_CHUNK_SIZE)) != 0)
		fail("grow");

	block.magic = id[0] = NVM_BLOCK_MAGIC;
	block.dir = id[1] = dir;
	block.blkno = id[2] = (uint32_t) (nblocks - 1);
	block.alloc_inc = h.incarnation;
	block.used[0] = (1 << NVM_FIRST_CELL) - 1;
	block.check = check(&h, unit * NVM_UNIT_SIZE, id, sizeof(id), 32);
	put(&block, NVM_BLOCK_HEADER_SIZE, unit * NVM_UNIT_SIZE);

	/*
	 * the length that the row had: an open takes blocks off that never had
	 * one
	 */
	put(&freed, sizeof(freed), unit * NVM_UNIT_SIZE + NVM_FIRST_CELL * NVM_CELL_SIZE +
		offsetof(NvmVersion, next));
	set_field(0, "nchunks", h.nchunks);
	set_field(1, "nchunks", h.nchunks);
}

/*
 * Offset of the redo lanes, 0 if there are none; *free becomes the offset of
 * units that could take them.
 */
static uint64_t
find_lanes(uint64_t *free)
{
	NvmPoolHeader h;

	*free = 0;
	get(&h, sizeof(h), NVM_HEADER_OFFSET(0));
	for (uint64_t c = 0; c < h.nchunks; c++)
	{
		static uint64_t map[NVM_CHUNK_SIZE / NVM_UNIT_SIZE];
		uint32_t	run = 0;

		get(map, sizeof(map), c * NVM_CHUNK_SIZE);
		for (uint32_t u = c == 0 ? NVM_CHUNK0_FIRST_UNIT : NVM_MAP_UNITS; u < NVM_UNITS_PER_CHUNK;)
		{
			if (map[u] != 0)
			{
				if (NVM_EXT_KIND(map[u]) == NVM_EXT_REDO)
					return c * NVM_CHUNK_SIZE + (uint64_t) u * NVM_UNIT_SIZE;
				run = 0;
				u += extent_units(map[u]);
				continue;
			}
			u++;
			if (++run == NVM_REDO_EXTENT_UNITS)
				*free = c * NVM_CHUNK_SIZE + (uint64_t) (u - run) * NVM_UNIT_SIZE;
		}
	}
	return 0;
}

static void
show_lanes(void)
{
	uint64_t	free;
	uint64_t	start = find_lanes(&free);

	for (int i = 0; start != 0 && i < NVM_REDO_LANES; i++)
	{
		NvmRedoLane lane;
		uint64_t	offset = start + (uint64_t) i * NVM_REDO_LANE_UNITS * NVM_UNIT_SIZE;

		get(&lane, sizeof(lane), offset);
		printf("%" PRIu64 " %016" PRIx64 " %u\n", offset, lane.word, lane.npieces);
	}
}

/*
 * See above; args are places, bytes and lengths.
 */
static void
write_lane(uint64_t n, char **args, int nargs)
{
	static uint64_t buf[NVM_REDO_LANE_UNITS * NVM_UNIT_SIZE / 8];
	NvmRedoLane *lane = (NvmRedoLane *) buf;
	NvmPoolHeader h;
	uint64_t	free;
	uint64_t	start = find_lanes(&free);
	uint64_t	used = sizeof(NvmRedoLane);
	uint64_t	unit;

	get(&h, sizeof(h), NVM_HEADER_OFFSET(0));
	errno = 0;
	if (n >= NVM_REDO_LANES || nargs == 0 || nargs % 3 != 0 || nargs / 3 > NVM_REDO_PIECES)
		fail("lane");
	if (start == 0)
	{
		uint64_t	word = ((uint64_t) NVM_EXT_REDO << 12) | ((uint64_t) NVM_REDO_EXTENT_UNITS << 35);

		if (free == 0)
			fail("no room for lanes");
		start = free;
		unit = start / NVM_UNIT_SIZE;
		word |= check(&h, unit, &word, sizeof(word), 12);
		put(&word, sizeof(word), unit / NVM_UNITS_PER_CHUNK * NVM_CHUNK_SIZE +
			unit % NVM_UNITS_PER_CHUNK * sizeof(word));
		for (int i = 0; i < NVM_REDO_LANES; i++)
			put(buf, sizeof(buf), start + i * sizeof(buf));
	}
	start += n * sizeof(buf);
	lane->npieces = (uint32_t) nargs / 3;
	for (int i = 0; i < nargs / 3; i++)
	{
		lane->piece[i].place = number(args[3 * i]);
		lane->piece[i].length = number(args[3 * i + 2]);
		if (used + lane->piece[i].length > sizeof(buf))
			fail("too much for a lane");
		memset((char *) buf + used, (int) number(args[3 * i + 1]), lane->piece[i].length);
		used += (lane->piece[i].length + 7) / 8 * 8;
	}
	lane->word = NVM_REDO_WORD(check(&h, (UINT64_C(1) << 61) | start / NVM_UNIT_SIZE,
									 &lane->npieces, used - offsetof(NvmRedoLane, npieces), 32));
	put(buf, sizeof(buf), start);
	printf("%" PRIu64 "\n", start);
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
		fprintf(stderr, "usage: nvm_patch POOL header|set|detach|flip|extents|blocks|slots|incarnation|grow|lane|lanes ...\n");
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
	else if (strcmp(command, "lanes") == 0)
		show_lanes();
	else if (strcmp(command, "lane") == 0 && argc > 4)
		write_lane(number(argv[3]), argv + 4, argc - 4);
	else if (strcmp(command, "incarnation") == 0 && argc == 4)
		set_incarnation((uint32_t) number(argv[3]));
	else if (strcmp(command, "grow") == 0 && argc == 5)
		grow((uint32_t) number(argv[3]), number(argv[4]));
	else
	{
		errno = 0;
		fail(command);
	}
	return close(pool_fd) == 0 ? 0 : 1;
}
