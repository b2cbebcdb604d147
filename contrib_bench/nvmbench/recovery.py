"""Time from the start of a killed server to its first answer.

A server commits N single-row updates, all its processes are SIGKILLed, data
directory and pool are copied once, and the copy is put back and started
several times.  Each start is split into PostgreSQL's redo, its
end-of-recovery checkpoint, pg_nvm's own share, and the rest.
"""
import os
import re

from . import load, report
from .server import Server

ROWS = 100000
SESSIONS = 2
FILLER = 1000               # bytes a row of the table that only takes space

#: no checkpoint by time or by volume during the load: what a crash right
#: before the next checkpoint costs.  pg_nvm asks for checkpoints itself, by
#: nvm.redo_limit.
NO_CHECKPOINTS = {"checkpoint_timeout": "1d", "max_wal_size": "200GB"}
DEFAULT_CHECKPOINTS = {"checkpoint_timeout": "5min", "max_wal_size": "1GB"}

FIRST_QUERY = "SELECT balance FROM account WHERE id = 1"


def _load(server, transactions):
    """Commit that many updates; every row's balance counts its updates."""
    server.query(server.sql("CREATE TABLE account (id int PRIMARY KEY, balance int)"))
    server.query("INSERT INTO account SELECT id, 0 FROM generate_series(1, %d) id" % ROWS)
    server.query("""
        CREATE PROCEDURE bench(transactions int, first_id int, ids int)
        LANGUAGE plpgsql AS $$
        DECLARE
            key int;
        BEGIN
            FOR i IN 1 .. transactions LOOP
                key := first_id + floor(random() * ids);
                UPDATE account SET balance = balance + 1 WHERE id = key;
                COMMIT;
            END LOOP;
        END $$""")
    server.query("VACUUM ANALYZE")
    server.query("CHECKPOINT")
    each, ids = transactions // SESSIONS, ROWS // SESSIONS
    # asynchronous: how fast the load goes is not what is measured.  What nvm
    # tables commit is durable all the same.
    load.parallel_calls(server, [
        "CALL bench(%d, %d, %d)" % (each, 1 + session * ids, ids)
        for session in range(SESSIONS)], "synchronous_commit = off")
    return each * SESSIONS


def _load_filler(server, size_mb):
    """A table of that size, durable and checkpointed, beside the others."""
    server.query(server.sql("CREATE TABLE filler (id int, payload text)"))
    server.query("ALTER TABLE filler ALTER payload SET STORAGE PLAIN")
    step = 200 * 1024 * 1024 // FILLER
    rows = size_mb * 1024 * 1024 // FILLER
    for first in range(0, rows, step):
        server.query("INSERT INTO filler SELECT i, repeat('x', %d) FROM generate_series(%d, %d) i"
                     % (FILLER, first + 1, min(first + step, rows)))
    server.query("CHECKPOINT")


def split(text, total):
    """Parts of a start in milliseconds, from what the server logged."""
    redo = sum(float(s) * 1000 for s in
               re.findall(r"redo done at .*? elapsed: ([\d.]+) s", text))
    checkpoint = sum(float(s) * 1000 for s in
                     re.findall(r"checkpoint complete: .*? total=([\d.]+) s", text))
    own = sum(int(n) / 1000 for n in re.findall(
        r"nvm: recovery found .*? in (\d+) us", text))
    own += sum(int(n) / 1000 for n in re.findall(r"pool opened in (\d+) us", text))
    own += sum(int(n) / 1000 for n in re.findall(r"nvm: resolved .* in (\d+) us", text))
    total *= 1000
    return {"total_ms": total, "redo_ms": redo, "checkpoint_ms": checkpoint, "own_ms": own,
            "other_ms": max(0.0, total - redo - checkpoint - own)}


def _view(server):
    """What the server itself says about its recovery."""
    if server.kind != "nvm":
        return None
    with server.connect() as connection:
        rows = connection.query("SELECT row_to_json(r) FROM nvm.recovery r")
    return rows[0][0] if rows else None


def _measure(sandbox, name, kind, where, transactions, options, filler_mb=0):
    """All starts of one kind of server after one load."""
    settings = dict(options.server_settings)
    settings.update(DEFAULT_CHECKPOINTS if options.checkpoints == "default" else NO_CHECKPOINTS)
    server = Server(sandbox, name, kind, where, settings)
    copy = os.path.join(sandbox.work, "copy")
    starts = []
    with server.running():
        if filler_mb:
            _load_filler(server, filler_mb)
        begin = load.wal_bytes(server)
        committed = _load(server, transactions)
        wal = load.wal_bytes(server) - begin
        server.query("SELECT pg_switch_wal()")          # flushes all WAL before it
        server.kill()
        server.save(copy)
        for attempt in range(options.pairs):
            if attempt > 0:
                server.restore(copy)
            position = server.log_size()
            took = server.start(first_query=FIRST_QUERY)
            parts = split(server.log_since(position), took)
            parts["view"] = _view(server)
            total = int(server.value("SELECT sum(balance) FROM account"))
            if total != committed:
                raise AssertionError("%s lost updates: %d of %d are there"
                                     % (kind, total, committed))
            starts.append(parts)
            server.kill()
        pool = server.pool if os.path.isdir(server.pool) else None
        size = sum(os.stat(os.path.join(pool, name)).st_blocks * 512
                   for name in os.listdir(pool)) if pool else 0
    sandbox.empty(server.data)
    sandbox.empty(copy)
    return {"transactions": committed, "wal_bytes": wal, "pool_bytes": size, "starts": starts}


def _medians(result):
    return {key: report.median([start[key] for start in result["starts"]])
            for key in ("total_ms", "redo_ms", "checkpoint_ms", "own_ms", "other_ms")}


def run(sandbox, where, options, name, filler_mb=0):
    """Measure and report; returns the data of the JSON file."""
    arms = [options.a, options.b]
    results = {}
    for transactions in options.transactions_of[name]:
        for arm, kind in zip("ab", arms):
            print("  %s: %s transactions ..." % (kind, "{:,}".format(transactions)), flush=True)
            key = "%s_%s_%d" % (arm, kind, transactions)
            results[key] = _measure(sandbox, key, kind, where, transactions, options, filler_mb)
    rows = []
    for transactions in options.transactions_of[name]:
        first = None
        for arm, kind in zip("ab", arms):
            result = results["%s_%s_%d" % (arm, kind, transactions)]
            middle = _medians(result)
            first = first or middle["total_ms"]
            rows.append(["{:,}".format(transactions), kind,
                         report.number(middle["total_ms"]), report.number(middle["redo_ms"]),
                         report.number(middle["checkpoint_ms"]),
                         report.number(middle["own_ms"]) if kind == "nvm" else "-",
                         report.number(middle["other_ms"]),
                         report.number(result["wal_bytes"] / 1e6),
                         "%.1fx" % (first / middle["total_ms"])])
    info = report.machine(sandbox)
    title = "Start to first answer after a kill"
    if filler_mb:
        title += ", beside a table of %s MB" % "{:,}".format(filler_mb)
    text = "%s, WAL on %s, checkpoints: %s\nmedians of %d starts; %s\n\n%s" % (
        title, options.wal, options.checkpoints, options.pairs, report.machine_line(info),
        report.table(["transactions", "server", "total ms", "redo ms", "checkpoint ms",
                      "pg_nvm ms", "other ms", "WAL MB", "against " + arms[0]], rows))
    print(text)
    data = {"title": title, "wal": options.wal, "checkpoints": options.checkpoints,
            "machine": info, "filler_mb": filler_mb, "results": results}
    directory = os.path.join(sandbox.out, name)
    file_name = report.result_name(name, options)
    report.save(directory, file_name, text, data)
    series = []
    for number, (arm, kind) in enumerate(zip("ab", arms)):
        points = [_medians(results["%s_%s_%d" % (arm, kind, n)])
                  for n in options.transactions_of[name]]
        sizes = options.transactions_of[name]
        series.append((kind + ": first answer", number, "-",
                       [(n, p["total_ms"]) for n, p in zip(sizes, points)]))
        if kind == "nvm":
            series.append(("pg_nvm's own share", number, ":",
                           [(n, p["own_ms"] or 0.001) for n, p in zip(sizes, points)]))
    report.plot_lines(directory, file_name, title, "committed transactions",
                      "milliseconds", series)
    return data
