"""TPC-C and Voter by registered functions, beside the same without a log, by values, and on heap.

Five servers in turns.  One of nvm_cmdlog has calls and values in its log, its functions being in
state shadow; the other has calls alone, as its functions are promoted.
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

#: label, kind of table, UNLOGGED, functions promoted
ARMS = [("no log", "nvm_cmdlog", True, False), ("nvm_vlog", "nvm_vlog", False, False),
        ("shadow", "nvm_cmdlog", False, False), ("calls alone", "nvm_cmdlog", False, True),
        ("heap", "heap", False, False)]
LABELS = [arm[0] for arm in ARMS]
NONE, VLOG, SHADOW, ALONE, HEAP = range(len(ARMS))
#: that have a log, and others than heap
LOGGED = [VLOG, SHADOW, ALONE]

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


def _logs_alone(server):
    """Are transactions of calls logged as calls alone now?"""
    return server.query("SELECT mode FROM nvm.command_modes"
                        " WHERE database = current_database()") == [("alone",)]


def _wait_alone(server, limit=60):
    """A checkpoint goes before it."""
    end = time.monotonic() + limit
    while not _logs_alone(server):
        if time.monotonic() > end:
            raise Trouble("%s: calls are not logged alone: %s" % (
                server.name, server.query("SELECT * FROM nvm.command_modes")))
        time.sleep(0.1)


def _promote(server, benchmarks):
    """Calls of the functions that write are rehearsed; then they are logged alone."""
    server.query("SELECT nvm.checkpoint()")
    for benchmark in benchmarks:
        load.PgbenchRun(server, benchmark.arguments(server), 2, 2).finish()
    passed = server.query("SELECT passed, concat_ws('; ', problem, detail, call) FROM nvm.rehearse()")
    if passed[0][0] not in ("t", True):
        raise Trouble("%s: the rehearsal found: %s" % (server.name, passed))
    server.query("SELECT nvm.promote_command(function) FROM nvm.commands WHERE replayable > 0")
    server.query("SELECT nvm.checkpoint()")
    _wait_alone(server)


def _turn(server, case, seconds):
    """One run; what it came to, for each transaction."""
    server.query("VACUUM")
    if server.promoted:
        _wait_alone(server)
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
    if server.promoted and not _logs_alone(server):
        raise Trouble("%s: amid a run calls were not logged alone any more" % server.name)
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


def _ratio(rounds, arm, by):
    """Text: an arm's throughput by another one's, round by round, and the spread."""
    summary = report.summarize_pairs([(values[by]["rate"], values[arm]["rate"]) for values in rounds])
    return "%.2fx (%.2f .. %.2f)" % (summary["ratio"], summary["ratio_min"], summary["ratio_max"])


def _throughput(found):
    return report.table(
        ["transactions a second"] + LABELS,
        [[case.name] + _medians(rounds, "rate") for case, rounds in found])


def _ratios(found):
    pairs = [(ALONE, NONE), (ALONE, SHADOW), (ALONE, VLOG), (ALONE, HEAP), (SHADOW, NONE)]
    return report.table(
        ["throughput"] + ["%s : %s" % (LABELS[arm], LABELS[by]) for arm, by in pairs],
        [[case.name] + [_ratio(rounds, arm, by) for arm, by in pairs] for case, rounds in found])


def _latencies(found):
    rows = []
    for case, rounds in found:
        row = [case.name]
        for arm in range(len(ARMS)):
            row.append(" / ".join(_medians(rounds, "latency_ms", [arm]) + _medians(rounds, "p95_ms", [arm])))
        rows.append(row + _medians(rounds, "cpu_us"))
    return report.table(["latency ms, mean / 95 %"] + LABELS + ["CPU us, " + LABELS[0]] + LABELS[1:], rows)


def _bytes(found):
    rows = []
    for case, rounds in found:
        row = [case.name] + _medians(rounds, "wal_bytes", [HEAP])
        for arm in LOGGED:
            row.append(" / ".join(_medians(rounds, "log_bytes", [arm]) + _medians(rounds, "log_written", [arm])
                                  + _medians(rounds, "wal_bytes", [arm])))
        rows.append(row + _medians(rounds, "log_syncs", LOGGED))
    return report.table(
        ["bytes a transaction: records / written / WAL", "heap: WAL"] + [LABELS[arm] for arm in LOGGED]
        + ["syncs, " + LABELS[LOGGED[0]]] + [LABELS[arm] for arm in LOGGED[1:]], rows)


def _summed(rounds, arm):
    """Counters of an arm's nvm.commands, over all rounds."""
    total = {}
    for values in rounds:
        for function, counters in values[arm]["commands"].items():
            mine = total.setdefault(function, dict.fromkeys(counters, 0))
            for key, value in counters.items():
                mine[key] += value
    return total


def _functions(found):
    rows = []
    for case, rounds in found:
        if case.rate:
            continue
        total = {name: c for name, c in _summed(rounds, SHADOW).items() if c["replayable"] or c["by_values"]}
        everything = {key: sum(c[key] for c in total.values())
                      for key in ("replayable", "by_values", "call_bytes", "value_bytes")}
        for name, c in sorted(total.items()) + [("all", everything)]:
            n = max(1, c["replayable"])
            rows.append(["%s: %s" % (case.name, name), "{:,}".format(c["replayable"]), c["by_values"],
                         report.number(c["call_bytes"] / n), report.number(c["value_bytes"] / n),
                         "%.1fx" % (c["value_bytes"] / max(1, c["call_bytes"]))])
    return report.table(["shadow, transactions that wrote", "replayable", "by values",
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


def _starts(starts):
    return report.table(["stopped at once, started anew", "seconds until the conditions were seen to hold",
                         "transactions since the checkpoint", "a second"],
                        [[label, report.number(seconds), "{:,}".format(n), report.number(n / seconds)]
                         for label, seconds, n in starts])


def _report(sandbox, options, name, where, found, starts, conditions):
    info = report.machine(sandbox)
    title = "TPC-C and Voter by registered functions: no log, values, calls and values, calls alone, heap"
    text = "%s; logs and WAL on %s (%s)\n%s\n%s\n\n%s\n%s\n%s\n%s\n%s\n%s\n%s" % (
        title, options.wal, filesystem_of(where), conditions, report.machine_line(info),
        _throughput(found), _ratios(found), _latencies(found), _bytes(found), _functions(found), _starts(starts),
        "shadow: nvm_cmdlog with calls and values; calls alone: its functions are promoted. Bytes of calls:\n"
        "each with header, lanes, role and tape; heap: WAL, with page images. CPU us: of all processes of\n"
        "the server, for each transaction. After the runs, and what has a log stopped at once and started\n"
        "anew, the conditions of both benchmarks hold.\n")
    print(text)
    data = {"title": title, "wal": options.wal, "filesystem": filesystem_of(where), "machine": info,
            "arms": LABELS, "conditions": conditions, "starts": starts, "cases": {case.name: rounds for case, rounds in found},
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
    if server.promoted:
        _promote(server, benchmarks)
    elif not server.unlogged and server.kind in IN_MEMORY:
        server.query("SELECT nvm.checkpoint()")
    print("  %s: loaded in %.0f s" % (server.name, time.monotonic() - begin), flush=True)


def _check(servers, benchmarks, found):
    """After the runs: the conditions hold, also for what a start makes of the log, the checkpoint
    being that of the load.  Returns [(label, seconds until then, transactions that were run)]."""
    starts = []
    for arm, server in enumerate(servers):
        ran = sum(int(values[arm]["transactions"]) for case, rounds in found for values in rounds)
        begin = time.monotonic()
        if not server.unlogged and server.kind in IN_MEMORY:
            reboot.stop_at_once(server)
            begin = time.monotonic()
            server.start()
        problems = [problem for benchmark in benchmarks for problem in benchmark.problems(server)]
        if problems:
            raise Trouble("server %s: %s" % (server.name, "; ".join(problems[:5])))
        if arm in LOGGED:
            starts.append((LABELS[arm], time.monotonic() - begin, ran))
            print("  %s: started anew in %.1f s" % (server.name, starts[-1][1]), flush=True)
    return starts


def _check_commands(found):
    """Nothing but replayable transactions: else the figures are not those of calls."""
    for case, rounds in found:
        for arm in (SHADOW, ALONE):
            for name, counters in _summed(rounds, arm).items():
                if counters["by_values"]:
                    raise Trouble("%s, %s: %d transactions of %s could not be replayed by their calls"
                                  % (case.name, LABELS[arm], counters["by_values"], name))


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
        unlogged=unlogged) for label, kind, unlogged, promoted in ARMS]
    for server, arm in zip(servers, ARMS):
        server.promoted = arm[3]
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server.running())
            load.preallocate_wal(server, 4 if options.quick else 32)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as loads:
            list(loads.map(lambda server: _create(server, (tpcc, voter)), servers))
        found = _measure(servers, _cases(options, tpcc, voter), pairs, seconds)
        _check_commands(found)
        starts = _check(servers, (tpcc, voter), found)
    conditions = "medians of %d rounds of %d s; TPC-C: %d warehouses%s, with foreign keys, a client for" \
        " one of them; Voter: 10 million numbers an area" % (
            pairs, seconds, tpcc.warehouses,
            " of %d items, %d customers a district" % (tpcc.items, tpcc.customers)
            if options.quick else "")
    return _report(sandbox, options, name, where, found, starts, conditions)
