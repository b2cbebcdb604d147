--
-- Creation of tables, INSERT and COPY
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA insert_copy;
SET search_path = insert_copy, public;

-- plain rows of plain types
CREATE TABLE t (id int, name text, price numeric(10,2), born date, ok bool);
INSERT INTO t VALUES (1, 'one', 1.10, '2001-01-01', true);
INSERT INTO t VALUES (2, 'two', 2.20, '2002-02-02', false), (3, 'three', NULL, NULL, NULL);
INSERT INTO t (id) VALUES (4);
INSERT INTO t DEFAULT VALUES;
INSERT INTO t SELECT g, 'n' || g, g * 1.5, date '2020-01-01' + g, g % 2 = 0
  FROM generate_series(10, 14) g;
SELECT * FROM t ORDER BY id;
SELECT count(*), count(name), count(price), sum(price) FROM t;
-- the table is the access method's
SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam
WHERE c.oid = 't'::regclass;

-- rows come back in the order in which they were appended
CREATE TABLE ord (a int);
INSERT INTO ord SELECT g FROM generate_series(1, 5000) g;
SELECT count(*) FROM (SELECT a, row_number() OVER () AS n FROM ord) s WHERE a <> n;

-- system columns
SELECT tableoid::regclass, ctid IS NOT NULL AS ctid, cmin, cmax, xmax,
       xmin::text::bigint > 0 AS xmin
FROM t WHERE id = 1;
BEGIN;
INSERT INTO t VALUES (100, 'mine');
SELECT xmin::text = pg_current_xact_id()::xid::text AS own_xmin, xmax FROM t WHERE id = 100;
ROLLBACK;
SELECT a.id FROM t a JOIN t b ON a.ctid = b.ctid ORDER BY a.id LIMIT 3;
SELECT count(*), count(DISTINCT ctid) FROM ord;

-- RETURNING
INSERT INTO t VALUES (200, 'ret', 1) RETURNING id, name || '!' AS name, price * 2 AS twice;
INSERT INTO t VALUES (201, 'a'), (202, 'b') RETURNING *;
WITH ins AS (INSERT INTO t SELECT 300 + g, 'cte' FROM generate_series(1, 3) g RETURNING id)
SELECT sum(id) FROM ins;

-- COPY both ways
COPY t (id, name) FROM stdin;
1001	copied
1002	\N
1003	tab\there
\.
COPY t (id, name, price) FROM stdin WITH (FORMAT csv, HEADER);
id,name,price
1004,"quoted, text",4.04
1005,,5
\.
COPY (SELECT id, name, price FROM t WHERE id > 1000 ORDER BY id) TO stdout;
COPY (SELECT id, name, price FROM t WHERE id > 1000 ORDER BY id) TO stdout CSV;
-- a COPY that fails leaves nothing
COPY t (id, name) FROM stdin;
2001	good
bad	row
\.
SELECT count(*) FROM t WHERE id > 2000;
-- WHERE, and enough rows for several batches
CREATE TABLE c (id int PRIMARY KEY, v text DEFAULT 'dflt');
COPY c (id) FROM PROGRAM 'seq 1 5000' WHERE id % 5 <> 0;
COPY c (id) FROM PROGRAM 'seq 5001 6000';
SELECT count(*), sum(id), count(v), min(v) FROM c;
COPY c (id) FROM PROGRAM 'seq 5000 6001';
SELECT count(*), max(id) FROM c;
-- FREEZE into a table of the same transaction
BEGIN;
CREATE TABLE fz (id int);
COPY fz FROM PROGRAM 'seq 1 100' (FREEZE);
SELECT count(*) FROM fz;
COMMIT;
SELECT count(*), sum(id) FROM fz;
BEGIN;
TRUNCATE fz;
COPY fz FROM PROGRAM 'seq 1 50' (FREEZE);
ROLLBACK;
SELECT count(*), sum(id) FROM fz;
-- binary round trip
\getenv abs_builddir PG_ABS_BUILDDIR
\set file :abs_builddir '/results/insert_copy.bin'
COPY t TO :'file' (FORMAT binary);
CREATE TABLE t2 (LIKE t);
COPY t2 FROM :'file' (FORMAT binary);
(TABLE t EXCEPT ALL TABLE t2) UNION ALL (TABLE t2 EXCEPT ALL TABLE t);
SELECT count(*) FROM t2;

-- constraints
CREATE TABLE con (a int NOT NULL CHECK (a > 0), b text UNIQUE, EXCLUDE (a WITH =));
INSERT INTO con VALUES (1, 'x');
INSERT INTO con VALUES (NULL, 'y');
INSERT INTO con VALUES (-1, 'y');
INSERT INTO con VALUES (2, 'x');
INSERT INTO con VALUES (1, 'z');
INSERT INTO con VALUES (2, NULL), (3, NULL);
INSERT INTO con VALUES (4, 'w'), (5, 'w');
SELECT * FROM con ORDER BY a;

-- insert from the table itself does not see its own rows
INSERT INTO ord SELECT a + 5000 FROM ord;
SELECT count(*), min(a), max(a) FROM ord;
-- functions that read and write the table while it is written
CREATE FUNCTION seen() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT count(*) FROM con';
CREATE FUNCTION seen_stable() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT count(*) FROM con';
INSERT INTO con SELECT 10 + g, seen() || '/' || seen_stable() || '/' || g
  FROM generate_series(1, 3) g RETURNING *;

-- two commands of one transaction
BEGIN;
INSERT INTO con VALUES (50, 'first');
SELECT count(*) FROM con WHERE a = 50;
INSERT INTO con SELECT a + 1, 'second' FROM con WHERE a = 50;
SELECT * FROM con WHERE a >= 50 ORDER BY a;
ROLLBACK;
SELECT count(*) FROM con WHERE a >= 50;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA insert_copy CASCADE;
