/*-------------------------------------------------------------------------
 *
 * ackclient.c
 *	  Load client that remembers, outside the server, what was acknowledged.
 *
 * Duties:
 *	- init: create the tables in which each transaction leaves its id, beside
 *	  the tables that pgbench -i made;
 *	- run: N processes of TPC-B-like transactions, each carrying a unique id
 *	  (run, client, seq).  An id is written to the log file only after the
 *	  reply to COMMIT arrived, so that the log is a lower bound of what a
 *	  crashed server has to remember;
 *	- verify: compare log and tables after a restart.
 *
 * The log has a line for each transaction whose fate the client knows:
 *
 *		C run client seq		COMMIT was acknowledged
 *		A run client seq		rolled back, or refused with an error
 *
 * After a crash every C must be there and no A may be; of each client of
 * each run at most one more transaction, the next in sequence, whose reply
 * was lost.
 *
 * In mode "mixed" the transaction also writes an ordinary heap table and
 * draws from a sequence; both must agree with the first table afterwards.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libpq-fe.h"

typedef struct Options
{
	const char *conninfo;
	const char *logfile;
	const char *table_am;		/* NULL: the server's default */
	int			clients;
	double		seconds;
	int			run;
	int			abort_percent;
	unsigned	seed;
	bool		mixed;
} Options;

/* What a client process tells its parent, in shared memory */
typedef struct ClientStats
{
	long		committed;
	long		aborted;
	long		errors;			/* refused by the server with an error */
	int			lost;			/* the connection went away */
	int			failed;			/* something that should not happen */
} ClientStats;

/* An id, and what the log says about it */
typedef struct LoggedId
{
	long		run;
	long		client;
	long		seq;
	char		fate;
} LoggedId;

static double
now_seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

static void
die(const char *what, const char *detail)
{
	fprintf(stderr, "ackclient: %s: %s\n", what, detail);
	exit(2);
}

static PGconn *
connect_or_die(const char *conninfo)
{
	PGconn	   *conn = PQconnectdb(conninfo);

	if (PQstatus(conn) != CONNECTION_OK)
		die("could not connect", PQerrorMessage(conn));
	return conn;
}

static void
exec_or_die(PGconn *conn, const char *sql)
{
	PGresult   *res = PQexec(conn, sql);
	ExecStatusType status = PQresultStatus(res);

	if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
		die(sql, PQerrorMessage(conn));
	PQclear(res);
}

/* One integer that a query returns */
static long
query_long(PGconn *conn, const char *sql)
{
	PGresult   *res = PQexec(conn, sql);
	long		value;

	if (PQresultStatus(res) != PGRES_TUPLES_OK || PQntuples(res) != 1)
		die(sql, PQerrorMessage(conn));
	value = strtol(PQgetvalue(res, 0, 0), NULL, 10);
	PQclear(res);
	return value;
}

/*-------------------------------------------------------------------------
 * init
 *-------------------------------------------------------------------------
 */
static int
do_init(const Options *opt)
{
	PGconn	   *conn = connect_or_die(opt->conninfo);
	char		sql[512];

	exec_or_die(conn, "SET client_min_messages = warning");
	exec_or_die(conn, "DROP TABLE IF EXISTS ack, ack_heap");
	exec_or_die(conn, "DROP SEQUENCE IF EXISTS ack_seq");

	/*
	 * the index of an nvm table lies in the pool, too: no WAL of its makes a
	 * transaction mixed
	 */
	snprintf(sql, sizeof(sql),
			 "CREATE TABLE ack (run int, client int, seq bigint, delta int, "
			 "drawn bigint, PRIMARY KEY (run, client, seq)) %s %s",
			 opt->table_am ? "USING" : "", opt->table_am ? opt->table_am : "");
	exec_or_die(conn, sql);
	exec_or_die(conn, "CREATE TABLE ack_heap (run int, client int, seq bigint, "
				"PRIMARY KEY (run, client, seq)) USING heap");
	exec_or_die(conn, "CREATE SEQUENCE ack_seq");
	PQfinish(conn);
	return 0;
}

/*-------------------------------------------------------------------------
 * run
 *-------------------------------------------------------------------------
 */
static void
prepare_or_die(PGconn *conn, const char *name, const char *sql)
{
	PGresult   *res = PQprepare(conn, name, sql, 0, NULL);

	if (PQresultStatus(res) != PGRES_COMMAND_OK)
		die(sql, PQerrorMessage(conn));
	PQclear(res);
}

static void
prepare_statements(PGconn *conn, const Options *opt)
{
	prepare_or_die(conn, "account",
				   "UPDATE pgbench_accounts SET abalance = abalance + $2::int "
				   "WHERE aid = $1::int");
	prepare_or_die(conn, "read",
				   "SELECT abalance FROM pgbench_accounts WHERE aid = $1::int");
	prepare_or_die(conn, "teller",
				   "UPDATE pgbench_tellers SET tbalance = tbalance + $2::int "
				   "WHERE tid = $1::int");
	prepare_or_die(conn, "branch",
				   "UPDATE pgbench_branches SET bbalance = bbalance + $2::int "
				   "WHERE bid = $1::int");
	prepare_or_die(conn, "history",
				   "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) "
				   "VALUES ($1::int, $2::int, $3::int, $4::int, now())");
	prepare_or_die(conn, "ack",
				   opt->mixed ?
				   "INSERT INTO ack VALUES ($1::int, $2::int, $3::bigint, "
				   "$4::int, nextval('ack_seq'))" :
				   "INSERT INTO ack VALUES ($1::int, $2::int, $3::bigint, "
				   "$4::int, NULL)");
	prepare_or_die(conn, "ack_heap",
				   "INSERT INTO ack_heap VALUES ($1::int, $2::int, $3::bigint)");
	prepare_or_die(conn, "begin", "BEGIN");
	prepare_or_die(conn, "commit", "COMMIT");
}

/* Run a prepared statement with integer parameters; false if it failed */
static bool
run_statement(PGconn *conn, const char *name, int nparams, const long *params,
			  const char *expect)
{
	char		digits[4][24];
	const char *values[4];
	PGresult   *res;
	ExecStatusType status;
	bool		ok;

	for (int i = 0; i < nparams; i++)
	{
		snprintf(digits[i], sizeof(digits[i]), "%ld", params[i]);
		values[i] = digits[i];
	}
	res = PQexecPrepared(conn, name, nparams, values, NULL, NULL, 0);
	status = PQresultStatus(res);
	ok = (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK) &&
		(expect == NULL || strcmp(PQcmdStatus(res), expect) == 0);
	if (!ok && PQstatus(conn) == CONNECTION_OK)
		fprintf(stderr, "ackclient: %s: %s%s", name, PQcmdStatus(res),
				*PQerrorMessage(conn) ? PQerrorMessage(conn) : "\n");
	PQclear(res);
	return ok;
}

/* The statements of one transaction up to, not including, its end */
static bool
transaction_body(PGconn *conn, const Options *opt, long scale, int client,
				 long seq, unsigned *seed)
{
	long		aid = 1 + (long) ((double) rand_r(seed) / ((double) RAND_MAX + 1) *
								  100000.0 * scale);
	long		tid = 1 + rand_r(seed) % (10 * scale);
	long		bid = 1 + rand_r(seed) % scale;
	long		delta = rand_r(seed) % 10001 - 5000;
	long		account[] = {aid, delta};
	long		teller[] = {tid, delta};
	long		branch[] = {bid, delta};
	long		history[] = {tid, bid, aid, delta};
	long		ack[] = {opt->run, client, seq, delta};

	return run_statement(conn, "begin", 0, NULL, "BEGIN") &&
		run_statement(conn, "account", 2, account, "UPDATE 1") &&
		run_statement(conn, "read", 1, account, "SELECT 1") &&
		run_statement(conn, "teller", 2, teller, "UPDATE 1") &&
		run_statement(conn, "branch", 2, branch, "UPDATE 1") &&
		run_statement(conn, "history", 4, history, "INSERT 0 1") &&
		run_statement(conn, "ack", 4, ack, "INSERT 0 1") &&
		(!opt->mixed ||
		 run_statement(conn, "ack_heap", 3, ack, "INSERT 0 1"));
}

/* One write(2) a line: what a reader of the file sees is whole lines */
static void
log_fate(int logfd, char fate, const Options *opt, int client, long seq)
{
	char		line[80];
	int			len = snprintf(line, sizeof(line), "%c %d %d %ld\n", fate,
							   opt->run, client, seq);

	if (write(logfd, line, len) != len)
		die("could not write the log", strerror(errno));
}

static void
client_loop(const Options *opt, int client, int logfd, ClientStats *stats)
{
	unsigned	seed = opt->seed * 7919 + opt->run * 104729 + client;
	double		end = now_seconds() + opt->seconds;
	PGconn	   *conn = connect_or_die(opt->conninfo);
	long		scale = query_long(conn, "SELECT count(*) FROM pgbench_branches");
	long		seq = 0;

	prepare_statements(conn, opt);
	while (now_seconds() < end)
	{
		bool		wants_abort = rand_r(&seed) % 100 < opt->abort_percent;

		seq++;
		if (transaction_body(conn, opt, scale, client, seq, &seed) &&
			!wants_abort &&
			run_statement(conn, "commit", 0, NULL, "COMMIT"))
		{
			log_fate(logfd, 'C', opt, client, seq);
			stats->committed++;
			continue;
		}
		if (PQstatus(conn) != CONNECTION_OK)
		{
			stats->lost = 1;	/* fate unknown: no line */
			return;
		}
		if (!wants_abort)
			stats->errors++;
		PQclear(PQexec(conn, "ROLLBACK"));
		if (PQstatus(conn) != CONNECTION_OK)
		{
			stats->lost = 1;
			return;
		}
		log_fate(logfd, 'A', opt, client, seq);
		stats->aborted++;
	}
	PQfinish(conn);
}

static int
do_run(const Options *opt)
{
	ClientStats *stats = mmap(NULL, opt->clients * sizeof(ClientStats),
							  PROT_READ | PROT_WRITE,
							  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int			logfd = open(opt->logfile, O_WRONLY | O_CREAT | O_APPEND, 0600);
	double		start = now_seconds();
	double		elapsed;
	ClientStats sum = {0};

	if (stats == MAP_FAILED)
		die("mmap", strerror(errno));
	if (logfd < 0)
		die(opt->logfile, strerror(errno));
	fflush(NULL);
	for (int i = 0; i < opt->clients; i++)
	{
		pid_t		pid = fork();

		if (pid < 0)
			die("fork", strerror(errno));
		if (pid == 0)
		{
			client_loop(opt, i, logfd, &stats[i]);
			_exit(0);
		}
	}
	for (;;)
	{
		int			status;
		pid_t		pid = wait(&status);

		if (pid < 0)
			break;
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
			sum.failed++;
	}
	elapsed = now_seconds() - start;
	for (int i = 0; i < opt->clients; i++)
	{
		sum.committed += stats[i].committed;
		sum.aborted += stats[i].aborted;
		sum.errors += stats[i].errors;
		sum.lost += stats[i].lost;
	}
	printf("acknowledged=%ld rolled_back=%ld errors=%ld lost_connections=%d "
		   "failed_clients=%d seconds=%.3f tps=%.1f\n",
		   sum.committed, sum.aborted, sum.errors, sum.lost, sum.failed,
		   elapsed, sum.committed / elapsed);
	return sum.failed ? 2 : 0;
}

/*-------------------------------------------------------------------------
 * verify
 *-------------------------------------------------------------------------
 */
static int
compare_ids(const void *a, const void *b)
{
	const LoggedId *x = a;
	const LoggedId *y = b;

	if (x->run != y->run)
		return x->run < y->run ? -1 : 1;
	if (x->client != y->client)
		return x->client < y->client ? -1 : 1;
	if (x->seq != y->seq)
		return x->seq < y->seq ? -1 : 1;
	return 0;
}

static LoggedId *
read_log(const char *path, long *count)
{
	FILE	   *f = fopen(path, "r");
	long		size = 1024;
	LoggedId   *ids = malloc(size * sizeof(LoggedId));
	char		line[128];

	if (f == NULL)
		die(path, strerror(errno));
	*count = 0;
	while (fgets(line, sizeof(line), f) != NULL)
	{
		LoggedId	id;

		if (sscanf(line, "%c %ld %ld %ld", &id.fate, &id.run, &id.client,
				   &id.seq) != 4)
			die("malformed line in the log", line);
		if (*count == size)
			ids = realloc(ids, (size *= 2) * sizeof(LoggedId));
		if (ids == NULL)
			die("memory", strerror(errno));
		ids[(*count)++] = id;
	}
	fclose(f);
	qsort(ids, *count, sizeof(LoggedId), compare_ids);
	return ids;
}

/* The last logged sequence number of a client in a run, 0 if it has none */
static long
last_logged(const LoggedId *ids, long count, long run, long client)
{
	long		low = 0;
	long		high = count;
	LoggedId	key = {run, client, INT64_MAX, 0};

	while (low < high)
	{
		long		mid = (low + high) / 2;

		if (compare_ids(&ids[mid], &key) <= 0)
			low = mid + 1;
		else
			high = mid;
	}
	if (low > 0 && ids[low - 1].run == run && ids[low - 1].client == client)
		return ids[low - 1].seq;
	return 0;
}

/* Merge log and table; both are in order of (run, client, seq) */
static int
verify_ids(PGconn *conn, const LoggedId *ids, long count)
{
	PGresult   *res = PQexec(conn, "SELECT run, client, seq FROM ack "
							 "ORDER BY run, client, seq");
	long		rows;
	long		next = 0;
	long		acknowledged = 0;
	long		missing = 0;
	long		resurrected = 0;
	long		in_flight = 0;
	long		unexplained = 0;

	if (PQresultStatus(res) != PGRES_TUPLES_OK)
		die("reading ack", PQerrorMessage(conn));
	rows = PQntuples(res);
	for (long row = 0; row <= rows; row++)
	{
		LoggedId	here = {0};
		int			order = -1;

		if (row < rows)
		{
			here.run = strtol(PQgetvalue(res, row, 0), NULL, 10);
			here.client = strtol(PQgetvalue(res, row, 1), NULL, 10);
			here.seq = strtol(PQgetvalue(res, row, 2), NULL, 10);
		}
		/* what the log has before this row is not in the table */
		while (next < count &&
			   (row == rows || (order = compare_ids(&ids[next], &here)) < 0))
		{
			if (ids[next].fate == 'C')
			{
				acknowledged++;
				if (missing++ < 10)
					printf("missing: run %ld client %ld seq %ld\n",
						   ids[next].run, ids[next].client, ids[next].seq);
			}
			next++;
		}
		if (row == rows)
			break;
		if (next < count && order == 0)
		{
			if (ids[next].fate == 'C')
				acknowledged++;
			else if (resurrected++ < 10)
				printf("resurrected: run %ld client %ld seq %ld\n",
					   here.run, here.client, here.seq);
			next++;
		}
		else if (here.seq == last_logged(ids, count, here.run, here.client) + 1)
			in_flight++;
		else if (unexplained++ < 10)
			printf("unexplained: run %ld client %ld seq %ld\n",
				   here.run, here.client, here.seq);
	}
	PQclear(res);
	printf("acknowledged=%ld present=%ld missing=%ld in_flight_committed=%ld "
		   "resurrected=%ld unexplained=%ld\n",
		   acknowledged, rows, missing, in_flight, resurrected, unexplained);
	return missing || resurrected || unexplained;
}

/* accounts = tellers = branches = history, and what init starts from is 0 */
static int
verify_balances(PGconn *conn)
{
	PGresult   *res = PQexec(conn,
							 "SELECT (SELECT coalesce(sum(abalance), 0) FROM pgbench_accounts),"
							 " (SELECT coalesce(sum(tbalance), 0) FROM pgbench_tellers),"
							 " (SELECT coalesce(sum(bbalance), 0) FROM pgbench_branches),"
							 " (SELECT coalesce(sum(delta), 0) FROM pgbench_history)");
	const char *sums[4];
	bool		equal = true;

	if (PQresultStatus(res) != PGRES_TUPLES_OK)
		die("reading balances", PQerrorMessage(conn));
	for (int i = 0; i < 4; i++)
	{
		sums[i] = PQgetvalue(res, 0, i);
		equal = equal && strcmp(sums[i], sums[0]) == 0;
	}
	printf("balances: accounts=%s tellers=%s branches=%s history=%s %s\n",
		   sums[0], sums[1], sums[2], sums[3], equal ? "equal" : "DIFFER");
	PQclear(res);
	return !equal;
}

static int
verify_mixed(PGconn *conn)
{
	long		differ = query_long(conn,
									"SELECT count(*) FROM (SELECT run, client, seq FROM ack "
									"WHERE drawn IS NOT NULL) a FULL JOIN ack_heap h "
									"USING (run, client, seq) "
									"WHERE a.run IS NULL OR h.run IS NULL");
	long		drawn = query_long(conn, "SELECT coalesce(max(drawn), 0) FROM ack");
	long		next = query_long(conn, "SELECT nextval('ack_seq')");

	printf("mixed: nvm_and_heap_differ=%ld highest_drawn=%ld nextval=%ld\n",
		   differ, drawn, next);
	return differ != 0 || next <= drawn;
}

static int
do_verify(const Options *opt)
{
	PGconn	   *conn = connect_or_die(opt->conninfo);
	long		count;
	LoggedId   *ids = read_log(opt->logfile, &count);
	int			bad = verify_ids(conn, ids, count);

	bad |= verify_balances(conn);
	if (opt->mixed)
		bad |= verify_mixed(conn);
	printf("%s\n", bad ? "FAILED" : "ok");
	free(ids);
	PQfinish(conn);
	return bad ? 1 : 0;
}

static void
usage(FILE *out)
{
	fputs("usage: ackclient init   --conninfo STR [--table-am AM]\n"
		  "       ackclient run    --conninfo STR --log FILE [--clients N] [--seconds S]\n"
		  "                        [--mode nvm-only|mixed] [--run N] [--abort-percent P] [--seed N]\n"
		  "       ackclient verify --conninfo STR --log FILE [--mode nvm-only|mixed]\n"
		  "\n"
		  "The tables of pgbench -i must be there, freshly made before init.  Each run\n"
		  "against the same tables needs a --run number of its own.  Exit status: 0 good,\n"
		  "1 verification failed, 2 trouble.\n", out);
}

int
main(int argc, char **argv)
{
	static const struct option longopts[] = {
		{"conninfo", required_argument, NULL, 'c'},
		{"clients", required_argument, NULL, 'n'},
		{"seconds", required_argument, NULL, 's'},
		{"log", required_argument, NULL, 'l'},
		{"mode", required_argument, NULL, 'm'},
		{"table-am", required_argument, NULL, 't'},
		{"run", required_argument, NULL, 'r'},
		{"abort-percent", required_argument, NULL, 'a'},
		{"seed", required_argument, NULL, 'x'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0}
	};
	Options		opt = {.conninfo = "",.clients = 4,.seconds = 10,.run = 1,.seed = 1};
	const char *command;
	int			c;

	while ((c = getopt_long(argc, argv, "h", longopts, NULL)) != -1)
	{
		switch (c)
		{
			case 'c':
				opt.conninfo = optarg;
				break;
			case 'n':
				opt.clients = atoi(optarg);
				break;
			case 's':
				opt.seconds = atof(optarg);
				break;
			case 'l':
				opt.logfile = optarg;
				break;
			case 'm':
				if (strcmp(optarg, "mixed") != 0 && strcmp(optarg, "nvm-only") != 0)
					die("--mode must be nvm-only or mixed, not", optarg);
				opt.mixed = strcmp(optarg, "mixed") == 0;
				break;
			case 't':
				opt.table_am = optarg;
				break;
			case 'r':
				opt.run = atoi(optarg);
				break;
			case 'a':
				opt.abort_percent = atoi(optarg);
				break;
			case 'x':
				opt.seed = (unsigned) strtoul(optarg, NULL, 10);
				break;
			case 'h':
				usage(stdout);
				return 0;
			default:
				usage(stderr);
				return 2;
		}
	}
	command = optind < argc ? argv[optind] : "";
	if (opt.clients < 1)
		die("--clients must be at least", "1");
	if (strcmp(command, "init") == 0)
		return do_init(&opt);
	if (opt.logfile == NULL)
	{
		usage(stderr);
		return 2;
	}
	if (strcmp(command, "run") == 0)
		return do_run(&opt);
	if (strcmp(command, "verify") == 0)
		return do_verify(&opt);
	usage(stderr);
	return 2;
}
