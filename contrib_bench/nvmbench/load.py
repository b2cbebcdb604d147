"""Load on a server: pgbench over the wire, procedures inside the server."""
import glob
import os
import re
import subprocess
import threading
import time

from . import logged
from .sandbox import Trouble


class PgbenchRun:
    """A pgbench that may still be running."""

    def __init__(self, server, arguments, clients, seconds, log_prefix=None,
                 protocol="prepared", settings=()):
        """settings: "NAME=VALUE" of the sessions."""
        self.log_prefix = log_prefix
        jobs = min(clients, max(1, len(os.sched_getaffinity(0))))
        command = [server.sandbox.program("pgbench"), "-n", "-M", protocol,
                   "-c", str(clients), "-j", str(jobs), "-T", str(max(1, int(float(seconds))))]
        if log_prefix:
            command += ["--log", "--log-prefix=" + log_prefix]
        environment = server.environment
        if settings:
            environment["PGOPTIONS"] = " ".join("-c " + setting for setting in settings)
        self.process = subprocess.Popen(
            command + arguments, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def finish(self, may_fail=False):
        output, errors = self.process.communicate()
        if self.process.returncode != 0 and not may_fail:
            raise Trouble("pgbench failed:\n" + errors[-3000:])
        result = {}
        for key, pattern in (("tps", r"^tps = ([\d.]+) \(without"),
                             ("latency_avg_ms", r"^latency average = ([\d.]+) ms"),
                             ("transactions", r"actually processed: (\d+)"),
                             ("failed", r"^number of failed transactions: (\d+)")):
            found = re.search(pattern, output, re.M)
            if found:
                result[key] = float(found.group(1))
        return result

    def latencies_ms(self):
        """All latencies of a logged run, in order of size."""
        values = []
        for path in glob.glob(self.log_prefix + ".*"):
            with open(path) as log:
                for line in log:
                    fields = line.split()
                    if len(fields) > 2 and fields[2].isdigit():
                        values.append(int(fields[2]) / 1000.0)
        return sorted(values)


def pgbench(server, arguments, clients, seconds, **options):
    return PgbenchRun(server, arguments, clients, seconds, **options).finish()


class PgbenchInit:
    """A pgbench -i that may still be running."""

    def __init__(self, server, scale):
        command = [server.sandbox.program("pgbench"), "-i", "-q", "-s", str(scale)]
        if server.unlogged:
            command.append("--unlogged-tables")
        self.server = server
        self.process = subprocess.Popen(command, env=server.environment, text=True,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def finish(self):
        errors = self.process.communicate()[1]
        if self.process.returncode != 0:
            raise Trouble("pgbench -i failed on %s:\n%s" % (self.server.name, errors[-3000:]))


def pgbench_init(server, scale):
    PgbenchInit(server, scale).finish()


def percentile(ordered, percent):
    """Nearest-rank percentile of values in order of size."""
    if not ordered:
        return float("nan")
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


def timed_call(server, sql):
    """Seconds that a statement took, measured by the client."""
    with server.connect() as connection:
        begin = time.monotonic()
        connection.query(sql)
        return time.monotonic() - begin


def parallel_calls(server, statements, setting=None):
    """Run each statement in a session of its own; seconds until all ended."""
    failures = []

    def call(sql):
        try:
            with server.connect() as connection:
                if setting:
                    connection.query("SET " + setting)
                connection.query(sql)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(sql,)) for sql in statements]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.monotonic() - begin


def wal_bytes(server):
    """Position in the WAL, as a number of bytes; of nvm_vlog together with that in its log."""
    found = logged.position(server)
    return found.wal + found.log


def preallocate_wal(server, segments=64):
    """Leave segments for reuse, as a server has that has run for a while."""
    with server.connect() as connection:
        for segment in range(segments):
            connection.query("SELECT pg_logical_emit_message(false, 'bench', 'x')")
            connection.query("SELECT pg_switch_wal()")
        connection.query("CHECKPOINT")
