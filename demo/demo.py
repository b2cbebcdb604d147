"""Heap and nvm under pgbench, killed in mid-run, restarted and verified.

Two servers in turn, with PostgreSQL's default settings.  On each:

  1. pgbench -i; pgbench's TPC-B-like script, measured;
  2. the same script again, and beside it a client that logs the id of each
     acknowledged transaction in a file that no server knows of;
  3. SIGKILL to all processes of the server while both run;
  4. restart, time to the first answer about the data;
  5. every balance, every acknowledged id.
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
from nvmbench.server import Server                                  # noqa: E402

FIRST_QUERY = "SELECT abalance FROM pgbench_accounts WHERE aid = 1"


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


def measured_run(server, options, sandbox):
    prefix = os.path.join(sandbox.work, server.name + "_latency")
    before = load.wal_bytes(server)
    run = load.PgbenchRun(server, ["-b", "tpcb-like"], options.clients, options.seconds,
                          log_prefix=prefix)
    result = run.finish()
    latencies = run.latencies_ms()
    # no average: with so many clients in a closed loop it is throughput once more
    return {"tps": result["tps"], "p50_ms": load.percentile(latencies, 50),
            "p95_ms": load.percentile(latencies, 95), "p99_ms": load.percentile(latencies, 99),
            "wal_bytes": (load.wal_bytes(server) - before) / result["transactions"]}


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


def one_server(sandbox, options, client, kind):
    """All five steps on one kind of table; returns the figures."""
    server = Server(sandbox, "demo_" + kind, kind, sandbox.work)
    log = os.path.join(sandbox.work, kind + ".acknowledged")
    with server.running():
        load.pgbench_init(server, options.scale)
        server.query("CHECKPOINT")
        subprocess.run([client, "init", "--conninfo", server.conninfo], check=True)
        say("%s: pgbench, %d clients, %d s ..." % (kind, options.clients, options.seconds))
        result = measured_run(server, options, sandbox)
        moment, result["acknowledged"] = killed_run(server, options, client, log)
        say("%s: SIGKILL to all processes after %.1f s of pgbench and %d other clients;"
            " %s transactions acknowledged to those"
            % (kind, moment, options.clients, "{:,}".format(result["acknowledged"])))
        os.sync()       # PostgreSQL fsyncs everything; a power cut leaves nothing to write
        position = server.log_size()
        result["restart_s"] = server.start(first_query=FIRST_QUERY)
        for line in server.log_since(position).splitlines():
            if "nvm: recovery found" in line or "redo done" in line:
                say("    " + line.split("LOG:  ")[-1])
        verify = subprocess.run([client, "verify", "--conninfo", server.conninfo, "--log", log],
                                capture_output=True, text=True)
        say("    " + "\n    ".join(verify.stdout.split("\n")).rstrip() + verify.stderr)
        result["verified"] = verify.returncode == 0
        if kind == "nvm":
            result["checked"] = check_pool(server)
            result["verified"] = result["verified"] and not result["checked"]
        server.stop()
    return result


def check_pool(server):
    """Findings of pg_nvm's own checker; there should be none."""
    with server.connect() as connection:
        findings = connection.query("SELECT * FROM nvm.check_pool()")
        for table in ("accounts", "tellers", "branches", "history"):
            findings += connection.query("SELECT * FROM nvm.check('pgbench_%s')" % table)
    for finding in findings[:20]:
        say("    check: %s" % " ".join(str(column) for column in finding))
    return len(findings)


def print_table(results, kinds):
    a, b = results[kinds[0]], results[kinds[1]]

    def row(label, key, better, factor=1):
        ratio = b[key] / a[key] if better == "more" else a[key] / b[key] if b[key] else None
        return [label, report.number(a[key] * factor), report.number(b[key] * factor),
                report.number(ratio) + "x" if ratio else "-"]

    rows = [row("transactions per second", "tps", "more"),
            row("latency, median, ms", "p50_ms", "less"),
            row("latency, 95th percentile, ms", "p95_ms", "less"),
            row("latency, 99th percentile, ms", "p99_ms", "less"),
            row("WAL bytes per transaction", "wal_bytes", "less"),
            row("killed server: start to first answer, ms", "restart_s", "less", 1000),
            ["acknowledged transactions checked", "{:,}".format(a["acknowledged"]),
             "{:,}".format(b["acknowledged"]), ""],
            ["balances and acknowledged transactions",
             "all there" if a["verified"] else "WRONG",
             "all there" if b["verified"] else "WRONG", ""]]
    return report.table([""] + [kinds[0], kinds[1], "better by"], rows)


def time_taken(own, began):
    """What it took: began, if known, is when the whole of it did (demo/run)."""
    whole = time.time() - float(began) if began else own
    if whole - own < 5:
        return "took %d s" % own
    return "took %d s: %d s for packages, %d s for all the rest" % (whole, whole - own, own)


def work(sandbox, options):
    begin = time.monotonic()
    kinds = [options.a, options.b]
    say("PostgreSQL's data directories: %s (%s)" % (sandbox.work, filesystem_of(sandbox.work)))
    say("NOTICE: the pool of nvm is on /dev/shm (%s), which stands in for persistent memory."
        % filesystem_of(sandbox.shm))
    say("        It survives what is done here, the death of all processes; it would not")
    say("        survive a reboot.")
    say("preparing a private copy of PostgreSQL, building pg_nvm ...")
    sandbox.make_prefix()
    client = compile_client(sandbox)
    if "nvm" in kinds:
        sandbox.build_extension()
    say("built in %d s" % (time.monotonic() - begin))
    results = {kind: one_server(sandbox, options, client, kind) for kind in dict.fromkeys(kinds)}
    machine = report.machine_line(report.machine(sandbox))
    text = "\npgbench TPC-B-like, scale %d, %d clients, -M prepared, %d s; default settings,\n" \
        "synchronous_commit = on, WAL on %s; %s\n\n%s" % (
            options.scale, options.clients, options.seconds, filesystem_of(sandbox.work),
            machine, print_table(results, kinds))
    say(text)
    report.save(sandbox.out, "demo", text, {"machine": machine, "results": results})
    a, b = results[kinds[0]], results[kinds[1]]
    drawn = report.plot_panels(
        sandbox.out, "demo", "pgbench TPC-B-like, %d clients, then a kill" % options.clients,
        kinds, [(label, [a[key] * factor, b[key] * factor], better) for label, key, factor, better in (
            ("transactions\nper second", "tps", 1, "more"),
            ("99th percentile of\nlatencies, ms", "p99_ms", 1, "less"),
            ("WAL bytes per\ntransaction", "wal_bytes", 1, "less"),
            ("start to first answer\nafter the kill, ms", "restart_s", 1000, "less"))])
    if not drawn:
        say(report.PLOTS_SKIPPED)
    good = all(result["verified"] for result in results.values())
    say(time_taken(time.monotonic() - begin, os.environ.get("NVM_DEMO_BEGAN")))
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(prog="demo/run", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=12, help="of each run (default 12)")
    parser.add_argument("--clients", type=int, default=4, help="default 4")
    parser.add_argument("--scale", type=int, default=10, help="of pgbench -i (default 10)")
    parser.add_argument("--a", default="heap", choices=["heap", "nvm"])
    parser.add_argument("--b", default="nvm", choices=["heap", "nvm"])
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
