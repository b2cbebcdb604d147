"""TPC-C and Voter by registered functions, beside the same without a log, by values, and on heap.

Four servers in turns.  nvm_cmdlog has calls and values in its log as long as its functions
are in state shadow; nvm.commands says how many bytes are the calls'.
"""
import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor

from . import alternate, load, logged, plots, reboot, report
from .cputime import FamilyWatch
from .sandbox import Trouble, filesystem_of
from .server import IN_MEMORY, Server
from .tpcc import QUICK, Tpcc, Voter

#: label, kind of table, UNLOGGED
ARMS = [("no log", "nvm_cmdlog", True), ("nvm_vlog", "nvm_vlog", False),
        ("nvm_cmdlog", "nvm_cmdlog", False), ("heap", "heap", False)]
LABELS = [label for label, kind, unlogged in ARMS]
NONE, VLOG, CMDLOG, HEAP = range(len(ARMS))

SETTINGS = {
    # the same for all, and nothing but the load: VACUUM runs between the turns
    "autovacuum": "off",
}
SETTINGS_IN_MEMORY = {
    "nvm.checkpoint_interval": "0",
    "nvm.checkpoint_log_size": "1TB",
    # TPC-C grows with each transaction
    "nvm.memory_limit": "4GB",
}


class _Case:
    """What pgbench runs.  rate: of arrivals, a second; None: each client goes on at once."""

    def __init__(self, benchmark, clients, rate=None, **defines):
        self.benchmark = benchmark
        self.clients = clients
        self.rate = rate
        self.defines = defines
        self.name = "%s, %d clients" % (benchmark.title, clients)
        if rate:
            self.name += ", %d a second" % rate
        if defines:
            self.name += ", %d %% of two warehouses" % defines["multi"]

    def arguments(self, server):
        return self.benchmark.arguments(server, **self.defines) + \
            (["--rate=%d" % self.rate] if self.rate else [])


def _commands(server):
    """Of each function that was called: transactions counted as replayable, others, bytes."""
    return {row[0]: dict(zip(("replayable", "by_values", "call_bytes", "value_bytes"),
                             map(int, row[1:])))
            for row in server.query("SELECT split_part(function::text, '(', 1), replayable, by_values,"
                                    " call_bytes, value_bytes FROM nvm.commands WHERE calls > 0")}


def _turn(server, case, seconds):
    """One run; what it came to, for each transaction."""
    server.query("VACUUM")
    if server.kind in IN_MEMORY:
        server.query("SELECT nvm.reset_commands()")
    prefix = os.path.join(server.sandbox.shm, "latency_" + server.name)
    before = logged.position(server)
    begin = time.time()
    run = load.PgbenchRun(server, case.arguments(server), case.clients, seconds, log_prefix=prefix)
    watch = FamilyWatch(server.process.pid, pause=0.25)
    watch.start()
    found = run.finish()
    end = time.time()
    watch.stop()
    spent = watch.between(begin, end)
    latencies = run.latencies_ms()
    for name in os.listdir(server.sandbox.shm):
        if name.startswith(os.path.basename(prefix) + "."):
            os.unlink(os.path.join(server.sandbox.shm, name))
    if not found.get("transactions"):
        raise Trouble("%s: no transaction of %s was finished" % (server.name, case.name))
    per = logged.since(server, before, found["transactions"])
    return {"rate": found["tps"], "transactions": found["transactions"],
            "latency_ms": sum(latencies) / len(latencies), "p95_ms": load.percentile(latencies, 95),
            "cpu_us": 1e6 * spent / found["transactions"],
            "wal_bytes": per.wal, "log_bytes": per.log, "log_written": per.log_written,
            "log_syncs": per.log_syncs,
            "commands": _commands(server) if server.kind == "nvm_cmdlog" else {}}


def _measure(servers, cases, pairs, seconds):
    """[(case, rounds of results)]."""
    found = []
    for case in cases:
        for server in servers:
            _turn(server, case, max(1, seconds // 4))
        rounds = alternate.rounds(pairs, [
            lambda server=server: _turn(server, case, seconds) for server in servers])
        print("  %s: %s" % (case.name, ", ".join(
            "%s %s" % (label, report.number(report.median([values[arm]["rate"] for values in rounds])))
            for arm, label in enumerate(LABELS))), flush=True)
        found.append((case, rounds))
    return found


# -- the report ------------------------------------------------------------

def _medians(rounds, key, arms=range(len(ARMS))):
    return [report.number(report.median([values[arm][key] for values in rounds])) for arm in arms]


def _ratio(rounds, arm):
    """Text: nvm_cmdlog's throughput by that arm's, round by round, and the spread."""
    summary = report.summarize_pairs([(values[arm]["rate"], values[CMDLOG]["rate"])
                                      for values in rounds])
    return ["%.2fx" % summary["ratio"],
            "%.2f .. %.2f" % (summary["ratio_min"], summary["ratio_max"])]


def _throughput(found):
    return report.table(
        ["transactions a second"] + LABELS + ["cmdlog : no log", "rounds", ": vlog", "rounds",
                                              ": heap", "rounds"],
        [[case.name] + _medians(rounds, "rate") + _ratio(rounds, NONE) + _ratio(rounds, VLOG)
         + _ratio(rounds, HEAP) for case, rounds in found])


def _latencies(found):
    rows = []
    for case, rounds in found:
        row = [case.name]
        for arm in range(len(ARMS)):
            row.append(" / ".join(_medians(rounds, "latency_ms", [arm]) + _medians(rounds, "p95_ms", [arm])))
        rows.append(row + _medians(rounds, "cpu_us"))
    return report.table(["latency ms, mean / 95 %"] + LABELS + ["CPU us, " + LABELS[0]] + LABELS[1:], rows)


def _bytes(found):
    return report.table(
        ["bytes a transaction", "heap: WAL", "vlog: log", "written", "WAL", "cmdlog: log", "written",
         "WAL", "syncs: vlog", "cmdlog"],
        [[case.name] + _medians(rounds, "wal_bytes", [HEAP])
         + _medians(rounds, "log_bytes", [VLOG]) + _medians(rounds, "log_written", [VLOG])
         + _medians(rounds, "wal_bytes", [VLOG])
         + _medians(rounds, "log_bytes", [CMDLOG]) + _medians(rounds, "log_written", [CMDLOG])
         + _medians(rounds, "wal_bytes", [CMDLOG])
         + _medians(rounds, "log_syncs", [VLOG, CMDLOG]) for case, rounds in found])


def _summed(rounds):
    """Counters of nvm.commands, over all rounds."""
    total = {}
    for values in rounds:
        for function, counters in values[CMDLOG]["commands"].items():
            mine = total.setdefault(function, dict.fromkeys(counters, 0))
            for key, value in counters.items():
                mine[key] += value
    return total


def _functions(found):
    rows = []
    for case, rounds in found:
        if case.rate:
            continue
        total = {name: c for name, c in _summed(rounds).items() if c["replayable"] or c["by_values"]}
        everything = {key: sum(c[key] for c in total.values())
                      for key in ("replayable", "by_values", "call_bytes", "value_bytes")}
        for name, c in sorted(total.items()) + [("all", everything)]:
            n = max(1, c["replayable"])
            rows.append(["%s: %s" % (case.name, name), "{:,}".format(c["replayable"]), c["by_values"],
                         report.number(c["call_bytes"] / n), report.number(c["value_bytes"] / n),
                         "%.1fx" % (c["value_bytes"] / max(1, c["call_bytes"]))])
    return report.table(["nvm_cmdlog, transactions that wrote", "replayable", "by values",
                         "bytes of calls", "of values", "fewer by"], rows)


def _panels(found):
    """Rows of plots.bar_panels for closed loops."""
    rows = []
    for title in sorted({case.benchmark.title for case, rounds in found}):
        mine = [(case, rounds) for case, rounds in found if case.benchmark.title == title]

        def of(key):
            return [("%d clients" % case.clients, [tuple(values[arm][key] for arm in range(len(ARMS)))
                                                  for values in rounds]) for case, rounds in mine]
        rows.append([(title + ", transactions a second", of("rate")), ("latency, 95 %, ms", of("p95_ms"))])
    return rows


def _lines(cases, x_label, x_of):
    """Panels of plots.curves: throughput and latency against x_of(case)."""
    def series(key):
        return [(label, arm, "-", [(x_of(case), [values[arm][key] for values in rounds])
                                   for case, rounds in cases]) for arm, label in enumerate(LABELS)]
    return [[(cases[0][0].benchmark.title, x_label, "transactions a second", series("rate")),
             ("", x_label, "latency, mean, ms", series("latency_ms")),
             ("", x_label, "latency, 95 %, ms", series("p95_ms"))]]


def _report(sandbox, options, name, where, found, conditions):
    info = report.machine(sandbox)
    title = "TPC-C and Voter by registered functions: no log, values, calls and values, heap"
    text = "%s; logs and WAL on %s (%s)\n%s\n%s\n\n%s\n%s\n%s\n%s\n%s" % (
        title, options.wal, filesystem_of(where), conditions, report.machine_line(info),
        _throughput(found), _latencies(found), _bytes(found), _functions(found),
        "nvm_cmdlog logs calls and values (state shadow). Bytes of calls: each with header, lanes, role\n"
        "and tape; heap: WAL, with page images. CPU us: of all processes of the server, for each\n"
        "transaction. After the runs, and what has a log stopped at once and started anew, the\n"
        "conditions of both benchmarks hold.\n")
    print(text)
    data = {"title": title, "wal": options.wal, "filesystem": filesystem_of(where), "machine": info,
            "arms": LABELS, "conditions": conditions, "cases": {case.name: rounds for case, rounds in found},
            "settings": dict(SETTINGS, **options.server_settings)}
    directory = os.path.join(sandbox.out, name)
    file_name = report.result_name(name, options)
    report.save(directory, file_name, text, data)
    closed = [(case, rounds) for case, rounds in found if not case.rate and not case.defines]
    if closed:
        plots.bar_panels(directory, file_name, title, LABELS, _panels(closed))
    for which, x_label, x_of in (("rate", "transactions asked for a second", lambda case: case.rate),
                                 ("multi", "% of orders and payments of two warehouses",
                                  lambda case: case.defines.get("multi"))):
        mine = [(case, rounds) for case, rounds in found if x_of(case) is not None]
        if mine:
            plots.curves(directory, "%s_%s" % (file_name, which), title, _lines(mine, x_label, x_of))
    return data


# -- the runs --------------------------------------------------------------

def _create(server, benchmarks):
    begin = time.monotonic()
    for benchmark in benchmarks:
        benchmark.create(server)
    if not server.unlogged and server.kind in IN_MEMORY:
        server.query("SELECT nvm.checkpoint()")
    print("  %s: loaded in %.0f s" % (server.name, time.monotonic() - begin), flush=True)


def _check(servers, benchmarks):
    """After the runs: the conditions hold, also for what a start makes of the log."""
    for server in servers:
        if not server.unlogged and server.kind in IN_MEMORY:
            reboot.stop_at_once(server)
            server.start()
        problems = [problem for benchmark in benchmarks for problem in benchmark.problems(server)]
        if problems:
            raise Trouble("server %s: %s" % (server.name, "; ".join(problems[:5])))


def _check_commands(found):
    """Nothing but replayable transactions: else the figures are not those of calls."""
    for case, rounds in found:
        for name, counters in _summed(rounds).items():
            if counters["by_values"]:
                raise Trouble("%s: %d transactions of %s could not be replayed by their calls"
                              % (case.name, counters["by_values"], name))


def _cases(options, tpcc, voter):
    clients = alternate.own(options, "clients", [4, 16], [4])
    cases = [_Case(benchmark, n) for benchmark in (tpcc, voter) for n in clients]
    cases += [_Case(tpcc, clients[-1], rate=rate) for rate in options.rates]
    cases += [_Case(tpcc, clients[-1], multi=percent) for percent in options.multi]
    return [case for case in cases if alternate.wanted(options, case.name)]


def run(sandbox, where, options, name):
    """Measure and report; returns the data of the JSON file."""
    seconds = alternate.own(options, "seconds", 10, 2)
    pairs = alternate.own(options, "pairs", 5, 2)
    tpcc = Tpcc(alternate.own(options, "scale", 4, 2), **(QUICK if options.quick else {}))
    voter = Voter()
    servers = [Server(sandbox, label.replace(" ", "_"), kind, where, dict(
        SETTINGS, **(SETTINGS_IN_MEMORY if kind in IN_MEMORY else {}), **options.server_settings),
        unlogged=unlogged) for label, kind, unlogged in ARMS]
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server.running())
            load.preallocate_wal(server, 4 if options.quick else 32)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as loads:
            list(loads.map(lambda server: _create(server, (tpcc, voter)), servers))
        found = _measure(servers, _cases(options, tpcc, voter), pairs, seconds)
        _check_commands(found)
        _check(servers, (tpcc, voter))
    conditions = "medians of %d rounds of %d s; TPC-C: %d warehouses%s, with foreign keys, a client for" \
        " one of them; Voter: 10 million numbers an area" % (
            pairs, seconds, tpcc.warehouses,
            " of %d items, %d customers a district" % (tpcc.items, tpcc.customers)
            if options.quick else "")
    return _report(sandbox, options, name, where, found, conditions)
