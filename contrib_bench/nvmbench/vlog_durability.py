"""What durability costs tables in memory: no log, a log, a log and checkpoints.

Three servers with nvm_vlog tables.  Those of the first are UNLOGGED: nothing brings them back.
The second has a log and makes no checkpoint; the third makes checkpoints, one after another
with a pause, while it is measured.  YCSB-A and TPC-C, as in the evaluation of SiloR.
"""
import contextlib
import os
import time

from . import alternate, load, logged, plots, reboot, report, timeline
from .cputime import FamilyWatch
from .sandbox import Trouble, filesystem_of
from .server import Server
from .tpcc import QUICK, Tpcc
from .workloads import Ycsb, script

ARMS = ["none", "log", "log and checkpoints"]

#: per cent of "none" that SiloR's evaluation has left with a log, and with checkpoints too
SILOR = {"YCSB-A": (83, 81), "TPC-C": (97, 93)}

SETTINGS = {
    # the same for all, and nothing but the load: VACUUM runs between the turns
    "autovacuum": "off",
    # no checkpoint of tables in memory unless it is asked for
    "nvm.checkpoint_interval": "0",
    "nvm.checkpoint_log_size": "1TB",
    # TPC-C grows with each transaction
    "nvm.memory_limit": "8GB",
}
ASYNCHRONOUS = "synchronous_commit=off"
YCSB_TABLES = ["usertable"]
BATCH = 2000                # transactions that a call of the server-side form runs


class _Case:
    """What pgbench runs, and how often a transaction of the server is in one of pgbench's."""

    def __init__(self, title, of, arguments, clients, settings=(), batch=1):
        self.title = title
        self.of = of
        self.arguments = arguments      # arguments(server)
        self.clients = clients
        self.settings = settings
        self.batch = batch

    @property
    def name(self):
        return "%s, %s" % (self.of, self.title)


class _Measurement:
    """One case on the three servers, in turns."""

    def __init__(self, servers, seconds, pause):
        self.servers = servers
        self.seconds = seconds
        self.pause = pause

    def turn(self, case, arm, seconds=None):
        server = self.servers[arm]
        server.query("VACUUM")
        prefix = os.path.join(server.sandbox.work, "seconds_" + server.name)
        before = logged.position(server)
        begin = timeline.now()
        run = load.PgbenchRun(server, case.arguments(server) + ["--aggregate-interval=1"],
                              case.clients, seconds or self.seconds, log_prefix=prefix,
                              settings=case.settings)
        watch = FamilyWatch(server.process.pid, pause=0.25)
        watch.start()
        checkpoints = timeline.Checkpoints(server, self.pause) if arm == 2 else None
        if checkpoints:
            checkpoints.start()
        found = run.finish()
        end = timeline.now()
        watch.stop()
        spent = watch.between(begin, end)
        per = logged.since(server, before, max(1, found["transactions"]) * case.batch)
        made = checkpoints.stop() if checkpoints else []
        transactions = max(1, found["transactions"]) * case.batch
        return {"rate": found["tps"] * case.batch, "cpu_us": 1e6 * spent / transactions, "begin": begin, "end": end,
                "latency_ms": found["latency_avg_ms"] / case.batch,
                "wal_bytes": per.wal, "log_bytes": per.log, "log_written": per.log_written,
                "log_syncs": per.log_syncs,
                "checkpoints": made, "series": timeline.read_aggregates(prefix, case.batch)}

    def rounds(self, case, count):
        for arm in range(len(ARMS)):
            self.turn(case, arm, max(1, self.seconds // 4))
        found = alternate.rounds(count, [
            lambda arm=arm: self.turn(case, arm) for arm in range(len(ARMS))])
        print("  %s: %s" % (case.name, ", ".join(
            "%s %s" % (label, report.number(report.median([values[arm]["rate"]
                                                           for values in found])))
            for arm, label in enumerate(ARMS))), flush=True)
        return found


def _ycsb_cases(options, clients):
    ycsb = Ycsb("a", 50, "")
    cores = len(os.sched_getaffinity(0))

    def calls(server):
        return ["-f", script(server, "ycsb_calls", "CALL bench(%d, 50);\n" % BATCH)]

    return [_Case("in the server, %d sessions" % cores, "YCSB-A", calls, cores, [ASYNCHRONOUS],
                  BATCH)] + \
        [_Case("%d clients" % n, "YCSB-A", lambda server: ycsb.arguments(server, options), n)
         for n in clients]


def _tpcc_cases(tpcc, clients):
    return [_Case("4 clients, asynchronous", "TPC-C", tpcc.arguments, 4, [ASYNCHRONOUS])] + \
        [_Case("%d clients" % n, "TPC-C", tpcc.arguments, n) for n in clients]


def _of(found, key, arms):
    return [tuple(values[arm][key] for arm in arms) for values in found]


def _ratio(found, key, arm):
    """Text: what is left of "none", round by round, and the spread; less of key is better."""
    summary = report.summarize_pairs([(1 / values[0][key], 1 / values[arm][key])
                                      for values in found])
    return ["%.1f %%" % (100 * summary["ratio"]), "%.0f .. %.0f" % (
        100 * summary["ratio_min"], 100 * summary["ratio_max"])]


def _medians(found, key, arms=range(3)):
    return [report.number(report.median([values[arm][key] for values in found])) for arm in arms]


def _throughput(cases):
    rows = []
    for case, found in cases:
        row = [case.name] + _medians(found, "rate")
        for arm in (1, 2):
            row += _ratio([[{"s": 1 / run["rate"]} for run in values] for values in found], "s",
                          arm) + ["%d %%" % SILOR[case.of][arm - 1]]
        rows.append(row)
    return report.table(["transactions a second"] + ARMS + [
        "log : none", "rounds", "SiloR", "checkpoints : none", "rounds", "SiloR"], rows)


def _costs(cases):
    rows = [[case.name] + _medians(found, "cpu_us") + _ratio(found, "cpu_us", 1)
            + _ratio(found, "cpu_us", 2) + _medians(found, "latency_ms") for case, found in cases]
    return report.table(["of each"] + ["CPU us, none", "log", "checkpoints", "none : log", "rounds",
                                       "none : checkpoints", "rounds", "latency ms, none", "log",
                                       "checkpoints"], rows)


def _logs(cases):
    rows = []
    for case, found in cases:
        made = [values[2]["checkpoints"] for values in found]
        each = [checkpoint for some in made for checkpoint in some]
        rows.append([case.name] + [cell for key in ("wal_bytes", "log_bytes", "log_written",
                                                    "log_syncs")
                                   for cell in _medians(found, key, [1])] + [
            report.number(report.median(map(len, made))),
            report.number(report.median([c["ended"] - c["began"] for c in each])),
            report.number(report.median([c["bytes"] / 1e6 for c in each]))])
    return report.table(["of each, with a log"] + [
        "WAL bytes", "log bytes", "written", "syncs", "checkpoints a run", "seconds each",
        "MB each"], rows)


def _report(sandbox, options, name, where, found, conditions, notes):
    info = report.machine(sandbox)
    title = "What durability costs nvm_vlog: no log, a log, a log and checkpoints"
    text = "%s; log on %s (%s)\n%s\n%s\n\n%s\n%s\n%s\n%s" % (
        title, options.wal, filesystem_of(where), conditions, report.machine_line(info),
        _throughput(found), _costs(found), _logs(found), notes)
    print(text)
    data = {"title": title, "wal": options.wal, "filesystem": filesystem_of(where),
            "machine": info, "arms": ARMS, "silor": SILOR, "conditions": conditions,
            "cases": {case.name: rounds for case, rounds in found},
            "settings": dict(SETTINGS, **options.server_settings)}
    directory = os.path.join(sandbox.out, name)
    file_name = report.result_name(name, options)
    report.save(directory, file_name, text, data)
    plots.bar_panels(directory, file_name, title, ARMS, [[
        ("transactions a second: " + case.of, [
            (case.title.replace(", ", ",\n"), _of(rounds, "rate", range(3)))])
        for case, rounds in found]])
    # of all rounds the one whose slowest arm is the middle one
    timeline.plot(directory, file_name + "_time", title + "\nshaded: a checkpoint is made", [
        (case.name, [(arm, values[number]["begin"], values[number]["series"],
                      values[number]["checkpoints"]) for number, arm in enumerate(ARMS)])
        for case, values in ((case, _middle(rounds)) for case, rounds in found)], plots.ARM_COLORS)
    return data


def _middle(rounds):
    """The round that stands for all: its last arm has the median."""
    ordered = sorted(rounds, key=lambda values: values[2]["rate"])
    return ordered[(len(ordered) - 1) // 2]


def _check(servers, tpcc):
    """After the runs: TPC-C is consistent, tables and indexes are sound.

    What has a log is rebooted first: so the tables are what checkpoint and log make of them.
    """
    for server in servers:
        if not server.unlogged:
            reboot.stop_at_once(server)
            server.start()
        problems = tpcc.problems(server)
        for table, in server.query("SELECT c.oid::regclass FROM pg_class c JOIN pg_am a"
                                   " ON a.oid = c.relam WHERE c.relkind = 'r' AND"
                                   " amname = 'nvm_vlog' AND relnamespace = 'public'::regnamespace"):
            problems += map(str, server.query("SELECT * FROM nvm.check('%s')" % table))
        if problems:
            raise Trouble("server %s: %s" % (server.name, "; ".join(problems[:5])))


def run(sandbox, where, options, name):
    """Measure and report; returns the data of the JSON file."""
    seconds = alternate.own(options, "seconds", 20, 3)
    clients = alternate.own(options, "clients", [64], [16])
    pairs = alternate.own(options, "pairs", 5, 2)
    warehouses = alternate.own(options, "scale", 8, 2)
    pause = 1 if options.quick else options.checkpoint_pause
    tpcc = Tpcc(warehouses, foreign_keys=False, **(QUICK if options.quick else {}))
    settings = dict(SETTINGS, **options.server_settings)
    servers = [Server(sandbox, label, "nvm_vlog", where, settings, unlogged=arm == 0)
               for arm, label in enumerate(("none", "log", "checkpoints"))]
    cases = _ycsb_cases(options, clients) + _tpcc_cases(tpcc, clients)
    cases = [case for case in cases if alternate.wanted(options, case.name)]
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server.running())
            load.preallocate_wal(server, 4 if options.quick else 64)
            Ycsb("a", 50, "").setup(server, options)
            begin = time.monotonic()
            tpcc.create(server)
            print("  %s: TPC-C loaded in %.0f s" % (server.name, time.monotonic() - begin),
                  flush=True)
            if server.name != "none":
                server.query("SELECT nvm.checkpoint()")
        measurement = _Measurement(servers, seconds, pause)
        found = [(case, measurement.rounds(case, pairs)) for case in cases]
        _check(servers, tpcc)
    conditions = "medians of %d rounds of %d s; YCSB-A: %s rows of 1 kB, Zipfian keys, half updates;" \
        " TPC-C: %d warehouses%s; checkpoints %d s after the one before" % (
            pairs, seconds, "{:,}".format(options.rows), warehouses,
            " of %d items, %d customers a district" % (tpcc.items, tpcc.customers)
            if options.quick else "", pause)
    notes = "In the server, and asynchronous: synchronous_commit = off. Otherwise commits wait for the log.\n" \
        "After the runs, and what has a log rebooted, consistency conditions 1 to 10 and 12 of TPC-C hold, and\n" \
        "nvm.check() finds nothing. Bytes and syncs of the log: for each transaction, reading ones too. CPU us:\n" \
        "of all processes of the server, for each transaction; so what a busy machine takes away does not count.\n" \
        "SiloR: what is left of the throughput there (70 % reads, 30 % updates in its YCSB-A).\n"
    return _report(sandbox, options, name, where, found, conditions, notes)
