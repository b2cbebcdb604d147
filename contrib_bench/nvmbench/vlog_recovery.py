"""nvm_vlog after a reboot, against heap's WAL replay of the same transactions.

Tables of many sizes are loaded and a checkpoint is made.  Then rows are updated until the log has
a quarter, half and all of the size of the tables.  At each of these the server is stopped at once,
its files are taken out of the page cache (but for --cached), and it starts: the tables are rebuilt
from checkpoint and log.  A heap server runs the same transactions, from a CHECKPOINT on, and
is stopped likewise.  The starts of both take turns.
"""
import os

from . import alternate, logged, plots, reboot, report
from .backend_death import memory_limit
from .big_tables import NAMES, BigTables
from .recovery import NO_CHECKPOINTS, split
from .sandbox import Trouble, filesystem_of
from .server import Server

SIZE_MB = 4096
PARTS = [0.25, 0.5, 1]      # of the size: the log's
CHUNKS = 32                 # of transactions, in about the whole log
RECORD_BYTES = 320          # of a transaction, about: how large a chunk is

#: by key: a table answers when its index does
QUESTIONS = ["SELECT n FROM %s WHERE id = 1" % name for name in NAMES]

SETTINGS = dict(NO_CHECKPOINTS, **{"autovacuum": "off"})
#: no checkpoint of tables in memory but the one that is asked for
VLOG_SETTINGS = {"nvm.checkpoint_interval": "0", "nvm.checkpoint_log_size": "1TB"}


def _summary(answers):
    ordered = sorted(answers)
    return {"small_s": answers[0], "first_s": ordered[0], "median_s": report.median(ordered),
            "last_s": ordered[-1]}


class _Arm:
    """A server with its tables, and the transactions that it has run."""

    def __init__(self, server, size_mb, options):
        self.server = server
        self.options = options
        self.tables = BigTables(server, size_mb)
        # a chunk's updates of a table, for each of its shares
        shares = sum(range(len(NAMES))) + 1
        self.each = max(2, size_mb * 1000000 // RECORD_BYTES // CHUNKS // shares)
        self.parts = []

    def load(self):
        self.tables.create()
        self.tables.load(1)
        self.server.query("VACUUM ANALYZE")

    def persist(self):
        """A commit that waits: everything before it is on the disk."""
        self.server.query("UPDATE t0 SET n = n WHERE id = 1")

    def say(self, what):
        print("  %s: %s" % (self.server.name, what), flush=True)


class _Vlog(_Arm):
    def load(self):
        super().load()
        self.server.query("SELECT nvm.checkpoint()")
        self.before = logged.position(self.server)
        self.chunk = self.transactions = 0
        self.directory = self.server.value("SELECT directory FROM nvm.log")
        known = self.server.value(
            "SELECT count(*) FROM pg_settings WHERE name = 'nvm.recovery_workers'") != "0"
        #: values of the setting to be tried; None: there is no such setting
        self.workers = [1, 2] if known else [None]

    def update(self, part):
        """Until the log has grown to that part of the tables' size."""
        wanted = part * self.tables.row_mb * 1e6
        while logged.since(self.server, self.before).log < wanted:
            self.transactions += self.tables.run_chunk(self.chunk, self.each)
            self.chunk += 1
        self.persist()
        found = logged.since(self.server, self.before)
        self.say("%s transactions, log of %.0f MB" % (
            "{:,}".format(self.transactions), found.log / 1e6))
        self.parts.append({"part": part, "chunks": self.chunk, "transactions": self.transactions,
                           "log_mb": found.log / 1e6, "wal_mb": found.wal / 1e6,
                           "disk_mb_s": reboot.read_rate(self.directory), "starts": []})

    def start(self, turn):
        """A start with each number of workers."""
        for count in self.workers if turn % 2 == 0 else self.workers[::-1]:
            self.parts[-1]["starts"].append(self._start(count))

    def _start(self, workers):
        server = self.server
        if workers is not None:
            server.write_settings(**{"nvm.recovery_workers": workers})
        # after a start it is not told at once
        checkpoint, log = (int(value) for value in server.query(
            "SELECT c.bytes, l.persistent - c.begin_position FROM nvm.checkpoints c, nvm.log l"
            " WHERE c.state = 'usable'")[0])
        reboot.stop_at_once(server, self.options.cached)
        answers, watch = reboot.start(server, QUESTIONS)
        state, begin, end, rows = server.query(
            "SELECT state, extract(epoch FROM started), extract(epoch FROM finished), rows"
            " FROM nvm.log_recovery")[0]
        if state != "whole" or begin is None or int(rows) < sum(self.tables.rows.values()):
            raise Trouble("server %s did not rebuild its tables: %s, %s rows" % (
                server.name, state, rows))
        begin, end = float(begin), float(end)
        self.tables.verify()
        # before the next one is asked
        server.query("SELECT pg_sleep(1.5)")
        found = dict(_summary(answers), workers=workers, rebuild_s=end - begin,
                     rebuild_cpu_s=watch.between(begin, end), checkpoint_mb=checkpoint / 1e6,
                     log_mb=log / 1e6)
        self.say("%s: first answer %.2f s, last %.2f s, rebuilt in %.2f s" % (
            "%d of the workers" % (workers or 1), found["first_s"],
            found["last_s"], found["rebuild_s"]))
        return found

    def rows(self, cpus):
        """(label, cells, part, workers, starts) of each line of the table."""
        for part in self.parts:
            for count in self.workers:
                starts = [found for found in part["starts"] if found["workers"] == count]
                took, spent = _middle(starts, "rebuild_s"), _middle(starts, "rebuild_cpu_s")
                read = _middle(starts, "checkpoint_mb") + _middle(starts, "log_mb")
                yield ("nvm_vlog, %d worker%s" % (count or 1, "s" if count and count > 1 else ""),
                       [_middle(starts, "checkpoint_mb"), _middle(starts, "log_mb")]
                       + [_middle(starts, key) for key in ("first_s", "median_s", "last_s")]
                       + [took, read / took, read / took / min(count or 1, cpus),
                          read / spent if spent else None, spent / took], part, count, starts)


class _Heap(_Arm):
    def load(self):
        super().load()
        self.copy = os.path.join(self.server.sandbox.work, "copy")

    def update(self, part, chunks):
        """Those chunks, from a CHECKPOINT on."""
        self.server.query("CHECKPOINT")
        before, transactions = logged.position(self.server), 0
        for chunk in range(chunks):
            transactions += self.tables.run_chunk(chunk, self.each)
        self.persist()
        wal = logged.since(self.server, before).wal / 1e6
        self.say("%s transactions, WAL of %.0f MB" % ("{:,}".format(transactions), wal))
        self.parts.append({"part": part, "transactions": transactions, "wal_mb": wal,
                           "starts": []})

    def start(self, turn):
        server = self.server
        reboot.stop_at_once(server, cached=True)
        if turn > 0:
            # the start before has ended with a checkpoint
            server.restore(self.copy)
        elif self.options.starts > 1:
            server.save(self.copy)
        if not self.options.cached:
            reboot.forget_files(server.data)
        position = server.log_size()
        answers, watch = reboot.start(server, QUESTIONS)
        parts = split(server.log_since(position), max(answers))
        self.tables.verify()
        found = dict(_summary(answers), redo_s=parts["redo_ms"] / 1000,
                     checkpoint_s=parts["checkpoint_ms"] / 1000, cpu_s=watch.samples[-1][1])
        self.say("first answer %.2f s, last %.2f s, redo %.2f s" % (
            found["first_s"], found["last_s"], found["redo_s"]))
        self.parts[-1]["starts"].append(found)

    def rows(self):
        for part in self.parts:
            starts = part["starts"]
            redo, spent = _middle(starts, "redo_s"), _middle(starts, "cpu_s")
            rate = part["wal_mb"] / redo if redo else None
            yield ("heap", [None, part["wal_mb"]]
                   + [_middle(starts, key) for key in ("first_s", "median_s", "last_s")]
                   + [redo, rate, rate, part["wal_mb"] / spent if spent else None,
                      spent / _middle(starts, "last_s")], part, starts)


def _middle(starts, key):
    return report.median([found[key] for found in starts])


def _ratios(vlog, heap):
    """Lines of a table: until the last table answers, heap's time by nvm_vlog's, turn by turn."""
    for mine, theirs in zip(vlog.parts, heap.parts):
        for count in vlog.workers:
            starts = [found for found in mine["starts"] if found["workers"] == count]
            row = ["%s transactions, %d of the workers" % (
                "{:,}".format(mine["transactions"]), count or 1)]
            for key in ("first_s", "last_s"):
                summary = report.summarize_pairs([
                    (a[key], b[key]) for a, b in zip(starts, theirs["starts"])])
                row += ["%.2fx" % summary["ratio"], "%.2f .. %.2f" % (
                    summary["ratio_min"], summary["ratio_max"])]
            yield row


def _plot(directory, name, title, vlog, heap, cpus):
    sizes = [round(part["log_mb"]) for part in vlog.parts]
    lines = [("heap", 0, [starts for label, cells, part, starts in heap.rows()])]
    for number, count in enumerate(vlog.workers):
        lines.append(("nvm_vlog, %d of %d cores" % (count or 1, cpus), number + 1,
                      [starts for label, cells, part, workers, starts in vlog.rows(cpus)
                       if workers == count]))

    def panel(heading, key):
        return (heading, "MB of nvm_vlog's log", "seconds", [
            (label, color, "-", [(size, [found[key] for found in starts])
                                 for size, starts in zip(sizes, by_part)])
            for label, color, by_part in lines])

    return plots.curves(directory, name, title, [[
        panel("the first table answers", "first_s"), panel("the median one", "median_s"),
        panel("the last one", "last_s")]])


def _conditions(options, vlog):
    if options.cached:
        return "files in the page cache"
    return "files out of the page cache; one process reads those of the log at %s MB/s" % (
        report.number(report.median([part["disk_mb_s"] for part in vlog.parts])))


def _report(sandbox, where, options, name, vlog, heap):
    info = report.machine(sandbox)
    number = report.number
    rows = [["%s, %s transactions" % (label, "{:,}".format(part["transactions"]))]
            + [number(cell) for cell in cells]
            for label, cells, part, *rest in list(vlog.rows(info["cpus"])) + list(heap.rows())]
    title = "A reboot with %s MB of rows in %d tables, by the size of the log" % (
        number(vlog.tables.row_mb), len(NAMES))
    text = "%s; log and WAL on %s (%s)\nmedians of %d starts; %s; %s\n\n%s\n%s\n%s" % (
        title, options.wal, filesystem_of(where), options.starts, _conditions(options, vlog),
        report.machine_line(info),
        report.table(["", "checkpoint MB", "log or WAL MB", "first answer s", "median table s",
                      "last table s", "rebuild or redo s", "MB/s", "MB/s a core",
                      "MB per CPU s", "CPUs busy"], rows),
        report.table(["time of heap by that of nvm_vlog", "first", "turns", "last", "turns"],
                     list(_ratios(vlog, heap))), NOTES)
    print(text)
    data = {"title": title, "wal": options.wal, "filesystem": filesystem_of(where),
            "machine": info, "row_mb": vlog.tables.row_mb, "cached": options.cached,
            "nvm_vlog": vlog.parts, "heap": heap.parts,
            "settings": {arm.server.kind: arm.server.settings for arm in (vlog, heap)}}
    directory = os.path.join(sandbox.out, name)
    file_name = report.result_name(name, options) + ("_cached" if options.cached else "")
    report.save(directory, file_name, text, data)
    if not _plot(directory, file_name, title, vlog, heap, info["cpus"]):
        print(report.PLOTS_SKIPPED)
    return data


NOTES = """\
Stopped at once. Each table is asked for a row by its key, in a session of its own, from the start on.
MB/s: checkpoint and log by the time of the rebuild; heap: WAL by the time of redo. A core: by the number of
workers. MB per CPU s and CPUs busy: by what all processes of the server spent in that time (heap: from
the start to the last answer, with the checkpoint that ends recovery). After each start all rows and all
updates were there.
"""


def run(sandbox, where, options, name):
    """Measure and report; returns the data of the JSON file."""
    size_mb = options.size_mb or (48 if options.quick else SIZE_MB)
    options.starts = alternate.own(options, "pairs", 3, 1)
    settings = dict(options.server_settings, **SETTINGS)
    ours = dict(memory_limit(size_mb), **VLOG_SETTINGS)
    vlog = _Vlog(Server(sandbox, "nvm_vlog", "nvm_vlog", where, dict(ours, **settings)), size_mb,
                 options)
    heap = _Heap(Server(sandbox, "heap", "heap", where, settings), size_mb, options)
    with vlog.server.running(), heap.server.running():
        for arm in (vlog, heap):
            arm.load()
            arm.say("loaded %.0f MB of rows" % arm.tables.row_mb)
        for part in PARTS:
            vlog.update(part)
            heap.update(part, vlog.parts[-1]["chunks"])
            for turn in range(options.starts):
                for arm in (vlog, heap) if turn % 2 == 0 else (heap, vlog):
                    arm.start(turn)
    return _report(sandbox, where, options, name, vlog, heap)
