/*-------------------------------------------------------------------------
 *
 * pool_backing.c
 *	  What the volatile region lies in: a memfd, or a file in nvm.memory_directory.
 *
 * It is found or made here, locked, mapped but for the chunks, and given memory.
 * Whose contents it has: pool_contents.c.  The postmaster opens it, and every
 * process inherits it.  README.md, "The backing".
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "common/file_perm.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/pool_impl.h"
#include "utils/guc.h"
#include "verify/nvm_verify.h"

/* from linux/magic.h and linux/memfd.h, which not every libc passes on */
#ifndef TMPFS_MAGIC
#define TMPFS_MAGIC				0x01021994
#endif
#ifndef HUGETLBFS_MAGIC
#define HUGETLBFS_MAGIC			0x958458f6
#endif
#ifndef MFD_HUGETLB
#define MFD_HUGETLB				0x0004U
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB			(21U << 26)
#endif

#define HUGE_PAGE				NVM_MEMORY_ALIGNMENT
#define HUGE_PAGES_DIRECTORY	"/sys/kernel/mm/hugepages/hugepages-2048kB"
/* huge pages wanted beside the region's: header, companion, buffers of many slots */
#define HUGE_PAGES_BESIDE		64

#define DIRECTORY_HINT \
	"Correct nvm.memory_directory, or set it to '' and have the tables rebuilt from the log at each start."

int			nvm_backing_fd = -1;

static char *lead_base = NULL;	/* the mapping of header and companion */
static char *file_path = NULL;	/* NULL: it is a memfd */
static bool may_lack = false;	/* what has no memory yet may find none */
static bool is_new = false;		/* it had nothing when it was opened, or made */
static uint64 huge_size = 0;	/* it is a memfd of huge pages, for so many
								 * bytes of chunks */

/* the companion: as requested */
static Size companion_size = 0;
static Size companion_fixed = 0;
static uint32 companion_layout = 0;

/* ---- what it is ---- */

bool
nvm_backing_is_file(void)
{
	return file_path != NULL;
}

bool
nvm_backing_is_new(void)
{
	return is_new;
}

const char *
nvm_backing_path(void)
{
	return file_path;
}

NvmMemoryHeader *
nvm_backing_header(void)
{
	return (NvmMemoryHeader *) lead_base;
}

Size
nvm_backing_companion_size(void)
{
	return companion_size;
}

uint32
nvm_backing_companion_layout(void)
{
	return companion_layout;
}

/*
 * Where the chunks begin, and how much before that has memory from the start.
 */
uint64
nvm_backing_lead(void)
{
	return TYPEALIGN64(NVM_MEMORY_ALIGNMENT, NVM_MEMORY_PAGE + companion_size);
}

uint64
nvm_backing_fixed(void)
{
	return may_lack ? NVM_MEMORY_PAGE + companion_fixed : 0;
}

void
nvm_backing_request_companion(Size size, Size fixed, uint32 layout)
{
	companion_size = size;
	companion_fixed = fixed;
	companion_layout = layout;
}

/* ---- memory ---- */

/*
 * Have memory for this part.  Contents stay.  False with errno set; then nothing
 * is taken, but from hugetlbfs, where the next attempt finds it.
 */
bool
nvm_backing_reserve(uint64 offset, uint64 size)
{
	int			rc;

	do
	{
		rc = fallocate(nvm_backing_fd, 0, (off_t) offset, (off_t) size);
	} while (rc != 0 && errno == EINTR);
	return rc == 0;
}

/*
 * See nvm_region.h.
 */
void
nvm_region_reserve_companion(const void *at, Size size)
{
	uint64		first = (uint64) ((const char *) at - lead_base);
	uint64		end = first + size;

	if (!may_lack)
		return;
	first = TYPEALIGN_DOWN(NVM_MEMORY_PAGE, first);
	NVM_FAILPOINT("memory-reserve");
	if (!nvm_backing_reserve(first, TYPEALIGN64(NVM_MEMORY_PAGE, end) - first))
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not get memory for the log of tables in memory: %m"),
				 errhint("Free memory where the volatile region lies, or make that file system larger.")));
}

/*
 * A memfd of huge pages: set aside those for part of it, so that others do not take
 * them.  The kernel does so for a mapping, and remembers it for the file until that is
 * cut.  False with errno set.
 */
static bool
set_aside_part(uint64 offset, uint64 size)
{
	void	   *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, nvm_backing_fd,
						  (off_t) offset);

	if (at == MAP_FAILED)
		return false;
	(void) munmap(at, size);
	return true;
}

static bool
set_aside(uint64 chunks)
{
	return set_aside_part(0, Min(HUGE_PAGES_BESIDE * HUGE_PAGE, nvm_backing_lead())) &&
		set_aside_part(nvm_backing_lead(), chunks);
}

/*
 * Throw the contents away.  False with errno set.
 */
static bool
cut(void)
{
	if (ftruncate(nvm_backing_fd, 0) != 0)
		return false;
	NVM_FAILPOINT("memory-emptied");
	return ftruncate(nvm_backing_fd, (off_t) nvm_backing_lead()) == 0 &&
		(huge_size == 0 || set_aside(huge_size));
}

/*
 * Have no contents, and memory for what must not lack it.  False with errno set.
 */
bool
nvm_backing_empty(void)
{
	bool		was_made = is_new && file_path == NULL;

	is_new = false;
	return (was_made || cut()) &&
		(!may_lack || nvm_backing_reserve(0, nvm_backing_fixed()));
}

/* ---- huge pages ---- */

static uint64
huge_pages_number(const char *name)
{
	char		path[MAXPGPATH];
	uint64		number;

	snprintf(path, sizeof(path), HUGE_PAGES_DIRECTORY "/%s", name);
	number = nvm_number_in(path);
	return number == PG_UINT64_MAX ? 0 : number;
}

/*
 * Does the kernel take huge pages for this file by itself?  It says so as the size of
 * a block.
 */
static bool
is_transparent(void)
{
	struct stat st;

	return nvm_huge_pages != HUGE_PAGES_OFF && fstat(nvm_backing_fd, &st) == 0 &&
		(uint64) st.st_blksize >= HUGE_PAGE;
}

static void
show_huge_pages(const char *status)
{
	SetConfigOption("nvm.huge_pages_status", status, PGC_INTERNAL, PGC_S_DYNAMIC_DEFAULT);
}

/*
 * A memfd of huge pages, if there are enough for all that may come: these are ours from
 * now on.
 */
static bool
make_huge_memfd(uint64 max_size)
{
	nvm_backing_fd = memfd_create("pg_nvm volatile", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);
	if (nvm_backing_fd < 0)
		return false;
	if (set_aside(max_size))
	{
		huge_size = max_size;
		may_lack = true;
		return true;
	}
	close(nvm_backing_fd);
	nvm_backing_fd = -1;
	return false;
}

/*
 * A memfd of huge pages, or of ordinary ones.  False with errno set, or after refusing
 * the pool.
 */
static bool
make_memfd(uint64 max_size, bool *refused)
{
	uint64		need = max_size / HUGE_PAGE + HUGE_PAGES_BESIDE;
	uint64		unused = 0;
	const char *status = "off";

	if (nvm_huge_pages != HUGE_PAGES_OFF && make_huge_memfd(max_size))
		status = "on";
	if (nvm_backing_fd < 0 && nvm_huge_pages == HUGE_PAGES_ON)
	{
		unused = huge_pages_number("free_hugepages");
		unused -= Min(unused, huge_pages_number("resv_hugepages"));
		*refused = true;
		return nvm_refuse(ERRCODE_OUT_OF_MEMORY,
						  "Reserve that many (vm.nr_hugepages), lower nvm.memory_limit, or set nvm.huge_pages = try.",
						  "nvm.huge_pages = on needs %llu huge pages of 2 MB for nvm.memory_limit and a rebuild, and %llu are free",
						  (unsigned long long) need, (unsigned long long) unused);
	}
	if (nvm_backing_fd < 0)
		nvm_backing_fd = memfd_create("pg_nvm volatile", MFD_CLOEXEC);
	if (nvm_backing_fd < 0)
		return false;
	if (!may_lack && ftruncate(nvm_backing_fd, (off_t) nvm_backing_lead()) == 0 && is_transparent())
		status = "transparent";
	is_new = true;
	show_huge_pages(status);
	return true;
}

/* ---- the file ---- */

/*
 * Is this a file system that is empty after a reboot, and with pages of a size that
 * goes with ours?  False after refusing the pool.
 */
static bool
check_file_system(const char *dir)
{
	struct statfs fs;

	if (statfs(dir, &fs) != 0)
		return nvm_refuse(ERRCODE_IO_ERROR, DIRECTORY_HINT,
						  "could not access nvm.memory_directory \"%s\": %m", dir);
	if ((uint32) fs.f_type != TMPFS_MAGIC && (uint32) fs.f_type != HUGETLBFS_MAGIC)
		return nvm_refuse(ERRCODE_INVALID_PARAMETER_VALUE,
						  "A loss of power would leave a torn copy of the tables there. Mount a tmpfs or hugetlbfs, or set nvm.memory_directory to a directory on one, such as one below /dev/shm.",
						  "nvm.memory_directory \"%s\" is not on tmpfs or hugetlbfs", dir);
	if ((uint32) fs.f_type == HUGETLBFS_MAGIC && NVM_MEMORY_ALIGNMENT % (uint64) fs.f_bsize != 0)
		return nvm_refuse(ERRCODE_INVALID_PARAMETER_VALUE,
						  "Mount it with pagesize=2M.",
						  "nvm.memory_directory \"%s\" has pages of %llu kB, and 2048 kB is the most", dir,
						  (unsigned long long) fs.f_bsize / 1024);
	return true;
}

/*
 * May nobody else, but root, put a file there in place of ours?  False after refusing the
 * pool.
 */
static bool
check_directory(const char *dir)
{
	struct stat st;

	if (stat(dir, &st) != 0)
		return nvm_refuse(ERRCODE_IO_ERROR, DIRECTORY_HINT,
						  "could not access nvm.memory_directory \"%s\": %m", dir);
	if ((st.st_uid != geteuid() && st.st_uid != 0) ||
		((st.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (st.st_mode & S_ISVTX) == 0))
		return nvm_refuse(ERRCODE_INSUFFICIENT_PRIVILEGE,
						  "Remove the directory, or correct its owner and permissions (0700).",
						  "nvm.memory_directory \"%s\" has owner %u and permissions %04o: others could replace what is in it",
						  dir, (unsigned) st.st_uid, (unsigned) (st.st_mode & 07777));
	return true;
}

/*
 * See to it that the directory is there: a reboot takes it, with what was in the file
 * system.  False after refusing the pool.
 */
static bool
prepare_memory_directory(const char *dir)
{
	char		parent[MAXPGPATH];
	struct stat st;

	if (stat(dir, &st) != 0 && errno == ENOENT)
	{
		strlcpy(parent, dir, sizeof(parent));
		get_parent_directory(parent);
		if (!check_file_system(parent[0] == '\0' ? "." : parent))
			return false;
		if (mkdir(dir, S_IRWXU) != 0)
			return nvm_refuse(ERRCODE_IO_ERROR, DIRECTORY_HINT,
							  "could not create nvm.memory_directory \"%s\": %m", dir);
	}
	return check_file_system(dir) && check_directory(dir);
}

/*
 * Take the lock on the file.  False after refusing the pool.
 */
static bool
lock_backing(void)
{
	if (nvm_lock_file(nvm_backing_fd, LOCK_EX))
		return true;
	if (errno != EWOULDBLOCK)
		return nvm_refuse(ERRCODE_IO_ERROR, DIRECTORY_HINT,
						  "could not lock file \"%s\": %m", file_path);
	return nvm_refuse(ERRCODE_OBJECT_IN_USE,
					  "Stop that server, or set nvm.memory_directory to another directory for each server.",
					  "file \"%s\" is in use by another server", file_path);
}

/*
 * Is this the file that we take it for?  Somebody else may have made it, where all may
 * write.  False after refusing the pool.
 */
static bool
check_file(void)
{
	struct stat st;

	if (fstat(nvm_backing_fd, &st) != 0 || !S_ISREG(st.st_mode))
		return nvm_refuse(ERRCODE_WRONG_OBJECT_TYPE, DIRECTORY_HINT,
						  "\"%s\" is not a regular file", file_path);
	if (st.st_nlink != 1)
		return nvm_refuse(ERRCODE_WRONG_OBJECT_TYPE, "Remove the other names of the file.",
						  "file \"%s\" has more than one name", file_path);
	if (st.st_uid != geteuid() || (st.st_mode & 07777) != 0600)
		return nvm_refuse(ERRCODE_INSUFFICIENT_PRIVILEGE,
						  "Remove the file, or correct nvm.memory_directory.",
						  "file \"%s\" has owner %u and permissions %04o instead of %u and 0600",
						  file_path, (unsigned) st.st_uid, (unsigned) (st.st_mode & 07777),
						  (unsigned) geteuid());
	is_new = st.st_size == 0;
	return lock_backing();
}

/*
 * What may go wrong later is worth a line now.
 */
static void
look_at_space(const char *dir, uint64 max_size)
{
	struct statfs fs;
	uint64		limit = nvm_regions[NVM_REGION_VOLATILE].limit_chunks * NVM_CHUNK_SIZE;
	uint64		space;

	if (statfs(dir, &fs) != 0)
		return;
	space = (uint64) fs.f_blocks * (uint64) fs.f_bsize;
	if (fs.f_blocks != 0 && space < max_size)
		ereport(WARNING,
				(errmsg("nvm.memory_limit is %llu MB, and a rebuild may take %llu MB more, but the file system of nvm.memory_directory \"%s\" has %llu MB",
						(unsigned long long) (limit / (1024 * 1024)),
						(unsigned long long) ((max_size - limit) / (1024 * 1024)), dir,
						(unsigned long long) (space / (1024 * 1024))),
				 errdetail("Tables in memory cannot grow up to the limit, or may not come back after a reboot."),
				 errhint("Make the file system larger (mount -o remount,size=...), or lower nvm.memory_limit.")));
	if ((uint32) fs.f_type == HUGETLBFS_MAGIC)
		show_huge_pages("on");
	else
		show_huge_pages(is_transparent() ? "transparent" : "off");
}

/*
 * Open the file, or make it, and lock it.  False after refusing the pool.
 */
static bool
open_file(uint64 max_size)
{
	char		dir[MAXPGPATH];

	strlcpy(dir, nvm_memory_directory, sizeof(dir));
	canonicalize_path(dir);
	if (!prepare_memory_directory(dir))
		return false;
	file_path = malloc(strlen(dir) + sizeof("/" NVM_MEMORY_FILE));
	if (file_path == NULL)
		return nvm_refuse(ERRCODE_OUT_OF_MEMORY, "Free memory.", "out of memory");
	sprintf(file_path, "%s/" NVM_MEMORY_FILE, dir);
	nvm_backing_fd = open(file_path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (nvm_backing_fd < 0)
		return nvm_refuse(ERRCODE_IO_ERROR, DIRECTORY_HINT,
						  "could not open file \"%s\": %m", file_path);
	may_lack = true;
	NVM_FAILPOINT("memory-made");
	if (!check_file())
		return false;
	look_at_space(dir, max_size);
	return true;
}

/* ---- open, close ---- */

/*
 * Map header and companion.  Of a file that is too short, or has a hole there, only the
 * header is looked at before it is emptied: so that has memory.  False with errno set.
 */
static bool
map_lead(void)
{
	struct stat st;
	void	   *at;

	if (fstat(nvm_backing_fd, &st) != 0 ||
		((uint64) st.st_size < nvm_backing_lead() &&
		 ftruncate(nvm_backing_fd, (off_t) nvm_backing_lead()) != 0) ||
		(may_lack && !nvm_backing_reserve(0, NVM_MEMORY_PAGE)))
		return false;
	at = mmap(NULL, nvm_backing_lead(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
			  nvm_backing_fd, 0);
	if (at == MAP_FAILED)
		return false;
	lead_base = at;
#ifdef MADV_DONTDUMP
	(void) madvise(at, nvm_backing_lead(), MADV_DONTDUMP);
#endif
	nvm_region_companion = companion_size > 0 ? lead_base + NVM_MEMORY_PAGE : NULL;
	return true;
}

/*
 * See pool_impl.h.
 */
NvmBackingResult
nvm_backing_open(uint64 max_size)
{
	bool		refused = false;

	if (lead_base != NULL)
		return file_path == NULL || lock_backing() ? NVM_BACKING_OPEN : NVM_BACKING_REFUSED;
	if (nvm_memory_directory[0] != '\0')
	{
		if (open_file(max_size))
		{
			if (map_lead())
				return NVM_BACKING_OPEN;
			(void) nvm_backing_refuse_memory();
		}
		nvm_backing_close();
		return NVM_BACKING_REFUSED;
	}
	if (make_memfd(max_size, &refused) && map_lead())
		return NVM_BACKING_OPEN;
	return refused ? NVM_BACKING_REFUSED : NVM_BACKING_NONE;
}

/*
 * Refuse the pool: there is no memory for a file.  errno says why.  Returns false.
 */
bool
nvm_backing_refuse_memory(void)
{
	return nvm_refuse(ERRCODE_OUT_OF_MEMORY,
					  "Make the file system larger (mount -o remount,size=...), free memory there, or correct nvm.memory_directory.",
					  "could not get %llu MB for file \"%s\": %m",
					  (unsigned long long) (nvm_backing_fixed() / (1024 * 1024) + 1), file_path);
}

/*
 * The pool is not open: another server may have it, with this file.
 */
void
nvm_backing_unlock(void)
{
	if (file_path != NULL && nvm_backing_fd >= 0)
		flock(nvm_backing_fd, LOCK_UN);
}

/*
 * Let go of it, as long as this postmaster lives or until it is opened again.  A file
 * stays as it is.
 */
void
nvm_backing_close(void)
{
	if (lead_base != NULL)
		(void) munmap(lead_base, nvm_backing_lead());
	lead_base = NULL;
	nvm_region_companion = NULL;
	if (nvm_backing_fd >= 0)
		close(nvm_backing_fd);
	nvm_backing_fd = -1;
	free(file_path);
	file_path = NULL;
	may_lack = false;
	huge_size = 0;
}
