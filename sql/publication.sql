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
DROP SCHEMA nvm_pub_empty;

DROP SCHEMA nvm_pub CASCADE;
DROP TABLE tt;
