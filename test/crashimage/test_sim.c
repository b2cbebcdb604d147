/*-------------------------------------------------------------------------
 *
 * test_sim.c
 *	  Test of the simulated back end and of the image builder.
 *
 *	test_sim PATH_OF_NVM_CRASHIMAGE [DIRECTORY]
 *
 * Compiles the back end into itself, with stubs for the little it wants from
 * the server.  DIRECTORY, by default one under /dev/shm or else /tmp, is made
 * and removed.  Says "ok" for each test and ends with status 1 at the first
 * that fails.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "../../src/pmem/pmem_simulate.c"
#include "../../src/pmem/pmem_sim_counts.c"
#include "../../src/pmem/pmem_defer.c"

#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#undef snprintf
#undef printf
#undef fprintf
#undef vsnprintf
#undef strerror

#define MB				((uint64) 1024 * 1024)
#define POOL_SIZE		(20 * MB)
#define MAX_SIZE		(64 * MB)
#define WRITERS			6

/* ----------
 * What the back end wants from the server
 * ----------
 */
int			MyProcPid;
NvmPersistMethod nvm_persist_in_force = NVM_PERSIST_SIMULATE;

void
nvm_libpmem_flush(const void *addr, Size len)
{
	abort();
}

int
pg_snprintf(char *str, size_t count, const char *fmt,...)
{
	va_list		ap;
	int			n;

	va_start(ap, fmt);
	n = vsnprintf(str, count, fmt, ap);
	va_end(ap);
	return n;
}

char *
pg_strerror(int errnum)
{
	return strerror(errnum);
}

bool
errstart(int elevel, const char *domain)
{
	abort();
}

#ifdef HAVE__BUILTIN_CONSTANT_P
bool
errstart_cold(int elevel, const char *domain)
{
	abort();
}
#endif

void
errfinish(const char *filename, int lineno, const char *funcname)
{
	abort();
}

int
errcode(int sqlerrcode)
{
	return 0;
}

int
errmsg(const char *fmt,...)
{
	return 0;
}

int
errhint(const char *fmt,...)
{
	return 0;
}

/* ----------
 * Frame
 * ----------
 */
static const char *builder;
static char directory[1024];
static char image_directory[1200];
static char pool_path[1300];
static char *pool;
static int	pool_fd = -1;

#define check(cond, ...) \
	do { \
		if (!(cond)) \
		{ \
			printf("not ok: %s, line %d: ", #cond, __LINE__); \
			printf(__VA_ARGS__); \
			printf("\n"); \
			fflush(stdout); \
			exit(1); \
		} \
	} while (0)

static void
passed(const char *what)
{
	printf("ok: %s\n", what);
	fflush(stdout);
}

static int
shell(const char *fmt,...)
{
	char		command[4096];
	va_list		ap;
	int			status;

	va_start(ap, fmt);
	vsnprintf(command, sizeof(command), fmt, ap);
	va_end(ap);
	fflush(stdout);
	status = system(command);
	check(status >= 0 && WIFEXITED(status), "%s", command);
	return WEXITSTATUS(status);
}

static uint64 *
word_at(uint64 line, int word)
{
	return (uint64 *) (pool + line * NVM_SIM_LINE) + word;
}

static uint64
durable_at(uint64 line, int word)
{
	return ((uint64 *) (sim_durable + line * NVM_SIM_LINE))[word];
}

static void
store(uint64 line, int word, uint64 value)
{
	*(volatile uint64 *) word_at(line, word) = value;
}

/* written back at once: what a fence makes durable */
static void
flush_line(uint64 line)
{
	nvm_simulate_write_back(pool + line * NVM_SIM_LINE, NVM_SIM_LINE);
}

/* as nvm_flush: captured, and noted for the next fence */
static void
note_lines(uint64 line, uint64 lines)
{
	nvm_simulate_flush(pool + line * NVM_SIM_LINE, lines * NVM_SIM_LINE, __func__);
	nvm_defer_flush(pool + line * NVM_SIM_LINE, lines * NVM_SIM_LINE);
}

/* as nvm_drain */
static void
fence_noted(void)
{
	nvm_defer_write_back();
	nvm_simulate_drain("test-fence");
}

static void
close_pool(void)
{
	nvm_simulate_detach();
	if (pool)
		munmap(pool, MAX_SIZE);
	if (pool_fd >= 0)
		close(pool_fd);
	pool = NULL;
	pool_fd = -1;
}

static void
open_pool(bool settle)
{
	const char *detail = "";
	struct stat st;
	NvmMapFile	file;

	pool_fd = open(pool_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	check(pool_fd >= 0 && fstat(pool_fd, &st) == 0, "%s", pool_path);
	if (st.st_size == 0)
	{
		check(ftruncate(pool_fd, POOL_SIZE) == 0, "ftruncate");
		st.st_size = POOL_SIZE;
	}
	pool = mmap(NULL, MAX_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, pool_fd, 0);
	check(pool != MAP_FAILED, "mmap");
	file = (NvmMapFile)
	{
		.path = pool_path,.fd = pool_fd,.size = (uint64) st.st_size,.max_size = MAX_SIZE
	};
	check(nvm_simulate_attach(&file, pool, settle, &detail), "%s", detail);
}

static void
new_pool(void)
{
	close_pool();
	nvm_simulate_discard(pool_path);
	unlink(pool_path);
	open_pool(true);
}

static int
build(uint64 seed, const char *options)
{
	return shell("%s %s %s --seed %llu --wait 0 %s >/dev/null 2>&1", builder,
				 directory, image_directory, (unsigned long long) seed, options);
}

static uint64
image_word(uint64 line, int word)
{
	char		path[1400];
	uint64		value = 0;
	int			fd;

	snprintf(path, sizeof(path), "%s/pool", image_directory);
	fd = open(path, O_RDONLY);
	check(fd >= 0, "%s", path);
	check(pread(fd, &value, 8, line * NVM_SIM_LINE + word * 8) == 8, "pread");
	close(fd);
	return value;
}

static pid_t
start_child(void)
{
	pid_t		pid;

	fflush(stdout);
	pid = fork();
	check(pid >= 0, "fork");
	if (pid == 0)
	{
		MyProcPid = getpid();
		/* a test that fails leaves nobody behind */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	}
	return pid;
}

static void
reap(pid_t pid)
{
	check(waitpid(pid, NULL, 0) == pid, "waitpid");
}

/* ----------
 * One process
 * ----------
 */
static void
test_capture_and_publish(void)
{
	new_pool();
	store(100, 0, 1);
	check(durable_at(100, 0) == 0, "a store is not durable");
	flush_line(100);
	check(durable_at(100, 0) == 0, "a flush is not durable");
	store(100, 0, 2);
	nvm_simulate_drain("test-fence");
	check(durable_at(100, 0) == 1, "a fence makes durable what was flushed, got %llu",
		  (unsigned long long) durable_at(100, 0));
	flush_line(100);
	store(100, 0, 3);
	flush_line(100);
	nvm_simulate_drain("test-fence");
	check(durable_at(100, 0) == 3, "the later of two captures");

	/* a range that begins and ends inside lines */
	memset(pool + 64 * 200 + 60, 7, 72);
	nvm_simulate_write_back(pool + 64 * 200 + 60, 72);
	nvm_simulate_drain("test-fence");
	check(memcmp(sim_durable + 64 * 199, pool + 64 * 199, 64 * 5) == 0, "range");
	passed("capture and publish");
}

/*
 * What is flushed is noted, and each noted line is durable after the fence with
 * what it held at that moment, however many more there are than places.
 */
static void
test_noted_lines(void)
{
	uint64		lines = 5 * NOTED_SLOTS;

	new_pool();
	store(100, 0, 1);
	nvm_simulate_flush(pool + 100 * NVM_SIM_LINE, NVM_SIM_LINE, __func__);
	nvm_simulate_drain("test-fence");
	check(durable_at(100, 0) == 0, "a fence that has not written back makes nothing durable");

	note_lines(100, 1);
	store(100, 0, 2);
	check(durable_at(100, 0) == 0, "a noted line is not durable");
	fence_noted();
	check(durable_at(100, 0) == 2, "noted, then as it was at the fence, got %llu",
		  (unsigned long long) durable_at(100, 0));
	check(nvm_noted_lines == 0, "nothing is noted after a fence");

	/* once noted, a line may be noted again, alone or among others */
	for (uint64 line = 1000; line < 1000 + lines; line++)
	{
		store(line, 3, line);
		note_lines(line, 1);
		store(line, 3, line + 1);
		note_lines(line - line % 7, line % 7 + 1);
	}
	fence_noted();
	for (uint64 line = 1000; line < 1000 + lines; line++)
		check(durable_at(line, 3) == line + 1, "line %llu of many", (unsigned long long) line);

	/* a whole page is written back by its flush */
	memset(pool + 20000 * NVM_SIM_LINE, 9, 128 * NVM_SIM_LINE);
	note_lines(20000, 128);
	check(nvm_noted_lines == 0, "a page is not noted");
	nvm_simulate_drain("test-fence");
	check(memcmp(sim_durable + 20000 * NVM_SIM_LINE, pool + 20000 * NVM_SIM_LINE,
				 128 * NVM_SIM_LINE) == 0, "a page");

	/* while nothing is to be deferred, flushes write back */
	store(100, 0, 3);
	note_lines(100, 1);
	nvm_pmem_defer(false);
	check(nvm_noted_lines == 0, "what was noted is written back");
	store(101, 0, 4);
	note_lines(101, 1);
	check(nvm_noted_lines == 0, "not noted");
	nvm_simulate_drain("test-fence");
	check(durable_at(100, 0) == 3 && durable_at(101, 0) == 4, "not deferred");
	nvm_pmem_defer(true);
	passed("lines that a flush notes");
}

static void
test_early_publish(void)
{
	uint64		lines = NVM_SIM_ENTRIES + 10;

	new_pool();
	memset(pool, 1, lines * NVM_SIM_LINE);
	nvm_simulate_write_back(pool, lines * NVM_SIM_LINE);
	check(sim_ctl->early == NVM_SIM_ENTRIES, "early %llu",
		  (unsigned long long) sim_ctl->early);
	check(sim_ctl->area[sim_area].count == 10, "the rest is captured");
	nvm_simulate_drain("test-fence");
	check(memcmp(pool, sim_durable, lines * NVM_SIM_LINE) == 0, "all durable");
	passed("a full capture area is published early");
}

static void
test_growth(void)
{
	new_pool();
	check(ftruncate(pool_fd, POOL_SIZE + 4 * MB) == 0, "ftruncate");
	check(nvm_simulate_grown(POOL_SIZE + 4 * MB), "grown");
	store(POOL_SIZE / 64 + 1000, 0, 5);
	flush_line(POOL_SIZE / 64 + 1000);
	nvm_simulate_drain("test-fence");
	check(durable_at(POOL_SIZE / 64 + 1000, 0) == 5, "durable in the new part");
	passed("growth");
}

/* ----------
 * Several processes
 * ----------
 */
static void
test_no_going_back(void)
{
	int			pipe_to[2];
	int			pipe_from[2];
	char		c = 0;
	pid_t		pid;

	new_pool();
	check(pipe(pipe_to) == 0 && pipe(pipe_from) == 0, "pipe");
	pid = start_child();
	if (pid == 0)
	{
		store(10, 0, 1);
		flush_line(10);
		check(write(pipe_from[1], &c, 1) == 1, "write");
		check(read(pipe_to[0], &c, 1) == 1, "read");
		nvm_simulate_drain("test-fence");
		_exit(0);
	}
	check(read(pipe_from[0], &c, 1) == 1, "read");
	store(10, 1, 2);
	flush_line(10);
	nvm_simulate_drain("test-fence");
	check(durable_at(10, 0) == 1 && durable_at(10, 1) == 2, "the other's store too");
	check(write(pipe_to[1], &c, 1) == 1, "write");
	reap(pid);
	check(durable_at(10, 1) == 2, "the older capture does not come back");
	passed("no going back");
}

/*
 * A process dies while it copies a line into the durable image.
 */
static pid_t
die_while_publishing(uint64 line, uint64 value)
{
	pid_t		pid = start_child();

	if (pid == 0)
	{
		store(line, 0, value);
		store(line, 7, value);
		flush_line(line);
		sim_lines[line] = NVM_SIM_LOCK_MAKE(sim_area, sim_ctl->area[sim_area].count - 1);
		/* half of it */
		((uint64 *) (sim_durable + line * NVM_SIM_LINE))[0] = value;
		kill(getpid(), SIGKILL);
	}
	reap(pid);
	return pid;
}

static void
test_dead_publisher(void)
{
	new_pool();
	die_while_publishing(20, 5);
	check(durable_at(20, 7) == 0, "half a line");
	store(20, 1, 6);
	flush_line(20);
	nvm_simulate_drain("test-fence");
	check(durable_at(20, 0) == 5 && durable_at(20, 1) == 6 &&
		  durable_at(20, 7) == 5, "another process took over");

	/* a restart finds it */
	die_while_publishing(21, 8);
	close_pool();
	open_pool(false);
	check(durable_at(21, 0) == 8 && durable_at(21, 7) == 8, "restart completes");

	/* the image builder finds it */
	die_while_publishing(22, 9);
	store(22, 0, 1);
	store(22, 7, 1);
	close_pool();
	check(build(1, "--mode durable") == 0, "builder");
	check(image_word(22, 0) == 9 && image_word(22, 7) == 9, "builder completes");
	open_pool(true);
	passed("a publisher that died half-way");
}

static void
test_reopen(void)
{
	new_pool();
	store(30, 0, 1);
	close_pool();
	open_pool(false);
	check(durable_at(30, 0) == 0, "without settling the difference stays");
	close_pool();
	open_pool(true);
	check(durable_at(30, 0) == 1, "settling makes it durable");
	store(30, 0, 0);
	close_pool();
	open_pool(true);
	check(durable_at(30, 0) == 0, "also where the working image is a hole");

	/* counters go on, and the word of the line is no obstacle */
	store(30, 0, 4);
	flush_line(30);
	nvm_simulate_drain("test-fence");
	check(durable_at(30, 0) == 4, "after a restart");
	passed("reopen");
}

/*
 * A line that is stored to all the time is captured as it was at one instant,
 * and what was flushed and fenced stays durable whoever else publishes it.
 */
static void
test_concurrent_line(void)
{
	struct timespec start;
	struct timespec now;
	uint64		v;
	pid_t		pid;
	pid_t		publisher;

	new_pool();
	pid = start_child();
	if (pid == 0)
	{
		for (v = 1;; v++)
		{
			store(50, 0, v);
			store(50, 4, v);
			store(50, 7, v);
		}
	}
	publisher = start_child();
	if (publisher == 0)
	{
		for (;;)
		{
			flush_line(51);
			nvm_simulate_drain("test-fence");
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (v = 1;; v++)
	{
		NvmSimCapture *capture;

		store(51, 2, v);
		flush_line(51);
		nvm_simulate_drain("test-fence");
		check(durable_at(51, 2) >= v, "published %llu, then gone",
			  (unsigned long long) v);

		flush_line(50);
		capture = sim_entry(sim_area, 0);
		check(capture->line == 50 &&
			  capture->content[0] >= capture->content[4] &&
			  capture->content[4] >= capture->content[7] &&
			  capture->content[7] + 1 >= capture->content[0], "a line in disorder");
		nvm_simulate_drain("test-fence");
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec - start.tv_sec >= 2)
			break;
	}
	kill(pid, SIGKILL);
	kill(publisher, SIGKILL);
	reap(pid);
	reap(publisher);
	passed("captures of a line in use");
}

/* ----------
 * The image builder
 * ----------
 */
static void
test_builder_choices(void)
{
	bool		seen[5] = {false};
	bool		mixed[9] = {false};
	uint64		seed;
	pid_t		pid;
	int			i;

	new_pool();
	for (i = 0; i < 8; i++)
		store(40, i, 1);
	flush_line(40);
	nvm_simulate_drain("test-fence");

	/* captured twice by somebody who dies before his fence */
	pid = start_child();
	if (pid == 0)
	{
		for (i = 0; i < 8; i++)
			store(40, i, 2);
		flush_line(40);
		for (i = 0; i < 8; i++)
			store(40, i, 3);
		flush_line(40);
		kill(getpid(), SIGKILL);
	}
	reap(pid);
	for (i = 0; i < 8; i++)
		store(40, i, 4);

	/* working and durable agree, but something else may have got out */
	pid = start_child();
	if (pid == 0)
	{
		store(41, 0, 9);
		flush_line(41);
		kill(getpid(), SIGKILL);
	}
	reap(pid);
	store(41, 0, 0);
	close_pool();

	for (seed = 1; seed <= 200; seed++)
	{
		check(build(seed, "--torn none") == 0, "builder");
		for (i = 1; i < 8; i++)
			check(image_word(40, i) == image_word(40, 0), "a state as it was");
		check(image_word(40, 0) >= 1 && image_word(40, 0) <= 4, "one of four");
		seen[image_word(40, 0)] = true;
		if (image_word(41, 0) == 9)
			seen[0] = true;
	}
	for (i = 0; i < 5; i++)
		check(seen[i], "state %d was never chosen", i);

	for (seed = 1; seed <= 300; seed++)
	{
		uint64		first;
		int			older = 0;

		check(build(seed, "--torn suffix") == 0, "builder");
		first = image_word(40, 0);
		while (older < 8 && image_word(40, older) == first)
			older++;
		for (i = older; i < 8; i++)
			check(image_word(40, i) == first + 1, "a suffix of the next state");
		mixed[older] = true;
	}
	for (i = 1; i <= 8; i++)
		check(mixed[i], "no image with %d old words", i);

	check(build(7, "--mode durable") == 0 && image_word(40, 3) == 1, "durable");
	check(build(7, "--mode working") == 0 && image_word(40, 3) == 4, "working");
	open_pool(true);
	passed("choices of the image builder");
}

static void
test_builder_manners(void)
{
	uint64		line;
	uint64		seed;

	new_pool();
	check(build(1, "") == 3, "alive");
	for (line = 0; line < 5000; line++)
		store(line * 13, line % 8, line + 1);
	close_pool();

	/* same seed, same image; most other seeds make another */
	for (seed = 1; seed <= 5; seed++)
	{
		check(build(seed, "") == 0, "build");
		check(shell("cp %s/pool %s/saved", image_directory, image_directory) == 0, "cp");
		check(build(seed, "--log /dev/null") == 0, "build");
		check(shell("cmp -s %s/pool %s/saved", image_directory, image_directory) == 0, "same seed");
		check(build(seed + 100, "") == 0, "build");
		check(shell("cmp -s %s/pool %s/saved", image_directory, image_directory) == 1, "other seed");
	}

	/* the image can be opened, and is what is durable then */
	snprintf(pool_path, sizeof(pool_path), "%s/pool", image_directory);
	open_pool(true);
	check(memcmp(pool, sim_durable, POOL_SIZE) == 0, "settled");
	close_pool();
	snprintf(pool_path, sizeof(pool_path), "%s/pool", directory);

	check(shell("%s %s %s --seed 3 --wait 0 >/dev/null", builder, directory, directory) == 0, "in place");
	check(shell("test -e %s/pool -a ! -e %s/pool.lines", directory, directory) == 0, "in place");
	check(build(3, "") == 4, "no companions");
	check(build(3, "--mode nonsense") == 1, "usage");
	check(shell("%s %s %s >/dev/null 2>&1", builder, directory, image_directory) == 1, "no seed");
	open_pool(true);
	passed("manners of the image builder");
}

/* ----------
 * All together, and a loss of power
 *
 * Each writer has its own word in a line that all share, and three lines:
 * data; a pointer, stored when the data are durable; and a line of two words
 * of which the later one is stored last.  `acked` outlives the crash, like a
 * client.
 * ----------
 */
#define SHARED_LINE		1000
#define DATA_LINE(i)	(2000 + 8 * (i))
#define POINTER_LINE(i) (3000 + 8 * (i))
#define PAIR_LINE(i)	(4000 + 8 * (i))

static void
write_forever(int i, volatile uint64 *acked)
{
	uint64		v;

	for (v = acked[i] + 1;; v++)
	{
		store(DATA_LINE(i), 3, v);
		flush_line(DATA_LINE(i));
		store(SHARED_LINE, i, v);
		flush_line(SHARED_LINE);
		nvm_simulate_drain("test-fence");
		store(POINTER_LINE(i), 0, v);
		store(PAIR_LINE(i), 0, v);
		store(PAIR_LINE(i), 5, v);
		flush_line(PAIR_LINE(i));
		nvm_simulate_write_back(word_at(POINTER_LINE(i), 0), 8);
		/* somebody else's line, as a helper would */
		flush_line(DATA_LINE((i + 1) % WRITERS));
		flush_line(PAIR_LINE((i + 1) % WRITERS));
		nvm_simulate_drain("test-fence");
		acked[i] = v;
	}
}

static void
check_image(const volatile uint64 *acked)
{
	int			i;

	for (i = 0; i < WRITERS; i++)
	{
		uint64		v = acked[i];
		uint64		shared = image_word(SHARED_LINE, i);
		uint64		data = image_word(DATA_LINE(i), 3);
		uint64		pointer = image_word(POINTER_LINE(i), 0);
		uint64		flag = image_word(PAIR_LINE(i), 5);
		uint64		body = image_word(PAIR_LINE(i), 0);

		check(shared >= v && shared <= v + 1, "shared line lost %llu, has %llu",
			  (unsigned long long) v, (unsigned long long) shared);
		check(data >= v && data <= v + 1, "data");
		check(pointer >= v && pointer <= data, "pointer without data");
		check(flag >= v && flag <= body, "last word without the rest");
	}
}

static void
test_power_failure(void)
{
	volatile uint64 *acked;
	pid_t		pids[WRITERS];
	int			round;
	int			status;
	int			i;

	acked = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	check(acked != MAP_FAILED, "mmap");
	new_pool();
	for (round = 0; round < 25; round++)
	{
		struct timespec while_running = {0, (5 + round % 7 * 6) * 1000000L};
		uint64		seed;

		for (i = 0; i < WRITERS; i++)
		{
			pids[i] = start_child();
			if (pids[i] == 0)
				write_forever(i, acked);
		}
		nanosleep(&while_running, NULL);

		/* one dies alone first, the others must not hang for it */
		kill(pids[round % WRITERS], SIGKILL);
		reap(pids[round % WRITERS]);
		nanosleep(&while_running, NULL);
		for (i = 0; i < WRITERS; i++)
			if (i != round % WRITERS)
				kill(pids[i], SIGSTOP);
		for (i = 0; i < WRITERS; i++)
		{
			if (i == round % WRITERS)
				continue;
			kill(pids[i], SIGKILL);
			reap(pids[i]);
		}

		close_pool();
		for (seed = 0; seed < 20; seed++)
		{
			check((status = build(round * 1000 + seed, "")) == 0, "round %d, status %d", round, status);
			check_image(acked);
		}

		/* go on with the last image, or with what SIGKILL left */
		if (round % 3 != 0)
			check(shell("%s %s %s --seed %d --wait 0 >/dev/null", builder, directory, directory, round * 1000 + 19) == 0, "in place");
		open_pool(round % 2 == 0);
	}
	for (i = 0; i < WRITERS; i++)
		check(acked[i] > 0, "writer %d did nothing", i);
	passed("power failures under load");
}

int
main(int argc, char **argv)
{
	if (argc < 2 || argc > 3)
	{
		fprintf(stderr, "usage: test_sim PATH_OF_NVM_CRASHIMAGE [DIRECTORY]\n");
		return 1;
	}
	MyProcPid = getpid();
	builder = argv[1];
	if (argc == 3)
		snprintf(directory, sizeof(directory), "%s", argv[2]);
	else
		snprintf(directory, sizeof(directory), "%s/nvm_test_sim.%d",
				 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", MyProcPid);
	snprintf(image_directory, sizeof(image_directory), "%s/image", directory);
	snprintf(pool_path, sizeof(pool_path), "%s/pool", directory);
	check(mkdir(directory, 0700) == 0, "could not make %s", directory);

	test_capture_and_publish();
	test_noted_lines();
	test_early_publish();
	test_growth();
	test_no_going_back();
	test_dead_publisher();
	test_concurrent_line();
	test_reopen();
	test_builder_choices();
	test_builder_manners();
	test_power_failure();

	close_pool();
	check(shell("rm -rf %s", directory) == 0, "rm");
	return 0;
}
