/*-------------------------------------------------------------------------
 *
 * pool_contents.c
 *	  Whose contents the backing of the volatile region has.
 *
 * The header of the backing says with which pool the contents go, as which open of
 * that pool has left them.  README.md, "The backing", has the rules and what a
 * death between two words leaves.  In the postmaster, but for growth.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pmem/nvm_pmem.h"
#include "pool/pool_impl.h"
#include "port/pg_crc32c.h"

#define BOOT_ID_FILE			"/proc/sys/kernel/random/boot_id"

static uint32
header_crc(const NvmMemoryHeader *m)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, m, offsetof(NvmMemoryHeader, crc));
	FIN_CRC32C(crc);
	return crc;
}

/*
 * The id of this boot of the kernel, 16 bytes.  False if there is none.
 */
static bool
read_boot_id(uint8 *boot)
{
	char text[	64];
	int			fd = open(BOOT_ID_FILE, O_RDONLY | O_CLOEXEC);
	ssize_t		n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
	int			digits = 0;

	if (fd >= 0)
		close(fd);
	memset(boot, 0, 16);
	for (ssize_t i = 0; i < n && digits < 32; i++)
	{
		unsigned	digit;

		if (text[i] == '-')
			continue;
		if (!isxdigit((unsigned char) text[i]))
			break;
		digit = text[i] <= '9' ? text[i] - '0' : (text[i] | 0x20) -'a' + 10;

		boot[digits / 2] |= digit << (digits % 2 == 0 ? 4 : 0);
		digits++;
	}
	return digits == 32;
}

/*
 * Is there memory for all that the header says?  An access to a hole of the file
 * is a SIGBUS when there is none left.
 */
static bool
has_memory(const NvmMemoryHeader *m)
{
	struct stat st;
	uint64		chunks = m->nchunks * NVM_CHUNK_SIZE;

	return fstat(nvm_backing_fd, &st) == 0 &&
		(uint64) st.st_size >= nvm_backing_lead() + chunks &&
		(uint64) st.st_blocks * 512 >= nvm_backing_fixed() + chunks;
}

/*
 * Why the contents of a file cannot be those that its header speaks of, or NULL.
 * A clause that follows a colon.
 */
static const char *
file_problem(const NvmMemoryHeader *m)
{
	uint8		boot[16];
	uint64		device;
	uint64		inode;
	uint64		birth;
	uint64		size;

	if (m->magic == 0)
		return "it was not made to its end";
	if (m->magic != NVM_MEMORY_MAGIC)
		return "it is no file of this kind, or damaged";
	if (m->version != NVM_MEMORY_VERSION || m->pool_version != NVM_POOL_VERSION)
		return "another version of pg_nvm has made it";
	if (m->crc != header_crc(m))
		return "its header is damaged";
	if (m->companion_size != nvm_backing_companion_size() ||
		m->companion_layout != nvm_backing_companion_layout())
		return "a server with other settings, or another version of pg_nvm, has made it";
	if (!read_boot_id(boot))
		return "whether it is older than the last reboot is not known, since \"" BOOT_ID_FILE "\" cannot be read";
	if (memcmp(boot, m->boot, sizeof(boot)) != 0)
		return "it is older than the last reboot";
	nvm_file_identity(nvm_backing_fd, &device, &inode, &birth, &size);
	if (m->device != device || m->inode != inode || m->birth != birth)
		return "it is a copy";
	if (m->nchunks > NVM_REGION_BYTES / NVM_CHUNK_SIZE || !has_memory(m))
		return "parts of it are missing";
	return NULL;
}

/*
 * Why the contents do not go with the pool that has this header, or NULL.  The
 * pool's slots and its directory decide the rows there.
 */
static const char *
pool_problem(const NvmMemoryHeader *m, const NvmPoolHeader *h)
{
	if (m->bound != NVM_MEMORY_BOUND)
		return "its contents belong to no pool";
	if (memcmp(m->uuid, h->uuid, sizeof(m->uuid)) != 0)
		return "it is of another NVM pool";
	if (m->nonce != h->nonce && (m->next_nonce == 0 || m->next_nonce != h->nonce))
		return "the NVM pool was used without it since";
	return NULL;
}

/*
 * See pool_impl.h.
 */
const char *
nvm_contents_problem(const NvmPoolHeader *h)
{
	const NvmMemoryHeader *m = nvm_backing_header();
	const char *problem = nvm_backing_is_file() ? file_problem(m) : NULL;

	return problem != NULL ? problem : pool_problem(m, h);
}

/*
 * Bytes of chunks that a file says it has, before anybody asks whose they are.
 */
uint64
nvm_contents_size(void)
{
	const NvmMemoryHeader *m = nvm_backing_header();

	return nvm_backing_is_file() && file_problem(m) == NULL ? m->nchunks * NVM_CHUNK_SIZE : 0;
}

/*
 * The backing has been emptied: say what it is, and for which pool.  The contents
 * belong to nobody yet.
 */
void
nvm_contents_begin(const NvmPoolHeader *h)
{
	NvmMemoryHeader *m = nvm_backing_header();
	uint64		size;

	m->version = NVM_MEMORY_VERSION;
	m->pool_version = NVM_POOL_VERSION;
	memcpy(m->uuid, h->uuid, sizeof(m->uuid));
	if (nvm_backing_is_file())
	{
		(void) read_boot_id(m->boot);
		nvm_file_identity(nvm_backing_fd, &m->device, &m->inode, &m->birth, &size);
	}
	m->companion_size = nvm_backing_companion_size();
	m->companion_layout = nvm_backing_companion_layout();
	m->magic = NVM_MEMORY_MAGIC;
	m->crc = header_crc(m);
	NVM_FAILPOINT("memory-ready");
}

/*
 * The pool's header, which has nonce `current`, is going to have this one.  A start
 * that finds either keeps the contents, if they belong to somebody.
 */
void
nvm_contents_announce(uint64 current, uint64 nonce)
{
	NvmMemoryHeader *m = nvm_backing_header();

	if (m == NULL)
		return;
	/* the open before this one may have died before it had bound them */
	if (m->next_nonce != 0 && m->next_nonce == current)
		m->nonce = current;
	pg_write_barrier();
	m->next_nonce = nonce;
	pg_write_barrier();
	NVM_FAILPOINT("memory-announced");
}

/*
 * The pool is open, with this header: from now on the contents go with it.
 */
void
nvm_contents_bind(const NvmPoolHeader *h)
{
	NvmMemoryHeader *m = nvm_backing_header();

	if (m == NULL)
		return;
	m->nonce = h->nonce;
	pg_write_barrier();
	m->bound = NVM_MEMORY_BOUND;
	pg_write_barrier();
	m->next_nonce = 0;
	NVM_FAILPOINT("memory-bound");
}

/*
 * The contents belong to nobody any more.
 */
void
nvm_contents_unbind(void)
{
	NvmMemoryHeader *m = nvm_backing_header();

	if (m != NULL)
		m->bound = 0;
}
