--
-- Foreign keys between nvm tables, and from and to heap tables
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA foreign_keys;
SET search_path = foreign_keys, public;

CREATE TABLE parent (id int PRIMARY KEY, u text UNIQUE, v int);
CREATE TABLE child (id int PRIMARY KEY, pid int REFERENCES parent, v int);
INSERT INTO parent SELECT g, 'u' || g, g FROM generate_series(1, 10) g;
INSERT INTO child VALUES (1, 1), (2, 2), (3, NULL);
INSERT INTO child VALUES (4, 99);
DELETE FROM parent WHERE id = 1;
UPDATE parent SET id = 100 WHERE id = 1;
UPDATE parent SET v = 100 WHERE id = 1;
UPDATE parent SET id = 100 WHERE id = 10;
UPDATE child SET pid = 99 WHERE id = 1;
UPDATE child SET pid = 5 WHERE id = 1;
DELETE FROM parent WHERE id = 1;
UPDATE child SET v = 1;
SELECT * FROM child ORDER BY id;
SELECT count(*), sum(id) FROM parent;
-- both in one transaction, and in savepoints
BEGIN;
INSERT INTO parent VALUES (50, 'u50');
INSERT INTO child VALUES (50, 50);
SAVEPOINT a;
DELETE FROM child WHERE id = 50;
DELETE FROM parent WHERE id = 50;
ROLLBACK TO a;
COMMIT;
SELECT c.id, p.u FROM child c JOIN parent p ON p.id = c.pid ORDER BY c.id;
BEGIN;
DELETE FROM child WHERE pid = 50;
DELETE FROM parent WHERE id = 50;
SAVEPOINT a;
INSERT INTO child VALUES (51, 50);
ROLLBACK TO a;
COMMIT;
DROP TABLE child;

-- actions
CREATE TABLE c1 (id int PRIMARY KEY, pid int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE, v int);
CREATE TABLE c2 (id int PRIMARY KEY, pid int REFERENCES parent ON DELETE SET NULL ON UPDATE SET NULL, v int);
CREATE TABLE c3 (id int PRIMARY KEY, pu text DEFAULT 'u9' REFERENCES parent (u) ON DELETE SET DEFAULT ON UPDATE SET DEFAULT);
CREATE TABLE c4 (id int PRIMARY KEY, cid int REFERENCES c1 ON DELETE CASCADE);
CREATE INDEX ON c1 (pid);
INSERT INTO c1 SELECT g, 2 + g % 8, 0 FROM generate_series(1, 100) g WHERE 2 + g % 8 IN (SELECT id FROM parent);
INSERT INTO c2 SELECT g, 2 + g % 8, 0 FROM generate_series(1, 100) g WHERE 2 + g % 8 IN (SELECT id FROM parent);
INSERT INTO c3 SELECT g, 'u' || (2 + g % 8) FROM generate_series(1, 100) g;
INSERT INTO c4 SELECT id, id FROM c1;
CREATE VIEW counts AS SELECT (SELECT count(*) FROM parent) AS p, (SELECT count(*) FROM c1) AS c1,
  (SELECT count(pid) FROM c2) AS c2, (SELECT count(*) FROM c3 WHERE pu = 'u9') AS c3, (SELECT count(*) FROM c4) AS c4;
TABLE counts;
DELETE FROM parent WHERE id = 2;
TABLE counts;
UPDATE parent SET id = id + 1000 WHERE id IN (3, 4);
TABLE counts;
SELECT DISTINCT pid FROM c1 ORDER BY pid;
UPDATE parent SET u = 'new' || u WHERE id = 5;
TABLE counts;
BEGIN;
DELETE FROM parent WHERE id <> 9;
TABLE counts;
ROLLBACK;
TABLE counts;
DELETE FROM parent WHERE id = 9;
SELECT conname, convalidated FROM pg_constraint WHERE contype = 'f' AND conrelid = 'c1'::regclass;
TRUNCATE parent;
TRUNCATE parent CASCADE;
TABLE counts;
DROP VIEW counts;
DROP TABLE c1, c2, c3, c4, parent;

-- deferred, self-referencing, several columns, MATCH FULL
CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree DEFERRABLE INITIALLY DEFERRED);
BEGIN;
INSERT INTO tree VALUES (1, 2);
INSERT INTO tree VALUES (2, 3);
INSERT INTO tree VALUES (3, NULL);
COMMIT;
INSERT INTO tree VALUES (4, 5);
BEGIN;
DELETE FROM tree WHERE id = 3;
INSERT INTO tree VALUES (3, 1);
COMMIT;
BEGIN;
DELETE FROM tree WHERE id = 3;
UPDATE tree SET up = 1;
SET CONSTRAINTS ALL IMMEDIATE;
COMMIT;
SELECT * FROM tree ORDER BY id;
UPDATE tree SET id = id + 10, up = up + 10;
SELECT * FROM tree ORDER BY id;
CREATE TABLE two (a int, b int, PRIMARY KEY (a, b));
CREATE TABLE ref2 (a int, b int, FOREIGN KEY (a, b) REFERENCES two MATCH FULL ON UPDATE CASCADE);
INSERT INTO two VALUES (1, 1), (1, 2);
INSERT INTO ref2 VALUES (1, 1), (NULL, NULL);
INSERT INTO ref2 VALUES (1, NULL);
UPDATE two SET b = 7 WHERE b = 1;
SELECT * FROM ref2 ORDER BY a;

-- across access methods
CREATE TABLE hp (id int PRIMARY KEY, v int) USING heap;
CREATE TABLE nc (id int PRIMARY KEY, pid int REFERENCES hp ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE hc (id int PRIMARY KEY, nid int REFERENCES nc ON DELETE CASCADE) USING heap;
INSERT INTO hp SELECT g FROM generate_series(1, 5) g;
INSERT INTO nc SELECT g, g FROM generate_series(1, 5) g;
INSERT INTO hc SELECT g, g FROM generate_series(1, 5) g;
INSERT INTO nc VALUES (6, 6);
INSERT INTO hc VALUES (6, 6);
UPDATE hp SET id = 50 WHERE id = 5;
DELETE FROM hp WHERE id = 1;
DELETE FROM nc WHERE id = 2;
SELECT * FROM hp ORDER BY id;
SELECT * FROM nc ORDER BY id;
SELECT * FROM hc ORDER BY id;

-- added later: validated, not valid, violated
CREATE TABLE late (id int, pid int);
INSERT INTO late VALUES (1, 3), (2, 77);
ALTER TABLE late ADD FOREIGN KEY (pid) REFERENCES hp;
ALTER TABLE late ADD CONSTRAINT lfk FOREIGN KEY (pid) REFERENCES hp NOT VALID;
INSERT INTO late VALUES (3, 78);
UPDATE late SET id = 20 WHERE id = 2;
ALTER TABLE late VALIDATE CONSTRAINT lfk;
DELETE FROM late WHERE pid = 77;
ALTER TABLE late VALIDATE CONSTRAINT lfk;
SELECT * FROM late;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA foreign_keys CASCADE;
