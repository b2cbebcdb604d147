"""Throughput workloads: what to load, and what to run in each case.

A workload has cases; a case is one bar of its plot.  "wire N" is pgbench with
N clients and prepared statements; "server" is a procedure that runs many
transactions, each ended by its own COMMIT, in one session of the server, so
that the engine is measured and not the round trip.
"""
import bisect
import itertools
import os
import random
import time

from . import load
from .alternate import timed_rate
from .cputime import finish_watched

YCSB_FIELDS = 10
YCSB_FIELD_BYTES = 100
YCSB_THETA = 0.99           # YCSB's own skew, for precomputed keys
PGBENCH_THETA = 1.01        # the closest that pgbench draws efficiently


class Case:
    def __init__(self, name, run):
        self.name = name
        self.run = run      # run(server, options) -> {"rate": ..., ...}


def _wire(clients, arguments):
    def run(server, options):
        pgbench = load.PgbenchRun(server, arguments(server, options), clients, options.seconds)
        result, spent = finish_watched(server, pgbench)
        return {"rate": result["tps"], "transactions": result["transactions"],
                "latency_avg_ms": result["latency_avg_ms"],
                "backend_us": 1e6 * spent / max(1, result["transactions"])}
    return Case("wire %d" % clients, run)


def _server(call):
    def run(server, options):
        rate = timed_rate(server, call(options), options.transactions)
        return {"rate": float(rate), "transactions": options.transactions,
                "backend_us": 1e6 / rate.cpu}
    return Case("server", run)


def script(server, name, text):
    """A pgbench script file, in the sandbox."""
    path = os.path.join(server.sandbox.work, name + ".pgbench")
    with open(path, "w") as out:
        out.write(text)
    return path


class Workload:
    unit = "transactions per second"

    def setup(self, server, options):
        raise NotImplementedError

    def finish_setup(self, server):
        """No checkpoint: what was loaded then needs no full-page images."""
        server.query("VACUUM ANALYZE")

    def cases(self, options):
        raise NotImplementedError


class PgbenchWorkload(Workload):
    """Runs on the tables of pgbench -i."""
    procedure = None        # body of the loop of the server-side form

    def setup(self, server, options):
        load.pgbench_init(server, options.scale)
        if self.procedure:
            server.query("""
                CREATE PROCEDURE bench(transactions int, scale int)
                LANGUAGE plpgsql AS $$
                DECLARE
                    v_aid int; v_tid int; v_bid int; v_delta int;
                BEGIN
                    FOR i IN 1 .. transactions LOOP
                        v_aid := 1 + floor(random() * 100000 * scale);
                        %s
                        COMMIT;
                    END LOOP;
                END $$""" % self.procedure)
        self.finish_setup(server)

    def arguments(self, server, options):
        raise NotImplementedError

    def cases(self, options):
        cases = []
        if self.procedure:
            cases.append(_server(lambda o: "CALL bench(%d, %d)" % (o.transactions, o.scale)))
        return cases + [_wire(n, self.arguments) for n in options.clients]


class Tpcb(PgbenchWorkload):
    name = "tpcb"
    title = "pgbench's TPC-B-like transaction"
    procedure = """
        v_tid := 1 + floor(random() * 10 * scale);
        v_bid := 1 + floor(random() * scale);
        v_delta := floor(random() * 10001) - 5000;
        UPDATE pgbench_accounts SET abalance = abalance + v_delta WHERE aid = v_aid;
        PERFORM abalance FROM pgbench_accounts WHERE aid = v_aid;
        UPDATE pgbench_tellers SET tbalance = tbalance + v_delta WHERE tid = v_tid;
        UPDATE pgbench_branches SET bbalance = bbalance + v_delta WHERE bid = v_bid;
        INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)
            VALUES (v_tid, v_bid, v_aid, v_delta, CURRENT_TIMESTAMP);"""

    def arguments(self, server, options):
        return ["-b", "tpcb-like"]


class Update(PgbenchWorkload):
    name = "update"
    title = "single-row UPDATE by primary key"
    procedure = """
        UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = v_aid;"""

    def arguments(self, server, options):
        return ["-s", str(options.scale), "-f", script(server, "update", """
\\set aid random(1, 100000 * :scale)
\\set delta random(-5000, 5000)
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
""")]


class Insert(PgbenchWorkload):
    """Random keys, so that no two runs insert the same one."""
    name = "insert"
    title = "single-row INSERT into a table with a primary key"
    procedure = """
        INSERT INTO bench_rows VALUES (9e15 * random(), v_aid, repeat('x', 40));"""

    def setup(self, server, options):
        server.query(server.sql("CREATE TABLE bench_rows (id bigint PRIMARY KEY, v int, f text)"))
        super().setup(server, options)

    def arguments(self, server, options):
        return ["-s", str(options.scale), "-f", script(server, "insert", """
\\set id random(1, 9000000000000000)
\\set aid random(1, 100000 * :scale)
INSERT INTO bench_rows VALUES (:id, :aid, repeat('x', 40));
""")]


class Select(PgbenchWorkload):
    name = "select"
    title = "point SELECT by primary key"
    procedure = """
        PERFORM abalance FROM pgbench_accounts WHERE aid = v_aid;"""

    def arguments(self, server, options):
        return ["-b", "select-only"]


class Scan(PgbenchWorkload):
    name = "scan"
    title = "sequential scan with count(*) and sum"
    unit = "rows per second"

    def _case(self, name, workers):
        def run(server, options):
            with server.connect() as connection:
                connection.query("SET max_parallel_workers_per_gather = %d" % workers)
                begin = time.monotonic()
                scans = 0
                while True:
                    connection.query("SELECT count(*), sum(abalance) FROM pgbench_accounts")
                    scans += 1
                    took = time.monotonic() - begin
                    if took >= options.seconds:
                        break
            return {"rate": scans * 100000 * options.scale / took, "transactions": scans}
        return Case(name, run)

    def cases(self, options):
        return [self._case("one process", 0), self._case("parallel", 2)]


def zipfian_keys(rows, count, theta=YCSB_THETA, seed=1):
    """count keys out of 1 .. rows, hot ones scattered over the whole range."""
    rng = random.Random(seed)
    cumulated = list(itertools.accumulate(1.0 / rank ** theta for rank in range(1, rows + 1)))
    keys = list(range(1, rows + 1))
    rng.shuffle(keys)
    total = cumulated[-1]
    return [keys[bisect.bisect_left(cumulated, rng.random() * total)] for _ in range(count)]


class Ycsb(Workload):
    """One table of ten fields, reads of whole rows, updates of one field."""

    def __init__(self, letter, read_percent, title):
        self.name = "ycsb_" + letter
        self.read_percent = read_percent
        self.title = title

    def setup(self, server, options):
        fields = ["f%d text" % i for i in range(YCSB_FIELDS)]
        values = ["rpad(md5((k * %d)::text), %d, 'y')" % (i + 1, YCSB_FIELD_BYTES)
                  for i in range(YCSB_FIELDS)]
        server.query(server.sql("CREATE TABLE usertable (k int PRIMARY KEY, %s)"
                                % ", ".join(fields)))
        server.query("INSERT INTO usertable SELECT k, %s FROM generate_series(1, %d) k"
                     % (", ".join(values), options.rows))
        keys = ",".join(map(str, zipfian_keys(options.rows, 100000)))
        server.query("CREATE TABLE bench_keys (keys int[]) USING heap")
        server.query("INSERT INTO bench_keys VALUES ('{%s}')" % keys)
        server.query("""
            CREATE PROCEDURE bench(transactions int, read_percent int)
            LANGUAGE plpgsql AS $$
            DECLARE
                keys int[]; nkeys int; key int; start int; row usertable;
                field text;
            BEGIN
                SELECT b.keys INTO keys FROM bench_keys b;
                nkeys := cardinality(keys);
                start := floor(random() * nkeys);
                FOR i IN 1 .. transactions LOOP
                    key := keys[1 + (start + i) %% nkeys];
                    IF random() * 100 < read_percent THEN
                        SELECT * INTO row FROM usertable WHERE k = key;
                    ELSE
                        field := rpad(i::text, %d, 'z');
                        UPDATE usertable SET f3 = field WHERE k = key;
                    END IF;
                    COMMIT;
                END LOOP;
            END $$""" % YCSB_FIELD_BYTES)
        self.finish_setup(server)

    def arguments(self, server, options):
        key = "\\set k 1 + permute(random_zipfian(1, :rows, %g) - 1, :rows)\n" % PGBENCH_THETA
        arguments = ["-D", "rows=%d" % options.rows]
        if self.read_percent > 0:
            read = script(server, "read", key + "SELECT * FROM usertable WHERE k = :k;\n")
            arguments += ["-f", "%s@%d" % (read, self.read_percent)]
        if self.read_percent < 100:
            update = script(
                server, "write", key + "\\set v random(1, 1000000000)\n"
                "UPDATE usertable SET f3 = rpad((:v)::text, %d, 'z') WHERE k = :k;\n"
                % YCSB_FIELD_BYTES)
            arguments += ["-f", "%s@%d" % (update, 100 - self.read_percent)]
        return arguments

    def cases(self, options):
        server = _server(lambda o: "CALL bench(%d, %d)" % (o.transactions, self.read_percent))
        return [server] + [_wire(n, self.arguments) for n in options.clients]


ALL = [
    Tpcb(), Update(), Insert(), Select(), Scan(),
    Ycsb("a", 50, "YCSB A: half reads, half updates, Zipfian keys"),
    Ycsb("b", 95, "YCSB B: 95 % reads, 5 % updates, Zipfian keys"),
    Ycsb("c", 100, "YCSB C: reads, Zipfian keys"),
    Ycsb("1090", 10, "10 % reads, 90 % updates, Zipfian keys (write-behind logging paper)"),
]
BY_NAME = {workload.name: workload for workload in ALL}
