/*-------------------------------------------------------------------------
 *
 * nvm_poolcheck.c
 *	  Check a pool whose server is down.
 *
 * README.md says how it shares its checks with the server.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "poolcheck.h"

#include <getopt.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "datatype/timestamp.h"

bool		verbose = false;
bool		show_progress = false;

static const char *progname;

static void
usage(void)
{
	printf("%s checks a persistent-memory pool of pg_nvm whose server is down.\n\n", progname);
	printf("Usage:\n");
	printf("  %s [OPTION]... [DATADIR]\n", progname);
	printf("\nWhere the pool is:\n");
	printf(" [-D, --pgdata=]DATADIR  data directory of the server, whose settings are asked\n");
	printf("  -P, --pool=DIRECTORY   directory of the pool itself\n");
	printf("\nOptions:\n");
	printf("  -d, --describe         show what the header says, and check nothing else\n");
	printf("  -p, --progress         show progress\n");
	printf("  -v, --verbose          show what is checked, and what the next start repairs\n");
	printf("  -V, --version          output version information, then exit\n");
	printf("  -?, --help             show this help, then exit\n");
	printf("\nIf neither is named, the environment variable PGDATA is used.\n");
	printf("\nThe pool is only read, and none is read that a server holds.  What is wrong goes to\n"
		   "standard output, a line for each finding: where, and what.  What the next start of the\n"
		   "server repairs by itself, after a crash, is not wrong.\n");
	printf("\nExit status: 0 if nothing is wrong, 1 if the pool could not be checked, 2 if it is damaged.\n");
}

/* ---- where the pool is ---- */

/*
 * The first line that "postgres -D DATADIR -C SETTING" prints; false if it
 * fails.
 */
static bool
ask_postgres(const char *postgres, const char *data_dir, const char *setting,
			 bool quiet, char *value, int size)
{
	int			fds[2];
	int			status;
	pid_t		pid;
	FILE	   *answer;

	/* so that the child has nothing to write */
	(void) fflush(NULL);
	if (pipe(fds) != 0 || (pid = fork()) < 0)
		pg_fatal("could not start \"%s\": %m", postgres);
	if (pid == 0)
	{
		if (dup2(fds[1], STDOUT_FILENO) < 0 ||
			(quiet && freopen("/dev/null", "w", stderr) == NULL))
			_exit(1);
		close(fds[0]);
		close(fds[1]);
		execl(postgres, postgres, "-D", data_dir, "-C", setting, (char *) NULL);
		_exit(1);
	}
	close(fds[1]);
	answer = fdopen(fds[0], "r");
	value[0] = '\0';
	if (answer == NULL || fgets(value, size, answer) == NULL)
		value[0] = '\0';
	if (answer != NULL)
		(void) fclose(answer);
	value[strcspn(value, "\r\n")] = '\0';
	return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/*
 * The directory of the pool that the server with this data directory has, and
 * the file's name in it.
 */
static void
find_pool(const char *argv0, const char *data_dir, char *dir, const char **name)
{
	char		self[MAXPGPATH];
	char		postgres[MAXPGPATH];
	char		value[MAXPGPATH];
	char		real_data_dir[MAXPGPATH];
	struct stat st;

	if (stat(data_dir, &st) != 0)
		pg_fatal("could not access directory \"%s\": %m", data_dir);
	if (find_my_exec(argv0, self) < 0)
		strlcpy(self, argv0, sizeof(self));
	strlcpy(postgres, self, sizeof(postgres));
	get_parent_directory(postgres);
	strlcat(postgres, "/postgres", sizeof(postgres));

	/* in a directory that is a server's, but for the configuration, too */
	if (!ask_postgres(postgres, data_dir, "data_directory", false, real_data_dir, sizeof(real_data_dir)))
	{
		pg_log_error("could not find out the settings of the server in \"%s\"", data_dir);
		pg_log_error_hint("Run %s as the server's user, or name the directory of the pool with --pool.",
						  progname);
		exit(POOLCHECK_FAILED);
	}
	/* unknown where nobody has set it */
	if (!ask_postgres(postgres, data_dir, "nvm.pool_directory", true, value, sizeof(value)) ||
		value[0] == '\0')
		strlcpy(value, NVM_POOL_DIRECTORY, sizeof(value));
	if (real_data_dir[0] == '\0')
		strlcpy(real_data_dir, data_dir, sizeof(real_data_dir));
	nvm_pool_directory_name(dir, value, real_data_dir);
	*name = nvm_pool_file_name(dir, real_data_dir);
}

/* ---- --describe ---- */

static void
describe(const PoolFile *file, const Pool *pool)
{
	const NvmPoolHeader *h = &file->copy[nvm_header_choose(file->copy, file->problem)];
	time_t		created = (time_t) ((int64) h->created / USECS_PER_SEC) +
	(time_t) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY;
	char		when[128];
	uint32		nslots = 0;
	uint32		losers = 0;
	uint32		doubts = 0;
	uint32		gaps = 0;

	if (strftime(when, sizeof(when), "%c", localtime(&created)) == 0)
		strlcpy(when, "unknown", sizeof(when));
	for (uint32 n = 0; n < pool->nslots; n++)
	{
		nslots++;
		losers += pool->slot[n].loser != 0;
		doubts += pool->slot[n].doubt != 0;
		for (int i = 0; i < NVM_SLOT_GAPS; i++)
			gaps += pool->slot[n].gap[i] != 0;
	}
	printf("Pool file:                            %s\n", file->path);
	printf("Pool state:                           %s\n",
		   h->incarnation == 0 ? "never opened" : h->clean ? "closed" : "in use, or left by a crash");
	printf("Pool format version:                  %u\n", h->version);
	printf("Pool format readable from version:    %u\n", h->min_version);
	printf("Pool identifier:                      ");
	for (int i = 0; i < 16; i++)
		printf("%02x%s", h->uuid[i], i == 3 || i == 5 || i == 7 || i == 9 ? "-" : "");
	printf("\nDatabase system identifier:           " UINT64_FORMAT "\n", (uint64) h->system_identifier);
	printf("Pool created:                         %s\n", when);
	printf("PostgreSQL major version:             %u\n", h->pg_major);
	printf("Incarnation:                          %u\n", h->incarnation);
	printf("Incarnations that ended in a crash:   %u%s", h->ncrashed, h->ncrashed ? " (" : "");
	for (uint32 i = 0; i < h->ncrashed; i++)
		printf("%s%u", i ? ", " : "", h->crashed[i]);
	printf("%s\n", h->ncrashed ? ")" : "");
	printf("All below may have crashed:           %u\n", h->crashed_floor);
	printf("Checkpoint location:                  %X/%X\n",
		   (uint32) (h->wal_position >> 32), (uint32) h->wal_position);
	printf("Promised transaction ids:             " UINT64_FORMAT "\n", (uint64) h->xid_promise);
	printf("Compatible features:                  " UINT64_FORMAT "\n", (uint64) h->features_compat);
	printf("Incompatible features:                " UINT64_FORMAT "\n", (uint64) h->features_incompat);
	printf("Unit size:                            %u\n", h->unit_size);
	printf("Units in a chunk:                     %u\n", h->chunk_units);
	printf("Chunks:                               " UINT64_FORMAT "\n", (uint64) h->nchunks);
	printf("Size of the pool:                     " UINT64_FORMAT "\n", (uint64) h->nchunks * NVM_CHUNK_SIZE);
	printf("Size used:                            " UINT64_FORMAT "\n", pool->used_units * NVM_UNIT_SIZE);
	printf("Size of the file:                     " UINT64_FORMAT "\n", file->size);
	printf("Storages of tables:                   %u\n", pool->ntables);
	printf("Storages of indexes:                  %u\n", pool->nindexes);
	printf("Commit slots used:                    %u of %u\n", nslots, h->max_slots);
	printf("Transactions in the gap:              %u\n", gaps);
	printf("Transactions undecided:               %u\n", losers);
	printf("Transactions in doubt, or prepared:   %u\n", doubts);
}

/* ---- main ---- */

static int
result(const PoolFile *file, bool describe_only)
{
	if (ferror(stdout) || fflush(stdout) != 0)
		pg_fatal("could not write to standard output: %m");
	if (findings() > 0)
	{
		pg_log_error("NVM pool \"%s\" is damaged: " UINT64_FORMAT " finding%s",
					 file->path, findings(), findings() == 1 ? "" : "s");
		return POOLCHECK_DAMAGED;
	}
	if (verbose && !describe_only)
		pg_log_info("NVM pool \"%s\": nothing is wrong", file->path);
	return POOLCHECK_SOUND;
}

int
main(int argc, char **argv)
{
	static const struct option long_options[] = {
		{"pgdata", required_argument, NULL, 'D'},
		{"pool", required_argument, NULL, 'P'},
		{"describe", no_argument, NULL, 'd'},
		{"progress", no_argument, NULL, 'p'},
		{"verbose", no_argument, NULL, 'v'},
		{"version", no_argument, NULL, 'V'},
		{"help", no_argument, NULL, '?'},
		{NULL, 0, NULL, 0}
	};
	const char *data_dir = NULL;
	const char *pool_dir = NULL;
	bool		describe_only = false;
	char		dir[MAXPGPATH];
	PoolFile	file;
	NvmPoolHeader header;
	Pool	   *pool;
	const char *name = NVM_POOL_FILE;
	int			c;

	pg_logging_init(argv[0]);
	set_pglocale_pgservice(argv[0], PG_TEXTDOMAIN("nvm_poolcheck"));
	progname = get_progname(argv[0]);
	if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-?") == 0))
	{
		usage();
		return POOLCHECK_SOUND;
	}
	while ((c = getopt_long(argc, argv, "D:P:dpvV", long_options, NULL)) != -1)
	{
		switch (c)
		{
			case 'D':
				data_dir = optarg;
				break;
			case 'P':
				pool_dir = optarg;
				break;
			case 'd':
				describe_only = true;
				break;
			case 'p':
				show_progress = true;
				break;
			case 'v':
				verbose = true;
				break;
			case 'V':
				printf("nvm_poolcheck (pg_nvm) %s, for PostgreSQL %s\n", NVM_VERSION, PG_MAJORVERSION);
				return POOLCHECK_SOUND;
			default:
				pg_log_error_hint("Try \"%s --help\" for more information.", progname);
				return POOLCHECK_FAILED;
		}
	}
	if (data_dir == NULL && pool_dir == NULL && optind < argc)
		data_dir = argv[optind++];
	if (optind < argc)
	{
		pg_log_error("too many command-line arguments (first is \"%s\")", argv[optind]);
		pg_log_error_hint("Try \"%s --help\" for more information.", progname);
		return POOLCHECK_FAILED;
	}
	if (data_dir != NULL && pool_dir != NULL)
		pg_fatal("options -D/--pgdata and -P/--pool cannot be used together");
	if (data_dir == NULL && pool_dir == NULL)
		data_dir = getenv("PGDATA");
	if (data_dir == NULL && pool_dir == NULL)
	{
		pg_log_error("neither a data directory nor a pool was named");
		pg_log_error_hint("Try \"%s --help\" for more information.", progname);
		return POOLCHECK_FAILED;
	}

	if (pool_dir != NULL)
		strlcpy(dir, pool_dir, sizeof(dir));
	else
		find_pool(argv[0], data_dir, dir, &name);
	pool_file_open(&file, dir, name);
	if (!pool_file_header(&file, &header))
		return result(&file, describe_only);
	nvm_pool_set_uuid(header.uuid);
	pool_file_map(&file, header.nchunks * NVM_CHUNK_SIZE);

	pool = calloc(1, sizeof(Pool));
	if (pool == NULL)
		pg_fatal("out of memory");
	pool_scan(pool, &header, file.base);
	if (describe_only)
		describe(&file, pool);
	else
		pool_check_storages(pool);
	return result(&file, describe_only);
}
