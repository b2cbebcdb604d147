--
-- Triggers: transition tables with row movement and inheritance, constraint triggers, OLD and NEW kept
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA trigger_kinds;
SET search_path = trigger_kinds, public;

CREATE TABLE log (n serial, what text);
CREATE FUNCTION show_log() RETURNS SETOF text LANGUAGE sql AS
$$WITH d AS (DELETE FROM log RETURNING *) SELECT what FROM d ORDER BY n$$;
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO log (what) VALUES (format('%s: %s %s %s on %s %s -> %s', TG_NAME, TG_WHEN, TG_OP, TG_LEVEL, TG_TABLE_NAME,
    CASE WHEN TG_OP IN ('UPDATE', 'DELETE') AND TG_LEVEL = 'ROW' THEN left(OLD::text, 60) END,
    CASE WHEN TG_OP IN ('UPDATE', 'INSERT') AND TG_LEVEL = 'ROW' THEN left(NEW::text, 60) END));
  RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END$$;
CREATE FUNCTION olds() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO log (what) SELECT TG_NAME || ' ' || TG_OP || ' on ' || TG_TABLE_NAME || ' old ' || coalesce(string_agg(o::text, ' ' ORDER BY o.id), '') FROM o;
  RETURN NULL;
END$$;
CREATE FUNCTION news() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO log (what) SELECT TG_NAME || ' ' || TG_OP || ' on ' || TG_TABLE_NAME || ' new ' || coalesce(string_agg(n::text, ' ' ORDER BY n.id), '') FROM n;
  RETURN NULL;
END$$;
CREATE FUNCTION both_() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO log (what) SELECT TG_NAME || ' ' || TG_OP || ' on ' || TG_TABLE_NAME
    || ' old ' || coalesce((SELECT string_agg(o::text, ' ' ORDER BY o.id) FROM o), '')
    || ' new ' || coalesce((SELECT string_agg(n::text, ' ' ORDER BY n.id) FROM n), '');
  RETURN NULL;
END$$;

-- partitions of both access methods, transition tables on the parent and on a partition
CREATE TABLE p (id int, k int, s text DEFAULT 'x') PARTITION BY LIST (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
CREATE TABLE p2 (s text, gone int, k int, id int) USING heap;
ALTER TABLE p2 DROP COLUMN gone;
ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2);
CREATE TABLE p3 PARTITION OF p FOR VALUES IN (3) PARTITION BY RANGE (id);
CREATE TABLE p31 PARTITION OF p3 FOR VALUES FROM (0) TO (100);
CREATE TABLE p32 PARTITION OF p3 FOR VALUES FROM (100) TO (200) USING heap;
CREATE TRIGGER ti AFTER INSERT ON p REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION news();
CREATE TRIGGER tu AFTER UPDATE ON p REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION both_();
CREATE TRIGGER td AFTER DELETE ON p REFERENCING OLD TABLE AS o FOR EACH STATEMENT EXECUTE FUNCTION olds();
CREATE TRIGGER t1 AFTER DELETE ON p1 REFERENCING OLD TABLE AS o FOR EACH STATEMENT EXECUTE FUNCTION olds();
CREATE TRIGGER t2 AFTER UPDATE ON p2 REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION both_();
INSERT INTO p VALUES (1, 1), (2, 2), (3, 3), (103, 3);
SELECT show_log();
UPDATE p SET k = k % 3 + 1;
SELECT show_log();
SELECT tableoid::regclass, * FROM p ORDER BY id;
UPDATE p SET id = id + 100 WHERE id < 50;
SELECT show_log();
COPY p (id, k) FROM stdin;
5	1
6	2
7	3
\.
SELECT show_log();
UPDATE p2 SET s = 'direct' WHERE k = 2;
SELECT show_log();
DELETE FROM p1;
DELETE FROM p WHERE id > 100;
SELECT show_log();
INSERT INTO p VALUES (8, 3) ON CONFLICT DO NOTHING;
WITH u AS (UPDATE p SET k = 1 WHERE id = 8 RETURNING *), i AS (INSERT INTO p SELECT id + 1, 3 FROM u RETURNING *)
SELECT (SELECT count(*) FROM u), (SELECT count(*) FROM i);
SELECT show_log();
-- row triggers along a movement, which may change the destination
DROP TRIGGER ti ON p; DROP TRIGGER tu ON p; DROP TRIGGER td ON p; DROP TRIGGER t1 ON p1; DROP TRIGGER t2 ON p2;
CREATE TRIGGER br BEFORE INSERT OR UPDATE OR DELETE ON p FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER ar AFTER INSERT OR UPDATE OR DELETE ON p FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER bs BEFORE UPDATE ON p FOR EACH STATEMENT EXECUTE FUNCTION note();
UPDATE p SET k = 2 WHERE id = 8;
UPDATE p SET k = 1 WHERE id = 8;
SELECT show_log();
CREATE FUNCTION to_three() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.k := 3; RETURN NEW; END$$;
CREATE TRIGGER a_first BEFORE UPDATE ON p1 FOR EACH ROW EXECUTE FUNCTION to_three();
UPDATE p SET s = 'y' WHERE id = 8;
DROP TRIGGER a_first ON p1;
CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$;
CREATE TRIGGER z_veto BEFORE INSERT ON p2 FOR EACH ROW EXECUTE FUNCTION veto();
DELETE FROM log;
UPDATE p SET k = 2 WHERE id = 8 RETURNING *;
SELECT show_log();
SELECT tableoid::regclass, * FROM p ORDER BY id;
DROP TABLE p;

-- inheritance: children with columns of their own, transition tables hold the parent's columns
CREATE TABLE a (id int, v int);
CREATE TABLE b (extra text) INHERITS (a);
CREATE TABLE c (v int, id int, more int) USING heap;
ALTER TABLE c INHERIT a;
CREATE TRIGGER tu AFTER UPDATE ON a REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION both_();
CREATE TRIGGER td AFTER DELETE ON a REFERENCING OLD TABLE AS o FOR EACH STATEMENT EXECUTE FUNCTION olds();
CREATE TRIGGER ti AFTER INSERT ON b REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION news();
CREATE TRIGGER rb BEFORE UPDATE ON b FOR EACH ROW EXECUTE FUNCTION note();
INSERT INTO a VALUES (1, 1);
INSERT INTO b VALUES (2, 2, 'b'), (3, 3, 'bb');
INSERT INTO c VALUES (4, 4, 4);
UPDATE a SET v = v + 10;
SELECT show_log();
UPDATE ONLY a SET v = v + 10;
UPDATE b SET v = 0 WHERE id = 2;
DELETE FROM a WHERE id <> 3;
SELECT show_log();
SELECT tableoid::regclass, * FROM a;
CREATE TRIGGER row_ AFTER UPDATE ON b REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH ROW EXECUTE FUNCTION both_();

-- statement triggers of commands that touch nothing, and of ON CONFLICT
CREATE TABLE t (id int PRIMARY KEY, v int, s text);
CREATE TRIGGER bs BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON t FOR EACH STATEMENT EXECUTE FUNCTION note();
CREATE TRIGGER as_ AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON t FOR EACH STATEMENT EXECUTE FUNCTION note();
CREATE TRIGGER ti AFTER INSERT ON t REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION news();
CREATE TRIGGER tu AFTER UPDATE ON t REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION both_();
INSERT INTO t SELECT 1 WHERE false;
INSERT INTO t VALUES (1, 1), (2, 2);
INSERT INTO t VALUES (2, 20), (3, 30) ON CONFLICT (id) DO UPDATE SET v = excluded.v;
INSERT INTO t VALUES (2, 200), (4, 40) ON CONFLICT DO NOTHING;
DELETE FROM t WHERE id > 100;
TRUNCATE t;
SELECT show_log();
DROP TRIGGER bs ON t; DROP TRIGGER as_ ON t; DROP TRIGGER ti ON t; DROP TRIGGER tu ON t;

-- constraint triggers, deferred over savepoints, that change the table themselves
CREATE CONSTRAINT TRIGGER dc AFTER INSERT OR UPDATE OR DELETE ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note();
CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.v < 3 THEN UPDATE t SET v = v + 1 WHERE id = NEW.id; END IF;
  RETURN NULL;
END$$;
CREATE CONSTRAINT TRIGGER dd AFTER INSERT OR UPDATE ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION again();
BEGIN;
INSERT INTO t VALUES (1, 1, 'one'), (2, 5, 'two');
SAVEPOINT a;
UPDATE t SET s = 'gone' WHERE id = 1;
DELETE FROM t WHERE id = 2;
ROLLBACK TO a;
UPDATE t SET s = 'stays' WHERE id = 1;
UPDATE t SET id = 20 WHERE id = 2;
SELECT show_log();
COMMIT;
SELECT show_log();
SELECT * FROM t ORDER BY id;
BEGIN;
SET CONSTRAINTS dc IMMEDIATE;
DELETE FROM t WHERE id = 20;
SELECT show_log();
SET CONSTRAINTS ALL DEFERRED;
INSERT INTO t VALUES (20, 9);
ROLLBACK;
SELECT show_log();
DROP TRIGGER dc ON t; DROP TRIGGER dd ON t;
-- a deferrable unique constraint, swapped in one command and in one transaction
CREATE TABLE du (id int UNIQUE DEFERRABLE INITIALLY IMMEDIATE, v int);
INSERT INTO du SELECT g, g FROM generate_series(1, 6) g;
UPDATE du SET id = id + 1;
UPDATE du SET id = 8 - id;
UPDATE du SET id = 3 WHERE id = 4;
BEGIN;
SET CONSTRAINTS ALL DEFERRED;
UPDATE du SET id = 3 WHERE id = 4;
UPDATE du SET v = v + 100 WHERE id = 3;
SAVEPOINT a;
UPDATE du SET id = 4 WHERE v = 104;
ROLLBACK TO a;
UPDATE du SET id = 40 WHERE v = 105;
SET CONSTRAINTS ALL IMMEDIATE;
SELECT count(*), count(DISTINCT id) FROM du;
ROLLBACK;
BEGIN;
SET CONSTRAINTS ALL DEFERRED;
INSERT INTO du VALUES (2, 77);
UPDATE du SET v = 78 WHERE v = 77;
COMMIT;
BEGIN;
SET CONSTRAINTS ALL DEFERRED;
INSERT INTO du VALUES (2, 77);
DELETE FROM du WHERE id = 2 AND v <> 77;
COMMIT;
SELECT * FROM du ORDER BY id;

-- OLD and NEW kept beyond the trigger: in tables, arrays, variables of the session
CREATE TEMP TABLE kept (o t, n t, a t[]) USING heap;
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO kept VALUES (OLD, NEW, ARRAY[OLD, NEW]);
  PERFORM set_config('nvm_regress.last', NEW::text, false);
  RETURN NEW;
END$$;
TRUNCATE t;
INSERT INTO t SELECT g, g, repeat(md5(g::text), g * 200) FROM generate_series(1, 5) g;
CREATE TRIGGER kb BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION keep();
CREATE TRIGGER ka AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION keep();
UPDATE t SET v = v + 1, s = s || 'x' WHERE id % 2 = 1;
UPDATE t SET v = 100 WHERE id = 2;
DELETE FROM t;
VACUUM t;
INSERT INTO t SELECT g, g, repeat(md5('other' || g), g * 200) FROM generate_series(11, 15) g;
SELECT (o).id, (o).v, (n).v, length((o).s), md5((o).s) = md5(repeat(md5((o).id::text), (o).id * 200)) AS old,
  (n).s = CASE (o).id WHEN 2 THEN (o).s ELSE (o).s || 'x' END AS new, (a[2]).s = (n).s AS arr
FROM kept ORDER BY 1, 2;
SELECT length(current_setting('nvm_regress.last'));
-- WHEN with OLD and NEW of large values, UPDATE OF, RETURNING after BEFORE triggers
DROP TRIGGER kb ON t; DROP TRIGGER ka ON t;
CREATE TRIGGER w AFTER UPDATE OF s ON t FOR EACH ROW WHEN (OLD.s <> NEW.s AND length(NEW.s) > 1000) EXECUTE FUNCTION note();
UPDATE t SET s = s;
UPDATE t SET s = 'short' WHERE id = 11;
UPDATE t SET s = reverse(s) WHERE id = 12;
SELECT show_log();
CREATE FUNCTION grow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.s := NEW.s || OLD.s || NEW.s; RETURN NEW; END$$;
CREATE TRIGGER g BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION grow();
WITH u AS (UPDATE t SET v = 0 WHERE id > 12
	RETURNING id, length(s), md5(s) = md5(repeat(repeat(md5('other' || id), id * 200), 3)) AS same)
SELECT * FROM u ORDER BY id;
SELECT id, length(s) FROM t ORDER BY id;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA trigger_kinds CASCADE;
