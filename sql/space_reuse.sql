--
-- Space of dead versions, dropped storages and replaced large values is used again
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA space_reuse;
SET search_path = space_reuse, public;

-- bytes of a table in the pool, and what the pool has handed out
CREATE FUNCTION bytes(regclass) RETURNS bigint LANGUAGE sql AS
$$SELECT bytes FROM nvm.relations WHERE relation = $1 AND NOT ended$$;
CREATE FUNCTION used() RETURNS bigint LANGUAGE sql AS $$SELECT used FROM nvm.pool$$;
-- statements of their own that wait until the pool has given back what was dropped
CREATE FUNCTION wait_used(most bigint) RETURNS SETOF text LANGUAGE sql AS
$$SELECT format('DO $d$BEGIN IF space_reuse.used() > %s THEN PERFORM pg_sleep(0.1); END IF; END$d$', most)
  FROM generate_series(1, 100)$$;
CREATE TABLE warm (a int, b text);
INSERT INTO warm SELECT g, big FROM generate_series(1, 10) g, LATERAL (SELECT string_agg(md5(x::text), '') AS big FROM generate_series(1, 1000) x) b;
DROP TABLE warm;

-- updates of every row, each in its own transaction, without VACUUM: without
-- reuse the table would have 200 times its size, with it what is written until
-- the horizon advances
CREATE TABLE t (id int PRIMARY KEY, v int, s text) WITH (autovacuum_enabled = off);
INSERT INTO t SELECT g, 0, repeat('x', 100) FROM generate_series(1, 1000) g;
SELECT bytes('t') AS b0 \gset
\set ECHO none
SELECT 'UPDATE t SET v = v + 1' FROM generate_series(1, 200) \gexec
\set ECHO all
SELECT bytes('t') <= 20 * :b0 AS bounded, sum(v) FROM t;
-- of one row
\set ECHO none
SELECT 'UPDATE t SET v = v + 1 WHERE id = 1' FROM generate_series(1, 1000) \gexec
\set ECHO all
SELECT bytes('t') <= 20 * :b0 AS bounded, sum(v) FROM t;
-- of random rows, with rows that become longer and shorter
DO $$BEGIN
  FOR i IN 1..3000 LOOP
    UPDATE t SET v = v + 1, s = repeat('y', (i * 7919) % 300) WHERE id = 1 + (i * 7919) % 1000;
    COMMIT;
  END LOOP;
END$$;
SELECT bytes('t') <= 20 * :b0 AS bounded, sum(v) FROM t;
-- updates that are rolled back
\set ECHO none
SELECT 'BEGIN; UPDATE t SET v = -1; ROLLBACK' FROM generate_series(1, 50) \gexec
\set ECHO all
SELECT bytes('t') <= 20 * :b0 AS bounded, sum(v) FROM t;

-- an indexed column changes: new index entries, so VACUUM is needed
CREATE TABLE k (id int PRIMARY KEY, k int) WITH (autovacuum_enabled = off);
CREATE INDEX ON k (k);
INSERT INTO k SELECT g, 0 FROM generate_series(1, 1000) g;
SELECT bytes('k') AS b0 \gset
\set ECHO none
SELECT unnest(ARRAY['UPDATE k SET k = k + 1', 'UPDATE k SET k = k + 1', 'VACUUM k']) FROM generate_series(1, 50) \gexec
\set ECHO all
SELECT bytes('k') <= 20 * :b0 AS bounded, sum(k) FROM k;
-- delete, vacuum, insert
\set ECHO none
SELECT unnest(ARRAY['DELETE FROM k', 'VACUUM k', 'INSERT INTO k SELECT g, 0 FROM generate_series(1, 1000) g']) FROM generate_series(1, 50) \gexec
\set ECHO all
SELECT bytes('k') <= 20 * :b0 AS bounded, count(*) FROM k;
-- inserts that are rolled back
\set ECHO none
SELECT unnest(ARRAY['BEGIN', 'INSERT INTO k SELECT g, 0 FROM generate_series(2001, 3000) g', 'ROLLBACK', 'VACUUM k']) FROM generate_series(1, 50) \gexec
\set ECHO all
SELECT bytes('k') <= 20 * :b0 AS bounded, count(*) FROM k;
-- a queue
\set ECHO none
SELECT unnest(ARRAY['INSERT INTO k SELECT ' || 10000 + i || ' + g, 1 FROM generate_series(1, 100) g', 'DELETE FROM k WHERE k = 1']
  || CASE WHEN i % 10 = 0 THEN ARRAY['VACUUM k'] END) FROM generate_series(1, 100) i \gexec
\set ECHO all
SELECT bytes('k') <= 20 * :b0 AS bounded, count(*) FROM k;
-- without any index, dead rows need no VACUUM
CREATE TABLE plain (id int, v int) WITH (autovacuum_enabled = off);
INSERT INTO plain SELECT g, 0 FROM generate_series(1, 1000) g;
SELECT bytes('plain') AS b0 \gset
\set ECHO none
SELECT 'UPDATE plain SET id = id + 1, v = v + 1' FROM generate_series(1, 200) \gexec
\set ECHO all
SELECT bytes('plain') <= 20 * :b0 AS bounded, sum(v) FROM plain;

-- large values: replaced, rolled back, deleted
CREATE TABLE l (id int PRIMARY KEY, s text) WITH (autovacuum_enabled = off);
ALTER TABLE l ALTER s SET STORAGE EXTERNAL;
INSERT INTO l SELECT g, repeat('l', 500000) FROM generate_series(1, 4) g;
SELECT used() AS u0 \gset
\set ECHO none
SELECT format('UPDATE l SET s = repeat(%L, 500000)', chr(97 + i % 26)) FROM generate_series(1, 60) i \gexec
SELECT unnest(ARRAY['BEGIN', 'UPDATE l SET s = repeat(''r'', 600000)', 'ROLLBACK']) FROM generate_series(1, 60) \gexec
SELECT unnest(ARRAY['DELETE FROM l WHERE id = 1', 'VACUUM l', 'INSERT INTO l VALUES (1, repeat(''z'', 500000))']) FROM generate_series(1, 30) \gexec
\set ECHO all
-- 150 times 2 MB went through
SELECT used() - :u0 < 40000000 AS bounded, count(*), sum(length(s)) FROM l;
DELETE FROM l;
VACUUM l;
\set ECHO none
SELECT unnest(ARRAY[format('DO $d$BEGIN IF space_reuse.used() >= %s THEN PERFORM pg_sleep(0.1); END IF; END$d$', :u0), 'VACUUM l'])
FROM generate_series(1, 100) \gexec
\set ECHO all
SELECT used() < :u0 AS given_back, count(*) FROM l;

-- DROP and TRUNCATE give everything back, and so do their rolled-back counterparts
SELECT used() AS u0 \gset
CREATE TABLE d (id int, s text);
INSERT INTO d SELECT g, repeat('d', 1000) FROM generate_series(1, 20000) g;
SELECT used() - :u0 > 20000000 AS grown;
TRUNCATE d;
\set ECHO none
SELECT wait_used(:u0 + 2000000) \gexec
\set ECHO all
SELECT used() <= :u0 + 2000000 AS truncated;
INSERT INTO d SELECT g, repeat('d', 1000) FROM generate_series(1, 20000) g;
DROP TABLE d;
\set ECHO none
SELECT wait_used(:u0 + 2000000) \gexec
\set ECHO all
SELECT used() <= :u0 + 2000000 AS dropped;
\set ECHO none
SELECT unnest(ARRAY['BEGIN', 'CREATE TABLE d (id int, s text)', 'INSERT INTO d SELECT g, repeat(''d'', 1000) FROM generate_series(1, 20000) g', 'ROLLBACK'])
FROM generate_series(1, 3) \gexec
SELECT wait_used(:u0 + 2000000) \gexec
\set ECHO all
SELECT used() <= :u0 + 2000000 AS rolled_back;
CREATE TABLE d AS SELECT g AS id, repeat('d', 1000) AS s FROM generate_series(1, 20000) g;
DELETE FROM d WHERE id % 10 > 0;
VACUUM FULL d;
\set ECHO none
SELECT wait_used(:u0 + 8000000) \gexec
\set ECHO all
SELECT used() <= :u0 + 8000000 AS compact, count(*) FROM d;
ALTER TABLE d SET ACCESS METHOD heap;
\set ECHO none
SELECT wait_used(:u0 + 2000000) \gexec
\set ECHO all
SELECT used() <= :u0 + 2000000 AS moved_out, count(*) FROM d;

-- equal keys in an nvm_btree index: in a unique one those with a null, if nulls are distinct
CREATE FUNCTION blocks(regclass) RETURNS bigint LANGUAGE sql AS
$$SELECT blocks FROM nvm.relations WHERE relation = $1 AND NOT ended$$;
CREATE TABLE nu (a int, b int);
CREATE INDEX nu_a ON nu USING nvm_btree (a);
CREATE INDEX nu_ba ON nu USING nvm_btree (b, a);
CREATE UNIQUE INDEX nu_ua ON nu USING nvm_btree (a);
CREATE UNIQUE INDEX nu_uba ON nu USING nvm_btree (b, a);
CREATE UNIQUE INDEX nu_off ON nu USING nvm_btree (a) WITH (deduplicate_items = off);
INSERT INTO nu SELECT CASE WHEN g % 10 = 0 THEN g END, g % 20 FROM generate_series(1, 20000) g;
SELECT blocks('nu_ua') < 1.3 * blocks('nu_a') AS merged_a, blocks('nu_uba') < 1.3 * blocks('nu_ba') AS merged_ba,
	blocks('nu_off') > 1.5 * blocks('nu_a') AS not_merged;
SELECT * FROM nvm.check('nu', true);

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA space_reuse CASCADE;
