/*-------------------------------------------------------------------------
 *
 * nvm_crashimage.c
 *	  Build what a power failure could have left of a simulated pool.
 *
 *	nvm_crashimage POOLDIR OUTDIR --seed N [--mode random|durable|working]
 *		[--torn suffix|prefix|any|none] [--log FILE] [--wait SECONDS]
 *
 * POOLDIR is the pool directory of a server that ran with
 * nvm.persist_method = simulate and all of whose processes are dead.  OUTDIR
 * gets a file `pool` and loses what stands beside it, so that a server can
 * open it, simulated again or not.  OUTDIR may be POOLDIR.
 *
 * States of a line, oldest first: what the durable image holds; what was
 * captured after that and not published; what the working image holds.  Each
 * line where these are not all the same gets one of them, independently of all
 * others, or a mixture of two neighbouring states: some 8-byte words of the
 * newer among words of the older.
 *
 *	prefix	the first words are the newer ones: right for a line whose words are
 *			stored in the order of their addresses (the default: the formats of
 *			media/ are laid out so)
 *	suffix	the last words are
 *	any		either
 *	none	no mixtures: only states that the line was seen in
 *
 * The choice for a line depends on the seed, its place, and its states alone.
 * Each seed also has a leaning: half of them decide evenly, the others leave
 * nearly all lines old or nearly all new, because a bug often needs just one
 * line that differs from its fellows.
 *
 * Exit status: 0 done, 1 wrong usage, 2 a file cannot be read or written,
 * 3 processes of the server are still alive, 4 the files are not those of a
 * simulated pool, or are damaged.
 *
 * Build: make -C test/crashimage; it needs nothing but libc and the media
 * headers.  test: make -C test/crashimage check.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "media/media_sim.h"

#define PAGE				4096
#define PAGE_LINES			(PAGE / NVM_SIM_LINE)
#define RUN_PAGES			256 /* pages read at once */
#define MAX_STATES			4096	/* of one line; what is beyond is skipped */

#define EXIT_USAGE			1
#define EXIT_FILE			2
#define EXIT_ALIVE			3
#define EXIT_FORMAT			4

typedef enum Mode
{
	MODE_RANDOM,
	MODE_DURABLE,
	MODE_WORKING
} Mode;

#define TORN_SUFFIX			1
#define TORN_PREFIX			2

/* Which way a seed leans: 1 in 2^odds lines is decided evenly */
typedef struct Leaning
{
	bool		to_working;
	int			odds;			/* 0 = decide all evenly */
} Leaning;

/* A capture that its line's durable content does not include */
typedef struct Pending
{
	uint64_t	line;
	uint64_t	counter;
	uint64_t	place;			/* index in the captures file */
} Pending;

/* options */
static uint64_t seed;
static Mode mode = MODE_RANDOM;
static int	torn = TORN_PREFIX;
static int	wait_seconds = 10;
static FILE *logfile;

static Leaning leaning;

/* the pool */
static int	working_fd;
static int	durable_fd;
static int	lines_fd;
static int	captures_fd;
static int	control_fd;
static uint64_t pool_size;
static uint64_t durable_size;
static NvmSimControl control;

static Pending *pending;
static size_t npending;
static size_t pending_room;

static uint64_t lines_differing;
static uint64_t lines_taken[4]; /* durable, captured, working, mixed */
static uint64_t states_skipped;

static void die(int status, const char *fmt,...)
			__attribute__((noreturn, format(printf, 2, 3)));

static void
die(int status, const char *fmt,...)
{
	va_list		ap;

	fprintf(stderr, "nvm_crashimage: ");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(status);
}

static void
path_of(char *buf, const char *dir, const char *suffix)
{
	if (snprintf(buf, PATH_MAX, "%s/pool%s", dir, suffix) >= PATH_MAX)
		die(EXIT_USAGE, "path is too long: %s", dir);
}

/* ----------
 * Chance
 * ----------
 */

/*
 * splitmix64: the next number of a sequence whose state is *s
 */
static uint64_t
next_random(uint64_t *s)
{
	uint64_t	z = (*s += UINT64_C(0x9E3779B97F4A7C15));

	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

/* a state of the generator that belongs to one line of one image */
static uint64_t
line_chance(uint64_t line)
{
	uint64_t	s = seed;

	s = next_random(&s) ^ (line * UINT64_C(0xD1B54A32D192ED03));
	return next_random(&s);
}

static void
choose_leaning(void)
{
	uint64_t	s = ~seed;
	uint64_t	r = next_random(&s);

	if (r & 1)
	{
		leaning.to_working = (r >> 1) & 1;
		leaning.odds = 1 + (int) ((r >> 2) % 10);
	}
}

/* ----------
 * Files
 * ----------
 */

static int
open_part(const char *dir, const char *suffix)
{
	char		path[PATH_MAX];
	int			fd;

	path_of(path, dir, suffix);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
	{
		if (errno == ENOENT && suffix[0] != '\0')
			die(EXIT_FORMAT, "%s does not exist: %s is not the directory of a simulated pool",
				path, dir);
		die(EXIT_FILE, "could not open %s: %s", path, strerror(errno));
	}
	return fd;
}

/*
 * Read len bytes at offset; what is beyond the end of the file is zero.
 */
static void
read_at(int fd, void *buf, size_t len, uint64_t offset, const char *what)
{
	size_t		done = 0;

	while (done < len)
	{
		ssize_t		n = pread(fd, (char *) buf + done, len - done,
							  (off_t) (offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			die(EXIT_FILE, "could not read the %s at %" PRIu64 ": %s", what,
				offset + done, strerror(errno));
		if (n == 0)
		{
			memset((char *) buf + done, 0, len - done);
			return;
		}
		done += (size_t) n;
	}
}

static void
write_at(int fd, const void *buf, size_t len, uint64_t offset)
{
	size_t		done = 0;

	while (done < len)
	{
		ssize_t		n = pwrite(fd, (const char *) buf + done, len - done,
							   (off_t) (offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			die(EXIT_FILE, "could not write the image at %" PRIu64 ": %s",
				offset + done, n < 0 ? strerror(errno) : "nothing written");
		done += (size_t) n;
	}
}

/*
 * All processes of the server hold a shared lock on the control file.
 */
static void
wait_until_dead(const char *dir)
{
	int			tries = wait_seconds * 50;

	while (flock(control_fd, LOCK_EX | LOCK_NB) != 0)
	{
		struct timespec pause = {0, 20 * 1000 * 1000};

		if (errno != EWOULDBLOCK && errno != EINTR)
			die(EXIT_FILE, "could not lock the control file in %s: %s", dir,
				strerror(errno));
		if (tries-- <= 0)
			die(EXIT_ALIVE, "processes of the server still use %s; kill them all first",
				dir);
		nanosleep(&pause, NULL);
	}
}

static void
open_pool(const char *dir)
{
	struct stat st;

	working_fd = open_part(dir, "");
	control_fd = open_part(dir, NVM_SIM_CONTROL);
	durable_fd = open_part(dir, NVM_SIM_DURABLE);
	lines_fd = open_part(dir, NVM_SIM_LINES);
	captures_fd = open_part(dir, NVM_SIM_CAPTURES);
	wait_until_dead(dir);

	read_at(control_fd, &control, sizeof(control), 0, "control file");
	if (control.magic != NVM_SIM_MAGIC)
		die(EXIT_FORMAT, "the control file in %s is not one of a simulated pool, or its server never came up",
			dir);
	if (control.version != NVM_SIM_VERSION ||
		control.areas != NVM_SIM_AREAS || control.entries != NVM_SIM_ENTRIES)
		die(EXIT_FORMAT, "the simulated pool in %s is of another version", dir);

	if (fstat(working_fd, &st) != 0)
		die(EXIT_FILE, "could not stat the pool: %s", strerror(errno));
	pool_size = (uint64_t) st.st_size;
	if (fstat(durable_fd, &st) != 0)
		die(EXIT_FILE, "could not stat the durable image: %s", strerror(errno));
	durable_size = (uint64_t) st.st_size;
	if (pool_size % PAGE != 0)
		die(EXIT_FORMAT, "the length of the pool, %" PRIu64 ", is no multiple of %d",
			pool_size, PAGE);
}

/* ----------
 * States
 * ----------
 */

/*
 * Place of the capture that a locked word names
 */
static uint64_t
locked_place(uint64_t word, uint64_t line)
{
	uint32_t	area = NVM_SIM_LOCK_AREA(word);
	uint32_t	entry = NVM_SIM_LOCK_ENTRY(word);

	if (area >= NVM_SIM_AREAS || entry >= control.area[area].count)
		die(EXIT_FORMAT, "line %" PRIu64 " was being published from a capture that does not exist",
			line);
	return (uint64_t) area * NVM_SIM_ENTRIES + entry;
}

static void
read_capture(uint64_t place, NvmSimCapture *capture)
{
	read_at(captures_fd, capture, sizeof(*capture),
			place * sizeof(NvmSimCapture), "captures");
}

/*
 * Counter of the capture that the durable image of this line holds.  If its
 * publisher died on the way the image itself may be half of each, and counts as
 * complete; then *content gets what it should be.
 */
static uint64_t
durable_counter(uint64_t line, uint64_t word, uint64_t *content)
{
	NvmSimCapture capture;

	if (!(word & NVM_SIM_LOCK))
		return word;
	read_capture(locked_place(word, line), &capture);
	if (capture.line != line)
		die(EXIT_FORMAT, "line %" PRIu64 " was being published from a capture of line %" PRIu64,
			line, capture.line);
	if (content != NULL)
		memcpy(content, capture.content, NVM_SIM_LINE);
	return capture.counter;
}

static int
compare_pending(const void *a, const void *b)
{
	const Pending *x = a;
	const Pending *y = b;

	if (x->line != y->line)
		return x->line < y->line ? -1 : 1;
	if (x->counter != y->counter)
		return x->counter < y->counter ? -1 : 1;
	return 0;
}

static void
note_pending(const NvmSimCapture *capture, uint64_t place)
{
	if (npending == pending_room)
	{
		pending_room = pending_room ? pending_room * 2 : 1024;
		pending = realloc(pending, pending_room * sizeof(Pending));
		if (pending == NULL)
			die(EXIT_FILE, "out of memory for %zu captures", pending_room);
	}
	pending[npending].line = capture->line;
	pending[npending].counter = capture->counter;
	pending[npending].place = place;
	npending++;
}

/*
 * Collect the captures that are newer than the durable content of their line,
 * and those being published.
 */
static void
collect_captures(void)
{
	int			area;

	for (area = 0; area < NVM_SIM_AREAS; area++)
	{
		uint64_t	count = control.area[area].count;
		uint64_t	e;

		if (count > NVM_SIM_ENTRIES)
			die(EXIT_FORMAT, "area %d claims %" PRIu64 " captures", area, count);
		for (e = 0; e < count; e++)
		{
			NvmSimCapture capture;
			uint64_t	place = (uint64_t) area * NVM_SIM_ENTRIES + e;
			uint64_t	word;

			read_capture(place, &capture);
			if (capture.line >= pool_size / NVM_SIM_LINE)
				die(EXIT_FORMAT, "area %d has a capture of line %" PRIu64 ", beyond the pool",
					area, capture.line);
			read_at(lines_fd, &word, sizeof(word),
					capture.line * sizeof(word), "line words");
			if ((word & NVM_SIM_LOCK) ||
				capture.counter > durable_counter(capture.line, word, NULL))
				note_pending(&capture, place);
		}
	}
	if (npending > 1)
		qsort(pending, npending, sizeof(Pending), compare_pending);
}

/*
 * First pending capture of a line not below `line`
 */
static size_t
find_pending(uint64_t line)
{
	size_t		low = 0;
	size_t		high = npending;

	while (low < high)
	{
		size_t		middle = low + (high - low) / 2;

		if (pending[middle].line < line)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* ----------
 * Choices
 * ----------
 */

static void
log_choice(uint64_t line, int nstates, int chosen, int words, bool suffix,
		   uint64_t counter)
{
	if (words == 0)
		lines_taken[chosen == 0 ? 0 : chosen == nstates - 1 ? 2 : 1]++;
	else
		lines_taken[3]++;
	if (logfile == NULL)
		return;

	fprintf(logfile, "offset %" PRIu64 " states %d: ", line * NVM_SIM_LINE,
			nstates);
	if (chosen == 0)
		fprintf(logfile, "durable");
	else if (chosen == nstates - 1)
		fprintf(logfile, "working");
	else
		fprintf(logfile, "capture %d (counter %" PRIu64 ")", chosen, counter);
	if (words > 0)
		fprintf(logfile, ", of which only the %s %d words",
				suffix ? "last" : "first", words);
	fputc('\n', logfile);
}

/*
 * Choose among states[0..n-1], oldest first, and put the result in *out.
 */
static void
choose(uint64_t line, uint64_t (*states)[NVM_SIM_LINE_WORDS],
	   const uint64_t *counters, int n, uint64_t *out)
{
	uint64_t	s = line_chance(line);
	int			chosen;
	int			words = 0;
	bool		suffix = false;

	if (mode == MODE_DURABLE)
		chosen = 0;
	else if (mode == MODE_WORKING)
		chosen = n - 1;
	else if (leaning.odds > 0 &&
			 next_random(&s) % (UINT64_C(1) << leaning.odds) != 0)
		chosen = leaning.to_working ? n - 1 : 0;
	else
	{
		chosen = (int) (next_random(&s) % (uint64_t) n);
		if (chosen > 0 && torn != 0 && next_random(&s) % 3 == 0)
		{
			words = 1 + (int) (next_random(&s) % (NVM_SIM_LINE_WORDS - 1));
			suffix = torn == TORN_SUFFIX ||
				(torn == (TORN_SUFFIX | TORN_PREFIX) && (next_random(&s) & 1));
		}
	}

	memcpy(out, states[chosen], NVM_SIM_LINE);
	if (words > 0)
	{
		/* all but `words` words are still those of the state before */
		int			old = NVM_SIM_LINE_WORDS - words;
		int			from = suffix ? 0 : words;

		memcpy(out + from, states[chosen - 1] + from, old * sizeof(uint64_t));
	}
	log_choice(line, n, chosen, words, suffix, counters[chosen]);
}

/*
 * Decide one line.  *out may be *working.
 */
static void
decide_line(uint64_t line, uint64_t word, const uint64_t *working,
			const uint64_t *durable, uint64_t *out)
{
	static uint64_t states[MAX_STATES][NVM_SIM_LINE_WORDS];
	static uint64_t counters[MAX_STATES];
	int			n = 1;
	size_t		i;

	memcpy(states[0], durable, NVM_SIM_LINE);
	counters[0] = durable_counter(line, word, states[0]);

	for (i = find_pending(line); i < npending && pending[i].line == line; i++)
	{
		NvmSimCapture capture;

		if (pending[i].counter <= counters[0])
			continue;
		read_capture(pending[i].place, &capture);
		if (memcmp(capture.content, states[n - 1], NVM_SIM_LINE) == 0)
			continue;
		if (n == MAX_STATES - 1)
		{
			states_skipped++;
			continue;
		}
		memcpy(states[n], capture.content, NVM_SIM_LINE);
		counters[n++] = capture.counter;
	}
	if (memcmp(working, states[n - 1], NVM_SIM_LINE) != 0)
	{
		memcpy(states[n], working, NVM_SIM_LINE);
		counters[n++] = 0;
	}
	if (n > 1)
	{
		lines_differing++;
		choose(line, states, counters, n, out);
	}
	else
		memcpy(out, states[0], NVM_SIM_LINE);
}

/*
 * Decide the lines of a page; `working` becomes the result.
 */
static void
decide_page(uint64_t page, char *working, const char *durable)
{
	uint64_t	words[PAGE_LINES];
	uint64_t	first = page * PAGE_LINES;
	size_t		next = find_pending(first);
	bool		captured = next < npending && pending[next].line < first + PAGE_LINES;
	int			i;

	if (!captured && memcmp(working, durable, PAGE) == 0)
		return;
	read_at(lines_fd, words, sizeof(words), first * sizeof(uint64_t),
			"line words");
	for (i = 0; i < PAGE_LINES; i++)
	{
		uint64_t	line_working[NVM_SIM_LINE_WORDS];
		uint64_t	line_durable[NVM_SIM_LINE_WORDS];

		memcpy(line_working, working + i * NVM_SIM_LINE, NVM_SIM_LINE);
		memcpy(line_durable, durable + i * NVM_SIM_LINE, NVM_SIM_LINE);
		if (!captured && memcmp(line_working, line_durable, NVM_SIM_LINE) == 0)
			continue;
		decide_line(first + i, words[i], line_working, line_durable,
					line_working);
		memcpy(working + i * NVM_SIM_LINE, line_working, NVM_SIM_LINE);
	}
}

/* ----------
 * The image
 * ----------
 */

/*
 * Mark the pages where the file has data.
 */
static void
mark_data(int fd, uint64_t size, unsigned char *marks)
{
	uint64_t	at = 0;

	if (size > pool_size)
		size = pool_size;
	while (at < size)
	{
		off_t		start = lseek(fd, (off_t) at, SEEK_DATA);
		off_t		end;
		uint64_t	page;

		if (start < 0)
		{
			if (errno == ENXIO)
				return;
			/* no SEEK_DATA on this file system: all is data */
			memset(marks, 1, pool_size / PAGE);
			return;
		}
		if ((uint64_t) start >= size)
			return;
		end = lseek(fd, start, SEEK_HOLE);
		if (end < 0 || (uint64_t) end > size)
			end = (off_t) size;
		for (page = (uint64_t) start / PAGE; page * PAGE < (uint64_t) end; page++)
			marks[page] = 1;
		at = (uint64_t) end;
	}
}

static bool
is_zero(const char *page)
{
	static const char zeroes[PAGE];

	return memcmp(page, zeroes, PAGE) == 0;
}

static void
build_image(int out_fd)
{
	static char working[RUN_PAGES * PAGE];
	static char durable[RUN_PAGES * PAGE];
	uint64_t	npages = pool_size / PAGE;
	unsigned char *marks = calloc(npages + 1, 1);
	uint64_t	page;
	size_t		i;

	if (marks == NULL)
		die(EXIT_FILE, "out of memory for %" PRIu64 " pages", npages);
	mark_data(working_fd, pool_size, marks);
	mark_data(durable_fd, durable_size, marks);
	for (i = 0; i < npending; i++)
		marks[pending[i].line / PAGE_LINES] = 1;

	for (page = 0; page < npages;)
	{
		uint64_t	n = 0;
		uint64_t	k;

		while (page + n < npages && n < RUN_PAGES && marks[page + n])
			n++;
		if (n == 0)
		{
			page++;
			continue;
		}
		read_at(working_fd, working, n * PAGE, page * PAGE, "pool");
		read_at(durable_fd, durable, n * PAGE, page * PAGE, "durable image");
		for (k = 0; k < n; k++)
		{
			decide_page(page + k, working + k * PAGE, durable + k * PAGE);
			if (!is_zero(working + k * PAGE))
				write_at(out_fd, working + k * PAGE, PAGE, (page + k) * PAGE);
		}
		page += n;
	}
	free(marks);
}

/*
 * Make the output directory if need be; owner and mode as the input's, so
 * that root can prepare an image for the server's user.
 */
static void
make_directory(const char *from, const char *to)
{
	struct stat st;

	if (mkdir(to, 0700) != 0)
	{
		if (errno != EEXIST)
			die(EXIT_FILE, "could not create directory %s: %s", to,
				strerror(errno));
		return;
	}
	if (stat(from, &st) != 0 ||
		(geteuid() == 0 && chown(to, st.st_uid, st.st_gid) != 0))
		die(EXIT_FILE, "could not set the owner of %s: %s", to,
			strerror(errno));
}

static void
write_image(const char *outdir)
{
	static const char *const suffixes[] = {
		NVM_SIM_CONTROL, NVM_SIM_LINES, NVM_SIM_CAPTURES, NVM_SIM_DURABLE
	};
	char		path[PATH_MAX];
	char		new_path[PATH_MAX];
	struct stat st;
	size_t		i;
	int			fd;

	path_of(path, outdir, "");
	path_of(new_path, outdir, ".image");
	(void) unlink(new_path);
	fd = open(new_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		die(EXIT_FILE, "could not create %s: %s", new_path, strerror(errno));
	if (fstat(working_fd, &st) != 0 ||
		(geteuid() == 0 && fchown(fd, st.st_uid, st.st_gid) != 0) ||
		fchmod(fd, st.st_mode & 07777) != 0 ||
		ftruncate(fd, (off_t) pool_size) != 0)
		die(EXIT_FILE, "could not prepare %s: %s", new_path, strerror(errno));

	build_image(fd);
	if (close(fd) != 0)
		die(EXIT_FILE, "could not write %s: %s", new_path, strerror(errno));

	/* the old companions do not fit the new pool */
	for (i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++)
	{
		char		companion[PATH_MAX];

		path_of(companion, outdir, suffixes[i]);
		if (unlink(companion) != 0 && errno != ENOENT)
			die(EXIT_FILE, "could not remove %s: %s", companion,
				strerror(errno));
	}
	if (rename(new_path, path) != 0)
		die(EXIT_FILE, "could not rename %s: %s", new_path, strerror(errno));
}

/* ----------
 * Command line
 * ----------
 */

static void
usage(int status)
{
	fprintf(status ? stderr : stdout,
			"usage: nvm_crashimage POOLDIR OUTDIR --seed N [--mode random|durable|working]\n"
			"           [--torn suffix|prefix|any|none] [--log FILE] [--wait SECONDS]\n");
	exit(status);
}

static uint64_t
parse_number(const char *text, const char *option)
{
	char	   *end;
	uint64_t	value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno != 0 || *text <'0' || *text >'9' || *end != '\0')
		die(EXIT_USAGE, "%s needs a number, not \"%s\"", option, text);
	return value;
}

/*
 * Index of text in the NULL-terminated list
 */
static int
parse_choice(const char *text, const char *const *list, const char *option)
{
	int			i;

	for (i = 0; list[i] != NULL; i++)
		if (strcmp(text, list[i]) == 0)
			return i;
	die(EXIT_USAGE, "%s does not know \"%s\"", option, text);
}

int
main(int argc, char **argv)
{
	static const struct option options[] = {
		{"seed", required_argument, NULL, 's'},
		{"mode", required_argument, NULL, 'm'},
		{"torn", required_argument, NULL, 't'},
		{"log", required_argument, NULL, 'l'},
		{"wait", required_argument, NULL, 'w'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0}
	};
	static const char *const modes[] = {"random", "durable", "working", NULL};
	static const char *const torns[] = {"none", "suffix", "prefix", "any", NULL};
	const char *logname = NULL;
	char		summary[512];
	bool		have_seed = false;
	int			c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
	{
		switch (c)
		{
			case 's':
				seed = parse_number(optarg, "--seed");
				have_seed = true;
				break;
			case 'm':
				mode = (Mode) parse_choice(optarg, modes, "--mode");
				break;
			case 't':
				torn = parse_choice(optarg, torns, "--torn");
				break;
			case 'l':
				logname = optarg;
				break;
			case 'w':
				wait_seconds = (int) (parse_number(optarg, "--wait") % 86400);
				break;
			case 'h':
				usage(0);
				break;
			default:
				usage(EXIT_USAGE);
		}
	}
	if (argc - optind != 2 || (!have_seed && mode == MODE_RANDOM))
		usage(EXIT_USAGE);

	open_pool(argv[optind]);
	if (logname != NULL && (logfile = fopen(logname, "w")) == NULL)
		die(EXIT_FILE, "could not open %s: %s", logname, strerror(errno));
	choose_leaning();
	collect_captures();
	make_directory(argv[optind], argv[optind + 1]);
	write_image(argv[optind + 1]);

	snprintf(summary, sizeof(summary),
			 "seed %" PRIu64 " mode %s torn %s leaning %s odds %d: %" PRIu64 " lines differ, %" PRIu64 " durable, %" PRIu64 " captured, %" PRIu64 " working, %" PRIu64 " mixed; %" PRIu64 " captures published early, %" PRIu64 " states skipped",
			 seed, modes[mode], torns[torn],
			 leaning.odds == 0 ? "none" : leaning.to_working ? "new" : "old",
			 leaning.odds, lines_differing, lines_taken[0], lines_taken[1],
			 lines_taken[2], lines_taken[3], control.early, states_skipped);
	puts(summary);
	if (logfile != NULL)
	{
		fprintf(logfile, "%s\n", summary);
		if (fclose(logfile) != 0)
			die(EXIT_FILE, "could not write %s: %s", logname, strerror(errno));
	}
	return 0;
}
