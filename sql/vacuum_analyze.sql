--
-- VACUUM, ANALYZE, statistics and counters
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA vacuum_analyze;
SET search_path = vacuum_analyze, public;

SET jit = off;
CREATE TABLE t (id int PRIMARY KEY, k int, s text) WITH (autovacuum_enabled = off);
CREATE INDEX t_k ON t (k);
CREATE INDEX t_s ON t USING gin (to_tsvector('simple', s));
INSERT INTO t SELECT g, g % 10, 'word' || g % 100 FROM generate_series(1, 10000) g;
SELECT reltuples FROM pg_class WHERE oid = 't'::regclass;
ANALYZE t;
SELECT reltuples, relpages > 0 AS pages FROM pg_class WHERE oid = 't'::regclass;
SELECT attname, n_distinct, null_frac, array_length(most_common_vals::text::text[], 1) AS mcv, correlation > 0.99 AS correlated
FROM pg_stats WHERE tablename = 't' AND schemaname = 'vacuum_analyze' ORDER BY attname;
-- the planner's guess of a table that was never analyzed is of the right size
CREATE TABLE young (a int, b int);
INSERT INTO young SELECT g, g FROM generate_series(1, 50000) g;
CREATE FUNCTION guess(q text) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE j json;
BEGIN
  EXECUTE 'EXPLAIN (FORMAT json) ' || q INTO j;
  RETURN (j->0->'Plan'->>'Plan Rows')::numeric;
END$$;
SELECT guess('SELECT * FROM young') BETWEEN 10000 AND 250000 AS plausible;
SELECT guess('SELECT * FROM t'), guess('SELECT * FROM t WHERE k = 3') BETWEEN 800 AND 1200 AS plausible;
CREATE TABLE empty (a int);
SELECT guess('SELECT * FROM empty') > 100 AS as_heap;

-- VACUUM takes dead rows out of every index, and keeps the others
DELETE FROM t WHERE id % 2 = 0;
UPDATE t SET k = k + 100 WHERE id % 3 = 0;
UPDATE t SET s = s || ' more' WHERE id % 5 = 0;
BEGIN; INSERT INTO t SELECT g, 1, 'gone' FROM generate_series(20000, 21000) g; ROLLBACK;
VACUUM t;
SELECT reltuples FROM pg_class WHERE oid = 't'::regclass;
SELECT relname, reltuples FROM pg_class WHERE relname IN ('t_pkey', 't_k') AND relnamespace = 'vacuum_analyze'::regnamespace ORDER BY 1;
CREATE FUNCTION counts() RETURNS TABLE (n bigint, ids bigint, ks bigint, more bigint) LANGUAGE sql AS
$$SELECT count(*), sum(id), sum(k), count(*) FILTER (WHERE to_tsvector('simple', s) @@ 'more') FROM t$$;
SELECT * FROM counts();
SET enable_seqscan = off;
SELECT count(*), sum(id) FROM t WHERE id > 0;
SELECT count(*), sum(k) FROM t WHERE k > -1;
SELECT count(*) FROM t WHERE to_tsvector('simple', s) @@ 'more';
SELECT count(*) FROM t WHERE k = 1 AND id > 19999;
RESET enable_seqscan;
VACUUM ANALYZE t;
VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) t;
VACUUM (INDEX_CLEANUP off, TRUNCATE off) t;
DELETE FROM t WHERE id % 7 = 0;
VACUUM (INDEX_CLEANUP on, PARALLEL 2) t;
VACUUM (SKIP_LOCKED, PROCESS_TOAST false) t;
SELECT * FROM counts();
SELECT age(relfrozenxid) >= 0 AS valid, age(relfrozenxid) < 1000000 AS young FROM pg_class WHERE oid = 't'::regclass;
-- FULL and CLUSTER, with rows of the same shape afterwards
VACUUM FULL t;
SELECT * FROM counts();
SET enable_seqscan = off;
SELECT count(*), sum(id) FROM t WHERE id > 0;
SELECT count(*), sum(k) FROM t WHERE k > -1;
RESET enable_seqscan;
UPDATE t SET k = -k WHERE id % 2 = 1;
CLUSTER t USING t_k;
SELECT * FROM counts();
SELECT count(*) FROM (SELECT k, lag(k) OVER () AS before FROM t) x WHERE before > k;
VACUUM FULL t (id);
VACUUM (FULL, ANALYZE) t;
BEGIN; VACUUM t; ROLLBACK;
TRUNCATE t;
VACUUM t;
SELECT reltuples FROM pg_class WHERE oid = 't'::regclass;
INSERT INTO t SELECT g, g, 'x' FROM generate_series(1, 100) g;
VACUUM;
ANALYZE;
SELECT * FROM counts();
SELECT reltuples FROM pg_class WHERE oid = 't'::regclass;

-- ANALYZE of rows in every state counts the live ones
CREATE TABLE st (id int, v text) WITH (autovacuum_enabled = off);
INSERT INTO st SELECT g, 'v' FROM generate_series(1, 1000) g;
UPDATE st SET v = 'w' WHERE id <= 500;
DELETE FROM st WHERE id > 900;
BEGIN; INSERT INTO st SELECT g, 'v' FROM generate_series(1, 500) g; ROLLBACK;
ANALYZE st;
SELECT reltuples FROM pg_class WHERE oid = 'st'::regclass;
SELECT most_common_vals, most_common_freqs FROM pg_stats WHERE tablename = 'st' AND attname = 'v';
BEGIN;
DELETE FROM st WHERE id <= 100;
INSERT INTO st SELECT g, 'v' FROM generate_series(1, 50) g;
ANALYZE st;
SELECT reltuples FROM pg_class WHERE oid = 'st'::regclass;
ROLLBACK;

-- the counters
CREATE TABLE cnt (id int PRIMARY KEY, v int, w int) WITH (autovacuum_enabled = off, fillfactor = 20);
CREATE INDEX ON cnt (w);
CREATE VIEW counters AS SELECT seq_scan, seq_tup_read, idx_scan, idx_tup_fetch, n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del, n_live_tup, n_dead_tup
FROM pg_stat_user_tables WHERE relid = 'cnt'::regclass;
INSERT INTO cnt SELECT g, 0, 0 FROM generate_series(1, 100) g;
UPDATE cnt SET w = 1 WHERE id <= 20;
DELETE FROM cnt WHERE id > 90;
BEGIN; INSERT INTO cnt VALUES (1000, 1, 1); UPDATE cnt SET v = 1 WHERE id = 1; ROLLBACK;
SELECT count(*) FROM cnt;
SELECT pg_stat_force_next_flush();
\x on
SELECT n_tup_ins, n_tup_upd, n_tup_del, n_live_tup, n_dead_tup > 0 AS dead, seq_scan > 0 AS seq, seq_tup_read > 0 AS read FROM counters;
-- updates that touch no indexed column are counted as hot
SELECT pg_stat_get_tuples_hot_updated('cnt'::regclass) AS before \gset
UPDATE cnt SET v = 2;
SELECT pg_stat_force_next_flush() \gset
SELECT n_tup_hot_upd - :before > 80 AS hot FROM counters;
SET enable_seqscan = off;
SELECT v FROM cnt WHERE id = 5;
SELECT pg_stat_force_next_flush() \gset
SELECT idx_scan > 0 AS scans, idx_tup_fetch > 0 AS fetched FROM counters;
RESET enable_seqscan;
VACUUM ANALYZE cnt;
SELECT pg_stat_force_next_flush() \gset
SELECT n_live_tup, n_dead_tup FROM counters;
SELECT vacuum_count, analyze_count, last_vacuum IS NOT NULL AS vacuumed FROM pg_stat_user_tables WHERE relid = 'cnt'::regclass;
\x off

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA vacuum_analyze CASCADE;
