"""A backend is killed, or PostgreSQL restarted: how long until it answers, at two sizes of its tables.

PostgreSQL ends all other backends then, and starts anew without its shared memory.  The region of
nvm_vlog tables outlives that: no log is read.  Heap's part comes just after a CHECKPOINT, so its
figure is PostgreSQL's own restart, and what nvm_vlog takes more is its own.  The region lies
on tmpfs (nvm.memory_directory), so it outlives a restart of PostgreSQL, too: then heap has stopped
cleanly, and neither has anything to read.
"""
import os
import signal
import time

from . import alternate, libpq, plots, reboot, report
from .big_tables import NAMES, BigTables
from .recovery import NO_CHECKPOINTS
from .sandbox import Trouble
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


def _restart(server):
    """Milliseconds from the start to the answer, after a clean stop."""
    server.stop()
    begin = time.monotonic()
    server.launch()
    took = 1000 * reboot.ask_all(server, [QUESTION], begin)[0]
    if server.kind == "nvm_vlog" and server.value("SELECT started FROM nvm.log_recovery") is not None:
        raise Trouble("server %s has read its log: the region was lost\n%s" % (
            server.name, server.log_tail()))
    return took


CASES = [("a backend is killed", _once), ("PostgreSQL is restarted", _restart)]


def memory_limit(size_mb):
    """Of nvm_vlog: rows, the versions before them, indexes."""
    return {"nvm.memory_limit": "%dMB" % (size_mb * 2.5 + 512)}


def run(sandbox, where, options, name):
    """Measure and report; returns the data of the JSON file."""
    size_mb = options.size_mb or (48 if options.quick else SIZE_MB)
    count = alternate.own(options, "pairs", 9, 3)
    settings = dict(options.server_settings, **SETTINGS)
    memory = os.path.join(sandbox.shm, "memory")
    os.mkdir(memory, mode=0o700)
    servers = [Server(sandbox, "heap", "heap", where, settings),
               Server(sandbox, "nvm_vlog", "nvm_vlog", where, dict(
                   memory_limit(size_mb), **{"nvm.memory_directory": "'%s'" % memory}, **settings))]
    found = []
    with servers[0].running(), servers[1].running():
        tables = [BigTables(server, size_mb) for server in servers]
        for arm in tables:
            arm.create()
        for part in PARTS:
            for arm in tables:
                arm.load(part)
                arm.server.query("VACUUM ANALYZE")
            for what, measure in CASES:
                case = "%s, %s MB of rows" % (what, report.number(tables[0].row_mb))
                rounds = alternate.run_case(case, count, ARMS, [
                    lambda server=server: measure(server) for server in servers])
                found.append((case, rounds, [vlog - heap for heap, vlog in rounds]))
        for arm in tables:
            arm.verify()
    info = report.machine(sandbox)
    title = "A backend is killed, or PostgreSQL restarted: milliseconds until an answer"
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
            [[("milliseconds", [(case.replace(", ", ",\n"), rounds)
                                for case, rounds, more in found])]]))
    return data
