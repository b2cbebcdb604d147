"""Command line of the benchmark runner."""
import argparse
import os
import sys
import time

# modules needed after the switch to another user are imported before it
from . import backend_death, benchbase, bulk, clients, commands, delay, gaps, index, libpq, load
from . import loading, logged, persistence, plans, recovery, report, restart_index, slow_sync, storage, tatp
from . import vlog_durability, vlog_recovery
from .sandbox import Sandbox, Trouble, filesystem_of
from .server import IN_MEMORY, OURS, Server
from .workloads import ALL, BY_NAME


def _recovery_size(sandbox, where, options, name):
    return recovery.run(sandbox, where, options, name, filler_mb=options.size_mb or RECOVERY_SIZE_MB)


# name: (what it shows, run(sandbox, where, options, name))
SPECIAL = {
    "recovery": ("start to first answer against 0.1, 1, 10 million committed transactions",
                 recovery.run),
    "recovery_size": ("the same beside a table of 5 GB", _recovery_size),
    "gaps": ("throughput while the gaps of three crashes are cleaned up", gaps.run),
    "index": ("indexes in the pool against btree on heap: insert, lookup, range, build, size", index.run),
    "persistence": ("nvm_btree with persistence full, leaves and none", persistence.run),
    "storage": ("peak footprint under load: table, indexes, log", storage.run),
    "clients": ("throughput and latency against clients, 1 to 32", clients.run),
    "delay": ("nvm with emulated flush delays of 0 to 800 ns", delay.run),
    "disk": ("the pool as a file on disk against heap's WAL there", clients.run_disk),
    "load": ("COPY, pgbench -i and DROP TABLE, pool and WAL on one disk", loading.run),
    "restart_index": ("restart of 10 million rows with three indexes, by persistence",
                      restart_index.run),
    "bulk": ("statements of many rows, scans and lookups, one session, VACUUM after each change",
             bulk.run),
    "plans": ("the plans of nvm tables as shipped against the best found by trying", plans.run),
    "vlog_durability": ("what a log and checkpoints cost nvm_vlog: YCSB-A and TPC-C",
                        vlog_durability.run),
    "vlog_recovery": ("nvm_vlog after a reboot against heap's redo, by the size of the log",
                      vlog_recovery.run),
    "backend_death": ("a backend is killed, or PostgreSQL restarted: until nvm_vlog and heap answer",
                      backend_death.run),
    "command": ("TPC-C and Voter by registered functions: no log, values, calls, heap",
                commands.run),
    "tatp": ("TATP through a crash, 0, 40 and 100 % of the indexes persistent", tatp.run),
}
SPECIAL.update(benchbase.WORKLOADS)
#: not on disk as well, unless asked for
ON_TMPFS = ["restart_index", "tatp", "bulk", "plans"]
#: nor these in memory
ON_DISK = ["vlog_durability", "vlog_recovery", "backend_death", "command"]
KINDS = ["heap", "unlogged"] + list(OURS)
DEFAULT = ["update", "tpcb", "select", "scan"]
RECOVERY_SIZES = "100000,1000000,10000000"
RECOVERY_SIZES_BESIDE = "100000,1000000"
RECOVERY_SIZE_MB = 5120


def _numbers(text):
    return [int(n) for n in text.split(",")]


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="contrib_bench/run",
        description="Run workloads on a heap and an nvm server side by side, "
        "in alternation, and report medians and ratios.")
    parser.add_argument("workload", nargs="*", help="see --list (default: %s)" % " ".join(DEFAULT))
    parser.add_argument("--list", action="store_true", help="list the workloads")
    parser.add_argument("--wal", choices=["tmpfs", "disk", "both"], default="both",
                        help="where both data directories lie (default: both in turn)")
    parser.add_argument("--pairs", type=int, default=None, help="pairs of runs (default 5)")
    parser.add_argument("--seconds", type=float, default=None,
                        help="length of a run over the wire or of a scan (default 10)")
    parser.add_argument("--transactions", type=int, default=None,
                        help="transactions of a run inside the server (default 100000)")
    parser.add_argument("--clients", default=None, help="clients over the wire (default 1,4,16)")
    parser.add_argument("--scale", type=int, default=None, help="pgbench scale (default 20)")
    parser.add_argument("--rows", type=int, default=None, help="rows of YCSB (default 200000)")
    parser.add_argument("--cases", default="", help="only cases whose name contains one of "
                        "these, separated by commas, such as server,wire 4")
    parser.add_argument("--a", "--am-a", default="heap", choices=KINDS,
                        help="what to compare with (unlogged: heap, asynchronous, not durable)")
    parser.add_argument("--b", "--am-b", default="nvm", choices=KINDS,
                        help="what to compare (default nvm)")
    parser.add_argument("--recovery-transactions", default=None,
                        help="of recovery (default %s) and recovery_size (%s)"
                        % (RECOVERY_SIZES, RECOVERY_SIZES_BESIDE))
    parser.add_argument("--checkpoint-pause", type=float, default=5,
                        help="of vlog_durability: seconds between two checkpoints (default 5)")
    parser.add_argument("--rates", type=_numbers, default=[], help="of command: TPC-C with so many "
                        "transactions asked for a second, too, such as 500,1000,2000")
    parser.add_argument("--multi", type=_numbers, default=[], help="of command: TPC-C with so many per "
                        "cent of orders and payments of two warehouses, too, such as 0,50,100")
    parser.add_argument("--size-mb", type=int, default=None, help="of recovery_size's table (default "
                        "%d), of vlog_recovery's tables, and of the log (%d)"
                        % (RECOVERY_SIZE_MB, vlog_recovery.SIZE_MB))
    parser.add_argument("--cached", action="store_true", help="of vlog_recovery: leave the servers' files "
                        "in the page cache")
    parser.add_argument("--checkpoints", choices=["none", "default"], default="none",
                        help="of the recovery load: none by time or volume, or PostgreSQL's own")
    parser.add_argument("--benchbase", metavar="DIR", default=None,
                        help="where contrib_bench/build_benchbase put BenchBase, for bb_*")
    parser.add_argument("--isolation", default="serializable",
                        choices=["serializable", "repeatable_read", "read_committed"],
                        help="of bb_* (default serializable, as BenchBase's samples have it)")
    parser.add_argument("--sync-delay", metavar="US", type=int, default=0,
                        help="both servers' syncs last so many microseconds longer, as on a disk of "
                        "ordinary latency (default 0)")
    parser.add_argument("--shared-buffers", default="1GB")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="a server setting, of both servers")
    parser.add_argument("--quick", action="store_true",
                        help="two short pairs on small tables: does it run at all")
    parser.add_argument("--installed", action="store_true", help="measure the pg_nvm that is "
                        "installed in the server of PG_CONFIG, instead of building this tree")
    parser.add_argument("--results", default=None, help="directory (default contrib_bench/results)")
    parser.add_argument("--keep", action="store_true", help="keep the sandbox's files on disk")
    options = parser.parse_args(arguments)
    quick = options.quick
    # some workloads have defaults of their own
    options.asked = {name: getattr(options, name) for name in
                     ("pairs", "seconds", "transactions", "clients", "scale", "rows")}

    def default(name, full, short):
        if getattr(options, name) is None:
            setattr(options, name, short if quick else full)

    default("pairs", 5, 2)
    default("seconds", 10, 2)
    default("transactions", 100000, 10000)
    default("clients", "1,4,16", "4")
    default("scale", 20, 2)
    default("rows", 200000, 20000)
    sizes = options.recovery_transactions or ("10000,50000" if quick else RECOVERY_SIZES)
    beside = options.recovery_transactions or ("10000" if quick else RECOVERY_SIZES_BESIDE)
    options.transactions_of = {"recovery": [int(n) for n in sizes.split(",")],
                               "recovery_size": [int(n) for n in beside.split(",")]}
    options.clients = [int(n) for n in options.clients.split(",")]
    options.server_settings = {
        "shared_buffers": options.shared_buffers,
        # far apart for both, so that few full-page images burden heap
        "checkpoint_timeout": "30min",
        "max_wal_size": "8GB",
        "min_wal_size": "2GB",
    }
    for setting in options.set:
        name, equals, value = setting.partition("=")
        if not equals:
            parser.error("--set wants NAME=VALUE, not %s" % setting)
        options.server_settings[name] = value
    options.workload = options.workload or list(DEFAULT)
    if "all" in options.workload:
        options.workload = list(BY_NAME) + [name for name in SPECIAL
                                            if name not in benchbase.WORKLOADS]
    for name in options.workload:
        if name not in BY_NAME and name not in SPECIAL:
            parser.error("no workload %s; --list shows them" % name)
    return options


def list_workloads():
    rows = [[w.name, w.title] for w in ALL] + [[n, t] for n, (t, run) in SPECIAL.items()]
    width = max(len(name) for name, title in rows)
    for name, title in rows:
        print("%s  %s" % (name.ljust(width), title))
    print("%s  all of them but BenchBase's" % "all".ljust(width))


def one_run(server, case, options):
    """A run, with what it logged per transaction."""
    before = logged.position(server)
    result = case.run(server, options)
    if result.get("transactions"):
        found = logged.since(server, before, result["transactions"])
        result.update(wal_bytes=found.wal, log_bytes=found.log, log_written=found.log_written,
                      log_syncs=found.log_syncs, logged_bytes=found.wal + found.log)
    return result


def logged_columns(options, runs=None):
    """Of the table of a workload: its header, or a case's cells, bytes a transaction.

    The log of tables in memory stands beside the WAL: its records, and what was written
    to its files for them.  The last column is about WAL and records together.
    """
    arms = (options.a, options.b)
    vlog = [arm for arm in (0, 1) if arms[arm] in IN_MEMORY]
    if runs is None:
        header = ["WAL B/txn " + options.a, options.b]
        for arm in vlog:
            header += ["log B/txn " + arms[arm], "written"]
        return header + (["logged, ratio"] if vlog else [])

    def middle(arm, key):
        return report.median([run[arm].get(key) for run in runs])

    cells = [middle(arm, "wal_bytes") for arm in (0, 1)]
    for arm in vlog:
        cells += [middle(arm, "log_bytes"), middle(arm, "log_written")]
    cells = [report.number(cell) for cell in cells]
    if vlog:
        a, b = (middle(arm, "logged_bytes") for arm in (0, 1))
        cells.append("%.2fx" % (b / a) if a and b is not None else "-")
    return cells


def run_pairs(workload, servers, options):
    """Alternate the runs, case by case."""
    wanted = [text for text in options.cases.split(",") if text]
    results = {}
    for case in workload.cases(options):
        if wanted and not any(text in case.name for text in wanted):
            continue
        warm = argparse.Namespace(**vars(options))
        warm.seconds = max(1, options.seconds // 3)
        warm.transactions = max(1, options.transactions // 5)
        for server in servers:
            case.run(server, warm)
        runs = []
        for pair in range(options.pairs):
            order = (0, 1) if pair % 2 == 0 else (1, 0)     # a b, b a, a b, ...
            both = [None, None]
            for which in order:
                both[which] = one_run(servers[which], case, options)
            runs.append(both)
        results[case.name] = runs
        pairs = [(a["rate"], b["rate"]) for a, b in runs]
        summary = report.summarize_pairs(pairs)
        print("  %s: %s %s, %s %s, %.2fx" % (
            case.name, options.a, report.number(summary["a"]), options.b,
            report.number(summary["b"]), summary["ratio"]), flush=True)
    return results


def throughput(sandbox, where, workload, options):
    servers = [Server(sandbox, "a_" + options.a, options.a, where, options.server_settings),
               Server(sandbox, "b_" + options.b, options.b, where, options.server_settings)]
    with servers[0].running(), servers[1].running():
        for server in servers:
            load.preallocate_wal(server, 4 if options.quick else 64)
            workload.setup(server, options)
        results = run_pairs(workload, servers, options)
    info = report.machine(sandbox)
    rows, plotted = [], []
    for name, runs in results.items():
        pairs = [(a["rate"], b["rate"]) for a, b in runs]
        summary = report.summarize_pairs(pairs)
        plotted.append((name, pairs))
        spent = [report.median([run[arm].get("backend_us") for run in runs]) for arm in (0, 1)]
        by_cpu = ["-", "-"]
        if None not in spent:
            found = report.summarize_pairs([(1 / a["backend_us"], 1 / b["backend_us"]) for a, b in runs])
            by_cpu = ["%.2fx" % found["ratio"],
                      "%.2f .. %.2f" % (found["ratio_min"], found["ratio_max"])]
        rows.append([name, report.number(summary["a"]), report.number(summary["b"]),
                     "%.2fx" % summary["ratio"],
                     "%.2f .. %.2f" % (summary["ratio_min"], summary["ratio_max"]),
                     report.number(spent[0]), report.number(spent[1])] + by_cpu +
                    logged_columns(options, runs))
    text = "%s: %s; %s; WAL on %s\nmedians of %d pairs; %s\n\n%s" % (
        workload.name, workload.title, workload.unit, options.wal, options.pairs,
        report.machine_line(info),
        report.table(["case", options.a, options.b, "ratio", "pairs",
                      "CPU us/txn " + options.a, options.b, "by CPU time", "pairs"]
                     + logged_columns(options), rows))
    print(text)
    data = {"workload": workload.name, "title": workload.title, "unit": workload.unit,
            "wal": options.wal, "filesystem": filesystem_of(where), "a": options.a,
            "b": options.b, "machine": info, "runs": results,
            "summary": {name: report.summarize_pairs(pairs) for name, pairs in plotted},
            "options": {key: getattr(options, key) for key in
                        ("pairs", "seconds", "transactions", "scale", "rows")},
            "settings": options.server_settings}
    directory = os.path.join(sandbox.out, workload.name)
    file_name = report.result_name(workload.name, options)
    if (options.a, options.b) != ("heap", "nvm"):
        file_name += "_%s_%s" % (options.a, options.b)
    report.save(directory, file_name, text, data)
    if plotted and not report.plot_pairs(
            directory, file_name, workload.title, workload.unit, [options.a, options.b],
            plotted, "WAL on " + options.wal):
        print(report.PLOTS_SKIPPED)


def work(sandbox, options):
    begin = time.monotonic()
    sandbox.make_prefix()
    if set(OURS) & {options.a, options.b} and not options.installed:
        print("building pg_nvm ...", flush=True)
        sandbox.build_extension()
    if options.sync_delay:
        slow_sync.preload(sandbox, options.sync_delay)
    places = {"disk": sandbox.work, "tmpfs": sandbox.shm}
    walls = ["tmpfs", "disk"] if options.wal == "both" else [options.wal]
    for name in options.workload:
        for wal in walls[:1] if name in ON_TMPFS else walls[-1:] if name in ON_DISK else walls:
            options.wal = wal
            where = os.path.join(places[wal], "%s_%s" % (name, wal))
            os.mkdir(where)
            print("%s, WAL on %s (%s)" % (name, wal, filesystem_of(where)), flush=True)
            if name in SPECIAL:
                SPECIAL[name][1](sandbox, where, options, name)
            else:
                throughput(sandbox, where, BY_NAME[name], options)
            sandbox.empty(where)
    print("took %d s" % (time.monotonic() - begin))
    return 0


def main(source):
    options = parse(sys.argv[1:])
    if options.list:
        list_workloads()
        return 0
    results = options.results or os.path.join(source, "contrib_bench", "results")
    if options.quick and not options.results:
        results = os.path.join(results, "tmp")
    try:
        libpq.lib()
        if any(name in benchbase.WORKLOADS for name in options.workload):
            benchbase.home(options)     # before anything is built
        sandbox = Sandbox("bench", source, options.keep)
        status = sandbox.run(lambda box: work(box, options), results)
    except (Trouble, libpq.Error) as trouble:
        print("error: %s" % trouble, file=sys.stderr)
        return 1
    if status == 0:
        print("results: %s" % results)
    return status
