--
-- Statistics: extended, correlation, sizes in pg_class, estimates
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA planner_statistics;
SET search_path = planner_statistics, public;

SET jit = off;
SET max_parallel_workers_per_gather = 0;
CREATE TABLE t (id int PRIMARY KEY, a int, b int, c int, up int, down int, mixed int, s text, big text) WITH (autovacuum_enabled = off);
INSERT INTO t SELECT g, g % 50, (g % 50) / 5, g % 7, g, -g, (g::bigint * 7919 % 10007)::int, CASE WHEN g % 10 = 0 THEN NULL ELSE 's' || g % 25 END, repeat('b', g % 3000) FROM generate_series(1, 10000) g;
CREATE FUNCTION guess(q text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE j json;
BEGIN
  EXECUTE 'EXPLAIN (FORMAT json) ' || q INTO j;
  RETURN (j->0->'Plan'->>'Plan Rows')::numeric;
END$$;
CREATE FUNCTION within(q text, expected numeric, factor numeric DEFAULT 1.3) RETURNS bool LANGUAGE sql AS
'SELECT guess(q) BETWEEN expected / factor AND expected * factor';
-- what CREATE INDEX, VACUUM, ANALYZE, TRUNCATE and rewrites leave in pg_class
CREATE FUNCTION sizes() RETURNS TABLE (rel name, tuples float4, pages bool) LANGUAGE sql AS
$$SELECT relname, reltuples, relpages > 0 FROM pg_class WHERE relname IN ('t', 't_pkey', 't_a', 't_part') AND relnamespace = 'planner_statistics'::regnamespace ORDER BY 1$$;
SELECT * FROM sizes();
CREATE INDEX t_a ON t (a);
SELECT * FROM sizes();
CREATE INDEX t_part ON t (b) WHERE c = 3;
SELECT * FROM sizes();
DELETE FROM t WHERE id > 9000;
SELECT * FROM sizes();
ANALYZE t;
SELECT * FROM sizes();
INSERT INTO t SELECT g, g % 50, (g % 50) / 5, g % 7, g, -g, (g::bigint * 7919 % 10007)::int, 's', '' FROM generate_series(9001, 9500) g;
UPDATE t SET c = 3 WHERE id BETWEEN 9001 AND 9100;
VACUUM t;
SELECT * FROM sizes();
VACUUM FULL t;
SELECT * FROM sizes();
DELETE FROM t WHERE id > 9000;
VACUUM ANALYZE t;
SELECT * FROM sizes();
REINDEX TABLE t;
SELECT * FROM sizes();
BEGIN;
TRUNCATE t;
INSERT INTO t (id) VALUES (1);
ANALYZE t;
SELECT * FROM sizes();
ROLLBACK;
SELECT * FROM sizes();
CLUSTER t USING t_pkey;
ANALYZE t;
SELECT * FROM sizes();
-- single columns: frequencies, histograms, correlation, widths
SELECT attname, null_frac, n_distinct, round(correlation::numeric, 1) AS correlation, avg_width, array_length(most_common_vals::text::text[], 1) AS mcv, array_length(histogram_bounds::text::text[], 1) AS bounds
FROM pg_stats WHERE schemaname = 'planner_statistics' AND tablename = 't' AND attname <> 'big' ORDER BY attname COLLATE "C";
SELECT guess('SELECT * FROM t') AS rows, within('SELECT * FROM t WHERE a = 3', 180) AS a, within('SELECT * FROM t WHERE id < 1000', 1000) AS id, within('SELECT * FROM t WHERE s IS NULL', 900) AS nulls,
  within('SELECT * FROM t WHERE mixed > 5000', 4500) AS mixed, within('SELECT DISTINCT b FROM t', 10) AS dist;
ALTER TABLE t ALTER a SET STATISTICS 5, ALTER b SET STATISTICS 0;
ALTER TABLE t ALTER c SET (n_distinct = 70);
ANALYZE t;
SELECT attname, n_distinct, array_length(most_common_vals::text::text[], 1) AS mcv FROM pg_stats WHERE schemaname = 'planner_statistics' AND tablename = 't' AND attname IN ('a', 'c') ORDER BY 1;
ALTER TABLE t ALTER a SET STATISTICS -1, ALTER b SET STATISTICS -1;
ALTER TABLE t ALTER c RESET (n_distinct);
ANALYZE t (a, b, c);
-- an expression's statistics come with its index
CREATE INDEX t_expr ON t ((id % 20));
ANALYZE t;
SELECT tablename, attname, n_distinct FROM pg_stats WHERE schemaname = 'planner_statistics' AND tablename = 't_expr';
SELECT within('SELECT * FROM t WHERE id % 20 = 3', 450) AS expr;
-- columns that depend on each other
SELECT within('SELECT * FROM t WHERE a = 12 AND b = 2', 180) AS alone, within('SELECT a, b FROM t GROUP BY a, b', 50) AS groups;
CREATE STATISTICS st_dep (dependencies) ON a, b FROM t;
CREATE STATISTICS st_nd (ndistinct) ON a, b, c FROM t;
ANALYZE t;
SELECT within('SELECT * FROM t WHERE a = 12 AND b = 2', 180) AS dependent, within('SELECT a, b FROM t GROUP BY a, b', 50) AS groups;
SELECT statistics_name, n_distinct, dependencies FROM pg_stats_ext WHERE schemaname = 'planner_statistics' ORDER BY 1;
DROP STATISTICS st_dep, st_nd;
CREATE STATISTICS st_mcv (mcv) ON a, b, s FROM t;
CREATE STATISTICS st_expr ON (a + b), (lower(s)) FROM t;
ANALYZE t;
SELECT within('SELECT * FROM t WHERE a = 12 AND b = 2 AND s = ''s12''', 180) AS mcv, within('SELECT * FROM t WHERE a = 12 AND b = 3', 1, 2) AS none, within('SELECT * FROM t WHERE a + b = 14', 180) AS expr;
SELECT s.stxname, count(m.*), round(sum(m.frequency)::numeric, 1) FROM pg_statistic_ext s JOIN pg_statistic_ext_data d ON d.stxoid = s.oid, LATERAL pg_mcv_list_items(d.stxdmcv) m
WHERE s.stxname = 'st_mcv' AND s.stxnamespace = 'planner_statistics'::regnamespace GROUP BY 1;
SELECT statistics_name, expr, n_distinct FROM pg_stats_ext_exprs WHERE statistics_schemaname = 'planner_statistics' ORDER BY 2;
-- partitions and children
CREATE TABLE p (id int, k int) PARTITION BY RANGE (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) USING heap;
INSERT INTO p SELECT g, g % 20 FROM generate_series(1, 4000) g;
ANALYZE p;
SELECT relname, reltuples FROM pg_class WHERE relname IN ('p', 'p1', 'p2') AND relnamespace = 'planner_statistics'::regnamespace ORDER BY 1;
SELECT inherited, attname, n_distinct FROM pg_stats WHERE schemaname = 'planner_statistics' AND tablename = 'p' ORDER BY 2;
SELECT within('SELECT * FROM p WHERE k = 3', 200) AS k, guess('SELECT * FROM p') AS rows;
-- materialized views, CREATE TABLE AS, temporary and unlogged tables
CREATE MATERIALIZED VIEW mv AS SELECT a, count(*) AS n FROM t GROUP BY a;
ANALYZE mv;
CREATE TEMP TABLE tt AS SELECT * FROM t;
CREATE UNLOGGED TABLE ut AS SELECT * FROM t WHERE id < 100;
ANALYZE tt;
ANALYZE ut;
SELECT relname, reltuples FROM pg_class WHERE oid IN ('mv'::regclass, 'tt'::regclass, 'ut'::regclass) ORDER BY 1;
-- a table that was emptied, one whose rows are all wide, one of nulls
DELETE FROM ut;
VACUUM ANALYZE ut;
SELECT reltuples FROM pg_class WHERE oid = 'ut'::regclass;
CREATE TABLE wide (id int, s text);
INSERT INTO wide SELECT g, (SELECT string_agg(md5((g * x)::text), '') FROM generate_series(1, 300) x) FROM generate_series(1, 50) g;
ANALYZE wide;
SELECT attname, null_frac, n_distinct, most_common_vals IS NULL AS no_mcv FROM pg_stats WHERE schemaname = 'planner_statistics' AND tablename = 'wide' ORDER BY 1;
SELECT reltuples FROM pg_class WHERE oid = 'wide'::regclass;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA planner_statistics CASCADE;
