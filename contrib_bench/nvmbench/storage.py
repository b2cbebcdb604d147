"""How much space tables, indexes and logs take under load, at their peak.

YCSB's table is loaded and updated by two sessions while what lies on the
medium is looked at four times a second; the sample with the largest sum
counts, as in the WBL paper.  The log is pg_wal, on both sides, and with nvm what
the pool holds that is neither table nor index (header, extent maps, directory,
commit slots, redo lanes).  What the pool has taken from the medium and not used
counts as well.  Checkpoints come as PostgreSQL's defaults have it.
"""
import os
import threading
import time

from . import alternate, load, plots, report
from .server import Server
from .workloads import Ycsb

PARTS = ["table", "indexes", "log", "unused"]
SETTINGS = {"checkpoint_timeout": "5min", "max_wal_size": "1GB", "min_wal_size": "80MB"}
SESSIONS = 2


def _directory_bytes(path):
    total = 0
    for name in os.listdir(path):
        try:
            total += os.stat(os.path.join(path, name)).st_blocks * 512
        except OSError:
            pass                        # recycled meanwhile
    return total


HEAP_SIZES = """
    SELECT sum(pg_table_size(oid)) FILTER (WHERE relkind = 'r'),
           sum(pg_table_size(oid)) FILTER (WHERE relkind = 'i'), 0, 0
    FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname <> 'bench_keys'"""

NVM_SIZES = """
    SELECT sum(r.bytes) FILTER (WHERE kind = 'r'), sum(r.bytes) FILTER (WHERE kind = 'i'),
           p.used - coalesce(sum(r.bytes), 0), p.free
    FROM nvm.pool p LEFT JOIN nvm.relations r ON true GROUP BY p.used, p.free"""


def _footprint(server, connection):
    query = NVM_SIZES if server.kind == "nvm" else HEAP_SIZES
    table, indexes, rest, free = (int(value or 0) for value in connection.query(query)[0])
    wal = _directory_bytes(os.path.join(server.data, "pg_wal"))
    return {"table": table, "indexes": indexes, "log": wal + rest, "unused": free, "wal": wal}


def _total(sample):
    return sum(sample[part] for part in PARTS)


class _Sampler(threading.Thread):
    """Looks at a server until it is stopped."""

    def __init__(self, server):
        super().__init__()
        self.server = server
        self.samples = []
        self.failure = None
        self.over = threading.Event()
        self.start()

    def run(self):
        try:
            begin = time.monotonic()
            with self.server.connect() as connection:
                while True:
                    sample = _footprint(self.server, connection)
                    sample["seconds"] = time.monotonic() - begin
                    self.samples.append(sample)
                    if self.over.wait(0.25):
                        break
        except Exception as failure:
            self.failure = failure

    def stop(self):
        self.over.set()
        self.join()
        if self.failure:
            raise self.failure
        return self.samples


def _measure(sandbox, kind, where, options, transactions):
    """Footprints of one server, made anew: after the load, at the peak, at the end."""
    settings = dict(options.server_settings, **SETTINGS)
    server = Server(sandbox, kind, kind, where, settings)
    with server.running():
        sampler = _Sampler(server)
        try:
            Ycsb("storage", 10, "").setup(server, options)
            server.query("CREATE INDEX usertable_f0 ON usertable (f0)")
            loaded = len(sampler.samples)
            wal = load.wal_bytes(server)
            load.parallel_calls(server, ["CALL bench(%d, 10)" % (transactions // SESSIONS)]
                                * SESSIONS)
            wal = load.wal_bytes(server) - wal
        finally:
            samples = sampler.stop()
    sandbox.empty(server.data)
    return {"samples": samples, "loaded": samples[min(loaded, len(samples) - 1)],
            "peak": max(samples, key=lambda s: (_total(s), -s["unused"])), "last": samples[-1],
            "wal_bytes_of_load": wal}


def _report(sandbox, options, name, found, transactions):
    info = report.machine(sandbox)
    title = "Footprint of %s rows of 1 kB, two indexes, %s transactions of YCSB 10/90" % (
        "{:,}".format(options.rows), "{:,}".format(transactions))
    rows, bars = [], []
    for when in ("loaded", "peak", "last"):
        for kind, runs in found.items():
            middle = {part: report.median([run[when][part] for run in runs]) / 1e6
                      for part in PARTS}
            total = report.median([_total(run[when]) for run in runs]) / 1e6
            against = report.median([_total(run[when]) for run in found["heap"]]) / 1e6
            rows.append([when, kind] + [report.number(middle[part]) for part in PARTS]
                        + [report.number(total), "1/%.2f" % (against / total)])
            bars.append(("%s\n%s" % (kind, when), middle))
    wal = ", ".join("%s %s MB" % (kind, report.number(report.median(
        [run["wal_bytes_of_load"] for run in runs]) / 1e6)) for kind, runs in found.items())
    text = "%s\nMB, medians of %d runs; WAL written by the transactions: %s\n%s\n\n%s" % (
        title, len(found["heap"]), wal, report.machine_line(info),
        report.table(["when", "server"] + PARTS + ["sum", "against heap"], rows))
    print(text)
    data = {"title": title, "machine": info, "parts": PARTS, "transactions": transactions,
            "runs": found}
    directory = os.path.join(sandbox.out, name)
    file_name = report.result_name(name, options)
    report.save(directory, file_name, text, data)
    plots.stacks(directory, file_name, title, "MB", bars, PARTS)
    return data


def run(sandbox, where, options, name):
    """Measure and report; returns the data of the JSON file."""
    transactions = alternate.own(options, "transactions", 400000, 4000)
    runs = alternate.own(options, "pairs", 3, 1)
    found = {"heap": [], "nvm": []}
    for turn in range(runs):
        for kind in ("heap", "nvm") if turn % 2 == 0 else ("nvm", "heap"):
            run_ = _measure(sandbox, kind, where, options, transactions)
            found[kind].append(run_)
            print("  %s: peak %s MB" % (kind, report.number(_total(run_["peak"]) / 1e6)),
                  flush=True)
    return _report(sandbox, options, name, found, transactions)
