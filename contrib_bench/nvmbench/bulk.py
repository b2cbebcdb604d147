"""Statements of many rows, and lookups, one session: heap against nvm as shipped.

A round makes the table anew and takes it through its life: load, index builds,
copies, scans, lookups, updates, deletes, with a VACUUM after each change.  The
servers take turns round by round.  What counts is the processor time of the
session, which hardly depends on what else the machine does; wall time is beside it.

Settings are PostgreSQL's own, but for autovacuum, which is off, and parallel
query, whose workers' time is not the session's.
"""
import os

from . import alternate, load, report
from .server import Server

SETTINGS = {"autovacuum": "off", "max_parallel_workers_per_gather": "0",
            "max_parallel_maintenance_workers": "0", "jit": "off",
            "maintenance_work_mem": "256MB"}

CREATE = """
DROP TABLE IF EXISTS bulk, ref;
CREATE TABLE bulk (id int, k int, v int, pad text);
CREATE TABLE ref (id int PRIMARY KEY, w int);
"""

PROCEDURES = """
CREATE OR REPLACE PROCEDURE bulk_select(n int, most int) LANGUAGE plpgsql AS $$
DECLARE x int;
BEGIN
  FOR i IN 1 .. n LOOP
    SELECT v INTO x FROM bulk WHERE id = 1 + (i * 7919::bigint) % most;
  END LOOP;
END$$;
"""

INDEX_ONLY = ("SELECT count(*), sum({column}) FROM "
              "(SELECT {column} FROM bulk WHERE {column} >= 0 ORDER BY {column}) x")


def _steps(rows, copy_file):
    """(case, statement, what it counts; None: not measured).  {n} rows."""
    half = rows // 2
    lookups = max(1000, rows // 5)
    return [
        ("insert", "INSERT INTO bulk SELECT i, (i * 7919::bigint) % {n}, i % 100, repeat('x', 60) "
                   "FROM generate_series(1, {n}) i", rows),
        (None, "INSERT INTO ref SELECT i, i % 10 FROM generate_series(1, {n}) i", None),
        ("index build", "ALTER TABLE bulk ADD PRIMARY KEY (id)", rows),
        ("index build, random", "CREATE INDEX bulk_k ON bulk (k)", rows),
        ("index-only, no VACUUM", INDEX_ONLY.format(column="id"), rows),
        (None, "VACUUM (PARALLEL 0, ANALYZE) bulk, ref", None),
        ("copy out", "COPY bulk TO '%s'" % copy_file, rows),
        (None, "CREATE TABLE copied (LIKE bulk)", None),
        ("copy in", "COPY copied FROM '%s'" % copy_file, rows),
        (None, "DROP TABLE copied", None),
        ("scan, count", "SELECT count(*) FROM bulk", rows),
        ("scan, sum and filter", "SELECT sum(v), count(pad) FROM bulk WHERE v < 90", rows),
        ("index-only", INDEX_ONLY.format(column="k"), rows),
        ("nested loop", "SELECT sum(w) FROM (SELECT * FROM bulk WHERE id <= %d OFFSET 0) b "
                        "JOIN ref ON ref.id = b.k WHERE b.v >= 0" % lookups, lookups),
        ("point SELECT", "CALL bulk_select(%d, {n})" % lookups, lookups),
        ("update, no index", "UPDATE bulk SET v = v + 1", rows),
        ("VACUUM after that", "VACUUM (PARALLEL 0) bulk", rows),
        ("update, indexed", "UPDATE bulk SET k = k + 1", rows),
        ("scan after that", "SELECT sum(v) FROM bulk", rows),
        ("VACUUM after update", "VACUUM (PARALLEL 0) bulk", rows),
        ("scan after VACUUM", "SELECT sum(v) FROM bulk", rows),
        ("delete half", "DELETE FROM bulk WHERE id % 2 = 0", half),
        ("VACUUM after delete", "VACUUM (PARALLEL 0) bulk", rows),
        ("scan after delete", "SELECT sum(v) FROM bulk", rows),
    ]


#: so that a nested loop is compared with a nested loop, and an index-only scan with one
_BY_INDEX = ["enable_seqscan = off", "enable_bitmapscan = off", "enable_indexscan = on",
             "enable_sort = off"]
FORCED = {"nested loop": ["enable_hashjoin = off", "enable_mergejoin = off"],
          "index-only": _BY_INDEX, "index-only, no VACUUM": _BY_INDEX}


def _life(server, steps, rows):
    """One life of the table; {case: Rate}."""
    found = {}
    server.query(CREATE)
    server.query(PROCEDURES)
    for case, sql, count in steps:
        sql = sql.replace("{n}", str(rows))
        if case is None:
            server.query(sql)
        else:
            found[case] = alternate.timed_rate(server, sql, count, FORCED.get(case, ()))
    return found


def run(sandbox, where, options, name):
    """Measure and report; returns the data of the JSON file."""
    rows = alternate.own(options, "rows", 300000, 20000)
    settings = dict(options.server_settings, **SETTINGS)
    servers = [Server(sandbox, "a_heap", "heap", where, settings),
               Server(sandbox, "b_nvm", "nvm", where, settings)]
    labels = ["heap", "nvm"]
    with servers[0].running(), servers[1].running():
        for server in servers:
            load.preallocate_wal(server, 4 if options.quick else 64)
        copied = os.path.join(where, "copied")
        steps = _steps(rows, copied)
        few = max(1000, rows // 10)
        for server in servers:
            _life(server, _steps(few, copied), few)
        measures = [lambda server=server: _life(server, steps, rows)
                    for server in servers]
        lives = alternate.rounds(options.pairs, measures)
    cases = [case for case, _, _ in steps if case and alternate.wanted(options, case)]
    found = {case: [tuple(life[case] for life in pair) for pair in lives] for case in cases}
    info = report.machine(sandbox)
    lines = [alternate.pairs_row(case, found[case]) + alternate.cpu_ratio(found[case])
             for case in cases]
    text = ("bulk: statements of %s rows, one session, settings as shipped; WAL on %s\n"
            "medians of %d pairs; rows (lookups) a second by wall time, ratios by wall time and by the\n"
            "session's processor time; %s\n\n%s" % (
                report.number(rows), options.wal, options.pairs, report.machine_line(info),
                report.table(["case"] + labels + ["ratio", "pairs", "by CPU time", "pairs"], lines)))
    print(text)
    data = {"title": "statements of many rows", "machine": info, "wal": options.wal,
            "pairs": options.pairs, "rows": rows, "runs": found,
            "by_cpu": {case: alternate.cpu_rounds(found[case]) for case in cases},
            "settings": servers[0].settings}
    report.save(os.path.join(sandbox.out, name), report.result_name(name, options), text, data)
    return data
