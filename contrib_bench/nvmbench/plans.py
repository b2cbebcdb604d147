"""The plans that nvm tables get as shipped, against the best found by trying.

Queries of pgbench, TPC-C, TATP, YCSB and three of CH-benCHmark (Q12, Q19, Q20) on
small tables of their shapes.  Each is run as shipped and under other settings,
which forbid kinds of scans and joins or change page costs; what counts is the
processor time of the session, the least of some runs.
"""
import os

from . import alternate, load, report
from .server import Server

SETTINGS = {"autovacuum": "off", "jit": "off", "max_parallel_workers_per_gather": "0"}

TABLES = """
CREATE TABLE tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84));
CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
CREATE TABLE customer (c_w int, c_d int, c_id int, c_last text, c_first text, c_data text, PRIMARY KEY (c_w, c_d, c_id));
CREATE TABLE oorder (o_w int, o_d int, o_id int, o_c int, o_carrier int, o_entry int, o_cnt int, PRIMARY KEY (o_w, o_d, o_id));
CREATE TABLE order_line (ol_w int, ol_d int, ol_o int, ol_n int, ol_i int, ol_supply int, ol_delivery int, ol_qty int, ol_amount numeric(6,2), ol_info char(24), PRIMARY KEY (ol_w, ol_d, ol_o, ol_n));
CREATE TABLE item (i_id int PRIMARY KEY, i_name text, i_price numeric(5,2), i_data text);
CREATE TABLE stock (s_w int, s_i int, s_qty int, s_data text, PRIMARY KEY (s_w, s_i));
CREATE TABLE supplier (su_key int PRIMARY KEY, su_name text, su_nation int);
CREATE TABLE nation (n_key int PRIMARY KEY, n_name text);
CREATE TABLE subscriber (s_id int PRIMARY KEY, sub_nbr text UNIQUE, bit_1 int, vlr int);
CREATE TABLE call_forwarding (s_id int, sf int, start_time int, end_time int, numberx text, PRIMARY KEY (s_id, sf, start_time));
CREATE TABLE usertable (ycsb_key int PRIMARY KEY, field0 text, field1 text);
INSERT INTO tellers SELECT i, i / 10, 0, '' FROM generate_series(1, 100) i;
INSERT INTO accounts SELECT i, i / 1000, 0, '' FROM generate_series(1, {n}) i;
INSERT INTO customer SELECT 1, i % 10, i / 10, 'NAME' || (i / 10) % 1000, 'f' || i, repeat('c', 200) FROM generate_series(0, 29999) i;
INSERT INTO oorder SELECT 1, i % 10, i / 10, (i * 7919) % 3000, i % 10, i, 10 FROM generate_series(0, 29999) i;
INSERT INTO order_line SELECT 1, i / 10 % 10, i / 100, i % 10, 1 + (i * 7919::bigint) % 20000, 1, i % 30000, i % 10 + 1, i % 1000, '' FROM generate_series(0, {n} - 1) i;
INSERT INTO item SELECT i, 'item' || i, i % 100, CASE WHEN i % 10 = 0 THEN 'b' ELSE 'a' END || 'data' FROM generate_series(1, 20000) i;
INSERT INTO stock SELECT 1, i, i % 100, repeat('s', 50) FROM generate_series(1, 20000) i;
INSERT INTO supplier SELECT i, 's' || i, i % 62 FROM generate_series(0, 9999) i;
INSERT INTO nation SELECT i, 'n' || i FROM generate_series(0, 61) i;
INSERT INTO subscriber SELECT i, lpad(i::text, 15, '0'), i % 2, i FROM generate_series(1, 50000) i;
INSERT INTO call_forwarding SELECT i, sf, 8 * (i % 3), 8 * (i % 3) + 5, 'x' FROM generate_series(1, 50000) i, generate_series(1, 2) sf;
INSERT INTO usertable SELECT i, repeat('y', 100), repeat('z', 100) FROM generate_series(1, {n}) i;
CREATE INDEX customer_name ON customer (c_w, c_d, c_last, c_first);
CREATE INDEX oorder_customer ON oorder (o_w, o_d, o_c, o_id);
DO $$BEGIN FOR i IN 1 .. 5000 LOOP UPDATE tellers SET tbalance = tbalance + 1 WHERE tid = 1 + i % 100; END LOOP; END$$;
VACUUM ANALYZE;
"""

#: name, query, repetitions of a run
QUERIES = [
    ("pgbench tellers", "SELECT tbalance FROM tellers WHERE tid = 55", 2000),
    ("pgbench accounts", "SELECT abalance FROM accounts WHERE aid = 5555", 2000),
    ("TPC-C customer by name", "SELECT * FROM customer WHERE c_w = 1 AND c_d = 3 AND c_last = 'NAME77' ORDER BY c_first", 1000),
    ("TPC-C last order", "SELECT o_id FROM oorder WHERE o_w = 1 AND o_d = 3 AND o_c = 77 ORDER BY o_id DESC LIMIT 1", 1000),
    ("TPC-C order lines", "SELECT ol_i, ol_amount FROM order_line WHERE ol_w = 1 AND ol_d = 3 AND ol_o = 77", 1000),
    ("TPC-C stock level", "SELECT count(DISTINCT s_i) FROM order_line, stock WHERE ol_w = 1 AND ol_d = 3 AND ol_o < 980 "
     "AND ol_o >= 960 AND s_w = 1 AND s_i = ol_i AND s_qty < 15", 50),
    ("TATP get destination", "SELECT numberx FROM subscriber s JOIN call_forwarding c USING (s_id) WHERE s.s_id = 777 "
     "AND sf = 1 AND start_time <= 8 AND end_time > 4", 1000),
    ("TATP by number", "SELECT s_id FROM subscriber WHERE sub_nbr = '000000000000777'", 2000),
    ("YCSB read", "SELECT * FROM usertable WHERE ycsb_key = 777", 2000),
    ("YCSB scan", "SELECT * FROM usertable WHERE ycsb_key > 777 AND ycsb_key < 850", 500),
    ("CH Q12", "SELECT o_cnt, sum(CASE WHEN o_carrier IN (1, 2) THEN 1 ELSE 0 END) FROM oorder, order_line WHERE ol_w = o_w "
     "AND ol_d = o_d AND ol_o = o_id AND o_entry <= ol_delivery AND ol_delivery < 20000 GROUP BY o_cnt ORDER BY o_cnt", 1),
    ("CH Q19", "SELECT sum(ol_amount) FROM order_line, item WHERE (ol_i = i_id AND i_data LIKE '%b' AND ol_qty >= 1 AND ol_qty <= 10 "
     "AND i_price BETWEEN 1 AND 4 AND ol_w IN (1, 2, 3)) OR (ol_i = i_id AND i_data LIKE 'b%' AND ol_qty <= 10 AND i_price BETWEEN 1 AND 4)", 1),
    ("CH Q20", "SELECT su_name FROM supplier, nation WHERE su_key IN (SELECT (s_i * s_w) % 10000 FROM stock JOIN order_line ON ol_i = s_i "
     "WHERE ol_delivery > 29000 AND s_i IN (SELECT i_id FROM item WHERE i_data LIKE 'b%') GROUP BY s_i, s_w, s_qty HAVING 2 * s_qty > sum(ol_qty)) "
     "AND su_nation = n_key AND n_name = 'n5' ORDER BY su_name", 1),
]

TRIED = [("as shipped", [])] + [
    (" ".join("no " + kind for kind in kinds), ["enable_%s = off" % kind for kind in kinds])
    for kinds in (["seqscan"], ["indexscan"], ["bitmapscan"], ["indexscan", "bitmapscan"],
                  ["seqscan", "bitmapscan"], ["hashjoin"], ["nestloop"], ["mergejoin"],
                  ["hashjoin", "mergejoin"], ["nestloop", "mergejoin"])] + [
    ("random_page_cost %s" % cost, ["random_page_cost = %s" % cost]) for cost in ("1.1", "20")]

PROCEDURE = """
CREATE PROCEDURE again(q text, n int) LANGUAGE plpgsql AS $p$
BEGIN
  EXECUTE format('PREPARE asked AS SELECT count(*) FROM (%s) x', q);
  EXECUTE 'EXECUTE asked';
  FOR i IN 1 .. n LOOP EXECUTE 'EXECUTE asked'; END LOOP;
  DEALLOCATE asked;
END$p$;
"""


def _plan(server, query, settings):
    with server.connect() as connection:
        for setting in settings:
            connection.query("SET " + setting)
        return "\n".join(line for (line,) in connection.query("EXPLAIN (COSTS OFF) " + query))


def _rate(server, query, count, settings):
    call = "CALL again($q$%s$q$, %d)" % (query, count)
    return alternate.timed_rate(server, call, count,
                                ["plan_cache_mode = force_generic_plan"] + settings)


def _nodes(plan):
    """The scans and joins of a plan, in a line."""
    found = []
    for line in plan.split("\n"):
        line = line.strip().replace("->  ", "")
        for kind in ("Bitmap Heap Scan", "Index Only Scan", "Index Scan", "Seq Scan",
                     "Nested Loop", "Hash Join", "Hash Semi Join", "Merge Join"):
            if line.startswith(kind):
                found.append(kind.replace(" Scan", "").replace(" Join", "").lower())
                break
    return ", ".join(found)


def run(sandbox, where, options, name):
    """Measure and report; returns the data of the JSON file."""
    rows = alternate.own(options, "rows", 300000, 30000)
    server = Server(sandbox, "b_nvm", "nvm", where, dict(options.server_settings, **SETTINGS))
    data, lines = [], []
    with server.running():
        load.preallocate_wal(server, 4)
        server.query(TABLES.split("DO $$")[0].replace("{n}", str(rows)))
        for statement in ("DO $$" + TABLES.split("DO $$")[1]).rsplit("VACUUM", 1)[0], "VACUUM ANALYZE":
            server.query(statement)
        server.query(PROCEDURE)
        for query_name, query, count in QUERIES:
            if not alternate.wanted(options, query_name):
                continue
            ways = {}                       # plan: (label, settings)
            for label, settings in TRIED:
                ways.setdefault(_plan(server, query, settings), (label, settings))
            plans = list(ways)
            runs = alternate.rounds(options.pairs, [
                lambda way=ways[plan]: _rate(server, query, count, way[1]).cpu for plan in plans])
            best_of = [max(turn[i] for turn in runs) for i in range(len(plans))]
            best = best_of.index(max(best_of))
            ratio = best_of[0] / best_of[best]
            lines.append([query_name, _nodes(plans[0]), "%.2fx" % ratio,
                          "the same" if best == 0 else ways[plans[best]][0],
                          "" if best == 0 else _nodes(plans[best])])
            data.append({"query": query_name, "plans": [
                {"tried": ways[plan][0], "plan": plan, "a_second": best_of[i]}
                for i, plan in enumerate(plans)]})
            print("  %s: %d plans, %.2fx of the best" % (query_name, len(plans), ratio), flush=True)
    info = report.machine(sandbox)
    text = ("plans of nvm tables as shipped against the best found by trying; tables of %s rows at most\n"
            "best of %d runs by the session's processor time; %s\n\n%s" % (
                report.number(rows), options.pairs, report.machine_line(info),
                report.table(["query", "plan as shipped", "of the best", "best", "its plan"], lines)))
    print(text)
    report.save(os.path.join(sandbox.out, name), name, text,
                {"machine": info, "rows": rows, "queries": data})
    return data
