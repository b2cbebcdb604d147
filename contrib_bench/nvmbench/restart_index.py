"""Restart of a large table with three indexes, for each kind of persistence.

A table of ten million rows with three indexes takes a load of updates of an
indexed column and of insertions, every process of the server is SIGKILLed,
and it is started again: how long until it answers at all, until it answers
through (or, where an index is not back yet, in place of) each index, and
until all three are in use.  heap with btree gets the same load.
"""
import mmap
import os
import time

from . import load, report
from .recovery import NO_CHECKPOINTS, split
from .server import Server

SESSIONS = 2
STARTS = 3
KINDS = ("full", "leaves", "none")

TABLE = """CREATE TABLE item (id int, ref int, code text, amount int)"""
ROWS = """
    INSERT INTO item
    SELECT i, (random() * 2000000000)::int, left(md5(i::text), 16), i %% 1000
    FROM generate_series(1, %d) i"""
INDEXES = (
    ("item_id", "CREATE UNIQUE INDEX item_id ON item (id)"),
    ("item_ref", "CREATE INDEX item_ref ON item (ref)"),
    ("item_code", "CREATE INDEX item_code ON item (code)"),
)
QUERIES = (
    ("item_id", "SELECT amount FROM item WHERE id = 4711"),
    ("item_ref", "SELECT count(*) FROM item WHERE ref BETWEEN 1000000 AND 1010000"),
    ("item_code", "SELECT amount FROM item WHERE code = left(md5('4711'), 16)"),
)
PROCEDURE = """
    CREATE PROCEDURE bench(transactions int, first_new int, first_id int, ids int)
    LANGUAGE plpgsql AS $$
    DECLARE
        key int;
    BEGIN
        FOR i IN 1 .. transactions LOOP
            key := first_id + floor(random() * ids);
            UPDATE item SET ref = (random() * 2000000000)::int WHERE id = key;
            INSERT INTO item VALUES (first_new + i, (random() * 2000000000)::int,
                left(md5((first_new + i)::text), 16), i % 1000);
            COMMIT;
        END LOOP;
    END $$"""


def _setup(server, rows):
    """Milliseconds that each index took to build."""
    server.query(TABLE)
    server.query(ROWS % rows)
    took = {}
    for name, statement in INDEXES:
        begin = time.monotonic()
        server.query(statement)
        took[name] = (time.monotonic() - begin) * 1000
    server.query(PROCEDURE)
    server.query("VACUUM ANALYZE item")
    server.query("CHECKPOINT")
    return took


def _load(server, rows, transactions, done):
    """Transactions of an update and an insertion each; returns how many so far."""
    each = transactions // SESSIONS
    share = rows // SESSIONS
    load.parallel_calls(server, [
        "CALL bench(%d, %d, %d, %d)" % (each, rows + done + session * each,
                                        1 + session * share, share)
        for session in range(SESSIONS)], "synchronous_commit = off")
    return done + each * SESSIONS


def _timed(connection, query):
    begin = time.monotonic()
    connection.query(query)
    return (time.monotonic() - begin) * 1000


def _plan(connection, query):
    """What answers the query."""
    for (line,) in connection.query("EXPLAIN (COSTS OFF) " + query):
        for kind in ("Seq Scan", "Index Only Scan", "Index Scan", "Bitmap Heap Scan"):
            if kind in line:
                return kind
    return "?"


def _wait_whole(server, begin):
    """Until no index is missing: milliseconds since begin, and what the view says."""
    with server.connect() as connection:
        while True:
            rows = connection.query("SELECT index, persistence, state, total, ms"
                                    " FROM nvm.index_rebuilds ORDER BY index::text")
            if all(row[2] == "ready" for row in rows):
                break
            if any(row[2] == "failed" for row in rows):
                raise AssertionError("a rebuild failed: %s" % rows)
            time.sleep(0.02)
        return ((time.monotonic() - begin) * 1000,
                {row[0]: {"total": int(row[3]), "ms": float(row[4])} for row in rows})


def _start(server, rows, expected, wait_whole):
    """One start, taken apart."""
    position = server.log_size()
    begin = time.monotonic()
    ready = server.start()
    result = split(server.log_since(position), ready)
    result.update(ready_ms=ready * 1000, first_ms={}, again_ms={}, plans={})
    with server.connect() as connection:
        for name, query in QUERIES:
            result["first_ms"][name] = _timed(connection, query)
            if name == QUERIES[0][0]:
                result["answer_ms"] = (time.monotonic() - begin) * 1000
            result["plans"][name] = _plan(connection, query)
        result["whole_ms"] = (time.monotonic() - begin) * 1000
        if wait_whole:
            waited, result["rebuilds"] = _wait_whole(server, begin)
            result["whole_ms"] = max(result["whole_ms"], waited)
        for name, query in QUERIES:
            result["again_ms"][name] = _timed(connection, query)
        found = [int(connection.value("SELECT count(*) FROM item")),
                 int(connection.value("SET enable_seqscan = off;"
                                      " SELECT count(*) FROM item WHERE id > 0"))]
        if found != [expected, expected]:
            raise AssertionError("%s rows of %d" % (found, expected))
    return result


def _plain_walk(server, blocks):
    """Milliseconds to touch a line of each of so many blocks of the pool, in a new mapping."""
    path = max((os.path.join(server.pool, name) for name in os.listdir(server.pool)),
               key=os.path.getsize)
    with open(path, "rb") as pool:
        with mmap.mmap(pool.fileno(), blocks * 8192, prot=mmap.PROT_READ) as mapped:
            view = memoryview(mapped)
            begin = time.monotonic()
            strided = view[::8192]
            strided.tobytes()
            took = (time.monotonic() - begin) * 1000
            strided.release()
            view.release()
    return took


def _index_scan(server):
    """Milliseconds of a scan of each whole index, one process."""
    with server.connect() as connection:
        connection.query("SET enable_seqscan = off; SET enable_bitmapscan = off;"
                         " SET max_parallel_workers_per_gather = 0")
        return {"item_id": _timed(connection, "SELECT count(*) FROM item WHERE id > 0"),
                "item_ref": _timed(connection, "SELECT count(*) FROM item WHERE ref >= 0"),
                "item_code": _timed(connection, "SELECT count(*) FROM item WHERE code >= ''")}


def _nvm(sandbox, where, rows, transactions, starts, settings):
    server = Server(sandbox, "nvm", "nvm", where,
                    dict(settings, **{"nvm.default_index_method": "nvm_btree",
                                      "nvm.index_identity": "nvm_btree"}))
    results = {}
    done = 0
    with server.running():
        print("  nvm: %s rows ..." % "{:,}".format(rows), flush=True)
        build = _setup(server, rows)
        for kind in KINDS:
            if kind != "full":
                for name, statement in INDEXES:
                    server.query("ALTER INDEX %s SET (persistence = %s)" % (name, kind))
            done = _load(server, rows, transactions, done)
            runs = []
            for attempt in range(starts):
                server.kill()
                runs.append(_start(server, rows, rows + done, kind != "full"))
                print("  nvm %s: own %s ms, first answer %s ms, all indexes %s ms" % (
                    kind, report.number(runs[-1]["own_ms"]),
                    report.number(runs[-1]["answer_ms"]),
                    report.number(runs[-1]["whole_ms"])), flush=True)
            results[kind] = {"starts": runs, "build_ms": build}
            if kind == "leaves":
                results[kind]["plain_walk_ms"] = {
                    name: _plain_walk(server, run["total"])
                    for name, run in runs[-1]["rebuilds"].items()}
                results[kind]["index_scan_ms"] = _index_scan(server)
    sandbox.empty(server.data)
    return results


def _heap(sandbox, where, rows, transactions, starts, settings):
    server = Server(sandbox, "heap", "heap", where, settings)
    copy = os.path.join(sandbox.shm, "copy")
    with server.running():
        print("  heap: %s rows ..." % "{:,}".format(rows), flush=True)
        build = _setup(server, rows)
        before = load.wal_bytes(server)
        done = _load(server, rows, transactions, 0)
        wal = load.wal_bytes(server) - before
        server.query("SELECT pg_switch_wal()")          # flushes all WAL before it
        server.kill()
        server.save(copy)
        runs = []
        for attempt in range(starts):
            if attempt > 0:
                server.kill()
                server.restore(copy)
            runs.append(_start(server, rows, rows + done, False))
            print("  heap: redo %s ms, first answer %s ms" % (
                report.number(runs[-1]["redo_ms"]),
                report.number(runs[-1]["answer_ms"])), flush=True)
    sandbox.empty(server.data)
    return {"starts": runs, "build_ms": build, "wal_bytes": wal}


def _median(result, *path):
    values = []
    for start in result["starts"]:
        for key in path:
            start = start[key]
        values.append(start)
    return report.median(values)


def _plot(directory, name, title, results):
    pyplot = report._pyplot()
    if pyplot is None:
        return False
    arms = list(results)
    bars = (("the engine's own share: recovery of pg_nvm, redo of heap",
             lambda arm, r: _median(r, "redo_ms" if arm == "heap" else "own_ms")),
            ("first answer of an indexed query", lambda arm, r: _median(r, "answer_ms")),
            ("all three indexes in use", lambda arm, r: _median(r, "whole_ms")))
    figure, axes = pyplot.subplots(figsize=(8.2, 4.2))
    for number, (label, value) in enumerate(bars):
        xs = [position + (number - 1) * 0.27 for position in range(len(arms))]
        ys = [max(value(arm, results[arm]), 0.01) for arm in arms]
        axes.bar(xs, ys, width=0.25, color=("#2b6cb0", "#c05621", "#9a9a9a")[number], label=label)
        for x, y in zip(xs, ys):
            axes.annotate(report.number(y), (x, y), ha="center", va="bottom", fontsize=8)
    axes.set_yscale("log")
    axes.set_ylim(0.1, axes.get_ylim()[1] * 3)
    axes.axhline(5, color="black", linewidth=0.7, linestyle=":")
    axes.annotate("5 ms", (-0.45, 5), va="bottom", fontsize=8)
    axes.set_xticks(range(len(arms)))
    axes.set_xticklabels(["heap, btree" if arm == "heap" else "nvm_btree\npersistence = " + arm
                          for arm in arms])
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("milliseconds from the start of the server")
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize=8)
    report._save_figure(pyplot, figure, directory, name)
    return True


def _text(title, options, info, results, transactions, starts):
    number = report.number
    rows = []
    for arm, result in results.items():
        rows.append(
            ["heap, btree" if arm == "heap" else "nvm " + arm,
             number(_median(result, "ready_ms")),
             number(_median(result, "redo_ms") + _median(result, "checkpoint_ms")),
             "-" if arm == "heap" else number(_median(result, "own_ms"))] +
            [number(_median(result, "first_ms", name)) for name, query in QUERIES] +
            [number(_median(result, "answer_ms")), number(_median(result, "whole_ms"))])
    text = ("%s, WAL on %s\n%d transactions (an update of an indexed column, an insertion) since"
            " the checkpoint;\nmedians of %d starts, in ms; %s\n\n" % (
                title, options.wal, transactions, starts, report.machine_line(info)))
    text += report.table(["", "ready", "redo+chkpt", "own", "1st query id", "ref", "code",
                          "first answer", "all in use"], rows)
    text += """
ready: from the start until a session has an answer to SELECT 1; own: of that pg_nvm's, as its log
says.  1st query: the first one by this column, from there on.  first answer: from the start to
the answer of the query by id.  all in use: until each index has answered and, with persistence =
none, all are rebuilt.
"""
    if "leaves" in results:
        leaves, none = results["leaves"], results["none"]
        detail = []
        for name, statement in INDEXES:
            walked = leaves["starts"][-1]["rebuilds"][name]
            detail.append([name, "{:,}".format(walked["total"]),
                           number(_median(leaves, "rebuilds", name, "ms")),
                           number(leaves["plain_walk_ms"][name]),
                           number(leaves["index_scan_ms"][name]),
                           number(_median(none, "rebuilds", name, "ms")),
                           number(none["build_ms"][name]),
                           number(results["heap"]["build_ms"][name]) if "heap" in results else "-",
                           none["starts"][-1]["plans"][name]])
        text += "\n" + report.table(
            ["index", "leaves", "leaf walk", "plain walk", "index scan", "rebuild",
             "CREATE INDEX", "btree's", "meanwhile"], detail)
        text += """
leaf walk: inner levels made from the leaves (leaves), as nvm.index_rebuilds says; plain walk: one
byte of each of as many blocks is read through a new mapping of the pool; index scan: count(*) over
the whole index, one process.  rebuild: from the table (none), two at a time and one process each;
CREATE INDEX: nothing else running, parallel.  meanwhile: what answers before the rebuild is done.
"""
    return text


def run(sandbox, where, options, name):
    rows = options.asked["rows"] or (100000 if options.quick else 10000000)
    transactions = options.asked["transactions"] or (5000 if options.quick else 200000)
    starts = min(STARTS, options.pairs)
    settings = dict(options.server_settings, **NO_CHECKPOINTS)
    settings["autovacuum"] = "off"
    results = {"heap": _heap(sandbox, where, rows, transactions, starts, settings)}
    results.update(_nvm(sandbox, where, rows, transactions, starts, settings))
    info = report.machine(sandbox)
    title = "Restart after a kill: %s rows, three indexes" % "{:,}".format(rows)
    text = _text(title, options, info, results, transactions, starts)
    print(text)
    data = {"title": title, "wal": options.wal, "machine": info, "rows": rows,
            "transactions": transactions, "results": results, "settings": settings}
    report.save_and_plot(sandbox, options, name, text, data, _plot, title, results)
    return data
