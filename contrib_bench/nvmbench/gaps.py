"""Throughput while the gaps of earlier crashes are being cleaned up.

The server is killed three times under load with the collector held back, so
that three gaps stay open; then the same load runs with the collector at work,
and is compared with the load on a server that has none.
"""
import os
import time

from . import load, report
from .server import Server
from .workloads import Update

CRASHES = 3
CLIENTS = 4


def _crash_under_load(server, options):
    workload = Update()
    run = load.PgbenchRun(server, workload.arguments(server, options), CLIENTS, 30)
    time.sleep(2)
    server.kill()
    run.finish(may_fail=True)
    server.start()


def _collector(server, state):
    server.query("ALTER SYSTEM SET nvm.collect_gaps = %s" % state)
    server.query("SELECT pg_reload_conf()")


def _open_gaps(server):
    return int(server.value("SELECT count(*) FROM nvm.gaps"))


def _wait_collected(server, timeout=300):
    begin = time.monotonic()
    while _open_gaps(server) > 0:
        if time.monotonic() - begin > timeout:
            raise AssertionError("the gap collector did not finish within %d s" % timeout)
        time.sleep(0.1)
    return time.monotonic() - begin


def run(sandbox, where, options, name):
    workload = Update()
    server = Server(sandbox, "gaps", options.b, where, options.server_settings)
    pairs, held_back, opened, cleaned = [], [], [], []
    with server.running():
        workload.setup(server, options)
        arguments = workload.arguments(server, options)

        def measure(seconds=options.seconds):
            return load.pgbench(server, arguments, CLIENTS, seconds)["tps"]

        measure(options.seconds / 2 + 1)
        for pair in range(options.pairs):
            _collector(server, "off")
            for crash in range(CRASHES):
                _crash_under_load(server, options)
            measure(3)                      # caches and connections as warm as below
            opened.append(_open_gaps(server))
            held_back.append(measure())
            _collector(server, "on")
            collecting = measure()
            cleaned.append(_wait_collected(server))
            none = measure()
            pairs.append((none, collecting))
            print("  pair %d: none %s, collecting %s, held back %s, %d gaps" %
                  (pair + 1, report.number(none), report.number(collecting),
                   report.number(held_back[-1]), opened[-1]), flush=True)
    summary = report.summarize_pairs(pairs)
    info = report.machine(sandbox)
    title = "Throughput with the gaps of %d crashes open, single-row updates, %d clients" % (
        CRASHES, CLIENTS)
    rows = [["no gaps", report.number(summary["a"]), "1.00x"],
            ["collector at work", report.number(summary["b"]), "%.2fx" % summary["ratio"]],
            ["collector held back", report.number(report.median(held_back)),
             "%.2fx" % (report.median(held_back) / summary["a"])]]
    text = "%s, WAL on %s\nmedians of %d pairs; %s\nopen gaps before: %s\n\n%s" % (
        title, options.wal, len(pairs), report.machine_line(info), opened,
        report.table(["", "transactions per second", "ratio"], rows))
    print(text)
    data = {"title": title, "machine": info, "wal": options.wal, "pairs": pairs,
            "held_back": held_back, "open_gaps": opened, "summary": summary,
            "seconds_to_clean_after_run": cleaned}
    directory = os.path.join(sandbox.out, name)
    file_name = report.result_name(name, options)
    report.save(directory, file_name, text, data)
    report.plot_pairs(directory, file_name, "Gap collector at work", "transactions per second",
                      ["no gaps", "three gaps, collecting"], [("update, 4 clients", pairs)])
    return data
