--
-- Publications do not publish nvm tables, and say so
--
SET client_min_messages = error;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
CREATE SCHEMA nvm_pub;
CREATE TABLE nvm_pub.n (a int PRIMARY KEY) USING nvm;
CREATE TABLE nvm_pub.h (a int PRIMARY KEY) USING heap;
CREATE TABLE nvm_pub.p (a int) PARTITION BY LIST (a);
CREATE TABLE nvm_pub.p1 PARTITION OF nvm_pub.p FOR VALUES IN (1) USING heap;
CREATE TABLE nvm_pub.p2 PARTITION OF nvm_pub.p FOR VALUES IN (2) USING nvm;
CREATE TEMP TABLE tt (a int) USING nvm;
SET search_path = nvm_pub, public;

-- by name: refused
CREATE PUBLICATION pub FOR TABLE n;
CREATE PUBLICATION pub FOR TABLE h, n;
CREATE PUBLICATION pub FOR TABLE p;
-- PostgreSQL's own complaints come first
CREATE PUBLICATION pub FOR TABLE tt;
CREATE PUBLICATION pub FOR TABLE h;
ALTER PUBLICATION pub ADD TABLE n;
ALTER PUBLICATION pub SET TABLE n, h;
ALTER TABLE h SET ACCESS METHOD nvm;
ALTER PUBLICATION pub SET (publish = 'insert');
ALTER PUBLICATION pub DROP TABLE h;
ALTER TABLE h SET ACCESS METHOD nvm;
ALTER TABLE h SET ACCESS METHOD heap;
SELECT count(*) FROM pg_publication_rel;
DROP PUBLICATION pub;

-- by schema, or all tables: a warning.  wal_level has one of its own
SET client_min_messages = warning;
CREATE PUBLICATION pub FOR TABLES IN SCHEMA nvm_pub;
ALTER PUBLICATION pub SET TABLES IN SCHEMA nvm_pub;
ALTER PUBLICATION pub RENAME TO pub1;
DROP PUBLICATION pub1;
CREATE SCHEMA nvm_pub_empty;
CREATE PUBLICATION pub FOR TABLES IN SCHEMA nvm_pub_empty;
DROP PUBLICATION pub;

-- a table that comes under a publication later: as a partition of one that is published by name
CREATE TABLE pp (a int) PARTITION BY LIST (a);
CREATE TABLE pp1 PARTITION OF pp FOR VALUES IN (1) PARTITION BY LIST (a);
CREATE PUBLICATION pub FOR TABLE pp;
CREATE TABLE pp2 PARTITION OF pp FOR VALUES IN (2) USING nvm;
CREATE TABLE pp11 PARTITION OF pp1 FOR VALUES IN (1) USING nvm;
CREATE TABLE pp2 PARTITION OF pp FOR VALUES IN (2) USING heap;
ALTER TABLE pp2 SET ACCESS METHOD nvm;
CREATE TABLE pp3 (a int) USING nvm;
ALTER TABLE pp ATTACH PARTITION pp3 FOR VALUES IN (3);
CREATE TABLE pp4 (a int) PARTITION BY LIST (a);
CREATE TABLE pp41 PARTITION OF pp4 DEFAULT USING nvm;
ALTER TABLE pp ATTACH PARTITION pp4 FOR VALUES IN (4);
CREATE UNLOGGED TABLE pp5 PARTITION OF pp FOR VALUES IN (5) USING nvm;
ALTER TABLE pp5 SET LOGGED;
SELECT tableoid::regclass FROM pp;
SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent IN ('pp'::regclass, 'pp1'::regclass) ORDER BY 1;
DROP TABLE pp, pp3, pp4;
DROP PUBLICATION pub;
-- by its schema, or because all are published: a warning with its first nvm table
CREATE TABLE roamer (a int) USING nvm;
CREATE PUBLICATION pub FOR TABLES IN SCHEMA nvm_pub_empty;
CREATE TABLE nvm_pub_empty.new (a int) USING nvm;
CREATE TABLE nvm_pub_empty.copied USING nvm AS SELECT 1 AS a;
DROP TABLE nvm_pub_empty.new, nvm_pub_empty.copied;
CREATE TABLE nvm_pub_empty.copied USING nvm AS SELECT 1 AS a;
DROP TABLE nvm_pub_empty.copied;
CREATE TABLE nvm_pub_empty.heap (a int) USING heap;
CREATE UNLOGGED TABLE nvm_pub_empty.unlogged (a int) USING nvm;
ALTER TABLE nvm_pub_empty.heap SET ACCESS METHOD nvm;
ALTER TABLE roamer SET SCHEMA nvm_pub_empty;
ALTER TABLE nvm_pub_empty.heap SET ACCESS METHOD heap;
ALTER TABLE nvm_pub_empty.roamer SET SCHEMA public;
ALTER TABLE roamer SET SCHEMA nvm_pub_empty;
DROP TABLE nvm_pub_empty.roamer;
ALTER TABLE nvm_pub_empty.unlogged SET LOGGED;
DROP TABLE nvm_pub_empty.unlogged;
-- several at once, as a partition with its own
CREATE TABLE nvm_pub_empty.pp (a int) PARTITION BY LIST (a);
CREATE TABLE ppp (a int) PARTITION BY LIST (a);
CREATE TABLE ppp1 PARTITION OF ppp FOR VALUES IN (1) USING nvm;
CREATE TABLE ppp2 PARTITION OF ppp FOR VALUES IN (2) USING nvm;
ALTER TABLE nvm_pub_empty.pp ATTACH PARTITION ppp DEFAULT;
DROP TABLE nvm_pub_empty.pp;
-- each publication for itself
CREATE PUBLICATION pub_h FOR TABLES IN SCHEMA nvm_pub;
CREATE TABLE nvm_pub_empty.new (a int) USING nvm;
CREATE TABLE nvm_pub.new (a int) USING nvm;
DROP PUBLICATION pub_h;
DROP TABLE nvm_pub_empty.new;
DROP PUBLICATION pub;
-- all tables: n is one of them
CREATE PUBLICATION pub FOR ALL TABLES;
CREATE TABLE anywhere (a int) USING nvm;
CREATE MATERIALIZED VIEW anywhere_mv USING nvm AS SELECT 1 AS a;
-- of temporary tables nothing is said, also where they are the only ones
BEGIN;
SET LOCAL client_min_messages = error;
DROP SCHEMA nvm_pub, nvm_pub_empty CASCADE;
SET LOCAL client_min_messages = warning;
CREATE TEMP TABLE anywhere_temp (a int) USING nvm;
CREATE TABLE pg_temp.anywhere_temp2 (a int) USING nvm;
CREATE TEMP TABLE anywhere_temp3 USING nvm AS SELECT 1 AS a;
SET LOCAL default_table_access_method = nvm;
SELECT 1 AS a INTO TEMP anywhere_temp4;
CREATE TEMP TABLE anywhere_temp5 () INHERITS (anywhere_temp);
CREATE TEMP TABLE IF NOT EXISTS anywhere_temp5 (a int);
SET LOCAL search_path = pg_temp;
CREATE TABLE anywhere_temp6 (a int);
CREATE TABLE public.anywhere_temp6 (a int);
ROLLBACK;
-- the broken access method of another table is not asked
CREATE FUNCTION broken_handler(internal) RETURNS table_am_handler LANGUAGE internal AS 'heap_tableam_handler';
CREATE ACCESS METHOD broken TYPE TABLE HANDLER broken_handler;
CREATE TABLE broken_table (a int) USING broken;
UPDATE pg_proc SET prosrc = 'missing' WHERE proname = 'broken_handler';
DROP PUBLICATION pub;
CREATE PUBLICATION pub FOR ALL TABLES;
UPDATE pg_proc SET prosrc = 'heap_tableam_handler' WHERE proname = 'broken_handler';
DROP FUNCTION broken_handler CASCADE;
DROP PUBLICATION pub;
DROP SCHEMA nvm_pub_empty CASCADE;

DROP SCHEMA nvm_pub CASCADE;
DROP TABLE tt;
