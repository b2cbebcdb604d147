/*-------------------------------------------------------------------------
 *
 * poolcheck_file.c
 *	  The pool file: opened for reading only, locked against servers, its
 *	  header read before anything is mapped.
 *
 * A server holds an exclusive flock() on the file as long as any of its
 * processes lives.  We hold a shared one, so a server that is started meanwhile
 * waits for a moment, and then refuses the pool.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "poolcheck.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Readable beyond the end of the pool, zeroes: what a damaged row claims may
 * end behind the last unit's end.
 */
#define MARGIN				(64 * 1024)

static const PoolFile *mapped = NULL;

/*
 * The name that is there; `name` if both are, or none.
 */
static const char *
name_found(const char *dir, const char *name)
{
	const char *names[] = {NVM_POOL_FILE, NVM_POOL_HIDDEN_FILE};
	char		path[MAXPGPATH];
	struct stat st;
	bool		there[2];

	for (int i = 0; i < 2; i++)
	{
		snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
		there[i] = lstat(path, &st) == 0;
	}
	if (there[0] && there[1])
	{
		pg_log_error("directory \"%s\" has two NVM pools: \"%s\" and \"%s\"", dir, names[0], names[1]);
		pg_log_error_hint("Move away the one that is not this server's.");
		exit(POOLCHECK_FAILED);
	}
	return there[0] ? names[0] : there[1] ? names[1] : name;
}

void
pool_file_open(PoolFile *file, const char *dir, const char *name)
{
	struct stat st;

	memset(file, 0, sizeof(*file));
	snprintf(file->path, sizeof(file->path), "%s/%s", dir, name_found(dir, name));
	if (lstat(file->path, &st) != 0)
	{
		int			save_errno = errno;

		pg_log_error("could not access NVM pool \"%s\": %m", file->path);
		if (save_errno == ENOENT)
			pg_log_error_hint("Name the directory of the pool with --pool.");
		exit(POOLCHECK_FAILED);
	}
	if (!S_ISREG(st.st_mode))
		pg_fatal("NVM pool \"%s\" is not a regular file", file->path);
	file->fd = open(file->path, O_RDONLY | O_CLOEXEC);
	if (file->fd < 0)
		pg_fatal("could not open NVM pool \"%s\": %m", file->path);
	if (!nvm_lock_file(file->fd, LOCK_SH))
	{
		if (errno != EWOULDBLOCK)
			pg_fatal("could not lock NVM pool \"%s\": %m", file->path);
		pg_log_error("NVM pool \"%s\" is in use by a server", file->path);
		pg_log_error_hint("Stop that server, or call nvm.check_pool() in it.");
		exit(POOLCHECK_FAILED);
	}
	if (fstat(file->fd, &st) != 0)
		pg_fatal("could not access NVM pool \"%s\": %m", file->path);
	file->size = (uint64) st.st_size;
}

/*
 * May a loss of power in the middle of a clean close have left this copy?  The other one,
 * which is whole, is from that close.  So this one has words of the same, and of what the
 * header was before, which differed in these fields alone.
 */
static bool
is_left_by_close(const NvmPoolHeader *copy, const NvmPoolHeader *whole)
{
	NvmPoolHeader h = *copy;

	if (!whole->clean || copy->clean > 1 || copy->wal_position > whole->wal_position ||
		(copy->sequence != whole->sequence + 1 && copy->sequence != whole->sequence - 1))
		return false;
	h.sequence = whole->sequence;
	h.clean = whole->clean;
	h.wal_position = whole->wal_position;
	h.xid_promise = whole->xid_promise;
	h.crc = whole->crc;
	return memcmp(&h, whole, sizeof(h)) == 0;
}

/*
 * Read both copies and take the better one.
 */
bool
pool_file_header(PoolFile *file, NvmPoolHeader *header)
{
	int			best;

	for (int i = 0; i < 2; i++)
	{
		ssize_t		n = pread(file->fd, &file->copy[i], sizeof(file->copy[i]),
							  NVM_HEADER_OFFSET(i));

		if (n < 0)
			pg_fatal("could not read the header of NVM pool \"%s\": %m", file->path);
		file->problem[i] = n < (ssize_t) sizeof(file->copy[i]) ? "file too short" :
			nvm_header_problem(&file->copy[i]);
	}
	best = nvm_header_choose(file->copy, file->problem);
	for (int i = 0; i < 2; i++)
	{
		char		place[32];

		snprintf(place, sizeof(place), "header, copy %d", i);
		/* a crash may have come while one of them was being written */
		if (file->problem[i] != NULL && best >= 0 &&
			(!file->copy[best].clean || is_left_by_close(&file->copy[i], &file->copy[best])))
			will_be_repaired(place, "%s", file->problem[i]);
		else if (file->problem[i] != NULL)
			found(place, "%s", file->problem[i]);
		else if (i != best && file->copy[best].clean &&
				 (file->copy[i].nchunks != file->copy[best].nchunks ||
				  file->copy[i].incarnation != file->copy[best].incarnation))
			found(place, "is not what the server wrote last");
	}
	if (best < 0)
		return false;

	*header = file->copy[best];
	switch (nvm_header_use(header))
	{
		case NVM_HEADER_VERSION:
			pg_log_error("NVM pool \"%s\" has format version %u, this nvm_poolcheck knows versions up to %d",
						 file->path, header->version, NVM_POOL_VERSION);
			exit(POOLCHECK_FAILED);
		case NVM_HEADER_FEATURES:
			pg_log_error("NVM pool \"%s\" uses features that this nvm_poolcheck does not know (mask %llx)",
						 file->path, (unsigned long long) header->features_incompat);
			exit(POOLCHECK_FAILED);
		case NVM_HEADER_LAYOUT:
			found("header", "another layout: unit size %u, units in a chunk %u, commit slots %u, chunks %llu",
				  header->unit_size, header->chunk_units, header->max_slots,
				  (unsigned long long) header->nchunks);
			return false;
		case NVM_HEADER_USABLE:
			break;
	}
	if (file->size < header->nchunks * NVM_CHUNK_SIZE)
	{
		found("pool file", "is truncated: %llu bytes instead of %llu",
			  (unsigned long long) file->size,
			  (unsigned long long) (header->nchunks * NVM_CHUNK_SIZE));
		return false;
	}
	return true;
}

/*
 * The medium, or somebody who cut off the file, has taken a page from us.
 */
static void
bus_error(int signo, siginfo_t * info, void *context)
{
	char text[	MAXPGPATH + 100];
	int			n;

	n = snprintf(text, sizeof(text), "nvm_poolcheck: error: could not read NVM pool \"%s\" at offset %llu\n",
				 mapped->path,
				 (unsigned long long) ((char *) info->si_addr - mapped->base));
	if (write(STDERR_FILENO, text, n) != n)
		_exit(POOLCHECK_FAILED);
	_exit(POOLCHECK_FAILED);
}

void
pool_file_map(PoolFile *file, uint64 bytes)
{
	struct sigaction action;

	file->base = mmap(NULL, bytes + MARGIN, PROT_READ,
					  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (file->base == MAP_FAILED ||
		mmap(file->base, bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
			 file->fd, 0) == MAP_FAILED)
		pg_fatal("could not map NVM pool \"%s\": %m", file->path);

	mapped = file;
	memset(&action, 0, sizeof(action));
	action.sa_sigaction = bus_error;
	action.sa_flags = SA_SIGINFO;
	sigemptyset(&action.sa_mask);
	if (sigaction(SIGBUS, &action, NULL) != 0)
		pg_fatal("could not set a signal handler: %m");
}

/*
 * Let pages of our private copy be changed.  The file is not: it is neither
 * open for writing nor mapped so that it could be.
 */
void
pool_make_writable(const Pool *pool, uint64 place, uint64 length, bool on)
{
	uint64		page = (uint64) sysconf(_SC_PAGESIZE);
	uint64		first = place - place % page;

	if (mprotect(pool->image.base + first, place + length - first,
				 on ? PROT_READ | PROT_WRITE : PROT_READ) != 0)
		pg_fatal("could not change the protection of memory: %m");
}
