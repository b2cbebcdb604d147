"""Heap, nvm and nvm_vlog under pgbench, killed in mid-run, restarted and verified.

A server for each in turn, with PostgreSQL's default settings.  On each:

  1. pgbench -i; pgbench's TPC-B-like script, measured;
  2. the same script again, and beside it a client that logs the id of each
     acknowledged transaction in a file that no server knows of;
  3. SIGKILL to all processes of the server while both run: its memory is gone.
     What the kernel has cached of its files is dropped, as a reboot would;
  4. restart, time to the first answer, and to the first one from a table;
  5. every balance, every acknowledged id.

What is on which medium: heap's WAL and data, nvm_vlog's log, and its pool, which
has its directory of tables, lie on one disk.  nvm's pool lies on tmpfs, which
stands in for persistent memory.
"""
import argparse
import os
import random
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
SOURCE = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(SOURCE, "contrib_bench"))

from nvmbench import libpq, load, report                            # noqa: E402
from nvmbench.sandbox import (Sandbox, Trouble, filesystem_of,      # noqa: E402
                              find_pg_config, pg_config)
from nvmbench.server import OURS, Server                               # noqa: E402

KINDS = ("heap", "nvm", "nvm_vlog")
FIRST_ROW = "SELECT abalance FROM pgbench_accounts WHERE aid = 1"


def say(text=""):
    print(text, flush=True)


def compile_client(sandbox):
    original = find_pg_config()
    program = os.path.join(sandbox.work, "ackclient")
    done = subprocess.run(
        ["cc", "-O2", "-o", program, os.path.join(sandbox.work, "src/demo/ackclient.c"),
         "-I" + pg_config(original, "includedir"),
         "-L" + pg_config(original, "libdir"), "-lpq"],
        capture_output=True, text=True)
    if done.returncode != 0:
        raise Trouble("compiling ackclient.c failed:\n" + done.stderr)
    return program


def own_log_bytes(server):
    """What of load.wal_bytes() is in the log of nvm_vlog tables."""
    return int(server.value("SELECT inserted FROM nvm.log")) if server.kind == "nvm_vlog" else 0


def measured_run(server, options, sandbox):
    prefix = os.path.join(sandbox.work, server.name + "_latency")
    before = load.wal_bytes(server), own_log_bytes(server)
    run = load.PgbenchRun(server, ["-b", "tpcb-like"], options.clients, options.seconds,
                          log_prefix=prefix)
    result = run.finish()
    latencies = run.latencies_ms()
    both, own = [(after - start) / result["transactions"] for after, start
                 in zip((load.wal_bytes(server), own_log_bytes(server)), before)]
    # no average: with so many clients in a closed loop it is throughput once more
    return {"tps": result["tps"], "p50_ms": load.percentile(latencies, 50),
            "p95_ms": load.percentile(latencies, 95), "p99_ms": load.percentile(latencies, 99),
            "logged_bytes": both, "wal_bytes": both - own}


def killed_run(server, options, client, log):
    """Load, kill; returns what was acknowledged and for how long it ran."""
    long_enough = str(int(options.seconds) + 60)
    acks = subprocess.Popen(
        [client, "run", "--conninfo", server.conninfo, "--clients", str(options.clients),
         "--seconds", long_enough, "--log", log, "--abort-percent", "5"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    run = load.PgbenchRun(server, ["-b", "tpcb-like"], options.clients, long_enough)
    moment = options.seconds + random.uniform(0, 2)
    time.sleep(moment)
    if acks.poll() is not None or run.process.poll() is not None:
        raise Trouble("the load ended before the kill; see what the server said:\n"
                      + server.log_tail())
    server.kill()
    run.finish(may_fail=True)
    output = acks.communicate()[0]
    return moment, int(re.search(r"acknowledged=(\d+)", output).group(1))


def drop_cached(directory):
    """Forget what the kernel has cached of these files, which are on the disk."""
    os.sync()
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                descriptor = os.open(os.path.join(place, name), os.O_RDONLY | os.O_NONBLOCK)
            except OSError:     # a socket
                continue
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def restart(server):
    """Seconds from the start to the first answer, and to the first one from a table."""
    position = server.log_size()
    begin = time.monotonic()
    server.start()
    answer = time.monotonic() - begin
    server.query(FIRST_ROW)
    row = time.monotonic() - begin
    for line in server.log_since(position).splitlines():
        if re.search("nvm: recovery found|nvm: rebuilt .* from the log|redo done", line):
            say("    " + line.split("LOG:  ")[-1])
    say("    first answer after %.2f s, the first row after %.2f s" % (answer, row))
    return {"answer_s": answer, "row_s": row}


def verify(server, client, log):
    """All balances, all acknowledged ids; of our tables what their checker says."""
    done = subprocess.run([client, "verify", "--conninfo", server.conninfo, "--log", log],
                          capture_output=True, text=True)
    say("    " + "\n    ".join(done.stdout.split("\n")).rstrip() + done.stderr)
    return done.returncode == 0 and (server.kind not in OURS or check_tables(server) == 0)


def one_server(sandbox, options, client, kind):
    """All five steps on one kind of table; returns the figures."""
    server = Server(sandbox, "demo_" + kind, kind, sandbox.work)
    log = os.path.join(sandbox.work, kind + ".acknowledged")
    with server.running():
        load.pgbench_init(server, options.scale)
        server.query("CHECKPOINT")
        if kind == "nvm_vlog":
            server.query("SELECT nvm.checkpoint()")
        subprocess.run([client, "init", "--conninfo", server.conninfo], check=True)
        say("%s: pgbench, %d clients, %d s ..." % (kind, options.clients, options.seconds))
        result = measured_run(server, options, sandbox)
        moment, result["acknowledged"] = killed_run(server, options, client, log)
        say("%s: SIGKILL to all processes after %.1f s of pgbench and %d other clients;"
            " %s transactions acknowledged to those"
            % (kind, moment, options.clients, "{:,}".format(result["acknowledged"])))
        drop_cached(server.data)
        result.update(restart(server))
        result["verified"] = verify(server, client, log)
        server.stop()
    return result


def check_tables(server):
    """Findings of pg_nvm's own checker; there should be none."""
    with server.connect() as connection:
        findings = connection.query("SELECT * FROM nvm.check_pool()")
        for table in ("accounts", "tellers", "branches", "history"):
            findings += connection.query("SELECT * FROM nvm.check('pgbench_%s')" % table)
    for finding in findings[:20]:
        say("    check: %s" % " ".join(str(column) for column in finding))
    return len(findings)


def results_table(results):
    """Beside the figures of each kind but the first: how much better it is than that."""
    kinds = list(results)

    def row(label, key, better, factor=1):
        base = results[kinds[0]][key]
        cells = [label, report.number(base * factor)]
        for kind in kinds[1:]:
            value = results[kind][key]
            ratio = value / base if better == "more" else base / value
            cells += [report.number(value * factor), "(%sx)" % report.number(ratio)]
        return cells

    def words(label, text):
        cells = [label, text(results[kinds[0]])]
        for kind in kinds[1:]:
            cells += [text(results[kind]), ""]
        return cells

    rows = [row("transactions per second", "tps", "more"),
            row("latency, median, ms", "p50_ms", "less"),
            row("latency, 95th percentile, ms", "p95_ms", "less"),
            row("latency, 99th percentile, ms", "p99_ms", "less"),
            row("bytes per transaction, WAL and log", "logged_bytes", "less"),
            words("  of these WAL", lambda result: report.number(result["wal_bytes"])),
            row("start to first answer, ms", "answer_s", "less", 1000),
            row("start to first row of a table, ms", "row_s", "less", 1000),
            words("acknowledged transactions checked",
                  lambda result: "{:,}".format(result["acknowledged"])),
            words("these and all balances",
                  lambda result: "all there" if result["verified"] else "WRONG")]
    header = ["", kinds[0]]
    for kind in kinds[1:]:
        header += [kind, "better"]
    return report.table(header, rows)


MEDIA = {
    "heap": "heap: WAL and data on %(disk)s.",
    "nvm": "nvm: the pool on %(shm)s, which stands in for persistent memory; a reboot would lose it.",
    "nvm_vlog": "nvm_vlog: rows in memory; log and checkpoints on %(disk)s.",
}


def results_text(sandbox, options, results, machine):
    disk, shm = filesystem_of(sandbox.work), filesystem_of(sandbox.shm)
    media = "\n".join(MEDIA[kind] % {"disk": disk, "shm": shm} for kind in results)
    return "\npgbench TPC-B-like, scale %d, %d clients, -M prepared, %d s; default settings,\n" \
        "synchronous_commit = on. Then all processes killed under load, the kernel's copies of\n" \
        "the files on the disk dropped, and a start. In brackets: times better than %s.\n" \
        "%s\n%s\n\n%s" % (options.scale, options.clients, options.seconds, next(iter(results)),
                       media, machine, results_table(results))


def draw(sandbox, options, results):
    return report.plot_panels(
        sandbox.out, "demo", "pgbench TPC-B-like, %d clients, then a kill" % options.clients,
        list(results),
        [(label, [result[key] * factor for result in results.values()], better)
         for label, key, factor, better in (
             ("transactions\nper second", "tps", 1, "more"),
             ("latency,\nmedian, ms", "p50_ms", 1, "less"),
             ("latency,\n99th percentile, ms", "p99_ms", 1, "less"),
             ("bytes per transaction,\nWAL and log", "logged_bytes", 1, "less"),
             ("after the kill: start to\nfirst answer, ms", "answer_s", 1000, "less"),
             ("after the kill: start to\nfirst row of a table, ms", "row_s", 1000, "less"))])


def time_taken(own, began):
    """What it took: began, if known, is when the whole of it did (demo/run)."""
    whole = time.time() - float(began) if began else own
    if whole - own < 5:
        return "took %d s" % own
    return "took %d s: %d s for packages, %d s for all the rest" % (whole, whole - own, own)


def work(sandbox, options):
    begin = time.monotonic()
    kinds = list(dict.fromkeys(options.kinds))
    say("PostgreSQL's data directories: %s (%s)" % (sandbox.work, filesystem_of(sandbox.work)))
    if "nvm" in kinds:
        say("NOTICE: the pool of nvm is on /dev/shm (%s), which stands in for persistent memory."
            % filesystem_of(sandbox.shm))
        say("        It survives the death of all processes, which is what happens here; tmpfs")
        say("        would not survive a reboot. What heap and nvm_vlog have on the disk would.")
    say("preparing a private copy of PostgreSQL, building pg_nvm ...")
    sandbox.make_prefix()
    client = compile_client(sandbox)
    if set(kinds) & set(OURS):
        sandbox.build_extension()
    say("built in %d s" % (time.monotonic() - begin))
    results = {kind: one_server(sandbox, options, client, kind) for kind in kinds}
    machine = report.machine_line(report.machine(sandbox))
    text = results_text(sandbox, options, results, machine)
    say(text)
    report.save(sandbox.out, "demo", text, {"machine": machine, "results": results})
    if not draw(sandbox, options, results):
        say(report.PLOTS_SKIPPED)
    say(time_taken(time.monotonic() - begin, os.environ.get("NVM_DEMO_BEGAN")))
    return 0 if all(result["verified"] for result in results.values()) else 1


def main():
    parser = argparse.ArgumentParser(prog="demo/run", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=12, help="of each run (default 12)")
    parser.add_argument("--clients", type=int, default=4, help="default 4")
    parser.add_argument("--scale", type=int, default=10, help="of pgbench -i (default 10)")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS, metavar="KIND",
                        help="of %s (default all); others are compared with the first"
                        % ", ".join(KINDS))
    parser.add_argument("--results", default=os.path.join(HERE, "out"),
                        help="directory for table and pictures (default demo/out)")
    parser.add_argument("--keep", action="store_true", help="keep the files of the servers")
    options = parser.parse_args()
    try:
        libpq.lib()
        status = Sandbox("demo", SOURCE, options.keep).run(
            lambda sandbox: work(sandbox, options), options.results)
    except (Trouble, libpq.Error) as trouble:
        print("error: %s" % trouble, file=sys.stderr)
        return 1
    if status == 0:
        print("table and pictures: %s" % options.results)
    return status


if __name__ == "__main__":
    sys.exit(main())
