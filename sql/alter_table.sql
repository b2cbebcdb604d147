--
-- ALTER TABLE: rewrites, fast defaults, dropped columns, change of access method
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA alter_table;
SET search_path = alter_table, public;

CREATE TABLE t (id int PRIMARY KEY, v int, s text);
INSERT INTO t SELECT g, g * 10, 'row ' || g FROM generate_series(1, 500) g;
DELETE FROM t WHERE id % 50 = 0;
UPDATE t SET v = v + 1 WHERE id % 7 = 0;
CREATE FUNCTION node() RETURNS oid LANGUAGE sql AS $$SELECT relfilenode FROM pg_class WHERE oid = 't'::regclass$$;

-- added columns: no default, constant default (no rewrite), volatile default (rewrite)
SELECT node() AS n \gset
ALTER TABLE t ADD COLUMN a int;
ALTER TABLE t ADD COLUMN b text DEFAULT 'fast';
SELECT node() = :n AS not_rewritten;
SELECT count(*), count(a), count(b), min(b) FROM t;
INSERT INTO t (id) VALUES (1001);
UPDATE t SET a = 1 WHERE id = 1;
SELECT * FROM t WHERE id IN (1, 2, 1001) ORDER BY id;
ALTER TABLE t ALTER b SET DEFAULT 'other';
INSERT INTO t (id) VALUES (1002);
ALTER TABLE t ADD COLUMN c int NOT NULL DEFAULT 3;
SELECT id, b, c FROM t WHERE id IN (2, 1001, 1002) ORDER BY id;
CREATE INDEX ON t (c, id);
UPDATE t SET c = 4 WHERE id > 400;
SELECT c, count(*) FROM t GROUP BY c ORDER BY c;
SELECT node() AS n \gset
ALTER TABLE t ADD COLUMN r float8 DEFAULT random();
SELECT node() = :n AS not_rewritten;
SELECT count(DISTINCT r) > 400 AS random, count(*), sum(v), count(a), min(b), max(b) FROM t;
ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (v + 1) STORED, ADD COLUMN ident int GENERATED ALWAYS AS IDENTITY;
SELECT count(*), sum(g) - sum(v), count(DISTINCT ident) FROM t;

-- dropped columns
ALTER TABLE t DROP COLUMN a, DROP COLUMN r, DROP COLUMN g;
SELECT id, v, s, b, c FROM t WHERE id IN (1, 3) ORDER BY id;
INSERT INTO t (id, v) VALUES (1003, 1) RETURNING id, v, s, b, c;
UPDATE t SET s = 'after' WHERE id = 3;
ALTER TABLE t ADD COLUMN a text;
SELECT id, s, b, a FROM t WHERE id IN (1, 3, 1003) ORDER BY id;
ALTER TABLE t DROP COLUMN b CASCADE, DROP COLUMN ident;

-- types
ALTER TABLE t ALTER v TYPE bigint;
ALTER TABLE t ALTER v TYPE text USING 'v' || v;
SELECT * FROM t WHERE id IN (3, 7) ORDER BY id;
ALTER TABLE t ALTER id TYPE numeric USING id / 2.0;
SELECT * FROM t WHERE id = 3.5;
SELECT count(*), sum(id) FROM t;
ALTER TABLE t ALTER id TYPE int USING (id * 2)::int;
ALTER TABLE t ALTER s TYPE varchar(5);
ALTER TABLE t ALTER s TYPE varchar(50), ALTER s SET NOT NULL;
SELECT count(*) FROM t WHERE s IS NULL;
UPDATE t SET s = 'x' WHERE s IS NULL;
ALTER TABLE t ALTER s SET NOT NULL, ADD CHECK (length(s) < 40), ADD UNIQUE (id, s);
INSERT INTO t (id) VALUES (2000);
SELECT count(*), sum(id) FROM t;

-- rewrites that are rolled back, whole and to a savepoint
BEGIN;
ALTER TABLE t ADD COLUMN x int DEFAULT 5, ALTER v TYPE varchar;
UPDATE t SET x = 6 WHERE id < 10;
SELECT sum(x) FROM t;
ROLLBACK;
SELECT * FROM t WHERE id = 1;
BEGIN;
UPDATE t SET s = 'before' WHERE id = 1;
SAVEPOINT a;
ALTER TABLE t ALTER id TYPE bigint, ADD COLUMN r2 float8 DEFAULT random();
INSERT INTO t (id, s) VALUES (5000000000, 'big');
ROLLBACK TO a;
INSERT INTO t (id, s) VALUES (3000, 'small');
ALTER TABLE t ADD COLUMN r3 float8 DEFAULT random();
DELETE FROM t WHERE id = 2;
COMMIT;
SELECT id, s, r3 IS NOT NULL AS r3 FROM t WHERE id IN (1, 2, 3000) ORDER BY id;
SELECT count(*) FROM t;
-- a rewrite keeps what the same transaction changed before it
BEGIN;
DELETE FROM t WHERE id BETWEEN 10 AND 20;
INSERT INTO t (id, s) VALUES (15, 'mid');
UPDATE t SET s = 'changed' WHERE id BETWEEN 30 AND 35;
ALTER TABLE t ADD COLUMN r4 float8 DEFAULT random();
SELECT count(*) FROM t WHERE id BETWEEN 10 AND 40;
COMMIT;
SELECT id, s FROM t WHERE id BETWEEN 9 AND 36 ORDER BY id;

-- names, storage, statistics, clustering marks, tables and columns renamed
ALTER TABLE t RENAME v TO w;
ALTER TABLE t RENAME TO tt;
ALTER TABLE tt ALTER s SET STORAGE EXTERNAL, ALTER s SET STATISTICS 10;
ALTER TABLE tt SET (autovacuum_enabled = off, fillfactor = 50);
UPDATE tt SET w = 'w' WHERE id < 100;
SELECT count(*), count(w) FROM tt;
ALTER TABLE tt RENAME TO t;
ALTER TABLE t SET SCHEMA public;
SELECT count(*) FROM public.t;
ALTER TABLE public.t SET SCHEMA alter_table;

-- access methods, there and back
CREATE FUNCTION am(regclass) RETURNS name LANGUAGE sql AS
$$SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE c.oid = $1$$;
CREATE TABLE m (id int PRIMARY KEY, s text, v int DEFAULT 9);
INSERT INTO m SELECT g, CASE g % 10 WHEN 0 THEN (SELECT string_agg(md5((x + g)::text), '') FROM generate_series(1, 500) x) ELSE 's' || g END
FROM generate_series(1, 200) g;
CREATE INDEX m_s ON m USING hash (s);
ALTER TABLE m ADD COLUMN late int DEFAULT 1;
ALTER TABLE m DROP COLUMN v;
SELECT count(*), sum(id), sum(late), md5(string_agg(s, ',' ORDER BY id)) FROM m;
ALTER TABLE m SET ACCESS METHOD heap;
SELECT am('m'), count(*), sum(id), sum(late), md5(string_agg(s, ',' ORDER BY id)) FROM m;
SELECT id FROM m WHERE s = 's77';
UPDATE m SET late = 2 WHERE id < 50;
ALTER TABLE m SET ACCESS METHOD nvm;
SELECT am('m'), count(*), sum(id), sum(late), md5(string_agg(s, ',' ORDER BY id)) FROM m;
SELECT id FROM m WHERE s = 's77';
BEGIN;
ALTER TABLE m SET ACCESS METHOD heap;
DELETE FROM m WHERE id > 100;
ROLLBACK;
SELECT am('m'), count(*) FROM m;
BEGIN;
INSERT INTO m VALUES (500, 'in');
ALTER TABLE m SET ACCESS METHOD heap, ADD COLUMN twice int GENERATED ALWAYS AS (id * 2) STORED;
INSERT INTO m VALUES (501, 'out');
ALTER TABLE m SET ACCESS METHOD nvm;
INSERT INTO m VALUES (502, 'in again');
COMMIT;
SELECT id, s, twice FROM m WHERE id >= 500 ORDER BY id;
SET enable_seqscan = off;
SELECT id, s FROM m WHERE id = 502;
SELECT id FROM m WHERE s = 'in again';
RESET enable_seqscan;
-- UNLOGGED and back
ALTER TABLE m SET UNLOGGED;
SELECT relpersistence, count(*), sum(id) FROM m, pg_class c WHERE c.oid = 'm'::regclass GROUP BY 1;
UPDATE m SET late = 3 WHERE id = 1;
ALTER TABLE m SET LOGGED;
SELECT relpersistence, count(*), sum(id) FROM m, pg_class c WHERE c.oid = 'm'::regclass GROUP BY 1;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA alter_table CASCADE;
