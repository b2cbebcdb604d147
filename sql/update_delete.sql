--
-- UPDATE, DELETE, RETURNING, UPDATE FROM, DELETE USING, MERGE
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA update_delete;
SET search_path = update_delete, public;

CREATE TABLE t (id int PRIMARY KEY, v int, s text);
INSERT INTO t SELECT g, g * 10, 'row ' || g FROM generate_series(1, 20) g;

-- update without and with change of an indexed column
UPDATE t SET v = v + 1 WHERE id = 3 RETURNING *;
UPDATE t SET v = v + 1 WHERE id = 3 RETURNING *;
UPDATE t SET id = 103 WHERE id = 3 RETURNING *;
SELECT * FROM t WHERE id IN (3, 103);
UPDATE t SET id = 3 WHERE id = 103;
SELECT * FROM t WHERE id IN (3, 103);
-- every row, several times
UPDATE t SET v = v + 1;
UPDATE t SET v = v + 1, s = s || '!';
UPDATE t SET s = NULL WHERE id % 7 = 0;
SELECT * FROM t WHERE id BETWEEN 1 AND 7 ORDER BY id;
SELECT count(*), sum(v), count(s) FROM t;
-- longer, shorter, null and back
UPDATE t SET s = repeat('long', 500) WHERE id = 1;
SELECT id, length(s) FROM t WHERE id = 1;
UPDATE t SET s = NULL WHERE id = 1 RETURNING *;
UPDATE t SET s = 'short' WHERE id = 1 RETURNING *;

-- the key swapped around: the unique check sees intermediate states
\set VERBOSITY terse
UPDATE t SET id = id + 1;
SELECT count(*), min(id) FROM t;
UPDATE t SET id = -id;
UPDATE t SET id = -id + 1;
SELECT count(*), min(id), max(id), sum(v) FROM t;
UPDATE t SET id = id - 1 WHERE id > 0;
\set VERBOSITY default
SELECT count(*), min(id), max(id) FROM t;

-- the same row twice in one command is updated once
UPDATE t SET v = s.x FROM (VALUES (5, 1000), (5, 1001)) s(id, x) WHERE t.id = s.id;
SELECT id, v IN (1000, 1001) AS once FROM t WHERE id = 5;
-- twice in one transaction
BEGIN;
UPDATE t SET v = 1 WHERE id = 6 RETURNING v;
UPDATE t SET v = v + 1 WHERE id = 6 RETURNING v;
DELETE FROM t WHERE id = 6 RETURNING v;
INSERT INTO t VALUES (6, 3, 'again');
UPDATE t SET v = v + 1 WHERE id = 6 RETURNING v;
SELECT * FROM t WHERE id = 6;
ROLLBACK;
SELECT * FROM t WHERE id = 6;

-- UPDATE FROM, DELETE USING, sub-selects, aliases, row values
CREATE TABLE delta (id int, d int);
INSERT INTO delta SELECT g, 100 FROM generate_series(1, 40, 2) g;
UPDATE t SET v = v + delta.d FROM delta WHERE delta.id = t.id;
SELECT count(*) FROM t WHERE v > 100 AND id % 2 = 1;
UPDATE t x SET (v, s) = (SELECT d, 'sub' FROM delta WHERE delta.id = x.id) WHERE id IN (7, 8);
SELECT * FROM t WHERE id IN (7, 8) ORDER BY id;
WITH d AS (DELETE FROM t USING delta WHERE delta.id = t.id AND t.id > 15 RETURNING t.id, d)
SELECT * FROM d ORDER BY id;
WITH d AS (DELETE FROM t WHERE id IN (SELECT id + 1 FROM delta) AND id < 5 RETURNING *)
SELECT * FROM d ORDER BY id;
SELECT id FROM t ORDER BY id;
UPDATE t SET v = (SELECT max(v) FROM t), s = 'max' WHERE id = 1;
DELETE FROM t WHERE NOT EXISTS (SELECT FROM delta WHERE delta.id = t.id) AND id <> 20;
SELECT id FROM t ORDER BY id;

-- delete, insert again, delete again
DELETE FROM t WHERE id = 20;
INSERT INTO t VALUES (20, 1, 'new');
DELETE FROM t WHERE id = 20;
INSERT INTO t VALUES (20, 2, 'newer');
SELECT * FROM t WHERE id = 20;
DELETE FROM t;
SELECT count(*) FROM t;
DELETE FROM t;
INSERT INTO t SELECT g, g, 'g' FROM generate_series(1, 10) g;

-- writable CTEs all see the state before the statement
WITH d AS (DELETE FROM t WHERE id <= 5 RETURNING *),
     u AS (UPDATE t SET v = -v WHERE id > 8 RETURNING *),
     i AS (INSERT INTO delta SELECT id, v FROM d RETURNING *)
SELECT (SELECT count(*) FROM t) AS before, (SELECT count(*) FROM d) AS deleted,
       (SELECT sum(v) FROM u) AS updated, (SELECT count(*) FROM i) AS moved;
SELECT * FROM t ORDER BY id;
-- a row both updated and deleted by one statement: one of them wins, once
WITH u AS (UPDATE t SET v = 77 WHERE id = 6 RETURNING id)
DELETE FROM t WHERE id IN (SELECT id FROM u) RETURNING *;
SELECT * FROM t WHERE id = 6;

-- functions that change the row that is being changed
CREATE FUNCTION bump(i int) RETURNS int LANGUAGE plpgsql AS
$$BEGIN UPDATE t SET v = v + 1000 WHERE id = i; RETURN 1; END$$;
UPDATE t SET v = v + bump(8) WHERE id = 8;
SELECT * FROM t WHERE id = 8;
SELECT bump(8), v FROM t WHERE id = 8;
SELECT v FROM t WHERE id = 8;
DELETE FROM t WHERE id = 9 AND bump(9) = 1;
SELECT v FROM t WHERE id = 9;

-- MERGE: every branch
CREATE TABLE src (id int, v int, op text);
INSERT INTO src VALUES (7, 70, 'upd'), (8, 80, 'del'), (50, 500, 'ins'), (51, 510, 'skip');
MERGE INTO t USING src ON t.id = src.id
WHEN MATCHED AND op = 'upd' THEN UPDATE SET v = src.v, s = 'merged'
WHEN MATCHED AND op = 'del' THEN DELETE
WHEN NOT MATCHED AND op = 'ins' THEN INSERT VALUES (src.id, src.v, 'inserted')
WHEN NOT MATCHED THEN DO NOTHING;
SELECT * FROM t ORDER BY id;
-- key change through MERGE
MERGE INTO t USING src ON t.id = src.id
WHEN MATCHED THEN UPDATE SET id = t.id + 1000;
SELECT id, v FROM t ORDER BY id;
-- the same target twice is an error and leaves nothing
INSERT INTO src VALUES (1050, 1, 'a'), (1050, 2, 'b');
MERGE INTO t USING src ON t.id = src.id WHEN MATCHED THEN UPDATE SET v = src.v;
SELECT id, v FROM t ORDER BY id;
MERGE INTO t USING (SELECT 1050 AS id) q ON t.id = q.id WHEN MATCHED THEN DELETE;
MERGE INTO t USING t AS x ON t.id = x.id WHEN MATCHED AND x.id > 100 THEN UPDATE SET id = x.id - 1000;
SELECT id, v FROM t ORDER BY id;

-- WHERE CURRENT OF, and by ctid
DO $$
DECLARE c CURSOR FOR SELECT * FROM t ORDER BY id FOR UPDATE; r record;
BEGIN
  FOR r IN c LOOP
    IF r.id = 7 THEN UPDATE t SET v = 7 WHERE CURRENT OF c;
    ELSIF r.id = 10 THEN DELETE FROM t WHERE CURRENT OF c;
    END IF;
  END LOOP;
END$$;
SELECT id, v FROM t ORDER BY id;
UPDATE t SET v = -7 WHERE ctid = (SELECT ctid FROM t WHERE id = 7);
DELETE FROM t WHERE ctid = ANY (ARRAY(SELECT ctid FROM t WHERE id <> 7));
SELECT * FROM t ORDER BY id;

-- many rows
TRUNCATE t;
INSERT INTO t SELECT g, 0, md5(g::text) FROM generate_series(1, 20000) g;
UPDATE t SET v = v + 1 WHERE id % 2 = 0;
UPDATE t SET v = v + 1, id = id + 100000 WHERE id % 3 = 0;
DELETE FROM t WHERE id % 5 = 0;
SELECT count(*), sum(v), sum(id), md5(string_agg(s, ',' ORDER BY s)) FROM t;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA update_delete CASCADE;
