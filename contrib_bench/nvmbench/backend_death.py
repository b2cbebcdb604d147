"""A backend is killed: how long until the server answers again, at two sizes of its tables.

PostgreSQL ends all other backends then, and starts anew without its shared memory.  The region of
nvm_vlog tables outlives that: no log is read.  Heap's part comes just after a CHECKPOINT, so its
figure is PostgreSQL's own restart, and what nvm_vlog takes more is its own.
"""
import os
import signal
import time

from . import alternate, libpq, plots, reboot, report
from .big_tables import NAMES, BigTables
from .recovery import NO_CHECKPOINTS
from .server import Server

SIZE_MB = 2048
PARTS = [0.125, 1]          # of the size
ARMS = ["heap", "nvm_vlog"]

SETTINGS = dict(NO_CHECKPOINTS, **{"autovacuum": "off"})

#: of the largest table, by key
QUESTION = "SELECT n FROM %s WHERE id = 1" % NAMES[-1]


def _once(server):
    """Milliseconds from the kill to the answer of a session that began after it."""
    server.query("CHECKPOINT")
    with server.connect() as other:
        with server.connect() as victim:
            pid = int(victim.value("SELECT pg_backend_pid()"))
            begin = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            # the postmaster ends all others before it starts anew
            try:
                while True:
                    other.query("SELECT 1")
            except libpq.Error:
                pass
    return 1000 * reboot.ask_all(server, [QUESTION], begin)[0]


def memory_limit(size_mb):
    """Of nvm_vlog: rows, the versions before them, indexes."""
    return {"nvm.memory_limit": "%dMB" % (size_mb * 2.5 + 512)}


def run(sandbox, where, options, name):
    """Measure and report; returns the data of the JSON file."""
    size_mb = options.size_mb or (48 if options.quick else SIZE_MB)
    count = alternate.own(options, "pairs", 9, 3)
    settings = dict(options.server_settings, **SETTINGS)
    servers = [Server(sandbox, "heap", "heap", where, settings),
               Server(sandbox, "nvm_vlog", "nvm_vlog", where,
                      dict(memory_limit(size_mb), **settings))]
    found = []
    with servers[0].running(), servers[1].running():
        tables = [BigTables(server, size_mb) for server in servers]
        for arm in tables:
            arm.create()
        for part in PARTS:
            for arm in tables:
                arm.load(part)
                arm.server.query("VACUUM ANALYZE")
            case = "%s MB of rows" % report.number(tables[0].row_mb)
            rounds = alternate.rounds(count, [lambda server=server: _once(server)
                                              for server in servers])
            more = [vlog - heap for heap, vlog in rounds]
            print("  %s: heap %.0f ms, nvm_vlog %.0f ms" % (
                case, report.median([r[0] for r in rounds]), report.median([r[1] for r in rounds])),
                flush=True)
            found.append((case, rounds, more))
        for arm in tables:
            arm.verify()
    info = report.machine(sandbox)
    title = "A backend is killed: milliseconds until the server answers"
    number = report.number
    text = "%s\nmedians of %d rounds; %s\n\n%s" % (
        title, count, report.machine_line(info), report.table(
            ["", "heap", "nvm_vlog", "nvm_vlog more", "rounds"],
            [[case, number(report.median([r[0] for r in rounds])),
              number(report.median([r[1] for r in rounds])), number(report.median(more)),
              "%.0f .. %.0f" % (min(more), max(more))] for case, rounds, more in found]))
    print(text)
    data = {"title": title, "machine": info, "wal": options.wal, "size_mb": size_mb,
            "cases": {case: rounds for case, rounds, more in found}}
    report.save_and_plot(
        sandbox, options, name, text, data,
        lambda directory, file_name: plots.bar_panels(
            directory, file_name, title, ARMS,
            [[("milliseconds", [(case.replace(" of", "\nof"), rounds)
                                for case, rounds, more in found])]]))
    return data
