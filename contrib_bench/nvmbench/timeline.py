"""Throughput and latency over time, and the checkpoints of tables in memory meanwhile."""
import glob
import os
import threading
import time

from . import libpq, report

#: of one second: it ends at this time (epoch), transactions, mean and highest latency
FIELDS = ("end", "transactions", "mean_ms", "max_ms")


def read_aggregates(prefix, batch=1):
    """What pgbench --aggregate-interval=1 has logged, its threads together; removes it.

    batch: transactions of the server that each of pgbench's runs.  Seconds in which no
    transaction ended are there, too.
    """
    seconds = {}
    for path in glob.glob(prefix + ".*"):
        with open(path) as log:
            for line in log:
                second, count, total, squares, least, most = line.split()[:6]
                found = seconds.setdefault(int(second), [0, 0, 0])
                found[0] += int(count)
                found[1] += int(total)
                found[2] = max(found[2], int(most))
        os.unlink(path)
    if not seconds:
        return []
    series = []
    # the first one and the last one are not whole
    for second in range(min(seconds) + 1, max(seconds)):
        count, total, most = seconds.get(second, (0, 0, 0))
        series.append({"end": second + 1, "transactions": count * batch,
                       "mean_ms": total / count / batch / 1000 if count else None,
                       "max_ms": most / 1000 if count and batch == 1 else None})
    return series


class Checkpoints(threading.Thread):
    """Makes checkpoints of tables in memory, one after another with a pause between them."""

    def __init__(self, server, pause):
        super().__init__(daemon=True)
        self.server = server
        self.pause = pause
        self.ended = threading.Event()
        self.made = []          # number, when it began and ended (epoch), rows, bytes
        self.problem = None

    def run(self):
        try:
            with self.server.connect() as connection:
                while not self.ended.is_set():
                    connection.query("SELECT nvm.checkpoint()")
                    row = connection.query(
                        "SELECT number, extract(epoch FROM started), extract(epoch FROM finished),"
                        " rows, bytes FROM nvm.checkpoints WHERE state = 'usable'")[0]
                    self.made.append({"number": int(row[0]), "began": float(row[1]),
                                      "ended": float(row[2]), "rows": int(row[3]),
                                      "bytes": int(row[4])})
                    self.ended.wait(self.pause)
        except libpq.Error as error:
            self.problem = error

    def stop(self):
        """Wait for the one that is being made; what was made."""
        self.ended.set()
        self.join()
        if self.problem:
            raise self.problem
        return self.made


def draw(axes, origin, series, key, color, label):
    """A line of a series of seconds; a second without a value is a gap."""
    axes.plot([row["end"] - origin for row in series],
              [float("nan") if row[key] is None else row[key] for row in series],
              color=color, linewidth=1.1, label=label)


def shade(axes, origin, checkpoints, last, color):
    """From the beginning of each checkpoint to its end."""
    for made in checkpoints:
        begin, end = made["began"] - origin, made["ended"] - origin
        if begin < last:
            axes.axvspan(max(begin, 0), min(end, last), color=color, alpha=0.15, linewidth=0)
            axes.axvline(min(end, last), color=color, linewidth=0.6, linestyle=":")


def plot(directory, name, title, cases, colors):
    """Throughput above, latency below, a column for each case.

    cases: [(heading, [(arm, begin, series, checkpoints)])]; colors: of the arms.
    """
    pyplot = report._pyplot()
    if pyplot is None:
        return False
    figure, all_axes = pyplot.subplots(2, len(cases), squeeze=False, sharex="col",
                                       figsize=(4.2 * len(cases) + 0.6, 5.4))
    for column, (heading, arms) in enumerate(cases):
        upper, lower = all_axes[0][column], all_axes[1][column]
        for number, (arm, begin, series, checkpoints) in enumerate(arms):
            label = arm if column == 0 else None
            last = max((row["end"] - begin for row in series), default=0)
            draw(upper, begin, series, "transactions", colors[number], label)
            draw(lower, begin, series, "mean_ms", colors[number], None)
            for axes in (upper, lower):
                shade(axes, begin, checkpoints, last, colors[number])
        upper.set_title(heading, fontsize=9)
        upper.set_ylim(bottom=0)
        lower.set_ylim(bottom=0)
        lower.set_xlabel("seconds")
    all_axes[0][0].set_ylabel("transactions a second")
    all_axes[1][0].set_ylabel("mean latency, ms")
    figure.legend(frameon=False, loc="upper center", ncol=len(colors), bbox_to_anchor=(0.5, 0.02))
    figure.suptitle(title, fontsize=10)
    report._save_figure(pyplot, figure, directory, name)
    return True


def now():
    """The clock of the series."""
    return time.time()
