/*-------------------------------------------------------------------------
 *
 * pmem_simulate.c
 *	  Simulated persistent memory: what would a power failure leave?
 *
 * The pool file is the working image, what the processor sees.  A durable
 * image stands beside it.  A flush captures lines.  A fence publishes the
 * caller's captures to the durable image.  Everything else in the working
 * image may or may not have reached the medium; nvm_crashimage decides that by
 * a seed.  README tells why this is sound among many processes.
 *
 * Any process may die anywhere.  So a line that is being published names the
 * capture from which it is published.  A process that finds the line locked by
 * a dead one can finish the copy.
 *
 * Nothing here allocates or throws, except PANIC when all areas are taken.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "media/media_sim.h"
#include "miscadmin.h"
#include "pmem/pmem_backend.h"
#include "port/atomics.h"

#define SETTLE_PAGE			4096
/* an area that held so many captures gives its memory back */
#define PUNCH_ENTRIES		65536
#define YIELDS_BEFORE_CHECK 1000
/* captures looked at to see whether a line is repeated */
#define LOOK_BACK			64

/* the four files; durable, lines and control stay open, see attach */
static int	sim_durable_fd = -1;
static int	sim_lines_fd = -1;
static int	sim_control_fd = -1;

static char *sim_working;		/* the pool's mapping */
static char *sim_durable;
static uint64 *sim_lines;
static NvmSimControl *sim_ctl;
static NvmSimCapture *sim_captures;
static uint64 sim_max_size;

/* my area; belongs to process sim_area_pid, which may be our parent */
static int	sim_area;
static int	sim_area_pid;

/* of the captures in my area: was the line written back, or flushed and noted? */
static bool sim_written[NVM_SIM_ENTRIES];

#define AtomicWord(ptr)		((pg_atomic_uint64 *) (ptr))
#define CAPTURES_SIZE \
	((uint64) NVM_SIM_AREAS * NVM_SIM_ENTRIES * sizeof(NvmSimCapture))

static inline NvmSimCapture *
sim_entry(int area, uint64 entry)
{
	return &sim_captures[(uint64) area * NVM_SIM_ENTRIES + entry];
}

static inline bool
process_is_dead(uint64 pid)
{
	return kill((pid_t) pid, 0) != 0 && errno == ESRCH;
}

/*
 * Copy a line as it was at one instant.  Stores of other processes to the same
 * line may come in between.  A mixture of before and after could show an order
 * of stores that never was, since a real cache line is written back whole.  So
 * read until two readings agree.
 */
static void
copy_line(uint64 *dst, const char *src)
{
	volatile const uint64 *words = (volatile const uint64 *) src;
	bool		same;
	int			i;

	for (i = 0; i < NVM_SIM_LINE_WORDS; i++)
		dst[i] = words[i];
	do
	{
		pg_read_barrier();
		same = true;
		for (i = 0; i < NVM_SIM_LINE_WORDS; i++)
		{
			uint64		word = words[i];

			if (word != dst[i])
			{
				dst[i] = word;
				same = false;
			}
		}
	} while (!same);
}

/*
 * Second half of publishing: the line is locked in the name of this capture.
 * Also called for the capture of a dead process, whose lock stays in place
 * until the copy is complete.
 */
static void
publish_locked(const NvmSimCapture *capture)
{
	memcpy(sim_durable + capture->line * NVM_SIM_LINE, capture->content,
		   NVM_SIM_LINE);
	pg_write_barrier();
	pg_atomic_write_u64(AtomicWord(&sim_lines[capture->line]),
						capture->counter);
}

/*
 * Complete what the former owner of the area was publishing when it died.  The
 * caller owns the area.
 */
static void
complete_area(int area)
{
	uint64		count = sim_ctl->area[area].count;
	uint64		e;

	for (e = 0; e < count; e++)
	{
		NvmSimCapture *capture = sim_entry(area, e);

		if (pg_atomic_read_u64(AtomicWord(&sim_lines[capture->line])) ==
			NVM_SIM_LOCK_MAKE(area, e))
			publish_locked(capture);
	}
}

/*
 * Take over the area of a dead process, `owner`.  Returns false if another
 * process was faster.
 */
static bool
take_area(int area, uint64 owner)
{
	if (!pg_atomic_compare_exchange_u64(AtomicWord(&sim_ctl->area[area].owner),
										&owner, (uint64) MyProcPid))
		return false;
	complete_area(area);
	return true;
}

/*
 * A process is publishing the line whose word this is.  Wait a moment.  If the
 * process is dead, finish its work.
 */
static void
wait_for_line(uint64 word, int *yields)
{
	int			area = NVM_SIM_LOCK_AREA(word);
	uint64		owner;

	(void) sched_yield();
	if (++*yields < YIELDS_BEFORE_CHECK)
		return;
	*yields = 0;

	owner = pg_atomic_read_u64(AtomicWord(&sim_ctl->area[area].owner));
	if (owner != 0 && process_is_dead(owner) && take_area(area, owner))
	{
		/* its captures stay for the image builder until the area is reused */
		pg_write_barrier();
		pg_atomic_write_u64(AtomicWord(&sim_ctl->area[area].owner), 0);
	}
}

/*
 * Bring a capture of mine to the durable image, unless a later one is there.
 */
static void
publish(int area, uint64 e)
{
	NvmSimCapture *capture = sim_entry(area, e);
	pg_atomic_uint64 *line = AtomicWord(&sim_lines[capture->line]);
	uint64		word = pg_atomic_read_u64(line);
	int			yields = 0;

	for (;;)
	{
		if (word & NVM_SIM_LOCK)
		{
			wait_for_line(word, &yields);
			word = pg_atomic_read_u64(line);
			continue;
		}
		if (word >= capture->counter)
			return;
		if (pg_atomic_compare_exchange_u64(line, &word,
										   NVM_SIM_LOCK_MAKE(area, e)))
			break;
	}
	publish_locked(capture);
}

/*
 * Publish those captures of my area that were written back, and drop the
 * others: a line that is still noted will be captured once more.
 */
static void
publish_area(int area)
{
	NvmSimArea *header = &sim_ctl->area[area];
	uint64		count = header->count;
	uint64		e;

	for (e = 0; e < count; e++)
	{
		if (sim_written[e])
			publish(area, e);
	}

	pg_memory_barrier();
	pg_atomic_write_u64(AtomicWord(&header->count), 0);
	if (count >= PUNCH_ENTRIES)
		(void) madvise(sim_entry(area, 0),
					   NVM_SIM_ENTRIES * sizeof(NvmSimCapture), MADV_REMOVE);
}

/*
 * Find an area for this process: a free one, or that of a dead process.  Areas
 * without captures are preferred, because reusing an area loses its captures
 * for the image builder.
 */
static int
claim_area(void)
{
	int			pass;
	int			area;

	for (pass = 0; pass < 2; pass++)
	{
		for (area = 0; area < NVM_SIM_AREAS; area++)
		{
			NvmSimArea *header = &sim_ctl->area[area];
			uint64		owner = pg_atomic_read_u64(AtomicWord(&header->owner));

			if (pass == 0 && header->count != 0)
				continue;
			if (owner != 0 && owner != (uint64) MyProcPid &&
				!process_is_dead(owner))
				continue;
			if (!take_area(area, owner))
				continue;
			pg_memory_barrier();
			pg_atomic_write_u64(AtomicWord(&header->count), 0);
			sim_area_pid = MyProcPid;
			return area;
		}
	}
	ereport(PANIC,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("more than %d processes use a simulated pool", NVM_SIM_AREAS),
			 errhint("Lower max_connections for this test.")));
	return -1;					/* keep compiler quiet */
}

/*
 * For the counts: does the medium hold the line as it is, and have I captured
 * it since my last fence?  Nothing depends on the answers.
 */
static bool
line_is_clean(uint64 line)
{
	return memcmp(sim_durable + line * NVM_SIM_LINE,
				  sim_working + line * NVM_SIM_LINE, NVM_SIM_LINE) == 0;
}

static bool
line_is_captured(uint64 line)
{
	uint64		count = sim_ctl->area[sim_area].count;

	for (int i = 1; i <= LOOK_BACK && (uint64) i <= count; i++)
		if (sim_entry(sim_area, count - i)->line == line)
			return true;
	return false;
}

/*
 * Capture one line, in my area.  written: the processor writes it back now, so
 * my next fence waits for it.  Otherwise it is what an eviction might write.
 */
static void
capture_line(uint64 line, bool written)
{
	NvmSimArea *header = &sim_ctl->area[sim_area];
	NvmSimCapture *capture;

	if (header->count == NVM_SIM_ENTRIES)
	{
		pg_atomic_fetch_add_u64(AtomicWord(&sim_ctl->early), (int64) header->count);
		publish_area(sim_area);
	}
	sim_written[header->count] = written;
	capture = sim_entry(sim_area, header->count);
	capture->line = line;
	/* a full barrier: what is read below is no older than the counter */
	capture->counter = pg_atomic_add_fetch_u64(AtomicWord(&sim_ctl->counter), 1);
	copy_line(capture->content, sim_working + line * NVM_SIM_LINE);
	pg_write_barrier();
	pg_atomic_write_u64(AtomicWord(&header->count), header->count + 1);
}

/*
 * First and last line of [addr, addr + len), which begins within the pool.
 * Afterwards this process has an area.
 */
static uint64
captured_lines(const void *addr, Size len, uint64 *last)
{
	uint64		offset = (uint64) ((const char *) addr - sim_working);

	len = Min(len, sim_max_size - offset);
	if (unlikely(sim_area_pid != MyProcPid))
		sim_area = claim_area();
	*last = (offset + len - 1) / NVM_SIM_LINE;
	return offset / NVM_SIM_LINE;
}

/*
 * `caller` flushes [addr, addr + len).  What its lines hold now is captured,
 * but my next fence does not publish that.  It publishes what pmem_defer.c
 * writes back.
 */
void
nvm_simulate_flush(const void *addr, Size len, const void *caller)
{
	uint64		last;
	uint64		line = captured_lines(addr, len, &last);
	uint64		lines = last - line + 1;
	uint64		clean = 0;
	uint64		repeated = 0;

	for (; line <= last; line++)
	{
		clean += line_is_clean(line);
		repeated += line_is_captured(line);
		capture_line(line, false);
	}
	nvm_sim_count_flush(caller, lines, clean, repeated);
}

/*
 * The lines of [addr, addr + len) are written back.
 */
void
nvm_simulate_write_back(const void *addr, Size len)
{
	uint64		last;

	for (uint64 line = captured_lines(addr, len, &last); line <= last; line++)
		capture_line(line, true);
}

/*
 * Publish what this process has captured; the fence has that name.
 */
void
nvm_simulate_drain(const char *name)
{
	nvm_sim_count_drain(name);
	if (sim_area_pid == MyProcPid)
		publish_area(sim_area);
}

/* ----------
 * Opening
 * ----------
 */

/*
 * Make the durable image equal to the working one, within [start, end).
 */
static void
settle_range(uint64 start, uint64 end)
{
	uint64		at;

	for (at = start - start % SETTLE_PAGE; at < end; at += SETTLE_PAGE)
	{
		Size		len = Min((uint64) SETTLE_PAGE, end - at);

		if (memcmp(sim_working + at, sim_durable + at, len) != 0)
			memcpy(sim_durable + at, sim_working + at, len);
	}
}

/*
 * The same wherever file descriptor fd has data rather than holes.
 */
static void
settle_data(int fd, uint64 filesize)
{
	off_t		end = 0;

	while ((uint64) end < filesize)
	{
		off_t		start = lseek(fd, end, SEEK_DATA);

		if (start < 0)
		{
			/* ENXIO: nothing but a hole.  No SEEK_DATA here: all is data */
			if (errno != ENXIO)
				settle_range(0, filesize);
			return;
		}
		end = lseek(fd, start, SEEK_HOLE);
		if (end < 0 || (uint64) end > filesize)
			end = (off_t) filesize;
		if ((uint64) start < filesize)
			settle_range((uint64) start, (uint64) end);
	}
}

static bool
set_file_size(int fd, uint64 size)
{
	struct stat st;

	if (fstat(fd, &st) != 0)
		return false;
	if ((uint64) st.st_size > size)
		return ftruncate(fd, (off_t) size) == 0;
	if ((uint64) st.st_size < size)
	{
		int			rc;

		/* with space behind it, or a full device would be a SIGBUS */
		do
		{
			rc = fallocate(fd, 0, st.st_size, (off_t) size - st.st_size);
		} while (rc != 0 && errno == EINTR);
		if (rc == 0)
			return true;
		if (errno != EOPNOTSUPP)
			return false;
		return ftruncate(fd, (off_t) size) == 0;
	}
	return true;
}

static int
open_companion(const char *path, const char *suffix)
{
	char		name[MAXPGPATH];

	snprintf(name, sizeof(name), "%s%s", path, suffix);
	return open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

static void *
map_companion(int fd, uint64 size)
{
	void	   *addr = mmap(NULL, size, PROT_READ | PROT_WRITE,
							MAP_SHARED | MAP_NORESERVE, fd, 0);

	return addr == MAP_FAILED ? NULL : addr;
}

/*
 * Open, size and map the four files.  Returns false with errno set.
 */
static bool
open_companions(const char *path, uint64 filesize, uint64 max_size)
{
	int			captures_fd;
	bool		ok;
	int			save_errno;

	sim_control_fd = open_companion(path, NVM_SIM_CONTROL);
	sim_durable_fd = open_companion(path, NVM_SIM_DURABLE);
	sim_lines_fd = open_companion(path, NVM_SIM_LINES);
	captures_fd = open_companion(path, NVM_SIM_CAPTURES);
	if (sim_control_fd < 0 || sim_durable_fd < 0 || sim_lines_fd < 0 ||
		captures_fd < 0)
		return false;

	/*
	 * All processes of the server share this lock, and it is gone when the
	 * last of them is: the image builder asks for it.
	 */
	ok = flock(sim_control_fd, LOCK_SH | LOCK_NB) == 0 &&
		ftruncate(sim_control_fd, sizeof(NvmSimControl)) == 0 &&
		ftruncate(captures_fd, (off_t) CAPTURES_SIZE) == 0 &&
		set_file_size(sim_durable_fd, filesize) &&
		set_file_size(sim_lines_fd, filesize / NVM_SIM_LINE * sizeof(uint64));
	if (ok)
	{
		sim_ctl = map_companion(sim_control_fd, sizeof(NvmSimControl));
		sim_durable = map_companion(sim_durable_fd, max_size);
		sim_lines = map_companion(sim_lines_fd,
								  max_size / NVM_SIM_LINE * sizeof(uint64));
		sim_captures = map_companion(captures_fd, CAPTURES_SIZE);
		ok = sim_ctl && sim_durable && sim_lines && sim_captures;
	}
	save_errno = errno;
	close(captures_fd);
	errno = save_errno;
	return ok;
}

/*
 * Do the files belong to this pool file, and did this code write them?
 */
static bool
control_is_ours(uint64 inode)
{
	return sim_ctl->magic == NVM_SIM_MAGIC &&
		sim_ctl->version == NVM_SIM_VERSION &&
		sim_ctl->areas == NVM_SIM_AREAS &&
		sim_ctl->entries == NVM_SIM_ENTRIES &&
		sim_ctl->pool_inode == inode;
}

/*
 * Attach to a simulated pool, mapped at base.  Called in the
 * postmaster, when no other process of the server exists.
 *
 * With `settle`, or if there is no durable image yet, the working image
 * counts: whatever a killed server left in it becomes durable.  Otherwise the
 * difference stays, and the captures of dead processes stay until their areas
 * are reused.
 */
bool
nvm_simulate_attach(const NvmMapFile *file, char *base, bool settle,
					const char **errdetail)
{
	static char message[256];
	struct stat st;
	int			area;

	sim_working = base;
	sim_max_size = file->max_size;
	sim_area_pid = 0;
	if (fstat(file->fd, &st) != 0 ||
		!open_companions(file->path, file->size, file->max_size))
	{
		snprintf(message, sizeof(message),
				 "could not open the durable image of the simulated pool: %s",
				 strerror(errno));
		*errdetail = message;
		nvm_simulate_detach();
		return false;
	}

	if (!control_is_ours((uint64) st.st_ino))
	{
		memset(sim_ctl, 0, sizeof(NvmSimControl));
		sim_ctl->version = NVM_SIM_VERSION;
		sim_ctl->areas = NVM_SIM_AREAS;
		sim_ctl->entries = NVM_SIM_ENTRIES;
		sim_ctl->pool_inode = (uint64) st.st_ino;
		/* an old word would claim to be newer than all that is to come */
		memset(sim_lines, 0, file->size / NVM_SIM_LINE * sizeof(uint64));
		settle = true;
	}

	for (area = 0; area < NVM_SIM_AREAS; area++)
	{
		complete_area(area);
		if (settle)
			sim_ctl->area[area].count = 0;
		sim_ctl->area[area].owner = 0;
	}
	if (settle)
	{
		settle_data(file->fd, file->size);
		settle_data(sim_durable_fd, file->size);
	}
	pg_memory_barrier();
	sim_ctl->magic = NVM_SIM_MAGIC;
	nvm_sim_counts_attach(sim_ctl);
	return true;
}

static void
close_if_open(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/*
 * Unmap and close; also what an attach that failed has left.
 */
void
nvm_simulate_detach(void)
{
	nvm_sim_counts_attach(NULL);
	if (sim_ctl)
		(void) munmap(sim_ctl, sizeof(NvmSimControl));
	if (sim_durable)
		(void) munmap(sim_durable, sim_max_size);
	if (sim_lines)
		(void) munmap(sim_lines, sim_max_size / NVM_SIM_LINE * sizeof(uint64));
	if (sim_captures)
		(void) munmap(sim_captures, CAPTURES_SIZE);
	sim_ctl = NULL;
	sim_durable = NULL;
	sim_lines = NULL;
	sim_captures = NULL;
	sim_area_pid = 0;
	close_if_open(&sim_control_fd);
	close_if_open(&sim_durable_fd);
	close_if_open(&sim_lines_fd);
}

/*
 * The pool file has grown; its new part is zero in both images.  Any process
 * may call this, under the lock that protects growth.
 */
bool
nvm_simulate_grown(uint64 new_size)
{
	return set_file_size(sim_durable_fd, new_size) &&
		set_file_size(sim_lines_fd, new_size / NVM_SIM_LINE * sizeof(uint64));
}

/*
 * Remove the companions of a pool that is opened by another method: that
 * method would not keep them true.
 */
void
nvm_simulate_discard(const char *path)
{
	static const char *const suffixes[] = {
		NVM_SIM_CONTROL, NVM_SIM_LINES, NVM_SIM_CAPTURES, NVM_SIM_DURABLE
	};
	char		name[MAXPGPATH];
	int			i;

	for (i = 0; i < (int) lengthof(suffixes); i++)
	{
		snprintf(name, sizeof(name), "%s%s", path, suffixes[i]);
		(void) unlink(name);
	}
}
