"""What workloads with arms and cases of their own have in common.

An arm is what is compared: a server, or a way to use one.  Arms take turns,
and each round goes through them the other way round than the one before, so
that what the machine does meanwhile is shared out fairly.
"""
import time

from . import report


def own(options, name, full, quick):
    """An option as asked for, or else this workload's own default."""
    asked = options.asked[name]
    if asked is None:
        return quick if options.quick else full
    return [int(n) for n in asked.split(",")] if name == "clients" else asked


def wanted(options, name):
    """Is the case among those of --cases?"""
    texts = [text for text in options.cases.split(",") if text]
    return not texts or any(text in name for text in texts)


def one_round(turn, measures):
    """Call each of measures once, in this turn's order; their values."""
    values = [None] * len(measures)
    arms = range(len(measures))
    for arm in arms if turn % 2 == 0 else reversed(arms):
        values[arm] = measures[arm]()
    return values


def rounds(count, measures):
    """Call each of measures once a round; their values, round by round."""
    return [one_round(turn, measures) for turn in range(count)]


def run_case(name, count, labels, measures):
    """rounds(), shown while it runs; measures return numbers."""
    found = rounds(count, measures)
    print("  %s: %s" % (name, ", ".join(
        "%s %s" % (label, report.number(report.median([values[arm] for values in found])))
        for arm, label in enumerate(labels))), flush=True)
    return found


def pairs_row(name, found, unit=None):
    """A line of a table: medians of two arms, their ratio and its spread."""
    summary = report.summarize_pairs(found)
    cells = [name] if unit is None else [name, unit]
    return cells + [report.number(summary["a"]), report.number(summary["b"]),
                    "%.2fx" % summary["ratio"],
                    "%.2f .. %.2f" % (summary["ratio_min"], summary["ratio_max"])]


class Rate(float):
    """So many a second, and a second of the processor time of its session.

    The second hardly depends on what else runs on the machine.  It leaves out
    what other processes did: workers, the WAL writer, the checkpointer.
    """
    cpu = None


def _cpu_seconds(pid):
    with open("/proc/%s/schedstat" % pid) as stat:
        return int(stat.read().split()[0]) / 1e9


def timed_rate(server, sql, count, settings=()):
    """Rate of one statement in a session of its own, which does count of something."""
    with server.connect() as connection:
        for setting in settings:
            connection.query("SET " + setting)
        pid = connection.value("SELECT pg_backend_pid()")
        cpu, begin = _cpu_seconds(pid), time.monotonic()
        connection.query(sql)
        rate = Rate(count / (time.monotonic() - begin))
        rate.cpu = count / max(1e-6, _cpu_seconds(pid) - cpu)
        return rate


def cpu_rounds(found):
    """The same rounds by processor time, or None."""
    if all(getattr(value, "cpu", None) for values in found for value in values):
        return [tuple(value.cpu for value in values) for values in found]
    return None


def cpu_ratio(found, arms=(0, 1)):
    """Text: how the second arm is to the first by processor time, and the spread."""
    by_cpu = cpu_rounds(found)
    if by_cpu is None:
        return ["-", "-"]
    summary = report.summarize_pairs([tuple(values[arm] for arm in arms) for values in by_cpu])
    return ["%.2fx" % summary["ratio"],
            "%.2f .. %.2f" % (summary["ratio_min"], summary["ratio_max"])]
