--
-- PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA two_phase;
SET search_path = two_phase, public;
SET lock_timeout = '200ms';
\set VERBOSITY terse

CREATE TABLE t (id int PRIMARY KEY, s text, k int);
CREATE INDEX ON t (k);
CREATE TABLE hp (id int) USING heap;
INSERT INTO t SELECT i, 'row ' || i, i FROM generate_series(1, 6) i;

-- a transaction is seen when it is committed, by whoever does that
BEGIN;
INSERT INTO t VALUES (7, 'new', 7);
UPDATE t SET s = 'updated' WHERE id = 1;
UPDATE t SET k = 20 WHERE id = 2;
DELETE FROM t WHERE id = 3;
PREPARE TRANSACTION 'nvm_commit';
SELECT * FROM t ORDER BY id;
SELECT DISTINCT gid, state, pid, xid::text = (SELECT transaction::text FROM pg_prepared_xacts p WHERE p.gid = t.gid) AS xid,
	since IS NOT NULL AS since
FROM nvm.transactions t WHERE gid IS NOT NULL;
-- conflicts wait
UPDATE t SET s = 'x' WHERE id = 1;
DELETE FROM t WHERE id = 2;
SELECT * FROM t WHERE id = 3 FOR UPDATE;
SELECT * FROM t WHERE id = 3 FOR UPDATE SKIP LOCKED;
SELECT * FROM t WHERE id = 3 FOR KEY SHARE NOWAIT;
SELECT id FROM t WHERE id = 2 FOR KEY SHARE;
INSERT INTO t VALUES (7, 'conflict', 0);
INSERT INTO t VALUES (7, 'conflict', 0) ON CONFLICT DO NOTHING;
COMMIT PREPARED 'nvm_commit';
SELECT * FROM t ORDER BY id;
SELECT * FROM t WHERE k = 20;
SELECT * FROM nvm.transactions WHERE gid IS NOT NULL;
COMMIT PREPARED 'nvm_commit';

-- and not at all when it is rolled back
BEGIN;
INSERT INTO t VALUES (8, 'never', 8);
UPDATE t SET s = 'never' WHERE id = 1;
DELETE FROM t WHERE id = 2;
INSERT INTO hp VALUES (1);
PREPARE TRANSACTION 'nvm_rollback';
ROLLBACK PREPARED 'nvm_rollback';
SELECT * FROM t ORDER BY id;
SELECT * FROM hp;
UPDATE t SET s = 'again' WHERE id = 1;
INSERT INTO t VALUES (8, 'eight', 8);
DELETE FROM t WHERE id = 8;

-- heap and nvm in one
BEGIN;
INSERT INTO hp VALUES (2);
UPDATE t SET s = 'mixed' WHERE id = 4;
PREPARE TRANSACTION 'nvm_mixed';
SELECT * FROM hp;
COMMIT PREPARED 'nvm_mixed';
SELECT s, hp.id FROM t, hp WHERE t.id = 4;

-- savepoints: what was rolled back is not prepared
BEGIN;
SAVEPOINT a;
UPDATE t SET s = 'kept' WHERE id = 5;
SAVEPOINT b;
UPDATE t SET s = 'lost' WHERE id = 6;
SELECT s FROM t WHERE id = 7 FOR UPDATE;
ROLLBACK TO b;
INSERT INTO t VALUES (10, 'savepoint', 10);
RELEASE a;
PREPARE TRANSACTION 'nvm_savepoint';
SELECT s FROM t WHERE id = 7 FOR UPDATE NOWAIT;
SELECT s FROM t WHERE id = 6 FOR UPDATE NOWAIT;
SELECT s FROM t WHERE id = 5 FOR UPDATE NOWAIT;
COMMIT PREPARED 'nvm_savepoint';
SELECT * FROM t WHERE id IN (5, 6, 10) ORDER BY id;

-- locks alone
BEGIN;
SELECT id FROM t WHERE id = 1 FOR UPDATE;
SELECT id FROM t WHERE id = 4 FOR SHARE;
PREPARE TRANSACTION 'nvm_locks';
SELECT id FROM t WHERE id = 1 FOR KEY SHARE NOWAIT;
SELECT id FROM t WHERE id = 4 FOR SHARE NOWAIT;
SELECT id FROM t WHERE id = 4 FOR NO KEY UPDATE NOWAIT;
SELECT * FROM nvm.check_pool();
ROLLBACK PREPARED 'nvm_locks';
SELECT id FROM t WHERE id = 1 FOR UPDATE NOWAIT;
-- nothing at all, and reading
BEGIN;
PREPARE TRANSACTION 'nvm_nothing';
BEGIN;
SELECT count(*) FROM t;
PREPARE TRANSACTION 'nvm_reader';
COMMIT PREPARED 'nvm_nothing';
ROLLBACK PREPARED 'nvm_reader';

-- foreign keys
CREATE TABLE child (id int REFERENCES t);
BEGIN;
INSERT INTO child VALUES (5);
PREPARE TRANSACTION 'nvm_child';
DELETE FROM t WHERE id = 5;
UPDATE t SET id = 50 WHERE id = 5;
UPDATE t SET s = 'no key', k = 55 WHERE id = 5;
DELETE FROM t WHERE id = 5;
COMMIT PREPARED 'nvm_child';
DELETE FROM t WHERE id = 5;
DELETE FROM child;
DELETE FROM t WHERE id = 5;

-- DDL
BEGIN;
CREATE TABLE made (a int);
INSERT INTO made VALUES (1);
PREPARE TRANSACTION 'nvm_create';
SELECT * FROM made;
COMMIT PREPARED 'nvm_create';
SELECT * FROM made;
BEGIN;
CREATE TABLE unmade (a int);
INSERT INTO unmade VALUES (1);
TRUNCATE made;
INSERT INTO made VALUES (2);
PREPARE TRANSACTION 'nvm_uncreate';
SELECT * FROM made;
ROLLBACK PREPARED 'nvm_uncreate';
SELECT * FROM made;
BEGIN;
TRUNCATE made;
INSERT INTO made VALUES (3);
DROP TABLE child;
PREPARE TRANSACTION 'nvm_drop';
COMMIT PREPARED 'nvm_drop';
SELECT * FROM made;
SELECT count(*) FROM nvm.relations WHERE ended;

-- what cannot be prepared is rolled back
BEGIN;
CREATE TEMP TABLE tmp (a int);
UPDATE t SET s = 'temp' WHERE id = 1;
PREPARE TRANSACTION 'nvm_temp';
SELECT s FROM t WHERE id = 1;
BEGIN;
UPDATE t SET s = 'twice' WHERE id = 1;
PREPARE TRANSACTION 'nvm_twice';
BEGIN;
UPDATE t SET s = 'twice' WHERE id = 4;
SELECT id FROM t WHERE id = 6 FOR UPDATE;
PREPARE TRANSACTION 'nvm_twice';
SELECT s FROM t WHERE id = 4 FOR UPDATE NOWAIT;
SELECT s FROM t WHERE id = 6 FOR UPDATE NOWAIT;
ROLLBACK PREPARED 'nvm_twice';

-- the counters
SELECT prepared > 0 AS prepared, mixed_commits > 0 AS mixed, aborts > 0 AS aborts,
	flushes > 0 AS flushes, fences > 0 AS fences, bytes > flushes AS bytes
FROM nvm.stat_wbl;
BEGIN;
UPDATE t SET s = 'running' WHERE id = 1;
SELECT state, pid = pg_backend_pid() AS pid, xid = pg_current_xact_id() AS xid, gid, since = now() AS since
FROM nvm.transactions WHERE pid = pg_backend_pid();
ROLLBACK;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA two_phase CASCADE;
