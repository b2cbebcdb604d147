--
-- DDL that changes a table's storage: tablespaces, access method, persistence, partitions, refresh
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE storage_ddl_a LOCATION '';
CREATE TABLESPACE storage_ddl_b LOCATION '';
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA storage_ddl;
SET search_path = storage_ddl, public;
\set VERBOSITY terse
-- where a relation is said to be, and what it holds, by table and by index
CREATE FUNCTION at(regclass) RETURNS name LANGUAGE sql AS
$$SELECT coalesce(spcname, 'default') FROM pg_class c LEFT JOIN pg_tablespace s ON s.oid = reltablespace WHERE c.oid = $1$$;
CREATE FUNCTION am(regclass) RETURNS name LANGUAGE sql AS
$$SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE c.oid = $1$$;
CREATE FUNCTION holds(rel regclass) RETURNS text LANGUAGE plpgsql AS $$
DECLARE a text; b text;
BEGIN
  SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_seqscan = on;
  EXECUTE format('SELECT count(*) || '' '' || coalesce(sum(hashtextextended(t::text, 0)), 0) FROM %s t WHERE id >= 0', rel) INTO a;
  SET LOCAL enable_indexscan = on; SET LOCAL enable_seqscan = off;
  EXECUTE format('SELECT count(*) || '' '' || coalesce(sum(hashtextextended(t::text, 0)), 0) FROM %s t WHERE id >= 0', rel) INTO b;
  RETURN CASE WHEN a = b THEN a ELSE 'by table ' || a || ', by index ' || b END;
END $$;
-- storages of this database that belong to no table, or tables that have none or two
CREATE VIEW unaccounted AS
SELECT relation, count(*) FROM nvm.relations WHERE database = current_database() AND NOT ended
GROUP BY relation HAVING relation IS NULL OR count(*) > 1
UNION ALL
SELECT c.oid, 0 FROM pg_class c JOIN pg_am a ON a.oid = relam
WHERE amname = 'nvm' AND relkind IN ('r', 'm') AND NOT EXISTS (SELECT FROM nvm.relations WHERE relation = c.oid);

-- SET TABLESPACE: rows, large values in one run and in several, dead versions, indexes
CREATE TABLE t (id int PRIMARY KEY, a text, b text, c bytea);
ALTER TABLE t ALTER b SET STORAGE EXTERNAL, ALTER c SET STORAGE EXTERNAL;
CREATE INDEX t_a ON t (a);
INSERT INTO t SELECT g, 'row ' || g, CASE WHEN g % 50 = 0 THEN repeat(md5(g::text), 600) ELSE 'short' END,
  CASE WHEN g % 100 = 0 THEN decode(repeat(md5(g::text), 900), 'hex') END
FROM generate_series(1, 2000) g;
INSERT INTO t VALUES (5000, NULL, repeat('long', 9000000), NULL);
UPDATE t SET a = a || '!' WHERE id % 3 = 0;
UPDATE t SET b = b || '+' WHERE id % 100 = 50;
DELETE FROM t WHERE id % 7 = 0;
SELECT holds('t') AS before \gset
ALTER TABLE t SET TABLESPACE storage_ddl_a;
SELECT at('t'), at('t_a'), holds('t') = :'before' AS same;
SELECT id FROM t WHERE a = 'row 999!';
SELECT length(b), md5(b), length(c) FROM t WHERE id IN (5000, 100) ORDER BY id;
SELECT * FROM nvm.check('t');
\set VERBOSITY default
ALTER TABLE t SET TABLESPACE storage_ddl_b;
\set VERBOSITY terse
ALTER TABLE t SET TABLESPACE storage_ddl_b;
ALTER INDEX t_a SET TABLESPACE storage_ddl_a;
ALTER INDEX t_pkey SET TABLESPACE storage_ddl_b;
UPDATE t SET b = 'inline now' WHERE id IN (50, 5000);
UPDATE t SET a = 'moved' WHERE id = 1;
VACUUM t;
SELECT id FROM t WHERE a = 'moved';
SELECT at('t'), at('t_a'), count(*) FROM t;
SELECT * FROM nvm.check('t');
TABLE unaccounted;
-- with what the transaction did before and does after, rolled back whole and in part
SELECT holds('t') AS before \gset
BEGIN;
INSERT INTO t VALUES (6000, 'own', repeat('o', 50000), NULL);
SAVEPOINT a;
DELETE FROM t WHERE id < 100;
SAVEPOINT b;
UPDATE t SET a = 'b' WHERE id = 200;
RELEASE b;
ALTER TABLE t SET TABLESPACE storage_ddl_a;
SELECT count(*), max(id) FROM t;
INSERT INTO t VALUES (6001, 'after', repeat('p', 50000), NULL);
SAVEPOINT c;
DELETE FROM t;
ALTER TABLE t SET TABLESPACE pg_default;
INSERT INTO t VALUES (6002, 'c');
ROLLBACK TO c;
SELECT at('t'), count(*), max(id) FROM t;
ROLLBACK TO a;
SELECT at('t'), count(*), max(id) FROM t;
ALTER TABLE t SET TABLESPACE pg_default;
DELETE FROM t WHERE id = 6000;
SELECT at('t'), holds('t') = :'before' AS same;
COMMIT;
SELECT at('t'), holds('t') = :'before' AS same;
BEGIN; TRUNCATE t; INSERT INTO t VALUES (1); ALTER TABLE t SET TABLESPACE storage_ddl_a; SELECT holds('t') IS NOT NULL; ROLLBACK;
SELECT at('t'), holds('t') = :'before' AS same;
SELECT * FROM nvm.check('t');
-- TRUNCATE of what the same transaction has moved (without an index: PostgreSQL would truncate that in place, heap's too)
CREATE TABLE plain AS SELECT g AS id, repeat('p', g * 100) AS b FROM generate_series(1, 200) g;
BEGIN; ALTER TABLE plain SET TABLESPACE storage_ddl_a; TRUNCATE plain; INSERT INTO plain VALUES (1); SELECT count(*) FROM plain; ROLLBACK;
SELECT at('plain'), count(*), sum(length(b)) FROM plain;
BEGIN; ALTER TABLE plain SET TABLESPACE storage_ddl_a; TRUNCATE plain; INSERT INTO plain VALUES (1, repeat('x', 100000)); COMMIT;
SELECT at('plain'), count(*), sum(length(b)) FROM plain;
-- together with a rewrite; CLUSTER, VACUUM FULL and REINDEX stay there
ALTER TABLE t SET TABLESPACE storage_ddl_a, ADD COLUMN d float8 DEFAULT random();
VACUUM FULL t;
CLUSTER t USING t_pkey;
REINDEX (TABLESPACE storage_ddl_a) TABLE t;
SELECT at('t'), at('t_pkey'), count(*), sum(id) FROM t;
-- of every kind of table
CREATE UNLOGGED TABLE u (id int PRIMARY KEY, b text);
INSERT INTO u SELECT g, repeat('u', g * 100) FROM generate_series(1, 100) g;
ALTER TABLE u SET TABLESPACE storage_ddl_a;
SELECT at('u'), count(*), sum(length(b)) FROM u;
CREATE TEMP TABLE tmp (id int PRIMARY KEY, b text);
INSERT INTO tmp SELECT g, repeat('t', g * 100) FROM generate_series(1, 100) g;
ALTER TABLE tmp SET TABLESPACE storage_ddl_a;
SELECT at('tmp'), count(*), sum(length(b)) FROM tmp;
TRUNCATE tmp;
DROP TABLE tmp;
CREATE MATERIALIZED VIEW mv AS SELECT id, a FROM t;
CREATE UNIQUE INDEX ON mv (id);
ALTER MATERIALIZED VIEW mv SET TABLESPACE storage_ddl_a;
REFRESH MATERIALIZED VIEW mv;
REFRESH MATERIALIZED VIEW CONCURRENTLY mv;
SELECT at('mv'), count(*), sum(id) FROM mv;
CREATE TABLE empty (id int);
ALTER TABLE empty SET TABLESPACE storage_ddl_b;
INSERT INTO empty VALUES (1);
TABLE empty;
SET client_min_messages = warning;
ALTER TABLE ALL IN TABLESPACE storage_ddl_a SET TABLESPACE storage_ddl_b;
RESET client_min_messages;
ALTER MATERIALIZED VIEW ALL IN TABLESPACE storage_ddl_a SET TABLESPACE storage_ddl_b;
ALTER INDEX ALL IN TABLESPACE storage_ddl_a SET TABLESPACE storage_ddl_b;
SELECT at('t'), at('u'), at('mv'), at('empty');
DROP TABLESPACE storage_ddl_b;
SET default_tablespace = storage_ddl_a;
CREATE TABLE d (id int PRIMARY KEY);
INSERT INTO d SELECT generate_series(1, 10);
CREATE TABLE e AS SELECT * FROM d;
RESET default_tablespace;
SELECT at('d'), at('d_pkey'), at('e'), holds('d'), count(*) FROM e;
DROP TABLE d, e;

-- SET ACCESS METHOD, there and back, with every kind of index
CREATE EXTENSION bloom;
CREATE TABLE am_t (id int PRIMARY KEY, a int, s text, arr int[], p point, r int4range, EXCLUDE USING gist (r WITH &&));
INSERT INTO am_t SELECT g, g % 10, repeat('s' || g, g), ARRAY[g, g + 1], point(g, g), int4range(g * 10, g * 10 + 5) FROM generate_series(1, 300) g;
CREATE INDEX am_hash ON am_t USING hash (a);
CREATE INDEX am_gin ON am_t USING gin (arr);
CREATE INDEX am_gist ON am_t USING gist (p);
CREATE INDEX am_spgist ON am_t USING spgist (p);
CREATE INDEX am_brin ON am_t USING brin (id);
CREATE INDEX am_bloom ON am_t USING bloom (a);
CREATE INDEX am_expr ON am_t (lower(left(s, 20))) WHERE a > 3;
CREATE STATISTICS am_stat ON id, a FROM am_t;
CREATE FUNCTION probe() RETURNS TABLE (a bigint, arr bigint, p bigint, brin bigint, expr bigint) LANGUAGE sql SET enable_seqscan = off AS
$$SELECT (SELECT count(*) FROM am_t WHERE a = 3), (SELECT count(*) FROM am_t WHERE arr @> ARRAY[7]),
  (SELECT count(*) FROM am_t WHERE p <@ box '(0,0),(50,50)'), (SELECT count(*) FROM am_t WHERE id BETWEEN 10 AND 20),
  (SELECT count(*) FROM am_t WHERE lower(left(s, 20)) < 's2' AND a > 3)$$;
SELECT holds('am_t') AS before \gset
SELECT * FROM probe();
ALTER TABLE am_t SET ACCESS METHOD heap;
SELECT am('am_t'), holds('am_t') = :'before' AS same, probe.* FROM probe();
DELETE FROM am_t WHERE id > 290;
ALTER TABLE am_t SET ACCESS METHOD nvm;
SELECT am('am_t'), probe.* FROM probe();
INSERT INTO am_t VALUES (291, 3, 's', ARRAY[7], point(1, 1), int4range(2910, 2920)) RETURNING id;
INSERT INTO am_t VALUES (292, 3, 's', ARRAY[7], point(1, 1), int4range(2915, 2930));
SELECT * FROM probe();
BEGIN;
ALTER TABLE am_t SET ACCESS METHOD heap;
SAVEPOINT a;
ALTER TABLE am_t SET ACCESS METHOD nvm;
DELETE FROM am_t WHERE id > 100;
ROLLBACK TO a;
SELECT am('am_t'), count(*) FROM am_t;
ROLLBACK;
SELECT am('am_t'), probe.* FROM probe();
ANALYZE am_t;

-- SET LOGGED and UNLOGGED
CREATE TABLE log_t (id int PRIMARY KEY, b text);
INSERT INTO log_t SELECT g, repeat('l', g * 200) FROM generate_series(1, 100) g;
SELECT holds('log_t') AS before \gset
ALTER TABLE log_t SET UNLOGGED;
SELECT persistence, holds('log_t') = :'before' AS same FROM nvm.relations WHERE relation = 'log_t'::regclass;
BEGIN; ALTER TABLE log_t SET LOGGED; DELETE FROM log_t; ROLLBACK;
SELECT persistence, holds('log_t') = :'before' AS same FROM nvm.relations WHERE relation = 'log_t'::regclass;
ALTER TABLE log_t SET LOGGED;
SELECT persistence, holds('log_t') = :'before' AS same FROM nvm.relations WHERE relation = 'log_t'::regclass;

-- TEMP with every ON COMMIT, and in savepoints
CREATE TEMP TABLE keep (id int PRIMARY KEY, b text) ON COMMIT PRESERVE ROWS;
CREATE TEMP TABLE del (id int PRIMARY KEY, b text) ON COMMIT DELETE ROWS;
BEGIN;
INSERT INTO keep VALUES (1, repeat('k', 20000));
INSERT INTO del VALUES (1, repeat('d', 20000));
CREATE TEMP TABLE dro (id int PRIMARY KEY, b text) ON COMMIT DROP;
INSERT INTO dro VALUES (1, repeat('x', 20000));
SAVEPOINT a;
TRUNCATE keep, del, dro;
INSERT INTO keep VALUES (2);
ROLLBACK TO a;
SELECT (SELECT length(b) FROM keep), (SELECT length(b) FROM del), (SELECT length(b) FROM dro);
COMMIT;
SELECT (SELECT count(*) FROM keep), (SELECT count(*) FROM del), to_regclass('dro');
BEGIN; INSERT INTO keep VALUES (2); INSERT INTO del VALUES (2); ROLLBACK;
SELECT (SELECT count(*) FROM keep), (SELECT count(*) FROM del);
DECLARE c CURSOR WITH HOLD FOR SELECT id FROM keep;
DISCARD TEMP;
SELECT count(*) FROM nvm.relations WHERE persistence = 't' AND NOT ended;

-- partitions and inheritance, nvm and heap mixed
CREATE TABLE p (id int, s text) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);
CREATE TABLE p2 (id int, s text) USING heap;
INSERT INTO p2 SELECT g, 'two' FROM generate_series(100, 199) g;
INSERT INTO p SELECT g, 'one' FROM generate_series(0, 99) g;
CREATE INDEX ON p (id);
ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (100) TO (200);
CREATE TABLE p3 (LIKE p INCLUDING ALL);
INSERT INTO p3 SELECT g, 'three' FROM generate_series(200, 299) g;
ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300);
SELECT tableoid::regclass, count(*) FROM p GROUP BY 1 ORDER BY 1;
BEGIN; ALTER TABLE p DETACH PARTITION p1; DELETE FROM p; ROLLBACK;
ALTER TABLE p DETACH PARTITION p3 CONCURRENTLY;
SELECT (SELECT count(*) FROM p), (SELECT count(*) FROM p3);
ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300);
ALTER TABLE p2 SET ACCESS METHOD nvm;
ALTER TABLE p3 SET TABLESPACE storage_ddl_a;
UPDATE p SET id = id + 100 WHERE id < 150;
SELECT tableoid::regclass, count(*), sum(id) FROM p GROUP BY 1 ORDER BY 1;
ALTER TABLE p DETACH PARTITION p3 FINALIZE;
TRUNCATE p;
DROP TABLE p;
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (more text) INHERITS (parent);
INSERT INTO parent VALUES (1);
INSERT INTO child VALUES (2, 'x');
CREATE TABLE stranger (more int, id int NOT NULL) USING heap;
ALTER TABLE stranger INHERIT parent;
INSERT INTO stranger VALUES (0, 3);
SELECT tableoid::regclass, id FROM parent ORDER BY id;
ALTER TABLE child NO INHERIT parent;
SELECT tableoid::regclass, id FROM parent ORDER BY id;
DROP TABLE parent CASCADE;

-- DROP OWNED, DROP SCHEMA, DROP EXTENSION that would take tables with it
CREATE ROLE storage_ddl_role;
GRANT ALL ON SCHEMA storage_ddl TO storage_ddl_role;
SET ROLE storage_ddl_role;
CREATE TABLE owned (id int PRIMARY KEY, b text);
INSERT INTO owned SELECT g, repeat('o', 500) FROM generate_series(1, 200) g;
CREATE MATERIALIZED VIEW owned_mv AS SELECT * FROM owned;
RESET ROLE;
BEGIN; DROP OWNED BY storage_ddl_role; ROLLBACK;
SELECT holds('owned') IS NOT NULL AS there, count(*) FROM owned_mv;
DROP OWNED BY storage_ddl_role;
SELECT to_regclass('owned');
DROP ROLE storage_ddl_role;
DROP EXTENSION pg_nvm;
BEGIN; SET LOCAL client_min_messages = error; DROP EXTENSION pg_nvm CASCADE; SELECT to_regclass('t'); ROLLBACK;
SELECT count(*) FROM t;
ALTER EXTENSION pg_nvm UPDATE;
ALTER EXTENSION pg_nvm UPDATE TO '0.1';
SELECT nvm.drop_orphans();

-- before 16, a rule on SELECT makes a view of a table: its storage goes, unless that is undone
CREATE TABLE viewed (a int, b text);
CREATE VIEW storages AS SELECT count(*) FROM nvm.relations WHERE relation = to_regclass('viewed') AND NOT ended;
TABLE storages;
BEGIN;
DO $$BEGIN
  EXECUTE 'CREATE RULE "_RETURN" AS ON SELECT TO viewed DO INSTEAD SELECT 1 AS a, ''b''::text AS b';
EXCEPTION WHEN wrong_object_type THEN NULL; END$$;
ROLLBACK;
TABLE storages;
INSERT INTO viewed VALUES (1, 'row');
TRUNCATE viewed;
DO $$BEGIN
  EXECUTE 'CREATE RULE "_RETURN" AS ON SELECT TO viewed DO INSTEAD SELECT 1 AS a, ''b''::text AS b';
EXCEPTION WHEN wrong_object_type THEN NULL; END$$;
SELECT relkind = CASE count WHEN 0 THEN 'v' ELSE 'r' END AS accounted FROM pg_class, storages WHERE oid = 'viewed'::regclass;

-- all indexes of a tablespace
CREATE TABLE far (a int, s text);
INSERT INTO far SELECT g, 's' || g FROM generate_series(1, 1000) g;
CREATE INDEX far_ours ON far USING nvm_btree (s) TABLESPACE storage_ddl_a;
SET nvm.default_index_method = btree;
CREATE INDEX far_built_in ON far USING btree (s) TABLESPACE storage_ddl_a;
RESET nvm.default_index_method;
ALTER INDEX ALL IN TABLESPACE storage_ddl_a OWNED BY CURRENT_USER SET TABLESPACE storage_ddl_b NOWAIT;
SELECT c.relname, s.spcname FROM pg_class c JOIN pg_tablespace s ON s.oid = c.reltablespace WHERE relname ~ '^far_' ORDER BY 1;
ALTER INDEX ALL IN TABLESPACE storage_ddl_b SET TABLESPACE pg_default;
SELECT relname, reltablespace FROM pg_class WHERE relname ~ '^far_' ORDER BY 1;
SELECT * FROM nvm.check('far', true);
DROP TABLE far;
LOAD 'pg_nvm';

-- nothing may be wrong with any table, nor with the pool, and nothing be left over
TABLE unaccounted;
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA storage_ddl CASCADE;
DROP TABLESPACE storage_ddl_a;
DROP TABLESPACE storage_ddl_b;
