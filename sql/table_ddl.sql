--
-- TRUNCATE, DROP, CREATE TABLE AS, materialized views, temporary and unlogged tables, indexes
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA table_ddl;
SET search_path = table_ddl, public;

-- TRUNCATE: committed, rolled back, of a table of the same transaction, in savepoints
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t SELECT g, g FROM generate_series(1, 1000) g;
BEGIN; TRUNCATE t; SELECT count(*) FROM t; INSERT INTO t VALUES (1, 1), (2, 2); SELECT count(*) FROM t; ROLLBACK;
SELECT count(*), sum(v) FROM t;
BEGIN;
INSERT INTO t VALUES (2000, 1);
SAVEPOINT a;
TRUNCATE t;
INSERT INTO t VALUES (1, 100);
SAVEPOINT b;
TRUNCATE t;
INSERT INTO t VALUES (1, 200);
SELECT * FROM t;
ROLLBACK TO b;
SELECT * FROM t;
ROLLBACK TO a;
SELECT count(*), sum(v) FROM t;
COMMIT;
SELECT count(*), sum(v) FROM t;
BEGIN; TRUNCATE t; INSERT INTO t VALUES (5, 5); COMMIT;
SELECT * FROM t;
SET enable_seqscan = off;
SELECT * FROM t WHERE id = 5;
SELECT * FROM t WHERE id = 1;
RESET enable_seqscan;
BEGIN;
CREATE TABLE fresh (a int PRIMARY KEY);
INSERT INTO fresh SELECT generate_series(1, 100);
TRUNCATE fresh;
INSERT INTO fresh SELECT generate_series(1, 10);
SAVEPOINT a;
TRUNCATE fresh;
ROLLBACK TO a;
SELECT count(*) FROM fresh;
COMMIT;
SELECT count(*) FROM fresh;
TRUNCATE t, fresh;
SELECT count(*) FROM fresh;
CREATE TABLE ident (id int GENERATED ALWAYS AS IDENTITY, v int);
INSERT INTO ident (v) VALUES (1), (2);
BEGIN; TRUNCATE ident RESTART IDENTITY; INSERT INTO ident (v) VALUES (3) RETURNING *; ROLLBACK;
INSERT INTO ident (v) VALUES (3) RETURNING *;

-- CREATE and DROP, committed and rolled back, again under the same name
BEGIN; CREATE TABLE gone (a int); INSERT INTO gone VALUES (1); ROLLBACK;
SELECT to_regclass('gone');
CREATE TABLE gone (a int);
INSERT INTO gone SELECT generate_series(1, 5);
BEGIN; DROP TABLE gone; CREATE TABLE gone (b text); INSERT INTO gone VALUES ('other'); TABLE gone; ROLLBACK;
SELECT count(*), sum(a) FROM gone;
BEGIN; SAVEPOINT a; DROP TABLE gone; ROLLBACK TO a; INSERT INTO gone VALUES (6); COMMIT;
SELECT count(*), sum(a) FROM gone;
BEGIN; SAVEPOINT a; CREATE TABLE sub (a int); INSERT INTO sub VALUES (1); RELEASE a; INSERT INTO sub VALUES (2); COMMIT;
TABLE sub;
BEGIN; DROP TABLE gone; COMMIT;
SELECT to_regclass('gone');
DO $$BEGIN
  FOR i IN 1..50 LOOP
    EXECUTE 'CREATE TABLE churn (a int PRIMARY KEY, b text)';
    EXECUTE 'INSERT INTO churn SELECT g, repeat(''x'', 1000) FROM generate_series(1, 20) g';
    BEGIN
      EXECUTE 'DROP TABLE churn';
      IF i % 2 = 0 THEN RAISE EXCEPTION 'undo'; END IF;
    EXCEPTION WHEN raise_exception THEN
      EXECUTE 'DROP TABLE churn';
    END;
  END LOOP;
END$$;

-- CREATE TABLE AS, SELECT INTO, LIKE, WITH NO DATA, EXECUTE
CREATE TABLE c1 AS SELECT g AS a, g::text AS b FROM generate_series(1, 3000) g;
SELECT a.id INTO c2 FROM (SELECT 1 AS id UNION SELECT 2) a;
CREATE TABLE c3 (LIKE c1 INCLUDING ALL);
CREATE TABLE c4 AS TABLE c1 WITH NO DATA;
PREPARE q (int) AS SELECT * FROM c1 WHERE a < $1;
CREATE TABLE c5 AS EXECUTE q (10);
CREATE TABLE c6 USING heap AS TABLE c1;
SELECT (SELECT count(*) FROM c1), (SELECT count(*) FROM c2), (SELECT count(*) FROM c3), (SELECT count(*) FROM c4),
  (SELECT count(*) FROM c5), (SELECT count(*) FROM c6);
SELECT relname, amname FROM pg_class c JOIN pg_am a ON a.oid = relam
WHERE relnamespace = 'table_ddl'::regnamespace AND relname ~ '^c\d$' ORDER BY 1;
-- prepared statements survive a change of the table
EXECUTE q (3);
ALTER TABLE c1 ADD COLUMN c int DEFAULT 1;
DEALLOCATE q;
PREPARE q (int) AS SELECT count(*) FROM c1 WHERE a < $1;
EXECUTE q (3);
TRUNCATE c1;
EXECUTE q (3);
ALTER TABLE c1 SET ACCESS METHOD heap;
INSERT INTO c1 VALUES (1, 'x');
EXECUTE q (3);

-- materialized views
CREATE MATERIALIZED VIEW mv AS SELECT id, v FROM ident;
CREATE UNIQUE INDEX ON mv (id);
SELECT count(*) FROM mv;
INSERT INTO ident (v) VALUES (4), (5);
REFRESH MATERIALIZED VIEW mv;
SELECT count(*) FROM mv;
UPDATE ident SET v = v * 10;
DELETE FROM ident WHERE v = 10;
REFRESH MATERIALIZED VIEW CONCURRENTLY mv;
SELECT * FROM mv ORDER BY id;
REFRESH MATERIALIZED VIEW mv WITH NO DATA;
SELECT * FROM mv;
BEGIN; REFRESH MATERIALIZED VIEW mv; SELECT count(*) FROM mv; ROLLBACK;
REFRESH MATERIALIZED VIEW mv;
ALTER MATERIALIZED VIEW mv SET ACCESS METHOD heap;
SELECT count(*) FROM mv;

-- temporary tables
CREATE TEMP TABLE tmp (id int PRIMARY KEY, v text);
INSERT INTO tmp SELECT g, repeat('t', g) FROM generate_series(1, 100) g;
UPDATE tmp SET v = 'u' WHERE id % 2 = 0;
SELECT count(*), sum(length(v)) FROM tmp;
CREATE TEMP TABLE del (a int) ON COMMIT DELETE ROWS;
BEGIN; INSERT INTO del VALUES (1); SELECT count(*) FROM del; COMMIT;
SELECT count(*) FROM del;
BEGIN; INSERT INTO del VALUES (1); SAVEPOINT a; INSERT INTO del VALUES (2); ROLLBACK TO a; SELECT count(*) FROM del; ROLLBACK;
BEGIN;
CREATE TEMP TABLE dro (a int) ON COMMIT DROP;
INSERT INTO dro VALUES (1);
INSERT INTO tmp VALUES (1000, 'in');
COMMIT;
SELECT to_regclass('pg_temp.dro');
BEGIN; INSERT INTO tmp VALUES (1001, 'x'); DROP TABLE tmp; ROLLBACK;
SELECT count(*) FROM tmp;
TRUNCATE tmp;
INSERT INTO tmp VALUES (1, 'after');
TABLE tmp;
DISCARD TEMP;
SELECT to_regclass('pg_temp.tmp');

-- unlogged tables
CREATE UNLOGGED TABLE u (id int PRIMARY KEY, v int);
INSERT INTO u SELECT g, g FROM generate_series(1, 1000) g;
BEGIN; UPDATE u SET v = 0; ROLLBACK;
DELETE FROM u WHERE id % 2 = 0;
SELECT count(*), sum(v) FROM u;
TRUNCATE u;
INSERT INTO u VALUES (1, 1);
TABLE u;

-- indexes over rows in every state
CREATE TABLE ix (id int, a int, b text);
INSERT INTO ix SELECT g, g % 100, 'b' || g FROM generate_series(1, 2000) g;
UPDATE ix SET b = b || '!' WHERE id % 3 = 0;
UPDATE ix SET a = a + 100 WHERE id % 5 = 0;
DELETE FROM ix WHERE id % 7 = 0;
BEGIN;
UPDATE ix SET a = a + 1000 WHERE id % 11 = 0;
SAVEPOINT s;
UPDATE ix SET a = -1;
ROLLBACK TO s;
DELETE FROM ix WHERE id % 13 = 0;
CREATE INDEX ix_a ON ix (a);
SET LOCAL enable_seqscan = off;
SELECT count(*), sum(id) FROM ix WHERE a > 150;
COMMIT;
CREATE UNIQUE INDEX ix_id ON ix (id);
\set VERBOSITY terse
CREATE UNIQUE INDEX ix_no ON ix (a);
CREATE INDEX CONCURRENTLY ix_b ON ix (b);
CREATE UNIQUE INDEX CONCURRENTLY ix_no ON ix (a);
\set VERBOSITY default
SELECT indexrelid::regclass, indisvalid FROM pg_index WHERE indrelid = 'ix'::regclass ORDER BY 1;
DROP INDEX ix_no;
SET enable_seqscan = off;
SELECT count(*), sum(id) FROM ix WHERE a > 150;
SELECT count(*), sum(id) FROM ix WHERE b > 'b5';
REINDEX TABLE CONCURRENTLY ix;
REINDEX INDEX ix_a;
SELECT count(*), sum(id) FROM ix WHERE a > 150;
SELECT count(*), sum(id) FROM ix WHERE b > 'b5';
RESET enable_seqscan;
SELECT count(*), sum(id) FROM ix WHERE a + 0 > 150;
ALTER TABLE ix ADD CONSTRAINT ix_pk PRIMARY KEY USING INDEX ix_id;
INSERT INTO ix VALUES (1, 1, '');

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA table_ddl CASCADE;
