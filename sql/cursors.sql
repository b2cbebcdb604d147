--
-- Cursors: scroll, hold, own changes, FOR UPDATE
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA cursors;
SET search_path = cursors, public;

CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t SELECT g, g * 10 FROM generate_series(1, 10) g;

-- forth and back over a sequential scan and over an index
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT * FROM t;
FETCH 2 FROM c;
FETCH BACKWARD 1 FROM c;
FETCH LAST FROM c;
FETCH BACKWARD 2 FROM c;
FETCH ABSOLUTE 5 FROM c;
FETCH RELATIVE -2 FROM c;
MOVE ABSOLUTE 0 IN c;
FETCH NEXT FROM c;
FETCH FIRST FROM c;
MOVE FORWARD ALL IN c;
FETCH PRIOR FROM c;
FETCH ABSOLUTE -3 FROM c;
CLOSE c;
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
DECLARE c SCROLL CURSOR FOR SELECT id FROM t WHERE id > 3 ORDER BY id DESC;
FETCH 2 FROM c;
FETCH BACKWARD ALL FROM c;
FETCH FORWARD ALL FROM c;
FETCH BACKWARD 3 FROM c;
ROLLBACK;

-- a cursor does not see later changes of its own transaction
BEGIN;
DECLARE seq SCROLL CURSOR FOR SELECT * FROM t WHERE v > 0;
SET LOCAL enable_seqscan = off;
DECLARE ind SCROLL CURSOR FOR SELECT * FROM t WHERE id < 100 ORDER BY id;
FETCH 1 FROM seq;
FETCH 1 FROM ind;
UPDATE t SET v = v + 1;
UPDATE t SET v = v + 1;
UPDATE t SET id = id + 50 WHERE id = 4;
DELETE FROM t WHERE id IN (5, 6);
INSERT INTO t VALUES (11, 110);
INSERT INTO t VALUES (5, 55);
FETCH 6 FROM seq;
FETCH 6 FROM ind;
SAVEPOINT s;
DELETE FROM t;
FETCH 1 FROM seq;
FETCH 1 FROM ind;
ROLLBACK TO s;
FETCH BACKWARD 3 FROM seq;
FETCH ALL FROM ind;
SELECT * FROM t ORDER BY id;
COMMIT;

-- WITH HOLD outlives the transaction and what comes after
BEGIN;
DECLARE h CURSOR WITH HOLD FOR SELECT * FROM t ORDER BY id;
FETCH 2 FROM h;
COMMIT;
DELETE FROM t WHERE id = 3;
FETCH 2 FROM h;
TRUNCATE t;
FETCH 2 FROM h;
DROP TABLE t;
FETCH ALL FROM h;
CLOSE h;

-- DELETE and UPDATE ... WHERE CURRENT OF
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t SELECT g, g * 10 FROM generate_series(1, 10) g;
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM t WHERE id BETWEEN 2 AND 6;
UPDATE t SET v = 0 WHERE CURRENT OF c;
ROLLBACK;
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM t WHERE id BETWEEN 2 AND 6;
FETCH 1 FROM c;
UPDATE t SET v = -1 WHERE CURRENT OF c;
UPDATE t SET v = v - 1 WHERE CURRENT OF c;
FETCH 1 FROM c;
DELETE FROM t WHERE CURRENT OF c;
DELETE FROM t WHERE CURRENT OF c;
FETCH 1 FROM c;
SAVEPOINT s;
UPDATE t SET id = 100 WHERE CURRENT OF c RETURNING *;
ROLLBACK TO s;
FETCH 2 FROM c;
UPDATE t SET v = -6 WHERE CURRENT OF c;
SELECT * FROM t ORDER BY id;
COMMIT;
SELECT * FROM t ORDER BY id;
-- over an index scan, with FOR UPDATE
BEGIN;
SET LOCAL enable_seqscan = off;
DECLARE c CURSOR FOR SELECT * FROM t ORDER BY id FOR UPDATE;
FETCH 2 FROM c;
UPDATE t SET v = v + 5 WHERE CURRENT OF c;
FETCH 1 FROM c;
DELETE FROM t WHERE CURRENT OF c;
FETCH 1 FROM c;
ROLLBACK TO nothing;
ROLLBACK;
SELECT * FROM t ORDER BY id;

-- a loop that changes what it reads
DO $$
DECLARE r record;
BEGIN
  FOR r IN SELECT * FROM t ORDER BY id LOOP
    UPDATE t SET v = v + 1 WHERE id >= r.id;
    INSERT INTO t VALUES (r.id + 1000, 0);
  END LOOP;
END$$;
SELECT * FROM t ORDER BY id;
-- procedures that commit inside a loop over a query
CREATE PROCEDURE halves() LANGUAGE plpgsql AS $$
DECLARE r record; n int := 0;
BEGIN
  FOR r IN SELECT id FROM t ORDER BY id LOOP
    UPDATE t SET v = 1 WHERE id = r.id;
    n := n + 1;
    IF n % 2 = 0 THEN COMMIT; ELSE ROLLBACK; END IF;
  END LOOP;
END$$;
CALL halves();
SELECT count(*), count(*) FILTER (WHERE v = 1) FROM t;
-- a portal over a table that the same transaction truncates or drops
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM t ORDER BY id;
FETCH 1 FROM c;
\set VERBOSITY terse
TRUNCATE t;
ROLLBACK;
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM t ORDER BY id;
FETCH 1 FROM c;
DROP TABLE t;
ROLLBACK;
\set VERBOSITY default
SELECT count(*) FROM t;
-- refcursors
CREATE FUNCTION open_it(refcursor) RETURNS refcursor LANGUAGE plpgsql AS
$$BEGIN OPEN $1 SCROLL FOR SELECT id FROM t WHERE id < 100 ORDER BY id; RETURN $1; END$$;
BEGIN;
SELECT open_it('rc');
DELETE FROM t WHERE id = 1;
FETCH 3 FROM rc;
FETCH BACKWARD 2 FROM rc;
COMMIT;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA cursors CASCADE;
