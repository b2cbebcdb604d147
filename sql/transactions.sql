--
-- Transactions and savepoints: what is undone, and who sees what
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA transactions;
SET search_path = transactions, public;

CREATE TABLE t (id int PRIMARY KEY, v int, s text);
INSERT INTO t SELECT g, g, 's' || g FROM generate_series(1, 10) g;
CREATE VIEW sums AS SELECT count(*), sum(id) AS ids, sum(v) AS vs FROM t;

-- each command undone by itself and all together
BEGIN; INSERT INTO t VALUES (11, 11); TABLE sums; ROLLBACK; TABLE sums;
BEGIN; UPDATE t SET v = v + 1; TABLE sums; ROLLBACK; TABLE sums;
BEGIN; UPDATE t SET id = id + 100; TABLE sums; ROLLBACK; TABLE sums;
BEGIN; DELETE FROM t WHERE id > 3; TABLE sums; ROLLBACK; TABLE sums;
BEGIN;
UPDATE t SET v = v + 1;
DELETE FROM t WHERE id = 2;
INSERT INTO t VALUES (2, 222);
UPDATE t SET id = 12 WHERE id = 2;
UPDATE t SET id = 2 WHERE id = 12;
DELETE FROM t WHERE id = 2;
TABLE sums;
ROLLBACK;
TABLE sums;
SELECT * FROM t WHERE id = 2;
-- a statement that fails in the middle leaves nothing
INSERT INTO t SELECT g, 0 FROM generate_series(20, 5, -1) g;
UPDATE t SET v = 10 / (id - 5);
TABLE sums;

-- savepoints
BEGIN;
INSERT INTO t VALUES (21, 1);
SAVEPOINT a;
UPDATE t SET v = 2 WHERE id = 21;
INSERT INTO t VALUES (22, 2);
SAVEPOINT b;
UPDATE t SET v = 3 WHERE id = 21;
DELETE FROM t WHERE id = 22;
INSERT INTO t VALUES (23, 3);
SELECT * FROM t WHERE id > 20 ORDER BY id;
ROLLBACK TO b;
SELECT * FROM t WHERE id > 20 ORDER BY id;
UPDATE t SET v = 4 WHERE id = 22;
RELEASE a;
SELECT * FROM t WHERE id > 20 ORDER BY id;
SAVEPOINT a;
DELETE FROM t;
ROLLBACK TO a;
DELETE FROM t WHERE id = 21;
COMMIT;
SELECT * FROM t WHERE id > 20 ORDER BY id;
TABLE sums;

-- released inside, rolled back outside
BEGIN;
SAVEPOINT o;
SAVEPOINT i;
UPDATE t SET v = 1000 WHERE id = 1;
INSERT INTO t VALUES (31, 31);
DELETE FROM t WHERE id = 5;
RELEASE i;
SELECT id, v FROM t WHERE id IN (1, 5, 31) ORDER BY id;
ROLLBACK TO o;
SELECT id, v FROM t WHERE id IN (1, 5, 31) ORDER BY id;
SAVEPOINT i2;
UPDATE t SET v = 2000 WHERE id = 1;
RELEASE i2;
RELEASE o;
COMMIT;
SELECT id, v FROM t WHERE id IN (1, 5, 31) ORDER BY id;
-- the same row and key again and again
BEGIN;
SAVEPOINT a; DELETE FROM t WHERE id = 7; INSERT INTO t VALUES (7, 1); ROLLBACK TO a;
SAVEPOINT b; UPDATE t SET v = 2 WHERE id = 7; SAVEPOINT c; DELETE FROM t WHERE id = 7; ROLLBACK TO b;
SAVEPOINT d; UPDATE t SET v = 3 WHERE id = 7; SAVEPOINT e; UPDATE t SET v = v + 1 WHERE id = 7; RELEASE e; RELEASE d;
SAVEPOINT f; UPDATE t SET id = 77 WHERE id = 7; ROLLBACK TO f;
SELECT * FROM t WHERE id IN (7, 77);
COMMIT;
SELECT * FROM t WHERE id IN (7, 77);
-- a unique key freed in a savepoint that is rolled back is taken again
BEGIN;
SAVEPOINT a;
DELETE FROM t WHERE id = 8;
ROLLBACK TO a;
INSERT INTO t VALUES (8, 0);
ROLLBACK;
BEGIN;
INSERT INTO t VALUES (40, 1);
SAVEPOINT a;
INSERT INTO t VALUES (41, 1);
ROLLBACK TO a;
INSERT INTO t VALUES (41, 2);
COMMIT;
SELECT * FROM t WHERE id >= 40 ORDER BY id;

-- many savepoints, each with work, every third rolled back
CREATE TABLE m (id int PRIMARY KEY, v int);
INSERT INTO m VALUES (0, 0);
DO $$
BEGIN
  FOR i IN 1..1000 LOOP
    BEGIN
      INSERT INTO m VALUES (i, i);
      UPDATE m SET v = v + 1 WHERE id = 0;
      DELETE FROM m WHERE id = i - 5 AND i % 10 = 0;
      IF i % 3 = 0 THEN RAISE EXCEPTION 'undo'; END IF;
    EXCEPTION WHEN raise_exception THEN NULL;
    END;
  END LOOP;
END$$;
SELECT count(*), sum(id), max(v) FROM m WHERE id > 0;
SELECT v FROM m WHERE id = 0;
-- nested deeply
CREATE FUNCTION nest(d int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO m VALUES (-d, d);
  UPDATE m SET v = d WHERE id = 0;
  IF d < 60 THEN PERFORM nest(d + 1); END IF;
  IF d % 20 = 0 THEN RAISE EXCEPTION 'at %', d; END IF;
  RETURN d;
EXCEPTION WHEN raise_exception THEN
  INSERT INTO m VALUES (-1000 - d, d);
  RETURN d;
END$$;
SELECT nest(1);
SELECT count(*), min(id), max(id) FROM m WHERE id < 0;
SELECT id, v FROM m WHERE id <= 0 AND id > -3 OR id < -1000 ORDER BY id;
SELECT v FROM m WHERE id = 0;
-- an exception takes its block back, and nothing else
DO $$
BEGIN
  INSERT INTO m VALUES (5000, 1);
  BEGIN
    INSERT INTO m VALUES (5001, 1);
    INSERT INTO m VALUES (5000, 2);
  EXCEPTION WHEN unique_violation THEN
    INSERT INTO m VALUES (5002, 3);
  END;
  UPDATE m SET v = v + 10 WHERE id >= 5000;
END$$;
SELECT * FROM m WHERE id >= 5000 ORDER BY id;

-- isolation levels, read only, deferred
BEGIN ISOLATION LEVEL REPEATABLE READ;
UPDATE t SET v = v + 1;
SELECT sum(v) FROM t;
SAVEPOINT a;
DELETE FROM t WHERE id < 100;
SELECT sum(v) FROM t;
ROLLBACK TO a;
SELECT sum(v) FROM t;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
UPDATE t SET v = v - 1;
SELECT sum(v) FROM t;
COMMIT;
BEGIN READ ONLY;
SELECT count(*) FROM t;
UPDATE t SET v = 0;
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
SELECT count(*) FROM t;
COMMIT;
BEGIN;
UPDATE t SET v = 5 WHERE id = 1;
COMMIT AND CHAIN;
SELECT v FROM t WHERE id = 1;
UPDATE t SET v = 6 WHERE id = 1;
ROLLBACK;
SELECT v FROM t WHERE id = 1;

-- row locks of one session, upgraded, in savepoints and released with them
BEGIN;
SELECT id FROM t WHERE id = 1 FOR KEY SHARE;
SELECT id FROM t WHERE id = 1 FOR SHARE;
SELECT id FROM t WHERE id = 1 FOR NO KEY UPDATE;
SAVEPOINT a;
SELECT id FROM t WHERE id = 1 FOR UPDATE;
UPDATE t SET v = 7 WHERE id = 1;
SELECT v FROM t WHERE id = 1 FOR SHARE;
ROLLBACK TO a;
SELECT v FROM t WHERE id = 1 FOR UPDATE NOWAIT;
UPDATE t SET id = -1 WHERE id = 1;
SELECT v FROM t WHERE id = -1 FOR UPDATE SKIP LOCKED;
COMMIT;
SELECT id, v FROM t WHERE id IN (1, -1);
SELECT * FROM t ORDER BY id LIMIT 2 OFFSET 1 FOR UPDATE;
SELECT a.id, b.v FROM t a LEFT JOIN m b ON b.id = a.id ORDER BY a.id LIMIT 3 FOR SHARE OF a;

-- work on nvm and heap together
CREATE TABLE hp (id int PRIMARY KEY, v int) USING heap;
BEGIN;
INSERT INTO hp SELECT id, v FROM t WHERE id > 0;
UPDATE t SET v = hp.v + 1 FROM hp WHERE hp.id = t.id;
SAVEPOINT a;
DELETE FROM hp;
DELETE FROM t;
ROLLBACK TO a;
COMMIT;
SELECT (SELECT sum(v) FROM hp), (SELECT sum(v) FROM t WHERE id > 0), (SELECT count(*) FROM hp);

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA transactions CASCADE;
