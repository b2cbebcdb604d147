"""BenchBase's TPC-C, YCSB, TATP and Voter: heap against nvm.

The driver is BenchBase itself (Java, JDBC over TCP on the loopback interface), with its own
schema, transactions, mixes and isolation level.  contrib_bench/build_benchbase makes it from a
clone; --benchbase or BENCHBASE_HOME says where it is.

The driver takes more of a small machine than the server does, so beside the throughput there is
the processor time that the clients' backends spent on a transaction.  It hardly depends on what
else runs; wall time does, and a run says how much of the processors other jobs took.
"""
import csv
import glob
import json
import os
import re
import shutil
import subprocess

from . import alternate, load, report
from .cputime import CpuWatch
from .sandbox import Trouble, filesystem_of
from .server import Server

SETTINGS = {"listen_addresses": "'127.0.0.1'"}
#: the quick compiler and no parallel collector: the driver shares the server's processors
JAVA = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx1g", "-jar", "benchbase.jar"]
WARMUP = 3                  # seconds

CONFIG = """<?xml version="1.0"?>
<parameters>
    <type>POSTGRES</type>
    <driver>org.postgresql.Driver</driver>
    <url>jdbc:postgresql://127.0.0.1:{port}/postgres?sslmode=disable&amp;ApplicationName={bench}&amp;reWriteBatchedInserts=true</url>
    <username>postgres</username>
    <password>none</password>
    <isolation>{isolation}</isolation>
    <batchsize>128</batchsize>
    <scalefactor>{scale}</scalefactor>
    <terminals>{terminals}</terminals>
    <works>
        <work>
            <warmup>{warmup}</warmup>
            <time>{seconds}</time>
            <rate>unlimited</rate>
            <weights>{weights}</weights>
        </work>
    </works>
    <transactiontypes>
{types}
    </transactiontypes>
</parameters>
"""


class Bench:
    """name: BenchBase's; scale: of (options); mix: transaction to weight, its default.

    reset: SQL before each run, where a run leaves tables that are not as good as new.
    checks: (what, query that finds nothing if all is well).
    """

    def __init__(self, name, title, scale, mix, tables, checks, saved=None, reset=()):
        self.name = name
        self.title = title
        self.scale = scale
        self.mix = mix
        self.tables = tables
        self.checks = checks
        self.saved = saved
        self.reset = reset


PER_DISTRICT = """
    SELECT d_w_id, d_id, d_next_o_id, max_o, max_no, min_no, n_no, lines, ol
    FROM district
    LEFT JOIN (SELECT o_w_id, o_d_id, max(o_id) AS max_o, sum(o_ol_cnt) AS lines
               FROM oorder GROUP BY 1, 2) o ON (o_w_id, o_d_id) = (d_w_id, d_id)
    LEFT JOIN (SELECT no_w_id, no_d_id, max(no_o_id) AS max_no, min(no_o_id) AS min_no, count(*) AS n_no
               FROM new_order GROUP BY 1, 2) n ON (no_w_id, no_d_id) = (d_w_id, d_id)
    LEFT JOIN (SELECT ol_w_id, ol_d_id, count(*) AS ol
               FROM order_line GROUP BY 1, 2) l ON (ol_w_id, ol_d_id) = (d_w_id, d_id)
"""

TPCC = Bench(
    "tpcc", "TPC-C", lambda options: alternate.own(options, "scale", 2, 1),
    [("NewOrder", 45), ("Payment", 43), ("OrderStatus", 4), ("Delivery", 4), ("StockLevel", 4)],
    ["warehouse", "district", "customer", "history", "oorder", "new_order", "order_line", "stock", "item"],
    [("consistency condition 1",
      "SELECT w_id FROM warehouse WHERE w_ytd <> (SELECT sum(d_ytd) FROM district WHERE d_w_id = w_id)"),
     # a district whose orders are all delivered has no row in new_order
     ("consistency condition 2", "SELECT * FROM (%s) x WHERE d_next_o_id - 1 IS DISTINCT FROM max_o "
      "OR d_next_o_id - 1 <> max_no" % PER_DISTRICT),
     ("consistency condition 3",
      "SELECT * FROM (%s) x WHERE max_no - min_no + 1 <> n_no" % PER_DISTRICT),
     ("consistency condition 4", "SELECT * FROM (%s) x WHERE lines IS DISTINCT FROM ol" % PER_DISTRICT),
     ("consistency condition 5",
      "SELECT o_w_id, o_d_id, o_id FROM oorder FULL JOIN new_order"
      " ON (o_w_id, o_d_id, o_id) = (no_w_id, no_d_id, no_o_id)"
      " WHERE o_id IS NULL OR (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL)"),
     ("consistency condition 6",
      "SELECT o_w_id, o_d_id, o_id FROM oorder LEFT JOIN (SELECT ol_w_id, ol_d_id, ol_o_id, count(*) AS n"
      " FROM order_line GROUP BY 1, 2, 3) l ON (ol_w_id, ol_d_id, ol_o_id) = (o_w_id, o_d_id, o_id)"
      " WHERE o_ol_cnt IS DISTINCT FROM n"),
     ("consistency condition 7",
      "SELECT ol_o_id FROM order_line JOIN oorder ON (ol_w_id, ol_d_id, ol_o_id) = (o_w_id, o_d_id, o_id)"
      " WHERE (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL)")])

YCSB = Bench(
    "ycsb", "YCSB", lambda options: max(1, alternate.own(options, "rows", 20000, 2000) // 1000),
    [("ReadRecord", 50), ("InsertRecord", 5), ("ScanRecord", 15), ("UpdateRecord", 10),
     ("DeleteRecord", 10), ("ReadModifyWriteRecord", 10)],
    ["usertable"],
    [("a key twice", "SELECT ycsb_key FROM usertable GROUP BY 1 HAVING count(*) > 1"),
     ("a field lost", "SELECT ycsb_key FROM usertable WHERE num_nulls(%s) > 0"
      % ", ".join("field%d" % i for i in range(1, 11))),
     ("index and table differ",
      "SELECT 1 FROM (SELECT count(*) FROM usertable) a (n), (SELECT count(*) FROM (SELECT ycsb_key"
      " FROM usertable WHERE ycsb_key >= 0 ORDER BY ycsb_key OFFSET 0) x) b (n) WHERE a.n <> b.n")],
    # its keys to delete are Zipfian and never come back: the hottest rows are gone after a second
    saved="CREATE TABLE saved USING heap AS SELECT * FROM usertable",
    reset=["TRUNCATE usertable", "INSERT INTO usertable SELECT * FROM saved",
           "VACUUM ANALYZE usertable"])

TATP = Bench(
    "tatp", "TATP", lambda options: 0.1 if options.quick else 1,
    [("DeleteCallForwarding", 2), ("GetAccessData", 35), ("GetNewDestination", 10),
     ("GetSubscriberData", 35), ("InsertCallForwarding", 2), ("UpdateLocation", 14),
     ("UpdateSubscriberData", 2)],
    ["subscriber", "access_info", "special_facility", "call_forwarding"],
    [("a row without its subscriber",
      "SELECT s_id FROM access_info WHERE s_id NOT IN (SELECT s_id FROM subscriber) UNION ALL"
      " SELECT s_id FROM special_facility WHERE s_id NOT IN (SELECT s_id FROM subscriber)"),
     ("a call_forwarding without its special_facility",
      "SELECT s_id FROM call_forwarding c WHERE NOT EXISTS (SELECT FROM special_facility f"
      " WHERE (f.s_id, f.sf_type) = (c.s_id, c.sf_type))"),
     ("subscribers come or gone",
      "SELECT 1 FROM (SELECT count(*), count(DISTINCT sub_nbr) FROM subscriber) s, saved"
      " WHERE s IS DISTINCT FROM ROW(saved.n, saved.n)")],
    saved="CREATE TABLE saved USING heap AS SELECT count(*) AS n FROM subscriber")

VOTER = Bench(
    "voter", "Voter", lambda options: 1, [("Vote", 100)],
    ["contestants", "area_code_state", "votes"],
    [("a vote for nobody", "SELECT vote_id FROM votes v WHERE NOT EXISTS"
      " (SELECT FROM contestants c WHERE c.contestant_number = v.contestant_number)"),
     ("votes by phone and by table differ",
      "SELECT 1 FROM (SELECT count(*) FROM votes) a (n), (SELECT coalesce(sum(num_votes), 0)"
      " FROM v_votes_by_phone_number) b (n) WHERE a.n <> b.n")],
    # no VACUUM: heap's plans for a table that is known to be empty are sequential scans, and stay
    reset=["TRUNCATE votes"])


def home(options):
    """Where BenchBase is; with a jar of that name in it."""
    place = os.path.abspath(options.benchbase or os.environ.get("BENCHBASE_HOME") or "/opt/benchbase")
    if not os.path.isfile(os.path.join(place, "benchbase.jar")):
        raise Trouble("no benchbase.jar in %s: contrib_bench/build_benchbase makes it from a clone; "
                      "--benchbase says where it is" % place)
    if not shutil.which("java"):
        raise Trouble("BenchBase needs java: install openjdk-17-jre-headless")
    if "unlogged" in (options.a, options.b):
        raise Trouble("BenchBase makes its tables itself, and none of them is UNLOGGED")
    options.benchbase = place
    return place


def _warmup(options):
    return 1 if options.quick else WARMUP


def _driver(server, bench, options, terminals, seconds, steps):
    """Start BenchBase; what it says goes to a log."""
    directory = os.path.join(server.sandbox.work, "benchbase")
    os.makedirs(directory, exist_ok=True)
    config = os.path.join(directory, bench.name + ".xml")
    with open(config, "w") as out:
        out.write(CONFIG.format(
            port=server.port, bench=bench.name, scale="%g" % bench.scale(options), terminals=terminals,
            isolation="TRANSACTION_" + options.isolation.upper().replace(" ", "_"),
            seconds=max(1, int(seconds)), warmup=_warmup(options),
            weights=",".join(str(weight) for name, weight in bench.mix),
            types="\n".join("<transactiontype><name>%s</name></transactiontype>" % name
                            for name, weight in bench.mix)))
    results = os.path.join(directory, "results")
    shutil.rmtree(results, ignore_errors=True)
    log = os.path.join(directory, "log")
    command = JAVA + ["-b", bench.name, "-c", config, "-d", results] + \
        ["--%s=%s" % (step, "true" if step in steps else "false")
         for step in ("create", "load", "execute")]
    with open(log, "w") as out:
        process = subprocess.Popen(command, cwd=home(options), stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=subprocess.STDOUT)
    return process, results, log


def _finish(process, log):
    if process.wait() != 0:
        with open(log) as text:
            raise Trouble("BenchBase failed:\n" + text.read()[-4000:])


def _setup(server, bench, options):
    process, _, log = _driver(server, bench, options, 1, 1, ("create", "load"))
    _finish(process, log)
    if bench.saved:
        server.query(bench.saved)
    server.query("VACUUM ANALYZE")
    server.query("CHECKPOINT")


def _one(paths, ending):
    found = glob.glob(os.path.join(paths, "*" + ending))
    if len(found) != 1:
        raise Trouble("BenchBase left no *%s in %s" % (ending, paths))
    return found[0]


def _undone(server):
    """Transactions rolled back so far; a backend that has ended has reported its own."""
    return int(server.value("SELECT xact_rollback FROM pg_stat_database WHERE datname = 'postgres'"))


def _measure(server, bench, options, terminals, seconds):
    """A run: throughput, latency, processor time of a transaction."""
    for statement in bench.reset:
        server.query(statement)
    before = _undone(server)
    process, results, log = _driver(server, bench, options, terminals, seconds, ("execute",))
    watch = CpuWatch(server, process.pid, " 127.0.0.1(")
    watch.start()
    try:
        _finish(process, log)
    finally:
        watch.stop()
    with open(_one(results, ".summary.json")) as text:
        summary = json.load(text)
    with open(_one(results, ".raw.csv")) as text:
        raw = [(float(row["Start Time (microseconds)"]), int(row["Latency (microseconds)"]) / 1e6)
               for row in csv.DictReader(text)]
    begin = min(start for start, took in raw)
    end = max(start + took for start, took in raw)
    clients, everything, driver, machine, waits = watch.between(begin, end)
    latency = summary["Latency Distribution"]
    return {"rate": summary["Goodput (requests/second)"],
            "transactions": len(raw),
            "backend_us": 1e6 * clients / len(raw), "server_us": 1e6 * everything / len(raw),
            "driver_us": 1e6 * driver / len(raw),
            # how often a backend waited: for the client's next message, or for anything else
            "waits": waits / len(raw),
            # these are of the warmup, too
            "undone": _undone(server) - before,
            "others_cpus": max(0.0, machine - everything - driver) / (end - begin),
            "average_ms": latency["Average Latency (microseconds)"] / 1000,
            "p99_ms": latency["99th Percentile Latency (microseconds)"] / 1000}


def _verify(server, bench):
    """Is what the runs left right?"""
    for what, query in bench.checks:
        found = server.query("SELECT * FROM (%s) found LIMIT 5" % query)
        if found:
            raise AssertionError("%s on %s: %s: %s" % (bench.title, server.name, what, found))
    if server.kind == "nvm":
        for table in bench.tables:
            found = server.query("SELECT * FROM nvm.check('%s', heapallindexed => true) LIMIT 5" % table)
            if found:
                raise AssertionError("%s: nvm.check of %s: %s" % (bench.title, table, found))


def _pairs(found, key, inverse=False):
    return [tuple((1 / run[key] if inverse else run[key]) for run in both) for both in found]


def _row(terminals, found):
    row = alternate.pairs_row("%d terminals" % terminals, _pairs(found, "rate"))
    middle = {key: [report.number(report.median([both[arm][key] for both in found])) for arm in (0, 1)]
              for key in ("backend_us", "undone", "p99_ms")}
    by_cpu = report.summarize_pairs(_pairs(found, "backend_us", inverse=True))
    return row + middle["backend_us"] + [
        "%.2fx" % by_cpu["ratio"], "%.2f .. %.2f" % (by_cpu["ratio_min"], by_cpu["ratio_max"])] + \
        middle["undone"] + middle["p99_ms"]


def _report(sandbox, where, options, name, bench, by_terminals, seconds, pairs):
    info = report.machine(sandbox)
    runs = [run for found in by_terminals.values() for both in found for run in both]
    others = report.median([run["others_cpus"] for run in runs])
    driver = report.median([run["driver_us"] / (run["driver_us"] + run["server_us"]) for run in runs])
    text = ("%s of BenchBase, its own mix, no limit of rate, scale factor %g, %s; WAL on %s (%s)\n"
            "driver: BenchBase (%s) over TCP, which takes %.0f %% of the processor time of both\n"
            "medians of %d pairs of %d s after %d s; other jobs took %.1f of %d processors\n%s\n\n%s\n"
            "ratio: transactions a second, pair by pair; us: processor time of the clients' backends a\n"
            "transaction, and its ratio (above 1: less is taken); undone: transactions of a run that were\n"
            "rolled back, most of them to be tried again.\nAfter the runs %s.\n" % (
                bench.title, bench.scale(options), options.isolation.replace("_", " "), options.wal,
                filesystem_of(where), " ".join(JAVA[:-2]), 100 * driver, pairs, seconds, _warmup(options), others,
                info["cpus"], report.machine_line(info),
                report.table(["", options.a + " tps", options.b, "ratio", "pairs", options.a + " us",
                              options.b, "by CPU time", "pairs", options.a + " undone", options.b,
                              options.a + " p99 ms", options.b],
                             [_row(n, found) for n, found in by_terminals.items()]),
                "these held on both: " + ", ".join(what for what, query in bench.checks)
                if bench is TPCC else
                "none of these was found: " + ", ".join(what for what, query in bench.checks)))
    print(text)
    data = {"title": bench.title, "driver": "BenchBase", "java": JAVA, "machine": info, "wal": options.wal,
            "filesystem": filesystem_of(where), "isolation": options.isolation, "mix": dict(bench.mix),
            "scale": bench.scale(options), "seconds": seconds, "a": options.a, "b": options.b,
            "runs": by_terminals, "settings": dict(options.server_settings, **SETTINGS)}
    directory, file_name = os.path.join(sandbox.out, name), report.result_name(name, options)
    if (options.a, options.b) != ("heap", "nvm"):
        file_name += "_%s_%s" % (options.a, options.b)
    if options.isolation != "serializable":
        file_name += "_" + options.isolation
    report.save(directory, file_name, text, data)
    if not report.plot_pairs(
            directory, file_name, bench.title + " of BenchBase, " + options.isolation.replace("_", " "),
            "transactions per second", [options.a, options.b],
            [("%d terminals" % n, _pairs(found, "rate")) for n, found in by_terminals.items()],
            "WAL on " + options.wal):
        print(report.PLOTS_SKIPPED)
    return data


def runner(bench):
    def run(sandbox, where, options, name):
        settings = dict(options.server_settings, **SETTINGS)
        seconds = alternate.own(options, "seconds", 8, 2)
        pairs = alternate.own(options, "pairs", 3, 2)
        terminals = alternate.own(options, "clients", [4, 16], [4])
        servers = [Server(sandbox, "a_" + options.a, options.a, where, settings),
                   Server(sandbox, "b_" + options.b, options.b, where, settings)]
        by_terminals = {}
        with servers[0].running(), servers[1].running():
            for server in servers:
                load.preallocate_wal(server, 4 if options.quick else 64)
                _setup(server, bench, options)
            for count in terminals:
                found = by_terminals[count] = alternate.rounds(pairs, [
                    lambda server=server: _measure(server, bench, options, count, seconds)
                    for server in servers])
                summary = report.summarize_pairs(_pairs(found, "rate"))
                print("  %d terminals: %s %s, %s %s, %.2fx" % (
                    count, options.a, report.number(summary["a"]), options.b,
                    report.number(summary["b"]), summary["ratio"]), flush=True)
            for server in servers:
                _verify(server, bench)
        return _report(sandbox, where, options, name, bench, by_terminals, seconds, pairs)
    return run


WORKLOADS = {"bb_" + bench.name: ("BenchBase's %s (--benchbase), 4 and 16 terminals" % bench.title,
                                  runner(bench)) for bench in (TPCC, YCSB, TATP, VOTER)}
