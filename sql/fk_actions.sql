--
-- Foreign keys: every action, deferred and not, self-referencing, partitioned, between access methods
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA fk_actions;
SET search_path = fk_actions, public;

\set VERBOSITY terse
CREATE FUNCTION fill() RETURNS void LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
  FOR r IN SELECT * FROM pairs LOOP
    EXECUTE format('TRUNCATE %I, %I', r.p, r.c);
    EXECUTE format('INSERT INTO %I SELECT g, ''u'' || g, g FROM generate_series(0, 9) g', r.p);
    EXECUTE format('INSERT INTO %I SELECT g, 1 + g %% 9, g FROM generate_series(1, 18) g', r.c);
  END LOOP;
END$$;
-- what a statement on parent % answers, and what it leaves of the children
CREATE FUNCTION try(p text, c text, statements text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE s text; r text; msg text;
BEGIN
  BEGIN
    FOREACH s IN ARRAY statements LOOP
      EXECUTE replace(replace(s, '%p', p), '%c', c);
    END LOOP;
    SET CONSTRAINTS ALL IMMEDIATE;
    r := 'ok';
  -- PostgreSQL 18 tells RESTRICT apart
  EXCEPTION WHEN foreign_key_violation OR restrict_violation OR not_null_violation OR check_violation THEN
    GET STACKED DIAGNOSTICS msg = MESSAGE_TEXT;
    msg := replace(msg, 'violates RESTRICT setting of', 'violates');
    r := replace(replace(msg, p, 'parent'), c, 'child');
  END;
  EXECUTE format('SELECT count(*) || '' parents, '' || (SELECT count(*) || '' children, '' || count(pid) || '' of them, '' || coalesce(sum(pid), 0) || '' '' || sum(v) FROM %I) FROM %I', c, p) INTO msg;
  RETURN r || ': ' || msg;
END$$;

-- each action between nvm and nvm, heap and nvm, nvm and heap
CREATE TABLE pairs (action text, p text, c text, ams text);
DO $$
DECLARE a record; m record; n int := 0;
BEGIN
  FOR a IN SELECT * FROM (VALUES ('NO ACTION'), ('RESTRICT'), ('CASCADE'), ('SET NULL'), ('SET DEFAULT')) x(act) LOOP
    FOR m IN SELECT * FROM (VALUES (1, 'nvm', 'nvm'), (2, 'heap', 'nvm'), (3, 'nvm', 'heap')) x(i, pam, cam) LOOP
      n := n + 1;
      EXECUTE format('CREATE TABLE p%s (id int PRIMARY KEY, u text, v int) USING %s', n, m.pam);
      EXECUTE format('CREATE TABLE c%s (id int PRIMARY KEY, pid int DEFAULT 0 REFERENCES p%s ON DELETE %s ON UPDATE %s DEFERRABLE, v int) USING %s',
        n, n, a.act, a.act, m.cam);
      IF m.i = 1 THEN EXECUTE format('CREATE INDEX ON c%s (pid)', n); END IF;
      INSERT INTO pairs VALUES (a.act, 'p' || n, 'c' || n, m.pam || ' <- ' || m.cam);
    END LOOP;
  END LOOP;
END$$;
SELECT fill();
CREATE TABLE tries (n serial, what text, statements text[]);
INSERT INTO tries (what, statements) VALUES
  ('delete a parent', '{DELETE FROM %p WHERE id = 3}'),
  ('delete the default, too', '{DELETE FROM %p WHERE id IN (0\, 3)}'),
  ('change a key', '{UPDATE %p SET id = 33 WHERE id = 3}'),
  ('shift all keys', '{UPDATE %p SET id = id + 100}'),
  ('change no key', '{UPDATE %p SET u = u || u\, v = v + 1}'),
  ('delete and bring back', '{SET CONSTRAINTS ALL DEFERRED,DELETE FROM %p WHERE id = 5,"INSERT INTO %p VALUES (5)"}'),
  ('child first', '{SET CONSTRAINTS ALL DEFERRED,"INSERT INTO %c VALUES (100, 200, 0)","INSERT INTO %p VALUES (200)"}'),
  ('child without a parent', '{"INSERT INTO %c VALUES (100, 200, 0)"}'),
  ('child moved to nowhere', '{UPDATE %c SET pid = 77 WHERE id = 1}'),
  ('child moved', '{UPDATE %c SET pid = 9 WHERE id = 1}'),
  ('children deleted, then all parents', '{DELETE FROM %c WHERE pid <> 9,DELETE FROM %p WHERE id < 9}'),
  ('parent changed twice', '{UPDATE %p SET id = 50 WHERE id = 4,UPDATE %p SET id = 60 WHERE id = 50,DELETE FROM %p WHERE id = 60}');
UPDATE tries SET statements = replace(statements::text, '\\', '')::text[];
DO $$
DECLARE t record; pr record; same text; r text;
BEGIN
  FOR t IN SELECT * FROM tries ORDER BY n LOOP
    FOR pr IN SELECT action, min(p) FROM pairs GROUP BY action ORDER BY min(substr(p, 2)::int) LOOP
      same := NULL;
      FOR r IN SELECT try(p, c, t.statements) FROM pairs WHERE action = pr.action ORDER BY substr(p, 2)::int LOOP
        IF same IS NULL THEN
          same := r;
          RAISE NOTICE '%, %: %', pr.action, t.what, r;
        ELSIF r <> same THEN
          RAISE NOTICE 'NOT THE SAME: %', r;
        END IF;
      END LOOP;
    END LOOP;
    PERFORM fill();
  END LOOP;
END$$;
DROP TABLE tries;
DO $$DECLARE r record; BEGIN FOR r IN SELECT * FROM pairs LOOP EXECUTE format('DROP TABLE %I, %I', r.c, r.p); END LOOP; END$$;

-- SET NULL and SET DEFAULT with a list of columns
CREATE TABLE tenant (t int, id int, PRIMARY KEY (t, id));
CREATE TABLE post (t int, id int, author int, editor int DEFAULT 1, PRIMARY KEY (t, id),
  FOREIGN KEY (t, author) REFERENCES tenant ON DELETE SET NULL (author),
  FOREIGN KEY (t, editor) REFERENCES tenant ON DELETE SET DEFAULT (editor));
INSERT INTO tenant SELECT t, id FROM generate_series(1, 2) t, generate_series(1, 4) id;
INSERT INTO post SELECT t, id, id, 5 - id FROM generate_series(1, 2) t, generate_series(1, 4) id;
DELETE FROM tenant WHERE id = 3;
SELECT * FROM post ORDER BY t, id;
DELETE FROM tenant WHERE t = 2 AND id = 1;
DELETE FROM tenant WHERE t = 2 AND id = 4;
SELECT * FROM post WHERE t = 2 ORDER BY id;
DROP TABLE post, tenant;

-- self-referencing: cascades that delete and update what is being scanned
CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree ON DELETE CASCADE ON UPDATE CASCADE, s text);
INSERT INTO tree SELECT g, nullif(g / 2, 0), 'n' || g FROM generate_series(1, 200) g;
DELETE FROM tree WHERE id = 3;
SELECT count(*), min(id), max(id), sum(id) FROM tree;
UPDATE tree SET id = id + 1000 WHERE id IN (2, 4, 5);
SELECT count(*), sum(id), sum(up) FROM tree;
BEGIN;
DELETE FROM tree WHERE id = 1;
SELECT count(*) FROM tree;
ROLLBACK;
SELECT count(*) FROM tree WHERE up = 1004;
UPDATE tree SET up = id WHERE id = 1;
DELETE FROM tree WHERE id = 1;
SELECT count(*) FROM tree;
CREATE TABLE ring (id int PRIMARY KEY, nxt int REFERENCES ring ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED);
BEGIN;
INSERT INTO ring SELECT g, g % 5 + 1 FROM generate_series(1, 5) g;
COMMIT;
DELETE FROM ring WHERE id IN (1, 3);
SELECT * FROM ring ORDER BY id;
-- two tables that refer to each other
CREATE TABLE hen (id int PRIMARY KEY, egg int);
CREATE TABLE egg (id int PRIMARY KEY, hen int REFERENCES hen ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED) USING heap;
ALTER TABLE hen ADD FOREIGN KEY (egg) REFERENCES egg ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
BEGIN;
INSERT INTO hen SELECT g, g FROM generate_series(1, 10) g;
INSERT INTO egg SELECT g, g % 10 + 1 FROM generate_series(1, 10) g;
COMMIT;
DELETE FROM egg WHERE id = 4;
SELECT (SELECT count(*) FROM hen), (SELECT count(*) FROM egg);

-- partitioned on either side, partitions of both access methods
CREATE TABLE pp (id int, k int, v int, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);
CREATE TABLE pp1 PARTITION OF pp FOR VALUES FROM (0) TO (10);
CREATE TABLE pp2 PARTITION OF pp FOR VALUES FROM (10) TO (20) USING heap;
CREATE TABLE pc (id int, pid int, pk int, FOREIGN KEY (pid, pk) REFERENCES pp ON UPDATE CASCADE ON DELETE CASCADE) PARTITION BY LIST (pk);
CREATE TABLE pc1 PARTITION OF pc FOR VALUES IN (1, 2, 3, 4, 5) USING heap;
CREATE TABLE pc2 PARTITION OF pc DEFAULT;
INSERT INTO pp SELECT g, g, 0 FROM generate_series(1, 19) g;
INSERT INTO pc SELECT g, g, g FROM generate_series(1, 19) g;
INSERT INTO pc VALUES (20, 20, 20);
UPDATE pp SET k = k + 10 WHERE id IN (2, 3);
UPDATE pp SET k = 4 WHERE id = 15;
SELECT tableoid::regclass, count(*), sum(pid), sum(pk) FROM pc GROUP BY 1 ORDER BY 1;
DELETE FROM pp WHERE k >= 12;
SELECT tableoid::regclass, count(*), sum(pid), sum(pk) FROM pc GROUP BY 1 ORDER BY 1;
UPDATE pc SET pid = 77;
UPDATE pc SET pk = 100 WHERE id = 1;
ALTER TABLE pp DETACH PARTITION pp1;
TRUNCATE pp1;
DROP TABLE pp2;
BEGIN;
DELETE FROM pc;
ALTER TABLE pp DETACH PARTITION pp1;
SELECT count(*) FROM pp1;
ROLLBACK;
ALTER TABLE pc DETACH PARTITION pc2;
INSERT INTO pc2 VALUES (50, 50, 50);
SELECT count(*) FROM pc2;

-- keys that are equal with different bytes, and large values beside them
CREATE TABLE np (n numeric PRIMARY KEY, f float8 UNIQUE, c char(5) UNIQUE, big text);
CREATE TABLE nc (id int, n numeric REFERENCES np ON UPDATE CASCADE, f float8 REFERENCES np (f) ON UPDATE CASCADE, c char(7) REFERENCES np (c) ON UPDATE CASCADE);
INSERT INTO np VALUES (1.0, 0.0, 'ab', repeat('b', 50000)), (2.00, 1, 'cd', NULL);
INSERT INTO nc VALUES (1, 1, -0.0, 'ab     '), (2, 2.0, 1, 'cd'), (3, 3, NULL, NULL);
INSERT INTO nc VALUES (1, 1, -0.0, 'ab     '), (2, 2.0, 1, 'cd');
UPDATE np SET n = 1.000, f = -0.0 WHERE n = 1;
UPDATE np SET big = big || big;
SELECT * FROM nc ORDER BY id;
UPDATE np SET n = 10, f = 10, c = 'new' WHERE n = 1;
SELECT * FROM nc ORDER BY id;
DELETE FROM np WHERE n = 10;

-- constraints that are altered, added not valid, checked under REPEATABLE READ
CREATE TABLE ap (id int PRIMARY KEY);
CREATE TABLE ac (id int, pid int CONSTRAINT acfk REFERENCES ap);
INSERT INTO ap SELECT generate_series(1, 5);
INSERT INTO ac SELECT g, g FROM generate_series(1, 5) g;
BEGIN; SET CONSTRAINTS acfk DEFERRED; ROLLBACK;
ALTER TABLE ac ALTER CONSTRAINT acfk DEFERRABLE INITIALLY DEFERRED;
BEGIN;
DELETE FROM ap WHERE id = 1;
DELETE FROM ac WHERE pid = 1;
COMMIT;
ALTER TABLE ac ALTER CONSTRAINT acfk NOT DEFERRABLE;
DELETE FROM ap WHERE id = 2;
ALTER TABLE ac DISABLE TRIGGER ALL;
INSERT INTO ac VALUES (6, 66);
ALTER TABLE ac ENABLE TRIGGER ALL;
ALTER TABLE ac DROP CONSTRAINT acfk, ADD CONSTRAINT acfk FOREIGN KEY (pid) REFERENCES ap NOT VALID;
ALTER TABLE ac VALIDATE CONSTRAINT acfk;
BEGIN ISOLATION LEVEL REPEATABLE READ;
DELETE FROM ac WHERE id = 6;
DELETE FROM ac WHERE pid = 3;
DELETE FROM ap WHERE id = 3;
ALTER TABLE ac VALIDATE CONSTRAINT acfk;
COMMIT;
SELECT convalidated, (SELECT count(*) FROM ap), (SELECT count(*) FROM ac) FROM pg_constraint WHERE conname = 'acfk' AND conrelid = 'ac'::regclass;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA fk_actions CASCADE;
