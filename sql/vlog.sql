--
-- Access method nvm_vlog: tables in memory with a log
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm_vlog;
CREATE SCHEMA vlog;
SET search_path = vlog, public;
CREATE VIEW kinds AS
SELECT c.relname, c.relkind, c.relpersistence AS p, coalesce(a.amname, '') AS method
  FROM pg_class c LEFT JOIN pg_am a ON a.oid = c.relam
 WHERE relnamespace = 'vlog'::regnamespace AND relkind IN ('r', 'i', 'm', 'p', 'I');
CREATE FUNCTION node(regclass) RETURNS oid LANGUAGE sql AS $$SELECT relfilenode FROM pg_class WHERE oid = $1$$;

-- CREATE, with constraints; indexes are nvm_btree's
CREATE TABLE t (id int PRIMARY KEY, v int UNIQUE, s text DEFAULT 'none', CHECK (v > 0));
CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t ON DELETE CASCADE);
SELECT * FROM kinds WHERE relname LIKE 't%' OR relname LIKE 'child%' ORDER BY 1;
INSERT INTO t SELECT g, g * 10, 's' || g FROM generate_series(1, 100) g;
INSERT INTO child SELECT g, g FROM generate_series(1, 10) g;
INSERT INTO t VALUES (1, 1);
INSERT INTO t VALUES (101, -1);
INSERT INTO child VALUES (11, 1000);
DELETE FROM t WHERE id = 10;
SELECT count(*) FROM child;
UPDATE t SET v = v + 1 WHERE id <= 50;
UPDATE t SET id = id + 1000 WHERE id > 90 AND id NOT IN (SELECT t FROM child) RETURNING id, v;
SELECT count(*), sum(id), sum(v) FROM t;
EXPLAIN (COSTS off) SELECT * FROM t WHERE v = 21;
SELECT * FROM t WHERE v = 21;
SELECT state, reason, persistent <= inserted AS in_order, files > 0 AS files FROM nvm.log;
SELECT state, reason FROM nvm.log_recovery;

-- CTAS, SELECT INTO, materialized views
CREATE TABLE ctas AS SELECT id, v FROM t WHERE id <= 20;
CREATE TABLE ctas_empty AS SELECT * FROM t WITH NO DATA;
SELECT id, s INTO selected FROM t WHERE id > 1000;
CREATE MATERIALIZED VIEW mv AS SELECT count(*) AS n, sum(v) AS v FROM t;
CREATE UNIQUE INDEX ON mv (n);
SELECT * FROM mv;
DELETE FROM t WHERE id = 3;
REFRESH MATERIALIZED VIEW mv;
SELECT * FROM mv;
INSERT INTO t VALUES (3, 30);
REFRESH MATERIALIZED VIEW CONCURRENTLY mv;
SELECT * FROM mv;
SELECT (SELECT count(*) FROM ctas), (SELECT count(*) FROM ctas_empty), (SELECT count(*) FROM selected);
SELECT * FROM kinds WHERE relname IN ('ctas', 'ctas_empty', 'selected', 'mv') ORDER BY 1;
-- REFRESH CONCURRENTLY takes it, also before 18, where it wants method btree
SELECT method = 'btree' AS as_refresh_wants
  FROM kinds WHERE relname = 'mv_n_idx';

-- COPY
CREATE TABLE copied (id int PRIMARY KEY, s text);
COPY copied FROM stdin;
1	one
2	\N
3	three
\.
COPY copied TO stdout;
BEGIN;
TRUNCATE copied;
COPY copied FROM stdin (FREEZE);
4	four
\.
COMMIT;
SELECT xmin <> '0' AS has_xmin, * FROM copied;
COPY copied FROM stdin;
5	five
4	again
\.
SELECT count(*) FROM copied;

-- ON CONFLICT, MERGE, RETURNING, row locks
INSERT INTO t VALUES (1, 5000, 'new') ON CONFLICT DO NOTHING;
INSERT INTO t VALUES (1, 5000, 'new') ON CONFLICT (id) DO UPDATE SET s = excluded.s, v = excluded.v RETURNING *;
INSERT INTO t VALUES (2, 9, 'a'), (2, 9, 'b') ON CONFLICT (id) DO UPDATE SET v = 9;
MERGE INTO t USING (VALUES (2, 'merged'), (3000, 'inserted')) AS m (id, s) ON m.id = t.id
WHEN MATCHED THEN UPDATE SET s = m.s WHEN NOT MATCHED THEN INSERT VALUES (m.id, m.id, m.s);
SELECT * FROM t WHERE id IN (1, 2, 3000) ORDER BY id;
BEGIN; SELECT id FROM t WHERE id = 2 FOR UPDATE; SELECT id FROM t WHERE id = 4 FOR KEY SHARE; COMMIT;

-- transactions and savepoints
BEGIN;
INSERT INTO t VALUES (4000, 4000);
SAVEPOINT a;
UPDATE t SET v = 4001 WHERE id = 4000;
DELETE FROM t WHERE id < 50;
ROLLBACK TO a;
INSERT INTO t VALUES (4001, 4002);
COMMIT;
SELECT count(*), max(v) FROM t;
BEGIN; DELETE FROM t; ROLLBACK;
SELECT count(*) FROM t;

-- large values, and a transaction that is prepared
CREATE TABLE wide (id int PRIMARY KEY, s text);
ALTER TABLE wide ALTER s SET STORAGE EXTERNAL;
INSERT INTO wide VALUES (1, repeat('wide', 50000)), (2, repeat('x', 9000));
UPDATE wide SET s = s || 'er' WHERE id = 1;
SELECT id, length(s), md5(s) FROM wide ORDER BY id;
BEGIN; UPDATE wide SET s = 'narrow' WHERE id = 2; INSERT INTO wide VALUES (3, repeat('y', 9000)); PREPARE TRANSACTION 'vlog';
SELECT count(*) FROM wide;
COMMIT PREPARED 'vlog';
SELECT id, length(s) FROM wide ORDER BY id;

-- over heap, nvm and nvm_vlog: all or nothing
CREATE TABLE on_heap (id int PRIMARY KEY, v int) USING heap;
CREATE TABLE on_nvm (id int PRIMARY KEY, v int) USING nvm;
CREATE TABLE on_vlog (id int PRIMARY KEY, v int) USING nvm_vlog;
CREATE VIEW everywhere AS
SELECT 'heap' AS place, count(*), sum(v) FROM on_heap UNION ALL
SELECT 'nvm', count(*), sum(v) FROM on_nvm UNION ALL
SELECT 'nvm_vlog', count(*), sum(v) FROM on_vlog;
BEGIN;
INSERT INTO on_heap SELECT g, g FROM generate_series(1, 10) g;
INSERT INTO on_nvm TABLE on_heap;
INSERT INTO on_vlog TABLE on_nvm;
COMMIT;
BEGIN;
UPDATE on_heap SET v = 0;
UPDATE on_nvm SET v = 0;
UPDATE on_vlog SET v = 0;
ROLLBACK;
TABLE everywhere;
BEGIN;
DELETE FROM on_nvm WHERE id = 1;
UPDATE on_vlog SET v = 100 WHERE id = 2;
COMMIT;
BEGIN;
WITH moved AS (DELETE FROM on_vlog WHERE id > 8 RETURNING *) INSERT INTO on_heap SELECT id + 100, v FROM moved;
COMMIT;
TABLE everywhere;
SELECT h.id, h.v, n.v, l.v FROM on_heap h JOIN on_nvm n USING (id) JOIN on_vlog l USING (id) WHERE id < 4;

-- TRUNCATE, DROP, and back
BEGIN;
TRUNCATE on_vlog;
INSERT INTO on_vlog VALUES (1, 1);
SELECT count(*) FROM on_vlog;
ROLLBACK;
SELECT count(*) FROM on_vlog;
BEGIN; DROP TABLE on_vlog CASCADE; ROLLBACK;
SELECT count(*) FROM on_vlog;
TRUNCATE on_vlog;
SELECT count(*) FROM on_vlog;
INSERT INTO on_vlog SELECT g, g FROM generate_series(1, 10) g;
BEGIN; CREATE TABLE gone (a int); INSERT INTO gone VALUES (1); ROLLBACK;
BEGIN; CREATE TABLE stays (a int PRIMARY KEY); INSERT INTO stays VALUES (1); TRUNCATE stays; INSERT INTO stays VALUES (2); COMMIT;
TABLE stays;

-- ALTER TABLE: with and without a rewrite
DROP VIEW everywhere;
SELECT node('on_vlog') AS n \gset
ALTER TABLE on_vlog ADD COLUMN a int DEFAULT 7;
SELECT node('on_vlog') = :n AS not_rewritten;
ALTER TABLE on_vlog ADD COLUMN b int DEFAULT (random() * 0)::int, ALTER v TYPE bigint;
SELECT node('on_vlog') = :n AS not_rewritten;
ALTER TABLE on_vlog DROP COLUMN a;
ALTER TABLE on_vlog RENAME b TO c;
CREATE INDEX on_vlog_v ON on_vlog (v) WHERE v > 5;
CREATE INDEX CONCURRENTLY on_vlog_c ON on_vlog ((c + 1));
CLUSTER on_vlog USING on_vlog_pkey;
VACUUM FULL on_vlog;
REINDEX TABLE on_vlog;
REINDEX TABLE CONCURRENTLY on_vlog;
ALTER TABLE on_vlog SET TABLESPACE pg_default;
SELECT * FROM on_vlog WHERE v > 8;
SELECT * FROM kinds WHERE relname LIKE 'on_vlog%' ORDER BY 1;

-- indexes of every method
CREATE TABLE built_in (id int, s text, r int4range, p point);
SET nvm.default_index_method = btree;
CREATE INDEX built_in_btree ON built_in USING btree (id);
RESET nvm.default_index_method;
CREATE INDEX built_in_hash ON built_in USING hash (id);
CREATE INDEX built_in_gin ON built_in USING gin (to_tsvector('simple', s));
CREATE INDEX built_in_gist ON built_in USING gist (r);
CREATE INDEX built_in_spgist ON built_in USING spgist (p);
CREATE INDEX built_in_brin ON built_in USING brin (id);
ALTER TABLE built_in ADD EXCLUDE USING gist (r WITH &&);
INSERT INTO built_in SELECT g, 'word' || g, int4range(g, g + 1), point(g, g) FROM generate_series(1, 500) g;
INSERT INTO built_in VALUES (0, '', int4range(5, 7));
SET enable_seqscan = off;
SELECT id FROM built_in WHERE id = 77;
SELECT id FROM built_in WHERE to_tsvector('simple', s) @@ 'word78';
SELECT id FROM built_in WHERE r @> 79;
SELECT id FROM built_in WHERE p <@ box '((80, 80), (80, 80))';
RESET enable_seqscan;

-- SET ACCESS METHOD in all directions, with btree and nvm_btree indexes
CREATE TABLE moving (id int PRIMARY KEY, v int, s text) USING heap;
CREATE INDEX moving_v ON moving (v);
INSERT INTO moving SELECT g, g % 7, 'm' || g FROM generate_series(1, 300) g;
CREATE VIEW at AS SELECT relname, method FROM kinds WHERE relname IN ('moving', 'moving_pkey', 'moving_v') ORDER BY 1;
CREATE PROCEDURE moves(to_method text) LANGUAGE plpgsql AS $$
DECLARE
	n int;
BEGIN
	EXECUTE 'ALTER TABLE moving SET ACCESS METHOD ' || to_method;
	UPDATE moving SET v = v + 1 WHERE id % 50 = 0;
	SET LOCAL enable_seqscan = off;
	SELECT count(*) INTO n FROM moving WHERE id > 0;
	RAISE NOTICE '%: % rows, sum %: %', to_method, n, (SELECT sum(v) FROM moving),
		(SELECT string_agg(method, ' ') FROM at);
END$$;
CALL moves('nvm_vlog');
CALL moves('heap');
CALL moves('nvm');
CALL moves('nvm_vlog');
CALL moves('nvm');
CALL moves('heap');
CALL moves('nvm_vlog');
BEGIN; ALTER TABLE moving SET ACCESS METHOD heap; ROLLBACK;
TABLE at;
SELECT count(*), sum(v) FROM moving;
ALTER MATERIALIZED VIEW mv SET ACCESS METHOD heap;
ALTER MATERIALIZED VIEW mv SET ACCESS METHOD nvm_vlog;
SELECT * FROM mv;

-- UNLOGGED: not in the log
CREATE UNLOGGED TABLE u (id int PRIMARY KEY, v int);
INSERT INTO u SELECT g, g FROM generate_series(1, 10) g;
CREATE INDEX u_hash ON u USING hash (v);
CREATE INDEX u_v ON u (v);
ALTER TABLE u SET LOGGED;
ALTER TABLE u SET UNLOGGED;
UPDATE u SET v = 0 WHERE id > 5;
SELECT count(*), sum(v) FROM u;
SELECT * FROM kinds WHERE relname LIKE 'u' OR relname LIKE 'u\_%' ORDER BY 1;

-- temporary tables
CREATE TEMP TABLE tmp (id int PRIMARY KEY, v int);
CREATE TEMP TABLE tmp_rows (id int PRIMARY KEY) ON COMMIT DELETE ROWS;
CREATE INDEX ON tmp USING hash (v);
INSERT INTO tmp SELECT g, g FROM generate_series(1, 10) g;
BEGIN; INSERT INTO tmp_rows TABLE stays; SELECT count(*) FROM tmp_rows; COMMIT;
BEGIN; CREATE TEMP TABLE tmp_drop ON COMMIT DROP AS TABLE tmp; SELECT count(*) FROM tmp_drop; COMMIT;
SELECT (SELECT count(*) FROM tmp), (SELECT count(*) FROM tmp_rows);
DROP TABLE tmp, tmp_rows;

-- partitions, of three access methods
CREATE TABLE parts (id int, v int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (1) TO (100) USING nvm_vlog;
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (100) TO (200) USING nvm;
CREATE TABLE parts_3 PARTITION OF parts FOR VALUES FROM (200) TO (300) USING heap;
INSERT INTO parts SELECT g, g FROM generate_series(1, 299) g;
DELETE FROM parts WHERE id = 200;
UPDATE parts SET id = id + 199 WHERE id = 1;
UPDATE parts SET id = 1 WHERE id = 299;
INSERT INTO parts VALUES (5, 5) ON CONFLICT (id) DO UPDATE SET v = 55;
SELECT tableoid::regclass, count(*), sum(v) FROM parts GROUP BY 1 ORDER BY 1;
CREATE TABLE parts_4 (LIKE parts INCLUDING ALL);
INSERT INTO parts_4 VALUES (300, 300);
ALTER TABLE parts ATTACH PARTITION parts_4 FOR VALUES FROM (300) TO (400);
ALTER TABLE parts DETACH PARTITION parts_1;
SELECT relname, method FROM kinds WHERE relname LIKE 'parts%' ORDER BY 1;
SELECT count(*), sum(v) FROM parts;

-- not published, as nvm
SET client_min_messages = error;	-- the warning about wal_level, which differs since 17
CREATE PUBLICATION vlog_pub FOR TABLE t;
RESET client_min_messages;

-- maintenance and what is shown
VACUUM (ANALYZE) t;
SELECT relpages > 0 AS pages, reltuples FROM pg_class WHERE oid = 't'::regclass;
SELECT persistence, ended, kind, live_rows FROM nvm.relations WHERE relation = 't'::regclass;
SELECT nvm.size('t') > 0 AS sized, pg_relation_size('t') AS of_file;
SELECT c.relname, p.* FROM pg_class c, LATERAL nvm.check(c.oid, false) p
 WHERE relnamespace = 'vlog'::regnamespace AND relkind IN ('r', 'm') AND relam <> 2;
SELECT * FROM nvm.check_pool();

SET client_min_messages = warning;
DROP SCHEMA vlog CASCADE;
