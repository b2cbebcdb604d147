"""Throughput and latency against the number of clients, over the wire.

As `clients`: WAL and pool in the same memory (--wal tmpfs) or heap's WAL on disk
and the pool in memory (--wal disk).  As `disk`: heap's WAL, and the pool, each
as files on the same disk, where the pool is made durable by msync.
"""
import os

from . import alternate, load, plots, report, tables
from .server import Server
from .sandbox import Trouble, filesystem_of
from .workloads import Tpcb, Update, script

SETTINGS = {"autovacuum": "off"}
LATENCY_SAMPLE = {"tmpfs": 0.05, "disk": 1}         # of the transactions, for percentiles


def _insert_arguments(server, options):
    return ["-f", script(server, "insert_" + server.name, """
\\set id random(1, 9000000000000000000)
\\set n random(1, 1000000)
INSERT INTO ledger_1 VALUES (:id, :n);
""")]


def _measure(server, arguments, clients, seconds, sample):
    """Transactions a second, average and 99th percentile of latency."""
    log = os.path.join(server.sandbox.shm, "latency_" + server.name)
    run = load.PgbenchRun(server, arguments + ["--sampling-rate=%g" % sample],
                          clients, seconds, log_prefix=log)
    found = run.finish()
    latencies = run.latencies_ms()
    for name in os.listdir(server.sandbox.shm):
        if name.startswith(os.path.basename(log) + "."):
            os.unlink(os.path.join(server.sandbox.shm, name))
    if not found.get("transactions"):
        raise Trouble("no transaction was finished within %d s" % seconds)
    return {"tps": found["tps"], "average_ms": found["latency_avg_ms"],
            "p99_ms": load.percentile(latencies, 99)}


def _sweep(servers, options, cases, clients, pairs, seconds):
    """{case: {clients: rounds of results}}."""
    found = {}
    for case, arguments in cases:
        if not alternate.wanted(options, case):
            continue
        found[case] = {}
        for count in clients:
            for server in servers:
                load.pgbench(server, arguments(server, options), count, 1)
            rounds = alternate.rounds(pairs, [
                lambda server=server: _measure(server, arguments(server, options), count, seconds,
                                               LATENCY_SAMPLE[options.wal])
                for server in servers])
            found[case][count] = rounds
            summary = report.summarize_pairs(_of(rounds, "tps"))
            print("  %s, %d clients: heap %s, nvm %s, %.2fx" % (
                case, count, report.number(summary["a"]), report.number(summary["b"]),
                summary["ratio"]), flush=True)
    return found


def _of(rounds, key):
    return [tuple(result[key] for result in values) for values in rounds]


def _report(sandbox, options, name, found, title, labels, pairs, seconds, where):
    info = report.machine(sandbox)
    rows, panels = [], []
    for case, by_clients in found.items():
        for count, rounds in by_clients.items():
            middle = {key: [report.number(report.median([values[arm][key] for values in rounds]))
                            for arm in (0, 1)] for key in ("average_ms", "p99_ms")}
            rows.append(alternate.pairs_row("%s, %d" % (case, count), _of(rounds, "tps"))
                        + middle["average_ms"] + middle["p99_ms"])
    for key, label in (("tps", "transactions per second"), ("p99_ms", "99th percentile, ms")):
        panels.append([(case, "clients", label, [
            (labels[arm], arm, "-", [(count, [values[arm][key] for values in rounds])
                                     for count, rounds in by_clients.items()])
            for arm in (0, 1)]) for case, by_clients in found.items()])
    text = "%s (%s)\nmedians of %d pairs of %d s; %s\n\n%s" % (
        title, filesystem_of(where), pairs, seconds, report.machine_line(info),
        report.table(["case, clients", "heap tps", "nvm tps", "ratio", "pairs", "heap avg ms", "nvm",
                      "heap p99 ms", "nvm"], rows))
    print(text)
    data = {"title": title, "machine": info, "wal": options.wal, "filesystem": filesystem_of(where),
            "seconds": seconds, "cases": found}
    directory = os.path.join(sandbox.out, name)
    file_name = report.result_name(name, options)
    report.save(directory, file_name, text, data)
    plots.curves(directory, file_name, title, panels, doubling=True)
    return data


def _run(sandbox, where, options, name, title, labels, cases, clients, pairs, pool=None):
    settings = dict(options.server_settings, **SETTINGS)
    seconds = alternate.own(options, "seconds", 3, 1)
    clients = alternate.own(options, "clients", clients, [1, 4])
    pairs = alternate.own(options, "pairs", pairs, 2)
    servers = [Server(sandbox, "a_heap", "heap", where, settings),
               Server(sandbox, "b_nvm", "nvm", where, settings, pool=pool)]
    with servers[0].running(), servers[1].running():
        for server in servers:
            load.preallocate_wal(server, 4 if options.quick else 64)
            load.pgbench_init(server, options.scale)
            tables.create_ledgers(server, alternate.own(options, "rows", 100000, 10000),
                                  indexes_first=False)
            server.query("VACUUM ANALYZE")
        found = _sweep(servers, options, cases, clients, pairs, seconds)
    return _report(sandbox, options, name, found, title, labels, pairs, seconds, where)


def run(sandbox, where, options, name):
    """1 to 32 clients; returns the data of the JSON file."""
    title = "Throughput and latency against clients, heap's WAL on %s, pool on tmpfs" % options.wal
    return _run(sandbox, where, options, name, title, ["heap", "nvm"],
                [("single-row update", Update().arguments), ("TPC-B", Tpcb().arguments)],
                [1, 2, 4, 8, 16, 32], 3)


def run_disk(sandbox, where, options, name):
    """WAL and pool on one disk; returns the data of the JSON file."""
    title = "Heap's WAL against the pool as a file (msync), on the same %s" % options.wal
    return _run(sandbox, where, options, name, title, ["heap, WAL", "nvm, msync"],
                [("single-row update", Update().arguments), ("insert", _insert_arguments)],
                [1, 4, 16, 32], 3, pool=os.path.join(where, "pool"))
