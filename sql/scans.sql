--
-- Plans as EXPLAIN shows them: parallel, index-only, TID, TID range, samples, joins, backward
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
SET jit = off;
CREATE SCHEMA scans;
SET search_path = scans, public;

CREATE TABLE t (id int PRIMARY KEY, k int, v int, s text);
INSERT INTO t SELECT g, g % 100, g * 2, md5(g::text) FROM generate_series(1, 20000) g;
CREATE INDEX t_k ON t (k, v);
VACUUM ANALYZE t;

-- parallel scans
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET min_parallel_index_scan_size = 0;
SET max_parallel_workers_per_gather = 2;
EXPLAIN (COSTS OFF) SELECT count(*), sum(v) FROM t WHERE s > '4';
SELECT count(*), sum(v) FROM t WHERE s > '4';
SET enable_seqscan = off;
SET enable_bitmapscan = off;
EXPLAIN (COSTS OFF) SELECT count(s), sum(v) FROM t WHERE id BETWEEN 5000 AND 15000;
SELECT count(s), sum(v) FROM t WHERE id BETWEEN 5000 AND 15000;
EXPLAIN (COSTS OFF) SELECT count(*), sum(id) FROM t WHERE id BETWEEN 5000 AND 15000;
SELECT count(*), sum(id) FROM t WHERE id BETWEEN 5000 AND 15000;
SET enable_bitmapscan = on;
SET enable_indexscan = off;
SET enable_indexonlyscan = off;
EXPLAIN (COSTS OFF) SELECT count(s), sum(v) FROM t WHERE k < 10;
SELECT count(s), sum(v) FROM t WHERE k < 10;
SET enable_seqscan = on;
SET enable_bitmapscan = off;
-- parallel hash join and append; a parallel plan in a transaction that has written
BEGIN;
UPDATE t SET v = v + 1 WHERE id % 2 = 0;
DELETE FROM t WHERE id % 10 = 0;
SAVEPOINT s;
INSERT INTO t SELECT g, 1, 1, 'new' FROM generate_series(20001, 21000) g;
SELECT count(*), sum(v) FROM t;
SELECT count(*), sum(a.v) FROM t a JOIN t b ON a.id = b.v;
ROLLBACK TO s;
SELECT count(*), sum(v) FROM t;
COMMIT;
SELECT count(*), sum(v) FROM t;
-- renamed in PostgreSQL 16
SELECT name <> '' AS forced FROM pg_settings, set_config(name, 'on', false) WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SELECT count(*), sum(v) FROM t;
SELECT s FROM t WHERE id = 77;
SELECT name <> '' AS forced FROM pg_settings, set_config(name, 'off', false) WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
-- CREATE TABLE AS and CREATE INDEX with parallel workers
CREATE TABLE ctas AS SELECT * FROM t WHERE s < '8';
SELECT count(*), sum(v) FROM ctas;
SET max_parallel_maintenance_workers = 2;
ALTER TABLE t SET (parallel_workers = 2);
CREATE INDEX t_s ON t (s);
RESET max_parallel_maintenance_workers;
RESET max_parallel_workers_per_gather;
SET max_parallel_workers_per_gather = 0;
RESET enable_indexscan;
RESET enable_indexonlyscan;
SET enable_seqscan = off;
SELECT count(*), min(s), max(s) FROM t WHERE s > '';

-- index-only scans see what the snapshot sees
EXPLAIN (COSTS OFF) SELECT k, v FROM t WHERE k = 7 AND v < 1000 ORDER BY v DESC;
SELECT k, v FROM t WHERE k = 7 AND v < 1000 ORDER BY v DESC;
UPDATE t SET v = -v WHERE k = 7;
SELECT k, v FROM t WHERE k = 7 AND v < -39000 ORDER BY v;
SELECT count(*) FROM t WHERE k = 7 AND v > 0;
DELETE FROM t WHERE k = 7 AND v < -1000;
SELECT k, v FROM t WHERE k = 7 ORDER BY v;
BEGIN;
DELETE FROM t WHERE k = 7;
SELECT k, v FROM t WHERE k = 7 ORDER BY v;
ROLLBACK;
SELECT k, v FROM t WHERE k = 7 ORDER BY v;
VACUUM t;
SELECT k, v FROM t WHERE k = 7 ORDER BY v;

-- order, limits, backward, min and max, merge and nested-loop joins, mark and restore
EXPLAIN (COSTS OFF) SELECT id FROM t ORDER BY id DESC LIMIT 3;
SELECT id FROM t ORDER BY id DESC LIMIT 3;
SELECT min(id), max(id), min(s), max(s) FROM t;
SELECT k, v FROM t WHERE k IN (3, 5) AND v BETWEEN 900 AND 1700 ORDER BY k DESC, v DESC;
SET enable_hashjoin = off;
SET enable_nestloop = off;
EXPLAIN (COSTS OFF) SELECT count(*) FROM t a JOIN t b ON a.k = b.k WHERE a.k < 5 AND b.k < 5;
SELECT count(*) FROM t a JOIN t b ON a.k = b.k WHERE a.k < 5 AND b.k < 5;
SET enable_mergejoin = off;
SET enable_nestloop = on;
SET enable_memoize = off;
SELECT count(*) FROM t a JOIN t b ON a.v = b.id WHERE a.id < 2000;
RESET enable_memoize;
RESET enable_hashjoin;
RESET enable_mergejoin;
SELECT id, k FROM t WHERE (k, v) > (99, 39500) ORDER BY k, v;
-- distinct values by skipping
WITH RECURSIVE d AS (
  (SELECT k FROM t ORDER BY k LIMIT 1)
  UNION ALL SELECT (SELECT k FROM t WHERE k > d.k ORDER BY k LIMIT 1) FROM d WHERE d.k IS NOT NULL)
SELECT count(k), sum(k) FROM d;
RESET enable_seqscan;
RESET enable_bitmapscan;

-- TIDs
EXPLAIN (COSTS OFF) SELECT id FROM t WHERE ctid = '(0,1)';
SELECT count(*) FROM t a WHERE id = (SELECT id FROM t b WHERE b.ctid = a.ctid) AND id < 100;
SELECT count(*) FROM t WHERE ctid = ANY (ARRAY(SELECT ctid FROM t WHERE id < 1000 AND id % 3 = 0));
SELECT id FROM t WHERE ctid = '(4000000000,1)' OR ctid = '(0,0)' OR ctid = '(0,65535)';
EXPLAIN (COSTS OFF) SELECT id FROM t WHERE ctid >= '(2,0)' AND ctid < '(4,0)';
SELECT (SELECT count(*) FROM t WHERE ctid < '(5,0)') + (SELECT count(*) FROM t WHERE ctid >= '(5,0)')
       = count(*) AS whole FROM t;
SELECT count(*) > 0 AND count(*) < 20000 AS some FROM t WHERE ctid BETWEEN '(1,0)' AND '(3,65535)';
SELECT count(*) FROM t WHERE ctid > '(4294967294,0)';
SELECT count(*) FROM t WHERE ctid > '(5,0)' AND ctid < '(4,0)';
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT id FROM t WHERE ctid < '(2,0)';
MOVE FORWARD ALL IN c;
CREATE TABLE back (id int);
FETCH BACKWARD 1 FROM c \gset last_
FETCH LAST FROM c \gset l_
SELECT :last_id = :l_id AS same;
ROLLBACK;
-- currtid2 follows the row to its newest version
BEGIN;
SELECT ctid AS old FROM t WHERE id = 1 \gset
UPDATE t SET v = 1 WHERE id = 1;
UPDATE t SET v = 2 WHERE id = 1;
SELECT currtid2('t', :'old') = ctid AS newest, ctid <> :'old' AS moved FROM t WHERE id = 1;
ROLLBACK;

-- samples
SELECT count(*) = (SELECT count(*) FROM t) AS everything FROM t TABLESAMPLE system (100);
SELECT count(*) FROM t TABLESAMPLE bernoulli (0);
SELECT count(*) BETWEEN 5000 AND 13000 AS half FROM t TABLESAMPLE bernoulli (50) REPEATABLE (1);
SELECT (SELECT array_agg(id ORDER BY id) FROM t TABLESAMPLE bernoulli (5) REPEATABLE (42)) =
       (SELECT array_agg(id ORDER BY id) FROM t TABLESAMPLE bernoulli (5) REPEATABLE (42)) AS repeatable;
SELECT count(*) = count(DISTINCT id) AS once FROM t TABLESAMPLE system (40) REPEATABLE (3);

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA scans CASCADE;
