"""Loads, with pool, WAL and data directory on one disk: heap against nvm.

With --wal disk the pool is a file that msync makes durable, so what counts is
how often a load waits for that: column "syncs" is the difference of
nvm.stat_wbl.syncs, to which other processes of the server add as well, "pool MB"
that of nvm.pool.used, which shows whether a load found space that was used
before.  With --wal tmpfs all is in memory, and there are no syncs.

Each round has servers made anew, on which each case loads a table of its own.
None is dropped before the last case, so the pool has to grow for each but those
about used space.  Within a round the servers take turns case by case.  A
checkpoint comes before each case, so that heap pays neither for full pages nor
for the buffers of another case.  Its own buffers reach the disk after the time
that counts.

After each load a sequential scan, and a scan by each index of the table, have
to find every row once.  This is not in the time, nor is what makes ready.
"""
import os
import time

from . import alternate, load, plots, report
from .cputime import finish_watched
from .sandbox import Trouble, filesystem_of
from .server import Server

#: VACUUM comes when a case says so
SETTINGS = {"autovacuum": "off"}
LABELS = ["heap", "nvm"]

#: names are of 80 characters and differ
ROWS = "SELECT i, rpad(md5(i::text), 80, md5((-i)::text)) FROM generate_series(1, %d) i ORDER BY %s"
ORDERS = {"ascending": "i", "random": "md5(i::text)"}

PRIMARY_KEY = "ALTER TABLE {t} ADD PRIMARY KEY (id)"
NAME_INDEX = "CREATE INDEX {t}_name ON {t} (name)"
COPY = "COPY {t} FROM '{ascending}'"
COPY_RANDOM = "COPY {t} FROM '{random}'"
#: nvm takes the space again when the horizon has passed VACUUM: nvm.horizon_naptime is 200 ms
EMPTIED = ["DELETE FROM {t}", "VACUUM {t}", "SELECT pg_sleep(1)"]


class _Job:
    """What the cases are about: rows of a table, scale of pgbench, files to copy from."""

    def __init__(self, options, where):
        self.rows = alternate.own(options, "rows", 300000, 20000)
        self.scale = alternate.own(options, "scale", 10, 1)
        self.files = {order: os.path.join(where, order) for order in ORDERS}

    def write_files(self, server):
        for order, path in self.files.items():
            if not os.path.exists(path):
                server.query("COPY (%s) TO '%s'" % (ROWS % (self.rows, ORDERS[order]), path))


class _Case:
    """A statement that is measured, and others that make ready for it."""
    unit = "rows per second"
    key = "id"

    def __init__(self, name, table, statement=COPY, before=()):
        self.name = name
        self.table = table
        self.statement = statement
        self.before = before

    def _sql(self, job, statement):
        return statement.format(t=self.table, **job.files)

    def count(self, job):
        return job.rows

    def prepare(self, server, job):
        server.query("CREATE TABLE %s (id int, name text)" % self.table)
        for statement in self.before:
            server.query(self._sql(job, statement))

    def measure(self, server, job):
        return alternate.timed_rate(server, self._sql(job, self.statement), self.count(job))

    def check(self, server, job):
        _check_rows(server, self.table, self.key, self.count(job))


class _Drop(_Case):
    unit = "tables per second"

    def count(self, job):
        return 1

    def check(self, server, job):
        if server.value("SELECT to_regclass('%s')" % self.table) is not None:
            raise Trouble("%s is still there" % self.table)


class _PgbenchInit(_Case):
    key = "aid"

    def count(self, job):
        return 100000 * job.scale

    def prepare(self, server, job):
        pass

    def measure(self, server, job):
        begin = time.monotonic()
        _, spent = finish_watched(server, load.PgbenchInit(server, job.scale))
        rate = alternate.Rate(self.count(job) / (time.monotonic() - begin))
        rate.cpu = self.count(job) / spent if spent else None
        return rate


CASES = [
    _Case("no index", "plain"),
    _Case("primary key, ascending", "ascending", before=[PRIMARY_KEY]),
    _Case("primary key, random", "random", COPY_RANDOM, before=[PRIMARY_KEY]),
    _Case("primary key and text", "named", before=[PRIMARY_KEY, NAME_INDEX]),
    _Case("after DELETE and VACUUM", "deleted", before=[COPY] + EMPTIED),
    _Case("after TRUNCATE", "truncated", before=[COPY, "TRUNCATE {t}"]),
    _PgbenchInit("pgbench -i", "pgbench_accounts"),
    _Drop("DROP TABLE", "dropped", "DROP TABLE {t}", before=[COPY, PRIMARY_KEY, NAME_INDEX]),
]


def _check_rows(server, table, key, rows):
    """Trouble unless each way to read the table finds the keys 1 to rows."""
    with server.connect() as connection:
        indexes = connection.query(
            "SELECT i.indexrelid::regclass, a.attname FROM pg_index i JOIN pg_attribute a"
            " ON a.attrelid = i.indexrelid WHERE i.indrelid = '%s'::regclass" % table)
        for way, order in [("Seq Scan", None)] + indexes:
            query = "SELECT count(*), sum(%s) FROM %s" % (key, table)
            if order:
                query = "SELECT count(*), sum(%s) FROM (SELECT * FROM %s ORDER BY %s) x" % (
                    key, table, order)
            for setting in ["seqscan", "bitmapscan", "sort"] if order else ["indexonlyscan"]:
                connection.query("SET enable_%s = off" % setting)
            if not any(way in line for (line,) in connection.query("EXPLAIN " + query)):
                raise Trouble("the check of %s does not use %s" % (table, way))
            found = connection.query(query)[0]
            if found != (str(rows), str(rows * (rows + 1) // 2)):
                raise Trouble("%s of %s has %s rows, the sum of %s is %s: lost are some of %d rows"
                              % (way, table, found[0], key, found[1], rows))
            connection.query("RESET ALL")


def _pool(server):
    """So far: syncs of the pool, megabytes of it in use."""
    if server.kind != "nvm":
        return 0, 0
    syncs, used = server.query("SELECT syncs, used FROM nvm.stat_wbl, nvm.pool")[0]
    return int(syncs), int(used) / 1e6


def _run_case(server, case, job):
    """Rate of the case; syncs of the pool meanwhile, and by how much more of it is in use."""
    server.query("CHECKPOINT")
    case.prepare(server, job)
    before = _pool(server)
    rate = case.measure(server, job)
    after = _pool(server)
    case.check(server, job)
    return [rate] + [new - old for new, old in zip(after, before)]


def _round(sandbox, place, options, job, turn, cases):
    """Each case once by both servers, made anew in place; {case: pair}, the pool's method."""
    os.makedirs(place)           # emptying a tmpfs takes what is above as well
    settings = dict(options.server_settings, **SETTINGS)
    servers = [Server(sandbox, "a_heap", "heap", place, settings),
               Server(sandbox, "b_nvm", "nvm", place, settings, pool=os.path.join(place, "pool"))]
    found = {}
    with servers[0].running(), servers[1].running():
        job.write_files(servers[0])
        for server in servers:
            load.preallocate_wal(server, 4 if options.quick else 64)
        for case in cases:
            found[case.name] = alternate.one_round(turn, [
                lambda server=server: _run_case(server, case, job) for server in servers])
            print("  %d, %s: %s" % (turn + 1, case.name, ", ".join(
                "%s %s s" % (label, report.number(case.count(job) / rate))
                for label, (rate, syncs, used) in zip(LABELS, found[case.name]))), flush=True)
        method = servers[1].value("SELECT persist_method FROM nvm.pool")
    sandbox.empty(place)
    return found, method


def _report(sandbox, options, name, job, cases, rounds, where):
    info = report.machine(sandbox)
    title = "Loads with pool, WAL and data directory on one %s (%s, %s)" % (
        options.wal, filesystem_of(where), rounds[0][1])
    runs, data, rows, panels = {}, {}, [], {}
    for case in cases:
        pairs = [found[case.name] for found, method in rounds]
        runs[case.name] = rates = [tuple(values[0] for values in pair) for pair in pairs]
        seconds = [[case.count(job) / rate for rate in pair] for pair in rates]
        syncs, used = ([pair[1][i] for pair in pairs] for i in (1, 2))
        data[case.name] = {"seconds": seconds, "syncs": syncs, "used_mb": used, "count": case.count(job)}
        # the medians in seconds, the ratios as everywhere: above 1 nvm is faster
        rows.append([case.name] + [report.number(report.median(arm)) for arm in zip(*seconds)]
                    + alternate.pairs_row(case.name, rates)[3:] + alternate.cpu_ratio(rates)
                    + ["{:,.0f}".format(report.median(syncs)), "%.1f" % report.median(used)])
        panels.setdefault(case.unit, []).append((case.name.replace(" ", "\n"), rates))
    text = ("%s\n%s rows of an int and 80 characters, pgbench at scale %d; medians of %d pairs; %s\n\n%s" % (
        title, "{:,}".format(job.rows), job.scale, len(rounds), report.machine_line(info),
        report.table(["case"] + [label + " s" for label in LABELS]
                     + ["ratio", "pairs", "by CPU time", "pairs", "syncs", "pool MB"], rows)))
    print(text)
    report.save_and_plot(
        sandbox, options, name, text,
        {"title": title, "machine": info, "wal": options.wal, "rows": job.rows, "scale": job.scale,
         "cases": data, "runs": runs,
         "by_cpu": {case: alternate.cpu_rounds(rates) for case, rates in runs.items()},
         "settings": dict(options.server_settings, **SETTINGS)},
        plots.bar_panels, title, LABELS, [list(panels.items())])


def run(sandbox, where, options, name):
    """Measure and report."""
    job = _Job(options, where)
    cases = [case for case in CASES if alternate.wanted(options, case.name)]
    rounds = [_round(sandbox, os.path.join(where, "round"), options, job, turn, cases)
              for turn in range(options.pairs)]
    _report(sandbox, options, name, job, cases, rounds, where)
