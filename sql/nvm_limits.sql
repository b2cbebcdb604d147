--
-- What nvm tables do differently, and what they refuse
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA nvm_limits;
SET search_path = nvm_limits, public;

\set VERBOSITY default
CREATE TABLE t (id int PRIMARY KEY, s text);
INSERT INTO t VALUES (1, 'one');


-- rows do not follow a table to another tablespace, but the table may be said to be there
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE nvm_regress_space LOCATION '';
ALTER TABLE t SET TABLESPACE nvm_regress_space;
CREATE TABLE elsewhere (a int) TABLESPACE nvm_regress_space;
INSERT INTO elsewhere VALUES (1);
TRUNCATE elsewhere;
INSERT INTO elsewhere VALUES (2);
SELECT * FROM elsewhere;
CREATE INDEX ON t (s) TABLESPACE nvm_regress_space;
SELECT * FROM nvm.check('elsewhere');

-- a value of any size needs no TOAST table, and the main fork stays empty
SELECT reltoastrelid, pg_relation_size(oid) FROM pg_class WHERE oid = 't'::regclass;

-- the checks take any nvm table or nvm_btree index, and nothing else
SELECT * FROM nvm.check('t');
SELECT * FROM nvm.check('pg_class');
SELECT * FROM nvm.check('t_pkey');
SET nvm.default_index_method = btree;
CREATE INDEX t_builtin ON t USING btree (s);
RESET nvm.default_index_method;
SELECT * FROM nvm.check('t_builtin');
DROP INDEX t_builtin;
CREATE TABLE parts (a int) PARTITION BY LIST (a);
SELECT * FROM nvm.check('parts');
CREATE VIEW v AS SELECT * FROM t;
SELECT * FROM nvm.check('v');
SELECT * FROM nvm.check(NULL);

-- an access method in use is not dropped
\set VERBOSITY terse
DROP ACCESS METHOD nvm;
DROP EXTENSION pg_nvm;
\set VERBOSITY default

-- options of heap tables are taken; unknown ones are not
CREATE TABLE o (a int) WITH (fillfactor = 70, autovacuum_enabled = off, parallel_workers = 2);
CREATE TABLE o2 (a int) WITH (no_such_option = 1);
-- other objects cannot be of the access method
CREATE TABLE bad (a int) PARTITION BY LIST (a) USING nvm;

-- a transaction that wrote only nvm tables and their nvm_btree indexes, one that
-- wrote another index, and one that wrote a heap table; the first to look at
-- catalogs after DDL may tidy their pages up, which is WAL
UPDATE t SET s = 'one';
SELECT commits AS c, mixed_commits AS m, aborts AS a FROM nvm.activity \gset
UPDATE t SET s = 'two';
SELECT commits - :c AS commits, mixed_commits - :m AS mixed, aborts - :a AS aborts FROM nvm.activity;
SET nvm.default_index_method = btree;
CREATE INDEX t_builtin ON t USING btree (s);
RESET nvm.default_index_method;
UPDATE t SET s = 'two and a half';
SELECT commits - :c AS commits, mixed_commits - :m AS mixed, aborts - :a AS aborts FROM nvm.activity;
CREATE TABLE hp (a int) USING heap;
BEGIN; UPDATE t SET s = 'three'; INSERT INTO hp VALUES (1); COMMIT;
BEGIN; UPDATE t SET s = 'four'; ROLLBACK;
SELECT commits - :c AS commits, mixed_commits - :m AS mixed, aborts - :a AS aborts FROM nvm.activity;
SELECT * FROM t;

-- the settings that a session may and may not change
SHOW nvm.persist_method;
SET nvm.pool_directory = '/elsewhere';
SET nvm.pool_max_size = '1GB';
SET nvm.collect_gaps = off;
SET nvm.failpoint = 'nonsense';
SET nvm.failpoint = ':error';
SET nvm.failpoint = 'a:sleep=3600001';
SET nvm.failpoint = 'a:sleep=5s';
SET nvm.failpoint = 'a:error:0';
SET nvm.failpoint = 'a:error:101%';
SET nvm.failpoint = 'a:error:99999999999999999999';
SET nvm.failpoint = 'b:off, a_name_that_is_longer_than_the_sixty_three_bytes_there_is_room_for:error';
SET nvm.failpoint = ' never:panic:7 , , insert-before-begin:error:100% ,other:off';
SHOW nvm.failpoint;
INSERT INTO t VALUES (7, 'never');
SET nvm.failpoint = 'insert-before-begin:error:2';
INSERT INTO t VALUES (8, 'first'), (9, 'second');
INSERT INTO t VALUES (8, 'third');
RESET nvm.failpoint;
DELETE FROM t WHERE id = 8;
SET nvm.no_such_setting = 1;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA nvm_limits CASCADE;
DROP TABLESPACE nvm_regress_space;
