"""Slower media: nvm with a delay added to each fence, beside heap.

Heap's WAL is written and synced on tmpfs and not slowed down; it is there as a
measure of how much delay uses up what nvm is ahead.
"""
import os

from . import alternate, load, plots, report, tables
from .server import Server
from .workloads import Tpcb, Update

DELAYS = [0, 200, 400, 800]         # nanoseconds
SETTINGS = {"autovacuum": "off"}


def _cases(options, transactions):
    """(name, statement of that many transactions)."""
    pgbench = "CALL %%s(%d, %d)" % (transactions, options.scale)
    return [("single-row update", pgbench % "bench_update"),
            ("TPC-B", pgbench % "bench_tpcb"),
            ("insert, three indexes", "CALL insert_ledger_3(%d)" % transactions)]


def _fences(server, sql, transactions):
    """Fences of a transaction, without those of processes in the background."""
    def count():
        return int(server.value("SELECT fences FROM nvm.stat_wbl"))
    before = count()
    server.query(sql)
    return (count() - before) / transactions


def _report(sandbox, options, name, found, fences):
    info = report.machine(sandbox)
    title = "Throughput against emulated flush delay, one session in the server"
    arms = ["heap"] + ["%d ns" % delay for delay in DELAYS]
    rows, panels = [], []
    for case, rounds in found:
        middle = [report.median([values[arm] for values in rounds]) for arm in range(len(arms))]
        rows.append([case, "%.1f" % fences[case]] + [report.number(value) for value in middle]
                    + ["%.2fx" % report.median([values[arm] / values[0] for values in rounds])
                       for arm in (1, len(arms) - 1)]
                    + [alternate.cpu_ratio(rounds, (0, arm))[0] for arm in range(1, len(arms))])
        by_delay = [(delay, [values[arm + 1] for values in rounds])
                    for arm, delay in enumerate(DELAYS)]
        flat = [(delay, [values[0] for values in rounds]) for delay in (DELAYS[0], DELAYS[-1])]
        panels.append((case, "delay of a fence, ns", "transactions per second" if not panels else "",
                       [("nvm", 1, "-", by_delay), ("heap, not delayed", 0, "--", flat)]))
    text = "%s; WAL on %s\ntransactions per second; medians of %d rounds; %s\n\n%s" % (
        title, options.wal, options.pairs, report.machine_line(info),
        report.table(["case", "fences/txn"] + arms + ["0 ns : heap", "%d ns : heap" % DELAYS[-1]]
                     + ["by CPU, %d ns" % delay for delay in DELAYS], rows))
    print(text)
    data = {"title": title, "machine": info, "wal": options.wal, "arms": arms, "cases": found,
            "fences": fences,
            "by_cpu": {case: alternate.cpu_rounds(rounds) for case, rounds in found}}
    directory = os.path.join(sandbox.out, name)
    file_name = report.result_name(name, options)
    report.save(directory, file_name, text, data)
    plots.curves(directory, file_name, title, [panels])
    return data


def run(sandbox, where, options, name):
    """Measure and report; returns the data of the JSON file."""
    transactions = alternate.own(options, "transactions", 60000, 2000)
    settings = dict(options.server_settings, **SETTINGS)
    heap = Server(sandbox, "a_heap", "heap", where, settings)
    nvm = Server(sandbox, "b_nvm", "nvm", where, settings)
    with heap.running(), nvm.running():
        for server in (heap, nvm):
            load.preallocate_wal(server, 4 if options.quick else 64)
            for workload in (Update(), Tpcb()):
                workload.setup(server, options)
                server.query("ALTER PROCEDURE bench RENAME TO bench_" + workload.name)
            tables.create_ledgers(server, alternate.own(options, "rows", 500000, 10000))
            server.query("VACUUM ANALYZE")
        found, fences = [], {}
        for case, sql in _cases(options, transactions):
            if not alternate.wanted(options, case):
                continue
            fences[case] = _fences(nvm, sql, transactions)
            heap.query(sql)

            def measure(server, settings=(), sql=sql):
                return alternate.timed_rate(server, sql, transactions, settings)

            found.append((case, alternate.run_case(
                case, options.pairs, ["heap"] + ["%d ns" % delay for delay in DELAYS],
                [lambda: measure(heap)]
                + [lambda delay=delay: measure(nvm, ["nvm.emulated_flush_delay = %d" % delay])
                   for delay in DELAYS])))
        return _report(sandbox, options, name, found, fences)
