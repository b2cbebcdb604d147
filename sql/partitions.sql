--
-- Partitioned tables: routing, row movement within nvm and to and from heap
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA partitions;
SET search_path = partitions, public;

CREATE TABLE p (id int, k int, s text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200);
CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (200) TO (300) USING heap;
CREATE TABLE pd PARTITION OF p DEFAULT;
SELECT c.relname, a.amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam
WHERE c.relname IN ('p1', 'p2', 'p3', 'pd') AND c.relnamespace = 'partitions'::regnamespace ORDER BY 1;
INSERT INTO p SELECT g, g * 3, 'row ' || g FROM generate_series(1, 120) g;
CREATE VIEW parts AS SELECT tableoid::regclass AS part, count(*), sum(id) AS ids FROM p GROUP BY 1 ORDER BY 1;
TABLE parts;
-- movement nvm to nvm, nvm to heap, heap to nvm
UPDATE p SET k = k + 100 WHERE id IN (1, 2) RETURNING tableoid::regclass, *;
UPDATE p SET k = k + 200 WHERE id IN (3, 4) RETURNING tableoid::regclass, *;
UPDATE p SET k = k - 200 WHERE id IN (70, 71) RETURNING tableoid::regclass, *;
TABLE parts;
-- and back, in a transaction, rolled back
BEGIN;
UPDATE p SET k = k + 150;
TABLE parts;
UPDATE p SET k = 299 - k WHERE k BETWEEN 0 AND 299;
TABLE parts;
SAVEPOINT a;
DELETE FROM p WHERE k < 200;
UPDATE p SET k = -1;
ROLLBACK TO a;
TABLE parts;
ROLLBACK;
TABLE parts;
UPDATE p SET k = (k + 100) % 400, s = s || '!';
TABLE parts;
SELECT count(*), sum(k), count(*) FILTER (WHERE s LIKE '%!') FROM p;
SELECT * FROM p WHERE id = 40;
-- triggers on movement
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE NOTICE '% % % on % old % new %', TG_WHEN, TG_OP, TG_LEVEL, TG_TABLE_NAME,
    CASE WHEN TG_OP <> 'INSERT' THEN OLD::text END, CASE WHEN TG_OP <> 'DELETE' THEN NEW::text END;
  RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END$$;
CREATE TRIGGER b BEFORE INSERT OR UPDATE OR DELETE ON p FOR EACH ROW EXECUTE FUNCTION tell();
CREATE TRIGGER a AFTER INSERT OR UPDATE OR DELETE ON p FOR EACH ROW EXECUTE FUNCTION tell();
SELECT id AS one FROM p WHERE k BETWEEN 0 AND 99 ORDER BY id LIMIT 1 \gset
UPDATE p SET k = 150, id = 1001 WHERE id = :one;
UPDATE p SET k = 250 WHERE id = 1001;
UPDATE p SET k = 50 WHERE id = 1001;
DELETE FROM p WHERE id = 1001;
INSERT INTO p VALUES (1002, 5, 'conf') ON CONFLICT (id, k) DO UPDATE SET s = 'x';
INSERT INTO p VALUES (1002, 5, 'conf') ON CONFLICT (id, k) DO UPDATE SET s = 'x';
INSERT INTO p VALUES (1002, 5, 'conf') ON CONFLICT (id, k) DO UPDATE SET k = 150;
MERGE INTO p USING (SELECT 1002 AS id) q ON p.id = q.id WHEN MATCHED THEN UPDATE SET k = 105;
DROP TRIGGER a ON p;
DROP TRIGGER b ON p;
-- foreign keys to and from partitioned tables
CREATE TABLE ref (id int PRIMARY KEY, pid int, pk int, FOREIGN KEY (pid, pk) REFERENCES p ON UPDATE CASCADE ON DELETE CASCADE);
INSERT INTO ref SELECT row_number() OVER (ORDER BY id), id, k FROM p WHERE k < 20;
INSERT INTO ref VALUES (1000, -1, -1);
UPDATE p SET k = k + 100 WHERE k < 10;
SELECT count(*) FROM ref WHERE pk >= 100;
DELETE FROM p WHERE k BETWEEN 100 AND 105;
SELECT count(*) FROM ref;
DROP TABLE ref;
-- hash and list partitions, sub-partitions, COPY, generated plans
CREATE TABLE h (id int PRIMARY KEY, v int) PARTITION BY HASH (id);
CREATE TABLE h0 PARTITION OF h FOR VALUES WITH (MODULUS 3, REMAINDER 0);
CREATE TABLE h1 PARTITION OF h FOR VALUES WITH (MODULUS 3, REMAINDER 1) USING heap;
CREATE TABLE h2 PARTITION OF h FOR VALUES WITH (MODULUS 3, REMAINDER 2);
COPY h (id) FROM PROGRAM 'seq 1 3000';
SELECT count(*), sum(id) FROM h;
UPDATE h SET id = id + 3000 WHERE id % 2 = 0;
SELECT count(*), sum(id), count(*) FILTER (WHERE tableoid = 'h1'::regclass) > 0 AS heap FROM h;
SELECT * FROM h WHERE id IN (1, 2, 3002) ORDER BY id;
CREATE TABLE l (k text, n int, v text) PARTITION BY LIST (k);
CREATE TABLE la PARTITION OF l FOR VALUES IN ('a', NULL) PARTITION BY RANGE (n);
CREATE TABLE la1 PARTITION OF la FOR VALUES FROM (0) TO (10);
CREATE TABLE la2 PARTITION OF la FOR VALUES FROM (10) TO (20) USING heap;
CREATE TABLE lb PARTITION OF l FOR VALUES IN ('b');
INSERT INTO l VALUES ('a', 1, 'x'), ('a', 11, 'y'), ('b', 30, 'z'), (NULL, 5, NULL);
UPDATE l SET n = n + 10 WHERE v = 'x';
UPDATE l SET k = 'b', n = 99 WHERE v = 'y';
UPDATE l SET k = NULL, n = 1 WHERE v = 'z';
SELECT tableoid::regclass, * FROM l ORDER BY v;
INSERT INTO l VALUES ('c', 1, '');
UPDATE l SET n = 500 WHERE v = 'x';

-- attach, detach, drop, truncate
CREATE TABLE p4 (id int NOT NULL, k int NOT NULL, s text);
INSERT INTO p4 SELECT g, 400 + g FROM generate_series(1, 20) g;
DELETE FROM p WHERE k >= 300;
ALTER TABLE p ATTACH PARTITION p4 FOR VALUES FROM (400) TO (500);
TABLE parts;
INSERT INTO p VALUES (1, 401);
ALTER TABLE p DETACH PARTITION p2;
SELECT count(*) > 0 AS some FROM p2;
SELECT count(*) FROM p WHERE k BETWEEN 100 AND 199;
DROP TABLE p3;
TABLE parts;
ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (100) TO (200);
TRUNCATE p;
TABLE parts;
INSERT INTO p SELECT g, 100 + g FROM generate_series(1, 10) g;
CREATE INDEX p_s ON p (s);
ALTER TABLE p ADD COLUMN extra int DEFAULT 7;
SELECT sum(extra), count(*) FROM p;
SELECT count(*) FROM p1;
DROP INDEX p_s;
-- rows with large values move too
UPDATE p SET s = (SELECT string_agg(md5(g::text), '') FROM generate_series(1, 1000) g) WHERE id = 1;
UPDATE p SET k = 450 WHERE id = 1;
SELECT tableoid::regclass, id, k, md5(s) = (SELECT md5(string_agg(md5(g::text), '')) FROM generate_series(1, 1000) g) AS same
FROM p WHERE id = 1;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA partitions CASCADE;
