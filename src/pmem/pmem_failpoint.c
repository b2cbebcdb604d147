/*-------------------------------------------------------------------------
 *
 * pmem_failpoint.c
 *	  Failpoints: named places where a test makes the server fail.
 *
 * nvm.failpoint is a comma-separated list of
 *
 *		name:action[:when]
 *
 * name		the literal given to nvm_drain or NVM_FAILPOINT, or * for each
 * action	crash, power, panic, error, sleep=MILLISECONDS, stop (until SIGCONT), miss, off
 * when		N: on the Nth hit in this process only; N%: with that probability
 *			on each hit; absent: on each hit
 *
 * The hits of a process are counted from the moment the list was set in it.
 * The README says what each action promises and where `error` must not be
 * used.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "access/xlog.h"
#include "common/pg_prng.h"
#include "compat/nvm_compat.h"
#include "miscadmin.h"
#include "pmem/pmem_backend.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/guc.h"

#define FAILPOINT_MAX_NAME		64
#define FAILPOINT_MAX_PROCS		8192

typedef enum FailpointAction
{
	FAILPOINT_OFF,
	FAILPOINT_CRASH,
	FAILPOINT_POWER,
	FAILPOINT_PANIC,
	FAILPOINT_ERROR,
	FAILPOINT_SLEEP,
	FAILPOINT_STOP,
	FAILPOINT_MISS
} FailpointAction;

typedef struct Failpoint
{
	char		name[FAILPOINT_MAX_NAME];
	FailpointAction action;
	int			sleep_ms;
	uint64		nth;			/* 0 = each hit */
	int			percent;		/* 0 = no chance involved */
	uint64		hits;			/* of this process */
} Failpoint;

/* What the check hook hands to the assign hook */
typedef struct FailpointList
{
	int			count;
	Failpoint	point[FLEXIBLE_ARRAY_MEMBER];
} FailpointList;

/* settings */
char	   *nvm_failpoint = NULL;
static int	nvm_failpoint_seed = 0;

bool		nvm_failpoint_armed = false;

static FailpointList *failpoint_list = NULL;

static pg_prng_state failpoint_prng;
static int	failpoint_prng_pid = 0;

/* processes of this server: static, as a crash may be in a critical section */
static pid_t crash_pids[FAILPOINT_MAX_PROCS];
static int	crash_npids;

/* ----------
 * The setting
 * ----------
 */

/*
 * Parse digits at *p, at least one; false when there are none or too many.
 */
static bool
parse_number(char **p, int64 max, int64 *result)
{
	int64		value = 0;

	if (!isdigit((unsigned char) **p))
		return false;
	while (isdigit((unsigned char) **p))
	{
		value = value * 10 + (**p - '0');
		if (value > max)
			return false;
		(*p)++;
	}
	*result = value;
	return true;
}

/*
 * Parse one trimmed element, "name:action[:when]", and write into it on the
 * way. Returns NULL, or what is wrong.
 */
static const char *
parse_failpoint(char *element, Failpoint *fp)
{
	char	   *action = strchr(element, ':');
	char	   *when;
	int64		number;

	memset(fp, 0, sizeof(*fp));
	if (action == NULL || action == element)
		return "Each element must be name:action or name:action:when.";
	*action++ = '\0';
	if (strlcpy(fp->name, element, sizeof(fp->name)) >= sizeof(fp->name))
		return "The name of a failpoint is too long.";

	when = strchr(action, ':');
	if (when != NULL)
		*when++ = '\0';

	if (strcmp(action, "crash") == 0)
		fp->action = FAILPOINT_CRASH;
	else if (strcmp(action, "power") == 0)
		fp->action = FAILPOINT_POWER;
	else if (strcmp(action, "panic") == 0)
		fp->action = FAILPOINT_PANIC;
	else if (strcmp(action, "error") == 0)
		fp->action = FAILPOINT_ERROR;
	else if (strcmp(action, "stop") == 0)
		fp->action = FAILPOINT_STOP;
	else if (strcmp(action, "miss") == 0)
		fp->action = FAILPOINT_MISS;
	else if (strcmp(action, "off") == 0)
		fp->action = FAILPOINT_OFF;
	else if (strncmp(action, "sleep=", 6) == 0)
	{
		char	   *p = action + 6;

		if (!parse_number(&p, 3600 * 1000, &number) || *p != '\0')
			return "\"sleep=\" must be followed by 0 to 3600000 milliseconds.";
		fp->action = FAILPOINT_SLEEP;
		fp->sleep_ms = (int) number;
	}
	else
		return "The action must be crash, power, panic, error, sleep=MILLISECONDS, stop, miss or off.";

	if (when == NULL)
		return NULL;
	if (parse_number(&when, PG_INT32_MAX, &number) && number >= 1)
	{
		if (*when == '\0')
		{
			fp->nth = (uint64) number;
			return NULL;
		}
		if (strcmp(when, "%") == 0 && number <= 100)
		{
			fp->percent = (int) number;
			return NULL;
		}
	}
	return "The third part must be the number of a hit, from 1, or a percentage.";
}

/*
 * Parse the whole list into *list, which has room for every comma + 1.
 */
static const char *
parse_failpoint_list(char *text, FailpointList *list)
{
	char	   *next = text;

	list->count = 0;
	while (next != NULL)
	{
		char	   *element = next;
		char	   *end;
		const char *wrong;

		next = strchr(element, ',');
		if (next != NULL)
			*next++ = '\0';
		while (isspace((unsigned char) *element))
			element++;
		end = element + strlen(element);
		while (end > element && isspace((unsigned char) end[-1]))
			*--end = '\0';
		if (*element == '\0')
			continue;
		wrong = parse_failpoint(element, &list->point[list->count]);
		if (wrong != NULL)
			return wrong;
		if (list->point[list->count].action != FAILPOINT_OFF)
			list->count++;
	}
	return NULL;
}

static bool
check_failpoint(char **newval, void **extra, GucSource source)
{
	FailpointList *list;
	char	   *text;
	char	   *p;
	int			n = 1;
	const char *wrong;

	if (*newval == NULL)
		return true;
	for (p = *newval; *p; p++)
		n += (*p == ',');

	list = NvmGucAlloc(offsetof(FailpointList, point) + n * sizeof(Failpoint));
	if (list == NULL)
		return false;
	text = strdup(*newval);

	if (text == NULL)
	{
		NvmGucFree(list);
		return false;
	}

	wrong = parse_failpoint_list(text, list);
	free(text);
	if (wrong != NULL)
	{
		NvmGucFree(list);
		GUC_check_errdetail("%s", wrong);
		return false;
	}
	*extra = list;
	return true;
}

static void
assign_failpoint(const char *newval, void *extra)
{
	failpoint_list = (FailpointList *) extra;
	nvm_failpoint_armed = (failpoint_list != NULL && failpoint_list->count > 0);
}

static void
assign_failpoint_seed(int newval, void *extra)
{
	failpoint_prng_pid = 0;		/* seeded again at the next use */
}

void
nvm_failpoint_define_settings(void)
{
	nvm_coverage_register();
	DefineCustomIntVariable("nvm.failpoint_seed",
							"Seed of failpoints that fire with a probability.",
							"Each process draws from a sequence of its own.",
							&nvm_failpoint_seed,
							0, 0, INT_MAX,
							PGC_SUSET, GUC_NOT_IN_SAMPLE,
							NULL, assign_failpoint_seed, NULL);

	DefineCustomStringVariable("nvm.failpoint",
							   "Places where the server is to fail, for tests.",
							   "A list of name:action[:when]; actions are crash, power, panic, error, sleep=MILLISECONDS, stop, miss and off.",
							   &nvm_failpoint,
							   "",
							   PGC_SUSET, GUC_NOT_IN_SAMPLE,
							   check_failpoint, assign_failpoint, NULL);
}

/* ----------
 * Loss of all processes
 * ----------
 */

/*
 * Note pid, and stop it.  Returns true if it is new.
 */
static bool
crash_stop(pid_t pid)
{
	int			i;

	if (pid <= 1 || pid == MyProcPid)
		return false;
	for (i = 0; i < crash_npids; i++)
		if (crash_pids[i] == pid)
			return false;
	if (crash_npids == FAILPOINT_MAX_PROCS)
		return false;
	crash_pids[crash_npids++] = pid;
	(void) kill(pid, SIGSTOP);
	return true;
}

/*
 * Read a short file of /proc into buf, NULs becoming spaces.
 */
static bool
read_proc(int pid, const char *what, char *buf, int size)
{
	char		path[64];
	int			fd;
	int			n;
	int			i;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, what);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = (int) read(fd, buf, size - 1);
	close(fd);
	if (n <= 0)
		return false;
	for (i = 0; i < n; i++)
		if (buf[i] == '\0')
			buf[i] = ' ';
	buf[n] = '\0';
	return true;
}

/*
 * Stop children of the postmaster that /proc knows and ProcGlobal does not:
 * sessions that are still starting.  The logger is spared: it holds nothing of
 * ours, ends by itself, and writes out the line that says why all this
 * happened.  Returns the number of new ones.
 */
static int
crash_stop_children(pid_t parent)
{
	DIR		   *dir = opendir("/proc");
	struct dirent *entry;
	int			found = 0;

	if (dir == NULL)
		return 0;
	while ((entry = readdir(dir)) != NULL)
	{
		char		buf[1024];
		char	   *p;
		int			pid = atoi(entry->d_name);
		int			ppid;

		if (pid <= 1 || !read_proc(pid, "stat", buf, sizeof(buf)))
			continue;
		/* pid (command) state ppid; the command may hold anything */
		p = strrchr(buf, ')');
		if (p == NULL || sscanf(p, ") %*c %d", &ppid) != 1 || ppid != parent)
			continue;
		if (read_proc(pid, "cmdline", buf, sizeof(buf)) &&
			strstr(buf, ": logger") != NULL)
			continue;
		if (crash_stop(pid))
			found++;
	}
	closedir(dir);
	return found;
}

/*
 * One process alone ends the server.  Two that hit a failpoint at once would stop the
 * postmaster and each other, and nobody would be left to kill them.
 */
static void
crash_claim(void)
{
	int			fd = open("postmaster.pid", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0)
		return;
	for (;;)
		pause();
}

/*
 * Stop every process of the server but this one.
 */
static void
crash_stop_all(void)
{
	crash_claim();
	crash_npids = 0;
	if (IsUnderPostmaster || IsPostmasterEnvironment)
	{
		pid_t		parent = IsUnderPostmaster ? PostmasterPid : MyProcPid;

		/* the postmaster first: from here on there are no new processes */
		crash_stop(parent);
		if (ProcGlobal != NULL && ProcGlobal->allProcs != NULL)
			for (int i = 0; i < (int) ProcGlobal->allProcCount; i++)
				crash_stop(ProcGlobal->allProcs[i].pid);
		while (crash_stop_children(parent) > 0)
			;
	}
}

/*
 * Kill all processes that were stopped, and ourselves.  Also a signal handler.
 */
static void
crash_kill_all(int signo)
{
	for (int i = 0; i < crash_npids; i++)
		(void) kill(crash_pids[i], SIGKILL);
	(void) kill(MyProcPid, SIGKILL);
	for (;;)
		pause();
}

/*
 * End the whole server at once.  All processes are stopped first and killed
 * then, so that none acknowledges anything while others are gone.  Does not
 * return.
 */
static void
crash_server(void)
{
	crash_stop_all();
	crash_kill_all(0);
}

/*
 * Write the WAL that is in the buffers, as any process might have done at any
 * moment.  All others are stopped.  The one that is about to insert a record,
 * or holds the lock, will not go on, so we wait for a second only.
 */
static void
crash_write_wal(void)
{
	static const struct itimerval patience = {{0, 0}, {1, 0}};
	struct sigaction act;
	sigset_t	mask;

	/* also if it PANICs: no process may be left behind, stopped */
	memset(&act, 0, sizeof(act));
	act.sa_handler = crash_kill_all;
	(void) sigaction(SIGALRM, &act, NULL);
	(void) sigaction(SIGABRT, &act, NULL);
	sigemptyset(&mask);
	sigaddset(&mask, SIGALRM);
	(void) sigprocmask(SIG_UNBLOCK, &mask, NULL);
	(void) setitimer(ITIMER_REAL, &patience, NULL);

	XLogFlush(NvmWalEnd());
}

/* ----------
 * Hits
 * ----------
 */

/*
 * Say so in the server's log.  Not by elog, which may allocate, and may have a
 * client to talk to.
 */
static void
log_hit(const char *name, const char *more)
{
	char		line[FAILPOINT_MAX_NAME + 128];

	snprintf(line, sizeof(line), "LOG:  failpoint %s hit, pid %d%s\n",
			 name, MyProcPid, more);
	if (write(STDERR_FILENO, line, strlen(line)) < 0)
		return;
}

/*
 * As crash_server, for a test that will pair what is left with any WAL that
 * there could be.  Says how far the WAL had been flushed, and leaves all of it
 * behind.
 */
static void
lose_power(const char *name)
{
	char		more[64] = "";

	/* what others would do from here on has not happened */
	nvm_failpoint_armed = false;
	failpoint_list = NULL;
	crash_stop_all();
	if (IsUnderPostmaster && MyProc != NULL && !RecoveryInProgress())
	{
		XLogRecPtr	flushed;

		/* the kernel may not have stopped every process yet */
		pg_usleep(2000);
		flushed = GetFlushRecPtr(NULL);
		snprintf(more, sizeof(more), ", WAL flushed to %X/%X", LSN_FORMAT_ARGS(flushed));
	}
	log_hit(name, more);
	if (more[0] != '\0' && !LWLockHeldByMe(WALWriteLock))
		crash_write_wal();
	crash_kill_all(0);
}

/*
 * Sleep that long even if signals arrive.
 */
static void
sleep_through(int ms)
{
	struct timespec left = {ms / 1000, (ms % 1000) * 1000000L};

	while (nanosleep(&left, &left) != 0 && errno == EINTR)
		;
}

static bool
chance(int percent)
{
	if (failpoint_prng_pid != MyProcPid)
	{
		pg_prng_seed(&failpoint_prng,
					 ((uint64) nvm_failpoint_seed << 32) ^ (uint64) MyProcPid);
		failpoint_prng_pid = MyProcPid;
	}
	return pg_prng_double(&failpoint_prng) * 100.0 < percent;
}

static void
fire(Failpoint *fp, const char *name)
{
	switch (fp->action)
	{
		case FAILPOINT_CRASH:
			log_hit(name, "");
			nvm_coverage_write();
			crash_server();
			break;
		case FAILPOINT_POWER:
			nvm_coverage_write();
			lose_power(name);
			break;
		case FAILPOINT_PANIC:
			nvm_coverage_write();
			ereport(PANIC,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("failpoint %s hit", name)));
			break;
		case FAILPOINT_ERROR:
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("failpoint %s hit", name)));
			break;
		case FAILPOINT_SLEEP:
			log_hit(name, "");
			if (fp->sleep_ms > 0)	/* 0: only the name is wanted */
				nvm_coverage_write();
			sleep_through(fp->sleep_ms);
			break;
		case FAILPOINT_STOP:
			log_hit(name, "");
			nvm_coverage_write();
			(void) kill(MyProcPid, SIGSTOP);
			break;
		case FAILPOINT_MISS:
		case FAILPOINT_OFF:
			break;
	}
}

/*
 * A failpoint was reached.  Returns unless its action says otherwise.
 */
void
nvm_failpoint_hit(const char *name)
{
	int			i;

	if (failpoint_list == NULL)
		return;
	for (i = 0; i < failpoint_list->count; i++)
	{
		Failpoint  *fp = &failpoint_list->point[i];

		if (fp->action == FAILPOINT_MISS ||
			(strcmp(fp->name, name) != 0 && strcmp(fp->name, "*") != 0))
			continue;
		fp->hits++;
		if (fp->nth != 0 && fp->hits != fp->nth)
			continue;
		if (fp->percent != 0 && !chance(fp->percent))
			continue;
		fire(fp, name);
	}
}

/*
 * Is a step to be left out?  Of a list that says so once with a number or a chance,
 * these count as for a hit.
 */
bool
nvm_failpoint_misses(const char *name)
{
	if (failpoint_list == NULL)
		return false;
	for (int i = 0; i < failpoint_list->count; i++)
	{
		Failpoint  *fp = &failpoint_list->point[i];

		if (fp->action != FAILPOINT_MISS || strcmp(fp->name, name) != 0)
			continue;
		fp->hits++;
		if ((fp->nth == 0 || fp->hits == fp->nth) &&
			(fp->percent == 0 || chance(fp->percent)))
			return true;
	}
	return false;
}
